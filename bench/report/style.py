"""Colours and text of the charts, for light and dark; the same in the page and in the chart of the README."""

from __future__ import annotations

# A stroke and a fill of the same name, so that a mark takes one class. Contrast with the ground is 4.5 : 1 or more for
# text and 3 : 1 or more for marks; no meaning rests on colour alone (rows are named, lines have marks of their own).
_LIGHT = {
    "ground": "#ffffff",
    "panel": "#f6f7f9",
    "text": "#1b1f24",
    "muted": "#59636e",
    "grid": "#dfe3e8",
    "ours": "#b93a0b",
    "peer": "#3c5a80",
    "c1": "#1f5fbf",
    "c2": "#0b7a55",
    "c3": "#7a3fb5",
    "c4": "#8a6100",
    "c5": "#a8276b",
    "c6": "#00707d",
    "c7": "#5c6b1f",
}
_DARK = {
    "ground": "#12161b",
    "panel": "#1a2027",
    "text": "#e6eaef",
    "muted": "#9aa6b2",
    "grid": "#2e3741",
    "ours": "#ff8a4c",
    "peer": "#8fb3de",
    "c1": "#74a9ff",
    "c2": "#4fd1a1",
    "c3": "#c39bff",
    "c4": "#e5b94b",
    "c5": "#ff8fc0",
    "c6": "#5fd3e0",
    "c7": "#c2d36b",
}

LINES = ("c1", "c2", "c3", "c4", "c5", "c6", "c7")


def variables(dark: bool) -> str:
    """The colours as custom properties."""
    return "".join(f"--{name}:{value};" for name, value in (_DARK if dark else _LIGHT).items())


MARKS = (
    "text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:var(--text)}"
    ".muted{fill:var(--muted)}.small{font-size:12px}.num{font-variant-numeric:tabular-nums}"
    ".head{font-weight:600;font-size:15px}.title{font-weight:700;font-size:20px}"
    ".own{font-weight:700;fill:var(--ours)}.gap{font-style:italic;fill:var(--muted)}"
    ".grid{stroke:var(--grid);stroke-width:1}.ground{fill:var(--ground)}.panel{fill:var(--panel)}"
    + "".join(
        f".s-{name}{{stroke:var(--{name});fill:none;stroke-width:2}}.f-{name}{{fill:var(--{name})}}"
        for name in ("ours", "peer", "muted", *LINES)
    )
    + ".thin{stroke-width:1.5}.box{stroke-width:7;stroke-opacity:.45}.dash{stroke-dasharray:5 4}"
    ".hollow{fill:var(--ground);stroke-width:2}"
)


def alone() -> str:
    """The whole style of an SVG that stands for itself."""
    return f"svg{{{variables(dark=False)}}}@media (prefers-color-scheme:dark){{svg{{{variables(dark=True)}}}}}{MARKS}"
