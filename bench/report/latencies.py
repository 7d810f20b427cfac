"""The figures of one row for each subject: how long something takes, and how much of it there is."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from async_peers import AsyncFileLock, AsyncHoldfast
from limits import LIMITS
from listing import BARE as LISTING_BARE
from listing import EMPTY, FIND, FIND_BARE, MANY, TREE, TREE_BARE
from peers import LIBRARIES, FileLock, Holdfast, HoldfastFlock, Subject
from references import BlockingFlock, PollingFlock, PythonCalls, WokenPython
from startup import BARE, FLOCK, IMPORT, MODULES, RUN, TRY
from uncontended import C_LOOP

from .numbers import Figure, Role, Row, of_rounds, of_series
from .words import says

Suite = Mapping[str, Any]
_US, _MS = 1e3, 1e6
_REFERENCES = {
    C_LOOP,
    PythonCalls.label,
    BlockingFlock.label,
    PollingFlock.label,
    WokenPython.label,
    BARE,
    LISTING_BARE,
}
_REFERENCES |= {FIND, FIND_BARE, EMPTY, *(one.label for one in LIMITS)}
_OURS = {Holdfast.label, HoldfastFlock.label, AsyncHoldfast.label, IMPORT, TRY, RUN, MANY, TREE, TREE_BARE}
CANNOT_WAIT = "cannot wait"
OUTLIVES = "its lock outlives its holder"


def role_of(label: str) -> Role:
    """Ours, a reference that shows what is possible, or a peer."""
    return "ours" if label in _OURS else "reference" if label in _REFERENCES else "peer"


def _why_not(one: type[Subject], killed: bool) -> str:
    return CANNOT_WAIT if one.poll is None else OUTLIVES if killed and not one.after_kill else ""


def waiting_labels(*references: type[Subject], killed: bool = False) -> dict[str, str]:
    """The references, then every library; where it is left out by design, why."""
    return {one.label: _why_not(one, killed) for one in (*references, *LIBRARIES)}


def _rows(found: Mapping[str, Any], labels: Mapping[str, str], unit_ns: float) -> list[Row]:
    return [of_series(label, role_of(label), found.get(label), unit_ns, why) for label, why in labels.items()]


def _none(labels: Iterable[str]) -> dict[str, str]:
    return dict.fromkeys(labels, "")


# -- one lock, nobody else -------------------------------------------------------------------------------------------

_ALONE: tuple[type[Subject], ...] = (*LIMITS, PythonCalls, *LIBRARIES, HoldfastFlock)
_BLOCKING = (C_LOOP, *(one.label for one in _ALONE))


def _uncontended(suite: Suite, place: str, where: str) -> Figure:
    return Figure(
        f"uncontended-{place}",
        f"Uncontended, {where}",
        says("uncontended"),
        "µs",
        _rows(suite.get(place, {}), _none(_BLOCKING), _US),
        Holdfast.label,
        C_LOOP,
    )


def uncontended_tmpfs(suite: Suite) -> Figure:
    return _uncontended(suite, "tmpfs", "in memory (tmpfs)")


def uncontended_disk(suite: Suite) -> Figure:
    return _uncontended(suite, "disk", "on disk")


def asyncio_cycle(suite: Suite) -> Figure:
    labels = (AsyncHoldfast.label, AsyncFileLock.label, Holdfast.label, FileLock.label)
    return Figure(
        "asyncio",
        "asyncio, uncontended",
        says("asyncio"),
        "µs",
        _rows(suite.get("tmpfs", {}), _none(labels), _US),
        AsyncHoldfast.label,
        Holdfast.label,
    )


# -- two processes ---------------------------------------------------------------------------------------------------


def _handoff(suite: Suite, key: str, title: str, labels: Mapping[str, str]) -> Figure:
    rows = _rows(suite.get(key, {}), labels, _MS)
    name = f"handoff-{key}"
    return Figure(name, title, says(name), "ms", rows, Holdfast.label, BlockingFlock.label)


def handoff_own(suite: Suite) -> Figure:
    labels = waiting_labels(*LIMITS, BlockingFlock, PollingFlock, WokenPython)
    return _handoff(suite, "own", "Hand-off to a waiter", labels)


def handoff_placed(suite: Suite) -> Figure:
    woken: tuple[type[Subject], ...] = (*LIMITS, BlockingFlock, PollingFlock, WokenPython, Holdfast)
    labels = _none(one.label for one in woken)
    return _handoff(suite, "placed", "Hand-off, placed by the scheduler", labels)


def crash(suite: Suite) -> Figure:
    return Figure(
        "crash",
        "Crash recovery",
        says("crash"),
        "ms",
        _rows(suite, waiting_labels(*LIMITS, BlockingFlock, killed=True), _MS),
        Holdfast.label,
        BlockingFlock.label,
    )


# -- waiting, and many who want it -----------------------------------------------------------------------------------


def _idle(suite: Suite, name: str, value: Callable[[list[float]], float]) -> list[Row]:
    rows = []
    for label, why in waiting_labels(BlockingFlock).items():
        windows = suite.get("each", {}).get(label, {}).get(name, [])
        rounds = {str(number): value(each) for number, each in enumerate(windows)}
        rows.append(of_rounds(label, role_of(label), rounds, suite.get("errors", {}).get(label) or why))
    return rows


def idle_cpu(suite: Suite) -> Figure:
    seconds = suite.get("seconds", 1.0)
    return Figure(
        "idle-cpu",
        "Processor time while waiting",
        says("idle-cpu"),
        "ms a minute",
        _idle(suite, "cpu_ns", lambda each: statistics.fmean(each) / _MS * 60 / seconds),
        Holdfast.label,
        of_samples=False,
    )


def idle_woken(suite: Suite) -> Figure:
    seconds = suite.get("seconds", 1.0)
    return Figure(
        "idle-woken",
        "Wake-ups while waiting",
        says("idle-woken"),
        "a minute",
        _idle(suite, "wake_ups", lambda each: statistics.fmean(each) * 60 / seconds),
        Holdfast.label,
        of_samples=False,
    )


def _fairness(suite: Suite, key: str, title: str, unit: str, name: str, per: float, **more: bool) -> Figure:
    rows = []
    for label, why in waiting_labels(*LIMITS, BlockingFlock).items():
        one = suite.get(label, {})
        rounds = {number: value / per for number, value in one.get(name, {}).items()}
        rows.append(of_rounds(label, role_of(label), rounds, one.get("error") or why))
    return Figure(key, title, says(key), unit, rows, Holdfast.label, "", of_samples=False, **more)


def fairness_rate(suite: Suite) -> Figure:
    title = "Contention: acquisitions"
    return _fairness(suite, "fairness-rate", title, "a second", "rates", 1.0, more_is_better=True)


def fairness_jain(suite: Suite) -> Figure:
    title = "Contention: Jain's index"
    return _fairness(suite, "fairness-jain", title, "", "jains", 1.0, more_is_better=True, linear=True)


def fairness_longest(suite: Suite) -> Figure:
    return _fairness(suite, "fairness-longest", "Contention: longest wait", "ms", "longest_ns", _MS)


# -- commands --------------------------------------------------------------------------------------------------------


def start(suite: Suite) -> Figure:
    return Figure(
        "start",
        "Start of the command",
        says("start"),
        "ms",
        _rows(suite, _none((BARE, RUN, TRY, FLOCK)), _MS),
        RUN,
        BARE,
    )


def imports(suite: Suite) -> Figure:
    return Figure(
        "imports",
        "Import of the library",
        says("imports"),
        "ms",
        _rows(suite, _none((BARE, IMPORT, *(f"import {module}" for module in MODULES))), _MS),
        IMPORT,
        BARE,
    )


def listing(suite: Suite) -> Figure:
    return Figure(
        "listing",
        "Listing of locks",
        says("listing"),
        "ms",
        _rows(suite, _none((LISTING_BARE, EMPTY, MANY, FIND, TREE, FIND_BARE, TREE_BARE)), _MS),
        TREE,
        FIND,
    )
