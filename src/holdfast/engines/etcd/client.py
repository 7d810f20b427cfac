"""The client: a cluster of etcd as its callers see it.

EC1  Every request may be sent twice: a put has a key of its own, a lease is granted by a number of ours, and a second
     deletion or revocation finds nothing. So if an answer is lost, the request is sent again, to another server.
EC2  The caller sets the time limit; no server gets more of that time than `_EACH`, nor, if there are others, more than
     half of the rest, so that a silent one is left for the next. One that is alone gets half of the rest, from `_EACH`
     to `_MOST_ALONE`: asking a slow server the same thing again and again makes it slower. One that is alone and asked
     only once gets all of it. A server that has several addresses connects by the first that answers: they share the
     time for that.
EC3  A token of authentication ends some day: it is fetched again, once, when a server says that it is not valid. One
     caller at a time does that, and the others share the token: a server works on a password for a tenth of a second,
     and a crowd that logs in all at once would get no answer in time. That caller may stand still, like a busy event
     loop: so the others do not wait long for it. Only the token that was refused is forgotten.
EC4  Only a server's current answer counts. Idle connections are closed after `_IDLE`.
EC5  No text has a password or a token: texts that servers send are quoted, texts that are sent to them are not.
EC6  A password that cannot be read, as while its file is replaced, is an obstacle like a server that cannot be reached:
     a holder that has to log in again does not lose its lock for it. The files for TLS are read again once they have
     changed, as a certificate may end before the process does; while they cannot be read, what was read before counts.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Sequence
from typing import Any

from ..._core.wait import Signal, Steps, Wait, pause
from ..._platform.fork import forking
from ..._platform.interface import Environment
from ...errors import EngineUnavailable
from ..connections import Pool
from ..remote import undo_with_operation
from .http import Connection, Unreachable, connect
from .url import Access, Endpoint
from .wire import Json, Refused, Watch, answer_of, encoded

_EACH = 3.0
"""Seconds that one server gets for one answer."""
_MOST_ALONE = 10.0
"""Seconds that a server gets for one answer if it is alone: its connection may be stuck."""
_PAUSE = 0.1
"""Seconds between rounds through all servers."""
_MOST_ENTERING = 4
"""Maximum number of this process's callers that enter the queue of one lock at a time."""
_IDLE = 5.0
_MOST_IDLE = 8
"""Maximum number of idle connections to each server."""
_WITH_LEADER = ("Grpc-Metadata-hasleader", "true")
"""A header of streams: the stream ends when its server is cut off from the others, instead of falling silent."""


class Turnstile:
    """Lets a few callers of each lock through at a time, in the order of their arrival. Each one has to leave again."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: dict[str, list[Signal]] = {}

    def admits(self, lock: str, caller: Signal) -> bool:
        """Whether `caller` is among the first. It stands in line from the first call on; when first, it is set."""
        with forking:
            line = self._lines.setdefault(lock, [])
            if caller not in line:
                line.append(caller)
            return line.index(caller) < self._most

    def leave(self, lock: str, caller: Signal) -> None:
        """Remove the caller from the line, and let the next one in. Idempotent."""
        with forking:
            line = self._lines.get(lock, [])
            if caller in line:
                line.remove(caller)
            if not line:
                self._lines.pop(lock, None)
            first = line[: self._most]
        if len(first) == self._most:
            first[-1].set()


class Place:
    """One caller's place in the line of a lock, or of the logins. An interruption has to close it."""

    def __init__(self, env: Environment, turnstile: Turnstile, lock: str = "") -> None:
        self.closed = False
        self._env = env
        self._turnstile = turnstile
        self._lock = lock
        self._signal = Signal()

    def admitted(self, until: float) -> Steps[bool]:
        """Wait until it is among the first, or until `until`. Whether it is."""
        while not self._turnstile.admits(self._lock, self._signal):
            if self._env.monotonic() >= until:
                return False
            yield Wait((), until, self._signal)
            self._signal.is_set = False
        return True

    def close(self) -> None:
        """Leave the line, and let the next one in. Idempotent."""
        self._turnstile.leave(self._lock, self._signal)
        self.closed = True


class Cluster:
    """The servers of one URL, shared by all locks of this process that are stored there."""

    def __init__(self, env: Environment, access: Access) -> None:
        self.env = env
        self.access = access
        self.generation = env.generation
        self._first = int.from_bytes(os.urandom(2), "big") % len(access.endpoints)
        """The server to ask first: the last one that answered."""
        self._alone = len(access.endpoints) == 1
        self._pool: Pool[Connection] = Pool("while closing connections to etcd", _MOST_IDLE)
        self.turnstile = Turnstile(_MOST_ENTERING)
        self._logins = Turnstile(1)
        self._token = ""
        self._tls: tuple[list[tuple[int, ...]], ssl.SSLContext] | None = None
        """The identities of the files for TLS, and what was made of them."""

    # -- asking --------------------------------------------------------------------------------------------------------

    def call(self, path: str, body: Json, until: float, *, rounds: float = 1) -> Steps[Json]:
        """The answer to a request (EC1).

        `rounds`: the number of tries of servers that cannot be reached at all; a passing obstacle (no leader) is waited
        out until `until` in any case. Raises Refused, or EngineUnavailable if no server answered.
        """
        data = json.dumps(body).encode()
        answer: Json = yield from self._round_robin(until, rounds, path, data)
        return answer

    def transact(
        self,
        until: float,
        *success: Json,
        compare: Sequence[Json] = (),
        failure: Sequence[Json] = (),
        rounds: float = 1,
    ) -> Steps[Json]:
        """The answer to a transaction; otherwise like `call`."""
        body = {"compare": compare, "success": success, "failure": failure}
        return self.call("/v3/kv/txn", body, until, rounds=rounds)

    def delete(self, compare: Sequence[Json], keys: Sequence[str], until: float, *, rounds: float = 1) -> Steps[bool]:
        """Whether a transaction has deleted these keys, perhaps the first time that it was sent (queue.py, EQ4)."""
        sent: list[Endpoint] = []
        """The servers that were asked: more than one, or one twice, if an answer was lost."""
        delete = [{"request_delete_range": {"key": encoded(key)}} for key in keys]
        data = json.dumps({"compare": compare, "success": delete}).encode()
        answer = yield from self._round_robin(until, rounds, "/v3/kv/txn", data, sent=sent)
        return bool(answer.get("succeeded")) or len(sent) > 1

    def watch(self, ranges: Sequence[Json], after: int, until: float, *, puts: bool = False) -> Steps[Watch]:
        """A stream of deletions, or of all changes, of these keys after that revision. Raises as `call`."""
        more = {"start_revision": str(after + 1)} | ({} if puts else {"filters": ["NOPUT"]})
        data = b"".join([json.dumps({"create_request": {**where, **more}}).encode() for where in ranges])
        connection = yield from self._round_robin(until, 1, "/v3/watch", data, stream=True)
        return Watch(connection)

    def _round_robin(
        self,
        until: float,
        rounds: float,
        path: str,
        data: bytes,
        *,
        stream: bool = False,
        sent: list[Endpoint] | None = None,
    ) -> Steps[Any]:
        failed: dict[Endpoint, str] = {}
        while True:
            passing = False
            endpoints, first = self.access.endpoints, self._first
            for endpoint in (*endpoints[first:], *endpoints[:first]):
                now = self.env.monotonic()
                half, least, most = (until - now) / 2, *((_EACH, _MOST_ALONE) if self._alone else (0.0, _EACH))
                each = min(until, now + max(least, min(half, most)))
                if self._alone and rounds <= 1 and not stream:
                    each = until
                try:
                    answer = yield from self._ask(endpoint, path, data, each, stream=stream, sent=sent)
                    self._first = endpoints.index(endpoint)
                    return answer
                except Unreachable as error:
                    failed[endpoint] = error.why
                except Refused as error:
                    if not error.is_passing():
                        raise
                    passing = True
                    failed[endpoint] = error.message
                except EngineUnavailable:
                    if rounds <= 1 or self.env.monotonic() >= until:
                        raise
                    break  # EC6
                if self.env.monotonic() >= until:
                    raise self._unavailable(failed)
            rounds -= 1
            if not passing and rounds <= 0:
                raise self._unavailable(failed)
            yield from pause(self.env, min(until, self.env.monotonic() + _PAUSE))

    def _ask(
        self, endpoint: Endpoint, path: str, data: bytes, until: float, *, stream: bool, sent: list[Endpoint] | None
    ) -> Steps[Any]:
        retried = False
        while True:
            token = (yield from self._logged_in(endpoint, until)) if self.access.user else ""
            headers = [("Authorization", token)] if token else []
            try:
                if stream:
                    return (yield from self._stream(endpoint, path, headers, data, until))
                return answer_of((yield from self._exchange(endpoint, path, headers, data, until, sent)))
            except Refused as error:
                if retried or not self.access.user or not error.is_stale_token():
                    raise
                retried = True  # EC3
                if self._token == token:
                    self._token = ""
                if sent:
                    sent.pop()  # it was answered, and has done nothing

    def _logged_in(self, endpoint: Endpoint, until: float) -> Steps[str]:
        """The token of this login, or one from another caller's (EC3)."""
        token = self._token
        if token:
            return token
        place = Place(self.env, self._logins)
        undo_with_operation(self.env, place)
        try:
            now = self.env.monotonic()
            yield from place.admitted(now + min(_EACH, (until - now) / 2))  # or not: EC3
            token = self._token
            if not token:
                body = json.dumps({"name": self.access.user, "password": self._password()}).encode()
                answer = answer_of((yield from self._exchange(endpoint, "/v3/auth/authenticate", [], body, until)))
                token = self._token = str(answer.get("token", ""))
            return token
        finally:
            place.close()

    def _password(self) -> str:
        try:
            return self.access.secret()
        except (OSError, ValueError) as error:
            raise EngineUnavailable(
                f"the password of {self.access.user!r} for etcd at {self.access.names()} cannot be read: {error}. It "
                "is in the URL, in the file that password_file= names, or in the variable HOLDFAST_ETCD_PASSWORD",
                protocol="etcd",
            ) from None

    def _exchange(
        self,
        endpoint: Endpoint,
        path: str,
        headers: list[tuple[str, str]],
        data: bytes,
        until: float,
        sent: list[Endpoint] | None = None,
    ) -> Steps[bytes]:
        while True:
            connection = self._pool.take(self.env, endpoint)
            try:
                if connection is None:
                    connection = yield from connect(self.env, endpoint, self._context(), until)
                if sent is not None:
                    sent.append(endpoint)
                answer = yield from connection.ask(path, headers, data, until)
                if connection.is_open:
                    self._pool.keep(self.env, endpoint, connection, _IDLE)
                return answer
            except BaseException as error:
                if connection is not None:
                    connection.close()
                if not isinstance(error, Unreachable) or error.fresh or self.env.monotonic() >= until:
                    raise
                # The server has closed an idle connection: EC4, EC1.

    def _stream(
        self, endpoint: Endpoint, path: str, headers: list[tuple[str, str]], data: bytes, until: float
    ) -> Steps[Connection]:
        connection = yield from connect(self.env, endpoint, self._context(), until)
        try:
            yield from connection.send(path, [*headers, _WITH_LEADER], data, until)
            return connection
        except BaseException:
            connection.close()
            raise

    def forget_token(self, error: Refused) -> bool:
        """Whether the next answer may be better, with another token, after this error came in a stream (EC3)."""
        if self.access.user and error.is_stale_token():
            self._token = ""
            return True
        return error.is_passing()

    # -- connections ---------------------------------------------------------------------------------------------------

    def _context(self) -> ssl.SSLContext | None:
        if not self.access.tls:
            return None
        files = list(filter(None, (self.access.ca, self.access.cert, self.access.key)))
        try:
            seen = [_identity(os.stat(file)) for file in files]
            if self._tls is None or self._tls[0] != seen:
                context = ssl.create_default_context(cafile=self.access.ca or None)
                if self.access.cert:
                    context.load_cert_chain(self.access.cert, self.access.key, password=_no_password)
                self._tls = seen, context
        except (OSError, ValueError) as error:
            if self._tls is None:
                raise EngineUnavailable(
                    f"the files for TLS ({', '.join(files)}) cannot be used: {error}. ca= is the authority's "
                    "certificate, cert= and key= are this client's, all PEM, the key without a password",
                    protocol="etcd",
                ) from None
        return self._tls[1]

    def _unavailable(self, failed: dict[Endpoint, str]) -> EngineUnavailable:
        what = "; ".join(f"{endpoint}: {why}" for endpoint, why in failed.items()) or f"{self.access.names()}: no time"
        scheme = "https" if self.access.tls else "http"
        return EngineUnavailable(
            f"etcd cannot be reached ({what}). Check that it runs and can be reached from here: "
            f"curl {scheme}://{self.access.endpoints[0]}/version",
            protocol="etcd",
        )


def _identity(found: os.stat_result) -> tuple[int, ...]:
    """The identity of a file and of its content, as far as `stat` tells."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _no_password() -> str:
    raise ValueError("the key has a password")


_clusters: dict[Access, Cluster] = {}


def cluster_of(env: Environment, access: Access) -> Cluster:
    """The cluster of this process for that URL; a forked child gets one of its own (EW2)."""
    found = _clusters.get(access)
    if found is None or found.generation != env.generation or found.env is not env:
        found = _clusters[access] = Cluster(env, access)
    return found
