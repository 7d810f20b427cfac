"""Tickets: the files by which those who wait are seen by other processes.

A ticket lies in a hidden directory beside the lock file, the queue, which is there only while somebody waits. Its
waiter keeps its guard. Its name sorts by arrival and says whether the waiter would share the lock; its content is a
record, like a holder's, for people.

Q2  A ticket counts while its guard is held. Whoever finds one without removes it, under its guard. Its creator cannot
    have the guard at the instant of creation, so it looks afterwards whether the ticket is still there. Where a
    neighbour's probe keeps it from the guard, or the neighbour removes it or the still empty directory, it makes both
    anew: a waiter without a ticket would be passed by all that come later, and be shown to nobody.
Q8  Others may write to the lock's directory, and exchange the queue for anything at any moment. So it is opened once,
    never through a link, and each step in it goes by that descriptor. Nothing in it is removed but a regular file with
    a ticket's name whose guard is free. A directory that somebody moves there loses and gains nothing by that.
Q9  A queue is open to those to whom the lock's own directory is. Its mode is set on the descriptor, and only while the
    directory is empty, ours, and has the mode with which it is made, which nothing else has: no directory of ours that
    somebody moves there is opened to others. If its maker dies before that, the next one of the same user does it.
"""

from __future__ import annotations

import errno
import stat

from ..model import marker_text
from ..protocols import get
from .environment import Environment
from .files import let_go, write_all
from .request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

MOMENT = 0.002
"""Seconds that a waiter waits before it takes a ticket, and that newcomers may pass it by (queue.py, Q5)."""
_TRIES = 20
_IN_THE_MAKING = stat.S_ISVTX | 0o500
"""The mode of a queue that has just been made (Q9): it may be opened by its owner, and by nobody else."""
WAITING, HOLDING = b"state=waiting\n", b"state=holding\n"


class Queue:
    """The directory of the tickets, opened: whatever is at its path by now, it is this one (Q8)."""

    __slots__ = ("_env", "_fd", "path")

    def __init__(self, env: Environment, path: str) -> None:
        self._env = env
        self.path = path
        self._fd = env.open_directory(path)

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Never raises: what the system says of a directory that was only read is no news."""
        try:
            if self._fd >= 0:
                self._env.close(self._fd)
        except OSError:
            pass
        self._fd = -1

    def names(self) -> list[str]:
        """The tickets, by arrival. What cannot be a ticket is left out."""
        try:
            return sorted([name for name in self._env.list_directory(self._fd) if is_ticket(name)])
        except OSError:
            return []

    def is_empty(self) -> bool:
        return not self._env.list_directory(self._fd)

    def open(self, name: str) -> int:
        return self._env.open_existing(name, write=False, dir_fd=self._fd)

    def create(self, name: str, mode: int) -> int:
        return self._env.open_new(name, mode, dir_fd=self._fd)

    def has(self, name: str, identity: tuple[int, int]) -> bool:
        """Whether the name leads to this very file now."""
        try:
            found = self._env.stat(name, dir_fd=self._fd)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == identity

    def unlink(self, name: str) -> bool:
        """Whether it is gone: another's, in a sticky directory, stays."""
        try:
            self._env.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            pass
        except OSError:
            return False
        return True

    def is_guarded(self, name: str) -> bool:
        """Whether a ticket is somebody's. One that is not is removed (Q2); one that cannot be judged counts (Q6)."""
        env = self._env
        try:
            fd = self.open(name)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        try:
            if env.guarded(fd):
                return True
            found = env.fstat(fd)
            identity = (found.st_dev, found.st_ino)
            # None: where there are no kernel locks, whoever made it has died before it knew that.
            if stat.S_ISREG(found.st_mode) and env.guard(fd) is not False and self.has(name, identity):
                self.unlink(name)
        except OSError:
            pass
        finally:
            let_go(env, fd)
        return False

    def open_up(self, directory: str) -> None:
        """Open it to those to whom the lock's directory is, if it is in the making (Q9)."""
        env = self._env
        found = env.fstat(self._fd)
        if stat.S_IMODE(found.st_mode) != _IN_THE_MAKING or not self.is_empty():
            return
        try:
            # What a link leads to, not the link: that is open to all.
            env.chmod(self._fd, stat.S_IMODE(env.stat(f"{directory}/.").st_mode) & 0o1777 | 0o700)
        except PermissionError:
            pass  # another user's; who runs as root may, and then it is what its owner would have done


class Ticket:
    """One waiter's ticket, and the descriptor that guards it."""

    def __init__(self, env: Environment, queue: Queue, name: str, fd: int) -> None:
        self.name = name
        self.queue = queue
        self._env = env
        self._fd = fd

    def hold(self) -> None:
        """Say that its owner is not waiting any more."""
        self._env.write(self._fd, HOLDING, 0)

    def give_up(self) -> None:
        """Remove it; the directory too, if it was the last. Never raises."""
        self.queue.unlink(self.name)  # the name is nobody else's: there is a token in it
        try:
            self._env.close(self._fd)
        except OSError:
            pass
        self.queue.close()
        remove_queue(self._env, self.queue.path)


def issue(env: Environment, request: Request, name: str, since: float) -> Ticket | None:
    """A guarded ticket of that name (Q2); None where there are no kernel locks. OSError as the system gives it; EAGAIN
    when neighbours have spoiled every try, so that a later one may succeed."""
    if not env.guards:
        return None
    for _ in range(_TRIES):
        try:
            queue = _make_queue(env, request)
        except FileNotFoundError:
            continue  # a neighbour has removed it, as it was empty still
        except PermissionError:
            if stat.S_IMODE(env.stat(request.queue).st_mode) != _IN_THE_MAKING:
                raise
            continue  # another user is making it
        try:
            made = _make(env, request, queue, name, since)
        except BaseException:
            queue.close()
            remove_queue(env, request.queue)
            raise
        if made:
            return made
        queue.close()
        remove_queue(env, request.queue)
        if made is None:
            return None
    raise BlockingIOError(errno.EAGAIN, "neighbours keep removing it", f"{request.queue}/{name}")


def _make(env: Environment, request: Request, queue: Queue, name: str, since: float) -> Ticket | Literal[False] | None:
    """The ticket; False when a neighbour has probed or removed it before it was guarded; None: no kernel locks."""
    try:
        fd = queue.create(name, request.mode)
    except (FileNotFoundError, FileExistsError):
        queue.unlink(name)  # nobody else makes one of this name: it is what an earlier try could not remove
        return False
    guard: bool | None = False
    try:
        found = env.fstat(fd)
        guard = env.guard(fd)
        if guard:
            who = env.identity()
            record = get("sema").compose(who, since, request.tag, marker_text(True, found.st_dev, who), {})
            write_all(env, fd, WAITING + record)
            if queue.has(name, (found.st_dev, found.st_ino)):
                return Ticket(env, queue, name, fd)
    except BaseException:
        queue.unlink(name)
        let_go(env, fd)
        raise
    queue.unlink(name)
    let_go(env, fd)
    return None if guard is None else False


def _make_queue(env: Environment, request: Request) -> Queue:
    """The queue, made if it is not there. OSError when there is something else at its path: a link, a file."""
    try:
        queue = Queue(env, request.queue)
    except FileNotFoundError:
        try:
            env.make_directory(request.queue, _IN_THE_MAKING)
        except FileExistsError:
            pass
        queue = Queue(env, request.queue)
    try:
        queue.open_up(request.directory)
    except BaseException:
        queue.close()
        raise
    return queue


def withdraw(env: Environment, path: str, name: str) -> None:
    """Remove the ticket, if it is there. It may be broken off, and called again."""
    queue = opened(env, path)
    if queue is not None:
        with queue:
            queue.unlink(name)  # it is nobody else's: there is a token in it
        remove_queue(env, path)


def name_of(arrival: float, pid: int, token: str, *, shared: bool) -> str:
    """The name of a ticket. `arrival` is on the monotonic clock of the machine, which all processes share."""
    return f"{int(arrival * 1e9):020d}-{'s' if shared else 'x'}-{pid}-{token}"


def arrival(name: str) -> float:
    return int(name[:20]) / 1e9


def is_ticket(name: str) -> bool:
    arrival, _, rest = name.partition("-")
    kind, _, rest = rest.partition("-")
    pid, _, token = rest.partition("-")
    return (
        kind in ("x", "s")
        and (len(arrival), len(token)) == (20, 16)
        and 0 < len(pid) <= 10
        and not (arrival + pid).strip("0123456789")
        and not token.strip("0123456789abcdef")
    )


def pid_of(name: str) -> int:
    """The process that made a ticket, in its own PID namespace."""
    return int(name.split("-")[2])


def is_shared(name: str) -> bool:
    return name[21:22] == "s"


def opened(env: Environment, path: str) -> Queue | None:
    """The queue, if there is one that may be looked at."""
    try:
        return Queue(env, path)
    except OSError:
        return None


def names(env: Environment, path: str) -> list[str]:
    """The tickets in the queue, by arrival."""
    queue = opened(env, path)
    if queue is None:
        return []
    with queue:
        found = queue.names()
    if not found:
        remove_queue(env, path)  # left by somebody who died between two steps
    return found


def tidy(env: Environment, path: str) -> None:
    """Remove what dead waiters left, up to the first living one: that one will do the same when it leaves."""
    queue = opened(env, path)
    if queue is None:
        return
    with queue:
        if any(queue.is_guarded(name) for name in queue.names()):
            return
    remove_queue(env, path)


def remove_queue(env: Environment, path: str) -> None:
    try:
        env.remove_directory(path)
    except OSError:
        pass  # not empty
