"""What a simulated process is: its number, its descriptors, its clocks, its end; and how its steps are asked about.

Before each step that others can see, the scheduler is asked (`step`): it may let others go first, or never come back. A
step on what nobody else can see, as a file without a name, is not asked about: it commutes with everything.
"""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING, Any

from ..._platform.operations import Operations
from ...model import Identity
from .events import FIRST_EVENT_FD
from .footprint import Footprint, both
from .kernel import File, Inode, Kernel, Mount

if TYPE_CHECKING:
    from collections.abc import Callable

    from .actor import Actor
    from .events import SimWatch
    from .process import Process


class Crash(BaseException):
    """The process is gone: from here on, not one step more of it."""


class _Gone(dict[int, Any]):
    """The descriptors of a process that is gone."""

    def __getitem__(self, key: int) -> Any:
        raise Crash

    def pop(self, *_args: Any) -> Any:
        raise Crash

    def __setitem__(self, key: int, value: Any) -> None:
        raise Crash


class BaseProcess:
    """A process without a filesystem."""

    guards = True

    def __init__(
        self, kernel: Kernel, name: str, pid: int, *, namespace: str = "1", mount: Mount | None = None
    ) -> None:
        self.kernel = kernel
        self.name = name
        self.pid = pid
        self.namespace = namespace
        self.mount = mount or Mount()
        self.guards = self.mount.flock
        self.dead = False
        self.switch: Callable[[], object] = _nobody
        self.actor: Actor | None = None
        """Whose turn it is, of those in this process."""
        self.busy: Actor | None = None
        """Who is between two waits: tasks of one event loop do not interrupt each other there."""
        self.shared = False
        """Whether there are several."""
        self.mark = kernel.pid_mark(namespace, pid)
        self.slowest_event = 0.002
        self.unread = 0
        self.generation = 0
        self.clock_shift = 0.0
        self.holds: dict[tuple[object, ...], Any] = {}
        self.swept: dict[str, float] = {}
        self.lines: dict[str, Any] = {}
        self.turns: dict[str, float] = {}
        self.operations = Operations(_thread.RLock())  # none is begun: an actor that is interrupted is killed
        self.files: dict[int, File] = {}
        self.directories: dict[int, tuple[str, Inode]] = {}
        """Of the files, those that are directories: where each was opened."""
        self.watches: dict[int, SimWatch] = {}
        self.pidfds: dict[int, Process] = {}
        self.last_read = (-1, b"")
        """Of which inode, and what."""
        self._next_fd = 3
        self._next_event_fd = FIRST_EVENT_FD
        self._tokens = 0
        self.started = f"t{name}"
        self._identity = Identity(pid, kernel.boot, namespace, self.started, "host")
        self.born = kernel.time()
        kernel.processes[(namespace, pid)] = self  # type: ignore[assignment]

    def step(self, op: str, arg: object, footprint: Footprint) -> None:
        """Ask the scheduler; go on when it says so."""
        if self.dead:
            raise Crash
        actor = self.actor
        assert actor is not None
        actor.before, actor.op, actor.arg = actor.op, op, arg
        actor.footprint = both(footprint, self.mark.w) if self.shared else footprint
        self.switch()
        if self.dead:
            raise Crash

    def vanish(self) -> None:
        """Have nothing more, and take no step more."""
        self.dead = True
        self.files, self.watches, self.pidfds = _Gone(), _Gone(), _Gone()

    def end(self) -> None:
        """Die, or come to an end: everything is closed, in order, and the number is free again."""
        kernel = self.kernel
        for watch in self.watches.values():
            if watch in watch.inode.watches:
                watch.inode.watches.remove(watch)
        files = list(self.files.values())
        self.vanish()
        for file in files:
            kernel.close(file)
        if kernel.processes.get((self.namespace, self.pid)) is self:
            del kernel.processes[(self.namespace, self.pid)]

    def end_footprint(self) -> Footprint:
        """Of `end`."""
        touched = both(self.mark.w, both(self.kernel.critical.w, self.kernel.crashes.w))
        for file in self.files.values():
            if not file.inode.private:
                touched = both(touched, file.inode.mark.w)
        return touched

    def is_open(self, fd: int) -> bool:
        return fd in self.files

    def is_lasting(self, fd: int) -> bool:  # noqa: ARG002
        return False

    def has_created(self, fd: int) -> bool:  # noqa: ARG002
        return False

    def undo_by(self, fd: int, undo: object) -> None:
        pass

    def disown(self, fd: int) -> None:  # noqa: ARG002
        raise AssertionError("nobody closes the engine's descriptors here")

    # -- who and when --------------------------------------------------------------------------------------------------

    def identity(self, pid: int | None = None) -> Identity:
        if pid is None or pid == self.pid:
            return self._identity
        found = self.kernel.processes.get((self.namespace, pid))
        started = "-" if found is None else found.started
        return Identity(pid, self.kernel.boot, self.namespace, started, "host")

    def command(self, pid: int) -> str | None:  # noqa: ARG002
        return None

    def time(self) -> float:
        return self.kernel.now + self.kernel.wall

    def monotonic(self) -> float:
        return self.kernel.now

    def token(self) -> str:
        self._tokens += 1
        return f"{self.pid:08x}{self._tokens:08x}"


def _nobody() -> None:
    raise AssertionError("a step outside of any actor")
