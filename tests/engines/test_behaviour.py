"""The promises of every engine, with both drivers."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from faces import Tasks, Threads
from holdfast import AsyncLock, events, plugins
from holdfast._core import wait
from holdfast._drivers.sync import drive
from holdfast._platform import environment
from holdfast.engines import engine_of, remote
from holdfast.engines.etcd.lock import EtcdHold
from holdfast.engines.postgresql.lock import PostgresqlHold
from holdfast.lock import announce
from process.support import Peer, assert_that_a_child_ends, eventually
from unit.ctrl_c import drop_statements


def twice(face: Any, url: str, **options: Any) -> None:
    """Acquire it twice in one thread or task."""
    with face.Lock(url, **options) as first, face.Lock(url, **options) as second:
        assert first.token == second.token


@pytest.fixture(params=[Threads, Tasks], ids=["threads", "tasks"])
def face(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = request.param()
    yield made
    made.close()
    eventually(lambda: not [held for held in environment().holds.values() if held.waits], what="the end of all holds")


def test_one_holder_is_inside_at_a_time(prefix: str, face: Any) -> None:
    lock = face.Lock(prefix + "a", tag="deploy v1")
    hold = lock.acquire(timeout=10)
    assert face.Lock(prefix + "a").try_acquire() is None
    with pytest.raises(holdfast.AcquireTimeout, match="deploy v1") as refused:
        face.Lock(prefix + "a").acquire(timeout=0.05)
    assert refused.value.holder.pid == os.getpid()
    hold.release()
    other = eventually(lambda: face.Lock(prefix + "a").try_acquire())  # the abandoned queue entry goes by itself
    other.ensure_held()
    other.release()


def test_a_lock_does_not_exclude_one_of_another_name(prefix: str, face: Any) -> None:
    one, other = (face.Lock(prefix + name).acquire(timeout=10) for name in "ab")
    one.release()
    other.ensure_held()
    other.release()


def test_each_token_is_higher_than_the_one_before(prefix: str, face: Any) -> None:
    tokens = []
    for _ in range(5):
        hold = face.Lock(prefix + "a").acquire(timeout=10)
        tokens.append(hold.token)
        hold.release()
    assert tokens == sorted(set(tokens))


def test_a_release_wakes_a_waiter(prefix: str, face: Any) -> None:
    hold = face.Lock(prefix + "a").acquire(timeout=10)
    waiter = face.begin(face.Lock(prefix + "a", tag="next one").acquire)
    eventually(lambda: face.Lock(prefix + "a").status().waiters)
    assert not waiter.done
    hold.release()
    waiter.result().release()


def test_waiters_come_in_in_order(prefix: str, face: Any) -> None:
    hold = face.Lock(prefix + "a").acquire(timeout=10)
    order: list[str] = []
    waiters = []
    for number in range(5):
        lock = face.Lock(prefix + "a", tag=str(number))
        waiters.append(face.begin(lock.acquire, timeout=20))
        eventually(lambda number=number: len(face.Lock(prefix + "a").status().waiters) == number + 1)  # type: ignore[misc]
    shown = face.Lock(prefix + "a").status().waiters
    assert [(waiter.position, waiter.tag, waiter.pid) for waiter in shown] == [
        (number + 1, str(number), os.getpid()) for number in range(5)
    ]
    hold.release()
    for waiter in waiters:
        got = waiter.result()
        order.append(got.record.tag)
        got.release()
    assert order == ["0", "1", "2", "3", "4"]


def test_a_waiter_that_times_out_leaves_the_queue(prefix: str, face: Any) -> None:
    hold = face.Lock(prefix + "a").acquire(timeout=10)
    for _ in range(3):
        with pytest.raises(holdfast.AcquireTimeout):
            face.Lock(prefix + "a").acquire(timeout=0.1)
    # A slow server is told in the background.
    eventually(lambda: face.Lock(prefix + "a").status().waiters == (), what="the end of all waits")
    hold.release()
    face.Lock(prefix + "a").acquire(timeout=1).release()


def test_simultaneous_timeouts_do_not_search_all_installed_packages(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search took most of the time; it must not be repeated for each timeout."""
    searched: list[str] = []
    real = plugins._entries

    def counted(group: str) -> Any:
        searched.append(group)
        return real(group)

    async def main() -> None:
        async def give_up() -> None:
            with pytest.raises(holdfast.AcquireTimeout, match="held by process"):
                await holdfast.AsyncLock(prefix + "a").acquire(timeout=0.05)

        async with holdfast.AsyncLock(prefix + "a"):
            await give_up()
            monkeypatch.setattr(plugins, "_entries", counted)
            await asyncio.gather(*[give_up() for _ in range(10)])

    asyncio.run(main())
    assert not searched


def test_a_cancelled_task_leaves_the_queue_and_holds_nothing(prefix: str) -> None:
    face = Tasks()
    try:
        hold = face.Lock(prefix + "a").acquire(timeout=10)
        waiter = face.begin(face.Lock(prefix + "a").acquire)
        eventually(lambda: face.Lock(prefix + "a").status().waiters)
        waiter._future.cancel()
        eventually(lambda: not face.Lock(prefix + "a").status().waiters)
        hold.release()
        face.Lock(prefix + "a").acquire(timeout=1).release()
    finally:
        face.close()


def test_the_status_names_the_holder(prefix: str, face: Any) -> None:
    lock = face.Lock(prefix + "a", tag="deploy v1")
    assert not lock.status().locked
    hold = lock.acquire(timeout=10)
    status = lock.status()
    assert status.locked
    assert not status.stale
    assert status.liveness is holdfast.Liveness.ALIVE
    assert status.evidence.source == "server"
    assert (status.holder.pid, status.holder.tag) == (os.getpid(), "deploy v1")
    assert status.holder.host == environment().identity().host
    assert abs(status.holder.since - environment().time()) < 10
    assert status.record == hold.record
    assert status.path == lock.path == hold.path
    hold.release()
    assert lock.status().holder is None


def test_waiting_for_a_free_lock_does_not_acquire_it(prefix: str, face: Any) -> None:
    lock = face.Lock(prefix + "a")
    assert lock.wait(timeout=0)
    hold = lock.acquire(timeout=10)
    assert not lock.wait(timeout=0)
    assert not lock.wait(timeout=0.05)
    onlookers = [face.begin(face.Lock(prefix + "a").wait, timeout=20) for _ in range(3)]
    contender = face.begin(face.Lock(prefix + "a").acquire, timeout=20)
    eventually(lambda: len([w for w in lock.status().waiters if w.position]) == 1)
    assert not any(onlooker.done for onlooker in onlookers)
    hold.release()
    contender.result().release()
    assert [onlooker.result() for onlooker in onlookers] == [True] * 3
    assert not lock.status().locked


def test_waiting_for_a_free_lock_makes_no_events(prefix: str, face: Any) -> None:
    """A caller that only waits is not one of the contenders that metrics count."""
    heard: list[events.Event] = []
    lock = face.Lock(prefix + "a", on_event=heard.append)
    with face.Lock(prefix + "a"):
        assert not lock.wait(timeout=0)
        assert not lock.wait(timeout=0.05)
    assert lock.wait(timeout=10)
    assert heard == []


def test_a_caller_that_would_wait_for_itself_is_refused(prefix: str, face: Any) -> None:
    with pytest.raises(holdfast.WouldDeadlock, match="owner="):
        twice(face, prefix + "a")
    with pytest.raises(holdfast.AcquireTimeout):
        twice(face, prefix + "a", timeout=0.05)
    eventually(lambda: not face.Lock(prefix + "a").status().locked)  # on etcd, an abandoned queue entry goes soon


def test_a_caller_behind_its_owner_that_would_wait_for_itself_is_refused(prefix: str, face: Any) -> None:
    """KN2: it holds the lock for another owner, and a caller of this owner waits for that already."""
    hold = face.Lock(prefix + "a", owner="me").acquire(timeout=10)
    waiter = face.begin(face.Lock(prefix + "a", owner="you").acquire)
    eventually(lambda: face.Lock(prefix + "a").status().waiters)
    with pytest.raises(holdfast.WouldDeadlock, match="owner="):
        face.Lock(prefix + "a", owner="you").acquire()
    hold.release()
    waiter.result().release()


@pytest.mark.needs("flock")
@pytest.mark.parametrize("protocol", ["sema", pytest.param("flock", marks=pytest.mark.needs("linux"))])
def test_a_holder_may_wait_for_a_lock_on_a_file_that_is_held(prefix: str, face: Any, protocol: str, shm: Path) -> None:
    """A look at the file's lock shows that this process holds a different one."""
    lock = face.Lock(shm / "l", protocol=protocol, owner="me")
    with face.Lock(prefix + "a"), face.Lock(shm / "l", protocol=protocol, owner="another"):
        with pytest.raises(holdfast.AcquireTimeout, match="This very process holds it"):
            lock.acquire(timeout=0.05)
        with pytest.raises(holdfast.WouldDeadlock):
            lock.acquire()


def test_another_spelling_of_a_url_is_the_same_lock(prefix: str, face: Any) -> None:
    """KN3: to an owner, to a caller that would wait for itself, and in a list of several locks."""
    before, hash_, after = prefix.partition("#")
    parameter = "connect_timeout=5" if hash_ else "ttl=20"
    joint = "&" if "?" in before else "?"
    other = f"{before}{joint}{parameter}#{after}a" if hash_ else f"{before}a?{parameter}"
    with face.Lock(prefix + "a", owner="me") as first:
        shared = face.Lock(other, owner="me").acquire(timeout=10)
        assert shared.token == first.token
        shared.release()
    with face.Lock(prefix + "a"), pytest.raises(holdfast.WouldDeadlock):
        twice(face, other)
    with pytest.raises(ValueError, match="in common"):
        holdfast.acquire_all([holdfast.Lock(prefix + "a"), holdfast.Lock(other)])


def test_a_break_ends_only_the_hold_it_has_seen(prefix: str) -> None:
    """The lock changes hands between the look and the break; the next holder keeps it."""
    lock, env = holdfast.Lock(prefix + "a"), environment()
    first = lock.acquire(timeout=10)
    later: list[holdfast.Hold] = []
    seen: list[holdfast.Record] = []

    def agreed(record: holdfast.Record) -> bool:
        seen.append(record)
        if not later:
            first.release()
            later.append(lock.acquire(timeout=10))
        return len(seen) == 1

    engine = engine_of(prefix + "a")
    assert drive(engine.break_if(env, lock._request, agreed)) is None
    later[0].ensure_held()
    broken = drive(engine.break_if(env, lock._request, lambda record: record.fields["token"] == later[0].token))
    assert broken is not None
    eventually(lambda: later[0].lost)
    with pytest.raises(holdfast.LockLost):
        later[0].release()


def test_an_owner_does_not_wait_for_itself(prefix: str, face: Any) -> None:
    twice(face, prefix + "a", owner="me")
    first = face.Lock(prefix + "a", owner="me").acquire(timeout=10)
    assert face.Lock(prefix + "a", owner="me").wait()
    assert not face.Lock(prefix + "a", owner="you").wait(timeout=0)
    second = face.Lock(prefix + "a", owner="me").acquire(timeout=0)
    assert face.Lock(prefix + "a", owner="you").try_acquire() is None
    first.release()
    second.ensure_held()
    assert face.Lock(prefix + "a").try_acquire() is None
    second.release()
    face.Lock(prefix + "a").acquire(timeout=0).release()


def test_an_owner_does_not_queue_behind_itself(prefix: str, face: Any) -> None:
    """Two calls of one owner wait; the first that gets in lets the other in too."""
    hold = face.Lock(prefix + "a").acquire(timeout=10)
    waiters = [face.begin(face.Lock(prefix + "a", owner="me").acquire) for _ in range(2)]
    eventually(lambda: face.Lock(prefix + "a").status().waiters)  # on etcd one of them stands for both
    hold.release()
    got = [waiter.result() for waiter in waiters]
    assert got[0].token == got[1].token
    for each in got:
        each.release()
    eventually(lambda: not face.Lock(prefix + "a").status().locked)  # the second has left the queue meanwhile


def test_a_child_forked_in_a_wait_behind_its_owner_ends_the_wait(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """KN1: as by a signal handler; the parent's release wakes nobody in the child."""
    monkeypatch.setattr(remote, "RECHECK", 0.05, raising=False)
    monkeypatch.setattr(wait, "_NOTICE_AFTER", 1000.0)
    lock = holdfast.Lock(prefix + "a", owner="me")
    hold = holdfast.Lock(prefix + "a").acquire(timeout=10)
    waiter = threading.Thread(target=lambda: lock.acquire().release())
    waiter.start()
    eventually(lambda: lock.status().waiters)
    steps = lock._engine.acquire(environment(), lock._requests, None, (object(),))
    pending = next(steps)
    assert_that_a_child_ends(steps, pending)
    steps.close()
    hold.release()
    waiter.join()


class Line(list[Any]):
    """The queue of one owner's callers, with a signal during its first change by the method of that name."""

    def __init__(self, change: str) -> None:
        self._change = change

    def _changed(self, change: str) -> None:
        if self._change == change:
            self._change = ""
            raise KeyboardInterrupt

    def append(self, one: Any) -> None:
        super().append(one)
        self._changed("append")

    def remove(self, one: Any) -> None:
        super().remove(one)
        self._changed("remove")


class Lines(dict[Any, Any]):
    def __init__(self, change: str) -> None:
        self._made = Line(change)

    def setdefault(self, key: Any, _: Any = None) -> Any:
        return super().setdefault(key, self._made)


def test_ctrl_c_as_an_owners_line_is_entered_leaves_no_place_in_it(
    prefix: str, face: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KN1, J2."""
    face.Lock(prefix + "a").acquire(timeout=10).release()
    monkeypatch.setattr(remote, "_waiting", Lines("append"))
    with pytest.raises(KeyboardInterrupt):
        holdfast.Lock(prefix + "a", owner="me").acquire()
    assert not remote._waiting
    face.Lock(prefix + "a", owner="me").acquire(timeout=10).release()


def test_ctrl_c_as_an_owners_line_is_left_wakes_the_others(
    prefix: str, face: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KN1, J3."""
    lines = Lines("remove")
    monkeypatch.setattr(remote, "_waiting", lines)
    lock = holdfast.Lock(prefix + "a", owner="me")
    ended: list[BaseException] = []

    def interrupted() -> None:
        try:
            lock.acquire(cancel=gives_up)
        except BaseException as error:
            ended.append(error)

    gives_up = threading.Event()
    other = face.Lock(prefix + "a").acquire(timeout=10)
    first = threading.Thread(target=interrupted)
    first.start()
    eventually(lambda: [len(line) for line in lines.values()] == [1])
    second = face.begin(face.Lock(prefix + "a", owner="me").acquire)
    eventually(lambda: [len(line) for line in lines.values()] == [2])
    gives_up.set()
    first.join()
    assert isinstance(ended[0], KeyboardInterrupt)
    other.release()
    second.result().release()


def test_waiters_of_one_owner_are_reported_and_stand_in_one_place(
    prefix: str, face: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KN1: one of them is in the queue; all are reported, with the holder they wait for."""
    monkeypatch.setattr(wait, "_NOTICE_AFTER", 0.05)
    hold = face.Lock(prefix + "a", tag="deploy v1").acquire(timeout=10)
    told: list[list[Any]] = [[], [], []]
    heard: list[events.Event] = []
    locks = [face.Lock(prefix + "a", owner="me", on_event=heard.append) for _ in told]
    for lock, notices in zip(locks, told, strict=True):
        announce(lock, notices.append)
    waiters = [face.begin(lock.acquire) for lock in locks]
    eventually(lambda: all(told))
    assert [notices[0].status.holder.tag for notices in told] == ["deploy v1"] * 3
    eventually(lambda: len(face.Lock(prefix + "a").status().waiters) == 1)
    hold.release()
    for got in [waiter.result() for waiter in waiters]:
        got.release()
    kinds = [event.kind for event in heard]
    assert (kinds.count("waiting"), kinds.count("joined"), kinds.count("acquired")) == (3, 2, 1)


def test_a_hold_that_was_broken_is_lost_and_its_release_frees_no_other(prefix: str, face: Any) -> None:
    lost: list[holdfast.LockLost] = []
    hold = face.Lock(prefix + "a", on_lost=lost.append, tag="one").acquire(timeout=10)
    waiter = face.begin(face.Lock(prefix + "a", tag="two").acquire)
    eventually(lambda: face.Lock(prefix + "a").status().waiters)
    assert face.Lock(prefix + "a").break_lock().tag == "one"
    next_one = waiter.result()
    eventually(lambda: lost)
    assert hold.lost
    with pytest.raises(holdfast.LockLost):
        hold.ensure_held()
    with pytest.raises(holdfast.LockLost):
        hold.release()
    assert len(lost) == 1
    assert next_one.token > hold.record.fields["token"]
    next_one.ensure_held()
    assert face.Lock(prefix + "a").try_acquire() is None
    next_one.release()
    assert face.Lock(prefix + "a").break_lock() is None


def test_every_event_is_reported_with_its_holder(prefix: str, face: Any) -> None:
    told: list[events.Event] = []
    hold = face.Lock(prefix + "a", tag="one").acquire(timeout=10)
    waiter = face.begin(face.Lock(prefix + "a", on_event=told.append).acquire)
    eventually(lambda: told)
    hold.release()
    waiter.result().release()
    assert [event.kind for event in told] == ["waiting", "acquired", "released"]
    assert told[0].holder.tag == "one"
    assert told[1].waited > 0
    told.clear()
    assert face.Lock(prefix + "b", on_event=told.append).try_acquire().release() is None
    assert [event.kind for event in told] == ["acquired", "released"]
    assert told[0].waited == 0


def test_the_locks_of_a_prefix_are_listed(prefix: str, face: Any) -> None:
    names = ["list/a", "list/b", "list%20/c"]
    holds = [face.Lock(prefix + name, tag=name).acquire(timeout=10) for name in names]
    engine = engine_of(prefix)
    env = environment()
    found = drive(engine.survey(env, prefix + "list"))
    assert [status.holder.tag for status in found] == [hold.record.tag for hold in sorted(holds, key=lambda h: h.path)]
    assert [status.path for status in found] == sorted(hold.path for hold in holds)
    assert len(drive(engine.survey(env, prefix + "list/a"))) == 1
    assert drive(engine.survey(env, prefix + "other")) == ()
    for hold in holds:
        hold.release()
    assert drive(engine.survey(env, prefix + "list")) == ()


def test_a_child_does_not_release_its_parents_lock(prefix: str, face: Any) -> None:
    hold = face.Lock(prefix + "a").acquire(timeout=10)
    other = face.Lock(prefix + "b").acquire(timeout=10)
    other.release()  # its connection may be kept for the next hold
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with pytest.raises(holdfast.NotHeld):
                hold.ensure_held()
            if isinstance(face, Threads):
                hold.release()
            mine = holdfast.Lock(prefix + "b").acquire(timeout=10)
            if holdfast.Lock(prefix + "a").try_acquire() is None:
                status = 0
            mine.release()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    hold.ensure_held()
    hold.release()
    face.Lock(prefix + "b").acquire(timeout=10).release()


def test_the_death_of_a_holder_frees_the_lock(prefix: str, spawn: Callable[..., Peer]) -> None:
    """Within the time that the engine states: PostgreSQL at once, etcd when the lease has expired."""
    peer = spawn(
        """
        hold = Lock(path, stale_after=int(sys.argv[2])).acquire(timeout=10)
        say(hold.token)
        hear()
        """,
        prefix + "a",
        2 if prefix.startswith("etcd") else 3,
    )
    token = int(peer.hear())
    peer.kill()
    with holdfast.Lock(prefix + "a").acquire(timeout=20) as hold:
        assert hold.token > token


def test_the_exit_of_a_holder_frees_the_lock(prefix: str, spawn: Callable[..., Peer]) -> None:
    """It releases at exit, so nothing has to expire."""
    peer = spawn(
        """
        hold = Lock(path).acquire(timeout=10)
        say("held")
        """,
        prefix + "a",
    )
    peer.expect("held")
    peer.finish()
    holdfast.Lock(prefix + "a").acquire(timeout=1).release()


def test_a_pickled_lock_is_the_same(prefix: str, face: Any) -> None:
    lock = holdfast.Lock(prefix + "a", tag="x")
    again = pickle.loads(pickle.dumps(lock))
    assert again.path == lock.path
    with lock:
        assert again.try_acquire() is None


def test_a_waiter_releases_a_hold_that_a_with_statement_dropped(
    prefix: str, face: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J5: as the last resort."""
    with monkeypatch.context() as changed:
        drop_statements(changed)
        with holdfast.Lock(prefix + "a"):
            pass
        gc.collect()
        assert holdfast.Lock(prefix + "a").status().locked
        face.Lock(prefix + "a").acquire(timeout=10).release()
    assert not environment().operations.entered


async def _inside(lock: Any, entered: list[object]) -> None:
    async with lock:
        entered.append(lock)
        await asyncio.sleep(3600)


@pytest.mark.parametrize("way", ["a dropped with", "a closed coroutine"])
def test_a_finalizer_releases_without_a_request_to_the_server(
    prefix: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EH2: it runs in any thread, a closed coroutine in an event loop, and the server may be silent."""
    asked: list[object] = []

    def ask(held: Any) -> Iterator[Any]:
        asked.append(held)
        yield wait.Wait((), 0.0)

    with monkeypatch.context() as changed:
        for kind in (EtcdHold, PostgresqlHold):
            changed.setattr(kind, "_give_up", ask)
        if way == "a dropped with":
            holdfast.Lock(prefix + "a").acquire(timeout=10).__enter__()
        else:
            entered: list[object] = []
            loop = asyncio.new_event_loop()
            task = loop.create_task(_inside(AsyncLock(prefix + "a"), entered))
            while not entered:
                loop.run_until_complete(asyncio.sleep(0.001))
            task.get_coro().close()
            task.cancel()
            loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            loop.close()
        gc.collect()
    assert asked == []
    with holdfast.Lock(prefix + "a").acquire(timeout=10):
        pass


def test_threads_of_one_process_exclude_each_other(prefix: str) -> None:
    inside, most, total = [0], [0], [0]

    def work() -> None:
        for _ in range(10):
            with holdfast.Lock(prefix + "a", timeout=60):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                total[0] += 1
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most[0], total[0]) == (1, 80)


def test_an_option_without_meaning_is_refused(prefix: str) -> None:
    for options in ({"mode": 0o600}, {"shared": True}, {"fair": False}, {"durable": True}, {"stale": "never"}):
        with pytest.raises(ValueError, match=r"leave|Leave"):
            holdfast.Lock(prefix + "a", **options)  # type: ignore[arg-type]
    for wrong in ({"heartbeat": -1}, {"stale_after": 0.01}, {"stale_after": 10, "heartbeat": 9}):
        with pytest.raises(ValueError, match=r"heartbeat|stale_after"):
            holdfast.Lock(prefix + "a", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("behind", [False, True], ids=["first", "behind another thread"])
def test_a_wait_can_be_cancelled_from_another_thread(prefix: str, *, behind: bool) -> None:
    """CX1: it leaves nothing in the queue, and the other waiters go on."""
    lock, event = holdfast.Lock(prefix + "cancelled"), threading.Event()
    hold = lock.acquire(timeout=10)
    results: list[Any] = []

    def call(cancel: threading.Event | None) -> None:
        try:
            results.append(lock.acquire(30, cancel=cancel))
        except holdfast.AcquireCancelled as error:
            results.append(error)

    threads = [threading.Thread(target=call, args=(cancel,)) for cancel in ([None, event] if behind else [event])]
    threads[0].start()
    eventually(lambda: lock.status().waiters)
    if behind:
        threads[1].start()
        threads[1].join(0.1)
    event.set()
    threads[-1].join(10)
    assert [type(result) for result in results] == [holdfast.AcquireCancelled]
    eventually(lambda: len(lock.status().waiters) == behind)
    hold.release()
    if behind:
        threads[0].join(10)
        results[-1].release()
    with lock.acquire(timeout=10):
        pass
