"""Uncontended: one process takes and frees a lock that nobody else wants.

Measured: the time of one acquire + release, on tmpfs and on disk, lock object made beforehand. Each subject lives in
a process of its own; in each round every subject runs one time slice, in an order drawn anew for the round.
Not measured: making the lock object, importing, waiting, fsync (no subject syncs by default).
"""

from __future__ import annotations

import subprocess
import time
from array import array
from multiprocessing.connection import Connection
from pathlib import Path

from context import Context, filesystem_of
from peers import LIBRARIES, Holdfast, Subject
from procs import Child, Failed, spawn
from references import PythonCalls
from report import Goal, Outcome, timing_table
from series import Series

C_LOOP = "C loop"
_WARM_UP = 20
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
        outcome.goals += _goals(context, place, series, why_not)
        outcome.data[place] = {name: one.data() for name, one in series.items()}
        outcome.failures += [f"{name}: {one.error}" for name, one in series.items() if one.error and name != C_LOOP]
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
    subjects = context.subjects([PythonCalls, *LIBRARIES])
    series = {C_LOOP: Series(), **{one.label: Series() for one in subjects}}
    series[C_LOOP].error = why_not or None
    slice_ns = int(context.pick(30e6, 60e6))
    children: dict[str, Child] = {}
    try:
        for number, one in enumerate(subjects):
            children[one.label] = spawn(_serve, one, str(directory / f"{number}.lock"))
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
        series.error = str(error)


def _c_slice(program: Path, directory: Path, slice_ns: int) -> array[int]:
    command = [str(program), str(directory), str(directory / "c.lock"), str(slice_ns), str(_WARM_UP)]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(str(error)) from None
    if done.returncode != 0:
        raise Failed(done.stderr.decode().strip())
    samples = array("q")
    samples.frombytes(done.stdout)
    return samples


def _serve(pipe: Connection, subject: type[Subject], path: str) -> None:
    """The child: one lock object, one slice of cycles per request, until the parent hangs up."""
    lock = subject(path)
    while True:
        slice_ns = pipe.recv()
        _cycles(lock, _WARM_UP)
        pipe.send(_timed_cycles(lock, slice_ns))


def _cycles(lock: Subject, count: int) -> None:
    for _ in range(count):
        lock.acquire()
        lock.release()


def _timed_cycles(lock: Subject, slice_ns: int) -> array[int]:
    clock, acquire, release = time.monotonic_ns, lock.acquire, lock.release
    samples = array("q")
    begin = clock()
    stop = begin + slice_ns
    while begin < stop:
        begin = clock()
        acquire()
        release()
        samples.append(clock() - begin)
    return samples


def _goals(context: Context, place: str, series: dict[str, Series], why_not: str) -> list[Goal]:
    ours = series.get(Holdfast.label, Series())
    limits = ((C_LOOP, 1.8, False), ("FileLock", 1.0, True), ("SoftFileLock", 0.3, False))
    return [
        Goal(
            f"uncontended, {place}: holdfast ÷ {name}",
            ours.ratio_to(series[name]),
            limit,
            "x",
            below,
            context.holdfast_missing or (why_not if name == C_LOOP else "") or series[name].error or ours.error or "",
        )
        for name, limit, below in limits
    ]
