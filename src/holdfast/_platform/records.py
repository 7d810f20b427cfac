"""`struct flock`, which says which bytes a record lock is on (fcntl(2), <sys/fcntl.h> of macOS)."""

from __future__ import annotations

import struct
import sys

# Linux: type, whence, start, length, pid; macOS: start, length, pid, type, whence. The last 0q is for the padding.
_FORMAT, _TYPE = ("@qqihh0q", 3) if sys.platform == "darwin" else ("@hhqqi0q", 0)


def asked(kind: int, records: tuple[int, int]) -> bytes:
    """A lock of this kind on these bytes: start and length; length 0: to the end of the file, however long."""
    start, length = records
    if _TYPE:
        return struct.pack(_FORMAT, start, length, 0, kind, 0)
    return struct.pack(_FORMAT, kind, 0, start, length, 0)


def free_in(answer: bytes, unlocked: int) -> bool:
    """Whether the kernel's answer to F_OFD_GETLK is that such a lock would be granted."""
    return bool(struct.unpack_from(_FORMAT, answer)[_TYPE] == unlocked)
