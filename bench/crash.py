"""Crash: a holder is killed with SIGKILL while another process is blocked waiting for its lock.

Measured: from just before os.kill to just after the waiter's acquire returned. That includes the time that the kernel
takes to tear the killed process down, which grows with its memory; every holder here is a Python process that loaded
one library, except those of the limits (limits.py), which are small. So the goal compares with blocking flock(2) from
Python. Not measured: a holder that hangs, a machine that loses power, a holder on another host.

Left out: flufl.lock and StrictSoftFileLock, whose lock outlives its holder (the first until its lifetime of 15 s ends),
and zc.lockfile, which cannot wait. Polling libraries get the pause that handoff.py explains.
"""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

from context import Context
from handoff import pause, turns
from limits import LIMITS, Limit
from peers import Holdfast, Subject, waiting
from procs import Failed, Slots, forget, spawn
from references import BlockingFlock
from series import Series, failures
from tables import Goal, Outcome, timing_table

_HELD, _GO, _ANNOUNCED, _ACQUIRED, _DONE = range(5)


def run(context: Context) -> Outcome:
    """Rounds of batches; in each round every subject has one batch, in an order drawn anew."""
    subjects = [one for one in context.subjects(waiting(*LIMITS, BlockingFlock)) if one.after_kill]
    series = {one.label: Series() for one in subjects}
    for number in range(int(context.pick(2, 5))):
        for one in context.random.sample(subjects, len(subjects)):
            if series[one.label].error is None:
                try:
                    series[one.label].add(
                        number, _batch(context, one, context.lock_path(f"crash-{number}.{one.label}"))
                    )
                except Failed as error:
                    series[one.label].fail(error)
    ours = series.get(Holdfast.label, Series())
    goal = Goal(
        "SIGKILL to acquired, median: holdfast ÷ blocking flock",
        ours.ratio_to(series[BlockingFlock.label]),
        1.5,
        "x",
        why_not=context.holdfast_missing or ours.error or "",
    )
    return Outcome(
        [timing_table("SIGKILL of the holder to acquired by a waiter, tmpfs", series, BlockingFlock.label, 1_000)],
        [goal],
        {name: one.data() for name, one in series.items()},
        failures(series),
    )


def _batch(context: Context, subject: type[Subject], path: Path) -> list[int]:
    count = turns(subject, context.pick(0.5, 1.2), int(context.pick(30, 60)))
    plan = [pause(context, subject) for _ in range(count)]
    # One kill more than planned: the waiter's first wait does its set-up as well, and is not counted.
    plan = [plan[0], *plan]
    if issubclass(subject, Limit):
        return list(subject.measured(context.disk, path, "crash", *[round(one * 1e9) for one in plan]))
    child = spawn(_kill_holders, subject, str(path), plan)
    try:
        return list(child.answer(30 + 10 * count))
    finally:
        child.end()


def _kill_holders(pipe: Connection, subject: type[Subject], path: str, plan: list[float]) -> None:
    """The child: loads the library once, then forks one waiter, and one holder per kill."""
    subject(path)
    slots = Slots(5)
    waiter = spawn(_wait_in_turn, subject, path, len(plan), slots)
    latencies = []
    for turn, pause_s in enumerate(plan, 1):
        holder = spawn(_hold, subject, path, turn, slots)
        slots.wait(_HELD, turn)
        slots[_GO] = turn
        slots.wait(_ANNOUNCED, turn)
        time.sleep(pause_s)
        killed = time.monotonic_ns()
        os.kill(holder.pid, signal.SIGKILL)
        # Reaped at once, as a parent should: a zombie still counts as a process for libraries that ask for its pid.
        os.waitpid(holder.pid, 0)
        forget(holder.pid)
        holder.end()
        slots.wait(_DONE, turn)
        latencies.append(slots[_ACQUIRED] - killed)
    waiter.end()
    pipe.send(latencies[1:])


def _hold(_pipe: Connection, subject: type[Subject], path: str, turn: int, slots: Slots) -> None:
    lock = subject(path)
    lock.acquire()
    slots[_HELD] = turn
    time.sleep(60)


def _wait_in_turn(_pipe: Connection, subject: type[Subject], path: str, count: int, slots: Slots) -> None:
    lock = subject(path)
    for turn in range(1, count + 1):
        slots.wait(_GO, turn)
        slots[_ANNOUNCED] = turn
        lock.acquire()
        slots[_ACQUIRED] = time.monotonic_ns()
        lock.release()
        slots[_DONE] = turn
