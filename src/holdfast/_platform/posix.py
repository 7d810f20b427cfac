"""POSIX: the guard is `flock(2)`, tickets are FIFOs, with all else that macOS and the BSDs share with Linux.

Calls of their own are in bsd.py. Without kqueue(2), waits poll at bounded intervals.

PX1 Not every kernel tells a FIFO's writers that its reader has gone, and some tell `poll` but not the selector of
    asyncio. So the first ticket of a process is used to try it. Where it is not told, no ticket can be followed: the
    waiter behind looks again and again, and opening the ticket says the same (ENXIO).
PX2 A kernel that steps its clock may show another start time of the same process. Only macOS keeps the one that it
    showed first; elsewhere the time is for display, and does not tell two processes apart.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import time

from .operations import call, partial
from .portable import GenericEnvironment
from .values import LOST_SIGHT, Presence, Process, Storage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from .interface import Watch, WatchSet

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_WRITE = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_TO_FIFO = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_LOCK_NOW = fcntl.LOCK_EX | fcntl.LOCK_NB
_SHARE_NOW = fcntl.LOCK_SH | fcntl.LOCK_NB
_NO_FLOCK = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.EPERM)
"""The errors where there are no kernel locks; the last is that of most filters of system calls (seccomp)."""
_SET_RECORDS: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_GET_RECORDS: int | None = getattr(fcntl, "F_OFD_GETLK", None)
"""Commands for locks of an open file description: Linux, and macOS where its Python knows of them."""
_READ_LOCK, _WRITE_LOCK = fcntl.F_RDLCK, fcntl.F_WRLCK
_FULL_SYNC: int = getattr(fcntl, "F_FULLFSYNC", 0)
_BY_DESCRIPTOR = {os.open, os.mkfifo, os.rename, os.unlink, os.stat}
"""Calls that a queue makes by the descriptor of its directory."""
_MOST_SEEN = 256
_LOOK_LASTS = 1.0
"""Seconds that the answer of `ps` about a process is remembered: asking takes 10 ms."""
_MOUNT_LASTS = 60.0
"""Seconds that the answer of `mount` about a directory is remembered."""


def _records(fd: int) -> tuple[int, int]:
    found: tuple[int, int] = fd.records  # type: ignore[attr-defined]  # it is a Descriptor
    return found


def _sync_all(fd: int) -> None:
    """Flush the file as far as the drive itself: on macOS, `fsync` leaves data in the memory of the drive."""
    try:
        fcntl.fcntl(fd, _FULL_SYNC)
    except OSError:  # a filesystem that cannot
        os.fsync(fd)


class PosixEnvironment(GenericEnvironment):
    guards = True
    knows_mounts = False
    fifos = os.supports_dir_fd >= _BY_DESCRIPTOR
    tells_ends: bool | None = None
    """Whether a FIFO's writers are told that its reader has ended; None: not tried yet (PX1)."""

    def __init__(self, without: frozenset[str] = frozenset()) -> None:
        super().__init__(without)
        self._local: dict[str, tuple[Storage, float]] = {}
        self._seen: dict[int, tuple[Process, float]] = {}
        if _FULL_SYNC:
            self.sync = _sync_all  # type: ignore[assignment]

    # -- who -----------------------------------------------------------------------------------------------------------

    def _boot(self) -> str:
        with self._forking:
            from .bsd import boot_session
        return boot_session() or super()._boot()

    def inspect(self, pid: int) -> Process:
        with self._forking:
            from . import bsd
        told = bsd.process(pid)
        if told is not None:
            return told
        found = super().inspect(pid)
        if found.presence is not Presence.RUNNING or found.since is not None or pid == os.getpid():
            return found
        known, until = self._seen.get(pid, (found, 0.0))
        now = time.monotonic()
        if now >= until:
            known = bsd.by_ps(pid) or found
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen[pid] = (known, now + _LOOK_LASTS)
        return known

    # -- files ---------------------------------------------------------------------------------------------------------

    def open_existing(self, path: str, *, write: bool, dir_fd: int | None = None) -> int:
        flags = _WRITE if write else _READ
        if dir_fd is None:
            return self._descriptors.open(os.open, path, flags)
        return self._descriptors.open(call, partial(os.open, path, flags, dir_fd=dir_fd))

    def make_fifo(self, name: str, mode: int, *, dir_fd: int) -> None:
        os.mkfifo(name, mode, dir_fd=dir_fd)

    def open_fifo(self, name: str, *, write: bool, dir_fd: int) -> int:
        if not write and self.tells_ends is None:
            self._try_ends(name, dir_fd)
        fd = self._open_fifo(name, dir_fd, write=write)
        try:
            found = os.fstat(fd)
            if write and (not stat.S_ISFIFO(found.st_mode) or found.st_nlink > 1):
                raise OSError(errno.EINVAL, "not a FIFO, or one with another name", name)
            if not write:
                there = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
                if not os.path.samestat(there, found) or there.st_nlink > 1:
                    raise FileNotFoundError(errno.ENOENT, "another file is in its place", name)
            if write and self.tells_ends is False:
                raise OSError(errno.EOPNOTSUPP, "the end of its reader would not be told", name)
        except BaseException:
            self.close(fd)
            raise
        return fd

    def _open_fifo(self, name: str, dir_fd: int, *, write: bool) -> int:
        flags = _TO_FIFO if write else _WRITE  # fifo(7): opened for both, it is its own writer
        return self._descriptors.open(call, partial(os.open, name, flags, dir_fd=dir_fd))

    def _try_ends(self, name: str, dir_fd: int) -> None:
        """Set `tells_ends` (PX1), with a FIFO that is ours and not yet in use. If another process takes it for a dead
        one's and removes it meanwhile, its maker starts over (queue.py, Q2)."""
        reader = self._open_fifo(name, dir_fd, write=False)
        writer = -1
        try:
            writer = self._open_fifo(name, dir_fd, write=True)
            self.close(reader)
            told = self.hung_up(writer)
            with self._forking:
                from .kqueue import hung_up
            self.tells_ends = told and hung_up(writer) is not False
        finally:
            self.close(reader)
            self.close(writer)

    def hung_up(self, fd: int) -> bool:
        poll = select.poll()
        poll.register(fd, 0)  # POLLERR is always told
        try:
            return bool(poll.poll(0))
        except OSError:
            return False

    def nudge(self, fd: int) -> None:
        try:
            os.write(fd, b"\n")
        except OSError:
            pass  # it is full, or its reader has gone

    def is_unread(self, fd: int) -> bool:
        try:
            from termios import FIONREAD

            return any(fcntl.ioctl(fd, FIONREAD, bytes(4)))
        except (OSError, ImportError):
            return True

    def drain(self, fd: int) -> bool:
        try:
            return bool(os.read(fd, 4096))
        except OSError:
            return False  # it is empty

    def read(self, fd: int, size: int) -> bytes:
        return os.pread(fd, size, 0)

    write = staticmethod(os.pwrite)  # type: ignore[assignment]

    # -- the guard -----------------------------------------------------------------------------------------------------

    def guard_records(self, fd: int, start: int, length: int) -> bool:
        if _SET_RECORDS is None or "flock" in self.without:
            return False
        fd.records = (start, length)  # type: ignore[attr-defined]  # it is a Descriptor
        return True

    def would_guard(self, fd: int, *, shared: bool) -> bool | None:
        with self._forking:
            from .records import asked, free_in
        assert _GET_RECORDS is not None
        try:
            found = fcntl.fcntl(fd, _GET_RECORDS, asked(_READ_LOCK if shared else _WRITE_LOCK, _records(fd)))
        except OSError as error:
            if error.errno in _NO_FLOCK:
                return None
            raise
        return free_in(found, fcntl.F_UNLCK)

    def _set_records(self, fd: int, kind: int) -> bool | None:
        """Take a record lock, or drop it (F_UNLCK); False if another open file has one in the way."""
        with self._forking:
            from .records import asked
        assert _SET_RECORDS is not None
        try:
            fcntl.fcntl(fd, _SET_RECORDS, asked(kind, _records(fd)))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            if error.errno in _NO_FLOCK:
                return None
            raise
        return True

    def guard(self, fd: int, *, shared: bool = False) -> bool | None:
        if "flock" in self.without:
            return None
        if getattr(fd, "records", None) is not None:
            return self._set_records(fd, _READ_LOCK if shared else _WRITE_LOCK)
        try:
            fcntl.flock(fd, _SHARE_NOW if shared else _LOCK_NOW)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _NO_FLOCK:
                return None
            if isinstance(error, PermissionError) and self._is_on_smb(fd):
                return False
            raise
        return True

    def guarded(self, fd: int) -> bool | None:
        # Shared, because two exclusive probes would each take the other for the holder.
        taken = self.guard(fd, shared=True)
        if taken:
            fcntl.flock(fd, fcntl.LOCK_UN)
        return None if taken is None else not taken

    def _is_on_smb(self, fd: int) -> bool:  # noqa: ARG002
        """Whether the file is known to be on SMB (linux.py, LX1)."""
        return False

    def unguard(self, fd: int) -> None:
        if getattr(fd, "records", None) is not None:
            self._set_records(fd, fcntl.F_UNLCK)
        elif "flock" not in self.without:
            try:
                fcntl.flock(fd, fcntl.LOCK_UN)
            except OSError as error:
                if error.errno not in _NO_FLOCK and error.errno not in LOST_SIGHT:  # it has the guard no more
                    raise

    # -- events --------------------------------------------------------------------------------------------------------

    def watch(self, path: str, *, readers: bool = False) -> Watch | None:
        events = self._kqueue()
        try:
            return None if events is None else events.FileWatch(self._descriptors, path, readers=readers)
        except FileNotFoundError:
            raise
        except OSError:
            return None  # no descriptor left, or it may not be read

    def watch_set(self) -> WatchSet | None:
        events = self._kqueue()
        return None if events is None else events.WatchSet(self._descriptors)

    def watch_process(self, pid: int, *, inherited: bool = False) -> int | None:
        events = None if inherited else self._kqueue()  # kqueue.py, KQ3
        try:
            return None if events is None else events.watch_process(self._descriptors, pid)
        except (OSError, OverflowError):
            return None

    def _kqueue(self) -> ModuleType | None:
        if "events" in self.without:
            return None
        with self._forking:
            from . import kqueue
        return kqueue if kqueue.is_there() else None

    def events_reach(self, path: str) -> bool:
        events = self._kqueue()
        return events is not None and bool(events.unlocked()[0]) and super().events_reach(path)

    def storage(self, path: str, device: int | None = None) -> Storage:  # noqa: ARG002
        directory = os.path.dirname(path)
        found, until = self._local.get(directory, (None, 0.0))
        now = time.monotonic()
        if found is None or now >= until:
            with self._forking:
                from . import bsd, storage

                table = bsd.mounts()
            mount = bsd.mount_at(os.path.realpath(directory), table)
            if mount is None:
                found = super().storage(path)
            else:
                found = storage.storage_of(mount.kind, {})
                if not mount.is_local and any(one.is_local for one in table) and not found.shared:
                    found = storage.shared(mount.kind)
            if len(self._local) >= _MOST_SEEN:
                self._local.clear()
            self._local[directory] = (found, now + _MOUNT_LASTS)
        return found
