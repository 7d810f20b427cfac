"""Locks that are directories (protocol `proper-lockfile`): made by the holder, and kept fresh by their time.

    mkdir ──▶ open, guard ──▶ time, mark ──▶ hold ──▶ (beat: time) ──▶ rmdir ──▶ leave the queue, unguard, close

DL1  mkdir creates the name exclusively, so of two that find nothing one succeeds. It and the opening are one step for
    signals, and a directory that cannot be opened is removed again. From then on the inode is open, so no other file
    gets its number while we hold: the directory is ours while the path names that inode and its time is the one that we
    read back after we had set it.
DL2  The guard is taken before the mark that says so (as publish.py, P2). Without a mark, others go by the time: the
    directory of a process that dies between the two becomes stale like any other.
DL3  A takeover is in place: under the guard and a claim (takeover.py, T1), the path must name the inode and its time be
    the one that was judged; then the time is set to now, and in any case to another one. The late holder finds another
    time and counts its lock as lost, and so does one of another implementation. A contender that judges from now on
    finds a fresh lock.
DL4  A contender that has judged before removes the directory at the path, even if it is ours: its protocol has no step
    that would be safe. So where the rule holds, the new hold settles, and looks again, before it is delivered (as T5);
    and so does one that made its directory where it had seen a stale one. A process that stops for longer than that,
    between its look and its removal, is not covered; the hold notices and reports it.
DL5  A directory that is not empty may be somebody's data. It counts as held, and is neither taken over nor removed.
    Another process with write access to the parent may put one in the place of ours between mkdir and open. So an
    opened directory is left alone until it has been seen to be empty. An empty one is a lock, no matter who
    made it.
DL6  Where this user may not set the time, the directory is removed under the guard and the claim, and made again. An
    implementation that removes and makes it between our last look and that removal loses a fresh lock: that window is
    microseconds long, and only here.
DL7  No waiter keeps the directory open: while one does, its removal makes no event. A holder keeps it open, so a
    removal makes no event for the holder either: it looks, once a second if a callback wants to hear of it, else with
    each beat.
DL8  While a new time is being set, a look may find it, and an interruption may come before it is known: until the next
    one is set, any time that the filesystem may have made of it counts as ours.
"""

from __future__ import annotations

import errno
import stat

from ..._core.wait import Steps, Wait
from ..._platform.operations import let_go, partial
from ...errors import InvalidPath, UnsupportedFilesystem
from ...liveness import Liveness
from ...model import Holder, Record, Status
from ...protocols.proper_lockfile import is_coarse, stamp
from .hold import FileHold
from .inspect import Observation, forget
from .policy import Verdict, judge
from .publish import make_parents
from .steps import UNWRITABLE, forget_hold, is_there, not_made, with_hint
from .takeover import EXCLUSIVE, SHARED, TRIES, make_claim, settle, take_guard
from .watched import WatchedFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..._platform.interface import Environment
    from ..._platform.values import LockOwner
    from .request import FileRequest


_GUARD_TRIES = 20
_GUARD_PAUSE = 0.0005
_FINE, _COARSE = 1_000_000, 1_000_000_000
"""Nanoseconds that are added to a new time that would equal the old one (DL3)."""
_COARSEST = 2_000_000_000
"""Nanoseconds: the resolution of a time on vfat."""
_NOT_EMPTY = "it is not empty, so it may be somebody's data"
"""The reason by DL5."""


class DirectoryHold(FileHold):
    """A hold of a directory. `stamp` is the directory's time, in nanoseconds."""

    __slots__ = ("coarse", "setting", "stamp")

    recorded = False
    tells_loss = False

    def __init__(
        self, env: Environment, request: FileRequest, fd: int, identity: tuple[int, int], stamp: int, guarded: bool
    ) -> None:
        self.stamp = stamp
        self.setting = 0
        """The time that is being set (DL8)."""
        self.coarse = False
        FileHold.__init__(self, env, request, fd, identity, b"", guarded)

    def taken_by(self, env: Environment, fd: int) -> DirectoryHold:
        ours = DirectoryHold(env, self.request, fd, self.identity, self.stamp, True)
        ours.setting, ours.coarse = self.setting, self.coarse
        return ours

    def record(self) -> Record:
        return self.unwritten_record()

    def send_beat(self) -> None:
        with self.mutex:
            if not self.released:
                self.refresh()

    def refresh(self) -> None:
        """Set the time to now, and remember what the filesystem has made of it."""
        env, device = self.env, self.identity[0]
        boot = env.identity().boot
        for _ in range(2):
            self.setting = stamp(env.time(), boot, device, coarse=self.coarse)
            if self.setting == self.stamp:
                self.setting += _COARSE if self.coarse else _FINE  # DL3
            env.set_modified(self.fd, self.setting)
            kept = env.fstat(self.fd).st_mtime_ns
            if self.coarse or not is_coarse(self.setting, kept):
                break
            self.coarse = True
        self.stamp, self.setting = kept, 0

    def _is_ours(self) -> bool:
        """Whether the path names our directory with our time (DL1), and we have it open (FH5)."""
        try:
            found = self.env.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            if self._has_descriptor():
                raise
            return False
        if (found.st_dev, found.st_ino) != self.identity or not self._has_descriptor():
            return False
        modified = found.st_mtime_ns
        return modified == self.stamp or (bool(self.setting) and 0 <= self.setting - modified < _COARSEST)  # DL8

    def _withdraw_file(self) -> None:
        _withdraw(self.env, self.path, self.fd, ours=self._is_ours())


def _withdraw(env: Environment, path: str, fd: int, *, ours: bool = True) -> None:
    """Undo whatever part of making the directory was done. May be interrupted, and called again (operations.py, J3)."""
    if not env.is_open(fd):
        return
    try:
        found = env.fstat(fd)
        identity = (found.st_dev, found.st_ino)
        forget_hold(env, identity, fd)
        if ours and is_there(env, path, identity):
            env.remove_directory(path)
    except OSError:
        pass  # the first failure is the one to report; what is left is stale soon
    let_go(env, fd)


# -- making it ---------------------------------------------------------------------------------------------------------


def create(env: Environment, request: FileRequest) -> Steps[DirectoryHold | None]:
    """A new hold, or None if the path exists (DL1, DL2)."""
    require_possible(env, request)
    require_target(env, request)
    fd = _make(env, request)
    if fd is None:
        return None
    try:
        if env.list_directory(fd):
            let_go(env, fd)  # DL5
            return None
        guard: bool | None = None
        for _ in range(_GUARD_TRIES):
            guard = _guard(env, fd)
            if guard is not False:
                break
            yield Wait((), env.monotonic() + _GUARD_PAUSE)  # a probe takes it for an instant
        held = _begin(env, request, fd, guarded=guard is True)
        if is_there(env, request.path, held.identity):
            return held
    except BaseException:
        _withdraw(env, request.path, fd)
        raise
    held.abandon()  # one that had judged a stale lock has removed it (DL4)
    return None


def require_possible(env: Environment, request: FileRequest) -> None:
    """Raise UnsupportedFilesystem on a system where a directory cannot be held."""
    if not env.locks_directories:
        raise request.error(
            UnsupportedFilesystem,
            f"{request.path} cannot be locked by the protocol {request.protocol.name}: this system neither locks a "
            "directory nor sets its time by a descriptor, so a holder could not be told from its successor. Use "
            "another protocol for both sides.",
        )


def require_target(env: Environment, request: FileRequest) -> None:
    """Raise InvalidPath for a file that does not exist, where links are followed: theirs says ENOENT."""
    target = request.path.removesuffix(request.protocol.suffix)
    if request.more.get("realpath") is not False and target != request.path and not env.exists(target):
        raise request.error(
            InvalidPath,
            f"{target} does not exist, and {request.protocol.name} locks what exists: create it first, or use "
            "realpath=False (--realpath no) in all users of the lock",
        )


def _make(env: Environment, request: FileRequest) -> int | None:
    operation = env.operations.current()
    if operation is not None:
        operation.undo_created = partial(_withdraw, env, request.path)
    raced: list[OSError] = []
    while True:
        try:
            return env.open_new_directory(request.path, request.mode)
        except FileExistsError:
            return None
        except OSError as error:
            if not make_parents(env, request, error, raced):
                raise not_made(error, request, env) from error


def _guard(env: Environment, fd: int) -> bool | None:
    """Take the guard like `env.guard`; None where it needs a descriptor that can write (NFS), as none here can."""
    try:
        return env.guard(fd)
    except OSError as error:
        if error.errno != errno.EBADF or not env.is_open(fd):
            raise
        return None


def _begin(env: Environment, request: FileRequest, fd: int, *, guarded: bool) -> DirectoryHold:
    """The hold of a directory that has no other holder."""
    found = env.fstat(fd)
    held = DirectoryHold(env, request, fd, (found.st_dev, found.st_ino), found.st_mtime_ns, guarded)
    try:
        held.refresh()
        mode = stat.S_IMODE(found.st_mode)
        marked = mode | stat.S_ISVTX if guarded else mode & ~stat.S_ISVTX
        if marked != mode:
            try:
                env.chmod(fd, marked)
            except OSError:
                pass  # a filesystem without such bits: it goes by its time (DL2)
    except BaseException:
        forget_hold(env, held.identity, fd)
        raise
    return held


# -- taking it over ----------------------------------------------------------------------------------------------------


def take_over(env: Environment, request: FileRequest, seen: Observation, verdict: Verdict) -> Steps[FileHold | None]:
    """The hold, or None if another contender or the holder itself was faster (DL3)."""
    require_possible(env, request)
    try:
        if seen.fd < 0:
            seen.fd = env.open_directory(request.path)
        names = env.list_directory(seen.fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        seen.blocked = "this user may not open the directory"
        return None
    if names:
        seen.blocked = _NOT_EMPTY
        return None
    held, removed = _take(env, request, seen)
    if removed:
        held = yield from create(env, request)
    if held is None:
        return None
    held.recovered_from = seen.record
    if verdict.by_proof and not removed:
        return held
    return (yield from settled(env, held))


def settled(env: Environment, held: DirectoryHold) -> Steps[FileHold | None]:
    """The hold, if no contender that had judged before has removed it (DL4); else None."""
    try:
        return (yield from settle(env, held))
    except BaseException:
        held.give_back()
        raise


def _take(env: Environment, request: FileRequest, seen: Observation) -> tuple[DirectoryHold | None, bool]:
    """The hold, and whether the directory was removed instead, as nothing else was possible (DL6)."""
    fd, held, removed = seen.fd, None, False
    guard = take_guard(env, fd)
    if guard is None:
        return None, False  # T1 (takeover.py)
    if guard == SHARED and seen.refused < TRIES:
        seen.refused += 1
        env.unguard(fd)
        return None, False
    claim = None
    try:
        claim = make_claim(env, request.path, seen.identity, guard)
        seen.claimed = claim is None
        if claim is not None and _is_as_judged(env, request, seen):
            try:
                held = _begin(env, request, fd, guarded=guard == EXCLUSIVE)
            except OSError as error:
                if error.errno not in UNWRITABLE:
                    raise
                env.remove_directory(request.path)
                removed = True
    except OSError as error:
        if error.errno == errno.EROFS:  # nobody can take it over, and no holder is to be waited for
            raise OSError(error.errno, error.strerror, request.path) from error
        if error.errno not in UNWRITABLE:
            raise with_hint(error, request, env) from error
        owner = env.fstat(fd).st_uid
        seen.blocked = f"this user may neither refresh the directory nor remove it: it belongs to user {owner}"
    finally:
        if claim is not None:
            claim.end()
        if held is None:
            env.unguard(fd)
        else:
            seen.fd = -1  # it is the hold's
    return held, removed


def _is_as_judged(env: Environment, request: FileRequest, seen: Observation) -> bool:
    return env.fstat(seen.fd).st_mtime_ns == seen.stamp and is_there(env, request.path, seen.identity)


# -- waiting for it ----------------------------------------------------------------------------------------------------


class WatchedDirectory(WatchedFile):
    """One lock that is a directory, as one contender sees it."""

    def __init__(self, env: Environment, request: FileRequest) -> None:
        super().__init__(env, request)
        self._was_stale = False
        self._refused = 0
        """The number of takeovers that were refused the exclusive guard."""
        self._guardian: tuple[tuple[int, int], int | None] | None = None
        """The directory that has a guard and the process that has it, by the kernel's tables."""

    def look(self, *, strict: bool = True) -> bool:
        there = super().look(strict=strict)
        if there and self.verdict.reclaim:
            self._was_stale = True
        return there

    def _obstacle(self) -> str | None:
        fd = self.seen.fd
        try:
            return _NOT_EMPTY if self.env.list_directory(self.request.path if fd < 0 else fd) else None
        except OSError:
            return None  # as far as is known: a takeover will tell

    def attempt(self) -> Steps[FileHold | None]:
        env, request = self.env, self.request
        held: FileHold | None = None
        if not self.there:
            made = yield from create(env, request)
            self.missed = made is None
            held = made
            if made is not None and self._was_stale:
                held = yield from settled(env, made)  # DL4
        elif self.verdict.reclaim:
            self.seen.refused = self._refused
            held = yield from take_over(env, request, self.seen, self.verdict)
            self._refused = self.seen.refused
            if held is None and self.seen.blocked is not None:
                self.verdict = judge(env, request, self.seen, self.assessed)  # it turned out to be impossible
        return held

    def prepare(self) -> bool:
        """Prepare as for a file. After a change, watch anew: another directory may have the watched one's number."""
        if self.there and self.assessed.liveness is Liveness.ALIVE and self.assessed.pid is None:
            self.assessed = self.assessed.replaced(pid=self._guarding())
        armed = self._watch is not None
        changed = super().prepare()
        if changed and armed:
            self._disarm()
            self._guardian = None
        return changed

    def _guarding(self) -> int | None:
        """The process whose end frees the lock: the wait ends with it. The guard then says whether the lock is free."""
        if self._guardian is None or self._guardian[0] != self.seen.identity:
            owners = self.env.lock_owners(self.seen.identity)
            holding = [owner.pid for owner in owners if owner.exclusive and not owner.waiting]
            self._guardian = (self.seen.identity, holding[0] if holding else None)
        pid = self._guardian[1]
        return None if pid is None or self.env.inspect(pid).has_ended else pid

    def plan(self, now: float, *, poll: bool) -> tuple[tuple[int, ...], float]:
        forget(self.env, self._seen)  # DL7
        return super().plan(now, poll=poll)

    def describe(self) -> Status:
        status = super().describe()
        if not self.there:
            return status
        return named(self.env, status, self.env.lock_owners(self.seen.identity))


def named(env: Environment, status: Status, owners: list[LockOwner]) -> Status:
    """The status with the process that has the guard as the holder; only for display."""
    if status.evidence.source != "guard" or status.liveness is not Liveness.ALIVE:
        return status
    pid = next((owner.pid for owner in owners if owner.exclusive and not owner.waiting), None)
    return status if pid is None else status.replaced(holder=Holder(pid, command=env.command(pid)))
