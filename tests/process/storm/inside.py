"""The critical section for contenders of every kind, with a detector that survives `fork`; the journal is worker.py's.

    python inside.py STATE NAME [RECOVERED]        be inside once: the command of shells and other languages

The detector is a POSIX record lock on a file that has nothing to do with the lock: a child does not inherit it, so one
that outlives its parent keeps nobody out, and the kernel drops it before any `flock` of the same process. It must never
be refused, except by a process that is already being killed: that one does nothing any more, but may take a while to
end. A refusal by anybody else is an overlap (`x`). Threads and tasks of one process, which share record locks, have a
flag between them.
"""

from __future__ import annotations

import fcntl
import os
import random
import sys
import time

LINGER, LINGER_SHARE = 0.003, 0.1
"""Seconds that some stay inside at most, so that the lock changes hands and signals find a process inside."""
END = b" ."
"""End of each line. A line has one to itself: the kernel ends the write of a killed process at the end of a page."""
_EXITING, _KILL_PENDING = 0x4, 1 << 8
_CERTAIN = 0.05
"""Seconds that it may take until a process in the way is seen to be one that is being killed."""


class Inside:
    def __init__(self, state: str, proc: int | None = None) -> None:
        """`proc` is a descriptor of the /proc in which the storm's pids mean something."""
        self.state = state
        self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY) if proc is None else proc
        self.pid = int(os.readlink("self", dir_fd=self.proc))
        self.counter = os.open(f"{state}/counter", os.O_RDWR)
        self.journal = os.open(f"{state}/journal", os.O_RDWR | os.O_APPEND)
        self.detector = os.open(f"{state}/detector", os.O_RDWR)  # the only one here: closing another drops the lock
        self.given_up = os.open(f"{state}/given-up", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self.occupant = ""
        self.n = 0

    def going(self) -> bool:
        return os.path.exists(f"{self.state}/go")

    def enter(self, name: str, recovered: str) -> None:
        self._say("e", self.pid)
        if self.occupant:
            self._say("x", name, self.occupant)
        self.occupant = name
        try:
            fcntl.lockf(self.detector, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            other = self.entered()[-2]  # the last is this process
            if not self._is_being_killed(other):
                self._say("x", name, other)
            fcntl.lockf(self.detector, fcntl.LOCK_EX)
        self.n = int(os.pread(self.counter, 64, 0)) + 1
        self._say("i", self.n, name, recovered)

    def leave(self, name: str) -> None:
        os.pwrite(self.counter, b"%-20d\n" % self.n, 0)
        self._say("d", self.n, name)
        self.occupant = ""
        fcntl.lockf(self.detector, fcntl.LOCK_UN)

    def visit(self, name: str, recovered: str) -> None:
        self.enter(name, recovered)
        time.sleep(linger())
        self.leave(name)

    def give_up(self) -> None:
        """Note that a contender has given up. It may have taken over: the next one does not learn of the dead holder
        then."""
        os.write(self.given_up, b"%d\n" % os.fstat(self.journal).st_size)

    def entered(self) -> list[int]:
        """The processes that were inside last, the latest at the end."""
        return [int(line.split()[1]) for line in self.tail() if line.startswith(b"e ") and line.endswith(END)]

    def tail(self) -> list[bytes]:
        size = os.fstat(self.journal).st_size
        return os.pread(self.journal, 4096, max(0, size - 4096)).splitlines()

    def _say(self, *words: object) -> None:
        os.write(self.journal, b"\n%s%s\n" % (" ".join(map(str, words)).encode(), END))

    def _is_being_killed(self, pid: int) -> bool:
        """The signal is pending, then the process is exiting; in between it is neither for an instant."""
        until = time.monotonic() + _CERTAIN
        while time.monotonic() < until:
            try:
                flags = int(self._read(pid, "stat").rpartition(b")")[2].split()[6])
                pending = self._read(pid, "status").partition(b"\nSigPnd:")[2].split(maxsplit=1)[0]
            except (FileNotFoundError, ProcessLookupError, IndexError):
                return True
            if flags & _EXITING or int(pending, 16) & _KILL_PENDING:
                return True
            time.sleep(0.001)
        return False

    def _read(self, pid: int, name: str) -> bytes:
        fd = os.open(f"{pid}/{name}", os.O_RDONLY, dir_fd=self.proc)
        try:
            return os.read(fd, 16384)
        finally:
            os.close(fd)


def linger() -> float:
    return random.random() * LINGER if random.random() < LINGER_SHARE else 0.0


if __name__ == "__main__":
    state, name, *recovered = sys.argv[1:]
    Inside(state).visit(name, *recovered or ("+" if os.environ.get("HOLDFAST_RECOVERED") else "?"))
