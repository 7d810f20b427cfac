"""The language of etcd's JSON gateway: answers, streams, and how keys and numbers are written.

EJ1  64-bit integers arrive as strings, and values of 0, false or empty are left out. Keys and values are in base64.
EJ2  An error comes in an answer or in a line of a stream; unlike no answer, it is an answer. From etcd 3.6 on an error
     outside a stream has no `error`, only its `code` and its `message`, which no other answer has.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from .http import Connection, Unreachable

Json = dict[str, Any]

_UNAUTHENTICATED, _UNAVAILABLE, _DEADLINE = 16, 14, 4
_AGAIN = ("no leader", "leader changed", "timed out", "server stopped", "not ready", "too many requests", "not started")
"""The messages of a passing obstacle: another server, or the same in a moment, may answer otherwise."""
_STALE_TOKEN = ("invalid auth token", "revision of auth store is old", "auth: revision in header is old")
_NOT_ETCD = "its answer is JSON, but not an answer of etcd"


class Refused(Exception):
    """The server's answer is an error."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.message = message
        self.code = code

    def is_passing(self) -> bool:
        return self.code in (_UNAVAILABLE, _DEADLINE) or any(words in self.message for words in _AGAIN)

    def is_stale_token(self) -> bool:
        return self.code == _UNAUTHENTICATED or any(words in self.message for words in _STALE_TOKEN)


class Watch:
    """A stream of changes; `fd` is readable when there is something to `take`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def fd(self) -> int:
        return self._connection.fd

    def take(self) -> list[Json]:
        """The messages so far: `created`, `canceled`, `events`. Never waits. Refused or Unreachable at the end."""
        return [result_of(line) for line in self._connection.lines() if line.strip()]

    def deleted(self) -> tuple[set[str], bool]:
        """The keys deleted since the last call, and whether the server has ended the watch. Raises as `take`."""
        results = self.take()
        gone = {decoded(event["kv"]["key"]) for result in results for event in result.get("events", ())}
        return gone, any(result.get("canceled") or number(result.get("compact_revision")) for result in results)

    def close(self) -> None:
        self._connection.close()


def answer_of(data: bytes) -> Json:
    """The JSON of an answer; of a stream, its first line. Refused for an error."""
    answer = result_of(data.partition(b"\n")[0] if data.startswith(b'{"result"') else data)
    if "header" not in answer:
        raise Unreachable(_NOT_ETCD)
    return answer


def result_of(line: bytes) -> Json:
    try:
        answer = json.loads(line)
    except ValueError:
        text = " ".join(line[:200].decode(errors="replace").split())  # etcd itself may say why it refuses all of it
        raise Unreachable(f"its answer is not JSON, as that of etcd from 3.4 on would be, but {text!r}") from None
    if not isinstance(answer, dict):
        raise Unreachable(_NOT_ETCD)
    error = answer.get("error")
    if isinstance(error, dict):
        raise Refused(str(error.get("message", "")), number(error.get("grpc_code", error.get("code", 0))))
    if error is not None or ("code" in answer and "message" in answer):
        raise Refused(str(answer.get("message", error)), number(answer.get("code", 0)))
    result = answer.get("result", answer)
    return result if isinstance(result, dict) else {}


def number(value: object) -> int:
    """A 64-bit integer, which arrives as a string; one that was left out is 0."""
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        return 0


def encoded(text: str | bytes) -> str:
    """A key or value as it is sent."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode("ascii")


def decoded(text: str) -> str:
    """The key that arrived as this text."""
    return base64.b64decode(text).decode(errors="surrogateescape")


def end_of(key: str) -> str:
    """The end of the range of the keys that begin with this one."""
    data = key.encode(errors="surrogateescape")
    while data and data[-1] == 0xFF:
        data = data[:-1]
    return encoded(data[:-1] + bytes([data[-1] + 1]) if data else b"\0")
