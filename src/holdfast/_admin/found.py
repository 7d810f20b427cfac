"""Lock files that a search has found, and the words for their condition."""

from __future__ import annotations

from ..model import Status, Value

HELD, ELSEWHERE, MALFORMED, EMPTY = "held", "elsewhere", "malformed", "empty"
STALE, DEAD, LEFTOVER, FREE = "stale", "dead", "leftover", "free"
CONDITIONS = (HELD, ELSEWHERE, MALFORMED, EMPTY, STALE, DEAD, LEFTOVER, FREE)


class Found(Value):
    """A lock file. `status.protocol` is empty if its protocol is unknown.

    `condition` is one of CONDITIONS: held; dead (proven, so that the next contender gets it); stale by its protocol's
    rule; elsewhere (held, as far as can be known, on another host, before a reboot or in another container); malformed,
    which counts as held; empty: held by all protocols but `flock`, by which nobody holds it; leftover: another
    program's lock, whose holder has ended by all that can be seen (`status.locked`: whether it keeps that program out);
    free: a file that stays, and nobody holds. `uid` is the user of the holder's process, or else of the file. `slot`:
    its number, if it is a slot of a semaphore with waiters. `advice`: what to do next about another program's lock,
    whose kind is `status.protocol` (kinds/); None for the locks of our protocols.
    """

    status: Status
    condition: str
    identity: tuple[int, int]
    uid: int | None = None
    slot: int | None = None
    advice: str | None = None


class Unreadable(Value):
    """A path that could not be looked at, and why."""

    path: str
    error: OSError
