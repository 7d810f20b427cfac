"""The guardian of `run`: the command's parent, which keeps the lock for the command's work when `run` cannot.

    run ──fork──▶ guardian ──posix_spawn──▶ command ──▶ what it starts
        ◀── missed, started, stopped, ended, left or none
        seen, keep, dismiss ──▶

G1  The guardian has a copy of the guard's descriptor from the fork on, and is a subreaper before the command begins. So
    every process that the command starts stays below it, even one that leaves its parent, group and session, and closes
    every descriptor; `waitpid` says ECHILD when, and only when, none is left. The command inherits the guard as well:
    killing the guardian drops nothing.
G2  As soon as the command has started, the guardian leaves the session of `run` and closes all other descriptors that
    it has inherited. So a signal to the group (`kill -9 -PGID`) or from the terminal does not reach it, and no reader
    waits for a pipe that it has open. It does not do so earlier: the command belongs to the session and the group of
    `run`, and has its descriptors.
G3  If `run` ends without a word, the guardian is the holder: it keeps the record fresh, and handles a loss (CT3) and
    `--limit` as `run` would. When the last process of the tree has ended, it drops the guard and leaves the file as a
    dead holder's: the next holder should hear that a `run` was killed. A lock without a guard went with `run`: a loss.
G4  `run` is a subreaper, too. If the guardian is killed, the command becomes a child of `run`, which goes on alone.
G5  The guardian does not reap the command before `run` has said that it knows of its end. Until then its pid is not
    used again, so a signal that `run` passes on reaches the command or no process (C5).
G6  `run` hands the lock over by closing its descriptor, never by unlocking, and says `keep` after that. If it is killed
    in between, the guardian treats that as G3.
G7  With several locks it has all guards, and keeps all or none: if one went with `run` or is lost, the work ends.
G8  A stopped guardian is continued: `run` hears of the stop, and while it waits for an answer, it continues the
    guardian from time to time. Otherwise `run` would not learn of the command's end.
G9  If the command is stopped, `run` is told, because a shell looks at `run` only (C6). If the command goes on or ends,
    `run` is continued, in case it has stopped for that.

The command's tree is every process that it has started. When the lock is lost, the process that holds it ends the tree
(`Tree`):

CT1  The command's tree is every process below its guardian (G1), which no process leaves. If the guardian was killed,
    it is every process below us: a process that loses its parent then becomes our child, as we are a "subreaper".
    Children that we had before the command began do not belong to it; if there are any, we adopt no orphans, because
    theirs could not be told from the command's.
CT2  A signal goes to a process that was seen in the tree, and never to a later one with its pid: a pidfd names the
    process, which is then examined again. Without pidfds, it is only examined.
CT3  Processes that start while the tree is being stopped get TERM at the next look; when the time for that is over, all
    get KILL at each look, so no tree outgrows it.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
import time

from .._platform.tree import (
    Member,
    adopt_orphans,
    children,
    descendants,
    ended_child,
    is_running,
    of_session,
    program,
    send,
)
from ..errors import LockLost
from ..events import listeners
from ..lock import Hold, attend, file_hold, guarded_hold, keep_from_now, state_of
from .detached import detach, fork, readable, sooner, take, wake_by, wakeup_pipe
from .options import is_executable, places_of
from .outcome import say, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, NoReturn

_PAUSES = (0.02, 0.2)
"""Seconds between looks: the first, and the longest."""
_UNSEEN = -1
"""Stands for the start of a command where processes cannot be examined."""
_PATIENCE = 2.0
"""Seconds to wait for processes that got KILL: one in an uninterruptible call of the kernel may take longer."""


class Tree:
    """The command's tree, and how far it has been ended (CT1 to CT3). To be created before the command starts."""

    def __init__(self, kill_after: float, spared: frozenset[Member] | None = None) -> None:
        self._kill_after = kill_after
        self._spared = children() if spared is None else spared
        self.adopts = not self._spared and adopt_orphans()
        self.root = 0
        """Pid of the process above the tree: its guardian while that lives; 0: us."""
        self._begun: float | None = None
        self._pause = _PAUSES[0]
        self._sent: set[tuple[int, int, int]] = set()
        self._denied: set[int] = set()
        self._seen: list[Member] = []
        """Members at the last look: if we adopt no orphans, one that has lost its parent is known only from here."""
        self._told = False

    def orphan(self) -> Member | None:
        """The command, if its guardian was killed before it could tell which process that is (G4); None if not seen."""
        below = [one for one in children() if one not in self._spared]
        return min(below, key=lambda one: one.started, default=None)

    def stop(self, command: int) -> float | None:
        """Take the next step of ending the tree; the seconds until the one after, or None when it is over.

        `command`: its pid, which no other process gets until we have reaped it; 0: we have.
        """
        now = time.monotonic()
        if self._begun is None:
            self._begun = now
        kill = now - self._begun >= self._kill_after
        seen = {(one.pid, one.started): one for one in self._seen if is_running(one)}
        seen.update({(one.pid, one.started): one for one in descendants(self._spared, self.root)})
        self._seen = left = [one for one in seen.values() if one.pid not in self._denied]
        if not left and command and command not in self._denied:
            left = [Member(command, os.getpid(), _UNSEEN)]
        if not left:
            return None
        if kill and not self._told:
            self._told = True
            say(f"{_processes(left)} did not end within {self._kill_after:g} s of TERM: sending KILL")
        if kill and now - self._begun - self._kill_after > _PATIENCE:
            say(f"{_processes(left)} could not be ended, not even by KILL")
            return None
        for one in left:
            self._send(one, signal.SIGKILL if kill else signal.SIGTERM)
            if not kill:
                self._send(one, signal.SIGCONT)  # a stopped process would not get it
        self._pause = min(self._pause * 1.5, _PAUSES[1])
        return self._pause if kill else min(self._pause, max(0.0, self._begun + self._kill_after - now))

    def _send(self, one: Member, number: int) -> None:
        key = (one.pid, one.started, number)
        if key in self._sent:
            return
        self._sent.add(key)
        try:
            if one.started == _UNSEEN:
                os.kill(one.pid, number)
            else:
                send(one, number)
        except PermissionError:
            self._denied.add(one.pid)
            say(f"process {one.pid} now belongs to another user, so it could not be ended")


def named(left: list[Member]) -> str:
    """`process 4711 (sleep) has`; `3 processes (4711, 4712, 4713) have`."""
    if len(left) > 1:
        return f"{_processes(left)} have"
    name = program(left[0].pid)
    return f"{_processes(left)}{f' ({name})' if name else ''} has"


def _processes(left: list[Member]) -> str:
    pids = ", ".join(str(one.pid) for one in left[:5]) + (" …" if len(left) > 5 else "")
    return f"process {pids}" if len(left) == 1 else f"{len(left)} processes ({pids})"


NAME = "holdfast-guardian"
"""The name of a guardian in lists of processes."""
COMMAND, JOBS, ALL = "command", "jobs", "all"
"""Processes that have to end before the lock is free: the command; also those that it has left in the session of `run`;
all that it has started."""
MISSED, STARTED, FAILED, ENDED, STOPPED, LEFT, NONE = b"M", b"S", b"F", b"E", b"T", b"L", b"N"
_SEEN, _KEEP, _DISMISS = b"s", b"k", b"d"
_SIZE = 9
"""Bytes of a message: its kind, and a number. So few are never written or read in part."""
PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
"""The signals that are passed on to the command (run.py, C1 to C3)."""
_POLL = 0.2
"""Seconds between looks at processes whose end is no event."""
_ANSWERS_WITHIN = 1.0
"""Seconds after which a guardian that has not answered may be stopped (G8)."""


class Terms:
    """Options of `run` about how long the locks are held, and how the work ends."""

    def __init__(self, kill_after: float, until: str, limit: float | None) -> None:
        self.kill_after = kill_after
        self.until = until
        self._ends = None if limit is None else time.monotonic() + limit

    def left(self) -> float | None:
        """Seconds until the work has to end; None: no limit."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())


class NoGuardian(OSError):
    """The guardian could not begin: the system has refused a request of ours, not of the command."""


class Guardian:
    """The guardian as `run` sees it."""

    def __init__(self, holds: Sequence[Hold], terms: Terms) -> None:
        self.held = [state_of(hold) for hold in holds]
        self.guarded = [guarded_hold(hold) for hold in holds]  # None for a lock that it cannot keep without `run`
        self.terms = terms
        self.pid = 0  # 0: it has not begun, or has ended
        self.has_begun = False
        self.missed = 0
        """The signals that came before the command was there to get them: bit N for signal N (C3)."""
        self._news = self._words = -1

    @property
    def keeps(self) -> bool:
        """Whether it can keep the locks without `run`."""
        return None not in self.guarded

    def start(self, command: list[str], environment: Mapping[str, str], mask: Iterable[int]) -> int:
        """Start the guardian, which starts the command; the command's pid, or 0 if it was killed before it could tell.

        OSError if the command cannot be started; NoGuardian if there was nobody to start it. To be called with all
        heeded signals blocked.
        """
        fds: list[int] = []
        pipes: list[int] = []
        try:
            for one in self.guarded:
                fd = -1 if one is None else os.dup(one.fd)
                fds.append(fd)  # one by one: if the next one fails, this one is closed
                if one is not None and one.lease is not None:
                    one.lease.share()
            for _ in range(2):
                pipes += os.pipe()
            self._news, tell, heard, self._words = pipes
            missed = signal.sigpending()  # the guardian does not inherit them
            self.pid = fork()
            self.has_begun = True
            if self.pid == 0:
                os.close(self._news)
                os.close(self._words)
                _Life(self, fds, tell, heard).live(command, environment, mask, missed)
        except OSError as error:
            raise NoGuardian(error.errno, error.strerror) from error
        finally:
            theirs = pipes[1:3] if self.pid else pipes  # without a guardian, all: to say so may take descriptors
            for fd in (*fds, *theirs):
                if fd >= 0:
                    os.close(fd)
        kind, value = self._answer()
        if kind == MISSED:
            self.missed = value
            kind, value = self._answer()
        if kind == FAILED:
            raise OSError(value, os.strerror(value))
        os.set_blocking(self._news, False)
        return value

    def await_news(self, seconds: float) -> None:
        """Wait until there is a message or the guardian has ended, at most that many seconds."""
        readable([self._news], seconds)

    def news(self) -> tuple[bytes, int]:
        """The next message; an empty one if there is none."""
        try:
            return self._read()
        except BlockingIOError:
            return b"", 0

    def seen(self) -> bool:
        """Tell the guardian that the command's end is known (G5); whether the command has left something running."""
        self._say(_SEEN)
        return self._answer()[0] == LEFT

    def left(self) -> list[Member]:
        """Processes that still have to end before the lock is free."""
        return _unfinished(self.terms.until, os.getsid(0), self.pid)

    def keep(self) -> None:
        """Leave the lock to the guardian; `run` has let go of it (G6)."""
        self._say(_KEEP)

    def dismiss(self) -> None:
        """Have the guardian end, and wait for that; nothing if it has not begun, or has ended."""
        if self.pid:
            self._say(_DISMISS)
            while os.WIFSTOPPED(os.waitpid(self.pid, os.WUNTRACED)[1]):
                self.go_on()
            self.pid = 0

    def go_on(self) -> None:
        """Continue the guardian, if it is stopped (G8)."""
        if self.pid:
            os.kill(self.pid, signal.SIGCONT)

    def _answer(self) -> tuple[bytes, int]:
        """The next message; waits for it."""
        while not readable([self._news], _ANSWERS_WITHIN):
            self.go_on()
        return self._read()

    def _read(self) -> tuple[bytes, int]:
        data = os.read(self._news, _SIZE)
        return data[:1], int.from_bytes(data[1:], sys.byteorder, signed=True)

    def _say(self, word: bytes) -> None:
        before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        try:
            os.write(self._words, word)
        except BrokenPipeError:
            pass  # it has ended
        finally:
            signal.signal(signal.SIGPIPE, before)


class _Life:
    """The guardian's side."""

    def __init__(self, guardian: Guardian, fds: Sequence[int], tell: int, heard: int) -> None:
        self._held, self._kept, self._terms = guardian.held, guardian.guarded, guardian.terms
        self._fds = [fd for fd in fds if fd >= 0]
        self._tell_fd, self._heard = tell, heard
        self._run = os.getppid()
        self._session = os.getsid(0)
        self._command = 0  # its pid, until it has been reaped
        self._told = self._seen = self._lost = self._has_stopped = False

    def live(
        self, command: list[str], environment: Mapping[str, str], mask: Iterable[int], missed: set[Any]
    ) -> NoReturn:
        """Be the guardian, to the end of the process."""
        status = 1
        try:
            gc.disable()  # it would touch, and so copy, each page that is shared with `run`
            if self._start(command, environment, mask, missed):  # if not, `run` has been told why, or is gone
                self._settle_in(command)
                self._watch()
            status = 0
        finally:
            os._exit(status)

    def _start(self, command: list[str], environment: Mapping[str, str], mask: Iterable[int], missed: set[Any]) -> bool:
        adopt_orphans()  # G1
        if readable([self._heard], 0):
            return False  # `run` was killed before there was any work
        try:
            for fd in self._fds:
                os.set_inheritable(fd, True)
            missed |= signal.sigpending()  # what comes from now on reaches the command as well
            self._command = spawn(command, environment, mask)
        except OSError as error:
            self._tell(FAILED, error.errno or 0)
            return False
        finally:
            for fd in self._fds:
                os.set_inheritable(fd, False)
        if missed:
            self._tell(MISSED, sum(1 << number for number in missed))
        self._tell(STARTED, self._command)
        return True

    def _settle_in(self, command: list[str]) -> None:
        """Leave the session of `run` (G2), heed signals, and take the name of a guardian."""
        listeners.clear()  # their descriptors are closed now, and the numbers may become other files'
        detach({*self._fds, self._tell_fd, self._heard})
        self._woken, self._wake = wakeup_pipe()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        wake_by(("SIGCHLD", *PASSED_ON), self._wake)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        paths = " ".join(held.path for held in self._held)
        about = f"of run {self._run} ({command[0].rpartition('/')[2]}): {paths}"
        self._held[0].env.setproctitle(NAME, about)  # type: ignore[attr-defined]

    def _watch(self) -> None:
        """Serve `run` while it lives, then be the holder if need be. `run` sees to `--limit` itself, but is continued
        for that, in case it is stopped."""
        is_over = False
        while True:
            self._reap()
            self._see_stops()
            left = None if is_over else self._terms.left()
            if left == 0:
                is_over, left = True, None
                self._tell_run(signal.SIGCONT)
            for fd in readable([self._woken, self._heard], left):
                word = os.read(fd, 64)
                if fd == self._woken:
                    continue  # a signal: `run` passes on what it gets itself
                if _DISMISS in word:
                    return
                if not word or _KEEP in word:
                    self._hold(killed=not word)
                    return
                self._seen = True
                self._tell(*((LEFT, 0) if self._reap() else (NONE, 0)))
                if not self._has_children:
                    return

    def _reap(self) -> bool:
        """Reap the processes that have ended, but see G5; whether any is left."""
        self._has_children = True
        while True:
            try:
                if self._command and not self._seen:
                    found, code = ended_child()
                    if found in (0, self._command):
                        if found and not self._told:
                            self._told = True
                            self._tell(ENDED, code)
                        return True
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_children = False
                return False
            if not pid:
                return True
            if pid == self._command:
                self._command = 0

    def _see_stops(self) -> None:
        """Tell `run` that the command has stopped or goes on (G9)."""
        if not self._command or not hasattr(os, "waitid"):
            return
        try:
            found = os.waitid(os.P_PID, self._command, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
        except ChildProcessError:
            return  # it has ended
        if found is not None:
            self._has_stopped = found.si_code == os.CLD_STOPPED
            if self._has_stopped:
                self._tell(STOPPED, found.si_status)
            else:
                self._tell_run(signal.SIGCONT)

    def _tell_run(self, number: int) -> None:
        if os.getppid() == self._run:
            os.kill(self._run, number)

    def _tell(self, kind: bytes, number: int) -> None:
        try:
            os.write(self._tell_fd, kind + number.to_bytes(_SIZE - 1, sys.byteorder, signed=True))
        except BrokenPipeError:
            return  # `run` was killed: the other pipe says so, too
        if kind in (ENDED, STOPPED):
            self._tell_run(signal.SIGCHLD)  # it waits for signals
        if kind == ENDED and self._has_stopped:
            self._tell_run(signal.SIGCONT)

    # -- without `run` -------------------------------------------------------------------------------------------------

    def _hold(self, *, killed: bool) -> None:
        """Be the holder until the work has ended; a lost lock or the end of the time ends the work (G3, G7).

        `killed`: `run` was killed. By default more has to end then, as nobody knows what was meant to outlive it.
        """
        self._seen = True
        until = ALL if killed and self._terms.until != COMMAND else self._terms.until
        holds = self._take()
        tree = Tree(self._terms.kill_after, frozenset())
        while True:
            left = self._reap()
            pause = self._terms.left()
            if self._lost or pause == 0:
                pause = tree.stop(self._command)
                if pause is None:
                    break
            elif not left or (until == COMMAND and not self._command):
                break
            elif until == JOBS and not self._command:
                jobs = _unfinished(JOBS, self._session, os.getpid())
                if not jobs:
                    break
                pause = pause if _are_below_children(jobs, os.getpid()) else _POLL
            for number in self._awaited(sooner(pause, attend())):
                self._pass_on(number)
        for hold in reversed(holds):
            finish(hold, killed=killed)

    def _take(self) -> list[Hold]:
        """The holds, in this process, except those that went with `run`."""
        holds, fds = [], iter(self._fds)
        for held in self._kept:
            if held is None:
                self._lost = True
                continue
            hold = take(held, next(fds), self._on_lost)
            keep_from_now(hold)
            if hold.lost:
                self._lost = True  # nothing else is ever stored: another thread may find it lost at this moment (G7)
            holds.append(hold)
        return holds

    def _on_lost(self, _lost: LockLost) -> None:
        self._lost = True
        os.write(self._wake, b"\0")

    def _awaited(self, pause: float | None) -> bytes:
        """Wait for a signal or a loss; the numbers of the signals."""
        return os.read(self._woken, 64) if readable([self._woken], pause) else b""

    def _pass_on(self, number: int) -> None:
        """Pass a signal on to the command; if that has ended, to the processes that it has left."""
        if number in (0, signal.SIGCHLD):
            return
        try:
            if self._command:
                os.kill(self._command, number)
                return
            for one in descendants():
                send(one, number)
        except OSError:
            pass  # it is another user's by now


def spawn(command: list[str], environment: Mapping[str, str], mask: Iterable[int]) -> int:
    """Start a command as execvp(3) does, and so `flock` and `env`: a file that is no program is a script of /bin/sh."""
    # Python ignores these from its start on, and does not remember what the caller did with them.
    default = [signal.SIGPIPE, signal.SIGXFSZ]
    try:
        return os.posix_spawnp(command[0], command, environment, setsigmask=mask, setsigdef=default)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        script = next(filter(is_executable, places_of(command[0])), command[0])
        words = ["/bin/sh", f"./{script}" if script.startswith("-") else script, *command[1:]]
        try:
            return os.posix_spawn(words[0], words, environment, setsigmask=mask, setsigdef=default)
        except FileNotFoundError:
            raise error from None  # there is no shell


def why_not_startable(name: str) -> OSError | None:
    """The error of starting that command, as far as it is seen without doing so: it is missing or no program."""
    places = places_of(name)
    if any(map(is_executable, places)):
        return None
    number = errno.EACCES if any(map(os.path.exists, places)) else errno.ENOENT
    return OSError(number, os.strerror(number), name)


def finish(hold: Hold, *, killed: bool) -> None:
    """Release a hold that `run` has left to us; if `run` was `killed`, leave the file as a dead holder's (G3)."""
    held = file_hold(hold)
    try:
        if killed and not held.request.protocol.persistent:
            held.abandon()
        else:
            hold.release()
    except (LockLost, OSError):
        pass  # another's by now; or it could not be removed, and counts as a dead holder's


def _unfinished(until: str, session: int, root: int) -> list[Member]:
    """Processes that keep the lock, of those below a guardian whose command has ended."""
    if until == COMMAND:
        return []
    return descendants(root=root) if until == ALL else of_session(session, root)


def _are_below_children(members: list[Member], root: int) -> bool:
    """Whether the end of the last of them is the end of a child of `root`, and so an event for it."""
    known = {one.pid for one in members}
    return all(one.parent in known or one.parent == root for one in members)
