"""`holdfast doctor`: its report about a directory, and its exit status (doctor.py)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from cli.support import HOLDFAST, World, eventually
from cli.test_errors import HOSTILE, without_privileges
from cli.test_ls import on_terminal

WIDE, NARROW = 100, 30


def undisturbed(done: CompletedProcess[str]) -> CompletedProcess[str] | None:
    """The result; None while other processes of this user have all inotify instances."""
    return None if "128 of 128 inotify instances" in done.stdout else done


def test_a_good_directory_is_called_good_and_left_as_it_was(world: World, tmp_path: Path) -> None:
    done = eventually(lambda: undisturbed(world.do("doctor")))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.startswith("all promises hold here")
    assert str(tmp_path) in done.stdout
    assert [*tmp_path.iterdir()] == []
    answer = json.loads(world.do("doctor", "-j", tmp_path).stdout)
    assert (answer["directory"], answer["verdict"] in ("good", "note")) == (str(tmp_path), True)
    assert answer["abilities"]["guard"] is True
    assert {"name", "level", "text", "means"} == {*answer["findings"][0]}
    assert {one["name"] for one in answer["findings"]} >= {"filesystem", "permissions", "guard", "events", "space"}


def test_a_weaker_directory_is_called_weaker(world: World, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    done = world.do("doctor")
    assert done.returncode == 1
    assert "sticky bit" in done.stdout
    assert world.do("doctor", "-q").stdout == ""
    tmp_path.chmod(0o755)
    done = world.do("doctor", env={"HOLDFAST_WITHOUT": "flock,events"})
    assert done.returncode == 1
    assert "no kernel locks" in done.stdout
    assert "poll" in done.stdout
    assert world.do("doctor", env={"HOLDFAST_OS": "generic"}).returncode == 1
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("kind", ["missing", "file", "closed", "proc"])
def test_an_unusable_directory_is_reported_with_status_3(world: World, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    if kind == "file":
        place.touch()
    elif kind == "closed":
        place.mkdir(mode=0o555)
    done = world.do("doctor", "/proc" if kind == "proc" else place, preexec_fn=without_privileges)
    assert (done.returncode, done.stderr) == (3, "")
    assert "cannot be used" in done.stdout
    wanted = {"missing": "create it", "file": "Not a directory", "closed": "Permission denied", "proc": "another"}
    assert wanted[kind] in done.stdout
    answer = json.loads(world.do("doctor", "-j", place, preexec_fn=without_privileges).stdout)
    assert kind == "proc" or (answer["verdict"], answer["abilities"]) == ("unusable", None)


def test_a_leftover_that_weakens_a_promise_is_reported(world: World, tmp_path: Path) -> None:
    (tmp_path / "a.lock.reclaim").mkdir()
    os.utime(tmp_path / "a.lock.reclaim", (1, 1))
    done = world.do("doctor")
    assert done.returncode == 1
    assert "a.lock.reclaim" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["a.lock.reclaim"]


def test_locks_of_dead_holders_are_noted_and_left(world: World, tmp_path: Path) -> None:
    """Including one that `clean` would keep: its process has ended, but its rule does not call it stale yet."""
    place = tmp_path / "place"
    place.mkdir()
    for number in range(4):
        shell = world.sh('$H try --no-keeper "$1" && echo held', place / f"{number}.lock")
        shell.hear("held")
        shell.wait()
    done = world.do("doctor", place)
    assert done.returncode == 0, done
    assert "4 locks, dead or stale: 0.lock, 1.lock, 2.lock and 1 more" in done.stdout
    assert "nothing was left here" not in done.stdout
    assert len([*place.iterdir()]) == 4
    for path in place.iterdir():
        path.unlink()
    (place / "a.lock").write_text(f"pid={shell.pid}\ntimestamp={int(time.time())}\n")
    done = world.do("doctor", place)
    assert "1 lock whose holder may be dead: a.lock" in done.stdout, done


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="takes a mount namespace")
def test_a_place_without_proc_is_called_weaker(world: World) -> None:
    """Without /proc, a dead holder's lock is not taken over at once, which holdfast promises elsewhere."""
    words = ["unshare", "--mount", "sh", "-c", 'umount -l /proc && exec "$@"', "sh", *HOLDFAST, "doctor", "-j"]
    started = world.start(words)
    answer = json.loads(started.rest())
    assert (started.wait(), answer["verdict"]) == (1, "weaker")
    (found,) = [one for one in answer["findings"] if one["name"] == "processes"]
    assert "never proven dead" in found["means"]


def test_a_hostile_directory_does_not_reach_the_terminal(world: World, tmp_path: Path) -> None:
    names = [text.replace(b"/", b"").replace(b"\0", b"")[:200] for text in HOSTILE.values()]
    places = [os.path.join(os.fsencode(tmp_path), b"%d " % number + name) for number, name in enumerate(names)]
    for place in places:
        os.mkdir(place)
    every = world.each(["doctor", *option, place] for place in places for option in ([], ["-j"]))
    for place, done, told in zip(places, every[::2], every[1::2], strict=True):
        assert done.returncode in (0, 1)
        assert all(character.isprintable() for line in done.stdout.split("\n") for character in line)
        assert os.fsencode(json.loads(told.stdout)["directory"]) == place


def test_two_mounts_of_one_directory_are_tried_against_each_other(world: World, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "again").symlink_to("one")
    done = world.do("doctor", "one", "--peer", "again")
    assert "each sees the other's kernel lock (flock)" in done.stdout
    done = world.do("doctor", "one", "--peer", "two")
    assert done.returncode == 3
    assert "different directories" in done.stdout
    assert [*tmp_path.rglob(".holdfast*")] == []


def test_two_machines_talk_through_the_directory_and_both_report(world: World, tmp_path: Path) -> None:
    host = os.uname().nodename
    listener = world.start([*HOLDFAST, "doctor", "--listen", "-j"])
    found = eventually(lambda: [*tmp_path.glob(".holdfast-*-listen.tmp")])
    done = world.do("doctor", "-j", "--with", host)
    told = [json.loads(text)["findings"] for text in (done.stdout, listener.rest())]
    between = [[(one["name"], one["level"]) for one in findings if "between" in one["name"]] for findings in told]
    assert between[0] == between[1]
    assert ("guard between", "good") in between[0]
    assert len(found) == 1
    assert [*tmp_path.iterdir()] == []


def test_a_listener_that_is_interrupted_leaves_nothing(world: World, tmp_path: Path) -> None:
    listener = world.start([*HOLDFAST, "doctor", "--listen"])
    eventually(lambda: [*tmp_path.glob(".holdfast-*-listen.tmp")])
    listener.signal(signal.SIGINT)
    assert listener.wait() == -signal.SIGINT
    assert [*tmp_path.iterdir()] == []


def test_a_peer_that_does_not_answer_or_exist_is_reported_with_status_3(world: World, tmp_path: Path) -> None:
    done = world.do("doctor", "--with", "no-such-host", "-w", "0")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no-such-host does not listen here" in done.stderr
    done = world.do("doctor", "--peer", "mistyped")
    assert (done.returncode, done.stdout) == (3, "")  # which says nothing about the directory here
    assert done.stderr.startswith("holdfast: mistyped: ")
    done = world.do("doctor", "--listen", "-w", "0")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no other machine came" in done.stderr
    assert [*tmp_path.iterdir()] == []


def test_no_line_is_wider_than_the_terminal(world: World, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    text = on_terminal(world, WIDE, "doctor", NO_COLOR="1").rest()
    assert max(map(len, text.splitlines()[1:])) <= WIDE
    assert "\x1b" not in text
    assert "\x1b[33m" in on_terminal(world, WIDE, "doctor").rest()
    assert on_terminal(world, NARROW, "doctor").wait() == 1


@pytest.mark.parametrize("words", [["a", "b"], ["--no-such"], ["--js"], ["--listen", "--peer", "x"]], ids=" ".join)
def test_a_mistake_in_the_call_is_reported_with_status_2(world: World, words: list[str]) -> None:
    done = world.do("doctor", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: holdfast doctor" in done.stderr


def test_leftover_locks_of_other_programs_are_named(world: World, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    for number in range(5):
        (place / f"{number}.lock").write_text("999999999\n")
    done = world.do("doctor", place)
    assert done.returncode == 0, done
    assert "a lock of dotlock, whose holder seems to have ended: 0.lock" in " ".join(done.stdout.split())
    assert "and 2 more such locks" in done.stdout
