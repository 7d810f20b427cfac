"""Those in this process who want the same lock on a server: holds that an owner shares, and waits that never end.

KN1  Of one owner's callers only one contends. The others wait for what it gets, and share that; if it gives up, the
     next of them contends. In the server's queue they would stand behind themselves.
     In line, they are told of and announced as all who wait.
KN2  A caller that holds the lock itself, or every slot, and would wait for ever, is told so at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from .._core.environment import Signal, Wait
from .._core.refusal import deadlock
from .._os import forking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from .._core.hold import Share
    from .._core.refusal import Refusal
    from ..model import Holder, Status
    from .remote import Attempt, RemoteHeld, RemoteRequest

    Result = Share | Refusal

_held: dict[tuple[object, ...], list[RemoteHeld]] = {}
"""By process and lock. What is in it of a parent is never looked at."""
_waiting: dict[tuple[object, ...], list[Signal]] = {}
"""Of each owner that contends, by process, lock and owner: the signals of its callers, the first of them contends."""


class Contender(ABC):
    """One caller who wants a lock on a server, as its engine makes it."""

    attempt: Attempt

    @abstractmethod
    def acquire(self) -> Generator[Wait, None, Result]:
        """Contend, until there is a hold or the time is up."""

    @abstractmethod
    def look_kindly(self) -> Generator[Wait, None, None]:
        """See who holds it, for people; if nobody answers soon, what was seen before is told."""

    @abstractmethod
    def last(self) -> tuple[Status, ...]:
        """What was seen last."""

    def who(self) -> Holder | None:
        """The holder that was seen last."""
        return next((status.holder for status in self.last() if status.locked), None)

    def refuse(self) -> Refusal:
        """The time is up."""
        self.attempt.story.gave_up(self.who)
        return self.attempt.refusal(self.last)

    def refuse_kindly(self) -> Generator[Wait, None, Refusal]:
        yield from self.look_kindly()
        return self.refuse()


def enrol(held: RemoteHeld) -> None:
    """This process has it from now on."""
    with forking:
        _held.setdefault(_name(held.env.generation, held.request), []).append(held)


def forget(held: RemoteHeld) -> None:
    """Idempotent."""
    name = _name(held.generation, held.request)
    with forking:
        left = [one for one in _held.pop(name, ()) if one is not held]
        if left:
            _held[name] = left


def _name(generation: int, request: RemoteRequest) -> tuple[object, ...]:
    return (generation, *request.key)


def _holds_of(attempt: Attempt) -> list[RemoteHeld]:
    """What this process holds of it."""
    holds = _held.get(_name(attempt.env.generation, attempt.request), ())
    return [held for held in list(holds) if not held.released and not held.lost]


def own_shares(attempt: Attempt) -> list[Share]:
    """What the handles of this process have in it."""
    return [share for held in _holds_of(attempt) for share in list(held.shares)]


def require_no_deadlock(attempt: Attempt, slots: int = 1) -> None:
    """WouldDeadlock where the caller itself is in the way everywhere (KN2)."""
    if attempt.deadline < math.inf:
        return
    context = attempt.context
    own = [
        held
        for held in _holds_of(attempt)
        if any(share.context[: len(context)] == context for share in list(held.shares))
    ]
    if len(own) >= slots:
        raise deadlock(attempt.request, slots, [share for held in own for share in list(held.shares)])


def _join(attempt: Attempt) -> Share | None:
    """A share in what this owner holds already."""
    for held in _holds_of(attempt):
        if held.request.owner == attempt.request.owner:
            share = held.join(attempt.context)
            if share is not None:
                attempt.story.joined()
                return share
    return None


def together(contender: Contender) -> Generator[Wait, None, Result]:
    """What it gets; or a share in what another caller of the same owner has got meanwhile (KN1)."""
    attempt = contender.attempt
    owner = attempt.request.owner
    if owner is None:
        return (yield from contender.acquire())
    key = (*_name(attempt.env.generation, attempt.request), owner)
    signal = Signal()
    with forking:  # a mutex of our own would be taken for ever in a child that is forked meanwhile
        line = _waiting.setdefault(key, [])
        line.append(signal)
    try:
        while True:
            share = _join(attempt)
            if share is not None:
                return share
            if line[0] is signal:
                return (yield from contender.acquire())
            if attempt.is_over():
                return (yield from contender.refuse_kindly())
            if attempt.announces:
                yield from contender.look_kindly()
            attempt.waiting(contender.last, contender.who)
            yield Wait((), attempt.bounded(attempt.deadline), signal)
            signal.is_set = False
    finally:
        with forking:
            line.remove(signal)
            others = line.copy()
            if not line:
                _waiting.pop(key, None)
        for other in others:
            other.set()
