"""semats, by a stand-in with its races: it renames over any lock, after a look that found none."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Lock, LockLost
from process.foreign.play import Player
from process.support import eventually, polling

Play = Callable[..., Player]
LONG_AGO = 7200
SECONDS = float(os.environ.get("HOLDFAST_TEST_SECONDS", "1.5"))
ROUNDS = int(100 * SECONDS)


def ours_at(path: str) -> bool:
    """Whether the path has a lock file of holdfast."""
    try:
        return b"holdfast=" in Path(path).read_bytes()
    except FileNotFoundError:
        return False


def temporary(path: str) -> Path:
    """The only temporary file of semats."""
    (found,) = Path(path).parent.glob("*.tmp")
    return found


def test_a_rival_that_has_yet_to_write_sees_our_lock(play: Play, path: str) -> None:
    """Y1: its temporary file is younger than our lock file, so it sees ours."""
    theirs, ours = play("semats", path), play("ours", path, "semats")
    theirs.stop_at("temporary", "take")
    assert ours.ask("take") == "acquired"
    theirs.go()
    theirs.expect("held")
    assert ours.ask("lost") == "kept"


def test_a_rival_that_is_about_to_look_is_waited_for(play: Play, path: str) -> None:
    """Y1: its temporary file is older than our lock file; nobody gets in before it has looked and backed off."""
    theirs, ours = play("semats", path), play("ours", path, "semats")
    theirs.stop_at("access", "take")
    ours.say("acquire")
    eventually(lambda: ours_at(path), what="our lock file")
    assert ours.silent()
    theirs.go()
    heard = theirs.hear()
    # Its patience is limited: our lock file is given back for a moment now and then, and it may look just then.
    if heard == "acquired":
        theirs.ask("release")
    ours.expect("acquired")
    assert ours.ask("lost") == "kept"


def test_a_rival_that_is_about_to_rename_is_waited_for(play: Play, path: str) -> None:
    """Y1: it looked before our lock file existed, and replaces it: then it is inside, and we are not."""
    theirs, ours = play("semats", path), play("ours", path, "semats")
    theirs.stop_at("rename", "take")
    ours.say("acquire")
    eventually(lambda: ours_at(path), what="our lock file")
    theirs.go()
    theirs.expect("acquired")
    eventually(lambda: polling(ours.pid), what="the wait")
    assert ours.silent()
    assert Lock(path, protocol="semats").status().holder.pid == theirs.pid
    theirs.ask("release")
    ours.expect("acquired")


def test_a_stopped_rival_does_not_stop_the_others(play: Play, path: str) -> None:
    """Y2: an old temporary file counts as abandoned; should its process go on after all, the holder is told."""
    theirs, told = play("semats", path), []
    theirs.stop_at("rename", "take")
    lock = Lock(path, protocol="semats", timeout=0, on_lost=told.append)
    assert lock.try_acquire() is None
    assert not os.path.exists(path)
    long_ago = time.time() - 61
    os.utime(temporary(path), (long_ago, long_ago))
    hold = lock.acquire()
    hold.ensure_held()
    theirs.go()
    theirs.expect("acquired")
    record = Path(path).read_bytes()
    assert hold.lost
    with pytest.raises(LockLost):
        hold.ensure_held()
    with pytest.raises(LockLost):
        hold.release()
    assert len(told) == 1
    assert Path(path).read_bytes() == record


def test_the_temporary_file_of_a_dead_process_is_not_waited_for(play: Play, path: str) -> None:
    """Y2: for a second it may be another container's; after that it counts as abandoned."""
    theirs = play("semats", path)
    theirs.stop_at("rename", "take")
    theirs.kill(signal.SIGKILL)
    theirs.wait()
    Lock(path, protocol="semats").acquire(timeout=20).release()
    second_ago = time.time() - 1
    os.utime(temporary(path), (second_ago, second_ago))
    Lock(path, protocol="semats").acquire(timeout=0).release()
    assert temporary(path).exists()  # not ours to remove


def test_a_temporary_file_dated_in_the_future_stops_no_contender(play: Play, path: str) -> None:
    """Y2: after the clock was set back, its age proves nothing."""
    theirs = play("semats", path)
    theirs.stop_at("rename", "take")
    tomorrow = time.time() + 86400
    os.utime(temporary(path), (tomorrow, tomorrow))
    Lock(path, protocol="semats").acquire(timeout=0).release()


def test_a_living_holder_of_ours_is_not_stolen_from(play: Play, path: str) -> None:
    """The rule of semats also asks for a dead process, and ours lives."""
    theirs = play("semats", path, -1)
    with Lock(path, protocol="semats", heartbeat=0) as hold:
        assert theirs.ask("take") == "held"
        hold.ensure_held()
