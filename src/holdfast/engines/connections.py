"""Connections of the engines on servers: name resolution, and a pool that keeps a used connection for a moment."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Hashable
from ipaddress import ip_address
from typing import Any, Generic, Protocol, TypeVar

from .._core.wait import Signal, Steps, Wait
from .._drivers.agent import agent
from .._drivers.background import start
from .._platform.fork import forking
from .._platform.interface import Environment

Address = tuple[int, tuple[Any, ...]]
"""The family of a socket, and the address to connect to."""


def is_address(host: str) -> bool:
    """Whether the host is an address, not a name to look up."""
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def resolve(env: Environment, host: str, port: str | int | None, until: float) -> Steps[list[Address]]:
    """The addresses of a host. OSError, which says why, if there are none; TimeoutError if none is known by `until`.

    The system's resolver blocks, so it runs in a thread of its own.
    """
    if is_address(host):
        return _addresses(host, port)
    found: list[list[Address] | OSError] = []
    done = Signal()

    def look_up() -> None:
        try:
            found.append(_addresses(host, port))
        except OSError as error:
            found.append(error)
        except UnicodeError as error:
            found.append(OSError(errno.EINVAL, str(error)))
        done.set()

    try:
        start(threading.Thread(target=look_up, name="holdfast-resolve", daemon=True))
    except RuntimeError as error:  # no thread can be started, perhaps only now
        raise OSError(errno.EAGAIN, str(error)) from None
    while not found:
        if env.monotonic() >= until:
            raise TimeoutError(errno.ETIMEDOUT, "the name could not be looked up in time")
        yield Wait((), until, done)
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


def _addresses(host: str, port: str | int | None) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


class Kept(Protocol):
    generation: int
    """The generation of the process that opened it."""

    @property
    def is_open(self) -> bool: ...
    def close(self) -> None: ...


C = TypeVar("C", bound=Kept)


class Pool(Generic[C]):
    """Connections that are kept for a moment after use.

    Nothing relies on such a connection: the server may have ended it meanwhile. The pool is changed under `forking`, so
    that a child finds it in order; the connections in it are the parent's then, and left alone.
    """

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        """Maximum number of connections of each kind."""
        self._kept: dict[Hashable, list[tuple[float, C]]] = {}
        self._swept_in = -1
        """The generation of the process whose agent closes old connections; -1 while there are none."""

    def take(self, env: Environment, kind: Hashable) -> C | None:
        """Hand the caller the newest connection of that kind, or None."""
        while True:
            with forking:
                kept = self._kept.get(kind, [])
                if not kept:
                    self._kept.pop(kind, None)
                    return None
                until, connection = kept.pop()
            if connection.generation != env.generation:
                continue
            if connection.is_open and env.monotonic() < until:
                return connection
            connection.close()

    def keep(self, env: Environment, kind: Hashable, connection: C, seconds: float) -> None:
        """Keep the connection for that long, or close it if there are enough. Never waits, never raises."""
        with forking:
            kept = self._kept.setdefault(kind, [])
            full = len(kept) >= self._most
            if not full:
                kept.append((env.monotonic() + seconds, connection))
            swept, self._swept_in = self._swept_in == env.generation, env.generation
        if full:
            connection.close()
        if not swept:
            try:
                agent(env).start(self._sweep(env), self._what)
            except (OSError, RuntimeError):  # no thread can be started
                self._swept_in = -1
                self.close_all(env)

    def close_all(self, env: Environment) -> None:
        """Close the connections of this process."""
        with forking:
            for kept in list(self._kept.values()):
                for _, connection in kept:
                    if connection.generation == env.generation:
                        connection.close()
            self._kept.clear()

    def _sweep(self, env: Environment) -> Steps[None]:
        """Close old connections, in the agent's thread, while there are any."""
        while True:
            old: list[C] = []
            with forking:
                now = env.monotonic()
                for kind, kept in self._kept.copy().items():
                    old += [connection for until, connection in kept if until <= now]
                    kept[:] = [(until, connection) for until, connection in kept if until > now]
                    if not kept:
                        del self._kept[kind]
                due = min((until for kept in list(self._kept.values()) for until, _ in kept), default=None)
                if due is None:
                    self._swept_in = -1
            for connection in old:
                connection.close()
            if due is None:
                return
            yield Wait((), due)
