"""The `proper-lockfile` protocol (npm): a directory `<target>.lock` that its holder keeps fresh by its time.

Making the directory acquires, removing it releases. It contains nothing but its modification time: every holder sets
that anew, at least every half of the age from which others may remove the directory. So an old directory has no holder,
or one that was stopped, and there is no way to tell which.
Source: proper-lockfile 4.1.2, `lib/lockfile.js` and `lib/mtime-precision.js`.

A holdfast holder marks its directory in a way that other implementations ignore: by the sticky bit, and by the digits
of the time below the millisecond, which say on which boot and device it took its kernel lock.
"""

from __future__ import annotations

import stat
import zlib

from ..errors import MalformedRecord
from ..model import Identity, Record
from .base import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..liveness import Liveness

_MILLISECOND, _SECOND = 1_000_000, 1_000_000_000
_FIRST, _MARKS = 100_000, 300_000
"""The range of the marks, in nanoseconds of a millisecond: far from both ends, where rounded fractions lie."""


class ProperLockfile(Protocol):
    name = "proper-lockfile"
    mode = 0o777
    stale_after = 10.0
    is_directory = True
    all_beat = True
    recheck = 1.0  # a directory that somebody has open goes without an event
    options = frozenset({"realpath"})
    resolves = "path"
    suffix = ".lock"
    ages_by_mtime = True

    def check_options(self, more: Mapping[str, Any]) -> None:
        if not isinstance(more["realpath"], bool):
            raise TypeError(f"realpath must be True or False, not {more['realpath']!r}")

    def decode(self, data: bytes) -> Record:
        if data:
            raise MalformedRecord("a lock of proper-lockfile is a directory and has no content", protocol=self.name)
        return Record(self.name, {}, refreshed=True)

    def encode(self, record: Record) -> bytes:
        if record.fields or record.pid is not None or record.tag is not None:
            raise ValueError("a lock of proper-lockfile is a directory, in which nothing can be written")
        return b""

    def compose(self, who: Identity, now: float, tag: str | None, marker: str | None, more: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        return b""

    def is_stale(self, record: Record, liveness: Liveness, now: float, stale_after: float) -> bool:  # noqa: ARG002
        return record.created is not None and record.created < now - stale_after

    def stale_at(self, record: Record, stale_after: float) -> float | None:
        return None if record.created is None else record.created + stale_after

    def refreshed(self, data: bytes, now: float) -> tuple[int, bytes] | None:  # noqa: ARG002
        return None


def stamp(now: float, boot: str, device: int, *, coarse: bool) -> int:
    """The modification time that a holder sets, in nanoseconds since the epoch.

    `coarse`: the filesystem keeps whole seconds. Then it is the next one, as theirs: the last would seem too old.
    """
    if coarse:
        return -int(-now // 1) * _SECOND
    return int(now * 1000) * _MILLISECOND + _mark(boot, device)


def is_coarse(wanted: int, kept: int) -> bool:
    """Whether the filesystem keeps whole seconds at most, by what has become of a time."""
    return kept % _SECOND == 0 and wanted % _SECOND != 0


def is_marked(mode: int, modified: int, boot: str, device: int) -> bool:
    """Whether its holder has, or had, the kernel lock on this boot and device; `modified` is in nanoseconds."""
    return bool(mode & stat.S_ISVTX) and boot != "-" and modified % _MILLISECOND == _mark(boot, device)


def _mark(boot: str, device: int) -> int:
    return _FIRST + zlib.crc32(f"{boot} {device}".encode()) % _MARKS
