"""Axes, and the elements of an SVG as text. Coordinates have one decimal: nobody sees more, and diffs stay small."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

_CHARACTER = 7.0
"""Pixels of a character of 13 px, about; a little more than it has, so that nothing is cut off."""
_TICK = 58.0
"""Pixels that a tick with its number needs."""


def element(name: str, content: str = "", **attributes: object) -> str:
    """One element; `class_` is its class, and `_` in a name is `-`."""
    words = [f'{key.rstrip("_").replace("_", "-")}="{escape(_number(value))}"' for key, value in attributes.items()]
    head = " ".join([name, *words])
    return f"<{head}>{content}</{name}>" if content else f"<{head}/>"


def text(x: float, y: float, words: str, class_: str = "", anchor: str = "start") -> str:
    """One line of text, its baseline at `y`."""
    more = {"text_anchor": anchor} if anchor != "start" else {}
    return element("text", escape(words, quote=False), x=x, y=y, **({"class_": class_} if class_ else {}), **more)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def _number(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def width_of(words: str, bold: bool = False) -> float:
    """About so many pixels wide."""
    return len(words) * (_CHARACTER * 1.12 if bold else _CHARACTER)


def fitting(words: str, pixels: float) -> str:
    """As much of the words as there is room for."""
    most = max(1, int(pixels / _CHARACTER))
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def mark(shape: int, x: float, y: float, colour: str, hollow: bool = False) -> str:
    """A mark of one of five shapes, so that lines differ by more than their colour."""
    size = 4.5
    class_ = f"s-{colour} hollow" if hollow else f"f-{colour}"
    match shape % 5:
        case 0:
            return element("circle", cx=x, cy=y, r=size, class_=class_)
        case 1:
            return element("rect", x=x - 4, y=y - 4, width=8, height=8, class_=class_)
        case 2:
            return _polygon([(x, y - 5.5), (x + 5, y + 4), (x - 5, y + 4)], class_)
        case 3:
            return _polygon([(x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y)], class_)
        case _:
            return _polygon([(x - 5, y - 4), (x + 5, y - 4), (x, y + 5.5)], class_)


def _polygon(points: Sequence[tuple[float, float]], class_: str) -> str:
    return element("polygon", points=" ".join(f"{_number(x)},{_number(y)}" for x, y in points), class_=class_)


def figure_of(key: str, variant: str, title: str, description: str, width: float, height: float, body: str) -> str:
    """A whole chart: named and described for who does not see it."""
    name, said = f"{key}-{variant}-title", f"{key}-{variant}-desc"
    head = element("title", escape(title, quote=False), id=name) + element(
        "desc", escape(description, quote=False), id=said
    )
    return element(
        "svg",
        head + body,
        xmlns="http://www.w3.org/2000/svg",
        class_=variant,
        viewBox=f"0 0 {_number(width)} {_number(height)}",
        role="img",
        aria_labelledby=f"{name} {said}",
    )


@dataclass(frozen=True)
class Axis:
    """From values to pixels, by logarithm or straight from 0. A value that has no logarithm lies at the beginning."""

    low: float
    high: float
    begin: float
    end: float
    linear: bool = False

    def __call__(self, value: float) -> float:
        if self.linear:
            share = (value - self.low) / (self.high - self.low)
        else:
            value = max(value, self.low)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + min(1.0, max(0.0, share)) * (self.end - self.begin)

    @property
    def ticks(self) -> list[float]:
        """Round values, as many as have room."""
        if self.linear:
            return [self.high * part / 4 for part in range(5)]
        room = abs(self.end - self.begin) / _TICK
        for digits in ((1, 2, 5), (1, 5), (1,)):
            found = [one for one in _rounded(self.low, self.high) if round(_digit(one)) in digits]
            if 2 <= len(found) <= room:
                return found
        decades = [one for one in _rounded(self.low, self.high) if round(_digit(one)) == 1]
        return decades[:: max(1, math.ceil(len(decades) / room))]


def axis(values: Iterable[float], begin: float, end: float, linear: bool = False) -> Axis:
    """An axis that all values fit on: from 0, or from a round number, to a round number."""
    known = [value for value in values if value > 0]
    if linear:
        high = max(known, default=1.0)
        step = 10 ** math.floor(math.log10(high))
        return Axis(0.0, math.ceil(high / step - 1e-9) * step, begin, end, linear=True)
    low, high = min(known, default=1.0), max(known, default=10.0)
    around = _rounded(low / 10, high * 10)
    first = max(one for one in around if one <= low * 1.001)
    last = min(one for one in around if one >= high * 0.999)
    # At least a decade: who is twice as fast is not to look a hundred times as fast.
    return Axis(first, max(last, first * 10), begin, end)


def _rounded(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten, from `low` to `high`."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    found = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    return [one for one in found if low * 0.999 <= one <= high * 1.001]


def _digit(value: float) -> float:
    return float(value / 10.0 ** math.floor(math.log10(value * 1.001)))


def named(value: float) -> str:
    """A tick: 1 M rather than 1e6, 0.01 rather than 1e-2; short, so that two that are close do not overlap."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= max(size, 10_000):
            return f"{value / size:g}\u202f{letter}"
    return f"{value:g}"
