"""One lock file as one contender sees it: the last look at it, and the watch for the next change.

WF1  The watch is armed, and its events are read, before the look that decides to wait: any change after that look makes
     an event that we still find.
WF2  A close event comes before the kernel drops the guard (by up to 5 ms): after one, we look again a few times.
     Wake-ups for other locks may use these looks up at once, and the event may also have come before the watch was
     armed. So after both, we rely on the watch from the first look that is late enough.
WF3  The watch is on an inode. When the path names another one, we start over with a new watch.
WF4  Where a removed name stays in the way as long as the file is open here (9p), nothing is kept open between two
     looks: waiters would keep each other from making the lock file.
"""

from __future__ import annotations

import errno

from ..._core.hold import HoldRef
from ..._core.messages import OUT_OF_REACH, deadlock
from ..._core.wait import Steps
from ..._platform.fork import forking
from ..._platform.interface import Environment, Watch
from ..._platform.values import CLOSED, DYING, RECHECK
from ...errors import WouldDeadlock
from ...model import Record, Status
from .hold import FileHold
from .inspect import (
    LEASED,
    TRIES,
    Assessment,
    Observation,
    assess,
    forget,
    is_rewritten,
    observe,
    require_same_protocol,
    reread,
)
from .interop import in_the_way
from .policy import Verdict, describe, judge, missing, was_released, with_heirs, within_reach
from .publish import discard, prepared, publish
from .request import FileRequest
from .steps import REMOVED, with_hint
from .takeover import complete, take_over

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..._platform.values import LockOwner
    from .lease import LeaseWatch
    from .publish import Blank

FIRST_POLL = 0.001
_LOOKS_PER_LEASE = 1 / 10
"""Share of a lease between two looks at its record: a longer pause would not count (lease.py, LE3)."""
_BURST_FIRST = 0.0001
_BURST_LAST = 0.0064
"""The pause after a close event, which doubles from the first to the last: 12.7 ms in all (WF2)."""


class WatchedFile:
    """One lock file and the looks at it. Owns a descriptor and a watch; `rest` gives them up for now."""

    seen: Observation
    assessed: Assessment
    verdict: Verdict

    def __init__(self, env: Environment, request: FileRequest) -> None:
        self.env = env
        self.request = request
        self.there = False
        """Whether the last look found anything at the path."""
        self.missed = False
        """Whether the path could not be created although the last look had found nothing at it."""
        self._seen: Observation | None = None
        self._is_open = False
        """Whether the last look could ask for its kernel lock."""
        self._watch: Watch | None = None
        self._pidfd: tuple[int, int] | None = None
        self._armed = False
        self._relied_from = 0.0
        """The time from which the end of a guard makes an event; 0.0 if the last look was later (WF2)."""
        self._waiting = False
        self._poll = FIRST_POLL
        self._burst = 0.0
        self._recheck = min(RECHECK, request.protocol.recheck)
        self._lease_watch: LeaseWatch | None = None
        self._blank: Blank | None = None
        self._recovered: Record | None = None
        """The record that this contender has replaced before it gave the lock back, in order to try again."""

    # -- looking -------------------------------------------------------------------------------------------------------

    def look(self, *, strict: bool = True) -> bool:
        """Look at the path; False if nothing is there. Sets `seen`, `assessed` and `verdict` (inspect.py, L8)."""
        tries = TRIES
        while True:
            try:
                return self._look(strict)
            except OSError as error:
                tries -= 1
                if not self._is_unknown_to_its_server(error) or not (tries or error.errno == errno.ENOENT):
                    raise
                forget(self.env, self._seen)
                self._seen, self.there = None, False
                if not tries:
                    return False  # the server says that there is none: creating one will tell

    def _is_unknown_to_its_server(self, error: OSError) -> bool:
        """Whether the server has removed the file that we have open, or forgotten that it is open (inspect.py, L8)."""
        forgotten = error.errno == errno.EBADF and self._seen is not None and self.env.is_open(self._seen.fd)
        return forgotten or error.errno in REMOVED

    def _begin_look(self) -> None:
        self.missed = False
        if self._relied_from and self.env.monotonic() >= self._relied_from:
            self._relied_from = 0.0

    def _look(self, strict: bool) -> bool:
        self._begin_look()
        self.there = self._observe()
        if self.there:
            assert self._seen is not None
            self.seen = self._seen
            if strict:
                require_same_protocol(self.request, self.seen)
            self._is_open = self.seen.fd >= 0
            self.assessed = assess(self.env, self.seen)
            if self.seen.lease is not None:
                self._look_at_lease(self.seen.lease)
            self.verdict = judge(self.env, self.request, self.seen, self.assessed)
            if self.verdict.reclaim:
                self.seen.blocked = self._obstacle()
                if self.seen.blocked is not None:
                    self.verdict = judge(self.env, self.request, self.seen, self.assessed)
            if self.env.knows_mounts and self.env.storage(self.request.path, self.seen.identity[0]).pins:
                forget(self.env, self.seen)  # WF4
        return self.there

    def _obstacle(self) -> str | None:
        """The reason why nobody can take over this lock, which may be taken over; None if there is none."""
        return None if self.seen.unfinished else in_the_way(self.env, self.request)

    def _look_at_lease(self, lease: float) -> None:
        """Note for how long the record has not changed (lease.py, LE2)."""
        if self._lease_watch is None:
            with forking:
                from .lease import LeaseWatch
            self._lease_watch = LeaseWatch()
        self.seen.lease_watch = self._lease_watch
        self.seen.unchanged = self._lease_watch.look(self.env, self.request.path, self.seen, lease)

    def _observe(self) -> bool:
        env, request = self.env, self.request
        previous = self._seen
        there = None if previous is None else self._identity()
        if previous is not None and there is None:
            return False  # released: cleaning up can wait, publishing cannot
        if previous is not None and previous.fd >= 0 and there == previous.identity and self._reread(previous):
            return True
        forget(env, previous)
        self._seen = observe(env, request)
        if previous is None or self._seen is None or self._seen.identity != previous.identity:
            self._disarm()  # WF3
        return self._seen is not None

    def _reread(self, seen: Observation) -> bool:
        """Read the record again; False if the file is gone (inspect.py, L8)."""
        try:
            reread(self.env, self.request, seen)
        except OSError as error:
            if error.errno not in REMOVED:
                raise
            return False
        return True

    def _identity(self) -> tuple[int, int] | None:
        """The inode that the path names now; None if there is none."""
        try:
            found = self.env.stat(self.request.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise with_hint(error, self.request, self.env) from error
        return (found.st_dev, found.st_ino)

    @property
    def could_be_had(self) -> bool:
        """Whether the last look found a lock that a contender would get."""
        return not self.there or self.verdict.reclaim

    def presume_free(self) -> bool:
        """Presume it free without a look, where a try is as cheap and an owner has nothing to join."""
        if self.request.owner is not None or self.request.protocol.persistent:
            return False
        self.there = self.missed = False
        return True

    def path_exists(self) -> bool:
        """Whether there is anything at the path."""
        return self.env.exists(self.request.path)

    def is_free(self) -> bool:
        """Whether a contender would get the lock, as of the last look, or now. EROFS if only V10 prevents that."""
        if self.there and self.verdict.reclaim and self.env.is_read_only(self.request.path):
            raise OSError(errno.EROFS, f"{self.verdict.reason}, but {OUT_OF_REACH}", self.request.path)
        return self.could_be_had

    def lies_free(self) -> bool:
        """Whether any contender would get it, reader or writer."""
        return self.could_be_had

    def describe(self) -> Status:
        """The last look as a value for the caller."""
        if not self.there:
            return missing(self.request)
        return describe(self.env, self.request, self.seen, self.assessed, self.verdict)

    def status(self) -> Status:
        """The last look, with data from the kernel's tables. A lock released during the look was free for a moment."""
        if self.there and self._was_released():
            return missing(self.request)
        tries = TRIES
        while True:
            status = within_reach(self.env, self.describe())
            shown = with_heirs(self.env, status, self._lock_owners)
            tries -= 1
            if shown is status or not tries or self.seen.fd < 0 or not is_rewritten(self.env, self.request, self.seen):
                return shown
            self.assessed = assess(self.env, self.seen)  # L13
            self.verdict = judge(self.env, self.request, self.seen, self.assessed)

    def _lock_owners(self) -> list[LockOwner]:
        """The owners of its kernel lock; none if the look has found that free. Looking into all processes may take
        seconds."""
        free = self._is_open and self.assessed.evidence.source != "guard"
        return [] if free else self.env.lock_owners(self.seen.identity)

    @property
    def is_left_to_caller(self) -> bool:
        """Whether it is stale, and only the caller may have it removed (policy.py, V5)."""
        return self.there and self.verdict.left_to_caller and not self._was_released()

    def _was_released(self) -> bool:
        return was_released(self.env, self.request, self.seen, self.assessed, self.verdict)

    def join(self, context: tuple[object, ...]) -> HoldRef | None:
        """A share in this process's hold of it for the same owner; None if there is none."""
        held = self._hold_to_join()
        return None if held is None else held.join(self.request, context)

    def can_be_joined(self) -> bool:
        """Whether this process holds it for the same owner."""
        held = self._hold_to_join()
        return held is not None and bool(held.refs) and held.verify()

    def _hold_to_join(self) -> FileHold | None:
        owner = self.request.owner
        if owner is None:
            return None
        return next((held for held in self._own_holds() if held.request.owner == owner and self._joinable(held)), None)

    def _is_about_to_be_joined(self) -> bool:
        """Whether this process is about to get it for the same owner: it may be counting a token (fencing.py)."""
        owner = self.request.owner
        return owner is not None and any(
            held.request.owner == owner and not held.refs and not held.released for held in self._own_holds()
        )

    def is_held_by(self, context: tuple[object, ...]) -> bool:
        """Whether the caller holds it, so that it would wait for itself."""
        # One share is enough: a hold ends with its last share.
        return any(
            ref.context[: len(context)] == context
            for held in self._own_holds()
            if not held.lost and self._blocks(held)
            for ref in list(held.refs)
        )

    def is_inside(self, context: tuple[object, ...]) -> bool:  # noqa: ARG002
        """Whether the caller already shares the lock, and so may share it again before any waiter."""
        return False

    def _own_holds(self) -> list[FileHold]:
        """This process's holds of it; several only if they are shared."""
        held: FileHold | None = self.env.holds.get(self.seen.identity) if self.there else None
        return [] if held is None else [held]

    def own_refs(self) -> list[HoldRef]:
        """The shares of this process's handles in holds that are in the way."""
        ours = [held for held in self._own_holds() if not held.lost and self._blocks(held)]
        return [ref for held in ours for ref in list(held.refs)]

    def _joinable(self, held: FileHold) -> bool:  # noqa: ARG002
        return True

    def _blocks(self, held: FileHold) -> bool:  # noqa: ARG002
        return True

    def deadlock(self, slots: int) -> WouldDeadlock:
        """The error for a caller that would wait for itself."""
        return deadlock(self.request, slots, self.own_refs())

    # -- trying --------------------------------------------------------------------------------------------------------

    def attempt(self) -> Steps[FileHold | None]:
        """Try to get the lock as seen: create a missing file, or take over one if that is allowed."""
        env, request = self.env, self.request
        held = None
        if not self.there:
            blank, self._blank = self._blank, None
            held = yield from publish(env, request, blank)
            self.missed = held is None
        elif self.verdict.reclaim:
            if self.seen.unfinished:
                held = yield from complete(env, request, self.seen)
            else:
                held = yield from take_over(env, request, self.seen, self.verdict)
                if self.seen.replaced:
                    self._recovered = self.seen.record
            if held is None and self.seen.blocked is not None:
                self.verdict = judge(env, request, self.seen, self.assessed)  # it turned out to be impossible
        if held is not None and self._recovered is not None:
            held.recovered_from = self._recovered
        return held

    # -- waiting for a change ------------------------------------------------------------------------------------------

    def make_ready(self) -> None:
        """Do before our turn what would otherwise take time then (publish.py, P10)."""
        if self._blank is None:
            self._blank = prepared(self.env, self.request)

    def hurry(self) -> None:
        """Look again soon: the obstacle lasts only an instant."""
        self._burst = self._burst or _BURST_FIRST

    def prepare(self) -> bool:
        """Make sure that the next change makes an event; True if there may have been a change since the look (WF1)."""
        if not self.there:
            return False
        if not self._armed:
            self._arm()
            return self._watch is not None or not self._armed
        if self._watch is None:
            return False
        pid = self.assessed.pid
        if pid is not None and (self._pidfd is None or self._pidfd[0] != pid):
            self._watch_process(pid)
            if self._pidfd is not None:
                return True
        # Only now, because a released lock is acquired without it.
        change = self._watch.take()
        if change & CLOSED:
            self.hurry()  # WF2
            self._relied_from = self.env.monotonic() + DYING
        return bool(change)

    def plan(self, now: float, *, poll: bool) -> tuple[tuple[int, ...], float]:
        """Descriptors to wait on, and the latest time to wake up. `poll`: do not trust events this time."""
        self._waiting = False
        if self.env.lingering:
            self._let_go()
        if self._burst:
            pause, self._burst = self._burst, self._burst * 2 if self._burst < _BURST_LAST else 0.0
            return (), now + pause
        blind = poll or self.could_be_had or self.seen.problem is LEASED or self._is_about_to_be_joined()
        if self._watch is None or blind:
            # No events here, or they do not help: another process has a lock on a file that may be taken over, or L10;
            # or nothing will happen to the file.
            pause, self._poll = self._poll, min(self._poll * 1.5, self._longest_poll())
            return (), now + pause
        self._waiting = True
        fds, until = self._watch.fds(), now + self._recheck
        if self.seen.lease is not None:
            until = min(until, now + self.seen.lease * _LOOKS_PER_LEASE)
        if self._relied_from and self.assessed.evidence.source == "guard":
            until = min(until, self._relied_from)
        if not fds:  # the descriptor table is full: poll, until some are closed
            until = min(until, self.env.monotonic() + self._longest_poll())
        elif self._pidfd is not None and self._pidfd[0] == self.assessed.pid:
            fds = (*fds, self._pidfd[1])  # not after it has ended: it would stay readable forever
        return fds, until

    def _longest_poll(self) -> float:
        return max(FIRST_POLL, min(self.env.poll_limit(self.request.path), self.request.look_every))

    def woke(self, *, over: bool) -> bool:
        """Whether the wait that has just ended was about this lock file."""
        if self.there:
            self.seen.blocked = None  # permissions may have changed, which nothing announces
        over = over or self._pidfd is not None  # the process may have ended
        return self._waiting and self._watch is not None and self._watch.woken(over=over)

    def _let_go(self) -> None:
        """Close the descriptor while we wait."""
        forget(self.env, self._seen)

    def close(self) -> None:
        """Give up everything that it has."""
        self.rest()
        if self._blank is not None:
            discard(self.env, self._blank)
            self._blank = None

    def rest(self) -> None:
        """Give up the descriptor and the watch."""
        self._disarm()
        forget(self.env, self._seen)
        self._seen = None

    def _arm(self) -> None:
        env, path = self.env, self.request.path
        self._armed = True
        if env.events_reach(path):
            try:
                self._watch = self._subscribe()
                self._relied_from = env.monotonic() + DYING
            except FileNotFoundError:
                self._armed = False  # gone in between: the next look notices
                return
        if self._watch is not None and self.assessed.pid is not None:
            self._watch_process(self.assessed.pid)

    def _subscribe(self) -> Watch | None:
        return self.env.watch(self.request.path)

    def _watch_process(self, pid: int) -> None:
        self._unwatch_process()
        fd = self.env.watch_process(pid)
        self._pidfd = None if fd is None else (pid, fd)

    def _unwatch_process(self) -> None:
        if self._pidfd is not None:
            self.env.close(self._pidfd[1])
            self._pidfd = None

    def _disarm(self) -> None:
        self._armed = self._waiting = False
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._unwatch_process()
