"""Threads: a hold belongs to its handle, not to a thread."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import AcquireTimeout, Hold, Lock, NotHeld, WouldDeadlock
from process.support import Peer, eventually, state
from unit.loops import events_only

__all__ = ["events_only"]


def in_threads(count: int, body: Callable[[], None]) -> None:
    """Run `body` in this many threads at once; an exception in any of them fails the test."""
    failures: list[BaseException] = []
    together = threading.Barrier(count)

    def run() -> None:
        try:
            together.wait(20)
            body()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread is never served"
    assert failures == []


def test_a_release_in_another_thread_is_accepted(path: str) -> None:
    hold = Lock(path).acquire()
    in_threads(1, hold.release)
    assert not os.path.exists(path)
    with Lock(path).acquire(timeout=1):  # and this thread, which acquired it, no longer counts as a holder
        pass


def test_a_release_in_another_thread_wakes_a_waiter_in_this_process(path: str, events_only: None) -> None:
    hold = Lock(path).acquire()
    got: list[float] = []

    def wait() -> None:
        with Lock(path).acquire(timeout=20):
            got.append(time.monotonic())

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: state(os.getpid(), waiter.native_id) == "S", what="the wait")
    hold.release()
    waiter.join(20)
    assert got


def test_a_thread_that_would_wait_for_itself_is_refused(path: str) -> None:
    with Lock(path), pytest.raises(WouldDeadlock, match="this very thread"):
        Lock(path).acquire()
    with Lock(path):
        with pytest.raises(AcquireTimeout):
            Lock(path).acquire(timeout=0.01)
        with pytest.raises(AcquireTimeout):
            Lock(path).acquire(timeout=0)
        assert Lock(path).try_acquire() is None
    assert not os.path.exists(path)


def test_another_threads_wait_is_not_called_a_deadlock(path: str) -> None:
    hold = Lock(path).acquire()
    got = threading.Event()

    def wait() -> None:
        with Lock(path).acquire():
            got.set()

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    hold.release()
    assert got.wait(20)
    waiter.join(20)


def test_the_name_of_a_dead_thread_is_not_that_of_a_new_one(path: str) -> None:
    # A thread's number is used again; a deadlock must not be reported where there is none.
    holds: list[Hold] = []
    in_threads(1, lambda: holds.append(Lock(path).acquire()))
    served: list[int] = []

    def wait() -> None:
        with Lock(path).acquire() as hold:
            served.append(hold.record.pid)

    waiters = [threading.Thread(target=wait, daemon=True) for _ in range(5)]
    for waiter in waiters:
        waiter.start()
    for waiter in waiters:
        eventually(lambda waiter=waiter: state(os.getpid(), waiter.native_id) == "S", what="the wait")
    holds[0].release()
    for waiter in waiters:
        waiter.join(20)
    assert served == [os.getpid()] * 5


def test_no_increment_is_lost_among_two_hundred_threads(shm: Path) -> None:
    path, counter = shm / "threads.lock", shm / "counter"
    counter.write_text("0")
    inside: list[int] = []

    def increment() -> None:
        for _ in range(5):
            with Lock(path, timeout=60):
                inside.append(1)
                assert len(inside) == 1
                counter.write_text(str(int(counter.read_text()) + 1))
                inside.pop()

    in_threads(200, increment)
    assert counter.read_text() == "1000"
    assert sorted(os.listdir(shm)) == ["counter"]


def test_one_lock_object_in_several_threads_releases_their_own_holds(shm: Path) -> None:
    lock = Lock(shm / "one.lock", timeout=60)
    total = 0

    def increment() -> None:
        nonlocal total
        for _ in range(100):
            with lock as hold:
                seen = total
                hold.ensure_held()
                time.sleep(0)
                total = seen + 1

    in_threads(8, increment)
    assert total == 800
    assert os.listdir(shm) == []


def test_an_owner_that_enters_twice_leaves_at_the_second_release(path: str) -> None:
    first = Lock(path, owner="me").acquire()
    second = Lock(path, owner="me").acquire()
    third = Lock(path, owner="me").try_acquire()
    assert third is not None
    assert Lock(path, owner="you").try_acquire() is None
    assert Lock(path).try_acquire() is None
    first.release()
    first.release()  # a second release has no effect
    with pytest.raises(NotHeld):
        first.ensure_held()
    second.ensure_held()
    third.release()
    assert os.path.exists(path)
    second.release()
    assert not os.path.exists(path)


def test_an_owner_is_never_left_with_a_hold_just_released_by_another_thread(shm: Path) -> None:
    # Entering again and the last release race all the time: a caller that is inside must really hold the lock.
    path = shm / "owner.lock"

    def enter() -> None:
        for _ in range(300):
            with Lock(path, owner="us", timeout=60) as hold:
                hold.ensure_held()

    in_threads(8, enter)
    assert os.listdir(shm) == []


def test_an_owner_releases_with_the_last_of_its_failing_bodies(shm: Path) -> None:
    # Eight threads of one owner enter again and again, to various depths, and fail at any depth. A stranger gets in
    # between, and only when all of them are out.
    path = shm / "owner.lock"
    inside: list[int] = []
    strangers: list[int] = []
    done = threading.Event()

    def descend(depth: int, fails_at: int) -> None:
        with Lock(path, owner="us", timeout=60) as hold:
            inside.append(1)
            try:
                hold.ensure_held()
                if depth == fails_at:
                    raise ZeroDivisionError
                if depth < 4:
                    descend(depth + 1, fails_at)
            finally:
                inside.pop()

    def enter() -> None:
        for number in range(40):
            with contextlib.suppress(ZeroDivisionError):
                descend(0, number % 7)

    def intrude() -> None:
        while not done.is_set():
            with Lock(path, timeout=60):
                strangers.append(len(inside))

    stranger = threading.Thread(target=intrude)
    stranger.start()
    try:
        in_threads(8, enter)
    finally:
        done.set()
        stranger.join(60)
    assert set(strangers) == {0}
    assert os.listdir(shm) == []


def test_an_owners_hold_can_be_released_by_any_of_its_threads(path: str) -> None:
    # Each handle counts once, whichever thread releases it, and the last one frees the lock.
    holds = [Lock(path, owner="us").acquire() for _ in range(3)]
    in_threads(1, lambda: holds.append(Lock(path, owner="us").acquire()))
    for hold in holds[:2]:
        in_threads(1, hold.release)
        hold.release()
    in_threads(2, holds[2].release)
    assert Lock(path).try_acquire() is None
    holds[3].ensure_held()  # acquired by a thread that is gone
    holds[3].release()
    assert not os.path.exists(path)


def test_a_wait_that_another_thread_can_end_is_not_called_a_deadlock(path: str) -> None:
    first = Lock(path).acquire()
    asked = threading.Event()

    def wait_and_release() -> None:
        asked.set()
        with Lock(path).acquire():  # no timeout: this thread holds nothing
            pass

    waiter = threading.Thread(target=wait_and_release, daemon=True)
    waiter.start()
    asked.wait(20)
    with pytest.raises(AcquireTimeout):  # limited, so no deadlock either
        Lock(path).acquire(timeout=0.05)
    in_threads(1, first.release)
    waiter.join(20)
    assert not waiter.is_alive()
    with Lock(path), Lock(path + ".2"):  # it may hold as many other locks as it likes
        pass


def test_the_first_locks_of_many_threads_share_one_table_of_holds(spawn: Callable[..., Peer], path: str) -> None:
    # The first use sets things up; two threads that do so at once must end up with one table of holds.
    process = spawn(
        """
        together = threading.Barrier(16)
        refused = []
        sys.setswitchinterval(1e-6)
        def first():
            together.wait()
            lock = Lock(path, heartbeat=0.01)
            for _ in range(10):
                with lock:
                    try:
                        Lock(path).acquire()
                    except holdfast.WouldDeadlock:
                        refused.append(1)
        threads = [threading.Thread(target=first) for _ in range(16)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        say(len(refused), os.listdir(os.path.dirname(path)))
        """,
        path,
    )
    process.expect("160 []")
    process.finish()
