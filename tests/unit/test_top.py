"""Decisions of `top` that need no terminal: rows, their order, which of them fit, and when it looks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from abilities import LINUX
from holdfast._admin.monitor import Follower, WatchScope
from holdfast._platform.inotify import FolderWatch
from holdfast.cli import top as module
from holdfast.cli import top as view_module
from holdfast.cli import watch
from holdfast.cli.console import width_of
from holdfast.cli.fullscreen import RESIZED, FullScreen, Signals
from holdfast.cli.options import SORTS
from holdfast.cli.outcome import Screen
from holdfast.cli.top import (
    ORDERS,
    WAITED_FOR,
    Board,
    Row,
    Rows,
    Scene,
    View,
    cells_of,
    clock_of,
    counts,
    header,
    ordered,
    table,
)
from process.support import Peer, eventually
from unit.stepping import Contend, Stepped

NOW = 1_000_000.0
STYLE = re.compile("\x1b\\[[0-9;]*m")


def row(name: str, held: float | None = None, *waits: float, **more: Any) -> Row:
    """A lock that has been held, and waited for, for that many seconds."""
    since = None if held is None else NOW - held
    waiting = tuple((NOW - seconds, 100 + number) for number, seconds in enumerate(waits))
    return Row(**{"path": f"/r/{name}", "state": "held", "protocol": "sema", "since": since, "waits": waiting, **more})


def words(one: Row) -> dict[str, str]:
    names = ("state", "pid", "user", "held", "waits", "longest", "path", "protocol", "host", "command", "tag", "pids")
    cells = [cell if isinstance(cell, str) else cell[0] for cell in cells_of(one, NOW)]
    return dict(zip(names, cells, strict=True))


# -- rows --------------------------------------------------------------------------------------------------------------


def test_a_time_fits_its_column() -> None:
    times = [-5, 0.9, 59.9, 60, 3599, 3600, 86399, 86400, 100 * 86400, 1e9, 1e18]
    shown = ["0s", "0s", "59s", "1m00s", "59m59s", "1h00m", "23h59m", "1d00h", "100d", "11574d", "ages"]
    assert [clock_of(time) for time in times] == shown
    assert max(map(len, shown)) <= 6


def test_a_row_says_what_is_known() -> None:
    one = words(row("a", 65, 7200, 3, pid=42, others=2, user="me", host="farm", command="make", tag="why"))
    assert one == {
        "state": "held",
        "pid": "42+2",
        "user": "me",
        "held": "1m05s",
        "waits": "2",
        "longest": "2h00m",
        "path": "/r/a",
        "protocol": "sema",
        "host": "farm",
        "command": "make",
        "tag": "why",
        "pids": "100 101",
    }
    assert words(row("a")) == {
        "state": "held",
        "pid": "-",
        "user": "-",
        "held": "-",
        "waits": "-",
        "longest": "-",
        "path": "/r/a",
        "protocol": "sema",
        "host": "",
        "command": "",
        "tag": "",
        "pids": "",
    }


def test_a_hold_that_was_not_seen_to_begin_is_shown_with_a_lower_bound() -> None:
    one = words(row("a", 5, 3, exact=False, all_seen=False))
    assert (one["held"], one["longest"]) == (">5s", ">3s")


def test_the_first_of_many_waiters_are_listed() -> None:
    assert words(row("a", 1, *[9] * 1000))["pids"].endswith(" 107 +992")


def test_every_order_sorts_by_the_column_that_it_names() -> None:
    rows = [
        row("none", 10),
        row("young", 100, 1, 0.5, pid=7),
        row("old", 1, 50, pid=3),
        row("gone", None, 5, state=WAITED_FOR),
        row("dead", 500, state="dead"),
    ]
    found = {order: [one.path[3:] for one in ordered(rows, order)] for order in ORDERS}
    assert found == {
        "wait": ["old", "gone", "young", "dead", "none"],
        "held": ["dead", "young", "none", "old", "gone"],
        "waiters": ["young", "old", "gone", "dead", "none"],
        "path": ["dead", "gone", "none", "old", "young"],
        "pid": ["old", "young", "dead", "gone", "none"],
        "state": ["none", "old", "young", "dead", "gone"],
    }
    assert [one.path for one in ordered(rows, "pid", backwards=True)] == [f"/r/{name}" for name in found["pid"][::-1]]
    assert counts(rows) == "3 held, 4 waiting, 1 stale"


def test_every_order_that_can_be_typed_is_there() -> None:
    assert tuple(ORDERS) == SORTS


# -- what is followed --------------------------------------------------------------------------------------------------


@pytest.fixture
def follow(environments: Callable[..., Stepped]) -> Any:
    watches: list[FolderWatch] = []

    def make(directory: Path, name: str | None = None, **more: bool) -> Follower:
        watches.append(FolderWatch())
        env = environments()
        follower = Follower(env, watches[-1])  # type: ignore[arg-type]
        follower.add(str(directory), name, **more)
        return follower

    yield make
    for made in watches:
        made.close()


def news(follower: Follower) -> None:
    assert follower.watch is not None
    follower.handle(follower.watch.take())


def test_holders_and_waiters_are_shown(disk: Path, contend: Contend, follow: Any) -> None:
    held = contend(disk / "l", tag="why").get()
    peer = Peer("with Lock(path).acquire(): say('held'); hear()", [disk / "l"], env=LINUX)
    eventually(lambda: list(disk.glob(".holdfast-l.queue/*[0-9a-f]")), what="the ticket")
    follower = follow(disk)
    follower.first_look()
    rows = Rows(follower)
    (one,) = rows.now()
    assert (one.path, one.state, one.pid, one.tag) == (str(disk / "l"), "held", os.getpid(), "why")
    assert [pid for _, pid in one.waits] == [peer.pid]
    held.release()
    peer.expect("held")
    eventually(
        lambda: (news(follower), follower.tick(), [(one.pid, one.waits) for one in rows.now()])[-1] == [(peer.pid, ())]
    )
    peer.destroy()
    eventually(lambda: (news(follower), follower.tick(), rows.now()[0].state)[-1] == "dead")
    (disk / "l").unlink()
    eventually(lambda: (news(follower), follower.tick(), rows.now())[-1] == [])
    for queue in disk.glob(".holdfast-*"):
        for ticket in queue.iterdir():
            ticket.unlink()
        queue.rmdir()


def test_a_redraw_does_not_look_at_known_locks_again(disk: Path, contend: Contend, follow: Any) -> None:
    """Only the clock moves: the environment gets no call, and the row is reused."""
    held = contend(disk / "l").get()
    follower = follow(disk)
    follower.first_look()
    board = Board(follower, [str(disk)], "wait", backwards=False)
    full = Paper()
    board._draw(full)  # type: ignore[arg-type]
    made = board._rows.now()
    steps = len(follower._env.steps)
    board._changed = True
    board._draw(full)  # type: ignore[arg-type]
    assert [a is b for a, b in zip(board._rows.now(), made, strict=True)] == [True]
    assert len(follower._env.steps) == steps
    held.release()


class Paper:
    """A screen that only records."""

    retry: float | None = None
    colours = False

    def __init__(self, width: int = 100, height: int = 24) -> None:
        self.lines: list[str] = []
        self.pressed: list[str] = []
        self.is_new = False
        self._size = (width, height)

    def size(self) -> tuple[int, int]:
        return self._size

    def keys(self) -> list[str]:
        return self.pressed

    def anew(self) -> None:
        self.is_new = True

    def draw(self, lines: list[str]) -> None:
        self.lines = [STYLE.sub("", line) for line in lines]


def test_the_screen_wakes_only_when_something_could_change(disk: Path, contend: Contend, follow: Any) -> None:
    """Without rows and events no timer is set; with a row, one for each second."""
    follower = follow(disk)
    follower.first_look()
    board = Board(follower, [str(disk)], "wait", backwards=False)
    full = Paper()
    board._draw(full)  # type: ignore[arg-type]
    assert board._due(full) == float("inf")  # type: ignore[arg-type]
    held = contend(disk / "l").get()
    news(follower)
    board._hear([], None)
    board._draw(full)  # type: ignore[arg-type]
    assert 0.5 < board._due(full) - board._clock.monotonic() <= 1.0  # type: ignore[arg-type]
    held.release()


def test_a_storm_of_events_is_no_storm_of_pictures(disk: Path, follow: Any) -> None:
    follower = follow(disk)
    follower.first_look()
    board = Board(follower, [str(disk)], "wait", backwards=False)
    full = Paper()
    began = board._clock.monotonic()
    board._draw(full)  # type: ignore[arg-type]
    board._hear([], None)
    assert board._due(full) >= began + module._SOONEST  # type: ignore[arg-type]


def test_another_size_redraws_the_whole_screen_and_is_no_key(disk: Path, follow: Any) -> None:
    """Where no signal reports it, as in a Windows console. A key would leave the help."""
    follower = follow(disk)
    follower.first_look()
    board = Board(follower, [str(disk)], "wait", backwards=False)
    board._view.press("?")
    full = Paper()
    board._draw(full)  # type: ignore[arg-type]
    full.pressed = [RESIZED]
    signals = Signals()
    assert board._obey(signals, full) is None  # type: ignore[arg-type]
    signals.close()
    assert (full.is_new, board._view.helping, board._wanted) == (True, True, 0.0)


def test_a_directory_that_vanishes_is_reported_as_missing(disk: Path, contend: Contend, follow: Any) -> None:
    place = disk / "d"
    place.mkdir()
    follower = follow(place)
    follower.first_look()
    board = Board(follower, [str(place)], "wait", backwards=False)
    full = Paper()
    place.rmdir()
    news(follower)
    board._draw(full)  # type: ignore[arg-type]
    assert full.lines[1] == f"missing, checked again every 10 s: {place}"
    place.mkdir()
    follower._sweep()
    board._draw(full)  # type: ignore[arg-type]
    assert full.lines[1] == f"in {place}"
    held = contend(place / "l").get()
    eventually(lambda: (news(follower), follower.held)[1])
    held.release()


@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        ("a*/l", [("a1", "l"), ("a2", "l")]),
        ("a*", [("", "a*"), ("a1", None), ("a2", None)]),
        ("[b]", [("", "[b]"), ("b", None)]),
        ("a1/*.lock", [("a1", "*.lock")]),
        ("**", [("", None), ("a1", None), ("a2", None), ("b", None), ("b/c", None)]),
        ("b/**/*.lock", [("b", "*.lock"), ("b/c", "*.lock")]),
    ],
)
def test_a_pattern_is_expanded(disk: Path, place: str, wanted: list[tuple[str, str | None]]) -> None:
    for name in ("a1", "a2", "b/c"):
        (disk / name).mkdir(parents=True)
    found = watch._expanded(f"{disk}/{place}")
    assert found == [(os.path.normpath(disk / directory), name) for directory, name in wanted]


def test_a_pattern_of_no_directory_is_an_error(disk: Path) -> None:
    with pytest.raises(FileNotFoundError):
        watch._expanded(f"{disk}/q*/l")


def test_a_pattern_includes_files_that_are_made_later() -> None:
    places = WatchScope()
    places.add("/d", "*.lock", polled=False, pattern=True)
    places.add("/d", "other", polled=False)
    names = ("a.lock", "a", "other", "other.lock", "x\n.lock", "other.3.lock")
    assert [places.wanted("/d", name) for name in names] == [True, False, True, True, True, True]
    assert not places.wanted("/e", "a.lock")


# -- a screen ----------------------------------------------------------------------------------------------------------

HOSTILE = [
    "\x1b[2J\x1b]0;owned\x07",
    "\u202egpj\u2066",
    "日本語" * 99,
    "e\u0301" * 99,
    "x" * 10_000,
    "a\nb\rc",
    "\udc80",
    "'\"`",
]


@pytest.mark.parametrize("size", [(20, 5), (1, 1), (9, 2), (40, 3), (80, 24), (200, 60), (500, 6)])
@pytest.mark.parametrize("helping", [False, True])
def test_a_picture_fits_the_screen(size: tuple[int, int], helping: bool) -> None:
    rows = [row(f"{text[:200]}/{n}", n, n, tag=text, command=text, host=text) for n, text in enumerate(HOSTILE * 9)]
    view = View("wait")
    view.helping = helping
    for count in (0, 1, len(rows)):
        scene = Scene(rows[:count], places=["/" + "long/" * 99], rate=12.5, missed=3)
        found = view.frame(scene, NOW, size, colours=True)
        assert len(found) == size[1]
        bare = [STYLE.sub("", line) for line in found]
        assert all(character.isprintable() for line in bare for character in line)
        assert all(width_of(line) <= size[0] for line in bare) or size[0] < 9


def test_the_beginning_of_a_path_is_cut_off_first() -> None:
    found = table([row("a/very/long/way/to/the.lock", 1)], NOW, Screen(20))
    assert found[1].split() == ["1s", "…to/the.lock"]
    assert "r/a/very/long/way/to/the.lock" in table([row("a/very/long/way/to/the.lock", 1)], NOW, Screen())[1]


def test_columns_stay_in_place_when_a_row_goes() -> None:
    view = View("path")
    rows = [
        row("a", 1, pid=1, tag="short", user="me"),
        row("b" * 30, 1, pid=1234567, tag="much longer", user="everybody"),
    ]
    both = view.frame(Scene(rows), NOW, (120, 24), colours=False)
    one = view.frame(Scene(rows[:1]), NOW + 1, (120, 24), colours=False)
    assert one[2] == both[2]
    later = view.frame(Scene(rows[:1]), NOW + 20, (120, 24), colours=False)
    assert later[2] != both[2]


def test_rows_beyond_the_screen_can_be_reached() -> None:
    view, scene = View("path"), Scene([row(f"{number:03}", 1) for number in range(100)])

    view.frame(scene, NOW, (80, 14), colours=False)

    def after(*keys: str) -> str:
        for key in keys:
            view.press(key)
        frame = view.frame(scene, NOW, (80, 14), colours=False)
        found = [line.split("/r/")[1][:3] for line in frame[3:13]]
        first = int(found[0])
        assert found == [f"{number:03}" for number in range(first, first + 10)]
        assert frame[-1].startswith(f"{first + 1}-{first + 10} of 100")
        return found[0]

    assert after() == "000"
    assert after("up") == "000"
    assert after("down", "j", "j", "k") == "002"
    assert after("page down") == "012"
    assert after("end", "down", "page down") == "090"
    assert after("page up") == "080"
    assert after("g") == "000"
    assert after("x", "escape", "\x00") == "000"


def test_only_the_visible_ones_of_ten_thousand_locks_are_put_into_words(monkeypatch: pytest.MonkeyPatch) -> None:
    worded: list[str] = []

    def count(one: Row, now: float) -> object:
        worded.append(one.path)
        return cells_of(one, now)

    monkeypatch.setattr(view_module, "cells_of", count)
    rows = ordered([row(f"{number:05}", number, number) for number in range(10_000)], "wait")
    frame = View("wait").frame(Scene(rows), NOW, (100, 24), colours=True)
    assert STYLE.sub("", frame[0]).startswith("10000 held, 10000 waiting")
    assert worded == [f"/r/{number:05}" for number in range(9999, 9979, -1)]


def test_every_key_does_what_its_help_says() -> None:
    view = View("wait")
    view.press("?")
    assert view.helping
    view.press("s")
    assert (view.helping, view.order) == (False, "wait")
    for order in [*[*ORDERS][1:], "wait"]:
        view.press("s")
        assert view.order == order
    view.press("r")
    assert view.backwards


def test_a_small_screen_shows_a_lock() -> None:
    scene = Scene([row("a", 1)])
    for height in (3, 4, 5, 6, 7, 8):
        frame = View("wait").frame(scene, NOW, (20, height), colours=False)
        assert frame[0].startswith("1 held")
        assert any("/r/a" in line for line in frame)


def test_unusual_conditions_are_in_the_header() -> None:
    first, second = header(Scene([], ["/a", "/b\x1b"], polled=True, rate=0.25, missed=4), "held", backwards=True)
    assert first == "0 held, 0 waiting, 0 stale; 0.2 events/s; 4 holds too short to be seen; by longest hold, backwards"
    assert second == "no events here, so polled 4 times a second: in /a, /b\\x1b"
    assert header(Scene([], gone=["/a"]), "wait", backwards=False)[1] == "missing, checked again every 10 s: /a"
    frame = View("wait").frame(Scene([]), NOW, (80, 24), colours=False)
    assert "nobody holds or waits for a lock here" in frame


# -- the terminal ------------------------------------------------------------------------------------------------------


class Pty:
    """A terminal, and a full screen on it."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        self.full = FullScreen(self.slave)

    def says(self) -> bytes:
        """The text written since the last call, up to a mark made now."""
        os.write(self.slave, b"\0")
        found = b""
        while not found.endswith(b"\0"):
            found += os.read(self.master, 4096)
        return found[:-1]

    def close(self) -> None:
        self.full.close()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def pty() -> Iterator[Pty]:
    one = Pty()
    yield one
    one.close()


def test_only_changed_lines_are_written(pty: Pty) -> None:
    pty.full.draw(["one", "two"])
    pty.says()
    pty.full.draw(["one", "TWO"])
    assert pty.says() == b"\x1b[2;1HTWO\x1b[K"
    pty.full.draw(["one", "TWO"])
    assert pty.full._rest == b""
    assert pty.says() == b""


def test_a_line_as_wide_as_the_screen_keeps_its_last_character(pty: Pty) -> None:
    """Erasing the rest of the line would erase the last column while the cursor is in it."""
    pty.full.draw(["x" * 79, "x" * 80])
    assert pty.says() == b"\x1b[0m\x1b[2J\x1b[1;1H" + b"x" * 79 + b"\x1b[K\x1b[2;1H" + b"x" * 80


def test_a_blocked_terminal_does_not_hang_the_screen(pty: Pty) -> None:
    """Unwritten text is tried again, at growing intervals; the terminal can still be left."""
    pty.full.enter()
    for number in range(100):
        pty.full.draw([f"{number}" + "x" * 70] * 24)
    assert pty.full.retry is not None
    waits = [pty.full.retry]
    for _ in range(3):
        pty.full.draw(["y"])
        waits.append(pty.full.retry)
    assert waits == sorted(waits)
    assert waits[-1] == 1.0


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["up", "down", "page up", "page down", "home", "end"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[1;5Cs", ["\x1b[1;5C", "s"]),
        (b"\xff\n", ["\ufffd", "\n"]),
    ],
)
def test_every_key_is_recognised(pty: Pty, typed: bytes, wanted: list[str]) -> None:
    pty.full.enter()
    assert pty.full.keys() == []
    os.write(pty.master, typed)
    found: list[str] = []
    eventually(lambda: found.extend(pty.full.keys() or []) or found)
    assert found == wanted
