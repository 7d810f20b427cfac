"""Temporary files and directories of foreign implementations, and how not to collide with them.

Some publish by renaming a temporary file to the lock path, after a look that found nothing there. Such a rename would
replace our lock file. Others make a directory beside it while they remove a stale lock.

Y1  A rival that creates its temporary file after our lock file sees the lock file, and backs off. A temporary file that
    is older than our lock file is still in the directory when we list it. So a publisher waits until none is left, and
    checks that the lock is still its own, before it lets its caller in.
Y2  A rival that is stopped between its look and its rename must not block everybody: a temporary file that is old, or
    whose process has ended, no longer counts. If that rival does come back, `check()` notices.
Y3  The directory that announces a removal is made before the record is judged for the last time, and removed whatever
    happens: it is open from the moment that it is made, and its descriptor says how to undo it. If it exists already,
    another process is removing the lock: we go back to waiting. An old one was left by a crash.
Y4  fs-safe never removes such a directory after a crash, and waits for it forever, even if the lock is free. So ours
    has the sticky bit, which no other implementation sets, and a guard: with that bit and an unheld guard it is a dead
    holdfast process's. A process that gets the guard of a leftover, and finds that the path still names it, owns it
    from there on.
Y5  A process that announced a removal before our lock file existed may have judged another file for the last time, and
    be about to remove ours. It does so at once or, if it judged ours, not at all. So after publishing beside an
    announcement we wait until that is gone, or a moment, and then check that the lock is still our own.
Y6  Any process that may read the directory of an announcement can also lock it. Sharing the guard with such readers
    still shows that no holdfast process has it alone. If two of ours share it, the gates of the takeover let one
    through (takeover.py, T1); the other may end the announcement early, and then only Y5 is left.
Y7  Any lock file of this kind may have rivals, whichever of the two protocols the caller has chosen. Listing a large
    directory each time would cost more than the rest. So a process that often publishes there keeps a log of new names
    in it (inotify.py, N8), begun by a listing. A rival's temporary file that existed when ours appeared came before it,
    so it is in the log or in the listing. If the log is uncertain, or names a rival, we list the directory.
Y8  Windows has neither that bit nor guards of directories. There the announcement is a file that the system removes
    with the process that made it, so a kill leaves none. A process that makes a directory of that name finds it taken.
Y9  The name of a lock file may be so long that its announcement would have none. Then no process announces anything,
    and the two gates of the takeover decide alone. So they do where the disk has no room for one: a dead holder's lock
    can be taken over and removed there, which takes none.
Y10 What is in the place of an announcement may be somebody's data: fs-safe makes a directory, or a file with a JSON
    object. Anything else is left alone. fs-safe waits for it, so we do, too, and say what is in the way.
"""

from __future__ import annotations

import errno
import stat

from ..._core.wait import Steps, Wait
from ..._platform.operations import let_go, partial
from ...model import Value
from .steps import NO_ROOM, is_there, with_hint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..._platform.interface import Environment
    from .hold import FileHold
    from .request import FileRequest


_YOUNG = 1.0
"""Seconds for which a temporary file counts regardless of its process, which may be in another container."""
_OLD = 60.0
"""Seconds after which an attempt or removal counts as abandoned. Normally it takes a millisecond."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.010
_MOMENT = 0.020
"""Seconds within which others act on their last look (takeover.SETTLE)."""
_OURS = stat.S_ISVTX
_IN_THE_WAY = "{} is in the way: it announces no removal of the lock, so move it away"
_PATIENCE = 0.1
"""Seconds that a new lock waits for rivals; then it is given back and tried again, as the caller may want to stop."""


def quieten(env: Environment, request: FileRequest, held: FileHold | None) -> Steps[FileHold | None]:
    """The hold, once no rival can remove its lock file any more; None if one has, or remains (Y1, Y5), or if the
    directory is gone.

    The caller gives the hold back if this is interrupted.
    """
    if held is None:
        return None
    if request.protocol.has_rivals:
        in_the_way = _has_rivals
    elif request.protocol.reclaim_suffix:
        in_the_way = _is_removal_announced
    else:
        return held
    pause, until = _FIRST_PAUSE, env.monotonic() + _PATIENCE
    try:
        while in_the_way(env, held):
            if env.monotonic() >= until:
                held.retried = True
                held.give_back()
                return None
            yield Wait((), env.monotonic() + pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
    except (FileNotFoundError, NotADirectoryError):
        if is_there(env, held.path, held.identity):
            raise
        held.give_back()
        return None
    except OSError as error:
        raise with_hint(error, request, env) from error
    if is_there(env, held.path, held.identity):
        return held
    held.abandon()
    return None


def rivals(env: Environment, request: FileRequest) -> list[tuple[str, int]]:
    """The rivals' temporary files for this lock file, and the pid in the name of each."""
    begun = env.monotonic()
    try:
        names = env.list_directory(request.directory)
    except PermissionError as error:
        error.add_note(
            f"{request.protocol.name} locks need a directory that this user may list, to see who else makes one there; "
            "choose another directory, or another protocol"
        )
        raise
    env.listed(request.directory, env.monotonic() - begun)
    log = env.directory_log(request.directory)
    if log is not None:
        log.start(names)
    return among(names, request)


def among(names: Iterable[str], request: FileRequest) -> list[tuple[str, int]]:
    """The rivals' temporary files for this lock file among these names, by path and pid."""
    found, ours = [], request.name
    for name in names:
        if not name.startswith(ours) or name == ours:
            continue  # quickly: there may be thousands
        pid = request.protocol.rival(name, request.name)
        if pid is not None:
            found.append((f"{request.directory}/{name}", pid))
    return found


def _has_rivals(env: Environment, held: FileHold) -> bool:
    """Whether a rival's temporary file counts (Y2). Its age is by the clock that stamped our lock file: a file server's
    clock may differ from ours."""
    now: float | None = None
    for path, pid in rivals(env, held.request):
        if now is None:
            now = env.fstat(held.fd).st_mtime + env.monotonic() - held.acquired
        try:
            age = abs(now - env.stat(path).st_mtime)  # from the future: the clock was set back
        except OSError:
            continue  # gone
        if _is_rival(env, age, pid):
            return True
    return False


def about_to_rename(env: Environment, request: FileRequest) -> tuple[str, int] | None:
    """The temporary file that keeps a contender from a lock without a file, and its pid (Y2). For messages."""
    if not request.protocol.has_rivals:
        return None
    try:
        for path, pid in rivals(env, request):
            age = abs(env.time() - env.stat(path).st_mtime)
            if _is_rival(env, age, pid):
                return path, pid
    except OSError:
        pass  # it is gone, or the directory may not be listed
    return None


def _is_rival(env: Environment, age: float, pid: int) -> bool:
    """Whether a temporary file of that age still counts as a rival (Y2)."""
    return age < _YOUNG or (age < _OLD and not env.inspect(pid).has_ended)


def sweep_rivals(env: Environment, request: FileRequest) -> int:
    """Remove the temporary files for this lock file whose processes have ended here, unless they are young: the process
    may be in another container. Their number."""
    removed = 0
    for path, pid in rivals(env, request):
        if env.inspect(pid).has_ended:
            try:
                found = env.stat(path)
                if stat.S_ISREG(found.st_mode) and abs(env.time() - found.st_mtime) >= _YOUNG:
                    env.unlink(path)
                    removed += 1
            except OSError:
                pass  # another sweeper was faster, or it is not ours to remove
    return removed


class Announcement(Value):
    """The announcement that we are removing a lock.

    `fd` is -1 where there are no guards; `identity` is None if closing is enough to end it (Y8), or nothing has to be
    ended.
    """

    fd: int
    identity: tuple[int, int] | None


def announce_removal(env: Environment, request: FileRequest) -> Announcement | None:
    """Announce the removal (Y3); `end_removal` ends that. None if another process is removing the lock.

    FileExistsError if something else is in the place of an announcement (Y10).
    """
    if not request.protocol.reclaim_suffix:
        return Announcement(-1, None)
    path = request.path + request.protocol.reclaim_suffix
    try:
        vanishing = env.open_vanishing(path)
        if vanishing is not None:
            return Announcement(vanishing, None)
        return _announce(env, path) if env.guards else _announce_unguarded(env, path)
    except FileExistsError:
        return _adopt(env, path)
    except FileNotFoundError:
        return None  # another process took it for a crash's leftover and ended it; or the whole directory is gone
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, *NO_ROOM):
            raise
        return Announcement(-1, None)  # Y9


def end_removal(env: Environment, request: FileRequest, announced: Announcement) -> None:
    """End the announcement (Y3)."""
    if announced.identity is None:
        if announced.fd >= 0:
            let_go(env, announced.fd)
        return
    _end(env, request.path + request.protocol.reclaim_suffix, announced.identity, announced.fd)


def _announce(env: Environment, path: str) -> Announcement | None:
    operation, undo = env.operations.current(), partial(_unmake, env, path)
    if operation is not None:
        operation.undo_created = undo
    fd = env.open_new_directory(path, 0o755 | _OURS)
    try:
        env.undo_by(fd, undo)
        return _guarded(env, path, fd, surely=True)
    except BaseException:
        undo(fd)
        raise


def _announce_unguarded(env: Environment, path: str) -> Announcement:
    env.make_directory(path, 0o755)
    try:
        found = env.stat(path)
        return Announcement(-1, (found.st_dev, found.st_ino))
    except BaseException:
        _remove(env, path)
        raise


def _unmake(env: Environment, path: str, fd: int) -> None:
    """Remove the directory that was made, and close it. May be interrupted, and called again (operations.py, J3)."""
    if not env.is_open(fd):
        return
    try:
        found = env.fstat(fd)
        ours = is_there(env, path, (found.st_dev, found.st_ino))
    except OSError:
        ours = True  # as far as is known
    try:
        if ours:
            _remove(env, path)
    except OSError:
        pass  # the first failure is the one to report
    let_go(env, fd)


def _end(env: Environment, path: str, identity: tuple[int, int], fd: int) -> None:
    """Remove the announcement at the end of a removal, and close it."""
    try:
        _remove_own(env, path, identity)
    except BaseException:
        if fd < 0:
            _remove_own(env, path, identity)  # an interruption; nothing else would do it
        raise
    if fd >= 0:
        let_go(env, fd)  # not before: while it is open, its number is no other's


def _remove_own(env: Environment, path: str, identity: tuple[int, int]) -> None:
    try:
        if is_there(env, path, identity):  # else another process took it for a crash's leftover
            _remove(env, path)
    except OSError:
        pass


def _adopt(env: Environment, path: str) -> Announcement | None:
    """Take over a crash's leftover (Y3, Y4); None if it may be in use. FileExistsError by Y10."""
    try:
        found = env.stat(path)
        if _is_announcement(env, path, found.st_mode):
            old = abs(env.time() - found.st_mtime) >= _OLD
            if not env.guards:
                if not old:
                    return None
                _remove(env, path)
                return _announce_unguarded(env, path)
            return _take_guard(env, path, surely=old) if old or found.st_mode & _OURS else None
    except OSError:
        return None  # gone, recreated by another process, or not ours to touch
    raise FileExistsError(errno.EEXIST, _IN_THE_WAY.format(path))


def in_the_way(env: Environment, request: FileRequest) -> str | None:
    """The reason why nobody can announce a removal (Y10); None without one, or if that cannot be known."""
    if not request.protocol.reclaim_suffix:
        return None
    path = request.path + request.protocol.reclaim_suffix
    try:
        return None if _is_announcement(env, path, env.stat(path).st_mode) else _IN_THE_WAY.format(path)
    except OSError:
        return None


def _is_announcement(env: Environment, path: str, mode: int) -> bool:
    return stat.S_ISDIR(mode) or (stat.S_ISREG(mode) and _has_record(env, path))


def _has_record(env: Environment, path: str) -> bool:
    """Whether the file begins as the record of fs-safe does, or is still empty (Y10)."""
    fd = env.open_existing(path, write=False)
    try:
        return env.read(fd, 1) in (b"", b"{")
    finally:
        env.close(fd)


def why_left(env: Environment, path: str) -> str | None:
    """The reason why this announcement is abandoned (Y3, Y4); None if it may be in use. Changes nothing."""
    try:
        fd = env.open_directory(path)
    except NotADirectoryError:
        return None
    try:
        found = env.fstat(fd)
        if env.list_directory(fd):
            return None
        held = env.guarded(fd) if env.guards and found.st_mode & _OURS else None
    finally:
        env.close(fd)
    if held is not None:
        return None if held else "the process that announced a removal by it has died: its kernel lock is gone"
    if abs(env.time() - found.st_mtime) < _OLD:
        return None
    return f"it announces a removal, which takes milliseconds, and is older than {_OLD:.0f} s"


def _take_guard(env: Environment, path: str, *, surely: bool) -> Announcement | None:
    """Take the guard of the file or directory at the path, unless another process has it or recreates it.

    `surely`: even if the filesystem has no kernel locks.
    """
    fd = env.open_existing(path, write=False)
    try:
        return _guarded(env, path, fd, surely=surely)
    except BaseException:
        let_go(env, fd)
        raise


def _guarded(env: Environment, path: str, fd: int, *, surely: bool) -> Announcement | None:
    """Take the guard of an open file or directory; if it is refused, or the path names another file, close it."""
    guard = env.guard(fd)
    if guard is False:
        guard = env.guard(fd, shared=True)  # Y6
    found = env.fstat(fd)
    identity = (found.st_dev, found.st_ino)
    announces = _may_announce(found.st_mode)
    if announces and (guard or (surely and guard is None)) and is_there(env, path, identity):
        env.undo_by(fd, partial(_end, env, path, identity))
        return Announcement(fd, identity)
    let_go(env, fd)
    return None


def _may_announce(mode: int) -> bool:
    """Whether its type is one that others make: not a link, nor anything unsafe to open."""
    return stat.S_ISDIR(mode) or stat.S_ISREG(mode)


def _remove(env: Environment, path: str) -> None:
    try:
        env.remove_directory(path)
    except NotADirectoryError:
        env.unlink(path)  # fs-safe makes a file where it is told to stay below a directory (`lockRoot`)
    except FileNotFoundError:
        pass


def _is_removal_announced(env: Environment, held: FileHold) -> bool:
    """Whether a removal is announced that may be of our lock (Y5). A crash's leftover, for which fs-safe would wait
    forever (Y4), is removed."""
    path = held.path + held.request.protocol.reclaim_suffix
    try:
        announced = env.stat(path).st_mtime
    except OSError:
        return False
    waited = env.monotonic() - held.acquired
    try:
        left = _adopt(env, path)
    except FileExistsError:
        return False
    if left is not None:
        end_removal(env, held.request, left)
        return False  # its maker has died, or took too long
    return waited < _MOMENT or abs(env.fstat(held.fd).st_mtime + waited - announced) < _YOUNG
