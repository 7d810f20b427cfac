"""One connection to one server of etcd: HTTP/1.1 by h11, over a socket that never blocks, with or without TLS.

EW1  A connection is used by one generator at a time. Whatever interrupts a request closes it: a late answer would be
     taken for that of the next one.
EW2  A forked child has no connection of its parent's: the environment closes the descriptor there, and nothing is sent.
EW3  A stream is read by lines, however they are cut into chunks; a part of a line is kept until the rest comes.
EW4  No step blocks: the socket never does, and a name (unlike an address) is looked up in a thread (connections.py).
EW5  An interruption may drop a connection between two callers: the last reference closes it. Until there is one, its
     descriptor is the operation's (operations.py, J1).
"""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Any

import h11

from ..._core.wait import Steps, Wait
from ..._platform.fork import forking
from ..._platform.interface import Environment
from ..._platform.sockets import Socket, reason, receive, send
from ..connections import resolve
from .url import Endpoint

_CHUNK = 65536
_LONGEST_ANSWER = 256 * 1024 * 1024


class Unreachable(Exception):
    """This server gave no answer; the text says why, without its name.

    `fresh`: on a connection that had served nothing before; otherwise the server may just have closed an idle one.
    """

    def __init__(self, why: str, *, fresh: bool = True) -> None:
        super().__init__(why)
        self.why = why
        self.fresh = fresh


class Connection:
    """A connection to one server, made by `connect`."""

    fd = -1

    def __init__(self, env: Environment, endpoint: Endpoint, fd: int, tls: ssl.SSLContext | None) -> None:
        self.env = env
        self.endpoint = endpoint
        self.fd = fd
        self.is_used = False
        """Whether it has served a request: the server may have closed it since."""
        self.generation = env.generation
        self._http = h11.Connection(h11.CLIENT)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        if tls is not None:
            self._tls = tls.wrap_bio(self._incoming, self._outgoing, server_hostname=endpoint.host)
        self._line = b""
        self._ended = False

    # -- requests ------------------------------------------------------------------------------------------------------

    def ask(self, path: str, headers: list[tuple[str, str]], body: bytes, until: float) -> Steps[bytes]:
        """The body of the answer to a POST. Unreachable if it does not come by `until`."""
        yield from self.send(path, headers, body, until)
        answer, size = [], 0
        while True:
            event = yield from self._event(until)
            if isinstance(event, h11.Data):
                answer.append(bytes(event.data))
                size += len(event.data)
                if size > _LONGEST_ANSWER:
                    raise Unreachable("it gave an answer of more than 256 MiB")
            elif isinstance(event, h11.EndOfMessage):
                break
        self.is_used = True
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        else:
            self.close()
        return b"".join(answer)

    def lines(self) -> list[bytes]:
        """The lines that have arrived, without waiting (EW3). Unreachable once the stream has ended."""
        found: list[bytes] = []
        while True:
            try:
                event = self._next_event()
                if event is h11.NEED_DATA and not self._receive():
                    return found
            except Unreachable:
                if found:
                    return found  # the next call says so
                raise
            if isinstance(event, h11.Data):
                *whole, self._line = (self._line + bytes(event.data)).split(b"\n")
                found += whole
            elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
                found += [self._line] if self._line.strip() else []
                self._line = b""
                if found:
                    return found
                raise Unreachable("it ended the watch")

    def close(self) -> None:
        """Close the connection. Never waits; idempotent; does nothing in a forked child (EW2)."""
        if self.fd >= 0 and self.generation == self.env.generation:
            self.env.close(self.fd)
        self.fd = -1

    def __del__(self) -> None:
        self.close()  # EW5

    @property
    def is_open(self) -> bool:
        return self.fd >= 0 and self.generation == self.env.generation

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def send(self, path: str, headers: list[tuple[str, str]], body: bytes, until: float) -> Steps[None]:
        """Send a POST. If its answer never ends, `lines` reads it."""
        own = [("Host", str(self.endpoint)), ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        head = h11.Request(method="POST", target=path, headers=[*own, *headers])
        parts = (head, h11.Data(data=body), h11.EndOfMessage())
        data = b"".join([self._http.send(part) or b"" for part in parts])
        if self._tls is not None:
            self._tls.write(data)
            data = self._outgoing.read()
        yield from self._write(data, until)

    def _event(self, until: float) -> Steps[Any]:
        while True:
            event = self._next_event()
            if isinstance(event, h11.ConnectionClosed):
                raise Unreachable("it closed the connection", fresh=not self.is_used)
            if event is not h11.NEED_DATA:
                return event
            if not self._receive():
                yield from self._wait(until, reading=True)

    def _next_event(self) -> Any:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            if self._ended:
                raise Unreachable("it closed the connection", fresh=not self.is_used) from None
            raise Unreachable(f"it does not speak HTTP ({error})", fresh=not self.is_used) from None

    def _receive(self) -> bool:
        """Whether anything has arrived; the end counts."""
        data = self._read()
        if data is None:
            return False
        if self._tls is not None and not self._ended:
            return self._decrypt()
        self._ended = self._ended or not data
        self._http.receive_data(data)
        return True

    def _read(self) -> bytes | None:
        """The bytes that have arrived, also kept for decryption; empty at the end; None if there are none yet."""
        self._require_open()
        try:
            data = receive(self.fd, _CHUNK)
        except BlockingIOError:
            return None
        except OSError as error:
            raise Unreachable(error.strerror or str(error), fresh=not self.is_used) from None
        if not data:
            self._incoming.write_eof()
        elif self._tls is not None and not self._ended:
            self._incoming.write(data)
        return data

    def _decrypt(self) -> bool:
        assert self._tls is not None
        some = False
        try:
            while True:
                data = self._tls.read(_CHUNK)
                if not data:
                    break
                self._http.receive_data(data)
                some = True
        except ssl.SSLWantReadError:
            return some
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            pass
        except ssl.SSLError as error:
            raise Unreachable(f"TLS: {error.reason or error}", fresh=not self.is_used) from None
        self._ended = True
        self._http.receive_data(b"")
        return True

    def _write(self, data: bytes, until: float) -> Steps[None]:
        view = memoryview(data)
        while view:
            self._require_open()
            try:
                view = view[send(self.fd, view) :]
            except BlockingIOError:
                yield from self._wait(until, reading=False)
            except OSError as error:
                raise Unreachable(error.strerror or str(error), fresh=not self.is_used) from None

    def _wait(self, until: float, *, reading: bool) -> Steps[None]:
        if self.env.monotonic() >= until:
            raise Unreachable("it did not answer in time")
        yield Wait((self.fd,), until) if reading else Wait((), until, None, (self.fd,))

    def _require_open(self) -> None:
        if not self.is_open:
            raise Unreachable("the connection was closed, or is that of the process that forked this one")

    def shake_hands(self, until: float) -> Steps[None]:
        if self._tls is None:
            return
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                yield from self._write(self._outgoing.read(), until)
                while self._read() is None:
                    yield from self._wait(until, reading=True)
            except ssl.SSLError as error:
                raise Unreachable(_tls_reason(error)) from None
        yield from self._write(self._outgoing.read(), until)


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}; ca= names the file of the authority"
    return f"TLS: {error.reason or error}"


_IN_PROGRESS = (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY)


def connect(env: Environment, endpoint: Endpoint, tls: ssl.SSLContext | None, until: float) -> Steps[Connection]:
    """A connection to that server by `until`; Unreachable, which says why, if there is none."""
    why = Unreachable("its name has no address")
    try:
        addresses = yield from resolve(env, endpoint.host, endpoint.port, until)
    except TimeoutError:
        raise Unreachable("its name was not resolved in time") from None
    except OSError as error:
        raise Unreachable(f"its name has no address ({error.strerror or error})") from None
    for number, (family, address) in enumerate(addresses):
        now = env.monotonic()
        limit = now + (until - now) / (len(addresses) - number)  # client.py, EC2
        connection = None
        try:
            connection = _begin(env, endpoint, tls, family, address)
            while not _is_connected(connection.fd):
                if env.monotonic() >= limit:
                    raise Unreachable("it did not answer in time")
                yield Wait((), limit, None, (connection.fd,))
            yield from connection.shake_hands(limit)
            return connection
        except BaseException as error:
            if connection is not None:
                connection.close()
            if not isinstance(error, Unreachable):
                raise
            why = error
    raise why


def _begin(
    env: Environment, endpoint: Endpoint, tls: ssl.SSLContext | None, family: int, address: tuple[Any, ...]
) -> Connection:
    owner: Any = env  # of a real process: no simulated one has sockets
    with forking:  # a child must find the descriptor among those that it closes (EW2)
        try:
            made = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # no descriptor is free, perhaps only now
            raise Unreachable(error.strerror or str(error)) from None
        fd: int = owner.take(made.detach, Socket)  # EW5
    try:
        plug = socket.socket(family, socket.SOCK_STREAM, fileno=fd)
        try:
            plug.setblocking(False)
            plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            failed = plug.connect_ex(address)
        finally:
            plug.detach()
        if failed and failed not in _IN_PROGRESS:
            raise Unreachable(reason(failed))
        connection = Connection(env, endpoint, fd, tls)
        env.keep(fd)
        return connection
    except BaseException as error:
        env.close(fd)
        if isinstance(error, OSError):
            raise Unreachable(error.strerror or str(error)) from None
        raise


def _is_connected(fd: int) -> bool:
    """Whether the socket is connected. Unreachable if it never will be."""
    plug = socket.socket(fileno=fd)
    try:
        failed = plug.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            raise Unreachable(reason(failed))
        plug.getpeername()
        return True
    except OSError:
        return False  # not yet
    finally:
        plug.detach()
