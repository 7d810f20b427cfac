"""What is at the lock path now: absent, a lock file with its record, or something that no lock file can be.

Reading never hangs and never follows: not a symlink, a FIFO or a device. One descriptor stays open for the whole wait,
because opening and closing a file wakes whoever watches it.

O1  A record counts only if it was read from an inode that is a regular file; the descriptor, not the path, is judged.
O2  A reader may see a timestamp half rewritten by a heartbeat. Nothing is called stale on one reading: a takeover
    reads again under the guard, and goes back if a single byte differs.
"""

from __future__ import annotations

import errno
import stat

from ..errors import InvalidPath, MalformedRecord, ProtocolMismatch
from ..model import Record
from ..protocols import recognise
from ..protocols.base import MAX_RECORD_BYTES
from .environment import Environment, Stat
from .request import Request

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}
_NEEDS = {
    errno.EMFILE: "each hold needs one, and this process, with {holds} holds, has reached its limit{limit}: release "
    "some, or raise the limit (ulimit -n, RLIMIT_NOFILE)",
    errno.ENFILE: "each hold needs one, and all processes together have reached the limit of the system (fs.file-max): "
    "release some, or raise it",
    errno.ENOSPC: "the filesystem of {directory} has neither space nor files left for a lock file; make room there",
    errno.EDQUOT: "no lock file may be added to {directory}; make room there",
}
"""What is missing, by the error that says so."""
_USUAL_RECORD = 4096
_UNREADABLE = (errno.EACCES, errno.EPERM)
NO_RECORD = "the record is empty, as in a file that flock(1), filelock or portalocker has left"
# A file that was created but not yet written carries this bit; see publish.py, X2.
UNFINISHED = stat.S_ISVTX


class Observation:
    """One lock file that was seen. `fd` is -1 where it may not be read or is not kept open."""

    __slots__ = ("blocked", "claimed", "data", "fd", "identity", "mode", "modified", "problem", "record", "refused")

    def __init__(self, found: Stat, fd: int) -> None:
        self.identity = (found.st_dev, found.st_ino)
        self.mode = found.st_mode
        self.modified = found.st_mtime
        """When it was written last, in seconds since the epoch."""
        self.fd = fd
        self.data = b""
        self.record: Record | None = None
        self.problem: str | None = None
        self.blocked: str | None = None
        """Why a takeover that would be right is impossible for this user."""
        self.claimed = False
        """Whether somebody else had the claim at the last try to take it over (takeover.py, T1)."""
        self.refused = 0
        """How often a takeover was refused the guard (takeover.py, T9)."""

    @property
    def is_guarded(self) -> bool:
        """Whether the record says that its holder keeps a guard, or kept it until it died."""
        return self.record is not None and self.record.marker is not None and self.record.marker.guarded

    @property
    def unfinished(self) -> bool:
        """Created by a holdfast process that has not yet written its record."""
        return not self.data and bool(self.mode & UNFINISHED)


def observe(env: Environment, request: Request) -> Observation | None:
    """What is at the path, or None for nothing. InvalidPath for what can never be a lock file."""
    path = request.path
    try:
        require_regular(env.stat(path), request)
        fd = env.open_existing(path, write=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in _UNREADABLE:
            return _unreadable(env, request)
        raise explained(error, request, env) from error
    try:
        found = env.fstat(fd)
        require_regular(found, request)
        seen = Observation(found, fd)
        reread(env, request, seen)
        if not env.guards:
            env.close(fd)
            seen.fd = -1
        return seen
    except BaseException:
        env.close(fd)
        raise


def glance(env: Environment, request: Request) -> Observation | None:
    """The same, for one who only wants to know what it says: nothing is kept open."""
    seen = observe(env, request)
    forget(env, seen)
    return seen


def require_directory(env: Environment, request: Request) -> None:
    """InvalidPath unless the directory of the lock file is there."""
    try:
        env.stat(f"{request.directory}/.")
    except FileNotFoundError as error:
        raise InvalidPath(
            f"{request.directory} does not exist, so no lock file can be in it; create it first",
            path=request.path,
            protocol=request.protocol.name,
        ) from error
    except OSError as error:
        raise explained(error, request) from error


def reread(env: Environment, request: Request, seen: Observation) -> None:
    """Read the record again from the descriptor that is kept."""
    data = read_record(env, seen.fd)
    if seen.data and data == seen.data and not request.protocol.ages_by_mtime:
        return
    seen.data, seen.record, seen.problem = data, None, None
    if not data or request.protocol.ages_by_mtime:
        found = env.fstat(seen.fd)
        seen.mode, seen.modified = found.st_mode, found.st_mtime
    try:
        record = request.protocol.decode(data)
        if record.created is None and request.protocol.ages_by_mtime:
            record = record.replaced(created=seen.modified)
        seen.record = record
    except MalformedRecord as error:
        seen.problem = str(error) if data else NO_RECORD


def read_record(env: Environment, fd: int) -> bytes:
    """The whole content, or enough to see that it is too large. A read allocates what it asks for: ask for little."""
    data = env.read(fd, _USUAL_RECORD)
    return data if len(data) < _USUAL_RECORD else env.read(fd, MAX_RECORD_BYTES + 1)


def forget(env: Environment, seen: Observation | None) -> None:
    """Close the descriptor. What closing says of a file that was only read is no news."""
    if seen is not None and seen.fd >= 0:
        fd, seen.fd = seen.fd, -1
        try:
            env.close(fd)
        except OSError:
            pass


def require_same_protocol(request: Request, seen: Observation) -> None:
    """ProtocolMismatch when the record is another protocol's: the two do not exclude each other."""
    other = other_protocol(request, seen.data, seen.record)
    if other is not None:
        raise mismatch(request, other)


def other_protocol(request: Request, data: bytes, record: Record | None) -> str | None:
    """The protocol whose record `data` is, where it is none of the request's: then nobody can acquire as asked."""
    if not data or (record is not None and record.legible):
        return None
    if request.protocol.suffix.startswith("/"):
        return None  # a file of that name is no other protocol's, whatever it looks like: a damaged record, held
    other = recognise(data)
    if other == "sidecar" and request.protocol.persistent:
        return None  # any JSON object may be a record of a sidecar, and the files of `flock` may hold anything
    return None if other == request.protocol.name else other


def mismatch(request: Request, other: str) -> ProtocolMismatch:
    return ProtocolMismatch(
        f"{request.path} holds a record of the {other} protocol, but this lock speaks {request.protocol.name}: "
        f"they would not exclude each other. Use protocol={other!r} (-p {other}), or another path.",
        path=request.path,
        protocol=request.protocol.name,
    )


def explained(error: OSError, request: Request, env: Environment | None = None) -> Exception:
    """The same failure in words that say what to do, where the operating system's are about something else.

    Without `env`, for a step that opens nothing, an error about what is used up stays as it is.
    """
    path, directory = request.path, request.directory
    message = {
        errno.ENOENT: f"{directory} does not exist, so no lock file can be in it; create it first, or ask for that "
        "(parents=True, --parents)",
        errno.ENOTDIR: f"{directory} is not a directory, so no lock file can be in it; choose another path",
        errno.ENAMETOOLONG: f"the name is too long for this filesystem; choose a shorter one than {path!r}",
        errno.ELOOP: f"{path} leads through a symbolic link that is refused or goes round in a circle; choose another "
        "path",
    }.get(error.errno or 0)
    if message:
        return InvalidPath(message, path=path, protocol=request.protocol.name)
    need = _NEEDS.get(error.errno or 0)
    if need is None or env is None:
        return error
    limit = env.open_limit()
    need = need.format(directory=directory, holds=len(env.holds), limit="" if limit is None else f" of {limit}")
    return OSError(error.errno, f"{error.strerror}; {need}", path)


def require_regular(found: Stat, request: Request) -> None:
    """InvalidPath, saying what it is, for what is no regular file."""
    if stat.S_ISREG(found.st_mode):
        return
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
    raise InvalidPath(
        f"{request.path} is {kind}, not a lock file; remove it or choose another path",
        path=request.path,
        protocol=request.protocol.name,
    )


def _unreadable(env: Environment, request: Request) -> Observation | None:
    try:
        seen = Observation(env.stat(request.path), -1)
    except FileNotFoundError:
        return None
    seen.problem = "the lock file may not be read by this user"
    return seen
