"""The keeper: a small process that holds a lock for a shell, which cannot hold one itself.

A lock file is acquired by the command, which hands it over:

    command: acquires, forks ──▶ keeper: a session of its own, nothing inherited but the guard
                             ◀── ready ──
             tells the caller
                             ── go ──▶ keeps, until the owner ends, a signal ends it, or the lock is lost
             ends

A lock on a server is acquired by the keeper, because the connection is what holds it:

    command: forks ──▶ keeper: a session of its own; acquires, and tells people what there is to tell
                    ◀── exit status ──  (0: it holds the lock)
    ends            ── go ──▶           keeps, as above

S1  The guard passes with its open file description, which the fork shares. From the acquisition on, at least one of the
    two has it; it is never dropped and taken again. The command lets go by closing, never by unlocking.
S2  One of the two removes the file. Before `go` that is the command, unless its pipe closes without a word: then it
    was killed or has given up, its caller was not told of the lock, and the keeper removes the file. A command that
    gives up waits for the keeper's end, and removes the file itself only if the keeper could not.
S3  The owner is known by a descriptor (pidfd) that was opened before the lock was acquired. If its pid was another
    process's by the time the record was written, the descriptor says that the owner has ended.
S4  Signals are blocked from the fork to the hand-over's next step: an interruption comes before it or after it.
S5  The record names the owner, not the keeper. Other implementations judge by that pid, and people read it: both want
    to know about the shell. The keeper ends with the owner, so the pid is never wrong while the lock is kept. If only
    the keeper is killed, other implementations still take the lock for held, the safe mistake; holdfast sees that the
    guard is gone.
S6  To end a keeper from outside, identify it by its start time, and check again what it holds before sending the
    signal, which never goes to a later process with its pid (tree.py).
S7  A keeper that acquires gives up when the command's pipe closes before `go`: its caller was not told of the lock.
S8  An interruption reaches the command. It tells the keeper that acquires, and waits until that has given up.
"""

from __future__ import annotations

import os

from .._platform import environment
from ..errors import AcquireTimeout, HoldfastError, LockLost
from ..lock import Hold, Lock, attend, file_hold, keep_from_now, requests_of
from .detached import close, detach, fork, leave_place, opened_but, readable, sooner, take, wake_by, wakeup_pipe
from .options import Namespace
from .outcome import DONE, FAILED, failed, say, show, signal
from .owner import KEEPER, Owner, tell_bound, tell_if_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

    from ..engines.file.hold import FileHold

_READY, _GO = b"r", b"g"
_POLL = 0.1
"""Seconds between looks at the owner, where there are no pidfds."""
_ENDING = ("SIGTERM", "SIGINT", "SIGQUIT")
_IGNORED = ("SIGHUP", "SIGPIPE", "SIGUSR1", "SIGUSR2")


def is_possible() -> bool:
    """Whether this system allows a keeper at all."""
    return hasattr(os, "fork") and hasattr(os, "setsid")


def tell_acquired(lock: Lock, options: Namespace, owner: int, keeper: int | None, token: int | None) -> None:
    """Report the acquisition to the owner."""
    if options.json:
        from .console import as_json

        status = lock.status()
        # The keeper watches its file, and the kernel's table still names this process as the owner of the guard.
        waiters = tuple(one for one in status.waiters if one.pid != keeper)
        status = status.replaced(waiters=waiters)
        show(as_json(status, "acquired", owner_pid=owner, keeper_pid=keeper, token=token))
    if options.verbose:
        say(f"acquired {lock.path} for process {owner}" + (f", kept by process {keeper}" if keeper else ""))
    tell_bound(options, owner)


def tell_held(lock: Lock, options: Namespace, error: AcquireTimeout) -> int:
    """Report that the lock was not free in time; the exit status."""
    if options.json:
        from .console import as_json

        show(as_json(lock.status(), "held"))
    elif not options.quiet:
        say(str(error))
        tell_if_ours(options, error.holder)
    return int(options.held_code)


class _Life:
    """The keeper's side."""

    _woken: int
    _wake: int

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def _ring(self, _lost: LockLost) -> None:
        os.write(self._wake, b"\0")

    def _heed_signals(self) -> None:
        """Have signals end the hold, from here on."""
        for name in _IGNORED:
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        wake_by(_ENDING, self._wake)

    def _show_title(self, path: str) -> None:
        command = self._owner.command()
        about = f"for process {self._owner.pid}" + (f" ({command})" if command else "")
        environment().setproctitle(KEEPER, f"{about}: {path}")

    def _wait(self, heard: int = -1) -> None:
        """Wait until the lock has to be released. `heard`: the command's pipe, which has not said `go` yet."""
        fds = [fd for fd in (heard, self._woken, self._owner.fd) if fd >= 0]
        while True:
            ready = readable(fds, sooner(attend(), None if self._owner.fd >= 0 else _POLL))
            if self._woken in ready or self._owner.has_ended():
                return
            if heard in ready:
                if os.read(heard, 1) != _GO:
                    return  # S2
                fds.remove(heard)
                os.close(heard)


# -- of a lock file ----------------------------------------------------------------------------------------------------


class Keeper:
    """The command's side: created once the keeper has the lock, then ended by either `go` or `give_up`."""

    def __init__(self, hold: Hold, owner: Owner, pace: float) -> None:
        """Start the keeper, which beats every `pace` seconds. OSError if that fails; the hold is then as it was."""
        self._held = file_hold(hold)
        self.token = hold.token
        fd = os.dup(self._held.fd)
        ready, tell = os.pipe()
        heard, self._go = os.pipe()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it would hide how the keeper ended
        before = block()
        try:
            self.pid = _fork(self._held.path, "; --no-keeper does without one")
            if self.pid == 0:
                _FileLife(self._held, fd, owner, pace).live(tell, heard)
            for mine in (fd, tell, heard):
                os.close(mine)
            said = os.read(ready, 1)
            os.close(ready)
            if said != _READY:
                self._end()
                raise ChildProcessError(f"{self._held.path} was not acquired: its keeper process could not start")
        finally:
            unblock(before)

    def go(self) -> bool:
        """Leave the lock to the keeper. False if that has ended meanwhile; then the lock is free.

        Signals stay blocked from here on, so that the caller hears that it has the lock (S4).
        """
        if not _say_go(self._go):
            self._end()
            return False
        os.close(self._go)
        self._held.hand_over()
        return True

    def give_up(self) -> None:
        """Have the lock released, as the caller will not hear of it."""
        before = block()
        try:
            self._end()
        finally:
            unblock(before)

    def _end(self) -> None:
        """Have the keeper end, and wait for that (S2). If it has not released the lock, that is left to the caller."""
        os.close(self._go)
        if os.waitpid(self.pid, 0)[1] == 0:
            self._held.hand_over()


class _FileLife(_Life):
    def __init__(self, held: FileHold, fd: int, owner: Owner, pace: float) -> None:
        super().__init__(owner)
        self._held, self._fd = held, fd
        self._pace = pace

    def live(self, tell: int, heard: int) -> NoReturn:
        """Be the keeper, to the end of the process. Status 0: the lock file is no longer ours, by release or loss."""
        status = 1
        try:
            detach({self._fd, self._owner.fd, tell, heard})
            self._woken, self._wake = wakeup_pipe()
            self._heed_signals()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            self._held.request.beat_every = self._pace
            hold = take(self._held, self._fd, self._ring)
            self._show_title(hold.path)
            _tell(tell, _READY)
            keep_from_now(hold)  # only now, as the command need not wait for this code to load
            self._wait(heard)
            status = _released(hold)
        finally:
            os._exit(status)


def _fork(path: str, instead: str = "") -> int:
    try:
        return fork()
    except OSError as error:
        why = f"its keeper process could not be started ({error.strerror}){instead}"
        raise ChildProcessError(f"{path} was not acquired: {why}") from error


def _tell(fd: int, word: bytes) -> None:
    """Tell the command, once."""
    try:
        os.write(fd, word)
    except BrokenPipeError:
        pass  # it was killed: its other pipe says so, too
    os.close(fd)


def _say_go(fd: int) -> bool:
    """Say `go`; whether the keeper hears it. Signals stay blocked, so that the caller hears that it has the lock."""
    block()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        os.write(fd, _GO)
    except BrokenPipeError:
        return False
    return True


def _released(hold: Hold) -> int:
    try:
        hold.release()
    except LockLost:
        pass  # and the file at the path is another's
    except OSError:
        return 1  # the guard ends with this process, so the file counts as a dead holder's
    return 0


def block() -> set[int]:
    """Block all signals, where that is possible; those that were blocked before."""
    if not hasattr(signal, "pthread_sigmask"):
        return set()
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()))


def unblock(before: Iterable[int]) -> None:
    """Block only the signals that were blocked before."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- of a lock on a server ---------------------------------------------------------------------------------------------


def acquire_on_server(lock: Lock, options: Namespace, pid: int) -> int:
    """Have a keeper acquire the lock for the process `pid`; the exit status."""
    if options.no_keeper or not is_possible():
        raise ValueError(
            "a lock on a server lives with a connection, which a keeper process has to hold for a shell; leave "
            "--no-keeper out, or use: holdfast run LOCK -- CMD"
        )
    owner = Owner(pid)
    if owner.has_ended():
        return owner.tell_ended(lock.path, options)
    ready, tell = os.pipe()
    heard, go = os.pipe()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    keeper = _fork(lock.path)
    if keeper == 0:
        os.close(ready)
        os.close(go)
        _ServerLife(lock, owner, options, tell, heard).live()
    os.close(tell)
    os.close(heard)
    try:
        said = os.read(ready, 1)
    except BaseException:  # S8
        os.kill(keeper, signal.SIGTERM)
        os.waitpid(keeper, 0)
        raise
    if not said:
        os.waitpid(keeper, 0)
    if not said or (said[0] == DONE and not _say_go(go)):
        return failed(HoldfastError(f"{lock.path} was not acquired: its keeper process has ended"), options)
    return said[0]


class _ServerLife(_Life):
    def __init__(self, lock: Lock, owner: Owner, options: Namespace, tell: int, heard: int) -> None:
        super().__init__(owner)
        self._lock, self._options = lock, options
        self._tell, self._heard = tell, heard

    def live(self) -> NoReturn:
        """Be the keeper, to the end of the process."""
        import threading

        from .._drivers.agent import settle

        status = FAILED
        try:
            os.setsid()
            inherited = opened_but({0, 1, 2, self._owner.fd, self._tell, self._heard})
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._woken, self._wake = wakeup_pipe()
            threading.Thread(target=self._heed_command, daemon=True).start()
            status = self._acquire(inherited)
        except BaseException as error:
            status = failed(error, self._options) if isinstance(error, Exception) else FAILED
        finally:
            try:
                settle()
                self._say(status)
            finally:
                os._exit(status)

    def _acquire(self, inherited: list[int]) -> int:
        """Acquire the lock, report it and keep it; the exit status for a command that was not told of the lock."""
        options, lock = self._options, self._lock
        requests_of(lock)[0].on_lost = self._ring
        try:
            hold = lock.acquire(options.timeout)
        except AcquireTimeout as error:
            return tell_held(lock, options, error)
        if self._owner.has_ended():  # while this waited
            _released(hold)
            return self._owner.tell_ended(lock.path, options)
        try:
            tell_acquired(lock, options, self._owner.pid, os.getpid(), hold.token)
            # Now let go of what is the caller's. Not earlier: a certificate may be in one of its descriptors.
            leave_place()
            close(inherited)
            self._heed_signals()
            self._show_title(hold.path)
            self._say(DONE)
            self._wait()
        finally:
            _released(hold)  # a server that cannot be told frees it by itself
        return FAILED  # the command has ended by now, unless it was not told of the lock

    def _heed_command(self) -> None:
        """Have the keeper give up (S7). In a thread of its own, because the main one may be waiting for the lock."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        if os.read(self._heard, 1) != _GO:
            os.kill(os.getpid(), signal.SIGTERM)

    def _say(self, status: int) -> None:
        tell, self._tell = self._tell, -1
        if tell >= 0:
            _tell(tell, bytes([status]))
