"""The lock file that is at the path now, and whether its holder is alive.

Reading never hangs and never opens a symlink, FIFO or device. One descriptor stays open for the whole wait, as opening
and closing a file wakes its watchers.

Liveness is a ladder of questions. The first answer wins and carries its evidence:

L1  The guard is held: ALIVE, proven. The kernel drops it when the last process that has it ends, not before. If a whole
    machine ends, its server has to notice. Where that takes long, the guard of a holder with a lease from another boot
    proves nothing, and is respected nowhere: its lease decides.
L2  The guard is free, and the marker says that the holder took it on this boot and this device: DEAD, proven. Through
    another mount of a FUSE filesystem, or through an overlay's upper directory, a held guard looks free; `st_dev`
    differs in every such case. After a reboot device numbers repeat; hence the boot id. It proves nothing on a
    filesystem that machines share, if the holder has a lease: a server that loses sight of a machine drops its locks.
L3  The holder's pid, where it is meaningful here: in a marker of our boot and PID namespace, or in a foreign record,
    which has only the number. No such process, or one that started later: DEAD. Proven only for a marker that says that
    the holder is known by its process alone (`n`): a foreign tool may write its record and end (a shell's `try`), and a
    guard may have been passed on to a child that outlives the pid. That a process started after a foreign record was
    written may also mean that the clock was set in between: where age is no part of the protocol's rule, it counts as
    UNKNOWN.
L4  A marker of this host, from another boot: DEAD, by rule, as host names repeat.
L5  Everything else: UNKNOWN, which counts as held.
L6  A record counts only if it was read from an inode that is a regular file; the descriptor, not the path, is judged.
L7  A reader may see a timestamp half rewritten by a heartbeat. Nothing is called stale on one reading: a takeover
    reads again under the guard, and goes back if a single byte differs.
L8  On a network filesystem, an open file may have been removed by another machine (ESTALE; ENOENT on 9p), and its name
    may be another file's; or its server has restarted and does not know that it is open (EBADF on NFS 4). So we look
    again, a few times.
L9  A lock that is a directory (proper-lockfile) has no record. A holdfast holder marks it once it has the guard, with
    the boot and the device: so L1 and L2 hold for it as well. Of any other holder only the time is known.
L10 A lease that another process has on the file (F_SETLEASE) lets nobody open it until that process ends it, or the
    kernel, after a time. No event announces that. Until then the file counts as unreadable, and a wait polls.
L11 Any process that may read the file can lock it. A holder's guard is on a descriptor that can write, and the kernel
    counts a file as open for writing for longer than any such descriptor keeps a lock, whichever process has inherited
    it. So if no process has the file open for writing, the lock is no guard, and the guard of the holder is gone: L2 to
    L5 decide. The kernel tells the file's owner and root, by granting a lease for reading, which is ended at once;
    nobody else can know, and then the lock counts as a guard. The lock's owner is not examined: pids, users and rights
    may have changed since it was taken. This says nothing about writers elsewhere (another machine, another device:
    L2), nor about a holder that has promised nothing about its descriptor (no marker, or one of version 1).
L12 A holder that releases removes its file, and then drops its guard, or ends. So a file whose guard is free, or whose
    process is gone, may belong to a lock that was released during the look. A conclusion from a death therefore asks
    whether the path still names the file (policy.py); a takeover asks anyway (takeover.py, T4).
L13 A takeover takes the guard, and then writes its record over the dead holder's. So if a guard is held and the process
    of the record has ended, the record is read again before the guard's holder is named beside it.
"""

from __future__ import annotations

import errno
import stat

from ..._platform.fork import forking
from ..._platform.values import Presence
from ...errors import InvalidPath, MalformedRecord, ProtocolMismatch
from ...liveness import Liveness
from ...model import Evidence, Identity, Marker, Record, Value
from ...protocols import get, recognise
from ...protocols.base import MAX_RECORD_BYTES
from .steps import REMOVED, UNFINISHED, close_quietly, is_there, with_hint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..._platform.interface import Environment, Stat
    from .request import FileRequest


_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}
"""Names for what may be at the path instead of a regular file, by its type."""
_USUAL_RECORD = 4096
TRIES = 5
_UNREADABLE = (errno.EACCES, errno.EPERM)
LEASED = "its owner or root has a lease on the lock file (F_SETLEASE), so that it cannot be opened now"
NO_RECORD = "the record is empty, as in a file that flock(1), filelock or portalocker has left"


class Observation:
    """One look at a lock file. `fd` is -1 if it may not be read or is not kept open."""

    __slots__ = (
        *("blocked", "claimed", "data", "fd", "identity", "is_directory", "lease_watch", "mode", "modified", "path"),
        *("problem", "record", "refused", "replaced", "stamp", "uid", "unchanged"),
    )

    def __init__(self, found: Stat, fd: int = -1) -> None:
        self.identity = (found.st_dev, found.st_ino)
        self.uid = found.st_uid
        self.path = ""
        self.mode = found.st_mode
        self.modified = found.st_mtime
        """The time of the last write, in seconds since the epoch."""
        self.stamp = 0
        """The time in nanoseconds, for a lock that is a directory."""
        self.is_directory = False
        self.fd = fd
        self.data = b""
        self.record: Record | None = None
        self.problem: str | None = None
        self.blocked: str | None = None
        """The reason why this user cannot perform a takeover that would be right."""
        self.claimed = False
        """Whether another process had the claim when we last tried to take the lock over (takeover.py, T1)."""
        self.refused = 0
        """The number of takeovers that were refused the guard (takeover.py, T9)."""
        self.replaced = False
        """Whether a takeover has replaced this record, and given the lock back to try again."""
        self.lease_watch: Any = None
        """The observer's earlier looks at a lock file with a lease (lease.LeaseWatch)."""
        self.unchanged = 0.0
        """The seconds for which this observer has seen a record with a lease unchanged (lease.py, LE2)."""

    @property
    def is_guarded(self) -> bool:
        """Whether the record says that its holder keeps a guard, or kept it until it died."""
        return self.record is not None and self.record.marker is not None and self.record.marker.guarded

    @property
    def lease(self) -> float | None:
        """The lease of its holder, in seconds."""
        return None if self.record is None else self.record.lease

    @property
    def unfinished(self) -> bool:
        """Whether it was created by a holdfast process that has not written its record yet."""
        return not self.data and bool(self.mode & UNFINISHED)


def observe(env: Environment, request: FileRequest) -> Observation | None:
    """A look at the path; None if nothing is there. InvalidPath for what can never be a lock file."""
    tries = TRIES
    while True:
        try:
            return _observe(env, request)
        except OSError as error:
            tries -= 1
            if error.errno not in REMOVED or not tries:
                raise  # L8


def _observe(env: Environment, request: FileRequest) -> Observation | None:
    path = request.path
    try:
        found = env.stat(path)
        if request.protocol.is_directory:
            require_kind(env, request, found)
            fd = env.open_directory(path)
        else:
            require_regular(found, request)
            fd = env.open_existing(path, write=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in _UNREADABLE:
            return unreadable(env, request, "the lock file may not be read by this user")
        if isinstance(error, BlockingIOError):
            return unreadable(env, request, LEASED)  # L10
        raise with_hint(error, request, env) from error
    try:
        found = env.fstat(fd)
        if not request.protocol.is_directory:
            require_regular(found, request)
        seen = Observation(found, fd)
        seen.path = path
        reread(env, request, seen)
        if not env.guards:
            env.close(fd)
            seen.fd = -1
        return seen
    except BaseException:
        env.close(fd)
        raise


def glance(env: Environment, request: FileRequest) -> Observation | None:
    """A look at the path for reading only: nothing is kept open."""
    seen = observe(env, request)
    forget(env, seen)
    return seen


def require_directory(env: Environment, request: FileRequest) -> None:
    """Raise InvalidPath unless the directory of the lock file exists."""
    try:
        env.stat(f"{request.directory}/.")
    except FileNotFoundError as error:
        raise request.error(
            InvalidPath, f"{request.directory} does not exist, so no lock file can be in it; create it first"
        ) from error
    except OSError as error:
        raise with_hint(error, request, env) from error


def reread(env: Environment, request: FileRequest, seen: Observation) -> None:
    """Read the record again from the descriptor that is kept open."""
    if request.protocol.is_directory:
        observed_directory(seen, env.fstat(seen.fd), request.protocol.decode(b""))
        return
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


def is_rewritten(env: Environment, request: FileRequest, seen: Observation) -> bool:
    """Whether another record is in the file now; `seen` then has it (L13). False if the system refuses the look."""
    before = seen.data
    try:
        reread(env, request, seen)
    except OSError:
        return False  # such as of a file that its server has removed
    return seen.data != before


def observed_directory(seen: Observation, found: Stat, record: Record) -> None:
    """Note the mode and the time of a lock that is a directory (L9)."""
    seen.is_directory = True
    seen.mode, seen.modified, seen.stamp = found.st_mode, found.st_mtime, found.st_mtime_ns
    seen.record = record.replaced(created=found.st_mtime)


def read_record(env: Environment, fd: int) -> bytes:
    """The whole content, or enough to see that it is too large. A read allocates all that it asks for."""
    data = env.read(fd, _USUAL_RECORD)
    return data if len(data) < _USUAL_RECORD else env.read(fd, MAX_RECORD_BYTES + 1)


def read_fresh(env: Environment, path: str) -> tuple[tuple[int, int], bytes] | None:
    """The inode that the path names and its content, by a fresh opening (lease.py, LE3); None if there is none."""
    try:
        fd = env.open_existing(path, write=False)
    except OSError as error:
        if error.errno not in (*REMOVED, errno.ENOTDIR):
            raise
        return None
    try:
        found = env.fstat(fd)
        return (found.st_dev, found.st_ino), read_record(env, fd)
    except OSError as error:
        if error.errno not in REMOVED:
            raise
        return None
    finally:
        env.close(fd)


def forget(env: Environment, seen: Observation | None) -> None:
    """Close the descriptor. An error from closing a file that was only read does not matter."""
    if seen is not None:
        fd, seen.fd = seen.fd, -1
        close_quietly(env, fd)


def require_same_protocol(request: FileRequest, seen: Observation) -> None:
    """Raise ProtocolMismatch if the record is another protocol's: the two do not exclude each other."""
    other = other_protocol(request, seen.data, seen.record)
    if other is not None:
        raise mismatch(request, other)


def other_protocol(request: FileRequest, data: bytes, record: Record | None) -> str | None:
    """The protocol whose record `data` is, if not the request's: then the lock cannot be acquired as requested."""
    if not data or (record is not None and record.legible):
        return None
    if request.protocol.suffix.startswith("/"):
        return None  # no other protocol uses that name, so it is a damaged record, and held
    other = recognise(data)
    if other == "sidecar" and request.protocol.persistent:
        return None  # any JSON object may be a record of a sidecar, and the files of `flock` may hold anything
    return None if other == request.protocol.name else other


def mismatch(request: FileRequest, other: str) -> ProtocolMismatch:
    """The error. It names the path from which the other protocol derives this very lock file."""
    path, suffix, its = request.path, request.protocol.suffix, get(other).suffix
    named = f" for {path.removesuffix(its)}" if suffix or its else ""
    way = f"Use protocol={other!r} (-p {other}){named}, or" if path.endswith(its) else "Use"
    return request.error(
        ProtocolMismatch,
        f"{path} holds a record of the {other} protocol, but this lock speaks {request.protocol.name}: they would not "
        f"exclude each other. {way} another path.",
    )


def require_regular(found: Stat, request: FileRequest) -> None:
    """Raise InvalidPath for anything but a regular file; the message says what it is."""
    if stat.S_ISREG(found.st_mode):
        return
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "of an unknown type")
    is_directory = stat.S_ISDIR(found.st_mode)
    may_be_lock = is_directory and request.path.endswith(".lock")
    target = request.path.removesuffix(".lock")
    other = f" (it may be a lock of proper-lockfile: -p proper-lockfile for {target})" if may_be_lock else ""
    instead = "name a file in it, or " if is_directory and not may_be_lock else ""
    raise request.error(InvalidPath, f"{request.path} is {kind}, not a lock file{other}; {instead}choose another path")


def require_kind(env: Environment, request: FileRequest, found: Stat) -> None:
    """Raise unless it is a directory, for a lock that is one: ProtocolMismatch for the lock file of another protocol,
    InvalidPath for anything else."""
    if stat.S_ISDIR(found.st_mode):
        return
    what = _KINDS.get(stat.S_IFMT(found.st_mode), "a file")
    if stat.S_ISREG(found.st_mode):
        fd = env.open_existing(request.path, write=False)
        try:
            other = recognise(read_record(env, fd))
        finally:
            env.close(fd)
        if other is not None:
            raise mismatch(request, other)
    raise request.error(
        InvalidPath,
        f"{request.path} is {what}, and a lock of {request.protocol.name} is a directory; choose another path",
    )


def unreadable(env: Environment, request: FileRequest, why: str) -> Observation | None:
    """A look at something that cannot be opened; None if nothing is there."""
    try:
        found = env.stat(request.path)
        seen = Observation(found)
    except FileNotFoundError:
        return None
    if request.protocol.is_directory:
        seen.path = request.path
        observed_directory(seen, found, request.protocol.decode(b""))
        return seen
    seen.problem = why
    return seen


MAX_PID = 2**31 - 1
UNFINISHED_SOURCE = "unfinished"
RECYCLED_SLACK = 1.0
"""Seconds: a record's timestamp is in whole seconds, so a holder may seem to start up to one second after it."""


class Assessment(Value):
    liveness: Liveness
    evidence: Evidence
    pid: int | None = None
    """The living process whose end would change the answer; None if there is none."""

    @property
    def is_dead(self) -> bool:
        return self.liveness is Liveness.DEAD


GUARDED = Evidence("guard", "the kernel lock on its file is held", proven=True)
_LEFT = Assessment(
    Liveness.DEAD, Evidence("guard", "the holder's kernel lock is gone, on this boot and device", proven=True)
)
"""The assessment by L2."""


def assess(env: Environment, seen: Observation) -> Assessment:
    """The liveness of the holder of the lock file that was seen, with the evidence."""
    held = env.guarded(seen.fd) if seen.fd >= 0 else None
    record = seen.record
    if seen.is_directory:
        return _assess_directory(env, seen, held=held)
    if held and is_readers_lock(env, seen):
        held = False
    if held and guard_counts(env, seen):
        return Assessment(Liveness.ALIVE, GUARDED, _guardian(env, record) if env.lingering else None)
    if seen.unfinished and held is False:
        return Assessment(Liveness.UNKNOWN, Evidence(UNFINISHED_SOURCE, "its creator has not written its record"))
    if record is None:
        return _unknown(seen.problem or "the record cannot be read")
    if not record.legible:
        return _unknown("its content does not say whose it is")
    marker, here = record.marker, env.identity()
    if record.marked and marker is None:
        return _unknown("the record's marker is torn or from a newer version")
    if marker is None:
        if record.host is not None and record.host.casefold() != here.host.casefold():
            return _unknown(f"the record comes from host {record.host}, whose processes cannot be seen from here")
        return _by_process(env, record, None)
    same_boot = marker.identity.boot == here.boot != "-"
    local = marker.lease is None or not env.storage(seen.path, seen.identity[0]).shared
    if held is False and marker.guarded and same_boot and marker.device == seen.identity[0] and local:
        return _LEFT
    if marker.identity.shares_pids_with(here):
        return _by_process(env, record, marker)
    if _rebooted(marker.identity, here):
        return Assessment(
            Liveness.DEAD, Evidence("boot", f"host {here.host} has rebooted since the record was written")
        )
    where = "another PID namespace" if same_boot else f"host {marker.identity.host}"
    return _unknown(f"the record comes from {where}, whose processes cannot be seen from here")


def is_gone(env: Environment, path: str, identity: tuple[int, int]) -> bool:
    """Whether the path no longer names this file, so that its holder has released (L12). False if the system refuses
    the look, as that is not known."""
    try:
        return not is_there(env, path, identity)
    except OSError:
        return False


def _assess_directory(env: Environment, seen: Observation, *, held: bool | None) -> Assessment:
    """The assessment of a lock that is a directory (L9)."""
    if held:
        return Assessment(Liveness.ALIVE, Evidence("guard", "the kernel lock on its directory is held", proven=True))
    with forking:
        from ...protocols.proper_lockfile import is_marked
    device = seen.identity[0]
    local = held is False and not env.storage(seen.path, device).shared
    if local and is_marked(seen.mode, seen.stamp, env.identity().boot, device):
        return _LEFT
    return _unknown("it is a directory, whose time says when its holder last refreshed it, and nothing else")


def is_readers_lock(env: Environment, seen: Observation) -> bool:
    """Whether another process's lock on the file is certainly no holder's guard (L11)."""
    device = seen.identity[0]
    marker = None if seen.record is None else seen.record.marker
    if seen.fd < 0 or seen.is_directory or env.storage(seen.path, device).shared:
        return False
    if marker is None:
        promised = seen.unfinished  # publish.py, P6
    else:
        same_boot = marker.identity.boot == env.identity().boot != "-"
        promised = marker.acquired is not None and same_boot and marker.device == device
    return promised and env.is_written(seen.fd) is False


def guard_counts(env: Environment, seen: Observation) -> bool:
    """Whether another process's guard on the file says anything about the holder (L1)."""
    marker = None if seen.record is None else seen.record.marker
    if marker is None or marker.lease is None or marker.identity.boot == env.identity().boot:
        return True
    return not env.storage(seen.path, seen.identity[0]).lasting


def _guardian(env: Environment, record: Record | None) -> int | None:
    """The process whose end drops the guard, as far as the record tells; None if another one has the guard by now."""
    marker = None if record is None else record.marker
    if marker is None or not marker.identity.shares_pids_with(env.identity()):
        return None
    pid = marker.identity.pid
    return None if env.inspect(pid).has_ended else pid


def is_outlived(env: Environment, record: Record | None) -> bool:
    """Whether the process that acquired the lock has ended, even if another has the guard now. False: unknown."""
    marker = None if record is None else record.marker
    if record is None or marker is None or not marker.identity.shares_pids_with(env.identity()):
        return False
    return _by_process(env, record, marker).is_dead


def _by_process(env: Environment, record: Record, marker: Marker | None) -> Assessment:
    """The assessment by the holder's process (L3)."""
    pid = record.pid
    if pid is None:
        return _unknown("the record names no process")
    if not 0 < pid <= MAX_PID:
        return _unknown(f"the record's pid {pid} cannot be a process")
    found = env.inspect(pid)
    identified = marker is not None and not marker.guarded
    if found.presence is Presence.GONE:
        return _dead(f"there is no process {pid}", proven=identified)
    if found.presence is Presence.ZOMBIE:
        return _dead(f"process {pid} has ended (it is a zombie)", proven=identified)
    if found.presence is Presence.UNKNOWN:
        return _unknown(f"whether process {pid} lives cannot be known here")
    started = marker.identity.started if marker else "-"
    if "-" not in (started, found.started):
        if started != found.started:
            return _dead(f"pid {pid} is another process by now: it started at another time", proven=identified)
    elif marker is None and record.created is not None and found.since is not None:
        late = found.since - record.created
        if late > RECYCLED_SLACK:
            after = f"it started {late:.0f} s after the record was written"
            if get(record.protocol).has_age:
                return _dead(f"pid {pid} is another process by now: {after}")
            doubt = f"process {pid} runs, and is another one, or the clock was set meanwhile: {after}"
            return Assessment(Liveness.UNKNOWN, Evidence("process", doubt), pid)
    return Assessment(Liveness.ALIVE, Evidence("process", f"process {pid} is running"), pid)


def _rebooted(then: Identity, here: Identity) -> bool:
    """Whether this host has rebooted since (L4). Compares boot ids only: a machine number outlasts a boot."""
    boots = (then.boot, here.boot)
    known = "-" not in boots and not any(boot.startswith("machine:") for boot in boots)
    return known and then.boot != here.boot and then.host == here.host != "-"


def _dead(text: str, *, proven: bool = False) -> Assessment:
    return Assessment(Liveness.DEAD, Evidence("process", text, proven=proven))


def _unknown(text: str) -> Assessment:
    return Assessment(Liveness.UNKNOWN, Evidence("none", text))
