"""Common parts of the engines that talk to a server: the request, the wait, the hold, and callers with a common owner.

EH1  This process knows whether a hold is ours without asking the server: our own clock says whether the server's
     promise (`Term`) is over. So `lost` and `ensure_held` never wait.
EH2  A release tells the server and waits for its answer; if it is interrupted in any way, the connection or the lease
     is given up afterwards (`_close`), so the server frees the lock all the same: by the release itself or, if that is
     interrupted too, by the next operation that begins (operations.py, J2 to J4). The mutex covers only its beginning.
EH3  A loss is reported once, wherever it is found; a release after it leaves the lock to its next holder.

KN1  Of one owner's callers in this process only one contends. The others wait for its hold, and share that; if it gives
     up, the next of them contends. In the server's queue they would wait for themselves. Their waits have events and
     notices like all others. A place in that line belongs to the operation: if its caller is interrupted, the operation
     leaves the line and wakes the others, perhaps a second time (operations.py, J2 to J4). Nobody wakes the copy of a
     wait that a signal handler has forked: it looks now and then, and ends.
KN2  A caller that holds the lock itself, or every slot, and would wait forever, gets WouldDeadlock at once.
KN3  For KN1 and KN2, a lock is identified by its name on the server, not by the spelling or the parameters of its URL.
     A lock and a semaphore of one name are different. In doubt two spellings are two locks: then a caller waits for
     itself, while a share in the hold of another lock would let two in.
"""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, ClassVar, Protocol
from urllib.parse import unquote

from .._core.attempt import AttemptEvents, Refusal
from .._core.hold import HoldRef, HoldState, give_back
from .._core.messages import deadlock
from .._core.options import FASTEST_BEAT, Options, Request, check_seconds
from .._core.wait import Deadline, Signal, Steps, Wait
from .._drivers.sync import drive
from .._platform.fork import forking
from .._platform.interface import Environment
from .._platform.values import RECHECK
from ..events import listeners
from ..model import Holder, Record, Status
from .base import Engine

Result = HoldRef | Refusal


class Closable(Protocol):
    """A step that an operation closes when it is undone; `closed` once that is done."""

    closed: bool

    def close(self) -> None: ...


_COMMON = frozenset({"tag", "timeout", "owner", "fair", "fencing", "on_lost", "on_event"})


class RemoteRequest(Request):
    """A request for one lock on a server. `path` and `target` are its URL without a password.

    `allowed` are the options of this engine besides those of all remote engines; any other is an error.
    """

    __slots__ = ("engine", "lease")

    def __init__(self, engine: Engine, given: str, shown: str, options: Options, allowed: frozenset[str]) -> None:
        _check_options(engine.name, options, _COMMON | allowed)
        self.engine = engine
        super().__init__(engine.name, given, shown, options)
        self.fencing = True  # a server gives a token with every hold
        self.watched = True
        every = check_seconds("heartbeat", options.get("heartbeat"), zero=True)
        self.beat_every = 0.0 if every is None else max(every, FASTEST_BEAT) if every else math.inf
        """Seconds between heartbeats. 0: the engine decides; infinity: never."""
        self.lease = check_seconds("stale_after", options.get("stale_after"), zero=False)
        """Seconds after which the server frees the lock of a silent holder; None: the engine decides."""

    @property
    def full_name(self) -> str:
        """The lock's name on the server, however its URL is spelled (KN3)."""
        return self.target

    @property
    def server(self) -> tuple[str, ...]:
        """The server on which that name means this lock; equal only if it certainly is the same server."""
        return ()

    @property
    def key(self) -> tuple[object, ...]:
        """The key of the lock in this process, the same for all slots (KN3)."""
        return (self.protocol_name, self.full_name, self.server, self.slot is not None)

    @property
    def place(self) -> tuple[str, str, tuple[str, ...], int]:
        """The place in the order of `acquire_all`. The name comes first, as it has only one spelling."""
        return (self.protocol_name, self.full_name, self.server, -1 if self.slot is None else self.slot)


def is_text(url: str) -> bool:
    """Whether a URL is UTF-8 once it is percent-decoded. Otherwise two different names would be read as one."""
    try:
        unquote(url, errors="strict").encode()
    except UnicodeError:
        return False
    return True


def slept() -> float:
    """The seconds that the machine has slept since it started, as far as the system tells; only differences count."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return 0.0 if clock is None else time.clock_gettime(clock) - time.clock_gettime(time.CLOCK_MONOTONIC)


def moment(env: Environment) -> tuple[float, float]:
    """The current time for a `Term`: to be taken before the server is asked."""
    return env.monotonic(), slept()


class Term:
    """The time until which a server has promised something, by our own clock (EH1).

    The time for which the machine sleeps counts, where the system tells it: the server goes on waiting, while the
    monotonic clock stands still.
    """

    def __init__(self, env: Environment, lapses: float) -> None:
        self.env = env
        self._until = lapses, slept()

    @property
    def lapses(self) -> float:
        """The end of the term on the monotonic clock, unless the machine sleeps."""
        return self._until[0]

    def extend(self, asked: tuple[float, float], seconds: float) -> None:
        """Extend the term from the `moment` at which that was requested, however late the answer comes."""
        self._until = asked[0] + seconds, asked[1]  # both at once: another thread may look

    def is_over(self) -> bool:
        lapses, slept_then = self._until
        return self.env.monotonic() + slept() - slept_then >= lapses


class RemoteHold(HoldState):
    """A hold that a server has granted. The engine keeps it alive, and implements how it ends."""

    __slots__ = ("_record", "term", "why_lost")

    waits = True
    request: RemoteRequest

    def __init__(
        self, env: Environment, request: RemoteRequest, name: tuple[object, ...], record: Record, token: int | None
    ) -> None:
        self._record = record
        self.term = Term(env, math.inf)
        self.why_lost = ""
        super().__init__(env, request, name)
        self.token = token
        with forking:
            _held.setdefault(_name(env.generation, request), []).append(self)

    # -- what an engine does -------------------------------------------------------------------------------------------

    @abstractmethod
    def _give_up(self) -> Steps[bool]:
        """Tell the server, and wait a bounded time for its answer. Whether the lock was still ours."""

    @abstractmethod
    def _close(self) -> None:
        """End the hold's connection or lease, so that the server frees it. Never waits, never raises, idempotent."""

    # -- what all do ---------------------------------------------------------------------------------------------------

    def release(self, ref: HoldRef | None = None) -> None:
        self.env.operations.giving_way(lambda: drive(self.releasing(ref, sys._getframe())))

    def releasing(self, ref: HoldRef | None = None, frame: FrameType | None = None) -> Steps[None]:
        """Release the lock, or this share of it (EH2). LockLost if it was no longer ours.

        The release is under way as long as the function of `frame` runs, or else the operation that drives it. The
        generator's own frame says nothing: it sleeps during a wait.
        """
        if self.inert:
            return
        operations = self.env.operations
        outer = operations.current() if operations.running else None
        _broken_off = self.frame  # kept until we are done: its variables may hold a `with` that releases this (J5)
        ended = mine = False
        try:
            try:
                if ref is not None and len(self.refs) > 1 and self._leave(ref):
                    return
                with self.mutex:
                    if self.released or (ref is not None and ref not in self.refs):
                        return
                    if ref is not None and self.refs != [ref]:
                        self.refs.remove(ref)
                        return
                    # From here to `released` there is no call, so no signal handler that might release it as well (H2).
                    self.frame, self.outer = frame, outer
                    operations.running[self] = self
                    ended = self.released = True
                if not self.lost and self._is_ours():
                    mine = yield from self._give_up()
            finally:
                frame = None  # break the cycle: it refers to its callers' variables
                if ended:
                    self._undo()
                    self._finish()
            if not mine:
                self._raise_lost()
        finally:
            if ended:
                if self.attempt_events is not None or listeners:
                    self._attempt_events().released(self)
                self.refs.clear()  # H2

    def drop(self, ref: HoldRef) -> None:
        """Release without a word to the server, which may be silent: `_close` makes it free the lock (EH2)."""
        self.env.operations.giving_way(lambda: give_back(ref))

    def lose(self, why: str) -> None:
        """Report a loss that the engine has found (EH3); called in a thread of its own."""
        if not self.why_lost:
            self.why_lost = why
        self.check()

    def beat(self) -> None:
        """Do nothing: the engine sends its own heartbeats."""

    def abandon(self) -> None:
        """Release the lock: no other process can take over what a server has granted to this one."""
        self.give_back()

    def record(self) -> Record:
        return self._record

    def _how_lost(self) -> str:
        why = self.why_lost or "its lease ran out without an answer from the server"
        return f"was lost while it was held here: {why.rstrip('.')}. Another process may be inside."

    def _is_ours(self) -> bool:
        return not self.why_lost and not self.term.is_over()

    def _forget(self) -> None:
        name = _name(self.generation, self.request)
        with forking:
            left = [one for one in _held.pop(name, ()) if one is not self]
            if left:
                _held[name] = left
        super()._forget()

    def _undo(self) -> None:
        self._forget()
        self._close()


_FLAGS = {"heartbeat": "", "version": " (--holder-version)"}
"""The words of a message for options that the command line lacks, or spells otherwise."""


def _check_options(engine: str, options: Options, allowed: frozenset[str]) -> None:
    neutral: dict[str, Any] = {"protocol": engine, "stale": "safe", "fair": True, "shared": False, "durable": False}
    for name, value in options.items():
        if name not in allowed and value is not None and value != neutral.get(name):
            flag = _FLAGS.get(name, f" (--{name.replace('_', '-')})")
            raise ValueError(f"{name}{flag} has no meaning for a lock on {engine}; leave it out")
    if options.get("fair") is False:
        raise ValueError(f"{engine} always serves waiters in order of arrival; leave fair out")


_held: dict[tuple[object, ...], list[RemoteHold]] = {}
"""Holds by process and lock. A parent's entries are never looked at."""
_waiting: dict[tuple[object, ...], list[_InLine]] = {}
"""Each owner's callers, by process, lock and owner. The first of them contends."""


def undo_with_operation(env: Environment, step: Closable) -> None:
    """Have the step closed when the current operation is undone, whatever interrupts that (operations.py, J3)."""
    operation = env.operations.current()
    if operation is not None:
        left = [one for one in operation.watches if not getattr(one, "closed", False)]
        operation.watches = (*left, step)


class Contender(Deadline, ABC):
    """A caller that wants a lock on a server: deadline, events, and steps, which each engine implements."""

    request: RemoteRequest
    acquires = True
    """Whether it acquires; else it only waits until the lock is free, which makes no events."""
    closed = False
    """Whether the operation has closed it. It never counts as closed, and stays to the operation's end."""

    def __init__(
        self, env: Environment, requests: Sequence[RemoteRequest], timeout: float | None, context: tuple[object, ...]
    ) -> None:
        super().__init__(env, requests[0], timeout)
        self.slots = len(requests)
        self.context = context
        self.attempt_events = AttemptEvents(env, self.request, context)
        self._has_waited = False

    @abstractmethod
    def close(self) -> None:
        """Give up everything that no hold owns. Never waits; may be interrupted, and called again."""

    @abstractmethod
    def acquire(self) -> Steps[Result]:
        """Contend until there is a hold or the time is up."""

    @abstractmethod
    def wait_until_free(self) -> Steps[Refusal | None]:
        """Wait until the lock is free, and return None, or the refusal; makes no events."""

    @abstractmethod
    def look_for_people(self) -> Steps[None]:
        """Look up the holder, for messages; if no answer comes promptly, the last known one must do."""

    @abstractmethod
    def last(self) -> tuple[Status, ...]:
        """The statuses last seen."""

    def who(self) -> Holder | None:
        """The holder last seen."""
        return next((status.holder for status in self.last() if status.locked), None)

    def waiting(self) -> None:
        """Report that the wait begins, and announce one that has lasted a second. Called before each wait."""
        self.require_same_process()
        if not self._has_waited:
            self._has_waited = True
            if self.env.operations.entered:
                self.env.operations.leave_dropped()  # J5: perhaps what we are about to wait for
        if self.acquires:
            self.attempt_events.waiting(self.who)
        self.announce(self.refusal)

    def refusal(self) -> Refusal:
        waited = self.env.monotonic() - self.started
        return Refusal(self.request.target, waited, self.last, self.attempt_events, own_refs(self))

    def refuse(self) -> Refusal:
        """Report that the time is up, and return the refusal."""
        self.attempt_events.gave_up(self.who)
        return self.refusal()

    def look_and_refuse(self) -> Steps[Refusal]:
        yield from self.look_for_people()
        return self.refuse()


class RemoteEngine(Engine):
    """Methods common to the engines that talk to a server."""

    contender: ClassVar[Callable[..., Contender]]
    """Makes a contender from the arguments of `acquire`; asks nothing of the server."""

    def acquire(
        self, env: Environment, requests: Sequence[Any], timeout: float | None, context: tuple[object, ...]
    ) -> Steps[Result]:
        contender = self.contender(env, requests, timeout, context)
        undo_with_operation(env, contender)
        try:
            return (yield from contend_as_owner(contender))
        except BaseException:
            contender.attempt_events.gave_up()
            raise
        finally:
            contender.close()

    def wait_until_free(
        self, env: Environment, requests: Sequence[Any], timeout: float | None, context: tuple[object, ...]
    ) -> Steps[Refusal | None]:
        contender = self.contender(env, requests, timeout, context)
        contender.acquires = False
        undo_with_operation(env, contender)
        try:
            if any(held.verify() for held in _holds_to_join(contender)):
                return None
            _require_no_deadlock(contender)
            return (yield from contender.wait_until_free())
        finally:
            contender.close()

    def break_lock(self, env: Environment, request: Any) -> Steps[Record | None]:
        return self.break_if(env, request, lambda _: True)


def _name(generation: int, request: RemoteRequest) -> tuple[object, ...]:
    return (generation, *request.key)


def _holds_of(contender: Contender) -> list[RemoteHold]:
    """This process's holds of the lock."""
    holds = _held.get(_name(contender.env.generation, contender.request), ())
    return [held for held in list(holds) if not held.released and not held.lost]


def own_refs(contender: Contender) -> list[HoldRef]:
    """The shares of this process's handles in the lock."""
    return [ref for held in _holds_of(contender) for ref in list(held.refs)]


def _require_no_deadlock(contender: Contender) -> None:
    """Raise WouldDeadlock if the caller itself holds the lock, or every slot (KN2)."""
    if contender.deadline < math.inf:
        return
    context = contender.context
    own = [
        held for held in _holds_of(contender) if any(ref.context[: len(context)] == context for ref in list(held.refs))
    ]
    if len(own) >= contender.slots:
        raise deadlock(contender.request, contender.slots, [ref for held in own for ref in list(held.refs)])


def _join(contender: Contender) -> HoldRef | None:
    """A share in a hold that this owner has already; None if there is none."""
    for held in _holds_to_join(contender):
        ref = held.join(contender.request, contender.context)
        if ref is not None:
            contender.attempt_events.joined()
            return ref
    return None


def _holds_to_join(contender: Contender) -> list[RemoteHold]:
    """This process's holds of the lock for the same owner."""
    owner = contender.request.owner
    return [] if owner is None else [held for held in _holds_of(contender) if held.request.owner == owner]


def contend_as_owner(contender: Contender) -> Steps[Result]:
    """A share in its own hold, or in that of another caller of the same owner; or the refusal (KN1)."""
    owner = contender.request.owner
    if owner is None:
        _require_no_deadlock(contender)
        return (yield from contender.acquire())
    place = _InLine(contender, owner)
    try:
        line = place.enter()
        while True:
            ref = _join(contender)
            if ref is not None:
                return ref
            _require_no_deadlock(contender)
            if line[0] is place:
                return (yield from contender.acquire())
            if contender.is_over():
                return (yield from contender.look_and_refuse())
            if contender.announces:
                yield from contender.look_for_people()
            contender.waiting()
            yield Wait((), contender.bounded(contender.env.monotonic() + RECHECK), place.signal)
            place.signal.is_set = False
    finally:
        place.close()


class _InLine:
    """One caller's place in the line of its owner's callers (KN1)."""

    def __init__(self, contender: Contender, owner: object) -> None:
        self.env = contender.env
        self.signal = Signal()
        self.closed = False
        self._generation = contender.env.generation
        self._key = (*_name(self._generation, contender.request), owner)

    def enter(self) -> list[_InLine]:
        """Enter the line at its end, and return it."""
        undo_with_operation(self.env, self)  # first: so it is closed whatever comes in between
        with forking:  # a mutex of our own would stay locked in a child that is forked meanwhile
            line = _waiting.setdefault(self._key, [])
            line.append(self)
        return line

    def close(self) -> None:
        """Leave the line, and wake the others. If it is interrupted and called again, it wakes them again (J3)."""
        if self._generation != self.env.generation:
            return
        with forking:
            line = _waiting.get(self._key, [])
            if self in line:
                line.remove(self)
            others = line.copy()
            if not line:
                _waiting.pop(self._key, None)
        for other in others:
            other.signal.set()
        self.closed = True
