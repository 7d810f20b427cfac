"""`AsyncSemaphore`: slots for tasks (aio.py). What a slot is, test_semaphore.py says; what a task is, test_aio.py."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import AcquireTimeout, AsyncHold, AsyncSemaphore, NotHeld, Semaphore, WouldDeadlock
from holdfast._platform import environment
from unit.loops import LOOPS, Run, asleep, events_only, run_on, traces, until

__all__ = ["events_only"]
PATIENCE = 10.0


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return run_on(request.param)


@pytest.fixture(params=[False, True], ids=["inline", "threads"])
def base(request: pytest.FixtureRequest, shm: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param:
        monkeypatch.setattr(type(environment()), "may_block", lambda _self, _path: True)
    return str(shm / "s")


def test_as_many_tasks_are_inside_as_there_are_slots(base: str, run: Run, events_only: None) -> None:
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
    assert not [name for name in os.listdir(os.path.dirname(base)) if name.endswith(".lock")]


def test_a_task_and_a_thread_count_the_same_slots(base: str, run: Run) -> None:
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
        assert (semaphore.base, semaphore.slots) == (base, 2)
        assert repr(semaphore) == f"<holdfast.AsyncSemaphore {base!r} slots=2 protocol=sema>"
        again = pickle.loads(pickle.dumps(semaphore))
        async with again as hold:
            assert hold.slot == 0

    run(main())


def test_a_cancelled_waiter_takes_no_slot(base: str, run: Run, events_only: None) -> None:
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


def test_a_generator_left_early_frees_only_its_own_slot(base: str, run: Run) -> None:
    """It is closed by a task that is inside as well, and beside one that came by an exit stack."""

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


def test_a_task_that_has_all_slots_cannot_wait_for_itself_for_ever(base: str, run: Run) -> None:
    async def main() -> None:
        semaphore = AsyncSemaphore(base, 2)
        async with semaphore, semaphore:
            with pytest.raises(WouldDeadlock):
                await semaphore.acquire()

    run(main())


@pytest.mark.parametrize("kind", [AsyncSemaphore, Semaphore])
def test_a_decorated_coroutine_runs_in_a_slot(
    kind: type[AsyncSemaphore] | type[Semaphore], base: str, run: Run
) -> None:
    @kind(base, 2)
    async def work() -> int:
        await asyncio.sleep(0)
        return len(Semaphore(base, 2).status().holders)

    async def main() -> None:
        assert set(await asyncio.wait_for(asyncio.gather(*(work() for _ in range(4))), PATIENCE)) <= {1, 2}

    run(main())
