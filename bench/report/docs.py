"""The parts of the documentation made from a run: tables between marks, and a chart. No number is copied by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marks import between
from peers import Fasteners, FileLock, Flufl, Holdfast, Portalocker, SoftFileLock, Subject
from references import BlockingFlock
from tables import show

from .figures import figures
from .markdown import goals, grid, markdown, meanwhile
from .numbers import Absent, AnyFigure, Figure, Row
from .poster import poster
from .verdicts import comparisons
from .words import MEANWHILE, VERDICTS, described, verdict_says

PAGE, CHART, README = "docs/benchmarks.md", "docs/benchmarks.svg", "README.md"
_COLUMNS: tuple[type[Subject], ...] = (Holdfast, FileLock, SoftFileLock, Portalocker, Fasteners, Flufl, BlockingFlock)
_TOO_MUCH = 0.1
_README_ROWS = (
    ("uncontended-tmpfs", "acquire and release, uncontended, µs"),
    ("handoff-own", "hand-off to a waiter, ms"),
    ("crash", "SIGKILL of the holder to the next acquire, ms"),
    ("idle-cpu", "processor time of a waiter, ms a minute"),
    ("fairness-rate", "16 processes without a pause: acquisitions a second"),
    ("fairness-longest", "16 processes without a pause: longest wait, ms"),
    ("imports", "start Python and import the library, ms"),
    ("start", "start the command around `true`, ms"),
)
_STARTS = {Holdfast.label: "holdfast run, true", BlockingFlock.label: "flock(1), true"}
"""The commands to show in the columns where commands are started."""


def renew(root: Path, report: Mapping[str, Any]) -> None:
    """Everything in the working tree that is made of a run."""
    for name, mark, content in ((PAGE, "measured", measured(report)), (README, "benchmarks", readme(report))):
        path = root / name
        path.write_text(between(path.read_text(encoding="utf-8"), mark, content, name), encoding="utf-8")
    (root / CHART).write_text(poster(report), encoding="utf-8")


def warnings(report: Mapping[str, Any]) -> list[str]:
    """The facts about the run that a reader needs to judge its numbers."""
    facts, found = report["facts"], []
    if facts.get("run") != "full":
        found.append(
            "From a quick run: few rounds, wide spread. It shows that the benchmarks work, not what to expect."
        )
    if "busy" in facts.get("machine", ""):
        found.append("The machine was busy when the run began: long tails, and medians above those of a quiet machine.")
    shared = {name: one["others"] + one["stolen"] for name, one in report.get("meanwhile", {}).items()}
    if busy := [f"{name} ({100 * share:.0f} %)" for name, share in shared.items() if share > _TOO_MUCH]:
        found.append(f"Others had more than a tenth of the processors during {', '.join(busy)}: compare ratios only.")
    return found


def measured(report: Mapping[str, Any]) -> str:
    """The part of the page that is made of a run."""
    found = figures(report)
    parts = [f"> {words}" for words in warnings(report)]
    parts.append("\n".join(f"- {name}: {value}" for name, value in report["facts"].items()))
    compared = comparisons(found)
    for key, title in VERDICTS.items():
        listed = [f"- {one.title}: {', '.join(getattr(one, key))}" for one in compared if getattr(one, key)]
        parts += [f"## {title}", verdict_says(key), "\n".join(listed) or "Nowhere."]
    parts += ["## Goals", "holdfast's own goals. Missed goals come first.", markdown(goals(report))]
    for figure in found:
        parts += [f"## {figure.title}", described(figure), _table(figure)]
    if report.get("meanwhile"):
        parts += ["## What the machine did meanwhile", MEANWHILE, markdown(meanwhile(report))]
    if report.get("failures"):
        parts += ["## What went wrong", "\n".join(f"- {one}" for one in report["failures"])]
    return "\n\n".join(parts)


def _table(figure: AnyFigure) -> str:
    numbers = grid(figure)
    gap = figure.gap if isinstance(figure, Absent) else ""
    return f"Not measured. {gap}" if numbers is None else markdown(numbers)


def readme(report: Mapping[str, Any]) -> str:
    """Medians of the figures that most people ask for."""
    by_key = {one.key: one for one in figures(report)}
    lines = [f"| median | {' | '.join(one.label for one in _COLUMNS)} |", f"|{'---|' * (len(_COLUMNS) + 1)}"]
    for key, title in _README_ROWS:
        figure = by_key[key]
        lines.append(f"| {title} | {' | '.join(_cells(figure))} |")
    facts = report["facts"]
    run = "a quick run, which shows less than a full one" if facts.get("run") != "full" else "a full run"
    machine = f"{facts['machine']}; Python {facts['Python']}; {facts['versions']}"
    made = f"*{facts.get('date', 'no date')}, {run}: {machine}.*"
    legend = f"In bold: the best of each row. {BlockingFlock.label} is the system call by itself, as a reference."
    return "\n\n".join(["\n".join(lines), legend, *[f"> {words}" for words in warnings(report)], made])


def _cells(figure: AnyFigure) -> list[str]:
    """A median for each column; bold is the best one, and so are all that look the same."""
    rows = [_row(figure, one) if isinstance(figure, Figure) else None for one in _COLUMNS]
    middles = [None if row is None else row.middle for row in rows]
    known = [middle for middle in middles if middle is not None]
    if not known:
        return ["–"] * len(rows)  # noqa: RUF001
    best = show((max if isinstance(figure, Figure) and figure.more_is_better else min)(known))
    shown = ["–" if middle is None else show(middle) for middle in middles]  # noqa: RUF001
    return [f"**{one}**" if one == best else one for one in shown]


def _row(figure: Figure, column: type[Subject]) -> Row | None:
    names = {"imports": f"import {column.package}", "start": _STARTS.get(column.label, "")}
    return figure.row(names.get(figure.key, column.label))
