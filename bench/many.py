"""Many: one process holds thousands of locks at once, each on a path of its own, all in one directory on tmpfs.

Measured: acquire + release of one more lock, while 1, 10, … 10 000 are held; the quotient of the last and the second
says whether a lock costs more the more there are. Also the time to acquire and to release each of the many, in the same
order, and the memory of the process for each (lock object and hold; not what the kernel keeps).
Not measured: waiting, and what a library does for its holds as time goes by. StrictSoftFileLock is left out: ten
thousand of them take longer than everything else here together.

Each held lock may need a descriptor. Where the limit of open descriptors does not allow 10 000, there are fewer, and
the title says how many.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from context import Context
from cycles import WARM_UP, counted
from peers import LIBRARIES, Holdfast, HoldfastFlock, StrictSoftFileLock, Subject
from procs import Failed, NotAvailable, allow_open_files, own_memory, spawn
from references import BlockingFlock
from series import Series
from tables import Goal, Outcome, Table, show

FEW = 10
_SIZES, _QUICK_SIZES = (1, FEW, 100, 1000, 10_000), (1, FEW, 100, 1000)
# Descriptors that a library may need for itself, and the interpreter's.
_SPARE = 200


@dataclass
class Result:
    """Samples of one subject, in ns, and bytes for each lock that it held."""

    held: dict[int, Series] = field(default_factory=dict)
    acquire: Series = field(default_factory=Series)
    release: Series = field(default_factory=Series)
    memory: list[float] = field(default_factory=list)
    error: Failed | None = None

    def data(self) -> dict[str, Any]:
        """The numbers for --json."""
        return {
            "held": {str(size): one.data() for size, one in self.held.items()},
            "acquire": self.acquire.data(),
            "release": self.release.data(),
            "bytes_each": self.memory,
            "error": None if self.error is None else str(self.error),
        }


def run(context: Context) -> Outcome:
    """Rounds; in each round every subject goes from none to many and back, in an order drawn anew."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - _SPARE
    wanted = _QUICK_SIZES if context.quick else _SIZES
    sizes = sorted({min(size, allowed) for size in wanted})
    candidates: list[type[Subject]] = [BlockingFlock, *LIBRARIES, HoldfastFlock]
    subjects = [one for one in context.subjects(candidates) if one is not StrictSoftFileLock]
    results = {one.label: Result() for one in subjects}
    for number in range(int(context.pick(2, 3))):
        for one in context.random.sample(subjects, len(subjects)):
            if results[one.label].error is None:
                directory = context.tmpfs / f"many-{number}.{one.label.replace(' ', '-')}"
                directory.mkdir()
                _round(context, results[one.label], number, one, directory, sizes)
    table = Table(
        f"Many: one process holds {sizes[-1]} locks, tmpfs"
        + (" (the limit of descriptors)" if sizes[-1] < wanted[-1] else ""),
        ["", f"µs a cycle, {FEW} held", f"{sizes[-1]} held", "÷", "µs to acquire each", "to release each", "KiB each"],
    )
    for name, result in results.items():
        table.rows.append([name, *_cells(result, sizes[-1])])
        if result.error:
            table.notes.append(f"{name}: {result.error}")
    ours = results.get(Holdfast.label, Result()).held
    goal = Goal(
        f"a cycle with {sizes[-1]} locks held ÷ with {FEW}",
        ours[sizes[-1]].ratio_to(ours[FEW]) if ours else None,
        1.5,
        "x",
        why_not=context.holdfast_missing or str(results.get(Holdfast.label, Result()).error or ""),
    )
    return Outcome(
        [table],
        [goal],
        {"sizes": sizes, "each": {name: result.data() for name, result in results.items()}},
        [
            f"{name}: {result.error}"
            for name, result in results.items()
            if result.error and not isinstance(result.error, NotAvailable)
        ],
    )


def _cells(one: Result, most: int) -> list[str]:
    if not one.held:
        return ["-"] * 6
    few, many = one.held[FEW], one.held[most]
    medians = [show((series.median() or 0.0) / 1e3) for series in (few, many, one.acquire, one.release)]
    return [*medians[:2], show(many.ratio_to(few)), *medians[2:], show(statistics.median(one.memory) / 1024)]


def _round(
    context: Context, result: Result, number: int, subject: type[Subject], directory: Path, sizes: Sequence[int]
) -> None:
    child = spawn(_hold_many, subject, str(directory), sizes, int(context.pick(300, 1000)))
    try:
        held, acquire, release, memory = child.answer(60)
    except Failed as error:
        result.error = error
        return
    finally:
        child.end()
    for size, samples in held.items():
        result.held.setdefault(size, Series()).add(number, samples)
    result.acquire.add(number, acquire)
    result.release.add(number, release)
    result.memory.append(memory)


def _hold_many(pipe: Connection, subject: type[Subject], directory: str, sizes: Sequence[int], cycles: int) -> None:
    """The child: acquire from size to size, then release all of them in one go."""
    allow_open_files()
    one_more = subject(os.path.join(directory, "one-more"))
    counted(one_more, WARM_UP)
    locks: list[Subject] = []
    acquired, held, weight = array("q"), {}, 0
    for size in sizes:
        if size > FEW and not weight:
            weight = own_memory(os.getpid())  # by now with all that a first hold loads
        more = [subject(os.path.join(directory, str(number))) for number in range(len(locks), size)]
        acquired += _each(more, "acquire")
        locks += more
        held[size] = counted(one_more, cycles)
    memory = (own_memory(os.getpid()) - weight) / (sizes[-1] - FEW)
    pipe.send((held, acquired, _each(locks, "release"), memory))


def _each(locks: Sequence[Subject], step: str) -> array[int]:
    """Acquire or release each lock; the time of each, in ns."""
    clock, samples = time.monotonic_ns, array("q")
    for lock in locks:
        call = getattr(lock, step)
        begin = clock()
        call()
        samples.append(clock() - begin)
    return samples
