"""Boot, processes and mounts of macOS and the BSDs, in place of what `/proc` says on Linux.

No server is asked, so nothing here hangs. Unknown facts are missing from the answer, and are no errors.
"""

from __future__ import annotations

import os
import re
import struct
import sys
import time

from ..model import Value
from .portable import presence_by_signal
from .values import Presence, Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SYSTEM: str = sys.platform
_CTL_KERN, _KERN_PROC, _KERN_PROC_PID = 1, 14, 1
_PROCESS = struct.Struct("=qi24xb3xi")
"""The beginning of macOS's `struct kinfo_proc`: start of the process (seconds, microseconds), state, pid."""
_PROCESS_SIZE = 648
_STOPPED, _ZOMBIE = 4, 5
_WITHIN = 2.0
"""Seconds that `ps` and `mount` may take."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MOUNT = re.compile(r"^.*? on (/.*?)(?: type (\S+))? \(([^()]*)\)$", re.MULTILINE)


def boot_session() -> str:
    """An id that no other boot has; empty where there is none. Not the boot time, which moves with the clock."""
    if SYSTEM != "darwin":
        return ""
    found = _sysctl("sysctlbyname", 64, b"kern.bootsessionuuid") or b""
    text = found.rstrip(b"\0").decode("ascii", "replace")
    return text if text and text.replace("-", "").isalnum() else ""


def process(pid: int) -> Process | None:
    """A process in the process table of macOS; None on other systems, and if the answer is not as expected."""
    if SYSTEM != "darwin" or not 0 < pid < 2**31:
        return None
    # The name is four ints, whose bytes are as good as an array of them.
    name = struct.pack("=4i", _CTL_KERN, _KERN_PROC, _KERN_PROC_PID, pid)
    return parsed(_sysctl("sysctl", _PROCESS_SIZE, name, 4), pid)


def parsed(answer: bytes | None, pid: int) -> Process | None:
    """The process `pid` in the kernel's answer; None if the answer is not as expected."""
    if answer == b"":
        presence = presence_by_signal(pid)
        return Process(presence) if presence is Presence.GONE else None
    if answer is None or len(answer) < _PROCESS.size:
        return None
    seconds, microseconds, state, number = _PROCESS.unpack_from(answer)
    if number != pid or seconds <= 0 or not 0 <= microseconds < 1_000_000:
        return None
    presence = Presence.ZOMBIE if state == _ZOMBIE else Presence.RUNNING
    return Process(presence, f"u{seconds}.{microseconds:06d}", seconds + microseconds / 1e6, state == _STOPPED)


def _sysctl(call: str, size: int, *name: Any) -> bytes | None:
    """The kernel's answer; None if there is none."""
    try:
        import ctypes

        from .libc import LIBC

        ask = getattr(LIBC, call)
    except (ImportError, AttributeError):
        return None
    found, length = ctypes.create_string_buffer(size), ctypes.c_size_t(size)
    if ask(*name, found, ctypes.byref(length), None, ctypes.c_size_t(0)) != 0:
        return None
    return found.raw[: length.value]


def by_ps(pid: int) -> Process | None:
    """A process as `ps` shows it, for display; None if `ps` says nothing."""
    words = _output("ps", "-o", "stat=,lstart=", "-p", str(pid)).split()
    if not words:
        return None
    presence = Presence.ZOMBIE if words[0].startswith("Z") else Presence.RUNNING
    return Process(presence, "-", _moment(words[1:]), words[0].startswith("T"))


def _moment(words: list[str]) -> float | None:
    """Seconds since the epoch from `Sun Nov 22 22:40:00 2026`, in any locale; None for other text."""
    try:
        _, month, day, clock, year = words
        hour, minute, second = map(int, clock.split(":"))
        return time.mktime((int(year), _MONTHS.index(month) + 1, int(day), hour, minute, second, 0, 0, -1))
    except (ValueError, OverflowError):
        return None


class Mount(Value):
    """A mounted filesystem."""

    point: str
    kind: str
    is_local: bool


def mounts() -> list[Mount]:
    """All mounts, by the command `mount`."""
    return parse_mounts(_output("mount"))


def parse_mounts(text: str) -> list[Mount]:
    """The mounts in the output of `mount`; torn lines are skipped."""
    found = []
    for point, kind, said in _MOUNT.findall(text):
        words = said.split(", ")
        found.append(Mount(point, kind or words[0], "local" in words))
    return found


def mount_at(path: str, table: list[Mount]) -> Mount | None:
    """The mount with the longest matching mount point; of two on one point, the later one lies on top. The path has no
    symbolic links."""
    within = [one for one in reversed(table) if f"{path}/".startswith(f"{one.point.rstrip('/')}/")]
    return max(within, key=lambda one: len(one.point), default=None)


def _output(*command: str) -> str:
    try:
        import subprocess
    except ImportError:
        return ""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="surrogateescape", timeout=_WITHIN, check=True,
            env={**os.environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    # RuntimeError: in an isolated subinterpreter.
    except (OSError, ValueError, RuntimeError, subprocess.SubprocessError):
        return ""
    return done.stdout
