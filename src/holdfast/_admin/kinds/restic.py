"""restic: a file in `locks` of a repository, named after the hash of its content, which is encrypted.

So its holder cannot be read. restic writes each of its locks anew every five minutes, under another name, and calls a
lock stale that is older than half an hour, or whose process has ended on the same host.
"""

from __future__ import annotations

from ..._core.messages import quoted
from ..found import HELD, LEFTOVER, Found
from .base import View

_STALE = 1800.0
_DIGITS = frozenset("0123456789abcdef")


def look(view: View) -> Found | None:
    where, _, last = view.where.rpartition("/")
    if last != "locks" or not view.is_file or len(view.name) != 64 or not _DIGITS.issuperset(view.name):
        return None
    if not view.is_there(f"{where}/config", f"{where}/keys", f"{where}/snapshots"):
        return None
    repository = quoted(where)
    if view.env.time() - view.found.st_mtime > _STALE:
        verdict = view.by_age(
            LEFTOVER, "it has not been refreshed for half an hour; restic refreshes its locks every five minutes"
        )
        reason = "restic calls it stale, but most commands still refuse if it is exclusive"
        return view.described(verdict, reason, f"restic -r {repository} unlock removes stale locks only", refuses=True)
    running = view.files.running(("restic",))
    if running:
        verdict = view.of_openers(running, "is restic, and may be the one")
    else:
        verdict = view.by_age(HELD, "no restic runs here, but one elsewhere may; its content is encrypted")
    advice = f"restic -r {repository} cat lock {view.name[:8]} says whose it is; unlock removes it once it is stale"
    reason = "commands that need the repository for themselves (prune, check) refuse; with an exclusive lock, all do"
    return view.described(verdict, reason, advice)
