"""The asyncio driver (_drivers/asyncio.py): it waits as told, and leaves nothing in the loop, however it ends."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from holdfast import EngineUnavailable, Lock
from holdfast._core.wait import Signal, Wait
from holdfast._drivers import apart, sync
from holdfast._drivers import asyncio as driver
from holdfast._drivers.apart import Apart
from holdfast._drivers.asyncio import caller, in_thread, wait_for
from holdfast._platform import environment
from unit.loops import LOOPS, Run, readers, run_on, steps


async def drive(
    steps: Generator[Wait, None, Any],
    undo: Callable[[], object],
    *,
    in_threads: bool = False,
    apart: Apart | None = None,
) -> Any:
    """The driver, with `undo` in place of the function that undoes an operation."""
    operations, operation = environment().operations, driver.begin(environment(), caller())
    operation.undo = undo  # type: ignore[method-assign, assignment]
    result = await driver.drive(steps, operation, in_threads=in_threads, apart=apart)
    operations.end(operation)
    return result


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return run_on(request.param)


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoop:
    """A loop that the test closes while work is still in progress."""
    loop = LOOPS[request.param]()
    loop.set_exception_handler(lambda *_: None)  # that a task was pending is the point
    return loop


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


def soon(seconds: float) -> float:
    return time.monotonic() + seconds


@pytest.mark.parametrize("kind", ["nothing", "descriptor", "signal"])
def test_a_wait_lasts_until_its_deadline(kind: str, run: Run, pipe: tuple[int, int]) -> None:
    async def main() -> None:
        deadline = soon(0.02)
        signal = Signal() if kind == "signal" else None
        await wait_for(Wait((pipe[0],) if kind == "descriptor" else (), deadline, signal))
        assert time.monotonic() >= deadline - 0.002, "uvloop counts in whole milliseconds"

    run(main())


def test_an_event_ends_the_wait(run: Run, pipe: tuple[int, int]) -> None:
    async def main() -> None:
        began = time.monotonic()
        asyncio.get_running_loop().call_later(0.01, os.write, pipe[1], b"x")
        await wait_for(Wait((pipe[0], pipe[0]), soon(100)))
        await wait_for(Wait((pipe[0],), math.inf))
        assert time.monotonic() - began < 10

    run(main())


def test_a_deadline_in_the_past_lets_other_tasks_run(run: Run) -> None:
    async def main() -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for deadline in (0.0, -1e9, -1e9, -1e9):
            await wait_for(Wait((), deadline))
        assert turns >= 3
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


@pytest.mark.parametrize("where", ["same thread", "another thread", "before"])
def test_a_signal_ends_the_wait(where: str, run: Run) -> None:
    async def main() -> None:
        signal, began = Signal(), time.monotonic()
        if where == "before":
            assert signal.set()
        elif where == "same thread":
            asyncio.get_running_loop().call_soon(signal.set)
        else:
            threading.Timer(0.01, lambda: (signal.set(), signal.set())).start()
        await wait_for(Wait((), soon(100), signal))
        assert time.monotonic() - began < 10
        assert signal._wake is None, "it would be called when nobody waits"

    run(main())


def test_a_signal_reports_that_it_did_not_reach_a_closed_loop(loop: asyncio.AbstractEventLoop) -> None:
    signal = Signal()
    waiting = loop.create_task(wait_for(Wait((), math.inf, signal)))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert not signal.set()
    del waiting, loop
    gc.collect()
    assert signal._wake is None, "the signal keeps alive what waits for it"
    assert signal.set()


def test_a_thread_that_wakes_a_task_of_a_closed_loop_does_not_keep_the_task_alive(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Its call writes to a socket, so other threads run meanwhile; a task dropped then must be collectable."""
    signal, begun, go_on = Signal(), threading.Event(), threading.Event()
    tell = loop.call_soon_threadsafe

    def slow(*arguments: Any) -> None:
        begun.set()
        assert go_on.wait(20)
        tell(*arguments)

    task = loop.create_task(wait_for(Wait((), math.inf, signal)))
    waits = weakref.ref(task)
    loop.run_until_complete(asyncio.sleep(0))
    loop.call_soon_threadsafe = slow  # type: ignore[method-assign, assignment]
    reached: list[bool] = []
    thread = threading.Thread(target=lambda: reached.append(signal.set()))
    thread.start()
    assert begun.wait(20)
    loop.close()
    del task
    gc.collect()
    left = waits()
    go_on.set()
    thread.join(20)
    assert left is None
    assert reached == [False]


@pytest.mark.parametrize("kind", ["descriptor", "signal"])
def test_a_cancelled_wait_leaves_no_reader_timer_or_subscription(kind: str, run: Run, pipe: tuple[int, int]) -> None:
    async def main() -> None:
        loop, signal = asyncio.get_running_loop(), Signal()
        wait = Wait((pipe[0],), soon(1000)) if kind == "descriptor" else Wait((), soon(1000), signal)
        task = asyncio.create_task(wait_for(wait))
        await asyncio.sleep(0)
        if kind == "signal":
            assert signal._wake is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert signal._wake is None
        assert not readers(loop)
        assert not [timer for timer in getattr(loop, "_scheduled", ()) if not timer.cancelled()]
        assert not loop.remove_reader(pipe[0])

    run(main())


def test_a_wait_on_a_closed_loop_can_be_collected(loop: asyncio.AbstractEventLoop, pipe: tuple[int, int]) -> None:
    task = loop.create_task(wait_for(Wait(pipe[:1], math.inf)))
    waits = weakref.ref(task)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    del task
    gc.collect()  # an error in a finaliser fails the test
    assert waits() is None


@pytest.mark.parametrize("error", [NotImplementedError, OSError(28, "no space left")])
def test_a_loop_that_cannot_wait_for_descriptors_waits_for_the_time(error: Any, pipe: tuple[int, int]) -> None:
    class Limited(asyncio.SelectorEventLoop):
        def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
            if fd != pipe[0]:
                return super().add_reader(fd, callback, *args)
            raise error

    async def main() -> None:
        began = time.monotonic()
        await wait_for(Wait((pipe[1], pipe[0]), soon(1000)))
        assert 0.02 < time.monotonic() - began < 10
        assert not readers(asyncio.get_running_loop())

    with asyncio.Runner(loop_factory=Limited) as runner:
        runner.run(main())


def counting(waits: list[Wait], log: list[str], result: str = "done") -> Generator[Wait, None, str]:
    try:
        for wait in waits:
            log.append(f"step in {threading.current_thread().name}")
            yield wait
        return result
    except BaseException as error:
        log.append(type(error).__name__)
        raise
    finally:
        log.append(f"closed in {threading.current_thread().name}")


@pytest.mark.parametrize("in_threads", [False, True])
def test_results_and_errors_reach_the_caller(in_threads: bool, run: Run) -> None:
    async def main() -> None:
        log: list[str] = []

        def undo() -> None:
            log.append("undone")

        waits = [Wait((), 0.0), Wait((), 0.0)]
        assert await drive(counting(waits, log), undo, in_threads=in_threads) == "done"
        name = "holdfast-step" if in_threads else "MainThread"
        assert log == [f"step in {name}"] * 2 + [f"closed in {name}"]

        def failing() -> Generator[Wait, None, None]:
            yield Wait((), 0.0)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await drive(failing(), undo, in_threads=in_threads)
        assert log[-1] == "undone"

    run(main())


@pytest.mark.parametrize("in_threads", [False, True])
def test_a_cancelled_wait_is_cleaned_up(in_threads: bool, run: Run) -> None:
    async def main() -> None:
        log: list[str] = []
        steps = counting([Wait((), math.inf)], log)
        task = asyncio.create_task(
            drive(steps, lambda: log.append(f"undone in {threading.current_thread().name}"), in_threads=in_threads)
        )
        while not log:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01 if in_threads else 0)
        task.cancel("why")
        with pytest.raises(asyncio.CancelledError, match="why"):
            await task
        name = "holdfast-step" if in_threads else "MainThread"
        assert log == [f"step in {name}", "GeneratorExit", f"closed in {name}", f"undone in {name}"]

    run(main())


class Gate:
    """A step that runs in a thread and ends when told to."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.end = threading.Event()
        self.log: list[str] = []

    def steps(self) -> Generator[Wait, None, str]:
        try:
            self.begun.set()
            assert self.end.wait(20)
            self.log.append("step")
            return "acquired"
            yield Wait((), 0.0)
        finally:
            self.log.append("closed")

    def undo(self) -> None:
        self.log.append("undone")


def test_a_cancellation_during_a_step_undoes_it_after_its_end(run: Run) -> None:
    """B1: each cancellation waits for the end of the step, which is then undone; only then is the task cancelled."""

    async def main() -> None:
        gate = Gate()
        task = asyncio.create_task(drive(gate.steps(), gate.undo, in_threads=True))
        await asyncio.to_thread(gate.begun.wait)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.001)
            assert not task.done()
            assert not gate.log
        gate.end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gate.log == ["step", "closed", "undone"]
        assert task.cancelling() == 3

    run(main())


def test_a_cancellation_during_the_clean_up_waits_for_its_end(run: Run) -> None:
    """B1: the clean-up runs in a thread too, and another cancellation waits for its end."""

    async def main() -> None:
        begun, end, log = threading.Event(), threading.Event(), []

        def undo() -> None:
            begun.set()
            assert end.wait(20)
            log.append("undone")

        task = asyncio.create_task(drive(counting([Wait((), math.inf)], log), undo, in_threads=True))
        while not log:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.to_thread(begun.wait)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.001)
            assert not task.done()
        end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert log[-1] == "undone"

    run(main())


def test_an_interruption_during_a_step_undoes_it_after_its_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """B1: a KeyboardInterrupt is no cancellation, and may come anywhere."""

    async def main() -> None:
        gate = Gate()

        async def interrupted(_wait: Wait) -> None:
            gate.begun.wait()
            monkeypatch.undo()
            threading.Timer(0.01, gate.end.set).start()
            raise KeyboardInterrupt

        monkeypatch.setattr(driver, "wait_for", interrupted)
        try:
            await drive(gate.steps(), gate.undo, in_threads=True)
        except KeyboardInterrupt:
            gate.log.append("interrupted")
        assert gate.log == ["step", "closed", "undone", "interrupted"]

    run(main())


def test_a_step_that_ends_on_a_closed_loop_is_undone(loop: asyncio.AbstractEventLoop) -> None:
    """B2: its coroutine may be collected late or never, and closing a loop does not give the lock to anybody."""
    gate = Gate()
    task = loop.create_task(drive(gate.steps(), gate.undo, in_threads=True))
    loop.run_until_complete(asyncio.sleep(0))
    gate.begun.wait()
    loop.close()
    gate.end.set()
    for thread in steps():
        thread.join(20)
    assert gate.log == ["step", "closed", "undone"]
    assert not task.done()
    del task
    gc.collect()
    assert gate.log == ["step", "closed", "undone", "undone"]


def test_collecting_a_task_during_its_clean_up_does_not_stop_the_clean_up(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """B2: the collector runs in the thread that cleans up."""
    gate = Gate()

    def undo() -> None:
        gc.collect()
        gate.undo()

    gc.disable()  # it comes then, and not before
    try:
        task = loop.create_task(drive(gate.steps(), undo, in_threads=True))
        collected = weakref.ref(task)
        loop.run_until_complete(asyncio.sleep(0))
        gate.begun.wait()
        loop.close()
        del task
        (thread,) = steps()
        gate.end.set()
        thread.join(20)
        assert not thread.is_alive()
    finally:
        gc.enable()
    assert collected() is None
    assert gate.log == ["step", "closed", "undone"]


@pytest.mark.parametrize("started", [False, True])
def test_an_interruption_during_the_start_of_a_thread_undoes_its_step(
    started: bool, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1: whether the thread has begun is unknown; if so, its end is waited for."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        monkeypatch.undo()
        if started:
            start(thread)
            assert gate.begun.wait(20)
            gate.end.set()
        raise KeyboardInterrupt

    async def main() -> None:
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        try:
            await drive(gate.steps(), gate.undo, in_threads=True)
        except KeyboardInterrupt:
            gate.log.append("interrupted")

    gate = Gate()
    run(main())
    assert gate.log == (["step", "closed"] if started else []) + ["undone", "interrupted"]


@pytest.mark.parametrize("when", ["as its thread has begun", "before its thread begins"])
def test_an_interruption_beside_the_start_of_a_thread_undoes_its_step(
    when: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1: the thread is known all the same; one that never began is not waited for."""
    start = driver._start

    def interrupted(*what: Any) -> None:
        monkeypatch.undo()
        if when == "as its thread has begun":
            start(*what)
            assert gate.begun.wait(20)
            threading.Timer(0.01, gate.end.set).start()
        raise KeyboardInterrupt

    async def main() -> None:
        monkeypatch.setattr(driver, "_start", interrupted)
        try:
            await drive(gate.steps(), gate.undo, in_threads=True)
        except KeyboardInterrupt:
            gate.log.append("interrupted")

    gate = Gate()
    run(main())
    assert gate.log == (["step", "closed"] if gate.begun.is_set() else []) + ["undone", "interrupted"]


@pytest.mark.parametrize("silent", [False, True], ids=["durable", "server"])
def test_a_second_interruption_does_not_keep_the_clean_up_from_beginning(
    silent: bool, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1, B5: it comes before the thread of the clean-up exists."""
    gate, log = Gate(), list[str]()

    async def interrupted(_wait: Wait) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(driver.contextvars, "copy_context", again)
        raise KeyboardInterrupt

    def again() -> contextvars.Context:
        monkeypatch.undo()
        raise KeyboardInterrupt

    async def main() -> None:
        monkeypatch.setattr(driver, "wait_for", interrupted)
        lock = Apart(environment(), Lock("/dev/shm/l")._request, 10.0) if silent else None
        steps = counting([Wait((), math.inf)], log)
        try:
            await drive(steps, gate.undo, in_threads=True, apart=lock)
        except KeyboardInterrupt:
            gate.log.append("interrupted")

    run(main())
    for thread in steps():
        thread.join(20)
    assert log[-1].startswith("closed")
    assert sorted(gate.log) == ["interrupted", "undone"]


def test_a_step_whose_thread_begins_too_late_is_not_left_behind_for_good(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AP5, B5: as on a busy machine. The step is dropped, so nothing waits for that server."""
    monkeypatch.setattr(apart, "GRACE", 0.01)
    begins, log = threading.Event(), list[str]()
    monkeypatch.setattr(environment().operations, "about_to_hang", lambda: begins.wait(20))

    async def main() -> None:
        silent = Apart(environment(), Lock("/dev/shm/l")._request, 0.01)
        with pytest.raises(EngineUnavailable):
            await drive(counting([], log), lambda: log.append("undone"), in_threads=True, apart=silent)
        assert silent.is_silent()

    run(main())
    begins.set()
    for thread in steps():
        thread.join(20)
    assert log == ["undone"]
    assert not apart._left


@pytest.mark.parametrize("when", ["during", "after"])
def test_a_coroutine_closed_during_a_step_undoes_it(when: str, loop: asyncio.AbstractEventLoop) -> None:
    """B2: its thread cleans up, as a coroutine that is being closed cannot wait for it."""
    gate = Gate()
    main = drive(gate.steps(), gate.undo, in_threads=True)

    async def start() -> None:
        main.send(None)

    loop.run_until_complete(start())
    gate.begun.wait()
    if when == "after":
        gate.end.set()
        while not gate.log:
            time.sleep(0.001)
    loop.close()
    main.close()
    gate.end.set()
    for thread in steps():
        thread.join(20)
    assert gate.log == ["step", "closed", "undone"]


def test_a_release_does_not_wait_for_the_executor_of_the_loop(run: Run) -> None:
    """B3: all threads of that executor may be waiting for the lock."""

    async def main() -> None:
        loop, gate = asyncio.get_running_loop(), threading.Event()
        busy = [loop.run_in_executor(None, gate.wait, 20) for _ in range(100)]
        assert await asyncio.wait_for(in_thread(lambda: gate.set() or "set"), 10) == "set"
        await asyncio.gather(*busy)

    run(main())


def test_without_a_thread_a_step_runs_in_the_thread_of_the_loop(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        log: list[str] = []
        monkeypatch.setattr(threading.Thread, "start", fail)
        assert await drive(counting([Wait((), 0.0)], log), log.clear, in_threads=True) == "done"
        assert log == ["step in MainThread", "closed in MainThread"]
        assert await in_thread(lambda: 1) == 1

    run(main())


def test_a_call_in_a_thread_keeps_its_context_and_its_error(run: Run) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    async def main() -> None:
        variable.set("here")
        assert await in_thread(variable.get) == "here"
        with pytest.raises(ZeroDivisionError):
            await in_thread(lambda: 1 // 0)

    run(main())
    steps = in_thread(lambda: "no loop: at once")
    with pytest.raises(StopIteration, match="at once"):
        steps.send(None)


def test_a_cancelled_call_chains_the_error_that_it_met(run: Run) -> None:
    async def main() -> None:
        begun, end = threading.Event(), threading.Event()

        def fail() -> None:
            begun.set()
            end.wait(20)
            raise ZeroDivisionError

        task = asyncio.create_task(in_thread(fail))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await asyncio.sleep(0)
        end.set()
        try:
            await task
        except asyncio.CancelledError as error:
            chain: list[BaseException | None] = [error, error.__context__, error.__cause__]
            while chain[-1] is not None:
                chain.append(chain[-1].__context__ or chain[-1].__cause__)
            assert any(isinstance(link, ZeroDivisionError) for link in chain)

    run(main())


def test_two_tasks_are_two_callers_of_one_thread(run: Run) -> None:
    """A caller's name is its thread and its task; the name of a caller that blocks the thread begins alike."""

    async def main() -> None:
        async def name() -> tuple[object, ...]:
            assert caller() == caller()
            return caller()

        names = [caller(), *await asyncio.gather(name(), name())]
        assert len(set(names)) == 3
        assert {one[:1] for one in names} == {sync.caller()}

    run(main())
    assert caller() == (*sync.caller(), None)


def test_the_name_of_a_task_does_not_keep_the_task_alive(run: Run) -> None:
    names: list[Callable[[], object]] = []

    async def name() -> None:
        names.append(caller()[-1])  # type: ignore[arg-type]

    async def main() -> None:
        await asyncio.create_task(name())

    run(main())
    gc.collect()
    assert names[0]() is None


def test_a_bad_descriptor_leaves_none_watched(run: Run, pipe: tuple[int, int]) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match=r"-1"):
            await wait_for(Wait((pipe[0], -1), soon(10)))
        assert not asyncio.get_running_loop().remove_reader(pipe[0])

    run(main())


def test_a_signal_reports_that_it_woke_no_waiter_of_a_dropped_loop() -> None:
    """N6 relies on it: whoever sets the signal then takes the next waiter."""
    loop = asyncio.new_event_loop()
    woken = loop.create_future()
    signal = Signal()
    signal.subscribe(driver._Subscription(woken))
    assert signal.set()
    loop.close()
    del loop, woken
    gc.collect()
    signal.is_set = False
    assert not signal.set()


def test_a_step_given_up_before_its_thread_began_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """B1: a KeyboardInterrupt in the start of the thread; the caller cannot know which came first."""
    started: list[threading.Thread] = []
    called: list[str] = []

    def interrupted(thread: threading.Thread) -> None:
        started.append(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        changed.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            driver._start(lambda: called.append("called"))
    started[0].start()
    started[0].join()
    assert called == []
