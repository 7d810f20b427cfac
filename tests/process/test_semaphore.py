"""Semaphores between processes: never more inside than there are slots, and no slot is ever lost."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import places
from abilities import LINUX, has
from ahead import Ran
from holdfast import Hold, Semaphore
from process.journal import read_journal
from process.support import Peer, descriptors, eventually, quiet, state, switches
from process.wanted import Wanted

SOME = 8 / 30
"""Of the longest storm."""
WORKERS, SLOTS = 8, 3
WORKER = Path(__file__).with_name("slots_worker.py")

WAIT = """
events_only()
semaphore = holdfast.Semaphore(path, int(sys.argv[2]), timeout=30)
say("waiting")
hold = semaphore.acquire()
say(hold.slot, hold.recovered_from.pid if hold.recovered_from else "-")
hear()
hold.release()
say("left")
"""
HOLD = """
hold = holdfast.Semaphore(path, int(sys.argv[2]), timeout=30).acquire()
say(hold.slot)
hear()
"""


@pytest.fixture
def base(tmp_path: Path) -> str:
    return str(tmp_path / "b")


@pytest.fixture
def wait(spawn: Callable[..., Peer], base: str) -> Callable[..., Peer]:
    """A process that is seen to wait for a slot: it queues behind earlier ones, where there are queues."""

    def start(slots: int = 2) -> Peer:
        there = len(Semaphore(base, slots).status().waiters)
        peer = spawn(WAIT, base, slots)
        peer.expect("waiting")
        if has("flock"):
            eventually(lambda: len(Semaphore(base, slots).status().waiters) > there, what="the queue")
        else:
            eventually(lambda: state(peer.pid) == "S", what="the wait")
        return peer

    return start


def fill(base: str, slots: int = 2) -> list[Hold]:
    return [Semaphore(base, slots).acquire() for _ in range(slots)]


def got(peer: Peer) -> tuple[int, str]:
    slot, recovered = peer.hear().split()
    return int(slot), recovered


# -- killed at random --------------------------------------------------------------------------------------------------


def storm(place: Path, share: float, env: dict[str, str], *, told: bool = True) -> None:
    """`told`: whether a takeover names the dead holder."""
    wanted = Wanted.share(share)
    if not told:
        wanted = wanted._replace(takeovers=0)
    locks, there = place / "locks", place / "state"
    locks.mkdir()
    there.mkdir()
    base = locks / "b"
    process = subprocess.Popen(
        [sys.executable, str(WORKER), *map(str, (base, there, wanted.word(), WORKERS, SLOTS))],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=wanted.limit)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert process.returncode == 0
    happened = json.loads(out)
    assert happened["failed"] == []
    outcomes = [read_journal(there / str(slot), set(happened["killed"]), told=told) for slot in range(SLOTS)]
    for slot, outcome in enumerate(outcomes):
        print(
            f"slot {slot}: {outcome.done} increments, {outcome.unfinished} killed inside, {outcome.recovered} "
            f"takeovers, {len(outcome.overlaps)} overlaps; {len(happened['killed'])} kills in all"
        )
        assert outcome.overlaps == []
        assert outcome.mistakes == []
        assert outcome.done > 0
    assert sum(outcome.counter for outcome in outcomes) >= wanted.increments  # slots_worker.py goes on until it is so
    assert min(outcome.counter for outcome in outcomes) >= wanted.increments / 100
    assert sum(outcome.recovered for outcome in outcomes) >= wanted.takeovers
    assert sum(outcome.unfinished for outcome in outcomes) > 0
    assert len(happened["killed"]) >= wanted.kills
    # slots_worker.py decides which claims may stay.
    assert [name for name in os.listdir(locks) if not name.endswith((".lock", ".claim"))] == []


def test_a_kill_at_any_moment_lets_in_no_more_than_the_slots_and_loses_none(shm: Path) -> None:
    storm(shm, 1 / 3, {})


VARIANTS = {
    "named temporary file and link": {"HOLDFAST_WITHOUT": "unnamed"},
    "no events": {"HOLDFAST_WITHOUT": "events"},
    "no guard": {"HOLDFAST_WITHOUT": "flock"},
    "portable": {"HOLDFAST_OS": "generic"},
}


def _stormed(env: dict[str, str]) -> None:
    with places.directory_in_memory() as shm:
        storm(shm, SOME, {**LINUX, **env})


@pytest.mark.ahead(body=_stormed)
@pytest.mark.parametrize("env", VARIANTS.values(), ids=[name.replace(" ", "-") for name in VARIANTS])
def test_a_fallback_for_publishing_or_waiting_lets_in_no_more_than_the_slots(env: dict[str, str], ran: Ran) -> None:
    ran()


@pytest.mark.needs("flock")
def test_kernel_locks_let_in_no_more_than_the_slots(shm: Path) -> None:
    storm(shm, SOME, {"HOLDFAST_TEST_PROTOCOL": "flock"}, told=False)


# -- one at a time -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", [0, 1])
def test_a_killed_holder_does_not_keep_its_slot(
    slot: int, spawn: Callable[..., Peer], wait: Callable[..., Peer], base: str
) -> None:
    holders = [spawn(HOLD, base, 2) for _ in range(2)]
    by_slot = {int(holder.hear()): holder for holder in holders}
    assert sorted(by_slot) == [0, 1]
    waiter = wait()
    by_slot[slot].kill()
    assert got(waiter) == (slot, str(by_slot[slot].pid))


@pytest.mark.needs("flock", "events")
def test_waiting_processes_get_in_in_order_and_do_not_wake_each_other(wait: Callable[..., Peer], base: str) -> None:
    """Q7: a release of any slot wakes the first, which passes the wait for the slots on to the second."""
    holds = fill(base)
    waiters = [wait() for _ in range(4)]
    behind = waiters[2:]
    eventually(lambda: all(state(waiter.pid) == "S" for waiter in waiters), what="the wait")
    eventually(lambda: quiet(*(waiter.pid for waiter in waiters)), what="the long waits")
    before = [switches(waiter.pid) for waiter in behind]
    holds[1].release()
    assert got(waiters[0])[0] == 1
    # The waiters behind the second have not woken.
    assert all(switches(waiter.pid) - count <= 2 for waiter, count in zip(behind, before, strict=True))
    assert all(waiter.silent() for waiter in waiters[1:])
    for first, second in itertools.pairwise(waiters):
        first.say("leave")
        first.expect("left")
        assert got(second)[0] == 1
    assert semaphore_is_free_but(base, 1)
    waiters[-1].say("leave")
    waiters[-1].expect("left")
    holds[0].release()


def semaphore_is_free_but(base: str, slot: int) -> bool:
    return Semaphore(base, 2).status()[slot].locked


@pytest.mark.needs("flock")
def test_two_slots_released_at_once_let_in_two(wait: Callable[..., Peer], base: str) -> None:
    """Q7, with real processes, again and again."""
    for _ in range(5):
        holds = fill(base)
        waiters = [wait() for _ in range(3)]
        for hold in holds:
            hold.release()
        first, second = got(waiters[0]), got(waiters[1])
        assert {first[0], second[0]} == {0, 1}
        assert waiters[2].silent()
        for waiter in waiters[:2]:
            waiter.say("leave")
        assert got(waiters[2])[0] in (0, 1)
        waiters[2].say("leave")
        for waiter in waiters:
            waiter.finish()


def test_a_killed_waiter_does_not_block_the_next(wait: Callable[..., Peer], base: str) -> None:
    holds = fill(base)
    first, second = wait(), wait()
    first.kill()
    first.wait()
    holds[0].release()
    assert got(second)[0] == 0
    holds[1].release()


def test_a_ctrl_c_while_waiting_leaves_nothing(spawn: Callable[..., Peer], base: str) -> None:
    holds = fill(base)
    waiter = spawn(
        """
        semaphore = holdfast.Semaphore(path, 2)
        semaphore.wait(timeout=0.1)  # whatever the first wait sets up for good
        before = len(os.listdir("/proc/self/fd"))
        say("waiting")
        try:
            semaphore.acquire()
        except KeyboardInterrupt:
            say(len(os.listdir("/proc/self/fd")) - before)
        hear()
        """,
        base,
    )
    waiter.expect("waiting")
    if has("flock"):
        eventually(lambda: Semaphore(base, 2).status().waiters, what="the queue")
    eventually(lambda: state(waiter.pid) == "S", what="the wait")
    waiter.kill(signal.SIGINT)
    waiter.expect("0")
    assert sorted(os.listdir(os.path.dirname(base))) == ["b.0.lock", "b.1.lock"]
    assert not [path for path in descriptors(waiter.pid).values() if path.startswith(base)]
    waiter.say("end")
    waiter.finish()
    for hold in holds:
        hold.release()


def test_a_process_that_exits_normally_releases_its_slots(spawn: Callable[..., Peer], base: str) -> None:
    peer = spawn("holds = [holdfast.Semaphore(path, 3).acquire() for _ in range(3)]", base)
    peer.finish()
    assert os.listdir(os.path.dirname(base)) == []


def test_processes_that_disagree_on_the_number_let_in_no_more_than_the_largest(
    spawn: Callable[..., Peer], wait: Callable[..., Peer], base: str
) -> None:
    """A process that assumes more slots uses them, and passes waiters for the slots that they know of."""
    holds = fill(base, 2)
    narrow = wait(2)
    wide = spawn(WAIT, base, 3)
    wide.expect("waiting")
    assert got(wide)[0] == 2
    assert narrow.silent()
    assert Semaphore(base, 3).try_acquire() is None
    holds[1].release()
    assert got(narrow)[0] == 1
    holds[0].release()


def inside(semaphore: Semaphore, directory: str, times: int) -> int:
    """The largest number of other processes seen inside; each leaves a file there while it is."""
    most = 0
    for _ in range(times):
        with semaphore:
            mine = f"{directory}/{os.getpid()}"
            Path(mine).touch()
            most = max(most, len(os.listdir(directory)))
            os.unlink(mine)
    return most


def test_a_pool_of_processes_has_no_more_slots_than_there_are(tmp_path: Path, base: str) -> None:
    (tmp_path / "inside").mkdir()
    semaphore = Semaphore(base, 2, timeout=60)
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        most = pool.starmap(inside, [(semaphore, str(tmp_path / "inside"), 50)] * 4)
    assert 1 <= max(most) <= 2
