"""The spans of the locks of this process, made by the real SDK (tracing.py)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from holdfast import AcquireTimeout, AsyncLock, Lock, LockLost, Semaphore, events
from holdfast.tracing import trace
from unit.elsewhere import elsewhere
from unit.stepping import sema_record

PATIENCE = 60.0
Spans = Callable[[], list[ReadableSpan]]


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exported: InMemorySpanExporter) -> Iterator[TracerProvider]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    end = trace(provider)
    yield provider
    end()
    provider.shutdown()
    assert not events.listeners


@pytest.fixture
def spans(provider: TracerProvider, exported: InMemorySpanExporter) -> Spans:
    """The spans that have ended since the last call, without the test's own."""

    def take() -> list[ReadableSpan]:
        found = [span for span in exported.get_finished_spans() if span.name.startswith("holdfast.")]
        exported.clear()
        return found

    return take


def attribute(span: ReadableSpan, name: str) -> object:
    return (span.attributes or {}).get(f"holdfast.{name}")


def test_every_hold_makes_a_span(disk: Path, provider: TracerProvider, spans: Spans) -> None:
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("work") as work:
        hold = Lock(disk / "l", tag="why").acquire()
    assert not spans(), "it is held"
    hold.release()
    (span,) = spans()
    assert span.name == "holdfast.lock"
    assert span.parent is not None
    assert span.parent.span_id == work.get_span_context().span_id
    assert [attribute(span, name) for name in ("path", "protocol", "tag", "outcome", "context")] == [
        str(disk / "l"),
        "sema",
        "why",
        "released",
        "MainThread",
    ]
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time <= span.end_time
    assert span.status.status_code is StatusCode.UNSET
    with Semaphore(disk / "s", 1):
        pass
    (span,) = spans()
    assert attribute(span, "slot") == 0
    assert span.parent is None


def test_a_path_that_is_not_utf_8_can_be_exported(disk: Path, spans: Spans) -> None:
    with Lock(f"{disk}/l\udcff"):
        pass
    (span,) = spans()
    assert attribute(span, "path") == f"{disk}/l\\udcff"


def test_a_wait_makes_a_span_of_its_own(disk: Path, provider: TracerProvider, spans: Spans) -> None:
    """The lock is acquired and released in different threads, each with its own current span."""
    tracer = provider.get_tracer("test")
    waiting, got = threading.Event(), []
    lock = Lock(disk / "l", on_event=lambda event: event.kind == "waiting" and waiting.set())
    hold = Lock(disk / "l", tag="busy").acquire()
    parents: list[int] = []

    def work() -> None:
        with tracer.start_as_current_span("worker") as span:
            parents.append(span.get_span_context().span_id)
            got.append(lock.acquire())

    thread = threading.Thread(target=work)
    thread.start()
    assert waiting.wait(PATIENCE)
    hold.release()
    thread.join(PATIENCE)
    with tracer.start_as_current_span("elsewhere"):
        got[0].release()
    # The waiter may report that it is inside before the other reports that it is outside.
    wait, first, second = sorted(spans(), key=lambda span: (span.name != "holdfast.wait", attribute(span, "number")))
    assert [span.name for span in (wait, first, second)] == ["holdfast.wait", "holdfast.lock", "holdfast.lock"]
    assert (attribute(wait, "holder.tag"), attribute(wait, "outcome")) == ("busy", "acquired")
    for span in (wait, second):
        assert span.parent is not None
        assert span.parent.span_id == parents[0]
    assert attribute(wait, "number") == attribute(second, "number") != attribute(first, "number")


@pytest.mark.parametrize("durable", [False, True])
def test_tasks_get_their_own_spans(disk: Path, provider: TracerProvider, spans: Spans, durable: bool) -> None:
    """Also where steps run in threads, and where the hold is released by another task."""
    tracer = provider.get_tracer("test")
    told: list[str] = []
    lock = AsyncLock(disk / "l", durable=durable, on_event=lambda event: told.append(event.kind))
    parents: dict[str, int] = {}

    async def work(name: str) -> None:
        with tracer.start_as_current_span(name) as span:
            parents[name] = span.get_span_context().span_id
            hold = await lock.acquire()
            while told.count("waiting") < 2:
                await asyncio.sleep(0.001)
            await asyncio.create_task(hold.release())

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for name in ("a", "b", "c"):
                group.create_task(work(name), name=name)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    found = spans()
    assert sorted(span.name for span in found) == ["holdfast.lock"] * 3 + ["holdfast.wait"] * 2
    for span in found:
        assert span.parent is not None
        assert span.parent.span_id == parents[str(attribute(span, "context"))]


def test_every_span_is_ended_and_says_how(disk: Path, spans: Spans) -> None:
    with Lock(disk / "l"):
        found: list[ReadableSpan] = []
        for timeout in (0.2, 2, 20):  # a busy machine needs the first of these before the wait begins
            with pytest.raises(AcquireTimeout):
                Lock(disk / "l").acquire(timeout=timeout)
            if found := spans():
                break
        (wait,) = found
        assert (wait.name, attribute(wait, "outcome")) == ("holdfast.wait", "gave-up")
        assert wait.status.status_code is StatusCode.UNSET

        async def main() -> None:
            waiting: list[events.Event] = []
            task = asyncio.create_task(AsyncLock(disk / "l", on_event=waiting.append).acquire())
            while not waiting:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        (wait,) = spans()
        assert attribute(wait, "outcome") == "gave-up"
    spans()
    hold = Lock(disk / "l").acquire()
    (disk / "l").write_bytes(sema_record(1, 1))
    with pytest.raises(LockLost):
        hold.release()
    (span,) = spans()
    assert attribute(span, "outcome") == "lost"
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "the lock was lost while it was held"  # of whatever engine
    assert [event.name for event in span.events] == ["lost"]


def test_a_reclaimed_lock_says_whose_it_was(disk: Path, spans: Spans) -> None:
    code = "import os, sys, holdfast; holdfast.Lock(sys.argv[1]).acquire(); os.kill(os.getpid(), 9)"
    child = subprocess.Popen([sys.executable, "-c", code, str(disk / "l")])
    child.wait(PATIENCE)
    with Lock(disk / "l"):
        pass
    (span,) = spans()
    assert attribute(span, "recovered_from.pid") == child.pid


def test_the_end_leaves_no_span_open(disk: Path, provider: TracerProvider, spans: Spans) -> None:
    end = trace(provider)
    hold = Lock(disk / "l").acquire()
    end()
    assert len(spans()) == 1, "of the one that has ended"
    hold.release()
    assert len(spans()) == 1, "of the other"


def test_a_child_does_not_end_its_parents_spans(disk: Path, spans: Spans) -> None:
    with Lock(disk / "l"):

        def child() -> list[str]:
            with Lock(disk / "mine"):
                pass
            return [str(attribute(span, "path")) for span in spans()]

        assert elsewhere(child) == [str(disk / "mine")]
        assert not spans()
    assert len(spans()) == 1


def test_the_end_in_a_child_ends_none_of_its_parents_spans(disk: Path, provider: TracerProvider, spans: Spans) -> None:
    end = trace(provider)
    with Lock(disk / "l"):
        assert elsewhere(lambda: (end(), len(spans()))[1]) == 0
    assert len(spans()) == 2, "one for each trace"
    end()
