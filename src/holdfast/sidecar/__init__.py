"""fs-safe's file lock in Python: a lock file beside what it protects, `state.json` and `state.json.lock`.

The names are those of `@openclaw/fs-safe/file-lock`, in Python's spelling and in seconds; the lock files are the same,
so that both exclude each other. There are two forms of each function: one to be awaited, and one with `_sync` for
threads.

Options of every acquisition (docs/sidecar.md has the differences from fs-safe, and why):

- `payload` (required): the JSON object that the lock file holds, or a function that returns it; called at each attempt.
- `manager_key`: a name for locks that belong together in this process. Left out: one for each target.
- `lock_path`: the lock file. Left out: `<target>.lock`, with the symbolic links of the directory resolved.
- `stale`: age in seconds above which a lock counts as stale, 30 if left out: by `createdAt`, else by the file's mtime.
  0: at once. Infinity: never.
- `timeout`: the longest wait, in seconds. None: forever; 0: try once.
- `retry`: a `Retry`, or a mapping with its fields: the number of tries and the pauses. Left out: no limit.
- `stale_recovery`: the treatment of a stale lock. `"fail-closed"`: FileLockStale. `"remove-if-unchanged"`: it is taken
  over if `should_remove_stale_lock` returns true, and it has not changed since the look.
- `should_reclaim`: a function that is called with a `ReclaimParams` and says whether a lock is stale, instead of the
  rule by age.
- `should_remove_stale_lock`: a function that is called with a `StaleSnapshot` and says whether the holder is certainly
  gone.
- `allow_reentrant`: enter again if this process has a hold with the same key, whichever thread or task has it. The
  release of the last handle releases the lock.
- `reentrant_owner`: a str; enter again if this process has a hold with the same key and the same owner. It names one
  chain of calls: two tasks must not share it.
- `parse_payload`: a function that turns the text of a lock file into the payload for the callbacks, instead of JSON. An
  exception in it ends the acquisition. If it returns a dict, the age is that of `createdAt`.
- `lock_root`: a directory that the lock file must be in, wherever links lead; otherwise InvalidPath, before anything is
  made. With it, the target's own directory is not made.
- `on_compromised`: called once with a `CompromisedInfo` when the lock is found removed, replaced or written over; on
  the event loop, or from a thread, or by `release` and `verify_still_held` if these find it first.
- `compromise_check_interval`: seconds between looks for that where no events arrive, 1 if left out. 0: `on_compromised`
  is never called.
- `retain_on_exit`: leave the lock file when the process ends while it holds, for others to judge by `payload`.
- `metadata`: a mapping for `held_entries`.

`payload`, `should_reclaim` and `should_remove_stale_lock` may be coroutine functions, or return anything that can be
awaited, in the functions that are awaited: they run on the event loop, and are cancelled with the acquisition. With
`_sync` that is a TypeError. They may be called more than once, even while another waiter is first. They are not called
for a lock whose holder keeps it by a kernel lock, as holdfast does, which is never stale; nor for an empty or garbled
file younger than `stale`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from .._core.attempt import Refusal
from .._core.hold import HoldState
from .._platform import environment
from .._platform.operations import partial
from ..errors import AcquireTimeout, LockLost, NotHeld
from ..lock import (
    Acquirable,
    BaseHold,
    Hold,
    acquire_or_raise,
    can_be_released,
    release_now,
    require_unreleased,
    state_of,
)
from ..model import Value
from .options import (
    Awaited,
    Called,
    CompromisedInfo,
    FileLockOptions,
    FileLockStale,
    FileLockTimeout,
    ReclaimParams,
    Retry,
    StaleSnapshot,
    Wanted,
    check_key,
    is_asynchronous,
)

if TYPE_CHECKING:
    from ..aio import AsyncHold


__all__ = [
    "CompromisedInfo",
    "FileLockHandle",
    "FileLockManager",
    "FileLockOptions",
    "FileLockStale",
    "FileLockSyncHandle",
    "FileLockSyncManager",
    "FileLockTimeout",
    "HeldEntry",
    "HeldSyncEntry",
    "ReclaimParams",
    "Retry",
    "StaleSnapshot",
    "acquire_file_lock",
    "acquire_file_lock_sync",
    "create_file_lock_manager",
    "create_file_lock_manager_sync",
    "with_file_lock",
    "with_file_lock_sync",
]

T = TypeVar("T")
Path = str | os.PathLike[str]

_OF_MANAGER = "a manager for threads", "one of create_file_lock_manager"


class HeldEntry(Value):
    """A lock that a manager holds. `acquired_at`: in seconds since the epoch. `metadata`: of its first acquirer."""

    lock_path: str
    normalized_target_path: str
    acquired_at: float
    metadata: dict[str, Any]

    async def force_release(self) -> bool:
        """Release the lock with all handles on it; False if it was released before. Raises OSError."""
        from .._drivers.asyncio import in_thread

        entry: _Entry = self.__dict__["_entry"]
        if entry.held.env.may_block(entry.held.path):
            return await in_thread(entry.force_release)
        return entry.force_release()


class HeldSyncEntry(Value):
    """A `HeldEntry` for threads."""

    lock_path: str
    normalized_target_path: str
    acquired_at: float
    metadata: dict[str, Any]

    def force_release(self) -> bool:
        """Release the lock with all handles on it; False if it was released before. Raises OSError."""
        entry: _Entry = self.__dict__["_entry"]
        return entry.force_release()


AnyEntry = TypeVar("AnyEntry", HeldEntry, HeldSyncEntry)


class _Entry:
    """A hold under a manager's key, and all handles on it."""

    __slots__ = ("acquired_at", "held", "holds", "key", "metadata", "target")

    def __init__(self, wanted: Wanted, held: HoldState) -> None:
        self.held = held
        self.key = wanted.key
        self.target = wanted.normalized_target_path
        self.metadata = wanted.metadata
        self.acquired_at = held.env.time()
        self.holds: list[BaseHold] = []

    @property
    def is_held(self) -> bool:
        return not self.held.released and not self.held.inert

    def shown_as(self, kind: type[AnyEntry]) -> AnyEntry:
        shown = kind(self.held.path, self.target, self.acquired_at, self.metadata)
        shown.__dict__["_entry"] = self
        return shown

    def force_release(self) -> bool:
        if not self.is_held:
            return False
        for hold in self.holds.copy():
            with _leaving(hold):
                release_now(hold)
        return True


_entries: dict[HoldState, _Entry] = {}
"""Holds of all managers of this process. A key's holds are here, not in a manager: managers of one key are equal."""


def _holds(key: str, target: str) -> bool:
    """Whether this process holds that target under that key, as far as is known."""
    entries = list(_entries.values())
    return any(e.key == key and e.target == target and e.is_held and not e.held.lost for e in entries)


@contextmanager
def _leaving(hold: BaseHold) -> Iterator[None]:
    """Forget the handle after its release, whatever comes of that. A lost lock is no error here: `verify_still_held`
    would have told."""
    try:
        yield
    except LockLost:
        pass
    finally:
        _forget(hold)


class _Handle:
    """The common part of both handles."""

    __slots__ = ("_hold", "lock_path", "normalized_target_path")
    _hold: BaseHold

    def __init__(self, wanted: Wanted, hold: BaseHold) -> None:
        self.lock_path = wanted.lock_path
        self.normalized_target_path = wanted.normalized_target_path
        self._hold = hold
        held = state_of(hold)
        if wanted.request.retained:
            held.request.retained = True  # one of its handles is enough
        if held not in _entries:
            held.request.owner = wanted.owner  # from now on, re-entrant acquisitions may enter
        wanted.request.on_lost = held.request.on_lost  # the first one's counts, as in fs-safe
        _entries.setdefault(held, _Entry(wanted, held)).holds.append(hold)

    def _is_held(self) -> bool:
        try:
            self._hold.ensure_held()
        except (LockLost, NotHeld):
            return False
        return True

    def __repr__(self) -> str:
        return f"<holdfast.sidecar.{type(self).__name__} {self._hold!r}>"


class FileLockSyncHandle(_Handle):
    """One acquisition: `lock_path`, `normalized_target_path`. Usable as a context manager that releases.

    Entering it after a release, or in a forked child, raises NotHeld: the body needs the lock.
    """

    __slots__ = ()
    _hold: Hold

    def release(self) -> None:
        """Release the lock. A second call does nothing, nor does one for a lock that is no longer ours."""
        with _leaving(self._hold):
            self._hold.release()

    def verify_still_held(self) -> bool:
        """Whether the lock file is there and unchanged, now. False after this handle's release."""
        return self._is_held()

    def __enter__(self) -> Self:
        require_unreleased(self._hold)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _leaving(self._hold):
            self._hold.__exit__(kind, error, traceback)


class FileLockHandle(_Handle):
    """One acquisition: `lock_path`, `normalized_target_path`. Usable with `async with`, which releases.

    Entering it after a release, or in a forked child, raises NotHeld: the body needs the lock.
    """

    __slots__ = ()
    _hold: AsyncHold

    async def release(self) -> None:
        """Release the lock. A second call does nothing. A lock that is no longer ours is left alone, without an error.

        A cancellation cannot stop it half-way: it is raised after the release.
        """
        with _leaving(self._hold):
            await self._hold.release()

    async def verify_still_held(self) -> bool:
        """Whether the lock file is there and unchanged, now. False after this handle's release."""
        from .._drivers.asyncio import in_thread

        held = state_of(self._hold)
        return await in_thread(self._is_held) if held.env.may_block(held.path) else self._is_held()

    async def __aenter__(self) -> Self:
        require_unreleased(self._hold)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _leaving(self._hold):
            await self._hold.__aexit__(kind, error, traceback)


class _Manager:
    """The common part of both managers."""

    __slots__ = ("_key",)

    def __init__(self, key: str) -> None:
        self._key = check_key(key)

    def reset(self) -> None:
        """Release all holds under this key at once, and forget them. Raises nothing.

        Lock files that could not be removed are tried again when the process ends. `drain` reports errors.
        """
        held = self._held()
        self._release_each(held)  # errors are ignored, as in fs-safe: this is for tests and hot reloads
        for entry in held:
            _entries.pop(entry.held, None)

    def _release_each(self, held: list[_Entry]) -> list[Exception]:
        """Release all of them, whatever fails. The errors."""
        failed: list[Exception] = []
        for entry in held:
            try:
                entry.force_release()
            except Exception as error:
                failed.append(error)
        return failed

    def _held(self) -> list[_Entry]:
        return [entry for entry in list(_entries.values()) if entry.key == self._key and entry.is_held]

    def __repr__(self) -> str:
        return f"<holdfast.sidecar.{type(self).__name__} {self._key!r}>"


class FileLockSyncManager(_Manager):
    """Locks that belong together, for threads. Managers of one key share their holds, also with asyncio."""

    __slots__ = ()

    def held_entries(self) -> list[HeldSyncEntry]:
        """The locks held under this key, in the order of their acquisition."""
        return [entry.shown_as(HeldSyncEntry) for entry in self._held()]

    def acquire(self, target: Path, **options: Unpack[FileLockOptions]) -> FileLockSyncHandle:
        """Acquire like `acquire_file_lock_sync`, under this manager's key."""
        return _acquire_sync(target, options, Called(*_OF_MANAGER), self._key)

    def with_lock(self, target: Path, fn: Callable[[], T], **options: Unpack[FileLockOptions]) -> T:
        """Call `fn` like `with_file_lock_sync`, under this manager's key."""
        return _with_sync(target, options, fn, Called(*_OF_MANAGER), self._key)

    def drain(self) -> None:
        """Release all holds under this key, with all handles, and return when that is done.

        The holders are not stopped: call this when their work has ended. Raises the first OSError, after all were
        tried.
        """
        failed = self._release_each(self._held())
        if failed:
            for other in failed[1:]:
                failed[0].add_note(str(other))
            raise failed[0]


class FileLockManager(_Manager):
    """Locks that belong together, for asyncio. Managers of one key share their holds, also with those for threads."""

    __slots__ = ()

    def held_entries(self) -> list[HeldEntry]:
        """The locks held under this key, in the order of their acquisition."""
        return [entry.shown_as(HeldEntry) for entry in self._held()]

    async def acquire(self, target: Path, **options: Unpack[FileLockOptions]) -> FileLockHandle:
        """Acquire like `acquire_file_lock`, under this manager's key."""
        return await _acquire(target, options, self._key)

    async def with_lock(
        self, target: Path, fn: Callable[[], T] | Callable[[], Awaitable[T]], **options: Unpack[FileLockOptions]
    ) -> T:
        """Call `fn` like `with_file_lock`, under this manager's key."""
        return await _with_lock(target, options, fn, self._key)

    async def drain(self) -> None:
        """Release all holds under this key, with all handles, and return when that is done.

        The holders are not stopped: call this when their work has ended. Raises the first OSError, after all were
        tried.
        """
        from .._drivers.asyncio import in_thread

        drain = FileLockSyncManager(self._key).drain
        if any(entry.held.env.may_block(entry.held.path) for entry in self._held()):
            await in_thread(drain)
        else:
            drain()


def _acquire_sync(
    target: Path, options: FileLockOptions, functions: Called, key: str | None = None
) -> FileLockSyncHandle:
    wanted = Wanted(target, options, functions, key, _holds)
    try:
        hold = acquire_or_raise(Acquirable((wanted.request,), wanted.engine), wanted.timeout, wanted.refused)
    except AcquireTimeout as error:
        raise wanted.timed_out(error) from error.__cause__
    assert hold is not None
    try:
        wanted.check_root()
        return FileLockSyncHandle(wanted, hold)
    except BaseException:
        hold.release()
        raise


def _with_sync(
    target: Path, options: FileLockOptions, fn: Callable[[], T], functions: Called, key: str | None = None
) -> T:
    if is_asynchronous(fn):
        raise TypeError("fn is a coroutine function: its body would run after the release; await with_file_lock")
    with _acquire_sync(target, options, functions, key):
        return fn()


async def _acquire(target: Path, options: FileLockOptions, key: str | None = None) -> FileLockHandle:
    from ..aio import AsyncAcquirable, acquire_unless_held  # a caller that awaits this has imported asyncio

    functions = Awaited()
    wanted = await _wanted(target, options, functions, key)
    try:
        hold = await acquire_unless_held(AsyncAcquirable((wanted.request,), wanted.engine), wanted.timeout)
    except GeneratorExit:
        functions.cancel()  # a coroutine that is being closed cannot wait
        raise
    except AcquireTimeout as error:
        await functions.close()
        raise wanted.timed_out(error) from error.__cause__
    except BaseException:
        await functions.close()
        raise
    if isinstance(hold, Refusal):
        await functions.close()
        raise wanted.refused(hold)
    try:
        await functions.close()
        if options.get("lock_root") is not None:
            await _aside(wanted.check_root, target, options)
        return FileLockHandle(wanted, hold)
    except BaseException:
        release_now(hold)
        raise


async def _wanted(target: Path, options: FileLockOptions, functions: Awaited, key: str | None) -> Wanted:
    """The checked request."""
    return await _aside(partial(Wanted, target, options, functions, key, _holds), target, options)


async def _aside(call: Callable[[], T], target: Path, options: FileLockOptions) -> T:
    """The result of `call`, in a thread where following links may have to wait for a server."""
    from .._drivers.asyncio import in_thread

    paths = [target, options.get("lock_root")]
    try:
        slow = any(environment().may_block(os.path.abspath(os.fsdecode(path))) for path in paths if path is not None)
    except ValueError:
        slow = False  # it has a NUL, and is refused
    return await in_thread(call) if slow else call()


async def _with_lock(
    target: Path, options: FileLockOptions, fn: Callable[[], T] | Callable[[], Awaitable[T]], key: str | None = None
) -> T:
    async with await _acquire(target, options, key):
        result: Any = fn()
        if inspect.isawaitable(result):
            result = await result
        done: T = result
        return done


def _forget(hold: BaseHold) -> None:
    """Remove a hold's handle from the list, and the hold if that was its last handle."""
    if can_be_released(hold):
        return  # its release failed where only its process speaks for it: it is held, and can be released again
    entry = _entries.get(state_of(hold))
    if entry is not None:
        try:
            entry.holds.remove(hold)
        except ValueError:
            pass  # released before, or drained at the same time
    if state_of(hold).released:
        _entries.pop(state_of(hold), None)


async def acquire_file_lock(target: Path, **options: Unpack[FileLockOptions]) -> FileLockHandle:
    """Acquire the lock of `target` without blocking the event loop, and return its handle, which releases.

    For the options see `holdfast.sidecar`. Missing directories are made. It is held until the handle is released or the
    process ends, even if the handle is dropped. A cancellation ends the wait and leaves nothing behind.

    Raises FileLockTimeout (a TimeoutError, `code` "file_lock_timeout"), which knows the holder; FileLockStale (`code`
    "file_lock_stale"); WouldDeadlock if this task already holds it and would wait forever; ValueError or TypeError for
    options that make no sense; InvalidPath if a directory, a link or a FIFO is in place of the lock file; and OSError
    as the system gives it.
    """
    return await _acquire(target, options)


async def with_file_lock(
    target: Path, fn: Callable[[], T] | Callable[[], Awaitable[T]], **options: Unpack[FileLockOptions]
) -> T:
    """Acquire the lock of `target`, call `fn`, which may be a coroutine function, release, return what `fn` returned.

    Raises as `acquire_file_lock`, and what `fn` raises. A lock that was lost meanwhile is no error.
    """
    return await _with_lock(target, options, fn)


def create_file_lock_manager(key: str) -> FileLockManager:
    """The manager of that key; its methods are to be awaited."""
    return FileLockManager(key)


def acquire_file_lock_sync(target: Path, **options: Unpack[FileLockOptions]) -> FileLockSyncHandle:
    """Acquire the lock of `target` and return its handle, which releases: `acquire_file_lock` for threads.

    Raises as `acquire_file_lock`; WouldDeadlock if this thread already holds it and would wait forever.
    """
    return _acquire_sync(target, options, Called("acquire_file_lock_sync", "acquire_file_lock"))


def with_file_lock_sync(target: Path, fn: Callable[[], T], **options: Unpack[FileLockOptions]) -> T:
    """Acquire the lock of `target`, call `fn`, release, return what `fn` returned.

    Raises as `acquire_file_lock_sync`, and what `fn` raises; TypeError for a coroutine function, whose body would run
    after the release. A lock that was lost meanwhile is no error.
    """
    return _with_sync(target, options, fn, Called("with_file_lock_sync", "with_file_lock"))


def create_file_lock_manager_sync(key: str) -> FileLockSyncManager:
    """The manager of that key, for threads."""
    return FileLockSyncManager(key)
