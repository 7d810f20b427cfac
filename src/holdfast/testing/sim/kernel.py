"""The simulated kernel: names, inodes, open files with their kernel locks, processes, clocks, and what it puts off.

It does what it is told at once; who does what and when is decided elsewhere (world.py). What is modelled is what Linux
does, by the facts that tests/process/test_facts.py checks:

- A kernel lock belongs to an open file, which several descriptors may share. It goes with the last of them, whoever had
  it. Changing its kind lets go of it first.
- Closing makes the event first and drops the lock then; with `slow_close`, up to 5 ms later.
- An inode lives as long as it has a name or is open. Removing a name is a change of the inode. Watches end with the
  last name, unless somebody has the file open by it.
"""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from ..._platform.interface import CHANGED, CLOSED
from .footprint import Footprint, Mark, mark

if TYPE_CHECKING:
    from collections.abc import Callable

    from .events import SimWatch
    from .process import Process

EPOCH = 1_700_000_000.0
"""What the wall clock says when the monotonic one says 0."""
SLOWEST_CLOSE = 0.005
UNLOCKED, SHARED, EXCLUSIVE = 0, 1, 2


class Mount:
    """One view of the directory: which abilities it has, and with whom it shares kernel locks.

    `domain`: files seen through mounts of the same domain have the same locks. `lock_by_name`: two names of one inode
    have locks of their own, as on some FUSE filesystems. `events`: whether changes of a file make events.
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
        lock_by_name: bool = False,
    ) -> None:
        self.device = device
        self.domain = domain
        self.unnamed = unnamed
        self.link = link
        self.flock = flock
        self.events = events
        self.lock_by_name = lock_by_name

    def __str__(self) -> str:
        abilities = {
            "unnamed files": self.unnamed,
            "links": self.link,
            "kernel locks": self.flock,
            "events": self.events,
        }
        missing = [name for name, there in abilities.items() if not there]
        return f"no {', no '.join(missing)}" + (", kernel locks by name" if self.lock_by_name else "")


class Inode:
    """A file or a directory. `private`: no name has ever led to it, so that only its creator can see it."""

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
        "private",
        "watches",
    )

    def __init__(self, number: int, mode: int, mtime: float, numbered: Mark, *, private: bool = False) -> None:
        self.number = number
        self.mode = mode
        self.mtime = mtime
        self.mark = numbered
        self.private = private
        self.data = b""
        self.history: list[bytes] = []
        """What has been written over."""
        self.links = 0
        self.by_name = 0
        """How many have it open by a name, and not since it had none."""
        self.entries: set[str] | None = None
        self.inside: Mark | None = None
        """Of a directory: what is in it, as an object of its own."""
        self.locks: dict[object, list[File]] = {}
        self.watches: list[SimWatch] = []


class File:
    """An open file: what descriptors refer to, and what has a kernel lock."""

    __slots__ = ("by_name", "domain", "inode", "kind", "refs", "writable")

    def __init__(self, inode: Inode, domain: object, *, writable: bool, by_name: bool) -> None:
        self.by_name = by_name
        inode.by_name += by_name
        self.inode = inode
        self.domain = domain
        self.writable = writable
        self.kind = UNLOCKED
        self.refs = 1


class Deferred:
    """Something that the kernel will do, at `until` at the latest."""

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
        self.now = 1000.0
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
        self._inodes = 0
        self._name_marks: dict[str, Mark] = {}
        self.critical = self.new_mark()
        self.crashes = self.new_mark()
        self.readers_matter = readers_matter
        """Whether somebody watches for the end of descriptors that can only read."""
        self.on_unnamed: Callable[[Inode, str], None] | None = None
        """Told when a name stops leading to an inode."""
        self.root = self.add("/d", stat.S_IFDIR | 0o755)

    # -- objects -------------------------------------------------------------------------------------------------------

    def new_mark(self) -> Mark:
        self._marks += 1
        return mark(self._marks - 1)

    def name_mark(self, path: str) -> Mark:
        """The path name as an object, which is there whether or not it leads anywhere."""
        found = self._name_marks.get(path)
        if found is None:
            found = self._name_marks[path] = self.new_mark()
        return found

    def pid_mark(self, namespace: str, pid: int) -> Mark:
        """A process number as an object, whoever has it."""
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
        if found.watches:
            self.tell(found, CHANGED)
        return found

    def remove(self, path: str) -> Inode:
        """Take a name away."""
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
        """Atomically, and over whatever is there."""
        inode = self.lookup(old)
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

    def unlock(self, file: File) -> None:
        if file.kind != UNLOCKED:
            file.kind = UNLOCKED
            file.inode.locks[file.domain].remove(file)

    def close(self, file: File) -> None:
        """One descriptor less."""
        file.refs -= 1
        if file.refs:
            return
        inode = file.inode
        inode.by_name -= file.by_name
        if inode.watches:
            self.tell(inode, CLOSED, readers_only=not file.writable)
        if file.kind == UNLOCKED:
            return
        if self.slow_close:
            self.defer(f"drop the lock on inode {inode.number}", SLOWEST_CLOSE, inode.mark.w, lambda: self.unlock(file))
        else:
            self.unlock(file)

    # -- what is still to come -----------------------------------------------------------------------------------------

    def defer(self, text: str, within: float, footprint: Footprint, act: Callable[[], None]) -> None:
        self._deferrals += 1
        self.deferred.append(Deferred(self._deferrals, text, self.now + within, footprint, act))

    def tell(self, inode: Inode, change: int, *, readers_only: bool = False) -> None:
        """Make an event for all who watch the inode."""
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
    """The footprint of a late delivery: what else happens to the inode makes other events of the same wait."""
    return watch.inode.mark.w
