"""Times of an uncontended cycle, of a hand-off between two processes, and from the death of a holder to the next one.

uncontended  from before acquire to after release, one process, without contenders. The lock object is made before.
hand-off     from before the holder's release to after the waiter's acquire, two processes in turns. The waiter says
             that it comes, then the holder keeps the lock for 30 ms more, and for up to one interval of a polling
             library.
crash        from before SIGKILL of the holder to after the waiter's acquire; leases of 5 s (2 s in a quick run), at a
             random moment of the lease. All pairs of all subjects side by side: they only wait.
Not measured: the first cycles of a process, which import, connect and look names up.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from async_peers import AsyncHoldfast
from context import Context
from cycles import serve
from engines_peers import PEERS, REFERENCE, TOOZ, Peer, load
from engines_relay import Relay, round_trips
from engines_servers import Server
from peers import Holdfast
from procs import Child, Failed, kill, spawn
from series import Series, failures
from tables import Goal, Outcome, show, timing_table
from turns import alternate

_MS = 1_000_000
_WARM_UP = 5


@dataclass
class Bench:
    """A run on one server."""

    context: Context
    server: Server

    @property
    def engine(self) -> str:
        return self.server.engine

    @property
    def reference(self) -> str:
        return REFERENCE[self.engine]

    @property
    def peers(self) -> list[type[Peer]]:
        """The libraries that this run measures on this server."""
        return [one for one in self.context.subjects(list(PEERS)) if one.engine == self.engine]

    @property
    def waiting(self) -> list[type[Peer]]:
        """The libraries that can wait; of the bare clients only the one that holdfast is compared with."""
        bare = [one for one in PEERS if one.package in (None, "psycopg") and one.label != self.reference]
        return [one for one in self.peers if one.poll is not None and one not in bare]

    def window(self, quick: float, full: float) -> float:
        """Seconds to watch idle waiters or holds. On etcd, each lease is kept alive once in it: every third of 10 s."""
        return 10 / 3 if self.engine == "etcd" else self.context.pick(quick, full)

    def title(self, what: str) -> str:
        return f"{self.engine}: {what}"

    def goal(self, text: str, measured: float | None, limit: float, unit: str, error: str | None, **more: Any) -> Goal:
        why_not = self.context.holdfast_missing or error or ""
        return Goal(f"{self.engine}, {text}", measured, limit, unit, why_not=why_not, **more)


def timed(bench: Bench, what: str, series: dict[str, Series], notes: list[str] | None = None) -> Outcome:
    """The outcome of timings: a table in ms, its numbers, and the failures."""
    return Outcome(
        [timing_table(bench.title(what), series, bench.reference, _MS, notes)],
        [],
        {name: one.data() for name, one in series.items()},
        failures(series),
    )


# -- uncontended -------------------------------------------------------------------------------------------------------


def uncontended(bench: Bench) -> Outcome:
    """One child for each subject, which keeps its connections between the rounds; in each round a slice for each."""
    context = bench.context
    subjects: list[Any] = [*bench.peers, *context.subjects([AsyncHoldfast])]
    series = {one.label: Series() for one in subjects}
    children: dict[str, Child] = {}
    try:
        for number, one in enumerate(subjects):
            children[one.label] = spawn(serve, one, bench.server.url(f"uncontended-{number}"), _WARM_UP)
        for number in range(int(context.pick(3, 8))):
            for one in context.random.sample(subjects, len(subjects)):
                if series[one.label].error is None:
                    try:
                        samples = children[one.label].ask(int(context.pick(0.12e9, 0.25e9)), timeout=30)
                        series[one.label].add(number, samples)
                    except Failed as error:
                        series[one.label].fail(error)
    finally:
        for child in children.values():
            child.end()
    counts = _round_trips(bench)
    notes = [f"round trips: {', '.join(f'{name} {show(count)}' for name, count in counts.items())}"]
    outcome = timed(bench, "uncontended, acquire and release", series, notes)
    outcome.data["round_trips"] = counts
    ours, bare = series.get(Holdfast.label, Series()), series[bench.reference]
    task = series.get(AsyncHoldfast.label, Series())
    outcome.goals = [
        bench.goal("uncontended: holdfast ÷ bare client", ours.ratio_to(bare), 1.5, "x", ours.error),
        bench.goal("uncontended: AsyncLock ÷ bare client", task.ratio_to(bare), 1.5, "x", task.error),
    ]
    return outcome


def _round_trips(bench: Bench) -> dict[str, float]:
    relay, counts = Relay(bench.server.port), {}
    try:
        for number, one in enumerate(bench.peers):
            try:
                counts[one.label] = round_trips(one, bench.server.url(f"counted-{number}", port=relay.port), relay)
            except Failed:
                pass  # the table says why
    finally:
        relay.end()
    return counts


# -- hand-off ----------------------------------------------------------------------------------------------------------


def handoff(bench: Bench) -> Outcome:
    """Rounds of turns, each by two new processes."""
    context, subjects = bench.context, bench.waiting
    series = {one.label: Series() for one in subjects}
    for number in range(int(context.pick(2, 4))):
        for one in context.random.sample(subjects, len(subjects)):
            if series[one.label].error is None and not (context.quick and one.poll and number):
                try:
                    series[one.label].add(number, _turns(bench, one, f"handoff-{number}-{subjects.index(one)}"))
                except Failed as error:
                    series[one.label].fail(error)
    outcome = timed(bench, "hand-off, two processes in turns", series)
    ours = series.get(Holdfast.label, Series())
    tooz = series[TOOZ[bench.engine]]
    times = tooz.ratio_to(ours)
    outcome.goals = [
        bench.goal("hand-off: holdfast ÷ bare client", ours.ratio_to(series[bench.reference]), 1.5, "x", ours.error),
        bench.goal("hand-off: tooz ÷ holdfast", times, 50, "x", ours.error or tooz.error, least=True),
    ]
    return outcome


def _turns(bench: Bench, subject: type[Peer], name: str) -> list[int]:
    context = bench.context
    assert subject.poll is not None
    pause = 0.03 + subject.poll
    count = max(2, min(int(context.pick(10, 26)), int(context.pick(1.1, 2.2) / pause)))
    warm_up = 2 if count > 4 else 0
    plan = [0.03 + context.random.uniform(0, max(0.005, subject.poll)) for _ in range(count + warm_up)]
    return alternate(subject, bench.server.url(name), plan, warm_up, limit=60)


# -- crash -------------------------------------------------------------------------------------------------------------


def crash(bench: Bench) -> Outcome:
    """Rounds; in each, a few pairs of a holder and a waiter for each subject."""
    context, subjects = bench.context, bench.waiting
    ttl, pairs = int(context.pick(2, 5)), int(context.pick(2, 4))
    series = {one.label: Series() for one in subjects}
    for number in range(int(context.pick(1, 2))):
        plan = [(one, pair) for one in subjects for pair in range(pairs) if series[one.label].error is None]
        context.random.shuffle(plan)
        found = _deaths(bench, number, plan, ttl)
        for one in subjects:
            samples = [found[one, pair] for pair in range(pairs) if (one, pair) in found]
            failed = [sample for sample in samples if isinstance(sample, Failed)]
            if failed:
                series[one.label].fail(failed[0])
            elif samples:
                series[one.label].add(number, [sample for sample in samples if isinstance(sample, int)])
    notes = [f"leases of {ttl} s, kept every third of that, which is what decides"] if bench.engine == "etcd" else None
    outcome = timed(bench, "SIGKILL of the holder to acquired", series, notes)
    outcome.data["ttl_s"] = ttl
    ours = series.get(Holdfast.label, Series())
    median = ours.median()
    limit = {"postgresql": 50.0, "etcd": ttl * 1000.0 + 500}[bench.engine]
    measured = median / _MS if median is not None else None
    outcome.goals = [bench.goal("SIGKILL of the holder to acquired", measured, limit, "ms", ours.error)]
    return outcome


def _deaths(
    bench: Bench, number: int, plan: list[tuple[type[Peer], int]], ttl: int
) -> dict[tuple[type[Peer], int], int | Failed]:
    found: dict[tuple[type[Peer], int], int | Failed] = {}
    holders: dict[tuple[type[Peer], int], Child] = {}
    waiters: dict[tuple[type[Peer], int], Child] = {}
    try:
        for one, pair in plan:
            name = f"crash-{number}-{bench.peers.index(one)}-{pair}"
            holders[one, pair] = spawn(_hold, one, bench.server.url(name, ttl=ttl), ttl)
            # The bare client keeps no lease alive while it waits, so waiters have longer ones.
            waiters[one, pair] = spawn(_wait, one, bench.server.url(name))
        for key, child in holders.items():
            try:
                child.answer(30)
                waiters[key].ask(None, 30)  # it begins to wait
            except Failed as error:
                found[key] = error
        time.sleep(bench.context.pick(1.0, 2.0))
        killed = {}
        for key in plan:
            if key not in found:
                time.sleep(
                    bench.context.random.uniform(0, 0.05 if bench.engine == "postgresql" else ttl / 3 / len(plan))
                )
                killed[key] = time.monotonic_ns()
                kill(holders[key].pid)
        for key, moment in killed.items():
            try:
                found[key] = waiters[key].answer(3 * ttl + 20) - moment
            except Failed as error:
                found[key] = error
    finally:
        for child in (*holders.values(), *waiters.values()):
            child.end()
    return found


def _hold(pipe: Connection, subject: type[Peer], url: str, ttl: int) -> None:
    lock = subject(url)
    lock.acquire()
    pipe.send(os.getpid())
    while True:
        time.sleep(ttl / 3)
        lock.beat()


def _wait(pipe: Connection, subject: type[Peer], url: str) -> None:
    load(subject)
    pipe.recv()
    lock = subject(url)
    pipe.send(None)
    lock.acquire()
    pipe.send(time.monotonic_ns())
