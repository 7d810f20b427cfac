"""Dot locking, as liblockfile, `dotlockfile` and procmail's `lockfile` do it for mailboxes and scripts: `X.lock` with a
pid in it, or 0.

With a pid, `dotlockfile` goes by that process. Without one, the lock counts for five minutes after it was last touched.
"""

from __future__ import annotations

from ..._core.messages import quoted
from ..found import HELD, LEFTOVER, Found
from .base import View, pid_in

_LASTS = 300.0
"""Seconds for which a lock without a pid is valid."""


def look(view: View) -> Found | None:
    if not view.is_file or not 0 < view.found.st_size <= 32:
        return None
    pid = pid_in(view.data(most=64))
    if pid is None:
        return None
    if pid > 0:
        verdict = view.of_process(pid)
        if verdict.condition == LEFTOVER:
            advice = f"dotlockfile replaces it; programs that ignore the pid need: rm -f {quoted(view.path)}"
            return view.described(verdict, "a lock whose process has gone is not valid", advice)
        return view.described(
            verdict, "it is valid as long as that process lives", f"Wait until process {pid} removes it"
        )
    if view.env.time() - view.found.st_mtime > _LASTS:
        verdict = view.by_age(LEFTOVER, "it names no process, and was touched more than five minutes ago")
        advice = f"dotlockfile replaces it; others may need: rm -f {quoted(view.path)}"
        return view.described(verdict, "a lock without a pid is valid for five minutes", advice)
    verdict = view.by_age(HELD, "it names no process, and was touched in the last five minutes")
    reason = "a lock without a pid is valid for five minutes after it was last touched"
    return view.described(verdict, reason, "Wait until it is removed, or for these five minutes")
