"""Help is as wide as the terminal (parser.py)."""

from __future__ import annotations

import pytest

from holdfast.cli.options import BEADS, SUMMARIES
from holdfast.cli.parser import folded, overview_of, parser_of

PARSERS = {
    "holdfast": overview_of,
    **{name: (lambda name=name: parser_of(name)) for name in SUMMARIES if name not in ("beads", "sema", "semats")},
    **{f"beads {step}": (lambda step=step: parser_of(f"beads {step}")) for step in BEADS},
}


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("width", [60, 80, 200])
def test_help_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, name: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = PARSERS[name]().format_help()
    wide = [line for line in text.splitlines() if len(line) >= width]
    copied = getattr(PARSERS[name](), "examples", []) if width < 80 else []
    assert all("holdfast completion" in line or line.strip() in copied for line in wide)  # commands to be copied


@pytest.mark.parametrize("name", PARSERS)
def test_folding_keeps_every_word_in_order(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found = []
    for width in (60, 80, 300):
        monkeypatch.setenv("COLUMNS", str(width))
        text = PARSERS[name]().format_help()
        found.append(text[text.index("\n\n") :].split())
    assert found[0] == found[1] == found[2]


def test_a_folded_list_keeps_its_columns() -> None:
    text = "Before:\n  one    aaa bbb ccc\n         ddd eee\n  other  h\n\n  $ a command that is kept as it is\n\nshort"
    assert folded(text, 80) == text
    assert folded(text, 19).splitlines() == [
        "Before:",
        "  one    aaa bbb",
        "         ccc ddd",
        "         eee",
        "  other  h",
        "",
        "  $ a command that is kept as it is",
        "",
        "short",
    ]
    assert folded("one two\nthree four five", 10).splitlines() == ["one two", "three four", "five"]
