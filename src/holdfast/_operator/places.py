"""What is followed: whole directories, or some names in them."""

from __future__ import annotations

import re
from fnmatch import translate

from . import recognition


class Places:
    """Directories, by path: None, or the names of the locks that are meant. `polled`: where no events come from.

    `missing`: those that could not be listed any more, and why.
    """

    def __init__(self) -> None:
        self.directories: dict[str, set[str] | None] = {}
        self.polled: set[str] = set()
        self.missing: dict[str, OSError] = {}
        self._patterns: dict[str, list[re.Pattern[str]]] = {}

    def add(self, directory: str, name: str | None, *, polled: bool, pattern: bool = False) -> None:
        """With a name: what can be its lock files, itself, `NAME.lock`, and slots of a semaphore; or what fits a
        pattern, as shells have them."""
        names = self.directories.setdefault(directory, set())
        if name is None:
            self.directories[directory] = None
        elif pattern:
            self._patterns.setdefault(directory, []).append(re.compile(translate(name)))
        elif names is not None:
            names.add(name)
        if polled:
            self.polled.add(directory)

    def wanted(self, directory: str, name: str) -> bool:
        names = self.directories.get(directory, set())
        if names is None or name in names:
            return True
        slot = recognition.slot_of(name)
        if name.removesuffix(".lock") in names or (slot is not None and slot[0] in names):
            return True
        return any(pattern.match(name) for pattern in self._patterns.get(directory, ()))
