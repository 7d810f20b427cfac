"""Users and passwords, and TLS with an authority of the test's own."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from engines.etcd.servers import Node, nodes
from holdfast import AsyncLock, Lock, LockLost
from holdfast._drivers.sync import drive, wait_for
from holdfast._platform import environment
from holdfast.engines.etcd import ENGINE
from holdfast.engines.etcd import client as etcd_client
from holdfast.engines.etcd import lock as etcd_lock
from holdfast.engines.etcd.client import Cluster, Turnstile
from holdfast.engines.etcd.url import Access
from holdfast.engines.etcd.wire import encoded
from holdfast.engines.remote import undo_with_operation
from process.support import eventually


@pytest.fixture(scope="module")
def guarded() -> Iterator[Node]:
    """A server with users: root, and `me`, who may use keys below `holdfast/mine/`. Tokens expire after 2 s."""
    with nodes(extra=("--auth-token-ttl", "2")) as made:
        node = made[0]
        for path, body in (
            ("user/add", {"name": "root", "password": "toor"}),
            ("role/add", {"name": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": "me", "password": "s3cr/et"}),
            ("role/add", {"name": "mine"}),
            ("user/grant", {"user": "me", "role": "mine"}),
            (
                "role/grant",
                {
                    "name": "mine",
                    "perm": {
                        "permType": "READWRITE",
                        "key": encoded("holdfast/mine/"),
                        "range_end": encoded("holdfast/mine0"),
                    },
                },
            ),
            ("enable", {}),
        ):
            assert node.ask(f"/v3/auth/{path}", body) is not None
        yield node


def test_an_expired_token_is_replaced(guarded: Node) -> None:
    """EC3: for the keep-alives, for the waits, and for the release."""
    url = f"etcd://me:s3cr%2Fet@{guarded.host}/mine/a?ttl=15"
    lost: list[Any] = []
    hold = Lock(url, on_lost=lost.append).acquire()
    cluster = etcd_client.cluster_of(environment(), Lock(url)._request.lock_url.access)  # type: ignore[attr-defined]
    first = cluster._token
    assert first
    cluster._token = "invalid.1"
    assert Lock(url).try_acquire() is None
    assert cluster._token not in ("invalid.1", "")
    cluster._token = "invalid.2"
    lease = hold._held.entrant.lease  # type: ignore[attr-defined]
    before = lease.lapses
    eventually(lambda: lease.lapses > before)
    cluster._token = "invalid.3"
    hold.release()
    assert not lost


def test_a_crowd_logs_in_once(guarded: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """EC3: each login costs the server a tenth of a second, so forty logins would get no answer in time."""
    urls = [f"etcd://me:s3cr%2Fet@{guarded.host}/mine/crowd/{number}?ttl=60" for number in range(40)]
    cluster = etcd_client.cluster_of(environment(), Lock(urls[0])._request.lock_url.access)  # type: ignore[attr-defined]
    logins, exchange = [], Cluster._exchange

    def count(self: Cluster, endpoint: Any, path: str, *more: Any) -> Any:
        if path.endswith("authenticate"):
            logins.append(path)
        return (yield from exchange(self, endpoint, path, *more))

    async def crowd() -> None:
        holds = await asyncio.gather(*[AsyncLock(url).acquire(timeout=20) for url in urls])
        assert len(logins) == 1
        cluster._token = "invalid.1"
        await asyncio.gather(*[hold.release() for hold in holds])

    monkeypatch.setattr(Cluster, "_exchange", count)
    # On a busy machine, a login takes longer than the others wait for it.
    monkeypatch.setattr(etcd_client, "_EACH", 60.0)
    monkeypatch.setattr(etcd_lock, "_RELEASE_WITHIN", 60.0)
    cluster._token = ""
    asyncio.run(crowd())
    assert len(logins) == 2


def test_a_login_without_an_answer_does_not_block_the_others_for_long(
    guarded: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC3: its event loop may be busy, say; keep-alives are sent all the same."""
    url = f"etcd://me:s3cr%2Fet@{guarded.host}/mine/still"
    env, request = environment(), Lock(url)._request
    cluster = etcd_client.cluster_of(env, request.lock_url.access)  # type: ignore[attr-defined]
    cluster._token = ""
    still = ENGINE.look(env, (request,))
    while not cluster._logins._lines:
        wait_for(next(still))
    monkeypatch.setattr(etcd_client, "_EACH", 0.05)
    assert not Lock(url).status().locked
    still.close()
    assert not cluster._logins._lines


def test_repeated_logins_of_one_operation_leave_no_trace_in_it() -> None:
    """A wait may last for days, and a token for five minutes."""
    env, turnstile = environment(), Turnstile(1)

    def log_in(operation: Any) -> int:
        for _ in range(10):
            place = etcd_client.Place(env, turnstile)
            undo_with_operation(env, place)
            place.close()
        return len(operation.watches)

    assert env.operations.perform(env, log_in) == 1


@pytest.mark.parametrize("step", ["admits", "leave"])
def test_ctrl_c_during_a_login_does_not_block_later_logins(
    guarded: Node, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """EC3, J3: otherwise this process could never log in again."""
    url = f"etcd://me:s3cr%2Fet@{guarded.host}/mine/interrupted"
    cluster = etcd_client.cluster_of(environment(), Lock(url)._request.lock_url.access)  # type: ignore[attr-defined]
    real, calls = getattr(Turnstile, step), list[object]()

    def interrupted(self: Turnstile, lock: str, caller: Any) -> Any:
        if self is cluster._logins and not calls:
            calls.append(caller)
            if step == "admits":
                real(self, lock, caller)
            raise KeyboardInterrupt
        return real(self, lock, caller)

    cluster._token = ""
    with monkeypatch.context() as changed:
        changed.setattr(Turnstile, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            Lock(url).status()
    cluster._token = ""
    assert not Lock(url).status().locked


def test_a_deletion_refused_for_its_token_is_not_one_whose_answer_was_lost(guarded: Node) -> None:
    """EQ4: the key was gone before, so the lock was lost."""
    url = f"etcd://me:s3cr%2Fet@{guarded.host}/mine/b"
    hold = Lock(url).acquire()
    entrant = hold._held.entrant  # type: ignore[attr-defined]
    assert Lock(url).break_lock() is not None
    etcd_client.cluster_of(environment(), Lock(url)._request.lock_url.access)._token = "invalid.1"  # type: ignore[attr-defined]
    assert not drive(entrant.leave(environment().monotonic() + 10))
    with pytest.raises(LockLost):
        hold.release()


def test_a_password_comes_from_its_url_a_variable_or_a_file(
    guarded: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable and a file are read when a server asks for a password; without one, the error says where to put it."""
    file = tmp_path / "password"
    from_file, from_variable = (f"etcd://me@{guarded.host}/mine/{name}?ttl=5" for name in ("file", "variable"))
    from_file += f"&password_file={file}"
    with pytest.raises(holdfast.EngineUnavailable, match=rf"No such file.*{file}.*HOLDFAST_ETCD_PASSWORD"):
        Lock(from_file).try_acquire()
    file.write_text("\n")
    with pytest.raises(holdfast.EngineUnavailable, match=r"first line of .* is empty"):
        Lock(from_file).try_acquire()
    file.write_text("s3cr/et\r\nmore\n")
    Lock(from_file).acquire(timeout=10).release()
    monkeypatch.setenv("HOLDFAST_ETCD_PASSWORD", "wrong")
    lock = Lock(from_variable)
    with pytest.raises(holdfast.EngineUnavailable, match="authentication failed"):
        lock.try_acquire()
    monkeypatch.setenv("HOLDFAST_ETCD_PASSWORD", "s3cr/et")
    lock.acquire(timeout=10).release()
    monkeypatch.delenv("HOLDFAST_ETCD_PASSWORD")
    etcd_client.cluster_of(environment(), lock._request.lock_url.access)._token = ""  # type: ignore[attr-defined]
    with pytest.raises(holdfast.EngineUnavailable, match="is no longer set"):
        lock.try_acquire()


def test_a_password_file_that_is_away_for_a_moment_costs_no_hold(
    guarded: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC6: a keep-alive, or a release, that has to log in just then."""
    asked: list[str] = []

    def secret(access: Access) -> str:
        asked.append(access.user)
        return found(access)

    found = Access.secret
    monkeypatch.setattr(Access, "secret", secret)
    file = tmp_path / "password"

    def spoil() -> None:
        file.unlink()
        asked.clear()
        cluster._token = ""

    file.write_text("s3cr/et")
    lock = Lock(f"etcd://me@{guarded.host}/mine/gap?password_file={file}&ttl=15")
    hold = lock.acquire(timeout=10)
    cluster = etcd_client.cluster_of(environment(), lock._request.lock_url.access)  # type: ignore[attr-defined]
    lease = hold._held.entrant.lease  # type: ignore[attr-defined]
    hold._held._job.stop()  # type: ignore[attr-defined]  # no watch asks
    spoil()
    eventually(lambda: len(asked) > 1, within=20, what="a second look for the password")
    before = lease.lapses
    file.write_text("s3cr/et")
    eventually(lambda: lease.lapses > before, what="a keep-alive")
    hold.ensure_held()
    hold.release()

    lock = Lock(f"{lock._request.given}0")  # a lease that nobody waits for
    hold = lock.acquire(timeout=10)
    spoil()
    hold.release()
    file.write_text("s3cr/et")
    lock.acquire(timeout=10).release()


def test_a_wait_outlasts_a_token(guarded: Node) -> None:
    """EC3: the error arrives in the stream of the watch."""
    import threading

    url = f"etcd://me:s3cr%2Fet@{guarded.host}/mine/b?ttl=60"
    cluster = etcd_client.cluster_of(environment(), Lock(url)._request.lock_url.access)  # type: ignore[attr-defined]
    watch, spoilt = etcd_client.Cluster.watch, []

    def spoil(self: Any, *words: Any) -> Any:
        if not spoilt:
            spoilt.append(1)
            self._token = "invalid.9"
        return (yield from watch(self, *words))

    got: list[Any] = []
    hold = Lock(url).acquire()
    hold._held._job.stop()  # type: ignore[attr-defined]
    try:
        etcd_client.Cluster.watch = spoil  # type: ignore[method-assign]
        thread = threading.Thread(target=lambda: got.append(Lock(url).acquire(timeout=20)))
        thread.start()
        eventually(lambda: spoilt and cluster._token not in ("", "invalid.9"))
    finally:
        etcd_client.Cluster.watch = watch  # type: ignore[method-assign]
    hold.release()
    thread.join()
    got[0].release()


def test_an_error_names_the_missing_permission(guarded: Node) -> None:
    """EC5."""
    wrong = {
        f"etcd://me:nonsense@{guarded.host}/mine/a": "refuses the user 'me'.*Check the user, and the password",
        f"etcd://{guarded.host}/mine/a": "it requires a user",
        f"etcd://me:s3cr%2Fet@{guarded.host}/theirs": "permission denied.*etcdctl role grant-.*holdfast/theirs",
    }
    for url, why in wrong.items():
        with pytest.raises(holdfast.EngineUnavailable, match=why) as caught:
            Lock(url).acquire(timeout=1)
        assert "nonsense" not in str(caught.value)
        assert "s3cr" not in str(caught.value)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server's and a client's certificate, and those of another authority; with all that RFC 5280 asks
    for, which Python checks from 3.13 on."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed; Debian package: openssl")
    place = tmp_path_factory.mktemp("tls")
    authority = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
    for name in ("ca", "other"):
        _openssl(place, "req", "-x509", *_new(name), "-days", "2", *authority)
    ids = "authorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash"
    for name, usage in (("server", "serverAuth,clientAuth"), ("client", "clientAuth")):
        _openssl(place, "req", *_new(name), "-out", f"{name}.csr")
        (place / "ext").write_text(f"subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage={usage}\n{ids}\n")
        _openssl(
            place,
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", "2", "-extfile", "ext", "-out", f"{name}.pem"),
        )
    return place


def _new(name: str) -> list[str]:
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key"]
    return [*made, "-subj", f"/CN={name}", *(["-out", f"{name}.pem"] if name in ("ca", "other") else [])]


def _openssl(place: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=place, check=True, capture_output=True)


@pytest.fixture(scope="module")
def encrypted(files: Path) -> Iterator[Node]:
    words = ("--cert-file", f"{files}/server.pem", "--key-file", f"{files}/server.key")
    with nodes(extra=(*words, "--client-cert-auth", "--trusted-ca-file", f"{files}/ca.pem")) as made:
        yield made[0]


def test_locks_work_over_tls(encrypted: Node, files: Path) -> None:
    """With the client's certificate, by name and by address; also a wait, a loss and a release."""
    tls = f"ca={files}/ca.pem&cert={files}/client.pem&key={files}/client.key&ttl=2"
    for host in (encrypted.host, f"localhost:{encrypted.port}"):
        lock = Lock(f"etcds://{host}/tls?{tls}")
        with eventually(lambda lock=lock: _try(lock)) as hold:  # type: ignore[misc]
            assert lock.try_acquire() is None
            with pytest.raises(holdfast.AcquireTimeout):
                lock.acquire(timeout=0.2)
            hold.ensure_held()
            assert lock.break_lock() is not None
            eventually(lambda: hold.lost)
            with pytest.raises(holdfast.LockLost):
                hold.release()


def _try(lock: Lock) -> Any:
    try:
        return lock.try_acquire()
    except holdfast.EngineUnavailable:
        return None


def test_a_certificate_that_was_replaced_is_used_without_a_restart(
    encrypted: Node, files: Path, tmp_path: Path
) -> None:
    """EC6: here the first one is not accepted; others end. One that is being written is not used yet."""

    def put(name: str) -> None:
        for end in ("pem", "key"):
            shutil.copy(files / f"{name}.{end}", tmp_path / "new")
            os.replace(tmp_path / "new", tmp_path / f"me.{end}")

    put("other")
    own = f"cert={tmp_path}/me.pem&key={tmp_path}/me.key"
    lock = Lock(f"etcds://{encrypted.host}/replaced?ca={files}/ca.pem&{own}&ttl=2")
    with pytest.raises(holdfast.EngineUnavailable, match=r"TLS|closed|reset"):
        lock.acquire(timeout=2)
    put("client")
    lock.acquire(timeout=5).release()
    (tmp_path / "me.pem").write_text("half of a certif")
    for cluster in etcd_client._clusters.values():
        cluster._pool.close_all(cluster.env)
    lock.acquire(timeout=5).release()


def test_a_server_is_trusted_only_with_a_valid_certificate(encrypted: Node, files: Path) -> None:
    host = encrypted.host
    own = f"cert={files}/client.pem&key={files}/client.key"
    wrong = {
        f"etcds://{host}/a?ca={files}/other.pem&{own}": "certificate is not accepted.*ca= names the file",
        f"etcds://{host}/a?{own}": "certificate is not accepted",
        f"etcds://{host}/a?ca={files}/ca.pem": "TLS|closed|reset",
        f"etcds://{host}/a?ca={files}/none.pem": "files for TLS .*none.pem.* cannot be used",
        f"etcd://{host}/a": "no JSON|does not speak HTTP|closed|HTTP",
    }
    for url, why in wrong.items():
        with pytest.raises(holdfast.EngineUnavailable, match=why):
            Lock(url).acquire(timeout=2)
    assert os.path.exists(files / "client.key")
