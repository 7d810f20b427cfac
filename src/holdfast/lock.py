"""The synchronous face of the engines: `Lock`, `Semaphore` and `Hold`, the handle of an acquisition.

`Resource` and `BaseHold` have what these share with their counterparts for asyncio (aio.py). A `Semaphore` is one
request for each of its slots; a contender takes any of them. Functions at the end of this file serve the command line
and the other faces.
"""

from __future__ import annotations

import sys
from _thread import _local, get_ident
from _warnings import warn
from _weakref import ref as weak_reference

from ._core.attempt import Refusal
from ._core.options import Options, Request, check_timeout
from ._drivers.background import Keeper
from ._drivers.sync import Cancellation, caller, drive, perform
from ._platform import environment
from ._platform.fork import forking
from ._platform.operations import Operation, partial
from .engines import Engine, engine_of
from .engines.file import FILES
from .engines.file.hold import FileHold, own_hold
from .engines.file.request import FileRequest
from .errors import AcquireTimeout, LockLost, NotHeld, set_error_path
from .events import INFO, Event, fields, logger_for
from .model import Record, SemaphoreStatus, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Hashable, Mapping
    from types import FrameType, TracebackType
    from typing import Any, Literal, NoReturn, Protocol, TypeVar

    from ._core.hold import HoldRef, HoldState
    from ._core.wait import Steps
    from ._drivers.apart import Apart
    from ._platform.portable import GenericEnvironment

    class Settable(Protocol):
        """The part of `threading.Event` that `cancel` needs."""

        def is_set(self) -> bool: ...

    class HasFileno(Protocol):
        """The part of a socket, pipe or file that `cancel` needs."""

        def fileno(self) -> int: ...

    Cancel = Settable | HasFileno | int
    """A way to end a wait: an object that is set, or a descriptor that becomes readable."""

    F = TypeVar("F", bound=Callable[..., object])

    T = TypeVar("T")

_is_finalizing = sys.is_finalizing
_keeper: Keeper | None = None
_face_for_tasks: Callable[[], Callable[..., Any]]


def provide_face_for_tasks(load: Callable[[], Callable[..., Any]]) -> None:
    """Set the function that loads the class for an `async def` that a `Lock` decorates. Nothing here needs asyncio."""
    global _face_for_tasks
    _face_for_tasks = load


class BaseHold:
    """State and queries common to the holds of all faces."""

    __slots__ = ("__weakref__", "_held", "_ref")

    def __init__(self, ref: HoldRef) -> None:
        self._ref = ref
        self._held = ref.held

    @property
    def path(self) -> str:
        """The absolute path of the lock file."""
        return self._held.path

    @property
    def slot(self) -> int | None:
        """The number of the slot, counted from 0, if this is a hold of a semaphore; None for the hold of a lock."""
        return self._held.request.slot

    @property
    def record(self) -> Record:
        """The record of this hold, as its lock file has it."""
        return self._held.record()

    @property
    def recovered_from(self) -> Record | None:
        """The record of the dead or stale holder that this hold replaced; None after an ordinary acquisition.

        Its `pid` is None where the lock names no process, as with `proper-lockfile`. A contender that is cancelled just
        after it has taken over gives the lock back, and the next one does not learn of it.
        """
        return self._held.recovered_from

    @property
    def token(self) -> int | None:
        """The fencing token: higher than that of every hold of this lock before. None if there are no tokens.

        Pass it to the resource that the lock protects. The resource should refuse any that is lower than one that it
        has seen (docs/fencing.md).
        """
        return self._held.token

    @property
    def lost(self) -> bool:
        """Whether the lock was lost: its file was removed or replaced. Looks now; after a release, it only tells
        whether a loss was found before.

        Raises EngineUnavailable if a file server does not answer for five seconds. With a lease, it does not ask the
        server.
        """
        if not self._is_released():
            self._look(self._held.check)
        return self._held.lost

    def ensure_held(self) -> None:
        """Raise LockLost unless this handle holds the lock now.

        Raises NotHeld after a release or in a forked child, and EngineUnavailable if a file server does not answer for
        five seconds. With a lease, it does not ask the server.
        """
        if self._is_released() and not self._held.inert:
            raise self._held.request.error(NotHeld, f"{self.path} has been released by this handle")
        self._look(self._held.ensure)

    def _look(self, check: Callable[[], object]) -> None:
        held = self._held
        keeper = held.keeper  # read once: its thread takes it away when it finds the loss
        if keeper is not None and keeper.is_stalled:
            keeper.attend()  # background.py, K10
        if held.waits or held.inert or not held.env.may_block(held.path):
            check()
        else:
            with forking:
                from ._drivers.apart import look
            look(held, check)

    def _release(self) -> None:
        held = self._held
        if held.waits or not held.env.may_block(held.path) or held.inert:
            self._release_here()
        elif not self._is_released() and not self._is_being_released():  # else no thread, which may wait for a server
            with forking:
                from ._drivers.apart import release
            release(held, self._release_apart)

    def _release_here(self) -> None:
        held = self._held
        try:
            held.release(self._ref)
        except BaseException:
            if not held.released and not held.inert and not self._is_released():
                held.release(self._ref)  # Ctrl-C came before it had begun
            raise

    def _release_apart(self) -> None:
        """Release where that may wait for a server, or for one that is away to come back."""
        with forking:
            from ._drivers.apart import until_it_is_back
        try:
            self._ref.releasing = get_ident()
            until_it_is_back(self._held, self._release_here)
        finally:
            self._ref.releasing = None

    def _is_being_released(self) -> bool:
        """Whether another thread is releasing it, and will finish (_drivers/apart.py, AP2)."""
        return self._ref.releasing not in (None, get_ident())

    def _is_released(self) -> bool:
        return self._held.released or self._ref not in self._held.refs

    def __del__(
        self,
        _warn: Callable[..., None] = warn,
        _is_finalizing: Callable[[], bool] = _is_finalizing,
    ) -> None:
        """Release a hold that its `with` never left; warn of a dropped handle (H3). Everything that it calls is bound
        early: at the end of the interpreter, this module may be empty."""
        ref: HoldRef | None = getattr(self, "_ref", None)  # may not even have been made
        if ref is None:
            return
        held = ref.held
        entered = held.env.operations.entered
        if held.released:
            entered.pop(ref, None)
            return
        if _is_finalizing():
            return
        if ref in entered:  # J5
            if not self._is_released():
                self._drop()
            entered.pop(ref, None)
            return
        if ref.dropped is not False or held.lost or held.inert:
            return
        if held.request.released_by_path or ref not in held.refs:
            return
        if ref.operation in held.env.operations.running:
            return  # never delivered: undoing the operation gives it back (operations.py, J2)
        ref.dropped = True
        _warn(
            f"the handle of {held.path} was dropped without release(); the lock is held until this process ends",
            ResourceWarning,
            2,
            self,
        )

    def _drop(self) -> None:
        """Release as `HoldState.drop` does; where a file server may be silent, without waiting forever."""
        if self._held.waits:
            self._held.drop(self._ref)
            return
        try:
            self._release()
        except LockLost:
            pass

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the hold of {self.path} belongs to this process and cannot be pickled or copied; send the Lock and "
            "acquire it where it is needed, or keep the hold here until that work is done"
        )

    def __repr__(self) -> str:
        state = "lost" if self._held.lost else "released" if self._is_released() else "held"
        if self._held.inert:
            state = "of the parent process"
        return f"<holdfast.{type(self).__name__} {self.path!r} {state}>"


class Hold(BaseHold):
    """One acquisition of a lock. The handle owns it, not the thread. `with` releases it at the end."""

    __slots__ = ()

    def release(self) -> None:
        """Release the lock, from any thread. A second call, or one in a forked child, does nothing.

        Raises LockLost if the lock file has been removed or replaced, and leaves alone what is at the path now. OSError
        as the system gives it if the file cannot be removed: the lock is given up all the same.
        """
        self._release()

    def __enter__(self) -> Hold:
        """Enter the `with`. NotHeld after a release and in a forked child: the body needs the lock."""
        try:
            leave_to_statement(self, self)
            require_unreleased(self)
            return self
        except BaseException:
            self._release()  # Ctrl-C: nobody may have it
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._release()
        except LockLost as lost:
            if error is None:
                raise
            error.add_note(str(lost))  # the body's own error is the news; this goes with it
        except BaseException:
            self._release()  # Ctrl-C came before it had begun, or there is nothing left to do
            raise


class Leaving:
    """A `with` statement's exit: kept while it is inside, called when it is left, and then dropped (operations.py, J5).

    Called by hand, it is the `__exit__` of the lock, as often as that is called.
    """

    __slots__ = ("__weakref__", "_exit", "entered", "hold", "place")

    def __init__(self, entered: Any, leave: Callable[..., Any], place: tuple[int, int]) -> None:
        self.entered = entered
        """The lock that was entered. None once this has been dropped: the collector may end this object before the
        generator that then calls it."""
        self.place = place
        """The frame that has looked it up, and the instruction there."""
        self._exit = leave
        self.hold: Any = None
        """The hold, once the statement has been entered."""

    def __call__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Any:
        try:
            if self.hold is not None:
                self.hold.__exit__(kind, error, traceback)
            elif self.entered is not None:
                self._exit(self.entered, kind, error, traceback)
            self.hold = None
        except BaseException:
            self._end()  # now: the traceback keeps this object
            raise

    def _end(self) -> None:
        hold = getattr(self, "hold", None)  # it may not even have been made
        if hold is not None:
            if not hold._is_released():
                hold._drop()
            self.entered = self.hold = None

    __del__ = _end


class Exit:
    """The `__exit__` of a class: each `with` gets a `Leaving` of its own."""

    statement = Leaving

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __get__(self, entered: object | None, kind: type | None = None) -> Callable[..., Any]:
        if entered is None:
            return self._function
        frame = sys._getframe(1)
        leaving = self.statement(entered, self._function, (id(frame), frame.f_lasti))
        _last.leaving = weak_reference(leaving)
        return leaving


class _Last(_local):
    leaving: Callable[[], Leaving | None] | None = None


_last = _Last()


_ENTRY = 8
"""Bytes of code from where a `with` looks up `__exit__` to where it calls `__enter__`: none up to Python 3.13, where it
is one instruction. By hand, it takes more."""


def leaving(entered: object) -> Leaving | None:
    """The `Leaving` of the with statement that is entering `entered`; None if `__enter__` is called by hand, even after
    a look-up of `__exit__`."""
    last = _last.leaving
    if last is None:
        return None
    _last.leaving = None
    statement = last()
    if statement is None or statement.entered is not entered:
        return None
    looked, at = statement.place
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and id(frame) != looked:
        frame = frame.f_back  # the `__enter__` of a subclass
    return statement if frame is not None and 0 <= frame.f_lasti - at <= _ENTRY else None


def keep(env: GenericEnvironment, ref: HoldRef) -> None:
    """Have the keeper send a new hold's heartbeats, report its loss, and release it at exit."""
    global _keeper
    if _keeper is None:
        with forking:
            if _keeper is None:
                _keeper = Keeper(env)  # it also releases at exit, so every hold needs it
    if not _keeper.is_prepared:
        _keeper.prepare()
    held = ref.held
    request = held.request
    if held.lease is None and not held.watched and held.acquired + request.beat_every >= _keeper.wakes:
        return  # the keeper finds it when it wakes (background.py, K2)
    # Else the engine keeps it, or it is not to be kept yet, or the keeper's thread may have ended with its mutex.
    if not (held.waits or request.kept_later or _is_finalizing()):
        _keeper.keep(held, held.beat_every)


class _Unset:
    """The default of a `timeout` that falls back to the lock's own, as a signature shows it."""

    def __repr__(self) -> str:
        return "<as the lock was made>"


UNSET: Any = _Unset()


class Resource:
    """A lock or semaphore for threads or tasks: one request for each lock file that would do."""

    def __init__(self, requests: tuple[Request, ...], options: Options) -> None:
        self._env = environment()
        self._options = options
        self._requests = requests
        self._engine: Engine = getattr(requests[0], "engine", FILES)
        self._entered: list[Any] = []
        """Holds that were entered by a call, as an `ExitStack` makes it, and not by a statement."""
        announce(self, _log_waiting)

    @property
    def path(self) -> str:
        """The absolute path of the lock file, or the base after which a semaphore's lock files are named."""
        return self._request.target

    @property
    def protocol(self) -> str:
        """The name of the protocol."""
        return self._request.protocol_name

    @property
    def _request(self) -> Request:
        return self._requests[0]

    def _limit(self, timeout: float | None) -> float | None:
        return self._requests[0].timeout if timeout is UNSET else check_timeout(timeout)

    def _apart(
        self, timeout: float | None, *, acquires: bool = False, cancel: Cancellation | None = None
    ) -> Apart | None:
        """The `Apart` by which a call can give up waiting for the server of its filesystem (_drivers/apart.py); None
        where there is no such server."""
        if not self._engine.may_hang(self._env, self._requests[0]):
            return None
        with forking:
            from ._drivers.apart import Apart
        return Apart(self._env, self._requests[0], timeout, acquires=acquires, cancel=cancel)

    def _kept(self, steps: Steps[HoldRef | Refusal]) -> Steps[HoldRef | Refusal]:
        """Run the steps, and keep the new hold."""
        result = yield from steps
        if not isinstance(result, Refusal):
            keep(self._env, result)
        return result

    def _perform(self, steps: Steps[T], timeout: float | None, cancel: Cancellation | None = None) -> T:
        apart = self._apart(timeout, cancel=cancel)
        return perform(self._env, steps, cancel) if apart is None else apart.perform(steps)

    def _innermost(self, me: tuple[object, ...]) -> Any:
        """The hold that a call leaves: the last of this thread or task, or else of all, as another one may close it."""
        entered = self._entered.copy()
        if not entered:
            raise NotHeld(f"{self.path} was not entered by `with`", path=self.path, protocol=self.protocol)
        return next((hold for hold in reversed(entered) if hold._ref.context == me), entered[-1])

    def _not_entered(self, hold: object) -> None:
        if hold in self._entered:
            self._entered.remove(hold)

    def __reduce__(self) -> tuple[Any, ...]:
        return make_again, (type(self), (self._request.given,), self._options)

    def __repr__(self) -> str:
        return f"<holdfast.{type(self).__name__} {self.path!r} protocol={self.protocol}>"


class Acquirable(Resource):
    """A lock or semaphore that a thread can acquire, hold in a `with` block, and wait for."""

    def acquire(self, timeout: float | None = UNSET, *, cancel: Cancel | None = None) -> Hold:
        """Acquire the lock, waiting up to `timeout` seconds, and return its handle.

        `None` waits without limit, `0` tries once. Without an argument, the `timeout` of the lock applies. The lock
        stays held until the handle is released or the process ends. A handle that is dropped without a release leaves
        it held, with a ResourceWarning.

        `cancel` ends the wait from another thread or process: a `threading.Event` that is set, which is noticed within
        50 ms, or a descriptor (or something with a `fileno`) that can be read, which is noticed at once. If it is set
        already, nothing is tried. Nothing is read from the descriptor. On Windows it must be an event.

        Raises AcquireTimeout, which names the holder, or a file server that does not answer; AcquireCancelled;
        WouldDeadlock if this thread holds the lock (all slots of a semaphore) and would wait without limit; LockStale
        if the protocol leaves a stale lock to the caller (sidecar); ProtocolMismatch; InvalidPath;
        UnsupportedFilesystem; EngineUnavailable; MalformedRecord for a damaged counter of fencing tokens; OSError as
        the system gives it; and what `payload` or a callable `stale` raises.
        """
        timeout = self._limit(timeout)
        ends = None if cancel is None else Cancellation(cancel, self.path, self.protocol)
        return self._acquire(timeout, _refused, ends)  # type: ignore[return-value]

    def try_acquire(self) -> Hold | None:
        """Acquire the lock without waiting, or return None. Raises what `acquire` raises, except AcquireTimeout."""
        return self._acquire(0, None)

    def _acquire(
        self,
        timeout: float | None,
        error: Callable[[Refusal, float | None], Exception] | None,
        cancel: Cancellation | None = None,
    ) -> Hold | None:
        env = self._env
        operations = env.operations
        operation = operations.begin(env)
        try:
            hold = self._attempt(operation, timeout, error, cancel)
            operations.about_to_deliver(operation)
            del operations.running[operation.number]  # delivered: nothing is called between here and the caller
            operation.frame = None
            return hold
        except BaseException:
            operations.running[operation.number] = operation  # J2
            operations.abort(operation)
            raise

    def _attempt(
        self,
        operation: Operation,
        timeout: float | None,
        error: Callable[[Refusal, float | None], Exception] | None,
        cancel: Cancellation | None = None,
    ) -> Hold | None:
        """The hold, or None. It belongs to the operation until it is delivered. `error` also gets the timeout."""
        env = self._env
        apart = None
        if self._engine.may_hang(env, self._requests[0]):
            apart = self._apart(timeout, acquires=error is not None, cancel=cancel)
        try:
            steps = self._engine.acquire(env, self._requests, timeout, caller())
            result = drive(steps, operation, cancel) if apart is None else apart.drive(self._kept(steps), operation)
            if not isinstance(result, Refusal):
                hold, held = Hold(result), result.held
                if apart is None:
                    keep(env, result)
                if held.attempt_events is not None:
                    held.attempt_events.acquired(held)
                held.require_same_process()
                return hold
        except OSError as failed:
            if self._engine.is_remote:  # the engine on files has set it, but not on what a caller's function has raised
                set_error_path(failed, self.path)
            raise
        except (ImportError, NameError) as failed:
            if not _is_finalizing():
                raise
            raise RuntimeError(
                f"Python is shutting down, and the modules needed to acquire {self.path} can no longer be loaded; "
                "acquire it earlier, not in a finalizer that runs at the very end"
            ) from failed
        if error is not None:
            raise error(result, timeout) if apart is None else apart.call(partial(error, result, timeout))
        return None

    def wait(self, timeout: float | None = UNSET, *, cancel: Cancel | None = None) -> bool:
        """Wait until the lock could be acquired, without acquiring it. False if that takes more than `timeout` seconds.

        `None` waits without limit, `0` looks once. Without an argument, the `timeout` of the lock applies. Another
        process may acquire it before the caller does. `cancel` works as in `acquire`. Raises what `acquire` raises,
        except AcquireTimeout.
        """
        limit = self._limit(timeout)
        ends = None if cancel is None else Cancellation(cancel, self.path, self.protocol)
        steps = self._engine.wait_until_free(self._env, self._requests, limit, caller())
        return self._perform(steps, limit, ends) is None

    def __enter__(self) -> Hold:
        statement = leaving(self)  # before another greenlet, or what is called meanwhile, enters the same lock
        operations = self._env.operations
        operation = operations.begin(self._env)
        timeout = self._requests[0].timeout
        hold = None
        try:
            hold = self._attempt(operation, timeout, _refused)
            assert hold is not None
            if statement is not None:
                statement.hold = hold
                leave_to_statement(hold, statement)
            else:
                self._entered.append(hold)
            operations.about_to_deliver(operation)
            del operations.running[operation.number]  # as above
            operation.frame = None
            return hold
        except BaseException:
            operations.running[operation.number] = operation  # J2
            operations.abort(operation)
            self._not_entered(hold)
            raise

    def _exit(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        hold = None
        try:
            hold = self._innermost(caller())
            hold.__exit__(kind, error, traceback)
        finally:
            if hold is None:
                hold = self._innermost(caller())  # only then: once released, the innermost may be another thread's
            self._not_entered(hold)
            if not hold._held.released:
                hold.release()  # Ctrl-C came before it had begun

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None: ...

    else:
        __exit__ = Exit(_exit)

    def __call__(self, function: F) -> F:
        """Decorate a function: each call holds it. An `async def` waits on its event loop, as an `AsyncLock` does."""
        with forking:
            import functools
            import inspect

        if inspect.iscoroutinefunction(function):
            return _face_for_tasks()(self._requests, self._options)(function)  # type: ignore[no-any-return]
        name = getattr(function, "__qualname__", repr(function))
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{name} is a generator; the lock would be released before its body runs")
        if isinstance(function, type):
            raise TypeError(f"{name} is a class; decorate those of its methods that need the lock")

        @functools.wraps(function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            with self:
                result = function(*args, **kwargs)
                if inspect.iscoroutine(result):  # of an `async def` in another wrapper
                    result.close()
                    raise TypeError(f"{name} returns a coroutine, which would run without the lock: decorate that")
                return result

        return locked  # type: ignore[return-value]


for _method in (Acquirable.acquire, Acquirable.try_acquire, Acquirable.wait):
    _method.__qualname__ = f"Lock.{_method.__name__}"  # as a TypeError names it, and where pickle finds it


def _refused(refusal: Refusal, timeout: float | None) -> AcquireTimeout:
    with forking:
        from ._core.messages import refused
    return refused(refusal, timeout)


class BaseLock(Resource):
    """Construction common to the locks of all faces."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        protocol: Literal["sema", "semats", "sidecar", "beads", "flock", "ofd", "proper-lockfile"] | str = "sema",
        tag: str | None = None,
        timeout: float | None = None,
        stale: Literal["safe", "protocol", "never"] | Callable[[Status], bool] = "safe",
        stale_after: float | None = None,
        mode: int | None = None,
        durable: bool = False,
        fencing: bool = False,
        heartbeat: float | None = None,
        lease: float | None = None,
        owner: Hashable | None = None,
        fair: bool = True,
        shared: bool = False,
        parents: bool | None = None,
        on_lost: Callable[[LockLost], object] | None = None,
        on_event: Callable[[Event], object] | None = None,
        payload: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
        holder: str | None = None,
        realpath: bool | None = None,
        range: tuple[int, int] | None = None,  # noqa: A002 - the word for it
        version: str | None = None,
    ) -> None:
        options = chosen(locals())
        super().__init__((engine_of(path).request(path, options),), options)

    __init__.__qualname__ = "Lock.__init__"  # as a TypeError names it


class Lock(BaseLock, Acquirable):
    """A lock on a path, shared by all processes that use the same path and protocol.

    Construction does no I/O, except that `semats`, `sidecar` and `proper-lockfile` follow symbolic links. One object
    can be used by any number of threads, any number of times. It can be pickled: the copy has the same absolute path
    and options, and holds nothing.

    - `protocol`: how the lock file is written and judged. Only locks of the same protocol exclude each other. `"sema"`:
      the file exists while the lock is held. `"flock"`: the file stays and is locked, as by `flock(1)` (docs/flock.md).
      `"ofd"`: the same by `fcntl`, as dpkg, `lockf` and Java do (docs/ofd.md).
      `"proper-lockfile"`: a directory `<path>.lock`, as by the npm package of that name (docs/proper-lockfile.md).
    - `tag`: one line that tells people what the lock is held for. It is cut after 10 000 characters.
    - `timeout`: how long to wait, in seconds. `None` and infinity: no limit. `0`: one try.
    - `stale`: when the lock of another holder may be taken over. `"safe"`: at once if the holder is proven dead;
      otherwise when the protocol's rule allows it and its process has ended, as far as can be seen. A holder of whom
      that cannot be known, as on another host, keeps it (not with `proper-lockfile`: there, the rule is enough unless
      the holder is known to be alive). `"protocol"`: by the protocol's rule alone. `"never"`: not at all. A callable
      gets the `Status` and decides; waiters ask it at least once a second. A lock whose kernel lock is held is never
      taken over, nor is one whose record cannot be read.
    - `stale_after`: the age in seconds (above 0) from which the protocol's rule allows it. `None`: the protocol's own
      (sema: 3600). Infinity: never.
    - `mode`: permission bits of a new lock file, before the umask. `None`: the protocol's own (sema: 0o644).
    - `durable`: `fsync` the lock file and its directory. Off by default: after a power cut, the lock has no holder.
    - `fencing`: give each hold a `token`: a number higher than those of all earlier holds, even after crashes,
      takeovers and restarts. It comes from a counter beside the lock file (`<lock file>.token`) and is on disk before
      the hold is returned. All users of the lock must ask for it. Not with `shared` (docs/fencing.md).
    - `heartbeat`: seconds between refreshes of the timestamp; less than 0.05 counts as 0.05. `None`: a third of the age
      at which others may call it stale (`proper-lockfile`: half). `0` and infinity: never.
    - `lease`: for directories that machines share: others may replace a holder that has been silent for so many
      seconds (at least 1), as its machine may be dead. The holder tells the file server every third of that time that
      it lives. After nine tenths without an answer, it counts its lock as lost. Such a hold has a `token`. `None`: 30
      if the filesystem is known to be shared (NFS, SMB and the like), else none. `0`: none. All users of a lock should
      give the same (docs/howto/shared-storage.md).
    - `owner`: anything hashable. Holds of equal owners in one process share the lock; it is released with the last.
    - `fair`: wait in the queue of all processes, first come, first served. A release wakes only the next waiter.
      `timeout=0` takes a free lock all the same. `False`: do not queue. Exclusion does not depend on it.
    - `shared`: hold it together with other shared holders; only with `flock` and `ofd`. A waiter that wants it alone
      goes before later shared ones, even before one with `timeout=0`.
    - `parents`: create missing directories. `None`: the protocol decides (sidecar: yes).
    - `payload`: for `sidecar`, the JSON object in the lock file, or a function that returns it and is called for each
      attempt. `None`: `pid`, `host`, `createdAt` and the tag.
    - `realpath`: for `proper-lockfile`, its option of that name: whether to follow symbolic links. `None` and True:
      yes, and the path has to exist when the lock is acquired. False: no. All users of a lock need the same setting.
    - `range`: for `ofd`, the bytes to lock: the first one and their number. A number of 0 means all from there on,
      however long the file gets. `None`: the whole file. Locks that have no byte in common do not exclude each other.
    - `holder`: for `beads` (up to 0.49, which had this lock), the name of the tool that holds it. `None`: `holdfast`.
    - `version`: for `beads`, the version of that tool.
    - `on_lost`: called once, with the `LockLost` error, when the lock is found lost (`LockLost` says how): in a
      background thread, or by `release`, `lost` or `ensure_held` if one of these finds out first. Of holds that share
      the lock (`owner`), each one's is called, until its release. An exception in it is logged, or is the cause of the
      `LockLost` that `release` and `ensure_held` raise.
    - `on_event`: called with a `holdfast.events.Event` when this process starts to wait for the lock, acquires it,
      gives up, loses or releases it, in the thread that does so. See docs/observability.md.

    Raises ValueError or TypeError for an option with a bad value, or an option that the protocol does not have, and
    InvalidPath for a path that cannot be a lock file. `flock` and `ofd` have no `stale_after`, `heartbeat`, `lease`,
    `durable` or callable `stale`, because the kernel knows who lives. `beads` has no `stale_after`, and
    `proper-lockfile` no `lease`, `fencing` or `durable`.
    Not promised: exclusion between machines that share a network filesystem without working locks (docs/guarantees.md).
    """

    def status(self) -> Status:
        """Look at the lock and change nothing. The answer may be outdated when it is returned.

        A record that cannot be read, or is of another protocol, is not an error: the lock is `locked`. Raises
        InvalidPath for what cannot be a lock file (a directory, a link, a FIFO), EngineUnavailable, and OSError as the
        system gives it.
        """
        return self._perform(self._engine.look(self._env, self._requests), 0.0)[0]

    def break_lock(self) -> Record | None:
        """Remove the lock file even if it is held, and return its record; None if it had none that can be read.

        The holder is not stopped: it finds its lock lost. Use it only when certain that the holder is gone.
        Raises HoldfastError for a `flock` lock that is held, because without the file others would get in beside the
        holder. Also for a lock that keeps changing hands for 2 seconds, after which it gives up.
        """
        return self._perform(self._engine.break_lock(self._env, self._request), 0.0)


def chosen(arguments: dict[str, Any]) -> Options:
    """The options of a constructor that differ from their defaults, out of all its arguments.

    Semaphores have the same signature as locks: an editor shows each option where it is typed.
    """
    defaults: dict[str, Any] = BaseLock.__init__.__kwdefaults__ or {}
    return {name: arguments[name] for name, default in defaults.items() if arguments[name] is not default}  # type: ignore[return-value]


def make_again(kind: Callable[..., T], arguments: tuple[object, ...], options: Options) -> T:
    return kind(*arguments, **options)


def _log_waiting(refusal: Refusal) -> None:
    """Log a wait that has lasted a second, if logging is set up."""
    logger = logger_for(INFO)
    if logger is not None:  # who holds it costs a look
        from ._core.messages import waiting

        logger.info("%s", waiting(refusal), extra=fields(refusal.event()))


class Slots(Resource):
    """Construction and attributes common to the semaphores of all faces."""

    def __init__(
        self,
        base: str | os.PathLike[str],
        slots: int,
        *,
        protocol: Literal["sema", "semats", "sidecar", "beads", "flock", "ofd", "proper-lockfile"] | str = "sema",
        tag: str | None = None,
        timeout: float | None = None,
        stale: Literal["safe", "protocol", "never"] | Callable[[Status], bool] = "safe",
        stale_after: float | None = None,
        mode: int | None = None,
        durable: bool = False,
        fencing: bool = False,
        heartbeat: float | None = None,
        lease: float | None = None,
        owner: Hashable | None = None,
        fair: bool = True,
        shared: bool = False,
        parents: bool | None = None,
        on_lost: Callable[[LockLost], object] | None = None,
        on_event: Callable[[Event], object] | None = None,
        payload: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
        holder: str | None = None,
        realpath: bool | None = None,
        range: tuple[int, int] | None = None,  # noqa: A002 - the word for it
        version: str | None = None,
    ) -> None:
        options = chosen(locals())
        super().__init__(engine_of(base).slots(base, slots, options), options)

    __init__.__qualname__ = "Semaphore.__init__"  # as a TypeError names it

    @property
    def base(self) -> str:
        """The absolute path that the lock files are named after: `<base>.0.lock`, `<base>.1.lock` and so on."""
        return self.path

    @property
    def slots(self) -> int:
        """The number of slots: how many holders there can be at once."""
        return len(self._requests)

    def _look(self) -> Steps[tuple[Status, ...]]:
        return self._engine.look(self._env, self._requests)

    def __reduce__(self) -> tuple[Any, ...]:
        return make_again, (type(self), (self._request.given, self.slots), self._options)

    def __repr__(self) -> str:
        return f"<holdfast.{type(self).__name__} {self.path!r} slots={self.slots} protocol={self.protocol}>"


class Semaphore(Slots, Acquirable):
    """Up to `slots` holders at once, among all processes that use the same base, number of slots and protocol.

    Each slot is a lock file, `<base>.0.lock` to `<base>.<slots - 1>.lock`, and works like a `Lock`: the death of a
    holder frees its slot at once, waiters sleep until one is released, and queue in the order of their arrival. An
    acquisition gets the lowest free slot. `Hold.slot` is its number, which no other holder has. Construction does what
    a `Lock`'s does. One object can be used by any number of threads; it can be pickled.

    `Lock` explains the options; `shared` is refused. With `owner`, holds of one owner in this process share one slot,
    which is released with the last of them.

    Processes should agree on `slots`. If they do not, each uses the slots that it knows: together they let in as many
    as the largest number says, and a slot that only some know may stay free for a second for each waiter before them,
    for ten seconds at most.

    Raises ValueError or TypeError if `slots` is not a whole number from 1 to 1000, and what `Lock` raises.
    Not promised: if two threads with one `owner` ask at the same instant, they may get two slots.
    """

    def status(self) -> SemaphoreStatus:
        """Look at all slots and change nothing. The answer may be outdated when it is returned.

        A tuple of one `Status` for each slot, which also knows how many are `free`, whether all are taken (`locked`),
        the `holders`, and the `waiters` in their order.
        """
        return SemaphoreStatus(self._perform(self._look(), 0.0))


# -- for the command line and the faces: not part of the public interface -------------------------------------------


def requests_of(lock: Resource) -> tuple[Request, ...]:
    """The requests of a lock or semaphore: one for each lock file that would do."""
    return lock._requests


def file_request(lock: Resource) -> FileRequest:
    """The request for the lock file, or for the first slot's; TypeError for a lock on a server."""
    (request, *_) = lock._requests
    if not isinstance(request, FileRequest):
        raise TypeError(f"{request.path} is not a file")
    return request


def store_of(lock: Resource) -> Engine:
    """The engine that stores the lock."""
    return lock._engine


# These have no frame of their own, in which an interruption could find a hold that is delivered but not kept yet.
give_up_of = Resource._apart
"""The `Apart` by which a call can give up waiting for the server of its filesystem; None where there is none."""
attempt = Acquirable._attempt
"""Acquire as a part of an operation, which delivers the hold, or gives it back."""
acquire_or_raise = Acquirable._acquire
"""Like `acquire`, but `error` makes the exception for a lock that is held; without it, None is returned."""
release_now = BaseHold._release
"""Release in this thread, whichever face the handle belongs to. LockLost as from `Hold.release`."""


def announce(lock: Resource, notice: Callable[[Refusal], float | None] | None) -> None:
    """Call `notice` when a wait has lasted a second, and again after as many seconds as it returns; None: never."""
    for request in lock._requests:
        request.notice = notice


def keep_from_now(hold: Hold) -> None:
    """Have the keeper see to a hold whose request said `kept_later`: its heartbeats, and its loss, even one that has
    come already."""
    hold._held.request.kept_later = False
    keep(environment(), hold._ref)


def attend() -> float | None:
    """Do what is due for the holds of this process, if no thread could be started for it. The seconds until the next
    time; None if a thread does it, or nothing is to be done."""
    return None if _keeper is None or not _keeper.is_stalled else _keeper.attend()


def perform_at(request: FileRequest, steps: Steps[T]) -> T:
    """The result of the steps. EngineUnavailable if the server of the lock file does not answer for five seconds."""
    env = environment()
    if not FILES.may_hang(env, request):
        return perform(env, steps)
    with forking:
        from ._drivers.apart import Apart
    return Apart(env, request, 0.0).perform(steps)


def look_at(request: FileRequest, look: Callable[[GenericEnvironment, FileRequest], T]) -> T:
    """The result of a look, which is one step of `perform_at`."""

    def steps() -> Steps[T]:
        yield from ()
        return look(environment(), request)

    return perform_at(request, steps())


def release_own(lock: Resource) -> bool:
    """Release this process's holds of the lock, whichever handles they have; False if there are none."""
    held = look_at(file_request(lock), lambda env, request: own_hold(env, request.path))
    refs = [] if held is None else held.refs.copy()
    lost = None
    for ref in refs:
        try:
            Hold(ref).release()
        except LockLost as error:
            lost = error
    if lost is not None:
        raise lost
    return bool(refs)


def release_all() -> None:
    """Release all holds of this process."""
    for held in list(environment().holds.values()):
        held.release()


def state_of(hold: BaseHold) -> HoldState:
    """The engine's side of a hold."""
    return hold._held


def file_hold(hold: BaseHold) -> FileHold:
    """The `FileHold` of a lock file; TypeError for a hold on a server."""
    held = hold._held
    if not isinstance(held, FileHold):
        raise TypeError(f"{held.path} is not a file")
    return held


def guarded_hold(hold: BaseHold) -> FileHold | None:
    """The `FileHold` of a lock file with a kernel lock, which another process can be given; else None."""
    held = hold._held
    return held if isinstance(held, FileHold) and held.guarded else None


def can_be_released(hold: BaseHold) -> bool:
    """Whether there is anything to release: not after a release, not in a forked child."""
    return not hold._is_released() and not hold._held.inert


def leave_to(hold: Hold, owner: int) -> bool:
    """Leave the lock file to the living process that it names. If that has ended, release it: False."""
    held = hold._held
    if held.env.inspect(owner).has_ended:
        hold.release()
        return False
    held.abandon()
    return True


def leave_to_others(hold: BaseHold) -> None:
    """Note that a `with` or a face, not this handle, releases it. So it may be collected (_core/hold.py, H3)."""
    hold._ref.dropped = None


def leave_to_statement(hold: BaseHold, statement: object) -> None:
    """Leave the release to a `with`, or else to the end of this object (operations.py, J5)."""
    ref = hold._ref
    ref.held.env.operations.entered[ref] = weak_reference(statement)
    ref.dropped = None


def require_unreleased(hold: BaseHold) -> None:
    """Raise NotHeld after a release and in a forked child."""
    if not can_be_released(hold):
        hold.ensure_held()
