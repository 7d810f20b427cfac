"""Following lock files from outside: events of directories become events of locks.

Z11  No process is disturbed. Descriptors are read-only, so closing them wakes no waiter; a file that is known as a lock
    of the kernel alone, whose waiters do hear of readers, is not opened at all. No guard is taken; it is probed,
    shared, where there is content: a lock or ticket that is just being made has none yet, and its maker would have to
    try again. The kernel's table is read seldom: while it is read, no process on this machine can lock anything.
Z12  Events are hints, taken in their order: a file that vanishes ends the hold that was known, a file that appears or
    is written is looked at. Of several events at once, only the last state is seen: acquisitions released in between
    are counted in `missed`, not reported.
Z13  Changes without events are found on a clock: kernel locks taken; holders without a guard, or of a directory, that
    die or overstay; and everything where events do not arrive, or were lost.
Z14  A lock file that vanishes under a guard that is still held was removed by another process: `lost`, not `released`.
    A release closes the file right after, which makes an event. If there is none, or it may be of the next file of that
    name, the table is asked, twice.
Z15  A dying holder's file is closed a moment before its guard is gone, so after any such event it is looked at again;
    and so is the ticket of a waiter.
Z16  The mode of a ticket says whether its owner waits or has got in (queue.py); it changes once. A ticket may be gone
     before it can be read: then the event of that change tells that it was used. No ticket is opened: that would make
     events like those of its owner's death.
Z17  A queue may be removed and made again. A ticket is gone if, by the events and by the list of a new queue, nothing
     has made it since.
Z18  A lock may be replaced in place, or released and acquired anew. The file's number does not tell which, as a new
     file may get that of the last one; its birth does, where the filesystem keeps it.
Z19  Readers share a kernel lock: a reader that comes or goes ends no other hold. A held lock without a visible holder
     is still that of the holder before, if that has ended: it is left to a process that cannot be seen.
"""

from __future__ import annotations

import errno
import math
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from fnmatch import translate

from .._platform.interface import Stat, Surroundings
from .._platform.proc_locks import ProcLocks
from .._platform.values import LockOwner
from ..engines.file import queue
from ..engines.file.inspect import is_gone
from ..engines.file.paths import waited_for
from ..engines.file.queue import read_ticket
from ..model import Holder, Status, Value, Waiter
from ..protocols import get
from . import detect, kinds
from .found import DEAD, EMPTY, FREE, LEFTOVER, MALFORMED, STALE, Found, Unreadable
from .scan import DIRECTORIES, Survey, queues_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .._platform.inotify import Change, FolderWatch


TicketId = tuple[str, str]
"""Directory and name of a ticket."""


class LockEvent(Value):
    """An event of a lock file, or (`first_look`) its state at the beginning.

    Kinds and fields are those of `holdfast.events`, as far as they can be seen from outside. Two kinds are seen only
    here: `held`, a lock at the first look, and `stale`, a holder that has died or overstayed its protocol's age.

    - `kind`: held, waiting, acquired, gave-up, reclaimed, stale, lost, released.
    - `time`: when it was seen, in seconds since the epoch; at the first look, when that began.
    - `pid`, `host`, `tag`, `command`: of the holder, or of the waiter.
    - `waited`, `held`: seconds, as far as they were seen.
    - `recovered_from`: the pid of the holder that was replaced.
    """

    kind: str
    time: float
    path: str
    protocol: str
    pid: int | None = None
    host: str | None = None
    tag: str | None = None
    command: str | None = None
    waited: float | None = None
    held: float | None = None
    recovered_from: int | None = None
    first_look: bool = False


def of_holder(kind: str, time: float, status: Status, **more: Any) -> LockEvent:
    """An event of the holder of that lock."""
    who = status.holder or Holder()
    return LockEvent(kind, time, status.path, status.protocol, who.pid, who.host, who.tag, who.command, **more)


class SeenHold:
    """An acquisition, as it is seen from outside."""

    def __init__(self, found: Found, birth: str | None, since: float, wait: SeenWait | None) -> None:
        self.found = found
        self.birth = birth
        self.key = key_of(found)
        self.since = since
        self.waited = None if wait is None else max(0.0, since - wait.since)
        self.told_stale = False
        self.doubtful = False
        """Whether its file may have vanished, and the one there now be another of the same number."""
        self.shares: dict[int | None, float] = {}
        """Times when the holders of a kernel lock got it, by pid: readers share one."""
        if self.is_kernel_lock:
            self.shares = dict.fromkeys(pids_of(found), since)
        self._known = Holder(tag=None if wait is None else wait.waiter.tag)
        """The holder by an earlier look, or by its ticket: not each look opens the file of a kernel lock (Z11)."""

    def saw(self, found: Found) -> None:
        """Take in a later look at the same acquisition."""
        self._known = self.holder
        self.found, self.doubtful = found, False

    def is_same(self, found: Found) -> bool:
        """Whether this acquisition is the one found."""
        if self.doubtful and found.status.modified != self.found.status.modified:
            return False
        if self.is_directory and self.found.condition == DEAD != found.condition:
            return False  # replaced in place: there is no record that says by whom
        return self.key == key_of(found)

    def is_nameless(self, found: Found) -> bool:
        """Whether this kernel lock was found, without a visible holder."""
        return self._is_of_same_file(found) and pids_of(found) == [None]

    def _is_of_same_file(self, found: Found) -> bool:
        both = self.is_kernel_lock and found.status.protocol == "flock"
        return both and self.found.identity == found.identity

    def is_shared_with(self, found: Found) -> bool:
        """Whether this kernel lock was found with some of its holders, while others have come or gone."""
        pids = pids_of(found)
        return self._is_of_same_file(found) and pids != [*self.shares] and any(pid in self.shares for pid in pids)

    def share(self, found: Found) -> None:
        """Take in a look at the same lock, with other holders that share it."""
        first = found.status.holder
        self._known = self.holder if first is not None and first.pid == self.holder.pid else Holder()
        self.found, self.key = found, key_of(found)

    @property
    def holder(self) -> Holder:
        seen, known = self.found.status.holder or Holder(), self._known
        if self.is_directory and seen.pid is None and known.pid is not None:
            return known  # the kernel named it while it lived
        if not self.is_kernel_lock or (seen.tag is not None and seen.host is not None):
            return seen
        return seen.replaced(tag=known.tag if seen.tag is None else seen.tag, host=seen.host or known.host)

    @property
    def acquired_by(self) -> int | None:
        """The process that acquired it: if it has ended, `holder` may be one that has only the guard."""
        record = self.found.status.record
        return self.holder.pid if record is None or record.pid is None else record.pid

    @property
    def is_kernel_lock(self) -> bool:
        """Whether it is a lock of the kernel alone, whose acquisition makes no event."""
        return self.found.status.protocol == "flock"

    @property
    def is_proven(self) -> bool:
        """Whether the guard proves its holder alive."""
        return self.found.status.evidence.source == "guard" and self.found.status.evidence.proven

    @property
    def makes_events(self) -> bool:
        """Whether the end of its holder will make an event. That of a directory, which nobody writes to, makes none."""
        return self.is_proven and not self.is_directory

    @property
    def is_directory(self) -> bool:
        return self.found.status.protocol == DIRECTORIES

    @property
    def first_since(self) -> float:
        """The time when its first holder got it."""
        return self.shares.get(self.holder.pid, self.since)

    def is_replaced_in_place(self, found: Found, birth: str | None) -> bool:
        """Whether another holder was found in the same file (Z18)."""
        if self.doubtful or self.is_kernel_lock or self.found.identity != found.identity:
            return False
        return birth is None or birth == self.birth

    def tell(self, kind: str, time: float, **more: Any) -> LockEvent:
        return of_holder(kind, time, self.found.status.replaced(holder=self.holder), **more)


class SeenWait(Value):
    """A waiter."""

    path: str
    protocol: str
    waiter: Waiter
    since: float

    def tell(self, kind: str, time: float, host: str, **more: Any) -> LockEvent:
        who = self.waiter
        return LockEvent(kind, time, self.path, self.protocol, who.pid, host, who.tag, who.command, **more)


def pids_of(found: Found) -> list[int | None]:
    """The pids of its holders."""
    return [holder.pid for holder in found.status.holders]


def is_stale(found: Found) -> bool:
    return found.condition in (DEAD, STALE, LEFTOVER)


def is_free(found: Found | None) -> bool:
    """Whether it is free, as far as can be told. An empty file says nothing; `flock(1)` leaves such files."""
    if found is None or found.condition in (FREE, EMPTY):
        return True
    return found.condition == MALFORMED and not found.status.data and not found.status.protocol


def key_of(found: Found) -> tuple[object, ...]:
    """A key that stays the same during one acquisition, whatever a heartbeat writes."""
    status = found.status
    record = status.record
    if found.advice is not None:
        return (found.identity, status.protocol)  # who has another program's lock may show later, or no more
    if status.protocol == "flock":
        return (found.identity, *sorted(holder.pid or 0 for holder in status.holders))
    if record is None:
        return (found.identity, status.data)
    if record.marker is not None:
        return (found.identity, record.pid, record.marker.identity)
    return (found.identity, record.pid, None if get(status.protocol).ages_by_mtime else record.created, record.tag)


def numbered(found: Found) -> str:
    """The name that events give to a file made without one, as long as that descriptor lives."""
    return f"#{found.identity[1]}"


class PassiveEnvironment:
    """The environment of a follower's survey: the same system, but guards are not probed at will (Z11)."""

    def __init__(self, env: Surroundings) -> None:
        self._env = env
        self._latest: ProcLocks | None = None
        self._blank: set[tuple[int, int]] = set()
        self.kernel_locks: dict[str, tuple[int, int]] = {}
        """Files that only the kernel locks, by path."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def stat(self, path: str, *, dir_fd: int | None = None) -> Stat:
        found = self._env.stat(path, dir_fd=dir_fd)
        if not found.st_size:
            self._blank.add((found.st_dev, found.st_ino))
        return found

    def guarded(self, fd: int) -> bool | None:
        return self._env.guarded(fd) if self._env.fstat(fd).st_size else None

    def open_fifo(self, name: str, *, write: bool, dir_fd: int) -> int:  # noqa: ARG002
        raise PermissionError(errno.EACCES, "a follower opens no tickets (Z16)", name)

    def proc_locks(self, *, few: bool = False) -> ProcLocks:  # noqa: ARG002
        return _KernelLocksOnly(self, {*self.kernel_locks.values()}, self._blank)

    def is_locked(self, identity: tuple[int, int]) -> bool:
        """Whether the kernel's table shows a lock on this file."""
        return self.table().is_locked(identity)

    def forget_tables(self) -> None:
        """Read the table again when it is needed next: what was known is old."""
        self._latest = None
        self._blank = set()

    def table(self) -> ProcLocks:
        if self._latest is None:
            self._latest = self._env.proc_locks(few=True)
        return self._latest


class _KernelLocksOnly(ProcLocks):
    """The tables, asked only about files that may be locks of the kernel alone (Z11)."""

    def __init__(
        self, env: PassiveEnvironment, kernel_locks: set[tuple[int, int]], blank: set[tuple[int, int]]
    ) -> None:
        super().__init__(env.inspect)
        self._env = env
        self._kernel_locks = kernel_locks
        self._blank = blank

    def is_locked(self, identity: tuple[int, int]) -> bool:
        return (identity in self._kernel_locks or identity in self._blank) and self._env.is_locked(identity)

    def owners(self, identity: tuple[int, int]) -> list[LockOwner]:
        return self._env.table().owners(identity)

    def heeds_readers(self, identity: tuple[int, int]) -> bool:
        return identity in self._kernel_locks


class WatchScope:
    """Directories that are followed, by path, with the names of the locks that are meant; None: all of them. `polled`:
    those where no events come from. `missing`: those that could not be listed any more, and why. The root directory is
    empty here: a path is that of its directory, a slash and a name."""

    def __init__(self) -> None:
        self.directories: dict[str, set[str] | None] = {}
        self.polled: set[str] = set()
        self.missing: dict[str, OSError] = {}
        self._patterns: dict[str, list[re.Pattern[str]]] = {}

    def add(self, directory: str, name: str | None, *, polled: bool, pattern: bool = False) -> None:
        """Follow a directory. With a name: only itself, `NAME.lock`, and slots of a semaphore NAME; or (`pattern`) what
        matches it as in a shell."""
        names = self.directories.setdefault(directory, set())
        if name is None:
            self.directories[directory] = None
        elif pattern:
            self._patterns.setdefault(directory, []).append(re.compile(translate(name)))
        elif names is not None:
            names.add(name)
        if polled:
            self.polled.add(directory)

    def wanted(self, directory: str, name: str) -> bool:
        names = self.directories.get(directory, set())
        if names is None or name in names:
            return True
        slot = detect.slot_of(name)
        if name.removesuffix(".lock") in names or (slot is not None and slot[0] in names):
            return True
        return any(pattern.match(name) for pattern in self._patterns.get(directory, ()))


def changed_files(
    env: PassiveEnvironment,
    directory: str,
    scope: WatchScope,
    seen: dict[str, tuple[object, ...]],
    held: Collection[str],
) -> tuple[list[str], list[str]]:
    """The files to look at in a directory, and its queues, found by listing it: files that are new, written or gone
    since the last time; `held`; or locked by the kernel since. `seen` is brought up to date."""
    try:
        listed = env.list_directory(directory or "/")
        scope.missing.pop(directory, None)
    except OSError as error:
        listed = []
        scope.missing[directory] = error
    dirty = {path: None for path in held if path.rpartition("/")[0] == directory}
    there, queues = set(), []
    for name in listed:
        path = f"{directory}/{name}"
        if detect.is_queue(name):
            if scope.wanted(directory, waited_for(path).rpartition("/")[2]):
                queues.append(path)
            continue
        if detect.is_beside(name) or not scope.wanted(directory, name):
            continue
        try:
            found = env.stat(path)
        except OSError:
            continue
        if not (stat.S_ISREG(found.st_mode) or detect.is_named_so(name) or kinds.may_be(name, directory)):
            continue  # nor a directory or a link that can be a lock (scan.py, E8, E9)
        identity = (found.st_dev, found.st_ino)
        sign = (identity, found.st_mtime, found.st_size, found.st_mode)
        there.add(path)
        if seen.get(path) != sign or (path not in held and env.is_locked(identity)):
            seen[path] = sign
            dirty[path] = None
    for path in [path for path in seen if path.rpartition("/")[0] == directory and path not in there]:
        del seen[path]
        dirty[path] = None
    return [*dirty], queues


CONFIRM_AFTER, CONFIRM_WITHIN = 0.05, 0.5
"""Seconds after which the table is asked whether the guard is still held, for the first and for the last time."""


class UnconfirmedReleases:
    """Holds whose lock file has vanished, by path, where it is not known yet whether they were released (Z14). `held`:
    those whose lock file is there."""

    def __init__(self, env: PassiveEnvironment, held: Mapping[str, SeenHold]) -> None:
        self._env = env
        self._held = held
        self._gone: dict[str, tuple[SeenHold, float, float]] = {}
        self._replaced: set[str] = set()
        """Paths where another file was made since."""

    def __contains__(self, path: str) -> bool:
        return path in self._gone

    def replace(self, path: str) -> None:
        """Take note that another file was made there: events with that name may be of either from now on."""
        if path in self._gone:
            self._replaced.add(path)

    def is_of(self, path: str, name: str) -> bool:
        """Whether an event of a file with that name, or number, is one of the file that has vanished."""
        if path not in self._gone:
            return False
        return path not in self._replaced or name == numbered(self._gone[path][0].found)

    def dues(self) -> list[float]:
        return [until for _, until, _ in self._gone.values()]

    def add(self, path: str, held: SeenHold) -> None:
        now = self._env.monotonic()
        self._gone[path] = (held, now + CONFIRM_AFTER, now)
        self._replaced.discard(path)

    def confirm(self, path: str, kind: str) -> LockEvent:
        """The event of its end, which is known now, with the time at which its file vanished."""
        held, _, vanished = self._gone.pop(path)
        self._replaced.discard(path)
        at = self._env.time() - (self._env.monotonic() - vanished)
        return held.tell(kind, at, waited=held.waited, held=max(0.0, at - held.since))

    def confirm_early(self, path: str) -> list[LockEvent]:
        """The event of its release, if the guard is gone: it should be told before that of the next holder."""
        if path not in self._gone:
            return []
        self._env.forget_tables()
        return [] if self._is_guarded(self._gone[path][0]) else [self.confirm(path, "released")]

    def decide(self, now: float) -> list[LockEvent]:
        """Events of the holds whose end is due to be known."""
        found = []
        for path, (held, until, vanished) in [*self._gone.items()]:
            if now < until:
                continue
            if not self._is_guarded(held):
                found.append(self.confirm(path, "released"))
            elif now >= vanished + CONFIRM_WITHIN:
                found.append(self.confirm(path, "lost"))
            else:
                self._gone[path] = (held, vanished + CONFIRM_WITHIN, vanished)
        return found

    def _is_guarded(self, gone: SeenHold) -> bool:
        """Whether the guard is still held. The file's number may be another's by now, even of the same process."""
        identity = gone.found.identity
        if any(held.found.identity == identity for held in self._held.values()):
            return False
        table, record = self._env.table(), gone.found.status.record
        if any(owner.pid == gone.holder.pid for owner in table.owners(identity)):
            return True
        return record is not None and record.pid in table.takers(identity)  # it has left it to a child


SETTLE = 0.1
"""Seconds after which a file that was closed is looked at again."""


class UnconfirmedWaits:
    """Tickets that are gone, or may be, where it is not known yet whether their owners have got in. A waiter is said to
    have given up once the lock file that it may have made can be seen."""

    def __init__(self, env: PassiveEnvironment, waiters: WaiterTracker, held: Mapping[str, SeenHold]) -> None:
        self._env = env
        self._waiters = waiters
        self._held = held
        self._gone: dict[TicketId, tuple[LockEvent, float]] = {}
        self._expected: dict[TicketId, float] = {}

    def dues(self) -> list[float]:
        return [*(until for _, until in self._gone.values()), *self._expected.values()]

    def expect(self, ticket: TicketId) -> None:
        """Plan another look at a ticket that was closed: its owner may have died, and the guard be gone soon (Z15)."""
        self._expected[ticket] = self._env.monotonic() + SETTLE

    def expected(self, now: float) -> list[TicketId]:
        """Tickets that are due for that look."""
        found = [ticket for ticket, until in self._expected.items() if now >= until]
        for ticket in found:
            del self._expected[ticket]
        return found

    def add(self, ticket: TicketId) -> None:
        wait = self._waiters.waits.get(ticket)
        held = None if wait is None else self._held.get(wait.path)
        one = self._waiters.left(ticket, held.holder.pid if held is not None else None)
        if one is not None:
            self._gone[ticket] = (one, self._env.monotonic() + CONFIRM_AFTER)

    def is_back(self, ticket: TicketId) -> bool:
        """Whether a ticket that can be read now was gone a moment ago; its owner goes on waiting."""
        return self._gone.pop(ticket, None) is not None

    def decide(self, now: float) -> list[LockEvent]:
        """Events of the tickets that have been gone for long enough to be sure."""
        found = []
        for ticket, (one, until) in [*self._gone.items()]:
            if now >= until:
                del self._gone[ticket]
                holders = {held.holder.pid: held for held in self._held.values()}
                if one.pid not in holders or holders[one.pid].since < one.time - (one.waited or 0.0):
                    found.append(one)
        return found


class WaiterTracker:
    """The waiters, by their tickets, or by lock file and pid if only the kernel knows of them."""

    def __init__(self, env: PassiveEnvironment, watch: FolderWatch | None) -> None:
        self.waits: dict[TicketId, SeenWait] = {}
        self._env = env
        self._watch = watch
        self._queues: dict[str, str] = {}
        """The lock of each queue, as far as its name tells."""
        self._inside: set[TicketId] = set()
        """Tickets whose owners have got in; they are kept until the release."""
        self._admitted: set[TicketId] = set()
        """Tickets whose acquisition was reported."""

    # -- queues --------------------------------------------------------------------------------------------------------

    def is_queue(self, directory: str) -> bool:
        return directory in self._queues

    def appeared(self, directory: str, lock: str) -> list[TicketId]:
        """Take in a queue; returns its tickets. The watch comes first, so that none is overlooked."""
        self._queues[directory] = lock
        if self._watch is not None:
            self._watch.add(directory, modes=True)
        opened = queue.opened(self._env, directory)
        if opened is None:
            return []
        with opened:
            return [(directory, name) for name in opened.tickets()]

    def heard(self, ticket: TicketId, what: str) -> None:
        """Take in an event of a ticket. It may be gone before it can be read again (Z16)."""
        if what == "mode":
            self._inside.add(ticket)

    def vanished(self, directory: str) -> list[TicketId]:
        """Drop a queue that is gone; returns its tickets."""
        self._queues.pop(directory, None)
        if self._watch is not None:
            self._watch.discard(directory)
        return [ticket for ticket in self.waits if ticket[0] == directory]

    def read(self, ticket: TicketId, *, first_look: bool = False) -> LockEvent | None:
        """The event of a ticket that was made or written: `waiting`, if it says so for the first time."""
        directory, name = ticket
        if ticket in self.waits:
            return self._reread(ticket)
        opened = queue.opened(self._env, directory)
        if opened is None:
            return None
        with opened:
            waiter = read_ticket(self._env, opened, name)
        if waiter is None:
            return None
        now = self._env.time()
        since = now if waiter.since is None else min(now, waiter.since)
        wait = self.waits[ticket] = SeenWait(self._queues[directory], "", waiter, since)
        return self._waiting(wait, since if first_look else now, first_look=first_look)

    def _reread(self, ticket: TicketId) -> LockEvent | None:
        """The event of a known ticket: `gave-up` if its owner has died, none if it has got in."""
        opened = queue.opened(self._env, ticket[0])
        if opened is None:
            return None  # that it is gone makes an event of its own
        with opened:
            found = opened.living(ticket[1])
            if found is None and opened.stat(ticket[1]) is not None:
                return self._gave_up(self.waits.pop(ticket))
        if found is not None and queue.is_holding(found):
            self._inside.add(ticket)
        return None

    def left(self, ticket: TicketId, holder: int | None) -> LockEvent | None:
        """The event of a ticket that is gone: `gave-up`, unless its owner had got in."""
        wait = self.waits.pop(ticket, None)
        inside = ticket in self._inside
        for known in (self._inside, self._admitted):
            known.discard(ticket)
        if wait is None or inside or holder == wait.waiter.pid:
            return None
        return self._gave_up(wait)

    def admitted(self, path: str, pid: int | None) -> SeenWait | None:
        """The wait by which this process has acquired the lock, where that was seen."""
        directory, _, name = path.rpartition("/")
        queues = queues_of(directory, name)
        mine = [ticket for ticket, wait in self.waits.items() if wait.waiter.pid == pid]
        for ticket in sorted(ticket for ticket in mine if ticket[0] in queues and ticket not in self._admitted):
            self._admitted.add(ticket)
            self._inside.add(ticket)
            return self.waits[ticket]
        return self.waits.pop((path, str(pid)), None)

    def waiting(self) -> list[SeenWait]:
        """Waits that go on, by arrival."""
        return sorted(
            [wait for ticket, wait in self.waits.items() if ticket not in self._inside], key=lambda wait: wait.since
        )

    # -- the kernel's table --------------------------------------------------------------------------------------------

    def of_kernel(self, one: Found, *, first_look: bool = False) -> list[LockEvent]:
        """Events of the waiters in the kernel, or (at the first look) of those that watch the file."""
        path, out = one.status.path, []
        seen: dict[TicketId, Waiter] = {
            (path, str(waiter.pid)): waiter for waiter in one.status.waiters if waiter.position is None
        }
        for ticket, waiter in seen.items():
            if ticket not in self.waits and one.status.protocol == "flock":
                wait = self.waits[ticket] = SeenWait(path, "flock", waiter, self._env.time())
                out.append(self._waiting(wait, wait.since, first_look=first_look))
        holders = {holder.pid for holder in one.status.holders}
        gone = [ticket for ticket in self.waits if ticket[0] == path and ticket not in seen]
        return out + [
            self._gave_up(self.waits.pop(ticket)) for ticket in gone if self.waits[ticket].waiter.pid not in holders
        ]

    def _waiting(self, wait: SeenWait, time: float, *, first_look: bool) -> LockEvent:
        waited = max(0.0, self._env.time() - wait.since)
        return wait.tell("waiting", time, self._env.identity().host, waited=waited, first_look=first_look)

    def _gave_up(self, wait: SeenWait) -> LockEvent:
        now = self._env.time()
        return wait.tell("gave-up", now, self._env.identity().host, waited=max(0.0, now - wait.since))


KERNEL_EVERY, FOREIGN_EVERY, POLL_EVERY, SWEEP_EVERY = 0.25, 1.0, 0.25, 10.0
"""Seconds between looks (Z13): at kernel locks, at holders without a guard, at directories without events, at
everything."""


class Follower:
    """Follows locks without ever waiting. Call `handle` when `watch` has something, `tick` at `due` (monotonic) at the
    latest."""

    def __init__(self, env: Surroundings, watch: FolderWatch | None) -> None:
        self._env = env
        self._passive = PassiveEnvironment(env)
        self.watch = watch
        self.scope = WatchScope()
        self.held: dict[str, SeenHold] = {}
        self.waiters = WaiterTracker(self._passive, watch)
        self.missed = 0
        """Acquisitions that were over before they could be looked at."""
        self._numbered: dict[str, str] = {}
        """Lock files by `#` and their inode."""
        self._foreign: dict[str, None] = {}
        """Lock files whose holders' end makes no event."""
        self._seen: dict[str, tuple[object, ...]] = {}
        self._unconfirmed_releases = UnconfirmedReleases(self._passive, self.held)
        self._unsettled: dict[str, float] = {}
        self._unconfirmed_waits = UnconfirmedWaits(self._passive, self.waiters, self.held)
        self._out: list[LockEvent] = []
        self._dues: dict[str, float] = {}

    def add(self, directory: str, name: str | None = None, *, pattern: bool = False) -> None:
        """Follow a directory, or whatever can be a lock of that name in it. OSError if there is no such directory."""
        self._env.list_directory(directory)
        reached = self._env.events_reach(f"{directory}/x") and self.watch is not None and self.watch.add(directory)
        self.scope.add(directory.rstrip("/"), name, polled=not reached, pattern=pattern)

    # -- looking -------------------------------------------------------------------------------------------------------

    def first_look(self) -> list[LockEvent]:
        """Events for the present state: `held` and `waiting`, and `stale`."""
        now = self._env.monotonic()
        self._dues = {"kernel": now + KERNEL_EVERY, "foreign": now + FOREIGN_EVERY}
        self._dues["sweep"] = now + (POLL_EVERY if self.scope.polled else SWEEP_EVERY)
        survey = Survey(self._env)
        for directory in self.scope.directories:
            for one in survey.directory(directory or "/"):
                if isinstance(one, Unreadable) or not self.scope.wanted(*one.status.path.rpartition("/")[::2]):
                    continue
                since = one.status.holder.since if one.status.holder else None
                since = one.status.modified if since is None else since
                if not is_free(one):
                    path = one.status.path
                    held = self.held[path] = SeenHold(one, self._env.btime(path), since or self._env.time(), None)
                    self._out.append(held.tell("held", held.since, first_look=True))
                    self._also("held", held, held.since, first_look=True)
                    self._judge(held, first_look=True)
                self._note(one)
                self._out += self.waiters.of_kernel(one, first_look=True)
            self._sweep_directory(directory, first_look=True)
        return self._told()

    def handle(self, changes: Iterable[Change]) -> list[LockEvent]:
        """Events of locks, from these changes of directories (Z12)."""
        self._passive.forget_tables()
        dirty: dict[str, None] = {}
        fresh: dict[TicketId, None] = {}
        left: dict[TicketId, None] = {}
        everything = False
        for where, name, what in changes:
            directory = where.rstrip("/")
            path = f"{directory}/{name}"
            if what == "unknown" or (directory in self.scope.directories and not name):
                everything = True
            elif self.waiters.is_queue(directory):
                if what == "gone":
                    left[directory, name] = None
                    fresh.pop((directory, name), None)
                elif queue.is_ticket(name):
                    self.waiters.heard((directory, name), what)
                    fresh[directory, name] = None
                    if what == "made":
                        left.pop((directory, name), None)
                    elif what == "closed":
                        self._unconfirmed_waits.expect((directory, name))  # Z15
            elif detect.is_queue(name) and directory in self.scope.directories:
                if what == "gone":
                    left.update(dict.fromkeys(self.waiters.vanished(path)))
                elif self.scope.wanted(directory, waited_for(path).rpartition("/")[2]):
                    for ticket in self.waiters.appeared(path, waited_for(path)):
                        fresh[ticket] = None
                        left.pop(ticket, None)
            elif name in self._numbered or (self.scope.wanted(directory, name) and not detect.is_beside(name)):
                self._of_file(self._numbered.get(name, path), name, what, dirty)
        if fresh or dirty:
            self._look(dirty, fresh)
        for ticket in left:
            self._unconfirmed_waits.add(ticket)
        if everything:
            self._sweep()
        return self._told()

    def _of_file(self, path: str, name: str, what: str, dirty: dict[str, None]) -> None:
        """Take in a change of a lock file, or of one known by its number: made without a name, it is called so as long
        as that descriptor lives."""
        if what == "gone" and path in self.held and not is_gone(self._env, path, self.held[path].found.identity):
            # A look was ahead of the events, or the next file has the same number; or no look is possible now.
            self.held[path].doubtful = True
            dirty[path] = None
        elif what == "gone":
            self.missed += path in dirty and path not in self.held
            dirty.pop(path, None)
            self._vanished(path)
        elif what == "closed" and self._unconfirmed_releases.is_of(path, name):
            self._out.append(self._unconfirmed_releases.confirm(path, "released"))
        else:
            if what == "made":
                self._unconfirmed_releases.replace(path)
            dirty[path] = None
            if path in self.held:
                self._unsettled[path] = self._env.monotonic() + SETTLE  # Z15

    def tick(self) -> list[LockEvent]:
        """Events that the clock asks for (Z13, Z14)."""
        now = self._env.monotonic()
        self._passive.forget_tables()
        self._out += self._unconfirmed_releases.decide(now)
        for one in self._unconfirmed_waits.decide(now):
            self._tell(one)
        settled = [path for path, until in self._unsettled.items() if now >= until]
        dirty = dict.fromkeys(settled)
        for path in settled:
            del self._unsettled[path]
        if now >= self._dues["kernel"]:
            dirty.update((path, None) for path in self._passive.kernel_locks)
            self._dues["kernel"] = math.inf
        if now >= self._dues["foreign"]:
            dirty.update(self._foreign)
            self._dues["foreign"] = now + max(FOREIGN_EVERY, len(self._foreign) * 0.01)
        fresh = self._unconfirmed_waits.expected(now)
        if dirty or fresh:
            self._look(dirty, fresh)
        if self._dues["kernel"] == math.inf:
            spent = self._env.monotonic() - now
            self._dues["kernel"] = now + max(KERNEL_EVERY, 20 * spent)
        if now >= self._dues["sweep"]:
            self._sweep()
            self._dues["sweep"] = now + (POLL_EVERY if self.scope.polled else SWEEP_EVERY)
        return self._told()

    @property
    def due(self) -> float:
        """When to call `tick` next, on the monotonic clock."""
        dues = [self._dues["sweep"], *self._unsettled.values()]
        dues += [*self._unconfirmed_releases.dues(), *self._unconfirmed_waits.dues()]
        if self._passive.kernel_locks:
            dues.append(self._dues["kernel"])
        if self._foreign:
            dues.append(self._dues["foreign"])
        return min(dues)

    def _told(self) -> list[LockEvent]:
        out, self._out = self._out, []
        return sorted(out, key=lambda one: one.time)

    # -- one lock file -------------------------------------------------------------------------------------------------

    def _look(self, dirty: Iterable[str], fresh: Iterable[tuple[str, str]]) -> None:
        survey = Survey(self._passive)
        for ticket in fresh:
            if self.waiters.is_queue(ticket[0]):
                self._read(ticket)
        for path in dirty:
            try:
                one = survey.file(path, alone=True)
            except FileNotFoundError:
                self._vanished(path)
                continue
            except OSError:
                continue  # it was there, and may be read again later
            self._saw(path, one)

    def _saw(self, path: str, one: Found | None) -> None:
        before = self.held.get(path)
        if one is None or is_free(one):
            if one is not None:
                self._note(one)
                self._out += self.waiters.of_kernel(one)
            if before is not None:
                self._out.append(self._ended(before, "released"))
            return
        if before is not None and before.is_shared_with(one):
            self._shared(path, before, one)
        elif before is not None and before.is_nameless(one) and self._has_ended(before.holder.pid):
            before.doubtful = False  # left to a process that cannot be seen (Z19)
        elif before is None or not before.is_same(one):
            self._began(path, before, one)
        else:
            before.saw(one)
        self._note(one)
        self._judge(self.held[path])
        self._out += self.waiters.of_kernel(one)

    def _began(self, path: str, before: SeenHold | None, one: Found) -> None:
        self._out += self._unconfirmed_releases.confirm_early(path)
        recovered, birth = None, self._env.btime(path)
        if before is not None:
            if before.told_stale or before.is_replaced_in_place(one, birth):
                recovered = before.acquired_by
            elif before.found.identity == one.identity and not before.is_kernel_lock:  # so the old file is closed, too
                self._out.append(self._ended(before, "released"))
            else:
                self._vanished(path)
                self._out += self._unconfirmed_releases.confirm_early(path)
        now = self._env.time()
        wait = self.waiters.admitted(path, one.status.holder.pid if one.status.holder else None)
        held = self.held[path] = SeenHold(one, birth, now, wait)
        for kind in ("acquired",) if recovered is None else ("reclaimed", "acquired"):
            self._out.append(held.tell(kind, now, waited=held.waited, recovered_from=recovered))
        self._also("acquired", held, now)

    def _has_ended(self, pid: int | None) -> bool:
        return pid is not None and self._env.inspect(pid).has_ended

    def _shared(self, path: str, held: SeenHold, one: Found) -> None:
        """Report readers that have come or gone while others go on (Z19)."""
        now, before = self._env.time(), held.found.status
        there = {holder.pid: holder for holder in one.status.holders}
        for holder in before.holders:
            if holder.pid not in there:
                since = held.shares.pop(holder.pid)
                self._out.append(of_holder("released", now, before.replaced(holder=holder), held=max(0.0, now - since)))
        held.share(one)
        for pid, holder in there.items():
            if pid not in held.shares:
                held.shares[pid] = now
                wait = self.waiters.admitted(path, pid)
                waited = None if wait is None else max(0.0, now - wait.since)
                self._out.append(of_holder("acquired", now, one.status.replaced(holder=holder), waited=waited))

    def _also(self, kind: str, held: SeenHold, time: float, *, first_look: bool = False) -> None:
        """Report the same event for the other holders of a kernel lock (Z19)."""
        status = held.found.status
        for holder in status.holders if held.is_kernel_lock else ():
            if holder != status.holder:
                ended = {"held": max(0.0, time - held.shares[holder.pid])} if kind == "released" else {}
                self._out.append(of_holder(kind, time, status.replaced(holder=holder), first_look=first_look, **ended))

    def _judge(self, held: SeenHold, *, first_look: bool = False) -> None:
        if is_stale(held.found) and not held.told_stale:
            held.told_stale = True
            now = self._env.time()
            self._out.append(held.tell("stale", now, held=max(0.0, now - held.since), first_look=first_look))

    def _ended(self, held: SeenHold, kind: str) -> LockEvent:
        path = held.found.status.path
        if self.held.get(path) is held:
            del self.held[path]
            self._foreign.pop(path, None)
        if path not in self.held:
            self._numbered.pop(numbered(held.found), None)
        self._unsettled.pop(path, None)
        now = self._env.time()
        self._also(kind, held, now)
        return held.tell(kind, now, waited=held.waited, held=max(0.0, now - held.first_since))

    def _vanished(self, path: str) -> None:
        self._passive.kernel_locks.pop(path, None)
        held = self.held.get(path)
        if held is None:
            return
        if held.is_proven and not held.is_kernel_lock and not held.told_stale:
            if path in self._unconfirmed_releases:
                self._out.append(self._unconfirmed_releases.confirm(path, "released"))
            self._unconfirmed_releases.add(path, held)  # Z14
            del self.held[path]
            self._foreign.pop(path, None)
        else:
            self._out.append(self._ended(held, "released"))

    def _note(self, one: Found) -> None:
        """Remember which files the kernel alone locks (Z11)."""
        path = one.status.path
        if one.status.protocol == "flock" or one.condition == EMPTY:
            self._passive.kernel_locks[path] = one.identity
        elif self._passive.kernel_locks.get(path) != one.identity or one.status.data:
            self._passive.kernel_locks.pop(path, None)
        held = self.held.get(path)
        if held is not None:
            self._numbered[numbered(one)] = path
        if held is not None and not held.makes_events:
            self._foreign[path] = None
        else:
            self._foreign.pop(path, None)

    def _read(self, ticket: tuple[str, str], *, first_look: bool = False) -> None:
        """Read a ticket, and report its event."""
        one = self.waiters.read(ticket, first_look=first_look)
        if one is not None and not (one.kind == "waiting" and self._unconfirmed_waits.is_back(ticket)):
            self._tell(one)

    def _tell(self, one: LockEvent) -> None:
        held = self.held.get(one.path)
        self._out.append(one if held is None else one.replaced(protocol=held.found.status.protocol))

    # -- everything ----------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        for directory in self.scope.directories:
            self._sweep_directory(directory)

    def _sweep_directory(self, directory: str, *, first_look: bool = False) -> None:
        if self.watch is not None and directory not in self.scope.polled:
            self.watch.add(directory or "/")  # it may be another directory of that name by now
        dirty, queues = changed_files(self._passive, directory, self.scope, self._seen, self.held)
        standing = set()
        for line in queues:
            for ticket in self.waiters.appeared(line, waited_for(line)):
                standing.add(ticket)
                self._read(ticket, first_look=first_look)
        if not first_look:
            self._look(dirty, {})
        for ticket in [*self.waiters.waits]:
            if ticket[0].startswith(f"{directory}/.holdfast-") and ticket not in standing:
                self._unconfirmed_waits.add(ticket)
