"""Waiting for the end of another program's lock.

KW1  The directory is watched before the lock is looked at: whatever ends it after that look makes an event. So links
     and directories that are locks are waited for as well, and nothing of the other program's is opened to wait for it.
KW2  Ends without an event are found by a clock: a lock of the kernel that is dropped while its file stays open, a rule
     that goes by age. The end of the process that is named wakes, too. Where no events arrive, that clock is all there
     is.
KW3  A lock has ended if nothing is at the path, or if it would keep its program out no longer. A change of hands is no
     end, nor is a look that the system refuses.
"""

from __future__ import annotations

from collections.abc import Callable

from ..._core.wait import Steps, Wait
from ..._platform.interface import Surroundings
from ...liveness import Liveness
from ...model import INFINITY
from ..found import Found

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..._platform.inotify import FolderWatch

_EVERY, _POLLED, _SOON = 1.0, 0.25, 0.05
"""Seconds between looks: with events, without, and at least."""
_NOTICE_AFTER = 1.0


def until_free(
    env: Surroundings,
    watch: FolderWatch | None,
    path: str,
    look: Callable[[], Found | None],
    timeout: float | None,
    notice: Callable[[Found], object] | None = None,
) -> Steps[Found | None]:
    """Wait for the end of a lock (KW3): None; or the last look at it, when `timeout` (seconds; None: for ever) is over.
    OSError if the first `look` fails. `notice` is called once, after a second, even if the time is over by then."""
    started = env.monotonic()
    deadline = INFINITY if timeout is None else started + timeout
    told = INFINITY if notice is None else started + _NOTICE_AFTER
    where, _, name = path.rpartition("/")
    reached = watch is not None and env.events_reach(path) and watch.add(where or "/")
    holder = _Holder(env)
    seen, earliest, due = None, started, started
    try:
        while True:
            now = env.monotonic()
            if _is_gone(env, path):
                return None
            if now >= due or seen is None:
                try:
                    seen = look()
                except (FileNotFoundError, NotADirectoryError):
                    return None
                except OSError:
                    if seen is None:
                        raise
                if seen is None or not seen.status.locked:
                    return None
                holder.watch(seen)
                earliest, due = now + _SOON, now + (_EVERY if reached else _POLLED)
            if notice is not None and now >= told:
                notice(seen)
                told = INFINITY
            if now >= deadline:
                return seen
            events = (watch.fd,) if watch is not None and reached else ()
            yield Wait((*events, *holder.fds), min(deadline, told, due))
            changed = watch is not None and any(one in ("", name) for _, one, _ in watch.take())
            if changed or holder.has_ended():
                due = min(due, earliest)
    finally:
        holder.close()


class _Holder:
    """The end of the process that a lock names, as a descriptor."""

    def __init__(self, env: Surroundings) -> None:
        self._env = env
        self._pid: int | None = None
        self.fds: tuple[int, ...] = ()

    def watch(self, seen: Found) -> None:
        holder = seen.status.holder if seen.status.liveness is Liveness.ALIVE else None
        pid = holder.pid if holder is not None else None
        if pid != self._pid:
            self.close()
            fd = self._env.watch_process(pid) if pid is not None else None
            self._pid, self.fds = pid, () if fd is None else (fd,)

    def has_ended(self) -> bool:
        """Whether that process has ended; True only once."""
        if self._pid is None or not self._env.inspect(self._pid).has_ended:
            return False
        self.close()
        return True

    def close(self) -> None:
        for fd in self.fds:
            self._env.close(fd)
        self._pid, self.fds = None, ()


def _is_gone(env: Surroundings, path: str) -> bool:
    try:
        env.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass  # a look has to say (KW3)
    return False
