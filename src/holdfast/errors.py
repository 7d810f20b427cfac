"""All exceptions of holdfast.

Each carries `path`, `protocol` and `holder`, where they are known; each message says what happened, who holds the lock
and what to do next; each survives pickling. Any other `OSError` comes from the operating system and passes through; if
descriptors or space are used up, its text also says what to do.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeVar

    from .model import Holder

    E = TypeVar("E", bound="HoldfastError")


class HoldfastError(Exception):
    """Base of all errors of holdfast."""

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
        # OSError pickles its own positional arguments and would drop ours. The rest includes notes.
        return type(self), (self.message,), vars(self)


def renamed(error: HoldfastError, kind: type[E]) -> E:
    """The error in the vocabulary of another system."""
    return kind(error.message, path=error.path, protocol=error.protocol, holder=error.holder)


class AcquireTimeout(HoldfastError, TimeoutError):
    """The lock was still held when the timeout ended; `holder` names the holder."""


class AcquireCancelled(HoldfastError):
    """The call ended because its `cancel` was set. It leaves nothing behind."""


class LockStale(HoldfastError):
    """The lock is stale, and its protocol leaves the decision to remove it to the caller."""


class LockLost(HoldfastError):
    """The lock was lost while it was held: its file was removed or replaced, its lease is over, or its server has ended
    it. Another process may be inside."""


class NotHeld(HoldfastError):
    """The handle holds nothing: it was released, or it belongs to the process that forked this one."""


class WouldDeadlock(HoldfastError, RuntimeError):
    """The wait could never end: the same thread or task holds this lock, and set no timeout.

    For a task, an `asyncio.timeout` around the wait is a timeout.
    """


class MalformedRecord(HoldfastError, ValueError):
    """The counter of fencing tokens is damaged, or a face (`holdfast.sema` …) reads something that is no record.

    For a `Lock`, a lock file that cannot be read is no error: it counts as held.
    """


class ProtocolMismatch(HoldfastError):
    """The lock file holds a record of another protocol: the two do not exclude each other."""


class InvalidPath(HoldfastError, ValueError):
    """No lock file can be at this path; the message says why."""


class UnsupportedFilesystem(HoldfastError, OSError):
    """The filesystem lacks what this protocol needs: a way to create the lock file exclusively, or kernel locks that
    all machines with this mount can see."""


class EngineUnavailable(HoldfastError, OSError):
    """The server that stores the lock, or the file server of its directory, does not answer."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean X?`, where X is the known name that is nearly this word; else an empty string."""
    from difflib import get_close_matches

    near = get_close_matches(word, [*known], 1, cutoff=0.65)
    return f" Did you mean {near[0]}?" if near else ""


def set_error_path(error: OSError, path: str) -> None:
    """Set the error's path, where the system sets none (a step on a descriptor) or another name of ours."""
    if isinstance(error, HoldfastError):
        return  # it says so already
    if error.filename2 is not None:
        error.filename = error.filename2
        del error.filename2
    if error.filename is None:
        error.filename = path
