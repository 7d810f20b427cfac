"""One contender's wait for a lock that is not free, or for any of several: how long it lasts, and what it waits for.

    first in the queue, or there is none  ──▶ waits for a change of the lock files (watched.py)
    behind somebody                       ──▶ waits for that one to go (queue.py)

A3  A lost event costs latency, never a hang: every wait ends at a re-check deadline.
A7  What keeps waking us although nothing changes must not keep us busy: after some such wake-ups the wait polls once.

Acquiring: the one algorithm, for every kind of caller.

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

from ... import events
from ..._core.attempt import Story
from ..._core.hold import Share, give_back
from ..._core.messages import Refusal, stale
from ..._core.wait import Deadline as Limits
from ..._core.wait import Wait
from ..._platform.interface import Environment
from ...errors import set_error_path as located
from ...model import Evidence, Liveness, Status
from .fencing import CounterBusy, fenced
from .flock import KernelSight, take
from .hold import FileHeld
from .interop import about_to_rename
from .publish import publish
from .queue import NAP, PATIENCE, Place, is_contended, waiters
from .request import FileRequest
from .steps import UNWRITABLE
from .watched import FIRST_POLL, Sight

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from ..._core.wait import Signal
    from ...model import Holder

_MAX_SPINS = 50
"""Wake-ups in a row, each within a millisecond, after which a wait polls once: what wakes it does not go away (A7)."""


class Contest:
    """One contender's wait. Owns the sights and the place in the queue; `close` gives them up."""

    def __init__(
        self,
        env: Environment,
        requests: Sequence[FileRequest],
        timeout: float | None,
        context: tuple[object, ...],
        *,
        generation: int | None = None,
        queued: bool = True,
        story: Story | None = None,
    ) -> None:
        self._env = env
        self._context = context
        self._request = requests[0]
        self._limits = Limits(env, self._request, timeout, generation)
        self._story = story
        self.joined = False
        """Whether the share is one of a hold that was there already."""
        self._again = False
        self._spins = 0
        self._changed: list[Sight] = []
        """Those of several that an event was about, to be looked at first."""
        # At once: those ahead may be idle (queue.py, Q6), or know of fewer slots.
        self._recheck_at = 0.0
        """When to look at the lock again although somebody is ahead."""
        self._idle: object = None
        """Who is first in the queue and has let the lock lie there free, and for how long that is no matter."""
        self._idle_until = 0.0
        self._inside = False
        """Whether we passed those ahead because we are inside already, as a reader."""
        self.sights = [_sight(env, request) for request in requests]
        self._place = Place(env, self._request, self._limits.started) if queued and self._request.fair else None
        if env.operations.entered:
            env.operations.leave_dropped()
        operation = env.operations.current()
        if operation is not None:
            operation.contest = self

    def close(self) -> None:
        if self._limits.is_inherited:
            return  # forked meanwhile: the numbers of our descriptors may be other files' by now
        for sight in self.sights:
            sight.rest()
        if self._place is not None:
            self._place.leave()

    # -- looking -------------------------------------------------------------------------------------------------------

    def look(self, *, strict: bool = True) -> bool:
        """Look at all lock files; whether one of them could be had."""
        self._limits.require_same_process()
        changed, self._changed = self._changed, []
        for sight in changed:
            sight.look()
            if sight.could_be_had:
                return True  # what there is to know of the others can wait
        for sight in self.sights:
            sight.look(strict=strict)
        return any(sight.could_be_had for sight in self.sights)

    def is_free(self) -> bool:
        """Whether one of them could be had, now."""
        return any(sight.is_free() for sight in self.sights)

    def join(self) -> Share | None:
        """Our own process holds one of them, for the same owner: enter again."""
        if self._request.owner is not None:
            for sight in self.sights:
                share = sight.join(self._context)
                if share is not None:
                    self.joined = True
                    return share
        return None

    def join_at(self, sight: Sight) -> Share | None:
        """The same, where somebody was faster than we: it may have been of the same owner, who needs no other slot."""
        if self._request.owner is None or len(self.sights) == 1:
            return None
        missed = sight.missed
        sight.look()
        sight.missed = missed
        share = sight.join(self._context)
        self.joined = share is not None
        return share

    def is_behind(self) -> bool:
        """Whether it is somebody else's turn."""
        self._limits.require_same_process()
        return self._place is not None and not self._place.is_first()

    def needs_look(self) -> bool:
        """Whether one who is behind has a reason to look at the lock: it has not done so for long, its time is up, or
        this process holds something, which may be this very lock."""
        return self._env.monotonic() >= self._recheck_at or bool(self._env.holds) or self._limits.is_due()

    def may_pass(self, *, free: bool) -> bool:
        """Whether those ahead have let the lock lie there for too long (queue.py, Q6)."""
        assert self._place is not None
        if any(sight.is_inside(self._context) for sight in self.sights):
            self._inside = True
            return True
        ahead = self._place.first_ahead if free and any(sight.lies_free() for sight in self.sights) else None
        if ahead is None or ahead != self._idle:
            self._idle, self._idle_until = ahead, self._env.monotonic() + PATIENCE
        elif self._env.monotonic() >= self._idle_until:
            self._place.overtake()
            return True
        # At the end of our time we try in any case: nobody is refused what is free. A reader would starve the writers.
        return self.is_over() and not self._request.shared

    def win(self, held: FileHeld) -> Share:
        """We have it. Our place is kept until the release, which lets the next one try; or left, if we were one of
        several that may be inside, or were inside already."""
        try:
            share = held.share(self._context)
        except BaseException:
            held.give_back()
            raise
        if self._place is not None:
            if len(self.sights) > 1 or self._inside:
                self._place.enter()
            else:
                held.place = self._place
                self._place.hold()
            self._place = None  # not before: whoever is interrupted leaves it
        return share

    def is_over(self) -> bool:
        return self._limits.is_over()

    def has_failed(self) -> bool:
        """After a complete look that was in vain: whether it was the last one."""
        return self._limits.has_failed()

    def refusal(self) -> Refusal:
        waited = self._env.monotonic() - self._limits.started
        story = self._story or Story(self._env, self._request, ())
        own = [share for sight in self.sights for share in sight.own_shares()] if self._env.holds else ()
        return Refusal(self._request.target, waited, self._statuses, story, own)

    def _statuses(self) -> tuple[Status, ...]:
        return tuple([_invisible(self._env, s.request) if s.missed else s.describe() for s in self.sights])

    def who(self) -> Holder | None:
        """Who is in the way, as far as the lock file tells; the kernel's tables take milliseconds."""
        if self._request.protocol.persistent:
            return None
        if not any(sight.there for sight in self.sights):
            self.look(strict=False)  # who is behind others has not looked yet
        return next((sight.describe().holder for sight in self.sights if sight.there), None)

    def require_no_deadlock(self) -> None:
        """WouldDeadlock where the caller itself is in the way everywhere."""
        if self._limits.is_endless and all(sight.is_held_by(self._context) for sight in self.sights):
            raise self.sights[0].deadlock(len(self.sights))

    @property
    def is_closed(self) -> bool:
        """Whether waiting is no use: all are stale, only the caller may say that they can go (policy.py, V5)."""
        return all(sight.there and sight.verdict.closed for sight in self.sights)

    @property
    def asked(self) -> Signal | None:
        """Set once the caller knows whether one of them is stale (policy.py, V7); None if that is not waited for."""
        if any(sight.could_be_had for sight in self.sights):
            return None
        return next((s.verdict.asked for s in self.sights if s.there and s.verdict.asked is not None), None)

    def hurry(self) -> None:
        """Look again soon: what was in the way of a takeover is there for an instant only."""
        for sight in self.sights:
            if sight.there and sight.verdict.reclaim:
                sight.hurry()

    # -- waiting -------------------------------------------------------------------------------------------------------

    def pause(self) -> Generator[Wait, None, None]:
        """Wait until something may have changed; or return, if it may have done so since the look.

        That is at once only once in a row, and then after a short wait: a caller who waits must get to wait (A7).
        """
        self._limits.require_same_process()
        now = self._env.monotonic()
        self._notify()
        place = self._place
        if place is not None:
            place.queue_up(now)
            if place.behind:
                yield from self._pause_behind(place, now)
                return
        # Every one of them: what is not armed makes no event.
        changed = [sight for sight in self.sights if sight.prepare()]
        if changed:
            if not self._again:
                self._again = True
                return
            for sight in changed:
                sight.hurry()
        self._again = False
        yield from self._pause_first(now)

    def _pause_behind(self, place: Place, now: float) -> Generator[Wait, None, None]:
        for sight in self.sights:
            sight.rest()
        # Those ahead may have become fewer, so it may be due earlier than was thought.
        again = now + place.recheck(now)
        self._recheck_at = again if now >= self._recheck_at else min(self._recheck_at, again)
        if self._idle is not None:
            self._recheck_at = min(self._recheck_at, self._idle_until)
        while True:
            fds, until, signal = place.plan(now)
            until = self._bounded(min(until, self._recheck_at), now)
            self._limits.require_same_process()
            yield Wait(fds, until, signal)
            self._limits.require_same_process()
            over = self._env.monotonic() >= until
            if place.woke(over=over) or over:
                return

    def _pause_first(self, now: float) -> Generator[Wait, None, None]:
        env = self._env
        if self._place is not None and len(self.sights) == 1 and self._place.takes_turn():
            yield Wait((), self._bounded(now + NAP, now))  # Q5: until then each release would wake us for nothing
            self._limits.require_same_process()
            return
        spun = self._spins >= _MAX_SPINS
        while True:
            plans = [sight.plan(now, poll=spun) for sight in self.sights]
            fds = tuple(fd for plan in plans for fd in plan[0])
            until = self._bounded(min(plan[1] for plan in plans), now)
            if self._place is not None:
                until = min(until, self._place.due)
            self._limits.require_same_process()
            yield Wait(fds, until)
            self._limits.require_same_process()
            after = env.monotonic()
            over = after >= until or not fds
            if self._woke(after - now, over=over) or over:
                break
        self._spins = self._spins + 1 if fds and after - now < FIRST_POLL else 0

    def _woke(self, waited: float, *, over: bool) -> bool:
        """Whether the wait was about one of the lock files; then none of them waits any more."""
        sights = self.sights
        woken = [sight for sight in sights if sight.woke(waited, over=over)]
        if len(sights) > 1 and not over:
            # One of them may have read what others were told after they had been asked.
            woken = woken or [sight for sight in sights if sight.woke(0.0, over=False)]
            if woken:
                self._changed = woken
                for sight in sights:
                    sight.woke(0.0, over=True)
        return bool(woken)

    def _bounded(self, until: float, now: float) -> float:
        """The earliest of: the pause, the caller's deadline, the notice, the moment when a record's age decides."""
        until = self._limits.bounded(until)
        for sight in self.sights:
            if sight.there and sight.verdict.stale_at is not None:
                until = min(until, max(now + FIRST_POLL, now + sight.verdict.stale_at - self._env.time()))
        return until

    def announce_miss(self) -> None:
        """Tell of a long wait without another look, which would find nothing: what is in the way has no lock file."""
        self._limits.announce(self.refusal)

    def _notify(self) -> None:
        if self._story is not None:
            self._story.waiting(self.who)
        if self._limits.announces:
            self.look()
            self._limits.announce(self.refusal)


def _sight(env: Environment, request: FileRequest) -> Sight:
    return KernelSight(env, request) if request.protocol.persistent else Sight(env, request)


def _invisible(env: Environment, request: FileRequest) -> Status:
    """What kept us out left nothing at the path that could be described."""
    rival = about_to_rename(env, request)
    if rival is None:
        text = "the path is neither free nor there; others are at it, or a cache of this filesystem is behind"
    else:
        file, pid = rival
        text = f"no lock file is there, but process {pid} may be about to rename {file} to it, as semats does; "
        text += "once that file is gone, or a minute old, it is in nobody's way"
    evidence = Evidence("race", text)
    return Status(request.path, request.protocol.name, True, False, Liveness.UNKNOWN, evidence)


_RETRIES = 5
_MISS_PAUSE = 0.001
_SLOW_MISS = 0.05
"""Seconds: one that took so long was no race that is lost by now, but a rival that stays (interop.py, Y1)."""


def acquire(
    env: Environment, requests: Sequence[FileRequest], timeout: float | None, context: tuple[object, ...]
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


def _forked(request: FileRequest) -> RuntimeError:
    return RuntimeError(f"the process was forked while it acquired {request.target}; acquire again in the child")


def _acquire(
    env: Environment,
    requests: Sequence[FileRequest],
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
    env: Environment, requests: Sequence[FileRequest], timeout: float | None, context: tuple[object, ...], ends: float
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


def _is_taken(env: Environment, request: FileRequest) -> bool | None:
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
    env: Environment, requests: Sequence[FileRequest], timeout: float | None, context: tuple[object, ...]
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


def look(env: Environment, request: FileRequest) -> Status:
    """One look at the lock, and at those who wait for it."""
    return look_at_all(env, (request,))[0]


def look_at_all(env: Environment, requests: Sequence[FileRequest]) -> tuple[Status, ...]:
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
