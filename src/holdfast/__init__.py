"""Lock files that every language agrees on: held by the kernel, waited for without polling."""

from .errors import (
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
from .hold import Hold
from .lock import Lock
from .model import Evidence, Holder, Liveness, Record, Status, Waiter
from .semaphore import Semaphore

__version__ = "0.1.0"

__all__ = [
    "AcquireTimeout",
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
]
