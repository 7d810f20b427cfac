"""One contender's dealings with a lock that is not free: looking at it, and waiting for it to change.

A2  The watch is armed, and its events are taken, before the look that decides to wait: what happens after that look
    makes an event that is still there.
A3  A lost event costs latency, never a hang: every wait ends at a re-check deadline.
A4  A close event comes before the kernel drops the guard (by up to 5 ms): after one, we look again a few times.
A6  The watch is on an inode. When the path names another one, we start over with a new watch.
A7  What keeps waking us although nothing changes must not keep us busy: after some such wake-ups the wait polls once.
"""

from __future__ import annotations

from ..errors import WouldDeadlock
from ..model import Evidence, Liveness, Status, Value
from .environment import CLOSED, Environment, Wait, Watch
from .hold import Held, Share
from .liveness import Assessment, assess
from .observe import Observation, explained, forget, observe, require_same_protocol, reread
from .policy import Verdict, describe, judge
from .request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

RECHECK = 10.0
"""Seconds between looks where events are expected (A3)."""
_FIRST_POLL = 0.001
_BURST_FIRST = 0.0001
_BURST_LAST = 0.0064
"""After a close event the pauses double from the first to the last: 12.7 ms in all (A4)."""
_NOTICE_AFTER = 1.0
_MAX_SPINS = 50
"""Wake-ups in a row, each within a millisecond, after which a wait polls once: what wakes it does not go away (A7)."""


class Refusal(Value):
    """The lock was held all the time; what was seen last says by whom."""

    status: Status
    waited: float


def _invisible(request: Request) -> Status:
    evidence = Evidence("none", "the path is neither free nor there; a cache of this filesystem may be behind")
    return Status(request.path, request.protocol.name, True, False, Liveness.UNKNOWN, evidence)


class Contest:
    """One contender's dealings with a lock that is not free. Owns a descriptor and a watch; `close` gives them up."""

    seen: Observation
    assessed: Assessment
    verdict: Verdict

    def __init__(self, env: Environment, request: Request, timeout: float | None, context: tuple[object, ...]) -> None:
        self._env = env
        self.context = context
        self._request = request
        self._generation = env.generation
        self._started = env.monotonic()
        self._deadline = None if timeout is None else self._started + timeout
        self._noticed = request.notice is None
        self._seen: Observation | None = None
        self._watch: Watch | None = None
        self._pidfd: tuple[int, int] | None = None
        self._armed = False
        self._poll = _FIRST_POLL
        self._burst = 0.0
        self._again = False
        self._spins = 0

    def close(self) -> None:
        if self._generation != self._env.generation:
            return  # forked meanwhile: the numbers of our descriptors may be other files' by now
        self._disarm()
        forget(self._env, self._seen)
        self._seen = None

    def look(self, *, strict: bool = True) -> bool:
        """Look at the path; False when nothing is there. Sets `seen`, `assessed` and `verdict`."""
        env, request = self._env, self._request
        self._require_same_process()
        previous = self._seen
        there = None if previous is None else self._identity()
        if previous is not None and there is None:
            return False  # released: cleaning up after what was there can wait, publishing cannot
        if previous is not None and previous.fd >= 0 and there == previous.identity:
            reread(env, request, previous)
        else:
            forget(env, previous)
            self._seen = observe(env, request)
            if previous is None or self._seen is None or self._seen.identity != previous.identity:
                self._disarm()  # A6
            if self._seen is None:
                return False
        assert self._seen is not None
        self.seen = self._seen
        if strict:
            require_same_protocol(request, self.seen)
        self.assessed = assess(env, self.seen)
        self.verdict = judge(env, request, self.seen, self.assessed)
        return True

    def is_over(self) -> bool:
        return self._deadline is not None and self._env.monotonic() >= self._deadline

    def refusal(self) -> Refusal:
        seen = self.__dict__.get("seen")  # never, where the path exists for a creation and not for a look
        status = (
            describe(self._env, self._request, seen, self.assessed, self.verdict) if seen else _invisible(self._request)
        )
        return Refusal(status, self._env.monotonic() - self._started)

    def rejudge(self) -> None:
        """Judge again what was seen, if a takeover turned out to be impossible."""
        if self.seen.blocked is not None:
            self.verdict = judge(self._env, self._request, self.seen, self.assessed)

    def hurry(self) -> None:
        """Look again soon: what was in the way is there for an instant only."""
        self._burst = self._burst or _BURST_FIRST

    def pause(self) -> Generator[Wait, None, None]:
        """Wait until something may have changed; or return, if it may have done so since the look.

        That is at once only once in a row, and then after a short wait: a caller who waits must get to wait (A7).
        """
        env = self._env
        if self._prepare():
            if not self._again:
                self._again = True
                return
            self.hurry()
        self._again = False
        now = env.monotonic()
        self._notify(now)
        if self._burst:
            pause, self._burst = self._burst, self._burst * 2 if self._burst < _BURST_LAST else 0.0
            yield Wait((), now + pause)
        elif self._watch is None or self.verdict.reclaim or self._spins >= _MAX_SPINS:
            # No events here, or they do not help: somebody else has a lock on a file that may be taken over.
            pause, self._poll = self._poll, min(self._poll * 1.5, env.poll_limit(self._request.path))
            self._spins = 0
            yield Wait((), self._bounded(now + pause, now))
        else:
            yield from self._await_event(self._watch, now)

    def _await_event(self, watch: Watch, now: float) -> Generator[Wait, None, None]:
        env = self._env
        until = self._bounded(now + RECHECK, now)
        while True:
            fds = watch.fds()
            if not fds:  # the descriptor table is full: poll, until some are closed
                until = min(until, env.monotonic() + env.poll_limit(self._request.path))
            elif self._pidfd is not None and self._pidfd[0] == self.assessed.pid:
                fds = (*fds, self._pidfd[1])  # not once it has ended: it would stay readable for ever
            yield Wait(fds, until)
            after = env.monotonic()
            if watch.woken() or after >= until:
                break
        self._spins = self._spins + 1 if after - now < _FIRST_POLL else 0
        if after - now >= RECHECK:
            self.seen.blocked = None  # permissions may have changed, which nothing announces

    def _prepare(self) -> bool:
        """See to it that the next change makes an event; True if there may have been one since the look (A2)."""
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
        # Asked only now, because a released lock is acquired without it.
        change = self._watch.take()
        if change & CLOSED:
            self.hurry()  # A4
        return bool(change)

    def _bounded(self, until: float, now: float) -> float:
        """The earliest of: the pause, the caller's deadline, the notice, the moment when the record's age decides."""
        if self._deadline is not None:
            until = min(until, self._deadline)
        if not self._noticed:
            until = min(until, self._started + _NOTICE_AFTER)
        if self.verdict.stale_at is not None:
            until = min(until, max(now + _FIRST_POLL, now + self.verdict.stale_at - self._env.time()))
        return until

    def _identity(self) -> tuple[int, int] | None:
        """What the path names now."""
        try:
            found = self._env.stat(self._request.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise explained(error, self._request) from error
        return (found.st_dev, found.st_ino)

    def join(self) -> Share | None:
        """Our own process holds it, for the same owner: enter again."""
        held: Held | None = self._env.holds.get(self.seen.identity)
        owner = self._request.owner
        if held is None or owner is None or held.request.owner != owner:
            return None
        return held.join(self.context)

    def require_no_deadlock(self) -> None:
        """WouldDeadlock where the only ones who could end the wait are those who wait."""
        held: Held | None = self._env.holds.get(self.seen.identity)
        if self._deadline is not None or held is None or held.lost or not held.shares:
            return
        if all(share.context[: len(self.context)] == self.context for share in held.shares):
            raise WouldDeadlock(
                f"{self._request.path} is held by this very thread or task, which would wait for itself for ever. "
                "Release it first, pass a timeout, or pass the same owner= to both for a re-entrant lock.",
                path=self._request.path,
                protocol=self._request.protocol.name,
            )

    def _arm(self) -> None:
        env, path = self._env, self._request.path
        self._armed = True
        if env.events_reach(path):
            try:
                self._watch = env.watch(path)
            except FileNotFoundError:
                self._armed = False  # gone in between: the next look finds out
                return
        if self._watch is not None and self.assessed.pid is not None:
            self._watch_process(self.assessed.pid)

    def _watch_process(self, pid: int) -> None:
        self._unwatch_process()
        fd = self._env.watch_process(pid)
        self._pidfd = None if fd is None else (pid, fd)

    def _unwatch_process(self) -> None:
        if self._pidfd is not None:
            self._env.close(self._pidfd[1])
            self._pidfd = None

    def _disarm(self) -> None:
        self._armed = False
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._unwatch_process()

    def _notify(self, now: float) -> None:
        if not self._noticed and self._request.notice is not None and now >= self._started + _NOTICE_AFTER:
            self._noticed = True
            self._request.notice(describe(self._env, self._request, self.seen, self.assessed, self.verdict))

    def _require_same_process(self) -> None:
        if self._generation != self._env.generation:
            raise RuntimeError(
                f"the process was forked while it waited for {self._request.path}; acquire again in the child"
            )
