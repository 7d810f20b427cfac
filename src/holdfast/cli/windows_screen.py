"""The console of Windows as a full screen (fullscreen.py): what cmd, PowerShell and Windows Terminal show.

It is drawn on by the same sequences as a POSIX terminal, which a console of Windows 10 and later obeys when told to. A
write blocks while the user selects text in the console, or has paused it, so a thread of its own writes. Keys come as
events, and each look for them also notices another size of the window.
"""

from __future__ import annotations

import os
import threading
import time
from queue import SimpleQueue

from .fullscreen import ENTER, ENTER_AGAIN, LEAVE, PARTING, RESIZED, USUAL, Display, Signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .._platform.windows_console import Console

UNABLE = "stdout cannot be drawn on (NUL, a console older than Windows 10, or TERM=dumb)"
_ENCODING = "utf-16-le"
_CONTROL_KEYS, _RESIZES = 0x1, 0x8
_EDITING = 0x2 | 0x4 | 0x10 | 0x200
"""Modes to switch off: input by lines, its echo, the mouse, and keys as sequences."""
_SEQUENCES, _STAYS = 0x1 | 0x4, 0x8
"""Sequences are obeyed; no new line after the last column before something follows."""
_AT_ONCE = 0.05
"""Seconds in which a console usually accepts a whole screen."""
_KEYS = {0x1B: "escape", 0x21: "page up", 0x22: "page down", 0x23: "end", 0x24: "home", 0x26: "up", 0x28: "down"}
"""Names of keys, by their codes."""
_UNITS = {"\x0c": "redraw", "\x04": "q", "\x1a": "q"}
"""Control keys. The last two end what is typed, on other systems and on Windows."""


def is_able(out: int) -> bool:
    """Whether this is a console on which anything can be put anywhere."""
    from .._platform.windows_console import Console, is_console

    if not is_console(out) or os.environ.get("TERM") == "dumb":
        return False
    console = Console()
    try:
        of_input, of_screen = console.modes()
        try:
            console.set_modes(of_input, of_screen | _SEQUENCES)
        finally:
            console.set_modes(of_input, of_screen)
    except OSError:
        return False
    finally:
        console.close()
    return True


def opened() -> tuple[Signals, ConsoleScreen]:
    """The console, and the signals that it may send: Ctrl-C and Ctrl-Break."""
    from .._platform.windows_console import Console

    return Signals(), ConsoleScreen(Console(), colours=not os.environ.get("NO_COLOR"))


def named(keys: list[tuple[int, int, int]]) -> list[str]:
    """The keys by their names, or as they are; one without a meaning, such as Shift alone, is left out."""
    found = []
    for code, unit, times in keys:
        name = _KEYS.get(code) or (_UNITS.get(chr(unit), chr(unit)) if unit else None)
        if name is not None:
            found += [name] * times
    return found


class ConsoleScreen(Display):
    """The console of this process."""

    def __init__(self, console: Console, *, colours: bool = False) -> None:
        super().__init__(_ENCODING, colours=colours)
        self._console = console
        self.keyboard = console.input
        self._saved: tuple[int, int] | None = None
        self._seen = self.size()
        self._writer: _Writer | None = _Writer(console.write)

    def enter(self) -> None:
        first = self._saved is None
        self._saved = self._saved or self._console.modes()
        of_input, of_screen = self._saved
        self._console.set_modes((of_input | _CONTROL_KEYS | _RESIZES) & ~_EDITING, of_screen | _SEQUENCES | _STAYS)
        self._rest += (ENTER if first else ENTER_AGAIN).encode(_ENCODING)
        self._shown = None

    def leave(self) -> None:
        if self._saved is None:
            return
        self._rest = b""
        assert self._writer is not None
        try:
            until = time.monotonic() + PARTING
            if self._writer.finish(PARTING):
                rest = LEAVE.format(height=self.size()[1]).encode(_ENCODING)
                self._writer.write(rest, until - time.monotonic())
        except OSError:
            pass
        try:
            self._console.set_modes(*self._saved)
        except OSError:
            pass
        self._saved = None  # now: after a second Ctrl-C meanwhile, it is done again

    def close(self) -> None:
        self.leave()
        writer, self._writer = self._writer, None
        if writer is not None and writer.end():
            self._console.close()

    def size(self) -> tuple[int, int]:
        try:
            return self._console.size()
        except OSError:
            return USUAL

    def _write(self) -> bool:
        assert self._writer is not None
        if self._rest and not self._writer.write(self._rest, _AT_ONCE):
            return self._late()
        self._rest, self.retry = b"", None
        return True

    def keys(self) -> list[str] | None:
        try:
            found = named(self._console.take())
        except OSError:
            return None
        size = self.size()
        if size != self._seen:
            self._seen = size
            found.insert(0, RESIZED)
        return found


class _Writer:
    """A thread that writes, so that no other has to wait for the console. Each text has an event of its own: a Ctrl-C
    between two steps of `write` leaves at most a text that is written before the next one, and never a wait in vain."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._wanted: SimpleQueue[tuple[bytes, threading.Event] | None] = SimpleQueue()
        self._written: threading.Event | None = None
        """The event of the text that is waited for."""
        self._error: OSError | None = None
        threading.Thread(target=self._run, name="holdfast-console", daemon=True).start()

    def _run(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            text, written = wanted
            try:
                self._write(text)
            except OSError as error:
                self._error = error
            written.set()

    def write(self, text: bytes, seconds: float) -> bool:
        """Write a text, waiting at most that many seconds; whether it is written. If not, it has to be given again."""
        if self._written is None:
            written = threading.Event()
            self._wanted.put((text, written))
            self._written = written
        return self.finish(seconds)

    def finish(self, seconds: float) -> bool:
        """Wait at most that many seconds; whether nothing is left to be written."""
        if self._written is None:
            return True
        if not self._written.wait(max(0.0, seconds)):
            return False
        self._written = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return True

    def end(self) -> bool:
        """End the thread; whether it could. It cannot while the console accepts nothing, but delays no exit."""
        self._wanted.put(None)
        try:
            return self.finish(0)
        except OSError:
            return True
