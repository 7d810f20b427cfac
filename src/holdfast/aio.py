"""The asyncio face of the engines: `AsyncLock`, `AsyncSemaphore`, their handle, and several locks at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ._core.attempt import Refusal
from ._core.hold import HoldRef
from ._core.messages import refused
from ._core.wait import Steps
from ._drivers.apart import apart_of
from ._drivers.asyncio import (
    begin,
    call_apart,
    call_within,
    caller,
    drive,
    drive_to_the_end,
    has_released,
    in_thread,
    perform,
    seconds_to_timeout,
)
from ._drivers.background import call_aside
from ._platform import environment
from ._platform.operations import Operation
from .errors import AcquireTimeout, EngineUnavailable, LockLost, WouldDeadlock
from .lock import (
    UNSET,
    BaseHold,
    BaseLock,
    Exit,
    Leaving,
    Resource,
    Slots,
    keep,
    leave_to_statement,
    leaving,
    require_unreleased,
)
from .model import Record, SemaphoreStatus, Status
from .several import (
    BaseHolds,
    Plan,
    checked,
    finished,
    give_up_of_all,
    limit_of,
    note,
    raise_first,
    release_all,
    release_in_turn,
)

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, object]])
T = TypeVar("T")


class AsyncHold(BaseHold):
    """One acquisition of a lock by a task. The handle owns it, not the task. `async with` releases it at the end.

    `lost` and `ensure_held` look at the lock file at once, in the calling thread.
    """

    __slots__ = ("_may_block",)

    def __init__(self, ref: HoldRef, may_block: bool) -> None:
        super().__init__(ref)
        self._may_block = may_block

    async def release(self) -> None:
        """Release the lock, from any task, as `Hold.release` does.

        A cancellation cannot stop it half-way: it is raised after the release.
        """
        if self._held.waits:
            try:
                await drive_to_the_end(self._held.env, self._held.releasing(self._ref))
            finally:
                if not self._is_released():
                    self._release()  # Ctrl-C came before it had begun
        elif self._may_block:
            apart = apart_of(self._held)
            try:
                if apart is None:
                    await in_thread(self._release)
                else:
                    await call_apart(apart, self._release_apart)
            except EngineUnavailable:
                raise self._held.lost_error() from None  # its lease is over
            finally:
                if not self._is_released():
                    self._release()  # Ctrl-C came before the thread had begun
        else:
            self._release()

    def _is_released_aside(self) -> bool:
        """Whether its server does not answer. If so, a thread that nobody waits for releases it, and its operation,
        which would wait for that server, does not."""
        apart = apart_of(self._held)
        if apart is None or not apart.is_silent():
            return False
        call_aside(self._release, f"in the release of {self.path}")
        self._ref.operation = 0
        return True

    async def __aenter__(self) -> AsyncHold:
        try:
            leave_to_statement(self, self)
            require_unreleased(self)
            return self
        except BaseException:
            self._release()  # Ctrl-C: nobody may have it
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, GeneratorExit) and self._held.waits:
                self._drop()  # a coroutine that is being closed cannot wait, for a server or a thread
            elif isinstance(error, GeneratorExit) or not (self._held.waits or self._may_block):
                self._release()
            else:
                await self.release()
        except LockLost as lost:
            if error is None:
                raise
            error.add_note(str(lost))  # the body's own error is the news; this goes with it
        except BaseException:
            self._release()  # Ctrl-C came before it had begun, or there is nothing left to do
            raise


class AsyncHolds(tuple[AsyncHold, ...], BaseHolds):
    """Several locks that were acquired together: a tuple of one `AsyncHold` for each, in the order of the list."""

    _operation: Operation
    """The operation that has delivered them, and still owns them (D4)."""

    async def release(self) -> None:
        """Release all of them, the last one acquired first. A second call does nothing.

        A cancellation cannot stop it half-way: it is raised after the last release. LockLost as in `Holds`.
        """
        failed: list[Exception] = []
        await _release_each([*self._acquired], failed)
        raise_first(failed)

    async def __aenter__(self) -> AsyncHolds:
        try:
            for hold in self:
                leave_to_statement(hold, hold)
                require_unreleased(hold)
            return self
        except BaseException:
            release_all(self._acquired)  # Ctrl-C: nobody may have them
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, GeneratorExit):
                raise_first(release_all(self._acquired))
            else:
                await self.release()
        except LockLost as lost:
            if error is None:
                raise
            note(error, [lost])
        except BaseException:
            release_all(self._acquired)  # Ctrl-C came before it had begun
            raise


class Together:
    """An acquisition of several locks that has yet to be awaited, or entered by `async with`."""

    __slots__ = ("__weakref__", "_holds", "_steps", "close", "send", "throw")

    def __init__(self, steps: Coroutine[Any, Any, AsyncHolds]) -> None:
        self._steps = steps  # a coroutine from the start: Python warns of one that is forgotten
        self._holds: AsyncHolds | None = None
        # So this is a coroutine itself, and can be made a task. The three methods are those of the steps: no code of
        # ours comes in between, which Ctrl-C could break off while the steps sleep.
        self.send, self.throw, self.close = steps.send, steps.throw, steps.close

    def __await__(self) -> Generator[Any, Any, AsyncHolds]:
        return self._steps.__await__()

    async def __aenter__(self) -> AsyncHolds:
        self._holds = holds = await self._steps
        operation = holds._operation
        running = operation.env.operations.running
        try:
            for hold in holds:
                leave_to_statement(hold, hold)
            return holds
        except BaseException:
            running[operation.number] = operation  # J2: the caller has nothing yet
            operation.env.operations.abort(operation)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._holds is not None
        try:
            await self._holds.__aexit__(kind, error, traceback)
        except BaseException:
            release_all(self._holds)  # Ctrl-C came before it had begun
            raise


async def _release_each(left: list[AsyncHold], failed: list[Exception]) -> None:
    """Release all of them, the last one first, whatever comes in between."""
    cancelled: asyncio.CancelledError | None = None
    try:
        while left:
            try:
                await left[-1].release()
            except asyncio.CancelledError as error:
                cancelled = error  # it has been released all the same
            except Exception as error:
                failed.append(error)
            left.pop()
    finally:
        release_in_turn(left, failed)
    if cancelled is not None:
        note(cancelled, failed)
        raise cancelled


async def _left_to_asyncio(attempt: Callable[[float | None], Coroutine[Any, Any, T]], timeout: float | None) -> T:
    """The result of the attempt. A task that waits for itself is left to an `asyncio.timeout` around it (B4), or, if a
    generator that it has left early has the hold, to the loop (B6)."""
    bound = timeout
    while True:
        try:
            result = await attempt(bound)
        except WouldDeadlock:
            if await has_released(environment()):
                continue
            bound = seconds_to_timeout()
            if bound is None:
                raise
            continue
        if bound is timeout or result.__class__ is not Refusal:  # no call: the hold may be delivered (J2)
            return result
        bound = timeout  # that timeout was moved, or has ended otherwise: decide anew


class AsyncLeaving(Leaving):
    """The `Leaving` of an `async with`."""

    __slots__ = ()

    async def __call__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self.hold is not None:
                await self.hold.__aexit__(kind, error, traceback)
            elif self.entered is not None:
                await self._exit(self.entered, kind, error, traceback)
            self.hold = None
        except BaseException:
            self._end()  # now: the traceback keeps this object
            raise


class AsyncExit(Exit):
    statement = AsyncLeaving


class AsyncAcquirable(Resource):
    """A lock or semaphore that a task can acquire, hold in an `async with` block, and wait for."""

    async def acquire(self, timeout: float | None = UNSET) -> AsyncHold:
        """Acquire the lock, waiting up to `timeout` seconds without blocking the event loop, and return its handle.

        `None` waits without limit, `0` tries once. Without an argument, the `timeout` of the lock applies. A
        cancellation, also by `asyncio.timeout()`, ends the wait and leaves nothing behind. The lock stays held until
        the handle is released or the process ends, even if the task ends.

        Raises what `Lock.acquire` raises, but for AcquireCancelled; WouldDeadlock if this task holds the lock (all
        slots of a semaphore) and would wait without limit, with no timeout here or of asyncio.
        """
        timeout = self._limit(timeout)
        hold = await self._acquire(timeout)
        if hold.__class__ is Refusal:  # no call, after which a signal would be noticed: it is delivered (J2)
            raise await self._error(hold, timeout)
        return hold  # type: ignore[return-value]

    async def try_acquire(self) -> AsyncHold | None:
        """Acquire the lock without waiting, or return None. Raises what `acquire` raises, except AcquireTimeout."""
        hold = await self._acquire_within(None, None, 0)  # it never waits, for itself or for others
        return None if hold.__class__ is Refusal else hold  # type: ignore[return-value]

    async def _error(self, refusal: Refusal, timeout: float | None) -> AcquireTimeout:
        apart = self._apart(timeout, acquires=True)
        error = partial(call_within, self._env, partial(refused, refusal, timeout))
        return error() if apart is None else await call_apart(apart, error)

    def _acquire(
        self, timeout: float | None, to: Operation | None = None, me: tuple[object, ...] | None = None
    ) -> Coroutine[Any, Any, AsyncHold | Refusal]:
        """The hold, or the refusal. The hold belongs to the caller, or to the running operation `to`. `me`: the
        `caller`, if it is known."""
        return _left_to_asyncio(partial(self._acquire_within, to, me), timeout)

    async def _acquire_within(
        self, to: Operation | None, me: tuple[object, ...] | None, timeout: float | None
    ) -> AsyncHold | Refusal:
        may_block, operations = self._may_block(), self._env.operations
        me = me or caller()
        operation = begin(self._env, me)
        steps = self._engine.acquire(self._env, self._requests, timeout, me)
        apart = None
        if may_block:
            steps, apart = self._kept(steps), self._apart(timeout, acquires=True)
        # The driver aborts it in its own way: a step of it may run in a thread.
        result = await drive(steps, operation, in_threads=may_block, apart=apart)
        try:
            if isinstance(result, Refusal):
                operations.end(operation)
                return result
            hold = AsyncHold(result, may_block)
            if not may_block:
                keep(self._env, result)
            if result.held.attempt_events is not None:
                result.held.attempt_events.acquired(result.held)
            result.held.require_same_process()
            if to is not None:
                result.operation = to.number
            operations.about_to_deliver(operation)
            del operations.running[operation.number]  # delivered: nothing is called between here and the caller
            return hold
        except BaseException:
            operations.running[operation.number] = operation  # J2
            operations.abort(operation)
            raise

    async def wait(self, timeout: float | None = UNSET) -> bool:
        """Wait until the lock could be acquired, without acquiring it. False if that takes more than `timeout` seconds.

        Works like `Lock.wait`, without blocking the event loop.
        """
        return await _left_to_asyncio(self._wait_within, self._limit(timeout)) is None

    def _wait_within(self, timeout: float | None) -> Coroutine[Any, Any, Refusal | None]:
        return self._drive(self._engine.wait_until_free(self._env, self._requests, timeout, caller()), timeout)

    def _may_block(self) -> bool:
        """Whether system calls here take so long that they must not run on the event loop."""
        return self._engine.may_block(self._env, self._requests[0])

    async def _drive(self, steps: Steps[T], timeout: float | None = 0.0) -> T:
        return await perform(self._env, steps, in_threads=self._may_block(), apart=self._apart(timeout))

    def __aenter__(self) -> Coroutine[Any, Any, AsyncHold]:
        return self._enter(leaving(self))

    async def _enter(self, statement: Leaving | None) -> AsyncHold:
        timeout = self._limit(UNSET)
        operations = self._env.operations
        me = caller()
        operation = begin(self._env, me)
        hold = None
        try:
            hold = await self._acquire(timeout, operation, me)
            if isinstance(hold, Refusal):
                raise await self._error(hold, timeout)
            if statement is not None:
                statement.hold = hold
                leave_to_statement(hold, statement)
            else:
                self._entered.append(hold)
            operations.about_to_deliver(operation)
            del operations.running[operation.number]  # delivered, as above
            return hold
        except BaseException:
            operations.running[operation.number] = operation  # J2
            operations.abort(operation)
            self._not_entered(hold)
            raise

    async def _exit(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        hold = self._innermost(caller())
        try:
            await hold.__aexit__(kind, error, traceback)
        finally:
            self._not_entered(hold)
            release_all([hold])  # Ctrl-C came before it had begun

    if TYPE_CHECKING:

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None: ...

    else:
        __aexit__ = AsyncExit(_exit)

    def __call__(self, function: F) -> F:
        """Decorate an `async def`: each call holds the lock. A plain function is for `Lock`, which blocks."""
        import functools
        import inspect

        name = getattr(function, "__qualname__", repr(function))
        if inspect.isasyncgenfunction(function):
            raise TypeError(f"{name} is a generator; the lock would be released before its body runs")
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{name} is not an `async def` and cannot wait on an event loop; decorate it with a Lock")

        @functools.wraps(function)
        async def locked(*args: Any, **kwargs: Any) -> Any:
            async with self:
                return await function(*args, **kwargs)

        return locked  # type: ignore[return-value]


for _method in (AsyncAcquirable.acquire, AsyncAcquirable.try_acquire, AsyncAcquirable.wait):
    # As a TypeError and the warning of a forgotten `await` name it, and where pickle finds it.
    _method.__qualname__ = f"AsyncLock.{_method.__name__}"


class AsyncLock(BaseLock, AsyncAcquirable):
    """A lock on a path for asyncio, shared by all processes and threads that use the same path and protocol.

    `Lock` explains the options, and what construction does. One object can be used by any number of tasks, event loops
    and threads, any number of times. It can be pickled, as a `Lock` can.

    System calls run on the event loop, because a local filesystem answers in microseconds. With `durable`, and on
    network and FUSE filesystems, they run in threads, which then call `stale`. A hold belongs to its
    handle, not to a task: another task may release it.

    Raises what `Lock` raises. Not promised: what `Lock` does not promise (docs/asyncio.md).
    """

    async def status(self) -> Status:
        """Look at the lock and change nothing. The answer may be outdated at once. Raises as `Lock.status`."""
        return (await self._drive(self._engine.look(self._env, self._requests)))[0]

    async def break_lock(self) -> Record | None:
        """Remove the lock file even if it is held, as `Lock.break_lock` does, and return its record.

        After a cancellation, the lock file is either untouched or removed.
        """
        return await self._drive(self._engine.break_lock(self._env, self._request))


class AsyncSemaphore(Slots, AsyncAcquirable):
    """Up to `slots` holders at once: `Semaphore` for asyncio. `Semaphore` and `AsyncLock` explain it."""

    async def status(self) -> SemaphoreStatus:
        """Look at all slots and change nothing. The answer may be outdated at once. See `Semaphore.status`."""
        return SemaphoreStatus(await self._drive(self._look()))


def acquire_all(locks: Iterable[AsyncAcquirable], timeout: float | None = UNSET) -> Together:
    """Acquire several locks and semaphores, all or none: `holdfast.acquire_all`, which explains it, for asyncio.

    Await it for the holds, or enter it: `async with acquire_all([...]) as holds`. A cancellation leaves none held.
    """
    instead = "would block the event loop; make it an AsyncLock, or call holdfast.acquire_all"
    return Together(_acquire_all(checked(locks, AsyncAcquirable, instead), timeout))


async def _acquire_all(wanted: list[AsyncAcquirable], timeout: float | None) -> AsyncHolds:
    may_block = any(lock._may_block() for lock in wanted)
    operations = environment().operations
    operation = begin(environment(), caller())
    got: dict[int, AsyncHold] = {}
    try:
        limit = limit_of(wanted, timeout)
        plan = await _planned(wanted, limit) if may_block else Plan(wanted, limit)
        for number in plan.order:
            operations.resume(operation)
            found = await wanted[number]._acquire(plan.left(), operation)
            if found.__class__ is Refusal:  # no call before it is on the list of holds to be released
                raise call_within(environment(), partial(plan.error, found))
            got[number] = found  # type: ignore[assignment]
        operations.resume(operation)
        holds = await in_thread(lambda: finished(AsyncHolds, got)) if may_block else finished(AsyncHolds, got)
        holds._operation = operation
        operations.about_to_deliver(operation)
        del operations.running[operation.number]  # delivered: nothing is called between here and the caller
        return holds
    except BaseException as error:
        operations.running[operation.number] = operation  # J2
        try:
            if not isinstance(error, GeneratorExit):  # else the collector may have come (operations.py, J8)
                operations.resume(operation)
            await _give_back_each(got, error)
        finally:
            operations.abort(operation)  # those that have not been released yet, and one that had just been acquired
        raise


async def _give_back_each(got: dict[int, AsyncHold], error: BaseException) -> None:
    """Release everything that an operation acquired before this error."""
    left = [hold for hold in got.values() if not hold._is_released_aside()]
    failed: list[Exception] = []
    if isinstance(error, GeneratorExit):
        release_in_turn(left, failed)
    else:
        await _release_each(left, failed)
    note(error, failed)


async def _planned(wanted: list[AsyncAcquirable], limit: float | None) -> Plan:
    apart, plan = give_up_of_all(wanted, limit), partial(Plan, wanted, limit)
    return await (in_thread(plan) if apart is None else call_apart(apart, plan))


acquire_unless_held = AsyncAcquirable._acquire
"""Acquire, for the faces: the hold, or the refusal after the timeout."""
