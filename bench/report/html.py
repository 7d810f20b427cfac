"""The page: one file, which asks nobody for anything. Light and dark, a desk and a phone; a table beside each chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from . import curves, dots
from .docs import warnings
from .figures import figures
from .markdown import Grid, goals, grid, meanwhile
from .numbers import Absent, AnyFigure, Figure
from .style import MARKS, variables
from .verdicts import Comparison, comparisons
from .words import MEANWHILE, VERDICTS, described, how_to_read, verdict_says

_STYLE = f"""
:root{{color-scheme:light dark;{variables(dark=False)}}}
@media (prefers-color-scheme:dark){{:root{{{variables(dark=True)}}}}}
*{{box-sizing:border-box}}
body{{margin:0 auto;padding:1.5rem 1rem 4rem;max-width:102rem;background:var(--ground);color:var(--text);
font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}}
h1{{font-size:1.7rem;line-height:1.2;margin:.2em 0}}
h2{{font-size:1.25rem;margin:2.4em 0 .3em}}
p,li,dd{{max-width:46rem}}
a{{color:var(--c1)}}
dl{{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;font-size:.9rem;margin:1rem 0}}
dt{{color:var(--muted)}} dd{{margin:0;overflow-wrap:anywhere}}
.warn{{border-left:4px solid var(--ours);background:var(--panel);padding:.5rem .8rem;max-width:46rem}}
nav ul{{columns:18rem;padding-left:1.2rem;font-size:.95rem}}
figure{{margin:.8rem 0 0}}
svg{{display:block;width:100%;height:auto}}
svg.wide{{max-width:720px}} svg.narrow{{max-width:420px;display:none}}
@media (max-width:640px){{svg.wide{{display:none}} svg.narrow{{display:block}}}}
.scroll{{overflow-x:auto}}
.pair{{display:grid;gap:1rem 2rem;grid-template-columns:minmax(0,1fr)}}
@media (min-width:80rem){{.pair{{grid-template-columns:minmax(34rem,1fr) minmax(0,auto);align-items:start}}}}
table{{border-collapse:collapse;font-size:.83rem;font-variant-numeric:tabular-nums;margin:.4rem 0}}
caption{{text-align:left;color:var(--muted);padding-bottom:.2rem}}
th,td{{padding:.2rem .7rem .2rem 0;text-align:right;vertical-align:top;border-bottom:1px solid var(--grid)}}
th:first-child,td:first-child{{text-align:left}} thead th{{color:var(--muted);font-weight:600}}
tbody th{{font-weight:400}} tr.ours th{{font-weight:700;color:var(--ours)}}
td.words{{text-align:left;white-space:normal;font-style:italic;color:var(--muted)}}
td{{white-space:nowrap}}
.goals td{{text-align:left;white-space:normal}}
.verdicts li{{margin:.25rem 0}}
{MARKS}
"""


def page(report: Mapping[str, Any]) -> str:
    """The whole of it."""
    found = figures(report)
    compared = comparisons(found)
    body = [
        "<h1>holdfast beside other locks, measured</h1>",
        *(f'<p class="warn">{_text(words)}</p>' for words in warnings(report)),
        _facts(report),
        _contents(found),
        _verdicts(compared),
        _goals(report),
        '<h2 id="read">How to read the charts and tables</h2>',
        f"<ul>{''.join(f'<li>{_text(words)}</li>' for words in how_to_read())}</ul>",
        *map(_figure, found),
        _rest(report),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>holdfast: benchmarks</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _text(words: str) -> str:
    """Escaped; what stands between backticks is code."""
    parts = escape(words, quote=False).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def _facts(report: Mapping[str, Any]) -> str:
    facts = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in report["facts"].items())
    return f"<dl>{facts}</dl>"


def _contents(found: Iterable[AnyFigure]) -> str:
    links = [*VERDICTS.items(), ("goals", "Goals"), ("read", "How to read"), *((one.key, one.title) for one in found)]
    items = [f'<li><a href="#{key}">{_text(title)}</a></li>' for key, title in links]
    return f"<nav><ul>{''.join(items)}</ul></nav>"


def _verdicts(compared: Sequence[Comparison]) -> str:
    shown = []
    for key, title in VERDICTS.items():
        items = [(one, getattr(one, key)) for one in compared if getattr(one, key)]
        lines = [
            f'<li><a href="#{one.key}">{_text(one.title)}</a>: {_text(", ".join(names))}</li>' for one, names in items
        ]
        listed = f'<ul class="verdicts">{"".join(lines)}</ul>' if lines else "<p>Nowhere.</p>"
        shown.append(f'<h2 id="{key}">{title}</h2><p>{_text(verdict_says(key))}</p>{listed}')
    return "".join(shown)


def _goals(report: Mapping[str, Any]) -> str:
    table = _table(goals(report), "holdfast's own goals; missed goals come first", "goals")
    return f'<h2 id="goals">Goals</h2>{table}'


def _figure(figure: AnyFigure) -> str:
    head = f'<section><h2 id="{figure.key}">{_text(figure.title)}</h2><p>{_text(described(figure))}</p>'
    numbers = grid(figure)
    if isinstance(figure, Absent) or numbers is None:
        return f'{head}<p class="warn">Not measured. {_text(getattr(figure, "gap", ""))}</p></section>'
    drawn = dots if isinstance(figure, Figure) else curves
    charts = drawn.chart(figure) + drawn.chart(figure, narrow=True)
    table = _table(numbers, figure.title)
    return f'{head}<div class="pair"><figure>{charts}</figure>{table}</div></section>'


def _table(found: Grid, caption: str, class_: str = "") -> str:
    heads = "".join(f'<th scope="col">{_text(head)}</th>' if head else "<td></td>" for head in found.heads)
    rows = []
    for number, row in enumerate(found.rows):
        cells = f'<th scope="row">{_text(row[0])}</th>'
        if len(row) > 1 and row[1].startswith("not measured") and not any(row[2:]):
            cells += f'<td class="words" colspan="{len(row) - 1}">{_text(row[1])}</td>'
        else:
            cells += "".join(f"<td>{_text(cell)}</td>" for cell in row[1:])
        rows.append(f'<tr class="ours">{cells}</tr>' if number in found.ours else f"<tr>{cells}</tr>")
    named = f' class="{class_}"' if class_ else ""
    return (
        # A region that can be scrolled has to be reached by the keyboard.
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table{named}>'
        f"<caption>{_text(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _rest(report: Mapping[str, Any]) -> str:
    failures = report.get("failures", [])
    listed = "".join(f"<li>{_text(one)}</li>" for one in failures)
    went = f"<ul>{listed}</ul>" if failures else "<p>Nothing.</p>"
    table = _table(meanwhile(report), MEANWHILE) if report.get("meanwhile") else "<p>Not in this run.</p>"
    return f'<h2 id="failed">What went wrong</h2>{went}<h2 id="meanwhile">What the machine did meanwhile</h2>{table}'
