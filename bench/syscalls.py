"""--strace: the system calls of one holdfast cycle next to those of one cycle of c_loop.c, as strace sees them.

They let a reader check that the C loop is a fair reference: it must not do less than holdfast has to. The cycle shown
is the one after a warm-up, between two failing calls that mark its ends; nothing is measured.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

from limits import compiled
from procs import Failed, NotAvailable

_PROGRAM = """
import os, sys, holdfast
lock = holdfast.Lock(sys.argv[1])
for _ in range(20):
    lock.acquire().release()
os.access("/holdfast-bench-begin", os.F_OK)
lock.acquire().release()
os.access("/holdfast-bench-end", os.F_OK)
"""


def show_calls(directory: Path) -> str:
    """Both lists of calls, side by side by number, then in full."""
    ours = _calls([sys.executable, "-I", "-c", _PROGRAM, str(directory / "traced.lock")], directory)
    reference: list[str] = []
    why_not = ""
    try:
        program = compiled("c_loop.c", directory)
        reference = _calls([str(program), str(directory), str(directory / "c.lock"), "0", "20"], directory)
    except NotAvailable as error:
        why_not = str(error)
    names = [[call.partition("(")[0] for call in calls] for calls in (reference, ours)]
    lines = ["System calls of one cycle", f"  {'C loop':<14}  holdfast"]
    lines += [f"  {left:<14}  {right}" for left, right in zip_longest(*names, fillvalue="")]
    for title, calls in (("C loop", reference or [f"not measured: {why_not}"]), ("holdfast", ours)):
        lines += ["", title, *(f"  {call}" for call in calls)]
    return "\n".join(lines).replace(str(directory), "DIR")


def _calls(command: list[str], directory: Path) -> list[str]:
    """The calls between the marks: first those of the thread that made the cycle, then those of other threads."""
    if shutil.which("strace") is None:
        raise Failed("strace is not installed")
    # -ff: a file per thread, so that calls of two threads are not printed into each other.
    begin = ["strace", "-ff", "-ttt", "-o", str(directory / "trace")]
    done = subprocess.run([*begin, *command], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise Failed(f"strace: {done.stderr.strip()[-300:]}")
    threads = []
    for trace in directory.glob("trace.*"):
        lines = (line.partition(" ") for line in trace.read_text(errors="replace").splitlines())
        threads.append([(float(moment), call) for moment, _, call in lines])
        trace.unlink()
    for thread in threads:
        marks = [moment for moment, call in thread if '"/holdfast-bench-' in call]
        if len(marks) == 2:
            others = [call for other in threads if other is not thread for call in _between(other, *marks)]
            return [*_between(thread, *marks), *(f"[other thread] {call}" for call in others)]
    raise Failed("strace: the marks around the cycle are missing")


def _between(thread: list[tuple[float, str]], begin: float, end: float) -> list[str]:
    return [call for moment, call in thread if begin < moment < end]
