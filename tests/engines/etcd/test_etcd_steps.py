"""Acquisitions that are stopped at each step, and the state that a fork leaves to the child."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Generator
from typing import Any

import pytest

import holdfast
from engines.etcd.servers import Node, leases
from holdfast import AsyncLock, Lock, Semaphore
from holdfast._core.wait import Signal, Wait
from holdfast._drivers.agent import Job
from holdfast._drivers.sync import caller, drive, wait_for
from holdfast._platform import environment
from holdfast.engines.connections import Pool
from holdfast.engines.etcd import client as etcd_client
from holdfast.engines.etcd import http as etcd_http
from holdfast.engines.etcd import lock as etcd_lock
from holdfast.engines.etcd.client import Turnstile
from holdfast.engines.etcd.queue import Lease
from process.support import assert_that_a_child_ends, descriptors, eventually
from unit.stepping import failing

SOON = 5.0


def stop_at(node: Node, lock: Any, number: int) -> bool:
    """Acquire, but close the generator at this wait; False if it has fewer. No answer arrives before a wait."""
    steps = lock._engine.acquire(environment(), lock._requests, 5, caller())
    try:
        for step in range(number + 1):
            with node.paused():
                wait = next(steps)
            if step < number:
                wait_for(wait)
    except StopIteration as done:
        done.value.held.release()
        return False
    steps.close()
    return True


def clean(node: Node, lock: Any) -> None:
    """Soon, nobody holds or waits: the agent tells the server."""

    def nobody() -> bool:
        status = lock.status()
        status = status[0] if isinstance(status, tuple) else status
        return not status.locked and not status.waiters

    eventually(nobody, what="the end of what is to be told")
    assert not [held for held in environment().holds.values() if held.waits]


@pytest.mark.parametrize("kind", ["lock", "semaphore"])
def test_an_acquisition_stopped_anywhere_leaves_no_key(url: str, node: Node, no_leases: None, kind: str) -> None:
    """ET3, EL3: at any of its waits."""
    lock: Any = Lock(url) if kind == "lock" else Semaphore(url, 2)
    lock.acquire(timeout=SOON).release()
    clean(node, lock)
    before = open_without_idle()
    number = 0
    while stop_at(node, lock, number):
        clean(node, lock)
        number += 1
    assert number >= 2  # the lease, and the key
    clean(node, lock)
    eventually(lambda: open_without_idle() <= before, what="the end of all connections")


def test_a_wait_stopped_anywhere_leaves_no_place_in_the_queue(url: str, node: Node, no_leases: None) -> None:
    """ET3: behind a holder; the next waiter still gets in."""
    lock = Lock(url)
    number, went_on = 0, True
    with lock as hold:
        while went_on and number < 12:
            steps = lock._engine.acquire(environment(), lock._requests, 5, (object(),))
            try:
                for _ in range(number):
                    wait = next(steps)
                    wait_for(wait.replaced(deadline=min(wait.deadline, environment().monotonic() + 0.05)))
                next(steps)
            except StopIteration:
                went_on = False
            steps.close()
            number += 1
            eventually(lambda: not lock.status().waiters)
        hold.ensure_held()
    lock.acquire(timeout=SOON).release()


def test_ctrl_c_at_any_wait_leaves_no_hold(url: str, node: Node, no_leases: None, monkeypatch: Any) -> None:
    """ET3: an exception thrown at the k-th wait, as by a signal handler, comes out, and no lock is held."""
    from holdfast._drivers import sync

    lock = Lock(url)
    real = sync.wait_for

    class Interrupt(BaseException):
        pass

    for number in range(1, 8):
        left = [number]

        def interrupted(wait: Wait, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0] and threading.current_thread() is threading.main_thread():
                raise Interrupt
            real(wait)

        monkeypatch.setattr(sync, "wait_for", interrupted)
        try:
            hold = lock.acquire(timeout=SOON)
        except Interrupt:
            hold = None
        finally:
            monkeypatch.setattr(sync, "wait_for", real)
        if hold is not None:
            hold.release()
        clean(node, lock)


def test_a_task_cancelled_at_any_wait_holds_nothing(url: str, node: Node, no_leases: None) -> None:
    """ET3: with the asyncio driver, uncontended and behind a holder."""

    async def attempt(lock: AsyncLock, number: int) -> bool:
        task = asyncio.ensure_future(lock.acquire())
        for _ in range(number):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await (await task).release()
            return False
        except asyncio.CancelledError:
            return True

    async def main() -> None:
        lock = AsyncLock(url)
        for number in range(0, 30, 3):
            await attempt(lock, number)
        async with lock as hold:
            for number in range(0, 30, 3):
                assert await attempt(lock, number)
            await hold.release()

    asyncio.run(main())
    clean(node, Lock(url))


def test_ctrl_c_as_a_lease_is_given_up_leaves_no_key(
    url: str, node: Node, no_leases: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ET3, J3: keep-alives stop by themselves, so the key goes with the lease; a second attempt completes the end."""
    real = Job.stop

    def interrupted(_job: Job) -> None:
        monkeypatch.setattr(Job, "stop", real)
        raise KeyboardInterrupt

    with Lock(url):
        monkeypatch.setattr(Job, "stop", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Lock(url).acquire(timeout=0.1)
    clean(node, Lock(url))
    Lock(url).acquire(timeout=SOON).release()


@pytest.mark.parametrize("step", ["leave", "end"])
def test_ctrl_c_before_a_lease_is_given_up_leaves_no_key(
    url: str, node: Node, no_leases: None, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """ET3, J3: if it is interrupted before it begins, undoing the operation gives the lease up."""
    owner: Any = Turnstile if step == "leave" else Lease
    real: Any = getattr(owner, step)
    calls = []

    def interrupted(*words: Any) -> None:
        calls.append(words)
        if len(calls) == (2 if step == "leave" else 1):  # it leaves once as it begins to wait
            raise KeyboardInterrupt
        real(*words)

    with Lock(url), monkeypatch.context() as changed:
        changed.setattr(owner, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            Lock(url).acquire(timeout=0.1)
    clean(node, Lock(url))
    Lock(url).acquire(timeout=SOON).release()


def test_an_interrupted_end_of_a_lease_is_begun_anew(
    url: str, node: Node, no_leases: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J3: also for a hold whose release was interrupted: the mark that it was done changes last."""
    hold = Lock(url).acquire(timeout=SOON)
    lease = hold._held.entrant.lease  # type: ignore[attr-defined]
    with monkeypatch.context() as changed:
        changed.setattr(Job, "stop", failing(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            lease.end()
    lease.end()
    eventually(lambda: not Lock(url).status().locked, 1.0)
    with pytest.raises(holdfast.LockLost):
        hold.release()


def test_a_release_that_is_interrupted_frees_the_lock(url: str, node: Node, no_leases: None) -> None:
    """EH2, EL4: its generator is closed at the first wait, and the agent tells the server."""
    hold = Lock(url).acquire()
    steps: Generator[Wait, None, None] = hold._held.releasing()
    try:
        next(steps)
    except StopIteration:
        pass
    steps.close()
    Lock(url).acquire(timeout=SOON).release()
    hold.release()


def test_a_child_neither_releases_nor_disturbs_nor_inherits_its_parents_locks(url: str, node: Node) -> None:
    """EW2: the child holds nothing, the parent's lease goes on, and the child can acquire locks of its own."""
    before = leases(node)
    lock = Lock(url)
    hold = lock.acquire()
    got: list[Any] = []
    waiter = threading.Thread(target=lambda: got.append(Lock(url).acquire()))
    waiter.start()
    eventually(lambda: len(lock.status().waiters) == 1)
    watching = [fd for fd, target in descriptors().items() if target.startswith("socket:")]
    assert watching
    child = os.fork()
    if child == 0:
        status = 1
        try:
            inherited = {fd for fd, target in descriptors().items() if target.startswith("socket:")}
            assert not inherited & set(watching)
            hold.release()
            with pytest.raises(holdfast.NotHeld):
                hold.ensure_held()
            assert lock.try_acquire() is None
            with Lock(url.replace("?", "/child?")) as own:
                own.ensure_held()
            import gc

            gc.collect()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    hold.ensure_held()
    hold.release()
    waiter.join()
    got[0].ensure_held()
    got[0].release()
    eventually(lambda: leases(node) <= before)


def test_a_child_forked_during_an_acquisition_does_not_go_on_waiting(url: str) -> None:
    """EW2, EG4: forked at any wait of a thread; the child's copy ends without a request to the server."""
    lock = Lock(url)
    steps = lock._engine.acquire(environment(), lock._requests, 5, caller())
    result = None
    children = []
    while result is None:
        try:
            wait = next(steps)
        except StopIteration as done:
            result = done.value
            break
        child = os.fork()
        if child == 0:
            try:
                steps.close()
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
        wait_for(wait)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    result.held.check()
    assert not result.held.lost
    drive(result.held.releasing())


def test_a_child_forked_before_its_turn_to_queue_up_ends_the_wait(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ET6: as by a signal handler; nobody in the child lets it through."""
    monkeypatch.setattr(etcd_lock, "RECHECK", 0.05)
    lock = Lock(url)
    attempt = etcd_lock.AcquireAttempt(environment(), lock._requests, None, caller())
    turnstile, before = attempt.cluster.turnstile, [Signal() for _ in range(etcd_client._MOST_ENTERING)]
    for one in before:
        turnstile.admits(attempt.queue.base, one)
    steps = attempt.acquire()
    pending = next(steps)
    assert_that_a_child_ends(steps, pending)
    for one in before:
        turnstile.leave(attempt.queue.base, one)
    drive(drive(steps).held.releasing())


def open_without_idle() -> int:
    from holdfast.engines.etcd import client as etcd_client

    for cluster in etcd_client._clusters.values():
        cluster._pool.close_all(cluster.env)
    return len(descriptors())


@pytest.mark.parametrize("step", ["opened", "connected", "taken", "made"])
def test_ctrl_c_between_two_steps_leaves_no_socket(
    url: str, node: Node, no_leases: None, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """EW5, J1: a connection without an owner is closed."""
    Lock(url).acquire(timeout=SOON).release()
    clean(node, Lock(url))
    before = open_without_idle()
    if step == "taken":
        Lock(url).status()
    place, name = {
        "opened": (type(environment()), "take"),
        "connected": (etcd_client, "connect"),
        "taken": (Pool, "take"),
        "made": (etcd_http, "_begin"),
    }[step]
    real: Any = getattr(place, name)
    here = threading.get_ident()

    def steps(*words: Any) -> Any:
        yield from real(*words)
        raise KeyboardInterrupt

    def interrupted(*words: Any) -> Any:
        if threading.get_ident() != here:
            return real(*words)
        if step == "connected":
            return steps(*words)
        real(*words)
        raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        changed.setattr(place, name, interrupted)
        for _ in range(50):  # the agent may have left a connection, in which case none is opened
            if step != "taken":
                open_without_idle()
            try:
                Lock(url).status()
            except KeyboardInterrupt:
                break
        else:
            pytest.fail("it was not interrupted")
    eventually(lambda: open_without_idle() <= before, what="the end of the socket")
    Lock(url).acquire(timeout=SOON).release()
