"""fs-safe itself and holdfast at stale sidecar locks: who may remove them, and what keeps the two apart."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Lock, LockStale
from process.foreign.play import Player, stale_rounds
from process.support import eventually

Play = Callable[..., Player]


@pytest.fixture
def target(tmp_path: Path) -> str:
    """The protected file; its lock file is beside it."""
    return str(tmp_path / "state.json")


def lock_of(target: str) -> Path:
    return Path(target + ".lock")


def reclaim_of(target: str) -> Path:
    return Path(target + ".lock.reclaim")


def age(target: str, seconds: float) -> None:
    """Make a lock older, by both times by which fs-safe judges."""
    lock = lock_of(target)
    payload = json.loads(lock.read_bytes())
    then = time.time() - seconds
    new = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(then))
    with lock.open("r+") as file:
        text = file.read().replace(payload["createdAt"], new)
        file.seek(0)
        file.write(text)
    os.utime(lock, (then, then))


def kill(holder: Player) -> None:
    holder.kill(signal.SIGKILL)
    holder.wait()


def leave_dead(holder: Player, target: str, old: float = 0) -> bytes:
    """Leave the lock of a killed process; returns its content."""
    assert holder.ask("take") == "acquired"
    kill(holder)
    if old:
        age(target, old)
    return lock_of(target).read_bytes()


def test_a_stale_lock_of_fs_safe_is_not_taken_over(fs_safe: Play, target: str) -> None:
    """The rule fails closed: neither holdfast nor fs-safe may decide that it can be removed."""
    leave_dead(fs_safe(target), target, 31)
    with pytest.raises(LockStale) as caught:
        Lock(target, protocol="sidecar").acquire(timeout=20)
    assert caught.value.holder.pid is not None
    assert fs_safe(target).ask("take") == "stale"
    assert lock_of(target).exists()


def test_an_old_lock_of_a_living_fs_safe_process_is_waited_for(fs_safe: Play, target: str) -> None:
    """holdfast waits, and nobody takes it over."""
    theirs = fs_safe(target, 200)
    assert theirs.ask("take") == "acquired"
    lock = Lock(target, protocol="sidecar", stale_after=0.2)
    eventually(lambda: lock.status().age > 0.3, what="its age")
    assert lock.try_acquire() is None
    assert fs_safe(target, 200).ask("take") == "stale"
    assert theirs.ask("release") == "released"
    lock.acquire(timeout=0).release()


def test_the_callers_approval_is_enough_for_a_takeover(fs_safe: Play, target: str) -> None:
    holder = fs_safe(target)
    leave_dead(holder, target)
    asked = []
    lock = Lock(target, protocol="sidecar", stale=lambda status: asked.append(status) or True)
    with lock.acquire(timeout=5) as hold:
        assert hold.recovered_from.pid == asked[0].holder.pid == holder.pid
        assert json.loads(lock_of(target).read_bytes())["pid"] == os.getpid()
        assert fs_safe(target).ask("seize") == "held"
        hold.ensure_held()
    assert not lock_of(target).exists()
    assert not reclaim_of(target).exists()


def test_callers_of_fs_safe_can_remove_the_lock_of_a_dead_holdfast_process(
    fs_safe: Play, play: Play, target: str
) -> None:
    leave_dead(play("ours", target, "sidecar"), target)
    theirs = fs_safe(target)
    assert theirs.ask("seize") == "acquired"
    assert Lock(target, protocol="sidecar").status().holder.pid == theirs.pid
    assert not reclaim_of(target).exists()


def test_a_takeover_waits_for_or_notices_a_removal_under_way(fs_safe: Play, play: Play, target: str) -> None:
    """0.21.0 announces it, so we wait; 0.3.0 does not, and finds that the lock that it judged is gone."""
    leave_dead(play("ours", target, "sidecar"), target)
    theirs, ours = fs_safe(target), play("ours", target, "sidecar")
    theirs.stop_at("approve", "seize")
    announced = reclaim_of(target).exists()
    assert ours.ask("take") == ("held" if announced else "acquired")
    theirs.go()
    theirs.expect("acquired" if announced else "held")
    if announced:
        ours.say("acquire")
        assert theirs.ask("release") == "released"
        ours.expect("acquired")
    assert ours.ask("lost") == "kept"


def test_an_unfinished_removal_by_fs_safe_does_not_stop_a_takeover(fs_safe_new: Play, play: Play, target: str) -> None:
    """Killed in a removal, 0.21.0 leaves its directory, for which all other fs-safe processes wait for ever."""
    leave_dead(play("ours", target, "sidecar"), target)
    theirs = fs_safe_new(target)
    theirs.stop_at("approve", "seize")
    kill(theirs)
    assert reclaim_of(target).is_dir()
    other, lock = fs_safe_new(target), Lock(target, protocol="sidecar", timeout=0)
    assert other.ask("seize") == "held"
    assert lock.try_acquire() is None
    long_ago = time.time() - 61
    os.utime(reclaim_of(target), (long_ago, long_ago))
    assert other.ask("seize") == "held"
    lock.acquire().release()
    assert not reclaim_of(target).exists()
    assert other.ask("take") == "acquired"


def test_an_unfinished_removal_by_fs_safe_does_not_stop_holdfast_at_a_free_lock(fs_safe_new: Play, target: str) -> None:
    """fs-safe waits for ever, though nobody holds the lock."""
    reclaim_of(target).mkdir()
    theirs = fs_safe_new(target)
    assert theirs.ask("take") == "held"
    with Lock(target, protocol="sidecar", timeout=20):
        assert theirs.ask("take") == "held"
    reclaim_of(target).rmdir()
    assert theirs.ask("take") == "acquired"


@pytest.mark.skipif(
    os.environ.get("HOLDFAST_OS") == "generic" or "flock" in os.environ.get("HOLDFAST_WITHOUT", ""),
    reason="without kernel locks, what a crash has left is known by its age",
)
def test_the_leftover_of_a_killed_takeover_is_removed_by_the_next_holdfast_process(
    fs_safe_new: Play, play: Play, target: str
) -> None:
    """Killed in a takeover, holdfast leaves its directory, which its next contender removes at once."""
    leave_dead(play("ours", target, "sidecar"), target)
    victim = play("ours", target, "sidecar", "", "announce_removal")
    victim.say("take")
    assert victim.wait() == -signal.SIGKILL
    assert reclaim_of(target).is_dir()
    theirs = fs_safe_new(target)
    assert theirs.ask("seize") == "held"
    Lock(target, protocol="sidecar", timeout=0).acquire().release()
    assert not reclaim_of(target).exists()
    assert theirs.ask("take") == "acquired"


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_a_removal_beside_a_takeover_admits_one_contender(fs_safe: Play, play: Play, target: str, whose: str) -> None:
    """fs-safe removes the lock of a dead process while holdfast takes it over."""
    stale = leave_dead(play("ours", target, "sidecar") if whose == "ours" else fs_safe(target), target)
    theirs, ours = fs_safe(target), [play("ours", target, "sidecar") for _ in range(2)]
    lock = lock_of(target)
    seen = stale_rounds(
        str(lock),
        80,
        lambda: lock.write_bytes(stale),
        theirs,
        ours,
        they="seize",
        we="take" if whose == "ours" else "seize",
    )
    assert seen["together"] == 0
    assert seen["theirs"] + seen["ours"] > 0
    assert not reclaim_of(target).exists()
