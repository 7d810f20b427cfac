"""A stand-in for semats, with its races: a temporary file, a look whether the lock exists, and a rename over any file
there by then. A stale lock is unlinked even if it has changed since the look.

    python semats.py LOCK [STALE]
"""

from __future__ import annotations

import os
import secrets
import sys
import time

from talk import Lockable, serve, step


class Semats(Lockable):
    def __init__(self, path: str, stale: str = "3600") -> None:
        super().__init__(os.path.realpath(path))
        self.stale = float(stale)
        self.record = b""

    def stamp(self) -> None:
        self.record = b"pid=%d\ntimestamp=%d\n" % (os.getpid(), int(time.time()))

    def attempt(self) -> bool:
        step("look")
        if os.access(self.path, os.F_OK):
            if not self.is_stale():
                return False
            step("unlink")
            try:
                os.unlink(self.path)
            except FileNotFoundError:
                pass
        step("temporary")
        temporary = f"{self.path}.{os.getpid()}.{secrets.token_hex(8)}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_TRUNC, 0o600)
        os.write(fd, self.record)
        os.close(fd)
        step("access")
        if os.access(self.path, os.F_OK):
            os.unlink(temporary)
            return False
        step("rename")
        os.rename(temporary, self.path)
        return True

    def is_stale(self) -> bool:
        """Whether the lock is old and its process dead; a process of another user that may not be examined counts as
        dead, too."""
        fields = self.fields()
        if fields is None or int(time.time()) - fields[1] <= self.stale:
            return False
        try:
            os.kill(fields[0], 0)
        except OSError:
            return True
        return False

    def fields(self) -> tuple[int, int] | None:
        try:
            with open(self.path) as file:
                found = dict(line.split("=", 1) for line in file.read().split("\n") if "=" in line)
            return int(found["pid"]), int(found["timestamp"])
        except (OSError, KeyError, ValueError):
            return None

    def release(self) -> str:
        fields = self.fields()
        if fields is not None and fields[0] != os.getpid():
            return "denied"
        step("release")
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            return "not locked"
        return "released"


if __name__ == "__main__":
    serve(Semats(*sys.argv[1:]))
