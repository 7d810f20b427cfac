"""Sessions that are kept for a moment behind their use: the next acquire is ten times as fast with one.

PG16  Only a session that provably has no lock and waits for none is kept: what a `false` of a try, an error of a wait
      or a `true` of an unlock has shown last (`Link.spotless`). Anything else ends with its connection.
PG17  Nobody relies on one: the server may have ended it meanwhile. Whoever takes one and finds that out connects anew,
      and says nothing of it.
"""

from __future__ import annotations

import os
from collections.abc import Generator

from ..._core.wait import Wait
from ..._platform.interface import Environment
from ..connections import Pool
from .connect import STALE_AFTER, Place, connect
from .connection import Broken, Link

KEPT = 5.0
"""Seconds."""
MOST = 4
"""For each server and kind of connection."""
_pool: Pool[Link] = Pool("while closing connections", MOST)


def obtain(
    env: Environment, place: Place, until: float, keeps: float | None = None, *, fresh: bool = False
) -> Generator[Wait, None, Link]:
    """A session that is fit for a lock: one that is left, or a new one. EngineUnavailable."""
    kind = _kind(place, keeps or STALE_AFTER)
    while not fresh:
        link = _pool.take(env, kind)
        if link is None:
            break
        try:
            link.hear()
        except Broken:
            link.close()
            continue
        link.used = True
        return link
    link = yield from connect(env, place, until, keeps)
    link.kind = kind
    return link


def leave(link: Link) -> None:
    """What is done with it, whatever state it is in. Never waits, never raises."""
    if link.spotless and not link.busy and link.is_open and link.kind:
        _pool.keep(link.env, link.kind, link, KEPT)
    else:
        link.abandon()


def close_all(env: Environment) -> None:
    """Close those that are kept by this process."""
    _pool.close_all(env)


def _kind(place: Place, keeps: float) -> tuple[object, ...]:
    """What makes two connections equal: also what libpq reads from the environment."""
    variables = tuple(sorted([(name, os.environ[name]) for name in os.environ if name.startswith("PG")]))
    return (place.conninfo, keeps, variables)
