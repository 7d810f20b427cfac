"""The known holes of docs/guarantees.md: each is still there, and its schedule shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sim.search import read, replay, search
from sim.workloads import HOLES

PAGE = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text()
SCHEDULES = dict(re.findall(r"sim --replay (\S+) '(.*?)'", PAGE))


def test_a_hole_is_not_described_or_a_description_has_none() -> None:
    assert SCHEDULES.keys() == HOLES.keys()


@pytest.mark.parametrize("name", HOLES)
def test_a_hole_that_is_described_is_closed(name: str) -> None:
    outcome = search(HOLES[name], preemptions=2)
    if outcome.failure is None:
        outcome = search(HOLES[name], runs=50_000)
    assert outcome.failure is not None, "nothing shows it any more: the guarantee is stronger than it says"


@pytest.mark.parametrize("name", HOLES)
def test_a_schedule_shows_something_else(name: str) -> None:
    story = replay(HOLES[name], read(SCHEDULES[name]))
    assert "\nViolation: " in story, story
    assert "Diverged" not in story
