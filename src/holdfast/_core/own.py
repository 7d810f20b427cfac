"""What this process holds: of one lock file, and of what its caller has not got yet."""

from __future__ import annotations

from .environment import Environment
from .hold import Held, Share


def undelivered(env: Environment, context: tuple[object, ...], since: int) -> list[Share]:
    """What this caller has acquired since that number, and has not got; not what a call has acquired that this one
    interrupted, as a signal handler's does."""
    return [
        share
        for held in list(env.holds.values())
        for share in held.shares.copy()
        if share.number > since and share.context == context and not share.delivered
    ]


def own_hold(env: Environment, path: str) -> Held | None:
    """What this process holds of the file that the path names now."""
    try:
        found = env.stat(path)
    except OSError:
        return None
    held: Held | None = env.holds.get((found.st_dev, found.st_ino))
    return held
