"""Kills, stops, stalls and restarts: who is told, when, and who gets in."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from engines.arms import begun, peers, side_by_side
from engines.postgresql.server import Postgres, Proxy, binary
from holdfast import AsyncLock, Lock, LockLost
from holdfast._drivers.sync import drive, wait_for
from holdfast._platform import environment
from holdfast.engines.postgresql import connect, look
from holdfast.engines.postgresql import lock as postgresql_lock
from process.support import Peer, eventually


def later(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run it in a thread; returns the thread, and a list for its result or exception."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


@pytest.fixture(scope="module")
def arms(_server: Postgres) -> dict[str, Callable[[], None]]:
    """The tests that wait until a hold has lapsed, all at once, each on a lock of its own."""
    return side_by_side(
        stopped=lambda: _stopped(_server.url("stopped")),
        swallowed=lambda: _swallowed(_server),
    )


@pytest.fixture(scope="module", autouse=True)
def partition() -> Iterator[Callable[[], None]]:
    """Runs beside all other tests of this file, with a server and a network of its own."""
    with begun(_partition) as result:
        yield result


def test_a_loss_is_reported_at_once_and_once(postgres: Postgres) -> None:
    """PG7: the end of the connection is noticed in milliseconds, not at the next heartbeat."""
    lost: list[holdfast.LockLost] = []
    hold = Lock(postgres.url("a"), on_lost=lost.append, heartbeat=0).acquire(timeout=10)
    session = hold.record.fields["session"]
    postgres.ask("select pg_terminate_backend(%s)", session)
    eventually(lambda: lost, within=5)
    assert "terminating connection due to administrator command" in str(lost[0])
    with Lock(postgres.url("a")).acquire(timeout=5) as successor:
        for _ in range(2):
            assert hold.lost
            with pytest.raises(holdfast.LockLost):
                hold.ensure_held()
        with pytest.raises(holdfast.LockLost):
            hold.release()
        hold.release()
        successor.ensure_held()
        assert Lock(postgres.url("a")).try_acquire() is None
    assert len(lost) == 1


def test_a_killed_holder_does_not_keep_its_lock(postgres: Postgres, spawn: Callable[..., Peer]) -> None:
    peer = spawn("hold = Lock(path).acquire(timeout=10); say('held'); hear()", postgres.url("a"))
    peer.expect("held")
    thread, results = later(lambda: Lock(postgres.url("a")).acquire(timeout=20))
    eventually(lambda: postgres.waiting() == 1)
    began = time.monotonic()
    peer.kill()
    thread.join()
    assert time.monotonic() - began < 5  # no lease has to run out
    results[0].release()


def test_a_stopped_holder_finds_its_lock_lost(arms: dict[str, Callable[[], None]]) -> None:
    """PG6: stopped for longer than its lease, it notices the lapse before it does anything else."""
    arms["stopped"]()


def _stopped(url: str) -> None:
    with peers() as start:
        _through_a_stop(start, url)


def _through_a_stop(start: Callable[..., Peer], url: str) -> None:
    peer = start(
        """
        hold = Lock(path, stale_after=3).acquire(timeout=10)
        say("held")
        hear()
        try:
            hold.ensure_held()
            say("mine")
        except holdfast.LockLost as error:
            say("lost")
        """,
        url,
    )
    peer.expect("held")
    peer.kill(signal.SIGSTOP)
    time.sleep(2.1)  # the duration of the stop is what this tests
    assert Lock(url).try_acquire() is None  # its kernel answers for it
    peer.kill(signal.SIGCONT)
    peer.say("go")
    peer.expect("lost")
    peer.finish()
    Lock(url).acquire(timeout=5).release()


def test_a_lapsed_hold_frees_its_lock_on_the_server(postgres: Postgres) -> None:
    """PG7: its owner notices the lapse before the agent's thread: the lock is free for the next contender."""
    hold = Lock(postgres.url("a"), heartbeat=0.05).acquire(timeout=10)
    hold._held.why_lost = "it is as if it had lapsed"
    assert hold.lost
    Lock(postgres.url("a")).acquire(timeout=5).release()
    with pytest.raises(holdfast.LockLost):
        hold.release()


def test_a_short_stop_does_not_cost_the_lock(postgres: Postgres, spawn: Callable[..., Peer]) -> None:
    peer = spawn(
        "hold = Lock(path).acquire(timeout=10); say('held'); hear(); hold.ensure_held(); hold.release(); say('done')",
        postgres.url("a"),
    )
    peer.expect("held")
    peer.kill(signal.SIGSTOP)
    peer.kill(signal.SIGCONT)
    peer.say("go")
    peer.expect("done")


def test_a_killed_server_does_not_let_tokens_go_back(postgres: Postgres) -> None:
    """PG1: nextval() and transaction ids go back when the server is killed; committed rows do not."""
    tokens = []
    for _ in range(3):
        for _ in range(5):
            with Lock(postgres.url("token")).acquire(timeout=20) as hold:
                tokens.append(hold.token)
        lost: list[holdfast.LockLost] = []
        hold = Lock(postgres.url("token"), on_lost=lost.append).acquire(timeout=20)
        tokens.append(hold.token)
        postgres.kill()
        eventually(lambda: lost, within=5)  # noqa: B023
        with pytest.raises(holdfast.LockLost):
            hold.release()
        postgres.start()
    assert tokens == sorted(set(tokens))


def test_a_waiter_outlasts_a_restart_of_the_server(postgres: Postgres) -> None:
    hold = Lock(postgres.url("a")).acquire(timeout=10)
    waiters = [later(lambda: Lock(postgres.url("a")).acquire(timeout=30)) for _ in range(3)]
    onlooker, seen = later(lambda: Lock(postgres.url("a")).wait(timeout=30))
    eventually(lambda: postgres.waiting() == 4)
    postgres.kill()
    eventually(lambda: hold.lost)
    postgres.start()
    for _ in waiters:
        eventually(lambda: any(results and not results[0]._held.released for _, results in waiters))
        next(results[0] for _, results in waiters if results and not results[0]._held.released).release()
    for thread, results in waiters:
        thread.join()
        assert results[0].token > hold.token
    onlooker.join()
    assert seen == [True]
    with pytest.raises(holdfast.LockLost):
        hold.release()


class Ahead:
    """This process's environment, with a clock that can be advanced."""

    def __init__(self) -> None:
        self.by = 0.0

    def monotonic(self) -> float:
        return environment().monotonic() + self.by

    def __getattr__(self, name: str) -> Any:
        return getattr(environment(), name)

    def run(self, steps: Any) -> Any:
        while True:
            try:
                wait = next(steps)
            except StopIteration as end:
                return end.value
            wait_for(wait.replaced(deadline=wait.deadline - self.by))


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The contenders' attempts to open a session."""
    found: list[float | None] = []
    real = postgresql_lock.obtain

    def counted(*arguments: Any, **options: Any) -> Any:
        found.append(arguments[3])
        return real(*arguments, **options)

    monkeypatch.setattr(postgresql_lock, "obtain", counted)
    return found


def test_a_waiter_waits_until_its_timeout_while_the_server_is_away(
    postgres: Postgres, attempts: list[float | None]
) -> None:
    """PG5: for twenty seconds there is no server: one waiter has forty, another has no limit."""
    hold = Lock(postgres.url("a")).acquire(timeout=10)
    ahead, lock = Ahead(), Lock(postgres.url("a"))
    patient = later(lambda: ahead.run(lock._engine.acquire(ahead, lock._requests, 40, (object(),))))  # type: ignore[arg-type]
    endless = later(Lock(postgres.url("a"), owner="another").acquire)
    eventually(lambda: postgres.waiting() == 2)
    short = later(lambda: Lock(postgres.url("a")).acquire(timeout=0.6))
    eventually(lambda: postgres.waiting() == 3)
    postgres.forget()
    postgres.kill()
    before = len(attempts)
    eventually(lambda: len(attempts) > before)
    ahead.by = 20.0
    before = len(attempts)
    eventually(lambda: len(attempts) >= before + 6)
    short[0].join()
    assert isinstance(short[1][0], holdfast.EngineUnavailable)
    assert not patient[1]
    assert not endless[1]
    postgres.start()
    eventually(lambda: patient[1] or endless[1])
    if patient[1]:
        patient[1][0].held.release()
        eventually(lambda: endless[1])
        endless[1][0].release()
    else:
        endless[1][0].release()
        eventually(lambda: patient[1])
        patient[1][0].held.release()
    with pytest.raises(holdfast.LockLost):
        hold.release()


def test_a_session_that_is_ended_at_its_start_is_retried_until_the_timeout(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PG5: the server is up, and reports that it ends this session."""
    check, ended = connect._check, list[int]()

    def end(connection: Any, facts: Any) -> None:
        check(connection, facts)
        if not ended:
            ended.append(connection.backend)
            postgres.ask("select pg_terminate_backend(%s, 5000)", connection.backend)
            drive(connection.ask("select 1", (), environment().monotonic() + 10))

    monkeypatch.setattr(connect, "_check", end)
    Lock(postgres.url("a", more="?application_name=ended")).acquire(timeout=20).release()
    assert ended


def test_a_server_without_free_connections_is_retried_until_the_timeout(
    postgres: Postgres, attempts: list[float | None]
) -> None:
    """PG5: SQLSTATE 53300, whoever's limit it is. A try is refused at once, with the reason."""
    postgres.ask("create role limited login connection limit 1")
    try:
        postgres.ask("grant usage on schema holdfast to limited")
        postgres.ask("grant select, insert, update on holdfast.lock to limited")
        hold = Lock(postgres.url("a", user="limited")).acquire(timeout=10)
        lock = Lock(postgres.url("b", user="limited"))
        with pytest.raises(holdfast.EngineUnavailable, match="too many connections"):
            lock.try_acquire()
        assert len(attempts) == 2, "a try is tried once"
        began = time.monotonic()
        with pytest.raises(holdfast.EngineUnavailable, match=r"too many connections.*max_connections"):
            lock.acquire(timeout=0.3)
        assert time.monotonic() - began >= 0.3
        before = len(attempts)
        thread, results = later(lambda: lock.acquire(timeout=30))
        eventually(lambda: len(attempts) >= before + 3)
        hold.release()
        thread.join()
        results[0].release()
    finally:
        connect._pool.close_all(environment())
        eventually(lambda: not postgres.sessions())
        postgres.ask("drop owned by limited")
        postgres.ask("drop role limited")


@pytest.mark.parametrize("why", ["sorry, too many clients already", "no answer in time", "", "lost"])
def test_a_waiter_keeps_its_place_without_a_second_session(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """PG9: it cannot check whether the server still knows it. It keeps the session that waits, and checks later."""
    refused: list[str] = []
    real = postgresql_lock.connect

    def unlucky(*arguments: Any, **order: Any) -> Any:
        refused.append(why)
        if why == "lost":
            other = yield from real(*arguments, **order)
            postgres.ask("select pg_terminate_backend(%s, 5000)", other.backend)
            return other
        yield from ()
        raise holdfast.EngineUnavailable(why, protocol="postgresql")

    def waits() -> list[tuple[object, ...]]:
        return postgres.ask("select pid from pg_locks where locktype = 'advisory' and not granted")

    hold = Lock(postgres.url("a")).acquire(timeout=10)
    monkeypatch.setattr(postgresql_lock, "_ASK_EVERY", 0.02)
    monkeypatch.setattr(postgresql_lock, "connect", unlucky)
    thread, got = later(lambda: Lock(postgres.url("a"), tag="first").acquire(timeout=60))
    eventually(lambda: postgres.waiting() == 1)
    before = waits()
    eventually(lambda: len(refused) >= 3)
    hold.release()
    thread.join(20)
    assert [(got[0].record.fields["session"],)] == before
    got[0].release()


def test_a_pooled_connection_that_has_ended_is_replaced(postgres: Postgres) -> None:
    """PC7."""
    Lock(postgres.url("a")).acquire(timeout=10).release()
    assert postgres.sessions() >= 1
    postgres.ask(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity where starts_with(application_name, 'holdfast ')"
    )
    hold = Lock(postgres.url("a")).try_acquire()
    assert hold is not None
    hold.release()
    postgres.ask(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity where starts_with(application_name, 'holdfast ')"
    )
    assert not Lock(postgres.url("a")).status().locked


def test_a_holder_behind_a_silent_proxy_finds_its_lock_lost(arms: dict[str, Callable[[], None]]) -> None:
    """PG6: the proxy acknowledges all data, so the kernels on both sides see a healthy connection."""
    arms["swallowed"]()


def _swallowed(postgres: Postgres) -> None:
    stalling = Proxy(postgres.port)
    lost: list[holdfast.LockLost] = []
    url = postgres.url("swallowed", port=stalling.port)
    hold = Lock(url, stale_after=3, on_lost=lost.append).acquire(timeout=10)
    eventually(lambda: hold._held.term.lapses > hold._held.acquired + 2.2)  # a heartbeat was answered
    stalling.stalled.set()
    eventually(lambda: lost)
    assert "no heartbeat was answered for 2 s" in str(lost[0])
    with pytest.raises(holdfast.LockLost):
        hold.release()
    stalling.remove()  # the server learns of the end at last
    Lock(postgres.url("swallowed")).acquire(timeout=10).release()


def test_releases_at_a_silent_server_are_not_waited_for_one_by_one(
    postgres: Postgres, proxy: Callable[[], Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.engines.postgresql import lock as postgresql_hold

    monkeypatch.setattr(postgresql_hold, "_RELEASE_WITHIN", 0.2)
    stalling = proxy()
    hold = Lock(postgres.url("a", port=stalling.port)).acquire(timeout=10)
    others = [Lock(postgres.url(name, port=stalling.port)).acquire(timeout=10) for name in "bc"]
    stalling.stalled.set()
    with pytest.raises(holdfast.LockLost, match="does not answer"):
        hold.release()
    monkeypatch.setattr(postgresql_hold, "_RELEASE_WITHIN", 1000.0)
    before = postgresql_hold._silent.copy()
    for other in others:  # one was enough to know: a process that exits with many holds does not wait for each
        with pytest.raises(holdfast.LockLost, match="does not answer"):
            other.release()
    assert postgresql_hold._silent == before, "what was given no time says nothing"
    stalling.remove()
    Lock(postgres.url("a")).acquire(timeout=10).release()


@pytest.mark.parametrize("answers", ["a lock", "a heartbeat"])
def test_a_server_that_answers_again_has_time_for_a_release(
    postgres: Postgres, proxy: Callable[[], Proxy], monkeypatch: pytest.MonkeyPatch, answers: str
) -> None:
    """Before, after one unanswered release, all that were not answered at once counted as losses."""
    monkeypatch.setattr(postgresql_lock, "_RELEASE_WITHIN", 0.2)
    slow = proxy()
    unheard, other = (Lock(postgres.url(name, port=slow.port), heartbeat=0.05).acquire(timeout=10) for name in "ab")
    slow.prompt.clear()
    with pytest.raises(holdfast.LockLost, match="does not answer"):
        unheard.release()
    monkeypatch.setattr(postgresql_lock, "_RELEASE_WITHIN", 20.0)
    monkeypatch.setattr(postgresql_lock, "_RELEASE_AT_ONCE", 0.0)
    if answers == "a lock":
        other._held.give_back()
        slow.prompt.set()
        other = Lock(postgres.url("c", port=slow.port)).acquire(timeout=10)
    else:
        before = other._held.term.lapses
        slow.prompt.set()
        eventually(lambda: other._held.term.lapses > before)
    other.release()


def test_a_waiter_behind_a_silent_proxy_reconnects_or_fails_at_its_deadline(
    postgres: Postgres, proxy: Callable[[], Proxy], attempts: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It checks now and then that the server knows it, and keeps its deadline."""
    hold = Lock(postgres.url("a")).acquire(timeout=10)
    monkeypatch.setattr(postgresql_lock, "_REACH_WITHIN", 1.5)  # enough for a connection, on a loaded machine
    monkeypatch.setattr(postgresql_lock, "_GRACE", 0.2)
    proxies = [proxy(), proxy()]
    short, endless = (Lock(postgres.url("a", port=one.port)) for one in proxies)
    short_thread, refused = later(lambda: short.acquire(timeout=4.0))
    eventually(lambda: postgres.waiting() == 1)
    proxies[0].stalled.set()
    monkeypatch.setattr(postgresql_lock, "_ASK_EVERY", 0.2)
    thread, got = later(endless.acquire)
    eventually(lambda: postgres.waiting() == 2)
    proxies[1].stalled.set()
    short_thread.join(20)
    assert isinstance(refused[0], holdfast.EngineUnavailable)
    proxies[0].remove()
    before = len(attempts)
    postgres.ask("select pg_terminate_backend(pid, 5000) from pg_locks where locktype = 'advisory' and not granted")
    proxies[1].stalled.clear()
    eventually(lambda: len(attempts) > before)  # its session is gone, as another session reports
    hold.release()
    thread.join(20)
    got[0].release()


def test_a_long_waiter_keeps_its_place_when_it_checks_its_session(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = postgresql_lock.AcquireAttempt._is_known

    def counted(attempt: Any, connection: Any) -> Any:
        asked.append(connection.backend)
        return real(attempt, connection)

    monkeypatch.setattr(postgresql_lock, "_ASK_EVERY", 0.02)
    monkeypatch.setattr(postgresql_lock.AcquireAttempt, "_is_known", counted)
    hold = Lock(postgres.url("a")).acquire(timeout=10)
    thread, results = later(lambda: Lock(postgres.url("a")).acquire(timeout=20))
    eventually(lambda: len(asked) >= 3)
    assert len(set(asked)) == 1
    hold.release()
    thread.join()
    results[0].release()


@pytest.mark.parametrize("granted", [True, False])
def test_a_grant_that_arrives_during_the_check_is_not_lost(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, granted: bool
) -> None:
    """PG8: it was read and dropped, so the holder slept on; and a timeout came out as an error of the server."""
    real = postgresql_lock.connect

    def meanwhile(*arguments: Any, **order: Any) -> Any:
        monkeypatch.setattr(postgresql_lock, "_ASK_EVERY", 1000.0)
        other = yield from real(*arguments, **order)
        if granted:
            hold.release()
        eventually(lambda: postgres.waiting() == 0)
        return other

    hold = Lock(postgres.url("a")).acquire(timeout=10)
    monkeypatch.setattr("holdfast._core.wait._NOTICE_AFTER", 1000.0)  # so that nothing else wakes it
    monkeypatch.setattr(postgresql_lock, "_ASK_EVERY", 0.02)
    monkeypatch.setattr(postgresql_lock, "connect", meanwhile)
    thread, results = later(lambda: Lock(postgres.url("a")).acquire(timeout=60 if granted else 0.3))
    thread.join(20)
    assert results, "it sleeps on"
    if granted:
        results[0].release()
    else:
        assert isinstance(results[0], holdfast.AcquireTimeout)
        hold.release()


def test_a_grant_that_is_under_way_is_waited_for(
    postgres: Postgres, proxy: Callable[[], Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PG8: the session no longer waits, as it has the lock: that is no reason to start over."""
    slow = proxy()
    real = postgresql_lock.connect
    seen = threading.Event()

    def meanwhile(env: Any, _: object, limit: float, **_order: Any) -> Any:
        assert seen.wait(20)
        slow.prompt.clear()
        hold.release()
        eventually(lambda: postgres.waiting() == 0)
        other = yield from real(env, connect.parse(postgres.url("a")), limit)
        close = other.close

        def closed() -> None:
            slow.prompt.set()
            close()

        other.close = closed  # type: ignore[method-assign]
        return other

    hold = Lock(postgres.url("a")).acquire(timeout=10)
    monkeypatch.setattr(postgresql_lock, "connect", meanwhile)
    monkeypatch.setattr(postgresql_lock, "_ASK_EVERY", 0.3)
    thread, results = later(lambda: Lock(postgres.url("a", port=slow.port)).acquire(timeout=60))
    eventually(lambda: postgres.waiting() == 1)
    ((waits,),) = postgres.ask("select pid from pg_locks where locktype = 'advisory' and not granted")
    seen.set()
    thread.join(20)
    assert results[0].record.fields["session"] == waits
    results[0].release()


def test_a_hold_of_a_task_outlives_its_loop(postgres: Postgres) -> None:
    """The agent's thread keeps it, even when the loop is closed."""
    import asyncio

    async def take() -> holdfast.AsyncHold:
        return await AsyncLock(postgres.url("a"), heartbeat=0.05).acquire(timeout=10)

    hold = asyncio.run(take())
    before = hold._held.term.lapses
    eventually(lambda: hold._held.term.lapses > before)
    hold.ensure_held()
    asyncio.run(hold.release())
    Lock(postgres.url("a")).acquire(timeout=5).release()


def test_a_holder_that_is_cut_off_loses_its_lock_before_the_next_one_enters(partition: Callable[[], None]) -> None:
    """PG6: a network is cut between two machines, so only kernels and clocks tell. With `stale_after` of 3 s, the
    holder gives up after 2 s, the server after 3 s at the earliest."""
    partition()


def _partition() -> None:
    binary("postgres")
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a network namespace")
    for name in ("unshare", "nsenter", "ip"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed: apt-get install util-linux iproute2 (Debian's packages)")
    if subprocess.run(["unshare", "-n", "ip", "link", "add", "hf0", "type", "veth"], capture_output=True).returncode:
        pytest.skip("network namespaces are not permitted here")
    done = subprocess.run(
        ["unshare", "-n", sys.executable, Path(__file__).with_name("partition.py"), "3"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    lost, next_in = map(float, done.stdout.split())
    assert lost < next_in
    assert next_in + 0.6 >= 3  # at most half a second has passed since the last heartbeat, which was before the cut


def test_a_lease_also_runs_while_the_machine_sleeps(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """PG6: the monotonic clock stands still then, but the server goes on."""
    lost: list[LockLost] = []
    hold = Lock(postgres.url("a"), on_lost=lost.append, stale_after=300).acquire(timeout=10)
    real = time.clock_gettime
    asleep = 140.0  # of the 200 s for which the holder believes in the lock
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + asleep * (clock == time.CLOCK_BOOTTIME))
    hold.ensure_held()
    asleep = 260.0
    with pytest.raises(LockLost):
        hold.ensure_held()
    with pytest.raises(LockLost):
        hold.release()
    assert len(lost) == 1
    Lock(postgres.url("a")).acquire(timeout=10).release()


class Sleepy:
    """A statement of ours that, once done, sleeps until it is cancelled; after that it no longer sleeps."""

    CLAUSE = ", (select case when (select slow from public.sleepy) then pg_sleep(60)::text end)"

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    def begin(self) -> None:
        self._postgres.ask("update sleepy set slow = true")

    def cancel(self) -> None:
        sleeping = "select pid from pg_stat_activity where wait_event = 'PgSleep'"
        ((session,),) = eventually(lambda: self._postgres.ask(sleeping))
        self._postgres.ask("update sleepy set slow = false")
        self._postgres.ask("select pg_cancel_backend(%s)", session)


@pytest.fixture
def sleepy(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[object, str, str], Sleepy]]:
    postgres.ask("create table sleepy (slow boolean)")
    postgres.ask("insert into sleepy values (false)")

    def make(module: object, name: str, behind: str) -> Sleepy:
        statement = getattr(module, name)
        assert statement.count(behind) == 1
        monkeypatch.setattr(module, name, statement.replace(behind, f"{behind}{Sleepy.CLAUSE}"))
        return Sleepy(postgres)

    yield make
    connect._pool.close_all(environment())
    postgres.ask("drop table sleepy")


MakeSleepy = Callable[[object, str, str], Sleepy]


def test_a_cancelled_attempt_is_repeated(postgres: Postgres, sleepy: MakeSleepy) -> None:
    """PS6: the cancelled statement has acquired the lock, which must not be counted twice."""
    cancelled = sleepy(postgresql_lock, "_TRY", "select got.it, raised.*")
    cancelled.begin()
    thread, got = later(lambda: Lock(postgres.url("a")).acquire(timeout=30))
    cancelled.cancel()
    thread.join()
    got[0].release()
    assert not postgres.holding()


def test_a_waiter_whose_token_is_cancelled_keeps_its_turn(postgres: Postgres, sleepy: MakeSleepy) -> None:
    """PS6"""
    cancelled = sleepy(postgresql_lock, "_TOKEN", "returning token, extract(epoch from since), backend")
    hold = Lock(postgres.url("a")).acquire(timeout=10)
    thread, got = later(lambda: Lock(postgres.url("a")).acquire(timeout=30))
    eventually(lambda: postgres.waiting() == 1)
    behind, last = later(lambda: Lock(postgres.url("a")).acquire(timeout=30))
    eventually(lambda: postgres.waiting() == 2)
    cancelled.begin()
    hold.release()
    cancelled.cancel()
    thread.join()
    assert not last
    assert got[0].token > hold.token
    got[0].release()
    behind.join()
    last[0].release()


def test_a_cancelled_look_is_repeated(postgres: Postgres, sleepy: MakeSleepy) -> None:
    """PS6"""
    cancelled = sleepy(look, "_LOCKS", "extract(epoch from k.since)")
    with Lock(postgres.url("a")).acquire(timeout=10):
        cancelled.begin()
        thread, seen = later(lambda: Lock(postgres.url("a")).status())
        cancelled.cancel()
        thread.join()
        assert seen[0].locked


def test_a_cancelled_heartbeat_is_not_a_loss(postgres: Postgres, sleepy: MakeSleepy) -> None:
    """PS6"""
    cancelled = sleepy(postgresql_lock, "_BEAT", "select pg_backend_pid()")
    hold = Lock(postgres.url("a"), stale_after=30, heartbeat=0.3).acquire(timeout=10)
    cancelled.begin()
    cancelled.cancel()
    ((now,),) = postgres.ask("select clock_timestamp()")
    session = hold.record.fields["session"]
    later_beat = "select 1 from pg_stat_activity where pid = %s and query_start > %s"
    eventually(lambda: hold.lost or postgres.ask(later_beat, session, now))
    hold.ensure_held()
    hold.release()


def test_a_cancelled_release_frees_the_lock_and_reports_no_loss(postgres: Postgres, sleepy: MakeSleepy) -> None:
    """PS6: the cancelled statement has released the lock, so the repeated one finds none."""
    cancelled = sleepy(postgresql_lock, "_UNLOCK", "select pg_advisory_unlock($1)")
    hold = Lock(postgres.url("a")).acquire(timeout=10)
    cancelled.begin()
    thread, results = later(hold.release)
    cancelled.cancel()
    thread.join()
    assert results == [None]
    assert not postgres.holding()
