"""One simulated process: the environment that the real engine runs on, unchanged. One method is one step, or two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._platform.interface import Presence
from ..._platform.interface import Process as Seen
from .events import SimWatch
from .files import FileProcess
from .kernel import EXCLUSIVE, SHARED, UNLOCKED

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..._platform.interface import DirectoryLog, LockOwner, WatchSet


class Process(FileProcess):
    """A process. `Environment` says what its methods are."""

    # -- the guard -----------------------------------------------------------------------------------------------------

    def _lock(self, fd: int, kind: int, op: str) -> bool:
        file = self.files[fd]
        if not file.inode.private:
            mark = file.inode.mark
            granted = file.kind != UNLOCKED or self.kernel.would_lock(file, kind)
            self.step(op, fd, mark.w if granted else mark.r)
        return self.kernel.lock(file, kind)

    def guard(self, fd: int, *, shared: bool = False) -> bool | None:
        if not self.mount.flock:
            return None
        return self._lock(fd, SHARED if shared else EXCLUSIVE, "guard_shared" if shared else "guard")

    def guarded(self, fd: int) -> bool | None:
        if not self.mount.flock:
            return None
        if not self._lock(fd, SHARED, "probe"):
            return True
        self.unguard(fd)
        return False

    def unguard(self, fd: int) -> None:
        file = self.files[fd]
        if file.kind != UNLOCKED:
            if not file.inode.private:
                self.step("unguard", fd, file.inode.mark.w)
            self.kernel.unlock(file)

    # -- other processes -----------------------------------------------------------------------------------------------

    def inspect(self, pid: int) -> Seen:
        found = self.kernel.processes.get((self.namespace, pid))
        self.step("inspect", pid, self.kernel.pid_mark(self.namespace, pid).r)
        found = self.kernel.processes.get((self.namespace, pid))
        return Seen(Presence.GONE) if found is None else Seen(Presence.RUNNING, found.started, found.born)

    def watch_process(self, pid: int) -> int | None:
        self.step("watch_process", pid, self.kernel.pid_mark(self.namespace, pid).r)
        found = self.kernel.processes.get((self.namespace, pid))
        if found is None:
            return None
        self._next_event_fd += 1
        self.pidfds[self._next_event_fd] = found
        return self._next_event_fd

    def lock_owners(self, identity: tuple[int, int]) -> list[LockOwner]:  # noqa: ARG002
        return []

    def watchers(self, identity: tuple[int, int], masks: Collection[int] | None = None) -> list[int]:  # noqa: ARG002
        return []

    # -- events --------------------------------------------------------------------------------------------------------

    def pipe(self) -> tuple[int, int]:
        raise NotImplementedError("keepers are not simulated")

    def watch(self, path: str, *, readers: bool = False) -> SimWatch | None:
        kernel = self.kernel
        if not self.mount.events:
            return None
        inode = kernel.names.get(path)
        self.step("watch", path, kernel.name_mark(path).r if inode is None else self._seen(path, inode.mark.r))
        inode = kernel.lookup(path)
        self._next_event_fd += 1
        watch = SimWatch(self, inode, self._next_event_fd, readers=readers)
        self.watches[watch.fd] = watch
        return watch

    def watch_set(self) -> WatchSet | None:
        return None

    def directory_log(self, directory: str) -> DirectoryLog | None:  # noqa: ARG002
        return None

    def listed(self, directory: str, seconds: float) -> None:
        pass

    def may_block(self, path: str) -> bool:  # noqa: ARG002
        return False

    def poll_limit(self, path: str) -> float:  # noqa: ARG002
        return 0.025

    def events_reach(self, path: str) -> bool:  # noqa: ARG002
        return self.mount.events

    # -- inheritance ---------------------------------------------------------------------------------------------------

    def inherit(self, parent: Process) -> None:
        """Have copies of all descriptors of files of another process, as a command that it has started."""
        for fd, file in parent.files.items():
            file.refs += 1
            self.files[fd] = file
            self._next_fd = max(self._next_fd, fd + 1)


TRACED = (
    *(
        "inspect",
        "watch_process",
        "open_unnamed",
        "open_new",
        "open_existing",
        "open_directory",
        "link_unnamed",
        "link",
        "unlink",
    ),
    *("rename", "open_over", "stat", "fstat", "read", "write", "truncate", "chmod", "list_directory", "exists"),
    *("make_directory", "remove_directory", "close", "guard", "guarded", "unguard", "watch"),
)


def traced(process: Process, tell: Any) -> None:
    """Tell of each step that a process takes, and of its result."""
    for name in TRACED:
        setattr(process, name, _telling(process, name, getattr(process, name), tell))


def _telling(process: Process, name: str, call: Any, tell: Any) -> Any:
    def told(*args: Any, **named: Any) -> Any:
        if process.dead:
            return call(*args, **named)
        who = process.actor
        try:
            result = call(*args, **named)
        except OSError as error:
            tell(who, name, args, named, error)
            raise
        tell(who, name, args, named, result)
        return result

    return told
