"""One thread of this process that runs generators side by side: they keep the holds on servers, and clean up.

EG1  A generator runs in this thread only, one step at a time; nothing else resumes or closes it. To end it, call
     `Job.stop`; the thread then closes it.
EG2  The thread starts with the first job and ends when there has been none for a while. It is a daemon: it never keeps
     a process from ending, and what must be done before that, its callers wait for.
EG3  A job that raises is reported, and ends; the others go on.
EG4  A forked child has no such thread, and the jobs are its parent's: the child neither resumes nor closes them, and
     keeps them referenced, because collecting a generator closes it.
EG5  A job started as `last` gets a moment at the end of the process: a release or a revocation that nobody waits for.
EG6  A job that begins with a wait costs its caller no wake-up of the thread: the caller adds it to the waiting jobs,
     whose descriptors the kernel watches for the sleeper, and rings only if the thread would sleep past its deadline.
     If it ends before its first step, the caller removes it again, and nothing of it has ever run. All of that happens
     under the agent's mutex, and so does the thread's decision how long to sleep: a job added before the decision is
     part of it, and one added later knows it.
EG7  If no thread can be started, a job that is `last` runs in its caller's thread, because otherwise a lock would stay
     held until its lease is over. It gets a few seconds at most, as its server may be silent and the lease long. Other
     jobs fail.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import selectors
import threading
import time
from collections import deque
from collections.abc import Collection

from .._core.wait import Steps, Wait
from .._platform.fork import in_child
from .._platform.interface import Environment
from .._platform.sockets import receive, send
from ..events import report
from .background import ring, start
from .sync import wait_for

_IDLE = 10.0
"""Seconds without a job after which the thread ends."""
_LONGEST = 3600.0
_MOST_VOID = 256
"""The number of void timers that may stay in the heap, whatever their share of it."""
_LIVE = tuple(getattr(selectors, name) for name in ("EpollSelector", "KqueueSelector") if hasattr(selectors, name))
"""The selectors that notice registrations by another thread while they wait."""
_HERE = 5.0
"""Seconds for a job that is `last` in its caller's thread (EG7)."""
_AT_EXIT = 1.0
"""Seconds for all jobs that are `last` together at the end of the process (EG5)."""


class Job:
    """A generator that the agent runs."""

    def __init__(self, agent: Agent, steps: Steps[None], what: str, *, last: bool = False) -> None:
        self.what = what
        self.last = last
        self._agent = agent
        self.steps = steps
        self.first: Wait | None = None
        """Its first wait, still to begin, before its first step."""
        self.wait: Wait | None = None
        """The wait that it is in."""
        self.turn = 0
        """The number of times it has been resumed: plans of an earlier turn are void."""
        self.begun = self.stopped = False

    def stop(self) -> None:
        """Have the job closed soon. Idempotent; returns at once."""
        self.stopped = True
        if not self._agent.dropped(self):
            self.wake()

    def wake(self) -> None:
        """Have its next step taken, or the job closed."""
        self._agent.resume(self)


class Agent:
    """The thread that runs the jobs, and their list; one per process."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._orphans: list[Job] = []
        self._jobs: dict[Job, None] = {}
        self._idle = _IDLE
        self._begin()
        in_child(self._forked)
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
        """The jobs to be resumed or closed."""

    def start(self, steps: Steps[None], what: str, *, last: bool = False, first: Wait | None = None) -> Job:
        """Run a generator; `what` it does is reported if it fails. The process's end waits for a `last` one (EG5).

        `first` is its wait before its first step: as if it had yielded that already, but cheaper (EG6).
        """
        job = Job(self, steps, what, last=last)
        try:
            self._enlist(job, first)
        except (OSError, RuntimeError):
            if not last:
                raise
            _run_here(job)  # EG7
        return job

    def _enlist(self, job: Job, first: Wait | None) -> None:
        with self._mutex:
            if self._doorbell is None:
                self._doorbell = self._env.pipe(among_sockets=True)
            if self._waits is None:
                self._waits = _Waits(self._doorbell[0], self._jobs)  # may fail: the table of descriptors is full
            self._jobs[job] = None
            try:
                if self._thread is None:
                    self._start()
                if first is not None and self._waits.is_live:
                    self._waits.add(job, first)
                    if first.deadline >= self._waits.until:
                        return
                else:
                    job.first = first
                    self._ripe.append(job)
            except BaseException:
                self.dropped(job)
                raise
        self._ring()

    def dropped(self, job: Job) -> bool:
        """Whether it had not begun, or has ended, so that nothing is left to be closed (EG6)."""
        with self._mutex:
            if job in self._jobs and not job.begun and self._waits is not None:
                self._waits.drop(job)
                self._jobs.pop(job, None)
                if self._waits.is_littered:
                    self._ring()
            return job not in self._jobs

    def resume(self, job: Job) -> None:
        """Have the thread take the job's next step, or close it."""
        self._ripe.append(job)
        self._ring()

    def settle(self, seconds: float = _AT_EXIT) -> None:
        """Wait until all jobs that are `last` are done, `seconds` at most (EG5)."""
        until = time.monotonic() + seconds
        while any(job.last for job in list(self._jobs)) and time.monotonic() < until:
            time.sleep(0.001)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="holdfast-agent", daemon=True)
        try:
            start(self._thread)
        except BaseException:
            self._thread = None
            raise

    def _ring(self) -> None:
        ring(self._doorbell, send)

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
                waits.plan(idle_since + self._idle)
            found = waits.sleep()
            with self._mutex:
                ripe += waits.over(found)

    def _step(self, job: Job, waits: _Waits) -> None:
        with self._mutex:
            if job not in self._jobs:
                return  # it has ended since it was called ripe
            waits.drop(job)
            first, job.first = job.first, None
            if first is not None:
                waits.add(job, first)
                return
            job.begun = True
        try:
            if job.stopped:
                job.steps.close()
            else:
                wait = next(job.steps)
                with self._mutex:
                    waits.add(job, wait)
                return
        except StopIteration:
            pass
        except Exception as error:
            report(job.what, error)
        with self._mutex:
            self._jobs.pop(job, None)


def _run_here(job: Job) -> None:
    until = time.monotonic() + _HERE
    try:
        for wait in job.steps:
            if time.monotonic() >= until:
                job.steps.close()
                return
            wait_for(wait.replaced(deadline=min(wait.deadline, until)))
    except Exception as error:
        report(job.what, error)


class _Waits:
    """The waits of the jobs. The cost of a wake-up depends on what is to be done, not on the number of jobs.

    A descriptor is registered anew for each turn: its number may belong to another file by then. Every method but
    `sleep` is called under the agent's mutex.
    """

    def __init__(self, doorbell: int, jobs: Collection[Job]) -> None:
        self.until = -math.inf
        """The time until which the thread sleeps; -infinity while it is awake, as it plans before it sleeps."""
        self._doorbell = doorbell
        self._jobs = jobs
        self._selector = selectors.DefaultSelector()
        self._selector.register(doorbell, selectors.EVENT_READ)
        self.is_live = isinstance(self._selector, _LIVE)
        """Whether a sleeping thread notices new registrations (EG6)."""
        self._by_fd: dict[int, dict[Job, int]] = {}
        self._registered: set[int] = set()
        self._timers: list[tuple[float, int, int, Job]] = []
        """Each timer: its time, a number that orders timers of equal time, the job's turn, and the job."""
        self._numbers = itertools.count()

    def add(self, job: Job, wait: Wait) -> None:
        job.wait = wait
        for fd in {*wait.fds, *wait.writes}:
            mask = selectors.EVENT_READ * (fd in wait.fds) | selectors.EVENT_WRITE * (fd in wait.writes)
            jobs = self._by_fd.setdefault(fd, {})
            jobs[job] = mask
            self._register(fd, jobs)
        if wait.deadline < math.inf:
            heapq.heappush(self._timers, (wait.deadline, next(self._numbers), job.turn, job))
        if wait.signal is not None:
            wait.signal.subscribe(job.wake)

    def drop(self, job: Job) -> None:
        """End the job's wait: it is to be resumed, or has ended."""
        wait, job.wait = job.wait, None
        job.turn += 1
        if wait is None:
            return
        if wait.signal is not None:
            wait.signal.unsubscribe()
        for fd in {*wait.fds, *wait.writes}:
            jobs = self._by_fd.get(fd, {})
            jobs.pop(job, None)
            self._register(fd, jobs)

    @property
    def is_littered(self) -> bool:
        """Whether most timers are void, so that the next plan removes them."""
        void = len(self._timers) - len(self._jobs)  # no job has more than one that is not
        return void > _MOST_VOID and void * 2 > len(self._timers)

    def plan(self, until: float) -> None:
        """Decide how long to sleep: until `until` at the latest.

        Only this thread removes timers: no signal handler, which could add one meanwhile, interrupts it.
        """
        if self.is_littered:
            self._timers = [timer for timer in self._timers if timer[2] == timer[3].turn]
            heapq.heapify(self._timers)
        while self._timers and self._timers[0][2] != self._timers[0][3].turn:
            heapq.heappop(self._timers)
        self.until = min(until, self._timers[0][0]) if self._timers else until

    def sleep(self) -> list[int]:
        """Sleep until the planned time, or until a descriptor is ready. The ready ones."""
        pause = min(max(0.0, self.until - time.monotonic()), _LONGEST)
        try:
            return [key.fd for key, _ in self._selector.select(pause)]
        except OSError:
            return [*self._registered]  # one was closed, and the kernel keeps no set of them

    def over(self, ready: list[int]) -> list[Job]:
        """The jobs to be resumed."""
        self.until = -math.inf
        found: dict[Job, None] = {}
        for fd in ready:
            if fd == self._doorbell:
                receive(fd, 1024)
            else:
                found.update(dict.fromkeys(self._by_fd.get(fd, ())))
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, turn, job = heapq.heappop(self._timers)
            if turn == job.turn:
                found[job] = None
        return list(found)

    def close(self) -> None:
        """Close only this process's descriptor, in a forked child; the registrations are the parent's."""
        self._selector.close()

    def _register(self, fd: int, jobs: dict[Job, int]) -> None:
        # A caller may be interrupted between any two of these steps: the set may have too many, never too few.
        if fd in self._registered:
            with contextlib.suppress(KeyError):
                self._selector.unregister(fd)
            self._registered.discard(fd)
        mask = 0
        for more in jobs.values():
            mask |= more
        if not mask:
            self._by_fd.pop(fd, None)
            return
        self._registered.add(fd)
        try:
            self._selector.register(fd, mask)
        except OSError:
            self._registered.discard(fd)  # closed by the caller that has stopped the job; else the deadline wakes it


_agent: Agent | None = None


def agent(env: Environment) -> Agent:
    """The agent of this process."""
    global _agent
    if _agent is None:
        _agent = Agent(env)
    return _agent


def settle() -> None:
    """Wait for the last jobs, which still tell servers something; for a process that ends without the ordinary exit."""
    if _agent is not None:
        _agent.settle()
