"""What a caller has of a hold: its handle. `Hold`, and what it has in common with the handle of the asyncio face."""

from __future__ import annotations

import sys
import types
import weakref
from _thread import _local
from _warnings import warn

from ._core.environment import Presence
from ._core.hold import Share
from ._core.operation import numbers
from ._drive.keeper import Keeper
from ._os import forking
from .errors import LockLost, NotHeld

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import NoReturn

    from ._os.generic import GenericEnvironment
    from .model import Record

NEVER = float("inf")
_keeper: Keeper | None = None


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
    def slot(self) -> int | None:
        """The number of the slot, counted from 0, if this is a hold of a semaphore; None for the hold of a lock."""
        return self._held.request.slot

    @property
    def record(self) -> Record:
        """What the lock file says about this hold."""
        return self._held.record()

    @property
    def recovered_from(self) -> Record | None:
        """The record of the dead or stale holder that this hold replaced; None after an ordinary acquisition."""
        return self._held.recovered_from

    @property
    def token(self) -> int | None:
        """The fencing token: higher than that of every hold of this lock before. None where the engine has none.

        Pass it to what the lock protects, and have that refuse a lower one than it has seen (docs/fencing.md).
        """
        return self._held.token

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
            if not held.released and not held.inert and not self._is_released():
                held.release(self._share)  # Ctrl-C came before it had begun

    def _is_released(self) -> bool:
        return self._held.released or self._share not in self._held.shares

    def _leave_to_others(self) -> None:
        """Something else than this handle releases it: a `with`, or a face. So it may be collected (hold.py, H8)."""
        self._share.dropped = None

    def __del__(
        self,
        _warn: Callable[..., None] = warn,
        _is_finalizing: Callable[[], bool] = sys.is_finalizing,
    ) -> None:
        """H8. What it calls is bound early: at the end of the interpreter, this module may be empty."""
        share: Share | None = getattr(self, "_share", None)  # it may not even have been made
        if share is None or share.dropped is not False or _is_finalizing():
            return
        held = share.held
        if held.inert or held.lost or held.released or held.request.released_by_path or share not in held.shares:
            return
        if share.operation in held.env.operations.running:
            return  # never delivered: whoever undoes the operation gives it back (operation.py, J2)
        share.dropped = True
        _warn(
            f"the handle of {held.path} was dropped without release(); the lock is held until this process ends",
            ResourceWarning,
            2,
            self,
        )

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

    def __enter__(self) -> Hold:
        self._leave_to_others()
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


class Leaving:
    """What a `with` statement keeps while it is inside, calls when it is left, and then drops (operation.py, J5)."""

    __slots__ = ("__weakref__", "_exit", "_hold", "_number")

    def __init__(self, leave: Callable[..., None]) -> None:
        self._exit = leave
        self._hold: Hold | None = None

    def inside(self, hold: Hold) -> None:
        """The statement has been entered."""
        self._number = next(numbers)
        hold._held.env.operations.entered[self._number] = (weakref.ref(self), hold._share)
        self._hold = hold
        hold._leave_to_others()

    def __call__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        hold = self._hold
        if hold is None:
            self._exit(kind, error, traceback)  # by hand, and not by a `with`
            return
        try:
            hold.__exit__(kind, error, traceback)
        finally:
            self._end()

    def _end(self) -> None:
        hold = getattr(self, "_hold", None)  # it may not even have been made
        if hold is not None:
            if not hold._is_released():
                hold._release()
            hold._held.env.operations.entered.pop(self._number, None)
            self._hold = None

    def __del__(self) -> None:
        try:
            self._end()
        except LockLost:
            pass


class Exit:
    """The `__exit__` of a class: each `with` gets one of its own."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __get__(self, entered: object | None, kind: type | None = None) -> Callable[..., None]:
        if entered is None:
            return self._function
        leaving = Leaving(types.MethodType(self._function, entered))
        _last.leaving = (entered, weakref.ref(leaving))
        return leaving


_last = _local()


def leaving(entered: object) -> Leaving | None:
    """That of the `with` statement which enters this now; None if it is entered by hand."""
    last: tuple[object, Callable[[], Leaving | None]] | None = getattr(_last, "leaving", None)
    _last.leaving = None
    return last[1]() if last is not None and last[0] is entered else None


def keep(env: GenericEnvironment, share: Share) -> None:
    """See to the heartbeats of a new hold, to the news of its loss, and to its release at exit."""
    global _keeper
    if _keeper is None:
        with forking:
            if _keeper is None:
                _keeper = Keeper(env)  # it also releases at exit, so every hold needs it
    if not _keeper.is_prepared:
        _keeper.prepare()
    held = share.held
    if held.waits:
        return  # the engine keeps it
    if held.request.beat_every != NEVER or held.request.watched:
        _keeper.keep(held, held.request.beat_every)
