"""Amounts that have to happen in a storm. It ends as soon as they have: a busy machine takes longer, and does not fail.

HOLDFAST_TEST_SECONDS makes storms longer: then they go on for so long as well.
"""

from __future__ import annotations

import os
from typing import NamedTuple

LONG = float(os.environ.get("HOLDFAST_TEST_SECONDS", "0"))
DEADLINE = 120.0
"""Seconds after which nothing is believed to happen any more; an idle machine needs two."""


class Wanted(NamedTuple):
    """The least that has to happen."""

    seconds: float
    kills: int
    increments: int
    takeovers: int

    @classmethod
    def share(cls, share: float) -> Wanted:
        """A share of the numbers that are enough for the longest storm."""
        if LONG:
            return cls(LONG * share, int(5 * LONG * share), int(50 * LONG * share), 1)
        return cls(0.0, int(108 * share), int(1500 * share), int(18 * share))

    @property
    def limit(self) -> float:
        """Seconds within which the whole storm has ended."""
        return self.seconds + DEADLINE + 30

    def word(self) -> str:
        """The numbers as an argument of a command."""
        return ",".join(map(str, self))

    @classmethod
    def of(cls, word: str) -> Wanted:
        seconds, *counts = word.split(",")
        return cls(float(seconds), *map(int, counts))
