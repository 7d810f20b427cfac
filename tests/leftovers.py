"""Fails a run of the tests that leaves something behind: a process, a mount, a namespace, a loop device, a file.

  LO1  Each process of a run carries the run's number as its soft limit RLIMIT_RTTIME: `BASE` microseconds and more,
       some 36 000 years of a scheduling class that no test uses. Children inherit it, daemons too, and those that clear
       or overwrite their environment; anybody may read it. No environment, session or parent is as good.
  LO2  Everything else of a run has the run's name in its own: its directories (monitor.py), the mounts and loop devices
       on them. A network namespace with a name has to carry it, too. So no run is blamed for another's.
  LO3  A namespace without a name lives as long as a process that is in it or has it open; LO1 finds that process.
  LO4  A process that is about to end gets `GRACE` seconds. A zombie has ended; its parent has yet to wait for it.
  LO5  Processes that were left are killed, mounts unmounted and loop devices freed, so that they disturb no other run.
       Files stay, as evidence.

A run that a test starts belongs to the run of that test. pytest's own directories of failed tests are no leftovers.
"""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

import places

BASE = 1 << 60
GRACE = 5.0


class Left(NamedTuple):
    what: str
    test: str = ""
    """The test that started it, if that is known."""


class _Text(str):
    """The text of a report, with the line that pytest's short summary shows."""

    reprcrash: SimpleNamespace


def begin(config: pytest.Config) -> Path:
    """Begin a run, in its controlling process; a directory that all of its processes share."""
    run = None if places.RUN in os.environ else Run()
    own = run.own if run is not None else Path(tempfile.mkdtemp(prefix="nested-"))
    shared = own / "shared"
    shared.mkdir()
    shared.chmod(0o755)  # some tests are another user
    if config.option.basetemp is None:
        config.option.basetemp = own / "pytest"
    if run is not None:
        config.pluginmanager.register(run)
    config.add_cleanup(run.tidy if run is not None else lambda: shutil.rmtree(own, ignore_errors=True))
    return shared


class Run:
    """The outermost run of the tests, in its controlling process. `own` has pytest's own directories."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(5)
        self.number = BASE + int(self.name, 16)
        self._parents = {
            places.PLACE or tempfile.gettempdir(),
            *(("/var/tmp", "/dev/shm") if os.name == "posix" else ()),
        }
        os.environ[places.RUN] = self.name
        os.environ["TMPDIR"] = tempfile.tempdir = places.below(places.PLACE or tempfile.gettempdir())
        self.own = Path(tempfile.gettempdir())
        self.marks = sys.platform == "linux" and self._mark()

    def _mark(self) -> bool:
        """Mark this process (LO1); False if the limit is lower already, or Python does not know it (PyPy)."""
        if not hasattr(resource, "RLIMIT_RTTIME"):
            return False
        _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
        if hard == resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_RTTIME, (self.number, hard))
        return _number("self") == self.number

    def directories(self) -> list[Path]:
        return [Path(parent, f"holdfast-{self.name}") for parent in sorted(self._parents)]

    def tidy(self) -> None:
        """Remove the run's directories unless they have content: those of failed tests, and leftovers."""
        shutil.rmtree(self.own / "shared", ignore_errors=True)
        for directory in self.directories():
            for where, _, _ in os.walk(directory, topdown=False):
                try:
                    os.rmdir(where)
                except OSError:
                    pass  # not empty

    # -- the pytest plugin ---------------------------------------------------------------------------------------------

    def pytest_report_header(self) -> str | None:
        return None if self.marks else "processes that are left cannot be told from others here (leftovers.py)"

    @pytest.hookimpl(trylast=True)  # after the last fixtures of the session, and after the workers
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        found = [*self.processes(), *self.mounts(), *self.loops()]
        found += self.files(session.exitstatus == pytest.ExitCode.OK)
        if not found:
            return
        if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.stats.setdefault("error", []).extend(map(_report, found))

    # -- what is looked for --------------------------------------------------------------------------------------------

    def processes(self) -> list[Left]:
        if not self.marks:
            return []
        if tracker := sys.modules.get("multiprocessing.resource_tracker"):
            tracker._resource_tracker._stop()  # it lives as long as this interpreter, which runs the tests if -n is 0
        deadline = time.monotonic() + GRACE
        while (found := self._marked()) and time.monotonic() < deadline:
            time.sleep(0.05)
        left = [Left(_described(pid), _test(pid)) for pid in found]
        for pid in found:
            self._kill(pid)
        return left

    def _marked(self) -> list[str]:
        me = os.readlink("/proc/self")
        found = [name for name in os.listdir("/proc") if name.isdecimal() and name != me]
        return [pid for pid in found if _number(pid) == self.number and _stat(pid)[0] not in "ZX"]

    def _kill(self, pid: str) -> None:
        """Kill a process by its directory in /proc, which stands for this very process, even if its pid is another one
        here."""
        try:
            directory = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return
        try:
            if _number(pid) == self.number:
                signal.pidfd_send_signal(directory, signal.SIGKILL)
        except OSError:
            pass
        finally:
            os.close(directory)

    def mounts(self) -> list[Left]:
        found = []
        for line in reversed(_lines("/proc/self/mountinfo")):
            if self.name in line:
                words = line.split()
                point, kind = words[4], words[words.index("-") + 1]
                found.append(Left(f"mount {point} ({'a namespace' if kind == 'nsfs' else kind})"))
                subprocess.run(["umount", "-l", point], capture_output=True, check=False)
        return found

    def loops(self) -> list[Left]:
        found = []
        for path in Path("/sys/block").glob("loop*/loop/backing_file"):
            for file in _lines(path):
                if self.name in file:
                    found.append(Left(f"loop device /dev/{path.parts[3]} of {file}"))
                    subprocess.run(["losetup", "-d", f"/dev/{path.parts[3]}"], capture_output=True, check=False)
        return found

    def files(self, all_passed: bool) -> list[Left]:
        shutil.rmtree(self.own / "shared", ignore_errors=True)
        if all_passed:
            shutil.rmtree(self.own / "pytest", ignore_errors=True)
        now = time.time()
        found = [path for place in self.directories() if place.is_dir() for path in place.iterdir()]
        return [Left(_file(path, now)) for path in sorted(found) if all_passed or path != self.own / "pytest"]


@contextmanager
def _gone() -> Iterator[None]:
    """Ignore that a process ends while it is examined, or may not be examined."""
    try:
        yield
    except (OSError, IndexError, ValueError):
        pass


def _lines(path: str | Path) -> list[str]:
    with _gone():
        return Path(path).read_bytes().decode(errors="replace").splitlines()
    return []


def _number(pid: str) -> int:
    """The soft limit in which a process of a run has the run's number; 0 if it is unlimited."""
    for line in _lines(f"/proc/{pid}/limits"):
        if line.startswith("Max realtime timeout"):
            value = line.split()[3]
            return int(value) if value.isdecimal() else 0
    return 0


def _stat(pid: str) -> list[str]:
    """The fields of a process's status from the third on, which is its state."""
    for line in _lines(f"/proc/{pid}/stat"):
        return line.rpartition(")")[2].split()
    return ["X"]


def _described(pid: str) -> str:
    words = f"process {pid}"
    with _gone():
        command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        words += f" ({' '.join(command.split())[:200] or _lines(f'/proc/{pid}/comm')[0]})"
    with _gone():
        uptime = float(_lines("/proc/uptime")[0].split()[0])
        words += f", {uptime - int(_stat(pid)[19]) / os.sysconf('SC_CLK_TCK'):.0f} s old"
    with _gone():
        words += f", in {os.readlink(f'/proc/{pid}/cwd')}"
    with _gone():
        ours, its = ({f.name: os.readlink(f) for f in Path(f"/proc/{who}/ns").iterdir()} for who in ("self", pid))
        if other := [name for name in sorted(its) if its[name] != ours.get(name) and "_for_" not in name]:
            words += f", with namespaces of its own: {', '.join(other)}"
    return words


def _test(pid: str) -> str:
    """The test that started a process: pytest has its current test in the environment, which the process has inherited
    unless it has changed it."""
    with _gone():
        for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = word.decode(errors="replace").partition("=")
            if name == "PYTEST_CURRENT_TEST":
                return value.rpartition(" (")[0]
    return ""


def _file(path: Path, now: float) -> str:
    words = str(path)
    with _gone():
        age = now - path.lstat().st_mtime
        words = f"{'directory' if path.is_dir() else 'file'} {path}, changed {age:.0f} s ago"
        inside = sorted(below.name for below in path.iterdir())
        words += f", with {', '.join(inside[:5])}{' …' if len(inside) > 5 else ''}" if inside else ", empty"
    return words


def _report(left: Left) -> pytest.TestReport:
    text = _Text(f"left behind: {left.what}")
    text.reprcrash = SimpleNamespace(message=str(text))
    name = left.test or "the tests"
    return pytest.TestReport(name, (name, None, name), {}, "failed", text, "teardown")  # type: ignore[arg-type]
