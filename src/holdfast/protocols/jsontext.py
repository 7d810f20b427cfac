"""JSON in lock files. Numbers and nesting are bounded: no content exhausts the stack or takes quadratic time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_DEPTH = 100
"""Records are flat. The bound is far below what the stack allows, so that it does not depend on the caller's depth."""
MAX_CONTAINERS = 10_000
"""Maximum number of arrays and objects: each costs as much as a hundred characters."""
_MAX_DIGITS = 309
"""A whole number with more digits is beyond the largest double, so it is infinity in JavaScript."""
_EXPONENT = 1e21
"""The number from which on JavaScript writes whole numbers with an exponent."""


class TooDeep(ValueError):
    """More than MAX_DEPTH levels of arrays and objects, or more than MAX_CONTAINERS of them."""


def parse(text: str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of a JSON text, strictly by RFC 8259; ValueError for anything else.

    `pairs` makes the value of an object from its members, in order and with duplicates; without it, the last one wins.
    """
    import json

    if is_too_deep(text):
        raise TooDeep(f"nested more than {MAX_DEPTH} deep, or of more than {MAX_CONTAINERS} arrays and objects")
    return json.loads(text, parse_int=_whole, parse_constant=_refuse, object_pairs_hook=pairs)


def is_too_deep(text: str) -> bool:
    """Whether a text that may be JSON is nested deeper than MAX_DEPTH, or has too many arrays and objects."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    import itertools
    import re

    # A string matches as far as possible, closed or not: nothing is ever read twice.
    brackets = re.sub(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[^"\[\]{}]++', "", text, flags=re.DOTALL)
    if len(brackets) > 2 * MAX_CONTAINERS:
        return True
    steps = {"[": 1, "{": 1, "]": -1, "}": -1}
    return max(itertools.accumulate(map(steps.__getitem__, brackets)), default=0) > MAX_DEPTH


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def plain(value: object, depth: int = 0) -> Any:
    """A copy made of dict, list, str, int, float, bool and None; ValueError for anything that JSON cannot express."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        if len(f"{value:d}") > _MAX_DIGITS:
            raise ValueError("a number is too large for JSON")
        return int(value)
    if isinstance(value, float):
        if not -math.inf < value < math.inf:
            raise ValueError(f"JSON has no number {value!r}")
        return int(value) if value.is_integer() and abs(value) < _EXPONENT else float(value)
    if not isinstance(value, (Mapping, list, tuple)):
        raise ValueError(f"JSON cannot express {value!r:.80}")
    if depth >= MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep, or in a circle")
    if not isinstance(value, Mapping):
        return [plain(item, depth + 1) for item in value]
    copy: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise ValueError(f"the name of a JSON member must be a str, not {key!r:.80}")
        copy[str(key)] = plain(item, depth + 1)
    return copy


def stringify(value: object) -> str:
    """The text of JavaScript's `JSON.stringify(value, null, 2)`, but surrogates stay, and fractions below 0.0001 have
    Python's exponent. ValueError if JSON lacks it."""
    import json

    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=2)
    if is_too_deep(text):
        raise ValueError(f"it has more than {MAX_CONTAINERS} arrays and objects")
    return text
