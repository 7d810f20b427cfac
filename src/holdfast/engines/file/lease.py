"""Leases: how a dead machine's lock is freed, on a filesystem that machines share.

There, a kernel lock may be local to the machine, and a server that restarts or loses sight of a machine drops its
locks. So the holder changes its record every third of the lease (a beat), and an observer that has seen the same record
for a whole lease replaces it. Nobody compares two clocks.

LE1 The holder counts itself lost nine tenths of the lease after it began the last beat that the server has confirmed,
    by a clock that runs on while the machine sleeps. A beat that is confirmed later than that changes nothing.
LE2 The observer's time starts when it has read a record for the first time, so after the beat began. It replaces the
    record a whole lease later, if a reading that began after that found the same bytes: no later beat has been
    confirmed, and by LE1 none can be. So the holder hears first, and has a tenth of the lease to stop.
LE3 Each reading is a fresh one: the file is opened anew, which makes a network filesystem ask its server. Time counts
    only while the server answers: after a pause of more than a quarter of the lease, or a reading that took so long,
    the observer begins anew. So when a server comes back, requests from before its end have had a lease's time to
    arrive.
LE4 The replacement is one rename of a whole new file over the old one. The old holder's later writes go to its old
    file. The path is never free in between.
LE5 Before that comes a claim: a link whose name is that very hold, with its last beat. Only one process can make it. A
    fresh reading under the claim finds whether the record is still that one.
LE6 A claimant that dies leaves its claim. It counts for a lease from the observer's first sight, again by the
    observer's clock; then the observer makes the next claim, with a higher number. A claimant that was only stopped
    finds after its rename that nine tenths of the lease have passed since before it made its claim, and gives up. Its
    successor finds by its next beat that the path names another file (LE7). It hears of that before any process can
    replace that record, which takes a whole lease.
LE7 A beat is a write, a sync, and a fresh opening of the path, to see which file it names. If that is not our file, the
    lock is lost. The first beat is confirmed before the caller gets the lock.
LE8 Until the moment of LE1 no contender has replaced the record. But the lock may have been broken, or its file removed
    or replaced by hand, which only the next beat would find. So the release reads the path anew, and removes what is
    ours. Before the first beat that moment is not known: a lock that is given up then stays until its lease is over. A
    removal that takes longer than the rest of the lease to reach the server may remove a later lock: a fencing token
    protects from that, and every hold with a lease has one.
LE9 When the loss has been reported, the guard is dropped: a process that lives on would keep others out forever.
LE10 A claim to a hold that was replaced is of no use. `clean` removes a killed claimant's claim that is older than a
    day: no claimant is stopped for so long and then goes on.
LE11 A beat is written through a descriptor of its own, from which our last record can be read, and without the mutex of
    the hold: it may take as long as the server likes. Meanwhile the hold tells by its clock whether it is lost, and its
    loss is reported.
LE12 The guardian of `run` may become the holder long after its fork (guardian.py, G3). So the time of LE1 is in memory
    that the two share: by its copy of that time, the hold would be lost at once.
LE13 A process that removes the lock, or takes it over in place, has a claim of the other kind (takeover.py, T20). A
    claimant that finds one backs off; that one counts for a lease as well, whatever the clocks say. Each claimant that
    looked before is disarmed: its claim names its new file, which without its other name cannot be renamed any more. So
    a claimant that is stopped before its rename, or has died, keeps nobody waiting. In a sticky directory, a file that
    may not be removed is root's, or is forged.
LE14 The claim of a claimant that was stopped for a lease, and then failed, goes while a later one counts. Its number
    may then be made anew. So a claimant also lists the directory, for claims with higher numbers than its own; and if
    its number is not 0, it reads the claim before its own once more. Of two, the one that is last finds the other's.
"""

from __future__ import annotations

import stat
from hashlib import blake2b

from ..._platform.operations import partial, unlink_quietly
from ..._platform.values import temporary_name
from .inspect import Observation, read_fresh
from .steps import UNWRITABLE, admit_owner, is_there, with_hint, withdraw, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..._platform.interface import Environment
    from .request import FileRequest

_PREFIX, _SUFFIX = ".holdfast-", ".lapsed"
_DAY = 86400.0
_LATE = 1 / 4
"""The share of a lease after which a server that does not answer counts as unreachable (LE3)."""
OURS = 9 / 10
"""The share of a lease for which the lock is the holder's after a beat (LE1)."""


class Lease:
    """The holder's knowledge of its own lease."""

    __slots__ = ("_env", "_until", "replaced", "seconds")

    def __init__(self, env: Environment, seconds: float) -> None:
        self._env = env
        self.seconds = seconds
        self._until: Any = [env.uptime() + OURS * seconds]
        self.replaced = False
        """Whether the path names another file."""

    @property
    def until(self) -> float:
        """The time of LE1, by `uptime`. The first beat sets it before the caller gets the lock (LE7)."""
        until: float = self._until[0]
        return until

    def share(self) -> None:
        """Let processes that are forked from now on know of each later beat (LE12)."""
        import mmap

        shared = memoryview(mmap.mmap(-1, 8)).cast("d")
        shared[0] = self.until
        self._until = shared

    def is_over(self) -> bool:
        return self.replaced or self.left() <= 0

    def left(self) -> float:
        """Seconds until it is over, unless a beat is confirmed before."""
        return self.until - self._env.uptime()

    def confirmed(self, began: float) -> None:
        """Extend the lease: a beat that began at `began`, by `uptime`, has been confirmed (LE1)."""
        if not self.is_over():
            self._until[0] = began + OURS * self.seconds


class _Unchanged:
    """The time for which an observer has found the same content (LE2, LE3)."""

    __slots__ = ("_first", "_last", "_what")

    def __init__(self) -> None:
        self._what: object = None
        self._first = self._last = 0.0

    def seconds(self, what: object, began: float, now: float, lease: float) -> float:
        """The seconds for which `what` was unchanged when this reading began; it lasted from `began` to `now`."""
        if what is None or what != self._what or max(began - self._last, now - began) > _LATE * lease:
            self._what, self._first = what, now
        self._last = now
        return max(0.0, began - self._first)


class LeaseWatch:
    """One observer's looks at a lock file with a lease."""

    def __init__(self) -> None:
        self._record = _Unchanged()
        self._claim = _Unchanged()
        self._others = _Unchanged()

    def look(self, env: Environment, path: str, seen: Observation, lease: float) -> float:
        """The seconds for which the record has not changed (LE2); 0 if it is not the one that was seen."""
        began = env.monotonic()
        found = read_fresh(env, path)
        same = found == (seen.identity, seen.data)
        return self._record.seconds(found if same else None, began, env.monotonic(), lease)

    def is_abandoned(self, env: Environment, claim: str, lease: float) -> bool:
        """Whether the claim has been there for a whole lease (LE6)."""
        began = env.monotonic()
        found = read_fresh(env, claim)
        return found is not None and self._claim.seconds((claim, found), began, env.monotonic(), lease) >= lease

    def are_abandoned(self, env: Environment, claims: list[str], lease: float) -> bool:
        """Whether the claims of the other kind have been there for a whole lease (LE13)."""
        now = env.monotonic()
        return not claims or self._others.seconds(claims, now, now, lease) >= lease


def replace(
    env: Environment, request: FileRequest, seen: Observation, others: Callable[[list[str]], list[str]]
) -> tuple[int, bytes] | None:
    """Put a new lock file in the place of the lapsed one that was seen. Its descriptor, and its record.

    None if another contender or the holder was faster. `others` finds the claims of the other kind in a list of the
    directory (LE13).
    """
    assert seen.lease is not None
    watch: LeaseWatch = seen.lease_watch or LeaseWatch()
    lease = max(seen.lease, request.lease_on(env, seen.identity[0]))
    began, claims, operation = env.uptime(), Claims(env, request, seen), env.operations.current()
    if operation is not None:
        operation.undo_claims = claims.end
    temporary = f"{request.directory}/{temporary_name(env.identity(), env.token())}"
    env.operations.about_to_make(temporary)
    try:
        data, claims.identity = _write_new(env, request, temporary, lease)
        if not claims.make(watch, temporary, lease):
            return None
        names = env.list_directory(request.directory)
        counting = others(names) + claims.later(names)
        if not watch.are_abandoned(env, counting, lease) or not _is_unchanged(env, request, seen):
            return None
        env.replace(temporary, request.path)
        claims.done = True
        fd = env.open_existing(request.path, write=True)
        if _is_late(env, began, lease):
            env.close(fd)
            return None
        env.undo_by(fd, partial(withdraw, env, request, data))
        return fd, data
    except FileNotFoundError:
        return None  # replaced or removed again
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise with_hint(error, request, env) from error
        seen.blocked = f"this user may not replace it in {request.directory}"
        return None
    finally:
        unlink_quietly(env, temporary)
        claims.end()


def _is_unchanged(env: Environment, request: FileRequest, seen: Observation) -> bool:
    """Whether the record is still the one that was seen, by a fresh reading (LE3)."""
    return read_fresh(env, request.path) == (seen.identity, seen.data)


def disarm(env: Environment, request: FileRequest, seen: Observation) -> bool:
    """Take their new files from all claimants (LE13). Whether the record is still the one that was seen."""
    directory, claimed = request.directory, set[tuple[int, int]]()
    for name in Claims(env, request, seen).later(env.list_directory(directory)):
        claimed.update(_inode(env, f"{directory}/{name}"))
    if claimed:
        for name in env.list_directory(directory):  # anew: the first list may lack a name that is older than the claim
            own = f"{directory}/{name}"
            if name.startswith(_PREFIX) and name.endswith(".tmp") and not claimed.isdisjoint(_inode(env, own)):
                _remove_if_allowed(env, own)
    return _is_unchanged(env, request, seen)


def _inode(env: Environment, path: str) -> list[tuple[int, int]]:
    """The inode of a file, or none if there is no file."""
    try:
        found = env.stat(path)
    except FileNotFoundError:
        return []
    return [(found.st_dev, found.st_ino)] if stat.S_ISREG(found.st_mode) else []


def _remove_if_allowed(env: Environment, path: str) -> None:
    try:
        env.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise


def _is_late(env: Environment, began: float, lease: float) -> bool:
    """Whether nine tenths of the lease have passed since `began` (LE6)."""
    return env.uptime() >= began + OURS * lease


def _write_new(env: Environment, request: FileRequest, temporary: str, lease: float) -> tuple[bytes, tuple[int, int]]:
    fd = env.open_new(temporary, request.mode)
    try:
        found = env.fstat(fd)
        admit_owner(env, fd, found.st_mode)  # it is opened by its name
        data = request.compose(env, found.st_dev, guarded=False, lease=lease)
        write_all(env, fd, data)
        env.sync(fd)
        return data, (found.st_dev, found.st_ino)
    finally:
        env.close(fd)


class Claims:
    """The claims to the hold that was seen: ours, and those of claimants that died."""

    __slots__ = ("_directory", "_env", "_made", "_number", "_prefix", "done", "identity")

    def __init__(self, env: Environment, request: FileRequest, seen: Observation) -> None:
        hold = blake2b(digest_size=8)
        for part in (request.name.encode("utf-8", "surrogateescape"), b"%d" % seen.identity[1], seen.data):
            hold.update(b"%d " % len(part) + part)
        self._env = env
        self._directory = request.directory
        self._prefix = f"{_PREFIX}{hold.hexdigest()}."
        self._number = -1
        """The number of our claim, from before it is made."""
        self._made = False
        """Whether our claim is known to have been made."""
        self.identity = (0, 0)
        """The file to which our claim is a link."""
        self.done = False
        """Whether the hold was replaced, so that nobody needs a claim to it."""

    def make(self, watch: LeaseWatch, temporary: str, lease: float) -> bool:
        """Make our claim (LE5); False while another one counts."""
        while True:
            self._number += 1
            path = self._path(self._number)
            try:
                self._env.link(temporary, path)
                self._made = True
            except FileExistsError:
                if not watch.is_abandoned(self._env, path, lease):
                    self._number = -1
                    return False
            else:
                return not self._number or watch.is_abandoned(self._env, self._path(self._number - 1), lease)

    def later(self, names: list[str]) -> list[str]:
        """Of these names, those of the claims after ours; of all, if we have none."""
        found = []
        for name in names:
            number = name.removeprefix(self._prefix).removesuffix(_SUFFIX)
            if name.startswith(self._prefix) and is_claim(name) and int(number) > self._number:
                found.append(name)
        return sorted(found)

    def end(self) -> None:
        """Remove ours: it would count for a lease (LE6). May be interrupted, and called again (operations.py, J3)."""
        if self._made or (self._number >= 0 and self._is_ours()):
            for number in range(0 if self.done else self._number, self._number + 1):
                unlink_quietly(self._env, self._path(number))
        self._number, self._made = -1, False

    def _is_ours(self) -> bool:
        """Whether our claim was made, if an interruption came just then."""
        try:
            return is_there(self._env, self._path(self._number), self.identity)
        except OSError:
            return False

    def _path(self, number: int) -> str:
        return f"{self._directory}/{self._prefix}{number}{_SUFFIX}"


def is_claim(name: str) -> bool:
    """Whether this is the name of a claim to a hold with a lease."""
    digits, _, number = name.removeprefix(_PREFIX).removesuffix(_SUFFIX).partition(".")
    plain = len(digits) == 16 and not digits.strip("0123456789abcdef") and number.isascii() and number.isdecimal()
    return plain and name == f"{_PREFIX}{digits}.{number}{_SUFFIX}"


def why_old(env: Environment, path: str) -> str | None:
    """The reason why a claim may be removed (LE10); None if it may be in use."""
    found = env.stat(path)
    if not stat.S_ISREG(found.st_mode) or abs(env.time() - found.st_mtime) < _DAY:
        return None
    return "it was made to replace a holder, and is older than a day"
