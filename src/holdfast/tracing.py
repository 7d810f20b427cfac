"""The activity of this process's locks, as OpenTelemetry spans: the extra `holdfast[tracing]`.

    holdfast.wait    from the beginning of a caller's wait until it has the lock or gives up
    holdfast.lock    from the acquisition to the release

Both are children of the span that is current where the lock is acquired. A free lock has no wait.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from opentelemetry.trace import Span, Status, StatusCode, Tracer, TracerProvider, get_tracer

from .events import Event, encodable, listen

_WAIT, _HOLD = "holdfast.wait", "holdfast.lock"


def trace(provider: TracerProvider | None = None) -> Callable[[], None]:
    """Make spans of all waits and holds of this process from now on. Returns a function that ends that.

    The tracer comes from `provider`; None: the global one. A span ends where the wait or the hold does, in any thread
    or task, and is never the current one: spans made while a lock is held are its siblings.

    Attributes: `holdfast.path`, `.protocol`, `.number` (the same for the wait and the hold of one acquisition),
    `.context` and, where known, `.tag`, `.slot`, `.holder.pid`, `.holder.tag`, `.holder.host`, `.recovered_from.pid`;
    at the end, `.outcome`: `acquired`, `gave-up` or `joined` for a wait, `released` or `lost` for a hold. A lost hold
    has the status ERROR and an event `lost`; a timeout is no error, as many callers expect it.

    The returned function ends the open spans. A forked child does not continue its parent's.
    """
    tracer = get_tracer("holdfast", tracer_provider=provider)
    spans = _Spans(tracer)
    end_listening = listen(spans)

    def end() -> None:
        end_listening()
        spans.leave()

    return end


class _Spans:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._pid = os.getpid()
        self._open: dict[tuple[str, int], Span] = {}
        self._lost: set[int] = set()

    def leave(self) -> None:
        """End all open spans now."""
        self._begin(os.getpid())
        while self._open:
            self._open.popitem()[1].end()

    def __call__(self, event: Event) -> None:
        self._begin(event.pid)
        if event.kind == "waiting":
            self._start(_WAIT, event)
        elif event.kind in ("acquired", "gave-up", "joined"):
            self._end(_WAIT, event)
            if event.kind == "acquired":
                self._start(_HOLD, event)
        elif event.kind == "lost":
            span = self._open.get((_HOLD, event.number))
            if span is not None:
                span.add_event("lost", timestamp=_nanoseconds(event))
                self._lost.add(event.number)
                span.set_status(Status(StatusCode.ERROR, "the lock was lost while it was held"))
        elif event.kind == "released":
            self._end(_HOLD, event)

    def _begin(self, pid: int) -> None:
        """Forget the spans of our parent, which will end them."""
        if pid != self._pid:
            self._pid, self._open = pid, {}

    def _start(self, name: str, event: Event) -> None:
        """Start a span. The current context is the acquirer's: listeners are called in its thread or task."""
        self._open[name, event.number] = self._tracer.start_span(
            name, attributes=_attributes(event), start_time=_nanoseconds(event)
        )

    def _end(self, name: str, event: Event) -> None:
        span = self._open.pop((name, event.number), None)
        if span is None:
            return  # it began before we listened, or the lock was free
        outcome = "lost" if event.number in self._lost else event.kind
        self._lost.discard(event.number)
        span.set_attributes({"holdfast.outcome": outcome, **_attributes(event)})
        span.end(_nanoseconds(event))


def _attributes(event: Event) -> dict[str, str | int]:
    found: dict[str, str | int | None] = {
        "path": event.path,
        "protocol": event.protocol,
        "number": event.number,
        "context": event.context,
        "tag": event.tag,
        "slot": event.slot,
    }
    if event.holder is not None:
        found |= {"holder.pid": event.holder.pid, "holder.tag": event.holder.tag, "holder.host": event.holder.host}
    if event.recovered_from is not None:
        found["recovered_from.pid"] = event.recovered_from.pid
    return {
        f"holdfast.{name}": encodable(value) if isinstance(value, str) else value
        for name, value in found.items()
        if value is not None
    }


def _nanoseconds(event: Event) -> int:
    return int(event.time * 1e9)
