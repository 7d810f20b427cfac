"""The sema record: every vector, round trips, and no input that crashes or stalls the reader."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conformance.support import MIB, SHAPES, assert_linear, input_of, markers, read_or_refused, vectors_of, who
from holdfast.errors import MalformedRecord
from holdfast.liveness import Liveness
from holdfast.model import Marker, Record
from holdfast.protocols import get, recognise
from holdfast.protocols.base import MAX_TAG_CHARACTERS, clean_tag

SEMA = get("sema")
OURS = vectors_of("sema")


def test_the_vectors_are_all_there() -> None:
    assert len(OURS) == 50
    assert {"error", "record"} == {key for vector in OURS for key in vector["want"]}


@pytest.mark.parametrize("vector", OURS, ids=lambda v: v["id"])
def test_a_record_is_read_as_the_vectors_say(vector: dict[str, Any]) -> None:
    data = input_of(vector)
    if "error" in vector["want"]:
        with pytest.raises(MalformedRecord):
            SEMA.decode(data)
        return
    want = vector["want"]["record"]
    record = SEMA.decode(data)
    assert {key: record.fields[key] for key in want} == want
    assert (record.pid, record.created, record.tag) == (want["pid"], float(want["timestamp"]), want["tag"])


# -- round trips -------------------------------------------------------------------------------------------------------


def record_of(pid: int, timestamp: int, tag: str | None, marker: Marker | None) -> Record:
    if marker is not None:
        marker = marker.replaced(identity=marker.identity.replaced(pid=pid))
    return Record(
        protocol="sema",
        fields={"pid": pid, "timestamp": timestamp, "tag": tag},
        pid=pid,
        created=float(timestamp),
        tag=tag,
        host=marker.identity.host if marker else None,
        marker=marker,
        marked=marker is not None,
        refreshed=marker is not None,
    )


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.none() | st.text(st.characters(exclude_categories=["Cs"])).map(clean_tag),
    st.none() | markers(st.just(0)),
)
@example(0, 0, "", None)
@example(1, 1, "a=b\x85c\x0bd\u2028e\x1cf\ufeff", None)
def test_a_record_is_read_back_as_it_was_written(
    pid: int, timestamp: int, tag: str | None, marker: Marker | None
) -> None:
    record = record_of(pid, timestamp, tag, marker)
    assert SEMA.decode(SEMA.encode(record)) == record


@given(st.text())
def test_a_cleaned_tag_is_kept_by_the_codec(tag: str) -> None:
    clean = clean_tag(tag)
    assert len(clean) <= MAX_TAG_CHARACTERS
    assert not re.search(r"[\x00-\x1f\x7f]", clean)
    assert clean_tag(clean) == clean
    data = SEMA.compose(who(1), 2.9, clean, "1 g b 1 n s h", {})
    assert (SEMA.decode(data).tag, SEMA.decode(data).fields["timestamp"]) == (clean, 2)


@pytest.mark.parametrize(
    ("pid", "timestamp", "tag"),
    [(-1, 0, None), (2**32, 0, None), (0, -1, None), (0, 2**64, None), (None, 0, None), (0, 1.5, None)]
    + [(0, 0, tag) for tag in (" x", "x ", "a\nb", 5)],
)
def test_a_record_that_sema_cannot_express_is_not_written(pid: Any, timestamp: Any, tag: Any) -> None:
    with pytest.raises(ValueError, match="sema"):
        SEMA.encode(Record("sema", {"pid": pid, "timestamp": timestamp, "tag": tag}))


# -- arbitrary content -------------------------------------------------------------------------------------------------


def decodes_or_says_malformed(data: bytes) -> None:
    record = read_or_refused(SEMA, data)
    if record is not None:
        assert 0 <= record.fields["pid"] < 2**32
        assert 0 <= record.fields["timestamp"] < 2**64
        assert record.tag is None or "\n" not in record.tag


@given(st.binary())
def test_arbitrary_bytes_do_not_crash_the_reader(data: bytes) -> None:
    decodes_or_says_malformed(data)
    recognise(data)


keys = [b"pid=", b"timestamp=", b"tag=", b"holdfast=", b"1 g b "]
signs = [b"\n", b"\r", b" ", b"=", b"+", b"-", b"\0", b"\xff", b"\xef\xbb\xbf", "\u2028".encode()]
digits = [b"0" * 30, b"9" * 30, b"12345", "\u0663".encode(), "\xb2".encode()]
pieces = st.sampled_from([*keys, *signs, *digits])


@given(st.lists(pieces, max_size=30).map(b"".join))
def test_a_damaged_record_does_not_crash_the_reader(data: bytes) -> None:
    decodes_or_says_malformed(data)


@given(st.lists(pieces, max_size=12).map(b"".join))
def test_a_damaged_marker_is_neither_a_crash_nor_a_record_without_one(text: bytes) -> None:
    data = b"pid=7\ntimestamp=8\nholdfast=" + text.replace(b"\n", b"") + b"\n"
    decodes_or_says_malformed(data)
    try:
        assert SEMA.decode(data).marked
    except MalformedRecord:
        assert b"\xff" in text  # invalid UTF-8; nothing else in one line can void the others


LONG = {
    **SHAPES,
    "pid over and over": lambda n: b"pid=1\n" * (n // 6),
    "new keys": lambda n: b"".join(b"%x=\n" % number for number in range(n // 8)),
    "a pid of digits": lambda n: b"timestamp=1\npid=" + b"9" * (n - 20),
    "a pid of zeros": lambda n: b"timestamp=1\npid=" + b"0" * (n - 20),
    "a marker of blanks": lambda n: b"pid=1\ntimestamp=1\nholdfast=1 g b" + b" " * (n - 40) + b"x",
    "a device of digits": lambda n: b"pid=1\ntimestamp=1\nholdfast=1 g b " + b"7" * (n - 60) + b" n s h",
    "more than is read": lambda n: b"a" * (n + 1),
}


@pytest.mark.parametrize("name", LONG)
def test_a_large_record_does_not_stall_the_reader(name: str) -> None:
    assert_linear(decodes_or_says_malformed, LONG[name])


@pytest.mark.parametrize("name", LONG)
def test_a_large_record_does_not_stall_the_search_for_its_protocol(name: str) -> None:
    assert_linear(recognise, LONG[name])


def test_a_record_larger_than_a_megabyte_is_refused() -> None:
    start = b"pid=1\ntimestamp=2\ntag="
    assert SEMA.decode(start + b"x" * (MIB - len(start))).pid == 1
    with pytest.raises(MalformedRecord, match="larger"):
        SEMA.decode(start + b"x" * (MIB - len(start) + 1))


# -- the rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "stale"), [(0, False), (3600, False), (3600.9, False), (3601, True), (1e9, True), (-500, False)]
)
def test_an_age_is_judged_as_sema_judges_it(age: float, stale: bool) -> None:
    now = 2_000_000_000.0
    record = SEMA.decode(b"pid=1\ntimestamp=%d\n" % (now - int(age)))
    for liveness in Liveness:  # the letter of sema never checks whether the holder lives
        assert SEMA.is_stale(record, liveness, now + age % 1, 3600.0) is stale


def test_stale_at_is_the_moment_a_record_becomes_stale() -> None:
    record = SEMA.decode(b"pid=1\ntimestamp=1000\n")
    at = SEMA.stale_at(record, 3600.0)
    assert at is not None
    assert SEMA.is_stale(record, Liveness.DEAD, at, 3600.0)
    assert not SEMA.is_stale(record, Liveness.DEAD, at - 0.001, 3600.0)


@given(st.integers(1_000_000_000, 9_999_999_999), st.integers(1_000_000_000, 9_999_999_999), st.none() | st.just("t"))
def test_a_heartbeat_does_not_damage_the_record(then: int, now: int, tag: str | None) -> None:
    data = SEMA.compose(who(7), then, tag, "1 g b 1 n s h", {})
    fresh = SEMA.refreshed(data, now + 0.5)
    assert fresh is not None
    offset, digits = fresh
    assert offset + len(digits) < 4096, "two pages cannot be rewritten at once"
    assert data[:offset] + digits + data[offset + len(digits) :] == SEMA.compose(who(7), now, tag, "1 g b 1 n s h", {})


def test_a_heartbeat_that_would_change_the_length_is_left_out() -> None:
    assert SEMA.refreshed(b"pid=7\ntimestamp=999999999\nholdfast=1 g b 1 n s h\n", 1_000_000_000) is None


@pytest.mark.parametrize(("then", "now"), [(100.0, 1.8e9), (1.8e9, 100.0), (-5.0, 1.8e9), (1.8e9, -5.0)])
def test_a_heartbeat_follows_a_clock_that_was_set(then: float, now: float) -> None:
    """A machine without a clock of its own begins at the epoch."""
    data = SEMA.compose(who(7), then, "t", "1 g b 1 n s h", {})
    fresh = SEMA.refreshed(data, now)
    assert fresh is not None
    offset, digits = fresh
    after = data[:offset] + digits + data[offset + len(digits) :]
    assert after == SEMA.compose(who(7), now, "t", "1 g b 1 n s h", {})
    assert SEMA.decode(after).created == max(now, 0)


# -- attribution of records --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"pid=1\ntimestamp=2\n", "sema"),
        (b'{"holder": "vc", "pid": 1, "hostname": "h", "started_at": "2025-10-25T12:00:00Z", "version": ""}', "beads"),
        (b'{\n  "pid": 1,\n  "createdAt": "2025-10-25T12:00:00Z"\n}\n', "sidecar"),
        (b"", None),
        (b"hello", None),
        (b"\xff\xfe", None),
    ],
)
def test_a_record_is_attributed_to_its_protocol(data: bytes, name: str | None) -> None:
    assert recognise(data) == name


def test_a_tag_that_was_cut_does_not_end_in_a_blank() -> None:
    assert clean_tag("z" * (MAX_TAG_CHARACTERS - 1) + " z") == "z" * (MAX_TAG_CHARACTERS - 1)
