"""Fairness: waiters form a queue in the order of their arrival, and each watches only its predecessor.

Inside a process, waiters stand in a `LocalQueue`. The first of it, once it has waited a moment, takes a ticket: a file
in a hidden directory beside the lock file, the queue, which exists only while there are waiters. The waiter keeps its
guard. Its name sorts by arrival and says whether the waiter would share the lock; its content is a record, like a
holder's, for people.

    new ──▶ behind another waiter of this process ──▶ behind a ticket ──▶ first ──▶ holding ──▶ left

Q1  Exclusion never depends on the queue. A place only decides when a contender tries; so every failure here is ignored,
    and a process that does not know of the queue harms only the order.
Q2  A ticket counts while its guard is held. A process that finds one without removes it, under its guard. Its creator
    cannot have the guard at the instant of creation, so it checks afterwards that the ticket is still there. If a
    neighbour's probe keeps it from the guard, or the neighbour removes it or the still empty directory, it recreates
    both: a waiter without a ticket would be passed by all later ones, and not be shown.
Q3  The watch on a predecessor's ticket is armed before its guard is probed, so the end of the ticket makes an event
    that we still find. After waking, we read the queue again: a ticket with an earlier arrival may have appeared. If
    there was an event and the guard is still held, we look again soon: a dying process's guard outlives it.
Q4  A place, with its ticket, is kept until the release. So a release wakes only the next waiter, however many wait.
Q5  Newcomers go in directly as long as no waiter has waited for longer than a moment; and a process whose turn has come
    may take the lock again for a slice of time before its successors. Handing a lock over costs ten times as much as
    taking it again, so throughput depends on this. A wait is still bounded: each predecessor has one slice.
Q6  A ticket is the right to be first for waiters that use it. If the lock is free while the waiters ahead do nothing
    (stopped, forged, or with another policy about stale locks), the next one removes their tickets and goes in. All of
    them notice, although only the first was idle; they queue again, by their old arrival. So a waiter that finds itself
    behind looks at the lock at once, and ignores tickets that it may not remove for the rest of this wait.
Q7  The slots of a semaphore have one queue, and a waiter leaves its place at the acquisition: the next one looks at
    once, as another slot may be free too. So two releases at once let two in, and each of them wakes only the first.
Q8  Others may write to the lock's directory, and exchange the queue for anything at any moment. So it is opened once,
    never through a link, and each step in it goes by that descriptor. Only a regular file with a ticket's name and a
    free guard is ever removed from it. Moving a directory there gains an attacker nothing.
Q9  A queue is open to the same users as the lock's own directory. Its mode is set on the descriptor, and only while the
    directory is empty, ours, and has its initial mode, which nothing else has: so no directory of ours that is moved
    there is opened to others. If its maker dies before that, the next process of the same user does it.
"""

from __future__ import annotations

import _thread
import errno
import math
import stat

from ..._core.wait import Signal
from ..._platform.operations import let_go
from ..._platform.values import DYING, RECHECK
from ...errors import MalformedRecord
from ...model import Waiter, marker_text
from ...protocols import get
from .steps import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from ..._platform.interface import Environment, Watch
    from ...model import Status
    from .inspect import Observation
    from .request import FileRequest

    Arrival = tuple[float, Waiter]

MOMENT = 0.002
"""Seconds that a waiter waits before it takes a ticket, and in which newcomers may pass it (Q5)."""
_TRIES = 20
_IN_THE_MAKING = stat.S_ISVTX | 0o500
"""The mode of a queue that has just been made (Q9): only its owner may open it."""
WAITING, HOLDING = b"state=waiting\n", b"state=holding\n"


class Queue:
    """The directory of the tickets, opened: it stays this one, whatever is at its path by now (Q8)."""

    __slots__ = ("_env", "_fd", "path")

    def __init__(self, env: Environment, path: str) -> None:
        self._env = env
        self.path = path
        self._fd = env.open_directory(path)

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Never raises: an error from closing a directory that was only read does not matter."""
        try:
            if self._fd >= 0:
                self._env.close(self._fd)
        except OSError:
            pass
        self._fd = -1

    def names(self) -> list[str]:
        """The tickets, by arrival, without names that cannot be tickets."""
        try:
            return sorted([name for name in self._env.list_directory(self._fd) if is_ticket(name)])
        except OSError:
            return []

    def is_empty(self) -> bool:
        return not self._env.list_directory(self._fd)

    def open(self, name: str) -> int:
        return self._env.open_existing(name, write=False, dir_fd=self._fd)

    def create(self, name: str, mode: int) -> int:
        return self._env.open_new(name, mode, dir_fd=self._fd)

    def has(self, name: str, identity: tuple[int, int]) -> bool:
        """Whether the name leads to this file now."""
        try:
            found = self._env.stat(name, dir_fd=self._fd)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == identity

    def unlink(self, name: str) -> bool:
        """Whether it is gone: another user's, in a sticky directory, stays."""
        try:
            self._env.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            pass
        except OSError:
            return False
        return True

    def is_guarded(self, name: str) -> bool:
        """Whether a ticket has a living owner. If not, it is removed (Q2); one that cannot be judged counts (Q6)."""
        env = self._env
        try:
            fd = self.open(name)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        try:
            if env.guarded(fd):
                return True
            found = env.fstat(fd)
            identity = (found.st_dev, found.st_ino)
            # None: there are no kernel locks here, and its maker died before it knew that.
            if stat.S_ISREG(found.st_mode) and env.guard(fd) is not False and self.has(name, identity):
                self.unlink(name)
        except OSError:
            pass
        finally:
            let_go(env, fd)
        return False

    def open_up(self, directory: str) -> None:
        """Open it to the users of the lock's directory, if it is in the making (Q9)."""
        env = self._env
        found = env.fstat(self._fd)
        if stat.S_IMODE(found.st_mode) != _IN_THE_MAKING or not self.is_empty():
            return
        try:
            # The mode of a link's target: the link itself is open to all.
            env.chmod(self._fd, stat.S_IMODE(env.stat(f"{directory}/.").st_mode) & 0o1777 | 0o700)
        except PermissionError:
            pass  # another user's; root may do it, as its owner would have


class Ticket:
    """One waiter's ticket, and the descriptor that guards it."""

    def __init__(self, env: Environment, queue: Queue, name: str, fd: int) -> None:
        self.name = name
        self.queue = queue
        self._env = env
        self._fd = fd

    def hold(self) -> None:
        """Record that its owner is no longer waiting."""
        self._env.write(self._fd, HOLDING, 0)

    def give_up(self) -> None:
        """Remove it; the directory too, if it was the last. Never raises."""
        self.queue.unlink(self.name)  # the token in the name makes it ours
        try:
            self._env.close(self._fd)
        except OSError:
            pass
        self.queue.close()
        remove_queue(self._env, self.queue.path)


def issue(env: Environment, request: FileRequest, name: str, since: float) -> Ticket | None:
    """A guarded ticket of that name (Q2); None where there are no kernel locks. OSError from the system; EAGAIN when
    neighbours have spoiled every try, so that a later one may succeed."""
    if not env.guards:
        return None
    for _ in range(_TRIES):
        try:
            queue = _make_queue(env, request)
        except FileNotFoundError:
            continue  # a neighbour has removed it, as it was still empty
        except PermissionError:
            if stat.S_IMODE(env.stat(request.queue).st_mode) != _IN_THE_MAKING:
                raise
            continue  # another user is making it
        try:
            made = _make(env, request, queue, name, since)
        except BaseException:
            queue.close()
            remove_queue(env, request.queue)
            raise
        if made:
            return made
        queue.close()
        remove_queue(env, request.queue)
        if made is None:
            return None
    raise BlockingIOError(errno.EAGAIN, "neighbours keep removing it", f"{request.queue}/{name}")


def _make(
    env: Environment, request: FileRequest, queue: Queue, name: str, since: float
) -> Ticket | Literal[False] | None:
    """The ticket; False when a neighbour has probed or removed it before it was guarded; None: no kernel locks."""
    try:
        fd = queue.create(name, request.mode)
    except (FileNotFoundError, FileExistsError):
        queue.unlink(name)  # the name is ours alone: an earlier try could not remove it
        return False
    guard: bool | None = False
    try:
        found = env.fstat(fd)
        guard = env.guard(fd)
        if guard:
            who = env.identity()
            record = get("sema").compose(who, since, request.tag, marker_text(True, found.st_dev, who), {})
            write_all(env, fd, WAITING + record)
            if queue.has(name, (found.st_dev, found.st_ino)):
                return Ticket(env, queue, name, fd)
    except BaseException:
        queue.unlink(name)
        let_go(env, fd)
        raise
    queue.unlink(name)
    let_go(env, fd)
    return None if guard is None else False


def _make_queue(env: Environment, request: FileRequest) -> Queue:
    """The queue, created if missing. OSError if there is something else at its path: a link, a file."""
    try:
        queue = Queue(env, request.queue)
    except FileNotFoundError:
        try:
            env.make_directory(request.queue, _IN_THE_MAKING)
        except FileExistsError:
            pass
        queue = Queue(env, request.queue)
    try:
        queue.open_up(request.directory)
    except BaseException:
        queue.close()
        raise
    return queue


def withdraw(env: Environment, path: str, name: str) -> None:
    """Remove the ticket, if it exists. May be interrupted, and called again."""
    queue = opened(env, path)
    if queue is not None:
        with queue:
            queue.unlink(name)  # the token in the name makes it ours
        remove_queue(env, path)


def name_of(arrival: float, pid: int, token: str, *, shared: bool) -> str:
    """The name of a ticket. `arrival` is on the machine's monotonic clock, which all processes share."""
    return f"{int(arrival * 1e9):020d}-{'s' if shared else 'x'}-{pid}-{token}"


def arrival(name: str) -> float:
    return int(name[:20]) / 1e9


def is_ticket(name: str) -> bool:
    arrival, _, rest = name.partition("-")
    kind, _, rest = rest.partition("-")
    pid, _, token = rest.partition("-")
    return (
        kind in ("x", "s")
        and (len(arrival), len(token)) == (20, 16)
        and 0 < len(pid) <= 10
        and not (arrival + pid).strip("0123456789")
        and not token.strip("0123456789abcdef")
    )


def pid_of(name: str) -> int:
    """The process that made a ticket, in its own PID namespace."""
    return int(name.split("-")[2])


def is_shared(name: str) -> bool:
    return name[21:22] == "s"


def opened(env: Environment, path: str) -> Queue | None:
    """The queue, if there is one that this user may open."""
    try:
        return Queue(env, path)
    except OSError:
        return None


def names(env: Environment, path: str) -> list[str]:
    """The tickets in the queue, by arrival."""
    queue = opened(env, path)
    if queue is None:
        return []
    with queue:
        found = queue.names()
    if not found:
        remove_queue(env, path)  # left by a process that died between two steps
    return found


def tidy(env: Environment, path: str) -> None:
    """Remove what dead waiters left, up to the first living one, which will do the same when it leaves."""
    queue = opened(env, path)
    if queue is None:
        return
    with queue:
        if any(queue.is_guarded(name) for name in queue.names()):
            return
    remove_queue(env, path)


def remove_queue(env: Environment, path: str) -> None:
    try:
        env.remove_directory(path)
    except OSError:
        pass  # not empty


SLICE = 0.0004
"""Seconds, from getting the lock through the queue, in which a process may take it again (Q5). Measured: with less, 16
processes without a pause get fewer locks a second than by polling; with more, the longest wait grows."""
NAP = 0.0003
"""Seconds for which the next waiter leaves the lock to a process that uses its slice."""
PATIENCE = 0.020
"""Seconds for which a free lock is left to the first waiters (Q6)."""
_RECHECK_EACH = 1.0
"""Seconds between looks at the lock, for each waiter ahead."""
_FIRST_POLL, _LONGEST_POLL = 0.001, 1.0
"""Seconds between looks at the ticket ahead, where no events arrive: near our turn, and far from it."""
_LIST_EVERY, _NEAR = 0.5, 16
"""Seconds for which a poll assumes that the ticket ahead is still the one to wait for, and its owner alive; not with
at most this many ahead."""


def is_contended(env: Environment, request: FileRequest, timeout: float | None) -> bool:
    """Whether a newcomer has to queue (Q5).

    A caller that will not wait does not: it takes a free lock, or leaves. But readers always give way: together they
    could keep a writer out for ever.
    """
    if not request.fair or (timeout == 0 and not request.shared):
        return False
    if env.turns:
        if env.monotonic() < env.turns.get(request.queue, 0.0):
            return False
        env.turns.pop(request.queue, None)
    local: LocalQueue | None = env.local_queues.get(request.queue)
    if local is not None:
        latest = env.monotonic() - MOMENT
        for entry in local.entries.copy():
            if entry.started <= latest and not (entry.shared and request.shared):
                return True
    # The owner of a ticket has waited for a moment, or is behind a waiter that has.
    exists = env.exists(request.queue)
    return bool(_conflicting(names(env, request.queue), shared=True)) if exists and request.shared else exists


def _conflicting(names: list[str], *, shared: bool) -> list[str]:
    """The tickets to wait for: readers do not wait for readers."""
    return [name for name in names if not is_shared(name)] if shared else names


class LocalQueue:
    """The places of this process in the queue of one lock, by arrival."""

    __slots__ = ("entries", "mutex")

    def __init__(self) -> None:
        self.mutex = _thread.RLock()
        self.entries: list[QueueEntry] = []

    def ahead_of(self, entry: QueueEntry) -> list[QueueEntry]:
        """The predecessors of `entry`; a reader does not wait for readers. It is inserted if it is missing: at first,
        and after a waiter lost patience with it (Q6)."""
        if entry not in self.entries:
            self._insert(entry)
        before = self.entries[: self.entries.index(entry)]
        return [other for other in before if not other.shared] if entry.shared else before

    def _insert(self, entry: QueueEntry) -> None:
        number = len(self.entries)
        while number and self.entries[number - 1].started > entry.started:
            number -= 1
        self.entries.insert(number, entry)

    def wake_first(self) -> None:
        """Wake the first waiters. One whose event loop has been closed would never leave by itself: it is removed."""
        readers = False
        for entry in self.entries.copy():
            if readers and not entry.shared:
                return
            if entry.signal.set():
                if not entry.shared:
                    return
                readers = True
            elif entry in self.entries:  # a signal handler may have changed them
                self.entries.remove(entry)


class QueueEntry:
    """One contender's place in the queue."""

    def __init__(self, env: Environment, request: FileRequest, started: float) -> None:
        self.env = env
        self.started = started
        self.shared = request.shared
        self.owner = request.owner
        self.tag = request.tag
        self.holding = False
        self.signal = Signal()
        self._request = request
        self._generation = env.generation
        arrival = started - env.clock_shift
        self.name = name_of(arrival, env.identity().pid, env.token(), shared=request.shared)
        self._ticket: Ticket | None = None
        self._issuing = False
        """Whether a ticket of ours may be there that `_ticket` does not know of."""
        self._ignored: set[str] = set()
        """Idle tickets in front of a free lock that we may not remove."""
        self._queue_up_at = started + MOMENT
        self._cannot_queue = False
        """Tickets do not work here: no kernel locks, no write permission, a full disk."""
        self.first_ahead: object = None
        """The first waiter, when it was not us."""
        self._behind_here = 0
        self._ahead = 0
        self._list_at = 0.0
        self._before: str | None = None
        self._turn_came = False
        self._watch: Watch | None = None
        self._relied_from = 0.0
        """When we start to rely on the watch."""
        self._local = LocalQueue()
        """The line that we are in, once we have asked whose turn it is."""

    # -- whose turn ----------------------------------------------------------------------------------------------------

    def takes_turn(self) -> bool:
        """Whether our turn has come since the last call: then our predecessor may not be done yet."""
        came, self._turn_came = self._turn_came, False
        return came

    def is_first(self) -> bool:
        """Whether it is our turn, as far as is visible now."""
        self.signal.is_set = False
        ahead = self._ahead_here()
        self._behind_here = len(ahead)
        if ahead:
            self.first_ahead = ahead[0]
            self._unwatch()
            return False
        return not self._is_behind_ticket()

    def _ahead_here(self) -> list[QueueEntry]:
        lines, queue = self.env.local_queues, self._request.queue
        while True:
            local: LocalQueue = lines.setdefault(
                queue, self._local
            )  # in case an interruption comes now, it is already ours
            self._local = local
            with local.mutex:
                if lines.get(queue) is local:  # else it has just been dissolved
                    ahead: list[QueueEntry] = local.ahead_of(self)
                    return ahead

    @property
    def behind(self) -> bool:
        """What the last `is_first` found."""
        return bool(self._behind_here or self._before)

    def _is_behind_ticket(self) -> bool:
        env, path = self.env, self._request.queue
        polls = self._watch is None and self._before is not None and env.monotonic() < self._list_at
        if polls and self._ahead > _NEAR and env.exists(f"{path}/{self._before}"):
            return True  # a thousand pollers cannot each read a list of a thousand
        self._list_at = env.monotonic() + _LIST_EVERY
        queue, names = self._open_queue()
        try:
            before = self._ahead_of_us(names)
            for number in range(len(before), 0, -1):
                name = before[number - 1]
                if queue is not None and self._watch_ticket(name) and queue.is_guarded(name):
                    self._ahead, self.first_ahead = number, before[0]
                    self._turn_came = True
                    return True
        finally:
            self._close_queue(queue)
        self._unwatch()
        if queue is not None and self._ticket is None and (before or not names):
            remove_queue(env, path)  # all tickets were of dead processes, or there were none
        return False

    def _open_queue(self) -> tuple[Queue | None, list[str]]:
        """The queue, and the tickets in it: the queue of our own ticket, as long as that exists."""
        if self._ticket is not None:
            names = self._ticket.queue.names()
            if self.name in names:
                return self._ticket.queue, names
            self.drop_ticket()  # Q6; or the whole directory has been removed
        queue = opened(self.env, self._request.queue)
        return queue, [] if queue is None else queue.names()

    def _close_queue(self, queue: Queue | None) -> None:
        if queue is not None and (self._ticket is None or self._ticket.queue is not queue):
            queue.close()

    def _watch_ticket(self, name: str) -> bool:
        """Watch it; False when it is gone (Q3)."""
        env, path = self.env, f"{self._request.queue}/{name}"
        if self._before == name:
            if self._watch is not None and self._watch.take():
                self._relied_from = env.monotonic() + DYING
            return True
        self._unwatch()
        try:
            self._watch = env.watch(path) if env.events_reach(path) else None
        except OSError:
            return False
        self._before = name
        return True

    def _ahead_of_us(self, names: list[str]) -> list[str]:
        ahead = _conflicting([name for name in names if name < self.name], shared=self.shared)
        return [name for name in ahead if name not in self._ignored] if self._ignored else ahead

    def overtake(self) -> None:
        """Q6."""
        ahead = self._ahead_here()
        with self._local.mutex:
            for entry in ahead:
                if entry in self._local.entries:
                    self._local.entries.remove(entry)
                    entry.signal.set()  # it may wait for its turn only, and nothing else would wake it
        queue, names = self._open_queue()
        try:
            for name in self._ahead_of_us(names):
                if queue is not None and not queue.unlink(name):
                    self._ignored.add(name)
        finally:
            self._close_queue(queue)
        self._behind_here = 0
        self._unwatch()

    # -- waiting -------------------------------------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """When to look again just to take a ticket."""
        return math.inf if self._ticket is not None or self._cannot_queue else self._queue_up_at

    def queue_up(self, now: float) -> None:
        """Take a ticket, if we are the first of this process and have to go on waiting."""
        if self._behind_here or self.due == math.inf or now < (self.started if self._before else self._queue_up_at):
            return
        env = self.env
        self._issuing = True
        try:
            self._ticket = issue(env, self._request, self.name, env.time() - (now - self.started))
        except BlockingIOError:
            self._queue_up_at, self._issuing = now + MOMENT, False  # Q2
            return
        except OSError:
            pass  # Q1
        self._issuing = False
        self._cannot_queue = self._ticket is None

    def recheck(self, now: float) -> float:
        """Seconds until the next look at the lock although a waiter is ahead (A2): few if our turn is near, many if a
        thousand wait, and in a long wait as many as it has lasted."""
        return min(RECHECK, max(_RECHECK_EACH * (self._behind_here or self._ahead), now - self.started))

    def plan(self, now: float) -> tuple[tuple[int, ...], float, Signal | None]:
        """What to wait for while a waiter is ahead: descriptors, the latest time to wake up, a signal."""
        if self._behind_here:
            return (), math.inf, self.signal
        fds = self._watch.fds() if self._watch is not None else ()
        if fds:
            return fds, min(self.due, self._relied_from if now < self._relied_from else math.inf), None
        return fds, min(self.due, now + min(_LONGEST_POLL, _FIRST_POLL * self._ahead**1.25)), None

    def woke(self, *, over: bool) -> bool:
        """Whether the wait that has just ended was about us."""
        return self._watch is None or self._watch.woken(over=over)

    # -- holding and leaving -------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """We have the lock, and keep our place until the release (Q4). Waiters of the same owner may join us."""
        self.env.turns[self._request.queue] = self.env.monotonic() + SLICE
        self.holding = True
        self._unwatch()
        if self._ticket is not None:
            try:
                self._ticket.hold()
            except OSError:
                pass  # Q1
        self._tell_owner()

    def enter(self) -> None:
        """We have one of several slots: the next waiter tries the others at once, and our owner's may join us."""
        self.leave()
        self._tell_owner()

    def _tell_owner(self) -> None:
        if self.owner is not None:
            with self._local.mutex:
                for entry in self._local.entries.copy():
                    if entry.owner == self.owner:
                        entry.signal.set()

    def leave(self) -> None:
        """Give the place up, and wake the waiter that is first now. Idempotent; does nothing in a forked child."""
        if self._generation != self.env.generation:
            return
        self._unwatch()
        self.drop_ticket()
        with self._local.mutex:
            if self in self._local.entries:
                self._local.entries.remove(self)
            self._local.wake_first()
            if not self._local.entries and self.env.local_queues.get(self._request.queue) is self._local:
                self.env.local_queues.pop(self._request.queue, None)  # a signal handler's lock may have done it

    def _unwatch(self) -> None:
        self._before = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def drop_ticket(self) -> None:
        if self._ticket is not None:
            self._ticket.give_up()
            self._ticket = None
        elif self._issuing:
            withdraw(self.env, self._request.queue, self.name)  # interrupted while it was made
        self._issuing = False


def waiters(env: Environment, request: FileRequest, seen: Observation | None, status: Status) -> tuple[Waiter, ...]:
    """All visible waiters, including those that the status already knows. Changes nothing."""
    queue = sorted([*_other_waiters(env, request), *_own_waiters(env, request)], key=lambda arrival: arrival[0])
    found = [waiter.replaced(position=position) for position, (_, waiter) in enumerate(queue, 1)]
    known = {waiter.pid for waiter in found}
    found += [waiter for waiter in status.waiters if waiter.pid not in known]
    if seen is not None:
        # A holder may watch its own lock file, in order to notice its loss.
        seen_already = (*status.waiters, *status.holders, status.holder)
        known.update(who.pid for who in seen_already if who is not None and who.pid is not None)
        others = [pid for pid in env.watchers(seen.identity) if pid not in known]
        if others:  # the record does not name the keeper of a shell's lock, but it has the guard
            keepers = {owner.pid for owner in env.lock_owners(seen.identity) if not owner.waiting}
            others = [pid for pid in others if pid not in keepers]
        found += [Waiter(None, pid, None, None, env.command(pid)) for pid in others]
    return tuple(found)


def _other_waiters(env: Environment, request: FileRequest) -> list[Arrival]:
    """Waiters of other processes: the first of each."""
    local: LocalQueue | None = env.local_queues.get(request.queue)
    mine = set() if local is None else {entry.name for entry in local.entries.copy()}
    return [(arrival(name), waiter) for name, waiter in read_tickets(env, request.queue) if name not in mine]


def read_tickets(env: Environment, path: str) -> list[tuple[str, Waiter]]:
    """The tickets in the queue at the path, by arrival, with their waiters; without those that no longer wait."""
    queue = opened(env, path)
    if queue is None:
        return []
    with queue:
        read = [(name, read_ticket(env, queue, name)) for name in queue.names()]
    return [(name, waiter) for name, waiter in read if waiter is not None]


def read_ticket(env: Environment, queue: Queue, name: str) -> Waiter | None:
    """The waiter of the ticket; None if it no longer waits."""
    from .inspect import read_record

    try:
        fd = queue.open(name)
    except OSError:
        return None
    try:
        state, _, record = read_record(env, fd).partition(b"\n")
        if state + b"\n" != WAITING or not env.guarded(fd):
            return None  # it holds the lock; or it is dead
        decoded = get("sema").decode(record)
    except (OSError, MalformedRecord):
        return None
    finally:
        let_go(env, fd)
    if decoded.pid is None or decoded.marker is None:
        return None
    there, here = decoded.marker.identity, env.identity()
    local = there.pid_space == here.pid_space
    command = env.command(decoded.pid) if local else None  # elsewhere the number means another process
    return Waiter(None, decoded.pid, decoded.created, decoded.tag, command)


def _own_waiters(env: Environment, request: FileRequest) -> list[Arrival]:
    """Waiters of this process."""
    local: LocalQueue | None = env.local_queues.get(request.queue)
    if local is None:
        return []
    ago = env.time() - env.monotonic()
    pid = env.identity().pid
    command = env.command(pid)
    return [
        (entry.started - env.clock_shift, Waiter(None, pid, ago + entry.started, entry.tag, command))
        for entry in local.entries.copy()
        if not entry.holding
    ]
