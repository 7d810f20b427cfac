"""The operating system as an engine sees it: one method is one step, so that a simulation can own every step.

An engine touches the world only through such an object. Errors are the operating system's own (`OSError`), unchanged.
Its descriptors never cross `exec`, and a forked child closes its copies.
"""

from __future__ import annotations

from ..model import Identity, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable
    from typing import Any, Protocol, TypeVar

    from .operations import Operations
    from .proc_files import ProcFiles
    from .proc_locks import ProcLocks
    from .values import LockOwner, Process, Storage

    T = TypeVar("T")
else:
    Protocol = object


class Stat(Protocol):
    """The part of `os.stat_result` that the engine reads."""

    @property
    def st_mode(self) -> int: ...
    @property
    def st_dev(self) -> int: ...
    @property
    def st_ino(self) -> int: ...
    @property
    def st_nlink(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_uid(self) -> int: ...
    @property
    def st_gid(self) -> int: ...
    @property
    def st_mtime(self) -> float: ...
    @property
    def st_mtime_ns(self) -> int: ...


class Watch(Protocol):
    """Tells when a lock file is closed, removed or replaced. Events may be late or lost; never rely on them alone."""

    def fds(self) -> tuple[int, ...]:
        """Descriptors to wait on until one is readable; ask again before each wait. Empty: there are none."""

    def woken(self, *, over: bool = True) -> bool:
        """Take note that a wait has ended, for whatever reason. False: nothing has happened, wait again.

        `over`: the caller will not wait again at once, whatever the answer.
        """

    def take(self) -> int:
        """Events since the last call (`CHANGED`, `CLOSED`), without waiting."""

    def close(self) -> None:
        """End the watch. Idempotent."""


class WatchSet(Protocol):
    """A wait for many lock files at the price of one, for a process that keeps thousands of holds."""

    def add(self, path: str) -> int:
        """Watch this file too; returns its key. OSError if there is no file, or no watch is left."""

    def discard(self, key: int) -> None:
        """Stop watching a file. Idempotent."""

    def discard_all_but(self, keys: Container[int]) -> None:
        """Stop watching all files but these, including any whose `add` was interrupted before it returned the key."""

    def fds(self) -> tuple[int, ...]:
        """As `Watch.fds`."""

    def woken(self) -> bool:
        """As `Watch.woken`."""

    def changed(self) -> set[int]:
        """Keys of the files with events since the last call, without waiting."""

    def close(self) -> None:
        """End all watches. Idempotent."""


class DirectoryLog(Protocol):
    """New names in a directory, for a process that publishes there so often that listing it each time costs more."""

    names: set[str]
    """Temporary files (`*.tmp`) that may still be there."""

    def expect(self) -> None:
        """Take note that a file of ours is about to appear."""

    def saw(self, name: str) -> bool:
        """Whether it has certainly appeared, and every temporary file that came before it is among `names`."""

    def start(self, names: Iterable[str]) -> None:
        """Begin with these names: the directory has just been listed, after `saw` was asked."""


class Environment(Protocol):
    """A process's view of its operating system. `holds` and `generation` belong to that process."""

    guards: bool
    """Whether files can be kernel-locked here at all; a single filesystem may still refuse."""
    fifos: bool
    """Whether the end of a FIFO's reader wakes its writers here."""
    locks_directories: bool
    """Whether a directory can be a lock here: opened, guarded, and given a time by its descriptor."""
    lingering: bool
    """Whether a removed file that is open somewhere stays in the way, and nothing tells when a descriptor is closed.
    Then a waiter keeps none, and waits for the process of the holder."""
    asks_first: bool
    """Whether a child process first asks a server that might not let this process end (apart.py, AP8)."""
    raises_open_limit: str
    """The means by which a user raises `open_limit`; empty where no user can."""
    knows_mounts: bool
    """Whether `storage` costs so little that every acquisition may ask."""
    generation: int
    """Changes in a forked child, which owns nothing of what its parent held."""
    holds: dict[tuple[object, ...], Any]
    """The holds of this process, by (st_dev, st_ino) of their lock files, and descriptor where several are possible;
    those of other engines by a key of the engine's own."""
    swept: dict[str, float]
    """When to look next for leftovers of dead processes, by directory."""
    local_queues: dict[str, Any]
    """The waiters of this process, by queue."""
    operations: Operations
    """Calls of this process that have begun and not finished."""
    passed: dict[str, float]
    """The tickets of idle waiters that this process ignores, and until when (queue.py, Q6)."""

    # who and when
    @property
    def clock_shift(self) -> float:
        """Seconds by which `monotonic()` is ahead of the clock that all processes share: a time namespace shifts it."""

    def identity(self, pid: int | None = None) -> Identity: ...
    def inspect(self, pid: int) -> Process: ...
    def command(self, pid: int) -> str | None: ...
    def time(self) -> float: ...
    def monotonic(self) -> float: ...
    def uptime(self) -> float:
        """Seconds by a clock that also runs while the machine sleeps."""

    def token(self) -> str: ...

    # files
    def open_unnamed(self, directory: str, mode: int) -> int: ...
    def open_directory(self, path: str) -> int:
        """Open a directory and nothing else; a link to one is NotADirectoryError."""

    def open_path(self, path: str, flags: int, *, dir_fd: int | None = None) -> int:
        """Open a path that is only looked at, or is a step on the way to another."""

    def open_new_directory(self, path: str, mode: int) -> int:
        """Make a directory and open it, in one step. If it cannot be opened, it is removed again; FileExistsError if
        another process has removed it first."""

    # `dir_fd`: what `path` is relative to, for a name in a directory that others may move (queue.py, Q8).
    def open_new(self, path: str, mode: int, *, dir_fd: int | None = None) -> int: ...
    def open_existing(self, path: str, *, write: bool, dir_fd: int | None = None) -> int: ...
    def open_vanishing(self, path: str) -> int | None:
        """A new file that the system removes when it is closed or its process ends; None where the system has no such
        files.

        FileExistsError if the name is taken.
        """

    def link_unnamed(self, fd: int, path: str) -> None: ...
    def link(self, existing: str, path: str) -> None: ...
    def unlink(self, path: str, *, dir_fd: int | None = None) -> None: ...
    def stat(self, path: str, *, dir_fd: int | None = None) -> Stat: ...
    def fstat(self, fd: int) -> Stat: ...
    def read(self, fd: int, size: int) -> bytes: ...
    def write(self, fd: int, data: bytes, offset: int) -> int: ...
    def truncate(self, fd: int, size: int) -> None: ...
    def chmod(self, fd: int, mode: int) -> None: ...
    def give(self, fd: int, *, user: int = -1, group: int = -1) -> None:
        """Give a file of ours to another user, or group; -1: unchanged. PermissionError if that is not allowed."""

    def set_modified(self, fd: int, nanoseconds: int) -> None:
        """Set the time of the last change, since the epoch, of the file or directory of this descriptor."""

    def sync(self, fd: int) -> None: ...
    def sync_directory(self, directory: str) -> None: ...
    def make_directories(self, directory: str) -> None:
        """Make a directory, and all missing ones above it. No link is followed below the part of the path that
        exists."""

    def list_directory(self, directory: str | int) -> list[str]: ...
    def exists(self, path: str) -> bool: ...
    def make_directory(self, path: str, mode: int) -> None: ...
    def remove_directory(self, path: str) -> None: ...
    def close(self, fd: int) -> None:
        """Close a descriptor of ours. Does nothing if it is closed already, as all are in a forked child."""

    def is_open(self, fd: int) -> bool:
        """Whether this process has not closed it yet."""

    def is_lasting(self, fd: int) -> bool:
        """Whether it belongs to this process, whichever operation opened it."""

    def has_created(self, fd: int) -> bool:
        """Whether the file did not exist before it was opened (`open_new`)."""

    def undo_by(self, fd: int, undo: Callable[[int], object]) -> None:
        """Set what undoes the next step by this descriptor, and closes it (operations.py, J1)."""

    def disown(self, fd: int) -> None:
        """Forget a descriptor that was closed elsewhere: the number may be another file's."""

    def open_limit(self) -> int | None:
        """The number of descriptors that this process may have; None if unknown."""

    def keep(self, fd: int) -> None:
        """Keep it open when the operation that opened it is undone."""

    # FIFOs, in an open directory (queue.py, Q2)
    def make_fifo(self, name: str, mode: int, *, dir_fd: int) -> None: ...
    def open_fifo(self, name: str, *, write: bool, dir_fd: int) -> int:
        """Open a FIFO as its reader, or as a writer; neither waits. A writer gets ENXIO if the FIFO has no reader,
        EINVAL if it is no FIFO or has another name too. A reader gets FileNotFoundError if the FIFO has another name
        too, or this one no longer.

        A reader is also a writer, so that it does not notice when others come and go.
        """

    def replace(self, existing: str, path: str) -> None:
        """Rename a file to a path, in the place of the file that is there now."""

    def rename(self, name: str, new: str, *, dir_fd: int) -> None: ...
    def hung_up(self, fd: int) -> bool:
        """Whether the FIFO that this descriptor writes to has no reader any more."""

    def nudge(self, fd: int) -> None:
        """Write a byte to a FIFO, unless it is full."""

    def is_unread(self, fd: int) -> bool:
        """Whether bytes are left in the FIFO that this descriptor writes to. True if unknown."""

    def drain(self, fd: int) -> bool:
        """Read all that is in a FIFO of ours; returns whether there was anything."""

    # the guard
    def guard(self, fd: int, *, shared: bool = False) -> bool | None:
        """Take the guard without waiting: True; False if another process has it; None where there are no guards.

        Exclusive, or (`shared`) together with others that have it shared.
        """

    def guarded(self, fd: int) -> bool | None:
        """Whether another process has the guard, by a shared probe that leaves nothing; None: unknown."""

    def is_written(self, fd: int) -> bool | None:
        """Whether any process has this file open for writing; the descriptor itself can only read. None: unknown, as
        only the file's owner and root may ask."""

    def unguard(self, fd: int) -> None:
        """Drop the guard for every copy of the descriptor, including those of children."""

    def guard_content(self, fd: int) -> None:
        """Make the guard of this descriptor, from now on, the lock that programs without guards take on a file."""

    def guard_records(self, fd: int, start: int, length: int) -> bool:
        """Make the guard of this descriptor, from now on, a record lock of its open file description, on `length` bytes
        of the file (0: to its end). False where there are no such locks."""

    def would_guard(self, fd: int, *, shared: bool) -> bool | None:
        """Whether a record lock would be granted, without taking it; None where that cannot be asked."""

    # holders and waiters, for display only: no decision may rest on them, as they are outdated when read
    def lock_owners(self, identity: tuple[int, int], records: tuple[int, int] | None = None) -> list[LockOwner]:
        """The holders and the blocked waiters of kernel locks (`flock`, by any program) on a file (`st_dev`, `st_ino`).

        `records`: of record locks (`fcntl`, of either kind) that have a byte in common with this start and length.

        Never raises and never hangs. Looks through the process table: milliseconds, not microseconds. Empty where the
        system has no such tables. Processes that this one may not look at may be missing. A probe of the guard at this
        very moment shows as a shared owner.
        """

    def watchers(self, identity: tuple[int, int]) -> list[int]:
        """The processes, including this one, that watch the file (`st_dev`, `st_ino`) for events as a waiting `Lock`
        does.

        Costs and limits are those of `lock_owners`. Waits that poll, and waits of other users or containers, do not
        show; nor do waiters that queue behind another: they poll its ticket.
        """

    # events
    def pipe(self, *, among_sockets: bool = False) -> tuple[int, int]:
        """Two descriptors that never block: sending (sockets.py) to the second makes the first readable.

        `among_sockets`: they are waited for together with sockets only. OSError (EOPNOTSUPP) where that is required,
        but not the case.
        """

    def watch(self, path: str, *, readers: bool = False) -> Watch | None:
        """Watch the file that the path names now; None where that is impossible. FileNotFoundError if it is gone.

        `readers`: also tell when a read-only descriptor is closed.
        """

    def watching(self) -> Any:
        """The mutex of all watches, and of their users."""

    def watch_set(self) -> WatchSet | None: ...
    def directory_log(self, directory: str) -> DirectoryLog | None:
        """The log of this directory; None if it has none."""

    def listed(self, directory: str, seconds: float) -> None:
        """Take note that listing the directory took so long. Once the sum exceeds the cost of a log, there is one."""

    def watch_process(self, pid: int, *, inherited: bool = False) -> int | None:
        """A descriptor that is readable once the process has ended; None if there is none.

        `inherited`: it must work in a forked child as well.
        """

    def may_block(self, path: str) -> bool:
        """Whether a step on a file here may take long: on a network or FUSE filesystem, whose server may be slow.

        The server is not asked, so this cannot hang. Remembered for a while.
        """

    def server_at(self, path: str) -> str:
        """The server of the files here, for people; empty if unknown. It is not asked, either."""

    def is_away(self, path: str, error: OSError) -> bool:
        """Whether this error of a step here says that the server is away, and that the step can succeed once it is
        back. There is no such error where steps wait for the server. The server is not asked."""

    def reconnects(self, path: str) -> bool:
        """Whether steps here succeed again when a server that was away is back; False: only a new mount helps."""

    def storage(self, path: str, device: int | None = None) -> Storage:
        """The meaning for locks of the filesystem that a file is on, symbolic links followed. Remembered for a while.

        `device`: the file's `st_dev`, from a caller that knows it; then no call is made if the answer is remembered.
        """

    def is_read_only(self, path: str) -> bool:
        """Whether the system says that no process can write here. Not remembered: it may be remounted."""

    def poll_limit(self, path: str) -> float:
        """The longest pause between polls of a file here, in seconds, where no events arrive."""

    def events_reach(self, path: str) -> bool:
        """Whether every change of a file here makes an event, including changes by another machine or a server."""


class Entry(Protocol):
    """The part of `os.DirEntry` that a walk reads: what a directory itself says of an entry."""

    @property
    def name(self) -> str: ...
    def inode(self) -> int: ...
    def is_dir(self, *, follow_symlinks: bool = True) -> bool: ...
    def is_file(self, *, follow_symlinks: bool = True) -> bool: ...


class Surroundings(Environment, Protocol):
    """An environment for the operator's commands: it can read the kernel's tables, and list large directories."""

    def proc_locks(self, *, few: bool = False) -> ProcLocks:
        """The tables as they are now; `few`: they will be asked about few files."""

    def proc_files(self) -> ProcFiles:
        """The open files and working directories of processes now."""

    def program(self, pid: int) -> tuple[str, list[str]] | None:
        """The name of a process's program, and its command line, word by word; None if unknown."""

    def read_link(self, path: str) -> str:
        """The target of a symbolic link, which is not followed."""

    def scan(self, directory: str, kept: Callable[[Entry], T | None]) -> list[T]:
        """The results of `kept` for the entries of a directory, except None; in no order."""

    def way_to(self, fd: int) -> str | None:
        """A path that leads to the directory of this descriptor, wherever it is moved; None where there is none."""

    def btime(self, path: str) -> str | None:
        """Number and birth of the file at the path, as far as they are kept; None: there is no file. They tell a file
        from earlier ones with the same path and number."""


class Abilities(Value):
    """Abilities of a directory, found by trying. None: it cannot be tried there.

    `storage`: what its mount says. `guard_by_names`: whether a held guard is seen through another name of the file.
    `guard_by_mounts`: other mounts of the directory through which it is not seen. `events`: whether every change makes
    an event. `ordered`: whether waiters of several processes have a queue.
    """

    storage: Storage
    mode: int
    uid: int
    exclusive: bool
    unnamed: bool
    link_proc: bool | None
    link_empty: bool | None
    link: bool
    guard: bool | None
    guard_by_names: bool | None
    guard_by_mounts: tuple[str, ...]
    events: bool
    sync: bool
    bits: bool
    ordered: bool


class Limits(Value):
    """Resources that may run out: in use, at most, or free. None: there is no limit, or it is unknown."""

    instances: int
    most_instances: int | None
    watches: int
    most_watches: int | None
    descriptors: int | None
    most_descriptors: int | None
    free_bytes: int
    free_files: int | None
