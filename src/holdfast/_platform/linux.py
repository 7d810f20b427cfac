"""Linux: events are `inotify(7)`, processes are `pidfd_open(2)` and `/proc`. Guards and tickets are in posix.py.

The C library is loaded by the few calls that need it (libc.py): it is not available everywhere.

LX1 On SMB, EACCES says that another process has a lock: locking fails with it, and so does reading a locked file, which
    counts as empty. Elsewhere, EACCES from locking is an error (AppArmor, SELinux).
LX2 A lease for reading is granted only while no process has the file open for writing, and only to its owner and root.
    It is given up at once. A process that opens the file for writing in that instant is refused, as by a lock
    (inspect.py, L10), or waits until then. The kernel would ask us to give it up by SIGIO, which ends a process; so
    SIGURG is set in its place, which a process ignores unless it wants it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]  # `signal` loads `enum`
import errno
import fcntl
import os
import select
import time
from io import FileIO

from . import procfs
from .fork import to_load
from .portable import presence_by_signal, unwrapped
from .posix import PosixEnvironment
from .values import ALWAYS_LOCAL, SMB, LockOwner, Presence, Process, Storage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .inotify import DirectoryLog, DirectoryLogs, FileWatch, FolderWatch, Hub, WatchSet
    from .proc_files import ProcFiles
    from .proc_locks import ProcLocks

_UNNAMED: int = getattr(os, "O_TMPFILE", os.O_DIRECTORY | 0x400000) | os.O_RDWR | os.O_CLOEXEC
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH = -100, 0x100, 0x1000
_MOST_DIRECTORIES = 256
_WORTH_A_LOG = 0.010
"""Seconds of listing a directory after which a log of it is cheaper: closing its instance takes that long."""
_MOUNT_LASTS = 1.0
"""Seconds that the meaning of a mount is remembered: reading the mount table takes as long as a whole acquisition."""
_STATX_INO, _STATX_BTIME = 0x100, 0x800
_SIZE, _INODE_AT, _BIRTH_AT = 256, 32, 80
_PIDFD_OPEN = 434
_SET_LEASE: int | None = getattr(fcntl, "F_SETLEASE", None)
_SET_SIGNAL: int = getattr(fcntl, "F_SETSIG", 10)


def _open_pidfd(pid: int) -> int:
    """`os.pidfd_open`, which PyPy does not have."""
    from .libc import LIBC, last_error

    fd: int = LIBC.syscall(_PIDFD_OPEN, pid, 0)
    if fd < 0:
        raise last_error()
    return fd


class LinuxEnvironment(PosixEnvironment):
    tells_ends = True
    knows_mounts = True
    limits = f"{PosixEnvironment.limits}, or a cgroup's pids.max or memory.max"

    def __init__(self, without: frozenset[str] = frozenset()) -> None:
        super().__init__(without if hasattr(os, "eventfd") else without | {"events"})  # PyPy
        to_load.append(_load_events)
        self._hub: Hub | None = None
        self._blocking: dict[str, tuple[bool, float]] = {}
        self._all_local_until = 0.0
        """Monotonic time until which no mount is taken to have a server or a process to wait for."""
        self._table: list[procfs.Mount] = []
        self._slow: tuple[list[procfs.Mount], list[procfs.Mount]] = ([], [])
        """A table, and those of its mounts that may be slow, as far as that was asked for."""
        self._table_text, self._table_until = "", 0.0
        self._mounts: dict[int, tuple[Storage, float]] = {}
        self._directory_logs: DirectoryLogs | None = None
        self._logs: dict[str, DirectoryLog] = {}
        self._listed: dict[str, float] = {}
        """Seconds that listing each directory has taken since its log began, or without one."""

    def _in_child(self) -> None:
        super()._in_child()
        if self._hub is not None:
            self._hub.orphan()
            self._hub = None
        self._directory_logs = None
        self._logs = {}

    # -- who -----------------------------------------------------------------------------------------------------------

    def _boot(self) -> str:
        try:
            with FileIO("/proc/sys/kernel/random/boot_id") as file:
                return file.read().decode().strip() or "-"
        except OSError:
            return "-"

    def inspect(self, pid: int) -> Process:
        presence = self._presence(pid)
        if presence is not Presence.RUNNING or not procfs.is_ours():
            return Process(presence)
        fields = procfs.stat_fields(pid)
        try:
            ticks = int(fields[19])
        except (ValueError, IndexError):
            return Process(presence)  # hidden by hidepid, or gone this instant: not a proof of anything
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        since = booted + unwrapped(ticks / os.sysconf("SC_CLK_TCK"))
        return Process(presence, f"t{ticks}", since, fields[0] in ("T", "t"))

    def _presence(self, pid: int) -> Presence:
        try:
            fd = self._descriptors.open(getattr(os, "pidfd_open", _open_pidfd), pid)
        except ProcessLookupError:
            return Presence.GONE
        except (OSError, OverflowError) as error:
            if getattr(error, "errno", None) == errno.ENOENT:
                return Presence.GONE  # the number now names a thread, so no process
            return presence_by_signal(pid)  # no descriptor left, an old kernel, or a number that somebody has made up
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            return Presence.ZOMBIE if poll.poll(0) else Presence.RUNNING
        finally:
            self._descriptors.close(fd)

    def command(self, pid: int) -> str | None:
        words = procfs.words(pid, 4096) if procfs.is_ours() else None
        return " ".join(word.decode("utf-8", "replace") for word in words or ()).strip() or None

    def program(self, pid: int) -> tuple[str, list[str]] | None:
        words = procfs.words(pid, 65536) if procfs.is_ours() else None
        if words is None:
            return None
        try:
            path = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
        except OSError:  # another user's
            path = procfs.comm(pid)
        name = path.rpartition("/")[2]
        return (name, [os.fsdecode(word) for word in words]) if name or words[0] else None

    def setproctitle(self, name: str, about: str) -> None:
        """Show this process as `name about`, cut to the room of its first command line. Does nothing where that fails.

        The command line is overwritten in place, as the package `setproctitle` does: Python has copied it long ago. The
        last byte stays NUL: without it, the kernel would take the environment behind it for a part of it.
        """
        try:
            with open("/proc/self/comm", "wb", buffering=0) as file:
                file.write(os.fsencode(name)[:15])
            fields = procfs.stat_fields("self")
            start, end = int(fields[45]), int(fields[46])
            room = end - start - 1
            if start <= 0 or room < len(name):
                return
            words = name.encode() + b"\0" + about.encode("utf-8", "replace").replace(b"\0", b" ")
            with open("/proc/self/mem", "r+b", buffering=0) as memory:
                memory.seek(start)
                memory.write(words[:room].ljust(room + 1, b"\0"))
        except (OSError, ValueError, IndexError, OverflowError):
            pass  # it goes by its old name

    # -- files ---------------------------------------------------------------------------------------------------------

    def open_unnamed(self, directory: str, mode: int) -> int:
        if "unnamed" in self.without:
            raise OSError(errno.EOPNOTSUPP, "unnamed files are switched off", directory)
        return self._descriptors.open(os.open, directory, _UNNAMED, mode)

    def link_unnamed(self, fd: int, path: str) -> None:
        # A source descriptor makes Python call linkat() with AT_SYMLINK_FOLLOW; the kernel ignores it beside an
        # absolute path. Without one it would be link(), which fails with EXDEV.
        if "proc" not in self.without:
            try:
                os.link("/proc/self/fd/" + str(fd), path, src_dir_fd=fd, follow_symlinks=True)
                return
            except FileNotFoundError:
                pass  # /proc is hidden, or the directory is gone: the next call tells which
        with self._forking:  # it imports
            link_empty_path(fd, path)

    def way_to(self, fd: int) -> str | None:
        way, found = f"/proc/self/fd/{fd}", os.fstat(fd)
        try:
            there = os.stat(way) if "proc" not in self.without else None
        except OSError:
            return None  # /proc is hidden
        return way if there is not None and os.path.samestat(there, found) else None

    def btime(self, path: str) -> str | None:
        with self._forking:  # it imports
            return btime(path)

    def read(self, fd: int, size: int) -> bytes:
        try:
            return os.pread(fd, size, 0)
        except PermissionError:
            if not self._is_on_smb(fd):
                raise
            return b""

    # -- the guard -----------------------------------------------------------------------------------------------------

    def is_written(self, fd: int) -> bool | None:
        """Whether a process has the file open for writing, by a lease for reading that is given up at once (LX2)."""
        if _SET_LEASE is None or "flock" in self.without:
            return None
        try:
            fcntl.fcntl(fd, _SET_SIGNAL, _signal.SIGURG)
            fcntl.fcntl(fd, _SET_LEASE, fcntl.F_RDLCK)
        except OSError as error:
            return True if error.errno == errno.EAGAIN else None
        try:
            fcntl.fcntl(fd, _SET_LEASE, fcntl.F_UNLCK)
        except OSError:
            pass  # stopped meanwhile for so long that the kernel has ended it
        return False

    def _is_on_smb(self, fd: int) -> bool:
        mount = procfs.mount_of(os.fstat(fd).st_dev, procfs.mounts())
        return mount is not None and mount.kind in SMB

    # -- holders and waiters -------------------------------------------------------------------------------------------

    def lock_owners(self, identity: tuple[int, int], records: tuple[int, int] | None = None) -> list[LockOwner]:
        if not procfs.is_ours():
            return []
        with self._forking:
            from .proc_locks import lock_owners
        return lock_owners(identity, self.inspect, records)

    def watchers(self, identity: tuple[int, int]) -> list[int]:
        return self.proc_locks().watchers(identity)

    def proc_locks(self, *, few: bool = False) -> ProcLocks:
        with self._forking:
            from .proc_locks import ProcLocks
        return ProcLocks(self.inspect, procfs.mounts(), tables=procfs.is_ours(), few=few)

    def proc_files(self) -> ProcFiles:
        from .proc_files import ProcFiles

        return ProcFiles(tables=procfs.is_ours())

    # -- events --------------------------------------------------------------------------------------------------------

    def watch(self, path: str, *, readers: bool = False) -> FileWatch | None:
        hub = self._events()
        made = self.operations.current()
        try:
            return hub.add(path, readers=readers, made=made) if hub is not None else None
        except FileNotFoundError:
            raise
        except OSError:
            return None  # no watch left

    def watch_set(self) -> WatchSet | None:
        hub = self._events()
        return hub.watch_set() if hub is not None else None

    def directory_log(self, directory: str) -> DirectoryLog | None:
        if self._directory_logs is not None and self._directory_logs.is_closed:
            self._directory_logs, self._logs = None, {}
        return self._logs.get(directory)

    def listed(self, directory: str, seconds: float) -> None:
        if len(self._listed) >= _MOST_DIRECTORIES:
            self._listed.clear()
        spent = self._listed[directory] = self._listed.get(directory, 0.0) + seconds
        if spent < _WORTH_A_LOG or "events" in self.without or not self.events_reach(f"{directory}/x"):
            return
        self._listed[directory] = 0.0
        with self._forking:
            self._begin_log(directory)

    def _begin_log(self, directory: str) -> None:
        try:
            from .inotify import DirectoryLogs

            if self._directory_logs is None:
                self._directory_logs = DirectoryLogs(self._descriptors)
                self.operations.share(self._directory_logs.mutex, 1)
            self._logs[directory] = self._directory_logs.add(directory)
        except (ImportError, OSError):
            self._listed[directory] = float("-inf")  # no instance or watch is left: it is listed each time

    def is_lasting(self, fd: int) -> bool:
        return any(one is not None and one.fd is fd for one in (self._hub, self._directory_logs))

    def _events(self) -> Hub | None:
        if "events" in self.without:
            return None
        if self._hub is None:
            # The import too: a child that is forked in the middle of one would wait for its end for ever.
            with self._forking:
                try:
                    from .inotify import Hub
                except ImportError:
                    return None  # in a subinterpreter before Python 3.13 there is no ctypes: the wait polls
                if self._hub is None:
                    try:
                        self._hub = Hub(self._descriptors, self.watching())
                    except OSError:
                        return None  # no instance left for this user: the wait polls, and tries again next time
        return self._hub

    def folder_watch(self) -> FolderWatch | None:
        if "events" in self.without:
            return None
        from .inotify import FolderWatch

        try:
            return FolderWatch()
        except OSError:
            return None

    def watch_process(self, pid: int, *, inherited: bool = False) -> int | None:  # noqa: ARG002
        try:
            return self._descriptors.open(getattr(os, "pidfd_open", _open_pidfd), pid)
        except (OSError, OverflowError):
            return None

    def may_block(self, path: str) -> bool:
        now = time.monotonic()
        if now < self._all_local_until:
            return False
        directory = path.rpartition("/")[0] or "/"
        known, until = self._blocking.get(directory, (False, 0.0))
        if now >= until:
            known = self._slow_mount(directory) is not None
            if len(self._blocking) >= _MOST_DIRECTORIES:
                self._blocking.clear()
            self._blocking[directory] = (known, now + _MOUNT_LASTS)
            if not self._slow[1]:
                self._all_local_until = now + _MOUNT_LASTS
        return known

    def server_at(self, path: str) -> str:
        mount = self._slow_mount(path.rpartition("/")[0] or "/")
        return "" if mount is None else f"the server of {mount.point} ({mount.kind}, {mount.source})"

    def is_away(self, path: str, error: OSError) -> bool:
        return error.errno in self._slow_storage(path).away

    def reconnects(self, path: str) -> bool:
        return self._slow_storage(path).reconnects

    def _slow_storage(self, path: str) -> Storage:
        mount = self._slow_mount(path.rpartition("/")[0] or "/")
        return self._storage(mount, self._mount_table())

    def _slow_mount(self, directory: str) -> procfs.Mount | None:
        """The mount whose server, or process, a step on a file here may have to wait for; nothing on it is touched."""
        table, (known, slow) = self._mount_table(), self._slow
        if known is not table:
            slow = [mount for mount in table if mount.kind not in ALWAYS_LOCAL]
        found = None
        while slow:
            found = procfs.mount_on_the_way(directory, table, slow)
            if found is None or not self._storage(found, table).events:
                break
            slow, found = [mount for mount in slow if mount is not found], None
        self._slow = table, slow  # another thread may do the same
        return found

    def _mount_table(self) -> list[procfs.Mount]:
        """The mount table, as it was at most a moment ago."""
        now = time.monotonic()
        if now >= self._table_until:
            text = procfs.read(procfs.MOUNTS) or self._table_text  # no descriptor may be left
            if text != self._table_text:
                self._table = procfs.parse_mounts(text)
            self._table_text, self._table_until = text, now + _MOUNT_LASTS
        return self._table

    def events_reach(self, path: str) -> bool:
        return self.storage(path).events

    def storage(self, path: str, device: int | None = None) -> Storage:
        try:
            device = os.stat(os.path.dirname(path)).st_dev if device is None else device
        except OSError:
            return self._storage(None, [])
        found, until = self._mounts.get(device, (None, 0.0))
        now = time.monotonic()
        if found is None or now >= until:
            table = self._mount_table()
            directory = os.path.realpath(os.path.dirname(path))
            mount = procfs.mount_of(device, table) or procfs.mount_at(directory, table)
            found = self._storage(mount, table)
            self._mounts[device] = (found, now + _MOUNT_LASTS)
        return found

    def _storage(self, mount: procfs.Mount | None, table: list[procfs.Mount]) -> Storage:
        if mount is not None and mount.kind in ALWAYS_LOCAL:
            return Storage(mount.kind)  # without loading the code that knows the others
        with self._forking:  # it imports
            from .storage import storage_at
        return storage_at(mount, table, os.uname().release)


def _load_events() -> None:
    from . import storage  # noqa: F401

    try:
        from . import inotify  # noqa: F401
    except ImportError:
        pass  # waits poll


def link_empty_path(fd: int, path: str) -> None:
    try:
        from .libc import LIBC, last_error
    except ImportError as error:
        raise OSError(errno.EOPNOTSUPP, "AT_EMPTY_PATH needs ctypes, which cannot be loaded here", path) from error
    if LIBC.linkat(fd, b"", _AT_FDCWD, os.fsencode(path), _AT_EMPTY_PATH) != 0:
        raise last_error(path)


def btime(path: str) -> str | None:
    """Number and time of birth of the inode; the number alone where births are not kept; None: there is no file."""
    try:
        import ctypes

        from .libc import LIBC

        statx = getattr(LIBC, "statx", None)
    except ImportError:
        statx = None
    if statx is None:
        return _number(path)
    found = ctypes.create_string_buffer(_SIZE)
    if statx(_AT_FDCWD, os.fsencode(path), _AT_SYMLINK_NOFOLLOW, _STATX_INO | _STATX_BTIME, found) != 0:
        return _number(path)
    import struct

    (known,) = struct.unpack_from("=I", found, 0)
    (inode,) = struct.unpack_from("=Q", found, _INODE_AT)
    if not known & _STATX_BTIME:
        return str(inode)
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BIRTH_AT)
    return f"{inode} {seconds}.{nanoseconds:09d}"


def _number(path: str) -> str | None:
    try:
        return str(os.lstat(path).st_ino)
    except OSError:
        return None
