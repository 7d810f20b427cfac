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

from .._platform.fork import notice_fork, under_way
from ..errors import LockLost, NotHeld, set_error_path
from ..events import has_listener, report
from ..model import INFINITY, Record
from .attempt import AttemptEvents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, NoReturn

    from .._platform.interface import Environment
    from .._platform.operations import Operation
    from .options import Request
    from .wait import Steps


class HoldRef:
    """One handle's share of a hold. If its `operation` fails to deliver it, it is given back."""

    __slots__ = ("context", "dropped", "held", "operation", "releasing", "request")

    def __init__(self, held: HoldState, request: Request, context: tuple[object, ...], operation: int) -> None:
        self.held = held
        self.request = request
        """The request of this handle; of the first handle, that of the hold."""
        self.context = context
        self.operation = operation
        self.dropped: bool | None = False
        """Whether its handle was collected and cannot release it; None if a `with` or a face releases it (H3)."""
        self.releasing: int | None = None
        """The thread that is releasing it. It may still wait for the mutex, held by a look that asks a server."""


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
    """The frame and the outer operation of the release, while it lasts."""
    lease: Any = None
    """The lease: it ends the hold if no beat was confirmed in time. None if beats only keep the record fresh."""
    tells_loss = True
    """Whether its loss makes an event, where events arrive at all."""
    waits = False
    """Whether a release has to wait for a server's answer, as the generator `releasing` does."""

    def __init__(self, env: Environment, request: Request, key: tuple[object, ...]) -> None:
        self.env = env
        self.key = key
        """Its key among the holds of this process."""
        self.request = request
        self.path = request.path
        self.generation = env.generation
        self.refs: list[HoldRef] = []
        self.lost = False
        self.released = False
        self.recovered_from: Record | None = None
        self.frame = self.outer = None
        self.keeper: Any = None
        """The keeper, which sends the heartbeats and checks whether the hold is lost."""
        self.next_beat = INFINITY
        self.acquired = env.monotonic()
        self.token: int | None = None
        """The fencing token, where there is one."""
        self.attempt_events: AttemptEvents | None = None  # the events of this hold
        self.watched = request.watched
        """Whether a callback of one of its handles must hear of a loss at once."""
        self.mutex = _thread.RLock()
        self.operation = env.operations.number()
        env.holds[key] = self

    # -- what an engine does -------------------------------------------------------------------------------------------

    @abstractmethod
    def release(self, ref: HoldRef | None = None) -> None:
        """Release the lock, or this handle's share of it. LockLost if the lock was no longer ours."""

    def drop(self, ref: HoldRef) -> None:
        """Release this handle's share where nothing may wait: in a finalizer, for example, which runs in any thread."""
        try:
            self.release(ref)
        except LockLost:
            pass

    @abstractmethod
    def releasing(self, ref: HoldRef | None = None) -> Steps[None]:
        """Release as a generator, for a hold whose release waits for a server."""

    @abstractmethod
    def abandon(self) -> None:
        """Give up the hold but leave the lock, which belongs to another process."""

    @property
    def beat_every(self) -> float:
        """Seconds between heartbeats."""
        return self.request.beat_every

    @abstractmethod
    def beat(self) -> None:
        """Send a heartbeat."""

    @abstractmethod
    def record(self) -> Record:
        """The record of our hold, as the lock has it."""

    @abstractmethod
    def _undo(self) -> None:
        """Give up whatever exists of the hold; may be interrupted, and called again."""

    @abstractmethod
    def _is_ours(self) -> bool:
        """Whether the lock is still ours, as far as is known."""

    def descriptors(self) -> tuple[int, ...]:
        """Those that it has open, whichever operation opened them."""
        return ()

    def is_waiting_for(self, error: OSError) -> bool:  # noqa: ARG002
        """Whether to repeat a release that failed so: its server may come back before the lease is over."""
        return False

    @abstractmethod
    def _how_lost(self) -> str:
        """How the lock was lost: the rest of a sentence that begins with its path."""

    # -- what all do ---------------------------------------------------------------------------------------------------

    def ref(self, context: tuple[object, ...]) -> HoldRef:
        """The share of the first handle."""
        ref = HoldRef(self, self.request, context, self.operation)
        self.refs.append(ref)
        return ref

    def join(self, request: Request, context: tuple[object, ...]) -> HoldRef | None:
        """A share of a hold that is finished, not being released, and still ours; else None (H2)."""
        with self.mutex:
            if self.released or not self.refs:
                return None
            if self.verify():
                if self._was_released():
                    return None
                ref = HoldRef(self, request, context, self.env.operations.number())
                self.refs.append(ref)
                self.watched = self.watched or request.watched
                return ref
        self.check()  # reports the loss, without the mutex
        return None

    def _leave(self, ref: HoldRef) -> bool:
        """Whether this handle has given up its share, because it is not the last one. LockLost if the lock is lost."""
        lost = None
        try:
            self.ensure()
        except LockLost as error:
            lost = error
        except (NotHeld, OSError):
            pass  # released meanwhile; or the last one's release meets the same error
        with self.mutex:
            if self.refs == [ref] or ref not in self.refs:
                return False
            self.refs.remove(ref)
        if lost is not None:
            raise lost
        return True

    @property
    def inert(self) -> bool:
        """Whether this process is a forked child of the one that acquired (H1)."""
        if under_way:
            notice_fork()
        return self.generation != self.env.generation

    def require_same_process(self) -> None:
        """Raise RuntimeError in a child that a callback or a signal handler forked before the hold was delivered."""
        if self.inert:
            raise forked(self.request)

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
        """Remove it from the holds of this process, unless the entry is a later hold with the same key."""
        if self.env.holds.get(self.key) is self:
            del self.env.holds[self.key]

    def _finish(self) -> None:
        """The last step, without the mutex: a thread with the keeper's mutex may be waiting for it."""
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
            return False  # without the mutex, which a thread that reports the loss to a server may have
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
        """Like `verify`; also calls `on_lost` the first time that the lock is found lost."""
        ours = self.verify()
        if not ours and not self.released and not self.lost and not self.inert:
            try:
                self._tell_lost()
            except Exception as error:  # the caller's on_lost failed, but the caller asks only about the lock
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
            if self.attempt_events is not None or has_listener("lost", self.request.on_event):
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
        """Call all listeners, then raise the first exception, Ctrl-C before an error. Other errors are logged."""
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
        """Note that the caller has been told of the loss, as far as it wanted to be."""

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


def forked(request: Request) -> RuntimeError:
    """The error of a child that finds itself in its parent's acquisition."""
    return RuntimeError(f"the process was forked while it acquired {request.target}; acquire again in the child")


def give_back(ref: HoldRef) -> None:
    """Undo an acquisition that the caller never got. May be interrupted, and called again (operations.py, J3)."""
    held = ref.held
    with held.mutex:
        if ref in held.refs and held.refs != [ref]:
            held.refs.remove(ref)
            return
        if ref in held.refs:
            held.give_back()
    if held.released and held.attempt_events is not None:
        held.attempt_events.undone(held)
