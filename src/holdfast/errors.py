"""Every exception that holdfast raises of its own.

Each carries `path`, `protocol` and, where known, `holder`; each message says what happened, who holds the lock
and what to do next; each survives pickling. An `OSError` that is none of these comes from the operating system
and passes through; where descriptors or space are used up, its text also says what to do.
"""

from __future__ import annotations

from .model import Holder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    E = TypeVar("E", bound="HoldfastError")


class HoldfastError(Exception):
    """Base of every error that holdfast raises of its own."""

    path: str | None
    protocol: str | None
    holder: Holder | None

    def __init__(
        self, message: str, *, path: str | None = None, protocol: str | None = None, holder: Holder | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.protocol = protocol
        self.holder = holder

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError pickles its own positional arguments and would drop ours.
        return _rebuild, (type(self), self.message, self.path, self.protocol, self.holder)


def _rebuild(
    kind: type[HoldfastError], message: str, path: str | None, protocol: str | None, holder: Holder | None
) -> HoldfastError:
    return kind(message, path=path, protocol=protocol, holder=holder)


def renamed(error: HoldfastError, kind: type[E]) -> E:
    """The same in the vocabulary of another system."""
    return kind(error.message, path=error.path, protocol=error.protocol, holder=error.holder)


class AcquireTimeout(HoldfastError, TimeoutError):
    """The lock was still held when the time was up; `holder` says by whom."""


class LockStale(HoldfastError):
    """The lock is stale, and its protocol leaves the decision to remove it to the caller."""


class LockLost(HoldfastError):
    """The lock file was removed or replaced while it was held: somebody else may be inside."""


class NotHeld(HoldfastError):
    """The handle holds nothing: it was released, or it belongs to the process that forked this one."""


class WouldDeadlock(HoldfastError, RuntimeError):
    """The wait could never end: the same thread or task holds this lock and set no timeout.

    Nor, for a task, does an `asyncio.timeout` around it end the wait.
    """


class MalformedRecord(HoldfastError, ValueError):
    """The content of a lock file is not a record of its protocol. Such a lock is held, never stale."""


class ProtocolMismatch(HoldfastError):
    """The lock file holds a record of another protocol: the two do not exclude each other."""


class InvalidPath(HoldfastError, ValueError):
    """No lock file can be at this path; the message says why."""


class UnsupportedFilesystem(HoldfastError, OSError):
    """The directory can do none of what a lock file of this protocol needs: publishing it, or locking it."""


class EngineUnavailable(HoldfastError, OSError):
    """The server that stores the lock cannot be reached."""


def set_error_path(error: OSError, path: str) -> None:
    """Have the error say where: of a step on a descriptor, or by other names of ours, the system does not."""
    if isinstance(error, (HoldfastError, ConnectionError)):
        return  # it says so in our words; it is of a caller's function, and about no file
    if error.filename2 is not None:
        error.filename = error.filename2
        del error.filename2
    if error.filename is None:
        error.filename = path
