"""`beads check` and `beads daemon`: the daemon's side, which keeps away from a database while a tool holds it.

BD1  The signals that end the daemon are blocked and received one by one, as in run.py: none is lost between two steps.
    One that comes while nothing runs ends the daemon at once; one that comes during a cycle is passed on to the
    command, and the daemon ends when that has ended.
BD2  A cycle begins when the one before has ended and the interval since its beginning is over: cycles never overlap.
BD3  An error in a cycle ends with that cycle: a command that fails is logged, and an unwritable log is ignored.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
import time

from .._core.messages import moment, printable
from .._drivers.apart import seen_at
from ..beads import SyncGate
from .console import dumped
from .guardian import spawn, why_not_startable
from .options import Namespace
from .outcome import DONE, HELD, die_of, not_started, show
from .run import heed_children, is_group_of_its_own, name_of, next_signal, received_with, without_core_dump

_ENDING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
_LONGEST_WAIT = 3600.0
_LONGEST_LINE = 4000


def beads_(options: Namespace) -> int:
    """Run the command after `beads`."""
    if options.step == "check":
        return check(options)
    daemon = _Daemon(options)
    missing = why_not_startable(options.cmd[0])  # a mistyped command is reported now, too
    if missing is not None:
        return not_started(options.cmd, missing, "holdfast beads daemon DIR -- sh -c '...'")
    return daemon.run()


def check(options: Namespace) -> int:
    """Check once, as at the start of a cycle: 0 to proceed, 1 to skip."""
    lines: list[str] = []
    gate = SyncGate(options.lock, log=lines.append)
    proceed = gate.open()
    if options.json:
        _, holder, error = gate.last
        told = {"result": "proceed" if proceed else "skip", "path": gate.path, "holder": holder, "error": error}
        show(dumped({**told, "removed": proceed and holder is not None, "log": lines[0] if lines else None}))
    elif lines and not options.quiet:
        show(lines[0])
    return DONE if proceed else HELD


class _Daemon:
    """Cycles of one command, each behind the gate."""

    def __init__(self, options: Namespace) -> None:
        self._command: list[str] = options.cmd
        self._interval: float = options.interval
        self._verbose: bool = options.verbose
        self._path: str | None = options.log
        # A mistyped directory has no lock in it, so its gate would be open forever.
        if not stat.S_ISDIR(seen_at(options.lock, lambda: os.stat(options.lock)).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), options.lock)
        if self._path is not None:
            os.close(_open_log(self._path))  # an unwritable log is reported now, not in an hour
        self._gate = SyncGate(options.lock, log=self._log)
        self._ended_by = 0
        self._pid = 0

    def run(self) -> int:
        """Run cycles until a signal: 0 for TERM, as a supervisor expects; else die of that signal, as a shell does."""
        # Signals that the caller ignores (nohup, a background job) stay ignored, here and in the command.
        ending = (getattr(signal, name) for name in _ENDING)
        heeded = {number for number in ending if signal.getsignal(number) is not signal.SIG_IGN}
        heed_children()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # BD3: a reader of the log that has gone away
        self._signals = received_with(heeded)
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)  # BD1
        while not self._ended_by:
            due = time.monotonic() + self._interval
            if self._gate.open():
                self._heed(0)
                if not self._ended_by:
                    self._cycle()
            while not self._ended_by and (left := due - time.monotonic()) > 0:  # BD2
                self._heed(min(left, _LONGEST_WAIT))
        self._log(f"Ended by {name_of(self._ended_by)}")
        if self._ended_by != signal.SIGTERM:
            without_core_dump()
            die_of(self._ended_by)
        return DONE

    def _cycle(self) -> None:
        """Run the command to its end, whatever happens meanwhile."""
        if self._verbose:
            self._log("Starting sync cycle")
        named = {name: value for name, value in os.environ.items() if name}  # Python passes on no entry without a name
        try:
            self._pid = spawn(self._command, named, self._before)
        except OSError as error:
            self._log(f"{self._command[0]} could not be started: {error.strerror}")
            return
        pid = 0
        while not pid:
            self._heed(_LONGEST_WAIT)
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        self._pid = 0
        code = os.waitstatus_to_exitcode(status)
        if code:
            how = f"failed with status {code}" if code > 0 else f"was killed by {name_of(-code)}"
            self._log(f"{self._command[0]} {how}")
        elif self._verbose:
            self._log("Sync cycle complete")

    def _heed(self, seconds: float) -> None:
        """Receive one signal, if one comes within that many seconds, and pass it on to a running command."""
        number, by_terminal = next_signal(self._signals, seconds)
        if number in (0, signal.SIGCHLD):
            return
        self._ended_by = number
        # A signal from the terminal has reached the command too (run.py, C3). Only we reap it: its pid is valid.
        alone = number == signal.SIGHUP and os.getsid(0) == os.getpid()
        if self._pid and (alone or not by_terminal or is_group_of_its_own(self._pid)):
            try:
                os.kill(self._pid, number)
            except PermissionError:
                self._log(f"{name_of(number)} was not passed on: process {self._pid} is another user's by now")

    def _log(self, text: str) -> None:
        """Log one line with its time. The file is opened for each line, so that it can be rotated."""
        line = f"[{moment(time.time())}] {printable(text, _LONGEST_LINE)}\n".encode("utf-8", "backslashreplace")
        try:
            if self._path is None:
                sys.stderr.flush()
                os.write(2, line)
                return
            fd = _open_log(self._path)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)
        except OSError:
            pass  # BD3


def _open_log(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)  # a FIFO would make it wait
