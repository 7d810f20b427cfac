"""All workloads, for as long as there is time, in several processes: searched through first, at random afterwards.

Each workload has its share of the time. Half of it goes to the search through every interleaving, a fifth to the search
with two preemptions at most, and the rest, with what the searches have left because they were complete, to random ones.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from typing import TYPE_CHECKING

from .explore import Outcome, sample, search
from .workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable

_SEARCHED, _PREEMPTED = 0.5, 0.2
_SEEDS_EACH = 1_000_000_000


class Report:
    """What came of one workload; it goes from one process to the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.searched = self.preempted = self.random = self.repeated = 0
        self.complete = False
        self.steps = 0
        self.seconds = 0.0
        """Of processor time."""
        self.failure: str | None = None

    @property
    def runs(self) -> int:
        """Interleavings that were run to their end. Those of the three ways may have some in common."""
        return self.searched + self.preempted + self.random

    def add(self, outcome: Outcome) -> int:
        self.steps += outcome.steps
        self.repeated += outcome.repeated
        if outcome.failure is not None:
            self.failure = str(outcome.failure)
        return outcome.runs

    def __str__(self) -> str:
        every = " (all there are)" if self.complete else ""
        verdict = "" if self.failure is None else "  FAILED"
        return (
            f"{self.name:20} {self.runs:9,} runs: {self.searched:,} searched{every}, {self.preempted:,} with two "
            f"preemptions, {self.random:,} random; {self.steps / max(1, self.runs):.0f} steps each{verdict}"
        )


def examine(name: str, seconds: float, seed: int) -> Report:
    """One workload, for so many seconds."""
    report, workload = Report(name), WORKLOADS[name]
    began, spent = time.monotonic(), time.process_time()
    outcome = search(workload, seconds=seconds * _SEARCHED, seed=seed)
    report.searched, report.complete = report.add(outcome), outcome.complete
    if report.failure is None and not outcome.complete:
        report.preempted = report.add(search(workload, seconds=seconds * _PREEMPTED, preemptions=2))
    left = seconds - (time.monotonic() - began)
    if report.failure is None and left > 0:
        if report.complete:
            left /= 4  # few are left to be found: what is searched through needs no luck
        report.random = report.add(sample(workload, itertools.count(seed * _SEEDS_EACH), seconds=left))
    report.seconds = time.process_time() - spent
    return report


def _examine(what: tuple[str, float, int]) -> Report:
    return examine(*what)


def campaign(names: list[str], *, seconds: float, jobs: int, seed: int, tell: Callable[[str], None]) -> list[Report]:
    """All of them, again and again with other seeds as long as there is time; those that failed."""
    began = time.monotonic()
    runs, repeated, spent = 0, 0, 0.0
    failed: list[Report] = []
    processes = multiprocessing.get_context("spawn").Pool(jobs)
    with processes:
        for turn in itertools.count():
            left = seconds - (time.monotonic() - began)
            if left < 1 and turn:
                break
            each = left * jobs / len(names) * (0.5 if left > 60 and not turn else 1.0)
            for report in processes.imap_unordered(_examine, [(name, each, seed + turn) for name in names]):
                tell(str(report))
                runs += report.runs
                repeated += report.repeated
                spent += report.seconds
                if report.failure is not None:
                    failed.append(report)
                    tell(report.failure)
            if failed:
                break
    took = time.monotonic() - began
    tell(
        f"{runs:,} interleavings of {len(names)} workloads in {took:.0f} s, and {spent:.0f} s of processor time "
        f"({runs / max(1, spent):,.0f} for each of those); {repeated:,} more were cut short as repetitions; "
        f"{len(failed)} workloads failed"
    )
    return failed
