"""Bad records and bad options: a clear answer at once (60 s, for a busy machine), and no lock reclaimed by mistake."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Lock, ProtocolMismatch
from unit.elsewhere import NOBODY, elsewhere, needs_root
from unit.stepping import sema_record

Within = Callable[[float], AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def _at_once(_limits: None, within: Within) -> Iterator[None]:
    with within(60.0):
        yield


# -- records -----------------------------------------------------------------------------------------------------------

RECORDS: dict[str, bytes] = {
    "empty": b"",
    "truncated": b"pid=12",
    "binary": bytes(range(256)) * 8,
    "2 MiB": b"pid=1\ntimestamp=1\n" + b"x" * (2 << 20),
    "pid 2**32": sema_record(2**32, 1),
    "pid -1": sema_record(-1, 1),
    "no digits": sema_record("x", 1),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_malformed_record_is_refused_and_kept(name: str, place: Path) -> None:
    path = place / "l"
    path.write_bytes(RECORDS[name])
    os.utime(path, (0, 0))
    lock = Lock(path, stale="protocol")
    assert lock.try_acquire() is None
    status = lock.status()
    assert (status.locked, status.stale, status.record) == (True, False, None)
    with pytest.raises(holdfast.AcquireTimeout, match="record") as caught:
        lock.acquire(timeout=0.01)
    assert str(path) in str(caught.value)
    assert "break_lock" in str(caught.value)
    assert caught.value.holder == holdfast.Holder()
    assert not lock.wait(0.01)
    assert path.read_bytes() == RECORDS[name]


FOREIGN = {
    "beads": b'{\n  "holder": "vc",\n  "pid": 1,\n  "hostname": "h",\n  "started_at": "2025-10-25T12:00:00Z"\n}\n',
    "sidecar": b'{\n  "pid": 1,\n  "createdAt": "2025-10-25T12:00:00.000Z"\n}\n',
    "flock": b"protocol=flock\npid=2147483647\ntimestamp=1\n",  # left by a killed holder: the file is to stay
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_record_of_another_protocol_is_refused_and_kept(name: str, place: Path) -> None:
    path = place / "l"
    path.write_bytes(FOREIGN[name])
    lock = Lock(path)
    for way in (lock.acquire, lock.try_acquire, lock.wait):
        with pytest.raises(ProtocolMismatch, match=name) as caught:
            way()
        for part in (str(path), "sema", "another path"):
            assert part in str(caught.value)
    assert lock.status().locked
    assert path.read_bytes() == FOREIGN[name]


@pytest.mark.parametrize(
    "content", ["{}", '{"holder": "vc"}', '{"pid": 1, "createdAt": "2020"}', "pid=1\ntimestamp=2\n"]
)
def test_a_damaged_record_of_beads_counts_as_held(content: str, place: Path) -> None:
    """No other program has a file of that name, so it is a lock of beads."""
    (place / ".exclusive-lock").write_text(content)
    lock = Lock(place, protocol="beads")
    assert lock.status().locked
    assert lock.try_acquire() is None
    assert not lock.wait(0)


@pytest.mark.parametrize("pid", [0, 2**31, 2**32 - 1])
def test_an_impossible_pid_is_unknown(pid: int, place: Path) -> None:
    (place / "l").write_bytes(sema_record(pid, 1))
    lock = Lock(place / "l")
    assert lock.try_acquire() is None
    status = lock.status()
    assert status.liveness is holdfast.Liveness.UNKNOWN
    assert "cannot be a process" in status.evidence.text


def test_a_record_without_a_pid_names_no_process(disk: Path) -> None:
    (disk / "l.lock").write_text("{}")
    evidence = Lock(disk / "l", protocol="sidecar").status().evidence
    assert evidence.text == "the record names no process"


def test_a_timestamp_in_the_future_is_not_stale(place: Path, dead_pid: int) -> None:
    (place / "l").write_bytes(sema_record(dead_pid, time.time() + 1e6))
    lock = Lock(place / "l", stale="protocol")
    assert lock.try_acquire() is None
    assert lock.status().age == 0


@needs_root
def test_another_users_process_is_alive(disk: Path) -> None:
    """The user nobody may not signal process 1, but it exists."""
    disk.chmod(0o777)
    (disk / "l").write_bytes(sema_record(1, 9e9))
    (disk / "l").chmod(0o666)

    def look() -> tuple[str, bool]:
        lock = Lock(disk / "l")
        return lock.status().liveness.value, lock.try_acquire() is None

    assert elsewhere(look, user=NOBODY) == ("alive", True)


# -- options -----------------------------------------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"timeout": -1}, ValueError, "timeout"),
    ({"timeout": -0.001}, ValueError, "timeout"),
    ({"timeout": math.nan}, ValueError, "timeout"),
    ({"timeout": "5"}, TypeError, "timeout"),
    ({"timeout": True}, TypeError, "timeout"),
    ({"timeout": 5j}, TypeError, "timeout"),
    ({"stale_after": 0}, ValueError, "stale_after"),
    ({"stale_after": -1}, ValueError, "stale_after"),
    ({"stale_after": math.nan}, ValueError, "stale_after"),
    ({"stale_after": "1h"}, TypeError, "stale_after"),
    ({"heartbeat": -1}, ValueError, "heartbeat"),
    ({"heartbeat": math.nan}, ValueError, "heartbeat"),
    ({"heartbeat": False}, TypeError, "heartbeat"),
    ({"stale": "maybe"}, ValueError, "stale"),
    ({"stale": None}, ValueError, "stale"),
    ({"mode": 0o1777}, ValueError, "mode"),
    ({"mode": -1}, ValueError, "mode"),
    ({"mode": 0o444}, ValueError, "mode"),
    ({"mode": "644"}, ValueError, "mode"),
    ({"mode": True}, ValueError, "mode"),
    ({"tag": 5}, TypeError, "tag"),
    ({"tag": b"x"}, TypeError, "tag"),
    ({"owner": []}, TypeError, "unhashable"),
    ({"on_lost": 5}, TypeError, "on_lost"),
    ({"protocol": "beads", "stale_after": 3}, ValueError, "stale_after has no meaning"),
    ({"protocol": "sema2"}, ValueError, "sema"),
    ({"protocol": None}, ValueError, "sema"),
    ({"protocol": []}, ValueError, "sema"),
    ({"timout": 5}, TypeError, "unexpected keyword argument 'timout'"),
]


@pytest.mark.parametrize(("options", "kind", "word"), BAD, ids=[str(options) for options, *_ in BAD])
def test_a_senseless_option_is_refused(options: dict[str, Any], kind: type[Exception], word: str, disk: Path) -> None:
    with pytest.raises(kind, match=word):
        Lock(disk / "l", **options)


@pytest.mark.parametrize("timeout", [-1, math.nan, "5", True])
def test_a_senseless_timeout_of_a_call_is_refused(timeout: Any, disk: Path) -> None:
    lock = Lock(disk / "l")
    for way in (lock.acquire, lock.wait):
        with pytest.raises((ValueError, TypeError), match="timeout"):
            way(timeout=timeout)
    assert os.listdir(disk) == []


@pytest.mark.parametrize(
    ("tag", "written"),
    [
        ("a\nb\rc\td\x00e\x1b[0m\x7f", "a b c d e [0m"),
        ("  spaces  ", "spaces"),
        ("\x85edges\u00a0", "edges"),
        ("pid=1\ntimestamp=2", "pid=1 timestamp=2"),
        ("x\ud800", "x?"),
        ("x\udcff", "x\ufffd"),
        ("y" * 20_000, "y" * 10_000),
        ("\U0001f512" * 10_000, "\U0001f512" * 10_000),
        ("z" * 9_999 + " z", "z" * 9_999),
        ("", ""),
        ("\n", ""),
        (None, None),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_any_tag_leaves_the_record_readable(tag: str | None, written: str | None, place: Path) -> None:
    with Lock(place / "l", tag=tag) as hold:
        assert hold.record.tag == written
        assert hold.record.pid == os.getpid()
        status = Lock(place / "l").status()
        assert status.holder is not None
        assert status.holder.tag == written


def test_an_infinite_timeout_counts_as_none(disk: Path) -> None:
    lock = Lock(disk / "l")
    with lock:
        with pytest.raises(holdfast.WouldDeadlock):
            lock.acquire(timeout=math.inf)
        with pytest.raises(holdfast.WouldDeadlock):
            Lock(disk / "l", timeout=math.inf).acquire()
