"""What JavaScript's `Date.parse` makes of a text: how fs-safe reads `createdAt`.

The standard only fixes the ISO 8601 forms. What else is read is up to the engine; this is what V8 (Node.js) does, in
the same two steps. The text becomes tokens: numbers, words, signs. An ISO reader consumes them as far as they fit; from
there on a liberal reader takes numbers by what stands around them, so that "Jan 1 2020", RFC 2822, "1/2/2020 3:04 PM"
and many others are dates too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from .moments import DAY, days

_MAX_TOKENS = 200
"""No date has more; whoever writes longer texts is not read."""
_MAX_MILLISECONDS = 8_640_000_000_000_000
_MAX_LOCAL = _MAX_MILLISECONDS + 10 * DAY * 1000
_SIGNIFICANT = 9
_BLANKS = "\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000\ufeff"
_TOKEN = rf"(?P<number>[0-9]+)|(?P<blank>[{_BLANKS}]+)|(?P<word>[^\x00-@{_BLANKS}]+)|(?P<sign>.)"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ZONES = {"ut": 0, "utc": 0, "z": 0, "gmt": 0, "cdt": -5, "cst": -6, "edt": -4, "est": -5} | {
    "mdt": -6, "mst": -7, "pdt": -7, "pst": -8}  # fmt: skip


class _Token:
    __slots__ = ("kind", "length", "text")

    def __init__(self, kind: str, text: str, length: int) -> None:
        self.kind = kind
        self.text = text
        self.length = length

    @property
    def number(self) -> int:
        """Its value; digits after the ninth do not count."""
        return int(self.text.lstrip("0")[:_SIGNIFICANT] or "0")

    def is_fixed(self, length: int, low: int = 0, high: int = 999_999) -> bool:
        return self.kind == "number" and self.length == length and low <= self.number <= high

    def is_sign(self, signs: str = "+-") -> bool:
        return self.kind == "sign" and self.text in signs

    @property
    def is_z(self) -> bool:
        return self.kind == "word" and self.text.lower() == "z"

    @property
    def milliseconds(self) -> int:
        digits = self.text.lstrip("0")[:_SIGNIFICANT]
        if self.length <= 3:
            return int(self.text.ljust(3, "0"))
        return int(digits or "0") // int("1".ljust(min(self.length, _SIGNIFICANT) - 2, "0"))


_END = _Token("end", "", 0)


class _NoDate(Exception):
    pass


def date_parse(text: str) -> float | None:
    """Seconds since the epoch, to the millisecond; None for what is no date. Without a zone, a time is a local one."""
    try:
        reading = _Reading(text.partition("\0")[0])
        rest = reading.read_iso()
        reading.read_liberally(rest)
        return reading.moment()
    except _NoDate:
        return None


def _tokens(text: str) -> Iterator[_Token]:
    """Comments in parentheses are one token, closed or not."""
    import re

    scan: Callable[[str, int], re.Match[str] | None] = re.compile(_TOKEN, re.DOTALL).match
    at = 0
    for _ in range(_MAX_TOKENS):
        found = scan(text, at)
        if found is None:
            return
        kind, at = str(found.lastgroup), found.end()
        if found.group() == "(":
            at = _end_of_comment(text, at)
            yield _Token("comment", "", 0)
        else:
            # A longer text would change nothing, but be read again and again.
            yield _Token(kind, found.group() if kind == "number" else found.group()[:4], at - found.start())
    raise _NoDate


def _end_of_comment(text: str, at: int) -> int:
    import re

    depth = 1
    for number, parenthesis in enumerate(re.compile("[()]").finditer(text, at)):
        depth += 1 if parenthesis.group() == "(" else -1
        if not depth:
            return parenthesis.end()
        if number > _MAX_TOKENS:
            raise _NoDate
    return len(text)


class _Reading:
    """One text on its way to a moment."""

    def __init__(self, text: str) -> None:
        self._source = _tokens(text)
        self._next = next(self._source, _END)
        self._day: list[int] = []
        self._month: int | None = None
        self._is_iso = False
        self._time: list[int] = []
        self._half: int | None = None
        self._sign: int | None = None
        self._hour: int | None = None
        self._minute: int | None = None

    def _take(self) -> _Token:
        token, self._next = self._next, next(self._source, _END)
        return token

    def _skip(self, sign: str) -> bool:
        if self._next.is_sign(sign):
            self._take()
            return True
        return False

    def _zone(self, sign: int, hour: int, minute: int | None) -> None:
        self._sign, self._hour, self._minute = sign, hour, minute

    def _fixed(self, low: int, high: int) -> int:
        if not self._next.is_fixed(2, low, high):
            raise _NoDate
        return self._take().number

    # -- ISO 8601 ------------------------------------------------------------------------------------------------------

    def read_iso(self) -> _Token:
        """The token at which the text is no ISO date any more, or the end."""
        if self._next.is_sign():
            sign = self._take()
            if not self._next.is_fixed(6):
                return sign
            year = self._take().number * (-1 if sign.text == "-" else 1)
            if not year and sign.text == "-":
                return sign
            self._day.append(year)
        elif self._next.is_fixed(4):
            self._day.append(self._take().number)
        else:
            return self._take()
        for highest in (12, 31):
            if not self._skip("-"):
                break
            if not self._next.is_fixed(2, 1, highest):
                return self._take()
            self._day.append(self._take().number)
        if self._next.kind == "word" and self._next.text.lower() == "t":
            self._take()
            self._read_iso_time()
        elif self._next is not _END:
            return self._take()
        if not self._time:
            self._zone(1, 0, 0)  # a date alone is one of UTC
        self._is_iso = True
        return _END

    def _read_iso_time(self) -> None:
        hour = self._fixed(0, 24)
        most = 0 if hour == 24 else 59
        if not self._skip(":"):
            raise _NoDate
        self._time = [hour, self._fixed(0, most)]
        if self._skip(":"):
            self._time.append(self._fixed(0, most))
            if self._skip("."):
                if self._next.kind != "number" or (hour == 24 and self._next.number):
                    raise _NoDate
                self._time.append(self._take().milliseconds)
        if self._next.is_z:
            self._take()
            self._zone(1, 0, 0)
        elif self._next.is_sign():
            sign = 1 if self._take().text == "+" else -1
            if self._next.is_fixed(4):
                hour, minute = divmod(self._take().number, 100)
                if hour > 23 or minute > 59:
                    raise _NoDate
            else:
                hour = self._fixed(0, 23)
                if not self._skip(":"):
                    raise _NoDate
                minute = self._fixed(0, 59)
            self._zone(sign, hour, minute)
        if self._next is not _END:
            raise _NoDate

    # -- everything else -----------------------------------------------------------------------------------------------

    def read_liberally(self, token: _Token) -> None:
        """The rest, from `token` on."""
        numbers = bool(self._day)
        while token is not _END:
            if token.kind == "number":
                numbers = True
                self._read_number(token)
            elif token.kind == "word":
                self._read_word(token, numbers=numbers)
            elif token.is_sign() and (self._time or (self._hour, self._minute) == (0, 0)):
                numbers = True
                self._read_offset(token)
            elif token.is_sign("+-)") and numbers:
                raise _NoDate
            token = self._take()

    def _read_number(self, token: _Token) -> None:
        number, place = token.number, len(self._time)
        is_next = (place in (1, 2) and number <= 59) or (place == 3 and number <= 999)
        if self._skip(":"):
            if self._skip(":"):
                if self._time:
                    raise _NoDate
                self._time = [number, 0]
            elif place < 4:
                self._time.append(number)
                self._skip(".")
            else:
                raise _NoDate
        elif self._skip(".") and is_next:
            if self._next.kind != "number":
                raise _NoDate
            self._finish_time([number, self._take().milliseconds])
        elif self._hour is not None and self._minute is None and number <= 59:
            self._minute = number
        elif is_next:
            self._finish_time([number])
            if not (self._next.kind in ("end", "blank") or self._next.is_z or self._next.is_sign()):
                raise _NoDate
        elif len(self._day) < 3:
            self._day.append(number)
            self._skip("-")
        else:
            raise _NoDate

    def _finish_time(self, numbers: list[int]) -> None:
        self._time = [*self._time, *numbers, 0, 0, 0][:4]

    def _read_word(self, token: _Token, *, numbers: bool) -> None:
        word = token.text.lower()
        if word in ("am", "pm") and self._time:
            self._half = 12 if word == "pm" else 0
        elif word[:3] in _MONTHS:
            self._month = _MONTHS.index(word[:3]) + 1
            self._skip("-")
        elif word in _ZONES and numbers:
            self._zone(-1 if _ZONES[word] < 0 else 1, abs(_ZONES[word]), 0)
        elif numbers or self._next.kind == "number":
            raise _NoDate

    def _read_offset(self, token: _Token) -> None:
        sign = -1 if token.text == "-" else 1
        number, length = 0, 0
        if self._next.kind == "number":
            digits = self._take()
            number, length = digits.number, digits.length
        if self._next.is_sign(":"):
            self._zone(sign, number, None)
        elif length in (1, 2):
            self._zone(sign, number, 0)
        elif length in (3, 4):
            self._zone(sign, *divmod(number, 100))
        else:
            raise _NoDate

    # -- the moment ----------------------------------------------------------------------------------------------------

    def moment(self) -> float | None:
        local = (days(*self._date()) * DAY + self._clock()) * 1000 + (self._time[3] if len(self._time) > 3 else 0)
        if self._sign is not None:
            away = ((self._hour or 0) * 3600 + (self._minute or 0) * 60) % 2**32
            if away >= 2**31:
                raise _NoDate
            local -= self._sign * away * 1000
        elif abs(local) <= _MAX_LOCAL:
            local -= _offset(local // 1000) * 1000
        return local / 1000 if abs(local) <= _MAX_MILLISECONDS else None

    def _date(self) -> tuple[int, int, int]:
        if not self._day:
            raise _NoDate
        first, second, third = [*self._day, 1, 1][:3]
        named = self._month
        if named is not None:
            year, month, day = (second, named, first) if 1 <= first <= 31 else (first, named, second)
        elif self._is_iso or not 1 <= first <= 31:
            year, month, day = first, second, third
        else:
            year, month, day = third, first, second
        if not self._is_iso and 0 <= year <= 99:
            year += 2000 if year < 50 else 1900
        if not (1 <= month <= 12 and 1 <= day <= 31):
            raise _NoDate
        return year, month, day

    def _clock(self) -> int:
        hour, minute, second, fraction = [*self._time, 0, 0, 0, 0][:4]
        if self._half is not None:
            if hour > 12:
                raise _NoDate
            hour = hour % 12 + self._half
        late = hour > 23 or minute > 59 or second > 59 or fraction > 999
        if late and (hour, minute, second, fraction) != (24, 0, 0, 0):
            raise _NoDate
        return hour * 3600 + minute * 60 + second


def _offset(local: int) -> int:
    """Seconds east of UTC at that local time. Where clocks are put forward or back: as before that."""
    try:
        before, after = (time.localtime(local + away).tm_gmtoff for away in (-DAY, DAY))
        if time.localtime(local - before).tm_gmtoff == before:
            return before
        return after if time.localtime(local - after).tm_gmtoff == after else before
    except (OverflowError, ValueError, OSError):
        return 0
