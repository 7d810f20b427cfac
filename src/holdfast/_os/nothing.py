"""What is known where the system has no tables of who holds and who waits: nothing."""

from __future__ import annotations

from .._core.environment import LockOwner


class NoCensus:
    """See `survey.Census`."""

    def is_artificial(self, device: int) -> bool:  # noqa: ARG002
        return False

    def user(self, pid: int) -> int | None:  # noqa: ARG002
        return None

    def is_locked(self, identity: tuple[int, int]) -> bool:  # noqa: ARG002
        return False

    def locked_numbers(self, device: int) -> frozenset[int]:  # noqa: ARG002
        return frozenset()

    def owners(self, identity: tuple[int, int]) -> list[LockOwner]:  # noqa: ARG002
        return []

    def watchers(self, identity: tuple[int, int]) -> list[int]:  # noqa: ARG002
        return []

    def heeds_readers(self, identity: tuple[int, int]) -> bool:  # noqa: ARG002
        return False
