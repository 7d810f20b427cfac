"""Lock files that every language agrees on: held by the kernel, waited for without polling."""

from ._platform.fork import before_asyncio as _before_asyncio
from ._platform.fork import forking as _forking
from .errors import (
    AcquireCancelled,
    AcquireTimeout,
    EngineUnavailable,
    HoldfastError,
    InvalidPath,
    LockLost,
    LockStale,
    MalformedRecord,
    NotHeld,
    ProtocolMismatch,
    UnsupportedFilesystem,
    WouldDeadlock,
)
from .lock import Hold, Lock, Semaphore, provide_face_for_tasks
from .model import Evidence, Holder, Record, Status, Waiter, provide_sentences

__version__ = "0.2.0"

__all__ = [
    "AcquireCancelled",
    "AcquireTimeout",
    "AsyncHold",
    "AsyncLock",
    "AsyncSemaphore",
    "EngineUnavailable",
    "Evidence",
    "Hold",
    "Holder",
    "HoldfastError",
    "InvalidPath",
    "Liveness",
    "Lock",
    "LockLost",
    "LockStale",
    "MalformedRecord",
    "NotHeld",
    "ProtocolMismatch",
    "Record",
    "Semaphore",
    "Status",
    "UnsupportedFilesystem",
    "Waiter",
    "WouldDeadlock",
    "acquire_all",
]

TYPE_CHECKING: bool = False  # not a plain False, behind which jedi would look at nothing
if TYPE_CHECKING:
    from .aio import AsyncHold, AsyncLock, AsyncSemaphore
    from .liveness import Liveness
    from .several import acquire_all
else:  # a type checker that saw it would believe any name

    def __getattr__(name: str) -> object:
        """Import on demand what needs asyncio or `enum`, or is rarely used."""
        with _forking:
            if name == "Liveness":
                from .liveness import Liveness as found
            elif name == "acquire_all":
                from .several import acquire_all as found
            elif name.startswith("Async") and name in __all__:
                _before_asyncio()
                from . import aio

                found = getattr(aio, name)
            else:
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, found)


del TYPE_CHECKING


def _face_for_tasks() -> type:
    with _forking:
        _before_asyncio()
        from .aio import AsyncAcquirable

    return AsyncAcquirable


def _describe(status: Status) -> str:
    with _forking:
        from ._core.messages import described

    return described(status)


provide_face_for_tasks(_face_for_tasks)
provide_sentences(_describe)
del provide_face_for_tasks, provide_sentences


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
