"""A server for all tests of a worker that leave it unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from engines.etcd.servers import Node, nodes
from holdfast._drivers.agent import agent
from holdfast._platform import environment
from holdfast.engines.etcd import client as etcd_client
from process.support import eventually

_numbers = count(1)


@pytest.fixture(scope="session")
def etcd_node() -> Iterator[Node]:
    with nodes() as made:
        yield made[0]


@pytest.fixture
def etcd_prefix(etcd_node: Node) -> Iterator[str]:
    yield f"etcd://{etcd_node.host}/behaviour/{next(_numbers)}/"
    nothing_left()


def nothing_left() -> None:
    """Wait until this process has no hold, no job and no connection: the next test of this worker may count
    descriptors."""
    env = environment()
    assert not [held for held in env.holds.values() if held.waits]

    since = env.monotonic()

    def done() -> bool:
        about = ("while keeping a lease on etcd", "while revoking a lease on etcd", "while watching etcd")
        jobs = [job for job in list(agent(env)._jobs) if job.what.startswith(about)]
        for job in jobs:
            if job.last and env.monotonic() > since + 0.5:
                job.stop()  # for a server that is gone
        for cluster in etcd_client._clusters.values():
            cluster._pool.close_all(cluster.env)
        return not jobs

    eventually(done, what="the end of all jobs")
