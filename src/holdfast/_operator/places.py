"""What is followed: whole directories, or some names in them."""

from __future__ import annotations

from . import recognition


class Places:
    """Directories, by path: None, or the names of the locks that are meant. `polled`: where no events come from."""

    def __init__(self) -> None:
        self.directories: dict[str, set[str] | None] = {}
        self.polled: set[str] = set()

    def add(self, directory: str, name: str | None, *, polled: bool) -> None:
        """With a name: what can be its lock files, itself, `NAME.lock`, and slots of a semaphore."""
        names = self.directories.setdefault(directory, set())
        if name is None:
            self.directories[directory] = None
        elif names is not None:
            names.add(name)
        if polled:
            self.polled.add(directory)

    def wanted(self, directory: str, name: str) -> bool:
        names = self.directories.get(directory, set())
        if names is None or name in names:
            return True
        slot = recognition.slot_of(name)
        return name.removesuffix(".lock") in names or (slot is not None and slot[0] in names)
