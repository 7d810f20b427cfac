"""Which figures there are, in the order of the page. Who is in them is what peers.py has, measured or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .crowds import held_cost, held_memory, task_passing, waiter_memory, waiter_passing, waiter_sleep, waiter_woken
from .latencies import (
    asyncio_cycle,
    crash,
    fairness_jain,
    fairness_longest,
    fairness_rate,
    handoff_own,
    handoff_placed,
    idle_cpu,
    idle_woken,
    imports,
    listing,
    start,
    uncontended_disk,
    uncontended_tmpfs,
)
from .numbers import Absent, AnyFigure

_BUILDERS: tuple[tuple[str, Callable[[Mapping[str, Any]], AnyFigure]], ...] = (
    ("uncontended", uncontended_tmpfs),
    ("uncontended", uncontended_disk),
    ("handoff", handoff_own),
    ("handoff", handoff_placed),
    ("crash", crash),
    ("idle", idle_cpu),
    ("idle", idle_woken),
    ("fairness", fairness_rate),
    ("fairness", fairness_jain),
    ("fairness", fairness_longest),
    ("uncontended", asyncio_cycle),
    ("waiters", task_passing),
    ("waiters", waiter_passing),
    ("waiters", waiter_woken),
    ("waiters", waiter_sleep),
    ("waiters", waiter_memory),
    ("many", held_cost),
    ("many", held_memory),
    ("startup", start),
    ("startup", imports),
    ("listing", listing),
)
"""The suite whose numbers it needs, and what makes it of them. Each can be made of nothing, and is all gaps then."""


def figures(report: Mapping[str, Any]) -> list[AnyFigure]:
    """All of them; those of a suite that the run left out say so."""
    suites = report["suites"]
    found: list[AnyFigure] = []
    for suite, build in _BUILDERS:
        figure = build(suites.get(suite) or {})
        if suite not in suites and not isinstance(figure, Absent):
            figure = Absent(figure.key, figure.title, figure.says, f"This run has left out the suite {suite}.")
        found.append(figure)
    return found
