"""A crowd of waiters for one lock, which is then released (waiters.py measures several crowds)."""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from async_peers import AsyncSubject
from peers import Subject
from procs import Failed, Slots, allow_open_files, kill_all, own_memory, spawn_silent, wake_ups

# Slots: the holder has the lock; it may release; it did, and when; how many were inside; the moments of acquisitions.
_HELD, _GO, _RELEASED, _COUNT, _MOMENTS = range(5)
SETTLE_S, SETTLE_EACH_S = 0.3, 0.004
"""Processes that come together are ready to wait long before the last of them waits."""
ARRIVAL_S = 20.0
LIMIT_S = 10.0
"""Seconds. A thousand waiters that are all woken for every release need longer than anyone would wait for a table."""
_WEIGHED = 10
"""Number of processes that are weighed; their median counts."""


@dataclass
class Passage:
    """The results of one crowd. `moments` are those of its acquisitions, in ns from the first release on."""

    moments: list[int]
    woken: int
    idle: float
    memory: float

    @property
    def seconds(self) -> float:
        return self.moments[-1] / 1e9 if self.moments else 0.0

    @property
    def step(self) -> float:
        """The median time between two acquisitions, in ns; 0 if there was none."""
        steps = [later - earlier for earlier, later in zip([0, *self.moments], self.moments, strict=False)]
        return statistics.median(steps) if steps else 0.0

    @property
    def woken_each(self) -> float:
        return self.woken / max(1, len(self.moments))

    def data(self) -> dict[str, float]:
        """The numbers for --json."""
        return {
            "acquisitions": len(self.moments),
            "seconds": self.seconds,
            "median_step_ns": self.step,
            "wake_ups_per_release": self.woken_each,
            "idle_wake_ups_a_second": self.idle,
            "bytes_each": self.memory,
        }


def with_holder(
    pipe: Connection,
    measure: Callable[..., Passage],
    subject: type[Subject] | type[AsyncSubject],
    path: str,
    many: int,
    window: float,
) -> None:
    """The child: load the library, fork a holder, and have the waiters measured, `window` seconds of it while idle."""
    allow_open_files()
    subject(path)
    slots = Slots(_MOMENTS + 3 * many)
    spawn_silent(_hold, subject.sync if issubclass(subject, AsyncSubject) else subject, path, slots)
    slots.wait(_HELD, 1)
    passage = measure(subject, path, many, slots, window)
    kill_all()  # all gone before the next one's turn
    pipe.send(passage)


def _hold(subject: type[Subject], path: str, slots: Slots) -> None:
    lock = subject(path)
    lock.acquire()
    slots[_HELD] = 1
    slots.wait(_GO, 1, timeout=600)
    slots[_RELEASED] = time.monotonic_ns()
    lock.release()
    time.sleep(600)


def _inside(slots: Slots) -> None:
    """The critical section: note the moment of this acquisition in the next place."""
    place = slots[_COUNT]
    slots[_MOMENTS + place] = time.monotonic_ns()
    slots[_COUNT] = place + 1


def _moments(slots: Slots) -> list[int]:
    return [slots[_MOMENTS + place] - slots[_RELEASED] for place in range(slots[_COUNT])]


def _pass_on(slots: Slots, many: int) -> None:
    """Let the holder release; return when all were inside, or that took too long."""
    slots[_GO] = 1
    stop = time.monotonic() + LIMIT_S
    while slots[_COUNT] < many and time.monotonic() < stop:
        time.sleep(0.01)


def processes(subject: type[Subject], path: str, many: int, slots: Slots, window: float) -> Passage:
    stride = max(1, many // _WEIGHED)
    arrived, done = _MOMENTS + many, _MOMENTS + 2 * many
    # All forked before the first one waits: those that poll would leave no processor to fork the others.
    gate, key = os.pipe()
    pids = [
        spawn_silent(_wait, subject, path, slots, arrived + i, done + i, i % stride == 0, gate) for i in range(many)
    ]
    os.write(key, bytes(many))
    for number in range(many):
        slots.wait(arrived + number, 1, timeout=ARRIVAL_S)
    time.sleep(SETTLE_S + SETTLE_EACH_S * many)
    # Reading a thousand takes a while; between the beginnings of two readings each has had the same time.
    begin, earlier = time.monotonic(), sum(map(wake_ups, pids))
    time.sleep(window)
    elapsed, before = time.monotonic() - begin, list(map(wake_ups, pids))
    # The slot of a weighed process holds its memory from before it waited.
    memory = statistics.median(own_memory(pids[i]) - slots[arrived + i] for i in range(0, many, stride))
    _pass_on(slots, many)
    time.sleep(0.05)  # the last ones are still counting
    if os.waitpid(-1, os.WNOHANG)[0]:
        raise Failed("the holder or a waiter ended (HOLDFAST_BENCH_DEBUG=1 shows why)")
    # A process that has gone through was woken once more than it slept; the others sleep again.
    woken = sum(
        slots[done + i] - before[i] if slots[done + i] else wake_ups(pid) - before[i] for i, pid in enumerate(pids)
    )
    return Passage(_moments(slots), woken, (sum(before) - earlier) / elapsed, memory)


def _wait(subject: type[Subject], path: str, slots: Slots, arrived: int, done: int, weighed: bool, gate: int) -> None:
    # The first hold of a process starts all that goes with holds (a thread, imports), which is no cost of waiting.
    own = subject(f"{path}.{os.getpid()}")
    own.acquire()
    own.release()
    lock = subject(path)
    os.read(gate, 1)
    weight = 1
    if weighed:
        own_memory(os.getpid())  # the first time takes memory of its own
        weight = own_memory(os.getpid())
    slots[arrived] = weight
    lock.acquire()
    _inside(slots)
    lock.release()
    slots[done] = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw + 1
    time.sleep(600)  # ending a process costs more than all this


def threads(subject: type[Subject], path: str, many: int, slots: Slots, window: float) -> Passage:
    enter, ready = threading.Event(), threading.Semaphore(0)
    problems: list[str] = []

    def wait() -> None:
        try:
            lock = subject(path)
            ready.release()
            enter.wait()
            ready.release()
            lock.acquire()
            _inside(slots)
            lock.release()
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}")

    def slept() -> int:
        """Voluntary context switches of all threads but this one."""
        both = (resource.getrusage(who).ru_nvcsw for who in (resource.RUSAGE_SELF, resource.RUSAGE_THREAD))
        return next(both) - next(both)

    for _ in range(many):
        threading.Thread(target=wait, daemon=True).start()
    for _ in range(many):
        ready.acquire(timeout=ARRIVAL_S)
    time.sleep(SETTLE_S)
    weight = own_memory(os.getpid())
    enter.set()
    for _ in range(many):
        ready.acquire(timeout=ARRIVAL_S)
    time.sleep(SETTLE_S)
    earlier, begin = slept(), time.monotonic()
    time.sleep(window)
    elapsed, before = time.monotonic() - begin, slept()
    memory = (own_memory(os.getpid()) - weight) / many
    _pass_on(slots, many)
    if problems:
        raise Failed(problems[0])
    # Each thread that has gone through was woken once more than it slept.
    woken = slept() - before + slots[_COUNT]
    return Passage(_moments(slots), woken, (before - earlier) / elapsed, memory)


def tasks(subject: type[AsyncSubject], path: str, many: int, slots: Slots, window: float) -> Passage:
    # Not asyncio.run: it would cancel the tasks that still wait, one by one, and we are about to end anyway.
    return asyncio.new_event_loop().run_until_complete(_all_tasks(subject, path, many, slots, window))


async def _all_tasks(subject: type[AsyncSubject], path: str, many: int, slots: Slots, window: float) -> Passage:
    enter, all_in = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        lock = subject(path).lock
        await enter.wait()
        async with lock:
            _inside(slots)
        if slots[_COUNT] == many:
            all_in.set()

    def slept() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw

    tasks = [asyncio.create_task(wait()) for _ in range(many)]
    await asyncio.sleep(SETTLE_S)
    weight = own_memory(os.getpid())
    enter.set()
    await asyncio.sleep(SETTLE_S)
    earlier, begin = slept(), time.monotonic()
    await asyncio.sleep(window)
    elapsed, before = time.monotonic() - begin, slept()
    memory = (own_memory(os.getpid()) - weight) / many
    slots[_GO] = 1
    try:
        await asyncio.wait_for(all_in.wait(), LIMIT_S)
    except TimeoutError:
        pass
    woken = slept() - before
    moments = _moments(slots)
    for task in tasks:
        if task.done() and (error := task.exception()) is not None:
            raise Failed(f"{type(error).__name__}: {error}")
    return Passage(moments, woken, (before - earlier) / elapsed, memory)
