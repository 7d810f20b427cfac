"""One inotify instance for the whole process, shared by all waits.

Why one: closing an instance that ever had a watch costs milliseconds, and a user may have only 128.

Events go to waits in one of two ways, so that a wake-up costs one thread, not all of them:

N1  The *leader*, one of the threads that wait right now, waits on the instance's descriptor itself. It reads whatever
    is there and hands each event to the waits on that inode.
N2  The others, the *followers*, wait on an eventfd each, written when an event is handed to them.
N3  A leader that stops waiting, for whatever reason, resigns: it may be busy for long, and nobody else reads. A
    follower that waits becomes the leader, and its eventfd is written. Events that come before the new leader looks
    stay in the kernel's queue, and the descriptor stays readable: none is lost. Promotion is no reason to look or to
    resign: the new leader waits again at once.
N4  A queue that overflowed (16 384 events) has lost some: every wait is told that anything may have changed.
N5  Two watches of one inode share one kernel watch: hence a count per inode. A second add widens the kernel's mask
    (IN_MASK_ADD; else it would replace it), and nothing narrows it again, so each is told only what it asked for. An
    inode that is gone takes its kernel watch with it (IN_IGNORED).
N6  An event loop may be busy, stopped or closed while one of its tasks waits, and a signal handler may keep the main
    thread busy, or wait itself. So nobody outside a loop, or a wait of the main thread, relies on one of its waits.
    While another thread waits, it leads for all; while none does, each loop, and each wait of the main thread, has a
    leader of its own. Any of these may read, hence each of them has an eventfd too.
N7  A kernel watch and its entry here come and go by one call of C, so that nothing comes between them; and a wait is on
    the list of its operation before it is watched for (operations.py, J1).

A second instance, which no wait uses, notes what appears in directories where this process publishes often
(interop.py, Y7):

N8  An event is in the queue before the call that made the file returns. So a process that empties the queue after a
    step of its own has read of all files that were there by then. It is certain only if it finds its own file among
    them: then the watch is on the directory that the path names, events arrive here, and the queue has not overflowed.
N9  An interruption between reading events and noting them makes all uncertain; so does a publication that nobody asked
    about, because its event would be taken for that of a later one.

Observers from outside have an instance each (`FolderWatch`), for events of whole directories: the shared one would have
to read events that are meant for no wait. A watch on a directory wakes nobody, and does not keep it from being removed.
"""

from __future__ import annotations

import os
import struct
import threading

from .libc import LIBC, last_error
from .masks import IN_ATTRIB, IN_CLOSE_NOWRITE, IN_CLOSE_WRITE, IN_DELETE_SELF, IN_MOVE_SELF, MASKS
from .operations import waits
from .values import CHANGED, CLOSED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator
    from typing import Any

    from .descriptors import Descriptors
    from .operations import Operation


Change = tuple[str, str, str]
"""Directory, name, and what happened to it: `made`, `gone`, `written`, `closed`, `mode`; or `unknown`: some events were
lost. Without a name it is about the directory itself."""

IN_MODIFY, IN_CREATE, IN_DELETE, IN_MOVED_FROM, IN_MOVED_TO = 0x2, 0x100, 0x200, 0x40, 0x80
IN_UNMOUNT, IN_Q_OVERFLOW, IN_IGNORED = 0x2000, 0x4000, 0x8000
IN_ONLYDIR, IN_MASK_ADD = 0x1000000, 0x20000000

_EVENT = struct.Struct("iIII")
_BUFFER = 64 * 1024
_SMALL = 448
"""Bytes of the first read: more than any one event, and few enough for Python's own allocator."""
_LARGEST_EVENT = _EVENT.size + 256
_TEMPORARY, _SUFFIX = ".tmp", b".tmp"
_OVERFLOWN = b"\xff\xff\xff\xff"
"""The number of the watch in the event of an overflow."""
_MOST_NAMES = 1000
"""The most temporary files that are noted; with more, the directory is listed once more."""
_MOST_TOKENS = 1000
"""The most names of locks whose events are kept ready."""
_THREADS = 0
"""The crew of all waits in threads. The other crews are an event loop each, or a wait of the main thread (N6)."""

_libc: Any = LIBC


class _Waiter:
    """A wait for one inode or for many, by the rules N1, N2, N3 and N6."""

    __slots__ = ("_change", "_hub", "_wake", "crew", "promoted")

    readers: bool
    """Whether it is told when a read-only descriptor is closed."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.crew = hub.crew()
        self.promoted = False
        self._change = 0
        self._wake: int | None = None

    def fds(self) -> tuple[int, ...]:
        hub = self._hub
        with hub.mutex:
            if hub.fd < 0:
                return ()  # forked just now, by a signal handler: the waiter finds out when it has waited
            self.crew = hub.crew()
            hub.waiting[self] = None  # first, so that a leader which resigns in between can promote this wait
            leading = hub.leads(self)
            if leading and self.crew == _THREADS and not self._change:
                return (hub.fd,)
            if self._wake is None:
                try:
                    self._wake = hub.descriptors.open(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                except OSError:
                    self.woken()
                    return ()
            if self._change or self.promoted:  # handed over after the last look: this wait must not sleep on it
                self.wake()
            return (hub.fd, self._wake) if leading else (self._wake,)

    def woken(self, *, over: bool = True) -> bool:
        hub = self._hub
        with hub.mutex:
            hub.waiting.pop(self, None)
            if hub.leaders.get(self.crew) is self:
                promoted, self.promoted = self.promoted, False
                if promoted and not self._change:
                    self._calm()
                    return False
                if (not over or hub.waiting) and hub.may_read(self):
                    hub.read()  # pending events need not wait for the next leader
                if not over and not self._change:
                    return False  # it was about others, or about a watch that is gone
                hub.resign(self)
            elif not over and not self._change:
                self._calm()  # of several that make one wait, it was about another
                return False
            return True

    def take(self) -> int:
        hub = self._hub
        with hub.mutex:
            if hub.may_read(self):
                hub.read()
            change, self._change = self._change, 0
            self._calm()
        return change

    def tell(self, wd: int, change: int) -> None:  # noqa: ARG002
        self._change |= change
        self.wake()

    def _calm(self) -> None:
        """Reset the eventfd, as its message is known now; a wait on one that stays readable would spin."""
        if self._wake is not None:
            try:
                os.eventfd_read(self._wake)
            except BlockingIOError:
                pass

    def wake(self) -> None:
        if self._wake is not None:
            os.eventfd_write(self._wake, 1)

    def dispose(self) -> None:
        if self._wake is not None:
            self._hub.descriptors.close(self._wake)
        self._wake = None


class FileWatch(_Waiter):
    """A wait's interest in one inode. See `Watch`."""

    __slots__ = ("closed", "readers", "wd")

    def __init__(self, hub: Hub, wd: int, *, readers: bool) -> None:
        super().__init__(hub)
        self.wd = wd
        self.readers = readers
        self.closed = False

    def close(self) -> None:
        self._hub.remove(self, (self.wd,) if self.wd >= 0 else self._hub.watched_by(self))
        self.closed = True


class WatchSet(_Waiter):
    """A wait for many inodes. See `WatchSet` in interface.py."""

    __slots__ = ("_changed",)

    readers = False

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self._changed: set[int] = set()

    def add(self, path: str) -> int:
        return self._hub.subscribe(path, self)

    def discard(self, key: int) -> None:
        hub = self._hub
        with hub.mutex:
            self._changed.discard(key)
            hub.unsubscribe(key, self)

    def discard_all_but(self, keys: Container[int]) -> None:
        for wd in self._hub.watched_by(self):
            if wd not in keys:
                self.discard(wd)

    def tell(self, wd: int, change: int) -> None:
        self._changed.add(wd)
        super().tell(wd, change)

    def changed(self) -> set[int]:
        with self._hub.mutex:
            self.take()
            changed, self._changed = self._changed, set()
        return changed

    def close(self) -> None:
        self._hub.remove(self, self._hub.watched_by(self))


class Hub:
    """The process's inotify instance. Never closed: a forked child drops its copy and makes its own."""

    def __init__(self, descriptors: Descriptors, mutex: Any) -> None:
        self.mutex = mutex
        self.leaders: dict[int, _Waiter] = {}
        self.waiting: dict[_Waiter, None] = {}
        self.descriptors = descriptors
        self._watches: dict[int, list[_Waiter]] = {}
        self.fd: int = descriptors.open(_libc.inotify_init1, os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise last_error("inotify_init1")

    def orphan(self) -> None:
        """Drop everything, in a forked child: the instance is the parent's, and a thread that is not here may have had
        the mutex."""
        self.mutex = threading.RLock()
        self.leaders = {}
        self.waiting = {}
        self._watches = {}
        self.fd = -1

    def add(self, path: str, *, readers: bool = False, made: Operation | None = None) -> FileWatch:
        """Watch the inode that `path` names now. OSError if there is none, or no watch is left.

        `made`: the operation, which lists the watch before the kernel has it.
        """
        watch = FileWatch(self, -1, readers=readers)
        if made is not None:
            made.watches = [*(other for other in made.watches if not other.closed), watch]
        watch.wd = self.subscribe(path, watch)
        return watch

    def watch_set(self) -> WatchSet:
        return WatchSet(self)

    def subscribe(self, path: str, waiter: _Waiter) -> int:
        with self.mutex:
            while True:
                added = map(
                    _libc.inotify_add_watch, (self.fd,), (os.fsencode(path),), (MASKS[waiter.readers] | IN_MASK_ADD,)
                )
                number: dict[int, int] = {}
                # N7: one call of C.
                [sharing] = map(self._watches.setdefault, map(number.setdefault, (0,), added), ([waiter],))
                wd = number[0]
                if wd < 0:
                    del self._watches[wd]
                    raise last_error(path)
                if waiter not in sharing:
                    sharing.append(waiter)
                if self._watches.get(wd) is sharing:  # else the last that shared it has ended in between
                    return wd

    def unsubscribe(self, wd: int, waiter: _Waiter) -> None:
        sharing = self._watches.get(wd, [])
        # N7. EINVAL: the inode is gone, and the watch with it.
        steps = zip(map(self._watches.pop, (wd,)), map(_libc.inotify_rm_watch, (self.fd,), (wd,)), strict=False)
        if sharing == [waiter]:
            for _ in steps:
                pass
        elif waiter in sharing:
            sharing.remove(waiter)

    def watched_by(self, waiter: _Waiter) -> list[int]:
        """The watches of a waiter, including one that it was not told of, as it was interrupted."""
        with self.mutex:
            return [wd for wd, sharing in self._watches.copy().items() if waiter in sharing]

    def remove(self, waiter: _Waiter, wds: Iterable[int]) -> None:
        with self.mutex:
            for wd in wds:
                self.unsubscribe(wd, waiter)
            self.waiting.pop(waiter, None)
            if self.leaders.get(waiter.crew) is waiter:
                self.resign(waiter)
            waiter.dispose()

    def crew(self) -> int:
        """The crew of a wait that begins here."""
        if waits.loop or threading.get_ident() != threading.main_thread().ident:
            return waits.loop
        return -self.descriptors.operation()

    def leads(self, watch: _Waiter) -> bool:
        """Whether this wait, which begins, is its crew's leader."""
        if watch.crew != _THREADS and _THREADS in self.leaders:
            if self.leaders.get(watch.crew) is watch:
                del self.leaders[watch.crew]
            return False
        return self.leaders.setdefault(watch.crew, watch) is watch

    def may_read(self, watch: _Waiter) -> bool:
        """Whether this wait may read events. A thread that is about to sleep must find its events in the kernel: then
        only it may."""
        leader = self.leaders.get(_THREADS) or self.leaders.get(watch.crew)
        return leader is None or leader is watch

    def resign(self, watch: _Waiter) -> None:
        """Give up the lead (N3, N6). Where nobody of a crew waits just now, the next wait of the crew takes it."""
        del self.leaders[watch.crew]
        watch.promoted = False
        if _THREADS in self.leaders or self._promote(watch.crew) or watch.crew != _THREADS:
            return
        for crew in {other.crew for other in self.waiting}:
            if crew not in self.leaders:
                self._promote(crew)

    def _promote(self, crew: int) -> bool:
        for watch in self.waiting.copy():
            if watch.crew == crew and watch in self.waiting:
                self.leaders[crew] = watch
                watch.promoted = True
                watch.wake()
                return True
        return False

    def read(self) -> None:
        while self.fd >= 0:
            try:
                data = os.read(self.fd, _BUFFER)
            except BlockingIOError:
                return
            for wd, mask, _ in _events(data):
                self._dispatch(wd, mask)
            if len(data) <= _BUFFER - _LARGEST_EVENT:
                return  # there was room for more, so that was all

    def _dispatch(self, wd: int, mask: int) -> None:
        if mask & IN_Q_OVERFLOW:  # N4
            for every, sharing in self._watches.copy().items():
                for watch in sharing.copy():
                    watch.tell(every, CHANGED | CLOSED)
            return
        for watch in list(self._watches.get(wd, ())):
            if not mask & IN_CLOSE_NOWRITE or watch.readers:  # N5
                watch.tell(wd, CLOSED if mask & (IN_CLOSE_WRITE | IN_CLOSE_NOWRITE) else CHANGED)
        if mask & IN_IGNORED:
            self._watches.pop(wd, None)


def _events(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The watch, the mask and the name of each event."""
    at = 0
    while at < len(data):
        wd, mask, _, length = _EVENT.unpack_from(data, at)
        end = at + _EVENT.size + length
        yield wd, mask, data[at + _EVENT.size : end].rstrip(b"\0")
        at = end


class DirectoryLog:
    """The temporary files that have appeared in a directory. See `DirectoryLog` in interface.py, and N8."""

    __slots__ = ("_asked", "_doubts", "_logs", "_tokens", "_wd", "is_complete", "names")

    def __init__(self, logs: DirectoryLogs, wd: int) -> None:
        self._logs = logs
        self._wd = wd
        self._asked = True
        self._doubts = -1
        self._tokens: dict[str, bytes] = {}
        self.names: set[str] = set()
        self.is_complete = False

    def expect(self) -> None:
        if not self._asked:
            self._logs.read()
        self._asked = False

    def saw(self, name: str) -> bool:
        token = self._tokens.get(name)
        if token is None:
            if len(self._tokens) >= _MOST_TOKENS:
                self._tokens.clear()  # a process may lock each name but once
            token = self._tokens[name] = _token(self._wd, os.fsencode(name))
        logs = self._logs
        data = logs.read(token)
        self._asked, self._doubts = True, logs.doubts
        return self.is_complete and token in data

    def start(self, names: Iterable[str]) -> None:
        self.names = {name for name in names if name.endswith(_TEMPORARY)}
        self.is_complete = self._doubts == self._logs.doubts and not self._logs.is_reading

    def add(self, name: str) -> None:
        self.names.add(name)
        if len(self.names) > _MOST_NAMES:
            self.is_complete = False


class DirectoryLogs:
    """The instance of all directory logs, and the directories that it watches."""

    def __init__(self, descriptors: Descriptors) -> None:
        self.mutex = threading.RLock()
        self._logs: dict[int, DirectoryLog] = {}
        self._descriptors = descriptors
        self.is_reading = self.is_closed = False
        self.doubts = 0
        self.fd: int = descriptors.open(_libc.inotify_init1, os.O_CLOEXEC | os.O_NONBLOCK, lasting=True)
        if self.fd < 0:
            raise last_error("inotify_init1")

    def add(self, directory: str) -> DirectoryLog:
        wd: int = _libc.inotify_add_watch(self.fd, os.fsencode(directory), IN_CREATE | IN_ONLYDIR | IN_MASK_ADD)
        if wd < 0:
            raise last_error(directory)
        return self._logs.setdefault(wd, DirectoryLog(self, wd))

    def read(self, expected: bytes = b"") -> bytes:
        """Read, note and return all pending events (N8, N9); most often that is just the expected one."""
        with self.mutex:
            if self.is_reading:
                self._doubt()
            self.is_reading = True
            try:
                data = os.read(self.fd, _SMALL)
            except BlockingIOError:
                data = b""
            except OSError:  # closed by a caller, as in hold.py, FH5
                data, self.is_closed = b"", True
                self._descriptors.disown(self.fd)
            if data != expected:
                if len(data) > _SMALL - _LARGEST_EVENT:
                    data += self._rest()
                if _SUFFIX in data or _OVERFLOWN in data:
                    self._note(data)
            self.is_reading = False
            return data

    def _rest(self) -> bytes:
        data = b""
        while True:
            try:
                data += os.read(self.fd, _BUFFER)
            except BlockingIOError:
                return data

    def _note(self, data: bytes) -> None:
        for wd, mask, name in _events(data):
            if mask & IN_Q_OVERFLOW:
                self._doubt()
            elif wd in self._logs and name.endswith(_SUFFIX):
                self._logs[wd].add(os.fsdecode(name))

    def _doubt(self) -> None:
        self.doubts += 1
        for log in list(self._logs.values()):
            log.is_complete = False


def _token(wd: int, name: bytes) -> bytes:
    """The event of a file that has appeared, as bytes; no part of any other event is like it."""
    length = (len(name) // _EVENT.size + 1) * _EVENT.size
    return _EVENT.pack(wd, IN_CREATE, 0, length) + name.ljust(length, b"\0")


# No IN_OPEN, no IN_CLOSE_NOWRITE: our own looks would make events without end.
_CHANGES = IN_MODIFY | IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE
_DIRECTORY_MASK = _CHANGES | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR
_MEANINGS = (
    (IN_DELETE | IN_MOVED_FROM, "gone"),
    (IN_CREATE | IN_MOVED_TO, "made"),
    (IN_CLOSE_WRITE, "closed"),
    (IN_MODIFY, "written"),
    (IN_ATTRIB, "mode"),
)
_DIRECTORY_BUFFER = 256 * 1024


class FolderWatch:
    """Events of whole directories: files made, removed and written (monitor.py). OSError if no instance is left.

    `fd` is readable when there is something to `take`.
    """

    def __init__(self) -> None:
        self.fd: int = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise last_error("inotify_init1")
        self._directories: dict[int, list[str]] = {}
        """The paths by which each was added: links may lead to one directory."""
        self._keys: dict[str, int] = {}

    def add(self, directory: str, *, modes: bool = False) -> bool:
        """Watch this directory too; False if that is impossible.

        `modes`: also tell of changes of metadata: mode, owner, times.
        """
        mask = _DIRECTORY_MASK | IN_ATTRIB if modes else _DIRECTORY_MASK
        wd: int = _libc.inotify_add_watch(self.fd, os.fsencode(directory), mask)
        if wd < 0:
            return False
        if self._keys.get(directory) != wd:
            self.discard(directory)  # another directory had that name before
            self._keys[directory] = wd
            self._directories.setdefault(wd, []).append(directory)
        return True

    def discard(self, directory: str) -> None:
        wd = self._keys.pop(directory, -1)
        names = self._directories.get(wd, [])
        if names == [directory]:
            del self._directories[wd]
            _libc.inotify_rm_watch(self.fd, wd)
        elif directory in names:
            names.remove(directory)

    def take(self) -> list[Change]:
        found: list[Change] = []
        while True:
            try:
                data = os.read(self.fd, _DIRECTORY_BUFFER)
            except BlockingIOError:
                return found
            for wd, mask, name in _events(data):
                self._tell(found, wd, mask, os.fsdecode(name))

    def _tell(self, found: list[Change], wd: int, mask: int, name: str) -> None:
        if mask & IN_Q_OVERFLOW:
            found.append(("", "", "unknown"))
            return
        for directory in self._directories.get(wd, ()):
            if mask & (IN_IGNORED | IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT):
                found.append((directory, "", "gone"))
            elif name:
                found.append((directory, name, next(what for bits, what in _MEANINGS if mask & bits)))
        if mask & IN_IGNORED:
            for directory in self._directories.pop(wd, ()):
                del self._keys[directory]

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
