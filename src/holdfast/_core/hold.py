"""A hold: from the moment the lock is ours until it is released, left to another, or lost.

    held ──release()──▶ released          the file is unlinked, then the guard dropped
      │  ──abandon()──▶ released          the file stays: it is another's
      └──check()──────▶ lost ──release()──▶ released, and the other's file is left alone

H1  Only the process that acquired may act. A forked child has another `generation`; every step there does nothing.
H2  Whoever sets `released` does the releasing, under `mutex`: twice is harmless, and no heartbeat writes to a
    descriptor whose number may already be another file's.
    `count` is how many handles share the hold; it changes under `mutex`, and from 0 it never rises again.
H3  Unlink, unlock, close, in that order. Unlocked before unlinked, the file would look like a dead holder's. Unlocking
    explicitly ends the guard at once even if a child, between vfork and exec, still has a copy of the descriptor.
H4  The file is ours while the path names our inode *and* the record is still the one we wrote: a foreign process may
    remove and create anew (another inode) or write over (same inode).
H5  Interrupted anywhere in a release, at least the guard is dropped; a file that stays is then proven dead.
"""

from __future__ import annotations

import _thread
import math

from ..errors import LockLost, NotHeld
from ..model import Record
from .observe import is_there

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .environment import Environment
    from .request import Request


class Held:
    """The engine's side of a hold. `Hold` is the caller's handle on it; re-entrant handles share one."""

    __slots__ = (
        "context",
        "count",
        "data",
        "env",
        "fd",
        "generation",
        "guarded",
        "identity",
        "lost",
        "mutex",
        "next_beat",
        "path",
        "recovered_from",
        "released",
        "request",
    )

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
        self.context: object = None
        self.count = 1
        self.lost = False
        self.released = False
        self.recovered_from: Record | None = None
        self.next_beat = math.inf
        self.mutex = _thread.allocate_lock()
        env.holds[identity] = self

    @property
    def inert(self) -> bool:
        """Whether this process is a forked child of the one that acquired (H1)."""
        return self.generation != self.env.generation

    def release(self) -> None:
        """Give the lock up. LockLost if it was no longer ours; then the file is left alone. Idempotent."""
        if self.inert:
            return
        env = self.env
        with self.mutex:
            if self.released:
                return
            self.released = True
            try:
                mine = not self.lost and self._is_ours()
                if mine:
                    env.unlink(self.path)
            except FileNotFoundError:
                mine = False  # removed by somebody since the check
            finally:
                self._drop()
        if not mine:
            self._tell_lost()
            raise self.lost_error()

    def abandon(self) -> None:
        """Let go of the descriptor and leave the file: it is another's, or bound to a process that is not this one."""
        if self.inert:
            return
        with self.mutex:
            if not self.released:
                self.released = True
                self._drop()

    def _drop(self) -> None:
        env = self.env
        env.holds.pop(self.identity, None)
        try:
            env.unguard(self.fd)
        finally:
            env.close(self.fd)

    def verify(self) -> bool:
        """Whether the lock is still ours, now."""
        if self.inert:
            return False
        with self.mutex:
            return not self.released and not self.lost and self._is_ours()

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
            if fresh is not None:
                offset, digits = fresh
                self.env.write(self.fd, digits, offset)
                self.data = self.data[:offset] + digits + self.data[offset + len(digits) :]

    def record(self) -> Record:
        """What the lock file says about us."""
        return self.request.protocol.decode(self.data)

    def lost_error(self) -> LockLost:
        return LockLost(
            f"{self.path} was removed or replaced while it was held here; another process may be inside. Stop, and "
            "check what the lock protects before going on.",
            path=self.path,
            protocol=self.request.protocol.name,
        )

    def _is_ours(self) -> bool:
        # H4
        return is_there(self.env, self.path, self.identity) and (
            self.env.read(self.fd, len(self.data) + 1) == self.data
        )

    def _tell_lost(self) -> None:
        with self.mutex:
            first, self.lost = not self.lost, True
        tell = self.request.on_lost
        if first and tell is not None:
            tell(self.lost_error())
