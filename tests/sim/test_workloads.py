"""The real engine in the simulated kernel: a few interleavings of each workload (docs/simulation.md for the many)."""

from __future__ import annotations

import pytest

from sim.search import sample, search
from sim.workloads import WORKLOADS

RUNS = 20


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_promise_is_broken_in_the_interleavings_tried(name: str) -> None:
    workload = WORKLOADS[name]
    outcomes = [
        sample(workload, range(RUNS)),
        search(workload, runs=RUNS, seed=1),
        search(workload, runs=RUNS // 2, preemptions=1),
    ]
    for outcome in outcomes:
        assert outcome.failure is None, str(outcome.failure)
        assert outcome.runs > 0


def test_no_interleaving_of_two_contenders_breaks_a_promise() -> None:
    """All interleavings of two contenders that acquire and release at the same time."""
    outcome = search(WORKLOADS["two"])
    assert outcome.failure is None, str(outcome.failure)
    assert outcome.complete
    assert outcome.runs > 150
