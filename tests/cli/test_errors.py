"""Usage errors and failures are reported on stderr in helpful words, with the right exit status."""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import itertools
import json
import os
import re
import shlex
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from cli.support import HOLDFAST, World
from holdfast.cli import outcome, parse
from holdfast.cli.completion import commands
from unit.elsewhere import MS_RDONLY, MS_REMOUNT, elsewhere, mount, needs_root
from unit.stepping import sema_record

COMMANDS = ["run", "try", "acquire", "release", "wait", "status"]
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
HOSTILE = {
    "escape": b"\x1b[2J\x1b]0;owned\x07 \x9b31m \xc2\x9b31m",
    "bidi": "\u202egpj.exe\u2066\u200f".encode(),
    "long": b"x" * 10_000,
    "too long": b"x" * 50_000,
    "quotes": b"\"'`$(true)\\ {} %s",
    "lines": b"one\ntwo\rpid=1\r\n\ttimestamp=0",
    "not utf-8": b"a\xff\xfeb",
    "separators": "a\u2028b\u2029c\u0085d".encode(),
    "astral": "😀𝄞".encode(),
}


def words(command: str, path: object) -> list[object]:
    return [command, path, "--", "true"] if command == "run" else [command, path]


def complaint_of(done: subprocess.CompletedProcess[str], status: int) -> str:
    """The command's only line on stderr."""
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("holdfast: ")
    return done.stderr


# -- usage -------------------------------------------------------------------------------------------------------------


MISTAKES: list[tuple[list[str], str]] = [
    ([], "required: COMMAND. `holdfast --help` lists them\n"),
    (["beads"], "required: COMMAND. `holdfast beads --help` lists them\n"),
    (["no-such-command"], "invalid choice"),
    ([""], "invalid choice"),
    (["--", "status"], "the command comes first"),
    (["-x"], "unrecognized arguments: -x\n"),
    (["-qv", "status", "L"], "unrecognized arguments: -qv. -q is an option of run,"),
    (["--versio"], "unrecognized arguments: --versio. Did you mean --version?\n"),
    (["--json", "ls"], "unrecognized arguments: --json. --json is an option of"),
    (["beads", "--hlep"], "unrecognized arguments: --hlep. Did you mean --help?\n"),
    (["-"], "invalid choice"),
    (["status"], "LOCK"),
    (["status", "--no-such-option", "L"], "--no-such-option"),
    (["status", "--js", "L"], "--js"),
    (["try", "L", "M"], "M"),
    (["run"], "LOCK"),
    (["run", "L"], "no command"),
    (["run", "L", "--"], "no command"),
    (["run", "L", "--", ""], "no command"),
    (["run", "L", "-c", "true", "--", "true"], "-c and CMD exclude each other"),
    (["run", "L", "sh", "x", "--", "y"], "is sh a LOCK, or the command?"),
    (["run", "-w", "5x", "L", "--", "true"], "'5x' is not a duration; write seconds, or units, as in 500ms, 30s"),
    (["statsu", "L"], "Did you mean status?"),
    (["status", "--slot", "3", "L"], "Did you mean --slots?"),
    (["run", "-p", "flok", "L", "--", "true"], "Did you mean flock?"),
    (["ls", "--sort", "ages"], "Did you mean age?"),
    (["lock", "L"], "Did you mean run (a command) or acquire (this shell)?"),
    (["unlock", "L"], "Did you mean release?"),
    (["try", "--slots", "3", "L"], "unrecognized arguments: --slots L. --slots is an option of run, wait, status\n"),
    (["try", "-w", "3", "L"], "unrecognized arguments: -w L. try does not wait; acquire does, with -w DURATION\n"),
    (["try", "--wait=3", "L"], "unrecognized arguments: --wait=3. try does not wait; acquire does, with -w DURATION\n"),
    (["try", "-n", "L"], "unrecognized arguments: -n. try never waits: leave this out\n"),
    (["status", "-w3", "L"], "unrecognized arguments: -w3. -w is an option of run, acquire, wait, doctor\n"),
    (["release", "-E3", "L"], "unrecognized arguments: -E3. -E is an option of run, try, acquire, wait\n"),
    (["try", "-Z", "--jsno", "L"], "unrecognized arguments: -Z --jsno. Did you mean --json?\n"),
    (["version"], "invalid choice: 'version'. Did you mean --version?\n"),
    (
        ["run", "-x", "L", "--", "true"],
        "unrecognized arguments: -x. In holdfast, a lock is exclusive, unless it is shared",
    ),
    (["wait", "-s", "L"], "unrecognized arguments: -s. Did you mean --shared?\n"),
    (["run", "--wait=5", "L", "--", "true"], "unrecognized arguments: --wait=5. Did you mean --timeout?\n"),
    (["acquire", "--nb", "L"], "unrecognized arguments: --nb. Did you mean --nonblock?\n"),
    (["run", "-o", "L", "--", "true"], "unrecognized arguments: -o. Did you mean --until command?\n"),
    (["run", "--unlock", "L", "--", "true"], "unrecognized arguments: --unlock. In holdfast, run releases by itself"),
    (["acquire", "-s", "L"], "unrecognized arguments: -s. --shared is an option of run, wait, status\n"),
    (["ls", "-x"], "unrecognized arguments: -x\n"),
    (["run", "L", "-c", "echo", "hello"], "-c takes one word, so hello would be one more LOCK; put the line in quotes"),
    (["run", "-n", "L", "-t", "x", "--command=echo", "a", "b"], "-c takes one word, so a would be one more LOCK"),
    (["release", "-f", "L"], "To remove another's lock: holdfast break --force L\n"),
    (["run", "-p", "redis", "L", "--", "true"], "sema, semats, sidecar.\n"),
    (["run", "-n", "-w", "1", "L", "--", "true"], "exclude each other"),
    (["run", "--mode", "9", "L", "--", "true"], "octal"),
    (["run", "--mode", "400", "L", "--", "true"], "mode"),
    (["run", "--mode", "4755", "L", "--", "true"], "'4755' is not permission bits from 0 to 777"),
    (["run", "-p", "ofd", "--range", "10", "L", "--", "true"], "'10' is not START:LENGTH in bytes, such as 0:512"),
    (["run", "-p", "proper-lockfile", "--realpath", "maybe", "L", "--", "true"], "'maybe' is neither yes nor no"),
    (["run", "L", "./L", "--", "true"], "/L is given twice; leave one out\n"),
    (["run", "-p", "no-such", "L", "--", "true"], "sema"),
    (["run", "--stale-after", "0", "L", "--", "true"], "stale_after"),
]


def test_a_mistake_in_the_call_is_reported_with_status_2(world: World) -> None:
    for done, (arguments, wanted) in zip(world.each(row for row, _ in MISTAKES), MISTAKES, strict=True):
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert wanted in done.stderr
        assert "Traceback" not in done.stderr
    assert [*world.directory.iterdir()] == []


def test_a_misspelt_variable_is_reported_with_status_2(world: World, path: Path) -> None:
    done = world.do("run", path, "--", "true", env={"HOLDFAST_WITHOUT": "flok"})
    assert complaint_of(done, 2).startswith("holdfast: HOLDFAST_WITHOUT=flok: expected one of unnamed, ")


def test_two_names_of_one_lock_file_are_refused(world: World, path: Path) -> None:
    (world.directory / "here").symlink_to(".")
    other = world.directory / "here" / path.name
    complaint = complaint_of(world.do("run", path, other, "--", "true"), 2)
    assert complaint == f"holdfast: {path} and {other} name the same lock file; leave one out\n"


def test_the_version_is_on_stdout(world: World) -> None:
    done = world.do("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"holdfast \d+\.\d+\.\d+\n", done.stdout)


def test_the_help_command_and_the_short_version_option_work(world: World) -> None:
    asked = world.each(
        [["help"], ["help", "run"], ["help", "beads", "check"], ["help", "sema"], ["help", "help"], ["-V"]]
    )
    usual = world.each(
        [["--help"], ["run", "--help"], ["beads", "check", "--help"], ["sema", "--help"], ["--help"], ["--version"]]
    )
    asked += world.each([["help", "--", "run"], ["help", "--"]])
    usual += world.each([["run", "--help"], ["--help"]])
    for one, other in zip(asked, usual, strict=True):
        assert one.stdout or one.stderr
        assert (one.returncode, one.stdout, one.stderr) == (0, other.stdout, other.stderr)


def test_help_lists_every_exit_status(world: World) -> None:
    every, *those = world.each([["--help"], *([command, "--help"] for command in COMMANDS)])
    for command, done in zip(COMMANDS, those, strict=True):
        assert (done.returncode, done.stderr) == (0, "")
        assert "exit status: " in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 88
        assert command in every.stdout


def test_every_help_has_examples_that_can_be_read(world: World) -> None:
    """Two or more, which use options of the table, and are narrow enough for any terminal."""
    for command in commands():
        assert len(command.examples) >= 2, command.name
        if not command.text:
            shown = world.do(*command.name.split(), "--help", env={"COLUMNS": "40"}).stdout
            for line in command.examples:
                assert f"{line} ".startswith(f"holdfast {command.name} ")
                assert len(line) <= 88
                assert f"  {line}\n" in shown
                tokens = shlex.shlex(line.replace("$$", "1"), posix=True, punctuation_chars=True)
                tokens.whitespace_split = True
                parse([*itertools.takewhile(lambda word: word not in ("|", "||", "&&", ">"), tokens)][1:])


# -- paths -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["empty", "directory", "fifo", "symlink", "socket", "device"])
def test_a_path_that_cannot_be_a_lock_file_is_refused_at_once(world: World, path: Path, kind: str) -> None:
    given: object = path
    if kind == "empty":
        given = ""
    elif kind == "directory":
        (path / "x").mkdir(parents=True)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "symlink":
        path.with_name("target").write_text("precious")
        path.symlink_to("target")
    elif kind == "device":
        given = "/dev/null"
    else:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    for done in world.each(words(command, given) for command in COMMANDS):
        complaint = complaint_of(done, 3)
        assert {"empty": "is empty", "symlink": "symbolic link"}.get(kind, kind.replace("fifo", "FIFO")) in complaint
    if kind == "symlink":
        assert path.with_name("target").read_text() == "precious"


def test_an_empty_path_is_not_taken_for_the_working_directory(world: World, tmp_path: Path) -> None:
    dead = tmp_path / "dead.lock"
    dead.write_text("pid=1\ntimestamp=17\n")
    events = tmp_path / "events"
    events.write_text('{"kind": "held", "time": 1, "path": "/l"}\n')
    there = sorted(os.listdir(tmp_path))
    calls: list[list[object]] = [["clean", "--yes", "--approve-stale", ""], ["clean", "--yes", tmp_path, ""]]
    calls += [["reap", ""], ["ls", ""], ["watch", "--seconds", "0", ""], ["top", "--once", ""]]
    calls += [["doctor", ""], ["doctor", "--peer", "", "."], ["break", ""], ["break", "-p", "sema", ""]]
    calls += [["timeline", ""], ["timeline", "-o", "", events], ["watch", "--record", "", "--seconds", "0"]]
    calls += [["run", "--record", "", "L", "--", "true"]]
    calls += [["beads", "check", ""], ["beads", "daemon", "", "--", "true"]]
    for done in world.each(calls):
        assert complaint_of(done, 3) == "holdfast: the path is empty\n", done.args
    for lock, *words in ("", "beads", "check"), (None, "top"):
        done = world.do(*words, "-j", "")
        assert json.loads(done.stdout) == {"result": "failed", "lock": lock, "status": 3, "why": "the path is empty"}
        assert (done.returncode, done.stderr) == (3, "holdfast: the path is empty\n")
    assert sorted(os.listdir(tmp_path)) == there


@pytest.mark.parametrize("command", ["run", "try", "acquire"])
def test_a_missing_directory_is_reported_and_can_be_made(world: World, path: Path, command: str) -> None:
    deep = path / "a" / "b.lock"
    complaint = complaint_of(world.do(*words(command, deep)), 3)
    assert str(path / "a") in complaint
    assert "--parents" in complaint
    assert not path.exists()
    done = world.do(command, "--parents", *words(command, deep)[1:])
    assert (done.returncode, done.stderr) == (0, "")
    assert (path / "a").is_dir()


@pytest.mark.parametrize("command", ["try", "acquire", "release", "wait", "status", "break"])
def test_a_failure_is_an_object_with_json(world: World, path: Path, command: str) -> None:
    """The message is also on stderr, as without --json."""
    too_long = path.with_name("x" * 300)
    done = world.do(command, "--json", too_long)
    failure = json.loads(done.stdout)
    assert list(failure) == ["result", "lock", "status", "why"]
    assert failure["result"] == "failed"
    assert failure["lock"] == str(too_long)
    assert failure["status"] == done.returncode == 3
    assert done.stderr == f"holdfast: {failure['why']}\n"


def test_a_failure_of_a_command_about_directories_is_an_object_with_json(world: World, path: Path) -> None:
    calls = [["ls", ""], ["clean", ""], ["top", path / "missing"], ["doctor", "--peer", path / "missing", path.parent]]
    calls += [["clean", "etcd://127.0.0.1:1/l"]]
    for done in world.each([[*call, "--json"] for call in calls]):
        failure = json.loads(done.stdout)
        assert (failure["result"], failure["lock"]) == ("failed", None)
        assert (failure["status"], f"holdfast: {failure['why']}\n") == (done.returncode, done.stderr)


def test_each_of_several_locks_has_an_object_of_its_own(world: World, path: Path) -> None:
    done = world.do("status", "--json", path, path.parent, path)
    assert [json.loads(line)["result"] for line in done.stdout.splitlines()] == ["free", "failed", "free"]
    assert done.returncode == 3
    both = world.do("wait", "-n", "--json", path, path.with_name("x" * 300))
    assert json.loads(both.stdout)["lock"] is None


def test_a_failure_with_json_shows_no_password(world: World) -> None:
    done = world.do("status", "--json", "etcd://user:secret@127.0.0.1:1/l")
    assert done.returncode == 3
    assert json.loads(done.stdout)["lock"] == "etcd://user@127.0.0.1:1/l"
    assert "secret" not in done.stdout + done.stderr


def test_a_free_lock_in_a_missing_directory_comes_with_a_hint(world: World, path: Path) -> None:
    """The exit status says that the lock is free, but acquiring it takes more."""
    deep = path / "a" / "b.lock"
    hint = "its directory does not exist; run, try and acquire make it with --parents"
    waited, quiet, as_json, status, there = world.each(
        [["wait", "-n", deep], ["wait", "-n", "-q", deep], ["wait", "-n", "-j", deep], ["status", deep], ["wait", path]]
    )
    assert (waited.returncode, waited.stderr) == (0, f"holdfast: {deep} is free, but {hint}\n")
    assert (status.returncode, status.stderr) == (0, "")
    assert f"note      {hint}\n" in status.stdout
    assert [(done.returncode, done.stderr) for done in (quiet, as_json, there)] == [(0, "")] * 3


def test_a_free_lock_below_a_file_comes_with_advice_to_choose_another_path(world: World, path: Path) -> None:
    """No option turns the file into a directory."""
    path.write_text("no directory\n")
    hint = f"{path} is not a directory, so no lock file can be in it; choose another path"
    for deep in (path / "a.lock", path / "a" / "b.lock"):
        waited, status, beads = world.each([["wait", "-n", deep], ["status", deep], ["status", "-p", "beads", path]])
        assert (waited.returncode, waited.stderr) == (0, f"holdfast: {deep} is free, but {hint}\n")
        for done in (status, beads):
            assert (done.returncode, f"note      {hint}\n" in done.stdout) == (0, True)


def test_a_free_slot_in_a_missing_directory_comes_with_a_hint(world: World, path: Path) -> None:
    deep = path / "a" / "b"
    hint = "its directory does not exist; run makes it with --parents"
    calls = [["wait", "--slots", 2, deep], ["status", "--slots", 2, deep], ["status", "--slots", 2, path]]
    waited, status, there = world.each(calls)
    assert (waited.returncode, waited.stderr) == (0, f"holdfast: {deep} has a free slot, but {hint}\n")
    assert (status.returncode, f"note      {hint}\n" in status.stdout) == (0, True)
    assert (there.returncode, "note" in there.stdout) == (0, False)


def test_parents_is_not_suggested_where_proper_lockfile_needs_an_existing_target(world: World, path: Path) -> None:
    """proper-lockfile locks only what exists, in whatever directory; and its locks may outlive their target."""
    hint = "does not exist, and proper-lockfile locks what exists"
    by = ["-p", "proper-lockfile"]
    for missing in (path, path / "a"):
        waited, status, run = world.each(
            [["wait", *by, missing], ["status", *by, missing], ["run", "--parents", *by, missing, "--", "true"]]
        )
        assert (waited.returncode, f"{missing}.lock is free, but {missing} {hint}" in waited.stderr) == (0, True)
        assert (status.returncode, f"note      {missing} {hint}" in status.stdout) == (0, True)
        assert f"{missing} {hint}" in complaint_of(run, 3)
    waited = world.do("wait", *by, "--realpath", "no", path / "a")
    assert f"{path}/a.lock is free, but its directory does not exist" in waited.stderr
    (path.parent / f"{path.name}.lock").mkdir()
    os.utime(f"{path}.lock", (1, 1))
    assert "does not exist" not in world.do("status", *by, path).stdout


@pytest.mark.parametrize(
    "error", [OSError(errno.EAGAIN, "refused"), MemoryError(), OSError(errno.EMFILE, os.strerror(errno.EMFILE))]
)
def test_the_limits_that_an_error_names_are_those_of_the_system(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Windows, for one, has no `ulimit`."""

    class Surroundings:
        limits = "what this system has"

    monkeypatch.setattr(outcome, "environment", Surroundings)
    is_of_start = isinstance(error, OSError) and error.errno == errno.EAGAIN
    status = outcome.not_started(["make"], error) if is_of_start else outcome.failed(error)  # type: ignore[arg-type]
    assert status == 3
    assert "; a limit is reached (what this system has)\n" in capsys.readouterr().err


@needs_root
@pytest.mark.needs("flock")
def test_every_view_says_that_a_dead_lock_on_a_read_only_filesystem_cannot_be_acquired(tmp_path: Path) -> None:
    """V10. Nor can a free lock be acquired there."""

    def do(*words: object) -> tuple[int, str]:
        done = subprocess.run(
            [*HOLDFAST, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.returncode, done.stdout

    def look() -> None:
        code, shown = do("status", tmp_path / "dead")
        assert code == 3
        assert "state     held (stale)" in shown
        assert "its filesystem is read-only, so nobody can take it over" in shown
        assert "takes it over at once" not in shown
        assert "next      Make its filesystem writable" in shown
        code, shown = do("status", "-j", tmp_path / "dead")
        told = json.loads(shown)
        assert (code, told["result"], told["state"], told["condition"]) == (3, "held", "held", "stale")
        assert do("wait", tmp_path / "dead") == (3, f"holdfast: {tmp_path}/dead: {told['reason']}\n")
        assert do("status", "--slots", 1, tmp_path / "slot")[0] == do("wait", "--slots", 1, tmp_path / "slot")[0] == 3
        assert [len(do("ls", "-q", which, tmp_path)[1].splitlines()) for which in ("--held", "--stale")] == [4, 0]
        told = json.loads(do("ls", "-j", tmp_path / "dead")[1])
        assert (told["result"], told["state"], told["condition"]) == ("held", "held", "stale")
        code, shown = do("clean", tmp_path)
        assert (code, "so nobody can take it over" in shown) == (0, True), shown
        free = tmp_path / "no"
        beside_dead = ["status", "--slots", 2, tmp_path / "slot"]
        for words in (["status", free], ["wait", free], ["status", "--slots", 2, free], beside_dead):
            code, shown = do(*words)
            assert (code, "its filesystem is read-only, so no lock file can be made there" in shown) == (0, True), shown
        for command in ("status", "wait"):  # the first slot has its file, and can be acquired
            code, shown = do(command, "-p", "flock", "--slots", 2, tmp_path / "stays")
            assert (code, "read-only" in shown) == (0, False), shown

    def read_only() -> None:
        mount("tmpfs", str(tmp_path), "tmpfs")
        (tmp_path / "stays.0.lock").touch()
        for name in ("dead", "slot.0.lock"):
            (tmp_path / name).write_bytes(sema_record(2**22 + 5, 1))
        mount("tmpfs", str(tmp_path), "tmpfs", MS_REMOUNT | MS_RDONLY)

    elsewhere(look, mounts=read_only, limit=120)


@pytest.mark.parametrize("command", ["release", "wait", "status"])
def test_a_missing_directory_holds_no_lock(world: World, path: Path, command: str) -> None:
    assert world.do(command, path / "a").returncode == 0
    assert not path.exists()


@pytest.mark.parametrize("words", [["run", "l", "--", "true"], ["status", "l"], ["ls"], ["clean"], ["wait", "l"]])
def test_a_working_directory_that_was_removed_is_reported(world: World, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "gone").mkdir()
    done = world.shell('cd "$1/gone" && shift && rmdir ../gone && exec $H "$@"', tmp_path, *words)
    assert "the working directory no longer exists" in complaint_of(done, 3)


@pytest.mark.parametrize(
    "words",
    [
        *(["run", "{}/l", "--", "true"], ["wait", "{}/l"], ["status", "{}/l"], ["status", "{}/sub/../l"]),
        *(["break", "{}/l"], ["ls", "{}"], ["ls", "{}/sub/.."], ["top", "--once", "{}"], ["clean", "{}"]),
        *(["doctor", "-q", "{}"], ["beads", "check", "{}"]),
    ],
)
def test_a_path_from_the_root_on_needs_no_working_directory(world: World, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "gone").mkdir()
    (tmp_path / "sub").mkdir()
    given = [word.format(tmp_path) for word in words]
    done = world.shell('cd "$1/gone" && shift && rmdir ../gone && exec $H "$@"', tmp_path, *given)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("protocol", ["sema", "flock", "proper-lockfile"])
def test_a_directory_in_which_no_file_can_be_made_is_not_called_missing(world: World, protocol: str) -> None:
    more = ["--realpath", "no"] if protocol == "proper-lockfile" else []
    complaint = complaint_of(world.do("run", "-p", protocol, *more, "/proc/a-lock", "--", "true"), 3)
    if protocol == "sema" and os.geteuid() != 0:  # where Linux says EACCES, not ENOENT
        assert "no lock file can be made in /proc; choose a directory that you may write to" in complaint
    else:
        assert "no file can be created in /proc, though it exists; choose another directory" in complaint


def test_a_file_where_a_directory_should_be_is_reported(world: World, path: Path) -> None:
    path.write_text("")
    assert f"{path} is not a directory" in complaint_of(world.do("try", path / "a"), 3)
    assert f"{path} is not a directory" in complaint_of(world.do("try", "--parents", path / "a"), 3)


def test_a_name_that_is_too_long_is_reported(world: World, path: Path) -> None:
    for done in world.each(words(command, "x" * 300) for command in COMMANDS):
        assert "too long" in complaint_of(done, 3)


def test_a_path_that_is_not_utf_8_works_and_is_escaped(world: World, path: Path) -> None:
    name = os.fsencode(path) + b"\xff\x1b[1m"
    done = world.do("run", name, "--", "sh", "-c", '$H status "$1"; $H status -j "$1"', "sh", name,
                    env={"H": " ".join(HOLDFAST)})  # fmt: skip
    *text, line = done.stdout.splitlines()
    assert os.fsencode(json.loads(line)["path"]) == name
    assert "\\udcff\\x1b[1m" in text[0]
    assert not os.path.exists(name)


# -- refusals of the system --------------------------------------------------------------------------------------------


def without_privileges() -> None:
    """Drop the capabilities by which root may read and write everything from what it gets at exec."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH) if os.getuid() == 0 else ():
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


@pytest.mark.parametrize("command", ["run", "try", "acquire"])
def test_a_directory_that_may_not_be_written_is_named(world: World, tmp_path: Path, command: str) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    complaint = complaint_of(world.do(*words(command, closed / "the.lock"), preexec_fn=without_privileges), 3)
    assert f"{closed}: Permission denied; no lock file can be made in {closed}; choose a directory that" in complaint
    assert [*closed.iterdir()] == []


@pytest.mark.parametrize("protocol", ["flock", "ofd", "proper-lockfile", "sidecar"])
def test_a_directory_that_may_not_be_written_is_named_by_every_protocol(
    world: World, tmp_path: Path, protocol: str
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o755)
    (closed / "data").touch()
    closed.chmod(0o555)
    lock = closed / ("data" if protocol in ("proper-lockfile", "sidecar") else "lock")
    complaint = complaint_of(world.do("run", "-p", protocol, lock, "--", "true", preexec_fn=without_privileges), 3)
    closed.chmod(0o755)  # otherwise only root could remove its content
    assert f"Permission denied; no lock file can be made in {closed}; choose a directory that" in complaint
    assert [*closed.iterdir()] == [closed / "data"]


def test_a_lock_that_may_not_be_read_counts_as_held(world: World, path: Path) -> None:
    path.write_text("pid=1\ntimestamp=1\n")
    path.chmod(0)
    done = world.do("try", path, preexec_fn=without_privileges)
    assert (done.returncode, done.stdout) == (1, "")
    assert "may not be read" in done.stderr
    done = world.do("status", "-j", path, preexec_fn=without_privileges)
    assert (done.returncode, json.loads(done.stdout)["liveness"]) == (1, "unknown")


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A lock path on a filesystem without a free block."""
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    point = tmp_path / "full"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", point], check=True)
    (point / "filler").write_bytes(b"x" * 4096)
    yield point / "the.lock"
    subprocess.run(["umount", point], check=True)


@pytest.mark.parametrize("command", ["run", "try", "acquire"])
def test_a_full_disk_is_reported_and_leaves_nothing(world: World, full: Path, command: str) -> None:
    complaint = complaint_of(world.do(*words(command, full)), 3)
    assert "No space left on device" in complaint
    assert str(full) in complaint
    assert [one.name for one in full.parent.iterdir()] == ["filler"]


# -- terminals and closed streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_closed_streams_change_no_exit_status(world: World, path: Path, command: str) -> None:
    tail = {"run": "-- true", "try": "-q", "acquire": "-q"}.get(command, "")
    done = world.shell(f'$H {command} "$1" {tail} >&-; echo $?; $H status . 2>&-; echo $?', path)
    assert done.stdout.split() == ["0", "3"], done.stderr
    assert done.stderr == ""


def test_no_message_goes_to_stdout_when_stderr_is_closed(world: World, path: Path, held: int) -> None:
    script = '$H try "$1" 2>&-; $H run -n "$1" -- true 2>&-; $H status 2>&-; $H nothing 2>&-; $H run M -- nothing 2>&-'
    assert world.shell(script, path).stdout == ""
    assert held


def test_a_reader_that_has_gone_causes_no_traceback(world: World, path: Path) -> None:
    done = world.shell('{ $H status "$1"; echo $? >status; } | true', path)
    assert done.stderr == ""
    # A reader that ends first kills it by SIGPIPE, as it kills `cat`; one that ends later does not.
    assert (path.parent / "status").read_text() in ("0\n", "141\n")


SAYINGS = [["--version"], ["--help"], ["help"], ["run", "--help"], ["beads", "--help"]]
SAYINGS += [["timeline", "-o", "-", "events"]]
"""What only prints something."""


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """A recording of one event."""
    file = tmp_path / "events"
    file.write_text('{"kind": "held", "time": 1, "path": "/l"}\n')
    return file


@pytest.mark.usefixtures("events")
def test_a_command_that_only_prints_reports_a_full_disk(world: World) -> None:
    more = [["postgresql", "init", "--print", "postgresql://db/app"]] if importlib.util.find_spec("psycopg") else []
    with open("/dev/full", "w") as full:
        for done in world.each([*SAYINGS, *more], stdout=full):
            assert complaint_of(done, 3) == "holdfast: standard output: No space left on device\n", done.args


@pytest.mark.usefixtures("events")
def test_a_command_that_only_prints_ends_quietly_when_its_reader_has_gone(world: World) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        for done in world.each(SAYINGS, stdout=theirs):
            assert (done.returncode, done.stderr) == (-signal.SIGPIPE, ""), done.args
    finally:
        os.close(theirs)


def test_a_closed_stream_causes_no_traceback(world: World, events: Path) -> None:
    done = world.shell('for words in "timeline -o - $1" top --version --help; do $H $words >&-; echo $?; done', events)
    assert (done.stdout.split(), done.stderr) == (["0"] * 4, "")
    done = world.shell("$H timeline - <&-; echo $?")
    assert (done.stdout, done.stderr) == ("3\n", "holdfast: standard input: it is closed\n")


def test_a_hostile_tag_reaches_no_terminal_and_breaks_no_json(world: World, path: Path) -> None:
    calls: list[list[object]] = []
    for kind, tag in HOSTILE.items():
        lock = path.with_name(kind)
        calls += [["try", "-t", tag, lock], ["status", "-j", lock], ["status", lock], ["try", lock]]
    every = world.each(calls)
    for kind, first, seen, *more in zip(HOSTILE, every[::4], every[1::4], every[2::4], every[3::4], strict=True):
        assert first.returncode == 0, (kind, first.stderr)
        found = json.loads(seen.stdout)
        assert found["holder"]["pid"] == found["record"]["pid"] > 1
        assert len(found["holder"]["tag"]) <= 10_000
        text = [row for done in (first, seen, *more) for row in done.stderr.splitlines()]
        text += [row for done in more for row in done.stdout.splitlines()]
        assert all(character.isprintable() for row in text for character in row), kind
        assert max(map(len, more[1].stderr.splitlines())) < 1000


def test_no_control_character_of_a_record_reaches_the_terminal(world: World, path: Path) -> None:
    path.write_bytes(b"pid=1\x1b[2J\ntimestamp=\x9b\ntag=\x1b]0;x\x07\n")
    done = world.do("status", path)
    assert done.returncode == 1
    assert all(character.isprintable() for row in done.stdout.splitlines() for character in row)
    path.write_bytes(b"pid=1\ntimestamp=18446744073709551615\ntag=\x1b]0;x\x07\xe2\x80\xae\n")
    done = world.do("status", path)
    assert (done.returncode, done.stderr) == (1, "")
    assert all(character.isprintable() for row in done.stdout.splitlines() for character in row)


def test_a_tag_is_escaped_for_an_ascii_output(world: World, path: Path) -> None:
    script = '$H try -q -t "gr\u00fcn" "$1"; $H status "$1"; echo $?'
    done = world.shell(script, path, env={"PYTHONIOENCODING": "ascii"})
    assert done.stderr == ""
    assert "gr\\xfcn" in done.stdout
    assert done.stdout.splitlines()[-1] == "1"


def test_a_message_is_folded_between_words_on_a_terminal_and_not_in_a_pipe(world: World, path: Path) -> None:
    world.hold(path, "-t", "some reason of several words").hear("held")
    command = [*HOLDFAST, "run", "-n", path, "--", "true"]
    whole = world.do(*command[len(HOLDFAST) :]).stderr
    narrow = world.terminal(command, size=(72, 24)).rest()
    assert whole.count("\n") == 1
    lines = narrow.splitlines()
    assert len(lines) > 3
    assert all(len(line) <= 72 or " " not in line.strip() for line in lines)
    assert re.sub(r"\d+", "N", " ".join(narrow.split())) == re.sub(r"\d+", "N", " ".join(whole.split()))


@pytest.mark.parametrize("columns", [40, 72, 100])
def test_a_command_to_be_copied_is_not_folded(world: World, path: Path, columns: int) -> None:
    path.write_text("prose")
    for words in (("wait", "-n", path), ("status", path)):
        shown = world.terminal([*HOLDFAST, *words], size=(columns, 24)).rest()
        assert f"(holdfast break -p sema {path})" in shown
    path.unlink()
    ours = shlex.join(HOLDFAST)
    shown = world.terminal(["sh", "-c", f"{ours} try -q the.lock; {ours} try the.lock; :"], size=(columns, 24)).rest()
    assert "holdfast release the.lock" in shown
