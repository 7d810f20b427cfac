"""Times as the JSON protocols write them: RFC 3339 as Go has it, and ISO 8601 as JavaScript has it.

Years are from 1 to 9999. JavaScript accepts many other dates ("Jan 1 2020", "1/2/2020 3:04 PM"); none of them is read
here.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO = -62135596800
"""Go's zero time, 0001-01-01T00:00:00Z, which means "none"; also the first second that can be written."""
_LAST = 253402300799
"""The last second with a year of four digits."""
CANONICAL_LENGTH = len("2020-01-01T00:00:00.000Z")
_CANONICAL = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
_RFC3339 = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d?):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII)
_ISO8601 = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d))?)?"
    r"(?:T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?(?:(Z)|([+-])(\d\d):?(\d\d))?)?",
    re.ASCII,
)


def canonical(now: float) -> str:
    """The time as JavaScript's `toISOString` writes it: UTC, milliseconds, `Z`; always CANONICAL_LENGTH characters."""
    second, nanosecond = _split(now)
    return f"{_utc(second)}.{nanosecond // 10**6:03}Z"


def is_canonical(text: str) -> bool:
    """Whether the text has the form that `canonical` writes."""
    return _CANONICAL.fullmatch(text) is not None


def iso8601(text: str) -> float | None:
    """Seconds since the epoch, to the millisecond, of a date as ECMAScript defines it; None for any other text.

    A date alone is in UTC, a time without a zone is local.
    """
    found = _ISO8601.fullmatch(text)
    if found is None:
        return None
    *numbers, fraction, utc, sign, ahead, minutes = found.groups()
    year, month, day, hour, minute, second = (int(part or least) for part, least in zip(numbers, "111000", strict=True))
    thousandths = int((fraction or "")[:3].ljust(3, "0"))
    try:
        local = datetime(year, month, day, hour, minute, second, thousandths * 1000)
        if numbers[3] is not None and utc is None and sign is None:
            return local.timestamp()
        zone = timezone(_away(sign, ahead, minutes)) if sign else UTC
        return (local.replace(tzinfo=zone) - _EPOCH) // timedelta(milliseconds=1) / 1000
    except (ValueError, OverflowError, OSError):
        return None  # no such day, or one that has no local time here


def rfc3339_text(now: float) -> str:
    """The time as Go's RFC3339Nano writes it in UTC: nanoseconds without trailing zeros."""
    second, nanosecond = _split(now)
    return f"{_utc(second)}{_fraction(nanosecond)}Z"


def rfc3339(text: str) -> tuple[float, str] | None:
    """Seconds since the epoch, and the text as Go would write it again; None for Go's zero time. ValueError otherwise.

    As liberal as Go: an hour of one digit, a comma before the fraction. Digits beyond nanoseconds do not count.
    """
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError(f"not an RFC 3339 time: {text[:40]!r}")
    *numbers, fraction, sign, ahead, minutes = found.groups()
    nanoseconds = int((fraction or "")[:9].ljust(9, "0"))
    try:
        year, month, day, hour, minute, second = map(int, numbers)
        local = (datetime(year, month, day, hour, minute, second, tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)
        away = _away(sign, ahead, minutes) // timedelta(seconds=1) if sign else 0
    except ValueError:
        raise ValueError(f"there is no such time: {text[:40]!r}") from None
    if (local - away, nanoseconds) == (_ZERO, 0):
        return None
    zone = f"{sign}{ahead}:{minutes}" if away else "Z"
    return local - away + nanoseconds / 1e9, f"{_utc(local)}{_fraction(nanoseconds)}{zone}"


def _away(sign: str, hours: str, minutes: str) -> timedelta:
    """The offset of a zone from UTC."""
    if int(hours) > 23 or int(minutes) > 59:
        raise ValueError("there is no such zone")
    away = timedelta(hours=int(hours), minutes=int(minutes))
    return -away if sign == "-" else away


def _utc(second: int) -> str:
    """That second since the epoch as `2020-01-01T00:00:00`."""
    return (_EPOCH + timedelta(seconds=min(max(second, _ZERO), _LAST))).isoformat()[:19]


def _split(now: float) -> tuple[int, int]:
    second = math.floor(now)
    return second, min(int((now - second) * 1e9), 999_999_999)  # less than nothing is rounded up to a whole second


def _fraction(nanoseconds: int) -> str:
    return f".{nanoseconds:09}".rstrip("0") if nanoseconds else ""
