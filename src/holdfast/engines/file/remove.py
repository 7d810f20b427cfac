"""Removal of another process's lock: on purpose, and only of the one that was meant.

A pure kernel lock is never removed: it is not the file that holds it (flock.py, F2).

R1  The file is removed only while the path still names the inode that was judged and its record is unchanged.
R2  The two gates of a takeover are passed first (takeover.py, T1): the guard, exclusively or together with readers, and
    the claim. If one is refused, we look again: it may be another lock by now. A living holder whose lock is broken
    keeps the guard; but a takeover looks the same. So the claim is made in any case, and the record is read again under
    it: a process that has overwritten it by then keeps the lock, and a later one finds the claim (T8).
R3  A short wait between two tries avoids a busy loop on a lock that keeps changing hands. Nothing is kept meanwhile: no
    descriptor, claim or announcement, so an interruption leaves nothing behind. After PATIENCE we give up.
R4  A holder that had queued keeps its ticket (queue.py, Q4), and the next waiter follows that, not the lock file. So
    the holder's ticket is removed with the lock, and the next waiter is told to look again (Q11). A waiter in the
    holder's own process follows no ticket, only a signal of that process: it notices at its next look (A2).
"""

from __future__ import annotations

from ..._core.messages import unbreakable
from ..._core.wait import Steps, Wait
from ...errors import HoldfastError, set_error_path
from ...liveness import Liveness
from . import queue
from .acquire import look
from .inspect import Assessment, Observation, assess, forget, observe, reread
from .interop import announce_removal, end_removal
from .steps import NO_ROOM, is_there
from .takeover import NO_LOCKS, claim_seen, disarm_replacers, is_past_guard, take_guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._platform.interface import Environment
    from ...model import Identity, Record
    from .request import FileRequest


PATIENCE = 2.0
"""Seconds after which we give up on a lock that changes hands at every try (R3)."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.010


def break_lock(env: Environment, request: FileRequest) -> Steps[Record | None]:
    """Remove the lock file of any holder. HoldfastError if that would not end the hold, but split the lock."""
    if request.protocol.persistent:
        _require_unheld(env, request)
        return None
    return (yield from remove_if(env, request, lambda _seen, _assessed: True))


def remove_if(
    env: Environment, request: FileRequest, agreed: Callable[[Observation, Assessment], bool]
) -> Steps[Record | None]:
    """Remove the lock file if `agreed` accepts what was seen. The removed record, or None if nothing was removed.

    `agreed` is called at each try. HoldfastError if the lock changed hands at every try, for PATIENCE seconds.
    """
    until, pause = env.monotonic() + PATIENCE, _FIRST_PAUSE
    while True:
        try:
            seen = observe(env, request)
            if seen is None:
                return None
            try:
                assessed = assess(env, seen)
                if not agreed(seen, assessed):
                    return None
                if _remove(env, request, seen, held=assessed.evidence.source == "guard" and not assessed.is_dead):
                    return seen.record
            finally:
                forget(env, seen)
        except OSError as error:
            set_error_path(error, request.path)
            raise
        now = env.monotonic()
        if now >= until:
            break
        yield Wait((), min(now + pause, until))  # R3
        pause = min(pause * 2, _LONGEST_PAUSE)
    raise request.error(
        HoldfastError,
        f"{request.path} was not removed: it changed hands each time it was checked, for {PATIENCE:g} s. See "
        "its status, and try again.",
    )


def why_not_of(seen: Observation, assessed: Assessment, owner: Identity) -> str | None:
    """The reason why this process may not release the lock that was seen; None if it may."""
    if seen.record is None:
        return f"{seen.problem}, so whose it is cannot be known"
    if assessed.liveness is Liveness.ALIVE and assessed.evidence.source == "guard":
        return f"process {seen.record.pid} holds it itself ({assessed.evidence.text})"
    marker = seen.record.marker
    if seen.record.pid != owner.pid:
        return f"it was acquired for process {seen.record.pid}, not for process {owner.pid}"
    if marker is not None and marker.identity != owner:
        return f"it was acquired for another process {owner.pid}, an earlier one or one in another container"
    return None


def _require_unheld(env: Environment, request: FileRequest) -> None:
    status = look(env, request)
    if status.locked or status.holders:
        raise request.error(
            HoldfastError,
            f"{request.path} was not removed: {unbreakable(status)}",
            holder=status.holder,
        )


def _remove(env: Environment, request: FileRequest, seen: Observation, *, held: bool) -> bool:
    announced = announce_removal(env, request)
    if announced is None:
        return False
    try:
        return _remove_announced(env, request, seen, held=held)
    finally:
        end_removal(env, request, announced)


def _remove_announced(env: Environment, request: FileRequest, seen: Observation, *, held: bool) -> bool:
    """Remove the lock file behind both gates (R2)."""
    if held or seen.fd < 0:
        return _remove_claimed(env, request, seen, NO_LOCKS)
    try:
        guard = take_guard(env, seen.fd)
        if guard is None and not is_past_guard(env, seen, guard):
            return False
        return _remove_claimed(env, request, seen, guard or NO_LOCKS)
    finally:
        env.unguard(seen.fd)


def _remove_claimed(env: Environment, request: FileRequest, seen: Observation, guard: int) -> bool:
    try:
        claim = claim_seen(env, request, seen, guard)
    except OSError as error:
        if error.errno in NO_ROOM and guard != NO_LOCKS:
            # No other process can make one either; and this makes room.
            return disarm_replacers(env, request, seen) and _remove_unchanged(env, request, seen)
        error.filename = request.path
        raise
    if claim is None:
        return False
    try:
        return _remove_unchanged(env, request, seen)
    finally:
        claim.end()


def _remove_unchanged(env: Environment, request: FileRequest, seen: Observation) -> bool:
    if not _is_unchanged(env, request, seen):
        return False
    try:
        (env.remove_directory if seen.is_directory else env.unlink)(request.path)
    except FileNotFoundError:
        return False  # released or broken since the look
    if seen.record is not None and seen.record.pid is not None:
        queue.wake(env, request.queue, seen.record.pid)  # R4
    return True


def _is_unchanged(env: Environment, request: FileRequest, seen: Observation) -> bool:
    """Whether the path and the record are as they were judged (R1)."""
    if seen.fd < 0:
        again = observe(env, request)
        forget(env, again)
        return again is not None and (again.identity, again.data) == (seen.identity, seen.data)
    before = seen.data
    reread(env, request, seen)
    return seen.data == before and is_there(env, request.path, seen.identity)
