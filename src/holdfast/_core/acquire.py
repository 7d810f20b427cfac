"""Acquiring: the one algorithm, for every kind of caller.

A generator that yields what to wait for (`Wait`) and is resumed when that has happened, or earlier. It never blocks and
does not know who drives it. Cleaning up never yields, so cancelling is closing the generator.

    publish ──▶ hold
       │ the path exists
       ▼
    look ──▶ nothing there ──▶ publish
       ├──▶ may be taken over ──▶ take over ──▶ hold
       └──▶ held ──▶ arm a watch, look once more, wait ──▶ look

A1  Whatever wakes us, we look again; no event is believed. So early, late, doubled and foreign events are harmless.
A5  A refusal is only given after a complete look; `timeout=0` is one round, with a takeover if that is due.
"""

from __future__ import annotations

from ..model import Status
from .contest import Contest, Refusal
from .environment import Environment, Wait
from .hold import Share
from .policy import describe
from .publish import publish
from .request import Request
from .takeover import complete, take_over

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

_RETRIES = 5
_MISS_PAUSE = 0.001


def acquire(
    env: Environment, request: Request, timeout: float | None, context: tuple[object, ...]
) -> Generator[Wait, None, Share | Refusal]:
    """A share in the lock, or the reason why not. `context` names the caller that a wait would block (sync.caller)."""
    generation = env.generation
    share: Share | None = None
    held = yield from publish(env, request)
    if held is None:
        contest = Contest(env, request, timeout, context)
        try:
            try:
                share = yield from _contend(env, request, contest)
            finally:
                contest.close()
        except BaseException:
            if share is not None:
                give_back(share)
            raise
        if share is None:
            return contest.refusal()
    else:
        share = held.share(context)
    if generation != env.generation:
        # Forked in the midst of it, by a signal handler: what was acquired is the parent's.
        env.holds.clear()
        raise RuntimeError(f"the process was forked while it acquired {request.path}; acquire again in the child")
    return share


def _contend(env: Environment, request: Request, contest: Contest) -> Generator[Wait, None, Share | None]:
    """The lock, or None when the time is up."""
    retries, misses = _RETRIES, 0
    while True:
        if not contest.look():
            held = yield from publish(env, request)
            if held is not None:
                return held.share(contest.context)
            misses += 1  # taken in between, by somebody whom the next look will see; or a cache is behind (NFS)
            if misses % _RETRIES == 0:
                if contest.is_over():
                    return None
                yield Wait((), env.monotonic() + _MISS_PAUSE)
            continue
        share = contest.join()
        if share is not None:
            return share
        held = None
        if contest.verdict.reclaim and contest.seen.unfinished:
            held = yield from complete(env, request)
        elif contest.verdict.reclaim:
            held = yield from take_over(env, request, contest.seen, contest.verdict)
        if held is not None:
            return held.share(contest.context)
        contest.rejudge()
        if contest.verdict.reclaim and retries:
            retries -= 1
            contest.hurry()  # a prober or a rival had the guard for an instant
        elif contest.is_over():
            return None
        contest.require_no_deadlock()
        yield from contest.pause()


def give_back(share: Share) -> None:
    """Undo what the caller will not hear of."""
    held = share.held
    with held.mutex:
        if share in held.shares:
            held.shares.remove(share)
        if not held.shares:
            held.give_back()


def give_back_undelivered(env: Environment, context: tuple[object, ...]) -> None:
    """Undo what this thread or task has acquired and, by an interruption, never got."""
    for held in list(env.holds.values()):
        for share in list(held.shares):
            if share.context == context and not share.delivered:
                give_back(share)


def wait_until_free(
    env: Environment, request: Request, timeout: float | None, context: tuple[object, ...]
) -> Generator[Wait, None, Refusal | None]:
    """None as soon as a contender would get the lock; nothing is acquired or changed."""
    contest = Contest(env, request, timeout, context)
    try:
        while contest.look():
            if contest.verdict.reclaim:
                return None
            if contest.is_over():
                return contest.refusal()
            contest.require_no_deadlock()
            yield from contest.pause()
        return None
    finally:
        contest.close()


def look(env: Environment, request: Request) -> Status:
    """One look at the lock."""
    contest = Contest(env, request, 0, ())
    try:
        if not contest.look(strict=False):
            return describe(env, request, None, None, None)
        return describe(env, request, contest.seen, contest.assessed, contest.verdict)
    finally:
        contest.close()
