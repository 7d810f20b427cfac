"""The liveness of a holder. A module of its own: `enum` takes as long to load as a quarter of holdfast, and an
acquisition that meets no other holder does not need it."""

from __future__ import annotations

from enum import Enum


class Liveness(Enum):
    """Whether a holder is alive, as far as is known. UNKNOWN counts as held, never as stale."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
