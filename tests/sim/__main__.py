"""`python -m sim`: many interleavings of the workloads, searched through and at random."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sim.search import Failure, Random, campaign, read, replay
from sim.workloads import HOLES, WORKLOADS
from sim.world import Violation

DONE, FAILED, USAGE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 no promise was broken, 1 one was, 2 usage."""
    options = _parser().parse_args(arguments)
    if options.list:
        everything = {**WORKLOADS, **HOLES}
        width = max(map(len, everything))
        for name, workload in everything.items():
            _say(f"{name:{width}}  {'known hole: ' if name in HOLES else ''}{workload.about}")
        return DONE
    if options.replay:
        name, schedule = options.replay
        known = {**WORKLOADS, **HOLES}
        if name not in known:
            return _complain(f"no workload is called {name}; see --list")
        attempt_events = replay(known[name], read(schedule))
        _say(attempt_events)
        return FAILED if "\nViolation: " in attempt_events else DONE
    unknown = [name for name in options.workload if name not in WORKLOADS]
    if unknown:
        return _complain(f"no workload is called {' or '.join(unknown)}; see --list")
    chosen = options.workload or list(WORKLOADS)
    if options.run_seed is not None:
        return _one(chosen, options.run_seed)
    found = campaign(chosen, seconds=options.seconds, jobs=options.jobs, seed=options.seed, tell=_say)
    return FAILED if found else DONE


def _one(chosen: list[str], seed: int) -> int:
    """Run one workload by one seed."""
    if len(chosen) != 1:
        return _complain("--run-seed is about one workload: name it with --workload")
    workload, chooser = WORKLOADS[chosen[0]], Random(seed)
    try:
        workload.world().run(chooser)
    except Violation as violation:
        _say(str(Failure(workload, chooser.schedule, str(violation))))
        return FAILED
    _say(replay(workload, chooser.schedule))
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="PYTHONPATH=tests python -m sim",
        description="The real engine on a simulated kernel, in many interleavings. See docs/simulation.md.",
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long, in all (60)")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes (2)")
    parser.add_argument("--seed", type=int, default=1, help="where the random interleavings begin (1)")
    parser.add_argument(
        "--workload", action="append", default=[], metavar="NAME", help="only this one; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="name the workloads, and end")
    parser.add_argument("--replay", nargs=2, metavar=("WORKLOAD", "SCHEDULE"), help="do that run again, a step a line")
    parser.add_argument("--run-seed", type=int, metavar="N", help="do the random run of that seed again, a step a line")
    return parser


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _complain(text: str) -> int:
    sys.stderr.write(text + "\n")
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
