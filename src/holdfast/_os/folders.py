"""Events of whole directories: what appears, vanishes and is written in them. For those who look on from outside.

An inotify instance of its own, because the one that waits share (inotify.py) is about inodes, and would have to read
what is meant for nobody who waits. A watch on a directory wakes nobody, and does not keep it from being removed.
"""

from __future__ import annotations

import ctypes
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    Change = tuple[str, str, str]

_MODIFY, _CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x8, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _UNMOUNT, _OVERFLOW, _IGNORED = 0x400, 0x800, 0x2000, 0x4000, 0x8000
_ONLY_DIRECTORIES = 0x1000000
# No IN_OPEN, no IN_CLOSE_NOWRITE: our own looks would make events without end.
_MASK = (
    _MODIFY | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLY_DIRECTORIES
)
_MEANINGS = (
    (_DELETE | _MOVED_FROM, "gone"),
    (_CREATE | _MOVED_TO, "made"),
    (_CLOSE_WRITE, "closed"),
    (_MODIFY, "written"),
)
_EVENT = struct.Struct("iIII")
_BUFFER = 256 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


class FolderWatch:
    """See `follow.FolderWatch`. OSError where no instance is left."""

    def __init__(self) -> None:
        fd = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), "inotify_init1")
        self.fd = fd
        self._directories: dict[int, str] = {}
        self._keys: dict[str, int] = {}

    def add(self, directory: str) -> bool:
        wd: int = _libc.inotify_add_watch(self.fd, os.fsencode(directory), _MASK)
        if wd < 0:
            return False
        self._keys.pop(self._directories.get(wd, ""), None)  # the same directory, by a name that it has now
        self._directories[wd] = directory
        self._keys[directory] = wd
        return True

    def discard(self, directory: str) -> None:
        wd = self._keys.pop(directory, None)
        if wd is not None and self._directories.pop(wd, None) is not None:
            _libc.inotify_rm_watch(self.fd, wd)

    def take(self) -> list[Change]:
        found: list[Change] = []
        while True:
            try:
                data = os.read(self.fd, _BUFFER)
            except BlockingIOError:
                return found
            offset = 0
            while offset < len(data):
                wd, mask, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size
                name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
                offset += length
                self._tell(found, wd, mask, name)

    def _tell(self, found: list[Change], wd: int, mask: int, name: str) -> None:
        if mask & _OVERFLOW:
            found.append(("", "", "unknown"))
            return
        directory = self._directories.get(wd)
        if directory is None:
            return
        if mask & _IGNORED:
            del self._directories[wd]
            self._keys.pop(directory, None)
        if mask & (_IGNORED | _DELETE_SELF | _MOVE_SELF | _UNMOUNT):
            found.append((directory, "", "gone"))
        elif name:
            found.append((directory, name, next(what for bits, what in _MEANINGS if mask & bits)))

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
