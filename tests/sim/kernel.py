"""The simulated kernel: names, inodes, open files with their locks, watches, processes, clocks, and what it puts off.

It obeys at once; world.py decides who acts and when. The model follows Linux, by the facts that
tests/process/test_facts.py checks:

- A kernel lock belongs to an open file, which several descriptors may share. It goes with the last of them, whichever
  process had it. Changing its kind lets go of it first.
- Closing makes the event first and drops the lock then; with `slow_close`, up to 5 ms later.
- An inode lives as long as it has a name or is open. Removing a name is a change of the inode. Watches end with the
  last name, unless somebody has the file open by it.
- A process has one queue of events, which may overflow. What an event says is kept as bits; asking for it clears them.
- A FIFO is a pipe for each device that it is seen on. Opening it for writing fails while nobody has it open for
  reading; a writing end hangs up as soon as the last reading end is closed, and says so for as long as that is so.

`Process` is the environment that the real engine runs on, unchanged. Before each step that others can see, it asks
the scheduler (`step`), which may let others go first, or never come back. A step on what nobody else can see, such as
a file without a name, is not asked about: it commutes with everything.

A step's footprint says what it touches, so that two steps can be seen to commute. It is a pair of sets of bits, (`own`,
`against`). Each simulated object has three bits: somebody reads it, writes it, or adds to it. Two steps may be swapped
unless the `own` of one meets the `against` of the other:

    reads commute with reads; additions to a directory commute with additions; a write commutes with nothing

The objects are: each path name, each inode (content, links, kernel locks and watches together), the content of each
directory, each process, and what only the simulation knows (the critical section, the number of crashes that are left).
"""

from __future__ import annotations

import _thread
import errno
import stat
from collections.abc import Callable
from typing import Any

from holdfast._platform.interface import DirectoryLog, WatchSet
from holdfast._platform.operations import Operations
from holdfast._platform.values import CHANGED, CLOSED, LockOwner, Presence, Storage
from holdfast._platform.values import Process as Seen
from holdfast.model import Identity

Footprint = tuple[int, int]

NOTHING: Footprint = (0, 0)
EVERYTHING: Footprint = ((1 << 3000) - 1, (1 << 3000) - 1)
"""The footprint of a step after which another time is read everywhere."""


class Mark:
    """The footprints of one object: `r` for reading it, `w` for writing it, `i` for adding to it."""

    __slots__ = ("i", "r", "w")

    def __init__(self, number: int) -> None:
        at = 3 * number
        self.r: Footprint = (1 << at, 6 << at)
        self.w: Footprint = (2 << at, 7 << at)
        self.i: Footprint = (4 << at, 3 << at)


_marks: list[Mark] = []


def mark(number: int) -> Mark:
    """The mark of the object of that number: made once, as each run numbers its objects anew."""
    while number >= len(_marks):
        _marks.append(Mark(len(_marks)))
    return _marks[number]


def both(one: Footprint, other: Footprint) -> Footprint:
    """The footprint of a step that touches the objects of both."""
    return (one[0] | other[0], one[1] | other[1])


def commute(one: Footprint, other: Footprint) -> bool:
    """Whether two steps of different processes lead to the same state in either order."""
    return not one[0] & other[1]


EPOCH = 1_700_000_000.0
"""The wall clock when the monotonic clock is 0."""
START = 1000.0
"""The monotonic clock at the beginning of a run."""
SLOWEST_CLOSE = 0.005
UNLOCKED, SHARED, EXCLUSIVE = 0, 1, 2


class Mount:
    """One view of the directory: which abilities it has, and with whom it shares kernel locks.

    `domain`: files seen through mounts of the same domain have the same locks. `device`: a FIFO is another pipe on
    each. `lock_by_name`: two names of one inode have locks of their own, as on some FUSE filesystems. `events`: whether
    changes of a file make events. `cache`: what a machine that shares the directory with others has in mind of it.
    """

    def __init__(
        self,
        device: int = 1,
        *,
        domain: int = 0,
        unnamed: bool = True,
        link: bool = True,
        flock: bool = True,
        events: bool = True,
        fifos: bool = True,
        lock_by_name: bool = False,
        cache: Cache | None = None,
    ) -> None:
        self.cache = cache
        self.device = device
        self.domain = domain
        self.unnamed = unnamed
        self.link = link
        self.flock = flock
        self.events = events
        self.fifos = fifos
        self.lock_by_name = lock_by_name

    def __str__(self) -> str:
        abilities = {
            "unnamed files": self.unnamed,
            "links": self.link,
            "kernel locks": self.flock,
            "events": self.events,
            "FIFOs": self.fifos,
        }
        missing = [name for name, there in abilities.items() if not there]
        return f"no {', no '.join(missing)}" + (", kernel locks by name" if self.lock_by_name else "")


class Cache:
    """The cache that one machine has of a directory on a file server. It asks the server when it opens a file or
    changes a name, and when it gets a kernel lock; otherwise it shows what it has seen last, however old that is, and
    keeps written data until that is synchronised, or the file is closed or unlocked."""

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.content: dict[Inode, bytes] = {}
        self.dirty: set[Inode] = set()

    def ask(self, kernel: Kernel, path: str) -> None:
        """Ask the server what the name leads to now."""
        found = kernel.names.get(path)
        if found is None:
            self.names.pop(path, None)
        else:
            self.names[path] = found
            self.reload(found)

    def reload(self, inode: Inode) -> None:
        if inode not in self.dirty:
            self.content[inode] = inode.data

    def flush(self, inode: Inode) -> None:
        if inode in self.dirty:
            self.dirty.discard(inode)
            if inode.data:
                inode.history.append(inode.data)
            inode.data = self.content[inode]


class Pipe:
    """The pipe behind a FIFO on one device: how many have it open at all, and for reading; how much was written and not
    read."""

    __slots__ = ("ends", "readers", "unread")

    def __init__(self) -> None:
        self.ends = 0
        self.readers = 0
        self.unread = 0


class Inode:
    """A file, a directory or a FIFO. `private`: no name has ever led to it, so that only its creator can see it."""

    __slots__ = (
        "by_name",
        "data",
        "entries",
        "history",
        "inside",
        "links",
        "locks",
        "mark",
        "mode",
        "mtime",
        "number",
        "pipes",
        "private",
        "stamp",
        "watches",
        "writers",
    )

    def __init__(self, number: int, mode: int, mtime: float, numbered: Mark, *, private: bool = False) -> None:
        self.number = number
        self.mode = mode
        self.mtime = mtime
        self.mark = numbered
        self.private = private
        self.stamp = 0
        """Its time in nanoseconds, if that was set."""
        self.data = b""
        self.history: list[bytes] = []
        """Contents that were written over while the file had a name."""
        self.links = 0
        self.writers = 0
        """Number of open files for writing."""
        self.by_name = 0
        """How many have it open by a name, and not since it had none."""
        self.entries: set[str] | None = None
        self.inside: Mark | None = None
        """The content of a directory, as an object of its own."""
        self.locks: dict[object, list[File]] = {}
        self.watches: list[SimWatch] = []
        self.pipes: dict[int, Pipe] = {}
        """The pipes of a FIFO, by device."""


class File:
    """An open file: descriptors refer to it, and it has the kernel lock.

    For a FIFO, it is an end of a `pipe`; one that `reads` may write, too.
    """

    __slots__ = ("by_name", "domain", "inode", "kind", "pipe", "reads", "refs", "writable")

    def __init__(self, inode: Inode, domain: object, *, writable: bool, by_name: bool) -> None:
        self.pipe: Pipe | None = None
        self.reads = False
        self.by_name = by_name
        inode.by_name += by_name
        inode.writers += writable
        self.inode = inode
        self.domain = domain
        self.writable = writable
        self.kind = UNLOCKED
        self.refs = 1

    @property
    def is_ready(self) -> bool:
        """Whether `poll` for reading would return at once: there is something to read, or the reader of a writing end
        is gone."""
        pipe = self.pipe
        if pipe is None:
            return True  # of a file that is no FIFO, always
        return pipe.unread > 0 if self.reads else not pipe.readers


class Deferred:
    """An action that the kernel will take, at `until` at the latest."""

    __slots__ = ("act", "can_be_lost", "footprint", "number", "text", "until")

    def __init__(self, number: int, text: str, until: float, footprint: Footprint, act: Callable[[], None]) -> None:
        self.can_be_lost = text.startswith("deliver")
        self.number = number
        self.text = text
        self.until = until
        self.footprint = footprint
        self.act = act


class Kernel:
    """One machine."""

    def __init__(
        self,
        *,
        slow_close: bool = False,
        late_events: bool = False,
        queue_limit: int = 1000,
        readers_matter: bool = False,
    ) -> None:
        self.now = START
        self.wall = EPOCH
        self.boot = "boot-1"
        self.full = False
        """Whether the disk is full."""
        self.slow_close = slow_close
        self.late_events = late_events
        self.queue_limit = queue_limit
        self.names: dict[str, Inode] = {}
        self.processes: dict[tuple[str, int], Process] = {}
        self.deferred: list[Deferred] = []
        self._deferrals = 0
        self._marks = 0
        self._serials = 0
        self._inodes = 0
        self._name_marks: dict[str, Mark] = {}
        self.critical = self.new_mark()
        self.crashes = self.new_mark()
        self.readers_matter = readers_matter
        """Whether anybody watches for the end of descriptors that can only read."""
        self.on_named: Callable[[Inode, str], None] | None = None
        """Called when a name begins to lead to an inode."""
        self.on_missing: Callable[[str], None] | None = None
        """Called when a path has been looked at, and nothing was there."""
        self.on_unguarded: Callable[[Inode], None] | None = None
        """Called when a file's guard has been looked at, and no holder had it."""
        self.on_unnamed: Callable[[Inode, str], None] | None = None
        """Called when a name stops leading to an inode."""
        self.root = self.add("/d", stat.S_IFDIR | 0o755)

    # -- objects -------------------------------------------------------------------------------------------------------

    def new_mark(self) -> Mark:
        self._marks += 1
        return mark(self._marks - 1)

    def new_serial(self) -> int:
        """A number for a process that no other one gets: not that of the process table, which is given out again."""
        self._serials += 1
        return self._serials

    def name_mark(self, path: str) -> Mark:
        """The path name as an object, which is there whether or not it leads anywhere."""
        found = self._name_marks.get(path)
        if found is None:
            found = self._name_marks[path] = self.new_mark()
        return found

    def pid_mark(self, namespace: str, pid: int) -> Mark:
        """A pid as an object, whichever process has it."""
        return self.name_mark(f"{namespace}:{pid}")

    def time(self) -> float:
        return self.now + self.wall

    def new_inode(self, mode: int, *, private: bool = False) -> Inode:
        self._inodes += 1
        inode = Inode(self._inodes, mode, self.now + self.wall, self.new_mark(), private=private)
        if stat.S_ISDIR(mode):
            inode.entries, inode.inside = set(), self.new_mark()
        return inode

    # -- names ---------------------------------------------------------------------------------------------------------

    def looked_for(self, path: str) -> None:
        """Note a look for a path that may not exist."""
        if path not in self.names and self.on_missing is not None:
            self.on_missing(path)

    def lookup(self, path: str) -> Inode:
        """The inode, or FileNotFoundError."""
        inode = self.names.get(path)
        if inode is None:
            if path.endswith("/."):
                return self.lookup(path[:-2])
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return inode

    def add(self, path: str, mode: int, inode: Inode | None = None) -> Inode:
        """Give a new inode, or an existing one, a name that must not exist."""
        if path in self.names:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        parent, _, name = path.rpartition("/")
        if parent:
            entries = self.lookup(parent).entries
            assert entries is not None
            entries.add(name)
        found = self.new_inode(mode) if inode is None else inode
        found.private = False
        found.links += 1
        self.names[path] = found
        if self.on_named is not None:
            self.on_named(found, path)
        if found.watches:
            self.tell(found, CHANGED)
        return found

    def remove(self, path: str) -> Inode:
        """Take a name away from its inode."""
        inode = self.lookup(path)
        del self.names[path]
        parent, _, name = path.rpartition("/")
        entries = self.names[parent].entries
        assert entries is not None
        entries.discard(name)
        inode.links -= 1
        if self.on_unnamed is not None:
            self.on_unnamed(inode, path)
        if inode.watches:
            self.tell(inode, CHANGED)
            if not inode.links and not inode.by_name:
                inode.watches.clear()  # its last directory entry is gone, and all watches with it
        return inode

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, over any file there."""
        inode = self.lookup(old)
        if self.names.get(new) is inode:
            return
        if new in self.names:
            self.remove(new)
        self.add(new, 0, inode)
        self.remove(old)

    # -- kernel locks --------------------------------------------------------------------------------------------------

    def would_lock(self, file: File, kind: int) -> bool:
        """Whether the lock would be granted now."""
        for other in file.inode.locks.get(file.domain, ()):
            if other is not file and (kind == EXCLUSIVE or other.kind == EXCLUSIVE):
                return False
        return True

    def lock(self, file: File, kind: int) -> bool:
        """`flock` with LOCK_NB."""
        if file.kind not in (kind, UNLOCKED):
            self.unlock(file)
        if file.kind == kind:
            return True
        if not self.would_lock(file, kind):
            return False
        file.kind = kind
        file.inode.locks.setdefault(file.domain, []).append(file)
        return True

    def end(self, file: File) -> None:
        """Act on the end of the last descriptor: first its lock goes, then it no longer counts as one that may
        write."""
        self.unlock(file)
        file.inode.writers -= file.writable

    def unlock(self, file: File) -> None:
        if file.kind != UNLOCKED:
            file.kind = UNLOCKED
            file.inode.locks[file.domain].remove(file)

    def hang_up(self, pipe: Pipe, *, reads: bool) -> None:
        """Count one end less."""
        pipe.ends -= 1
        pipe.readers -= reads
        if not pipe.ends:
            pipe.unread = 0

    def close(self, file: File, *, at_death: bool = False) -> None:
        """Close one descriptor. `at_death`: with others of its process, one after the other."""
        file.refs -= 1
        if file.refs:
            return
        inode, pipe = file.inode, file.pipe
        if pipe is not None and file.reads and self.slow_close and at_death:
            hang_up = lambda: self.hang_up(pipe, reads=True)  # noqa: E731
            self.defer(f"close FIFO {inode.number}", SLOWEST_CLOSE, inode.mark.w, hang_up)
        elif pipe is not None:
            self.hang_up(pipe, reads=file.reads)
        inode.by_name -= file.by_name
        if inode.watches:
            self.tell(inode, CLOSED, readers_only=not file.writable)
            if file.by_name and not inode.links and not inode.by_name:
                self.tell(inode, CHANGED)  # its last directory entry goes only now
                inode.watches.clear()
        if file.kind != UNLOCKED and self.slow_close:
            self.defer(f"drop the lock on inode {inode.number}", SLOWEST_CLOSE, inode.mark.w, lambda: self.end(file))
        else:
            self.end(file)

    # -- what is still to come -----------------------------------------------------------------------------------------

    def defer(self, text: str, within: float, footprint: Footprint, act: Callable[[], None]) -> None:
        self._deferrals += 1
        self.deferred.append(Deferred(self._deferrals, text, self.now + within, footprint, act))

    def tell(self, inode: Inode, change: int, *, readers_only: bool = False) -> None:
        """Make an event for all watches of the inode."""
        for watch in tuple(inode.watches):
            if readers_only and not watch.readers:
                continue
            if self.late_events:
                self.defer(
                    f"deliver an event to {watch.process.name}",
                    watch.process.slowest_event,
                    both_of(watch),
                    lambda watch=watch: watch.tell(change),  # type: ignore[misc]
                )
            else:
                watch.tell(change)


def both_of(watch: SimWatch) -> Footprint:
    """The footprint of a late delivery: other changes of the inode make other events of the same wait."""
    return watch.inode.mark.w


FIRST_EVENT_FD = 10_000
"""Numbers from here on are no files: they stand for events that end a wait."""


class SimWatch:
    """A wait's interest in one inode. See `Watch` in `_platform/interface.py`."""

    __slots__ = ("change", "fd", "inode", "process", "readers")

    def __init__(self, process: Process, inode: Inode, fd: int, *, readers: bool) -> None:
        self.process = process
        self.inode = inode
        self.fd = fd
        self.readers = readers
        self.change = 0
        inode.watches.append(self)

    def fds(self) -> tuple[int, ...]:
        return (self.fd,)

    def woken(self, *, over: bool = True) -> bool:
        return over or bool(self.change)

    def take(self) -> int:
        self.process.step("take", self.inode.number, self.inode.mark.r)
        change, self.change = self.change, 0
        self.process.unread = 0
        return change

    def tell(self, change: int) -> None:
        """Take an event; if the queue was full, all that is known is that something has happened."""
        process = self.process
        process.unread += 1
        if process.unread > process.kernel.queue_limit:
            for watch in process.watches.values():
                watch.change |= CHANGED | CLOSED
        else:
            self.change |= change

    def close(self) -> None:
        process = self.process
        known = not process.dead and process.watches.pop(self.fd, None) is not None
        if known and self in self.inode.watches:
            self.inode.watches.remove(self)


class Crash(BaseException):
    """The process is gone: it takes not one step more from here on."""


_FULL = (errno.ENOSPC, "No space left on device")
_NO_PIPE = Pipe()


class SimStat:
    """The result of `stat`."""

    __slots__ = ("st_dev", "st_gid", "st_ino", "st_mode", "st_mtime", "st_mtime_ns", "st_nlink", "st_size", "st_uid")

    def __init__(self, inode: Inode, device: int) -> None:
        self.st_mode = inode.mode
        self.st_dev = device
        self.st_ino = inode.number
        self.st_nlink = inode.links
        self.st_size = len(inode.data)
        self.st_uid = self.st_gid = 0
        self.st_mtime = inode.mtime
        self.st_mtime_ns = inode.stamp or int(inode.mtime * 1e9)


def _require_file(inode: Inode) -> None:
    """Raise ESPIPE for a pipe, which has no offsets to read or write at."""
    if stat.S_ISFIFO(inode.mode):
        raise OSError(errno.ESPIPE, "Illegal seek")


def _nobody() -> None:
    raise AssertionError("a step outside of any actor")


class _Gone(dict[int, Any]):
    """The descriptors of a process that is gone."""

    def __getitem__(self, key: int) -> Any:
        raise Crash

    def pop(self, *_args: Any) -> Any:
        raise Crash

    def __setitem__(self, key: int, value: Any) -> None:
        raise Crash


class Process:
    """A process. `Environment` documents its methods."""

    guards = True
    fifos = True
    lingering = False
    locks_directories = True
    asks_first = False
    knows_mounts = True
    raises_open_limit = "ulimit -n"

    def __init__(
        self,
        kernel: Kernel,
        name: str,
        pid: int,
        *,
        namespace: str = "1",
        mount: Mount | None = None,
        machine: str = "",
        ahead: float = 0.0,
    ) -> None:
        """`machine`: its name, if it is not the usual one; its clocks are `ahead` seconds ahead of that one's."""
        self.kernel = kernel
        self.ahead = ahead
        self.name = name
        self.pid = pid
        self.namespace = namespace
        self.mount = mount or Mount()
        self.guards = self.mount.flock
        self.dead = False
        self.switch: Callable[[], object] = _nobody
        self.actor: Any = None
        """The actor in this process whose turn it is."""
        self.busy: Any = None
        """The actor between two waits: tasks of one event loop do not interrupt each other there."""
        self.shared = False
        """Whether there are several actors."""
        self.mark = kernel.pid_mark(namespace, pid)
        self.slowest_event = 0.002
        self.unread = 0
        self.generation = 0
        self.clock_shift = 0.0
        self.holds: dict[tuple[object, ...], Any] = {}
        self.swept: dict[str, float] = {}
        self.local_queues: dict[str, Any] = {}
        self.passed: dict[str, float] = {}
        self.operations = Operations(_thread.RLock())  # none is begun: an actor that is interrupted is killed
        self.files: dict[int, File] = {}
        self.directories: dict[int, tuple[str, Inode]] = {}
        """The open directories, by descriptor: where each was opened."""
        self.watches: dict[int, SimWatch] = {}
        self.pidfds: dict[int, Process] = {}
        self.last_read = (-1, b"")
        """The inode that was read last, and its data."""
        self._next_fd = 3
        self._next_event_fd = FIRST_EVENT_FD
        self._tokens = 0
        self._serial = kernel.new_serial()
        self.started = f"t{name}"
        self._identity = Identity(pid, machine or kernel.boot, namespace, self.started, machine or "host")
        self.cache = self.mount.cache
        self.born = kernel.time()
        kernel.processes[(namespace, pid)] = self

    def step(self, op: str, arg: object, footprint: Footprint) -> None:
        """Ask the scheduler, and go on when it says so."""
        if self.dead:
            raise Crash
        actor = self.actor
        assert actor is not None
        actor.before, actor.op, actor.arg = actor.op, op, arg
        actor.footprint = both(footprint, self.mark.w) if self.shared else footprint
        self.switch()
        if self.dead:
            raise Crash

    def vanish(self) -> None:
        """Drop everything, and take no step more."""
        self.dead = True
        self.files, self.watches, self.pidfds = _Gone(), _Gone(), _Gone()

    def end(self) -> None:
        """Die, or come to an end: everything is closed, in order, and the pid is free again."""
        kernel = self.kernel
        for watch in self.watches.values():
            if watch in watch.inode.watches:
                watch.inode.watches.remove(watch)
        files = list(self.files.values())
        self.vanish()
        for file in files:
            kernel.close(file, at_death=True)
        if kernel.processes.get((self.namespace, self.pid)) is self:
            del kernel.processes[(self.namespace, self.pid)]

    def end_footprint(self) -> Footprint:
        """The footprint of `end`."""
        touched = both(self.mark.w, both(self.kernel.critical.w, self.kernel.crashes.w))
        for file in self.files.values():
            if not file.inode.private:
                touched = both(touched, file.inode.mark.w)
        return touched

    def is_open(self, fd: int) -> bool:
        return fd in self.files

    def is_lasting(self, fd: int) -> bool:
        return False

    def has_created(self, fd: int) -> bool:
        return False

    def undo_by(self, fd: int, undo: object) -> None:
        pass

    def keep(self, fd: int) -> None:
        pass

    def disown(self, fd: int) -> None:
        raise AssertionError("nobody closes the engine's descriptors here")

    # -- who and when --------------------------------------------------------------------------------------------------

    def identity(self, pid: int | None = None) -> Identity:
        if pid is None or pid == self.pid:
            return self._identity
        found = self.kernel.processes.get((self.namespace, pid))
        return self._identity.replaced(pid=pid, started="-" if found is None else found.started)

    def command(self, pid: int) -> str | None:
        return None

    def time(self) -> float:
        return self.kernel.now + self.kernel.wall + self.ahead

    def monotonic(self) -> float:
        return self.kernel.now

    def uptime(self) -> float:
        return self.kernel.now + self.ahead

    def token(self) -> str:
        self._tokens += 1
        return f"{self._serial:08x}{self._tokens:08x}"

    # -- files: opening ------------------------------------------------------------------------------------------------

    def _install(self, inode: Inode, path: str, *, writable: bool, reads: bool = True) -> int:
        mount = self.mount
        domain = (mount.domain, path) if mount.lock_by_name else mount.domain
        fd = self._next_fd
        self._next_fd += 1
        file = self.files[fd] = File(inode, domain, writable=writable, by_name=bool(path))
        if stat.S_ISFIFO(inode.mode):
            file.pipe, file.reads = inode.pipes.setdefault(mount.device, Pipe()), reads
            file.pipe.ends += 1
            file.pipe.readers += reads
        return fd

    def open_unnamed(self, directory: str, mode: int) -> int:
        if not self.mount.unnamed:
            raise OSError(errno.EOPNOTSUPP, "no unnamed files here", directory)
        self.kernel.lookup(directory)
        return self._install(self.kernel.new_inode(stat.S_IFREG | mode, private=True), "", writable=True)

    def _addition(self, path: str) -> Footprint:
        """The footprint of making a name."""
        kernel = self.kernel
        parent = kernel.names.get(path.rpartition("/")[0])
        touched = kernel.name_mark(path).w
        if parent is not None and parent.inside is not None:
            touched = both(touched, both(parent.mark.r, parent.inside.i))
        return touched

    def _at(self, name: str, dir_fd: int | None) -> str:
        """The path of a name in an open directory."""
        return name if dir_fd is None else f"{self.directories[dir_fd][0]}/{name}"

    def _require(self, path: str, dir_fd: int | None) -> None:
        """Require that the open directory still exists: a removed one is empty, and stays so."""
        if dir_fd is not None:
            where, inode = self.directories[dir_fd]
            if self.kernel.names.get(where) is not inode:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    def open_directory(self, path: str) -> int:
        self.step("open_directory", path, self.kernel.name_mark(path).r)
        inode = self.kernel.lookup(path)
        if inode.entries is None:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        fd = self._install(inode, path, writable=False)
        self.directories[fd] = (path, inode)
        return fd

    def open_new(self, path: str, mode: int, *, dir_fd: int | None = None) -> int:
        path = self._at(path, dir_fd)
        self.step("open_new", path, self._addition(path))
        self._require(path, dir_fd)
        if self.kernel.full:
            raise OSError(*_FULL, path)
        return self._install(self.kernel.add(path, stat.S_IFREG | mode), path, writable=True)

    def open_existing(self, path: str, *, write: bool, dir_fd: int | None = None) -> int:
        path = self._at(path, dir_fd)
        there, touched = self.kernel.names.get(path), self.kernel.name_mark(path).r
        if there is not None and stat.S_ISFIFO(there.mode):
            touched = both(touched, there.mark.w)  # to whoever opens it for writing, this is a reader
        elif there is not None and write:
            touched = both(touched, there.mark.w)  # to whoever asks, this is a writer
        self.step("open_to_write" if write else "open_to_read", path, touched)
        self._require(path, dir_fd)
        self._ask(path)
        self.kernel.looked_for(path)
        inode = self.kernel.lookup(path)
        if write and inode.entries is not None:
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        return self._install(inode, path, writable=write)

    def _ask(self, path: str) -> None:
        if self.cache is not None:
            self.cache.ask(self.kernel, path)

    def _flush(self, fd: int) -> None:
        if self.cache is not None:
            self.cache.flush(self.files[fd].inode)

    def close(self, fd: int) -> None:
        file = self.files.get(fd)
        if file is None:
            if self.dead:
                raise Crash
            self.pidfds.pop(fd, None)
            return
        inode, kernel = file.inode, self.kernel
        self.directories.pop(fd, None)
        told = file.reads if file.pipe is not None else file.writable  # nobody waits for the end of a FIFO's writer
        if not inode.private and (file.kind != UNLOCKED or told or kernel.readers_matter):
            self.step("close", fd, inode.mark.w)
        self._flush(fd)
        del self.files[fd]
        kernel.close(file)

    # -- files: names --------------------------------------------------------------------------------------------------

    def link_unnamed(self, fd: int, path: str) -> None:
        self.step("link_unnamed", path, both(self._addition(path), self.files[fd].inode.mark.w))
        if self.kernel.full:
            raise OSError(*_FULL, path)
        self.kernel.add(path, 0, self.files[fd].inode)

    def link(self, existing: str, path: str) -> None:
        kernel = self.kernel
        if not self.mount.link:
            raise OSError(errno.EOPNOTSUPP, "no links here", path)
        inode = kernel.names.get(existing)
        touched = both(kernel.name_mark(existing).r, self._addition(path))
        self.step("link", path, touched if inode is None else both(touched, inode.mark.w))
        try:
            kernel.add(path, 0, kernel.lookup(existing))
        finally:
            self._ask(path)

    def _seen(self, path: str, touched: Footprint) -> Footprint:
        """The footprint of a step that touches the file of that path."""
        return both(self.kernel.name_mark(path).r, touched)

    def _removal(self, path: str) -> Footprint:
        """The footprint of taking a name away."""
        kernel = self.kernel
        touched, inode = self._addition(path), kernel.names.get(path)
        if inode is None:
            return kernel.name_mark(path).r
        touched = both(touched, inode.mark.w)
        return touched if inode.inside is None else both(touched, inode.inside.r)

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        path = self._at(path, dir_fd)
        self.step("unlink", path, self._removal(path))
        self._require(path, dir_fd)
        if self.kernel.lookup(path).entries is not None:
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        self.kernel.remove(path)
        self._ask(path)

    def replace(self, existing: str, path: str) -> None:
        self.rename(existing, path)

    def rename(self, old: str, new: str, *, dir_fd: int | None = None) -> None:
        """Rename a file. The engine does so in its queue; other implementations publish so."""
        old, new = self._at(old, dir_fd), self._at(new, dir_fd)
        self.step("rename", new, both(self._removal(old), both(self._removal(new), self._addition(new))))
        self._require(old, dir_fd)
        self.kernel.rename(old, new)
        self._ask(old)
        self._ask(new)

    def open_over(self, path: str) -> int:
        """Open by O_CREAT|O_TRUNC. Not the engine's: the beads writer does so."""
        self.step("open_over", path, both(self._removal(path), self._addition(path)))
        inode = self.kernel.names.get(path)
        if inode is None:
            inode = self.kernel.add(path, stat.S_IFREG | 0o644)
        elif self.kernel.on_unnamed is not None:
            self.kernel.on_unnamed(inode, path)
        inode.data, inode.mtime = b"", self.time()
        return self._install(inode, path, writable=True)

    def open_vanishing(self, path: str) -> int | None:
        return None

    def make_directory(self, path: str, mode: int) -> None:
        self.step("make_directory", path, self._addition(path))
        if self.kernel.full:
            raise OSError(*_FULL, path)
        self.kernel.add(path, stat.S_IFDIR | mode)

    def open_path(self, path: str, flags: int, *, dir_fd: int | None = None) -> int:
        raise NotImplementedError("links are not simulated")

    def give(self, fd: int, *, user: int = -1, group: int = -1) -> None:
        raise NotImplementedError("all users are one")

    def open_new_directory(self, path: str, mode: int) -> int:
        self.make_directory(path, mode)
        try:
            return self.open_directory(path)  # another one may come between the two calls
        except FileNotFoundError as error:
            raise FileExistsError(errno.EEXIST, "File exists", path) from error

    def set_modified(self, fd: int, nanoseconds: int) -> None:
        inode = self.files[fd].inode
        self.step("set_modified", fd, inode.mark.w)
        inode.stamp, inode.mtime = nanoseconds, nanoseconds / 1e9
        self.kernel.tell(inode, CHANGED)

    def make_directories(self, directory: str) -> None:
        if directory not in self.kernel.names:
            self.make_directory(directory, 0o755)

    def remove_directory(self, path: str) -> None:
        self.step("remove_directory", path, self._removal(path))
        entries = self.kernel.lookup(path).entries
        if entries is None:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        if entries:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        self.kernel.remove(path)

    def list_directory(self, directory: str | int) -> list[str]:
        kernel, opened = self.kernel, None
        if isinstance(directory, int):
            directory, opened = self.directories[directory]
        inode = kernel.names.get(directory)
        touched = kernel.name_mark(directory).r
        self.step("list", directory, touched if inode is None or not inode.inside else both(touched, inode.inside.r))
        if opened is not None and kernel.names.get(directory) is not opened:
            return []  # it was removed, so it was empty
        entries = kernel.lookup(directory).entries
        if entries is None:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", directory)
        return sorted(entries)

    def exists(self, path: str) -> bool:
        self.step("exists", path, self.kernel.name_mark(path).r)
        there = path in self.kernel.names or (self.cache is not None and path in self.cache.names)
        if not there:
            self.kernel.looked_for(path)
        return there

    def stat(self, path: str, *, dir_fd: int | None = None) -> SimStat:
        kernel = self.kernel
        path = self._at(path, dir_fd)
        inode, touched = kernel.names.get(path), kernel.name_mark(path).r
        self.step("stat", path, touched if inode is None else both(touched, inode.mark.r))
        self._require(path, dir_fd)
        if self.cache is not None and path not in self.cache.names:
            self._ask(path)
        known = None if self.cache is None else self.cache.names.get(path)
        if known is None:
            kernel.looked_for(path)
        return SimStat(known or kernel.lookup(path), self.mount.device)

    # -- files: content ------------------------------------------------------------------------------------------------

    def fstat(self, fd: int) -> SimStat:
        inode = self.files[fd].inode
        if not inode.private:
            self.step("fstat", fd, inode.mark.r)
        return SimStat(inode, self.mount.device)

    def read(self, fd: int, size: int) -> bytes:
        inode = self.files[fd].inode
        if not inode.private:
            self.step("read", fd, inode.mark.r)
        if inode.entries is not None:
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        _require_file(inode)
        data = inode.data if self.cache is None else self.cache.content.get(inode, inode.data)
        self.last_read = (inode.number, data[:size])
        return data[:size]

    def write(self, fd: int, data: bytes, offset: int) -> int:
        inode = self.files[fd].inode
        if not inode.private:
            self.step("write", data, inode.mark.w)
        _require_file(inode)
        if self.cache is not None:
            self.cache.dirty.add(inode)
            old = self.cache.content.get(inode, inode.data)
            self.cache.content[inode] = old[:offset] + data + old[offset + len(data) :]
            return len(data)
        old = inode.data
        if self.kernel.full and not old and data:
            raise OSError(*_FULL)  # there is no room for the first block of a file
        if old and not offset and inode.links:
            inode.history.append(old)
        inode.data = old[:offset] + data + old[offset + len(data) :]
        inode.mtime = self.time()
        return len(data)

    def truncate(self, fd: int, size: int) -> None:
        inode = self.files[fd].inode
        if not self.files[fd].writable:
            raise OSError(errno.EINVAL, "not open for writing")
        self.step("truncate", fd, inode.mark.w)
        inode.data, inode.mtime = inode.data[:size], self.time()

    def chmod(self, fd: int, mode: int) -> None:
        inode = self.files[fd].inode
        self.step("chmod", fd, inode.mark.w)
        inode.mode = stat.S_IFMT(inode.mode) | mode
        self.kernel.tell(inode, CHANGED)

    def sync(self, fd: int) -> None:
        if self.cache is not None and self.files[fd].inode in self.cache.dirty:
            self.step("sync", fd, self.files[fd].inode.mark.w)
            self._flush(fd)

    def sync_directory(self, directory: str) -> None:
        pass

    def open_limit(self) -> int | None:
        return None

    # -- FIFOs ---------------------------------------------------------------------------------------------------------

    def make_fifo(self, name: str, mode: int, *, dir_fd: int) -> None:
        path = self._at(name, dir_fd)
        self.step("make_fifo", path, self._addition(path))
        self._require(path, dir_fd)
        if not self.mount.fifos:
            raise PermissionError(errno.EPERM, "no FIFOs here", path)
        if self.kernel.full:
            raise OSError(*_FULL, path)
        self.kernel.add(path, stat.S_IFIFO | mode)

    def open_fifo(self, name: str, *, write: bool, dir_fd: int) -> int:
        path = self._at(name, dir_fd)
        there, touched = self.kernel.names.get(path), self.kernel.name_mark(path).r
        if there is not None:
            touched = both(touched, there.mark.r if write else there.mark.w)
        self.step("open_fifo_to_write" if write else "open_fifo", path, touched)
        self._require(path, dir_fd)
        inode = self.kernel.lookup(path)
        if inode.entries is not None:
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        if not stat.S_ISFIFO(inode.mode):
            raise OSError(errno.EINVAL, "not a FIFO", path)
        if write and not inode.pipes.get(self.mount.device, _NO_PIPE).readers:
            raise OSError(errno.ENXIO, "No such device or address", path)
        return self._install(inode, path, writable=True, reads=not write)

    def hung_up(self, fd: int) -> bool:
        file = self.files[fd]
        self.step("hung_up", fd, file.inode.mark.r)
        return file.pipe is not None and not file.pipe.readers

    def nudge(self, fd: int) -> None:
        file = self.files[fd]
        self.step("nudge", fd, file.inode.mark.w)
        if file.pipe is not None and file.pipe.readers:
            file.pipe.unread += 1

    def is_unread(self, fd: int) -> bool:
        file = self.files[fd]
        self.step("is_unread", fd, file.inode.mark.r)
        return file.pipe is not None and file.pipe.unread > 0

    def drain(self, fd: int) -> bool:
        file = self.files[fd]
        assert file.pipe is not None
        self.step("drain", fd, file.inode.mark.w if file.pipe.unread else file.inode.mark.r)
        unread, file.pipe.unread = file.pipe.unread, 0
        return unread > 0

    # -- the guard -----------------------------------------------------------------------------------------------------

    def _lock(self, fd: int, kind: int, op: str) -> bool:
        file = self.files[fd]
        if not file.inode.private:
            mark = file.inode.mark
            granted = file.kind != UNLOCKED or self.kernel.would_lock(file, kind)
            self.step(op, fd, mark.w if granted else mark.r)
        granted = self.kernel.lock(file, kind)
        if granted and self.cache is not None:
            self.cache.reload(file.inode)
        return granted

    def guard(self, fd: int, *, shared: bool = False) -> bool | None:
        if not self.mount.flock:
            return None
        return self._lock(fd, SHARED if shared else EXCLUSIVE, "guard_shared" if shared else "guard")

    def guarded(self, fd: int) -> bool | None:
        if not self.mount.flock:
            return None
        if not self._lock(fd, SHARED, "probe"):
            return True
        self.unguard(fd)
        if self.kernel.on_unguarded is not None:
            self.kernel.on_unguarded(self.files[fd].inode)
        return False

    def is_written(self, fd: int) -> bool | None:
        inode = self.files[fd].inode
        self.step("is_written", fd, inode.mark.r)
        if self.mount.flock and not inode.writers and self.kernel.on_unguarded is not None:
            self.kernel.on_unguarded(inode)
        return inode.writers > 0 if self.mount.flock else None

    def guard_content(self, fd: int) -> None:
        pass

    def guard_records(self, fd: int, start: int, length: int) -> bool:
        return False  # not modelled

    def would_guard(self, fd: int, *, shared: bool) -> bool | None:
        return None

    def unguard(self, fd: int) -> None:
        file = self.files[fd]
        if file.kind != UNLOCKED:
            if not file.inode.private:
                self.step("unguard", fd, file.inode.mark.w)
            self._flush(fd)
            self.kernel.unlock(file)

    # -- other processes -----------------------------------------------------------------------------------------------

    def inspect(self, pid: int) -> Seen:
        found = self.kernel.processes.get((self.namespace, pid))
        self.step("inspect", pid, self.kernel.pid_mark(self.namespace, pid).r)
        found = self.kernel.processes.get((self.namespace, pid))
        return Seen(Presence.GONE) if found is None else Seen(Presence.RUNNING, found.started, found.born)

    def watch_process(self, pid: int, *, inherited: bool = False) -> int | None:
        self.step("watch_process", pid, self.kernel.pid_mark(self.namespace, pid).r)
        found = self.kernel.processes.get((self.namespace, pid))
        if found is None:
            return None
        self._next_event_fd += 1
        self.pidfds[self._next_event_fd] = found
        return self._next_event_fd

    def lock_owners(self, identity: tuple[int, int], records: tuple[int, int] | None = None) -> list[LockOwner]:
        return []

    def watchers(self, identity: tuple[int, int]) -> list[int]:
        return []

    # -- events --------------------------------------------------------------------------------------------------------

    def pipe(self, *, among_sockets: bool = False) -> tuple[int, int]:
        raise NotImplementedError("keepers are not simulated")

    def watch(self, path: str, *, readers: bool = False) -> SimWatch | None:
        kernel = self.kernel
        if not self.mount.events:
            return None
        inode = kernel.names.get(path)
        self.step("watch", path, kernel.name_mark(path).r if inode is None else self._seen(path, inode.mark.r))
        inode = kernel.lookup(path)
        self._next_event_fd += 1
        watch = SimWatch(self, inode, self._next_event_fd, readers=readers)
        self.watches[watch.fd] = watch
        return watch

    def watching(self) -> Any:
        return _thread.RLock()

    def watch_set(self) -> WatchSet | None:
        return None

    def directory_log(self, directory: str) -> DirectoryLog | None:
        return None

    def listed(self, directory: str, seconds: float) -> None:
        pass

    def may_block(self, path: str) -> bool:
        return self.cache is not None

    def server_at(self, path: str) -> str:
        return "the simulated server"

    def is_away(self, path: str, error: OSError) -> bool:
        return False

    def reconnects(self, path: str) -> bool:
        return True

    def storage(self, path: str, device: int | None = None) -> Storage:
        return Storage("sim", shared=self.cache is not None, events=self.mount.events)

    def is_read_only(self, path: str) -> bool:
        return False

    def poll_limit(self, path: str) -> float:
        return 0.025 if self.cache is None else 0.24

    def events_reach(self, path: str) -> bool:
        return self.mount.events

    # -- inheritance ---------------------------------------------------------------------------------------------------

    def inherit(self, parent: Process, *, fifos: bool = False) -> None:
        """Get copies of all descriptors of files of another process, as a command that it has started; those of its
        FIFOs, too, as a forked child has them until it closes them."""
        for fd, file in parent.files.items():
            if file.pipe is not None and not fifos:
                continue
            file.refs += 1
            self.files[fd] = file
            self._next_fd = max(self._next_fd, fd + 1)


TRACED = (
    *(
        "inspect",
        "watch_process",
        "open_unnamed",
        "open_new",
        "open_existing",
        "open_directory",
        "link_unnamed",
        "link",
        "unlink",
    ),
    *(
        "rename",
        "replace",
        "open_over",
        "stat",
        "fstat",
        "read",
        "write",
        "sync",
        "truncate",
        "chmod",
        "list_directory",
        "exists",
    ),
    *("make_directory", "remove_directory", "close", "guard", "guarded", "is_written", "unguard", "watch"),
    *("make_fifo", "open_fifo", "hung_up", "nudge", "is_unread", "drain"),
)


def traced(process: Process, tell: Any) -> None:
    """Report each step of a process, and its result."""
    for name in TRACED:
        setattr(process, name, _telling(process, name, getattr(process, name), tell))


def _telling(process: Process, name: str, call: Any, tell: Any) -> Any:
    def told(*args: Any, **named: Any) -> Any:
        if process.dead:
            return call(*args, **named)
        who = process.actor
        try:
            result = call(*args, **named)
        except OSError as error:
            tell(who, name, args, named, error)
            raise
        tell(who, name, args, named, result)
        return result

    return told
