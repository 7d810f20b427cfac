"""What foreign implementations do beside a lock file, and how to keep out of each other's way.

Some publish by renaming a temporary file to the lock path, after a look that found nothing there. Such a rename would
replace our lock file. Others make a directory beside it while they remove a stale lock.

Y1  A rival that makes its temporary file after our lock file is there sees the lock file, and backs off. One whose
    temporary file is older than our lock file is still in the directory when we list it. So whoever has published waits
    until none is left, and then looks whether the lock is still its own, before anyone is let in.
Y2  A rival that is stopped between its look and its rename must not stop the world: a temporary file that is old, or
    whose process has ended, is no rival any more. Should it come back all the same, `check()` notices.
Y3  The directory that announces a removal is made before the record is judged for the last time, and removed whatever
    happens. One that is there already is somebody's who is at it: the others go back to waiting. One that is old was
    left by a crash.
"""

from __future__ import annotations

from .environment import Environment, Presence, Wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from .hold import Held
    from .request import Request

_YOUNG = 1.0
"""Seconds for which a temporary file counts whatever is known of its process, which may be another container's."""
_OLD = 60.0
"""Seconds after which nobody is believed to be at it any more. Others do within a millisecond what they have to do."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.010
_PATIENCE = 0.5
"""Seconds for which a new lock waits for rivals; then it is given back and tried again: the caller may want to stop."""


def quieten(env: Environment, request: Request, held: Held | None) -> Generator[Wait, None, Held | None]:
    """The hold, as soon as no rival can replace its lock file any more; None when one has, or does not go away (Y1)."""
    if held is None or not request.protocol.has_rivals:
        return held
    try:
        pause, until = _FIRST_PAUSE, env.monotonic() + _PATIENCE
        while _has_rivals(env, held):
            if env.monotonic() >= until:
                held.give_back()
                return None
            yield Wait((), env.monotonic() + pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        if held.verify():
            return held
    except BaseException:
        held.give_back()
        raise
    held.abandon()
    return None


def rivals(env: Environment, request: Request) -> list[tuple[str, int]]:
    """The temporary files of others for this lock file, and the pid that each is named after."""
    found = []
    for name in env.list_directory(request.directory):
        pid = request.protocol.rival(name, request.name)
        if pid is not None:
            found.append((f"{request.directory}/{name}", pid))
    return found


def _has_rivals(env: Environment, held: Held) -> bool:
    """Y2. Ages are by the clock that stamped our own lock file: a server's may differ from ours."""
    now: float | None = None
    for path, pid in rivals(env, held.request):
        if now is None:
            now = env.fstat(held.fd).st_mtime + env.monotonic() - held.acquired
        try:
            age = abs(now - env.stat(path).st_mtime)  # from the future: the clock was set back
        except OSError:
            continue  # gone by now
        if age < _YOUNG or (age < _OLD and not has_ended(env, pid)):
            return True
    return False


def has_ended(env: Environment, pid: int) -> bool:
    """Whether there is no such process here."""
    return env.inspect(pid).presence in (Presence.GONE, Presence.ZOMBIE)


def sweep_rivals(env: Environment, request: Request) -> int:
    """Remove the temporary files for this lock file whose processes have ended here; how many that were."""
    removed = 0
    for path, pid in rivals(env, request):
        if has_ended(env, pid):
            try:
                env.unlink(path)
                removed += 1
            except OSError:
                pass  # another sweeper was faster, it is not ours to remove, or it is a directory
    return removed


def announce_removal(env: Environment, request: Request) -> bool:
    """Y3: False when somebody else is at it."""
    suffix = request.protocol.reclaim_suffix
    if not suffix:
        return True
    directory = request.path + suffix
    for _ in range(2):
        try:
            env.make_directory(directory, 0o700)
            return True
        except FileExistsError:
            try:
                if env.time() - env.stat(directory).st_mtime < _OLD:
                    return False
                env.remove_directory(directory)
            except OSError:
                return False
    return False


def end_removal(env: Environment, request: Request) -> None:
    """Y3."""
    if request.protocol.reclaim_suffix:
        try:
            env.remove_directory(request.path + request.protocol.reclaim_suffix)
        except OSError:
            pass  # somebody took it for a crash's
