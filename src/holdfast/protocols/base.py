"""What a protocol is: a record codec and the rules about when a lock is stale. No file is touched here."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from ..model import Liveness, Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar

MAX_RECORD_BYTES = 1 << 20
MAX_TAG_CHARACTERS = 10_000

_CONTROL = dict.fromkeys((*range(32), 127), " ")


class Protocol(ABC):
    """A published set of rules. Instances hold no state; one is shared by every lock."""

    name: ClassVar[str]
    mode: ClassVar[int]
    """Permission bits of a new lock file, before the umask."""
    stale_after: ClassVar[float]
    """Age in seconds at which the protocol's own rule lets others reclaim."""
    shareable: ClassVar[bool] = False
    """Whether several may hold a lock together that all asked for it `shared`."""
    persistent: ClassVar[bool] = False
    """Whether the lock file stays, and the guard on it alone is the lock: no record decides anything."""
    recheck: ClassVar[float] = math.inf
    """Seconds after which a waiter looks again, because a release may make no event. Infinity: as the engine likes."""
    padding: ClassVar[bytes]
    """One byte that readers ignore at the end of a record: a takeover covers the old record with it."""

    @abstractmethod
    def decode(self, data: bytes) -> Record:
        """The record in `data`, or MalformedRecord. Never hangs, never loses a byte of a well-formed record."""

    @abstractmethod
    def encode(self, record: Record) -> bytes:
        """The strict inverse of `decode`; ValueError for a record that this protocol cannot express."""

    @abstractmethod
    def compose(self, pid: int, now: float, tag: str | None, marker: str) -> bytes:
        """The bytes that a new holder writes; `now` is in seconds since the epoch, `tag` has been cleaned."""

    @abstractmethod
    def is_stale(self, record: Record, liveness: Liveness, now: float, stale_after: float) -> bool:
        """The protocol's own rule, to the letter."""

    @abstractmethod
    def stale_at(self, record: Record, stale_after: float) -> float | None:
        """When the letter's rule will first hold, in seconds since the epoch; None if time alone never does it."""

    @abstractmethod
    def refreshed(self, data: bytes, now: float) -> tuple[int, bytes] | None:
        """Offset and new bytes of the timestamp in `data`, of unchanged length; None where there is none to refresh."""


def clean_tag(tag: str) -> str:
    """The tag as it is written: control characters become spaces, ends are trimmed, length is bounded."""
    # A shell can hand over bytes that are no UTF-8; Python carries them as surrogates, which cannot be written.
    try:
        raw = tag.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = tag.encode("utf-8", "replace")  # a surrogate that stands for no byte
    writable = raw.decode("utf-8", "replace")
    return writable.translate(_CONTROL).strip()[:MAX_TAG_CHARACTERS].rstrip()
