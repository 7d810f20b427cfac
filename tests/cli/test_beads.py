"""`beads check`, `beads daemon`, and `-p` with every protocol: the real command, with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.support import HOLDFAST, NAMELESS, Started, World, ended, eventually
from cli.test_errors import COMMANDS, HOSTILE, complaint_of, without_privileges
from holdfast import protocols
from holdfast.beads import ExclusiveLock

HOST = os.uname().nodename
PROTOCOLS = ("beads", "flock", "sema", "semats", "sidecar")
TICK = "printf 'cycle\\n'"
SLOW = """
import signal, sys
wanted = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
print("began", flush=True)
while True:
    number = signal.sigwait(wanted)
    print("got", signal.Signals(number).name, flush=True)
    if number == signal.SIGALRM:
        sys.exit(0)
"""
"""A cycle that lasts until ALRM, and says each signal that it gets."""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    place = tmp_path / "a database"
    place.mkdir()
    return place


@pytest.fixture
def lock_file(database: Path) -> Path:
    return database / ".exclusive-lock"


def record(pid: int, holder: str = "tool") -> str:
    return ExclusiveLock(holder, pid, HOST, "2025-10-25T12:00:00Z", "1").to_json()


def put(path: Path, content: str) -> None:
    """Replace the file at once: a daemon that looks meanwhile sees the old content or the new one."""
    other = path.with_name("new")
    other.write_text(content)
    other.rename(path)


def dead() -> int:
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


# -- check -------------------------------------------------------------------------------------------------------------


def test_a_check_answers_by_its_exit_status(world: World, database: Path, lock_file: Path) -> None:
    done = world.do("beads", "check", database)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    lock_file.write_text(record(os.getpid(), "vc-executor"))
    done = world.do("beads", "check", database)
    assert (done.returncode, done.stdout, done.stderr) == (1, "Skipping database (locked by vc-executor)\n", "")
    done = world.do("beads", "check", "-q", database)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    lock_file.write_text("{")
    done = world.do("beads", "check", database)
    reason = "malformed lock file: unexpected end of JSON input"
    assert (done.returncode, done.stdout) == (1, f"Skipping database (lock check failed: {reason})\n")
    lock_file.write_text(record(dead(), "vc-executor"))
    done = world.do("beads", "check", database)
    assert (done.returncode, done.stdout) == (0, "Removed stale lock (vc-executor), proceeding with sync\n")
    assert [*database.iterdir()] == []
    done = world.do("beads", "check", database / "missing")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_check_in_json_has_all_fields(world: World, database: Path, lock_file: Path) -> None:
    def check() -> dict[str, object]:
        done = world.do("beads", "check", "--json", database)
        found: dict[str, object] = json.loads(done.stdout)
        assert done.returncode == (1 if found["result"] == "skip" else 0)
        assert found.pop("path") == str(lock_file)
        return found

    nothing = {"result": "proceed", "holder": None, "removed": False, "error": None, "log": None}
    assert check() == nothing
    lock_file.write_text(record(os.getpid()))
    line = "Skipping database (locked by tool)"
    assert check() == {**nothing, "result": "skip", "holder": "tool", "log": line}
    lock_file.write_text(record(dead(), "to\nol"))
    line = "Removed stale lock (to\\nol), proceeding with sync"
    assert check() == {**nothing, "holder": "to\nol", "removed": True, "log": line}
    lock_file.mkdir()
    error = f"failed to read lock file: read {lock_file}: is a directory"
    line = f"Skipping database (lock check failed: {error})"
    assert check() == {**nothing, "result": "skip", "error": error, "log": line}


@pytest.mark.parametrize("kind", ["fifo", "directory", "loop", "unreadable", "another protocol", "a file"])
def test_a_check_of_an_unusable_lock_file_says_skip(world: World, database: Path, lock_file: Path, kind: str) -> None:
    given: object = database
    if kind == "fifo":
        os.mkfifo(lock_file)
    elif kind == "directory":
        lock_file.mkdir()
    elif kind == "loop":
        lock_file.symlink_to(lock_file)
    elif kind == "unreadable":
        lock_file.write_text(record(dead()))
        lock_file.chmod(0)
    elif kind == "another protocol":
        lock_file.write_text("pid=1\ntimestamp=1\n")
    else:
        lock_file.write_text(record(dead()))
        given = lock_file
    began = time.monotonic()
    done = world.do("beads", "check", given, preexec_fn=without_privileges)
    assert time.monotonic() - began < 5  # a second on an idle machine
    assert (done.returncode, done.stderr) == (1, "")
    assert re.fullmatch(
        r"Skipping database \(lock check failed: (failed to read|malformed) lock file: .*\)\n", done.stdout
    )
    assert os.path.lexists(lock_file)


def test_a_hostile_holder_does_not_reach_a_terminal(world: World, database: Path) -> None:
    calls: list[list[object]] = []
    holders = [text.decode(errors="replace") for text in HOSTILE.values()]
    for number, holder in enumerate(holders):
        living, ended_ = database / f"{number} lives", database / f"{number} has ended"
        for place, pid in ((living, os.getpid()), (ended_, dead())):
            place.mkdir()
            (place / ".exclusive-lock").write_text(record(pid, holder))
            calls.append(["beads", "check", place])
        calls += [["status", "-p", "beads", living], ["status", "-j", "-p", "beads", living]]
    every = world.each(calls)
    for holder, *checked, shown, told in zip(holders, every[::4], every[1::4], every[2::4], every[3::4], strict=True):
        for done in checked:
            assert done.stderr == ""
            assert len(done.stdout.splitlines()) == 1
            assert done.stdout.removesuffix("\n").isprintable()
        assert all(line.isprintable() for line in shown.stdout.splitlines())
        assert json.loads(told.stdout)["record"]["holder"] == holder


# -- mistakes ----------------------------------------------------------------------------------------------------------


MISTAKES: list[tuple[list[str], str]] = [
    (["beads"], "COMMAND"),
    (["beads", ""], "COMMAND"),
    (["beads", "no-such"], "invalid choice"),
    (["beads", "--", "check"], "the command comes first"),
    (["beads", "check"], "DIR"),
    (["beads", "check", ".", "more"], "unrecognized arguments: more"),
    (["beads", "check", "--interval", "1m", "."], "--interval"),
    (["beads", "daemon"], "DIR"),
    (["beads", "daemon", "."], "no command"),
    (["beads", "daemon", ".", "--", ""], "no command"),
    (["beads", "daemon", ".", "true"], "true"),
    *(
        (["beads", "daemon", "--interval", text, ".", "--", "true"], "duration")
        for text in ("", "m", "1y", "1 s", "1s ", "1e3s", "٣s", "..5s", "1.5.s", "s1", "nan", "1m30")
    ),
    (["beads", "daemon", "--interval", "0s", ".", "--", "true"], "no time at all"),
    (["beads", "daemon", "--interval", "inf", ".", "--", "true"], "never ends"),
    (["run", "--payload", "{}", "L", "--", "true"], "--payload is an option of -p sidecar; -p sema does not have it"),
    (["try", "-p", "sidecar", "--holder", "x", "L"], "--holder is an option of -p beads; -p sidecar does not have it"),
    (["acquire", "-p", "flock", "--holder-version", "x", "L"], "--holder-version is an option of -p beads"),
    (["run", "-p", "sidecar", "--payload", "5", "L", "--", "true"], "not a JSON object"),
    (["run", "-p", "sidecar", "--payload", "{", "L", "--", "true"], "not JSON"),
    (["run", "-p", "sidecar", "--payload", '{"a":NaN}', "L", "--", "true"], "not JSON"),
    (["run", "-p", "sidecar", "--payload", "[" * 100_000, "L", "--", "true"], "not JSON"),
    (["run", "-p", "beads", "--holder", "", ".", "--", "true"], "holder is empty"),
    (["run", "-p", "beads", "--slots", "2", ".", "--", "true"], "--slots makes no sense with -p beads"),
    (["status", "-p", "beads", "--stale-after", "2", "."], "--stale-after makes no sense with -p beads"),
    (["status", "-p", "no-such", "L"], "holdfast speaks: beads, flock, ofd, proper-lockfile, sema, semats, sidecar"),
    (["wait", "-p", "semats", "--shared", "L"], "has no shared locks"),
]


def test_a_mistake_is_reported_with_status_2(world: World) -> None:
    for done, (arguments, wanted) in zip(world.each(row for row, _ in MISTAKES), MISTAKES, strict=True):
        assert (done.returncode, done.stdout) == (2, ""), arguments[:9]
        assert wanted in done.stderr
        assert "Traceback" not in done.stderr
    assert [*world.directory.iterdir()] == []


@pytest.mark.parametrize("kind", ["missing", "a file", "log is a directory", "log is a fifo", "log in nothing"])
def test_a_daemon_without_a_usable_database_or_log_ends(world: World, database: Path, kind: str) -> None:
    log: list[object] = []
    given = database
    if kind == "missing":
        given = database / "missing"
    elif kind == "a file":
        given = database / "file"
        given.write_text("")
    elif kind == "log is a directory":
        log = ["--log", database]
    elif kind == "log is a fifo":
        os.mkfifo(database / "fifo")
        log = ["--log", database / "fifo"]
    else:
        log = ["--log", database / "missing" / "log"]
    complaint = complaint_of(world.do("beads", "daemon", *log, given, "--", "true"), 3)
    assert str(log[-1] if log else given) in complaint


def test_help_is_complete(world: World) -> None:
    for words, wanted in (
        (["--help"], ["beads", "semats"]),
        (["beads", "--help"], ["check", "daemon"]),
        (["beads", "check", "--help"], ["exit status: ", "--json", "Removed stale lock (HOLDER)"]),
        (["beads", "daemon", "--help"], ["exit status: ", "--interval", "--log", "-- CMD"]),
        (["run", "--help"], ["--payload", "--holder", "--holder-version"]),
    ):
        done = world.do(*words)
        assert (done.returncode, done.stderr) == (0, "")
        assert max(map(len, done.stdout.splitlines())) <= 88
        assert not [part for part in wanted if part not in done.stdout]


def test_every_protocol_is_explained(world: World) -> None:
    """By `--help` alone; every other help refers to `holdfast protocols`."""
    overview, *others = world.each([["--help"], *([command, "--help"] for command in COMMANDS)])
    for name in protocols.names():
        found = re.findall(rf"^  {name} +LOCK is", overview.stdout, re.MULTILINE)
        assert len(found) == 1, name
    for done in others:
        assert "holdfast protocols" in " ".join(done.stdout.split())
        assert not re.search(r"^  flock ", done.stdout, re.MULTILINE)


# -- the daemon --------------------------------------------------------------------------------------------------------


def daemon(world: World, database: Path, *command: object, interval: str = "20ms", **more: object) -> Started:
    """Start a daemon whose own lines and those of its command come in one stream, in their order."""
    words = [*HOLDFAST, "beads", "daemon", "--interval", interval, database, "--", *command]
    return world.start(words, stderr=subprocess.STDOUT, **more)


def end(started: Started, number: int = signal.SIGTERM) -> int:
    started.signal(number)
    return started.wait()


def test_a_daemon_keeps_away_from_a_held_database(world: World, database: Path, lock_file: Path) -> None:
    started = daemon(world, database, "sh", "-c", TICK)
    started.hear("cycle")
    started.hear("cycle")
    put(lock_file, record(os.getpid(), "vc-executor"))
    assert started.hear("[").endswith("] Skipping database (locked by vc-executor)")
    assert started.hear("[").endswith("] Skipping database (locked by vc-executor)")
    before = len(started.text)
    started.hear("[")
    assert b"cycle" not in started.text[before:]
    put(lock_file, record(dead(), "vc-executor"))
    assert started.hear("[2").endswith(
        ("locked by vc-executor)", "Removed stale lock (vc-executor), proceeding with sync")
    )
    started.hear("cycle")
    assert b"] Removed stale lock (vc-executor), proceeding with sync\ncycle\n" in started.text
    assert not lock_file.exists()
    assert end(started) == 0
    assert started.rest().endswith("] Ended by SIGTERM\n")


def test_a_tool_and_the_daemon_take_turns(world: World, database: Path, lock_file: Path) -> None:
    """Beside `run -p beads`, the daemon skips its cycles until the tool ends."""
    started = daemon(world, database, "sh", "-c", TICK)
    started.hear("cycle")
    tool = world.run(database, "print('works', flush=True); input()", "-p", "beads", "--holder", "ci-runner", stdin=-1)
    tool.hear("works")
    assert started.hear("[").endswith("Skipping database (locked by ci-runner)")
    before = len(started.text)
    started.hear("[")
    assert b"cycle" not in started.text[before:]
    tool.process.stdin.write(b"\n")
    assert tool.wait() == 0
    started.hear("cycle")
    assert not lock_file.exists()
    assert end(started) == 0


def test_a_cycle_is_neither_cut_short_nor_overlapped(world: World, database: Path, lock_file: Path) -> None:
    """A lock that appears during a cycle lets it end; no second cycle begins while the first lasts."""
    started = daemon(world, database, sys.executable, "-c", SLOW, interval="1ms")
    started.hear("began")
    pid = child_of(world, started)
    put(lock_file, record(os.getpid()))
    world.do("beads", "check", database)  # many intervals
    assert started.text == b"began\n"
    os.kill(pid, signal.SIGALRM)
    started.hear("got SIGALRM")
    assert started.hear("[").endswith("Skipping database (locked by tool)")
    assert end(started) == 0
    assert started.rest().count("began") == 1


def test_a_failing_cycle_is_logged_and_does_not_end_the_daemon(world: World, database: Path) -> None:
    mark = database / "mark"
    script = 'if [ -e "$1" ]; then kill -KILL $$; else : >"$1"; exit 7; fi'
    started = daemon(world, database, "sh", "-c", script, "sh", mark)
    assert started.hear("[").endswith("] sh failed with status 7")
    assert started.hear("[").endswith("] sh was killed by SIGKILL")
    assert end(started) == 0


def test_an_entry_of_the_environment_without_a_name_does_not_end_the_daemon(world: World, database: Path) -> None:
    words = [*HOLDFAST, "beads", "daemon", database, "--", "sh", "-c", "echo cycle $NAMED"]
    started = world.start([sys.executable, "-c", NAMELESS, *words], env={"NAMED": "value"})
    started.hear("cycle value")
    assert end(started) == 0


def test_a_missing_command_does_not_end_the_daemon(world: World, database: Path) -> None:
    """The command exists at the start, and is replaced later."""
    tool = database / "tool"
    tool.write_text('#!/bin/sh\nrm -- "$0"\n')
    tool.chmod(0o755)
    started = daemon(world, database, tool)
    assert started.hear("[").endswith(f"] {tool} could not be started: No such file or directory")
    later = database / "later"
    later.write_text("#!/bin/sh\n" + TICK)
    later.chmod(0o755)
    later.rename(tool)
    started.hear("cycle")
    assert end(started) == 0


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("no-such-command", 127, "No such file or directory"),
        ("./no-such-command", 127, "No such file or directory"),
        ("./plain", 126, "Permission denied"),
        ("./", 126, "Permission denied"),
        ("sync --all", 127, "a line for a shell takes holdfast beads daemon DIR -- sh -c '...'"),
    ],
)
def test_a_command_missing_at_the_start_ends_the_daemon(
    world: World, database: Path, command: str, status: int, said: str
) -> None:
    """The message and the status are those of `run`."""
    (world.directory / "plain").write_text("no program")
    done = world.do("beads", "daemon", database, "--", command)
    assert done.stderr.startswith(f"holdfast: {command}: ")
    assert said in done.stderr
    assert done.returncode == status
    assert world.do("run", "l", "--", command).returncode == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_daemon_after_its_cycle(world: World, database: Path, number: signal.Signals) -> None:
    """BD1: the signal is passed on, and the daemon ends when its command has."""
    started = daemon(world, database, sys.executable, "-c", SLOW, interval="1ms")
    started.hear("began")
    pid = child_of(world, started)
    started.signal(number)
    started.hear(f"got {number.name}")
    started.signal(signal.SIGTERM)
    started.hear("got SIGTERM")
    assert started.process.poll() is None
    os.kill(pid, signal.SIGALRM)
    assert started.wait() == 0  # the last signal says how
    assert ended(pid)
    assert started.rest().count("began") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_daemon_that_sleeps_can_be_ended(world: World, database: Path, number: signal.Signals) -> None:
    """BD1."""
    started = daemon(world, database, "sh", "-c", TICK, interval="2h30m")
    started.hear("cycle")
    assert end(started, number) == (0 if number == signal.SIGTERM else -number)
    assert started.rest().endswith(f"] Ended by {number.name}\n")


def test_ctrl_c_reaches_the_command_once(world: World, database: Path) -> None:
    """BD1: the terminal sends it to the whole process group."""
    words = [*HOLDFAST, "beads", "daemon", database, "--", sys.executable, "-c", SLOW]
    started = world.terminal(words)
    started.hear("began")
    pid = child_of(world, started)
    started.type(b"\x03")
    started.hear("got SIGINT")
    os.kill(pid, signal.SIGALRM)
    assert started.wait() == -signal.SIGINT
    assert started.rest().count("got SIGINT") == 1


def test_a_hangup_that_nohup_ignores_does_not_end_the_daemon(world: World, database: Path) -> None:
    started = daemon(world, database, "sh", "-c", TICK, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    started.hear("cycle")
    started.signal(signal.SIGHUP)
    started.hear("cycle")
    started.hear("cycle")
    assert end(started) == 0


def test_a_command_has_no_signal_blocked_or_newly_ignored_by_the_daemon(world: World, database: Path) -> None:
    script = "grep -E '^Sig(Blk|Ign)' /proc/self/status"
    started = daemon(world, database, "sh", "-c", script, interval="1h")
    assert int(started.hear("SigBlk").split()[1], 16) == 0
    ignored = int(started.hear("SigIgn").split()[1], 16)
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGTERM - 1 | 1 << signal.SIGCHLD - 1)
    assert end(started) == 0


def test_cycles_come_no_faster_than_the_interval(world: World, database: Path, lock_file: Path) -> None:
    """BD2: the interval is from one beginning to the next, whether a cycle runs or is skipped."""
    began = time.monotonic()
    started = daemon(world, database, "sh", "-c", TICK, interval="50ms")
    for number in range(10):
        started.hear("cycle")
        assert time.monotonic() - began >= number * 0.05
    put(lock_file, record(os.getpid()))
    began = time.monotonic()
    for number in range(5):
        started.hear("[")
        assert time.monotonic() - began >= (number - 1) * 0.05
    assert end(started) == 0


def test_a_log_file_gets_the_lines_meant_for_stderr(
    world: World, database: Path, tmp_path: Path, lock_file: Path
) -> None:
    log = tmp_path / "daemon.log"
    put(lock_file, record(os.getpid(), "a\nb\x1b[2J"))
    words = [*HOLDFAST, "beads", "daemon", "-v", "--interval", "20ms", "--log", log, database, "--", "sh", "-c", TICK]
    started = world.start(words)
    eventually(lambda: log.exists() and "Skipping database (locked by a\\nb\\x1b[2J)\n" in log.read_text())
    lock_file.unlink()
    started.hear("cycle")
    moved = log.with_name("daemon.log.1")
    log.rename(moved)
    eventually(lambda: log.exists() and "Sync cycle complete" in log.read_text())
    assert end(started) == 0
    assert "Starting sync cycle" in moved.read_text() + log.read_text()
    assert log.read_text().endswith("Ended by SIGTERM\n")
    for line in (moved.read_text() + log.read_text()).splitlines():
        assert re.match(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] \S", line)
        assert line.isprintable()
    assert set(started.rest().split()) == {"cycle"}
    assert started.complaint() == ""


def test_a_log_whose_reader_is_gone_does_not_end_the_daemon(world: World, database: Path) -> None:
    """BD3: stderr is a pipe whose reader has gone away."""
    reading, writing = os.pipe()
    words = [*HOLDFAST, "beads", "daemon", "-v", "--interval", "1ms", database, "--", "sh", "-c", TICK]
    started = world.start(words, stderr=writing)
    os.close(writing)
    os.close(reading)
    for _ in range(3):
        started.hear("cycle")
    assert end(started) == 0


def test_a_killed_daemon_leaves_only_its_command(world: World, database: Path) -> None:
    started = daemon(world, database, sys.executable, "-c", SLOW)
    started.hear("began")
    pid = child_of(world, started)
    assert end(started, signal.SIGKILL) == -signal.SIGKILL
    assert not ended(pid)
    os.kill(pid, signal.SIGALRM)
    eventually(lambda: ended(pid))
    assert [*database.iterdir()] == []


def child_of(world: World, started: Started) -> int:
    (pid,) = [pid for pid in world.mine() if pid != started.pid]
    return pid


# -- every protocol, by -p ---------------------------------------------------------------------------------------------


def options(name: str) -> list[str]:
    return {
        "beads": ["--holder", "ci-runner", "--holder-version", "1.0"],
        "sidecar": ["--payload", '{"job": "x\\u001b[2J"}'],
    }.get(name, ["-t", "a job"])


def named(name: str, place: Path) -> Path:
    """The path to lock, for a protocol."""
    return place if name == "beads" else place / "resource"


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_can_be_used_from_a_shell(world: World, database: Path, name: str) -> None:
    path = named(name, database)
    shown = 'for j in "" -j; do $H status $j -p "$0" "$1"; echo $?; done; $H run -n -p "$0" "$1" -- true; echo $?'
    inside = world.do("run", "-p", name, *options(name), path, "--", "sh", "-c", shown, name, path,
                      env={"H": " ".join(HOLDFAST)})  # fmt: skip
    assert inside.returncode == 0
    *text, one, line, two, status = inside.stdout.splitlines()
    assert (one, two, status) == ("1", "1", "75")
    assert all(row.isprintable() for row in text)
    found = json.loads(line)
    assert (found["state"], found["protocol"], found["liveness"]) == ("held", name, "alive")
    rows = {row[:9].strip(): row[10:] for row in text}
    assert rows["lock"] == f"{found['path']} ({name})"
    if name == "beads":
        assert (rows["tool"], rows["version"]) == ("ci-runner", "1.0")
        assert "tag" not in rows
        assert (found["record"]["holder"], found["record"]["version"]) == ("ci-runner", "1.0")
    elif name == "sidecar":
        assert json.loads(rows["payload"]) == {"job": "x\x1b[2J"}
        assert found["record"]["payload"]["job"] == "x\x1b[2J"
    else:
        assert rows["tag"] == found["holder"]["tag"] == "a job"
    free = world.do("status", "-p", name, path)
    assert (free.returncode, free.stderr) == (0, "")
    assert world.do("wait", "-n", "-p", name, path).returncode == 0
    assert [one.name for one in database.iterdir()] == (["resource"] if name == "flock" else [])


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if name != "flock"])
def test_a_shell_can_hold_a_lock_of_every_protocol(world: World, database: Path, name: str) -> None:
    script = """
    $H try -p "$2" "$1"; echo $?; $H acquire -n -p "$2" "$1"; echo $?; $H status -q -p "$2" "$1"; echo $?
    $H release -p "$2" "$1"; echo $?; $H status -q -p "$2" "$1"; echo $?; $H try -p "$2" "$1"; echo $?
    """
    path = named(name, database)
    done = world.shell(script, path, name)
    assert done.stdout.split() == ["0", "1", "1", "0", "0", "0"], done.stderr
    # The shell has ended as the owner of the lock, and the keeper has noticed that or is about to.
    assert world.do("wait", "-w", "10", "-p", name, path).returncode == 0
    assert world.do("run", "-w", "10", "-p", name, path, "--", "true").returncode == 0
    assert [*database.iterdir()] == []


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("kind", ["fifo", "directory", "loop"])
def test_no_protocol_hangs_on_a_fifo_a_directory_or_a_link_to_itself(
    world: World, database: Path, name: str, kind: str
) -> None:
    path = named(name, database)
    file = {"beads": path / ".exclusive-lock", "sidecar": Path(f"{path}.lock")}.get(name, path)
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    else:
        file.symlink_to(file.name)
    for done in world.each(
        [*words, "-p", name, path, *(["--", "true"] if words[0] == "run" else [])]
        for words in (["status"], ["run", "-n"], ["wait", "-n"])
    ):
        assert str(file) in complaint_of(done, 3)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_record_of_another_protocol_is_refused_and_kept(world: World, database: Path, name: str) -> None:
    path = named(name, database)
    file = {"beads": path / ".exclusive-lock", "sidecar": Path(f"{path}.lock")}.get(name, path)
    foreign = "pid=1\ntimestamp=1\n" if name in ("beads", "sidecar") else record(1)
    file.write_text(foreign)
    done = world.do("run", "-n", "-p", name, path, "--", "true")
    if name == "beads":  # no other program writes a file of that name, so it is a damaged record, which counts as held
        assert "malformed lock file: " in complaint_of(done, 75)
    else:
        assert "holds a record of the " in complaint_of(done, 3)
    assert file.read_text() == foreign
