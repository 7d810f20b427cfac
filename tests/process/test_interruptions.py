"""Ctrl-C, a signal handler with locks, a fork by another thread, and another thread: at each step of each operation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import places
from ahead import Ran

SCRIPT = Path(__file__).with_name("interruptions.py")
KINDS = ("ctrl-c", "handler", "fork", "thread")
EVERY = {"acquire": 2, "enter": 4, "release": 2, "again": 10, "takeover": 12, "wait": 24}
"""One step out of so many is tried, beginning anywhere, so that many runs try them all."""
ALL = "HOLDFAST_TEST_SECONDS" in os.environ


def _interrupted(kind: str, operation: str) -> subprocess.CompletedProcess[str]:
    every = str(1 if ALL else EVERY[operation])
    quiet = ["-W", "ignore:This process:DeprecationWarning"]
    with places.directory_in_memory() as shm:
        words = [sys.executable, *quiet, SCRIPT, shm / "l", operation, kind, every]
        return subprocess.run(words, capture_output=True, text=True, timeout=300)


@pytest.mark.ahead(body=_interrupted)
@pytest.mark.parametrize("operation", EVERY)
@pytest.mark.parametrize("kind", KINDS)
def test_an_interruption_between_two_steps_leaves_and_breaks_nothing(kind: str, operation: str, ran: Ran) -> None:
    done = ran()
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["steps"] > 20
    assert result["problems"] == [], done.stderr
