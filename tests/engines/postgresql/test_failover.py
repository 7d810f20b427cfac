"""The primary dies, and its standby is promoted."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import holdfast
from engines.postgresql.server import Postgres
from holdfast import Lock
from holdfast.engines.postgresql import init
from process.support import eventually


@pytest.fixture
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    """A primary, and a standby that has each commit before it is answered."""
    primary = Postgres()
    try:
        init(primary.url())
        standby = Postgres(copy_of=primary)
        try:
            primary.ask("alter system set synchronous_standby_names = '*'")
            primary.ask("select pg_reload_conf()")
            eventually(lambda: primary.ask("select sync_state from pg_stat_replication") == [("sync",)])
            yield primary, standby
        finally:
            standby.remove()
    finally:
        primary.remove()


def test_a_failover_leaves_two_holders_or_takes_tokens_back(pair: tuple[Postgres, Postgres]) -> None:
    """The holder is told before anybody can get in; who waits goes on at the new primary, with a higher token."""
    primary, standby = pair
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
