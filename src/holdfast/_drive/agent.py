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

import math
import os
import select
import threading
import time

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
        """What it waits for; None: it is to be resumed."""
        self._stopped = False

    def stop(self) -> None:
        """Have it closed soon. Idempotent; returns at once."""
        self._stopped = True
        self._agent._ring()


class Agent:
    """One per process."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._orphans: list[Job] = []
        self._jobs: list[Job] = []
        self._idle = _IDLE
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        import atexit

        atexit.register(self.settle)  # before the keeper's, which is made with the first hold: so it runs after it

    def _forked(self) -> None:
        self._orphans += self._jobs  # EG4
        self._jobs = []
        self._begin()

    def _begin(self) -> None:
        self._mutex = threading.RLock()
        self._thread: threading.Thread | None = None
        self._doorbell: tuple[int, int] | None = None

    def start(self, steps: Generator[Wait, None, None], what: str, *, last: bool = False) -> Job:
        """Run a generator; `what` it does is said if it fails. What is `last` is waited for at the end (EG5)."""
        job = Job(self, steps, what, last=last)
        with self._mutex:
            self._jobs.append(job)
            if self._doorbell is None:
                self._doorbell = self._env.pipe()
            if self._thread is None:
                self._start()
        self._ring()
        return job

    def settle(self, seconds: float = _AT_EXIT) -> None:
        """Wait until what was started as `last` is done, so many seconds at the most (EG5)."""
        until = time.monotonic() + seconds
        while any(job.last for job in self._jobs) and time.monotonic() < until:
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
        generation = self._env.generation
        idle_since = time.monotonic()
        while generation == self._env.generation:
            with self._mutex:
                jobs = list(self._jobs)
                if jobs:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since >= self._idle:
                    self._thread = None
                    return
            for job in jobs:
                if job._stopped or job._wait is None:
                    self._step(job)
            self._sleep(jobs, idle_since + self._idle)

    def _step(self, job: Job) -> None:
        try:
            if job._stopped:
                job._steps.close()
            else:
                wait = job._wait = next(job._steps)
                if wait.signal is not None:
                    wait.signal.subscribe(self._ring)
                return
        except StopIteration:
            pass
        except Exception as error:
            _report(job.what, error)
        with self._mutex:
            if job in self._jobs:
                self._jobs.remove(job)

    def _sleep(self, jobs: list[Job], until: float) -> None:
        """Until a job is to be resumed; marks those that are."""
        assert self._doorbell is not None
        waits = [(job, job._wait) for job in jobs if job._wait is not None and not job._stopped]
        poll = select.poll()
        poll.register(self._doorbell[0], select.POLLIN)
        events: dict[int, int] = {}
        for _, wait in waits:
            for fd in wait.fds:
                events[fd] = events.get(fd, 0) | select.POLLIN
            for fd in wait.writes:
                events[fd] = events.get(fd, 0) | select.POLLOUT
        for fd, mask in events.items():
            poll.register(fd, mask)
        ripe = any(job._wait is None or job._stopped for job in jobs if job in self._jobs)
        until = min([until, *(wait.deadline for _, wait in waits)]) if waits else until
        pause = 0.0 if ripe else min(max(0.0, until - time.monotonic()), _LONGEST)
        ready = {fd for fd, _ in poll.poll(math.ceil(pause * 1000))}
        if self._doorbell[0] in ready:
            os.read(self._doorbell[0], 1024)
        now = time.monotonic()
        for job, wait in waits:
            signalled = wait.signal is not None and wait.signal.is_set
            if signalled or now >= wait.deadline or not ready.isdisjoint((*wait.fds, *wait.writes)):
                if wait.signal is not None:
                    wait.signal.unsubscribe()
                job._wait = None


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
