"""A stand-in for sema, with its races: the record is stamped before the wait, the file exists before its content, a
stale lock is unlinked even if it has changed since the look, and so is any file at the path at the release.

    python sema.py LOCK [STALE]
"""

from __future__ import annotations

import os
import sys
import time

from talk import Lockable, serve, step


class Sema(Lockable):
    def __init__(self, path: str, stale: str = "3600") -> None:
        super().__init__(path)
        self.stale = int(stale)
        self.record = b""

    def stamp(self) -> None:
        self.record = b"pid=%d\ntimestamp=%d\n" % (os.getpid(), int(time.time()))

    def attempt(self) -> bool:
        if self.is_stale():
            step("unlink")
            try:
                os.unlink(self.path)
            except FileNotFoundError:
                pass
        step("create")
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return False
        step("write")
        os.write(fd, self.record)
        os.fsync(fd)
        os.close(fd)
        return True

    def is_stale(self) -> bool:
        step("look")
        try:
            with open(self.path) as file:
                fields = dict(line.split("=", 1) for line in file.read().split("\n") if "=" in line)
            int(fields["pid"])
            return int(time.time()) - int(fields["timestamp"]) > self.stale
        except (OSError, KeyError, ValueError):
            return False

    def release(self) -> str:
        step("release")
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        return "released"


if __name__ == "__main__":
    serve(Sema(*sys.argv[1:]))
