"""Waits at a server: it may not answer (_drivers/apart.py), and is not asked too often (turns.py)."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import filelock
import pytest

from machines.test_leases import LEASE, PROTOCOLS, Start, measured, needs_time, start

__all__ = ["start"]
HANDED_OVER = [*PROTOCOLS, ("nfs4", "SoftFileLock"), ("nfs4", "FileLock")]


@needs_time
def test_calls_end_in_time_though_the_server_does_not_answer(start: Start) -> None:
    lab = start("nfs4", "silent")
    lab.wait("ready", 120)
    lab.tell("cut-1")
    lab.gone("cut-1")
    lab.tell("is-cut")
    lab.wait("asked", 120)
    lab.tell("mend-1")
    lab.gone("mend-1")
    lab.tell("is-mended")
    _, output = lab.results([0, 1])
    print(output)
    rows = dict(line.split("|", 1) for line in output.splitlines() if "|" in line)
    asked = ("acquire", "wait", "acquire async", "try_acquire", "status", "ensure_held", "making semats")
    commands = ("ls", "clean", "doctor")
    for name in (*asked, *commands):
        took, outcome = rows[name].split("|", 1)
        assert float(took) < (12 if name in commands else 6), rows
        if outcome != "answered":  # by the kernel, which remembers for some seconds that the lock file is missing
            assert "the server of /media/share (nfs4, 10.9.0.1:/) has not answered" in outcome
        assert outcome != "answered" or name in ("wait", "status", "ensure_held", "making semats")
    took, status = rows["exit of a process"].split("|")
    assert float(took) < 6, rows
    assert status == "status 5"
    assert rows["left"] == ""


@needs_time
@pytest.mark.parametrize("inside", [0, 0.05])
@pytest.mark.parametrize(("share", "kind"), HANDED_OVER)
def test_machines_that_always_want_the_lock_hand_it_to_each_other(
    share: str, kind: str, inside: float, start: Start
) -> None:
    """filelock's locks are only measured beside ours: they make no such promise."""
    lab = start(share, "hand_over", kind, "10", f"{inside}", f"{Path(filelock.__file__).parents[1]}")
    lab.results([0, 1])
    had = sorted((float(moment), node) for node in (0, 1) for moment in lab.wait(f"had-{node}").split())
    changes = sum(before[1] != after[1] for before, after in pairwise(had))
    for what, number in (("locks", len(had)), ("changes of machine", changes)):
        measured(share, f"{kind}, {inside * 1000:g} ms inside, two machines: {what} a second", number / 10)
    if inside and kind in ("sema", "flock"):
        assert changes > len(had) / 5, "who has just had it goes behind those who wait"


def test_machines_take_turns_and_distant_waiters_cost_the_server_little(start: Start) -> None:
    """The holder, the first waiter, the next, and one that is far from its turn."""
    lab = start("nfs4", "line", "10", f"{LEASE}", nodes=4)
    for number in (1, 2, 3):
        lab.wait(f"queue-{number}")
    time.sleep(6)  # a wait that has lasted for a while is the one whose cost counts
    lab.tell("all-wait")
    for number in (1, 2, 3):
        lab.wait(f"counted-{number}")
    lab.tell("leave")
    acquired = [float(lab.wait(f"acquired-{number}")) for number in (1, 2, 3)]
    lab.tell("end")
    outputs = lab.results([0, 1, 2, 3])
    print(*outputs, [moment - float(lab.wait("left")) for moment in acquired])
    assert acquired == sorted(acquired), "by arrival"
    assert "LEFT []" in outputs[0]
    (far,) = (float(line.split()[1]) for line in outputs[3].splitlines() if line.startswith("REQUESTS"))
    assert far <= 2, outputs
