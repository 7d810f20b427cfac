"""The activity of this process's locks, as Prometheus metrics: the extra `holdfast[metrics]`.

    holdfast_acquired_total  holdfast_gave_up_total  holdfast_reclaimed_total  holdfast_lost_total     counters
    holdfast_wait_seconds    holdfast_hold_seconds                                                     histograms
    holdfast_waiters         holdfast_holds                                                            gauges

Each has the labels `protocol` and `name`. The path is not a label: the number of time series would be unbounded. `name`
is derived from an event by the caller, and empty by default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from .events import Event, check_callback, encodable, listen

M = TypeVar("M", Counter, Gauge, Histogram)

BUCKETS = (0.0001, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
"""Upper bounds of the histogram buckets, in seconds: from a hand-over between processes to a batch job."""


def export(
    registry: CollectorRegistry = REGISTRY,
    *,
    name: str | Callable[[Event], str] = "",
    buckets: Sequence[float] = BUCKETS,
) -> Callable[[], None]:
    """Count the events of all locks of this process from now on. Returns a function that ends that.

    `name` is the value of that label: one for all, or a function that derives it from an `Event`, called once for each
    acquisition. It should return few different values: each is a time series of its own, which lives as long as the
    process. `buckets` are in seconds.

    `holdfast_wait_seconds` includes waits that were given up, and 0 s for a lock that was free. A lost hold no longer
    counts in `holdfast_holds`. After a fork the child's gauges start again at 0, with its first event; its counters
    go on from its parent's.

    The returned function also removes the metrics. Raises ValueError if the registry has such metrics already: export
    once. Raises TypeError for a `name` that is neither a text nor a function, and for an `async def`.
    """
    if not isinstance(name, str):
        check_callback("name", name)
    exporter = _Exporter(registry, name, buckets)
    end_listening = listen(exporter)

    def end() -> None:
        end_listening()
        exporter.leave()

    return end


class _Exporter:
    def __init__(
        self, registry: CollectorRegistry, name: str | Callable[[Event], str], buckets: Sequence[float]
    ) -> None:
        self._registry = registry
        self._name = name
        self._pid = os.getpid()
        self._labels: dict[int, tuple[str, str]] = {}
        """The labels of each acquisition in progress or held, by its number."""
        self._series: dict[tuple[str, str], None] = {}
        """All labels that there have been."""
        self._waiting: set[int] = set()
        self._holding: set[int] = set()
        self._made: list[Counter | Gauge | Histogram] = []
        try:
            self._counters = {
                "acquired": self._add(Counter, "acquired", "Locks acquired."),
                "gave-up": self._add(Counter, "gave_up", "Acquisitions that ended without the lock."),
                "reclaimed": self._add(Counter, "reclaimed", "Locks taken over from a dead or stale holder."),
                "lost": self._add(Counter, "lost", "Holds that were lost before their release."),
            }
            waited = "How long callers waited, whatever the end."
            self._wait = self._add(Histogram, "wait_seconds", waited, buckets=buckets)
            self._hold = self._add(Histogram, "hold_seconds", "How long locks were held.", buckets=buckets)
            self._waiters = self._add(Gauge, "waiters", "Callers of this process that wait for a lock.")
            self._holds = self._add(Gauge, "holds", "Locks that this process holds.")
        except ValueError:
            self.leave()
            raise

    def leave(self) -> None:
        """Remove the metrics from the registry. Idempotent."""
        while self._made:
            self._registry.unregister(self._made.pop())

    def __call__(self, event: Event) -> None:
        if event.pid != self._pid:
            self._begin(event.pid)
        labels = self._labels.get(event.number)
        if labels is None:
            name = self._name if isinstance(self._name, str) else str(self._name(event))
            labels = self._labels[event.number] = event.protocol, encodable(name)
            self._series[labels] = None
        self._count(event, labels)
        self._follow(event, labels)

    def _begin(self, pid: int) -> None:
        """Forget the holds and waits of our parent."""
        self._pid = pid
        self._labels.clear()
        self._waiting.clear()
        self._holding.clear()
        for labels in [*self._series]:  # not by `clear`, which warns in the multiprocess mode
            self._waiters.labels(*labels).set(0)
            self._holds.labels(*labels).set(0)

    def _count(self, event: Event, labels: tuple[str, str]) -> None:
        counter = self._counters.get(event.kind)
        if counter is not None:
            counter.labels(*labels).inc()
        if event.kind in ("acquired", "gave-up") and event.waited is not None:
            self._wait.labels(*labels).observe(event.waited)
        elif event.kind == "released" and event.held is not None:
            self._hold.labels(*labels).observe(event.held)

    def _follow(self, event: Event, labels: tuple[str, str]) -> None:
        """Update the gauges. Waits and holds from before we listened are not in the sets, so they do not count."""
        number, kind = event.number, event.kind
        if kind == "waiting":
            self._waiting.add(number)
            self._waiters.labels(*labels).inc()
        elif kind != "reclaimed" and number in self._waiting:
            self._waiting.discard(number)
            self._waiters.labels(*labels).dec()
        if kind == "acquired":
            self._holding.add(number)
            self._holds.labels(*labels).inc()
        elif kind in ("lost", "released") and number in self._holding:
            self._holding.discard(number)
            self._holds.labels(*labels).dec()
        if kind in ("gave-up", "joined", "released"):
            self._labels.pop(number, None)

    def _add(self, kind: type[M], name: str, about: str, **more: Any) -> M:
        made = kind(f"holdfast_{name}", about, ("protocol", "name"), registry=self._registry, **more)
        self._made.append(made)
        return made
