"""Locks in a PostgreSQL database: `Lock("postgresql://user@host/database#name")`. See docs/postgresql.md.

connect.py     what a URL says, where its server is, which sessions are fit, and those that are kept for a moment
connection.py  one connection, as steps        lock.py    acquiring, waiting, holding
look.py        who holds, who waits            schema.py  the table
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..._core.options import Options, Request
from ..._core.wait import Steps
from ..._platform.interface import Environment
from ...errors import HoldfastError
from ...model import Record, Status
from ..remote import RemoteEngine
from .connect import NAME, LockUrl, leave, obtain, parse, refusal, unreachable
from .connection import Broken, Connection, Refused
from .lock import AcquireAttempt, PostgresqlRequest
from .look import WRITTEN, look_at, look_at_all
from .schema import ddl as ddl
from .schema import init as init
from .schema import schema_of as schema_of

T = TypeVar("T")

_WITHIN = 10.0
_BREAK_WITHIN_MS = 5000
_BREAK = """
select l.pid, pg_terminate_backend(l.pid, $2::bigint)
  from pg_locks l left join pg_stat_get_activity(null) a on a.pid = l.pid
 where l.pid = $3::integer
   and ($4::bigint is null or exists (select from {table} k where k.key = $1 and k.token = $4 and {written}))
   and l.locktype = 'advisory' and l.objsubid = 1 and l.granted
   and l.database = (select oid from pg_database where datname = current_database())
   and ((l.classid::bigint << 32) | l.objid::bigint) = $1::bigint"""


class Postgresql(RemoteEngine):
    """Advisory locks of the server, each held by a session of its own; a row for each name has the fencing token."""

    name = NAME
    contender = AcquireAttempt

    def request(self, resource: str | os.PathLike[str], options: Options) -> Request:
        return PostgresqlRequest(self, resource, options)

    def slots(self, resource: str | os.PathLike[str], slots: int, options: Options) -> tuple[Request, ...]:  # noqa: ARG002
        raise ValueError(
            "there are no semaphores on postgresql: the server grants an advisory lock to one waiter at a time, and "
            "cannot let N holders in, in order. Use a Semaphore on etcd or on files, or one Lock for each slot"
        )

    def look(self, env: Environment, requests: Sequence[PostgresqlRequest]) -> Steps[tuple[Status]]:
        return ((yield from _asking(env, requests[0].lock_url, look_at)),)

    def break_if(
        self, env: Environment, request: PostgresqlRequest, agreed: Callable[[Record], bool]
    ) -> Steps[Record | None]:
        return _asking(env, request.lock_url, _break, agreed)

    def survey(self, env: Environment, resource: str) -> Steps[tuple[Status, ...]]:
        return (yield from _asking(env, parse(resource, named=False), look_at_all))


def _break(
    connection: Connection, lock_url: LockUrl, until: float, agreed: Callable[[Record], bool]
) -> Steps[Record | None]:
    """End the session that holds the lock, if it still has that very hold; otherwise look again."""
    while True:
        status = yield from look_at(connection, lock_url, until)
        record = status.record
        if record is None or not agreed(record):
            return None
        connection.used = False  # it answers: if this one loses its answer, a second look would find nothing to break
        values = (lock_url.key, _BREAK_WITHIN_MS, record.fields["session"], record.fields.get("token"))
        try:
            told = yield from connection.ask(_BREAK.format(table=lock_url.table, written=WRITTEN), values, until)
        except Refused as refused:
            if refused.code != "42501":
                raise
            raise HoldfastError(
                f"{lock_url.shown} is held by another role's session, and this role may not end it: {refused}. A "
                "member of that role may, or of pg_signal_backend (GRANT pg_signal_backend TO …), or a superuser",
                path=lock_url.shown,
                protocol=NAME,
                holder=status.holder,
            ) from None
        if told:
            if told[0][1] != "t":  # it is stuck, or has ended by itself just then
                yield from _require_gone(connection, lock_url, record, until)
            return record
        if connection.env.monotonic() >= until:
            raise HoldfastError(
                f"{lock_url.shown} was not broken: it changed hands each time it was checked", path=lock_url.shown
            )


def _require_gone(connection: Connection, lock_url: LockUrl, record: Record, until: float) -> Steps[None]:
    """Raise HoldfastError if that very hold is still there."""
    status = yield from look_at(connection, lock_url, until)
    if status.record is not None and status.record.fields == record.fields:
        raise HoldfastError(
            f"{lock_url.shown} was not broken: the server has told its session {record.fields['session']} to end, and "
            f"it has not within {_BREAK_WITHIN_MS / 1000:g} s. Check what the server process with that pid does",
            path=lock_url.shown,
            protocol=NAME,
            holder=status.holder,
        )


def _asking(env: Environment, lock_url: LockUrl, steps: Callable[..., Steps[T]], *more: object) -> Steps[T]:
    """The result of these steps, which get a connection of their own, the URL, the time limit, and `more`."""
    until = env.monotonic() + _WITHIN
    connection = yield from obtain(env, lock_url, until)
    try:
        while True:
            try:
                return (yield from steps(connection, lock_url, until, *more))
            except Broken:
                if not connection.used:
                    raise
                connection.close()  # PC7
            connection = yield from obtain(env, lock_url, until, fresh=True)
    except Broken as broken:
        raise unreachable(lock_url, str(broken)) from None
    except Refused as refused:
        raise refusal(lock_url, refused) from None
    finally:
        leave(connection)


ENGINE = Postgresql()
