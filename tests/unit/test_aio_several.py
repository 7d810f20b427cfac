"""`AsyncSemaphore` and `aio.acquire_all` where they differ from their synchronous forms."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
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
    AsyncSemaphore,
    Hold,
    Lock,
    NotHeld,
    Semaphore,
)
from holdfast._platform import environment
from holdfast.aio import acquire_all
from unit.loops import LOOPS, Run, asleep, events_only, observed, run_on, traces, until

__all__ = ["events_only"]
PATIENCE = 60.0


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return run_on(request.param)


@pytest.fixture(params=[False, True], ids=["inline", "threads"])
def base(request: pytest.FixtureRequest, disk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The base of a semaphore whose steps run on the loop, and of one whose steps run in threads."""
    if request.param:
        monkeypatch.setattr(type(environment()), "may_block", lambda _self, _path: True)
    return disk / "b"


def files(base: Path) -> list[str]:
    return sorted(os.listdir(base.parent))


# -- semaphores --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("events_only")
def test_waiting_tasks_get_in_in_order(base: Path, run: Run) -> None:
    async def main() -> None:
        semaphore = AsyncSemaphore(base, 2)
        inside = [await semaphore.acquire(), await semaphore.acquire()]
        served: list[int] = []

        async def work(number: int) -> None:
            async with semaphore as hold:
                assert hold.slot == 1
                served.append(number)

        tasks = []
        for number in range(6):
            tasks.append(asyncio.create_task(work(number)))
            await asleep(*tasks)
        await inside[1].release()  # one slot for all of them, so that one comes after the other
        await asyncio.gather(*tasks)
        assert served == sorted(served)
        await inside[0].release()

    run(main())
    assert files(base) == []


def test_tasks_threads_and_loops_share_the_slots(base: Path) -> None:
    inside: set[int] = set()
    mistakes: list[object] = []
    mutex = threading.Lock()

    def enter(slot: int | None) -> None:
        with mutex:
            if slot is None or slot in inside:
                mistakes.append(slot)
            inside.add(slot or 0)

    def leave(slot: int | None) -> None:
        with mutex:
            inside.discard(slot or 0)

    async def task() -> None:
        for _ in range(5):
            async with AsyncSemaphore(base, 3) as hold:
                enter(hold.slot)
                await asyncio.sleep(0)
                leave(hold.slot)

    def loop(kind: str) -> None:
        async def main() -> None:
            await asyncio.gather(*(task() for _ in range(5)))

        run_on(kind)(main())

    def thread() -> None:
        for _ in range(10):
            with Semaphore(base, 3) as hold:
                enter(hold.slot)
                leave(hold.slot)

    threads = [threading.Thread(target=loop, args=(kind,)) for kind in LOOPS]
    threads += [threading.Thread(target=thread) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert mistakes == []
    assert files(base) == []


def test_as_many_tasks_are_inside_as_there_are_slots(base: Path, run: Run, events_only: None) -> None:
    async def main() -> None:
        semaphore = AsyncSemaphore(base, 3)
        inside: set[int] = set()
        three = asyncio.Barrier(3)

        async def work() -> None:
            async with semaphore as hold:
                assert hold.slot is not None
                assert hold.slot not in inside
                inside.add(hold.slot)
                await three.wait()
                inside.remove(hold.slot)

        await asyncio.gather(*(work() for _ in range(30)))
        assert not semaphore._entered

    run(main())
    assert not [name for name in os.listdir(base.parent) if name.endswith(".lock")]


def test_a_task_and_a_thread_count_the_same_slots(base: Path, run: Run) -> None:
    async def main() -> None:
        semaphore = AsyncSemaphore(base, slots=2)
        with Semaphore(base, 2):
            async with semaphore as hold:
                assert hold.slot == 1
                assert await semaphore.try_acquire() is None
                with pytest.raises(AcquireTimeout):
                    await semaphore.acquire(timeout=0.01)
                status = await semaphore.status()
                assert status.locked
                assert not await semaphore.wait(timeout=0)
            assert await semaphore.wait()
        assert (semaphore.base, semaphore.slots) == (str(base), 2)
        assert repr(semaphore) == f"<holdfast.AsyncSemaphore {str(base)!r} slots=2 protocol=sema>"
        again = pickle.loads(pickle.dumps(semaphore))
        async with again as hold:
            assert hold.slot == 0

    run(main())


def test_a_cancelled_waiter_takes_no_slot(base: Path, run: Run, events_only: None) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        before = traces(loop)
        semaphore = AsyncSemaphore(base, 2)
        holds = [Semaphore(base, 2).acquire() for _ in range(2)]

        async def work() -> None:
            async with semaphore:
                pass

        waiting = [asyncio.create_task(work()) for _ in range(3)]
        await asleep(*waiting)
        waiting[0].cancel()
        holds[1].release()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        await asyncio.wait_for(asyncio.gather(*waiting[1:]), PATIENCE)
        holds[0].release()
        assert traces(loop) == before

    run(main())


def test_a_generator_left_early_frees_only_its_own_slot(base: Path, run: Run) -> None:
    """Another task closes it, while its caller and a task with an exit stack are inside."""

    async def main() -> None:
        semaphore = AsyncSemaphore(base, 3)
        holds: dict[str, AsyncHold] = {}
        leave = asyncio.Event()

        async def numbers() -> AsyncIterator[int]:
            async with semaphore as holds["generator"]:
                yield 1

        async def other() -> None:
            async with contextlib.AsyncExitStack() as stack:
                holds["other"] = await stack.enter_async_context(semaphore)
                await leave.wait()

        generator = numbers()
        await anext(generator)
        task = asyncio.create_task(other())
        await until(lambda: "other" in holds)
        async with semaphore as mine:
            await asyncio.create_task(generator.aclose())  # type: ignore[arg-type]
            with pytest.raises(NotHeld):
                holds["generator"].ensure_held()
            mine.ensure_held()
            leave.set()
            await task
            with pytest.raises(NotHeld):
                holds["other"].ensure_held()
            mine.ensure_held()
        assert not (await semaphore.status()).holders

    run(main())


@pytest.mark.parametrize("kind", [AsyncSemaphore, Semaphore])
def test_a_decorated_coroutine_runs_in_a_slot(
    kind: type[AsyncSemaphore] | type[Semaphore], base: Path, run: Run
) -> None:
    @kind(base, 2)
    async def work() -> int:
        await asyncio.sleep(0)
        return len(Semaphore(base, 2).status().holders)

    async def main() -> None:
        assert set(await asyncio.wait_for(asyncio.gather(*(work() for _ in range(4))), PATIENCE)) <= {1, 2}

    run(main())


# -- several together --------------------------------------------------------------------------------------------------


@pytest.fixture
def three(base: Path) -> list[Any]:
    directory = base.parent
    return [AsyncLock(directory / "c"), AsyncSemaphore(base, 2), AsyncLock(directory / "a")]


def test_acquire_all_can_be_awaited_or_entered(three: list[Any], base: Path, run: Run) -> None:
    async def main() -> None:
        async with acquire_all(three, timeout=5) as holds:
            assert [os.path.basename(hold.path) for hold in holds] == ["c", "b.0.lock", "a"]
            assert files(base) == ["a", "b.0.lock", "c"]
            holds.ensure_held()
            assert not holds.lost
        assert files(base) == []
        async with await acquire_all(three):
            assert len(files(base)) == 3
        with pytest.raises(NotHeld):
            holds.ensure_held()
        for make in (asyncio.create_task, asyncio.ensure_future):
            made: Any = make(acquire_all(three))  # type: ignore[operator]
            await (await made).release()
        waited = await asyncio.wait_for(acquire_all(three), 5)
        await waited.release()
        await waited.release()
        assert files(base) == []
        assert await acquire_all([]) == ()

    run(main())


def test_an_acquire_all_that_is_never_awaited_makes_a_warning(three: list[Any], run: Run) -> None:
    async def main() -> None:
        with pytest.warns(RuntimeWarning, match="never awaited"):
            del [acquire_all(three)][0]

    run(main())


def test_the_locks_of_the_other_face_are_refused(three: list[Any], base: Path) -> None:
    plain = Lock(base.parent / "a")
    with pytest.raises(TypeError, match="would block the event loop"):
        acquire_all([plain])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"await holdfast\.aio\.acquire_all"):
        holdfast.acquire_all(three)
    with pytest.raises(TypeError, match="locks and semaphores, not 'a'"):
        acquire_all("a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="put it into a list"):
        acquire_all(three[0])


def test_a_generator_left_early_releases_all_its_locks(three: list[Any], base: Path, run: Run) -> None:
    """A generator that is being closed cannot wait for a thread."""

    async def numbers() -> Any:
        async with acquire_all(three):
            yield len(files(base))

    async def main() -> None:
        generator = numbers()
        assert await anext(generator) == 3
        await generator.aclose()
        assert files(base) == []

    run(main())


# -- cancelled ---------------------------------------------------------------------------------------------------------


class Canceller:
    """Cancels the running task at its k-th sleep, and at the next so many sleeps."""

    def __init__(self, at: int, again: int = 0) -> None:
        self.at = at
        self.until = at + again
        self.sleeps = 0

    def __call__(self, number: int, _future: asyncio.Future[Any]) -> None:
        self.sleeps = number
        if self.at <= number <= self.until:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()


def cancelled_at_each_sleep(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    acquire: Callable[[], Any],
    free: Callable[[], Any],
    times: int,
    again: int = 0,
) -> int:
    """Cancel at the k-th sleep, for every k, until the task gets through; the number of cancellations. `again`: at so
    many further sleeps as well. Nothing may be left then. `free` lets the task in after that many sleeps."""

    async def trial(at: int) -> bool:
        before = traces(asyncio.get_running_loop())
        undo = free()
        canceller = Canceller(at, again)
        task = asyncio.create_task(observed(acquire(), canceller))
        await until(lambda: task.done() or canceller.sleeps >= times)
        undo()
        await asyncio.wait([task])
        if not task.cancelled():
            await task.result().release()
        through = not task.cancelled()
        if traces(asyncio.get_running_loop()) != before:
            gc.collect()
            assert traces(asyncio.get_running_loop()) == before
        return through

    async def main() -> int:
        through = 0
        for at in range(1, 200):
            through = through + 1 if await trial(at) else 0
            if through == 3:  # how many sleeps there are depends on the moment
                return at - 3
        raise AssertionError("it never comes through")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())  # whatever is made once
        return runner.run(main())


def release(holds: list[Hold]) -> None:
    for hold in holds:
        hold.release()


@pytest.mark.parametrize("kind", LOOPS)
def test_a_cancelled_wait_for_a_slot_leaves_nothing(base: Path, kind: str) -> None:
    def fill() -> Callable[[], None]:
        holds = [Semaphore(base, 2, heartbeat=0).acquire() for _ in range(2)]
        return lambda: release(holds)

    times = cancelled_at_each_sleep(LOOPS[kind], lambda: AsyncSemaphore(base, 2, heartbeat=0).acquire(), fill, 2)
    assert times >= 2
    assert files(base) == []


@pytest.mark.parametrize("again", [0, 1, 100], ids=["once", "twice", "again and again"])
@pytest.mark.parametrize("kind", LOOPS)
def test_a_cancelled_acquisition_of_several_leaves_none_held(base: Path, kind: str, again: int) -> None:
    """D4: cancelled before, between and after its acquisitions, and while they are given back."""
    directory = base.parent

    def wanted() -> list[Any]:
        still: Any = {"heartbeat": 0}
        return [
            AsyncLock(directory / "c", **still),
            AsyncSemaphore(base, 1, **still),
            AsyncLock(directory / "a", **still),
        ]

    def fill() -> Callable[[], None]:
        holds = [Lock(directory / "c", heartbeat=0).acquire(), Semaphore(base, 1, heartbeat=0).acquire()]
        return lambda: release(holds)

    async def acquire() -> Any:
        return await acquire_all(wanted())

    assert cancelled_at_each_sleep(LOOPS[kind], acquire, fill, 2, again) >= 2
    assert files(base) == []


def test_a_cancelled_release_of_several_leaves_none_held(three: list[Any], base: Path, run: Run) -> None:
    async def main() -> None:
        for at in range(1, 10):
            holds = await acquire_all(three)

            task = asyncio.create_task(observed(holds.release(), Canceller(at)))
            await asyncio.wait([task])
            assert files(base) == []
            if not task.cancelled():
                break

    run(main())
