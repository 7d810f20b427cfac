"""A server for all tests of a worker, and a database in it that is ready for locks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from engines.postgresql.server import Pgbouncer, Postgres, Proxy

_numbers = count(1)


@pytest.fixture(scope="session")
def _server() -> Iterator[Postgres]:
    from holdfast.engines.postgresql import init

    server = Postgres()
    try:
        init(server.url())
        yield server
    finally:
        server.remove()


@pytest.fixture
def postgres(_server: Postgres) -> Iterator[Postgres]:
    """A running server, with the schema; nobody holds or waits for a lock before or after the test."""
    from holdfast._platform import environment
    from holdfast.engines.postgresql import connect as postgresql_pool
    from process.support import eventually

    yield _server
    if not _server.is_ready():
        _server.start()
    try:
        eventually(lambda: not _server.holding() and not _server.waiting(), 5, "the end of all locks of a test")
    finally:
        _server.ask("select pg_terminate_backend(pid, 5000) from pg_locks where locktype = 'advisory'")
        _server.forget()
        postgresql_pool._pool.close_all(
            environment()
        )  # anything that goes by itself later would look like a leak of another test


@pytest.fixture
def postgresql_prefix(postgres: Postgres) -> str:
    return postgres.url(f"{next(_numbers)}/")


@pytest.fixture
def proxy(postgres: Postgres) -> Iterator[Callable[[], Proxy]]:
    """Make proxies in front of the server."""
    made: list[Proxy] = []

    def make() -> Proxy:
        made.append(Proxy(postgres.port))
        return made[-1]

    yield make
    for one in made:
        one.remove()


@pytest.fixture
def bouncer(postgres: Postgres) -> Iterator[Callable[..., Pgbouncer]]:
    """Start poolers in front of the server."""
    made: list[Pgbouncer] = []

    def make(mode: str, more: str = "") -> Pgbouncer:
        made.append(Pgbouncer(postgres, mode, more))
        return made[-1]

    yield make
    for one in made:
        one.remove()
