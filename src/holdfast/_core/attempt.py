"""One acquisition: its events (which are due, and when; `events.py` calls the listeners), and its refusal.

AE1  Each event is reported at most once, and in order: one mutex covers the decision that an event is due and its way
     into the outbox. Every earlier event goes into the outbox first, in whichever thread: a release reports a loss that
     another thread has found and not yet reported.
AE2  No mutex is held while a callback runs, so a callback may use locks and other threads. A thread that finds another
     one delivering leaves its event to it, which keeps the order.
AE3  No event is made without a listener. An acquisition on the fast path has no events unless there is one.
AE4  A forked child reports nothing that its parent began or held.
AE5  A hold has its events before another thread can join it: a loss that the other one finds is reported as one of
     them.

CE1  An OSError of a caller's function is never taken for the failure of a step, which may mean that the lock is held,
     or its file gone: it goes through the engine as a `CallersError`, and reaches the caller as it was raised.
"""

from __future__ import annotations

import _thread
import itertools
from abc import abstractmethod

from ..events import Event, deliver, has_listener, name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn, Protocol, TypeVar

    from .._platform.interface import Environment
    from ..events import Kind
    from ..model import Holder, Record, Status
    from .options import Request

    class Told(Protocol):
        """The part of a hold that its events report (hold.py)."""

        env: Environment

        @property
        def request(self) -> Request: ...

        refs: list[Any]
        acquired: float
        lost: bool
        recovered_from: Record | None

    T = TypeVar("T")


_numbers = itertools.count(1)
way_to_break: Callable[[Status], str] | None = None
"""Returns the command by which messages tell how to break a lock; None: they name the method (messages.py)."""


def say_how_to_break(way: Callable[[Status], str] | None) -> None:
    global way_to_break
    way_to_break = way


class AttemptEvents:
    """One acquisition, from its first step until its hold has ended."""

    def __init__(self, env: Environment, request: Request, context: tuple[object, ...]) -> None:
        self.number = next(_numbers)
        self._env = env
        self._request = request
        self._context = context
        self._name: str | None = None
        self._generation = env.generation
        self._mutex = _thread.RLock()  # re-entrant: a signal handler or a finaliser may release the hold
        self._outbox: list[Event] = []
        self._delivering = False
        self._waiting = self._acquired = self._lost = self._ended = False
        self._holder: Holder | None = None
        self._started = self._since = env.monotonic()
        self._waited: float | None = 0.0

    @classmethod
    def of(cls, held: Told) -> AttemptEvents:
        """The events to come of a hold that was acquired before there was a listener."""
        refs = held.refs.copy()
        attempt_events = cls(held.env, held.request, refs[0].context if refs else ())
        attempt_events._acquired, attempt_events._since, attempt_events._waited = True, held.acquired, None
        return attempt_events

    # -- what happens --------------------------------------------------------------------------------------------------

    def waiting(self, who: Callable[[], Holder | None]) -> None:
        """Report that the wait begins; `who` returns the holder. Only the first call counts."""
        if self._waiting or self._is_inherited():
            return
        self._waiting = True
        if not self._has_listener("waiting"):
            return
        self._find_holder(who, "waiting")
        with self._mutex:
            self._enqueue("waiting")
        self._deliver()

    def gave_up(self, who: Callable[[], Holder | None] | None = None) -> None:
        """Report that the caller gets no hold; does nothing after the last event."""
        if self._ended or self._is_inherited():
            return
        if who is not None:
            self._find_holder(who, "gave-up")
        self._end_without("gave-up")

    def joined(self) -> None:
        """Report that the caller shares a hold that has events of its own; only if it has waited."""
        if self._waiting:
            self._end_without("joined")
        self._ended = True

    def acquired(self, held: Told) -> None:
        """Report that the caller is about to get its hold."""
        if self._acquired or self._is_inherited():
            return
        with self._mutex:
            self._begin(held)
        self._deliver()

    def lost(self, held: Told) -> None:
        """Report that the lock was found lost."""
        if self._is_inherited():
            return
        with self._mutex:
            self._lose(held)
        self._deliver()

    def released(self, held: Told) -> None:
        """Report that the hold has ended, in whatever way."""
        if self._is_inherited():
            return
        with self._mutex:
            if held.lost:
                self._lose(held)
            self._begin(held)
            if not self._ended:
                self._ended = True
                self._enqueue("released", held)
        self._deliver()

    def undone(self, held: Told) -> None:
        """Report that the hold was given back before its caller got it."""
        if self._acquired:
            self.released(held)
        else:
            self.gave_up()

    def describe(self, kind: Kind, held: Told | None = None, holder: Holder | None = None) -> Event:
        """An event, as of now."""
        env, request = self._env, self._request
        if self._name is None:
            self._name = name_of(self._context)
        now = env.monotonic()
        over = kind in ("lost", "released")
        slot = None if held is None else held.request.slot
        record = None if held is None else held.recovered_from
        waited = self._waited if self._acquired else now - self._started if self._waiting else 0.0
        return Event(
            kind,
            env.time(),
            request.target,
            request.protocol_name,
            env.identity().pid,
            self.number,
            self._name,
            request.tag,
            slot,
            waited,
            now - self._since if over else None,
            holder,
            record,
        )

    # -- delivery ------------------------------------------------------------------------------------------------------

    def _is_inherited(self) -> bool:
        return self._generation != self._env.generation  # AE4

    def _has_listener(self, kind: Kind) -> bool:
        return has_listener(kind, self._request.on_event)

    def _find_holder(self, who: Callable[[], Holder | None], kind: Kind) -> None:
        if self._has_listener(kind):
            try:
                self._holder = who()
            except Exception:  # the acquisition meets the same error, and knows what it means
                self._holder = None

    def _begin(self, held: Told) -> None:
        if self._acquired or self._ended:
            return
        self._since = self._env.monotonic()
        self._waited = self._since - self._started if self._waiting or held.recovered_from is not None else 0.0
        self._acquired = True
        if held.recovered_from is not None:
            self._enqueue("reclaimed", held)
        self._enqueue("acquired", held)

    def _lose(self, held: Told) -> None:
        self._begin(held)
        if not self._lost and not self._ended:
            self._lost = True
            self._enqueue("lost", held)

    def _end_without(self, kind: Kind) -> None:
        """Report the last event of an attempt that got no hold."""
        with self._mutex:
            if not self._acquired and not self._ended:
                self._ended = True
                self._enqueue(kind)
        self._deliver()

    def _enqueue(self, kind: Kind, held: Told | None = None) -> None:
        if self._has_listener(kind):
            self._outbox.append(self.describe(kind, held, None if held is not None else self._holder))

    def _deliver(self) -> None:
        """Call the listeners, unless another thread or an outer call of ours is doing so (AE2)."""
        if not self._outbox:
            return
        interruption: BaseException | None = None
        with self._mutex:
            if self._delivering:
                return
            self._delivering = True
        try:
            while True:
                with self._mutex:
                    if not self._outbox:
                        self._delivering = False
                        break
                    event = self._outbox.pop(0)
                try:
                    deliver(event, self._request.on_event)
                except BaseException as error:  # Ctrl-C in a callback: deliver the other events all the same
                    interruption = interruption or error
        except BaseException:
            self._delivering = False
            raise
        if interruption is not None:
            raise interruption


class CallersError(Exception):
    """An OSError that a caller's function has raised, on its way to the caller (CE1)."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self._error = error

    def unwrap(self) -> NoReturn:
        """Raise it as the function has raised it."""
        error, context = self._error, self._error.__context__
        try:
            raise error
        finally:
            error.__context__ = context


def ask(function: Callable[..., T], *arguments: object) -> T:
    """Call a function that is the caller's, or calls one (CE1)."""
    try:
        return function(*arguments)
    except OSError as error:
        raise CallersError(error) from None


class Refused(Exception):
    """The end of an acquisition without the lock."""

    @abstractmethod
    def refusal(self) -> Refusal:
        """The refusal, which looks up the holder on demand."""


class Refusal:
    """The lock was held all the time; `statuses`, one for each lock file, name the holders.

    Most refusals are thrown away, and finding the holder may take long, so `look` is only called on demand. `own` are
    this process's own shares in the lock or semaphore that it waited for.
    """

    def __init__(
        self,
        target: str,
        waited: float,
        look: Callable[[], tuple[Status, ...]],
        attempt_events: AttemptEvents,
        own: Sequence[Any] = (),
    ) -> None:
        self.target = target
        self.waited = waited
        self.own = own
        self._look = look
        self._attempt_events = attempt_events
        self._statuses: tuple[Status, ...] | None = None

    @property
    def statuses(self) -> tuple[Status, ...]:
        if self._statuses is None:
            self._statuses = self._look()
        return self._statuses

    @property
    def status(self) -> Status:
        return self.statuses[0]

    def event(self) -> Event:
        """The `waiting` event with the current holder."""
        return self._attempt_events.describe("waiting", None, self.status.holder)
