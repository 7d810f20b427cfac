"""Removing a lock that is not ours: on purpose, and only the one that was meant.

R1  The file is removed only while the path still names the inode that was judged and its record is unchanged.
R2  Where the guard can be had it is taken first, so that no contender is taking the same file over.
"""

from __future__ import annotations

from ..model import Record
from .environment import Environment
from .liveness import Assessment, assess
from .observe import Observation, forget, is_there, observe, reread
from .request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_TRIES = 3


def break_lock(env: Environment, request: Request) -> Record | None:
    """Remove the lock file, whoever holds it."""
    return remove_if(env, request, lambda _seen, _assessed: True)


def remove_if(env: Environment, request: Request, agreed: Callable[[Observation, Assessment], bool]) -> Record | None:
    """Remove the lock file if `agreed` to what was seen; the record that went, or None."""
    for _ in range(_TRIES):
        seen = observe(env, request)
        if seen is None:
            return None
        try:
            if not agreed(seen, assess(env, seen)):
                return None
            if _remove(env, request, seen):
                return seen.record
        finally:
            forget(env, seen)
    return None


def _remove(env: Environment, request: Request, seen: Observation) -> bool:
    guarded = env.guard(seen.fd) if seen.fd >= 0 else None  # R2
    try:
        if not _is_unchanged(env, request, seen):
            return False
        env.unlink(request.path)
        return True
    finally:
        if guarded:
            env.unguard(seen.fd)


def _is_unchanged(env: Environment, request: Request, seen: Observation) -> bool:
    """R1."""
    if seen.fd < 0:
        again = observe(env, request)
        forget(env, again)
        return again is not None and (again.identity, again.data) == (seen.identity, seen.data)
    before = seen.data
    reread(env, request, seen)
    return seen.data == before and is_there(env, request.path, seen.identity)
