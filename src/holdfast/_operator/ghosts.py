"""Holds whose lock file has vanished, and of which it is not known yet whether they were released (follow.py, Z14)."""

from __future__ import annotations

from .happening import Happening, Held

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .onlooker import Onlooker

LIMBO, PATIENCE = 0.05, 0.5
"""Seconds after which the table is asked whether the guard is still held, for the first and for the last time."""


class Ghosts:
    """By path; `held` are those that are there."""

    def __init__(self, look_on: Onlooker, held: Mapping[str, Held]) -> None:
        self._look_on = look_on
        self._held = held
        self._ghosts: dict[str, tuple[Held, float, float]] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._ghosts

    def dues(self) -> list[float]:
        return [until for _, until, _ in self._ghosts.values()]

    def add(self, path: str, held: Held) -> None:
        now = self._look_on.monotonic()
        self._ghosts[path] = (held, now + LIMBO, now)

    def lay(self, path: str, kind: str) -> Happening:
        """Its end is known: told with the time at which its file vanished."""
        held, _, vanished = self._ghosts.pop(path)
        at = self._look_on.time() - (self._look_on.monotonic() - vanished)
        return held.tell(kind, at, waited=held.waited, held=max(0.0, at - held.since))

    def hasten(self, path: str) -> list[Happening]:
        """The next one holds it: most probably it was released, and should be told before that."""
        if path not in self._ghosts:
            return []
        self._look_on.anew()
        return [] if self._is_guarded(self._ghosts[path][0]) else [self.lay(path, "released")]

    def decide(self, now: float) -> list[Happening]:
        """Those of which it is time to know."""
        found = []
        for path, (held, until, vanished) in [*self._ghosts.items()]:
            if now < until:
                continue
            if not self._is_guarded(held):
                found.append(self.lay(path, "released"))
            elif now >= vanished + PATIENCE:
                found.append(self.lay(path, "lost"))
            else:
                self._ghosts[path] = (held, vanished + PATIENCE, vanished)
        return found

    def _is_guarded(self, ghost: Held) -> bool:
        """The number of a file that is gone may be another's by now, even one of the same process."""
        identity = ghost.found.identity
        if any(held.found.identity == identity for held in self._held.values()):
            return False
        return any(owner.pid == ghost.holder.pid for owner in self._look_on.table().owners(identity))
