"""Locks of other programs, made by these programs themselves, as the commands show them (_admin/kinds, foreign.py)."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.support import HOLDFAST, World, dormant, eventually
from process.foreign.node import pnpm
from unit.elsewhere import needs_root

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="these programs are run as they are on POSIX systems"),
    pytest.mark.needs("linux"),
]
SLOW = 60.0
"""Seconds, for programs that are."""
WORDS: dict[str, tuple[list[str], list[str]]] = {
    "run": (["run"], ["--", "true"]),
    "try": (["try", "--owner-pid", "1"], []),
    "acquire": (["acquire", "-n", "--owner-pid", "1"], []),
    "release": (["release", "--owner-pid", "1"], []),
    "break": (["break", "-f", "--id", "0"], []),
}


def need(program: str) -> str:
    """Skip without the program; `make kinds` requires all of them (HOLDFAST_TEST_KINDS=all)."""
    found = shutil.which(program)
    if found is None:
        assert os.environ.get("HOLDFAST_TEST_KINDS") != "all", f"{program} is not installed"
        pytest.skip(f"needs {program}")
    return found


def listed(world: World, *words: object) -> dict[str, dict[str, Any]]:
    """The locks that `ls -r` finds, by path relative to the working directory."""
    done = world.do("ls", "-rj", *words)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {os.path.relpath(one["path"], world.directory): one for one in found}


def status(world: World, path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(world.do("status", "-j", path).stdout)
    return found


def tree(top: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Every file with number, times and content: two results are equal if nothing was changed between them."""
    found = {}
    for path in sorted(top.rglob("*")):
        about = path.lstat()
        content = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path)] = (about.st_ino, about.st_mtime_ns, about.st_mode, content)
    return found


def is_refused(world: World, path: Path, words: str, *, by: Iterable[str] = ("run", "break")) -> None:
    """Check that these commands refuse the path in these words, and that `clean` passes it over."""
    before = tree(path.parent)
    for command, behind in map(WORDS.__getitem__, by):
        done = world.do(*command, path, *behind)
        assert (done.returncode, words in done.stderr) == (3, True), (command, done)
    for place in (path, path.parent) if "acquire" in by else (path,):
        done = world.do("clean", "--yes", "--approve-stale", place)
        assert done.returncode == 0, done
    assert tree(path.parent) == before


# -- git ---------------------------------------------------------------------------------------------------------------

EDITOR = "echo here > {ready}; read x < {go}; exit 1"
"""Says that it was started, and waits for a word; then git's command fails."""


@pytest.fixture
def repository(tmp_path: Path, world: World) -> Path:
    need("git")
    where = tmp_path / "work"
    script = """
        git init -q work && cd work && echo one > file && git add file &&
        git -c user.name=n -c user.email=n@example.org commit -qm first && echo two > file
    """
    assert world.shell(script, env=GIT).returncode == 0
    return where


GIT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "n@x",
       "GIT_COMMITTER_NAME": "n", "GIT_COMMITTER_EMAIL": "n@x"}  # fmt: skip


class Commit:
    """A `git commit -a` whose editor waits."""

    def __init__(
        self, world: World, repository: Path, *more: str, before: Sequence[str] = (), env: Any = GIT, lock: str = ".git"
    ) -> None:
        ready, self.go = repository.parent / "ready", repository.parent / "go"
        for fifo in (ready, self.go):
            os.mkfifo(fifo)
        editor = "sh -c " + shlex.quote(EDITOR.format(ready=shlex.quote(str(ready)), go=shlex.quote(str(self.go))))
        self.process = world.start(
            ["git", "-C", repository, *before, "commit", "-a", *more], env={**env, "GIT_EDITOR": editor}
        )
        assert ready.read_text() == "here\n"
        self.lock = repository / lock / "index.lock"
        assert self.lock.exists()

    def end(self) -> None:
        """End the editor, and git with it."""
        self.go.write_text("x\n")
        assert self.process.wait() == 1

    def interrupt(self) -> None:
        """Kill git before it can clean up, and its editor."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.go.write_text("x\n")
        assert self.process.wait() == -signal.SIGKILL


@pytest.fixture
def commit(world: World, repository: Path) -> Commit:
    return Commit(world, repository)


def test_a_running_commit_and_an_interrupted_one_are_told_apart(world: World, repository: Path, commit: Commit) -> None:
    before = tree(repository)
    (one,) = listed(world).values()
    assert (one["protocol"], one["condition"], one["holder"]["pid"]) == ("git", "held", commit.process.pid)
    assert one["holder"]["command"].endswith("commit -a")
    assert one["holder"]["since"] == pytest.approx(commit.lock.stat().st_mtime)
    shown = world.do("status", commit.lock)
    assert (shown.returncode, f"process {commit.process.pid} works in this repository" in shown.stdout) == (1, True)
    assert tree(repository) == before, "a look has changed something"
    commit.interrupt()
    # A process of this user that may not be inspected (one that sudo or fusermount has just become) may be the holder.
    one = eventually(lambda: next((one for one in listed(world).values() if one["condition"] == "leftover"), None))
    assert (one["liveness"], one["evidence"]["proven"]) == ("dead", False)
    assert one["holder"]["pid"] is None
    shown = world.do("status", commit.lock)
    assert shown.returncode == 1
    assert "interrupted: git has left it" in shown.stdout
    assert f"rm -f {commit.lock}" in shown.stdout
    assert (listed(world, "--stale").keys(), listed(world, "--held").keys()) == ({"work/.git/index.lock"},) * 2
    is_refused(world, commit.lock, "is a lock of git, which holdfast never takes", by=WORDS)


def test_a_commit_is_recognised_whatever_its_message(world: World, repository: Path) -> None:
    """The message may contain names of commands that take no lock."""
    commit = Commit(world, repository, "-e", "-m", "show the log")
    (one,) = listed(world).values()
    assert (one["condition"], one["holder"]["pid"]) == ("held", commit.process.pid)
    commit.end()


ELSEWHERE = {
    "submodule": (
        "git init -q outer && cd outer && git -c protocol.file.allow=always submodule --quiet add ../work it",
        "outer/it", "../.git/modules/it", "",
    ),
    "worktree": ("git -C work worktree add -q ../it", "it", "../work/.git/worktrees/it", ""),
    "separate": ("git clone -q --separate-git-dir=there work it", "it", "../there", ""),
    "link": ("git clone -q work it && mv it/.git there && ln -s ../there it/.git", "it", "../there", ""),
    "option": ("git clone -q --separate-git-dir=there work it && rm it/.git", "it", "../there", "--git-dir"),
    "variable": ("git clone -q --separate-git-dir=there work it && rm it/.git", "it", "../there", "GIT_DIR"),
}  # fmt: skip
"""How it is made, where the files are, where their git directory is from there, and how that is named."""


@pytest.mark.parametrize("case", ELSEWHERE)
def test_a_commit_is_recognised_wherever_its_git_directory_is(world: World, repository: Path, case: str) -> None:
    script, place, directory, named = ELSEWHERE[case]
    assert world.shell(script, env=GIT).returncode == 0
    where = world.directory / place
    (where / "file").write_text("three\n")
    path = str((where / directory).resolve())
    before = [f"--git-dir={path}", f"--work-tree={where}"] if named == "--git-dir" else []
    env = {**GIT, "GIT_DIR": path, "GIT_WORK_TREE": str(where)} if named == "GIT_DIR" else GIT
    commit = Commit(world, where, before=before, env=env, lock=directory)
    found = status(world, Path(path) / "index.lock")
    assert (found["condition"], found["holder"]["pid"]) == ("held", commit.process.pid)
    # Another repository's lock is not its own.
    (repository / ".git" / "index.lock").touch()
    eventually(lambda: status(world, repository / ".git" / "index.lock")["condition"] == "leftover", what="another one")
    # But worktrees share their branches.
    shared = repository / ".git" / "refs" / "heads" / "new.lock"
    shared.touch()
    if case == "worktree":
        assert status(world, shared)["condition"] == "held"
    commit.end()


HOOK = """#!/bin/sh
[ "$1" = prepared ] && echo here > {ready} && read x < {go}
exit 0
"""


def test_the_receiver_of_a_push_is_named_as_the_holder(world: World, repository: Path) -> None:
    """`git-receive-pack` has closed the lock of a branch before its hooks run."""
    ready, go = world.directory / "ready", world.directory / "go"
    for fifo in (ready, go):
        os.mkfifo(fifo)
    assert world.shell("git init -q --bare bare && mkdir -p bare/hooks", env=GIT).returncode == 0
    hook = world.directory / "bare" / "hooks" / "reference-transaction"
    hook.write_text(HOOK.format(ready=shlex.quote(str(ready)), go=shlex.quote(str(go))))
    hook.chmod(0o755)
    push = world.start(["git", "-C", repository, "push", "-q", "../bare", "HEAD:refs/heads/main"], env=GIT)
    assert ready.read_text() == "here\n"
    (one,) = listed(world).values()
    assert (one["protocol"], one["condition"]) == ("git", "held")
    assert "git-receive-pack" in one["holder"]["command"]
    go.write_text("x\n")
    assert push.wait() == 0


def test_the_advice_about_an_interrupted_commit_is_right(world: World, repository: Path, commit: Commit) -> None:
    """Git refuses while the file exists, and commits once it has been removed as advised."""
    commit.interrupt()
    command = ["git", "-C", repository, "commit", "-qam", "second"]
    refused = world.start(command, env=GIT)
    assert (refused.wait(), "index.lock': File exists" in refused.complaint()) == (128, True)
    # It may have to wait, as above.
    advice = eventually(lambda: next(iter(re.findall(".*rm -f.*", status(world, commit.lock)["next"])), None))
    assert world.shell(advice[advice.index("rm -f") :].partition(",")[0]).returncode == 0
    assert world.start(command, env=GIT).wait() == 0


@pytest.mark.parametrize("ends", [Commit.end, lambda commit: commit.lock.unlink()])
def test_wait_ends_with_gits_lock(world: World, commit: Commit, ends: Any) -> None:
    """The wait sleeps until the event of the removal."""
    waiter = world.start([*HOLDFAST, "wait", "-v", commit.lock])
    eventually(lambda: dormant(waiter.pid), what="that it waits")
    ends(commit)
    assert waiter.wait() == 0
    assert "is free" in waiter.complaint()


def test_wait_for_gits_lock_ends_at_its_timeout_and_names_the_holder(world: World, commit: Commit) -> None:
    done = world.do("wait", "-w", "2.5", "-E", "9", commit.lock)
    assert done.returncode == 9
    assert f"waiting for {commit.lock} (git's): held by process {commit.process.pid}" in done.stderr
    assert "is not free" in done.stderr
    result = json.loads(world.do("wait", "-n", "-j", commit.lock).stdout)
    assert (result["result"], result["holder"]["pid"]) == ("held", commit.process.pid)


def test_wait_for_several_locks_includes_gits(world: World, commit: Commit) -> None:
    done = world.do("wait", "-w", "0.1", "free.lock", commit.lock)
    assert (done.returncode, "index.lock (git's) is not free" in done.stderr) == (1, True)
    waiter = world.start([*HOLDFAST, "wait", "free.lock", commit.lock])
    eventually(lambda: dormant(waiter.pid), what="that it waits")
    commit.end()
    assert waiter.wait() == 0


def test_watch_reports_gits_locks(world: World, repository: Path) -> None:
    watch = world.start([*HOLDFAST, "watch", repository / ".git"])
    eventually(lambda: dormant(watch.pid), what="that it watches")
    commit = Commit(world, repository)
    began = json.loads(watch.hear("{"))
    assert (began["kind"], began["protocol"], began["path"]) == ("acquired", "git", str(commit.lock))
    commit.end()
    assert json.loads(watch.hear("{"))["kind"] == "released"


@pytest.mark.parametrize(
    ("where", "command", "earlier"),
    [
        pytest.param("work/inner", ["hash-object", "--stdin"], True, id="another-repository"),
        pytest.param("work", ["cat-file", "--batch"], True, id="only-reads"),
        pytest.param("work", ["hash-object", "--stdin"], False, id="began-later"),
        pytest.param("work/deep", ["hash-object", "--stdin"], True, id="may-be-it"),
    ],
)
def test_only_a_git_command_that_could_hold_the_lock_is_taken_for_its_holder(
    world: World, commit: Commit, where: str, command: list[str], earlier: bool
) -> None:
    assert world.shell("cd work && git init -q inner && mkdir deep", env=GIT).returncode == 0
    commit.interrupt()
    other = world.start(["git", "-C", world.directory / where, *command], env=GIT, stdin=-1)
    here = world.directory / where.partition("/deep")[0]
    eventually(lambda: os.readlink(f"/proc/{other.pid}/cwd") in (str(here), str(world.directory / where)), what="git")
    os.utime(commit.lock, None if earlier else (0, 0))
    found = status(world, commit.lock)
    may_be = where == "work/deep"
    assert (found["condition"], found["holder"]["pid"]) == (("held", other.pid) if may_be else ("leftover", None)), (
        found
    )


@pytest.mark.parametrize("name", ["HEAD.lock", "refs/heads/main.lock", "packed-refs.lock", "config.lock"])
def test_other_locks_of_git_are_recognised_and_their_paths_refused(world: World, repository: Path, name: str) -> None:
    path = repository / ".git" / name
    done = world.do("run", path, "--", "true")
    assert (done.returncode, "is where git makes a lock of its own" in done.stderr) == (3, True)
    assert world.do("wait", "-n", path).returncode == 0
    seen = world.do("status", path)
    assert (seen.returncode, f"note      {path} is where git makes a lock of its own" in seen.stdout) == (0, True)
    path.touch()
    assert listed(world)[f"work/.git/{name}"]["protocol"] == "git"


def test_a_holdfast_lock_in_a_git_directory_is_not_taken_for_gits(world: World, repository: Path) -> None:
    assert world.do("run", repository / ".git" / "deploy.lock", "--", "true").returncode == 0
    with_index = repository / ".git" / "index.lock"
    with_index.write_text(f"pid={os.getpid()}\ntimestamp=17\n")
    assert listed(world)["work/.git/index.lock"]["protocol"] == "sema"


def test_a_git_lock_counts_as_held_where_processes_cannot_be_inspected(world: World, commit: Commit) -> None:
    """Whether it is a leftover cannot be known there."""
    commit.interrupt()
    found = json.loads(world.do("status", "-j", commit.lock, env={"HOLDFAST_OS": "posix"}).stdout)
    assert (found["condition"], found["liveness"]) == ("held", "unknown")
    assert "try as root" in found["evidence"]["text"]


# -- /run/lock ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def service_lock() -> Iterator[Path]:
    """A path of our own among the locks of services. Requested before `world`, it goes after all processes."""
    if not os.access("/run/lock", os.W_OK):
        pytest.skip("needs a directory /run/lock to write to")
    with tempfile.TemporaryDirectory(prefix="holdfast-test-", dir="/run/lock") as where:
        yield Path(where, "the.lock")


def test_a_holdfast_lock_is_recognised_among_the_locks_of_services(service_lock: Path, world: World) -> None:
    """E8: its record names its protocol, though the kernel has it locked. Contenders are told so, or queue up."""
    holder = world.hold(service_lock)
    holder.hear("held")
    for code, command in ((75, ["run", "-n", service_lock, "--", "true"]), (1, ["try", service_lock])):
        done = world.do(*command)
        assert (done.returncode, "held by process" in done.stderr) == (code, True), done
    waiter = world.run(service_lock, "print('mine')")
    watcher = world.start([*HOLDFAST, "wait", service_lock])
    queued = (waiter.pid, 1)
    eventually(lambda: queued in [(one["pid"], one["position"]) for one in status(world, service_lock)["waiters"]])
    eventually(lambda: dormant(watcher.pid), what="that it waits")
    holder.process.communicate(timeout=SLOW)
    waiter.hear("mine")
    assert (waiter.wait(), watcher.wait()) == (0, 0)


def test_a_file_that_only_the_kernel_has_locked_is_waited_for(service_lock: Path, world: World) -> None:
    """A holdfast lock file is in that state for a moment, before its record is written."""
    need("flock")
    other = world.start(["flock", "-n", service_lock, "sh", "-c", "echo locked; cat"], stdin=-1)
    other.hear("locked")
    assert status(world, service_lock)["protocol"] == "flock"
    done = world.do("run", "-n", service_lock, "--", "true")
    assert (done.returncode, "held" in done.stderr) == (75, True), done
    other.process.communicate(timeout=SLOW)


# -- programs that wait for a line -------------------------------------------------------------------------------------


class Gate:
    """An action of a program that reports its beginning and waits to be told to end: shell words for a script."""

    def __init__(self, directory: Path) -> None:
        self._ready, self._go = directory / "gate-ready", directory / "gate-go"
        for fifo in (self._ready, self._go):
            os.mkfifo(fifo)
        self.script = f"echo here > {self._ready}; read x < {self._go}"

    def reached(self) -> None:
        assert self._ready.read_text() == "here\n"

    def open(self) -> None:
        self._go.write_text("x\n")


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def test_dpkg_is_seen_and_waited_for(world: World, tmp_path: Path, gate: Gate) -> None:
    """A real package is installed into a directory of its own; the kernel's lock on its files shows it."""
    need("dpkg-deb")
    package, state = tmp_path / "package", tmp_path / "dpkg"
    for directory in (package / "DEBIAN", state / "info", state / "updates", state / "triggers", tmp_path / "root"):
        directory.mkdir(parents=True)
    for name in ("status", "available"):
        (state / name).touch()
    control = "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: n <n@example.org>\nDescription: x\n"
    (package / "DEBIAN" / "control").write_text(control)
    (package / "DEBIAN" / "preinst").write_text(f"#!/bin/sh\n{gate.script}\n")
    (package / "DEBIAN" / "preinst").chmod(0o755)
    assert world.shell("dpkg-deb --root-owner-group -b package x.deb >/dev/null").returncode == 0
    forced = ("--force-not-root", "--force-script-chrootless", "--log=/dev/null")
    path = {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    dpkg = world.start(["dpkg", f"--admindir={state}", f"--instdir={tmp_path}/root", *forced, "-i", "x.deb"], env=path)
    gate.reached()
    before = tree(state)
    found = {name: one for name, one in listed(world, state).items() if one["condition"] == "held"}
    assert {
        name: (one["protocol"], one["condition"], one["holder"]["pid"]) for name, one in found.items()
    } == dict.fromkeys(("dpkg/lock", "dpkg/lock-frontend"), ("dpkg", "held", dpkg.pid))
    assert f"process {dpkg.pid} (dpkg " in status(world, state / "lock")["next"]
    assert "never remove this file" in status(world, state / "lock")["next"]
    assert tree(state) == before
    is_refused(world, state / "lock", "is a lock of dpkg")
    waiter = world.start([*HOLDFAST, "wait", state / "lock-frontend"])
    eventually(lambda: dormant(waiter.pid), what="that it waits")
    gate.open()
    assert (dpkg.wait(), waiter.wait()) == (0, 0)
    assert {one["condition"] for one in listed(world, state).values()} == {"free"}
    assert world.do("status", state / "lock").returncode == 0


@pytest.mark.parametrize("program", ["vim.tiny", "vim.basic"])
def test_a_swap_file_of_vim_names_its_editor(world: World, tmp_path: Path, program: str) -> None:
    need(program)
    (tmp_path / "notes.txt").write_text("one\n")
    vim = world.terminal([program, "-u", "NONE", "-i", "NONE", "notes.txt"], env={"TERM": "xterm"}, size=(80, 24))
    swap = tmp_path / ".notes.txt.swp"
    eventually(swap.exists, what="the swap file")
    vim.type(b"ix\x1b:preserve\r")
    eventually(lambda: (one := listed(world)) and "with changes" in str(one[swap.name]["holder"]), what="changes")
    before = tree(tmp_path)
    one = listed(world)[swap.name]
    assert (one["protocol"], one["condition"], one["holder"]["pid"]) == ("vim", "held", vim.pid)
    assert "has it open for writing" in one["evidence"]["text"]
    assert tree(tmp_path) == before
    is_refused(world, swap, "is a lock of vim")
    vim.signal(signal.SIGKILL)
    vim.wait()
    one = status(world, swap)
    assert (one["condition"], one["state"], one["holder"]["pid"]) == ("leftover", "held", vim.pid)
    assert f"vim -r {tmp_path}/notes.txt" in one["next"]
    recover = world.terminal([program, "-u", "NONE", "-i", "NONE", "-r", "notes.txt"], env={"TERM": "xterm"})
    recover.type(b"\r\r:w! saved\r:q!\r")
    eventually(
        lambda: (tmp_path / "saved").exists() and (tmp_path / "saved").read_text() == "xone\n", what="the rescue"
    )


def test_dotlockfile_is_judged_by_its_pid_or_by_five_minutes(world: World, tmp_path: Path) -> None:
    need("dotlockfile")
    shell = world.sh("dotlockfile -p -r 0 a.lock && dotlockfile -r 0 b.lock && echo held && read x", stdin=-1)
    shell.hear("held")
    before = tree(tmp_path)
    found = listed(world)
    assert [(one["protocol"], one["condition"], one["holder"]["pid"]) for one in found.values()] == [
        ("dotlock", "held", shell.pid), ("dotlock", "held", None),
    ]  # fmt: skip
    assert tree(tmp_path) == before
    is_refused(world, tmp_path / "a.lock", "is a lock of dotlock")
    waiter = world.start([*HOLDFAST, "wait", tmp_path / "a.lock"])
    eventually(lambda: dormant(waiter.pid), what="that it waits")
    assert world.start(["dotlockfile", "-p", "-r", "0", "a.lock"]).wait() != 0
    shell.signal(signal.SIGKILL)
    assert (shell.wait(), waiter.wait()) == (-signal.SIGKILL, 0), "the end of the process wakes"
    os.utime(tmp_path / "b.lock", (0, 0))
    assert [(one["condition"], one["state"]) for one in listed(world).values()] == [("leftover", "free")] * 2
    for name in ("a.lock", "b.lock"):
        assert world.start(["dotlockfile", "-p", "-r", "0", name]).wait() == 0, "it is replaced, as we say"


def test_a_lock_link_of_emacs_names_its_editor(world: World, tmp_path: Path) -> None:
    need("emacs")
    script = '(progn (find-file "notes.txt") (insert "x") (sleep-for 1000))'
    emacs = world.start(["emacs", "--batch", "-Q", "--eval", script])
    lock = tmp_path / ".#notes.txt"
    eventually(lock.is_symlink, what="the link")
    before = tree(tmp_path)
    one = listed(world)[lock.name]
    assert (one["protocol"], one["condition"], one["holder"]["pid"]) == ("emacs", "held", emacs.pid)
    assert tree(tmp_path) == before
    is_refused(world, lock, "is a lock of emacs")
    waiter = world.start([*HOLDFAST, "wait", lock])
    eventually(lambda: dormant(waiter.pid), what="that it waits")
    emacs.signal(signal.SIGKILL)
    assert (emacs.wait(), waiter.wait()) == (-signal.SIGKILL, 0)
    one = status(world, lock)
    assert (one["condition"], one["state"]) == ("leftover", "free")
    again = world.start(["emacs", "--batch", "-Q", "--eval", script])
    eventually(lambda: names(lock, again.pid), what="that Emacs replaces it without asking")
    again.signal(signal.SIGKILL)
    again.wait()


def names(lock: Path, pid: int, before: str = ".") -> bool:
    """Whether the link names the process; it may be missing for a moment."""
    try:
        return f"{before}{pid}" in os.readlink(lock)
    except FileNotFoundError:
        return False


def test_borg_is_seen_by_the_names_in_its_lock(world: World, tmp_path: Path, gate: Gate) -> None:
    need("borg")
    mine = {"BORG_BASE_DIR": str(tmp_path / "home"), "BORG_PASSPHRASE": ""}
    assert world.start(["borg", "init", "-e", "none", "backup"], env=mine).wait() == 0
    borg = world.start(["borg", "with-lock", "backup", "sh", "-c", gate.script], env=mine)
    gate.reached()
    before = tree(tmp_path / "backup")
    found = {name: one for name, one in listed(world, "backup").items() if one["protocol"] == "borg"}
    assert {name: (one["condition"], one["holder"]["pid"]) for name, one in found.items()} == dict.fromkeys(
        ("backup/lock.exclusive", "backup/lock.roster"), ("held", borg.pid)
    )
    assert tree(tmp_path / "backup") == before
    is_refused(world, tmp_path / "backup" / "lock.exclusive", "is a lock of borg")
    borg.signal(signal.SIGKILL)
    gate.open()
    borg.wait()
    one = status(world, tmp_path / "backup" / "lock.exclusive")
    assert (one["condition"], one["state"]) == ("leftover", "free")
    assert world.start(["borg", "with-lock", "backup", "true"], env=mine).wait() == 0, "borg removes it, as we say"


def test_restic_is_seen_by_its_locks(world: World, tmp_path: Path) -> None:
    need("restic")
    mine = {"RESTIC_PASSWORD": "x", "RESTIC_REPOSITORY": str(tmp_path / "repository")}
    assert world.start(["restic", "-q", "--no-cache", "init"], env=mine).wait() == 0
    restic = world.start(["restic", "-q", "--no-cache", "backup", "--stdin"], env=mine, stdin=-1)
    locks = tmp_path / "repository" / "locks"
    (lock,) = eventually(lambda: [one for one in locks.iterdir() if "tmp" not in one.name], what="the lock")

    def undisturbed() -> bool:
        """Whether a look changes nothing; restic itself may still be about to change the mode."""
        before = tree(locks)
        one = listed(world, "repository")[f"repository/locks/{lock.name}"]
        assert (one["protocol"], one["condition"], one["holder"]["pid"]) == ("restic", "held", restic.pid)
        return tree(locks) == before

    eventually(undisturbed, what="a look that changes nothing")
    is_refused(world, lock, "is a lock of restic")
    restic.signal(signal.SIGKILL)
    restic.wait()
    os.utime(lock, (0, 0))
    one = status(world, lock)
    assert one["condition"] == "leftover"
    assert world.start(["restic", "-q", "--no-cache", "unlock"], env=mine).wait() == 0
    assert not lock.exists()


NPX = """
const withLock = require(process.argv[1]);
withLock(process.argv[2], () => new Promise(() => { console.log("held"); setInterval(() => {}, 1000); }));
"""


def test_npx_is_seen_by_the_directory_that_it_touches(world: World, tmp_path: Path) -> None:
    """npm's own function takes the lock; installing a package would need a network."""
    npm = Path(need("npm")).resolve().parents[1]
    where = npm / "node_modules" / "libnpmexec" / "lib" / "with-lock.js"
    if not where.exists():
        assert os.environ.get("HOLDFAST_TEST_KINDS") != "all", "this npm has no such lock: version 11 has"
        pytest.skip("needs npm 11, whose npx has such a lock")
    lock = tmp_path / "_npx" / "0123" / "concurrency.lock"
    lock.parent.mkdir(parents=True)
    node = world.start(["node", "-e", NPX, where, lock])
    node.hear("held")
    one = listed(world)["_npx/0123/concurrency.lock"]
    assert (one["protocol"], one["condition"], one["liveness"]) == ("npm", "held", "alive")
    node.signal(signal.SIGKILL)
    node.wait()
    is_refused(world, lock, "is a lock of npm")
    os.utime(lock, (0, 0))
    one = status(world, lock)
    assert (one["condition"], one["state"]) == ("leftover", "free")


def test_cargo_is_seen_by_the_kernels_lock(world: World, tmp_path: Path, gate: Gate) -> None:
    need("cargo")
    need("cc")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "lib.rs").touch()
    (tmp_path / "Cargo.toml").write_text('[package]\nname = "x"\nversion = "0.1.0"\nedition = "2021"\n')
    words = json.dumps(gate.script)
    build = f'fn main() {{ std::process::Command::new("sh").args(["-c", {words}]).status().unwrap(); }}\n'
    (tmp_path / "build.rs").write_text(build)
    cargo = world.start(["cargo", "build", "-q", "--offline"])
    gate.reached()
    before = tree(tmp_path / "target" / "debug")
    found = {name: one for name, one in listed(world).items() if one["protocol"] == "cargo"}
    assert found
    assert {(one["condition"], one["holder"]["pid"]) for one in found.values()} == {("held", cargo.pid)}
    assert tree(tmp_path / "target" / "debug") == before
    lock = tmp_path / next(iter(found))
    is_refused(world, lock, "is a lock of cargo")
    waiter = world.start([*HOLDFAST, "wait", lock])
    eventually(lambda: dormant(waiter.pid), what="that it waits")
    gate.open()
    assert (cargo.wait(60), waiter.wait()) == (0, 0)


BACKEND = """
import os
def build_wheel(*_words, **_more):
    os.system(os.environ["GATE"])
    raise SystemExit(1)
"""


def test_uv_is_seen_by_the_kernels_lock(world: World, tmp_path: Path, gate: Gate) -> None:
    need("uv")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "backend.py").write_text(BACKEND)
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (tmp_path / "x" / "pyproject.toml").write_text(system + '[project]\nname = "x"\nversion = "1"\n')
    words = [
        "uv",
        "pip",
        "install",
        "--offline",
        "--cache-dir",
        "cache",
        "--target",
        "there",
        "--python",
        sys.executable,
    ]
    uv = world.start([*words, "./x"], env={"GATE": gate.script})
    gate.reached()
    before = tree(tmp_path)
    found = {name: one for name, one in listed(world).items() if name.endswith(".lock")}
    assert {"cache/.lock", "there/.lock"} <= found.keys()
    assert {(one["protocol"], one["condition"], one["holder"]["pid"]) for one in found.values()} == {
        ("uv", "held", uv.pid)
    }
    assert tree(tmp_path) == before
    is_refused(world, tmp_path / "cache" / ".lock", "is a lock of uv")
    gate.open()
    uv.wait()


def _pnpm() -> str:
    if os.environ.get("HOLDFAST_TEST_KINDS") == "all":
        return pnpm()
    return need("pnpm")


def test_pnpm_is_seen_by_the_kernels_lock_on_its_store(world: World, tmp_path: Path, gate: Gate) -> None:
    """An installation shares the lock, and `pnpm store prune` waits for it."""
    program, locks = _pnpm(), tmp_path / "run" / f"pnpm-store-operation-locks-{os.getuid()}"
    (tmp_path / "run").mkdir(0o700)
    mine = {"HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(tmp_path / "run"), "CI": "true"}
    (tmp_path / "app").mkdir()
    script = {"name": "app", "version": "1.0.0", "scripts": {"install": gate.script}}
    (tmp_path / "app" / "package.json").write_text(json.dumps(script))
    installing = world.start([program, "-C", "app", "install", "--offline"], env=mine)
    gate.reached()
    before = tree(locks)
    found = {name: one for name, one in listed(world, "run").items() if one["protocol"] == "pnpm"}
    assert [(one["condition"], one["holder"]["pid"], one["holders"][0]["shared"]) for one in found.values()] == [
        ("held", installing.pid, True)
    ] * 2
    assert "pnpm store prune waits" in status(world, locks / "all-stores.lock")["reason"]
    assert tree(locks) == before
    is_refused(world, locks / "all-stores.lock", "is a lock of pnpm")
    pruning = world.start([program, "-C", "app", "store", "prune"], env=mine)
    eventually(lambda: status(world, locks / "all-stores.lock")["waiters"], what="that it waits, as we say")
    waiter = world.start([*HOLDFAST, "wait", locks / "all-stores.lock"])
    eventually(lambda: dormant(waiter.pid), what="that it waits")
    gate.open()
    assert (installing.wait(), pruning.wait(), waiter.wait()) == (0, 0, 0)
    assert {one["condition"] for one in listed(world, "run").values()} == {"free"}


TERRAFORM = """
resource "terraform_data" "x" {
  provisioner "local-exec" {
    command = %s
  }
}
"""


def test_terraform_is_seen_by_the_kernels_lock_on_its_state(world: World, tmp_path: Path, gate: Gate) -> None:
    program = shutil.which("tofu") or need("terraform")
    mine = {"CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1", "TF_CLI_CONFIG_FILE": "/dev/null"}
    (tmp_path / "infra").mkdir()
    (tmp_path / "infra" / "main.tf").write_text(TERRAFORM % json.dumps(gate.script))
    assert world.start([program, "-chdir=infra", "init"], env=mine).wait() == 0
    apply = [program, "-chdir=infra", "apply", "-auto-approve"]
    applying = world.start(apply, env=mine)
    gate.reached()
    before = tree(tmp_path / "infra")
    ((name, one),) = listed(world, "infra").items()
    assert (name, one["protocol"], one["condition"]) == ("infra/.terraform.tfstate.lock.info", "terraform", "held")
    assert (one["holder"]["pid"], one["evidence"]["proven"]) == (applying.pid, True)
    assert one["holder"]["tag"].startswith("OperationTypeApply by ")
    assert tree(tmp_path / "infra") == before
    lock = tmp_path / name
    is_refused(world, lock, "is a lock of terraform")
    second = world.start(apply, env=mine)
    assert (second.wait(), "Error acquiring the state lock" in second.complaint()) == (1, True), "as we say"
    waiter = world.start([*HOLDFAST, "wait", lock])
    eventually(lambda: dormant(waiter.pid), what="that it waits")
    applying.signal(signal.SIGKILL)
    assert (applying.wait(), waiter.wait()) == (-signal.SIGKILL, 0)
    gate.open()
    one = status(world, lock)
    assert (one["condition"], one["state"]) == ("leftover", "free")
    (tmp_path / "infra" / "main.tf").write_text("")
    assert world.start(apply, env=mine).wait() == 0, "it keeps nobody out, as we say"


SHADOW = """
mount --bind etc /etc || exit 70
EDITOR="sh -c '$GATE'" vipw
"""
"""In a mount namespace, whose /etc is a directory of the test."""


@needs_root
def test_vipw_is_seen_by_its_lock_files(world: World, tmp_path: Path, gate: Gate) -> None:
    need("vipw")
    need("useradd")
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group", "shadow", "gshadow"):
        shutil.copy(f"/etc/{name}", tmp_path / "etc")
    inside = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    vipw = world.start([*inside, SHADOW], env={"GATE": gate.script})
    gate.reached()
    before = tree(tmp_path / "etc")
    found = {name: one for name, one in listed(world).items() if one["protocol"] == "shadow"}
    assert {name: one["condition"] for name, one in found.items()} == {
        "etc/.pwd.lock": "held",
        "etc/passwd.lock": "held",
    }
    (pid,) = {one["holder"]["pid"] for one in found.values()}
    assert found["etc/passwd.lock"]["holder"]["command"].endswith("vipw")
    assert tree(tmp_path / "etc") == before
    is_refused(world, tmp_path / "etc" / "passwd.lock", "is a lock of shadow")
    waiter = world.start([*HOLDFAST, "wait", tmp_path / "etc" / "passwd.lock"])
    eventually(lambda: dormant(waiter.pid), what="that it waits")
    os.kill(pid, signal.SIGKILL)
    gate.open()
    assert waiter.wait() == 0
    vipw.wait()
    found = {name: one["condition"] for name, one in listed(world).items() if one["protocol"] == "shadow"}
    assert found == {"etc/.pwd.lock": "free", "etc/passwd.lock": "leftover"}
    assert status(world, tmp_path / "etc" / "passwd.lock")["state"] == "free"
    script = "mount --bind etc /etc && useradd --no-create-home somebody"
    assert world.start([*inside, script]).wait() == 0, "it is replaced, as we say"
    assert "somebody" in (tmp_path / "etc" / "passwd").read_text()


def test_a_document_that_libreoffice_edits_is_seen(world: World, tmp_path: Path) -> None:
    need("soffice")
    (tmp_path / "letter.txt").write_text("one\n")
    words = ["soffice", "--headless", "--norestore", f"-env:UserInstallation=file://{tmp_path}/profile"]
    mine = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    assert world.start([*words, "--convert-to", "odt", "letter.txt"], env=mine).wait(SLOW) == 0
    world.start([*words, "--writer", "letter.odt"], env=mine)
    lock = tmp_path / ".~lock.letter.odt#"
    eventually(lambda: lock.exists() and lock.read_bytes().endswith(b";"), SLOW, "the lock")
    eventually(lambda: "has letter.odt open" in status(world, lock)["evidence"]["text"], what="that it edits it")
    before = tree_of(lock)
    one = listed(world)[lock.name]
    assert (one["protocol"], one["condition"], one["liveness"]) == ("libreoffice", "held", "alive")
    assert os.path.basename(os.readlink(f"/proc/{one['holder']['pid']}/exe")) == "soffice.bin"
    done = world.do("run", lock, "--", "true")
    assert (done.returncode, "is a lock of libreoffice" in done.stderr, tree_of(lock)) == (3, True, before)
    waiter = world.start([*HOLDFAST, "wait", lock])
    eventually(lambda: dormant(waiter.pid), what="that it waits")
    os.kill(one["holder"]["pid"], signal.SIGKILL)
    lock_left = eventually(lambda: (one := status(world, lock))["condition"] == "leftover" and one, what="its end")
    assert "rm " in lock_left["next"]
    assert world.shell(lock_left["next"]).returncode == 0
    assert waiter.wait() == 0


def tree_of(path: Path) -> tuple[int, int, bytes]:
    about = path.lstat()
    return about.st_ino, about.st_mtime_ns, path.read_bytes()


def test_firefox_is_seen_by_its_profile(world: World, tmp_path: Path) -> None:
    need("firefox-esr")
    profile = tmp_path / "profile"
    profile.mkdir()
    words = ["firefox-esr", "--headless", "--no-remote", "--profile", profile, "about:blank"]
    mine = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    firefox = world.start(words, env=mine)
    lock = profile / "lock"
    eventually(lambda: lock.is_symlink() and (profile / "compatibility.ini").exists(), SLOW, "the profile")
    found = {name: one for name, one in listed(world, "profile").items() if one["protocol"] == "mozilla"}
    assert {name: (one["condition"], one["holder"]["pid"]) for name, one in found.items()} == dict.fromkeys(
        ("profile/lock", "profile/.parentlock"), ("held", firefox.pid)
    )
    second = world.start(words, env=mine)
    assert "already running" in second.rest(SLOW) + second.complaint(), "it is refused, as we say"
    done = world.do("run", lock, "--", "true")
    assert (done.returncode, "is a lock of mozilla" in done.stderr) == (3, True)
    waiter = world.start([*HOLDFAST, "wait", lock])
    eventually(lambda: dormant(waiter.pid), what="that it waits")
    firefox.signal(signal.SIGKILL)
    assert (firefox.wait(), waiter.wait()) == (-signal.SIGKILL, 0)
    found = {name: one["condition"] for name, one in listed(world, "profile").items() if one["protocol"] == "mozilla"}
    assert found == {"profile/lock": "leftover", "profile/.parentlock": "free"}
    again = world.start(words, env=mine)
    eventually(lambda: names(lock, again.pid, "+"), SLOW, "that it is replaced, as we say")


def test_every_file_that_the_kernel_has_locked_is_listed(world: World, tmp_path: Path) -> None:
    """With --all, wherever it is; and only once if it is in a listed directory."""
    (tmp_path / "there").mkdir()
    (tmp_path / "data.bin").write_bytes(b"data")
    script = """
import fcntl, sys
file = open("data.bin", "r+")
fcntl.lockf(file, fcntl.LOCK_SH, 2, 1)
print("locked", flush=True)
sys.stdin.read()
"""
    holder = world.start([sys.executable, "-c", script], stdin=-1)
    holder.hear("locked")
    flock = world.start(["flock", "-n", "x.lock", "sh", "-c", "echo locked; cat"], stdin=-1)
    flock.hear("locked")
    assert {name: one["protocol"] for name, one in listed(world, "there").items()} == {}
    for place in ("there", "."):
        done = world.do("ls", "-aj", place)
        assert (done.returncode, done.stderr) == (0, "")
        every = [json.loads(line) for line in done.stdout.splitlines()]
        (one,) = [one for one in every if one["path"] == str(tmp_path / "data.bin")]
        assert (one["protocol"], one["condition"], one["holder"]["pid"]) == ("fcntl", "held", holder.pid)
        assert (one["holders"][0]["shared"], one["holder"]["tag"], one["waiters"]) == (True, "shared, bytes 1-2", [])
        assert [one["protocol"] for one in every if one["path"] == str(tmp_path / "x.lock")] == ["flock"]
    shown = world.do("ls", "--all", "there").stdout
    assert any(line.split()[:2] == ["held", "fcntl"] and "data.bin" in line for line in shown.splitlines())
    refused = world.do("ls", "--all", env={"HOLDFAST_OS": "posix"})
    assert (refused.returncode, "--all needs the kernel's tables" in refused.stderr) == (2, True)
