"""Uncontended: one process acquires and releases a lock without contenders.

Measured: the time of one acquire + release, on tmpfs and on disk, lock object made beforehand. Each subject lives in
a process of its own; in each round every subject runs one time slice, in an order drawn anew for the round.
Each sample of a limit (limits.py) is the mean of 100 cycles.
An asyncio lock is entered by `async with` in a loop that does nothing else.
Not measured: making the lock object, importing, waiting, fsync (no subject syncs by default).
"""

from __future__ import annotations

from array import array
from pathlib import Path

from async_peers import AsyncFileLock, AsyncHoldfast, AsyncSubject
from context import Context
from cycles import WARM_UP, serve
from limits import LIMITS, Limit, compiled, numbers
from machine import filesystem_of
from peers import LIBRARIES, Fasteners, FileLock, Holdfast, HoldfastFlock, Portalocker, SoftFileLock, Subject
from procs import Child, Failed, spawn
from references import PythonCalls
from series import Series, failures
from tables import Goal, Outcome, timing_table

C_LOOP = "C loop"
# Above this, the disk table says more about the place of the directory than about locks.
_SLOW_CREATE_NS = 80_000


def run(context: Context) -> Outcome:
    """Measure on both filesystems."""
    outcome = Outcome()
    for place, directory in (("tmpfs", context.tmpfs), ("disk", context.disk)):
        series = _measure(context, directory)
        kind = filesystem_of(directory)
        table = timing_table(f"Uncontended, {place} ({kind})", series, C_LOOP, 1_000)
        outcome.tables.append(table)
        base = series[C_LOOP].median() or 0.0
        if place == "disk" and base > _SLOW_CREATE_NS:
            table.notes.append(f"Creating a file is slow here (C loop {base / 1e3:.0f} µs): see README, Disk.")
        outcome.goals += _goals(context, place, series)
        outcome.data[place] = {name: one.data() for name, one in series.items()}
        outcome.failures += failures(series)
    return outcome


def _measure(context: Context, directory: Path) -> dict[str, Series]:
    blocking: list[type[Subject]] = [PythonCalls, *LIBRARIES, HoldfastFlock]
    subjects: list[type[Subject] | type[AsyncSubject]] = [*context.subjects(blocking)]
    subjects += context.subjects([AsyncHoldfast, AsyncFileLock])
    in_c = {one.label: one for one in LIMITS}
    series = {C_LOOP: Series(), **{name: Series() for name in (*in_c, *(one.label for one in subjects))}}
    slice_ns = int(context.pick(30e6, 60e6))
    children: dict[str, Child] = {}
    try:
        for number, one in enumerate(subjects):
            children[one.label] = spawn(serve, one, str(directory / f"{number}.lock"))
        for number in range(int(context.pick(5, 16))):
            for name in context.random.sample(list(series), len(series)):
                if series[name].error is None:
                    try:
                        if name in children:
                            samples = children[name].ask(slice_ns, timeout=20)
                        else:
                            samples = _c_slice(context.disk, in_c.get(name), directory, slice_ns)
                        series[name].add(number, samples)
                    except Failed as error:
                        series[name].fail(error)
    finally:
        for child in children.values():
            child.end()
    return series


def _c_slice(programs: Path, limit: type[Limit] | None, directory: Path, slice_ns: int) -> array[int]:
    if limit is not None:
        return limit.measured(programs, directory / f"{limit.word}.limit", "uncontended", slice_ns, WARM_UP)
    words = (directory, directory / "c.lock", slice_ns, WARM_UP)
    return numbers(compiled("c_loop.c", programs), *words, timeout=20)


_OF_C_LOOP = {"tmpfs": 1.7, "disk": 1.5}
# Subject, the one it is compared with, limit, whether the limit itself does not count, whether it is the least.
_GOALS = (
    (Holdfast.label, FileLock.label, 1.0, True, False),
    (Holdfast.label, SoftFileLock.label, 0.3, False, False),
    (AsyncHoldfast.label, Holdfast.label, 1.5, False, False),
    (AsyncFileLock.label, AsyncHoldfast.label, 8.0, False, True),
    (HoldfastFlock.label, Fasteners.label, 0.85, False, False),
    (HoldfastFlock.label, Portalocker.label, 0.85, False, False),
)


def _goals(context: Context, place: str, series: dict[str, Series]) -> list[Goal]:
    goals = []
    for one, other, limit, below, least in ((Holdfast.label, C_LOOP, _OF_C_LOOP[place], False, False), *_GOALS):
        ours, theirs = series.get(one, Series()), series.get(other, Series())
        why_not = context.holdfast_missing or ours.error or theirs.error or ""
        text = f"uncontended, {place}: {one} ÷ {other}"
        goals.append(Goal(text, ours.ratio_to(theirs), limit, "x", below, why_not, least))
    return goals
