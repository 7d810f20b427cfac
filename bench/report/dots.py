"""A chart of one row for each subject: a dot, the middle half of the samples, how far it goes, and the number itself.

Dots and not bars: most axes are logarithmic, and a bar on such an axis has a length that means nothing.
"""

from __future__ import annotations

from tables import show

from .numbers import Figure, Row
from .svg import Axis, axis, element, figure_of, fitting, line, mark, named, text, width_of

_WIDE, _NARROW = 720.0, 344.0
_GUTTER, _VALUES, _EDGE = 200.0, 72.0, 8.0
_FOOT = 30.0


def chart(figure: Figure, narrow: bool = False) -> str:
    """The figure, for a page of that width."""
    width = _NARROW if narrow else _WIDE
    body, height = panel(figure, width, stacked=narrow)
    return figure_of(figure.key, "narrow" if narrow else "wide", figure.title, described(figure), width, height, body)


def panel(figure: Figure, width: float, stacked: bool, gutter: float = _GUTTER) -> tuple[str, float]:
    """The rows and their axis, from 0, 0 on, and how high they are. `stacked`: a name stands above its row."""
    begin = _EDGE + 6 if stacked else gutter
    end = width - _EDGE - 6 if stacked else width - _VALUES - 14
    scale = axis(_values(figure), begin, end, figure.linear)
    step, first = (42.0, 10.0) if stacked else (26.0, 6.0)
    bottom = first + step * len(figure.rows)
    parts = [_axis(scale, first, bottom, figure.unit)]
    for number, row in enumerate(figure.rows):
        top = first + step * number
        y = top + 27 if stacked else top + step / 2
        parts.append(_names(row, top, y, width, 0.0 if stacked else gutter))
        parts.append(_row(row, scale, y) if row.middle is not None else _gap(row, y, begin, end))
    return "".join(parts), bottom + _FOOT


def _values(figure: Figure) -> list[float]:
    found = [row.middle for row in figure.measured if row.middle is not None]
    for row in figure.measured:
        found += [*(row.ends or ()), *(row.box or ()), *([row.tail] if row.tail is not None else [])]
    return found


def _axis(scale: Axis, top: float, bottom: float, unit: str) -> str:
    parts = []
    for tick in scale.ticks:
        x = scale(tick)
        parts.append(line(x, top, x, bottom, "grid"))
        words = named(tick)
        over = x + width_of(words) / 2 > scale.end + _EDGE + 4
        parts.append(text(x + 4 if over else x, bottom + 14, words, "muted small num", "end" if over else "middle"))
    last = scale(scale.ticks[-1])
    if unit:
        parts.append(text(last, bottom + 27, unit, "muted small", "end" if last > scale.end - 20 else "middle"))
    return "".join(parts)


def _names(row: Row, top: float, y: float, width: float, gutter: float) -> str:
    """Name and number; left and right of the row, or above it where there is no gutter."""
    class_ = "own" if row.role == "ours" else "muted" if row.role == "reference" else ""
    value = show(row.middle) if row.middle is not None else ""
    if not gutter:
        room = width - 2 * _EDGE - width_of(value) - 8
        return text(_EDGE, top + 14, fitting(row.label, room), class_) + (
            text(width - _EDGE, top + 14, value, f"num {class_}".strip(), "end") if value else ""
        )
    return text(gutter - 12, y + 4.5, fitting(row.label, gutter - 16), class_, "end") + (
        text(width - _EDGE, y + 4.5, value, f"num {class_}".strip(), "end") if value else ""
    )


def _row(row: Row, scale: Axis, y: float) -> str:
    assert row.middle is not None
    colour = "muted" if row.role == "reference" else row.role
    parts = []
    if row.ends is not None:
        parts.append(line(scale(row.ends[0]), y, scale(row.ends[1]), y, f"s-{colour} thin"))
    if row.box is not None:
        parts.append(line(scale(row.box[0]), y, scale(row.box[1]), y, f"s-{colour} box"))
    if row.tail is not None:
        x = scale(row.tail)
        parts.append(line(x, y - 5, x, y + 5, f"s-{colour}"))
    parts.append(mark(0, scale(row.middle), y, colour, hollow=row.role == "reference"))
    return element("g", element("title", told(row)) + "".join(parts))


def _gap(row: Row, y: float, begin: float, end: float) -> str:
    words = f"not measured: {row.gap}"
    if width_of(words) > end - begin:
        words = fitting(row.gap, end - begin)
    return text(begin, y + 4.5, words, "gap small")


def told(row: Row) -> str:
    """One row in words."""
    if row.middle is None:
        return f"{row.label}: not measured"
    reach = f", from {show(row.ends[0])} to {show(row.ends[1])}" if row.ends is not None else ""
    return f"{row.label}: {show(row.middle)}{reach}"


def described(figure: Figure) -> str:
    """The chart in words, for readers who cannot see it. The table has the rest."""
    unit = f" in {figure.unit}" if figure.unit else ""
    return f"{figure.says} Median{unit}. {'; '.join(told(row) for row in figure.rows)}."
