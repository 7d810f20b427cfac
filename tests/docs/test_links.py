"""The pages: links lead somewhere, and every test that they cite exists."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from docs.pages import pages

ROOT = Path(__file__).parents[2]
PAGES = pages()
NAMES = {path: path.relative_to(ROOT).as_posix() for path in PAGES}
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!\\)\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_REFERENCE = re.compile(r"^\[[^\]]+\]:\s*<?(\S+?)>?\s*$", re.MULTILINE)
_CITATION = re.compile(r"\b(tests/[\w./-]+\.py)(?:::(\w+(?:::\w+)*))?")


def prose(path: Path) -> str:
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def links(path: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", prose(path))
    return _LINK.findall(text) + _REFERENCE.findall(text)


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes from the headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*#*$", prose(path), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = 0
        unique = slug
        while unique in found:
            number += 1
            unique = f"{slug}-{number}"
        found.add(unique)
    return found


@pytest.mark.parametrize("page", PAGES, ids=NAMES.get)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue  # another site, which this test does not ask
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if (
            not file.exists()
            or not file.is_relative_to(ROOT)
            or (anchor and file.suffix == ".md" and anchor not in anchors(file))
        ):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=NAMES.get)
def test_every_test_that_a_page_cites_exists(page: Path) -> None:
    missing = []
    for file, name in _CITATION.findall(page.read_text(encoding="utf-8")):
        path = ROOT / file
        if not path.exists() or (name and name not in names_of_tests(path)):
            missing.append(f"{file}::{name}" if name else file)
    assert not missing


def test_the_checker_reads_links_anchors_and_citations(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('# A `b` c!\n[x](y.md "t") ![i](<z.png>)\n\n[r]: w.md\n```\n[no](code.md)\n```\n`[no](span.md)`\n')
    assert links(page) == ["y.md", "z.png", "w.md"]
    assert anchors(page) == {"a-b-c"}
    assert _CITATION.findall("`tests/unit/test_x.py::test_y[a-1]`") == [("tests/unit/test_x.py", "test_y")]


@functools.cache
def names_of_tests(path: Path) -> set[str]:
    """The `test_x` and `Class::test_x` of a file."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found.update(f"{node.name}::{inner.name}" for inner in node.body if hasattr(inner, "name"))
    return found
