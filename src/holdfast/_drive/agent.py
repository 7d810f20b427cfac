"""One thread of this process that runs generators side by side: what keeps the holds on servers, and cleans up.

EG1  A generator runs in this thread only, one step at a time; nobody else resumes or closes it. Who wants it to end
     says so (`Job.stop`), and the thread closes it.
EG2  The thread starts with the first job and ends when there has been none for a while. It is a daemon: it never keeps
     a process from ending, and what must be done before that is done by those who wait for it.
EG3  A job that raises is reported, and ends; the others go on.
EG4  In a forked child there is no thread, and the jobs are its parent's: they are neither resumed nor closed there, and
     stay referenced, because collecting a generator closes it.
EG5  What is started as `last` has a moment at the end of the process: a release or a revocation that nobody waits for.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import selectors
import threading
import time
from collections import deque

from .._core.environment import Environment, Wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_IDLE = 10.0
"""Seconds without a job after which the thread ends."""
_LONGEST = 3600.0
_AT_EXIT = 1.0
"""Seconds that what is `last` has at the end of the process, all of it together (EG5)."""


class Job:
    """A generator that the agent runs."""

    def __init__(self, agent: Agent, steps: Generator[Wait, None, None], what: str, *, last: bool = False) -> None:
        self.what = what
        self.last = last
        self._agent = agent
        self._steps = steps
        self._wait: Wait | None = None
        """What it waits for."""
        self._turn = 0
        """How often it has been resumed: what was planned in an earlier turn is void."""
        self._stopped = False

    def stop(self) -> None:
        """Have it closed soon. Idempotent; returns at once."""
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        self._agent._ripe.append(self)
        self._agent._ring()


class Agent:
    """One per process."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._orphans: list[Job] = []
        self._jobs: dict[Job, None] = {}
        self._idle = _IDLE
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        import atexit

        atexit.register(self.settle)  # before the keeper's, which is made with the first hold: so it runs after it

    def _forked(self) -> None:
        self._orphans += self._jobs  # EG4
        self._jobs = {}
        if self._waits is not None:
            self._waits.close()
        self._begin()

    def _begin(self) -> None:
        self._mutex = threading.RLock()
        self._thread: threading.Thread | None = None
        self._doorbell: tuple[int, int] | None = None
        self._waits: _Waits | None = None
        self._ripe: deque[Job] = deque()
        """Those that are to be resumed, or closed."""

    def start(self, steps: Generator[Wait, None, None], what: str, *, last: bool = False) -> Job:
        """Run a generator; `what` it does is said if it fails. What is `last` is waited for at the end (EG5)."""
        job = Job(self, steps, what, last=last)
        with self._mutex:
            self._jobs[job] = None
            self._ripe.append(job)
            if self._doorbell is None:
                self._doorbell = self._env.pipe()
                self._waits = _Waits(self._doorbell[0])
            if self._thread is None:
                self._start()
        self._ring()
        return job

    def settle(self, seconds: float = _AT_EXIT) -> None:
        """Wait until what was started as `last` is done, so many seconds at the most (EG5)."""
        until = time.monotonic() + seconds
        while any(job.last for job in list(self._jobs)) and time.monotonic() < until:
            time.sleep(0.001)

    def call(self, callback: Callable[[], object], what: str) -> None:
        """Call it in a thread of its own, so that what it does keeps no job waiting."""

        def run() -> None:
            try:
                callback()
            except Exception as error:
                _report(what, error)

        threading.Thread(target=run, name="holdfast-lost", daemon=True).start()

    def _start(self) -> None:
        import signal

        # Signals are the program's business: one that landed in this thread would not interrupt a wait in the main one.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread = threading.Thread(target=self._run, name="holdfast-agent", daemon=True)
            self._thread.start()
        except BaseException:
            self._thread = None
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _ring(self) -> None:
        doorbell = self._doorbell
        if doorbell is not None:
            try:
                os.write(doorbell[1], b"!")
            except BlockingIOError:
                pass  # it is ringing already

    def _run(self) -> None:
        generation, ripe, waits = self._env.generation, self._ripe, self._waits
        assert waits is not None
        idle_since = time.monotonic()
        while generation == self._env.generation:
            while ripe:
                self._step(ripe.popleft(), waits)
            with self._mutex:
                if self._jobs:
                    idle_since = time.monotonic()
                elif not ripe and time.monotonic() - idle_since >= self._idle:
                    self._thread = None
                    return
            ripe += waits.over(idle_since + self._idle)

    def _step(self, job: Job, waits: _Waits) -> None:
        if job not in self._jobs:
            return  # it has ended since it was called ripe
        waits.drop(job)
        try:
            if job._stopped:
                job._steps.close()
            else:
                waits.add(job, next(job._steps))
                return
        except StopIteration:
            pass
        except Exception as error:
            _report(job.what, error)
        with self._mutex:
            self._jobs.pop(job, None)


class _Waits:
    """What the jobs wait for. A wake-up costs as much as there is to be done, however many jobs there are.

    A descriptor is registered anew for each turn: its number may be another file's by then.
    """

    def __init__(self, doorbell: int) -> None:
        self._doorbell = doorbell
        self._selector = selectors.DefaultSelector()
        self._selector.register(doorbell, selectors.EVENT_READ)
        self._by_fd: dict[int, dict[Job, int]] = {}
        self._timers: list[tuple[float, int, int, Job]] = []
        """When, which turn of the job, and a number that orders what is due at once."""
        self._numbers = itertools.count()

    def add(self, job: Job, wait: Wait) -> None:
        job._wait = wait
        for fd in {*wait.fds, *wait.writes}:
            mask = selectors.EVENT_READ * (fd in wait.fds) | selectors.EVENT_WRITE * (fd in wait.writes)
            self._by_fd.setdefault(fd, {})[job] = mask
            self._register(fd)
        if wait.deadline < math.inf:
            heapq.heappush(self._timers, (wait.deadline, next(self._numbers), job._turn, job))
        if wait.signal is not None:
            wait.signal.subscribe(job._wake)

    def drop(self, job: Job) -> None:
        """It is to be resumed: it waits for nothing any more."""
        wait, job._wait = job._wait, None
        job._turn += 1
        if wait is None:
            return
        if wait.signal is not None:
            wait.signal.unsubscribe()
        for fd in {*wait.fds, *wait.writes}:
            self._by_fd[fd].pop(job, None)
            self._register(fd)

    def over(self, until: float) -> list[Job]:
        """Sleep until a job is ripe, or the doorbell rings; those that are."""
        while self._timers and self._timers[0][2] != self._timers[0][3]._turn:
            heapq.heappop(self._timers)
        if self._timers:
            until = min(until, self._timers[0][0])
        ready = self._selector.select(min(max(0.0, until - time.monotonic()), _LONGEST))
        found: dict[Job, None] = {}
        for key, _ in ready:
            if key.fd == self._doorbell:
                os.read(self._doorbell, 1024)
            else:
                found.update(dict.fromkeys(self._by_fd.get(key.fd, ())))
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, turn, job = heapq.heappop(self._timers)
            if turn == job._turn:
                found[job] = None
        return list(found)

    def close(self) -> None:
        """In a forked child: only the descriptor here; what is registered is the parent's."""
        self._selector.close()

    def _register(self, fd: int) -> None:
        try:
            self._selector.unregister(fd)
        except KeyError:
            pass
        mask = 0
        for more in self._by_fd[fd].values():
            mask |= more
        if not mask:
            del self._by_fd[fd]
            return
        try:
            self._selector.register(fd, mask)
        except OSError:
            pass  # closed by whoever gave the job up, and has told it to stop; else its deadline comes


def _report(what: str, error: Exception) -> None:
    import logging

    logging.getLogger("holdfast").error("%s: %s", what, error, exc_info=error)


_agent: Agent | None = None


def agent(env: Environment) -> Agent:
    """The agent of this process."""
    global _agent
    if _agent is None:
        _agent = Agent(env)
    return _agent
