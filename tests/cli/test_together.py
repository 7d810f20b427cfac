"""Several LOCKs of one command: `run` holds all or none, `status` and `wait` look at each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from cli.support import HOLDFAST, World, command, dormant, ended, eventually, guardian
from holdfast import Lock

SHOW = 'printf "%s\\n" "$HOLDFAST_LOCK" "t:$HOLDFAST_TOKEN" "s:$HOLDFAST_SLOT"; $H status -q "$@"; echo $?'


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"{name}.lock" for name in "abc"]


def test_run_holds_all_its_locks_and_leaves_nothing(world: World, three: list[Path]) -> None:
    done = world.sh('$H run "$@" -- sh -c "$SHOW" sh "$@"', *three, env={"SHOW": SHOW})
    assert done.rest().splitlines() == [*map(str, three), "t:", "s:", "1"]
    assert done.wait() == 0
    assert [*world.directory.iterdir()] == []


def test_the_environment_has_a_line_for_each_lock_in_the_order_typed(world: World, three: list[Path]) -> None:
    words = ["--fencing", "--slots", "2", three[1], three[0], "--", "sh", "-c", 'echo "$HOLDFAST_LOCK:$HOLDFAST_SLOT"']
    shown = world.do("run", *words).stdout
    assert shown == f"{three[1]}.0.lock\n{three[0]}.0.lock:0\n0\n"
    tokens = world.do("run", "--fencing", *three[:2], "--", "sh", "-c", 'echo "$HOLDFAST_TOKEN"').stdout.split()
    assert len(tokens) == 2
    assert all(token.isdecimal() for token in tokens)


def test_no_lock_is_held_if_one_is_taken(world: World, three: list[Path]) -> None:
    with Lock(three[1]).acquire():
        done = world.do("run", "-n", *three, "--", "echo", "ran")
        assert (done.returncode, done.stdout) == (75, "")
        assert str(three[1]) in done.stderr
        assert "one of 3 to be acquired together, so none of them is held" in done.stderr
        assert [*world.directory.iterdir()] == [three[1]]


def test_runs_that_name_their_locks_in_opposite_orders_do_not_deadlock(world: World, three: list[Path]) -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9 10; do $H run $1 $2 -- true || exit 1; done"
    runs = [world.sh(script, *order) for order in (three[:2], three[1::-1])]
    assert [run.wait() for run in runs] == [0, 0]


def test_all_locks_stay_held_while_the_command_of_a_killed_run_works(world: World, three: list[Path]) -> None:
    """G1, G3, G7."""
    run = world.start([*HOLDFAST, "run", *three, "--", "sh", "-c", "echo held; exec sleep 600"])
    run.hear("held")
    keeper, child = guardian(run.pid), command(run.pid)
    run.signal(signal.SIGKILL)
    run.wait()
    for path in three:
        assert world.do("run", "-n", path, "--", "true").returncode == 75
    os.kill(child, signal.SIGKILL)
    eventually(lambda: ended(keeper))
    for path in three:
        assert world.do("run", "-n", path, "--", "true").returncode == 0


@pytest.mark.parametrize("killed", [False, True], ids=["run", "guardian"])
def test_the_loss_of_one_lock_ends_the_command_and_releases_the_others(
    world: World, three: list[Path], *, killed: bool
) -> None:
    """G7."""
    run = world.start([*HOLDFAST, "run", *three, "--", "sh", "-c", "echo held; exec sleep 600"])
    run.hear("held")
    keeper, child = guardian(run.pid), command(run.pid)
    if killed:
        run.signal(signal.SIGKILL)
        run.wait()
    three[1].unlink()
    eventually(lambda: ended(child) and ended(keeper))
    if not killed:
        assert run.wait() == 4
        assert str(three[1]) in run.complaint()
        assert [*world.directory.iterdir()] == []
    for path in three:
        assert world.do("run", "-n", path, "--", "true").returncode == 0


def test_a_signal_during_the_wait_for_one_lock_releases_the_others(world: World, three: list[Path]) -> None:
    with Lock(three[2]).acquire():
        run = world.start([*HOLDFAST, "run", *three, "--", "true"])
        eventually(lambda: three[0].exists() and three[1].exists() and dormant(run.pid))
        run.signal(signal.SIGTERM)
        assert run.wait() == -signal.SIGTERM
        assert not three[0].exists()
        assert not three[1].exists()


def test_the_locks_that_run_has_are_kept_while_it_waits_for_another(world: World, three: list[Path]) -> None:
    with Lock(three[2]).acquire():
        run = world.start([*HOLDFAST, "run", "--lease", "2", *three, "--", "echo", "ran"], stderr=subprocess.PIPE)
        eventually(lambda: three[1].exists() and three[1].read_bytes())
        seen = three[0].read_bytes(), three[1].read_bytes()
        eventually(lambda: three[0].read_bytes() != seen[0] and three[1].read_bytes() != seen[1])  # heartbeats
    run.hear("ran")
    assert run.wait() == 0


def test_a_lock_lost_while_run_waits_for_another_is_told_without_a_command_to_end(
    world: World, three: list[Path]
) -> None:
    with Lock(three[2]).acquire():
        run = world.start([*HOLDFAST, "run", *three, "--", "echo", "ran"], stderr=subprocess.PIPE)
        eventually(lambda: three[1].exists() and dormant(run.pid))
        three[0].unlink()
    assert run.wait() == 4
    assert run.rest() == ""
    said = run.complaint()
    assert f"{three[0]} was removed" in said
    assert "Sending TERM" not in said


def test_status_shows_each_lock_and_has_the_worst_exit_status(world: World, three: list[Path]) -> None:
    with Lock(three[1]).acquire():
        done = world.do("status", *three)
        assert done.returncode == 1
        assert [block.split()[1] for block in done.stdout.split("\n\n")] == [*map(str, three)]
        objects = [json.loads(line) for line in world.do("status", "-j", *three).stdout.splitlines()]
        assert [one["result"] for one in objects] == ["free", "held", "free"]
        os.mkfifo(three[0])
        done = world.do("status", "-j", *three)
        assert done.returncode == 3
        assert [json.loads(line)["result"] for line in done.stdout.splitlines()] == ["failed", "held", "free"]
        assert str(three[0]) in done.stderr
    assert world.do("status", "-q", *three[1:]).returncode == 0


def test_wait_ends_when_all_locks_are_free(world: World, three: list[Path]) -> None:
    first, second = Lock(three[0]).acquire(), Lock(three[2]).acquire()
    done = world.do("wait", "-w", "10ms", "-j", *three)
    assert done.returncode == 1
    assert [json.loads(line)["result"] for line in done.stdout.splitlines()] == ["held", "free", "held"]
    waiting = world.start([*HOLDFAST, "wait", "-v", *three], stderr=subprocess.PIPE)
    eventually(lambda: dormant(waiting.pid))
    first.release()
    eventually(lambda: dormant(waiting.pid) and not three[0].exists())
    assert waiting.process.poll() is None
    second.release()
    assert waiting.wait() == 0
    assert [line.split()[1] for line in waiting.complaint().splitlines()] == [*map(str, three)]


def test_wait_for_semaphores_is_for_a_free_slot_of_each(world: World, three: list[Path]) -> None:
    with Lock(f"{three[0]}.0.lock").acquire():
        assert world.do("wait", "-n", "--slots", "2", *three).returncode == 0
        done = world.do("wait", "-n", "--slots", "1", *three)
        assert done.returncode == 1
        assert "has no free slot" in done.stderr
