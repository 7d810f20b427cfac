"""A session: a scratch directory with one bash and one Python, and their processes; all gone at its end."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

LIMIT = 60.0
"""Seconds for one block or command. No page waits so long on purpose."""
_END = 20.0
"""Seconds within which processes that end with the shell must have ended."""

_HERE = Path(__file__).parent
_PLACES = re.compile(r"(?<![\w.~-])/(run/lock|srv|tmp)(?![\w-])")
"""Paths that stand for places in the scratch directory."""


class Failed(Exception):
    """A block failed, and the session cannot go on."""


class Session:
    """A session. `replaced`: texts of the blocks and their replacements on this machine."""

    def __init__(self, replaced: Mapping[str, str] | None = None) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="page-")).resolve()
        for name in ("run/lock", "srv", "tmp"):
            (self.home / name).mkdir(parents=True)
        for name in ("examples", "tests"):
            (self.home / name).symlink_to(_HERE.parents[1] / name)
        self.replaced = dict(replaced or {})
        self._output = self.home / "tmp" / ".output"
        self._out = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._read = 0
        self._shell: _Child | None = None
        self._python: _Child | None = None
        self.environment = self._environment()

    def _environment(self) -> dict[str, str]:
        kept = ("PYTHONPYCACHEPREFIX", "LD_LIBRARY_PATH", "CARGO_HOME", "RUSTUP_HOME")
        found = {name: os.environ[name] for name in kept if name in os.environ}
        real = Path.home()
        for name, place in (("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")):
            if (real / place).is_dir():
                found.setdefault(name, str(real / place))
        return found | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(self.home),
            "TMPDIR": str(self.home / "tmp"),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "TZ": "UTC",
            "COLUMNS": "120",
            "HISTFILE": "",
        }

    # -- texts ---------------------------------------------------------------------------------------------------------

    def here(self, text: str) -> str:
        """The text of a page, as it is run. Its places are replaced first: later replacements may be below /tmp
        themselves."""
        text = _PLACES.sub(lambda place: f"{self.home}/{place[1]}", text)
        for shown, real in self.replaced.items():
            text = text.replace(shown, real) if shown[0] != "^" else re.sub(shown[1:], real, text)
        return text

    def shown(self, text: str) -> str:
        """Printed text, as a page shows it."""
        for shown, real in self.replaced.items():
            if shown[0] != "^":
                text = text.replace(real, shown)
        text = re.sub(rf"{re.escape(str(self.home))}/(run/lock|srv|tmp)(?![\w-])", r"/\1", text)
        return text.replace(str(self.home), "/home/you")

    # -- running -------------------------------------------------------------------------------------------------------

    def shell(self, text: str) -> tuple[int, str]:
        """The exit status and the output of commands, in the one bash of this session."""
        if self._shell is None:
            self._shell = self._start("bash", "--noprofile", "--norc", str(_HERE / "shell.sh"))
        answer = self._ask(self._shell, self.here(text).encode() + b"\0")
        if answer is None:
            raise Failed(f"the shell ended, with status {self._shell.process.wait(_END)}:\n{self.printed()}")
        return int(answer), self.printed()

    def python(self, text: str, page: Path, line: int) -> tuple[str, str]:
        """Run Python; the traceback of an error, or empty; and the output."""
        if self._python is None:
            self._python = self._start(sys.executable, str(_HERE / "interpreter.py"))
        request = {"source": self.here(text), "page": str(page), "line": line}
        answer = self._ask(self._python, json.dumps(request).encode() + b"\n")
        if answer is None:
            raise Failed(f"the interpreter ended, with status {self._python.process.wait(_END)}:\n{self.printed()}")
        return self.shown(json.loads(answer)["error"]), self.printed()

    def program(self, *words: str, stdin: str = "", cwd: Path | None = None) -> tuple[int, str]:
        """Run a program beside the shell; the exit status and the output."""
        try:
            done = subprocess.run(
                words, input=self.here(stdin), text=True, cwd=cwd or self.home, env=self.environment, timeout=LIMIT,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            raise Failed(f"it did not end within {LIMIT:g} s") from late
        return done.returncode, self.shown(done.stdout)

    def write(self, name: str, text: str) -> Path:
        """Write a file of the page. A path of the system is one of the scratch directory."""
        path = Path(os.path.normpath(f"{self.home}/{name}"))
        if not path.is_relative_to(self.home):
            raise Failed(f"{name} is outside of the session's directory")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.here(text), encoding="utf-8")
        if text.startswith("#!"):
            path.chmod(0o755)
        return path

    def printed(self) -> str:
        """The output since the last call."""
        with self._output.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        return self.shown(data.decode("utf-8", "replace"))

    def _start(self, *words: str) -> _Child:
        return _Child([*words], self._out, self.home, self.environment)

    def _ask(self, child: _Child, request: bytes) -> str | None:
        answer = child.ask(request)
        if answer == "":
            raise Failed(f"it did not end within {LIMIT:g} s. Until then:\n{self.printed()}")
        return answer

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self, patient: bool = True) -> list[str]:
        """End the interpreter and the shell, wait for the processes that end with them, and kill the rest: its command
        lines."""
        for child in (self._python, self._shell):
            if child is not None:
                child.end()
        deadline = time.monotonic() + (_END if patient else 0.0)
        while self._processes() and time.monotonic() < deadline:
            time.sleep(0.01)
        left = self._processes()
        while found := self._processes():
            for pid in found:
                _kill(pid)
            time.sleep(0.01)
        os.close(self._out)
        shutil.rmtree(self.home, ignore_errors=True)
        return [self.shown(command) for command in left.values()]

    def _processes(self) -> dict[int, str]:
        """All processes started from here, however they have left their parents: found by their environment."""
        mark = f"\0HOME={self.home}\0".encode()
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if mark in b"\0" + Path(f"/proc/{name}/environ").read_bytes() + b"\0":
                    words = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                    found[int(name)] = words.strip()
            except OSError:
                pass  # it has ended, or is another user's
        return found


class _Child:
    """A process that gets its work on one descriptor, and reports on another that it is done."""

    def __init__(self, words: list[str], out: int, home: Path, environment: dict[str, str]) -> None:
        theirs, self._in = _high(os.pipe())
        self._out, told = _high(os.pipe())
        try:
            self.process = subprocess.Popen(
                [*words, str(theirs), str(told)], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=home,
                env=environment, pass_fds=(theirs, told), start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(theirs)
            os.close(told)
        self._answers = b""

    def ask(self, request: bytes) -> str | None:
        """A line of answer; None if the process has ended; empty if no line comes in time, and then the process is
        killed."""
        try:
            while request:
                request = request[os.write(self._in, request) :]
        except BrokenPipeError:
            return None
        deadline = time.monotonic() + LIMIT
        while b"\n" not in self._answers:
            if not select.select([self._out], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self.process.kill()
                return ""
            data = os.read(self._out, 65536)
            if not data:
                return None
            self._answers += data
        line, _, self._answers = self._answers.partition(b"\n")
        return line.decode()

    def end(self) -> None:
        """End the process: without its input, it has nothing more to run."""
        os.close(self._in)
        try:
            self.process.wait(_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._out)


def _high(pipe: tuple[int, int]) -> tuple[int, int]:
    """Both ends of a pipe, with numbers that no script uses for itself."""
    found = fcntl.fcntl(pipe[0], fcntl.F_DUPFD_CLOEXEC, 100), fcntl.fcntl(pipe[1], fcntl.F_DUPFD_CLOEXEC, 100)
    os.close(pipe[0])
    os.close(pipe[1])
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
