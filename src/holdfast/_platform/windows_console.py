"""The console of Windows: its modes and size, output to it, and keys from it.

It is opened by name, so it does not matter where the standard streams lead. Nothing here judges keys, nor which modes
are wanted.
"""

from __future__ import annotations

import ctypes

from .handles import Handle, msvcrt, winapi
from .windows import DWORD, HANDLE, KERNEL, POINTER, declare, require

_ACCESS = 0x80000000 | 0x40000000
_SHARED, _EXISTING = 1 | 2, 3
_MOST_UNITS = 8192
"""The most units of UTF-16 that one call writes: a call with more than 64 kB may be refused."""
_MOST_RECORDS = 128
_KEY = 1
"""KEY_EVENT."""


class _Record(ctypes.Structure):
    """INPUT_RECORD, as it is for a key."""

    _fields_ = (
        ("type", ctypes.c_uint16),
        ("down", ctypes.c_int32),
        ("repeated", ctypes.c_uint16),
        ("code", ctypes.c_uint16),
        ("scanned", ctypes.c_uint16),
        ("unit", ctypes.c_uint16),
        ("state", DWORD),
    )


class _Screen(ctypes.Structure):
    """CONSOLE_SCREEN_BUFFER_INFO."""

    _fields_ = (
        ("size", ctypes.c_int16 * 2),
        ("cursor", ctypes.c_int16 * 2),
        ("attributes", ctypes.c_uint16),
        ("left", ctypes.c_int16),
        ("top", ctypes.c_int16),
        ("right", ctypes.c_int16),
        ("bottom", ctypes.c_int16),
        ("most", ctypes.c_int16 * 2),
    )


declare(
    ("GetConsoleMode", HANDLE, POINTER),
    ("SetConsoleMode", HANDLE, DWORD),
    ("GetConsoleScreenBufferInfo", HANDLE, POINTER),
    ("WriteConsoleW", HANDLE, POINTER, DWORD, POINTER, POINTER),
    ("GetNumberOfConsoleInputEvents", HANDLE, POINTER),
    ("ReadConsoleInputW", HANDLE, POINTER, DWORD, POINTER),
)


class Console:
    """The console of this process; OSError where it has none."""

    def __init__(self) -> None:
        self.input = Handle(_opened("CONIN$"))
        """The handle of its input, which can be waited for: a key has been pressed, or the size has changed."""
        try:
            self._output = _opened("CONOUT$")
        except OSError:
            winapi.CloseHandle(int(self.input))
            raise

    def close(self) -> None:
        for handle in (int(self.input), self._output):
            winapi.CloseHandle(handle)

    def modes(self) -> tuple[int, int]:
        """The modes of its input, and of its screen."""
        return _mode_of(int(self.input)), _mode_of(self._output)

    def set_modes(self, of_input: int, of_screen: int) -> None:
        try:
            require(KERNEL.SetConsoleMode(int(self.input), of_input))
        finally:  # the one, too, if the other cannot be set, or if Ctrl-C comes between them
            require(KERNEL.SetConsoleMode(self._output, of_screen))

    def size(self) -> tuple[int, int]:
        """Columns and lines of its window."""
        found = _Screen()
        require(KERNEL.GetConsoleScreenBufferInfo(self._output, ctypes.byref(found)))
        return found.right - found.left + 1, found.bottom - found.top + 1

    def write(self, text: bytes) -> None:
        """Write UTF-16. Waits as long as the console takes nothing, as while somebody selects text in it."""
        written = DWORD()
        while text:
            part = text[: 2 * _MOST_UNITS]
            if len(part) < len(text) and 0xD8 <= part[-1] <= 0xDB:
                part = part[:-2]  # the first half of a character
            done = KERNEL.WriteConsoleW(self._output, part, len(part) // 2, ctypes.byref(written), None)
            require(done and written.value)
            text = text[2 * written.value :]

    def take(self) -> list[tuple[int, int, int]]:
        """The keys that have been pressed: code, unit of UTF-16 (0: none), how many times. Releases of keys, and other
        events, are skipped. Never waits."""
        count, records, found = DWORD(), (_Record * _MOST_RECORDS)(), []
        require(KERNEL.GetNumberOfConsoleInputEvents(int(self.input), ctypes.byref(count)))
        if count.value:
            require(KERNEL.ReadConsoleInputW(int(self.input), records, _MOST_RECORDS, ctypes.byref(count)))
            found = [
                (one.code, one.unit, one.repeated) for one in records[: count.value] if one.type == _KEY and one.down
            ]
        return found


def is_console(fd: int) -> bool:
    """Whether this descriptor leads to a console. Windows takes NUL for a terminal, too."""
    try:
        _mode_of(msvcrt.get_osfhandle(fd))
    except OSError:
        return False
    return True


def _opened(name: str) -> int:
    return int(winapi.CreateFile(name, _ACCESS, _SHARED, 0, _EXISTING, 0, 0))


def _mode_of(handle: int) -> int:
    found = DWORD()
    require(KERNEL.GetConsoleMode(handle, ctypes.byref(found)))
    return found.value
