"""passwd, useradd and the like: `/etc/passwd.lock` and its sisters, and `/etc/.pwd.lock`.

The first are made by a link to a file that has the pid in it, and are replaced by the next command if that process has
gone. `.pwd.lock` is a file that stays, with a kernel lock (`fcntl`), which systemd-sysusers takes, too.
"""

from __future__ import annotations

from ..._core.messages import quoted
from ..found import LEFTOVER, Found
from .base import View, pid_in


def look(view: View) -> Found | None:
    if not view.is_file or not view.where.endswith("/etc"):
        return None
    if view.name == ".pwd.lock":
        verdict = view.of_kernel()
        advice = f"Wait until {view.who(verdict)} has ended; never remove this file"
        reason = "commands that change users and groups wait 15 s for it, and give up"
        return view.described(verdict, reason, advice, aged=False)
    pid = pid_in(view.data(most=64))
    if pid is None:
        verdict = view.of_nobody("there is no pid in it")
        reason = "a command that finds no pid in it refuses, because the pid may be about to be written"
        advice = f"If it is still so in a minute, and no such command runs: rm -f {quoted(view.path)}"
        return view.described(verdict, reason, advice, refuses=True)
    verdict = view.of_process(pid)
    if verdict.condition == LEFTOVER:
        reason = "the next command that changes users or groups replaces it"
        return view.described(verdict, reason, "Nothing needs to be done")
    reason = "commands that change users and groups wait for it, and give up (cannot lock /etc/passwd)"
    return view.described(verdict, reason, f"Wait until process {pid} has ended; vipw keeps it for its editor")
