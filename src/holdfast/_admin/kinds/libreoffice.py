"""LibreOffice: `.~lock.X#` beside a document that is open: names, host, time and profile of its user, without a pid.

A LibreOffice that edits a local document keeps that open, too. The lock is no more than a sign: LibreOffice offers a
copy, or to open the document all the same.
"""

from __future__ import annotations

from ..._core.messages import printable, quoted
from ..found import ELSEWHERE, LEFTOVER, Found
from .base import Verdict, View

_PROGRAMS = ("soffice.bin", "soffice", "oosplash")
_MOST = 4096


def look(view: View) -> Found | None:
    text = view.data(most=_MOST).decode("utf-8", "replace").strip()
    fields = _fields(text.rstrip(";"))
    if not text.endswith(";") or not 4 <= len(fields) <= 8 or "\n" in text:
        return None
    name, login, host, when = fields[:4]
    who = name or login or "somebody"
    verdict = _by_programs(view, host)
    verdict = verdict.replaced(holders=tuple(one.replaced(tag=f"{who}, {when}") for one in verdict.holders))
    document = view.name[len(".~lock.") : -1]
    if verdict.condition == LEFTOVER:
        reason = "LibreOffice has ended without removing it, and says that the document is locked"
        return view.described(verdict, reason, f"rm {quoted(view.path)}", refuses=True)
    where = f" on {host}" if verdict.condition == ELSEWHERE else ""
    reason = f"{who}{where} has {document} open; LibreOffice offers a copy"
    return view.described(verdict, reason, f"Have {who} close the document{where}, or work in a copy")


def _by_programs(view: View, host: str) -> Verdict:
    if not view.is_here(host):
        return view.of_process(0, host)
    running = view.files.running(_PROGRAMS)
    name = view.name[len(".~lock.") : -1]
    document = view.stat(f"{view.where}/{name}")
    opened = view.files.openers(name, document.st_ino) if document is not None else []
    if editing := [pid for pid in running if pid in opened]:
        return view.of_openers(editing, f"is LibreOffice, and has {printable(name)} open")
    if running:
        return view.of_openers(running, "is LibreOffice, and may have it open")
    return view.of_nobody("no LibreOffice runs here")


def _fields(text: str) -> list[str]:
    """The texts between the commas; a backslash escapes the next character, as in "Doe\\, Jane"."""
    fields, plain = [""], False
    for letter in text:
        if plain or letter not in ",\\":
            fields[-1] += letter
            plain = False
        elif letter == ",":
            fields.append("")
        else:
            plain = True
    return fields
