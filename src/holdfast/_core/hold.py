"""A hold of any engine: its handles, whether it is lost, and the events of both.

    held ──release()──▶ released
      │  ──abandon()──▶ released          the lock stays: it is another process's
      └──check()──────▶ lost ──release()──▶ released; a lock that another process has by now is left alone

H1  Only the process that acquired may act. A forked child has another `generation`; every step there does nothing.
H2  A hold belongs to its `refs`, one for each handle. They change only under `mutex`: the last one to go releases,
    releasing twice is harmless, a hold that is being released cannot be joined, and no heartbeat writes to a descriptor
    whose number may already be another file's. A hold without refs is not finished yet, and cannot be joined either.
    The mutex is re-entrant, as a signal handler or a finaliser may release during a check; hence the second look at
    `released` after each system call. A hold that has ended has no refs: they know it, and nothing of it is left for
    the garbage collector to find.
H3  A garbage-collected handle leaves the lock held, and a ResourceWarning says so. Collection may happen in any thread
    at any allocation, so it changes one attribute of its ref and takes no mutex. There is no warning for a hold that
    was never delivered, that belongs to a parent, or that something other than the handle releases. One that a `with`
    had entered and never left is released (operations.py, J5).
"""

from __future__ import annotations

import _thread
import sys
from abc import abstractmethod

from ..errors import LockLost, NotHeld, set_error_path
from ..events import is_heard, report
from ..model import INFINITY
from .attempt import AttemptEvents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, NoReturn

    from .._platform.interface import Environment
    from .._platform.operations import Operation
    from ..model import Record
    from .options import Request
    from .wait import Steps


class HoldRef:
    """One handle's part in a hold. If its `operation` fails to deliver it, it is given back."""

    __slots__ = ("context", "dropped", "held", "operation", "releasing", "request")

    def __init__(self, held: HoldState, request: Request, context: tuple[object, ...], operation: int) -> None:
        self.held = held
        self.request = request
        """What this handle was asked for with: of the first, that of the hold."""
        self.context = context
        self.operation = operation
        self.dropped: bool | None = False
        """Whether its handle was collected, so that it cannot be released; None if a `with` or a face will (H3)."""
        self.releasing: int | None = None
        """The thread that releases it now: it may still wait for the mutex, which a look has that asks a server."""


class HoldState:
    """The engine's side of a hold. `Hold` is the caller's handle on it; re-entrant handles share one."""

    __slots__ = (
        "acquired",
        "attempt_events",
        "env",
        "frame",
        "generation",
        "keeper",
        "key",
        "lost",
        "mutex",
        "next_beat",
        "operation",
        "outer",
        "path",
        "recovered_from",
        "refs",
        "released",
        "request",
        "token",
        "watched",
    )

    frame: FrameType | None
    outer: Operation | None
    """Both of the release, while it lasts."""
    lease: Any = None
    """What says when it is lost if no beat has been confirmed by then; None if beats only keep the record fresh."""
    tells_loss = True
    """Whether the loss of it makes an event, where events come at all."""
    waits = False
    """Whether a release has to wait for a server's answer, as the generator `releasing` does."""

    def __init__(self, env: Environment, request: Request, key: tuple[object, ...]) -> None:
        self.env = env
        self.key = key
        """Its own among the holds of this process."""
        self.request = request
        self.path = request.path
        self.generation = env.generation
        self.refs: list[HoldRef] = []
        self.lost = False
        self.released = False
        self.recovered_from: Record | None = None
        self.frame = self.outer = None
        self.keeper: Any = None
        """It sends the heartbeats, and checks whether the hold is lost."""
        self.next_beat = INFINITY
        self.acquired = env.monotonic()
        self.token: int | None = None
        """The fencing token, where there is one."""
        self.attempt_events: AttemptEvents | None = None  # the events of this hold
        self.watched = request.watched
        """Whether a callback of one of its handles is to hear of a loss at once."""
        self.mutex = _thread.RLock()
        self.operation = env.operations.number()
        env.holds[key] = self

    # -- what an engine does -------------------------------------------------------------------------------------------

    @abstractmethod
    def release(self, ref: HoldRef | None = None) -> None:
        """Give up the lock, or this handle's part in it. LockLost if it was no longer ours."""

    def drop(self, ref: HoldRef) -> None:
        """Give up this handle's part where nobody can wait: in a finalizer, say, which runs in any thread."""
        try:
            self.release(ref)
        except LockLost:
            pass

    @abstractmethod
    def releasing(self, ref: HoldRef | None = None) -> Steps[None]:
        """The same, for a hold whose release waits."""

    @abstractmethod
    def abandon(self) -> None:
        """Let go of it and leave the lock: it belongs to another process."""

    @property
    def beat_every(self) -> float:
        """Seconds between heartbeats."""
        return self.request.beat_every

    @abstractmethod
    def beat(self) -> None:
        """Send a heartbeat."""

    @abstractmethod
    def record(self) -> Record:
        """What the lock says about us."""

    @abstractmethod
    def _undo(self) -> None:
        """Give up whatever exists of it; may be interrupted, and called again."""

    @abstractmethod
    def _is_ours(self) -> bool:
        """Whether the lock is still ours, as far as is known now."""

    def is_waiting_for(self, error: OSError) -> bool:  # noqa: ARG002
        """Whether a release that failed so is to be repeated, as its server may come back before the lease is over."""
        return False

    @abstractmethod
    def _how_lost(self) -> str:
        """How it was lost: the rest of a sentence that begins with its path."""

    # -- what all do ---------------------------------------------------------------------------------------------------

    def ref(self, context: tuple[object, ...], request: Request | None = None) -> HoldRef:
        """The first handle's part; or a further one, for a caller that has made sure that this is allowed."""
        operation = self.env.operations.number() if self.refs else self.operation
        ref = HoldRef(self, request or self.request, context, operation)
        self.refs.append(ref)
        self.watched = self.watched or ref.request.watched
        return ref

    def join(self, request: Request, context: tuple[object, ...]) -> HoldRef | None:
        """A part in a hold that is finished, not being released, and still ours; else None (H2)."""
        with self.mutex:
            if self.released or not self.refs:
                return None
            if self.verify():
                return None if self.released else self.ref(context, request)
        self.check()  # reports the loss, without the mutex
        return None

    @property
    def inert(self) -> bool:
        """Whether this process is a forked child of the one that acquired (H1)."""
        return self.generation != self.env.generation

    def give_back(self) -> None:
        """Undo an acquisition that the caller never got. Never raises."""
        operations = self.env.operations
        _broken_off = self.frame  # as in `release`
        with self.mutex:
            if not self.inert:
                self.frame, self.outer = sys._getframe(), operations.current()
                operations.running[self] = self
                self.released = True
                self._undo()
        if self.frame is not None:
            self._finish()

    def _forget(self) -> None:
        """Take it off the list, unless the entry is a later hold of the same key by now."""
        if self.env.holds.get(self.key) is self:
            del self.env.holds[self.key]

    def _finish(self) -> None:
        """The last step, without the mutex: a thread that has the keeper's mutex may wait for this one."""
        if self.released and self.keeper is not None:
            self.keeper.forget(self)
        self.env.operations.running.pop(self, None)
        self.frame = self.outer = None

    def undo(self) -> None:
        """Complete a release that was interrupted (operations.py, J2)."""
        if self.released:
            self._undo()
            self._finish()

    def verify(self) -> bool:
        """Whether the lock is still ours, now."""
        if self.inert or self.lost:
            return False  # without the mutex, which one that tells the loss to a server may have
        with self.mutex:
            if self.released or self.lost:
                return False
            try:
                ours = self._is_ours()
            except OSError as error:
                if self._was_released():
                    return False
                set_error_path(error, self.path)
                raise
            return ours and not self._was_released()

    def check(self) -> bool:
        """The same; calls `on_lost` the first time that the lock is found lost."""
        ours = self.verify()
        if not ours and not self.released and not self.lost and not self.inert:
            try:
                self._tell_lost()
            except Exception as error:  # of the caller's on_lost, which is not what is asked for
                report(f"in on_lost for {self.path}", error)
        return ours

    def ensure(self) -> None:
        """Raise unless the lock is held here and now."""
        if self.inert:
            raise self.request.error(
                NotHeld,
                f"{self.path} was acquired by another process, which forked this one; a child holds nothing. Acquire "
                "the lock in the child if it needs it.",
            )
        if not self.verify():
            if self.lost:
                raise self.lost_error()  # without the mutex, as in `verify`
            if not self.released:
                self._raise_lost()
            raise self.request.error(NotHeld, f"{self.path} has been released")

    def lost_error(self) -> LockLost:
        text = f"{self.path} {self._how_lost()} Stop, and check what the lock protects before going on."
        return self.request.error(LockLost, text)

    def _was_released(self) -> bool:
        return self.released

    def _raise_lost(self) -> NoReturn:
        lost = self.lost_error()
        try:
            self._tell_lost()
        except Exception as error:  # whatever the caller's on_lost raises, the loss is what to report
            raise lost from error
        raise lost

    def _tell_lost(self) -> None:
        with self.mutex:
            first, self.lost = not self.lost, True
            listeners = self._listeners()
        if not first:
            return
        try:
            self._tell_each(listeners)
        finally:
            self._was_told()
            if self.attempt_events is not None or is_heard("lost", self.request.on_event):
                self._attempt_events().lost(self)

    def _listeners(self) -> list[Callable[[LockLost], object]]:
        """The `on_lost` of each handle, once: callers that share a hold need not know of each other."""
        requests = [ref.request for ref in self.refs] or [self.request]
        found: list[Callable[[LockLost], object]] = []
        for request in requests:
            if request.on_lost is not None and request.on_lost not in found:
                found.append(request.on_lost)
        return found

    def _tell_each(self, listeners: list[Callable[[LockLost], object]]) -> None:
        """All of them, whatever one raises. That is raised then, Ctrl-C before an error; other errors are logged."""
        failed: list[Exception] = []
        interruption: BaseException | None = None
        for tell in listeners:
            try:
                tell(self.lost_error())
            except Exception as error:
                failed.append(error)
            except BaseException as error:
                interruption = interruption or error
        first = interruption or (failed.pop(0) if failed else None)
        for another in failed:
            report(f"in on_lost for {self.path}", another)
        if first is not None:
            raise first

    def _was_told(self) -> None:
        """The loss has been told to the caller, as far as the caller wanted to hear of it."""

    def _attempt_events(self) -> AttemptEvents:
        with self.mutex:
            if self.attempt_events is None:
                self.attempt_events = AttemptEvents.of(self)
            return self.attempt_events

    def give_back_of(self, operation: int) -> None:
        """Undo what this operation has acquired of it."""
        for ref in self.refs.copy():
            if ref.operation == operation:
                give_back(ref)
        if self.operation == operation and not self.refs:
            self.give_back()  # it was not finished


def give_back(ref: HoldRef) -> None:
    """Undo what the caller never got. May be interrupted, and called again (operations.py, J3)."""
    held = ref.held
    with held.mutex:
        if ref in held.refs and held.refs != [ref]:
            held.refs.remove(ref)
            return
        if ref in held.refs:
            held.give_back()
    if held.released and held.attempt_events is not None:
        held.attempt_events.undone(held)
