"""The `sema` protocol: `pid=`, `timestamp=` and `tag=` lines; a lock is stale when its timestamp is old.

Grammar (reading is liberal): lines end at LF only, so that VT, FF, NEL or U+2028 inside a tag stay data; blanks and CR
at the ends of a line are dropped; the first `=` splits; key and value are trimmed; unknown keys are ignored; the last
duplicate wins, and a bad one voids the field. Source: Protocol Specification 1.0, "Lock File Format".

A record that can be read may not always be removed. A file of data may have two such lines, too (`cfg.ini`): so a
record without our marker is `mixed` if there is a line without `=`, one whose key is no plain word, or more than a few
unknown keys.

The `semats` protocol: the records of `sema` in a private file; a lock is stale if it is old *and* its process is dead.

Others publish by a look and a rename: `<lock>.<pid>.<16 hex digits>.tmp` beside the lock file, a look that finds no
lock file, and the rename. Source: Protocol Specification, File-Based Semaphore (TS).
"""

from __future__ import annotations

from ..errors import MalformedRecord
from ..model import Marker, Record
from .base import Protocol, check_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..liveness import Liveness
    from ..model import Identity

MAX_PID = 2**32 - 1
MAX_TIMESTAMP = 2**64 - 1
MARKER_KEY = "holdfast"
FLOCK_SIGNATURE = b"protocol=flock\n"
"""The first line of a record of `flock`, which is one of `sema` otherwise (flock.py). Its file is never removed."""
MAX_UNKNOWN_KEYS = 8
"""Maximum number of unknown keys, for future writers; a file with more is a file of data."""
_JOINERS = str.maketrans("", "", "_.-")
_KNOWN = frozenset({"pid", "timestamp", "tag", MARKER_KEY})
# int() refuses more than 4300 digits by itself; leading zeros are legal, so the bound is on the other digits.
_MAX_DIGITS = 20
_TOKEN_DIGITS = 16
_MAX_RIVAL = 2**31 - 1
_HEX = frozenset("0123456789abcdef")


class Sema(Protocol):
    name = "sema"
    mode = 0o644
    stale_after = 3600.0
    has_rivals = True

    def rival(self, name: str, lock_name: str) -> int | None:
        if not (name.startswith(lock_name + ".") and name.endswith(".tmp")):
            return None
        digits, _, token = name[len(lock_name) + 1 : -len(".tmp")].partition(".")
        if len(token) != _TOKEN_DIGITS or not _HEX.issuperset(token):
            return None
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= len(str(_MAX_RIVAL))):
            return None
        return int(digits) if 0 < int(digits) <= _MAX_RIVAL else None

    def decode(self, data: bytes) -> Record:
        if data.startswith(FLOCK_SIGNATURE) and not self.persistent:
            raise MalformedRecord("the record is one of the protocol flock", protocol=self.name)
        try:
            text = _decoded(data)
            fields = _fields(text)
            pid = _integer(fields.get("pid"), "pid", MAX_PID)
            timestamp = _integer(fields.get("timestamp"), "timestamp", MAX_TIMESTAMP)
        except ValueError as error:
            raise MalformedRecord(str(error), protocol=self.name) from None
        tag = fields.get("tag")
        marked = fields.get(MARKER_KEY)
        marker = None if marked is None else Marker.decode(marked, pid)
        return Record(
            protocol=self.name,
            fields={"pid": pid, "timestamp": timestamp, "tag": tag},
            pid=pid,
            created=float(timestamp),
            tag=tag,
            host=marker.identity.host if marker else None,
            marker=marker,
            marked=marked is not None,
            refreshed=marked is not None,
            mixed=marker is None and _is_mixed(text, fields),
        )

    def encode(self, record: Record) -> bytes:
        pid, timestamp, tag = (record.fields.get(key) for key in ("pid", "timestamp", "tag"))
        if not isinstance(pid, int) or not 0 <= pid <= MAX_PID:
            raise ValueError(f"a sema record cannot carry pid {pid!r}")
        if not isinstance(timestamp, int) or not 0 <= timestamp <= MAX_TIMESTAMP:
            raise ValueError(f"a sema record cannot carry timestamp {timestamp!r}")
        if tag is not None and (not isinstance(tag, str) or tag != tag.strip() or "\n" in tag):
            raise ValueError("a sema tag is one line without blanks at its ends")
        return lines(pid, timestamp, tag, record.marker.encode() if record.marker else None)

    def compose(self, who: Identity, now: float, tag: str | None, marker: str | None, more: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        return lines(who.pid, _digits(now), tag, marker)

    def is_stale(self, record: Record, liveness: Liveness, now: float, stale_after: float) -> bool:  # noqa: ARG002
        # Whole seconds, strictly greater: 3600 s is fresh, 3601 s is stale; a timestamp in the future has no age.
        return record.created is not None and int(now) - record.created > stale_after

    def stale_at(self, record: Record, stale_after: float) -> float | None:
        return None if record.created is None else record.created + stale_after + 1

    def refreshed(self, data: bytes, now: float) -> tuple[int, bytes] | None:
        start = data.find(b"timestamp=") + len(b"timestamp=")
        end = data.find(b"\n", start)
        digits = _digits(now).encode()
        return (start, digits) if end - start == len(digits) else None


def _digits(now: float) -> str:
    """The timestamp of a hold. Ten digits also before September 2001: a clock that begins at the epoch will be set, and
    then a heartbeat refreshes it."""
    return f"{int(now) if now > 0 else 0:010}"


def lines(pid: int, timestamp: int | str, tag: str | None, marker: str | None) -> bytes:
    """The lines of a record."""
    # The tag may be long, so it comes last: a refresh rewrites digits within the first page, and a takeover that is
    # killed between two pages of its one write leaves a record that still names its process.
    text = f"pid={pid}\ntimestamp={timestamp}\n"
    if marker is not None:
        text += f"{MARKER_KEY}={marker}\n"
    if tag is not None:
        text += f"tag={tag}\n"
    return text.encode()


def _decoded(data: bytes) -> str:
    check_size(data)
    try:
        # Not "utf-8-sig": that codec is imported at first use, and a child forked during the import would hang on it.
        return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"the record is not UTF-8 (byte {error.start})") from None


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        key, found, value = line.partition("=")
        if found:
            fields[key.strip()] = value.strip()
    return fields


def _is_mixed(text: str, fields: dict[str, str]) -> bool:
    """Whether the file has more than a record. A killed takeover may leave part of an older tag, but has a marker."""
    if len(fields.keys() - _KNOWN) > MAX_UNKNOWN_KEYS or not all(map(_is_word, fields)):
        return True
    return any("=" not in line and line.strip("\0 \t\r") for line in text.split("\n"))


def _is_word(key: str) -> bool:
    return key.isascii() and key[:1].isalpha() and key.translate(_JOINERS).isalnum()


def _integer(text: str | None, name: str, maximum: int) -> int:
    if text is None:
        raise ValueError(f"the record has no {name}")
    digits = text.removeprefix("+")
    if digits.isascii() and digits.isdecimal():
        significant = digits.lstrip("0") or "0"
        if len(significant) <= _MAX_DIGITS and int(significant) <= maximum:
            return int(significant)
    raise ValueError(f"the record's {name} is not a number from 0 to {maximum}: {text[:40]!r}")


class Semats(Sema):
    name = "semats"
    mode = 0o600
    resolves = "path"
    refuses_parent_components = True

    def is_stale(self, record: Record, liveness: Liveness, now: float, stale_after: float) -> bool:
        from .. import liveness as of_holders

        return liveness is of_holders.Liveness.DEAD and super().is_stale(record, liveness, now, stale_after)
