"""The process that the lock of `try` and `acquire` is bound to, if nobody names one: the caller, if that is a shell.

W1  A lock that ends as soon as its command has said that it is held is refused, not reported as a success. So a caller
    is accepted only if it is seen to be a shell: a program that runs one command (timeout, xargs, sudo, make, a
    `subprocess.run` whose `sh -c` has become the command) looks like any other, and has no list that is complete.
    env, nice, nohup and setsid become the command, whose parent is the shell then; so does the last command of `sh -c`
    in most shells. In others, that shell ends with us (W2).
W2  The shell of `sh -c 'holdfast try LOCK'` has nothing else to do. That is refused where the one command of its text
    is seen to be ours; a text with any operator, substitution or variable in our words may be more than that.
W3  Where the caller's program cannot be found out (another system, another user's `/proc`), nothing is refused. What is
    known is said, as what is acquired by a script that ends, or in a subshell, cannot be told from what is kept.

The keeper: a small process that holds a lock for a shell, which cannot hold one itself.

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

`try` and `acquire` of a lock on a server, for a shell: a keeper process that acquires it, and has the connection.

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
import sys
import threading

from .._core.messages import brief_command, printable
from .._drivers.sync import caller
from .._platform import environment
from .._platform.interface import Presence
from ..engines.file.hold import FileHeld
from ..engines.file.inspect import Assessment, Observation, glance
from ..engines.file.remove import why_not_of
from ..errors import AcquireTimeout, LockLost
from ..lock import Hold, Lock, file_hold, file_request, keep, requests_of
from ..model import Evidence, Identity, Liveness, Status
from .console import as_json
from .detached import detach, fork, readable
from .outcome import DONE, FAILED, failed, say, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

    from .._platform.portable import GenericEnvironment


_SHELLS = {
    "ash", "bash", "brush", "bsd-csh", "cmd", "csh", "dash", "elvish", "fish", "hush", "ksh", "lksh", "loksh",
    "mksh", "mrsh", "murex", "nu", "oils-for-unix", "oksh", "osh", "pdksh", "posh", "powershell",
    "powershell_ise", "pwsh", "rbash", "rksh", "rzsh", "sash", "sh", "static-sh", "tcsh", "xonsh", "yash", "ysh",
    "zsh",
}  # fmt: skip
_MULTICALL = ("busybox", "toybox")
_OPERATORS = frozenset(";&|\n<>(){}`$")
_SHOWN = 60


def owner_of(options: argparse.Namespace, *, binds: bool) -> int | None:
    """Its pid; None, and said why, if there is none. One that is to be bound to has to be a shell, unless it is named.

    Without `binds` only its number counts: nothing is to be left to it.
    """
    if options.owner_pid:
        named: int = options.owner_pid
        return named
    pid = os.getppid()
    if pid <= 0:
        say("the calling process cannot be seen from here (it is in another PID namespace); pass --owner-pid")
        return None
    why = _why_not(pid) if binds else None
    if why is not None:
        say(
            f"{options.lock} was not acquired: it would be bound to process {_shown(pid)}, {why}. Name the process "
            "that it is for (--owner-pid $$ in a script), or use: holdfast run LOCK -- CMD"
        )
        return None
    return pid


def tell_bound(options: argparse.Namespace, owner: int) -> None:
    """To whom the lock is bound, unless the caller knows it, or reads it elsewhere."""
    if not (options.quiet or options.json or options.verbose or options.owner_pid):
        say(f"bound to process {_shown(owner)}: free when that ends")


def _shown(pid: int) -> str:
    program = environment().program(pid)
    if program is None:
        return str(pid)
    name, words = program
    if len(words) > 1 and _is_shell(_base(words[0])) and not words[1].startswith("-"):
        words = [_base(words[1]), *words[2:]]  # people know it by its script
    command = brief_command(" ".join(words)) or name
    if "://" in command:
        from .outcome import masked

        command = masked(command)  # before it is cut: half of a URL is not known for one
    return f"{pid} ({printable(command, _SHOWN)})"


def _why_not(pid: int) -> str | None:
    """Why the lock would not be kept by that caller; None if it would, or if that cannot be known (W3)."""
    program = environment().program(pid)
    if program is None:
        return None
    name, words = program
    first, second = (_base(word) for word in [*words, "", ""][:2])
    if name in _MULTICALL:
        name = second if first in _MULTICALL else first
    elif not _is_shell(name) and (_is_shell(first) or second == "xonsh"):
        return None  # run by an emulator, or by the interpreter of the language that it is written in
    if not _is_shell(name):
        return "which is not a shell and may end as soon as this command has"
    if _is_all_of(words):
        return "a shell that ends with this command"
    return None


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _is_shell(name: str) -> bool:
    """As shells are called: `-bash` at a login, `zsh-5.9`, `ksh93`, `bash-static`, `pwsh.exe`."""
    name = name.lower().lstrip("-.").removesuffix(".exe").removesuffix("-wrapped").removesuffix("-static")
    return name.rstrip("0123456789.-") in _SHELLS


def _is_all_of(words: list[str]) -> bool:
    """Whether this very command is all that a shell with these words does (W2)."""
    text = None
    for number, word in enumerate(words[1:], 1):
        if not word.startswith("-") or word == "-":
            return False
        if not word.startswith("--") and "c" in word:
            text = next((one for one in words[number + 1 :] if not one.startswith("-")), None)
            break
    if text is None or _OPERATORS.intersection(text):
        return False
    import shlex

    try:
        said = shlex.split(text)
    except ValueError:
        return False
    ours = sys.argv[1:]
    before = said[: -len(ours)] if ours else said
    return said == [*before, *ours] and bool(before) and _base(before[-1]) == "holdfast"


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
        self._held = file_hold(hold)
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
        self._held.hand_over()
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
            self._held.hand_over()


class _Life:
    """The keeper's side."""

    def __init__(self, held: FileHeld, fd: int, owner: Owner, pace: float) -> None:
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
        held = FileHeld(self._env, self._request, self._fd, self._identity, self._data, True)
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
    env = environment()
    seen = glance(env, file_request(lock))
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
    left = glance(env, file_request(lock))
    return left is None or not _is_same(left, seen)


_UNPROVEN = Assessment(Liveness.UNKNOWN, Evidence("none", "the guard is the keeper's"))


def _is_same(one: Observation, other: Observation) -> bool:
    """Whether it is still the same acquisition, in spite of heartbeats."""
    if one.identity != other.identity or one.record is None or other.record is None:
        return False
    return (one.record.pid, one.record.marker) == (other.record.pid, other.record.marker)


_GO = b"g"
_TITLE = re.compile(rf"{NAME}\s+for process ([0-9]+)\b")


def acquire(lock: Lock, options: argparse.Namespace, pid: int) -> int:
    """Have a keeper acquire the lock for the process `pid`; the exit status."""
    if options.no_keeper or not is_possible():
        raise ValueError(
            "a lock on a server lives with a connection, which a keeper process has to hold for a shell; leave "
            "--no-keeper out, or use: holdfast run LOCK -- CMD"
        )
    owner = Owner(environment(), pid)
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
        from .._drivers.agent import settle as settle_with_servers

        status = FAILED
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._woken, self._wake = os.pipe()
            os.set_blocking(self._wake, False)
            threading.Thread(target=self._heed_command, daemon=True).start()
            status = self._acquire()
        except BaseException as error:
            status = failed(error) if isinstance(error, Exception) else FAILED
        finally:
            try:
                settle_with_servers()
                self._say(status)
            finally:
                os._exit(status)

    def _acquire(self) -> int:
        """Acquire, tell, and keep; or the exit status of what came instead."""
        options, lock = self._options, self._lock
        requests_of(lock)[0].on_lost = lambda _lost: os.write(self._wake, b"\0")
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
        environment().entitle(NAME, f"{about}: {hold.path}")

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


def end_url_keeper(env: GenericEnvironment, status: Status, owner: int) -> str:
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
