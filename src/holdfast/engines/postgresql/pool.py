"""Connections that are kept for a moment behind their use: the next acquire is ten times as fast with one.

PG16  Only a session that provably has no lock and waits for none is kept: what a `false` of a try, an error of a wait
      or a `true` of an unlock has shown last (`Link.spotless`). Anything else ends with its connection.
PG17  Nobody relies on one: the server may have ended it meanwhile. Whoever takes one and finds that out connects anew,
      and says nothing of it.
"""

from __future__ import annotations

import os
from collections.abc import Generator

from ..._core.wait import Wait
from ..._drivers.agent import agent
from ..._platform.fork import forking
from ..._platform.interface import Environment
from .connect import STALE_AFTER, Place, connect
from .connection import Broken, Link

KEPT = 5.0
"""Seconds."""
MOST = 4
"""For each server and kind of connection."""
_spares: dict[tuple[object, ...], list[tuple[float, Link]]] = {}
"""Changed under `forking`, so that a child finds it in order; what is in it then is the parent's."""
_sweeping: list[int] = []
"""The generation of the process whose agent closes what is too old."""


def obtain(
    env: Environment, place: Place, until: float, keeps: float | None = None, *, fresh: bool = False
) -> Generator[Wait, None, Link]:
    """A session that is fit for a lock: one that is left, or a new one. EngineUnavailable."""
    kind = _kind(place, keeps or STALE_AFTER)
    while not fresh:
        link = _take(env, kind)
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
    env = link.env
    if not link.spotless or link.busy or not link.is_open or not link.kind:
        link.abandon()
        return
    with forking:
        kept = _spares.setdefault(link.kind, [])
        full = len(kept) >= MOST
        if not full:
            kept.append((env.monotonic() + KEPT, link))
        swept = _sweeping == [env.generation]
        _sweeping[:] = [env.generation]
    if full:
        link.close()
    if not swept:
        try:
            agent(env).start(_sweep(env), "while closing connections")
        except (OSError, RuntimeError):  # no thread is to be had
            _sweeping.clear()
            close_all(env)


def close_all(env: Environment) -> None:
    """Close those that are kept by this process."""
    with forking:
        for kept in _spares.values():
            for _, link in kept:
                if link.generation == env.generation:
                    link.close()
        _spares.clear()


def _kind(place: Place, keeps: float) -> tuple[object, ...]:
    """What makes two connections equal: also what libpq reads from the environment."""
    variables = tuple(sorted([(name, os.environ[name]) for name in os.environ if name.startswith("PG")]))
    return (place.conninfo, keeps, variables)


def _take(env: Environment, kind: tuple[object, ...]) -> Link | None:
    with forking:
        kept = _spares.get(kind, [])
        while kept:
            _, link = kept.pop()
            if link.generation == env.generation:
                return link
        _spares.pop(kind, None)
        return None


def _sweep(env: Environment) -> Generator[Wait, None, None]:
    """In the agent's thread, while there are any."""
    while True:
        old: list[Link] = []
        with forking:
            now = env.monotonic()
            for kind, kept in list(_spares.items()):
                old += [link for until, link in kept if until <= now]
                left = [(until, link) for until, link in kept if until > now]
                if left:
                    _spares[kind] = left
                else:
                    del _spares[kind]
            due = min((until for kept in _spares.values() for until, _ in kept), default=None)
            if due is None:
                _sweeping.clear()
        for link in old:
            link.close()
        if due is None:
            return
        yield Wait((), due)
