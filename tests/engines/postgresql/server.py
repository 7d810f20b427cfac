"""Real servers for the tests: PostgreSQL, pgbouncer, and a proxy that stalls. Loopback only; nothing is left."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import places
from process.support import eventually

_PLACES = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), *map(Path, os.get_exec_path())]


def binary(name: str) -> str:
    """The path of one of the server's programs; the test is skipped if it is not installed."""
    for place in _PLACES:
        if os.access(place / name, os.X_OK):
            return str(place / name)
    pytest.skip(f"{name} is not installed: apt-get install postgresql (Debian's package)")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def as_postgres(*words: object) -> list[str]:
    """The beginning of a command that runs as the user of the server's package; the server refuses to run as root."""
    command = [str(word) for word in words]
    if os.geteuid() == 0:
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=KILL", *command]
    return command


class Directory:
    """A directory that the server's user may write to."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="holdfast-pg-", dir=places.disk()))
        self.path.chmod(0o755)
        if os.geteuid() == 0:
            shutil.chown(self.path, "postgres", "postgres")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class Daemon:
    """A server process with all its children."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd="/"
            )

    def signal(self, number: int) -> None:
        """Send a signal to all of its processes. PostgreSQL's have process groups of their own."""
        for pid in [self.process.pid, *children(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kill all of it, and wait until it is gone: a server does not start while a process of the last one is
        left."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGSTOP)  # so that it has no more
        pids = [self.process.pid, *children(self.process.pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        eventually(lambda: not any(map(_is_running, pids)), what="the end of a server")


def _is_running(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def remove_segment(data: Path) -> None:
    """Remove the System V segment that keeps a second server out of the data directory, and outlives a killed one."""
    try:
        words = (data / "postmaster.pid").read_text().splitlines()[6].split()
    except (FileNotFoundError, IndexError):
        return  # the server has ended in order, or before it had one
    key, number = map(int, words)
    for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
        its_key, its_number = map(int, line.split()[:2])
        if (its_key % (1 << 32), its_number) == (key, number):
            subprocess.run(["ipcrm", "-m", str(number)], check=True)


class Postgres:
    """A PostgreSQL server with a data directory of its own."""

    def __init__(self, *, copy_of: Postgres | None = None, settings: tuple[str, ...] = ()) -> None:
        self.port = free_port()
        self._settings = settings
        self._postgres = binary("postgres")
        self.directory = Directory()
        self._daemon: Daemon | None = None
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None
        self._asking = threading.Lock()
        """Threads of a test ask by one connection."""
        data = self.directory.path / "data"
        try:
            if copy_of is None:
                self._run(
                    binary("initdb"), "-D", data, "-A", "trust", "-U", "postgres", "-N", "--no-locale", "-E", "UTF8"
                )
            else:
                port = copy_of.port
                self._run(
                    binary("pg_basebackup"),
                    "-D",
                    data,
                    "-h",
                    "127.0.0.1",
                    "-p",
                    port,
                    "-U",
                    "postgres",
                    "-R",
                    "-c",
                    "fast",
                )
            self.start()
        except BaseException:
            self.remove()
            raise

    def _run(self, *words: object) -> None:
        subprocess.run(as_postgres(*words), check=True, capture_output=True, timeout=60, cwd="/")

    def start(self) -> None:
        words = [self._postgres, "-D", self.directory.path / "data", "-h", "127.0.0.1", "-p", self.port, "-k", ""]
        settings = ["fsync=off", "max_connections=300", "shared_buffers=16MB", "max_wal_senders=3", *self._settings]
        settings.append("dynamic_shared_memory_type=mmap")  # in the data directory: a server that is killed leaves it
        for setting in settings:
            words += ["-c", setting]
        self._daemon = Daemon(as_postgres(*words), self.directory.path / "log")
        eventually(self.is_ready, what="the start of PostgreSQL")

    def is_ready(self) -> bool:
        if self._daemon is None:
            return False
        try:
            psycopg.connect(self.url(), connect_timeout=5).close()
        except psycopg.OperationalError:
            assert self._daemon.process.poll() is None, self._daemon.log.read_text()
            return False
        return True

    def url(self, name: str | None = None, *, user: str = "postgres", port: int | None = None, more: str = "") -> str:
        end = "" if name is None else f"#{name}"
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/postgres{more}{end}"

    def kill(self) -> None:
        """Kill all of the server's processes with SIGKILL, as a power cut would end them."""
        assert self._daemon is not None
        self._daemon.kill()
        self._daemon = None

    def signal(self, number: int) -> None:
        assert self._daemon is not None
        self._daemon.signal(number)

    def remove(self) -> None:
        self.forget()
        if self._daemon is not None:
            self._daemon.kill()
        remove_segment(self.directory.path / "data")
        self.directory.remove()

    # -- what a test asks the server -----------------------------------------------------------------------------------

    def ask(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        with self._asking:
            try:
                return self._ask(sql, values)
            except psycopg.OperationalError:  # it was restarted
                self.forget()
                return self._ask(sql, values)

    def _ask(self, sql: str, values: tuple[object, ...]) -> list[tuple[object, ...]]:
        if self._connection is None:
            self._connection = psycopg.connect(self.url(), autocommit=True)
        cursor = self._connection.execute(sql, values, prepare=False)
        return cursor.fetchall() if cursor.description else []

    def forget(self) -> None:
        """Close the connection that tests use for questions."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def waiting(self) -> int:
        """Number of sessions that wait for an advisory lock."""
        return int(self.ask("select count(*) from pg_locks where locktype = 'advisory' and not granted")[0][0])  # type: ignore[call-overload]

    def holding(self) -> int:
        return int(self.ask("select count(*) from pg_locks where locktype = 'advisory' and granted")[0][0])  # type: ignore[call-overload]

    def sessions(self) -> int:
        """Number of open sessions of holdfast."""
        sql = "select count(*) from pg_stat_activity where starts_with(application_name, 'holdfast ')"
        return int(self.ask(sql)[0][0])  # type: ignore[call-overload]


class Pgbouncer:
    """A pooler in front of a server."""

    def __init__(self, server: Postgres, mode: str, more: str = "") -> None:
        for place in ("/usr/sbin", "/usr/bin"):
            if os.access(f"{place}/pgbouncer", os.X_OK):
                self._path = f"{place}/pgbouncer"
                break
        else:
            pytest.skip("pgbouncer is not installed: apt-get install pgbouncer (Debian's package)")
        self.port = free_port()
        self.directory = Directory()
        self._server = server
        self._start(mode, more)

    def _start(self, mode: str, more: str) -> None:
        ini = self.directory.path / "pgbouncer.ini"
        ini.write_text(
            f"[databases]\n* = host=127.0.0.1 port={self._server.port} user=postgres\n[pgbouncer]\n"
            "listen_addr = 127.0.0.1\n"
            f"listen_port = {self.port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n"
            f"ignore_startup_parameters = extra_float_digits\n{more}\n"
        )
        ini.chmod(0o644)
        self._daemon = Daemon(as_postgres(self._path, ini), self.directory.path / "log")
        eventually(self._is_ready, what="the start of pgbouncer")

    def restart(self, mode: str, more: str = "") -> None:
        self._daemon.kill()
        self._start(mode, more)

    def _is_ready(self) -> bool:
        assert self._daemon.process.poll() is None, self._daemon.log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def remove(self) -> None:
        self._daemon.kill()
        self.directory.remove()


class Proxy:
    """Forwards connections. While `stalled`, it takes (and the kernel acknowledges) data, and passes nothing on. Unless
    `prompt` is set, data is passed on once it is."""

    def __init__(self, port: int) -> None:
        self.stalled = threading.Event()
        self.prompt = threading.Event()
        self.prompt.set()
        self._to = port
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            self._sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.prompt.wait()
                if not self.stalled.is_set():
                    sink.sendall(data)
            if not self.stalled.is_set():
                sink.shutdown(socket.SHUT_WR)

    def remove(self) -> None:
        self.prompt.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextlib.contextmanager
def removed(thing: Postgres | Pgbouncer | Proxy) -> Iterator[Postgres | Pgbouncer | Proxy]:
    try:
        yield thing
    finally:
        thing.remove()


def waits_for(seconds: float) -> float:
    """The moment that many seconds from now."""
    return time.monotonic() + seconds
