"""Idle: what processes cost that wait for a lock which is not given back.

Measured: processor time and wake-ups (voluntary context switches) of each waiter, all its threads together, over the
window, read from outside before and after it. All libraries wait through the same window, side by side.
Not measured: the holder, memory, and the first ten seconds of a wait (a library may look often at first).
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from context import Context
from peers import Holdfast, Subject, waiting
from procs import Child, Failed, Slots, spawn, wake_ups
from references import BlockingFlock
from tables import Goal, Outcome, Table, show

WAITERS = 20


@dataclass(frozen=True)
class Cost:
    """One waiter's counters at one moment, or their difference over the window."""

    wake_ups: int
    cpu_ns: int

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.wake_ups - other.wake_ups, self.cpu_ns - other.cpu_ns)


def run(context: Context) -> Outcome:
    """One window for everyone."""
    seconds = context.pick(3, 10)
    costs, failures = _measure(context, seconds)
    table = Table(
        f"Idle: {WAITERS} waiters for {seconds:.0f} s, tmpfs",
        ["", "wake-ups each, median", "max", "CPU ms, all together", "CPU ms a minute and waiter"],
        notes=[f"{name}: {why}" for name, why in failures.items()],
    )
    for name, each in costs.items():
        woken = [cost.wake_ups for cost in each]
        cpu_ms = sum(cost.cpu_ns for cost in each) / 1e6
        per_minute = cpu_ms / len(each) * 60 / seconds
        table.rows.append([name, show(statistics.median(woken)), str(max(woken)), f"{cpu_ms:.2f}", f"{per_minute:.2f}"])
    ours = costs.get(Holdfast.label)
    goal = Goal(
        f"idle: wake-ups of a waiter in {seconds:.0f} s, worst of {WAITERS}",
        max(cost.wake_ups for cost in ours) if ours else None,
        1,
        "wake-ups",
        why_not=context.holdfast_missing or failures.get(Holdfast.label, ""),
    )
    data = {
        name: {"wake_ups": [cost.wake_ups for cost in each], "cpu_ns": [cost.cpu_ns for cost in each]}
        for name, each in costs.items()
    }
    return Outcome([table], [goal], {"seconds": seconds, **data}, [f"{k}: {why}" for k, why in failures.items()])


def _measure(context: Context, seconds: float) -> tuple[dict[str, list[Cost]], dict[str, str]]:
    groups: dict[str, Child] = {}
    waiters: dict[str, list[int]] = {}
    failures: dict[str, str] = {}
    try:
        for one in context.subjects(waiting(BlockingFlock)):
            groups[one.label] = spawn(_group, one, str(context.tmpfs / f"idle.{one.label}"))
        for name, group in groups.items():
            try:
                waiters[name] = group.answer(60)
            except Failed as error:
                failures[name] = str(error)
        time.sleep(seconds)
        before = {name: [_read(pid) for pid in pids] for name, pids in waiters.items()}
        time.sleep(seconds)
        costs = {
            name: [_read(pid) - earlier for pid, earlier in zip(pids, before[name], strict=True)]
            for name, pids in waiters.items()
        }
        for name, group in groups.items():
            if name in costs and group.pipe.poll():
                del costs[name]
                failures[name] = "the holder or a waiter ended"
    finally:
        for group in groups.values():
            group.end()
    return costs, failures


def _group(pipe: Connection, subject: type[Subject], path: str) -> None:
    """The child: loads the library, forks a holder and the waiters, reports the waiters' process ids."""
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
