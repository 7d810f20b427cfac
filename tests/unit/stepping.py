"""Processes played by hand, so that a race is a sequence of steps and not a matter of luck.

`Stepped` wraps an environment: every call that the engine makes of it is one step, which a test can watch, run
something before or after, replace, make fail, or let be the last (`Crash`). `Contender` is one acquisition in such an
environment; two of them with two environments are, for the engine and for the kernel's locks, two processes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import select
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import instances
from holdfast._core.attempt import Refusal
from holdfast._core.hold import HoldRef
from holdfast._core.wait import Wait
from holdfast._drivers.sync import wait_for
from holdfast._platform.handles import handles_of
from holdfast._platform.portable import GenericEnvironment
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.queue import Queue, name_of
from holdfast.engines.file.request import FileRequest, slots_of
from holdfast.engines.file.uncontended import acquire

KINDS: dict[str, type[GenericEnvironment]] = {}
"""Environments by name; the usual one of this system has none. Windows has no other, unless it is forced."""
if sys.platform == "win32":
    from holdfast._platform.windows import WindowsEnvironment

    KINDS |= {"": WindowsEnvironment}
else:
    from holdfast._platform.linux import LinuxEnvironment
    from holdfast._platform.posix import PosixEnvironment

    KINDS |= {"": LinuxEnvironment, "linux": LinuxEnvironment, "posix": PosixEnvironment, "generic": GenericEnvironment}

_played: weakref.WeakSet[GenericEnvironment] = weakref.WeakSet()


def played(kind: str = "", without: Iterable[str] = ()) -> GenericEnvironment:
    """An environment that ends with its test. A process makes one, which hears of each fork as long as it lives; of the
    thousands that tests make, each fork would call every one."""
    with mock.patch.object(os, "register_at_fork", _not_registered, create=True):
        made = KINDS[kind](frozenset(without))
    _played.add(made)
    return made


def _not_registered(**_hooks: object) -> None:
    pass


def _in_child() -> None:
    for env in [*_played]:
        env._in_child()
        env.generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

QUIET = frozenset(
    {"time", "monotonic", "uptime", "identity", "token", "adopt", "command", "poll_limit", "events_reach", "storage"}
    | {"is_open", "is_lasting", "has_created", "undo_by", "directory_log", "listed", "keep", "open_vanishing"}
    | {"may_block", "server_at", "is_away", "reconnects", "is_read_only"}
)
"""Calls that neither read nor change anything that processes share, where these tests run: no steps."""

_crashed: list[object] = []
_tokens = itertools.count()


class Crash(BaseException):
    """The process is gone: it takes not one step more from here on."""


class Stepped:
    """An environment whose steps are visible. `before` and `after` map a step's name to a function of its arguments."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.steps: list[str] = []
        self.before: dict[str, Callable[..., object]] = {}
        self.after: dict[str, Callable[..., object]] = {}
        self.instead: dict[str, Callable[..., Any]] = {}
        self.at_step: Callable[[int, str], object] | None = None
        self.past_step: Callable[[int, str], object] | None = None
        self.contenders: list[Contender] = []
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.real, name)
        if not callable(value):
            return value

        def step(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                raise Crash
            if name in QUIET:
                return self.instead.get(name, value)(*args, **kwargs)
            number = len(self.steps)
            self.steps.append(name)
            if self.at_step is not None:
                self.at_step(number, name)
            if name in self.before:
                self.before[name](*args, **kwargs)
            result = self.instead.get(name, value)(*args, **kwargs)
            if name in self.after:
                self.after[name](*args, **kwargs)
            if self.past_step is not None:
                self.past_step(number, name)
            return result

        return step

    def once(self, table: dict[str, Callable[..., object]], name: str, action: Callable[[], object]) -> None:
        """Run `action` at the next such step only."""

        def run(*_args: object, **_kwargs: object) -> None:
            del table[name]
            action()

        table[name] = run

    def stop_clocks(self) -> None:
        """Stop the time here from now on, however slow the machine is."""
        for name in ("monotonic", "time", "uptime"):
            self.instead[name] = functools.partial(float, getattr(self.real, name)())

    def ask_once_about_processes(self) -> None:
        """Give each look at a process its first answer, in schedules in which none begins or ends; the look stays a
        step.

        A process that reads its own `/proc/PID/stat` is charged its time at that moment, and loses the processor if
        others want it: milliseconds for each look on a busy machine.
        """
        self.instead["inspect"] = functools.cache(self.real.inspect)

    def open_descriptors(self) -> set[int]:
        return {fd for fd in self.real._descriptors if not self.real.is_lasting(fd)}

    def crash(self) -> None:
        """End the process as SIGKILL does: its descriptors are closed, and nothing else happens."""
        self.dead = True
        self.dispose()
        _crashed.append(self)

    def end(self) -> None:
        """End everything that still goes on, at the end of a test."""
        self.before.clear()
        self.after.clear()
        self.instead.clear()
        self.at_step = self.past_step = None
        for contender in self.contenders:
            with contextlib.suppress(Crash):
                contender.steps.close()
        if not self.dead:
            for held in list(self.real.holds.values()):
                held.abandon()

    def dispose(self) -> None:
        hub = getattr(self.real, "_hub", None)
        for fd in self.real._descriptors:
            if hub is not None and fd == hub.fd:
                instances.leave(fd)
            else:
                (fd.end or os.close)(fd)
            self.real._descriptors.disown(fd)
        self.real._hub = None
        _played.discard(self.real)  # a fork to come is none of its business


class Contender:
    """One acquisition, of a lock or of one of that many slots, advanced by `step` or run to its end."""

    def __init__(
        self,
        env: Stepped,
        path: str,
        *,
        slots: int | None = None,
        timeout: float | None = 0,
        context: tuple[object, ...] = (),
        **options: Any,
    ) -> None:
        self.env = env
        # The queue has tests of its own; elsewhere a contender that is slow to be stepped must not take a ticket.
        given: Any = {"fair": False, **options}
        self.requests = (FileRequest(path, given),) if slots is None else slots_of(path, slots, given)
        self.request = self.requests[0]
        self.waits: list[Wait] = []
        self.done = False
        self.result: FileHold | Refusal | None = None
        self.steps = acquire(env, self.requests, timeout, context or (object(),))
        env.contenders.append(self)

    def step(self) -> Wait | None:
        """Go on until it wants to wait; the wait, or None when it has ended."""
        try:
            wait = next(self.steps)
        except StopIteration as done:
            self.done, self.result = True, done.value.held if isinstance(done.value, HoldRef) else done.value
            return None
        self.waits.append(wait)
        return wait

    def run(self) -> FileHold | Refusal:
        """Go on until it ends, waiting whenever it wants to."""
        while (wait := self.step()) is not None:
            # The process may live by a clock that the test turns; the driver lives by the real one.
            pause = wait.deadline - self.env.monotonic()
            wait_for(wait.replaced(deadline=time.monotonic() + pause))
        assert self.result is not None
        return self.result

    def get(self) -> FileHold:
        """Run to the end, which must be a hold."""
        result = self.run()
        assert isinstance(result, FileHold), f"not acquired: {result}"
        return result

    @property
    def inside(self) -> bool:
        """Whether this contender has been let in and has not left."""
        return isinstance(self.result, FileHold) and not self.result.released

    def crash(self) -> None:
        self.env.crash()


def is_ready(wait: Wait, seconds: float = 0) -> bool:
    """Whether the event of the wait's descriptors has happened, or does within that many seconds."""
    if (handles := handles_of(wait.fds)) and sys.platform == "win32":
        import _winapi

        # A change is told a moment after it.
        answer = _winapi.WaitForMultipleObjects(handles, False, int(max(seconds, 0.05) * 1000))
        return bool(answer != _winapi.WAIT_TIMEOUT)
    if not wait.fds:
        time.sleep(seconds)
        return False
    return bool(select.select(wait.fds, [], [], seconds)[0])


def by_turns(env: Stepped, path: Path, elsewhere: Path) -> None:
    """Have the file that is elsewhere be at the path too, but not while its descriptor is asked for its identity."""

    def hide(fd: int) -> None:
        if os.path.samestat(os.fstat(fd), elsewhere.stat()):
            path.unlink(missing_ok=True)

    def bring(fd: int) -> None:
        if os.path.samestat(os.fstat(fd), elsewhere.stat()) and not path.exists():
            os.link(elsewhere, path)

    env.before["fstat"], env.after["fstat"] = hide, bring


def device_in(directory: Path) -> int:
    """The device of the files in a directory: on an overlay of two filesystems, it is not that of the directory."""
    with tempfile.TemporaryFile(dir=directory) as file:
        return os.fstat(file.fileno()).st_dev


def sema_record(pid: int | str, timestamp: float | str, tag: str | None = None, marker: str | None = None) -> bytes:
    """A record as a sema implementation writes it, with a marker if one is given."""
    lines = [f"pid={pid}", f"timestamp={timestamp if isinstance(timestamp, str) else int(timestamp)}"]
    lines += [] if marker is None else [f"holdfast={marker}"]
    lines += [] if tag is None else [f"tag={tag}"]
    return "".join(f"{line}\n" for line in lines).encode()


def failing(error: int | BaseException, times: float = math.inf) -> Callable[..., Any]:
    """A function in place of a step, or before it, that fails that often, with this error, or with the system's error
    of this number."""
    raised = OSError(error, os.strerror(error)) if isinstance(error, int) else error
    left = [times]

    def fail(*_: object, **__: object) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise raised

    return fail


Contend = Callable[..., Contender]
"""A fixture that makes contenders."""


class Clock:
    """The clock of the processes of `clocked` in conftest.py. No two readings are equal, as with the system's."""

    def __init__(self) -> None:
        self.now = 1000.0

    def read(self) -> float:
        self.now += 1e-6
        return self.now


@functools.cache
def _any_environment() -> Any:
    return KINDS[""]()


def ticket_name(
    queue: str | Path, pid: int | None = None, arrival: float = 1.0, *, shared: bool = False, where: str = ""
) -> str:
    """The name of a ticket, of this process, kernel and mount unless others are given."""
    if not where:
        with Queue(_any_environment(), str(queue)) as opened:
            where = opened.where
    return name_of(arrival, os.getpid() if pid is None else pid, where, f"{next(_tokens):016x}", shared=shared)


def forged_ticket(queue: str | Path, pid: int | None = None, arrival: float = 1.0, **how: Any) -> Path:
    """Make a ticket that nobody reads, as of a process that has died; its path."""
    path = Path(queue, ticket_name(queue, pid, arrival, **how))
    if sys.platform == "win32":
        path.write_text(f"{0o600:06o} {'0' * 16} {pid or os.getpid()}\n")
    else:
        os.mkfifo(path, 0o600)
    return path
