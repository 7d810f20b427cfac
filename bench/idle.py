"""Idle: the cost of processes that wait for a lock which is not released.

Measured: processor time and wake-ups (voluntary context switches) of each waiter, all its threads together, over each
window, read from outside before and after it. All libraries wait through the same windows, side by side.
Not measured: the holder, memory, and the first seconds of a wait, as long as a window (a library may look often at
first).
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection

from context import Context
from peers import Holdfast, Subject, waiting
from procs import Child, Failed, NotAvailable, Slots, spawn, wake_ups
from references import BlockingFlock
from tables import Goal, Outcome, Table, show

WAITERS = 20


@dataclass(frozen=True)
class Cost:
    """One waiter's counters at one moment, or their difference over a window."""

    wake_ups: int
    cpu_ns: int

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.wake_ups - other.wake_ups, self.cpu_ns - other.cpu_ns)


def run(context: Context) -> Outcome:
    """Measure all subjects in the same windows."""
    seconds, windows = context.pick(3, 10), int(context.pick(2, 6))
    costs, errors = _measure(context, seconds, windows)
    table = Table(
        f"Idle: {WAITERS} waiters, {windows} windows of {seconds:.0f} s, tmpfs",
        ["", "wake-ups each, median", "max", "CPU ms, all together", "CPU ms a minute and waiter"],
        notes=[f"{name}: {why}" for name, why in errors.items()],
    )
    for name, each in costs.items():
        woken = [cost.wake_ups for window in each for cost in window]
        cpu_ms = sum(cost.cpu_ns for window in each for cost in window) / 1e6 / windows
        per_minute = cpu_ms / WAITERS * 60 / seconds
        table.rows.append([name, show(statistics.median(woken)), str(max(woken)), f"{cpu_ms:.2f}", f"{per_minute:.2f}"])
    ours = costs.get(Holdfast.label)
    a_minute = seconds * windows >= 60
    goal = Goal(
        f"idle: wake-ups of a waiter in a minute, worst of {WAITERS}",
        max(sum(cost.wake_ups for cost in each) for each in zip(*ours, strict=True)) if ours and a_minute else None,
        6,
        "wake-ups",
        why_not=context.holdfast_missing or str(errors.get(Holdfast.label, "")) or "a quick run is shorter",
    )
    return Outcome(
        [table],
        [goal],
        {
            "seconds": seconds,
            "waiters": WAITERS,
            "each": {
                name: {
                    "wake_ups": [[cost.wake_ups for cost in window] for window in each],
                    "cpu_ns": [[cost.cpu_ns for cost in window] for window in each],
                }
                for name, each in costs.items()
            },
            "errors": {name: str(why) for name, why in errors.items()},
        },
        [f"{name}: {why}" for name, why in errors.items() if not isinstance(why, NotAvailable)],
    )


def _measure(context: Context, seconds: float, windows: int) -> tuple[dict[str, list[list[Cost]]], dict[str, Failed]]:
    """The cost of each waiter in each window, by subject; and the failures."""
    groups: dict[str, Child] = {}
    waiters: dict[str, list[int]] = {}
    failed: dict[str, Failed] = {}
    try:
        for one in context.subjects(waiting(BlockingFlock)):
            groups[one.label] = spawn(_group, one, str(context.lock_path(f"idle.{one.label}")))
        for name, group in groups.items():
            try:
                waiters[name] = group.answer(60)
            except Failed as error:
                failed[name] = error
        readings: list[dict[str, list[Cost]]] = []
        for _ in range(windows + 1):
            time.sleep(seconds)
            readings.append({})
            for name, pids in list(waiters.items()):
                try:
                    readings[-1][name] = [_read(pid) for pid in pids]
                except OSError:
                    del waiters[name]
        for name, group in groups.items():
            if name not in failed and (name not in waiters or group.pipe.poll()):
                waiters.pop(name, None)
                failed[name] = Failed("the holder or a waiter ended")
    finally:
        for group in groups.values():
            group.end()
    costs = {
        name: [
            [later - earlier for later, earlier in zip(after[name], before[name], strict=True)]
            for before, after in pairwise(readings)
        ]
        for name in waiters
    }
    return costs, failed


def _group(pipe: Connection, subject: type[Subject], path: str) -> None:
    """The child: load the library, fork a holder and the waiters, and report the waiters' process ids."""
    subject(path)
    slots = Slots(WAITERS + 1)
    spawn(_hold, subject, path, slots)
    slots.wait(WAITERS, 1)
    children = [spawn(_wait, subject, path, number, slots) for number in range(WAITERS)]
    for number in range(WAITERS):
        slots.wait(number, 1)
    pipe.send([child.pid for child in children])
    # Ends when the parent kills it; until then a waiter that ends is a failure.
    os.wait()
    pipe.send(Failed("the holder or a waiter ended"))


def _hold(_pipe: Connection, subject: type[Subject], path: str, slots: Slots) -> None:
    lock = subject(path)
    lock.acquire()
    slots[WAITERS] = 1
    time.sleep(600)


def _wait(_pipe: Connection, subject: type[Subject], path: str, number: int, slots: Slots) -> None:
    lock = subject(path)
    slots[number] = 1
    lock.acquire()


def _read(pid: int) -> Cost:
    """The counters of a process: wake-ups of all its threads, processor time from its CPU clock (ns, no ticks)."""
    # The kernel's encoding of "CPU clock of process pid" (clock_getcpuclockid(3)), which Python does not wrap.
    return Cost(wake_ups(pid), time.clock_gettime_ns(~pid << 3 | 2))
