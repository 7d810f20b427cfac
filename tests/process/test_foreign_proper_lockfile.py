"""proper-lockfile itself, from the npm registry, and holdfast at one lock: each respects the other's locks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Liveness, Lock, LockLost
from process.foreign.play import Player, stale_rounds, storm
from process.support import eventually, polling

Play = Callable[..., Player]
PROTOCOL = "proper-lockfile"


@pytest.fixture
def target(tmp_path: Path) -> str:
    """The protected file; its lock is beside it."""
    (tmp_path / "state.json").touch()
    return str(tmp_path / "state.json")


def lock_of(target: str) -> Path:
    return Path(target + ".lock")


def ours(target: str, **more: object) -> Lock:
    return Lock(target, protocol=PROTOCOL, **more)


def age(target: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(lock_of(target), (then, then))


def kill(holder: Player) -> None:
    holder.kill(signal.SIGKILL)
    holder.wait()


def test_proper_lockfile_and_holdfast_exclude_each_other(proper_lockfile: Play, play: Play, target: str) -> None:
    theirs, ours = proper_lockfile(target), play("ours", target, PROTOCOL)
    assert theirs.ask("take") == "acquired"
    assert ours.ask("take") == "held"
    assert theirs.ask("release") == "released"
    assert ours.ask("take") == "acquired"
    assert theirs.ask("take") == "held"
    assert theirs.ask("check") == "held"
    assert ours.ask("lost") == "kept"
    assert ours.ask("release") == "released"
    assert theirs.ask("check") == "free"
    assert theirs.ask("take") == "acquired"
    assert sorted(os.listdir(os.path.dirname(target))) == ["state.json", "state.json.lock"]


def test_a_release_by_proper_lockfile_ends_our_wait(proper_lockfile: Play, play: Play, target: str) -> None:
    theirs, ours = proper_lockfile(target), play("ours", target, PROTOCOL)
    assert theirs.ask("take") == "acquired"
    ours.say("acquire")
    eventually(lambda: polling(ours.pid), what="the wait")
    theirs.ask("release")
    ours.expect("acquired")


def test_our_release_ends_the_wait_of_proper_lockfile(proper_lockfile: Play, target: str) -> None:
    theirs = proper_lockfile(target)
    with ours(target):
        theirs.say("acquire")
        assert theirs.silent()
    theirs.expect("acquired")


def test_a_lock_of_proper_lockfile_has_an_unknown_holder_and_a_known_age(proper_lockfile: Play, target: str) -> None:
    theirs = proper_lockfile(target)
    theirs.ask("take")
    status = ours(target).status()
    assert status.locked
    assert not status.stale
    assert status.liveness is Liveness.UNKNOWN
    assert status.holder.pid is None
    assert status.record_age < 5


def test_a_late_refresh_by_proper_lockfile_takes_our_lock_and_is_reported(proper_lockfile: Play, target: str) -> None:
    """DL3: it has read its own time, is stopped for longer than its lock lasts, and then sets the time anew."""
    theirs = proper_lockfile(target, 2000, 1000)
    assert theirs.ask("take") == "acquired"
    theirs.say("stop", "utimes")
    theirs.expect("at utimes")
    age(target, 11)
    hold = ours(target).acquire(timeout=0)
    assert hold.recovered_from.protocol == PROTOCOL
    hold.ensure_held()
    theirs.go()
    eventually(lambda: hold.lost, what="the loss")
    with pytest.raises(LockLost):
        hold.release()
    assert lock_of(target).is_dir()


def test_our_held_lock_never_becomes_stale_for_proper_lockfile(proper_lockfile: Play, target: str) -> None:
    theirs = proper_lockfile(target, 2000)
    with ours(target, stale_after=2) as hold:
        first = os.stat(lock_of(target)).st_mtime_ns
        eventually(lambda: os.stat(lock_of(target)).st_mtime_ns > first, what="a heartbeat")
        assert theirs.ask("take") == "held"
        hold.ensure_held()


@pytest.mark.needs("flock")
def test_a_dead_holder_of_ours_is_replaced_by_holdfast_at_once_and_by_proper_lockfile_once_stale(
    proper_lockfile: Play, play: Play, target: str
) -> None:
    holder, theirs = play("ours", target, PROTOCOL), proper_lockfile(target)
    assert holder.ask("take") == "acquired"
    kill(holder)
    assert theirs.ask("take") == "held"
    ours(target).acquire(timeout=0).release()

    holder = play("ours", target, PROTOCOL)
    assert holder.ask("take") == "acquired"
    kill(holder)
    age(target, 11)
    assert theirs.ask("take") == "acquired"
    assert ours(target).status().liveness is Liveness.UNKNOWN


def test_a_holder_of_ours_is_told_when_proper_lockfile_takes_its_lock(
    proper_lockfile: Play, play: Play, target: str
) -> None:
    holder, theirs = play("ours", target, PROTOCOL), proper_lockfile(target)
    assert holder.ask("take") == "acquired"
    holder.kill(signal.SIGSTOP)
    age(target, 11)
    assert theirs.ask("take") == "acquired"
    holder.kill(signal.SIGCONT)
    assert holder.ask("lost") == "lost"
    eventually(lambda: holder.ask("told") == "1", what="the news")
    assert holder.ask("release") == "lost"
    assert lock_of(target).is_dir(), "theirs stays"


def test_a_holder_of_proper_lockfile_is_told_when_holdfast_takes_its_lock(proper_lockfile: Play, target: str) -> None:
    theirs = proper_lockfile(target, 2000, 1000)
    assert theirs.ask("take") == "acquired"
    theirs.kill(signal.SIGSTOP)
    age(target, 11)
    with ours(target).acquire(timeout=0):
        theirs.kill(signal.SIGCONT)
        eventually(lambda: theirs.ask("told") == "1", what="their news")
        assert theirs.ask("release") == "lost"


def test_a_storm_with_proper_lockfile_admits_one_holder_at_a_time(
    proper_lockfile: Play, play: Play, target: str, tmp_path: Path
) -> None:
    players = {
        "theirs": (proper_lockfile(target), 0.0),
        "their other": (proper_lockfile(target), 0.0),
        "ours": (play("ours", target, PROTOCOL), 0.001),
        "our other": (play("ours", target, PROTOCOL), 0.001),
    }
    storm(tmp_path / "state", players, 2.0)
    assert not lock_of(target).exists()


def test_holdfast_and_proper_lockfile_never_both_keep_one_stale_lock(
    proper_lockfile: Play, play: Play, target: str
) -> None:
    """DL4: a proper-lockfile process that has judged may remove our lock; we are out before it counts, or are told."""

    def plant() -> None:
        lock_of(target).mkdir()
        age(target, 11)

    theirs = proper_lockfile(target)
    seen = stale_rounds(
        str(lock_of(target)), 40, plant, theirs, [play("ours", target, PROTOCOL), play("ours", target, PROTOCOL)]
    )
    assert seen["together"] == 0
    assert seen["ours"] > 0
    assert seen["theirs"] > 0


def test_a_late_removal_by_proper_lockfile_takes_our_lock_and_is_reported(proper_lockfile: Play, target: str) -> None:
    """DL4: a limit of its protocol: it has judged, is stopped for long, and then removes whatever is there."""
    lock_of(target).mkdir()
    age(target, 11)
    theirs = proper_lockfile(target)
    theirs.stop_at("rmdir", "take")
    losses: list[LockLost] = []
    hold = ours(target, on_lost=losses.append).acquire(timeout=0)
    theirs.go()
    theirs.expect("acquired")
    eventually(lambda: losses, what="the news")
    with pytest.raises(LockLost):
        hold.release()
    assert lock_of(target).is_dir()


def test_links_lead_holdfast_and_proper_lockfile_to_one_lock(
    proper_lockfile: Play, target: str, tmp_path: Path
) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(target)
    theirs = proper_lockfile(link)
    with ours(str(link)):
        assert lock_of(target).is_dir()
        assert theirs.ask("take") == "held"
    unresolved = proper_lockfile(tmp_path / "x" / ".." / "link.json", 10000, "", "no")
    with Lock(str(tmp_path / "x" / ".." / "link.json"), protocol=PROTOCOL, realpath=False):
        assert (tmp_path / "link.json.lock").is_dir()
        assert unresolved.ask("take") == "held"
        assert theirs.ask("take") == "acquired"
