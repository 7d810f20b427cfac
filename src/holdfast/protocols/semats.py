"""The `semats` protocol: the records of `sema` in a private file; stale is what is old *and* whose process is dead.

Others publish by a look and a rename: `<lock>.<pid>.<16 hex digits>.tmp` beside the lock file, a look that finds no
lock file, and the rename. Source: Protocol Specification, File-Based Semaphore (TS).
"""

from __future__ import annotations

from ..model import Liveness, Record
from .sema import Sema


class Semats(Sema):
    name = "semats"
    mode = 0o600
    resolves = "path"
    refuses_parent_components = True

    def is_stale(self, record: Record, liveness: Liveness, now: float, stale_after: float) -> bool:
        return liveness is Liveness.DEAD and super().is_stale(record, liveness, now, stale_after)
