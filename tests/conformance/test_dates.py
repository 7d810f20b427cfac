"""Dates in records: what V8 and Go were seen to make of many texts, and the calendar behind it."""

from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.support import assert_linear
from holdfast.protocols import date_text
from holdfast.protocols.date_text import date_parse
from holdfast.protocols.moments import CANONICAL_LENGTH, canonical, civil, days, is_canonical, rfc3339, rfc3339_text

SEEN = json.loads(Path(__file__).with_name("date_parse.json").read_text())
"""[text, milliseconds or null], as Node.js 20 says, in two time zones."""


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
    wrong = []
    for text, milliseconds in SEEN[place]:
        found = date_parse(text)
        if (None if found is None else round(found * 1000)) != milliseconds:
            wrong.append((text, milliseconds, found))
    assert not wrong


@given(st.text())
def test_no_text_crashes_the_reader_of_dates(text: str) -> None:
    found = date_parse(text)
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
    assert_linear(lambda data: date_parse(data.decode()), lambda size: LONG[name](size).encode())


@given(st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59)))
def test_the_calendar_is_right(moment: datetime.datetime) -> None:
    day = moment.date().toordinal() - datetime.date(1970, 1, 1).toordinal()
    assert days(moment.year, moment.month, moment.day) == day
    assert civil(day) == (moment.year, moment.month, moment.day)
    second = moment.replace(microsecond=0, tzinfo=datetime.UTC)
    assert canonical(second.timestamp()) == second.strftime("%Y-%m-%dT%H:%M:%S.000Z").rjust(CANONICAL_LENGTH, "0")


@given(st.integers(-(10**8), 10**8))
def test_a_day_comes_back(day: int) -> None:
    assert days(*civil(day)) == day


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_timestamp_keeps_its_length(now: float) -> None:
    text = canonical(now)
    assert len(text) == CANONICAL_LENGTH
    assert is_canonical(text)


@given(st.floats(-62135596799, 253402300799))
def test_a_timestamp_comes_back(now: float) -> None:
    found = date_parse(canonical(now))
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
        ("0000-02-29T00:00:00Z", -62162121600.0, "0000-02-29T00:00:00Z"),
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
        *("10000-01-01T00:00:00Z", " 2025-10-25T12:00:00Z", "2025-10-25T12:00:00Z\n", "\u0662025-10-25T12:00:00Z"),
    ],
)
def test_what_go_refuses_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"RFC 3339|no such"):
        rfc3339(text)


def test_gos_zero_time_counts_as_none() -> None:
    assert rfc3339("0001-01-01T00:00:00Z") is None
    assert rfc3339("0001-01-01T01:00:00.000+01:00") is None
    assert rfc3339("0001-01-01T00:00:00.000000001Z") is not None


def test_a_moment_without_a_local_time_is_taken_for_one_of_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system whose clock ends in 2038: it is taken for one of UTC."""

    def unknown(_seconds: float) -> None:
        raise OverflowError("timestamp out of range for platform time_t")

    monkeypatch.setattr(date_text.time, "localtime", unknown)
    assert date_parse("2040-01-01T00:00") == date_parse("2040-01-01T00:00Z") == 2208988800.0
