"""From the numbers of a run (`--json`) to a page, a chart and the tables of the documentation. Measures nothing.

numbers.py   what is drawn: rows with a spread, lines with points, and what was not measured
figures.py   which figures there are, from the JSON          latencies.py crowds.py   their rows and lines
verdicts.py  who is better, in words
svg.py       axes and marks      dots.py curves.py   the two kinds of chart      poster.py   the chart of the README
html.py      the page            markdown.py  docs.py   the tables, and where they go
style.py     colours             words.py     sentences
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .docs import renew
from .html import page

FORMAT = 1
"""Of the JSON. What another number has written is refused, not guessed at."""

__all__ = ["FORMAT", "Unreadable", "load", "page", "renew"]


class Unreadable(Exception):
    """A file that is no run of these benchmarks; the text says why."""


def load(path: Path) -> dict[str, Any]:
    """The numbers of an earlier run."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Unreadable(f"{path} is no JSON: {error}") from None
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        found = report.get("format", "none") if isinstance(report, dict) else "none"
        raise Unreadable(f"{path} has format {found}, wanted {FORMAT}: measure again with --json {path}")
    return report
