"""Time namespaces: a container's monotonic clock may be another than its host's."""

from __future__ import annotations

import os

_OURS, _CHILDREN = "/proc/self/ns/time", "/proc/self/ns/time_for_children"
_WRAPS = 2**64 / 1e9
"""Seconds after which the time in /proc/PID/stat begins anew: in the kernel it is nanoseconds, without a sign."""


def unwrapped(seconds: float) -> float:
    """When a process was started, or so many seconds after the boot: before the zero of our clock it looks like 584
    years later."""
    return seconds - _WRAPS if seconds > _WRAPS / 2 else seconds


def clock_shift() -> float:
    """Seconds by which the monotonic clock of this process is ahead of the machine's; 0 where that cannot be known."""
    try:
        with open("/proc/self/timens_offsets", "rb", buffering=0) as file:
            words = file.read(256).split()
        shift = int(words[1]) + int(words[2]) / 1e9  # the monotonic clock's are first
        # Where it has made a namespace for its children, the offsets are those of that one.
        return shift if not shift or os.stat(_OURS).st_ino == os.stat(_CHILDREN).st_ino else 0.0
    except (OSError, ValueError, IndexError):
        return 0.0
