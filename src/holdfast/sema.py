"""File-Based Semaphore, the Rust library, in Python: its names, its lock files, seconds instead of durations.

```python
from holdfast.sema import LockInfo, Semaphore

semaphore = Semaphore.with_defaults("/tmp/deploy.lock")
with semaphore.acquire_with_info(LockInfo.with_tag("deploy v1.2.3")):
    ...
```

Whoever uses `sema` or the library on the same path is kept out, and keeps us out. A lock is stale by age alone, as
there; but a holder whose kernel lock is held is never robbed. What else is different, and why: docs/sema.md. Source:
Protocol Specification 1.0, File-Based Semaphore.

Thin: everything is done by a `Lock` with `protocol="sema"`, `stale="protocol"` and `durable=True`.
"""

from __future__ import annotations

from ._core.observe import glance, require_directory
from .errors import AcquireTimeout, InvalidPath, NotHeld, renamed
from .model import Value
from .sema_terms import (
    AlreadyLocked,
    LockInfo,
    NotLocked,
    ParseError,
    Timeout,
    info_at,
    is_process_running,
    make_lock,
    options_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from types import TracebackType
    from typing import Any, Self

    from .hold import Hold
    from .lock import Lock
    from .sema_terms import Stale

__all__ = [
    "AlreadyLocked",
    "InvalidPath",
    "LockInfo",
    "NotLocked",
    "ParseError",
    "Semaphore",
    "SemaphoreConfig",
    "SemaphoreGuard",
    "Timeout",
    "is_process_running",
]


class SemaphoreConfig(Value):
    """How a `Semaphore` judges and waits.

    - `stale_timeout`: age in seconds above which others' locks are taken over. None or 0: never.
    - `acquire_timeout`: how long `acquire` waits, in seconds. None: for ever; 0: it tries once.
    - `retry_interval`: the longest time between two looks at a lock, in seconds, where its filesystem tells of no
      changes. An upper bound: there, holdfast looks every 25 ms at least (100 ms on network filesystems), and where
      changes are told it does not look again and again at all. Less than 1 ms counts as that.
    - `stale` (ours): `"protocol"`: by age alone, as the specification says. `"safe"`: at once where the holder is
      proven dead, and else not before it is both old and dead.
    """

    stale_timeout: float | None = 3600.0
    acquire_timeout: float | None = None
    retry_interval: float = 0.1
    stale: Stale = "protocol"


class SemaphoreGuard:
    """One acquisition. Leaving its `with` block releases it; so does dropping the last reference to it.

    A lock that was removed or replaced meanwhile is not touched: LockLost is raised, or printed as an ignored exception
    by Python where the guard is merely dropped. In a forked child a guard does nothing.
    """

    _hold: Hold | None = None

    @property
    def hold(self) -> Hold:
        """The engine's handle (ours): `lost`, `record`, `recovered_from`. It ends with the guard."""
        if self._hold is None:
            raise NotLocked("this guard was not made by acquiring a lock; use Semaphore.acquire or try_acquire")
        return self._hold

    def ensure_held(self) -> None:
        """Return if it holds the lock now (ours). LockLost if it was robbed, NotLocked if released or a parent's."""
        try:
            self.hold.ensure_held()
        except NotHeld as error:
            raise renamed(error, NotLocked) from None

    def release(self) -> None:
        """Give the lock up; the second time, it does nothing. LockLost if it had been removed or replaced."""
        self.hold.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.hold.__exit__(kind, error, traceback)

    def __del__(self) -> None:
        if self._hold is not None:
            self._hold.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return self.hold.__reduce__()  # TypeError: a copy that is dropped would release the lock

    def __repr__(self) -> str:
        return f"<holdfast.sema.SemaphoreGuard {self._hold!r}>"


class Semaphore:
    """A lock on a path, with one holder at a time.

    One object may be used by any number of threads, and it can be pickled. `path` is kept as an absolute one. Its
    directory must be there: InvalidPath, a ValueError, if it is not, or if the path names no file. TypeError or
    ValueError for a configuration that makes no sense.
    """

    def __init__(self, path: str | os.PathLike[str], config: SemaphoreConfig | None = None) -> None:
        self._config = config = SemaphoreConfig() if config is None else config
        self._options = options_of("sema", config.stale_timeout, config.acquire_timeout, config.stale)
        self._options["durable"] = True  # specification, "Acquiring a Lock", 2b
        self._lock = self._tagged(path, None)
        require_directory(self._lock._env, self._lock._request)

    @classmethod
    def with_defaults(cls, path: str | os.PathLike[str]) -> Self:
        """With `SemaphoreConfig()`: stale after an hour, waiting for ever."""
        return cls(path)

    @property
    def path(self) -> str:
        """The absolute path of the lock file."""
        return self._lock.path

    @property
    def config(self) -> SemaphoreConfig:
        """What it was made with."""
        return self._config

    def try_acquire(self) -> SemaphoreGuard:
        """Acquire the lock now, or raise AlreadyLocked. A stale lock is taken over.

        This and the other ways to acquire raise ProtocolMismatch for a record of another protocol, InvalidPath for what
        can be no lock file, and OSError as the system gives it.
        """
        return self._try(None)

    def try_acquire_with_info(self, info: LockInfo) -> SemaphoreGuard:
        """The same, with the tag of `info`. Its pid and timestamp are not used: the record names this process, now."""
        return self._try(info.tag)

    def acquire(self) -> SemaphoreGuard:
        """Acquire the lock, waiting for at most `acquire_timeout` seconds of the configuration; then Timeout is raised.

        WouldDeadlock if this very thread holds it and the wait would have no end.
        """
        return self._wait(None, self._config.acquire_timeout)

    def acquire_with_info(self, info: LockInfo) -> SemaphoreGuard:
        """The same, with the tag of `info`. The record is stamped when the lock is acquired, not when `info` was."""
        return self._wait(info.tag, self._config.acquire_timeout)

    def acquire_timeout(self, seconds: float | None) -> SemaphoreGuard:
        """The same, for at most `seconds`. 0: try once; None: for ever."""
        return self._wait(None, seconds)

    def is_locked(self) -> bool:
        """Whether the lock file is there, stale or not. InvalidPath or OSError where that cannot be known."""
        return glance(self._lock._env, self._lock._request) is not None

    def lock_info(self) -> LockInfo | None:
        """Who holds it, or None when nobody does. ParseError for a lock file whose record cannot be read; else as
        `is_locked`."""
        return info_at(self._lock)

    def force_release(self) -> None:
        """Remove the lock file, whoever holds it; nothing happens if there is none.

        The holder is not stopped: if it is holdfast's, it finds its lock lost.
        """
        self._lock.break_lock()

    @staticmethod
    def is_process_running(pid: int) -> bool:
        """As the function of that name."""
        return is_process_running(pid)

    def _try(self, tag: str | None) -> SemaphoreGuard:
        try:
            return self._acquire(tag, 0)
        except AcquireTimeout as error:
            raise renamed(error, AlreadyLocked) from None

    def _wait(self, tag: str | None, timeout: float | None) -> SemaphoreGuard:
        try:
            return self._acquire(tag, timeout)
        except AcquireTimeout as error:
            raise renamed(error, Timeout) from None

    def _acquire(self, tag: str | None, timeout: float | None) -> SemaphoreGuard:
        lock = self._lock if tag is None else self._tagged(self.path, tag)
        guard = SemaphoreGuard()
        guard._hold = lock.acquire(timeout)  # made before: an interruption finds the hold in it, and drops it
        guard._hold._leave_to_others()
        return guard

    def _tagged(self, path: str | os.PathLike[str], tag: str | None) -> Lock:
        return make_lock(path, self._options, tag, self._config.retry_interval)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self._config)

    def __repr__(self) -> str:
        return f"<holdfast.sema.Semaphore {self.path!r}>"
