"""Holders and waiters of a lock, as the server sees them: its table of locks, joined to the rows of the holders.

PO1  The server's table of locks decides who holds; a row only says who that is, and counts if the session that has the
      lock wrote it. The pid alone may be another session's by now, so the session must be no younger than the row. And
      it must have written the row for this hold: the row of an earlier hold is older than the statement by which the
      session acquires, as long as that is its last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, unquote

from ..._core.wait import Steps
from ...liveness import Liveness
from ...model import Evidence, Holder, Record, Status, Waiter
from .connect import NAME, LockUrl
from .connection import Connection, Row

_TAG_SHOWN = 300
_COMMENT = re.compile(r"^/\*holdfast (\d{1,10}) (\S*) (\S*)\*/")
_APPLICATION = re.compile(r"^holdfast (\d{1,10})@(.*)$")

WRITTEN = """k.backend = l.pid and (a.backend_start is null or a.backend_start <= k.since)
       and (a.query_start is null or a.query_start <= k.since
            or a.query !~ '^(/[*]holdfast|[[:space:]]*(with got|insert into))')"""
"""The condition that the session `a` wrote the row `k` for its hold `l` (PO1). The pattern: the beginnings of the
statements that acquire a lock, or write the row after that (lock.py)."""

# Not the view pg_stat_activity, which adds the names of databases and roles to what this function tells: planning that
# takes a quarter of a look, and 0.3 MiB in the session of each who waits.
_LOCKS = """
select k.key, k.name, l.pid, l.granted, l.mode, extract(epoch from coalesce(l.waitstart, a.query_start)),
       a.application_name, a.query, host(a.client_addr), extract(epoch from clock_timestamp()),
       {written},
       k.token, k.pid, k.host, k.tag, extract(epoch from k.since)
  from pg_locks l left join pg_stat_get_activity(null) a on a.pid = l.pid, {keys} k
 where l.locktype = 'advisory' and l.objsubid = 1
   and l.database = (select oid from pg_database where datname = current_database())
   and ((l.classid::bigint << 32) | l.objid::bigint) = k.key
 order by k.name, l.granted desc, l.waitstart nulls last, a.query_start"""
_ONE = (
    "(select v.key, coalesce(r.name, $2) as name, r.backend, r.since, r.token, r.pid, r.host, r.tag "
    "from (values ($1::bigint)) v(key) left join {table} r on r.key = v.key)"
)
_MANY = "(select * from {table} where starts_with(name, $1))"


def comment(pid: int, host: str, tag: str | None) -> str:
    """The beginning of a statement's text, so that a look at the server's sessions names the waiter."""
    return f"/*holdfast {pid} {quote(host, safe='')} {quote((tag or '')[:_TAG_SHOWN], safe='')[:600]}*/"


def look_at(connection: Connection, lock_url: LockUrl, until: float) -> Steps[Status]:
    keys = _ONE.format(table=lock_url.table)
    rows = yield from connection.ask_again(
        _LOCKS.format(keys=keys, written=WRITTEN), (lock_url.key, lock_url.name), until
    )
    return describe(lock_url, lock_url.name, rows)


def look_at_all(connection: Connection, lock_url: LockUrl, until: float) -> Steps[tuple[Status, ...]]:
    """One look at all locks whose names begin with the URL's and that are held or waited for; sorted by path."""
    keys = _MANY.format(table=lock_url.table)
    rows = yield from connection.ask_again(_LOCKS.format(keys=keys, written=WRITTEN), (lock_url.name,), until)
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row[1] or "", []).append(row)
    statuses = [describe(lock_url, name, found) for name, found in by_name.items()]
    return tuple(sorted([s for s in statuses if s.locked], key=lambda status: status.path))


def free(path: str) -> Status:
    return Status(path, NAME, False, False, Liveness.UNKNOWN, Evidence("none", "nobody holds it"), reason="it is free")


def away(path: str, why: str) -> Status:
    """The status of a lock while its server is away; `why` begins with the verb."""
    text = f"its server {why}"
    return Status(path, NAME, False, False, Liveness.UNKNOWN, Evidence("server", text), reason=text)


def describe(lock_url: LockUrl, name: str, rows: Sequence[Row]) -> Status:
    path = lock_url.path_of(name)
    exclusive = [row for row in rows if row[4] == "ExclusiveLock"]
    granted = [row for row in exclusive if row[3] == "t"] or [row for row in rows if _is_shared_by_another(row)]
    holding = next(iter(granted), None)
    waiting = [row for row in exclusive if row[3] != "t"]
    watching = [row for row in rows if row[4] != "ExclusiveLock" and row[3] != "t"]
    waiters = [_waiter(row, number) for number, row in enumerate(waiting, 1)] + [_waiter(row, None) for row in watching]
    if holding is None:
        if not waiting:
            return free(path)
        text = "the server is about to grant it to the first waiter"
        return Status(
            path, NAME, True, False, Liveness.UNKNOWN, Evidence("server", text), reason=text, waiters=tuple(waiters)
        )
    record = _record(holding, name)
    holder = Holder(record.pid, record.host, record.created, record.tag)
    age = None if record.created is None else max(0.0, float(holding[9] or 0) - record.created)
    evidence = Evidence("server", _evidence(holding), proven=True)
    reason = "the server keeps it for a session that is open"
    return Status(
        path, NAME, True, False, Liveness.ALIVE, evidence, holder, record, reason, age, tuple(waiters), (holder,)
    )


def _is_shared_by_another(row: Row) -> bool:
    """Whether another program has it in shared mode. With holdfast that lasts for one statement of `Lock.wait`, which
    the name of the session shows or, if its user has chosen another, the statement."""
    is_ours = _APPLICATION.match(row[6] or "") or "advisory_xact_lock_shared(" in (row[7] or "")
    return row[3] == "t" and row[4] != "ExclusiveLock" and not is_ours


def _evidence(row: Row) -> str:
    where = f" from {row[8]}" if row[8] else ""
    if row[10] == "t" and row[1] is not None:
        return f"the server has granted it to session {row[2]}{where}, which is open"
    name = f" ({row[6]})" if row[6] else ""
    return f"the server has granted it to session {row[2]}{name}{where}, which has not said who it is"


def _record(row: Row, name: str) -> Record:
    fields: dict[str, object] = {"name": name, "session": int(row[2] or 0)}
    if row[10] == "t":
        fields["token"] = int(row[11] or 0)
        return Record(NAME, fields, None if row[12] is None else int(row[12]), float(row[15] or 0), row[14], row[13])
    pid, host, tag = _who(row)
    return Record(NAME, fields, pid, None, tag, host, legible=pid is not None)


def _waiter(row: Row, position: int | None) -> Waiter:
    pid, host, tag = _who(row)
    command = None if host is None else f"on {host}"
    return Waiter(position, pid or 0, None if row[5] is None else float(row[5]), tag, command)


def _who(row: Row) -> tuple[int | None, str | None, str | None]:
    """Pid, host and tag of a session without a row: from its statement, else from the name that it has given."""
    said = _COMMENT.match(row[7] or "")
    if said:
        return int(said[1]), unquote(said[2]), unquote(said[3], errors="replace") or None
    named = _APPLICATION.match(row[6] or "")
    return (int(named[1]), named[2], None) if named else (None, None, None)
