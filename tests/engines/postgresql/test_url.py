"""URLs of PostgreSQL: how they are read and shown. No server is needed."""

from __future__ import annotations

import os
import pickle
import re
from hashlib import blake2b

import pytest

import holdfast
from holdfast.engines.postgresql import ddl
from holdfast.engines.postgresql.connect import key_of, parse
from holdfast.engines.postgresql.lock import PostgresqlRequest

pytest.importorskip("psycopg")


def test_a_password_is_not_shown() -> None:
    """PC1."""
    urls = [
        "postgresql://me:s%23cret@h.example:1,h2.example/db#n",
        "postgresql://h.example/db?password=s%23cret#n",
        "postgresql://me@h.example/db?sslpassword=s%23cret&sslmode=require#n",
        "postgresql://h.example/db?pass%77ord=s%23cret#n",
        "postgresql://h.example/db?%70%61ssword=s%23cret&sslmode=require#n",
    ]
    for url in urls:
        lock = holdfast.Lock(url)
        seen = repr(lock) + lock.path + repr(parse(url))
        assert "cret" not in seen
        assert "h.example" in seen
        again = pickle.loads(pickle.dumps(lock))
        assert "s#cret" in again._request.lock_url.conninfo
    bad = [
        "postgresql://u:s%zzcret@h/db#n",
        "postgresql://u:se#cret@h/db#n",
        "postgresql://u:se@cret@h/db#n",
        "postgresql://u:secret@h/db?nope=1#n",
        "postgresql://u:secret@[::1/db#n",
        "postgresql://h/db?pass%77ord=secret&nope=1#n",
        "postgresql://h/db?%20password=secret&nope=1#n",
        "postgresql://h/db?pass%ffword=secret#n",
        "postgresql://u:secret@h:port/db#n",
    ]
    for url in bad:
        with pytest.raises(holdfast.InvalidPath) as refused:
            holdfast.Lock(url)
        assert "cret" not in str(refused.value) + repr(refused.value)
    for url in ("postgresql://h/db? password=secret#n", "postgresql://h/db?password =secret#n"):
        try:
            seen = holdfast.Lock(url).path
        except holdfast.InvalidPath as refused:  # a libpq before 18
            seen = str(refused)
        assert "cret" not in seen


def test_an_invalid_url_is_refused() -> None:
    for url, says in {
        "postgresql://h/db": "names no lock",
        "postgresql://h/db#": "names no lock",
        "postgresql://h/db#%00": "without NUL",
        "postgresql://h/db#%ff": "UTF-8",
        "postgresql://u:%ff@h/db#n": "UTF-8",
        "postgresql://h/db#" + "x" * 2001: "2000 bytes",
        "postgresql://h/db?schema=#n": "schema",
        "postgresql://h/db?schema=" + "x" * 64 + "#n": "schema",
        "postgresql://h:0/db#n": "port",
        "postgresql://h:65536/db#n": "port",
        "postgresql://h/db?target_session_attrs=standby#n": "standby",
        "postgresql://h/db?hots=a#n": "hots",
    }.items():
        with pytest.raises(holdfast.InvalidPath, match=says):
            holdfast.Lock(url)


def test_no_name_is_taken_for_another() -> None:
    """PC2: the key is made from the decoded name alone."""
    assert key_of("deploy") == int.from_bytes(blake2b(b"deploy", digest_size=8).digest(), "big", signed=True)
    names = ["a", "A", "a b", "ü", "x/y#z", "%41", "*/"]
    for name in names:
        lock_url = parse(parse(f"postgresql://h/db#{name.replace('%', '%25').replace('#', '%23')}").shown)
        assert lock_url.name == name
    assert len({key_of(name) for name in names}) == len(names)
    assert parse("postgres://a/b#deploy").key == parse("postgresql://c/d?schema=x#deploy").key


def test_the_scheme_may_be_written_in_any_case() -> None:
    """libpq reads a scheme that is not in lower case as a list of settings."""
    for scheme in ("PostgreSQL", "POSTGRES", "postgres"):
        assert parse(f"{scheme}://h/db#n").shown == "postgresql://h/db#n"
        assert holdfast.Lock(f"{scheme}://h/db#n").path == "postgresql://h/db#n"


def test_a_parameter_is_known_however_it_is_encoded() -> None:
    assert parse("postgresql://h/db?sch%65ma=x#n").table == '"x".lock'
    assert (
        parse("postgresql://h/db?%73slmode=require#n").conninfo == parse("postgresql://h/db?sslmode=require#n").conninfo
    )


def test_the_schema_is_kept_from_libpq_and_within_its_quotes() -> None:
    lock_url = parse('postgresql://h/db?schema=a";drop&sslmode=require#n')
    assert lock_url.table == '"a"";drop".lock'
    assert "schema" not in lock_url.conninfo
    assert "sslmode='require'" in lock_url.conninfo
    assert parse(lock_url.shown).schema == lock_url.schema
    assert 'create schema if not exists "it""s"' in ddl('it"s')
    with pytest.raises(ValueError, match="schema"):
        ddl("")


def test_numbers_that_do_not_go_together_are_refused() -> None:
    for options in ({"stale_after": 1}, {"stale_after": 1e9}, {"stale_after": 30, "heartbeat": 11}):
        with pytest.raises(ValueError, match=r"seconds|at most"):
            holdfast.Lock("postgresql://h/db#n", **options)  # type: ignore[arg-type]
    request = holdfast.Lock("postgresql://h/db#n", heartbeat=60)._request
    assert isinstance(request, PostgresqlRequest)
    assert request.keeps == 360
    never = holdfast.Lock("postgresql://h/db#n", heartbeat=0)._request
    assert isinstance(never, PostgresqlRequest)
    assert never.every == float("inf")


def test_a_heartbeat_is_not_faster_than_documented() -> None:
    request = holdfast.Lock("postgresql://h/db#n", heartbeat=1e-9)._request
    assert isinstance(request, PostgresqlRequest)
    assert request.every == 0.05


def test_a_semaphore_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no semaphores on postgresql.*etcd"):
        holdfast.Semaphore("postgresql://h/db#n", 2)


def test_a_message_of_libpq_on_several_lines_becomes_a_sentence() -> None:
    """The second line is a question, and indented."""
    with pytest.raises(holdfast.EngineUnavailable) as failed:
        holdfast.Lock("postgresql://127.0.0.1:1/d#n").try_acquire()
    assert re.search(r"\S \([^()]+\?\)\. Check host and port", str(failed.value))


def test_a_lock_is_the_same_however_its_url_is_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """KN3: its database and its name identify it; parameters that may lead to another database count too."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)

    def key(rest: str) -> tuple[object, ...]:
        request = holdfast.Lock(f"postgresql://{rest}")._request
        assert isinstance(request, PostgresqlRequest)
        return request.key

    one = key("me@one/me#a-b")
    for same in (
        "me:pw@ONE:5432/me?connect_timeout=5#a-b",
        "me@one/me?schema=x#a%2Db",
        "me@one#a-b",
        "one?user=me#a-b",
    ):
        assert key(same) == one
    for other in (
        "me@two/me#a-b",
        "me@one:1/me#a-b",
        "me@one/db#a-b",
        "you@one/me#a-b",
        "me@one/me?options=-cx%3Dy#a-b",
    ):
        assert key(other) != one
    monkeypatch.setenv("PGPORT", "1")
    assert key("me@one:1/me#a-b") == key("me@one/me#a-b")
    monkeypatch.setenv("PGSERVICE", "somewhere")
    assert key("me@one:5432/me#a-b") != key("me@one?port=1#a-b")
    assert key("me@one:1/me#a-b") != key("me@one/me#a-b")


@pytest.mark.parametrize("name", ["PGHOST", "PGHOSTADDR", "PGDATABASE", "PGUSER", "PGOPTIONS", "PGSERVICEFILE"])
def test_a_variable_that_leads_to_another_database_makes_another_lock(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """KN3: otherwise an owner shares its hold in the one as if it had the other."""
    keys = set()
    for value in ("one", "two"):
        monkeypatch.setenv(name, value)
        request = holdfast.Lock("postgresql:///#a", owner="me")._request
        assert isinstance(request, PostgresqlRequest)
        keys.add(request.key)
    assert len(keys) == 2
