"""Values as they are typed: each function turns one into what it means, or says what is wrong with it."""

from __future__ import annotations

import argparse
import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def seconds(text: str) -> float:
    value = number(text)
    if math.isnan(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 up")
    return value


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(text: str) -> float:
    import re

    if not re.fullmatch(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|s|m|h))+", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a duration; write it as 500ms, 30s, 1m, 2h or 1h30m")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9.]+)(ms|s|m|h)", text))
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no time at all")
    return seconds


def payload(text: str) -> dict[str, Any]:
    import json

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    try:
        value = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"it is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("it is not a JSON object: write {...}")
    return value


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None


def code(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 3 or int(text) > 255:
        raise argparse.ArgumentTypeError(f"{text!r} is not an exit status from 0 to 255")
    return int(text)


def slots(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 4 or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 1000")
    return int(text)


def pid(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 10 or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a process id")
    return int(text)


def mode(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an octal mode, such as 644") from None
