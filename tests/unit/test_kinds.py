"""Looking at other programs' locks: what may lie at their names, and what is believed of it (_admin/kinds)."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast._admin import kinds
from holdfast._admin.kinds.base import View
from holdfast._admin.kinds.waiting import until_free
from holdfast._admin.scan import Found, Survey
from holdfast._platform import proc_files, procfs
from holdfast._platform.portable import NoProcFiles
from holdfast._platform.proc_files import LinuxProcFiles
from holdfast._platform.values import Presence, Process, Storage
from holdfast.liveness import Liveness
from holdfast.model import Evidence, Status
from unit.elsewhere import NOBODY, elsewhere, needs_root
from unit.stepping import Stepped

pytestmark = pytest.mark.needs("linux")

Environments = Callable[..., Stepped]


def repository(top: Path) -> Path:
    """As much of a git directory as its locks are known by."""
    where = top / ".git"
    for name in ("objects", "refs"):
        (where / name).mkdir(parents=True, exist_ok=True)
    (where / "HEAD").write_text("ref: refs/heads/main\n")
    return where


PLACES: dict[str, str] = {"git": ".git/index.lock"}
"""A path of each kind."""


def place_of(top: Path, kind: str) -> Path:
    repository(top)
    path = top / PLACES[kind]
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def look(env: Any, path: Path) -> kinds.Sighting | None:
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
@pytest.mark.parametrize("kind", PLACES)
def test_whatever_lies_at_such_a_name_is_looked_at_harmlessly(
    tmp_path: Path, environments: Environments, kind: str, what: str
) -> None:
    """KI1: nothing hangs, no link is followed, little is read, and nothing is changed."""
    path = place_of(tmp_path, kind)
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
    """KI1: between the look at the name and the opening."""
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
    """Of a file that is a minute old."""
    path = tmp_path / "file"
    path.touch()
    os.utime(path, (time.time() - 60,) * 2)
    env = environments()
    files: Any = env.proc_files()
    return View(env, lambda: files, str(path), env.stat(str(path)))  # type: ignore[arg-type]


def test_a_pid_is_believed_only_where_it_was_written(view: View, dead_pid: int) -> None:
    """KI2: of another host, nothing is known; a process that began after the lock is not its holder."""
    found = view.of_process(os.getpid(), "some.other.host.example")
    assert (found.condition, found.liveness, found.holders[0].command) == ("elsewhere", Liveness.UNKNOWN, None)
    assert view.of_process(1).condition == "held"
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = view.of_process(started.pid)
        assert (found.condition, found.liveness) == ("leftover", Liveness.DEAD)
        assert "was started later" in found.evidence.text
    finally:
        started.communicate(b"\n")
    assert view.of_process(dead_pid).condition == "leftover"
    for number in (0, -5, 2**31, 10**30):
        assert view.of_process(number).condition == "held"


def test_the_name_of_this_machine_is_known_qualified_or_not(view: View) -> None:
    """KI2."""
    mine = view.env.identity().host
    short = mine.partition(".")[0]
    assert all(map(view.is_here, (mine, mine.upper(), short)))
    assert not view.is_here(f"not-{short}")
    if "." not in mine:
        assert view.is_here(f"{mine}.example.org")


class Blind(NoProcFiles):
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


def test_only_a_kernel_lock_is_proof(view: View) -> None:
    """KI4."""
    import fcntl

    assert (view.of_kernel().condition, view.of_kernel().evidence.proven) == ("free", False)
    assert not view.of_process(1).evidence.proven
    assert not view.of_openers([1]).evidence.proven
    with open(view.path, "r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        found = View(view.env, view.env.proc_files, view.path, view.found).of_kernel()
    assert (found.condition, found.liveness, found.evidence.proven) == ("held", Liveness.ALIVE, True)
    assert [one.pid for one in found.holders] == [os.getpid()]
    assert "fcntl" in found.evidence.text


def test_a_record_of_ours_at_such_a_name_is_ours(tmp_path: Path, environments: Environments) -> None:
    """E8: kinds are asked only about what no protocol has a record in; in a tree, links and directories count."""
    path = place_of(tmp_path, "git")
    env = environments()
    path.write_text(f"pid={os.getpid()}\ntimestamp=17\n")
    assert [one.status.protocol for one in Survey(env).tree(str(tmp_path)) if isinstance(one, Found)] == ["sema"]
    path.write_text("DIRC")
    for survey in (Survey(env).tree(str(tmp_path)), Survey(env).directory(str(path.parent))):
        assert [one.status.protocol for one in survey if isinstance(one, Found)] == ["git"]


# -- waiting -----------------------------------------------------------------------------------------------------------


class Events:
    """A watch that tells what the test says."""

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
    """One wait, driven by hand. `seen` is what each look says."""

    def __init__(self, env: Stepped, path: Path, *, works: bool = True, timeout: float | None = None) -> None:
        self.looks = 0
        self.now = 1000.0
        self.locked = True
        self.told: list[float] = []
        env.instead["monotonic"] = lambda: self.now
        self.events = Events(env, works=works)
        self.steps = until_free(env, self.events, str(path), self._look, timeout, lambda _: self.told.append(self.now))  # type: ignore[arg-type]

    def _look(self) -> kinds.Sighting:
        assert self.events.added or not self.events.works
        self.looks += 1
        status = Status("p", "git", self.locked, False, Liveness.UNKNOWN, Evidence("none", "x"))
        return kinds.Sighting(status, "held", "wait")

    def next(self) -> float:
        """Seconds until it wants to be woken."""
        return next(self.steps).deadline - self.now

    def end(self) -> kinds.Sighting | None:
        with pytest.raises(StopIteration) as ended:
            next(self.steps)
        result: kinds.Sighting | None = ended.value.value
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
    """KW1: and what the directory tells of it wakes; of others, nothing does."""
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


def test_without_events_it_goes_by_the_clock(waiting: Callable[..., Waiting]) -> None:
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


def test_the_end_of_the_process_that_is_named_wakes(tmp_path: Path, environments: Environments) -> None:
    """KW2."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (tmp_path / "x").touch()
        env = environments()
        one = Waiting(env, tmp_path / "x")
        named = Status("p", "git", True, False, Liveness.ALIVE, Evidence("none", "x"), _holder(child.pid))
        looks = [kinds.Sighting(named, "held", ""), None]
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


def _holder(pid: int) -> Any:
    from holdfast.model import Holder

    return Holder(pid)


def test_it_is_over_when_its_program_would_not_be_kept_out(waiting: Callable[..., Waiting], tmp_path: Path) -> None:
    """KW3: whatever is at the path; another lock there is none of its ends."""
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


# -- what processes have open ------------------------------------------------------------------------------------------


def test_what_processes_have_open_is_read_without_touching_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PF1: no path is followed that `/proc` names."""
    touched: list[object] = []
    for name in ("stat", "lstat", "open", "access"):
        real = getattr(os, name)

        def step(path: object, *rest: Any, _real: Any = real, **more: Any) -> Any:
            touched.append(path)
            return _real(path, *rest, **more)

        monkeypatch.setattr(os, name, step)
    with open(tmp_path / "file", "w") as file:
        files = LinuxProcFiles(tables=True)
        assert os.getpid() in files.openers("file", os.fstat(file.fileno()).st_ino)
        files.locks()
        files.running(["git"])
    assert [path for path in touched if not str(path).startswith(("/proc", "3", str(tmp_path)))] == []


def test_all_descriptors_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PF2: so of what is made later, nobody is seen; `read_at` says since when."""
    counted: list[int] = []
    real = procfs.pids
    monkeypatch.setattr(procfs, "pids", lambda: counted.append(1) or real())
    files = LinuxProcFiles(tables=True)
    assert files.openers("x", 1) == []
    before = files.read_at
    assert before <= time.time()
    with open(tmp_path / "later", "w") as file:
        assert files.openers("later", os.fstat(file.fileno()).st_ino) == []
        assert LinuxProcFiles(tables=True).openers("later", os.fstat(file.fileno()).st_ino) == [os.getpid()]
    files.sees(0)
    assert (len(counted), files.read_at) == (2, before)


@needs_root
def test_what_may_not_be_looked_at_is_known_as_such() -> None:
    """PF3: a user sees the own processes, not those of root; root sees all."""
    assert LinuxProcFiles(tables=True).sees(0)
    seen = elsewhere(lambda: [LinuxProcFiles(tables=True).sees(uid) for uid in (0, NOBODY)], user=NOBODY)
    assert seen == [False, True]
    assert not LinuxProcFiles(tables=False).sees(0), "nothing is known from another PID namespace's /proc"


def test_a_file_is_known_by_its_name_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PF4: one of the same name elsewhere is another one; before Linux 5.14 only the name tells."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "same").touch()
    number = (tmp_path / "other" / "same").stat().st_ino
    with open(tmp_path / "same", "w") as file:
        files = LinuxProcFiles(tables=True)
        assert files.openers("same", number) == []
        assert files.openers("same", os.fstat(file.fileno()).st_ino) == [os.getpid()]
        real = procfs.read
        monkeypatch.setattr(procfs, "read", lambda path: "".join(
            line for line in real(path).splitlines(True) if not line.startswith("ino:")))  # fmt: skip
        assert files.openers("same", number) == [os.getpid()]
    with open(tmp_path / "same"):
        files = LinuxProcFiles(tables=True)
        assert files.openers("same", (tmp_path / "same").stat().st_ino) == [os.getpid()]
        assert files.openers("same", (tmp_path / "same").stat().st_ino, writing=True) == []


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
    """PF5: with kind, span, and no pid where the table has none; what is torn or strange is passed over."""
    found = [
        (one.kind, one.exclusive, one.waiting, one.pid, one.file[1], one.span) for one in proc_files.parse_table(TABLE)
    ]
    assert found == [
        ("flock", True, False, 41, 77, (0, None)),
        ("fcntl", False, False, 42, 77, (128, 255)),
        ("fcntl", True, True, 43, 77, (0, None)),
        ("ofd", True, False, 0, 99, (0, None)),
        ("lease", False, False, 44, 78, (0, None)),
        ("lease", False, False, 45, 79, (0, None)),
    ]


def test_a_lock_by_open_file_description_is_named_by_who_has_it_open(tmp_path: Path) -> None:
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
        (one,) = LinuxProcFiles(tables=True).kernel_locks("db", (found.st_dev, found.st_ino))
        assert (one.kind, one.pid, one.span, one.path, one.deleted) == ("ofd", child.pid, (10, 14), str(path), False)
        path.unlink()
        (one,) = [one for one in LinuxProcFiles(tables=True).locks() if one.pid == child.pid]
        assert (one.path, one.deleted) == (str(path), True)
    finally:
        child.communicate("\n")


def test_a_process_that_has_ended_is_known_by_nothing(view: View) -> None:
    """KI2: what cannot be looked at is unknown."""
    view.env.instead["inspect"] = lambda _pid: Process(Presence.UNKNOWN)  # type: ignore[attr-defined]
    assert view.of_process(5).liveness is Liveness.UNKNOWN
