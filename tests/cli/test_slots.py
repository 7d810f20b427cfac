"""`run --slots N`: at most N commands at once, each with a slot of its own."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cli.support import HOLDFAST, Started, World, command, ended, eventually

_RECORD_LOCKS = pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="no locks by open file description here")

SHOW = """
import os, sys
print("slot", os.environ["HOLDFAST_SLOT"], os.environ["HOLDFAST_LOCK"], flush=True)
sys.stdin.read()
"""


def occupy(world: World, path: Path, slots: int, *options: object) -> Started:
    """Run a command in a slot, until its stdin is closed."""
    return world.run(path, SHOW, "--slots", slots, *options, stdin=-1)


def test_no_more_run_at_once_than_there_are_slots(world: World, path: Path) -> None:
    first, second = occupy(world, path, 2), occupy(world, path, 2)
    lines = sorted([first.hear("slot"), second.hear("slot")])
    assert lines == [f"slot {number} {path}.{number}.lock" for number in range(2)]
    refused = world.do("run", "-n", "--slots", 2, path, "--", "true")
    assert refused.returncode == 75
    for part in ("all 2 slots are taken", f"process {first.pid}", f"process {second.pid}", "Wait until one of these"):
        assert part in refused.stderr
    waiting = occupy(world, path, 2, "-w", 20)
    first.process.stdin.close()
    assert first.wait() == 0
    assert waiting.hear("slot").startswith("slot ")
    for started in (second, waiting):
        started.process.stdin.close()
        assert started.wait() == 0
    assert [*path.parent.iterdir()] == []


def test_a_killed_wrapper_does_not_free_the_slot_of_its_command(world: World, path: Path) -> None:
    """The command inherits the kernel lock of its slot. When it ends too, the next gets the slot, and is told."""
    holder = occupy(world, path, 1)
    holder.hear("slot 0")
    child = command(holder.pid)
    holder.signal(signal.SIGKILL)
    assert holder.wait() == -signal.SIGKILL
    assert world.do("run", "-n", "--slots", 1, path, "--", "true").returncode == 75
    os.kill(child, signal.SIGKILL)
    eventually(lambda: ended(child), what="the end of the command")
    told = world.do("run", "--slots", 1, path, "--", "sh", "-c", "echo $HOLDFAST_SLOT $HOLDFAST_RECOVERED")
    assert told.stdout.split() == ["0", str(holder.pid)]


def test_an_inner_run_does_not_inherit_the_slot_of_an_outer_one(world: World, path: Path) -> None:
    inner = f'$H run "{path}" -- sh -c "echo inner [\\$HOLDFAST_SLOT]"'
    done = world.shell(f"$H run --slots 3 '{path}' -- sh -c 'echo outer [$HOLDFAST_SLOT]; {inner}'")
    assert done.stdout.splitlines() == ["outer [0]", "inner []"]


@pytest.mark.parametrize("slots", ["0", "-1", "1001", "2.0", "x", ""])
def test_a_number_that_makes_no_sense_is_refused(world: World, path: Path, slots: str) -> None:
    done = world.do("run", f"--slots={slots}", path, "--", "touch", path)
    assert done.returncode == 2
    assert "from 1 to 1000" in done.stderr
    assert not path.exists()


def test_shared_slots_are_refused(world: World, path: Path) -> None:
    done = world.do("run", "-p", "flock", "--shared", "--slots", 2, path, "--", "true")
    assert done.returncode == 2
    assert "more slots" in done.stderr


@pytest.mark.parametrize("protocol", ["sema", "flock"])
def test_slots_use_the_protocol_that_is_given(world: World, path: Path, protocol: str) -> None:
    done = world.do("run", "-v", "-p", protocol, "--slots", 2, path, "--", "sh", "-c", 'ls "$HOLDFAST_LOCK"')
    assert done.stdout.strip() == f"{path}.0.lock"
    assert f"got {path}.0.lock" in done.stderr
    assert Path(f"{path}.0.lock").exists() is (protocol == "flock")


def test_status_and_wait_count_the_free_slots_of_a_semaphore(world: World, path: Path) -> None:
    first, second = occupy(world, path, 2, "-t", "the first"), occupy(world, path, 2)
    assert {one.hear("slot").split()[1] for one in (first, second)} == {"0", "1"}
    waiter = world.start([*HOLDFAST, "run", "--slots", "2", path, "--", "true"])
    eventually(
        lambda: [one["pid"] for one in look(world, "--slots", 2, path)["waiters"]] == [waiter.pid], what="a wait"
    )
    for slots, free in ((2, 0), (3, 1)):
        found = look(world, "--slots", slots, path)
        assert (found["free"], found["counted"], len(found["slots"])) == (free, True, slots)
        assert {one["holder"]["pid"] for one in found["slots"] if one["holder"]} == {first.pid, second.pid}
        assert (found["result"], found["state"]) == (("free", "free") if free else ("held", "held"))
        text = world.do("status", "--slots", slots, path)
        assert text.returncode == world.do("wait", "-n", "--slots", slots, path).returncode == (0 if free else 1)
        assert f"process {waiter.pid}" in text.stdout
        assert "'the first'" in text.stdout
    seen = world.do("status", path)  # as the path itself has no file
    assert seen.returncode == 1
    assert "none of 2 slots" in seen.stdout
    assert "--slots N" in seen.stdout
    assert look(world, path)["counted"] is False
    assert f"process {first.pid}" in world.do("wait", "-n", "--slots", 2, path).stderr
    for one in (first, second):
        one.process.stdin.close()
        assert one.wait() == 0
    assert waiter.wait() == 0
    assert world.do("status", "--slots", 2, path).returncode == world.do("status", path).returncode == 0
    assert [*path.parent.iterdir()] == []


@pytest.mark.parametrize("protocol", ["semats", "sidecar", "flock", pytest.param("ofd", marks=_RECORD_LOCKS)])
def test_status_detects_the_protocol_of_a_semaphore(world: World, path: Path, protocol: str) -> None:
    holder = occupy(world, path, 2, "-p", protocol)
    holder.hear("slot 0")
    found = look(world, path)
    assert (found["protocol"], found["counted"]) == (protocol, False)
    assert [one["holder"]["pid"] for one in found["slots"]] == [holder.pid]
    assert found["waiters"] == []
    holder.process.stdin.close()
    assert holder.wait() == 0


def test_a_slot_of_a_dead_holder_is_free(world: World, path: Path) -> None:
    path.with_name(path.name + ".1.lock").write_text("pid=4194305\ntimestamp=17\n")
    path.with_name(path.name + ".01.lock").write_text("pid=1\ntimestamp=9999999999\n")
    path.with_name(path.name + ".2.lock").touch()
    found = look(world, path)
    assert [one["state"] for one in found["slots"]] == ["free", "stale", "held"]
    assert world.do("status", path).returncode == 0
    path.write_text("pid=1\ntimestamp=9999999999\n")
    assert "a semaphore" not in world.do("status", path).stdout


def look(world: World, *words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(world.do("status", "-j", *words).stdout)
    return found
