"""Helpers for the tests of the command line: the real command, started in a pipe or on a terminal of its own.

Steps are made observable, never slept for: a command prints a line, or a condition is checked until it holds.
"""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import warm
from process.support import eventually as eventually

PATIENCE = 60.0
"""Seconds after which an expected event is believed never to happen."""

HOLDFAST = (sys.executable, "-m", "holdfast")

RECORDER = """
import os, signal, sys
signals = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]
wanted = {*signals, signal.SIGALRM}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
os.write(1, b"ready %d\\n" % os.getpid())
while True:
    number = signal.sigwait(wanted)
    os.write(1, b"got %s\\n" % signal.Signals(number).name.encode())
    if number == signal.SIGALRM:
        sys.exit(0)
"""
"""Prints each signal it gets; ALRM, which is never forwarded, ends it: signals before ALRM are printed before that."""

NAMELESS = """
import ctypes, os, sys

def array(words):
    return (ctypes.c_char_p * (len(words) + 1))(*words)

words = [os.fsencode(word) for word in sys.argv[1:]]
entries = [b"=nameless", *(name + b"=" + value for name, value in os.environb.items())]
ctypes.CDLL(None).execve(words[0], array(words), array(entries))
"""
"""Runs a command with an entry without a name in its environment, which Python itself refuses to pass on."""


def state(pid: int) -> str:
    """The letter of a process's state: R, S, T, Z …; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def ended(pid: int) -> bool:
    """Whether the whole process has ended: its descriptors are closed with the last of its threads."""
    try:
        return state(pid) in ("", "Z") and len(os.listdir(f"/proc/{pid}/task")) == 1
    except FileNotFoundError:
        return True


def dormant(pid: int) -> bool:
    """Whether the process waits in the kernel for events or a moment, as a contender for a held lock does."""
    try:
        where = Path(f"/proc/{pid}/wchan").read_text()
        return state(pid) == "S" and ("poll" in where or "nanosleep" in where)  # where no inotify instance was left
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> list[int]:
    return [int(name) for name in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def comm(pid: int) -> str:
    """The name of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def guardian(run: int) -> int:
    """The guardian of this `holdfast run`, whose command has started, once it has settled in."""
    name = "holdfast-guardian"[:15]

    def found() -> list[int]:
        return [pid for pid in children(run) if comm(pid) == name]

    return eventually(found, what="the guardian")[0]


def command(run: int) -> int:
    """The command of this `holdfast run`."""
    return children(guardian(run))[0]


class Started:
    """A started process, and its output: its stdout, or its terminal."""

    def __init__(self, process: subprocess.Popen[bytes], source: int) -> None:
        self.process = process
        self.source = source
        self.modes: list[object] = []
        """Modes of its terminal before the start."""
        self.text = b""
        self._read = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self, wanted: str, within: float = PATIENCE) -> str:
        """Read on until a line begins with `wanted`, and return that line. Lines before it are passed over."""
        deadline = time.monotonic() + within
        while True:
            while b"\n" in self.text[self._read :]:
                line, _, _ = self.text[self._read :].partition(b"\n")
                self._read += len(line) + 1
                found = line.decode(errors="replace").strip("\r")
                if found.startswith(wanted):
                    return found
            more = self._more(deadline)
            assert more, f"no line {wanted!r} within {within:g} s, but {self.text!r}"

    def rest(self, within: float = PATIENCE) -> str:
        """All further output, until no process can write any more."""
        deadline = time.monotonic() + within
        while self._more(deadline):
            pass
        return self.text.decode(errors="replace")

    def _more(self, deadline: float) -> bool:
        ready = select.select([self.source], [], [], max(0.0, deadline - time.monotonic()))[0]
        assert ready, f"no end in time, but {self.text!r}"
        try:
            data = os.read(self.source, 65536)
        except OSError:  # EIO: nobody has the terminal open any more
            data = b""
        self.text += data
        return bool(data)

    def type(self, keys: bytes) -> None:
        os.write(self.source, keys)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, within: float = PATIENCE) -> int:
        return self.process.wait(within)

    def complaint(self) -> str:
        """Its stderr; call this when the process has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()


class World:
    """Starts processes, and ends whatever is left of them and of their descendants."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._started: list[Started] = []
        self._masters: list[int] = []
        self._mark = f"{os.getpid()}-{id(self)}"

    def environment(self, more: dict[str, str] | None = None) -> dict[str, str]:
        ours = ("HOLDFAST", "PYTHONUNBUF", "COLUMNS", "LINES")  # a person's own would decide what is tested
        plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {**plain, "HOLDFAST_TEST_MARK": self._mark, **(more or {})}

    def start(self, command: Iterable[object], *, env: dict[str, str] | None = None, **options: object) -> Started:
        """Start a command in a pipe, in a session of its own; Python is forked, unless it is to be `real` (warm.py)."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        process = warm.popen(
            map(_word, _bound(list(command))),
            cwd=self.directory,
            env=self.environment(env),
            start_new_session=True,
            bufsize=0,
            **streams,
        )
        started = Started(process, process.stdout.fileno() if process.stdout else -1)
        self._started.append(started)
        return started

    def terminal(
        self,
        command: Iterable[object],
        env: dict[str, str] | None = None,
        *,
        size: tuple[int, int] = (0, 0),
        real: bool = False,
    ) -> Started:
        """Start a command on a terminal of its own, as its session's leader and foreground process group. `size`:
        columns and lines."""
        master, slave = pty.openpty()
        attributes = termios.tcgetattr(slave)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        termios.tcsetwinsize(slave, (size[1], size[0]))
        modes = termios.tcgetattr(slave)
        self._masters.append(master)
        try:
            started = self.start(command, env=env, real=real, terminal=True, stdin=slave, stdout=slave, stderr=slave)
        finally:
            os.close(slave)
        started.source = master
        started.modes = modes
        return started

    def hang_up(self, started: Started) -> None:
        """Close the terminal, as a lost connection does."""
        self._masters.remove(started.source)
        os.close(started.source)

    def do(
        self, *words: object, given: bytes | None = None, env: dict[str, str] | None = None, **options: object
    ) -> subprocess.CompletedProcess[str]:
        """Run `holdfast` with these words to its end."""
        return self._finish(self.start([*HOLDFAST, *words], env=env, **_with_input(given), **options), given)

    def each(self, calls: Iterable[Sequence[object]], **options: object) -> list[subprocess.CompletedProcess[str]]:
        """Run `holdfast` to its end for each of these calls, one after the other."""
        return [self.do(*call, **options) for call in calls]

    def shell(
        self, script: str, *arguments: object, given: bytes | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell script to its end; `$H` in it is the command."""
        return self._finish(self.sh(script, *arguments, env=env, **_with_input(given)), given)

    def sh(self, script: str, *arguments: object, env: dict[str, str] | None = None, **options: object) -> Started:
        """Start a shell script; `$H` in it is the command."""
        return self.start(
            ["sh", "-c", script, "sh", *arguments], env={"H": " ".join(HOLDFAST), **(env or {})}, **options
        )

    def run(self, path: object, code: str, *options: object, **more: object) -> Started:
        """Start `holdfast run` with a Python command."""
        return self.start([*HOLDFAST, "run", *options, path, "--", sys.executable, "-c", code], **more)

    def hold(self, path: object, *options: object, **more: object) -> Started:
        """Start `holdfast run` with a command that says `held`, and ends when its stdin is closed."""
        script = "echo held; exec cat > /dev/null"
        return self.start([*HOLDFAST, "run", *options, path, "--", "sh", "-c", script], stdin=subprocess.PIPE, **more)

    def _finish(self, started: Started, given: bytes | None) -> subprocess.CompletedProcess[str]:
        out, complaint = started.process.communicate(given, timeout=PATIENCE)
        status = started.process.returncode
        return subprocess.CompletedProcess(
            started.process.args, status, (out or b"").decode(errors="replace"), (complaint or b"").decode()
        )

    def mine(self) -> list[int]:
        """Every process that descends from those started here: all have the mark in their environment."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdecimal() and int(name) != os.getpid():
                try:
                    if f"HOLDFAST_TEST_MARK={self._mark}".encode() in Path(f"/proc/{name}/environ").read_bytes():
                        found.append(int(name))
                except (OSError, ProcessLookupError):
                    pass
        return found

    def close(self) -> None:
        while self._started and (left := self.mine()):
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for started in self._started:
                started.process.poll()
        for started in self._started:
            started.process.wait()
            for stream in (started.process.stdin, started.process.stdout, started.process.stderr):
                if stream is not None:
                    stream.close()
        for master in self._masters:
            os.close(master)


def _bound(words: list[object]) -> list[object]:
    """The words, with `try` and `acquire` bound to this process: it is not a shell, so it has to be named."""
    after = len(HOLDFAST)
    binds = tuple(words[:after]) == HOLDFAST and words[after : after + 1] in (["try"], ["acquire"])
    if binds and not any(str(word).startswith("--owner-pid") for word in words):
        words[after + 1 : after + 1] = ["--owner-pid", os.getpid()]
    return words


def _with_input(given: bytes | None) -> dict[str, object]:
    return {} if given is None else {"stdin": subprocess.PIPE}


def _word(word: object) -> str | bytes | os.PathLike[str]:
    return word if isinstance(word, (str, bytes, os.PathLike)) else str(word)
