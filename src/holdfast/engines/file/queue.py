"""Fairness: waiters stand in a queue, first come, first served, and each waits for the one ahead of it to leave.

A waiter takes a ticket: a FIFO in a hidden directory beside the lock file, the queue, which exists only while there are
waiters. The waiter keeps it open for reading. The waiter behind opens it for writing and polls it, which asks whether
its owner lives, arms the wake-up, and proves the owner's death, all in one call. Only the first waiter watches the lock
file. Threads and tasks of a process stand in a `LocalQueue`, and the first of them has a ticket.

    new ──▶ behind another waiter of this process ──▶ behind a ticket ──▶ first ──▶ holding ──▶ left

Q1  Exclusion never depends on the queue. A place only decides when a contender tries; so every failure here is ignored,
    and a process that does not know of the queue harms only the order.
Q2  A ticket is made under another name, opened, and renamed, so it has its reader until that gives it up or dies. A
    name is used only once. So a ticket without a reader (ENXIO) has lost its owner forever, and may be removed. So may
    one that is being made and has no reader yet: its maker starts over.
Q3  A FIFO is a pipe of one kernel and one mount. A ticket's name says which, and one of another kernel or mount is not
    waited for: ENXIO says nothing about it. It is removed once it is a day old.
Q4  A ticket is kept until the release. It is closed after the lock file is removed, and before its own name is: so a
    process that stops between any two steps does not leave the next waiter asleep. A release wakes only that waiter,
    however many wait, and it finds the lock free.
Q5  A contender that finds a queue joins it. So a waiter whose ticket was in place before another contender began goes
    before it: nobody passes, no process takes the lock twice in a row while others wait, and a wait is as long as the
    holds ahead. Contenders that do not wait (`timeout=0`) take a free lock all the same, except readers: together they
    could keep a writer out forever.
Q6  A ticket is the right to be first for waiters that use it. If the lock is free while the first waiter does nothing
    (stopped, forged, or with another policy about stale locks), the next ones pass it: they ignore the tickets ahead,
    for this wait, and for a second in the later waits of this process. They remove none: its owner may go on. A waiter
    counts as idle after two looks that find the lock free behind the same first waiter of all processes, and behind the
    same tickets that were passed before it: one of these that comes back has the lock first. They are PATIENCE apart
    for each waiter ahead in our own process, which runs as we do, and at least once. None of them has it then, and they
    are still the first. Nothing shows whether a contender that does not queue had it in between. Waiters that sleep
    behind an idle one are told of the free lock when half of that time is over (Q11), by the first that sees it: a
    waiter that was told tells nobody. Waiters that read it are not idle: they get the time to pass the idle one
    themselves, and again after each of them that goes, and no later wait ignores them. An unread byte later shows
    others that its waiter is stopped; so each tells only a few more, and all are told in time. A release after more
    than an instant looks at the next waiters: if they are stopped, it tells the first that is not.
Q7  The slots of a semaphore have one queue, and a waiter leaves its place at the acquisition: the next one looks at
    once, as another slot may be free too. So two releases at once let two in, and each of them wakes only the first.
Q8  Others may write to the lock's directory, and exchange the queue for anything at any moment. So it is opened once,
    never through a link, and each step in it goes by that descriptor. Only files with the name of a ticket, or a name
    derived from one, are removed from it, once they have lost their owner. Moving a directory there gains an attacker
    nothing.
Q9  A queue is open to the same users as the lock's own directory. Its mode is set on the descriptor, and only while the
    directory is empty, ours, and has its initial mode, which nothing else has: so no directory of ours that is moved
    there is opened to others. If its maker dies before that, the next process of the same user does it. The mode of a
    ticket is set in the same way.
Q10 A process hands its place on without a gap: its next waiter's ticket is made, with that waiter's own arrival, before
    the leaver's is closed. So the order holds for threads and tasks of several processes, too. A ticket that is renamed
    for that says until then that its owner has the lock. So a ticket that does not say so, and is still in the list
    afterwards, belongs to a waiter that has not had the lock.
Q11 A waiter also polls its own ticket: a byte in it means that the lock, or the queue, is worth a look (remove.py, R4).
    Others may write there without end; after a number of bytes, the waiter no longer listens in this wait.
Q12 A FIFO with two names may belong to another directory, and be linked here. It is no ticket. Nothing is written to a
    FIFO, and its mode is not set (`open_fifo` of a reader), before one look at its name has shown that inode, with one
    name (takeover.py, T18).
"""

from __future__ import annotations

import _thread
import errno
import functools
import math
import stat
import zlib
from bisect import bisect_left, insort

from ..._core.wait import Signal
from ..._platform.values import RECHECK
from ...errors import MalformedRecord
from ...model import Waiter, marker_text
from ...protocols import get
from .inspect import read_record
from .steps import close_quietly, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..._platform.interface import Environment, Stat
    from ..._platform.operations import Operation
    from ...model import Status
    from .inspect import Observation
    from .request import FileRequest

    Arrival = tuple[float, Waiter]

PATIENCE = 0.020
"""Seconds for which a free lock is left to the first waiters (Q6)."""
_MOST_SLOWED = 50
"""Maximum factor by which waiters ahead in our own process make that time longer, to a second."""
_REMEMBERED = 1.0
"""Seconds for which later waits of this process ignore a ticket that was passed (Q6)."""
FIRST_LOOK = 0.010
"""Seconds that a waiter behind others waits before its first look at a lock that was there when it came."""
_RECHECK_EACH = 1.0
"""Seconds between looks at the lock, for each waiter ahead."""
_LONGEST_RECHECKS = 6
"""Maximum time between these looks, as a multiple of RECHECK: all waiters ahead have to be idle for it to matter."""
_FIRST_POLL, _LONGEST_POLL = 0.001, 1.0
"""Seconds between looks at a ticket ahead that cannot be opened."""
_TRIES = 20
_MOST_KEPT = 100
"""Maximum number of dead waiters' tickets that may not be removed, before a look goes no further."""
_MOST_NUDGES = 50
_MOST_TOLD = 20
"""Maximum number of waiters that one which finds the lock free tells of it (Q6). Each is woken, so not all at once."""
_MOST_ASKED = 2000
"""Maximum number of waiters that are examined for that: others may forge any number that never read."""
_IN_THE_MAKING = stat.S_ISVTX | 0o500
"""The mode of a queue that has just been made (Q9): only its owner may open it."""
_MADE, _OPEN, _HOLDING = stat.S_ISVTX | 0o600, 0o622, 0o100
"""Modes of a ticket: one that has just been made, which nothing else has (Q9); one that others may follow, if they may
enter the queue; and the bit that says that its owner has the lock."""
_TURN = "turn-"
NEW, RECORD = ".new", ".tag"
"""Suffixes of a ticket's name: while it is made (Q2), and for its waiter's record, which is for people."""
_FOREIGN_LASTS = 86_400.0
"""Seconds after which a ticket of another kernel or mount is a leftover (Q3)."""
_GONE = (errno.ENXIO, errno.ENOENT)
_NO_TICKET = (errno.ELOOP, errno.EISDIR, errno.ENODEV, errno.EINVAL)


class Queue:
    """The open directory of the tickets. It stays this one, whatever is at its path later (Q8)."""

    __slots__ = ("_env", "_fd", "device", "mode", "owner", "path", "where")

    def __init__(self, env: Environment, path: str) -> None:
        self._env = env
        self.path = path
        self._fd = env.open_directory(path)
        try:
            found = env.fstat(self._fd)
        except BaseException:
            self.close()
            raise
        self.mode, self.owner, self.device = stat.S_IMODE(found.st_mode), found.st_uid, found.st_dev
        who = env.identity()
        self.where = _where(who.boot, who.pid_namespace, who.host, found.st_dev)

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        close_quietly(self._env, self._fd)
        self._fd = -1

    def names(self) -> list[str]:
        """All names in it, sorted, so that tickets are by arrival."""
        try:
            names = self._env.list_directory(self._fd)
        except OSError:
            return []
        names.sort()
        return names

    def before(self, name: str, *, there: bool = False) -> list[str] | None:
        """All names before this one, sorted. None if the name has to be `there` and is not; then an OSError says that
        this cannot be seen now."""
        try:
            names = self._env.list_directory(self._fd)
        except FileNotFoundError:
            names = []  # the directory has been removed
        except OSError:
            if there:
                raise
            names = []
        # A waiter is woken when few names or none are left before its own, while all later ones are behind it.
        found = [one for one in names if one <= name]
        found.sort()
        if found and found[-1] == name:
            found.pop()
        elif there:
            return None
        return found

    def tickets(self) -> list[str]:
        """The tickets of this kernel and mount, by arrival (Q3)."""
        return [name for name in self.names() if self.counts(name)]

    def counts(self, name: str) -> bool:
        """Whether it may be the ticket of a waiter that this process can wait for (Q3)."""
        return name[-33:-25] == self.where[:8] and is_ticket(name)

    def follow(self, name: str) -> int | None:
        """A descriptor that hangs up when the ticket's owner closes it. None: there is no ticket; if its owner is gone,
        it is removed (Q2). -1: it counts, but cannot be followed."""
        try:
            return self._env.open_fifo(name, write=True, dir_fd=self._fd)
        except OSError as error:
            if error.errno == errno.ENXIO:
                self.remove(name)
            return None if error.errno in _GONE or error.errno in _NO_TICKET else -1

    def remove(self, name: str) -> bool:
        """Remove a ticket and its record. Whether it is gone: in a sticky directory, another user's stays."""
        return self.unlink(name + RECORD) and self.unlink(name)

    def unlink(self, name: str) -> bool:
        try:
            self._env.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            pass
        except OSError:
            return False
        return True

    def stat(self, name: str) -> Stat | None:
        try:
            return self._env.stat(name, dir_fd=self._fd)
        except OSError:
            return None

    def has_only(self, found: Stat, name: str) -> bool:
        """Whether this is the only name of the file of which a descriptor found this (Q12)."""
        there = self.stat(name)
        return there is not None and there.st_ino == found.st_ino and there.st_nlink <= 1

    def read(self, name: str, owner: int) -> bytes:
        """The content of a file of that user; empty if it cannot be read."""
        env = self._env
        try:
            fd = env.open_existing(name, write=False, dir_fd=self._fd)
        except OSError:
            return b""
        try:
            found = env.fstat(fd)
            return read_record(env, fd) if stat.S_ISREG(found.st_mode) and found.st_uid == owner else b""
        except OSError:
            return b""
        finally:
            env.close(fd)

    def write(self, name: str, mode: int, data: bytes) -> None:
        fd = self.new_file(name, mode)
        try:
            write_all(self._env, fd, data)
        finally:
            self._env.close(fd)

    def new_file(self, name: str, mode: int) -> int:
        """Make a file in it, and return its descriptor."""
        return self._env.open_new(name, mode, dir_fd=self._fd)

    def make(self, name: str, record: bytes | None, record_mode: int) -> Ticket:
        """Make a ticket, open for reading (Q2), with its waiter's record. FileNotFoundError: a neighbour has removed
        it, or the directory."""
        env, new = self._env, name + NEW
        env.make_fifo(new, _MADE, dir_fd=self._fd)
        fd = -1
        try:
            fd = env.open_fifo(new, write=False, dir_fd=self._fd)
            found = env.fstat(fd)
            if found.st_mode != stat.S_IFIFO | _MADE or found.st_nlink > 1:
                raise FileNotFoundError(errno.ENOENT, "another file is in its place", f"{self.path}/{new}")
            mode = _MADE
            if self.mode & 0o022 or found.st_uid != self.owner:
                mode = _OPEN
                env.chmod(fd, mode)
            self.describe(name, record, record_mode)
            env.rename(new, name, dir_fd=self._fd)
        except BaseException:
            close_quietly(env, fd)
            raise
        return Ticket(env, self, name, fd, mode, is_described=record is not None)

    def describe(self, name: str, record: bytes | None, mode: int) -> None:
        """Write the record of a waiter, if it has one, before its ticket gets this name: no look shows it without."""
        if record is not None:
            try:
                self.write(name + RECORD, mode, record)
            except OSError:
                pass  # Q1

    def withdraw(self, name: str) -> None:
        """Remove a ticket of ours, finished or not: the token in the name makes it ours."""
        self.unlink(name + NEW)
        self.remove(name)

    def rename(self, name: str, new: str) -> None:
        self._env.rename(name, new, dir_fd=self._fd)

    @property
    def descriptor(self) -> int:
        return self._fd

    def keep(self) -> None:
        """Keep its descriptor open beyond the operation that opened it."""
        self._env.keep(self._fd)

    def is_abandoned(self, name: str) -> bool:
        """Whether it is the leftover of a waiter that has ended, and may be removed (Q8)."""
        env = self._env
        base = name.removesuffix(NEW).removesuffix(RECORD)
        if is_turn(name):
            turn = self.stat(name)
            return turn is not None and stat.S_ISREG(turn.st_mode) and env.time() - turn.st_mtime > _FOREIGN_LASTS
        found = self.stat(name) if is_ticket(base) else None
        if found is None or not (
            stat.S_ISFIFO(found.st_mode) or (name == base + RECORD and stat.S_ISREG(found.st_mode))
        ):
            return False
        if not self.counts(base):
            return env.time() - found.st_mtime > _FOREIGN_LASTS
        if name == base + RECORD:  # in this order: the ticket may be renamed between the two
            return self.stat(base + NEW) is None and self.stat(base) is None
        return self._is_unread(name)

    def _is_unread(self, name: str) -> bool:
        try:
            self._env.close(self._env.open_fifo(name, write=True, dir_fd=self._fd))
        except OSError as error:
            return error.errno == errno.ENXIO
        return False

    def living(self, name: str) -> Stat | None:
        """The stat of a ticket whose owner lives, or cannot be judged; else None."""
        env = self._env
        try:
            fd = env.open_fifo(name, write=True, dir_fd=self._fd)
        except OSError as error:
            if error.errno in _GONE or error.errno in _NO_TICKET:
                return None
            ended = self.shares_pids_with(name) and env.inspect(pid_of(name)).has_ended
            return None if ended else self.stat(name)
        try:
            return env.fstat(fd)
        finally:
            env.close(fd)

    def tell(self, name: str, *, tells: bool = True) -> bool:
        """Have its waiter look (Q11). Whether it waits and has read all earlier bytes; else it is told nothing."""
        env = self._env
        fd = self.follow(name)
        if fd is None or fd < 0:
            return False
        try:
            found = env.fstat(fd)
            if is_holding(found) or env.is_unread(fd) or not self.has_only(found, name):
                return False
            if tells:
                env.nudge(fd)
            return True
        finally:
            env.close(fd)

    def shares_pids_with(self, name: str) -> bool:
        """Whether the pid in the ticket's name belongs to our PID namespace."""
        return name[-25:-17] == self.where[8:]

    def sweep(self, names: Iterable[str] | None = None) -> None:
        """Remove dead waiters' leftovers, of these names or of all, up to the first living waiter, which will do so
        when first, or at release."""
        kept = 0
        for name in self.names() if names is None else names:
            if self.is_abandoned(name):
                kept += not self.unlink(name)
                if kept >= _MOST_KEPT:
                    return  # another user's, in a sticky directory: there may be any number of them
            elif self.counts(name):
                return

    def tell_behind_stopped(self) -> None:
        """Tell the first waiter that can run of a free lock, if those ahead of it are stopped (Q6)."""
        try:
            for number, name in enumerate(self.tickets()[:_MOST_TOLD]):
                if not (self.shares_pids_with(name) and self._env.inspect(pid_of(name)).stopped):
                    if number:
                        self.tell(name)
                    return
        except OSError:
            pass  # Q1

    def open_up(self, directory: str) -> None:
        """Open it to the users of the lock's directory, if it has just been made (Q9)."""
        env = self._env
        if self.mode != _IN_THE_MAKING or env.list_directory(self._fd):
            return
        try:
            # The mode of a link's target: the link itself is open to all.
            mode = stat.S_IMODE(env.stat(f"{directory}/.").st_mode) & 0o1777 | 0o700
            env.chmod(self._fd, mode)
            self.mode = mode
        except PermissionError:
            pass  # another user's; root may open it up, as its owner would have


class Ticket:
    """One waiter's open ticket."""

    __slots__ = ("_env", "_is_described", "_mode", "fd", "name", "queue")

    def __init__(self, env: Environment, queue: Queue, name: str, fd: int, mode: int, *, is_described: bool) -> None:
        self._mode = mode
        self._is_described = is_described
        self._env = env
        self.queue = queue
        self.name = name
        self.fd = fd

    def mark(self, *, holding: bool) -> None:
        """Show whether its owner has the lock, or waits."""
        try:
            self._env.chmod(self.fd, self._mode | _HOLDING if holding else self._mode)
        except OSError:
            pass  # Q1

    def ahead(self) -> list[str] | None:
        """All names in the queue before it, sorted; None if it is no longer there. OSError if they cannot be read."""
        return self.queue.before(self.name, there=True)

    def rename(self, name: str, record: bytes | None, record_mode: int) -> None:
        """Make it another waiter's, with that one's record."""
        self.queue.describe(name, record, record_mode)
        self.queue.rename(self.name, name)
        if self._is_described:
            self.queue.unlink(self.name + RECORD)
        self.name, self._is_described = name, record is not None

    def keep(self) -> None:
        """Keep it open beyond the operation that made it: it belongs to the waiter that it was made for (Q10)."""
        self._env.keep(self.fd)
        self.queue.keep()

    def descriptors(self) -> tuple[int, ...]:
        return self.fd, self.queue.descriptor

    def give_up(self) -> None:
        """Wake the waiter behind, and remove the ticket, and the directory if it was the last. Never raises."""
        close_quietly(self._env, self.fd)  # first: the waiter behind takes longer to wake up than we need for the rest
        # The token in the name makes it ours.
        if self._is_described:
            self.queue.remove(self.name)
        else:
            self.queue.unlink(self.name)
        self.queue.close()
        remove_queue(self._env, self.queue.path)


def make_queue(env: Environment, request: FileRequest) -> Queue | None:
    """The queue, created if missing; None, to try again, if it was removed in between, or another user is making it.
    OSError if there is something else at its path: a link, a file."""
    try:
        queue = Queue(env, request.queue)
    except FileNotFoundError:
        made = True
        try:
            env.make_directory(request.queue, _IN_THE_MAKING)
        except FileExistsError:
            made = False
        try:
            queue = Queue(env, request.queue)
        except FileNotFoundError:
            return None
        except PermissionError:  # the umask keeps it from its owner, and would keep it from all later waiters
            if made:
                remove_queue(env, request.queue)
            raise
    except PermissionError:
        if stat.S_IMODE(env.stat(request.queue).st_mode) != _IN_THE_MAKING:
            raise
        return None
    try:
        queue.open_up(request.directory)
    except BaseException:
        queue.close()
        raise
    return queue


def withdraw(env: Environment, path: str, name: str) -> None:
    """Remove the ticket, if it exists. May be interrupted, and called again."""
    queue = opened(env, path)
    if queue is not None:
        with queue:
            queue.withdraw(name)
        remove_queue(env, path)


def _key(arrival: float) -> str:
    """The beginning of the names of tickets with that arrival."""
    return f"{int(arrival * 1e9):020d}-"


def name_of(arrival: float, pid: int, where: str, token: str, *, shared: bool) -> str:
    """The name of a ticket. `arrival` is on the machine's monotonic clock, which all processes share."""
    return f"{_key(arrival)}{'s' if shared else 'x'}-{pid}-{where}-{token}"


@functools.lru_cache(64)
def _where(boot: str, pid_namespace: str, host: str, device: int) -> str:
    """The part of a ticket's name that identifies its kernel and mount (Q3), and its PID namespace."""
    boot = boot if boot != "-" else f"- {host}"
    kernel, pids = zlib.crc32(f"{boot} {device}".encode()), zlib.crc32(f"{boot} {pid_namespace}".encode())
    return f"{kernel:08x}{pids:08x}"


def arrival(name: str) -> float:
    return int(name[:20]) / 1e9


def is_ticket(name: str) -> bool:
    pid = name[23:-34]
    return (
        name[20:21] == name[22:23] == name[-34:-33] == name[-17:-16] == "-"
        and name[21] in "xs"
        and 0 < len(pid) <= 10
        and name.isascii()
        and (name[:20] + pid).isdecimal()
        and not (name[-33:-17] + name[-16:]).strip("0123456789abcdef")
    )


def turn_name(number: int, token: str, beat: int) -> str:
    """The name of a turn between machines (turns.py); turns sort by number."""
    return f"{_TURN}{number:012d}-{token}-{beat:06d}"


def is_turn(name: str) -> bool:
    number, _, rest = name.removeprefix(_TURN).partition("-")
    token, _, beat = rest.partition("-")
    return (
        name.startswith(_TURN)
        and name.isascii()
        and len(number) == 12
        and (number + beat).isdecimal()
        and bool(token)
        and not token.strip("0123456789abcdef")
    )


def turn_number(name: str) -> int:
    return int(name[len(_TURN) :][:12])


def pid_of(name: str) -> int:
    """The pid of the process that made a ticket, in its own PID namespace."""
    return int(name.split("-", 3)[2])


def is_holding(ticket: Stat) -> bool:
    """Whether the owner of this ticket has the lock."""
    return bool(ticket.st_mode & _HOLDING)


def is_shared(name: str) -> bool:
    return name[21:22] == "s"


def opened(env: Environment, path: str) -> Queue | None:
    """The queue, if there is one that this user may open; else None."""
    try:
        return Queue(env, path)
    except OSError:
        return None


def tidy(env: Environment, path: str) -> None:
    """Remove dead waiters' leftovers, and the queue if there was nothing else. The lock has just become free."""
    queue = opened(env, path)
    if queue is not None:
        with queue:
            queue.sweep()
            queue.tell_behind_stopped()
        remove_queue(env, path)


def remove_queue(env: Environment, path: str) -> None:
    try:
        env.remove_directory(path)
    except OSError:
        pass  # not empty


def wake(env: Environment, path: str, holder: int) -> None:
    """Have the waiters look again, after the lock was taken from a holder; its ticket, if it has one, is removed first
    (Q11).

    All waiters look: some follow that ticket, and others are ahead of it.
    """
    queue = opened(env, path)
    if queue is None:
        return
    with queue:
        names = queue.tickets()
        for name in names:
            if pid_of(name) == holder and queue.shares_pids_with(name):
                found = queue.living(name)
                if found is not None and is_holding(found):
                    queue.remove(name)
        for name in names:
            fd = queue.follow(name)
            if fd is not None and fd >= 0:
                try:
                    if queue.has_only(env.fstat(fd), name):
                        env.nudge(fd)
                finally:
                    env.close(fd)
    remove_queue(env, path)  # all may have been dead


def is_contended(env: Environment, request: FileRequest) -> bool:
    """Whether a newcomer has to queue (Q5), if there is a queue, or was a moment ago."""
    local: LocalQueue | None = env.local_queues.get(request.queue)
    if local is not None:
        for entry in local.entries.copy():
            if not (entry.shared and request.shared):
                return True
        if not env.exists(request.queue):
            return False
    queue = opened(env, request.queue) if request.shared else None
    if queue is None:
        return True
    with queue:
        if not all(is_shared(name) for name in queue.tickets()):
            return True
        queue.sweep()  # we follow none of them, so nothing else would show us the dead ones
    remove_queue(env, queue.path)
    return False


class LocalQueue:
    """The places of this process in the queue of one lock, by arrival."""

    __slots__ = ("entries", "mutex")

    def __init__(self) -> None:
        self.mutex = _thread.RLock()
        self.entries: list[QueueEntry] = []

    def ahead_of(self, entry: QueueEntry) -> list[QueueEntry]:
        """The predecessors of `entry`; a reader does not wait for readers. The entry is inserted if it is missing: at
        first, and after a waiter has passed it (Q6)."""
        if entry not in self.entries:
            insort(self.entries, entry, key=lambda other: other.started)  # behind those of the same moment
        entries = self.entries.copy()  # it may have been passed again since (operations.py, J7)
        before = entries[: entries.index(entry)] if entry in entries else entries
        return [other for other in before if not other.shared] if entry.shared else before

    def first(self) -> list[QueueEntry]:
        """The waiters of this process whose turn it is: a writer, or readers. None of them is one that cannot have a
        ticket, because it does not wait."""
        found: list[QueueEntry] = []
        for entry in self.entries.copy():
            if entry.cannot_queue:
                continue
            if not entry.shared:
                return found or [entry]
            found.append(entry)
        return found

    def wake_first(self) -> None:
        """Wake the first waiters. Remove one whose event loop was closed, and which would never leave by itself."""
        readers = False
        for entry in self.entries.copy():
            if readers and not entry.shared:
                return
            if entry.signal.set():
                if not entry.shared:
                    return
                readers = True
            elif entry in self.entries:  # a signal handler may have changed them
                self.entries.remove(entry)
                entry.drop_place()  # it may have just been given a ticket (Q10)


class QueueEntry:
    """One contender's place in the queue."""

    def __init__(self, env: Environment, request: FileRequest, started: float, *, waits: bool = True) -> None:
        self.env = env
        self.started = started
        self.shared = request.shared
        self.owner = request.owner
        self.tag = request.tag
        self.holding = False
        self.signal = Signal()
        self._request = request
        self._generation = env.generation
        self._arrival = started - env.clock_shift
        """The time when it came: to the queue inside its process, or, if it was alone there, to its first ticket."""
        self._is_new = True
        self._ticket: Ticket | None = None
        self._issuing = ""
        """The name of a ticket of ours that may exist and that `_ticket` does not know yet."""
        self.cannot_queue = not waits or not env.fifos
        """Whether we cannot have a ticket: we will not wait, or tickets do not work here (no FIFOs, no write
        permission, a full disk)."""
        self._receives = False
        """Whether a place of this process hands its ticket on to us just now."""
        self._ignored: set[str] = set()
        """Tickets that we have passed in this wait (Q6)."""
        self.first_ahead: object = None
        """The first waiter, when it was not us; for one of another process, the list of `_first_of`."""
        self._behind_here = 0
        self._ahead = 0
        """The number of names before ours, which is at least that of the waiters ahead."""
        self._before = ""
        """The ticket right ahead of us. `_follows` is the descriptor that follows it; -1: it is polled."""
        self._follows = -1
        self._swept = False
        """Whether we have removed dead waiters' leftovers since we became first."""
        self._nudges = 0
        self._heard_at = -math.inf
        """The time when there last was a byte in our ticket."""
        self._told: list[str] = []
        """Waiters that we have told of a free lock, that have not left it unread, and that still wait."""
        self._asked = False
        """Whether we have asked if they have read it."""
        self._answered: set[str] = set()
        """Waiters that had read it: they are not idle."""
        self._listened = False
        """Whether the last wait was for our own ticket as well."""
        self._moved_up = False
        """Whether the waiter ahead has changed since the last query: the one that left may have passed an idle one."""
        self._local = LocalQueue()
        """The local queue that we are in, once we have asked whose turn it is."""

    @property
    def slowdown(self) -> int:
        """The factor by which we look less often than others, as we are behind waiters of our own process. A thousand
        threads that all looked as often would keep the first of them from the interpreter."""
        return min(max(1, self._behind_here), _MOST_SLOWED)

    @property
    def patience(self) -> float:
        """Seconds for which we leave a free lock to the first waiters (Q6)."""
        return PATIENCE * self.slowdown

    @property
    def name(self) -> str:
        """The name of our ticket; empty if we have none."""
        return "" if self._ticket is None else self._ticket.name

    # -- whose turn ----------------------------------------------------------------------------------------------------

    def is_first(self) -> bool:
        """Whether it is our turn, as far as is visible now."""
        self.signal.is_set = False
        ahead = self._ahead_here()
        self._behind_here = len(ahead) or int(self._receives)  # then we are woken once we have that ticket
        if self._behind_here:
            self.first_ahead = ahead[0] if ahead else None
            self._is_new = False
            self._unfollow()
            return False
        return not self._is_behind_ticket()

    def _ahead_here(self) -> list[QueueEntry]:
        lines, queue = self.env.local_queues, self._request.queue
        while True:
            # It is ours already if an interruption comes now.
            local: LocalQueue = lines.setdefault(queue, self._local)
            self._local = local
            with local.mutex:
                if lines.get(queue) is local:  # else it has just been dissolved
                    ahead: list[QueueEntry] = local.ahead_of(self)
                    return ahead

    def _is_behind_ticket(self) -> bool:
        # Asked before the list is read, which then has the ticket that it was handed on to (Q10).
        left = self._before if self._before and self._follows >= 0 and self.env.hung_up(self._follows) else ""
        queue, ahead = self._open_queue()
        if queue is None:
            self._unfollow()
            return False
        try:
            ticket, before, tries = self._ticket, self._before, _TRIES
            sweeps, kept, others = ticket is None or (bool(ahead) and not self._swept), 0, list[str]()
            while ahead:
                name = ahead.pop()
                if not self._waits_for(queue, name):
                    others.append(name)
                    continue
                if self._follow(queue, name, left):
                    self._ahead, self._swept = len(ahead) + 1, False
                    self.first_ahead = self._first_of(queue, [*ahead, name])
                    self._moved_up = self._moved_up or (before not in ("", name))
                    return True
                stays = kept > 0 and queue.stat(name) is not None
                if tries and not stays and name != left:  # it may have been handed on since the list was read (Q10)
                    tries -= 1
                    listed = self._ahead_in(queue)
                    stays = listed[-1:] == [name]
                    ahead = ahead if stays else listed
                kept += stays  # it has no reader, and only another user may remove it
                if kept == _MOST_KEPT:  # where there are so many, there is no order (Q1)
                    self.cannot_queue, sweeps = True, False
                    break
            self._before = ""  # closing what followed it can wait until we have the lock
            if sweeps:
                queue.sweep(None if ticket is None else reversed(others))
                self._swept = True
            if ticket is None:
                remove_queue(self.env, queue.path)  # all tickets were of dead processes, or there were none
        finally:
            self._close_queue(queue)
        return False

    def _ahead_in(self, queue: Queue) -> list[str]:
        """The names ahead of our ticket, or of the place where it would be."""
        return queue.before(self.name or _key(self._arrival)) or []

    def _waits_for(self, queue: Queue, name: str) -> bool:
        """Whether this is a ticket to wait for: readers do not wait for readers."""
        if not queue.counts(name) or (self.shared and is_shared(name)) or name in self._ignored:
            return False
        passed = self.env.passed
        return not passed or passed.get(name, 0.0) <= self.env.monotonic()

    def _open_queue(self) -> tuple[Queue | None, list[str]]:
        """The queue and the names ahead of us in it: the queue of our own ticket, as long as that exists. A ticket is
        taken before the list is read, so that later contenders find it (Q5)."""
        if self._ticket is not None:
            ahead = self._ahead_of(self._ticket)
            if ahead is not None:
                return self._ticket.queue, ahead
            self.drop_ticket()  # another process has removed it, or the whole directory
        if not self.env.exists(self._request.queue):
            return None, []
        self.queue_up()
        if self._ticket is not None:
            ahead = self._ahead_of(self._ticket)
            if ahead is not None:
                return self._ticket.queue, ahead
        queue = opened(self.env, self._request.queue)
        return queue, [] if queue is None else self._ahead_in(queue)

    def _ahead_of(self, ticket: Ticket) -> list[str] | None:
        """The names ahead of our ticket; None if that is gone. If they cannot be read, what was seen before counts."""
        try:
            return ticket.ahead()
        except OSError:
            return [self._before] if self._before else []

    def _queue_to_look_at(self) -> Queue | None:
        """The queue of our ticket, or else the one at the path, without taking a ticket; None if there is none."""
        return opened(self.env, self._request.queue) if self._ticket is None else self._ticket.queue

    def _close_queue(self, queue: Queue) -> None:
        if self._ticket is None or self._ticket.queue is not queue:
            queue.close()

    def _follow(self, queue: Queue, name: str, left: str) -> bool:
        """Follow the ticket; False if it is gone, or its owner is, as that of `left` is known to be."""
        if name == self._before and self._follows >= 0:
            if name != left:
                return True
            queue.remove(name)  # Q2
            return False
        self._unfollow()
        fd = queue.follow(name)
        if fd is None:
            return False
        self._before, self._follows = name, fd
        return True

    def _unfollow(self) -> None:
        self._before = ""
        if self._follows >= 0:
            fd, self._follows = self._follows, -1
            close_quietly(self.env, fd)

    def first_waiter(self) -> object:
        """The first waiter of all processes. A waiter that is behind others here has only asked about these: the first
        of them may be behind a ticket, and is no more idle than that ticket's owner."""
        queue = opened(self.env, self._request.queue) if self._behind_here else None
        if queue is None:
            return self.first_ahead
        with queue:
            return self._first_of(queue, self._ahead_in(queue)) or self.first_ahead

    def _first_of(self, queue: Queue, ahead: list[str]) -> list[str]:
        """The first ticket to wait for, after those before it that we have passed (Q6); empty if there is none."""
        found: list[str] = []
        for name in ahead:
            if self._waits_for(queue, name):
                return [*found, name]
            if queue.counts(name) and not (self.shared and is_shared(name)):
                found.append(name)
        return []

    def is_idle(self, ahead: object) -> bool:
        """Whether the first waiter has not had the lock meanwhile, and still waits."""
        if not isinstance(ahead, list):
            return True
        queue = self._queue_to_look_at()
        if queue is None:
            return True
        try:
            for name in ahead:
                found = queue.living(name)
                if found is None or is_holding(found):
                    return False
        finally:
            self._close_queue(queue)
        return True

    def has_others_behind(self, first: object) -> bool:
        """Whether waiters ahead of us may sleep behind this first one, or behind another that we do not wait for."""
        if not isinstance(first, list) or not first:
            return False
        return bool(self._behind_here or self.shared or len(first) > 1 or first[-1] != self._before)

    def tell_those_ahead(self, first: object) -> bool:
        """Have the waiters from the first one up to us look at the lock, which the first one leaves alone (Q6, Q11).
        Whether there are any. A waiter that has not read an earlier byte is not told."""
        self._told, self._asked = [], False
        queue = self._queue_to_look_at()
        if queue is None or not isinstance(first, list) or not first:
            return False
        # The first of all looks at the lock anyhow, unless it is behind one that we do not wait for.
        last = "" if len(first) > 1 or self.shared else first[-1]
        # The waiter that has told us has told those ahead of us, too.
        tells = self.env.monotonic() - self._heard_at >= self.patience
        asked = 0
        try:
            for name in self._ahead_in(queue):
                if len(self._told) == _MOST_TOLD or asked == _MOST_ASKED:
                    break
                if name > last and self._waits_for(queue, name):
                    asked += 1
                    if queue.tell(name, tells=tells):
                        self._told.append(name)
        finally:
            self._close_queue(queue)
        return bool(self._told)

    def are_on_their_way(self) -> bool:
        """Whether the waiters that we have told get more time: they have read it, and since we last asked, one of them
        has had the lock. So this is true no more often than there are such waiters."""
        told = self._told
        queue = self._queue_to_look_at() if told else None
        if queue is None:
            return False
        try:
            self._told = [name for name in told if queue.tell(name, tells=False)]
        finally:
            self._close_queue(queue)
        moved = not self._asked or len(self._told) < len(told)
        self._asked = True
        self._answered.update(self._told)
        return moved and bool(self._told)

    def pass_idle_waiters(self, first: object) -> object:
        """Ignore all waiters that are ahead now, in this process and in others: they have left a free lock alone (Q6).

        Returns None. But if the first waiter is not `first` any more, it ignores none, and returns the new one.
        """
        queue, found = self._open_queue()
        try:
            if isinstance(first, list):
                now_first = [] if queue is None else self._first_of(queue, found)
                if now_first != first:
                    return now_first
            self._ignore(queue, found)
        finally:
            if queue is not None:
                self._close_queue(queue)
        self._behind_here = 0
        self._unfollow()
        return None

    def _ignore(self, queue: Queue | None, found: list[str]) -> None:
        ahead = self._ahead_here()
        with self._local.mutex:
            for entry in ahead:
                if entry in self._local.entries:
                    self._local.entries.remove(entry)
                    entry.signal.set()  # it may wait for its turn only, and nothing else would wake it
        env, now = self.env, self.env.monotonic()
        for name in [name for name, until in env.passed.copy().items() if until <= now]:
            env.passed.pop(name, None)
        if queue is not None:
            passed = [name for name in found if self._waits_for(queue, name)]
            self._ignored.update(passed)
            env.passed.update((name, now + _REMEMBERED) for name in passed if name not in self._answered)

    # -- the ticket ----------------------------------------------------------------------------------------------------

    def queue_up(self) -> None:
        """Take a ticket, if we are the first of this process."""
        if self._ticket is not None or self._behind_here or self.cannot_queue:
            return
        with self._local.mutex:
            if self._issuing:
                self.drop_ticket()  # an interruption has left it half made
            key = _key(self._arrival)
            if self._ticket is None and not self._receives:
                self._issuing = key  # no call before: no thread hands us its ticket from here on (operations.py, J7)
                if self._is_new and self._local.entries in ([], [self]):
                    # A waiter that already follows a ticket would have to be woken to see that ours came in between.
                    self._arrival = self.env.monotonic() - self.env.clock_shift
                self._is_new = False
                self._issue()

    def _issue(self) -> None:
        """Take a ticket, if possible (Q1). If neighbours spoil every try, the next wait tries again (Q2)."""
        self._issuing = _key(self._arrival)  # from here on, an interruption may leave the directory, too
        try:
            for _ in range(_TRIES):
                queue = make_queue(self.env, self._request)
                if queue is not None and self._issue_in(queue):
                    break
        except OSError:
            self.cannot_queue = True
        self._issuing = ""

    def _issue_in(self, queue: Queue) -> bool:
        env = self.env
        who = env.identity()
        self._issuing = name = name_of(self._arrival, who.pid, queue.where, env.token(), shared=self.shared)
        try:
            self._ticket = queue.make(name, self._record(queue), self._request.mode)
        except BaseException as error:
            if self._ticket is None:
                queue.withdraw(name)
                queue.close()
                remove_queue(env, queue.path)
            if isinstance(error, (FileNotFoundError, FileExistsError)):
                return False
            raise
        return True

    def drop_place(self) -> None:
        """Give up the part of the place that other processes see, without waking the other waiters of this one."""
        self.drop_ticket()

    def drop_ticket(self) -> None:
        """Leave the queue of processes, without waking the other waiters of this one."""
        ticket, name = self._ticket, self._issuing
        if ticket is not None:
            ticket.give_up()
            self._ticket = None
        elif name:
            withdraw(self.env, self._request.queue, name)  # interrupted while it was made
        self._issuing = ""

    # -- waiting -------------------------------------------------------------------------------------------------------

    def recheck(self, now: float, *, several: bool = False) -> float:
        """Seconds until the next look at the lock although a waiter is ahead (A2): one for each waiter ahead, so that
        a thousand waiters do not look ever more often; or as many as we have waited, up to RECHECK, if that is more.
        Of several files, those ahead may know only some."""
        each = _RECHECK_EACH * (self._behind_here or self._ahead)
        if several:
            return min(RECHECK, each)
        return min(_LONGEST_RECHECKS * RECHECK, max(each, min(RECHECK, now - self.started)))

    def plan(self, now: float) -> tuple[tuple[int, ...], float, Signal | None]:
        """The waits while a waiter is ahead: descriptors, the latest time to wake up, a signal."""
        if self._behind_here:
            return (), math.inf, self.signal
        if self._follows < 0:
            return (), now + min(_LONGEST_POLL, _FIRST_POLL * self._ahead**1.25), None
        if self._ticket is None or self._nudges >= _MOST_NUDGES:
            return (self._follows,), math.inf, None
        self._listened = True
        return (self._follows, self._ticket.fd), math.inf, None

    def has_reason_to_look(self) -> bool:
        """Whether the last wait ended for a reason to look: a byte of another process (Q11), or the end of a waiter
        that may have passed those ahead (Q6)."""
        if self._moved_up:
            self._moved_up = False
            return True
        listened, self._listened = self._listened, False
        if not listened or self._ticket is None or not self.env.drain(self._ticket.fd):
            return False
        self._nudges += 1
        self._heard_at = self.env.monotonic()
        return True

    # -- holding and leaving -------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Keep our place until the release, as we have the lock (Q4). Waiters of the same owner may join us."""
        self.holding = True
        if self._ticket is not None:
            self._ticket.mark(holding=True)
        if self.owner is not None:
            self._tell_owner()

    def enter(self) -> None:
        """Leave our place, as we have a slot: the next waiter tries at once, and our owner's waiters may join us."""
        self.leave()
        if self.owner is not None:
            self._tell_owner()

    def _tell_owner(self) -> None:
        with self._local.mutex:
            for entry in self._local.entries.copy():
                if entry.owner == self.owner:
                    entry.signal.set()

    def leave(self) -> None:
        """Leave the queue, and wake the waiter that is first now. Idempotent; does nothing in a forked child."""
        if self._is_inherited():
            return
        with self._local.mutex:
            if self in self._local.entries:
                self._local.entries.remove(self)
            if self._ticket is not None and self._local.entries:
                self._pass_on()
        self.drop_ticket()
        self._unfollow()  # not before: the waiter behind waits for us, and nobody waits for this
        with self._local.mutex:
            self._local.wake_first()
            if not self._local.entries and self.env.local_queues.get(self._request.queue) is self._local:
                self.env.local_queues.pop(self._request.queue, None)  # a signal handler's lock may have done it

    def _is_inherited(self) -> bool:
        return self._generation != self.env.generation

    def _pass_on(self) -> None:
        """Hand our place on to the next waiters here (Q10). If that fails, they take their own tickets when woken."""

        def pass_on(_: Operation) -> None:
            for entry in self._local.first():
                entry.receive(self)

        self.env.operations.perform(self.env, pass_on, finish=False)  # here is the mutex of this line

    def receive(self, other: QueueEntry) -> None:
        """Get a ticket before `other`, a place of this process, gives up its own."""
        if self._ticket is not None or self._issuing or self.cannot_queue:
            return
        self._receives = True
        try:
            if not self._receive_whole(other):
                self._issue()
        finally:
            self._receives = False
            if self in self._local.entries:
                self._keep_ticket()
            else:
                self.drop_ticket()  # it has left the queue in between (operations.py, J7)

    def descriptors(self) -> tuple[int, ...]:
        """Those that keep our place."""
        ticket = self._ticket
        return () if ticket is None else ticket.descriptors()

    def _keep_ticket(self) -> None:
        if self._ticket is not None:
            self._ticket.keep()

    def _receive_whole(self, other: QueueEntry) -> bool:
        """Take over the other's own ticket, renamed, if no ticket would come between the two names: then the waiter
        behind need not wake up."""
        env, ticket = self.env, other._ticket
        if ticket is None:
            return False
        queue = ticket.queue
        name = name_of(self._arrival, env.identity().pid, queue.where, env.token(), shared=self.shared)
        names = queue.names()
        between = names[bisect_left(names, ticket.name) : bisect_left(names, name)]
        if not between or between[0] != ticket.name or any(queue.counts(one) for one in between[1:]):
            return False
        self._issuing = name
        try:
            ticket.rename(name, self._record(queue), self._request.mode)
        except OSError:
            queue.unlink(name + RECORD)
            self._issuing = ""
            return False
        self._ticket, other._ticket = ticket, None
        self._issuing = ""
        if other.holding:  # not before: see Q10
            ticket.mark(holding=False)
        return True

    def _record(self, queue: Queue) -> bytes | None:
        """The record for people that goes with our ticket; None without a tag, as the ticket's name says the rest."""
        if self.tag is None:
            return None
        who, since = self.env.identity(), self.env.time() - (self.env.monotonic() - self.started)
        return get("sema").compose(who, since, self.tag, marker_text(True, queue.device, who), {})


def waiters(env: Environment, request: FileRequest, seen: Observation | None, status: Status) -> tuple[Waiter, ...]:
    """All visible waiters, including those that the status already has. Changes nothing."""
    queue = sorted([*_other_waiters(env, request), *_own_waiters(env, request)], key=lambda arrival: arrival[0])
    found = [waiter.replaced(position=position) for position, (_, waiter) in enumerate(queue, 1)]
    known = {waiter.pid for waiter in found}
    found += [waiter for waiter in status.waiters if waiter.pid not in known]
    if seen is not None:
        # A holder may watch its own lock file, in order to notice its loss.
        seen_already = (*status.waiters, *status.holders, status.holder)
        known.update(who.pid for who in seen_already if who is not None and who.pid is not None)
        others = [pid for pid in env.watchers(seen.identity) if pid not in known]
        if others:  # the record does not name the keeper of a shell's lock, but it has the guard
            keepers = {owner.pid for owner in env.lock_owners(seen.identity) if not owner.waiting}
            others = [pid for pid in others if pid not in keepers]
        found += [Waiter(None, pid, None, None, env.command(pid)) for pid in others]
    return tuple(found)


def _other_waiters(env: Environment, request: FileRequest) -> list[Arrival]:
    """The waiters of other processes: the first of each."""
    local: LocalQueue | None = env.local_queues.get(request.queue)
    mine = set() if local is None else {entry.name for entry in local.entries.copy()}
    return [(arrival(name), waiter) for name, waiter in read_tickets(env, request.queue) if name not in mine]


def read_tickets(env: Environment, path: str) -> list[tuple[str, Waiter]]:
    """The tickets in the queue at the path, by arrival, with their waiters; without those that no longer wait."""
    queue = opened(env, path)
    if queue is None:
        return []
    with queue:
        names = queue.tickets()
        read = [(name, read_ticket(env, queue, name)) for name in names]
        if any(waiter is None for _, waiter in read):  # perhaps one was renamed meanwhile (Q10)
            read += [(name, read_ticket(env, queue, name)) for name in queue.tickets() if name not in names]
    return [(name, waiter) for name, waiter in read if waiter is not None]


def read_ticket(env: Environment, queue: Queue, name: str) -> Waiter | None:
    """The waiter of the ticket; None if it no longer waits: it holds the lock, or has ended."""
    found = queue.living(name)
    if found is None or is_holding(found):
        return None
    tag, record = None, queue.read(name + RECORD, found.st_uid)
    if record:
        try:
            tag = get("sema").decode(record).tag
        except MalformedRecord:
            pass
    pid = pid_of(name)
    # Elsewhere the number means another process.
    command = env.command(pid) if queue.shares_pids_with(name) else None
    since = env.time() - (env.monotonic() - env.clock_shift - arrival(name))
    return Waiter(None, pid, since, tag, command)


def _own_waiters(env: Environment, request: FileRequest) -> list[Arrival]:
    """The waiters of this process."""
    local: LocalQueue | None = env.local_queues.get(request.queue)
    if local is None:
        return []
    ago = env.time() - env.monotonic()
    pid = env.identity().pid
    command = env.command(pid)
    return [
        (entry.started - env.clock_shift, Waiter(None, pid, ago + entry.started, entry.tag, command))
        for entry in local.entries.copy()
        if not entry.holding
    ]
