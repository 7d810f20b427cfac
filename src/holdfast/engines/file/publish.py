"""Publishing: the lock file appears with its whole record and with its guard taken, or not at all.

The methods, best first; where a directory does not support one, the request falls back to the next and remembers it:

    unnamed     O_TMPFILE, guard, write, link. A crash leaves nothing.
    named       a temporary name, write, link(2), open the path, guard. A crash leaves at most the temporary name, which
                the next publisher here removes.
    exclusive   O_CREAT|O_EXCL on the path itself, guard, write.

P1  Every method creates the name exclusively (EEXIST), so two publishers never both succeed. No method renames, as that
    replaces.
P2  The guard is taken before a marker that claims it can be read. Otherwise a prober between the two would find
    "guard free, marker matches", a false proof of death.
P3  Hence, where the guard cannot be taken before the name exists (named: on FUSE the two names do not share it), the
    record first says `n`, "known by its process", and one byte is flipped to `g` once the guard is held.
P4  An interrupted publisher removes the path if it names the publisher's own inode: it cannot trust what it
    remembers of a call that did not return.
P5  exclusive: creating does not acquire. The creator acquires when it has the guard, the path is still its inode, and
    the file is still empty.
P6  exclusive: until the record is written the file carries the sticky bit, which no other implementation sets. Empty
    with that bit and an unheld guard means a creator that died, or has yet to do P5: a contender may take the guard and
    do P5 itself. One of them gets the guard; the other finds it refused, or the file no longer empty.
P7  exclusive: a creator without kernel locks could not keep such a contender out, so its file does not carry the bit,
    and counts as held from the start.
P8  named: on a file server, the name may appear before the record, which the machine may keep for itself for a while.
    If it dies meanwhile, an empty file stays, which counts as held. So the record is synchronised first.
P9  named: if it is known that a file cannot be opened by its second name, none is made: it would count as held.
P10 unnamed: a waiter may have made the file before its turn came, a blank: guarded, without a name, and with one byte,
    so that its first page is there. So a crash leaves nothing of it. The record is composed when the lock is free, as
    ever, and covers that byte. If the blank cannot be linked (the directory may be another one by now), a new file is
    tried before that means anything.
"""

from __future__ import annotations

import errno
import stat

from ..._core.wait import Steps, Wait
from ..._platform.fork import forking
from ..._platform.operations import let_go, partial, sweep_when_due, unlink_quietly
from ..._platform.values import temporary_name
from ...errors import UnsupportedFilesystem
from .hold import FileHold
from .interop import among, quieten
from .steps import (
    OWNER,
    REMOVED,
    UNFINISHED,
    admit_owner,
    kinds_of_marker,
    names_there,
    not_made,
    with_hint,
    withdraw,
    write_all,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..._platform.interface import Environment
    from .request import FileRequest

    Blank = tuple[int, bool, tuple[int, int], float]
    """An unnamed file that is to become a lock file: its descriptor, whether it is guarded, its identity, and the lease
    of a hold there. It may be made in advance (P10)."""


_NEXT_METHOD = {"unnamed": "named", "named": "exclusive"}
NOT_HERE = (
    *(errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EISDIR, errno.EPERM, errno.EXDEV, errno.EMLINK),
    errno.ENOENT,
)
_GUARD_RETRIES = 200
_GUARD_PAUSE = 0.0005


def _blank(env: Environment, request: FileRequest) -> Blank:
    fd = env.open_unnamed(request.directory, request.mode)
    try:
        guarded = env.guard(fd) is True  # P2; no other process can know this inode, so it is never refused
        found = env.fstat(fd)
        admit_owner(env, fd, found.st_mode)  # else a crash would leave a file that its user cannot judge
        return fd, guarded, (found.st_dev, found.st_ino), request.lease_on(env, found.st_dev)
    except BaseException:
        let_go(env, fd)
        raise


def prepared(env: Environment, request: FileRequest) -> Blank | None:
    """A blank for a waiter whose turn is still to come; None where none can be made."""
    if request.method != "unnamed" or request.protocol.persistent or request.protocol.is_directory:
        return None
    if env.lingering:  # there it has a name, which would outlive a killed waiter
        return None
    try:
        blank = _blank(env, request)
    except OSError:
        return None
    try:
        env.write(blank[0], b"\n", 0)
    except OSError:
        pass  # the disk is full: there may be room when the turn comes
    return blank


def discard(env: Environment, blank: Blank) -> None:
    """Close a blank that is not needed any more."""
    let_go(env, blank[0])


def publish(env: Environment, request: FileRequest, blank: Blank | None = None) -> Steps[FileHold | None]:
    """A new hold, or None if the path exists. The blank, if there is one, becomes the hold's, or is closed."""
    held: FileHold | None
    log = env.directory_log(request.directory) if request.protocol.has_rivals else None
    if log is not None:
        log.expect()
    raced: list[OSError] = []
    while True:
        method = request.method
        if blank is not None and method != "unnamed":  # another thread with the same lock has moved on
            discard(env, blank)
            blank = None
        try:
            if method == "unnamed":
                held = _publish_unnamed(env, request, blank or _blank(env, request))
            elif method == "named":
                held = yield from _publish_named(env, request)
            else:
                held = yield from _publish_exclusive(env, request)
            break
        except FileExistsError:
            return None
        except OSError as error:
            if blank is None:
                _fall_back(env, request, error, method, raced)
            blank = None  # P10
    if held is None:
        return None
    try:
        if log is not None and log.saw(request.name) and not (log.names and among(log.names, request)):
            return held  # interop.py, Y7
        return (yield from quieten(env, request, held))
    except BaseException:
        held.give_back()
        raise


def _publish_unnamed(env: Environment, request: FileRequest, blank: Blank) -> FileHold:
    data, (fd, guarded, identity, lease) = b"", blank
    try:
        data = request.compose(env, identity[0], guarded=guarded, lease=lease)
        env.undo_by(fd, partial(withdraw, env, request, data))
        write_all(env, fd, data)
        if request.durable:
            env.sync(fd)
        env.link_unnamed(fd, request.path)
        if request.durable:
            env.sync_directory(request.directory)
        return FileHold(env, request, fd, identity, data, guarded, leased=lease > 0)
    except FileExistsError:
        env.close(fd)
        raise
    except BaseException:
        withdraw(env, request, data, fd)
        raise


def _publish_named(env: Environment, request: FileRequest) -> Steps[FileHold | None]:
    _require_lock_files(env, request)
    sweep_when_due(env, request.directory)
    with forking:
        import zlib  # noqa: F401 - for the name
    temporary = f"{request.directory}/{temporary_name(env.identity(), env.token())}"
    data, named = b"", True
    env.operations.about_to_make(temporary)
    try:
        fd = env.open_new(temporary, request.mode)
    except BaseException:
        unlink_quietly(env, temporary)  # interrupted after it was made; the token makes the name ours
        raise
    try:
        try:
            found = env.fstat(fd)
            device = found.st_dev
            admit_owner(env, fd, found.st_mode)  # it is opened by its name
            data = request.compose(env, device, guarded=False)
            env.undo_by(fd, partial(withdraw, env, request, data))
            write_all(env, fd, data)
            asks = env.knows_mounts or request.lease  # else it would take a process to find out how this is mounted
            if request.durable or (asks and env.storage(request.path, device).shared):
                env.sync(fd)  # P8
            env.link(temporary, request.path)
        finally:
            env.unlink(temporary)
            named = False
        if request.durable:
            env.sync_directory(request.directory)
        # From here on only the lock path's own descriptor counts: the other name may have another guard (P3).
        try:
            opened = env.open_existing(request.path, write=True)
        except FileNotFoundError:
            env.close(fd)
            return None  # already removed by another process; the name itself worked
        env.undo_by(opened, partial(withdraw, env, request, data))
        fd, previous = opened, fd
        env.close(previous)
        return (yield from guard_late(env, request, fd, data))
    except FileExistsError:
        env.close(fd)
        raise
    except BaseException:
        if named:
            unlink_quietly(env, temporary)  # once more: while this process lives, no other removes it
        withdraw(env, request, data, fd)
        raise


def _require_lock_files(env: Environment, request: FileRequest) -> None:
    """Raise UnsupportedFilesystem where a lock file could not be opened by its name (P9)."""
    storage = env.storage(request.path) if env.knows_mounts else None
    if storage is not None and not storage.lock_files:
        raise request.error(
            UnsupportedFilesystem,
            f"{request.directory} cannot hold lock files of the {request.protocol.name} protocol ({storage.kind}): one "
            "that is made there cannot be opened by its name. Use protocol='flock' (-p flock), or a directory on "
            "another filesystem.",
        )


def guard_late(env: Environment, request: FileRequest, fd: int, data: bytes) -> Steps[FileHold | None]:
    """Guard a hold that is known only by its process so far, and record the guard (P3)."""
    found = env.fstat(fd)
    if env.read(fd, len(data) + 1) != data:
        env.close(fd)
        return None  # already replaced by another process
    held = FileHold(env, request, fd, (found.st_dev, found.st_ino), data, False)
    guard: bool | None = None
    for _ in range(_GUARD_RETRIES if request.on_behalf_of is None else 0):
        try:
            guard = env.guard(fd)
        except OSError as error:
            if error.errno not in REMOVED:
                raise
            held.give_back()
            return None  # removed since, by another machine (inspect.py, L8)
        if guard is not False:
            break  # None: a filesystem without kernel locks; the process stays the proof of life
        yield Wait((), env.monotonic() + _GUARD_PAUSE)  # a probe has it for an instant
    if not held.verify():
        held.abandon()
        return None  # replaced since
    if guard:
        held.data = data.replace(*kinds_of_marker(request, data), 1)
        write_all(env, fd, held.data)
        held.guarded = True
    return held


def _publish_exclusive(env: Environment, request: FileRequest) -> Steps[FileHold | None]:
    operation = env.operations.current()
    if operation is not None:
        operation.undo_created = partial(withdraw, env, request, b"")
    fd = env.open_new(request.path, request.mode | (UNFINISHED if _has_locks(env, request.directory) else 0))
    return (yield from finish(env, request, fd, created=True))


def _has_locks(env: Environment, directory: str) -> bool:
    """Whether this process can have kernel locks here (P7): files behave like their directory."""
    if not env.guards:
        return False
    try:
        fd = env.open_directory(f"{directory}/.")
    except OSError:
        return True  # it may not be read; where there are no links, being denied only locks is unlikely
    try:
        return env.guarded(fd) is not None
    except OSError:
        return True
    finally:
        env.close(fd)


def finish(env: Environment, request: FileRequest, fd: int, *, created: bool) -> Steps[FileHold | None]:
    """Make the empty, unfinished file of `fd` ours (P5), or close it and return None.

    Its creator does this, and so does a contender that found it; the contender only where there are guards.
    """
    data = b""
    try:
        for _ in range(_GUARD_RETRIES):
            guard = env.guard(fd)
            if guard is not False:
                break
            yield Wait((), env.monotonic() + _GUARD_PAUSE)
        found = env.fstat(fd)
        # A contender finishes only a file with the bit, as the path may name a foreign creator's empty file by now;
        # and only one without another name (takeover.py, T18).
        left = guard is True and bool(found.st_mode & UNFINISHED)
        mine = guard is not False and (created or left)
        names = names_there(env, request.path, (found.st_dev, found.st_ino)) if mine and not found.st_size else 0
        if not names or (names > 1 and not created):
            env.unguard(fd)
            env.close(fd)
            return None
        data = request.compose(env, found.st_dev, guarded=guard is True)
        env.undo_by(fd, partial(withdraw, env, request, data))
        write_all(env, fd, data)
        try:
            env.chmod(fd, stat.S_IMODE(found.st_mode) & ~UNFINISHED | OWNER)
        except OSError:
            pass  # vfat and some FUSE keep no such bits; the record alone says that the file is finished, too
        if request.durable:
            env.sync(fd)
            env.sync_directory(request.directory)
        return FileHold(env, request, fd, (found.st_dev, found.st_ino), data, guard is True)
    except BaseException:
        withdraw(env, request, data, fd)
        raise


def _fall_back(env: Environment, request: FileRequest, error: OSError, method: str, raced: list[OSError]) -> None:
    """Return to let the caller try again, perhaps by another method; or raise `error` in words that help."""
    if make_parents(env, request, error, raced):
        return
    following = _NEXT_METHOD.get(method)
    if error.errno in NOT_HERE and following is not None:
        if request.method == method:  # else another thread with the same lock has moved on already
            request.method = following
        return
    if error.errno in NOT_HERE and error.errno not in (errno.ENOENT, errno.EPERM):
        raise request.error(
            UnsupportedFilesystem,
            f"{request.directory} cannot hold lock files: it supports neither unnamed files, nor links, nor exclusive "
            f"creation ({error.strerror}). Use a directory on a local filesystem.",
        ) from error
    raise not_made(error, request, env) from error


def make_parents(env: Environment, request: FileRequest, error: OSError, raced: list[OSError]) -> bool:
    """Whether the reason was a missing directory, which has been made; InvalidPath if that was not requested.

    `raced`: the errors of this caller after which the directory was there. After the first one, another process has
    probably made it since.
    """
    if error.errno != errno.ENOENT:
        return False
    if _has_directory(env, request):
        raced.append(error)
        return len(raced) == 1
    if not request.parents:
        raise with_hint(error, request) from error
    try:
        env.make_directories(request.directory)
    except (FileExistsError, NotADirectoryError) as there:
        blocked = OSError(errno.ENOTDIR, "not a directory", there.filename)
        raise with_hint(blocked, request) from there
    return True


def _has_directory(env: Environment, request: FileRequest) -> bool:
    try:
        env.stat(f"{request.directory}/.")
    except FileNotFoundError:
        return False
    except OSError as error:
        raise with_hint(error, request) from error
    return True
