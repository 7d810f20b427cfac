"""A synchronous wait that is cancelled from outside: it ends, says so, and leaves nothing (_drivers/sync.py)."""

from __future__ import annotations

import os
import pickle
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import AcquireCancelled, HoldfastError, Lock, Semaphore, acquire_all
from holdfast.events import Event
from holdfast.lock import Hold

PATIENCE = 60.0
DESCRIPTORS = pytest.mark.skipif(not hasattr(select, "poll"), reason="without poll(), only events can cancel")


class Waiter:
    """A call in its own thread."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.result: Any = None
        self.thread = threading.Thread(target=self._run, args=(call,))
        self.thread.start()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            self.result = call()
        except BaseException as error:
            self.result = error

    def end(self) -> Any:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        return self.result


class Trigger:
    """An object that cancels, and the function that sets it."""

    def __init__(self, kind: str) -> None:
        self.ends: list[Any] = []
        if kind == "event":
            self.cancel: Any = threading.Event()
            self.set: Callable[[], object] = self.cancel.set
        elif kind == "pipe":
            source, sink = os.pipe()
            self.ends = [os.fdopen(source, "rb"), os.fdopen(sink, "wb")]
            self.cancel = source
            self.set = lambda: os.write(sink, b"x")
        else:
            self.ends = [*socket.socketpair()]
            self.cancel = self.ends[0]
            self.set = self.ends[1].close  # closing the other end is an event as well

    def close(self) -> None:
        for end in self.ends:
            end.close()


@pytest.fixture(params=["event", pytest.param("pipe", marks=DESCRIPTORS), pytest.param("socket", marks=DESCRIPTORS)])
def trigger(request: pytest.FixtureRequest) -> Iterator[Trigger]:
    made = Trigger(request.param)
    yield made
    made.close()


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def leftovers(place: Path) -> list[str]:
    return sorted(path.name for path in place.rglob("*"))


CALLS: dict[str, tuple[Callable[[Path], Hold], Callable[[Path, Any], object]]] = {
    "sema": (lambda path: Lock(path).acquire(), lambda path, cancel: Lock(path).acquire(cancel=cancel)),
    "flock": (
        lambda path: Lock(path, protocol="flock").acquire(),
        lambda path, cancel: Lock(path, protocol="flock").acquire(cancel=cancel),
    ),
    "sidecar": (
        lambda path: Lock(path, protocol="sidecar").acquire(),
        lambda path, cancel: Lock(path, protocol="sidecar").acquire(60, cancel=cancel),
    ),
    "proper-lockfile": (
        lambda path: Lock(path, protocol="proper-lockfile", realpath=False).acquire(),
        lambda path, cancel: Lock(path, protocol="proper-lockfile", realpath=False).acquire(cancel=cancel),
    ),
    "unfair": (lambda path: Lock(path).acquire(), lambda path, cancel: Lock(path, fair=False).acquire(cancel=cancel)),
    "semaphore": (
        lambda path: Semaphore(path, 1).acquire(),
        lambda path, cancel: Semaphore(path, 1).acquire(cancel=cancel),
    ),
    "several": (
        lambda path: Lock(f"{path}.z").acquire(),
        lambda path, cancel: acquire_all([Lock(path), Lock(f"{path}.z")], cancel=cancel),
    ),
    "wait": (lambda path: Lock(path).acquire(), lambda path, cancel: Lock(path).wait(cancel=cancel)),
}
"""The holder that is in the way, and the call that is cancelled."""


@pytest.mark.parametrize(
    "name", [*(name for name in CALLS if name != "flock"), pytest.param("flock", marks=pytest.mark.needs("flock"))]
)
def test_a_cancelled_wait_ends_with_an_error_and_leaves_nothing(tmp_path: Path, trigger: Trigger, name: str) -> None:
    """CX1, CX3."""
    hold_it, call = CALLS[name]
    path = tmp_path / "the.lock"
    with hold_it(path):
        before, threads = leftovers(tmp_path), set(threading.enumerate())
        waiter = Waiter(lambda: call(path, trigger.cancel))
        waiter.thread.join(0.1)
        assert waiter.thread.is_alive()
        trigger.set()
        error = waiter.end()
        assert isinstance(error, AcquireCancelled), error
        assert isinstance(error, HoldfastError)
        assert "was cancelled by the caller after " in str(error)
        assert str(error.path).startswith(str(tmp_path))
        assert not set(threading.enumerate()) - threads  # a thread of an earlier test may end meanwhile
        eventually(lambda: leftovers(tmp_path) == before)
    with hold_it(path):
        pass  # no other holder is in the way


@pytest.mark.parametrize("kind", ["event", pytest.param("pipe", marks=DESCRIPTORS)])
def test_a_thread_behind_another_one_can_be_cancelled_and_the_other_goes_on(tmp_path: Path, kind: str) -> None:
    """CX3: it waits for a signal from the first thread, and for no descriptor."""
    trigger = Trigger(kind)
    lock = Lock(tmp_path / "the.lock")
    hold = lock.acquire()
    first = Waiter(lambda: lock.acquire(PATIENCE))
    eventually(lambda: len(lock.status().waiters) == 1)
    second = Waiter(lambda: lock.acquire(cancel=trigger.cancel))
    second.thread.join(0.1)
    assert second.thread.is_alive()
    trigger.set()
    assert isinstance(second.end(), AcquireCancelled)
    assert first.thread.is_alive()
    hold.release()
    first.end().release()
    trigger.close()
    assert leftovers(tmp_path) == []


def test_the_next_waiter_gets_the_lock_when_the_one_ahead_was_cancelled(tmp_path: Path) -> None:
    path, event = tmp_path / "the.lock", threading.Event()
    hold = Lock(path).acquire()
    first = Waiter(lambda: Lock(path).acquire(cancel=event))
    eventually(lambda: len(Lock(path).status().waiters) == 1)
    second = Waiter(lambda: Lock(path).acquire(PATIENCE))
    second.thread.join(0.05)
    event.set()
    assert isinstance(first.end(), AcquireCancelled)
    hold.release()
    second.end().release()


def test_a_trigger_already_set_keeps_even_a_free_lock_from_being_tried(tmp_path: Path, trigger: Trigger) -> None:
    """CX2."""
    trigger.set()
    for call in (Lock(tmp_path / "a").acquire, Lock(tmp_path / "a").wait, Semaphore(tmp_path / "a", 2).acquire):
        with pytest.raises(AcquireCancelled, match="nothing of it is left"):
            call(cancel=trigger.cancel)
    with pytest.raises(AcquireCancelled):
        acquire_all([Lock(tmp_path / "a" / "b", parents=True), Lock(tmp_path / "b")], cancel=trigger.cancel)
    assert leftovers(tmp_path) == []


def test_a_trigger_that_is_not_set_changes_nothing(tmp_path: Path, trigger: Trigger) -> None:
    lock = Lock(tmp_path / "the.lock")
    with lock.acquire(0, cancel=trigger.cancel):
        assert lock.wait(0.2, cancel=trigger.cancel) is False
        waiter = Waiter(lambda: lock.acquire(cancel=trigger.cancel))
        eventually(lambda: lock.status().waiters)
    waiter.end().release()
    assert lock.wait(cancel=trigger.cancel)
    assert leftovers(tmp_path) == []


@DESCRIPTORS
def test_nothing_is_read_from_the_descriptor(tmp_path: Path) -> None:
    trigger = Trigger("pipe")
    trigger.set()
    with pytest.raises(AcquireCancelled):
        Lock(tmp_path / "the.lock").acquire(cancel=trigger.cancel)
    assert os.read(trigger.cancel, 9) == b"x"
    trigger.close()


def test_an_object_that_cannot_cancel_is_refused(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "the.lock")
    for wrong in ("event", 1.5, True, object(), threading.Lock()):
        with pytest.raises(TypeError, match=r"a threading\.Event"):
            lock.acquire(cancel=wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"a threading\.Event"):
            acquire_all([Lock(tmp_path / "a" / "b", parents=True)], cancel=wrong)  # type: ignore[arg-type]
    if hasattr(select, "poll"):
        source, sink = os.pipe()
        os.close(sink)
        os.close(source)
        closed = socket.socket()
        closed.close()
        for gone in (source, closed, -1, 2**31, 2**70):
            with pytest.raises(OSError, match="Bad file descriptor"):
                lock.acquire(cancel=gone)
    assert leftovers(tmp_path) == []


def test_listeners_hear_that_a_cancelled_waiter_gave_up(tmp_path: Path) -> None:
    heard: list[Event] = []
    event, path = threading.Event(), tmp_path / "the.lock"
    with Lock(path).acquire():
        waiter = Waiter(lambda: Lock(path, on_event=heard.append).acquire(cancel=event))
        eventually(lambda: heard)
        event.set()
        waiter.end()
    assert [one.kind for one in heard] == ["waiting", "gave-up"]


def test_the_error_survives_pickling(tmp_path: Path) -> None:
    event = threading.Event()
    event.set()
    with pytest.raises(AcquireCancelled) as raised:
        Lock(tmp_path / "the.lock", protocol="flock").acquire(cancel=event)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), str(again), again.path) == (AcquireCancelled, str(raised.value), raised.value.path)
    assert again.protocol == "flock"
