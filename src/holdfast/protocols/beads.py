"""The `beads` protocol: `.exclusive-lock` in a directory, by which a tool keeps the daemon of beads off its database.

Beads had it up to 0.49; version 0.50 removed it.

Reading follows Go's encoding/json: member names in any case, the last duplicate wins, null counts as missing, other
members are ignored. Source: Exclusive Lock Protocol, beads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..errors import MalformedRecord
from ..liveness import Liveness
from ..model import Identity, Marker, Record
from . import jsontext
from .base import MAX_TAG_CHARACTERS, Protocol, check_size
from .dates import rfc3339, rfc3339_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HOLDER = "holdfast"
MAX_PID = 2**63 - 1
_MARKER, _TAG = "holdfast", "tag"
_NO_FIELDS: Mapping[str, Any] = {"holder": "", "pid": 0, "hostname": "", "started_at": "", "version": ""}
_TEXTS = [name for name in _NO_FIELDS if name != "pid"]
_GO_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


class Beads(Protocol):
    name = "beads"
    mode = 0o644
    stale_after = math.inf
    has_age = False
    marker_key = b'"holdfast": "'
    options = frozenset({"holder", "version"})
    suffix = "/.exclusive-lock"

    def check_options(self, more: Mapping[str, Any]) -> None:
        for name, value in more.items():
            if not isinstance(value, str):
                raise TypeError(f"{name} must be a str, not {value!r}")
            _require_unicode(name, value)
            if len(value) > MAX_TAG_CHARACTERS:
                raise ValueError(f"{name} has more than {MAX_TAG_CHARACTERS} characters")
        if more.get("holder") == "":
            raise ValueError("holder is empty; name the tool that holds the lock")

    def decode(self, data: bytes) -> Record:
        try:
            fields, own = _fields(_members(data))
        except ValueError as error:
            raise MalformedRecord(f"malformed lock file: {_reason(error, data)}", protocol=self.name) from None
        try:
            created = _validated(fields)
        except ValueError as error:
            raise MalformedRecord(f"invalid lock file: {error}", protocol=self.name) from None
        text, tag = own.get(_MARKER), own.get(_TAG)
        return Record(
            protocol=self.name,
            fields=fields,
            pid=fields["pid"],
            created=created,
            tag=tag if isinstance(tag, str) else fields["holder"],
            host=fields["hostname"],
            marker=Marker.decode(text, fields["pid"]) if isinstance(text, str) else None,
            marked=_MARKER in own,
        )

    def encode(self, record: Record) -> bytes:
        fields = {**_NO_FIELDS, **record.fields}
        pid = fields["pid"]
        if isinstance(pid, bool) or not isinstance(pid, int) or pid > MAX_PID:
            raise ValueError(f"a beads record cannot carry pid {pid!r}")
        for name in _TEXTS:
            if not isinstance(fields[name], str):
                raise ValueError(f"a beads record cannot carry {name} {fields[name]!r}")
            _require_unicode(name, fields[name])
        try:
            _validated(fields)
        except ValueError as error:
            raise ValueError(f"no beads record: {error}") from None
        tag = None if record.tag in (None, fields["holder"]) else record.tag
        _require_unicode("tag", tag or "")
        data = _text(fields, tag, record.marker.encode() if record.marker else None)
        check_size(data)
        return data

    def compose(self, who: Identity, now: float, tag: str | None, marker: str | None, more: Mapping[str, Any]) -> bytes:
        fields = {
            "holder": more.get("holder", HOLDER),
            "pid": who.pid,
            "hostname": who.host,
            "started_at": rfc3339_text(now),
            "version": more.get("version", ""),
        }
        return _text(fields, tag, marker)

    def is_stale(self, record: Record, liveness: Liveness, now: float, stale_after: float) -> bool:  # noqa: ARG002
        # Another host's holder is never DEAD: inspect.py says UNKNOWN if `hostname`, in any case, is not this host's.
        return liveness is Liveness.DEAD

    def stale_at(self, record: Record, stale_after: float) -> float | None:  # noqa: ARG002
        return None

    def refreshed(self, data: bytes, now: float) -> tuple[int, bytes] | None:  # noqa: ARG002
        return None


def _text(fields: Mapping[str, Any], tag: str | None, marker: str | None) -> bytes:
    """The text of Go's MarshalIndent with two spaces: no final newline; what HTML or JavaScript reserve is escaped."""
    import json

    members = {name: fields[name] for name in _NO_FIELDS}
    if tag is not None:
        members[_TAG] = tag
    if marker is not None:
        members[_MARKER] = marker
    text = json.dumps(members, ensure_ascii=False, indent=2).translate(_GO_ESCAPES)
    return text.encode("utf-8")


class _Object(tuple[tuple[str, object], ...]):
    """The members of a JSON object, as opposed to an array."""

    __slots__ = ()


def _members(data: bytes) -> _Object:
    check_size(data)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        # Each bad byte by itself, as Go counts them.
        text = _without_surrogates(data.decode("utf-8", "surrogateescape"))
    found = jsontext.parse(text, _Object)
    if found is None:
        return _Object()  # in Go, null leaves everything unchanged
    if not isinstance(found, _Object):
        raise ValueError("it is not a JSON object")
    return found


def _fields(members: _Object) -> tuple[dict[str, Any], dict[str, object]]:
    """The fields of the protocol, and the members that are holdfast's own."""
    fields = dict(_NO_FIELDS)
    own: dict[str, object] = {}
    for key, value in members:
        if key in (_MARKER, _TAG):
            own[key] = _without_surrogates(value) if isinstance(value, str) else value
        name = key.lower().replace("\u017f", "s")  # the only other letter that Go folds to one of these
        if name not in fields or value is None:
            continue
        if name == "pid":
            if isinstance(value, bool) or not isinstance(value, int) or not ~MAX_PID <= value <= MAX_PID:
                raise ValueError("pid is not a whole number of 64 bits")
            fields["pid"] = value
        elif not isinstance(value, str):
            raise ValueError(f"{name} is not a string")
        elif name == "started_at":
            fields[name] = _started(value)[1]
        else:
            fields[name] = _without_surrogates(value)
    return fields, own


def _validated(fields: Mapping[str, Any]) -> float:
    """The time of the acquisition; ValueError, in the words of beads, if anything is missing."""
    if not fields["holder"]:
        raise ValueError("holder is required")
    if fields["pid"] <= 0:
        raise ValueError(f"pid must be positive (got {fields['pid']})")
    if not fields["hostname"]:
        raise ValueError("hostname is required")
    created, text = _started(fields["started_at"]) if fields["started_at"] else (0.0, "")
    if not text:
        raise ValueError("started_at is required")
    if text != fields["started_at"]:
        raise ValueError(f"started_at is not as Go writes it: {fields['started_at']!r}")
    return created


def _started(text: str) -> tuple[float, str]:
    """The time, and its text as Go writes it; an empty text for Go's zero time."""
    return rfc3339(text) or (0.0, "")


def _reason(error: ValueError, data: bytes) -> str:
    at = getattr(error, "pos", None)
    unterminated = str(error).startswith("Unterminated string")
    if not data.strip() or unterminated or (at is not None and at >= len(data.rstrip())):
        return "unexpected end of JSON input"
    return str(error)


def _without_surrogates(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        import re

        return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _require_unicode(name: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{name} is not Unicode text: {text!r}") from None
