"""Settings that the suites of one run share: where to put lock files, how much to measure, and which libraries."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from async_peers import AsyncSubject
from peers import LIBRARIES, Holdfast, Subject

Kind = TypeVar("Kind", bound=Subject | AsyncSubject)


@dataclass
class Context:
    """The settings of a run. `tmpfs` and `disk` are fresh directories, removed afterwards; `peers_only` leaves out
    holdfast."""

    tmpfs: Path
    disk: Path
    quick: bool = False
    peers_only: bool = False
    # Seeded, so that two runs take the same pauses and the same order; the machine supplies the noise.
    random: random.Random = field(default_factory=lambda: random.Random(20_240_601))

    def subjects(self, candidates: Sequence[type[Kind]]) -> list[type[Kind]]:
        """The candidates that this run measures."""
        return [one for one in candidates if not (self.peers_only and one.package == Holdfast.package)]

    def lock_path(self, name: str) -> Path:
        """A path on tmpfs in a directory of its own: files that one subject leaves would be listed by the next one."""
        directory = self.tmpfs / name
        directory.mkdir()
        return directory / "it.lock"

    def pick(self, quick: float, full: float) -> float:
        """The value for this run: `quick` with --quick, else `full`."""
        return quick if self.quick else full

    @property
    def holdfast_missing(self) -> str:
        """Why a goal has no measured value, if this run leaves holdfast out; else empty."""
        return "--peers-only" if self.peers_only else ""

    @property
    def packages(self) -> list[str]:
        """Distributions whose versions belong in the report, in table order."""
        used = self.subjects(list(LIBRARIES))
        return list(dict.fromkeys(one.package for one in used if one.package is not None))
