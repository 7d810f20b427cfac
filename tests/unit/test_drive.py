"""The synchronous driver: waits no longer and no shorter than it is told (sync.py)."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from holdfast._core.wait import Signal, Wait
from holdfast._drivers.sync import caller, drive, wait_for
from holdfast._platform import environment
from holdfast.engines.file.queue import Queue
from unit.stepping import ticket_name


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


@pytest.mark.parametrize("with_descriptor", [False, True])
def test_a_wait_lasts_until_its_deadline(with_descriptor: bool, pipe: tuple[int, int]) -> None:
    """Ending early is harmless for the engine, but a wait that always does so is a busy loop."""
    deadline = time.monotonic() + 0.01
    wait_for(Wait((pipe[0],) if with_descriptor else (), deadline))
    assert time.monotonic() >= deadline


def test_an_event_ends_the_wait(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"x")
    began = time.monotonic()
    wait_for(Wait((pipe[0],), began + 100))
    assert time.monotonic() - began < 10


@pytest.mark.needs("flock")
def test_the_byte_that_ends_a_wait_for_a_ticket_can_still_be_read(disk: Path) -> None:
    """queue.py, Q11. An event of Windows could be used up by the wait itself."""
    env = environment()
    with Queue(env, str(disk)) as queue:
        ticket = queue.make(ticket_name(disk), None, 0)
        follower = queue.follow(ticket.name)
        assert follower is not None
        assert not env.drain(ticket.fd)
        env.nudge(follower)
        assert wait_for(Wait((ticket.fd,), time.monotonic() + 20))
        assert env.drain(ticket.fd)
        assert not env.drain(ticket.fd)
        env.close(follower)
        env.close(ticket.fd)
        queue.unlink(ticket.name)


@pytest.mark.parametrize("with_descriptor", [False, True])
def test_a_deadline_in_the_past_ends_the_wait_at_once(with_descriptor: bool, pipe: tuple[int, int]) -> None:
    for deadline in (0.0, -1e9):
        wait_for(Wait((pipe[0],) if with_descriptor else (), deadline))


def test_an_interrupted_wait_is_cleaned_up() -> None:
    cleaned = []

    def steps() -> Generator[Wait, None, None]:
        try:
            yield Wait((-1,), time.monotonic() + 100)  # no such descriptor: the wait itself fails
        finally:
            cleaned.append(True)

    with pytest.raises((ValueError, OSError)):
        drive(steps())
    assert cleaned == [True]


def test_results_and_errors_reach_the_caller() -> None:
    def result() -> Generator[Wait, None, str]:
        yield Wait((), 0.0)
        return "done"

    def error() -> Generator[Wait, None, str]:
        yield Wait((), 0.0)
        raise ZeroDivisionError

    assert drive(result()) == "done"
    with pytest.raises(ZeroDivisionError):
        drive(error())


def test_every_thread_is_a_caller_of_its_own() -> None:
    """Thread numbers are reused: a hold that remembered one would report a deadlock where there is none."""
    names: list[object] = []
    for _ in range(20):
        thread = threading.Thread(target=lambda: names.extend((caller(), caller())))
        thread.start()
        thread.join()
    assert names[0::2] == names[1::2]
    assert len(set(names)) == 20
    assert caller() is caller()
    assert caller() not in names


def test_a_signal_ends_the_wait() -> None:
    signal, began = Signal(), time.monotonic()
    wait_for(Wait((), began + 0.01, signal))
    assert time.monotonic() >= began + 0.01
    setter = threading.Timer(0.01, signal.set)
    setter.start()
    wait_for(Wait((), began + 100, signal))
    setter.join()
    assert time.monotonic() - began < 10


def test_a_signal_set_before_the_wait_ends_it() -> None:
    signal, began = Signal(), time.monotonic()
    assert signal.set()
    assert signal.set()  # a second time is harmless, even during a wait
    wait_for(Wait((), began + 100, signal))
    assert time.monotonic() - began < 10


def test_a_signal_reports_that_it_did_not_reach_a_closed_loop() -> None:
    def closed() -> None:
        raise RuntimeError("Event loop is closed")

    signal = Signal()
    signal.subscribe(closed)
    assert not signal.set()
    signal.unsubscribe()
    assert signal.set()  # without a waiter: the next one finds it set


def test_a_system_without_poll_waits_for_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "poll")
    reading, writing = os.pipe()
    try:
        began = time.monotonic()
        wait_for(Wait((reading,), began + 0.01))
        assert time.monotonic() - began >= 0.01
        os.write(writing, b"x")
        wait_for(Wait((reading,), began + 100))
        wait_for(Wait((), began + 100, None, (writing,)))
        assert time.monotonic() - began < 10
    finally:
        os.close(reading)
        os.close(writing)
