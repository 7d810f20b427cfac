"""`holdfast top`: the screen on a terminal, the state in which the terminal is left, and the output in a pipe."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import struct
import termios
import time
from pathlib import Path

import pyte
import pytest

from cli.support import HOLDFAST, World, dormant, eventually, state
from cli.test_errors import HOSTILE, without_privileges
from process.support import quiet, switches

NOW = int(time.time())
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


class Seen:
    """The screen of a command on a terminal of this size."""

    def __init__(self, world: World, *words: object, size: tuple[int, int] = (100, 16), **env: str) -> None:
        self.started = world.terminal(words, env={"TERM": "xterm", **env}, size=size)
        self.screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""

    def resize(self, size: tuple[int, int]) -> None:
        self.screen.resize(size[1], size[0])
        fcntl.ioctl(self.started.source, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))

    def now(self) -> str:
        """The screen, after all output so far."""
        while select.select([self.started.source], [], [], 0)[0]:
            try:
                data = os.read(self.started.source, 65536)
            except OSError:  # no process has the terminal open any more
                break
            self.raw += data
            self._stream.feed(data)
        return "\n".join(line.rstrip() for line in self.screen.display)

    def shows(self, *wanted: str) -> str:
        """The screen, once it has all of these."""
        found = ""

        def there() -> bool:
            nonlocal found
            found = self.now()
            return all(text in found for text in wanted)

        try:
            eventually(there)
        except AssertionError:
            raise AssertionError(f"{wanted} is not on the screen, but\n{found}") from None
        return found

    def type(self, keys: bytes) -> None:
        self.started.type(keys)

    def is_left(self) -> bool:
        """Whether the terminal is as it was: its modes, screen, cursor and wrapping."""
        self.now()
        assert self.raw.count(ENTER) == self.raw.count(LEAVE) > 0
        end = self.raw[self.raw.rindex(ENTER) :]
        assert all(sequence in end for sequence in (b"\x1b[?25h", b"\x1b[?7h", b"\x1b[0m"))
        assert termios.tcgetattr(self.started.source) == self.started.modes
        return True


def top(world: World, *words: object, size: tuple[int, int] = (100, 16), **env: str) -> Seen:
    return Seen(world, *HOLDFAST, "top", *words, size=size, **env)


@pytest.fixture
def seen(world: World, path: Path, held: int) -> Seen:
    """A live view of a directory with one held lock."""
    one = top(world, world.directory)
    one.shows("1 held", path.name, "q quit")
    return one


# -- the screen --------------------------------------------------------------------------------------------------------


def test_a_holder_is_seen(seen: Seen, path: Path, held: int) -> None:
    found = seen.shows(str(held)).splitlines()
    assert found[0].startswith("1 held, 0 waiting, 0 stale; 0 events/s; by longest wait")
    assert found[1].startswith("in /")
    assert found[2].split()[:5] == ["STATE", "PID", "USER", "HELD", "WAITS"]
    assert found[3].split()[:2] == ["held", str(held)]
    assert found[3].split()[6] == path.name


def test_acquisitions_waits_and_deaths_are_shown(world: World, seen: Seen, path: Path, held: int) -> None:
    waiter = world.hold(path)
    seen.shows("1 held, 1 waiting", str(waiter.pid))
    other = world.hold(world.directory / "other", "-t", "why")
    seen.shows("2 held, 1 waiting", f"{other.pid}", "why")
    other.hear("held")  # earlier there is no command, and a killed `run` leaves a dead lock
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    seen.shows("2 held, 1 waiting")  # its command goes on, and keeps the lock
    assert other.process.stdin is not None
    other.process.stdin.close()
    seen.shows("1 held, 1 waiting, 1 stale", "dead")
    os.kill(held, signal.SIGTERM)
    waiter.hear("held")
    eventually(lambda: f"held   {waiter.pid}" in seen.now())
    seen.shows("1 held, 0 waiting, 1 stale")


def test_the_ages_shown_grow_by_the_second(seen: Seen) -> None:
    """Apart from the test's own requests, it wakes no more than once a second."""

    def age() -> int:
        return int(seen.now().splitlines()[3].split()[3].removesuffix("s"))

    began = age()
    eventually(lambda: age() > began)

    def sleeps() -> bool:
        before, begun = switches(seen.started.pid), age()
        eventually(lambda: age() >= begun + 2)
        return switches(seen.started.pid) - before <= age() - begun + 2

    eventually(sleeps)  # on a busy machine, not at once


def test_an_empty_directory_is_shown_as_such(world: World) -> None:
    seen = top(world, world.directory)
    seen.shows("0 held, 0 waiting, 0 stale", "nobody holds or waits for a lock here", "q quit")
    lock = world.hold(world.directory / "l")
    seen.shows("1 held", str(lock.pid))


@pytest.mark.parametrize("size", [(20, 5), (40, 8), (80, 24), (250, 50)])
def test_a_screen_of_another_size_is_filled_and_not_overrun(
    world: World, path: Path, held: int, size: tuple[int, int]
) -> None:
    seen = top(world, world.directory, size=size)
    found = seen.shows("1 held", path.name)
    assert "HELD" in found
    seen.resize((100, 16))
    seen.shows("q quit", "STATE", str(held))
    seen.resize(size)
    eventually(lambda: seen.now() != found or ("STATE" in found))
    seen.shows("1 held", path.name)
    assert len(seen.now().splitlines()) <= size[1]


def test_no_hostile_name_or_tag_reaches_the_terminal(world: World, tmp_path: Path) -> None:
    for text in HOSTILE.values():
        name = text.replace(b"/", b"").replace(b"\0", b"")[:200]
        record = b"pid=%d\ntimestamp=%d\ntag=" % (os.getpid(), NOW + 9) + text.replace(b"\n", b" ") + b"\n"
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
            file.write(record.decode("utf-8", "replace").encode())
    many = len(os.listdir(tmp_path))
    seen = top(world, world.directory, NO_COLOR="1")
    seen.shows(f"{many} held, 0 waiting", "PATH")
    seen.type(b"q")
    assert seen.started.wait() == 0
    assert seen.is_left()
    left = seen.raw.decode()
    for sequence in ("?1049h", "?25l", "?7l", "?25h", "?7h", "?1049l", "0m", "2J", "K"):
        left = left.replace(f"\x1b[{sequence}", "")
    for number in range(1, 17):
        left = left.replace(f"\x1b[{number};1H", "")
    assert all(character.isprintable() or character in "\r\n" for character in left)
    once = world.do("top", "--once", world.directory).stdout
    assert len(once.splitlines()) == many + 2
    assert all(character.isprintable() for line in once.splitlines() for character in line)


def test_more_locks_than_fit_can_be_reached(world: World, tmp_path: Path) -> None:
    record = f"pid={os.getpid()}\ntimestamp={NOW}\ntag=job\n"
    for number in range(500):
        (tmp_path / f"l{number:03d}").write_text(record)
    seen = top(world, "--sort", "path", world.directory, size=(100, 20))
    seen.shows("500 held", "l000", "1-16 of 500")
    seen.type(b"G")
    seen.shows("l499", "485-500 of 500")
    seen.type(b"r")
    assert "l499" in seen.shows("1-16 of 500", "backwards").splitlines()[3]
    (tmp_path / "new").write_text(record)
    seen.shows("501 held")
    seen.type(b"q")
    assert seen.started.wait() == 0


def test_keys_change_the_order(seen: Seen, path: Path) -> None:
    seen.type(b"?")
    seen.shows("any key goes back")
    seen.type(b"q")
    seen.shows(path.name)
    seen.type(b"ss")
    seen.shows("by most waiters")
    seen.type(b"r")
    seen.shows("by most waiters, backwards")


def test_foreign_output_on_the_screen_is_drawn_over(seen: Seen, path: Path) -> None:
    seen._stream.feed(b"\x1b[1;1Hnoise from elsewhere")
    seen.type(b"\x0c")
    eventually(lambda: "noise" not in seen.now())
    seen.shows("1 held", path.name)


def test_colours_are_shown_only_where_they_are_wanted(world: World, path: Path, held: int) -> None:
    coloured, plain = top(world), top(world, NO_COLOR="1")
    for one in (coloured, plain):
        one.shows("1 held")
    assert b"\x1b[32m" in coloured.raw
    assert b"\x1b[32m" not in plain.raw
    assert b"\x1b[1m" not in plain.raw


def test_a_directory_that_vanishes_does_not_end_top(world: World) -> None:
    place = world.directory / "d"
    place.mkdir()
    seen = top(world, place)
    seen.shows("nobody holds")
    place.rmdir()
    seen.shows("missing, checked again every 10 s")
    seen.type(b"q")
    assert seen.started.wait() == 0


@pytest.mark.parametrize("environment", [{"HOLDFAST_WITHOUT": "events"}, {"HOLDFAST_OS": "generic"}])
def test_without_events_changes_are_seen(world: World, path: Path, environment: dict[str, str]) -> None:
    seen = top(world, world.directory, **environment)
    seen.shows("polled 4 times a second")
    world.hold(path, env=environment).hear("held")
    seen.shows("1 held", path.name)


def test_record_writes_what_top_sees(world: World, path: Path, held: int) -> None:
    file = world.directory / "events.jsonl"
    seen = top(world, "--record", file)
    seen.shows("1 held")
    os.kill(held, signal.SIGTERM)
    seen.shows("0 held")
    eventually(lambda: file.read_text().count("\n") == 2, what="the record")
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["kind"], one["pid"]) for one in found] == [("held", held), ("released", held)]


# -- ends of top -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "status"), [(b"q", 0), (b"Q", 0), (b"\x04", 0), (b"\x03", -signal.SIGINT)])
def test_a_key_that_ends_it_restores_the_terminal(seen: Seen, key: bytes, status: int) -> None:
    seen.type(key)
    assert seen.started.wait() == status
    assert seen.is_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_ends_it_restores_the_terminal(seen: Seen, number: int) -> None:
    seen.started.signal(number)
    assert seen.started.wait() == -number
    assert seen.is_left()


def test_signals_that_come_together_restore_the_terminal(seen: Seen) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        seen.started.signal(number)
    assert seen.started.wait() in (-signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT)
    assert seen.is_left()


def test_a_signal_that_was_ignored_does_not_end_it(world: World, path: Path, held: int) -> None:
    seen = Seen(world, "sh", "-c", 'trap "" HUP; exec "$@"', "sh", *HOLDFAST, "top")
    seen.shows("1 held")
    seen.started.signal(signal.SIGHUP)
    seen.type(b"s")
    seen.shows("by longest hold")


def test_an_exception_restores_the_terminal(world: World, path: Path, held: int) -> None:
    """Such as an error in writing the recording."""
    seen = Seen(world, "sh", "-c", 'ulimit -f 8; trap "" XFSZ; exec "$@"', "sh", *HOLDFAST, "top", "--record", "r")
    seen.shows("1 held")
    (world.directory / "r").write_bytes(b"\n" * 8192)
    world.do("run", world.directory / "other", "--", "sleep", "0.2")
    assert seen.started.wait() == 3
    assert seen.is_left()
    assert "File too large" in seen.raw[seen.raw.rindex(LEAVE) :].decode()


def test_a_closed_terminal_ends_top(world: World, seen: Seen) -> None:
    world.hang_up(seen.started)
    assert seen.started.wait() == -signal.SIGHUP


def test_top_ends_although_its_terminal_is_not_read(world: World, path: Path, held: int) -> None:
    seen = top(world, world.directory, size=(200, 60))
    seen.shows("1 held")
    for _ in range(200):
        seen.type(b"?\x0c")
        seen.type(b"?\x0c")
    seen.started.signal(signal.SIGTERM)
    assert seen.started.wait() == -signal.SIGTERM
    assert termios.tcgetattr(seen.started.source) == seen.started.modes


def test_a_terminal_that_was_paused_is_restored(seen: Seen) -> None:
    """By Ctrl-S. Its output is resumed, as the restoring sequences would be lost otherwise."""
    seen.type(b"\x13")
    seen.type(b"q")
    assert seen.started.wait() == 0
    assert seen.is_left()


def test_ctrl_z_restores_the_terminal(world: World, path: Path, held: int) -> None:
    """The shell gets its terminal back, and its output there is gone when the view returns."""
    script = 'set -m; "$@"; echo stopped; read go; fg >/dev/null; echo done $?'
    seen = Seen(world, "sh", "-c", script, "sh", *HOLDFAST, "top")
    seen.shows("1 held")
    seen.type(b"\x1a")
    seen.shows("stopped")
    assert seen.is_left()
    seen.type(b"\n")
    eventually(lambda: seen.now() and seen.raw.count(ENTER) == 2)
    seen.shows("1 held", path.name, "q quit")
    assert "stopped" not in seen.now()
    seen.type(b"q")
    seen.shows("done 0")
    assert seen.is_left()


def test_the_screen_is_drawn_again_after_a_sigstop(seen: Seen, path: Path) -> None:
    seen.started.signal(signal.SIGSTOP)
    eventually(lambda: state(seen.started.pid) == "T")
    modes = termios.tcgetattr(seen.started.source)
    termios.tcsetattr(seen.started.source, termios.TCSANOW, seen.started.modes)
    seen.now()
    seen._stream.feed(b"\x1b[2J")
    seen.started.signal(signal.SIGCONT)
    seen.shows("1 held", path.name)
    assert termios.tcgetattr(seen.started.source) == modes


# -- without a terminal ------------------------------------------------------------------------------------------------


def test_a_pipe_gets_a_table(world: World, path: Path, held: int) -> None:
    for words in ([], ["--once"]):
        done = world.do("top", *words, env={"TERM": "xterm"})
        assert (done.returncode, done.stderr) == (0, "")
        first, _, row = done.stdout.splitlines()
        assert first == "1 held, 0 waiting, 0 stale"
        assert row.split()[:3] == ["held", str(held), row.split()[2]]
        assert "\x1b" not in done.stdout
    (world.directory / "empty").mkdir()
    done = world.do("top", "empty")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 held, 0 waiting, 0 stale\n", "")


def test_once_on_a_terminal_leaves_the_screen(world: World, path: Path, held: int) -> None:
    seen = top(world, "--once")
    assert seen.started.wait() == 0
    assert path.name in seen.now()
    assert b"\x1b[?" not in seen.raw


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_be_drawn_on_gets_a_table(world: World, path: Path, held: int, term: str) -> None:
    seen = top(world, TERM=term)
    assert seen.started.wait() == 0
    assert "cannot be drawn on" in seen.now()
    assert path.name in seen.now()
    assert b"\x1b" not in seen.raw


def test_json_output_is_that_of_ls(world: World, path: Path, held: int) -> None:
    (world.directory / "free").write_bytes(b"protocol=flock\npid=1\ntimestamp=1\n")
    done = world.do("top", "-j")
    (one,) = map(json.loads, done.stdout.splitlines())
    (listed,) = (json.loads(line) for line in world.do("ls", "-j", path).stdout.splitlines())
    for changing in ("age", "record_age"):
        del one[changing], listed[changing]
    assert one == listed
    assert world.do("top", "--once", "--json", "*.nothing").stdout == ""


def test_a_snapshot_has_the_order_asked_for(world: World) -> None:
    for number, age in enumerate((10, 30, 20)):
        (world.directory / f"l{number}").write_text(f"pid={os.getpid()}\ntimestamp={NOW + 100 - age}\n")

    def names(*words: str) -> list[str]:
        done = world.do("top", *words, "-j")
        return [os.path.basename(json.loads(line)["path"]) for line in done.stdout.splitlines()]

    assert names("--sort", "held") == ["l1", "l2", "l0"]
    assert names("--sort", "path", "-r") == ["l2", "l1", "l0"]
    assert names("--sort", "path", "l[12]") == ["l1", "l2"]


def test_an_unwatchable_path_is_an_error(world: World) -> None:
    (world.directory / "closed").mkdir(mode=0o300)
    for place, message in (("nowhere/l", "No such file"), ("q*/l", "no directory fits"), ("closed", "denied")):
        for words in ([], ["--json"]):
            done = world.do("top", *words, place, preexec_fn=without_privileges)
            assert done.returncode == 3
            assert message in done.stderr
            if words:
                assert message in json.loads(done.stdout)["why"]
            else:
                assert done.stdout == ""
    seen = top(world, "nowhere/l")
    assert seen.started.wait() == 3
    assert ENTER not in seen.raw
    (world.directory / "closed").chmod(0o700)  # so that any user who runs the tests can remove it


@pytest.mark.parametrize(
    "words",
    [["--sort", "colour"], ["--sort"], ["--no-such"], ["--once", "--record", "f"], ["--record", "f", "-j"]],
    ids=" ".join,
)
def test_a_mistake_in_the_call_is_reported_with_status_2(world: World, words: list[str]) -> None:
    done = world.do("top", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: holdfast top" in done.stderr
    assert not (world.directory / "f").exists()


def test_a_record_without_a_terminal_is_refused(world: World) -> None:
    done = world.do("top", "--record", "f")
    assert (done.returncode, done.stdout) == (2, "")
    assert "watch --record" in done.stderr


def test_no_waiter_is_woken(world: World, path: Path, held: int) -> None:
    waiter = world.start([*HOLDFAST, "run", "-q", path, "--", "true"])  # -q: it does not wake to report that it waits
    eventually(lambda: [*world.directory.glob(".holdfast-*")] and dormant(waiter.pid) and quiet(waiter.pid))
    seen = top(world, world.directory)
    seen.shows("1 held, 1 waiting")
    before = switches(waiter.pid)
    other = world.hold(world.directory / "other")
    seen.shows("2 held", str(other.pid))
    seen.type(b"\x0c")
    assert switches(waiter.pid) == before
