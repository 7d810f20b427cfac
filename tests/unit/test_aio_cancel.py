"""Cancellation of a contended acquire, at each of its steps and in every way that asyncio has. A contender waits for a
held lock. The lock file changes again and again, so the contender wakes, looks, and sleeps again; then the lock is
released. The contender is stopped at its k-th sleep, for every k. Nothing of it may be left, and other waiters must get
the lock at its release, woken by an event: no wait ends otherwise in these tests."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import abilities
from holdfast import AsyncHold, AsyncLock, Lock
from holdfast._platform import environment
from holdfast.engines.file import queue as queues
from unit.loops import LOOPS, asleep, events_only, observed, readers, steps, touch, traces
from unit.stepping import sema_record

__all__ = ["events_only"]
by_events_only = pytest.mark.usefixtures("events_only")

ROUNDS = 5
"""Wake-ups without a reason before the lock is released."""
PULSE = 0.01 if sys.platform == "win32" else 0.0015
"""Seconds between two of them, at most: else as soon as the contender sleeps again, and not over a thread."""
PATIENCE = 60.0
Future = asyncio.Future[Any]


@pytest.fixture(params=["inline", "threads"])
def path(request: pytest.FixtureRequest, shm: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "threads":
        monkeypatch.setattr(type(environment()), "may_block", lambda _self, _path: True)
    return str(shm / "l")


@pytest.fixture(params=LOOPS)
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return LOOPS[request.param]


def assert_nothing_left(before: dict[str, Any], loop: asyncio.AbstractEventLoop | None) -> None:
    if traces(loop) != before:
        gc.collect()  # a cycle, say of an error and its frames, is no leak
        assert traces(loop) == before


# -- ways to stop a task as it goes to sleep ---------------------------------------------------------------------------


def at_once(task: asyncio.Task[Any], _sleep: Future) -> None:
    task.cancel()


def asleep_already(task: asyncio.Task[Any], _sleep: Future) -> None:
    task.get_loop().call_soon(task.cancel)


def as_it_wakes(task: asyncio.Task[Any], sleep: Future) -> None:
    """The event has come, and the contender has not run yet."""
    sleep.add_done_callback(lambda _: task.cancel())


def again_and_again(task: asyncio.Task[Any], _sleep: Future) -> None:
    def again(times: int) -> None:
        if times and not task.done():
            task.cancel()
            task.get_loop().call_soon(again, times - 1)

    again(20)


WAYS = [at_once, asleep_already, as_it_wakes, again_and_again]


class Contended:
    """A held lock, and a contender that is stopped at its k-th sleep by `stop`."""

    def __init__(self, path: str, at: int, stop: Callable[[Future], object] = lambda _: None) -> None:
        self.path = path
        self.at = at
        self.stop = stop
        self.sleeps = 0
        self.holder = Lock(path).acquire()

    def sleeping(self, number: int, future: Future) -> None:
        self.sleeps = number
        if number == self.at:
            self.stop(future)

    async def pulse(self, rounds: int = ROUNDS) -> None:
        seen = 0
        for _ in range(rounds):
            until = time.monotonic() + PULSE
            while (self.sleeps == seen or steps()) and time.monotonic() < until:
                await asyncio.sleep(0.0001)
            seen = self.sleeps
            touch(self.path)
        self.holder.release()

    async def contend(self) -> None:
        hold: AsyncHold = await observed(AsyncLock(self.path, timeout=None).acquire(), self.sleeping)
        await hold.release()

    async def race(self) -> asyncio.Task[None]:
        """The contender's task, once it has ended and the lock is released."""
        self.task = asyncio.create_task(self.contend())
        pulse = asyncio.create_task(self.pulse())
        await asyncio.wait([self.task, pulse])
        assert self.task.cancelled() or not self.task.exception()
        return self.task


def every_step(new_loop: Callable[[], asyncio.AbstractEventLoop], path: str) -> range:
    """The numbers of the contender's sleeps, and some more: how many it makes depends on timing."""
    sleeps = 0
    for tries in range(60):
        if tries < 3 or sleeps <= 2:
            contended = Contended(path, 0)
            on(new_loop, contended.race)
            sleeps = max(sleeps, contended.sleeps)
    assert sleeps > (1 if sys.platform == "win32" else 2)
    return range(1, sleeps + 3)


def until(enough: Callable[[], bool], steps: range) -> Iterator[int]:
    """Each of the steps, repeated until the condition holds: on a busy machine a contender sleeps less often."""
    yield from steps
    for _ in range(20):
        for at in steps:
            if enough():
                return
            yield at


def on(new_loop: Callable[[], asyncio.AbstractEventLoop], main: Callable[[], Coroutine[Any, Any, object]]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


@by_events_only
@pytest.mark.parametrize("way", WAYS)
def test_a_task_cancelled_at_any_step_leaves_nothing(
    way: Callable[[asyncio.Task[Any], Future], None], path: str, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def main(at: int) -> None:
        loop = asyncio.get_running_loop()
        before = traces(loop)
        contended = Contended(path, at, lambda sleep: way(contended.task, sleep))
        outcomes.append((await contended.race()).cancelled())
        assert_nothing_left(before, loop)
        assert not os.path.exists(path)

    outcomes: list[bool] = []
    for at in until(lambda: outcomes.count(True) > 2, every_step(new_loop, path)):
        on(new_loop, lambda at=at: main(at))
    assert outcomes.count(True) > 2


@by_events_only
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("other", ["task before", "task behind", "thread"])
def test_a_cancelled_task_leaves_lock_and_event_to_the_next(
    way: Callable[[asyncio.Task[Any], Future], None],
    other: str,
    path: str,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main(at: int) -> None:
        loop = asyncio.get_running_loop()
        before = traces(loop)
        contended = Contended(path, at, lambda sleep: way(contended.task, sleep))
        rival: asyncio.Future[None] = loop.create_task(rival_task()) if "task" in other else loop.create_future()
        if other == "task before":
            await asleep(rival)  # type: ignore[arg-type]
        elif other == "thread":
            rival = loop.run_in_executor(None, rival_thread)
        await contended.race()
        await asyncio.wait_for(rival, PATIENCE)
        if other == "thread":
            await loop.shutdown_default_executor()
        assert_nothing_left(before, loop)

    async def rival_task() -> None:
        async with AsyncLock(path):
            pass

    def rival_thread() -> None:
        with Lock(path):
            pass

    for at in every_step(new_loop, path):
        on(new_loop, lambda at=at: main(at))


@by_events_only
def test_an_asyncio_timeout_at_any_step_leaves_nothing(
    path: str, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def main(at: int) -> None:
        loop = asyncio.get_running_loop()
        before = traces(loop)
        contended = Contended(path, at, lambda _: limit.reschedule(loop.time()))
        pulse = asyncio.create_task(contended.pulse())
        ended = "acquired"
        try:
            async with asyncio.timeout(None) as limit:
                await contended.contend()
        except TimeoutError:
            ended = "timed out"
        await pulse
        outcomes.append(ended)
        assert_nothing_left(before, loop)
        async with AsyncLock(path, timeout=PATIENCE):
            pass

    outcomes: list[str] = []
    for at in until(lambda: outcomes.count("timed out") > 2, every_step(new_loop, path)):
        on(new_loop, lambda at=at: main(at))
    assert outcomes.count("timed out") > 2


def close_the_loop_at_every_step(
    path: str, new_loop: Callable[[], asyncio.AbstractEventLoop], *, collected: bool
) -> None:
    """A thread waits meanwhile, and must get the lock."""

    def run(at: int) -> None:
        before = traces()
        loop = new_loop()
        loop.set_exception_handler(lambda *_: None)  # that a task was pending is the point
        contended = Contended(path, at, lambda _: loop.call_soon(loop.stop))
        rival = threading.Thread(target=lambda: Lock(path).acquire(timeout=PATIENCE).release())
        rival.start()
        task = loop.create_task(contended.contend())
        task.add_done_callback(lambda _: loop.stop())
        # A lock acquired by a thread, and reported to the loop in the instant of its closing, is given back only when
        # the task is collected. So the lock is not released before, if it is not collected.
        pulse = loop.create_task(contended.pulse(ROUNDS if collected else 10 * ROUNDS))
        loop.run_forever()
        loop.close()
        for thread in steps():
            thread.join(PATIENCE)
        if collected:
            del task, pulse
            gc.collect()
        contended.holder.release()
        rival.join(PATIENCE)
        assert not rival.is_alive()
        task = pulse = None
        assert_nothing_left(before, None)
        assert not os.path.exists(path)

    for at in every_step(new_loop, path):
        run(at)


@by_events_only
def test_a_loop_closed_at_any_step_leaves_nothing(path: str, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    close_the_loop_at_every_step(path, new_loop, collected=True)


def test_the_queue_moves_on_behind_a_task_of_a_closed_loop(
    path: str, new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task keeps its place until it is collected. Waiters behind it look again after a second; sooner in this
    test."""
    monkeypatch.setattr(queues, "_RECHECK_EACH", 0.05)
    close_the_loop_at_every_step(path, new_loop, collected=False)


@by_events_only
def test_a_coroutine_closed_at_any_step_leaves_nothing(
    path: str, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def main(at: int) -> None:
        loop = asyncio.get_running_loop()
        before = traces(loop)
        stop = asyncio.Event()
        contended = Contended(path, at, lambda _: stop.set())
        coroutine = contended.contend()

        async def drive() -> None:
            await coroutine
            stop.set()

        task = asyncio.create_task(drive())
        pulse = asyncio.create_task(contended.pulse())
        await stop.wait()
        if not task.done():
            sleep: Future = task._fut_waiter  # type: ignore[attr-defined]
            coroutine.close()
            sleep.cancel()
        await asyncio.wait([task, pulse])
        for thread in steps():
            thread.join(PATIENCE)
        assert_nothing_left(before, loop)
        async with AsyncLock(path, timeout=PATIENCE):
            pass

    for at in every_step(new_loop, path):
        on(new_loop, lambda at=at: main(at))


@pytest.mark.needs("unnamed")
def test_a_step_that_outlives_its_task_gives_the_lock_back(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """J4: its thread acquires after the task has ended and the next operation has begun."""
    env = environment()
    before = {*env.operations.running}  # a task of a loop that was dropped keeps its own until it is collected
    monkeypatch.setattr(type(env), "may_block", lambda _self, _path: True)
    reached, go_on = threading.Event(), threading.Event()
    link = env.link_unnamed

    def slow(fd: int, path: str) -> None:
        link(fd, path)
        reached.set()
        assert go_on.wait(PATIENCE)

    async def main() -> None:
        coroutine = AsyncLock(shm / "l").acquire()

        async def drive() -> None:
            await coroutine

        task = asyncio.create_task(drive())
        while not reached.is_set():
            await asyncio.sleep(0.001)
        sleep: Future = task._fut_waiter  # type: ignore[attr-defined]
        coroutine.close()
        sleep.cancel()
        await asyncio.wait([task])
        env.operations.finish_broken_off()
        go_on.set()
        for thread in steps():
            thread.join(PATIENCE)

    monkeypatch.setattr(env, "link_unnamed", slow)
    asyncio.run(main())
    assert not env.holds
    assert {*env.operations.running} <= before
    assert os.listdir(shm) == []


@by_events_only
def test_a_cancelled_takeover_is_undone(
    path: str, new_loop: Callable[[], asyncio.AbstractEventLoop], dead_pid: int
) -> None:
    """A takeover by rule settles before it lets its contender in; until then it can be cancelled, and is undone."""

    async def main(at: int) -> bool:
        with open(path, "wb") as file:
            file.write(sema_record(dead_pid, 1))
        loop = asyncio.get_running_loop()
        before = traces(loop)
        lock = AsyncLock(path, stale="protocol")
        task: asyncio.Task[AsyncHold] = asyncio.create_task(
            observed(lock.acquire(), lambda number, _: task.cancel() if number == at else None)
        )
        await asyncio.wait([task])
        if not task.cancelled():
            await task.result().release()
        assert_nothing_left(before, loop)
        async with AsyncLock(path, stale="protocol", timeout=PATIENCE):
            pass
        return task.cancelled()

    outcomes = []
    while not outcomes or outcomes[-1]:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            outcomes.append(runner.run(main(len(outcomes) + 1)))
    assert len(outcomes) > 1


@by_events_only
def test_a_cancelled_release_is_completed(path: str, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main(at: int) -> bool:
        loop = asyncio.get_running_loop()
        before = traces(loop)

        async def hold() -> None:
            async with AsyncLock(path):
                entered.set()
                await leave.wait()

        entered, leave = asyncio.Event(), asyncio.Event()
        task: asyncio.Task[None] = asyncio.create_task(
            observed(hold(), lambda *_: task.cancel() if leave.is_set() else None)
        )
        await entered.wait()
        leave.set()
        if at:
            task.cancel()
        await asyncio.wait([task])
        assert not os.path.exists(path)
        assert_nothing_left(before, loop)
        return task.cancelled()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main(0))
        assert runner.run(main(1))


@by_events_only
def test_the_readers_of_a_waiting_task_are_counted(
    new_loop: Callable[[], asyncio.AbstractEventLoop], shm: Path
) -> None:
    """So the tests above would notice a leftover reader, on loops that reveal their readers."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        hold = Lock(shm / "l").acquire()
        task = asyncio.create_task(AsyncLock(shm / "l").acquire())
        await asleep(task)
        found = traces(loop)
        if abilities.has("events") and isinstance(loop, asyncio.SelectorEventLoop):
            assert readers(loop)
            assert found["watches"] > 0
        hold.release()
        await (await task).release()

    on(new_loop, main)
