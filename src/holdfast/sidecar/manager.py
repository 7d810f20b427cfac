"""The handles and managers of `holdfast.sidecar`, and the acquisition for them."""

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
from .options import Awaited, Called, FileLockOptions, Wanted, check_key, is_asynchronous

if TYPE_CHECKING:
    from ..aio import AsyncHold

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
        return acquire_sync(target, options, Called(*_OF_MANAGER), self._key)

    def with_lock(self, target: Path, fn: Callable[[], T], **options: Unpack[FileLockOptions]) -> T:
        """Call `fn` like `with_file_lock_sync`, under this manager's key."""
        return with_sync(target, options, fn, Called(*_OF_MANAGER), self._key)

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
        return await acquire(target, options, self._key)

    async def with_lock(
        self, target: Path, fn: Callable[[], T] | Callable[[], Awaitable[T]], **options: Unpack[FileLockOptions]
    ) -> T:
        """Call `fn` like `with_file_lock`, under this manager's key."""
        return await with_lock(target, options, fn, self._key)

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


def acquire_sync(
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


def with_sync(
    target: Path, options: FileLockOptions, fn: Callable[[], T], functions: Called, key: str | None = None
) -> T:
    if is_asynchronous(fn):
        raise TypeError("fn is a coroutine function: its body would run after the release; await with_file_lock")
    with acquire_sync(target, options, functions, key):
        return fn()


async def acquire(target: Path, options: FileLockOptions, key: str | None = None) -> FileLockHandle:
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
        wanted.check_root()
        return FileLockHandle(wanted, hold)
    except BaseException:
        release_now(hold)
        raise


async def _wanted(target: Path, options: FileLockOptions, functions: Awaited, key: str | None) -> Wanted:
    """The checked request; made in a thread where following links may have to wait for a server."""
    from .._drivers.asyncio import in_thread

    make = partial(Wanted, target, options, functions, key, _holds)
    try:
        slow = environment().may_block(os.path.abspath(os.fsdecode(target)))
    except ValueError:
        slow = False  # it has a NUL, and is refused
    return await in_thread(make) if slow else make()


async def with_lock(
    target: Path, options: FileLockOptions, fn: Callable[[], T] | Callable[[], Awaitable[T]], key: str | None = None
) -> T:
    async with await acquire(target, options, key):
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
