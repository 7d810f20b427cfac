"""The servers that the benchmarks of engines talk to: started on loopback in a directory of the run, and ended by it.

They have the defaults of their packages, but for where they listen, and for the connections that PostgreSQL takes: one
of each waiter. So both write to the disk before they answer (`fsync`), and the directory decides how fast that is.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path

from procs import Failed, NotAvailable, own_memory

CONNECTIONS = 1200
_READY_WITHIN = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")

# The table that holdfast keeps its tokens in, once more for the bare client.
BARE_TABLE = """
create schema bench;
create table bench.lock (key bigint primary key, name text not null, token bigint not null, backend integer not null,
    pid integer not null, host text not null, tag text, since timestamptz not null) with (fillfactor = 50);
create index lock_name on bench.lock (name text_pattern_ops);
"""


class Server(ABC):
    """A server. `stop` is safe to call at any time, and more than once."""

    engine: str
    kill_with: str
    """The signal that the kernel sends to it when this process ends without stopping it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / self.engine
        self.directory.mkdir()
        self.port = _free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @abstractmethod
    def start(self) -> None:
        """Start it, and return when it answers; `Failed` if it does not, `NotAvailable` if it is not installed."""

    @abstractmethod
    def url(self, name: str, ttl: int | None = None, port: int | None = None) -> str:
        """The URL of a lock; `ttl` is the lease's seconds if there are leases, `port` that of a relay before it."""

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def memory(self) -> int:
        """Bytes that its processes share with no others."""

    @abstractmethod
    def cpu(self) -> float:
        """Seconds of processor time that it has used so far."""

    @abstractmethod
    def written(self) -> int:
        """Bytes of its log so far."""

    def history_kib(self) -> float | None:
        """Growth of its database for each key that was put, and mostly deleted, if it keeps the past; else None."""
        return None

    def connections(self) -> int:
        """Number of open connections to it."""
        count = 0
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with open(table, encoding="ascii") as lines:
                next(lines)
                for line in lines:
                    _, local, _, state = line.split()[:4]
                    count += state == "01" and int(local.rpartition(":")[2], 16) == self.port
        return count

    def stop(self) -> None:
        processes, self._processes = self._processes, []
        for process in processes:
            process.send_signal(signal.SIGINT)  # both end at once, whoever is connected
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _run(self, *command: str, user: list[str]) -> int:
        with open(self.directory / "log", "ab") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", self.kill_with, *user, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # the terminal's Ctrl-C is not for it
            )
        self._processes.append(process)
        return process.pid

    def _wait(self, is_ready: object) -> None:
        assert callable(is_ready)
        stop = time.monotonic() + _READY_WITHIN
        while not is_ready():
            if any(process.poll() is not None for process in self._processes) or time.monotonic() > stop:
                raise Failed(f"{self.engine} does not start: {self._last_words()}")
            time.sleep(0.05)

    def _last_words(self) -> str:
        lines = (self.directory / "log").read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it says nothing"


class Postgresql(Server):
    engine = "postgresql"
    kill_with = "SIGQUIT"

    def start(self) -> None:
        self._bin = _postgresql_bin()
        user, data = [], self.directory / "data"
        data.mkdir(mode=0o700)
        if os.geteuid() == 0:  # which it refuses
            user = ["--reuid=postgres", "--regid=postgres", "--clear-groups"]
            who = pwd.getpwnam("postgres")
            os.chown(data, who.pw_uid, who.pw_gid)
            for parent in (self.directory, self.directory.parent):
                parent.chmod(0o711)
        init = [str(self._bin / "initdb"), "-D", str(data), "-A", "trust", "-U", "postgres", "--no-sync"]
        made = subprocess.run(["setpriv", "--pdeathsig", "KILL", *user, *init], capture_output=True, check=False)
        if made.returncode:
            raise Failed(f"initdb: {made.stderr.decode(errors='replace').strip()[-300:]}")
        listen = ["-h", "127.0.0.1", "-p", str(self.port), "-k", "", "-c", f"max_connections={CONNECTIONS}"]
        self._postmaster = self._run(str(self._bin / "postgres"), "-D", str(data), *listen, user=user)
        self._wait(self._is_ready)
        self.sql(BARE_TABLE)

    def _is_ready(self) -> bool:
        command = [str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode == 0

    def sql(self, statements: str) -> str:
        where = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-d", "postgres"]
        command = [str(self._bin / "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *where, "-c", statements]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        if done.returncode:
            raise Failed(f"psql: {done.stderr.strip()}")
        return done.stdout.strip()

    def url(self, name: str, ttl: int | None = None, port: int | None = None) -> str:  # noqa: ARG002
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/postgres#{name}"

    def version(self) -> str:
        return f"PostgreSQL {self.sql('show server_version').split()[0]}"

    def memory(self) -> int:
        return sum(map(_own_memory, [self._postmaster, *_children_of(self._postmaster)]))

    def cpu(self) -> float:
        # Sessions that have ended count as the postmaster's children that it has reaped.
        ended = sum(_reaped(self._postmaster))
        return ended + sum(map(_cpu, [self._postmaster, *_children_of(self._postmaster)]))

    def written(self) -> int:
        return int(self.sql("select pg_current_wal_lsn() - '0/0'::pg_lsn"))


class Etcd(Server):
    """A cluster of `nodes`, of which clients ask the first."""

    engine = "etcd"
    kill_with = "SIGKILL"
    nodes = 1

    def start(self) -> None:
        program = shutil.which("etcd")
        if program is None:
            raise NotAvailable("not available: etcd is not installed (Debian: apt-get install etcd-server)")
        here = [f"http://127.0.0.1:{port}" for port in (self.port, *(_free_port() for _ in range(self.nodes - 1)))]
        peers = [f"http://127.0.0.1:{_free_port()}" for _ in here]
        everyone = ",".join(f"n{number}={peer}" for number, peer in enumerate(peers))
        self._pids = []
        for number, (url, peer) in enumerate(zip(here, peers, strict=True)):
            data = ("--name", f"n{number}", "--data-dir", str(self.directory / f"data{number}"))
            clients = ("--listen-client-urls", url, "--advertise-client-urls", url)
            cluster = ("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", everyone)
            options = (*data, *clients, *cluster, "--logger", "zap", "--log-level", "error")
            self._pids.append(self._run(program, *options, user=[]))
        self._wait(self._is_ready)

    def written(self) -> int:
        return int(self._metric("etcd_disk_wal_write_bytes_total"))

    def history_kib(self) -> float | None:
        puts = self._metric("etcd_mvcc_put_total")
        return self._metric("etcd_mvcc_db_total_size_in_use_in_bytes") / 1024 / puts if puts else None

    def _metric(self, name: str) -> float:
        for line in self._get("/metrics").decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        raise Failed(f"etcd does not tell {name}")

    def _is_ready(self) -> bool:
        try:
            return b'"true"' in self._get("/health")
        except OSError:
            return False

    def _get(self, path: str) -> bytes:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return bytes(answer.read())
        except urllib.error.URLError as error:
            raise OSError(str(error)) from None

    def url(self, name: str, ttl: int | None = None, port: int | None = None) -> str:
        return f"etcd://127.0.0.1:{port or self.port}/{name}" + (f"?ttl={ttl}" if ttl else "")

    def version(self) -> str:
        import json

        nodes = "one node" if self.nodes == 1 else f"{self.nodes} nodes"
        return f"etcd {json.loads(self._get('/version'))['etcdserver']}, {nodes}"

    def memory(self) -> int:
        return sum(map(_own_memory, self._pids))

    def cpu(self) -> float:
        return sum(map(_cpu, self._pids))


SERVERS: dict[str, type[Server]] = {"postgresql": Postgresql, "etcd": Etcd}


def fsync_ms(directory: Path, count: int = 100) -> float:
    """Median time in ms that a write of 8 KiB takes to reach the disk there: no commit is faster than that."""
    took = []
    path = directory / "fsync"
    with open(path, "wb", buffering=0) as file:
        for _ in range(count):
            file.seek(0)
            begin = time.monotonic_ns()
            file.write(b"x" * 8192)
            os.fdatasync(file.fileno())
            took.append(time.monotonic_ns() - begin)
    path.unlink()
    return sorted(took)[count // 2] / 1e6


def _postgresql_bin() -> Path:
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parts[-2]), reverse=True)
    on_path = [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    for directory in (*debian, *on_path):
        if all((directory / name).exists() for name in ("initdb", "postgres", "psql", "pg_isready")):
            return directory
    raise NotAvailable("not available: PostgreSQL is not installed (Debian: apt-get install postgresql)")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _children_of(parent: int) -> list[int]:
    # Of its only thread.
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def _cpu(pid: int) -> float:
    """Seconds of processor time of a process; 0 if it has ended. Not in ticks: most sessions use less than one."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # as in idle.py
    except OSError:
        return 0.0


def _reaped(pid: int) -> list[float]:
    """cutime and cstime of a process, in seconds."""
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return [int(word) / _TICKS for word in text.rpartition(")")[2].split()[13:15]]


def _own_memory(pid: int) -> int:
    try:
        return own_memory(pid)
    except OSError:
        return 0  # ended by now
