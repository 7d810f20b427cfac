"""URLs of etcd: how they are read, and which are refused before any server is asked."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys

import pytest

from holdfast import InvalidPath, Lock, Semaphore
from holdfast.engines.etcd.queue import Queue
from holdfast.engines.etcd.url import Endpoint, lease_of, parse
from holdfast.engines.remote import RemoteRequest
from holdfast.several import in_order

BAD = {
    "etcd://host": "names no lock",
    "etcd://host/": "names no lock",
    "etcd:///name": "names no server",
    "etcd://host,/name": "names no server",
    "etcd://host:x/name": "names no server",
    "etcd://host:0/name": "port",
    "etcd://host:70000/name": "port",
    "etcd://me@host/name": "user without a password.*HOLDFAST_ETCD_PASSWORD.*password_file=FILE",
    "etcd://host/a//b": "empty part",
    "etcd://host/a/": "empty part",
    "etcd://host//a": "empty part",
    "etcd://host/a#b": "'#'",
    "etcd://host/a#": "'#'",
    "etcd://host/a#01": "'#'",
    "etcd://host/a#1000": "'#'",
    "etcd://host#1": "names no lock",
    "etcd://host/a%23b": "'#'",
    "etcd://host/a%0ab": "control characters",
    "etcd://host/a%ffb": "not UTF-8",
    "etcd://host/a\udcffb": "not UTF-8",
    "etcd://host/a?prefix=%ff": "not UTF-8",
    "etcd://host:" + "9" * 5000 + "/a": "port",
    "etcd://host/" + "x" * 1001: "more than 1000 bytes",
    "etcd://host/a?nonsense=1": "unknown parameter 'nonsense'; there are: ca, cert",
    "etcd://host/a?ttl=1": "from 2 on",
    "etcd://host/a?ttl=2.5": "whole number",
    "etcd://host/a?ttl=3&ttl=4": "twice",
    "etcd://host/a?ca=/x": "write etcds://",
    "etcds://host/a?cert=/x": "both cert= and key=",
    "etcds://host/a?ca=": "without a file",
    "etcd://:x@host/name": "password without a user",
    "etcd://me:@host/name": "user without a password",
    "etcd://host/name?password_file=/x": "without a user",
    "etcd://me:x@host/name?password_file=/x": "the password twice",
    "etcd://me@host/name?password_file=": "without a file",
}


@pytest.mark.parametrize("url", BAD, ids=str)
def test_an_invalid_url_is_refused_before_any_server_is_asked(url: str) -> None:
    with pytest.raises(InvalidPath, match=BAD[url]):
        Lock(url)


def test_a_url_is_read_as_written() -> None:
    lock_url = parse("etcds://me:a%40b@one,[::1]:1,two:2/a/b%20c?ttl=7&prefix=x/&ca=/ca&cert=/c&key=/k")
    assert lock_url.access.endpoints == (Endpoint("one", 2379), Endpoint("::1", 1), Endpoint("two", 2))
    assert (lock_url.access.user, lock_url.access.password, lock_url.access.tls) == ("me", "a@b", True)
    assert (lock_url.access.ca, lock_url.access.cert, lock_url.access.key) == ("/ca", "/c", "/k")
    assert (lock_url.prefix, lock_url.name, lock_url.ttl) == ("x/", "a/b c", 7)
    assert parse("etcd://h/n").prefix == "holdfast/"
    assert parse("etcd://h", many=True).name == ""
    assert parse("etcd://h/n#3", many=True).slot == 3
    with pytest.raises(InvalidPath, match="names no lock"):
        parse("etcd://h/#3", many=True)


def test_the_path_of_a_password_file_is_hidden_and_its_content_not_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """EU1."""
    monkeypatch.setenv("HOLDFAST_ETCD_PASSWORD", "s3cret")
    assert Lock("etcd://me@host/name").path == "etcd://me@host:2379/name"
    from_file = Lock("etcd://me@host/name?password_file=/run/secrets/etcd&ttl=5")
    assert from_file.path == "etcd://me@host:2379/name?ttl=5"
    assert b"s3cret" not in pickle.dumps(Lock("etcd://me@host/name")) + pickle.dumps(from_file)


def test_neither_a_password_nor_a_private_key_is_shown() -> None:
    """EU1."""
    url = "etcds://me:s3cret@host/name?cert=/c&key=/private"
    lock = Lock(url)
    said = f"{lock!r} {lock.path} {lock._request.lock_url.access!r}"
    assert "s3cret" not in said
    assert "private" not in said
    assert lock.path == "etcds://me:***@host:2379/name?cert=/c"
    assert pickle.loads(pickle.dumps(lock))._request.given == url
    for bad in (
        "etcd://me:s3cret@host/",
        "etcd://me:s3cret@host/a?x=s3cret",
        "etcd://me:s3cret@ho st/a",
        "etcd://me:s3cret/a",
    ):
        with pytest.raises(InvalidPath) as caught:
            Lock(bad)
        assert "s3cret" not in str(caught.value).replace("x=", "")


def test_a_lock_leaves_the_keys_of_a_deeper_name_alone() -> None:
    """EU2."""
    lock, slots = Queue(parse("etcd://h/a"), None), Queue(parse("etcd://h/a"), 3)
    assert lock.base == "holdfast/a/"
    assert lease_of(lock.base, "holdfast/a/1f") == 0x1F
    for other in ("holdfast/a/b/1f", "holdfast/a/", "holdfast/a/xyz", "holdfast/a/#0", slots.base + "1f", "other/1f"):
        assert lease_of(lock.base, other) is None
    assert lease_of(slots.base, slots.base + "1f") == 0x1F


def test_no_message_names_an_option_that_the_command_line_lacks() -> None:
    help_text = subprocess.run([sys.executable, "-m", "holdfast", "run", "--help"], capture_output=True, text=True)
    shown = set(re.findall(r"--[a-z-]+", help_text.stdout))
    for option in ("mode", "parents", "lease", "heartbeat", "version", "realpath", "durable"):
        with pytest.raises(ValueError, match=f"{option}.* has no meaning") as caught:
            Lock("etcd://host/name", **{option: 1})  # type: ignore[arg-type]
        assert set(re.findall(r"--[a-z-]+", str(caught.value))) <= shown


def test_an_option_without_meaning_is_refused() -> None:
    for options in ({"mode": 0o600}, {"heartbeat": 3}, {"stale": "never"}, {"durable": True}, {"fair": False}):
        with pytest.raises(ValueError, match="etcd"):
            Lock("etcd://h/n", **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="from 2 to 9000000000 seconds"):
        Lock("etcd://h/n", stale_after=1)
    assert Lock("etcd://h/n?ttl=5", stale_after=7.5)._request.lease_seconds == 8  # type: ignore[attr-defined]
    for slots in (0, 1001, -1):
        with pytest.raises(ValueError, match="slots must be from 1 to 1000"):
            Semaphore("etcd://h/n", slots)
    with pytest.raises(TypeError):
        Semaphore("etcd://h/n", 1.5)  # type: ignore[arg-type]


def key_of(url: str) -> tuple[object, ...]:
    request = Lock(url)._request
    assert isinstance(request, RemoteRequest)
    return request.key


def test_a_lock_is_the_same_however_its_url_is_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """KN3: its name on the server identifies it; a semaphore of that name is another lock."""
    one = key_of("etcd://one,two:2/a/b")
    assert one == key_of("etcd://two:2,ONE:2379/a%2Fb?ttl=30")
    assert one == key_of("etcd://one,two:2/b?prefix=holdfast/a/")
    monkeypatch.setenv("HOLDFAST_ETCD_PASSWORD", "x")
    assert one == key_of("etcd://me@one,two:2/a/b")
    for other in ("etcd://one/a/b", "etcd://one,two:3/a/b", "etcd://one,two:2/a/b?prefix=x/", "etcd://one,two:2/a"):
        assert key_of(other) != one
    slots = Semaphore("etcd://one,two:2/a/b", 2)._requests + Semaphore("etcd://one,two:2/a/b?ttl=9", 3)._requests
    assert len({request.key for request in slots if isinstance(request, RemoteRequest)} - {one}) == 1


def test_several_locks_have_one_order_however_their_urls_are_spelled() -> None:
    """D1: among processes that write parameters and those that do not; `?` sorts between two names."""
    for one in ("", "?ttl=30", "?prefix=holdfast/"):
        for other in ("", "?ttl=30"):
            deploy, database = Lock(f"etcd://host/deploy{one}"), Lock(f"etcd://HOST:2379/deploy-db{other}")
            assert in_order([deploy, database]) == [1, 0]
            assert in_order([database, deploy]) == [0, 1]
    with pytest.raises(ValueError, match="in common"):
        in_order([Lock("etcd://host/a"), Lock("etcd://host/a?ttl=30")])
    with pytest.raises(ValueError, match="in common"):
        in_order([Semaphore("etcd://host/a", 2), Semaphore("etcd://host:2379/a", 2)])
    in_order([Lock("etcd://host/a"), Semaphore("etcd://host/a", 2), Lock("etcd://other/a")])


def test_a_host_is_asked_by_its_ascii_name() -> None:
    """A header can have no other letters; before, a request ended with a UnicodeEncodeError."""
    assert str(parse("etcd://müller.example:1/a").access.endpoints[0]) == "xn--mller-kva.example:1"
    with pytest.raises(InvalidPath, match="has an invalid host"):
        parse(f"etcd://{'ö' * 70}.example/a")
