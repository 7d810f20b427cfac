"""`holdfast top` on a Windows console, as far as a made-up one shows it; tests/platforms has real ones."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from holdfast.cli import windows_screen
from holdfast.cli.fullscreen import RESIZED, USUAL, Signals
from holdfast.cli.windows_screen import ConsoleScreen, named
from process.support import eventually

USUAL_MODES = (0x1F7, 0x3)
"""Lines and their echo, control keys, the mouse, selection; sequences are not obeyed."""


class MadeUpConsole:
    input = -1

    def __init__(self) -> None:
        self.mode = USUAL_MODES
        self.window = (80, 24)
        self.pressed: list[tuple[int, int, int]] = []
        self.texts: list[str] = []
        self.takes = threading.Event()
        self.takes.set()
        self.error: OSError | None = None
        self.is_closed = False

    def _require_there(self) -> None:
        if self.error is not None:
            raise self.error

    def modes(self) -> tuple[int, int]:
        return self.mode

    def set_modes(self, of_input: int, of_screen: int) -> None:
        self._require_there()
        self.mode = (of_input, of_screen)

    def size(self) -> tuple[int, int]:
        self._require_there()
        return self.window

    def write(self, text: bytes) -> None:
        self.takes.wait()
        self._require_there()
        self.texts.append(text.decode("utf-16-le"))

    def take(self) -> list[tuple[int, int, int]]:
        self._require_there()
        taken, self.pressed = self.pressed, []
        return taken

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def console() -> MadeUpConsole:
    return MadeUpConsole()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, console: MadeUpConsole) -> Iterator[ConsoleScreen]:
    """The time limit is generous, so that a busy machine does not make it leave too early."""
    monkeypatch.setattr(windows_screen, "PARTING", 20.0)
    made_up: Any = console
    screen = ConsoleScreen(made_up)
    yield screen
    console.takes.set()
    screen.close()


def draw(full: ConsoleScreen, *lines: str) -> None:
    """Draw until the console has taken it, however busy the machine is."""
    full.draw(lines)
    eventually(lambda: not full.retry or full.draw(lines) or not full.retry)


def test_the_modes_of_the_console_are_set_and_then_restored(console: MadeUpConsole, full: ConsoleScreen) -> None:
    """Ctrl-C stays a signal, and text can still be selected (0x40, which counts with 0x80)."""
    full.enter()
    assert console.mode == (0x1E9, 0xF)
    full.enter()
    full.leave()
    assert console.mode == USUAL_MODES


def test_keys_that_another_program_wanted_as_sequences_come_as_keys(
    console: MadeUpConsole, full: ConsoleScreen
) -> None:
    console.mode = (0x3F6, 0x7)
    full.enter()
    assert console.mode == (0x1E9, 0xF)
    full.close()
    assert (console.mode, console.is_closed) == ((0x3F6, 0x7), True)


def test_only_changed_lines_are_written_until_the_screen_is_given_back(
    console: MadeUpConsole, full: ConsoleScreen
) -> None:
    full.enter()
    draw(full, "one", "zwölf 🔒")
    draw(full, "one", "TWO")
    draw(full, "one", "TWO")
    full.leave()
    full.leave()
    assert console.texts == [
        "\x1b[?1049h\x1b[?25l\x1b[?7l",
        "\x1b[0m\x1b[2J\x1b[1;1Hone\x1b[K\x1b[2;1Hzwölf 🔒\x1b[K",
        "\x1b[2;1HTWO\x1b[K",
        "\x1b[0m\x1b[?7h\x1b[?25h\x1b[24;1H\r\n\x1b[?1049l",
    ]


def test_a_blocked_console_does_not_hang_the_screen(
    monkeypatch: pytest.MonkeyPatch, console: MadeUpConsole, full: ConsoleScreen
) -> None:
    """As while a user selects text in it. Text is tried again, at growing intervals; the console can still be left."""
    full.enter()
    console.takes.clear()
    waits = []
    for number in range(8):
        full.draw([f"{number}"])
        assert full.retry is not None
        waits.append(full.retry)
    assert waits == sorted(waits)
    assert waits[-1] == 1.0
    console.pressed = [(0x51, ord("q"), 1)]
    assert full.keys() == ["q"]
    monkeypatch.setattr(windows_screen, "PARTING", 0.1)
    full.close()
    assert (console.mode, console.texts, console.is_closed) == (USUAL_MODES, [], False)


def test_the_newest_picture_is_written_after_a_pause(console: MadeUpConsole, full: ConsoleScreen) -> None:
    full.enter()
    draw(full, "old")
    console.takes.clear()
    full.draw(["older"])
    full.draw(["newer"])
    console.takes.set()
    draw(full, "newest")
    assert console.texts[-1] == "\x1b[1;1Hnewest\x1b[K"


def test_a_console_that_cannot_be_written_to_is_an_error(console: MadeUpConsole, full: ConsoleScreen) -> None:
    full.enter()
    console.error = OSError(5, "gone")
    with pytest.raises(OSError, match="gone"):
        draw(full, "one")


def test_a_console_that_is_gone_ends_the_screen_without_another_error(
    console: MadeUpConsole, full: ConsoleScreen
) -> None:
    full.enter()
    console.error = OSError(6, "gone")
    assert (full.keys(), full.size()) == (None, USUAL)
    full.leave()
    full.close()


def test_an_interrupted_restoration_is_repeated_at_the_end(console: MadeUpConsole, full: ConsoleScreen) -> None:
    full.enter()
    set_modes = console.set_modes

    def interrupted(*modes: int) -> None:
        raise KeyboardInterrupt

    console.set_modes = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        full.close()
    console.set_modes = set_modes  # type: ignore[method-assign]
    full.close()
    assert (console.mode, console.is_closed) == (USUAL_MODES, True)


@pytest.mark.parametrize("is_given", [False, True])
def test_a_second_ctrl_c_while_drawing_does_not_prevent_the_restoration(
    monkeypatch: pytest.MonkeyPatch, console: MadeUpConsole, is_given: bool
) -> None:
    """It comes before or after a text is handed to the writing thread."""

    pressed: list[KeyboardInterrupt] = []

    class Interrupted(SimpleQueue[Any]):
        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            if is_given or not pressed:
                super().put(item)
            if pressed:
                raise pressed.pop()

    monkeypatch.setattr(windows_screen, "SimpleQueue", Interrupted)
    monkeypatch.setattr(windows_screen, "PARTING", 20.0)
    made_up: Any = console
    full = ConsoleScreen(made_up)
    full.enter()
    draw(full, "one")
    pressed.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        full.draw(["two"])
    full.close()
    assert console.texts[-1].endswith("\x1b[?1049l")
    assert (console.texts[-2][-6:-3] == "two", console.mode, console.is_closed) == (is_given, USUAL_MODES, True)


def test_another_size_of_the_window_is_noticed_once(console: MadeUpConsole, full: ConsoleScreen) -> None:
    assert full.keys() == []
    console.window = (60, 20)
    console.pressed = [(0x26, 0, 1)]
    assert full.keys() == [RESIZED, "up"]
    assert full.keys() == []


def test_every_key_is_recognised() -> None:
    """A held key repeats, and Shift alone is no key."""
    arrows = [(code, 0, 1) for code in (0x26, 0x28, 0x21, 0x22, 0x24, 0x23)]
    assert named(arrows) == ["up", "down", "page up", "page down", "home", "end"]
    assert named([(0x1B, 0x1B, 1), (0x4C, 0x0C, 1)]) == ["escape", "redraw"]
    assert named([(0x44, 0x04, 1), (0x5A, 0x1A, 1), (0x51, ord("q"), 1)]) == ["q"] * 3
    assert named([(0x28, 0, 3), (0x10, 0, 1), (0xDB, ord("?"), 1), (0, 0xFC, 1)]) == [*["down"] * 3, "?", "ü"]


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def signals() -> Iterator[Signals]:
    before = signal.getsignal(signal.SIGINT)
    signals = Signals()
    signals.open()
    yield signals
    signals.close()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_is_kept_until_it_is_taken(signals: Signals) -> None:
    assert signals.take() == []
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    assert signals.take() == [signal.SIGTERM, signal.SIGINT]
    assert signals.take() == []
    assert signals.is_ending(signal.SIGINT)
    assert not signals.is_ending(0)


def test_a_repeated_signal_is_obeyed_at_once_unless_the_screen_is_being_given_back(signals: Signals) -> None:
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    signals.hushed = True
    signal.raise_signal(signal.SIGINT)


def test_a_signal_that_was_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signals = Signals()
    try:
        signals.open()
        signal.raise_signal(signal.SIGTERM)
        assert signals.take() == []
        signals.close()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signals.close()
        signal.signal(signal.SIGTERM, before)
