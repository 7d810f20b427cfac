"""Identity of an acquisition: the same name as long as it lasts, and another one for the next (scan.py)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast._admin.scan import id_of, name_of
from holdfast.engines.file.acquire import look
from holdfast.engines.file.request import FileRequest
from unit.stepping import Contend, Contender, Stepped, sema_record

PROTOCOLS = pytest.mark.parametrize("protocol", ["sema", "semats", "sidecar", "beads"])


def id_at(one: Contender) -> str | None:
    return id_of(one.env, look(one.env, one.request))


@PROTOCOLS
def test_a_heartbeat_keeps_the_name(protocol: str, place: Path, contend: Contend) -> None:
    """I1: parts that a heartbeat rewrites do not belong to the name."""
    holder, other = contend(place / "l", protocol=protocol), contend(place / "l", protocol=protocol)
    if protocol == "beads":
        (place / "l").mkdir()
    held = holder.get()
    before, data = id_at(other), held.data
    assert before is not None
    later = holder.env.real.time() + 100
    holder.env.instead["time"] = lambda: later
    held.beat()
    assert (held.data != data) == (protocol != "beads"), "a beads record has nothing to refresh"
    assert id_at(other) == before
    held.release()


@pytest.mark.parametrize("payload", [{"createdAt": "2026-01-01T00:00:00.000Z"}, {"x": "1"}])
def test_a_heartbeat_of_a_sidecar_with_a_payload_of_its_own_keeps_the_name(
    payload: dict[str, str], disk: Path, contend: Contend
) -> None:
    """I1."""
    holder, other = (contend(disk / "l", protocol="sidecar", payload=payload) for _ in range(2))
    held = holder.get()
    before = id_at(other)
    held.beat()
    os.utime(held.path, (1, 1))
    assert id_at(other) == before
    held.release()


@PROTOCOLS
def test_each_acquisition_of_one_process_has_a_name_of_its_own(protocol: str, place: Path, contend: Contend) -> None:
    """I2: the records may be equal to the byte, and so may the inode numbers."""
    env, names = contend(place / "l").env, set()
    if protocol == "beads":
        (place / "l").mkdir()
    env.instead["time"] = lambda: 2e9
    for _ in range(8):
        one = contend(place / "l", env, protocol=protocol)
        held = one.get()
        names.add(id_at(one))
        held.release()
    assert len(names) == 8
    assert None not in names


def test_a_takeover_in_place_changes_the_name(disk: Path, contend: Contend) -> None:
    """I2: the inode stays, but the record changes."""
    dead, next_one = contend(disk / "l"), contend(disk / "l", tag="next")
    dead.get()
    before, inode = id_at(next_one), (disk / "l").stat().st_ino
    dead.crash()
    assert id_at(next_one) == before, "that its holder has died makes it no other acquisition"
    held = next_one.get()
    assert (disk / "l").stat().st_ino == inode
    assert id_at(next_one) != before
    held.release()


def test_a_record_replaced_during_the_look_gets_a_name_of_its_own(
    disk: Path, environments: Callable[..., Stepped]
) -> None:
    """I3: the record of one holder and the file of the next make neither's name."""
    env, path = environments(), disk / "l"
    request = FileRequest(str(path), {})
    path.write_bytes(sema_record(7, 1000, "first"))
    status = look(env, request)
    first = id_of(env, status)
    other = disk / "other"
    other.write_bytes(sema_record(8, 1000, "second"))
    other.replace(path)
    second = id_of(env, look(env, request))
    assert len({first, second, id_of(env, status)}) == 3


@pytest.mark.parametrize("kind", ["linux", "posix", "generic"])
def test_any_existing_file_can_be_named_and_a_missing_one_cannot(
    kind: str, disk: Path, environments: Callable[..., Stepped]
) -> None:
    env, path = environments(kind=kind), disk / "l"
    request = FileRequest(str(path), {})
    assert id_of(env, look(env, request)) is None
    assert name_of(env, str(path), "sema", b"x") is None
    names = set()
    for content in (b"", b"garbage", b"pid=1\ntimestamp=2\nholdfast=1 g torn\n", b"\xff\xfe"):
        path.write_bytes(content)
        names.add(id_of(env, look(env, request)))
        assert name_of(env, str(path), "", content) is not None
    assert len(names) == 4
    assert None not in names


def test_a_lock_of_the_kernel_alone_has_no_name(disk: Path, contend: Contend) -> None:
    holder = contend(disk / "l", protocol="flock")
    held = holder.get()
    assert id_at(holder) is None
    held.release()
