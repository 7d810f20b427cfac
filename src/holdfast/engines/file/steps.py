"""File operations that several parts of the engine share."""

from __future__ import annotations

import errno
import stat

from ..._core.attempt import ask
from ..._core.wait import Signal, Steps, Wait
from ..._platform.operations import let_go
from ...errors import InvalidPath
from ...model import INFINITY, next_beat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._platform.interface import Environment
    from .request import FileRequest


UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
"""The errors of a user who may not write to a file or directory."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""The errors of a full disk, or of a user whose quota is used up."""
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
"""The errors of a process, or a system, that has no descriptor left."""
REMOVED = (errno.ESTALE, errno.ENOENT)
"""The errors of an open file that another machine has removed (inspect.py, L8)."""
# A file that was created but not yet written carries this bit; see publish.py, P6.
UNFINISHED = stat.S_ISVTX
OWNER = stat.S_IRUSR | stat.S_IWUSR
_DISCONNECTED = (errno.EIO, errno.ENOTCONN, errno.ECONNRESET, errno.ECONNABORTED, errno.ESHUTDOWN)
_NEEDS = {  # what is missing, by the error that says so
    errno.EMFILE: "each hold needs a descriptor{slots}, and this process, with {holds} holds, has reached its "
    "limit{limit}: {remedy}",
    errno.ENFILE: "each hold needs a descriptor, and all processes together have reached the system's limit "
    "(fs.file-max): release some holds, or raise it",
    errno.ENOSPC: "the filesystem of {directory} has neither space nor files left for a lock file; make room there",
    errno.EDQUOT: "no lock file may be added to {directory}; make room there",
}


def is_there(env: Environment, path: str, identity: tuple[int, int]) -> bool:
    """Whether the path names this inode now."""
    return names_there(env, path, identity) > 0


def names_there(env: Environment, path: str, identity: tuple[int, int]) -> int:
    """The number of names of this inode, at a moment when the path is one; 0 if it is not (takeover.py, T18)."""
    try:
        found = env.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return (found.st_nlink or 1) if (found.st_dev, found.st_ino) == identity else 0


def write_all(env: Environment, fd: int, data: bytes, offset: int = 0, what: str = "the lock file's record") -> None:
    """Write everything in one write; in several only after a short one, which the kernel makes just before ENOSPC."""
    written = env.write(fd, data, offset)
    while written < len(data):
        count = env.write(fd, data[written:], offset + written)
        if count == 0:
            raise OSError(errno.ENOSPC, f"{what} could not be written whole")
        written += count


def admit_owner(env: Environment, fd: int, mode: int) -> None:
    """Let the owner of a new file open it again, even if the umask takes that right from the owner."""
    made = stat.S_IMODE(mode)
    if made & OWNER != OWNER:
        try:
            env.chmod(fd, made | OWNER)
        except OSError:
            pass  # a filesystem without modes, say; if it matters, the next process that opens the file gets the error


def open_lasting(env: Environment, path: str, mode: int) -> int:
    """A new file that stays, and that its owner may open again."""
    fd = env.open_new(path, mode)
    try:
        admit_owner(env, fd, env.fstat(fd).st_mode)
    except OSError:
        pass  # its mode is not known; as above
    except BaseException:
        env.close(fd)
        raise
    return fd


def close_quietly(env: Environment, fd: int) -> None:
    """Close the descriptor, if it is open; errors do not matter."""
    try:
        if fd >= 0:
            env.close(fd)
    except OSError:
        pass


def forget_hold(env: Environment, identity: tuple[int, int], fd: int) -> None:
    """Remove a hold from the list, unless the entry is a later hold of the same file."""
    held = env.holds.get(identity)
    if held is not None and held.fd == fd:
        del env.holds[identity]


def kinds_of_marker(request: FileRequest, data: bytes) -> tuple[bytes, bytes]:
    """The beginnings of this record's marker of either kind: known by its process, by its guard (publish.py, P3)."""
    key = request.protocol.marker_key
    at = data.find(key) + len(key)
    begin = key + data[at : at + 1]  # the version
    return begin + b" n ", begin + b" g "


def withdraw(
    env: Environment, request: FileRequest, data: bytes, fd: int, *, ours: bool | None = None, before: bytes = b""
) -> None:
    """Undo whatever part of publishing was done (publish.py, P4), unless another process has changed the file.

    `ours`: whether a hold with a lease is still ours; None if that is not known (lease.py, LE8). `before`: the record
    of a dead holder, which is put back (takeover.py, T21). May be interrupted, and called again (operations.py, J3).
    """
    if not env.is_open(fd):
        return
    try:
        found = env.fstat(fd)
        identity = (found.st_dev, found.st_ino)
        forget_hold(env, identity, fd)
        if ours is None:
            ours = not (next_beat(data, request.protocol.marker_key) and env.storage(request.path, identity[0]).shared)
        if ours and is_there(env, request.path, identity):
            content = env.read(fd, len(data) + 1)
            by_process, by_guard = kinds_of_marker(request, data)
            # P3's byte may be flipped or not, in the file and in our copy.
            whole = data.replace(by_guard, by_process, 1) == content.replace(by_guard, by_process, 1)
            if whole and before and _puts_back(env, request, fd, before, len(content)):
                pass
            elif whole or (data.startswith(content) and env.guard(fd) is not False):
                env.unlink(request.path)
    except OSError:  # the first failure is the one to report; a leftover has no guard and will be taken over
        for key, held in env.holds.copy().items():
            if getattr(held, "fd", None) is fd:
                env.holds.pop(key, None)
    let_go(env, fd)


def _puts_back(env: Environment, request: FileRequest, fd: int, before: bytes, length: int) -> bool:
    """Whether the record could be put back over ours."""
    try:
        write_all(env, fd, before.ljust(length, request.protocol.padding))
    except OSError:
        return False
    return True


def disconnected(env: Environment, path: str, error: OSError) -> str:
    """Advice for a mount that returns only errors, as its server is lost; empty for any other error."""
    if error.errno not in _DISCONNECTED or not env.may_block(path):
        return ""
    server = env.server_at(path)
    if not env.reconnects(path):
        return f"the connection to {server} is lost for good, as this client does not reconnect: mount it again"
    return (
        f"{server} fails, or the connection to it is lost: check that the server runs. If it does and the error "
        "persists, mount it again"
    )


def prepare(env: Environment, prepare: Callable[[], Signal | None]) -> Steps[None]:
    """Have the caller's function compose what it writes, now or when the signal is set (acquire.py, A6)."""
    known = ask(prepare)
    if known is not None:
        yield from answered(env, known)


def answered(env: Environment, known: Signal) -> Steps[None]:
    """Wait until the caller's function has its answer (acquire.py, A6)."""
    generation = env.generation
    while not known.is_set and generation == env.generation:
        yield Wait((), INFINITY, known)


def not_made(error: OSError, request: FileRequest, env: Environment) -> Exception:
    """The error for a failed step of making the lock file, in words that say what to do."""
    if error.errno in UNWRITABLE:
        error.add_note(f"no lock file can be made in {request.directory}; choose a directory that you may write to")
    if error.filename is None:
        error.filename = request.path
    return with_hint(error, request, env)


def with_hint(error: OSError, request: FileRequest, env: Environment | None = None) -> Exception:
    """The error in words that say what to do, where those of the operating system mislead.

    Without `env`, for a step that opens nothing, an error about exhausted resources stays as it is, and a directory is
    known to be missing.
    """
    path, directory = request.path, request.directory
    match error.errno:
        case errno.ENOENT if env is not None and env.exists(f"{directory}/."):  # such as /proc
            message = f"no file can be created in {directory}, though it exists; choose another directory"
        case errno.ENOENT:
            message = f"{directory} does not exist, so no lock file can be in it; create it first, or ask for that "
            message += "(parents=True, --parents)"
        case errno.ENOTDIR:
            message = f"{directory} is not a directory, so no lock file can be in it; choose another path"
        case errno.ENAMETOOLONG:
            message = f"the name is too long for this filesystem; choose a shorter one than {path!r}"
        case errno.ELOOP:
            message = f"{path} leads through a symbolic link that is refused or goes round in a circle; choose another "
            message += "path"
        case _:
            message = ""
    if message:
        return request.error(InvalidPath, message)
    lost = disconnected(env, path, error) if env is not None else ""
    if lost:
        return OSError(error.errno, f"{error.strerror}; {lost}", path)
    need = next((need for number, need in _NEEDS.items() if error.errno == number), None)
    if need is None or env is None:
        return error
    limit = env.open_limit()
    need = need.format(
        directory=directory,
        holds=len(env.holds),
        limit="" if limit is None else f" of {limit}",
        slots="" if request.slot is None else ", as does each slot of a semaphore that is looked at",
        remedy=_remedy(request, env),
    )
    return OSError(error.errno, f"{error.strerror}; {need}", path)


def _remedy(request: FileRequest, env: Environment) -> str:
    """Advice for a process that has no descriptor left."""
    ways = [] if request.slot is None else ["use fewer slots"]
    ways += ["release some holds" if env.holds else "close other files"]
    ways += [f"raise the limit ({env.raises_open_limit})"] if env.raises_open_limit else []
    return ", or ".join(ways)
