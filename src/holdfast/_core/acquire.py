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
A8  A child that a signal handler forks in the midst of an acquisition neither waits nor holds: its copy of the
    acquisition ends with an error, and gives back what it may have acquired by itself.
A9  A caller's function may need an event loop for its answer. That is waited for only between two steps, while nothing
    is held or announced, and whatever the deadline; then we look again, as the lock may have changed meanwhile.
"""

from __future__ import annotations

import math

from .. import events
from .contest import Contest
from .environment import Environment, Wait
from .fencing import CounterBusy, fenced
from .files import UNWRITABLE, located
from .hold import Share, give_back
from .kernel import take
from .publish import publish
from .queue import is_contended
from .refusal import Refusal
from .report import stale
from .request import Request
from .story import Story
from .waiters import waiters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from ..model import Status
    from .environment import Signal

_RETRIES = 5
_MISS_PAUSE = 0.001
_SLOW_MISS = 0.05
"""Seconds: one that took so long was no race that is lost by now, but a rival that stays (rivals.py, Y1)."""


def acquire(
    env: Environment, requests: Sequence[Request], timeout: float | None, context: tuple[object, ...]
) -> Generator[Wait, None, Share | Refusal]:
    """A share in the first of these locks that can be had, or the reason why there is none.

    `context` names the caller that a wait would block (sync.caller).
    """
    generation = env.generation
    try:
        result = yield from _acquire(env, requests, timeout, context, generation)
    except CounterBusy as busy:
        return busy.refusal()
    except OSError as error:
        if generation != env.generation:
            raise _forked(requests[0]) from None  # of a descriptor that the child has closed
        located(error, requests[0].target)
        raise
    if isinstance(result, Refusal):
        return result
    if generation != env.generation:
        # A8. What was acquired before the fork is the parent's, and inert here; what was acquired since is nobody's.
        give_back(result)
        env.holds.clear()
        raise _forked(requests[0])
    return result


def _forked(request: Request) -> RuntimeError:
    return RuntimeError(f"the process was forked while it acquired {request.target}; acquire again in the child")


def _acquire(
    env: Environment,
    requests: Sequence[Request],
    timeout: float | None,
    context: tuple[object, ...],
    generation: int,
) -> Generator[Wait, None, Share | Refusal]:
    story, ends = None, math.inf
    if timeout is not None and requests[0].fencing:
        ends = env.monotonic() + timeout
    if events.listeners or requests[0].on_event is not None or events.is_logged(events.DEBUG):
        story = Story(env, requests[0], context)
    try:
        share = yield from _enter(env, requests, timeout, context, ends)
        if share is None:
            story = story or Story(env, requests[0], context)
            contest = Contest(env, requests, timeout, context, generation=generation, story=story)
            try:
                try:
                    share = yield from _contend(env, contest, ends)
                finally:
                    contest.close()
            except BaseException:
                contest.close()  # it may be what was interrupted
                if share is not None:
                    give_back(share)
                raise
            if share is None:
                story.gave_up(contest.who)
                return contest.refusal()
            if contest.joined:
                story.joined()
                story = None
    except BaseException:
        if story is not None:
            story.gave_up()
        raise
    if story is not None:
        share.held.story = story  # whoever delivers the handle tells that the lock is acquired
    return share


def _enter(
    env: Environment, requests: Sequence[Request], timeout: float | None, context: tuple[object, ...], ends: float
) -> Generator[Wait, None, Share | None]:
    """The short way in, if nobody holds the lock and nobody has waited for it any longer."""
    first = requests[0]
    if len(requests) > 1 and first.owner is not None:
        return None  # the owner may be inside one of them already
    if is_contended(env, first, timeout):
        return None
    for request in requests:
        if request.protocol.persistent:
            held = take(env, request)
        else:
            taken = len(requests) > 1 and _is_taken(env, request)
            if taken is None:
                return None
            try:
                if request.prepare is not None and not taken:
                    yield from _prepared(env, request.prepare)
                held = None if taken else (yield from publish(env, request))
            except OSError as error:
                # Who may not write there is told who holds it, if somebody does, as with one that exists already.
                if error.errno in UNWRITABLE and env.exists(request.path):
                    return None
                raise
        if held is not None and request.fencing:
            held = yield from fenced(env, held, ends)
            if held is None:
                return None
        if held is not None:
            try:
                return held.share(context)
            except BaseException:  # an interruption: nobody else knows of it yet
                held.give_back()
                raise
    return None


def _prepared(env: Environment, prepare: Callable[[], Signal | None]) -> Generator[Wait, None, None]:
    known = prepare()
    if known is not None:
        yield from _answered(env, known)


def _answered(env: Environment, known: Signal) -> Generator[Wait, None, None]:
    """A9."""
    generation = env.generation
    while not known.is_set and generation == env.generation:
        yield Wait((), math.inf, known)


def _is_taken(env: Environment, request: Request) -> bool | None:
    """Whether somebody alive has it; None where only a full look can tell (a dead holder's is to be taken over)."""
    if not env.exists(request.path):
        return False
    try:
        fd = env.open_existing(request.path, write=False)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        return env.guarded(fd) or None
    finally:
        env.close(fd)


def _contend(env: Environment, contest: Contest, ends: float) -> Generator[Wait, None, Share | None]:
    """The lock, or None when the time is up."""
    retries, misses, answered = _RETRIES, 0, False
    while True:
        behind = contest.is_behind()
        if behind and not contest.needs_look():
            yield from contest.pause()
            continue
        free = contest.look()
        share = contest.join()
        if share is not None:
            return share
        asked = contest.asked
        if asked is not None and not (answered and contest.is_over()):  # or there were no end where it changes
            yield from _answered(env, asked)
            answered = True
            continue
        answered = False
        if contest.is_closed:
            raise stale(contest.refusal())
        if not behind or contest.may_pass(free=free):
            missed, began = False, env.monotonic()
            for sight in contest.sights:
                if sight.could_be_had:
                    if sight.request.prepare is not None:
                        yield from _prepared(env, sight.request.prepare)
                    held = yield from sight.attempt()
                    missed = missed or sight.missed
                    if held is not None and held.request.fencing:
                        held = yield from fenced(env, held, ends)
                        missed = missed or held is None
                    if held is not None:
                        try:
                            return contest.win(held)
                        except BaseException:
                            held.give_back()
                            raise
                    share = contest.join_at(sight)
                    if share is not None:
                        return share
            if missed:
                misses += 1  # taken in between, by somebody whom the next look will see; or a cache is behind (NFS)
                if misses % _RETRIES == 0 or env.monotonic() - began >= _SLOW_MISS:
                    if contest.is_over():
                        return None
                    contest.announce_miss()
                    yield Wait((), env.monotonic() + _MISS_PAUSE)
                continue
            if retries and any(sight.could_be_had for sight in contest.sights):
                retries -= 1
                contest.hurry()  # a prober or a rival had the guard for an instant
                contest.require_no_deadlock()
                yield from contest.pause()
                continue
        if contest.has_failed():
            return None
        contest.require_no_deadlock()
        yield from contest.pause()


def wait_until_free(
    env: Environment, requests: Sequence[Request], timeout: float | None, context: tuple[object, ...]
) -> Generator[Wait, None, Refusal | None]:
    """None as soon as a contender would get one of the locks; nothing is acquired or changed."""
    contest = Contest(env, requests, timeout, context, queued=False)
    try:
        while not (contest.look() and contest.is_free()):
            if contest.is_closed:
                raise stale(contest.refusal())
            if contest.is_over():
                return contest.refusal()
            contest.require_no_deadlock()
            yield from contest.pause()
        return None
    except OSError as error:
        located(error, requests[0].target)
        raise
    finally:
        contest.close()


def look(env: Environment, request: Request) -> Status:
    """One look at the lock, and at those who wait for it."""
    return look_at_all(env, (request,))[0]


def look_at_all(env: Environment, requests: Sequence[Request]) -> tuple[Status, ...]:
    """One look at each of the locks, and at those who wait: for any of them, so the first tells of them all."""
    contest = Contest(env, requests, 0, (), queued=False)
    try:
        contest.look(strict=False)
        first = contest.sights[0]
        statuses = [sight.describe() for sight in contest.sights]
        found = waiters(env, first.request, first.seen if first.there else None, statuses[0])
        return tuple([status.replaced(waiters=found) for status in statuses])
    except OSError as error:
        located(error, requests[0].target)
        raise
    finally:
        contest.close()
