"""Real servers for the tests: etcd nodes on loopback, and a proxy that can stop to pass things on.

A node and its data live as long as the test that started it; a test process that is killed takes them along.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import places
from holdfast.engines.etcd.wire import encoded
from process.support import eventually


def installed() -> None:
    """Skip the test if etcd is missing."""
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed; Debian packages: etcd-server and etcd-client")


def free_ports(count: int) -> list[int]:
    plugs = [socket.socket() for _ in range(count)]
    try:
        for plug in plugs:
            plug.bind(("127.0.0.1", 0))
        return [plug.getsockname()[1] for plug in plugs]
    finally:
        for plug in plugs:
            plug.close()


class Node:
    """One server. `scheme` is that of its clients."""

    def __init__(self, place: str, name: str, port: int, peer: int, members: str, extra: Sequence[str] = ()) -> None:
        self.name = name
        self.port = port
        self.host = f"127.0.0.1:{port}"
        self.scheme = "https" if any("cert-file" in word for word in extra) else "http"
        self._command = [
            *("etcd", "--name", name, "--data-dir", os.path.join(place, name), "--logger", "zap"),
            *("--listen-client-urls", f"{self.scheme}://127.0.0.1:{port}"),
            *("--advertise-client-urls", f"{self.scheme}://127.0.0.1:{port}"),
            *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-cluster", members, *extra),
        ]
        if shutil.which("setpriv"):
            self._command = ["setpriv", "--pdeathsig", "KILL", *self._command]
        self._log = os.path.join(place, f"{name}.log")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def wait_ready(self) -> None:
        if self.scheme == "https":
            eventually(self._is_listening, 30, f"etcd {self.name}")
        else:
            eventually(lambda: self.ask("/v3/kv/range", {"key": "AA=="}) is not None, 30, f"etcd {self.name}")

    def _is_listening(self) -> bool:
        with socket.socket() as plug:
            return plug.connect_ex(("127.0.0.1", self.port)) == 0

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to a request by another client than ours; None for no answer, or an error."""
        request = urllib.request.Request(f"{self.scheme}://{self.host}{path}", json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, ValueError):
            return None

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(10)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep it from answering anything, inside the block."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


@contextmanager
def nodes(count: int = 1, extra: Sequence[str] = (), port: int = 0) -> Iterator[list[Node]]:
    """Servers, that many, which make one cluster."""
    installed()
    place = tempfile.mkdtemp(prefix="holdfast-etcd-", dir=places.memory())
    ports = free_ports(2 * count)
    if port:
        ports[0] = port
    members = ",".join(f"n{i}=http://127.0.0.1:{ports[count + i]}" for i in range(count))
    made = [Node(place, f"n{i}", ports[i], ports[count + i], members, extra) for i in range(count)]
    try:
        for node in made:
            node.start()
        for node in made:
            node.wait_ready()
        yield made
    finally:
        for node in made:
            node.stop()
        shutil.rmtree(place, ignore_errors=True)


class Proxy:
    """Passes bytes on to a server, until it is told to swallow them: they are acknowledged, and go nowhere."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        self.swallows = False
        self.connections = 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._others: dict[socket.socket, socket.socket] = {}
        self._ended = False
        self._cut = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Close all connections."""
        self._cut = True
        eventually(lambda: not self._cut)

    def close(self) -> None:
        self._ended = True
        self._thread.join(10)
        for plug in (*self._others, self._listener):
            plug.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select(0.01):
                plug = key.fileobj
                assert isinstance(plug, socket.socket)
                if plug is self._listener:
                    self._accept()
                elif plug in self._others:
                    self._pass_on(plug)
            if self._cut:
                for plug in list(self._others):
                    self._drop(plug)
                self._cut = False

    def _accept(self) -> None:
        theirs = self._listener.accept()[0]
        self.connections += 1
        try:
            ours = socket.create_connection(("127.0.0.1", self._target), 2)
        except OSError:
            theirs.close()
            return
        for one, other in ((theirs, ours), (ours, theirs)):
            self._others[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, plug: socket.socket) -> None:
        try:
            data = plug.recv(65536)
            if data and not self.swallows:
                self._others[plug].sendall(data)
        except OSError:
            data = b""
        if not data:
            self._drop(plug)

    def _drop(self, plug: socket.socket) -> None:
        other = self._others.pop(plug, None)
        if other is not None:  # else it went with the other
            del self._others[other]
            for one in (plug, other):
                self._selector.unregister(one)
                one.close()


def revision(node: Node) -> int:
    """The revision that a server is at."""
    answer = node.ask("/v3/kv/range", {"key": "AA=="})
    assert answer is not None
    return int(answer["header"]["revision"])


def keys(node: Node, prefix: str) -> int:
    """Number of keys on a server with this prefix."""
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    answer = node.ask("/v3/kv/range", {"key": encoded(prefix), "range_end": encoded(end), "count_only": True})
    assert answer is not None
    return int(answer.get("count", 0))


def leases(node: Node) -> int:
    """Number of leases on a server."""
    answer = node.ask("/v3/lease/leases", {})
    assert answer is not None
    return len(answer.get("leases", ()))


def elapsed(since: float) -> float:
    return time.monotonic() - since
