"""Record locks as other programs take them, controlled like the stand-ins: `fcntl(F_SETLK)`, or fasteners.

    python lockf.py FILE [KIND [START LENGTH]]

KIND is `lockf`, `open` (by open file description) or `fasteners`. A process loses locks of the first kind if it closes
the file.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys

from talk import Lockable, serve


class Lockf(Lockable):
    def __init__(self, path: str, kind: str = "lockf", start: str = "0", length: str = "0") -> None:
        super().__init__(path)
        self.range = int(start), int(length)
        self.fd = -1
        self.lock = None
        if kind == "fasteners":
            import fasteners

            self.lock = fasteners.InterProcessLock(path)
        self.set = getattr(fcntl, "F_OFD_SETLK", None) if kind == "open" else fcntl.F_SETLK

    def attempt(self, *, shared: bool = False) -> bool:
        if self.lock is not None:
            return bool(self.lock.acquire(blocking=False))
        if self.fd < 0:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o640)
        try:
            self._do(fcntl.F_RDLCK if shared else fcntl.F_WRLCK)
        except OSError:
            return False
        return True

    def share(self) -> str:
        return "acquired" if self.attempt(shared=True) else "held"

    def block(self) -> str:
        """Wait in the kernel for the lock."""
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o640)
        self._do(fcntl.F_WRLCK, fcntl.F_SETLKW)
        return "acquired"

    def release(self) -> str:
        if self.lock is not None:
            self.lock.release()
        else:
            self._do(fcntl.F_UNLCK)
        return "released"

    def close(self) -> str:
        os.close(self.fd)
        self.fd = -1
        return "closed"

    def _do(self, kind: int, how: int | None = None) -> None:
        fcntl.fcntl(self.fd, how or self.set, struct.pack("@hhqqi0q", kind, 0, *self.range, 0))


if __name__ == "__main__":
    serve(Lockf(*sys.argv[1:]))
