"""Helpers for the tests with real processes: a process that is spoken to line by line, and waiting for a condition.

No test here sleeps to win a race. A process says what it has reached (`Peer.hear`); any other condition is checked
until it holds (`eventually`). Both give up loudly after a deadline that no healthy machine comes near.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

import warm
from holdfast._core.wait import Wait
from holdfast._drivers.sync import wait_for

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds after which an expected event is believed never to happen."""

_PRELUDE = """
import os, signal, sys, threading, time
import holdfast
from holdfast import Lock

path = sys.argv[1] if len(sys.argv) > 1 else ""

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def hear():
    line = b""
    while not line.endswith(b"\\n"):
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    return line.decode().strip()

def events_only():
    # No wait ends for the sole reason that it has lasted long: a lost event is a hang.
    import holdfast.engines.file.acquire
    for module in [m for name, m in sys.modules.items() if name.startswith(("holdfast._core.", "holdfast.engines."))]:
        for limit in ("RECHECK", "_RECHECK_EACH", "_NOTICE_AFTER"):
            if hasattr(module, limit):
                setattr(module, limit, 1e6)

def become(user):
    # Another user may not be able to read this Python, so what is imported when it is needed is imported now.
    import ctypes, hashlib, logging, select, unicodedata, uuid
    import holdfast._drivers.background, holdfast._platform.inotify, holdfast._platform.linux
    import holdfast.engines.file.acquire, holdfast.engines.file.remove
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
"""


NO_NOTICE = """
import holdfast._core.wait
holdfast._core.wait._NOTICE_AFTER = 600
"""
"""Keeps a wait from waking up for anything else than its events: not to log that it takes long, either."""


def inotify_instance(flags: int = getattr(os, "O_CLOEXEC", 0)) -> int:
    """A new instance of inotify, as soon as this user may have another: there are 128, for all that runs on this
    machine."""
    libc = ctypes.CDLL(None)
    made: list[int] = []

    def make() -> bool:
        made.append(libc.inotify_init1(flags))
        return made[-1] >= 0

    eventually(make, what="an inotify instance for this user")
    return made[-1]


def eventually(condition: Callable[[], T], within: float = PATIENCE, what: str = "the condition") -> T:
    """The first true value of `condition`; the test fails if there is none in time."""
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} did not come true within {within:g} s")
        time.sleep(0.002)


def assert_that_a_child_ends(steps: Generator[Wait, None, object], pending: Wait | None = None) -> None:
    """A child forked at this moment of an acquisition, or during the `pending` wait, does not go on waiting."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(10)
            if pending is not None:
                wait_for(pending)
            with pytest.raises(RuntimeError, match="acquire again in the child"):
                next(steps)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Peer:
    """Another process that runs Python code and talks in lines, with `say` and `hear` on both sides."""

    def __init__(
        self,
        code: str,
        arguments: Iterable[object] = (),
        *,
        env: dict[str, str] | None = None,
        prefix: Iterable[str] = (),
        real: bool = False,
    ) -> None:
        """`real`: not forked by a process that has imported holdfast before (warm.py)."""
        command = [*prefix, sys.executable, "-c", _PRELUDE + textwrap.dedent(code), *map(str, arguments)]
        self._start(command, env or {}, real)

    def _start(self, command: Iterable[object], environment: Mapping[str, str], real: bool = False) -> None:
        self._buffer = b""
        self._said: list[str] = []
        self.process = warm.popen(
            command,
            real=real,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=True,
            bufsize=0,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self, within: float = PATIENCE) -> str:
        """The next line that the process says."""
        deadline = time.monotonic() + within
        out = self.process.stdout
        while b"\n" not in self._buffer:
            if not select.select([out], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"process {self.pid} said nothing within {within:g} s, after {self._said}")
            data = os.read(out.fileno(), 65536)
            if not data:
                raise AssertionError(
                    f"process {self.pid} ended without a word, after {self._said}:\n{self.complaint()}"
                )
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        self._said.append(line.decode())
        return line.decode()

    def silent(self) -> bool:
        """Whether it has printed nothing since the last line that was heard."""
        return not self._buffer and not select.select([self.process.stdout], [], [], 0)[0]

    def expect(self, line: str, within: float = PATIENCE) -> None:
        heard = self.hear(within)
        assert heard == line, f"process {self.pid} said {heard!r}, not {line!r}"

    def say(self, *words: object) -> None:
        os.write(self.process.stdin.fileno(), (" ".join(map(str, words)) + "\n").encode())

    def kill(self, number: int = getattr(signal, "SIGKILL", signal.SIGTERM)) -> None:
        self.process.send_signal(number)

    def wait(self, within: float = PATIENCE) -> int:
        """Its exit status, once it has ended."""
        return self.process.wait(within)

    def complaint(self) -> str:
        """Its stderr; call this when the process has ended."""
        return self.process.stderr.read().decode()

    def finish(self, within: float = PATIENCE) -> str:
        """Wait for a successful end; its stderr."""
        status = self.wait(within)
        complaint = self.complaint()
        assert status == 0, f"process {self.pid} ended with {status}:\n{complaint}"
        return complaint

    def destroy(self) -> None:
        """End it and all processes that it has started in its session."""
        for number in (signal.SIGCONT, signal.SIGKILL):
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):
                pass
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()


def descriptors(pid: int | str = "self") -> dict[int, str]:
    """The open descriptors of a process and their targets, without the one that lists them."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            pass
    return found


def threads_asleep(pid: int, count: int) -> bool:
    """Whether the process has at least that many threads, and all of them wait for something."""
    try:
        states = [state(pid, int(task)) for task in os.listdir(f"/proc/{pid}/task")]
    except FileNotFoundError:
        return False
    return len(states) >= count and all(s == "S" for s in states)


def state(pid: int, task: int | None = None) -> str:
    """The letter of a process's state: R, S, T, Z …; empty if it is gone."""
    try:
        text = Path(f"/proc/{pid}/task/{task or pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text.rpartition(")")[2].split()[0]


def switches(pid: int) -> int:
    """Number of times that the threads of a process have gone to sleep of their own will: once for each wake-up."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            status = Path(f"/proc/{pid}/task/{task}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # that thread has ended
        total += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return total


def quiet(*pids: int, seconds: float = 0.2, wakes: int = 0) -> bool:
    """Whether they wake no more often than this in that time. To be asked again: a first wait is short if something
    seems to have changed, and a machine that stands still for a moment wakes them all."""
    before = sum(map(switches, pids))
    time.sleep(seconds)
    return 0 <= sum(map(switches, pids)) - before <= wakes


def polling(pid: int) -> bool:
    """Whether the main thread of a process sleeps in the kernel, waiting for a descriptor or a deadline."""
    try:
        return state(pid) == "S" and Path(f"/proc/{pid}/wchan").read_text() not in ("", "pipe_read")
    except (FileNotFoundError, PermissionError):
        return False
