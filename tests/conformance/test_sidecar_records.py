"""The sidecar record: every vector, JSON as JavaScript reads it, any payload, and the changes by a heartbeat."""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
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
    vectors_of,
    who,
)
from holdfast.errors import MalformedRecord
from holdfast.liveness import Liveness
from holdfast.model import Identity, Marker, Record
from holdfast.protocols import get
from holdfast.protocols.base import clean_tag

SIDECAR = get("sidecar")
OURS = vectors_of("sidecar")
KEY = SIDECAR.marker_key

anything = st.text() | hostile  # including lone surrogates, which JavaScript has
numbers = st.integers(-(2**200), 2**200) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | anything,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(anything, inner, max_size=4),
    max_leaves=12,
)
payloads = st.dictionaries(anything, values, max_size=6)
callers = payloads.map(lambda p: {k: v for k, v in p.items() if k not in ("holdfast", "holdfastPid")})


def record_of(payload: Any) -> Record:
    return Record("sidecar", {"payload": payload})


def text_of(payload: Any) -> bytes:
    return SIDECAR.encode(record_of(payload))


# -- reading -----------------------------------------------------------------------------------------------------------


def test_the_vectors_are_all_there() -> None:
    assert len(OURS) == 27


@pytest.mark.parametrize("vector", OURS, ids=lambda v: v["id"])
def test_a_record_is_read_as_the_vectors_say(vector: dict[str, Any]) -> None:
    data = input_of(vector)
    if "error" in vector["want"]:
        with pytest.raises(MalformedRecord):
            SIDECAR.decode(data)
        return
    record = SIDECAR.decode(data)
    assert record.fields == vector["want"]["record"]
    assert record.legible is (record.fields["payload"] is not None)


@pytest.mark.parametrize(
    "data",
    [
        *(b"{", b"{'a':1}", b'{"a":NaN}', b'{"a":Infinity}', b'{"a":-Infinity}', b'{"a":01}', b'{"a":+1}', b'{"a":1.}'),
        *(b'{"a":.5}', b'{"a":0x1}', b'{"a":"\\x41"}', b'{"a":"\\u00g1"}', b'{"a":"\\u 123"}', b'{"a":"\n"}', b"{a:1}"),
        *(
            b"\x0b{}",
            b"\xc2\xa0{}",
            b"{}\x0c",
            b"{}{}",
            b"{}\xef\xbb\xbf",
            b"{}//",
            b'{"a":tru}',
            b'{"a" 1}',
            b'{"a"}',
            b'"',
        ),
    ],
)
def test_json_that_javascript_refuses_is_no_payload(data: bytes) -> None:
    record = SIDECAR.decode(data)
    assert (record.fields, record.legible, record.created) == ({"payload": None}, False, None)


@pytest.mark.parametrize(
    ("data", "payload"),
    [
        (b' \t\r\n{"a" : [ 1 , 2 ] } \n', {"a": [1, 2]}),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b'{"a":"\xff"}', {"a": "\ufffd"}),
        (b'{"a":"\xe2\x82"}', {"a": "\ufffd"}),
        (b'{"a":"\x7f\xc2\x85"}', {"a": "\x7f\x85"}),
        (b'{"a":"\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        (b'{"a":9e999}', {"a": float("inf")}),
        (b'{"a":' + b"9" * 400 + b"}", {"a": float("inf")}),
        (b'{"__proto__":1,"":2}', {"__proto__": 1, "": 2}),
        (b'{"a":' + b"[" * 99 + b"]" * 99 + b"}", None),
    ],
)
def test_json_that_javascript_accepts_is_a_payload(data: bytes, payload: Any) -> None:
    found = SIDECAR.decode(data).fields["payload"]
    assert found == payload if payload is not None else found is not None


def test_a_record_that_is_nested_too_deeply_is_malformed() -> None:
    """Others may read an object with a timestamp in it, so the record is neither empty nor as old as its file."""
    for deep in (100, 900, 100_000):
        with pytest.raises(MalformedRecord, match="nested"):
            SIDECAR.decode(b'{"a":' + b"[" * deep + b"]" * deep + b"}")


def test_a_record_larger_than_a_megabyte_is_refused() -> None:
    whole = b'{"a":"' + b"x" * (MIB - 8) + b'"}'
    assert SIDECAR.decode(whole).legible
    with pytest.raises(MalformedRecord, match="larger"):
        SIDECAR.decode(whole + b"\n")


@pytest.mark.parametrize(
    ("value", "pid"),
    [
        *(("1", 1), ("2147483647", 2**31 - 1), ("2147483648", None), ("0", None), ("-1", None), ("true", None)),
        *(("1.5", None), ('"1"', None), ("null", None), ("9" * 400, None), ("[1]", None)),
    ],
)
def test_only_a_possible_pid_is_read_as_one(value: str, pid: int | None) -> None:
    assert SIDECAR.decode(b'{"pid":%s}' % value.encode()).pid == pid


@pytest.mark.parametrize(
    ("text", "host", "tag"),
    [
        ('{"host":"a","hostname":"b","tag":"t"}', "a", "t"),
        ('{"hostname":"b"}', "b", None),
        ('{"host":null,"hostname":"b","tag":null}', "b", None),
        ('{"host":5,"hostname":["b"],"tag":7}', None, None),
        ('{"Host":"a","TAG":"t"}', None, None),
    ],
)
def test_the_host_and_the_tag_are_kept(text: str, host: str | None, tag: str | None) -> None:
    record = SIDECAR.decode(text.encode())
    assert (record.host, record.tag) == (host, tag)


@pytest.mark.parametrize(
    ("value", "created"),
    [
        ('"2025-01-01T00:00:00.250Z"', 1735689600.25),
        ('"2020"', 1577836800.0),
        ('"2020-01-01T00:00:00.123456+00:00"', 1577836800.123),
        ('"Wed, 01 Jan 2020 00:00:00 GMT"', None),
        ('"Jan 1 2020"', None),
        ("1577836800000", None),
        ('"soon"', None),
        ('""', None),
        ("null", None),
        ('["2020"]', None),
    ],
)
def test_only_an_iso_8601_date_is_a_time_of_creation(value: str, created: float | None) -> None:
    assert SIDECAR.decode(b'{"createdAt":%s}' % value.encode()).created == created
    assert SIDECAR.decode(b'{"createdat":%s}' % value.encode()).created is None


@given(st.binary())
def test_arbitrary_bytes_do_not_crash_the_reader(data: bytes) -> None:
    read_or_refused(SIDECAR, data)


words = (b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\", b'"pid"', b'"createdAt":', b'"holdfast":"1 g ', b'"2020-01T')
others = (
    b"1",
    b"-",
    b"e9",
    b".",
    b"\n",
    b" ",
    b"\xff",
    b"\0",
    b"\\u",
    b"d800",
    b"null",
    b"NaN",
    b'{"a":',
    b"\xef\xbb\xbf",
)
pieces = st.sampled_from([*words, *others])


@given(st.lists(pieces, max_size=30).map(b"".join))
def test_a_damaged_record_does_not_crash_the_reader(data: bytes) -> None:
    read_or_refused(SIDECAR, data)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_large_record_does_not_stall_the_reader(shape: str) -> None:
    assert_linear(lambda data: read_or_refused(SIDECAR, data), SHAPES[shape])


# -- writing -----------------------------------------------------------------------------------------------------------


@given(payloads)
def test_a_payload_survives_encoding_and_decoding(payload: dict[str, Any]) -> None:
    data = text_of(payload)
    record = SIDECAR.decode(data)
    # Adjacent halves of a character in a str are one character in every other encoding.
    joined = json.loads(json.dumps(payload))
    assert record.fields == {"payload": joined}
    assert SIDECAR.encode(record) == text_of(joined)


def test_a_record_is_laid_out_as_javascript_does() -> None:
    payload = {
        "a": [1, {"b": None}],
        "e": [],
        "o": {},
        "s": 'é\u2028"\\/\x08\x1f\x7f\ud800',
        "f": 1.0,
        "t": True,
        "n": -0.0,
    }
    assert text_of(payload).decode() == (
        '{\n  "a": [\n    1,\n    {\n      "b": null\n    }\n  ],\n  "e": [],\n  "o": {},\n'
        '  "s": "é\u2028\\"\\\\/\\b\\u001f\x7f\\ud800",\n  "f": 1,\n  "t": true,\n  "n": 0\n}\n'
    )


def _circle() -> dict[str, Any]:
    circle: dict[str, Any] = {}
    circle["a"] = [circle]
    return circle


def _nested(deep: int) -> dict[str, Any]:
    found: Any = 1
    for _ in range(deep):
        found = [found]
    return {"a": found}


INEXPRESSIBLE = [
    {"a": float("nan")},
    {"a": float("inf")},
    {"a": {1, 2}},
    {"a": b"x"},
    {"a": object()},
    {1: 2},
    {"a": {None: 1}},
    {"a": 10**5000},
    {"a": 10**400},
    {"a": 1j},
    _circle(),
    _nested(100),
    _nested(100_000),
]


@pytest.mark.parametrize("payload", INEXPRESSIBLE, ids=range(len(INEXPRESSIBLE)))
def test_a_payload_that_json_cannot_express_is_refused(payload: Any) -> None:
    with pytest.raises(ValueError, match=r"JSON|nested|digits"):
        text_of(payload)
    with pytest.raises(ValueError, match=r"JSON|nested|digits"):
        SIDECAR.check_options({"payload": payload})
    with pytest.raises(ValueError, match=r"JSON|nested|digits"):
        SIDECAR.compose(who(7), 0.0, None, MARKER, {"payload": lambda: payload})


@pytest.mark.parametrize("payload", [None, [], "x", 5, {"a": "x" * MIB}])
def test_only_an_object_that_is_small_enough_is_written(payload: Any) -> None:
    with pytest.raises(ValueError, match=r"JSON object|larger"):
        text_of(payload)


async def _later() -> dict[str, Any]:
    return {}


class _Later:
    async def __call__(self) -> dict[str, Any]:
        return {}


class _Now:
    def __call__(self) -> dict[str, Any]:
        return {"pid": 5}


@pytest.mark.parametrize(
    "payload", [_later, _Later(), functools.partial(_later), _Later().__call__, 5, "x", [("a", 1)]]
)
def test_a_payload_of_a_wrong_type_is_refused(payload: Any) -> None:
    with pytest.raises(TypeError, match="payload"):
        SIDECAR.check_options({"payload": payload})


@pytest.mark.parametrize("result", [None, [], "x", 5])
def test_a_function_must_return_a_payload(result: Any) -> None:
    SIDECAR.check_options({"payload": lambda: result})
    with pytest.raises(TypeError, match="payload"):
        SIDECAR.compose(who(7), 0.0, None, MARKER, {"payload": lambda: result})


def test_a_coroutine_that_a_function_returns_is_closed() -> None:
    """A coroutine that is never awaited makes a warning, which would fail this test."""
    forgetful: Callable[[], Any] = lambda: _later()  # noqa: E731, PLW0108
    SIDECAR.check_options({"payload": forgetful})
    with pytest.raises(TypeError, match="payload"):
        SIDECAR.compose(who(7), 0.0, None, MARKER, {"payload": forgetful})


@pytest.mark.parametrize("name", ["holdfast", "holdfastPid"])
def test_a_caller_cannot_forge_a_marker(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        SIDECAR.check_options({"payload": {"a": 1, name: MARKER}})
    with pytest.raises(ValueError, match=name):
        SIDECAR.compose(who(7), 0.0, None, MARKER, {"payload": lambda: {name: None}})


def test_a_payload_that_is_too_large_to_be_read_is_refused() -> None:
    most = {"a": "x" * (MIB - 5000)}
    SIDECAR.check_options({"payload": most})
    assert SIDECAR.decode(SIDECAR.compose(who(7), 0.0, None, MARKER, {"payload": most})).pid == 7
    with pytest.raises(ValueError, match="larger"):
        SIDECAR.check_options({"payload": {"a": "x" * MIB}})
    with pytest.raises(ValueError, match="larger"):
        SIDECAR.compose(who(7), 0.0, None, MARKER, {"payload": lambda: {"a": "x" * MIB}})


@pytest.mark.parametrize(
    "payload", [{"pid": 5}, types.MappingProxyType({"pid": 5}), lambda: {"pid": 5}, _Now(), _Now().__call__]
)
def test_a_payload_of_another_kind_is_accepted(payload: Any) -> None:
    SIDECAR.check_options({"payload": payload})
    record = SIDECAR.decode(SIDECAR.compose(who(5), 0.0, "t", None, {"payload": payload}))
    assert record.fields == {"payload": {"pid": 5}}


def test_a_payload_is_evaluated_when_the_lock_is_written() -> None:
    """It is evaluated for each attempt, so that its content is up to date."""
    calls: list[int] = []

    def payload() -> Mapping[str, Any]:
        calls.append(1)
        return {"n": len(calls)}

    SIDECAR.check_options({"payload": payload})
    assert not calls
    for n in (1, 2):
        assert (
            SIDECAR.decode(SIDECAR.compose(who(5), 0.0, None, None, {"payload": payload})).fields["payload"]["n"] == n
        )


@given(
    st.integers(1, 2**31 - 1),
    st.floats(0, 2e11),
    st.none() | st.text().map(clean_tag),
    hosts,
    st.none() | st.just(MARKER),
)
def test_a_holders_default_record_is_read_back(
    pid: int, now: float, tag: str | None, host: str, marker: str | None
) -> None:
    data = SIDECAR.compose(Identity(pid, "b", "n", "s", host), now, tag, marker, {})
    record = SIDECAR.decode(data)
    assert (record.pid, record.host, record.tag, record.marked) == (pid, host, tag, marker is not None)
    assert record.created is not None
    assert 0 <= now - record.created < 0.0011  # milliseconds
    assert SIDECAR.encode(record) == data
    assert list(record.fields["payload"])[marker is not None :] == ["pid", "host", "createdAt"] + ["tag"] * (
        tag is not None
    )


@given(callers, markers(st.just(7)))
def test_the_marker_names_the_holder_whatever_the_payload_says(payload: dict[str, Any], marker: Marker) -> None:
    """A caller's `pid` may be missing or another process's, whose death would then count as that of a living holder."""
    data = SIDECAR.compose(who(7), 0.0, None, marker.encode(), {"payload": payload})
    record = SIDECAR.decode(data)
    assert (record.pid, record.marker) == (7, marker)
    assert data.find(KEY) == len(b"{")


@given(callers, st.none() | hostile, hosts, st.booleans())
def test_flipping_the_marker_changes_nothing_else(
    payload: dict[str, Any], tag: str | None, host: str, own: bool
) -> None:
    """publish.py, P3: one byte, in place."""
    who = Identity(7, "b", "n", "s", host)
    marker = Marker(False, 3, who, 1795248692.418)
    more = {} if own else {"payload": payload}
    before = SIDECAR.compose(who, 0.0, tag, marker.encode(), more)
    after = before.replace(KEY + b"2 n ", KEY + b"2 g ", 1)
    assert len(before) == len(after)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
    old, new = SIDECAR.decode(before), SIDECAR.decode(after)
    assert (old.marker, new.marker) == (marker, marker.replaced(guarded=True))
    old.fields["payload"].pop("holdfast"), new.fields["payload"].pop("holdfast")
    assert old.fields == new.fields


def test_a_torn_marker_is_not_taken_for_no_marker() -> None:
    for text in ('{"holdfast":"1 g b"}', '{"holdfast":"2 g b 3 n s h"}', '{"holdfast":5}', '{"holdfast":null}'):
        record = SIDECAR.decode(text.encode())
        assert (record.marked, record.marker) == (True, None)


# -- the rules ---------------------------------------------------------------------------------------------------------


def test_the_rules_are_those_of_sidecar() -> None:
    assert (SIDECAR.mode, SIDECAR.stale_after, SIDECAR.resolves, SIDECAR.suffix) == (0o600, 30.0, "directory", ".lock")
    assert SIDECAR.makes_parents
    assert SIDECAR.ages_by_mtime
    assert SIDECAR.fails_closed
    assert (SIDECAR.reclaim_suffix, SIDECAR.padding) == (".reclaim", b"\n")
    assert SIDECAR.options == {"payload"}


@pytest.mark.parametrize("liveness", Liveness)
@pytest.mark.parametrize(("age", "stale"), [(-5, False), (29.9, False), (30.0, False), (30.001, True), (1e9, True)])
def test_an_age_is_judged_as_fs_safe_judges_it(age: float, stale: bool, liveness: Liveness) -> None:
    record = Record("sidecar", {"payload": {}}, created=1000.0)
    assert SIDECAR.is_stale(record, liveness, 1000.0 + age, 30.0) is stale


def test_a_record_without_any_time_is_not_stale() -> None:
    assert not SIDECAR.is_stale(Record("sidecar", {"payload": {}}), Liveness.DEAD, 1e12, 30.0)
    assert SIDECAR.stale_at(Record("sidecar", {"payload": {}}), 30.0) is None


def test_stale_at_is_the_moment_a_record_becomes_stale() -> None:
    record = Record("sidecar", {"payload": {}}, created=1000.0)
    at = SIDECAR.stale_at(record, 30.0)
    assert at is not None
    assert SIDECAR.is_stale(record, Liveness.DEAD, at, 30.0)
    assert not SIDECAR.is_stale(record, Liveness.DEAD, at - 0.002, 30.0)


# -- heartbeats --------------------------------------------------------------------------------------------------------


@given(callers, st.booleans(), st.floats(0, 2e11), st.floats(0, 2e11), st.none() | hostile)
def test_a_heartbeat_changes_only_the_timestamp(
    payload: dict[str, Any], own: bool, then: float, now: float, tag: str | None
) -> None:
    data = SIDECAR.compose(who(7), then, tag, MARKER, {} if own else {"payload": payload})
    fresh = SIDECAR.refreshed(data, now)
    assert fresh is not None
    offset, new = fresh
    after = data[:offset] + new + data[offset + len(new) :]
    assert len(after) == len(data)
    if own:
        assert after == SIDECAR.compose(who(7), now, tag, MARKER, {})
    else:
        assert after == data


@pytest.mark.parametrize(
    "payload",
    [
        {"createdAt": "2020-01-01T00:00:00.000Z"},
        {"a": "x", "createdAt": "2020-01-01T00:00:00.000Z", "z": {"createdAt": "2020-01-01T00:00:00.000Z"}},
        {"a": {"createdAt": "2020-01-01T00:00:00.000Z"}, "createdAt": "2020-01-01T00:00:00.000Z"},
        {"a": ['\n  "createdAt": "2020-01-01T00:00:00.000Z"'], "createdAt": "2020-01-01T00:00:00.000Z"},
    ],
)
def test_a_callers_own_timestamp_is_refreshed(payload: dict[str, Any]) -> None:
    data = SIDECAR.compose(who(7), 0.0, None, MARKER, {"payload": payload})
    fresh = SIDECAR.refreshed(data, 1577836830.5)
    assert fresh is not None
    offset, new = fresh
    after = SIDECAR.decode(data[:offset] + new + data[offset + len(new) :])
    own = ("holdfast", "holdfastPid")
    found = {name: value for name, value in after.fields["payload"].items() if name not in own}
    assert found == {**payload, "createdAt": "2020-01-01T00:00:30.500Z"}


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"createdAt": 5},
        {"createdAt": None},
        {"createdAt": "2020"},
        {"createdAt": "2020-01-01T00:00:00.000+00:00"},
        {"createdAt": "2020-01-01T00:00:00.000z"},
        {"createdAt": "2020-01-01T00:00:00.00Z0"},
        {"createdAt": "2020-01-01T00:00:00.000Z "},
        {"createdAt": "\u0662020-01-01T00:00:00.000Z"},
        {"a": {"createdAt": "2020-01-01T00:00:00.000Z"}},
        {"a": '\n  "createdAt": "2020-01-01T00:00:00.000Z"'},
        {"createdat": "2020-01-01T00:00:00.000Z"},
    ],
)
def test_a_heartbeat_leaves_a_payload_without_a_timestamp(payload: dict[str, Any]) -> None:
    """Such a record is as old as its file, which any write refreshes."""
    data = SIDECAR.compose(who(7), 0.0, None, MARKER, {"payload": payload})
    assert SIDECAR.refreshed(data, 1e9) == (0, b"{")


def test_a_heartbeat_refreshes_a_record_with_padding_after_it() -> None:
    data = SIDECAR.compose(who(7), 0.0, None, MARKER, {}) + b"\n" * 50
    fresh = SIDECAR.refreshed(data, 1e9)
    assert fresh is not None
    assert SIDECAR.decode(data[: fresh[0]] + fresh[1] + data[fresh[0] + 24 :]).created == 1e9


def test_a_record_of_a_million_objects_is_refused() -> None:
    """It cannot be written either: whatever we write, we can read."""
    many = {"x": [{}] * 10_001}
    with pytest.raises(MalformedRecord, match="10000"):
        SIDECAR.decode(json.dumps(many).encode())
    with pytest.raises(ValueError, match="10000"):
        SIDECAR.check_options({"payload": many})
    brackets = {"x": "[{" * 20_000}
    SIDECAR.check_options({"payload": brackets})
    assert SIDECAR.decode(json.dumps(brackets).encode()).fields["payload"] == brackets
