"""Those in this process who want the same lock on a server: holds that an owner shares, and waits that never end.

KN1  Of one owner's callers only one contends. The others wait for what it gets, and share that; if it gives up, the
     next of them contends. In the server's queue they would stand behind themselves.
KN2  A caller that holds the lock itself, or every slot, and would wait for ever, is told so at once.
"""

from __future__ import annotations

from .._core.environment import Signal, Wait
from .._core.refusal import deadlock
from .._os import forking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from .._core.environment import Environment
    from .._core.hold import Held, Share
    from .._core.refusal import Refusal
    from .._core.request import Request
    from .remote import Attempt

    Result = Share | Refusal

_waiting: dict[tuple[object, ...], list[Signal]] = {}
"""Of each owner that contends, by process, lock and owner: the signals of its callers, the first of them contends."""


def holds_of(env: Environment, target: str) -> list[Held]:
    """What this process holds of it."""
    return [
        held
        for held in list(env.holds.values())
        if held.waits and held.request.target == target and not held.released and not held.lost
    ]


def require_no_deadlock(
    env: Environment, requests: Sequence[Request], timeout: float | None, context: tuple[object, ...]
) -> None:
    """WouldDeadlock where the caller itself is in the way everywhere (KN2)."""
    if timeout is not None:
        return
    target = requests[0].target
    own = [
        held
        for held in holds_of(env, target)
        if any(share.context[: len(context)] == context for share in list(held.shares))
    ]
    if len(own) >= len(requests):
        raise deadlock(requests[0], len(requests))


def join(attempt: Attempt) -> Share | None:
    """A share in what this owner holds already."""
    request = attempt.request
    for held in holds_of(attempt.env, request.target) if request.owner is not None else ():
        if held.request.owner == request.owner:
            share = held.join(attempt.context)
            if share is not None:
                attempt.story.joined()
                return share
    return None


def together(
    attempt: Attempt,
    contend: Callable[[], Generator[Wait, None, Result]],
    refuse: Callable[[], Generator[Wait, None, Refusal]],
) -> Generator[Wait, None, Result]:
    """What `contend` gets; or a share in what another caller of the same owner has got meanwhile (KN1)."""
    env, request = attempt.env, attempt.request
    if request.owner is None:
        return (yield from contend())
    key = (env.generation, request.target, request.owner)
    signal = Signal()
    with forking:  # a mutex of our own would be taken for ever in a child that is forked meanwhile
        line = _waiting.setdefault(key, [])
        line.append(signal)
    try:
        while True:
            share = join(attempt)
            if share is not None:
                return share
            if line[0] is signal:
                return (yield from contend())
            if attempt.is_over():
                return (yield from refuse())
            attempt.require_same_process()
            yield Wait((), attempt.deadline, signal)
            signal.is_set = False
    finally:
        with forking:
            line.remove(signal)
            others = line.copy()
            if not line:
                _waiting.pop(key, None)
        for other in others:
            other.set()
