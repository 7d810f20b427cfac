"""Waiters: a thousand wait for one lock; then it is released, and all of them get it, one after the other.

Measured: the time from before the first release to after the last acquisition; how often a waiter was woken for each
release, from the voluntary context switches of the waiters (everything above 1 is a waiter woken for nothing); the
wake-ups a second of all of them together while nothing happened, and the memory that waiting takes.
Each leaves the lock at once and does not come back. Not measured: arriving, and ending.

The waiters are processes, or threads or asyncio tasks of one process; the holder is another process. With threads, some
of the switches are waits for the interpreter's own lock. A user may have so many inotify instances (128 by default,
table title): of a thousand processes, most have to wait without one. A hundred are within the limit.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from async_peers import AsyncFileLock, AsyncHoldfast, AsyncSubject
from context import Context
from peers import FileLock, Holdfast, Subject
from procs import Failed, NotAvailable, Slots, allow_open_files, kill_all, own_memory, spawn, spawn_silent, wake_ups
from references import BlockingFlock
from tables import Goal, Outcome, Table, show

# Slots: the holder has it; it may release; it did; how many were inside; the place of each acquisition's moment.
_HELD, _GO, _RELEASED, _COUNT, _MOMENTS = range(5)
_SETTLE_S = 0.5
_WINDOW_S = 1.0
_ARRIVAL_S = 20.0
_LIMIT_S = 10.0
"""A thousand waiters that are all woken for every release need longer than anyone would wait for a table."""
_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
_WEIGHED = 10
"""Of the processes, so many are weighed; their median counts."""


@dataclass
class Passage:
    """What one subject did. `moments` are those of the acquisitions that there were, from the first release on, ns."""

    moments: list[int]
    woken: int
    idle: float
    memory: float

    @property
    def seconds(self) -> float:
        return self.moments[-1] / 1e9 if self.moments else 0.0

    @property
    def step(self) -> float:
        """The median time between two acquisitions, ns; 0 when there was none."""
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


def run(context: Context) -> Outcome:
    """One kind of waiter after the other, one subject after the other."""
    many = int(context.pick(150, 1000))
    woken = context.subjects([BlockingFlock, Holdfast])
    outcome = Outcome()
    if not context.quick:
        _table(context, outcome, "processes", 100, _processes, [*woken, FileLock])
    processes = _table(context, outcome, "processes", many, _processes, woken if context.quick else [*woken, FileLock])
    _table(context, outcome, "threads", many, _threads, woken)
    in_tasks = _table(context, outcome, "tasks", many, _tasks, context.subjects([AsyncHoldfast, AsyncFileLock]))
    ours, name = processes.get(Holdfast.label), f"{many} waiting processes: wake-ups a release"
    each = ours.woken_each if isinstance(ours, Passage) else None
    outcome.goals.append(Goal(name, each, 1.5, "", why_not=_why_not(context, ours)))
    ours, name = in_tasks.get(AsyncHoldfast.label), f"{many} waiting tasks: time for all"
    # Those who did not all come within the limit took that long at least.
    seconds = (ours.seconds if len(ours.moments) == many else _LIMIT_S) if isinstance(ours, Passage) else None
    outcome.goals.append(Goal(name, seconds, many * 0.002, "s", why_not=_why_not(context, ours)))
    return outcome


def _why_not(context: Context, found: Passage | Failed | None) -> str:
    return context.holdfast_missing or (str(found) if isinstance(found, Failed) else "")


def _table(
    context: Context,
    outcome: Outcome,
    kind: str,
    many: int,
    measure: Callable[..., Passage],
    subjects: Sequence[type[Subject] | type[AsyncSubject]],
) -> dict[str, Passage | Failed]:
    title = f"Waiters: {many} {kind} on one lock, tmpfs"
    if kind == "processes":
        title += f"; inotify instances of a user: {_INSTANCES.read_text().strip()}"
    table = Table(
        title,
        ["", "s for all", "median step µs", "wake-ups a release", "wake-ups a second before", "KiB each"],
    )
    found: dict[str, Passage | Failed] = {}
    for one in subjects:
        group = spawn(_with_holder, measure, one, str(context.tmpfs / f"{kind}-{many}.{one.label}"), many)
        try:
            found[one.label] = group.answer(_ARRIVAL_S + _SETTLE_S + _WINDOW_S + _LIMIT_S + 60)
        except Failed as error:
            found[one.label] = error
        finally:
            group.end()
    for name, passage in found.items():
        if isinstance(passage, Failed):
            table.rows.append([name, "-", "-", "-", "-", "-"])
            table.notes.append(f"{name}: {passage}")
            if not isinstance(passage, NotAvailable):
                outcome.failures.append(f"{many} {kind}, {name}: {passage}")
            continue
        complete = len(passage.moments) == many
        numbers = [passage.step / 1e3, passage.woken_each, passage.idle, passage.memory / 1024]
        table.rows.append([name, show(passage.seconds) if complete else f"> {_LIMIT_S:.0f}", *map(show, numbers)])
        if not complete:
            table.notes.append(f"{name}: {len(passage.moments)} of {many} in {_LIMIT_S:.0f} s")
    outcome.tables.append(table)
    outcome.data[f"{many} {kind}"] = {
        name: {"error": str(one)} if isinstance(one, Failed) else one.data() for name, one in found.items()
    }
    return found


def _with_holder(
    pipe: Connection, measure: Callable[..., Passage], subject: type[Subject] | type[AsyncSubject], path: str, many: int
) -> None:
    """The child: loads the library, forks a holder, and has the waiters measured."""
    allow_open_files()
    subject(path)
    slots = Slots(_MOMENTS + 3 * many)
    spawn_silent(_hold, subject.sync if issubclass(subject, AsyncSubject) else subject, path, slots)
    slots.wait(_HELD, 1)
    passage = measure(subject, path, many, slots)
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
    """The critical section: the moment of this acquisition goes to the next place."""
    place = slots[_COUNT]
    slots[_MOMENTS + place] = time.monotonic_ns()
    slots[_COUNT] = place + 1


def _moments(slots: Slots) -> list[int]:
    return [slots[_MOMENTS + place] - slots[_RELEASED] for place in range(slots[_COUNT])]


def _pass_on(slots: Slots, many: int) -> None:
    """Let the holder release; return when all were inside, or when that took too long."""
    slots[_GO] = 1
    stop = time.monotonic() + _LIMIT_S
    while slots[_COUNT] < many and time.monotonic() < stop:
        time.sleep(0.01)


def _processes(subject: type[Subject], path: str, many: int, slots: Slots) -> Passage:
    stride = max(1, many // _WEIGHED)
    arrived, done = _MOMENTS + many, _MOMENTS + 2 * many
    # All forked before the first one waits: those that poll would leave no processor to fork the others.
    gate, key = os.pipe()
    pids = [
        spawn_silent(_wait, subject, path, slots, arrived + i, done + i, i % stride == 0, gate) for i in range(many)
    ]
    os.write(key, bytes(many))
    for number in range(many):
        slots.wait(arrived + number, 1, timeout=_ARRIVAL_S)
    time.sleep(_SETTLE_S)
    # Reading a thousand takes a while; between the beginnings of two readings each has had the same time.
    begin, earlier = time.monotonic(), sum(map(wake_ups, pids))
    time.sleep(_WINDOW_S)
    elapsed, before = time.monotonic() - begin, list(map(wake_ups, pids))
    # A weighed one's slot holds what it weighed before it waited.
    memory = statistics.median(own_memory(pids[i]) - slots[arrived + i] for i in range(0, many, stride))
    _pass_on(slots, many)
    time.sleep(0.05)  # the last ones are still counting
    if os.waitpid(-1, os.WNOHANG)[0]:
        raise Failed("the holder or a waiter ended (HOLDFAST_BENCH_DEBUG=1 shows why)")
    # One that has gone through was woken once more than it slept; the others sleep again.
    woken = sum(
        slots[done + i] - before[i] if slots[done + i] else wake_ups(pid) - before[i] for i, pid in enumerate(pids)
    )
    return Passage(_moments(slots), woken, (sum(before) - earlier) / elapsed, memory)


def _wait(subject: type[Subject], path: str, slots: Slots, arrived: int, done: int, weighed: bool, gate: int) -> None:
    # The first hold of a process starts what goes with holds (a thread, imports); that is not what waiting costs.
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


def _threads(subject: type[Subject], path: str, many: int, slots: Slots) -> Passage:
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
        """All threads but this one."""
        both = (resource.getrusage(who).ru_nvcsw for who in (resource.RUSAGE_SELF, resource.RUSAGE_THREAD))
        return next(both) - next(both)

    for _ in range(many):
        threading.Thread(target=wait, daemon=True).start()
    for _ in range(many):
        ready.acquire(timeout=_ARRIVAL_S)
    time.sleep(_SETTLE_S)
    weight = own_memory(os.getpid())
    enter.set()
    for _ in range(many):
        ready.acquire(timeout=_ARRIVAL_S)
    time.sleep(_SETTLE_S)
    earlier, begin = slept(), time.monotonic()
    time.sleep(_WINDOW_S)
    elapsed, before = time.monotonic() - begin, slept()
    memory = (own_memory(os.getpid()) - weight) / many
    _pass_on(slots, many)
    if problems:
        raise Failed(problems[0])
    # Each that has gone through was woken once more than it slept.
    woken = slept() - before + slots[_COUNT]
    return Passage(_moments(slots), woken, (before - earlier) / elapsed, memory)


def _tasks(subject: type[AsyncSubject], path: str, many: int, slots: Slots) -> Passage:
    # Not asyncio.run: it would cancel those who have not come yet, one by one, and we are about to end anyway.
    return asyncio.new_event_loop().run_until_complete(_all_tasks(subject, path, many, slots))


async def _all_tasks(subject: type[AsyncSubject], path: str, many: int, slots: Slots) -> Passage:
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
    await asyncio.sleep(_SETTLE_S)
    weight = own_memory(os.getpid())
    enter.set()
    await asyncio.sleep(_SETTLE_S)
    earlier, begin = slept(), time.monotonic()
    await asyncio.sleep(_WINDOW_S)
    elapsed, before = time.monotonic() - begin, slept()
    memory = (own_memory(os.getpid()) - weight) / many
    slots[_GO] = 1
    try:
        await asyncio.wait_for(all_in.wait(), _LIMIT_S)
    except TimeoutError:
        pass
    woken = slept() - before
    moments = _moments(slots)
    for task in tasks:
        if task.done() and (error := task.exception()) is not None:
            raise Failed(f"{type(error).__name__}: {error}")
    return Passage(moments, woken, (before - earlier) / elapsed, memory)
