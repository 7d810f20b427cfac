"""semats: the records of sema with rules of its own: private, stale only if dead as well, rivals that rename."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.support import MARKER, SHAPES, assert_linear, input_of, read_or_refused, texts, vectors_of, who
from holdfast.errors import MalformedRecord
from holdfast.liveness import Liveness
from holdfast.protocols import get
from holdfast.protocols.base import clean_tag

SEMATS, SEMA = get("semats"), get("sema")
OURS = vectors_of("semats")


def test_the_vectors_are_all_there() -> None:
    assert len(OURS) == 50


@pytest.mark.parametrize("vector", OURS, ids=lambda v: v["id"])
def test_a_record_is_read_as_the_vectors_say(vector: dict[str, Any]) -> None:
    data = input_of(vector)
    if "error" in vector["want"]:
        with pytest.raises(MalformedRecord) as caught:
            SEMATS.decode(data)
        assert caught.value.protocol == "semats"
        return
    want = vector["want"]["record"]
    record = SEMATS.decode(data)
    assert (record.protocol, record.fields) == ("semats", want)
    assert (record.pid, record.created, record.tag) == (want["pid"], float(want["timestamp"]), want["tag"])


@given(st.integers(0, 2**32 - 1), st.floats(1e9, 2**40), st.none() | texts.map(clean_tag), st.none() | st.just(MARKER))
def test_a_record_survives_encoding_and_decoding(pid: int, now: float, tag: str | None, marker: str | None) -> None:
    data = SEMATS.compose(who(pid), now, tag, marker, {})
    assert data == SEMA.compose(who(pid), now, tag, marker, {})
    assert SEMATS.encode(SEMATS.decode(data)) == data


@given(st.binary())
def test_sema_and_semats_agree_about_every_content(data: bytes) -> None:
    ours, theirs = read_or_refused(SEMATS, data), read_or_refused(SEMA, data)
    assert (ours and ours.fields) == (theirs and theirs.fields)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_large_record_does_not_stall_the_reader(shape: str) -> None:
    assert_linear(lambda data: read_or_refused(SEMATS, data), SHAPES[shape])


# -- the rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("liveness", Liveness)
@pytest.mark.parametrize(("age", "old"), [(0, False), (3600, False), (3600.9, False), (3601, True), (-500, False)])
def test_a_lock_is_stale_only_if_it_is_old_and_its_holder_dead(age: float, old: bool, liveness: Liveness) -> None:
    now = 2_000_000_000.0
    record = SEMATS.decode(b"pid=1\ntimestamp=%d\n" % (now - int(age)))
    assert SEMATS.is_stale(record, liveness, now + age % 1, 3600.0) is (old and liveness is Liveness.DEAD)


def test_stale_at_is_the_moment_a_record_becomes_stale() -> None:
    record = SEMATS.decode(b"pid=1\ntimestamp=1000\n")
    at = SEMATS.stale_at(record, 3600.0)
    assert at is not None
    assert SEMATS.is_stale(record, Liveness.DEAD, at, 3600.0)
    assert not SEMATS.is_stale(record, Liveness.DEAD, at - 0.001, 3600.0)


def test_a_heartbeat_does_not_damage_the_record() -> None:
    data = SEMATS.compose(who(7), 1.7e9, "timestamp=1", MARKER, {})
    fresh = SEMATS.refreshed(data, 1.8e9)
    assert fresh is not None
    offset, digits = fresh
    after = data[:offset] + digits + data[offset + len(digits) :]
    assert after == SEMATS.compose(who(7), 1.8e9, "timestamp=1", MARKER, {})


def test_the_rules_are_those_of_semats() -> None:
    assert (SEMATS.mode, SEMATS.stale_after, SEMATS.resolves, SEMATS.suffix) == (0o600, 3600.0, "path", "")
    assert SEMATS.refuses_parent_components
    assert SEMATS.has_rivals
    assert SEMA.has_rivals  # those of sema, for the same lock files


TOKEN = "0123456789abcdef"
RIVALS = [
    (f"l.lock.77.{TOKEN}.tmp", 77),
    (f"l.lock.1.{TOKEN}.tmp", 1),
    (f"l.lock.{2**31 - 1}.{TOKEN}.tmp", 2**31 - 1),
    (f"l.lock.{2**31}.{TOKEN}.tmp", None),
    (f"l.lock.0.{TOKEN}.tmp", None),
    (f"l.lock.-1.{TOKEN}.tmp", None),
    (f"l.lock.+1.{TOKEN}.tmp", None),
    (f"l.lock.00000000077.{TOKEN}.tmp", None),
    (f"l.lock.99999999999.{TOKEN}.tmp", None),
    (f"l.lock.{'9' * 200}.{TOKEN}.tmp", None),
    (f"l.lock.\u0667.{TOKEN}.tmp", None),
    (f"l.lock.\xb2.{TOKEN}.tmp", None),
    (f"l.lock..{TOKEN}.tmp", None),
    (f"l.lock.77.{TOKEN.upper()}.tmp", None),
    (f"l.lock.77.{TOKEN[1:]}.tmp", None),
    (f"l.lock.77.{TOKEN}0.tmp", None),
    (f"l.lock.77.{TOKEN}", None),
    (f"l.lock.77.{TOKEN}.tmp.tmp", None),
    (f"l.lock.old.lock.77.{TOKEN}.tmp", None),
    (f"x-l.lock.77.{TOKEN}.tmp", None),
    (f"l.lockx.77.{TOKEN}.tmp", None),
    ("l.lock.notes.tmp", None),
    ("l.lock.tmp", None),
    ("l.lock", None),
    ("", None),
]


@pytest.mark.parametrize(("name", "pid"), RIVALS)
def test_a_rival_is_recognised_by_the_name_of_its_file(name: str, pid: int | None) -> None:
    assert SEMATS.rival(name, "l.lock") == pid
    assert SEMA.rival(name, "l.lock") == pid  # one family: its lock files are the same


def test_a_lock_with_an_odd_name_has_rivals() -> None:
    for lock in ("a.tmp", "5", "l.5", "[x]*", "\udcff"):
        assert SEMATS.rival(f"{lock}.5.{TOKEN}.tmp", lock) == 5
