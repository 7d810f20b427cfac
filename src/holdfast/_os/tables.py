"""Who holds and who waits, by the kernel's own tables in `/proc`. For showing: no decision rests on it.

W1  Only what is in `/proc` is read, and a file is asked (`stat`) only on the few filesystems where that is needed, none
    of them on a network: no dead server can make this hang. A process that ends in the middle, or that may not be
    looked at, is left out.
W2  The tables name a file by its superblock's device and its inode number. On btrfs, and on an overlay of several
    filesystems, that device is not `st_dev`; then whoever has the file open, and may be looked at, tells which it is.
    Where inodes of two subvolumes share their number, so do their entries: one that a process is seen to have taken on
    another file is left out.
W3  The pid of a kernel lock is that of the process which took it: it may have ended, and its number be another's, while
    the lock lives on in those who inherited the descriptor. So it is named if it is seen to keep the lock; else those
    who are; and if nobody is, it is named only where it lives and may not be looked at.
W4  Seen from a container, `/proc/locks` lacks the locks that were taken outside, or by a process that has ended, and
    those who wait for them as well. The first are found by their descriptors (`fdinfo`).
W5  `/proc/locks` is no snapshot: it is read in pieces, and while other locks come and go, an entry may be missing or
    come twice. So it is read again, until it says the same of our file twice, and holders are found without it (W4).
W6  The kernel shows the mask of an inotify watch without the flags that only govern its creation. What is left is
    compared whole: `tail -f` and an editor watch as well, but for something else.
"""

from __future__ import annotations

import os
import re

from .._core.environment import LockOwner, Presence, Process
from ..model import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_SUBVOLUMES = frozenset({"btrfs", "overlay", "bcachefs"})
"""Where `st_dev` may differ from the superblock's device. A `stat` there asks no server."""

_INSTANCE = "anon_inode:inotify"
_NO_FILE = ("socket:", "pipe:", "anon_inode:")

IN_ALL_EVENTS, IN_EXCL_UNLINK, IN_ONESHOT = 0xFFF, 0x4000000, 0x80000000
_SHOWN = IN_ALL_EVENTS | IN_EXCL_UNLINK | IN_ONESHOT  # before Linux 5.19, only the first

# Bounded numbers: what is longer is not of the kernel, and must not overflow here.
_LOCK = re.compile(
    r"^(?:lock:\t)?[0-9]+: +(-> +)?FLOCK +[A-Z]+ +(READ|WRITE) +(-?[0-9]{1,10}) "
    r"([0-9a-f]{2,3}):([0-9a-f]{2,5}):([0-9]{1,20}) ",
    re.MULTILINE,
)
_WATCH = re.compile(
    r"^inotify wd:[0-9a-f]+ ino:([0-9a-f]{1,16}) sdev:([0-9a-f]{1,8}) mask:([0-9a-f]{1,8}) ", re.MULTILINE
)
_INODE = re.compile(r"^ino:\t([0-9]{1,20})$", re.MULTILINE)
_MOUNT_ID = re.compile(r"^mnt_id:\t([0-9]{1,10})$", re.MULTILINE)
_MOUNT = re.compile(r"^([0-9]{1,10}) [0-9]+ ([0-9]{1,4}):([0-9]{1,7}) [^\n]*? - ([^ \n]+) ", re.MULTILINE)


class Entry(Value):
    """One `flock` in `/proc/locks` or in the `fdinfo` of a descriptor. `pid` is 0 where it means nothing here."""

    pid: int
    exclusive: bool
    waiting: bool
    file: tuple[int, int]


class Watched(Value):
    """One watch in the `fdinfo` of an inotify instance."""

    mask: int
    file: tuple[int, int]


def parse_locks(text: str) -> list[Entry]:
    """The kernel's `flock` locks in the text of `/proc/locks` or of an `fdinfo`; other kinds are passed over."""
    return [
        Entry(max(int(pid), 0), access == "WRITE", bool(arrow), (os.makedev(int(high, 16), int(low, 16)), int(inode)))
        for arrow, access, pid, high, low, inode in _LOCK.findall(text)
    ]


def parse_watches(text: str) -> list[Watched]:
    """The watches in the `fdinfo` of an inotify instance."""
    found = []
    for inode, device, mask in _WATCH.findall(text):
        number = int(device, 16)  # the kernel's own form, not that of `st_dev`
        found.append(Watched(int(mask, 16), (os.makedev(number >> 20, number & 0xFFFFF), int(inode, 16))))
    return found


def parse_mounts(text: str) -> dict[str, tuple[int, str]]:
    """The device and the type of each mount in a `mountinfo`, by the mount's id."""
    return {number: (os.makedev(int(major), int(minor)), kind) for number, major, minor, kind in _MOUNT.findall(text)}


class _Process:
    """One process, as far as it may be looked at."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._mounts: dict[str, tuple[int, str]] | None = None

    def descriptors(self) -> list[str] | None:
        """Its descriptors; None where it may not be looked at, or is gone."""
        try:
            return os.listdir(f"/proc/{self.pid}/fd")
        except OSError:
            return None

    def information(self, fd: str, *, events: bool = False) -> str:
        """What the kernel says of a descriptor that leads to a file, or else to an inotify instance."""
        try:
            target = os.readlink(f"/proc/{self.pid}/fd/{fd}")
        except OSError:
            return ""
        # Most descriptors are of another kind, and reading about them would be most of the work.
        wanted = target == _INSTANCE if events else not target.startswith(_NO_FILE)
        return _read(f"/proc/{self.pid}/fdinfo/{fd}") if wanted else ""

    def mount(self, information: str) -> tuple[int, str]:
        """The superblock's device and the type of the filesystem that a descriptor is on."""
        found = _MOUNT_ID.search(information)
        if self._mounts is None:
            self._mounts = parse_mounts(_read(f"/proc/{self.pid}/mountinfo"))
        return self._mounts.get(found[1] if found else "", (-1, ""))

    def leads_to(self, fd: str, information: str, identity: tuple[int, int]) -> bool:
        """Whether the descriptor leads to this very file. Only where W1 lets that be asked."""
        inode = _INODE.search(information)  # from Linux 5.14 on
        if (inode and int(inode[1]) != identity[1]) or self.mount(information)[1] not in _SUBVOLUMES:
            return False
        try:
            found = os.stat(f"/proc/{self.pid}/fd/{fd}")
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == identity

    def has_open(self, identity: tuple[int, int]) -> bool | None:
        """Whether it has this file open, where W1 lets that be asked; None: it may not be looked at."""
        fds = self.descriptors()
        return None if fds is None else any(self.leads_to(fd, self.information(fd), identity) for fd in fds)


def _superblock(identity: tuple[int, int]) -> int:
    """W2: the device by which the tables name this file."""
    mounts = parse_mounts(_read("/proc/self/mountinfo"))
    if all(device != identity[0] for device, _ in mounts.values()):
        for pid in (os.getpid(), *_pids()):
            process = _Process(pid)
            for fd in process.descriptors() or ():
                information = process.information(fd)
                if information and process.leads_to(fd, information, identity):
                    return process.mount(information)[0]
    return identity[0]


class _Holders:
    """Who keeps which of the locks on one file: one lock is known by its kind and by who took it."""

    def __init__(self, identity: tuple[int, int], file: tuple[int, int]) -> None:
        self._identity = identity
        self._file = file
        self.keepers: dict[tuple[bool, int], list[int]] = {}
        self._elsewhere: set[tuple[bool, int]] = set()

    def held(self) -> set[tuple[bool, int]]:
        """The locks that `/proc/locks` shows now."""
        return {(e.exclusive, e.pid) for e in _table(self._file) if not e.waiting}

    def look_at(self, pid: int) -> None:
        """Find the locks that a process keeps, whoever took them."""
        process = _Process(pid)
        for fd in process.descriptors() or ():
            information = process.information(fd)
            for entry in parse_locks(information):
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
        """W3: who is to be named for a lock; empty when it is none, or not of this file."""
        taker = lock[1]
        pids = self.keepers.get(lock)
        if pids:
            return [taker] if taker in pids else list(pids)
        if lock in self._elsewhere or lock not in self.held():  # W2; or released by now
            return []
        hidden = taker and _Process(taker).descriptors() is None and inspect(taker).presence is Presence.RUNNING
        return [taker if hidden else None]


def lock_owners(identity: tuple[int, int], inspect: Callable[[int], Process]) -> list[LockOwner]:
    """See `Environment.lock_owners`."""
    file = (_superblock(identity), identity[1])
    table = _table(file)
    taken = {(e.exclusive, e.pid) for e in table if not e.waiting}
    found = _Holders(identity, file)
    for _, taker in taken:
        found.look_at(taker)
    if not found.exclusively():
        for pid in _pids():  # W4
            found.look_at(pid)
    # Who is seen to hold exclusively is alone: what else is in the table is outdated, or of another file (W2).
    locks = set(found.keepers) if found.exclusively() else taken | found.keepers.keys()
    owners = [LockOwner(pid, lock[0]) for lock in sorted(locks) for pid in found.named(lock, inspect)]
    return owners + [
        LockOwner(entry.pid or None, entry.exclusive, waiting=True)
        for entry in table
        if entry.waiting and (identity == file or _Process(entry.pid).has_open(identity) is not False)  # W2
    ]


def watchers(identity: tuple[int, int], masks: Collection[int]) -> list[int]:
    """See `Environment.watchers`."""
    file = (_superblock(identity), identity[1])
    wanted = {mask & _SHOWN for mask in masks}  # W6
    return sorted(pid for pid in _pids() if _is_watching(pid, file, wanted))


def _is_watching(pid: int, file: tuple[int, int], wanted: set[int]) -> bool:
    process = _Process(pid)
    return any(
        watch.file == file and watch.mask & _SHOWN in wanted
        for fd in process.descriptors() or ()
        for watch in parse_watches(process.information(fd, events=True))
    )


def _table(file: tuple[int, int]) -> list[Entry]:
    """W5: what `/proc/locks` says of one file, each entry once."""
    found: list[Entry] = []
    for _ in range(4):
        before = found
        found = list(dict.fromkeys(entry for entry in parse_locks(_read("/proc/locks")) if entry.file == file))
        if found and found == before:
            break
    return found or before


def _pids() -> Iterator[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    yield from (int(name) for name in names if name.isdecimal())


def _read(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall().decode("latin-1")
    except OSError:
        return ""
