"""When its lock is lost, `run` stops the command's whole tree, however hidden, and no other process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.support import HOLDFAST, World, children, ended, eventually, guardian
from holdfast._platform import tree

_DAEMON = """
import os, signal, sys, time
def branch(name, *ignored):
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    os.write(1, f"{name} {os.getpid()}\\n".encode())
    time.sleep(600)
    os._exit(0)
"""
"""Starts processes that leave their parent, their group and their session."""

TREE = (
    _DAEMON
    + """
branch("mild")
branch("stubborn", signal.SIGTERM)
print("ready", os.getpid(), flush=True)
time.sleep(600)
"""
)


def pid_of(line: str) -> int:
    return int(line.split()[1])


def test_a_lost_lock_ends_every_part_of_the_tree(world: World, path: Path) -> None:
    """CT1, CT3."""
    other = world.start(["sleep", "600"])
    run = world.run(path, TREE, "--kill-after", "0.3")
    lines = {line.split()[0]: pid_of(line) for line in (run.hear(""), run.hear(""), run.hear(""))}
    assert lines.keys() == {"mild", "stubborn", "ready"}
    path.unlink()
    assert run.wait() == 4, run.complaint()
    for pid in lines.values():
        assert ended(pid)
    assert not ended(other.pid)
    said = run.complaint()
    assert "Sending TERM to the command, and to all that it has started" in said
    assert f"process {lines['stubborn']} did not end within 0.3 s of TERM: sending KILL" in said
    assert "the command ended with signal SIGTERM" in said


def test_a_command_that_ignores_term_is_killed(world: World, path: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    run = world.run(path, code, "--kill-after", "0")
    run.hear("ready")
    path.unlink()
    assert run.wait() == 4
    assert "ended with signal SIGKILL" in run.complaint()


def test_a_stopped_part_of_the_tree_is_ended(world: World, path: Path) -> None:
    code = "import os, time; print('ready', os.getpid(), flush=True); os.kill(os.getpid(), 19); time.sleep(600)"
    run = world.run(path, code, "--kill-after", "60")
    run.hear("ready")
    path.unlink()
    assert run.wait() == 4
    assert "ended with signal SIGTERM" in run.complaint()


def test_a_tree_that_grows_while_it_is_stopped_is_ended(world: World, path: Path) -> None:
    """CT3: each process that gets TERM starts another before it ends."""
    code = """
import os, signal, time
def again(*_):
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, again)
signal.signal(signal.SIGTERM, again)
print("ready", os.getpid(), flush=True)
while True:
    time.sleep(600)
"""
    run = world.run(path, code, "--kill-after", "0.5")
    run.hear("ready")
    path.unlink()
    assert run.wait() == 4
    assert [pid for pid in world.mine() if not ended(pid)] == []


def test_a_job_that_the_shell_started_before_is_left_alone(world: World, path: Path) -> None:
    """CT1: `exec` makes a shell's background jobs children of `run`; they are not the command's."""
    script = 'sleep 600 & echo "job $!"; exec $H run --kill-after 1 "$1" -- sh -c \'sleep 600 & echo "two $!"; wait\''
    run = world.sh(script, path)
    job, two = pid_of(run.hear("job")), pid_of(run.hear("two"))
    path.unlink()
    assert run.wait() == 4
    assert ended(two)
    assert not ended(job)


def test_a_daemon_of_the_command_is_neither_ended_nor_waited_for(world: World, path: Path) -> None:
    """As long as the lock is not lost, `run` leaves the command's daemons alone."""
    run = world.run(path, _DAEMON + "branch('left'); time.sleep(0.1)", stdout=-1)
    left = pid_of(run.hear("left"))
    assert run.wait() == 0
    assert not ended(left)


def test_an_orphan_that_ends_is_reaped_and_does_not_end_the_run(world: World, path: Path) -> None:
    """G1, C5: the orphan is the guardian's child, which has to reap it."""
    code = """
import os, sys
if not os.fork():
    if not os.fork():
        sys.stdin.readline()
        os._exit(7)
    os._exit(0)
os.wait()
print("ready", flush=True)
sys.stdin.readline()
"""
    run = world.run(path, code, stdin=-1)
    run.hear("ready")
    parent = guardian(run.pid)
    eventually(lambda: len(children(parent)) == 2)
    assert run.process.stdin is not None
    os.write(run.process.stdin.fileno(), b"\n")
    eventually(lambda: run.process.poll() is not None or len(children(parent)) < 2)
    os.write(run.process.stdin.fileno(), b"\n") if run.process.poll() is None else None
    assert run.wait() == 0


def test_without_proc_a_lost_lock_still_ends_the_command(world: World, path: Path) -> None:
    """Only the command is stopped, which is known to be ours."""
    code = (
        "import holdfast._platform.procfs as p, sys; p.is_ours = lambda: False; "
        f"from holdfast.cli import main; main(['run', '--kill-after', '1', {str(path)!r}, '--', 'sleep', '600'])"
    )
    run = world.start([sys.executable, "-c", code])
    eventually(path.exists)
    eventually(lambda: any(b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()[:6] for pid in world.mine()))
    path.unlink()
    assert run.wait() == 4


def test_the_kernels_lists_have_every_process() -> None:
    """They agree with the list of all processes, so that none is spared by mistake."""
    child = subprocess.Popen(["sh", "-c", "sleep 600 & echo; wait"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    try:
        spared = frozenset(one for one in tree.children() if one.pid != child.pid)
        quick = tree._below(spared, tree._children_of, 0)
        assert tree._below(spared, tree._by_parent().get, 0) == quick
        assert [one.parent for one in quick] == [os.getpid(), child.pid]
        assert not tree.descendants(tree.children())
        assert tree.send(quick[1], signal.SIGKILL)
        child.wait()
        assert not tree.send(quick[0], signal.SIGKILL)
        assert not tree.send(tree.Member(os.getpid(), os.getppid(), 1), signal.SIGKILL)  # another process with this pid
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


@pytest.mark.parametrize("protocol", ["sema", "flock"])
def test_a_command_knows_its_token(world: World, path: Path, protocol: str) -> None:
    words = ["run", "-p", protocol, "--fencing", path, "--", "sh", "-c", "echo $HOLDFAST_TOKEN"]
    tokens = [int(world.do(*words).stdout) for _ in range(3)]
    assert tokens == list(range(tokens[0], tokens[0] + 3))
    without = world.do(
        "run", "-p", protocol, path, "--", "sh", "-c", "echo $HOLDFAST_TOKEN", env={"HOLDFAST_TOKEN": "7"}
    )
    assert without.stdout == "\n"


def test_a_shell_is_told_its_token(world: World, path: Path) -> None:
    import json

    done = world.shell('$H try -j --fencing "$1"; $H acquire --help >/dev/null; $H release "$1"', path)
    token = json.loads(done.stdout)["token"]
    assert isinstance(token, int)
    held = world.shell('$H acquire --no-keeper -j --fencing "$1"', path)
    assert json.loads(held.stdout)["token"] == token + 1
    assert HOLDFAST
