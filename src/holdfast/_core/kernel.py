"""Locks of the kernel alone (protocol `flock`): a file that stays, and whoever has its guard holds the lock.

    open ──▶ guard ──refused──▶ held by others
               ▼
      does the path still name this file? ──no──▶ start over
               ▼
             hold ──▶ unguard, close

F1  Open, guard, look, in that order: a guard counts only if the path names its file *after* it was taken. Others remove
    such files when they are done, and a guard on a file without a name keeps nobody out.
F2  The file is never removed, nor replaced: whoever has it open would hold, or wait for, the guard of a file that
    newcomers do not find any more. So there is no breaking it, and no taking over: the kernel frees what the dead had.
F3  A hold is ours while the path names its file, whatever is in it: people lock scripts and files of data. It is opened
    for writing where that is permitted, as some filesystems grant a guard only then; never with O_CREAT if it is there,
    which the kernel refuses for the files of others in a sticky directory (fs.protected_regular).
F4  Where there are no kernel locks, that is an error, and not a hold of nothing.
F5  A tag is written only by one who holds alone, into a file that is empty or has an outdated record of the same kind,
    and has no other name: somebody may have linked a file of another directory here.
    It is taken away before the guard is dropped, unless somebody has changed it. A kill may leave it behind: it counts
    only as long as the very process that it names may be the holder.
"""

from __future__ import annotations

import errno
import stat

from ..errors import UnsupportedFilesystem
from ..model import Record
from ..protocols.flock import SIGNATURE
from .environment import Environment
from .files import UNWRITABLE, is_there, let_go, unlink_quietly, write_all
from .hold import Held
from .observe import explained, mismatch, other_protocol, read_record, require_regular
from .publish import make_parents
from .request import Request

_TRIES = 20
_HEAD = 4096


class KernelHeld(Held):
    """A hold that is a guard and nothing else. Several of one file may be in one process, if they are shared."""

    __slots__ = ()

    def _enrol(self) -> None:
        self.env.holds[(*self.identity, self.fd)] = self

    def _forget(self) -> None:
        if self.env.holds.get((*self.identity, self.fd)) is self:
            del self.env.holds[(*self.identity, self.fd)]

    def _is_ours(self) -> bool:
        return is_there(self.env, self.path, self.identity) and self._has_descriptor()  # F3

    def _remove(self) -> bool:
        """F2: nothing is removed but what we have written (F5); whether the lock is ours."""
        if self.data:
            _erase(self.env, self.fd, self.data)
        return not self.lost and is_there(self.env, self.path, self.identity)

    def _drop(self, *, sure: bool = False) -> bool:  # noqa: ARG002
        return super()._drop()  # no record says whose descriptor it is

    def _withdraw(self) -> None:
        self._forget()
        if not self.env.is_open(self.fd):
            return
        if not self._has_descriptor():
            self.env.disown(self.fd)
            return
        if self.data:
            _erase(self.env, self.fd, self.data)
        let_go(self.env, self.fd)
        self.fd = -1

    def record(self) -> Record:
        """What can be said of us; most lock files say nothing."""
        if self.data:
            return super().record()
        env, request = self.env, self.request
        who = env.identity()
        since = env.time() - (env.monotonic() - self.acquired)
        return Record(request.protocol.name, {}, who.pid, since, request.tag, who.host)


def take(env: Environment, request: Request) -> Held | None:
    """A new hold; None if somebody has the guard, or if the path names another file each time (F1)."""
    for _ in range(_TRIES):
        fd, created = _open(env, request)
        try:
            guard = try_guard(env, request, fd)
            held = settle(env, request, fd) if guard else None
        except BaseException as error:
            let_go(env, fd)
            if created and isinstance(error, UnsupportedFilesystem):
                unlink_quietly(env, request.path)  # nobody can hold it
            raise
        if held is not None:
            return held
        let_go(env, fd)
        if not guard:
            return None
    return None


def try_guard(env: Environment, request: Request, fd: int, *, shared: bool | None = None) -> bool:
    """Take the guard as the request wants it, without waiting; False when others have it (F4)."""
    try:
        guard = env.guard(fd, shared=request.shared if shared is None else shared)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        raise PermissionError(
            errno.EACCES, "an exclusive lock on a file of this filesystem needs permission to write to it", request.path
        ) from error
    if guard is None:
        raise UnsupportedFilesystem(
            f"{request.path} cannot be locked: there are no kernel locks (flock) here, and the protocol "
            f"{request.protocol.name} is nothing else. Use a local filesystem, or protocol 'sema'.",
            path=request.path,
            protocol=request.protocol.name,
        )
    return guard


def settle(env: Environment, request: Request, fd: int) -> Held | None:
    """Make a hold of a guarded descriptor, which owns it then; None if the path names another file by now (F1)."""
    data = b""
    found = env.fstat(fd)
    identity = (found.st_dev, found.st_ino)
    try:
        if not is_there(env, request.path, identity):
            return None
        if not stat.S_ISREG(found.st_mode):
            require_regular(found, request)
        alone = found.st_nlink <= 1
        empty = not found.st_size or _is_cleared(env, request, fd, alone=alone)
        if request.tag is not None and empty and alone and not request.shared:
            data = _write_tag(env, request, fd, found.st_dev)
        return KernelHeld(env, request, fd, identity, data, True)
    except BaseException:
        env.holds.pop((*identity, fd), None)
        if data:
            _erase(env, fd, data)
        raise


def open_existing(env: Environment, request: Request) -> int | None:
    """A descriptor of the lock file, for writing if that is permitted (F3); None if it is not there."""
    path = request.path
    try:
        try:
            return env.open_existing(path, write=True)
        except OSError as error:
            if error.errno not in (*UNWRITABLE, errno.ETXTBSY):
                raise
        return env.open_existing(path, write=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        try:
            require_regular(env.stat(path), request)  # a directory, a symlink, a socket: say so
        except OSError:
            pass
        raise explained(error, request, env) from error


def read_own(env: Environment, request: Request, fd: int) -> tuple[bytes, Record | None]:
    """The beginning of the content; and the record, if that is all there is, and of this protocol."""
    head = env.read(fd, _HEAD)
    if not head.startswith(SIGNATURE):
        return head, None
    content = head if len(head) < _HEAD else read_record(env, fd)
    try:
        record = request.protocol.decode(content)
        return head, record if request.protocol.encode(record) == content else None
    except ValueError:
        return head, None


def _open(env: Environment, request: Request) -> tuple[int, bool]:
    """A descriptor of the lock file, and whether it was created, as it was not there."""
    while True:
        fd = open_existing(env, request)
        if fd is not None:
            return fd, False
        try:
            return env.open_new(request.path, request.mode), True
        except FileExistsError:
            continue
        except OSError as error:
            if not make_parents(env, request, error):
                raise explained(error, request, env) from error


def _is_cleared(env: Environment, request: Request, fd: int, *, alone: bool) -> bool:
    """Whether a file that was not empty is so now, as it had an outdated record of ours. ProtocolMismatch for one of
    another protocol, whose holder would not heed the guard. What else is in it stays."""
    head, record = read_own(env, request, fd)
    if record is None:
        require_no_other(env, request, fd, head)
        return False
    if request.shared or not alone:
        return False
    try:
        env.truncate(fd, 0)
    except OSError:
        return False  # opened for reading only
    return True


def require_no_other(env: Environment, request: Request, fd: int, head: bytes) -> None:
    """ProtocolMismatch for a record of another protocol, whose holder would not heed the guard."""
    if b"timestamp=" in head or b'"started_at"' in head:
        other = other_protocol(request, read_record(env, fd), None)
        if other is not None:
            raise mismatch(request, other)


def _write_tag(env: Environment, request: Request, fd: int, device: int) -> bytes:
    """What was written (F5); nothing where that is not possible: a tag is no reason to fail."""
    data = request.compose(env, device, guarded=True)
    try:
        write_all(env, fd, data)
    except OSError:
        _empty(env, fd)
        return b""
    except BaseException:
        _empty(env, fd)
        raise
    return data


def _erase(env: Environment, fd: int, data: bytes) -> None:
    """Take the tag away, if it is still all that is there."""
    try:
        if env.read(fd, len(data) + 1) == data:
            env.truncate(fd, 0)
    except OSError:
        pass  # it does not count without its holder


def _empty(env: Environment, fd: int) -> None:
    try:
        env.truncate(fd, 0)
    except OSError:
        pass  # opened for reading only, so nothing was written
