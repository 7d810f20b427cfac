"""The synchronous driver: runs a generator of the engine and does its waiting, in the calling thread."""

from __future__ import annotations

import _thread
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import TypeVar

    from .._core.wait import Signal, Wait
    from .._platform.interface import Environment
    from .._platform.operations import Operation

    T = TypeVar("T")

_local = _thread._local()


_LONGEST = 3600.0
"""Seconds. `poll` takes no more than 2**31 ms, and waking early is harmless."""


def perform(env: Environment, steps: Generator[Wait, None, T]) -> T:
    """Run to the end, as one operation: whatever interrupts it, nothing that it made is left."""
    operation = env.operations.begin(env)
    try:
        result = drive(steps, operation)
    except BaseException:
        env.operations.abort(operation)
        raise
    env.operations.end(operation)
    return result


def drive(steps: Generator[Wait, None, T], operation: Operation | None = None) -> T:
    """Run to the end. An exception that arrives while waiting (Ctrl-C) closes the generator, which cleans up."""
    try:
        while True:
            wait_for(next(steps))
            if operation is not None:
                operation.env.operations.resume(operation)  # another greenlet may have run during the wait
    except StopIteration as done:
        result: T = done.value
        return result
    except BaseException:
        steps.close()
        raise


def wait_for(wait: Wait) -> None:
    """Return when a descriptor is ready or the signal is set, or at the deadline."""
    pause = min(wait.deadline - time.monotonic(), _LONGEST)
    if wait.signal is not None:
        _wait_for_signal(wait.signal, max(0.0, pause))
        return
    if not wait.fds and not wait.writes:
        if pause > 0:
            time.sleep(pause)
        return
    import select

    if hasattr(select, "poll"):
        poll = select.poll()
        for fd in {*wait.fds, *wait.writes}:
            poll.register(fd, select.POLLIN * (fd in wait.fds) | select.POLLOUT * (fd in wait.writes))
        poll.poll(max(0.0, pause) * 1000)
    else:
        from .._platform.handles import wait_for_handles

        if not wait_for_handles(wait.fds, max(0.0, pause)):
            select.select(wait.fds, wait.writes, (), max(0.0, pause))


def _wait_for_signal(signal: Signal, pause: float) -> None:
    gate = _thread.allocate_lock()
    gate.acquire()

    def open_gate() -> None:
        try:
            gate.release()
        except RuntimeError:
            pass  # it is open already

    signal.subscribe(open_gate)
    try:
        gate.acquire(timeout=pause)
    finally:
        signal.unsubscribe()


def caller() -> tuple[object, ...]:
    """A name for this thread that no later thread will have; the number of a thread is given out again.

    A tuple, because a task is named by its thread and itself: a wait blocks all callers whose names begin with its own.
    """
    global _local
    if type(_local) is not _thread._local:
        _local = _thread._local()  # gevent has made greenlets of threads since this was imported
    try:
        name: tuple[object, ...] = _local.name
    except AttributeError:
        name = _local.name = (object(),)
    return name
