"""The command line on record locks: `-p ofd`, `--range`."""

from __future__ import annotations

import fcntl
import json
import os
import struct
from pathlib import Path

import pytest

from cli.support import World, eventually

# The world's environment has no HOLDFAST_OS and no HOLDFAST_WITHOUT: there are kernel locks.
STAY = "import sys; print('held', flush=True); sys.stdin.read()"
LOCK = ("-p", "ofd")
pytestmark = pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="no locks by open file description here")


def is_free(path: Path, start: int = 0, length: int = 0) -> bool:
    with path.open("r+b") as file:
        asked = struct.pack("@hhqqi0q", fcntl.F_WRLCK, 0, start, length, 0)
        return struct.unpack("@hhqqi0q", fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))[0] == fcntl.F_UNLCK


def test_a_command_runs_with_the_lock_and_leaves_the_file(world: World, path: Path) -> None:
    started = world.run(path, STAY, *LOCK, stdin=-1)
    started.hear("held")
    assert not is_free(path)
    told = json.loads(world.do("status", "-j", *LOCK, path).stdout)
    assert (told["result"], told["protocol"], told["liveness"]) == ("held", "ofd", "alive")
    assert told["condition"] == "held", "whatever an empty file may mean by other protocols"
    assert told["holder"]["pid"] in world.mine()
    refused = world.do("run", "-n", *LOCK, path, "--", "true")
    assert refused.returncode == 75
    assert "held by" in refused.stderr
    started.process.stdin.close()  # type: ignore[union-attr]
    eventually(lambda: is_free(path), what="the release")
    assert path.exists()
    assert world.do("status", *LOCK, path).returncode == 0


def test_ls_with_all_shows_an_empty_lock_file_as_held(world: World, path: Path) -> None:
    """Without --all, it is treated like any other empty file."""
    lock, left = path.with_name("a.lock"), path.with_name("left.lock")
    for file in (lock, left):
        file.touch()
        os.utime(file, (1, 1))
    started = world.run(lock, STAY, *LOCK, stdin=-1)
    started.hear("held")
    lines = world.do("ls", "-j", "--all", path.parent).stdout.splitlines()
    told = {one["path"]: one for one in map(json.loads, lines) if one["path"].startswith(f"{path.parent}/")}
    assert len([line for line in lines if f"{path.parent}/" in line]) == len(told)
    found = {Path(name): one["condition"] for name, one in told.items()}
    assert found == {lock: "held", left: "empty"}
    assert told[str(lock)]["protocol"] == "ofd"
    assert told[str(lock)]["holder"]["pid"] in world.mine()
    started.process.stdin.close()  # type: ignore[union-attr]
    assert started.wait() == 0


def test_a_lock_on_an_empty_file_is_shown_without_a_note(world: World, tmp_path: Path) -> None:
    """The content does not name its protocol, but the kernel's lock does."""
    path = tmp_path / "l.lock"
    started = world.run(path, STAY, *LOCK, stdin=-1)
    started.hear("held")
    os.utime(path, (1, 1))  # as of a file that nobody is about to write
    seen = world.do("status", path)
    assert (seen.returncode, seen.stdout.splitlines()[0]) == (1, f"lock      {path} (ofd)")
    assert "note " not in seen.stdout


def test_an_unlocked_empty_file_is_shown_as_free_for_ofd(world: World, path: Path) -> None:
    path = path.with_name("left.lock")
    path.touch()
    os.utime(path, (1, 1))
    assert "free for -p flock and -p ofd" in world.do("status", path).stdout
    assert world.do("run", "-n", *LOCK, path, "--", "true").returncode == 0


def test_a_range_is_locked_and_the_rest_is_not(world: World, path: Path) -> None:
    started = world.run(path, STAY, *LOCK, "--range", "100:50", stdin=-1)
    started.hear("held")
    assert is_free(path, 0, 100)
    assert not is_free(path, 149, 1)
    assert world.do("run", "-n", *LOCK, "--range", "150:0", path, "--", "true").returncode == 0
    assert world.do("run", "-n", *LOCK, "--range=149:1", path, "--", "true").returncode == 75
    assert world.do("wait", "-n", *LOCK, "--range", "0:100", path).returncode == 0
    assert world.do("wait", "-n", *LOCK, path).returncode == 1


def test_readers_share_a_record_lock(world: World, path: Path) -> None:
    started = world.run(path, STAY, *LOCK, "--shared", stdin=-1)
    started.hear("held")
    assert world.do("run", "-n", *LOCK, "--shared", path, "--", "true").returncode == 0
    assert world.do("run", "-n", *LOCK, path, "--", "true").returncode == 75


@pytest.mark.parametrize("command", [("try",), ("acquire",)])
def test_a_shell_cannot_hold_a_record_lock(world: World, path: Path, command: tuple[str, ...]) -> None:
    refused = world.do(*command, *LOCK, path)
    assert refused.returncode == 2
    assert "holdfast run -p ofd" in refused.stderr


@pytest.mark.parametrize("wrong", ["5", "a:b", "-1:2", "1:2:3", ":", "1:"])
def test_a_malformed_range_is_a_usage_error(world: World, path: Path, wrong: str) -> None:
    assert world.do("run", *LOCK, f"--range={wrong}", path, "--", "true").returncode == 2
    assert not path.exists()


def test_a_range_is_an_option_of_this_protocol_only(world: World, path: Path) -> None:
    refused = world.do("run", "-p", "flock", "--range", "0:1", path, "--", "true")
    assert refused.returncode == 2
    assert "--range is an option of -p ofd" in refused.stderr


def test_a_held_record_lock_cannot_be_broken(world: World, path: Path) -> None:
    started = world.run(path, STAY, *LOCK, stdin=-1)
    started.hear("held")
    refused = world.do("break", *LOCK, path)
    assert refused.returncode == 1
    assert "ends with its holder" in refused.stderr
    assert path.exists()


def test_a_guardian_that_outlives_run_keeps_the_lock_and_leaves_the_file(world: World, path: Path) -> None:
    """G3, F2, F10: the guardian knows from its own descriptor which kind of lock it has."""
    done = world.do("run", *LOCK, "--until", "all", path, "--", "sh", "-c", "sleep 0.5 > /dev/null 2>&1 &")
    assert done.returncode == 0
    assert not is_free(path)
    eventually(lambda: is_free(path), what="the release")
    assert path.exists()


def test_a_record_lock_is_seen_and_not_broken_whatever_protocol_is_named(world: World, path: Path) -> None:
    """To every protocol but ofd, the file has no record of a holder, and counts as held for ever."""
    started = world.hold(path, *LOCK)
    started.hear("held")
    told = json.loads(world.do("status", "-j", path).stdout)
    assert (told["result"], told["protocol"]) == ("held", "ofd")
    assert told["holder"]["pid"] in world.mine()
    for protocol in ("sema", "semats"):
        refused = world.do("break", "-y", "-p", protocol, path)
        assert refused.returncode != 0
        assert path.exists()
    refused = world.do("break", "-y", "-p", "sema", path)
    assert "has record locks on it" in refused.stderr
    started.process.stdin.close()  # type: ignore[union-attr]
    assert started.process.wait() == 0
    assert world.do("break", "-y", "-p", "sema", path).returncode == 0
    assert not path.exists()
