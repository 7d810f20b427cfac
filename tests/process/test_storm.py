"""Contenders of every kind on one lock, killed, stopped, forked and with stepping clocks, for each protocol.

`make storm SECONDS=600` runs this for longer, with a line of numbers for each; docs/testing.md describes it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from abilities import need
from process.storm.run import KINDS, LONG, storm

SECONDS = float(os.environ.get("HOLDFAST_STORM_SECONDS", "8"))
"""For all of them together."""


@pytest.mark.parametrize("protocol", KINDS)
def test_contenders_of_every_kind_exclude_each_other(shm: Path, disk: Path, protocol: str) -> None:
    """The lock is on a disk; the proof that nobody else was inside is elsewhere."""
    if protocol == "flock":
        need("flock")
    if shutil.which("sh") is None:
        pytest.skip("needs a shell")
    seconds = SECONDS / len(KINDS)
    result = storm(disk, shm / "state", protocol, seconds)
    if seconds >= LONG:
        assert len(result.told["killed"]) > seconds
        assert result.told["passed"] > seconds / 10


def test_a_contender_that_ignores_the_lock_is_seen(shm: Path) -> None:
    """Tests the storm itself: its detector and its look at stopped holders find what they are meant to find."""
    with pytest.raises(AssertionError, match=r"'(overlaps|entered while its holder was stopped)': "):
        storm(shm, shm / "state", "sema", 1.5, ("sync", "sync", "rude"))
