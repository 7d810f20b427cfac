"""Many: one process holds thousands of locks at once, each on a path of its own, all in one directory on tmpfs.

Measured: acquire + release of one more lock, while 10 are held and while 10 000 are; the quotient says whether a lock
costs more the more there are. Also the time to acquire and to release each of the many, in the same order, and the
memory of the process for each (lock object and hold; not what the kernel keeps).
Not measured: waiting, and what a library does for its holds as time goes by.

Each held lock may need a descriptor. Where the limit of open descriptors does not allow 10 000, there are fewer, and
the title says how many.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from array import array
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from context import Context
from cycles import WARM_UP, counted
from peers import FileLock, Holdfast, Subject
from procs import Failed, allow_open_files, own_memory, spawn
from references import BlockingFlock
from series import Series
from tables import Goal, Outcome, Table, show

FEW, MANY = 10, 10_000
# Descriptors that a library may need for itself, and the interpreter's.
_SPARE = 200


@dataclass
class Result:
    """One subject's samples, ns, and bytes for each lock that it held."""

    few: Series = field(default_factory=Series)
    many: Series = field(default_factory=Series)
    acquire: Series = field(default_factory=Series)
    release: Series = field(default_factory=Series)
    memory: list[float] = field(default_factory=list)
    error: str | None = None

    def data(self) -> dict[str, Any]:
        """The numbers for --json."""
        parts = {"few": self.few, "many": self.many, "acquire": self.acquire, "release": self.release}
        return {**{name: one.data() for name, one in parts.items()}, "bytes_each": self.memory, "error": self.error}


def run(context: Context) -> Outcome:
    """Rounds; in each round every subject goes from few to many and back, in an order drawn anew."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - _SPARE
    count = min(MANY, allowed)
    subjects = context.subjects([BlockingFlock, Holdfast, FileLock])
    results = {one.label: Result() for one in subjects}
    for number in range(int(context.pick(1, 2))):
        for one in context.random.sample(subjects, len(subjects)):
            if results[one.label].error is None:
                directory = context.tmpfs / f"many-{number}.{one.label.replace(' ', '-')}"
                directory.mkdir()
                _round(context, results[one.label], number, one, directory, count)
    table = Table(
        f"Many: one process holds {count} locks, tmpfs" + (" (the limit of descriptors)" if count < MANY else ""),
        ["", f"µs a cycle, {FEW} held", f"{count} held", "÷", "µs to acquire each", "to release each", "KiB each"],
    )
    for name, result in results.items():
        table.rows.append([name, *_cells(result)])
        if result.error:
            table.notes.append(f"{name}: {result.error}")
    ours = results.get(Holdfast.label, Result())
    goal = Goal(
        f"a cycle with {count} locks held ÷ with {FEW}",
        ours.many.ratio_to(ours.few),
        1.5,
        "x",
        why_not=context.holdfast_missing or ours.error or "",
    )
    return Outcome(
        [table],
        [goal],
        {"held": count, **{name: result.data() for name, result in results.items()}},
        [f"{name}: {result.error}" for name, result in results.items() if result.error],
    )


def _cells(one: Result) -> list[str]:
    medians = [series.median() for series in (one.few, one.many, one.acquire, one.release)]
    if None in medians:
        return ["-"] * 6
    few, many, acquire, release = (show((median or 0.0) / 1e3) for median in medians)
    return [few, many, show(one.many.ratio_to(one.few)), acquire, release, show(statistics.median(one.memory) / 1024)]


def _round(context: Context, result: Result, number: int, subject: type[Subject], directory: Path, count: int) -> None:
    child = spawn(_hold_many, subject, str(directory), count, int(context.pick(500, 2000)))
    try:
        few, many, acquire, release, memory = child.answer(60)
    except Failed as error:
        result.error = str(error)
        return
    finally:
        child.end()
    result.few.add(number, few)
    result.many.add(number, many)
    result.acquire.add(number, acquire)
    result.release.add(number, release)
    result.memory.append(memory)


def _hold_many(pipe: Connection, subject: type[Subject], directory: str, count: int, cycles: int) -> None:
    """The child: up to few, up to many, down again, all in one go."""
    allow_open_files()
    one_more = subject(os.path.join(directory, "one-more"))
    counted(one_more, WARM_UP)
    held = [subject(os.path.join(directory, str(number))) for number in range(FEW)]
    acquired = _each(held, "acquire")
    few = counted(one_more, cycles)
    weight = own_memory(os.getpid())
    held += [subject(os.path.join(directory, str(number))) for number in range(FEW, count)]
    acquired += _each(held[FEW:], "acquire")
    memory = (own_memory(os.getpid()) - weight) / (count - FEW)
    many = counted(one_more, cycles)
    released = _each(held, "release")
    pipe.send((few, many, acquired, released, memory))


def _each(locks: list[Subject], step: str) -> array[int]:
    """Acquire or release each of them; how long each took."""
    clock, samples = time.monotonic_ns, array("q")
    for lock in locks:
        call = getattr(lock, step)
        begin = clock()
        call()
        samples.append(clock() - begin)
    return samples
