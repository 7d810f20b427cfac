"""The decision whether a lock may be taken over, from the record, the evidence, and the caller's options.

V1  A guard that is held is respected, whatever the caller asked for.
V2  A record that is malformed or unreadable is never reclaimed.
V3  `safe`: proof beats rule both ways. Proven dead is reclaimed at once; otherwise the protocol's rule must hold *and*
    the evidence must say dead. Unknown is held.
V4  `protocol`: the rule to its letter, nothing else. `never`: nothing at all. A callable: its answer,
    which is not to be awaited: anything that is would count as a yes.
V5  A protocol whose rule fails closed only says that a lock is stale: then we neither wait for it nor take it over,
    unless the caller's callable says so. Under `safe`, we wait for a holder that is known to be alive all the same.
V6  A file with more content than a record may be data with lines that look like a record's. It is held, and is never
    reclaimed, whatever the caller asked for.
V7  A callable may answer later: it returns a `Signal` and is asked again once that is set (acquire.py, A6). Until then
    the lock counts as held.
V8  A holder with a lease is alive until its record has not changed for the whole lease. Then it is replaced, if no
    guard is held: it has counted itself lost before (lease.py, LE2). Its age, by whichever clock, does not matter.
V9  Where every holder keeps its lock fresh, under `safe` the rule is enough, unless the holder is known to be alive.
V10 On a read-only filesystem nobody can take a lock over. A contender gets the system's error (takeover.py, T6); a mere
    look does not say that the lock can be acquired.
"""

from __future__ import annotations

import math

from ..._core.attempt import ask
from ..._core.messages import OUT_OF_HAND, OUT_OF_REACH
from ..._core.wait import Signal
from ...liveness import Liveness
from ...model import Evidence, Holder, Record, Status, Value
from ...protocols import is_persistent
from .inspect import UNFINISHED_SOURCE, Assessment, Observation, is_gone, is_outlived

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._platform.interface import Environment
    from ..._platform.values import LockOwner
    from .request import FileRequest


ASK_AGAIN = 1.0
"""Seconds after which a callable is asked again, as nothing announces a change of its answer."""


class Verdict(Value):
    reclaim: bool
    by_proof: bool
    """Whether no foreign process can have reached the same verdict by its rule and be acting on it."""
    reason: str
    stale_at: float | None = None
    """The time when the verdict may change by itself, in seconds since the epoch."""
    left_to_caller: bool = False
    """Whether waiting is also useless (V5)."""
    asked: Signal | None = None
    """Set once the caller knows the answer (V7)."""
    lapsed: bool = False
    """Whether the holder has a lease and may be alive, so that lease.py replaces it."""


def judge(env: Environment, request: FileRequest, seen: Observation, assessed: Assessment) -> Verdict:
    """The verdict whether this lock may be taken over now."""
    record, evidence, stale = seen.record, assessed.evidence, request.stale
    if assessed.liveness is Liveness.ALIVE and evidence.source == "guard":
        return Verdict(False, False, "its holder is alive")  # V1
    if seen.blocked is not None:
        return Verdict(False, False, f"{OUT_OF_HAND}{seen.blocked}")
    if evidence.source == UNFINISHED_SOURCE and stale != "never":
        return Verdict(True, True, "it was created, but nobody holds it")  # publish.py, P6
    if record is None:
        return Verdict(False, False, "what cannot be read counts as held")  # V2
    if record.mixed:
        return Verdict(False, False, "it contains more than a lock's record, so it may be data")  # V6
    if stale == "never":
        return Verdict(False, False, "this contender takes over nothing (stale='never')")
    if callable(stale):
        unjudged = describe(env, request, seen, assessed, Verdict(False, False, ""))
        answer: object = ask(stale, unjudged)
        if isinstance(answer, Signal):
            return Verdict(False, False, "the caller has yet to answer", env.time() + ASK_AGAIN, asked=answer)  # V7
        if hasattr(answer, "__await__"):
            raise TypeError(f"stale must return whether the lock is stale, and not something to be awaited: {answer!r}")
        if answer:
            return Verdict(True, False, "the caller calls it stale", lapsed=seen.lease is not None)
        return Verdict(False, False, "the caller does not call it stale", env.time() + ASK_AGAIN)
    if stale == "safe" and assessed.liveness is Liveness.DEAD and evidence.proven:
        # A foreign process may also be removing an old lock: then we have to settle (takeover.py, T5).
        own = min(request.stale_after, request.protocol.stale_after)
        old = request.protocol.is_stale(record, assessed.liveness, env.time(), own)
        return Verdict(True, not old, "its holder is proven dead")
    if stale == "safe" and seen.lease is not None:
        return _by_lease(env, seen, seen.lease)  # V8
    now, limit = env.time(), request.stale_after
    by_rule = request.protocol.is_stale(record, assessed.liveness, now, limit)
    stale_at = None if by_rule else request.protocol.stale_at(record, limit)
    if by_rule and request.protocol.fails_closed and (stale == "protocol" or assessed.liveness is not Liveness.ALIVE):
        older = f"it is older than {limit:g} s, and may be a dead holder's"
        return Verdict(False, False, older, left_to_caller=True)  # V5
    unheard = request.protocol.all_beat and assessed.liveness is not Liveness.ALIVE  # V9
    if by_rule and (stale == "protocol" or assessed.liveness is Liveness.DEAD or unheard):
        older = "" if limit == math.inf else f" (older than {limit:g} s)"  # a rule without an age
        reason = f"the {request.protocol.name} rule calls it stale{older}"
        return Verdict(True, False, reason, lapsed=seen.lease is not None)
    if by_rule:
        return Verdict(False, False, f"it is older than {limit:g} s, but its holder is not known to be dead")
    return Verdict(False, False, f"it is not stale by the {request.protocol.name} rule", stale_at)


def was_released(
    env: Environment, request: FileRequest, seen: Observation, assessed: Assessment, verdict: Verdict
) -> bool:
    """Whether a verdict that rests on the end of the holder was never true: the holder had removed the file before it
    ended, during the look (inspect.py, L12)."""
    doubtful = assessed.is_dead or verdict.reclaim or verdict.left_to_caller
    return doubtful and is_gone(env, request.path, seen.identity)


def _by_lease(env: Environment, seen: Observation, lease: float) -> Verdict:
    if seen.unchanged >= lease:
        return Verdict(True, False, f"its record has not changed for its lease of {lease:g} s", lapsed=True)
    left = lease - seen.unchanged
    return Verdict(False, False, f"its lease of {lease:g} s may not be over", env.time() + left)


def missing(request: FileRequest) -> Status:
    """The status of a lock without a lock file."""
    nothing = Evidence("none", "there is no lock file", proven=True)
    return Status(
        request.path, request.protocol.name, False, False, Liveness.UNKNOWN, nothing, reason="nobody holds it"
    )


def describe(
    env: Environment, request: FileRequest, seen: Observation, assessed: Assessment, verdict: Verdict
) -> Status:
    """The observation, evidence and verdict as a value for the caller."""
    record = seen.record
    return Status(
        path=request.path,
        protocol=request.protocol.name,
        locked=not verdict.reclaim,
        stale=verdict.reclaim,
        liveness=assessed.liveness,
        evidence=assessed.evidence,
        holder=_holder(env, seen, assessed),
        record=record,
        reason=verdict.reason,
        age=None if record is None else _ago(env, record.since),
        modified=seen.modified,
        data=seen.data,
        record_age=None if record is None else _ago(env, record.created),
    )


def within_reach(env: Environment, status: Status) -> Status:
    """The status for a mere look (V10)."""
    if status.stale and env.is_read_only(status.path):
        return status.replaced(locked=True, stale=False, reason=f"{status.reason}, but {OUT_OF_REACH}")
    return status


def holder_of(env: Environment, owner: LockOwner, record: Record | None) -> Holder:
    """The owner of a kernel lock, with what the record says of it. Only for display."""
    command = None if owner.pid is None else env.command(owner.pid)
    if record is None or record.pid != owner.pid:
        return Holder(owner.pid, command=command, shared=not owner.exclusive)
    return Holder(owner.pid, record.host, record.since, record.tag, command, not owner.exclusive)


def with_heirs(env: Environment, status: Status, owners: Callable[[], list[LockOwner]]) -> Status:
    """The status with the holders that the kernel's tables name. If the process that acquired the lock has ended, its
    holders are the processes to which it has left the guard: one without a pid if none is visible. If the file cannot
    be read, or is no record, its holder is the process that has the guard. Only for display: reading the kernel's
    tables takes milliseconds."""
    first = status.holder
    guarded = status.evidence.source == "guard" and status.liveness is Liveness.ALIVE
    nameless = status.locked and status.record is None and not is_persistent(status.protocol)
    try:
        if first is None or not (nameless or (guarded and is_outlived(env, status.record))):
            return status
        heirs = [one.pid for one in owners() if one.exclusive and not one.waiting and one.pid not in (None, first.pid)]
    except OSError:
        return status  # as good as before
    holders = tuple(first.replaced(pid=pid, command=env.command(pid)) for pid in heirs if pid is not None)
    if nameless:
        return status.replaced(holder=holders[0]) if holders else status
    if not holders:
        return status.replaced(holder=first.replaced(command=None), holders=(Holder(),))
    return status.replaced(holder=holders[0], holders=holders)


def _ago(env: Environment, moment: float | None) -> float | None:
    return None if moment is None else max(0.0, env.time() - moment)


def _holder(env: Environment, seen: Observation, assessed: Assessment) -> Holder:
    record = seen.record
    if record is None:
        return Holder()
    # Look up the command only for a pid that is meaningful here and has not been reused.
    marker, here = record.marker, env.identity()
    local = marker is None or marker.identity.pid_space == here.pid_space
    alive = assessed.liveness is Liveness.ALIVE and record.pid is not None and record.pid > 0
    command = env.command(record.pid) if alive and local and record.pid is not None else None
    return Holder(pid=record.pid, host=record.host, since=record.since, tag=record.tag, command=command)
