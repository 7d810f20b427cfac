"""What a survey finds, and what it needs of the system (survey.py)."""

from __future__ import annotations

from .._core.environment import Environment, LockOwner
from .._core.observe import Observation
from ..model import Status, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from typing import Any, Protocol, TypeVar

    from .._core.environment import Process, Stat

    T = TypeVar("T")

    class Entry(Protocol):
        """The part of `os.DirEntry` that a walk reads: what a directory itself says of something that is in it."""

        @property
        def name(self) -> str: ...
        def inode(self) -> int: ...
        def is_dir(self, *, follow_symlinks: bool = True) -> bool: ...
        def is_file(self, *, follow_symlinks: bool = True) -> bool: ...

    class Census(Protocol):
        """The kernel's tables, read once."""

        def is_artificial(self, device: int) -> bool:
            """Whether files on this device are the kernel's inventions, such as those in `/proc`."""

        def user(self, pid: int) -> int | None:
            """The user of a process, by number."""

        def is_locked(self, identity: tuple[int, int]) -> bool:
            """Whether some process has a kernel lock (`flock`) on this file."""

        def locked_numbers(self, device: int) -> Container[int] | None:
            """The inode numbers of files that may be locked by the kernel, as directories on this device list them;
            None where these may list others. Empty: there are no such files."""

        def owners(self, identity: tuple[int, int]) -> list[LockOwner]:
            """As `Environment.lock_owners`."""

        def watchers(self, identity: tuple[int, int]) -> list[int]:
            """As `Environment.watchers`."""

        def heeds_readers(self, identity: tuple[int, int]) -> bool:
            """Whether somebody who waits for this file hears of a reader that closes it."""

    class Surroundings(Environment, Protocol):
        """An environment that can take a census, and list large directories."""

        def census(self) -> Census: ...
        def scan(self, directory: str, kept: Callable[[Entry], T | None]) -> list[T]:
            """What `kept` returns for each entry of a directory, but None; in no order."""

        def way_to(self, fd: int) -> str | None:
            """A path that leads to the directory of this descriptor, wherever it is moved; None where there is none."""


HELD, DEAD, STALE, ELSEWHERE, FREE = "held", "dead", "stale", "elsewhere", "free"
MALFORMED, EMPTY = "malformed", "empty"
UNREAD = "its holder is alive; what its lock file says is not read, as that would wake those who wait"
LEFT_EMPTY = "it is empty, as flock(1) leaves its files: by -p flock nobody holds it, by all others it counts as held"
CONDITIONS = (HELD, ELSEWHERE, MALFORMED, EMPTY, STALE, DEAD, FREE)


class Found(Value):
    """One lock file. Where its protocol cannot be told, `status.protocol` is empty.

    `condition` is one of CONDITIONS: held; dead (proven, so that the next contender gets it); stale by its protocol's
    rule; elsewhere (held, by all that can be known, on another host or in another container); malformed, which counts
    as held; empty: held by all protocols but `flock`, by which nobody holds it; free, of a `flock` file. `uid` is the
    user of the holder's process, or else of the file. `slot`: its number, if it is one of a semaphore for which
    somebody waits.
    """

    status: Status
    condition: str
    identity: tuple[int, int]
    uid: int | None = None
    slot: int | None = None


class Unseen(Value):
    """What could not be looked at, and why."""

    path: str
    error: OSError


class Seen(Observation):
    """One file that was seen, and whose it is."""

    __slots__ = ("uid",)

    def __init__(self, found: Stat, fd: int = -1) -> None:
        super().__init__(found, fd)
        self.uid = found.st_uid


class Once:
    """An environment that asks about each process once."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._processes: dict[int, Process] = {}
        self._commands: dict[int, str | None] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._env, name)
        self.__dict__[name] = value
        return value

    def inspect(self, pid: int) -> Process:
        found = self._processes.get(pid)
        if found is None:
            found = self._processes[pid] = self._env.inspect(pid)
        return found

    def command(self, pid: int) -> str | None:
        if pid not in self._commands:
            self._commands[pid] = self._env.command(pid)
        return self._commands[pid]


class Abilities(Value):
    """What can be done in a directory. None: that cannot be tried there.

    `guard_by_names` and `guard_by_mounts`: whether a held guard is seen through another name of the file, and where
    else the directory is mounted without it being seen. `events`: whether all changes are told of.
    """

    filesystem: str
    network: bool
    served: bool
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


class Limits(Value):
    """What may run out. None: there is no limit, or it cannot be known."""

    instances: int
    most_instances: int | None
    watches: int
    most_watches: int | None
    descriptors: int | None
    most_descriptors: int | None
    free_bytes: int
    free_files: int | None
