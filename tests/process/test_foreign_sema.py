"""sema and semats, by stand-ins with their races: their locks are respected, and their thefts noticed.

First the tests beside both, then those beside sema; test_foreign_semats.py has those beside semats."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import places
from ahead import Ran
from holdfast import Lock, LockLost
from process.foreign.play import Player, playing, stale_rounds, storm
from process.support import eventually, polling

Play = Callable[..., Player]
LONG_AGO = 7200
SECONDS = float(os.environ.get("HOLDFAST_TEST_SECONDS", "1.5"))
ROUNDS = int(100 * SECONDS)


def plant(path: str, pid: int) -> None:
    """Leave a lock that is stale by the rules of both."""
    Path(path).write_text(f"pid={pid}\ntimestamp={int(time.time()) - LONG_AGO}\n")


@pytest.fixture
def gone(play: Play) -> int:
    return ended(play)


def ended(play: Play) -> int:
    """The pid of an ended process."""
    player = play("sema", "-")
    player.kill()
    player.wait()
    return player.pid


def age(path: str) -> None:
    """Make a record old, and change nothing else of it."""
    text = Path(path).read_text()
    stamp = text.split("timestamp=")[1].split("\n")[0]
    with open(path, "r+") as file:
        file.write(text.replace(f"timestamp={stamp}", f"timestamp={int(stamp) - LONG_AGO}"))


def leave_dead(play: Play, path: str) -> None:
    """Leave an old lock of a killed holdfast process."""
    holder = play("ours", path, "sema")
    assert holder.ask("take") == "acquired"
    holder.kill(signal.SIGKILL)
    holder.wait()
    age(path)


def taken_over(path: str, before: bytes) -> bool:
    """Whether the path has a lock file of holdfast, other than the one before."""
    try:
        return b"holdfast=" in (found := Path(path).read_bytes()) and found != before
    except FileNotFoundError:
        return False


@pytest.fixture(params=["sema", "semats"])
def tool(request: pytest.FixtureRequest) -> str:
    return request.param


def test_sema_or_semats_and_holdfast_exclude_each_other(play: Play, path: str, tool: str) -> None:
    theirs, ours = play(tool, path), play("ours", path, tool)
    assert theirs.ask("take") == "acquired"
    assert ours.ask("take") == "held"
    assert theirs.ask("release") == "released"
    assert ours.ask("take") == "acquired"
    assert theirs.ask("take") == "held"
    if tool == "semats":
        assert theirs.ask("release") == "denied"  # its own rule, which our pid serves
    assert ours.ask("lost") == "kept"
    assert ours.ask("release") == "released"
    assert theirs.ask("take") == "acquired"


def test_a_release_by_sema_or_semats_wakes_a_waiter(play: Play, path: str, tool: str) -> None:
    theirs, ours = play(tool, path), play("ours", path, tool)
    assert theirs.ask("take") == "acquired"
    ours.say("acquire")
    eventually(lambda: polling(ours.pid), what="the wait")
    theirs.ask("release")
    ours.expect("acquired")


@contextmanager
def stage() -> Iterator[tuple[Play, str]]:
    """The same as the fixtures, for a test that may begin early."""
    with places.directory(tempfile.gettempdir()) as place, playing() as play:
        yield play, str(place / "the.lock")


def _settled(tool: str, whose: str, step: str) -> None:
    with stage() as (play, path):
        if whose == "theirs":
            plant(path, ended(play))
        else:
            leave_dead(play, path)
        theirs, ours = play(tool, path), play("ours", path, tool, 2)
        old = Path(path).read_bytes()
        theirs.stop_at(step, "take")
        ours.say("acquire")
        eventually(lambda: taken_over(path, old), what="the takeover")
        theirs.go()
        theirs.expect("acquired")
        eventually(lambda: polling(ours.pid), what="the wait")
        assert ours.silent()
        theirs.ask("release")
        ours.expect("acquired")
        assert ours.ask("lost") == "kept"


@pytest.mark.ahead(body=_settled)
@pytest.mark.parametrize(
    ("tool", "whose", "step"),
    [
        ("sema", "theirs", "unlink"),
        ("sema", "ours", "unlink"),
        ("semats", "theirs", "unlink"),
        ("semats", "theirs", "rename"),
    ],
)
def test_a_takeover_settles_while_a_foreign_contender_removes_the_stale_lock(
    tool: str, whose: str, step: str, ran: Ran
) -> None:
    """T5: stopped between its look and its unlink, or at the rename after that, the contender must find us still
    settling, whosever lock it was."""
    ran()


def test_a_late_removal_of_a_stale_lock_is_noticed(play: Play, path: str, gone: int, tool: str) -> None:
    plant(path, gone)
    theirs = play(tool, path)
    theirs.stop_at("unlink", "take")
    hold = Lock(path, protocol=tool).acquire(timeout=5)
    theirs.go()
    theirs.expect("acquired")
    assert hold.lost
    with pytest.raises(LockLost):
        hold.release()
    assert Lock(path, protocol=tool).status().holder.pid == theirs.pid


def test_a_dead_holder_of_ours_is_replaced_before_its_age_limit(play: Play, path: str, tool: str) -> None:
    """Its death is proven, so we get the lock at once, while sema and semats wait for its age."""
    holder = play("ours", path, tool)
    assert holder.ask("take") == "acquired"
    holder.kill(signal.SIGKILL)
    holder.wait()
    theirs = play(tool, path)
    assert theirs.ask("take") == "held"
    theirs.say("acquire", 0.001)
    hold = Lock(path, protocol=tool).acquire(timeout=0)
    assert hold.recovered_from.pid == holder.pid
    assert theirs.silent()
    hold.release()
    theirs.expect("acquired")


def _stormed(tool: str, protocol: str, beside: int) -> None:
    with stage() as (play, path):
        for number in range(beside):
            Path(f"{path}.{number}").touch()
        players = {
            "theirs": (play(tool, path), 0.0),
            "one": (play("ours", path, protocol), 0.0005),
            "two": (play("ours", path, protocol), 0.0005),
        }
        storm(Path(path).with_name("state"), players, SECONDS)


@pytest.mark.ahead(body=_stormed)
@pytest.mark.parametrize(
    ("tool", "protocol", "beside"),
    [("sema", "sema", 0), ("semats", "semats", 0), ("semats", "sema", 0), ("semats", "sema", 5000)],
)
def test_a_storm_with_sema_or_semats_admits_one_holder_at_a_time(
    tool: str, protocol: str, beside: int, ran: Ran
) -> None:
    """Y1; and Y7: a large directory is not listed for long."""
    ran()


def _raced(tool: str, protocol: str, whose: str) -> dict[str, int]:
    with stage() as (play, path):
        theirs, ours = play(tool, path), [play("ours", path, protocol) for _ in range(2)]
        if whose == "theirs":
            plant(path, ended(play))
        else:
            leave_dead(play, path)
        stale = Path(path).read_bytes()
        return stale_rounds(path, ROUNDS, lambda: Path(path).write_bytes(stale), theirs, ours)


@pytest.mark.ahead(body=_raced)
@pytest.mark.parametrize(
    ("tool", "protocol", "whose"),
    [
        ("sema", "sema", "theirs"),
        ("sema", "sema", "ours"),
        ("semats", "semats", "theirs"),
        ("semats", "sema", "theirs"),
    ],
)
def test_a_stale_lock_is_taken_over_by_one_contender(tool: str, protocol: str, whose: str, ran: Ran) -> None:
    seen = ran()
    assert seen["together"] == 0
    assert seen["theirs"] + seen["ours"] > 0


def test_our_release_ends_the_wait_of_sema(play: Play, path: str) -> None:
    theirs, ours = play("sema", path), play("ours", path, "sema")
    assert ours.ask("take") == "acquired"
    theirs.stop_at("create", "acquire")
    theirs.go()
    assert ours.ask("release") == "released"
    theirs.expect("acquired")
    assert Lock(path).status().holder.pid == theirs.pid


def test_a_lock_made_between_semas_look_and_its_creation_keeps_it_out(play: Play, path: str) -> None:
    theirs = play("sema", path)
    theirs.stop_at("create", "take")
    with Lock(path) as hold:
        theirs.go()
        theirs.expect("held")
        hold.ensure_held()


def test_a_lock_without_its_content_yet_is_held(play: Play, path: str) -> None:
    theirs = play("sema", path)
    theirs.stop_at("write", "take")
    os.utime(path, (0, 0))  # nor does its age matter
    assert Lock(path).try_acquire() is None
    assert Lock(path, stale="protocol").try_acquire() is None
    assert Lock(path).status().locked
    theirs.go()
    theirs.expect("acquired")
    assert Lock(path).status().holder.pid == theirs.pid


def test_a_holder_notices_that_sema_took_its_lock(play: Play, path: str) -> None:
    """The age rule of sema takes a living holder's lock, if nothing refreshes it."""
    theirs, told = play("sema", path, -1), []
    hold = Lock(path, heartbeat=0, on_lost=told.append).acquire()
    assert theirs.ask("take") == "acquired"
    record = Path(path).read_bytes()
    assert hold.lost
    with pytest.raises(LockLost):
        hold.ensure_held()
    with pytest.raises(LockLost):
        hold.release()
    assert len(told) == 1
    assert Path(path).read_bytes() == record
    assert theirs.ask("release") == "released"


def test_a_release_by_sema_that_removes_our_lock_is_noticed(play: Play, path: str) -> None:
    """sema unlinks whatever is at the path, even if its own lock was taken over long ago."""
    theirs = play("sema", path)
    assert theirs.ask("take") == "acquired"
    hold = Lock(path, stale=lambda _: True).acquire(timeout=5)
    assert not hold.lost
    assert theirs.ask("release") == "released"
    assert hold.lost
    with pytest.raises(LockLost):
        hold.release()
