"""The `ofd` protocol: a file that stays, and a record lock of the kernel (`fcntl`) on all of it, or on a range.

dpkg and apt use it, shadow's `lckpwdf`, Java's `FileLock`, `lockf` and fasteners. These lock for a process (`F_SETLK`),
which loses the lock when it closes any descriptor of the file; holdfast locks for an open file (`F_OFD_SETLK`), which
does not. The kernel lets the two kinds exclude each other. `flock(2)` is another kind.
Source: fcntl(2), "Open file description locks".

Nothing is ever written into the file.
"""

from __future__ import annotations

from ..errors import MalformedRecord
from .flock import Flock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..model import Identity, Record

_LARGEST = 2**63 - 1


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
