"""When a file was made, which Linux tells by statx(2) only."""

from __future__ import annotations

import ctypes
import os
import struct

_AT_FDCWD, _AT_SYMLINK_NOFOLLOW = -100, 0x100
_STATX_INO, _STATX_BTIME = 0x100, 0x800
_SIZE, _INODE_AT, _BIRTH_AT = 256, 32, 80
_libc = ctypes.CDLL(None, use_errno=True)


def born(path: str) -> str | None:
    """The inode's number and the moment of its birth; the number alone where no births are kept; None: not there."""
    statx = getattr(_libc, "statx", None)
    if statx is None:
        return _number(path)
    found = ctypes.create_string_buffer(_SIZE)
    if statx(_AT_FDCWD, os.fsencode(path), _AT_SYMLINK_NOFOLLOW, _STATX_INO | _STATX_BTIME, found) != 0:
        return _number(path)
    (known,) = struct.unpack_from("=I", found, 0)
    (inode,) = struct.unpack_from("=Q", found, _INODE_AT)
    if not known & _STATX_BTIME:
        return str(inode)
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BIRTH_AT)
    return f"{inode} {seconds}.{nanoseconds:09d}"


def _number(path: str) -> str | None:
    try:
        return str(os.lstat(path).st_ino)
    except OSError:
        return None
