"""The `semats` protocol: the records of `sema` in a private file; stale is what is old *and* whose process is dead.

Others publish by a look and a rename: `<lock>.<pid>.<16 hex digits>.tmp` beside the lock file, a look that finds no
lock file, and the rename. Source: Protocol Specification, File-Based Semaphore (TS).
"""

from __future__ import annotations

from ..model import Liveness, Record
from .sema import Sema

_TOKEN_DIGITS = 16
_MAX_RIVAL = 2**31 - 1
_HEX = frozenset("0123456789abcdef")


class Semats(Sema):
    name = "semats"
    mode = 0o600
    resolves = "path"
    refuses_parent_components = True
    has_rivals = True

    def rival(self, name: str, lock_name: str) -> int | None:
        if not (name.startswith(lock_name + ".") and name.endswith(".tmp")):
            return None
        digits, _, token = name[len(lock_name) + 1 : -len(".tmp")].partition(".")
        if len(token) != _TOKEN_DIGITS or not _HEX.issuperset(token):
            return None
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= len(str(_MAX_RIVAL))):
            return None
        return int(digits) if 0 < int(digits) <= _MAX_RIVAL else None

    def is_stale(self, record: Record, liveness: Liveness, now: float, stale_after: float) -> bool:
        return liveness is Liveness.DEAD and super().is_stale(record, liveness, now, stale_after)
