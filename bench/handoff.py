"""Hand-off: two processes take turns; one frees the lock while the other is blocked waiting for it.

Measured: from just before the holder calls release to just after the waiter's acquire returned (turns.py). By then the
waiter has announced itself, and the holder has kept the lock for 2-5 ms more.
Not measured: fairness among many waiters, a waiter that arrives at the moment of release.

Placement matters more than the lock: when the scheduler puts both processes on one CPU, the waiter runs as soon as the
releaser sleeps (as it does here, right after releasing: the least time possible), or not before the releaser's time
slice ends. So the table that the goals are judged by gives each process a CPU of its own; a second one leaves the
placement to the scheduler, for the subjects that do not poll for longer than that would show.

For a library that polls, the pause is 2 ms plus at least one poll interval, uniformly: a release at a fixed moment
after the first look would always meet the same phase of its interval, 2-5 ms being the least favourable one.
"""

from __future__ import annotations

import os
from pathlib import Path

from context import Context
from limits import LIMITS, Limit
from peers import Holdfast, Subject, waiting
from procs import Failed
from references import BlockingFlock, PollingFlock, WokenPython
from series import Series, failures
from tables import Goal, Outcome, timing_table
from turns import alternate

# The first wait of a process does its set-up (an inotify instance, say); it is not counted.
_WARM_UP = 2


def run(context: Context) -> Outcome:
    """All subjects with a processor for each process; then, if it matters, as the scheduler places them."""
    outcome = Outcome()
    own = _measure(
        context, context.subjects(waiting(*LIMITS, BlockingFlock, PollingFlock, WokenPython)), "own", _two_processors()
    )
    woken: list[type[Subject]] = [*LIMITS, BlockingFlock, PollingFlock, WokenPython, Holdfast]
    placed = _measure(context, context.subjects(woken), "placed", None)
    for key, title, series in (("own", _own_title(), own), ("placed", "placed by the scheduler", placed)):
        heading = f"Hand-off, two processes in turns, tmpfs; {title}"
        outcome.tables.append(timing_table(heading, series, BlockingFlock.label, 1_000))
        outcome.data[key] = {name: one.data() for name, one in series.items()}
        outcome.failures += failures(series)
    ours, reference = own.get(Holdfast.label, Series()), own[BlockingFlock.label]
    why_not = context.holdfast_missing or ours.error or ""
    p99 = ours.p99()
    outcome.goals = [
        Goal("hand-off median: holdfast ÷ blocking flock", ours.ratio_to(reference), 3.0, "x", why_not=why_not),
        Goal("hand-off p99", p99 / 1e6 if p99 else None, 0.6, "ms", why_not=why_not or "fewer than 100 samples"),
    ]
    return outcome


def _two_processors() -> tuple[int, int] | None:
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1]) if len(allowed) > 1 else None


def _own_title() -> str:
    return "each on a CPU of its own" if _two_processors() else "on the only CPU"


def _measure(
    context: Context, subjects: list[type[Subject]], tag: str, processors: tuple[int, int] | None
) -> dict[str, Series]:
    """Rounds of batches; in each round every subject has one batch, in an order drawn anew."""
    series = {one.label: Series() for one in subjects}
    for number in range(int(context.pick(2, 5))):
        for one in context.random.sample(subjects, len(subjects)):
            if series[one.label].error is None:
                path = context.lock_path(f"handoff-{tag}-{number}.{one.label}")
                try:
                    series[one.label].add(number, _batch(context, one, path, processors))
                except Failed as error:
                    series[one.label].fail(error)
    return series


def pause(context: Context, subject: type[Subject]) -> float:
    """Seconds that the waiter has been waiting when the lock becomes free; see above."""
    assert subject.poll is not None
    return 0.002 + context.random.uniform(0, max(0.003, subject.poll))


def turns(subject: type[Subject], budget: float, most: int) -> int:
    """Number of turns that fit into `budget` seconds, at least 1 and at most `most`."""
    assert subject.poll is not None
    return max(1, min(most, int(budget / (0.005 + 1.2 * subject.poll))))


def _batch(context: Context, subject: type[Subject], path: Path, processors: tuple[int, int] | None) -> list[int]:
    assert subject.poll is not None
    # A polling library needs longer for a number of turns that has quartiles.
    seconds = context.pick(0.5, 1.2 if subject.poll < 0.01 else 2.0)
    count = turns(subject, seconds, int(context.pick(80, 200)))
    warm_up = 0 if count < 10 else _WARM_UP
    plan = [pause(context, subject) for _ in range(count + warm_up)]
    if issubclass(subject, Limit):
        cpus, pauses_ns = processors or (-1, -1), [round(one * 1e9) for one in plan]
        return list(subject.measured(context.disk, path, "handoff", *cpus, warm_up, *pauses_ns))
    return alternate(subject, str(path), plan, warm_up, processors)
