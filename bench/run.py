"""Run the benchmarks: `make bench`, or `python bench/run.py [suite ...] [--quick] [--json FILE]`. See README.md."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import crash
import fairness
import handoff
import idle
import listing
import many
import startup
import uncontended
import waiters
from context import Context
from machine import filesystem_of, machine_line, versions_of
from procs import Failed, spawn
from session import directories
from syscalls import show_calls
from tables import Goal, Outcome, goals_table

SUITES: dict[str, Callable[[Context], Outcome]] = {
    "startup": startup.run,
    "handoff": handoff.run,
    "crash": crash.run,
    "idle": idle.run,
    "fairness": fairness.run,
    "waiters": waiters.run,
    "many": many.run,
    "listing": listing.run,
    # Last, and long after the installation that precedes a run: see README, Disk.
    "uncontended": uncontended.run,
}


def main() -> int:
    """0: measured, whether or not the goals were met; 1: a measurement failed; 2: it could not start."""
    options = _parse()
    try:
        with directories(options.tmpfs, options.disk) as (tmpfs, disk):
            context = Context(tmpfs, disk, options.quick, options.peers_only)
            if not options.peers_only:
                _require_holdfast()
            if options.strace:
                print(show_calls(context.disk))
                return 0
            return _run(context, options)
    except (Failed, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/run.py", description="Measure holdfast side by side with other lock libraries."
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"any of {', '.join(SUITES)}; all when omitted")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: under 1 min instead of under 6 min")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every number to FILE as well")
    parser.add_argument("--tmpfs", metavar="DIR", type=Path, default=Path("/dev/shm"), help="default /dev/shm")
    parser.add_argument("--disk", metavar="DIR", type=Path, default=Path(), help="default the current directory")
    parser.add_argument("--strace", action="store_true", help="print the system calls of one cycle, measure nothing")
    parser.add_argument("--peers-only", action="store_true", help="leave holdfast out")
    options = parser.parse_args()
    unknown = [name for name in options.suites if name not in SUITES]
    if unknown:
        parser.error(f"no such suite: {', '.join(unknown)} (there are {', '.join(SUITES)})")
    if options.strace and options.peers_only:
        parser.error("--strace shows holdfast, --peers-only leaves it out")
    return options


def _require_holdfast() -> None:
    """In a child, because the parent must stay free of the libraries."""
    child = spawn(_import_holdfast)
    try:
        child.answer(30)
    except Failed as error:
        raise Failed(f"holdfast: not importable: {error}") from None
    finally:
        child.end()


def _import_holdfast(pipe: Connection) -> None:
    import holdfast

    assert holdfast.Lock
    pipe.send(None)


def _run(context: Context, options: argparse.Namespace) -> int:
    facts = _facts(context)
    for name, value in facts.items():
        print(f"{name}: {value}")
    goals: list[Goal] = []
    data: dict[str, Any] = {}
    failures: list[str] = []
    begin = time.monotonic()
    for name in options.suites or SUITES:
        outcome = SUITES[name](context)
        for table in outcome.tables:
            print(f"\n{table}", flush=True)
        goals += outcome.goals
        data[name] = outcome.data
        failures += [f"{name}: {failure}" for failure in outcome.failures]
    print(f"\n{goals_table(goals)}\n\n{time.monotonic() - begin:.0f} s")
    if options.json:
        report = {"facts": facts, "suites": data, "goals": [goal.data() for goal in goals], "failures": failures}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _facts(context: Context) -> dict[str, str]:
    return {
        "machine": machine_line(),
        "Python": platform.python_version(),
        "filesystems": f"tmpfs: {_named(context.tmpfs, True)}; disk: {_named(context.disk, False)}",
        "versions": versions_of(context.packages),
        "run": "quick" if context.quick else "full",
    }


def _named(directory: Path, memory: bool) -> str:
    kind = filesystem_of(directory)
    if memory and kind not in ("tmpfs", "ramfs"):
        return f"{kind} (not a memory filesystem: see --tmpfs)"
    if not memory and kind in ("tmpfs", "ramfs"):
        return f"{kind} (not a disk: see --disk)"
    return kind


if __name__ == "__main__":
    sys.exit(main())
