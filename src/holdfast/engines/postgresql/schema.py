"""The schema that a database needs to store locks: one table in it, and one row for each name ever used."""

from __future__ import annotations

from collections.abc import Sequence

from ..._core.wait import Steps
from ..._drivers.sync import drive
from ..._platform import environment
from ..._platform.interface import Environment
from ...errors import HoldfastError
from .connect import NAME, SCHEMA, LockUrl, check_schema, connect, parse, quoted, unreachable
from .connection import Broken, Refused

_WITHIN = 15.0
_EXISTS = "42P06", "42P07", "42710", "23505"
"""The errors of a statement when another client has made the object at the same moment."""
_NO_SUCH_ROLE = "42704"


def statements(schema: str) -> tuple[str, ...]:
    name = quoted(check_schema(schema))
    return (
        f"create schema if not exists {name}",
        # Rows are written over again and again: room in each page keeps that from the indexes.
        f"""create table if not exists {name}.lock (
    key bigint primary key,            -- of the advisory lock: the first 64 bits of BLAKE2b of the name
    name text not null,
    token bigint not null,             -- the fencing token of the last hold; never goes down
    backend integer not null,          -- the session of the last holder; whether it holds still, pg_locks says
    pid integer not null,
    host text not null,
    tag text,
    since timestamptz not null
) with (fillfactor = 50)""",
        f"create index if not exists lock_name on {name}.lock (name text_pattern_ops)",
    )


def grants(schema: str, roles: Sequence[str]) -> tuple[str, ...]:
    """The statements that let these roles use locks, and nothing else."""
    name = quoted(check_schema(schema))
    found: list[str] = []
    for role in roles:
        if not role or "\0" in role:
            raise ValueError(f"a role has a name, not {role!r}")
        who = "public" if role.lower() == "public" else quoted(role)
        found.append(f"grant usage on schema {name} to {who}")
        found.append(f"grant select, insert, update on {name}.lock to {who}")
    return tuple(found)


def ddl(schema: str = SCHEMA, grant: Sequence[str] = ()) -> str:
    """The SQL that `init` runs, to be read, or applied by other means. ValueError for a bad name."""
    return ";\n".join(statements(schema) + grants(schema, grant)) + ";\n"


def init(url: str, schema: str | None = None, grant: Sequence[str] = ()) -> str:
    """Make the schema and table for locks in the database at `url`, if they are missing. Returns the schema's name.

    `url` is the URL of any lock there, or one without the name after #. `schema` overrides the URL's `schema=`
    (holdfast). The roles in `grant` may use locks there afterwards, even in an older schema. Idempotent, and changes
    nothing else there. Blocks until the server has answered. Raises InvalidPath for a bad URL, EngineUnavailable if the
    server cannot be reached, and HoldfastError, which says what to grant, if it refuses.
    """
    lock_url = parse(url, named=False)
    if schema is not None:
        lock_url.schema = check_schema(schema)
    drive(_init(environment(), lock_url, grants(lock_url.schema, grant)))
    return lock_url.schema


def schema_of(url: str, schema: str | None = None) -> str:
    """The schema that `init` would make."""
    return check_schema(parse(url, named=False).schema if schema is None else schema)


def _init(env: Environment, lock_url: LockUrl, granted: tuple[str, ...]) -> Steps[None]:
    until = env.monotonic() + _WITHIN
    connection = yield from connect(env, lock_url, until)
    try:
        schema, table = lock_url.schema, lock_url.table
        rows = yield from connection.ask("select to_regclass($1), to_regnamespace($2)", (table, quoted(schema)), until)
        has_table, has_schema = (found is not None for found in rows[0])
        missing = () if has_table else statements(schema)[has_schema:]  # no right is needed to create what is there
        for statement in missing + granted:
            try:
                yield from connection.ask(statement, (), until)
            except Refused as refused:
                if refused.code not in _EXISTS:
                    raise _refusal(lock_url, refused) from None
    except Broken as broken:
        raise unreachable(lock_url, str(broken)) from None
    finally:
        connection.close()


def _refusal(lock_url: LockUrl, refused: Refused) -> HoldfastError:
    if refused.code == _NO_SUCH_ROLE:
        why = f"has the schema {lock_url.schema} now, but {refused}. Create that role, and run the same command again"
    else:
        why = f"does not let this role prepare the schema {lock_url.schema}: {refused}. Its owner, or a superuser, can "
        why += "do it with the same command, or run what `holdfast postgresql init --print` prints"
    return HoldfastError(f"{lock_url.base} {why}", path=lock_url.shown, protocol=NAME)
