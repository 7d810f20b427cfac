"""Tickets that are gone, or may be, and of whose owners it is not known yet whether they have got in (follow.py)."""

from __future__ import annotations

from .ghosts import LIMBO
from .happening import Happening

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .crowd import Crowd, Place
    from .happening import Held
    from .onlooker import Onlooker


SETTLE = 0.1
"""Seconds after which a file that was closed is looked at again."""


class Departures:
    """By ticket. That somebody gave up is told when the lock file that he may have made can be seen."""

    def __init__(self, look_on: Onlooker, crowd: Crowd, held: Mapping[str, Held]) -> None:
        self._look_on = look_on
        self._crowd = crowd
        self._held = held
        self._gone: dict[Place, tuple[Happening, float]] = {}

        self._expected: dict[Place, float] = {}

    def dues(self) -> list[float]:
        return [*(until for _, until in self._gone.values()), *self._expected.values()]

    def expect(self, place: Place) -> None:
        """It was closed: perhaps its owner has died, and the guard is gone in a moment (Z15)."""
        self._expected[place] = self._look_on.monotonic() + SETTLE

    def expected(self, now: float) -> list[Place]:
        """Those that it is time to look at."""
        found = [place for place, until in self._expected.items() if now >= until]
        for place in found:
            del self._expected[place]
        return found

    def add(self, place: Place) -> None:
        wait = self._crowd.waits.get(place)
        held = None if wait is None else self._held.get(wait.path)
        one = self._crowd.left(place, held.holder.pid if held is not None else None)
        if one is not None:
            self._gone[place] = (one, self._look_on.monotonic() + LIMBO)

    def is_back(self, place: Place) -> bool:
        """Whether a ticket that can be read now was gone a moment ago; its owner goes on waiting (Q6 of the queue)."""
        return self._gone.pop(place, None) is not None

    def decide(self, now: float) -> list[Happening]:
        """Those of whom it is time to know."""
        found = []
        for place, (one, until) in [*self._gone.items()]:
            if now >= until:
                del self._gone[place]
                holders = {held.holder.pid: held for held in self._held.values()}
                if one.pid not in holders or holders[one.pid].since < one.time - (one.waited or 0.0):
                    found.append(one)
        return found
