"""Cleaning: removing what may go (remains.py), with the care of a takeover.

M7  What was found decides nothing. Each thing is looked at again when it is to go, and goes only if it is still what it
    was: a lock by a judgement of its own, a temporary file or a ticket by the very test that found it.
M8  A lock that is proven dead while no rule holds: no foreign process can have judged it stale. It is removed under its
    claim (remove.py, R1, R2), and announced where the protocol can say so. Nothing has to settle.
M9  A rule holds: a foreign process may have judged it stale as well, and be about to remove what the path names. If the
    path were free for that moment, a newcomer could publish a lock there, and that process would remove it. So a stale
    lock is not simply removed, but taken over, held until that has settled, and released (takeover.py, T1 to T7). Who
    looks in the meantime finds a fresh lock that is held; who acts on an older look removes ours, where nobody is
    inside. A removal that settled *after* the path is free would protect nobody.
    The same where there are no guards: nothing is proven there but by the process. And what
    was created and never written is finished, and released, as its first contender would do (publish.py, X2).
M13  Others may exchange a directory for a link to another one between the look and the removal. So a directory is
    opened when it is entered, never through a link, and all that is done in it goes by that descriptor (anchors.py).
"""

from __future__ import annotations

import errno

from .._core import tickets
from .._core.environment import Environment, Wait
from .._core.liveness import Assessment, assess
from .._core.observe import Observation, forget, observe
from .._core.policy import Verdict, judge
from .._core.remove import remove_if
from .._core.request import Request
from .._core.rivals import announce_removal, end_removal, why_left
from .._core.takeover import complete, take_over
from ..errors import HoldfastError, LockLost
from ..model import Value
from . import recognition
from .remains import ANNOUNCEMENT, LOCK, QUEUE, RECLAIM, TICKET, Leftover, may_be_approved, why_no_rival, why_orphan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import TypeVar

    T = TypeVar("T")
    Judge = Callable[[Environment, Request, Observation, Assessment], Verdict]

REMOVED, CHANGED, BLOCKED = "removed", "changed", "blocked"
_TAG = "holdfast clean"
_FORBIDDEN = "this user may not remove it"


class Removal(Value):
    """What became of a leftover: REMOVED; CHANGED, so that it is none any more; or BLOCKED, and by what."""

    result: str
    why: str = ""


def safe_or_approved(*, approved: bool) -> Judge:
    """The judgement of M10."""

    def verdict(env: Environment, request: Request, seen: Observation, assessed: Assessment) -> Verdict:
        found = judge(env, request, seen, assessed)
        if found.reclaim or not approved or seen.blocked is not None:
            return found
        if not may_be_approved(env, request.protocol, seen.record, assessed.liveness):
            return found
        return Verdict(True, False, f"the {request.protocol.name} rule calls it stale, and that was approved")

    return verdict


def proven(env: Environment, request: Request, seen: Observation, assessed: Assessment) -> Verdict:
    """The judgement of who removes only what is proven dead."""
    if assessed.is_dead and assessed.evidence.proven:
        return judge(env, request, seen, assessed)
    return Verdict(False, False, "its holder is not proven dead")


def remove(env: Environment, leftover: Leftover, *, approved: bool) -> Generator[Wait, None, Removal]:
    """Remove one of them, if it is still what it was (M7). OSError and HoldfastError where that cannot be done."""
    path = leftover.path
    if leftover.kind == LOCK:
        request = request_of(path, leftover.protocol)
        return (yield from remove_lock(env, request, safe_or_approved(approved=approved)))
    where, _, name = path.rpartition("/")
    try:
        if leftover.kind == TICKET:
            return _remove_ticket(env, where, name)
        if leftover.kind == ANNOUNCEMENT:
            return _remove_announcement(env, path)
        if leftover.kind == QUEUE:
            env.remove_directory(path)
        elif (why_no_rival if recognition.is_rival(name) else why_orphan)(env, where or "/", name) is None:
            return Removal(CHANGED)
        else:
            env.unlink(path)
    except FileNotFoundError:
        return Removal(CHANGED)
    except OSError as error:
        if leftover.kind == QUEUE and error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            return Removal(CHANGED)
        raise
    return Removal(REMOVED)


def _remove_ticket(env: Environment, where: str, name: str) -> Removal:
    try:
        queue = tickets.Queue(env, where)
    except NotADirectoryError:
        return Removal(CHANGED)  # a file, or a link to a directory
    with queue:
        if queue.is_guarded(name):
            return Removal(CHANGED)
        left = name in queue.names()
    tickets.remove_queue(env, where)
    return Removal(BLOCKED, _FORBIDDEN) if left else Removal(REMOVED)


def _remove_announcement(env: Environment, path: str) -> Removal:
    if why_left(env, path) is None:
        return Removal(CHANGED)
    request = request_of(path.removesuffix(RECLAIM), "sidecar")
    announced = announce_removal(env, request)  # it becomes ours, unless another one was faster
    if announced is None:
        return Removal(CHANGED)
    end_removal(env, request, announced)
    return Removal(BLOCKED, _FORBIDDEN) if env.exists(path) else Removal(REMOVED)


def request_of(path: str, protocol: str) -> Request:
    """A request for the lock file at this very path."""
    return Request(path, {"protocol": protocol, "tag": _TAG}, lock_file=path)


def remove_lock(env: Environment, request: Request, judged: Judge) -> Generator[Wait, None, Removal]:
    """Remove the lock if it is judged so now (M8, M9)."""
    seen = observe(env, request)
    if seen is None:
        return Removal(CHANGED)
    try:
        verdict = judged(env, request, seen, assess(env, seen))
        if not verdict.reclaim:
            return Removal(CHANGED, verdict.reason)
        if seen.unfinished:
            held = yield from complete(env, request, seen, insist=True)
        elif not verdict.by_proof or seen.fd < 0:
            held = yield from take_over(env, request, seen, verdict, insist=True)
        else:
            return (yield from _remove_proven(env, request, judged))
    finally:
        forget(env, seen)
    if held is None:
        return Removal(CHANGED) if seen.blocked is None else Removal(BLOCKED, seen.blocked)
    try:
        held.release()
    except LockLost:
        return Removal(CHANGED)  # who removed it acted on an older look (M9)
    return Removal(REMOVED)


def _remove_proven(env: Environment, request: Request, judged: Judge) -> Generator[Wait, None, Removal]:
    def still(seen: Observation, assessed: Assessment) -> bool:
        verdict = judged(env, request, seen, assessed)
        return verdict.reclaim and verdict.by_proof and not seen.unfinished

    return Removal(CHANGED if (yield from remove_if(env, request, still)) is None else REMOVED)


def side_by_side(jobs: Sequence[Generator[Wait, None, T]]) -> Generator[Wait, None, list[T | OSError | HoldfastError]]:
    """Run several at once, so that all of them settle in the time of one; what each returns, or its error."""
    results: dict[int, T | OSError | HoldfastError] = {}
    pending = dict(enumerate(jobs))
    try:
        while pending:
            deadline = 0.0
            for number, job in [*pending.items()]:
                try:
                    deadline = max(deadline, next(job).deadline)
                    continue
                except StopIteration as done:
                    results[number] = done.value
                except (OSError, HoldfastError) as error:
                    results[number] = error
                del pending[number]
            if pending:
                yield Wait((), deadline)
    finally:
        for job in pending.values():
            job.close()
    return [results[number] for number in range(len(jobs))]
