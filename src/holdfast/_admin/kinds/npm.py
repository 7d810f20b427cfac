"""npm: `concurrency.lock`, a directory that `npx` makes where it installs a package, and touches every second; and
files that npm up to version 6 kept in `_locks`.

No holder is named. A lock that was not touched for a minute is replaced by the next `npx`. (`package-lock.json`,
`yarn.lock` and `pnpm-lock.yaml` lock nothing.)
"""

from __future__ import annotations

from ...liveness import Liveness
from ...model import Evidence
from ..found import HELD, LEFTOVER, Found
from .base import Verdict, View

_STALE = 60.0
_FRESH = 5.0
"""Seconds since the last touch for which a lock has a living holder."""


def look(view: View) -> Found | None:
    of_npx = view.is_directory and "/_npx/" in f"{view.where}/"
    if not of_npx and not (view.is_file and view.where.endswith("/_locks")):
        return None
    age = max(0.0, view.env.time() - view.found.st_mtime)
    every = "which npx does every second" if of_npx else "when it was made"
    if age > _STALE:
        verdict = view.by_age(LEFTOVER, f"it has not been touched for a minute ({every})")
        return view.described(verdict, "the next one replaces it", "Nothing needs to be done")
    alive = Verdict(HELD, Liveness.ALIVE, Evidence("heartbeat", "it was touched within the last seconds"))
    verdict = alive if of_npx and age < _FRESH else view.by_age(HELD, f"it was last touched {age:.0f} s ago ({every})")
    reason = "others that install the same package wait for it"
    return view.described(verdict, reason, "Wait until it is removed, or not touched for a minute", aged=not of_npx)
