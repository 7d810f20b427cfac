"""Handles of Windows among the descriptors, and the wait for one of them."""

from __future__ import annotations

from .descriptors import Descriptor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    _winapi: Any
else:
    try:
        import _winapi
    except ImportError:
        _winapi = None  # another system: there are no handles

_MOST = 60
"""Handles of one wait: Windows takes 64, and Python adds one for Ctrl-C."""
_POLL = 0.025
"""Seconds after which to look where not all can be waited for together."""


class Handle(Descriptor):
    """One that can be waited for: a process, or the changes of a directory."""

    end = None if _winapi is None else _winapi.CloseHandle


def wait_for_handles(fds: tuple[int, ...], seconds: float) -> bool:
    """Return True when one of the handles is signalled or the time is up, or earlier; False if there is none."""
    handles = [int(fd) for fd in fds if isinstance(fd, Handle)]
    if not handles:
        return False
    if not len(fds) == len(handles) <= _MOST:
        seconds = min(seconds, _POLL)
    try:
        _winapi.WaitForMultipleObjects(handles[:_MOST], False, int(seconds * 1000) + 1)
    except InterruptedError:
        pass  # Ctrl-C: Python raises it next
    return True
