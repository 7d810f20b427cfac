"""semats, by a stand-in with its races: a rename over whatever is there, after a look that found nothing there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Lock, LockLost
from process.foreign.play import Player, stale_rounds, storm
from process.support import eventually, polling

Play = Callable[..., Player]
LONG_AGO = 7200
SECONDS = float(os.environ.get("HOLDFAST_TEST_SECONDS", "1.5"))
ROUNDS = int(100 * SECONDS)


@pytest.fixture
def gone(play: Play) -> int:
    """The pid of a process that has ended."""
    player = play("semats", "-")
    player.kill()
    player.wait()
    return player.pid


def plant(path: str, pid: int) -> None:
    """A lock that is stale by the rule of semats."""
    Path(path).write_text(f"pid={pid}\ntimestamp={int(time.time()) - LONG_AGO}\n")


def ours_at(path: str) -> bool:
    """Whether a lock file of holdfast lies there."""
    try:
        return b"holdfast=" in Path(path).read_bytes()
    except FileNotFoundError:
        return False


def temporary(path: str) -> Path:
    """The one temporary file of semats."""
    (found,) = Path(path).parent.glob("*.tmp")
    return found


def test_neither_enters_while_the_other_holds(play: Play, path: str) -> None:
    theirs, ours = play("semats", path), play("ours", path, "semats")
    assert theirs.ask("take") == "acquired"
    assert ours.ask("take") == "held"
    assert theirs.ask("release") == "released"
    assert ours.ask("take") == "acquired"
    assert theirs.ask("take") == "held"
    assert theirs.ask("release") == "denied"  # its own rule, which our pid serves
    assert ours.ask("release") == "released"
    assert theirs.ask("take") == "acquired"


def test_a_release_of_theirs_ends_our_wait(play: Play, path: str) -> None:
    theirs, ours = play("semats", path), play("ours", path, "semats")
    assert theirs.ask("take") == "acquired"
    ours.say("acquire")
    eventually(lambda: polling(ours.pid), what="the wait")
    theirs.ask("release")
    ours.expect("acquired")


def test_a_rival_that_has_yet_to_write_sees_our_lock(play: Play, path: str) -> None:
    """Y1: its temporary file is younger than our lock file, so it sees that."""
    theirs, ours = play("semats", path), play("ours", path, "semats")
    theirs.stop_at("temporary", "take")
    assert ours.ask("take") == "acquired"
    theirs.go()
    theirs.expect("held")
    assert ours.ask("lost") == "kept"


def test_a_rival_that_is_about_to_look_is_waited_for(play: Play, path: str) -> None:
    """Y1: its temporary file is older than our lock file; nobody is let in before it has looked and backed off."""
    theirs, ours = play("semats", path), play("ours", path, "semats")
    theirs.stop_at("access", "take")
    ours.say("acquire")
    eventually(lambda: ours_at(path), what="our lock file")
    assert ours.silent()
    theirs.go()
    heard = theirs.hear()
    # Patience has its end: our lock file is given back for a moment now and then, and it may look just then.
    if heard == "acquired":
        theirs.ask("release")
    ours.expect("acquired")
    assert ours.ask("lost") == "kept"


def test_a_rival_that_is_about_to_rename_is_waited_for(play: Play, path: str) -> None:
    """Y1: it has looked before our lock file was there, and replaces it: then it is inside, and we are not."""
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


def test_a_rival_that_is_stopped_does_not_stop_the_others(play: Play, path: str) -> None:
    """Y2: an old temporary file is nobody's; and should it come back all the same, the holder is told."""
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
    """Y2: for a second it may be another container's, then it is nobody's."""
    theirs = play("semats", path)
    theirs.stop_at("rename", "take")
    theirs.kill(signal.SIGKILL)
    theirs.wait()
    Lock(path, protocol="semats").acquire(timeout=20).release()
    second_ago = time.time() - 1
    os.utime(temporary(path), (second_ago, second_ago))
    Lock(path, protocol="semats").acquire(timeout=0).release()
    assert temporary(path).exists()  # not ours to remove


def test_a_temporary_file_from_the_future_stops_no_contender(play: Play, path: str) -> None:
    """Y2: after the clock was set back, its age says nothing."""
    theirs = play("semats", path)
    theirs.stop_at("rename", "take")
    tomorrow = time.time() + 86400
    os.utime(temporary(path), (tomorrow, tomorrow))
    Lock(path, protocol="semats").acquire(timeout=0).release()


@pytest.mark.parametrize("step", ["unlink", "rename"])
def test_a_takeover_survives_their_removal_of_the_stale_lock(play: Play, path: str, gone: int, step: str) -> None:
    """Stopped between its look and its unlink, it finds us settling; or at its rename, after the unlink."""
    plant(path, gone)
    theirs, ours = play("semats", path), play("ours", path, "semats", 2)
    theirs.stop_at(step, "take")
    ours.say("acquire")
    eventually(lambda: ours_at(path), what="the takeover")
    theirs.go()
    theirs.expect("acquired")
    eventually(lambda: polling(ours.pid), what="the wait")
    assert ours.silent()
    theirs.ask("release")
    ours.expect("acquired")
    assert ours.ask("lost") == "kept"


def test_a_removal_of_a_stale_lock_far_too_late_is_noticed(play: Play, path: str, gone: int) -> None:
    plant(path, gone)
    theirs = play("semats", path)
    theirs.stop_at("unlink", "take")
    hold = Lock(path, protocol="semats").acquire(timeout=5)
    theirs.go()
    theirs.expect("acquired")
    with pytest.raises(LockLost):
        hold.release()
    assert Lock(path, protocol="semats").status().holder.pid == theirs.pid


def test_a_living_holder_of_ours_is_not_stolen_from(play: Play, path: str) -> None:
    """Their rule asks for a dead process, too, and ours lives."""
    theirs = play("semats", path, -1)
    with Lock(path, protocol="semats", heartbeat=0) as hold:
        assert theirs.ask("take") == "held"
        hold.ensure_held()


def test_a_dead_holder_of_ours_is_recovered_before_their_hour(play: Play, path: str) -> None:
    holder = play("ours", path, "semats")
    assert holder.ask("take") == "acquired"
    holder.kill(signal.SIGKILL)
    holder.wait()
    theirs = play("semats", path)
    assert theirs.ask("take") == "held"
    hold = Lock(path, protocol="semats").acquire(timeout=0)
    assert hold.recovered_from.pid == holder.pid
    hold.release()
    assert theirs.ask("take") == "acquired"


@pytest.mark.parametrize(("protocol", "beside"), [("semats", 0), ("sema", 0), ("sema", 5000)])
def test_a_storm_with_them_lets_in_one_at_a_time(
    play: Play, path: str, tmp_path: Path, protocol: str, beside: int
) -> None:
    """Y1; and Y7, as a directory that is large is not listed for long."""
    for number in range(beside):
        Path(f"{path}.{number}").touch()
    players = {
        "theirs": (play("semats", path), 0.0),
        "one": (play("ours", path, protocol), 0.0005),
        "two": (play("ours", path, protocol), 0.0005),
    }
    storm(tmp_path / "state", players, SECONDS)


@pytest.mark.parametrize("protocol", ["semats", "sema"])
def test_a_stale_lock_lets_in_one(play: Play, path: str, gone: int, protocol: str) -> None:
    theirs, ours = play("semats", path), [play("ours", path, protocol) for _ in range(2)]
    seen = stale_rounds(path, ROUNDS, lambda: plant(path, gone), theirs, ours)
    assert seen["together"] == 0
    assert seen["theirs"] + seen["ours"] > 0
