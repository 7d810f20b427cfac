"""Watches on inodes, as `_platform/inotify.py` offers them: one queue for each process, which may overflow.

What an event says is kept as bits, and asking for it clears them. Whoever waits is woken by any bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._platform.interface import CHANGED, CLOSED

if TYPE_CHECKING:
    from .kernel import Inode
    from .process import Process

FIRST_EVENT_FD = 10_000
"""Numbers from here are no files: they stand for what makes a wait end."""


class SimWatch:
    """A wait's interest in one inode. See `Watch` in `_platform/interface.py`."""

    __slots__ = ("change", "fd", "inode", "process", "readers")

    def __init__(self, process: Process, inode: Inode, fd: int, *, readers: bool) -> None:
        self.process = process
        self.inode = inode
        self.fd = fd
        self.readers = readers
        self.change = 0
        inode.watches.append(self)

    def fds(self) -> tuple[int, ...]:
        return (self.fd,)

    def woken(self, *, over: bool = True) -> bool:
        return over or bool(self.change)

    def take(self) -> int:
        self.process.step("take", self.inode.number, self.inode.mark.r)
        change, self.change = self.change, 0
        self.process.unread = 0
        return change

    def tell(self, change: int) -> None:
        """An event has come; or the queue was full, and all that is known is that something has happened."""
        process = self.process
        process.unread += 1
        if process.unread > process.kernel.queue_limit:
            for watch in process.watches.values():
                watch.change |= CHANGED | CLOSED
        else:
            self.change |= change

    def close(self) -> None:
        process = self.process
        known = not process.dead and process.watches.pop(self.fd, None) is not None
        if known and self in self.inode.watches:
            self.inode.watches.remove(self)
