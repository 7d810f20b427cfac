"""Acquisition of a lock that is held: the one algorithm, for every kind of caller.

A generator yields what to wait for (`Wait`) and is resumed when that has happened, or earlier. It never blocks and does
not know its driver. Clean-up never yields, so cancelling is closing the generator.

A free lock is acquired without it (uncontended.py). Otherwise an `AcquireAttempt` goes from state to state:

    QUEUED    a waiter is ahead: wait for it to go               ──▶ TRYING, when first, or when a look is due
    TRYING    look at the lock files; join, create or take over  ──▶ done, or QUEUED or WATCHING
    WATCHING  first, and the lock is held: wait for a change     ──▶ QUEUED, which the first waiter passes at once

A1  Whatever wakes us, we look again; no event is believed. So early, late, duplicate and foreign events are harmless.
A2  A lost event costs latency, never a hang: every wait ends at a re-check deadline.
A3  A refusal is only given after a complete look; `timeout=0` is one round, with a takeover if that is due.
A4  Wake-ups without a change must not keep us busy: after a number of them the wait polls once.
A5  A child that a signal handler forks during an acquisition neither waits nor holds: its copy of the acquisition gives
    back anything that the child itself acquired, and ends with an error.
A6  A caller's function may need an event loop for its answer. We wait for it only between two steps, while nothing is
    held or announced, regardless of the deadline; then we look again, as the lock may have changed.
"""

from __future__ import annotations

import math

from ..._core.attempt import AttemptEvents, CallersError, Refusal
from ..._core.messages import stale
from ..._core.wait import Deadline, Wait
from ..._platform.fork import forking
from ...errors import set_error_path
from ...events import has_any_listener
from ...liveness import Liveness
from ...model import Evidence, Status
from .fencing import fenced, fenced_for
from .flock import WatchedFlock
from .interop import about_to_rename
from .queue import FIRST_LOOK, QueueEntry, waiters
from .steps import answered, prepare
from .watched import FIRST_POLL, WatchedFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..._core.hold import HoldRef
    from ..._core.wait import Signal, Steps
    from ..._platform.interface import Environment
    from ...model import Holder
    from .hold import FileHold
    from .request import FileRequest

    State = Callable[[], Steps["State | None"]]

_MAX_SPINS = 50
"""Wake-ups in a row, each within a millisecond, after which a wait polls once (A4)."""
_MOST_IDLE = 10
"""The number of first waiters in a row, for each of which a look found the lock free (queue.py, Q6)."""
_RETRIES = 5
_MISS_PAUSE = 0.001
_SLOW_MISS = 0.05
"""Seconds: a miss that took this long was not a lost race, but a rival that stays (interop.py, Y1)."""


class AcquireAttempt:
    """One contender's attempt to acquire a lock that is not free, or the first free one of several.

    Owns the watched files and the place in the queue; `close` gives them up.
    """

    def __init__(
        self,
        env: Environment,
        requests: Sequence[FileRequest],
        timeout: float | None,
        context: tuple[object, ...],
        *,
        ends: float = math.inf,
        generation: int | None = None,
        queued: bool = True,
        attempt_events: AttemptEvents | None = None,
    ) -> None:
        self._env = env
        self._context = context
        self._request = requests[0]
        self._ends = ends
        self._deadline = Deadline(env, self._request, timeout, generation)
        self._attempt_events = attempt_events
        self.ref: HoldRef | None = None
        """The share that was acquired."""
        self.joined = False
        """Whether the share is in a hold that existed before."""
        self._behind = False
        """Whether a waiter was ahead at the last check."""
        self._was_behind = False
        """Whether we have waited behind another waiter since the last look or try."""
        self._has_looked = False
        """Whether we looked in vain at the lock although a waiter is ahead: then we wait before the next look."""
        self._answered = False
        """Whether the caller has just been asked about a lock that may be stale (A6)."""
        self._retries = _RETRIES
        self._misses = 0
        self._again = False
        self._spins = 0
        self._changed: list[WatchedFile] = []
        """The files that had an event, to be looked at first."""
        self._recheck_at = 0.0
        """The time to look at the lock although a waiter is ahead: the waiters ahead may be idle (queue.py, Q6), or use
        fewer slots than we do. The first time after FIRST_LOOK; if a lock file is missing, see `_begin_looking`."""
        self._idle: object = None
        """The first waiter, if it leaves a free lock alone; tolerated until `_idle_until`."""
        self._idle_until = 0.0
        self._asks = False
        """Whether the waiters behind it are still to be told of the free lock, when half of its time is over."""
        self._spared = False
        """Whether a first waiter was given more time, because it had had the lock meanwhile."""
        self._idle_firsts = 0
        """The number of first waiters in a row that left it alone: a forger of tickets could go on forever."""
        self._inside = False
        """Whether we passed the waiters ahead because we are already inside, as a reader."""
        self.files = [_watched(env, request) for request in requests]
        self._entry = None
        if queued and self._request.fair:
            self._entry = _place(env, self._request, self._deadline.started, waits=timeout != 0)
        if env.operations.entered:
            env.operations.leave_dropped()
        operation = env.operations.current()
        if operation is not None:
            operation.attempt = self

    def close(self) -> None:
        if self._deadline.is_inherited:
            return  # forked meanwhile: our descriptor numbers may belong to other files now
        for file in self.files:
            file.close()
        if self._entry is not None:
            self._entry.leave()

    # -- the states ----------------------------------------------------------------------------------------------------

    def run(self) -> Steps[HoldRef | None]:
        """The share that was acquired, or None when the time is up."""
        state: State | None = self.queued
        while state is not None:
            state = yield from state()
        return self.ref

    def queued(self) -> Steps[State | None]:
        """QUEUED: wait while a waiter is ahead."""
        while self._has_looked or (self._is_behind() and not self._look_is_due()):
            self._has_looked = False
            yield from self._wait_behind()
        return self.trying

    def trying(self) -> Steps[State | None]:
        """TRYING: it is our turn, or time for a look."""
        if self._is_handed_over():
            return (yield from self._try())
        free = self.look()
        if (yield from self._join()):
            return None
        asked = self._pending_answer()
        if asked is not None and not (self._answered and self._deadline.is_over()):  # or it would never end
            yield from answered(self._env, asked)
            self._answered = True
            return self.queued
        self._answered = False
        if self.is_left_to_caller:
            raise stale(self.refusal())
        if not self._behind or self._may_pass(free=free):
            return (yield from self._try())
        if not self._deadline.has_failed():
            return self._waiting()
        # The time may have run out since: a free lock is refused to no one but readers.
        return None if self._request.shared else (yield from self._try())

    def _try(self) -> Steps[State | None]:
        began = self._env.monotonic()
        missed = yield from self._try_each()
        if self.ref is not None:
            return None
        if missed:  # taken in between, by a process that the next look will see; or a cache is behind (NFS)
            return (yield from self._after_miss(began))
        if self._retries and any(file.could_be_had for file in self.files):
            self._retries -= 1
            for file in self.files:  # a prober or a rival had the guard for an instant
                if file.there and file.verdict.reclaim:
                    file.hurry()
            return self._waiting()
        return None if self._deadline.has_failed() else self._waiting()

    def watching(self) -> Steps[State | None]:
        """WATCHING: wait for a change, as we are first, or there is no queue.

        A possible change since the look ends the wait at once, but not twice in a row: then only after a short wait
        (A4).
        """
        now = self._before_wait()
        # A list, not `any`: a file that is not armed makes no event.
        changed = [file for file in self.files if file.prepare()]
        if changed:
            if not self._again:
                self._again = True
                return self.queued
            for file in changed:
                file.hurry()
        self._again = False
        yield from self._wait_first(now)
        return self.queued

    def _waiting(self) -> State:
        self.require_no_deadlock()
        self._has_looked = self._behind
        return self.queued if self._behind else self.watching

    # -- QUEUED --------------------------------------------------------------------------------------------------------

    def _is_behind(self) -> bool:
        self._deadline.require_same_process()
        self._behind = self._entry is not None and not self._entry.is_first()
        return self._behind

    def _look_is_due(self) -> bool:
        """Whether to look at the lock although a waiter is ahead: the last look was long ago, the time is up, or this
        process holds something, which may be this lock."""
        assert self._entry is not None
        now = self._env.monotonic()
        if self._entry.has_reason_to_look():
            return True
        if self._recheck_at == 0.0:
            self._begin_looking()
        return now >= self._recheck_at or bool(self._env.holds) or self._deadline.is_due()

    def _begin_looking(self) -> None:
        """Set the time of the first look at the lock. If its file is missing, the first waiter is probably taking it at
        this moment: it gets its time (Q6) without a look. Of several files, any may be free: look at once."""
        assert self._entry is not None
        if all(file.path_exists() for file in self.files):
            self._recheck_at = self._env.monotonic() + FIRST_LOOK * self._entry.slowdown
        elif len(self.files) == 1:
            self._leave_it_to(self._entry.first_waiter())
            self._recheck_at = self._next_look_at_idle()

    def _leave_it_to(self, first: object) -> None:
        """Give this first waiter its time to take a free lock (Q6)."""
        assert self._entry is not None
        self._idle, self._idle_until = first, self._env.monotonic() + self._entry.patience
        self._asks = self._entry.has_others_behind(first)

    def _next_look_at_idle(self) -> float:
        assert self._entry is not None
        return self._idle_until - self._entry.patience / 2 if self._asks else self._idle_until

    def _may_pass(self, *, free: bool) -> bool:
        """Whether the waiters ahead have left a free lock alone for too long (queue.py, Q6)."""
        assert self._entry is not None
        if any(file.is_inside(self._context) for file in self.files):
            self._inside = True
            return True
        ahead = self._entry.first_waiter() if free and any(file.lies_free() for file in self.files) else None
        if ahead is None or ahead != self._idle:
            self._idle_firsts = 0 if ahead is None else self._idle_firsts + 1
            self._leave_it_to(ahead)
        if ahead is not None and (self._idle_firsts > _MOST_IDLE or self._have_had_their_time(ahead)):
            instead = self._entry.pass_idle_waiters(None if self._idle_firsts > _MOST_IDLE else ahead)
            if instead is None:
                return True
            self._leave_it_to(instead)
        # When our time is up we try in any case: a free lock is refused to no one. A reader would starve the writers.
        return self._deadline.is_over() and not self._request.shared

    def _have_had_their_time(self, first: object) -> bool:
        """Whether the first waiter has had its time, and those behind it, too, which may sleep until told (Q6)."""
        entry, now = self._entry, self._env.monotonic()
        assert entry is not None
        if self._asks and now >= self._next_look_at_idle():
            self._asks = False
            if entry.tell_those_ahead(first):
                self._idle_until = max(self._idle_until, now + entry.patience / 2)
        if now < self._idle_until:
            return False
        if not self._spared and not entry.is_idle(first):
            self._spared, self._idle_until = True, now + entry.patience
            return False
        if entry.are_on_their_way():
            self._idle_until = now + 2 * entry.patience  # they give the first waiter its time as well
            return False
        return True

    def _wait_behind(self) -> Steps[None]:
        entry = self._entry
        assert entry is not None
        now = self._before_wait()
        for file in self.files:
            file.rest()
        # There may be fewer waiters ahead now, so the recheck may be due earlier.
        again = now + entry.recheck(now, several=len(self.files) > 1)
        self._recheck_at = again if now >= self._recheck_at else min(self._recheck_at, again)
        if self._idle is not None:
            self._recheck_at = min(self._recheck_at, self._next_look_at_idle())
        fds, until, signal = entry.plan(now)
        if fds and len(self.files) == 1:
            self.files[0].make_ready()
        until = self._deadline.bounded(min(until, self._recheck_at))  # if a record's age decides, the first one looks
        self._deadline.require_same_process()
        yield Wait(fds, until, signal)
        self._was_behind = True  # `queued` asks next whether this is still the same process

    # -- TRYING --------------------------------------------------------------------------------------------------------

    def look(self, *, strict: bool = True) -> bool:
        """Look at all lock files. Whether one of them is available."""
        self._deadline.require_same_process()
        changed, self._changed = self._changed, []
        for file in changed:
            file.look()
            if file.could_be_had:
                return True  # the others can wait
        for file in self.files:
            file.look(strict=strict)
        return any(file.could_be_had for file in self.files)

    def _is_handed_over(self) -> bool:
        """Whether we have just become first: then the lock is free, unless a process without a ticket is faster, which
        a try will tell."""
        was_behind, self._was_behind = self._was_behind, False
        return was_behind and not self._behind and len(self.files) == 1 and self.files[0].presume_free()

    def _join(self) -> Steps[bool]:
        """Join a hold of this process for the same owner. Whether there was one."""
        if self._request.owner is not None:
            for file in self.files:
                if (yield from self._enter_again(file)):
                    return True
        return False

    def _enter_again(self, file: WatchedFile) -> Steps[bool]:
        self.ref = ref = file.join(self._context)
        if ref is None:
            return False
        if file.request.fencing and ref.held.token is None:
            self.joined = yield from fenced_for(self._env, file.request, ref, self._ends)
            self.ref = ref if self.joined else None
        else:
            self.joined = True
        return self.joined

    def _pending_answer(self) -> Signal | None:
        """Set once the caller knows whether one of them is stale (policy.py, V7); None if there is no question."""
        if any(file.could_be_had for file in self.files):
            return None
        return next((f.verdict.asked for f in self.files if f.there and f.verdict.asked is not None), None)

    @property
    def is_left_to_caller(self) -> bool:
        """Whether waiting is useless: all are stale, and only the caller may have them removed (policy.py, V5)."""
        return all(file.is_left_to_caller for file in self.files)

    def _try_each(self) -> Steps[bool]:
        """Try to get an available one. Whether another contender was faster."""
        missed = False
        for file in self.files:
            if not file.could_be_had:
                continue
            if file.request.prepare is not None:
                yield from prepare(self._env, file.request.prepare)
            held = yield from file.attempt()
            missed = missed or file.missed
            if held is not None and (held.request.fencing or held.lease is not None):
                held = yield from fenced(self._env, held, self._ends)
                missed = missed or held is None
            if held is not None:
                try:
                    self._win(held)
                    return False
                except BaseException:
                    held.give_back_of(held.operation)  # others of its owner may have joined
                    raise
            if (yield from self._join_at(file)):
                return False
        return missed

    def _win(self, held: FileHold) -> None:
        """Make the hold ours. We keep our place until the release, which lets the next waiter try. But we leave it if
        we got a slot (Q7; others may know of more), or were inside already."""
        if has_any_listener(self._request.on_event) or held.recovered_from is not None:
            held.attempt_events = self._attempt_events  # AE5
        ref = held.ref(self._context)
        if self._entry is not None:
            if self._request.slot is not None or self._inside or (self._env.fifos and not self._entry.name):
                self._entry.enter()  # without a ticket, the place would hide those behind it here from others (Q5)
            else:
                held.entry = self._entry
                self._entry.hold()
            self._entry = None  # not before: an interruption up to here leaves the place
        self.ref = ref

    def _join_at(self, file: WatchedFile) -> Steps[bool]:
        """Join another contender that was faster, if it has the same owner, who needs no other slot."""
        if self._request.owner is None or len(self.files) == 1:
            return False
        missed = file.missed
        file.look()
        file.missed = missed
        return (yield from self._enter_again(file))

    def _after_miss(self, began: float) -> Steps[State | None]:
        self._misses += 1
        if self._misses % _RETRIES == 0 or self._env.monotonic() - began >= _SLOW_MISS:
            if self._deadline.is_over():
                self._look_at_missed()
                return None
            # No further look: it would find nothing, as what is in the way has no lock file.
            self._deadline.announce(self.refusal)
            yield Wait((), self._env.monotonic() + _MISS_PAUSE)
        return self.queued

    def _look_at_missed(self) -> None:
        """Look at the files that another contender got first: if it holds them now, refuse because of that (A3)."""
        missed = [file for file in self.files if file.missed]
        for file in missed:
            file.look(strict=False)
            file.missed = not file.there or file.could_be_had

    # -- WATCHING ------------------------------------------------------------------------------------------------------

    def _wait_first(self, now: float) -> Steps[None]:
        env = self._env
        spun = self._spins >= _MAX_SPINS
        while True:
            plans = [file.plan(now, poll=spun) for file in self.files]
            fds = tuple(fd for plan in plans for fd in plan[0])
            until = self._bounded(min(plan[1] for plan in plans), now)
            self._deadline.require_same_process()
            yield Wait(fds, until)
            self._deadline.require_same_process()
            after = env.monotonic()
            over = after >= until or not fds
            if self._woke(over=over) or over:
                break
        self._spins = self._spins + 1 if fds and after - now < FIRST_POLL else 0

    def _woke(self, *, over: bool) -> bool:
        """Whether the wait was about one of the lock files; then none of them waits any more."""
        files = self.files
        woken = [file for file in files if file.woke(over=over)]
        if len(files) > 1 and not over:
            # Reading events for one may have brought news for others that were asked before it.
            woken = woken or [file for file in files if file.woke(over=False)]
            if woken:
                self._changed = woken
                for file in files:
                    file.woke(over=True)
        return bool(woken)

    # -- both waits ----------------------------------------------------------------------------------------------------

    def _before_wait(self) -> float:
        """Announce the wait if that is due, and take a ticket. Returns the time before that."""
        self._deadline.require_same_process()
        now = self._env.monotonic()
        if self._attempt_events is not None:
            self._attempt_events.waiting(self.who)
        if self._deadline.announces:
            self.look()
            self._deadline.announce(self.refusal)
        if self._entry is not None:
            self._entry.queue_up()
        return now

    def _bounded(self, until: float, now: float) -> float:
        """The earliest of `until`, the caller's deadline, the notice, and the time when a record's age decides."""
        until = self._deadline.bounded(until)
        for file in self.files:
            if file.there and file.verdict.stale_at is not None:
                until = min(until, max(now + FIRST_POLL, now + file.verdict.stale_at - self._env.time()))
        return until

    def require_no_deadlock(self) -> None:
        """Raise WouldDeadlock if the caller itself holds all of them and would wait forever."""
        if self._deadline.is_endless and all(file.is_held_by(self._context) for file in self.files):
            raise self.files[0].deadlock(len(self.files))

    # -- refusals ------------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self._deadline.is_over()

    def refusal(self) -> Refusal:
        waited = self._env.monotonic() - self._deadline.started
        attempt_events = self._attempt_events or AttemptEvents(self._env, self._request, ())
        own = [ref for file in self.files for ref in file.own_refs()] if self._env.holds else ()
        return Refusal(self._request.target, waited, self._statuses, attempt_events, own)

    def _statuses(self) -> tuple[Status, ...]:
        try:
            return tuple([_describe_miss(self._env, f.request) if f.missed else f.status() for f in self.files])
        except CallersError as error:
            error.unwrap()

    def who(self) -> Holder | None:
        """The holder, as far as the lock file tells; reading the kernel's tables would take milliseconds."""
        if self._request.protocol.persistent:
            return None
        if not any(file.there for file in self.files):
            self.look(strict=False)  # a queued contender has not looked yet
        return next((file.describe().holder for file in self.files if file.there), None)


def _place(env: Environment, request: FileRequest, started: float, *, waits: bool) -> QueueEntry:
    """A place in the queue of this machine; if other machines share the directory, among theirs as well."""
    if waits and not request.shared and env.may_block(request.path) and env.storage(request.path).shared:
        with forking:
            from .turns import EntryWithTurn
        return EntryWithTurn(env, request, started)
    return QueueEntry(env, request, started, waits=waits)


def _watched(env: Environment, request: FileRequest) -> WatchedFile:
    if request.protocol.is_directory:
        with forking:
            from .directory import WatchedDirectory
        return WatchedDirectory(env, request)
    return WatchedFlock(env, request) if request.protocol.persistent else WatchedFile(env, request)


def _describe_miss(env: Environment, request: FileRequest) -> Status:
    """The status of a lock whose path was neither free nor readable."""
    rival = about_to_rename(env, request)
    if rival is None:
        text = (
            "the file can be neither created nor opened: others keep changing it, or this filesystem's cache is behind"
        )
    else:
        file, pid = rival
        text = f"no lock file is there, but process {pid} may be about to rename {file} to it, as semats does; "
        text += "once that file is gone, or a minute old, it blocks nothing"
    evidence = Evidence("race", text)
    return Status(request.path, request.protocol.name, True, False, Liveness.UNKNOWN, evidence)


def wait_until_free(
    env: Environment, requests: Sequence[FileRequest], timeout: float | None, context: tuple[object, ...]
) -> Steps[Refusal | None]:
    """None once a contender would get one of the locks, or the refusal; acquires and changes nothing."""
    attempt = AcquireAttempt(env, requests, timeout, context, queued=False)
    try:
        while not (attempt.look() and any(file.is_free() for file in attempt.files)):
            if any(file.can_be_joined() for file in attempt.files):
                return None
            if attempt.is_left_to_caller:
                raise stale(attempt.refusal())
            if attempt.is_over:
                return attempt.refusal()
            attempt.require_no_deadlock()
            yield from attempt.watching()
        return None
    except CallersError as error:
        error.unwrap()
    except OSError as error:
        set_error_path(error, requests[0].target)
        raise
    finally:
        attempt.close()


def look(env: Environment, request: FileRequest) -> Status:
    """One look at the lock, and at its waiters."""
    return look_at_all(env, (request,))[0]


def look_at_all(env: Environment, requests: Sequence[FileRequest]) -> tuple[Status, ...]:
    """One look at each of the locks, and at the waiters: they wait for any of them, so one look shows all waiters."""
    attempt = AcquireAttempt(env, requests, 0, (), queued=False)
    try:
        attempt.look(strict=False)
        first = attempt.files[0]
        statuses = [file.status() for file in attempt.files]
        found = waiters(env, first.request, first.seen if first.there else None, statuses[0])
        return tuple([status.replaced(waiters=found) for status in statuses])
    except CallersError as error:
        error.unwrap()
    except OSError as error:
        set_error_path(error, requests[0].target)
        raise
    finally:
        attempt.close()
