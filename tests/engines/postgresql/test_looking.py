"""Holders and waiters as they are reported, and breaking the locks of other roles."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import holdfast
from engines.postgresql.server import Postgres
from holdfast import EngineUnavailable, Lock
from holdfast._drivers.sync import drive, wait_for
from holdfast._platform import environment
from holdfast.engines import postgresql
from holdfast.engines.postgresql import ENGINE, Postgresql
from holdfast.engines.postgresql.connect import key_of, parse
from holdfast.engines.postgresql.look import comment, describe
from holdfast.model import Record
from process.support import eventually


@pytest.fixture
def other(postgres: Postgres) -> Iterator[str]:
    """Another role that may use locks, and nothing else."""
    postgres.ask("create role other login")
    postgres.ask("grant usage on schema holdfast to other")
    postgres.ask("grant select, insert, update on holdfast.lock to other")
    yield "other"
    postgres.ask("drop owned by other")
    postgres.ask("drop role other")


def test_an_outdated_row_does_not_name_the_holder(postgres: Postgres) -> None:
    """PO1: the row is that of an earlier holder; psql, say, has the lock."""
    Lock(postgres.url("a"), tag="long gone").acquire(timeout=10).release()
    with psycopg.connect(postgres.url(), autocommit=True, application_name="psql") as stranger:
        stranger.execute("select pg_advisory_lock(%s)", (key_of("a"),))
        pid = stranger.info.backend_pid
        postgres.ask("update holdfast.lock set backend = %s, since = '2020-01-01' where name = 'a'", pid)
        status = Lock(postgres.url("a")).status()
        assert status.locked
        assert status.holder is not None
        assert status.holder.pid is None
        assert status.holder.tag is None
        assert f"session {pid} (psql)" in status.evidence.text
        with pytest.raises(holdfast.AcquireTimeout, match=r"\(psql\)"):
            Lock(postgres.url("a")).acquire(timeout=0)
        assert Lock(postgres.url("a")).break_lock() is not None
        with pytest.raises(psycopg.OperationalError):
            stranger.execute("select 1")
    Lock(postgres.url("a")).acquire(timeout=5).release()


def test_a_lock_that_another_program_shares_is_held(postgres: Postgres) -> None:
    """PO1: `pg_advisory_lock_shared` keeps holders out as well."""
    lock = Lock(postgres.url("a"))
    with psycopg.connect(postgres.url(), autocommit=True, application_name="psql") as stranger:
        stranger.execute("select pg_advisory_lock_shared(%s)", (key_of("a"),))
        status = lock.status()
        assert status.locked
        assert f"session {stranger.info.backend_pid} (psql)" in status.evidence.text
        with pytest.raises(holdfast.AcquireTimeout, match=r"\(psql\)"):
            lock.acquire(timeout=0)
        assert lock.break_lock() is not None
    lock.acquire(timeout=5).release()


def test_a_test_whether_a_lock_is_free_is_no_holder(postgres: Postgres) -> None:
    """PO1: `Lock.wait` shares the lock for one statement, in a session that its user may have named."""
    with psycopg.connect(postgres.url(), application_name="mine") as session:
        session.execute("select pg_try_advisory_xact_lock_shared(%s)", (key_of("a"),))
        assert not Lock(postgres.url("a")).status().locked


@pytest.mark.parametrize("pid", ["9" * 11, "9" * 5000])
def test_a_session_that_says_nonsense_of_itself_keeps_nobody_from_looking(pid: str) -> None:
    """Others choose what their sessions say: a pid without end could not even be read."""
    facts = (f"holdfast {pid[:20]}@h", f"/*holdfast {pid} h */", None, "1", "f", *[None] * 5)
    row = (None, None, "7", "t", "ExclusiveLock", None, *facts)
    status = describe(parse("postgresql://host/db#a"), "a", [row, (*row[:3], "f", *row[4:])])
    assert (status.locked, status.holder and status.holder.pid) == (True, None)
    assert [one.pid for one in status.waiters] == [0]


def test_the_row_of_an_earlier_hold_of_the_session_does_not_name_the_holder(postgres: Postgres) -> None:
    """PO1: a session has the lock again, and has yet to write its row. A look may come in between."""
    Lock(postgres.url("a")).acquire(timeout=10).release()
    write = "update holdfast.lock set backend = pg_backend_pid(), since = clock_timestamp(), pid = %s, tag = %s"
    with psycopg.connect(postgres.url(), autocommit=True) as session:
        session.execute(write, (1, "old"))
        session.execute(comment(4242, "h", "next") + "select pg_advisory_lock(%s)", (key_of("a"),))
        holder = Lock(postgres.url("a")).status().holder
        assert holder is not None
        assert (holder.pid, holder.tag, holder.since) == (4242, "next", None)
        session.execute(write, (4242, "next"))
        for beat in ("select 1", "select pg_backend_pid()"):
            session.execute(beat)
            record = Lock(postgres.url("a")).status().record
            assert record is not None
            assert record.fields["token"]


def test_breaking_an_earlier_hold_does_not_end_a_session_that_has_the_lock_again(postgres: Postgres) -> None:
    """PO1: although the row still has the token of the earlier hold."""
    Lock(postgres.url("a")).acquire(timeout=10).release()
    key = (key_of("a"),)
    with psycopg.connect(postgres.url(), autocommit=True) as session:
        session.execute("select pg_advisory_lock(%s)", key)
        session.execute("update holdfast.lock set backend = pg_backend_pid(), since = clock_timestamp()")

        def agreed(record: Record) -> bool:
            if record.fields.get("token") is None:
                return False
            session.execute("select pg_advisory_unlock(%s)", key)
            session.execute(comment(4242, "h", "next") + "select pg_advisory_lock(%s)", key)
            return True

        request = ENGINE.request(postgres.url("a"), {})
        assert drive(ENGINE.break_if(environment(), request, agreed)) is None  # type: ignore[arg-type]
        session.execute("select 1")


def test_breaking_the_lock_of_another_role_fails_with_a_reason(postgres: Postgres, other: str) -> None:
    with Lock(postgres.url("a"), tag="mine").acquire(timeout=10) as hold:
        theirs = Lock(postgres.url("a", user=other))
        assert theirs.status().holder.tag == "mine"  # type: ignore[union-attr]
        with pytest.raises(holdfast.HoldfastError, match="pg_signal_backend") as refused:
            theirs.break_lock()
        assert refused.value.holder is not None
        hold.ensure_held()
    with Lock(postgres.url("a", user=other)).acquire(timeout=5) as hold:
        assert Lock(postgres.url("a")).break_lock() is not None
        with pytest.raises(holdfast.LockLost):
            hold.release()


def test_a_waiter_of_another_role_is_seen(postgres: Postgres, other: str) -> None:
    """Other roles cannot see its statement, but they see the name of its session."""
    with Lock(postgres.url("a")).acquire(timeout=10):
        waiter = threading.Thread(
            target=lambda: Lock(postgres.url("a"), tag="of the master").acquire(timeout=20).release()
        )
        waiter.start()
        eventually(lambda: Lock(postgres.url("a", user=other)).status().waiters)
        (seen,) = Lock(postgres.url("a", user=other)).status().waiters
        assert seen.pid == environment().identity().pid
        assert seen.since is not None
        assert seen.tag is None
        (mine,) = Lock(postgres.url("a")).status().waiters
        assert mine.tag == "of the master"
    waiter.join()


def test_a_break_is_not_reported_while_the_session_goes_on(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process on the server is stuck, so the lock is still taken."""
    monkeypatch.setattr(postgresql, "_BREAK_WITHIN_MS", 200)
    lock = Lock(postgres.url("a"), heartbeat=0)
    hold = lock.acquire(timeout=10)
    session = hold.record.fields["session"]
    assert isinstance(session, int)
    os.kill(session, signal.SIGSTOP)
    try:
        with pytest.raises(holdfast.HoldfastError, match=rf"not broken: .* session {session} to end.* within 0.2 s"):
            lock.break_lock()
        assert lock.status().locked
    finally:
        os.kill(session, signal.SIGCONT)
    eventually(lambda: hold.lost)
    with pytest.raises(holdfast.LockLost):
        hold.release()


def test_a_break_whose_answer_is_lost_does_not_say_that_nobody_held(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PC7: a kept session that has answered is like a new one. Its own end comes before the answer here."""
    lock = Lock(postgres.url("a"))
    hold = lock.acquire(timeout=10)
    Lock(postgres.url("b")).acquire(timeout=10).release()
    ends_itself = "select ended.*, pg_terminate_backend(pg_backend_pid()) from ended"
    monkeypatch.setattr(postgresql, "_BREAK", f"with ended as ({postgresql._BREAK}) {ends_itself}")
    with pytest.raises(EngineUnavailable, match="terminating connection"):
        lock.break_lock()
    eventually(lambda: hold.lost)
    with pytest.raises(holdfast.LockLost):
        hold.release()


def test_a_tag_does_not_break_out_of_its_comment(postgres: Postgres) -> None:
    for tag in ("*/ select pg_sleep(100); /*", "' \" \\ $1 %s", "ü 漢字 \u202e", "x" * 10_000):
        with Lock(postgres.url("a"), tag=tag).acquire(timeout=10) as hold:
            assert hold.record.tag == tag
            waiter = threading.Thread(
                target=lambda: Lock(postgres.url("a"), tag=tag).acquire(timeout=20).release()  # noqa: B023
            )
            waiter.start()
            eventually(lambda: Lock(postgres.url("a")).status().waiters)
            status = Lock(postgres.url("a")).status()
            assert status.holder is not None
            assert status.holder.tag == tag
            assert status.waiters[0].tag is not None
            assert status.waiters[0].tag[:15] == tag[:15]
        waiter.join()


def test_a_list_has_exactly_the_held_locks(postgres: Postgres) -> None:
    """200 locks of one process, each with a session of its own; names with characters that patterns use."""
    names = ["p%", "p_", "p*", *(f"p/{number:03}" for number in range(197))]
    holds = [Lock(postgres.url(name.replace("%", "%25"))).acquire(timeout=20) for name in names]
    free = Lock(postgres.url("p/free")).acquire(timeout=10)
    free.release()
    env = environment()
    found = drive(ENGINE.survey(env, postgres.url("p")))
    assert len(found) == 200
    assert [status.path for status in found] == sorted(hold.path for hold in holds)
    assert len(drive(ENGINE.survey(env, postgres.url("p%25")))) == 1
    assert len(drive(ENGINE.survey(env, postgres.url()))) == 200
    for hold in holds:
        hold.ensure_held()
        hold.release()
    assert drive(ENGINE.survey(env, postgres.url("p"))) == ()


def test_a_hundred_waiters_come_in_in_order(postgres: Postgres) -> None:
    hold = Lock(postgres.url("a")).acquire(timeout=10)
    order: list[int] = []
    threads = []

    def work(number: int) -> None:
        with Lock(postgres.url("a"), timeout=60, tag=str(number)):
            order.append(number)

    for number in range(100):
        threads.append(threading.Thread(target=work, args=(number,)))
        threads[-1].start()
        eventually(lambda number=number: postgres.waiting() == number + 1)  # type: ignore[misc]
    assert [waiter.tag for waiter in Lock(postgres.url("a")).status().waiters] == [str(n) for n in range(100)]
    hold.release()
    for thread in threads:
        thread.join()
    assert order == list(range(100))


def test_a_follower_waits_for_a_server_that_is_away_for_a_while(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on etcd, a missing server is an error only at the beginning."""
    real = Postgresql.survey
    calls: list[str] = []
    told: list[Any] = []

    def survey(self: Postgresql, env: Any, resource: str) -> Any:
        calls.append(resource)
        if len(calls) == 2:
            raise EngineUnavailable("it is restarted")
        return real(self, env, resource)

    monkeypatch.setattr(Postgresql, "survey", survey)
    steps = ENGINE.follow(environment(), postgres.url("a"), told.append)
    while len(told) < 2:
        wait_for(next(steps))
    steps.close()
    assert len(calls) == 3
    calls[:] = calls[:1]
    with pytest.raises(EngineUnavailable):
        next(ENGINE.follow(environment(), postgres.url("a"), told.append))
