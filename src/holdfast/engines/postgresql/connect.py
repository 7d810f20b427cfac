"""Reaching a server that can be trusted with a lock: one that can be written to, with a session that stays ours.

PG7  No lock is asked of a standby: it grants what its primary has granted to another. Asked in the session itself,
     because libpq's own check is made at the moment of the connection, by a word that poolers answer for themselves.
PG8  No lock is asked through a pooler that gives the session to others between statements. A pooler shows, because the
     pid that it tells is not the one that the session has; that the session stays ours is proven by a notification,
     which only reaches a connection that has its session to itself while it is idle. No proof, no lock.
PG9  The session does not end by a limit that its role or database has, and its server notices when we are gone: the
     settings of `_settings`. Those that a managed service refuses are left as they are, and the log says so.
"""

from __future__ import annotations

import os

from ...errors import EngineUnavailable, HoldfastError
from ...events import DEBUG, logger_for
from .hosts import Known, attempts
from .link import Broken, Link, Refused
from .url import NAME, escaped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from ..._core.environment import Environment, Wait
    from .link import Row
    from .url import Place

STALE_AFTER = 30.0
"""Seconds after which the server frees the lock of a holder from which it hears nothing, if nothing else is said."""
_OLDEST = 140000
_PROOF_WITHIN = 2.0
_CHANNEL = "holdfast_session"
_pinned: set[str] = set()
"""The servers behind a pooler that has been proven to leave a session to its client (PG8)."""

_PASSING = (
    *("too many clients", "too many connections", "remaining connection slots", "no more connections allowed"),
    *("is starting up", "is shutting down", "not yet accepting connections", "in recovery mode"),
)
"""Of what servers (SQLSTATE 53300 and 57P03) and pgbouncer say, in English."""

_FACTS = (
    "pg_backend_pid(), pg_is_in_recovery(), current_setting('server_version_num'), current_setting('server_version')"
)
_TIMELINE = (  # PG20; to a standby the server refuses to say it
    "case when not pg_is_in_recovery() then pg_walfile_name(pg_current_wal_lsn()) end"
)
_DURABLE = (  # PG12: a token that has been seen is on the disk
    "set_config('synchronous_commit', case when current_setting('synchronous_commit') in ('off', 'local') "
    "then 'on' else current_setting('synchronous_commit') end, false)"
)


def connect(
    env: Environment, place: Place, until: float, stale_after: float | None = None
) -> Generator[Wait, None, Link]:
    """A session that is fit for a lock, at the first of the hosts that has one. EngineUnavailable, with each reason."""
    known = Known(place)
    failed: list[str] = []
    found = yield from attempts(env, known, until, failed)
    for number, attempt in enumerate(found):
        now = env.monotonic()
        limit = now + min(known.timeout, (until - now) / (len(found) - number))  # one that is silent leaves time
        conninfo = place.conninfo + attempt.conninfo + _parameters(env, known, stale_after or STALE_AFTER)
        link = Link(env, conninfo, attempt.label)
        try:
            yield from link.opening(limit)
            yield from _prepare(env, place, link, limit, stale_after or STALE_AFTER)
            return link
        except Broken as broken:
            failed.append(str(broken))
            link.close()
        except BaseException:
            link.close()
            raise
        if env.monotonic() >= until:
            break
    raise unreachable(place, "; ".join(failed) or "no host is known")


def unreachable(place: Place, why: str) -> EngineUnavailable:
    """The error for a server that cannot be had, with the next step."""
    text = f"{place.base} cannot be reached: {why.rstrip('.?')}. {_advice(why)}"
    return EngineUnavailable(text, path=place.shown, protocol=NAME)


def is_passing(error: EngineUnavailable) -> bool:
    """Whether a server is there, and says that it has no session for us now (PG19). libpq tells no SQLSTATE here."""
    return any(words in error.message for words in _PASSING)


def refusal(place: Place, refused: Refused) -> HoldfastError:
    """The error for a statement that the server has refused, with the next step."""
    if refused.code in ("42P01", "3F000", "42703"):  # undefined table, schema, column
        text = (
            f"the database at {place.base} is not prepared for locks ({refused}). Whoever may create a schema there "
            f"runs, once: holdfast postgresql init --schema {place.schema} URL"
        )
        return EngineUnavailable(text, path=place.shown, protocol=NAME)
    text = f"{place.base} has refused: {refused} (SQLSTATE {refused.code}). "
    if refused.code == "42501":
        text += (
            f"The role needs USAGE on the schema {place.schema} and SELECT, INSERT and UPDATE on its table lock; "
            "docs/postgresql.md has the GRANT statements"
        )
    else:
        text += "The server's log may say more"
    return EngineUnavailable(text, path=place.shown, protocol=NAME)


def _advice(why: str) -> str:
    texts = {
        "second connection": "Raise the size of its pool (pgbouncer: default_pool_size, or the database's pool_size)",
        "password": "Check the user and the password: in the URL, PGPASSWORD, or ~/.pgpass",
        "pg_hba.conf": "The server's pg_hba.conf has to let this user in from here",
        "too many": "Each hold and each one who waits has a connection: raise max_connections, or have fewer wait",
        "remaining connection slots": "Each hold and each one who waits has a connection: raise max_connections",
        "no more connections": "Each hold and each one who waits has a connection: raise the pooler's limits",
        "standby": "Give the URL the host that can be written to, or all hosts: the right one is found",
        "pooler": "Connect to the server itself, or to a port of the pooler with pool_mode = session",
        "is too old": "Use a newer server",
        "does not exist": "Check the names of the database and of the user",
        "does not answer": "Something there takes connections and then says nothing. If it is a pooler, its pool may "
        "be used up: each hold and each one who waits has a connection (pgbouncer: default_pool_size)",
    }
    for word, text in texts.items():
        if word in why:
            return text
    return "Check host and port, that the server runs, and that it accepts connections from here"


def _parameters(env: Environment, known: Known, stale_after: float) -> str:
    """What is added to the user's own parameters, where there are none."""
    who = env.identity()
    name = f"holdfast {who.pid}@{who.host}".encode("ascii", "replace").decode()[:63].replace("'", "?")
    wanted = {
        "keepalives_idle": _seconds(stale_after / 3),
        "keepalives_interval": _seconds(stale_after / 12),
        "keepalives_count": 3,
        "tcp_user_timeout": int(stale_after * 1000 * 2 / 3),
        "fallback_application_name": name.replace("\\", "?"),
    }
    given = [f"{key}='{value}'" for key, value in wanted.items() if not known.get(key)]
    return " " + " ".join([*given, "client_encoding=UTF8 target_session_attrs=any"])


def _seconds(value: float) -> int:
    return max(1, int(value))


def _settings(stale_after: float, version: int) -> dict[str, str]:
    """PG9. Half of `stale_after` passes before the server asks whether we are there, half until it gives us up."""
    wanted = {
        "idle_session_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
        "statement_timeout": "0",
        "lock_timeout": "0",
        "default_transaction_read_only": "off",
        "default_transaction_isolation": "read committed",
        "tcp_keepalives_idle": str(_seconds(stale_after / 2)),
        "tcp_keepalives_interval": str(_seconds(stale_after / 6)),
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": str(int(stale_after * 1000)),
        "client_connection_check_interval": "1000",
    }
    if version >= 170000:
        wanted["transaction_timeout"] = "0"
    return wanted


def _prepare(
    env: Environment, place: Place, link: Link, until: float, stale_after: float
) -> Generator[Wait, None, None]:
    wanted = _settings(stale_after, link.conn.server_version)
    calls = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in wanted.items())
    together = f"select {_FACTS}, {_TIMELINE}, {_DURABLE}, {calls}"
    try:
        try:
            (facts,) = yield from link.ask(together, (), until)
        except Refused:  # one of the settings; which one?
            (facts,) = yield from link.ask(f"select {_FACTS}", (), until)
            _check(link, facts)
            facts += yield from _timeline(link, until)
            yield from _set_each(link, wanted, until)
            yield from link.ask(f"select {_DURABLE}", (), until)
        _check(link, facts)
        link.timeline = int((facts[4] or "")[:8] or "0", 16)  # the name of a file of the log begins with it
        if link.backend != link.conn.backend_pid:
            yield from _require_session(env, place, link, until)
    except Refused as refused:
        raise Broken(f"the server at {link.label} has refused: {refused}") from None


def _check(link: Link, facts: Row) -> None:
    """Broken for a server that is not fit for locks."""
    backend, standby, number, version = facts[:4]
    link.backend = int(backend or 0)
    if int(number or 0) < _OLDEST:
        raise Broken(f"the server at {link.label} is too old: PostgreSQL {version}; 14 or later is needed")
    if standby == "t":  # PG7
        raise Broken(
            f"the server at {link.label} is a standby, which would grant locks that the primary has granted too"
        )


def _timeline(link: Link, until: float) -> Generator[Wait, None, Row]:
    """Nothing where a service that looks like PostgreSQL has no such log."""
    try:
        return only((yield from link.ask(f"select {_TIMELINE}", (), until)))
    except Refused:
        return (None,)


def _set_each(link: Link, wanted: dict[str, str], until: float) -> Generator[Wait, None, None]:
    refused = []
    for name, value in wanted.items():
        try:
            yield from link.ask("select set_config($1, $2, false)", (name, value), until)
        except Refused as error:
            refused.append(f"{name} ({error})")
    link.refused = tuple(refused)
    logger = logger_for(DEBUG)
    if logger is not None and refused:
        logger.debug("%s refuses some settings, and keeps its own: %s", link.label, "; ".join(refused))


def _require_session(env: Environment, place: Place, link: Link, until: float) -> Generator[Wait, None, None]:
    """PG8. Broken unless the session proves to be ours alone."""
    server = f"{place.conninfo} {link.label}"
    if server in _pinned:
        return
    channel = f"{_CHANNEL}_{os.urandom(8).hex()}"
    until = min(until, env.monotonic() + _PROOF_WITHIN)
    yield from link.ask(f"listen {channel}", (), until)
    other = Link(env, place.conninfo + _where(link), link.label)
    try:
        try:
            yield from other.opening(until)
            yield from other.ask("select pg_notify($1, '')", (channel,), until)
        except Broken as broken:
            raise Broken(
                f"the pooler at {link.label} gave no second connection, which each process needs once to prove that a "
                f"session stays with its client ({broken})"
            ) from None
        while channel not in link.hear():
            if env.monotonic() >= until:
                raise Broken(
                    f"the connection to {link.label} goes through a pooler that gives its session to others between "
                    "statements (backend pid "
                    f"{link.conn.backend_pid} is said to be {link.backend}), so two could hold one lock"
                )
            yield link.wait(until)
    finally:
        other.close()
    yield from link.ask(f"unlisten {channel}", (), env.monotonic() + _PROOF_WITHIN)
    _pinned.add(server)


def _where(link: Link) -> str:
    """The same address once more."""
    values = {"host": link.conn.host, "hostaddr": link.conn.hostaddr, "port": link.conn.port}
    given = {key: value.decode() for key, value in values.items() if value}
    return "".join(f" {key}={escaped(value)}" for key, value in given.items()) + " target_session_attrs=any"


def only(rows: list[Row]) -> Row:
    """The one row that a statement returns."""
    (row,) = rows
    return row
