"""passwd, useradd and the like: `/etc/passwd.lock` and its sisters, and `/etc/.pwd.lock`.

The first are made by a link to a file that has the pid in it, and are replaced by the next command if that process has
gone. `.pwd.lock` is a file that stays, with a kernel lock (`fcntl`), which systemd-sysusers takes, too.
"""

from __future__ import annotations

from .base import FREE, LEFTOVER, Kind, Sighting, View, pid_in, quoted


class Shadow(Kind):
    name = "shadow"

    def look(self, view: View) -> Sighting | None:
        if not view.is_file or not view.where.endswith("/etc"):
            return None
        if view.name == ".pwd.lock":
            verdict = view.of_kernel()
            if verdict.condition == FREE:
                return view.sighting(self.name, verdict, "nobody has locked it; the file stays", "", aged=False)
            advice = f"Wait until {view.who(verdict)} has ended; never remove this file"
            reason = "commands that change users and groups wait 15 s for it, and give up"
            return view.sighting(self.name, verdict, reason, advice, aged=False)
        pid = pid_in(view.data(most=64))
        if pid is None:
            verdict = view.of_nobody("there is no pid in it")
            reason = "a command that finds no pid in it refuses, for it may be written just now"
            advice = f"If it is still so in a minute, and no such command runs: rm -f {quoted(view.path)}"
            return view.sighting(self.name, verdict, reason, advice, refused=True)
        verdict = view.of_process(pid)
        if verdict.condition == LEFTOVER:
            reason = "the next command that changes users or groups replaces it"
            return view.sighting(self.name, verdict, reason, "Nothing is to be done", refused=False)
        reason = "commands that change users and groups wait for it, and give up (cannot lock /etc/passwd)"
        return view.sighting(
            self.name, verdict, reason, f"Wait until process {pid} has ended; vipw keeps it for its editor"
        )
