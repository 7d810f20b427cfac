"""Waiters for a lock, as `status()` reports them (queue.py)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from holdfast.engines.file.acquire import look
from holdfast.engines.file.paths import queue_of
from holdfast.model import Waiter
from unit.stepping import Contend, Contender, Stepped


def queued(contender: Contender) -> Contender:
    assert contender.step() is not None
    return contender


def seen(contender: Contender) -> tuple[Waiter, ...]:
    return look(contender.env, contender.request).waiters


def test_waiters_are_seen_in_order(disk: Path, contend: Contend, environments: Callable[..., Stepped]) -> None:
    env = environments()
    holder = contend(disk / "l", tag="holder")
    held = holder.get()
    assert seen(holder) == ()
    waiting = [
        queued(contend(disk / "l", env if tag in "ac" else None, timeout=None, fair=True, tag=tag)) for tag in "abcd"
    ]
    # Other processes see only the first waiter of a process; the process itself sees all of its own.
    assert [(w.position, w.tag) for w in seen(holder)] == [(1, "a"), (2, "b"), (3, "d")]
    assert [(w.position, w.tag) for w in seen(waiting[0])] == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    first = seen(holder)[0]
    assert first.pid == os.getpid()
    assert first.since is not None
    assert abs(first.since - env.time()) < 60
    assert first.command is not None
    waiting[1].crash()
    held.release()
    assert waiting[0].step() is None
    assert [(w.position, w.tag) for w in seen(waiting[2])] == [(1, "c"), (2, "d")], "the holder, or a dead one, counts"
    assert [(w.position, w.tag) for w in seen(waiting[3])] == [(1, "d")]
    shutil.rmtree(queue_of(str(disk), "l"))  # with the dead waiter's ticket


def test_a_look_at_the_waiters_leaves_every_ticket(disk: Path, contend: Contend) -> None:
    holder = contend(disk / "l")
    holder.get()
    waiter = queued(contend(disk / "l", timeout=None, fair=True, tag="t"))
    waiter.crash()
    place = Path(queue_of(str(disk), "l"))
    (place / "00000000000000000001-x-1-strange").write_text("state=waiting\nnothing")
    (place / "00000000000000000002-x-1-closed").mkdir()
    before = sorted(os.listdir(place))
    assert seen(holder) == ()
    assert sorted(os.listdir(place)) == before
    (place / "00000000000000000002-x-1-closed").rmdir()
    for name in os.listdir(place):
        (place / name).unlink()
    place.rmdir()


def test_processes_that_only_watch_are_seen(disk: Path, contend: Contend) -> None:
    holder = contend(disk / "l")
    holder.get()
    holder.env.instead["watchers"] = lambda _identity, _masks=None: [2**22 + 1, os.getpid()]
    assert seen(holder) == (Waiter(None, 2**22 + 1),), "and the holder, who watches its own lock file, does not count"
