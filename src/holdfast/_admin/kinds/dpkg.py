"""dpkg and apt: files that stay, with a kernel lock (`fcntl`) while a command works.

They are `lock` and `lock-frontend` in dpkg's state directory, `Lock` in `triggers` there, `lock` where apt keeps its
lists and its archives. If one of them is removed, a second command gets in beside the first.
"""

from __future__ import annotations

from ..found import Found
from .base import View


def look(view: View) -> Found | None:
    if not view.is_file or not _is_its_place(view):
        return None
    verdict = view.of_kernel()
    reason = "other commands wait, or refuse, until it has ended"
    advice = f"Wait until {view.who(verdict)} has ended; never remove this file"
    return view.described(verdict, reason, advice, aged=False)


def _is_its_place(view: View) -> bool:
    if view.name == "Lock":
        return view.where.endswith("/triggers") and view.is_there(f"{view.where}/../status", f"{view.where}/../info")
    if view.is_there(f"{view.where}/status", f"{view.where}/info"):
        return True
    return (
        view.name == "lock" and view.where.endswith(("/lists", "/archives")) and view.is_there(f"{view.where}/partial")
    )
