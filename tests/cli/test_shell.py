"""`try`, `acquire`, `release`, `wait`, `status`, from scripts that rely on exit statuses and on JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

import holdfast
from cli.support import HOLDFAST, World, dormant, eventually

FIELDS = {
    "result", "path", "protocol", "state", "liveness", "evidence", "reason", "age", "record_age", "modified", "holder",
    "holders", "waiters", "record",
}  # fmt: skip


def one_object(text: str) -> dict[str, object]:
    """The JSON object, if the text is a single line that holds nothing else."""
    assert text.endswith("\n")
    assert text.count("\n") == 1
    value = json.loads(text)
    assert isinstance(value, dict)
    return value


# -- bound to the calling shell ----------------------------------------------------------------------------------------


def test_a_lock_lives_as_long_as_the_shell_that_acquired_it(world: World, path: Path) -> None:
    shell = world.sh('$H try "$1" && echo $$; read line', path, stdin=subprocess.PIPE)
    pid = int(shell.hear(""))
    assert pid == shell.pid
    status = one_object(world.do("status", "-j", path).stdout)
    assert (status["state"], status["liveness"], status["holder"]["pid"]) == ("held", "alive", pid)
    assert world.do("try", path).returncode == 1
    shell.process.stdin.write(b"\n")
    shell.wait()
    eventually(lambda: not path.exists(), what="the keeper to release")
    done = world.do("run", "-n", path, "--", "sh", "-c", "echo $HOLDFAST_RECOVERED")
    assert (done.returncode, done.stdout) == (0, "\n")


def test_a_lease_that_no_process_would_renew_is_refused(world: World, path: Path) -> None:
    refused = world.do("try", "--no-keeper", "--lease", "30", "--owner-pid", os.getpid(), path)
    assert (refused.returncode, path.exists()) == (2, False)
    assert "--lease makes no sense without a keeper" in refused.stderr
    assert world.do("try", "--no-keeper", "--lease", "0", "--owner-pid", os.getpid(), path).returncode == 0


def test_a_plain_file_lives_as_long_as_the_shell_that_acquired_it(world: World, path: Path) -> None:
    """Without a keeper, the lock is known by the shell's process, and left for the next contender to take over."""
    shell = world.sh('$H try --no-keeper "$1" && echo $$; read line', path, stdin=subprocess.PIPE)
    pid = int(shell.hear(""))
    status = one_object(world.do("status", "-j", path).stdout)
    assert (status["state"], status["liveness"], status["holder"]["pid"]) == ("held", "alive", pid)
    assert status["evidence"]["source"] == "process"
    assert world.do("try", path).returncode == 1
    shell.process.stdin.write(b"\n")
    shell.wait()
    assert one_object(world.do("status", "-j", path).stdout)["state"] == "stale"
    done = world.do("run", "-n", path, "--", "sh", "-c", "echo $HOLDFAST_RECOVERED")
    assert (done.returncode, done.stdout) == (0, f"{pid}\n")


def test_a_killed_shell_leaves_a_lock_that_the_next_gets_at_once(world: World, path: Path) -> None:
    shell = world.sh('$H acquire "$1"; echo held; read line', path, stdin=subprocess.PIPE)
    shell.hear("held")
    waiter = world.start([*HOLDFAST, "run", path, "--", "echo", "mine"])
    eventually(lambda: dormant(waiter.pid), what="the contender waiting")
    shell.signal(signal.SIGKILL)
    shell.wait()
    waiter.hear("mine", within=8.0)  # sooner than it would look anyway
    assert waiter.wait() == 0
    assert not path.exists()


def test_two_shells_exclude_each_other(world: World, path: Path) -> None:
    first = world.sh('$H try "$1"; echo $?; read line; $H release "$1"; echo $?', path, stdin=subprocess.PIPE)
    first.hear("0")
    done = world.shell('$H try "$1"; echo $?; $H try -E 9 "$1"; echo $?; $H try -q "$1"; echo $?', path)
    assert done.stdout.split() == ["1", "9", "1"]
    assert done.stderr.count(f"could not get {path} at once: held by process {first.pid}") == 2
    first.process.stdin.write(b"\n")
    first.hear("0")
    first.wait()
    assert not path.exists()


def test_a_shell_does_not_get_its_own_lock_twice(world: World, path: Path) -> None:
    done = world.shell('$H try "$1"; echo $?; $H try -q "$1"; echo $?; $H acquire -q -n "$1"; echo $?', path)
    assert done.stdout.split() == ["0", "1", "1"]


def test_another_shell_does_not_release_but_may_break(world: World, path: Path) -> None:
    holder = world.sh('$H try "$1"; echo held; read line', path, stdin=subprocess.PIPE)
    holder.hear("held")
    script = '$H release "$1"; echo $?; $H release -j "$1"; echo $?; $H status -q "$1"; echo $?'
    done = world.shell(script, path)
    refused, text, again, status = done.stdout.splitlines()
    assert (refused, again, status) == ("1", "1", "1")
    told = one_object(text + "\n")
    assert told["result"] == "refused"
    assert "was not released: it was acquired for process " in told["why"]
    assert f"acquired for process {holder.pid}" in done.stderr
    assert "holdfast break" in done.stderr
    done = world.do("release", "--force", path)
    assert done.returncode == 2
    assert "holdfast break --force" in done.stderr
    done = world.do("break", "--force", "--yes", path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"holdfast: {path}: broken\n")
    assert not path.exists()


def test_a_shell_that_meets_its_own_lock_is_told_how_to_release_it(world: World, path: Path) -> None:
    """It would wait for itself; following the advice frees the lock."""
    script = """
        $H try -q "$1"
        $H try "$1"; echo $?
        $H run -n "$1" -- true; echo $?
        $H run -w 3 "$1" -- true; echo $?
        $H release "$1"; $H run "$1" -- true; echo $?
    """
    done = world.shell(script, path)
    assert done.stdout.split() == ["1", "75", "75", "0"]
    advice = f"is the shell that has called this. To release its lock: holdfast release {path}\n"
    assert done.stderr.count(advice) == 4, done.stderr  # including that of a wait
    with holdfast.Lock(path):
        assert advice not in world.do("try", path).stderr


def test_a_second_release_is_not_an_error(world: World, path: Path) -> None:
    script = '$H try "$1"; $H release -j "$1"; echo $?; $H release -j "$1"; echo $?; $H release "$1"; echo $?'
    first, a, second, b, c = world.shell(script, path).stdout.splitlines()
    assert (a, b, c) == ("0", "0", "0")
    assert one_object(first + "\n")["result"] == "released"
    assert one_object(second + "\n")["result"] == "not held"


def test_the_lock_of_a_running_program_is_not_released_from_outside(world: World, path: Path, held: int) -> None:
    for owner in ([], ["--owner-pid", held]):
        done = world.do("release", *owner, path)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"process {held} holds it itself" in done.stderr
    assert world.do("status", "-q", path).returncode == 1


def test_an_owner_can_be_named(world: World, path: Path) -> None:
    owner = world.start(["sleep", "60"])
    done = world.do("try", "-j", "--owner-pid", owner.pid, path)
    assert (done.returncode, done.stderr) == (0, "")
    found = one_object(done.stdout)
    assert (found["result"], found["owner_pid"], found["holder"]["pid"]) == ("acquired", owner.pid, owner.pid)
    assert world.do("release", path).returncode == 1
    assert world.do("release", "--owner-pid", owner.pid, path).returncode == 0
    assert not path.exists()


def test_an_owner_that_has_ended_gets_no_lock(world: World, path: Path) -> None:
    owner = world.start(["true"])
    owner.wait()
    done = world.do("try", "--owner-pid", owner.pid, path)
    assert (done.returncode, done.stdout) == (3, "")
    assert f"process {owner.pid} has ended" in done.stderr
    assert not path.exists()


@pytest.mark.parametrize("option", ["--json", "--no-keeper"])
def test_an_owner_that_ends_during_the_wait_gets_no_lock(world: World, path: Path, option: str) -> None:
    owner, holder = world.start(["sleep", "600"]), world.hold(path)
    holder.hear("held")
    waiting = world.start([*HOLDFAST, "acquire", "-q", option, "--owner-pid", owner.pid, path])
    eventually(lambda: dormant(waiting.pid), what="a wait")
    owner.signal(signal.SIGKILL)
    owner.wait()
    assert holder.process.stdin is not None
    holder.process.stdin.close()
    assert (waiting.wait(), '"result": "failed"' in waiting.rest()) == (3, option == "--json")
    assert f"process {owner.pid} has ended, so {path} was not acquired for it" in waiting.complaint()
    assert not path.exists()


@pytest.mark.parametrize("pid", ["0", "-1", "x", "", "2147483648", "0000000000009999999999", "1.5"])
def test_an_impossible_owner_is_refused(world: World, path: Path, pid: str) -> None:
    done = world.do("try", f"--owner-pid={pid}", path)
    assert done.returncode == 2
    assert "is not a process id" in done.stderr
    assert not path.exists()


# -- statuses and JSON -------------------------------------------------------------------------------------------------


def test_each_json_result_is_one_complete_object_on_stdout(world: World, path: Path) -> None:
    script = """
        $H status -j "$1"; $H wait -j "$1"; $H try -t why -j "$1"; $H try -j "$1"; $H acquire -n -j "$1"
        $H wait -j -w 0.05 "$1"; $H status -j "$1"; $H release -j "$1"
    """
    done = world.shell(script, path)
    assert done.stderr == ""
    found = [one_object(line + "\n") for line in done.stdout.splitlines()]
    assert [one["result"] for one in found] == [
        "free", "free", "acquired", "held", "held", "held", "held", "released",
    ]  # fmt: skip
    assert all(one.keys() >= FIELDS for one in found)
    free, taken = found[0], found[3]
    assert (free["state"], free["holder"], free["record"], free["age"]) == ("free", None, None, None)
    assert taken["path"] == str(path)
    assert taken["protocol"] == "sema"
    assert taken["holder"].keys() == {"pid", "host", "since", "tag", "command", "stopped"}
    assert taken["holder"]["tag"] == taken["record"]["tag"] == "why"
    assert taken["evidence"].keys() == {"source", "text", "proven"}
    assert 0 <= taken["age"] < 60


def test_plain_results_keep_stdout_and_stderr_apart(world: World, path: Path) -> None:
    quiet = world.shell(
        '$H try -q "$1"; $H wait -q -w 0 "$1"; $H acquire -qn "$1"; $H release "$1"; $H wait "$1"', path
    )
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    script = '$H try -v "$1"; $H wait -w 0 "$1"; $H release -v "$1"; $H release -v "$1"; $H wait -v "$1"'
    told = world.shell(script, path)
    assert told.stdout == ""
    lines = told.stderr.splitlines()
    assert lines[0].startswith(f"holdfast: acquired {path} for process ")
    assert lines[1].startswith(f"holdfast: {path} is still held by process ")
    assert lines[2:] == [
        f"holdfast: {path}: released", f"holdfast: {path}: not held", f"holdfast: {path} is free",
    ]  # fmt: skip


def test_status_changes_nothing_and_answers_by_its_exit_status(world: World, path: Path, held: int) -> None:
    free = path.with_name("free.lock")
    before = path.read_bytes(), path.stat().st_mtime_ns
    done = world.do("status", path)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"process {held}" in done.stdout
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert world.do("status", free).returncode == 0
    assert world.do("status", "-q", free).stdout == ""
    assert not free.exists()


def test_wait_returns_when_the_lock_is_released_and_takes_nothing(world: World, path: Path, held: int) -> None:
    waiter = world.start([*HOLDFAST, "wait", "-j", path])
    eventually(lambda: dormant(waiter.pid), what="the contender waiting")
    os.kill(held, signal.SIGTERM)
    assert waiter.wait() == 0
    assert one_object(waiter.rest())["result"] == "free"
    assert not path.exists()


@pytest.mark.parametrize(("options", "status"), [(["-n"], 1), (["-w", "0.1"], 1), (["-n", "-E", "9"], 9)])
@pytest.mark.parametrize("command", ["acquire", "wait"])
def test_a_timeout_has_its_own_exit_status(
    world: World, path: Path, held: int, command: str, options: list[str], status: int
) -> None:
    done = world.do(command, *options, path)
    assert (done.returncode, done.stdout) == (status, "")
    assert f"process {held}" in done.stderr


def test_a_result_that_cannot_be_written_is_an_error_and_acquires_nothing(world: World, path: Path) -> None:
    for unbuffered in ("", "1"):
        done = world.shell(
            '$H try -j "$1" >/dev/full; echo $? >&2; $H status "$1" >/dev/full; echo $? >&2',
            path,
            env={"PYTHONUNBUFFERED": unbuffered},
        )
        full = "holdfast: standard output: No space left on device"
        assert done.stderr.splitlines() == [full, "3", full, "3"]
        assert not path.exists()
