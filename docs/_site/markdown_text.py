"""Markdown as lines that are code and lines that are not."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

_FENCE = re.compile(r" *(`{3,}|~{3,})(.*)")
_COMMENT = re.compile(r"\s*<!--")
_FILE = re.compile(r"\s*<!--\s*file:\s*(\S+)\s*-->\s*")
_SPAN = re.compile(r"(`+)(?:.+?)\1", re.DOTALL)


def lines(text: str) -> Iterator[tuple[str, str]]:
    """Each line, and what it is: `open` (a fence), `code`, `close`, `comment`, or `text`."""
    fence, comment = "", False
    for line in text.split("\n"):
        found = _FENCE.fullmatch(line)
        if fence:
            ends = found and found[1].startswith(fence) and not found[2].strip()
            yield ("close" if ends else "code"), line
            fence = "" if ends else fence
        elif comment or _COMMENT.match(line):
            yield "comment", line
            comment = "-->" not in line
        elif found and "`" not in found[2]:
            fence = found[1]
            yield "open", line
        else:
            yield "text", line


def prose(text: str, change: Callable[[str], str]) -> str:
    """The text, with whatever is not code changed, a paragraph at a time: links and spans of code go over lines."""
    made = []
    for is_text, group in itertools.groupby(lines(text), lambda each: each[0] == "text" and bool(each[1].strip())):
        paragraph = "\n".join(line for _, line in group)
        made.append(_outside_spans(paragraph, change) if is_text else paragraph)
    return "\n".join(made)


def _outside_spans(paragraph: str, change: Callable[[str], str]) -> str:
    """Spans of code are put aside, so that a link around one is still seen as one."""
    spans: list[str] = []

    def aside(span: re.Match[str]) -> str:
        spans.append(span[0])
        return f"\0{len(spans) - 1}\0"

    changed = change(_SPAN.sub(aside, paragraph))
    return re.sub("\0(\\d+)\0", lambda number: spans[int(number[1])], changed)


def without_directives(text: str) -> str:
    """Without the comments that say how a block is tested, but with the name of the file that a block is written to."""
    made: list[str] = []
    title = ""
    for kind, line in lines(text):
        if kind == "comment":
            name = _FILE.fullmatch(line)
            title = name[1] if name else title
        elif kind == "open" and title:
            made.append(f'{line} title="{title}"')
            title = ""
        else:
            made.append(line)
    return "\n".join(made)


def with_bars(text: str) -> str:
    """A `\\|` in a span of code in a table as the site's Markdown has it: a bar there ends no cell."""
    rows = (
        _SPAN.sub(lambda span: span[0].replace("\\|", "|"), line) if kind == "text" and line.startswith("|") else line
        for kind, line in lines(text)
    )
    return "\n".join(rows)
