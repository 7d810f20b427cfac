"""The asyncio locks that the benchmarks measure; see peers.py."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from peers import FileLock, Holdfast, Subject
from procs import NotAvailable


class AsyncSubject:
    """A lock on one path, entered by `async with subject.lock`. The constructor may be called outside a loop."""

    label: str
    package: str
    sync: type[Subject]
    """The same library's lock for processes that have no event loop."""
    lock: AbstractAsyncContextManager[Any]

    def __init__(self, path: str) -> None:
        raise NotImplementedError


class AsyncHoldfast(AsyncSubject):
    """holdfast.AsyncLock with its defaults."""

    label = "holdfast AsyncLock"
    package = "holdfast"
    sync = Holdfast

    def __init__(self, path: str) -> None:
        import holdfast

        if not hasattr(holdfast, "AsyncLock"):
            raise NotAvailable("not available: this holdfast has no AsyncLock")
        self.lock = holdfast.AsyncLock(path)


class AsyncFileLock(AsyncSubject):
    """filelock's FileLock in a thread of an executor; polls every 50 ms."""

    label = "AsyncFileLock"
    package = "filelock"
    sync = FileLock

    def __init__(self, path: str) -> None:
        import filelock

        self.lock = filelock.AsyncFileLock(path)
