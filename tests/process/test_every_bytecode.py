"""An interruption before any bytecode of an operation, and a second one while the first is handled (operations.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import places
from ahead import Ran
from process.interrupts.tracer import why_not

SCRIPT = Path(__file__).with_name("interrupts") / "script.py"
SECONDS = os.environ.get("HOLDFAST_TEST_SECONDS")
"""Then each bytecode is tried, and each pair of the short operations, or as many pairs as there is time for."""
EVERY = {
    "acquire": 12,
    "attempt": 40,
    "by_name": 20,
    "parents": 60,
    "release": 6,
    "enter": 16,
    "enter_hold": 16,
    "enter_all": 60,
    "takeover": 60,
    "takeover_announced": 60,
    "flock": 16,
    "npm": 16,
    "semaphore": 40,
    "all": 40,
}
EVERY |= {
    "all": 15,
    "refused": 15,
    "status": 15,
    "wait": 150,
    "cancelled": 150,
    "cancelled_by_event": 150,
    "told": 40,
    "lost": 10,
    "task_acquire": 30,
    "task_durable": 30,
    "task_enter": 30,
    "task_enter_hold": 30,
    "task_all": 60,
    "task_enter_all": 60,
    "task_timeout": 150,
    "task_refused": 100,
    "task_cancelled": 120,
}
"""One bytecode out of so many is tried, beginning anywhere, so that many runs try them all."""
PAIRS = 150
FEWER = {
    **dict.fromkeys(EVERY, 1),
    "takeover": 2,
    "takeover_announced": 2,
    "all": 2,
    "refused": 2,
    "wait": 3,
    "cancelled": 3,
    "cancelled_by_event": 3,
    "task_all": 2,
    "task_enter_all": 2,
    "task_timeout": 3,
    "task_refused": 3,
    "task_cancelled": 3,
}
TASKS = {name for name in EVERY if name.startswith("task_")}
BY_CHANCE = TASKS | {
    "wait",
    "cancelled",
    "cancelled_by_event",
    "takeover",
    "takeover_announced",
    "all",
    "refused",
    "semaphore",
    "told",
}

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.unmeasured("it traces bytecodes itself"),
    pytest.mark.needs("unnamed", "flock", "events"),
]


def _interrupted(operation: str, times: str) -> subprocess.CompletedProcess[str]:
    if SECONDS is None:
        words = ["--every", str(EVERY[operation]), "--random", str(PAIRS // FEWER[operation])]
    elif times == "twice" and operation in BY_CHANCE:
        words = ["--seconds", SECONDS, "--random", "1000000000"]
    else:
        words = ["--seconds", SECONDS, "--every", "1", *(["--pairs"] if times == "twice" else [])]
    with places.directory_in_memory() as shm:
        return subprocess.run(
            [sys.executable, SCRIPT, shm, operation, *words],
            capture_output=True,
            text=True,
            timeout=120 if SECONDS is None else 480 + 2 * float(SECONDS),  # however busy the machine is
        )


@pytest.mark.ahead(body=_interrupted)
@pytest.mark.parametrize("operation", EVERY)
@pytest.mark.parametrize("times", ["once and twice"] if SECONDS is None else ["once", "twice"])
def test_nothing_is_left_of_an_operation_interrupted_before_any_bytecode(operation: str, times: str, ran: Ran) -> None:
    """J1, J2, J3, J4, J5, N7, K7, U2, CX1, D4."""
    done = ran()
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    print(f"{operation}, {times}: {result['trials']} trials")
    assert result["trials"] > (60 if SECONDS is None else 30)
    assert not result["wrong"], "\n".join(result["wrong"])
