"""Events of locks, for callbacks and for a log (events.py, _core/attempt.py)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AcquireTimeout, AsyncLock, Lock, LockLost, Semaphore, WouldDeadlock, acquire_all, events
from holdfast._core import attempt
from holdfast._core.attempt import AttemptEvents
from holdfast._core.hold import HoldRef
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.queue import QueueEntry
from holdfast.events import Event, listen
from unit.elsewhere import elsewhere
from unit.loops import LOOPS, run_on
from unit.stepping import Contend, sema_record

PATIENCE = 60.0


@pytest.fixture
def path(disk: Path) -> Path:
    return disk / "l"


@pytest.fixture
def told() -> Iterator[list[Event]]:
    """All events of this process during the test."""
    gc.collect()  # releases a hold that an earlier test has left in a traceback
    heard: list[Event] = []
    end = listen(heard.append)
    yield heard
    end()
    assert not events.listeners


def kinds(told: list[Event]) -> list[str]:
    return [event.kind for event in told]


def dead_lock(path: Path) -> int:
    """Leave the lock of a killed process; its pid."""
    code = "import os, sys, holdfast; holdfast.Lock(sys.argv[1]).acquire(); os.kill(os.getpid(), 9)"
    child = subprocess.Popen([sys.executable, "-c", code, str(path)])
    assert child.wait(PATIENCE) == -signal.SIGKILL
    return child.pid


# -- events and their order --------------------------------------------------------------------------------------------


def test_every_event_is_reported_with_its_fields(path: Path, told: list[Event]) -> None:
    with Lock(path, tag="why") as hold:
        assert kinds(told) == ["acquired"]
        assert not hold.lost
    acquired, released = told
    for event in told:
        assert (event.path, event.protocol, event.tag, event.slot) == (str(path), "sema", "why", None)
        assert (event.pid, event.context) == (os.getpid(), "MainThread")
        assert (event.holder, event.recovered_from) == (None, None)
        assert event.waited == 0.0
    assert (acquired.kind, acquired.held, released.kind) == ("acquired", None, "released")
    assert released.held is not None
    assert 0 <= released.held < PATIENCE
    assert acquired.number == released.number
    assert acquired.time <= released.time
    with Lock(path):
        pass
    assert told[2].number == told[3].number > released.number
    assert pickle.loads(pickle.dumps(released)) == released


def test_a_wait_is_reported_from_beginning_to_end(path: Path, told: list[Event]) -> None:
    """The waiter, the holder, and the outcome, in another thread."""
    hold = Lock(path, tag="first").acquire()
    begun = threading.Event()
    second = Lock(path, tag="second", on_event=lambda event: event.kind == "waiting" and begun.set())

    def work() -> None:
        with second:
            pass

    thread = threading.Thread(target=work, name="worker")
    thread.start()
    assert begun.wait(PATIENCE)
    hold.release()
    thread.join(PATIENCE)
    mine = [event for event in told if event.tag == "second"]
    assert kinds(mine) == ["waiting", "acquired", "released"]
    assert {event.context for event in mine} == {"worker"}
    assert len({event.number for event in mine}) == 1
    holder = mine[0].holder
    assert holder is not None
    assert (holder.pid, holder.tag) == (os.getpid(), "first")
    assert mine[1].waited == mine[2].waited
    assert mine[1].waited


def test_giving_up_is_reported(path: Path, told: list[Event]) -> None:
    """A timeout, a failed try, a deadlock: `gave-up`, once, and never `acquired`."""
    with Lock(path):
        with pytest.raises(AcquireTimeout):
            Lock(path).acquire(timeout=0.3)
        assert kinds(told) == ["acquired", "waiting", "gave-up"]
        assert told[1].number == told[2].number != told[0].number
        assert told[2].waited
        assert told[2].holder is not None
        assert told[2].holder.pid == os.getpid()
        del told[1:]
        assert Lock(path).try_acquire() is None
        with pytest.raises(WouldDeadlock):
            Lock(path).acquire()
        assert [event.kind for event in told[1:]] == ["gave-up", "gave-up"]
    path.mkdir()
    with pytest.raises(holdfast.InvalidPath):
        Lock(path).acquire()
    assert kinds(told)[-2:] == ["released", "gave-up"]
    path.rmdir()
    before = kinds(told)
    assert Lock(path).wait(timeout=0)
    assert kinds(told) == before, "waiting without acquiring makes no event"


def test_a_ctrl_c_while_waiting_is_reported_as_giving_up(path: Path, told: list[Event]) -> None:
    def interrupt(event: Event) -> None:
        if event.kind == "waiting":
            signal.raise_signal(signal.SIGINT)

    with Lock(path):
        with pytest.raises(KeyboardInterrupt):
            Lock(path, on_event=interrupt).acquire(timeout=PATIENCE)
        assert kinds(told) == ["acquired", "waiting", "gave-up"]


def test_reclaiming_a_dead_holders_lock_is_reported(path: Path, told: list[Event]) -> None:
    pid = dead_lock(path)
    with Lock(path):
        pass
    assert kinds(told) == ["reclaimed", "acquired", "released"]
    assert len({event.number for event in told}) == 1
    for event in told:
        assert event.recovered_from is not None
        assert event.recovered_from.pid == pid


def test_the_hold_of_an_owner_is_reported_once(path: Path, told: list[Event]) -> None:
    """One `acquired` and one `released` for each hold, however many handles share it, and whichever is released
    last."""
    lock = Lock(path, owner="me")
    first = lock.acquire()
    with lock:
        first.release()
        assert kinds(told) == ["acquired"]
    assert kinds(told) == ["acquired", "released"]
    assert told[0].number == told[1].number


def test_a_waiter_that_joins_is_reported_to_have_joined(path: Path, contend: Contend, told: list[Event]) -> None:
    """Another call of the owner got in meanwhile: that hold is reported already, and this wait has ended."""
    holder = contend(path)
    held = holder.get()
    waiter = contend(path, owner="me", timeout=None)
    waiter.step()
    held.release()
    other = contend(path, waiter.env, owner="me").get()
    while not waiter.done:
        waiter.step()
    assert waiter.result is other
    mine = [event for event in told if event.kind in ("waiting", "joined")]
    assert kinds(mine) == ["waiting", "joined"]
    assert mine[0].number == mine[1].number
    assert [event.kind for event in told if event.number == mine[0].number] == ["waiting", "joined"]


def test_a_slot_is_reported(disk: Path, told: list[Event]) -> None:
    semaphore = Semaphore(disk / "s", 2)
    with semaphore, semaphore, pytest.raises(AcquireTimeout):
        semaphore.acquire(timeout=0.3)
    assert [(event.kind, event.slot) for event in told] == [
        ("acquired", 0),
        ("acquired", 1),
        ("waiting", None),
        ("gave-up", None),
        ("released", 1),
        ("released", 0),
    ]
    assert {event.path for event in told} == {str(disk / "s")}


def test_each_of_several_locks_is_reported_and_so_is_its_undoing(disk: Path, told: list[Event]) -> None:
    with Lock(disk / "b"):
        with pytest.raises(AcquireTimeout):
            acquire_all([Lock(disk / "b"), Lock(disk / "a")], timeout=0.3)
        assert [(event.kind, Path(event.path).name) for event in told[1:]] == [
            ("acquired", "a"),
            ("waiting", "b"),
            ("gave-up", "b"),
            ("released", "a"),
        ]
    del told[:]
    with acquire_all([Lock(disk / "b"), Lock(disk / "a")]):
        pass
    assert kinds(told) == ["acquired", "acquired", "released", "released"]


@pytest.mark.parametrize("protocol", ["sema", "flock"])
def test_a_loss_is_reported_once_and_before_the_release(path: Path, told: list[Event], protocol: str) -> None:
    switched_off = os.environ.get("HOLDFAST_OS") == "generic" or "flock" in os.environ.get("HOLDFAST_WITHOUT", "")
    if protocol == "flock" and switched_off:
        pytest.skip("kernel locks are switched off (HOLDFAST_OS, HOLDFAST_WITHOUT)")
    hold = Lock(path, protocol=protocol).acquire()
    path.unlink()
    assert hold.lost
    assert hold.lost
    with pytest.raises(LockLost):
        hold.release()
    assert kinds(told) == ["acquired", "lost", "released"]
    hold = Lock(path, protocol=protocol).acquire()
    path.unlink()
    with pytest.raises(LockLost):
        hold.release()  # which finds the loss itself
    assert kinds(told)[3:] == ["acquired", "lost", "released"]


def test_a_loss_is_reported_before_the_holder_looks(path: Path) -> None:
    """As with `on_lost`: a listener for a lock's events hears of its loss while the holder works."""
    lost = threading.Event()
    hold = Lock(path, on_event=lambda event: event.kind == "lost" and lost.set()).acquire()
    path.unlink()
    assert lost.wait(PATIENCE)
    with pytest.raises(LockLost):
        hold.release()


def test_a_loss_found_by_a_beat_is_reported_by_another_thread(path: Path, disk: Path) -> None:
    """The keeper's thread keeps all holds fresh: a slow callback in it would let them grow stale."""
    lost, go, names = threading.Event(), threading.Event(), []

    def callback(event: Event) -> None:
        if event.kind == "lost":
            names.append(threading.current_thread().name)
            lost.set()
            assert go.wait(PATIENCE)

    end = listen(callback)
    other = Lock(disk / "other", protocol="sidecar", heartbeat=0.05).acquire()
    hold = Lock(path, heartbeat=0.05).acquire()
    path.write_bytes(sema_record(1, 1))
    assert lost.wait(PATIENCE)
    before = other.path, os.stat(other.path).st_mtime_ns
    while os.stat(other.path).st_mtime_ns == before[1]:
        os.sched_yield()
    go.set()
    with pytest.raises(LockLost):
        hold.release()
    other.release()
    end()
    assert names == ["holdfast-lost"]


def test_a_release_during_the_report_of_a_loss_is_reported_after_it(path: Path, contend: Contend) -> None:
    """AE1: the holder releases as the keeper is about to report a loss: the loss is still reported once, and first."""
    told: list[Event] = []

    def on_lost(_error: LockLost) -> None:
        with contextlib.suppress(LockLost):
            held.release()

    held = contend(path, on_lost=on_lost, on_event=told.append).get()
    path.unlink()
    assert not held.check()
    assert kinds(told) == ["acquired", "lost", "released"]
    path.touch()


def test_threads_that_end_a_hold_together_report_it_once(path: Path, contend: Contend) -> None:
    """AE1."""
    for _ in range(30):
        told: list[Event] = []
        held = contend(path, on_event=told.append).get()
        path.write_bytes(sema_record(1, 1))
        start = threading.Barrier(4)

        def end(held: FileHold = held, start: threading.Barrier = start, release: bool = False) -> None:
            start.wait(PATIENCE)
            with contextlib.suppress(LockLost):
                held.release() if release else held.check()

        threads = [threading.Thread(target=end, kwargs={"release": number > 1}) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert kinds(told) == ["acquired", "lost", "released"]
        path.unlink()


def test_a_hold_older_than_the_listener_is_reported(path: Path, told: list[Event]) -> None:
    saved = dict(events.listeners)
    events.listeners.clear()
    hold = Lock(path).acquire()
    events.listeners.update(saved)
    hold.release()
    assert kinds(told) == ["released"]
    assert told[0].waited is None
    assert told[0].held is not None


def test_the_events_of_several_threads_are_kept_apart(path: Path, told: list[Event]) -> None:
    def work(number: int) -> None:
        lock = Lock(path, owner=number % 2 or None)
        for turn in range(15):
            with contextlib.suppress(LockLost, AcquireTimeout), lock.acquire(timeout=0.002 * (turn % 4)):
                if turn % 5 == 0:
                    path.unlink(missing_ok=True)
            with contextlib.suppress(LockLost, AcquireTimeout), lock.acquire(timeout=0.1):
                pass
        finished.append(number)

    finished: list[int] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(finished) == 6
    assert len(whole_courses(told)) > 20


def whole_courses(told: list[Event]) -> list[str]:
    courses: dict[int, list[str]] = {}
    for event in told:
        courses.setdefault(event.number, []).append(event.kind)
    found = [" ".join(course) for course in courses.values()]
    wanted = re.compile("(waiting )?(gave-up|joined|(reclaimed )?acquired (lost )?released)")
    assert not [course for course in found if not wanted.fullmatch(course)]
    return found


@pytest.mark.parametrize("waits", [False, True])
def test_a_loss_found_before_delivery_is_reported_after_its_own_acquisition(
    waits: bool, path: Path, told: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """AE5: found by a thread of the same owner, which would join the hold."""
    real, joined, lock = FileHold.ref, FileHold.join, Lock(path, owner="one")

    def join(held: FileHold, *caller: Any) -> HoldRef | None:
        monkeypatch.setattr(FileHold, "join", joined)
        path.unlink()
        return joined(held, *caller)

    def ref(held: FileHold, *caller: Any) -> HoldRef:
        made = real(held, *caller)
        monkeypatch.setattr(FileHold, "ref", real)
        monkeypatch.setattr(FileHold, "join", join)
        other = threading.Thread(target=lock.try_acquire)
        other.start()
        other.join(PATIENCE)
        return made

    def hold_until_it_waits() -> None:
        with Lock(path):
            held.set()
            while "waiting" not in kinds(told):
                time.sleep(0.001)

    held = threading.Event()
    if waits:
        before = threading.Thread(target=hold_until_it_waits)
        before.start()
        assert held.wait(PATIENCE)
    monkeypatch.setattr(FileHold, "ref", ref)
    with pytest.raises(LockLost), lock.acquire(PATIENCE):
        pass
    if waits:
        before.join(PATIENCE)
    assert [course for course in whole_courses(told) if "lost" in course] == [
        "waiting " * waits + "acquired lost released"
    ]


# -- listeners ---------------------------------------------------------------------------------------------------------


def test_a_listener_hears_nothing_after_its_end(path: Path) -> None:
    told: list[Event] = []
    end, other = listen(told.append), listen(told.append)
    with Lock(path):
        end()
        end()
    assert kinds(told) == ["acquired", "acquired", "released"]
    other()
    with Lock(path):
        pass
    assert len(told) == 3


def test_a_callback_that_fails_breaks_neither_the_lock_nor_other_callbacks(
    path: Path, told: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    """U1."""

    def fail(event: Event) -> None:
        raise ZeroDivisionError(event.kind)

    end, last = listen(fail), listen(told.append)
    hold = Lock(path).acquire()
    with pytest.raises(AcquireTimeout):
        Lock(path).acquire(timeout=0.3)
    path.unlink()
    with pytest.raises(LockLost):
        hold.release()
    end()
    last()
    assert told[::2] == told[1::2]
    del told[::2]
    assert kinds(told) == ["acquired", "waiting", "gave-up", "lost", "released"]
    failures = [record for record in caplog.records if record.levelno == logging.ERROR and record.exc_info]
    assert [str(record.exc_info[1]) for record in failures if record.exc_info] == kinds(told)


def test_a_callback_that_fails_without_a_name_is_reported(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """U1: its `__repr__` fails as well."""

    class Failing:
        def __call__(self, event: Event) -> None:
            raise ZeroDivisionError

        def __repr__(self) -> str:
            raise ZeroDivisionError

    with Lock(path, on_event=Failing()):
        pass
    assert [record.message.split(" failed on ")[1] for record in caplog.records] == [
        "the event 'acquired'",
        "the event 'released'",
    ]


def test_a_ctrl_c_in_a_callback_gives_the_lock_back(path: Path, told: list[Event]) -> None:
    """U1: it reaches the caller once all have heard the event; an undelivered hold is given back."""
    raised: list[str] = []

    def interrupt(event: Event) -> None:
        if not raised:
            raised.append(event.kind)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Lock(path, on_event=interrupt).acquire()
    assert raised == ["acquired"]
    assert kinds(told) == ["acquired", "released"]
    assert not path.exists()
    raised[:] = []
    hold = Lock(path, on_event=lambda event: event.kind == "released" and interrupt(event)).acquire()
    with pytest.raises(KeyboardInterrupt):
        hold.release()
    assert kinds(told)[2:] == ["acquired", "released"]
    assert not path.exists()


def test_a_ctrl_c_in_a_callback_leaves_another_call_of_the_owner_its_lock(path: Path) -> None:
    """The other call has joined the hold that is given back."""
    joined: list[Any] = []

    def interrupt(event: Event) -> None:
        if event.kind == "acquired":
            joined.append(Lock(path, owner="o").acquire())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Lock(path, owner="o", on_event=interrupt).acquire()
    joined[0].ensure_held()
    assert Lock(path).try_acquire() is None
    joined[0].release()
    assert not path.exists()


def test_a_ctrl_c_at_the_end_of_a_wait_leaves_another_call_of_the_owner_its_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other waiters of the owner are told to join just before the call has its hold."""
    before = Lock(path).acquire()
    joined: list[Any] = []
    real = QueueEntry.hold

    def hold(entry: QueueEntry) -> None:
        real(entry)
        joined.append(Lock(path, owner="o").acquire())
        raise KeyboardInterrupt

    monkeypatch.setattr(QueueEntry, "hold", hold)
    lock = Lock(path, owner="o", on_event=lambda event: event.kind == "waiting" and before.release())
    with pytest.raises(KeyboardInterrupt):
        lock.acquire(timeout=PATIENCE)
    joined[0].ensure_held()
    assert Lock(path).try_acquire() is None
    joined[0].release()
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("ended", [False, True])
def test_a_loss_that_another_thread_finds_names_the_thread_of_the_holder(
    ended: bool, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the loss is logged, so it is the first event of the hold."""
    caplog.set_level(logging.WARNING, "holdfast")
    holds: list[Any] = []
    go_on = threading.Event()

    def work() -> None:
        holds.append(Lock(path).acquire())
        assert ended or go_on.wait(PATIENCE)

    thread = threading.Thread(target=work, name="before")
    thread.start()
    while not holds:
        time.sleep(0.001)
    if ended:
        thread.join()
    else:
        thread.name = "worker"
    path.unlink()
    assert holds[0].lost
    go_on.set()
    thread.join()
    assert [getattr(record, "holdfast_context", None) for record in caplog.records] == [thread.name]
    with pytest.raises(LockLost):
        holds[0].release()


def test_a_log_line_stays_one_line(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """U3: whatever a thread or task is called."""
    caplog.set_level(logging.DEBUG, "holdfast")
    thread = threading.Thread(target=lambda: Lock(path).acquire().release(), name="one\ntwo")
    thread.start()
    thread.join()
    assert len(caplog.messages) == 2
    assert not any("\n" in message for message in caplog.messages)
    assert caplog.records[0].holdfast_context == "one\ntwo"  # type: ignore[attr-defined]


def test_a_callback_may_use_locks(path: Path, disk: Path) -> None:
    """U2, AE2: other locks, and the lock that the event is about."""
    told: list[Event] = []

    def callback(event: Event) -> None:
        told.append(event)
        with Lock(disk / "journal"):
            Lock(path).status()
            with contextlib.suppress(AcquireTimeout):
                Lock(path).acquire(timeout=0).release()

    end = listen(callback)
    with Lock(path):
        pass
    end()
    assert kinds(told) == ["acquired", "released"]
    assert {event.path for event in told} == {str(path)}


def test_a_callback_runs_outside_the_mutex(path: Path) -> None:
    """AE2: another thread uses the same hold while the callback waits for that thread."""
    made: list[FileHold] = []
    done: list[str] = []
    stories: list[AttemptEvents] = []

    def look(event: Event) -> None:
        for held in [held for held in lock._env.holds.values() if held.path == str(path)]:
            made.append(held)
            if held.attempt_events is not None:
                stories.append(held.attempt_events)

        def use() -> None:
            for held in set(made):
                held.verify()
                held.join(held.request, ())
                with held.mutex:
                    pass
            for told in set(stories):
                with told._mutex:
                    done.append(event.kind)

        thread = threading.Thread(target=use)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive()

    end = listen(look)  # not on_event: the keeper would find the loss as well, at its own time
    lock = Lock(path, owner="me")
    hold = lock.acquire()
    refs = made[0].refs
    del refs[1:]
    path.unlink()
    assert hold.lost
    with pytest.raises(LockLost):
        hold.release()
    end()
    assert [kind for number, kind in enumerate(done) if kind not in done[:number]] == ["acquired", "lost", "released"]


def test_a_loss_found_by_a_joining_owner_is_reported_outside_the_mutex(path: Path, contend: Contend) -> None:
    """AE2."""
    owned: list[bool] = []
    held = contend(path, owner="me", on_lost=lambda _error: owned.append(held.mutex._is_owned())).get()  # type: ignore[attr-defined]
    path.write_bytes(sema_record(1, 1))
    assert held.join(held.request, ()) is None
    assert owned == [False]
    with pytest.raises(LockLost):
        held.release()


def test_a_callback_that_blocks_keeps_neither_threads_nor_the_order(path: Path, contend: Contend) -> None:
    """AE2: a thread that finds another one delivering leaves its event to that one, and does not wait."""
    told: list[str] = []
    inside, go = threading.Event(), threading.Event()

    def callback(event: Event) -> None:
        if event.kind == "lost":
            inside.set()
            assert go.wait(PATIENCE)
        told.append(event.kind)

    held = contend(path, on_event=callback).get()
    path.write_bytes(sema_record(1, 1))
    thread = threading.Thread(target=held.check)
    thread.start()
    assert inside.wait(PATIENCE)
    with pytest.raises(LockLost):
        held.release()
    assert told == ["acquired"]
    go.set()
    thread.join(PATIENCE)
    assert told == ["acquired", "lost", "released"]


def test_without_a_listener_no_event_is_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AE3: on the fast path, there is not even an `AttemptEvents`."""

    def made(*_arguments: object) -> None:
        raise AssertionError("made for nobody")

    monkeypatch.setattr(attempt, "Event", made)
    with Lock(path), pytest.raises(AcquireTimeout):
        Lock(path).acquire(timeout=0.3)
    monkeypatch.setattr(AttemptEvents, "__init__", made)
    with Lock(path) as hold:
        assert hold._held.attempt_events is None


def test_a_child_reports_its_own_holds_only(path: Path, disk: Path, told: list[Event]) -> None:
    """AE4."""
    outer = Lock(path)
    with outer as hold:
        with pytest.raises(AcquireTimeout):
            Lock(path).acquire(timeout=0.3)
        before = len(told)

        def child() -> list[tuple[str, str, bool]]:
            assert len(told) == before
            hold.release()
            hold._held.check()
            hold._held.give_back()
            assert hold._held.attempt_events is None or hold._held.attempt_events.undone(hold._held) is None
            with Lock(disk / "mine"):
                pass
            return [(event.kind, Path(event.path).name, event.pid == os.getpid()) for event in told[before:]]

        assert elsewhere(child) == [("acquired", "mine", True), ("released", "mine", True)]
        assert len(told) == before
    assert kinds(told)[before:] == ["released"]


def test_only_a_callback_is_accepted(path: Path) -> None:
    async def nobody_awaits(event: object) -> None: ...

    class Callback:
        async def __call__(self, event: object) -> None: ...

    for wrong in (3, "print", nobody_awaits, partial(nobody_awaits), Callback(), Callback().__call__):
        with pytest.raises(TypeError, match="on_event"):
            Lock(path, on_event=wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="on_lost"):
            Lock(path, on_lost=wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="callback"):
            listen(wrong)  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(Lock(path, on_event=print)))._options["on_event"] is print


def test_a_release_at_exit_is_reported(path: Path) -> None:
    code = (
        "import sys, holdfast, holdfast.events\n"
        "holdfast.events.listen(lambda event: print(event.kind, flush=True))\n"
        "holdfast.Lock(sys.argv[1]).acquire()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout.split(), done.stderr) == (["acquired", "released"], "")


# -- tasks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("durable", [False, True])
def test_a_tasks_events_are_reported_as_its_own(path: Path, told: list[Event], kind: str, durable: bool) -> None:
    """Also where its steps run in threads."""

    async def main() -> None:
        lock = AsyncLock(path, durable=durable)
        async with lock:
            with pytest.raises(AcquireTimeout):
                await asyncio.create_task(lock.acquire(timeout=0.3), name="patient")
            waiting = asyncio.create_task(lock.acquire(), name="impatient")
            while kinds(told).count("waiting") < 2:
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    run_on(kind)(asyncio.wait_for(main(), PATIENCE))
    numbers = {event.number: event for event in told}
    by_task = {
        event.context: [other.kind for other in told if other.number == number] for number, event in numbers.items()
    }
    assert by_task.pop("patient") == ["waiting", "gave-up"]
    assert by_task.pop("impatient") == ["waiting", "gave-up"]
    assert list(by_task.values()) == [["acquired", "released"]]
    assert next(iter(by_task)).startswith("Task-")


@pytest.mark.parametrize("durable", [False, True])
def test_a_task_cancelled_as_it_gets_the_lock_reports_a_complete_sequence(
    path: Path, told: list[Event], durable: bool
) -> None:
    """At any moment: `acquired` and `released`, or `gave-up`."""

    async def main() -> None:
        for delay in range(12):
            lock = AsyncLock(path, durable=durable)
            hold = await lock.acquire()
            task = asyncio.create_task(lock.acquire())
            while kinds(told)[-1] != "waiting":
                await asyncio.sleep(0)
            await hold.release()
            for _ in range(delay):
                await asyncio.sleep(0.0005 if delay % 2 else 0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await task).release()
            assert not path.exists()

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    for number in {event.number for event in told}:
        course = [event.kind for event in told if event.number == number]
        assert course in (["acquired", "released"], ["waiting", "acquired", "released"], ["waiting", "gave-up"])


# -- the log -----------------------------------------------------------------------------------------------------------


def test_the_log_has_every_line_with_its_level_and_fields(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dead_lock(path)
    with caplog.at_level(logging.DEBUG, "holdfast"):
        hold = Lock(path, tag="t").acquire()
        assert Lock(path).try_acquire() is None
        with pytest.raises(AcquireTimeout):
            Lock(path).acquire(timeout=0.3)
        path.unlink()
        with pytest.raises(LockLost):
            hold.release()
    lines: list[Any] = caplog.records
    assert [(line.holdfast_kind, line.levelname) for line in lines] == [
        ("reclaimed", "WARNING"),
        ("acquired", "DEBUG"),
        ("gave-up", "DEBUG"),
        ("waiting", "DEBUG"),
        ("gave-up", "DEBUG"),
        ("lost", "ERROR"),
        ("released", "DEBUG"),
    ]
    assert {line.name for line in lines} == {"holdfast"}
    assert {line.holdfast_path for line in lines} == {str(path)}
    assert (lines[0].holdfast_tag, lines[0].holdfast_number) == ("t", lines[1].holdfast_number)
    assert set(events.fields(events.Event("lost", 1.0, "p", "sema", 1, 2, "c"))) <= set(vars(lines[0]))
    assert all(str(path) in line.getMessage() for line in lines)


def test_a_log_of_warnings_has_every_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also of an acquisition by the fast path, at a time without listeners."""
    with caplog.at_level(logging.WARNING, "holdfast"):
        with pytest.raises(LockLost), Lock(path):
            path.unlink()
        dead_lock(path)
        with Lock(path):
            pass
    assert [line.holdfast_kind for line in caplog.records] == ["lost", "reclaimed"]  # type: ignore[attr-defined]


def test_a_long_wait_is_logged_with_its_fields(path: Path, contend: Contend, caplog: pytest.LogCaptureFixture) -> None:
    hold = Lock(path, tag="busy").acquire()
    lock = Lock(path, tag="mine")
    env = contend(path).env
    lock._env = env  # type: ignore[assignment]
    clock = env.real.monotonic
    env.instead["monotonic"] = lambda: clock() - (0 if "watch" in env.steps else 1.3)
    release = logging.Handler()
    release.emit = lambda _: hold.release()  # type: ignore[method-assign]
    logger = logging.getLogger("holdfast")
    logger.addHandler(release)
    try:
        with caplog.at_level(logging.INFO, "holdfast"):
            lock.acquire(timeout=60).release()
    finally:
        logger.removeHandler(release)
    (line,) = list[Any](caplog.records)
    assert (line.levelname, line.holdfast_kind, line.holdfast_tag) == ("INFO", "waiting", "mine")
    assert line.holdfast_waited > 1
    assert line.holdfast_holder.tag == "busy"
    assert line.getMessage().startswith(f"waiting for {path}: held by")


class LockedHandler(logging.Handler):
    """A handler that writes under a lock, as several processes do that share a log file."""

    def __init__(self, lock: Lock) -> None:
        super().__init__()
        self.lock_of_file = lock
        self.lines: list[str] = []
        self.nested: list[str] = []
        self.inside: Callable[[], object] = list
        self._inside = False

    def emit(self, record: logging.LogRecord) -> None:
        if self._inside:
            self.nested.append(record.getMessage())
            return
        self._inside = True
        try:
            with self.lock_of_file:
                self.lines.append(record.getMessage())
                self.inside()
        finally:
            self._inside = False


@pytest.fixture
def locked_handler(path: Path) -> Iterator[LockedHandler]:
    handler = LockedHandler(Lock(path))
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.setLevel(level)
    root.removeHandler(handler)


def test_the_locks_of_a_log_handler_are_not_logged(locked_handler: LockedHandler, disk: Path) -> None:
    """U4. Logging its own lock, the handler would wait for itself."""
    logging.getLogger("app").info("hello")
    assert (locked_handler.lines, locked_handler.nested) == (["hello"], [])
    with Lock(disk / "other"):
        pass
    assert [line.partition(" ")[0] for line in locked_handler.lines] == ["hello", "acquired", "released"]


@pytest.mark.parametrize("what", ["a callback", "something else"])
def test_an_error_of_a_log_handlers_lock_is_printed_and_not_logged(
    locked_handler: LockedHandler, path: Path, capfd: pytest.CaptureFixture[str], what: str
) -> None:
    """U4. Logging that error, the handler would fail once more."""

    def fail(_: object) -> None:
        raise ValueError

    if what == "a callback":
        locked_handler.lock_of_file = Lock(path, on_event=fail)
    else:
        locked_handler.inside = lambda: events.report("so it is", ValueError("so"))
    logging.getLogger("app").info("hello")
    assert (locked_handler.lines, locked_handler.nested) == (["hello"], [])
    expected = (
        ["failed on the event 'acquired'", "failed on the event 'released'"]
        if what == "a callback"
        else ["so it is: so"]
    )
    printed = [line for line in capfd.readouterr().err.splitlines() if line.startswith("holdfast: ")]
    assert len(printed) == len(expected)
    assert all(line.endswith(end) for line, end in zip(printed, expected, strict=True))


def test_a_log_handler_that_is_wrapped_keeps_nobody_from_a_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """U4: wrapped by a tracing or compiling tool, its calls cannot be recognised."""
    for name in ("_handle", "_logger", "_is_logged"):
        monkeypatch.setattr(events, name, getattr(events, name))
    monkeypatch.setattr(events, "_is_logged", events._find_logger)
    monkeypatch.setattr(logging.Handler, "handle", object())
    with Lock(path):
        assert events._handle is None


def test_a_long_wait_of_a_log_handler_is_not_logged(
    locked_handler: LockedHandler, path: Path, contend: Contend
) -> None:
    """U4. Logging the wait would begin another wait of the same handler, behind the first one."""
    hold = Lock(path).acquire()
    env = contend(path).env
    waiting = Lock(path)
    waiting._env = env  # type: ignore[assignment]
    locked_handler.lock_of_file = waiting
    clock = env.real.monotonic
    env.instead["monotonic"] = lambda: clock() - (0 if "watch" in env.steps else 1.3)
    waiting._requests[0].timeout = 1.35
    with pytest.raises(AcquireTimeout):
        logging.getLogger("app").info("hello")
    assert locked_handler.nested == []
    hold.release()


def test_a_path_cannot_begin_another_line_of_the_log(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "holdfast"), Lock(disk / "a\nERROR b"):
        pass
    assert all("\n" not in line.getMessage() for line in caplog.records)


def test_the_logger_is_looked_up_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup takes the global mutex of logging, which an interruption leaves locked (CPython before 3.13)."""
    with Lock(path):
        pass
    with monkeypatch.context() as patched:
        patched.setattr(logging, "getLogger", pytest.fail)
        with Lock(path):
            assert Lock(path).try_acquire() is None


def test_the_log_is_written_only_where_logging_is_set_up(path: Path) -> None:
    """U3."""
    code = (
        "import sys, holdfast\n"
        "with holdfast.Lock(sys.argv[1]): holdfast.Lock(sys.argv[1]).try_acquire()\n"
        "assert 'logging' not in sys.modules\n"
        "import logging, os\n"
        "hold = holdfast.Lock(sys.argv[1]).acquire()\n"
        "os.unlink(sys.argv[1])\n"
        "assert hold.lost\n"
        "logging.basicConfig(format='%(levelname)s %(holdfast_kind)s', stream=sys.stdout, level='DEBUG')\n"
        "holdfast.Lock(sys.argv[1]).acquire().release()\n"
        "os._exit(0)\n"
    )
    # -S: whatever site packages import by themselves is not our doing.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, path],
        env={**os.environ, "PYTHONPATH": str(Path(holdfast.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.stdout.splitlines(), done.stderr) == (["DEBUG acquired", "DEBUG released"], "")
