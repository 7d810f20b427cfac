"""Background work for the holds of a process: one thread for heartbeats and loss, and the clean-up at exit.

K1  The thread starts with the first hold that needs it, and ends when it wakes and finds none. A steady stream of short
    holds therefore neither wakes it nor starts it anew.
K2  It sleeps until the earliest beat. A hold that is due earlier wakes it. One that is due later does nothing: when the
    thread wakes, it finds it among the holds of the process. So a short hold costs one comparison. A hold is on that
    list before it reads when the thread wakes, and the thread resets that time before it reads the list: one of the two
    sees the other. Beats that are nearly due are sent along, so that one look through thousands of holds serves many
    beats.
K3  A hold with `on_lost` or `on_event` is watched, so that a loss is reported in milliseconds; where no events arrive,
    the thread looks at it once a second, or as often as it asks for. All of them share one wait: thousands cost one
    descriptor, and an event costs a look at one hold. A thread of its own reports a loss: the caller's code may take
    long, while the beats of other holds fall due, and this thread may be the one that reads the events for all waits of
    the process (inotify.py, N1).
K4  A forked child has no thread and nothing to keep: the table is emptied.
K5  A beat that fails is reported and tried again at the next turn. It never ends the thread, and never ends the hold.
K6  At exit, all holds are released as late as possible: when the threads and the children of `multiprocessing` that a
    process waits for have ended, because the lock may protect their work. Such a child ends by `os._exit`, so each
    process must register this anew, and where `multiprocessing` is loaded it goes through its finalizers.
K7  Three steps, in this order: the hold gets its keeper, it enters the table, its watch is made. It leaves the table
    after its watch has ended. So an interruption between any two leaves a hold that can be forgotten, and a watch whose
    key is not known belongs to no other hold.
K8  A beat of a hold with a lease asks a server, which may not answer. So it is sent in a thread of its own, one at a
    time, and this thread reports the loss when the lease is over.
K9  At exit, holds at a server that may not answer are released in a thread of its own, and the exit waits for it for a
    moment. A Python that starts no threads by then (3.12) waits for that server. A release that waits for an answer has
    a limit of its own; if one has waited for long, the other holds of its kind are dropped without a wait.
K10 If no thread can be started (RLIMIT_NPROC, a cgroup's pids.max, no memory), that is reported once, and each later
    hold and each later look at a hold tries again. A caller that waits for something else meanwhile, as `run` does,
    comes back each second, and its thread does what is due, until there is a keeper's thread.
K11 A caller may close all descriptors of the process (`os.closerange`), as in hold.py, FH5. The thread then goes on
    with a new doorbell, and without events. One that sleeps on the old doorbell is replaced.
"""

from __future__ import annotations

import _thread
import atexit
import errno
import os
import sys
import time

from .._core.wait import Signal, Wait
from .._platform.fork import in_child
from ..events import report
from ..model import INFINITY
from .sync import wait_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from typing import Any

    from .._core.hold import HoldState
    from .._platform.interface import Environment, WatchSet


_LOOK_EVERY = 1.0
_LONGEST = 3600.0
_RETRIES = 4
"""The number of tries of a beat that has failed, before the next one would be due."""
_NEARLY = 1 / 16
"""The share of its interval by which a beat may come early (K2)."""
_AT_EXIT = "at interpreter shutdown"
"""Part of the error of a Python that is about to end and starts no thread: nothing to complain about."""
_AT_EXIT_WITHIN = 1.0
"""Seconds that the exit waits for a server (K9)."""
_LAST = -1_000_000
"""The priority of a finalizer of `multiprocessing` that runs after its children have been joined, and after others."""


class Keeper:
    """The keeper: the thread that keeps the holds, and their table; one per process."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._reset()
        in_child(self._reset)

    def _reset(self) -> None:
        self._mutex = self._env.watching()  # that of the watches (K3), with which it is used
        self._kept: dict[HoldState, int | None] = {}
        """All holds that are kept, with their keys among the watches."""
        self._due = INFINITY
        """A lower bound: no beat is due earlier."""
        self._watches: WatchSet | None = None
        self._watched: dict[int, HoldState] = {}
        self._unwatched: dict[HoldState, None] = {}
        """Holds of K3 to be looked at each second, because no event can be relied on."""
        self._beating: set[HoldState] = set()
        """Holds with a lease whose beat is under way (K8)."""
        self._next_look = 0.0
        self._awaited = False
        """Whether the thread waits for the watches: then a new watch needs no wake-up."""
        self._next_wake = 0.0
        self.wakes = INFINITY
        """The time at which the thread will wake, while it sleeps: it finds holds that are due later by itself (K2)."""
        self._thread: threading.Thread | None = None
        self._doorbell: tuple[int, int] | None = None
        self._bell: Signal | None = None
        """Replaces the doorbell on a system whose pipes cannot be waited for (Windows), where few files are watched."""
        self.is_stalled = False
        """Whether no thread could be started (K10)."""
        self.is_prepared = False

    def prepare(self) -> None:
        """Have this process's holds released when it ends (K6)."""
        if self.is_prepared:
            return
        finalizer = getattr(sys.modules.get("multiprocessing.util"), "Finalize", None)
        if finalizer is None:
            atexit.register(self.release_all)
        else:
            finalizer(None, self._release_after_threads, exitpriority=_LAST)
        self.is_prepared = True

    def keep(self, held: HoldState, every: float) -> None:
        """Beat for this hold every so many seconds until it is released."""
        with self._mutex:
            if held.released:
                return
            now, first = time.monotonic(), held not in self._kept
            if first:
                held.keeper = self  # K7
                held.next_beat = now + every
                if held.next_beat < self._due:
                    self._due = held.next_beat
                self._kept[held] = None
            if not held.watched:
                if not first:
                    self._is_served()
                elif self._thread is None or held.next_beat < self._next_wake:
                    self._see_to(held, now)
                return
        self._watch(held)
        with self._mutex:
            self._see_to(held, now)

    def _see_to(self, held: HoldState, now: float) -> None:
        """Have the thread run, and wake in time for the hold."""
        if held not in self._kept:
            return  # released meanwhile
        if self._thread is None:
            self._next_wake = min(held.next_beat, now + _LONGEST)
            self._is_served()
        elif (
            held.next_beat < self._next_wake
            or (held in self._unwatched and now + held.request.check_every < self._next_wake)
            or (self._watched and not self._awaited)
        ):
            self._ring()  # K2

    def _is_served(self) -> bool:
        """Whether the thread runs, or has nothing to do; starts it if possible (K5, K10)."""
        if self._thread is not None or not self._kept:
            return True
        try:
            self._start()
        except (OSError, RuntimeError, MemoryError, ImportError) as error:  # no thread, descriptor or memory is left
            self._thread = None
            if not self.is_stalled and not (_AT_EXIT in str(error) or sys.is_finalizing()):
                self.is_stalled = True
                are, it = ("is", "it") if len(self._kept) == 1 else ("are", "them")
                paths = ", ".join(held.path for held in self._kept)
                report(f"{paths} {are} held, but no thread keeps {it} fresh", error)
            return False
        self.is_stalled = False
        return True

    def attend(self) -> float | None:
        """Do what is due, if no thread can be started for it (K10). The seconds until the next time, or None if there
        is no need to call this again."""
        with self._mutex:
            self._next_wake = 0.0 if self._thread is None else self._next_wake
            if self._is_served():
                self.is_stalled = False
                return None
        try:
            self._do_what_is_due(time.monotonic())
        except Exception as error:  # K5
            report("while keeping holds", error)
        return _LOOK_EVERY

    def forget(self, held: HoldState) -> None:
        """Note that the hold has ended."""
        with self._mutex:
            if held.watched:
                self._unwatch(held)
            self._kept.pop(held, None)
            held.keeper = None

    def _unwatch(self, held: HoldState) -> None:
        self._unwatched.pop(held, None)
        if self._watches is not None:
            key = self._kept.get(held)
            if key is None:
                self._watches.discard_all_but(self._watched)  # K7
            else:
                self._watches.discard(key)
                self._watched.pop(key, None)
            if not self._watched:
                self._watches.close()
                self._watches, self._awaited = None, False

    def _release_after_threads(self) -> None:
        """Release at exit in a process of `multiprocessing` (K6). Up to Python 3.12, its children ran their finalizers
        before they waited for their threads."""
        import threading

        if sys.version_info < (3, 13):
            threading._shutdown()  # type: ignore[attr-defined]  # what it is about to call; at the second call a no-op
        self.release_all()

    def release_all(self) -> None:
        """Release at exit whatever this process still holds, unless it is to stay; a lost lock is left as it is.

        Daemon threads that wait will never get to leave their queues. Their tickets are removed first, and nobody wakes
        them: a thread that acquired now would die while it holds.
        """
        env = self._env
        far = [path for path in list(env.local_queues) if env.may_block(path)]
        held_far = [held for held in list(env.holds.values()) if not held.waits and env.may_block(held.path)]
        for path, queue in env.local_queues.copy().items():
            if path not in far:
                _drop_tickets(queue)
        try:
            env.operations.finish_broken_off()  # J4
        except Exception as error:
            print(f"holdfast: at exit: {error}", file=sys.stderr)  # noqa: T201
        is_silent = False
        for held in list(env.holds.values()):
            if held not in held_far:
                began = time.monotonic()
                _release_at_exit(held, drops=is_silent and held.waits)
                is_silent = is_silent or (held.waits and time.monotonic() - began >= _AT_EXIT_WITHIN)

        def release_far() -> None:
            """Release at servers that may not answer (K9)."""
            env.operations.about_to_hang()
            for path in far:
                if path in env.local_queues:
                    _drop_tickets(env.local_queues[path])
            for held in held_far:
                _release_at_exit(held)

        if (far or held_far) and not ends_within(_AT_EXIT_WITHIN, release_far):
            for held in held_far:
                if not held.released or held in env.operations.running:
                    text = f"{held.path}: {env.server_at(held.path)} does not answer, so its lock is left"
                    print(f"holdfast: at exit: {text}", file=sys.stderr)  # noqa: T201

    def _watch(self, held: HoldState) -> None:
        """Have events tell of its loss; a loss that came before the watch is found here."""
        reached = held.tells_loss and self._env.events_reach(held.path)
        with self._mutex:
            if held not in self._kept or self._kept[held] is not None or held in self._unwatched:
                return  # released meanwhile, or another handle of it came first
            try:
                if reached and self._watches is None:
                    self._watches = self._env.watch_set()
                if reached and self._watches is not None:
                    key = self._watches.add(held.path)
                    self._kept[held], self._watched[key] = key, held
            except OSError:
                pass  # lost already, or no watch is left
            if self._kept[held] is None:
                self._look_at(held)
                return
        try:
            if held.verify():
                return
        except OSError:
            pass  # a look will tell
        with self._mutex:
            if held in self._kept:
                self._look_at(held)

    def _look_at(self, held: HoldState) -> None:
        self._unwatched[held] = None
        self._next_look = min(self._next_look, time.monotonic() + held.request.check_every)

    def _start(self) -> None:
        if self._doorbell is None and self._bell is None:
            try:
                self._doorbell = self._env.pipe()
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                self._bell = Signal()
        import threading

        self._thread = threading.Thread(target=self._run, name="holdfast-keeper", daemon=True)
        try:
            start(self._thread)
        except BaseException:
            self._thread = None
            raise

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.set()
            return
        try:
            ring(self._doorbell)
        except OSError:  # its other end is still there for the sleeping thread, which nobody wakes any more
            self._drop_doorbell()
            self._end_watches()
            self._thread = None
            self._is_served()

    def _drop_doorbell(self) -> None:
        """Forget the doorbell, which a caller has closed (K11)."""
        for fd in self._doorbell or ():
            self._env.disown(fd)
        self._doorbell = None

    def _run(self) -> None:
        try:
            self._keep_all()
        finally:
            import threading

            with self._mutex:
                if self._thread is threading.current_thread():
                    self._thread, self.wakes = None, INFINITY

    def _keep_all(self) -> None:
        import threading

        generation, this = self._env.generation, threading.current_thread()
        while generation == self._env.generation and self._thread is this:  # else it was replaced (K11)
            try:
                wait = self._turn()
            except Exception as error:  # K5; a full descriptor table, for one
                report("while keeping holds", error)
                wait = Wait((), time.monotonic() + _LOOK_EVERY)
            if wait is None:
                return
            wait_for(wait)

    def _turn(self) -> Wait | None:
        """Do what is due. The next wait, or None to end the thread (K1)."""
        with self._mutex:
            awaited, self._awaited = self._awaited, False
            if awaited and self._watches is not None:
                self._watches.woken()
        self._answer()
        now = time.monotonic()
        with self._mutex:
            if now >= self._next_wake:
                self.wakes = INFINITY
                self._find()
            if not self._kept:
                if now < self._next_wake:
                    return self._until_next_wake()
                self._thread = None
                return None
        self._do_what_is_due(now)
        with self._mutex:
            if not self._kept:
                return self._until_next_wake()  # the turn after that ends the thread
            if now >= self._due:
                self._due = min((held.next_beat for held in list(self._kept)), default=INFINITY)
            self._next_wake = min(self._due, self.wakes, now + _LONGEST)
            events: tuple[int, ...] = ()
            if self._watches is not None:
                events, self._awaited = self._watches.fds(), True
            if self._unwatched:
                self._next_wake = min(self._next_wake, self._next_look)
            if self._watched and not events:
                self._next_wake = min(self._next_wake, now + _LOOK_EVERY)
            return self._until_next_wake(events)

    def _do_what_is_due(self, now: float) -> None:
        with self._mutex:
            look = []
            if self._unwatched and now >= self._next_look:
                look = list(self._unwatched)
                self._next_look = now + min(held.request.check_every for held in look)
            if self._watches is not None:  # in any case: an untaken change would keep the descriptor readable
                try:
                    look += [self._watched[key] for key in self._watches.changed() if key in self._watched]
                except OSError:
                    self._end_watches()
            beat = [held for held in list(self._kept) if _is_nearly_due(held, now)] if now >= self._due else []
        for held in look:
            self._attend(held, self._look)
        for held in beat:
            self._attend(held, self._beat)

    def _find(self) -> None:
        """Keep the holds that have been acquired since the last turn (K2)."""
        for held in list(self._env.holds.values()):
            every, watched = held.beat_every, held.watched
            if every == INFINITY or watched or held.waits or held in self._kept or not held.refs:
                continue
            held.keeper = self  # K7
            held.next_beat = held.acquired + every
            self._due = min(self._due, held.next_beat)
            self._kept[held] = None
            if held.released:
                self.forget(held)  # it may have ended before it had its keeper

    def _answer(self) -> None:
        """Answer the doorbell: a later ring is a new one."""
        if self._doorbell is None:
            with self._mutex:
                self._bell = Signal()
            return
        try:
            os.read(self._doorbell[0], 1024)
        except BlockingIOError:
            pass
        except OSError:
            with self._mutex:
                self._drop_doorbell()
                self._doorbell = self._env.pipe()

    def _end_watches(self) -> None:
        """Look at all holds each second from now on: no event comes any more (K11)."""
        for held in self._watched.values():
            self._kept[held] = None
            self._look_at(held)
        self._watched.clear()
        self._watches, self._awaited = None, False

    def _until_next_wake(self, events: tuple[int, ...] = ()) -> Wait:
        self.wakes = self._next_wake
        if self._doorbell is None:
            return Wait((), self._next_wake, signal=self._bell)
        return Wait((self._doorbell[0], *events), self._next_wake)

    def _attend(self, held: HoldState, do: Callable[[HoldState], None]) -> None:
        try:
            do(held)
        except Exception as error:  # K5
            report(f"while keeping {held.path}", error)
        if held.lost or held.released:
            self.forget(held)

    def _look(self, held: HoldState) -> None:
        if not held.released and not held.verify():
            self._tell_lost(held)

    def _beat(self, held: HoldState) -> None:
        held.next_beat = time.monotonic() + held.beat_every
        if not held.released and not held.verify():
            self._tell_lost(held)
        elif held.lease is None:
            held.beat()
        else:
            held.next_beat = min(held.next_beat, time.monotonic() + max(0.0, held.lease.left()))
            if held not in self._beating:
                self._beating.add(held)
                call_aside(lambda: self._beat_aside(held), f"in the heartbeat of {held.path}")

    def _beat_aside(self, held: HoldState) -> None:
        """Send the beat of a hold with a lease, in a thread of its own (K8)."""
        if self._env.may_block(held.path):
            self._env.operations.about_to_hang()
        try:
            held.beat()
        except OSError:
            if not (held.released or held.lost):
                held.next_beat = time.monotonic() + held.beat_every / _RETRIES
                raise
        finally:
            self._env.operations.about_to_hang(False)  # where no thread can be started, this one is a caller's (K10)
            self._beating.discard(held)
            if held.lease.is_over():
                held.next_beat = 0.0
            with self._mutex:
                if held in self._kept and held.next_beat < self._due:
                    self._due = held.next_beat
                    self._ring()

    def _tell_lost(self, held: HoldState) -> None:
        """Report a loss in a thread of its own (K3)."""
        self.forget(held)
        call_aside(held.check, f"in on_lost for {held.path}")


def _is_nearly_due(held: HoldState, now: float) -> bool:
    every = held.beat_every
    return held.next_beat - (every * _NEARLY if every < INFINITY else 0.0) <= now


def _drop_tickets(queue: Any) -> None:
    for entry in queue.entries.copy():
        entry.drop_place()


def _release_at_exit(held: HoldState, *, drops: bool = False) -> None:
    try:
        if held.request.retained:
            held.abandon()
        elif drops:
            for ref in held.refs.copy():
                held.drop(ref)
        else:
            held.release()
    except Exception as error:  # the interpreter is going down: say it, and go on with the next
        print(f"holdfast: at exit: {error}", file=sys.stderr)  # noqa: T201


def ends_within(seconds: float, call: Callable[[], object]) -> bool:
    """Whether a call, in a thread of its own, ends within `seconds`."""
    import threading

    gate = _thread.allocate_lock()
    gate.acquire()

    def run() -> None:
        try:
            call()
        finally:
            gate.release()

    try:
        start(threading.Thread(target=run, name="holdfast-exit", daemon=True))
    except RuntimeError:
        run()
    return gate.acquire(timeout=seconds)


def start(thread: threading.Thread) -> None:
    """Start a thread that takes no signals: one that arrived there would not interrupt a wait in the main thread."""
    import _signal as signal  # type: ignore[import-not-found]  # without its enumerations, which take 3 ms to load

    blocking = hasattr(signal, "pthread_sigmask")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()) if blocking else None
    try:
        thread.start()
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def ring(doorbell: tuple[int, int] | None, write: Callable[[int, bytes], int] = os.write) -> None:
    """Wake the thread that waits for the first of these descriptors."""
    if doorbell is not None:
        try:
            write(doorbell[1], b"!")
        except BlockingIOError:
            pass  # it is ringing already


def call_aside(callback: Callable[[], object], what: str) -> None:
    """Call it in a thread of its own, so that it delays nothing here; `what` names it in the report of a failure."""

    def run() -> None:
        try:
            callback()
        except Exception as error:
            report(what, error)

    import threading

    try:
        threading.Thread(target=run, name="holdfast-lost", daemon=True).start()
    except RuntimeError:
        run()  # no thread can be started, or the interpreter ends (Python 3.12): better here than not at all
