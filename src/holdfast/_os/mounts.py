"""What kind of filesystem a directory is on, by its name alone: asking the filesystem may mean asking a dead server."""

from __future__ import annotations

import os

_TABLE = "/proc/self/mountinfo"


def type_by_name(directory: str) -> str:
    """The type of the mount with the longest matching name; empty if it cannot be known.

    Symbolic links are not followed, so it is a first answer and not the last one.
    """
    try:
        with open(_TABLE, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().split("\n")
    except OSError:
        return ""
    wanted = os.path.normpath(directory).replace("//", "/") + "/"
    kind, longest = "", 0
    for line in lines:
        left, _, right = line.partition(" - ")
        words = left.split(" ", 5)
        if len(words) < 5:
            continue
        prefix = _unescaped(words[4]).rstrip("/") + "/"
        if len(prefix) >= longest and wanted.startswith(prefix):  # of two on one point the later one lies on top
            kind, longest = right.split(" ", 1)[0], len(prefix)
    return kind


def _unescaped(point: str) -> str:
    """Blanks, tabs, newlines and backslashes are written as a backslash and three octal digits."""
    first, *others = point.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in others)
