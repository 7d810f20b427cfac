"""The lock is held while the command or a process started by it works, whichever of holdfast's processes is killed."""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from cli.support import HOLDFAST, Started, World, children, command, ended, eventually, guardian, state
from holdfast import LockLost
from holdfast.cli import guardian as module
from holdfast.cli.outcome import failed

CLOSING = """
import os, sys
os.closerange(3, 256)
print("child", os.getpid(), flush=True)
sys.stdin.readline()
sys.exit(9)
"""
"""Closes what it has inherited, as sudo and daemons do."""

DAEMON = """
import os, sys, time
heard, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.write(tell, b"%d" % os.getpid())
    os.closerange(0, 256)
    while True:
        time.sleep(60)
os.wait()
print("daemon", int(os.read(heard, 20)), flush=True)
print("child", os.getpid(), flush=True)
sys.stdin.readline()
"""
"""Starts one that leaves parent, group, session and terminal, and closes every descriptor."""

JOB = """sleep 600 > /dev/null 2>&1 & until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done; echo job $!"""


def pid_of(line: str) -> int:
    return int(line.split()[1])


def is_held(world: World, path: Path) -> bool:
    return world.do("run", "-n", path, "--", "true").returncode == 75


def go_on(started: Started) -> None:
    assert started.process.stdin is not None
    os.write(started.process.stdin.fileno(), b"\n")


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        eventually(lambda pid=pid: ended(pid), what=f"the end of {pid}")  # type: ignore[misc]


def free_again(world: World, path: Path, dead: int) -> None:
    """Check that the next contender gets the lock at once, is told whom it replaces, and leaves nothing."""
    done = world.do("run", "-w", 10, path, "--", "sh", "-c", "echo $HOLDFAST_RECOVERED")
    assert (done.returncode, done.stdout) == (0, f"{dead}\n")
    assert [*path.parent.iterdir()] == []


# -- run is killed -----------------------------------------------------------------------------------------------------


def test_a_command_that_closed_its_descriptors_keeps_its_lock(world: World, path: Path) -> None:
    """G1, G3, C4."""
    run = world.run(path, CLOSING, stdin=-1)
    child = pid_of(run.hear("child"))
    keeper = guardian(run.pid)
    kill(run.pid)
    assert is_held(world, path)
    assert not ended(child)
    go_on(run)
    eventually(lambda: ended(keeper), what="the guardian's end")
    free_again(world, path, run.pid)


def test_a_daemon_that_closed_its_descriptors_keeps_its_lock(world: World, path: Path) -> None:
    """G1: after `run` was killed, everything that its command started counts."""
    run = world.run(path, DAEMON, stdin=-1)
    daemon, child = pid_of(run.hear("daemon")), pid_of(run.hear("child"))
    keeper = guardian(run.pid)
    kill(run.pid)
    go_on(run)
    eventually(lambda: ended(child), what="the command's end")
    assert is_held(world, path)
    kill(daemon)
    eventually(lambda: ended(keeper), what="the guardian's end")
    free_again(world, path, run.pid)


def test_a_daemon_that_left_the_process_group_keeps_its_lock_when_the_group_is_killed(world: World, path: Path) -> None:
    """G2."""
    run = world.run(path, DAEMON, stdin=-1)
    daemon = pid_of(run.hear("daemon"))
    run.hear("child")
    keeper = guardian(run.pid)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    assert is_held(world, path)
    kill(daemon)
    eventually(lambda: ended(keeper), what="the guardian's end")
    free_again(world, path, run.pid)


@pytest.mark.parametrize("limit", ["30d", "1e10", "inf"])
def test_a_limit_may_be_longer_than_a_system_call_can_wait(world: World, path: Path, limit: str) -> None:
    """Longer than poll() can wait, longer than a `timespec` holds, or infinite: `run` and its guardian go on."""
    done = world.do("run", "--limit", limit, path, "--", "sh", "-c", "sleep 0.1; exit 6")
    assert (done.returncode, done.stderr) == (6, "")
    run = world.run(path, CLOSING, "--limit", limit, stdin=-1)
    run.hear("child")
    keeper = guardian(run.pid)
    kill(run.pid)
    done = world.do("run", "-w", "200ms", path, "--", "true")
    assert (done.returncode, ended(keeper)) == (75, False)
    go_on(run)
    free_again(world, path, run.pid)


def test_a_guardian_does_not_hold_a_pipe_open(world: World, path: Path) -> None:
    """G2: the guardian closes the descriptors that it inherits; the daemon has closed its own."""
    run = world.run(path, DAEMON, stdin=-1)
    daemon = pid_of(run.hear("daemon"))
    run.hear("child")
    kill(run.pid)
    go_on(run)
    run.rest()  # it ends, as nobody has the pipe open
    assert is_held(world, path)
    kill(daemon)


def test_the_record_of_a_killed_run_stays_fresh_while_its_command_works(world: World, path: Path) -> None:
    """G3: it is refreshed every third of the age at which others would call it stale."""
    run = world.run(path, CLOSING, "--stale-after", 1, stdin=-1)
    run.hear("child")
    kill(run.pid)
    before = path.read_bytes()
    eventually(lambda: path.read_bytes() != before, what="a fresh timestamp")
    assert f"pid={run.pid}\n".encode() in path.read_bytes()
    go_on(run)
    eventually(lambda: not is_held(world, path))


def test_a_lease_outlives_run_however_long_that_has_renewed_it(world: World, path: Path) -> None:
    """LE12: the guardian was forked when the lease was young."""
    run = world.run(path, CLOSING, "--lease", 1, stdin=-1)
    child = pid_of(run.hear("child"))
    beats = {path.read_bytes()}

    def later_than_the_first_lease() -> bool:
        beats.add(path.read_bytes())
        return len(beats) > 4  # three for each lease

    eventually(later_than_the_first_lease, what="beats of run")
    kill(run.pid)
    before = path.read_bytes()
    eventually(lambda: path.read_bytes() != before, what="a beat of the guardian")
    assert not ended(child)
    go_on(run)
    eventually(lambda: not is_held(world, path))


def test_a_lock_that_is_lost_after_the_kill_of_run_ends_the_command(world: World, path: Path) -> None:
    """G3, CT1."""
    run = world.run(path, DAEMON, stdin=-1)
    daemon, child = pid_of(run.hear("daemon")), pid_of(run.hear("child"))
    keeper = guardian(run.pid)
    kill(run.pid)
    path.unlink()
    for pid in (child, daemon, keeper):
        eventually(lambda pid=pid: ended(pid), what=f"the end of {pid}")  # type: ignore[misc]
    assert not path.exists()


def test_a_status_names_the_guardian_that_keeps_the_lock_of_a_killed_run(world: World, path: Path) -> None:
    run = world.run(path, CLOSING, stdin=-1)
    run.hear("child")
    keeper = guardian(run.pid)
    kill(run.pid)
    shown = world.do("status", path).stdout
    assert f"process {keeper} (holdfast-guardian of run {run.pid} (python" in shown
    told = json.loads(world.do("status", "-j", path).stdout)
    assert (told["state"], told["liveness"], told["evidence"]["source"]) == ("held", "alive", "guard")
    assert told["kernel_lock"] == [{"pid": keeper, "shared": False}]
    assert (told["holder"]["pid"], told["record"]["pid"]) == (keeper, run.pid)
    held = f"held by process {keeper} (holdfast-guardian of run {run.pid} "
    for words in (("try", path), ("run", "-n", path, "--", "true"), ("wait", "-w", 0.01, path)):
        done = world.do(*words)
        assert held in done.stderr, done
        assert f", to which process {run.pid} left it when it ended, since " in done.stderr
        assert f"Wait until process {keeper} releases it or ends" in done.stderr
    done = world.do("release", path)
    assert done.returncode == 1
    assert f"was not released: {held}" in done.stderr
    for words in (("ls", "-j", path.parent), ("top", "--once", "-j", path.parent)):
        assert f'"pid": {keeper}, ' in world.do(*words).stdout


@pytest.mark.parametrize("protocol", ["flock", "semats", "sidecar"])
def test_a_lock_of_another_protocol_outlives_run(world: World, path: Path, protocol: str) -> None:
    run = world.run(path, CLOSING, "-p", protocol, stdin=-1)
    run.hear("child")
    keeper = guardian(run.pid)
    kill(run.pid)
    try_ = ("run", "-p", protocol, path, "--", "true")
    assert world.do("run", "-n", *try_[1:]).returncode == 75
    go_on(run)
    eventually(lambda: ended(keeper), what="the guardian's end")
    assert world.do(*try_).returncode == 0


def test_a_slot_outlives_run(world: World, path: Path) -> None:
    run = world.run(path, CLOSING, "--slots", 1, stdin=-1)
    run.hear("child")
    keeper = guardian(run.pid)
    kill(run.pid)
    assert world.do("run", "-n", "--slots", 1, path, "--", "true").returncode == 75
    go_on(run)
    eventually(lambda: ended(keeper), what="the guardian's end")
    assert world.do("run", "--slots", 1, path, "--", "true").returncode == 0


def test_without_kernel_locks_the_command_ends_with_run(world: World, path: Path) -> None:
    """G3: the record then names `run` as the holder, so the lock ended with it."""
    run = world.run(path, DAEMON, stdin=-1, env={"HOLDFAST_OS": "generic"})
    daemon, child = pid_of(run.hear("daemon")), pid_of(run.hear("child"))
    kill(run.pid)
    for pid in (child, daemon):
        eventually(lambda pid=pid: ended(pid), what=f"the end of {pid}")  # type: ignore[misc]


def test_a_signal_to_the_guardian_is_ignored_beside_run_and_heeded_after_it(world: World, path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'term\\n'))\n"
        "print('child', flush=True)\nsys.stdin.readline()\nprint('read', flush=True)\nsys.stdin.readline()\n"
    )
    run = world.run(path, code, stdin=-1)
    run.hear("child")
    keeper = guardian(run.pid)
    os.kill(keeper, signal.SIGTERM)
    go_on(run)
    run.hear("read")
    assert b"term" not in run.text  # all output that was to come came before
    kill(run.pid)

    def told() -> bool:
        os.kill(keeper, signal.SIGTERM)
        return len(os.listdir(f"/proc/{keeper}/task")) > 1  # it keeps the record: it has noticed

    eventually(told)
    os.kill(keeper, signal.SIGTERM)
    run.hear("term")
    go_on(run)
    eventually(lambda: ended(keeper), what="the guardian's end")


def test_a_guardian_that_is_stopped_is_continued(world: World, path: Path) -> None:
    """G8: otherwise nobody would learn of the command's end."""
    run = world.run(path, CLOSING, stdin=subprocess.PIPE)
    run.hear("child")
    keeping = guardian(run.pid)
    for _ in range(3):
        os.kill(keeping, signal.SIGSTOP)
        eventually(lambda: state(keeping) not in ("T", ""), what="it goes on")
    os.kill(keeping, signal.SIGSTOP)
    go_on(run)
    assert run.wait() == 9
    assert not path.exists()


def test_a_guardian_that_is_stopped_before_it_answers_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """G8: while its answer is awaited, and while its end is."""
    monkeypatch.setattr(module, "_ANSWERS_WITHIN", 0.01)
    seen = module.Guardian([], module.Terms(1.0, module.COMMAND, None))
    seen._news, tell = os.pipe()
    heard, seen._words = os.pipe()
    seen.pid = os.fork()
    if seen.pid == 0:
        try:
            os.kill(os.getpid(), signal.SIGSTOP)
            os.write(tell, module.LEFT + bytes(8))
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(0)
    assert seen.seen()
    seen.dismiss()
    assert seen.pid == 0
    for fd in (seen._news, tell, heard, seen._words):
        os.close(fd)


# -- the guardian is killed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [0, 7, -signal.SIGTERM, -signal.SIGKILL])
def test_run_learns_the_commands_status_although_the_guardian_is_killed(world: World, path: Path, end: int) -> None:
    """G4."""
    last = f"sys.exit({end})" if end >= 0 else f"os.kill(os.getpid(), {-end})"
    run = world.run(path, CLOSING.replace("sys.exit(9)", last), stdin=-1)
    run.hear("child")
    kill(guardian(run.pid))
    assert is_held(world, path)
    go_on(run)
    assert run.wait() == end
    assert run.complaint() == ""
    assert [*path.parent.iterdir()] == []


def test_a_signal_is_passed_on_without_the_guardian(world: World, path: Path) -> None:
    run = world.run(path, CLOSING, stdin=-1)
    run.hear("child")
    keeper = guardian(run.pid)
    kill(keeper)
    eventually(lambda: keeper not in children(run.pid), what="run having noticed")
    run.signal(signal.SIGTERM)
    assert run.wait() == -signal.SIGTERM
    assert not path.exists()


def test_a_lost_lock_ends_the_tree_of_a_killed_guardian(world: World, path: Path) -> None:
    """G4, CT1."""
    run = world.run(path, DAEMON, stdin=-1)
    daemon, child = pid_of(run.hear("daemon")), pid_of(run.hear("child"))
    kill(guardian(run.pid))
    path.unlink()
    assert run.wait() == 4
    assert ended(child)
    assert ended(daemon)


def test_run_does_not_wait_for_a_command_that_it_cannot_adopt(world: World, path: Path) -> None:
    """CT1, G4: `run` had children before, so it adopts no process. It reports that the command's status is unknown."""
    script = 'sleep 600 2>/dev/null & exec $H run "$1" -- sh -c "echo child \\$\\$; read line; exit 7"'
    run = world.sh(script, path, stdin=-1)
    child = pid_of(run.hear("child"))
    keeper = guardian(run.pid)
    assert child in children(keeper)
    kill(keeper)
    assert is_held(world, path)
    go_on(run)
    assert run.wait() == 3
    assert "guardian was killed" in run.complaint()
    assert not path.exists()


BEFORE = """
import os, sys
from holdfast.cli import guardian, main

def tell(_self, _kind, _pid):
    os.kill(os.getpid(), 9)

guardian._Life._tell = tell
main(["run", sys.argv[1], "--", "sh", "-c", "echo child $$; read line; exit 7"])
"""


def test_a_guardian_killed_before_it_could_tell_does_not_free_the_lock(world: World, path: Path) -> None:
    """G4: the command is found as the child that `run` then has."""
    run = world.start([sys.executable, "-c", BEFORE, path], stdin=-1)
    child = pid_of(run.hear("child"))
    assert is_held(world, path)
    eventually(lambda: children(run.pid) == [child])
    go_on(run)
    assert run.wait() == 7
    assert not path.exists()


def test_a_command_that_run_cannot_find_keeps_its_lock(world: World, path: Path) -> None:
    """G1, G4: `run` had children before, so it adopts no process. The command keeps the guard that it inherited."""
    words = ["sh", "-c", 'sleep 600 & exec "$@" 2>&1', "sh", sys.executable, "-c", BEFORE, path]
    run = world.start(words, stdin=-1)
    assert run.wait() == 3
    child = pid_of(run.hear("child"))  # before or after the complaint
    assert "holdfast: the command's guardian was killed" in run.text.decode()
    assert is_held(world, path)
    go_on(run)
    eventually(lambda: ended(child))
    free_again(world, path, run.pid)


def test_a_command_with_the_guards_descriptor_keeps_the_lock_when_run_and_guardian_are_killed(
    world: World, path: Path
) -> None:
    """G1: the command has inherited the guard."""
    run = world.run(path, CLOSING.replace("os.closerange(3, 256)", ""), stdin=-1)
    child = pid_of(run.hear("child"))
    keeper = guardian(run.pid)
    for pid in (run.pid, keeper):
        os.kill(pid, signal.SIGSTOP)
    kill(keeper, run.pid)
    assert is_held(world, path)
    assert not ended(child)
    go_on(run)
    eventually(lambda: ended(child))
    free_again(world, path, run.pid)


# -- the command leaves something running ------------------------------------------------------------------------------


def test_a_job_in_the_background_keeps_its_lock(world: World, path: Path) -> None:
    """G6. `run` ends at once, as its command did; the lock file goes with the job."""
    done = world.do("run", path, "--", "sh", "-c", f"{JOB}; exit 5")
    job = pid_of(done.stdout)
    assert done.returncode == 5
    assert done.stderr == (
        f"holdfast: {path} stays held until process {job} (sleep) has ended, which the command has left running "
        "(--until)\n"
    )
    assert is_held(world, path)
    kill(job)
    eventually(lambda: not path.exists(), what="the release")
    assert [*path.parent.iterdir()] == []


def test_the_guardian_writes_nothing_to_the_record_of_a_killed_run(world: World, path: Path) -> None:
    """G2: it closes the file, whose number its own pipe for signals may then have."""
    record = path.parent / "record"
    code = "import os, signal, sys; print('child', flush=True); sys.stdin.readline(); print('end', flush=True)"
    run = world.run(path, code, "--record", record, stdin=-1)
    run.hear("child")
    keeper = guardian(run.pid)
    kill(run.pid)
    path.write_text("pid=1\ntimestamp=1\n")  # a loss, which would be reported
    eventually(lambda: ended(keeper), what="the guardian's end")
    assert [json.loads(line)["kind"] for line in record.read_text().splitlines()] == ["acquired"]


def test_the_guardians_release_wakes_a_waiter(world: World, path: Path) -> None:
    job = pid_of(world.do("run", "-q", path, "--", "sh", "-c", JOB).stdout)
    heir = world.start([*HOLDFAST, "run", path, "--", "echo", "in"])
    eventually(lambda: state(heir.pid) == "S")
    kill(job)
    heir.hear("in")
    assert heir.wait() == 0
    assert [*path.parent.iterdir()] == []


def test_a_job_whose_parent_became_a_daemon_keeps_its_lock(world: World, path: Path) -> None:
    """The job's own session counts, not what its parent has become."""
    code = """
import os, sys, time
if os.fork() == 0:
    job = os.fork()
    if job == 0:
        os.closerange(0, 256)
        time.sleep(600)
    os.setsid()
    os.write(1, b"job %d\\n" % job)
    os.closerange(0, 256)
    time.sleep(600)
os.read(os.pipe()[0], 0)
print("child", flush=True)
sys.stdin.readline()
"""
    run = world.run(path, code, stdin=-1)
    job = pid_of(run.hear("job"))
    go_on(run)
    assert run.wait() == 0
    assert is_held(world, path)
    kill(job)
    eventually(lambda: not path.exists(), what="the release")


@pytest.mark.parametrize(
    ("until", "what", "held"),
    [("command", JOB, False), ("jobs", JOB, True), ("all", JOB, True)]
    + [(until, f"setsid {JOB}", until == "all") for until in ("command", "jobs", "all")],
)
def test_until_decides_which_processes_keep_the_lock(
    world: World, path: Path, until: str, what: str, held: bool
) -> None:
    own = f"until [ $(ps -o sid= -p $!) = $! ]; do :; done; {what.partition('& ')[2]}"
    script = f"{what.partition('& ')[0]}& {own}" if "setsid" in what else what
    done = world.do("run", "--until", until, path, "--", "sh", "-c", script)
    assert done.returncode == 0
    job = pid_of(done.stdout)
    assert not ended(job)
    assert is_held(world, path) == held
    kill(job)
    eventually(lambda: not path.exists(), what="the release")


def test_with_until_command_a_daemon_does_not_keep_the_lock(world: World, path: Path) -> None:
    run = world.run(path, DAEMON, "--until", "command", stdin=-1)
    run.hear("child")
    kill(run.pid)
    assert is_held(world, path)
    go_on(run)
    eventually(lambda: not is_held(world, path))


def test_without_kernel_locks_a_release_beside_a_running_job_is_reported(world: World, path: Path) -> None:
    done = world.do("run", path, "--", "sh", "-c", JOB, env={"HOLDFAST_OS": "generic"})
    assert done.returncode == 0
    assert "is released, although process" in done.stderr
    assert not path.exists()


# -- in between --------------------------------------------------------------------------------------------------------


def test_the_guardian_ends_with_the_command(world: World, path: Path) -> None:
    run = world.run(path, CLOSING, stdin=-1)
    run.hear("child")
    keeper, child = guardian(run.pid), command(run.pid)
    go_on(run)
    assert run.wait() == 9
    assert [pid for pid in (keeper, child) if not ended(pid)] == []
    assert world.mine() == []


def test_the_command_has_the_group_session_and_terminal_of_run(world: World, path: Path) -> None:
    """G2: only its parent is another process."""
    code = "import os; print('child', os.getpgrp(), os.getsid(0), os.tcgetpgrp(0), flush=True); input()"
    run = world.terminal([*HOLDFAST, "run", path, "--", sys.executable, "-c", code])
    found = run.hear("child").split()[1:]
    assert {*map(int, found)} == {run.pid}
    assert os.getsid(guardian(run.pid)) == guardian(run.pid)
    run.type(b"\n")
    assert run.wait() == 0


def test_a_loss_found_while_the_guardian_takes_the_locks_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """G7: the keeper's thread finds the loss just after this thread has seen none."""
    told: list[bytes] = []
    guardian = module.Guardian([], module.Terms(1.0, module.COMMAND, None))
    guardian.guarded = [object()]  # type: ignore[list-item]
    life = module._Life(guardian, [0], -1, -1)
    life._wake = -1

    class Taken:
        @property
        def lost(self) -> bool:
            life._on_lost(LockLost("gone"))
            return False

    monkeypatch.setattr(module, "take", lambda *_: Taken())
    monkeypatch.setattr(module, "keep_from_now", lambda _hold: None)
    monkeypatch.setattr(module.os, "write", lambda _fd, data: told.append(data))
    life._take()
    assert (life._lost, len(told)) == (True, 1)


@pytest.mark.unmeasured("it counts the descriptors of a process")
def test_a_guardian_that_cannot_start_is_not_reported_as_an_error_of_the_command(world: World, path: Path) -> None:
    """Whichever of its pipes lacks a descriptor, the cause is reported and the lock released."""
    found = []
    for most in (5, 6, 7, 8):
        limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (most, most))
        done = world.do("run", path, "--", "true", real=True, preexec_fn=limit)
        assert done.returncode in (0, 3), done
        assert len(done.stderr.splitlines()) == bool(done.returncode), done
        assert done.returncode == 0 or "Too many open files" in done.stderr
        assert not path.exists()
        found.append(done.stderr)
    assert "true was not started: its guardian process could not be started (Too many open files)" in "".join(found)


THREADLESS = """
import sys, threading

def none_left(thread):
    raise RuntimeError("can't start new thread")

threading.Thread.start = none_left
from holdfast.cli import main
main(sys.argv[1:])
"""
"""The command, where no process may have another thread."""


@pytest.mark.parametrize("killed", [False, True], ids=["run", "the guardian of a killed run"])
def test_without_a_thread_a_loss_ends_the_command_all_the_same(world: World, path: Path, killed: bool) -> None:
    """background.py, K10."""
    work = "trap 'echo taken' USR1; echo held; while :; do sleep 0.05; done"
    started = world.start([sys.executable, "-c", THREADLESS, "run", path, "--", "sh", "-c", work])
    started.hear("held")
    keeping = guardian(started.pid)
    pid = children(keeping)[0]
    if killed:
        kill(started.pid)

        def taken() -> bool:
            os.kill(keeping, signal.SIGUSR1)  # the guardian passes it on once it has the locks
            return bool(select.select([started.source], [], [], 0.1)[0])

        eventually(taken)
    else:
        said = started.process.stderr
        assert said is not None
        assert said.readline().decode().startswith(f"holdfast: {path} is held, but no thread keeps it fresh: ")
    path.unlink()
    eventually(lambda: ended(pid), what="the end of the command")
    if not killed:
        assert started.wait() == 4
        assert len(started.complaint().splitlines()) == 2


REFUSED = """
import errno, os, sys

def refused(*given, **named):
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

os.posix_spawnp = refused
from holdfast.cli import main
main(sys.argv[1:])
"""


def test_a_process_that_the_system_refuses_is_not_reported_as_an_error_of_the_command(world: World, path: Path) -> None:
    done = world.start([sys.executable, "-c", REFUSED, "run", path, "--", "true"])
    assert done.wait() == 3
    assert done.complaint().startswith("holdfast: true was not started: Resource temporarily unavailable; a limit is ")
    assert not path.exists()


def test_a_thread_that_the_system_refuses_causes_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert failed(RuntimeError("can't start new thread")) == 3
    assert capsys.readouterr().err.startswith("holdfast: the system refused a thread or memory; a limit is ")


FAILING = """
import sys
from holdfast.cli import guardian, main, run

def fail(signals, pause, original=run.next_signal):
    if original(signals, pause)[0] == run.signal.SIGUSR1:
        raise MemoryError
    return 0, False

def fail_at_its_start(made):
    guardian.readable([made._news], None)
    raise MemoryError

if sys.argv[1] == "start":
    guardian.Guardian._answer = fail_at_its_start
run.next_signal = fail
main(["run", sys.argv[2], "--", "sh", "-c", "trap '' USR1; echo held $$; exec sleep 600"])
"""


@pytest.mark.parametrize("moment", ["start", "wait"])
def test_an_error_of_run_does_not_free_the_lock_of_a_command_at_work(world: World, path: Path, moment: str) -> None:
    """C7: the guardian keeps it, as if `run` had been killed."""
    started = world.start([sys.executable, "-c", FAILING, moment, path])
    work = pid_of(started.hear("held"))
    if moment == "wait":
        started.signal(signal.SIGUSR1)
    assert started.wait() == 3
    assert is_held(world, path)
    assert not ended(work)
    kill(work)
    assert started.complaint().startswith("holdfast: the system refused a thread or memory")
    free_again(world, path, started.pid)


def test_a_conflict_command_that_cannot_run_does_not_change_the_status(world: World, path: Path, held: int) -> None:
    code = REFUSED + "\nimport subprocess\nsubprocess.call = refused\nmain(sys.argv[1:])"
    code = code.replace("\nmain(sys.argv[1:])", "", 1)
    done = world.start([sys.executable, "-c", code, "run", "-n", "--on-conflict", "true", path, "--", "true"])
    assert done.wait() == 75
    assert "--on-conflict was not run: Resource temporarily unavailable" in done.complaint()


STEPPING = """
import os, sys

step, gate, code = sys.argv[1:4]
real = getattr(os, step)

def gated(*given, **named):
    os.close(os.open(f"{gate}.here", os.O_CREAT))
    with open(gate) as opened:
        opened.read()
    return real(*given, **named)

setattr(os, step, gated)
from holdfast.cli import main
main(["run", sys.argv[4], "--", "sh", "-c", code, "sh", f"{gate}.began"])
"""
"""A `run` that waits for the opening of a gate before one of its steps, or its guardian's."""


@pytest.mark.needs("flock", "linux")
@pytest.mark.parametrize("step", ["fork", "posix_spawnp", "setsid"])
def test_a_killed_run_is_never_called_dead_while_its_command_can_run(world: World, path: Path, step: str) -> None:
    """Before the fork no command exists, nor will one. From then on, the guardian has the lock."""
    gate = world.directory / "gate"
    os.mkfifo(gate)

    def condition() -> str:
        found: str = json.loads(world.do("ls", "-j", path).stdout)["condition"]
        assert top_of(world, path) == found
        return found

    code = ': >"$1"; read line'
    run = world.start([sys.executable, "-c", STEPPING, step, gate, code, path], stdin=subprocess.PIPE)
    eventually(Path(f"{gate}.here").exists, what=f"the step {step}")
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    began = Path(f"{gate}.began")
    if step == "fork":
        assert condition() == "dead"
        assert not began.exists()
        return
    assert condition() == "held"
    with open(gate, "w"):
        pass  # the guardian goes on
    eventually(began.exists, what="the command")
    assert condition() == "held"
    assert run.process.stdin is not None
    run.process.stdin.close()
    eventually(lambda: condition() == "dead", what="the end of the guardian")


def top_of(world: World, path: Path) -> str:
    found: str = json.loads(world.do("top", "--once", "-j", path).stdout)["condition"]
    return found


def test_a_script_without_a_shell_to_run_it_is_not_reported_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a root directory without /bin/sh, the script exists."""

    def failing(number: int) -> Callable[..., int]:
        def fail(*_given: object, **_named: object) -> int:
            raise OSError(number, os.strerror(number))

        return fail

    monkeypatch.setattr(os, "posix_spawnp", failing(errno.ENOEXEC))
    monkeypatch.setattr(os, "posix_spawn", failing(errno.ENOENT))
    with pytest.raises(OSError) as caught:  # noqa: PT011
        module.spawn(["./script"], {}, ())
    assert caught.value.errno == errno.ENOEXEC
