"""Sessions that are kept for a moment behind their use: the next acquire is ten times as fast with one.

PG16  Only a session that provably has no lock and waits for none is kept: what a `false` of a try, an error of a wait
      or a `true` of an unlock has shown last (`Connection.spotless`). Anything else ends with its connection.
PG17  Nobody relies on one: the server may have ended it meanwhile. Whoever takes one and finds that out connects anew,
      and says nothing of it.
"""

from __future__ import annotations

import os
from collections.abc import Generator

from ..._core.wait import Wait
from ..._platform.interface import Environment
from ..connections import Pool
from .connect import STALE_AFTER, LockUrl, connect
from .connection import Broken, Connection

KEPT = 5.0
"""Seconds."""
MOST = 4
"""For each server and kind of connection."""
_pool: Pool[Connection] = Pool("while closing connections", MOST)


def obtain(
    env: Environment, lock_url: LockUrl, until: float, keeps: float | None = None, *, fresh: bool = False
) -> Generator[Wait, None, Connection]:
    """A session that is fit for a lock: one that is left, or a new one. EngineUnavailable."""
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
    connection = yield from connect(env, lock_url, until, keeps)
    connection.kind = kind
    return connection


def leave(connection: Connection) -> None:
    """What is done with it, whatever state it is in. Never waits, never raises."""
    if connection.spotless and not connection.busy and connection.is_open and connection.kind:
        _pool.keep(connection.env, connection.kind, connection, KEPT)
    else:
        connection.abandon()


def close_all(env: Environment) -> None:
    """Close those that are kept by this process."""
    _pool.close_all(env)


def _kind(lock_url: LockUrl, keeps: float) -> tuple[object, ...]:
    """What makes two connections equal: also what libpq reads from the environment."""
    variables = tuple(sorted([(name, os.environ[name]) for name in os.environ if name.startswith("PG")]))
    return (lock_url.conninfo, keeps, variables)
