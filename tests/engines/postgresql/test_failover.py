"""The primary dies, and its standby is promoted."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import holdfast
from engines.arms import side_by_side
from engines.postgresql.server import Postgres
from holdfast import Lock
from holdfast._core.messages import waiting
from holdfast._drivers.sync import drive
from holdfast._platform import environment
from holdfast.engines.postgresql import connect, init
from holdfast.engines.postgresql import lock as postgresql_lock
from holdfast.engines.postgresql.connect import key_of
from holdfast.lock import announce
from process.support import eventually


@contextmanager
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    """A primary, and a standby that follows it."""
    primary = Postgres()
    try:
        init(primary.url())
        standby = Postgres(copy_of=primary)
        try:
            eventually(lambda: primary.ask("select 1 from pg_stat_replication"))
            yield primary, standby
        finally:
            standby.remove()
    finally:
        primary.remove()


@pytest.fixture(scope="module")
def arms() -> dict[str, Callable[[], None]]:
    """Tests that run at once, each with servers of its own."""
    return side_by_side(synchronous=_synchronous, asynchronous=_asynchronous, silent=_silent, cancelled=_cancelled)


def both(*servers: Postgres) -> str:
    """The URL of the locks on both servers."""
    return f"postgresql://postgres@{','.join(f'127.0.0.1:{one.port}' for one in servers)}/postgres#"


def resolve(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Make every name resolve to these addresses."""

    def answers(*_: object) -> Any:
        yield from ()
        return [(0, (address,)) for address in addresses]

    monkeypatch.setattr(connect, "resolve", answers)


def timeline_of(hold: holdfast.Hold) -> int:
    assert hold.token is not None
    return hold.token >> 40


def tokens_of(url: str, count: int) -> list[int]:
    found = []
    for _ in range(count):
        with Lock(url).acquire(timeout=10) as hold:
            assert hold.token is not None
            found.append(hold.token)
    return found


def test_a_failover_that_has_lost_tokens_does_not_give_them_out_again(arms: dict[str, Callable[[], None]]) -> None:
    """PG2: the new primary has seen neither the last ten holds of the old one, nor one of the names."""
    arms["asynchronous"]()


def _asynchronous() -> None:
    with pair() as (primary, standby):
        role = "create role ordinary login; grant usage on schema holdfast to ordinary;"
        primary.ask(f"{role} grant select, insert, update on holdfast.lock to ordinary")
        url = f"postgresql://ordinary@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres#"
        tokens, news = tokens_of(f"{url}a", 7), list[int]()
        last = primary.ask("select pg_current_wal_lsn()")[0][0]
        eventually(lambda: standby.ask("select pg_last_wal_replay_lsn() >= %s::pg_lsn", last) == [(True,)])
        standby.ask("alter system set primary_conninfo = ''")
        standby.ask("select pg_reload_conf()")
        eventually(lambda: not standby.ask("select 1 from pg_stat_wal_receiver"))
        tokens += tokens_of(f"{url}a", 10)
        news += tokens_of(f"{url}new", 3)
        primary.forget()
        primary.kill()
        standby.ask("select pg_promote()")
        rows = standby.ask("select name, token from holdfast.lock")
        assert rows == [("a", tokens[6])], "the standby knows more than this test is about"
        tokens += tokens_of(f"{url}a", 3)
        news += tokens_of(f"{url}new", 3)
        standby.forget()
    for each in (tokens, news):
        assert each == sorted(set(each))
        assert each[-1] < 2**53


def test_a_failover_never_leaves_two_holders_or_takes_tokens_back(arms: dict[str, Callable[[], None]]) -> None:
    """The holder is told before anybody can get in; waiters go on at the new primary, with higher tokens. The standby
    has each commit before it is confirmed."""
    arms["synchronous"]()


def _synchronous() -> None:
    with pair() as (primary, standby):
        _synchronize(primary)
        _fail_over(primary, standby)


def _synchronize(primary: Postgres) -> None:
    primary.ask("alter system set synchronous_standby_names = '*'")
    primary.ask("select pg_reload_conf()")
    eventually(lambda: primary.ask("select sync_state from pg_stat_replication") == [("sync",)])


def _fail_over(primary: Postgres, standby: Postgres) -> None:
    url = both(primary, standby) + "a"
    for _ in range(3):
        with Lock(url).acquire(timeout=10):
            pass
    lost: list[holdfast.LockLost] = []
    hold = Lock(url, on_lost=lost.append).acquire(timeout=10)
    got: list[holdfast.Hold] = []
    waiter = threading.Thread(target=lambda: got.append(Lock(url).acquire(timeout=60)))
    waiter.start()
    eventually(lambda: primary.waiting() == 1)
    primary.forget()
    primary.kill()
    eventually(lambda: lost)
    assert hold.lost
    with pytest.raises(holdfast.EngineUnavailable, match="standby"):
        Lock(standby.url("a")).acquire(timeout=5)
    assert not got
    standby.ask("select pg_promote()")
    waiter.join(60)
    assert got[0].token is not None
    assert hold.token is not None
    assert got[0].token > hold.token
    with pytest.raises(holdfast.LockLost):
        hold.release()
    got[0].ensure_held()
    got[0].release()


def test_an_old_primary_that_confirms_nothing_keeps_no_caller_from_the_new_one(
    arms: dict[str, Callable[[], None]],
) -> None:
    """PG11: it is the first of the hosts, writable, and waits for its standby with each token."""
    arms["silent"]()


def _silent() -> None:
    with pair() as (primary, standby):
        _synchronize(primary)
        standby.ask("select pg_promote()")
        eventually(lambda: not primary.ask("select 1 from pg_stat_replication"))
        with Lock(both(primary, standby) + "a").acquire(timeout=50) as hold:
            assert timeline_of(hold) == 2
        primary.forget()
        standby.forget()


def test_a_token_whose_wait_for_the_standby_is_cancelled_is_not_given_out(arms: dict[str, Callable[[], None]]) -> None:
    """PS6: the server reports a success, with a warning. The standby does not know that token."""
    arms["cancelled"]()


def _cancelled() -> None:
    waiting = "select pid, query_start from pg_stat_activity where wait_event = 'SyncRep'"
    with pair() as (primary, standby):
        primary.ask("alter role postgres set client_min_messages = 'error'")  # of that warning, too
        _synchronize(primary)
        tokens_of(primary.url("a"), 1)
        standby.kill()
        got: list[holdfast.Hold] = []
        caller = threading.Thread(target=lambda: got.append(Lock(primary.url("a")).acquire(timeout=60)), daemon=True)
        caller.start()
        ((session, began),) = eventually(lambda: primary.ask(waiting))
        primary.ask("select pg_cancel_backend(%s)", session)
        eventually(lambda: got or [when for _, when in primary.ask(waiting) if when != began])
        assert not got
        standby.start()
        caller.join(60)
        got[0].release()
        primary.forget()
        standby.forget()


def test_a_caller_that_arrives_during_a_failover_waits_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """PG5: of two hosts, one is gone and the other is a standby. A caller that does not wait is told at once; one that
    waits without a limit is told once it takes longer than any failover."""
    attempts: list[int] = []
    real = postgresql_lock.obtain

    def counted(*arguments: Any, **options: Any) -> Any:
        attempts.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr(postgresql_lock, "obtain", counted)
    with pair() as (primary, standby):
        url = both(primary, standby) + "a"
        primary.kill()
        with pytest.raises(holdfast.EngineUnavailable, match=r"none of its hosts can be written to.*failover"):
            Lock(url).try_acquire()
        with monkeypatch.context() as patched:
            patched.setattr(postgresql_lock, "_FAIL_OVER_WITHIN", 0.2)
            with pytest.raises(holdfast.EngineUnavailable, match="is a standby"):
                Lock(url).acquire()
        attempts.clear()
        same = f"hostaddr=127.0.0.1,127.0.0.1&port={standby.port},{standby.port}"
        with pytest.raises(holdfast.EngineUnavailable, match="is a standby"):
            Lock(f"postgresql://postgres@one,one/postgres?{same}#a").acquire(timeout=60)
        assert len(attempts) == 1, "one address that is named twice is no cluster"
        one_name = f"postgresql://postgres@db:{standby.port}/postgres#a"
        for other, said_of_all in (("::1", False), ("127.0.0.2", True)):  # one server, as localhost is; and two
            resolve(monkeypatch, "127.0.0.1", other)
            with pytest.raises(holdfast.EngineUnavailable, match="is a standby") as refused:
                Lock(one_name).try_acquire()
            assert ("none of its hosts can be written to" in refused.value.message) == said_of_all
        got: list[holdfast.Hold] = []
        said: list[str] = []
        lock = Lock(url)
        announce(lock, lambda refusal: said.append(waiting(refusal)))
        newcomer = threading.Thread(target=lambda: got.append(lock.acquire(timeout=60)), daemon=True)
        attempts.clear()
        newcomer.start()
        eventually(lambda: len(attempts) >= 3 and said)
        assert "its server cannot be reached: none of its hosts can be written to" in said[0]
        standby.ask("select pg_promote()")
        newcomer.join(60)
        assert timeline_of(got[0]) == 2
        got[0].release()
        standby.forget()


def test_the_address_that_did_not_answer_is_tried_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PG11, PG12: the addresses of a name may be those of a cluster. No server listens at that port."""
    resolve(monkeypatch, "127.0.0.1", "127.0.0.2", "127.0.0.3")
    env, lock_url = environment(), connect.parse("postgresql://db:1/locks#a")
    one, _, three = (connect._address("db", f"127.0.0.{number}", "1").conninfo for number in (1, 2, 3))
    with pytest.raises(holdfast.EngineUnavailable) as refused:
        drive(connect.connect(env, lock_url, env.monotonic() + 20, first=three, last=one))
    assert re.findall(r"127\.0\.0\.(\d)\b", refused.value.message) == ["3", "2", "1"]


def test_a_waiting_command_reports_the_outage_and_then_its_place_in_the_queue() -> None:
    with pair() as (primary, standby):
        primary.kill()
        standby.ask("select pg_advisory_lock(%s)", key_of("a"))  # a standby grants it, and this session keeps it
        words = [sys.executable, "-m", "holdfast", "run", both(primary, standby) + "a", "--", "true"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as run:
            assert run.stderr is not None
            assert "none of its hosts can be written to" in run.stderr.readline()
            standby.ask("select pg_promote()")
            assert "number 1 of 1 in the queue" in run.stderr.readline()
            standby.ask("select pg_advisory_unlock_all()")
        assert run.returncode == 0
        standby.forget()


def test_an_old_primary_that_is_back_draws_no_waiter_from_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """PG12: it is the first of the hosts, and does not know the sessions of another server."""
    answers: list[bool] = []
    real = postgresql_lock.AcquireAttempt._is_known

    def noted(*arguments: Any) -> Any:
        known = yield from real(*arguments)
        answers.append(known)
        return known

    with pair() as (primary, standby):
        url = both(primary, standby) + "a"
        primary.kill()
        standby.ask("select pg_promote()")
        hold = Lock(url).acquire(timeout=60)
        monkeypatch.setattr(postgresql_lock, "_ASK_EVERY", 0.02)
        monkeypatch.setattr(postgresql_lock.AcquireAttempt, "_is_known", noted)
        got: list[holdfast.Hold] = []
        waiter = threading.Thread(target=lambda: got.append(Lock(url).acquire(timeout=60)), daemon=True)
        waiter.start()
        eventually(lambda: standby.waiting() == 1)
        primary.start()
        before = len(answers)
        eventually(lambda: len(answers) >= before + 3 or got)
        assert not got
        assert all(answers)
        assert standby.waiting() == 1
        hold.release()
        waiter.join(60)
        assert timeline_of(got[0]) == 2
        got[0].release()
        standby.forget()


def test_a_waiter_leaves_a_hanging_primary_for_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """PG12: its own server grants no session, and the other one has a newer timeline."""
    monkeypatch.setattr(postgresql_lock, "_ASK_EVERY", 0.5)
    monkeypatch.setattr(postgresql_lock, "_REACH_WITHIN", 2.0)
    with pair() as (primary, standby):
        url = both(primary, standby) + "a"
        holder = Lock(url).acquire(timeout=10)
        got: list[holdfast.Hold] = []
        waiter = threading.Thread(target=lambda: got.append(Lock(url).acquire(timeout=60)), daemon=True)
        waiter.start()
        eventually(lambda: primary.waiting() == 1)
        primary.signal(signal.SIGSTOP)
        standby.ask("select pg_promote()")
        waiter.join(60)
        assert timeline_of(got[0]) == 2
        got[0].release()
        with pytest.raises(holdfast.LockLost):
            holder.release()
        primary.forget()
        standby.forget()
