"""Every block of code of every page works as the page shows. README.md, "Pages", has the rules for blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest

from ahead import Ran
from docs import pages, run
from engines.postgresql.server import Postgres
from process.foreign import node

_SERVER = re.compile(r"<!-- needs:[^>]*\b(?:postgresql|etcd|redis)\b")
PAGES = {path.relative_to(pages.ROOT).as_posix(): path for path in pages.pages()}


def _report(name: str) -> run.Report | None:
    """The report of a page; None if it needs a server, which the fixtures of its test start."""
    if _SERVER.search(PAGES[name].read_text(encoding="utf-8")):
        return None
    return run.run(PAGES[name], lambda engine: SERVERS[engine](None), name)


@pytest.mark.ahead(body=_report)
@pytest.mark.parametrize("name", PAGES)
def test_every_block_of_a_page_works(name: str, request: pytest.FixtureRequest, ran: Ran) -> None:
    def servers(engine: str) -> Mapping[str, str] | str:
        try:
            return SERVERS[engine](request)
        except pytest.skip.Exception as skipped:
            return str(skipped)

    report = ran() or run.run(PAGES[name], servers, name)
    if report.failures:
        pytest.fail("\n\n".join(report.failures), pytrace=False)
    if report.skipped:
        pytest.skip(f"{report.ran} blocks ran; these did not: " + "; ".join(report.skipped))


def _postgresql(request: pytest.FixtureRequest) -> dict[str, str]:
    """The roles and databases that pages mention, with the tables of locks. One server stands for two."""
    from holdfast.engines.postgresql import init

    server: Postgres = request.getfixturevalue("postgres")
    for role in ("deploy", "owner"):
        if not server.ask("select 1 from pg_roles where rolname = %s", role):
            server.ask(f"create role {role} superuser login")
    for database in ("locks", "app"):
        if not server.ask("select 1 from pg_database where datname = %s", database):
            server.ask(f"create database {database}")
            init(f"postgresql://postgres@127.0.0.1:{server.port}/{database}")
    here = f"127.0.0.1:{server.port}"
    return {"db.example": here, "db1.example,db2.example": here}  # output shows the first one


def _etcd(request: pytest.FixtureRequest) -> dict[str, str]:
    """One node stands for all."""
    node = request.getfixturevalue("etcd_node")
    return {r"^(?:etcd\d*\.example(?::2379)?,)*etcd\d*\.example(?::2379)?": node.host, "etcd1.example:2379": node.host}


def _redis(request: pytest.FixtureRequest) -> dict[str, str]:
    return {'redis.Redis("redis.example")': f"redis.Redis(port={request.getfixturevalue('redis_port')})"}


def _fs_safe(_request: pytest.FixtureRequest | None) -> dict[str, str] | str:
    """Not a server, but fetched once as well: the path of its module, from which Node can import it."""
    try:
        return {"@openclaw/fs-safe/file-lock": node.fs_safe("0.3.0")}
    except node.Missing as missing:
        return str(missing)


def _proper_lockfile(_request: pytest.FixtureRequest | None) -> dict[str, str] | str:
    try:
        return {'from "proper-lockfile"': f'from "{node.proper_lockfile()}/index.js"'}
    except node.Missing as missing:
        return str(missing)


SERVERS: dict[str, Callable[..., dict[str, str] | str]] = {
    "postgresql": _postgresql,
    "etcd": _etcd,
    "redis": _redis,
    "fs-safe": _fs_safe,
    "proper-lockfile": _proper_lockfile,
}
