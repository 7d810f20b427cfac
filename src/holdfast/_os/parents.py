"""Making the directories above a lock file."""

from __future__ import annotations

import os

_HERE: int = (
    getattr(os, "O_PATH", os.O_RDONLY)
    | getattr(os, "O_DIRECTORY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)


def make_directories(directory: str) -> None:
    """Make the directory, and what is missing above it; that it is there is no error.

    Others may write to the last directory that is there already, and put a link where the next one is to be. So each
    one is made in the one above it, by its descriptor, and is entered only if it is no link. NotADirectoryError if it
    is, or is something else.
    """
    at, missing = directory, []
    while True:
        try:
            fd = os.open(at, _HERE)
            break
        except FileNotFoundError:
            at, name = os.path.split(at.rstrip("/"))
            if not name:
                raise
            missing.append(name)
    try:
        while missing:
            name = missing.pop()
            try:
                os.mkdir(name, dir_fd=fd)
            except FileExistsError:
                pass  # another one was faster; if it is no directory, the next step says so
            above, fd = fd, os.open(name, _HERE | _NOFOLLOW, dir_fd=fd)
            os.close(above)
    except OSError as error:
        error.filename = directory
        raise
    finally:
        os.close(fd)
