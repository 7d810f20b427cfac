"""Tasks among processes and threads: a waiter on an event loop is woken by the event, and keeps it from no other.

In most of these tests, no wait ends merely because it has lasted long (`events_only`): a lost event is a hang."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import AsyncLock, Lock
from holdfast._platform import environment
from holdfast.events import Event
from process.support import NO_NOTICE, PATIENCE, Peer, descriptors, eventually, quiet, state
from unit.loops import LOOPS, Run, asleep, events_only, run_on, until

__all__ = ["events_only"]

RUN = {
    "asyncio": "import asyncio; from holdfast import AsyncLock; run = asyncio.run\n",
    "uvloop": "import asyncio, uvloop; from holdfast import AsyncLock; run = uvloop.run\n",
}
WAIT = """
async def main():
    say("waiting")
    async with AsyncLock(path) as hold:
        say(time.monotonic(), hold.recovered_from is not None)
"""

needs_events = pytest.mark.needs("events")


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    return run_on(request.param)


def in_epoll(peer: Peer) -> bool:
    """Whether the process sleeps in its event loop, waiting for events."""
    number = Path(f"/proc/{peer.pid}/syscall").read_text().split()[0]
    return state(peer.pid) == "S" and number in ("232", "281", "22") and "anon_inode:inotify" in peer_files(peer)


def peer_files(peer: Peer) -> list[str]:
    return list(descriptors(peer.pid).values())


# -- other processes ---------------------------------------------------------------------------------------------------


@needs_events
@pytest.mark.parametrize("kind", RUN)
@pytest.mark.parametrize("how", ["release", "kill"])
def test_a_waiting_task_wakes_at_the_end_of_a_hold(spawn: Callable[..., Peer], path: str, kind: str, how: str) -> None:
    holder = spawn("hold = Lock(path).acquire(); say('held'); hear(); hold.release()", path)
    holder.expect("held")
    waiter = spawn("events_only()\n" + RUN[kind] + WAIT + "run(main())", path)
    waiter.expect("waiting")
    eventually(lambda: in_epoll(waiter), what="the wait")
    if how == "release":
        holder.say("release")
    else:
        holder.kill()
    _, recovered = waiter.hear().split()
    assert recovered == str(how == "kill")
    waiter.finish()
    assert os.listdir(os.path.dirname(path)) == []


@needs_events
@pytest.mark.parametrize("kind", RUN)
def test_a_waiting_loop_sleeps(spawn: Callable[..., Peer], path: str, kind: str) -> None:
    with Lock(path):
        waiter = spawn("events_only()\n" + NO_NOTICE + RUN[kind] + WAIT + "run(main())", path)
        waiter.expect("waiting")
        eventually(lambda: in_epoll(waiter), what="the wait")
        # Polling would be 40 looks.
        eventually(lambda: quiet(waiter.pid, seconds=1, wakes=2), what="a second asleep")
    waiter.hear()
    waiter.finish()


@pytest.mark.parametrize("kind", RUN)
@pytest.mark.parametrize("env", [{}, {"HOLDFAST_WITHOUT": "events"}, {"HOLDFAST_OS": "generic"}], ids=str)
def test_a_ctrl_c_leaves_nothing_of_a_waiting_task(
    spawn: Callable[..., Peer], path: str, kind: str, env: dict[str, str]
) -> None:
    hold = Lock(path).acquire()
    before = os.listdir(os.path.dirname(path))
    waiter = spawn(
        RUN[kind]
        + """
        try:
            Lock(path).acquire(timeout=0.3)  # what is kept for the life of the process is there from now on
        except TimeoutError:
            pass
        run(asyncio.sleep(0))
        def others():
            # A slow machine has not come so far in 0.01 s.
            hub = getattr(holdfast._platform.environment(), "_hub", None)
            found = set(os.listdir("/proc/self/fd")) - {str(hub.fd) if hub is not None else ""}
            return {fd for fd in found if os.path.lexists("/proc/self/fd/" + fd)}  # not that of the listing
        before = others()
        async def main():
            say("waiting")
            await AsyncLock(path).acquire()
        for _ in range(2):
            try:
                run(main())
            except KeyboardInterrupt:
                say("interrupted", others() == before, threading.active_count())
        """.replace("\n        ", "\n"),
        path,
        env=env,
    )
    for _ in range(2):
        waiter.expect("waiting")
        eventually(lambda: state(waiter.pid) == "S", what="the wait")
        waiter.kill(signal.SIGINT)
        waiter.expect("interrupted True 1")
    waiter.finish()
    assert os.listdir(os.path.dirname(path)) == before
    hold.ensure_held()
    hold.release()


@pytest.mark.parametrize("threads", [False, True])
def test_a_process_that_ends_releases_the_lock_of_a_task(spawn: Callable[..., Peer], path: str, threads: bool) -> None:
    code = f"holdfast._platform.environment().__class__.may_block = lambda *_: {threads}\n"
    process = spawn(
        RUN["asyncio"] + code + "hold = run(AsyncLock(path).acquire()); say(os.path.exists(path))",
        path,
    )
    process.expect("True")
    assert process.finish() == ""
    assert os.listdir(os.path.dirname(path)) == []


# -- many tasks, threads and loops -------------------------------------------------------------------------------------


def test_no_increment_is_lost_among_five_hundred_tasks(shm: Path, run: Run, events_only: None) -> None:
    path, counter = shm / "l", shm / "counter"
    counter.write_text("0")

    async def increment() -> None:
        async with AsyncLock(path):
            seen = int(counter.read_text())
            await asyncio.sleep(0)
            counter.write_text(str(seen + 1))

    async def main() -> None:
        await asyncio.gather(*(increment() for _ in range(500)))

    run(main())
    assert counter.read_text() == "500"
    assert os.listdir(shm) == ["counter"]
    assert not environment().holds


@pytest.mark.parametrize("may_block", [False, True], ids=["inline", "threads"])
def test_no_increment_is_lost_among_tasks_threads_and_loops(
    shm: Path, run: Run, may_block: bool, monkeypatch: pytest.MonkeyPatch, events_only: None
) -> None:
    monkeypatch.setattr(type(environment()), "may_block", lambda _self, _path: may_block)
    path = shm / "l"
    total = 0
    failures: list[BaseException] = []

    async def in_task() -> None:
        nonlocal total
        for _ in range(10):
            async with AsyncLock(path) as hold:
                seen = total
                hold.ensure_held()
                await asyncio.sleep(0)
                total = seen + 1

    async def tasks() -> None:
        await asyncio.gather(*(in_task() for _ in range(5)))

    def loop() -> None:
        try:
            asyncio.run(tasks())
        except BaseException as error:
            failures.append(error)

    def thread() -> None:
        nonlocal total
        try:
            for _ in range(10):
                with Lock(path) as hold:
                    seen = total
                    hold.ensure_held()
                    time.sleep(0)
                    total = seen + 1
        except BaseException as error:
            failures.append(error)

    others = [threading.Thread(target=target) for target in (loop, loop, thread, thread, thread)]
    for other in others:
        other.start()
    run(tasks())
    for other in others:
        other.join(60)
        assert not other.is_alive(), "somebody is never served"
    assert not failures
    assert total == 3 * 50 + 3 * 10
    assert os.listdir(shm) == []


@pytest.mark.parametrize("first", ["the task", "the thread"])
def test_a_busy_loop_does_not_delay_a_waiting_thread(shm: Path, run: Run, first: str, events_only: None) -> None:
    """A task waits, and then its loop is busy. A thread that waits for another lock must be served."""
    mine, theirs = Lock(shm / "mine").acquire(), Lock(shm / "theirs").acquire()
    served = threading.Event()

    def wait() -> None:
        with Lock(shm / "theirs"):
            served.set()

    async def main() -> None:
        thread = threading.Thread(target=wait)
        if first == "the thread":
            thread.start()
            eventually(lambda: state(os.getpid(), thread.native_id) == "S")
        task = asyncio.create_task(AsyncLock(shm / "mine").acquire())
        await asleep(task)
        if first == "the task":
            thread.start()
            eventually(lambda: state(os.getpid(), thread.native_id) == "S")
        theirs.release()
        assert served.wait(PATIENCE), "it waits for an event that a busy loop would have to read"
        thread.join()
        mine.release()
        await (await task).release()

    run(main())


def test_a_waiting_task_leaves_a_synchronous_lock_on_its_loop_its_event(shm: Path, run: Run, events_only: None) -> None:
    mine, theirs = Lock(shm / "mine").acquire(), Lock(shm / "theirs").acquire()

    async def main() -> None:
        task = asyncio.create_task(AsyncLock(shm / "mine").acquire())
        await asleep(task)
        threading.Timer(0.05, theirs.release).start()
        with Lock(shm / "theirs", timeout=PATIENCE):  # blocks the loop, as it should not
            pass
        mine.release()
        await (await task).release()

    run(main())


def test_a_waiting_task_leaves_a_synchronous_lock_in_a_callback_its_event(
    shm: Path, run: Run, events_only: None
) -> None:
    """The callback runs in a step of another task, and stops the loop that would read events for the first."""
    mine, theirs, another = (Lock(shm / name).acquire() for name in ("mine", "theirs", "another"))
    served: list[Event] = []

    def callback(event: Event) -> None:
        if event.kind == "waiting":
            threading.Timer(0.05, theirs.release).start()
            with Lock(shm / "theirs", timeout=PATIENCE):
                served.append(event)

    async def main() -> None:
        task = asyncio.create_task(AsyncLock(shm / "mine").acquire())
        await asleep(task)
        last = asyncio.create_task(AsyncLock(shm / "another", on_event=callback).acquire())
        await asleep(last)
        mine.release()
        another.release()
        await (await task).release()
        await (await last).release()

    began = time.monotonic()
    run(main())
    assert len(served) == 1
    assert time.monotonic() - began < PATIENCE


def test_a_stopped_loop_delays_no_other_waiter(shm: Path, events_only: None) -> None:
    """Its task waits, but the loop is not running; a task on another loop and a thread must be served."""
    for kind in LOOPS:
        mine, theirs = Lock(shm / "mine").acquire(), Lock(shm / "theirs").acquire()
        stopped = LOOPS[kind]()
        task = stopped.create_task(AsyncLock(shm / "mine").acquire())
        stopped.run_until_complete(asleep(task))

        async def main(theirs: object = theirs) -> None:
            other = asyncio.create_task(AsyncLock(shm / "theirs").acquire())
            await asleep(other)
            theirs.release()  # type: ignore[attr-defined]
            await (await asyncio.wait_for(other, PATIENCE)).release()

        run_on(kind)(main())
        mine.release()
        hold = stopped.run_until_complete(task)
        stopped.run_until_complete(hold.release())
        stopped.close()


# -- fork --------------------------------------------------------------------------------------------------------------


def test_a_fork_of_a_running_loop_takes_neither_locks_nor_events(shm: Path, run: Run, events_only: None) -> None:
    """The child has a copy of the loop and of all tasks. It drops them, makes its own, and uses the same locks."""
    held, waited = shm / "held", shm / "waited"

    async def main() -> None:
        holder = Lock(waited).acquire()
        async with AsyncLock(held) as hold:
            task = asyncio.create_task(AsyncLock(waited).acquire())
            await asleep(task)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    await_in_child(hold, task)
                    status = 0
                except BaseException:
                    sys.excepthook(*sys.exc_info())
                finally:
                    os._exit(status)
            _, status = os.waitpid(child, 0)
            assert status == 0
            hold.ensure_held()
        holder.release()
        await (await asyncio.wait_for(task, PATIENCE)).release()

    def await_in_child(hold: object, task: asyncio.Task[object]) -> None:
        task.get_coro().close()  # as when all objects of the parent are collected
        signal.alarm(20)

        async def child() -> None:
            await hold.release()  # type: ignore[attr-defined]
            assert await AsyncLock(held).try_acquire() is None
            assert await AsyncLock(waited).try_acquire() is None
            try:
                await AsyncLock(waited).acquire(timeout=0.05)
            except TimeoutError:
                pass
            async with AsyncLock(shm / "own") as own:
                own.ensure_held()

        asyncio.run(child())

    run(main())
    assert os.listdir(shm) == []


@pytest.mark.parametrize("kind", RUN)
def test_a_child_forked_while_a_step_runs_in_a_thread_shares_no_lock(
    spawn: Callable[..., Peer], path: str, kind: str
) -> None:
    process = spawn(
        RUN[kind]
        + """
        holdfast._platform.environment().__class__.may_block = lambda *_: True
        env = holdfast._platform.environment()
        link, inside, go = env.link_unnamed, threading.Event(), threading.Event()
        def slow(*args):
            inside.set()
            go.wait()
            return link(*args)
        env.link_unnamed = slow
        async def main():
            task = asyncio.create_task(AsyncLock(path).acquire())
            await asyncio.to_thread(inside.wait)
            child = os.fork()
            if child == 0:
                left = [os.readlink("/proc/self/fd/" + n) for n in os.listdir("/proc/self/fd")
                        if os.path.lexists("/proc/self/fd/" + n)]
                say("child", [name for name in left if "lock" in name or "#" in name], env.holds)
                os._exit(0)
            os.waitpid(child, 0)
            go.set()
            hold = await task
            hold.ensure_held()
            await hold.release()
            say("parent", os.path.exists(path))
        run(main())
        """.replace("\n        ", "\n"),
        path,
        env={"HOLDFAST_WITHOUT": "", "HOLDFAST_OS": ""},
    )
    process.expect("child [] {}")
    process.expect("parent False")
    process.finish()


def test_a_release_in_a_thread_does_not_wait_behind_threads_that_wait_for_it(disk: Path, run: Run) -> None:
    """All threads of the loop's executor wait for the lock that a thread has to release."""

    def work() -> None:
        with Lock(disk / "l"):
            pass

    async def main() -> None:
        loop = asyncio.get_running_loop()
        before = threading.active_count()
        async with AsyncLock(disk / "l", durable=True):
            waiting = [loop.run_in_executor(None, work) for _ in range(40)]
            await until(lambda: threading.active_count() > before)
        await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)

    run(main())
    assert os.listdir(disk) == []
