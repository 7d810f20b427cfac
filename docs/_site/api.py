"""The reference of the API: what docstrings mention becomes a link."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import holdfast

DOCS = Path(__file__).parents[1]
_PAGES = {
    "locks": ("Lock", "Hold", "Semaphore", "acquire_all", "AsyncLock", "AsyncHold", "AsyncSemaphore"),
    "values": ("Status", "Record", "Holder", "Waiter", "Liveness", "Evidence"),
}
_PLACES = {name: f"reference/{page}.html#holdfast.{name}" for page, names in _PAGES.items() for name in names}
_ERRORS = {
    name: f"reference/values.html#holdfast.errors.{name}"
    for name in holdfast.__all__
    if name not in _PLACES and issubclass(getattr(holdfast, name), holdfast.HoldfastError)
}
_TAG = re.compile(r"(<[^>]*>)")
_WORD = re.compile(rf"\bdocs/([\w/-]+)\.md\b|(?<![\w.])({'|'.join(_ERRORS)})\b")
_LEFT_ALONE = {"a", "autoref", "h1", "h2", "h3", "h4", "pre", "nav"}


def linked(html: str, uri: str) -> str:
    """Pages and errors wherever they are named; other public names where they are marked as code."""
    made: list[str] = []
    stack: list[str] = []
    base = posixpath.dirname(uri)
    for part in _TAG.split(html):
        name = part[1:-1].split()[0].strip("/") if part.startswith("<") and len(part) > 2 else ""
        if name and part.startswith("</"):
            if name in stack:
                del stack[len(stack) - 1 - stack[::-1].index(name) :]
        elif name and not part.endswith("/>") and not part.startswith("<!"):
            stack.append(name)
        elif part and not _LEFT_ALONE.intersection(stack):
            part = _with_links(part, base, is_code="code" in stack)
        made.append(part)
    return "".join(made).replace('<span class="n">_UNSET</span>', '<span class="o">...</span>')


def _with_links(text: str, base: str, is_code: bool) -> str:
    if is_code and text in _PLACES:
        return _link(text, _PLACES[text], base)

    def link(word: re.Match[str]) -> str:
        if word[2]:
            return _link(word[2], _ERRORS[word[2]], base)
        return _link(word[0], f"{word[1]}.html", base) if (DOCS / f"{word[1]}.md").exists() else word[0]

    return _WORD.sub(link, text)


def _link(text: str, uri: str, base: str) -> str:
    return f'<a href="{posixpath.relpath(uri, base)}">{text}</a>'
