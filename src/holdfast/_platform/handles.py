"""Handles of Windows as descriptors, waits for them, and files that are only appended to."""

from __future__ import annotations

import os

from .descriptors import Descriptor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    winapi: Any
    msvcrt: Any
else:
    try:
        import _winapi as winapi
        import msvcrt
    except ImportError:
        winapi = None  # another system: there are no handles

_MOST = 60
"""The most handles of one wait: Windows takes 64, and Python adds one for Ctrl-C."""
_LONGEST = 1.0
"""Seconds of one wait at most: Ctrl-Break does not end a wait, and is heeded after it."""
_POLL = 0.025
"""Seconds between looks where not all can be waited for together."""
_APPEND, _SHARED, _NEW_OR_OLD, _ORDINARY = 0x4 | 0x00100000, 1 | 2 | 4, 4, 0x80
"""FILE_APPEND_DATA (and SYNCHRONIZE), all sharing, OPEN_ALWAYS, FILE_ATTRIBUTE_NORMAL."""


class Waitable(Descriptor):
    """A descriptor that is waited for by its `handles`."""

    handles: tuple[Handle, ...] = ()


class Handle(Descriptor):
    """A handle that can be waited for: a process, an event, the changes of a directory, or the input of a console."""

    end = None if winapi is None else winapi.CloseHandle


def handles_of(fds: tuple[int, ...]) -> list[int]:
    """The handles to wait for in place of these; empty if they are descriptors that a selector takes."""
    found: list[int] = []
    for fd in fds:
        if isinstance(fd, Handle):
            found.append(int(fd))
        elif isinstance(fd, Waitable):
            found += map(int, fd.handles)
    return found


def wait_for_handles(fds: tuple[int, ...], seconds: float) -> bool:
    """Return True when one of the handles is signalled or the time is up, or earlier; False if there is none."""
    handles = handles_of(fds)
    if not handles:
        return False
    seconds = min(seconds, _LONGEST)
    if len(handles) > _MOST or not all(isinstance(fd, (Handle, Waitable)) for fd in fds):
        seconds = min(seconds, _POLL)
    try:
        winapi.WaitForMultipleObjects(handles[:_MOST], False, int(seconds * 1000) + 1)
    except InterruptedError:
        pass  # Ctrl-C: Python raises it next
    return True


def open_to_append(path: str) -> int:
    """A descriptor of this file, which is created if it is missing. Each write goes to the end that the file has at
    that moment.

    On Windows, O_APPEND does not promise that: the C runtime looks for the end first, and another process may write
    meanwhile. Access to append alone promises it, by its documentation; Wine looks for the end all the same.
    """
    if winapi is None:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    handle = winapi.CreateFile(path, _APPEND, _SHARED, 0, _NEW_OR_OLD, _ORDINARY, 0)
    return int(msvcrt.open_osfhandle(handle, getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_BINARY", 0)))
