"""Acquisition of a free lock, which needs a third of the engine: the rest is loaded when a lock is held.

The fast path publishes the lock file and is done. If that fails, an `AcquireAttempt` (acquire.py) begins.

FP1  Where steps fail while the server of the filesystem is away (GlusterFS), instead of waiting for it (NFS), we wait:
     the whole acquisition is undone as far as possible, and begins again, until the caller's time is up. Listeners see
     one acquisition. A lock file that the server has kept of it counts as a dead holder's; without a lease, one that is
     known by its process alone (publish.py, P3) does so only when that process has ended. After a second without the
     server, the caller's notice says so, whatever it has said of a holder before.
"""

from __future__ import annotations

from ..._core.attempt import AttemptEvents, CallersError, Refusal, Refused
from ..._core.hold import forked, give_back
from ..._core.wait import Deadline, Steps, Wait
from ..._platform.fork import forking, to_load
from ..._platform.operations import partial
from ...errors import set_error_path
from ...events import has_any_listener
from ...model import INFINITY
from .publish import publish
from .steps import NO_DESCRIPTOR, NO_ROOM, UNWRITABLE, prepare, with_hint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..._core.hold import HoldRef
    from ..._platform.interface import Environment
    from .hold import FileHold
    from .request import FileRequest

_AWAY_POLL = 0.5
"""Seconds between tries while the server is away (FP1)."""
_take: Callable[[Environment, FileRequest], FileHold | None] | None = None
"""`take` of flock.py, which is loaded for the first such lock: an import in each acquisition takes a tenth of it."""


def _load_take() -> Callable[[Environment, FileRequest], FileHold | None]:
    global _take
    with forking:
        from .flock import take
    _take = take
    return take


def _load_the_rest() -> None:
    from . import acquire  # noqa: F401


to_load.append(_load_the_rest)


def acquire(
    env: Environment, requests: Sequence[FileRequest], timeout: float | None, context: tuple[object, ...]
) -> Steps[HoldRef | Refusal]:
    """A share in the first of these locks that becomes available, or the refusal.

    `context` names the caller that a wait would block (sync.caller).
    """
    generation, first = env.generation, requests[0]
    attempt_events = AttemptEvents(env, first, context) if has_any_listener(first.on_event) else None
    at_once = first.protocol.persistent and len(requests) == 1 and not first.fencing and attempt_events is None
    result: HoldRef | Refusal | None
    away: Deadline | None = None
    left, began = timeout, env.monotonic() if timeout else 0.0
    try:
        while True:
            ends = env.monotonic() + left if left is not None and first.fencing else INFINITY
            try:
                if at_once:
                    result = _take_at_once(env, first, left, context)
                else:
                    result = yield from _fast_path(env, requests, left, context, ends, attempt_events)
                if result is None:
                    attempt_events = attempt_events or AttemptEvents(env, first, context)
                    result = yield from _contend(env, requests, left, context, ends, generation, attempt_events)
                break
            except OSError as error:
                if generation != env.generation:
                    raise forked(first) from None  # of a descriptor that the child has closed
                set_error_path(error, first.target)
                if timeout == 0 or not env.is_away(first.path, error):
                    if error.errno in (*NO_DESCRIPTOR, *NO_ROOM) and error.__cause__ in (None, error):
                        raise with_hint(error, first, env) from error  # no step has said more
                    raise
                left = _left(env, first, timeout, began, error)
                attempt_events = attempt_events or AttemptEvents(env, first, context)
                attempt_events.waiting(lambda: None)  # no holder is known
                away = away or Deadline(env, first, None, generation)
                away.announce(partial(_while_away, env, first, away.started, error, attempt_events))
            pause = min(_AWAY_POLL, INFINITY if left is None else left)
            yield Wait((), away.bounded(env.monotonic() + pause))  # FP1
    except BaseException as error:
        if attempt_events is not None:
            attempt_events.gave_up()
        if isinstance(error, Refused):
            return error.refusal()
        if isinstance(error, CallersError):
            error.unwrap()
        raise
    if isinstance(result, Refusal):
        return result
    if generation != env.generation:
        # A5. A hold from before the fork is the parent's, and inert here; one acquired since has no owner.
        give_back(result)
        env.holds.clear()
        raise forked(first)
    return result


def _while_away(
    env: Environment, request: FileRequest, since: float, error: OSError, attempt_events: AttemptEvents
) -> Refusal:
    """The refusal that tells a waiting caller that its server is away (FP1)."""
    with forking:
        from ..._core.messages import is_away, unasked
    status = unasked(request, is_away(env.server_at(request.path), error))
    return Refusal(request.target, env.monotonic() - since, lambda: (status,), attempt_events)


def _left(env: Environment, request: FileRequest, timeout: float | None, began: float, error: OSError) -> float | None:
    """The seconds that a caller whose server is away has left; AcquireTimeout if there are none (FP1)."""
    if timeout is None:
        return None
    left = began + timeout - env.monotonic()
    if left <= 0:
        with forking:
            from ..._core.messages import away
        raise away(request, env.server_at(request.path), timeout, error) from error
    return left


def _contend(
    env: Environment,
    requests: Sequence[FileRequest],
    timeout: float | None,
    context: tuple[object, ...],
    ends: float,
    generation: int,
    attempt_events: AttemptEvents,
) -> Steps[HoldRef | Refusal]:
    """Contend for a lock that has a holder or a queue."""
    with forking:
        from .acquire import AcquireAttempt
    attempt = AcquireAttempt(
        env, requests, timeout, context, ends=ends, generation=generation, attempt_events=attempt_events
    )
    try:
        try:
            ref = yield from attempt.run()
        finally:
            attempt.close()
    except BaseException:
        try:
            attempt.close()  # again: the first close may be what was interrupted
        finally:
            if attempt.ref is not None:
                give_back(attempt.ref)
        raise
    if ref is None:
        try:
            attempt_events.gave_up(attempt.who)
        finally:
            attempt.close()  # finding the holder may have needed a look
        return attempt.refusal()
    if attempt.joined:
        attempt_events.joined()
    return ref


def _take_at_once(
    env: Environment, request: FileRequest, timeout: float | None, context: tuple[object, ...]
) -> HoldRef | None:
    """The fast path for one kernel lock. It never waits, so it is no generator."""
    held = None if _is_contended(env, request, timeout) else (_take or _load_take())(env, request)
    return None if held is None else held.ref(context)


def _fast_path(
    env: Environment,
    requests: Sequence[FileRequest],
    timeout: float | None,
    context: tuple[object, ...],
    ends: float,
    attempt_events: AttemptEvents | None,
) -> Steps[HoldRef | None]:
    """The hold, if the lock is not held and no contender has been waiting for it; else None."""
    first, several = requests[0], len(requests) > 1
    held: FileHold | None
    if several and first.owner is not None:
        return None  # the owner may hold one of them already
    if _is_contended(env, first, timeout):
        return None
    for request in requests:
        if request.protocol.persistent:
            held = (_take or _load_take())(env, request)
        elif request.protocol.is_directory:
            with forking:
                from .directory import create
            held = yield from create(env, request)
        else:
            if several:
                taken = _is_taken(env, request)
                if taken is None:
                    return None
                if taken:
                    continue
            try:
                if request.prepare is not None:
                    yield from prepare(env, request.prepare)
                held = yield from publish(env, request)
            except OSError as error:
                # If it is held, a caller without write permission, or room on the disk, learns the holder.
                if error.errno in (*UNWRITABLE, *NO_ROOM) and env.exists(request.path):
                    return None
                raise
        if held is None:
            continue
        if request.fencing or held.lease is not None:
            with forking:
                from .fencing import fenced
            held = yield from fenced(env, held, ends)
            if held is None:
                return None
        held.attempt_events = attempt_events  # AE5
        return held.ref(context)
    return None


def _is_contended(env: Environment, request: FileRequest, timeout: float | None) -> bool:
    """Whether a newcomer has to queue (queue.py, Q5)."""
    if not request.fair or (timeout == 0 and not request.shared):
        return False
    queue = request.queue
    known = queue in env.local_queues or env.exists(queue)
    if not known and not (env.may_block(queue) and _is_on_server(env, queue)):
        return False
    with forking:
        from .queue import is_contended
    return is_contended(env, request)


def _is_on_server(env: Environment, path: str) -> bool:
    """Whether the file exists after all, and another machine has only just made it. An NFS client remembers for a
    minute that there was none, unless its directory is opened: then it asks the server whether that has changed."""
    if not env.storage(path).shared:
        return False
    try:
        env.close(env.open_directory(f"{path.rpartition('/')[0]}/."))
    except OSError:
        return False
    return env.exists(path)


def _is_taken(env: Environment, request: FileRequest) -> bool | None:
    """Whether a living process holds it; None if only a full look can tell (it may be a dead holder's)."""
    if not env.exists(request.path):
        return False
    try:
        fd = env.open_existing(request.path, write=False)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        return env.guarded(fd) or None
    finally:
        env.close(fd)
