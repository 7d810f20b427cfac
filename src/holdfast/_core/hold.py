"""A hold: from the moment the lock is ours until it is released, left to another, or lost.

    held ──release()──▶ released          the file is unlinked, then the guard dropped
      │  ──abandon()──▶ released          the file stays: it is another's
      └──check()──────▶ lost ──release()──▶ released, and the other's file is left alone

H1  Only the process that acquired may act. A forked child has another `generation`; every step there does nothing.
H2  A hold belongs to its `shares`, one for each handle. All that changes it happens under `mutex`: the last share that
    goes releases, twice is harmless, nobody joins a hold that is being released, and no heartbeat writes to a
    descriptor whose number may already be another file's. A hold without shares is not finished yet; nobody joins
    that, either. The mutex is re-entrant: a signal handler or a finaliser may release in the midst of a check; hence
    the second look at `released` behind each system call.
H3  Unlink, unlock, close, in that order. Unlocked before unlinked, the file would look like a dead holder's. Unlocking
    explicitly ends the guard at once even if a child, between vfork and exec, still has a copy of the descriptor.
H4  The file is ours while the path names our inode *and* the record is still the one we wrote: a foreign process may
    remove and create anew (another inode) or write over (same inode).
H5  Interrupted anywhere in a release, the rest of it is done all the same, as far as the system lets us: by the release
    itself, or, if that is interrupted as well, by whoever begins the next operation (operation.py, J2 to J4).
H6  Without a guard, the record of a living process is all there is. If it cannot be removed, the hold stays as it is,
    to be released again, at exit at the latest: otherwise nobody could get the lock while this process lives.
H7  A caller may have closed our descriptor (`os.closerange`), and its number be another file's. So we look whether it
    leads to our file before it is unlocked or closed; if not, it is left alone, and the lock is lost.
H8  A handle that is collected leaves the lock held, and a ResourceWarning says so. It changes one attribute of its
    share and takes no mutex: a collection comes in any thread, at any allocation. Nothing is said of a hold that was
    never delivered, that belongs to a parent, or that something else than the handle will release.
"""

from __future__ import annotations

import _thread
import math
import sys

from ..errors import LockLost, NotHeld
from ..events import is_heard, listeners
from ..model import Record
from .files import forget_hold, is_there, leads_to, located, withdraw
from .story import Story
from .tickets import MOMENT, tidy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType
    from typing import Any, NoReturn

    from .environment import Environment, Wait
    from .operation import Operation
    from .queue import Place
    from .request import Request


class Share:
    """One handle's part in a hold. If its `operation` does not get to deliver it, it is given back."""

    __slots__ = ("context", "dropped", "held", "operation")

    def __init__(self, held: Held, context: tuple[object, ...], operation: int) -> None:
        self.held = held
        self.context = context
        self.operation = operation
        self.dropped: bool | None = False
        """Whether its handle was collected, so that nobody can release it; None if a `with` or a face will (H8)."""


class Held:
    """The engine's side of a hold. `Hold` is the caller's handle on it; re-entrant handles share one."""

    __slots__ = (
        "acquired",
        "data",
        "env",
        "fd",
        "frame",
        "generation",
        "guarded",
        "identity",
        "keeper",
        "lost",
        "mutex",
        "next_beat",
        "operation",
        "outer",
        "path",
        "place",
        "recovered_from",
        "released",
        "request",
        "shares",
        "story",
        "token",
    )

    frame: FrameType | None
    outer: Operation | None
    """Of the release, while it lasts."""
    waits = False
    """Whether a release has to wait for somebody's answer: then `releasing` is the generator that does."""

    def __init__(
        self, env: Environment, request: Request, fd: int, identity: tuple[int, int], data: bytes, guarded: bool
    ) -> None:
        self.env = env
        self.request = request
        self.path = request.path
        self.fd = fd
        self.identity = identity
        self.data = data
        self.guarded = guarded
        self.generation = env.generation
        self.shares: list[Share] = []
        self.lost = False
        self.released = False
        self.recovered_from: Record | None = None
        self.frame = self.outer = None
        self.keeper: Any = None
        """Who beats for it, and looks whether it is lost."""
        self.next_beat = math.inf
        self.acquired = env.monotonic()
        self.place: Place | None = None
        """Our place in the queue of those who wait, which the next one watches (queue.py, Q4)."""
        self.token: int | None = None
        """The fencing token, where there is one."""
        self.story: Story | None = None  # what is told of this hold
        self.mutex = _thread.RLock()
        self.operation = env.operations.number()
        self._enrol()

    def share(self, context: tuple[object, ...]) -> Share:
        """The first handle's part; or another's, for a caller that has made sure that it may."""
        share = Share(self, context, self.env.operations.number() if self.shares else self.operation)
        self.shares.append(share)
        return share

    def join(self, context: tuple[object, ...]) -> Share | None:
        """A part in a hold that is finished, not being released, and still ours; else None (H2)."""
        with self.mutex:
            if self.released or not self.shares:
                return None
            if self.verify():
                return None if self.released else self.share(context)
        self.check()  # tells of the loss, without the mutex
        return None

    @property
    def inert(self) -> bool:
        """Whether this process is a forked child of the one that acquired (H1)."""
        return self.generation != self.env.generation

    def release(self, share: Share | None = None) -> None:
        """Give up the lock, or this share of it. LockLost if it was no longer ours; then the file is left alone."""
        if self.generation != self.env.generation:  # inert: H1
            return
        ended = done = False
        operations = self.env.operations
        running = operations.running
        outer = operations.current() if running else None
        frame: FrameType | None = sys._getframe()
        _broken_off = self.frame  # kept until we are done: with its variables a `with` may go that releases this (J5)
        try:
            with self.mutex:
                if self.released or (share is not None and share not in self.shares):
                    return
                # From here to `released` there is no call, so no signal handler that might release this very hold (H2).
                if share is not None and self.shares != [share]:
                    self.shares.remove(share)
                    return
                try:
                    self.frame, self.outer = frame, outer
                    running[self] = self
                    self.released = ended = True
                    mine = self._remove()
                    mine = self._drop(sure=mine) and mine
                    done = True
                except BaseException as error:
                    self._interrupted(error)
                    done = True
                    raise
            self._finish()
            if self.env.monotonic() - self.acquired > MOMENT:  # for a shorter one it would take longer than the rest
                self._tidy()
            if not mine:
                self._raise_lost()
        finally:
            frame = None  # it would refer to itself, and to all that its callers have
            if done and self.frame is not None:
                self._finish()
            if ended and self.released and (self.story is not None or listeners):
                self._story().released(self)

    def _interrupted(self, error: BaseException) -> None:
        """A release was interrupted (H5), or failed (H6)."""
        if isinstance(error, OSError) and not self.guarded and self.env.is_open(self.fd):
            self.released = False
        elif self.released:
            self._undo()
        if isinstance(error, OSError):
            located(error, self.path)

    def _finish(self) -> None:
        """What comes last, and without the mutex: whoever has the keeper's may wait for this one."""
        if self.released and self.keeper is not None:
            self.keeper.forget(self)
        self.env.operations.running.pop(self, None)
        self.frame = self.outer = None

    def _tidy(self) -> None:
        operations = self.env.operations
        operation = operations.begin(self.env)
        try:
            tidy(self.env, self.request.queue)
        except BaseException:
            operations.abort(operation)
            raise
        operations.end(operation)  # not `abort`, which looks at each hold that there is

    def undo(self) -> None:
        """Complete a release that was broken off (H5)."""
        if self.released:
            self._undo()
            self._finish()

    def _undo(self) -> None:
        self._withdraw()
        self._leave_queue()

    def releasing(self, share: Share | None = None) -> Generator[Wait, None, None]:
        """The same, for a hold whose release waits."""
        yield from ()
        self.release(share)

    def abandon(self) -> None:
        """Let go of the descriptor and leave the file: it is another's, or bound to a process that is not this one."""
        if self.inert:
            return
        with self.mutex:
            if not self.released:
                self.released = True
                self._drop()

    def give_back(self) -> None:
        """Undo an acquisition that the caller will not hear of. Never raises."""
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

    def _remove(self) -> bool:
        """Remove the lock file if it is ours; whether it was."""
        try:
            if self.lost or not self._is_ours():
                return False
            self.env.unlink(self.path)
            return True
        except FileNotFoundError:
            return False  # removed by somebody since the check

    def _drop(self, *, sure: bool = False) -> bool:
        """Let go of the descriptor; whether it was ours (H7). `sure`: our record has just been read from it."""
        self._forget()
        ours = True
        try:
            if ours := sure or self._has_descriptor():
                self.env.unguard(self.fd)
            self._leave_queue()
        finally:
            (self.env.close if ours else self.env.disown)(self.fd)
            self.fd = -1
        return ours

    def _has_descriptor(self) -> bool:
        return leads_to(self.env, self.fd, self.identity)  # H7

    # What another kind of hold does in another way (kernel.py).

    def _enrol(self) -> None:
        self.env.holds[self.identity] = self

    def _forget(self) -> None:
        forget_hold(self.env, self.identity, self.fd)

    def _withdraw(self) -> None:
        self._forget()
        if not self.env.is_open(self.fd):
            return
        if self._has_descriptor():
            withdraw(self.env, self.request, self.fd, self.data)
        else:
            self.env.disown(self.fd)
        self.fd = -1

    def _leave_queue(self) -> None:
        if self.place is not None:
            self.place.leave()
            self.place = None

    def verify(self) -> bool:
        """Whether the lock is still ours, now."""
        if self.inert:
            return False
        with self.mutex:
            if self.released or self.lost:
                return False
            try:
                ours = self._is_ours()
            except OSError as error:
                if self._was_released():
                    return False
                located(error, self.path)
                raise
            return ours and not self._was_released()

    def check(self) -> bool:
        """The same; and `on_lost` is told the first time that the lock is found lost."""
        ours = self.verify()
        if not ours and not self.released and not self.inert:
            self._tell_lost()
        return ours

    def ensure(self) -> None:
        """Raise unless the lock is held here and now."""
        if self.inert:
            raise NotHeld(
                f"{self.path} was acquired by another process, which forked this one; a child holds nothing. Acquire "
                "the lock in the child if it needs it.",
                path=self.path,
                protocol=self.request.protocol.name,
            )
        if not self.check():
            if self.lost:
                raise self.lost_error()
            raise NotHeld(f"{self.path} has been released", path=self.path, protocol=self.request.protocol.name)

    def beat(self) -> None:
        """Refresh the timestamp, if the lock is still ours."""
        if not self.check():
            return
        with self.mutex:
            if self.released:
                return
            fresh = self.request.protocol.refreshed(self.data, self.env.time())
            if fresh is not None and not self.released:
                offset, digits = fresh
                self.env.write(self.fd, digits, offset)
                self.data = self.data[:offset] + digits + self.data[offset + len(digits) :]

    def record(self) -> Record:
        """What the lock file says about us."""
        return self.request.protocol.decode(self.data)

    def lost_error(self) -> LockLost:
        text = f"{self.path} {self._how_lost()} Stop, and check what the lock protects before going on."
        return LockLost(text, path=self.path, protocol=self.request.protocol.name)

    def _how_lost(self) -> str:
        return "was removed, replaced, written over or closed while it was held here; another process may be inside."

    def _was_released(self) -> bool:
        return self.released

    def _is_ours(self) -> bool:
        # H4
        try:
            return is_there(self.env, self.path, self.identity) and (
                self.env.read(self.fd, len(self.data) + 1) == self.data
            )
        except OSError:
            if self._has_descriptor():
                raise
            return False

    def _raise_lost(self) -> NoReturn:
        lost = self.lost_error()
        try:
            self._tell_lost()
        except Exception as error:  # whatever the caller's on_lost raises, the loss is the news
            raise lost from error
        raise lost

    def _tell_lost(self) -> None:
        with self.mutex:
            first, self.lost = not self.lost, True
        if not first:
            return
        tell = self.request.on_lost
        try:
            if tell is not None:
                tell(self.lost_error())
        finally:
            if self.story is not None or is_heard("lost", self.request.on_event):
                self._story().lost(self)

    def _story(self) -> Story:
        with self.mutex:
            if self.story is None:
                self.story = Story.of(self)
            return self.story


def give_back(share: Share) -> None:
    """Undo what the caller will not hear of. It may be broken off, and called again (operation.py, J3)."""
    held = share.held
    with held.mutex:
        if share in held.shares and held.shares != [share]:
            held.shares.remove(share)
            return
        if share in held.shares:
            held.give_back()
    if held.released and held.story is not None:
        held.story.undone(held)


def give_back_all(env: Environment, operation: int) -> None:
    """The same for whatever this operation has acquired."""
    for held in list(env.holds.values()):
        for share in held.shares.copy():
            if share.operation == operation:
                give_back(share)
        if held.operation == operation and not held.shares:
            held.give_back()  # it was not finished
