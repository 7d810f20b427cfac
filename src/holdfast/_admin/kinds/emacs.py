"""Emacs: a link `.#X`, which leads nowhere and says USER@HOST.PID:BOOT, while a buffer with the file X is modified.

Where there are no links it is a file with the same text. Emacs replaces the lock of an ended process without asking.
"""

from __future__ import annotations

from ..found import ELSEWHERE, LEFTOVER, Found
from .base import View

_SLACK = 60.0
"""Seconds by which two looks at the time of the boot may differ."""


def look(view: View) -> Found | None:
    text = view.link() or view.data(most=1024).decode("utf-8", "replace").strip()
    user, at, rest = text.rpartition("@")
    host, dot, numbers = rest.rpartition(".")
    pid, colon, boot = numbers.partition(":")
    if not (user and at and dot and host) or not _is_number(pid) or (colon and not _is_number(boot)):
        return None
    verdict = view.of_process(int(pid), host, user)
    booted = view.env.time() - view.env.uptime()
    if verdict.condition != ELSEWHERE and boot and abs(booted - int(boot)) > _SLACK:
        verdict = view.of_nobody("it was made before this machine was booted", verdict.holders[:0])
    if verdict.condition == LEFTOVER:
        reason = "Emacs replaces it without asking; what was not saved may be in #FILE#"
        return view.described(verdict, reason, f"M-x recover-this-file in {view.name[2:]}, if you miss changes")
    where = f" on {host}" if verdict.condition == ELSEWHERE else ""
    advice = f"Have {user} save or revert the buffer in Emacs{where}; Emacs asks whether to steal it"
    return view.described(verdict, f"{user} has changes in Emacs that are not saved", advice)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 12
