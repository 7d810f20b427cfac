"""From a URL to a session that can be trusted with a lock: one on a writable server, which stays ours.

    postgresql://user:password@host:port,host2:port2/database?libpq=parameters&schema=holdfast#name

Everything before # belongs to libpq, except `schema`; after it comes the lock's name. libpq blocks while it looks names
up, and does not know the time limit of a connection that is opened step by step. So its list of hosts is taken apart
here: one attempt for each address, each with a limit.

PC1  No text that people see has a password in it: `shown` is made of the URL's parts without the secret ones, and
     libpq's complaint about a URL that it cannot read is passed on only if no part of the URL can be secret.
PC2  The key is made of the name alone, so all callers with the same spelling exclude each other. Names with equal keys
     would exclude each other without reason; that is noticed, because the row of a key has the name (lock.py).
PC3  A standby is never asked for a lock: it grants locks that its primary has granted to others. The session itself is
     checked, because libpq's own check is made when it connects, by a query that poolers answer themselves.
PC4  A pooler that gives the session to others between statements is never asked for a lock. A pooler is recognised
     because the pid that it reports is not the session's; a notification, which only reaches a connection that has its
     session to itself while it is idle, proves that the session stays ours. Nor is a pooler that leaves a lock of a
     departed client in the session, for its next client: a lock that is left there, and is free soon after, proves that
     this one does not. No proof, no lock. A proof counts while a connection is open since then: a pooler that was
     started anew may have another mode, and has ended them all.
PC5  No limit of its role or database ends the session, and its server notices when we are gone: by `_settings`. Nor
     does a statement call a function that another role has put on the search_path: one that takes text would match a
     parameter without a type better than the server's own, which takes numbers. Until the search_path is set, each
     argument has its type. A pooler that is refused (PC4) keeps none of these settings: its other clients would get
     them with the session.
     Settings that a managed service refuses are left as they are, and the log says so.

A session is kept for a moment after its use: the next acquisition is ten times as fast with one.

PC6  Only a session that provably has no lock and waits for none is kept, as shown last by the `false` of a try, the
     `true` of an unlock, or the unlocking of everything (`Connection.spotless`). Any other session ends with its
     connection.
PC7  Nothing relies on a kept session: the server may have ended it meanwhile. A caller that takes one and finds that
     out connects anew, silently.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import quote, unquote
from weakref import WeakSet

from psycopg import Error, pq

from ..._core.wait import Steps, pause
from ..._platform.fork import forking
from ..._platform.interface import Environment
from ...errors import EngineUnavailable, HoldfastError, InvalidPath
from ...events import DEBUG, logger_for
from ..connections import Pool, is_address, resolve
from ..remote import is_text
from .connection import Broken, Connection, Refused, Row

NAME = "postgresql"
SCHEMA = "holdfast"
_LONGEST_NAME = 2000
"""Maximum length of a name, in bytes of UTF-8; an index takes no more than 2700."""
_LONGEST_SCHEMA = 63
_SECRET = frozenset({"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"})
_TARGETS = frozenset({"any", "read-write", "primary"})
_SHAPE = "postgresql://user@host:5432/database#name"
_HOW = (
    f"A lock in PostgreSQL is {_SHAPE}; percent-encode special characters in a user, a password or a name "
    "(# is %23, @ is %40, / is %2F)"
)


class LockUrl:
    """A database, a schema in it, and the name of a lock there; or the beginning of names, for a list of locks."""

    __slots__ = ("base", "conninfo", "key", "name", "schema", "server", "shown")

    def __init__(self, given: dict[str, str], schema: str, name: str, base: str) -> None:
        self.conninfo = " ".join(f"{key}={escaped(value)}" for key, value in sorted(given.items()))
        """The connection string for libpq; has the password."""
        self.server = _server(given)
        """The identity of the database, by which it is told from others, however libpq is to reach it."""
        self.schema = schema
        self.name = name
        self.base = base
        self.key = key_of(name)
        self.shown = self.path_of(name)

    @property
    def table(self) -> str:
        """The table, quoted for SQL."""
        return f"{quoted(self.schema)}.lock"

    def path_of(self, name: str) -> str:
        """The URL of a lock of that name here, as people may see it (PC1)."""
        return f"{self.base}#{quote(name, safe='/:@!$&()*+,;=?~-._')}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shown!r}>"


def key_of(name: str) -> int:
    """The key of the advisory lock: the first 64 bits of BLAKE2b as a signed number, most significant byte first."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


def quoted(identifier: str) -> str:
    """An identifier quoted for SQL, whatever is in it."""
    return '"' + identifier.replace('"', '""') + '"'


def check_schema(schema: object) -> str:
    if not isinstance(schema, str):
        raise TypeError(f"schema must be a str, not {schema!r}")
    if not schema or "\0" in schema or len(schema.encode()) > _LONGEST_SCHEMA:
        raise InvalidPath(
            f"schema must be the name of a PostgreSQL schema, of 1 to {_LONGEST_SCHEMA} bytes", protocol=NAME
        )
    return schema


def parse(url: str, *, named: bool = True) -> LockUrl:
    """The parsed URL; InvalidPath for one that cannot be used. Without `named`, the name may be missing."""
    if not is_text(url):
        raise InvalidPath(f"this URL is not UTF-8 once it is percent-decoded. {_HOW}", protocol=NAME)
    before, _, fragment = url.partition("#")
    scheme, _, rest = before.partition("://")
    scheme = scheme.lower()  # libpq takes no other
    path, _, query = rest.partition("?")
    schema, kept = _ours(query)
    authority, _, database = path.partition("/")
    user, at, hosts = authority.rpartition("@")
    if "@" in user:
        raise InvalidPath(f"this URL has more than one @. {_HOW}", protocol=NAME)
    public = [part for part in kept if _keyword(part) not in _SECRET]
    base = f"{NAME}://{user.partition(':')[0]}{at}{hosts}" + (f"/{database}" if database else "")
    shown = public if schema == SCHEMA else [*public, f"schema={quote(schema, safe='')}"]
    base += "?" + "&".join(shown) if shown else ""
    masked = f"{scheme}://{user.partition(':')[0]}{at}{hosts}/{database}?{'&'.join(public)}"
    given = _parsed(masked, f"{scheme}://{path}?{'&'.join(kept)}")
    _check_url(given)
    return LockUrl(given, schema, _name(fragment, needed=named), base)


def _ours(query: str) -> tuple[str, list[str]]:
    """The schema, and the parameters that belong to libpq."""
    schema, kept = SCHEMA, []
    for part in filter(None, query.split("&")):
        if _keyword(part) == "schema":
            schema = check_schema(unquote(part.partition("=")[2]))
        else:
            kept.append(part)
    return schema, kept


def _keyword(part: str) -> str:
    """The name of a parameter as libpq understands it: decoded, and without the blanks around it (PC1)."""
    return unquote(part.partition("=")[0]).strip()


def _name(fragment: str, *, needed: bool) -> str:
    name = unquote(fragment)
    if needed and not name:
        raise InvalidPath(f"the URL names no lock: put its name behind a #. {_HOW}", protocol=NAME)
    if "\0" in name or len(name.encode()) > _LONGEST_NAME:
        raise InvalidPath(
            f"the name of a lock is any text without NUL, up to {_LONGEST_NAME} bytes of UTF-8", protocol=NAME
        )
    return name


def _parsed(masked: str, whole: str) -> dict[str, str]:
    """The options that libpq finds in the `whole` URL, whose secrets are left out of the `masked` one (PC1)."""
    try:
        pq.Conninfo.parse(masked.encode())
    except Error as error:
        secret = masked.partition("?")[0] != whole.partition("?")[0]
        said = "" if secret else f" ({str(error).strip()})"
        raise InvalidPath(f"libpq cannot read this URL{said}. {_HOW}", protocol=NAME) from None
    try:
        options = pq.Conninfo.parse(whole.encode())
    except Error:
        raise InvalidPath(f"libpq cannot read the password in this URL. {_HOW}", protocol=NAME) from None
    return {option.keyword.decode(): option.val.decode() for option in options if option.val is not None}


def _check_url(given: dict[str, str]) -> None:
    for port in given.get("port", "").split(","):
        if port and not (port.isascii() and port.isdecimal() and 0 < int(port[:9]) < 65536):
            raise InvalidPath(f"a port in this URL is not a number from 1 to 65535. {_HOW}", protocol=NAME)
    wanted = given.pop("target_session_attrs", "any")
    if wanted not in _TARGETS:
        raise InvalidPath(
            f"target_session_attrs={wanted} asks for a standby, which would grant a lock that the primary has granted "
            "to somebody else. Leave it out: of several hosts, the one that can be written to is taken",
            protocol=NAME,
        )


def _server(given: dict[str, str]) -> tuple[str, ...]:
    """The identity of the database: by the URL, and by the variables where that is silent. Some services tell databases
    apart by the user, others by `options`."""
    service = given.get("service") or os.environ.get("PGSERVICE", "")
    doubt = "?" if service else ""  # its file may have another value than the variable

    def known(name: str, variable: str = "") -> str:
        return given.get(name) or doubt + os.environ.get(variable or f"PG{name.upper()}", "")

    host, user = known("host"), known("user")
    database = known("dbname", "PGDATABASE") or user
    others = [known(name) for name in ("hostaddr", "servicefile", "options")]
    return (host if "/" in host else host.lower(), known("port") or "5432", database, user, service, *others)


def escaped(value: str) -> str:
    """A value escaped for libpq's connection string."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


_LOOKUP_WITHIN = 10.0
_TIMEOUT = 10.0
"""Seconds for a connection, unless the caller has set them (connect_timeout)."""
_DOOMED = " sslmode=tell-me-the-rest"
"""A parameter that makes a connection fail early: libpq fills in values from its environment, its service files and its
defaults, and then finds that this is no mode, before it looks anything up or connects."""


def _known(lock_url: LockUrl) -> dict[str, str]:
    """Everything that libpq knows of a server, whatever its source."""
    with_mistake = pq.PGconn.connect_start((lock_url.conninfo + _DOOMED).encode())
    values = {option.keyword.decode(): option.val.decode() for option in with_mistake.info if option.val}
    complaint = " ".join(with_mistake.get_error_message("utf-8").split())
    with_mistake.finish()
    if "sslmode" not in complaint:
        raise EngineUnavailable(
            f"{lock_url.base} cannot be reached: libpq says: {complaint}. Check the URL, the service file, and the "
            "environment variables whose names begin with PG",
            path=lock_url.shown,
            protocol=NAME,
        )
    return values


def _timeout(known: dict[str, str]) -> float:
    """The seconds for one attempt."""
    given = known.get("connect_timeout", "").strip()
    return float(given) if given.isdecimal() and int(given) > 0 else _TIMEOUT


class _Address(NamedTuple):
    """One address to try."""

    conninfo: str
    """The part of the connection string for it."""
    label: str
    """The name for people."""
    number: str
    """The IP address; empty for a socket of the filesystem."""


def _address(host: str, number: str, port: str) -> _Address:
    shown = host or number or "the local socket"
    label = shown if not port or shown.startswith("/") else f"{shown}:{port}"
    return _Address(f" host={escaped(host)} hostaddr={escaped(number)} port={escaped(port)}", label, number)


def _most_servers(found: list[_Address]) -> int:
    """Maximum number of servers that these are. An IPv4 and an IPv6 address of one name are one (localhost)."""
    numbers = {(each.label, ":" in each.number, each.number) for each in found}
    of_name = Counter((label, is_ipv6) for label, is_ipv6, _ in numbers)
    return sum(max(of_name[label, False], of_name[label, True]) for label in {each.label for each in found})


def _addresses(env: Environment, known: dict[str, str], until: float, failed: list[str]) -> Steps[list[_Address]]:
    """The addresses, in libpq's order. A host whose name is not known is left out; the reason goes to `failed`."""
    hosts, addresses, ports = (known.get(name, "").split(",") for name in ("host", "hostaddr", "port"))
    number = max(len(hosts), len(addresses))
    found = []
    for index in range(number):
        host, address = (given[index] if index < len(given) else "" for given in (hosts, addresses))
        port = ports[index] if index < len(ports) else ports[0]
        if address or not host or host.startswith(("/", "@")) or is_address(host):
            found.append(_address(host, address, port))
            continue
        try:
            answers = yield from resolve(env, host, None, min(until, env.monotonic() + _LOOKUP_WITHIN))
            found += [_address(host, each, port) for each in dict.fromkeys(str(answer[0]) for _, answer in answers)]
        except TimeoutError as error:
            failed.append(f"{host}: {error.strerror}")
        except OSError as error:
            failed.append(f"{host}: the name is not known ({error})")
    if known.get("load_balance_hosts") == "random":
        random.shuffle(found)
    return found


STALE_AFTER = 30.0
"""Seconds after which the server frees the lock of a silent holder, by default."""
_OLDEST = 140000
_PROOF_WITHIN = 2.0
_AGAIN = 0.02
_CHANNEL = "holdfast_session"
_pinned: dict[str, WeakSet[Connection]] = {}
"""The connections to each server behind a pooler that was proven to leave a session to its client (PC4)."""

_PASSING = (
    *("too many clients", "too many connections", "remaining connection slots", "no more connections allowed"),
    *("is starting up", "is shutting down", "not yet accepting connections", "in recovery mode"),
    "terminating connection",
)
"""Parts of messages about a passing obstacle, in English: of servers (SQLSTATE 53300, 57P01 to 57P03) and pgbouncer."""

_STANDBY, _NO_PRIMARY = "is a standby", "none of its hosts can be written to"

_FACTS = (
    "pg_backend_pid(), pg_is_in_recovery(), current_setting('server_version_num'), current_setting('server_version')"
)
_OWN_LEVEL = "set session characteristics as transaction isolation level read committed"
"""A statement without which nothing that looks at data may come: if a role's default is SERIALIZABLE READ ONLY
DEFERRABLE, that waits for the transactions of all writers."""
_TIMELINE = (  # PG2; the server refuses it to a standby
    "case when not pg_is_in_recovery() then pg_walfile_name(pg_current_wal_lsn()) end"
)
_DURABLE = (  # PG1: a token that has been seen is on the disk
    "set_config('synchronous_commit', case when current_setting('synchronous_commit') in ('off', 'local') "
    "then 'on' else current_setting('synchronous_commit') end, {local})"
)


def connect(
    env: Environment,
    lock_url: LockUrl,
    until: float,
    stale_after: float | None = None,
    *,
    first: str = "",
    last: str = "",
) -> Steps[Connection]:
    """A session that is fit for a lock, at the first of the hosts that has one. EngineUnavailable, with each reason.

    `first` and `last`: the addresses (`Connection.address`) to try before and after all others."""
    known = _known(lock_url)
    failed: list[str] = []
    found = yield from _addresses(env, known, until, failed)
    found.sort(key=lambda each: (each.conninfo == last) - (each.conninfo == first))
    servers = len(failed) + _most_servers(found)
    for number, address in enumerate(found):
        now = env.monotonic()
        limit = now + min(_timeout(known), (until - now) / (len(found) - number))  # one that is silent leaves time
        parameters = _parameters(env, known, stale_after or STALE_AFTER)
        connection = Connection(env, lock_url.conninfo + address.conninfo + parameters, address.label)
        connection.address = address.conninfo
        try:
            yield from connection.opening(limit)
            yield from _prepare(env, lock_url, connection, limit, stale_after or STALE_AFTER)
            return connection
        except BaseException as error:
            connection.close()
            if not isinstance(error, Broken):
                raise
            failed.append(str(error))
        if env.monotonic() >= until:
            break
    why = "; ".join(failed) or "no host is known"
    is_cluster = servers > 1 and any(_STANDBY in each for each in failed)
    raise unreachable(lock_url, f"{_NO_PRIMARY}: {why}" if is_cluster else why)


def unreachable(lock_url: LockUrl, why: str) -> EngineUnavailable:
    """The error for a server that cannot be reached, with the next step."""
    text = f"{lock_url.base} cannot be reached: {why.rstrip('.?')}. {_advice(why)}"
    return EngineUnavailable(text, path=lock_url.shown, protocol=NAME)


def is_passing(error: EngineUnavailable) -> bool:
    """Whether there is a server that says that it has no session for us now (PG5). libpq reports no SQLSTATE here."""
    return any(words in error.message for words in _PASSING)


def is_failing_over(error: EngineUnavailable) -> bool:
    """Whether there are several servers, one of which answers and is a standby, and none is writable (PG5)."""
    return _NO_PRIMARY in error.message


def refusal(lock_url: LockUrl, refused: Refused) -> HoldfastError:
    """The error for a statement that the server has refused, with the next step."""
    text = f"{lock_url.base} has refused: {refused} (SQLSTATE {refused.code}). "
    if refused.code in ("42P01", "3F000", "42703"):  # undefined table, schema, column
        text = (
            f"the database at {lock_url.base} is not prepared for locks ({refused}). A user who may create a schema "
            f"there has to run, once: holdfast postgresql init --schema {lock_url.schema} URL"
        )
    elif refused.code == "22P05":
        text += "The encoding of that database lacks characters that names and tags may contain: use one in UTF8"
    elif refused.code == "53200":
        text += "Each lock, of whatever kind, takes a place there: raise max_locks_per_transaction"
    elif refused.code == "42501":
        text += (
            f"The role needs USAGE on the schema {lock_url.schema} and SELECT, INSERT and UPDATE on its table lock. "
            "Their owner runs: holdfast postgresql init --grant ROLE URL, or the GRANT statements in docs/postgresql.md"
        )
    else:
        text += "The server's log may say more"
    return EngineUnavailable(text, path=lock_url.shown, protocol=NAME)


def _advice(why: str) -> str:
    texts = {
        "server_reset_query": "Set that to DISCARD ALL, or connect to the server itself",
        "second connection": "Raise the size of its pool (pgbouncer: default_pool_size, or the database's pool_size)",
        "password": "Check the user and the password: in the URL, PGPASSWORD, or ~/.pgpass",
        "pg_hba.conf": "The server's pg_hba.conf has to let this user in from here",
        "certificate": "Check sslmode, sslrootcert, and whether the certificate has the host's name as the URL has it",
        "authentication failed": "Check the user, and what the server's pg_hba.conf asks of it",
        "too many": "Each hold and each waiter has a connection: raise max_connections, or have fewer waiters",
        "remaining connection slots": "Each hold and each waiter has a connection: raise max_connections",
        "no more connections": "Each hold and each waiter has a connection: raise the pooler's limits",
        _NO_PRIMARY: "If a failover is under way, it has to end first. Otherwise, make sure that one of them is "
        "the primary, and that it can be reached from here",
        "standby": "Name the host that can be written to in the URL, or all hosts: the right one is found",
        "pooler": "Connect to the server itself, or to a port of the pooler with pool_mode = session",
        "is too old": "Use a newer server",
        "does not exist": "Check the names of the database and of the user",
        "does not answer": "Something there accepts connections and then does not answer. If it is a pooler, its pool "
        "may be used up: each hold and each waiter has a connection (pgbouncer: default_pool_size)",
    }
    otherwise = "Check host and port, that the server runs, and that it accepts connections from here"
    return next((text for word, text in texts.items() if word in why), otherwise)


def _parameters(env: Environment, known: dict[str, str], stale_after: float) -> str:
    """The parameters that are added to the user's own, where the user has none."""
    who = env.identity()
    name = f"holdfast {who.pid}@{who.host}".encode("ascii", "replace").decode()[:63].replace("'", "?")
    wanted = {
        "keepalives_idle": _seconds(stale_after / 3),
        "keepalives_interval": _seconds(stale_after / 12),
        "keepalives_count": 3,
        "tcp_user_timeout": _milliseconds(stale_after * 2 / 3),
        "fallback_application_name": name.replace("\\", "?"),
    }
    given = [f"{key}='{value}'" for key, value in wanted.items() if not known.get(key)]
    return " " + " ".join([*given, "client_encoding=UTF8 target_session_attrs=any"])


_MOST_SECONDS = 32767
"""Linux refuses more seconds for a keepalive (tcp(7); MAX_TCP_KEEPIDLE), and libpq then the connection."""


def _seconds(value: float) -> int:
    """The whole seconds for a keepalive. Less than wanted is harmless: the user timeout ends a connection."""
    return max(1, int(min(value, _MOST_SECONDS)))


def _milliseconds(value: float) -> int:
    return int(min(value * 1000, 2**31 - 1))


def _settings(stale_after: float, version: int) -> dict[str, str]:
    """The settings of a session (PC5). After half of `stale_after` the server asks whether we are there; after the
    other half it gives us up."""
    wanted = {
        "search_path": "pg_catalog, pg_temp",
        "client_min_messages": "warning",  # PS6
        "idle_session_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
        "statement_timeout": "0",
        "lock_timeout": "0",
        "default_transaction_read_only": "off",
        "default_transaction_isolation": "read committed",
        "tcp_keepalives_idle": str(_seconds(stale_after / 2)),
        "tcp_keepalives_interval": str(_seconds(stale_after / 6)),
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": str(_milliseconds(stale_after)),
        "client_connection_check_interval": "1000",
    }
    if version >= 170000:
        wanted["transaction_timeout"] = "0"
    return wanted


def _prepare(
    env: Environment, lock_url: LockUrl, connection: Connection, until: float, stale_after: float
) -> Steps[None]:
    wanted = _settings(stale_after, connection.conn.server_version)
    given, server = connection.conn.backend_pid, f"{lock_url.conninfo} {connection.label}"
    is_known = _is_pinned(server)
    # Until a pooler's session has proven to be ours, its settings end with the transaction: its next client has them.
    local = "false" if is_known else f"pg_backend_pid() <> {given}"
    calls = [_DURABLE, *(f"set_config('{name}', '{value}', {{local}})" for name, value in wanted.items())]
    settings, refuses = ", ".join(calls), False
    try:
        try:
            (facts,) = yield from connection.ask_plainly(
                f"select {_FACTS}, {_TIMELINE}, {settings.format(local=local)}", until
            )
        except Refused:  # one of the settings; which one?
            refuses = True
            (facts,) = yield from connection.ask_plainly(f"select {_FACTS}", until)
            _check(connection, facts)
            facts += yield from _timeline(connection, until)
        _check(connection, facts)
        connection.timeline = int((facts[4] or "")[:8] or "0", 16)  # the name of a file of the log begins with it
        if connection.backend != given:
            if not is_known:
                yield from _require_session(env, lock_url, connection, until)
                if not refuses:
                    yield from connection.ask_plainly(f"select {settings.format(local='false')}", until)
            with forking:
                _pinned.setdefault(server, WeakSet()).add(connection)
        if refuses:
            yield from connection.ask(_OWN_LEVEL, (), until)
            yield from _set_each(connection, wanted, until)
            yield from connection.ask(f"select {_DURABLE.format(local='false')}", (), until)
    except Refused as refused:
        raise Broken(f"the server at {connection.label} has refused: {refused}") from None


def _is_pinned(server: str) -> bool:
    with forking:
        return any(connection.is_open for connection in _pinned.get(server, ()))


def _check(connection: Connection, facts: Row) -> None:
    """Raise Broken for a server that is not fit for locks."""
    backend, standby, number, version = facts[:4]
    connection.backend = int(backend or 0)
    if int(number or 0) < _OLDEST:
        raise Broken(f"the server at {connection.label} is too old: PostgreSQL {version}; 14 or later is needed")
    if standby == "t":  # PC3
        raise Broken(
            f"the server at {connection.label} {_STANDBY}, which would grant locks that the primary has granted too"
        )


def _timeline(connection: Connection, until: float) -> Steps[Row]:
    """The timeline; None from a service that looks like PostgreSQL but has no such log."""
    try:
        return only((yield from connection.ask_plainly(f"select {_TIMELINE}", until)))
    except Refused:
        return (None,)


def _set_each(connection: Connection, wanted: dict[str, str], until: float) -> Steps[None]:
    refused = []
    for name, value in wanted.items():
        try:
            yield from connection.ask("select set_config($1, $2, false)", (name, value), until)
        except Refused as error:
            refused.append(f"{name} ({error})")
    logger = logger_for(DEBUG)
    if logger is not None and refused:
        logger.debug("%s refuses some settings, and keeps its own: %s", connection.label, "; ".join(refused))


def _require_session(env: Environment, lock_url: LockUrl, connection: Connection, until: float) -> Steps[None]:
    """Raise Broken unless the session proves to be ours alone (PC4)."""
    channel = f"{_CHANNEL}_{os.urandom(8).hex()}"
    until = min(until, env.monotonic() + _PROOF_WITHIN)
    yield from connection.ask(f"listen {channel}", (), until)
    other = Connection(env, lock_url.conninfo + _where(connection), connection.label)
    try:
        try:
            yield from other.opening(until)
            yield from other.ask_plainly(f"select pg_notify('{channel}', '')", until)
        except Broken as broken:
            raise Broken(
                f"the pooler at {connection.label} gave no second connection, which each process needs once to prove "
                f"that a session stays with its client ({broken})"
            ) from None
        while channel not in connection.hear():
            if env.monotonic() >= until:
                raise Broken(
                    f"the connection to {connection.label} goes through a pooler that gives its session to others "
                    "between statements (backend pid "
                    f"{connection.conn.backend_pid} is said to be {connection.backend}), so two could hold one lock"
                )
            yield connection.wait(until)
        left = int.from_bytes(os.urandom(8), "big", signed=True)
        yield from other.ask_plainly(f"select pg_advisory_lock('{left}'::bigint)", until)
    finally:
        other.close()
    yield from _require_freed(env, connection, left)
    yield from connection.ask(f"unlisten {channel}", (), env.monotonic() + _PROOF_WITHIN)


def _require_freed(env: Environment, connection: Connection, key: int) -> Steps[None]:
    """Raise Broken unless the lock of a departed client is free soon (PC4)."""
    until = env.monotonic() + _PROOF_WITHIN
    ask = f"select pg_try_advisory_xact_lock('{key}'::bigint)"
    while only((yield from connection.ask_plainly(ask, env.monotonic() + _PROOF_WITHIN)))[0] != "t":
        if env.monotonic() >= until:
            raise Broken(
                f"the pooler at {connection.label} does not reset the session of a client that has gone (pgbouncer: "
                "server_reset_query), so the lock of one that dies would stay taken"
            )
        yield from pause(env, env.monotonic() + _AGAIN)


def _where(connection: Connection) -> str:
    """The address of this connection, for a second one."""
    values = {"host": connection.conn.host, "hostaddr": connection.conn.hostaddr, "port": connection.conn.port}
    given = {key: value.decode() for key, value in values.items() if value}
    return "".join(f" {key}={escaped(value)}" for key, value in given.items()) + " target_session_attrs=any"


def only(rows: list[Row]) -> Row:
    """The only row that a statement returned."""
    (row,) = rows
    return row


KEPT = 5.0
"""Seconds that a session is kept."""
MOST = 4
"""Maximum number of sessions kept for each server and kind of connection."""
_pool: Pool[Connection] = Pool("while closing connections", MOST)


def obtain(
    env: Environment,
    lock_url: LockUrl,
    until: float,
    keeps: float | None = None,
    *,
    fresh: bool = False,
    last: str = "",
) -> Steps[Connection]:
    """A session that is fit for a lock: a kept one, or a new one, made by `connect`. EngineUnavailable."""
    kind = _kind(lock_url, keeps or STALE_AFTER)
    while not fresh:
        connection = _pool.take(env, kind)
        if connection is None:
            break
        try:
            connection.hear()
        except Broken:
            connection.close()
            continue
        connection.used = True
        return connection
    connection = yield from connect(env, lock_url, until, keeps, last=last)
    connection.kind = kind
    return connection


def leave(connection: Connection) -> None:
    """End the use of a session, whatever its state: keep it or close it. Never waits, never raises."""
    if connection.is_spare:
        _pool.keep(connection.env, connection.kind, connection, KEPT)
    else:
        connection.abandon()


def _kind(lock_url: LockUrl, keeps: float) -> tuple[object, ...]:
    """The key by which two connections are equal; includes what libpq reads from the environment."""
    variables = tuple(sorted([(name, os.environ[name]) for name in os.environ if name.startswith("PG")]))
    return (lock_url.conninfo, keeps, variables)
