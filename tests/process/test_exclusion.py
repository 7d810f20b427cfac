"""Processes that are killed at random moments: never two inside, nothing lost, nothing left.

`HOLDFAST_TEST_SECONDS=600` makes them longer.
"""

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

SECONDS = float(os.environ.get("HOLDFAST_TEST_SECONDS", "6"))
WORKERS = 8
WORKER = Path(__file__).with_name("worker.py")


def storm(place: Path, seconds: float, env: dict[str, str], shell: str = "") -> Outcome:
    locks, state = place / "locks", place / "state"
    locks.mkdir()
    state.mkdir()
    path = locks / "counter.lock"
    process = subprocess.Popen(
        [sys.executable, str(WORKER), str(path), str(state), str(seconds), str(WORKERS), shell],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=seconds + 90)
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
    assert outcome.counter > 50 * seconds  # worker.py goes on until it is so
    assert len(told["killed"]) > 5 * seconds
    assert outcome.done + outcome.unfinished >= outcome.counter >= outcome.done

    # Whatever was left is gone after the next takeover: claims stay until then (claims.py, C3).
    pass_through(path, env, "os.kill(os.getpid(), 9)")
    pass_through(path, env, "assert hold.recovered_from and os.listdir(where) == [name], os.listdir(where)")
    assert os.listdir(locks) == []
    return outcome


def pass_through(path: Path, env: dict[str, str], inside: str) -> None:
    code = f"""if True:
        import os, sys, holdfast
        where, name = os.path.split(sys.argv[1])
        with holdfast.Lock(sys.argv[1], timeout=10) as hold:
            {inside}
    """
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], env={**os.environ, **env}, timeout=30, capture_output=True, text=True
    )
    assert done.returncode == (-signal.SIGKILL if "kill" in inside else 0), done.stderr


def test_a_kill_at_any_moment_lets_two_in_or_loses_an_increment(shm: Path) -> None:
    outcome = storm(shm, SECONDS, {})
    assert outcome.recovered > 0
    assert outcome.unfinished > 0


def test_the_same_on_a_disk(tmp_path: Path) -> None:
    storm(tmp_path, SECONDS * 8 / 30, {})


VARIANTS = {
    "named temporary file and link": {"HOLDFAST_WITHOUT": "unnamed"},
    "exclusive creation": {"HOLDFAST_WITHOUT": "unnamed,link"},
    "no proc": {"HOLDFAST_WITHOUT": "proc"},
    "no events": {"HOLDFAST_WITHOUT": "events"},
    "no guard": {"HOLDFAST_WITHOUT": "flock"},
    "portable": {"HOLDFAST_OS": "generic"},
}


@pytest.mark.parametrize("env", VARIANTS.values(), ids=[name.replace(" ", "-") for name in VARIANTS])
def test_a_lesser_way_of_publishing_or_waiting_lets_two_in(shm: Path, env: dict[str, str]) -> None:
    storm(shm, SECONDS * 8 / 30, {**LINUX, **env})


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_shell_script_and_holdfast_are_inside_together(shm: Path, shell: str) -> None:
    if shutil.which(shell) is None or shutil.which("flock") is None:
        pytest.skip(f"needs {shell} and flock(1)")
    outcome = storm(shm, SECONDS * 8 / 30, {}, shell)
    assert outcome.by_shell > 0
