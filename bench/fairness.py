"""Fairness: 16 processes on one lock, without a pause: acquire, a few instructions inside, release, again at once.

Measured: the number of acquisitions, how evenly they were spread over the processes, and every wait, from before
acquire to after it. Inside, each process checks that it is alone. A wait that is cut off by the end of a round counts
with its duration so far, so a process that got nothing shows as a wait of a whole round.
Not measured: processes that hold the lock for long, or that pause between two acquisitions; both make it fairer.

Jain's index of the counts is the square of their sum, divided by 16 times the sum of their squares: 1 when all got the
same, 1/16 when one got everything.

Throughput alone rewards unfair locks: one that lets its last holder in again costs no change of process, least of all
if there is nothing to do inside. A second table has three of the subjects with a file made and removed inside.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from array import array
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from context import Context
from limits import LIMITS, Limit
from peers import FileLock, Holdfast, Subject, waiting
from procs import Failed, NotAvailable, Slots, spawn
from references import BlockingFlock
from tables import Goal, Outcome, Table, show

PROCESSES = 16
_INSIDE, _COUNT, _START, _READY = 0, 1, 2, 3
_WARM_UP_NS = 300_000_000
# A blocking flock makes millions; so many are enough for a 99th percentile.
_SAMPLES = 50_000


@dataclass
class Contention:
    """The results of one subject, by round. Times in ns."""

    seconds: float = 1.0
    work: bool = False
    """Whether each holder makes a file and removes it."""
    counts: dict[int, list[int]] = field(default_factory=dict)
    waits: dict[int, int] = field(default_factory=dict)
    waited: dict[int, int] = field(default_factory=dict)
    longest: dict[int, int] = field(default_factory=dict)
    switches: int = 0
    sample: list[int] = field(default_factory=list)
    error: Failed | None = None

    @property
    def rates(self) -> dict[int, float]:
        """Acquisitions a second, by round."""
        return {number: sum(counts) / self.seconds for number, counts in self.counts.items()}

    @property
    def rate(self) -> float:
        return statistics.median(self.rates.values())

    @property
    def jains(self) -> dict[int, float]:
        """Jain's index, by round: over several rounds the luck of the processes would even out."""
        return {number: _jain(counts) for number, counts in self.counts.items()}

    @property
    def jain(self) -> float:
        """The index of the least fair round."""
        return min(self.jains.values())

    @property
    def mean(self) -> float:
        return sum(self.waited.values()) / sum(self.waits.values())

    @property
    def worst(self) -> int:
        return max(self.longest.values())

    @property
    def worst_by_mean(self) -> float:
        """The longest wait of a round in mean waits of that round, the median over the rounds."""
        return statistics.median(
            longest * self.waits[number] / self.waited[number] for number, longest in self.longest.items()
        )

    @property
    def p99(self) -> float:
        return sorted(self.sample)[int(len(self.sample) * 0.99)]

    @property
    def switches_each(self) -> float:
        """Voluntary context switches for each acquisition: how often a process went to sleep."""
        return self.switches / max(1, sum(map(sum, self.counts.values())))

    def add(
        self, number: int, counts: list[int], waits: int, waited: int, longest: int, switches: int, sample: list[int]
    ) -> None:
        """File the results of round `number`."""
        self.counts[number] = counts
        self.waits[number], self.waited[number], self.longest[number] = waits, waited, longest
        self.switches += switches
        self.sample += sample

    def data(self) -> dict[str, Any]:
        """The numbers for --json."""
        error = None if self.error is None else str(self.error)
        if not self.counts:
            return {"error": error}
        return {
            "counts": self.counts,
            "rates": self.rates,
            "jains": self.jains,
            "longest_ns": self.longest,
            "mean_ns": self.mean,
            "means_ns": {number: waited / self.waits[number] for number, waited in self.waited.items()},
            "p99_ns": self.p99,
            "switches_per_acquisition": self.switches_each,
            "error": error,
        }


def _jain(counts: list[int]) -> float:
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 0.0


def run(context: Context) -> Outcome:
    """Rounds; in each round every subject has the machine for itself once, in an order drawn anew."""
    rounds, seconds = int(context.pick(2, 5)), context.pick(1.0, 1.5)
    subjects = context.subjects(waiting(*LIMITS, BlockingFlock))
    candidates: list[type[Subject]] = [BlockingFlock, Holdfast, FileLock]
    busy = context.subjects(candidates)
    results = {one.label: Contention(seconds) for one in subjects}
    at_work = {one.label: Contention(seconds, work=True) for one in busy}
    for number in range(rounds):
        turns = [(results[one.label], one) for one in subjects] + [(at_work[one.label], one) for one in busy]
        for result, one in context.random.sample(turns, len(turns)):
            if result.error is None:
                try:
                    _batch(context, result, number, one)
                except Failed as error:
                    result.error = error
    title = f"Fairness: {PROCESSES} processes without a pause, {rounds} rounds of {seconds:g} s, tmpfs"
    return Outcome(
        [_table(title, results), _table(f"{title}; each makes and removes a file while it holds", at_work)],
        _goals(context, results, at_work),
        {name: result.data() for name, result in results.items()}
        | {"at work": {name: result.data() for name, result in at_work.items()}},
        [
            f"{name}: {result.error}"
            for name, result in (*results.items(), *at_work.items())
            if result.error and not isinstance(result.error, NotAvailable)
        ],
    )


def _table(title: str, results: dict[str, Contention]) -> Table:
    table = Table(
        title,
        ["", "acquired a second", "Jain", "mean wait ms", "p99 ms", "longest ms", "longest ÷ mean", "sleeps each"],
    )
    for name, result in results.items():
        table.rows.append([name, *_cells(result)])
        if result.error:
            table.notes.append(f"{name}: {result.error}")
    return table


def _cells(one: Contention) -> list[str]:
    if not one.counts:
        return ["-"] * 7
    times = [show(value / 1e6) for value in (one.mean, one.p99, one.worst)]
    return [f"{one.rate:.0f}", f"{one.jain:.3f}", *times, show(one.worst_by_mean), show(one.switches_each)]


def _goals(context: Context, results: dict[str, Contention], at_work: dict[str, Contention]) -> list[Goal]:
    ours = results.get(Holdfast.label, Contention())
    why_not = context.holdfast_missing or str(ours.error or "")
    known = bool(ours.counts)
    return [
        Goal(
            "fairness: Jain's index, lowest round", ours.jain if known else None, 0.99, "", why_not=why_not, least=True
        ),
        Goal("fairness: longest wait ÷ mean wait", ours.worst_by_mean if known else None, 10, "x", why_not=why_not),
        _faster("fairness", context, results),
        _faster("fairness, a file made and removed inside", context, at_work),
    ]


def _faster(which: str, context: Context, results: dict[str, Contention]) -> Goal:
    ours, other = results.get(Holdfast.label, Contention()), results[FileLock.label]
    common = ours.counts.keys() & other.counts.keys()
    faster = [ours.rates[number] / max(1.0, other.rates[number]) for number in common]
    return Goal(
        f"{which}: acquisitions, holdfast ÷ FileLock",
        statistics.median(faster) if faster else None,
        1.5,
        "x",
        why_not=context.holdfast_missing or str(ours.error or other.error or ""),
        least=True,
    )


def _batch(context: Context, result: Contention, number: int, subject: type[Subject]) -> None:
    path = str(context.lock_path(f"fairness-{number}{'-work' * result.work}.{subject.label}"))
    if issubclass(subject, Limit):
        spans = (round(result.seconds * 1e9), _WARM_UP_NS)
        found = subject.measured(context.disk, path, "fairness", PROCESSES, *spans)
        each, sample = found[: 5 * PROCESSES], found[5 * PROCESSES :]
        counts, waits, waited, longest, switches = (each[one::5] for one in range(5))
        result.add(number, list(counts), sum(waits), sum(waited), max(longest), sum(switches), list(sample))
        return
    group = spawn(_group, subject, path, result.seconds, f"{path}.inside" if result.work else "")
    try:
        result.add(number, *group.answer(result.seconds + 60))
    finally:
        group.end()


def _group(pipe: Connection, subject: type[Subject], path: str, seconds: float, file: str) -> None:
    """The child: load the library, fork the processes, and add up their results."""
    subject(path)
    slots = Slots(_READY + PROCESSES)
    children = [spawn(_contend, subject, path, number, slots, seconds, file) for number in range(PROCESSES)]
    for number in range(PROCESSES):
        slots.wait(_READY + number, 1)
    slots[_START] = time.monotonic_ns() + 50_000_000
    counts, waits, waited, longest, switches = zip(*(child.answer(seconds + 30) for child in children), strict=True)
    if slots[_COUNT] != PROCESSES + sum(counts):
        raise Failed(f"{sum(counts)} acquisitions, but the counter inside went up by {slots[_COUNT] - PROCESSES}")
    # The same share of each process's waits, or the percentile would not be one of all waits.
    stride = 1 + sum(waits) // _SAMPLES
    sample = [wait for child in children for wait in child.ask(stride, timeout=30)]
    pipe.send((list(counts), sum(waits), sum(waited), max(longest), sum(switches), sample))


def _contend(
    pipe: Connection, subject: type[Subject], path: str, number: int, slots: Slots, seconds: float, file: str
) -> None:
    """The grandchild: acquire and release until the time is up; send the counts, then a sample of the waits."""
    lock, me = subject(path), os.getpid()
    # Once before the start, uncounted: it does the library's set-up for an acquisition.
    lock.acquire()
    _inside(slots, me, file)
    lock.release()
    slots[_READY + number] = 1
    slots.wait(_START, 1)
    stop = slots[_START] + int(seconds * 1e9)
    time.sleep(max(0.0, (slots[_START] - time.monotonic_ns()) / 1e9))
    clock, acquire, release, waits, count = time.monotonic_ns, lock.acquire, lock.release, array("q"), 0
    # Uncounted: the first waits do a library's imports and set-up for waiting, 16 times at once on few processors.
    while clock() < slots[_START] + _WARM_UP_NS:
        acquire()
        _inside(slots, me, file)
        slots[_COUNT] -= 1
        release()
    stop += _WARM_UP_NS
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    while True:
        begin = clock()
        if begin >= stop:
            break
        acquire()
        end = clock()
        waits.append(min(end, stop) - begin)
        if end >= stop:
            release()
            break
        _inside(slots, me, file)
        count += 1
        release()
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before
    pipe.send((count, len(waits), sum(waits), max(waits, default=0), switches))
    stride = pipe.recv()
    # Not from the first on: the last wait, cut off or not, is the only one that a starved process has.
    pipe.send(list(reversed(waits[::-stride])))


def _inside(slots: Slots, me: int, file: str) -> None:
    """The critical section: one process at a time, or the measurement is worth nothing."""
    if slots[_INSIDE] != 0:
        raise Failed("two processes held the lock at once")
    slots[_INSIDE] = me
    slots[_COUNT] += 1
    if file:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(file)
    if slots[_INSIDE] != me:
        raise Failed("two processes held the lock at once")
    slots[_INSIDE] = 0
