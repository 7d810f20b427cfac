"""Three servers: one dies, or the leader dies, and the lock survives."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import holdfast
from engines.etcd.servers import Node
from holdfast import Lock
from holdfast._drivers.sync import drive
from holdfast._platform import environment
from holdfast.engines.etcd import client as etcd_client
from holdfast.engines.etcd.client import Cluster
from holdfast.engines.etcd.http import Unreachable
from holdfast.engines.etcd.url import Access, Endpoint
from holdfast.engines.etcd.wire import Refused, Watch
from process.support import eventually


@pytest.fixture
def url(trio: list[Node], request: pytest.FixtureRequest) -> str:
    return f"etcd://{','.join(node.host for node in trio)}/{request.node.name}?ttl=3"


def id_of(node: Node, which: str = "member_id") -> int:
    answer = node.ask("/v3/maintenance/status", {})
    return 0 if answer is None else int(answer.get(which) or answer["header"].get(which) or 0)


def leader(trio: list[Node]) -> Node:
    def find() -> Node | None:
        ids = {id_of(node): node for node in trio}
        return next((ids[lead] for node in trio if (lead := id_of(node, "leader")) in ids and lead), None)

    return eventually(find)  # type: ignore[return-value]


def restart(node: Node) -> None:
    node.start()
    node.wait_ready()


def wait_in(url: str, got: list[Any]) -> threading.Thread:
    thread = threading.Thread(target=lambda: got.append(Lock(url).acquire(timeout=60)))
    thread.start()
    eventually(lambda: Lock(url).status().waiters)
    return thread


def survive(url: str, victim: Node) -> None:
    """Both the holder and the waiter survive the outage; the lock is handed on while the server is away."""
    lost: list[Any] = []
    got: list[Any] = []
    hold = Lock(url, on_lost=lost.append).acquire(timeout=30)
    thread = wait_in(url, got)
    victim.kill()
    eventually(lambda: _status(url) is not None)
    hold.ensure_held()
    lease = hold._held.entrant.lease  # type: ignore[attr-defined]
    before = lease.lapses
    eventually(lambda: lease.lapses > before)  # it is kept by another one
    hold.release()
    thread.join()
    assert hold.token is not None
    assert got[0].token > hold.token
    got[0].ensure_held()
    got[0].release()
    assert not lost


def _status(url: str) -> Any:
    try:
        return Lock(url).status()
    except holdfast.EngineUnavailable:
        return None


def has_ended(watch: Watch) -> bool:
    try:
        watch.take()
        return False
    except (Refused, Unreachable):
        return True


@pytest.mark.parametrize("leads", [False, True])
def test_a_lock_outlives_one_of_three_servers(url: str, trio: list[Node], leads: bool) -> None:
    first = leader(trio)
    victim = next(node for node in trio if (node is first) == leads)
    cluster = etcd_client.cluster_of(environment(), Lock(url)._request.lock_url.access)  # type: ignore[attr-defined]
    cluster._first = trio.index(victim)  # the server that all contenders talk to
    survive(url, victim)
    restart(victim)


def test_a_minority_lets_no_contender_in(url: str, trio: list[Node]) -> None:
    """One server of three cannot say who holds the lock: nobody gets in, and the holder knows when its time is up."""
    hold = Lock(url, stale_after=2).acquire(timeout=30)
    cluster = Cluster(environment(), Access((Endpoint("127.0.0.1", trio[0].port),)))
    watch = drive(cluster.watch([{"key": "eA=="}], 2**40, environment().monotonic() + 5))
    for node in trio[1:]:
        node.kill()
    eventually(lambda: has_ended(watch), what="the end of a watch of a server that is cut off")
    watch.close()
    with pytest.raises(holdfast.EngineUnavailable):
        Lock(url).acquire(timeout=0.2)
    eventually(lambda: hold.lost)
    for node in trio[1:]:
        node.start()
    for node in trio:
        node.wait_ready()
    with pytest.raises(holdfast.LockLost):
        hold.release()
    with Lock(url).acquire(timeout=30) as after:
        assert hold.token is not None
        assert after.token is not None
        assert after.token > hold.token
