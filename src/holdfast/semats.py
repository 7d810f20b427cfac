"""File-Based Semaphore (TS) in Python: its names, its lock files, seconds instead of milliseconds.

```python
from holdfast.semats import Semaphore

semaphore = Semaphore("/tmp/build.lock", acquire_timeout=30)
info = semaphore.acquire(tag="npm build")
try:
    ...
finally:
    semaphore.release()
```

or, to the same effect, `with Semaphore("/tmp/build.lock", tag="npm build"): ...`. Where the original returns a result
with `ok`, a value or an error, these functions return the value or raise the error.

A lock is stale if it is old *and* its process is dead. Differences from the original, and the reasons: docs/semats.md.
Source: Protocol Specification, File-Based Semaphore (TS).

A thin layer: a `Lock` does everything, with `protocol="semats"` and `stale="protocol"`.
"""

from __future__ import annotations

import os
from types import TracebackType

from ._platform import environment
from .engines.file.inspect import Assessment, Observation, assess, glance, require_directory
from .engines.file.interop import sweep_rivals
from .engines.file.policy import judge
from .engines.file.remove import remove_if, why_not_of
from .errors import AcquireTimeout, InvalidPath, LockLost, NotHeld, renamed
from .lock import UNSET, Hold, Lock, can_be_released, file_request, look_at, make_again, perform_at, release_own
from .model import Value
from .protocols.base import MAX_TAG_CHARACTERS, clean_tag
from .sema import (
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
    from typing import Any, Self

    from .sema import Stale


__all__ = [
    "AlreadyLocked",
    "InvalidPath",
    "LockInfo",
    "NotLocked",
    "ParseError",
    "PermissionDenied",
    "Semaphore",
    "SemaphoreStatus",
    "Timeout",
    "create_lock_info",
    "is_lock_stale",
    "is_process_running",
    "parse_lock_info",
    "serialize_lock_info",
]


class PermissionDenied(NotHeld):
    """The lock is another process's, or its record does not say whose. `force` releases it all the same."""

    holder_pid = AlreadyLocked.holder_pid


class SemaphoreStatus(Value):
    """One look at a lock. It may be outdated by now.

    `locked`: the lock file exists, stale or not. `info`: its content; None if there is none, or it cannot be read.
    `is_stale`: by its age alone, whether or not its process lives. `is_owned_by_current_process`: it names this very
    process, not one with the same pid in another container or at another time.
    """

    locked: bool
    info: LockInfo | None
    is_stale: bool
    is_owned_by_current_process: bool


class Semaphore:
    """A lock on a path, with one holder at a time.

    - `stale_timeout`: age in seconds above which a lock is taken over if its process is dead as well. None or 0: never.
    - `retry_interval`: the longest time between two looks at a lock, in seconds, where its filesystem reports no
      changes. An upper bound: there, holdfast looks at least every 25 ms (50 ms on network filesystems); where changes
      are reported, it does not poll. Less than 1 ms counts as 1 ms.
    - `acquire_timeout`: how long `acquire` and `with` wait, in seconds. None: forever; 0: they try once.
    - `max_tag_length`: characters at which a tag is cut, at most 10 000.
    - `tag` (ours): the tag of each acquisition that is given none.
    - `stale` (ours): `"protocol"`: a lock that is old and whose process is dead. `"safe"`: also, at once, a lock whose
      holder is proven dead.

    A hold belongs to the object that acquired it, and to the process: `release` of another object on the same path
    releases it too, from any thread. It lasts until then, or until the process ends. One object may be used by any
    number of threads; it can be pickled, but holds nothing in another process, nor in a forked child.

    Symbolic links in `path` are followed once, at construction, even dangling ones. Its directory must exist:
    InvalidPath, a ValueError, if it does not, if the path names no file, or if it has a component `..`. TypeError or
    ValueError for options that make no sense.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        stale_timeout: float | None = 3600.0,
        retry_interval: float = 0.1,
        acquire_timeout: float | None = None,
        max_tag_length: int = MAX_TAG_CHARACTERS,
        *,
        tag: str | None = None,
        stale: Stale = "protocol",
    ) -> None:
        if isinstance(max_tag_length, bool) or not isinstance(max_tag_length, int):
            raise TypeError(f"max_tag_length must be a whole number, not {max_tag_length!r}")
        if not 0 <= max_tag_length <= MAX_TAG_CHARACTERS:
            raise ValueError(f"max_tag_length must be from 0 to {MAX_TAG_CHARACTERS}, not {max_tag_length!r}")
        self._given = (stale_timeout, retry_interval, acquire_timeout, max_tag_length)
        self._more: Any = {"tag": tag, "stale": stale}
        self._stale_timeout, self._every, self._longest_tag = stale_timeout, retry_interval, max_tag_length
        self._options = options_of("semats", stale_timeout, acquire_timeout, stale)
        self._lock = self._tagged(path, tag)
        self._hold: Hold | None = None
        look_at(file_request(self._lock), require_directory)

    @classmethod
    def with_defaults(cls, path: str | os.PathLike[str]) -> Self:
        """A semaphore with the default configuration."""
        return cls(path)

    def get_path(self) -> str:
        """The absolute path of the lock file: `path`."""
        return self.path

    @property
    def path(self) -> str:
        """The absolute path of the lock file, without symbolic links."""
        return self._lock.path

    def try_acquire(self, tag: str | None = None) -> LockInfo:
        """Acquire the lock now and return the content of its file, or raise AlreadyLocked. A stale lock is taken over.

        This and the other ways to acquire raise ProtocolMismatch for a record of another protocol, InvalidPath if the
        path cannot be a lock file, and OSError as the system gives it.
        """
        return self._acquire(tag, 0, AlreadyLocked)

    def try_acquire_with_info(self, info: LockInfo) -> LockInfo:
        """Like `try_acquire`, with the tag of `info`. Its pid and timestamp are not used: the record names this
        process, now."""
        return self.try_acquire(info.tag)

    def acquire_timeout(self, timeout: float | None, tag: str | None = None) -> LockInfo:
        """Like `acquire`, with the timeout as the first argument."""
        return self.acquire(timeout, tag)

    def acquire(self, timeout: float | None = UNSET, tag: str | None = None) -> LockInfo:
        """Acquire the lock and return the content of its file, or raise Timeout after so many seconds.

        None waits forever, 0 tries once; without it, `acquire_timeout` applies. WouldDeadlock if this very thread holds
        it and the wait would never end.
        """
        return self._acquire(tag, timeout, Timeout)

    def release(self, force: bool = False) -> None:
        """Release this process's hold; with `force`, any holder's lock.

        Raises NotLocked if there is no lock file; PermissionDenied if it is not this process's, or not known to be;
        LockLost if this object held the lock, and it had been removed or replaced: then the file that is there is left
        alone, unless forced. The pid tells whose it is, and so does the marker of a holdfast record. A record that has
        only the pid of this process is removed.
        """
        hold, self._hold = self._hold, None
        if hold is not None and can_be_released(hold):
            try:
                hold.release()
                return
            except LockLost:
                if not force:
                    raise
        if not release_own(self._lock):
            self._remove(force=force)

    def force_release(self) -> None:
        """Release as `release(force=True)` does. The holder is not stopped; a holdfast process finds its lock lost."""
        self.release(force=True)

    def status(self) -> SemaphoreStatus:
        """Look at the lock and change nothing."""
        env = environment()
        seen = look_at(file_request(self._lock), glance)
        if seen is None:
            return SemaphoreStatus(False, None, False, False)
        info = None if seen.record is None else LockInfo.of(seen.record)
        mine = why_not_of(seen, assess(env, seen), env.identity()) is None
        return SemaphoreStatus(True, info, info is not None and info.is_stale(self._stale_timeout), mine)

    def get_lock_info(self) -> LockInfo | None:
        """The content of the lock file, or None for a free lock. ParseError if its record cannot be read; else as
        `is_locked`."""
        return info_at(self._lock)

    def is_locked(self) -> bool:
        """Whether the lock file exists, stale or not. InvalidPath or OSError if that cannot be known."""
        return look_at(file_request(self._lock), glance) is not None

    def clean_stale(self) -> bool:
        """Remove the lock if it is stale, and leftovers of crashed attempts on it. Returns whether there was anything.

        Leftovers are temporary files `<lock>.<pid>.<16 hex digits>.tmp` that are at least a second old, and whose
        process has ended. PermissionError if a stale lock may not be removed.
        """
        env, request = environment(), file_request(self._lock)

        def is_stale(seen: Observation, assessed: Assessment) -> bool:
            return seen.record is not None and judge(env, request, seen, assessed).reclaim

        swept = look_at(request, sweep_rivals)
        return perform_at(request, remove_if(env, request, is_stale)) is not None or swept > 0

    def __enter__(self) -> Self:
        try:
            self._lock.__enter__()
        except AcquireTimeout as error:
            raise renamed(error, Timeout) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.__exit__(kind, error, traceback)

    def _acquire(self, tag: str | None, timeout: float | None, error: type[AcquireTimeout]) -> LockInfo:
        lock = self._lock if tag is None else self._tagged(self.path, tag)
        try:
            hold = lock.acquire(timeout)
        except AcquireTimeout as refused:
            raise renamed(refused, error) from None
        earlier, self._hold = self._hold, hold
        if earlier is not None and can_be_released(earlier):  # it was lost, or this would have been refused
            try:
                earlier.release()
            except LockLost:
                pass
        return LockInfo.of(hold.record)

    def _remove(self, *, force: bool) -> None:
        """Remove the lock file, if it is this process's or `force` is set."""
        request, found, refused = file_request(self._lock), False, None
        me = environment().identity()

        def agreed(seen: Observation, assessed: Assessment) -> bool:
            nonlocal found, refused
            found, refused = True, None if force else why_not_of(seen, assessed, me)
            return refused is None

        perform_at(request, remove_if(environment(), request, agreed))
        if refused is not None:
            raise request.error(
                PermissionDenied,
                f"{request.path} was not released: {refused}. Pass force=True to remove it all the same",
                self._lock.status().holder,
            )
        if not found:
            raise NotLocked(f"{request.path} is not locked, so there is nothing to release", path=request.path)

    def _tagged(self, path: str | os.PathLike[str], tag: str | None) -> Lock:
        cut = tag if tag is None or not isinstance(tag, str) else clean_tag(tag)[: self._longest_tag]
        lock = make_lock(path, self._options, cut, self._every)
        file_request(lock).released_by_path = True  # any object of this process on the same path can
        return lock

    def __reduce__(self) -> tuple[Any, ...]:
        return make_again, (type(self), (self.path, *self._given), self._more)

    def __repr__(self) -> str:
        return f"<holdfast.semats.Semaphore {self.path!r}>"


def create_lock_info(tag: str | None = None) -> LockInfo:
    """The record that this process would write now. The tag is cleaned when it is written."""
    return LockInfo.new() if tag is None else LockInfo.with_tag(tag)


def parse_lock_info(text: str | bytes) -> LockInfo:
    """Read the content of a lock file. ParseError, a ValueError, says what is wrong with it."""
    return LockInfo.parse(text)


def serialize_lock_info(info: LockInfo) -> str:
    """The content of a lock file with these values. ValueError for numbers that no record can have."""
    return info.serialize()


def is_lock_stale(info: LockInfo, timeout: float | None) -> bool:
    """Whether it is older than `timeout` whole seconds; None or 0: never. Does not look at the process."""
    return info.is_stale(timeout)
