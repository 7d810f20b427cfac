"""A full-screen terminal, restored as it was, whatever ends its use.

Only differences are drawn, each time by one write, so that nothing flickers. Nothing waits for the terminal: one that
accepts nothing for the moment, as after Ctrl-S, gets the rest later, and can still be left.

`Display` is the interface of all terminals. Those of POSIX are here, the console of Windows in windows_screen.py. Each
of the two modules offers `is_able` and `opened`, and `UNABLE` says why a terminal may not do.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence

from .console import width_of
from .detached import wakeup_pipe
from .outcome import screen

try:
    import termios
except ImportError:  # a system without such terminals
    termios = None  # type: ignore[assignment]

IS_THERE = bool(termios)
"""Whether this system has POSIX terminals."""


# The alternate screen, no cursor, and no new line after the last column.
ENTER_AGAIN = "\x1b[?25l\x1b[?7l"
ENTER = "\x1b[?1049h" + ENTER_AGAIN
LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[{height};1H\r\n\x1b[?1049l"
"""The undoing of `ENTER`; if there is no alternate screen, the shell goes on below."""
_STYLE = re.compile("\x1b\\[[0-9;]*m")
_KEY = re.compile(r"\x1b(?:\[[0-9;]*[~A-Za-z]|O[A-Za-z])?|.", re.DOTALL)
_NAMES = {
    sequence: name
    for name, sequences in {
        "up": ("\x1b[A", "\x1bOA"), "down": ("\x1b[B", "\x1bOB"), "page up": ("\x1b[5~",), "page down": ("\x1b[6~",),
        "home": ("\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"), "end": ("\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"),
        "escape": ("\x1b",), "redraw": ("\x0c",), "q": ("\x04",),
    }.items()
    for sequence in sequences
}  # fmt: skip
USUAL = (80, 24)
PARTING = 0.3
"""Seconds that a blocked terminal gets to accept the sequences that restore it."""
_SOONEST, _LATEST = 0.04, 1.0
"""Seconds until the rest of a frame is tried again, at first and at most."""
RESIZED = "resized"
"""Pseudo-key: the screen has another size."""
GONE: int = getattr(signal, "SIGHUP", signal.SIGTERM)
"""The signal that ends a process whose terminal is gone."""
UNABLE = "this terminal cannot be drawn on (TERM)"


def is_able(out: int) -> bool:
    """Whether this is a terminal on which anything can be put anywhere."""
    return termios is not None and os.isatty(out) and os.environ.get("TERM", "") not in ("", "dumb")


class Display(ABC):
    """A terminal to draw on. `enter` and `leave` may be called again. Between them, only `draw` writes to it."""

    keyboard: int
    """The descriptor, or handle of Windows, that is ready when a key has been pressed."""

    def __init__(self, encoding: str, *, colours: bool) -> None:
        self.colours = colours
        self._encoding = encoding
        self._shown: list[str] | None = None
        self._size = USUAL
        self._rest = b""
        self.retry: float | None = None
        """Seconds until `draw` should be called again; None if the terminal has accepted everything."""

    @abstractmethod
    def enter(self) -> None:
        """Take over the terminal, or set its modes once more: another program may have changed them."""

    @abstractmethod
    def leave(self) -> None:
        """Restore the terminal. Never waits long, and never fails: the terminal may be gone."""

    @abstractmethod
    def close(self) -> None:
        """Leave the terminal for good."""

    @abstractmethod
    def size(self) -> tuple[int, int]:
        """Columns and lines."""

    @abstractmethod
    def keys(self) -> list[str] | None:
        """The keys pressed since the last call, by name or as they are; None if the terminal is gone."""

    @abstractmethod
    def _write(self) -> bool:
        """Write `_rest`, without waiting long; whether the terminal has accepted all of it."""

    def anew(self) -> None:
        """Have the next `draw` draw everything: another program may have written to the terminal."""
        self._shown = None

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, as many as the screen has, each of them printable and no wider than it is."""
        if self._rest and not self._write():
            return
        size = self.size()
        parts = []
        if self._shown is None or size != self._size:
            self._shown, self._size = [], size
            parts.append("\x1b[0m\x1b[2J")
        for number, line in enumerate(lines):
            if number >= len(self._shown) or self._shown[number] != line:
                parts.append(f"\x1b[{number + 1};1H{line}")
                if width_of(_STYLE.sub("", line)) < size[0]:  # else it would erase the last character
                    parts.append("\x1b[K")
        if parts:
            self._rest = "".join(parts).encode(self._encoding, "replace")
            self._write()
        self._shown = [*lines]

    def _late(self) -> bool:
        """Put off the next try, each time for longer; False, for `_write`."""
        self.retry = min(_LATEST, 2 * (self.retry or _SOONEST / 2))
        return False


class FullScreen(Display):
    """A POSIX terminal."""

    def __init__(self, out: int, encoding: str = "utf-8", *, colours: bool = False) -> None:
        super().__init__(encoding, colours=colours)
        self._out = out
        self._own = _apart(out)
        self.keyboard = self._own if self._own is not None else out
        self._saved: list[object] | None = None

    def enter(self) -> None:
        first = self._saved is None
        self._saved = self._saved or termios.tcgetattr(self._out)
        modes = [*self._saved]
        assert isinstance(modes[3], int)
        modes[3] &= ~(termios.ICANON | termios.ECHO)
        modes[6] = [*modes[6]]  # type: ignore[misc]
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0  # type: ignore[index]
        termios.tcsetattr(self._out, termios.TCSANOW, modes)  # type: ignore[arg-type]
        self._rest += (ENTER if first else ENTER_AGAIN).encode()
        self._shown = None

    def leave(self) -> None:
        if self._saved is None:
            return
        try:
            termios.tcsetattr(self._out, termios.TCSANOW, self._saved)  # type: ignore[arg-type]
            for action in (termios.TCOOFF, termios.TCOON):  # resume what Ctrl-S has paused: the second alone does not
                termios.tcflow(self._out, action)
            rest = LEAVE.format(height=self.size()[1]).encode()
            self._rest = b""
            while rest and select.select([], [self.keyboard], [], PARTING)[1]:
                rest = rest[os.write(self.keyboard, rest) :]
        except (OSError, termios.error):
            pass
        self._saved = None  # now: after a second Ctrl-C meanwhile, it is done again

    def close(self) -> None:
        self.leave()
        if self._own is not None:
            os.close(self._own)
            self._own = None

    def size(self) -> tuple[int, int]:
        try:
            width, height = os.get_terminal_size(self._out)
        except OSError:
            return USUAL
        return (width, height) if width and height else USUAL

    def _write(self) -> bool:
        try:
            while self._rest:
                self._rest = self._rest[os.write(self.keyboard, self._rest) :]
        except BlockingIOError:
            return self._late()
        self.retry = None
        return True

    def keys(self) -> list[str] | None:
        if not select.select([self.keyboard], [], [], 0)[0]:
            return []
        try:
            data = os.read(self.keyboard, 4096)
        except BlockingIOError:
            return []
        except OSError:
            return None
        return [_NAMES.get(key, key) for key in _KEY.findall(data.decode("utf-8", "replace"))] if data else None


def _apart(out: int) -> int | None:
    """A non-blocking description of the terminal of our own, as the shell shares the other; None if that fails."""
    try:
        return os.open(os.ttyname(out), os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None


class Signals:
    """Signals that end, stop, continue or resize: while this is `open`, they are kept for `take`. An ending one that
    comes again before that, because a look takes too long, is obeyed at once."""

    _ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK")
    _OTHERS = ("SIGTSTP", "SIGCONT", "SIGWINCH")

    def __init__(self, pipe: tuple[int, ...] = ()) -> None:
        self._pipe = pipe
        self.wakers = self._pipe[:1]
        """Descriptors that are ready when a signal has come, where a signal alone does not end a wait."""
        self._woken = -1
        self._before: dict[int, object] = {}
        self._pending: dict[int, None] = {}
        self.hushed = False
        """Set while the terminal is restored: no signal interrupts that."""

    def open(self) -> None:
        if self._pipe:
            self._woken = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for name in (*self._ENDING, *self._OTHERS):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._came)

    def _came(self, number: int, frame: object) -> None:
        again = number in self._pending
        self._pending[number] = None
        before = self._before.get(number)
        if again and not self.hushed and callable(before):
            before(number, frame)

    def take(self) -> list[int]:
        """The signals that have come, each once, in their order."""
        try:
            for fd in self.wakers:
                os.read(fd, 4096)
        except BlockingIOError:
            pass
        found = [*self._pending]
        for number in found:
            del self._pending[number]
        return found

    def is_ending(self, number: int) -> bool:
        return any(number == getattr(signal, name, None) for name in self._ENDING)

    def stop(self) -> list[int]:
        """Stop as other processes do at Ctrl-Z; return, once continued, the other signals that have come."""
        mine = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, mine)
        return [number for number in self.take() if number != signal.SIGCONT]

    def close(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]
        self._before.clear()
        if self._pipe:
            signal.set_wakeup_fd(self._woken)
            for fd in self._pipe:
                os.close(fd)
        self._pipe = self.wakers = ()


def opened() -> tuple[Signals, FullScreen]:
    """The signals of the terminal of stdout, and that terminal, which must be able (`is_able`)."""
    return Signals(wakeup_pipe()), FullScreen(
        sys.stdout.fileno(), sys.stdout.encoding, colours=screen(sys.stdout).colours
    )
