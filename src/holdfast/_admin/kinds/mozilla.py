"""Firefox and Thunderbird: `lock` in a profile, a link that leads nowhere and says ADDRESS:+PID, and `.parentlock`,
which has a kernel lock (`fcntl`) as long as the program runs. The next start replaces a link whose process has ended.
"""

from __future__ import annotations

from ..found import LEFTOVER, Found
from .base import View

_BESIDE = ("compatibility.ini", "prefs.js", "times.json")
"""Files in a profile; a new one gets them in this order."""


def look(view: View) -> Found | None:
    if view.name == ".parentlock":
        return _by_kernel(view)
    address, plus, pid = view.link().rpartition(":+")
    if not (plus and address and pid.isascii() and pid.isdecimal() and len(pid) <= 10):
        return None
    verdict = view.of_process(int(pid))
    if verdict.condition == LEFTOVER:
        return view.described(verdict, "the next start with this profile replaces it", "Nothing needs to be done")
    reason = "the profile is in use: a second start with it is refused"
    advice = f"Close that window, or use another profile (-P); it was made at the address {address}"
    return view.described(verdict, reason, advice)


def _by_kernel(view: View) -> Found | None:
    if not view.is_file or not any(view.is_there(f"{view.where}/{name}") for name in _BESIDE):
        return None
    verdict = view.of_kernel()
    reason = "the profile is in use: a second start with it is refused"
    return view.described(verdict, reason, f"Close {view.who(verdict)}, or use another profile (-P)", aged=False)
