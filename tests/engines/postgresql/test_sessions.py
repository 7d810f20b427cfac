"""Sessions that are fit for a lock, unlike those of standbys and some poolers; and error messages."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from engines.arms import side_by_side
from engines.postgresql.server import Pgbouncer, Postgres, free_port
from holdfast import Lock
from holdfast._drivers.sync import drive
from holdfast._platform import environment
from holdfast.engines.postgresql import connect as postgresql_connect
from holdfast.engines.postgresql import init
from holdfast.engines.postgresql import lock as postgresql_lock
from holdfast.engines.postgresql.connect import connect, parse
from holdfast.engines.postgresql.connection import Refused
from process.support import eventually


@pytest.fixture
def standby(postgres: Postgres) -> Iterator[Postgres]:
    made = Postgres(copy_of=postgres)
    yield made
    made.remove()


@pytest.fixture(scope="module")
def arms(_server: Postgres) -> dict[str, Callable[[], None]]:
    """The tests that wait for an answer that never comes, all at once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(postgresql_connect, "_PROOF_WITHIN", 1.0)
        return side_by_side(
            transactions=lambda: _transactions(_server),
            unreset=lambda: _unreset(_server),
            mute=_mute,
            silent=lambda: _silent(_server),
        )


def test_a_pooler_of_transactions_is_refused(arms: dict[str, Callable[[], None]]) -> None:
    """PC4: and so it is at the next attempt."""
    arms["transactions"]()


def _transactions(postgres: Postgres) -> None:
    bouncer = Pgbouncer(postgres, "transaction")
    url = postgres.url("pooled", port=bouncer.port)

    def refused() -> None:
        with pytest.raises(holdfast.EngineUnavailable, match=r"pooler.*pool_mode = session"):
            Lock(url).acquire(timeout=10)

    for tell in side_by_side(one=refused, other=refused).values():
        tell()
    _require_untouched(postgres, bouncer)
    bouncer.remove()


def _require_untouched(postgres: Postgres, bouncer: Pgbouncer) -> None:
    """PC5: the settings of a refused session would break the statements of its next client."""
    names = ("search_path", "client_min_messages", "tcp_user_timeout", "transaction_isolation", "lock_timeout")
    asked = "select " + ", ".join(f"current_setting('{name}')" for name in names)
    with psycopg.connect(
        host="127.0.0.1", port=bouncer.port, user="postgres", dbname="postgres", autocommit=True
    ) as client:
        assert client.execute(asked).fetchone() == postgres.ask(asked)[0]


def test_a_pooler_that_resets_no_session_is_refused(arms: dict[str, Callable[[], None]]) -> None:
    """PC4: the lock of a dead client would pass to its next client, or to nobody for ever."""
    arms["unreset"]()


def _unreset(postgres: Postgres) -> None:
    bouncer = Pgbouncer(postgres, "session", "server_reset_query =")
    with pytest.raises(holdfast.EngineUnavailable, match=r"does not reset .* server_reset_query.*Set that to DISCARD"):
        Lock(postgres.url("pooled", port=bouncer.port)).acquire(timeout=20)
    _require_untouched(postgres, bouncer)
    bouncer.remove()


def test_a_pooler_of_sessions_is_accepted(postgres: Postgres, bouncer: Callable[[str], Pgbouncer]) -> None:
    """PC4: the session is proven to be ours, once for each server."""
    url = postgres.url("a", port=bouncer("session").port)
    with Lock(url).acquire(timeout=10) as hold:
        assert Lock(postgres.url("a")).try_acquire() is None
        assert Lock(url).try_acquire() is None
        hold.ensure_held()
        assert Lock(url).break_lock() is not None
        with pytest.raises(holdfast.LockLost):
            hold.release()
    Lock(postgres.url("a")).acquire(timeout=5).release()


def test_a_pooler_that_comes_back_in_another_mode_is_refused(
    postgres: Postgres, bouncer: Callable[..., Pgbouncer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PC4: the earlier proof does not count. With one session for all clients, each would get the lock."""
    pooler = bouncer("session")
    url = postgres.url("pooled", port=pooler.port)
    Lock(url).acquire(timeout=10).release()
    pooler.restart("transaction", "default_pool_size = 1")
    monkeypatch.setattr(postgresql_connect, "_PROOF_WITHIN", 0.5)
    for _ in range(2):
        with pytest.raises(holdfast.EngineUnavailable, match="pooler"):
            Lock(url).acquire(timeout=0)


def test_an_exhausted_pool_is_not_reported_as_a_wrong_host_or_port(
    postgres: Postgres, bouncer: Callable[..., Pgbouncer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PC4: the proof needs a second connection; as long as the first is open, each hold and each waiter needs one."""
    one, two = (bouncer("session", f"default_pool_size = {size}") for size in (1, 2))
    holds = [Lock(postgres.url(name, port=two.port)).acquire(timeout=10) for name in "bc"]
    monkeypatch.setattr(postgresql_lock, "_REACH_WITHIN", 1.0)
    url = postgres.url("a", port=one.port)
    with pytest.raises(holdfast.EngineUnavailable, match=r"pooler .* no second connection.*default_pool_size") as said:
        Lock(url).acquire(timeout=0)
    assert "Check host and port" not in str(said.value)
    with pytest.raises(holdfast.EngineUnavailable, match=r"pool may be used up.*default_pool_size") as said:
        Lock(postgres.url("d", port=two.port)).acquire(timeout=0)
    assert "Check host and port" not in str(said.value)
    for hold in holds:
        hold.release()


def sessions_of_cycles(url: str, count: int) -> list[object]:
    """The sessions of this many holds in a row."""
    found = []
    for _ in range(count):
        with Lock(url).acquire(timeout=10) as hold:
            found.append(hold.record.fields["session"])
    return found


def prepared_in(connection: Any) -> list[bytes]:
    return [name for name in connection._names.values() if name is not None]


@pytest.mark.parametrize("pooled", [False, True])
def test_repeated_statements_are_prepared_once_per_session(
    postgres: Postgres, bouncer: Callable[[str], Pgbouncer], pooled: bool
) -> None:
    """PS5: also behind a pooler of sessions."""
    url = postgres.url("a", port=bouncer("session").port if pooled else None, more="?application_name=kept")
    assert len(set(sessions_of_cycles(url, 4))) == 1
    with Lock(url).acquire(timeout=10) as hold:
        connection = hold._held.connection  # type: ignore[attr-defined]
        assert len(prepared_in(connection)) == 2  # the try with the token, and the release
        for _ in range(4):
            assert Lock(url).try_acquire() is None


def test_a_session_that_was_reset_is_not_trusted_with_a_lock(postgres: Postgres) -> None:
    """PS5: as a pooler does between two clients. Its settings and locks are gone."""
    url = postgres.url("a", more="?application_name=reset")
    env = environment()
    sessions_of_cycles(url, 4)
    hold = Lock(url).acquire(timeout=10)
    before = hold.record.fields["session"]
    hold.release()
    connection = hold._held.connection  # type: ignore[attr-defined]
    drive(connection.ask("discard all", (), env.monotonic() + 10))
    hold = Lock(url).acquire(timeout=10)
    assert hold.record.fields["session"] != before
    hold.release()
    sessions_of_cycles(url, 4)
    hold = Lock(url, heartbeat=0).acquire(timeout=10)
    hold._held.connection.take()  # type: ignore[attr-defined]
    drive(hold._held.connection.ask("discard all", (), env.monotonic() + 10))  # type: ignore[attr-defined]
    with Lock(postgres.url("a")).acquire(timeout=5), pytest.raises(holdfast.LockLost, match="reset the session"):
        hold.release()


def test_a_statement_name_taken_by_another_client_is_not_used(postgres: Postgres) -> None:
    """PS5: a pooler that resets nothing may hand over a session with another client's names. A connection runs only
    statements under names that it has given itself."""
    url = postgres.url("a", more="?application_name=taken")
    env = environment()
    before = sessions_of_cycles(url, 4)
    hold = Lock(url).acquire(timeout=10)
    hold.release()
    connection = hold._held.connection  # type: ignore[attr-defined]
    names = prepared_in(connection)
    connection._names.clear()
    drive(connection.ask("deallocate all", (), env.monotonic() + 10))
    for name in names:
        drive(connection.ask(f"prepare {name.decode()} as select 'another client'", (), env.monotonic() + 10))
    assert sessions_of_cycles(url, 4) == before
    assert prepared_in(connection) == []


def test_a_table_changed_after_its_statements_were_prepared_causes_no_error(postgres: Postgres) -> None:
    """PS5: the server rejects a plan whose columns have changed their types."""
    url = postgres.url("a", more="?schema=changed")
    init(url)
    before = sessions_of_cycles(url, 4)
    postgres.ask("alter table changed.lock alter column token type numeric")
    (before_that,) = postgres.ask("select token from changed.lock")[0]
    after = sessions_of_cycles(url, 4)
    assert set(before).isdisjoint(after)
    with Lock(url).acquire(timeout=5) as hold:
        assert hold.token == before_that + 5  # type: ignore[operator]
    postgres.ask("drop schema changed cascade")


def test_a_standby_grants_nothing(postgres: Postgres, standby: Postgres) -> None:
    """PC3. Among several hosts, the primary is found."""
    for more in ("", "?target_session_attrs=any"):
        with pytest.raises(holdfast.EngineUnavailable, match=r"is a standby.*host that can be written to"):
            Lock(standby.url("a", more=more)).acquire(timeout=10)
    both = (
        f"postgresql://postgres@127.0.0.1:{standby.port},127.0.0.1:{free_port()},127.0.0.1:{postgres.port}/postgres#a"
    )
    with Lock(both).acquire(timeout=10):
        assert Lock(postgres.url("a")).try_acquire() is None


def test_a_role_with_deferrable_transactions_does_not_wait_for_writers(postgres: Postgres) -> None:
    """PC5: a transaction that is SERIALIZABLE READ ONLY DEFERRABLE begins only while no writer is active."""
    postgres.ask("create role deferring login")
    try:
        postgres.ask("grant usage on schema holdfast to deferring")
        postgres.ask("grant select, insert, update on holdfast.lock to deferring")
        for setting in ("default_transaction_isolation = serializable", "default_transaction_read_only = on"):
            postgres.ask(f"alter role deferring set {setting}")
        postgres.ask("alter role deferring set default_transaction_deferrable = on")
        postgres.ask("create table written (it int)")
        with psycopg.connect(postgres.url()) as writer:
            writer.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            writer.execute("insert into written select count(*) from written")
            with Lock(postgres.url("a", user="deferring")).acquire(timeout=10):
                assert Lock(postgres.url("a", user="deferring")).status().locked
    finally:
        postgres.ask("drop table if exists written")
        postgres.ask("drop owned by deferring")
        postgres.ask("drop role deferring")


def test_a_limit_of_the_role_does_not_end_the_session(postgres: Postgres) -> None:
    """PC5."""
    postgres.ask("create role limited login")
    try:
        init(postgres.url())
        postgres.ask("grant usage on schema holdfast to limited")
        postgres.ask("grant select, insert, update on holdfast.lock to limited")
        limits = {
            "idle_session_timeout": "50ms",
            "statement_timeout": "50ms",
            "lock_timeout": "50ms",
            "idle_in_transaction_session_timeout": "50ms",
            "synchronous_commit": "off",
            "default_transaction_read_only": "on",
            "default_transaction_isolation": "serializable",
        }
        for name, value in limits.items():
            postgres.ask(f"alter role limited set {name} = '{value}'")
        env = environment()
        connection = drive(connect(env, parse(postgres.url("a", user="limited")), env.monotonic() + 10, 12.0))
        try:
            names = [*limits, "tcp_keepalives_idle", "tcp_user_timeout", "client_connection_check_interval"]
            calls = ", ".join(f"current_setting('{name}')" for name in names)
            found = drive(connection.ask(f"select {calls}", (), env.monotonic() + 10))[0]
            assert found == ("0", "0", "0", "0", "on", "off", "read committed", "6", "12000", "1s")
        finally:
            connection.close()
        lock = Lock(postgres.url("a", user="limited"))
        with lock.acquire(timeout=10), pytest.raises(holdfast.AcquireTimeout):
            lock.acquire(timeout=0.3)
    finally:
        postgres.ask("drop owned by limited")
        postgres.ask("drop role limited")


def test_a_function_of_another_role_is_not_called(
    postgres: Postgres, bouncer: Callable[..., Pgbouncer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PC5: in public, where every role could create functions until PostgreSQL 15. The first connection through a
    pooler asks more of the session than others do."""
    monkeypatch.setattr(postgresql_connect, "_pinned", {})
    names = ("pg_try_advisory_lock", "pg_advisory_lock", "pg_advisory_unlock", "pg_try_advisory_xact_lock")
    for name in names:
        lines = "language plpgsql as $$ begin raise exception 'called'; end $$"
        postgres.ask(f"create function public.{name}(text) returns boolean {lines}")
    try:
        lock = Lock(postgres.url("a", port=bouncer("session").port))
        with lock.acquire(timeout=5):
            assert postgres.holding() == 1
            with pytest.raises(holdfast.AcquireTimeout):
                lock.acquire(timeout=0.2)
        assert lock.wait(timeout=5)
    finally:
        for name in names:
            postgres.ask(f"drop function public.{name}(text)")


def test_the_limit_of_a_wait_ends_with_the_wait(postgres: Postgres) -> None:
    """PC5: the session later serves another hold, whose statements may take longer than that limit."""
    lock, got = Lock(postgres.url("a")), list[holdfast.Hold]()
    hold = lock.acquire(timeout=5)
    thread = threading.Thread(target=lambda: got.append(lock.acquire(timeout=20)))
    thread.start()
    eventually(lambda: postgres.waiting() == 1)
    hold.release()
    thread.join()
    session = got[0]._held.connection  # type: ignore[attr-defined]
    got[0].release()
    assert session.is_open
    asked = "select current_setting('lock_timeout')"
    assert drive(session.ask(asked, (), environment().monotonic() + 10)) == [("0",)]


def test_a_tag_that_the_database_cannot_encode_is_refused_with_the_reason(postgres: Postgres) -> None:
    postgres.ask("create database latin encoding 'LATIN1' template template0 lc_collate 'C' lc_ctype 'C'")
    url = postgres.url("a").replace("/postgres#", "/latin#")
    init(url)
    try:
        Lock(url, tag="é").acquire(timeout=5).release()
        with pytest.raises(holdfast.EngineUnavailable, match=r"LATIN1.*use one in UTF8"):
            Lock(url, tag="→").acquire(timeout=5)
    finally:
        postgresql_connect._pool.close_all(environment())
        postgres.ask("drop database latin with (force)")


@pytest.mark.parametrize("heartbeat", [20_000, 10_000_000])
def test_a_long_heartbeat_does_not_exceed_the_kernels_keepalive_limit(postgres: Postgres, heartbeat: float) -> None:
    """TCP_KEEPIDLE is at most 32767 s; a larger value prevented the connection."""
    with Lock(postgres.url("a"), heartbeat=heartbeat).acquire(timeout=5) as hold:
        session = hold._held.connection  # type: ignore[attr-defined]
        session.take()
        names = ("tcp_keepalives_idle", "tcp_keepalives_interval")
        asked = "select " + ", ".join(f"current_setting('{name}')" for name in names)
        assert drive(session.ask(asked, (), environment().monotonic() + 10)) == [
            ("32767", str(min(32767, heartbeat)))
        ]  # the server's kernel has accepted them: otherwise they would be its defaults


def test_a_server_that_refuses_one_setting_is_accepted(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """PC5."""
    known = postgresql_connect._settings

    def more(stale_after: float, version: int) -> dict[str, str]:
        return {"holdfast_no_such_setting": "1", **known(stale_after, version), "max_connections": "5"}

    monkeypatch.setattr(postgresql_connect, "_settings", more)
    env = environment()
    with caplog.at_level("DEBUG", "holdfast"):
        connection = drive(connect(env, parse(postgres.url("a")), env.monotonic() + 10))
    try:
        (said,) = [one.getMessage() for one in caplog.records if "refuses some settings" in one.getMessage()]
        refused = said.partition(": ")[2].split("; ")
        assert [text.split()[0] for text in refused] == ["holdfast_no_such_setting", "max_connections"]
        rows = drive(
            connection.ask("select current_setting('client_connection_check_interval')", (), env.monotonic() + 10)
        )
        assert rows == [("1s",)]
    finally:
        connection.close()


def test_each_connection_error_says_what_to_do(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = free_port()
    urls = {
        f"postgresql://me:secret@127.0.0.1:{nobody}/db#a": rf"127\.0\.0\.1.*{nobody}.*refused.*Check host and port",
        "postgresql://me:secret@nosuchhost.invalid/db#a": r"nosuchhost\.invalid: the name is not known",
        postgres.url("a").replace("/postgres", "/nosuchdatabase"): r"nosuchdatabase.*names of the database",
        postgres.url("a", user="nosuchuser"): r"nosuchuser.*names of the database and of the user",
        "postgresql:///db?service=nosuchservice#a": r"nosuchservice.*service file",
        postgres.url("a", more="?schema=nosuchschema"): r"holdfast postgresql init --schema nosuchschema",
    }
    for url, says in urls.items():
        for call in (Lock(url).try_acquire, Lock(url).status, Lock(url).wait, Lock(url).break_lock):
            if call.__name__ == "wait" and "schema" in url:
                continue  # it needs no table
            with pytest.raises(holdfast.EngineUnavailable, match=says) as refused:
                call()
            assert "secret" not in str(refused.value)
            assert refused.value.path == Lock(url).path


def test_the_advice_depends_on_the_servers_message() -> None:
    """The messages are those of libpq 18 and PostgreSQL 15."""
    lock_url = parse("postgresql://me@host/db#a")
    for why, says in {
        'server certificate for "localhost" does not match host name "127.0.0.1"': "sslrootcert",
        'FATAL: Peer authentication failed for user "pw"': r"pg_hba\.conf",
        'FATAL: password authentication failed for user "pw"': "PGPASSWORD",
    }.items():
        told = str(postgresql_connect.unreachable(lock_url, why))
        assert re.search(says, told)
        assert "Check host and port" not in told
    full = postgresql_connect.refusal(lock_url, Refused("53200", "out of shared memory"))
    assert "max_locks_per_transaction" in str(full)


def test_a_role_without_privileges_is_told_which_it_needs(postgres: Postgres) -> None:
    """It can neither create nor use the schema; the error is one line, and says where its owner finds the SQL."""
    postgres.ask("create role poor login")
    try:
        with pytest.raises(holdfast.EngineUnavailable, match=r"USAGE on the schema holdfast.*GRANT"):
            Lock(postgres.url("a", user="poor")).acquire(timeout=5)
        with pytest.raises(holdfast.HoldfastError, match=r"run what `holdfast postgresql init --print` prints$"):
            init(postgres.url(user="poor"), "of_poor")
        postgres.ask("grant usage on schema holdfast to poor")
        postgres.ask("grant select, insert, update on holdfast.lock to poor")
        assert init(postgres.url(user="poor")) == "holdfast"  # it exists already
        Lock(postgres.url("a", user="poor")).acquire(timeout=5).release()
    finally:
        postgres.ask("drop owned by poor")
        postgres.ask("drop role poor")


def test_locks_may_be_in_a_schema_of_any_name(postgres: Postgres) -> None:
    url = postgres.url("a", more="?schema=a%20%22b%22")
    assert init(url) == 'a "b"'
    assert init(url) == 'a "b"'
    with Lock(url).acquire(timeout=5) as hold:
        assert hold.token == (1 << 40) + 1  # of the server's first timeline
        assert Lock(url).status().holder is not None
    postgres.ask('drop schema "a ""b""" cascade')


def test_the_owner_of_an_empty_schema_may_prepare_it(postgres: Postgres) -> None:
    """Who was given a schema need not have the right to create one."""
    postgres.ask("create role tenant login")
    postgres.ask("create schema given authorization tenant")
    url = postgres.url("a", user="tenant", more="?schema=given")
    try:
        assert init(url) == "given"
        Lock(url).acquire(timeout=5).release()
    finally:
        postgres.ask("drop schema given cascade")
        postgres.ask("drop role tenant")


def test_simultaneous_initialisations_of_a_database_succeed(postgres: Postgres) -> None:
    url, results = postgres.url("a", more="?schema=at_once"), list[str]()
    threads = [threading.Thread(target=lambda: results.append(init(url))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["at_once"] * 6
    Lock(url).acquire(timeout=5).release()
    postgres.ask("drop schema at_once cascade")


def test_a_grant_to_a_role_that_does_not_exist_says_to_create_it(postgres: Postgres) -> None:
    with pytest.raises(holdfast.HoldfastError, match=r'role "nobody_here" does not exist. Create that role'):
        init(postgres.url("a"), grant=["nobody_here"])


def test_a_pooler_that_tells_the_true_pid_is_recognised(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """PC4: by the effect on the session, which the statement that raises the token shows."""
    real = postgresql_connect._check

    def moved(connection: Any, facts: Any) -> None:
        real(connection, facts)
        connection.backend += 1

    monkeypatch.setattr(postgresql_connect, "_check", moved)
    monkeypatch.setattr(postgresql_connect, "_is_pinned", lambda _server: True)
    with pytest.raises(holdfast.EngineUnavailable, match="a pooler has moved the session"):
        Lock(postgres.url("a", more="?application_name=fresh")).acquire(timeout=5)


def test_the_environment_and_service_files_of_libpq_are_used(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGHOST", "localhost")
    monkeypatch.setenv("PGPORT", str(postgres.port))
    monkeypatch.setenv("PGUSER", "postgres")
    monkeypatch.setenv("PGDATABASE", "postgres")
    Lock("postgresql://#a").acquire(timeout=5).release()
    services = tmp_path / "services"
    services.write_text(f"[mine]\nhost=localhost\nport={postgres.port}\nuser=postgres\ndbname=postgres\n")
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGDATABASE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    Lock("postgresql://?service=mine#a").acquire(timeout=5).release()
    monkeypatch.setenv("PGSERVICE", "mine")
    Lock("postgresql://#a").acquire(timeout=5).release()


def test_a_name_is_looked_up_in_a_thread_and_given_up_in_time(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PS4: a caller that gives up does not wait for the lookup."""
    go, asked = threading.Event(), list[str]()

    def slow(host: str, *arguments: Any, **options: Any) -> Any:
        asked.append(threading.current_thread().name)
        go.wait(10)
        raise socket.gaierror("no such name")

    monkeypatch.setattr(postgresql_lock, "_REACH_AT_LEAST", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    lock = Lock("postgresql://slow.example/db#a")
    steps = lock._engine.acquire(environment(), lock._requests, None, (object(),))
    wait = next(steps)
    assert wait.signal is not None
    steps.close()
    with pytest.raises(holdfast.EngineUnavailable, match="looked up in time"):
        lock.acquire(timeout=0)
    go.set()
    assert set(asked) == {"holdfast-resolve"}


def test_a_server_that_never_answers_is_given_up_in_time(arms: dict[str, Callable[[], None]]) -> None:
    arms["mute"]()


def _mute() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"postgresql://me@127.0.0.1:{mute.getsockname()[1]}/db?connect_timeout=1#a"
        with pytest.raises(holdfast.EngineUnavailable, match="no answer in time"):
            Lock(url).acquire()


def test_a_silent_host_leaves_time_for_the_next(arms: dict[str, Callable[[], None]]) -> None:
    arms["silent"]()


def _silent(postgres: Postgres) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        silent = mute.getsockname()[1]
        url = f"postgresql://postgres@127.0.0.1:{silent},127.0.0.1:{postgres.port}/postgres#a"
        Lock(url).acquire(timeout=3).release()


def test_a_holder_does_not_keep_vacuum_from_its_work(postgres: Postgres) -> None:
    """A waiter does, as documented: its statement has a snapshot. A hold has none."""
    with Lock(postgres.url("a")).acquire(timeout=10) as hold:
        waiter = threading.Thread(target=lambda: Lock(postgres.url("a")).acquire(timeout=20).release())
        waiter.start()
        eventually(lambda: postgres.waiting() == 1)
        sql = "select pid, backend_xmin is not null from pg_stat_activity where starts_with(application_name, %s)"
        seen = dict(postgres.ask(sql, "holdfast "))  # type: ignore[arg-type]
        assert seen.pop(hold.record.fields["session"]) is False
        assert True in seen.values()
    waiter.join()


@pytest.mark.parametrize("lack", ["psycopg", "libpq library not found"])
def test_the_lack_of_psycopg_or_libpq_is_reported_with_the_way_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lack: str
) -> None:
    import sys

    from holdfast import engines

    monkeypatch.setattr(engines, "_made", {})
    for name in [name for name in sys.modules if name.startswith(("holdfast.engines.postgresql", "psycopg"))]:
        monkeypatch.delitem(sys.modules, name)
    if lack == "psycopg":
        monkeypatch.setitem(sys.modules, "psycopg", None)
    else:  # as psycopg says it
        (tmp_path / "psycopg.py").write_text(f"raise ImportError('no pq wrapper available.\\n- {lack}')")
        monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(holdfast.EngineUnavailable, match=rf"\(.*{lack}\): pip install '\.\[postgresql\]' in a clone"):
        Lock("postgresql://h/db#a")


def test_a_second_undo_of_a_release_leaves_the_sessions_next_holder_alone(postgres: Postgres) -> None:
    """PG3, J3: by then, the session may belong to another hold."""
    first = Lock(postgres.url("left")).acquire(timeout=10)
    before: Any = first._held
    first.release()
    with Lock(postgres.url("left")) as second:
        after: Any = second._held
        assert after.connection is before.connection, "the session was to be used again"
        before.undo()
        assert after.connection.keeper is after
        with Lock(postgres.url("other")) as third:
            held: Any = third._held
            assert held.connection is not after.connection
