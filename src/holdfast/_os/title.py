"""What a process is shown as in lists of processes."""

from __future__ import annotations

import os


def entitle(name: str, about: str) -> None:
    """Show this process as `name about`, cut to the room that its first command line had. Nothing where that fails.

    The command line is written over in place, as `setproctitle` does: Python has copied it long ago. The last byte
    stays NUL: without it, the kernel would take the environment behind it for a part of it.
    """
    try:
        with open("/proc/self/comm", "wb", buffering=0) as file:
            file.write(os.fsencode(name)[:15])
        with open("/proc/self/stat", "rb", buffering=0) as file:
            fields = file.readall().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        room = end - start - 1
        if start <= 0 or room < len(name):
            return
        words = name.encode() + b"\0" + about.encode("utf-8", "replace").replace(b"\0", b" ")
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(words[:room].ljust(room + 1, b"\0"))
    except (OSError, ValueError, IndexError, OverflowError):
        pass  # it goes by its old name
