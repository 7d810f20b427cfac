"""Interrupt one operation before each of its bytecodes, once or twice, and see what is left of it.

    python script.py DIRECTORY OPERATION [--every N] [--pairs] [--random N] [--seed N] [--seconds S]

An interruption is a KeyboardInterrupt, as Ctrl-C raises it. `--every` takes one bytecode in so many, beginning
anywhere. With `--pairs`, a second one comes before a bytecode of what handles the first, each of them in turn;
`--random` takes so many pairs of all. It prints, as JSON, how many trials there were and what was wrong with which.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import importlib
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import holdfast
from holdfast import AcquireCancelled, AcquireTimeout, AsyncLock, Lock, LockLost, Semaphore, acquire_all, aio
from holdfast._drivers import sync
from holdfast._platform import environment, linux
from holdfast._platform.fork import forking
from holdfast.events import Event
from holdfast.lock import file_request
from process.interrupts.tracer import ENTERING, built, spelled

WAIT = 0.003
"""Seconds of a wait in vain: long enough to queue in sight of all."""
PROMPTLY = 10.0
WAITING = ("wait", "cancelled", "cancelled_by_event", "refused", "task_timeout", "task_refused", "task_cancelled")
"""Operations on a lock which another process holds all the time."""
MEASURED = 10
"""Trials without an interruption, which tell how many bytecodes there are."""
WRONG = 20
"""Failures after which the rest is not tried."""


class Timer:
    """A descriptor that becomes readable some time after it was set (timerfd)."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, 0)
        assert self._fd >= 0, os.strerror(ctypes.get_errno())

    def fileno(self) -> int:
        return self._fd

    def set(self, seconds: float) -> None:
        new = (ctypes.c_long * 4)(0, 0, 0, int(seconds * 1e9))
        assert self._libc.timerfd_settime(self._fd, 0, new, None) == 0, os.strerror(ctypes.get_errno())


class ThirdTime:
    """An event that is set when it is asked for the third time: there are two waits for it."""

    asked = 0

    def is_set(self) -> bool:
        self.asked += 1
        return self.asked >= 3


class Released:
    def __init__(self, loop: asyncio.AbstractEventLoop, held: Any) -> None:
        self._loop = loop
        self._held = held

    def release(self) -> None:
        self._loop.run_until_complete(self._held.release())


class Trials:
    def __init__(self, directory: str, operation: str) -> None:
        self.directory = directory
        self.path = os.path.join(directory, "l")
        self.env: Any = environment()
        self.opcodes = built()
        self.operation: Callable[[], Any] = getattr(self, operation)
        self.name = operation
        self.held: Any = None
        self.dead = b""
        self.kept: set[str] = set()
        self.wrong: list[str] = []
        self.count = 0
        self.heard: list[str] = []
        self.losses: list[LockLost] = []
        self.timer = Timer()
        self.loop = asyncio.new_event_loop()

    def hear(self, event: Event) -> None:
        self.heard.append(event.kind)

    # -- the operations ------------------------------------------------------------------------------------------------

    def lock(self, **options: Any) -> Lock:
        protocol = "sidecar" if self.name == "takeover_announced" else "sema"
        return Lock(self.path, protocol=protocol, tag="main", heartbeat=options.pop("heartbeat", 0), **options)

    def acquire(self) -> Any:
        return self.lock().acquire()

    def attempt(self) -> Any:
        return self.lock().try_acquire()

    def by_name(self) -> Any:
        """Acquire as on FUSE, without unnamed files: the file gets its name by a link, and its guard after that."""
        lock = self.lock()
        file_request(lock).method = "named"
        return lock.acquire()

    def parents(self) -> Any:
        """Acquire at a path whose links are followed, and whose missing directories are created."""
        return Lock(os.path.join(self.directory, "x", "y", "l"), protocol="sidecar", heartbeat=0).acquire()

    def release(self) -> None:
        self.held.release()

    def enter(self) -> None:
        with self.lock():
            pass

    def enter_hold(self) -> None:
        with self.lock().acquire():
            pass

    def enter_all(self) -> None:
        with acquire_all([self.lock(), Lock(self.path + "2", heartbeat=0)]):
            pass

    def takeover(self) -> Any:
        return self.lock().acquire()

    def takeover_announced(self) -> Any:
        """Take over a lock whose removal is announced, as with `sidecar`."""
        return self.lock().acquire()

    def wait(self) -> None:
        with suppress(AcquireTimeout):
            self.lock().acquire(timeout=WAIT)

    def cancelled(self) -> None:
        with suppress(AcquireCancelled):
            self.lock().acquire(cancel=self.timer)

    def cancelled_by_event(self) -> None:
        with suppress(AcquireCancelled):
            self.lock().acquire(cancel=ThirdTime())

    def flock(self) -> Any:
        return Lock(self.path, protocol="flock", tag="main").acquire()

    def npm(self) -> Any:
        return Lock(self.path, protocol="proper-lockfile", realpath=False).acquire()

    def semaphore(self) -> Any:
        return Semaphore(self.path, 2, heartbeat=0).acquire()

    def all(self) -> Any:
        return acquire_all([self.lock(), Lock(self.path + "2", heartbeat=0)])

    def refused(self) -> None:
        """Acquire one of two locks, and give it back."""
        with suppress(AcquireTimeout):
            acquire_all([self.lock(), Lock(os.path.join(self.directory, "a"), heartbeat=0)], timeout=0)

    # -- those of asyncio ----------------------------------------------------------------------------------------------

    def asynchronous(self, *names: str) -> list[AsyncLock]:
        return [AsyncLock(self.path + name, tag="main", heartbeat=0) for name in names]

    def task(self, steps: Any) -> Any:
        """The result of the steps, releasable from here. Like `asyncio.run`, it leaves no task behind."""
        try:
            result = self.loop.run_until_complete(steps)
        except BaseException:
            while left := asyncio.all_tasks(self.loop):
                for one in left:
                    one.cancel()
                with suppress(BaseException):
                    self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.run_until_complete(asyncio.sleep(0))  # until then, it keeps a task that has ended, and its error
            raise
        return None if result is None else Released(self.loop, result)

    async def inside(self, lock: Any) -> None:
        async with lock:
            pass

    async def inside_hold(self) -> None:
        await self.inside(await self.asynchronous("")[0].acquire())

    def task_acquire(self) -> Any:
        return self.task(self.asynchronous("")[0].acquire())

    def task_durable(self) -> Any:
        """Acquire in a task, by steps that run in threads of their own."""
        return self.task(AsyncLock(self.path, tag="main", heartbeat=0, durable=True).acquire())

    def task_enter(self) -> Any:
        return self.task(self.inside(self.asynchronous("")[0]))

    def task_enter_hold(self) -> Any:
        return self.task(self.inside_hold())

    def task_all(self) -> Any:
        return self.task(aio.acquire_all(self.asynchronous("", "2")))

    def task_enter_all(self) -> Any:
        return self.task(self.inside(aio.acquire_all(self.asynchronous("", "2"))))

    def task_cancelled(self) -> None:
        """Acquire one of two locks, and give it back; the task is cancelled in its wait for the other, and again."""

        wanted = aio.acquire_all([*self.asynchronous(""), self.first])

        async def steps() -> None:
            task = asyncio.ensure_future(wanted)
            await asyncio.sleep(0)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0)
            with suppress(asyncio.CancelledError):
                await task

        self.task(steps())

    @property
    def first(self) -> AsyncLock:
        return AsyncLock(os.path.join(self.directory, "a"), heartbeat=0)

    def task_timeout(self) -> None:
        with suppress(AcquireTimeout):
            self.task(self.asynchronous("")[0].acquire(timeout=WAIT))

    def task_refused(self) -> None:
        with suppress(AcquireTimeout):
            self.task(aio.acquire_all([*self.asynchronous(""), self.first], timeout=0))

    def status(self) -> None:
        self.lock().status()

    def told(self) -> None:
        """Tell each event to a listener, which is interrupted as well."""
        with Lock(self.path, tag="main", heartbeat=0, on_event=self.hear):
            pass

    def lost(self) -> None:
        """Lose the lock: the loss is told, and found by the release."""
        with suppress(LockLost):
            self.held.ensure_held()
        with suppress(LockLost):
            self.held.release()

    # -- one trial -----------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self.heard.clear()
        if self.name.startswith("takeover"):
            with open(file_request(self.lock()).path, "wb") as file:
                file.write(self.dead)
        elif self.name == "cancelled":
            self.timer.set(WAIT)
        elif self.name == "parents":
            shutil.rmtree(os.path.join(self.directory, "x"), ignore_errors=True)
        elif self.name == "release":
            self.held = self.lock().acquire()
        elif self.name == "lost":
            self.losses.clear()
            self.held = Lock(self.path, tag="main", on_lost=self.losses.append).acquire()
            os.unlink(self.path)

    def trial(self, first: int, second: int) -> tuple[int, int]:
        """Run one trial; the number of all counted bytecodes, and that of the interruptions."""
        before = self.descriptors()
        self.prepare()
        result = None
        self.count += 1
        failed = ""
        try:
            self.opcodes.start(first, second)
            try:
                result = self.operation()
            finally:
                seen, where = self.opcodes.stop()
        except KeyboardInterrupt:
            pass
        except BaseException:
            failed = traceback.format_exc()
        places = list(where)
        if result is not None:
            result.release()
            result = None
        if self.held is not None:
            with suppress(LockLost):
                self.held.release()
            self.held = None
        if len(places) == 2 and self.is_limit(places[0][0].co_qualname):
            self.recover()
            return seen, 2
        if self.env.holds:
            gc.collect()  # a task that has failed and its error refer to each other
        try:
            assert not failed, failed
            if self.name in ("refused", "task_refused") and second == 0:
                assert set(os.listdir(self.directory)) == self.kept, "held until the next operation of this process"
            self.check(before)
        except BaseException:
            named = ", then ".join(map(spelled, places))
            self.wrong.append(f"{first}, {second}: {named}\n{traceback.format_exc()}")
            self.recover()
        return seen, len(places)

    def is_limit(self, first: str) -> bool:
        """Whether an acquired lock was not entered yet: only one interruption is handled there (guarantees.md)."""
        later = self.name in ("enter_hold", "enter_all", "task_enter_hold")
        return later and first in {*ENTERING, "leave_to_statement", "leave_to_others"}

    def check(self, before: set[int]) -> None:
        """Require that nothing is left, once the next one has come; and that it comes at once."""
        for thread in threading.enumerate():
            if thread.name == "holdfast-step":
                thread.join(PROMPTLY)  # a second interruption ends the wait for it
        begun = time.monotonic()
        if self.name == "takeover_announced":  # the next one would remove the leftovers
            Lock(self.path + ".next", heartbeat=0).acquire(timeout=PROMPTLY).release()
            assert not os.path.exists(f"{self.path}.lock.reclaim"), "left: the announcement"
        if self.name in WAITING:
            Lock(self.path + ".next", heartbeat=0).acquire(timeout=PROMPTLY).release()
        elif self.name == "semaphore":
            both = [Semaphore(self.path, 2, heartbeat=0).acquire(timeout=PROMPTLY) for _ in range(2)]
            for hold in both:
                hold.release()
        elif self.name == "flock":
            Lock(self.path, protocol="flock").acquire(timeout=PROMPTLY).release()
        elif self.name == "npm":
            Lock(self.path, protocol="proper-lockfile", realpath=False).acquire(timeout=PROMPTLY).release()
        elif self.name == "told":
            self.check_what_is_told()
        else:
            self.lock().acquire(timeout=PROMPTLY).release()
        took = time.monotonic() - begun
        assert took < PROMPTLY / 2, f"the next one had to wait for {took:.3f} s"
        env = self.env
        assert not env.operations.running, f"unfinished: {env.operations.running}"
        assert not env.holds, f"still held: {env.holds}"
        assert not env.local_queues, f"still in a queue: {env.local_queues}"
        hub = getattr(env, "_hub", None)
        assert hub is None or not hub._watches, f"still watching: {hub._watches}"
        after = self.descriptors()
        assert after == before, f"descriptors: {sorted(map(self.named, after - before))} more, {before - after} fewer"
        left = set(os.listdir(self.directory)) - self.kept
        assert not left, f"left: {left}"
        assert not forking._is_owned(), "no process can be forked any more"  # type: ignore[attr-defined]

    def check_what_is_told(self) -> None:
        """Require that events were heard in order, and that an interrupted listener hears of the next one."""
        story = ["acquired", "released"]
        assert self.heard in (story, story[:1], story[1:], ["gave-up"], []), f"heard: {self.heard}"
        self.heard.clear()
        Lock(self.path, on_event=self.hear, heartbeat=0).acquire(timeout=PROMPTLY).release()
        assert self.heard[-2:] == story, f"heard of the next one: {self.heard}"
        self.heard.clear()

    def descriptors(self) -> set[int]:
        return {int(name) for name in os.listdir("/proc/self/fd") if self.exists(name)}

    def exists(self, name: str) -> bool:
        return os.path.lexists(f"/proc/self/fd/{name}")

    def named(self, fd: int) -> str:
        with suppress(OSError):
            return os.readlink(f"/proc/self/fd/{fd}")
        return "?"

    def recover(self) -> None:
        """Clean up after an error, so that it is not found again."""
        env = self.env
        for held in list(env.holds.values()):
            held.give_back()
        env.holds.clear()
        env.local_queues.clear()
        env.operations.running.clear()
        with suppress(RuntimeError):
            while True:
                forking.release()
        for name in set(os.listdir(self.directory)) - self.kept:
            path = os.path.join(self.directory, name)
            if os.path.isdir(path):
                for inner in os.listdir(path):
                    os.unlink(os.path.join(path, inner))
                os.rmdir(path)
            else:
                os.unlink(path)

    # -- all of them ---------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Import and create everything that a process needs once, so that no trial includes it."""
        late = (
            "ctypes",
            "hashlib",
            "logging",
            "select",
            "uuid",
            "zlib",
            "holdfast._platform.inotify",
            "holdfast.engines.file.remove",
        )
        for name in late:
            importlib.import_module(name)
        linux._WORTH_A_LOG = 0.0  # a log of the directory is made now, and stays
        for _ in range(2):
            self.lock().acquire().release()
        ready, holding = os.pipe()
        ended, living = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(living)
            hold = self.lock().acquire()
            os.write(holding, Path(hold.path).read_bytes())
            os.closerange(0, 3)
            os.read(ended, 1)  # until this process ends
            os._exit(0)
        os.close(holding)
        os.close(ended)
        self.dead = os.read(ready, 4096)
        os.close(ready)
        with suppress(AcquireTimeout):
            self.lock().acquire(timeout=0.25)  # enough to make what is made once, on a busy machine as well
        sync.LOOK_EVERY = WAIT
        if self.name in WAITING:
            self.kept = {"l"}
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            self.lock().acquire(timeout=PROMPTLY).release()
        if self.name == "flock":
            self.kept = {"l"}
            Lock(self.path, protocol="flock").acquire().release()
        if self.name == "npm":
            self.npm().release()
        if self.name == "parents":
            self.kept = {"x"}
            self.parents().release()
        Lock(self.path + ".h", heartbeat=3600).acquire().release()
        for _ in range(3):
            self.trial(0, 0)

    def pairs(self, options: argparse.Namespace) -> Iterator[tuple[int, int]]:
        chance = random.Random(options.seed)
        # The time of a wait is up after fewer of them when a busy machine stopped this process in between.
        total = max(self.trial(0, 0)[0] for _ in range(MEASURED))
        if options.every:
            for first in range(1 + chance.randrange(options.every), total + 1, options.every):
                seen, _ = self.trial(first, 0)
                if options.pairs:
                    for second in range(first + 1, seen + 1):
                        yield first, second
        # An interruption is handled by at most about as many bytecodes as there are in all.
        lengths: dict[int, int] = {}
        for _ in range(options.random):
            first = chance.randint(1, total)
            if first not in lengths:
                lengths[first] = max(1, self.trial(first, 0)[0] - first)
            yield first, first + chance.randint(1, lengths[first])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("operation")
    parser.add_argument("--pairs", action="store_true")
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    trials = Trials(options.directory, options.operation)
    trials.warm_up()
    until = time.monotonic() + options.seconds
    for first, second in trials.pairs(options):
        trials.trial(first, second)
        if len(trials.wrong) >= WRONG or time.monotonic() >= until:
            break
    print(json.dumps({"trials": trials.count, "wrong": trials.wrong}))
    sys.stdout.flush()
    os._exit(0 if holdfast else 1)


if __name__ == "__main__":
    main()
