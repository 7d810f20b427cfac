"""Moments as the JSON protocols write them: Go's RFC 3339, and the canonical UTC form of JavaScript.

The calendar is the proleptic Gregorian one. `date_text.py` reads the other texts that JavaScript accepts as dates.
"""

from __future__ import annotations

import math

DAY = 86400
_ZERO = -62135596800
"""Go's zero time, 0001-01-01T00:00:00Z, which means "none"."""
_LAST = 253402300799
"""The last second with a four-digit year."""
CANONICAL_LENGTH = len("2020-01-01T00:00:00.000Z")


def days(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 to that day; a day beyond the end of the month is one of the next."""
    years, shifted = divmod(year * 12 + month - 3, 12)  # years begin with March, so that the leap day is the last
    return years * 365 + years // 4 - years // 100 + years // 400 + (153 * shifted + 2) // 5 + day - 1 - 719468


def civil(day: int) -> tuple[int, int, int]:
    """Year, month and day of the month of that day."""
    era, in_era = divmod(day + 719468, 146097)
    of_era = (in_era - in_era // 1460 + in_era // 36524 - in_era // 146096) // 365
    in_year = in_era - (of_era * 365 + of_era // 4 - of_era // 100)
    shifted = (5 * in_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return era * 400 + of_era + (month <= 2), month, in_year - (153 * shifted + 2) // 5 + 1


def utc(second: int) -> str:
    """`2020-01-01T00:00:00` for that second since the epoch; years are from 0 to 9999."""
    day, rest = divmod(min(max(second, days(0, 1, 1) * DAY), _LAST), DAY)
    year, month, of_month = civil(day)
    return f"{year:04}-{month:02}-{of_month:02}T{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def canonical(now: float) -> str:
    """As JavaScript's `toISOString`: UTC, milliseconds, `Z`; always CANONICAL_LENGTH characters."""
    second, nanosecond = _split(now)
    return f"{utc(second)}.{nanosecond // 10**6:03}Z"


def is_canonical(text: str) -> bool:
    """Whether the text is what `canonical` writes."""
    import re

    return re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text, re.ASCII) is not None


def rfc3339_text(now: float) -> str:
    """As Go's RFC3339Nano in UTC: nanoseconds without trailing zeros."""
    second, nanosecond = _split(now)
    return f"{utc(second)}{_fraction(nanosecond)}Z"


def rfc3339(text: str) -> tuple[float, str] | None:
    """Seconds since the epoch, and the text as Go would write it; None for Go's zero time. ValueError if malformed.

    As liberal as Go: an hour of one digit, a comma before the fraction. Digits beyond nanoseconds are ignored.
    """
    import re

    pattern = r"(\d{4})-(\d\d)-(\d\d)T(\d\d?):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))"
    found = re.fullmatch(pattern, text, re.ASCII)
    if found is None:
        raise ValueError(f"not an RFC 3339 time: {text[:40]!r}")
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    fraction, sign, ahead, minutes = found.groups()[6:]
    nanoseconds = int((fraction or "")[:9].ljust(9, "0"))
    away = int(ahead or 0) * 3600 + int(minutes or 0) * 60
    if not 1 <= month <= 12 or not 1 <= day <= days(year, month + 1, 1) - days(year, month, 1):
        raise ValueError(f"there is no such day: {text[:40]!r}")
    if hour > 23 or minute > 59 or second > 59 or int(ahead or 0) > 23 or int(minutes or 0) > 59:
        raise ValueError(f"there is no such time: {text[:40]!r}")
    local = days(year, month, day) * DAY + hour * 3600 + minute * 60 + second
    at = local + away if sign == "-" else local - away
    if (at, nanoseconds) == (_ZERO, 0):
        return None
    zone = f"{sign}{ahead}:{minutes}" if away else "Z"
    return at + nanoseconds / 1e9, f"{utc(local)}{_fraction(nanoseconds)}{zone}"


def _split(now: float) -> tuple[int, int]:
    second = math.floor(now)
    return second, min(int((now - second) * 1e9), 999_999_999)  # the difference may round up to a whole second


def _fraction(nanoseconds: int) -> str:
    return f".{nanoseconds:09}".rstrip("0") if nanoseconds else ""
