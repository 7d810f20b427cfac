"""The synchronous driver: runs a generator of the engine and does its waiting, in the calling thread.

CX1  A cancelled call ends like an interrupted one: the generator is closed, which cleans up, and never resumed. So a
     cancelled waiter leaves nothing behind, as after Ctrl-C.
CX2  The driver checks for a cancellation before the first step, and after each wait before the next step. So a lock
     that became free only after the cancellation is not acquired.
CX3  A descriptor wakes the wait itself. An event cannot, nor can a descriptor wake a thread that waits behind another
     one of this process for the same lock: these are checked every 50 ms. The engine's own wake-ups stay as prompt as
     without `cancel`.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from _weakref import ref as weak_reference
from errno import EBADF

from .._core.wait import Signal, Steps, Wait
from .._platform.operations import waits
from ..errors import AcquireCancelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from .._platform.interface import Environment
    from .._platform.operations import Operation

    T = TypeVar("T")

_local = _thread._local()


_LONGEST = 3600.0
"""Seconds of one wait: `poll` takes no more than 2**31 ms, and waking early is harmless."""


LOOK_EVERY = 0.05
"""Seconds between checks of what cannot wake a wait (CX3)."""


class Cancellation:
    """A way to end a call from outside: an object with `is_set`, such as a `threading.Event`, or a descriptor, or an
    object with a `fileno`, that becomes readable.

    TypeError for anything else, OSError for a descriptor that is not open.
    """

    def __init__(self, cancel: object, path: str, protocol: str) -> None:
        self._is_set: Callable[[], bool] | None = getattr(cancel, "is_set", None)
        self.fds: tuple[int, ...] = ()
        self._path, self._protocol = path, protocol
        self._began = time.monotonic()
        if not callable(self._is_set):
            fileno = getattr(cancel, "fileno", None)
            if isinstance(cancel, int) and not isinstance(cancel, bool):
                fd = cancel
            elif callable(fileno):
                fd = int(fileno())
            else:
                raise TypeError(f"cancel must be a threading.Event or a descriptor, not {cancel!r}")
            import select

            if not hasattr(select, "poll"):
                raise TypeError("cancel must be a threading.Event: this system cannot wait for descriptors as well")
            is_ready(fd)
            self.fds = (fd,)

    def check(self) -> None:
        """Raise AcquireCancelled if it is set; OSError for a descriptor that is not open."""
        if self._is_set() if self._is_set is not None else is_ready(self.fds[0]):
            waited = time.monotonic() - self._began
            raise AcquireCancelled(
                f"waiting for {self._path} was cancelled by the caller after {waited:.1f} s; nothing of it is left",
                path=self._path,
                protocol=self._protocol,
            )

    def wait_for(self, wait: Wait) -> None:
        """Wait like the function of that name; AcquireCancelled if it is set meanwhile."""
        while True:
            wakes = bool(self.fds) and wait.signal is None
            until = wait.deadline if wakes else min(wait.deadline, time.monotonic() + LOOK_EVERY)
            fds = (*wait.fds, *self.fds) if wakes else wait.fds
            woken = wait_for(Wait(fds, until, wait.signal, wait.writes))
            self.check()
            if woken or time.monotonic() >= wait.deadline:
                return


def perform(env: Environment, steps: Steps[T], cancel: Cancellation | None = None) -> T:
    """Run the steps to the end, as one operation: whatever interrupts it, it leaves nothing behind."""
    return env.operations.perform(env, lambda operation: drive(steps, operation, cancel))


def drive(steps: Steps[T], operation: Operation | None = None, cancel: Cancellation | None = None) -> T:
    """Run the steps to the end. An exception during a wait (Ctrl-C) closes the generator, which cleans up."""
    wait = wait_for if cancel is None else cancel.wait_for
    loop = waits.loop
    try:
        if loop:  # a callback of a task called this: its loop stands still, and reads no events (inotify.py, N6)
            waits.loop = 0
        if cancel is not None:
            cancel.check()  # CX2
        while True:
            pending = next(steps)
            if operation is not None:
                operation.env.operations.resume(None)  # other greenlets may run during the wait (operations.py, J8)
            wait(pending)
            if operation is not None:
                operation.env.operations.resume(operation)
    except StopIteration as done:
        result: T = done.value
        return result
    except BaseException:
        if operation is not None:
            operation.env.operations.resume(operation)
        steps.close()
        raise
    finally:
        if loop:
            waits.loop = loop


def wait_for(wait: Wait) -> bool:
    """Return when a descriptor is ready or the signal is set, or at the deadline. False if it was the deadline."""
    pause = min(wait.deadline - time.monotonic(), _LONGEST)
    if wait.signal is not None:
        return _wait_for_signal(wait.signal, max(0.0, pause))
    if not wait.fds and not wait.writes:
        if pause > 0:
            time.sleep(pause)
        return False
    import select

    if hasattr(select, "poll"):
        poll = select.poll()
        for fd in {*wait.fds, *wait.writes}:
            poll.register(fd, select.POLLIN * (fd in wait.fds) | select.POLLOUT * (fd in wait.writes))
        return bool(poll.poll(max(0.0, pause) * 1000))
    from .._platform.handles import wait_for_handles

    if not wait_for_handles(wait.fds, max(0.0, pause)):
        select.select(wait.fds, wait.writes, wait.writes, max(0.0, pause))  # a connection that fails is exceptional
    return True  # or perhaps not, but to wake early is harmless


def is_ready(fd: int) -> bool:
    """Whether it can be read without waiting, or its other end is closed. OSError if it is not open."""
    import select

    poll = select.poll()
    try:
        poll.register(fd, select.POLLIN)
        ready = poll.poll(0)
    except (ValueError, OverflowError):  # no descriptor's number: -1, as of a closed socket, or too large
        ready = [(fd, select.POLLNVAL)]
    if ready and ready[0][1] & select.POLLNVAL:
        raise OSError(EBADF, os.strerror(EBADF))
    return bool(ready)


def _wait_for_signal(signal: Signal, pause: float) -> bool:
    gate = _thread.allocate_lock()
    gate.acquire()

    def open_gate() -> None:
        try:
            gate.release()
        except RuntimeError:
            pass  # it is open already

    signal.subscribe(open_gate)
    try:
        return gate.acquire(timeout=pause)
    finally:
        signal.unsubscribe()


def caller() -> tuple[object, ...]:
    """A name for this thread that no later thread will have; the system reuses the numbers of threads.

    A tuple, because a task is named by its thread and itself: a wait blocks all callers whose names begin with its own.
    """
    global _local
    if type(_local) is not _thread._local:
        _local = _thread._local()  # gevent has made greenlets of threads since this was imported
    try:
        name: tuple[object, ...] = _local.name
    except AttributeError:
        name = _local.name = (_Caller(),)
    return name


class _Caller:
    """A thread, or a greenlet that acts as one; equal to itself alone."""

    __slots__ = ("_name", "_thread")

    def __init__(self) -> None:
        threads, this = getattr(sys.modules.get("threading"), "enumerate", None), _thread.get_ident()
        thread, self._name = None, "MainThread"  # without `threading`, there are no others yet
        if threads is not None:
            # Not `current_thread`, which makes a Thread for one that was not started by it, and may keep that for good.
            thread = next((one for one in threads() if one.ident == this), None)
            self._name = f"thread {this}" if thread is None else thread.name
        self._thread = None if thread is None else weak_reference(thread)  # which may have the hold

    @property
    def name(self) -> str:
        """The name of the thread, for events that another one reports; its first one, if the thread is gone."""
        thread = None if self._thread is None else self._thread()
        return self._name if thread is None else thread.name
