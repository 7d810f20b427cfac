"""fs-safe itself, from the npm registry, and holdfast at one sidecar lock: each respects the other's locks."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Lock, LockLost
from process.foreign.play import Player, storm
from process.support import eventually, polling

Play = Callable[..., Player]


@pytest.fixture
def target(tmp_path: Path) -> str:
    """The protected file; its lock file is beside it."""
    return str(tmp_path / "state.json")


def lock_of(target: str) -> Path:
    return Path(target + ".lock")


def test_fs_safe_and_holdfast_exclude_each_other(fs_safe: Play, play: Play, target: str) -> None:
    theirs, ours = fs_safe(target), play("ours", target, "sidecar")
    assert theirs.ask("take") == "acquired"
    assert ours.ask("take") == "held"
    assert theirs.ask("release") == "released"
    assert ours.ask("take") == "acquired"
    assert theirs.ask("take") == "held"
    assert ours.ask("lost") == "kept"
    assert ours.ask("release") == "released"
    assert theirs.ask("take") == "acquired"
    assert os.listdir(os.path.dirname(target)) == ["state.json.lock"]


def test_a_release_by_fs_safe_ends_our_wait(fs_safe: Play, play: Play, target: str) -> None:
    theirs, ours = fs_safe(target), play("ours", target, "sidecar")
    assert theirs.ask("take") == "acquired"
    ours.say("acquire")
    eventually(lambda: polling(ours.pid), what="the wait")
    theirs.ask("release")
    ours.expect("acquired")


def test_our_release_ends_the_wait_of_fs_safe(fs_safe: Play, target: str) -> None:
    theirs = fs_safe(target)
    with Lock(target, protocol="sidecar"):
        theirs.say("acquire")
        assert theirs.silent()
    theirs.expect("acquired")


def test_holdfast_reads_a_record_of_fs_safe(fs_safe: Play, target: str) -> None:
    theirs = fs_safe(target)
    theirs.ask("take")
    status = Lock(target, protocol="sidecar").status()
    assert status.locked
    assert status.holder.pid == theirs.pid
    assert status.holder.host == socket.gethostname()
    assert status.record.fields["payload"]["note"] == 'ü \u2028 "x"'
    assert status.data == lock_of(target).read_bytes()


def test_fs_safe_reads_a_record_of_holdfast(fs_safe: Play, play: Play, target: str) -> None:
    """It judges from our record whether its process is dead; the record has our marker nevertheless."""
    theirs = fs_safe(target)
    hold = Lock(target, protocol="sidecar", payload={"pid": os.getpid(), "note": "ü"}).acquire()
    assert theirs.ask("seize") == "held"  # it knows our pid, and that our process lives
    before = lock_of(target).read_bytes()
    assert json.loads(before)["note"] == "ü"
    assert json.loads(before)["holdfast"]
    assert hold.record.marker is not None
    hold.ensure_held()
    hold.release()


def test_a_file_that_fs_safe_has_yet_to_write_is_held(fs_safe: Play, target: str) -> None:
    """0.3.0 has created the file when it asks for the payload, 0.21.0 has not."""
    theirs = fs_safe(target)
    theirs.stop_at("payload", "take")
    lock = Lock(target, protocol="sidecar")
    visible = lock_of(target).exists()
    hold = lock.try_acquire()
    assert (hold is None) == visible
    theirs.go()
    theirs.expect("acquired" if visible else "held")
    if hold is not None:
        hold.ensure_held()
        hold.release()


def test_a_release_leaves_a_lock_that_the_other_has_put_in_its_place(fs_safe: Play, target: str) -> None:
    """In both directions."""
    theirs = fs_safe(target)
    theirs.ask("take")
    lock_of(target).unlink()
    hold = Lock(target, protocol="sidecar").acquire(timeout=0)
    assert theirs.ask("release") == "released"
    hold.ensure_held()

    lock_of(target).unlink()
    assert theirs.ask("take") == "acquired"
    record = lock_of(target).read_bytes()
    with pytest.raises(LockLost):
        hold.release()
    assert lock_of(target).read_bytes() == record
    assert theirs.ask("verify") in ("kept", "unknown")


def test_a_dead_holder_of_ours_is_recovered_before_fs_safe_would(fs_safe: Play, play: Play, target: str) -> None:
    """fs-safe waits until the lock is old, and then fails; holdfast has proof, and gets in at once."""
    holder, theirs = play("ours", target, "sidecar"), fs_safe(target)
    assert holder.ask("take") == "acquired"
    holder.kill(signal.SIGKILL)
    holder.wait()
    theirs.say("acquire")
    hold = Lock(target, protocol="sidecar").acquire(timeout=0)
    assert hold.recovered_from.pid == holder.pid
    assert theirs.silent()
    hold.ensure_held()
    hold.release()
    theirs.expect("acquired")


def test_our_held_lock_never_becomes_stale_for_fs_safe(fs_safe: Play, target: str) -> None:
    """A heartbeat refreshes both times by which fs-safe judges."""
    theirs = fs_safe(target, 1000)
    with Lock(target, protocol="sidecar", heartbeat=0.1):
        first = json.loads(lock_of(target).read_bytes())["createdAt"]
        eventually(lambda: json.loads(lock_of(target).read_bytes())["createdAt"] > first, what="a heartbeat")
        assert theirs.ask("acquire", 1500) == "held"


def test_a_storm_with_fs_safe_admits_one_holder_at_a_time(
    fs_safe: Play, play: Play, target: str, tmp_path: Path
) -> None:
    players = {
        "theirs": (fs_safe(target), 0.0),
        "their other": (fs_safe(target), 0.0),
        "ours": (play("ours", target, "sidecar"), 0.001),
        "our other": (play("ours", target, "sidecar"), 0.001),
    }
    storm(tmp_path / "state", players, 2.0)
    assert not lock_of(target).exists()
