"""The `flock` protocol: a file that stays, and the kernel's lock on it. No record, no age, nothing to reclaim.

`flock(1)` uses it, and libraries that open a file and lock it with `flock(2)`. A dead holder's lock is gone at once,
because the kernel drops it.

A holder with a tag writes a record into an otherwise empty file, for people. It is a `sema` record after the line
`protocol=flock`, which distinguishes it from a lock file of `sema` and from data.

The `ofd` protocol: a file that stays, and a record lock of the kernel (`fcntl`) on all of it, or on a range.

dpkg and apt use it, shadow's `lckpwdf`, Java's `FileLock`, `lockf` and fasteners. These lock for a process (`F_SETLK`),
which loses the lock when it closes any descriptor of the file; holdfast locks for an open file (`F_OFD_SETLK`), which
does not. The kernel lets the two kinds exclude each other. `flock(2)` is another kind.
Source: fcntl(2), "Open file description locks".

Nothing is ever written into the file.
"""

from __future__ import annotations

import math

from ..errors import MalformedRecord
from .sema import FLOCK_SIGNATURE, Sema, lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..liveness import Liveness
    from ..model import Identity, Record

_LARGEST = 2**63 - 1


class Flock(Sema):
    name = "flock"
    mode = 0o644
    stale_after = math.inf
    shareable = True
    persistent = True
    recheck = 0.1  # `flock -u 9` makes no event

    def decode(self, data: bytes) -> Record:
        if not data.startswith(FLOCK_SIGNATURE):
            raise MalformedRecord("the content is not a record of a flock holder", protocol=self.name)
        return super().decode(data).replaced(protocol=self.name, refreshed=False)

    def encode(self, record: Record) -> bytes:
        return FLOCK_SIGNATURE + super().encode(record)

    def compose(self, who: Identity, now: float, tag: str | None, marker: str | None, more: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        return FLOCK_SIGNATURE + lines(who.pid, int(max(now, 0)), tag, marker)

    def is_stale(self, record: Record, liveness: Liveness, now: float, stale_after: float) -> bool:  # noqa: ARG002
        return False

    def stale_at(self, record: Record, stale_after: float) -> float | None:  # noqa: ARG002
        return None

    def refreshed(self, data: bytes, now: float) -> tuple[int, bytes] | None:  # noqa: ARG002
        return None


class Ofd(Flock):
    name = "ofd"
    locks_records = True
    options = frozenset({"range"})

    def check_options(self, more: Mapping[str, Any]) -> None:
        given = more["range"]
        if not isinstance(given, tuple) or len(given) != 2 or not all(type(number) is int for number in given):
            raise TypeError(f"range must be a tuple of two whole numbers, start and length, not {given!r}")
        start, length = given
        if start < 0 or length < 0 or start + length > _LARGEST:
            raise ValueError(
                f"range must be (start, length) in bytes, both 0 or more (a length of 0: to the end), not {given!r}"
            )

    def decode(self, data: bytes) -> Record:  # noqa: ARG002
        raise MalformedRecord("the file of a record lock has no record of its holder", protocol=self.name)

    def encode(self, record: Record) -> bytes:  # noqa: ARG002
        raise ValueError("nothing is written into the file of a record lock")

    def compose(self, who: Identity, now: float, tag: str | None, marker: str | None, more: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        return b""
