"""Tables, goals and the numbers behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from series import Series


@dataclass
class Table:
    """A title, column heads, rows of text, and notes printed below."""

    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        rule = ["-" * width for width in widths]
        body = [self._line(line, widths) for line in (self.columns, rule, *self.rows)]
        return "\n".join([self.title, *body, *(f"  {note}" for note in self.notes)])

    @staticmethod
    def _line(cells: list[str], widths: list[int]) -> str:
        first, *rest = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        return "  ".join(["", first.strip().ljust(widths[0]), *rest]).rstrip()


@dataclass(frozen=True)
class Goal:
    """A limit that holdfast sets itself, and the measured value. `measured` None: see `why_not`."""

    text: str
    measured: float | None
    limit: float
    unit: str
    below: bool = False  # the limit itself does not count as met
    why_not: str = ""
    least: bool = False  # the limit is the least that counts as met, not the most

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        if self.least:
            return self.measured >= self.limit
        return self.measured < self.limit if self.below else self.measured <= self.limit

    @property
    def sign(self) -> str:
        """The relation of `measured` to `limit` that meets the goal."""
        return "≥" if self.least else "<" if self.below else "≤"

    @property
    def verdict(self) -> str:
        """'met', or 'missed by' the distance in the goal's unit and in percent of the limit."""
        if self.measured is None:
            return f"not measured: {self.why_not}" if self.why_not else "not measured"
        if self.met:
            return "met"
        off = abs(self.measured - self.limit)
        return f"missed by {show(off)}{self._unit} ({100 * off / self.limit:.0f} %)"

    @property
    def _unit(self) -> str:
        return f" {self.unit}" if self.unit else ""

    @property
    def cells(self) -> list[str]:
        """A row of the table of goals."""
        measured = f"{show(self.measured)}{self._unit}" if self.measured is not None else "-"
        return [self.text, measured, f"{self.sign} {self.limit:g}{self._unit}", self.verdict]

    def data(self) -> dict[str, Any]:
        """The goal for --json."""
        return {
            "goal": self.text,
            "measured": self.measured,
            "limit": self.limit,
            "sign": self.sign,
            "unit": self.unit,
            "met": self.met,
            "verdict": self.verdict,
        }


@dataclass
class Outcome:
    """The result of one suite."""

    tables: list[Table] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def show(value: float | None) -> str:
    """A number with three significant digits, or three decimals, never an exponent; '-' for None."""
    if value is None:
        return "-"
    size = abs(value)
    decimals = 0 if size >= 100 or size == 0 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:.{decimals}f}"


def timing_table(
    title: str, series: Mapping[str, Series], reference: str, unit_ns: int, notes: list[str] | None = None
) -> Table:
    """A row per subject: samples, median, p99 (or the maximum of few samples), ratio to `reference`."""
    unit = {1_000: "µs", 1_000_000: "ms"}[unit_ns]
    table = Table(title, ["", "n", f"median {unit}", f"p99 {unit}", f"÷ {reference}"], notes=notes or [])
    base = series.get(reference)
    for name, one in series.items():
        median, p99, worst = one.median(), one.p99(), one.worst()
        if median is None or worst is None:
            table.rows.append([name, "0", "-", "-", "-"])
        else:
            tail = show(p99 / unit_ns) if p99 is not None else f"max {show(worst / unit_ns)}"
            ratio = show(one.ratio_to(base)) if base is not None else "-"
            table.rows.append([name, str(one.count), show(median / unit_ns), tail, ratio])
        if one.error is not None:
            table.notes.append(f"{name}: {one.error}")
    return table


def goals_table(goals: list[Goal]) -> Table:
    """The last table of a run."""
    return Table("Goals", ["", "measured", "limit", "verdict"], [goal.cells for goal in goals])
