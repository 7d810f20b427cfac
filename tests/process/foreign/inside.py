"""The critical section, in which two must never be at once; independent of every lock, for Python as for node.

In the directory STATE: `inside` is created exclusively by a process that enters and removed when it leaves, `overlaps`
has a line for each time that this failed, `counter` is incremented without any protection.
"""

from __future__ import annotations

import os


class Inside:
    def __init__(self, state: str, name: str) -> None:
        self.state = state
        self.name = f"{name} {os.getpid()}"

    def visit(self) -> None:
        mark = f"{self.state}/inside"
        try:
            fd = os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            with open(f"{self.state}/overlaps", "a") as overlaps:
                overlaps.write(f"{self.name} found {_text(mark)} inside\n")
            return
        os.write(fd, self.name.encode())
        os.close(fd)
        with open(f"{self.state}/counter", "r+") as counter:
            n = int(counter.read()) + 1
            counter.seek(0)
            counter.write(str(n))
        os.unlink(mark)


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read() or "somebody"
    except FileNotFoundError:
        return "somebody who has left"
