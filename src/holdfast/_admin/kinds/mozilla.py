"""Firefox and Thunderbird: `lock` in a profile, a link that leads nowhere and says ADDRESS:+PID, and `.parentlock`,
which has a kernel lock (`fcntl`) as long as the program runs. The next start replaces a link whose process has ended.
"""

from __future__ import annotations

from .base import FREE, LEFTOVER, Kind, Sighting, View

_BESIDE = ("compatibility.ini", "prefs.js", "times.json")
"""What is in a profile; a new one gets them in this order."""


class Mozilla(Kind):
    name = "mozilla"

    def look(self, view: View) -> Sighting | None:
        if view.name == ".parentlock":
            return self._by_kernel(view)
        address, plus, pid = view.link().rpartition(":+")
        if not (plus and address and pid.isascii() and pid.isdecimal() and len(pid) <= 10):
            return None
        verdict = view.of_process(int(pid))
        if verdict.condition == LEFTOVER:
            return view.sighting(
                self.name,
                verdict,
                "the next start with this profile replaces it",
                "Nothing is to be done",
                refused=False,
            )
        reason = "the profile is in use: a second start with it is refused"
        advice = f"Close that window, or use another profile (-P); it was made at the address {address}"
        return view.sighting(self.name, verdict, reason, advice)

    def _by_kernel(self, view: View) -> Sighting | None:
        if not view.is_file or not any(view.is_there(f"{view.where}/{name}") for name in _BESIDE):
            return None
        verdict = view.of_kernel()
        if verdict.condition == FREE:
            return view.sighting(self.name, verdict, "nobody has locked it; the file stays", "", aged=False)
        reason = "the profile is in use: a second start with it is refused"
        return view.sighting(
            self.name, verdict, reason, f"Close {view.who(verdict)}, or use another profile (-P)", aged=False
        )
