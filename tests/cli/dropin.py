"""Helpers for the tests of `holdfast sema` and `holdfast semats`: one command in this process, odd things at a path."""

from __future__ import annotations

import io
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

NOW = int(time.time())
LIVE = 1
"""A process that always runs, whoever looks."""
OLD = NOW - 4000
LONG = "n" * 300


def dead_pid() -> int:
    """The pid of a process that has ended and been reaped."""
    child = os.posix_spawn("/bin/sh", ["sh", "-c", ":"], {})  # a fork of this process is dearer than that
    os.waitpid(child, 0)
    return child


def no_lock_file(what: str, name: str = "l") -> str:
    """The message that something of that kind at that name can be no lock file."""
    instead = "name a file in it, or " if what == "a directory" else ""
    return f"{{place}}/{name} is {what}, not a lock file; {instead}choose another path"


def ran(command: Callable[[list[str]], int], *words: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of the command, run here."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    try:
        status = command([*words])
        said = [stream.buffer.getvalue().decode() for stream in (sys.stdout, sys.stderr)]  # type: ignore[attr-defined]
    finally:
        sys.stdout, sys.stderr = streams
    return status, said[0], said[1]


def record(pid: object, timestamp: object, tag: str | None = None) -> bytes:
    tagged = "" if tag is None else f"tag={tag}\n"
    return f"pid={pid}\ntimestamp={timestamp}\n{tagged}".encode()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)  # a path of any length: the test is in that directory


def link_to(target: str, content: bytes | None = None) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.symlink_to(target)
        if content is not None:
            (path.parent / target).write_bytes(content)

    return make


def content_of(place: Path) -> dict[str, object]:
    """The content of a directory (names, kinds, bytes), to see whether anything has changed."""
    found: dict[str, object] = {}
    for path in sorted(place.iterdir()):
        if path.is_symlink():
            found[path.name] = f"-> {os.readlink(path)}"
        else:
            found[path.name] = path.read_bytes() if path.is_file() else oct(path.stat().st_mode)
    return found
