"""The samples of one subject, kept by round, and the statistics that the tables print."""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

from procs import Failed, NotAvailable

# Fewer samples than this have no 99th percentile worth the name, and no 5th and 95th.
ENOUGH_FOR_P99, ENOUGH_FOR_P95 = 100, 20


class Series:
    """Nanosecond samples by round. `error` says why there are none or why they stop."""

    def __init__(self) -> None:
        self.rounds: dict[int, array[int]] = {}
        self.error: str | None = None
        self.missing = False
        """Whether the error is only that the installed version has no such feature."""

    def fail(self, error: Failed) -> None:
        """Note why there are no samples, or no more."""
        self.error = str(error)
        self.missing = isinstance(error, NotAvailable)

    def add(self, number: int, samples: Iterable[int]) -> None:
        """File the samples of round `number`."""
        self.rounds[number] = array("q", samples)

    @property
    def count(self) -> int:
        return sum(len(samples) for samples in self.rounds.values())

    def median(self) -> float | None:
        """Median over the rounds of each round's median, in ns: one disturbed round does not move it."""
        medians = [statistics.median(samples) for samples in self.rounds.values() if samples]
        return statistics.median(medians) if medians else None

    def p99(self) -> float | None:
        """99th percentile of all samples, in ns; None below 100 samples."""
        return self._at(0.99) if self.count >= ENOUGH_FOR_P99 else None

    def worst(self) -> float | None:
        """The largest sample, in ns."""
        return self._at(1.0)

    def _at(self, share: float) -> float | None:
        everything = sorted(sample for samples in self.rounds.values() for sample in samples)
        return everything[min(int(len(everything) * share), len(everything) - 1)] if everything else None

    def ratio_to(self, other: Series) -> float | None:
        """Median over the rounds of (our median / the other's median in the same round).

        Rounds are compared with themselves, so a machine that speeds up or slows down between rounds cancels out.
        """
        pairs = [
            statistics.median(samples) / statistics.median(other.rounds[number])
            for number, samples in self.rounds.items()
            if samples and other.rounds.get(number)
        ]
        return statistics.median(pairs) if pairs else None

    def data(self) -> dict[str, Any]:
        """The numbers for --json."""
        shares = (25, 75, *((5, 95) if self.count >= ENOUGH_FOR_P95 else ()))
        return {
            "samples": self.count,
            "rounds": len(self.rounds),
            "median_ns": self.median(),
            "p99_ns": self.p99(),
            "min_ns": self._at(0.0),
            "max_ns": self.worst(),
            "percentiles_ns": {str(share): self._at(share / 100) for share in shares} if self.count else {},
            "round_medians_ns": {
                str(number): statistics.median(samples) for number, samples in self.rounds.items() if samples
            },
            "error": self.error,
            "missing": self.missing,
        }


def failures(series: Mapping[str, Series]) -> list[str]:
    """The errors, a line for each subject. A feature that the installed version lacks is no error."""
    return [f"{name}: {one.error}" for name, one in series.items() if one.error and not one.missing]
