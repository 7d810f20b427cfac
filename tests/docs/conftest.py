"""Servers for pages that need one: those of the tests of engines, and a Redis server, which no engine has."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator

import pytest

from engines.etcd.fixtures import etcd_node as etcd_node
from engines.etcd.servers import free_ports
from engines.postgresql.fixtures import _server as _server
from engines.postgresql.fixtures import postgres as postgres
from process.support import eventually


@pytest.fixture(scope="session")
def redis_port() -> Iterator[int]:
    """The port of a server on loopback that stores nothing."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    (port,) = free_ports(1)
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    if shutil.which("setpriv"):
        command = ["setpriv", "--pdeathsig", "KILL", *command]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: _listens(port), 30, "the Redis server")
        yield port
    finally:
        server.kill()
        server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as plug:
        return plug.connect_ex(("127.0.0.1", port)) == 0
