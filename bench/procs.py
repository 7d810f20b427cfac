"""Child processes of the benchmarks: forked, talked to over a pipe, and gone when the parent is gone.

Plain fork, not multiprocessing: a child here may have children of its own, and a child that is killed in the
middle of a measurement must not leave bookkeeping behind. The parent imports neither holdfast nor a peer, so
that each child holds one library only.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_live: set[int] = set()


class Failed(Exception):
    """A measurement has failed; the text is for the table."""


class NotAvailable(Failed):
    """The installed version has no such feature: nothing went wrong, and the table says so."""


@dataclass(frozen=True)
class Child:
    """A forked child: its process id and our end of the pipe to it."""

    pid: int
    pipe: Connection

    def ask(self, message: Any, timeout: float) -> Any:
        """Send `message` and return the answer; see `answer`."""
        try:
            self.pipe.send(message)
        except OSError:
            pass  # it has ended; its last message says why
        return self.answer(timeout)

    def answer(self, timeout: float) -> Any:
        """Return the next message; raise `Failed` if there is none in `timeout` seconds, or it is an error."""
        try:
            if not self.pipe.poll(timeout):
                raise Failed(f"no answer in {timeout:.0f} s")
            message = self.pipe.recv()
        except (EOFError, OSError):
            raise Failed("process ended early") from None
        if isinstance(message, Failed):
            raise message
        return message

    def end(self) -> None:
        """Kill the child and reap it. Harmless if it has ended already."""
        self.pipe.close()
        if self.pid in _live:
            kill(self.pid)


def spawn(function: Callable[..., None], *args: Any) -> Child:
    """Fork a child that runs `function(pipe, *args)` and then exits without clean-up handlers."""
    ours, theirs = multiprocessing.Pipe()
    pid = _fork(function, theirs, args, ours)
    theirs.close()
    return Child(pid, ours)


def spawn_silent(function: Callable[..., None], *args: Any) -> int:
    """Like `spawn`, for a child that only uses shared memory: `function(*args)`, no pipe. A thousand cost less so."""
    return _fork(function, None, args)


def _fork(
    function: Callable[..., None], pipe: Connection | None, args: tuple[Any, ...], ours: Connection | None = None
) -> int:
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        if ours is not None:
            ours.close()
        _be_child(parent, function, pipe, args)
    _live.add(pid)
    return pid


def _be_child(parent: int, function: Callable[..., None], pipe: Connection | None, args: tuple[Any, ...]) -> NoReturn:
    status = 1
    try:
        _live.clear()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        # The kernel kills the child with its parent, however the parent ends.
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            function(*args) if pipe is None else function(pipe, *args)
            status = 0
    except (EOFError, BrokenPipeError):
        status = 0  # the parent has finished with us
    except BaseException as error:
        if os.environ.get("HOLDFAST_BENCH_DEBUG"):
            traceback.print_exc()
        if pipe is not None:
            try:
                pipe.send(_told(error))
            except OSError:
                pass
    finally:
        os._exit(status)


def _told(error: BaseException) -> Failed:
    """The error that a failing child sends to its parent."""
    if isinstance(error, Failed):
        return error
    if isinstance(error, ModuleNotFoundError):
        return NotAvailable(f"not installed: no module {error.name}")
    return Failed(f"{type(error).__name__}: {error}")


def kill(pid: int) -> None:
    """SIGKILL a child of this process and reap it."""
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
    _live.discard(pid)


def kill_all() -> None:
    """End every child of this module that still runs."""
    for pid in _live:
        try:
            os.kill(pid, signal.SIGKILL)  # all of them first: a thousand deaths side by side take less time
        except ProcessLookupError:
            pass
    for pid in list(_live):
        kill(pid)


def forget(pid: int) -> None:
    """Take a child that the caller has already reaped off the list."""
    _live.discard(pid)


def adopt_orphans() -> None:
    """Make orphaned descendants our children, so that a background process of theirs can be found and ended."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_adopted(settle: float = 0.0) -> int:
    """Kill and reap children that `spawn` did not make (orphans that came to us); return how many.

    Looks again until none is left, and for at least `settle` seconds, because a grandchild becomes ours only when
    its parent has ended.
    """
    count, stop = 0, time.monotonic() + settle
    while True:
        found = [pid for pid in _children() if pid not in _live]
        for pid in found:
            kill(pid)
            count += 1
        if not found and time.monotonic() >= stop:
            return count
        time.sleep(0.002)


def _children() -> list[int]:
    found, me = [], os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as stat:
                    parent = int(stat.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == me:
                found.append(int(name))
    return found


def wake_ups(pid: int) -> int:
    """Number of times that the threads of a process have gone to sleep so far: voluntary context switches."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                count += int(line.split()[1])
    return count


def own_memory(pid: int) -> int:
    """Bytes that a process shares with no other."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def allow_open_files() -> int:
    """Raise this process's limit of open descriptors as far as it may; return it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def sweep_behind_us(directories: list[Path]) -> None:
    """Fork a child that removes the directories when this process ends without having done so (SIGKILL, say)."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(theirs)
        os.setsid()  # out of reach of the terminal's Ctrl-C
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # Nothing is ever written: this ends when the last writer is gone, and our other children die with us.
        os.read(ours, 1)
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)
        os._exit(0)
    os.close(ours)
    _live.add(pid)


class Slots:
    """64-bit integers in memory that a process shares with the children it forks afterwards."""

    def __init__(self, count: int) -> None:
        self._memory = mmap.mmap(-1, 8 * count)
        self._view = memoryview(self._memory).cast("q")

    def __getitem__(self, index: int) -> int:
        return self._view[index]

    def __setitem__(self, index: int, value: int) -> None:
        self._view[index] = value

    def wait(self, index: int, value: int, timeout: float = 30.0) -> None:
        """Return once the slot holds at least `value`; raise `Failed` after `timeout` seconds.

        Looks every 0.3 ms instead of spinning: on a small machine a spinning process would take the processor from
        the one that is being measured.
        """
        stop = time.monotonic() + timeout
        while self._view[index] < value:
            if time.monotonic() > stop:
                raise Failed(f"the other process did not come within {timeout:.0f} s")
            time.sleep(0.0003)
