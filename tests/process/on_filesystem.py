"""A short test of promises for every filesystem; a command for filesystem.py.

python on_filesystem.py SECONDS EVENTS       EVENTS: 1 where waiters are woken by events, 0 where they poll
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import places
from holdfast import Lock
from holdfast._platform import environment
from process.storm.run import storm
from process.support import Peer, eventually, polling

HOLD = """
hold = Lock(path, tag="holder").acquire(timeout=5)
say("holding")
hear()
hold.release()
say("released")
hear()
"""
WAIT = """
import holdfast.engines.file.queue, holdfast.engines.file.watched
if sys.argv[2] == "1":  # then nothing but an event ends the wait in time
    holdfast.engines.file.queue.RECHECK = holdfast.engines.file.watched.RECHECK = 600.0
say(Lock(path).try_acquire())
hold = Lock(path).acquire(timeout=60)
say("got it from", hold.recovered_from and hold.recovered_from.tag)
hear()
hold.release()
"""


@contextmanager
def two(path: str, events: str) -> Iterator[tuple[Peer, Peer]]:
    """A holder, and a waiter."""
    peers = [Peer(HOLD, [path])]
    try:
        peers[0].expect("holding")
        peers.append(Peer(WAIT, [path, events]))
        peers[1].expect("None")
        eventually(lambda: polling(peers[1].pid), what="the wait")
        yield peers[0], peers[1]
        peers[1].say("release")
        peers[1].finish()
        assert os.listdir(os.path.dirname(path)) == []
    finally:
        for peer in peers:
            peer.destroy()


def release_is_noticed(path: str, events: str) -> None:
    with two(path, events) as (holder, waiter):
        holder.say("release")
        holder.expect("released")
        waiter.expect("got it from None")


def death_is_noticed(path: str, events: str) -> None:
    with two(path, events) as (holder, waiter):
        holder.kill()
        waiter.expect("got it from holder")


def dead_one_is_replaced_at_once(path: str) -> None:
    holder = Peer(HOLD, [path])
    try:
        holder.expect("holding")
        assert Lock(path).status().evidence.source == "guard"
        holder.kill()
        holder.wait()
    finally:
        holder.destroy()
    assert Lock(path).status().evidence.proven
    with Lock(path, timeout=0) as hold:
        assert hold.recovered_from.pid == holder.pid
    assert os.listdir(os.path.dirname(path)) == []


def main(seconds: str, events: str) -> None:
    place = Path(os.environ["HOLDFAST_TEST_PLACE"])
    locks = place / "few"
    locks.mkdir()
    path = str(locks / "the.lock")
    assert environment().events_reach(path) == (events == "1")
    dead_one_is_replaced_at_once(path)
    release_is_noticed(path, events)
    death_is_noticed(path, events)
    with tempfile.TemporaryDirectory(dir=places.below("/dev/shm") if os.path.isdir("/dev/shm") else None) as state:
        storm(place, Path(state, "state"), "sema", float(seconds), ("sync", "sync", "sync", "threads", "asyncio"))


if __name__ == "__main__":
    main(*sys.argv[1:])
