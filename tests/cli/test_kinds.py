"""Locks of other programs, made by these programs themselves, as the commands show them (_admin/kinds, foreign.py)."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from cli.support import HOLDFAST, World, dormant, eventually

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="these programs are run as they are on POSIX systems"),
    pytest.mark.needs("linux"),
]
WORDS: dict[str, tuple[list[str], list[str]]] = {
    "run": (["run"], ["--", "true"]),
    "try": (["try", "--owner-pid", "1"], []),
    "acquire": (["acquire", "-n", "--owner-pid", "1"], []),
    "release": (["release", "--owner-pid", "1"], []),
    "break": (["break", "-f", "--id", "0"], []),
}


def need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")


def listed(world: World, *words: object) -> dict[str, dict[str, Any]]:
    """What `ls -r` finds, by path as seen from the working directory."""
    done = world.do("ls", "-rj", *words)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {os.path.relpath(one["path"], world.directory): one for one in found}


def status(world: World, path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(world.do("status", "-j", path).stdout)
    return found


def tree(top: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """All that is there, with number, times and content: two looks are equal if nothing was changed between them."""
    found = {}
    for path in sorted(top.rglob("*")):
        about = path.lstat()
        content = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path)] = (about.st_ino, about.st_mtime_ns, about.st_mode, content)
    return found


def is_refused(world: World, path: Path, words: str) -> None:
    """`run`, `try`, `acquire`, `release`, `break` refuse it in these words; `clean` passes it over."""
    before = tree(path.parent)
    for command, behind in WORDS.values():
        done = world.do(*command, path, *behind)
        assert (done.returncode, words in done.stderr) == (3, True), (command, done)
    for place in (path, path.parent):
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

    def __init__(self, world: World, repository: Path) -> None:
        ready, self.go = repository.parent / "ready", repository.parent / "go"
        for fifo in (ready, self.go):
            os.mkfifo(fifo)
        editor = "sh -c " + shlex.quote(EDITOR.format(ready=shlex.quote(str(ready)), go=shlex.quote(str(self.go))))
        self.process = world.start(["git", "-C", repository, "commit", "-a"], env={**GIT, "GIT_EDITOR": editor})
        assert ready.read_text() == "here\n"
        self.lock = repository / ".git" / "index.lock"
        assert self.lock.exists()

    def end(self) -> None:
        """The editor ends, and git with it."""
        self.go.write_text("x\n")
        assert self.process.wait() == 1

    def interrupt(self) -> None:
        """Git dies before it can tidy up; its editor ends, too."""
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
    (one,) = listed(world).values()
    assert (one["condition"], one["liveness"], one["evidence"]["proven"]) == ("leftover", "dead", False)
    assert one["holder"]["pid"] is None
    shown = world.do("status", commit.lock)
    assert shown.returncode == 1
    assert "interrupted: git has left it" in shown.stdout
    assert f"rm -f {commit.lock}" in shown.stdout
    assert (listed(world, "--stale").keys(), listed(world, "--held").keys()) == ({"work/.git/index.lock"},) * 2
    is_refused(world, commit.lock, "is a lock of git, which holdfast never takes")


def test_the_advice_about_an_interrupted_commit_is_right(world: World, repository: Path, commit: Commit) -> None:
    """Git refuses as long as the file is there, and commits when it has been removed as the advice says."""
    commit.interrupt()
    command = ["git", "-C", repository, "commit", "-qam", "second"]
    refused = world.start(command, env=GIT)
    assert (refused.wait(), "index.lock': File exists" in refused.complaint()) == (128, True)
    advice = status(world, commit.lock)["next"]
    assert world.shell(advice[advice.index("rm -f") :].partition(",")[0]).returncode == 0
    assert world.start(command, env=GIT).wait() == 0


@pytest.mark.parametrize("ends", [Commit.end, lambda commit: commit.lock.unlink()])
def test_wait_ends_with_gits_lock(world: World, commit: Commit, ends: Any) -> None:
    """By the event: it sleeps until then."""
    waiter = world.start([*HOLDFAST, "wait", "-v", commit.lock])
    eventually(lambda: dormant(waiter.pid), what="that it waits")
    ends(commit)
    assert waiter.wait() == 0
    assert "is free" in waiter.complaint()


def test_wait_for_gits_lock_is_over_in_time_and_says_what_to_do(world: World, commit: Commit) -> None:
    done = world.do("wait", "-w", "1.2", "-E", "9", commit.lock)
    assert done.returncode == 9
    assert f"waiting for {commit.lock} (git's): held by process {commit.process.pid}" in done.stderr
    assert "did not become free" in done.stderr
    result = json.loads(world.do("wait", "-n", "-j", commit.lock).stdout)
    assert (result["result"], result["holder"]["pid"]) == ("held", commit.process.pid)


def test_watch_tells_of_gits_locks(world: World, repository: Path) -> None:
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
def test_a_git_command_that_cannot_be_the_holder_is_not_taken_for_it(
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
def test_other_locks_of_git_are_known_and_their_places_kept_free(world: World, repository: Path, name: str) -> None:
    path = repository / ".git" / name
    done = world.do("run", path, "--", "true")
    assert (done.returncode, "is where git makes a lock of its own" in done.stderr) == (3, True)
    assert world.do("wait", "-n", path).returncode == 0
    path.touch()
    assert listed(world)[f"work/.git/{name}"]["protocol"] == "git"


def test_a_lock_of_ours_in_a_git_directory_stays_ours(world: World, repository: Path) -> None:
    assert world.do("run", repository / ".git" / "deploy.lock", "--", "true").returncode == 0
    with_index = repository / ".git" / "index.lock"
    with_index.write_text(f"pid={os.getpid()}\ntimestamp=17\n")
    assert listed(world)["work/.git/index.lock"]["protocol"] == "sema"


def test_nothing_is_said_of_git_where_its_processes_may_not_be_looked_at(world: World, commit: Commit) -> None:
    """Held, not left: nobody knows."""
    commit.interrupt()
    found = json.loads(world.do("status", "-j", commit.lock, env={"HOLDFAST_OS": "posix"}).stdout)
    assert (found["condition"], found["liveness"]) == ("held", "unknown")
    assert "try as root" in found["evidence"]["text"]
