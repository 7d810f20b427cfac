"""Clusters of PostgreSQL under Patroni, for test_patroni.py. Loopback only; nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest

from engines.etcd import servers
from engines.postgresql.server import Daemon, Directory, as_postgres, binary, children, free_port, remove_segment
from holdfast.engines.etcd.wire import encoded
from holdfast.engines.postgresql import init
from process.support import eventually

T = TypeVar("T")
SLOW = 180.0
"""Seconds of patience: at worst, Patroni waits for its lease of 30 s."""
DCS = {"ttl": 30, "loop_wait": 10, "retry_timeout": 10, "maximum_lag_on_failover": 1 << 20}
"""Patroni's own defaults."""


def programs() -> Path:
    """The directory of Patroni's programs; the test is skipped without it."""
    place = os.environ.get("HOLDFAST_TEST_PATRONI")
    if not place:
        pytest.skip("fetches Patroni, and takes ten minutes: make failover")
    return Path(place)


def at_last(condition: Callable[[], T], what: str) -> T:
    """The result of `eventually`, with a patience that suits Patroni, and without a question every two milliseconds."""

    def slowly() -> T:
        value = condition()
        if not value:
            time.sleep(0.2)
        return value

    return eventually(slowly, SLOW, what)


class Member:
    """One Patroni with its server, which goes on if its Patroni is killed."""

    def __init__(self, name: str, etcd: servers.Node, dcs: dict[str, Any]) -> None:
        self.name = name
        self.port, self._api = free_port(), free_port()
        self.directory = Directory()
        self.data = self.directory.path / "data"
        self.configuration = self.directory.path / "patroni.json"
        self.configuration.write_text(json.dumps(self._settings(etcd, dcs)))  # YAML takes it
        self.configuration.chmod(0o644)
        self._daemon = Daemon(as_postgres(programs() / "patroni", self.configuration), self.directory.path / "log")

    def _settings(self, etcd: servers.Node, dcs: dict[str, Any]) -> dict[str, Any]:
        user = {"username": "postgres"}
        trusted = ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
        parameters = {
            "fsync": "off",
            "max_connections": 100,
            "shared_buffers": "16MB",
            "dynamic_shared_memory_type": "mmap",  # in the data directory: a server that is killed leaves it
            "unix_socket_directories": str(self.directory.path),
        }
        return {
            "scope": "locks",
            "name": self.name,
            "restapi": {"listen": f"127.0.0.1:{self._api}", "connect_address": f"127.0.0.1:{self._api}"},
            "etcd3": {"hosts": etcd.host},
            "watchdog": {"mode": "off"},
            "bootstrap": {
                "dcs": {**dcs, "postgresql": {"use_pg_rewind": True, "parameters": {"wal_log_hints": "on"}}},
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, {"auth": "trust"}, "no-sync"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "connect_address": f"127.0.0.1:{self.port}",
                "data_dir": str(self.data),
                "bin_dir": str(Path(binary("postgres")).parent),
                "pgpass": str(self.directory.path / "pgpass"),
                "authentication": {"superuser": user, "replication": user, "rewind": user},
                "pg_hba": trusted,
                "parameters": parameters,
            },
        }

    def role(self) -> str:
        """`primary` or `replica`, as its Patroni says, with a + for a synchronous one; empty if that says nothing."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._api}/patroni", timeout=2) as answer:
                said: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            said = json.load(error)
        except (OSError, ValueError):
            return ""
        if said.get("state") not in ("running", "streaming"):
            return ""
        return f"{said['role']}{'+' if said.get('sync_standby') else ''}"

    def server(self) -> list[int]:
        """The processes of its PostgreSQL: the postmaster first."""
        try:
            postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return []
        return [postmaster, *children(postmaster)]

    def signal(self, number: int, *, patroni: bool = False, server: bool = False) -> None:
        """Send a signal to Patroni first: it would see what happens to its server."""
        pids = [self._daemon.process.pid] if patroni else []
        for pid in pids + (self.server() if server else []):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def remove(self) -> None:
        self.signal(signal.SIGSTOP, patroni=True)  # so that it starts none
        self.signal(signal.SIGKILL, server=True)
        self._daemon.kill()
        remove_segment(self.data)
        self.directory.remove()


_GUARD = ["sh", "-c", 'for file in $(cat); do read -r pid < "$file" && kill -9 "$pid"; done 2> /dev/null']
"""Kills the servers once the process is gone that names their pid files to it: servers outlive it, as they outlive
Patroni."""


class Cluster:
    """A leader, the first member, and its standby."""

    def __init__(self, etcd: servers.Node, dcs: dict[str, Any]) -> None:
        self.etcd = etcd
        self.members: list[Member] = []
        self._guard = subprocess.Popen(_GUARD, stdin=subprocess.PIPE, text=True, start_new_session=True)
        try:
            self.old = self._member(etcd, dcs)
            at_last(lambda: self.old.role() == "primary", "a leader")
            self.new = self._member(etcd, dcs)
            wanted = "replica+" if dcs.get("synchronous_mode") else "replica"
            at_last(lambda: self.new.role() == wanted, "a standby")
            self._prepare()
        except BaseException:
            self.remove()
            raise

    def _member(self, etcd: servers.Node, dcs: dict[str, Any]) -> Member:
        self.members.append(Member(f"n{len(self.members)}", etcd, dcs))
        assert self._guard.stdin is not None
        self._guard.stdin.write(f"{self.members[-1].data}/postmaster.pid\n")
        self._guard.stdin.flush()
        return self.members[-1]

    def _prepare(self) -> None:
        """Create the table of locks, on both."""
        init(self.url(""))
        for one in (self.old, self.new):
            url = f"postgresql://postgres@127.0.0.1:{one.port}/postgres"
            with psycopg.connect(url, autocommit=True) as connection:
                there = partial(connection.execute, "select to_regclass('holdfast.lock') is not null")
                eventually(lambda: there().fetchone() == (True,), what="the table")  # noqa: B023

    def url(self, name: str) -> str:
        """The URL of a lock, with the old leader first."""
        hosts = f"127.0.0.1:{self.old.port},127.0.0.1:{self.new.port}"
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write#{name}"

    def key_expires_in(self) -> int:
        """Seconds until the leader is deposed unless it renews its key."""
        found = self.etcd.ask("/v3/kv/range", {"key": encoded("/service/locks/leader")})
        if not found or "kvs" not in found:
            return -1
        lease = self.etcd.ask("/v3/lease/timetolive", {"ID": found["kvs"][0]["lease"]})
        return int((lease or {}).get("TTL", -1))

    def switch_over(self) -> None:
        words = ["switchover", "--leader", self.old.name, "--candidate", self.new.name, "--force"]
        command = [str(programs() / "patronictl"), "-c", str(self.new.configuration), *words]
        subprocess.run(command, check=True, capture_output=True, timeout=SLOW)

    def remove(self) -> None:
        for one in self.members:
            one.remove()
        self._guard.communicate()


@contextmanager
def cluster(**dcs: Any) -> Iterator[Cluster]:
    """Two members, on one etcd."""
    programs()
    with servers.nodes() as (etcd,):
        made = Cluster(etcd, {**DCS, **dcs})
        try:
            yield made
        finally:
            made.remove()
