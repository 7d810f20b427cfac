"""The command line on locks that are directories: `-p proper-lockfile`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.support import PATIENCE, World, eventually
from holdfast import Lock
from holdfast._platform import environment
from holdfast.cli import release

STAY = "import sys; print('held', flush=True); sys.stdin.read()"
LOCK = ("-p", "proper-lockfile")


@pytest.fixture
def target(path: Path) -> Path:
    found = path.with_name("state.json")
    found.touch()
    return found


@pytest.fixture
def lock(target: Path) -> Path:
    return target.with_name("state.json.lock")


def age(lock: Path, seconds: float = 11) -> None:
    then = time.time() - seconds
    os.utime(lock, (then, then))


def test_a_command_runs_with_the_lock_and_leaves_nothing(world: World, target: Path, lock: Path) -> None:
    done = world.do("run", *LOCK, target, "--", "sh", "-c", 'test -d "$HOLDFAST_LOCK" && echo "$HOLDFAST_LOCK"')
    assert (done.returncode, done.stdout.strip()) == (0, str(lock))
    assert not lock.exists()


def test_a_holder_that_uses_holdfast_is_named(world: World, target: Path, lock: Path) -> None:
    started = world.run(target, STAY, *LOCK, stdin=-1)
    started.hear("held")
    for place in (target, lock):
        told = json.loads(world.do("status", "-j", place).stdout)
        assert (told["result"], told["protocol"], told["holder"]["pid"]) == ("held", "proper-lockfile", started.pid)
    (listed,) = [json.loads(line) for line in world.do("ls", "-j", target.parent).stdout.splitlines()]
    assert (listed["condition"], listed["holder"]["pid"]) == ("held", started.pid)
    refused = world.do("run", "-n", *LOCK, target, "--", "true")
    assert refused.returncode == 75
    assert f"process {started.pid}" in refused.stderr
    assert world.do("wait", "-w", 0, *LOCK, target).returncode == 1


def test_a_lock_of_another_implementation_is_shown_with_its_age(world: World, target: Path, lock: Path) -> None:
    lock.mkdir()
    told = world.do("status", target)
    assert told.returncode == 1
    assert "whose time says when its holder last refreshed it" in told.stdout
    assert "proper-lockfile would call it stale at" in told.stdout
    refused = world.do("try", *LOCK, target)
    assert refused.returncode == 1
    assert re.search(r"the lock does not name its holder, and was refreshed \d s ago", refused.stderr)
    age(lock)
    assert "stale" in world.do("ls", target.parent).stdout
    assert world.do("status", target).returncode == 0
    assert world.do("run", "-n", *LOCK, target, "--", "true").returncode == 0
    assert not lock.exists()


def test_a_shell_holds_a_lock_through_its_keeper(world: World, target: Path, lock: Path) -> None:
    shell = world.sh('$H try -p proper-lockfile "$1" && echo held; read line; $H release -p proper-lockfile "$1"; '
                     "echo released; read line", target, stdin=subprocess.PIPE)  # fmt: skip
    shell.hear("held")
    assert lock.is_dir()
    refused = world.do("release", *LOCK, target)
    assert refused.returncode == 1
    assert "it was acquired for process" in refused.stderr
    assert shell.process.stdin is not None
    os.write(shell.process.stdin.fileno(), b"\n")
    shell.hear("released")
    eventually(lambda: not lock.exists(), what="the release")


@pytest.mark.needs("linux")
def test_the_next_holder_is_not_taken_for_the_keeper_that_was_ended(
    world: World, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The filesystem reuses the inode number of a removed directory, and the next lock names its holder no better."""
    target = disk / "state.json"
    target.touch()
    lock = Lock(target, protocol="proper-lockfile")
    shell = world.sh('$H try -p proper-lockfile "$1" && echo held; read line', target, stdin=subprocess.PIPE)
    shell.hear("held")
    next_holds = []

    def end(watched: int, real: Callable[[int], bool] = release._end_process) -> bool:
        ended = real(watched)
        next_holds.append(lock.acquire(timeout=PATIENCE))
        return ended

    monkeypatch.setattr(release, "_end_process", end)
    assert release.end_keeper(lock, environment().identity(shell.pid))
    next_holds[0].ensure_held()
    next_holds[0].release()


def test_a_shell_without_a_keeper_cannot_hold_a_lock(world: World, target: Path, lock: Path) -> None:
    refused = world.do("try", "--no-keeper", *LOCK, target)
    assert refused.returncode == 2
    assert "nobody keeps fresh" in refused.stderr
    assert not lock.exists()


def test_a_stale_lock_is_cleaned_only_with_approval_and_broken_by_its_id(
    world: World, target: Path, lock: Path
) -> None:
    lock.mkdir()
    age(lock)
    assert "kept proper-lockfile lock" in world.do("clean", "-y", target.parent).stdout
    assert lock.is_dir()
    assert world.do("clean", "-y", "--approve-stale", target.parent).returncode == 0
    assert not lock.exists()
    lock.mkdir()
    age(lock)
    assert world.do("clean", "-r", "-y", "--approve-stale", target.parent).returncode == 0  # it was entered
    assert not lock.exists()
    lock.mkdir()
    its_id = json.loads(world.do("status", "-j", lock).stdout)["id"]
    assert world.do("break", "--id", its_id, lock).returncode == 0
    assert not lock.exists()


def test_links_are_followed_unless_that_is_refused(world: World, target: Path) -> None:
    link = target.with_name("link.json")
    link.symlink_to(target)
    told = world.do("run", *LOCK, link, "--", "sh", "-c", "echo $HOLDFAST_LOCK")
    assert told.stdout.strip() == f"{target}.lock"
    told = world.do("run", *LOCK, "--realpath", "no", link, "--", "sh", "-c", "echo $HOLDFAST_LOCK")
    assert told.stdout.strip() == f"{link}.lock"
    missing = world.do("run", *LOCK, target.with_name("missing"), "--", "true")
    assert missing.returncode != 0
    assert "--realpath no" in missing.stderr
    assert world.do("run", "--realpath", "maybe", *LOCK, target, "--", "true").returncode == 2
    assert "--realpath is an option of -p proper-lockfile" in world.do("status", "--realpath", "no", target).stderr


def test_a_shell_that_meets_its_own_lock_is_told_the_command_that_releases_it(world: World, target: Path) -> None:
    """The lock names no process; its keeper is called after the shell. Without the same realpath it is another lock."""
    for option, realpath, place in (("", "", target), ("--realpath no", " --realpath no", target.with_name("none"))):
        script = f"""
            $H try -q -p proper-lockfile {option} "$1"
            $H try -p proper-lockfile {option} "$1"; echo $?
            $H run -w 3 -p proper-lockfile {option} "$1" -- true; echo $?
            $H release -p proper-lockfile {option} "$1"; echo $?
        """
        done = world.shell(script, place)
        assert done.stdout.split() == ["1", "75", "0"], done
        advice = "is the shell that has called this. To release its lock: holdfast release -p proper-lockfile"
        assert done.stderr.count(f"{advice}{realpath} {place}\n") == 3, done.stderr  # including that of a wait


def test_a_lock_of_another_shell_is_not_taken_for_the_callers_own(world: World, target: Path) -> None:
    shell = world.sh('$H try -p proper-lockfile "$1" && echo held; read line', target, stdin=subprocess.PIPE)
    shell.hear("held")
    done = world.shell('$H try -p proper-lockfile "$1"; echo $?', target)
    assert done.stdout == "1\n"
    assert "has called this" not in done.stderr
    assert "ancestor" not in done.stderr
