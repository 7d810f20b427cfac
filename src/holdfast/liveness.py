"""What is known of a holder's life. A module of its own: `enum` takes as long to load as a quarter of holdfast, and an
acquisition that meets no other holder asks nobody."""

from __future__ import annotations

from enum import Enum


class Liveness(Enum):
    """Whether a holder is alive, as far as is known. UNKNOWN counts as held, never as stale."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
