"""The benchmarks, or drawings of an earlier run: `make bench`, or `python bench/run.py [suite ...]`. See README.md."""

from __future__ import annotations

import argparse
import json
import os
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
from machine import Reading, command_version, filesystem_of, machine_line, meanwhile_line, revision, versions_of
from procs import Failed, end_adopted, spawn
from report import FORMAT, Unreadable, load, page, renew
from session import directories
from syscalls import show_calls
from tables import Goal, Outcome, goals_table

ROOT = Path(__file__).parents[1]

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
    """Run; 0: measured or drawn, whether or not the goals were met; 1: a measurement failed; 2: it could not start."""
    options = _parse()
    try:
        if options.stored:
            _draw(options, load(options.stored))
            return 0
        with directories(options.tmpfs, options.disk) as (tmpfs, disk):
            context = Context(tmpfs, disk, options.quick, options.peers_only)
            if not options.peers_only:
                _require_holdfast()
            if options.strace:
                print(show_calls(context.disk))
                return 0
            return _run(context, options)
    except (Failed, Unreadable, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/run.py", description="Measure holdfast side by side with other lock libraries."
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"any of {', '.join(SUITES)}; all when omitted")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: under 3 min instead of under 12 min")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every number to FILE as well")
    parser.add_argument("--html", metavar="FILE", type=Path, help="draw them on one page as well")
    parser.add_argument("--from", dest="stored", metavar="JSON", type=Path, help="measure nothing: draw an earlier run")
    parser.add_argument("--docs", action="store_true", help="renew the chart, and the tables of the documentation")
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
    if options.stored and (options.suites or options.json or options.strace):
        parser.error("--from draws what another run has measured: with --html and --docs only")
    if options.stored and not (options.html or options.docs):
        parser.error("--from needs --html FILE or --docs: what to draw")
    return options


def _require_holdfast() -> None:
    """Check that holdfast can be imported, in a child, because the parent must stay free of the libraries."""
    child = spawn(_import_holdfast)
    try:
        child.answer(30)
    except Failed as error:
        raise Failed(f"holdfast: not importable: {error}") from None
    finally:
        child.end()


def _import_holdfast(pipe: Connection) -> None:
    import holdfast

    pipe.send(holdfast.__version__)


def _run(context: Context, options: argparse.Namespace) -> int:
    facts = _facts(context)
    for name, value in facts.items():
        print(f"{name}: {value}")
    goals: list[Goal] = []
    report: dict[str, Any] = {"format": FORMAT, "facts": facts, "meanwhile": {}, "suites": {}, "failures": []}
    begin = time.monotonic()
    for name in options.suites or SUITES:
        before = Reading.now()
        outcome = SUITES[name](context)
        end_adopted(settle=0.05)  # their CPU time counts when they are reaped
        meanwhile = Reading.now().since(before, os.cpu_count() or 1)
        report["meanwhile"][name] = meanwhile
        for table in outcome.tables:
            print(f"\n{table}", flush=True)
        print(f"  {meanwhile_line(meanwhile)}", flush=True)
        goals += outcome.goals
        report["suites"][name] = outcome.data
        report["failures"] += [f"{name}: {failure}" for failure in outcome.failures]
    report["goals"] = [goal.data() for goal in goals]
    print(f"\n{goals_table(goals)}\n\n{time.monotonic() - begin:.0f} s")
    text = _anonymous(json.dumps(report, indent=1, sort_keys=False), context)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    _draw(options, json.loads(text))
    for failure in report["failures"]:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if report["failures"] else 0


def _anonymous(text: str, context: Context) -> str:
    """The text without the directories of this machine, which an error may name."""
    for directory, word in ((context.tmpfs, "TMPFS"), (context.disk, "DISK"), (sys.prefix, "PYTHON"), (ROOT, "ROOT")):
        text = text.replace(json.dumps(str(directory))[1:-1], word)
    return text


def _draw(options: argparse.Namespace, report: dict[str, Any]) -> None:
    if options.html:
        options.html.parent.mkdir(parents=True, exist_ok=True)
        options.html.write_text(page(report), encoding="utf-8")
    if options.docs:
        renew(ROOT, report)


def _facts(context: Context) -> dict[str, str]:
    commit = revision(ROOT)
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine_line(),
        "Python": platform.python_version(),
        "filesystems": f"tmpfs: {_named(context.tmpfs, True)}; disk: {_named(context.disk, False)}",
        "versions": f"{versions_of(context.packages)}, {command_version('flock')}",
        **({"commit": commit} if commit else {}),
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
