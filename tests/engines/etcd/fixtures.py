"""A server for all tests of a worker that leave it as it is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from engines.etcd.servers import Node, nodes

_numbers = count(1)


@pytest.fixture(scope="session")
def etcd_node() -> Iterator[Node]:
    with nodes() as made:
        yield made[0]


@pytest.fixture
def etcd_prefix(etcd_node: Node) -> str:
    return f"etcd://{etcd_node.host}/behaviour/{next(_numbers)}/"
