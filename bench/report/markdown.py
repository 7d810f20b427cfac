"""The tables: of a figure, of the goals, of the README. As rows of text first, which the page and Markdown share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from series import ENOUGH_FOR_P95
from tables import show

from .numbers import AnyFigure, Curves, Figure, Line, Row, ratio


@dataclass(frozen=True)
class Grid:
    """Heads and rows of text; the first column is a name. `ours` are the rows of holdfast."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    ours: frozenset[int] = frozenset()


def grid(figure: AnyFigure) -> Grid | None:
    """The numbers of a figure; None where there are none."""
    if isinstance(figure, Figure):
        return _of_rows(figure)
    return _of_lines(figure) if isinstance(figure, Curves) else None


def _of_rows(figure: Figure) -> Grid:
    unit = f", {figure.unit}" if figure.unit else ""
    spread = ["25–75 %", "5–95 %", "p99"] if figure.of_samples else ["least–most"]  # noqa: RUF001
    heads = ["", "rounds" if not figure.of_samples else "samples (rounds)", f"median{unit}", *spread]
    base = figure.row(figure.reference) if figure.reference else None
    if figure.reference:
        heads.append(f"÷ {figure.reference}")
    rows = []
    for row in figure.rows:
        if row.middle is None:
            rows.append([row.label, f"not measured: {row.gap}", *[""] * (len(heads) - 2)])
            continue
        cells = [row.label, _count(row, figure), show(row.middle)]
        if figure.of_samples:
            cells += [_reach(row.box), _reach(row.ends, least=row.samples < ENOUGH_FOR_P95), show(row.tail)]
        else:
            cells += [_reach(row.ends)]
        if figure.reference:
            times = ratio(row.rounds, base.rounds) if base is not None and base is not row else None
            cells.append("1" if base is row else str(times) if times is not None else "-")
        rows.append(cells)
    return Grid(heads, rows, frozenset(n for n, row in enumerate(figure.rows) if row.role == "ours"))


def _count(row: Row, figure: Figure) -> str:
    return f"{row.samples} ({len(row.rounds)})" if figure.of_samples else str(len(row.rounds))


def _reach(ends: tuple[float, float] | None, least: bool = False) -> str:
    if ends is None:
        return "-"
    # Too few samples for a 5th percentile: the least and the most stand there, and say so.
    return f"{show(ends[0])}–{show(ends[1])}{' (all)' if least else ''}"  # noqa: RUF001


def _of_lines(curves: Curves) -> Grid:
    unit = f", {curves.unit}" if curves.unit else ""
    heads = [f"median (least–most){unit}", *(f"{size} {curves.across}" for size in curves.sizes)]  # noqa: RUF001
    rows = [[one.label, *(_at(one, size) for size in curves.sizes)] for one in curves.lines]
    return Grid(heads, rows, frozenset(n for n, one in enumerate(curves.lines) if one.role == "ours"))


def _at(one: Line, size: int) -> str:
    point = one.points.get(size)
    if point is None:
        return f"not measured: {one.gaps.get(size, 'not in this run')}"
    return f"{show(point.middle)} ({show(point.low)}–{show(point.high)})"  # noqa: RUF001


def goals(report: Mapping[str, Any]) -> Grid:
    """The goals of holdfast itself, missed goals first."""
    order = {False: 0, None: 1, True: 2}
    found = sorted(report.get("goals", []), key=lambda goal: order[goal["met"]])
    rows = []
    for goal in found:
        unit = f" {goal['unit']}" if goal["unit"] else ""
        measured = "-" if goal["measured"] is None else f"{show(goal['measured'])}{unit}"
        rows.append([goal["goal"], measured, f"{goal['sign']} {goal['limit']:g}{unit}", goal["verdict"]])
    return Grid(["goal", "measured", "limit", "verdict"], rows)


def meanwhile(report: Mapping[str, Any]) -> Grid:
    """The load of the machine while each suite measured."""
    rows = []
    for suite, found in report.get("meanwhile", {}).items():
        begin, end = found["load"]
        shares = [f"{100 * found[name]:.0f} %" for name in ("own", "others", "stolen")]
        rows.append([suite, f"{found['seconds']:.0f}", f"{begin:.2f}", f"{end:.2f}", *shares])
    heads = ["suite", "seconds", "load before", "load after", "processors: this run", "others", "stolen by the host"]
    return Grid(heads, rows)


def markdown(found: Grid) -> str:
    """As a table of Markdown; the rows of holdfast are bold."""
    lines = [_line(found.heads), _line(["---"] * len(found.heads))]
    for number, row in enumerate(found.rows):
        cells = [cell.replace("|", "\\|") for cell in row]
        lines.append(_line([f"**{cells[0]}**", *cells[1:]] if number in found.ours else cells))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
