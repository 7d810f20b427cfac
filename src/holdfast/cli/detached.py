"""Detached processes: they outlive their caller, keep nothing of it open, and get none of its session's signals."""

from __future__ import annotations

import os
import sys

from .._drivers.sync import caller
from .._platform import environment
from .._platform.fork import to_load
from ..lock import Hold, keep
from .outcome import open_null, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from ..engines.file.hold import FileHold
    from ..errors import LockLost


def detach(kept: Collection[int]) -> None:
    """Start a session without a terminal, change to `/`, and close all descriptors but these: a reader may wait for the
    end of a pipe that the caller had."""
    os.setsid()
    leave_place()
    close(opened_but({0, 1, 2, *kept}))


def leave_place() -> None:
    """Change to `/`, and have the standard descriptors lead nowhere."""
    os.chdir("/")
    null = open_null()
    for fd in range(3):
        os.dup2(null, fd)


def fork() -> int:
    """Like `os.fork`, without Python's warning about threads: our children take no lock that a thread may have."""
    to_load.clear()  # our children wait for no lock
    if "threading" not in sys.modules:
        return os.fork()  # there are none
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


LONGEST_WAIT = 86400.0
"""Longest single wait in seconds: systems have a limit, which is 24 days for poll()."""


def readable(fds: Collection[int], seconds: float | None) -> list[int]:
    """The descriptors that can be read or are closed at the other end. Waits up to `seconds` for the first, a day at
    most; None: forever."""
    import select

    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(None if seconds is None else round(min(max(0.0, seconds), LONGEST_WAIT) * 1000))]


def sooner(one: float | None, other: float | None) -> float | None:
    """The smaller of two numbers of seconds; None is longer than any."""
    return min((seconds for seconds in (one, other) if seconds is not None), default=None)


def wakeup_pipe() -> tuple[int, int]:
    """A pipe that never blocks: its end to read from, and its end to write to."""
    pipe = os.pipe()
    for fd in pipe:
        os.set_blocking(fd, False)
    return pipe


def wake_by(names: Iterable[str], fd: int) -> None:
    """Have these signals do nothing but write to that end of a pipe, from here on."""
    signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
    for name in names:
        signal.signal(getattr(signal, name), lambda _number, _frame: None)


def opened_but(kept: Collection[int]) -> list[int]:
    """All open descriptors but these."""
    try:
        listed = [int(name) for name in os.listdir("/dev/fd")]
    except (OSError, ValueError):
        listed = list(range(min(os.sysconf("SC_OPEN_MAX"), 65536)))
    return [fd for fd in listed if fd not in kept and _is_open(fd)]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False  # that of the listing, which is closed by now
    return True


def close(fds: Collection[int]) -> None:
    """Close descriptors that the caller may have opened for others to wait for, or to lock with."""
    for fd in fds:
        os.closerange(fd, fd + 1)  # which ignores errors


def take(held: FileHold, fd: int, on_lost: Callable[[LockLost], object]) -> Hold:
    """The hold of the parent process, taken over with its guard. It is neither refreshed nor watched before
    `keep_from_now`."""
    return held_here(held, environment().adopt(fd), on_lost)


def held_here(held: FileHold, fd: int, on_lost: Callable[[LockLost], object]) -> Hold:
    """Like `take`, with a descriptor that is already this process's."""
    env = environment()
    held.request.on_lost, held.request.watched, held.request.kept_later = on_lost, True, True
    ours = held.taken_by(env, fd)
    ref = ours.ref(caller())
    keep(env, ref)
    return Hold(ref)
