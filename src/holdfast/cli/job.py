"""`run` on Windows: hold a lock while a command runs, whose processes are kept together by a job object.

    acquire ──▶ start, in the job ──▶ wait for its end, or for the loss of the lock ──▶ end what is left ──▶ release

The command and all that it starts end with this process, however it ends: the system closes the job then. When the lock
is lost, they are ended at once, as there is no signal that asks them to. Ctrl-C and Ctrl-Break reach the command by the
console; this process goes on, to release the lock when the command has ended.
"""

from __future__ import annotations

import signal
import threading

from .._core.wait import Wait
from .._drivers.sync import wait_for
from .._platform import environment
from ..errors import AcquireTimeout, LockLost
from .locks import lock_of, semaphore_of
from .outcome import FAILED, LOST, say
from .run import NOT_EXECUTABLE, NOT_FOUND, environment_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from .._platform.windows import Job
    from ..lock import Hold

_LOOK_EVERY = 0.1
"""Seconds between looks at what the command has left running."""


def run(options: argparse.Namespace) -> int:
    """Hold the lock while the command runs; its exit status."""
    if options.record is not None:
        from .console import recorded

        recorded(options.record, options.cmd, environment().identity().host)
    command = _Command(options)
    lock = (lock_of if options.slots is None else semaphore_of)(options, on_lost=command.stop_for_loss)
    try:
        hold = lock.acquire(options.timeout)
    except AcquireTimeout as error:
        if not options.quiet:
            say(str(error))
        return int(options.held_code)
    for name in ("SIGINT", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda _number, _frame: None)
    if options.verbose:
        say(f"got {hold.path}")
    status = command.run(hold)
    try:
        hold.release()
    except LockLost as lost:
        if not command.told.is_set():
            say(str(lost))
        return LOST
    except OSError as error:
        say(f"{hold.path} could not be removed ({error.strerror}); it is released all the same: nobody guards it now")
        return status or FAILED
    if options.verbose:
        say(f"released {hold.path}")
    return LOST if command.told.is_set() else status


class _Command:
    """The command, and all that it starts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._words: list[str] = options.cmd
        self._options = options
        self._job: Job | None = None
        self._mutex = threading.Lock()
        self.told = threading.Event()
        """Set when the lock is lost, and that was said."""

    def run(self, hold: Hold) -> int:
        """Start it and wait for its end: its exit status."""
        from .._platform.windows import Job

        env = environment()
        with self._mutex:
            if self.told.is_set():
                return FAILED
            self._job = job = Job()
            try:
                process = job.start(self._words, environment_of(hold))
            except OSError as error:
                say(f"{self._words[0]}: {error.strerror}")
                return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        status = job.status()
        while status is None:
            wait_for(Wait((process,), env.monotonic() + 1))
            status = job.status()
        if self._options.until == "command":
            job.let_go()
        elif job.count() and not self.told.is_set():
            if not self._options.quiet:
                say(f"{hold.path} stays held until what the command has left running has ended (--until)")
            while job.count():
                wait_for(Wait((), env.monotonic() + _LOOK_EVERY))
        if self.told.is_set():
            say(f"the command ended with status {status}")
        return status

    def stop_for_loss(self, lost: LockLost) -> None:
        """Called from another thread: the lock is not ours any more, so the work must end."""
        with self._mutex:
            self.told.set()
            works = self._job is not None and self._job.count() > 0
            say(f"{lost} Ending the command, and all that it has started" if works else str(lost))
            if self._job is not None:
                self._job.end()
