"""The portable environment, for every system without one of its own.

There is no guard (the identity of the holder's process takes its place) and there are no events (waits poll). PID
evidence comes from psutil where it is installed, else from `kill(pid, 0)` on POSIX, else there is none.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from io import FileIO

from ..model import Identity
from .descriptors import Created, Descriptor, Descriptors
from .fork import Forkable, begin_generation, forking, in_child, opening
from .operations import Operations, call, partial
from .values import LockOwner, Presence, Process, Storage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from .inotify import FolderWatch
    from .interface import DirectoryLog, Watch, WatchSet
    from .proc_files import ProcFiles
    from .proc_locks import ProcLocks

    T = TypeVar("T")

_HERE: int = (
    getattr(os, "O_PATH", os.O_RDONLY)
    | getattr(os, "O_DIRECTORY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
_SLEEPLESS: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
"""The clock that also runs while the machine sleeps; on macOS that is CLOCK_MONOTONIC."""
NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)


def make_directories(env: GenericEnvironment, directory: str) -> None:
    """Make a directory, and all missing ones above it; no error if it exists.

    Other users may write to the last directory that exists, and put a link where the next one is to be. So each one is
    made in the one above it, by its descriptor, and is entered only if it is no link. NotADirectoryError if it is, or
    is something else.
    """
    at, missing = directory, []
    while True:
        try:
            fd = env.open_path(at, _HERE)
            break
        except FileNotFoundError:
            at, name = os.path.split(at.rstrip("/"))
            if not name:
                raise
            missing.append(name)
    try:
        while missing:
            name = missing.pop()
            try:
                os.mkdir(name, dir_fd=fd)
            except FileExistsError:
                pass  # another one was faster; if it is no directory, the next step says so
            above, fd = fd, env.open_path(name, _HERE | NOFOLLOW, dir_fd=fd)
            env.close(above)
    except OSError as error:
        error.filename = directory
        raise
    finally:
        env.close(fd)


_OURS, _CHILDREN = "/proc/self/ns/time", "/proc/self/ns/time_for_children"
_WRAPS = 2**64 / 1e9
"""Seconds after which the time in /proc/PID/stat begins anew: in the kernel it is in unsigned nanoseconds."""


def unwrapped(seconds: float) -> float:
    """The start of a process, in seconds since the epoch or the boot: before the zero of our clock it looks like 584
    years later."""
    return seconds - _WRAPS if seconds > _WRAPS / 2 else seconds


def clock_shift() -> float:
    """Seconds by which the monotonic clock of this process is ahead of the machine's; 0 if unknown."""
    try:
        with FileIO("/proc/self/timens_offsets") as file:
            words = file.read(256).split()
        shift = int(words[1]) + int(words[2]) / 1e9  # the monotonic clock's are first
        # If it has made a namespace for its children, the offsets are those of that namespace.
        return shift if not shift or os.stat(_OURS).st_ino == os.stat(_CHILDREN).st_ino else 0.0
    except (OSError, ValueError, IndexError):
        return 0.0


_BINARY: int = getattr(os, "O_BINARY", 0)
CLOEXEC: int = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0)
NONBLOCK: int = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_PS_WITHIN = 2.0
"""Seconds that `ps` may take: its answer is for a message, and worth no more."""
_MAY_FOLLOW = sys.platform != "linux" and getattr(os, "link", None) in os.supports_follow_symlinks
_AS_IT_IS: Any = {"follow_symlinks": False} if _MAY_FOLLOW else {}
"""Options of `os.link`, so that it follows no link. link(2) does not on Linux, but may elsewhere."""


class GenericEnvironment(Forkable):
    """The portable environment, and the base of the others."""

    guards = False
    fifos = False
    locks_directories = os.utime in os.supports_fd
    lingering = False
    knows_mounts = True
    has_jobs = False
    """Whether the system can keep together all processes that a command starts: Windows."""
    limits = "ulimit -n, -u or -v"
    """Limits to look at, for a user, when a process, a thread or memory is refused."""
    raises_open_limit = "ulimit -n, RLIMIT_NOFILE"
    asks_first = False
    monotonic = staticmethod(time.monotonic)

    def uptime(self) -> float:
        return time.monotonic() if _SLEEPLESS is None else time.clock_gettime(_SLEEPLESS)

    time = staticmethod(time.time)
    unlink = staticmethod(os.unlink)
    stat = staticmethod(os.lstat)
    fstat = staticmethod(os.fstat)
    exists = staticmethod(partial(os.access, mode=os.F_OK))
    truncate = staticmethod(os.ftruncate)
    sync = staticmethod(os.fsync)

    def __init__(self, without: frozenset[str] = frozenset()) -> None:
        self.without = without
        self.holds: dict[tuple[object, ...], Any] = {}
        self.local_queues: dict[str, Any] = {}
        self.swept: dict[str, float] = {}
        self.passed: dict[str, float] = {}
        self.operations = Operations(opening, self._mutexes_of_queues)
        self._descriptors = Descriptors(self.operations)
        self.close = self._descriptors.close
        self.keep = self._descriptors.keep
        self._forking = forking
        self._watching: Any = None
        self._identity: Identity | None = None
        self._clock_shift: float | None = None
        if hasattr(os, "register_at_fork"):
            in_child(self._in_child)
            os.register_at_fork(after_in_child=begin_generation)  # what a handler had acquired has lost its descriptor

    # -- fork ------------------------------------------------------------------------------------------------------

    def _in_child(self) -> None:
        # Close, never unlock: the guard belongs to the open file description, which the parent still uses.
        self._descriptors.close_copies()
        self.operations.forked()
        self.operations.forget_mutexes()
        self._watching = None
        self._identity = None
        self._clock_shift = None
        self.holds = {}
        self.local_queues = {}

    def watching(self) -> Any:
        """The mutex of all watches, and of their users: with two, a signal handler in the midst of the one could wait
        for the other, and a thread the other way round. Re-entrant for the same reason."""
        if self._watching is None:
            with self._forking:
                if self._watching is None:
                    # From `threading` where it is loaded: gevent replaces it there.
                    self._watching = getattr(sys.modules.get("threading"), "RLock", _thread.RLock)()
                    self.operations.share(self._watching, 2)
        return self._watching

    def _mutexes_of_queues(self) -> list[Any]:
        return [queue.mutex for queue in self.local_queues.copy().values()]

    def adopt(self, fd: int, kind: Callable[[int], Descriptor] = Descriptor) -> Descriptor:
        """Enter a descriptor among ours; use the returned one in its place."""
        return self._descriptors.open(int, fd, kind=kind, lasting=True)

    def take(self, opened: Callable[[], int], kind: Callable[[int], Descriptor] = Descriptor) -> Descriptor:
        """Enter the descriptor that a call gives up, by that very call. It is the current operation's, until `keep`."""
        return self._descriptors.open(opened, kind=kind)

    def is_open(self, fd: int) -> bool:
        return fd in self._descriptors

    def is_lasting(self, fd: int) -> bool:  # noqa: ARG002
        return False

    def has_created(self, fd: int) -> bool:
        return isinstance(fd, Created)

    def undo_by(self, fd: int, undo: Callable[[int], object]) -> None:
        fd.undo = undo  # type: ignore[attr-defined]  # it is a Descriptor

    def disown(self, fd: int) -> None:
        self._descriptors.disown(fd)

    @property
    def clock_shift(self) -> float:
        shift = self._clock_shift
        if shift is None:
            shift = self._clock_shift = clock_shift()
        return shift

    # -- who ---------------------------------------------------------------------------------------------------------

    def identity(self, pid: int | None = None) -> Identity:
        mine = self._identity
        if mine is None:
            mine = self._identity = self._identify(os.getpid())
        return mine if pid is None or pid == mine.pid else self._identify(pid)

    def _identify(self, pid: int) -> Identity:
        return Identity(pid, self._boot(), self._pid_namespace(), self.inspect(pid).started, _host())

    def _boot(self) -> str:
        # No boot id is portable. The machine's own number is as good for recognising records of this machine. A reboot
        # is then invisible, which is safe, because a pid in use counts as alive. The host name is added because virtual
        # machines and containers on several hosts may have the same number.
        with self._forking:
            import uuid
            import zlib

        node = uuid.getnode()
        if node >> 40 & 1:
            return "-"  # that bit marks a made-up number, which changes each time
        return f"machine:{node:x}.{zlib.crc32(_host().encode()):x}"

    def _pid_namespace(self) -> str:
        if sys.platform != "linux":
            return "0"
        # With the time namespace, where there is one: it shifts the start times that /proc shows, so that the same
        # process would seem another one from a different time namespace.
        try:
            pids = os.stat("/proc/self/ns/pid").st_ino
        except OSError:
            return "-"
        try:
            return f"{pids}.{os.stat('/proc/self/ns/time').st_ino}"
        except OSError:
            return str(pids)

    def inspect(self, pid: int) -> Process:
        try:
            with self._forking:
                import psutil
        except ImportError:
            return Process(presence_by_signal(pid))
        try:
            process = psutil.Process(pid)
            since = unwrapped(process.create_time())
            status = process.status()
        except psutil.NoSuchProcess as error:
            return Process(Presence.ZOMBIE if isinstance(error, psutil.ZombieProcess) else Presence.GONE)
        except psutil.Error:
            return Process(Presence.RUNNING)
        # psutil derives the start from the wall clock, which may step: good for showing, not for telling two apart.
        presence = Presence.ZOMBIE if status == psutil.STATUS_ZOMBIE else Presence.RUNNING
        return Process(presence, "-", since, status == psutil.STATUS_STOPPED)

    def command(self, pid: int) -> str | None:
        try:
            with self._forking:
                import psutil

            return " ".join(psutil.Process(pid).cmdline()) or None
        except Exception:  # decoration for a message: whatever fails, the message goes out without it
            return None

    def program(self, pid: int) -> tuple[str, list[str]] | None:
        try:
            with self._forking:
                import psutil

            process = psutil.Process(pid)
            return process.name(), process.cmdline()
        except Exception:  # not installed, or not permitted
            pass
        if os.name != "posix":
            return None
        with self._forking:
            import subprocess

        try:
            found = subprocess.run(
                ["ps", "-o", "comm=", "-p", str(pid)], capture_output=True, text=True, timeout=_PS_WITHIN, check=True
            )
        except (OSError, ValueError, subprocess.SubprocessError):
            return None
        name = found.stdout.strip().rpartition("/")[2]
        return (name, []) if name else None

    def caller(self) -> int:
        """The process that has called this one; 0 where it cannot be seen."""
        return os.getppid()

    def setproctitle(self, name: str, about: str) -> None:
        pass

    def token(self) -> str:
        return os.urandom(8).hex()

    # -- files ---------------------------------------------------------------------------------------------------------

    def _open(
        self, path: str, flags: int, mode: int = 0, dir_fd: int | None = None, kind: type[Descriptor] = Descriptor
    ) -> int:
        flags |= CLOEXEC | _BINARY
        if dir_fd is None:
            return self._descriptors.open(os.open, path, flags, mode, kind=kind)
        relative = partial(os.open, path, flags, mode, dir_fd=dir_fd)
        return self._descriptors.open(call, relative, kind=kind)

    def open_directory(self, path: str) -> int:
        return self._open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | NOFOLLOW | NONBLOCK)

    def open_new_directory(self, path: str, mode: int) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | NOFOLLOW | NONBLOCK | CLOEXEC
        return self._descriptors.make(
            partial(os.mkdir, path, mode), partial(os.open, path, flags), partial(os.rmdir, path)
        )

    def open_unnamed(self, directory: str, mode: int) -> int:  # noqa: ARG002
        raise OSError(_unsupported(), "unnamed files are not portable", directory)

    def open_new(self, path: str, mode: int, *, dir_fd: int | None = None) -> int:
        return self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | NOFOLLOW, mode, dir_fd, Created)

    def open_existing(self, path: str, *, write: bool, dir_fd: int | None = None) -> int:
        return self._open(path, (os.O_RDWR if write else os.O_RDONLY) | NOFOLLOW | NONBLOCK, 0, dir_fd)

    def give(self, fd: int, *, user: int = -1, group: int = -1) -> None:
        os.fchown(fd, user, group)

    def make_fifo(self, name: str, mode: int, *, dir_fd: int) -> None:  # noqa: ARG002
        raise OSError(_unsupported(), "FIFOs are not portable", name)

    def open_fifo(self, name: str, *, write: bool, dir_fd: int) -> int:  # noqa: ARG002
        raise OSError(_unsupported(), "FIFOs are not portable", name)

    def hung_up(self, fd: int) -> bool:  # noqa: ARG002
        return False

    def nudge(self, fd: int) -> None:
        pass

    def is_unread(self, fd: int) -> bool:  # noqa: ARG002
        return True

    def drain(self, fd: int) -> bool:  # noqa: ARG002
        return False

    def replace(self, existing: str, path: str) -> None:
        os.replace(existing, path)

    def rename(self, name: str, new: str, *, dir_fd: int) -> None:
        os.rename(name, new, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    def link_unnamed(self, fd: int, path: str) -> None:  # noqa: ARG002
        raise OSError(_unsupported(), "unnamed files are not portable", path)

    def link(self, existing: str, path: str) -> None:
        if "link" in self.without or not hasattr(os, "link"):
            raise OSError(_unsupported(), "hard links are not available", path)
        os.link(existing, path, **_AS_IT_IS)

    def read(self, fd: int, size: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(fd, size, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        return os.read(fd, size)

    def write(self, fd: int, data: bytes, offset: int) -> int:
        if hasattr(os, "pwrite"):
            return os.pwrite(fd, data, offset)
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, data)

    def chmod(self, fd: int, mode: int) -> None:
        if hasattr(os, "fchmod"):
            os.fchmod(fd, mode)

    def set_modified(self, fd: int, nanoseconds: int) -> None:
        os.utime(fd, ns=(nanoseconds, nanoseconds))

    def sync_directory(self, directory: str) -> None:
        try:
            fd = self._open(directory, os.O_RDONLY | NONBLOCK)
        except PermissionError:
            return  # Windows opens no directories; the file itself is on disk
        try:
            self.sync(fd)
        finally:
            self.close(fd)

    def open_path(self, path: str, flags: int, *, dir_fd: int | None = None) -> int:
        return self._open(path, flags, dir_fd=dir_fd)

    def make_directories(self, directory: str) -> None:
        if {os.open, os.mkdir} <= os.supports_dir_fd:
            with self.operations.exclusive():
                make_directories(self, directory)
        else:
            os.makedirs(directory, exist_ok=True)

    def list_directory(self, directory: str | int) -> list[str]:
        with self.operations.exclusive():  # it opens a descriptor of its own
            return os.listdir(directory)

    def scan(self, directory: str, kept: Callable[[os.DirEntry[str]], T | None]) -> list[T]:
        with self.operations.exclusive(), os.scandir(directory) as entries:
            return [one for entry in entries if (one := kept(entry)) is not None]

    def way_to(self, fd: int) -> str | None:  # noqa: ARG002
        return None  # nothing portable leads there

    def open_vanishing(self, path: str) -> int | None:  # noqa: ARG002
        return None

    def make_directory(self, path: str, mode: int) -> None:
        os.mkdir(path, mode)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def btime(self, path: str) -> str | None:
        try:
            found = os.lstat(path)
        except OSError:
            return None
        birth = getattr(found, "st_birthtime_ns", None) or getattr(found, "st_birthtime", "")  # Windows; macOS
        return f"{found.st_ino} {birth}"

    def open_limit(self) -> int | None:
        # Not the module `resource`: when this is asked, no descriptor may be left to import one with.
        limit = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else -1
        return limit if limit >= 0 else None

    # -- the guard -----------------------------------------------------------------------------------------------------

    def guard(self, fd: int, *, shared: bool = False) -> bool | None:  # noqa: ARG002
        return None

    def guarded(self, fd: int) -> bool | None:  # noqa: ARG002
        return None

    def is_written(self, fd: int) -> bool | None:  # noqa: ARG002
        return None

    def unguard(self, fd: int) -> None:  # noqa: ARG002
        return None

    def guard_content(self, fd: int) -> None:
        pass

    def guard_records(self, fd: int, start: int, length: int) -> bool:  # noqa: ARG002
        return False

    def would_guard(self, fd: int, *, shared: bool) -> bool | None:  # noqa: ARG002
        return None

    # -- holders and waiters -------------------------------------------------------------------------------------------

    def lock_owners(
        self,
        identity: tuple[int, int],  # noqa: ARG002
        records: tuple[int, int] | None = None,  # noqa: ARG002
    ) -> list[LockOwner]:
        return []

    def watchers(self, identity: tuple[int, int]) -> list[int]:  # noqa: ARG002
        return []

    def proc_locks(self, *, few: bool = False) -> ProcLocks:  # noqa: ARG002
        from .proc_locks import ProcLocks

        return ProcLocks(self.inspect)

    def proc_files(self) -> ProcFiles:
        from .proc_files import ProcFiles

        return ProcFiles(tables=False)

    def read_link(self, path: str) -> str:
        return os.readlink(path)

    # -- events --------------------------------------------------------------------------------------------------------

    def pipe(self, *, among_sockets: bool = False) -> tuple[int, int]:  # noqa: ARG002
        if not hasattr(os, "set_blocking") or os.name != "posix":  # on Windows, `select` takes nothing but sockets
            raise OSError(_unsupported(), "pipes cannot be waited for")
        with self._forking:
            ends = os.pipe()
            mine = (self.adopt(ends[0]), self.adopt(ends[1]))
        for fd in mine:
            os.set_blocking(fd, False)
        return mine

    def watch(self, path: str, *, readers: bool = False) -> Watch | None:  # noqa: ARG002
        return None

    def watch_set(self) -> WatchSet | None:
        return None

    def directory_log(self, directory: str) -> DirectoryLog | None:  # noqa: ARG002
        return None

    def listed(self, directory: str, seconds: float) -> None:
        pass

    def folder_watch(self) -> FolderWatch | None:
        """Events of whole directories, on an instance of its own; None where there are no events, or no instance is
        left."""
        return None

    def watch_process(self, pid: int, *, inherited: bool = False) -> int | None:  # noqa: ARG002
        return None

    def may_block(self, path: str) -> bool:  # noqa: ARG002
        return False  # nothing portable tells

    def server_at(self, path: str) -> str:  # noqa: ARG002
        return ""

    def is_away(self, path: str, error: OSError) -> bool:  # noqa: ARG002
        return False

    def reconnects(self, path: str) -> bool:  # noqa: ARG002
        return True

    def storage(self, path: str, device: int | None = None) -> Storage:  # noqa: ARG002
        return Storage("", events=False, text="of a type that cannot be known")

    def is_read_only(self, path: str) -> bool:
        if not hasattr(os, "statvfs"):
            return False
        try:
            return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
        except OSError:
            return False

    def poll_limit(self, path: str) -> float:
        return 0.05 if self.storage(path).shared else 0.025

    def events_reach(self, path: str) -> bool:
        return self.storage(path).events


def presence_by_signal(pid: int) -> Presence:
    if os.name != "posix":
        return Presence.UNKNOWN  # on Windows, signal 0 is Ctrl-C
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return Presence.GONE
    except (OSError, OverflowError):
        pass  # another process's
    return Presence.RUNNING


def _host() -> str:
    if hasattr(os, "uname"):
        name = os.uname().nodename
    else:
        import _socket  # not `platform`, which asks the whole system for its version

        name = _socket.gethostname()
    # The host name is the last word of a marker, so a blank in it shifts nothing; a control character would.
    return "".join(c if c.isprintable() else "?" for c in name).strip() or "-"


def _unsupported() -> int:
    import errno

    return errno.EOPNOTSUPP
