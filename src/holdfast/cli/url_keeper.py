"""`try` and `acquire` of a lock on a server, for a shell: a keeper process that acquires it, and has the connection.

    command: forks ──▶ keeper: a session of its own; acquires, and tells people what there is to tell
                    ◀── exit status ──  (0: it holds the lock)
    ends            ── go ──▶           keeps, until the owner ends, a signal ends it, or the lock is lost

S7  The keeper acquires the lock itself, so the connection that the server knows is its own from the beginning. Until
    `go`, it gives up when the command's pipe closes without a word: then its caller was not told of the lock.
S8  What is interrupted is the command; it tells the keeper, and waits until that has given up.
S9  Who ends a keeper from outside names it by a pidfd, and looks again whose it is before it sends the signal (S6).
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import threading

from .._drive.agent import agent
from ..errors import AcquireTimeout, LockLost
from ..lock import Lock
from ..model import Status
from . import DONE, FAILED, _failed, say, show
from .basic import announced
from .detached import readable
from .output import as_json, lock_options
from .owner import tell_bound
from .shell_keeper import _ENDING, _IGNORED, _PATIENCE, _POLL, NAME, Owner, _fork, is_possible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from .._os.generic import GenericEnvironment
    from ..hold import Hold

_GO = b"g"
_TITLE = re.compile(rf"{NAME}\s+for process ([0-9]+)\b")


def acquire(options: argparse.Namespace, pid: int) -> int:
    """Have a keeper acquire the lock for the process `pid`; the exit status."""
    if options.no_keeper or not is_possible():
        raise ValueError(
            "a lock on a server lives with a connection, which a keeper process has to hold for a shell; leave "
            "--no-keeper out, or use: holdfast run LOCK -- CMD"
        )
    lock = announced(Lock(options.lock, **lock_options(options)), options)
    owner = Owner(lock._env, pid)
    if owner.has_ended():
        say(f"process {pid} has ended, so {lock.path} was not acquired for it")
        return FAILED
    ready, tell = os.pipe()
    heard, go = os.pipe()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    keeper = _fork()
    if keeper == 0:
        os.close(ready)
        os.close(go)
        _Keeper(lock, owner, options, tell, heard).live()
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
        say(f"{lock.path} was not acquired: its keeper process has ended")
        return FAILED
    if said[0] == DONE:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the caller is to hear that it has the lock
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        try:
            os.write(go, _GO)
        except BrokenPipeError:
            say(f"{lock.path} was not acquired: its keeper process has ended")
            return FAILED
    return said[0]


class _Keeper:
    """The keeper's side."""

    def __init__(self, lock: Lock, owner: Owner, options: argparse.Namespace, tell: int, heard: int) -> None:
        self._lock, self._owner, self._options = lock, owner, options
        self._tell, self._heard = tell, heard

    def live(self) -> NoReturn:
        """All of it, to the end of the process."""
        status = FAILED
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._woken, self._wake = os.pipe()
            os.set_blocking(self._wake, False)
            threading.Thread(target=self._heed_command, daemon=True).start()
            status = self._acquire()
        except BaseException as error:
            status = _failed(error) if isinstance(error, Exception) else FAILED
        finally:
            try:
                agent(self._lock._env).settle()
                self._say(status)
            finally:
                os._exit(status)

    def _acquire(self) -> int:
        """Acquire, tell, and keep; or the exit status of what came instead."""
        options, lock = self._options, self._lock
        lock._request.on_lost = lambda _lost: os.write(self._wake, b"\0")
        try:
            hold = lock.acquire(options.timeout)
        except AcquireTimeout as error:
            if options.json:
                show(as_json("held", lock.status()))
            elif not options.quiet:
                say(str(error))
            return int(options.held_code)
        try:
            self._tell_acquired(hold)
            self._settle_in(hold)
            self._say(DONE)
            self._wait()
        finally:
            _release(hold)
        return FAILED  # which nobody hears of who has heard that it is acquired

    def _tell_acquired(self, hold: Hold) -> None:
        options, owner = self._options, self._owner.pid
        if options.json:
            more = {"owner_pid": owner, "keeper_pid": os.getpid(), "token": hold.token}
            show(as_json("acquired", self._lock.status(), **more))
        if options.verbose:
            say(f"acquired {hold.path} for process {owner}, kept by process {os.getpid()}")
        tell_bound(options, owner)

    def _settle_in(self, hold: Hold) -> None:
        """Nothing of the caller's that somebody could wait for; signals end the hold from here on."""
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        for name in _IGNORED:
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        for name in _ENDING:
            signal.signal(getattr(signal, name), lambda _number, _frame: os.write(self._wake, b"\0"))
        command = self._owner.command()
        about = f"for process {self._owner.pid}" + (f" ({command})" if command else "")
        self._lock._env.entitle(NAME, f"{about}: {hold.path}")

    def _heed_command(self) -> None:
        """S7: in a thread of its own, because the main one may be waiting for the lock."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        if os.read(self._heard, 1) != _GO:
            os.kill(os.getpid(), signal.SIGTERM)

    def _wait(self) -> None:
        """Until the lock is to be given up."""
        fds = [self._woken] + [fd for fd in (self._owner.fd,) if fd >= 0]
        while not readable(fds, None if self._owner.fd >= 0 else _POLL):
            if self._owner.has_ended():
                return

    def _say(self, status: int) -> None:
        tell, self._tell = self._tell, -1
        if tell >= 0:
            try:
                os.write(tell, bytes([status]))
            except BrokenPipeError:
                pass  # the command was killed: its other pipe says so, too
            os.close(tell)


def _release(hold: Hold) -> None:
    try:
        hold.release()
    except (LockLost, OSError):
        pass  # it is another's by now; or the server cannot be told, and frees it by itself


def end_keeper(env: GenericEnvironment, status: Status, owner: int) -> str:
    """End the keeper that holds this lock for `owner`, and wait until it has; else why that was not done."""
    holder = status.holder
    if holder is None or holder.pid is None or (holder.host or "").casefold() != env.identity().host.casefold():
        return f"it is held by process {holder and holder.pid} on {holder and holder.host}"
    watched = env.watch_process(holder.pid)
    if watched is None:
        return f"it is held by process {holder.pid}, which cannot be seen from here"
    try:
        named = _TITLE.match(env.command(holder.pid) or "")  # S9
        if named is None or int(named[1]) != owner:
            kept = f", which keeps it for process {named[1]}" if named else ""
            return f"it is held by process {holder.pid}{kept}, not for process {owner}"
        for number in (signal.SIGTERM, signal.SIGCONT):  # the latter, should somebody have stopped it
            signal.pidfd_send_signal(watched, number)
        if not readable([watched], _PATIENCE):
            return f"its keeper, process {holder.pid}, does not end"
    except OSError as error:
        return f"its keeper, process {holder.pid}, cannot be ended ({error.strerror})"
    finally:
        env.close(watched)
    return ""
