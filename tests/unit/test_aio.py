"""`AsyncLock` beyond what it shares with `Lock` (test_lock.py): tasks, loops, cancellation (aio.py). asyncio's own lock
sets the expectations."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import pickle
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    AcquireTimeout,
    AsyncHold,
    AsyncLock,
    InvalidPath,
    Lock,
    NotHeld,
    WouldDeadlock,
    aio,
)
from holdfast import lock as hold_module
from holdfast._drivers import asyncio as asyncio_driver
from holdfast._platform import environment
from holdfast.engines.file import remove
from unit.loops import LOOPS, Run, asleep, observed, run_on, traces, until

PATIENCE = 60.0


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return run_on(request.param)


@pytest.fixture(params=[False, True], ids=["inline", "threads"])
def place(request: pytest.FixtureRequest, disk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock path whose steps run on the loop, and one whose steps run in threads."""
    if request.param:
        monkeypatch.setattr(type(environment()), "may_block", lambda _self, _path: True)
    return disk / "l"


@pytest.fixture
def path(disk: Path) -> Path:
    return disk / "l"


# -- holding and releasing ---------------------------------------------------------------------------------------------


def test_breaking_a_lock_that_changes_hands_lets_the_loop_run_and_be_cancelled(
    place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3: the loop goes on between the tries, and a cancellation leaves the lock as it is."""
    looks: list[None] = []
    monkeypatch.setattr(remove, "_is_unchanged", lambda *_: looks.append(None))

    async def main() -> None:
        hold = await AsyncLock(place).acquire()
        breaking = asyncio.create_task(AsyncLock(place).break_lock())
        while len(looks) < 3:
            await asyncio.sleep(0)
        breaking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await breaking
        hold.ensure_held()
        await hold.release()

    run(main())


def test_the_keeper_keeps_the_hold_of_a_task_until_its_release(path: Path, run: Run) -> None:
    async def main() -> None:
        async with AsyncLock(path, on_lost=print):
            assert hold_module._keeper is not None
            kept = {held.path for held in hold_module._keeper._kept}
            assert str(path) in kept
        assert str(path) not in {held.path for held in hold_module._keeper._kept}

    run(main())


def test_bad_options_are_refused_at_once(path: Path) -> None:
    with pytest.raises(InvalidPath):
        AsyncLock("")
    with pytest.raises(TypeError, match=r"Lock.* unexpected keyword argument 'tmeout'"):
        AsyncLock(path, tmeout=1)  # type: ignore[call-arg]


def test_acquiring_without_a_loop_is_an_error(path: Path) -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        AsyncLock(path).acquire().send(None)
    assert not path.exists()


# -- several tasks: after CPython's own tests of asyncio.Lock ----------------------------------------------------------


def test_a_lock_cannot_be_awaited_nor_entered_without_async(path: Path, run: Run) -> None:
    async def main() -> None:
        with pytest.raises(TypeError):
            await AsyncLock(path)  # type: ignore[misc]
        with pytest.raises((TypeError, AttributeError)), AsyncLock(path):  # type: ignore[attr-defined]
            pass
        assert not path.exists()

    run(main())


def test_tasks_are_inside_one_at_a_time(place: Path, run: Run) -> None:
    async def main() -> None:
        inside: list[AsyncHold] = []

        async def work() -> None:
            inside.append(await AsyncLock(place).acquire())

        hold = await AsyncLock(place).acquire()
        tasks = [asyncio.create_task(work()) for _ in range(3)]
        for count in range(4):
            await until(lambda count=count: len(inside) >= count)
            await asleep(*(task for task in tasks if not task.done()))
            assert len(inside) == count
            await (inside[-1] if inside else hold).release()
        await asyncio.gather(*tasks)

    run(main())


def test_a_cancelled_wait_leaves_no_trace(place: Path, run: Run) -> None:
    async def main() -> None:
        hold = await AsyncLock(place).acquire()
        before = traces(asyncio.get_running_loop())
        for cancel in (lambda task: task.cancel(), lambda task: asyncio.get_running_loop().call_soon(task.cancel)):
            task = asyncio.create_task(AsyncLock(place).acquire())
            cancel(task)
            with pytest.raises(asyncio.CancelledError):
                await task
            task = asyncio.create_task(AsyncLock(place).acquire())
            await asleep(task)
            cancel(task)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert traces(asyncio.get_running_loop()) == before
        hold.ensure_held()
        await hold.release()

    run(main())


def test_a_cancelled_waiter_lets_the_next_one_acquire(place: Path, run: Run) -> None:
    """One task holds, two wait. The holder releases and the first waiter is cancelled before either can run."""

    async def main() -> None:
        for cancel_first in (True, False):
            hold = Lock(place).acquire()
            first = asyncio.create_task(AsyncLock(place).acquire())
            await asleep(first)
            second = asyncio.create_task(AsyncLock(place).acquire())
            await asleep(first, second)
            if cancel_first:
                first.cancel()
            hold.release()
            if not cancel_first:
                first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            await (await asyncio.wait_for(second, PATIENCE)).release()

    run(main())


def test_a_cancellation_together_with_a_release_lets_in_one_waiter(place: Path, run: Run) -> None:
    async def main() -> None:
        inside: list[AsyncHold] = []

        async def work() -> None:
            inside.append(await AsyncLock(place).acquire())

        hold = Lock(place).acquire()
        first, second, third = (asyncio.create_task(work()) for _ in range(3))
        await asleep(first, second, third)
        first.cancel()
        hold.release()
        with pytest.raises(asyncio.CancelledError):
            await first
        await until(lambda: inside)
        await asleep(*(task for task in (second, third) if not task.done()))
        assert len(inside) == 1
        assert second.done() != third.done()
        await inside[0].release()
        await asyncio.gather(second, third)
        await inside[1].release()

    run(main())


def test_cancelling_a_finished_acquire_leaves_its_result(place: Path, run: Run) -> None:
    """A task cancelled after its acquire has ended still has the hold as its result."""

    async def main() -> None:
        task = asyncio.create_task(AsyncLock(place).acquire())
        await until(task.done)
        assert not task.cancel()
        await task.result().release()
        assert not place.exists()

    run(main())


def test_one_lock_object_keeps_the_holds_of_its_tasks_apart(place: Path, run: Run) -> None:
    async def main() -> None:
        lock, inside, total = AsyncLock(place), 0, 0

        async def work() -> None:
            nonlocal inside, total
            for _ in range(10):
                async with lock as hold:
                    inside += 1
                    assert inside == 1
                    hold.ensure_held()
                    seen = total
                    await asyncio.sleep(0)
                    total = seen + 1
                    inside -= 1

        await asyncio.gather(*(work() for _ in range(4)))
        assert total == 40
        assert not lock._entered

    run(main())


def test_a_generator_left_early_is_no_deadlock(path: Path, run: Run) -> None:
    """B6: the loop is about to close it."""

    async def numbers() -> AsyncIterator[int]:
        async with AsyncLock(path):
            yield 1

    async def main() -> None:
        lock = AsyncLock(path)
        for _ in range(3):
            async for _ in numbers():
                break
        async with lock:
            with pytest.raises(WouldDeadlock):
                await lock.acquire()
        async for _ in numbers():  # this one is not left
            with pytest.raises(WouldDeadlock):
                await anext(numbers())

    run(main())
    assert not path.exists()


def test_a_deadlock_is_detected_while_other_tasks_are_busy(path: Path, tmp_path: Path, run: Run) -> None:
    """B6: their releases do not help this waiter."""

    async def work(number: int) -> None:
        lock = AsyncLock(tmp_path / f"{number}.lock")
        while True:
            async with lock:
                await asyncio.sleep(0)

    async def again() -> None:
        lock = AsyncLock(path)
        async with lock:
            await lock.acquire()

    async def main() -> None:
        others = [asyncio.create_task(work(number)) for number in range(5)]
        waiter = asyncio.create_task(again())
        done, _ = await asyncio.wait([waiter], timeout=PATIENCE)
        for task in (*others, waiter):
            task.cancel()
        await asyncio.gather(*others, waiter, return_exceptions=True)
        assert done, "still waits for itself"
        assert isinstance(waiter.exception(), WouldDeadlock)

    run(main())


def test_a_generator_left_early_releases_only_its_own_hold(path: Path, run: Run) -> None:
    """A task of the loop's own closes it: it must release the hold that it entered, and not the nearest one."""

    async def main() -> None:
        lock = AsyncLock(path, owner="all tasks may enter")
        leaves = {"before": asyncio.Event(), "after": asyncio.Event()}
        holds: dict[str, AsyncHold] = {}

        async def numbers() -> AsyncIterator[int]:
            async with lock as holds["generator"]:
                yield 1

        async def other(name: str) -> None:
            async with contextlib.AsyncExitStack() as stack:
                holds[name] = await stack.enter_async_context(lock)
                await leaves[name].wait()

        before = asyncio.create_task(other("before"))
        await until(lambda: "before" in holds)
        generator = numbers()
        async for _ in generator:
            break
        after = asyncio.create_task(other("after"))
        await until(lambda: "after" in holds)
        async with lock as mine:
            await generator.aclose()
            with pytest.raises(NotHeld):
                holds["generator"].ensure_held()
            for hold in (mine, holds["before"], holds["after"]):
                hold.ensure_held()
        with pytest.raises(NotHeld):
            mine.ensure_held()
        leaves["before"].set()
        await before
        holds["after"].ensure_held()
        leaves["after"].set()
        await after
        assert not path.exists()
        generator = numbers()
        await anext(generator)
        assert path.exists()
        del generator  # the loop closes it, in a task of its own
        await until(lambda: not path.exists())
        assert not lock._entered
        with pytest.raises(NotHeld, match="not entered"):
            await lock.__aexit__(None, None, None)

    run(main())


# -- deadlock ----------------------------------------------------------------------------------------------------------


def test_an_asyncio_timeout_bounds_a_wait_for_ones_own_lock(place: Path, run: Run) -> None:
    """B4: `asyncio.timeout` ends the wait, however it is entered; an earlier timeout has no effect."""

    async def main() -> None:
        loop, lock = asyncio.get_running_loop(), AsyncLock(place)
        async with lock:
            began = loop.time()
            for waits in (lock.acquire, lock.wait, AsyncLock(place).__aenter__):
                with pytest.raises(TimeoutError) as caught:
                    async with asyncio.timeout(0.05) as around:
                        await waits()
                assert not isinstance(caught.value, AcquireTimeout)
                vars(around)  # from now on, its attributes are a dictionary
            assert loop.time() - began < PATIENCE
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(lock.acquire(), 0.05)
            for endless in (None, math.inf):
                async with asyncio.timeout(endless):
                    with pytest.raises(WouldDeadlock):
                        await lock.acquire()
            async with asyncio.timeout(100):
                pass
            with pytest.raises(WouldDeadlock):
                await lock.acquire()
        assert not place.exists()

    run(main())


def test_a_rescheduled_asyncio_timeout_bounds_a_wait_for_ones_own_lock(
    place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B4: the wait lasts as long as the timeout; once that is removed, it is a deadlock."""
    monkeypatch.setattr(asyncio_driver, "_SPARE", 0.02)

    async def main() -> None:
        loop, lock = asyncio.get_running_loop(), AsyncLock(place)
        async with lock:
            async with asyncio.timeout(0.5) as around:
                loop.call_soon(around.reschedule, None)
                with pytest.raises(WouldDeadlock):
                    await lock.acquire()
            began = loop.time()
            around = asyncio.timeout(0.5)
            loop.call_soon(lambda: around.reschedule(began + 0.7))
            with pytest.raises(TimeoutError):
                async with around:
                    await lock.acquire()
            assert loop.time() - began > 0.6

    run(main())


def test_a_task_may_wait_for_another_task_of_its_thread(place: Path, run: Run) -> None:
    async def main() -> None:
        async with AsyncLock(place):
            other = asyncio.create_task(AsyncLock(place).acquire())
            await asleep(other)
            assert not other.done()
        await (await asyncio.wait_for(other, PATIENCE)).release()
        with Lock(place):
            other = asyncio.create_task(AsyncLock(place).acquire())
            await asleep(other)
        await (await asyncio.wait_for(other, PATIENCE)).release()

    run(main())


def test_a_thread_cannot_wait_for_a_task_that_it_blocks(place: Path, run: Run) -> None:
    async def main() -> None:
        held = asyncio.Event()
        leave = asyncio.Event()

        async def hold() -> None:
            async with AsyncLock(place):
                held.set()
                await leave.wait()

        task = asyncio.create_task(hold())
        await held.wait()
        with pytest.raises(WouldDeadlock):
            Lock(place).acquire()
        with pytest.raises(WouldDeadlock):
            Lock(place).wait()
        with pytest.raises(AcquireTimeout):
            Lock(place).acquire(timeout=0.01)
        other = asyncio.get_running_loop().run_in_executor(None, Lock(place).acquire)
        leave.set()
        await task
        (await other).release()

    run(main())


# -- timeouts of asyncio -----------------------------------------------------------------------------------------------


def test_an_asyncio_timeout_is_kept_and_leaves_no_trace(place: Path, run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        hold = Lock(place).acquire()
        before = traces(loop)
        began = loop.time()
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(0.02):
                await AsyncLock(place).acquire()
        assert not isinstance(caught.value, AcquireTimeout)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(AsyncLock(place).acquire(), 0.02)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02), AsyncLock(place):
                pass
        with pytest.raises(AcquireTimeout):
            async with asyncio.timeout(100):
                await AsyncLock(place).acquire(timeout=0.02)
        assert 0.07 < loop.time() - began < PATIENCE
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0
        assert traces(loop) == before
        hold.release()
        async with asyncio.timeout(100), AsyncLock(place) as inside:
            inside.ensure_held()
        await (await asyncio.wait_for(AsyncLock(place).acquire(), 100)).release()

    run(main())


# -- decorators --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AsyncLock, Lock])
def test_a_decorated_coroutine_runs_with_the_lock(kind: Callable[..., Any], place: Path, run: Run) -> None:
    @kind(place, tag="t")
    async def work(a: int, *, b: int) -> tuple[int, bool]:
        """Doc."""
        await asyncio.sleep(0)
        status = Lock(place).status()
        assert status.holder is not None
        return a + b, status.holder.tag == "t"

    async def main() -> None:
        assert await asyncio.gather(work(1, b=2), work(3, b=4)) == [(3, True), (7, True)]
        assert not place.exists()

    run(main())
    assert (work.__name__, work.__doc__) == ("work", "Doc.")
    assert asyncio.iscoroutinefunction(work)


def test_only_a_coroutine_function_can_be_decorated(path: Path) -> None:
    def plain() -> None: ...

    def generator():  # type: ignore[no-untyped-def]
        yield

    async def async_generator():  # type: ignore[no-untyped-def]
        yield

    for function in (plain, generator, async_generator):
        with pytest.raises(TypeError, match=function.__name__):
            AsyncLock(path)(function)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="Lock"):
        AsyncLock(path)(print)  # type: ignore[type-var]


# -- the rest of the surface -------------------------------------------------------------------------------------------


def test_the_lazy_names_are_listed_and_imported() -> None:
    assert {"AsyncLock", "AsyncHold", "Lock"} <= set(dir(holdfast))
    assert holdfast.AsyncLock is AsyncLock
    with pytest.raises(AttributeError, match="AsyncLok"):
        holdfast.AsyncLok  # type: ignore[attr-defined]  # noqa: B018


def test_a_task_on_a_dropped_loop_releases_its_lock(place: Path) -> None:
    """Its coroutine is closed when it is collected, and leaves its `async with` without a loop to wait on."""
    for kind in LOOPS:
        loop = LOOPS[kind]()
        loop.set_exception_handler(lambda *_: None)
        inside = asyncio.Event()

        async def hold(inside: asyncio.Event = inside) -> None:
            async with AsyncLock(place):
                inside.set()
                await asyncio.Event().wait()

        task = loop.create_task(hold())
        loop.run_until_complete(until(inside.is_set))  # the file alone may be there before its thread has told the loop
        loop.close()
        del task, loop
        gc.collect()
        assert not place.exists()


def test_a_coroutine_closed_inside_releases_without_waiting_for_a_thread(place: Path, run: Run) -> None:
    async def main() -> None:
        async def hold() -> None:
            async with AsyncLock(place):
                await asyncio.Event().wait()

        coroutine = hold()
        task = asyncio.create_task(observed(coroutine, lambda *_: None))
        await until(place.exists)
        await asleep(task)
        coroutine.close()
        assert not place.exists()
        task.cancel()
        with pytest.raises((asyncio.CancelledError, RuntimeError)):
            await task

    run(main())


def test_an_interruption_on_the_way_to_the_caller_releases_the_lock(
    place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        def interrupted(*_args: object) -> None:
            raise ZeroDivisionError  # as a signal handler may

        with monkeypatch.context() as patch:
            patch.setattr(aio, "AsyncHold", interrupted)
            with pytest.raises(ZeroDivisionError):
                await AsyncLock(place).acquire()
        assert not place.exists()

    run(main())


def test_an_interruption_before_the_release_begins_still_releases(
    place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_thread: threading.Thread) -> None:
        monkeypatch.undo()
        raise ZeroDivisionError  # as a signal handler may

    async def main() -> None:
        hold = await AsyncLock(place).acquire()
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with contextlib.suppress(ZeroDivisionError):
            await hold.release()
        assert not place.exists()

    run(main())


def test_a_release_by_another_thread_wakes_a_waiting_task(place: Path, run: Run) -> None:
    async def main() -> None:
        hold = Lock(place).acquire()
        waiting = asyncio.create_task(AsyncLock(place).acquire())
        await asleep(waiting)
        thread = threading.Thread(target=hold.release)
        thread.start()
        await (await asyncio.wait_for(waiting, PATIENCE)).release()
        thread.join()

    run(main())


def test_a_hold_cannot_be_pickled_but_a_lock_can(path: Path, run: Run) -> None:
    async def main() -> None:
        async with AsyncLock(path) as hold:
            with pytest.raises(TypeError, match="belongs to this process"):
                pickle.dumps(hold)
        for lock in (AsyncLock(path, tag="t"), pickle.loads(pickle.dumps(AsyncLock(path, tag="t")))):
            again = pickle.loads(pickle.dumps(lock))
            async with again as hold:
                assert (hold.path, hold.record.tag) == (str(path), "t")

    run(main())
