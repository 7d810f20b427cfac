"""The command line on kernel locks: `-p flock`, `--shared`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from cli.support import World, command, ended, eventually, guardian

# The world's environment has no HOLDFAST_OS and no HOLDFAST_WITHOUT: there are kernel locks.
STAY = "import sys; print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def holder(world: World, path: Path) -> int:
    """Hold `path` by `holdfast run -p flock`; returns its pid."""
    started = world.run(path, STAY, "-p", "flock", "-t", "deploy", stdin=-1)
    started.hear("held")
    return started.pid


@pytest.fixture
def reader(world: World, path: Path) -> int:
    started = world.run(path, STAY, "-p", "flock", "--shared", stdin=-1)
    started.hear("held")
    return started.pid


def try_flock(path: Path, *options: str) -> bool:
    return subprocess.run(["flock", "-n", *options, path, "true"]).returncode == 0


def test_a_command_runs_with_the_lock(world: World, path: Path) -> None:
    done = world.do(
        "run", "-p", "flock", path, "--", "sh", "-c", 'echo "$HOLDFAST_LOCK"; flock -n -s "$HOLDFAST_LOCK" true'
    )
    assert (done.stdout.strip(), done.returncode) == (str(path), 1)
    assert try_flock(path)
    assert path.read_bytes() == b""


def test_readers_share_the_lock_and_exclude_a_writer(world: World, path: Path, reader: int) -> None:
    shared = world.do("run", "-n", "-p", "flock", "--shared", path, "--", "true")
    alone = world.do("run", "-n", "-p", "flock", path, "--", "true")
    assert (shared.returncode, alone.returncode) == (0, 75)
    assert f"held by a reader, process {reader} (" in alone.stderr


def test_a_killed_wrapper_does_not_free_the_lock_of_its_command(world: World, path: Path, holder: int) -> None:
    work = [guardian(holder), command(holder)]
    os.kill(holder, signal.SIGKILL)
    eventually(lambda: ended(holder))
    assert not try_flock(path)
    done = world.do("status", "-p", "flock", "-j", path)
    status = json.loads(done.stdout)
    assert status["holder"]["pid"] in work
    assert status["holder"]["tag"] is None  # the tag names the wrapper, which is dead
    os.kill(work[1], signal.SIGKILL)
    assert world.do("run", "-w", "10", "-p", "flock", path, "--", "true").returncode == 0


def test_a_command_is_ended_when_the_lock_is_lost(world: World, path: Path) -> None:
    started = world.run(path, STAY, "-p", "flock", stdin=-1)
    started.hear("held")
    path.with_name("new").touch()
    path.with_name("new").rename(path)
    assert started.wait() == 4
    assert "removed, replaced" in started.complaint()


@pytest.mark.parametrize("command", ["try", "acquire"])
def test_a_kernel_lock_cannot_be_acquired_for_a_shell(world: World, path: Path, command: str) -> None:
    done = world.do(command, "-p", "flock", path)
    assert done.returncode == 2
    assert "holdfast run -p flock" in done.stderr
    assert not path.exists()


def test_release_leaves_a_file_that_must_stay(world: World, path: Path, holder: int) -> None:
    done = world.do("release", "-p", "flock", path)
    assert done.returncode == 1
    assert f"not removed: held by process {holder} (" in done.stderr
    assert "end that process" in done.stderr
    done = world.do("release", "-p", "flock", "-j", path)
    assert (done.returncode, json.loads(done.stdout)["result"]) == (1, "refused")
    os.kill(holder, signal.SIGTERM)
    eventually(lambda: try_flock(path))
    done = world.do("release", "-p", "flock", "-j", "-v", path)
    assert (done.returncode, json.loads(done.stdout)["result"]) == (0, "not held")
    assert path.exists()


def test_a_status_shows_the_holder(world: World, path: Path, holder: int) -> None:
    done = world.do("status", "-p", "flock", path)
    assert done.returncode == 1
    lines = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert lines["state"] == "held"
    assert lines["holder"].startswith(f"process {holder} (")
    assert lines["tag"] == "deploy"
    assert lines["liveness"] == "alive: the kernel lock on its file is held"
    assert f"process {holder}" in lines["next"]
    assert "waiting" not in lines
    status = json.loads(world.do("status", "-p", "flock", "-j", path).stdout)
    assert [(one["pid"], one["shared"], one["tag"]) for one in status["holders"]] == [(holder, False, "deploy")]
    assert status["record"]["pid"] == holder


def test_a_status_shows_every_reader_and_waiter(world: World, path: Path, reader: int) -> None:
    other = world.run(path, STAY, "-p", "flock", "--shared", stdin=-1)
    other.hear("held")
    waiter = world.start(["flock", path, "true"])
    eventually(lambda: world.do("status", "-p", "flock", path).stdout.find("waiting") > 0)
    done = world.do("status", "-p", "flock", path)
    assert done.returncode == 1
    for pid in (reader, other.pid):
        assert f"process {pid} (" in done.stdout
    assert done.stdout.count(", shared") == 2
    assert f"- process {waiter.pid} (flock " in done.stdout
    done = world.do("status", "-p", "flock", "--shared", path)
    assert done.returncode == 0
    assert "only readers hold it" in done.stdout


def test_wait_tells_readers_from_writers(world: World, path: Path, reader: int) -> None:
    assert world.do("wait", "-n", "-p", "flock", "--shared", path).returncode == 0
    done = world.do("wait", "-w", "0.2", "-p", "flock", path)
    assert done.returncode == 1
    assert "is still held by a reader" in done.stderr
    os.kill(reader, signal.SIGTERM)
    assert world.do("wait", "-w", "10", "-p", "flock", path).returncode == 0


@pytest.mark.parametrize(
    "options",
    [["--shared"], ["-p", "flock", "--stale-after", "60"], ["-p", "flock", "--durable"]],
    ids=lambda options: options[-1],
)
def test_an_option_without_a_meaning_is_refused(world: World, path: Path, options: list[str]) -> None:
    done = world.do("run", *options, path, "--", "true")
    assert done.returncode == 2
    assert "flock" in done.stderr
    assert not path.exists()


def test_without_kernel_locks_no_command_runs(world: World, path: Path) -> None:
    done = world.do("run", "-p", "flock", path, "--", "echo", "ran", env={"HOLDFAST_WITHOUT": "flock"})
    assert (done.returncode, done.stdout) == (3, "")
    assert "no kernel locks" in done.stderr


def test_a_guardian_that_outlives_run_leaves_the_file(world: World, path: Path) -> None:
    """G3, F2: a file that stays is not removed, whoever releases the lock."""
    done = world.do("run", "-p", "flock", "--until", "all", path, "--", "sh", "-c", "sleep 0.2 > /dev/null 2>&1 &")
    assert done.returncode == 0
    eventually(lambda: try_flock(path), what="the release")
    assert world.do("run", "-p", "flock", path, "--", "true").returncode == 0
    assert path.exists()
