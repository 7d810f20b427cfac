"""The synchronous face of the engine: `Lock`, which says what is wanted, and `Hold`, one acquisition of it."""

from __future__ import annotations

import os
import sys

from ._core.acquire import acquire, give_back_undelivered, look, wait_until_free
from ._core.contest import Refusal
from ._core.environment import Presence
from ._core.hold import Held, Share
from ._core.remove import break_lock
from ._core.report import refused, waiting
from ._core.request import Options, Request, check_timeout
from ._drive.keeper import Keeper
from ._drive.sync import caller, drive
from ._os import environment, forking
from .errors import LockLost, NotHeld

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, NoReturn, TypeVar, Unpack

    from ._os.generic import GenericEnvironment
    from .model import Record, Status

    F = TypeVar("F", bound=Callable[..., object])

_UNSET: Any = object()
_keeper: Keeper | None = None


class Lock:
    """A lock on a path, shared with every process that uses the same path and protocol.

    Making one touches nothing. One object may be used by any number of threads, and again and again. It can be pickled:
    a process that it is sent to has a lock with the same absolute path and options, and holds nothing.

    - `protocol`: how the lock file is written and judged; only equal protocols exclude each other. `"sema"`: a file
      that is there while the lock is held. `"flock"`: one that stays and is locked, as by `flock(1)` (docs/flock.md).
    - `tag`: one line for people, saying what the lock is held for. At most 10 000 characters.
    - `timeout`: how long to wait, in seconds. `None`: for ever; `0`: try once.
    - `stale`: when another's lock may be taken over. `"safe"`: at once if its holder is proven dead, else if the
      protocol's rule holds and the holder is not known to live. `"protocol"`: by the protocol's rule to the letter.
      `"never"`. Or a callable that is given the `Status` and decides; it is asked at least once a second while waiting.
      A holder whose kernel lock is held is respected always; a record that cannot be read is never taken over.
    - `stale_after`: age in seconds at which the protocol's rule holds. `None`: the protocol's own (sema: 3600).
    - `mode`: permission bits of a new lock file, before the umask. `None`: the protocol's own (sema: 0o644).
    - `durable`: `fsync` the lock file and its directory. A lock that survives a power cut outlives its holder, so off.
    - `heartbeat`: seconds between refreshes of the timestamp. `None`: a third of the age at which others may call it
      stale. `0`: never.
    - `owner`: anything hashable; holds of equal owners in one process share the lock and are counted.
    - `fair`: go in after those who have waited for longer than a moment (2 ms). They queue in the order of their
      arrival, and a release wakes only the first. `False`: no part in any queue. Exclusion does not depend on it.
    - `shared`: hold it together with others that asked for it shared; only the `flock` protocol has that. Who wants it
      alone and waits comes before those who would share it later, also before one that asks with `timeout=0`.
    - `parents`: create missing directories.
    - `on_lost`: called once with the `LockLost` error when the lock is found removed, replaced or written over: from a
      thread of its own, or by `release`, `lost` or `ensure_held` where one of these finds it first.

    Raises ValueError or TypeError for an option that makes no sense, InvalidPath for a path that cannot be a lock file.
    With `flock` these make none: `stale_after`, `heartbeat`, `durable`, a callable `stale`; the kernel knows who lives.
    Not promised: exclusion between machines that share a network filesystem without working locks (docs/guarantees.md).
    """

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[Options]) -> None:
        self._env = environment()
        self._options = options
        self._request = Request(path, options)
        self._request.notice = _log_waiting
        self._entered: dict[tuple[object, ...], list[Hold]] = {}

    @property
    def path(self) -> str:
        """The absolute path of the lock file."""
        return self._request.path

    @property
    def protocol(self) -> str:
        """The name of the protocol."""
        return self._request.protocol.name

    def acquire(self, timeout: float | None = _UNSET) -> Hold:
        """Acquire the lock and return its handle, waiting up to `timeout` seconds.

        `None` waits for ever, `0` tries once; left out, the lock's own `timeout` counts. The lock is held until the
        handle is released or the process ends, even if the handle is dropped.

        Raises AcquireTimeout, which knows the holder; WouldDeadlock when this thread already holds the lock and
        would wait for ever; ProtocolMismatch; InvalidPath; UnsupportedFilesystem; and OSError as the system
        gives it.
        """
        timeout = self._request.timeout if timeout is _UNSET else check_timeout(timeout)
        hold = self._acquire(timeout, required=True)
        assert hold is not None
        return hold

    def try_acquire(self) -> Hold | None:
        """Acquire the lock if that needs no waiting, else return None. Raises as `acquire`, but no AcquireTimeout."""
        return self._acquire(0, required=False)

    def _acquire(self, timeout: float | None, *, required: bool) -> Hold | None:
        env, me = self._env, caller()
        try:
            result = drive(acquire(env, (self._request,), timeout, me))
            if not isinstance(result, Refusal):
                hold = Hold(result)
                _keep(env, result)
                result.delivered = True  # from here to the caller there is no call, so no signal handler
                return hold
        except BaseException:
            give_back_undelivered(env, me)
            raise
        if required:
            raise refused(result, timeout)
        return None

    def status(self) -> Status:
        """Look at the lock without changing anything; outdated as soon as it is returned."""
        return look(self._env, self._request)

    def wait(self, timeout: float | None = _UNSET) -> bool:
        """Wait until the lock could be acquired, without acquiring it. False when `timeout` seconds were not enough."""
        timeout = self._request.timeout if timeout is _UNSET else check_timeout(timeout)
        return drive(wait_until_free(self._env, (self._request,), timeout, caller())) is None

    def break_lock(self) -> Record | None:
        """Remove the lock file, whoever holds it, and return its record; None if there was none, or none readable.

        The holder is not stopped: it finds its lock lost. For people who know better than the evidence.
        HoldfastError for a `flock` lock that is held: without its file, others would get in beside the holder.
        """
        return break_lock(self._env, self._request)

    # For the command line: not part of the public interface.

    def _announce(self, notice: Callable[[Status], None] | None) -> None:
        """Call `notice` once when a wait has lasted a second."""
        self._request.notice = notice

    def _bind(self, owner: int) -> None:
        """Acquire on behalf of another living process, whose identity then is the proof of life."""
        if self._request.protocol.persistent:
            raise ValueError(
                f"a {self.protocol} lock is held by a process that has the file open, so it cannot be left to a shell; "
                f"run the command inside it: holdfast run -p {self.protocol} LOCK -- CMD"
            )
        self._request.on_behalf_of = owner
        self._request.beat_every = _NEVER

    def _release_all(self) -> None:
        """Release whatever this process holds."""
        for held in list(self._env.holds.values()):
            held.release()

    def __enter__(self) -> Hold:
        me = caller()
        hold = self.acquire()
        try:
            self._entered.setdefault(me, []).append(hold)
        except BaseException:
            self._leave(me, hold)
            hold.release()
            raise
        return hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._innermost()[1].__exit__(kind, error, traceback)
        finally:
            me, hold = self._innermost()
            self._leave(me, hold)
            if not hold._held.released:
                hold.release()  # Ctrl-C came before it had begun

    def _innermost(self) -> tuple[tuple[object, ...], Hold]:
        me = caller()
        with forking:  # a mutex of our own would be taken for ever in a child that is forked meanwhile
            if me not in self._entered:
                me = next(iter(self._entered))  # a generator's `with` may be left in another thread
            return me, self._entered[me][-1]

    def _leave(self, me: tuple[object, ...], hold: Hold) -> None:
        with forking:
            holds = self._entered.get(me, [])
            if hold in holds:
                holds.remove(hold)
            if not holds:
                self._entered.pop(me, None)

    def __call__(self, function: F) -> F:
        """Decorate a function: each call holds the lock. An `async def` is refused: this lock would block its loop."""
        import functools
        import inspect

        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__qualname__} is async; a Lock would block its event loop while it waits")
        if inspect.isgeneratorfunction(function):
            raise TypeError(f"{function.__qualname__} is a generator; the lock would be released before its body runs")

        @functools.wraps(function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return locked  # type: ignore[return-value]

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_again, (type(self), self.path, self._options)

    def __repr__(self) -> str:
        return f"<holdfast.Lock {self.path!r} protocol={self.protocol}>"


class BaseHold:
    """What a hold can tell, whichever face it belongs to."""

    __slots__ = ("_held", "_share")

    def __init__(self, share: Share) -> None:
        self._share = share
        self._held = share.held

    @property
    def path(self) -> str:
        """The absolute path of the lock file."""
        return self._held.path

    @property
    def record(self) -> Record:
        """What the lock file says about this hold."""
        return self._held.record()

    @property
    def recovered_from(self) -> Record | None:
        """The record of the dead or stale holder that this hold replaced; None after an ordinary acquisition."""
        return self._held.recovered_from

    @property
    def lost(self) -> bool:
        """Whether the lock file was removed or replaced while it was held; looked up now. False after a release."""
        if not self._is_released():
            self._held.check()
        return self._held.lost

    def ensure_held(self) -> None:
        """Return if this handle holds the lock now. Raises LockLost; NotHeld after a release or in a forked child."""
        if self._is_released() and not self._held.inert:
            raise NotHeld(f"{self.path} has been released by this handle", path=self.path)
        self._held.ensure()

    def _release(self) -> None:
        held = self._held
        try:
            held.release(self._share)
        finally:
            if not held.inert and not self._is_released():
                held.release(self._share)  # Ctrl-C came before it had begun
            if held.released and _keeper is not None and _is_kept(held):
                _keeper.forget(held)

    def _is_released(self) -> bool:
        return self._held.released or self._share not in self._held.shares

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the hold of {self.path} belongs to this process and cannot be pickled or copied; send the Lock and "
            "acquire it where it is needed, or keep the hold here until that work is done"
        )

    def __repr__(self) -> str:
        state = "lost" if self._held.lost else "released" if self._is_released() else "held"
        return f"<holdfast.{type(self).__name__} {self.path!r} {state}>"


class Hold(BaseHold):
    """One acquisition of a lock; the handle, not the thread, owns it. Usable as a context manager that releases."""

    __slots__ = ()

    def release(self) -> None:
        """Give the lock up; from any thread. The second time, and in a forked child, it does nothing.

        Raises LockLost if the lock had been removed or replaced; then whatever is at the path is left alone.
        """
        self._release()

    def _leave_to(self, owner: int) -> bool:
        """Leave the lock file to the living process that it names; False, and released, if that has ended meanwhile."""
        held = self._held
        if held.env.inspect(owner).presence in (Presence.GONE, Presence.ZOMBIE):
            self.release()
            return False
        held.abandon()
        return True

    def _set_inheritable(self, inheritable: bool) -> None:
        """Whether a process that is started now gets the guard's descriptor, and with it a share in the guard."""
        if self._held.guarded:
            os.set_inheritable(self._held.fd, inheritable)

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.release()
        except LockLost as lost:
            if error is None:
                raise
            error.add_note(str(lost))  # the body's own error is the news; this goes with it


_NEVER = float("inf")


def _make_again(kind: type[Lock], path: str, options: Options) -> Lock:
    return kind(path, **options)


def _keep(env: GenericEnvironment, share: Share) -> None:
    global _keeper
    if _keeper is None:
        with forking:
            if _keeper is None:
                _keeper = Keeper(env)  # it also releases at exit, so every hold needs it
    _keeper.prepare()
    if _is_kept(share.held):
        _keeper.keep(share.held, share.held.request.beat_every)


def _is_kept(held: Held) -> bool:
    return held.request.beat_every != _NEVER or held.request.on_lost is not None


def _log_waiting(status: Status) -> None:
    """After a second of waiting, say so, to whoever has set logging up."""
    logging = sys.modules.get("logging")
    if logging is not None:
        logging.getLogger("holdfast").info("%s", waiting(status))
