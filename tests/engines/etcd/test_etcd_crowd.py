"""Many at once: waiters in their order, locks side by side, and a counter that a resource guards by tokens.

HOLDFAST_TEST_SECONDS makes the storm longer.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

from engines.etcd.servers import Node
from holdfast import AsyncLock, Lock
from holdfast.engines.etcd.wire import encoded
from process.support import Peer, eventually

SECONDS = float(os.environ.get("HOLDFAST_TEST_SECONDS", "3"))


def test_a_hundred_waiters_get_in_out_of_order(url: str, no_leases: None) -> None:
    """ET3, ET13: by the order of arrival, each woken by the one before it."""

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


def test_two_hundred_locks_are_held_and_one_is_lost(url: str, no_leases: None) -> None:
    """Each kept by its own lease, all by one thread, for longer than a lease lasts."""

    async def main() -> None:
        base = url.replace("ttl=2", "ttl=4")
        locks = [AsyncLock(base.replace("?", f"/{number}?")) for number in range(200)]
        holds = await asyncio.gather(*[lock.acquire(timeout=60) for lock in locks])
        await asyncio.sleep(4.5)  # not a race: it is the lease that is to pass
        assert not [hold for hold in holds if hold.lost]
        await asyncio.gather(*[hold.release() for hold in holds])

    asyncio.run(main())


WORKER = """
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


def test_a_counter_misses_one_under_kills(url: str, node: Node, peer: Callable[..., Peer]) -> None:
    """Workers are killed and stopped; the resource (etcd itself, by the guard) takes only what a holder writes. So no
    number is written twice, and none is missing; tokens go up with them."""
    counter = f"counter {url}"
    rng = random.Random(7)
    workers = [peer(WORKER, url, node.host, counter) for _ in range(3)]
    dead: list[Peer] = []
    until = time.monotonic() + SECONDS
    for worker in workers:
        worker.hear()
    while time.monotonic() < until:
        victim = rng.choice(workers)
        victim.kill(signal.SIGSTOP if rng.random() < 0.3 else signal.SIGKILL)
        workers.remove(victim)
        dead.append(victim)
        workers.append(peer(WORKER, url, node.host, counter))
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
    node.ask("/v3/kv/deleterange", {"key": encoded(counter)})
    eventually(lambda: not Lock(url).status().locked)
