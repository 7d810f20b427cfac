"""What runs beside the holds of a process: one thread for heartbeats and loss, and the clean-up at exit.

K1  The thread starts with the first hold that needs it, and ends when it wakes and finds none. A steady stream of short
    holds therefore neither wakes it nor starts it anew.
K2  It sleeps until the earliest beat. A hold that is due earlier wakes it; others only enter the table.
K3  A hold with `on_lost` is watched, so that loss is told in milliseconds; where no events arrive it is looked at once
    a second. A thread of its own tells it: the caller's code takes its time, while the beats of other holds fall due
    and this thread may be the one that reads the events for all waits of the process (inotify.py, N1).
K4  In a forked child there is no thread and nothing to keep: the table is emptied.
K5  A beat that fails is reported and tried again at the next turn. It never ends the thread, and never ends the hold.
K6  At exit, what is held is released as late as can be: when the threads and the children of `multiprocessing` that a
    process waits for have ended, because their work may be what the lock protects. Such a child ends by `os._exit`, so
    this must be asked for anew in each process, and where `multiprocessing` is loaded it goes through its finalizers.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time

from .._core.environment import Wait, Watch
from .sync import wait_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._core.environment import Environment
    from .._core.hold import Held

_LOOK_EVERY = 1.0
_LONGEST = 3600.0
_AT_EXIT = "at interpreter shutdown"
"""Of the error of a Python that starts no thread any more, because it is about to end: nothing to complain about."""
_LAST = -1_000_000
"""The priority of a finalizer of `multiprocessing` that runs after its children have been joined, and after others."""


class Keeper:
    """One per process."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        # Re-entrant, as a signal handler or a finaliser may release a hold in the midst of this.
        self._mutex = threading.RLock()
        self._kept: dict[Held, Watch | None] = {}
        self._next_wake = 0.0
        self._thread: threading.Thread | None = None
        self._doorbell: tuple[int, int] | None = None
        self._prepared = False

    def prepare(self) -> None:
        """Have what this process holds released when it ends (K6)."""
        if self._prepared:
            return
        finalizer = getattr(sys.modules.get("multiprocessing.util"), "Finalize", None)
        if finalizer is None:
            atexit.register(self.release_all)
        else:
            finalizer(None, self._release_after_threads, exitpriority=_LAST)
        self._prepared = True

    def keep(self, held: Held, every: float) -> None:
        """Beat for this hold every so many seconds until it is released."""
        watched = held.request.on_lost is not None
        watch = self._watch(held) if watched and held not in self._kept else None
        with self._mutex:
            if held in self._kept or held.released:  # another handle of it came first
                if watch is not None:
                    watch.close()
                return
            now = time.monotonic()
            held.next_beat = now + every
            self._kept[held] = watch
            if self._thread is None or not self._thread.is_alive():
                self._next_wake = min(held.next_beat, now + _LONGEST)
                try:
                    self._start()
                except (OSError, RuntimeError) as error:  # no thread or no descriptor is left: K5
                    self._thread = None
                    if _AT_EXIT not in str(error):
                        _report(f"{held.path} is held, but not kept fresh", error)
            elif watched or held.next_beat < self._next_wake:  # K2
                self._ring()

    def forget(self, held: Held) -> None:
        """The hold has ended."""
        with self._mutex:
            watch = self._kept.pop(held, None)
            if watch is not None:
                watch.close()

    def _release_after_threads(self) -> None:
        """K6. A child of `multiprocessing` ran its finalizers before it waited for its threads, up to Python 3.12."""
        if sys.version_info < (3, 13):
            threading._shutdown()  # type: ignore[attr-defined]  # what it is about to call; at the second call a no-op
        self.release_all()

    def release_all(self) -> None:
        """At exit: what this process still holds is released; a lock that was lost stays as it is."""
        for held in list(self._env.holds.values()):
            try:
                held.release()
            except Exception as error:  # the interpreter is going down: say it, and go on with the next
                print(f"holdfast: at exit: {error}", file=sys.stderr)  # noqa: T201

    def _watch(self, held: Held) -> Watch | None:
        try:
            watch = self._env.watch(held.path) if self._env.events_reach(held.path) else None
        except FileNotFoundError:
            return None  # lost already; the first look tells
        try:
            if watch is None or held.verify():
                return watch
        except OSError:
            return watch  # a look will tell
        watch.close()  # lost already: this is a watch on another's file
        return None

    def _start(self) -> None:
        if self._doorbell is None:
            self._doorbell = self._env.pipe()
        self._thread = threading.Thread(target=self._run, name="holdfast-keeper", daemon=True)
        # Signals are the program's business: one that landed in this thread would not interrupt a wait in the main one.
        blocking = hasattr(signal, "pthread_sigmask")
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()) if blocking else None
        try:
            self._thread.start()
        except BaseException:
            self._thread = None
            raise
        finally:
            if mask is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _ring(self) -> None:
        if self._doorbell is not None:
            try:
                os.write(self._doorbell[1], b"!")
            except BlockingIOError:
                pass  # it is ringing already

    def _run(self) -> None:
        generation = self._env.generation
        while generation == self._env.generation:
            try:
                wait = self._turn()
            except Exception as error:  # K5; a full descriptor table, for one
                _report("while keeping holds", error)
                wait = Wait((), time.monotonic() + _LOOK_EVERY)
            if wait is None:
                return
            wait_for(wait)
            with self._mutex:
                watches = [watch for watch in self._kept.copy().values() if watch is not None]
            for watch in watches:
                watch.woken()

    def _turn(self) -> Wait | None:
        """Do what is due; say what to wait for, or None to end the thread (K1)."""
        assert self._doorbell is not None
        try:
            os.read(self._doorbell[0], 1024)
        except BlockingIOError:
            pass
        now = time.monotonic()
        with self._mutex:
            if not self._kept:
                if now < self._next_wake:
                    return Wait((self._doorbell[0],), self._next_wake)
                self._thread = None
                return None
            holds = self._kept.copy().items()
        for held, watch in holds:
            self._attend(held, watch, now)
        with self._mutex:
            if not self._kept:
                return Wait((self._doorbell[0],), self._next_wake)  # the turn after that ends the thread
            fds = {self._doorbell[0]}
            self._next_wake = now + _LONGEST
            for held, watch in self._kept.copy().items():
                self._next_wake = min(self._next_wake, held.next_beat)
                if watch is not None:
                    fds.update(watch.fds())
                elif held.request.on_lost is not None:
                    self._next_wake = min(self._next_wake, now + _LOOK_EVERY)
            return Wait(tuple(fds), self._next_wake)

    def _attend(self, held: Held, watch: Watch | None, now: float) -> None:
        # Taken in any case: an event that nobody takes would keep the descriptor readable.
        changed = watch is None or bool(watch.take())
        try:
            due = held.next_beat <= now
            if (due or (changed and held.request.on_lost is not None)) and not held.released and not held.verify():
                self._tell_lost(held)
            elif due:
                held.next_beat = now + held.request.beat_every
                held.beat()
        except Exception as error:  # K5
            _report(f"while keeping {held.path}", error)
        if held.lost or held.released:
            self.forget(held)

    def _tell_lost(self, held: Held) -> None:
        """K3."""
        self.forget(held)
        if held.request.on_lost is None:
            held.check()
        else:
            threading.Thread(target=_tell_lost, args=(held,), name="holdfast-lost", daemon=True).start()


def _tell_lost(held: Held) -> None:
    try:
        held.check()
    except Exception as error:  # whatever the caller's on_lost raises
        _report(f"in on_lost for {held.path}", error)


def _report(what: str, error: Exception) -> None:
    import logging

    logging.getLogger("holdfast").error("%s: %s", what, error, exc_info=error)
