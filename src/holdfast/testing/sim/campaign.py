"""All workloads, for as long as there is time, in several processes: searched through first, at random afterwards.

Each workload has its share of the time. Half of it goes to the search through every interleaving, a fifth to the search
with two preemptions at most, and the rest to random ones. If the first is complete, the time is left to the others.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
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
        """Different interleavings that were run to their end."""
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
    """One workload, for so many seconds; or less, if there are no more interleavings."""
    report, workload = Report(name), WORKLOADS[name]
    known: set[int] = set()
    began, spent = time.monotonic(), time.process_time()
    outcome = search(workload, seconds=seconds * _SEARCHED, seed=seed, known=known)
    report.searched, report.complete = report.add(outcome), outcome.complete
    if report.failure is None and not report.complete:
        bounded = search(workload, seconds=seconds * _PREEMPTED, preemptions=2, known=known)
        report.preempted = report.add(bounded)
    left = seconds - (time.monotonic() - began)
    if report.failure is None and not report.complete and left > 0:
        report.random = report.add(sample(workload, itertools.count(seed * _SEEDS_EACH), seconds=left, known=known))
    report.seconds = time.process_time() - spent
    return report


def campaign(names: list[str], *, seconds: float, jobs: int, seed: int, tell: Callable[[str], None]) -> list[Report]:
    """All of them, each for its share of the time that is left; those that failed."""
    began = time.monotonic()
    waiting = list(reversed(names))
    reports: list[Report] = []
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        going: set[Future[Report]] = set()
        while waiting or going:
            while waiting and len(going) < jobs:
                left = seconds - (time.monotonic() - began)
                share = max(1.0, left * jobs / len(waiting)) if len(waiting) >= jobs else max(1.0, left)
                going.add(pool.submit(examine, waiting.pop(), share, seed))
            done, going = wait(going, return_when=FIRST_COMPLETED)
            for future in done:
                report = future.result()
                reports.append(report)
                tell(str(report))
                if report.failure is not None:
                    tell(report.failure)
    _sum_up(reports, time.monotonic() - began, tell)
    return [report for report in reports if report.failure is not None]


def _sum_up(reports: list[Report], took: float, tell: Callable[[str], None]) -> None:
    runs = sum(report.runs for report in reports)
    spent = sum(report.seconds for report in reports)
    failed = [report.name for report in reports if report.failure is not None]
    tell(
        f"{runs:,} interleavings of {len(reports)} workloads in {took:.0f} s, and {spent:.0f} s of processor time "
        f"({runs / max(1, spent):,.0f} for each of those); {sum(report.repeated for report in reports):,} more were "
        f"repetitions; failed: {', '.join(failed) or 'none'}"
    )
