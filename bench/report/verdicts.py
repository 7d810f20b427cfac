"""Verdicts in words: each peer of each figure, as plainly where holdfast is worse as where it is better."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .crowds import TOO_LATE, largest
from .numbers import AnyFigure, Curves, Figure, Ratio, Row, ratio


@dataclass
class Comparison:
    """One figure: the peers that holdfast does better than, worse than, and neither. By how much, as factors."""

    key: str
    title: str
    ours: str
    better: list[str] = field(default_factory=list)
    worse: list[str] = field(default_factory=list)
    neither: list[str] = field(default_factory=list)


def comparisons(figures: Iterable[AnyFigure]) -> list[Comparison]:
    """Of every figure that has a peer and us in it; lines at the largest size that we have."""
    found = []
    for figure in figures:
        rows = largest(figure) if isinstance(figure, Curves) else figure
        if isinstance(rows, Figure) and (one := _compare(rows)) is not None:
            found.append(one)
    return found


def _compare(figure: Figure) -> Comparison | None:
    ours = next((row for row in figure.rows if row.label == figure.ours), None)
    others = [row for row in figure.rows if row.role == "peer" and (row.middle is not None or row.gap == TOO_LATE)]
    if ours is None or not others or (ours.middle is None and ours.gap != TOO_LATE):
        return None
    found = Comparison(figure.key, figure.title, figure.ours)
    for other in others:
        if ours.middle is None or other.middle is None:
            _too_late(found, ours, other)
            continue
        # Above 1 is worse, whatever the figure counts.
        times, inverse = ratio(ours.rounds, other.rounds), ratio(other.rounds, ours.rounds)
        if figure.more_is_better:
            times, inverse = inverse, times
        if times is None:
            _by_zero(found, figure, ours, other)
        elif times.low > 1:
            found.worse.append(_named(other, times))
        elif times.high < 1:
            found.better.append(_named(other, inverse))
        else:
            found.neither.append(_named(other, times))
    return found


def _too_late(found: Comparison, ours: Row, other: Row) -> None:
    """The verdict if one of them, or both, ran out of time: it has no number."""
    if ours.middle is None and other.middle is None:
        found.neither.append(f"{other.label} ({TOO_LATE}, with either)")
    elif ours.middle is None:
        found.worse.append(f"{other.label} (of {ours.label}, {TOO_LATE})")
    else:
        found.better.append(f"{other.label} ({TOO_LATE})")


def _by_zero(found: Comparison, figure: Figure, ours: Row, other: Row) -> None:
    """No ratio: a number is 0."""
    if ours.middle == other.middle:
        found.neither.append(f"{other.label} (0 both)")
    else:
        least = ours.middle == min(ours.middle or 0.0, other.middle or 0.0)
        (found.better if least != figure.more_is_better else found.worse).append(f"{other.label} (0 against more)")


def _named(row: Row, times: Ratio | None) -> str:
    return row.label if times is None else f"{row.label} {times}"
