"""The `sidecar` protocol: `<target>.lock` beside a target, with a JSON object from its holder (fs-safe).

A record is stale when its `createdAt` is old, or, if it has none in ISO 8601, when its file is old. Content that is no
JSON object is a lock all the same. The rule fails closed: it says that a lock is stale, not that it may be removed.
Source: the File lock document of fs-safe, and fs-safe 0.21.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import MalformedRecord
from ..liveness import Liveness
from ..model import Identity, Marker, Record
from . import jsontext
from .base import MAX_RECORD_BYTES, Protocol, check_size
from .dates import CANONICAL_LENGTH, canonical, is_canonical, iso8601

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_PID = 2**31 - 1
MARKER, MARKER_PID = "holdfast", "holdfastPid"
"""Our own members. The second is the marker's pid, if the caller's payload has another `pid`, or none."""
MAX_PAYLOAD_BYTES = MAX_RECORD_BYTES - 4096
"""The rest of the record is for our own members."""
_CREATED = b'\n  "createdAt": "'
_ASYNCHRONOUS = 0x80 | 0x200
"""CO_COROUTINE and CO_ASYNC_GENERATOR: importing `inspect` would cost more than the rest of this module."""


class Sidecar(Protocol):
    name = "sidecar"
    mode = 0o600
    stale_after = 30.0
    suffix = ".lock"
    resolves = "directory"
    makes_parents = True
    ages_by_mtime = True
    fails_closed = True
    reclaim_suffix = ".reclaim"
    marker_key = b'\n  "holdfast": "'  # of the record itself: nested members are indented further
    options = frozenset({"payload"})

    def check_options(self, more: Mapping[str, Any]) -> None:
        payload = more.get("payload")
        if callable(payload):
            called = getattr(payload, "func", payload)  # of a functools.partial
            code = getattr(called, "__code__", None) or getattr(type(called).__call__, "__code__", None)
            if code is not None and code.co_flags & _ASYNCHRONOUS:
                raise TypeError("payload must be a mapping or a callable that returns one, not a coroutine function")
        elif payload is not None:
            _checked(payload)

    def decode(self, data: bytes) -> Record:
        try:
            check_size(data)
            payload = _payload(data)
        except ValueError as error:
            raise MalformedRecord(str(error), protocol=self.name) from None
        if payload is None:
            return Record(self.name, {"payload": None}, legible=False)
        pid, host, tag = _pid(payload.get("pid")), payload.get("host"), payload.get("tag")
        created = payload.get("createdAt")
        if not isinstance(host, str):
            host = payload.get("hostname")
        marker = None
        if isinstance(payload.get(MARKER), str):
            pid = _pid(payload.get(MARKER_PID)) or pid
            marker = Marker.decode(payload[MARKER], pid or 0)
        return Record(
            protocol=self.name,
            fields={"payload": payload},
            pid=pid,
            created=iso8601(created) if isinstance(created, str) else None,
            tag=tag if isinstance(tag, str) else None,
            host=host if isinstance(host, str) else marker.identity.host if marker else None,
            marker=marker,
            marked=MARKER in payload,
            refreshed=MARKER in payload,
        )

    def encode(self, record: Record) -> bytes:
        payload = record.fields.get("payload")
        if not isinstance(payload, dict):
            raise ValueError(f"a sidecar record must be a JSON object, not {payload!r:.80}")
        data = _text(payload)
        check_size(data)
        return data

    def compose(self, who: Identity, now: float, tag: str | None, marker: str | None, more: Mapping[str, Any]) -> bytes:
        payload = more.get("payload")
        if payload is None:
            content: dict[str, Any] = {"pid": who.pid, "host": who.host, "createdAt": canonical(now)}
            if tag is not None:
                content["tag"] = tag
        else:
            content = _checked(payload() if callable(payload) else payload)
        own: dict[str, Any] = {}
        if marker is not None:
            own[MARKER] = marker
            if _pid(content.get("pid")) != who.pid:
                own[MARKER_PID] = who.pid
        return _text({**own, **content})

    def is_stale(self, record: Record, liveness: Liveness, now: float, stale_after: float) -> bool:  # noqa: ARG002
        return record.created is not None and now - record.created > stale_after

    def stale_at(self, record: Record, stale_after: float) -> float | None:
        return None if record.created is None else record.created + stale_after + 0.001

    def refreshed(self, data: bytes, now: float) -> tuple[int, bytes] | None:
        # A line that begins so is a member of the record itself: nested ones are indented further, and strings contain
        # no newlines. Without such a member, the write alone refreshes the file's time, which is the record's.
        start = data.find(_CREATED) + len(_CREATED)
        end = start + CANONICAL_LENGTH
        if start >= len(_CREATED) and data[end : end + 1] == b'"':
            before = data[start:end].decode("utf-8", "replace")
            if is_canonical(before):
                return start, canonical(now).encode()
        return (0, data[:1]) if data else None


def _payload(data: bytes) -> dict[str, Any] | None:
    """The JSON object, as JavaScript reads it; None for anything else. ValueError if it is nested too deep."""
    text = data.decode("utf-8", "replace")
    if not text.lstrip(" \t\r\n").startswith("{"):
        return None
    try:
        found = jsontext.parse(text)
    except jsontext.TooDeep:
        raise
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _pid(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_PID else None


def _checked(payload: object) -> dict[str, Any]:
    """A copy of a caller's payload; TypeError or ValueError if no record can carry it."""
    if not isinstance(payload, Mapping):
        if callable(getattr(payload, "close", None)) and hasattr(payload, "__await__"):
            payload.close()  # type: ignore[attr-defined]  # a coroutine that will never be awaited
        raise TypeError(f"payload must be a mapping or a callable that returns one, not {payload!r:.80}")
    plain: dict[str, Any] = jsontext.plain(payload)
    if MARKER in plain or MARKER_PID in plain:
        raise ValueError(f"payload has a member {MARKER!r} or {MARKER_PID!r}; these are holdfast's own")
    if len(_text(plain)) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"payload is larger than {MAX_PAYLOAD_BYTES} bytes")
    return plain


def _text(payload: Mapping[str, Any]) -> bytes:
    return jsontext.stringify(payload).encode("utf-8", "backslashreplace") + b"\n"  # a lone surrogate is \udXXX
