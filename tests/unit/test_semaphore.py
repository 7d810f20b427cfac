"""The face of a semaphore (lock.py). test_slots.py has the engine's work with several slots."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AcquireCancelled,
    AcquireTimeout,
    Hold,
    InvalidPath,
    Liveness,
    Lock,
    LockLost,
    NotHeld,
    ProtocolMismatch,
    Semaphore,
    WouldDeadlock,
)
from unit.elsewhere import elsewhere
from unit.stepping import Stepped

PATIENCE = 60.0


@pytest.fixture
def base(disk: Path) -> Path:
    return disk / "b"


def files(base: Path) -> list[str]:
    return sorted(os.listdir(base.parent))


# -- requests ----------------------------------------------------------------------------------------------------------


def test_construction_does_no_io(base: Path) -> None:
    Semaphore(base, 3)
    assert files(base) == []


@pytest.mark.parametrize("slots", [0, -1, 1001, 10**30])
def test_a_number_that_makes_no_sense_is_refused(base: Path, slots: int) -> None:
    with pytest.raises(ValueError, match="slots must be from 1 to 1000"):
        Semaphore(base, slots)


@pytest.mark.parametrize("slots", [True, 2.0, "2", None, b"2"])
def test_anything_but_a_number_is_refused(base: Path, slots: Any) -> None:
    with pytest.raises(TypeError, match="slots, how many"):
        Semaphore(base, slots)


def test_the_number_of_slots_is_required(base: Path) -> None:
    with pytest.raises(TypeError):
        Semaphore(base)  # type: ignore[call-arg]


def test_a_shared_semaphore_is_refused(base: Path) -> None:
    for protocol in ("sema", "flock"):
        with pytest.raises(ValueError, match="more slots"):
            Semaphore(base, 2, shared=True, protocol=protocol)
    Semaphore(base, 2, shared=False)


def test_an_option_that_a_lock_refuses_is_refused(base: Path) -> None:
    for options in ({"timeout": -1}, {"stale": "sometimes"}, {"mode": 0}, {"protocol": "none"}, {"heartbeat": -1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            Semaphore(base, 2, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="colour"):
        Semaphore(base, 2, colour="red")  # type: ignore[call-arg]


@pytest.mark.parametrize("bad", ["", "/", "/tmp/", "a\0b", "/tmp/.."])
def test_a_base_that_can_name_no_lock_files_is_refused(bad: str) -> None:
    with pytest.raises(InvalidPath):
        Semaphore(bad, 2)


def test_the_base_does_not_move_with_the_working_directory(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base.parent)
    semaphore = Semaphore("b", 2)
    monkeypatch.chdir("/")
    assert semaphore.base == semaphore.path == str(base)
    with semaphore as hold:
        assert hold.path == f"{base}.0.lock"


def test_a_missing_directory_is_made_only_when_asked_for(base: Path) -> None:
    with pytest.raises(InvalidPath, match="does not exist"):
        Semaphore(base / "x" / "y", 2).acquire()
    with Semaphore(base / "x" / "y", 2, parents=True) as hold:
        assert hold.path == f"{base}/x/y.0.lock"


def test_a_representation_names_the_base_and_the_slots(face: Any, base: Path) -> None:
    assert repr(face.Semaphore(base, 2)) == f"<holdfast.{face.prefix}Semaphore {str(base)!r} slots=2 protocol=sema>"


# -- holding -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["sema", pytest.param("flock", marks=pytest.mark.needs("flock"))])
def test_as_many_callers_get_in_as_there_are_slots(face: Any, base: Path, protocol: str) -> None:
    semaphore = face.Semaphore(base, 3, protocol=protocol, tag="t")
    assert (semaphore.slots, semaphore.protocol) == (3, protocol)
    holds = [semaphore.acquire() for _ in range(3)]
    assert [hold.slot for hold in holds] == [0, 1, 2]
    assert [hold.path for hold in holds] == [f"{base}.{number}.lock" for number in range(3)]
    assert semaphore.try_acquire() is None
    for hold in holds:
        hold.ensure_held()
    holds[1].release()
    again = semaphore.try_acquire()
    assert again is not None
    assert again.slot == 1
    for hold in (holds[0], holds[2], again):
        hold.release()
    with pytest.raises(NotHeld):
        again.ensure_held()
    assert files(base) == ([] if protocol == "sema" else [f"b.{number}.lock" for number in range(3)])


def test_one_slot_is_a_lock(base: Path) -> None:
    semaphore = Semaphore(base, 1)
    with semaphore as hold:
        assert hold.slot == 0
        assert semaphore.try_acquire() is None
        with pytest.raises(AcquireTimeout, match="its one slot is taken") as caught:
            semaphore.acquire(timeout=0.01)
        assert caught.value.path == str(base)
        with pytest.raises(WouldDeadlock, match=r"the one slot of .* is held"):
            semaphore.acquire()


def test_the_hold_of_a_lock_has_no_slot(base: Path) -> None:
    with Lock(base) as hold:
        assert hold.slot is None


def test_a_slot_is_the_lock_that_its_file_says(base: Path) -> None:
    """Each slot is an ordinary lock file: its path can be looked at, waited for, and broken."""
    semaphore = Semaphore(base, 2)
    with Lock(f"{base}.0.lock"), semaphore as hold:
        assert hold.slot == 1
        assert semaphore.try_acquire() is None
    lost = semaphore.acquire()
    assert Lock(lost.path).break_lock() is not None
    assert lost.lost
    with semaphore as hold:
        assert hold.slot == 0
    with pytest.raises(LockLost):
        lost.release()


def test_a_block_left_in_another_order_frees_its_own_slot(base: Path) -> None:
    semaphore = Semaphore(base, 2)
    with semaphore as outer:
        with semaphore as inner:
            assert [outer.slot, inner.slot] == [0, 1]
        outer.ensure_held()
        with pytest.raises(NotHeld):
            inner.ensure_held()
    assert files(base) == []


def test_a_block_that_fails_frees_its_slot(face: Any, base: Path) -> None:
    semaphore = face.Semaphore(base, 2)
    with pytest.raises(RuntimeError, match="body"), semaphore:
        raise RuntimeError("body")
    assert semaphore.status().free == 2


def test_a_decorated_function_runs_in_a_slot(base: Path) -> None:
    semaphore = Semaphore(base, 2)

    @semaphore
    def work(depth: int) -> list[str]:
        """Work."""
        return work(depth - 1) if depth else files(base)

    assert work(0) == ["b.0.lock"]
    assert work(1) == ["b.0.lock", "b.1.lock"]
    assert work.__doc__ == "Work."
    assert files(base) == []

    def generator() -> Any:
        yield

    with pytest.raises(TypeError, match="generator"):
        semaphore(generator)


def test_a_pickled_semaphore_is_the_same_semaphore(face: Any, base: Path) -> None:
    semaphore = face.Semaphore(base, 3, tag="t", timeout=2.5)
    with semaphore as hold:
        copy = face.seen(pickle.loads(pickle.dumps(semaphore)))
        assert (copy.base, copy.slots, copy.protocol) == (str(base), 3, "sema")
        with copy.acquire() as other:
            assert (other.slot, other.record.tag) == (1, "t")
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(hold)


class Named(Semaphore):
    """A subclass, as an application may define it."""


def test_a_subclass_survives_a_pickle(base: Path) -> None:
    assert type(pickle.loads(pickle.dumps(Named(base, 2)))) is Named


def test_an_owner_has_one_slot(face: Any, base: Path) -> None:
    semaphore = face.Semaphore(base, 2, owner="me")
    with semaphore as outer, semaphore as inner:
        assert outer.slot == inner.slot == 0
        third = face.Semaphore(base, 2, owner="me").acquire()
        with face.Semaphore(base, 2, owner="you") as other:
            assert [third.slot, other.slot] == [0, 1]
            assert semaphore.wait()  # which would get its own slot again
            assert not face.Semaphore(base, 2).wait(timeout=0)
    assert files(base) == ["b.0.lock"]
    third.release()
    assert files(base) == []


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_a_refusal_says_that_all_are_taken_by_whom_and_what_next(face: Any, base: Path) -> None:
    semaphore = face.Semaphore(base, 5, tag="nightly", timeout=0.01)
    holds = [semaphore.acquire() for _ in range(5)]
    with pytest.raises(AcquireTimeout) as caught:
        semaphore.acquire()
    error = pickle.loads(pickle.dumps(caught.value))
    said = str(error)
    for part in (f"a slot of {base}", "within 0.01 s", "all 5 slots", "slot 0: held by", "slot 2", "2 more", "nightly"):
        assert part in said, part
    assert "slot 3" not in said
    assert "Wait until one of these" in said
    assert (error.path, error.protocol) == (str(base), "sema")
    assert error.holder is not None
    assert error.holder.pid == os.getpid()
    for hold in holds:
        hold.release()


def test_a_slot_whose_holder_is_unknown_is_named_in_the_refusal(face: Any, base: Path) -> None:
    """It has no living holder to wait for, so it is the slot about which the caller can do something."""
    Path(f"{base}.1.lock").write_bytes(b"torn")
    with face.Semaphore(base, 2), pytest.raises(AcquireTimeout) as caught:
        face.Semaphore(base, 2).acquire(timeout=0)
    assert f"Slot 1, {base}.1.lock: Look at the file" in str(caught.value)
    assert "at once" in str(caught.value)


def test_a_wait_for_ones_own_slots_is_refused(face: Any, base: Path, within: Callable[[float], Any]) -> None:
    semaphore = face.Semaphore(base, 2)
    with semaphore, semaphore, within(PATIENCE), pytest.raises(WouldDeadlock, match="all 2 slots") as caught:
        semaphore.acquire()
    assert caught.value.path == str(base)
    with semaphore, semaphore:
        other = face.begin(semaphore.acquire)  # which this one will let in
    other.result().release()


def test_a_thread_waits_for_a_slot_that_another_releases(base: Path, within: Callable[[float], Any]) -> None:
    semaphore = Semaphore(base, 2)
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with semaphore:
            inside.set()
            leave.wait(PATIENCE)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(PATIENCE)
    with within(PATIENCE), semaphore:
        with pytest.raises(AcquireTimeout):
            semaphore.acquire(timeout=0.01)
        leave.set()
        with semaphore as second:
            assert second.slot == 0
    thread.join()


def test_a_wait_for_any_slot_takes_none(face: Any, base: Path) -> None:
    semaphore = face.Semaphore(base, 2)
    assert semaphore.wait()
    first, second = semaphore.acquire(), semaphore.acquire()
    assert not semaphore.wait(timeout=0.01)
    assert not face.Semaphore(base, 2, timeout=0).wait()
    second.release()
    assert semaphore.wait()
    assert files(base) == ["b.0.lock"]
    first.release()


def test_a_long_wait_is_logged(
    base: Path, environments: Callable[..., Stepped], caplog: pytest.LogCaptureFixture, logged: threading.Event
) -> None:
    semaphore, env = Semaphore(base, 2), environments()
    semaphore._env = env  # type: ignore[assignment]
    holds = [Semaphore(base, 2, tag=tag).acquire() for tag in ("busy", "lazy")]
    clock = env.real.monotonic
    env.instead["monotonic"] = lambda: clock() - (0 if "watch" in env.steps else 1.3)
    with pytest.raises(AcquireCancelled):
        semaphore.acquire(timeout=None, cancel=logged)
    for hold in holds:
        hold.release()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert lines[0].startswith(f"waiting for {base}: all 2 slots are taken")
    for tag in ("busy", "lazy"):
        assert tag in lines[0]


def test_many_threads_fill_the_slots_and_all_are_served(base: Path, within: Callable[[float], Any]) -> None:
    semaphore = Semaphore(base, 3)
    inside: set[int] = set()
    mutex, mistakes, most = threading.Lock(), [], 0

    def work() -> None:
        nonlocal most
        for _ in range(20):
            with semaphore as hold:
                with mutex:
                    if hold.slot in inside or hold.slot is None:
                        mistakes.append(hold.slot)
                    inside.add(hold.slot or 0)
                    most = max(most, len(inside))
                os.sched_yield()
                with mutex:
                    inside.discard(hold.slot or 0)

    threads = [threading.Thread(target=work) for _ in range(10)]
    with within(PATIENCE * 2):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert mistakes == []
    assert 1 <= most <= 3
    assert files(base) == []


# -- looking -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["sema", pytest.param("flock", marks=pytest.mark.needs("flock", "linux"))])
def test_a_look_counts_the_slots_and_changes_none(face: Any, base: Path, protocol: str) -> None:
    semaphore = face.Semaphore(base, 3, tag="t", protocol=protocol)
    nobody = semaphore.status()
    assert (len(nobody), nobody.free, nobody.locked, nobody.holders, nobody.waiters) == (3, 3, False, (), ())
    assert files(base) == []
    first, second = semaphore.acquire(), semaphore.acquire()
    first.release()
    some = semaphore.status()
    assert [status.locked for status in some] == [False, True, False]
    assert [status.path for status in some] == [f"{base}.{number}.lock" for number in range(3)]
    assert (some.free, some.locked) == (2, False)
    assert [holder.pid for holder in some.holders] == [os.getpid()]
    assert [holder.tag for holder in some.holders] == ["t"]
    assert some[1].liveness is Liveness.ALIVE
    holds = [second, semaphore.acquire(), semaphore.acquire()]
    every = semaphore.status()
    assert (every.free, every.locked, len(every.holders)) == (0, True, 3)
    assert pickle.loads(pickle.dumps(every)) == every
    for hold in holds:
        hold.release()


def test_waiters_are_seen(base: Path) -> None:
    semaphore = Semaphore(base, 2, tag="next")
    holds = [semaphore.acquire(), semaphore.acquire()]
    thread = threading.Thread(target=lambda: semaphore.acquire().release())
    thread.start()
    while not semaphore.status().waiters:
        os.sched_yield()
    status = semaphore.status()
    assert [(waiter.position, waiter.pid, waiter.tag) for waiter in status.waiters] == [(1, os.getpid(), "next")]
    assert status[0].waiters == status[1].waiters
    for hold in holds:
        hold.release()
    thread.join()


def test_a_look_tells_of_all_slots_where_a_wait_raises(face: Any, base: Path) -> None:
    """One slot's path has another kind of file; a look still reports the other slots."""
    Path(f"{base}.1.lock").write_text('{"holder": "bd", "pid": 1, "hostname": "h", "started_at": "x", "version": "1"}')
    semaphore = face.Semaphore(base, 2)
    status = semaphore.status()
    assert [slot.locked for slot in status] == [False, True]
    with semaphore, pytest.raises(ProtocolMismatch):
        semaphore.acquire(timeout=0)


# -- processes ---------------------------------------------------------------------------------------------------------


def test_a_child_does_not_own_its_parents_hold(face: Any, base: Path) -> None:
    semaphore = face.Semaphore(base, 2)
    with semaphore as hold:

        def in_the_child() -> tuple[bool, int | None, int]:
            hold.release()
            with semaphore as other:
                return hold.lost, other.slot, semaphore.status().free

        assert elsewhere(in_the_child) == (False, 1, 0)
        hold.ensure_held()


def test_an_error_at_one_slot_leaves_none_held(
    base: Path, environments: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    semaphore, env = Semaphore(base, 2), environments()
    semaphore._env = env  # type: ignore[assignment]

    def fail(_env: object, _ref: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.lock.keep", fail)
        with pytest.raises(MemoryError):
            semaphore.acquire()
    assert files(base) == []
    hold: Hold | None = semaphore.try_acquire()
    assert hold is not None
    hold.release()
