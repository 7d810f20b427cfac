"""Waiters: up to a thousand wait for one lock; then it is released, and all of them get it, one after the other.

Measured: the time from before the first release to after the last acquisition; how often a waiter was woken for each
release, from the voluntary context switches of the waiters (everything above 1 is a waiter woken for nothing); the
wake-ups a second of all of them together while nothing happened, and the memory that waiting takes.
Each waiter releases the lock at once and does not come back. Not measured: arriving, and ending.

The waiters are processes, or threads or asyncio tasks of one process; the holder is another process. With threads, some
of the switches are waits for the interpreter's own lock. The inotify instances of a user are limited (128 by default,
table title): of a thousand processes, most have to wait without one. A hundred are within the limit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from async_peers import AsyncFileLock, AsyncHoldfast, AsyncSubject
from context import Context
from limits import LIMITS, Limit
from passing import ARRIVAL_S, LIMIT_S, SETTLE_EACH_S, SETTLE_S, Passage, processes, tasks, threads, with_holder
from peers import Fasteners, FileLock, Holdfast, Portalocker, Subject
from procs import Failed, NotAvailable, spawn
from references import BlockingFlock
from tables import Goal, Outcome, Table, show

_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
_SIZES, _QUICK_SIZES = (1, 10, 100, 1000), (1, 10, 100)
_LARGE, _WINDOW_S, _LARGE_WINDOW_S = 300, 0.25, 1.0
"""Waiters from which on the idle window is longer, and the seconds of both windows: many wake up so often that a second
shows it, while for fewer it would take as long and show no more."""

Crowd = tuple[str, int, str]
"""Kind of waiter, how many, label of the subject."""


class Group(NamedTuple):
    """Subjects that are measured in the same way, in these rounds."""

    kind: str
    how: Callable[..., Passage]
    subjects: Sequence[Any]
    sizes: Sequence[int]
    rounds: range


class Crowds:
    """Results by crowd and round."""

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
        """Measure one crowd, unless one like it has failed before."""
        crowd, window = (kind, many, one.label), _LARGE_WINDOW_S if many >= _LARGE else _WINDOW_S
        if crowd in self.errors:
            return
        path = str(context.lock_path(f"{kind}-{many}-{number}.{one.label}"))
        if issubclass(one, Limit):
            try:
                self.found.setdefault(crowd, {})[number] = _in_c(context, one, path, many, window)
            except Failed as error:
                self.errors[crowd] = error
            return
        group = spawn(with_holder, how, one, path, many, window)
        try:
            passage = group.answer(ARRIVAL_S + SETTLE_S + SETTLE_EACH_S * many + window + LIMIT_S + 60)
            self.found.setdefault(crowd, {})[number] = passage
        except Failed as error:
            self.errors[crowd] = error
        finally:
            group.end()

    def middle(self, crowd: Crowd, value: Callable[[Passage], float]) -> float | None:
        """The median over the rounds."""
        return statistics.median(map(value, self.found[crowd].values())) if crowd in self.found else None

    def ratio(self, crowd: Crowd, other: Crowd, value: Callable[[Passage], float]) -> float | None:
        """The median over the rounds of (one ÷ the other in the same round)."""
        ours, theirs = self.found.get(crowd, {}), self.found.get(other, {})
        pairs = [value(ours[number]) / value(theirs[number]) for number in ours.keys() & theirs.keys()]
        return statistics.median(pairs) if pairs else None

    def why_not(self, crowd: Crowd) -> str:
        return str(self.errors.get(crowd, ""))


def run(context: Context) -> Outcome:
    """Rounds; in each, every subject has every size of crowd, in an order drawn anew."""
    sizes = _QUICK_SIZES if context.quick else _SIZES
    plan, crowds = _plan(context, sizes), Crowds()
    for number in range(max(group.rounds.stop for group in plan)):
        turns = [
            (group.kind, many, number, group.how, one)
            for group in plan
            if number in group.rounds
            for one in group.subjects
            for many in group.sizes
        ]
        for turn in context.random.sample(turns, len(turns)):
            crowds.measure(context, *turn)
    outcome = Outcome(data={"sizes": list(sizes), "inotify_instances": int(_INSTANCES.read_text())})
    for kind in dict.fromkeys(group.kind for group in plan):
        # The first group of a kind has all its subjects and sizes.
        first = next(group for group in plan if group.kind == kind)
        names = [one.label for one in first.subjects]
        outcome.data[kind] = {
            name: {str(many): _data(crowds, (kind, many, name)) for many in first.sizes} for name in names
        }
        # A size in between says nothing more; it is in the numbers, and in the curves that are drawn from them.
        outcome.tables += [_table(crowds, kind, many, names) for many in first.sizes if many >= 100]
    outcome.goals = _goals(context, crowds, sizes[-1])
    outcome.failures = [
        f"{many} {kind}, {name}: {error}"
        for (kind, many, name), error in crowds.errors.items()
        if not isinstance(error, NotAvailable)
    ]
    return outcome


def _plan(context: Context, sizes: Sequence[int]) -> list[Group]:
    """Two rounds of all, and three more of what the goals need: a thousand waiters take long to begin and to end."""
    two, more, most = range(2), range(2, int(context.pick(2, 5))), sizes[-1:]
    # One polling library shows what polling does; the others are for a full run.
    polling = [FileLock] if context.quick else [FileLock, Portalocker, Fasteners]
    in_processes: list[type[Subject]] = [*LIMITS, BlockingFlock, Holdfast, *polling]
    needed: list[type[Subject]] = [*LIMITS, Holdfast, FileLock]
    return [
        Group("processes", processes, context.subjects(in_processes), sizes, two),
        Group("threads", threads, context.subjects([BlockingFlock, Holdfast]), most, two),
        Group("tasks", tasks, context.subjects([AsyncHoldfast, AsyncFileLock]), sizes, two),
        Group("processes", processes, context.subjects(needed), most, more),
        Group("tasks", tasks, context.subjects([AsyncHoldfast]), most, more),
    ]


def _in_c(context: Context, limit: type[Limit], path: str, many: int, window: float) -> Passage:
    spans = (round(window * 1e9), round(LIMIT_S * 1e9))
    woken, idle, memory, *moments = limit.measured(context.disk, path, "waiters", many, *spans)
    return Passage(moments, woken, idle, memory)


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
        # A crowd that did not come through within the limit took that long at least.
        return passage.seconds if len(passage.moments) == most else LIMIT_S

    ours, in_tasks = ("processes", most, Holdfast.label), ("tasks", most, AsyncHoldfast.label)
    other = ("processes", most, FileLock.label)
    why_not = context.holdfast_missing or crowds.why_not(ours)
    of = f"{most} waiting processes, {_INSTANCES.read_text().strip()} inotify instances"
    return [
        Goal(
            f"{of}: time for each, holdfast ÷ FileLock",
            crowds.ratio(ours, other, seconds),
            0.7,
            "x",
            why_not=why_not or crowds.why_not(other),
        ),
        Goal(
            f"{of}: wake-ups a release",
            crowds.middle(ours, lambda passage: passage.woken_each),
            1.05,
            "",
            why_not=why_not,
        ),
        Goal(
            f"{of}: memory of each",
            crowds.middle(ours, lambda passage: passage.memory / 1024),
            150,
            "KiB",
            why_not=why_not,
        ),
        Goal(
            f"{most} waiting tasks: time for all",
            crowds.middle(in_tasks, seconds),
            most * 0.002,
            "s",
            why_not=context.holdfast_missing or crowds.why_not(in_tasks),
        ),
    ]
