"""A server for all tests of a worker that leave it unchanged, a cluster, and names that nobody else uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import count

import pytest

from engines.arms import peers
from engines.etcd.fixtures import nothing_left
from engines.etcd.servers import Node, Proxy, leases, nodes
from process.support import Peer, eventually

_numbers = count(1)


@pytest.fixture
def node(etcd_node: Node) -> Node:
    return etcd_node


@pytest.fixture(scope="module")
def trio() -> Iterator[list[Node]]:
    with nodes(3, ("--heartbeat-interval", "50", "--election-timeout", "500")) as made:
        yield made


@pytest.fixture
def url(node: Node) -> str:
    """A lock of its own for each test, with the shortest lease."""
    return f"etcd://{node.host}/tests/{next(_numbers)}?ttl=2"


@pytest.fixture
def no_leases(node: Node) -> Iterator[None]:
    """Require that the server has no more leases at the end than before."""
    before = leases(node)
    yield
    eventually(lambda: leases(node) <= before, what="the end of all leases")


@pytest.fixture
def proxy(node: Node) -> Iterator[Proxy]:
    made = Proxy(node.port)
    yield made
    made.close()


@pytest.fixture
def peer() -> Iterator[Callable[..., Peer]]:
    """Start another process, which ends with the test."""
    with peers() as start:
        yield start


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    yield
    nothing_left()


@pytest.fixture(autouse=True)
def _limits(within: Callable[[float], AbstractContextManager[None]]) -> Iterator[None]:
    crowd = int(os.environ.get("HOLDFAST_TEST_CROWD", "0"))
    with within(90.0 + float(os.environ.get("HOLDFAST_TEST_SECONDS", "0")) + crowd):
        yield
