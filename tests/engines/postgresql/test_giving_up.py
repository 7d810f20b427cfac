"""Callers that are cancelled, interrupted or forked at any step hold nothing and wait for nothing."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engines.postgresql.server import Postgres, waits_for
from holdfast import AsyncLock, Lock, LockLost
from holdfast._core.hold import HoldRef
from holdfast._core.wait import Wait
from holdfast._drivers import sync
from holdfast._drivers.agent import agent
from holdfast._drivers.sync import wait_for
from holdfast._platform import environment
from holdfast.engines import remote
from holdfast.engines.postgresql import connect as postgresql_pool
from holdfast.engines.postgresql import connection as postgresql_connection
from holdfast.engines.postgresql import lock as postgresql_lock
from process.support import Peer, assert_that_a_child_ends, descriptors, eventually


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql_pool, "KEPT", 0.2)


@pytest.fixture
def nothing_left(postgres: Postgres) -> Iterator[None]:
    """The test leaves no descriptor, session, hold or job behind."""
    env = environment()

    def settled() -> dict[int, str]:
        postgresql_pool._pool.close_all(env)
        for job in list(agent(env)._jobs):
            if job.what.startswith(
                "while closing connections"
            ):  # it sleeps until the last connection of an earlier test is too old
                job.stop()
                postgresql_pool._pool._swept_in = -1
        eventually(lambda: not agent(env)._jobs, what="the end of the agent's jobs")
        postgres.forget()  # the test's own connection is not a leak
        gc.collect()
        return {fd: what for fd, what in descriptors().items() if what.startswith("socket")}

    agent(env).start(iter(()), "at work")  # type: ignore[arg-type]  # its doorbell is no leak
    before = settled()
    yield
    assert settled() == before
    assert not postgresql_connection._open
    assert not [held for held in env.holds.values() if held.waits]
    eventually(lambda: not postgres.sessions(), what="the end of all sessions")


def steps_of(lock: Lock, timeout: float | None) -> Any:
    return lock._engine.acquire(environment(), lock._requests, timeout, (object(),))


def test_a_wait_that_fails_after_its_grant_leaves_no_second_lock(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, nothing_left: None
) -> None:
    """PG10: the session still has the lock, and would acquire it twice; one release would then leave it locked."""
    monkeypatch.setattr(postgresql_lock, "_QUEUE", f"{postgresql_lock._QUEUE}, pg_sleep(60)")  # it lasts
    lock, got = Lock(postgres.url("a")), list[Any]()
    hold = lock.acquire(timeout=10)
    thread = threading.Thread(target=lambda: got.append(lock.acquire(timeout=60)))
    thread.start()
    eventually(lambda: postgres.waiting() == 1)
    hold.release()
    asleep = "select pid from pg_stat_activity join pg_locks using (pid) where granted and locktype = 'advisory'"
    ((session,),) = eventually(lambda: postgres.ask(f"{asleep} and wait_event = 'PgSleep'"))
    postgres.ask("select pg_cancel_backend(%s)", session)
    thread.join()
    got[0].release()
    assert not postgres.holding()


@pytest.mark.parametrize("contended", [False, True])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_generator_closed_at_any_step_leaves_nothing(
    postgres: Postgres, nothing_left: None, contended: bool, fresh: bool
) -> None:
    """PS2, PG4: at each step in turn, as by a cancellation or Ctrl-C."""
    lock, env = Lock(postgres.url("a")), environment()
    count, done = 0, False
    while not done:
        holder = Lock(postgres.url("a")).acquire(timeout=10) if contended else None
        if fresh:
            postgresql_pool._pool.close_all(env)
        steps = steps_of(lock, None)
        for _ in range(count + 1):
            try:
                wait: Wait = next(steps)
            except StopIteration as end:
                ref: HoldRef = end.value
                ref.held.give_back()
                done = True
                break
            if contended and postgres.waiting() and holder is not None:
                holder.release()  # from here on, the grant and the closing race
                holder = None
            wait_for(Wait(wait.fds, min(wait.deadline, waits_for(0.05)), wait.signal, wait.writes))
        steps.close()
        if holder is not None:
            holder.release()
        with Lock(postgres.url("a")).acquire(timeout=5) as hold:
            hold.ensure_held()
        assert not [held for held in env.holds.values() if held.waits]
        count += 1
    assert count >= (7 if fresh else 2)


def test_a_cancelled_task_never_gets_the_lock(postgres: Postgres, nothing_left: None) -> None:
    """PS2: cancelled at the moment of the grant, over and over; the next waiter never waits for a ghost."""

    async def main() -> None:
        lock = AsyncLock(postgres.url("a"))
        got = 0
        for number in range(40):
            hold = await lock.acquire(timeout=10)
            waiter = asyncio.ensure_future(AsyncLock(postgres.url("a")).acquire())
            while postgres.waiting() < 1:
                await asyncio.sleep(0)
            release = asyncio.ensure_future(hold.release())
            for _ in range(number % 12):
                await asyncio.sleep(0.0002)
            waiter.cancel()
            await release
            try:
                await (await waiter).release()
                got += 1
            except asyncio.CancelledError:
                pass
            hold = await lock.acquire(timeout=5)
            await hold.release()

    asyncio.run(main())


def test_a_waiter_that_is_gone_leaves_the_queue_at_once(postgres: Postgres, nothing_left: None) -> None:
    """PS2: by a cancel request, which the server notices in milliseconds."""
    hold = Lock(postgres.url("a")).acquire(timeout=10)
    for _ in range(5):
        steps = steps_of(Lock(postgres.url("a")), None)
        while not postgres.waiting():
            wait = next(steps)
            wait_for(Wait(wait.fds, min(wait.deadline, waits_for(0.05)), wait.signal, wait.writes))
        steps.close()
        eventually(lambda: not postgres.waiting(), within=5)
    hold.release()


def test_an_interrupt_leaves_no_waiter(postgres: Postgres, spawn: Callable[..., Peer]) -> None:
    hold = Lock(postgres.url("a")).acquire(timeout=10)
    peer = spawn(
        """
        try:
            Lock(path).acquire()
        except KeyboardInterrupt:
            say("interrupted")
        hear()
        """,
        postgres.url("a"),
    )
    eventually(lambda: postgres.waiting() == 1)
    peer.kill(2)
    peer.expect("interrupted")
    eventually(lambda: postgres.waiting() == 0, within=5)
    hold.release()
    peer.say("end")
    peer.finish()


def test_two_threads_never_call_libpq_at_once(postgres: Postgres, nothing_left: None) -> None:
    """PS1: heartbeats as fast as possible, while holds are released."""
    for _ in range(50):
        hold = Lock(postgres.url("a"), heartbeat=0.0001).acquire(timeout=10)
        before = hold._held.term.lapses
        eventually(lambda: hold._held.term.lapses > before)  # noqa: B023
        hold.release()


def test_only_a_session_without_a_lock_is_reused(postgres: Postgres, nothing_left: None) -> None:
    """PC6, PG3: pooled sessions have no lock; two holds of a process never share a session."""
    url = postgres.url
    first, second = Lock(url("a")).acquire(timeout=10), Lock(url("b")).acquire(timeout=10)
    assert first.record.fields["session"] != second.record.fields["session"]
    assert Lock(url("a")).try_acquire() is None
    assert Lock(url("a")).try_acquire() is None
    session = first.record.fields["session"]
    first.release()
    again = Lock(url("c")).acquire(timeout=10)
    sessions = {again.record.fields["session"], second.record.fields["session"]}
    assert len(sessions) == 2
    assert session is not None
    held = postgres.ask("select pid from pg_locks where locktype = 'advisory'")
    assert {row[0] for row in held} == sessions
    again.release()
    second.release()
    given_back = Lock(url("a")).acquire(timeout=10)
    given_back._held.give_back()
    assert given_back._held.connection._conn is None or given_back._held.connection.spotless is False  # type: ignore[attr-defined]
    Lock(url("a")).acquire(timeout=5).release()


def test_a_short_hold_does_not_wake_the_agents_thread(
    postgres: Postgres, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EG6: the thread need not wake to watch the connection, nor for the release."""
    url, env, ours = postgres.url("a"), environment(), agent(environment())
    # The job that closes old idle connections wakes it; so does the end of the last of many holds.
    monkeypatch.setattr(postgresql_pool._pool, "_swept_in", env.generation)
    monkeypatch.setattr("holdfast._drivers.agent._MOST_VOID", math.inf)

    def often() -> Iterator[Wait]:
        while True:
            yield Wait((), env.monotonic() + 0.5)

    job = ours.start(often(), "at work")  # type: ignore[arg-type]  # so that it never sleeps for as long as a hold may
    Lock(url).acquire(timeout=10).release()
    eventually(lambda: job.wait)
    rung: list[int] = []
    lost: list[LockLost] = []
    try:
        with monkeypatch.context() as patched:
            patched.setattr(ours, "_ring", lambda: rung.append(1))
            for _ in range(10):
                Lock(url).acquire(timeout=10).release()
            hold = Lock(url, on_lost=lost.append, heartbeat=0).acquire(timeout=10)
            postgres.ask("select pg_terminate_backend(%s)", hold.record.fields["session"])
            eventually(lambda: lost)
            assert not rung
        with pytest.raises(LockLost):
            hold.release()
    finally:
        job.stop()


def test_idle_connections_are_few_and_closed_after_a_while(
    postgres: Postgres, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PC6."""
    monkeypatch.setattr(postgresql_pool, "KEPT", 2.0)  # long enough to be seen
    holds = [Lock(postgres.url(f"{number}")).acquire(timeout=10) for number in range(10)]
    for hold in holds:
        hold.release()
    eventually(lambda: postgres.sessions() == postgresql_pool.MOST)
    eventually(lambda: not postgres.sessions(), within=8)


def test_a_child_does_not_keep_its_parents_connection(postgres: Postgres, nothing_left: None) -> None:
    """PS3: it has no copy of the sockets, sends nothing on them, and can acquire its own locks, also during a wait."""
    Lock(postgres.url("spare")).acquire(timeout=10).release()
    hold = Lock(postgres.url("a")).acquire(timeout=10)
    waiter = threading.Thread(target=lambda: Lock(postgres.url("a")).acquire(timeout=20).release())
    waiter.start()
    eventually(lambda: postgres.waiting() == 1)
    go, alive = os.pipe(), os.pipe()
    postgres.forget()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            sockets = [what for what in descriptors().values() if what.startswith("socket")]
            hold.release()
            gc.collect()
            Lock(postgres.url("b")).acquire(timeout=10).release()
            del hold
            gc.collect()
            status = 10 + len(sockets)
        finally:
            os.write(alive[1], b"!")
            os.read(go[0], 1)
            os._exit(status)
    os.read(alive[0], 1)
    hold.ensure_held()
    began = hold._held.term.lapses
    assert began
    hold.release()  # the child lives: if it had a copy of the connection, nothing would change; it asks for nothing
    waiter.join()
    os.write(go[1], b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 10
    for fd in (*go, *alive):
        os.close(fd)


def test_a_parent_that_dies_does_not_leave_its_lock_to_its_child(
    postgres: Postgres, spawn: Callable[..., Peer]
) -> None:
    """PS3: with a copy of the socket, the child would keep the session, and so the lock, alive."""
    peer = spawn(
        """
        hold = Lock(path).acquire(timeout=10)
        if os.fork() == 0:
            say("child")
            time.sleep(1000)
        hear()
        """,
        postgres.url("a"),
    )
    peer.expect("child")
    peer.kill()
    Lock(postgres.url("a")).acquire(timeout=5).release()


def test_a_wait_does_not_go_on_in_a_forked_child(postgres: Postgres) -> None:
    hold = Lock(postgres.url("a")).acquire(timeout=10)
    steps = steps_of(Lock(postgres.url("a")), None)
    while not postgres.waiting():
        wait = next(steps)
        wait_for(Wait(wait.fds, min(wait.deadline, waits_for(0.05)), wait.signal, wait.writes))
    assert_that_a_child_ends(steps)
    assert postgres.waiting() == 1
    steps.close()
    hold.release()


def test_a_hold_that_no_thread_can_keep_is_given_up(
    postgres: Postgres, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_arguments: object, **_first: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(agent(environment()), "start", no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            Lock(postgres.url("a")).acquire(timeout=10)
    assert not [held for held in environment().holds.values() if held.waits]
    Lock(postgres.url("a")).acquire(timeout=5).release()


def test_an_interrupt_while_a_hold_is_made_does_not_affect_a_later_one(
    postgres: Postgres, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J3: the hold is undone before its constructor has finished."""
    real = remote.RemoteHold.__init__

    def interrupted(held: remote.RemoteHold, *arguments: Any) -> None:
        real(held, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(remote.RemoteHold, "__init__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Lock(postgres.url("a")).acquire(timeout=10)
    for name in ("b", "a"):
        Lock(postgres.url(name)).acquire(timeout=5).release()
    assert not environment().operations.running


def test_an_interrupted_hold_takes_its_connection_from_the_agent_before_it_ends(
    postgres: Postgres, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PS1: the agent's thread may be using the connection in a step."""
    make, close = postgresql_lock.PostgresqlHold.__init__, postgresql_connection.Connection.close
    keepers: list[object] = []

    def interrupted(held: postgresql_lock.PostgresqlHold, *arguments: Any) -> None:
        make(held, *arguments)
        raise KeyboardInterrupt

    def closed(connection: postgresql_connection.Connection) -> None:
        keepers.append(connection.keeper)
        close(connection)

    with monkeypatch.context() as patched:
        patched.setattr(postgresql_lock.PostgresqlHold, "__init__", interrupted)
        patched.setattr(postgresql_connection.Connection, "close", closed)
        with pytest.raises(KeyboardInterrupt):
            Lock(postgres.url("a")).acquire(timeout=10)
    assert keepers
    assert set(keepers) == {None}


@pytest.mark.parametrize("step", ["AcquireAttempt.close", "Connection.abandon", "Connection.close"])
def test_a_second_interrupt_while_a_waiter_gives_up_leaves_no_waiter(
    postgres: Postgres, nothing_left: None, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """PG4, J3: the process's next operation completes what was broken off; before, the session got the lock."""
    place = {"AcquireAttempt": postgresql_lock.AcquireAttempt, "Connection": postgresql_connection.Connection}
    owner, name = place[step.partition(".")[0]], step.partition(".")[2]
    real: Any = getattr(owner, name)

    def second(_self: Any) -> None:
        monkeypatch.setattr(owner, name, real)
        raise KeyboardInterrupt

    def first(wait: Wait) -> None:
        if postgres.waiting():
            monkeypatch.setattr(owner, name, second)
            raise KeyboardInterrupt
        wait_for(wait)

    gc.disable()
    try:
        with Lock(postgres.url("a")):
            with monkeypatch.context() as patched:
                patched.setattr(sync, "wait_for", first)
                with pytest.raises(KeyboardInterrupt):
                    Lock(postgres.url("a")).acquire(timeout=10)
            Lock(postgres.url("b")).acquire(timeout=5).release()
            eventually(lambda: not postgres.waiting(), what="the end of the wait")
        Lock(postgres.url("a")).acquire(timeout=5).release()
    finally:
        gc.enable()


def test_a_child_does_not_close_a_file_that_reused_the_number_of_a_dropped_connection(
    postgres: Postgres, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PS3: interrupted between the opening of a connection and the next step, it has no owner, and libpq closes it."""
    real = postgresql_lock.obtain
    number = 0

    def interrupted(*words: Any, **more: Any) -> Any:
        nonlocal number
        connection = yield from real(*words, **more)
        number = connection.fd
        raise KeyboardInterrupt

    gc.disable()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(postgresql_lock, "obtain", interrupted)
            with pytest.raises(KeyboardInterrupt):
                Lock(postgres.url("a")).acquire(timeout=10)
        assert number not in postgresql_connection._open
    finally:
        gc.enable()
    files = [os.open(os.devnull, os.O_RDONLY)]
    while files[-1] < number:
        files.append(os.open(os.devnull, os.O_RDONLY))
    child = os.fork()
    if child == 0:
        try:
            for fd in files:
                os.fstat(fd)
        except OSError:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for fd in files:
        os.close(fd)
