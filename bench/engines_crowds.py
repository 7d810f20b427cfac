"""Many contenders for one lock: their order, the cost of waiting, and the time until all have had it.

order    20 waiting processes that have arrived one after the other, 60 ms apart; then the lock is released. Inversions
         are pairs of waiters that got it in another order than they came in; 0 is first come, first served, 95 chance.
waiters  100 threads, or 100 asyncio tasks, of one process wait for a lock that another process keeps. After they have
         settled: processor time of their process and of the server, messages that they send (each has an answer, so:
         round trips), connections, memory. Through a relay, which counts; it is neither the server nor the client.
drain    the same crowd without the relay: from before the release to after the last acquisition. Each releases at once.
Not measured: arriving and ending.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import threading
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

from async_peers import AsyncHoldfast
from engines_peers import REFERENCE, TOOZ, Peer, load
from engines_relay import Relay
from engines_times import Bench
from peers import Holdfast
from procs import Child, Failed, Slots, allow_open_files, spawn
from tables import Outcome, Table, show

ORDERED = 20
_LEASE = 60
"""Seconds. The bare client keeps no lease alive while it waits, so all have long ones but holdfast, which has its
default."""
_STAGGER_S = 0.06
_LIMIT_S = 12.0
_RELEASED, _PLACES = 0, 1


# -- order -------------------------------------------------------------------------------------------------------------


def order(bench: Bench) -> Outcome:
    """Rounds; in each, one subject after the other, in an order drawn anew."""
    # A polling subject takes as long as a whole quick run.
    subjects = [one for one in bench.waiting if not (one.poll and bench.context.quick)]
    table = Table(bench.title(f"order of {ORDERED} waiters"), ["", "rounds", "inversions, most", "of", "came"])
    found: dict[str, list[list[int]]] = {one.label: [] for one in subjects}
    errors: dict[str, str] = {}
    for number in range(int(bench.context.pick(1, 2))):
        for one in bench.context.random.sample(subjects, len(subjects)):
            if one.label not in errors and not (one.poll and number):  # polling takes long, and has no order
                group = spawn(_queue, one, bench.server.url(f"order-{number}-{bench.peers.index(one)}", ttl=_LEASE))
                try:
                    found[one.label].append(group.answer(_LIMIT_S + 60))
                except Failed as error:
                    errors[one.label] = str(error)
                finally:
                    group.end()
    for name, rounds in found.items():
        most = max(map(_inversions, rounds), default=None)
        pairs = ORDERED * (ORDERED - 1) // 2
        came = " ".join(str(len(places)) for places in rounds)
        table.rows.append([name, str(len(rounds)), "-" if most is None else str(most), str(pairs), came])
    table.notes = [f"{name}: {error}" for name, error in errors.items()]
    ours = [_inversions(places) for places in found.get(Holdfast.label, [])]
    worst = max(ours) if ours else None
    goal = bench.goal(f"inversions among {ORDERED} waiters", worst, 0, "", errors.get(Holdfast.label))
    failures = [f"{name}: {error}" for name, error in errors.items()]
    return Outcome([table], [goal], {"came": found, "errors": errors}, failures)


def _inversions(places: list[int]) -> int:
    return sum(later < one for number, one in enumerate(places) for later in places[number + 1 :])


def _queue(pipe: Connection, subject: type[Peer], url: str) -> None:
    """The child: hold the lock, fork the waiters one after the other, release, and report their order."""
    load(subject)
    slots = Slots(2 + 2 * ORDERED)
    holder = spawn(_hold, subject, url)
    holder.answer(30)
    for number in range(ORDERED):
        spawn(_come, subject, url, number, slots)
        slots.wait(2 + number, 1)
        time.sleep(_STAGGER_S)
    holder.ask(None, 30)
    stop = time.monotonic() + _LIMIT_S
    came = slice(2 + ORDERED, 2 + 2 * ORDERED)
    while time.monotonic() < stop and not all(slots[index] for index in range(came.start, came.stop)):
        time.sleep(0.01)
    moments = {number: slots[came.start + number] for number in range(ORDERED)}
    pipe.send(sorted((number for number in moments if moments[number]), key=moments.__getitem__))


def _come(_pipe: Connection, subject: type[Peer], url: str, number: int, slots: Slots) -> None:
    lock = subject(url)
    slots[2 + number] = 1
    lock.acquire()
    slots[2 + ORDERED + number] = time.monotonic_ns()
    lock.release()


# -- waiters and drain -------------------------------------------------------------------------------------------------


@dataclass
class Cost:
    """The cost of one waiter; times and messages in 10 s."""

    client_cpu_ms: float
    server_cpu_ms: float
    messages: float
    connections: float
    client_kib: float
    server_kib: float


_SHOWN = {*REFERENCE.values(), *TOOZ.values(), Holdfast.label}
_COLUMNS = ["CPU ms", "server CPU ms", "round trips", "connections", "RSS KiB", "server KiB"]


def waiters(bench: Bench) -> Outcome:
    """Rounds of crowds, in an order drawn anew; then the same crowds without a relay."""
    context = bench.context
    many, seconds, rounds = int(context.pick(30, 100)), bench.window(1, 4), int(context.pick(1, 2))
    kinds: list[Any] = [one for one in bench.waiting if one.label in _SHOWN and not (one.poll and context.quick)]
    kinds += context.subjects([AsyncHoldfast])
    costs: dict[str, list[Cost]] = {_kind(one): [] for one in kinds}
    drained: dict[str, list[float]] = {_kind(one): [] for one in kinds}
    errors: dict[str, str] = {}
    for number in range(rounds):
        for one in context.random.sample(kinds, len(kinds)):
            name = f"{number}-{kinds.index(one)}"
            if number and getattr(one, "poll", 0):
                continue
            try:
                if _kind(one) not in errors:
                    costs[_kind(one)].append(_idle(bench, one, f"waiters-{name}", many, seconds))
                    drained[_kind(one)].append(_drain(bench, one, f"drain-{name}", many))
            except Failed as error:
                errors[_kind(one)] = str(error)
    heading = f"{many} waiters for one lock; of each, in 10 s, while nothing happens; s until all have had it"
    table = Table(bench.title(heading), ["", *_COLUMNS, "all through, s"])
    for name, found in costs.items():
        if found:
            middle = [
                statistics.median(values) for values in zip(*(asdict(one).values() for one in found), strict=True)
            ]
            through = statistics.median(drained[name]) if drained[name] else None
            last = "-" if through is None else f"> {_LIMIT_S:.0f}" if through >= _LIMIT_S else show(through)
            table.rows.append([name, *map(show, middle), last])
    table.notes = [f"{name}: {error}" for name, error in errors.items()]
    return Outcome(
        [table],
        [],
        {
            "waiters": many,
            "seconds": seconds,
            "each": {name: [asdict(one) for one in found] for name, found in costs.items()},
            "drained_s": drained,
            "errors": errors,
        },
        [f"{name}: {error}" for name, error in errors.items()],
    )


def _kind(one: type[Peer] | type[AsyncHoldfast]) -> str:
    return f"{one.label}, {'tasks' if one is AsyncHoldfast else 'threads'}"


def _idle(bench: Bench, one: Any, name: str, many: int, seconds: float) -> Cost:
    server = bench.server
    relay = Relay(server.port)
    children: list[Child] = []
    try:
        children.append(spawn(_hold, one, server.url(name, ttl=_lease(one))))
        children[0].answer(30)
        time.sleep(0.3)
        weighed = server.memory()
        urls = [server.url(f"{name}{which}", ttl=_lease(one), port=relay.port) for which in ("", "-alone")]
        crowd = spawn(_crowd, one, *urls, many, Slots(2))
        children.append(crowd)
        alone = crowd.answer(30)
        crowd.ask(None, 60)
        _settle(relay, many)
        before = crowd.ask("cost", 30), server.cpu(), relay.messages
        time.sleep(seconds)
        cpu_ns, resident = crowd.ask("cost", 30)
        share = 10 / seconds / many
        return Cost(
            (cpu_ns - before[0][0]) / 1e6 * share,
            (server.cpu() - before[1]) * 1000 * share,
            (relay.messages - before[2]) * share,
            relay.connections / many,
            (resident - alone) / 1024 / many,
            (server.memory() - weighed) / 1024 / many,
        )
    finally:
        for child in children:
            child.end()
        relay.end()


def _settle(relay: Relay, many: int) -> None:
    """Wait until all have sent their first messages; for a while, if they never fall silent."""
    stop = time.monotonic() + 5
    while time.monotonic() < stop:
        before = relay.messages
        time.sleep(0.5)
        if relay.messages - before <= 0.2 * many:  # keep-alives: 0.15
            return


def _drain(bench: Bench, one: Any, name: str, many: int) -> float:
    url, alone = [bench.server.url(f"{name}{which}", ttl=_lease(one)) for which in ("", "-alone")]
    slots = Slots(2)
    holder = spawn(_hold, one, url)
    children = [holder]
    try:
        holder.answer(30)
        crowd = spawn(_crowd, one, url, alone, many, slots)
        children.append(crowd)
        crowd.answer(30)
        crowd.ask(None, 60)
        time.sleep(bench.context.pick(0.7, 1.5))
        released = holder.ask(None, 30)
        stop = time.monotonic() + _LIMIT_S
        while slots[_RELEASED] < many and time.monotonic() < stop:
            time.sleep(0.002)
        return (slots[_PLACES] - released) / 1e9 if slots[_RELEASED] >= many else _LIMIT_S
    finally:
        for child in children:
            child.end()


def _lease(one: Any) -> int | None:
    return None if one.package == Holdfast.package else _LEASE


def _hold(pipe: Connection, one: Any, url: str) -> None:
    lock = (Holdfast if one is AsyncHoldfast else one)(url)
    lock.acquire()
    pipe.send(None)
    pipe.recv()
    moment = time.monotonic_ns()
    lock.release()
    pipe.send(moment)
    time.sleep(600)


def _crowd(pipe: Connection, one: Any, url: str, alone: str, many: int, slots: Slots) -> None:
    """The child: report its memory, let the waiters come when told, and report their cost when asked. Slots: how many
    have had the lock, and when the last one did.

    Before that, it takes a lock once, so that the memory that a process needs once counts for no waiter.
    """
    allow_open_files()
    first = (Holdfast if one is AsyncHoldfast else one)(alone)
    first.acquire()
    first.release()
    mutex = threading.Lock()
    arrived = threading.Semaphore(0)

    def came() -> None:
        with mutex:
            slots[_PLACES] = max(slots[_PLACES], time.monotonic_ns())
            slots[_RELEASED] += 1

    def thread() -> None:
        lock = one(url)
        arrived.release()
        lock.acquire()
        came()
        lock.release()

    async def task(lock: Any) -> None:
        arrived.release()
        async with lock:
            came()

    async def tasks() -> None:
        await asyncio.gather(*(task(one(url).lock) for _ in range(many)))

    pipe.send(_resident())
    pipe.recv()
    if one is AsyncHoldfast:
        threading.Thread(target=asyncio.run, args=(tasks(),), daemon=True).start()
    else:
        for _ in range(many):
            threading.Thread(target=thread, daemon=True).start()
    for _ in range(many):
        arrived.acquire()
    pipe.send(None)
    while True:
        pipe.recv()
        pipe.send((time.process_time_ns(), _resident()))


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
