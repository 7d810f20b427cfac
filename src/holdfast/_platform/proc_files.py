"""Open files and working directories of processes, and every lock in the kernel's tables, by `/proc`. For display: no
decision rests on it.

PF1  Only `/proc` is read; no path that it names is followed, no file is opened or queried (`stat`), and no server is
     asked. So no lease is broken by this, and a dead mount cannot make it hang.
PF2  The descriptors of all processes are listed at most once, and so are their programs, however many files are asked
     about. `read_at` is the moment before the first of these lists, by the clock of file times, which is that of the
     last tick: of a file made later, nobody can say that no process has it open, or works with it.
PF3  A file that no process is seen to have open counts as closed only where all processes of its user could be looked
     at (`sees`). A process that ends has no file open any more: from `exit_mm` on until it is reaped, `/proc/PID/fd` is
     closed to its own user.
PF4  A file is identified by its name and its inode number, not by the path that the kernel shows, which differs in
     another mount namespace. Before Linux 5.14 there is no number; there the name alone decides.
PF5  A lock by open file description (`OFDLCK`) has no pid in the table, and the pid of a `flock` is that of the process
     that took it (proc_locks.py, W3): both are attributed to the processes that show the lock among their descriptors,
     if any does.
"""

from __future__ import annotations

import math
import os
import re
import time

from . import procfs
from .proc_locks import LockEntry, parse_locks
from .values import FileLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


_NO_FILE = ("socket:", "pipe:", "anon_inode:", "/memfd:", "/dev/null", "/dev/pts/", "/dev/urandom", "/dev/dri/")
"""Beginnings of the targets of descriptors that processes have by the dozen, and that nobody locks."""
_DELETED = " (deleted)"
_PF_EXITING = 0x4
_TICK = 0.01
"""Seconds between two ticks of the kernel's clock, at most."""
_MOST_NAMES = 200_000
"""The most descriptors that are remembered; others are not seen."""
_INODE = re.compile(r"^ino:\t([0-9]{1,20})$", re.MULTILINE)
_FLAGS = re.compile(r"^flags:\t([0-7]{1,12})$", re.MULTILINE)


def _ends(pid: int) -> bool:
    """Whether the last thread of a process has begun to end, or waits to be reaped."""
    fields = procfs.stat_fields(pid)
    return len(fields) > 17 and bool(int(fields[6]) & _PF_EXITING) and int(fields[17]) <= 1


class ProcFiles:
    """Open files and working directories of processes, and all locks in the kernel's tables, read once."""

    def __init__(self, *, tables: bool) -> None:
        self.known = tables
        """Whether the system shows any of this: `/proc` may be missing, or be that of another PID namespace."""
        self.read_at = math.inf if tables else 0.0
        """When the reading began, in seconds since the epoch: nothing newer is known."""
        self._open: dict[str, list[tuple[int, str, str]]] | None = None
        self._hidden: set[int] = set()
        """Users of processes that may not be looked at."""
        self._programs: dict[int, str] | None = None
        self._cut = False
        """Whether more files are open than are remembered: then no file can be said to be open nowhere."""
        self._locks: list[FileLock] | None = None

    def _begin(self) -> None:
        self.read_at = min(self.read_at, time.time() - _TICK)

    # -- who has what open ---------------------------------------------------------------------------------------------

    def sees(self, uid: int) -> bool:
        """Whether all processes of this user that are visible at all may be looked at."""
        self._by_name()
        return self.known and not self._cut and uid not in self._hidden and os.geteuid() in (0, uid)

    def openers(self, name: str, inode: int, *, writing: bool = False) -> list[int]:
        """The processes that have a file with this name and number open; `writing`: open for writing."""
        found = []
        for pid, information, _ in self._by_name().get(name, ()):
            about = procfs.read(information)
            number, flags = _INODE.search(about), _FLAGS.search(about)
            if flags is None or (number is not None and int(number[1]) != inode):  # closed, or another (PF4)
                continue
            if pid not in found and not (writing and int(flags[1], 8) & os.O_ACCMODE == os.O_RDONLY):
                found.append(pid)
        return found

    def _by_name(self) -> dict[str, list[tuple[int, str, str]]]:
        """All descriptors that lead to files, by the name of the file (PF2): each with its process, the path of its
        `fdinfo`, and the path of the file."""
        if self._open is None:
            self._begin()
            self._open, self._cut, count = {}, False, 0
            for pid in procfs.pids() if self.known else ():
                for information, target in self._descriptors(pid):
                    count += 1
                    if count <= _MOST_NAMES:
                        name = target.removesuffix(_DELETED).rpartition("/")[2]
                        self._open.setdefault(name, []).append((pid, information, target))
            self._cut = count > _MOST_NAMES
        return self._open

    def _descriptors(self, pid: int) -> Iterator[tuple[str, str]]:
        try:
            shown, fds = procfs.descriptors(pid)
        except PermissionError:
            if not _ends(pid):
                self._hide(pid)
            return
        except OSError:
            return
        for fd in fds:
            try:
                target = os.readlink(f"{shown}/fd/{fd}")
            except OSError:
                continue
            if not target.startswith(_NO_FILE):
                yield f"{shown}/fdinfo/{fd}", target

    def _hide(self, pid: int) -> None:
        """Take note that a process may not be looked at: nothing is known of its user's files any more (PF3)."""
        try:
            self._hidden.add(os.stat(f"/proc/{pid}").st_uid)
        except OSError:
            pass  # it has ended

    # -- who works where -----------------------------------------------------------------------------------------------

    def running(self, programs: Collection[str]) -> list[int]:
        """The processes of these programs."""
        if self._programs is None:
            self._begin()
            self._programs = {pid: procfs.comm(pid) for pid in (procfs.pids() if self.known else ())}
        found = [pid for pid, name in self._programs.items() if name in programs]
        return [pid for pid in found if procfs.stat_fields(pid)[:1] not in ([], ["Z"])]

    def directory(self, pid: int) -> str | None:
        """The working directory of a process; None if it may not be asked."""
        try:
            return os.readlink(f"/proc/{pid}/cwd")
        except OSError:
            return None

    def variable(self, pid: int, name: str) -> str:
        """A variable that a process was started with; empty if there is none, or it may not be asked."""
        for one in procfs.read(f"/proc/{pid}/environ").split("\0"):
            if one.startswith(f"{name}="):
                return os.fsdecode(one.partition("=")[2].encode("latin-1"))
        return ""

    # -- every lock ----------------------------------------------------------------------------------------------------

    def locks(self) -> list[FileLock]:
        """All locks in the tables, and all waiters for them."""
        if self._locks is None:
            table = parse_locks(self._text())
            opened = [one for found in self._by_name().values() for one in found] if table else []
            self._locks = self._named(table, opened)
        return self._locks

    def kernel_locks(self, name: str, identity: tuple[int, int]) -> list[FileLock]:
        """Locks and waiters on the file with this name and identity (`st_dev`, `st_ino`)."""
        table = [entry for entry in parse_locks(self._text()) if entry.file[1] == identity[1]]
        if not table:
            return []
        found = self._named(table, self._by_name().get(name, []))
        exactly = [lock for lock in found if lock.file == identity]
        return exactly or [lock for lock in found if lock.path is not None]  # a subvolume (proc_locks.py, W2)

    def _text(self) -> str:
        return procfs.read("/proc/locks") if self.known else ""

    def _named(self, table: list[LockEntry], opened: list[tuple[int, str, str]]) -> list[FileLock]:
        """The locks of the table, with the processes that show them among these descriptors, and the paths of the files
        as they were opened (PF5)."""
        files = {entry.file for entry in table}
        keepers: dict[LockEntry, dict[int, None]] = {}
        paths: dict[tuple[int, int], str] = {}
        for pid, information, target in opened:
            for entry in parse_locks(procfs.read(information)):
                if entry.file in files:
                    paths.setdefault(entry.file, target)
                    keepers.setdefault(entry, {})[pid] = None
        found: list[FileLock] = []
        for entry in table:
            path = paths.get(entry.file)
            shown, deleted = path and path.removesuffix(_DELETED), path is not None and path.endswith(_DELETED)
            keeping = {} if entry.waiting else keepers.get(entry, {})
            pids = (entry.pid,) if entry.pid in keeping or not keeping else keeping
            lock = (entry.kind, entry.file, entry.exclusive, entry.waiting)
            found += [FileLock(*lock, pid or None, entry.span, shown, deleted) for pid in pids]
        return [*dict.fromkeys(found)]
