"""Choosing the steps of a run, and many runs of a workload: all of them, or as many as there is time for.

A schedule is the list of keys that were chosen; in text, runs of one key are counted: `0x12 20001 1x3`. The schedule of
a run that fails is what to keep: with it, `replay` does the same again, a step a line.

`Search` goes through every interleaving, one after the other, none of them twice, depth first, and each run from its
beginning: a run cannot be copied, but it can be repeated, as nothing in it depends on anything but the choices. Two
ways to keep the number down:

- *Sleep sets* (Godefroid): when a step has been explored at some point, its siblings need not take it again until
  something is done that does not commute with it. Of all interleavings that differ only in the order of steps which
  commute, exactly one is run to its end; so nothing is missed. Runs that turn out to repeat one so are cut short.
- A *bound of preemptions*: an actor that could go on is interrupted only so many times. It misses errors that need
  more, and finds most errors early. Then there are no sleep sets: the two do not go together.

A campaign runs all workloads in several processes. Each has its share of the time: half of it for the search through
every interleaving, a fifth for the search with two preemptions at most, and the rest for random ones. If the first is
complete, the time is left to the others.
"""

from __future__ import annotations

import gc
import itertools
import math
import multiprocessing
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager

from sim.kernel import START, Footprint, commute
from sim.workloads import WORKLOADS, Workload
from sim.world import ALL, EXPIRE, IDLE, KERNEL, KIND, LOSE, STOP, First, Option, Violation, World


class Diverged(Exception):
    """A schedule asks for something that is impossible here: the code has changed since it was written down."""


class Replay:
    """Chooses as a schedule says, and then by the default."""

    def __init__(self, schedule: Sequence[int]) -> None:
        self._schedule = schedule
        self._at = 0
        self._then = First()

    def choose(self, world: World) -> int | None:
        if self._at == len(self._schedule):
            return self._then.choose(world)
        key = self._schedule[self._at]
        if all(key != option for option, _ in world.options()):
            raise Diverged(f"step {self._at}: {key} is none of {[option for option, _ in world.options()]}")
        self._at += 1
        return key


class Random:
    """Chooses by a seed. Actors go on for a while before another's turn comes; rarely, one is killed, or time jumps."""

    def __init__(self, seed: int) -> None:
        self.schedule: list[int] = []
        rng = random.Random(seed)
        self._random = rng.random
        self._stay = rng.choice((0.0, 0.5, 0.8, 0.95))
        self._rare = rng.choice((0.01, 0.03, 0.1))

    def choose(self, world: World) -> int | None:
        options = world.options()
        if not options:
            return None
        key = options[0][0] if len(options) == 1 else self._pick(world, [key for key, _ in options])
        self.schedule.append(key)
        return key

    def _pick(self, world: World, keys: list[int]) -> int:
        rnd = self._random
        rare = [key for key in keys if EXPIRE <= key < KERNEL or LOSE <= key < IDLE or key >= STOP]
        usual = [key for key in keys if key not in rare]
        if rare and rnd() < self._rare:
            return rare[int(rnd() * len(rare))]
        if world.last is not None and usual[0] == world.last.index and rnd() < self._stay:
            return usual[0]
        return usual[int(rnd() * len(usual))]


def written(schedule: Sequence[int]) -> str:
    """A schedule as text."""
    words: list[str] = []
    at = 0
    while at < len(schedule):
        end = at
        while end < len(schedule) and schedule[end] == schedule[at]:
            end += 1
        words.append(f"{schedule[at]}x{end - at}" if end - at > 1 else str(schedule[at]))
        at = end
    return " ".join(words)


def read(text: str) -> list[int]:
    """The schedule of a text from `written`."""
    schedule: list[int] = []
    for word in text.split():
        key, _, count = word.partition("x")
        schedule += [int(key)] * int(count or 1)
    return schedule


class Repetition(Exception):
    """The rest of this run would only repeat another one, in another order."""


class _Node:
    """One point of the current run: the options here, and the one being explored."""

    __slots__ = ("at", "cost", "interrupts", "options", "sleep")

    def __init__(self, options: list[Option], sleep: dict[int, Footprint], cost: int, *, interrupts: bool) -> None:
        self.options = options
        self.at = 0
        self.sleep = sleep
        self.cost = cost
        """Preemptions before this point."""
        self.interrupts = interrupts
        """Whether all but the first option interrupt somebody who could go on."""


class Search:
    """Chooses for one run after the other; `advance` says whether there is another one."""

    def __init__(self, *, preemptions: int | None = None, seed: int | None = None) -> None:
        self._bound = preemptions
        self._rng = None if seed is None else random.Random(seed)
        self._nodes: list[_Node] = []
        self._prefix: list[int] = []
        self._at = 0

    @property
    def schedule(self) -> list[int]:
        """The schedule of the current run, or of the last one."""
        return [node.options[node.at][0] for node in self._nodes[: self._at]]

    def choose(self, world: World) -> int | None:
        at = self._at
        self._at = at + 1
        if at < len(self._prefix):
            return self._prefix[at]
        options = world.options()
        if not options:
            self._at = at
            return None
        node = self._sleepless(options) if self._bound is None else self._bounded(world, options)
        self._nodes.append(node)
        return node.options[node.at][0]

    def _sleepless(self, options: list[Option]) -> _Node:
        """A new point, without options that would only repeat."""
        sleep: dict[int, Footprint] = {}
        if self._nodes:
            before = self._nodes[-1]
            key, touched = before.options[before.at]
            if touched is not ALL:
                same = key % KIND if key < KERNEL or key >= STOP else -1
                for other, footprint in (*before.sleep.items(), *before.options[: before.at]):
                    own = other % KIND == same and (
                        other < KERNEL or other >= STOP
                    )  # what one actor may do next does not commute
                    if footprint is not ALL and not own and commute(footprint, touched):
                        sleep[other] = footprint
        if sleep:
            options = [option for option in options if sleep.get(option[0]) != option[1]]
            if not options:
                self._at -= 1
                raise Repetition
        if self._rng is not None and len(options) > 1:
            self._rng.shuffle(options)
        return _Node(options, sleep, 0, interrupts=False)

    def _bounded(self, world: World, options: list[Option]) -> _Node:
        cost = 0
        if self._nodes:
            before = self._nodes[-1]
            switched = before.interrupts and before.at > 0 and before.options[before.at][0] < EXPIRE
            cost = before.cost + switched
        interrupts = world.last is not None and options[0][0] == world.last.index
        assert self._bound is not None
        if cost >= self._bound and interrupts:
            options = [option for option in options if option is options[0] or option[0] >= EXPIRE]
        return _Node(options, {}, cost, interrupts=interrupts)

    def advance(self) -> bool:
        """Go on to the next run; False when all have been."""
        nodes = self._nodes
        del nodes[self._at :]
        self._at = 0
        while nodes:
            node = nodes[-1]
            node.at += 1
            if node.at < len(node.options):
                self._prefix = [node.options[node.at][0] for node in nodes]
                return True
            nodes.pop()
        return False


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
            f"again: PYTHONPATH=tests python -m sim --replay {self.workload.name} '{written(schedule)}'"
        )


class Outcome:
    """The result of many runs. `runs` are the different interleavings that were run to their end; `repeated` those that
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
    """Run every interleaving, or those with that many preemptions, until the first failure, or the time is up.

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
    """Run a random interleaving for each seed, until the first failure, or the time is up. `known` as in `search`."""
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
    """A shorter schedule that fails as well: the default does the rest, and nothing unneeded is in it."""
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
    """The steps of the run of that schedule, and its end."""
    world = workload.world(trace=True)
    try:
        world.run(Replay(schedule))
        end = "no promise is broken"
    except (Violation, Diverged) as error:
        end = f"{type(error).__name__}: {error}"
    return f"{attempt_events(world)}\n{end}"


@contextmanager
def _uncollected() -> Iterator[None]:
    """Look for garbage rarely: each run leaves cycles, and looking for them as often as usual costs a third."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


_SEARCHED, _PREEMPTED = 0.5, 0.2
_SEEDS_EACH = 1_000_000_000


class Report:
    """The result of one workload; it goes from one process to the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.searched = self.preempted = self.random = self.repeated = 0
        self.complete = False
        self.steps = 0
        self.seconds = 0.0
        """Seconds of processor time."""
        self.failure: str | None = None

    @property
    def runs(self) -> int:
        """Different interleavings that were run to their end."""
        return self.searched + self.preempted + self.random

    def add(self, outcome: Outcome) -> int:
        self.steps += outcome.steps
        self.repeated += outcome.repeated
        if outcome.failure is not None:
            self.failure = str(outcome.failure)
        return outcome.runs

    def __str__(self) -> str:
        every = " (all there are)" if self.complete else ""
        verdict = "" if self.failure is None else "  FAILED"
        return (
            f"{self.name:20} {self.runs:9,} runs: {self.searched:,} searched{every}, {self.preempted:,} with two "
            f"preemptions, {self.random:,} random; {self.steps / max(1, self.runs):.0f} steps each{verdict}"
        )


def examine(name: str, seconds: float, seed: int) -> Report:
    """Examine one workload, for that many seconds; or less, if there are no more interleavings."""
    report, workload = Report(name), WORKLOADS[name]
    known: set[int] = set()
    began, spent = time.monotonic(), time.process_time()
    outcome = search(workload, seconds=seconds * _SEARCHED, seed=seed, known=known)
    report.searched, report.complete = report.add(outcome), outcome.complete
    if report.failure is None and not report.complete:
        bounded = search(workload, seconds=seconds * _PREEMPTED, preemptions=2, known=known)
        report.preempted = report.add(bounded)
    left = seconds - (time.monotonic() - began)
    if report.failure is None and not report.complete and left > 0:
        report.random = report.add(sample(workload, itertools.count(seed * _SEEDS_EACH), seconds=left, known=known))
    report.seconds = time.process_time() - spent
    return report


def campaign(names: list[str], *, seconds: float, jobs: int, seed: int, tell: Callable[[str], None]) -> list[Report]:
    """Examine all of them, each for its share of the time that is left; those that failed."""
    began = time.monotonic()
    waiting = list(reversed(names))
    reports: list[Report] = []
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        going: set[Future[Report]] = set()
        while waiting or going:
            while waiting and len(going) < jobs:
                left = seconds - (time.monotonic() - began)
                ref = max(1.0, left * jobs / len(waiting)) if len(waiting) >= jobs else max(1.0, left)
                going.add(pool.submit(examine, waiting.pop(), ref, seed))
            done, going = wait(going, return_when=FIRST_COMPLETED)
            for future in done:
                report = future.result()
                reports.append(report)
                tell(str(report))
                if report.failure is not None:
                    tell(report.failure)
    _sum_up(reports, time.monotonic() - began, tell)
    return [report for report in reports if report.failure is not None]


def _sum_up(reports: list[Report], took: float, tell: Callable[[str], None]) -> None:
    runs = sum(report.runs for report in reports)
    spent = sum(report.seconds for report in reports)
    failed = [report.name for report in reports if report.failure is not None]
    tell(
        f"{runs:,} interleavings of {len(reports)} workloads in {took:.0f} s, and {spent:.0f} s of processor time "
        f"({runs / max(1, spent):,.0f} for each of those); {sum(report.repeated for report in reports):,} more were "
        f"repetitions; failed: {', '.join(failed) or 'none'}"
    )


def attempt_events(world: World) -> str:
    """The whole run, a step on each line: time in milliseconds, who, what."""
    assert world.trace is not None
    width = max((len(who) for _, who, _ in world.trace), default=0)
    return "\n".join(f"{(now - START) * 1000:10.3f} ms  {who:{width}}  {text}" for now, who, text in world.trace)
