"""`holdfast watch` and `--record`: events of lock files, reported as they happen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from cli.support import HOLDFAST, PATIENCE, Started, World, dormant, ended, eventually

FIELDS = ["kind", "time", "path", "protocol", "pid", "host", "tag", "command", "waited", "held", "recovered_from"]


def watch(world: World, *words: object) -> Started:
    """A watch that has finished its first look and waits for events."""
    started = world.start([*HOLDFAST, "watch", *words])
    eventually(lambda: dormant(started.pid))
    return started


def heard(watching: Started, kind: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(watching.hear(f'{{"kind": "{kind}"'))
    return found


def recorded(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_lock_held_at_the_start_is_reported_as_a_first_look(world: World, path: Path, held: int) -> None:
    one = heard(world.start([*HOLDFAST, "watch", path]), "held")
    assert [*one] == [*FIELDS, "first_look"]
    assert (one["first_look"], one["pid"], one["path"], one["protocol"]) == (True, held, str(path), "sema")


def test_an_event_is_written_at_once(world: World, path: Path) -> None:
    watching = watch(world, world.directory)
    holder = world.hold(path, "-t", "why")
    acquired = heard(watching, "acquired")
    assert (acquired["pid"], acquired["tag"], acquired["path"]) == (holder.pid, "why", str(path))
    assert holder.process.stdin is not None
    holder.process.stdin.close()
    assert heard(watching, "released")["pid"] == holder.pid


def test_a_killed_holder_is_reported_at_once(world: World, path: Path) -> None:
    watching = watch(world, world.directory)
    holder = world.start([*HOLDFAST, "acquire", "--no-keeper", "--owner-pid", os.getpid(), path])
    holder.wait()
    heard(watching, "acquired")
    other = world.directory / "other"
    script = f"import holdfast; lock = holdfast.Lock({str(other)!r}).acquire(); print('in', flush=True); input()"
    victim = world.start([HOLDFAST[0], "-c", script], stdin=subprocess.PIPE)
    victim.hear("in")
    victim.signal(signal.SIGKILL)
    assert heard(watching, "stale")["pid"] == victim.pid


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_watch_without_a_traceback(world: World, number: int) -> None:
    watching = watch(world, world.directory)
    watching.signal(number)
    assert watching.wait() == -number
    assert watching.complaint() == ""


def test_watch_ends_when_its_reader_has_gone(world: World) -> None:
    watching = watch(world, world.directory)
    assert watching.process.stdout is not None
    watching.process.stdout.close()
    eventually(lambda: ended(watching.pid))
    assert watching.wait() == -signal.SIGPIPE
    assert watching.complaint() == ""


def test_watch_ends_after_its_seconds(world: World) -> None:
    done = world.do("watch", "--seconds", "0.05", world.directory)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_unwatchable_path_is_an_error(world: World) -> None:
    done = world.do("watch", world.directory / "nowhere" / "l")
    assert done.returncode == 3
    assert "nowhere" in done.stderr


@pytest.mark.parametrize("environment", [{"HOLDFAST_WITHOUT": "events"}, {"HOLDFAST_OS": "generic"}])
def test_without_events_changes_are_seen(world: World, path: Path, environment: dict[str, str]) -> None:
    watching = world.start([*HOLDFAST, "watch", world.directory], env=environment)
    eventually(lambda: dormant(watching.pid))
    world.hold(path, env=environment).hear("held")
    assert heard(watching, "acquired")["path"] == str(path)


def test_a_tag_with_line_ends_and_escapes_does_not_break_the_lines(world: World, path: Path) -> None:
    tag = "\x1b[31m\u202e </script> \N{SNOWMAN} \udc80".encode("utf-8", "surrogateescape")
    watching = watch(world, world.directory)
    world.start([*HOLDFAST, "run", "-t", tag, path, "--", "sleep", "60"])
    found = heard(watching, "acquired")
    assert "</script>" in str(found["tag"])
    assert b"\x1b" not in watching.text


def test_several_processes_that_record_keep_their_lines_apart(world: World, path: Path) -> None:
    file = world.directory / "events.jsonl"
    tag = "x" * 5000
    many = [
        world.start([*HOLDFAST, "run", "--record", file, "-t", tag, world.directory / f"{n}.lock", "--", "true"])
        for n in range(6)
    ]
    assert [one.wait() for one in many] == [0] * 6
    found = recorded(file)
    assert sorted(str(one["kind"]) for one in found) == ["acquired"] * 6 + ["released"] * 6
    assert {one["tag"] for one in found} == {tag}
    assert {one["command"] for one in found} == {"true"}


def test_a_wait_of_run_is_recorded(world: World, path: Path, held: int) -> None:
    file = world.directory / "events.jsonl"
    done = world.do("run", "--record", file, "-w", "0.1", path, "--", "true")
    assert done.returncode == 75
    found = recorded(file)
    assert [one["kind"] for one in found] == ["waiting", "gave-up"]
    assert [*found[0]] == FIELDS
    assert float(str(found[1]["waited"])) >= 0.1


def test_a_loss_is_recorded(world: World, path: Path) -> None:
    file = world.directory / "events.jsonl"
    holder = world.start([*HOLDFAST, "run", "--record", file, path, "--", "sleep", "60"])
    eventually(lambda: file.exists() and file.read_text())
    path.unlink()
    assert holder.wait(PATIENCE) == 4
    assert "lost" in [one["kind"] for one in recorded(file)]


def test_no_command_runs_if_its_record_cannot_be_opened(world: World, path: Path) -> None:
    for command in (["run", "--record", world.directory, path, "--", "touch", "ran"], ["watch", "--record", "/", "."]):
        done = world.do(*command)
        assert done.returncode == 3
        assert "Is a directory" in done.stderr
    assert not (world.directory / "ran").exists()
    assert not path.exists()


@pytest.mark.parametrize(
    ("words", "file"),
    [("run l -- touch ran", "./l"), ("run --slots 2 l -- touch ran", "l.1.lock"), ("watch l", "l"), ("watch l", "")],
)
def test_the_lock_file_itself_is_no_record(world: World, words: str, file: str) -> None:
    """It would be a lock that nobody can acquire any more."""
    command, *others = words.split()
    done = world.do(command, "--record", file, *others)
    assert (done.returncode, done.stdout) == (3, "")
    assert ("is the lock file; the events need a file of their own" if file else "the path is empty") in done.stderr
    assert [*world.directory.iterdir()] == []


def test_a_record_that_cannot_be_written_is_named(world: World, path: Path, held: int) -> None:
    """Once, though many events are missing; the running command is not affected."""
    no_space = "holdfast: /dev/full: No space left on device"
    free = path.with_name("free")
    done = world.do("run", "--record", "/dev/full", free, "--", "sh", "-c", "exit 7")
    assert (done.returncode, done.stderr) == (7, f"{no_space}; events are missing from it\n")
    done = world.do("watch", "--record", "/dev/full", "--seconds", "0.01", path)
    assert (done.returncode, done.stderr) == (3, f"{no_space}\n")


def test_record_gets_the_events_that_watch_prints(world: World, path: Path, held: int) -> None:
    file = world.directory / "events.jsonl"
    for _ in range(2):
        done = world.do("watch", "--seconds", "0.01", "--record", file, path)
        assert done.stdout.splitlines()[0] == file.read_text().splitlines()[-1]
    assert len(recorded(file)) == 2
