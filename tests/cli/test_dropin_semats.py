"""`holdfast semats`: the answers that scripts written for `semats` get, state by state (docs/semats.md)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cli.dropin import LIVE, LONG, NOW, OLD, content_of, dead_pid, fifo, link_to, no_lock_file, ran, record, unix_socket
from cli.support import HOLDFAST, World, dormant, eventually
from holdfast import Lock, LockLost
from holdfast._platform import environment
from holdfast.cli.semats import semats
from unit.elsewhere import NOBODY, elsewhere, needs_root

Within = Callable[[float], AbstractContextManager[None]]
Answer = tuple[int, str, str]
LATER = "later: "
"""A state that begins with this is looked at 4000 s after it was written."""
OURS = NOW + 300
"""A moment after the start of this process, which may have been forked since."""
TOKEN = "0123456789abcdef"

# -- every state and every command -------------------------------------------------------------------------------------

FRESH = record(LIVE, NOW, "npm build")
STATES: dict[str, tuple[str, bytes | Callable[[Path], object] | None]] = {
    # name: (path as it is typed, content of the path)
    "free": ("l", None),
    "fresh": ("l", FRESH),
    "fresh, no tag": ("l", record(LIVE, NOW)),
    "fresh, dead pid": ("l", record("{dead}", NOW)),
    "from the future": ("l", record("{dead}", NOW + 10**6)),
    "old, dead pid": ("l", record("{dead}", OLD, "t")),
    "later: live pid": ("l", record(LIVE, NOW)),
    "later: our own pid": ("l", record("{me}", OURS)),
    "old, pid 0": ("l", record(0, OLD)),
    "old, pid of no kernel": ("l", record(2**31, OLD)),
    "old, blanks around =": ("l", record("{dead}", OLD, "t").replace(b"=", b" = ")),
    "old, a byte order mark": ("l", b"\xef\xbb\xbf" + record("{dead}", OLD, "t")),
    "empty": ("l", b""),
    "garbage": ("l", b"\x7fELF\0\1"),
    "no pid": ("l", f"timestamp={OLD}\n".encode()),
    "negative pid": ("l", record(-1, OLD)),
    "another protocol's": ("l", b'{"createdAt": "2020-01-01T00:00:00Z"}\n'),
    "directory": ("l", lambda path: path.mkdir()),
    "FIFO": ("l", fifo),
    "socket": ("l", unix_socket),
    "link to itself": ("l", link_to("l")),
    "link to a directory": ("l", lambda path: (path.symlink_to("d"), (path.parent / "d").mkdir())),
    "dangling link": ("l", link_to("target")),
    "link to a fresh lock": ("l", link_to("target", FRESH)),
    "link to an old lock": ("l", link_to("target", record("{dead}", OLD))),
    "link into nowhere": ("l", link_to("nodir/target")),
    "no such directory": ("nodir/l", None),
    "file for a directory": ("l/l", b""),
    "empty path": ("", None),
    "blanks": ("   ", None),
    "slash at the end": ("l/", None),
    "too long": (LONG, None),
    "250 bytes": ("é" * 125, None),
    "through ..": ("d/../l", None),
    "two dots in the name": ("l..lock", None),
}

ACQUIRED = (0, "status: acquired\npid: {me}\ntimestamp: {now}\ntag: undefined\n", "")
RELEASED = (0, "status: released\n", "")
NOT_LOCKED = (1, "", "status: failed\ntype: NOT_LOCKED\nmessage: Lock not held\n")
TIMEOUT = (1, "", "status: failed\ntype: TIMEOUT\nmessage: Timeout waiting for lock after 0ms\n")
CLEANED, NOT_CLEANED = (0, "cleaned: true\n", ""), (0, "cleaned: false\n", "")
UNKNOWN_HOLDER = (
    1,
    "",
    "status: failed\ntype: PERMISSION_DENIED\nmessage: {}\nholderPid: undefined\n".format(
        "Lock held by unknown process (its record cannot be read)"
    ),
)


def held_by(pid: object, since: object) -> Answer:
    return (
        1,
        f"status: failed\ntype: ALREADY_LOCKED\nmessage: Lock already held\nholderPid: {pid}\nlockedSince: {since}\n",
        "",
    )


def denied(pid: object) -> Answer:
    message = f"Lock held by different process (PID {pid})"
    return 1, "", f"status: failed\ntype: PERMISSION_DENIED\nmessage: {message}\nholderPid: {pid}\n"


def status(locked: bool, info: str = "null", *, stale: bool = False, mine: bool = False) -> Answer:
    words = [f"{one}".lower() for one in (locked, stale, mine)]
    return 0, "locked: {}\ninfo: {}\nisStale: {}\nisOwnedByCurrentProcess: {}\n".format(words[0], info, *words[1:]), ""


def info(pid: object, timestamp: object, tag: str | None = None) -> str:
    return f'{{{{"pid":{pid},"timestamp":{timestamp}' + ("}}" if tag is None else f',"tag":"{tag}"}}}}')


def error(text: str) -> Answer:
    return 1, "", f"Error: {text}\n"


def io_error(code: str, text: str, call: str, number: int, *, doing: str = "write lock file") -> str:
    cause = f'{{{{"errno":-{number},"code":"{code}","syscall":"{call}","path":"{{path}}"}}}}'
    return (
        "status: failed\ntype: IO_ERROR\n"
        f"message: Failed to {doing}: Error: {code}: {text}, {call} '{{path}}'\ncause: {cause}\n"
    )


def usual(pid: object, since: int, tag: str | None = None, *, stale: bool = False) -> list[tuple[str, Answer]]:
    """The calls and answers for a lock that is held by the letter of the protocol."""
    return [
        ("try-acquire", held_by(pid, since)),
        ("acquire --timeout 0", TIMEOUT),
        ("acquire --timeout -5", (1, "", TIMEOUT[2].replace("0ms", "-5ms"))),
        ("release", denied(pid)),
        ("release -f", RELEASED),
        ("release --force", RELEASED),
        ("status", status(True, info(pid, since, tag), stale=stale)),
        ("clean", NOT_CLEANED),
    ]


NOTHING: list[tuple[str, Answer]] = [
    ("try-acquire", ACQUIRED),
    ("acquire", ACQUIRED),
    ("acquire --timeout 0", ACQUIRED),
    ("release", NOT_LOCKED),
    ("release -f", NOT_LOCKED),
    ("status", status(False)),
    ("clean", NOT_CLEANED),
]
UNUSABLE: list[tuple[str, Answer]] = [
    ("try-acquire", held_by("undefined", "undefined")),
    ("acquire --timeout 0", TIMEOUT),
    ("release", UNKNOWN_HOLDER),
    ("release -f", RELEASED),
    ("status", status(True)),
    ("clean", NOT_CLEANED),
]
OLD_ONE: list[tuple[str, Answer]] = [
    ("try-acquire", ACQUIRED),
    ("acquire", ACQUIRED),
    ("release", denied("{dead}")),
    ("release -f", RELEASED),
    ("clean", CLEANED),
]
IS_DIRECTORY = io_error("EISDIR", "is a directory", "unlink", 21, doing="release lock")


def odd(what: str, *, name: str = "l", directory: bool = False) -> list[tuple[str, Answer]]:
    """The calls and answers for a path that cannot be a lock file."""
    why = no_lock_file(what, name)
    refused = (1, "", f"status: failed\ntype: IO_ERROR\nmessage: Failed to write lock file: Error: {why}\n")
    return [
        ("try-acquire", held_by("undefined", "undefined")),
        ("acquire", refused),
        ("acquire --timeout 5000", refused),
        ("status", status(True)),
        ("clean", NOT_CLEANED),
        ("release", (1, "", IS_DIRECTORY) if directory else UNKNOWN_HOLDER),
        ("release -f", (1, "", IS_DIRECTORY) if directory else RELEASED),
    ]


COMMANDS = ("acquire", "try-acquire", "release", "release -f", "status", "clean")
NO_PARENT = [(command, error("Parent directory does not exist: {place}/nodir")) for command in COMMANDS]
DOTS = [
    (command, error("Path contains dangerous pattern: parent directory traversal (..) not allowed"))
    for command in COMMANDS
]
IN_A_FILE = io_error("ENOTDIR", "not a directory", "open", 20)
TOO_LONG = io_error("ENAMETOOLONG", "file name too long", "open", 36)
ROWS: dict[str, list[tuple[str, Answer]]] = {
    "free": NOTHING,
    "slash at the end": NOTHING,
    "250 bytes": NOTHING,
    "dangling link": NOTHING,
    "fresh": usual(LIVE, NOW, "npm build"),
    "fresh, no tag": usual(LIVE, NOW),
    "fresh, dead pid": usual("{dead}", NOW),
    "from the future": usual("{dead}", NOW + 10**6),
    "link to a fresh lock": usual(LIVE, NOW, "npm build"),
    **dict.fromkeys(("old, blanks around =", "old, a byte order mark"), OLD_ONE),
    "old, dead pid": [*OLD_ONE, ("status", status(True, info("{dead}", OLD, "t"), stale=True))],
    "link to an old lock": OLD_ONE,
    "later: live pid": usual(LIVE, NOW, stale=True),
    "later: our own pid": [
        ("try-acquire", held_by("{me}", OURS)),
        ("release", RELEASED),
        ("status", status(True, info("{me}", OURS), stale=True, mine=True)),
    ],
    "old, pid 0": usual(0, OLD, stale=True),
    "old, pid of no kernel": usual(2**31, OLD, stale=True),
    **dict.fromkeys(("empty", "garbage", "no pid", "negative pid"), UNUSABLE),
    "another protocol's": [
        ("try-acquire", held_by("undefined", "undefined")),
        ("release", UNKNOWN_HOLDER),
        ("release -f", RELEASED),
        ("status", status(True)),
        ("clean", NOT_CLEANED),
    ],
    "directory": odd("a directory", directory=True),
    "link to a directory": odd("a directory", name="d", directory=True),
    "FIFO": odd("a FIFO"),
    "socket": odd("a socket"),
    "link to itself": odd("a symbolic link"),
    "link into nowhere": NO_PARENT,
    "no such directory": NO_PARENT,
    "file for a directory": [
        ("try-acquire", (1, IN_A_FILE, "")),
        ("acquire", (1, "", IN_A_FILE)),
        ("release", NOT_LOCKED),
        ("status", status(False)),
    ],
    "too long": [
        ("try-acquire", (1, TOO_LONG, "")),
        ("acquire", (1, "", TOO_LONG)),
        ("release", NOT_LOCKED),
        ("status", status(False)),
        ("clean", NOT_CLEANED),
    ],
    "empty path": [(command, error("Lock path is required")) for command in COMMANDS],
    "blanks": [(command, error("Path cannot be empty")) for command in COMMANDS],
    "through ..": DOTS,
    "two dots in the name": DOTS,
}
TABLE = [(state, words, wanted) for state, rows in ROWS.items() for words, wanted in rows]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's directory, as the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def arrange(place: Path, state: str, dead: int) -> str:
    """Bring about a state; returns the path as it is typed."""
    typed, there = STATES[state]
    if isinstance(there, bytes):
        (place / "l").write_bytes(with_pids(there, dead))
    elif there is not None:
        there(place / "l")
        if (place / "target").exists():
            (place / "target").write_bytes(with_pids((place / "target").read_bytes(), dead))
    return typed


def with_pids(content: bytes, dead: int) -> bytes:
    return content.replace(b"{dead}", str(dead).encode()).replace(b"{me}", str(os.getpid()).encode())


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize(("state", "words", "wanted"), TABLE, ids=[f"{state}: {words}" for state, words, _ in TABLE])
def test_a_script_sees_the_answers_of_semats(
    place: Path, within: Within, monkeypatch: pytest.MonkeyPatch, state: str, words: str, wanted: Answer, as_json: bool
) -> None:
    dead = dead_pid()
    typed = arrange(place, state, dead)
    now = NOW + (4000 if state.startswith(LATER) else 100)
    monkeypatch.setattr(environment(), "time", lambda: now)
    before = content_of(place)
    wrote = not (place / "target").exists() and "l" not in before
    real = Path(os.path.realpath(place / typed.rstrip("/")))
    command, *more = words.split()
    with within(10.0):
        got = ran(semats, *(["-j"] if as_json else []), command, typed, *more)
    names = {"path": real, "place": place, "dead": dead, "me": os.getpid(), "now": now}
    code, *texts = wanted
    said = [text.format(**names) for text in texts]
    assert got == (code, *(as_objects(text) if as_json else text for text in said))
    after = content_of(place)
    if code == 0 and "acquire" in command:
        assert real.read_bytes().rstrip() + b"\n" == record(os.getpid(), now)  # no marker: no process guards it
        assert not wrote or real.stat().st_mode & 0o7777 == 0o600  # a lock that is taken over keeps its mode
    elif code == 0 and (command == "release" or wanted == CLEANED):
        assert not os.path.lexists(real)
    else:
        assert after == before


def as_objects(text: str) -> str:
    """The lines for people, as the JSON with the same content; complaints about the path stay as they are."""
    if not text or text.startswith("Error: "):
        return text
    found: dict[str, object] = {}
    for line in text.splitlines():
        key, _, value = line.partition(": ")
        if value == "undefined":
            continue
        structured = key in ("locked", "info", "isStale", "isOwnedByCurrentProcess", "cleaned", "cause")
        number = key in ("pid", "timestamp", "holderPid", "lockedSince")
        found[key] = json.loads(value) if structured or number else value
    return json.dumps(found, indent=2) + "\n"


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["", "-j", "--version", "-v -f"])
def test_no_command_shows_the_usage_and_fails(place: Path, words: str) -> None:
    code, out, complaint = ran(semats, *words.split())
    assert (code, complaint) == (1, "")
    assert out.startswith("Usage: semats <command> <path> [options]\n")


def test_an_unknown_command_is_named(place: Path) -> None:
    code, out, complaint = ran(semats, "wait", "l")
    assert (code, complaint) == (1, "Unknown command: wait\n")
    assert out.startswith("Usage: semats <command> <path> [options]\n")


@pytest.mark.parametrize("words", ["-h", "--help", "acquire -h", "try-acquire l --help", "nothing -h"])
def test_help_is_a_success_on_stdout(place: Path, words: str) -> None:
    code, out, complaint = ran(semats, *words.split())
    assert (code, complaint) == (0, "")
    assert out.startswith("Usage: semats <command> <path> [options]\n")
    assert content_of(place) == {}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_path_is_named(place: Path, command: str) -> None:
    assert ran(semats, *command.split()) == error("Lock path is required")


@pytest.mark.parametrize(
    "words",
    [
        "try-acquire l",
        "-t x try-acquire l",
        "--tag x try-acquire l",
        "try-acquire --tag x l",
        "try-acquire -t x l more words",
        "try-acquire l --unknown -- -jv --tag=y -x",
        "try-acquire l -t",
        "--timeout 5 try-acquire l --timeout abc",
        "try-acquire l -t y -t x",
        "try-acquire -l.lock l",
    ],
)
def test_options_are_accepted_in_any_position(place: Path, words: str) -> None:
    code, out, _ = ran(semats, *words.split())
    tag = "undefined" if " x" not in words else "x"
    assert (code, out.splitlines()[-1]) == (0, f"tag: {tag}")
    assert [*content_of(place)] == ["l"]


@pytest.mark.parametrize("number", ["abc", "", " ", "1e3", "0x10", "1.5", "100ms", "NaN", "Infinity", "--5", "²"])
def test_a_malformed_timeout_is_refused(place: Path, within: Within, number: str) -> None:
    (place / "l").write_bytes(FRESH)
    with within(10.0):
        code, out, complaint = ran(semats, "acquire", "l", "--timeout", number)
    assert (code, out) == (1, "")
    assert complaint == f"Error: --timeout takes a whole number of milliseconds, not {number!r}\n"


def test_a_timeout_without_a_value_does_not_wait(place: Path, within: Within) -> None:
    (place / "l").write_bytes(FRESH)
    with within(10.0):
        assert ran(semats, "acquire", "l", "--timeout")[0] == 1


@pytest.mark.parametrize("flag", ["-v", "--verbose"])
def test_verbose_announces_the_attempt(place: Path, flag: str) -> None:
    code, out, complaint = ran(semats, "try-acquire", "l", flag)
    assert (code, complaint) == (0, "[INFO] Trying to acquire lock: l\n")
    assert out.startswith("status: acquired\n")


# -- records -----------------------------------------------------------------------------------------------------------


HOSTILE = {
    "escape": "\x1b[2J\x1b]0;owned\x07",
    "quotes": 'x","pid":1,"z":"',
    "lines": "a\nb\tc",
    "unicode": "\x9b31m \u202e \u2028",
    "astral": "😀𝄞 grün",
    "long": "x" * 20_000,
}


@pytest.mark.parametrize("tag", HOSTILE.values(), ids=HOSTILE)
def test_no_tag_corrupts_the_record_the_json_or_the_terminal(place: Path, tag: str) -> None:
    code, out, _ = ran(semats, "-j", "try-acquire", "l", "-t", tag)
    assert code == 0
    written = json.loads(out)["tag"]
    assert written == "".join(" " if ord(c) < 32 else c for c in tag).strip()[:10_000]
    for words in (["status", "l"], ["status", "l", "-j"]):
        _, out, _ = ran(semats, *words)
        assert all(character.isprintable() for line in out.split("\n") for character in line)
        assert ("grün" in tag) == ("grün" in out)
    assert json.loads(out)["info"]["tag"] == written


def test_a_record_with_our_pid_from_before_our_start_is_not_ours(place: Path) -> None:
    """Pids repeat in containers: when the record was written, this one was another process's."""
    (place / "l").write_bytes(record(os.getpid(), 10**9))
    assert ran(semats, "release", "l") == denied(os.getpid())
    assert "isOwnedByCurrentProcess: false" in ran(semats, "status", "l")[1]


def test_a_living_holder_keeps_its_lock_unless_it_is_released_by_force(world: World, place: Path) -> None:
    """The guard is respected, unless `-f` is given."""
    hold = Lock("l", protocol="semats").acquire()
    assert ran(semats, "try-acquire", "l")[0] == 1
    done = world.do("semats", "release", "l")
    assert (done.returncode, done.stdout, done.stderr) == denied(os.getpid())
    assert not hold.lost
    assert world.do("semats", "release", "l", "-f").stdout == "status: released\n"
    assert hold.lost
    with pytest.raises(LockLost):
        hold.release()


def test_a_lock_left_by_a_finished_command_is_not_taken_over(world: World, place: Path) -> None:
    assert world.do("semats", "try-acquire", "l").returncode == 0
    assert Lock("l", protocol="semats").try_acquire() is None
    assert Lock("l").try_acquire() is None


# -- temporary files ---------------------------------------------------------------------------------------------------


def test_clean_removes_only_temporary_files_of_dead_attempts_on_this_lock(place: Path) -> None:
    dead = dead_pid()
    kept = [
        f"l.{LIVE}.{TOKEN}.tmp",
        f"l.{os.getpid()}.{TOKEN}.tmp",
        "l.notes.tmp",
        f"l.old.lock.{dead}.{TOKEN}.tmp",
        f"l.{dead}.{TOKEN[:-1]}.tmp",
        f"l.{dead}.{TOKEN.upper()}.tmp",
        f"m.{dead}.{TOKEN}.tmp",
        f"l.0.{TOKEN}.tmp",
        f"l.{2**31}.{TOKEN}.tmp",
    ]
    for name in (*kept, f"l.{dead}.{TOKEN}.tmp"):
        (place / name).write_bytes(FRESH)
        os.utime(place / name, (time.time() - 2, time.time() - 2))
    (place / "l").write_bytes(FRESH)
    assert ran(semats, "clean", "l") == CLEANED
    assert sorted(content_of(place)) == sorted(["l", *kept])
    assert ran(semats, "clean", "l") == NOT_CLEANED


def test_an_acquisition_waits_for_a_rename_that_is_about_to_happen(world: World, path: Path) -> None:
    """A temporary file of a living process, older than our lock file, may replace it any moment."""
    temporary = path.parent / f"{path.name}.{LIVE}.{TOKEN}.tmp"
    temporary.write_bytes(FRESH)
    started = world.start([*HOLDFAST, "semats", "acquire", path])
    eventually(path.exists, what="a lock file")
    os.replace(temporary, path)
    eventually(lambda: dormant(started.pid), what="the command waiting for the other one")
    path.unlink()
    started.hear("status: acquired")
    assert started.wait() == 0


# -- another user ------------------------------------------------------------------------------------------------------

EACCES = io_error("EACCES", "permission denied", "open", 13)
NOT_REMOVED = io_error("EACCES", "permission denied", "unlink", 13, doing="release lock")


@needs_root
@pytest.mark.parametrize(
    ("mode", "there", "words", "wanted"),
    [
        (0o777, "private", "try-acquire", held_by("undefined", "undefined")),
        (0o777, "private", "acquire --timeout 0", TIMEOUT),
        (0o777, "private", "release", UNKNOWN_HOLDER),
        (0o777, "private", "release -f", RELEASED),
        (0o777, "private", "status", status(True)),
        (0o777, "private", "clean", NOT_CLEANED),
        (0o555, "", "try-acquire", (1, EACCES, "")),
        (0o555, "", "acquire", (1, "", EACCES)),
        (0o555, "fresh", "try-acquire", held_by(LIVE, NOW)),
        (0o555, "fresh", "release -f", (1, "", NOT_REMOVED)),
        (0o555, "fresh", "status", status(True, info(LIVE, NOW))),
        (0o555, "old", "clean", NOT_CLEANED),
        (0o777, "old", "clean", CLEANED),
        (0o777, "later", "try-acquire", held_by("{root}", NOW)),
        (0o777, "later", "clean", NOT_CLEANED),
    ],
)
def test_a_lock_of_another_user_gets_the_answers_of_semats(
    disk: Path, monkeypatch: pytest.MonkeyPatch, mode: int, there: str, words: str, wanted: Answer
) -> None:
    """A process that may not be signalled is alive; in the case `later`, its record is old."""
    root = subprocess.Popen(["sleep", "60"])
    try:
        inner = disk / "inner"
        inner.mkdir()
        path = inner / "l"
        records = {"private": record(LIVE, OLD), "fresh": record(LIVE, NOW), "old": record(dead_pid(), OLD)}
        since = os.stat(f"/proc/{root.pid}").st_mtime
        if there == "later":
            records["later"] = record(root.pid, NOW + int(since - NOW) + 1)
            monkeypatch.setattr(environment(), "time", lambda: since + 4000)
            wanted = (wanted[0], wanted[1].replace(str(NOW), str(NOW + int(since - NOW) + 1)), wanted[2])
        if there:
            path.write_bytes(records[there])
        if there == "private":
            path.chmod(0o600)
        inner.chmod(mode)
        command, *more = words.split()
        got = elsewhere(lambda: ran(semats, command, str(path), *more), user=NOBODY)
        names = {"path": path, "root": root.pid}
        assert got == (wanted[0], *(text.format(**names) for text in wanted[1:]))
    finally:
        root.kill()
        root.wait()


# -- the real command --------------------------------------------------------------------------------------------------

SCRIPT = """
semats() { $H semats "$@"; }
semats try-acquire L --tag "it's $$" -j | sed -n '/tag/p'
semats try-acquire L >/dev/null || echo "held $?"
semats acquire L --timeout 10 2>&1 || echo "timeout $?"
semats release L 2>/dev/null || echo "another's $?"
semats release -f L
semats status L | head -n 1
"""
SAID = """  "tag": "it's {pid}"
held 1
status: failed
type: TIMEOUT
message: Timeout waiting for lock after 10ms
timeout 1
another's 1
status: released
locked: false
"""


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_script_that_was_written_for_semats_works(world: World, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    started = world.start([shell, "-c", SCRIPT], env={"H": " ".join(HOLDFAST)})
    out = started.rest()
    assert started.wait() == 0
    assert (out, started.complaint()) == (SAID.format(pid=started.pid), "")


def test_a_program_that_becomes_the_command_can_release_its_lock(world: World, path: Path) -> None:
    script = 'printf "pid=%s\\ntimestamp=%s\\n" $$ $(date +%s) >"$1"; exec $H semats release "$1"'
    assert world.shell(script, path).stdout == "status: released\n"


def test_a_release_ends_every_wait(world: World, path: Path) -> None:
    assert world.do("semats", "try-acquire", path).returncode == 0
    waiter = world.start([*HOLDFAST, "semats", "acquire", path])
    eventually(lambda: dormant(waiter.pid), what="the command waiting")
    assert world.do("semats", "release", path, "-f").returncode == 0
    waiter.hear("status: acquired")
    waiter.hear(f"pid: {waiter.pid}")
    assert waiter.wait() == 0
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_signal_while_it_waits_leaves_nothing(world: World, path: Path) -> None:
    path.write_bytes(FRESH)
    waiter = world.start([*HOLDFAST, "semats", "acquire", path])
    eventually(lambda: dormant(waiter.pid), what="the command waiting")
    waiter.signal(signal.SIGTERM)
    assert waiter.wait() == -signal.SIGTERM
    assert waiter.complaint() == ""
    assert content_of(path.parent) == {path.name: FRESH}


def test_a_lock_is_released_if_its_acquisition_cannot_be_reported(world: World, path: Path) -> None:
    with open("/dev/full", "wb") as full:
        started = world.start([*HOLDFAST, "semats", "try-acquire", path], stdout=full)
    assert started.wait() == 1
    assert started.complaint() == "Error: [Errno 28] No space left on device: 'standard output'\n"
    assert not path.exists()


def test_one_of_many_simultaneous_tries_wins(world: World, path: Path) -> None:
    for there in (None, record(dead_pid(), OLD)):
        path.unlink(missing_ok=True)
        if there is not None:
            path.write_bytes(there)
        words = [*HOLDFAST, "semats", "try-acquire", path]
        started = [world.start(words, stdout=subprocess.DEVNULL) for _ in range(6)]
        assert sorted(one.wait() for one in started) == [0, 1, 1, 1, 1, 1]
