"""The figures of lines: what grows with the number of those who wait, and of locks that are held."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from async_peers import AsyncFileLock, AsyncHoldfast
from limits import LIMITS
from peers import LIBRARIES, Fasteners, FileLock, Holdfast, HoldfastFlock, Portalocker, StrictSoftFileLock, Subject
from references import BlockingFlock

from .latencies import role_of
from .numbers import Curves, Figure, Line, Row, of_rounds, point
from .words import says

Suite = Mapping[str, Any]
TOO_LATE = "not all came within the limit"
_PROCESSES: tuple[type[Subject], ...] = (*LIMITS, BlockingFlock, Holdfast, FileLock, Portalocker, Fasteners)


def _line(label: str, sizes: Mapping[str, Any], value: Callable[[Mapping[str, float], int], float | None]) -> Line:
    """Of rounds that have a value; a size with a round that has none is a gap."""
    points, gaps = {}, {}
    for name, found in sizes.items():
        values = {number: value(one, int(name)) for number, one in found.get("rounds", {}).items()}
        known = {number: one for number, one in values.items() if one is not None}
        if known and len(known) == len(values):
            points[int(name)] = point(known)
        else:
            gaps[int(name)] = found.get("error") or (TOO_LATE if values else "not in this run")
    return Line(label, role_of(label), points, gaps)


def _each_ms(one: Mapping[str, float], many: int) -> float | None:
    return one["seconds"] * 1e3 / many if one["acquisitions"] == many else None


def _woken(one: Mapping[str, float], _many: int) -> float:
    return one["wake_ups_per_release"]


def _asleep(one: Mapping[str, float], many: int) -> float:
    return one["idle_wake_ups_a_second"] / many


def _lines(suite: Suite, kind: str, labels: list[str], value: Any) -> list[Line]:
    sizes: dict[str, Any] = {str(size): {} for size in suite.get("sizes", [])}
    found = suite.get(kind, {})
    return [_line(label, {**sizes, **found.get(label, {})}, value) for label in labels]


def waiter_passing(suite: Suite) -> Curves:
    return Curves(
        "waiters",
        "Processes that wait: time for each",
        says("waiters"),
        "ms",
        "waiting processes",
        _lines(suite, "processes", [one.label for one in _PROCESSES], _each_ms),
        Holdfast.label,
    )


def waiter_woken(suite: Suite) -> Curves:
    return Curves(
        "waiters-woken",
        "Processes that wait: wake-ups for a release",
        says("waiters-woken"),
        "",
        "waiting processes",
        _lines(suite, "processes", [one.label for one in _PROCESSES], _woken),
        Holdfast.label,
    )


def waiter_sleep(suite: Suite) -> Curves:
    return Curves(
        "waiters-asleep",
        "Processes that wait: wake-ups of each in a second",
        says("waiters-asleep"),
        "a second",
        "waiting processes",
        _lines(suite, "processes", [one.label for one in _PROCESSES], _asleep),
        Holdfast.label,
    )


def task_passing(suite: Suite) -> Curves:
    return Curves(
        "tasks",
        "asyncio tasks that wait: time for each",
        says("tasks"),
        "ms",
        "waiting tasks",
        _lines(suite, "tasks", [AsyncHoldfast.label, AsyncFileLock.label], _each_ms),
        AsyncHoldfast.label,
    )


def waiter_memory(suite: Suite) -> Figure:
    many = str(max(suite.get("sizes", [0])))
    rows = []
    for label in (one.label for one in _PROCESSES):
        found = suite.get("processes", {}).get(label, {}).get(many, {})
        # Who polls shares its pages; less than nothing is the noise of others that end.
        rounds = {number: max(0.0, one["bytes_each"] / 1024) for number, one in found.get("rounds", {}).items()}
        rows.append(of_rounds(label, role_of(label), rounds, found.get("error") or ""))
    return Figure(
        "waiters-memory",
        f"Memory of a waiting process, one of {many}",
        says("waiters-memory"),
        "KiB",
        rows,
        Holdfast.label,
        of_samples=False,
    )


_ALL: tuple[type[Subject], ...] = (BlockingFlock, *LIBRARIES, HoldfastFlock)
_HOLDING = [one.label for one in _ALL if one is not StrictSoftFileLock]


def held_cost(suite: Suite) -> Curves:
    lines = []
    for label in _HOLDING:
        one = suite.get("each", {}).get(label, {})
        points, gaps = {}, {}
        for size in suite.get("sizes", []):
            found = one.get("held", {}).get(str(size), {}).get("round_medians_ns")
            if found:
                points[size] = point({number: value / 1e3 for number, value in found.items()})
            else:
                gaps[size] = one.get("error") or "not in this run"
        lines.append(Line(label, role_of(label), points, gaps))
    return Curves(
        "held",
        "One process that holds many locks",
        says("held"),
        "µs",
        "locks held",
        lines,
        Holdfast.label,
    )


def held_memory(suite: Suite) -> Figure:
    rows: list[Row] = []
    for label in _HOLDING:
        one = suite.get("each", {}).get(label, {})
        rounds = {str(number): value / 1024 for number, value in enumerate(one.get("bytes_each", []))}
        rows.append(of_rounds(label, role_of(label), rounds, one.get("error") or ""))
    return Figure(
        "held-memory",
        f"Memory of a hold, one of {max(suite.get('sizes', [0]))}",
        says("held-memory"),
        "KiB",
        rows,
        Holdfast.label,
        of_samples=False,
    )


def largest(curves: Curves) -> Figure | None:
    """The same subjects at the largest size that ours has or was too slow for, as a figure of rows."""
    ours = next((line for line in curves.lines if line.label == curves.ours), None)
    tried = [
        size for size in curves.sizes if ours is not None and (size in ours.points or ours.gaps.get(size) == TOO_LATE)
    ]
    if not tried:
        return None
    size = max(tried)
    rows = [
        of_rounds(
            line.label, line.role, line.points[size].rounds if size in line.points else {}, line.gaps.get(size, "")
        )
        for line in curves.lines
    ]
    title = f"{curves.title}, {size} {curves.across}"
    return Figure(curves.key, title, curves.says, curves.unit, rows, curves.ours, of_samples=False)
