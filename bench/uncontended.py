"""Uncontended: one process takes and frees a lock that nobody else wants.

Measured: the time of one acquire + release, on tmpfs and on disk, lock object made beforehand. Each subject lives in
a process of its own; in each round every subject runs one time slice, in an order drawn anew for the round.
An asyncio lock is entered by `async with` in a loop that does nothing else.
Not measured: making the lock object, importing, waiting, fsync (no subject syncs by default).
"""

from __future__ import annotations

import subprocess
from array import array
from pathlib import Path

from async_peers import AsyncFileLock, AsyncHoldfast, AsyncSubject
from context import Context
from cycles import WARM_UP, serve
from machine import filesystem_of
from peers import LIBRARIES, Fasteners, FileLock, Holdfast, HoldfastFlock, Portalocker, SoftFileLock, Subject
from procs import Child, Failed, NotAvailable, spawn
from references import PythonCalls
from series import Series, failures
from tables import Goal, Outcome, timing_table

C_LOOP = "C loop"
# Above this the disk table says more about where the directory lies than about locks.
_SLOW_CREATE_NS = 80_000


def run(context: Context) -> Outcome:
    """Both filesystems, the C loop built once."""
    outcome = Outcome()
    program, why_not = build_c_loop(context.disk)
    for place, directory in (("tmpfs", context.tmpfs), ("disk", context.disk)):
        series = _measure(context, directory, program, why_not)
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


def build_c_loop(directory: Path) -> tuple[Path | None, str]:
    """Compile c_loop.c into `directory`; return the program, or None and the reason."""
    program = directory / "c_loop"
    source = Path(__file__).with_name("c_loop.c")
    try:
        made = subprocess.run(["cc", "-O2", "-o", program, source], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None, "no C compiler (cc)"
    if made.returncode != 0:
        return None, f"cc failed: {made.stderr.strip().splitlines()[-1:]}"
    return program, ""


def _measure(context: Context, directory: Path, program: Path | None, why_not: str) -> dict[str, Series]:
    blocking: list[type[Subject]] = [PythonCalls, *LIBRARIES, HoldfastFlock]
    subjects: list[type[Subject] | type[AsyncSubject]] = [*context.subjects(blocking)]
    subjects += context.subjects([AsyncHoldfast, AsyncFileLock])
    series = {C_LOOP: Series(), **{one.label: Series() for one in subjects}}
    if program is None:
        series[C_LOOP].fail(NotAvailable(why_not))
    slice_ns = int(context.pick(30e6, 60e6))
    children: dict[str, Child] = {}
    try:
        for number, one in enumerate(subjects):
            children[one.label] = spawn(serve, one, str(directory / f"{number}.lock"))
        for number in range(int(context.pick(5, 20))):
            order = list(series)
            context.random.shuffle(order)
            for name in order:
                if series[name].error is None:
                    _one_slice(series[name], number, children.get(name), program, directory, slice_ns)
    finally:
        for child in children.values():
            child.end()
    return series


def _one_slice(
    series: Series, number: int, child: Child | None, program: Path | None, directory: Path, slice_ns: int
) -> None:
    try:
        if child is not None:
            series.add(number, child.ask(slice_ns, timeout=20))
        elif program is not None:
            series.add(number, _c_slice(program, directory, slice_ns))
    except Failed as error:
        series.fail(error)


def _c_slice(program: Path, directory: Path, slice_ns: int) -> array[int]:
    command = [str(program), str(directory), str(directory / "c.lock"), str(slice_ns), str(WARM_UP)]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(str(error)) from None
    if done.returncode != 0:
        raise Failed(done.stderr.decode().strip())
    samples = array("q")
    samples.frombytes(done.stdout)
    return samples


# Subject, what it is compared with, limit, whether the limit itself does not count, whether it is the least.
_GOALS = (
    (Holdfast.label, C_LOOP, 1.8, False, False),
    (Holdfast.label, FileLock.label, 1.0, True, False),
    (Holdfast.label, SoftFileLock.label, 0.3, False, False),
    (AsyncHoldfast.label, Holdfast.label, 1.5, False, False),
    (AsyncFileLock.label, AsyncHoldfast.label, 8.0, False, True),
    (HoldfastFlock.label, Fasteners.label, 1.0, False, False),
    (HoldfastFlock.label, Portalocker.label, 1.0, False, False),
)


def _goals(context: Context, place: str, series: dict[str, Series]) -> list[Goal]:
    goals = []
    for one, other, limit, below, least in _GOALS:
        ours, theirs = series.get(one, Series()), series.get(other, Series())
        why_not = context.holdfast_missing or ours.error or theirs.error or ""
        text = f"uncontended, {place}: {one} ÷ {other}"
        goals.append(Goal(text, ours.ratio_to(theirs), limit, "x", below, why_not, least))
    return goals
