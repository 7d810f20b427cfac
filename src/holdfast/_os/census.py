"""The kernel's tables, read once for many files. For showing: no decision rests on it. What tables.py says holds here.

W7  `/proc/locks` is read once, the descriptors of all processes at most once for watches and once for locks, however
    many files are asked about. So all answers are of about the same moment, and outdated when they are given.
W8  Where the tables may name a file by another device than `st_dev` (W2), an entry with its inode number is only a
    hint: then the file is asked about by itself.
"""

from __future__ import annotations

import os

from .._core.environment import LockOwner, Presence, Process
from .inotify import IN_CLOSE_NOWRITE, MASKS
from .tables import _SHOWN as SHOWN
from .tables import _SUBVOLUMES, Entry, _pids, _Process, _read, lock_owners, parse_locks, parse_mounts, parse_watches
from .tables import _superblock as superblock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_ARTIFICIAL = frozenset(
    {"proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "devpts", "mqueue", "bpf", "configfs"}
    | {"pstore", "fusectl", "binfmt_misc", "efivarfs", "rpc_pipefs", "selinuxfs", "autofs", "nsfs"}
)
"""Where no lock file can be, and where looking at all files may make something happen."""
_OURS = frozenset(mask & SHOWN for mask in MASKS)


class LinuxCensus:
    """See `survey.Census`."""

    def __init__(self, inspect: Callable[[int], Process], *, tables: bool) -> None:
        self._inspect = inspect
        self._tables = tables
        """Whether `/proc` is of our PID namespace, so that what it shows means something."""
        self._mounts = dict(parse_mounts(_read("/proc/self/mountinfo")).values())
        self._locks: dict[tuple[int, int], list[Entry]] | None = None
        self._inodes: set[int] = set()
        self._keepers: dict[tuple[tuple[int, int], bool, int], list[int]] | None = None
        self._watches: dict[tuple[int, int], dict[int, bool]] | None = None
        self._users: dict[int, int | None] = {}
        self._watched_inodes: set[int] = set()

    def is_artificial(self, device: int) -> bool:
        return self._mounts.get(device, "") in _ARTIFICIAL

    def user(self, pid: int) -> int | None:
        if pid not in self._users:
            try:
                self._users[pid] = os.stat(f"/proc/{pid}").st_uid if self._tables else None
            except OSError:
                self._users[pid] = None
        return self._users[pid]

    # -- locks ---------------------------------------------------------------------------------------------------------

    def is_locked(self, identity: tuple[int, int]) -> bool:
        locks = self._read_locks()
        if identity in locks:
            return any(not entry.waiting for entry in locks[identity])
        return self._is_doubtful(identity, self._inodes) and any(not owner.waiting for owner in self.owners(identity))

    def locked_numbers(self, device: int) -> set[int] | None:
        self._read_locks()
        # A device that is not listed is a subvolume's, where there are such.
        kind = self._mounts.get(device) or ("btrfs" if "btrfs" in self._mounts.values() else "fuse")
        # A FUSE server may list numbers of its own invention.
        return None if kind.startswith("fuse") else self._inodes

    def owners(self, identity: tuple[int, int]) -> list[LockOwner]:
        locks = self._read_locks()
        if identity not in locks:
            doubtful = self._is_doubtful(identity, self._inodes)
            return lock_owners(identity, self._inspect) if doubtful else []  # W8
        found: dict[LockOwner, None] = {}
        for entry in locks[identity]:
            if entry.waiting:
                found[LockOwner(entry.pid or None, entry.exclusive, waiting=True)] = None
            else:
                for pid in self._keepers_of(identity, entry):
                    found[LockOwner(pid, entry.exclusive)] = None
        return list(found)

    def _keepers_of(self, identity: tuple[int, int], entry: Entry) -> list[int | None]:
        """W3: who took it, if it lives; else those who are seen to have it from there."""
        if entry.pid and self._inspect(entry.pid).presence is Presence.RUNNING:
            return [entry.pid]
        if self._keepers is None:
            self._keepers = {}
            for pid in _pids() if self._tables else ():
                process = _Process(pid)
                for fd in process.descriptors() or ():
                    for lock in parse_locks(process.information(fd)):
                        self._keepers.setdefault((lock.file, lock.exclusive, lock.pid), []).append(pid)
        return [*dict.fromkeys(self._keepers.get((identity, entry.exclusive, entry.pid), []))] or [None]

    def _read_locks(self) -> dict[tuple[int, int], list[Entry]]:
        if self._locks is None:
            self._locks = {}
            # Twice, because entries may be missing from one reading (W5).
            first, second = (_read("/proc/locks"), _read("/proc/locks")) if self._tables else ("", "")
            for entry in parse_locks(first) + (parse_locks(second) if second != first else []):
                of_file = self._locks.setdefault(entry.file, [])
                if entry not in of_file:
                    of_file.append(entry)
                self._inodes.add(entry.file[1])
        return self._locks

    def _is_doubtful(self, identity: tuple[int, int], inodes: set[int]) -> bool:
        return identity[1] in inodes and self._mounts.get(identity[0], "btrfs") in _SUBVOLUMES

    # -- watches -------------------------------------------------------------------------------------------------------

    def watchers(self, identity: tuple[int, int]) -> list[int]:
        return sorted(self._watches_of(identity) or ())

    def heeds_readers(self, identity: tuple[int, int]) -> bool:
        watches = self._watches_of(identity)
        return True if watches is None else any(watches.values())

    def _watches_of(self, identity: tuple[int, int]) -> dict[int, bool] | None:
        """None: somebody watches a file of that number, and it cannot be known whether it is this one."""
        watches = self._read_watches()
        if identity in watches or not self._is_doubtful(identity, self._watched_inodes):
            return watches.get(identity, {})
        return watches.get((superblock(identity), identity[1]))  # W8

    def _read_watches(self) -> dict[tuple[int, int], dict[int, bool]]:
        """The processes that watch a file as holdfast does, and whether they would hear of a reader that closes it."""
        if self._watches is None:
            self._watches = {}
            for pid in _pids() if self._tables else ():
                process = _Process(pid)
                for fd in process.descriptors() or ():
                    for watch in parse_watches(process.information(fd, events=True)):
                        if watch.mask & SHOWN in _OURS:
                            readers = bool(watch.mask & IN_CLOSE_NOWRITE)
                            self._watches.setdefault(watch.file, {})[pid] = readers
                            self._watched_inodes.add(watch.file[1])
        return self._watches
