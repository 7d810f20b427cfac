"""The client against fake servers: answers in pieces, connections that end, names, and error messages."""

from __future__ import annotations

import json
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import holdfast
from engines.etcd.servers import Node, free_ports
from holdfast import Lock
from holdfast._drivers.sync import drive
from holdfast._platform import environment
from holdfast.engines.etcd.client import Cluster, cluster_of
from holdfast.engines.etcd.http import Unreachable
from holdfast.engines.etcd.url import Access, Endpoint
from holdfast.engines.etcd.wire import Refused, answer_of, end_of, number, result_of
from process.support import eventually

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def whole(body: bytes, head: bytes = HEAD) -> bytes:
    return head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


@contextmanager
def server(serve: Callable[[socket.socket, int], None]) -> Iterator[Cluster]:
    """A server that handles each connection by this function, which gets the connection's number."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        count = 0
        while True:
            try:
                plug = listener.accept()[0]
            except OSError:
                return
            with plug:
                try:
                    serve(plug, count)
                except OSError:
                    pass
            count += 1

    thread = threading.Thread(target=run)
    thread.start()
    cluster = Cluster(environment(), Access((Endpoint("127.0.0.1", listener.getsockname()[1]),)))
    try:
        yield cluster
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        cluster._pool.close_all(cluster.env)
        thread.join()


def request(plug: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += plug.recv(65536) or b"\r\n\r\n"
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            while len(body) < int(line.split(b":")[1]):
                body += plug.recv(65536)
    return body


def has_ended(watch: Any) -> bool:
    try:
        watch.take()
        return False
    except Unreachable:
        return True


def soon(seconds: float = 5.0) -> float:
    return environment().monotonic() + seconds


def test_a_line_that_comes_in_pieces_is_put_together() -> None:
    """EW3 (pitfall 8): chunks end anywhere, also within a character; several lines arrive in one."""
    lines = [json.dumps({"result": {"n": n, "text": "é" * 50}}, ensure_ascii=False).encode() + b"\n" for n in range(3)]
    stream = b"".join(lines)
    go = threading.Semaphore(0)

    def serve(plug: socket.socket, _: int) -> None:
        request(plug)
        plug.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for cut in range(0, len(stream), 37):
            piece = stream[cut : cut + 37]
            go.acquire()
            plug.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")

    with server(serve) as cluster:
        watch = drive(cluster.watch([{"key": "eA=="}], 2**40, soon()))
        found: list[Any] = []
        until = soon()
        while len(found) < 3 and environment().monotonic() < until:
            go.release()
            found += watch.take()
        assert [result["n"] for result in found] == [0, 1, 2]
        for _ in range(len(stream)):
            go.release()
        eventually(lambda: has_ended(watch))
        watch.close()


def test_a_late_answer_is_not_taken_for_that_of_the_next_request() -> None:
    """EW1: an abandoned request has closed its connection."""
    asked: list[bytes] = []

    def serve(plug: socket.socket, count: int) -> None:
        asked.append(request(plug))
        if count == 0:
            plug.recv(1)  # until it is closed
        else:
            plug.sendall(whole(b'{"header":{},"n":"2"}'))

    with server(serve) as cluster:
        steps = cluster.call("/v3/x", {"n": 1}, soon())
        from holdfast._drivers.sync import wait_for

        while not asked:
            wait = next(steps)
            wait_for(wait.replaced(deadline=time.monotonic() + 0.01))
        steps.close()
        assert drive(cluster.call("/v3/x", {"n": 2}, soon()))["n"] == "2"


def test_a_request_is_repeated_if_the_server_closed_its_idle_connection() -> None:
    """EC1, EC4: on another connection."""

    def serve(plug: socket.socket, count: int) -> None:
        request(plug)
        plug.sendall(whole(b'{"header":{},"n":"%d"}' % count))

    with server(serve) as cluster:
        assert drive(cluster.call("/v3/x", {}, soon()))["n"] == "0"
        assert drive(cluster.call("/v3/x", {}, soon()))["n"] == "1"
        assert drive(cluster.call("/v3/x", {}, soon()))["n"] == "2"


def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """EC4."""
    from holdfast.engines.etcd import client as etcd_client

    monkeypatch.setattr(etcd_client, "_IDLE", 0.02)
    closed: list[int] = []

    def serve(plug: socket.socket, count: int) -> None:
        request(plug)
        plug.sendall(whole(b'{"header":{}}'))
        if not plug.recv(1):
            closed.append(count)

    with server(serve) as cluster:
        drive(cluster.call("/v3/x", {}, soon()))
        eventually(lambda: closed == [0])
        eventually(lambda: not cluster._pool._kept)


def test_a_passing_outage_is_waited_for_and_a_refusal_is_not() -> None:
    """EJ2, EC1: "no leader" is waited for; a refused request is not repeated."""
    no_leader = b'{"error":"etcdserver: no leader","message":"etcdserver: no leader","code":14}'
    denied = b'{"error":"etcdserver: permission denied","message":"etcdserver: permission denied","code":7}'
    answers = [no_leader, no_leader, b'{"header":{},"n":"1"}', denied]

    def serve(plug: socket.socket, _: int) -> None:
        while answers:
            request(plug)
            plug.sendall(whole(answers.pop(0), b"HTTP/1.1 503 Service Unavailable\r\n" if len(answers) > 2 else HEAD))

    with server(serve) as cluster:
        assert drive(cluster.call("/v3/x", {}, soon()))["n"] == "1"
        with pytest.raises(Refused, match="permission denied"):
            drive(cluster.call("/v3/x", {}, soon()))


def test_the_next_server_is_asked_if_the_first_is_silent(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """EC2: after a while; from then on it is asked first."""
    from holdfast.engines.etcd import client as etcd_client

    monkeypatch.setattr(etcd_client, "_EACH", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoints = (Endpoint("127.0.0.1", silent.getsockname()[1]), Endpoint("127.0.0.1", node.port))
        cluster = Cluster(environment(), Access(endpoints))
        cluster._first = 0
        assert "header" in drive(cluster.call("/v3/kv/range", {"key": "eA=="}, soon()))
        assert cluster._first == 1
        lonely = Cluster(environment(), Access(endpoints[:1]))
        with pytest.raises(holdfast.EngineUnavailable, match="did not answer in time"):
            drive(lonely.call("/v3/kv/range", {"key": "eA=="}, soon(0.05)))
        cluster._pool.close_all(cluster.env)


def test_a_silent_address_of_a_name_leaves_time_for_the_next(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """EC2: as where IPv6 leads nowhere."""
    with socket.socket() as silent, ExitStack() as stack:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for _ in range(4):  # more than it takes without `accept`: all others get no answer
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(silent.getsockname())
        found = [(2, 1, 6, "", address) for address in (silent.getsockname(), ("127.0.0.1", node.port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        cluster = Cluster(environment(), Access((Endpoint("name.example", node.port),)))
        assert "header" in drive(cluster.call("/v3/kv/range", {"key": "eA=="}, soon(3.0)))
        cluster._pool.close_all(cluster.env)


def test_a_lone_server_that_is_slow_gets_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """EC2: with a single server, the request is sent only once."""
    from holdfast.engines.etcd import client as etcd_client

    asked: list[bytes] = []

    def serve(plug: socket.socket, _: int) -> None:
        asked.append(request(plug))
        if not select.select([plug], [], [], 0.3)[0]:  # otherwise the client has gone
            plug.sendall(whole(b'{"header":{},"n":"1"}'))

    monkeypatch.setattr(etcd_client, "_EACH", 0.05)
    monkeypatch.setattr(etcd_client, "_MOST_ALONE", 0.05)
    with server(serve) as cluster:
        assert drive(cluster.call("/v3/x", {}, soon()))["n"] == "1"
    assert len(asked) == 1


def test_a_caller_without_time_gives_a_server_some(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its timeout is for the wait; a server that is busy or elects a leader needs some time to answer."""
    from holdfast.engines.etcd import lock as etcd_lock

    monkeypatch.setattr(etcd_lock, "_GRACE", 0.0)
    with Lock(f"etcd://{node.host}/tests/no-time?ttl=5").acquire(timeout=0):
        pass


def test_a_server_that_is_not_etcd_is_recognised() -> None:
    for answer, why in {
        whole(b"<html>"): "not JSON",
        whole(b'{"detail":"Not Found"}'): "not an answer of etcd",
        whole(b"\netcd received your request, but the Host header was unrecognized.\n\nTo fix this, choose one"): (
            r"etcd received your request, but the Host header was unrecognized\. To fix this"
        ),
        b"SSH-2.0-OpenSSH\r\n\r\n": "does not speak HTTP",
        b"": "closed the connection",
    }.items():

        def serve(plug: socket.socket, _: int, answer: bytes = answer) -> None:
            request(plug)
            plug.sendall(answer)

        with server(serve) as cluster:
            host, port = cluster.access.endpoints[0].host, cluster.access.endpoints[0].port
            with pytest.raises(holdfast.EngineUnavailable, match=why):
                Lock(f"etcd://{host}:{port}/a").try_acquire()
            with pytest.raises(holdfast.EngineUnavailable, match=why):
                Lock(f"etcd://{host}:{port}/a").acquire()


def test_an_error_names_the_unreachable_server_and_what_to_do() -> None:
    """EC5."""
    (port,) = free_ports(1)
    with pytest.raises(holdfast.EngineUnavailable) as caught:
        Lock(f"etcd://me:s3cret@127.0.0.1:{port}/a").acquire(timeout=5)
    text = str(caught.value)
    assert f"127.0.0.1:{port}: Connection refused" in text
    assert f"curl http://127.0.0.1:{port}/version" in text
    assert "s3cret" not in text
    assert caught.value.path == f"etcd://me:***@127.0.0.1:{port}/a"
    with pytest.raises(holdfast.EngineUnavailable, match="no address"):
        Lock("etcd://no-such-host.invalid/a").try_acquire()


def test_a_name_is_looked_up_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """EW4: never in a step. A slow lookup goes on in that thread, which takes no signal that `run` has to pass on."""
    threads: list[tuple[str, bool]] = []
    real = socket.getaddrinfo

    def looks_up(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "localhost":
            blocks = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
            threads.append((threading.current_thread().name, blocks))
        return real(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", looks_up)

    def serve(plug: socket.socket, _: int) -> None:
        request(plug)
        plug.sendall(whole(b'{"header":{}}'))

    with server(serve) as cluster:
        named = Cluster(environment(), Access((Endpoint("localhost", cluster.access.endpoints[0].port),)))
        drive(named.call("/v3/x", {}, soon()))
        named._pool.close_all(named.env)
    assert threads == [("holdfast-resolve", True)]


def test_numbers_as_text_and_both_forms_of_an_error_are_read() -> None:
    """EJ1 (pitfall 6)."""
    assert number("9223372036854775807") == 2**63 - 1
    assert number(None) == 0
    assert result_of(b'{"result":{"ID":"1"}}') == {"ID": "1"}
    assert answer_of(b'{"result":{"header":{}}}\n{"result":{}}\n') == {"header": {}}
    with pytest.raises(Refused) as caught:
        result_of(b'{"error":{"grpc_code":16,"message":"etcdserver: invalid auth token"}}')
    assert caught.value.is_stale_token()
    with pytest.raises(Refused, match="invalid auth token") as caught:  # of etcd 3.6
        answer_of(b'{"code":16, "message":"etcdserver: invalid auth token", "details":[]}')
    assert caught.value.is_stale_token()
    assert end_of("a") == "Yg=="
    assert end_of("") == "AA=="


def test_two_locks_share_a_cluster() -> None:
    access = Access((Endpoint("h", 1),))
    assert cluster_of(environment(), access) is cluster_of(environment(), Access((Endpoint("h", 1),)))
