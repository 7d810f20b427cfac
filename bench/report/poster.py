"""The charts of the README: what is asked most, and where holdfast loses. They read well on any ground."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from peers import Fasteners, FileLock, Flufl, Holdfast, Portalocker, SoftFileLock
from references import BlockingFlock

from .dots import described, panel
from .figures import figures
from .numbers import Figure
from .style import alone
from .svg import element, figure_of, text

_SHOWN = [one.label for one in (Holdfast, FileLock, SoftFileLock, Portalocker, Fasteners, Flufl, BlockingFlock)]
_PANELS = {
    "handoff-own": "Hand-off to a waiting process",
    "fairness-rate": "16 processes without a pause: acquisitions",
}
_WIDTH, _GAP, _TOP, _HEAD = 960.0, 24.0, 78.0, 30.0


def poster(report: Mapping[str, Any]) -> str:
    """The whole picture, as a file of its own."""
    chosen = [_chosen(one) for one in figures(report) if one.key in _PANELS and isinstance(one, Figure)]
    width = (_WIDTH - 3 * _GAP) / 2
    body, y, said = "", _TOP, []
    for pair in (chosen[at : at + 2] for at in range(0, len(chosen), 2)):
        drawn = [panel(figure, width - 20, stacked=False, gutter=126.0) for figure in pair]
        high = max(height for _, height in drawn) + _HEAD + 8
        for column, (figure, (rows, _)) in enumerate(zip(pair, drawn, strict=True)):
            less = "more is better" if figure.more_is_better else "less is better"
            inside = text(10, 22, figure.title, "head") + text(width - 10, 22, less, "muted small", "end")
            inside += element("g", rows, transform=f"translate(10 {_HEAD:g})")
            ground = element("rect", width=width, height=high, rx=6, class_="panel")
            x = _GAP + column * (width + _GAP)
            body += element("g", ground + inside, transform=f"translate({x:g} {y:g})")
            said.append(f"{figure.title}: {described(figure)}")
        y += high + _GAP
    facts = report["facts"]
    run = "" if facts.get("run") == "full" else "quick run; "
    under = f"{run}{facts.get('date', '')}; {facts['machine']}; Python {facts['Python']}"
    shown = "medians, middle half, 5–95 %"  # noqa: RUF001
    title = "holdfast beside other locks"
    head = element("style", alone()) + element("rect", width=_WIDTH, height=y + 4, class_="ground")
    head += text(_GAP, 30, title, "title") + text(_GAP, 50, under, "muted small") + text(_GAP, 66, shown, "muted small")
    return figure_of("benchmarks", "poster", title, " ".join(said), _WIDTH, y + 4, head + body) + "\n"


def _chosen(figure: Figure) -> Figure:
    """With the subjects that most people know, without the longest tails, which would press the rest together."""
    rows = [replace(row, tail=None) for row in figure.rows if row.label in _SHOWN]
    return replace(figure, title=_PANELS[figure.key], says="", rows=rows)
