"""Pure kernel locks (protocols `flock`, `ofd`): the file stays, and the process that has its guard holds the lock.

    open ──▶ guard ──refused──▶ held by others
               ▼
      does the path still name this file? ──no──▶ start over
               ▼
             hold ──▶ unguard, close

F1  Open, guard, look, in that order: a guard counts only if the path names its file *after* it was taken. Others remove
    such files when they are done, and a guard on a file without a name excludes nothing.
F2  The file is never removed or replaced: a process that has it open would hold, or wait for, the guard of a file that
    newcomers cannot find. So it cannot be broken or taken over: the kernel frees the locks of dead processes.
F3  A hold is ours while the path names its file, whatever its content: people lock scripts and data files. The file is
    opened for writing where permitted, as some filesystems grant a guard only then; never with O_CREAT if it exists,
    which the kernel refuses for other users' files in a sticky directory (fs.protected_regular).
F4  A filesystem without kernel locks is an error, not a hold that excludes nothing. So is one that other machines have
    mounted too, and that is mounted here so that they do not see the locks of this one.
F5  A tag is written only by an exclusive holder, into a file that is empty or has an outdated record of the same kind,
    and that has no other name: it may be a file of another directory that was linked here (takeover.py, T18). It is
    removed before the guard is dropped, unless it has changed. A kill may leave it behind: it counts only as long as
    the process that it names may be the holder.
F6  A waiter keeps one descriptor for the whole wait, and it becomes the hold's: opening and closing the file anew would
    wake all waiters, ourselves first. If the path names another file by now, we start over with that one.
F7  The first waiter tries to take the lock. A mere look takes the guard for an instant, if it is free, and so refuses
    other contenders in that instant. A waiter behind others therefore looks rarely, and asks for the exclusive guard:
    the waiters ahead do not leave a lock unused that readers hold. A record of another protocol is not free for us, as
    its holder would not heed the guard: acquiring and waiting raise ProtocolMismatch, and a status shows it as held.
F8  Unlocking makes no event; closing does, and most programs do both. So the watch also reports descriptors opened for
    reading, and a look every `Protocol.recheck` seconds finds holders that unlock and keep the file open.
F9  A reader queues behind waiting writers, unless its own thread or task already holds the lock as a reader: they would
    wait for each other. And a reader that holds it cannot become the writer: it would wait for itself.
F10  The guard may be a record lock (`ofd`), on a range of the file. That is set on the descriptor when it is opened,
    before it is used. There are three differences: such a lock can be queried, so a look takes nothing; nothing is
    written into the file, which may be shared range by range; and only holds of the same kind with a byte in common are
    in each other's way. Each range has a queue of its own.
"""

from __future__ import annotations

import errno
import stat

from ..._platform.operations import let_go, unlink_quietly
from ..._platform.values import LockOwner, Presence
from ...errors import UnsupportedFilesystem, WouldDeadlock
from ...liveness import Liveness
from ...model import Evidence, Holder, Record, Status, Waiter
from ...protocols.sema import FLOCK_SIGNATURE
from .hold import FileHold
from .inspect import (
    GUARDED,
    LEASED,
    Assessment,
    Observation,
    forget,
    mismatch,
    other_protocol,
    read_record,
    require_regular,
    unreadable,
)
from .policy import Verdict, holder_of
from .publish import make_parents
from .steps import UNWRITABLE, is_there, names_there, not_made, open_lasting, with_hint, write_all
from .watched import WatchedFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..._core.wait import Steps
    from ..._platform.interface import Environment, Watch
    from .request import FileRequest


_TRIES = 20
_HEAD = 4096


class FlockHold(FileHold):
    """A hold that is only a guard. A process may have several on one file, if they are shared."""

    __slots__ = ()

    recorded = False

    def _is_ours(self) -> bool:
        return is_there(self.env, self.path, self.identity) and self._has_descriptor()  # F3

    def _remove(self) -> bool:
        """Remove only what we have written (F2, F5). Whether the lock is ours."""
        if self.data:
            _erase(self.env, self.fd, self.data)
        return not self.lost and is_there(self.env, self.path, self.identity)

    def _withdraw_file(self) -> None:
        if self.data:
            _erase(self.env, self.fd, self.data)
        let_go(self.env, self.fd)

    def record(self) -> Record:
        """The record of our hold; most lock files contain none."""
        return super().record() if self.data else self.unwritten_record()

    def taken_by(self, env: Environment, fd: int) -> FlockHold:
        _aim(env, self.request, fd)
        return FlockHold(env, self.request, fd, self.identity, self.data, True, (*self.identity, fd))


def take(env: Environment, request: FileRequest) -> FileHold | None:
    """A new hold; None if another process has the guard, or if the path names a different file each time (F1)."""
    for _ in range(_TRIES):
        try:
            fd, created = _open(env, request)
        except BlockingIOError:
            return None
        try:
            _aim(env, request, fd)
            guard = try_guard(env, request, fd)
            if not guard:
                require_seen(env, request, env.fstat(fd).st_dev)  # before a wait for what would be refused
            held = settle(env, request, fd) if guard else None
        except BaseException as error:
            let_go(env, fd)
            if created and isinstance(error, UnsupportedFilesystem):
                unlink_quietly(env, request.path)  # no process can hold it
            raise
        if held is not None:
            return held
        let_go(env, fd)
        if not guard:
            return None
    return None


def _aim(env: Environment, request: FileRequest, fd: int) -> None:
    """Set the kind and range of this descriptor's guard (F10)."""
    if request.records is None:
        env.guard_content(fd)
    elif not env.guard_records(fd, *request.records):
        raise request.error(
            UnsupportedFilesystem,
            f"{request.path} cannot be locked by the protocol {request.protocol.name}: there are no record locks here "
            "that belong to an open file (F_OFD_SETLK: Linux, and macOS where Python knows them). Those of a process "
            "would be lost whenever it closes the file. Use protocol 'flock', or 'sema', for all users of the lock.",
        )


def try_guard(env: Environment, request: FileRequest, fd: int, *, shared: bool | None = None) -> bool:
    """Take the guard as requested, without waiting; False if others have it (F4)."""
    try:
        guard = env.guard(fd, shared=request.shared if shared is None else shared)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        what = "record lock" if request.records is not None else "lock on a file of this filesystem"
        raise PermissionError(
            errno.EACCES, f"an exclusive {what} needs permission to write to the file", request.path
        ) from error
    if guard is None:
        missing = "kernel locks (flock)" if request.records is None else "record locks"
        raise request.error(
            UnsupportedFilesystem,
            f"{request.path} cannot be locked: there are no {missing} here, and the protocol "
            f"{request.protocol.name} has nothing else. Use a local filesystem, or protocol 'sema'.",
        )
    return guard


def require_seen(env: Environment, request: FileRequest, device: int) -> None:
    """Raise UnsupportedFilesystem if other machines use the directory and would not see the guard (F4)."""
    if not env.knows_mounts:
        return
    storage = env.storage(request.path, device)
    if not storage.shared:
        return
    seen = storage.guards if request.records is None else storage.records
    if seen is False:
        what = (
            storage.text if storage.guards is False else "shared with other machines; its record locks stay on this one"
        )
        raise request.error(
            UnsupportedFilesystem,
            f"{request.path} cannot be locked by the protocol {request.protocol.name}: {storage.kind} is "
            f"{what}. To do: {storage.remedy}.",
        )


def settle(env: Environment, request: FileRequest, fd: int) -> FileHold | None:
    """Make a hold of a guarded descriptor, and own it; None if the path names another file by now (F1)."""
    data = b""
    found = env.fstat(fd)
    identity = (found.st_dev, found.st_ino)
    require_seen(env, request, found.st_dev)
    try:
        names = names_there(env, request.path, identity)
        if not names:
            return None
        if not stat.S_ISREG(found.st_mode):
            require_regular(found, request)
        alone = names == 1 and request.records is None
        empty = not found.st_size or _clear_outdated(env, request, fd, alone=alone)
        if request.tag is not None and empty and alone and not request.shared:
            data = _write_tag(env, request, fd, found.st_dev)
        return FlockHold(env, request, fd, identity, data, True, (*identity, fd))
    except BaseException:
        env.holds.pop((*identity, fd), None)
        if data:
            _erase(env, fd, data)
        raise


def open_existing(env: Environment, request: FileRequest) -> int | None:
    """A descriptor of the lock file, for writing if permitted (F3); None if the file does not exist.

    BlockingIOError while another process has a lease on it (inspect.py, L10).
    """
    path = request.path
    try:
        try:
            return env.open_existing(path, write=True)
        except OSError as error:
            if error.errno not in (*UNWRITABLE, errno.ETXTBSY, errno.EAGAIN):
                raise
        return env.open_existing(path, write=False)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        raise
    except OSError as error:
        try:
            require_regular(env.stat(path), request)  # a directory, a symlink, a socket: say so
        except OSError:
            pass
        raise with_hint(error, request, env) from error


def read_own(env: Environment, request: FileRequest, fd: int) -> tuple[bytes, Record | None]:
    """The beginning of the content, and the record, if the whole content is one of this protocol."""
    head = env.read(fd, _HEAD)
    if not head.startswith(FLOCK_SIGNATURE):
        return head, None
    content = head if len(head) < _HEAD else read_record(env, fd)
    try:
        record = request.protocol.decode(content)
        return head, record if request.protocol.encode(record) == content else None
    except ValueError:
        return head, None


def _open(env: Environment, request: FileRequest) -> tuple[int, bool]:
    """A descriptor of the lock file, and whether it had to be created."""
    raced: list[OSError] = []
    while True:
        fd = open_existing(env, request)
        if fd is not None:
            return fd, False
        try:
            return open_lasting(env, request.path, request.mode), True
        except FileExistsError:
            continue
        except OSError as error:
            if not make_parents(env, request, error, raced):
                raise not_made(error, request, env) from error


def _clear_outdated(env: Environment, request: FileRequest, fd: int, *, alone: bool) -> bool:
    """Empty a file that has an outdated record of ours. Whether that was done; any other content stays.
    ProtocolMismatch for a record of another protocol, whose holder would not heed the guard."""
    head, record = read_own(env, request, fd)
    if record is None:
        require_no_other(env, request, fd, head)
        return False
    if request.shared or not alone:
        return False
    return _clear(env, fd)


def require_no_other(env: Environment, request: FileRequest, fd: int, head: bytes) -> None:
    """Raise ProtocolMismatch for a record of another protocol, whose holder would not heed the guard."""
    if b"timestamp=" in head or b'"started_at"' in head:
        other = other_protocol(request, read_record(env, fd), None)
        if other is not None:
            raise mismatch(request, other)


def _write_tag(env: Environment, request: FileRequest, fd: int, device: int) -> bytes:
    """Write the tag (F5) and return what was written: nothing if that fails, as a tag is no reason to fail."""
    data = request.compose(env, device, guarded=True)
    try:
        write_all(env, fd, data)
    except OSError:
        _clear(env, fd)
        return b""
    except BaseException:
        _clear(env, fd)
        raise
    return data


def _erase(env: Environment, fd: int, data: bytes) -> None:
    """Remove the tag, if it is still the whole content."""
    try:
        if env.read(fd, len(data) + 1) == data:
            env.truncate(fd, 0)
    except OSError:
        pass  # it does not count without its holder


def _clear(env: Environment, fd: int) -> bool:
    """Empty the file; False if it is open for reading only, so that nothing was written to it either."""
    try:
        env.truncate(fd, 0)
    except OSError:
        return False
    return True


_FREE = Evidence("guard", "nobody has the kernel lock on its file", proven=True)
_UNTRIED = Evidence("none", "a waiter that wants it exclusively comes first")
_NO_VERDICT = Verdict(False, False, "")
_LOOKS = 3
"""Number of probes of a lock whose holder is not visible, before it is reported that none can be seen."""


class WatchedFlock(WatchedFile):
    """One lock file of the protocol `flock`."""

    def __init__(self, env: Environment, request: FileRequest) -> None:
        super().__init__(env, request)
        self._refused: bool | None = None
        """Whether others had the guard at the last try since the last look; None: not tried."""

    # -- looking -------------------------------------------------------------------------------------------------------

    def look(self, *, strict: bool = True) -> bool:  # noqa: ARG002
        """Look at the path; False if nothing is there. Only a try shows whether the guard is free (F7)."""
        self._begin_look()
        self._refused = None
        self.there = self._observe()
        if self.there:
            assert self._seen is not None
            self.seen = self._seen
            self.assessed = Assessment(Liveness.ALIVE, GUARDED)
            self.verdict = _NO_VERDICT
            if self.seen.fd < 0:
                self.assessed = Assessment(Liveness.UNKNOWN, Evidence("none", LEASED))
                self.verdict = Verdict(False, False, LEASED)
        return self.there

    def _observe(self) -> bool:
        env, request = self.env, self.request
        previous = self._seen
        if previous is not None:
            there = self._identity()
            if there is None or (there == previous.identity and previous.fd >= 0):
                return there is not None
            forget(env, previous)  # F6
            self._seen = None
        try:
            fd = open_existing(env, request)
        except BlockingIOError:
            self._seen = unreadable(env, request, LEASED)
            return self._seen is not None
        if fd is None:
            return False
        try:
            _aim(env, request, fd)
            found = env.fstat(fd)
            require_regular(found, request)
            self._seen = Observation(found, fd)
        except BaseException:
            env.close(fd)
            raise
        self._disarm()
        return True

    @property
    def could_be_had(self) -> bool:
        return not self.there or not self._refused

    def path_exists(self) -> bool:
        return False  # the file stays; only a try shows it

    def is_free(self) -> bool:
        if not self.there:
            return True
        free = self._probe(shared=self.request.shared)
        if free:
            head, record = read_own(self.env, self.request, self.seen.fd)
            if record is None:
                require_no_other(self.env, self.request, self.seen.fd, head)  # F7
        return free

    def lies_free(self) -> bool:
        return not self.there or self._probe(shared=False)

    def _probe(self, *, shared: bool) -> bool:
        """Whether the guard is free: take it for an instant, or query a record lock (F7, F10)."""
        fd = self.seen.fd
        if fd < 0:
            self._refused = True
            return False
        free = self.env.would_guard(fd, shared=shared) if self.request.records is not None else None
        if free is None:
            free = try_guard(self.env, self.request, fd, shared=shared)
            if free:
                self.env.unguard(fd)
        if shared == self.request.shared:
            self._note_refusal(refused=not free)
        return free

    def _note_refusal(self, *, refused: bool) -> None:
        self._refused = refused
        if refused:
            self.seen.record = read_own(self.env, self.request, self.seen.fd)[1]

    # -- our own holds -------------------------------------------------------------------------------------------------

    def _own_holds(self) -> list[FileHold]:
        if not self.there:
            return []
        files = [held for held in list(self.env.holds.values()) if isinstance(held, FileHold)]  # others are on servers
        held_here = [held for held in files if held.identity == self.seen.identity]
        return [held for held in held_here if held.request.meets(self.request)]  # F10

    def _joinable(self, held: FileHold) -> bool:
        return held.request.includes(self.request)

    def _blocks(self, held: FileHold) -> bool:
        return not (self.request.shared and held.request.shared)

    def is_inside(self, context: tuple[object, ...]) -> bool:
        """Whether the caller already holds the lock as a reader (F9)."""
        return self.request.shared and any(
            ref.context[: len(context)] == context
            for held in self._own_holds()
            if held.request.shared and not held.released
            for ref in list(held.refs)
        )

    def deadlock(self, slots: int) -> WouldDeadlock:
        if not any(held.request.shared for held in self._own_holds()):
            return super().deadlock(slots)
        return WouldDeadlock(
            f"{self.request.path} is held shared by this very thread or task, which would wait for itself forever: a "
            "shared hold cannot become exclusive. Release it first, or pass a timeout.",
            path=self.request.path,
            protocol=self.request.protocol.name,
        )

    # -- trying --------------------------------------------------------------------------------------------------------

    def attempt(self) -> Steps[FileHold | None]:
        """Try to take the lock: one step, without a wait."""
        yield from ()
        if not self.there:
            held = take(self.env, self.request)
        else:
            seen = self.seen
            if seen.fd < 0:
                self._refused = True
                return None
            free = try_guard(self.env, self.request, seen.fd)
            self._note_refusal(refused=not free)
            if not free:
                return None
            held = settle(self.env, self.request, seen.fd)
            if held is None:
                forget(self.env, seen)
            seen.fd, self._seen = -1, None
        self.missed = held is None
        return held

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Keep the descriptor: it becomes the hold's (F6)."""

    def _subscribe(self) -> Watch | None:
        return self.env.watch(self.request.path, readers=True)  # F8

    # -- describing ----------------------------------------------------------------------------------------------------

    def describe(self) -> Status:
        env, request = self.env, self.request
        if not self.there or self.seen.problem is LEASED:
            return super().describe()
        owners: list[LockOwner] = []
        for looks in range(_LOOKS):
            if self.seen.fd >= 0 and (self._refused is None or looks):
                self._probe(shared=self.request.shared)
            if self._refused is False and not request.shared:
                break  # nobody: the table need not be asked, which names readers and those who wait for them
            owners = env.lock_owners(self.seen.identity, request.records)
            if not self._refused or self.seen.fd < 0 or _holding(owners):
                break  # else no holder is visible: it may have been released in between
        if self._refused is False and (mismatched := self._mismatched()) is not None:
            return mismatched
        record = self._believed(_holding(owners)) if self._refused else None
        holders = tuple(holder_of(env, owner, record) for owner in _holding(owners))
        first = next((holder for holder in holders if holder.pid is not None), Holder() if self._refused else None)
        return Status(
            path=request.path,
            protocol=request.protocol.name,
            locked=self._refused is not False,
            stale=False,
            liveness=Liveness.ALIVE if self._refused or holders else Liveness.UNKNOWN,
            evidence=_UNTRIED if self._refused is None else GUARDED if self._refused or holders else _FREE,
            holder=first,
            record=record,
            reason=self._reason(holders),
            age=None if record is None or record.since is None else max(0.0, env.time() - record.since),
            waiters=tuple(
                Waiter(None, owner.pid, None, None, env.command(owner.pid))
                for owner in owners
                if owner.waiting and owner.pid is not None
            ),
            holders=holders,
        )

    def _mismatched(self) -> Status | None:
        """The status of a lock whose file has another protocol's record (F7); None if it has none."""
        data = read_record(self.env, self.seen.fd)
        other = other_protocol(self.request, data, None)
        if other is None:
            return None
        text = f"its content is a record of the {other} protocol, whose holder would not heed the kernel lock"
        return Status(
            self.request.path, self.request.protocol.name, True, False, Liveness.UNKNOWN, Evidence("none", text),
            Holder(), reason=text, modified=self.env.fstat(self.seen.fd).st_mtime, data=data,
        )  # fmt: skip

    def _reason(self, holders: tuple[Holder, ...]) -> str:
        if self._refused is None:
            return _UNTRIED.text
        if self._refused:
            return "its holder is alive"
        return "only readers hold it, and another may join them" if holders else "nobody holds it"

    def _believed(self, owners: list[LockOwner]) -> Record | None:
        """The record in the file, if it is the holder's and not an earlier one's (F5); else None."""
        record = self.seen.record
        if record is None or record.pid is None or record.marker is None:
            return None
        env, there = self.env, record.marker.identity
        here = env.identity()
        local = there.shares_pids_with(here) and there.started != "-"
        if not local or not owners or any(owner.pid != record.pid or not owner.exclusive for owner in owners):
            return None
        found = env.inspect(record.pid)
        return record if (found.presence, found.started) == (Presence.RUNNING, there.started) else None


def _holding(owners: list[LockOwner]) -> list[LockOwner]:
    return [owner for owner in owners if not owner.waiting]
