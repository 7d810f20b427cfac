"""Events by kqueue(2): changes of lock files, and ends of processes.

KQ1 Each watch has a kqueue of its own: making and closing one takes microseconds, and only the number of descriptors
    limits them. It is closed with its Python object, so an interruption between two steps leaves none.
KQ2 A file is watched by a descriptor of its own, until that is closed. It is opened, and then armed: a change before
    that makes no event, and is found by the look that comes after the arming (watched.py, WF1).
KQ3 A forked child has no kqueue of its parent, and their numbers are free there: it closes none of them.
KQ4 Files are watched only on systems that tell of dropped guards: there, a holder's death is a change like others.
    macOS tells that a file was unlocked, FreeBSD and NetBSD that it was closed. Elsewhere waits poll.
"""

from __future__ import annotations

import os
import select as _select
import sys

from .descriptors import Descriptor, Descriptors
from .operations import partial
from .values import CHANGED, CLOSED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container
    from typing import Any


api: Any = _select
"""The module that has `kqueue`, `kevent` and their constants."""
_ONLY_EVENTS: int = getattr(os, "O_EVTONLY", os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
UNLOCKED = {"darwin": (0x100, 0x100), "freebsd": (0x200, 0x300), "netbsd": (0x200, 0x300)}
"""The notes of dropped guards, for which Python has no names: of holders that can write, and of all (KQ4)."""
_MOST = 64
"""The most events taken at once."""


def is_there() -> bool:
    return hasattr(api, "kqueue")


def unlocked() -> tuple[int, int]:
    """The notes of dropped guards on this system: of holders that can write, and of all; 0 where there are none."""
    return next((notes for name, notes in UNLOCKED.items() if sys.platform.startswith(name)), (0, 0))


class _Queue(Descriptor):
    """The descriptor of a kqueue of ours."""

    made: Any

    def __new__(cls, made: Any, number: int) -> _Queue:
        queue = super().__new__(cls, number)
        queue.made = made
        queue.end = lambda _number: made.close()
        return queue

    def register(self, ident: int, kind: int, notes: int, *, clear: bool) -> None:
        flags = api.KQ_EV_ADD | (api.KQ_EV_CLEAR if clear else 0)
        self.made.control([api.kevent(ident, kind, flags, notes)], 0, 0)

    def take(self) -> list[Any]:
        """All pending events, up to `_MOST`."""
        try:
            found: list[Any] = self.made.control(None, _MOST, 0)
        except ValueError:
            return []  # it is the parent's (KQ3)
        return found


def _opened(descriptors: Descriptors, *, lasting: bool = False) -> _Queue:
    made = api.kqueue()
    queue = descriptors.open(made.fileno, kind=partial(_Queue, made), lasting=lasting)
    assert isinstance(queue, _Queue)
    return queue


def _watch(descriptors: Descriptors, queue: _Queue, path: str, told: int, *, lasting: bool = False) -> Descriptor:
    """Open a descriptor of the file, and watch it by that (KQ2)."""
    fd = descriptors.open(os.open, path, _ONLY_EVENTS, lasting=lasting)
    notes = (
        told | api.KQ_NOTE_DELETE | api.KQ_NOTE_RENAME | api.KQ_NOTE_WRITE | api.KQ_NOTE_EXTEND
        | api.KQ_NOTE_ATTRIB | api.KQ_NOTE_LINK | api.KQ_NOTE_REVOKE
    )  # fmt: skip
    try:
        queue.register(fd, api.KQ_FILTER_VNODE, notes, clear=True)
    except BaseException:
        descriptors.close(fd)
        raise
    return fd


class FileWatch:
    """A wait's interest in one file. See `Watch` in interface.py."""

    __slots__ = ("_descriptors", "_fd", "_queue", "_told")

    def __init__(self, descriptors: Descriptors, path: str, *, readers: bool) -> None:
        self._descriptors = descriptors
        self._told = unlocked()[readers]
        self._queue = _opened(descriptors)
        try:
            self._fd = _watch(descriptors, self._queue, path, self._told)
        except BaseException:
            descriptors.close(self._queue)
            raise

    def fds(self) -> tuple[int, ...]:
        return (self._queue,) if self._queue in self._descriptors else ()

    def woken(self, *, over: bool = True) -> bool:
        return over or _has_events(self._queue)

    def take(self) -> int:
        change = 0
        for event in self._queue.take():
            change |= CLOSED if event.fflags & self._told else 0
            change |= CHANGED if event.fflags & ~self._told else 0
        return change

    def close(self) -> None:
        self._descriptors.close(self._queue)
        self._descriptors.close(self._fd)


class WatchSet:
    """A wait for many files. See `WatchSet` in interface.py; a key is the descriptor by which a file is watched."""

    __slots__ = ("_descriptors", "_files", "_queue")

    def __init__(self, descriptors: Descriptors) -> None:
        self._descriptors = descriptors
        self._queue = _opened(descriptors, lasting=True)
        self._files: dict[int, Descriptor] = {}

    def add(self, path: str) -> int:
        fd = _watch(self._descriptors, self._queue, path, 0, lasting=True)
        self._files[fd] = fd
        return fd

    def discard(self, key: int) -> None:
        fd = self._files.pop(key, None)
        if fd is not None:
            self._descriptors.close(fd)

    def discard_all_but(self, keys: Container[int]) -> None:
        for key in list(self._files):
            if key not in keys:
                self.discard(key)

    def fds(self) -> tuple[int, ...]:
        return (self._queue,) if self._queue in self._descriptors else ()

    def woken(self) -> bool:
        return True

    def changed(self) -> set[int]:
        changed: set[int] = set()
        while events := self._queue.take():
            changed.update(event.ident for event in events)
        return changed

    def close(self) -> None:
        self.discard_all_but(())
        self._descriptors.close(self._queue)


def watch_process(descriptors: Descriptors, pid: int) -> int:
    """A descriptor that is readable once the process has ended. OSError if there is none, or it is a zombie."""
    queue = _opened(descriptors)
    try:
        queue.register(pid, api.KQ_FILTER_PROC, api.KQ_NOTE_EXIT, clear=False)
    except BaseException:
        descriptors.close(queue)
        raise
    return queue


def hung_up(fd: int) -> bool | None:
    """Whether a kqueue tells that the FIFO which this descriptor writes to has no reader; None: there are none."""
    if not is_there():
        return None
    queue = api.kqueue()
    try:
        return bool(queue.control([api.kevent(fd, api.KQ_FILTER_READ, api.KQ_EV_ADD)], 1, 0))
    except OSError:
        return False
    finally:
        queue.close()


def _has_events(fd: int) -> bool:
    poll = _select.poll()
    poll.register(fd, _select.POLLIN)
    return bool(poll.poll(0))
