"""Holders that are killed or stopped, servers that restart or forget, networks that drop everything."""

from __future__ import annotations

import errno
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from engines.arms import peers, side_by_side
from engines.etcd.servers import Node, Proxy, keys, nodes, revision
from holdfast import Lock, LockLost, Semaphore
from holdfast._platform import environment
from holdfast.engines.etcd import client as etcd_client
from holdfast.engines.etcd import lock as etcd_hold
from holdfast.engines.etcd import lock as etcd_lock
from holdfast.engines.etcd.http import Connection, Unreachable
from holdfast.engines.etcd.url import PREFIX
from holdfast.engines.etcd.wire import encoded
from process.support import Peer, eventually

HOLD = """
hold = Lock(path).acquire()
say(hold.token)
while True:
    line = hear()
    if line == "held":
        try:
            hold.ensure_held()
            say("yes")
        except holdfast.LockLost:
            say("no")
    elif line == "release":
        try:
            hold.release()
            say("released")
        except holdfast.LockLost:
            say("lost")
    elif not line:
        break
"""


@pytest.fixture(scope="module")
def arms(etcd_node: Node) -> dict[str, Callable[[], None]]:
    """The tests that wait for the end of a lease, all at once (`side_by_side`), each on a lock of its own."""
    base = f"etcd://{etcd_node.host}/arms/"
    return side_by_side(
        killed=lambda: _alone(_killed, f"{base}killed?ttl=2"),
        stopped=lambda: _alone(_stopped, f"{base}stopped?ttl=2"),
        swallowed=lambda: _swallowed(f"{base}swallowed?ttl=2", etcd_node),
        slot=lambda: _alone(_slot, f"{base}slot?ttl=2"),
        restarted=_restarted,
        away=_away,
    )


def _alone(body: Callable[[str, Callable[..., Peer]], None], url: str) -> None:
    with peers() as peer:
        body(url, peer)


def waiting(lock: Any, got: list[Any]) -> threading.Thread:
    def run() -> None:
        try:
            got.append(lock.acquire(timeout=30))
        except holdfast.HoldfastError as error:
            got.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_killed_holder_keeps_the_lock_no_longer_than_its_lease(arms: dict[str, Callable[[], None]]) -> None:
    arms["killed"]()


def _killed(url: str, peer: Callable[..., Peer]) -> None:
    holder = peer(HOLD, url)
    token = int(holder.hear())
    got: list[Any] = []
    thread = waiting(Lock(url), got)
    eventually(lambda: Lock(url).status().waiters)
    since = time.monotonic()
    holder.kill()
    thread.join()
    assert got[0].token > token
    assert time.monotonic() - since > 0.5, "it was alive for all that etcd knew"
    assert time.monotonic() - since < 20, "2 s of lease, half a second until etcd looks, and a slow machine"
    got[0].release()


def test_a_stopped_holder_finds_its_lock_lost(arms: dict[str, Callable[[], None]]) -> None:
    """ET7: stopped past its lease, it notices the loss at its first look, and its release leaves the next one's lock.
    A resource that checks tokens refuses its writes before that look."""
    arms["stopped"]()


def _stopped(url: str, peer: Callable[..., Peer]) -> None:
    holder = peer(HOLD, url)
    token = int(holder.hear())
    holder.kill(signal.SIGSTOP)
    with Lock(url).acquire(timeout=10) as hold:
        assert hold.token is not None
        assert hold.token > token
        highest = max(0, hold.token)
        holder.kill(signal.SIGCONT)
        holder.say("held")
        holder.expect("no")
        assert token < highest, "a resource that has seen the higher token refuses the lower one"
        holder.say("release")
        holder.expect("lost")
        hold.ensure_held()
    assert not Lock(url).status().locked


def test_a_network_that_swallows_everything_never_leaves_two_holders(arms: dict[str, Callable[[], None]]) -> None:
    """EL1: the holder behind it knows of the loss before the server lets the next one in."""
    arms["swallowed"]()


def _swallowed(url: str, node: Node) -> None:
    proxy = Proxy(node.port)
    lost: list[float] = []
    behind = url.replace(node.host, proxy.host)
    hold = Lock(behind, on_lost=lambda _: lost.append(time.monotonic())).acquire()
    proxy.swallows = True
    with Lock(url).acquire(timeout=10):
        entered = time.monotonic()
        eventually(lambda: lost)
        assert lost[0] < entered
        assert hold.lost
        with pytest.raises(holdfast.LockLost, match="etcd has not answered for 2 s"):
            hold.ensure_held()
        proxy.swallows = False
        proxy.cut()
        with pytest.raises(holdfast.LockLost):
            hold.release()
        assert len(lost) == 1
    proxy.close()


def test_a_waiter_behind_a_cut_network_notices_the_release(url: str, node: Node, proxy: Proxy) -> None:
    """ET1 (pitfall 1): its watch has ended; it watches again, and gets in as soon as the lock is free."""
    behind = Lock(url.replace(node.host, proxy.host))
    got: list[Any] = []
    with Lock(url) as hold:
        thread = waiting(behind, got)
        eventually(lambda: Lock(url).status().waiters)
        before = proxy.connections
        proxy.cut()
        eventually(lambda: proxy.connections > before)
        hold.release()
        since = time.monotonic()
        thread.join()
    assert time.monotonic() - since < 15
    got[0].release()


def test_a_look_for_a_free_lock_keeps_its_timeout_when_the_server_falls_silent(
    url: str, node: Node, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the end of the outage, but no longer than its timeout."""
    watch = etcd_client.Cluster.watch

    def silent(*words: Any) -> Any:
        proxy.swallows = True
        return (yield from watch(*words))

    lock = Lock(url.replace(node.host, proxy.host))
    with Lock(url, stale_after=30):
        assert lock.status().locked  # and a connection is there: the first look is quick
        monkeypatch.setattr(etcd_client.Cluster, "watch", silent)
        since = time.monotonic()
        assert not lock.wait(timeout=1.0)
        assert time.monotonic() - since < 5
        monkeypatch.undo()


def test_a_waiter_whose_stream_is_stuck_notices_the_release(
    url: str, node: Node, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ET1: the stream is silent without an end; the periodic look finds the lock free."""
    monkeypatch.setattr(etcd_lock, "RECHECK", 0.3)
    monkeypatch.setattr(etcd_client, "_EACH", 1.0)
    both = url.replace(node.host, f"{proxy.host},{node.host}")
    got: list[Any] = []
    with Lock(url, stale_after=30) as hold:
        cluster = etcd_client.cluster_of(environment(), Lock(both)._request.lock_url.access)  # type: ignore[attr-defined]
        cluster._first = 0
        thread = waiting(Lock(both, stale_after=30), got)
        eventually(lambda: Lock(url).status().waiters)
        eventually(lambda: cluster._first == 0 and proxy.connections >= 2)
        proxy.swallows = True
        hold.release()
        thread.join()
    got[0].ensure_held()
    got[0].release()


def test_a_holder_whose_stream_is_stuck_notices_a_break(
    url: str, node: Node, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ET8: the periodic look finds the key gone."""
    monkeypatch.setattr(etcd_hold, "RECHECK", 0.3)
    monkeypatch.setattr(etcd_client, "_EACH", 1.0)
    both = url.replace(node.host, f"{proxy.host},{node.host}")
    lost: list[Any] = []
    cluster = etcd_client.cluster_of(environment(), Lock(both)._request.lock_url.access)  # type: ignore[attr-defined]
    cluster._first = 0
    hold = Lock(both, stale_after=30, on_lost=lost.append).acquire()
    before = proxy.connections
    eventually(lambda: proxy.connections > before)  # it is being watched
    proxy.swallows = True
    assert Lock(url).break_lock() is not None
    eventually(lambda: lost)
    with pytest.raises(holdfast.LockLost):
        hold.release()


def test_a_restart_of_the_server_loses_neither_lock_nor_waiter(arms: dict[str, Callable[[], None]]) -> None:
    """Pitfall 1: after a kill and a restart, the server has the lock, the waiter, and higher tokens."""
    arms["restarted"]()


def _restarted() -> None:
    with nodes() as (own,):
        _through_a_restart(own)


def _through_a_restart(own: Node) -> None:
    url = f"etcd://{own.host}/restart?ttl=5"
    got: list[Any] = []
    hold = Lock(url).acquire()
    thread = waiting(Lock(url), got)
    eventually(lambda: Lock(url).status().waiters)
    own.kill()
    own.start()
    own.wait_ready()
    assert Lock(url).status().holder is not None
    hold.ensure_held()
    since = time.monotonic()
    hold.release()
    thread.join()
    assert isinstance(got[0], holdfast.Hold), got
    assert time.monotonic() - since < 15, "the waiter did not watch again"
    assert hold.token is not None
    assert got[0].token > hold.token
    got[0].release()


def test_a_holder_and_its_release_do_not_wait_for_ever_for_an_absent_server(
    arms: dict[str, Callable[[], None]],
) -> None:
    """ET9, ET4: the holder learns of the loss, the waiter is told, and a release returns."""
    arms["away"]()


def _away() -> None:
    with nodes() as (own,):
        _without_a_server(own)


def _without_a_server(own: Node) -> None:
    url = f"etcd://{own.host}/away?ttl=2"
    got: list[Any] = []
    lost: list[Any] = []
    hold = Lock(url, on_lost=lost.append).acquire()
    short = Lock(url.replace("away", "other"), stale_after=30).acquire()
    thread = waiting(Lock(url), got)
    eventually(lambda: Lock(url).status().waiters)
    own.kill()
    since = time.monotonic()
    short.release()
    assert time.monotonic() - since < 15, "a release waits for a server that is gone"
    thread.join()
    assert isinstance(got[0], holdfast.EngineUnavailable)
    assert own.host in str(got[0])
    eventually(lambda: lost)
    with pytest.raises(holdfast.LockLost):
        hold.release()


def test_a_wait_outlasts_a_compacted_watch(url: str, node: Node, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """ET1 (pitfall 4): the revision is gone when the watch begins anew; the waiter looks, and gets in."""
    watch = etcd_client.Cluster.watch
    compacted: list[int] = []

    def late(self: Any, *words: Any) -> Any:
        if not compacted:  # between the look and the watch
            for _ in range(3):
                node.ask("/v3/kv/put", {"key": encoded("elsewhere"), "value": ""})
            compacted.append(revision(node))
            node.ask("/v3/kv/compaction", {"revision": str(compacted[0]), "physical": True})
        return (yield from watch(self, *words))

    got: list[Any] = []
    with Lock(url) as hold:
        hold._held._job.stop()  # type: ignore[attr-defined]
        monkeypatch.setattr(etcd_client.Cluster, "watch", late)
        thread = waiting(Lock(url), got)
        eventually(lambda: compacted)
        eventually(lambda: Lock(url).status().waiters)
    thread.join(5)
    got[0].release()


def test_a_holder_with_a_compacted_watch_keeps_its_lock_and_is_still_watched(
    url: str, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ET8 (pitfall 4)."""
    monkeypatch.setattr(etcd_hold, "_MOMENT", 0.3)
    monkeypatch.setattr(etcd_hold, "_WATCH_AGAIN", 0.01)
    lost: list[Any] = []
    hold = Lock(url, on_lost=lost.append).acquire()
    for _ in range(3):
        node.ask("/v3/kv/put", {"key": encoded("elsewhere"), "value": ""})
    node.ask("/v3/kv/compaction", {"revision": str(revision(node)), "physical": True})
    before = hold._held.entrant.revision  # type: ignore[attr-defined]
    eventually(lambda: hold._held.entrant.revision > before)  # type: ignore[attr-defined]
    assert not hold.lost
    Lock(url).break_lock()
    eventually(lambda: lost)
    with pytest.raises(holdfast.LockLost):
        hold.release()


EXIT = """
import atexit
from holdfast.engines.etcd.lock import EtcdHold

def counted(held, give_up=EtcdHold._give_up):
    asked.append(held)
    return give_up(held)

asked = []
atexit.register(lambda: say(len(asked)))
EtcdHold._give_up = counted
holds = [Lock(path.replace("?", f"/{number}?")).acquire() for number in range(3)]
say("held")
hear()
"""


def test_an_exit_waits_for_one_release_at_a_silent_server(url: str, node: Node, peer: Callable[..., Peer]) -> None:
    """K9, EG5: the others are told to the server meanwhile, as far as there is time."""
    holder = peer(EXIT, url.replace("ttl=2", "ttl=10"))
    holder.expect("held")
    with node.paused():
        holder.say("end")
        holder.expect("1")
        holder.finish()


@pytest.mark.parametrize("lacking", ["thread", "descriptor"])
def test_a_keep_alive_for_which_a_thread_or_a_descriptor_is_lacking_is_sent_again(
    url: str, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EL1: as long as the lease lasts; a moment's lack of either costs no lock."""
    lock = Lock(url.replace("127.0.0.1", "localhost").replace("ttl=2", "ttl=5"))
    hold = lock.acquire(timeout=10)
    hold._held._job.stop()  # type: ignore[attr-defined]  # a watch, which needs a connection as well
    cluster = etcd_client.cluster_of(environment(), lock._request.lock_url.access)  # type: ignore[attr-defined]
    cluster._pool.close_all(cluster.env)
    failed: list[str] = []

    def fail(what: str) -> None:
        if what == lacking and len(failed) < 3:
            failed.append(what)
            raise RuntimeError("can't start new thread") if what == "thread" else OSError(errno.EMFILE, "full")

    class Thread(threading.Thread):
        def start(self) -> None:
            fail("thread")
            super().start()

    class Socket(socket.socket):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            if "fileno" not in options:
                fail("descriptor")
            super().__init__(*arguments, **options)

    lease = hold._held.entrant.lease  # type: ignore[attr-defined]
    before = lease.lapses
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Thread", Thread)
        patched.setattr(socket, "socket", Socket)
        eventually(lambda: lease.lapses > before or hold.lost)
    hold.ensure_held()
    hold.release()
    assert failed


def test_a_semaphore_frees_the_slot_of_a_killed_holder(arms: dict[str, Callable[[], None]]) -> None:
    """EQ5: the slot goes with the lease."""
    arms["slot"]()


def _slot(url: str, peer: Callable[..., Peer]) -> None:
    other = peer("hold = holdfast.Semaphore(path, 2).acquire(); say(hold.slot); hear()", url)
    other.expect("0")
    slots = Semaphore(url, 2)
    with slots.acquire() as second:
        assert second.slot == 1
        other.kill()
        with slots.acquire(timeout=10) as third:
            assert third.slot == 0


def test_no_key_outlives_its_lease(url: str, node: Node) -> None:
    """Those of a killed holder and of a killed waiter, and of the earlier tests."""
    holder = Peer(f"Lock({url!r}).acquire(); say('held'); hear()")
    holder.expect("held")
    waiter = Peer(f"Lock({url!r}).acquire()")
    eventually(lambda: len(Lock(url).status().waiters) == 1, what="a waiter")
    for peer in (waiter, holder):
        peer.kill()
        peer.destroy()
    assert keys(node, f"{PREFIX}tests/") > 0
    eventually(lambda: keys(node, f"{PREFIX}tests/") == 0, what="the end of all keys")


@pytest.mark.parametrize("what", ["release", "break", "slot"])
def test_a_deletion_whose_answer_is_lost_is_not_taken_for_a_loss(
    url: str, node: Node, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """EC1, EQ4: the repeated request finds the key gone with the first. The lock was ours until then."""
    losses: list[LockLost] = []
    lock: Any = Lock(url, on_lost=losses.append) if what != "slot" else Semaphore(url, 2, on_lost=losses.append)
    hold = lock.acquire(timeout=10)
    real = Connection.ask
    lost: list[bytes] = []

    def losing(self: Connection, path: str, headers: Any, body: bytes, until: float) -> Any:
        answer = yield from real(self, path, headers, body, until)
        if b"request_delete_range" in body and not lost:
            lost.append(answer)
            raise Unreachable("it closed the connection", fresh=False)
        return answer

    with monkeypatch.context() as changed:
        changed.setattr(Connection, "ask", losing)
        if what == "break":
            assert lock.break_lock() is not None
        else:
            hold.release()
    assert lost
    if what == "break":
        with pytest.raises(LockLost):
            hold.release()
    assert len(losses) == (what == "break")
    lock.acquire(timeout=10).release()
