"""Dates in records: how V8 and Go were seen to read many texts, and the calendar behind it."""

from __future__ import annotations

import datetime
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.support import assert_linear
from holdfast.protocols.dates import CANONICAL_LENGTH, canonical, is_canonical, iso8601, rfc3339, rfc3339_text

SEEN = json.loads(Path(__file__).with_name("date_parse.json").read_text())
"""[text, milliseconds or null], as Node.js 20 says, in two time zones."""


ISO = re.compile(
    r"(?!0000)\d{4}(-\d\d(-([01]\d|2[0-8]))?)?(T([01]\d|2[0-3]):\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII
)
"""What is read of them for certain. JavaScript reads many more, also the year 0, 24:00 and February 30."""


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def choose(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    with monkeypatch.context():
        yield choose
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("place", "tz", "least"), [("utc", "UTC0", 450), ("new_york", "EST5EDT,M3.2.0,M11.1.0", 20)])
def test_a_date_is_read_as_javascript_does(zone: Callable[[str], None], place: str, tz: str, least: int) -> None:
    zone(tz)
    assert len(SEEN[place]) >= least
    read = {text: milliseconds for text, milliseconds in SEEN[place] if iso8601(text) is not None}
    wrong = [
        (text, wanted, found)
        for text, wanted in read.items()
        if round((found := iso8601(text) or 0.0) * 1000) != wanted
    ]
    assert not wrong
    unread = [text for text, wanted in SEEN[place] if wanted is not None and text not in read and ISO.fullmatch(text)]
    assert not unread


@given(st.text())
def test_no_text_crashes_the_reader_of_dates(text: str) -> None:
    found = iso8601(text)
    assert found is None or abs(found) <= 8.64e12


LONG = {
    "digits": lambda n: "9" * n,
    "a fraction": lambda n: "2020-01-01T00:00:00." + "1" * n + "Z",
    "letters": lambda n: "a" * n,
    "blanks": lambda n: " " * n + "2020",
    "words": lambda n: "a " * (n // 2),
    "colons": lambda n: "1:" * (n // 2),
    "signs": lambda n: "-" * n,
    "open": lambda n: "(" * n,
    "closed": lambda n: ")" * n,
    "comments": lambda n: "()" * (n // 2),
    "comments in comments": lambda n: "(" * (n // 2) + ")" * (n // 2) + "2020",
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_text_does_not_stall_the_reader_of_dates(name: str) -> None:
    assert_linear(lambda data: iso8601(data.decode()), lambda size: LONG[name](size).encode())


@given(st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59)))
def test_the_calendar_is_right(moment: datetime.datetime) -> None:
    second = moment.replace(microsecond=0, tzinfo=datetime.UTC)
    assert canonical(second.timestamp()) == second.strftime("%Y-%m-%dT%H:%M:%S.000Z").rjust(CANONICAL_LENGTH, "0")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_timestamp_keeps_its_length(now: float) -> None:
    text = canonical(now)
    assert len(text) == CANONICAL_LENGTH
    assert is_canonical(text)


@given(st.floats(-62135596799, 253402300799))
def test_a_timestamp_is_read_back(now: float) -> None:
    found = iso8601(canonical(now))
    assert found is not None
    assert -1e-6 <= now - found < 0.0011
    again = rfc3339(rfc3339_text(now))
    assert again is not None
    assert abs(again[0] - now) <= 1e-9 + math.ulp(now)


@pytest.mark.parametrize(
    ("text", "at", "written"),
    [
        ("2025-10-25T12:00:00Z", 1761393600.0, "2025-10-25T12:00:00Z"),
        ("2025-10-25T12:00:00.500Z", 1761393600.5, "2025-10-25T12:00:00.5Z"),
        ("2025-10-25T12:00:00,5Z", 1761393600.5, "2025-10-25T12:00:00.5Z"),
        ("2025-10-25T12:00:00.1234567899Z", 1761393600.123456789, "2025-10-25T12:00:00.123456789Z"),
        ("2025-10-25T1:00:00Z", 1761354000.0, "2025-10-25T01:00:00Z"),
        ("2025-10-25T12:00:00+02:30", 1761384600.0, "2025-10-25T12:00:00+02:30"),
        ("2025-10-25T12:00:00-02:30", 1761402600.0, "2025-10-25T12:00:00-02:30"),
        ("2025-10-25T12:00:00-00:00", 1761393600.0, "2025-10-25T12:00:00Z"),
        ("2024-02-29T00:00:00Z", 1709164800.0, "2024-02-29T00:00:00Z"),
    ],
)
def test_a_time_is_read_as_go_does(text: str, at: float, written: str) -> None:
    assert rfc3339(text) == (at, written)


@pytest.mark.parametrize(
    "text",
    [
        *("", "2025-10-25", "2025-10-25T12:00:00", "2025-10-25t12:00:00Z", "2025-10-25T12:00:00z", "x"),
        *("2025-10-25 12:00:00Z", "2025-10-25T12:00:60Z", "2025-10-25T24:00:00Z", "2025-10-25T12:60:00Z"),
        *(
            "2025-10-25T12:0:00Z",
            "2025-10-25T12:00:0Z",
            "2025-10-25T12:00Z",
            "2025-10-25T12:00:00.Z",
            "2025-1-25T12:00:00Z",
        ),
        *(
            "2025-02-29T12:00:00Z",
            "1900-02-29T12:00:00Z",
            "2025-04-31T12:00:00Z",
            "2025-00-25T12:00:00Z",
            "2025-13-25T12:00:00Z",
        ),
        *("2025-10-00T12:00:00Z", "2025-10-25T12:00:00+24:00", "2025-10-25T12:00:00+02:60", "2025-10-25T12:00:00+0200"),
        *(
            "0000-02-29T00:00:00Z",
            "10000-01-01T00:00:00Z",
            " 2025-10-25T12:00:00Z",
            "2025-10-25T12:00:00Z\n",
            "\u0662025-10-25T12:00:00Z",
        ),
    ],
)
def test_a_time_that_go_refuses_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"RFC 3339|no such"):
        rfc3339(text)


def test_gos_zero_time_counts_as_none() -> None:
    assert rfc3339("0001-01-01T00:00:00Z") is None
    assert rfc3339("0001-01-01T01:00:00.000+01:00") is None
    assert rfc3339("0001-01-01T00:00:00.000000001Z") is not None


def test_a_time_without_a_local_form_is_none(zone: Callable[[str], None]) -> None:
    zone("JST-9")
    assert iso8601("0001-01-01T00:00") is None
