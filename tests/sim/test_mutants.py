"""A simulation that finds nothing proves nothing: every planted bug is found, by the workload meant for it."""

from __future__ import annotations

import pytest

from sim.mutants import MUTANTS, Mutant
from sim.search import Outcome, replay, sample, search, shrunk
from sim.workloads import WORKLOADS

MOST = 4000
"""Interleavings. Which they are does not depend on the machine."""


def hunt(mutant: Mutant) -> Outcome:
    workload = WORKLOADS[mutant.workload]
    if mutant.way == "random":
        return sample(workload, range(mutant.seed, mutant.seed + MOST))
    return search(workload, runs=MOST)


@pytest.mark.parametrize("name", MUTANTS)
def test_every_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    mutant.mutate(monkeypatch)
    outcome = hunt(mutant)
    assert outcome.failure is not None, f"{mutant.workload}: nothing in {outcome.runs} interleavings"


def test_a_failure_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortened schedule of a failure leads to a failure again, and to none without the bug."""
    mutant = MUTANTS["no_comparison_of_bytes"]
    workload = WORKLOADS[mutant.workload]
    with monkeypatch.context() as patch:
        mutant.mutate(patch)
        failure = hunt(mutant).failure
        assert failure is not None
        schedule = shrunk(workload, failure.schedule)
        assert len(schedule) < len(failure.schedule)
        attempt_events = replay(workload, schedule)
        assert attempt_events == replay(workload, schedule)
        assert attempt_events.splitlines()[-1].startswith("Violation: ")
        assert f"--replay {workload.name} '" in str(failure)
    assert "Violation" not in replay(workload, schedule)
