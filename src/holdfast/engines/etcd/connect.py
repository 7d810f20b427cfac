"""Reaching one server of etcd: its addresses, and a connection to the first of them that answers.

EW4  No step blocks: the system's resolver does, so a name (and no address) is looked up in a thread of its own.
"""

from __future__ import annotations

import errno
import os
import socket

from ..._core.environment import Signal, Wait
from ..._os import forking
from .http import Connection, Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Generator
    from typing import Any

    from ..._core.environment import Environment
    from .url import Endpoint

    Addresses = list[tuple[int, tuple[Any, ...]]]

_IN_PROGRESS = (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY)


def connect(
    env: Environment, endpoint: Endpoint, tls: ssl.SSLContext | None, until: float
) -> Generator[Wait, None, Connection]:
    """A connection to that server by then; Unreachable, which says why, if there is none."""
    why = Unreachable("its name has no address")
    for family, address in (yield from _resolve(env, endpoint, until)):
        connection = None
        try:
            connection = _begin(env, endpoint, tls, family, address)
            while not _is_connected(connection.fd):
                if env.monotonic() >= until:
                    raise Unreachable("it did not answer in time")
                yield Wait((), until, None, (connection.fd,))
            yield from connection.shake_hands(until)
            return connection
        except Unreachable as error:
            why = error
            if connection is not None:
                connection.close()
        except BaseException:
            if connection is not None:
                connection.close()
            raise
    raise why


def _begin(
    env: Environment, endpoint: Endpoint, tls: ssl.SSLContext | None, family: int, address: tuple[Any, ...]
) -> Connection:
    owner: Any = env  # of a real process: no simulated one has sockets
    with forking:  # a child must find the descriptor among those that it closes (EW2)
        made = socket.socket(family, socket.SOCK_STREAM)
        fd: int = owner.adopt(made.detach())
    plug = socket.socket(family, socket.SOCK_STREAM, fileno=fd)
    try:
        plug.setblocking(False)
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        failed = plug.connect_ex(address)
    except BaseException as error:
        plug.detach()
        env.close(fd)
        if isinstance(error, OSError):
            raise Unreachable(error.strerror or str(error)) from None
        raise
    plug.detach()
    if failed and failed not in _IN_PROGRESS:
        env.close(fd)
        raise Unreachable(os.strerror(failed))
    try:
        return Connection(env, endpoint, fd, tls)
    except BaseException:
        env.close(fd)
        raise


def _is_connected(fd: int) -> bool:
    """Unreachable if it never will be."""
    plug = socket.socket(fileno=fd)
    try:
        failed = plug.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            raise Unreachable(os.strerror(failed))
        plug.getpeername()
        return True
    except OSError:
        return False  # not yet
    finally:
        plug.detach()


def _resolve(env: Environment, endpoint: Endpoint, until: float) -> Generator[Wait, None, Addresses]:
    try:
        return _addresses(endpoint, socket.AI_NUMERICHOST)
    except OSError:
        pass
    import threading

    found: list[Addresses | OSError] = []
    done = Signal()

    def look_up() -> None:  # EW4
        try:
            found.append(_addresses(endpoint, 0))
        except OSError as error:
            found.append(error)
        except UnicodeError as error:
            found.append(OSError(errno.EINVAL, str(error)))
        done.set()

    threading.Thread(target=look_up, name="holdfast-resolve", daemon=True).start()
    while not found:
        if env.monotonic() >= until:
            raise Unreachable("its name was not resolved in time")
        yield Wait((), until, done)
    if isinstance(found[0], OSError):
        raise Unreachable(f"its name has no address ({found[0].strerror or found[0]})")
    return found[0]


def _addresses(endpoint: Endpoint, flags: int) -> Addresses:
    found = socket.getaddrinfo(endpoint.host, endpoint.port, 0, socket.SOCK_STREAM, 0, flags | socket.AI_NUMERICSERV)
    return [(family, address) for family, _, _, _, address in found]
