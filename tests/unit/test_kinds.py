"""Looks at other programs' locks: what may be under their names, and what is believed of it (_admin/kinds)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import json
import os
import re
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast._admin import kinds
from holdfast._admin.found import Found
from holdfast._admin.kernel_locks import kernel_locks
from holdfast._admin.kinds import git
from holdfast._admin.kinds.base import View
from holdfast._admin.kinds.waiting import until_free
from holdfast._admin.scan import Survey
from holdfast._platform import environment, proc_files, procfs
from holdfast._platform.proc_files import ProcFiles
from holdfast._platform.proc_locks import parse_locks
from holdfast._platform.values import Presence, Process, Storage
from holdfast.liveness import Liveness
from holdfast.model import Evidence, Holder, Status
from process.support import eventually
from unit.elsewhere import elsewhere, needs_root
from unit.stepping import Stepped

pytestmark = pytest.mark.needs("linux")

ALONE = 30_000 + os.getpid() % 30_000
"""A user of whom no other test, in another worker, has a process: what it may look at does not depend on theirs."""

Environments = Callable[..., Stepped]


@pytest.fixture(autouse=True)
def _looked_at_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests look at once at what they have made, which the code may take for as new as the look (PF2)."""
    monkeypatch.setattr(proc_files, "_TICK", 0.0)


def repository(top: Path) -> Path:
    """The part of a git directory by which its locks are known."""
    where = top / ".git"
    for name in ("objects", "refs"):
        (where / name).mkdir(parents=True, exist_ok=True)
    (where / "HEAD").write_text("ref: refs/heads/main\n")
    return where


HASH = "0123456789abcdef" * 4
PLACES: dict[str, str] = {
    "borg": "backup/lock.exclusive",
    "cargo": "target/debug/.cargo-lock",
    "dotlock": "mail.lock",
    "dpkg": "dpkg/lock-frontend",
    "emacs": ".#notes.txt",
    "git": ".git/index.lock",
    "libreoffice": ".~lock.letter.odt#",
    "mozilla": "profile/lock",
    "npm": "cache/_npx/0123/concurrency.lock",
    "pnpm": f"run/pnpm-store-operation-locks-{os.getuid()}/{HASH}.lock",
    "restic": f"repository/locks/{HASH}",
    "run-lock": "LCK..ttyS0",
    "shadow": "etc/passwd.lock",
    "terraform": "infra/.terraform.tfstate.lock.info",
    "uv": "venv/.lock",
    "vim": ".notes.txt.swp",
}
"""A path of each kind."""
MORE: dict[str, str] = {
    "borg": "backup/lock.roster",
    "dpkg": "lists/lock",
    "mozilla": "profile/.parentlock",
    "npm": "_locks/staging-0123.lock",
    "pnpm": f"pnpm-dir-locks-{os.getuid()}/{HASH}.held",
    "shadow": "etc/.pwd.lock",
    "vim": ".notes.txt.swo",
    "git": ".git/refs/heads/main.lock",
}
"""And another one."""
BESIDE = {
    "dpkg": ("status", "info", "partial"),
    "mozilla": ("prefs.js",),
    "restic": ("../config", "../keys", "../snapshots"),
    "uv": ("pyvenv.cfg",),
    "terraform": ("terraform.tfstate",),
}
"""What is beside it."""


def place_of(top: Path, kind: str, places: dict[str, str] = PLACES) -> Path:
    path = top / places[kind]
    if kind == "git":
        repository(top)
    path.parent.mkdir(parents=True, exist_ok=True)
    for name in BESIDE.get(kind, ()):
        (path.parent / name).touch()
    return path


def test_every_kind_has_a_place_and_a_row_in_the_documentation() -> None:
    modules = [file for file in Path(kinds.__file__).parent.glob("*.py") if "\ndef look(" in file.read_text()]
    assert sorted(PLACES) == sorted(file.stem.replace("_", "-") for file in modules)
    page = (Path(__file__).parents[2] / "docs" / "kinds.md").read_text()
    table = page.partition("\n## Kinds\n")[2]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == sorted(PLACES)


def look(env: Any, path: Path) -> Found | None:
    return kinds.find(View(env, env.proc_files, str(path), env.stat(str(path))))


HOSTILE: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "directory": Path.mkdir,
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "dangling link": lambda path: path.symlink_to("/nowhere/at/all:1"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "10 GB": lambda path: (path.touch(), os.truncate(path, 10 << 30)),
    "no text": lambda path: path.write_bytes(bytes(range(256)) * 100),
    "terminal commands": lambda path: path.write_bytes(b"\x1b[2J,\x1b]0;x\x07,\xff\xfe:1@\n" * 3),
    "deep json": lambda path: path.write_bytes(b"[" * 100_000),
    "large numbers": lambda path: path.write_bytes(b"9" * 10_000),
    "nothing": Path.touch,
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("kind", [*PLACES, *(f"{kind} 2" for kind in MORE)])
def test_a_look_at_any_object_under_a_kinds_name_is_harmless(
    tmp_path: Path, environments: Environments, kind: str, what: str
) -> None:
    """KI1: it does not hang, follows no link, reads little, and changes nothing."""
    path = place_of(tmp_path, kind.split()[0], MORE if " " in kind else PLACES)
    HOSTILE[what](path)
    env, before = environments(), path.lstat()
    opened: list[str] = []
    asked: list[int] = []
    env.before["open_existing"] = lambda name, **_: opened.append(name)
    env.before["read"] = lambda _fd, size: asked.append(size)
    found = look(env, path)
    assert sum(asked) <= 64 << 10
    assert "/etc/passwd" not in opened
    if not stat.S_ISREG(before.st_mode):
        assert str(path) not in opened
    if found is not None:
        assert not found.status.evidence.proven
        assert isinstance(found.status.data, bytes)
    assert path.lstat() == before or path.lstat()[:7] == before[:7]
    every = list(Survey(env).tree(str(tmp_path)))
    assert all(isinstance(one, Found) for one in every), every


def test_a_file_that_is_swapped_for_a_fifo_or_a_link_is_not_read(tmp_path: Path, environments: Environments) -> None:
    """KI1: the swap comes between the look at the name and the opening."""
    path = tmp_path / "x.lock"
    path.write_text("12\n")
    for swapped in (os.mkfifo, lambda path: path.symlink_to("/etc/passwd")):
        env = environments()
        view = View(env, env.proc_files, str(path), env.stat(str(path)))
        path.unlink()
        swapped(path)  # type: ignore[operator]
        assert view.data() == b""
        path.unlink()
        path.write_text("12\n")


def test_no_more_names_of_a_directory_are_kept_than_are_needed(tmp_path: Path, environments: Environments) -> None:
    """KI1."""
    for number in range(300):
        (tmp_path / f"{number}").touch()
    env = environments()
    assert len(View(env, env.proc_files, str(tmp_path), env.stat(str(tmp_path))).names()) == 100


@pytest.fixture
def view(tmp_path: Path, environments: Environments) -> View:
    """The view of a file that is a minute old."""
    path = tmp_path / "file"
    path.touch()
    os.utime(path, (time.time() - 60,) * 2)
    env = environments()
    files: Any = env.proc_files()
    return View(env, lambda: files, str(path), env.stat(str(path)))  # type: ignore[arg-type]


def test_a_pid_is_believed_only_where_it_was_written(view: View, dead_pid: int) -> None:
    """KI2: a pid of another host says nothing, and a process that began after the lock is not its holder."""
    found = view.of_process(os.getpid(), "some.other.host.example")
    assert (found.condition, found.liveness, found.holders[0].command) == ("elsewhere", Liveness.UNKNOWN, None)
    assert view.of_process(1).condition == "held"
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = view.of_process(started.pid)
        assert (found.condition, found.liveness) == ("leftover", Liveness.DEAD)
        assert "has this pid now started later" in found.evidence.text
    finally:
        started.communicate(b"\n")
    assert view.of_process(dead_pid).condition == "leftover"
    for number in (0, -5, 2**31, 10**30):
        assert view.of_process(number).condition == "held"


def test_a_pid_without_a_host_is_not_believed_where_other_machines_may_have_written_it(view: View) -> None:
    """KI2."""
    view.env.instead["storage"] = lambda _path: Storage("x", True, None, True, True, True, True, "x")  # type: ignore[attr-defined]
    found = view.of_process(1)
    assert (found.condition, found.liveness, found.holders[0].command) == ("held", Liveness.UNKNOWN, None)
    assert view.of_process(1, view.env.identity().host).liveness is Liveness.ALIVE


def test_the_name_of_this_machine_is_known_qualified_or_not(view: View) -> None:
    """KI2."""
    mine = view.env.identity().host
    short = mine.partition(".")[0]
    assert all(map(view.is_here, (mine, mine.upper(), short)))
    assert not view.is_here(f"not-{short}")
    if "." not in mine:
        assert view.is_here(f"{mine}.example.org")


class Blind(ProcFiles):
    def __init__(self, *, sees: bool, read_at: float) -> None:
        self._sees, self.read_at = sees, read_at

    def sees(self, uid: int) -> bool:
        return self._sees


@pytest.mark.parametrize(
    ("sees", "age", "shared", "wanted"),
    [(True, 60, False, "leftover"), (False, 60, False, "held"), (True, -1, False, "held"), (True, 60, True, "held")],
)
def test_a_lock_is_a_leftover_only_if_its_holder_would_have_been_seen(
    view: View, sees: bool, age: float, shared: bool, wanted: str
) -> None:
    """KI3: not where some processes are hidden, other machines may hold it, or it was made after the look."""
    view.env.instead["storage"] = lambda _path: Storage("x", shared, None, True, True, True, True, "x")  # type: ignore[attr-defined]
    files = Blind(sees=sees, read_at=view.found.st_mtime + age)
    found = View(view.env, lambda: files, view.path, view.found).of_nobody("nobody is there")
    assert found.condition == wanted
    assert (found.liveness is Liveness.DEAD) == (wanted == "leftover")


@pytest.mark.parametrize("another", [False, True])
def test_a_lock_that_is_released_during_the_look_is_no_leftover(
    tmp_path: Path, environments: Environments, dead_pid: int, *, another: bool
) -> None:
    """KI3: its holder removes it, and ends before the processes are looked at. By then another lock may be there,
    perhaps with the same inode number."""
    path = place_of(tmp_path, "shadow")
    env = environments()

    def release(pid: int) -> Process:
        if pid == dead_pid:
            path.unlink()
            if another:
                path.write_text(f"{os.getpid()}")
        return env.real.inspect(pid)

    def take() -> None:
        path.write_text(f"{dead_pid}")
        os.utime(path, (time.time() - 60,) * 2)

    env.instead["inspect"] = release
    take()
    found = Survey(env).file(str(path), alone=True)
    if another:
        assert found is not None
        assert found.status.holder is not None
        assert (found.condition, found.status.holder.pid) == ("held", os.getpid())
    else:
        assert found is None
        take()
        with pytest.raises(FileNotFoundError):
            look(env, path)


def test_a_leftover_that_changes_all_the_time_is_not_looked_at_for_ever(
    tmp_path: Path, environments: Environments, dead_pid: int
) -> None:
    """KI3."""
    path = place_of(tmp_path, "shadow")
    path.write_text(f"{dead_pid}")
    times = itertools.count(1)
    env = environments()
    env.before["inspect"] = lambda _: os.utime(path, (next(times),) * 2)
    with pytest.raises(BlockingIOError, match="changes all the time"):
        look(env, path)


def test_only_a_kernel_lock_is_proof(view: View) -> None:
    """KI4."""
    assert (view.of_kernel().condition, view.of_kernel().evidence.proven) == ("free", False)
    assert not view.of_process(1).evidence.proven
    assert not view.of_openers([1]).evidence.proven
    with open(view.path, "r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        found = View(view.env, view.env.proc_files, view.path, view.found).of_kernel()
    assert (found.condition, found.liveness, found.evidence.proven) == ("held", Liveness.ALIVE, True)
    assert [one.pid for one in found.holders] == [os.getpid()]
    assert "fcntl" in found.evidence.text


def test_a_holdfast_record_under_a_kinds_name_is_holdfasts(tmp_path: Path, environments: Environments) -> None:
    """E8: kinds are asked only where no protocol recognises a record; in a tree, links and directories count."""
    path = place_of(tmp_path, "git")
    env = environments()
    path.write_text(f"pid={os.getpid()}\ntimestamp=17\n")
    assert [one.status.protocol for one in Survey(env).tree(str(tmp_path)) if isinstance(one, Found)] == ["sema"]
    path.write_text("DIRC")
    for survey in (Survey(env).tree(str(tmp_path)), Survey(env).directory(str(path.parent))):
        assert [one.status.protocol for one in survey if isinstance(one, Found)] == ["git"]


# -- records by hand, after the documentation of each program ----------------------------------------------------------

HOST = environment().identity().host
ME, GONE = os.getpid(), 999_999_999 % 4_000_000


def info(pid: int = 0) -> str:
    """The content of a Terraform lock."""
    fields = {"ID": "8a7c", "Operation": "OperationTypeApply", "Info": "", "Who": f"me@{HOST}", "Version": "1.9.0"}
    return json.dumps({**fields, "Created": "2026-11-23T10:00:00Z", "Path": "terraform.tfstate", "x": pid})


def swap(pid: int, host: str, *, dirty: bool) -> bytes:
    """The first block of a Vim swap file."""
    block = bytearray(4096)
    block[:10] = b"b0VIM 9.1\0"
    block[24:28] = pid.to_bytes(4, "little")
    for start, text in ((28, b"me"), (68, host.encode()), (108, b"~me/notes.txt")):
        block[start : start + len(text)] = text
    block[1007] = 0x55 if dirty else 0
    return bytes(block)


def borg(path: Path, name: str) -> None:
    path.mkdir()
    (path / name).touch()


def pnpm(path: Path, owner: str) -> None:
    path.mkdir()
    (path / "owner").write_text(owner)
    (path / "held").write_text("4b3bb3b3160423bb38cde4036368f342")


Make = Callable[[Path], object]
BOOT = environment().uptime()


def text(content: str) -> Make:
    return lambda path: path.write_text(content)


def link(target: str) -> Make:
    return lambda path: path.symlink_to(target)


def swapped(pid: int, host: str = HOST, *, dirty: bool = True) -> Make:
    return lambda path: path.write_bytes(swap(pid, host, dirty=dirty))


def named(name: str) -> Make:
    return lambda path: borg(path, name)


NOW_BOOTED = int(time.time() - BOOT)
HERE, LEFT, LEFT_IN_THE_WAY, THERE = ("held", True), ("leftover", False), ("leftover", True), ("elsewhere", True)
RECORDS: dict[str, tuple[Make, tuple[str, bool], str]] = {
    "emacs": (link(f"me@{HOST}.{ME}"), HERE, "save or revert"),
    "emacs, a file": (text(f"me@{HOST}.{ME}"), HERE, "save or revert"),
    "emacs, gone": (link(f"me@{HOST}.{GONE}:{NOW_BOOTED}"), LEFT, "recover-this-file in notes.txt"),
    "emacs, before the boot": (link(f"me@{HOST}.{ME}:1000000"), LEFT, "recover"),
    "emacs, there": (link(f"me@build7.example.org.{ME}:17"), THERE, "in Emacs on build7.example.org"),
    "vim": (swapped(ME), HERE, "vim -R"),
    "vim, gone": (swapped(GONE, dirty=False), LEFT_IN_THE_WAY, "vim -r '~me/notes.txt'"),
    "vim, there": (swapped(ME, "build7"), THERE, "Leave that file"),
    "shadow": (text(f"{ME}\0"), HERE, f"Wait until process {ME}"),
    "shadow, gone": (text(f"{GONE}\0"), LEFT, "Nothing needs to be done"),
    "shadow, empty": (Path.touch, LEFT_IN_THE_WAY, "rm -f"),
    "mozilla": (link(f"127.0.1.1:+{ME}"), HERE, "another profile (-P)"),
    "mozilla, gone": (link(f"127.0.1.1:+{GONE}"), LEFT, "Nothing"),
    "libreoffice": (text(f"Me,me,{HOST},23.11.2026 15:00,file:///x;"), LEFT_IN_THE_WAY, "rm "),
    "libreoffice, a comma": (text(f"Doe\\, A,a,{HOST},23.11.2026 15:00,file:///x;"), LEFT_IN_THE_WAY, "rm "),
    "libreoffice, there, a comma": (text("Doe\\, A,a,build7,23.11.2026 15:00,x;"), THERE, "Have Doe, A close the doc"),
    "libreoffice, there": (text(",me,build7,23.11.2026 15:00,file:///x;"), THERE, "close the document on build7"),
    "terraform, left": (text(info()), LEFT, "or leave it"),
    "run-lock": (text(f"{ME:10d}\n"), HERE, f"process {ME} has ended"),
    "run-lock, binary": (lambda path: path.write_bytes(ME.to_bytes(4, "little")), HERE, "end it"),
    "run-lock, gone": (text(f"{GONE:10d}\n"), LEFT, "rm -f"),
    "dotlock": (text(f"{ME}\n"), HERE, f"process {ME} removes it"),
    "dotlock, gone": (text(f"{GONE}\n"), LEFT, "dotlockfile replaces it"),
    "borg": (named(f"{HOST}@123456.{ME}-0"), HERE, "never break it"),
    "borg, gone": (named(f"{HOST}@123456.{GONE}-0"), LEFT, "borg break-lock"),
    "borg, there": (named(f"build7.example@123456.{ME}-0"), THERE, "on build7.example"),
    "pnpm": (lambda path: pnpm(path, f"{ME}-1795460634837435270-0"), HERE, f"process {ME}"),
    "pnpm, gone": (lambda path: pnpm(path, f"{GONE}-1795460634837435270-0"), LEFT, "Nothing needs to be done"),
    "borg, nobody": (Path.mkdir, LEFT, "Run borg again"),
}
"""How it is written, how it is judged, and what is said of it; by the kind and what is special."""


@pytest.mark.parametrize("case", RECORDS)
def test_a_record_that_a_program_writes_is_understood(tmp_path: Path, environments: Environments, case: str) -> None:
    make, wanted, advice = RECORDS[case]
    kind = case.partition(",")[0]
    path = place_of(tmp_path, kind)
    make(path)
    past = time.time()
    os.utime(path, (past, past), follow_symlinks=False)
    found = look(environments(), path)
    assert found is not None
    assert (found.status.protocol, found.condition, found.status.locked) == (kind, *wanted), found
    assert advice in found.advice
    assert found.status.holder is not None
    assert not found.status.evidence.proven


@pytest.mark.parametrize(("kept", "wanted"), [(39, "leftover"), (30, "elsewhere")])
def test_a_host_name_that_vim_has_truncated_is_recognised(
    tmp_path: Path, environments: Environments, kept: int, wanted: str
) -> None:
    name = "ip-172-31-20-123.eu-central-1.compute.internal"
    path = place_of(tmp_path, "vim")
    swapped(GONE, name[:kept])(path)
    os.utime(path, (time.time(),) * 2)
    env = environments()
    who = env.real.identity()
    env.instead["identity"] = lambda *_: who.replaced(host=name)
    found = look(env, path)
    assert found is not None
    assert found.condition == wanted


def test_the_readers_of_a_borg_repository_are_known_by_its_roster(tmp_path: Path, environments: Environments) -> None:
    path = place_of(tmp_path, "borg", MORE)
    path.write_text(json.dumps({"shared": [[f"{HOST}@1", GONE, 0], [f"{HOST}@1", ME, 0]]}))
    found = look(environments(), path)
    assert found is not None
    assert (found.condition, found.status.locked, len(found.status.holders)) == ("held", True, 2)
    for other in ("{}", '{"shared": 5}', '{"shared": {"a": 1}, "exclusive": true}', '{"exclusive": null}'):
        path.write_text(other)
        assert look(environments(), path) is None


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("git log --all", ("log", "")),
        ("/usr/lib/git-core/git -C log -c show=grep --git-dir blame --no-pager commit -m log", ("commit", "blame")),
        ("git --git-dir=show -p add log --git-dir=no", ("add", "show")),
        ("git -C", ("", "")),
        ("git --git-dir", ("", "")),
        ("", ("", "")),
    ],
)
def test_the_subcommand_of_git_is_found_in_its_command_line(line: str, wanted: tuple[str, str]) -> None:
    assert git.read_line(line.split()) == wanted


LOCKER = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
input()
"""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int]:
    """Have another process lock the file; its pid. Opening and closing the file here would drop a lock of ours."""
    child = subprocess.Popen([sys.executable, "-c", LOCKER, path], stdin=-1, stdout=-1, text=True, bufsize=1)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        yield child.pid
    finally:
        child.communicate("\n")


@pytest.mark.parametrize("kind", ["dpkg", "shadow", "mozilla"])
def test_a_permanent_file_is_held_by_the_owner_of_its_kernel_lock(
    tmp_path: Path, environments: Environments, kind: str
) -> None:
    """Otherwise it is free, and not an empty leftover."""
    path = place_of(tmp_path, kind, MORE)
    path.touch()
    os.utime(path, (0, 0))
    env = environments()
    assert [one.condition for one in Survey(env).directory(str(path.parent)) if isinstance(one, Found)] == ["free"]
    with locked(path) as pid:
        (one,) = [one for one in Survey(env).directory(str(path.parent)) if isinstance(one, Found)]
    assert (one.status.protocol, one.condition, one.status.evidence.proven) == (kind, "held", True)
    assert one.status.holder is not None
    assert (one.status.holder.pid, one.status.age) == (pid, None)
    assert f"process {pid}" in (one.advice or "")


@pytest.mark.parametrize("kind", ["cargo", "pnpm", "uv"])
def test_a_file_that_flock_locks_is_called_by_its_program(
    tmp_path: Path, environments: Environments, kind: str
) -> None:
    path = place_of(tmp_path, kind)
    path.touch()
    env = environments()
    with open(path, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        (one,) = [one for one in Survey(env).tree(str(tmp_path)) if isinstance(one, Found)]
    assert (one.status.protocol, one.condition, one.status.holders[0].shared) == (kind, "held", True)


def test_the_state_of_terraform_is_locked_by_the_kernel(tmp_path: Path, environments: Environments) -> None:
    path = place_of(tmp_path, "terraform")
    path.write_text(info())
    with open(path.parent / "terraform.tfstate", "r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        found = look(environments(), path)
    assert found is not None
    assert (found.condition, found.status.evidence.proven) == ("held", True)
    assert found.status.holder is not None
    assert (found.status.holder.pid, found.status.holder.tag) == (ME, f"OperationTypeApply by me@{HOST}, id 8a7c")


@pytest.mark.parametrize(
    ("kind", "age", "wanted"),
    [
        ("dotlock", 100, ("held", True)),
        ("dotlock", 400, ("leftover", False)),
        ("npm", 1, ("held", True)),
        ("npm", 30, ("held", True)),
        ("npm", 90, ("leftover", False)),
        ("restic", 100, ("held", True)),
        ("restic", 3000, ("leftover", True)),
    ],
)
def test_a_lock_that_names_nobody_is_judged_by_its_age(
    tmp_path: Path, environments: Environments, kind: str, age: float, wanted: tuple[str, bool]
) -> None:
    path = place_of(tmp_path, kind)
    if kind == "npm":
        path.mkdir()
    else:
        path.write_text("0\n")
    os.utime(path, (time.time() - age,) * 2)
    found = look(environments(), path)
    assert found is not None
    assert (found.status.protocol, found.condition, found.status.locked) == (kind, *wanted)
    assert found.status.liveness is (Liveness.ALIVE if (kind, age) == ("npm", 1) else Liveness.UNKNOWN)


OTHERS = {
    ".#notes.txt": "some text\n",
    ".#merge.c.1.2": "int main() {}\n",
    ".notes.txt.swp": "b0VIM, but short\n",
    ".~lock.letter.odt#": "no such record\n",
    "lock": "a file of somebody's\n",
    "Lock": "",
    ".terraform.tfstate.lock.info": "[]",
    f"locks/{HASH}": "x",
    "etc/hosts.lock": "",
    "index.lock": "",
    "mail.lock": "12 34\n",
    "lock.roster": "[1]",
    "pnpm-store-operation-locks-nobody/x.lock": "",
    "pnpm-lock.held": "",
    "etc.lock/owner": "me",
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_with_only_the_name_of_a_kind_is_not_taken_for_one(
    tmp_path: Path, environments: Environments, name: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(OTHERS[name])
    assert look(environments(), path) is None


# -- waiting -----------------------------------------------------------------------------------------------------------


class Events:
    """A watch that reports what the test tells it to."""

    def __init__(self, env: Any, *, works: bool = True) -> None:
        self.env = env
        self.fd, self.other = env.pipe()
        self.works = works
        self.added: list[tuple[str, int]] = []
        self.changes: list[tuple[str, str, str]] = []

    def add(self, directory: str, *, modes: bool = False) -> bool:
        self.added.append((directory, self.env.steps.count("look")))
        return self.works

    def discard(self, directory: str) -> None: ...

    def take(self) -> list[tuple[str, str, str]]:
        found, self.changes = self.changes, []
        return found

    def close(self) -> None:
        self.env.close(self.fd)
        self.env.close(self.other)


class Waiting:
    """One wait, driven by hand. `seen` has the result of each look."""

    def __init__(self, env: Stepped, path: Path, *, works: bool = True, timeout: float | None = None) -> None:
        self.looks = 0
        self.now = 1000.0
        self.locked = True
        self.told: list[float] = []
        self.error: OSError | None = None
        env.instead["monotonic"] = lambda: self.now
        self.events = Events(env, works=works)
        self.steps = until_free(env, self.events, str(path), self._look, timeout, lambda _: self.told.append(self.now))  # type: ignore[arg-type]

    def _look(self) -> Found:
        assert self.events.added or not self.events.works
        self.looks += 1
        if self.error is not None:
            raise self.error
        status = Status("p", "git", self.locked, False, Liveness.UNKNOWN, Evidence("none", "x"))
        return Found(status, "held", (0, 0), advice="wait")

    def next(self) -> float:
        """Seconds until it wants to be woken."""
        return next(self.steps).deadline - self.now

    def end(self) -> Found | None:
        with pytest.raises(StopIteration) as ended:
            next(self.steps)
        result: Found | None = ended.value.value
        return result


@pytest.fixture
def waiting(tmp_path: Path, environments: Environments) -> Iterator[Callable[..., Waiting]]:
    (tmp_path / "x.lock").touch()
    made: list[Waiting] = []

    def make(**options: Any) -> Waiting:
        made.append(Waiting(environments(), tmp_path / "x.lock", **options))
        return made[-1]

    yield make
    for one in made:
        one.steps.close()
        one.events.close()


def test_the_directory_is_watched_before_the_lock_is_looked_at(waiting: Callable[..., Waiting], tmp_path: Path) -> None:
    """KW1: its events about that lock wake the wait, and others do not."""
    one = waiting()
    assert one.next() == 1.0
    assert (one.events.added, one.looks) == ([(str(tmp_path), 0)], 1)
    one.events.changes = [(str(tmp_path), "y.lock", "gone")]
    one.next()
    assert one.looks == 1
    one.now += 0.2
    one.events.changes = [(str(tmp_path), "x.lock", "closed")]
    one.next()
    assert one.looks == 2
    one.events.changes = [(str(tmp_path), "x.lock", "written")]
    assert one.next() == pytest.approx(0.05), "a storm of events costs one look every 50 ms"
    assert one.looks == 2
    (tmp_path / "x.lock").unlink()
    assert (one.end(), one.looks) == (None, 2)


def test_a_wait_without_events_goes_by_the_clock(waiting: Callable[..., Waiting]) -> None:
    """KW2."""
    one = waiting(works=False, timeout=2.0)
    assert one.next() == 0.25
    one.now += 0.25
    one.next()
    assert one.looks == 2
    one.now += 0.8
    one.next()
    assert one.told == [one.now]
    one.now += 1.0
    left = one.end()
    assert left is not None
    assert one.told == [one.told[0]]


def test_the_end_of_the_named_process_wakes_the_wait(tmp_path: Path, environments: Environments) -> None:
    """KW2."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (tmp_path / "x").touch()
        env = environments()
        one = Waiting(env, tmp_path / "x")
        named = Status("p", "git", True, False, Liveness.ALIVE, Evidence("none", "x"), Holder(child.pid))
        looks = [Found(named, "held", (0, 0), advice=""), None]
        steps = until_free(env, one.events, str(tmp_path / "x"), lambda: looks.pop(0), None)  # type: ignore[arg-type]
        wait = next(steps)
        assert len(wait.fds) == 2
        child.communicate(b"\n")
        one.now += 0.05
        with pytest.raises(StopIteration) as ended:
            next(steps)
        assert (ended.value.value, looks) == (None, [])
        one.events.close()
    finally:
        child.kill()
        child.communicate()


def test_a_look_that_is_refused_does_not_end_a_wait(waiting: Callable[..., Waiting], tmp_path: Path) -> None:
    """KW3: the state is unknown then, and the next look asks again."""
    one = waiting()
    one.next()
    one.error = PermissionError(errno.EACCES, "refused")
    one.now += 1.0
    assert one.next() > 0

    def refuse(_path: str) -> object:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    one.events.env.instead["stat"] = refuse
    assert one.next() > 0
    del one.events.env.instead["stat"]
    one.error = None
    one.now += 1.0
    one.next()
    assert one.looks == 3
    one.error = FileNotFoundError(errno.ENOENT, "gone")
    one.now += 1.0
    assert one.end() is None


def test_a_wait_ends_when_the_program_would_not_be_kept_out(waiting: Callable[..., Waiting], tmp_path: Path) -> None:
    """KW3: whatever is at the path; a new lock there is not the end."""
    one = waiting()
    one.next()
    (tmp_path / "x.lock").unlink()
    (tmp_path / "x.lock").touch()
    one.events.changes = [(str(tmp_path), "x.lock", "gone"), (str(tmp_path), "x.lock", "made")]
    one.now += 1.0
    one.next()
    assert one.looks == 2
    one.locked = False
    one.now += 1.0
    assert one.end() is None


# -- open files of processes -------------------------------------------------------------------------------------------


def test_the_open_files_of_processes_are_listed_without_touching_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PF1: paths named by `/proc` are not followed."""
    touched: list[object] = []
    for name in ("stat", "lstat", "open", "access"):
        real = getattr(os, name)

        def step(path: object, *rest: Any, _real: Any = real, **more: Any) -> Any:
            touched.append(path)
            return _real(path, *rest, **more)

        monkeypatch.setattr(os, name, step)
    with open(tmp_path / "file", "w") as file:
        files = ProcFiles(tables=True)
        assert os.getpid() in files.openers("file", os.fstat(file.fileno()).st_ino)
        files.locks()
        files.running(["git"])
    assert [path for path in touched if not str(path).startswith(("/proc", "3", str(tmp_path)))] == []


def test_a_program_that_has_ended_does_not_run_though_nobody_has_asked_how() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    try:
        eventually(lambda: child.pid in ProcFiles(tables=True).running(["sleep"]), what="that it runs")
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert child.pid not in ProcFiles(tables=True).running(["sleep"])
    finally:
        child.kill()
        child.wait()


def test_a_document_that_libreoffice_has_open_is_known_by_that(tmp_path: Path, environments: Environments) -> None:
    """Of two that run, the one editing the document is named."""
    path = place_of(tmp_path, "libreoffice")
    program = tmp_path / "soffice.bin"
    program.symlink_to("/bin/cat")
    (tmp_path / "letter.odt").touch()
    path.write_text(f"Me,me,{HOST},23.11.2026 15:00,file:///x;")
    with open(tmp_path / "letter.odt", "r+") as document:
        other = subprocess.Popen([program], stdin=-1)
        editing = subprocess.Popen([program], stdin=-1, pass_fds=[document.fileno()])
    try:
        eventually(lambda: {other.pid, editing.pid} <= set(ProcFiles(tables=True).running(["soffice.bin"])))
        found = look(environments(), path)
    finally:
        for process in (other, editing):
            process.communicate()
    assert found is not None
    assert [one.pid for one in found.status.holders] == [editing.pid]
    assert "has letter.odt open" in found.status.evidence.text


@pytest.mark.parametrize("says", [".git", ".git/commondir"])
def test_an_invalid_path_in_gitdir_ends_no_look(tmp_path: Path, environments: Environments, says: str) -> None:
    """Any user may run a process called git beside a file that says so."""
    path, there = place_of(tmp_path, "git", MORE), tmp_path / "there"
    there.mkdir()
    if says != ".git":
        repository(there)
    (there / says).write_text("gitdir: a\0b\n")
    program = tmp_path / "git"
    program.symlink_to("/bin/cat")
    process = subprocess.Popen([program], stdin=-1, cwd=there)
    try:
        eventually(lambda: process.pid in ProcFiles(tables=True).running(["git"]))
        path.touch()
        found = look(environments(), path)
    finally:
        process.communicate()
    assert found is not None
    assert found.status.protocol == "git"
    assert found.status.holders == ()


def test_all_descriptors_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PF2: users of later files are not seen; `read_at` has the time of the list."""
    counted: list[int] = []
    real = procfs.pids
    monkeypatch.setattr(procfs, "pids", lambda: counted.append(1) or real())
    files = ProcFiles(tables=True)
    assert files.openers("x", 1) == []
    before = files.read_at
    assert before <= time.time()
    with open(tmp_path / "later", "w") as file:
        assert files.openers("later", os.fstat(file.fileno()).st_ino) == []
        assert ProcFiles(tables=True).openers("later", os.fstat(file.fileno()).st_ino) == [os.getpid()]
    files.sees(0)
    assert (len(counted), files.read_at) == (2, before)


def test_a_file_newer_than_either_list_is_not_called_a_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PF2, KI3: programs may be listed long before descriptors, and a file has the time of the last tick."""
    monkeypatch.setattr(procfs, "pids", lambda: iter(()))
    monkeypatch.setattr(proc_files, "_TICK", 0.01)
    files = ProcFiles(tables=True)
    began = time.time()
    assert files.running(("soffice.bin",)) == []
    path = tmp_path / ".~lock.x.odt#"
    path.write_text(f"Jane Doe,jane,{environment().identity().host},01.01.2026 12:00,file:///x;")
    monkeypatch.setattr(time, "time", lambda: began + 3600)
    seen = kinds.find(View(environment(), lambda: files, str(path), path.lstat()))
    assert seen is not None
    assert seen.condition == "held"
    assert files.read_at < began


@needs_root
def test_processes_that_may_not_be_looked_at_are_known_as_such() -> None:
    """PF3: a user sees its own processes but not root's; root sees all."""
    assert ProcFiles(tables=True).sees(0)
    seen = elsewhere(lambda: [ProcFiles(tables=True).sees(uid) for uid in (0, ALONE)], user=ALONE)
    assert seen == [False, True]
    assert not ProcFiles(tables=False).sees(0), "nothing is known from another PID namespace's /proc"


@needs_root
@pytest.mark.parametrize("thread", [False, True])
def test_an_ended_process_is_known_to_have_no_file_open(thread: bool) -> None:
    """PF3: unless one of its threads is still running."""

    def look() -> bool:
        child = os.fork()
        if child == 0:
            if thread:
                threading.Thread(target=time.sleep, args=(60,)).start()
            ctypes.CDLL(None).pthread_exit(None)  # this thread alone
        eventually(lambda: procfs.stat_fields(child)[0] == "Z")
        try:
            return ProcFiles(tables=True).sees(ALONE)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    assert elsewhere(look, user=ALONE) is not thread


def test_a_file_is_known_by_its_name_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PF4: a file of the same name elsewhere is another one; before Linux 5.14 only the name tells."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "same").touch()
    number = (tmp_path / "other" / "same").stat().st_ino
    with open(tmp_path / "same", "w") as file:
        files = ProcFiles(tables=True)
        assert files.openers("same", number) == []
        assert files.openers("same", os.fstat(file.fileno()).st_ino) == [os.getpid()]
        real = procfs.read
        monkeypatch.setattr(procfs, "read", lambda path: "".join(
            line for line in real(path).splitlines(True) if not line.startswith("ino:")))  # fmt: skip
        assert files.openers("same", number) == [os.getpid()]
    with open(tmp_path / "same"):
        files = ProcFiles(tables=True)
        assert files.openers("same", (tmp_path / "same").stat().st_ino) == [os.getpid()]
        assert files.openers("same", (tmp_path / "same").stat().st_ino, writing=True) == []


def test_a_file_in_memory_is_seen_open_and_locked(shm: Path) -> None:
    """`/dev/shm` is below `/dev`, but has files as other directories do. PF5: only its descriptor tells whose it is."""
    with open(shm / "l", "w") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        found = os.fstat(file.fileno())
        assert ProcFiles(tables=True).openers("l", found.st_ino, writing=True) == [os.getpid()]
        (lock,) = [one for one in ProcFiles(tables=True).locks() if one.path == file.name]
        assert (lock.kind, lock.pid) == ("ofd", os.getpid())


TABLE = """\
1: FLOCK  ADVISORY  WRITE 41 08:01:77 0 EOF
2: POSIX  ADVISORY  READ 42 08:01:77 128 255
2: -> POSIX  ADVISORY  WRITE 43 08:01:77 0 EOF
3: OFDLCK ADVISORY  WRITE -1 00:1f:99 0 EOF
4: LEASE  ACTIVE    READ 44 08:01:78 0 EOF
5: LEASE  BREAKING  UNLCK 45 08:01:79 0 EOF
6: POSIX  *NOINODE* READ 46 <none>:0 0 EOF
7: torn
8: FLOCK  ADVISORY  WRITE 9999999999999 08:01:77 0 EOF
"""


def test_every_kind_of_lock_in_the_table_is_understood() -> None:
    """PF5: with kind, span, and no pid where the table has none; torn or strange lines are skipped."""
    found = [(one.kind, one.exclusive, one.waiting, one.pid, one.file[1], one.span) for one in parse_locks(TABLE)]
    assert found == [
        ("flock", True, False, 41, 77, (0, None)),
        ("fcntl", False, False, 42, 77, (128, 255)),
        ("fcntl", True, True, 43, 77, (0, None)),
        ("ofd", True, False, 0, 99, (0, None)),
        ("lease", False, False, 44, 78, (0, None)),
        ("lease", False, False, 45, 79, (0, None)),
    ]


def test_an_ofd_lock_is_attributed_to_the_process_that_has_its_file_open(tmp_path: Path) -> None:
    """PF5."""
    code = """
import fcntl, struct, sys
file = open(sys.argv[1], "w")
fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 10, 5, 0))
print("locked", flush=True)
input()
"""
    path = tmp_path / "db"
    child = subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        found = path.stat()
        (one,) = ProcFiles(tables=True).kernel_locks("db", (found.st_dev, found.st_ino))
        assert (one.kind, one.pid, one.span, one.path, one.deleted) == ("ofd", child.pid, (10, 14), str(path), False)
        path.unlink()
        (one,) = [one for one in ProcFiles(tables=True).locks() if one.pid == child.pid]
        assert (one.path, one.deleted) == (str(path), True)
    finally:
        child.communicate("\n")


def test_a_process_that_cannot_be_looked_at_is_unknown(view: View) -> None:
    """KI2."""
    view.env.instead["inspect"] = lambda _pid: Process(Presence.UNKNOWN)  # type: ignore[attr-defined]
    assert view.of_process(5).liveness is Liveness.UNKNOWN


# -- every lock in the kernel's tables ---------------------------------------------------------------------------------

SPAN = """
import fcntl, struct, sys
files = [open(name, "r+") for name in sys.argv[1:]]
fcntl.lockf(files[0], fcntl.LOCK_EX, 6, 4)
fcntl.flock(files[1], fcntl.LOCK_SH)
fcntl.fcntl(files[2], fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
if len(files) > 3:
    files[3] = open(sys.argv[4])
    fcntl.fcntl(files[3], fcntl.F_SETLEASE, fcntl.F_RDLCK)
print("locked", flush=True)
input()
"""


@contextlib.contextmanager
def locking(*paths: Path) -> Iterator[int]:
    for path in paths:
        path.write_text("some data\n")
    child = subprocess.Popen([sys.executable, "-c", SPAN, *paths], stdin=-1, stdout=-1, text=True, bufsize=1)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        yield child.pid
    finally:
        child.communicate("\n")


def every_lock(env: Any, pid: int) -> dict[str, Found]:
    """All locks of that process, by path."""
    found = kernel_locks(env, Survey(env), env.proc_files())
    return {one.status.path: one for one in found if pid in [holder.pid for holder in one.status.holders]}


def test_every_kind_of_kernel_lock_is_listed_with_path_holder_and_span(disk: Path, environments: Environments) -> None:
    """KA3: a file known as a lock is listed as that."""
    paths = [disk / name for name in ("a", "b", "c", "d")]
    with locking(*paths) as pid:
        found = every_lock(environments(), pid)
    told = {os.path.basename(path): (one.status.protocol, one.status.holders[0].tag) for path, one in found.items()}
    kernel = ("fcntl", "bytes 4-9"), ("flock", None), ("ofd", None), ("lease", "a lease for reading")
    assert told == dict(zip("abcd", kernel, strict=True))
    assert found[str(disk / "b")].status.holders[0].shared
    assert all(
        one.condition == "held" and one.status.evidence.proven and one.uid == os.getuid() for one in found.values()
    )


def test_a_file_with_a_lease_is_not_opened(disk: Path, environments: Environments) -> None:
    """KA1: nor is a file on a filesystem that may block; neither is asked about."""
    env = environments()
    opened: list[str] = []
    asked: list[str] = []
    env.before["open_existing"] = lambda path, **_: opened.append(path)
    env.before["stat"] = lambda path, **_: asked.append(path)
    paths = [disk / name for name in ("a.lock", "b.lock", "c.lock", "d.lock")]
    with locking(*paths) as pid:
        assert len(every_lock(env, pid)) == 4
        assert str(paths[3]) not in opened
        assert str(paths[0]) in opened, "what has no lease is looked at"
        opened.clear()
        asked.clear()
        env.instead["may_block"] = lambda path: path.startswith(str(disk))
        assert every_lock(env, pid).keys() == set(map(str, paths))
        assert [path for path in (*opened, *asked) if path.startswith(str(disk))] == []


def test_a_file_whose_path_leads_elsewhere_is_named_by_its_number(disk: Path, environments: Environments) -> None:
    """KA2: one that was removed, and one that was replaced by another."""
    paths = [disk / name for name in ("a", "b", "c")]
    with locking(*paths) as pid:
        numbers = [(path.stat().st_dev, path.stat().st_ino) for path in paths]
        paths[0].unlink()
        (disk / "new").touch()
        os.rename(disk / "new", paths[1])
        env = environments()
        env.instead["stat"] = lambda path, **_: os.lstat(disk) if path == str(paths[2]) else os.lstat(path)
        found = every_lock(env, pid)
    device = f"device {os.major(numbers[0][0])}:{os.minor(numbers[0][0])}, inode "
    assert found.keys() == {
        f"{device}{numbers[0][1]} ({paths[0]}, removed)",
        f"{device}{numbers[1][1]} ({paths[1]}, removed)",
        f"{device}{numbers[2][1]} ({paths[2]} elsewhere)",
    }


def test_waiters_for_a_kernel_lock_are_listed(disk: Path, environments: Environments) -> None:
    """KA3."""
    paths = [disk / name for name in ("a", "b", "c")]
    with locking(*paths) as pid:
        waiter = subprocess.Popen([sys.executable, "-c", LOCKER, paths[0]], stdin=-1, stdout=-1, text=True)
        try:
            text = f" {waiter.pid} "
            eventually(lambda: text in Path("/proc/locks").read_text(), what="the waiter in the table")
            assert [one.pid for one in every_lock(environments(), pid)[str(paths[0])].status.waiters] == [waiter.pid]
        finally:
            waiter.kill()
            waiter.communicate()


def test_repeated_questions_read_the_process_table_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """PF2."""
    counted: list[int] = []
    real = procfs.pids
    monkeypatch.setattr(procfs, "pids", lambda: counted.append(1) or real())
    files = ProcFiles(tables=True)
    own = procfs.comm(os.getpid())
    for _ in range(3):
        assert os.getpid() in files.running([own])
    assert files.locks() is files.locks()
    assert len(counted) <= 2  # for the programs, and for the descriptors


def test_nothing_counts_as_seen_beyond_the_limit_of_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proc_files, "_MOST_NAMES", 0)
    with open(tmp_path / "opened", "w") as file:
        assert ProcFiles(tables=True).openers("opened", os.fstat(file.fileno()).st_ino) == []
        assert not ProcFiles(tables=True).sees(os.getuid()), "so nobody is called dead by what is not seen"


def test_a_process_that_is_gone_hides_nothing(dead_pid: int) -> None:
    """PF3."""
    files = ProcFiles(tables=True)
    files._hide(dead_pid)
    assert files.directory(dead_pid) is None
    assert not files._hidden
