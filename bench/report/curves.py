"""A chart of lines over sizes, both axes logarithmic: a mark at each size, with the reach of the rounds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tables import show

from .numbers import Curves, Line
from .style import LINES
from .svg import Axis, axis, element, figure_of, line, mark, named, text, width_of

_WIDE, _NARROW = 720.0, 344.0
_HEIGHT, _LEFT, _RIGHT, _FOOT = 280.0, 62.0, 16.0, 44.0
_LINE = 20.0


def chart(curves: Curves, narrow: bool = False) -> str:
    """The figure, for a page of that width."""
    width = _NARROW if narrow else _WIDE
    styles = dict(_styles(curves))
    legend, top = _legend(curves, styles, width)
    bottom = top + _HEIGHT
    points = [point for one in curves.measured for point in one.points.values()]
    across = axis(curves.sizes, _LEFT + 10, width - _RIGHT - 10)
    up = axis([value for point in points for value in (point.low, point.middle, point.high)], bottom, top)
    body = legend + _frame(curves, across, up, width, top, bottom)
    for one in curves.measured:
        body += _drawn(one, across, up, *styles[one.label])
    variant = "narrow" if narrow else "wide"
    return figure_of(curves.key, variant, curves.title, described(curves), width, bottom + _FOOT, body)


def _styles(curves: Curves) -> Iterator[tuple[str, tuple[str, int]]]:
    """Colour and shape by label, also of who was not measured: a gap must not recolour the others."""
    colours = iter(LINES)
    for number, one in enumerate(curves.lines):
        colour = {"ours": "ours", "reference": "muted"}.get(one.role) or next(colours)
        if one.role == "ours" and one.label != curves.ours:
            colour = next(colours)
        yield one.label, (colour, number)


def _legend(curves: Curves, styles: dict[str, tuple[str, int]], width: float) -> tuple[str, float]:
    """The legend, in as many lines as it takes, and the height at which the drawing may begin."""
    parts, x, y = [], _LEFT, 14.0
    for one in curves.lines:
        words = one.label if one.points else f"{one.label} (not measured)"
        wide = width_of(words, bold=one.label == curves.ours)
        if x > _LEFT and x + 20 + wide > width:
            x, y = _LEFT, y + _LINE
        colour, shape = styles[one.label]
        if one.points:
            parts.append(line(x - 8, y - 4, x + 8, y - 4, _stroke(one, colour)))
            parts.append(mark(shape, x, y - 4, colour, hollow=one.role == "reference"))
        parts.append(text(x + 14, y, words, "own" if one.label == curves.ours else "" if one.points else "gap"))
        x += 34 + wide
    return "".join(parts), y + (30 if curves.unit else 16)


def _frame(curves: Curves, across: Axis, up: Axis, width: float, top: float, bottom: float) -> str:
    parts = []
    for tick in up.ticks:
        y = up(tick)
        parts.append(line(_LEFT, y, width - _RIGHT, y, "grid"))
        parts.append(text(_LEFT - 8, y + 4, named(tick), "muted small num", "end"))
    parts += [text(across(size), bottom + 18, named(size), "muted small num", "middle") for size in curves.sizes]
    parts.append(text((_LEFT + width - _RIGHT) / 2, bottom + 37, curves.across, "muted small", "middle"))
    if curves.unit:
        parts.append(text(_LEFT - 8, top - 12, curves.unit, "muted small", "end"))
    return "".join(parts)


def _stroke(one: Line, colour: str) -> str:
    return f"s-{colour} dash" if one.role == "reference" else f"s-{colour}"


def _drawn(one: Line, across: Axis, up: Axis, colour: str, shape: int) -> str:
    places = [(across(size), up(one.points[size].middle)) for size in sorted(one.points)]
    parts = [element("title", told(one))]
    for (x1, y1), (x2, y2) in pairwise(places):
        parts.append(line(x1, y1, x2, y2, _stroke(one, colour)))
    for size, point in one.points.items():
        x = across(size)
        if point.low != point.high:
            parts.append(line(x, up(point.low), x, up(point.high), f"s-{colour} thin"))
        parts.append(mark(shape, x, up(point.middle), colour, hollow=one.role == "reference"))
    return element("g", "".join(parts))


def told(one: Line) -> str:
    """One line in words."""
    if not one.points:
        return f"{one.label}: not measured"
    return f"{one.label}: " + ", ".join(f"{show(one.points[size].middle)} at {size}" for size in sorted(one.points))


def described(curves: Curves) -> str:
    """The chart in words, for readers who cannot see it. The table has the rest."""
    unit = f" in {curves.unit}" if curves.unit else ""
    return f"{curves.says} Median{unit} by {curves.across}. {'; '.join(told(one) for one in curves.lines)}."
