"""Everything at once: three servers of which one is killed now and then, holders that are killed and stopped, waits
that are given up. HOLDFAST_TEST_SECONDS makes it longer.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from itertools import pairwise

from engines.etcd.servers import Node
from process.support import Peer

SECONDS = float(os.environ.get("HOLDFAST_TEST_SECONDS", "3"))

WORKER = """
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


def test_two_believe_at_once_or_a_token_goes_down(trio: list[Node], peer: Callable[..., Peer]) -> None:
    """EL1, ET3, ET7, ET14: of those who held it until their last look, no two overlap, in a lock and in each slot; and
    who came later has the higher token."""
    url = f"etcd://{','.join(node.host for node in trio)}/storm?ttl=2"
    rng = random.Random(11)
    said: list[bytes] = []
    readers: list[threading.Thread] = []

    def start() -> Peer:
        worker = peer(WORKER, url)
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
    lines = [line.split() for text in said for line in text.decode().splitlines() if line.count(" ") == 4]
    assert lines
    for slot in ("None", "0", "1"):
        holds = sorted((float(since), float(last), int(token)) for _, s, token, since, last in lines if s == slot)
        for one, after in pairwise(holds):
            assert one[1] <= after[0], f"two were inside at once, in slot {slot}: {one}, {after}"
            assert one[2] < after[2], f"a token went down, in slot {slot}: {one}, {after}"
