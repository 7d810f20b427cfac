"""A lock file that was found by looking for such files, and the words for its condition."""

from __future__ import annotations

from ..model import Status, Value

HELD, ELSEWHERE, MALFORMED, EMPTY = "held", "elsewhere", "malformed", "empty"
STALE, DEAD, LEFTOVER, FREE = "stale", "dead", "leftover", "free"
CONDITIONS = (HELD, ELSEWHERE, MALFORMED, EMPTY, STALE, DEAD, LEFTOVER, FREE)


class Found(Value):
    """One lock file. Where its protocol cannot be told, `status.protocol` is empty.

    `condition` is one of CONDITIONS: held; dead (proven, so that the next contender gets it); stale by its protocol's
    rule; elsewhere (held, by all that can be known, on another host, before a reboot or in another container);
    malformed, which counts as held; empty: held by all protocols but `flock`, by which nobody holds it; leftover, of
    another program's whose holder has ended by all that can be seen (`status.locked`: whether that program would be
    kept out by it); free, of a file that stays. `uid` is the user of the holder's process, or else of the file. `slot`:
    its number, if it is one of a semaphore for which somebody waits. `advice`: what the users of another program do
    next about its lock, whose kind is `status.protocol` (kinds/); None for the locks of our protocols.
    """

    status: Status
    condition: str
    identity: tuple[int, int]
    uid: int | None = None
    slot: int | None = None
    advice: str | None = None


class Unreadable(Value):
    """What could not be looked at, and why."""

    path: str
    error: OSError
