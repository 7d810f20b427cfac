"""What holdfast knows about a lock, as values: Record, Marker, Evidence, Holder, Status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Liveness(Enum):
    """Whether a holder lives, as far as can be known. UNKNOWN counts as held, never as stale."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, named so that the name is never used again.

    A pid alone repeats: after a reboot (`boot`), in another container (`pid_namespace`), or when the number comes
    round again (`started`). A part that cannot be known is `-` and equals nothing, not even another `-`.
    """

    pid: int
    boot: str
    pid_namespace: str
    started: str
    host: str


@dataclass(frozen=True, slots=True)
class Marker:
    """The one field that holdfast adds to a record, so that a reader can tell "guard gone" from "never guarded".

    `guarded` is False where the holder keeps no kernel lock; then its identity is the proof of life. `device` is the
    `st_dev` that the holder saw: seen through another mount, a guard may look free although it is held.
    """

    guarded: bool
    device: int
    identity: Identity

    VERSION = "1"

    def encode(self) -> str:
        return marker_text(self.guarded, self.device, self.identity)

    @classmethod
    def decode(cls, text: str, pid: int) -> Marker | None:
        """The marker, or None for one that is torn or of a version that this code does not know."""
        parts = text.split(" ", 6)
        if len(parts) != 7 or parts[0] != cls.VERSION or parts[1] not in ("g", "n") or not parts[3].isdecimal():
            return None
        _, kind, boot, device, namespace, started, host = parts
        return cls(kind == "g", int(device[:20]), Identity(pid, boot, namespace, started, host))


def marker_text(guarded: bool, device: int, who: Identity) -> str:
    """A marker as it is written. `g` or `n` is one byte, so that it can be flipped in place."""
    kind = "g" if guarded else "n"
    return f"1 {kind} {who.boot} {device} {who.pid_namespace} {who.started} {who.host}"


@dataclass(frozen=True, slots=True)
class Record:
    """The content of a lock file, decoded.

    `fields` are the values in the protocol's own vocabulary; the attributes are the same facts in holdfast's.
    `created` is in seconds since the epoch. `marked` says that a marker was there, even one that cannot be read.
    """

    protocol: str
    fields: Mapping[str, Any]
    pid: int | None = None
    created: float | None = None
    tag: str | None = None
    host: str | None = None
    marker: Marker | None = None
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why a holder is believed to be alive or dead.

    `source` is `guard` (the kernel lock), `process` (the process table), `boot`, or `none`. `proven` is True only
    where no schedule of events can make the answer wrong.
    """

    source: str
    text: str
    proven: bool = False


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock: everything that the record and this machine can tell. `since` is in seconds since the epoch."""

    pid: int | None = None
    host: str | None = None
    since: float | None = None
    tag: str | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """One look at a lock; true when it was taken, and perhaps no longer.

    `locked`: a contender would be refused. `stale`: the lock file is there, but a contender may take the lock over.
    Both False: there is no lock file. `record` is None where there is none or it is malformed.
    """

    path: str
    protocol: str
    locked: bool
    stale: bool
    liveness: Liveness
    evidence: Evidence
    holder: Holder | None = None
    record: Record | None = None
    reason: str = ""
    age: float | None = field(default=None)
