"""The protocol `flock`: the record of a tagged holder, and the rules of a lock without an age."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import MalformedRecord
from holdfast.liveness import Liveness
from holdfast.model import Identity, Marker, marker_text
from holdfast.protocols import get, is_persistent, names, recognise
from holdfast.protocols.base import clean_tag

FLOCK, SEMA = get("flock"), get("sema")
WHO = Identity(12, "boot", "ns", "t7", "host")
MARKER = marker_text(True, 3, WHO)


def who(pid: int) -> Identity:
    return WHO.replaced(pid=pid)


@given(
    pid=st.integers(1, 2**31 - 1),
    now=st.floats(0, 2**40),
    tag=st.none() | st.text(max_size=200).map(clean_tag).filter(bool),
)
def test_a_record_survives_encoding_and_decoding(pid: int, now: float, tag: str | None) -> None:
    """A file that is removed as our own must be ours byte for byte."""
    data = FLOCK.compose(who(pid), now, tag, MARKER, {})
    record = FLOCK.decode(data)
    assert FLOCK.encode(record) == data
    assert (record.protocol, record.pid, record.created, record.tag) == ("flock", pid, float(int(now)), tag)
    assert record.marker == Marker(True, 3, Identity(pid, "boot", "ns", "t7", "host"))
    assert recognise(data) == "flock"


@given(st.binary(max_size=400))
def test_data_is_not_taken_for_a_record(data: bytes) -> None:
    if not data.startswith(b"protocol=flock\n"):
        with pytest.raises(MalformedRecord):
            FLOCK.decode(data)


@given(st.binary(max_size=400))
def test_anything_after_the_first_line_is_read_or_malformed(data: bytes) -> None:
    try:
        record = FLOCK.decode(b"protocol=flock\n" + data)
    except MalformedRecord:
        return
    assert record.pid is not None


@pytest.mark.parametrize("name", ["sema", "semats"])
def test_a_record_of_flock_is_none_of_sema(name: str) -> None:
    """Its file is never removed, and a lock of sema would be, when it is stale or released."""
    data = FLOCK.compose(who(12), 1.0, "x", MARKER, {})
    with pytest.raises(MalformedRecord, match="of the protocol flock"):
        get(name).decode(data)


def test_a_lock_file_of_sema_is_not_taken_for_one_of_flock() -> None:
    data = SEMA.compose(who(12), 1.0, "x", MARKER, {})
    assert recognise(data) == "sema"
    with pytest.raises(MalformedRecord):
        FLOCK.decode(data)


def test_a_lock_of_flock_neither_becomes_stale_nor_is_refreshed() -> None:
    """Only the kernel frees it."""
    record = FLOCK.decode(FLOCK.compose(who(12), 0.0, None, MARKER, {}))
    assert FLOCK.stale_after == math.inf
    for liveness in Liveness:
        assert not FLOCK.is_stale(record, liveness, 1e12, 0.0)
    assert FLOCK.stale_at(record, 0.0) is None
    assert FLOCK.refreshed(FLOCK.encode(record), 1e9) is None


def test_only_flock_and_ofd_leave_their_files_and_can_be_shared() -> None:
    assert [name for name in names() if is_persistent(name)] == ["flock", "ofd"]
    assert not is_persistent("postgresql")
    assert [name for name in names() if get(name).shareable] == ["flock", "ofd"]


def test_only_a_lock_without_events_is_looked_at_again_and_again() -> None:
    assert FLOCK.recheck <= 0.1
    assert SEMA.recheck == math.inf
