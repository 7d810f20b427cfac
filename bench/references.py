"""References for the libraries: the least code that does the same job, without options or error handling."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import time

from peers import Subject


class PythonCalls(Subject):
    """Reference: the system calls of c_loop.c from Python, nothing else. No options, no errors, no waiting."""

    label = "same calls, Python"
    poll: float | None = None

    def __init__(self, path: str) -> None:
        self._path = path
        self._record = b"x" * 130
        self._name = os.path.basename(path)
        self._directory = os.path.dirname(path)
        self._dir_fd = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._fd = -1
        self._stat: os.stat_result

    def acquire(self) -> None:
        fd = self._fd = os.open(self._directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o644)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._stat = os.fstat(fd)
        os.pwrite(fd, self._record, 0)
        # Python uses linkat with AT_SYMLINK_FOLLOW only when it is given a directory descriptor.
        os.link(f"/proc/self/fd/{fd}", self._name, src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd)

    def release(self) -> None:
        named = os.lstat(self._path)
        if (named.st_ino, named.st_dev) != (self._stat.st_ino, self._stat.st_dev):
            raise RuntimeError("the path names another file")
        if os.pread(self._fd, len(self._record) + 1, 0) != self._record:
            raise RuntimeError("the record is another one")
        os.unlink(self._path)
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)


class WokenPython(PythonCalls):
    """Reference: `PythonCalls`, waiting with inotify for the file to go away. The floor for such a lock.

    No time limit, no takeover, no second look: a lost event would hang it. Two processes only.
    """

    label = "inotify, Python"
    poll = 0.0
    after_kill = False

    # ATTRIB, MOVE_SELF, DELETE_SELF, CLOSE_WRITE, CLOSE_NOWRITE: Python lacks the names of linux/inotify.h.
    _EVENTS = 0x4 | 0x800 | 0x400 | 0x8 | 0x10

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poller = select.poll()
        self._poller.register(self._inotify, select.POLLIN)

    def acquire(self) -> None:
        watched = False
        while not self._publish():
            # Watch, try once more, then sleep: a release between the first try and the watch must not be missed.
            if watched:
                self._poller.poll()
                os.read(self._inotify, 4096)
            watched = self._libc.inotify_add_watch(self._inotify, os.fsencode(self._path), self._EVENTS) >= 0

    def _publish(self) -> bool:
        try:
            super().acquire()
        except FileExistsError:
            os.close(self._fd)
            return False
        return True


class BlockingFlock(Subject):
    """Reference: flock(2) on one file that stays open; the kernel blocks and wakes the waiter. No record."""

    label = "blocking flock"

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def acquire(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def release(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)


class PollingFlock(BlockingFlock):
    """Reference: flock(2) on such a file, tried every millisecond."""

    label = "1 ms polling"
    poll = 0.001

    def acquire(self) -> None:
        while True:
            try:
                return fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.001)
