"""Vim: a swap file `.X.swp` (`.swo`, `.swn` …) for each file that is edited, open as long as Vim lives.

Its first block has the pid, the user, the host, the file, and whether there are changes that are not saved. Vim never
removes the swap file of another process; it asks.
"""

from __future__ import annotations

from ..._core.messages import quoted
from ..found import ELSEWHERE, LEFTOVER, Found
from .base import View

_BLOCK = 1008
_DIRTY = 0x55
_LONGEST_HOST = 39
"""Bytes of the host's name that Vim keeps: fewer than many a name in a cloud has."""


def look(view: View) -> Found | None:
    block = view.data(most=_BLOCK)
    if len(block) < _BLOCK or not block.startswith((b"b0VIM ", b"b0nVIM ")):
        return None
    pid = int.from_bytes(block[24:28], "little")
    user, host, file = (_text(block[start:end]) for start, end in ((28, 68), (68, 108), (108, 1006)))
    mine, kept = view.env.identity().host, block[68:108].partition(b"\0")[0]
    if len(kept) == _LONGEST_HOST and mine.encode("utf-8", "surrogateescape").startswith(kept):
        host = mine  # there was no room for more of it
    dirty = block[_BLOCK - 1] == _DIRTY
    writers = view.openers()
    tag = f"{file or 'a file without a name'}{', with changes' if dirty else ''}"
    verdict = view.of_openers(writers) if writers else view.of_process(pid, host or None, tag)
    verdict = verdict.replaced(holders=tuple(one.replaced(tag=tag) for one in verdict.holders))
    if verdict.condition == LEFTOVER:
        reason = "Vim has ended without removing it, and asks whenever that file is opened"
        advice = f"vim -r {quoted(file)} shows what is in it; when you have saved that: rm {quoted(view.path)}"
        return view.described(verdict, reason, advice, refuses=True)
    who = f"{user or 'somebody'}{f' on {host}' if verdict.condition == ELSEWHERE else ''}"
    reason = f"{who} edits it{', with changes that are not saved' if dirty else ''}; another Vim asks"
    return view.described(
        verdict, reason, "Leave that file alone until the other Vim has ended, or open it read-only (vim -R)"
    )


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "replace")
