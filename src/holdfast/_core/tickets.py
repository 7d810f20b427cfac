"""Tickets: the files by which those who wait are seen by other processes.

A ticket lies in a hidden directory beside the lock file, which is there only while somebody waits. Its waiter keeps its
guard. Its name sorts by arrival and says whether the waiter would share the lock; its content is a record, like a
holder's, for people.

Q2  A ticket counts while its guard is held. Whoever finds one without removes it, under its guard. Its creator cannot
    have the guard at the instant of creation, so it looks afterwards whether the ticket is still there.
"""

from __future__ import annotations

import errno
import stat

from ..model import marker_text
from ..protocols import get
from .environment import Environment
from .files import is_there, let_go, unlink_quietly, write_all
from .request import Request

MOMENT = 0.002
"""Seconds that a waiter waits before it takes a ticket, and that newcomers may pass it by (queue.py, Q5)."""
_TRIES = 20
WAITING, HOLDING = b"state=waiting\n", b"state=holding\n"


class Ticket:
    """One waiter's ticket, and the descriptor that guards it."""

    def __init__(self, env: Environment, queue: str, name: str, fd: int) -> None:
        self.name = name
        self._env = env
        self._queue = queue
        self._fd = fd

    def hold(self) -> None:
        """Say that its owner is not waiting any more."""
        self._env.write(self._fd, HOLDING, 0)

    def give_up(self) -> None:
        """Remove it; the directory too, if it was the last. Never raises."""
        unlink_quietly(self._env, f"{self._queue}/{self.name}")  # the name is nobody else's: there is a token in it
        try:
            self._env.close(self._fd)
        except OSError:
            pass
        remove_queue(self._env, self._queue)


def issue(env: Environment, request: Request, name: str, since: float) -> Ticket | None:
    """A guarded ticket of that name (Q2); None where there are no kernel locks. OSError as the system gives it."""
    path = f"{request.queue}/{name}"
    if not env.guards:
        return None
    for _ in range(_TRIES):
        _make_queue(env, request)
        try:
            fd = env.open_new(path, 0o644)
        except FileNotFoundError:
            continue  # the directory was removed in between, being empty
        guard: bool | None = False
        try:
            found = env.fstat(fd)
            guard = env.guard(fd)
            if guard:
                who = env.identity()
                record = get("sema").compose(who, since, request.tag, marker_text(True, found.st_dev, who), {})
                write_all(env, fd, WAITING + record)
                if is_there(env, path, (found.st_dev, found.st_ino)):
                    return Ticket(env, request.queue, name, fd)
        except BaseException:
            unlink_quietly(env, path)
            let_go(env, fd)
            remove_queue(env, request.queue)
            raise
        let_go(env, fd)
        if guard is None:
            unlink_quietly(env, path)
            remove_queue(env, request.queue)
            break
    return None


def name_of(arrival: float, pid: int, token: str, *, shared: bool) -> str:
    """The name of a ticket. `arrival` is on the monotonic clock of the machine, which all processes share."""
    return f"{int(arrival * 1e9):020d}-{'s' if shared else 'x'}-{pid}-{token}"


def arrival(name: str) -> float:
    return int(name[:20]) / 1e9


def is_ticket(name: str) -> bool:
    return name[20:21] == "-" and name[:20].isdecimal()


def is_shared(name: str) -> bool:
    return name[21:22] == "s"


def names(env: Environment, queue: str) -> list[str]:
    """The tickets in the queue, by arrival. What cannot be a ticket is left out."""
    try:
        found = sorted([name for name in env.list_directory(queue) if is_ticket(name)])
    except OSError:
        return []
    if not found:
        remove_queue(env, queue)  # left by somebody who died between two steps
    return found


def is_guarded(env: Environment, path: str) -> bool:
    """Whether a ticket is somebody's. One that is not is removed (Q2); one that cannot be judged counts, up to Q6."""
    try:
        fd = env.open_existing(path, write=False)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        if env.guarded(fd):
            return True
        found = env.fstat(fd)
        # None: where there are no kernel locks, whoever made it has died before it knew that.
        if env.guard(fd) is not False and is_there(env, path, (found.st_dev, found.st_ino)):
            env.unlink(path)
    except OSError:
        pass  # another's, in a sticky directory: it does not count, and stays
    finally:
        let_go(env, fd)
    return False


def tidy(env: Environment, queue: str) -> None:
    """Remove what dead waiters left, up to the first living one: that one will do the same when it leaves."""
    for name in names(env, queue):
        if is_guarded(env, f"{queue}/{name}"):
            return
    remove_queue(env, queue)


def _make_queue(env: Environment, request: Request) -> None:
    """The directory of the queue, open to those to whom the lock's own directory is."""
    try:
        if not stat.S_ISDIR(env.stat(request.queue).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "no directory, or a link to one", request.queue)
    except FileNotFoundError:
        mode = stat.S_IMODE(env.stat(request.directory).st_mode) & 0o1777 | 0o700
        try:
            env.make_directory(request.queue, mode)
        except FileExistsError:
            pass


def remove_queue(env: Environment, queue: str) -> None:
    try:
        env.remove_directory(queue)
    except OSError:
        pass  # not empty
