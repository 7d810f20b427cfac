"""The beads record: every vector, JSON as Go reads it, and the words in which beads refuses a lock file."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from conformance.support import (
    MARKER,
    MIB,
    SHAPES,
    assert_linear,
    hostile,
    hosts,
    input_of,
    markers,
    read_or_refused,
    texts,
    vectors_of,
    who,
)
from holdfast.errors import MalformedRecord
from holdfast.liveness import Liveness
from holdfast.model import Identity, Marker, Record
from holdfast.protocols import get
from holdfast.protocols.base import clean_tag
from holdfast.protocols.dates import rfc3339_text

BEADS = get("beads")
OURS = vectors_of("beads")
KEY = BEADS.marker_key

CANONICAL = {
    "holder": "vc-executor",
    "pid": 12345,
    "hostname": "dev-machine",
    "started_at": "2025-10-25T12:00:00Z",
    "version": "1.0.0",
}


def written(**changes: object) -> bytes:
    """The record of the specification with these members changed; those that are None are left out."""
    return json.dumps({k: v for k, v in {**CANONICAL, **changes}.items() if v is not None}).encode()


def with_members(text: str) -> bytes:
    """The same record with members added at its end."""
    return written()[:-1] + b", " + text.encode() + b"}"


# -- reading -----------------------------------------------------------------------------------------------------------


def test_the_vectors_are_all_there() -> None:
    assert len(OURS) == 46


@pytest.mark.parametrize("vector", OURS, ids=lambda v: v["id"])
def test_a_record_is_read_as_the_vectors_say(vector: dict[str, Any]) -> None:
    data = input_of(vector)
    if "error" in vector["want"]:
        with pytest.raises(MalformedRecord, match=r"^(malformed|invalid) lock file: "):
            BEADS.decode(data)
        return
    want = vector["want"]["record"]
    record = BEADS.decode(data)
    assert record.fields == want
    assert (record.pid, record.host, record.tag) == (want["pid"], want["hostname"], want["holder"])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{}", "invalid lock file: holder is required"),
        (b"null", "invalid lock file: holder is required"),
        (written(holder=""), "invalid lock file: holder is required"),
        (written(pid=0), "invalid lock file: pid must be positive (got 0)"),
        (written(pid=None), "invalid lock file: pid must be positive (got 0)"),
        (written(pid=-7), "invalid lock file: pid must be positive (got -7)"),
        (written(hostname=""), "invalid lock file: hostname is required"),
        (written(started_at=None), "invalid lock file: started_at is required"),
        (written(started_at="0001-01-01T00:00:00Z"), "invalid lock file: started_at is required"),
        (written(started_at="0001-01-01T01:00:00.0+01:00"), "invalid lock file: started_at is required"),
        (b"", "malformed lock file: unexpected end of JSON input"),
        (b" \n", "malformed lock file: unexpected end of JSON input"),
        (written()[:-1], "malformed lock file: unexpected end of JSON input"),
        (written()[:-2], "malformed lock file: unexpected end of JSON input"),
        (written()[:12], "malformed lock file: unexpected end of JSON input"),
    ],
)
def test_a_refusal_is_worded_as_beads_words_it(data: bytes, said: str) -> None:
    with pytest.raises(MalformedRecord) as caught:
        BEADS.decode(data)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    "data",
    [
        *(b"[]", b"5", b'"x"', b"true", b"\xef\xbb\xbf" + written(), written() + b"x", written() + b"\0"),
        *(written(pid=pid) for pid in (5.5, 5.0, "5", True, [5], {}, 2**63, -(2**63) - 1, 10**30)),
        *(written(**{name: value}) for name in CANONICAL for value in ([], {}, False) if name != "pid"),
        *(written(**{name: 5}) for name in CANONICAL if name != "pid"),
        *(with_members(text) for text in ('"pid":"x"', '"PID":"x","pid":5', '"version":1,"version":"1"')),
        with_members('"started_at":"x","started_at":"2025-10-25T12:00:00Z"'),
        with_members('"a":NaN'),
        with_members('"a":' + "[" * 200 + "]" * 200),
    ],
)
def test_a_record_that_go_cannot_parse_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedRecord, match=r"^malformed lock file: "):
        BEADS.decode(data)


@pytest.mark.parametrize(
    ("data", "changes"),
    [
        (with_members('"pid":7'), {"pid": 7}),
        (with_members('"PID":7'), {"pid": 7}),
        (with_members('"pid":7,"pid":null'), {"pid": 7}),
        (with_members('"Hostname":"x","HOSTNAME":"y"'), {"hostname": "y"}),
        (with_members('"ver\u017fion":"2","\u017ftarted_at":"2020-01-01T00:00:00Z"'),
         {"version": "2", "started_at": "2020-01-01T00:00:00Z"}),
        (with_members('"\ufb06arted_at":5,"ver\u00dfion":5,"holder ":5,"hol\u0131der":5'), {}),
        (with_members('"tag":null,"ttl":9e999,"x":[{"pid":[]},"",null]'), {}),
        (written(version=None), {"version": ""}),
        (written(holder="  "), {"holder": "  "}),
        (written(holder="\ud800x\udfff\U0001f600"), {"holder": "\ufffdx\ufffd\U0001f600"}),
        (written(holder="@").replace(b"@", b"\xe2\x82@\xed\xa0\x80"), {"holder": "\ufffd\ufffd@\ufffd\ufffd\ufffd"}),
        (written(pid=2**63 - 1), {"pid": 2**63 - 1}),
    ],
)  # fmt: skip
def test_a_record_is_read_as_go_reads_it(data: bytes, changes: dict[str, object]) -> None:
    assert BEADS.decode(data).fields == {**CANONICAL, **changes}


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ('"tag":"t"', ("t", False, None)),
        ('"tag":5', ("vc-executor", False, None)),
        ('"TAG":"t","HOLDFAST":"1 g b 3 n s h"', ("vc-executor", False, None)),
        ('"holdfast":"1 g b 3 n s h"', ("vc-executor", True, Marker(True, 3, Identity(12345, "b", "n", "s", "h")))),
        ('"holdfast":"1 g b"', ("vc-executor", True, None)),
        ('"holdfast":"2 g b 3 n s h"', ("vc-executor", True, None)),
        ('"holdfast":5', ("vc-executor", True, None)),
    ],
)
def test_our_own_members_are_read(text: str, fields: tuple[object, ...]) -> None:
    record = BEADS.decode(with_members(text))
    assert (record.tag, record.marked, record.marker) == fields


@given(st.binary())
def test_arbitrary_bytes_do_not_crash_the_reader(data: bytes) -> None:
    read_or_refused(BEADS, data)


names = (b'"holder":', b'"pid":', b'"hostname":', b'"started_at":', b'"version":', b'"holdfast":"1 g ', b'"PID":')
signs = (b"{", b"}", b"[", b"]", b'"', b",", b"\\u", b"d800", b"-", b"e9", b"\xff", b"\0", b"null", b"NaN", b"\n")
pieces = st.sampled_from([*names, *signs, b'"2025-10-25T12:00:00Z"', b"1", b'"x"', written()[:-1]])


@given(st.lists(pieces, max_size=30).map(b"".join))
def test_a_damaged_record_does_not_crash_the_reader(data: bytes) -> None:
    read_or_refused(BEADS, data)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_large_record_does_not_stall_the_reader(shape: str) -> None:
    assert_linear(lambda data: read_or_refused(BEADS, data), SHAPES[shape])


@pytest.mark.parametrize("digit", ["9", "0"])
def test_a_long_fraction_does_not_stall_the_reader(digit: str) -> None:
    def shape(size: int) -> bytes:
        return written(started_at=f"2025-10-25T12:00:00.{digit * (size - 200)}Z")

    assert_linear(lambda data: read_or_refused(BEADS, data), shape)
    assert BEADS.decode(shape(MIB)).fields["started_at"] in ("2025-10-25T12:00:00Z", "2025-10-25T12:00:00.999999999Z")


# -- writing -----------------------------------------------------------------------------------------------------------


def test_a_record_is_laid_out_as_go_does() -> None:
    data = BEADS.compose(
        who(7), 1735689600.25, None, None, {"holder": 'a<b>&"\\\u2028\u2029é\x7f\n\t\x01', "version": "2"}
    )
    assert data.decode() == (
        '{\n  "holder": "a\\u003cb\\u003e\\u0026\\"\\\\\\u2028\\u2029é\x7f\\n\\t\\u0001",\n  "pid": 7,\n'
        '  "hostname": "h",\n  "started_at": "2025-01-01T00:00:00.25Z",\n  "version": "2"\n}'
    )


def test_our_own_members_come_after_those_of_the_protocol() -> None:
    data = BEADS.compose(who(7), 0.0, "t", MARKER, {})
    assert list(json.loads(data)) == ["holder", "pid", "hostname", "started_at", "version", "tag", "holdfast"]
    assert (json.loads(data)["holder"], json.loads(data)["version"]) == ("holdfast", "")


holders = (texts | hostile).filter(bool)
tags = st.none() | (texts | hostile).map(clean_tag)
pids = st.integers(1, 2**31 - 1)


@given(pids, st.floats(0, 2e11), tags, hosts, holders, texts, st.none() | markers(st.just(0)))
def test_a_holders_record_is_read_back(
    pid: int, now: float, tag: str | None, host: str, holder: str, version: str, marker: Marker | None
) -> None:
    options = {"holder": holder, "version": version}
    BEADS.check_options(options)
    text = None if marker is None else marker.encode()
    data = BEADS.compose(Identity(pid, "b", "n", "s", host), now, tag, text, options)
    record = BEADS.decode(data)
    assert (record.pid, record.host, record.tag) == (pid, host, holder if tag is None else tag)
    assert (record.fields["holder"], record.fields["version"]) == (holder, version)
    assert record.marked is (marker is not None)
    assert (record.marker and record.marker.encode()) == text
    assert record.created is not None
    assert abs(record.created - now) <= 1e-9 + math.ulp(now)
    assert BEADS.decode(BEADS.encode(record)) == record
    if tag != holder:
        assert BEADS.encode(record) == data


@given(pids, st.integers(-62135596799, 253402300799), st.integers(0, 10**9 - 1), tags, st.none() | markers(st.just(0)))
def test_a_record_survives_encoding_and_decoding(
    pid: int, second: int, nanosecond: int, tag: str | None, marker: Marker | None
) -> None:
    started = rfc3339_text(second)[:-1] + f".{nanosecond:09}".rstrip("0").rstrip(".") + "Z"
    fields = {**CANONICAL, "pid": pid, "started_at": started}
    if marker is not None:
        marker = marker.replaced(identity=marker.identity.replaced(pid=pid))
    tag = "vc-executor" if tag is None else tag
    record = Record("beads", fields, pid=pid, tag=tag, host="dev-machine", marker=marker, marked=marker is not None)
    again = BEADS.decode(BEADS.encode(record))
    assert again.replaced(created=None) == record
    assert again.created is not None
    assert abs(again.created - (second + nanosecond / 1e9)) <= 1e-4


@pytest.mark.parametrize(
    "changes",
    [
        *({"holder": value} for value in ("", 5, None, "\ud800")),
        *({"pid": value} for value in (0, -1, 2**63, True, 5.0, "5", None)),
        *({"hostname": value} for value in ("", 5, "\ud800")),
        *({"started_at": value} for value in ("", 5, "x", "0001-01-01T00:00:00Z", "2025-10-25T1:00:00Z")),
        *({"started_at": f"2025-10-25T12:00:00{value}"} for value in ("+00:00", ".50Z", ",5Z", "")),
        *({"version": value} for value in (None, 5, "\ud800", "x" * MIB)),
    ],
)
def test_a_value_that_beads_cannot_express_is_not_written(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"beads|text|larger"):
        BEADS.encode(Record("beads", {**CANONICAL, **changes}))


@pytest.mark.parametrize(("tag", "error"), [("\ud800", ValueError), ("t", None), (None, None)])
def test_a_tag_that_cannot_be_read_is_not_written(tag: str | None, error: type[Exception] | None) -> None:
    record = Record("beads", CANONICAL, tag=tag)
    if error is None:
        assert BEADS.decode(BEADS.encode(record)).tag == (tag or "vc-executor")
        return
    with pytest.raises(error, match="tag"):
        BEADS.encode(record)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"holder": ""}, ValueError),
        ({"holder": 5}, TypeError),
        ({"holder": b"x"}, TypeError),
        ({"holder": "\ud800"}, ValueError),
        ({"holder": "x" * 10_001}, ValueError),
        ({"version": 1.0}, TypeError),
        ({"version": "\udcff"}, ValueError),
        ({"version": "x" * MIB}, ValueError),
    ],
)
def test_options_that_do_not_fit_into_a_record_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        BEADS.check_options(options)


@given(holders, texts, tags, hosts)
def test_flipping_the_marker_changes_nothing_else(holder: str, version: str, tag: str | None, host: str) -> None:
    """publish.py, P3: one byte, in place."""
    assume(len(holder) < 1000)
    who = Identity(7, "b", "n", "s", host)
    marker = Marker(False, 3, who, 1795248692.418)
    before = BEADS.compose(who, 0.0, tag, marker.encode(), {"holder": holder, "version": version})
    after = before.replace(KEY + b"2 n ", KEY + b"2 g ", 1)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
    old, new = BEADS.decode(before), BEADS.decode(after)
    assert (old.marker, new.marker) == (marker, marker.replaced(guarded=True))
    assert (old.fields, old.tag) == (new.fields, new.tag)


# -- the rules ---------------------------------------------------------------------------------------------------------


def test_the_rules_are_those_of_beads() -> None:
    assert (BEADS.mode, BEADS.stale_after, BEADS.resolves) == (0o644, math.inf, "nothing")
    assert (BEADS.suffix, BEADS.padding, BEADS.options) == ("/.exclusive-lock", b"\n", {"holder", "version"})
    assert not any((BEADS.fails_closed, BEADS.ages_by_mtime, BEADS.has_rivals, BEADS.makes_parents))


@pytest.mark.parametrize("liveness", Liveness)
def test_a_lock_of_beads_becomes_stale_by_death_and_not_by_age(liveness: Liveness) -> None:
    record = BEADS.decode(written())
    assert BEADS.is_stale(record, liveness, 1e12, 0.0) is (liveness is Liveness.DEAD)
    assert BEADS.is_stale(record, liveness, 0.0, math.inf) is (liveness is Liveness.DEAD)
    assert BEADS.stale_at(record, 0.0) is None
    assert BEADS.refreshed(written(), 1e9) is None
