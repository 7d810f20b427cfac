"""What this process holds of one lock file."""

from __future__ import annotations

from .environment import Environment
from .hold import Held


def own_hold(env: Environment, path: str) -> Held | None:
    """What this process holds of the file that the path names now."""
    try:
        found = env.stat(path)
    except OSError:
        return None
    held: Held | None = env.holds.get((found.st_dev, found.st_ino))
    return held
