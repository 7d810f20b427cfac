"""The figures to draw and tabulate: rows or lines, each number with its number of runs and its spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tables import show

Role = Literal["ours", "peer", "reference"]
Rounds = Mapping[str, float]
"""A value for each round, by its number."""

# From so many rounds on, the middle half of them says more than the least and the most.
ENOUGH_FOR_QUARTILES = 8


@dataclass(frozen=True)
class Ratio:
    """Of two subjects, each round compared with itself: the median over the rounds, and from where to where it went."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{show(self.middle)} × ({show(self.low)}–{show(self.high)})"  # noqa: RUF001


def ratio(ours: Rounds, theirs: Rounds) -> Ratio | None:
    """None without a common round, or where the other's number is 0."""
    common = [ours[number] / theirs[number] for number in ours if theirs.get(number)]
    return Ratio(statistics.median(common), *reach(common)) if common else None


def reach(values: Sequence[float]) -> tuple[float, float]:
    """From where to where: the middle half; of few values the least and the most."""
    if len(values) < ENOUGH_FOR_QUARTILES:
        return min(values), max(values)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


@dataclass(frozen=True)
class Row:
    """One subject of a figure. Without a `middle` it was not measured, and `gap` says why."""

    label: str
    role: Role
    middle: float | None = None
    rounds: Rounds = field(default_factory=dict)
    samples: int = 0
    box: tuple[float, float] | None = None
    ends: tuple[float, float] | None = None
    tail: float | None = None
    gap: str = ""


@dataclass(frozen=True)
class Figure:
    """A chart of one row for each subject, and its table."""

    key: str
    title: str
    says: str
    unit: str
    rows: Sequence[Row]
    ours: str
    """The row that the others are compared with in words."""
    reference: str = ""
    """The row that the table divides by."""
    more_is_better: bool = False
    linear: bool = False
    of_samples: bool = True
    """Box and ends are percentiles of all samples; else the ends are the least and the most of the rounds."""

    @property
    def measured(self) -> list[Row]:
        return [row for row in self.rows if row.middle is not None]

    def row(self, label: str) -> Row | None:
        """The one of that name, if it was measured."""
        return next((row for row in self.measured if row.label == label), None)


@dataclass(frozen=True)
class Point:
    """A line at one size."""

    middle: float
    low: float
    high: float
    rounds: Rounds


@dataclass(frozen=True)
class Line:
    """One subject over all sizes; `gaps` says why a size has no point."""

    label: str
    role: Role
    points: Mapping[int, Point]
    gaps: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Curves:
    """A chart of lines over sizes, and its table."""

    key: str
    title: str
    says: str
    unit: str
    across: str
    lines: Sequence[Line]
    ours: str

    @property
    def sizes(self) -> list[int]:
        return sorted({size for line in self.lines for size in (*line.points, *line.gaps)})

    @property
    def measured(self) -> list[Line]:
        return [line for line in self.lines if line.points]


@dataclass(frozen=True)
class Absent:
    """A figure that a run has no numbers for."""

    key: str
    title: str
    says: str
    gap: str


AnyFigure = Figure | Curves | Absent


def of_series(label: str, role: Role, series: Mapping[str, Any] | None, unit_ns: float, why_not: str = "") -> Row:
    """A row from what Series.data() has written; `why_not` says why there is none by design."""
    if series is None or series.get("median_ns") is None:
        error = series.get("error") if series is not None else None
        return Row(label, role, gap=error or why_not or "not in this run")

    def at(name: str) -> float | None:
        value = series.get("percentiles_ns", {}).get(name)
        return None if value is None else value / unit_ns

    quartiles, outer, tail = (at("25"), at("75")), (at("5"), at("95")), series.get("p99_ns")
    least, most = series["min_ns"] / unit_ns, series["max_ns"] / unit_ns
    return Row(
        label,
        role,
        series["median_ns"] / unit_ns,
        {number: value / unit_ns for number, value in series["round_medians_ns"].items()},
        series["samples"],
        _both(quartiles),
        _both(outer) or (least, most),
        None if tail is None else tail / unit_ns,
    )


def of_rounds(label: str, role: Role, rounds: Rounds, gap: str = "") -> Row:
    """A row from a value for each round."""
    if not rounds:
        return Row(label, role, gap=gap or "not in this run")
    values = list(rounds.values())
    return Row(label, role, statistics.median(values), rounds, len(values), None, (min(values), max(values)))


def point(rounds: Rounds) -> Point:
    """A point from a value for each round."""
    values = list(rounds.values())
    return Point(statistics.median(values), min(values), max(values), rounds)


def _both(pair: tuple[float | None, float | None]) -> tuple[float, float] | None:
    low, high = pair
    return None if low is None or high is None else (low, high)
