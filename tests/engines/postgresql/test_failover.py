"""The primary dies, and its standby is promoted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import holdfast
from engines.arms import side_by_side
from engines.postgresql.server import Postgres
from holdfast import Lock
from holdfast.engines.postgresql import init
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
    """Each with servers of its own."""
    return side_by_side(synchronous=_synchronous, asynchronous=_asynchronous)


def tokens_of(url: str, count: int) -> list[int]:
    found = []
    for _ in range(count):
        with Lock(url).acquire(timeout=10) as hold:
            assert hold.token is not None
            found.append(hold.token)
    return found


def test_a_failover_that_has_lost_tokens_does_not_give_them_out_again(arms: dict[str, Callable[[], None]]) -> None:
    """PG2: the new primary has not seen the last ten holds of the old one, nor one of the names."""
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
    """The holder is told before anybody can get in; who waits goes on at the new primary, with a higher token. The
    standby has each commit before it is answered."""
    arms["synchronous"]()


def _synchronous() -> None:
    with pair() as (primary, standby):
        primary.ask("alter system set synchronous_standby_names = '*'")
        primary.ask("select pg_reload_conf()")
        eventually(lambda: primary.ask("select sync_state from pg_stat_replication") == [("sync",)])
        _fail_over(primary, standby)


def _fail_over(primary: Postgres, standby: Postgres) -> None:
    url = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres#a"
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
