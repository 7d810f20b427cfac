"""Processes that are killed at random moments: never two inside, no increment lost, nothing left.

`HOLDFAST_TEST_SECONDS=600` makes them longer (wanted.py)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from abilities import LINUX
from process.journal import Outcome, read_journal
from process.wanted import Wanted

SOME = 8 / 30
"""Of the longest storm."""
WORKERS = 8
WORKER = Path(__file__).with_name("worker.py")


def storm(place: Path, share: float, env: dict[str, str], shell: str = "") -> Outcome:
    wanted = Wanted.share(share)
    locks, state = place / "locks", place / "state"
    locks.mkdir()
    state.mkdir()
    path = locks / "counter.lock"
    process = subprocess.Popen(
        [sys.executable, str(WORKER), str(path), str(state), wanted.word(), str(WORKERS), shell],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=wanted.limit)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert process.returncode == 0
    told = json.loads(out)
    assert told["failed"] == []
    outcome = read_journal(state, set(told["killed"]))
    print(
        f"{len(told['killed'])} kills, {outcome.done} increments ({outcome.by_shell} by a shell), "
        f"{outcome.unfinished} killed inside, {outcome.recovered} takeovers, {len(outcome.overlaps)} overlaps"
    )
    assert outcome.overlaps == []
    assert outcome.mistakes == []
    assert outcome.counter >= wanted.increments  # worker.py goes on until it is so
    assert len(told["killed"]) >= wanted.kills
    assert outcome.recovered >= wanted.takeovers
    assert outcome.unfinished > 0
    assert outcome.done + outcome.unfinished >= outcome.counter >= outcome.done

    assert os.listdir(locks) == []
    return outcome


def test_kills_at_random_moments_admit_one_holder_and_lose_no_increment(shm: Path) -> None:
    storm(shm, 1, {})


def test_kills_on_a_disk_admit_one_holder_and_lose_no_increment(tmp_path: Path) -> None:
    storm(tmp_path, SOME, {})


VARIANTS = {
    "named temporary file and link": {"HOLDFAST_WITHOUT": "unnamed"},
    "exclusive creation": {"HOLDFAST_WITHOUT": "unnamed,link"},
    "no proc": {"HOLDFAST_WITHOUT": "proc"},
    "no events": {"HOLDFAST_WITHOUT": "events"},
    "no guard": {"HOLDFAST_WITHOUT": "flock"},
    "portable": {"HOLDFAST_OS": "generic"},
}


@pytest.mark.parametrize("env", VARIANTS.values(), ids=[name.replace(" ", "-") for name in VARIANTS])
def test_a_fallback_for_publishing_or_waiting_admits_one_holder_at_a_time(shm: Path, env: dict[str, str]) -> None:
    storm(shm, SOME, {**LINUX, **env})


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_shell_script_and_holdfast_exclude_each_other(shm: Path, shell: str) -> None:
    if shutil.which(shell) is None or shutil.which("flock") is None:
        pytest.skip(f"needs {shell} and flock(1)")
    outcome = storm(shm, SOME, {}, shell)
    assert outcome.by_shell > 0
