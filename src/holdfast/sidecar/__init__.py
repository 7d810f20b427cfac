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

from collections.abc import Awaitable, Callable
from typing import Unpack

from .manager import (
    FileLockHandle,
    FileLockManager,
    FileLockSyncHandle,
    FileLockSyncManager,
    HeldEntry,
    HeldSyncEntry,
    Path,
    T,
    acquire,
    acquire_sync,
    with_lock,
    with_sync,
)
from .options import (
    Called,
    CompromisedInfo,
    FileLockOptions,
    FileLockStale,
    FileLockTimeout,
    ReclaimParams,
    Retry,
    StaleSnapshot,
)

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


async def acquire_file_lock(target: Path, **options: Unpack[FileLockOptions]) -> FileLockHandle:
    """Acquire the lock of `target` without blocking the event loop, and return its handle, which releases.

    For the options see `holdfast.sidecar`. Missing directories are made. It is held until the handle is released or the
    process ends, even if the handle is dropped. A cancellation ends the wait and leaves nothing behind.

    Raises FileLockTimeout (a TimeoutError, `code` "file_lock_timeout"), which knows the holder; FileLockStale (`code`
    "file_lock_stale"); WouldDeadlock if this task already holds it and would wait forever; ValueError or TypeError for
    options that make no sense; InvalidPath if a directory, a link or a FIFO is in place of the lock file; and OSError
    as the system gives it.
    """
    return await acquire(target, options)


async def with_file_lock(
    target: Path, fn: Callable[[], T] | Callable[[], Awaitable[T]], **options: Unpack[FileLockOptions]
) -> T:
    """Acquire the lock of `target`, call `fn`, which may be a coroutine function, release, return what `fn` returned.

    Raises as `acquire_file_lock`, and what `fn` raises. A lock that was lost meanwhile is no error.
    """
    return await with_lock(target, options, fn)


def create_file_lock_manager(key: str) -> FileLockManager:
    """The manager of that key; its methods are to be awaited."""
    return FileLockManager(key)


def acquire_file_lock_sync(target: Path, **options: Unpack[FileLockOptions]) -> FileLockSyncHandle:
    """Acquire the lock of `target` and return its handle, which releases: `acquire_file_lock` for threads.

    Raises as `acquire_file_lock`; WouldDeadlock if this thread already holds it and would wait forever.
    """
    return acquire_sync(target, options, Called("acquire_file_lock_sync", "acquire_file_lock"))


def with_file_lock_sync(target: Path, fn: Callable[[], T], **options: Unpack[FileLockOptions]) -> T:
    """Acquire the lock of `target`, call `fn`, release, return what `fn` returned.

    Raises as `acquire_file_lock_sync`, and what `fn` raises; TypeError for a coroutine function, whose body would run
    after the release. A lock that was lost meanwhile is no error.
    """
    return with_sync(target, options, fn, Called("with_file_lock_sync", "with_file_lock"))


def create_file_lock_manager_sync(key: str) -> FileLockSyncManager:
    """The manager of that key, for threads."""
    return FileLockSyncManager(key)
