"""File-Based Semaphore, the Rust library, in Python: its names, its lock files, seconds instead of durations.

```python
from holdfast.sema import LockInfo, Semaphore

semaphore = Semaphore.with_defaults("/tmp/deploy.lock")
with semaphore.acquire_with_info(LockInfo.with_tag("deploy v1.2.3")):
    ...
```

Locks of `sema` and of the library on the same path exclude ours, and ours exclude them. A lock is stale by age alone,
as there; but a holder whose kernel lock is held is never robbed. Other differences, and the reasons: docs/sema.md.
Source: Protocol Specification 1.0, File-Based Semaphore.

A thin layer: a `Lock` does everything, with `protocol="sema"`, `stale="protocol"` and `durable=True`. The errors, the
record as a value and the meaning of the options are also those of `holdfast.semats`, whose lock files have the same
grammar: they differ in when a lock is stale, and in where the file is.
"""

from __future__ import annotations

import math
import os
from types import TracebackType

from ._core.options import Options, check_seconds
from ._platform import environment
from .engines.file.inspect import MAX_PID, glance, require_directory
from .errors import AcquireTimeout, InvalidPath, MalformedRecord, NotHeld, renamed
from .liveness import Liveness
from .lock import Hold, Lock, file_request, leave_to_others, look_at, require_unreleased
from .model import Record, Value
from .protocols import get
from .protocols.base import clean_tag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal, Self

    Stale = Literal["protocol", "safe"]


class AlreadyLocked(AcquireTimeout):
    """The lock is held, and the call does not wait."""

    @property
    def holder_pid(self) -> int | None:
        """The pid in the lock file; None if its record cannot be read."""
        return None if self.holder is None else self.holder.pid

    @property
    def locked_since(self) -> int | None:
        """When the lock was acquired, in whole seconds since the epoch; None if that is not known: the record cannot be
        read, or says only when it was refreshed."""
        since = None if self.holder is None else self.holder.since
        return None if since is None else int(since)


class Timeout(AcquireTimeout):
    """The lock was still held when the timeout ended; `holder` names the holder."""


class NotLocked(NotHeld):
    """There is no lock to release, or the guard has been released."""


class ParseError(MalformedRecord):
    """The text is no record, or the lock file has no readable one. Such a lock is held, never stale."""


class LockInfo(Value):
    """The content of a lock file: its holder.

    `timestamp` is in whole seconds since the epoch: when the lock was acquired, or last refreshed, as a long hold of
    holdfast is, because others judge by age. `tag` is None if there is none.
    """

    pid: int
    timestamp: int
    tag: str | None = None

    @classmethod
    def new(cls) -> Self:
        """The value for this process, now, without a tag."""
        env = environment()
        return cls(env.identity().pid, int(env.time()))

    @classmethod
    def with_tag(cls, tag: str) -> Self:
        """The value for this process, now, with a tag."""
        return cls.new().replaced(tag=tag)

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """Read the content of a lock file. ParseError, a ValueError, says what is wrong with it.

        Liberal: keys in any order, CRLF, blanks around `=`, unknown keys. Strict: both numbers are there, and whole.
        """
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
        try:
            return cls.of(get("sema").decode(data))
        except MalformedRecord as error:
            raise renamed(error, ParseError) from None

    @classmethod
    def of(cls, record: Record) -> Self:
        """The record in these words."""
        fields = record.fields
        return cls(fields["pid"], fields["timestamp"], fields["tag"])

    def serialize(self) -> str:
        """The content of a lock file with these values. ValueError for numbers that no record can have.

        The tag becomes one line: control characters turn into blanks, its ends are trimmed, and it is cut at 10 000
        characters.
        """
        tag = None if self.tag is None else clean_tag(self.tag)
        fields = {"pid": self.pid, "timestamp": self.timestamp, "tag": tag}
        return get("sema").encode(Record("sema", fields)).decode()

    def is_stale(self, timeout: float | None) -> bool:
        """Whether it is older than `timeout` whole seconds; None or 0: never. Does not look at the process."""
        limit = check_seconds("timeout", timeout, zero=True)
        record = Record("sema", {}, pid=self.pid, created=float(self.timestamp))
        return bool(limit) and get("sema").is_stale(record, Liveness.UNKNOWN, environment().time(), limit or math.inf)


def is_process_running(pid: int) -> bool:
    """Whether the process exists here, even another user's. False for a zombie, and for numbers below 1."""
    return 0 < pid <= MAX_PID and not environment().inspect(pid).has_ended


def options_of(protocol: str, stale_timeout: float | None, acquire_timeout: float | None, stale: Stale) -> Options:
    """The configuration as options of `Lock`."""
    limit = check_seconds("stale_timeout", stale_timeout, zero=True)
    if stale not in ("protocol", "safe"):
        raise ValueError(f"stale must be 'protocol' or 'safe', not {stale!r}")
    return {"protocol": protocol, "stale": stale, "stale_after": limit or math.inf, "timeout": acquire_timeout}


def make_lock(path: str | os.PathLike[str], options: Options, tag: str | None, retry_interval: float) -> Lock:
    """A lock with that tag. TypeError or ValueError for an interval that makes no sense."""
    every = check_seconds("retry_interval", retry_interval, zero=True)
    if every is None:
        raise TypeError("retry_interval is a number of seconds, not None")
    given: Options = {**options, "tag": tag}
    lock = Lock(path, **given)
    file_request(lock).look_every = every
    return lock


def info_at(lock: Lock) -> LockInfo | None:
    """The content of the lock file; None for a free lock. ParseError if its record cannot be read."""
    seen = look_at(file_request(lock), glance)
    if seen is None:
        return None
    if seen.record is None:
        raise ParseError(f"{lock.path} is locked, but {seen.problem}", path=lock.path, protocol=lock.protocol)
    return LockInfo.of(seen.record)


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
    """The rules by which a `Semaphore` judges and waits.

    - `stale_timeout`: age in seconds above which others' locks are taken over. None or 0: never.
    - `acquire_timeout`: how long `acquire` waits, in seconds. None: forever; 0: it tries once.
    - `retry_interval`: the longest time between two looks at a lock, in seconds, where its filesystem reports no
      changes. An upper bound: there, holdfast looks at least every 25 ms (50 ms on network filesystems); where changes
      are reported, it does not poll. Less than 1 ms counts as 1 ms.
    - `stale` (ours): `"protocol"`: by age alone, as the specification says. `"safe"`: at once if the holder is proven
      dead, otherwise not before it is both old and dead.
    """

    stale_timeout: float | None = 3600.0
    acquire_timeout: float | None = None
    retry_interval: float = 0.1
    stale: Stale = "protocol"


class SemaphoreGuard:
    """One acquisition. Leaving its `with` block releases it; so does dropping the last reference to it.

    A lock that was removed or replaced meanwhile is not touched: LockLost is raised, or, if the guard is merely
    dropped, printed by Python as an ignored exception. In a forked child a guard does nothing.
    """

    _hold: Hold | None = None

    @property
    def hold(self) -> Hold:
        """The engine's handle (ours): `lost`, `record`, `recovered_from`. It is released with the guard."""
        if self._hold is None:
            raise NotLocked("this guard was not made by acquiring a lock; use Semaphore.acquire or try_acquire")
        return self._hold

    def ensure_held(self) -> None:
        """Raise unless it holds the lock now (ours): LockLost if it was lost, NotLocked if released or a parent's."""
        try:
            self.hold.ensure_held()
        except NotHeld as error:
            raise renamed(error, NotLocked) from None

    def release(self) -> None:
        """Release the lock. A second call does nothing. LockLost if the lock file has been removed or replaced."""
        self.hold.release()

    def __enter__(self) -> Self:
        """NotLocked after a release and in a forked child: the body needs the lock."""
        try:
            require_unreleased(self.hold)
        except NotHeld as error:
            raise renamed(error, NotLocked) from None
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

    One object may be used by any number of threads, and it can be pickled. `path` is made absolute. Its directory must
    exist: InvalidPath, a ValueError, if it does not, or if the path names no file. TypeError or ValueError for a
    configuration that makes no sense.
    """

    def __init__(self, path: str | os.PathLike[str], config: SemaphoreConfig | None = None) -> None:
        self._config = config = SemaphoreConfig() if config is None else config
        self._options = options_of("sema", config.stale_timeout, config.acquire_timeout, config.stale)
        self._options["durable"] = True  # specification, "Acquiring a Lock", 2b
        self._lock = self._tagged(path, None)
        look_at(file_request(self._lock), require_directory)

    @classmethod
    def with_defaults(cls, path: str | os.PathLike[str]) -> Self:
        """A lock with `SemaphoreConfig()`: stale after an hour, waiting forever."""
        return cls(path)

    @property
    def path(self) -> str:
        """The absolute path of the lock file."""
        return self._lock.path

    @property
    def config(self) -> SemaphoreConfig:
        """The configuration that it was made with."""
        return self._config

    def try_acquire(self) -> SemaphoreGuard:
        """Acquire the lock now, or raise AlreadyLocked. A stale lock is taken over.

        This and the other ways to acquire raise ProtocolMismatch for a record of another protocol, InvalidPath if the
        path cannot be a lock file, and OSError as the system gives it.
        """
        return self._acquire(None, 0, AlreadyLocked)

    def try_acquire_with_info(self, info: LockInfo) -> SemaphoreGuard:
        """Like `try_acquire`, with the tag of `info`. Its pid and timestamp are not used: the record names this
        process, now."""
        return self._acquire(info.tag, 0, AlreadyLocked)

    def acquire(self) -> SemaphoreGuard:
        """Acquire the lock, waiting at most the `acquire_timeout` of the configuration; then raise Timeout.

        WouldDeadlock if this very thread holds it and the wait would never end.
        """
        return self._acquire(None, self._config.acquire_timeout)

    def acquire_with_info(self, info: LockInfo) -> SemaphoreGuard:
        """Like `acquire`, with the tag of `info`. The record gets the time of the acquisition, not that of `info`."""
        return self._acquire(info.tag, self._config.acquire_timeout)

    def acquire_timeout(self, seconds: float | None) -> SemaphoreGuard:
        """Like `acquire`, waiting at most `seconds`. 0: try once; None: forever."""
        return self._acquire(None, seconds)

    def is_locked(self) -> bool:
        """Whether the lock file exists, stale or not. InvalidPath or OSError if that cannot be known."""
        return look_at(file_request(self._lock), glance) is not None

    def lock_info(self) -> LockInfo | None:
        """The content of the lock file, or None for a free lock. ParseError if its record cannot be read; else as
        `is_locked`."""
        return info_at(self._lock)

    def force_release(self) -> None:
        """Remove the lock file, even another holder's. Does nothing if there is none.

        The holder is not stopped: a holdfast process finds its lock lost.
        """
        self._lock.break_lock()

    @staticmethod
    def is_process_running(pid: int) -> bool:
        """Whether the process exists: see the function of that name."""
        return is_process_running(pid)

    def _acquire(self, tag: str | None, timeout: float | None, error: type[AcquireTimeout] = Timeout) -> SemaphoreGuard:
        lock = self._lock if tag is None else self._tagged(self.path, tag)
        guard = SemaphoreGuard()
        try:
            guard._hold = lock.acquire(timeout)  # made before: an interruption finds the hold in it, and drops it
        except AcquireTimeout as refused:
            raise renamed(refused, error) from None
        leave_to_others(guard._hold)
        return guard

    def _tagged(self, path: str | os.PathLike[str], tag: str | None) -> Lock:
        return make_lock(path, self._options, tag, self._config.retry_interval)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self._config)

    def __repr__(self) -> str:
        return f"<holdfast.sema.Semaphore {self.path!r}>"
