"""Repair after interrupted operations (operations.py). process/test_every_bytecode.py interrupts at each bytecode."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast import (
    AcquireTimeout,
    AsyncHold,
    AsyncLock,
    Hold,
    Lock,
    NotHeld,
    Semaphore,
    acquire_all,
    aio,
    lock,
    several,
)
from holdfast._core.wait import Wait
from holdfast._drivers import sync
from holdfast._drivers.background import Keeper
from holdfast._platform import environment, fork
from holdfast._platform.descriptors import Descriptor, Descriptors
from holdfast._platform.operations import Operations
from holdfast.aio import AsyncExit, AsyncLeaving, Together
from holdfast.engines.file import queue as queues
from holdfast.engines.file.request import FileRequest
from holdfast.engines.file.uncontended import acquire
from holdfast.events import Event
from holdfast.lock import BaseHold, Exit, Leaving
from holdfast.several import Holds
from unit.ctrl_c import drop_statements
from unit.loops import asleep
from unit.stepping import failing


@pytest.fixture
def env() -> Any:
    env = environment()
    env.operations.finish_broken_off()
    assert not env.operations.running, "an earlier test has left something that never ends"
    return env


def broken_off(env: Any, *steps: Any) -> Any:
    """An operation that made these steps and ended silently, like one that was interrupted twice."""
    operation = env.operations.begin(env)
    for step in steps:
        step()
    return operation


def test_a_closed_descriptor_cannot_touch_the_file_that_has_its_number_now(shm: Path) -> None:
    """J1."""
    table = Descriptors(Operations(threading.RLock()))
    first = table.open(os.open, str(shm / "a"), os.O_RDWR | os.O_CREAT)
    table.close(first)
    second = table.open(os.open, str(shm / "b"), os.O_RDWR | os.O_CREAT)
    assert second == first, "the number was to be used again"
    table.close(first)
    assert second in table
    assert first not in table
    os.fstat(second)
    table.close(second)


def test_a_wait_that_opens_many_descriptors_forgets_the_closed_ones(shm: Path, env: Any) -> None:
    operation = env.operations.begin(env)
    for _ in range(1000):
        env.close(env.open_new(str(shm / "f"), 0o600))
        os.unlink(shm / "f")
    assert len(env.operations.made) < 100
    env.operations.end(operation)


def test_the_next_operation_undoes_one_that_was_broken_off(shm: Path, env: Any) -> None:
    """J2, J4: its lock file is removed, its descriptors are closed, and it is on no list any more."""
    path = str(shm / "l")

    def enter() -> None:
        steps = acquire(env, (FileRequest(path, {}),), 0, (object(),))
        with pytest.raises(StopIteration):
            next(steps)

    broken_off(env, enter)
    assert os.path.exists(path)
    assert env.operations.running
    Lock(path + "2").acquire().release()
    assert os.listdir(shm) == []
    assert not env.operations.running
    assert path not in [held.path for held in env.holds.values()]


def test_the_exit_undoes_an_operation_that_was_broken_off(shm: Path, env: Any) -> None:
    """J4: not only a hold, which the exit releases anyway."""
    left = str(shm / "left.tmp")

    def make() -> None:
        env.operations.about_to_make(left)
        env.close(env.open_new(left, 0o600))

    broken_off(env, make)
    Keeper(env).release_all()
    assert os.listdir(shm) == []
    assert not env.operations.running


@pytest.mark.parametrize("durable", [False, True])
def test_an_operation_broken_off_while_a_task_sleeps_is_undone(durable: bool, shm: Path, env: Any) -> None:
    """J8: it was not part of that task's wait, on the loop or in threads."""
    held = Lock(shm / "l").acquire()
    opened: list[int] = []

    async def main() -> None:
        waiting = asyncio.create_task(AsyncLock(shm / "l", durable=durable).acquire(timeout=60))
        await asleep(waiting)
        broken_off(env, lambda: opened.append(env.open_directory(str(shm))))
        await (await AsyncLock(shm / "other").acquire()).release()
        assert not env.is_open(opened.pop())
        held.release()
        await (await waiting).release()

    asyncio.run(main())


def test_an_operation_broken_off_while_a_greenlet_sleeps_is_undone(
    shm: Path, env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J8: here, the wait itself runs the other greenlet."""
    held = Lock(shm / "l").acquire()
    opened: list[int] = []

    def sleep(_wait: Wait) -> bool:
        monkeypatch.undo()
        broken_off(env, lambda: opened.append(env.open_directory(str(shm))))
        Lock(shm / "other").acquire().release()
        assert not env.is_open(opened[0])
        held.release()
        return False

    monkeypatch.setattr(sync, "wait_for", sleep)
    Lock(shm / "l").acquire(timeout=60).release()
    assert opened


@pytest.mark.parametrize("durable", [False, True])
def test_an_operation_goes_on_after_a_loop_that_ran_in_its_midst(durable: bool, shm: Path, env: Any) -> None:
    """J8: in a function of the caller's, for example."""
    held = Lock(shm / "l").acquire()

    async def main() -> None:
        waiting = asyncio.create_task(AsyncLock(shm / "l").acquire(timeout=60))
        await asleep(waiting)
        other = await asyncio.create_task(AsyncLock(shm / "other", durable=durable).acquire())
        held.release()
        await (await waiting).release()
        await other.release()

    operation = env.operations.begin(env)
    asyncio.run(main())
    assert env.operations.current() is operation
    env.operations.end(operation)


def test_an_acquisition_in_whose_midst_an_eager_task_begins_is_undone(shm: Path, env: Any) -> None:
    """J8: as with `asyncio.eager_task_factory`, from Python 3.12 on."""
    held = Lock(shm / "l").acquire()
    begun: list[Any] = []

    def payload() -> dict[str, Any]:
        begun.append(AsyncLock(shm / "l").acquire(timeout=60))
        begun[0].send(None)
        return {}

    def interrupt(event: Event) -> None:
        if event.kind == "acquired":
            raise KeyboardInterrupt

    async def main() -> None:
        with pytest.raises(KeyboardInterrupt):
            await AsyncLock(shm / "s", protocol="sidecar", payload=payload, on_event=interrupt).acquire()
        assert not (shm / "s.lock").exists()
        begun.pop().close()

    asyncio.run(main())
    held.release()


@pytest.mark.parametrize("how", ["acquire", "with", "several"])
@pytest.mark.parametrize("durable", [False, True])
def test_the_collector_leaves_a_thread_in_its_operation(durable: bool, how: str, shm: Path, env: Any) -> None:
    """J8: descriptors made afterwards belong to it, although a task was ended in the middle of it."""
    held = Lock(shm / "l").acquire()
    free, lock = (AsyncLock(shm / name, timeout=60, durable=durable) for name in "kl")

    async def wait() -> None:
        if how == "acquire":
            await lock.acquire()
        async with lock if how == "with" else aio.acquire_all([free, lock]):
            pass

    async def main() -> None:
        coroutine = wait()

        async def drive() -> None:
            await coroutine

        task = asyncio.create_task(drive())
        await asleep(task)
        sleep: Any = task._fut_waiter  # type: ignore[attr-defined]
        operation = env.operations.begin(env)
        coroutine.close()
        assert env.operations.current() is operation
        env.operations.end(operation)
        sleep.cancel()
        await asyncio.wait([task])

    asyncio.run(main())
    held.release()
    assert os.listdir(shm) == []


def test_an_operation_that_still_runs_is_left_alone(shm: Path, env: Any) -> None:
    """J4: that of a waiting thread, and one that a signal handler has interrupted."""
    path = str(shm / "l")
    held = Lock(path).acquire()
    entered: list[Hold] = []
    waiting = threading.Thread(target=lambda: entered.append(Lock(path).acquire(timeout=60)))
    waiting.start()
    while not env.local_queues:
        pass
    operation = env.operations.begin(env)
    fd = env.open_new(str(shm / "mine"), 0o600)
    Lock(str(shm / "other")).acquire().release()
    assert env.is_open(fd)
    assert env.operations.current() is operation
    env.operations.abort(operation)
    assert not env.is_open(fd)
    held.release()
    waiting.join()
    entered[0].release()
    os.unlink(shm / "mine")


def test_undoing_an_operation_again_does_nothing(shm: Path, env: Any) -> None:
    """J3: another hold has the lock by then, on a descriptor of the same number."""
    path = str(shm / "l")
    first = Lock(path).acquire()
    held = first._held
    first.release()
    second = Lock(path).acquire()
    held.released = True
    held.undo()
    held.give_back()
    second.ensure_held()
    second.release()
    assert not env.operations.running


def test_a_release_that_was_broken_off_is_completed_by_the_next_operation(
    shm: Path, env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J2, FH3."""
    path = str(shm / "l")
    hold = Lock(path).acquire()

    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(env, "unlink", interrupted)
        patch.setattr(env, "fstat", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hold.release()
    assert os.path.exists(path)
    Lock(path).acquire(timeout=5).release()
    assert not os.path.exists(path)
    assert not env.operations.running


def test_a_with_statement_left_without_a_call_releases(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """J5: interrupted before the first line of its exit, where no code can catch it."""
    path = str(shm / "l")

    class Interrupted(Leaving):
        __slots__ = ()

        def __call__(self, *_error: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(Exit, "statement", Interrupted)
    try:
        with Lock(path):
            pass
    except KeyboardInterrupt:
        pass
    gc.collect()
    assert not os.path.exists(path)


def test_a_with_statement_that_is_gone_does_not_keep_its_lock(
    shm: Path, env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J5: neither its exit nor a finalizer has run."""
    path = str(shm / "l")
    drop_statements(monkeypatch)
    with Lock(path):
        pass
    gc.collect()
    assert os.path.exists(path)
    Lock(path).acquire(timeout=5).release()
    assert not env.operations.entered


@pytest.mark.parametrize("call", ["give_back", "release"])
def test_a_release_that_begins_while_another_is_begun_finishes_with_it(call: str, shm: Path, env: Any) -> None:
    """J3, J5: the operation that was broken off keeps a `with` alive, which releases once that is forgotten."""
    path = str(shm / "l")
    hold = Lock(path).acquire()
    held, ref = hold._held, hold._ref

    class Statement:
        def __del__(self) -> None:
            held.release(ref)

    def broken_off(_statement: Statement) -> FrameType:
        return sys._getframe()

    held.frame = broken_off(Statement())
    env.operations.running[held] = held
    getattr(held, call)()
    assert not os.path.exists(path)
    assert not env.operations.running
    assert held.frame is None


def test_a_look_at_an_exit_releases_nothing(shm: Path) -> None:
    lock = Lock(str(shm / "l"))
    with lock as hold:
        assert hasattr(lock, "__exit__")
        lock.__exit__  # noqa: B018
        hold.ensure_held()
    lock.__enter__().ensure_held()
    lock.__exit__(None, None, None)
    assert not os.path.exists(shm / "l")


@pytest.mark.parametrize("face", [Lock, AsyncLock])
def test_an_exit_that_was_looked_up_before_an_entry_by_hand_ends_it_whenever_it_is_called(face: Any, shm: Path) -> None:
    async def by_hand() -> None:
        lock = face(str(shm / "l"))
        names = ("__enter__", "__exit__") if face is Lock else ("__aenter__", "__aexit__")
        enter, leave = (getattr(lock, name) for name in names)
        for _ in range(2):
            hold = enter() if face is Lock else await enter()
            hold.ensure_held()
            done = leave(None, None, None)
            assert face is Lock or await done is None
            assert not os.path.exists(shm / "l")
        seen = getattr(lock, names[1])
        hold = enter() if face is Lock else await enter()
        del seen  # as when a function ends that has only looked whether there is one
        hold.ensure_held()
        leave_later = getattr(lock, names[1])
        done = leave(None, None, None)  # and not by the one that was looked up last
        assert face is Lock or await done is None
        hold = enter() if face is Lock else await enter()
        done = leave_later(None, None, None)
        assert face is Lock or await done is None
        assert not os.path.exists(shm / "l")

    asyncio.run(by_hand())


def test_a_with_of_a_subclass_that_enters_more_is_released_by_its_end(shm: Path, env: Any) -> None:
    class Logged(Lock):
        def __enter__(self) -> Any:
            hold = super().__enter__()
            hold.ensure_held()
            return hold

    with Logged(str(shm / "l")):
        assert env.operations.entered
    assert not env.operations.entered
    assert not os.path.exists(shm / "l")


def test_a_descriptor_is_a_number_to_other_code(shm: Path) -> None:
    with Lock(str(shm / "l")) as hold:
        fd = hold._held.fd
        assert isinstance(fd, Descriptor)
        assert os.fstat(fd).st_ino == os.stat(shm / "l").st_ino


def test_a_hold_that_has_ended_keeps_nothing_of_its_callers_alive(shm: Path) -> None:
    class Kept:
        pass

    def hold_and_release() -> Any:
        kept = Kept()
        with Lock(str(shm / "l")):
            pass
        hold = Lock(str(shm / "l")).acquire()
        hold.release()
        hold.release()
        return weakref.ref(kept)

    gc.disable()
    try:
        assert hold_and_release()() is None
    finally:
        gc.enable()


async def _asynchronous(entering: Any) -> None:
    async with entering:
        pass


async def _of_hold(path: str) -> None:
    await _asynchronous(await AsyncLock(path).acquire())


def _with(entering: Any) -> None:
    with entering:
        pass


WAYS: dict[str, Callable[[str], object]] = {
    "hold": lambda path: _with(Lock(path).acquire()),
    "holds": lambda path: _with(acquire_all([Lock(path), Lock(f"{path}2")])),
    "async hold": lambda path: asyncio.run(_of_hold(path)),
    "async lock": lambda path: asyncio.run(_asynchronous(AsyncLock(path))),
    "async holds": lambda path: asyncio.run(_asynchronous(aio.acquire_all([AsyncLock(path), AsyncLock(f"{path}2")]))),
}
"""A `with` of what was acquired before, and those of asyncio."""


@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_at_the_entry_of_a_with_releases_the_lock(
    way: str, shm: Path, env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (lock, several, aio):
        monkeypatch.setattr(module, "leave_to_statement", failing(KeyboardInterrupt(), 1))
    with pytest.raises(KeyboardInterrupt):
        WAYS[way](str(shm / "l"))
    assert not env.holds
    assert os.listdir(shm) == []


@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_before_a_release_at_the_end_of_a_with_is_raised_after_it(
    way: str, shm: Path, env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt = failing(KeyboardInterrupt(), 1)
    for kind, name in ((BaseHold, "_release"), (Holds, "release")):
        real = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda hold, real=real: (interrupt(), real(hold)))
    with pytest.raises(KeyboardInterrupt):
        WAYS[way](str(shm / "l"))
    assert not env.holds
    assert os.listdir(shm) == []


@pytest.mark.parametrize("way", WAYS)
def test_a_with_whose_exit_is_never_called_releases(
    way: str, shm: Path, env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J5: interrupted before the first line of its exit, or again while the first interruption is handled."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for kind, name in ((Hold, "__exit__"), (Holds, "__exit__"), (AsyncHold, "__aexit__"), (Together, "__aexit__")):
        monkeypatch.setattr(kind, name, interrupted)
    monkeypatch.setattr(AsyncExit, "statement", type("Interrupted", (AsyncLeaving,), {"__call__": interrupted}))
    try:
        WAYS[way](str(shm / "l"))
    except KeyboardInterrupt:
        pass
    gc.collect()
    assert not env.holds
    assert not env.operations.entered
    assert os.listdir(shm) == []


@pytest.mark.parametrize("face", [Lock, AsyncLock])
def test_an_exit_by_hand_says_that_nothing_was_entered(face: Any, shm: Path) -> None:
    lock = face(str(shm / "l"))
    with pytest.raises(NotHeld, match="was not entered by `with`"):
        lock.__exit__(None, None, None) if face is Lock else asyncio.run(lock.__aexit__(None, None, None))


def test_releasing_a_released_hold_asks_no_server(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the exit of a cancelled `async with` does: with a silent server, the event loop would wait."""
    hold = Lock(str(shm / "l")).acquire()
    hold.release()
    monkeypatch.setattr(type(environment()), "may_block", lambda *_: True)
    monkeypatch.setattr("holdfast._drivers.apart.release", failing(AssertionError("asked")))
    hold.release()


@pytest.mark.parametrize("times", [1, 1000])
def test_an_operation_that_cannot_be_undone_does_not_fail_each_later_one(times: int, env: Any, shm: Path) -> None:
    """J6: it is tried once more, as a signal handler may have broken it off; the others are undone all the same."""
    tried: list[int] = []

    class Watch:
        def close(self) -> None:
            tried.append(len(tried))
            if len(tried) <= times:
                raise OSError(f"cannot be closed, {len(tried)}")

    path = str(shm / "l")
    broken, other = broken_off(env), broken_off(env)
    broken.watches = [Watch()]
    env.operations.running = {broken.number: broken, other.number: other}
    for number in range(1, 1 + min(times, 2)):
        with pytest.raises(OSError, match=f"cannot be closed, {number}"):
            Lock(path).acquire()
        assert list(env.operations.running.values()) == ([broken] if number == 1 else [])
    Lock(path).acquire().release()
    assert len(tried) == 2
    assert not env.operations.running


@pytest.mark.parametrize("table", ["running", "entered"])
def test_a_finalizer_may_change_a_table_during_a_search_of_it(table: str, env: Any) -> None:
    """Python 3.11 may collect garbage at any allocation, such as that of a pair from the table."""
    operations = Operations(env.operations._exclusive)
    entries: dict[Any, Any] = getattr(operations, table)
    begun = operations.begin(env)
    still = begun if table == "running" else lambda: begun

    class Garbage:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            entries.pop(next(reversed(entries)), None)

    before = gc.get_threshold()
    try:
        for threshold in range(20, 200, 10):
            entries.update({(table, threshold, number): still for number in range(300)})
            gc.disable()
            Garbage()
            gc.set_threshold(threshold)
            gc.enable()
            operations.finish_broken_off() if table == "running" else operations.leave_dropped()
    finally:
        gc.set_threshold(*before)
    assert entries


def test_a_block_that_another_thread_leaves_is_not_taken_for_the_next_ones(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread closes an `ExitStack`; a third one, which waits with the same object, gets the lock before the
    exit is over."""
    shared, stack, exit_of_hold = Lock(shm / "l"), contextlib.ExitStack(), Hold.__exit__
    stack.enter_context(shared)
    inside, goes_on, still_held = threading.Event(), threading.Event(), []

    def enter() -> None:
        with contextlib.ExitStack() as mine:
            hold = mine.enter_context(shared)
            inside.set()
            goes_on.wait(20)
            still_held.append(not hold._is_released())

    def leave_slowly(hold: Hold, *error: Any) -> None:
        exit_of_hold(hold, *error)
        if not goes_on.is_set():
            assert inside.wait(20)

    monkeypatch.setattr(Hold, "__exit__", leave_slowly)
    threads = [threading.Thread(target=enter), threading.Thread(target=stack.close)]
    for thread in threads:
        thread.start()
    threads[1].join()
    goes_on.set()
    threads[0].join()
    assert still_held == [True]
    assert os.listdir(shm) == []


def test_a_generator_that_is_collected_after_its_statement_leaves_other_holds_alone(shm: Path, env: Any) -> None:
    """The collector ends the objects of a cycle in any order, so the `with` may be over when the generator is
    closed."""
    gate = Semaphore(shm / "gate", 2)

    def inside() -> Generator[Hold, None, None]:
        with gate as hold:
            yield hold

    with contextlib.ExitStack() as stack:
        other = stack.enter_context(gate)
        steps = inside()
        hold = next(steps)
        env.operations.entered[hold._ref]().__del__()
        assert hold._is_released()
        steps.close()
        assert not other._is_released()
    assert os.listdir(shm) == []


def test_a_coroutine_that_is_collected_after_its_statement_leaves_other_holds_alone(shm: Path, env: Any) -> None:
    gate = aio.AsyncSemaphore(shm / "gate", 2)
    holds: list[AsyncHold] = []

    async def inside() -> None:
        async with gate as hold:
            holds.append(hold)
            await asyncio.get_running_loop().create_future()

    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            other = await stack.enter_async_context(gate)
            steps = inside()
            steps.send(None)
            env.operations.entered[holds[0]._ref]().__del__()
            assert holds[0]._is_released()
            steps.close()
            assert not other._is_released()

    asyncio.run(main())
    assert os.listdir(shm) == []


def test_a_step_in_a_thread_is_its_operations_though_the_task_is_collected_already(
    shm: Path, env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector drops weak references before it calls finalizers, and a finalizer that runs before the coroutine's
    may begin an operation. The step's lock is given back."""
    path, inside, goes_on = str(shm / "l"), threading.Event(), threading.Event()
    make = env.open_unnamed

    def slowly(directory: str, mode: int) -> int:
        if threading.current_thread().name == "holdfast-step":
            inside.set()
            assert goes_on.wait(20)
        made: int = make(directory, mode)
        return made

    class Earlier:
        def __del__(self) -> None:
            Lock(path + "2").acquire().release()

    async def start(cycle: list[Any]) -> None:
        cycle.append(asyncio.create_task(AsyncLock(path, durable=True).acquire()))
        cycle[-1]._log_destroy_pending = False
        while not inside.is_set():
            await asyncio.sleep(0)

    monkeypatch.setattr(env, "open_unnamed", slowly)
    gc.collect()
    gc.disable()
    try:
        cycle: list[Any] = [Earlier()]
        cycle[0].cycle = cycle
        loop = asyncio.new_event_loop()
        loop.run_until_complete(start(cycle))
        loop.close()
        del loop, cycle
        gc.collect()
    finally:
        gc.enable()
    goes_on.set()
    while any(thread.name == "holdfast-step" for thread in threading.enumerate()):
        pass
    assert os.listdir(shm) == []


def test_a_release_that_passes_its_place_on_undoes_nothing_else_meanwhile(shm: Path, env: Any) -> None:
    """It has the mutex of its line, and undoing another operation needs the mutex of that one's line, whose owner may
    do the same."""
    path, queue, none = str(shm / "l"), FileRequest(str(shm / "l"), {}).queue, queues.LocalQueue()
    first, holds = Lock(path).acquire(), []
    for number in range(2):
        threading.Thread(target=lambda: holds.append(Lock(path).acquire(timeout=20))).start()
        while len(env.local_queues.get(queue, none).entries) <= number:
            pass
    line = env.local_queues[queue]
    first.release()
    while not holds:
        pass
    owned: list[bool] = []

    class Attempt:
        def close(self) -> None:
            owned.append(line.mutex._is_owned())

    operation = env.operations.begin(env)
    operation.attempt, operation.frame = Attempt(), None
    env.operations.about_to_deliver(operation)
    holds.pop().release()
    while not holds:
        pass
    Lock(path + "2").acquire().release()
    holds.pop().release()
    assert owned == [False]


def test_an_operation_that_is_delivered_just_now_is_not_taken_for_broken_off(
    shm: Path, env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J4: its thread is asked whether it is still at work, and gets its lock before it is looked at."""
    path, asked, acquired, looked_for = str(shm / "l"), threading.Event(), threading.Event(), threading.Event()
    is_alive, holds, me = Operations._is_alive, [], threading.current_thread()

    def slowly(operations: Operations, left: Any) -> bool:
        if threading.current_thread() is me and not asked.is_set():
            asked.set()
            assert looked_for.wait(20)
        return is_alive(operations, left)

    def wait(event: Any) -> None:
        if event.kind == "acquired":
            acquired.set()
            assert asked.wait(20)

    def acquire() -> None:
        holds.append(Lock(path, on_event=wait).acquire())
        looked_for.set()

    monkeypatch.setattr(Operations, "_is_alive", slowly)
    thread = threading.Thread(target=acquire)
    thread.start()
    assert acquired.wait(20)
    Lock(path + "2").acquire().release()
    thread.join()
    holds[0].ensure_held()
    holds[0].release()


@pytest.mark.needs("flock")
@pytest.mark.parametrize("what", ["acquire", "release"])
def test_code_that_interrupts_an_open_waits_for_no_thread_that_waits_for_the_open(
    what: str, shm: Path, env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J7: a signal handler, or a finalizer. The thread has a mutex that they need."""
    path, has_mutex, may_open = str(shm / "l"), threading.Event(), threading.Event()
    mine, others = Lock(path), Lock(path)
    hold = mine.acquire() if what == "release" else None
    issue = queues.QueueEntry._issue

    def slowly(entry: queues.QueueEntry) -> None:
        if threading.current_thread() is thread and not has_mutex.is_set():
            has_mutex.set()
            assert may_open.wait(20)
        issue(entry)

    def wait() -> None:
        others.acquire(timeout=20).release()

    monkeypatch.setattr(queues.QueueEntry, "_issue", slowly)
    first = Lock(path).acquire() if hold is None else hold
    thread = threading.Thread(target=wait)
    thread.start()
    assert has_mutex.wait(20)
    threading.Timer(0.1, may_open.set).start()
    with env.operations.exclusive():
        if hold is None:
            with pytest.raises(AcquireTimeout):
                mine.acquire(timeout=0.3)
        else:
            hold.release()
        assert env.operations._exclusive._is_owned()
    assert not env.operations._exclusive._is_owned()
    first.release()
    thread.join()
    assert os.listdir(shm) == []


@pytest.mark.needs("flock")
@pytest.mark.parametrize("where", ["queue", "watches"])
def test_code_that_interrupts_a_wait_waits_for_no_thread_that_waits_for_its_mutex(
    where: str, shm: Path, env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J7: a signal handler, or a finalizer, in the midst of a step under a mutex that the thread needs."""
    hub = env._events() if hasattr(env, "_events") else None
    if hub is None and where == "watches":
        pytest.skip("inotify")
    held = [str(shm / "one"), str(shm / "two")]
    mine, is_inside, interrupted = str(shm / "mine"), threading.Event(), []
    patched: Any = (queues.QueueEntry, "_issue") if where == "queue" else (type(hub), "leads")
    step = getattr(*patched)

    def interrupt(*arguments: Any) -> Any:
        if not interrupted:
            interrupted.append(thread.start())
            assert is_inside.wait(20)
            with Lock(mine, timeout=20):
                interrupted.append("not for ever")
        return step(*arguments)

    def use_locks() -> None:
        with Lock(mine):
            is_inside.set()
            for path in held:
                with pytest.raises(AcquireTimeout):
                    Lock(path).acquire(timeout=0.05)

    monkeypatch.setattr(*patched, interrupt)
    thread = threading.Thread(target=use_locks)
    holds = [Lock(path).acquire() for path in held]
    with pytest.raises(AcquireTimeout):
        Lock(held[0]).acquire(timeout=0.2)
    assert interrupted[1:] == ["not for ever"]
    thread.join()
    for hold in holds:
        hold.release()
    assert os.listdir(shm) == []


@pytest.mark.needs("flock")
def test_a_child_takes_back_a_mutex_that_a_thread_has_which_it_lacks(shm: Path, env: Any) -> None:
    """J7: it is forked in a callback of code that has interrupted a step under the mutex."""
    mutex, has_mutex, may_go_on = env.watching(), threading.Event(), threading.Event()
    child = -1

    def keep_mutex() -> None:
        with mutex:
            has_mutex.set()
            assert may_go_on.wait(20)

    def fork(event: Any) -> None:
        nonlocal child
        if event.kind == "acquired":
            thread.start()
            assert has_mutex.wait(20)
            child = os.fork()
            may_go_on.set()

    thread = threading.Thread(target=keep_mutex)
    me, status = os.getpid(), 1
    try:
        with mutex:
            Lock(shm / "l", on_event=fork).acquire().release()
    except RuntimeError:
        status = 0  # the child: it holds nothing
    finally:
        if os.getpid() != me:
            os._exit(status)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_the_watches_and_the_keeper_share_one_mutex(env: Any) -> None:
    """With two, a signal handler that ends a hold could wait for one inside the other."""
    hub = env._events() if hasattr(env, "_events") else None
    if hub is None:
        pytest.skip("inotify")
    assert hub.mutex is env.watching() is Keeper(env)._mutex


def test_two_threads_do_not_undo_one_operation_at_once(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """J7: finalizers run while the first thread looks, and let the other one go ahead."""
    operations, begun, go_on, me = env.operations, threading.Event(), threading.Event(), threading.current_thread()
    is_alive, undone = Operations._is_alive, []

    class Left:
        frame = outer = None

        def undo(self) -> None:
            undone.append(threading.current_thread())
            begun.set()
            assert threading.current_thread() is me or go_on.wait(20)

    def slowly(operations: Operations, left: Any) -> bool:
        alive = is_alive(operations, left)
        if threading.current_thread() is me and isinstance(left, Left) and operations.is_inside():
            gave: list[Any] = []
            operations.give_way(gave)
            thread.start()
            assert begun.wait(20)
            operations.take_back(gave)
        return alive

    monkeypatch.setattr(Operations, "_is_alive", slowly)
    thread = threading.Thread(target=operations.finish_broken_off)
    operations.running["left"] = Left()
    operations.finish_broken_off()
    assert undone == [thread]
    go_on.set()
    thread.join()
    assert undone == [thread]
    assert "left" not in operations.running


def test_an_operation_waits_for_no_mutex_because_of_others_that_still_run(env: Any) -> None:
    """J4: of a thousand threads, each would wait for it a thousand times."""

    class Unavailable:
        def _nothing(self) -> bool:
            return False

        _is_owned = _release_save = _acquire_restore = _nothing

        def __enter__(self) -> None:
            raise AssertionError("another thread may have it")

        def __exit__(self, *_: object) -> None: ...

    operations = Operations(Unavailable())
    running = operations.begin(env)
    operations.finish_broken_off()
    assert operations.current() is running
    del operations.running[running.number]


@pytest.mark.parametrize("step", ["begin", "abort", "release"])
def test_code_that_interrupts_an_open_and_fails_takes_the_mutex_back(step: str, shm: Path, env: Any) -> None:
    """J7: otherwise the open would end with "cannot release un-acquired lock"."""

    class Attempt:
        def close(self) -> None:
            raise OSError(5, "no answer")

    class Interrupting(Lock):
        def _attempt(self, operation: Any, *_: Any) -> Any:
            operation.attempt = Attempt()
            raise KeyboardInterrupt

    def interrupt(event: Any) -> None:
        if event.kind == "released":
            raise KeyboardInterrupt

    hold = Lock(shm / "l", on_event=interrupt).acquire() if step == "release" else None
    if step == "begin":
        operation = env.operations.begin(env)
        operation.attempt, operation.frame = Attempt(), None
        env.operations.about_to_deliver(operation)
    with env.operations.exclusive():
        if hold is not None:
            with pytest.raises(KeyboardInterrupt):
                hold.release()
        else:
            with pytest.raises(OSError, match="no answer"):
                (Interrupting if step == "abort" else Lock)(shm / "l").acquire()
        assert env.operations.is_inside()
    assert not env.operations.is_inside()
    for _ in range(2):  # what cannot be undone is tried once more, and then taken off the list
        with contextlib.suppress(OSError):
            Lock(shm / "2").acquire().release()
    assert not env.operations.running


def test_a_thread_that_keeps_forks_away_does_not_wait_to_open(env: Any) -> None:
    """fork.py: a signal handler during an open may fork or import, and would wait for that thread."""
    opened: list[bool] = []

    def open_and_close() -> None:
        with fork.forking:
            env.close(env.open_directory("/"))
        opened.append(True)

    thread = threading.Thread(target=open_and_close)
    with env.operations.exclusive():
        thread.start()
        thread.join(20)
        assert opened
    thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_a_fork_that_waits_for_an_open_keeps_nobody_from_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer during that open may need the import."""
    begun, has_opening = threading.Event(), threading.Event()
    imported: list[bool] = []

    def import_in_the_midst() -> None:
        with fork.opening:
            has_opening.set()
            assert begun.wait(20)
            time.sleep(0.05)  # until the fork waits: a slower one fails nothing
            imported.append(fork.forking.acquire(timeout=5))
            if imported[0]:
                fork.forking.release()

    monkeypatch.setattr(fork, "to_load", [begun.set])
    thread = threading.Thread(target=import_in_the_midst)
    thread.start()
    assert has_opening.wait(20)
    fork._before()
    fork._after()
    thread.join()
    assert imported == [True]
    assert not fork.forking._is_owned()  # type: ignore[attr-defined]
    assert not fork.opening._is_owned()  # type: ignore[attr-defined]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_an_interrupted_fork_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python goes on with the fork, and calls its after-fork functions."""
    begun, has_opening, interrupted = threading.Event(), threading.Event(), threading.Event()

    def interrupt() -> None:
        with fork.opening:
            has_opening.set()
            assert begun.wait(20)
            time.sleep(0.05)  # as above
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            assert interrupted.wait(20)

    def ctrl_c(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fork, "to_load", [begun.set])
    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGUSR1, ctrl_c)
    try:
        thread.start()
        assert has_opening.wait(20)
        with pytest.raises(KeyboardInterrupt):
            fork._before()
        with contextlib.suppress(RuntimeError):  # Python would report it, and go on
            fork._after()
        assert not fork.forking._is_owned()  # type: ignore[attr-defined]
    finally:
        interrupted.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def test_the_mutex_is_taken_back_although_ctrl_c_comes_as_that_begins(env: Any) -> None:
    """J7: in a release, nothing else would take it back."""

    class Gave(list[Any]):
        interrupted = False

        def __len__(self) -> int:
            if list.__len__(self) and not self.interrupted:
                self.interrupted = True
                raise KeyboardInterrupt
            return list.__len__(self)

    gave = Gave()
    with env.operations.exclusive():
        env.operations.give_way(gave)
        with pytest.raises(KeyboardInterrupt):
            env.operations.take_back(gave)
        assert env.operations.is_inside()
