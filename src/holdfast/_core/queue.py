"""Fairness: those who wait form a queue, in the order of their arrival, and each watches only the one before it.

Inside a process, a `Line` of places. The first of each line, once it has waited a moment, has a ticket (tickets.py).

    new ──▶ behind somebody of this process ──▶ behind a ticket ──▶ first ──▶ holding ──▶ left

Q1  Exclusion never depends on the queue. A place decides only when a contender tries; so every failure here is ignored,
    and whoever knows nothing of the queue does no harm but to the order.
Q3  The watch on a predecessor's ticket is armed before its guard is probed, so its end makes an event that is still
    there. After waking, the queue is looked at anew: a ticket with an earlier arrival may have appeared in between.
    If there was an event and the guard is held all the same, it is looked at again soon: a dying process's outlives it.
Q4  A place, with its ticket, is kept until the release. So a release wakes only the next one, whatever their number.
Q5  Newcomers go in directly as long as nobody has waited for longer than a moment; and a process whose turn has come
    may take the lock again for a slice of time before those behind it. Handing a lock over costs ten times as much as
    taking it again, so this makes the throughput. A wait is bounded all the same: each one ahead has one slice.
Q6  A ticket is the right to be first for those who use it. If the lock lies there free while the ones ahead do nothing
    (stopped, forged, or with other ideas of what is stale), the one behind them removes their tickets and goes in. All
    of them are told, because only the first was idle; and they queue anew, by their old arrival. So whoever finds
    itself behind looks at the lock at once; and what it may not remove it heeds no more in this wait.
Q7  The slots of a semaphore have one queue, and a place in it is left at the acquisition: the next one looks at once,
    as another slot may be free, too. So two releases at once let two in, and each of them wakes only the first.
"""

from __future__ import annotations

import _thread
import math
from bisect import bisect_left

from . import tickets
from .environment import DYING, RECHECK, Environment, Signal, Watch
from .request import Request
from .tickets import MOMENT, Queue, Ticket

SLICE = 0.0004
"""Seconds from getting the lock by the queue, in which a process may take it again (Q5). Measured: with less, 16
processes without a pause get fewer locks a second than by polling; with more, the longest wait grows."""
NAP = 0.0003
"""Seconds for which the next one leaves the lock to a process that uses its slice."""
PATIENCE = 0.020
"""Seconds that a free lock is left to those who are first (Q6)."""
_RECHECK_EACH = 1.0
"""Seconds between looks at the lock for each one ahead."""
_FIRST_POLL, _LONGEST_POLL = 0.001, 1.0
"""Seconds between looks at the ticket ahead, where no events come: near to our turn, and far from it."""
_LIST_EVERY, _NEAR = 0.5, 16
"""Seconds for which a poll believes that the ticket ahead is the one to wait for, and its owner alive; unless there are
no more than so many ahead."""


def is_contended(env: Environment, request: Request, timeout: float | None) -> bool:
    """Whether a newcomer has to queue (Q5).

    One that will not wait does not: it takes what is free, or leaves. Only readers always give way: together they could
    keep a writer out for ever.
    """
    if not request.fair or (timeout == 0 and not request.shared):
        return False
    if env.turns:
        if env.monotonic() < env.turns.get(request.queue, 0.0):
            return False
        env.turns.pop(request.queue, None)
    line: Line | None = env.lines.get(request.queue)
    if line is not None:
        latest = env.monotonic() - MOMENT
        for place in line.places.copy():
            if place.started <= latest and not (place.shared and request.shared):
                return True
    # Who has a ticket has waited for a moment, or is behind somebody who has.
    exists = env.exists(request.queue)
    return bool(_conflicting(tickets.names(env, request.queue), shared=True)) if exists and request.shared else exists


def _conflicting(names: list[str], *, shared: bool) -> list[str]:
    """Those tickets that one has to wait for: readers do not wait for readers."""
    return [name for name in names if not tickets.is_shared(name)] if shared else names


class Line:
    """The places of this process in the queue of one lock, in the order of arrival."""

    __slots__ = ("mutex", "places")

    def __init__(self) -> None:
        self.mutex = _thread.RLock()
        self.places: list[Place] = []

    def ahead_of(self, place: Place) -> list[Place]:
        """Those whom `place` has to wait for: readers do not wait for readers. It is entered if it is not there: at
        first, and when somebody lost patience with it (Q6)."""
        if place not in self.places:
            self._insert(place)
        before = self.places[: self.places.index(place)]
        return [other for other in before if not other.shared] if place.shared else before

    def _insert(self, place: Place) -> None:
        number = len(self.places)
        while number and self.places[number - 1].started > place.started:
            number -= 1
        self.places.insert(number, place)

    def wake_first(self) -> None:
        """Tell those who are first now; one whose event loop has been closed will never leave by itself."""
        readers = False
        for place in self.places.copy():
            if readers and not place.shared:
                return
            if place.signal.set():
                if not place.shared:
                    return
                readers = True
            elif place in self.places:  # a signal handler may have changed them
                self.places.remove(place)


class Place:
    """One contender's place in the queue."""

    def __init__(self, env: Environment, request: Request, started: float) -> None:
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
        self.name = tickets.name_of(arrival, env.identity().pid, env.token(), shared=request.shared)
        self._ticket: Ticket | None = None
        self._issuing = False
        """Whether a ticket of ours may be there that `_ticket` does not know of."""
        self._passed: set[str] = set()
        """Tickets that lay idle in front of a free lock, and that we may not remove."""
        self._queue_up_at = started + MOMENT
        self._hopeless = False
        """No ticket can be had here: no kernel locks, no right to write, a full disk."""
        self.first_ahead: object = None
        """Who was first when we were not."""
        self._behind_here = 0
        self._ahead = 0
        self._list_at = 0.0
        self._before: str | None = None
        self._turn_came = False
        self._watch: Watch | None = None
        self._relied = 0.0
        """From when on the watch is relied upon."""
        self._line = Line()
        """The one that we are in, once we have asked whose turn it is."""

    # -- whose turn ----------------------------------------------------------------------------------------------------

    def takes_turn(self) -> bool:
        """Whether our turn has come since this was asked last: who was before us in the queue may not be done yet."""
        came, self._turn_came = self._turn_came, False
        return came

    def is_first(self) -> bool:
        """Whether it is our turn, as far as can be seen now."""
        self.signal.is_set = False
        ahead = self._ahead_here()
        self._behind_here = len(ahead)
        if ahead:
            self.first_ahead = ahead[0]
            self._unwatch()
            return False
        return not self._is_behind_ticket()

    def _ahead_here(self) -> list[Place]:
        lines, queue = self.env.lines, self._request.queue
        while True:
            line: Line = lines.setdefault(queue, self._line)  # ours already, should an interruption come now
            self._line = line
            with line.mutex:
                if lines.get(queue) is line:  # else it has just been dissolved
                    ahead: list[Place] = line.ahead_of(self)
                    return ahead

    @property
    def behind(self) -> bool:
        """What the last `is_first` found."""
        return bool(self._behind_here or self._before)

    def _is_behind_ticket(self) -> bool:
        env, path = self.env, self._request.queue
        polls = self._watch is None and self._before is not None and env.monotonic() < self._list_at
        if polls and self._ahead > _NEAR and env.exists(f"{path}/{self._before}"):
            return True  # a thousand that poll cannot each read a list of a thousand
        self._list_at = env.monotonic() + _LIST_EVERY
        queue, names = self._look()
        try:
            before = self._ahead_of_us(names)
            for number in range(len(before), 0, -1):
                name = before[number - 1]
                if queue is not None and self._watch_ticket(name) and queue.is_guarded(name):
                    self._ahead, self.first_ahead = number, before[0]
                    self._turn_came = True
                    return True
        finally:
            self._unlook(queue)
        self._unwatch()
        if queue is not None and self._ticket is None and (before or not names):
            tickets.remove_queue(env, path)  # they were all of the dead, or there was none
        return False

    def _look(self) -> tuple[Queue | None, list[str]]:
        """The queue, and the tickets in it: that of our own ticket, as long as this is there."""
        if self._ticket is not None:
            names = self._ticket.queue.names()
            if self.name in names:
                return self._ticket.queue, names
            self._drop_ticket()  # Q6; or the whole directory has been removed
        queue = tickets.opened(self.env, self._request.queue)
        return queue, [] if queue is None else queue.names()

    def _unlook(self, queue: Queue | None) -> None:
        if queue is not None and (self._ticket is None or self._ticket.queue is not queue):
            queue.close()

    def _watch_ticket(self, name: str) -> bool:
        """Watch it; False when it is gone (Q3)."""
        env, path = self.env, f"{self._request.queue}/{name}"
        if self._before == name:
            if self._watch is not None and self._watch.take():
                self._relied = env.monotonic() + DYING
            return True
        self._unwatch()
        try:
            self._watch = env.watch(path) if env.events_reach(path) else None
        except OSError:
            return False
        self._before = name
        return True

    def _ahead_of_us(self, names: list[str]) -> list[str]:
        ahead = _conflicting(names[: bisect_left(names, self.name)], shared=self.shared)
        return [name for name in ahead if name not in self._passed] if self._passed else ahead

    def overtake(self) -> None:
        """Q6."""
        ahead = self._ahead_here()
        with self._line.mutex:
            for place in ahead:
                if place in self._line.places:
                    self._line.places.remove(place)
                    place.signal.set()  # it may wait for its turn only, and nobody else would tell it
        queue, names = self._look()
        try:
            for name in self._ahead_of_us(names):
                if queue is not None and not queue.unlink(name):
                    self._passed.add(name)
        finally:
            self._unlook(queue)
        self._behind_here = 0
        self._unwatch()

    # -- waiting -------------------------------------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """When to look again, only in order to queue up in sight of all."""
        return math.inf if self._ticket is not None or self._hopeless else self._queue_up_at

    def queue_up(self, now: float) -> None:
        """Take a ticket, if we are the first of this process and have to wait any longer."""
        if self._behind_here or self.due == math.inf or now < (self.started if self._before else self._queue_up_at):
            return
        env = self.env
        self._issuing = True
        try:
            self._ticket = tickets.issue(env, self._request, self.name, env.time() - (now - self.started))
        except BlockingIOError:
            self._queue_up_at, self._issuing = now + MOMENT, False  # Q2
            return
        except OSError:
            pass  # Q1
        self._issuing = False
        self._hopeless = self._ticket is None

    def recheck(self, now: float) -> float:
        """Seconds after which to look at the lock although somebody is ahead (A3): soon where our turn is near, rarely
        where a thousand wait, and in a long wait after as long as it has lasted."""
        return min(RECHECK, max(_RECHECK_EACH * (self._behind_here or self._ahead), now - self.started))

    def plan(self, now: float) -> tuple[tuple[int, ...], float, Signal | None]:
        """What to wait for, being behind somebody: descriptors, until when at the latest, a signal."""
        if self._behind_here:
            return (), math.inf, self.signal
        fds = self._watch.fds() if self._watch is not None else ()
        if fds:
            return fds, min(self.due, self._relied if now < self._relied else math.inf), None
        return fds, min(self.due, now + min(_LONGEST_POLL, _FIRST_POLL * self._ahead**1.25)), None

    def woke(self, *, over: bool) -> bool:
        """To be called when a wait has ended: whether it was about us."""
        return self._watch is None or self._watch.woken(over=over)

    # -- holding and leaving -------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """We have the lock, and keep our place until the release (Q4). Those of the same owner may join us."""
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
        """We have one of several: the next one looks for another at once. Those of the same owner may join us."""
        self.leave()
        self._tell_owner()

    def _tell_owner(self) -> None:
        if self.owner is not None:
            with self._line.mutex:
                for place in self._line.places.copy():
                    if place.owner == self.owner:
                        place.signal.set()

    def leave(self) -> None:
        """Give the place up; whoever is first now is told. Idempotent, and nothing in a forked child."""
        if self._generation != self.env.generation:
            return
        self._unwatch()
        self._drop_ticket()
        with self._line.mutex:
            if self in self._line.places:
                self._line.places.remove(self)
            self._line.wake_first()
            if not self._line.places and self.env.lines.get(self._request.queue) is self._line:
                self.env.lines.pop(self._request.queue, None)  # a signal handler's lock may have done it

    def _unwatch(self) -> None:
        self._before = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _drop_ticket(self) -> None:
        if self._ticket is not None:
            self._ticket.give_up()
            self._ticket = None
        elif self._issuing:
            tickets.withdraw(self.env, self._request.queue, self.name)  # interrupted while it was made
        self._issuing = False
