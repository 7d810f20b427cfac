"""Waiters: up to a thousand wait for one lock; then it is released, and all of them get it, one after the other.

Measured: the time from before the first release to after the last acquisition; how often a waiter was woken for each
release, from the voluntary context switches of the waiters (everything above 1 is a waiter woken for nothing); the
wake-ups a second of all of them together while nothing happened, and the memory that waiting takes.
Each leaves the lock at once and does not come back. Not measured: arriving, and ending.

The waiters are processes, or threads or asyncio tasks of one process; the holder is another process. With threads, some
of the switches are waits for the interpreter's own lock. A user may have so many inotify instances (128 by default,
table title): of a thousand processes, most have to wait without one. A hundred are within the limit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from async_peers import AsyncFileLock, AsyncHoldfast, AsyncSubject
from context import Context
from passing import ARRIVAL_S, LIMIT_S, SETTLE_S, Passage, processes, tasks, threads, with_holder
from peers import Fasteners, FileLock, Holdfast, Portalocker, Subject
from procs import Failed, NotAvailable, spawn
from references import BlockingFlock
from tables import Goal, Outcome, Table, show

_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
_SIZES, _QUICK_SIZES = (1, 10, 100, 1000), (1, 10, 100)
_LARGE, _WINDOW_S, _LARGE_WINDOW_S = 300, 0.25, 1.0
"""So many wake up so often that a second shows it; fewer would cost as long and show no more."""

Crowd = tuple[str, int, str]
"""Kind of waiter, how many, label of the subject."""


class Crowds:
    """What was found, by crowd and round."""

    def __init__(self) -> None:
        self.found: dict[Crowd, dict[int, Passage]] = {}
        self.errors: dict[Crowd, Failed] = {}

    def measure(
        self,
        context: Context,
        kind: str,
        many: int,
        number: int,
        how: Callable[..., Passage],
        one: type[Subject] | type[AsyncSubject],
    ) -> None:
        """One crowd, unless its like has failed before."""
        crowd, window = (kind, many, one.label), _LARGE_WINDOW_S if many >= _LARGE else _WINDOW_S
        if crowd in self.errors:
            return
        group = spawn(with_holder, how, one, str(context.tmpfs / f"{kind}-{many}-{number}.{one.label}"), many, window)
        try:
            passage = group.answer(ARRIVAL_S + SETTLE_S + window + LIMIT_S + 60)
            self.found.setdefault(crowd, {})[number] = passage
        except Failed as error:
            self.errors[crowd] = error
        finally:
            group.end()

    def middle(self, crowd: Crowd, value: Callable[[Passage], float]) -> float | None:
        """The median over the rounds."""
        return statistics.median(map(value, self.found[crowd].values())) if crowd in self.found else None

    def why_not(self, crowd: Crowd) -> str:
        return str(self.errors.get(crowd, ""))


def run(context: Context) -> Outcome:
    """Rounds; in each, every subject has every size of crowd, in an order drawn anew."""
    sizes = _QUICK_SIZES if context.quick else _SIZES
    # One who polls shows what polling does; the others are for who has the time.
    polling = [FileLock] if context.quick else [FileLock, Portalocker, Fasteners]
    plan: list[tuple[str, Callable[..., Passage], list[Any], Sequence[int]]] = [
        ("processes", processes, context.subjects([BlockingFlock, Holdfast, *polling]), sizes),
        ("threads", threads, context.subjects([BlockingFlock, Holdfast]), sizes[-1:]),
        ("tasks", tasks, context.subjects([AsyncHoldfast, AsyncFileLock]), sizes),
    ]
    crowds = Crowds()
    for number in range(int(context.pick(2, 3))):
        turns = [(kind, many, number, how, one) for kind, how, found, some in plan for one in found for many in some]
        for turn in context.random.sample(turns, len(turns)):
            crowds.measure(context, *turn)
    outcome = Outcome(data={"sizes": list(sizes), "inotify_instances": int(_INSTANCES.read_text())})
    for kind, _, subjects, some in plan:
        outcome.data[kind] = {one.label: {str(many): _data(crowds, (kind, many, one.label)) for many in some}
                              for one in subjects}  # fmt: skip
        # A size between says nothing more; it is in the numbers, and in the curves that are made of them.
        for many in [size for size in some if size >= 100 or size == some[-1]]:
            outcome.tables.append(_table(crowds, kind, many, [one.label for one in subjects]))
    outcome.goals = _goals(context, crowds, sizes[-1])
    outcome.failures = [
        f"{many} {kind}, {name}: {error}"
        for (kind, many, name), error in crowds.errors.items()
        if not isinstance(error, NotAvailable)
    ]
    return outcome


def _data(crowds: Crowds, crowd: Crowd) -> dict[str, Any]:
    rounds = {str(number): passage.data() for number, passage in crowds.found.get(crowd, {}).items()}
    return {"rounds": rounds, "error": crowds.why_not(crowd) or None}


def _table(crowds: Crowds, kind: str, many: int, names: Sequence[str]) -> Table:
    title = f"Waiters: {many} {kind} on one lock, tmpfs"
    if kind == "processes":
        title += f"; inotify instances of a user: {_INSTANCES.read_text().strip()}"
    table = Table(
        title, ["", "s for all", "median step µs", "wake-ups a release", "wake-ups a second before", "KiB each"]
    )
    for name in names:
        crowd = (kind, many, name)
        if crowd not in crowds.found:
            table.rows.append([name, "-", "-", "-", "-", "-"])
            table.notes.append(f"{name}: {crowds.why_not(crowd)}")
            continue
        came = min(len(passage.moments) for passage in crowds.found[crowd].values())
        values: list[Callable[[Passage], float]] = [
            lambda passage: passage.seconds,
            lambda passage: passage.step / 1e3,
            lambda passage: passage.woken_each,
            lambda passage: passage.idle,
            lambda passage: passage.memory / 1024,
        ]
        cells = [show(crowds.middle(crowd, value)) for value in values]
        if came < many:
            cells[0] = f"> {LIMIT_S:.0f}"
            table.notes.append(f"{name}: {came} of {many} in {LIMIT_S:.0f} s")
        table.rows.append([name, *cells])
    return table


def _goals(context: Context, crowds: Crowds, most: int) -> list[Goal]:
    def seconds(passage: Passage) -> float:
        # Those who did not all come within the limit took that long at least.
        return passage.seconds if len(passage.moments) == most else LIMIT_S

    ours, in_tasks = ("processes", most, Holdfast.label), ("tasks", most, AsyncHoldfast.label)
    missing = context.holdfast_missing
    return [
        Goal(
            f"{most} waiting processes: wake-ups a release",
            crowds.middle(ours, lambda passage: passage.woken_each),
            1.5,
            "",
            why_not=missing or crowds.why_not(ours),
        ),
        Goal(
            f"{most} waiting tasks: time for all",
            crowds.middle(in_tasks, seconds),
            most * 0.002,
            "s",
            why_not=missing or crowds.why_not(in_tasks),
        ),
    ]
