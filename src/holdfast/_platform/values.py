"""Values that an environment gives to an engine. What an engine may ask of one: interface.py, for type checkers."""

from __future__ import annotations

from ..model import Value
from .fork import forking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar

    from ..model import Identity


class Presence(str):
    """What the process table says about a pid. Compared by identity; no `enum`, which takes 3 ms to load."""

    __slots__ = ()

    RUNNING: ClassVar[Presence]
    ZOMBIE: ClassVar[Presence]
    GONE: ClassVar[Presence]
    UNKNOWN: ClassVar[Presence]


Presence.RUNNING, Presence.ZOMBIE = Presence("running"), Presence("zombie")
Presence.GONE, Presence.UNKNOWN = Presence("gone"), Presence("unknown")


class Process(Value):
    """One look at the process table. `started` compares with `Identity.started`; `since` is in epoch seconds."""

    presence: Presence
    started: str = "-"
    since: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it is certain that no such process runs any more."""
        return self.presence in (Presence.GONE, Presence.ZOMBIE)


class LockOwner(Value):
    """Who has a kernel lock on a file, or is `waiting` for it within the kernel.

    `pid` is None for somebody who cannot be named from here: a process of another PID namespace, or one that inherited
    the lock from a process that has ended, and may not be looked at. One such entry may stand for several.
    """

    pid: int | None
    exclusive: bool
    waiting: bool = False


class Storage(Value):
    """What the filesystem of a directory, as it is mounted, means for locks (storage.py).

    `kind`: its type, empty if that cannot be known. `shared`: other machines may have it mounted. `guards`: whether
    they see a kernel lock (`flock`) that is held here; None: that cannot be known from here. `records`: the
    same of a record lock (`fcntl`). `exclusive`, `links`:
    False where two machines are known to be able to create the same name (O_EXCL), or where there are no hard links.
    `events`: whether every change of a file makes an event here. If not, a server or a process stands behind the
    filesystem, and a step may take long. `fresh`: False where a file that is opened is known not to show what another
    machine has written and its server has confirmed. `text`: what that means, in a sentence. `remedy`: what to do.
    """

    kind: str
    shared: bool = False
    guards: bool | None = True
    records: bool | None = True
    exclusive: bool = True
    links: bool = True
    events: bool = True
    fresh: bool = True
    text: str = "local"
    remedy: str = ""


# What a watch has seen since it was last asked: 0, or a sum of these. Plain numbers, because an `enum.Flag`
# takes as long as a system call.
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
