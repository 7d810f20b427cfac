"""The record vectors: bytes of lock files, and what they mean. `records.json` is for implementers of any language.

Each vector has an `id`, a `protocol`, its input (`input_hex`, or `input_parts` as `[hex, times]` for large ones) and
what is wanted: `want.record`, the decoded fields, or `want.error`.
"""

from __future__ import annotations

import json
import threading
from importlib import resources
from typing import TYPE_CHECKING, Any

from .adapter import Adapter
from .dialects import moment
from .process import how_it_ended
from .scenario import Failed, Scenario

if TYPE_CHECKING:
    from .bench import Bench

MALFORMED = "malformed"
_SHOWN = 4096


def load(protocol: str) -> list[dict[str, Any]]:
    """The vectors of a protocol."""
    text = resources.files("holdfast.testing").joinpath("records.json").read_text(encoding="utf-8")
    return [vector for vector in json.loads(text) if vector["protocol"] == protocol]


def input_of(vector: dict[str, Any]) -> bytes:
    """The bytes of the lock file."""
    if "input_hex" in vector:
        return bytes.fromhex(vector["input_hex"])
    return b"".join(bytes.fromhex(part) * times for part, times in vector["input_parts"])


def name_of(vector: dict[str, Any]) -> str:
    """What its scenario is called."""
    return f"record:{vector['id']}"


def scenarios(protocol: str) -> list[Scenario]:
    """A scenario for each vector."""
    return [_scenario(vector) for vector in load(protocol)]


def _scenario(vector: dict[str, Any]) -> Scenario:
    want = vector["want"]

    def run(bench: Bench) -> None:
        data = input_of(vector)
        said = bench.reading.of(vector["id"], data)
        if "error" in want:
            if said is not None:
                raise Failed("the record to be malformed", f"it was read as {_short(said)}", data[:_SHOWN])
        elif said is None or not _same(said, want["record"]):
            happened = "it was called malformed" if said is None else f"it was read as {_short(said)}"
            raise Failed(_short(want["record"]), happened, data[:_SHOWN])

    name, protocol = name_of(vector), vector["protocol"]
    why = "Whoever reads a record otherwise than the others waits for nobody, or steals from somebody."
    return Scenario(name, why, frozenset({protocol}), frozenset({"decode"}), "letter", run)


class Reading:
    """How the adapter reads records: one process for each, or, where it can, one for all of them."""

    def __init__(self, adapter: Adapter, vectors: list[dict[str, Any]]) -> None:
        self._adapter = adapter
        self._vectors = vectors
        self._said: dict[str, str] | None = None
        self._ended = ""
        self._lock = threading.Lock()

    def of(self, name: str, data: bytes) -> dict[str, Any] | None:
        """The fields that the adapter reads in `data`; None for malformed. Failed where it gives no answer."""
        if "decode-lines" in self._adapter.abilities:
            return self._from_batch(name, data)
        running = self._adapter.start("decode")
        try:
            said, status = running.feed(data, self._adapter.limit)
            complaint = running.complaint().strip()
        finally:
            self._adapter.end(running)
        if status == 1 and not said.strip():
            return None
        if status != 0:
            happened = _ending(status)
            expected = "the fields and exit status 0, or exit status 1 and nothing on stdout"
            raise Failed(expected, f"{happened}; {complaint}".rstrip("; "), data[:_SHOWN])
        return _parsed(said.decode("utf-8", "replace"), data)

    def _from_batch(self, name: str, data: bytes) -> dict[str, Any] | None:
        with self._lock:
            if self._said is None:
                self._said = self._ask()
        if name not in self._said:
            raise Failed("a line for each record", f"the lines end before this one; {self._ended}", data[:_SHOWN])
        said = self._said[name]
        return None if said == MALFORMED else _parsed(said, data)

    def _ask(self) -> dict[str, str]:
        running = self._adapter.start("decode-lines")
        try:
            asked = b"".join(input_of(vector).hex().encode() + b"\n" for vector in self._vectors)
            said, status = running.feed(asked, self._adapter.limit)
            happened = _ending(status)
            self._ended = f"{happened}; {running.complaint().strip()}".rstrip("; ")
        finally:
            self._adapter.end(running)
        lines = said.decode("utf-8", "replace").split("\n")[:-1]
        return {vector["id"]: line for vector, line in zip(self._vectors, lines, strict=False)}


def _ending(status: int | None) -> str:
    return "it did not come to an end" if status is None else f"it {how_it_ended(status)}"


def _parsed(text: str, data: bytes) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise Failed("one JSON object with the fields", f"it said {text[:200]!r}", data[:_SHOWN])
    return said


def _same(said: dict[str, Any], want: dict[str, Any]) -> bool:
    """Whether all that is wanted was said. A moment may be written in any way that names it."""
    for key, value in want.items():
        if key not in said:
            return False
        if key == "started_at":
            try:
                if not isinstance(said[key], str) or moment(said[key]) != moment(value):
                    return False
            except ValueError:
                return False
        elif not _equal(said[key], value):
            return False
    return True


def _equal(said: object, want: object) -> bool:
    """Equal as JSON: `true` is not 1, although Python says so."""
    if isinstance(said, dict) and isinstance(want, dict):
        return said.keys() == want.keys() and all(_equal(said[key], want[key]) for key in want)
    if isinstance(said, list) and isinstance(want, list):
        return len(said) == len(want) and all(map(_equal, said, want))
    return isinstance(said, bool) == isinstance(want, bool) and said == want


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 300 else f"{text[:300]}…"
