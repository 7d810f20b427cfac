"""Helpers for the tests of the record codecs: vectors, identities, markers, and contents that make a reader stall."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from holdfast.errors import MalformedRecord
from holdfast.model import Identity, Marker, Record, marker_text
from holdfast.protocols import Protocol
from holdfast.protocols.base import MAX_RECORD_BYTES

settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("holdfast")

ROOT = Path(__file__).parents[2]
VECTORS: list[dict[str, Any]] = json.loads((ROOT / "src/holdfast/testing/records.json").read_text())
MIB = MAX_RECORD_BYTES


def vectors_of(protocol: str) -> list[dict[str, Any]]:
    return [vector for vector in VECTORS if vector["protocol"] == protocol]


def input_of(vector: dict[str, Any]) -> bytes:
    if "input_hex" in vector:
        return bytes.fromhex(vector["input_hex"])
    return b"".join(bytes.fromhex(part) * times for part, times in vector["input_parts"])


def who(pid: int) -> Identity:
    return Identity(pid, "b", "n", "s", "h")


MARKER = marker_text(True, 3, who(7), 1795248692.418)


# -- strategies --------------------------------------------------------------------------------------------------------

words = st.text(
    st.characters(min_codepoint=33, exclude_categories=("Cs", "Zs", "Zl", "Zp", "Cc")), min_size=1, max_size=60
)
hosts = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1).map(str.strip).filter(bool)
texts = st.text(st.characters(exclude_categories=("Cs",)))


def identities(pids: st.SearchStrategy[int]) -> st.SearchStrategy[Identity]:
    return st.builds(Identity, pid=pids, boot=words, pid_namespace=words, started=words, host=hosts)


def markers(pids: st.SearchStrategy[int]) -> st.SearchStrategy[Marker]:
    return st.builds(
        Marker,
        guarded=st.booleans(),
        device=st.integers(0, 2**64 - 1),
        identity=identities(pids),
        acquired=st.none() | st.integers(0, 10**14).map(lambda ms: ms / 1000),
    )


HOSTILE = (
    '"holdfast": "2 n b 1 n s 1.000 h"',
    '\n  "holdfast": "2 n ',
    '\\"holdfast": "2 g ',
    '"holdfast": "2 n ',
    "\nholdfast=2 n ",
    '"createdAt": "2020-01-01T00:00:00.000Z"',
    '\n  "createdAt": "2020-01-01T00:00:00.000Z"',
    '"},{"',
    "\\",
    '"',
    "\u2028</script>&",
    "\x00\x1f\x7f",
)
"""Texts that would pass for something else if they were not escaped."""
hostile = st.lists(st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=("Cs",)), max_size=5)).map(
    "".join
)


# -- whatever a file may contain ---------------------------------------------------------------------------------------


def read_or_refused(protocol: Protocol, data: bytes) -> Record | None:
    """The record, or None for a MalformedRecord that names its cause; anything else fails the test."""
    try:
        record = protocol.decode(data)
    except MalformedRecord as error:
        refusal = error
    else:
        assert record.protocol == protocol.name
        return record
    assert refusal.protocol == protocol.name
    assert str(refusal)
    return None


def members(n: int) -> bytes:
    """An object of that many bytes, with members of different names."""
    return b"{" + b",".join(b'"%x":0' % i for i in range(n // 10)) + b"}"


SHAPES: dict[str, Callable[[int], bytes]] = {
    "one letter": lambda n: b"z" * n,
    "line ends": lambda n: b"\n" * n,
    "CRLF": lambda n: b"\r\n" * (n // 2),
    "blanks": lambda n: b" " * n,
    "equals signs": lambda n: b"=" * n,
    "equals lines": lambda n: b"=\n" * (n // 2),
    "digits": lambda n: b"9" * n,
    "NUL": bytes,
    "no UTF-8": lambda n: b"\xff" * n,
    "a bad byte at the end": lambda n: b"a" * (n - 1) + b"\xff",
    "half a character again and again": lambda n: b"\xe2\x82" * (n // 2),
    "opening brackets": lambda n: b"[" * n,
    "opening braces": lambda n: b"{" * n,
    "objects in objects": lambda n: b'{"a":' * (n // 5),
    "arrays in an object": lambda n: b'{"a":' + b"[" * (n // 2 - 5) + b"]" * (n // 2 - 5) + b"}",
    "many objects beside each other": lambda n: b'{"a":[' + b"{}," * (n // 3 - 6) + b"0]}",
    "brackets in a string": lambda n: b'{"a":"' + b"[" * (n - 9) + b'"}',
    "quotes": lambda n: b'{"' + b'"' * (n - 2),
    "escaped quotes": lambda n: b"{" + b'"\\' * (n // 2 - 1),
    "escaped quotes behind brackets": lambda n: b"{" + b"[" * 200 + b'"\\' * (n // 2 - 200),
    "backslashes": lambda n: b'{"a":"' + b"\\" * (n - 8) + b'"}',
    "escapes": lambda n: b'{"a":"' + b"\\ud800" * (n // 6 - 2) + b'"}',
    "a whole number": lambda n: b'{"pid":' + b"9" * (n - 9) + b"}",
    "zeros": lambda n: b'{"pid":' + b"0" * (n - 9) + b"}",
    "a fraction": lambda n: b'{"pid":0.' + b"9" * (n - 11) + b"}",
    "an exponent": lambda n: b'{"pid":1e' + b"9" * (n - 11) + b"}",
    "one member over and over": lambda n: b"{" + b'"pid":1,' * (n // 8 - 1) + b'"pid":1}',
    "one member in both cases": lambda n: b"{" + b'"pid":1,"PID":2,' * (n // 16 - 1) + b'"pid":1}',
    "many members": members,
    "one long name": lambda n: b'{"' + b"\xc5\xbf" * (n // 2 - 5) + b'":0}',
    "blanks in an object": lambda n: b"{" + b" " * (n - 2) + b"}",
    "blanks behind an object": lambda n: b"{}" + b" \t" * (n // 2 - 2),
}
"""Contents of about that many bytes that take a careless reader quadratic time, or its stack."""
_SMALL = MIB // 4
_ENOUGH = 0.02
"""Least seconds of computing; below, the ratio of two times says nothing."""
_MUCH = 8
"""The factor in time that is too much for four times the content."""


def seconds(read: Callable[[bytes], object], data: bytes, times: int = 3) -> float:
    """Seconds of computing, for the fastest of that many times."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        read(data)
        taken.append(time.process_time() - began)
    return min(taken)


def assert_linear(read: Callable[[bytes], object], shape: Callable[[int], bytes]) -> None:
    """Require that four times as much takes about four times as long; sixteen times would be quadratic."""
    little, much = shape(_SMALL), shape(MIB)
    large = seconds(read, much, times=1)
    for _ in range(6):  # a busy machine slows down the one or the other, but not each time
        if large < _MUCH * _ENOUGH or large < _MUCH * (small := seconds(read, little)):
            return
        large = seconds(read, much)
        assert large < 10
    raise AssertionError(f"{small:.3f} s of computing, and {large:.3f} s for four times as much")
