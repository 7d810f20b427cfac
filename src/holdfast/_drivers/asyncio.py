"""The asyncio driver: runs the same generators as the synchronous one, and leaves the waiting to the event loop.

A step of the engine is microseconds of system calls, and runs on the loop. Clean-up never yields, so it cannot be
cancelled half-way. Only where a step may take long (a network filesystem, `fsync`), each step runs in a thread of its
own:

B1  Nothing resumes or closes the generator while a step of it runs. A task cancelled meanwhile waits for its end, then
    cleans up in a thread as well, and only then lets the cancellation go on, however often it was cancelled.
B2  A coroutine that is closed instead, or whose loop is closed, cannot wait for anything. If a step is running, its
    thread cleans up at the end.
B3  The loop's executor would not do: its threads may all be waiting for the very lock that a step would release.
B5  Where a step asks a server that may not answer, the thread is a daemon, and is left behind as in apart.py: at the
    caller's deadline, or `GRACE` after a cancellation. It then cleans up when the step has ended, as in B2.
B4  A task that waits for its own lock under an `asyncio.timeout` (or `wait_for`, since Python 3.12) is left to wait, as
    that wait has an end. asyncio does not say whether there is a timeout, but a timeout refers to its task, and the
    garbage collector lists all referrers. That searches all objects for tens of milliseconds, so it happens only where
    WouldDeadlock is the alternative. Other timeouts (a task that cancels this one, anyio's scopes) are not seen: there
    WouldDeadlock is raised.
B6  A `break` in `async for` leaves the generator to a task of the loop's own, which closes it two rounds later. So a
    task that would wait forever for a lock that its generator had entered first waits for those rounds.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import math
import select
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from .._core.wait import Signal, Steps, Wait
from .._platform import environment
from .._platform.interface import Environment
from .._platform.operations import Operation, waits
from ..errors import HoldfastError
from . import sync
from .apart import GRACE, Apart, as_part_of

if TYPE_CHECKING:
    from .._platform.windows import Alarm

T = TypeVar("T")

_LONGEST = 3600.0
_SPARE = 1.0
"""Seconds that a timeout of asyncio may be late, on a busy loop, before we ask whether it is still to come."""
_ROUNDS = 3
"""Rounds of the loop: to start the task that closes a generator, to close it, and one to spare."""
_POLL = 0.025
"""Seconds between looks on a loop that cannot wait for descriptors."""


async def perform(env: Environment, steps: Steps[T], *, in_threads: bool = False, apart: Apart | None = None) -> T:
    """Run the steps to the end, as one operation: see `sync.perform`."""
    operation = begin(env, caller())
    result = await drive(steps, operation, in_threads=in_threads, apart=apart)
    env.operations.end(operation)
    return result


def call_within(env: Environment, call: Callable[[], T]) -> T:
    """The result of a call that does not wait, as one operation: no descriptor that it has opened stays open."""
    return env.operations.perform(env, lambda _: call(), _task(caller()))


def begin(env: Environment, me: tuple[Any, ...]) -> Operation:
    """A new operation of this `caller`."""
    return env.operations.begin(env, _task(me))


def _task(me: tuple[Any, ...]) -> Any:
    """The task, or its substitute, which tells whether it has ended."""
    return me[-1] or _Untasked(None)


class _Untasked:
    """Substitute for the task of a coroutine that none runs: it lives as long as the steps that it drives."""

    def __init__(self, steps: Steps[object] | None) -> None:
        self._steps = None if steps is None else weakref.ref(steps)

    def __call__(self) -> _Untasked | None:
        if self._steps is not None:
            steps = self._steps()
            if steps is None or getattr(steps, "gi_frame", None) is None:
                return None
        return self

    def done(self) -> bool:
        return False


class _Stepping:
    """Substitute for the task of steps that run in threads. While one runs, the operation is not over, though the
    collector may have the task already, and its coroutine is still to be closed (B2)."""

    def __init__(self, task: Callable[[], Any], job: Callable[[], Future[Any] | None]) -> None:
        self._task, self._job = task, job

    def __call__(self) -> Any:
        job = self._job()
        return self._task() if job is None or job.done() else self

    def done(self) -> bool:
        return False


async def drive(steps: Steps[T], operation: Operation, *, in_threads: bool = False, apart: Apart | None = None) -> T:
    """Run the steps to the end. Any other end (a cancellation) closes the generator, and then aborts the operation.

    `apart`: the steps ask a server, and the wait for it is bounded (B5).
    """
    if in_threads:
        steps = as_part_of(operation, steps)
    if isinstance(operation.task, _Untasked):
        operation.task = _Untasked(steps)
    if in_threads:
        return await _drive_in_threads(steps, operation, apart)
    loop, operations = id(asyncio.get_running_loop()), operation.env.operations
    operation.steps = weakref.ref(steps)
    try:
        while True:
            wait = _next(steps, loop)
            operations.leave_tasks()  # other tasks run during the wait (operations.py, J8)
            await wait_for(wait)
            operations.resume(operation)
    except StopIteration as done:
        result: T = done.value
        return result
    except BaseException:
        operations.giving_way(lambda: _clean_up(steps, operation))  # the collector may have come
        raise


async def wait_for(wait: Wait) -> None:
    """Return when a descriptor is ready or the signal is set, or at the deadline. Nothing stays in the loop."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    pause = min(wait.deadline - time.monotonic(), _LONGEST)
    readers: list[int] = []
    writers: list[int] = []
    timer: asyncio.TimerHandle | None = None
    alarm = None if hasattr(select, "poll") else _alarm(wait, woken)
    try:
        try:
            for fd in wait.fds if alarm is None else ():
                loop.add_reader(fd, _wake, woken)
                readers.append(fd)
            for fd in wait.writes:
                loop.add_writer(fd, _wake, woken)
                writers.append(fd)
        except (NotImplementedError, OSError):  # Windows' proactor; the kernel's table of watched descriptors is full
            pause = min(pause, _POLL)
        timer = loop.call_later(max(0.0, pause), _wake, woken)
        if wait.signal is not None:
            wait.signal.subscribe(_Subscription(woken))
        await woken
    finally:
        if wait.signal is not None:
            wait.signal.unsubscribe()
        if timer is not None:
            timer.cancel()
        if alarm is not None:
            alarm.stop()
        for fd in readers:
            loop.remove_reader(fd)
        for fd in writers:
            loop.remove_writer(fd)


def _alarm(wait: Wait, woken: asyncio.Future[None]) -> Alarm | None:
    """An alarm that wakes the loop for handles of Windows, for which it cannot wait; None if there are none."""
    from .._platform.handles import handles_of

    if not handles_of(wait.fds):
        return None
    from .._platform.windows import Alarm

    return Alarm(wait.fds, _Subscription(woken))


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def _wake_if_there(woken: Callable[[], asyncio.Future[None] | None]) -> None:
    there = woken()
    if there is not None:
        _wake(there)


async def drive_to_the_end(env: Environment, steps: Steps[T]) -> T:
    """Run the steps to the end, whatever is cancelled meanwhile; a cancellation is raised only then."""
    task = asyncio.ensure_future(perform(env, steps))
    env.operations.leave_tasks()  # other tasks run during the wait (operations.py, J8)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        raise cancelled from task.exception()
    return task.result()


class _Subscription:
    """Wakes a wait from any thread. It does not keep the wait alive: a waiter on a dropped loop can be collected."""

    __slots__ = ("_gone", "_loop", "_woken")

    def __init__(self, woken: asyncio.Future[None]) -> None:
        self._gone: list[object] = []
        self._woken = weakref.ref(woken, self._gone.append)
        self._loop = weakref.ref(woken.get_loop())

    def __call__(self) -> None:
        # Not the future: meanwhile another thread may close the loop, and have the collector look for what it has left.
        loop = self._loop()
        if loop is None or self._gone:
            raise RuntimeError("the waiter is gone")
        loop.call_soon_threadsafe(_wake_if_there, self._woken)


async def in_thread(call: Callable[[], T]) -> T:
    """The result of `call`, which runs to its end in a thread, whatever is cancelled meanwhile (B1)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()  # closed after its loop was: no task is kept waiting
    return await _end_of(_start(call))


def caller() -> tuple[object, ...]:
    """A name for this task that begins with its thread's; see `sync.caller`.

    It has a weak reference to the task: so a task that waits or holds on a dropped loop can be collected.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None  # collected when its loop was closed, and leaves an `async with`
    return (*sync.caller(), None if task is None else weakref.ref(task))


def seconds_to_timeout() -> float | None:
    """The seconds that an `asyncio.timeout` leaves this task, and one more; None without a timeout (B4)."""
    task = asyncio.current_task()
    if task is None:
        return None
    around = gc.get_referrers(task)
    # An object whose attributes are a dictionary already refers to that, and only the dictionary refers to the task.
    around += gc.get_referrers(*[one for one in around if type(one) is dict])
    moments = [moment for one in around if type(one) is asyncio.Timeout and (moment := _ends(one)) is not None]
    if not moments:
        return None
    return max(0.0, min(moments) - asyncio.get_running_loop().time()) + _SPARE


async def has_released(env: Environment) -> bool:
    """Whether a hold of this task is released in the next rounds of the loop, as by a generator left early (B6)."""
    me = caller()
    held = [ref for one in list(env.holds.values()) for ref in one.refs.copy() if ref.context == me]
    current = env.operations.current()
    env.operations.leave_tasks()  # J8
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)
    env.operations.resume(current)
    return any(ref not in ref.held.refs for ref in held)


def _ends(timeout: asyncio.Timeout) -> float | None:
    """The time at which it cancels its task, by the loop's clock; None if it never will."""
    when = timeout.when()
    if when is None or when == math.inf:
        return None
    try:
        timeout.reschedule(when)  # as it is; RuntimeError if it has been left
    except RuntimeError:
        return None
    return when


def _next(steps: Steps[T], loop: int) -> Wait:
    outer, waits.loop = waits.loop, loop
    try:
        return next(steps)
    finally:
        waits.loop = outer


def _clean_up(steps: Steps[T], operation: Operation) -> None:
    def close_and_abort() -> None:
        try:
            steps.close()
        finally:
            operations.abort(operation)

    operations = operation.env.operations
    operations.resume_within(operation, close_and_abort)


async def _drive_in_threads(steps: Steps[T], operation: Operation, apart: Apart | None) -> T:
    loop = id(asyncio.get_running_loop())

    def step() -> tuple[Wait | None, T | None]:
        try:
            return _next(steps, loop), None
        except StopIteration as done:  # no future takes this one
            return None, done.value

    job: Future[tuple[Wait | None, T | None]] | None = None
    cleaned: Future[object] = Future()
    cleaning, is_cleaning = threading.RLock(), False
    if operation.task is not None:
        operation.task = _Stepping(operation.task, lambda: job)

    def clean_up() -> None:
        nonlocal is_cleaning
        # Ctrl-C may have kept the job from beginning, or us from seeing its end, for which this waits (B1).
        if job is not None and not job.cancel():
            job.exception()
        with cleaning:
            if is_cleaning:
                return  # the collector came in the midst of it, and has closed the coroutine
            try:
                is_cleaning = True
                _clean_up(steps, operation)
            finally:
                is_cleaning = False

    try:
        while True:
            while apart is not None and apart.is_crowded(time.monotonic()):
                await asyncio.sleep(_POLL)
            job = Future()  # known before its thread begins
            _start(step, apart, job)
            wait, result = await _end_of(job, clean_up, apart, math.inf if apart is None else apart.until)
            if wait is None:
                return result  # type: ignore[return-value]
            await wait_for(wait)
    except GeneratorExit:
        operation.task = _Untasked(None)  # the task may end now, the operation does when the thread has (J4)
        if job is None:
            clean_up()  # it has not begun (apart.py, AP5)
        else:
            job.add_done_callback(lambda _: clean_up())  # B2; at once, if it has ended
        raise
    except BaseException:
        try:
            if apart is None:
                await _end_of(_start(clean_up, None, cleaned))
            else:
                await _clean_up_apart(apart, job, clean_up, operation, cleaned)
        except BaseException:
            if cleaned.cancel():  # a second Ctrl-C came before it had begun
                if apart is None:
                    clean_up()
                else:
                    _start(clean_up, apart)
            raise
        raise


async def _clean_up_apart(
    apart: Apart,
    job: Future[Any] | None,
    clean_up: Callable[[], object],
    operation: Operation,
    cleaned: Future[object],
) -> None:
    """Clean up where that may last forever (B5)."""
    operation.task = _Untasked(None)  # as above
    if job is not None and not job.cancel() and not job.done():
        here = threading.get_ident()
        # In the thread of the job; in another one, if the job has ended this very moment.
        job.add_done_callback(lambda _: clean_up() if threading.get_ident() != here else _start(clean_up, apart))
        return
    now = time.monotonic()
    try:
        _start(clean_up, apart, cleaned)
        await _end_of(cleaned, None, apart, now + (GRACE if now < apart.until else 0.0))
    except HoldfastError:
        pass  # the server does not answer: what is raised says why the steps have ended


async def call_apart(apart: Apart, function: Callable[[], T]) -> T:
    """Call the function like `Apart.call`."""
    return await _end_of(_start(function, apart), None, apart, apart.until)


def _start(call: Callable[[], T], apart: Apart | None = None, job: Future[T] | None = None) -> Future[T]:
    """Start the call in a thread of its own. Returns its job, which the caller may make, to know it before."""
    job = job or Future()
    context = contextvars.copy_context()

    def run() -> None:
        if apart is not None:
            apart.env.operations.about_to_hang()
        if job.set_running_or_notify_cancel():
            try:
                result = context.run(call)
            except BaseException as error:
                job.set_exception(error)
            else:
                job.set_result(result)
        if apart is not None:  # of what was cancelled, too, which was left behind, perhaps
            apart.has_come_back(job)

    try:
        threading.Thread(target=run, name="holdfast-step", daemon=apart is not None).start()
    except RuntimeError:
        run()  # no thread can be started: better late than never
    except BaseException:  # a KeyboardInterrupt; whether the thread has begun is not known
        if not job.cancel():
            job.exception()  # waits for its end (B1)
        raise
    return job


async def _end_of(
    job: Future[T],
    unheard: Callable[[], object] | None = None,
    apart: Apart | None = None,
    until: float = math.inf,
) -> T:
    """The result of a job, once it has ended; a cancellation is raised only then (B1).

    `unheard` is called in its thread if the loop was closed meanwhile (B2). With `apart`, the wait ends at `until`, or
    a moment after a cancellation (B5).
    """
    ended = Signal()

    def tell(_job: object) -> None:
        if not ended.set() and unheard is not None:
            unheard()

    job.add_done_callback(tell)
    cancelled: asyncio.CancelledError | None = None
    began = time.monotonic()
    environment().operations.leave_tasks()  # other tasks run during the wait (operations.py, J8)
    while not job.done():
        try:
            await wait_for(Wait((), until, ended))
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
            if apart is not None:
                until = min(until, time.monotonic() + GRACE)
        if apart is not None and not job.done() and time.monotonic() >= until:
            apart.leave_behind(job)
            raise cancelled or apart.no_answer(time.monotonic() - began)
    if cancelled is not None:
        raise cancelled from job.exception()
    return job.result()
