"""The metrics of the locks of this process, in a real registry (metrics.py)."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from holdfast import AcquireTimeout, AsyncLock, Hold, Lock, LockLost, events
from holdfast.metrics import export
from unit.elsewhere import elsewhere
from unit.stepping import Contender, sema_record

PATIENCE = 60.0
Values = Callable[..., float | None]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def value(registry: CollectorRegistry) -> Iterator[Values]:
    """The value of a metric for the locks of this test, which are counted under the name `it`."""

    def find(metric: str, name: str = "it", protocol: str = "sema") -> float | None:
        return registry.get_sample_value(f"holdfast_{metric}", {"protocol": protocol, "name": name})

    end = export(registry, name=lambda event: event.tag or "it")
    yield find
    end()
    assert not list(registry.collect())
    assert not events.listeners


def test_acquisitions_are_counted_and_timed(disk: Path, value: Values) -> None:
    lock, began = Lock(disk / "l"), time.monotonic()
    assert value("acquired_total") is None
    with lock:
        assert (value("acquired_total"), value("holds")) == (1, 1)
        assert lock.try_acquire() is None
        with pytest.raises(AcquireTimeout):
            lock.acquire(timeout=0.2)
    assert (value("acquired_total"), value("gave_up_total"), value("holds"), value("waiters")) == (1, 2, 0, 0)
    assert (value("wait_seconds_count"), value("hold_seconds_count")) == (3, 1)
    wait, hold = value("wait_seconds_sum"), value("hold_seconds_sum")
    assert wait is not None
    assert hold is not None
    assert 0.2 <= hold < time.monotonic() - began
    assert 0.2 <= wait < time.monotonic() - began
    with Lock(disk / "f", protocol="semats", tag="other"):
        pass
    assert value("acquired_total", "other", "semats") == 1
    assert value("acquired_total") == 1


def test_the_first_events_of_two_threads_are_counted(
    disk: Path, value: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preparations for the first event do not wipe out events of the other thread."""
    others: list[Hold] = []
    clear = Gauge.clear

    def held_up(gauge: Gauge) -> None:
        if not others:
            thread = threading.Thread(target=lambda: others.append(Lock(disk / "b").acquire()))
            thread.start()
            thread.join(PATIENCE)
        clear(gauge)

    monkeypatch.setattr(Gauge, "clear", held_up)
    with Lock(disk / "a"):
        others = others or [Lock(disk / "b").acquire()]
        assert value("holds") == 2
    others[0].release()
    assert value("holds") == 0


def test_a_path_is_no_label(disk: Path, registry: CollectorRegistry) -> None:
    end = export(registry)
    for number in range(3):
        with Lock(disk / str(number)):
            pass
    end()
    end = export(registry, name="mine")
    with Lock(disk / "a"):
        pass
    text = generate_latest(registry).decode()
    end()
    assert str(disk) not in text
    assert 'holdfast_acquired_total{name="mine",protocol="sema"} 1.0' in text


def test_a_name_that_is_not_utf_8_does_not_break_the_page(disk: Path, registry: CollectorRegistry) -> None:
    end = export(registry, name=lambda _event: "l\udcff")  # of a path, say
    try:
        with Lock(disk / "l"):
            assert rb'name="l\\udcff"' in generate_latest(registry)
    finally:
        end()


def test_a_name_that_cannot_be_called_is_refused(registry: CollectorRegistry) -> None:
    """A coroutine would be a label of its own for each acquisition."""

    async def name(_event: object) -> str:
        return "it"

    for wrong in (name, 7, None):
        with pytest.raises(TypeError, match="name"):
            export(registry, name=wrong)  # type: ignore[arg-type]
    assert not list(registry.collect())


def test_a_waiter_is_counted_while_it_waits(disk: Path, value: Values) -> None:
    waiting = threading.Event()
    lock = Lock(disk / "l", on_event=lambda event: event.kind == "waiting" and waiting.set())
    hold = Lock(disk / "l").acquire()
    thread = threading.Thread(target=lambda: lock.acquire().release())
    thread.start()
    assert waiting.wait(PATIENCE)
    hold.release()
    thread.join(PATIENCE)
    assert (value("acquired_total"), value("waiters"), value("holds")) == (2, 0, 0)

    async def main() -> None:
        with Lock(disk / "l"):
            task = asyncio.create_task(AsyncLock(disk / "l").acquire())
            while value("waiters") != 1:
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert value("waiters") == 0

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert value("gave_up_total") == 1


def test_a_waiter_that_joins_is_no_longer_counted_as_waiting(
    disk: Path, contend: Callable[..., Contender], value: Values
) -> None:
    held = contend(disk / "l").get()
    waiter = contend(disk / "l", owner="me", timeout=None)
    waiter.step()
    assert value("waiters") == 1
    held.release()
    contend(disk / "l", waiter.env, owner="me").get()
    while not waiter.done:
        waiter.step()
    assert value("waiters") == 0
    assert value("gave_up_total") is None


def test_lost_and_reclaimed_locks_are_counted(disk: Path, value: Values) -> None:
    hold = Lock(disk / "l").acquire()
    (disk / "l").write_bytes(sema_record(1, 1))
    assert hold.lost
    assert (value("lost_total"), value("holds")) == (1, 0)
    with pytest.raises(LockLost):
        hold.release()
    assert (value("lost_total"), value("holds"), value("hold_seconds_count")) == (1, 0, 1)
    code = "import os, sys, holdfast; holdfast.Lock(sys.argv[1]).acquire(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, str(disk / "m")], timeout=PATIENCE)
    with Lock(disk / "m"):
        pass
    assert (value("reclaimed_total"), value("acquired_total")) == (1, 2)


def test_a_hold_older_than_the_export_does_not_make_a_gauge_negative(disk: Path, registry: CollectorRegistry) -> None:
    hold = Lock(disk / "l").acquire()
    end = export(registry)
    hold.release()
    labels = {"protocol": "sema", "name": ""}
    assert registry.get_sample_value("holdfast_holds", labels) in (None, 0)
    assert registry.get_sample_value("holdfast_hold_seconds_count", labels) == 1
    end()


def test_a_child_counts_its_own_holds_only(disk: Path, value: Values) -> None:
    with Lock(disk / "l"):

        def child() -> list[float | None]:
            with Lock(disk / "mine"):
                return [value("holds"), value("acquired_total")]

        assert elsewhere(child) == [1, 2]
        assert value("holds") == 1
    assert value("holds") == 0


@pytest.mark.filterwarnings("error")
def test_a_child_counts_without_a_warning_in_the_multiprocess_mode(
    disk: Path, value: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(disk))  # asked for when a metric is made, and when it is cleared
    with Lock(disk / "l"):

        def child() -> list[float | None]:
            with Lock(disk / "mine"):
                return [value("holds"), value("acquired_total")]

        assert elsewhere(child) == [1, 2]


def test_exporting_twice_fails_whole(registry: CollectorRegistry) -> None:
    end = export(registry)
    before = len(events.listeners)
    with pytest.raises(ValueError, match="holdfast_acquired"):
        export(registry)
    assert len(events.listeners) == before
    assert {family.name for family in registry.collect()} >= {"holdfast_acquired", "holdfast_holds"}
    end()
    end()
    export(registry)()


def test_metrics_and_tracing_libraries_are_not_imported() -> None:
    code = (
        "import sys, holdfast, holdfast.events\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('prometheus_client', 'opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout.strip() == "[]"
