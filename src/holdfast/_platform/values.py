"""Values that an environment gives to an engine. Its methods are in interface.py, for type checkers."""

from __future__ import annotations

import errno

from ..model import Identity, Value
from .fork import forking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar


class Presence(str):
    """The word of the process table about a pid. Compared by identity; no `enum`, which takes 3 ms to load."""

    __slots__ = ()

    RUNNING: ClassVar[Presence]
    ZOMBIE: ClassVar[Presence]
    GONE: ClassVar[Presence]
    UNKNOWN: ClassVar[Presence]


Presence.RUNNING, Presence.ZOMBIE = Presence("running"), Presence("zombie")
Presence.GONE, Presence.UNKNOWN = Presence("gone"), Presence("unknown")


class Process(Value):
    """A process by one look at the process table. `started` compares with `Identity.started`; `since`: epoch seconds;
    `stopped`: by a signal or a debugger, as far as is known."""

    presence: Presence
    started: str = "-"
    since: float | None = None
    stopped: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether it is certain that no such process runs any more."""
        return self.presence in (Presence.GONE, Presence.ZOMBIE)


class LockOwner(Value):
    """A process that has a kernel lock on a file, or is `waiting` for it within the kernel.

    `pid` is None for a process that cannot be named from here: of another PID namespace; or one that may not be looked
    at, and inherited the lock from a process that has ended. One such entry may stand for several.
    """

    pid: int | None
    exclusive: bool
    waiting: bool = False


LOCK_KINDS = ("flock", "fcntl", "ofd", "lease")
"""The kinds of locks in the kernel's tables."""


class FileLock(Value):
    """A lock in the kernel's tables, and one process that has it or waits for it.

    `kind`: flock, fcntl (by process), ofd (by open file description), lease. `file`: the superblock's device and the
    inode number. `pid` is None for a process that cannot be named from here. `span`: the first byte and the last; None:
    up to the end. `path`: as a holder has opened the file; None if unknown; `deleted`: it had that path.
    """

    kind: str
    file: tuple[int, int]
    exclusive: bool
    waiting: bool
    pid: int | None
    span: tuple[int, int | None] = (0, None)
    path: str | None = None
    deleted: bool = False


class Storage(Value):
    """The meaning of a directory's filesystem, as it is mounted, for locks (storage.py).

    `kind`: its type, empty if unknown. `shared`: other machines may have it mounted. `guards`: whether they see a
    kernel lock (`flock`) that is held here; None: unknown from here. `records`: whether they see a record lock
    (`fcntl`). `exclusive`: False where two machines are known to be able to create the same name (O_EXCL). `links`:
    False where there are no hard links. `events`: whether every change of a file makes an event here. If not, a server
    or a process stands behind the filesystem, and a step may take long. `fresh`: False where an opened file is known
    not to show what another machine has written and its server has confirmed. `lasting`: whether the server keeps the
    kernel locks of a machine that has died, for long or until it is back. `lock_files`: False where there can be no
    lock files, and `flock` alone works. `pins`: whether a name that another machine has removed is still there as long
    as the file is open here. `away`: the errors of a call whose server is away, where calls fail then instead of
    waiting for it. `reconnects`: False where that never ends, as the client does not reconnect: only a new mount helps.
    `text`: what that means, in a sentence. `remedy`: what to do.
    """

    kind: str
    shared: bool = False
    guards: bool | None = True
    records: bool | None = True
    exclusive: bool = True
    links: bool = True
    events: bool = True
    fresh: bool = True
    lasting: bool = False
    lock_files: bool = True
    pins: bool = False
    away: tuple[int, ...] = ()
    reconnects: bool = True
    text: str = "local"
    remedy: str = ""


LOST_SIGHT = (errno.ENOTCONN, getattr(errno, "EBADFD", errno.ENOTCONN))
"""The errors of a path, and of an open file, whose server the client has lost."""

ALWAYS_LOCAL = frozenset({
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "devtmpfs", "proc", "sysfs", "devpts", "cgroup",
    "cgroup2", "mqueue", "hugetlbfs", "debugfs", "tracefs", "securityfs", "configfs", "pstore", "efivarfs", "bpf",
    "binfmt_misc", "selinuxfs", "nsfs",
})  # fmt: skip
"""Types of filesystems that are local whatever they are mounted from: most machines have hardly any others."""
SMB = ("cifs", "smb3")
"""Filesystem types of SMB shares on Linux."""

# Events of a watch since it was last asked: 0, or a sum of these. Plain numbers, because an `enum.Flag` takes as long
# as a system call.
CHANGED = 1
CLOSED = 2

RECHECK = 10.0
"""Seconds between looks where events are expected (acquire.py, A2)."""

DYING = 0.0127
"""Seconds for which a guard may still be held although the close event of a dying holder has come (watched.py, WF2)."""


def temporary_name(identity: Identity, token: str) -> str:
    """A hidden name that identifies its process, short enough beside any lock name."""
    return f"{temporary_prefix(identity)}{identity.pid}-{token}.tmp"


def temporary_prefix(identity: Identity) -> str:
    with forking:
        import zlib

    place = zlib.crc32(f"{identity.boot} {identity.pid_namespace}".encode())
    return f".holdfast-{place:08x}-"
