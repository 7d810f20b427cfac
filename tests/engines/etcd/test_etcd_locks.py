"""Locks and semaphores on an etcd server: who is inside, who is next, what is reported, and what is left."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

import holdfast
from engines.etcd.servers import Node, leases
from holdfast import AsyncLock, Lock, Semaphore
from holdfast._core.wait import Wait
from holdfast._drivers.agent import agent
from holdfast._drivers.sync import drive
from holdfast._platform import environment
from holdfast.engines import remote
from holdfast.engines.etcd import ENGINE, guard
from holdfast.engines.etcd.client import Cluster
from holdfast.engines.etcd.lock import EtcdHold
from holdfast.engines.etcd.look import survey
from holdfast.engines.etcd.queue import Entrant, Lease, Queue
from holdfast.engines.etcd.url import parse
from holdfast.engines.etcd.wire import encoded
from process.support import Peer, eventually

SOON = 5.0


def waiters(lock: Any) -> int:
    return len(lock.status().waiters)


def waiting(lock: Any, results: list[Any], **options: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: results.append(lock.acquire(**options)))
    before = waiters(lock)
    thread.start()
    eventually(lambda: waiters(lock) > before)
    return thread


def test_one_holder_is_inside_at_a_time_and_tokens_increase(url: str, no_leases: None) -> None:
    """EQ1: in the server's order; each later holder has a higher token."""
    lock = Lock(url, tag="deploy")
    got: list[Any] = []
    with lock as hold:
        first = hold.token
        assert first is not None
        assert lock.try_acquire() is None
        assert not lock.wait(timeout=0)
        threads = [waiting(lock, got) for _ in range(3)]
        assert [waiter.position for waiter in lock.status().waiters] == [1, 2, 3]
        assert not got
    tokens = [first]
    for number in (1, 2, 3):
        eventually(lambda number=number: len(got) == number)  # type: ignore[misc]
        tokens.append(got[-1].token)
        got[-1].ensure_held()
        assert not got[-1].lost
        got[-1].release()
    assert tokens == sorted(set(tokens))
    for thread in threads:
        thread.join()
    assert lock.wait(timeout=SOON)
    assert not lock.status().locked


def test_a_refusal_names_the_holder(url: str, no_leases: None) -> None:
    with Lock(url, tag="deploy v1") as hold:
        with pytest.raises(holdfast.AcquireTimeout, match=r"held by process \d+ on .* for 'deploy v1'") as caught:
            Lock(url).acquire(timeout=0.05)
        assert caught.value.holder.pid == os.getpid()
        status = Lock(url).status()
        assert (status.locked, status.evidence.source, status.holder.tag) == (True, "server", "deploy v1")
        assert status.record is not None
        assert status.record.fields["create_revision"] == hold.token
        assert status.record.fields["key"] == hold.record.fields["key"]
        eventually(lambda: not waiters(Lock(url)))


def test_a_try_puts_no_key_while_another_holds(url: str, node: Node) -> None:
    """ET3: it sees the holder, and writes nothing, so it makes no revision."""
    with Lock(url) as hold:
        assert Lock(url).try_acquire() is None
        answer = node.ask("/v3/kv/range", {"key": "AA=="})
        assert answer is not None
        assert int(answer["header"]["revision"]) == hold.token


def test_the_granted_lease_is_the_reported_one(url: str) -> None:
    """Pitfall 6: the record has the seconds that the server granted, as an integer."""
    with Lock(url, stale_after=3) as hold:
        assert hold.record.fields["ttl"] == 3
        status = Lock(url).status()
        assert status.record is not None
        assert status.record.fields["ttl"] == 3
        assert isinstance(hold.token, int)


def test_a_repeated_transaction_makes_one_queue_entry(url: str, no_leases: None) -> None:
    """EQ3, EC1, EL3 (pitfall 6): the repeated requests give the same key, revision, slot and lease."""
    env, lock_url = environment(), parse(url)
    queue = Queue(lock_url, 2)
    from holdfast.engines.etcd.client import cluster_of

    until = env.monotonic() + SOON
    entrant = Entrant(env, cluster_of(env, lock_url.access), queue, 2, {"pid": 1})
    drive(entrant.lease.grant(until))
    drive(entrant.lease.grant(until))
    assert entrant.lease.seconds == 2
    drive(entrant.enter(until))
    created = entrant.created
    drive(entrant.enter(until))
    assert entrant.created == created
    assert drive(entrant.take_slot(until))
    slot = entrant.slot
    entrant.slot, entrant._taken = None, set()
    assert drive(entrant.take_slot(until))
    assert entrant.slot == slot == 0
    assert drive(entrant.leave(until))
    assert not drive(entrant.leave(until))
    entrant.lease.end()
    entrant.lease.end()


def test_a_waiter_whose_key_is_gone_queues_anew(url: str, node: Node) -> None:
    """EQ2, ET4 (pitfall 5): its key is deleted while it waits; it gets in after the other waiters."""
    lock, got = Lock(url), []
    with lock:
        thread = waiting(lock, got)
        (old,) = keys_of(url)[1:]
        node.ask("/v3/kv/deleterange", {"key": encoded(old)})
        eventually(lambda: len(keys_of(url)) == 2 and keys_of(url)[1] != old)
        assert not got
    thread.join(SOON)
    got[0].ensure_held()
    assert got[0].record.fields["key"] != old
    got[0].release()


@pytest.mark.parametrize("told", [False, True])
def test_a_caller_whose_lease_ends_before_it_queues_up_begins_anew(
    url: str, node: Node, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ET4: it is stopped in between, and notices by its own clock, or only by what the server says."""
    begun: list[int] = []

    def late(entrant: Entrant, until: float) -> Any:
        begun.append(entrant.lease.id)
        if len(begun) == 1:
            node.ask("/v3/lease/revoke", {"ID": str(entrant.lease.id)})
            if not told:
                entrant.lease.extend((0.0, 0.0), 1.0)
                until = 1.0
        return (yield from enter(entrant, until))

    enter = Entrant.enter
    monkeypatch.setattr(Entrant, "enter", late)
    with Lock(url).acquire(timeout=SOON) as hold:
        assert hold.record.fields["lease"] == f"{begun[1]:x}"


def keys_of(url: str) -> list[str]:
    env, lock_url = environment(), parse(url)
    from holdfast.engines.etcd.client import cluster_of
    from holdfast.engines.etcd.look import keys_of as look

    seen, _, _ = drive(look(cluster_of(env, lock_url.access), Queue(lock_url, None), env.monotonic() + SOON))
    return [one.key for one in seen]


def test_a_broken_lock_is_noticed_once(url: str, no_leases: None) -> None:
    """EQ4, ET8 (pitfall 7): the holder learns of it by its watch, once; its release leaves the next holder's lock."""
    lost: list[Any] = []
    hold = Lock(url, on_lost=lost.append).acquire()
    record = Lock(url).break_lock()
    assert record is not None
    assert record.pid == os.getpid()
    after = Lock(url).acquire(timeout=SOON)
    eventually(lambda: lost)
    assert hold.lost
    with pytest.raises(holdfast.LockLost, match="was deleted"):
        hold.ensure_held()
    with pytest.raises(holdfast.LockLost):
        hold.release()
    hold.release()
    assert len(lost) == 1
    assert after.token is not None
    assert hold.token is not None
    assert after.token > hold.token
    after.ensure_held()
    after.release()
    assert Lock(url).break_lock() is None


def test_the_slot_of_a_hold_whose_key_was_deleted_is_free(url: str, node: Node, no_leases: None) -> None:
    """ET10: the holder that lost it may not have released it yet."""
    hold = Semaphore(url, 1).acquire(timeout=SOON)
    node.ask("/v3/kv/deleterange", {"key": encoded(str(hold.record.fields["key"]))})
    Semaphore(url, 1).acquire(timeout=SOON).release()
    with pytest.raises(holdfast.LockLost):
        hold.release()


def test_a_hold_whose_slot_was_deleted_is_lost(url: str, node: Node, no_leases: None) -> None:
    """ET8: from then on, the next holder has its number. The end of the slot's previous holder is no loss."""
    slots, lost, got = Semaphore(url, 1), list[Any](), list[Any]()
    before = slots.acquire(timeout=SOON)
    waiter = Semaphore(url, 1, on_lost=lost.append)
    thread = threading.Thread(target=lambda: got.append(waiter.acquire(timeout=SOON)))
    thread.start()
    eventually(lambda: slots.status().waiters)
    before.release()
    thread.join()
    (hold,) = got
    assert hold._held._ours_since() == hold.token
    lock_url = parse(url)
    node.ask("/v3/kv/deleterange", {"key": encoded(f"{lock_url.slots}0")})
    eventually(lambda: lost)
    with pytest.raises(holdfast.LockLost, match="was deleted"):
        hold.release()
    assert len(lost) == 1


def test_a_release_finds_that_the_slot_is_another_holders(url: str, node: Node, no_leases: None) -> None:
    """ET8: before its watch has begun."""
    hold = Semaphore(url, 2).acquire(timeout=SOON)
    hold._held._job.stop()  # type: ignore[attr-defined]  # nobody watches: the release has to find out
    node.ask("/v3/kv/deleterange", {"key": encoded(f"{parse(url).slots}0")})
    after = Semaphore(url, 2).acquire(timeout=SOON)
    assert after.slot == hold.slot == 0
    with pytest.raises(holdfast.LockLost, match="its key on etcd was deleted"):
        hold.release()
    after.release()  # else LockLost


def test_a_slot_is_looked_at_and_broken_by_its_name(url: str, node: Node, no_leases: None) -> None:
    """By the name that a list shows. It cannot be acquired by that name, as the queue assigns the numbers."""
    slots = Semaphore(url, 3)
    first, second = slots.acquire(timeout=SOON), slots.acquire(timeout=SOON)
    listed, _ = drive(survey(environment(), parse(url, many=True)))
    assert [one.path for one in listed] == [f"{slots.path}#0", f"{slots.path}#1"]
    only, _ = drive(survey(environment(), parse(listed[1].path, many=True)))
    assert [one.record for one in only] == [listed[1].record]
    assert not drive(survey(environment(), parse(f"{slots.path}#2", many=True)))[0]
    slot = Lock(listed[1].path)
    assert slot.path == listed[1].path
    seen = slot.status()
    assert (seen.path, seen.record) == (listed[1].path, listed[1].record)
    assert not Lock(f"{slots.path}#2").status().locked
    assert not Lock(f"{slots.path}#7").status().locked
    assert drive(ENGINE.break_if(environment(), slot._request, lambda _: False)) is None
    assert slot.break_lock() == seen.record
    assert slot.break_lock() is None
    eventually(lambda: second.lost)
    with slots.acquire(timeout=SOON) as third:
        assert third.slot == 1
    first.ensure_held()
    first.release()
    with pytest.raises(holdfast.LockLost):
        second.release()
    for act in (slot.try_acquire, slot.wait):
        with pytest.raises(holdfast.InvalidPath, match=r"one slot of a semaphore.*--slots"):
            act()
    with pytest.raises(holdfast.InvalidPath, match="names one slot"):
        Semaphore(slot.path, 3)


def test_the_broken_slot_of_a_dead_holder_is_free_at_once(
    node: Node, peer: Callable[..., Peer], no_leases: None
) -> None:
    """Its lease is long, and nobody is there to end it."""
    url = f"etcd://{node.host}/tests/dead-slot?ttl=600"
    holder = peer("slots = holdfast.Semaphore(path, 1)\nhold = slots.acquire()\nsay('held')\nhear()", url)
    holder.expect("held")
    holder.destroy()
    record = Lock(f"{url}#0").break_lock()
    assert record is not None
    Semaphore(url, 1).acquire(timeout=SOON).release()
    node.ask("/v3/lease/revoke", {"ID": str(int(str(record.fields["lease"]), 16))})


def test_a_release_that_is_watched_does_not_look_like_a_loss(
    url: str, no_leases: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EH3: the watch sees the deletion of the key before the release has returned."""
    give_up = EtcdHold._give_up
    ours = agent(environment())

    def slow(held: EtcdHold) -> Generator[Wait, None, bool]:
        mine = yield from give_up(held)
        eventually(lambda: held._job not in ours._jobs, what="the watch's end")
        return mine

    told: list[str] = []
    monkeypatch.setattr(EtcdHold, "_give_up", slow)
    hold = Lock(url).acquire()
    with monkeypatch.context() as patched:
        patched.setattr("holdfast.engines.etcd.lock.call_aside", lambda _call, what: told.append(what))
        hold.release()
    assert not told


def test_a_release_leaves_a_key_with_another_revision(url: str, node: Node) -> None:
    """EQ4 (pitfall 7): the same key, put anew by another program, stays; the release reports the loss."""
    hold = Lock(url).acquire()
    hold._held._job.stop()  # type: ignore[attr-defined]  # nobody watches: the release has to find out
    key = encoded(hold.record.fields["key"])
    node.ask("/v3/kv/deleterange", {"key": key})
    node.ask("/v3/kv/put", {"key": key, "value": "eA=="})
    with pytest.raises(holdfast.LockLost, match="its key on etcd was deleted"):
        hold.release()
    eventually(lambda: node.ask("/v3/kv/range", {"key": key, "count_only": True}).get("count") == "1")  # type: ignore[union-attr]
    node.ask("/v3/kv/deleterange", {"key": key})


def test_a_dead_lease_counts_as_lost(url: str, node: Node) -> None:
    """EL2 (pitfall 3): an answer without seconds ends the lease, whatever time was left."""
    lost: list[Any] = []
    hold = Lock(url, stale_after=60, on_lost=lost.append).acquire()
    lease = hold._held.entrant.lease  # type: ignore[attr-defined]
    hold._held._job.stop()  # type: ignore[attr-defined]  # not by the watch
    node.ask("/v3/lease/revoke", {"ID": str(lease.id)})
    drive(lease.beat(environment().monotonic() + SOON))
    assert lease.is_over()
    assert "ended its lease" in lease.why_over
    assert hold.lost
    assert len(lost) == 1
    with pytest.raises(holdfast.LockLost, match="etcd has ended its lease"):
        hold.release()


def test_a_lease_counts_from_when_its_keep_alive_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """EL1 (pitfall 2): less the margin, however late the answer arrives."""
    slept = remote.slept()
    monkeypatch.setattr(remote, "slept", lambda: slept)

    class Clock:
        generation, now = 0, 100.0

        def monotonic(self) -> float:
            return self.now

    clock = Clock()

    class Late:
        def call(self, *_: object, **__: object) -> Generator[Wait, None, dict[str, str]]:
            clock.now += 4
            yield from ()
            return {"TTL": "10"}

    lease = Lease(clock, Late(), 10)  # type: ignore[arg-type]
    assert lease.is_over()
    drive(lease.grant(0))
    assert lease.lapses == 109
    drive(lease.beat(0))
    assert lease.lapses == 113
    clock.now = 112
    assert not lease.is_over()
    monkeypatch.setattr(remote, "slept", lambda: slept + 1)  # the machine slept for a second
    assert lease.is_over()
    drive(lease.beat(0))
    assert not lease.is_over()
    clock.now = 121
    assert lease.is_over()


def test_an_expired_lease_counts_as_lost(url: str) -> None:
    """ET7: by our own clock, without a request; the release reports the loss, once."""
    lost: list[Any] = []
    hold = Lock(url, on_lost=lost.append).acquire()
    lease = hold._held.entrant.lease  # type: ignore[attr-defined]
    lease._job.stop()
    lease.extend(remote.moment(environment()), 0)
    with pytest.raises(holdfast.LockLost, match="its lease ran out"):
        hold.release()
    assert len(lost) == 1
    assert hold.lost
    Lock(url).acquire(timeout=SOON).release()


def test_a_cancelled_task_leaves_the_queue_and_holds_nothing(url: str, no_leases: None) -> None:
    async def main() -> None:
        lock = AsyncLock(url.replace("ttl=2", "ttl=60"))
        async with lock as hold:
            assert await lock.try_acquire() is None
            waiter = asyncio.ensure_future(lock.acquire())
            after = asyncio.ensure_future(lock.acquire())
            while len((await lock.status()).waiters) < 2:
                await asyncio.sleep(0.001)
            since = time.monotonic()
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            while len((await lock.status()).waiters) > 1:
                await asyncio.sleep(0.001)
            assert time.monotonic() - since < 20, "the queue waits for the lease of one who has left"
        second = await asyncio.wait_for(after, SOON)
        assert second.token > hold.token
        await second.release()

    asyncio.run(main())


def test_a_caller_that_would_wait_for_itself_is_refused(url: str) -> None:
    """KN2."""
    lock = Lock(url)
    with lock:
        with pytest.raises(holdfast.WouldDeadlock):
            lock.acquire()
        with pytest.raises(holdfast.WouldDeadlock):
            lock.wait()
    slots = Semaphore(url, 2)
    with slots, slots:
        with pytest.raises(holdfast.WouldDeadlock, match="all 2 slots"):
            slots.acquire()
        with pytest.raises(holdfast.AcquireTimeout, match="slot 0"):
            slots.acquire(timeout=0.05)


def test_a_lock_and_a_semaphore_of_one_name_are_independent_for_an_owner(url: str, no_leases: None) -> None:
    """KN3: the semaphore's hold gives no share in the lock, and does not block it."""
    with Semaphore(url, 2, owner="me") as slot, Lock(url, owner="me") as lock:
        assert (slot.slot, lock.slot) == (0, None)
        assert Lock(url).try_acquire() is None
    with Semaphore(url, 1), Lock(url) as lock:
        lock.ensure_held()


def test_an_owner_does_not_queue_behind_itself(url: str, no_leases: None) -> None:
    """KN1."""
    lock = Lock(url, owner="me")
    with Lock(url) as other:
        got: list[Any] = []
        threads = [threading.Thread(target=lambda: got.append(lock.acquire(timeout=SOON))) for _ in range(4)]
        for thread in threads:
            thread.start()
        eventually(lambda: waiters(lock) == 1)
        other.release()
        for thread in threads:
            thread.join()
    assert len({hold.token for hold in got}) == 1
    for hold in got[1:]:
        hold.release()
    with lock as again:
        assert again.token == got[0].token
    assert lock.status().locked
    got[0].release()
    assert not lock.status().locked


def test_a_waiter_behind_its_owner_names_the_holder(url: str) -> None:
    """KN1: it has not contended itself, but its refusal names the holder all the same."""
    lock = Lock(url, owner="me")
    got: list[Any] = []
    with Lock(url, tag="the one") as other:
        first = threading.Thread(target=lambda: got.append(lock.acquire(timeout=SOON)))
        first.start()
        eventually(lambda: waiters(lock) == 1)
        with pytest.raises(holdfast.AcquireTimeout, match="the one"):
            lock.acquire(timeout=0.1)
        other.release()
    first.join()
    got[0].release()


def test_an_owner_that_gives_up_leaves_the_others_waiting(url: str) -> None:
    """KN1: the owner's next caller contends."""
    lock = Lock(url, owner="me")
    refused: list[Any] = []
    got: list[Any] = []

    def give_up() -> None:
        try:
            lock.acquire(timeout=0.3)
        except holdfast.AcquireTimeout as error:
            refused.append(error)

    with Lock(url) as other:
        first = threading.Thread(target=give_up)
        first.start()
        eventually(lambda: waiters(lock) == 1)
        second = threading.Thread(target=lambda: got.append(lock.acquire(timeout=SOON)))
        second.start()
        first.join()
        assert refused
        eventually(lambda: waiters(lock) == 1)
        other.release()
        second.join()
    got[0].release()


def test_two_holders_of_a_semaphore_have_two_slots(url: str, no_leases: None) -> None:
    """EQ5."""
    slots = Semaphore(url, 3)
    holds = [slots.acquire(timeout=SOON) for _ in range(3)]
    assert [hold.slot for hold in holds] == [0, 1, 2]
    assert slots.status().locked
    assert slots.try_acquire() is None
    assert not slots.wait(timeout=0)
    assert [holder.pid for holder in slots.status().holders] == [os.getpid()] * 3
    assert Lock(url).try_acquire().release() is None  # type: ignore[union-attr]  # a lock of that name is another one
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.append(slots.acquire(timeout=SOON))) for _ in range(2)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(slots.status().waiters) == 2)
    holds[1].release()
    eventually(lambda: len(got) == 1)
    assert got[0].slot == 1
    assert got[0].token > holds[2].token
    holds[2].release()
    holds[0].release()
    for thread in threads:
        thread.join()
    assert got[1].slot in (0, 2)
    for hold in got:
        hold.release()
    assert slots.status().free == 3


def test_a_slot_of_another_program_is_waited_for_until_the_timeout(url: str, node: Node) -> None:
    """ET5: the key at our slot's place names no holder, and has no lease that would end it."""
    slots, got, lock_url = Semaphore(url, 1), list[Any](), parse(url)
    foreign = encoded(f"{lock_url.slots}0")
    node.ask("/v3/kv/put", {"key": foreign, "value": ""})
    for timeout in (0, 0.1):
        with pytest.raises(holdfast.AcquireTimeout, match="counts as held"):
            slots.acquire(timeout=timeout)
    assert not slots.wait(timeout=0)
    assert not slots.wait(timeout=0.1)
    status = slots.status()
    assert (status.locked, status.holders[0].pid) == (True, None)
    assert status[0].liveness is holdfast.Liveness.UNKNOWN
    assert f"etcdctl del '{lock_url.slots}0'" in status[0].evidence.text
    thread = threading.Thread(target=lambda: got.append(slots.acquire(timeout=30)))
    onlooker = threading.Thread(target=lambda: got.append(slots.wait(timeout=30)))
    thread.start()
    eventually(lambda: waiters(slots) == 1)
    onlooker.start()
    requests, call = [], Cluster.call

    def counted(self: Cluster, path: str, *arguments: Any, **options: Any) -> Any:
        requests.append(path)
        return call(self, path, *arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Cluster, "call", counted)
        eventually(lambda: requests.count("/v3/lease/keepalive") >= 1)
        assert len([path for path in requests if path.startswith("/v3/kv/")]) <= 2, "it polls"
    node.ask("/v3/kv/deleterange", {"key": foreign})
    thread.join(SOON)
    (hold,) = [one for one in got if one is not True]
    assert hold.slot == 0
    hold.release()
    onlooker.join(SOON)
    assert len(got) == 2


def test_callers_that_disagree_about_the_slots_wait_until_their_timeout(url: str) -> None:
    """ET5: the caller whose turn it is finds its only slot taken by a later one that assumes more slots."""
    url = url.replace("ttl=2", "ttl=30")  # the shortest lease may expire on a busy machine
    holds = [Semaphore(url, 2).acquire(timeout=SOON) for _ in range(2)]
    got: list[Any] = []

    def contend() -> None:
        try:
            got.append(Semaphore(url, 1).acquire(timeout=2.5))
        except holdfast.AcquireTimeout as error:
            got.append(error)

    thread = threading.Thread(target=contend)
    thread.start()
    eventually(lambda: waiters(Semaphore(url, 2)) == 1)
    more = Semaphore(url, 4)
    holds.append(more.acquire(timeout=SOON))
    holds[0].release()
    holds.append(more.acquire(timeout=SOON))
    assert holds[-1].slot == 0
    holds[1].release()  # now it is the turn of the caller that assumes one slot
    thread.join()
    assert isinstance(got[0], holdfast.AcquireTimeout), got
    eventually(lambda: more.status().free == 2)  # its key goes in the background
    for hold in holds[2:]:
        hold.release()
    with Semaphore(url, 1).acquire(timeout=SOON) as hold:
        assert hold.slot == 0


def test_a_holder_of_a_deeper_name_is_not_waited_for(url: str) -> None:
    """EU2: a lock whose keys are in the same range counts neither as a holder nor as an earlier waiter."""
    deeper = Lock(url.replace("?", "/deeper?"))
    with deeper, Lock(url) as hold:
        assert Lock(url).status().locked
        got: list[Any] = []
        thread = waiting(Lock(url), got)
        hold.release()
        thread.join()
        got[0].release()
        assert not Lock(url).status().locked
        assert deeper.status().locked


def test_a_listing_separates_locks_and_misses_none(url: str) -> None:
    """EO1: all locks below a name, from one read, with paths as they can be typed."""
    base = url.replace("?", "/x?")
    one, two = (Lock(base.replace("/x?", f"/x/{name}?"), tag=name) for name in ("one", "t wo"))
    slots = Semaphore(base.replace("/x?", "/x/three?"), 2)
    env = environment()
    with one, two, slots as hold:
        got: list[Any] = []
        thread = waiting(one, got)
        found = drive(ENGINE.survey(env, base))
        assert [status.path for status in found] == sorted([one.path, two.path, f"{slots.path}#0"])
        assert [status.path for status in found if status.waiters] == [one.path]
        assert {status.holder.tag for status in found if status.holder} == {"one", "t wo", None}
        assert hold.slot == 0
        assert Lock(two.path).status().locked
    thread.join()
    got[0].release()
    assert drive(ENGINE.survey(env, base)) == ()


def test_a_name_of_another_program_that_is_no_text_does_not_fail_a_listing(url: str, node: Node) -> None:
    lock_url = parse(url)
    key = encoded(lock_url.base.encode() + b"\xff/abc")
    node.ask("/v3/kv/put", {"key": key, "value": ""})
    (status,) = drive(ENGINE.survey(environment(), url))
    assert status.path == Lock(url).path.replace("?", "/%FF?")
    with pytest.raises(holdfast.InvalidPath, match="UTF-8"):
        Lock(status.path)
    node.ask("/v3/kv/deleterange", {"key": key})


def test_a_follower_is_told_of_every_change(url: str) -> None:
    env, told = environment(), []
    steps = ENGINE.follow(env, url, lambda statuses: told.append([status.path for status in statuses]))
    stop = threading.Event()

    def run() -> None:
        from holdfast._drivers.sync import wait_for

        while not stop.is_set():
            wait = next(steps)
            wait_for(wait.replaced(deadline=min(wait.deadline, time.monotonic() + 0.05)))
        steps.close()

    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: told == [[]])
    with Lock(url) as hold:
        eventually(lambda: told[-1] == [hold.path])
    eventually(lambda: told[-1] == [])
    stop.set()
    thread.join()


def test_a_guarded_transaction_is_refused_after_the_loss(url: str, node: Node) -> None:
    hold = Lock(url).acquire()
    write = {
        "compare": [guard(hold.record)],
        "success": [{"request_put": {"key": encoded(f"result of {url}"), "value": encoded("1")}}],
    }
    assert json.loads(json.dumps(write)) == write
    assert node.ask("/v3/kv/txn", write)["succeeded"]  # type: ignore[index]
    Lock(url).break_lock()
    assert "succeeded" not in node.ask("/v3/kv/txn", write)  # type: ignore[operator]
    with pytest.raises(holdfast.LockLost):
        hold.release()
    with pytest.raises(ValueError, match="lock on etcd"):
        guard(holdfast.Record("sema", {}))


def test_a_key_without_a_lease_is_reported_as_such(url: str, node: Node) -> None:
    """EO1: no lease ends it, so nothing shows that its holder lives."""
    key = f"{parse(url).base}77"
    node.ask("/v3/kv/put", {"key": encoded(key), "value": ""})
    status = Lock(url).status()
    assert (status.locked, status.liveness) == (True, holdfast.Liveness.UNKNOWN)
    assert status.record is not None
    assert "lease" not in status.record.fields
    assert "lease ends" not in status.reason
    with pytest.raises(holdfast.AcquireTimeout, match=rf"has no lease.*etcdctl del '{key}'"):
        Lock(url).acquire(timeout=0.05)
    assert Lock(url).break_lock() is not None
    Lock(url).acquire(timeout=SOON).release()


def test_a_key_of_another_program_is_not_overtaken(url: str, node: Node) -> None:
    """EU2: etcd's own mutex has the same keys; a key with any value counts as a holder."""
    lock_url = parse(url)
    lease = node.ask("/v3/lease/grant", {"TTL": "60"})
    assert lease is not None
    key = f"{lock_url.base}{int(lease['ID']):x}"
    node.ask("/v3/kv/put", {"key": encoded(key), "value": "", "lease": lease["ID"]})
    with pytest.raises(holdfast.AcquireTimeout, match="Wait until it is released; if nobody uses it"):
        Lock(url).acquire(timeout=0.05)
    assert Lock(url).status().record.legible is False  # type: ignore[union-attr]
    node.ask("/v3/lease/revoke", {"ID": lease["ID"]})
    Lock(url).acquire(timeout=SOON).release()


@pytest.mark.parametrize("value", ["[" * 100_000, f'{{"since": {"9" * 309}}}'], ids=["deep", "long"])
def test_the_value_of_another_programs_key_fails_neither_a_look_nor_a_wait(url: str, node: Node, value: str) -> None:
    key = f"{parse(url).base}abc"
    node.ask("/v3/kv/put", {"key": encoded(key), "value": encoded(value)})
    assert Lock(url).status().locked
    for timeout in (0, 0.05):
        with pytest.raises(holdfast.AcquireTimeout):
            Lock(url).acquire(timeout=timeout)
    node.ask("/v3/kv/deleterange", {"key": encoded(key)})


def test_a_number_of_slots_that_no_semaphore_has_is_not_believed(url: str, node: Node) -> None:
    """One that another program has written: a listing would never end."""
    lock_url = parse(url)
    key = f"{lock_url.slots}/abc"
    for slots in (10**9, -1):
        node.ask("/v3/kv/put", {"key": encoded(key), "value": encoded(f'{{"slots": {slots}}}')})
        (status,) = drive(ENGINE.survey(environment(), url))
        assert status.path == f"{Lock(url).path}#0"
    node.ask("/v3/kv/deleterange", {"key": encoded(key)})


def test_a_key_that_is_almost_a_slot_takes_none(url: str, node: Node) -> None:
    """A number that is too long to be read, and one with a zero before it."""
    lock_url = parse(url)
    for number in ("00", "1" * 5000):
        node.ask("/v3/kv/put", {"key": encoded(f"{lock_url.slots}{number}"), "value": ""})
    with Semaphore(url, 1).acquire(timeout=SOON) as hold:
        assert hold.slot == 0
    node.ask("/v3/kv/deleterange", {"key": encoded(lock_url.slots), "range_end": encoded(f"{lock_url.slots}:")})


def test_a_wait_given_up_last_leaves_no_lease_after_the_process(
    url: str, node: Node, peer: Callable[..., Peer]
) -> None:
    """EL4, EG5: at exit, the process sends pending deletions and releases its locks."""
    other = peer(
        """
        hold = Lock(path).acquire()
        try:
            Lock(path).acquire(timeout=0.05)
        except holdfast.AcquireTimeout:
            say("done")
        """,
        url,
    )
    before = leases(node)
    other.expect("done")
    other.finish()
    assert not Lock(url).status().locked
    eventually(lambda: leases(node) <= before)


def test_each_event_comes_once_and_names_the_right_holder(url: str) -> None:
    told: list[Any] = []
    waits = threading.Event()

    def tell(event: Any) -> None:
        told.append(event)
        waits.set()

    with Lock(url, tag="a"), pytest.raises(holdfast.AcquireCancelled):
        Lock(url, on_event=tell).acquire(timeout=30, cancel=waits)  # until it has reported that it waits
    eventually(lambda: not Lock(url).status().locked)  # an abandoned queue entry is removed a moment later, and first
    Lock(url, on_event=told.append).acquire().release()
    assert [event.kind for event in told] == ["waiting", "gave-up", "acquired", "released"]
    assert told[0].holder.tag == "a"
    assert told[1].holder.tag == "a"


def test_etcds_own_command_and_holdfast_exclude_each_other(url: str, node: Node) -> None:
    """EU2: `etcdctl lock` and Go's `concurrency.Mutex` join the same queue, given the same prefix."""
    if shutil.which("etcdctl") is None:
        pytest.skip("etcdctl is not installed; Debian package: etcd-client")
    lock = Lock(f"{url}&prefix=")
    name = parse(url).name

    def command() -> subprocess.Popen[bytes]:
        words = ["etcdctl", "--endpoints", node.host, "lock", name, "--ttl", "2"]
        environ = {**os.environ, "ETCDCTL_API": "3"}
        return subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL)

    with command() as other:
        eventually(lambda: lock.status().locked)
        assert lock.try_acquire() is None
        got: list[Any] = []
        thread = waiting(lock, got)
        other.terminate()
        thread.join(SOON)
    with command() as other:
        eventually(lambda: lock.status().waiters)
        assert other.poll() is None
        got[0].release()
        eventually(lambda: lock.status().locked and lock.status().record.fields["create_revision"] > got[0].token)
        other.terminate()
    lock.acquire(timeout=SOON).release()
