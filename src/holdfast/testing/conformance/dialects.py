"""Lock files of each protocol: the exact bytes of the implementations that exist, and those to write.

Reading here is strict, because it judges the output of an implementation; the vectors say what it must be able to read.
"""

from __future__ import annotations

import json
import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

ELSEWHERE = "elsewhere.invalid"
_MARKER = "2 g 00000000-0000-4000-8000-000000000000 1 1 t1 1795248692.418 " + ELSEWHERE
"""The marker of a holdfast process on another machine: it has no meaning here, and other implementations ignore it."""


@dataclass(frozen=True)
class Claim:
    """The statement of a lock file: whose it is and since when, in seconds since the epoch."""

    pid: int | None
    at: float | None
    host: str | None = None


Writer = Callable[[Claim], bytes]


class Dialect(ABC):
    """One protocol, as far as it can be seen from outside."""

    name: str
    mode: int
    is_directory = False
    """Whether the lock is an empty directory, so that there is no record."""
    stale_after: float | None
    """Seconds; None if age does not matter."""
    writers: Mapping[str, tuple[Writer, int]]
    """Programs that write such lock files, with their bytes and permissions. The first is the reference."""

    def lock_file(self, path: str) -> str:
        """The lock file for a path that a user of the protocol names."""
        return path

    def write(self, claim: Claim) -> bytes:
        """A record in the bytes of the reference."""
        return next(iter(self.writers.values()))[0](claim)

    @abstractmethod
    def read(self, data: bytes) -> Claim:
        """The claim of a record that was written as the protocol demands; ValueError, saying why, for any other."""

    @abstractmethod
    def with_stranger(self, claim: Claim) -> bytes:
        """A record with a field that nobody knows."""


class Lines(Dialect):
    """sema and semats: `key=value` lines."""

    stale_after = 3600.0

    def __init__(self, name: str, mode: int) -> None:
        self.name, self.mode = name, mode
        tagged = _lines(tag="npm build")
        self.writers = {
            "sema": (tagged, 0o644),
            "semats": (tagged, 0o600),
            "a-shell-script": (_lines(tag="shell-script"), 0o644),
            "holdfast": (_lines(holdfast=_MARKER, tag="deploy"), mode),
        }
        if name == "semats":
            self.writers = {"semats": self.writers["semats"], **self.writers}

    def read(self, data: bytes) -> Claim:
        text = data.decode("utf-8")
        if "\r" in text or not text.endswith("\n"):
            raise ValueError("lines are written with LF, and the last one too")
        fields: dict[str, str] = {}
        for line in filter(None, text.split("\n")):
            key, found, value = line.partition("=")
            if not found or key != key.strip() or key in fields:
                raise ValueError(f"{line!r} is no `key=value` line, or is there twice")
            fields[key] = value
        numbers = [fields.get(key, "") for key in ("pid", "timestamp")]
        if not all(re.fullmatch("[0-9]{1,20}", number) for number in numbers):
            raise ValueError("pid and timestamp are whole numbers, written without blanks")
        return Claim(int(numbers[0]), float(numbers[1]))

    def with_stranger(self, claim: Claim) -> bytes:
        return _lines(colour="blue", no_such_key="1=2")(claim)


def _lines(**more: str) -> Writer:
    rest = "".join(f"{key}={value}\n" for key, value in more.items())
    return lambda claim: f"pid={claim.pid}\ntimestamp={int(claim.at or 0)}\n{rest}".encode()


class Sidecar(Dialect):
    """fs-safe: a JSON object of the caller in `<target>.lock`."""

    name, mode, stale_after = "sidecar", 0o600, 30.0

    def __init__(self) -> None:
        self.writers = {
            "fs-safe-0.3": (_pretty, 0o644),
            "fs-safe-0.21": (lambda claim: _pretty(claim) + b"\t" * 8 + b" \t\t " * 32 + b"\n", 0o600),
            "another-tool": (lambda claim: json.dumps(_payload(claim), separators=(",", ":")).encode(), 0o600),
            "holdfast": (lambda claim: _pretty(claim, first={"holdfast": _MARKER}), 0o600),
        }

    def lock_file(self, path: str) -> str:
        return path + ".lock"

    def read(self, data: bytes) -> Claim:
        said = _object(data)
        pid, at = said.get("pid"), said.get("createdAt")
        if not isinstance(pid, int) or not isinstance(at, str):
            raise ValueError("the payload that the kit asks for has a number `pid` and a text `createdAt`")
        return Claim(pid, moment(at))

    def with_stranger(self, claim: Claim) -> bytes:
        return _pretty(claim, more={"colour": "blue", "nested": {"pid": 0, "createdAt": "2020-01-01T00:00:00.000Z"}})


def _payload(claim: Claim) -> dict[str, Any]:
    said: dict[str, Any] = {} if claim.pid is None else {"pid": claim.pid}
    return said if claim.at is None else {**said, "createdAt": iso(claim.at)}


def _pretty(claim: Claim, *, first: Mapping[str, Any] | None = None, more: Mapping[str, Any] | None = None) -> bytes:
    said = {**(first or {}), **_payload(claim), **(more or {})}
    return (json.dumps(said, indent=2, ensure_ascii=False) + "\n").encode()


class Beads(Dialect):
    """beads: a JSON object with five members in `<directory>/.exclusive-lock`."""

    name, mode, stale_after = "beads", 0o644, None

    def __init__(self) -> None:
        self.writers = {
            "bd": (lambda claim: _indented(_beads(claim)), 0o644),
            "a-shell-script": (_beads_shell, 0o644),
            "holdfast": (lambda claim: _indented({**_beads(claim), "holdfast": _MARKER}), 0o644),
        }

    def lock_file(self, path: str) -> str:
        return f"{path}/.exclusive-lock"

    def read(self, data: bytes) -> Claim:
        said = _object(data)
        kinds = {"holder": str, "pid": int, "hostname": str, "started_at": str, "version": str}
        for key, kind in kinds.items():
            if key == "version" and key not in said:
                continue
            if type(said.get(key)) is not kind:
                raise ValueError(f"{key} is {'a number' if kind is int else 'a text'}, not {said.get(key)!r}")
        if not said["holder"] or not said["hostname"] or said["pid"] <= 0:
            raise ValueError("holder and hostname are not empty, and pid is positive")
        return Claim(said["pid"], moment(said["started_at"]), said["hostname"])

    def with_stranger(self, claim: Claim) -> bytes:
        return _indented({"colour": {"pid": 0, "blue": [1, None]}, **_beads(claim)})


def _beads(claim: Claim) -> dict[str, Any]:
    at = iso(claim.at or 0).replace("Z", "262371Z")  # nanoseconds, as Go writes them
    host = socket.gethostname() if claim.host is None else claim.host
    return {"holder": "vc-executor", "pid": claim.pid, "hostname": host, "started_at": at, "version": "1.0.0"}


def _indented(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said, indent=2, ensure_ascii=False).encode()  # no final newline


def _beads_shell(claim: Claim) -> bytes:
    said = _beads(claim)
    said["started_at"] = re.sub(r"\.\d+", "", said["started_at"])
    members = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in said.items())
    return f"{{\n{members}\n}}\n".encode()


def _object(data: bytes) -> dict[str, Any]:
    said = json.loads(data.decode("utf-8"))
    if not isinstance(said, dict):
        raise ValueError("the record is a JSON object")
    return said


def iso(at: float) -> str:
    """A moment as JavaScript writes it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(at * 1000) % 1000:03}Z"


def moment(text: str) -> float:
    """The moment that an RFC 3339 text names; ValueError for other text."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", text):
        raise ValueError(f"{text!r} is no RFC 3339 timestamp")
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text).upper()).timestamp()


class Directories(Dialect):
    """proper-lockfile: an empty directory `<target>.lock`, whose time says that its holder lives."""

    name, mode, is_directory, stale_after = "proper-lockfile", 0o755, True, 10.0
    writers: Mapping[str, tuple[Writer, int]] = {}

    def lock_file(self, path: str) -> str:
        return path + ".lock"

    def write(self, claim: Claim) -> bytes:  # noqa: ARG002
        return b""

    def read(self, data: bytes) -> Claim:  # noqa: ARG002
        return Claim(None, None)

    def with_stranger(self, claim: Claim) -> bytes:
        return self.write(claim)


DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (Lines("sema", 0o644), Lines("semats", 0o600), Sidecar(), Beads(), Directories())
}
