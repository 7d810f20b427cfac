"""Many runs of a workload: all of them, or as many as there is time for; and what to do with one that fails.

In a run that fails, the schedule is what to keep: with it, `replay` does the same again, a step a line.
"""

from __future__ import annotations

import gc
import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .choosers import Diverged, Random, Replay, written
from .search import Repetition, Search
from .trace import story
from .world import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .workloads import Workload


class Failure:
    """A run in which a promise was broken."""

    def __init__(self, workload: Workload, schedule: list[int], message: str) -> None:
        self.workload = workload
        self.schedule = schedule
        self.message = message

    def __str__(self) -> str:
        schedule = shrunk(self.workload, self.schedule)
        return (
            f"{self.workload.name}: {self.message}\n{replay(self.workload, schedule)}\n"
            f"again: python -m holdfast.testing.sim --replay {self.workload.name} '{written(schedule)}'"
        )


class Outcome:
    """What came of many runs. `runs` are the different interleavings that were run to their end; `repeated` those that
    were cut short, or thrown away, because they would repeat one; `complete`: there are no more."""

    def __init__(self) -> None:
        self.runs = 0
        self.repeated = 0
        self.steps = 0
        self.complete = False
        self.failure: Failure | None = None

    def add(self, steps: int, schedule: list[int], known: set[int] | None) -> None:
        """Count a run that came to its end, if it was not known."""
        if known is not None:
            before = len(known)
            known.add(hash(tuple(schedule)))
            if len(known) == before:
                self.repeated += 1
                return
        self.runs += 1
        self.steps += steps


def search(
    workload: Workload,
    *,
    seconds: float = math.inf,
    runs: float = math.inf,
    preemptions: int | None = None,
    seed: int | None = None,
    known: set[int] | None = None,
) -> Outcome:
    """Every interleaving; or those with so many preemptions; until the first failure, or the time is up.

    `known` are the interleavings that have been run before, which do not count, and takes in those that are run.
    """
    chooser = Search(preemptions=preemptions, seed=seed)
    outcome = Outcome()
    until = time.monotonic() + seconds
    with _uncollected():
        while outcome.runs < runs and time.monotonic() < until:
            world = workload.world()
            try:
                world.run(chooser)
                outcome.add(world.steps, chooser.schedule, known)
            except Repetition:
                outcome.repeated += 1
            except Violation as violation:
                outcome.runs += 1
                outcome.failure = Failure(workload, chooser.schedule, str(violation))
                return outcome
            if not chooser.advance():
                outcome.complete = True
                return outcome
    return outcome


def sample(
    workload: Workload, seeds: Iterable[int], *, seconds: float = math.inf, known: set[int] | None = None
) -> Outcome:
    """One random interleaving for each seed, until the first failure, or the time is up. `known` as in `search`."""
    outcome = Outcome()
    known = set() if known is None else known
    until = time.monotonic() + seconds
    with _uncollected():
        for seed in seeds:
            if time.monotonic() >= until:
                break
            world = workload.world()
            chooser = Random(seed)
            try:
                world.run(chooser)
            except Violation as violation:
                outcome.runs += 1
                outcome.failure = Failure(workload, chooser.schedule, f"{violation} (seed {seed})")
                return outcome
            outcome.add(world.steps, chooser.schedule, known)
    return outcome


def fails(workload: Workload, schedule: list[int]) -> bool:
    """Whether a promise is broken in the run of that schedule."""
    try:
        workload.world().run(Replay(schedule))
    except Violation:
        return True
    except Diverged:
        return False
    return False


def shrunk(workload: Workload, schedule: list[int]) -> list[int]:
    """A shorter schedule that fails as well, as the default does the rest: without what it can do without."""
    schedule = list(schedule)
    low, high = 0, len(schedule)
    while low < high:  # the shortest beginning that fails, if the default is not to blame
        middle = (low + high) // 2
        if fails(workload, schedule[:middle]):
            high = middle
        else:
            low = middle + 1
    if fails(workload, schedule[:high]):
        schedule = schedule[:high]
    size = len(schedule) // 2
    while size:
        at = 0
        while at + size <= len(schedule):
            shorter = schedule[:at] + schedule[at + size :]
            if fails(workload, shorter):
                schedule = shorter
            else:
                at += size
        size //= 2
    return schedule


def replay(workload: Workload, schedule: list[int]) -> str:
    """What happens in the run of that schedule, and how it ends."""
    world = workload.world(trace=True)
    try:
        world.run(Replay(schedule))
        end = "no promise is broken"
    except (Violation, Diverged) as error:
        end = f"{type(error).__name__}: {error}"
    return f"{story(world)}\n{end}"


@contextmanager
def _uncollected() -> Iterator[None]:
    """Look for garbage rarely: each run leaves cycles, and looking for them as often as usual costs a third."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
