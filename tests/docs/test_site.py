"""The site: every page is in its navigation, and mistakes in the build are found (`make docs` builds it)."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "_site"


class _Loader(yaml.SafeLoader):
    """Leaves out tags that only MkDocs can load."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def navigation() -> list[str]:
    def uris(entry: object) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values() if isinstance(entry, dict) else entry:  # type: ignore[attr-defined]
                yield from uris(inner)

    return [*uris(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)["nav"])]


def test_every_page_is_in_the_navigation(monkeypatch: pytest.MonkeyPatch) -> None:
    path_of = loaded("repository", monkeypatch).path_of
    listed = set()
    for entry in navigation():
        if entry.endswith("/*"):
            listed.update(ROOT.glob(f"docs/{entry.removesuffix('*')}*.md"))
        else:
            listed.add(ROOT / path_of(entry))
    assert {path for path in listed if not path.exists()} == set()
    assert set(ROOT.glob("docs/**/*.md")) - listed == set()


def test_the_navigation_has_each_page_once() -> None:
    found = navigation()
    assert len(found) == len(set(found))


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SITE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = importlib.util.spec_from_file_location(f"site_{name}", SITE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GOOD = """
<html><head><link rel="stylesheet" href="a.css"></head><body><h1 id="top">x</h1>
<a href="b/c.html#there">b</a> <a href="#top">t</a> <a href="https://elsewhere.example/">e</a>
</body></html>
"""


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("", ""),
        ('<a href="nothing.html">x</a>', "leads nowhere: nothing.html"),
        ('<a href="../out.html">x</a>', "leads nowhere"),
        ('<a href="b/c.html#not-there">x</a>', "leads to no anchor: b/c.html#not-there"),
        ('<a href="#not-there">x</a>', "leads to no anchor"),
        ('<script src="https://cdn.example/x.js"></script>', "from another host: https://cdn.example/x.js"),
        ('<img src="//cdn.example/x.png">', "from another host"),
        ('<link rel="stylesheet" href="https://fonts.example/css">', "from another host"),
        ('<link rel="preconnect" href="https://fonts.example">', "from another host"),
        ('<p style="background: url(https://cdn.example/x.png)">x</p>', "from another host"),
        ('<pre class="mermaid">x</pre>', "from another host"),
        ('<img src="not-there.png">', "is not there: not-there.png"),
        ("<p>so:\n- one\n- two</p>", "a list without a blank line"),
    ],
)
def test_every_kind_of_mistake_in_the_site_is_found(
    wrong: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "index.html").write_text(GOOD.replace("</body>", f"{wrong}</body>"))
    (tmp_path / "a.css").write_text("h1 { color: red }")
    (tmp_path / "b" / "c.html").write_text('<p id="there">x</p>')
    found = loaded("check", monkeypatch).problems(tmp_path)
    assert len(found) == (1 if wrong else 0), found
    assert not wrong or said in found[0]


def test_a_stylesheet_that_loads_from_another_host_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.css").write_text('@import "https://fonts.example/css"; h1 { background: url("data:x") }')
    assert len(loaded("check", monkeypatch).problems(tmp_path)) == 1


def test_the_site_has_at_most_seventy_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = len(list((ROOT / "docs").glob("**/*.md"))) + len(loaded("repository", monkeypatch).PAGES)
    assert pages <= 70


FOUND = {
    "xdist": "howto/build-cache.md",
    "django": "howto/web-workers.md",
    "celery": "howto/web-workers.md",
    "nfs": "howto/shared-storage.md",
    "lustre": "howto/shared-storage.md",
    "windows": "platforms.md",
    "docker": "howto/containers.md",
    "kubernetes": "howto/kubernetes.md",
    "git": "kinds.md",
    "redis": "howto/redis.md",
    "patroni": "howto/patroni.md",
    "cron": "howto/cron.md",
    "systemd": "howto/systemd.md",
    "filelock": "migrating/filelock.md",
}


@pytest.mark.parametrize("word", FOUND)
def test_the_search_finds_the_page_that_helps(word: str) -> None:
    """It ranks headings far above text, so that page has the word in one, and no other has it in its title."""
    pattern = re.compile(rf"\b{word}\b", re.IGNORECASE)
    titled, headed = set(), set()
    for path in (ROOT / "docs").glob("**/*.md"):
        headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        name = path.relative_to(ROOT / "docs").as_posix()
        titled.update([name] if pattern.search(headings[0]) else [])
        headed.update([name] if any(map(pattern.search, headings)) else [])
    assert titled <= {FOUND[word]}
    assert FOUND[word] in headed


def test_a_link_out_of_docs_leads_to_its_page_on_the_site_or_becomes_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relinked = loaded("repository", monkeypatch).relinked
    text = (
        "[a](../SECURITY.md#x) `[b](../SECURITY.md)` [c](cli.md) [`d`](../tests/unit/test_house.py#L3) "
        "[e](../examples)\n"
    )
    code = "```text\n[e](../bench/README.md)\n```\n"
    assert relinked(text + code, "testing.md") == (
        "[a](repository/SECURITY.md#x) `[b](../SECURITY.md)` [c](cli.md) `d` [e](repository/examples.md)\n" + code
    )
    assert relinked("[a](docs/cli.md) [b](LICENSE) [c](README.md)", "repository/SECURITY.md") == (
        "[a](../cli.md) b [c](../index.md)"
    )
    assert relinked(
        "see [a\nlink](docs/cli.md), `[c\nd](LICENSE)`\n\n```text\n[a\nb](LICENSE)\n```", "repository/SECURITY.md"
    ) == ("see [a\nlink](../cli.md), `[c\nd](LICENSE)`\n\n```text\n[a\nb](LICENSE)\n```")
    assert relinked("[a](pool.py) [b](../docs/cli.md)", "repository/examples.md") == (
        "[a](examples/pool.py) [b](../cli.md)"
    )


def test_columns_and_invariants_of_a_docstring_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    griffe = ModuleType("griffe")
    griffe.Extension = griffe.Module = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "griffe", griffe)
    text = "What it is.  And so on.\n\nT1  One thing\n    that counts.\nT2  Another.\n\na.py    this\nb.py    that"
    assert loaded("docstrings", monkeypatch).as_markdown(text) == (
        "What it is.  And so on.\n\n- **T1** One thing\n    that counts.\n- **T2** Another.\n\n"
        "```text\na.py    this\nb.py    that\n```"
    )


def test_directives_for_the_tests_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    page = "a\n<!-- hidden: sh\n\n```\nx\n-->\n<!-- file: b.py -->\n```python\n<!-- code -->\n```\n"
    shown = loaded("markdown_text", monkeypatch).without_directives(page)
    assert shown == 'a\n```python title="b.py"\n<!-- code -->\n```\n'


def test_a_bar_in_a_span_of_code_is_shown_without_its_backslash(monkeypatch: pytest.MonkeyPatch) -> None:
    page = "| `a\\|b` | c \\| d |\n`a\\|b`\n```text\n| `a\\|b` |\n```"
    shown = loaded("markdown_text", monkeypatch).with_bars(page)
    assert shown == "| `a|b` | c \\| d |\n`a\\|b`\n```text\n| `a\\|b` |\n```"


def test_the_picture_of_the_house_shows_its_rooms_and_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except the numbers of modules and lines, which are those of the last `make house`."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    house = loaded("house", monkeypatch)

    def drawn(text: str) -> str:
        return re.sub(r'(?<=<text class="size").*', "", text)

    assert drawn((ROOT / "docs" / "house.svg").read_text()) == drawn(house.picture()), "make house draws it again"
