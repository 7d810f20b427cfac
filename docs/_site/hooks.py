"""What MkDocs cannot do by itself: patterns in the nav, pages of files outside docs/, comments for the tests of pages.

MkDocs calls the functions named `on_…`. The pages stay plain Markdown that reads well without any of this.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import api
import commands
import markdown_text
import repository
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parents[1]
_COMMANDS = "<!-- commands -->"
_CITED = re.compile(r"(?<=\n)\s*(Tests?): ((?:<code>[^<]*</code>(?:,\s*)?)+)(?=</li>)")
"""The tests of a promise: on the site, they open when a reader wants to see them."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = _expanded(config.nav)
    return config


def _expanded(entry: Any) -> Any:
    """The nav, with `directory/*` replaced by the pages of that directory."""
    if isinstance(entry, dict):
        return {title: _expanded(inner) for title, inner in entry.items()}
    if not isinstance(entry, list):
        return entry
    found: list[Any] = []
    for each in entry:
        if isinstance(each, str) and each.endswith("/*"):
            found += pages_of(each.removesuffix("/*"))
        else:
            found.append(_expanded(each))
    return found


def pages_of(directory: str) -> list[str]:
    """Its index, then what the index links to, in that order, then the rest."""
    names = sorted(path.name for path in DOCS.joinpath(directory).glob("*.md"))
    index = DOCS / directory / "index.md"
    linked = re.findall(r"\]\(([\w.-]+\.md)", index.read_text(encoding="utf-8")) if index.exists() else []
    order = {name: number for number, name in enumerate(["index.md", *linked][::-1])}
    names.sort(key=lambda name: -order.get(name, -1))
    return [f"{directory}/{name}" for name in names]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Some files outside docs/ become pages, some are copied as they are."""
    for path in repository.PAGES:
        text = (repository.ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, repository.uri_of(path), content=text))
    for path in repository.files():
        files.append(File.generated(config, repository.uri_of(path), abs_src_path=str(repository.ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    if _COMMANDS in markdown:
        markdown = markdown.replace(_COMMANDS, commands.reference())
    markdown = markdown_text.with_bars(markdown_text.without_directives(markdown))
    return repository.relinked(markdown, page.file.src_uri)


def on_page_content(html: str, page: Page, **_: object) -> str:
    html = _CITED.sub(r'<details class="cited"><summary>\1</summary>\2</details>', html)
    return api.linked(html, page.file.src_uri) if page.file.src_uri.startswith("reference/") else html
