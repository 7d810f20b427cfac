"""kqueue(2) on Linux, as far as holdfast uses it: made of inotify, pidfds and an epoll instance that is the number.

It reports closed files as FreeBSD does. As with the real one, a forked child has none of its parent's, and a watch on a
file ends when the descriptor by which it was made is closed.
"""

from __future__ import annotations

import os
import select
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from holdfast._platform import kqueue as module
from holdfast._platform.inotify import IN_IGNORED, IN_MODIFY, IN_UNMOUNT
from holdfast._platform.libc import LIBC
from holdfast._platform.masks import IN_ATTRIB, IN_CLOSE_NOWRITE, IN_CLOSE_WRITE, IN_DELETE_SELF, IN_MOVE_SELF

KQ_FILTER_READ, KQ_FILTER_VNODE, KQ_FILTER_PROC = -1, -4, -5
KQ_EV_ADD, KQ_EV_CLEAR, KQ_EV_ERROR = 0x1, 0x20, 0x4000
KQ_NOTE_DELETE, KQ_NOTE_WRITE, KQ_NOTE_EXTEND, KQ_NOTE_ATTRIB = 0x1, 0x2, 0x4, 0x8
KQ_NOTE_LINK, KQ_NOTE_RENAME, KQ_NOTE_REVOKE = 0x10, 0x20, 0x40
KQ_NOTE_EXIT = 0x80000000
NOTE_CLOSE, NOTE_CLOSE_WRITE = 0x100, 0x200
_NOTES = {
    IN_MODIFY: KQ_NOTE_WRITE,
    IN_ATTRIB: KQ_NOTE_ATTRIB,
    IN_DELETE_SELF: KQ_NOTE_DELETE,
    IN_MOVE_SELF: KQ_NOTE_RENAME,
    IN_UNMOUNT: KQ_NOTE_REVOKE,
    IN_CLOSE_WRITE: NOTE_CLOSE_WRITE,
    IN_CLOSE_NOWRITE: NOTE_CLOSE,
}
_EVENT = struct.Struct("iIII")


class kevent:
    def __init__(self, ident: Any, filter: int = KQ_FILTER_READ, flags: int = KQ_EV_ADD, fflags: int = 0) -> None:  # noqa: A002
        self.ident = ident if isinstance(ident, int) else ident.fileno()
        self.filter, self.flags, self.fflags = filter, flags, fflags


class kqueue:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._inotify = -1
        self._files: dict[int, tuple[int, int, int, int]] = {}
        """By watch: the descriptor, its inode, the number of links of that, and the events to report."""
        self._processes: dict[int, int] = {}
        self._fifos: set[int] = set()
        self.closed = False
        _alive.add(self)

    def fileno(self) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed kqueue object")
        return self._epoll.fileno()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            for fd in (*self._processes, *([self._inotify] if self._inotify >= 0 else [])):
                os.close(fd)
            self._epoll.close()

    __del__ = close

    def control(self, changes: Sequence[kevent] | None, most: int, timeout: float | None = None) -> list[kevent]:
        self.fileno()
        for change in changes or ():
            self._add(change)
        if not most:
            return []
        ready = {fd for fd, _ in self._epoll.poll(timeout)}
        found = [kevent(pid, KQ_FILTER_PROC, 0, KQ_NOTE_EXIT) for fd, pid in self._processes.items() if fd in ready]
        found += [kevent(fd, KQ_FILTER_READ, 0) for fd in self._fifos & ready]
        notes: dict[int, int] = {}
        for fd, note in self._changes() if self._inotify in ready else ():
            notes[fd] = notes.get(fd, 0) | note
        return [*found, *(kevent(fd, KQ_FILTER_VNODE, KQ_EV_CLEAR, note) for fd, note in notes.items())][:most]

    def _add(self, change: kevent) -> None:
        if change.filter == KQ_FILTER_PROC:
            fd = os.pidfd_open(change.ident)
            self._processes[fd] = change.ident
            self._epoll.register(fd, select.EPOLLIN)
        elif change.filter == KQ_FILTER_READ:
            self._fifos.add(change.ident)
            self._epoll.register(change.ident, select.EPOLLIN)
        else:
            self._watch(change)

    def _watch(self, change: kevent) -> None:
        if self._inotify < 0:
            self._inotify = LIBC.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            self._epoll.register(self._inotify, select.EPOLLIN)
        found = os.fstat(change.ident)
        wd = LIBC.inotify_add_watch(self._inotify, b"/proc/self/fd/%d" % change.ident, sum(_NOTES))
        assert wd >= 0
        self._files[wd] = (change.ident, found.st_ino, found.st_nlink, change.fflags)

    def _changes(self) -> Iterator[tuple[int, int]]:
        try:
            data = os.read(self._inotify, 65536)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            wd, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            if mask & IN_IGNORED or wd not in self._files:
                continue
            fd, inode, links, wanted = self._files[wd]
            try:
                now = os.fstat(fd)
            except OSError:
                continue  # closed, and with it the watch
            if now.st_ino != inode:
                continue
            note = sum(note for bit, note in _NOTES.items() if mask & bit)
            if now.st_nlink < links:
                note |= KQ_NOTE_DELETE
                self._files[wd] = (fd, inode, now.st_nlink, wanted)
            if note & wanted:
                yield fd, note & wanted


_alive: weakref.WeakSet[kqueue] = weakref.WeakSet()


def _in_child() -> None:
    for one in list(_alive):
        one.close()


class Api:
    """The parts of the module `select` about kqueue."""

    kqueue, kevent = kqueue, kevent
    KQ_FILTER_READ, KQ_FILTER_VNODE, KQ_FILTER_PROC = KQ_FILTER_READ, KQ_FILTER_VNODE, KQ_FILTER_PROC
    KQ_EV_ADD, KQ_EV_CLEAR = KQ_EV_ADD, KQ_EV_CLEAR
    KQ_NOTE_DELETE, KQ_NOTE_WRITE, KQ_NOTE_EXTEND = KQ_NOTE_DELETE, KQ_NOTE_WRITE, KQ_NOTE_EXTEND
    KQ_NOTE_ATTRIB, KQ_NOTE_LINK, KQ_NOTE_RENAME = KQ_NOTE_ATTRIB, KQ_NOTE_LINK, KQ_NOTE_RENAME
    KQ_NOTE_REVOKE, KQ_NOTE_EXIT = KQ_NOTE_REVOKE, KQ_NOTE_EXIT


def install(replace: Callable[[Any, str, Any], object] = setattr) -> None:
    """Have this process and its children use this kqueue, if the system has none of its own."""
    if hasattr(select, "kqueue"):
        return
    global _hooked
    if not _hooked:
        _hooked = True
        os.register_at_fork(after_in_child=_in_child)
    replace(module, "api", Api)
    replace(module, "UNLOCKED", {"linux": (NOTE_CLOSE_WRITE, NOTE_CLOSE_WRITE | NOTE_CLOSE)})


_hooked = False
