"""Two processes that take turns with one lock: strict alternation, and the time of each hand-over.

From just before the holder calls release to just after the waiter's acquire returned, on CLOCK_MONOTONIC, which all
processes share. The waiter announces itself, then the holder keeps the lock for the pause of that turn, so by then the
waiter is asleep in its wait. The former holder wants the lock again only when the other has it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from peers import Subject
from procs import Slots, spawn

# Slots: turn announced by the waiter, turn completed, moment of release, moment of acquisition.
_READY, _ANNOUNCED, _DONE, _RELEASED, _ACQUIRED = range(5)


def alternate(
    subject: type[Subject],
    path: str,
    pauses: Sequence[float],
    warm_up: int,
    processors: tuple[int, int] | None = None,
    limit: float = 30.0,
) -> list[int]:
    """The latencies, in ns, of a turn for each pause (s) but the first `warm_up`, which include a process's set-up.

    Each process has a processor of its own if two are given. `Failed` after `limit` seconds beyond the pauses.
    """
    slots = Slots(5)
    pair = [
        spawn(_take_turns, subject, path, role, pauses, slots, {processors[role]} if processors else None)
        for role in (0, 1)
    ]
    try:
        halves = [child.answer(limit + 3 * sum(pauses)) for child in pair]
    finally:
        for child in pair:
            child.end()
    latencies = {turn: latency for half in halves for turn, latency in half}
    return [latencies[turn] for turn in range(warm_up, len(pauses))]


def _take_turns(
    pipe: Connection,
    subject: type[Subject],
    path: str,
    role: int,
    pauses: Sequence[float],
    slots: Slots,
    processors: set[int] | None,
) -> None:
    """The child: hold in the turns of its own parity, wait in the others; send the latencies seen as a waiter."""
    if processors is not None:
        os.sched_setaffinity(0, processors)
    lock = subject(path)
    seen = []
    if role == 0:
        lock.acquire()
        slots[_READY] = 1
    slots.wait(_READY, 1)
    for turn, pause_s in enumerate(pauses):
        if turn % 2 == role:
            slots.wait(_ANNOUNCED, turn + 1)
            time.sleep(pause_s)
            slots[_RELEASED] = time.monotonic_ns()
            lock.release()
            slots.wait(_DONE, turn + 1)
        else:
            slots[_ANNOUNCED] = turn + 1
            lock.acquire()
            slots[_ACQUIRED] = time.monotonic_ns()
            seen.append((turn, slots[_ACQUIRED] - slots[_RELEASED]))
            slots[_DONE] = turn + 1
    if len(pauses) % 2 == role:
        lock.release()
    pipe.send(seen)
