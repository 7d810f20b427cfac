"""The agent's thread where the system refuses it something, and after a fork (agent.py); test_engines.py has its work
for engines."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import threading
import time
from collections.abc import Callable, Generator, Iterator

import pytest

from holdfast._core.wait import Wait, pause
from holdfast._drivers import agent as agent_module
from holdfast._drivers.agent import Agent, Job
from process.support import eventually
from unit.stepping import Stepped

Steps = Generator[Wait, None, None]


@pytest.fixture
def env(environments: Callable[..., Stepped]) -> Stepped:
    return environments()


@pytest.fixture
def agent(env: Stepped) -> Iterator[Agent]:
    made = Agent(env)  # type: ignore[arg-type]
    yield made
    made._idle = 0.0
    thread, doorbell, waits = made._thread, made._doorbell, made._waits
    if thread is not None:
        made._ring()
        thread.join(10)
        assert not thread.is_alive()
    if waits is not None:
        waits.close()
    for fd in doorbell or ():
        env.close(fd)


def fill(fd: int) -> None:
    """Write until the pipe is full."""
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(fd, b"!" * 4096)


def once(log: list[str]) -> Steps:
    log.append("done")
    yield from ()


def test_a_job_without_a_thread_is_dropped_and_the_next_one_runs(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets the error and gives the job up; the next job runs as usual."""
    log: list[str] = []

    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as changed:
        changed.setattr(threading.Thread, "start", none_left)
        with pytest.raises(RuntimeError, match="can't start"):
            agent.start(once(log), "at work")
    assert not agent._jobs
    agent.start(once(log), "at work")
    eventually(lambda: not agent._jobs)
    assert log == ["done"]


def test_a_last_job_needs_no_thread(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """EG7: the caller's thread does it."""
    log: list[str] = []

    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def steps() -> Steps:
        yield Wait((), 0.0)
        log.append(threading.current_thread().name)

    monkeypatch.setattr(threading.Thread, "start", none_left)
    agent.start(steps(), "at work", last=True)
    assert log == ["MainThread"]
    assert not agent._jobs


def test_a_last_job_without_a_thread_delays_its_caller_only_briefly(
    agent: Agent, env: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EG7: even if a server stays silent for the whole of a long lease."""
    log: list[str] = []

    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def steps() -> Steps:
        try:
            yield from pause(env, time.monotonic() + 10.0)  # type: ignore[arg-type]
            log.append("its whole time")
        finally:
            log.append("closed")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    monkeypatch.setattr(agent_module, "_HERE", 0.01, raising=False)
    agent.start(steps(), "at work", last=True)
    assert log == ["closed"]


def test_a_job_without_a_selector_leaves_one_doorbell(
    agent: Agent, env: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> selectors.BaseSelector:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    log: list[str] = []
    with monkeypatch.context() as changed:
        changed.setattr(selectors, "DefaultSelector", none_left)
        for _ in range(3):
            with pytest.raises(OSError, match="open files"):
                agent.start(once(log), "at work")
    assert len(env.open_descriptors()) == 2
    agent.start(once(log), "at work")
    eventually(lambda: not agent._jobs)
    assert log == ["done"]


def test_a_descriptor_closed_meanwhile_ends_no_other_job_under_select(
    agent: Agent, env: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, whose kernel keeps no set of descriptors: all waiting jobs are checked then."""
    monkeypatch.setattr(selectors, "DefaultSelector", selectors.SelectSelector)
    ends, log = env.pipe(), list[str]()

    def steps(name: str, seconds: float) -> Steps:
        until = time.monotonic() + seconds
        while time.monotonic() < until and name not in log:
            yield Wait((ends[0],) if name == "closed" else (), until)
        log.append(name)

    closed = agent.start(steps("closed", 60), "waiting for a descriptor that another closes")
    eventually(lambda: closed.begun and agent._waits is not None and agent._waits.until > time.monotonic())
    for fd in ends:
        env.close(fd)
    closed.stop()
    agent.start(steps("another", 0.01), "at work")
    eventually(lambda: not agent._jobs)
    assert log == ["another"]


@pytest.mark.parametrize("step", ["register", "unregister"])
def test_a_descriptor_is_waited_for_again_after_ctrl_c(
    agent: Agent, env: Stepped, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """J3: Ctrl-C comes as a caller adds or removes a job, after the selector's call and before the note of it."""
    if not hasattr(selectors, "EpollSelector"):
        pytest.skip("callers put jobs in where the selector heeds it")
    ends, log = env.pipe(), list[str]()
    sleeper = agent.start(once(log), "at work", first=Wait((), time.monotonic() + 3600))
    assert agent._waits is not None
    selector = agent._waits._selector
    real = getattr(selector, step)

    def interrupted(*arguments: object) -> None:
        real(*arguments)
        monkeypatch.undo()
        raise KeyboardInterrupt

    def waiting() -> Job:
        return agent.start(once(log), "at work", first=Wait((ends[0],), time.monotonic() + 3600))

    monkeypatch.setattr(selector, step, interrupted)
    job: Job | None = None
    with contextlib.suppress(KeyboardInterrupt):
        job = waiting()
        job.stop()
    assert getattr(selector, step) == real, "nothing was interrupted"
    if job is not None:
        job.stop()  # as whatever undoes it does
    waiting()
    os.write(ends[1], b"!")
    eventually(lambda: log)
    sleeper.stop()
    eventually(lambda: not agent._jobs)
    for fd in ends:
        env.close(fd)


def test_a_full_doorbell_can_be_rung(agent: Agent, env: Stepped) -> None:
    agent._doorbell = ends = env.pipe()
    fill(ends[1])
    agent._ring()
    assert os.read(ends[0], 1) == b"!"


def test_the_agent_survives_a_descriptor_closed_meanwhile(agent: Agent) -> None:
    """A job whose descriptor was closed has usually been given up; one that was not is resumed at its deadline."""
    log: list[str] = []

    def steps() -> Steps:
        closed = os.open("/dev/null", os.O_RDONLY)
        os.close(closed)
        yield Wait((closed,), time.monotonic() + 0.01)
        log.append("resumed")

    agent.start(steps(), "at work")
    eventually(lambda: not agent._jobs)
    assert log == ["resumed"]


def test_the_thread_ends_in_a_forked_process(agent: Agent, env: Stepped) -> None:
    """EG4: the fork is made by a job."""
    log: list[str] = []
    agent.start(once(log), "at work")
    thread = agent._thread
    assert thread is not None
    eventually(lambda: log)
    env.real.generation += 1
    agent._ring()
    thread.join(10)
    assert not thread.is_alive()
    agent._thread = None
