"""`run` on Windows: hold a lock while a command runs, whose processes are kept together by a job object.

    run ──▶ acquires ──▶ has a guardian take half of the guard ──▶ starts the command, in the job ──▶ waits for its end
        ── started, keep or dismiss ──▶ guardian
        ◀── ready ──

JG1  The guardian has half of the guard of each lock (windows.py, WI8), and the job open, before the command begins. So
    whichever of the two is killed, the locks stay held and the command goes on.
JG2  A process is in the job from its first moment on, and leaves it by ending. So the guardian of a `run` that was
    killed knows when the last of them has ended, even if it was never told that the command was started.
JG3  The job ends its processes when the last process that has it open ends. So if both are killed, the command does not
    work on without the lock; but the next contender may have it a moment before the last of them has stopped.
JG4  The guardian has no console, and none of the caller's handles: the end of the console, or a Ctrl-C that ends the
    whole group of `run`, does not reach it, and no reader waits for a pipe that it has open.
JG5  If `run` ends without a word, the guardian is the holder: it keeps the record fresh, and ends the command and all
    that it has started if the lock is lost. At the end it leaves the file as a dead holder's: the next holder should
    hear that a `run` was killed. An error in `run` ends it in the same way (run.py, C7).
JG6  `run` hands the lock over by closing its descriptor, and says `keep` after that. If it is killed in between, the
    guardian treats that as JG5. Before a release, `run` dismisses the guardian, which has the file open, and waits for
    its end.
JG7  A guardian that hangs delays `run` for a bounded time, at its start and at its end. Then `run` ends it, and goes on
    without one.
JG8 Ctrl-C and Ctrl-Break reach the command by the console; this process goes on, to release the lock when the command
    has ended. If they come before the command is started, as while its guardian begins, it is not started.

A lock of the kernel alone (`protocol="flock"`) is one byte, which others lock as well, and a lock on a server is a
connection. Neither can be handed over. A command with one such lock among its locks has no guardian, so it ends with
`run` (JG3).

When the lock is lost, the processes are ended at once, as there is no signal that asks them to.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from .._core.wait import Wait
from .._drivers.sync import wait_for
from .._platform import environment
from ..engines.file.hold import FileHold
from ..errors import AcquireTimeout, LockLost
from ..lock import Hold, attend, guarded_hold, keep_from_now, requests_of
from .detached import held_here
from .guardian import COMMAND, Terms, finish
from .locks import locks_of
from .options import Namespace
from .outcome import CONTROL_C, FAILED, not_started, say
from .run import acquire, all_of, environment_of, let_go, limit_reached, locks_for, refused, tell_acquired, work_under

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from .._platform.windows import Job, Program

_LOOK_EVERY = 0.1
"""Seconds between looks at what the command has left running."""
_STARTS_WITHIN = 30.0
_ENDS_WITHIN = 5.0
"""Seconds that a guardian gets (JG7). It is a process of Python, whose start can take seconds on a busy machine."""
_GUARDIAN = "import sys; sys.path[:] = sys.argv.pop(1).split(';'); from holdfast.cli.job import guard; guard()"
_APART = 0x8 | 0x200
"""DETACHED_PROCESS and CREATE_NEW_PROCESS_GROUP (JG4)."""


def run(options: Namespace) -> int:
    """Hold the lock while the command runs; its exit status."""
    command = _Command(options)
    try:
        locks = locks_for(options, command.stop_for_loss)
    except AcquireTimeout as error:
        return refused(error, options)  # a file server does not answer
    presses = [number for name in ("SIGINT", "SIGBREAK") if (number := getattr(signal, name, None)) is not None]
    try:
        for number in presses:
            signal.signal(number, signal.default_int_handler)
        holds = acquire(locks, options.timeout)
    except AcquireTimeout as error:
        return refused(error, options)
    finally:
        for number in presses:
            signal.signal(number, command.press)
    tell_acquired(holds, options)
    status = work_under(holds, command, lambda: command.run(holds), options)
    return status if status < 1 << 31 else status - (1 << 32)  # the same number, as Python takes it


class _Command:
    """The command, and all that it starts."""

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self._job: Job | None = None
        self._program: Program | None = None
        self._guardian: _Guardian | None = None
        self._mutex = threading.Lock()
        self.told = self.over = self.has_begun = False
        self._pressed = False
        """Whether Ctrl-C or Ctrl-Break has come: before the command is there to hear it, that is ours (JG8)."""

    def run(self, holds: Sequence[Hold]) -> int:
        """Start the command and wait for its end; its exit status."""
        from .._platform.windows import Job

        job, words = Job(), self._options.cmd
        self._terms = terms = Terms(self._options.kill_after, self._options.until, self._options.limit)
        self._guardian = _guardian_of(holds, job, self._options, terms)
        with self._mutex:
            if self.told:
                return FAILED
            if self._pressed:
                return CONTROL_C % (1 << 32)  # as Windows has it
            self.has_begun = True  # it may be at work, or processes that it has started
            try:
                self._program = program = job.start(words, environment_of(holds), self._options.line)
            except OSError as error:
                return not_started(words, error)
            self._job = job
        if self._guardian is not None:
            self._guardian.say(f"started {program.pid}")
        while (status := program.status()) is None:
            self._heed_limit(holds, "the command, and all that it has started")
            attend()  # background.py, K10; here and below
            wait_for(Wait((program.end,), environment().monotonic() + min(terms.left() or 1, 1)))
        return status

    def _heed_limit(self, holds: Sequence[Hold], what: str) -> None:
        """End all of the work if its time is up."""
        if self._job is not None and self._terms.left() == 0 and not self.over:
            self.over = True
            say(f"{limit_reached(holds, self._options)}. Ending {what}")
            self._job.end()

    def leaves(self, holds: Sequence[Hold], *, quiet: bool) -> bool:
        job = self._job
        if job is not None and self._options.until == COMMAND:
            job.let_go()
        elif self._left():
            if not quiet:
                stay = all_of(holds, "stays", "stay")
                say(f"{stay} held until the processes that the command left running have ended (--until)")
            if self._guardian is not None and self._guardian.lives:
                for hold in holds:
                    let_go(hold)  # JG6
                self._guardian.say("keep")
                self._guardian = None
                return True
            while self._left():
                self._heed_limit(holds, "what the command has left running")
                attend()
                wait_for(Wait((), environment().monotonic() + _LOOK_EVERY))
        self.dismiss()
        return False

    def _left(self) -> list[int]:
        """Pids of the processes that go on after the command's end, unless they were told to end."""
        if self._job is None or self._program is None or self.told:
            return []
        return [pid for pid in self._job.pids() if pid != self._program.pid]

    def dismiss(self) -> None:
        if self._guardian is not None:
            self._guardian.dismiss()
            self._guardian = None

    def press(self, _number: int, _frame: object) -> None:
        self._pressed = True

    def stop_for_loss(self, lost: LockLost) -> None:
        """End the work, as the lock is no longer ours. Called from another thread."""
        with self._mutex:
            self.told = True
            works = self._job is not None and self._job.pids()
            say(f"{lost} Ending the command, and all that it has started" if works else str(lost))
            if self._job is not None:
                self._job.end()


class _Guardian:
    """The guardian as `run` sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def say(self, line: str) -> None:
        """Send a line. A guardian that was killed does not get it (JG1)."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except OSError:
            pass

    def begin(self, told: str) -> bool:
        """Tell the guardian what it needs; whether it is ready in time (JG7)."""
        answers: list[str] = []
        assert self._process.stdout is not None
        pipe = self._process.stdout

        def ask() -> None:
            self.say(told)  # more than a pipe takes at once
            answers.append(pipe.readline())

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(_STARTS_WITHIN)
        if answers == ["ready\n"]:
            return True
        late = f"did not start within {_STARTS_WITHIN:g} s" if asking.is_alive() else "could not start"
        say(f"the command has no guardian, as that {late}: if this process ends, so does the command")
        self._end()
        return False

    def dismiss(self) -> None:
        """Have the guardian end, and wait for that."""
        self.say("dismiss")
        if not self._has_ended():
            self._end()

    def _end(self) -> None:
        self._process.kill()
        self._has_ended()

    def _has_ended(self) -> bool:
        """Whether the guardian ends in time (JG7)."""
        from subprocess import TimeoutExpired

        try:
            self._process.wait(_ENDS_WITHIN)
        except TimeoutExpired:
            return False
        return True


def _guardian_of(holds: Sequence[Hold], job: Job, options: Namespace, terms: Terms) -> _Guardian | None:
    """A guardian with half of each guard (JG1); None if a lock cannot be handed over, or it cannot be started."""
    import subprocess

    env: Any = environment()
    held = [one for hold in holds if (one := guarded_hold(hold)) is not None and env.offer_guard(one.fd)]
    if len(held) < len(holds):
        return None
    paths = ";".join(map(os.path.abspath, sys.path))
    command = [sys.executable, "-I", "-S", "-c", _GUARDIAN, paths, "run", *(one.path for one in held)]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            creationflags=_APART,
        )  # fmt: skip
    except OSError as error:
        say(f"the command has no guardian ({error.strerror}): if this process ends, so does the command")
        return None
    guardian = _Guardian(process)
    files = [(one.path, one.identity) for one in held]
    told = {"held": files, "job": job.name, "options": vars(options), "left": terms.left()}
    return guardian if guardian.begin(json.dumps(told)) else None


def guard() -> NoReturn:
    """Be the guardian, to the end of the process."""
    status = 1
    try:
        _Life(json.loads(sys.stdin.readline())).live()
        status = 0
    finally:
        os._exit(status)


class _Life:
    """The guardian's side."""

    def __init__(self, told: dict[str, Any]) -> None:
        from .._platform.windows import Job

        options = Namespace()
        vars(options).update(told["options"])
        self._terms = Terms(options.kill_after, options.until, told["left"])
        self._job = Job(told["job"])
        self._command: int | None = None
        requests: dict[str, Any] = {one.path: one for lock in locks_of(options) for one in requests_of(lock)}
        os.chdir(os.path.dirname(os.path.abspath(sys.executable)))  # JG4: the caller's can be removed
        self._locks = [(requests[path], tuple(identity)) for path, identity in told["held"]]

    def live(self) -> None:
        held = [_half_of(request, identity) for request, identity in self._locks]
        if not all(held):
            return  # one is lost already, as `run` will find
        print("ready", flush=True)
        while True:
            word, _, about = sys.stdin.readline().partition(" ")
            if word == "dismiss\n":
                return
            if word != "started":
                break
            self._command = int(about)
        holds = [held_here(one, one.fd, lambda _lost: self._job.end()) for one in held if one]
        self._hold(holds, killed=word != "keep\n")

    def _hold(self, holds: list[Hold], *, killed: bool) -> None:
        """Be the holder until the work has ended; a lost lock or the end of the time ends the work (JG5)."""
        for hold in holds:
            keep_from_now(hold)
        while pids := self._job.pids():
            if self._terms.left() == 0:
                self._job.end()
            if self._terms.until == COMMAND and self._command not in (None, *pids):
                self._job.let_go()
                break
            attend()
            wait_for(Wait((), environment().monotonic() + _LOOK_EVERY))
        for hold in reversed(holds):
            finish(hold, killed=killed)


def _half_of(request: Any, identity: tuple[int, int]) -> FileHold | None:
    """The hold, with the half of its guard that is on offer; None if the lock is lost."""
    env: Any = environment()
    fd = env.open_existing(request.path, write=True)
    found = env.fstat(fd)
    if (found.st_dev, found.st_ino) != identity or not env.accept_guard(fd):
        return None
    return FileHold(env, request, fd, identity, env.read(fd, found.st_size), True)
