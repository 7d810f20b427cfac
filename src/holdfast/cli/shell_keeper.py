"""The keeper: a small process that holds a lock for a shell, which cannot hold one itself.

    command: acquires, forks ──▶ keeper: a session of its own, nothing inherited but the guard
                             ◀── ready ──
             tells the caller
                             ── go ──▶ keeps, until the owner ends, a signal ends it, or the lock is lost
             ends

S1  The guard passes with its open file description, which the fork shares. From the acquisition on, at least one of the
    two has it; it is never dropped and taken again. The command lets go by closing, never by unlocking.
S2  One of the two removes the file. Before `go` that is the command, unless its pipe closes without a word: then it
    was killed or has given up, its caller was not told of the lock, and the keeper removes the file. A command that
    gives up waits for the keeper's end, and removes the file itself only if the keeper could not.
S3  The owner is known by a descriptor (pidfd) that was opened before the lock was acquired. If the number was another
    process's by the time the record was written, the descriptor says that the owner has ended.
S4  Signals are blocked from the fork to the hand-over's next step: an interruption comes before it, or behind it.
S5  The record names the owner, not the keeper. Other implementations judge by that number, and a person reads it: both
    ask for the shell. The keeper ends with the owner, so the number is never wrong while the lock is kept. If only the
    keeper is killed, they go on to take the lock for held, the safe mistake; holdfast sees the guard gone.
S6  Who ends a keeper from outside names it by a pidfd, and looks again at what it holds before it sends the signal.
"""

from __future__ import annotations

import os
import signal

from .._core.environment import Presence
from .._core.hold import Held
from .._core.liveness import Assessment
from .._core.observe import Observation, glance
from .._core.remove import why_not_of
from .._drive.sync import caller
from ..hold import Hold, keep
from ..model import Evidence, Identity, Liveness
from .detached import detach, fork, readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

    from .._os.generic import GenericEnvironment
    from ..lock import Lock

NAME = "holdfast-keeper"
"""What a keeper is called in lists of processes."""
_READY, _GO = b"r", b"g"
_POLL = 0.1
"""Between looks at the owner, where there are no pidfds."""
_PATIENCE = 5.0
"""Seconds to wait for a keeper that was told to end."""
_ENDING = ("SIGTERM", "SIGINT", "SIGQUIT")
_IGNORED = ("SIGHUP", "SIGPIPE", "SIGUSR1", "SIGUSR2")


def is_possible() -> bool:
    """Whether a keeper can be had on this system at all."""
    return hasattr(os, "fork") and hasattr(os, "setsid")


class Owner:
    """A living process that a lock is bound to (S3)."""

    def __init__(self, env: GenericEnvironment, pid: int) -> None:
        self._env = env
        self.pid = pid
        opened = env.watch_process(pid)
        self.fd = -1
        if opened is not None:
            self.fd = os.dup(opened)  # a forked child closes all that the environment has opened
            env.close(opened)
        self._started = env.identity(pid).started

    def has_ended(self) -> bool:
        if self.fd >= 0:
            return bool(readable([self.fd], 0))
        found = self._env.inspect(self.pid)
        return found.presence in (Presence.GONE, Presence.ZOMBIE) or found.started != self._started

    def command(self) -> str:
        """The name of its program, for people."""
        words = (self._env.command(self.pid) or "").split()
        return words[0].rpartition("/")[2].lstrip("-") if words else ""


class Keeper:
    """The command's side of it: made when the keeper has the lock, then either `go` or `give_up`."""

    def __init__(self, hold: Hold, owner: Owner, pace: float) -> None:
        """Start the keeper, which beats every `pace` seconds. OSError where that fails; the hold is then as it was."""
        self._held = hold._held
        self.token = hold.token
        fd = os.dup(self._held.fd)
        ready, tell = os.pipe()
        heard, self._go = os.pipe()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it would hide how the keeper ended
        before = _block()
        try:
            self.pid = _fork()
            if self.pid == 0:
                _Life(self._held, fd, owner, pace).live(tell, heard)
            for mine in (fd, tell, heard):
                os.close(mine)
            said = os.read(ready, 1)
            os.close(ready)
            if said != _READY:
                self._end()
                raise ChildProcessError(f"{self._held.path} was not acquired: its keeper process could not begin")
        finally:
            _unblock(before)

    def go(self) -> bool:
        """Leave the lock to the keeper. False where it has ended meanwhile; then nobody holds the lock.

        From here on signals stay blocked: the caller is to hear that it has the lock (S4).
        """
        _block()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        try:
            os.write(self._go, _GO)
        except BrokenPipeError:
            self._end()
            return False
        os.close(self._go)
        hand_over(self._held)
        return True

    def give_up(self) -> None:
        """Have the lock released: the caller will not hear of it."""
        before = _block()
        try:
            self._end()
        finally:
            _unblock(before)

    def _end(self) -> None:
        """S2. The hold is left to be released here if the keeper did not do it."""
        os.close(self._go)
        if os.waitpid(self.pid, 0)[1] == 0:
            hand_over(self._held)


class _Life:
    """The keeper's side."""

    def __init__(self, held: Held, fd: int, owner: Owner, pace: float) -> None:
        self._request, self._env = held.request, held.env
        self._identity, self._data = held.identity, held.data
        self._fd = fd
        self._owner = owner
        self._pace = pace

    def live(self, tell: int, heard: int) -> NoReturn:
        """All of it, to the end of the process. Status 0: the lock file is not ours any more, by release or loss."""
        status = 1
        try:
            self._settle_in(tell, heard)
            hold = self._take()
            try:
                os.write(tell, _READY)
            except BrokenPipeError:
                pass  # the command was killed: its other pipe says so, too
            os.close(tell)
            self._wait(heard)
            status = _released(hold)
        finally:
            os._exit(status)

    def _settle_in(self, tell: int, heard: int) -> None:
        """A session without a terminal, and nothing of the caller's that somebody could wait for."""
        detach({self._fd, self._owner.fd, tell, heard})
        self._woken, self._wake = os.pipe()
        for fd in (self._woken, self._wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for name in _IGNORED:
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        for name in _ENDING:
            signal.signal(getattr(signal, name), lambda _number, _frame: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _take(self) -> Hold:
        """The same hold, in this process: with heartbeats, and news of its loss."""
        self._fd = self._env.adopt(self._fd)  # type: ignore[attr-defined]
        self._request.beat_every = self._pace
        self._request.on_lost = lambda _lost: os.write(self._wake, b"\0")
        self._request.watched = True
        held = Held(self._env, self._request, self._fd, self._identity, self._data, True)
        share = held.share(caller())
        keep(self._env, share)  # type: ignore[arg-type]
        command = self._owner.command()
        about = f"for process {self._owner.pid}" + (f" ({command})" if command else "")
        self._env.entitle(NAME, f"{about}: {self._request.path}")  # type: ignore[attr-defined]
        return Hold(share)

    def _wait(self, heard: int) -> None:
        """Until the lock is to be given up."""
        fds = [heard, self._woken] + [fd for fd in (self._owner.fd,) if fd >= 0]
        while True:
            ready = readable(fds, None if self._owner.fd >= 0 else _POLL)
            if self._woken in ready or self._owner.has_ended():
                return
            if heard in ready:
                if os.read(heard, 1) != _GO:
                    return  # S2
                fds.remove(heard)
                os.close(heard)


def _fork() -> int:
    try:
        return fork()
    except OSError as error:
        need = "a lock of a shell is held by a keeper process, which could not be started; --no-keeper does without"
        raise OSError(error.errno, f"{error.strerror}; {need}") from error


def _released(hold: Hold) -> int:
    from ..errors import LockLost

    try:
        hold.release()
    except LockLost:
        pass  # and what is at the path is another's
    except OSError:
        return 1  # the guard ends with this process, so the file counts as a dead holder's
    return 0


def hand_over(held: Held) -> None:
    """Let go of the descriptor, but not of the guard, which another process has as well (S1)."""
    with held.mutex:
        held.released = True
        held._forget()
        held._leave_queue()
        fd, held.fd = held.fd, -1
        held.env.close(fd)


def _block() -> Iterable[int]:
    return signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def _unblock(before: Iterable[int]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- ending a keeper from outside --------------------------------------------------------------------------------------


def keeper_of(env: GenericEnvironment, identity: tuple[int, int]) -> int | None:
    """The keeper that has the guard of this file; None where there is none, or it cannot be seen from here."""
    for one in env.lock_owners(identity):
        if one.pid is not None and one.exclusive and not one.waiting and _is_keeper(env, one.pid):
            return one.pid
    return None


def _is_keeper(env: GenericEnvironment, pid: int) -> bool:
    return (env.command(pid) or "").split()[:1] == [NAME]


def why_not_for(env: GenericEnvironment, seen: Observation, assessed: Assessment, owner: Identity) -> str | None:
    """As `why_not_of`; what a keeper has is its owner's."""
    kept = assessed.evidence.source == "guard" and not assessed.is_dead and keeper_of(env, seen.identity) is not None
    return why_not_of(seen, _UNPROVEN if kept else assessed, owner)


def end_keeper(lock: Lock, owner: Identity | None) -> bool:
    """End the keeper of the lock, if it keeps it for this `owner` (None: for anybody), and wait until it has released.

    False where there is no such keeper, or the lock is still its.
    """
    env = lock._env
    seen = glance(env, lock._request)
    if seen is None or (owner is not None and why_not_of(seen, _UNPROVEN, owner) is not None):
        return False
    keeper = keeper_of(env, seen.identity)
    watched = None if keeper is None else env.watch_process(keeper)
    if keeper is None or watched is None:
        return False
    try:
        if keeper_of(env, seen.identity) != keeper:  # S6
            return False
        for number in (signal.SIGTERM, signal.SIGCONT):  # the latter, should somebody have stopped it
            signal.pidfd_send_signal(watched, number)
        if not readable([watched], _PATIENCE):
            return False
    except OSError:
        return False  # it is another user's
    finally:
        env.close(watched)
    left = glance(env, lock._request)
    return left is None or not _is_same(left, seen)


_UNPROVEN = Assessment(Liveness.UNKNOWN, Evidence("none", "the guard is the keeper's"))


def _is_same(one: Observation, other: Observation) -> bool:
    """Whether it is still the same acquisition, in spite of heartbeats."""
    if one.identity != other.identity or one.record is None or other.record is None:
        return False
    return (one.record.pid, one.record.marker) == (other.record.pid, other.record.marker)
