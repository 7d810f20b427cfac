"""The environment of one who looks on: the same system, but guards are not probed at will (follow.py, Z11)."""

from __future__ import annotations

from .._core.environment import LockOwner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .._core.environment import Stat
    from .findings import Census, Surroundings


class Onlooker:
    """Hand it to a survey."""

    def __init__(self, env: Surroundings, glimpse: Callable[[], Census]) -> None:
        self._env = env
        self._glimpse = glimpse
        self._latest: Census | None = None
        self._blank: set[tuple[int, int]] = set()
        self.kernels: dict[str, tuple[int, int]] = {}
        """The files that only the kernel locks, by path."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def stat(self, path: str, *, dir_fd: int | None = None) -> Stat:
        found = self._env.stat(path, dir_fd=dir_fd)
        if not found.st_size:
            self._blank.add((found.st_dev, found.st_ino))
        return found

    def guarded(self, fd: int) -> bool | None:
        return self._env.guarded(fd) if self._env.fstat(fd).st_size else None

    def census(self) -> Census:
        return _Brief(self, {*self.kernels.values()}, self._blank)

    def is_locked(self, identity: tuple[int, int]) -> bool:
        """Whether the kernel's table shows a lock on this file."""
        return self.table().is_locked(identity)

    def anew(self) -> None:
        """What was known is old: read the table again when it is needed."""
        self._latest = None
        self._blank = set()

    def table(self) -> Census:
        if self._latest is None:
            self._latest = self._glimpse()
        return self._latest


class _Brief:
    """A census that asks the tables only about what may be a lock of the kernel alone.

    Reading the table of locks stops whoever takes one, anywhere, meanwhile; a walk through all processes takes long.
    """

    def __init__(self, onlooker: Onlooker, kernels: set[tuple[int, int]], blank: set[tuple[int, int]]) -> None:
        self._onlooker = onlooker
        self._kernels = kernels
        self._blank = blank

    def is_artificial(self, device: int) -> bool:  # noqa: ARG002
        return False

    def locked_numbers(self, device: int) -> frozenset[int]:  # noqa: ARG002
        return frozenset()

    def user(self, pid: int) -> int | None:  # noqa: ARG002
        return None

    def is_locked(self, identity: tuple[int, int]) -> bool:
        return (identity in self._kernels or identity in self._blank) and self._onlooker.is_locked(identity)

    def owners(self, identity: tuple[int, int]) -> list[LockOwner]:
        return self._onlooker.table().owners(identity)

    def watchers(self, identity: tuple[int, int]) -> list[int]:  # noqa: ARG002
        return []

    def heeds_readers(self, identity: tuple[int, int]) -> bool:
        return identity in self._kernels
