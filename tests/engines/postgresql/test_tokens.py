"""Fencing tokens, and a resource that checks them, while holders and the server are killed."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

import holdfast
from engines.postgresql.server import Postgres
from holdfast import Hold, Lock
from holdfast.engines.postgresql import connect as postgresql_connect
from holdfast.engines.postgresql import lock as postgresql_lock
from holdfast.engines.postgresql.connect import key_of
from process.support import Peer, eventually

SECONDS = float(os.environ.get("HOLDFAST_TEST_SECONDS", "0"))
TURNS = 200
"""How often a holder or a session may be killed, at least."""


@pytest.fixture
def guarded(postgres: Postgres) -> Iterator[str]:
    """A counter that refuses a token lower than any it has seen."""
    postgres.ask("create table guarded (count bigint, token bigint)")
    postgres.ask("insert into guarded values (0, 0)")
    yield "guarded"
    postgres.ask("drop table guarded")


def test_a_lock_acquired_at_the_first_try_has_a_new_token(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """PG1: other holds come and go between the statement's snapshot and the lock; the token exceeds all of theirs."""
    gated = postgresql_lock._TRY.replace("as it)", "as it from (select pg_advisory_lock(4711) offset 0) as gate)", 1)
    assert gated != postgresql_lock._TRY
    lock, got = Lock(postgres.url("a")), list[Hold | None]()
    with psycopg.connect(postgres.url(), autocommit=True) as gate:
        gate.execute("select pg_advisory_lock(4711)")
        with monkeypatch.context() as patched:
            patched.setattr(postgresql_lock, "_TRY", gated)
            late = threading.Thread(target=lambda: got.append(lock.try_acquire()))
            late.start()
            eventually(lambda: postgres.waiting() == 1)
        tokens = []
        for _ in range(3):
            with lock.acquire(timeout=10) as hold:
                tokens.append(hold.token)
        gate.execute("select pg_advisory_unlock(4711)")
        late.join()
    (hold_of_late,) = got
    assert hold_of_late is not None
    tokens.append(hold_of_late.token)
    hold_of_late.release()
    assert tokens == sorted(set(tokens))
    postgres.ask("select pg_terminate_backend(pid, 5000) from pg_locks where locktype = 'advisory'")  # has the gate


CONTENDER = """
import psycopg, random
url, lock = sys.argv[1:3]
while True:
    try:
        with Lock(lock, stale_after=3, timeout=20) as hold:
            with psycopg.connect(url, autocommit=True) as resource:
                seen = resource.execute(
                    "update guarded set token = %s where token < %s returning count", (hold.token, hold.token)
                ).fetchone()  # from its first look on, the resource refuses those who were here before
                if seen is None:
                    continue
                count = seen[0]
                time.sleep(random.random() * 0.002)
                taken = resource.execute(
                    "update guarded set count = %s where token = %s", (count + 1, hold.token)
                ).rowcount
            say("done", hold.token, taken, count + 1)
    except (holdfast.LockLost, holdfast.EngineUnavailable, holdfast.AcquireTimeout, psycopg.OperationalError) as error:
        say("again", type(error).__name__)
        time.sleep(0.02)
"""


def test_no_increment_is_lost_where_the_resource_checks_tokens(
    postgres: Postgres, guarded: str, spawn: Callable[..., Peer]
) -> None:
    """PG1. Holders and sessions are killed at random; every accepted increment is there, in the order of tokens."""
    url, lock = postgres.url(), postgres.url("counted")
    chance = random.Random(7)
    peers = [spawn(CONTENDER, url, lock) for _ in range(3)]
    heard: list[tuple[int, int]] = []
    unheard = 0

    def listen(peer: Peer, *, to_the_end: bool = False) -> None:
        while to_the_end or not peer.silent():
            try:
                words = peer.hear().split()
            except AssertionError:  # it has ended, and all its output was read
                assert to_the_end
                return
            if words[0] == "done" and words[2] == "1":
                heard.append((int(words[1]), int(words[3])))

    ended = time.monotonic() + SECONDS
    turns = 0
    while time.monotonic() < ended or turns < TURNS or len(heard) < 30:
        turns += 1
        for peer in peers:
            listen(peer)
        draw = chance.random()
        if draw < 0.05 and peers[0]._said:  # otherwise it has not even begun
            victim = peers.pop(0)
            victim.kill()
            victim.wait()
            listen(victim, to_the_end=True)
            unheard += 1  # its last increment may have been accepted, but not reported
            peers.append(spawn(CONTENDER, url, lock))
        elif draw < 0.1:
            Lock(lock).break_lock()
        time.sleep(0.005)
    for peer in peers:
        peer.kill()
        peer.wait()
        listen(peer, to_the_end=True)
        unheard += 1
    ((count, token),) = postgres.ask("select count, token from guarded")
    heard.sort()
    counts = [number for _, number in heard]
    assert counts == sorted(set(counts)), "two wrote the same count, or an older holder wrote over a newer one"
    assert len(heard) <= int(str(count)) <= len(heard) + unheard
    assert heard[-1][0] <= int(str(token))


def test_an_old_holder_does_not_write_over_a_new_one(postgres: Postgres, guarded: str) -> None:
    """The window that fencing covers: the holder has lost its lock, and does not know it yet."""
    old = Lock(postgres.url("a"), heartbeat=0).acquire(timeout=10)
    session = old.record.fields["session"]
    postgres.ask("select pg_terminate_backend(%s, 5000)", session)
    with Lock(postgres.url("a")).acquire(timeout=5) as new:
        write = "update guarded set count = count + 1, token = %s where token < %s returning count"
        assert postgres.ask(write, new.token, new.token)
        assert not postgres.ask(write, old.token, old.token)
    with pytest.raises(holdfast.LockLost):
        old.release()


def test_a_row_of_an_older_version_is_continued_with_higher_tokens(postgres: Postgres) -> None:
    """PG2: its token has no timeline. A token that such a version gives afterwards is lower than our next."""
    Lock(postgres.url("older")).acquire(timeout=10).release()
    postgres.ask("update holdfast.lock set token = 17 where key = %s", key_of("older"))
    with Lock(postgres.url("older")).acquire(timeout=10) as hold:
        assert hold.token == (1 << 40) + 1
    postgres.ask("update holdfast.lock set token = token + 1 where key = %s", key_of("older"))
    with Lock(postgres.url("older")).acquire(timeout=10) as hold:
        assert hold.token == (1 << 40) + 3


def test_a_server_without_a_timeline_has_tokens(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """PG2: it refuses to tell its timeline, so no standby can be promoted, and the row's count goes on."""
    monkeypatch.setattr(postgresql_connect, "_TIMELINE", "no_such_function()")
    url = postgres.url("logless", more="?application_name=logless")
    with Lock(url).acquire(timeout=10) as hold:
        assert hold.token == 1
    postgres.ask("update holdfast.lock set token = 41 where key = %s", key_of("logless"))
    with Lock(url).acquire(timeout=10) as hold:
        assert hold.token == 42


def test_names_with_the_same_key_are_refused_with_the_reason(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PC2: the row has the name, so the second name's caller is told the cause."""
    Lock(postgres.url("collides")).acquire(timeout=10).release()
    postgres.ask("update holdfast.lock set name = 'another' where key = %s", key_of("collides"))
    with pytest.raises(holdfast.HoldfastError, match="same 64-bit key"):
        Lock(postgres.url("collides")).acquire(timeout=10)
    # The server frees the lock of a refused session once it sees that the connection is closed.
    eventually(lambda: not Lock(postgres.url("collides")).status().locked, what="the end of the refused one's lock")
    postgres.ask("delete from holdfast.lock where name = 'another'")


def test_a_waiter_that_times_out_does_not_raise_the_token(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """PG1."""
    with Lock(postgres.url("a")).acquire(timeout=10) as hold:
        for _ in range(3):
            with pytest.raises(holdfast.AcquireTimeout):
                Lock(postgres.url("a")).acquire(timeout=0.05)
        token = hold.token
        assert token is not None
    with Lock(postgres.url("a")).acquire(timeout=10) as hold:
        assert hold.token == token + 1
