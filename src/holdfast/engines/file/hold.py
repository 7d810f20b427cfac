"""A hold of a lock file: from its acquisition until it is released, left to another process, or lost.

FH1  Unlink, leave the queue, unlock, close, in that order. Once the file is gone, the next waiter can have the lock, so
     it is woken first. Unlocked before it is unlinked, the file would look like a dead holder's.
     Unlocking explicitly ends the guard at once even if a child, between vfork and exec, has a copy of the descriptor.
FH2  The file is ours while the path names our inode *and* the record is the one that we wrote: a foreign process may
     remove and recreate it (another inode) or overwrite it (same inode).
FH3  An interrupted release is completed all the same, as far as the system lets us: by the release itself, or, if that
     is interrupted too, by the next operation that begins (operations.py, J2 to J4).
FH4  Without a guard, only the record of a living process says that the lock is held. If it cannot be removed, the hold
     stays as it is and is released again, at exit at the latest: otherwise no process could acquire while this one
     lives.
FH5  A caller may have closed our descriptor (`os.closerange`), and its number may belong to another file. So we check
     that it leads to our file before we unlock or close it; if not, we leave it alone, and the lock is lost.
FH6  A heartbeat may be cut short (a full disk). The file then begins as the new record and goes on as the old one, and
     that is our record, too.
FH7  Where a removal fails while the server is away, a hold with a lease stays as it is, and is released again, until
     its lease is over (apart.py, AP7). The server may have removed the file before it was lost, and the next holder may
     be inside. So from the second time on, a lock that is no longer at the path is not lost, and no beat finds it lost
     meanwhile.
"""

from __future__ import annotations

import errno
import sys

from ..._core.hold import HoldRef, HoldState
from ..._platform.fork import forking, notice_fork, under_way
from ...errors import set_error_path
from ...events import listeners
from ...model import Record, next_beat
from .steps import UNWRITABLE, is_there, withdraw, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from ..._core.wait import Steps
    from ..._platform.interface import Environment
    from .lease import Lease
    from .queue import QueueEntry
    from .request import FileRequest

_TIDY_AFTER = 0.002
"""Seconds; after a shorter hold, tidying the queue would cost more than the rest of the release."""


class FileHold(HoldState):
    """A hold of a lock file."""

    __slots__ = (
        *("before", "data", "entry", "fd", "guarded", "identity", "lease", "may_be_removed", "pending", "retried"),
    )

    request: FileRequest
    recorded = True
    """Whether our record is in the file, so that a descriptor from which it was read is ours."""

    def __init__(
        self,
        env: Environment,
        request: FileRequest,
        fd: int,
        identity: tuple[int, int],
        data: bytes,
        guarded: bool,
        key: tuple[object, ...] | None = None,
        *,
        leased: bool = True,
    ) -> None:
        """Make the hold. `leased`: whether the record may state a lease."""
        self.fd = fd
        self.identity = identity
        self.data = data
        self.guarded = guarded
        self.pending = b""
        """The record with the beat that is being written."""
        self.before = b""
        """The record of a dead holder that ours has replaced, until the lock is the caller's (takeover.py, T21)."""
        self.retried = False
        """Whether it was given back in order to try again (interop.py, Y1; takeover.py, T8)."""
        self.may_be_removed = False
        """Whether a removal has failed: with a lease, the server may have removed the file nevertheless (FH7)."""
        self.lease: Lease | None = None
        if leased and data and next_beat(data, request.protocol.marker_key) is not None:
            self._begin_lease(env, request)
        self.entry: QueueEntry | None = None
        """Our place in the queue of waiters, which the next waiter watches (queue.py, Q4)."""
        HoldState.__init__(self, env, request, identity if key is None else key)

    def _begin_lease(self, env: Environment, request: FileRequest) -> None:
        seconds = request.protocol.decode(self.data).lease
        if seconds is not None:
            with forking:
                from .lease import Lease
            self.lease = Lease(env, seconds)

    def ref(self, context: tuple[object, ...]) -> HoldRef:
        self.before = b""
        return HoldState.ref(self, context)

    def release(self, ref: HoldRef | None = None) -> None:
        """Release the lock, or this share of it. LockLost if it was no longer ours; then the file is left alone."""
        env = self.env
        if under_way:
            notice_fork()
        if self.generation != env.generation:  # inert: H1
            return
        ended = done = False
        operations = env.operations
        gave: Any = ()
        running = operations.running
        outer = operations.current() if running else None
        frame: FrameType | None = sys._getframe()
        _broken_off = self.frame  # kept until we are done: its variables may hold a `with` that releases this (J5)
        try:
            if operations.is_inside():
                gave = []
                operations.give_way(gave)  # operations.py, J7
            if ref is not None and len(self.refs) > 1 and self._leave(ref):
                return
            with self.mutex:
                if self.released:
                    return
                # From here to `released` there is no call, so no signal handler that might release this very hold (H2).
                if ref is not None and self.refs != [ref]:
                    if ref in self.refs:
                        self.refs.remove(ref)
                    return
                try:
                    self.frame, self.outer = frame, outer
                    running[self] = self
                    self.released = ended = True
                    mine = self._remove()
                    mine = self._drop(sure=mine and self.recorded) and mine
                    done = True
                except BaseException as error:
                    self._interrupted(error)
                    done = True
                    raise
            self._finish()
            if env.monotonic() - self.acquired > _TIDY_AFTER:
                self._tidy()
            if not mine:
                self._raise_lost()
        finally:
            frame = None  # break the cycle: it refers to itself and to its callers' variables
            try:
                if done and self.frame is not None:
                    self._finish()
                if ended and self.released:
                    if self.attempt_events is not None or listeners:
                        self._attempt_events().released(self)
                    self.refs.clear()  # H2
            finally:
                if gave:
                    operations.take_back(gave)

    def _interrupted(self, error: BaseException) -> None:
        """Clean up after a release that was interrupted (FH3) or failed (FH4, FH7)."""
        kept = isinstance(error, OSError) and (not self.guarded or self.is_waiting_for(error))
        if kept and self.env.is_open(self.fd):
            self.may_be_removed, self.released = True, False
        elif self.released:
            self._undo()
        if isinstance(error, OSError):
            set_error_path(error, self.path)

    def descriptors(self) -> tuple[int, ...]:
        entry = self.entry
        return (self.fd,) if entry is None else (self.fd, *entry.descriptors())

    def _tidy(self) -> None:
        if not self.env.exists(self.request.queue):
            return
        with forking:
            from .queue import tidy
        self.env.operations.perform(self.env, lambda _: tidy(self.env, self.request.queue))

    def is_waiting_for(self, error: OSError) -> bool:
        """Whether to repeat a release that failed with this error (FH7)."""
        return self.lease is not None and not self.lease.is_over() and self.env.is_away(self.path, error)

    def _undo(self) -> None:
        self._withdraw()
        self._leave_queue()

    def releasing(self, ref: HoldRef | None = None) -> Steps[None]:
        """Release as a generator, for drivers that wait."""
        yield from ()
        self.release(ref)

    def abandon(self) -> None:
        """Close the descriptor and leave the file, which belongs to another process."""
        if self.inert:
            return
        with self.mutex:
            if not self.released:
                self.released = True
                self._drop()

    def _remove(self) -> bool:
        """Remove the lock file if it is ours. Whether it was."""
        env = self.env
        try:
            if self.lost or not self._is_ours():
                return False
            if self.lease is not None and not self._is_at_path():
                if not self.may_be_removed:  # by us: FH7
                    self.lease.replaced = True
                    return False
            else:
                (env.remove_directory if self.request.protocol.is_directory else env.unlink)(self.path)
            if self.entry is not None:
                self._leave_queue()
            return True
        except FileNotFoundError:
            if self.lease is not None:
                self.lease.replaced = True
            return False  # removed since the check

    def _is_at_path(self) -> bool:
        """Whether our record is at the path, by a fresh reading; our file, if it cannot be read: its mode may have
        changed, there may be no descriptor left, or something that is no file may have replaced it. False without the
        hold's own descriptor (FH5)."""
        with forking:
            from .inspect import read_fresh
        if not self._has_descriptor():
            return False
        try:
            found = read_fresh(self.env, self.path)
        except OSError as error:
            if self.env.is_away(self.path, error):
                raise  # FH7
            return is_there(self.env, self.path, self.identity) and self._has_record(self.pending)
        return found is not None and found[0] == self.identity and self._recognize(found[1], self.pending)

    def _drop(self, *, sure: bool = False) -> bool:
        """Give up the descriptor. Whether it was ours (FH5). `sure`: we have just read our record from it."""
        self._forget()
        env, ours = self.env, True
        try:
            if ours := sure or self._has_descriptor():
                env.unguard(self.fd)
            if self.entry is not None:
                self._leave_queue()
        finally:
            (env.close if ours else env.disown)(self.fd)
            self.fd = -1
        return ours

    def _has_descriptor(self) -> bool:
        """Whether the descriptor still leads to our file, and its number is not a later hold's (FH5)."""
        later = self.env.holds.get(self.key)
        if later is not None and later is not self and getattr(later, "fd", None) == self.fd:
            return False
        try:
            return self._is_identity_of(self.fd)
        except OSError as error:
            return error.errno != errno.EBADF

    def _is_identity_of(self, fd: int) -> bool:
        found = self.env.fstat(fd)
        return (found.st_dev, found.st_ino) == self.identity

    def _withdraw(self) -> None:
        self._forget()
        if not self.env.is_open(self.fd):
            return
        if self._has_descriptor():
            self._withdraw_file()
        else:
            self.env.disown(self.fd)
        self.fd = -1

    def _withdraw_file(self) -> None:
        """Undo what was published, and give up the descriptor, which is ours."""
        try:
            self._recognize(self.env.read(self.fd, len(self.data) + 1), self.pending)
        except OSError:
            pass  # `withdraw` will meet the same error
        ours = None if self.lease is None else not self.lease.is_over()
        withdraw(self.env, self.request, self.data, self.fd, ours=ours, before=b"" if self.retried else self.before)

    def hand_over(self) -> None:
        """Close the descriptor but keep the guard, which another process shares (keeper.py, S1)."""
        with self.mutex:
            self.released = True
            self._forget()
            self._leave_queue()
            fd, self.fd = self.fd, -1
            self.env.close(fd)

    def _leave_queue(self) -> None:
        if self.entry is not None:
            self.entry.leave()
            self.entry = None

    def beat(self) -> None:
        """Refresh the timestamp, if the lock is still ours; with a lease, wait for the server to confirm it."""
        if self.check():
            self.send_beat()

    def send_beat(self) -> None:
        """Send a beat without checking first."""
        if self.lease is not None:
            self._confirm(self.lease)
            return
        with self.mutex:
            change = self._next_beat()
            if change is not None:
                self._write_beat(*change)

    def _write_beat(self, at: int, text: bytes) -> None:
        with self.mutex:
            if not self.released:
                write_all(self.env, self.fd, text, at)
                self.data = self.pending

    def _next_beat(self) -> tuple[int, bytes] | None:
        """The bytes to write for the next beat, and their position; sets `pending` to the whole record after it."""
        changes = self.request.protocol.beaten(self.data, self.env.time())
        if not changes:
            return None
        data = bytearray(self.data)
        for offset, text in changes:
            data[offset : offset + len(text)] = text
        first, end = min(at for at, _ in changes), max(at + len(text) for at, text in changes)
        self.pending = bytes(data)
        return first, self.pending[first:end]

    def _confirm(self, lease: Lease) -> None:
        """Write a beat, and have the server confirm it (lease.py, LE7, LE11)."""
        with forking:
            from .inspect import read_fresh
        env, began = self.env, self.env.uptime()
        with self.mutex:
            before = self.pending
            change = None if self.released else self._next_beat()
        if change is None:
            return
        try:
            fd = env.open_existing(self.path, write=True)
        except FileNotFoundError:
            lease.replaced = not self.may_be_removed
            return
        except OSError as error:
            if error.errno not in UNWRITABLE:
                if env.is_away(self.path, error) or is_there(env, self.path, self.identity):
                    raise
                lease.replaced = not self.may_be_removed  # by something that is no file
                return
            if not self._has_descriptor() or not self._has_record(before):
                lease.replaced = True  # FH2, FH5
                return
            self._write_beat(*change)  # may no longer open it, but has a descriptor
            env.sync(self.fd)
        else:
            try:
                ours = self._is_identity_of(fd) and self._recognize(env.read(fd, len(self.data) + 1), before)
                if not ours:
                    lease.replaced = not self.may_be_removed
                    return
                write_all(env, fd, change[1], change[0])
                env.sync(fd)
            finally:
                env.close(fd)
            with self.mutex:
                self.data = self.pending
        found = read_fresh(env, self.path)
        if found is None or found[0] != self.identity:
            lease.replaced = not self.may_be_removed
        else:
            lease.confirmed(began)

    def record(self) -> Record:
        """The record of our hold, as the lock file has it."""
        return self.request.protocol.decode(self.data)

    def unwritten_record(self) -> Record:
        """The record that the lock file would have, if it had one."""
        env, request = self.env, self.request
        who = env.identity()
        since = env.time() - (env.monotonic() - self.acquired)
        return Record(request.protocol.name, {}, who.pid, since, request.tag, who.host)

    def taken_by(self, env: Environment, fd: int) -> FileHold:
        """This hold in a process that was forked from this one and has the guard, by a descriptor of its own."""
        ours = FileHold(env, self.request, fd, self.identity, self._fresh(fd), True)
        ours.lease = self.lease
        return ours

    def _fresh(self, fd: int) -> bytes:
        """The record in the file, which may have been refreshed since the fork; the old one if it is not ours."""
        protocol, before = self.request.protocol, self.data
        found = self.env.read(fd, len(before) + 1)
        try:
            now, then = protocol.decode(found), protocol.decode(before)
        except ValueError:
            return before
        return found if (now.pid, now.marker) == (then.pid, then.marker) else before

    @property
    def beat_every(self) -> float:
        """Seconds between heartbeats."""
        every = self.request.beat_every
        return every if self.lease is None else min(every, self.lease.seconds / 3)

    def _was_told(self) -> None:
        """Drop the guard after a loss (lease.py, LE9)."""
        if self.lease is not None:
            with self.mutex:
                try:
                    if not self.released and self._has_descriptor():
                        self.env.unguard(self.fd)
                except OSError:
                    pass  # its server has lost the connection, and with it the guard

    def _how_lost(self) -> str:
        if self.lease is not None and not self.lease.replaced:
            return (
                f"was lost: for nine tenths of its lease of {self.lease.seconds:g} s no heartbeat was confirmed, and "
                "another process may be inside."
            )
        return "was removed, replaced, written over or closed while it was held here; another process may be inside."

    def _is_ours(self) -> bool:
        # FH2
        env = self.env
        if self.lease is not None:
            return not self.lease.is_over()
        try:
            found = env.stat(self.path)
            if (found.st_dev, found.st_ino) != self.identity:
                return False
            content = env.read(self.fd, len(self.data) + 1)
            return content == self.data or self._recognize(content, self.pending)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            if self._has_descriptor():
                raise
            return False

    def _has_record(self, pending: bytes) -> bool:
        """Whether our descriptor leads to our record."""
        return self._recognize(self.env.read(self.fd, len(self.data) + 1), pending)

    def _recognize(self, content: bytes, pending: bytes) -> bool:
        """Whether this is our record, or what the heartbeat that would have made it `pending` has left of it (FH6)."""
        if content != self.data:
            with self.mutex:
                if content not in (pending[:written] + self.data[written:] for written in range(len(pending) + 1)):
                    return False
                self.data = content
        return True


def own_hold(env: Environment, path: str) -> FileHold | None:
    """This process's hold of the file that the path names now; None if there is none."""
    try:
        found = env.stat(path)
    except OSError:
        return None
    held: FileHold | None = env.holds.get((found.st_dev, found.st_ino))
    return held
