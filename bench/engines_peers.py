"""The locks that the benchmarks of engines measure, behind the interface of peers.py; a "path" is a URL here.

The bare clients send holdfast's requests and do nothing else: no heartbeat, no second host, no record for people, no
detection of a loss. They are the floor that holdfast is compared with.
"""

from __future__ import annotations

import json
import os
import socket
import time
from base64 import b64encode
from hashlib import blake2b
from typing import Any
from urllib.parse import parse_qs, urlsplit

from peers import FOREVER, Holdfast, Subject

TTL = 30

# The statements of holdfast on PostgreSQL, but for the name of the table: it tries, and takes the token, in one
# statement; if the lock is held it queues, and takes the token then.
_RAISE = """
insert into bench.lock as l (key, name, token, backend, pid, host, tag, since)
{facts}
on conflict (key) do update
   set token = l.token + 1, backend = excluded.backend, pid = excluded.pid, host = excluded.host, tag = excluded.tag,
       since = excluded.since
 where l.name = excluded.name
returning token, extract(epoch from since)"""
_ROW = "%s::bigint, %s::text, 1, pg_backend_pid(), %s::integer, %s::text, %s::text, clock_timestamp()"
_TOKEN = _RAISE.format(facts=f"values ({_ROW})")
_TRY = f"""
with got as materialized (select pg_try_advisory_lock(%s) as it),
raised as ({_RAISE.format(facts=f"select {_ROW} from got where it")})
select got.it, raised.token from got left join raised on true"""
_FACTS = "select pg_backend_pid(), pg_is_in_recovery(), current_setting('server_version_num')"
_SETTINGS = "select " + ", ".join(
    f"set_config('{name}', '{value}', false)"
    for name, value in {
        "idle_session_timeout": "0",
        "statement_timeout": "0",
        "lock_timeout": "0",
        "default_transaction_isolation": "read committed",
        "tcp_keepalives_idle": "15",
        "tcp_keepalives_interval": "5",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": "30000",
        "client_connection_check_interval": "1000",
        "synchronous_commit": "on",
    }.items()
)


class Peer(Subject):
    """A lock at a URL. `modules` are imported by `load`, before a process that has many of them forks."""

    engine: str
    modules: tuple[str, ...] = ()

    def __init__(self, path: str) -> None:
        where = urlsplit(path)
        self.host, self.port = where.hostname or "", where.port or 0
        self.name = where.fragment or where.path[1:]
        self.ttl = int(parse_qs(where.query).get("ttl", [TTL])[0])

    def beat(self) -> None:
        """Keep a hold that lasts longer than a third of `ttl`, if the library leaves that to its user."""


class Psycopg(Peer):
    """The lock and the token's row in one statement, then pg_advisory_unlock, on a connection that is kept."""

    label = "psycopg, kept connection"
    engine = "postgresql"
    package = "psycopg"
    modules = ("psycopg",)

    def __init__(self, path: str) -> None:
        super().__init__(path)
        digest = blake2b(self.name.encode(), digest_size=8).digest()
        self._key = int.from_bytes(digest, "big", signed=True)
        self._facts = (self._key, self.name, os.getpid(), socket.gethostname(), None)
        self._connection = self._connect()

    def _connect(self) -> Any:
        import psycopg

        return psycopg.connect(host=self.host, port=self.port, user="postgres", dbname="postgres", autocommit=True)

    def acquire(self) -> None:
        got, self.token = self._connection.execute(_TRY, (self._key, *self._facts)).fetchone()
        if got:
            return
        self._connection.execute("select pg_advisory_lock(%s)", (self._key,)).fetchone()
        self.token = self._connection.execute(_TOKEN, self._facts).fetchone()[0]

    def release(self) -> None:
        self._connection.execute("select pg_advisory_unlock(%s)", (self._key,)).fetchone()


class PsycopgConnecting(Psycopg):
    """Like `Psycopg`, with a connection for each hold, and with the settings that a holder's session needs."""

    label = "psycopg, connects each time"

    def _connect(self) -> Any:
        return None

    def acquire(self) -> None:
        self._connection = super()._connect()
        self._connection.execute(_FACTS).fetchone()
        self._connection.execute(_SETTINGS).fetchone()
        super().acquire()

    def release(self) -> None:
        super().release()
        self._connection.close()


class ToozPostgresql(Peer):
    """tooz's lock, as its documentation shows it. Connects for each hold; gives no token."""

    label = "tooz, postgresql"
    engine = "postgresql"
    package = "tooz"
    modules = ("tooz.coordination", "tooz.drivers.pgsql")

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._lock = _tooz(f"postgresql://postgres@{self.host}:{self.port}?dbname=postgres", self.name)

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()


class ToozPostgresqlLimited(ToozPostgresql):
    """Like `ToozPostgresql`, with a time limit, however long: then it polls, and does not wait in the server queue."""

    label = "tooz, postgresql, with a limit"
    poll = 1.0

    def acquire(self) -> None:
        self._lock.acquire(blocking=FOREVER)


class BareEtcd(Peer):
    """A lease, a key under it, a watch on the key before it; each request is waited for, over a kept connection."""

    label = "http.client, same requests"
    engine = "etcd"
    modules = ("http.client",)

    def __init__(self, path: str) -> None:
        import http.client

        super().__init__(path)
        self._answer = http.client.HTTPResponse
        self._socket = socket.create_connection((self.host, self.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._base = f"bench/{self.name}/"
        self._lease = 0

    def acquire(self) -> None:
        self._begin()
        self._key = f"{self._base}{self._lease:x}"
        facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time(), "state": "waiting"}
        put = {"key": _b64(self._key), "value": _b64(json.dumps(facts)), "lease": str(self._lease)}
        everyone = {"key": _b64(self._base), "range_end": _b64(f"{self._base[:-1]}0")}
        first = {**everyone, "sort_target": "CREATE", "sort_order": "ASCEND", "limit": "1"}
        new = {"key": _b64(self._key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        body = {"compare": [new], "success": [{"request_put": put}, {"request_range": first}]}
        answer = self._post("/v3/kv/txn", body)
        self.token = int(answer["header"]["revision"])
        self._ours = {**new, "create_revision": str(self.token)}
        if answer["responses"][1]["response_range"]["kvs"][0]["key"] == _b64(self._key):
            return
        before = {
            **everyone,
            "max_create_revision": str(self.token - 1),
            "limit": "1",
            "sort_target": "CREATE",
            "sort_order": "DESCEND",
            "keys_only": True,
        }
        while True:
            answer = self._post("/v3/kv/txn", {"compare": [self._ours], "success": [{"request_range": before}]})
            found = answer["responses"][0]["response_range"].get("kvs")
            if not found:
                return
            self._wait_for_end(found[0]["key"], int(answer["header"]["revision"]) + 1)

    def release(self) -> None:
        delete = {"request_delete_range": {"key": _b64(self._key)}}
        self._post("/v3/kv/txn", {"compare": [self._ours], "success": [delete]})
        self._end()

    def beat(self) -> None:
        self._post("/v3/lease/keepalive", {"ID": str(self._lease)})

    def _begin(self) -> None:
        self._lease = int.from_bytes(os.urandom(8), "big") >> 1
        self._post("/v3/lease/grant", {"ID": str(self._lease), "TTL": str(self.ttl)})

    def _end(self) -> None:
        self._post("/v3/lease/revoke", {"ID": str(self._lease)})

    def _wait_for_end(self, key: str, revision: int) -> None:
        create = {"key": key, "filters": ["NOPUT"], "start_revision": str(revision)}
        with socket.create_connection((self.host, self.port)) as stream:
            answer = self._ask(stream, "/v3/watch", {"create_request": create})
            while not json.loads(answer.readline())["result"].get("events"):
                pass
            answer.close()

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        answer = self._ask(self._socket, path, body)
        data = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {data[:200]!r}")
        return json.loads(data)

    def _ask(self, where: socket.socket, path: str, body: dict[str, Any]) -> Any:
        # Not by HTTPConnection, which sends head and body apart, and wakes the server twice.
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Length: {len(data)}\r\n\r\n"
        where.sendall(head.encode() + data)
        answer = self._answer(where, method="POST")
        answer.begin()
        return answer


class KeptLease(BareEtcd):
    """Like `BareEtcd`, with one lease for all holds of the process, unlike holdfast: fewer requests."""

    label = "http.client, one lease kept"

    def _begin(self) -> None:
        if not self._lease:
            super()._begin()

    def _end(self) -> None:
        pass


class Etcd3gw(Peer):
    """etcd3gw's own lock, which does not wait. It leaves its leases to end by themselves."""

    label = "etcd3gw Lock"
    engine = "etcd"
    package = "etcd3gw"
    poll = None
    modules = ("etcd3gw",)

    def __init__(self, path: str) -> None:
        import etcd3gw

        super().__init__(path)
        self._client = etcd3gw.client(host=self.host, port=self.port)
        self._lock: Any = None

    def acquire(self) -> None:
        self._lock = self._client.lock(self.name, ttl=self.ttl)
        if not self._lock.acquire():
            raise RuntimeError("it is held")

    def release(self) -> None:
        self._lock.release()


class ToozEtcd(Peer):
    """tooz's lock over etcd3gw, as its documentation shows it; keeps its leases by a thread that its user starts."""

    label = "tooz, etcd"
    engine = "etcd"
    package = "tooz"
    poll = 1.0
    modules = ("tooz.coordination", "tooz.drivers.etcd3gw")

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._lock = _tooz(f"etcd3+http://{self.host}:{self.port}?lock_timeout={self.ttl}", self.name)

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def beat(self) -> None:
        self._lock.heartbeat()


class HoldfastPostgresql(Holdfast, Peer):
    """holdfast.Lock with its defaults."""

    engine = "postgresql"
    modules = ("holdfast", "holdfast.engines.postgresql")

    def __init__(self, path: str) -> None:
        Holdfast.__init__(self, path)


class HoldfastEtcd(HoldfastPostgresql):
    """holdfast.Lock with its defaults, on etcd."""

    engine = "etcd"
    modules = ("holdfast", "holdfast.engines.etcd")


PEERS: tuple[type[Peer], ...] = (
    Psycopg,
    PsycopgConnecting,
    ToozPostgresql,
    ToozPostgresqlLimited,
    HoldfastPostgresql,
    BareEtcd,
    KeptLease,
    Etcd3gw,
    ToozEtcd,
    HoldfastEtcd,
)
REFERENCE = {"postgresql": Psycopg.label, "etcd": BareEtcd.label}
TOOZ = {"postgresql": ToozPostgresqlLimited.label, "etcd": ToozEtcd.label}


def load(one: type[Peer]) -> None:
    """Import the modules that a library needs."""
    import importlib

    for module in one.modules:
        importlib.import_module(module)


def _b64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _tooz(url: str, name: str) -> Any:
    import logging
    import warnings

    warnings.simplefilter("ignore")  # its driver for PostgreSQL is deprecated
    logging.disable()
    from tooz import coordination

    coordinator = coordination.get_coordinator(url, b"bench-%d" % os.getpid())
    coordinator.start()
    return coordinator.get_lock(name.encode())
