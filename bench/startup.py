"""Start-up: the cost of an import, one `holdfast try` and one `holdfast run` for a process that does nothing else.

Measured: from before the process is started until it has ended, by the wall clock, in interleaved runs after an
uncounted first one (so from the page cache, with byte code compiled). `holdfast try` includes all that it must finish
before it returns, but not the later work of a keeper process; the keeper is ended and the lock file removed before the
next run. `holdfast run LOCK -- true` stands beside `flock FILE true`; both include starting `true`. The imports are of
the module that the adapter in peers.py uses. The script `holdfast` is as a current pip writes it; scripts of older ones
import `re` first, which `try` and `run` then pay for. Not measured: a cold disk, memory.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from context import Context
from procs import Failed, NotAvailable, end_adopted
from series import Series, failures
from tables import Goal, Outcome, timing_table

BARE, IMPORT, TRY, RUN = "bare interpreter", "import holdfast", "holdfast try", "holdfast run, true"
ONCE = "import, acquire, release"
FLOCK = "flock(1), true"
MODULES = ("filelock", "portalocker", "fasteners", "flufl.lock", "zc.lockfile")


def run(context: Context) -> Outcome:
    """Rounds of one run each, in an order drawn anew."""
    lock = context.tmpfs / "startup.lock"
    commands = _commands(context, lock)
    series = {name: Series() for name in commands}
    for number in range(-1, int(context.pick(12, 40))):
        for name in context.random.sample(list(commands), len(commands)):
            if series[name].error is None:
                try:
                    elapsed = _once(commands[name], lock, leaves_lock=name == TRY)
                except Failed as error:
                    series[name].fail(error)
                    continue
                if number >= 0:
                    series[name].add(number, [elapsed])
    return Outcome(
        [timing_table("Start-up, process start to end", series, BARE, 1_000_000)],
        _goals(context, series),
        {name: one.data() for name, one in series.items()},
        failures(series),
    )


def _commands(context: Context, lock: Path) -> dict[str, list[str]]:
    isolated = [sys.executable, "-I", "-c"]
    commands = {BARE: [*isolated, "pass"]}
    if not context.peers_only:
        commands[IMPORT] = [*isolated, "import holdfast"]
        commands[ONCE] = [*isolated, f"import holdfast; holdfast.Lock({str(lock)!r}).acquire().release()"]
        holdfast = str(Path(sys.executable).with_name("holdfast"))
        commands[TRY] = [holdfast, "try", "--owner-pid", str(os.getpid()), str(lock)]
        commands[RUN] = [holdfast, "run", str(lock), "--", "true"]
    commands[FLOCK] = ["flock", f"{lock}.flock", "true"]
    commands |= {f"import {module}": [*isolated, f"import {module}"] for module in MODULES}
    return commands


def _once(command: list[str], lock: Path, leaves_lock: bool) -> int:
    """Run the command once; its nanoseconds. `Failed` if it fails, or does not leave the lock that it should."""
    # A file, not a pipe: a keeper process that inherits the pipe would make us wait for the keeper.
    with tempfile.TemporaryFile(dir=lock.parent) as errors:
        try:
            elapsed, status = _timed(command, errors.fileno())
            left = os.path.lexists(lock)
        finally:
            if leaves_lock:
                end_adopted()
                lock.unlink(missing_ok=True)
        if status != 0:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().splitlines()
            if said and said[-1].startswith("ModuleNotFoundError"):
                raise NotAvailable(f"not installed: {said[-1].partition(': ')[2]}")
            raise Failed(f"exit status {status}" + (f": {said[-1]}" if said else ""))
    if leaves_lock and not left:
        raise Failed("exit status 0, but no lock file")
    return elapsed


def _timed(command: list[str], stderr: int) -> tuple[int, int]:
    """Nanoseconds from a command's start to its end, and its exit status."""
    begin = time.monotonic_ns()
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr)
    except FileNotFoundError:
        raise NotAvailable("not installed") from None
    # Not wait(timeout=...): that polls, and rounds the time up to its next look.
    ended = os.pidfd_open(process.pid)
    in_time = bool(select.select([ended], [], [], 20)[0])
    elapsed = time.monotonic_ns() - begin
    os.close(ended)
    if not in_time:
        process.kill()
    status = process.wait()
    if not in_time:
        raise Failed("did not end in 20 s")
    return elapsed, status


def _goals(context: Context, series: dict[str, Series]) -> list[Goal]:
    bare, imported, ran, tried = (series.get(name, Series()) for name in (BARE, IMPORT, RUN, TRY))
    both = imported.median(), bare.median()
    over = (both[0] - both[1]) / 1e6 if both[0] is not None and both[1] is not None else None
    missing = context.holdfast_missing
    return [
        Goal("import holdfast over the bare interpreter", over, 12, "ms", why_not=missing or imported.error or ""),
        Goal("holdfast run, true ÷ bare interpreter", ran.ratio_to(bare), 2.2, "x", why_not=missing or ran.error or ""),
        Goal("holdfast try ÷ bare interpreter", tried.ratio_to(bare), 3, "x", why_not=missing or tried.error or ""),
    ]
