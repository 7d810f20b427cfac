"""The services that every engine gets for its generators: both faces, releases that wait, loss, forks, and the agent's
thread."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import pickle
import threading
from collections.abc import Callable, Generator, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

import holdfast
from engines.toy import Toy, ToyHeld
from holdfast import AsyncLock, Lock, Semaphore, engines
from holdfast._core.wait import Signal, Wait
from holdfast._drivers.agent import Agent
from holdfast._drivers.agent import agent as agent_of
from holdfast._drivers.background import call_aside
from holdfast._platform import environment
from holdfast.engines import remote
from holdfast.lock import leave_to
from holdfast.several import in_order
from process.support import eventually
from unit.stepping import failing

URL = "toy://host/db#one"


@pytest.fixture(autouse=True, scope="module")
def _doorbell() -> None:
    """The descriptors that the agent keeps until its process ends are no leak of a test."""

    def nothing() -> Generator[Wait, None, None]:
        yield from ()

    agent_of(environment()).start(nothing(), "at work")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    made = Toy()
    monkeypatch.setitem(engines._made, "toy", made)
    yield made
    assert all(not queue for queue in made.server.queues.values())
    assert not [held for held in environment().holds.values() if held.waits]


def test_a_url_and_a_path_are_told_apart(toy: Toy) -> None:
    assert Lock(URL).path == URL
    assert Lock(URL).protocol == "toy"
    assert Lock("toy:/host").path == os.path.join(os.getcwd(), "toy:/host")
    assert Lock("./toy://host").path == os.path.join(os.getcwd(), "toy:/host")  # the kernel reads // as /
    with pytest.raises(holdfast.InvalidPath, match=r"nope://; there are: .*A file of that name is \./nope://"):
        Lock("nope://host")


def test_a_password_is_not_shown(toy: Toy) -> None:
    lock = Lock("toy://me:secret@host/db#one")
    assert "secret" not in repr(lock) + lock.path
    assert pickle.loads(pickle.dumps(lock))._request.given == "toy://me:secret@host/db#one"


def test_an_engine_of_an_installed_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"engines.toy:Toy": "", "engines.toy:NOTHING": "not a holdfast.engines.Engine", "a:b": "cannot be loaded"}
    for value, wrong in kinds.items():
        entry = EntryPoint("another", value, engines.GROUP)
        offered = {engines.GROUP: [entry]}
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group, offered=offered: offered[group])
        monkeypatch.setattr(engines, "_made", {})
        if wrong:
            with pytest.raises(holdfast.HoldfastError, match=wrong):
                Lock("another://host")
        else:
            Lock("another://host").acquire(timeout=1).release()


def test_an_option_without_meaning_is_refused(toy: Toy) -> None:
    for options in ({"mode": 0o600}, {"shared": True}, {"fair": False}, {"durable": True}, {"stale": "never"}):
        with pytest.raises(ValueError, match=r"toy"):
            Lock(URL, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Lock.* unexpected keyword argument 'nonsense'"):
        Lock(URL, nonsense=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="semaphores"):
        Semaphore(URL, 2)


def test_one_holder_is_inside_at_a_time_and_a_waiter_is_woken(toy: Toy) -> None:
    lock, order = Lock(URL, tag="deploy"), []
    with lock as hold:
        assert lock.try_acquire() is None
        with pytest.raises(holdfast.AcquireTimeout, match="deploy"):
            lock.acquire(timeout=0.01)
        waiter = threading.Thread(target=lambda: order.append(lock.acquire()))
        waiter.start()
        eventually(lambda: len(toy.server.queues[URL]) == 2)
        assert lock.status().locked
        assert not lock.wait(timeout=0)
        assert hold.token == 1
        hold.ensure_held()
    waiter.join()
    assert order[0].token == 2
    order[0].release()
    order[0].release()
    assert lock.wait(timeout=0)


def test_a_cancelled_task_neither_holds_nor_waits(toy: Toy) -> None:
    async def main() -> None:
        lock = AsyncLock(URL)
        async with lock as hold:
            assert await lock.try_acquire() is None
            assert (await lock.status()).locked
            waiter = asyncio.ensure_future(lock.acquire())
            while len(toy.server.queues[URL]) < 2:
                await asyncio.sleep(0)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert len(toy.server.queues[URL]) == 1
            assert hold.token == 1
        assert not toy.server.queues[URL]

    asyncio.run(main())


def test_a_cancelled_release_is_completed(toy: Toy) -> None:
    """EH2."""

    async def main() -> None:
        hold = await AsyncLock(URL).acquire()
        toy.server.stuck = True
        release = asyncio.ensure_future(hold.release())
        await asyncio.sleep(0.02)
        release.cancel()
        await asyncio.sleep(0.02)
        assert not release.done()
        toy.server.stuck = False
        with pytest.raises(asyncio.CancelledError):
            await release
        assert not toy.server.queues[URL]

    asyncio.run(main())


def test_an_interrupted_release_frees_the_lock(toy: Toy) -> None:
    """EH2: the engine closes the connection that keeps the lock, whatever interrupts the release."""
    hold = Lock(URL).acquire()
    toy.server.stuck = True
    steps = hold._held.releasing()
    next(steps)
    steps.close()
    assert toy.server.closed == 1
    assert not toy.server.queues[URL]


class InterruptedMutex:
    """A mutex whose release a signal interrupts: Python handles the signal once the mutex is free."""

    def __init__(self, held: Any) -> None:
        self._held, self._mutex = held, held.mutex

    def __enter__(self) -> None:
        self._mutex.acquire()

    def __exit__(self, *_: object) -> None:
        self._held.mutex = self._mutex
        self._mutex.release()
        raise KeyboardInterrupt


def test_a_release_interrupted_as_it_begins_frees_the_lock(toy: Toy) -> None:
    """EH2, J2: at once, and not only when the process ends."""
    hold = Lock(URL).acquire()
    hold._held.mutex = InterruptedMutex(hold._held)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt), hold:
        pass
    assert not toy.server.queues[URL]
    Lock(URL).acquire(timeout=5).release()
    assert hold._held not in environment().operations.running


def test_a_release_interrupted_twice_is_completed_by_the_next_operation(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EH2, J2 to J4: the second interruption comes during the clean-up after the first."""
    hold = Lock(URL).acquire()
    with monkeypatch.context() as changed:
        changed.setattr(ToyHeld, "_give_up", failing(KeyboardInterrupt()))
        changed.setattr(ToyHeld, "_close", failing(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            hold.release()
    assert toy.server.queues[URL]
    Lock(URL).acquire(timeout=5).release()
    assert hold._held not in environment().operations.running


def test_a_release_under_way_is_not_taken_for_broken_off(toy: Toy) -> None:
    """J4: another operation completes neither a thread's release nor that of a sleeping task."""
    operations = environment().operations

    async def in_a_task() -> None:
        async with AsyncLock(URL):
            toy.server.stuck = True

    def in_a_thread() -> None:
        with Lock(URL):
            toy.server.stuck = True

    for number, act in enumerate((in_a_thread, lambda: asyncio.run(in_a_task()))):
        thread = threading.Thread(target=act)
        thread.start()
        eventually(lambda: toy.server.stuck and any(isinstance(one, ToyHeld) for one in operations.running.copy()))
        operations.finish_broken_off()
        assert toy.server.closed == number
        toy.server.stuck = False
        thread.join()
        assert toy.server.closed == number + 1


def test_a_released_hold_forgets_its_handles(toy: Toy) -> None:
    """H2: a reference to the hold, such as that of a job about to end, keeps no handle alive."""
    hold = Lock(URL).acquire()
    hold.release()
    assert not hold._held.refs


def test_a_loss_is_reported_once_and_frees_no_other_lock(toy: Toy) -> None:
    """EH1, EH3."""
    lost: list[holdfast.LockLost] = []
    hold = Lock(URL, on_lost=lost.append).acquire()
    assert not hold.lost
    assert Lock(URL).break_lock() is not None
    next_one = Lock(URL).acquire(timeout=1)
    eventually(lambda: lost)
    assert hold.lost
    with pytest.raises(holdfast.LockLost, match="the server has revoked it"):
        hold.ensure_held()
    with pytest.raises(holdfast.LockLost):
        hold.release()
    assert len(lost) == 1
    next_one.ensure_held()
    next_one.release()


def test_a_promise_that_has_run_out_counts_as_lost(toy: Toy) -> None:
    """EH1."""
    hold = Lock(URL).acquire()
    hold._held.term.extend(remote.moment(environment()), 0)
    assert hold.lost
    with pytest.raises(holdfast.LockLost, match="its lease ran out"):
        hold.release()


def test_an_owner_has_one_hold_that_a_child_cannot_release(toy: Toy) -> None:
    hold = Lock(URL).acquire()
    child = os.fork()
    if child == 0:
        try:
            hold.release()
            os._exit(0 if toy.server.queues[URL] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    hold.release()


def test_locks_of_several_engines_have_one_order(toy: Toy, tmp_path: Any) -> None:
    a, b, c = Lock(URL), Lock(tmp_path / "file"), Lock("toy://host/db#other")
    with holdfast.acquire_all([a, b, c]) as holds:
        assert [hold.path for hold in holds] == [a.path, b.path, c.path]
        assert in_order([a, b, c]) == [1, 0, 2]
    with pytest.raises(ValueError, match="in common"):
        holdfast.acquire_all([a, Lock(URL)])


def test_a_lock_that_dies_with_its_connection_cannot_be_left_to_another_process(toy: Toy) -> None:
    assert leave_to(Lock(URL).acquire(), os.getppid())
    assert not toy.server.queues[URL]


# -- the agent ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent(environment())
    yield made
    eventually(lambda: not made._jobs)
    thread, doorbell, waits = made._thread, made._doorbell, made._waits
    made._idle = 0.0
    made._ring()
    if thread is not None:
        thread.join()
    if waits is not None:
        waits.close()
    for fd in doorbell or ():
        environment().close(fd)  # or each forked child would close that number, whatever uses it by then


def test_a_job_runs_and_is_closed_in_the_agents_thread(agent: Agent) -> None:
    """EG1."""
    threads: list[str] = []
    go = Signal()

    def steps() -> Generator[Wait, None, None]:
        try:
            while True:
                threads.append(threading.current_thread().name)
                yield Wait((), environment().monotonic() + 10, go)
                go.is_set = False
        finally:
            threads.append("closed in " + threading.current_thread().name)

    job = agent.start(steps(), "at work")
    eventually(lambda: threads)
    go.set()
    eventually(lambda: len(threads) == 2)
    job.stop()
    eventually(lambda: len(threads) == 3)
    assert threads == ["holdfast-agent", "holdfast-agent", "closed in holdfast-agent"]
    assert not agent._jobs


def test_a_ready_descriptor_wakes_its_job(agent: Agent) -> None:
    seen: list[str] = []
    r, w = os.pipe()

    def steps() -> Generator[Wait, None, None]:
        yield Wait((), environment().monotonic() + 10, None, (w,))
        seen.append("writable")
        yield Wait((r,), environment().monotonic() + 10)
        seen.append("readable")

    agent.start(steps(), "at work")
    eventually(lambda: seen == ["writable"])
    os.write(w, b"!")
    eventually(lambda: seen == ["writable", "readable"])
    os.close(r)
    os.close(w)


def test_a_job_that_fails_leaves_the_others_running(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    """EG3."""
    rounds: list[int] = []

    def broken() -> Generator[Wait, None, None]:
        yield Wait((), environment().monotonic())
        raise OSError("no such luck")

    def steps() -> Generator[Wait, None, None]:
        while True:
            rounds.append(1)
            yield Wait((), environment().monotonic() + 0.001)

    with caplog.at_level(logging.ERROR, "holdfast"):
        job = agent.start(steps(), "at work")
        agent.start(broken(), "while keeping one")
        eventually(lambda: "while keeping one: no such luck" in caplog.text)
    before = len(rounds)
    eventually(lambda: len(rounds) > before + 2)
    job.stop()
    eventually(lambda: not agent._jobs)


def test_the_thread_ends_when_idle_and_starts_when_needed(agent: Agent) -> None:
    """EG2."""
    agent._idle = 0.01
    done: list[int] = []

    def steps() -> Generator[Wait, None, None]:
        done.append(1)
        yield from ()

    for number in (1, 2):
        agent.start(steps(), "at work")
        eventually(lambda number=number: len(done) == number)  # type: ignore[misc]
        eventually(lambda: agent._thread is None)


def test_a_forked_child_does_not_go_on_with_its_parents_jobs(agent: Agent) -> None:
    """EG4."""
    closed: list[int] = []

    def steps() -> Generator[Wait, None, None]:
        try:
            yield Wait((), environment().monotonic() + 100)
        finally:
            closed.append(os.getpid())

    job = agent.start(steps(), "at work")
    eventually(lambda: job.wait is not None)
    run: list[int] = []

    def one() -> Generator[Wait, None, None]:
        run.append(1)
        yield from ()

    child = os.fork()
    if child == 0:
        try:
            agent.start(one(), "at work")
            eventually(lambda: run)
            os._exit(1 if closed or len(agent._orphans) != 1 else 0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    job.stop()
    eventually(lambda: closed == [os.getpid()])


def test_last_jobs_are_done_before_the_process_ends(agent: Agent) -> None:
    """EG5: `settle` waits for last jobs, for no others, and not for ever."""
    done: list[int] = []
    go = Signal()

    def last() -> Generator[Wait, None, None]:
        yield Wait((), environment().monotonic() + 0.05)
        done.append(1)

    def long() -> Generator[Wait, None, None]:
        yield Wait((), environment().monotonic() + 100, go)

    job = agent.start(long(), "at work")
    agent.start(last(), "at work", last=True)
    agent.settle(10)
    assert done
    stuck = agent.start(long(), "at work", last=True)
    agent.settle(0.01)
    job.stop()
    stuck.stop()


def rests(agent: Agent) -> None:
    """Wait until the thread sleeps by a plan that includes all jobs so far."""

    def nothing() -> Generator[Wait, None, None]:
        yield from ()

    agent.start(nothing(), "at work")
    waits = agent._waits
    assert waits is not None
    eventually(lambda: not agent._jobs or not agent._ripe)
    eventually(lambda: waits.until > 0)


@pytest.mark.parametrize("live", [True, False])
def test_a_sleeping_agent_hears_of_a_first_wait(agent: Agent, monkeypatch: pytest.MonkeyPatch, live: bool) -> None:
    """EG6: for a descriptor, a signal or a deadline; also where the thread must be woken for that."""
    rests(agent)
    assert agent._waits is not None
    if not live:
        agent._waits.is_live = False
    rung, seen = list[int](), list[str]()
    ring = agent._ring
    monkeypatch.setattr(agent, "_ring", lambda: (rung.append(1), ring()))
    r, w = os.pipe()
    go = Signal()

    def steps(what: str) -> Generator[Wait, None, None]:
        seen.append(f"{what} in {threading.current_thread().name}")
        yield from ()

    later = environment().monotonic() + 3000
    agent.start(steps("descriptor"), "at work", first=Wait((r,), later))
    agent.start(steps("signal"), "at work", first=Wait((), later, go))
    assert len(rung) == (0 if live else 2)
    assert not seen
    os.write(w, b"!")
    eventually(lambda: seen == ["descriptor in holdfast-agent"])
    go.set()
    eventually(lambda: seen[1:] == ["signal in holdfast-agent"])
    rests(agent)
    agent.start(steps("deadline"), "at work", first=Wait((), environment().monotonic() + 0.01))
    eventually(lambda: seen[2:] == ["deadline in holdfast-agent"], within=5)
    os.close(r)
    os.close(w)


@pytest.mark.parametrize("live", [True, False])
def test_a_job_stopped_before_its_first_step_leaves_nothing(agent: Agent, live: bool) -> None:
    """EG6: the agent keeps nothing of it, however many such jobs come while the thread sleeps."""
    rests(agent)
    waits = agent._waits
    assert waits is not None
    if not live:
        waits.is_live = False
    r, w = os.pipe()
    run: list[int] = []

    def steps() -> Generator[Wait, None, None]:
        run.append(1)
        yield from ()

    keep = agent.start(steps(), "at rest", first=Wait((), environment().monotonic() + 1000))
    for _ in range(1000):
        job = agent.start(steps(), "at work", first=Wait((r,), environment().monotonic() + 2000))
        job.stop()
        job.stop()
    assert list(agent._jobs) == [keep]
    eventually(lambda: len(waits._timers) < 600)
    os.write(w, b"!")
    rests(agent)
    assert not run
    assert not waits._by_fd
    keep.stop()
    os.close(r)
    os.close(w)


def test_a_callback_that_fails_is_logged(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise ValueError("of the caller's making")

    call: Callable[[], object] = broken
    with caplog.at_level(logging.ERROR, "holdfast"):
        call_aside(call, "in on_lost")
        eventually(lambda: "in on_lost: of the caller's making" in caplog.text)


def test_a_loss_is_reported_where_no_thread_can_start(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.12 on, a daemon thread may not start another while the interpreter ends."""

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    told: list[str] = []
    call_aside(lambda: told.append("lost"), "in on_lost")
    assert told == ["lost"]


def test_the_number_of_a_closed_descriptor_can_be_waited_for_anew(agent: Agent) -> None:
    """A job closes the file it waited for, and waits for a new file with the same number."""
    seen: list[str] = []
    first, second = os.pipe(), os.pipe()

    def steps() -> Generator[Wait, None, None]:
        yield Wait((first[0],), environment().monotonic() + 10)
        os.dup2(second[0], first[0])
        seen.append("first")
        yield Wait((first[0],), environment().monotonic() + 10)
        seen.append("second")

    agent.start(steps(), "at work")
    os.write(first[1], b"!")
    eventually(lambda: seen == ["first"])
    os.write(second[1], b"!")
    eventually(lambda: seen == ["first", "second"], within=5)
    for fd in (*first, *second):
        os.close(fd)


def test_a_wake_up_looks_at_one_of_a_thousand_jobs(agent: Agent) -> None:
    """A wake-up resumes only the job that it is for, and the selector gets no further call."""
    go, rounds = Signal(), [0, 0]

    def idle() -> Generator[Wait, None, None]:
        while True:
            rounds[0] += 1
            yield Wait((), environment().monotonic() + 100)

    def busy() -> Generator[Wait, None, None]:
        while rounds[1] < 50:
            rounds[1] += 1
            go.is_set = False
            yield Wait((), environment().monotonic() + 100, go)

    jobs = [agent.start(idle(), "at rest") for _ in range(1000)]
    eventually(lambda: rounds[0] == 1000)
    jobs.append(agent.start(busy(), "at work"))
    eventually(lambda: (go.set(), rounds[1] == 50)[-1])
    assert rounds[0] == 1000
    for job in jobs:
        job.stop()


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "postgresql+asyncpg", "postgres+psycopg2"])
def test_a_url_of_sqlalchemy_is_refused_with_the_one_to_write(scheme: str) -> None:
    wanted = scheme.partition("+")[0]
    with pytest.raises(holdfast.InvalidPath, match=rf"SQLAlchemy.*write {wanted}://") as caught:
        Lock(f"{scheme}://me:SECRET@h/db#name")
    assert "SECRET" not in str(caught.value)
