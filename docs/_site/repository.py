"""Files outside docs/ that pages link to: README.md, tests, examples. On the site they are pages below `repository/`.

A path is relative to the root of the repository; a uri, to docs/. Markdown becomes a page as it is, anything else a
listing, a directory its README.md or a list of its files.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import markdown_text

ROOT = Path(__file__).parents[2]
PREFIX = "repository/"
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=(?:\s+\"[^\"]*\")?\))|(?<=\]: )(\S+)$")
_CITATION = re.compile(r"(?<!\[)`(tests/[\w./-]+\.py)(?:::(\w+(?:::\w+)*))?(?:\[[^\]`]*\])?`")
"""A test that a page names for what it says. On the site it is a link."""
_NO_SEARCH = "---\nsearch:\n  exclude: true\n---\n\n"
_LANGUAGES = {".py": "python", ".sh": "bash", ".mjs": "javascript", ".toml": "toml", ".json": "json", ".yml": "yaml",
              ".service": "ini", ".rs": "rust", ".go": "go", ".c": "c"}  # fmt: skip


def uri_of(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path == "docs" or path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith("/README.md") or (ROOT / path).is_dir():
        return f"{PREFIX}{path.removesuffix('/README.md')}.md"  # not README.md: that would be the page of its section
    return f"{PREFIX}{path}" if path.endswith(".md") else f"{PREFIX}{path}.md"


def path_of(uri: str) -> str:
    """The other way round, for pages: what a page was made of."""
    if not uri.startswith(PREFIX):
        return f"docs/{uri}"
    path = uri.removeprefix(PREFIX)
    return path if (ROOT / path).exists() else path.removesuffix(".md")


def reached(starts: Iterable[str]) -> set[str]:
    """What pages lead to outside of docs/, directly or by other such pages."""
    found: set[str] = set()
    todo = list(starts)
    while todo:
        path = todo.pop()
        outside = not path.startswith("docs/")
        if uri_of(path) in {uri_of(each) for each in found}:
            continue
        if outside:
            found.add(path)
        if path.endswith(".md") or (ROOT / path).is_dir():
            todo += [target for target in _targets(path) if not target.startswith("docs/")]
    return found


def _targets(path: str) -> Iterator[str]:
    for kind, line in markdown_text.lines(content(path)):
        if kind == "text":
            yield from (cited[1] for cited in _CITATION.finditer(line) if (ROOT / cited[1]).exists())
            for link in _LINK.finditer(line):
                target = _resolved(link[0].partition("#")[0], path)
                if target:
                    yield target


def _resolved(link: str, path: str) -> str:
    """The file of this repository that a link in a file leads to; empty if it leads elsewhere."""
    if not link or re.match(r"[a-z][a-z0-9+.-]*:|/", link):
        return ""
    base = path if (ROOT / path).is_dir() else posixpath.dirname(path)
    target = posixpath.normpath(posixpath.join(base, link))
    return "" if target.startswith("..") or not (ROOT / target).exists() else target


def content(path: str) -> str:
    """The Markdown of the page that a file becomes."""
    file = ROOT / path
    if file.is_dir():
        readme = file / "README.md"
        return readme.read_text(encoding="utf-8") if readme.exists() else _list(path)
    text = file.read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    fence = "`" * (max(map(len, re.findall(r"`{3,}", text)), default=2) + 1)
    language = _LANGUAGES.get(file.suffix, "bash" if text.startswith("#!") and "sh" in text.split("\n")[0] else "text")
    return f"{_NO_SEARCH}# {path}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"


def _list(path: str) -> str:
    names = sorted(name for name in os.listdir(ROOT / path) if not name.startswith((".", "__")))
    rows = [f"- [`{name}`]({name})" for name in names if (ROOT / path / name).is_file()]
    return "\n".join([f"{_NO_SEARCH}# {path}/", "", *rows, ""])


def relinked(text: str, uri: str) -> str:
    """A page with its links as they are on the site."""
    path = path_of(uri)
    base = posixpath.dirname(uri) or "."

    def to(target: str) -> str:
        return posixpath.relpath(uri_of(target), base)

    def moved(link: re.Match[str]) -> str:
        name, hash_, anchor = link[0].partition("#")
        target = _resolved(name, path)
        if not target or (path.startswith("docs/") and target.startswith("docs/")):
            return link[0]
        return to(target) + hash_ + anchor

    def linked(cited: re.Match[str]) -> str:
        if not (ROOT / cited[1]).exists():
            return cited[0]
        line = _line(cited[1], (cited[2] or "").rpartition("::")[2])
        return f"[{cited[0]}]({to(cited[1])}{line and f'#__span-0-{line}'})"

    text = markdown_text.prose(text, lambda line: _LINK.sub(moved, line))
    return markdown_text.prose(text, lambda line: _CITATION.sub(linked, line), spans=True)


def _line(path: str, name: str) -> int | str:
    """Where a test is, from 1; empty if it is not to be found."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines() if name else []
    return next(
        (number for number, line in enumerate(lines, 1) if re.match(rf"\s*(async )?(def|class) {name}\b", line)), ""
    )
