"""A terminal that is used whole, and given back as it was, whatever ends that.

The screen is drawn by differences, each time by one write, so that nothing flickers. Nothing here waits for the
terminal: one that takes no more for the moment, as after Ctrl-S, gets the rest later, and can still be left.
"""

from __future__ import annotations

import os
import re
import select
import signal

from .table import width_of

try:
    import termios
except ImportError:  # a system without such terminals
    termios = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# The alternate screen, no cursor, and no new line after the last column.
_ENTER_AGAIN = "\x1b[?25l\x1b[?7l"
_ENTER = "\x1b[?1049h" + _ENTER_AGAIN
_LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[{height};1H\r\n\x1b[?1049l"
"""Where there is no alternate screen, the shell goes on below."""
_STYLE = re.compile("\x1b\\[[0-9;]*m")
_KEY = re.compile(r"\x1b(?:\[[0-9;]*[~A-Za-z]|O[A-Za-z])?|.", re.DOTALL)
_NAMES = {
    sequence: name
    for name, sequences in {
        "up": ("\x1b[A", "\x1bOA"),
        "down": ("\x1b[B", "\x1bOB"),
        "page up": ("\x1b[5~",),
        "page down": ("\x1b[6~",),
        "home": ("\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"),
        "end": ("\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"),
        "escape": ("\x1b",),
        "redraw": ("\x0c",),
        "q": ("\x04",),
    }.items()
    for sequence in sequences
}
_USUAL = (80, 24)
_PARTING = 0.3
"""Seconds that a terminal which takes nothing is given to take what restores it."""
_SOONEST, _LATEST = 0.01, 1.0
"""Seconds until the rest of a frame is tried again."""


def is_able(out: int) -> bool:
    """Whether this is a terminal on which anything can be put anywhere."""
    return termios is not None and os.isatty(out) and os.environ.get("TERM", "") not in ("", "dumb")


class FullScreen:
    """`enter` and `leave` may be called again. Between them, only `draw` writes to the terminal."""

    def __init__(self, out: int, encoding: str = "utf-8") -> None:
        self._out = out
        self._encoding = encoding
        self._own = _apart(out)
        self.keyboard = self._own if self._own is not None else out
        self._saved: list[object] | None = None
        self._shown: list[str] | None = None
        self._size = _USUAL
        self._rest = b""
        self.retry: float | None = None
        """In how many seconds `draw` should be called again, as the terminal has not taken all of it."""

    def enter(self) -> None:
        first = self._saved is None
        self._saved = self._saved or termios.tcgetattr(self._out)
        modes = [*self._saved]
        assert isinstance(modes[3], int)
        modes[3] &= ~(termios.ICANON | termios.ECHO)
        modes[6] = [*modes[6]]  # type: ignore[misc]
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0  # type: ignore[index]
        termios.tcsetattr(self._out, termios.TCSANOW, modes)  # type: ignore[arg-type]
        self._rest += (_ENTER if first else _ENTER_AGAIN).encode()
        self._shown = None

    def leave(self) -> None:
        """Never waits long, and never fails: there may be no terminal any more."""
        if self._saved is None:
            return
        saved, self._saved = self._saved, None
        try:
            termios.tcsetattr(self._out, termios.TCSANOW, saved)  # type: ignore[arg-type]
            rest = _LEAVE.format(height=self.size()[1]).encode()
            self._rest = b""
            while rest and select.select([], [self.keyboard], [], _PARTING)[1]:
                rest = rest[os.write(self.keyboard, rest) :]
        except (OSError, termios.error):
            pass

    def close(self) -> None:
        self.leave()
        if self._own is not None:
            os.close(self._own)
            self._own = None

    def size(self) -> tuple[int, int]:
        try:
            width, height = os.get_terminal_size(self._out)
        except OSError:
            return _USUAL
        return (width, height) if width and height else _USUAL

    def anew(self) -> None:
        """Draw everything the next time: something else may have been written."""
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

    def _write(self) -> bool:
        """Whether all of it has been taken."""
        try:
            while self._rest:
                self._rest = self._rest[os.write(self.keyboard, self._rest) :]
        except BlockingIOError:
            self.retry = min(_LATEST, 2 * (self.retry or _SOONEST / 2))
            return False
        self.retry = None
        return True

    def keys(self) -> list[str] | None:
        """Those that have been pressed, by name or as they are; None when the terminal is gone."""
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
    """The same terminal by a description of our own, which can be told never to wait; the other is the shell's too."""
    try:
        return os.open(os.ttyname(out), os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None


class Signals:
    """While it is `open`, signals that end, stop, continue or resize only wake whoever polls `fd`.

    One that ends is obeyed at once all the same when it comes again before `take`, from a look that takes too long.
    """

    _ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
    _OTHERS = ("SIGTSTP", "SIGCONT", "SIGWINCH")

    def __init__(self) -> None:
        self.fd, self._written = os.pipe()
        for fd in (self.fd, self._written):
            os.set_blocking(fd, False)
        self._before: dict[int, object] = {}
        self._woken = -1
        self._pending: set[int] = set()
        self.hushed = False
        """Set while the terminal is given back: no signal keeps that from its end."""

    def open(self) -> None:
        self._woken = signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        for name in (*self._ENDING, *self._OTHERS):
            number = getattr(signal, name)
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._came)

    def _came(self, number: int, frame: object) -> None:
        again = number in self._pending
        self._pending.add(number)
        before = self._before.get(number)
        if again and not self.hushed and callable(before):
            before(number, frame)

    def take(self) -> list[int]:
        """Those that have come, each once, in their order."""
        try:
            found = [*dict.fromkeys(os.read(self.fd, 4096))]
        except BlockingIOError:
            found = []
        self._pending.clear()
        return found

    def stop(self) -> list[int]:
        """Do what Ctrl-Z does to others; comes back when this process is continued, with what else has come."""
        mine = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, mine)
        return [number for number in self.take() if number != signal.SIGCONT]

    def close(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]
        self._before.clear()
        signal.set_wakeup_fd(self._woken)
        for fd in (self.fd, self._written):
            os.close(fd)


def is_ending(number: int) -> bool:
    return any(number == getattr(signal, name) for name in Signals._ENDING)
