"""Crowds: waiters in order, locks side by side, a counter guarded by tokens, and a storm.

HOLDFAST_TEST_SECONDS makes the counter and the storm longer, HOLDFAST_TEST_CROWD the crowd larger (`make crowd`)."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engines.arms import peers, side_by_side
from engines.etcd.servers import Node, nodes
from holdfast import AcquireTimeout, AsyncLock, Lock
from holdfast._core import wait
from holdfast.engines.etcd import lock as etcd_lock
from holdfast.engines.etcd.client import Cluster
from holdfast.engines.etcd.url import parse
from holdfast.engines.etcd.wire import encoded, end_of
from holdfast.lock import announce
from process.support import Peer, eventually

SECONDS = float(os.environ.get("HOLDFAST_TEST_SECONDS", "3"))
CROWD = int(os.environ.get("HOLDFAST_TEST_CROWD", "0"))
"""Waiters of one lock. If it is given: in two crowds, one after the other, on a machine that is half busy."""


@pytest.fixture(scope="module")
def arms(etcd_node: Node, trio: list[Node]) -> dict[str, Callable[[], None]]:
    """The tests that last for seconds, all at once. The counter has a server of its own, so that nothing slows it."""
    return side_by_side(
        many=lambda: _many(f"etcd://{etcd_node.host}/arms/many?ttl=30"),
        counter=_counter,
        storm=lambda: _storm(trio),
    )


def test_a_hundred_waiters_get_in_in_order(url: str, no_leases: None) -> None:
    """EQ1, ET2: in the order of arrival, each woken by the one before it."""

    async def main() -> None:
        lock = AsyncLock(url, stale_after=30)
        order: list[int] = []

        async def contend(number: int) -> None:
            async with lock as hold:
                order.append(number)
                tokens.append(hold.token)

        tokens: list[Any] = []
        tasks = []
        async with lock:
            for number in range(100):
                tasks.append(asyncio.ensure_future(contend(number)))
                if number % 10 == 9:
                    while len((await lock.status()).waiters) <= number:
                        await asyncio.sleep(0.005)
            waiters = (await lock.status()).waiters
            assert [waiter.position for waiter in waiters] == list(range(1, 101))
        await asyncio.gather(*tasks)
        assert tokens == sorted(tokens)
        tens = [number // 10 for number in order]
        assert tens == sorted(tens)

    asyncio.run(main())


def test_a_waiter_reads_no_more_however_many_waiters_there_are(
    url: str, no_leases: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ET6: to queue up, look again when due, learn the holder, give up, try, and take its turn."""
    monkeypatch.setattr(etcd_lock, "RECHECK", 0.2)
    monkeypatch.setattr(wait, "_NOTICE_AFTER", 0.2)
    answers: list[int] = []
    real = Cluster._exchange

    def exchange(self: Cluster, endpoint: Any, path: str, *arguments: Any) -> Any:
        answer = yield from real(self, endpoint, path, *arguments)
        if path.startswith("/v3/kv/"):
            answers.append(len(answer))
        return answer

    async def main() -> None:
        notices: list[Any] = []
        lock = AsyncLock(url, stale_after=30)
        announce(lock, notices.append)

        async def contend() -> None:
            async with lock:
                pass

        async with lock:
            tasks = [asyncio.ensure_future(contend()) for _ in range(60)]
            while len((await lock.status()).waiters) < len(tasks):
                await asyncio.sleep(0.005)
            monkeypatch.setattr(Cluster, "_exchange", exchange)
            assert await lock.try_acquire() is None
            with pytest.raises(AcquireTimeout, match="held by process"):
                await lock.acquire(timeout=0.05)
            while len(notices) < len(tasks) or len(answers) < 5 * len(tasks):
                await asyncio.sleep(0.005)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert max(answers) < 8000, "an answer that has all keys has 250 bytes for each of them"
    assert sorted(answers)[len(answers) // 2] < 1500, "most have a key or two"


WAITERS = """
import asyncio, resource
from holdfast import AsyncLock

most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

async def contend():
    async with AsyncLock(path) as hold:
        with open(sys.argv[2], "a") as order:
            print(hold.token, file=order)

async def main():
    await asyncio.gather(*[contend() for _ in range(int(sys.argv[3]))])

asyncio.run(main())
say("done")
"""


def contenders(node: Node, url: str) -> int:
    """The number of a lock's keys, without reading them."""
    base = parse(url).base
    answer = node.ask("/v3/kv/range", {"key": encoded(base), "range_end": end_of(base), "count_only": True})
    return 0 if answer is None else int(answer.get("count", 0))


@pytest.mark.parametrize("processes", [1, 50 if CROWD else 5])
def test_a_crowd_is_served_in_order_and_costs_the_holder_no_lock(
    node: Node, peer: Callable[..., Peer], tmp_path: Path, processes: int
) -> None:
    """EQ1, ET6: all get in, in the order of their keys, and none is told that the server is away."""
    size, took = CROWD or 40, []
    for _ in range((os.cpu_count() or 2) // 2 if CROWD else 0):
        peer("while True: pass")
    for turn in range(2 if CROWD else 1):
        url, order = f"etcd://{node.host}/crowd/{processes}/{turn}", tmp_path / f"{turn}"
        lock = Lock(url)
        with lock:
            began = time.monotonic()
            workers = [peer(WAITERS, url, order, size // processes) for _ in range(processes)]
            eventually(lambda: contenders(node, url) > size, 120, "the arrival of all")  # noqa: B023
            took.append(time.monotonic() - began)
        began = time.monotonic()
        for worker in workers:
            worker.expect("done", 120)
            worker.finish()
        took.append(time.monotonic() - began)
        tokens = list(map(int, order.read_text().split()))
        assert len(tokens) == size
        assert tokens == sorted(tokens)
    print(f"{size} waiters in {processes} processes, seconds to queue up and to drain:", *[f"{t:.1f}" for t in took])


def test_two_hundred_locks_are_held_and_none_is_lost(arms: dict[str, Callable[[], None]]) -> None:
    """Each has its own lease, and one thread keeps all of them, for longer than a lease lasts."""
    arms["many"]()


def _many(url: str) -> None:
    async def main() -> None:
        locks = [AsyncLock(url.replace("?", f"/{number}?")) for number in range(200)]
        holds = await asyncio.gather(*[lock.acquire(timeout=60) for lock in locks])
        try:
            await asyncio.sleep(30.5)  # not to win a race: the lease has to expire
            assert not [hold for hold in holds if hold.lost]
        finally:  # each later test would wait for the end of these holds
            await asyncio.gather(*[hold.release() for hold in holds], return_exceptions=True)

    asyncio.run(main())


COUNTER = """
import json, urllib.request
from holdfast.engines.etcd import guard
from holdfast.engines.etcd.wire import encoded, decoded

host, counter = sys.argv[2:]

def ask(what, body):
    request = urllib.request.Request(f"http://{host}/v3/kv/{what}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)

while True:
    try:
        with Lock(path).acquire(timeout=30) as hold:
            kvs = ask("range", {"key": encoded(counter)}).get("kvs", [])
            value = int(decoded(kvs[0]["value"])) if kvs else 0
            put = {"request_put": {"key": encoded(counter), "value": encoded(str(value + 1))}}
            done = ask("txn", {"compare": [guard(hold.record)], "success": [put]}).get("succeeded")
            say(hold.token, value + 1 if done else "refused")
    except holdfast.LockLost:
        say("lost")
"""


def test_a_counter_misses_no_increment_under_kills(arms: dict[str, Callable[[], None]]) -> None:
    """Workers are killed and stopped; the resource (etcd itself, by the guard) accepts only a holder's writes. So no
    number is written twice, none is missing, and tokens increase with them."""
    arms["counter"]()


def _counter() -> None:
    with nodes() as (node,), peers() as peer:
        _count(f"etcd://{node.host}/counter?ttl=2", node, peer)


def _count(url: str, node: Node, peer: Callable[..., Peer]) -> None:
    counter = f"counter {url}"
    rng = random.Random(7)
    workers = [peer(COUNTER, url, node.host, counter) for _ in range(3)]
    dead: list[Peer] = []
    until = time.monotonic() + SECONDS
    for worker in workers:
        worker.hear()
    while time.monotonic() < until:
        victim = rng.choice(workers)
        victim.kill(signal.SIGSTOP if rng.random() < 0.3 else signal.SIGKILL)
        workers.remove(victim)
        dead.append(victim)
        workers.append(peer(COUNTER, url, node.host, counter))
        seen = workers[0].hear(30)
        assert seen
    for worker in (*workers, *dead):
        worker.kill(signal.SIGCONT)
        worker.kill()
        worker.wait()
    lines = []
    for worker in (*workers, *dead):
        rest = (
            b"".join([line.encode() + b"\n" for line in worker._said]) + worker._buffer + worker.process.stdout.read()
        )
        lines += [line.split() for line in rest.decode().splitlines() if line.count(" ") == 1]
    written = sorted((int(token), int(value)) for token, value in lines if value != "refused")
    values = [value for _, value in written]
    assert values == sorted(set(values)), "two holders wrote the same number, or a later one a lower"
    answer = node.ask("/v3/kv/range", {"key": encoded(counter)})
    assert answer is not None
    last = int(base64.b64decode(answer["kvs"][0]["value"]))
    assert last - len(values) <= len(workers) + len(dead), "numbers are missing that nobody was killed over"
    assert len(values) >= 3


STORM = """
import random

rng = random.Random(os.getpid())
lock, slots = Lock(path), holdfast.Semaphore(path, 2)
while True:
    try:
        hold = rng.choice((lock, slots)).acquire(timeout=rng.choice((None, 0.05, 0.5, 30)))
    except holdfast.AcquireTimeout:
        continue
    except holdfast.EngineUnavailable:
        time.sleep(0.1)
        continue
    since = time.monotonic()
    if rng.random() < 0.1:
        time.sleep(rng.random() * 0.5)
    try:
        hold.ensure_held()
        say("held", hold.slot, hold.token, repr(since), repr(time.monotonic()))
        hold.release()
    except holdfast.LockLost:
        pass
"""


def test_no_two_holders_overlap_and_no_token_goes_down(arms: dict[str, Callable[[], None]]) -> None:
    """EL1, EQ1, EQ5, ET3: no two holders overlap until their last look, in a lock and in each slot, and each later one
    has the higher token. One of three servers is killed now and then, holders are killed and stopped, waits are
    given up."""
    arms["storm"]()


def _storm(trio: list[Node]) -> None:
    with peers() as peer:
        lines = _through_a_storm(trio, peer)
    assert lines
    for slot in ("None", "0", "1"):
        holds = sorted((float(since), float(last), int(token)) for _, s, token, since, last in lines if s == slot)
        for one, after in pairwise(holds):
            assert one[1] <= after[0], f"two were inside at once, in slot {slot}: {one}, {after}"
            assert one[2] < after[2], f"a token went down, in slot {slot}: {one}, {after}"


def _through_a_storm(trio: list[Node], peer: Callable[..., Peer]) -> list[list[str]]:
    url = f"etcd://{','.join(node.host for node in trio)}/storm?ttl=2"
    rng = random.Random(11)
    said: list[bytes] = []
    readers: list[threading.Thread] = []

    def start() -> Peer:
        worker = peer(STORM, url)
        reader = threading.Thread(target=lambda: said.append(worker.process.stdout.read()))
        reader.start()
        readers.append(reader)
        return worker

    workers = [start() for _ in range(4)]
    down: Node | None = None
    until = time.monotonic() + 1 + SECONDS
    while time.monotonic() < until:
        time.sleep(rng.random())
        choice = rng.random()
        victim = rng.choice(workers)
        if choice < 0.4 and down is None:
            down = rng.choice(trio)
            down.kill()
        elif choice < 0.4 and down is not None:
            down.start()
            down = None
        elif choice < 0.7:
            victim.kill()
            workers[workers.index(victim)] = start()
        else:
            victim.kill(signal.SIGSTOP)
            time.sleep(rng.random() * 3)
            victim.kill(signal.SIGCONT)
    for worker in workers:
        worker.kill()
    for reader in readers:
        reader.join()
    if down is not None:
        down.start()
        down.wait_ready()
    return [line.split() for text in said for line in text.decode().splitlines() if line.count(" ") == 4]
