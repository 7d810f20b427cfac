"""Check the models with spin: in every configuration every promise holds, and in every mutant one is broken.

    python model/check.py                 all of it, as `make model` does
    python model/check.py --only NAME …   some of it
    python model/check.py --trace NAME    a run in which something goes wrong, step by step

Exit status: 0 all is as it should be, 1 it is not, 2 usage, or a program is missing. docs/simulation.md says more.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEPTH = 100_000
"""Steps in a run; a longer one is an error, not a limit."""
MEMORY = 900
"""Megabytes for each of two at a time."""
QUEUE, LOCK = "queue.pml", "lock.pml"
PROMISES = {
    r"seen\[": "another's lock is broken",
    r"inside": "exclusion",
    r"before\[": "order",
    r"reader": "a living waiter loses its ticket",
    r"wipes": "a waiter has no ticket",
    r"ahead\[": "woken too early",
    r"round\[": "a waiter sleeps for ever",
    r"lock|placed|path": "something is left",
}
"""What an assertion says, by what stands in it; the first that fits."""


@dataclass(frozen=True)
class Case:
    """One search: a model, what is switched on in it, and what is to come out."""

    name: str
    model: str
    options: str
    breaks: str = ""
    """Of a mutant: the invariants that it takes away."""
    what: str = ""
    """Of a mutant: what it does."""
    ends: bool = False
    """Whether it is also shown that no run goes on for ever."""

    @property
    def defines(self) -> list[str]:
        return [f"-D{option}" for option in self.options.split()]

    @property
    def contenders(self) -> str:
        found = re.search(r"\bN=(\d+)", self.options)
        return found[1] if found else "?"


@dataclass(frozen=True)
class Outcome:
    """What a search has found."""

    case: Case
    error: str
    """What went wrong, or why there was no search; empty if all holds."""
    failed: bool
    """Whether the search itself failed."""
    states: int
    depth: int
    seconds: float

    @property
    def is_right(self) -> bool:
        return not self.failed and bool(self.error) == bool(self.case.breaks)


CONFIGURATIONS = (
    Case("smallest", QUEUE, "N=2 CRASHES=1 DEADLINES=1", ends=True),
    Case("two", QUEUE, "N=2 ROUNDS=2 CRASHES=2 STOPS=1 DEADLINES=1", ends=True),
    Case("three", QUEUE, "N=3 CRASHES=2 STOPS=1 DEADLINES=1", ends=True),
    Case("again", QUEUE, "N=3 ROUNDS=2"),
    Case("held", QUEUE, "N=3 HELD CRASHES=1 DEADLINES=1"),
    Case("four", QUEUE, "N=4 CRASHES=1"),
    Case("broken", QUEUE, "N=3 HELD BREAKS=1 STAYER=1"),
    Case("held-broken", QUEUE, "N=2 HELD BREAKS=2 STAYER=1 CRASHES=1 STOPS=1"),
    Case("swept", QUEUE, "N=3 SWEEPS=2 STOPS=1 CRASHES=1"),
    Case("slots", QUEUE, "N=3 SLOTS=2 CRASHES=1 DEADLINES=1", ends=True),
    Case("slots-stay", QUEUE, "N=4 SLOTS=2 STAYER=3"),
    Case("forged", QUEUE, "N=3 FORGED CRASHES=1"),
    Case("wiped", QUEUE, "N=3 WIPED CRASHES=1"),
    Case("hasty", QUEUE, "N=3 HASTY STOPS=1 CRASHES=1"),
    Case("threads", QUEUE, "N=3 LOCALS=6 HELD CRASHES=1"),
    Case("threads-late", QUEUE, "N=3 LOCALS=6 HELD DEADLINES=1"),
    Case("threads-only", QUEUE, "N=3 LOCALS=14 SWEEPS=1 DEADLINES=2 CRASHES=1", ends=True),
    Case("unnamed", LOCK, "N=3 ROUNDS=2 CRASHES=2"),
    Case("unnamed-four", LOCK, "N=4 CRASHES=1"),
    Case("named", LOCK, "N=3 METHOD=NAMED CRASHES=2", ends=True),
    Case("exclusive", LOCK, "N=3 METHOD=EXCLUSIVE CRASHES=2", ends=True),
    Case("lockless", LOCK, "N=3 METHOD=UNNAMED LOCKLESS=2 CRASHES=2", ends=True),
    Case("lockless-two", LOCK, "N=3 METHOD=EXCLUSIVE LOCKLESS=6 CRASHES=2"),
    Case("lockless-named", LOCK, "N=3 METHOD=NAMED LOCKLESS=2 CRASHES=2"),
    Case("unable", LOCK, "N=3 UNABLE=2 CRASHES=2", ends=True),
    Case("reader", LOCK, "N=3 READER CRASHES=2", ends=True),
    Case("reader-exclusive", LOCK, "N=3 METHOD=EXCLUSIVE READER CRASHES=2"),
    Case("foreign", LOCK, "N=3 FOREIGN CRASHES=2", ends=True),
    Case("break", LOCK, "N=3 BREAKS=1 CRASHES=2"),
    Case("break-exclusive", LOCK, "N=2 METHOD=EXCLUSIVE BREAKS=2 CRASHES=2"),
    Case("break-named", LOCK, "N=2 METHOD=NAMED BREAKS=2 CRASHES=2"),
)

MUTANTS = (
    Case("turn-is-lock", QUEUE, "N=2 HELD TURN_IS_LOCK", "Q1", "the first waiter enters without trying the lock"),
    Case("no-rename", QUEUE, "N=3 HELD NO_RENAME", "Q2", "a ticket is made under its own name, before it has a reader"),
    Case("no-new-start", QUEUE, "N=3 NO_NEW_START", "Q2", "a queue that was removed as empty is not made again"),
    Case("leftover-name", QUEUE, "N=2 CRASHES=1 NO_SWEEP", "Q2", "temporary names of tickets are never swept"),
    Case("leftover-queue", QUEUE, "N=2 NO_RMDIR", "Q2", "the empty directory is not removed"),
    Case(
        "never-refused", QUEUE, "N=2 CRASHES=1 NEVER_REFUSED=true", "Q3", "the ticket ahead is also opened for reading"
    ),
    Case(
        "first-after-death",
        QUEUE,
        "N=3 HELD CRASHES=1 ENXIO_IS_FIRST",
        "Q3",
        "after a dead waiter ahead, nobody looks for another one",
    ),
    Case(
        "no-second-list",
        QUEUE,
        "N=3 HELD DEADLINES=1 NO_LIST",
        "Q3",
        "a woken waiter counts as first, without another look at the list",
    ),
    Case("early-leave", QUEUE, "N=3 LEAVES_EARLY", "Q4", "the place is left before the release"),
    Case("no-close", QUEUE, "N=3 NO_CLOSE", "Q4", "the release removes the ticket, but leaves the FIFO open"),
    Case(
        "no-next",
        QUEUE,
        "N=3 LOCALS=6 HELD NO_NEXT=true",
        "Q4",
        "a thread that leaves makes no ticket for the next one",
    ),
    Case(
        "in-line",
        QUEUE,
        "N=3 LOCALS=6 HELD STAYS_IN_LINE=true",
        "Q4",
        "a thread leaves the line of its process only afterwards",
    ),
    Case(
        "no-handshake",
        QUEUE,
        "N=3 LOCALS=6 HELD DEADLINES=2 NO_HANDSHAKE=true",
        "Q4",
        "a thread makes a ticket for one that has given up",
    ),
    Case("no-signal", QUEUE, "N=3 LOCALS=6 HELD NO_SIGNAL=true", "Q4", "a thread does not wake the next one"),
    Case("barging", QUEUE, "N=3 HELD BARGES", "Q5", "newcomers do not check the queue"),
    Case("no-patience", QUEUE, "N=2 HELD STOPS=1 NO_PATIENCE", "Q6", "waiters wait for an idle ticket"),
    Case("removes-idle", QUEUE, "N=2 HELD STOPS=1 REMOVES_IDLE", "Q6", "idle tickets are removed"),
    Case(
        "kept-ticket",
        QUEUE,
        "N=2 HELD BREAKS=1 STAYER=1 KEEPS_TICKET",
        "R4",
        "the ticket of a holder whose lock is broken stays",
    ),
    Case(
        "no-nudge",
        QUEUE,
        "N=2 HELD BREAKS=1 STAYER=1 NO_NUDGE",
        "R4",
        "a process that breaks a lock does not notify the waiters",
    ),
    Case(
        "early-nudge",
        QUEUE,
        "N=2 HELD BREAKS=1 STAYER=1 NUDGES_FIRST",
        "R4",
        "the waiters are notified before the ticket is removed",
    ),
    Case(
        "kept-place",
        QUEUE,
        "N=4 SLOTS=2 STAYER=3 KEEPS_PLACE",
        "Q7",
        "a place is kept although another slot may be free",
    ),
    Case("armed-late", QUEUE, "N=2 CRASHES=1 ARMS_LATE=true", "WF1", "the watch is armed after the look"),
    Case("not-soon", QUEUE, "N=2 CRASHES=1 NOT_SOON=true", "WF2", "one look after a close event"),
    Case("replacing", LOCK, "N=2 REPLACES=true", "P1", "the lock is published by a rename, which replaces"),
    Case("late-guard", LOCK, "N=2 GUARD_LATE", "P2", "the guard is taken after the file has its name"),
    Case("early-marker", LOCK, "N=2 METHOD=NAMED MARKED_EARLY", "P3", "the record claims the guard before it is held"),
    Case("creator-owns", LOCK, "N=3 METHOD=EXCLUSIVE CREATOR_OWNS=true", "P5", "creating the file is acquiring"),
    Case(
        "no-bit", LOCK, "N=2 METHOD=EXCLUSIVE CRASHES=1 NO_BIT=true", "P6", "an unfinished file is not marked as such"
    ),
    Case(
        "false-bit",
        LOCK,
        "N=2 METHOD=EXCLUSIVE LOCKLESS=2 BIT_WITHOUT_LOCKS=true",
        "P7",
        "a creator without locks sets the bit, too",
    ),
    Case("no-guard", LOCK, "N=3 CRASHES=1 NO_GATE", "T1", "a takeover without the guard"),
    Case(
        "no-claim",
        LOCK,
        "N=3 LOCKLESS=10 CRASHES=1 NO_CLAIM=true",
        "T1",
        "a takeover with the guard alone, where others have none",
    ),
    Case(
        "no-second-look",
        LOCK,
        "N=3 LOCKLESS=10 CRASHES=1 NO_SECOND_LOOK=true",
        "T2",
        "the judged record is not compared again under the guard",
    ),
    Case(
        "no-third-look",
        LOCK,
        "N=3 FOREIGN CRASHES=1 NO_THIRD_LOOK=true NO_WAIT=true",
        "T4",
        "the path is not checked after the write",
    ),
    Case(
        "late-removal",
        LOCK,
        "N=3 UNABLE=2 CRASHES=1 REMOVES_LATE",
        "T6",
        "a dead holder's file is removed without guard and claim",
    ),
    Case("no-wait", LOCK, "N=2 BREAKS=1 CRASHES=1 NO_WAIT=true", "T8", "no look for claims after the write"),
    Case(
        "shared-in-place",
        LOCK,
        "N=3 READER CRASHES=1 SHARED_IN_PLACE=true MARKED_WITHOUT=true",
        "T9",
        "a takeover in place under a shared guard",
    ),
    Case("ignored-claims", LOCK, "N=3 READER CRASHES=1 IGNORES_CLAIMS=true", "T11", "other claims are ignored"),
    Case("late-claim", LOCK, "N=3 READER CRASHES=1 LISTS_FIRST", "T11", "the list is read before the claim is made"),
    Case(
        "dead-claims",
        LOCK,
        "N=3 READER CRASHES=2 DEAD_CLAIMS_COUNT=true",
        "T12",
        "a claim counts although its claimant is gone",
    ),
    Case(
        "guarded-claims",
        LOCK,
        "N=2 BREAKS=1 CRASHES=1 ALL_GUARDED=true",
        "T13",
        "a claim made without the guard says that it has the guard",
    ),
    Case("unlocked-first", LOCK, "N=2 UNLOCKS_FIRST", "FH1", "the release unlocks before it unlinks"),
    Case(
        "blind-release", LOCK, "N=3 BREAKS=1 BLIND_RELEASE=true", "FH2", "the release removes whatever is at the path"
    ),
    Case(
        "blind-break",
        LOCK,
        "N=2 BREAKS=1 CRASHES=1 BREAKS_BLINDLY=true",
        "R1",
        "a process that breaks a lock does not read it again",
    ),
    Case(
        "unclaimed-break",
        LOCK,
        "N=2 BREAKS=1 CRASHES=1 BREAKS_UNCLAIMED",
        "R2",
        "a process that breaks a lock makes no claim",
    ),
)


def run(words: Sequence[str], where: Path) -> str:
    done = subprocess.run(words, cwd=where, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(words)}: status {done.returncode}: {(done.stdout + done.stderr).strip()[-2000:]}"
        )
    return done.stdout


def build(case: Case, where: Path) -> None:
    run(["spin", "-a", *case.defines, str(HERE / case.model)], where)
    # Collapsed states are a compression, nothing is missed. NOREDUCE: nearly every step touches what all see.
    kind = "-DNP" if case.ends else "-DSAFETY"
    level = "-O0" if case.breaks else "-O2"
    run(["cc", level, "-w", kind, "-DNOREDUCE", "-DCOLLAPSE", f"-DMEMLIM={MEMORY}", "-o", "pan", "pan.c"], where)


def search(case: Case) -> Outcome:
    """Every run of the case, or all up to the first that breaks a promise."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-model-") as directory:
        where = Path(directory)
        try:
            build(case, where)
            said = run(["./pan", "-E", f"-m{DEPTH}", "-w22", *(["-l"] if case.ends else [])], where)
        except (OSError, RuntimeError) as error:
            return Outcome(case, str(error), True, 0, 0, time.monotonic() - began)
    states, depth = (
        int(float(found[1])) if (found := re.search(wanted, said, re.MULTILINE)) else 0
        for wanted in (r"^ *([\d.e+]+) states, stored", r"depth reached (\d+)")
    )
    broken = re.search(r"^pan:\d+: (.*?)(?: \(at depth \d+\))?$", said, re.MULTILINE)
    failed = "max search depth too small" in said or not states or ("Search not completed" in said and broken is None)
    what = "the search is not complete" if failed else named(broken[1]) if broken else ""
    return Outcome(case, what, failed, states, depth, time.monotonic() - began)


def named(error: str) -> str:
    """What an error of pan means."""
    if "assertion" not in error:
        return error  # a run that goes on for ever, say
    return next((promise for pattern, promise in PROMISES.items() if re.search(pattern, error)), error)


def trace(case: Case) -> Iterator[str]:
    """The steps of a short run in which something goes wrong, and where every variable is at its end."""
    source = (HERE / case.model).read_text().splitlines()
    with tempfile.TemporaryDirectory(prefix="holdfast-model-") as directory:
        where = Path(directory)
        build(case, where)
        run(["./pan", "-E", f"-m{DEPTH}", "-i"], where)
        if not list(where.glob("*.trail")):
            yield "nothing goes wrong"
            return
        shutil.copy(HERE / case.model, where)
        said = run(["spin", "-t", "-p", "-g", *case.defines, case.model], where)
    previous = ""
    for number, who, line in re.findall(r"proc +(\d+) \((\w+):\d+\) \S+:(\d+) \(state", said):
        step = source[int(line) - 1].strip()
        if "d_step" in step or step.startswith("MAY_"):
            state = re.search(r"st\[\w+\] == (\w+)", step)
            shown = f"{who} {number if who == 'contender' else '':2} {state[1] if state else step}"
            if shown != previous:  # a step of several statements on one line is reported several times
                yield shown
            previous = shown
    yield from re.findall(r"^spin: .*Error: .*", said, re.MULTILINE)
    yield ", ".join(re.findall(r"^\t\t(\w[\w\[\]]* = \w+)", said.rpartition("#processes")[2], re.MULTILINE))


def show(outcome: Outcome) -> None:
    case = outcome.case
    result = outcome.error or ("holds, and ends" if case.ends else "holds")
    if not outcome.is_right:
        result = f"WRONG: {result}"
    numbers = f"{case.contenders:>2} {outcome.states:>9} {outcome.depth:>6} {outcome.seconds:>5.1f}"
    print(f"{case.name:18} {case.breaks:4} {numbers}  {result[:2000]}", flush=True)


def check(cases: Sequence[Case], report: Callable[[Outcome], None] = show) -> list[Outcome]:
    """All of them, two at a time; those that are not as they should be."""
    wrong = []
    with ThreadPoolExecutor(2) as pool:
        for outcome in pool.map(search, cases):
            report(outcome)
            if not outcome.is_right:
                wrong.append(outcome)
    return wrong


def missing() -> str:
    """What has to be installed; empty if nothing."""
    lacking = [program for program in ("spin", "cc") if shutil.which(program) is None]
    return f"the models need {' and '.join(lacking)}: apt-get install spin gcc" if lacking else ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the models with spin (docs/simulation.md).")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some configurations and mutants")
    parser.add_argument("--trace", metavar="NAME", help="show a run in which something goes wrong")
    arguments = parser.parse_args()
    cases = {case.name: case for case in (*CONFIGURATIONS, *MUTANTS)}
    wanted = arguments.only or ([arguments.trace] if arguments.trace else list(cases))
    if unknown := set(wanted) - cases.keys():
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(cases)}")
    if why := missing():
        print(why, file=sys.stderr)
        return 2
    if arguments.trace:
        print(*trace(cases[arguments.trace]), sep="\n")
        return 0
    began = time.monotonic()
    print(f"{'case':18} {'':4}  N {'states':>9} {'depth':>6} {'s':>5}  result")
    wrong = check([cases[name] for name in wanted])
    print(f"{len(wanted)} cases, {len(wrong)} of them wrong, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
