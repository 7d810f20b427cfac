"""Help as wide as the terminal: paragraphs and lists are folded where they do not fit, and else left as written."""

from __future__ import annotations

import re
from textwrap import wrap

_ITEM = re.compile(r"( +\S+(?: \S+)? {2,})(\S.*)")
"""A name, and what is said of it."""


class _Part:
    """A paragraph, an item of a list, or (`whole`) a line that has to stay one."""

    def __init__(self, lead: str, text: str, *, whole: bool = False) -> None:
        self.lead = lead
        self.text = text
        self.whole = whole

    def folded(self, width: int) -> list[str]:
        if self.whole:
            return [self.lead + self.text]
        room = max(10, width - len(self.lead))
        lines = wrap(self.text, room, break_on_hyphens=False, break_long_words=False) or [""]
        return [(self.lead if number == 0 else " " * len(self.lead)) + line for number, line in enumerate(lines)]


def folded(text: str, width: int) -> str:
    """Blank lines stay; so do indented lines that are no items, such as commands to be copied."""
    blocks = []
    for block in text.split("\n\n"):
        lines = block.split("\n")
        if all(len(line) <= width for line in lines):
            blocks.append(block)
        else:
            blocks.append("\n".join(line for part in _parts(lines) for line in part.folded(width)))
    return "\n\n".join(blocks)


def _parts(lines: list[str]) -> list[_Part]:
    parts: list[_Part] = []
    for line in lines:
        text = line.lstrip()
        indent = len(line) - len(text)
        item = _ITEM.fullmatch(line)
        last = parts[-1] if parts else None
        if last is not None and not last.whole and indent == len(last.lead):
            last.text += f" {text}"
        elif item:
            parts.append(_Part(item[1], item[2]))
        else:
            parts.append(_Part(line[:indent], text, whole=bool(indent)))
    return parts
