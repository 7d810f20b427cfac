"""Tables for people: aligned, as wide as the terminal, and whole in a pipe. Shared by every view.

Cells are escaped here (`report.printable`), so that whatever a lock file has in it can be given to these functions.
"""

from __future__ import annotations

import os

from .._core.report import printable
from ..model import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    Cell = str | tuple[str, str]
    """Text, or text and the name of its style."""

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35"}
OF_STATE = {
    "held": "green",
    "dead": "red",
    "stale": "yellow",
    "elsewhere": "blue",
    "malformed": "magenta",
    "empty": "magenta",
    "free": "dim",
}
"""The style of each state that a lock file can be in (survey.py)."""
_USUAL_WIDTH = 80
_GAP = 2
_WIDEST_PADDED = 60
"""In a pipe, a cell that is longer than this is whole, but does not push the columns of all other rows apart."""
_LONGEST = 20_000


class Screen(Value):
    """What is printed on. `width` is None in a pipe or a file, where nothing is cut."""

    width: int | None = None
    colours: bool = False

    def paint(self, text: str, style: str) -> str:
        """The text in that style, where there are colours. It must be printable already."""
        code = _STYLES.get(style)
        return f"\x1b[{code}m{text}\x1b[0m" if self.colours and code and text else text


class Column(Value):
    """`cut`: where what does not fit is cut off, `end` or `start`; None: never. `least` characters are kept.

    `drop`: columns with a higher number are left out first where even that is too wide; those with 0 stay.
    """

    title: str
    right: bool = False
    cut: str | None = None
    least: int = 8
    drop: int = 0


def screen(stream: TextIO | None) -> Screen:
    """What this stream leads to. No colours with NO_COLOR, nor on a terminal that is `dumb`."""
    try:
        if stream is None or not stream.isatty():
            return Screen()
        width = os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH
    except (OSError, ValueError):
        return Screen()
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in ("", "dumb")
    return Screen(width, not plain)


def lines(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], on: Screen, *, titles: bool = True) -> list[str]:
    """The rows, escaped and aligned, below a line of titles."""
    texts = [[printable(cell if isinstance(cell, str) else cell[0], _LONGEST) for cell in row] for row in rows]
    sizes = [[width_of(text) for text in row] for row in texts]
    widest = [
        max([len(column.title) if titles else 0, *(row[number] for row in sizes)])
        for number, column in enumerate(columns)
    ]
    shown = [number for number in range(len(columns)) if columns[number].title or widest[number]]
    if on.width is None:
        widths = {number: min(widest[number], _WIDEST_PADDED) for number in shown}
    else:
        widths = _fitted(columns, {number: widest[number] for number in shown}, on.width)
    found = []
    if titles:
        heads = [columns[number].title for number in widths]
        found.append(on.paint(_line(columns, widths, heads, [*map(len, heads)], on), "bold"))
    for row, text, size in zip(rows, texts, sizes, strict=True):
        styles = [cell[1] if isinstance(cell := row[number], tuple) else "" for number in widths]
        chosen = [text[number] for number in widths], [size[number] for number in widths]
        found.append(_line(columns, widths, *chosen, on, styles))
    return found


def _fitted(columns: Sequence[Column], widths: dict[int, int], width: int) -> dict[int, int]:
    """The widths, made smaller: first what can be cut, then whole columns."""
    while (over := sum(widths.values()) + _GAP * (len(widths) - 1) - width) > 0:
        loose = [n for n in widths if columns[n].cut and widths[n] > columns[n].least]
        if loose:
            # The widest gives way, down to the next one.
            sizes = sorted((widths[n] for n in loose), reverse=True)
            largest = next(n for n in loose if widths[n] == sizes[0])
            step = sizes[0] - (sizes[1] if len(sizes) > 1 else 0) or 1
            widths[largest] = max(columns[largest].least, widths[largest] - min(over, step))
            continue
        last = max(widths, key=lambda n: (columns[n].drop, n))
        if not columns[last].drop:
            break
        del widths[last]
    return widths


def _line(
    columns: Sequence[Column],
    widths: dict[int, int],
    texts: Sequence[str],
    sizes: Sequence[int],
    on: Screen,
    styles: Sequence[str] = (),
) -> str:
    parts = []
    last = len(widths) - 1
    for place, (number, width) in enumerate(widths.items()):
        column, text, size = columns[number], texts[place], sizes[place]
        if on.width is not None and size > width and column.cut:
            text = fit(text, width, column.cut)
            size = width_of(text)
        padding = " " * (width - size)
        styled = on.paint(text, styles[place]) if styles and styles[place] else text
        parts.append(padding + styled if column.right else styled if place == last else styled + padding)
    return (" " * _GAP).join(parts).rstrip()


def fit(text: str, width: int, cut: str = "end") -> str:
    """As much of a printable text as goes into so many columns of a terminal; what is cut off shows as `…`."""
    if width_of(text) <= width:
        return text
    room, kept = max(0, width - 1), 0
    characters = text if cut == "end" else reversed(text)
    for count, character in enumerate(characters):
        kept += width_of(character)
        if kept > room:
            return text[:count] + "…" if cut == "end" else "…" + (text[-count:] if count else "")
    return text


def age_of(seconds: float | None) -> str:
    """A short age for a column: `8s`, `12m`, `5h`, `3d`, or `-`."""
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def width_of(text: str) -> int:
    """How many columns of a terminal a printable text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)
