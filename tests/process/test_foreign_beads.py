"""beads, by stand-ins: tools that write over any lock, and a daemon that removes a dead process's lock late."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Lock, LockLost
from process.foreign.play import Player
from process.support import eventually, polling

Play = Callable[..., Player]
OURS = {"protocol": "beads", "holder": "ours", "version": "1"}


@pytest.fixture
def database(tmp_path: Path) -> str:
    (tmp_path / ".beads").mkdir()
    return str(tmp_path / ".beads")


def lock_of(database: str) -> Path:
    return Path(database, ".exclusive-lock")


def test_beads_and_holdfast_exclude_each_other(play: Play, database: str) -> None:
    tool, daemon = play("beads", database), play("beads", database)
    assert daemon.ask("cycle") == "proceed"
    with Lock(database, **OURS) as hold:
        assert daemon.ask("cycle") == "skip ours"
        hold.ensure_held()
    assert daemon.ask("cycle") == "proceed"
    assert tool.ask("create", "theirs") == "created"
    assert Lock(database, **OURS).try_acquire() is None
    assert Lock(database, **OURS).status().holder.pid == tool.pid
    assert daemon.ask("cycle") == "skip theirs"
    assert tool.ask("release") == "released"
    assert daemon.ask("cycle") == "proceed"
    assert os.listdir(database) == []


def test_a_release_by_a_tool_ends_our_wait(play: Play, database: str) -> None:
    tool, ours = play("beads", database), play("ours", database, "beads")
    tool.ask("create", "theirs")
    ours.say("acquire")
    eventually(lambda: polling(ours.pid), what="the wait")
    tool.ask("release")
    ours.expect("acquired")


def test_a_tool_that_is_killed_is_not_waited_for(play: Play, database: str) -> None:
    """The rule of beads: a process of this host that has ended holds nothing."""
    tool, ours = play("beads", database), play("ours", database, "beads")
    tool.ask("create", "theirs")
    ours.say("acquire")
    eventually(lambda: polling(ours.pid), what="the wait")
    tool.kill(signal.SIGKILL)
    tool.wait()
    ours.expect("acquired")
    assert ours.ask("lost") == "kept"


def test_a_file_that_is_not_yet_written_is_held(play: Play, database: str) -> None:
    """An empty file is malformed, and held; once it is written, it is read."""
    tool, daemon = play("beads", database), play("beads", database)
    tool.stop_at("write", "create", "theirs")
    lock = Lock(database, **OURS)
    assert lock.try_acquire() is None
    assert lock.status().locked
    assert daemon.ask("cycle") == "skip malformed"
    tool.go()
    tool.expect("created")
    assert lock.status().holder.pid == tool.pid


@pytest.mark.parametrize("step", ["open", "write"])
def test_a_tool_that_writes_over_our_lock_is_noticed(play: Play, database: str, step: str) -> None:
    """When its file is empty, and again when it is written; the loss is reported once, and the tool's file stays."""
    tool, told = play("beads", database), []
    hold = None
    if step == "open":
        tool.stop_at("open", "create", "theirs")
        hold = Lock(database, on_lost=told.append, **OURS).acquire(timeout=0)
        hold.ensure_held()
    else:
        hold = Lock(database, on_lost=told.append, **OURS).acquire(timeout=0)
        tool.stop_at("write", "create", "theirs")
        assert hold.lost
    tool.go()
    tool.expect("created")
    record = lock_of(database).read_bytes()
    assert json.loads(record)["pid"] == tool.pid
    assert hold.lost
    with pytest.raises(LockLost):
        hold.ensure_held()
    with pytest.raises(LockLost):
        hold.release()
    assert len(told) == 1
    assert lock_of(database).read_bytes() == record


def test_a_lock_that_a_tool_wrote_over_is_shown_as_the_tools(play: Play, database: str) -> None:
    """The inode and the guard on it are still ours, but its record names the tool as the holder."""
    tool = play("beads", database)
    hold = Lock(database, **OURS).acquire()
    tool.ask("create", "theirs")
    assert Lock(database, **OURS).status().holder.pid == tool.pid
    with pytest.raises(LockLost):
        hold.release()
    assert Lock(database, **OURS).try_acquire() is None
    tool.ask("release")
    Lock(database, **OURS).acquire(timeout=0).release()


def test_a_tool_that_removes_our_lock_is_noticed(play: Play, database: str) -> None:
    tool = play("beads", database)
    hold = Lock(database, **OURS).acquire()
    assert tool.ask("release") == "released"
    assert hold.lost
    with pytest.raises(LockLost):
        hold.release()


def test_a_dead_holder_of_ours_does_not_stop_the_daemon(play: Play, database: str) -> None:
    holder, daemon = play("ours", database, "beads"), play("beads", database)
    assert holder.ask("take") == "acquired"
    holder.kill(signal.SIGKILL)
    holder.wait()
    assert daemon.ask("cycle") == "removed ours"
    Lock(database, **OURS).acquire(timeout=0).release()


def test_a_takeover_survives_the_removal_by_a_daemon(play: Play, database: str) -> None:
    """The daemon, stopped between its look and its unlink, finds us settling (T5): then the lock is made anew."""
    holder, daemon, ours = (
        play("ours", database, "beads"),
        play("beads", database),
        play("ours", database, "beads", 2),
    )
    assert holder.ask("take") == "acquired"
    holder.kill(signal.SIGKILL)
    holder.wait()
    old = lock_of(database).read_bytes()
    daemon.stop_at("remove", "cycle")
    ours.say("acquire")
    eventually(lambda: lock_of(database).read_bytes() != old, what="the takeover")
    daemon.go()
    daemon.expect("removed ours")
    ours.expect("acquired")
    assert ours.ask("lost") == "kept"
    assert daemon.ask("cycle") == "skip ours"


def test_a_daemons_late_removal_of_our_lock_is_noticed(play: Play, database: str) -> None:
    tool, daemon = play("beads", database), play("beads", database)
    tool.ask("create", "theirs")
    tool.kill(signal.SIGKILL)
    tool.wait()
    daemon.stop_at("remove", "cycle")
    hold = Lock(database, **OURS).acquire(timeout=5)
    assert hold.recovered_from.pid == tool.pid
    daemon.go()
    daemon.expect("removed theirs")
    assert hold.lost
    with pytest.raises(LockLost):
        hold.release()
    assert not lock_of(database).exists()
