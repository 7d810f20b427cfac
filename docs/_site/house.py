"""Draws the house: a box for each room, in the order of LAYERS in tests/unit/test_house.py, and who imports whom.

    house.py SVG

A room's line goes to the right, and down to each room that it imports, with a dot where it turns. An arrow that pointed
up would be below the boxes, where nothing is.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests" / "unit"))
from test_house import FILES, LAYERS, imports, layer_of, module_of

_NAMES = {"": "holdfast (public names)", "face": "sema, semats, sidecar, beads", "testing": "testing (conformance kit)"}

_WIDTH, _HEIGHT, _RIGHT, _DOWN, _EDGE = 210, 40, 50, 50, 12
_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .size { font-size: 11px; fill: #59636e }
  rect { fill: #ddf4ff; stroke: #0969da }
  path { fill: none; stroke: #8c959f }
  circle { fill: #0969da }
  #paper { fill: #fff; stroke: none }
"""


def picture() -> str:
    """The SVG."""
    rooms: dict[str, tuple[int, int, set[str]]] = {room: (0, 0, set()) for room in LAYERS}
    for path in FILES:
        room = layer_of(module_of(path))
        modules, lines, arrows = rooms[room]
        ours = [name.removeprefix("holdfast").removeprefix(".") for _, name in imports(path) if _is_ours(name)]
        reached = arrows | {layer_of(name) for name in ours} - {room}
        rooms[room] = (modules + 1, lines + path.read_text().count("\n"), reached)
    order = list(rooms)
    width = _WIDTH + _RIGHT * (len(order) - 1) + 2 * _EDGE
    height = _DOWN * (len(order) - 1) + _HEIGHT + 2 * _EDGE
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>The rooms of the house, and who imports whom</title>",
        f"<style>{_STYLE}</style>",
        f'<rect id="paper" width="{width}" height="{height}"/>',
    ]
    for at, room in enumerate(order):
        left, top = _EDGE + _RIGHT * at, _EDGE + _DOWN * at
        modules, lines, arrows = rooms[room]
        below = sorted(order.index(other) for other in arrows)
        out += [_arrow(at, other) for other in below]
        size = f"{modules} module{'s' * (modules != 1)}, {lines:_} lines".replace("_", " ")
        out += [
            f'<rect x="{left}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" rx="4"/>',
            f'<text x="{left + 10}" y="{top + 17}">{escape(_NAMES.get(room, room))}</text>',
            f'<text class="size" x="{left + 10}" y="{top + 32}">{size}</text>',
        ]
    return "\n".join([*out, "</svg>", ""])


def _is_ours(module: str) -> bool:
    return module.split(".")[0] == "holdfast"


def _arrow(source: int, target: int) -> str:
    """From a box to the right, and down to another."""
    column = _EDGE + _RIGHT * target + _WIDTH - 14
    row = _EDGE + _DOWN * source + _HEIGHT // 2
    start, end = _EDGE + _RIGHT * source + _WIDTH, _EDGE + _DOWN * target
    return f'<path d="M{start} {row}H{column}V{end}m-4 -6l4 6l4 -6"/><circle cx="{column}" cy="{row}" r="3.5"/>'


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture())
