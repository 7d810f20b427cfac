"""Files in `/run/lock`, which systemd makes for the locks of services (`/var/lock` leads there): `LCK..ttyS0` for a
serial line, with a pid in it; and any other file that consists of a pid.

Files with a kernel lock alone do not count: each lock file of ours there has one, and may be empty for a moment.
"""

from __future__ import annotations

from ..._core.messages import quoted
from ..found import LEFTOVER, Found
from .base import View, pid_in


def look(view: View) -> Found | None:
    serial = view.name.startswith("LCK..")
    if not view.is_file:
        return None
    data = view.data(most=64)
    pid = int.from_bytes(data, "little") if serial and len(data) == 4 else pid_in(data)
    if not pid:
        return None
    verdict = view.of_process(pid)
    what = f"/dev/{view.name.removeprefix('LCK..')} is in use" if serial else "its service runs"
    if verdict.condition == LEFTOVER:
        reason = "programs that look at the pid replace it"
        return view.described(verdict, reason, f"If yours does not: rm -f {quoted(view.path)}")
    return view.described(verdict, what, f"Wait until process {pid} has ended, or end it")
