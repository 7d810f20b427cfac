"""The known holes of docs/guarantees.md: each still exists, and its schedule shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sim.search import read, replay
from sim.workloads import HOLES

PAGE = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text()
SCHEDULES = dict(re.findall(r"sim --replay (\S+) '(.*?)'", PAGE))


def test_holes_and_descriptions_correspond() -> None:
    assert SCHEDULES.keys() == HOLES.keys()


@pytest.mark.parametrize("name", HOLES)
def test_a_schedule_shows_its_hole(name: str) -> None:
    """A schedule that shows none means that the hole is closed, and the guarantee stronger than documented."""
    attempt_events = replay(HOLES[name], read(SCHEDULES[name]))
    assert "\nViolation: " in attempt_events, attempt_events
    assert "Diverged" not in attempt_events
