"""What pages link to outside docs/. On the site, the Markdown of `PAGES` is there as pages, the examples as files.

A link to anything else (a test, a source file) is there as its text: the site explains the repository and does not
copy it.
A path is relative to the root of the repository; a uri, to docs/.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import markdown_text

ROOT = Path(__file__).parents[2]
PREFIX = "repository/"
PAGES = ("CHANGELOG.md", "SECURITY.md", "examples/README.md")
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)((?:\s+\"[^\"]*\")?)\)")


def files() -> list[str]:
    """What is copied as it is."""
    return sorted(
        f"examples/{path.name}" for path in (ROOT / "examples").iterdir() if path.is_file() and path.name != "README.md"
    )


def uri_of(path: str) -> str:
    """Where a file of the repository is on the site; empty if it is not there."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in PAGES:
        return PREFIX + path.replace("/README.md", ".md")  # not README.md: that would be the page of its section
    return PREFIX + path if path in files() else ""


def path_of(uri: str) -> str:
    """The other way round, for pages: what a page was made of."""
    return next((path for path in PAGES if uri_of(path) == uri), f"docs/{uri}")


def _resolved(link: str, path: str) -> str:
    """The file of this repository that a link in a file leads to; empty if it leads elsewhere."""
    if not link or re.match(r"[a-z][a-z0-9+.-]*:|/", link):
        return ""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    if (ROOT / target / "README.md").exists():
        target = f"{target}/README.md"
    return "" if target.startswith("..") or not (ROOT / target).exists() else target


def relinked(text: str, uri: str) -> str:
    """A page with its links as they are on the site."""
    path = path_of(uri)
    base = posixpath.dirname(uri) or "."

    def moved(link: re.Match[str]) -> str:
        name, hash_, anchor = link[2].partition("#")
        target = _resolved(name, path)
        if not target or (path.startswith("docs/") and target.startswith("docs/")):
            return link[0]
        there = uri_of(target)
        return f"[{link[1]}]({posixpath.relpath(there, base)}{hash_}{anchor}{link[3]})" if there else link[1]

    return markdown_text.prose(text, lambda paragraph: _LINK.sub(moved, paragraph))
