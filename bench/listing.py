"""Listing: `holdfast ls` of 10 000 lock files, and `holdfast ls -r` of trees of 100 000 files without one, on tmpfs.

Measured: the CPU time, user and system, of the process, from its start to its end, so that other work of the machine
counts less. Trees: files named as in a tree of sources (`.py`, `.h`, `.md` …), which `ls -r` passes over by their
names; and files whose names say nothing, each of which it opens, and `find` does not. `Beyond the start` is the time
beyond that of the same command in an empty directory; for `find`, all of it.
Not measured: a cold disk, where reading directories and files is all that counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from context import Context
from procs import Failed, NotAvailable
from series import Series, failures
from tables import Goal, Outcome, Table, show

LOCKS, FILES, A_DIRECTORY = 10_000, 100_000, 100
_ENDINGS = (".py", ".pyc", ".c", ".h", ".md", ".json", ".js", ".html", ".png", ".so")
BARE, EMPTY, MANY = "bare interpreter", "ls -r, an empty directory", f"ls, {LOCKS} lock files"
FIND, TREE = "find -name '*.lock', a tree of sources", "ls -r, the same tree"
FIND_BARE, TREE_BARE = "find, names that say nothing", "ls -r, the same names"


def run(context: Context) -> Outcome:
    """Rounds of one run each, in an order drawn anew."""
    commands = _commands(context)
    series = {name: Series() for name in commands}
    for number in range(-1, int(context.pick(2, 5))):
        for name in context.random.sample(list(commands), len(commands)):
            if series[name].error is None:
                try:
                    used = _cpu(commands[name])
                except Failed as error:
                    series[name].fail(error)
                    continue
                if number >= 0:
                    series[name].add(number, [used])
    over = {name: _over(series, name) for name in commands}
    table = Table("Listing, CPU time, tmpfs", ["", "n", "ms", "ms beyond the start", "÷ find"])
    for name, one in series.items():
        finds = {TREE: FIND, TREE_BARE: FIND_BARE}.get(name)
        ratio = _ratio(over[name], over[finds]) if finds else None
        median = one.median()
        cells = [None if median is None else median / 1e6, over[name], ratio]
        table.rows.append([name, str(one.count), *map(show, cells)])
    data = {name: one.data() for name, one in series.items()}
    return Outcome([table], _goals(context, series, over), data, failures(series))


def _commands(context: Context) -> dict[str, list[str]]:
    where = context.tmpfs / "listing"
    for name in ("empty", "locks", "sources", "bare"):
        (where / name).mkdir(parents=True)
    for number in range(LOCKS):
        (where / "locks" / f"l{number}").write_text(
            f"pid={os.getpid()}\ntimestamp={time.time() + 10:.0f}\ntag=job {number}\n", encoding="ascii"
        )
    _tree(where / "sources", _ENDINGS)
    _tree(where / "bare", ("",))
    wanted = ["-xdev", "-name", "*.lock"]
    commands = {
        BARE: [sys.executable, "-I", "-c", "pass"],
        FIND: ["find", str(where / "sources"), *wanted],
        FIND_BARE: ["find", str(where / "bare"), *wanted],
    }
    if not context.peers_only:
        holdfast = str(Path(sys.executable).with_name("holdfast"))
        commands[EMPTY] = [holdfast, "ls", "-r", str(where / "empty")]
        commands[MANY] = [holdfast, "ls", str(where / "locks")]
        commands[TREE] = [holdfast, "ls", "-r", str(where / "sources")]
        commands[TREE_BARE] = [holdfast, "ls", "-r", str(where / "bare")]
    return commands


def _tree(top: Path, endings: Sequence[str]) -> None:
    for directory in range(FILES // A_DIRECTORY):
        inside = top / str(directory // 32) / str(directory)
        inside.mkdir(parents=True)
        for number in range(A_DIRECTORY):
            (inside / f"f{number}{endings[number % len(endings)]}").write_bytes(b"x = 1\n")


def _cpu(command: list[str]) -> int:
    """Run the command once; its nanoseconds of CPU time, user and system."""
    nowhere = subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere)
    except FileNotFoundError:
        raise NotAvailable("not installed") from None
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise Failed(f"exit status {process.returncode}")
    return round((used.ru_utime + used.ru_stime) * 1e9)


def _over(series: dict[str, Series], name: str) -> float | None:
    """Milliseconds beyond the start of the command, or of the interpreter."""
    base = {MANY: BARE, TREE: EMPTY, TREE_BARE: EMPTY, EMPTY: BARE}.get(name)
    of_base = series[base].median() if base else 0.0
    used = series[name].median()
    return None if used is None or of_base is None else (used - of_base) / 1e6


def _ratio(of: float | None, to: float | None) -> float | None:
    return None if of is None or not to else of / to


def _goals(context: Context, series: dict[str, Series], over: dict[str, float | None]) -> list[Goal]:
    missing = context.holdfast_missing

    def why_not(*names: str) -> str:
        return missing or next((error for name in names if (error := series[name].error)), "")

    return [
        Goal(f"holdfast ls of {LOCKS} lock files over the bare interpreter, CPU", over.get(MANY), 1000, "ms",
             why_not=why_not(MANY)),
        Goal(f"holdfast ls -r of {FILES} files without locks, beyond its start, ÷ find, CPU",
             _ratio(over.get(TREE), over.get(FIND)), 2, "x", why_not=why_not(TREE, FIND)),
    ]  # fmt: skip
