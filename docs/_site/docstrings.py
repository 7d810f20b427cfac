"""Docstrings as Markdown: numbered invariants become a list, what comes in columns keeps its lines."""

from __future__ import annotations

import re
from typing import Any

import griffe

_INVARIANT = re.compile(r"([A-Z]{1,2}\d+)  (?=\S)")
_COLUMNS = re.compile(r"\S+(?: \S+)* {3,}\S")


class Docstrings(griffe.Extension):
    """Of modules: the docstrings of anything else have neither."""

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        if mod.docstring is not None and "```" not in mod.docstring.value:
            mod.docstring.value = as_markdown(mod.docstring.value)


def as_markdown(text: str) -> str:
    """The same, paragraph by paragraph."""
    return "\n\n".join(map(_paragraph, re.split(r"\n{2,}", text)))


def _paragraph(text: str) -> str:
    lines = text.split("\n")
    if _INVARIANT.match(text):
        return "\n".join(_INVARIANT.sub(r"- **\1** ", line, count=1) for line in lines)
    if _COLUMNS.match(text):
        return "\n".join(["```text", *lines, "```"])
    return text
