"""Heartbeats and loss: a long hold stays fresh for others, and a holder learns that its lock is gone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import AcquireTimeout, Lock, LockLost, NotHeld
from holdfast._admin.scan import Survey
from holdfast._platform import environment
from holdfast.protocols import get
from process.support import Peer, eventually

BEATING = """
hold = Lock(path, tag="beating", heartbeat=0.005).acquire()
say("holding")
hear()
hold.release()
say("released")
"""

# A clock on which every beat changes all ten digits.
CHANGING = """
from holdfast._platform import environment
ticks = iter(range(10**6))
environment().time = lambda: 1111111111 * (1 + next(ticks) % 8)
"""


# Acquired long ago, by the wall clock; since then it has been refreshed.
LONG_AGO = """
from holdfast._platform import environment
clock = environment().time
environment().time = lambda: clock() - 5000
target, protocol = path.rsplit(":", 1)
hold = Lock(target, protocol=protocol, heartbeat=0.005, tag="beating").acquire()
environment().time = clock
say(hold.path)
hear()
hold.release()
"""


@pytest.mark.parametrize("protocol", ["sema", "semats", "sidecar"])
def test_since_stays_the_acquisition_through_heartbeats(spawn: Callable[..., Peer], path: str, protocol: str) -> None:
    holder = spawn(LONG_AGO, f"{path}:{protocol}")
    lock_file = holder.hear()
    lock = Lock(path, protocol=protocol)
    eventually(lambda: (lock.status().record_age or 5000) < 1000, what="a beat")
    status = lock.status()
    assert status.holder is not None
    assert status.holder.since is not None
    assert abs(time.time() - 5000 - status.holder.since) < 100
    assert abs((status.age or 0) - 5000) < 100
    with pytest.raises(AcquireTimeout, match=r"since .* \(8[345] min ago\)") as refused:
        lock.acquire(timeout=0)
    assert refused.value.holder is not None
    assert refused.value.holder.since == status.holder.since
    found = Survey(environment()).file(lock_file)
    assert found is not None
    assert found.status.holder is not None
    assert found.status.holder.since == status.holder.since
    assert abs((found.status.age or 0) - 5000) < 100
    holder.say("end")
    holder.wait()


def timestamp(path: str) -> int:
    return stamp(Path(path).read_bytes())


def stamp(record: bytes) -> int:
    return int(record.split(b"timestamp=")[1].split(b"\n")[0])


def test_a_long_hold_is_kept_fresh(spawn: Callable[..., Peer], path: str) -> None:
    holder = spawn(BEATING, path)
    holder.expect("holding")
    before = Path(path).read_bytes()
    first = stamp(before)
    inode = os.stat(path).st_ino
    eventually(lambda: timestamp(path) >= first + 2, what="the second beat")
    after = Path(path).read_bytes()
    assert after == before.replace(b"timestamp=%d" % first, b"timestamp=%d" % stamp(after))
    assert os.stat(path).st_ino == inode
    assert first + 2 <= stamp(after) <= time.time()
    holder.say("end")
    holder.expect("released")
    assert not os.path.exists(path)


def test_a_foreign_reader_sees_a_whole_record_during_a_beat(spawn: Callable[..., Peer], path: str) -> None:
    holder = spawn(CHANGING + BEATING.replace("0.005", "0.0002"), path)
    holder.expect("holding")
    sema = get("sema")
    seen = set()
    until = time.monotonic() + 1
    while time.monotonic() < until:
        record = sema.decode(Path(path).read_bytes())
        assert record.pid == holder.pid
        assert record.tag == "beating"
        assert record.marker is not None
        seen.add(record.created)
    assert len(seen) > 4
    holder.say("end")
    holder.expect("released")


@pytest.mark.needs("events")
def test_waiters_are_not_woken_by_each_beat(spawn: Callable[..., Peer], path: str) -> None:
    holder = spawn(BEATING, path)
    holder.expect("holding")
    waiter = spawn(
        """
        import holdfast.engines.file.watched
        looks = 0
        original = holdfast.engines.file.watched.judge
        def judge(*words):
            global looks
            looks += 1
            return original(*words)
        holdfast.engines.file.watched.judge = judge
        Lock(path, timeout=1).wait()
        say(looks)
        """,
        path,
    )
    assert int(waiter.hear()) <= 5  # 200 beats; the notice after a second is a look too
    holder.say("end")
    holder.expect("released")


def test_a_thread_runs_only_while_something_needs_it(spawn: Callable[..., Peer], path: str) -> None:
    process = spawn(
        """
        def keepers():
            return sum(thread.name == "holdfast-keeper" for thread in threading.enumerate())
        say(keepers())
        with Lock(path, heartbeat=0):
            say(keepers())
        with Lock(path, heartbeat=0.01), Lock(path + "2", heartbeat=0.01):
            say(keepers())
        until = time.monotonic() + 10
        while keepers() and time.monotonic() < until:
            time.sleep(0.001)
        say(keepers())
        for _ in range(5):
            with Lock(path, heartbeat=0.001):
                time.sleep(0.002)
        while keepers() and time.monotonic() < until:
            time.sleep(0.001)
        say(keepers())
        """,
        path,
    )
    assert [process.hear() for _ in range(5)] == ["0", "0", "1", "0", "0"]
    process.finish()


def remove(path: str) -> None:
    os.unlink(path)


def replace(path: str) -> None:
    Path(path + ".new").write_bytes(THIEF)
    os.replace(path + ".new", path)


def remove_and_create(path: str) -> None:
    os.unlink(path)
    Path(path).write_bytes(THIEF)


def overwrite(path: str) -> None:
    Path(path).write_bytes(THIEF)


THIEF = b"pid=1\ntimestamp=1\ntag=thief\n"
THEFTS = [remove, replace, remove_and_create, overwrite]


@pytest.mark.parametrize("steal", THEFTS)
@pytest.mark.parametrize("heartbeat", [0, 0.01])
@pytest.mark.needs("events")
def test_a_holder_is_told_of_its_loss_once(path: str, steal: Callable[[str], None], heartbeat: float) -> None:
    told: list[tuple[float, LockLost, str]] = []
    lock = Lock(
        path,
        heartbeat=heartbeat,
        on_lost=lambda error: told.append((time.monotonic(), error, threading.current_thread().name)),
    ).acquire()
    assert not lock.lost
    stolen = time.monotonic()
    steal(path)
    eventually(lambda: told, what="the message")
    moment, error, thread = told[0]
    assert moment - stolen < 5  # without an event, it would take minutes
    assert isinstance(error, LockLost)
    assert error.path == path
    assert thread != threading.main_thread().name
    assert lock.lost
    with pytest.raises(LockLost, match="another process may be inside"):
        lock.ensure_held()
    with pytest.raises(LockLost):
        lock.release()
    lock.release()  # a second time is harmless here too
    if steal is remove:
        assert not os.path.exists(path)
    else:
        assert Path(path).read_bytes() == THIEF
    assert len(told) == 1


@pytest.mark.parametrize("steal", THEFTS)
def test_a_loss_is_noticed_without_a_callback(path: str, steal: Callable[[str], None]) -> None:
    lock = Lock(path, heartbeat=0).acquire()
    steal(path)
    with pytest.raises(LockLost):
        lock.ensure_held()
    assert lock.lost
    with pytest.raises(LockLost), lock:
        pass
    if steal is not remove:
        assert Path(path).read_bytes() == THIEF


def test_a_heartbeat_does_not_write_into_a_file_that_replaced_the_record(path: str) -> None:
    lock = Lock(path, heartbeat=0.002).acquire()
    overwrite(path)
    eventually(lambda: lock._held.lost, what="the discovery")
    # Nothing writes any more: the keeper's thread has let go of it.
    eventually(lambda: not beating(), what="the end of the keeper's thread")
    assert Path(path).read_bytes() == THIEF
    with pytest.raises(LockLost):
        lock.release()


def beating() -> bool:
    from holdfast import lock

    return lock._keeper is not None and any(held.request.beat_every < 1 for held in lock._keeper._kept)


def test_the_loss_does_not_hide_the_error_of_the_body(path: str) -> None:
    def fail() -> None:
        with Lock(path):
            os.unlink(path)
            raise KeyError("the news")

    with pytest.raises(KeyError) as caught:
        fail()
    assert any("another process may be inside" in note for note in caught.value.__notes__)


def test_a_callback_that_raises_leaves_the_beats_of_other_holds(path: str, caplog: pytest.LogCaptureFixture) -> None:
    def on_lost(_error: LockLost) -> None:
        raise RuntimeError("the caller's mistake")

    other = Lock(path + ".other", heartbeat=0.005).acquire()
    lock = Lock(path, on_lost=on_lost).acquire()
    os.unlink(path)
    eventually(lambda: "the caller's mistake" in caplog.text, what="the report")
    first = timestamp(other.path)
    eventually(lambda: timestamp(other.path) > first, what="the next beat of the other hold")
    other.release()
    with pytest.raises(LockLost):
        lock.release()


def test_a_callback_that_takes_its_time_leaves_the_beats_of_other_holds(path: str) -> None:
    go, inside = threading.Event(), threading.Event()

    def on_lost(_error: LockLost) -> None:
        inside.set()
        go.wait(20)

    other = Lock(path + ".other", heartbeat=0.005).acquire()
    lock = Lock(path, on_lost=on_lost).acquire()
    os.unlink(path)
    try:
        assert inside.wait(5)
        first = timestamp(other.path)
        eventually(lambda: timestamp(other.path) > first, within=5, what="the next beat of the other hold")
    finally:
        go.set()
    other.release()
    with pytest.raises(LockLost):
        lock.release()


def test_a_released_hold_does_not_report_a_loss(path: str) -> None:
    told: list[LockLost] = []
    lock = Lock(path, on_lost=told.append).acquire()
    lock.release()
    assert not lock.lost
    with pytest.raises(NotHeld):
        lock.ensure_held()
    for _ in range(50):  # many short holds: the keeper must not take the release itself for a removal
        Lock(path, on_lost=told.append, heartbeat=0.001).acquire().release()
    assert told == []


@pytest.mark.needs("events")
def test_a_holder_in_another_process_is_told_of_its_loss(spawn: Callable[..., Peer], path: str) -> None:
    holder = spawn(
        """
        hold = Lock(path, on_lost=lambda error: say("lost", time.monotonic())).acquire()
        say("holding")
        hear()
        """,
        path,
    )
    holder.expect("holding")
    broken = time.monotonic()
    record = Lock(path).break_lock()
    assert record is not None
    assert record.pid == holder.pid
    word, moment = holder.hear().split()
    assert word == "lost"
    assert float(moment) - broken < 5
    with Lock(path).acquire(timeout=1) as mine:
        holder.say("end")
        holder.wait()
        mine.ensure_held()
    assert "another process may be inside" in holder.complaint()
