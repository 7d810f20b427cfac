"""The background of all holds: one thread for heartbeats and loss (background.py)."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast._core.wait import Wait
from holdfast._drivers import background as keeping
from holdfast._drivers.background import Keeper
from holdfast._drivers.sync import wait_for
from holdfast.engines.file.hold import FileHold
from holdfast.errors import LockLost
from unit.elsewhere import elsewhere
from unit.stepping import Contend, Stepped

Environments = Callable[..., Stepped]
SOON = 10.0
"""Seconds after which something that ought to happen has not."""


@pytest.fixture
def env(environments: Environments) -> Stepped:
    return environments()


@pytest.fixture
def keeper(env: Stepped) -> Iterator[Keeper]:
    keeper = Keeper(env)  # type: ignore[arg-type]
    yield keeper
    for held in list(env.holds.values()):
        held.give_back()
    for held in list(keeper._kept):
        keeper.forget(held)
    with keeper._mutex:
        thread = keeper._thread
        keeper._next_wake = 0.0
        keeper._ring()
    if thread is not None:
        thread.join(SOON)
        assert not thread.is_alive()
    for fd in keeper._doorbell or ():
        env.close(fd)


@pytest.fixture
def hold(disk: Path, env: Stepped, contend: Contend) -> Callable[..., FileHold]:
    def make(name: str = "l", **options: object) -> FileHold:
        return contend(disk / name, env, **options).get()

    return make


def test_the_thread_runs_only_while_it_is_needed(keeper: Keeper, hold: Callable[..., FileHold]) -> None:
    """K1: none before the first hold or after the last, and a new one for the next hold."""
    assert keeper._thread is None
    for _ in range(2):
        held = hold()
        held.request.beat_every = 0.01
        keeper.keep(held, 0.01)
        thread = keeper._thread
        assert thread is not None
        assert thread.daemon
        keeper.forget(held)
        held.release()
        thread.join(SOON)
        assert not thread.is_alive()
        assert keeper._thread is None


def test_short_holds_share_one_thread(keeper: Keeper, hold: Callable[..., FileHold], env: Stepped) -> None:
    """K1: a steady stream of holds neither wakes it nor restarts it."""
    started = set()
    rung = []
    for _ in range(20):
        held = hold()
        keeper.keep(held, 3600)
        started.add(keeper._thread)
        keeper._ring = lambda: rung.append(True)  # type: ignore[method-assign]
        keeper.forget(held)
        held.release()
    del keeper._ring
    assert len(started) == 1
    assert not rung


def test_an_earlier_beat_wakes_the_thread(keeper: Keeper, hold: Callable[..., FileHold], env: Stepped) -> None:
    """K2: for a hold that is due earlier."""
    beaten = threading.Event()
    keeper.keep(hold("slow"), 3600)
    quick = hold("quick", heartbeat=0.05)
    env.after["write"] = lambda fd, _data, _offset: fd == quick.fd and beaten.set()
    keeper.keep(quick, 0.05)
    assert beaten.wait(SOON)


def test_the_thread_finds_a_hold_that_was_not_handed_to_it(
    keeper: Keeper, hold: Callable[..., FileHold], env: Stepped
) -> None:
    """K2: one that is due only after the thread wakes."""
    beaten = threading.Event()
    keeper.keep(hold("first"), 3600)
    later = hold("later", heartbeat=0.05)
    env.after["write"] = lambda fd, _data, _offset: fd == later.fd and beaten.set()
    with keeper._mutex:
        keeper._next_wake = 0.0
        keeper._ring()
    assert beaten.wait(SOON)


def test_a_hold_that_ends_while_it_is_found_is_not_kept(keeper: Keeper, hold: Callable[..., FileHold]) -> None:
    """K2: its release had begun before the thread looked."""
    held = hold()
    held.released = True
    keeper._find()
    assert held not in keeper._kept
    assert held.keeper is None
    held.released = False
    held.release()


def test_beats_that_are_nearly_due_come_together(keeper: Keeper, hold: Callable[..., FileHold], env: Stepped) -> None:
    """K2: only those nearly due join the one that is due."""
    due, nearly, later = hold("due"), hold("nearly"), hold("later")
    beaten: dict[int, threading.Event] = {held.fd: threading.Event() for held in (due, nearly, later)}
    for held in (due, nearly, later):
        held.request.beat_every = 3600.0
        keeper.keep(held, 3600)
    env.after["write"] = lambda fd, _data, _offset: beaten[fd].set()
    with keeper._mutex:
        now = time.monotonic()
        due.next_beat, nearly.next_beat, later.next_beat = now - 1, now + 100, now + 1000
        keeper._due = due.next_beat
        keeper._ring()
    assert beaten[due.fd].wait(SOON)
    assert beaten[nearly.fd].wait(SOON)
    assert min(due.next_beat, nearly.next_beat) > now + 3000
    assert later.next_beat == now + 1000
    assert keeper._due <= later.next_beat


def test_all_watched_holds_share_one_wait(
    keeper: Keeper, hold: Callable[..., FileHold], env: Stepped, disk: Path
) -> None:
    """K3: each hears of its own loss."""
    told: dict[str, threading.Event] = {f"l{i}": threading.Event() for i in range(20)}
    for name in told:
        keeper.keep(hold(name, on_lost=lambda _error, name=name: told[name].set()), 3600)
    before = env.open_descriptors()
    assert len(before) <= 20 + 4  # a file each; the inotify instance, the doorbell, at most one eventfd
    for name in ("l7", "l13"):
        (disk / name).unlink()
        assert told[name].wait(SOON)
    assert [name for name, event in told.items() if event.is_set()] == ["l7", "l13"]


def test_each_beat_sets_the_next(keeper: Keeper, hold: Callable[..., FileHold], env: Stepped) -> None:
    """K2."""
    beats = []
    third = threading.Event()
    held = hold()
    env.after["write"] = lambda *_: beats.append(True) or (len(beats) >= 3 and third.set())
    held.request.beat_every = 0.01
    keeper.keep(held, 0.01)
    assert third.wait(SOON)


@pytest.mark.parametrize("how", ["removed", "replaced", "overwritten"])
def test_a_loss_is_reported_at_once(
    how: str, keeper: Keeper, hold: Callable[..., FileHold], monkeypatch: pytest.MonkeyPatch, disk: Path
) -> None:
    """K3: by an event, long before a beat or a look is due; and once."""
    monkeypatch.setattr(keeping, "_LOOK_EVERY", 3600.0)
    told = threading.Event()
    errors: list[LockLost] = []
    held = hold(on_lost=lambda error: (errors.append(error), told.set()))
    keeper.keep(held, 3600)
    path = disk / "l"
    if how == "overwritten":
        path.write_bytes(b"pid=1\ntimestamp=2\n")
    else:
        path.unlink()
        if how == "replaced":
            path.write_bytes(b"pid=1\ntimestamp=2\n")
    assert told.wait(SOON)
    assert held.lost
    assert [error.path for error in errors] == [str(path)]
    settled = time.monotonic() + SOON
    while held in keeper._kept and time.monotonic() < settled:
        os.sched_yield()
    assert held not in keeper._kept


def test_a_loss_without_events_is_reported(
    keeper: Keeper, hold: Callable[..., FileHold], monkeypatch: pytest.MonkeyPatch, disk: Path, env: Stepped
) -> None:
    """K3: without events, holds are checked once a second; more often in this test."""
    assert keeping._LOOK_EVERY == 1.0
    monkeypatch.setattr(keeping, "_LOOK_EVERY", 0.01)
    env.instead["watch_set"] = lambda: None
    told, looked = threading.Event(), threading.Event()
    env.after["read"] = lambda *_: looked.set()
    keeper.keep(hold(on_lost=lambda _error: told.set()), 3600)
    assert looked.wait(SOON), "lost only after the first look, which any start of the thread brings"
    (disk / "l").unlink()
    assert told.wait(SOON)


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_lock_lost_before_it_is_watched_is_reported(
    how: str, keeper: Keeper, hold: Callable[..., FileHold], monkeypatch: pytest.MonkeyPatch, disk: Path
) -> None:
    """K3: removed between the acquisition and the watch."""
    monkeypatch.setattr(keeping, "_LOOK_EVERY", 0.01)
    told = threading.Event()
    held = hold(on_lost=lambda _error: told.set())
    (disk / "l").unlink()
    if how == "replaced":
        (disk / "l").write_bytes(b"pid=1\ntimestamp=2\n")
    keeper.keep(held, 3600)
    assert told.wait(SOON)


def test_a_child_does_not_beat_for_its_parent(keeper: Keeper, hold: Callable[..., FileHold]) -> None:
    """K4: it keeps none of these holds and runs no thread; its own holds start a new one."""
    keeper.keep(hold(), 3600)

    def in_the_child() -> tuple[int, bool, bool]:
        kept, thread = len(keeper._kept), keeper._thread is None
        keeper.keep(hold("child"), 3600)
        started = keeper._thread is not None and keeper._thread.is_alive()
        return kept, thread, started

    assert elsewhere(in_the_child) == (0, True, True)
    assert len(keeper._kept) == 1


def test_a_failing_beat_is_logged_and_tried_again(
    keeper: Keeper, hold: Callable[..., FileHold], env: Stepped, caplog: pytest.LogCaptureFixture
) -> None:
    """K5: at the next turn."""
    failed, beaten = threading.Event(), threading.Event()
    held = hold()
    held.request.beat_every = 0.01

    def write(fd: int, data: bytes, offset: int) -> int:
        if not failed.is_set():
            failed.set()
            raise OSError(5, "Input/output error")
        written: int = env.real.write(fd, data, offset)
        beaten.set()
        return written

    env.instead["write"] = write
    with caplog.at_level(logging.ERROR, "holdfast"):
        keeper.keep(held, 0.01)
        assert beaten.wait(SOON)
    assert failed.is_set()
    assert held.verify()
    assert "Input/output error" in caplog.text
    assert held.path in caplog.text


def test_a_log_that_fails_does_not_end_the_thread(
    keeper: Keeper, hold: Callable[..., FileHold], env: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K5: a filter of the caller's logging raises on the report of a beat that has failed."""
    beaten, reported = threading.Event(), threading.Event()

    def fail(_record: logging.LogRecord) -> bool:
        reported.set()
        raise ZeroDivisionError

    def write(fd: int, data: bytes, offset: int) -> int:
        if not reported.is_set():
            raise OSError(5, "Input/output error")
        beaten.set()
        written: int = env.real.write(fd, data, offset)
        return written

    monkeypatch.setattr(logging.getLogger("holdfast"), "filters", [fail])
    held = hold()
    env.instead["write"] = write
    held.request.beat_every = 0.01
    keeper.keep(held, 0.01)
    assert beaten.wait(SOON)


def test_a_failing_callback_does_not_end_the_thread(
    keeper: Keeper, hold: Callable[..., FileHold], disk: Path, env: Stepped, caplog: pytest.LogCaptureFixture
) -> None:
    """K5: whatever the caller's `on_lost` raises."""
    told, beaten = threading.Event(), threading.Event()

    def fail(_error: LockLost) -> None:
        told.set()
        raise ZeroDivisionError

    other = hold("other", heartbeat=0.05)
    keeper.keep(hold(on_lost=fail), 3600)
    (disk / "l").unlink()
    assert told.wait(SOON)
    env.after["write"] = lambda fd, _data, _offset: fd == other.fd and beaten.set()
    keeper.keep(other, 0.05)
    assert beaten.wait(SOON)


def test_a_slow_callback_does_not_hold_up_the_beats_of_other_holds(
    keeper: Keeper, hold: Callable[..., FileHold], env: Stepped, disk: Path
) -> None:
    """K3: another hold's beat comes while `on_lost` is still running."""
    told, beaten, end = threading.Event(), threading.Event(), threading.Event()
    other = hold("other", heartbeat=0.05)
    keeper.keep(hold(on_lost=lambda _error: (told.set(), end.wait(SOON))), 3600)
    (disk / "l").unlink()
    assert told.wait(SOON)
    env.after["write"] = lambda fd, _data, _offset: fd == other.fd and beaten.set()
    keeper.keep(other, 0.05)
    assert beaten.wait(SOON / 2)
    end.set()


def test_a_full_descriptor_table_does_not_end_the_thread(
    keeper: Keeper,
    hold: Callable[..., FileHold],
    env: Stepped,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """K5: a watch cannot be waited on for once."""
    monkeypatch.setattr(keeping, "_LOOK_EVERY", 0.01)
    beaten, failed = threading.Event(), threading.Event()
    watched = hold(on_lost=print)
    making = env.real.watch_set

    class Failing:
        def __init__(self) -> None:
            self.set = making()
            self.add, self.changed, self.woken = self.set.add, self.set.changed, self.set.woken
            self.discard, self.close = self.set.discard, self.set.close

        def fds(self) -> tuple[int, ...]:
            if not failed.is_set():
                failed.set()
                raise OSError(24, "Too many open files")
            fds: tuple[int, ...] = self.set.fds()
            return fds

    env.instead["watch_set"] = Failing
    keeper.keep(watched, 3600)
    assert failed.wait(SOON)
    other = hold("other", heartbeat=0.05)
    env.after["write"] = lambda fd, _data, _offset: fd == other.fd and beaten.set()
    keeper.keep(other, 0.05)
    assert beaten.wait(SOON)


def test_signals_do_not_land_in_the_keepers_thread(keeper: Keeper, hold: Callable[..., FileHold]) -> None:
    keeper.keep(hold(), 3600)
    thread = keeper._thread
    assert thread is not None
    with open(f"/proc/self/task/{thread.native_id}/status", encoding="ascii") as file:
        blocked = next(int(line.split()[1], 16) for line in file if line.startswith("SigBlk"))
    for number in (1, 2, 3, 10, 14, 15, 17):
        assert blocked >> (number - 1) & 1, f"signal {number}"


def test_the_locks_are_released_after_the_children_have_ended(
    keeper: Keeper, hold: Callable[..., FileHold], monkeypatch: pytest.MonkeyPatch
) -> None:
    """K6: after all of multiprocessing's finalizers, once for each process, anew in a forked one."""
    finalizers: list[tuple[Callable[[], None], int]] = []

    class Util:
        @staticmethod
        def Finalize(_of: None, call: Callable[[], None], exitpriority: int) -> None:
            finalizers.append((call, exitpriority))

    monkeypatch.setitem(sys.modules, "multiprocessing.util", Util)  # type: ignore[arg-type]
    monkeypatch.setattr(atexit, "register", lambda _call: pytest.fail("that runs before the children are waited for"))
    held = hold()
    keeper.prepare()
    keeper.prepare()
    [(release, priority)] = finalizers
    assert priority < -100  # the priority of the removal of multiprocessing's own directory
    keeper._reset()  # as a fork does
    keeper.prepare()
    assert len(finalizers) == 2
    monkeypatch.setattr(threading, "_shutdown", lambda: None)
    release()
    assert held.released


def test_the_exit_goes_on_after_a_lock_that_was_lost(
    keeper: Keeper, hold: Callable[..., FileHold], disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost, held = hold("lost"), hold("held")
    (disk / "lost").unlink()
    keeper.release_all()
    assert lost.released
    assert held.released
    assert os.listdir(disk) == []
    assert "lost" in capsys.readouterr().err
    with contextlib.suppress(LockLost):
        lost.release()


def test_a_hold_that_ends_while_it_is_entered_is_not_kept(
    keeper: Keeper, hold: Callable[..., FileHold], env: Stepped
) -> None:
    """K3: released by another thread, or found lost, between two steps of the entry."""
    for step, lost in (("events_reach", False), ("stat", False), ("stat", True)):
        held = hold(on_lost=lambda _lost: None)
        real = getattr(env.real, step)

        def ended(
            path: str, step: str = step, lost: bool = lost, real: Callable[..., object] = real, held: FileHold = held
        ) -> object:
            del env.instead[step]
            keeper.forget(held)
            return real(path + lost * "gone")

        env.instead[step] = ended
        keeper.keep(held, 100.0)
        assert (held in keeper._kept, keeper._watched, keeper._unwatched) == (False, {}, {})
        held.release()


def test_a_look_that_fails_is_repeated(keeper: Keeper, hold: Callable[..., FileHold], env: Stepped) -> None:
    """K3, K5: each second, with or without events, as the hold may be lost already."""
    held = hold(on_lost=lambda _lost: None)

    def failing(_path: str) -> None:
        del env.instead["stat"]
        raise OSError(5, "Input/output error")

    env.instead["stat"] = failing
    keeper.keep(held, 100.0)
    assert [*keeper._unwatched] == [held]
    keeper.forget(held)
    held.release()


def test_a_full_descriptor_table_does_not_end_an_acquisition(
    keeper: Keeper, hold: Callable[..., FileHold], env: Stepped, caplog: pytest.LogCaptureFixture
) -> None:
    """K5: the lock is held but not kept fresh, and an error says so; the next hold tries again."""

    def full() -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    held = hold()
    env.instead["pipe"] = full
    with caplog.at_level(logging.ERROR, "holdfast"):
        keeper.keep(held, 100.0)
    assert "is held, but no thread keeps it fresh: [Errno 24] Too many open files" in caplog.text
    assert keeper._thread is None
    del env.instead["pipe"]
    other = hold("other")
    keeper.keep(other, 100.0)
    assert keeper._thread is not None
    for one in (held, other):
        keeper.forget(one)
        one.release()


def test_callers_attend_to_the_holds_where_no_thread_can_start(
    keeper: Keeper, hold: Callable[..., FileHold], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K10: they send beats and find losses; logged once, without a traceback, as it is no defect. Later a thread takes
    over."""

    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lost: list[LockLost] = []
    held, other = hold(), hold("other", on_lost=lost.append)
    before = Path(held.path).read_bytes()
    with monkeypatch.context() as changed, caplog.at_level(logging.ERROR, "holdfast"):
        changed.setattr(threading.Thread, "start", none_left)
        changed.setattr(held.env, "time", lambda: time.time() + 60)
        keeper.keep(held, 0.0)
        keeper.keep(other, 1000.0)
        os.unlink(other.path)
        assert keeper.attend() == 1.0
        assert keeper.attend() == 1.0
    assert Path(held.path).read_bytes() != before
    assert len(lost) == 1
    assert caplog.text.count("no thread keeps it fresh: can't start new thread") == 1
    assert "Traceback" not in caplog.text
    assert keeper.attend() is None
    assert keeper._thread is not None
    keeper.forget(held)
    held.release()
    with pytest.raises(LockLost):
        other.release()


def test_a_beat_that_a_caller_sends_itself_leaves_no_mark_on_its_thread(
    keeper: Keeper, env: Stepped, hold: Callable[..., FileHold], monkeypatch: pytest.MonkeyPatch
) -> None:
    """K10: descriptors that this thread opens afterwards are as safe from a fork as before (apart.py, AP4)."""

    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    held = hold(lease=30.0)
    before = Path(held.path).read_bytes()
    usual = env.operations.exclusive()
    env.instead["may_block"] = lambda _path: True
    with monkeypatch.context() as changed:
        changed.setattr(threading.Thread, "start", none_left)
        keeper.keep(held, 0.0)
        assert keeper.attend() == 1.0
    assert Path(held.path).read_bytes() != before
    assert env.operations.exclusive() is usual
    keeper.forget(held)
    held.release()


def test_the_end_of_the_interpreter_is_not_complained_about(
    keeper: Keeper, hold: Callable[..., FileHold], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python that is about to end starts no more threads (3.12)."""

    def too_late(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    held = hold()
    with monkeypatch.context() as changed, caplog.at_level(logging.ERROR, "holdfast"):
        changed.setattr(threading.Thread, "start", too_late)
        keeper.keep(held, 100.0)
    assert caplog.text == ""
    keeper.forget(held)
    held.release()


def test_a_full_doorbell_can_be_rung(keeper: Keeper, env: Stepped) -> None:
    keeper._doorbell = ends = env.pipe()
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(ends[1], b"!" * 4096)
    keeper._ring()
    assert os.read(ends[0], 1) == b"!"


def test_a_watch_without_a_descriptor_is_polled(
    keeper: Keeper, hold: Callable[..., FileHold], env: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K3: the descriptor table is full, so the watched hold is checked each second."""
    held = hold(on_lost=lambda _lost: None)
    monkeypatch.setattr("holdfast._platform.inotify.WatchSet.fds", lambda _self: ())
    keeper.keep(held, 100.0)
    until = time.monotonic() + SOON
    while not keeper._awaited and time.monotonic() < until:
        time.sleep(0.001)
    assert keeper._next_wake < time.monotonic() + 10.0
    keeper.forget(held)
    held.release()


def test_the_thread_ends_in_a_forked_process(
    keeper: Keeper, hold: Callable[..., FileHold], env: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K4."""
    asleep = threading.Event()

    def sleep(wait: Wait) -> None:
        asleep.set()
        wait_for(wait)

    monkeypatch.setattr(keeping, "wait_for", sleep)
    held = hold()
    keeper.keep(held, 100.0)
    thread = keeper._thread
    assert thread is not None
    assert asleep.wait(SOON)
    env.real.generation += 1
    keeper._ring()
    thread.join(SOON)
    assert not thread.is_alive()
    env.real.generation -= 1
    keeper.forget(held)
    held.release()
