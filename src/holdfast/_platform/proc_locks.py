"""Holders and waiters, by the kernel's own tables in `/proc`. For display: no decision rests on them.

W1  Only `/proc` is read, and a file is queried (`stat`) only on the few filesystems where that is needed, none of them
    on a network: no dead server can make this hang. A process that ends meanwhile, or that may not be looked at, is
    left out.
W2  The tables name a file by its superblock's device and its inode number. On btrfs, and on an overlay of several
    filesystems, that device is not `st_dev`; then a process that has the file open, and may be looked at, tells which
    it is. Where inodes of two subvolumes share their number, so do their entries: an entry that a process is seen to
    have taken on another file is left out.
W3  The pid of a kernel lock is that of the process that took it: it may have ended, and its number be another's, while
    the lock lives on in processes that inherited the descriptor. So the taker is named if it is seen to keep the lock;
    else the processes that are; and if none is, the taker is named only where it lives and may not be looked at.
W4  Seen from a container, `/proc/locks` lacks locks that were taken outside, or by a process that has ended, and their
    waiters as well. Such locks are found by their descriptors (`fdinfo`).
W5  `/proc/locks` is no snapshot: it is read in pieces, and while other locks come and go, an entry may be missing or
    come twice. So it is read again, until two readings agree about our file, and holders are found without it (W4).
W6  The kernel shows the mask of an inotify watch without the flags that only govern its creation. What is left is
    compared whole: `tail -f` and an editor watch as well, but for something else.

Many files are asked about at the price of one (`ProcLocks`):

W9  A record lock of an open file (`OFDLCK`) has no pid in the tables: its holder is the process with the descriptor.
W7  `/proc/locks` is read once, the descriptors of all processes at most once for watches and once for locks, however
    many files are asked about. So all answers are of about the same moment.
W8  Where the tables may name a file by another device than `st_dev` (W2), an entry with its inode number is only a
    hint: then the file is asked about by itself.
W10 Two readings are put together (W5). Of locks that exclude each other, the one that was read last counts: the lock
    has changed hands meanwhile.
"""

from __future__ import annotations

import os
import re

from ..model import Value
from . import procfs
from .masks import IN_CLOSE_NOWRITE, MASKS
from .values import LockOwner, Presence, Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator


_SUBVOLUMES = frozenset({"btrfs", "overlay", "bcachefs"})
"""Filesystems where `st_dev` may differ from the superblock's device. A `stat` there asks no server."""

_INSTANCE = "anon_inode:inotify"
_NO_FILE = ("socket:", "pipe:", "anon_inode:")

IN_ALL_EVENTS, IN_EXCL_UNLINK, IN_ONESHOT = 0xFFF, 0x4000000, 0x80000000
_SHOWN = IN_ALL_EVENTS | IN_EXCL_UNLINK | IN_ONESHOT  # before Linux 5.19, only the first
_OURS = frozenset(mask & _SHOWN for mask in MASKS)

# Bounded numbers: longer ones are not the kernel's, and must not overflow here.
_LOCK = re.compile(
    r"^(?:lock:\t)?[0-9]+: +(-> +)?(FLOCK|POSIX|OFDLCK|LEASE|DELEG) +[A-Z*]+ +(READ|WRITE|UNLCK) +(-?[0-9]{1,10}) "
    r"([0-9a-f]{2,3}):([0-9a-f]{2,5}):([0-9]{1,20}) ([0-9]{1,20}) (EOF|[0-9]{1,20})$",
    re.MULTILINE,
)
_KINDS = {"FLOCK": "flock", "POSIX": "fcntl", "OFDLCK": "ofd", "LEASE": "lease", "DELEG": "lease"}
_WATCH = re.compile(
    r"^inotify wd:[0-9a-f]+ ino:([0-9a-f]{1,16}) sdev:([0-9a-f]{1,8}) mask:([0-9a-f]{1,8}) ", re.MULTILINE
)
_INODE = re.compile(r"^ino:\t([0-9]{1,20})$", re.MULTILINE)
_MOUNT_ID = re.compile(r"^mnt_id:\t([0-9]{1,10})$", re.MULTILINE)


class LockEntry(Value):
    """A lock in `/proc/locks` or in the `fdinfo` of a descriptor."""

    pid: int
    """The process that took it; 0 where that means nothing here: of another namespace, or of a lock by open file
    description."""
    exclusive: bool
    waiting: bool
    file: tuple[int, int]
    kind: str = "flock"
    span: tuple[int, int | None] = (0, None)
    """First and last byte; None: to the end of the file, however long."""

    def meets(self, start: int, length: int) -> bool:
        """Whether it has a byte in common with these; `length` 0: to the end of the file, however long."""
        first, last = self.span
        return (last is None or start <= last) and (not length or first < start + length)


class WatchEntry(Value):
    """A watch in the `fdinfo` of an inotify instance."""

    mask: int
    file: tuple[int, int]


def parse_locks(text: str) -> list[LockEntry]:
    """The locks in the text of `/proc/locks` or of an `fdinfo`; torn lines and unknown kinds are skipped."""
    found = []
    for arrow, word, access, pid, high, low, inode, first, last in _LOCK.findall(text):
        kind = _KINDS[word]
        if access == "UNLCK" and kind != "lease":  # a lease has none left while it is broken
            continue
        file = (os.makedev(int(high, 16), int(low, 16)), int(inode))
        span = (int(first), None if last == "EOF" else int(last))
        found.append(LockEntry(max(int(pid), 0), access == "WRITE", bool(arrow), file, kind, span))
    return found


def entries(text: str, records: tuple[int, int] | None = None) -> list[LockEntry]:
    """The locks by `flock`; with `records`, the record locks that have a byte in common with this start and length."""
    found = parse_locks(text)
    if records is None:
        return [entry for entry in found if entry.kind == "flock"]
    return [entry for entry in found if entry.kind in ("fcntl", "ofd") and entry.meets(*records)]


def parse_watches(text: str) -> list[WatchEntry]:
    """The watches in the `fdinfo` of an inotify instance."""
    found = []
    for inode, device, mask in _WATCH.findall(text):
        number = int(device, 16)  # the kernel's own form, not that of `st_dev`
        found.append(WatchEntry(int(mask, 16), (os.makedev(number >> 20, number & 0xFFFFF), int(inode, 16))))
    return found


class OpenFiles:
    """The open files of one process, as far as it may be looked at."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._shown = f"/proc/{pid}"
        self._mounts: dict[str, procfs.Mount] | None = None

    def descriptors(self) -> list[str] | None:
        """The descriptors of the process; None if it may not be looked at, or is gone."""
        try:
            self._shown, fds = procfs.descriptors(self.pid)
        except OSError:
            return None
        return fds

    def information(self, fd: str, *, events: bool = False) -> str:
        """The `fdinfo` of a descriptor that leads to a file (`events`: to an inotify instance); empty for others."""
        try:
            target = os.readlink(f"{self._shown}/fd/{fd}")
        except OSError:
            return ""
        # Most descriptors are of another kind, and reading about them would be most of the work.
        wanted = target == _INSTANCE if events else not target.startswith(_NO_FILE)
        return procfs.read(f"{self._shown}/fdinfo/{fd}") if wanted else ""

    def mount(self, information: str) -> tuple[int, str]:
        """The superblock's device and the type of the filesystem that a descriptor is on."""
        found = _MOUNT_ID.search(information)
        if self._mounts is None:
            listed = procfs.parse_mounts(procfs.read(f"{self._shown}/mountinfo"))
            self._mounts = {mount.number: mount for mount in listed}
        mount = self._mounts.get(found[1] if found else "")
        return (-1, "") if mount is None else (mount.device, mount.kind)

    def leads_to(self, fd: str, information: str, identity: tuple[int, int]) -> bool:
        """Whether the descriptor leads to this very file; False where W1 forbids to ask."""
        inode = _INODE.search(information)  # from Linux 5.14 on
        if (inode and int(inode[1]) != identity[1]) or self.mount(information)[1] not in _SUBVOLUMES:
            return False
        try:
            found = os.stat(f"{self._shown}/fd/{fd}")
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == identity

    def has_open(self, identity: tuple[int, int]) -> bool | None:
        """Whether the process has this file open, where W1 permits to ask; None: it may not be looked at."""
        fds = self.descriptors()
        return None if fds is None else any(self.leads_to(fd, self.information(fd), identity) for fd in fds)


def _superblock(identity: tuple[int, int]) -> int:
    """The device by which the tables name this file (W2)."""
    if all(mount.device != identity[0] for mount in procfs.mounts()):
        for pid in (os.getpid(), *procfs.pids()):
            process = OpenFiles(pid)
            for fd in process.descriptors() or ():
                information = process.information(fd)
                if information and process.leads_to(fd, information, identity):
                    return process.mount(information)[0]
    return identity[0]


class _Holders:
    """Processes that keep the locks on one file; a lock is known by its kind and by the process that took it."""

    def __init__(self, identity: tuple[int, int], file: tuple[int, int], records: tuple[int, int] | None) -> None:
        self._identity = identity
        self._file = file
        self._records = records
        self.keepers: dict[tuple[bool, int], list[int]] = {}
        self._elsewhere: set[tuple[bool, int]] = set()

    def held(self) -> set[tuple[bool, int]]:
        """The locks that `/proc/locks` shows now."""
        return {(e.exclusive, e.pid) for e in _table(self._file, self._records) if not e.waiting}

    def look_at(self, pid: int) -> None:
        """Find the locks that a process keeps, including those that another process took."""
        process = OpenFiles(pid)
        for fd in process.descriptors() or ():
            information = process.information(fd)
            for entry in entries(information, self._records):
                if entry.file != self._file:
                    continue
                lock = (entry.exclusive, entry.pid)
                if self._identity == self._file or process.leads_to(fd, information, self._identity):
                    pids = self.keepers.setdefault(lock, [])
                    if pid not in pids:
                        pids.append(pid)
                else:
                    self._elsewhere.add(lock)

    def exclusively(self) -> bool:
        return any(exclusive for exclusive, _ in self.keepers)

    def named(self, lock: tuple[bool, int], inspect: Callable[[int], Process]) -> list[int | None]:
        """The processes to name for a lock (W3); empty if it is none, or not of this file."""
        taker = lock[1]
        pids = self.keepers.get(lock)
        if pids:
            return [taker] if taker in pids else list(pids)
        if lock in self._elsewhere or lock not in self.held():  # W2; or released by now
            return []
        hidden = taker and OpenFiles(taker).descriptors() is None and inspect(taker).presence is Presence.RUNNING
        return [taker if hidden else None]


def lock_owners(
    identity: tuple[int, int], inspect: Callable[[int], Process], records: tuple[int, int] | None = None
) -> list[LockOwner]:
    """See `Environment.lock_owners`."""
    file = (_superblock(identity), identity[1])
    table = _table(file, records)
    taken = {(e.exclusive, e.pid) for e in table if not e.waiting}
    found = _Holders(identity, file, records)
    for _, taker in taken:
        found.look_at(taker)
    if not found.exclusively():
        for pid in procfs.pids():  # W4
            found.look_at(pid)
    # A process that is seen to hold exclusively is alone: other entries in the table are outdated, or of another file
    # (W2).
    locks = set(found.keepers) if found.exclusively() else taken | found.keepers.keys()
    owners = [LockOwner(pid, lock[0]) for lock in sorted(locks) for pid in found.named(lock, inspect)]
    owners += [
        LockOwner(entry.pid or None, entry.exclusive, waiting=True)
        for entry in table
        if entry.waiting and (identity == file or OpenFiles(entry.pid).has_open(identity) is not False)  # W2
    ]
    return [*dict.fromkeys(owners)]  # one process may wait for several ranges


def _watches_by(pid: int) -> Iterator[WatchEntry]:
    """The watches of a process that are for what holdfast waits for (W6)."""
    process = OpenFiles(pid)
    for fd in process.descriptors() or ():
        for watch in parse_watches(process.information(fd, events=True)):
            if watch.mask & _SHOWN in _OURS:
                yield watch


def _table(file: tuple[int, int], records: tuple[int, int] | None = None) -> list[LockEntry]:
    """The entries of one file in `/proc/locks`, each once (W5)."""
    found: list[LockEntry] = []
    for _ in range(4):
        before = found
        found = list(
            dict.fromkeys(entry for entry in entries(procfs.read("/proc/locks"), records) if entry.file == file)
        )
        if found and found == before:
            break
    return found or before


_ARTIFICIAL = frozenset(
    {"proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "devpts", "mqueue", "bpf", "configfs"}
    | {"pstore", "fusectl", "binfmt_misc", "efivarfs", "rpc_pipefs", "selinuxfs", "autofs", "nsfs"}
)
"""Filesystems that can have no lock files, and where looking at all files may make something happen."""


class ProcLocks:
    """The kernel's tables of locks and their owners, and of watches on files, read once; nothing without `tables`.

    If `few` files are asked about, only their lines are parsed of the table of locks, which may be long.
    """

    def __init__(
        self,
        inspect: Callable[[int], Process],
        mounts: Iterable[procfs.Mount] = (),
        *,
        tables: bool = False,
        few: bool = False,
    ) -> None:
        self._inspect = inspect
        self._tables = tables
        """Whether there is a `/proc` of our PID namespace, so that what it shows means something."""
        self._mounts = {mount.device: mount.kind for mount in mounts}
        self._few = few
        self._texts = self._read_texts() if few else None
        self._locks: dict[tuple[int, int], list[LockEntry]] = {}
        self._learned: set[int] = set()
        """Inodes whose lines have been parsed, if the files are few."""
        self._inodes: set[int] = set()
        self._kept: dict[int, set[tuple[tuple[int, int], bool, int]] | None] = {}
        self._keepers: dict[tuple[tuple[int, int], bool, int], list[int]] | None = None
        self._watches: dict[tuple[int, int], dict[int, bool]] | None = None
        self._users: dict[int, int | None] = {}
        self._watched_inodes: set[int] = set()

    def is_artificial(self, device: int) -> bool:
        """Whether files on this device are made up by the kernel, such as those in `/proc`."""
        return self._mounts.get(device, "") in _ARTIFICIAL

    def user(self, pid: int) -> int | None:
        """The user of a process, by number; None if unknown."""
        if pid not in self._users:
            try:
                self._users[pid] = os.stat(f"/proc/{pid}").st_uid if self._tables else None
            except OSError:
                self._users[pid] = None
        return self._users[pid]

    # -- locks ---------------------------------------------------------------------------------------------------------

    def is_locked(self, identity: tuple[int, int]) -> bool:
        """Whether some process has a kernel lock (`flock`) on this file."""
        locks = self._locks_of(identity[1])
        if identity in locks:
            return any(not entry.waiting for entry in locks[identity])
        return self._is_doubtful(identity, self._inodes) and any(not owner.waiting for owner in self.owners(identity))

    def locked_numbers(self, device: int) -> Container[int] | None:
        """Inode numbers of files that the kernel may have locked, as directories on this device list them; None where
        they may list others. Empty: there are no such files."""
        if not self._tables:
            return ()
        if self._few:
            return None
        self._locks_of()
        # A device that is not listed is a subvolume's, where there are such.
        kind = self._mounts.get(device) or ("btrfs" if "btrfs" in self._mounts.values() else "fuse")
        # A FUSE server may list numbers of its own invention.
        return None if kind.startswith("fuse") else self._inodes

    def owners(self, identity: tuple[int, int]) -> list[LockOwner]:
        """As `Environment.lock_owners`."""
        locks = self._locks_of(identity[1])
        if identity not in locks:
            doubtful = self._is_doubtful(identity, self._inodes)
            return lock_owners(identity, self._inspect) if doubtful else []  # W8
        found: dict[LockOwner, None] = {}
        held = [entry for entry in locks[identity] if not entry.waiting]
        for entry in locks[identity]:
            if entry.waiting:
                found[LockOwner(entry.pid or None, entry.exclusive, waiting=True)] = None
            elif entry is held[-1] or not (entry.exclusive or held[-1].exclusive):  # W10
                for pid in self._keepers_of(identity, entry):
                    found[LockOwner(pid, entry.exclusive)] = None
        return list(found)

    def takers(self, identity: tuple[int, int]) -> set[int]:
        """The processes that took the locks on this file; they may have ended, and left them to others."""
        found = self._locks_of(identity[1]).get(identity, [])
        return {entry.pid for entry in found if entry.pid and not entry.waiting}

    def _keepers_of(self, identity: tuple[int, int], entry: LockEntry) -> list[int | None]:
        """The processes to name for a lock (W3)."""
        lock = (identity, entry.exclusive, entry.pid)
        if entry.pid and self._inspect(entry.pid).presence is Presence.RUNNING:
            kept = self._kept_by(entry.pid)
            if kept is None or lock in kept:
                return [entry.pid]
        if self._keepers is None:
            self._keepers = {}
            for pid in procfs.pids() if self._tables else ():
                for one in self._kept_by(pid) or ():
                    self._keepers.setdefault(one, []).append(pid)
        found = self._keepers.get(lock)
        if not found and entry.pid and all(now != entry for now in _table(identity)):
            return []  # dropped since the table was read
        return [*found] if found else [None]

    def _kept_by(self, pid: int) -> set[tuple[tuple[int, int], bool, int]] | None:
        """The locks that a process is seen to keep: file, access and taker; None if it may not be looked at."""
        if pid not in self._kept:
            process = OpenFiles(pid)
            fds = process.descriptors()
            found = (lock for fd in fds or () for lock in entries(process.information(fd)))
            self._kept[pid] = None if fds is None else {(lock.file, lock.exclusive, lock.pid) for lock in found}
        return self._kept[pid]

    def _locks_of(self, inode: int = 0) -> dict[tuple[int, int], list[LockEntry]]:
        """The locks, by file; at least those on files with this inode number."""
        if self._texts is None:
            self._texts = self._read_texts()
            self._learn(self._texts)
        elif self._few and inode not in self._learned:
            self._learned.add(inode)
            self._learn(_lines(text, f":{inode} ") for text in self._texts)
        return self._locks

    def _read_texts(self) -> list[str]:
        """The texts of two readings, because entries may be missing from one (W5)."""
        return list(dict.fromkeys(procfs.read("/proc/locks") for _ in range(2 if self._tables else 0)))

    def _learn(self, texts: Iterable[str]) -> None:
        for entry in dict.fromkeys(entry for text in texts for entry in entries(text)):
            self._locks.setdefault(entry.file, []).append(entry)
            self._inodes.add(entry.file[1])

    def _is_doubtful(self, identity: tuple[int, int], inodes: set[int]) -> bool:
        return identity[1] in inodes and self._mounts.get(identity[0], "btrfs") in _SUBVOLUMES

    # -- watches -------------------------------------------------------------------------------------------------------

    def watchers(self, identity: tuple[int, int]) -> list[int]:
        """As `Environment.watchers`."""
        return sorted(self._watches_of(identity) or ())

    def heeds_readers(self, identity: tuple[int, int]) -> bool:
        """Whether a waiter for this file gets an event when a reader closes it."""
        watches = self._watches_of(identity)
        return True if watches is None else any(watches.values())

    def _watches_of(self, identity: tuple[int, int]) -> dict[int, bool] | None:
        """The watchers of a file, and whether they hear of readers. None: a process watches a file with that number,
        which may or may not be this one."""
        watches = self._read_watches()
        if identity in watches or not self._is_doubtful(identity, self._watched_inodes):
            return watches.get(identity, {})
        return watches.get((_superblock(identity), identity[1]))  # W8

    def _read_watches(self) -> dict[tuple[int, int], dict[int, bool]]:
        """Processes that watch each file as holdfast does, and whether they would hear of a reader that closes it."""
        if self._watches is None:
            self._watches = {}
            for pid in procfs.pids() if self._tables else ():
                for watch in _watches_by(pid):
                    readers = bool(watch.mask & IN_CLOSE_NOWRITE)
                    self._watches.setdefault(watch.file, {})[pid] = readers
                    self._watched_inodes.add(watch.file[1])
        return self._watches


def _lines(text: str, word: str) -> str:
    """The lines of a text that have the word in them."""
    found, at = [], text.find(word)
    while at >= 0:
        start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        end = len(text) if end < 0 else end
        found.append(text[start:end])
        at = text.find(word, end)
    return "\n".join(found)
