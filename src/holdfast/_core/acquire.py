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
A2  The watch is armed, and its events are taken, before the look that decides to wait: what happens after that look
    makes an event that is still there.
A3  A lost event costs latency, never a hang: every wait ends at a re-check deadline.
A4  A close event comes before the kernel drops the guard (by up to 5 ms): after one, we look again a few times.
A5  A refusal is only given after a complete look; `timeout=0` is one round, with a takeover if that is due.
A6  The watch is on an inode. When the path names another one, we start over with a new watch.
"""

from __future__ import annotations

from ..errors import WouldDeadlock
from ..model import Status, Value
from .environment import CLOSED, Environment, Wait, Watch
from .hold import Held
from .liveness import Assessment, assess
from .observe import Observation, explained, forget, observe, require_same_protocol, reread
from .policy import Verdict, describe, judge
from .publish import publish, withdraw
from .request import Request
from .takeover import complete, take_over

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


class Refusal(Value):
    """The lock was held all the time; what was seen last says by whom."""

    status: Status
    waited: float


def acquire(
    env: Environment, request: Request, timeout: float | None, context: object
) -> Generator[Wait, None, Held | Refusal]:
    """The lock, or the reason why not. `context` names the caller (thread, task) that a wait would block."""
    held = yield from publish(env, request)
    if held is None:
        contest = Contest(env, request, timeout)
        try:
            try:
                held = yield from contest.acquire(context)
            finally:
                contest.close()
        except BaseException:
            if held is not None:
                _give_back(held)
            raise
        if held is None:
            return contest.refusal()
    held.context = context
    return held


def _give_back(held: Held) -> None:
    """Undo an acquisition that the caller will not hear of."""
    with held.mutex:
        held.count -= 1
        last = not held.count
    if last:
        withdraw(held.env, held.path, held.fd, held.data)


def wait_until_free(env: Environment, request: Request, timeout: float | None) -> Generator[Wait, None, Refusal | None]:
    """None as soon as a contender would get the lock; nothing is acquired or changed."""
    contest = Contest(env, request, timeout)
    try:
        while contest.look():
            if contest.verdict.reclaim:
                return None
            if contest.is_over():
                return contest.refusal()
            yield from contest.pause()
        return None
    finally:
        contest.close()


def look(env: Environment, request: Request) -> Status:
    """One look at the lock."""
    contest = Contest(env, request, 0)
    try:
        if not contest.look(strict=False):
            return describe(env, request, None, None, None)
        return describe(env, request, contest.seen, contest.assessed, contest.verdict)
    finally:
        contest.close()


class Contest:
    """One contender's dealings with a lock that is not free. Owns a descriptor and a watch; `close` gives them up."""

    seen: Observation
    assessed: Assessment
    verdict: Verdict

    def __init__(self, env: Environment, request: Request, timeout: float | None) -> None:
        self._env = env
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

    def close(self) -> None:
        self._disarm()
        forget(self._env, self._seen)
        self._seen = None

    def acquire(self, context: object) -> Generator[Wait, None, Held | None]:
        """The lock, or None when the time is up."""
        env, request = self._env, self._request
        retries = 5
        while True:
            if not self.look():
                held = yield from publish(env, request)
                if held is not None:
                    return held
                continue  # taken in between: by somebody whom the next look will see
            held = self._reenter(context)
            if held is None and self.verdict.reclaim:
                held = yield from take_over(env, request, self.seen, self.verdict)
            elif held is None and self.seen.unfinished:
                held = yield from complete(env, request)
            if held is not None:
                return held
            if self.seen.blocked is not None:
                self.verdict = judge(env, request, self.seen, self.assessed)  # for the refusal, which says why
            if self.verdict.reclaim and retries:
                retries -= 1
                self._burst = self._burst or _BURST_FIRST  # a prober or a rival had the guard for an instant
            elif self.is_over():
                return None
            yield from self.pause()

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
        status = describe(self._env, self._request, self.seen, self.assessed, self.verdict)
        return Refusal(status, self._env.monotonic() - self._started)

    def pause(self) -> Generator[Wait, None, None]:
        """Wait until something may have changed. The first time, arm and return at once (A2)."""
        env = self._env
        if not self._armed:
            self._arm()
            if self._watch is not None or not self._armed:
                return
        elif self._watch is not None and (change := self._watch.take()):
            # Asked only now, because a released lock is acquired without it; so whatever it says calls for a look (A2).
            if change & CLOSED:
                self._burst = _BURST_FIRST  # A4
            return
        now = env.monotonic()
        self._notify(now)
        if self._burst:
            pause, self._burst = self._burst, self._burst * 2 if self._burst < _BURST_LAST else 0.0
            yield Wait((), now + pause)
        elif self._watch is not None:
            fds = self._watch.fds()
            if self._pidfd is not None and self._pidfd[0] == self.assessed.pid:
                fds = (*fds, self._pidfd[1])  # not once it has ended: it would stay readable for ever
            yield Wait(fds, self._bounded(now + RECHECK, now))
        else:
            pause, self._poll = self._poll, min(self._poll * 1.5, env.poll_limit(self._request.path))
            yield Wait((), self._bounded(now + pause, now))

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

    def _reenter(self, context: object) -> Held | None:
        """Our own process holds it: the same owner enters again; the same thread must not wait for itself."""
        held: Held | None = self._env.holds.get(self.seen.identity)
        if held is None or held.lost:
            return None
        owner = self._request.owner
        if owner is not None and held.request.owner == owner:
            with held.mutex:
                if held.count:  # else its last handle is being released just now
                    held.count += 1
                    return held
            return None
        if self._deadline is None and held.context == context:
            raise WouldDeadlock(
                f"{self._request.path} is held by this very thread or task, which would wait for itself for ever. "
                "Release it first, pass a timeout, or pass the same owner= to both for a re-entrant lock.",
                path=self._request.path,
                protocol=self._request.protocol.name,
            )
        return None

    def _arm(self) -> None:
        env, path = self._env, self._request.path
        self._armed = True
        if env.events_reach(path):
            try:
                self._watch = env.watch(path)
            except FileNotFoundError:
                self._armed = False  # gone in between: the next look finds out
                return
        pid = self.assessed.pid
        if self._watch is not None and pid is not None:
            fd = env.watch_process(pid)
            self._pidfd = None if fd is None else (pid, fd)

    def _disarm(self) -> None:
        self._armed = False
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._pidfd is not None:
            self._env.close(self._pidfd[1])
            self._pidfd = None

    def _notify(self, now: float) -> None:
        if not self._noticed and self._request.notice is not None and now >= self._started + _NOTICE_AFTER:
            self._noticed = True
            self._request.notice(describe(self._env, self._request, self.seen, self.assessed, self.verdict))

    def _require_same_process(self) -> None:
        if self._generation != self._env.generation:
            raise RuntimeError(
                f"the process was forked while it waited for {self._request.path}; acquire again in the child"
            )
