"""Load: locks a second of several clients, and a thousand locks of one process.

throughput  1, 4 and 16 processes, each acquires and releases a lock of its own name without a pause. Clients and server
            share this machine's processors, so the server's own processor time for a cycle is shown as well: its
            inverse is the rate with all of a processor.
many        one process takes 1 000 locks and keeps them: time of each, memory of each here and at the server, cost of
            keeping all of them for 10 s, connections, time of one more cycle meanwhile, time to release each.
"""

from __future__ import annotations

import resource
import statistics
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

from engines_peers import KeptLease, Peer, Psycopg, load
from engines_times import Bench
from peers import Holdfast
from procs import Failed, Slots, allow_open_files, spawn
from tables import Outcome, Table, show

CLIENTS = (1, 4, 16)
_READY, _GO, _STOP = range(3)


@dataclass
class Rate:
    """Cycles a second of all clients, and the processor time and the log of one cycle."""

    rate: float
    server_cpu_ms: float
    client_cpu_ms: float
    written_kib: float


def throughput(bench: Bench) -> Outcome:
    """Rounds; in each, every subject with every number of clients, in an order drawn anew."""
    context = bench.context
    # Libraries that leave their leases to the server would measure its rubbish.
    subjects = [one for one in bench.peers if one.package not in ("tooz", "etcd3gw")]
    found: dict[tuple[str, int], list[Rate]] = {(one.label, many): [] for one in subjects for many in CLIENTS}
    errors: dict[str, str] = {}
    for number in range(int(context.pick(1, 2))):
        plan = [(one, many) for one in subjects for many in CLIENTS]
        for one, many in context.random.sample(plan, len(plan)):
            if one.label not in errors:
                try:
                    name = f"throughput-{number}-{subjects.index(one)}"
                    found[one.label, many].append(_together(bench, one, name, many, context.pick(0.4, 1.0)))
                except Failed as error:
                    errors[one.label] = str(error)
    table = Table(
        bench.title("locks a second, each client with a name of its own"),
        ["", *(f"{many} clients" for many in CLIENTS), "server CPU ms a lock", "client CPU ms", "written KiB"],
        notes=[f"{name}: {error}" for name, error in errors.items()],
    )
    data: dict[str, Any] = {"errors": errors}
    for one in subjects:
        each = {many: _median(found[one.label, many]) for many in CLIENTS if found[one.label, many]}
        if len(each) == len(CLIENTS):
            last = each[CLIENTS[-1]]
            rates = [show(each[many].rate) for many in CLIENTS]
            table.rows.append([one.label, *rates, show(last.server_cpu_ms), show(last.client_cpu_ms)])
            table.rows[-1].append(show(last.written_kib))
            data[one.label] = {many: asdict(rate) for many, rate in each.items()}
    return Outcome([table], [], data, [f"{name}: {error}" for name, error in errors.items()])


def _median(rates: list[Rate]) -> Rate:
    return Rate(*(statistics.median(values) for values in zip(*(asdict(one).values() for one in rates), strict=True)))


def _together(bench: Bench, one: type[Peer], name: str, many: int, seconds: float) -> Rate:
    group = spawn(_group, one, [bench.server.url(f"{name}-{client}") for client in range(many)], seconds)
    try:
        group.answer(60)
        before, written = bench.server.cpu(), bench.server.written()
        group.ask(None, 60)  # they run
        counts, cpu_s = group.ask(None, seconds + 60)
        used, grown = bench.server.cpu() - before, bench.server.written() - written
    finally:
        group.end()
    cycles = sum(counts)
    return Rate(cycles / seconds, used * 1000 / cycles, cpu_s * 1000 / cycles, grown / 1024 / cycles)


def _group(pipe: Connection, one: type[Peer], urls: list[str], seconds: float) -> None:
    load(one)
    slots = Slots(3)
    clients = [spawn(_cycles, one, url, slots, seconds) for url in urls]
    for client in clients:
        client.answer(60)
    pipe.send(None)
    pipe.recv()
    slots[_GO] = time.monotonic_ns() + 20_000_000
    pipe.send(None)
    answers = [client.answer(seconds + 30) for client in clients]
    pipe.recv()
    pipe.send(([count for count, _ in answers], sum(cpu_s for _, cpu_s in answers)))


def _cycles(pipe: Connection, one: type[Peer], url: str, slots: Slots, seconds: float) -> None:
    lock = one(url)
    for _ in range(5):
        lock.acquire()
        lock.release()
    pipe.send(None)
    slots.wait(_GO, 1)
    time.sleep(max(0.0, (slots[_GO] - time.monotonic_ns()) / 1e9))
    clock, count, cpu = time.monotonic_ns, 0, time.process_time()
    stop = slots[_GO] + int(seconds * 1e9)
    while clock() < stop:
        lock.acquire()
        lock.release()
        count += 1
    pipe.send((count, time.process_time() - cpu))


# -- many --------------------------------------------------------------------------------------------------------------


@dataclass
class Holds:
    """Figures of one of many locks; `*_cpu_ms` are of all of them together, in 10 s."""

    acquire_ms: float
    release_ms: float
    cycle_ms: float
    client_kib: float
    server_kib: float
    connections: float
    client_cpu_ms: float
    server_cpu_ms: float


def many_held(bench: Bench) -> Outcome:
    """One process for each subject, one after the other, in rounds."""
    context = bench.context
    many, seconds = int(context.pick(100, 1000)), bench.window(5, 5)
    # One for each way to hold: one session or lease for all holds, or one for each.
    kinds = [one for one in bench.peers if one.package not in ("tooz", "etcd3gw") and one not in (KeptLease, Psycopg)]
    found: dict[str, list[Holds]] = {one.label: [] for one in kinds}
    errors: dict[str, str] = {}
    for number in range(int(context.pick(1, 2))):
        for one in context.random.sample(kinds, len(kinds)):
            if one.label not in errors:
                try:
                    name = f"many-{number}-{kinds.index(one)}"
                    found[one.label].append(_held(bench, one, name, many, seconds))
                except Failed as error:
                    errors[one.label] = str(error)
    table = Table(
        bench.title(f"{many} locks held by one process; of each, and of all of them together in 10 s"),
        [
            "",
            "acquire ms",
            "release ms",
            "one more ms",
            "RSS KiB",
            "server KiB",
            "connections",
            "CPU ms",
            "server CPU ms",
        ],
        notes=[f"{name}: {error}" for name, error in errors.items()],
    )
    if bench.engine == "etcd":
        table.notes.append("the bare client keeps no lease alive")
    for name, rounds in found.items():
        if rounds:
            values = zip(*(asdict(one).values() for one in rounds), strict=True)
            table.rows.append([name, *(show(statistics.median(each)) for each in values)])
    data = {"locks": many, "each": {name: [asdict(one) for one in rounds] for name, rounds in found.items()}}
    return Outcome([table], [], {**data, "errors": errors}, [f"{name}: {error}" for name, error in errors.items()])


def _held(bench: Bench, one: type[Peer], name: str, many: int, seconds: float) -> Holds:
    server = bench.server
    ttl = None if one.package == Holdfast.package else 120
    child = spawn(_take_many, one, [server.url(f"{name}-{number}", ttl=ttl) for number in range(many + 1)])
    try:
        memory, connections = server.memory(), server.connections()
        alone = child.answer(30)
        took_ns, resident = child.ask(None, 120)
        time.sleep(0.5)
        before = child.ask("cost", 30), server.cpu()
        time.sleep(seconds)
        client = child.ask("cost", 30) - before[0]
        used = server.cpu() - before[1]
        server_memory, open_now = server.memory(), server.connections()
        cycle_ns = child.ask("cycle", 60)
        released_ns = child.ask("release", 120)
        return Holds(
            took_ns / 1e6 / many,
            released_ns / 1e6 / many,
            cycle_ns / 1e6,
            (resident - alone) / many,
            (server_memory - memory) / 1024 / many,
            (open_now - connections) / many,
            client / 1e6 * 10 / seconds,
            used * 1000 * 10 / seconds,
        )
    finally:
        child.end()


def _take_many(pipe: Connection, one: type[Peer], urls: list[str]) -> None:
    allow_open_files()
    more = one(urls.pop())
    more.acquire()
    more.release()
    pipe.send(_resident_kib())
    pipe.recv()
    begin = time.monotonic_ns()
    locks = [one(url) for url in urls]
    for lock in locks:
        lock.acquire()
    pipe.send((time.monotonic_ns() - begin, _resident_kib()))
    while (question := pipe.recv()) == "cost":
        pipe.send(time.process_time_ns())
    assert question == "cycle"
    samples = []
    for _ in range(20):
        begin = time.monotonic_ns()
        more.acquire()
        more.release()
        samples.append(time.monotonic_ns() - begin)
    pipe.send(statistics.median(samples))
    pipe.recv()
    begin = time.monotonic_ns()
    for lock in locks:
        lock.release()
    pipe.send(time.monotonic_ns() - begin)


def _resident_kib() -> float:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / 1024
