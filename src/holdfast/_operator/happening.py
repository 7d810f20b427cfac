"""What happens to lock files, as values; told by those who look on from outside, whatever the holders are written in.

The kinds and fields are those of `holdfast.events`, as far as they can be seen from outside. `held` and `stale` are of
the outside only: what was there at the first look, and a holder that has died or overstayed its protocol's age.
"""

from __future__ import annotations

from ..model import Holder, Value, Waiter
from .findings import DEAD, EMPTY, FREE, MALFORMED, STALE, Found

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Happening(Value):
    """Something that happened to a lock file, or (`first_look`) was found so at the beginning.

    - `kind`: held, waiting, acquired, gave-up, reclaimed, stale, lost, released.
    - `time`: when it was seen, in seconds since the epoch; at the first look, since when it is so.
    - `pid`, `host`, `tag`, `command`: of the holder, or of the one who waits.
    - `waited`, `held`: seconds, as far as they were seen.
    - `recovered_from`: the pid of the holder that was replaced.
    """

    kind: str
    time: float
    path: str
    protocol: str
    pid: int | None = None
    host: str | None = None
    tag: str | None = None
    command: str | None = None
    waited: float | None = None
    held: float | None = None
    recovered_from: int | None = None
    first_look: bool = False


class Held:
    """One acquisition, as it is seen from outside."""

    def __init__(self, found: Found, since: float, waited: float | None) -> None:
        self.found = found
        self.key = key_of(found)
        self.since = since
        self.waited = waited
        self.told_stale = False
        self.doubtful = False
        """Its file may have vanished, and what is there may be another of the same number."""

    def is_same(self, found: Found) -> bool:
        """Whether it is this acquisition that was found."""
        if self.doubtful and found.status.modified != self.found.status.modified:
            return False
        return self.key == key_of(found)

    @property
    def holder(self) -> Holder:
        return self.found.status.holder or Holder()

    @property
    def is_kernels(self) -> bool:
        """Whether it is a lock of the kernel alone, whose acquisition makes no event."""
        return self.found.status.protocol == "flock"

    @property
    def is_proven(self) -> bool:
        """Whether its holder's end will make an event: it has the guard."""
        return self.found.status.evidence.source == "guard" and self.found.status.evidence.proven

    def tell(self, kind: str, time: float, **more: Any) -> Happening:
        status, holder = self.found.status, self.holder
        return Happening(
            kind, time, status.path, status.protocol, holder.pid, holder.host, holder.tag, holder.command, **more
        )


class Waits:
    """One who waits. `ticket` is its name, or empty for one that only the kernel knows."""

    def __init__(self, path: str, protocol: str, waiter: Waiter, since: float, ticket: str = "") -> None:
        self.path = path
        self.protocol = protocol
        self.waiter = waiter
        self.since = since
        self.ticket = ticket

    def tell(self, kind: str, time: float, host: str, **more: Any) -> Happening:
        who = self.waiter
        return Happening(kind, time, self.path, self.protocol, who.pid, host, who.tag, who.command, **more)


def is_stale(found: Found) -> bool:
    return found.condition in (DEAD, STALE)


def is_free(found: Found | None) -> bool:
    """Whether nobody holds it, as far as can be told. An empty file says nothing; `flock(1)` leaves such ones."""
    if found is None or found.condition in (FREE, EMPTY):
        return True
    return found.condition == MALFORMED and not found.status.data and not found.status.protocol


def key_of(found: Found) -> tuple[object, ...]:
    """What stays the same during one acquisition, whatever a heartbeat writes."""
    status = found.status
    record = status.record
    if status.protocol == "flock":
        return (found.identity, *sorted(holder.pid or 0 for holder in status.holders))
    if record is None:
        return (found.identity, status.data)
    if record.marker is not None:
        return (found.identity, record.pid, record.marker.identity)
    return (found.identity, record.pid, record.created if status.protocol != "sidecar" else None, record.tag)
