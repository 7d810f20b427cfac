"""`holdfast sema`: the answers that scripts written for `sema` get, state by state (docs/sema.md)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cli.dropin import LIVE, LONG, NOW, OLD, content_of, dead_pid, fifo, link_to, no_lock_file, ran, record, unix_socket
from cli.support import HOLDFAST, World, dormant, ended, eventually
from holdfast import Lock, LockLost
from holdfast._platform import environment
from holdfast.cli.sema import sema
from unit.elsewhere import NOBODY, elsewhere, needs_root

Within = Callable[[float], AbstractContextManager[None]]
ANY = object()
COMMANDS = ("try", "acquire", "release", "status", "wait")

# -- every state and every command -------------------------------------------------------------------------------------

FRESH = record(LIVE, NOW, "npm build")
STATES: dict[str, tuple[str, bytes | Callable[[Path], object] | None]] = {
    # name: (path as it is typed, content of the path)
    "free": ("l", None),
    "fresh": ("l", FRESH),
    "fresh, no tag": ("l", record(LIVE, NOW)),
    "fresh, empty tag": ("l", record(LIVE, NOW, "")),
    "fresh, dead pid": ("l", record("{dead}", NOW, "t")),
    "pid 0": ("l", record(0, NOW)),
    "pid of no kernel": ("l", record(2**32 - 1, NOW)),
    "from the future": ("l", record(LIVE, NOW + 10**6)),
    "old": ("l", record(LIVE, OLD, "t")),
    "old, dead pid": ("l", record("{dead}", OLD, "t")),
    "old, blanks around =": ("l", record(LIVE, OLD).replace(b"=", b" = ")),
    "old, a byte order mark": ("l", b"\xef\xbb\xbf" + record(LIVE, OLD)),
    "empty": ("l", b""),
    "garbage": ("l", b"\x7fELF\0\1"),
    "no pid": ("l", f"timestamp={OLD}\n".encode()),
    "negative pid": ("l", record(-1, OLD)),
    "not utf-8": ("l", record(LIVE, OLD) + b"tag=\xff\n"),
    "another protocol's": ("l", b'{"createdAt": "2020-01-01T00:00:00Z"}\n'),
    "directory": ("l", lambda path: path.mkdir()),
    "FIFO": ("l", fifo),
    "socket": ("l", unix_socket),
    "link to a fresh lock": ("l", link_to("target", FRESH)),
    "link to an old lock": ("l", link_to("target", record(LIVE, OLD))),
    "dangling link": ("l", link_to("target")),
    "link to itself": ("l", link_to("l")),
    "no such directory": ("nodir/l", None),
    "file for a directory": ("l/l", b""),
    "empty path": ("", None),
    "slash at the end": ("l/", None),
    "too long": (LONG, None),
    "through ..": ("d/../l", lambda path: (path.parent / "d").mkdir()),
    "two dots in the name": ("l..lock", None),
    "blanks": ("   ", None),
    "dash": ("-l.lock", None),
    "250 bytes": ("é" * 125, None),
}

HELD = "Lock already held\n"
BY_LIVE = f"{HELD}  Holder PID: {LIVE}\n"
TIMEOUT = "Timeout waiting for lock\n"
BUSY = "Timeout waiting for lock to be released\n"
LOCKED = '{{"locked":true,"pid":null,"timestamp":null,"tag":null}}\n'
ENOENT = "Error: IO error: No such file or directory (os error 2)\n"
ENOTDIR = "Error: IO error: Not a directory (os error 20)\n"
EISDIR = "Error: IO error: Is a directory (os error 21)\n"
ENAMETOOLONG = "Error: IO error: File name too long (os error 36)\n"
EMPTY = "Error: Invalid path: path cannot be empty\n"
NODIR = "Error: Invalid path: parent directory does not exist: nodir\n"


def status(pid: object, timestamp: object, tag: str | None, running: str) -> tuple[int, str, str]:
    tagged = "" if tag is None else f"  Tag: {tag}\n"
    head = "Lock status: LOCKED\n  Path: {path}\n"
    return 1, f"{head}  PID: {pid}\n  Timestamp: {timestamp}\n{tagged}  Process running: {running}\n", ""


def status_json(pid: object, timestamp: object, tag: str | None) -> tuple[int, str, str]:
    return 1, f'{{{{"locked":true,"pid":{pid},"timestamp":{timestamp},"tag":{json.dumps(tag)}}}}}\n', ""


ACQUIRED = (0, "Lock acquired: {path}\n", "")
RELEASED = (0, "Lock released: {path}\n", "")
FREE = (0, "Lock status: FREE\n  Path: {path}\n", "")
IS_FREE = (0, "Lock is free: {path}\n", "")
OPAQUE = (1, "Lock status: LOCKED\n  Path: {path}\n", "")
NOT_YET, WAITED = (1, "", TIMEOUT), (1, "", BUSY)


def odd(what: str) -> list[tuple[str, tuple[int, str, str]]]:
    """The calls and answers for a path that cannot be a lock file."""
    why = no_lock_file(what)
    refused = (3, "", f"Error: Invalid path: {why}\n")
    return [
        ("try", (1, "", f"{HELD}  {why}\n")),
        ("try --json", (1, '{{"locked":true,"pid":0,"since":0}}\n', "")),
        ("try -q", (1, "", "")),
        ("acquire --timeout 5", refused),
        ("acquire", refused),
        ("status", OPAQUE),
        ("status --json", (1, LOCKED, "")),
    ]


def usual(pid: int | str, timestamp: int, tag: str | None, running: str) -> list[tuple[str, tuple[int, str, str]]]:
    """The calls and answers for a lock that is held by the letter of the protocol."""
    return [
        ("try", (1, "", f"{HELD}  Holder PID: {pid}\n")),
        ("try --json", (1, f'{{{{"locked":true,"pid":{pid},"since":{timestamp}}}}}\n', "")),
        ("try -q", (1, "", "")),
        ("try --quiet --json", (1, f'{{{{"locked":true,"pid":{pid},"since":{timestamp}}}}}\n', "")),
        ("acquire --timeout 0", NOT_YET),
        ("acquire --timeout 0 --json", NOT_YET),
        ("acquire --timeout 0 -q", (1, "", "")),
        ("release", RELEASED),
        ("release -q", (0, "", "")),
        ("status", status(pid, timestamp, tag, running)),
        ("status -q", status(pid, timestamp, tag, running)),
        ("status --json", status_json(pid, timestamp, tag)),
        ("wait --timeout 0", WAITED),
        ("wait --timeout 0 -q", (1, "", "")),
    ]


UNUSABLE: list[tuple[str, tuple[int, str, str]]] = [
    ("try", (1, "", HELD)),
    ("try --json", (1, '{{"locked":true,"pid":0,"since":0}}\n', "")),
    ("acquire --timeout 0", NOT_YET),
    ("acquire --timeout 0 --stale 1", NOT_YET),
    ("release", RELEASED),
    ("status", OPAQUE),
    ("status --json", (1, LOCKED, "")),
    ("wait --timeout 0", WAITED),
]
NOTHING: list[tuple[str, tuple[int, str, str]]] = [
    ("try", ACQUIRED),
    ("try --json", ACQUIRED),
    ("try -q", (0, "", "")),
    ("acquire", ACQUIRED),
    ("acquire --json --timeout 0", ACQUIRED),
    ("release", RELEASED),
    ("release -q", (0, "", "")),
    ("status", FREE),
    ("status -q", FREE),
    ("status --json", (0, '{{"locked":false}}\n', "")),
    ("wait", IS_FREE),
    ("wait -q", (0, "", "")),
]
OLD_ONE: list[tuple[str, tuple[int, str, str]]] = [
    ("try", ACQUIRED),
    ("acquire", ACQUIRED),
    ("try --stale 3990", ACQUIRED),
    ("try --stale 50000", (1, "", ANY)),
    ("try --stale 0", (1, "", ANY)),
    ("acquire --stale 0 --timeout 0", NOT_YET),
    ("release", RELEASED),
    ("wait --timeout 0", WAITED),
    ("wait --timeout 0 --stale 1", WAITED),
]


def failing(error: str) -> list[tuple[str, tuple[int, str, str]]]:
    return [(command, (3, "", error)) for command in COMMANDS]


LINK = [*odd("a symbolic link"), ("release", RELEASED)]
STAYS = [("wait --timeout 0", WAITED), ("wait --timeout 0 -q", (1, "", ""))]
ROWS: dict[str, list[tuple[str, tuple[int, str, str]]]] = {
    "free": NOTHING,
    "through ..": NOTHING,
    "two dots in the name": NOTHING,
    "blanks": NOTHING,
    "dash": NOTHING,
    "250 bytes": NOTHING,
    "fresh": usual(LIVE, NOW, "npm build", "yes"),
    "fresh, no tag": [("status", status(LIVE, NOW, None, "yes")), ("status --json", status_json(LIVE, NOW, None))],
    "fresh, empty tag": [("status", status(LIVE, NOW, "", "yes")), ("status --json", status_json(LIVE, NOW, ""))],
    "fresh, dead pid": usual("{dead}", NOW, "t", "no"),
    "pid 0": usual(0, NOW, None, "no"),
    "pid of no kernel": usual(2**32 - 1, NOW, None, "no"),
    "from the future": [*usual(LIVE, NOW + 10**6, None, "yes"), ("try --stale 1", (1, "", BY_LIVE))],
    "old": OLD_ONE,
    **dict.fromkeys(("old, blanks around =", "old, a byte order mark"), OLD_ONE),
    "old, dead pid": [*OLD_ONE, ("status", status("{dead}", OLD, "t", "no"))],
    **dict.fromkeys(("empty", "garbage", "no pid", "negative pid", "not utf-8"), UNUSABLE),
    "another protocol's": [
        ("try", (1, "", ANY)),
        ("acquire", (3, "", ANY)),
        ("release", RELEASED),
        ("status", OPAQUE),
        ("wait --timeout 0", (3, "", ANY)),
    ],
    "directory": [*odd("a directory"), ("release", (3, "", EISDIR)), *STAYS],
    "FIFO": [*odd("a FIFO"), ("release", RELEASED), *STAYS],
    "socket": [*odd("a socket"), ("release", RELEASED), *STAYS],
    **{key: [*LINK, *STAYS] for key in ("link to a fresh lock", "link to an old lock")},
    **{key: [*LINK, ("wait", IS_FREE), ("wait -q", (0, "", ""))] for key in ("dangling link", "link to itself")},
    "no such directory": [
        ("try", (3, "", ENOENT)),
        ("acquire", (3, "", ENOENT)),
        *((command, (3, "", NODIR)) for command in ("release", "status", "status --json", "wait")),
    ],
    "file for a directory": [
        ("try", (3, "", ENOTDIR)),
        ("acquire", (3, "", ENOTDIR)),
        ("release", RELEASED),
        ("status", FREE),
        ("wait", IS_FREE),
    ],
    "empty path": [
        ("try", (3, "", ENOENT)),
        ("acquire", (3, "", ENOENT)),
        *((command, (3, "", EMPTY)) for command in ("release", "status", "wait")),
    ],
    "slash at the end": [
        ("try", (3, "", EISDIR)),
        ("acquire", (3, "", EISDIR)),
        ("release", RELEASED),
        ("status", FREE),
        ("wait", IS_FREE),
    ],
    "too long": [
        ("try", (3, "", ENAMETOOLONG)),
        ("acquire", (3, "", ENAMETOOLONG)),
        ("release", RELEASED),
        ("status", FREE),
        ("wait", IS_FREE),
    ],
}
TABLE = [(state, words, wanted) for state, rows in ROWS.items() for words, wanted in rows]
REMOVES_NOTHING = ("status", "wait")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's directory, as the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def arrange(place: Path, state: str, dead: int) -> str:
    """Bring about a state; returns the path as it is typed."""
    typed, there = STATES[state]
    path = place / (typed.partition("/")[0] if typed.startswith("l") else "l")
    if isinstance(there, bytes):
        path.write_bytes(there.replace(b"{dead}", str(dead).encode()))
    elif there is not None:
        there(path)
    return typed


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(("state", "words", "wanted"), TABLE, ids=[f"{state}: {words}" for state, words, _ in TABLE])
def test_a_script_sees_the_answers_of_sema(
    place: Path, within: Within, state: str, words: str, wanted: tuple[int, str, str]
) -> None:
    dead = dead_pid()
    typed = arrange(place, state, dead)
    before = content_of(place)
    command, *more = words.split()
    with within(10.0):
        got = ran(sema, command, typed, *more)
    names = {"path": typed, "place": place, "dead": dead}
    code, out, complaint = wanted
    assert got == (code, out.format(**names), got[2] if complaint is ANY else complaint.format(**names))
    after = content_of(place)
    if code == 0 and command in ("try", "acquire"):
        mine = (place / typed).read_text().rstrip("\n").split("\n")
        assert mine[0] == f"pid={os.getpid()}"
        assert abs(int(mine[1].removeprefix("timestamp=")) - time.time()) < 5
        assert len(mine) == 2  # no marker: no process guards it
        assert (place / typed).stat().st_mode & 0o7777 == 0o644
    elif code == 0 and command == "release" and state in ("fresh", "empty", "FIFO", "dangling link"):
        assert "l" not in after
    elif code != 0 or command in REMOVES_NOTHING:
        assert after == before


def test_a_link_is_neither_followed_nor_its_target_removed(place: Path) -> None:
    link_to("target", FRESH)(place / "l")
    ran(sema, "release", "l")
    assert content_of(place) == {"target": FRESH}


# -- arguments ---------------------------------------------------------------------------------------------------------

USAGE = [
    "",
    "try",
    "cleanup l",
    "--json try l",
    "try --json l",
    "try l l",
    "try l --unknown",
    "try l --timeout=1",
    "try l --tag",
    "try l --timeout",
    "try l --timeout 1.5",
    "acquire l --timeout -1",
    "acquire l --timeout 0x10",
    "acquire l --timeout 18446744073709551616",
    "acquire l --stale 1e3",
    "acquire l --stale ²",
]


@pytest.mark.parametrize("words", USAGE)
def test_a_usage_error_has_status_2_and_shows_the_usage(place: Path, words: str) -> None:
    code, out, complaint = ran(sema, *words.split())
    assert (code, out) == (2, "")
    assert complaint.startswith("Error: ")
    assert "Usage: sema <COMMAND> <LOCK_PATH> [OPTIONS]" in complaint
    assert content_of(place) == {}


@pytest.mark.parametrize("number", ["", " 1", "1 ", "+", "--1"])
def test_a_malformed_number_is_refused(place: Path, number: str) -> None:
    assert ran(sema, "acquire", "l", "--timeout", number)[0] == 2


@pytest.mark.parametrize("number", ["+1", "007", str(2**64 - 1)])
def test_a_number_that_rust_parses_is_accepted(place: Path, number: str) -> None:
    assert ran(sema, "acquire", "l", "--timeout", number, "--stale", number)[0] == 0


@pytest.mark.parametrize("words", ["-h", "--help", "try -h", "try l --tag --help", "nothing l --unknown -h"])
def test_help_is_shown_whatever_else_is_given(place: Path, words: str) -> None:
    code, out, text = ran(sema, *words.split())
    assert (code, out) == (0, "")
    assert text.startswith("Usage: sema <COMMAND> <LOCK_PATH> [OPTIONS]\n")
    assert content_of(place) == {}


def test_the_help_has_the_form_of_sema(place: Path) -> None:
    _, _, text = ran(sema, "--help")
    assert text.startswith("Usage: sema <COMMAND> <LOCK_PATH> [OPTIONS]\n")
    for option in ("--timeout S", "--stale S", "--tag STR", "--json", "-q, --quiet", "-h, --help", "-V, --version"):
        assert f"\n  {option} " in text
    assert "0 = never" in text


def test_a_wait_at_a_directory_lasts_until_the_path_is_free(world: World, path: Path) -> None:
    """The wait looks every 100 ms, and also waits for a lock file that replaces the directory."""
    path.mkdir()
    waiter = world.start([*HOLDFAST, "sema", "wait", path])
    eventually(lambda: dormant(waiter.pid), what="the wait for a directory")
    (path.parent / "new").write_bytes(FRESH)
    path.rmdir()
    (path.parent / "new").rename(path)
    path.unlink()
    waiter.hear(f"Lock is free: {path}")
    assert waiter.wait() == 0


@pytest.mark.parametrize(
    ("instead", "words", "wanted"),
    [
        (lambda path: path.mkdir(), ["--timeout", "0"], (1, "", BUSY)),
        (link_to("nowhere"), [], (0, "Lock is free: l\n", "")),
    ],
    ids=["directory", "dangling link"],
)
def test_a_directory_or_a_dangling_link_that_replaces_a_lock_file_is_not_an_error(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    instead: Callable[[Path], None],
    words: list[str],
    wanted: tuple[int, str, str],
) -> None:
    (place / "l").write_bytes(FRESH)

    def exchanged(lock: Lock, timeout: float | None) -> bool:
        (place / "l").unlink()
        instead(place / "l")
        return wait(lock, timeout)

    wait = Lock.wait
    monkeypatch.setattr(Lock, "wait", exchanged)
    assert ran(sema, "wait", "l", *words) == wanted


@pytest.mark.parametrize("words", ["-V", "--version", "try -V", "try l --tag --version"])
def test_the_version_is_that_of_sema(place: Path, words: str) -> None:
    assert ran(sema, *words.split()) == (0, "file-semaphore 0.1.0\n", "")
    assert content_of(place) == {}


@pytest.mark.parametrize("option", ["--timeout 9", "--stale 9", "--tag t", "--json", "-q", "--quiet"])
@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_without_meaning_is_accepted(place: Path, command: str, option: str) -> None:
    code, _, complaint = ran(sema, command, "l", *option.split())
    assert (code, complaint) == (0, "")


# -- records -----------------------------------------------------------------------------------------------------------

HOSTILE = {
    "escape": "\x1b[2J\x1b]0;owned\x07",
    "quotes": 'x","pid":1,"z":"',
    "tab": "tab\there",
    "lines": "line\nfeed\r",
    "unicode": "\x9b31m \x7f \u202e \u2028",
    "astral": "😀𝄞 grün",
    "long": "x" * 20_000,
}


@pytest.mark.parametrize("tag", HOSTILE.values(), ids=HOSTILE)
def test_no_tag_corrupts_the_record_the_json_or_the_terminal(place: Path, tag: str) -> None:
    assert ran(sema, "try", "l", "--tag", tag)[0] == 0
    text = (place / "l").read_bytes().decode()
    assert text.count("\n") == 3
    assert len(text) < 10_100
    (place / "l").write_bytes(record(7, NOW, tag.replace("\n", " ")))  # as sema itself would have written it
    for words in (["status", "l", "--json"], ["try", "l", "--json"]):
        _, out, _ = ran(sema, *words)
        assert json.loads(out)["pid"] == 7
        assert all(character.isprintable() for character in out.removesuffix("\n"))
    _, out, _ = ran(sema, "status", "l")
    assert all(character.isprintable() for line in out.split("\n") for character in line)
    assert ("grün" in tag) == ("grün" in out)


def test_a_path_does_not_reach_the_terminal_raw(place: Path) -> None:
    code, out, _ = ran(sema, "try", "a\x1b[2J")
    assert (code, out) == (0, "Lock acquired: a\\x1b[2J\n")
    assert "a\x1b[2J" in content_of(place)


def test_a_lock_is_on_disk_when_it_is_acquired(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[object] = []
    monkeypatch.setattr(environment(), "sync", lambda fd: synced.append(os.fstat(fd).st_size > 0))
    monkeypatch.setattr(environment(), "sync_directory", synced.append)
    ran(sema, "try", "l")
    assert (synced[0], synced[-1]) == (True, str(place))


def test_the_age_is_counted_in_whole_seconds(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --stale 10, a lock of 10 s is not stale, and one of 11 s is."""
    (place / "l").write_bytes(record(LIVE, NOW))
    monkeypatch.setattr(environment(), "time", lambda: NOW + 10.9)
    assert ran(sema, "try", "l", "--stale", "10")[0] == 1
    monkeypatch.setattr(environment(), "time", lambda: NOW + 11.0)
    assert ran(sema, "try", "l", "--stale", "10")[0] == 0


def test_a_lock_is_stamped_after_the_wait(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [float(NOW)]
    waits = threading.Event()
    env = environment()
    reach = env.events_reach

    def asked(path: str) -> bool:
        """The last call before a wait."""
        waits.set()
        return reach(path)

    monkeypatch.setattr(env, "time", lambda: clock[0])
    monkeypatch.setattr(env, "events_reach", asked)
    (place / "l").write_bytes(FRESH)
    waiter = threading.Thread(target=sema, args=(["acquire", "l", "-q"],))
    waiter.start()
    assert waits.wait(10)
    clock[0] += 100
    (place / "l").unlink()
    waiter.join(20)
    assert (place / "l").read_bytes() == record(os.getpid(), NOW + 100)


def test_a_lock_left_by_a_finished_command_is_not_taken_over(world: World, place: Path) -> None:
    assert world.do("sema", "try", "l").returncode == 0
    assert Lock(place / "l").try_acquire() is None
    assert Lock(place / "l", stale="protocol").try_acquire() is None
    status = Lock(place / "l").status()
    assert (status.locked, status.liveness.value, status.evidence.proven) == (True, "dead", False)


def test_a_living_holder_keeps_its_lock_whatever_its_age(place: Path) -> None:
    """The guard is respected; by its record alone the lock would be stale."""
    with Lock(place / "l") as hold:
        assert ran(sema, "try", "l", "--stale", "1")[0] == 1
        os.utime(place / "l", (0, 0))
        hold._held.env.write(hold._held.fd, b"1" * 10, (place / "l").read_bytes().index(b"timestamp=") + 10)
        if not hold._held.guarded:
            hold._held.give_back()
            pytest.skip("there are no kernel locks here")
        assert ran(sema, "try", "l", "--stale", "1")[:2] == (1, "")
        assert "yes" in ran(sema, "status", "l")[1]
        (place / "l").unlink()
        with pytest.raises(LockLost):
            hold.release()


# -- another user ------------------------------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize(
    ("mode", "words", "wanted"),
    [
        (0o777, "try", (1, "", HELD)),
        (0o777, "acquire --timeout 0", NOT_YET),
        (0o777, "release", (0, "Lock released: {path}\n", "")),
        (0o777, "status", OPAQUE),
        (0o777, "status --json", (1, LOCKED, "")),
        (0o777, "wait --timeout 0", WAITED),
        (0o1777, "try", (1, "", HELD)),
        (0o1777, "release", (3, "", "Error: IO error: Operation not permitted (os error 1)\n")),
        (0o555, "release", (3, "", "Error: IO error: Permission denied (os error 13)\n")),
        (0o600, "try", (3, "", "Error: IO error: Permission denied (os error 13)\n")),
        (0o600, "release", (3, "", "Error: IO error: Permission denied (os error 13)\n")),
        (0o600, "status", (3, "", "Error: IO error: Permission denied (os error 13)\n")),
        (0o600, "wait", (3, "", "Error: IO error: Permission denied (os error 13)\n")),
    ],
)
def test_a_lock_that_may_not_be_read_gets_the_answers_of_sema(
    disk: Path, mode: int, words: str, wanted: tuple[int, str, str]
) -> None:
    """Files made by semats look like this to other users."""
    inner = disk / "inner"
    inner.mkdir()
    path = inner / "l"
    path.write_bytes(record(LIVE, OLD))
    path.chmod(0o600)
    inner.chmod(mode)
    command, *more = words.split()
    code, out, complaint = elsewhere(lambda: ran(sema, command, str(path), *more), user=NOBODY)
    assert (code, out, complaint) == (wanted[0], *(text.format(path=path) for text in wanted[1:]))
    assert path.exists() == (code != 0)


@needs_root
@pytest.mark.parametrize(
    ("mode", "there", "command", "code"),
    [
        (0o555, "free", "try", 3),
        (0o555, "fresh", "try", 1),
        (0o555, "old", "try", 1),
        (0o555, "fresh", "release", 3),
        (0o555, "free", "release", 0),
        (0o1777, "old", "try", 1),
        (0o1777, "old", "release", 3),
        (0o777, "old", "try", 0),
    ],
)
def test_a_directory_that_is_closed_to_others_is_an_error(
    disk: Path, mode: int, there: str, command: str, code: int
) -> None:
    inner = disk / "inner"
    inner.mkdir()
    content = STATES[there][1]
    if isinstance(content, bytes):
        (inner / "l").write_bytes(content)
    inner.chmod(mode)
    assert elsewhere(lambda: ran(sema, command, str(inner / "l")), user=NOBODY)[0] == code


# -- the real command --------------------------------------------------------------------------------------------------

SCRIPT = """
shopt -s expand_aliases 2>/dev/null
alias sema="$H sema"
sema try L -q && echo mine
sema try L -q || echo taken
( sema acquire L --timeout 0 ) && echo twice
sema status L >/dev/null || echo "locked $?"
sema release L
sema status L && sema wait L
if sema acquire L --timeout 2 --tag "it's $$"; then sema status L | grep Tag; sema release L; fi
"""
SAID = """mine
taken
locked 1
Lock released: L
Lock status: FREE
  Path: L
Lock is free: L
Lock acquired: L
  Tag: it's {pid}
Lock released: L
"""


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_script_that_was_written_for_sema_works(world: World, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    started = world.start([shell, "-c", SCRIPT], env={"H": " ".join(HOLDFAST)})
    out = started.rest()
    assert started.wait() == 0
    assert out == SAID.format(pid=started.pid)
    assert started.complaint() == "Timeout waiting for lock\n"


def test_the_streams_of_the_real_command_are_those_of_sema(world: World, path: Path) -> None:
    done = world.do("sema", "-h")
    assert (done.returncode, done.stdout, done.stderr[:6]) == (0, "", "Usage:")
    done = world.do("sema", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, "file-semaphore 0.1.0\n", "")
    assert world.do("sema").returncode == 2
    done = world.do("sema", "try", path / "l")
    assert (done.returncode, done.stderr) == (3, ENOENT)


def test_a_name_that_is_not_utf_8_works(world: World, path: Path) -> None:
    name = os.fsencode(path) + b"\xff"
    done = world.do("sema", "try", name, "--tag", b"a\xffb", env={"LC_ALL": "C"})
    assert (done.returncode, done.stdout) == (0, f"Lock acquired: {path}\\udcff\n")
    assert json.loads(world.do("sema", "status", name, "--json").stdout)["tag"] == "a\N{REPLACEMENT CHARACTER}b"


def test_a_release_ends_every_wait(world: World, path: Path) -> None:
    assert world.do("sema", "try", path).returncode == 0
    waiters = [world.start([*HOLDFAST, "sema", word, path]) for word in ("acquire", "wait")]
    for waiter in waiters:
        eventually(lambda waiter=waiter: dormant(waiter.pid), what="the command waiting")
    assert world.do("sema", "release", path).returncode == 0
    waiters[0].hear(f"Lock acquired: {path}")
    world.do("sema", "release", path)
    waiters[1].hear(f"Lock is free: {path}")
    assert [waiter.wait() for waiter in waiters] == [0, 0]
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_it_waits_leaves_nothing(world: World, path: Path, number: int) -> None:
    path.write_bytes(FRESH)
    waiter = world.start([*HOLDFAST, "sema", "acquire", path])
    eventually(lambda: dormant(waiter.pid), what="the command waiting")
    waiter.signal(number)
    assert waiter.wait() == -number
    assert waiter.complaint() == ""
    assert content_of(path.parent) == {path.name: FRESH}


def test_a_running_program_ends_when_its_lock_is_released_by_another(world: World, path: Path, held: int) -> None:
    done = world.do("sema", "release", path)
    assert (done.returncode, done.stdout) == (0, f"Lock released: {path}\n")
    eventually(lambda: ended(held), what="the end of what was run without its lock")


@pytest.mark.parametrize("way", ["full", "no reader"])
def test_a_lock_is_released_if_its_acquisition_cannot_be_reported(world: World, path: Path, way: str) -> None:
    if way == "full":
        stdout = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, stdout = os.pipe()
        os.close(reading)
    started = world.start([*HOLDFAST, "sema", "try", path], stdout=stdout)
    os.close(stdout)
    assert started.wait() == 3
    assert started.complaint().startswith("Error: IO error: ")
    assert not path.exists()


def test_a_closed_stream_does_not_change_the_outcome(world: World, path: Path) -> None:
    assert world.shell('$H sema try "$1" >&-; echo $?; $H sema try "$1" 2>&-; echo $?', path).stdout == "0\n1\n"


def test_one_of_many_simultaneous_tries_wins(world: World, path: Path) -> None:
    for there in (None, record(LIVE, OLD)):
        path.unlink(missing_ok=True)
        if there is not None:
            path.write_bytes(there)
        started = [world.start([*HOLDFAST, "sema", "try", path, "-q"], stderr=subprocess.DEVNULL) for _ in range(6)]
        assert sorted(one.wait() for one in started) == [0, 1, 1, 1, 1, 1]


def test_sema_imports_no_expensive_module(world: World, path: Path) -> None:
    code = (
        "import sys, holdfast.cli as c\ntry: c.main(sys.argv[1:])\nfinally: print(sorted(sys.modules), file=sys.stderr)"
    )
    done = world._finish(world.start([HOLDFAST[0], "-S", "-c", code, "sema", "try", path]), None)
    if "No module named" in done.stderr:
        src = Path(__file__).parents[2] / "src"
        done = world._finish(
            world.start([HOLDFAST[0], "-S", "-c", code, "sema", "try", path], env={"PYTHONPATH": str(src)}), None
        )
    assert done.returncode == 0
    assert not [name for name in ("argparse", "json", "asyncio", "subprocess", "typing") if f"'{name}'" in done.stderr]
