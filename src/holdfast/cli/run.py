"""`run`: hold a lock while a command runs, and be as transparent as possible in between.

C1  While waiting, a signal that ends the process raises an exception, so that nothing is left; then the process ends by
    that very signal. Python swallows an exception that is raised in the callback of a weak reference, and each import
    has such a callback. So the signal is sent again (`_send_again_or` in __init__.py). It is noted as well, and the
    note is checked between the acquisition and the start of the command.
C2  From the acquisition on, these signals are blocked and received one by one (`sigwaitinfo`), so none falls between
    the lock and the command, or between the command's end and the release. CHLD has a handler, which is never called: a
    BSD kernel drops a blocked signal that would be ignored.
C3  A signal that the terminal sent (SI_KERNEL) has reached the command too, if that is in the same process group and
    had begun by then; else it is passed on, like those that were sent to this process alone. A terminal that hangs up
    tells the session's leader alone: if that is us (`ssh -t host holdfast run …`), HUP is passed on. Where the system
    does not say who sent a signal (macOS), INT and QUIT count as the terminal's while we are in its foreground: a
    command that gets two takes them for impatience.
C4  The command has a guardian, which started it and has a copy of the guard: if this process is killed, the lock stays
    held until everything that the command has started has ended (guardian.py, G1 to G6).
C5  Reaping the command and signalling it exclude each other: a signal never reaches a later process with the command's
    pid. When the lock is lost, the command's whole tree is stopped: guardian.py, CT1 to CT3.
C6  A command that stops itself (SIGSTOP, or `suspend` in an interactive shell) has not stopped us. A shell that waits
    for us would not know, and nobody could type to it. So if we are its job, and we or the command have the terminal,
    we stop as well; and when we are continued, so is the command, with the terminal if it had that.
C7  An error here, such as a lack of memory, does not end the command. This process then ends as if it had been killed,
    and releases nothing: the guardian has the locks (G3), or the command has their guards (G1).
"""

from __future__ import annotations

import os
from _thread import allocate_lock, get_ident

from .._platform import environment
from .._platform.tree import Member, is_running, is_stopped, look_at, send
from ..engines.file.hold import FileHold
from ..errors import AcquireTimeout, EngineUnavailable, LockLost
from ..lock import Hold, Lock, Semaphore, attend, keep_from_now, release_all, requests_of, state_of
from .detached import LONGEST_WAIT, sooner
from .guardian import ENDED, PASSED_ON, STOPPED, Guardian, NoGuardian, Terms, Tree, named
from .locks import locks_of
from .options import Namespace
from .outcome import FAILED, LOST, Ended, die_of, failed, not_started, say, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType
    from typing import Any, Protocol

    class Work(Protocol):
        """The interface of a command that has been started, on either system."""

        told: bool
        """Whether the loss of a lock was told."""
        over: bool
        """Whether it was ended because of `--limit`."""

        @property
        def has_begun(self) -> bool:
            """Whether the command may be at work, or a process that it has started."""

        def leaves(self, holds: Sequence[Hold], *, quiet: bool) -> bool:
            """Leave the locks to the guardian if the command has left something running that counts; whether it has."""

        def dismiss(self) -> None:
            """Have the guardian end, unless it has been left the locks."""


_SENT_BY_KERNEL = 0x80
"""The `si_code` of a signal that a terminal sent (C3)."""
_LOOK_EVERY = 0.2
_KEPT_AFTER = 0.02
"""Seconds before the lock is watched and refreshed: the code for that takes longer to load than most of `run`. A loss
in that time is seen afterwards, or by the release."""


class _Interrupted(Ended):
    wanted = True
    noted = 0
    """The signal that was raised as an exception, if any (C1)."""


def run(options: Namespace) -> int:
    """Hold the lock while the command runs; the exit status, or death by the same signal."""
    child = _Child(options)
    try:
        locks = locks_for(options, child.stop_for_loss)
    except AcquireTimeout as error:
        return refused(error, options)  # a file server does not answer
    for request in requests_of(locks[0]) if len(locks) == 1 else ():  # of several, one is held while another is awaited
        request.kept_later = True  # refreshed and watched from `keep_from_now` on: a short hold needs neither
    # Signals that the caller ignores (nohup, a background job) stay ignored, here and in the command.
    passed_on = [getattr(signal, name) for name in PASSED_ON]
    heeded = [number for number in passed_on if signal.getsignal(number) is not signal.SIG_IGN]
    try:
        try:
            for number in heeded:
                signal.signal(number, _interrupt)  # C1: the first may come before the last is heeded
            holds = acquire(locks, options.timeout)
        finally:  # C2; after a failure, too: on the way out nothing is left to interrupt
            before = signal.pthread_sigmask(signal.SIG_BLOCK, received_with(heeded))
            _Interrupted.wanted = False
            if _Interrupted.noted:  # C1: even if the first one was dropped
                raise _Interrupted(_Interrupted.noted)
    except AcquireTimeout as error:
        for number in heeded:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # nothing is held, so signals need not come one by one
        return refused(error, options)
    except _Interrupted as interrupted:
        _Interrupted.wanted = False  # two signals at once end this process once
        release_all()  # whether or not the handle had reached us
        die_of(interrupted.number)
    tell_acquired(holds, options)
    return work_under(holds, child, lambda: child.run(holds, before, heeded), options)


def locks_for(options: Namespace, on_lost: Callable[[LockLost], object]) -> list[Lock | Semaphore]:
    """The locks to hold while the command runs; their events are recorded from now on, if that was asked for."""
    locks = locks_of(options, on_lost=on_lost)
    if options.record is not None:
        from .console import record_events

        paths = [one.path for lock in locks for one in requests_of(lock)]
        record_events(options.record, options.cmd, environment().identity().host, paths)
    return locks


def acquire(locks: Sequence[Lock | Semaphore], timeout: float | None) -> Sequence[Hold]:
    """Acquire all of them or none."""
    if len(locks) == 1:
        return [locks[0].acquire(timeout)]
    from ..several import GivenTwice, acquire_all

    try:
        return acquire_all(locks, timeout)
    except GivenTwice as error:  # its text speaks of options that a command line does not have
        one, other = error.paths
        what = f"{one} is given twice" if one == other else f"{one} and {other} name the same lock file"
        raise ValueError(f"{what}; leave one out") from None


def refused(error: AcquireTimeout, options: Namespace) -> int:
    """Report that a lock was not free in time, and run the line of `--on-conflict`; the exit status."""
    if not options.quiet:
        from .owner import tell_if_ours

        say(str(error))
        tell_if_ours(options, error.holder)
    if options.on_conflict is not None:
        import subprocess

        variables = {**_inherited(), "HOLDFAST_LOCK": error.path or "", "HOLDFAST_REASON": str(error)}
        variables["HOLDFAST_HOLDER"] = str(error.holder.pid or "") if error.holder is not None else ""
        try:
            status = subprocess.call(options.on_conflict, shell=True, env=variables)
        except OSError as failure:
            say(f"--on-conflict was not run: {failure.strerror}")
            status = 0
        if status:
            say(f"--on-conflict ended with {_spoken(status)}")
    return int(options.held_code)


def tell_acquired(holds: Iterable[Hold], options: Namespace) -> None:
    """Report the acquisitions, with `--verbose`."""
    for hold in holds if options.verbose else ():
        behind = _recovered(hold)
        say(f"got {hold.path}" + (f", left behind by process {behind}" if behind else ""))


def work_under(holds: Sequence[Hold], child: Work, run: Callable[[], int], options: Namespace) -> int:
    """Have the command run, then release; the exit status. After an error while the command may be at work: C7."""
    try:
        return end(holds, child, run(), options)
    except Exception as error:
        if not child.has_begun:
            raise
        os._exit(failed(error))


def end(holds: Sequence[Hold], child: Work, status: int, options: Namespace) -> int:
    """Release, or leave the locks to the guardian; then end as the command ended."""
    left = child.leaves(holds, quiet=options.quiet)
    for hold in reversed([] if left else holds):
        status = _release(hold, child, status, options)
    child.dismiss()
    if child.told or child.over:
        say(f"the command ended with {_spoken(status)}")
        return LOST if child.told else int(options.held_code)
    if status < 0:
        without_core_dump()
        die_of(-status)
    return status


def _release(hold: Hold, child: Work, status: int, options: Namespace) -> int:
    """Release one hold; the status so far, or that of a failure."""
    try:
        hold.release()
        if options.verbose:
            say(f"released {hold.path}")
    except LockLost as lost:
        if not child.told:
            say(str(lost))
        child.told = True
    except EngineUnavailable as error:
        say(f"{error}. The server frees {hold.path} by itself")
        return status or FAILED
    except OSError as error:
        say(f"{hold.path} could not be removed ({error.strerror}); it is released nevertheless, as nothing guards it")
        return status or FAILED
    return status


def all_of(holds: Sequence[Hold], verb: str, verb_of_several: str) -> str:
    """The paths, and what happens to them."""
    return f"{' and '.join(hold.path for hold in holds)} {verb_of_several if len(holds) > 1 else verb}"


def limit_reached(holds: Iterable[Hold], options: Namespace) -> str:
    """The message when the time of `--limit` is up."""
    from .._core.messages import span

    return f"{', '.join(hold.path for hold in holds)}: held for {span(options.limit)}, which is the limit"


class _Child:
    """The command, which a guardian has started (C4)."""

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self._guardian: Guardian | None = None
        self._pid = 0
        self._known: Member | None = None
        """The command, if it would not become our child when its guardian is killed (CT1)."""
        self._status: int | None = None
        self._has_left = self._is_lost_sight_of = self._has_stopped = False
        self._reaping = allocate_lock()
        self.told = self.over = False

    @property
    def has_begun(self) -> bool:
        return self._guardian is not None and self._guardian.has_begun

    def run(self, holds: Sequence[Hold], mask: set[Any], heeded: list[int]) -> int:
        """Start the command and wait for its end: its exit status, or minus the signal that killed it."""
        options = self._options
        tree = Tree(options.kill_after)
        terms = Terms(options.kill_after, options.until, options.limit)
        guardian = self._guardian = Guardian(holds, terms)
        heed_children()
        try:
            self._pid = guardian.start(options.cmd, environment_of(holds), mask)
        except NoGuardian as error:
            say(f"{options.cmd[0]} was not started: its guardian process could not be started ({error.strerror})")
            return FAILED
        except OSError as error:
            guardian.dismiss()
            return not_started(options.cmd, error)
        tree.root = guardian.pid
        if not self._pid:
            os.waitpid(guardian.pid, 0)  # G4: its children are ours now
            guardian.pid = tree.root = 0
            orphan = tree.orphan()
            self._pid = orphan.pid if orphan is not None else 0
            self._status = None if self._pid else _guardless()
            self._is_lost_sight_of = not self._pid and not tree.adopts
        elif not tree.adopts:
            self._known = look_at(self._pid)
        return self._wait(holds, received_with(heeded), guardian, tree, terms)

    def _wait(self, holds: Iterable[Hold], signals: set[int], guardian: Guardian, tree: Tree, terms: Terms) -> int:
        leads = os.getsid(0) == os.getpid()
        guardian.await_news(_KEPT_AFTER)
        self._reap(guardian, tree)
        if self._status is None:
            for hold in holds:
                keep_from_now(hold)
        while True:
            self._reap(guardian, tree)
            left = terms.left()
            if left == 0 and self._status is None and not self.over:
                self.over = True
                why = limit_reached(holds, self._options)
                say(f"{why}. Sending TERM to the command, and to all that it has started")
            pause = tree.stop(self._pid) if self.told or self.over else None
            if self._status is not None and pause is None:
                return self._status
            if self._has_stopped and pause is None:
                self._stop_as_well()
            if pause is None and not tree.root and not tree.adopts:
                pause = _LOOK_EVERY  # its end is no event for us
            if pause is None and not self.over:
                pause = left
            number, by_terminal = next_signal(signals, sooner(pause, attend()))
            if number in (0, signal.SIGCHLD):
                continue
            if self._has_missed(guardian, number) or not by_terminal or (number == signal.SIGHUP and leads):  # C3
                self._signal(number)

    def _has_missed(self, guardian: Guardian, number: int) -> bool:
        """Whether the command cannot have got this signal, even if it came from the terminal (C3)."""
        missed, bit = guardian.missed, 1 << number
        guardian.missed = missed & ~bit
        return bool(missed & bit) or is_group_of_its_own(self._pid)

    def _reap(self, guardian: Guardian, tree: Tree) -> None:
        """See what has ended: the command, by news of its guardian; the guardian; or processes left to us (CT1)."""
        with self._reaping:  # C5
            while (news := guardian.news())[0]:
                kind, value = news
                self._has_stopped = kind == STOPPED
                if kind == ENDED:
                    self._pid, self._status = 0, value
                    self._has_left = guardian.seen()
            while True:
                try:
                    pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
                except ChildProcessError:
                    break
                if not pid:
                    break
                if os.WIFSTOPPED(status):
                    self._has_stopped = self._has_stopped or pid == self._pid
                    if pid == guardian.pid:
                        guardian.go_on()
                elif pid == guardian.pid:
                    guardian.pid = tree.root = 0
                elif pid == self._pid:
                    self._pid = 0
                    self._status = os.waitstatus_to_exitcode(status)
            if self._pid and not guardian.pid and self._known is not None and not is_running(self._known):
                self._pid, self._status = 0, _guardless()

    def _stop_as_well(self) -> None:
        """Stop because the command has; have it go on when we do (C6)."""
        self._has_stopped = False
        before, ours = foreground(), os.getpgrp()
        # A shell that looks at us as its job would see that we have stopped.
        if is_stopped(self._pid) and is_group_of_its_own(os.getppid()) and before in (ours, os.getpgid(self._pid)):
            signal.pthread_kill(get_ident(), signal.SIGSTOP)  # this very thread goes no further
            if is_stopped(self._pid):
                if foreground() == ours != before:
                    foreground(before)
                self._signal(signal.SIGCONT)

    def leaves(self, holds: Sequence[Hold], *, quiet: bool) -> bool:
        guardian = self._guardian
        if self._is_lost_sight_of:
            for hold in holds:
                let_go(hold)  # the command, if there is one, has the guard (G1)
            return True
        if guardian is None or not guardian.pid or not self._has_left or self.told:
            return False
        left = guardian.left()
        if not left:
            return False
        if not guardian.keeps:
            if not quiet:
                are = all_of(holds, "is", "are")
                say(f"{are} released, although {named(left)} not ended, which the command has left running: "
                    "only this process could have kept it")  # fmt: skip
            return False
        if not quiet:
            stay = all_of(holds, "stays", "stay")
            say(f"{stay} held until {named(left)} ended, which the command has left running (--until)")
        for hold in holds:
            let_go(hold)
        guardian.keep()
        self._guardian = None
        return True

    def dismiss(self) -> None:
        if self._guardian is not None:
            self._guardian.dismiss()

    def _signal(self, number: int) -> None:
        with self._reaping:
            if self._pid:
                try:
                    if self._known is not None:
                        send(self._known, number)
                    else:
                        os.kill(self._pid, number)
                except PermissionError:
                    say(f"{name_of(number)} was not passed on: process {self._pid} now belongs to another user")

    def stop_for_loss(self, lost: LockLost) -> None:
        """Have the work end, as the lock is no longer ours. Called from another thread."""
        self.told = True
        # The command's pid may not be known yet: the guardian has started it, and is about to say so.
        works = self.has_begun and self._status is None
        say(f"{lost} Sending TERM to the command, and to all that it has started" if works else str(lost))
        os.kill(os.getpid(), signal.SIGCHLD)  # the main thread, which waits for signals, does it


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if _Interrupted.wanted:
        _Interrupted.noted = number
        raise _Interrupted(number)  # C1


def let_go(hold: Hold) -> None:
    """Let go of the lock without dropping the guard, which another process has as well."""
    held = state_of(hold)
    if isinstance(held, FileHold):
        held.hand_over()
    else:
        held.abandon()


def _guardless() -> int:
    say("the command's guardian was killed, so how the command ended is not known")
    return FAILED


def environment_of(holds: Sequence[Hold]) -> dict[str, str]:
    """The command's environment: ours, and variables about the locks, with a line for each."""
    variables = _inherited()
    variables["HOLDFAST_LOCK"] = "\n".join(hold.path for hold in holds)
    known = {
        "HOLDFAST_SLOT": [hold.slot for hold in holds],
        "HOLDFAST_TOKEN": [hold.token for hold in holds],
        "HOLDFAST_RECOVERED": [_recovered(hold) for hold in holds],
    }
    for name, values in known.items():
        if values != [None] * len(holds):
            variables[name] = "\n".join("" if value is None else str(value) for value in values)
    return variables


def _inherited() -> dict[str, str]:
    """Our environment, without the variables of an outer `run` about another lock, and without an entry that has no
    name, which Python passes to no program."""
    others = ("", "HOLDFAST_RECOVERED", "HOLDFAST_SLOT", "HOLDFAST_TOKEN")
    return {name: value for name, value in os.environ.items() if name not in others}


def _recovered(hold: Hold) -> int | None:
    return hold.recovered_from.pid if hold.recovered_from else None


def heed_children() -> None:
    """Have the end of a child be a signal that is received, even if it was ignored before (C2)."""
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)


def received_with(heeded: Iterable[int]) -> set[int]:
    """The signals to block, and to receive by `next_signal`: these, and those that it needs itself."""
    return {*heeded, signal.SIGCHLD, *(() if hasattr(signal, "sigtimedwait") else (signal.SIGALRM,))}


def next_signal(signals: set[int], pause: float | None) -> tuple[int, bool]:
    """The first of these signals to come, and whether a terminal sent it (C3); 0 after `pause` seconds or earlier."""
    pause = None if pause is None else min(pause, LONGEST_WAIT)
    if not hasattr(signal, "sigtimedwait"):
        return _next_of_unknown_sender(signals, pause)
    info = signal.sigwaitinfo(signals) if pause is None else signal.sigtimedwait(signals, pause)
    # If we were stopped and have gone on when the time was up, Python returns a value that is not set.
    if info is None or info.si_signo not in signals:
        return 0, False
    return info.si_signo, info.si_code == _SENT_BY_KERNEL


def _next_of_unknown_sender(signals: set[int], pause: float | None) -> tuple[int, bool]:
    if pause is not None:
        signal.setitimer(signal.ITIMER_REAL, max(pause, 0.001))
    number = signal.sigwait(signals)
    if number == signal.SIGALRM:
        return 0, False
    return number, number in (signal.SIGINT, signal.SIGQUIT) and foreground() == os.getpgrp()


def is_group_of_its_own(pid: int) -> bool:
    """Whether a process of our session is in another process group: `timeout` leaves ours, a shell gives us our own."""
    try:
        return bool(pid) and os.getpgid(pid) != os.getpgrp() and os.getsid(pid) == os.getsid(0)
    except OSError:
        return False  # it has ended


def foreground(group: int = 0) -> int:
    """The process group in the foreground of our terminal, or put there now (`group`); 0 without a terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        if group:
            os.tcsetpgrp(terminal, group)
        return os.tcgetpgrp(terminal)
    except OSError:
        return 0
    finally:
        os.close(terminal)


def _spoken(status: int) -> str:
    return f"status {status}" if status >= 0 else f"signal {name_of(-status)}"


def name_of(number: int) -> str:
    """The signal's name, as `SIGTERM`; the number itself for most real-time signals, which have no name."""
    from signal import Signals

    return Signals(number).name if number in {*Signals} else str(number)


def without_core_dump() -> None:
    """Leave no core dump, in a process that dies of a signal only to tell how another has ended."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
