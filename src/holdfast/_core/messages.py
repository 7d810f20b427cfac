"""Messages for people: why a lock could not be acquired, who holds it, since when, and what to do next.

All of it is safe to print on a terminal.
"""

from __future__ import annotations

import time

from ..errors import AcquireTimeout, EngineUnavailable, HoldfastError, LockStale, WouldDeadlock
from ..liveness import Liveness
from ..model import Evidence, Holder, SemaphoreStatus, Status, Waiter
from ..protocols import is_kept_fresh, is_persistent
from . import attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .attempt import Refusal
    from .hold import HoldRef, HoldState
    from .options import Request


def deadlock(request: Request, slots: int, own: Sequence[HoldRef]) -> WouldDeadlock:
    """The error for a caller that itself holds the lock, or all slots, and would wait forever; `own`: its shares."""
    target = request.target
    held = f"{target} is"
    if request.slot is not None:
        held = f"the one slot of {target} is" if slots == 1 else f"all {slots} slots of {target} are"
    if own and all(ref.dropped for ref in own):
        why = "by a handle that was dropped without release(), so it would wait for itself forever. Keep the "
        why += "handle and release it, or use `with`."
    else:
        why = "which would wait for itself forever. Release first, or set a timeout. Locks of holdfast's own"
        why += " classes with the same owner= share one hold."  # the modules of other systems have no owner=
    return WouldDeadlock(
        f"{held} held by this very thread or task, {why}",
        path=target,
        protocol=request.protocol_name,
    )


_SHOWN_TAG = 200
_SHOWN_COMMAND = 120
_SHOWN_SLOTS = _SHOWN_HEIRS = 3
_SHOWN_PIDS = 5
_SHOWN_RACE = 4500
"""Room for two paths of the greatest length."""


def _way_to_break(status: Status) -> str:
    return "Lock.break_lock()" if attempt.way_to_break is None else attempt.way_to_break(status)


def refused(refusal: Refusal, timeout: float | None, *, together: int = 1) -> AcquireTimeout:
    """The error for a lock or slot that could not be acquired in time. `together`: how many were to be acquired."""
    status = refusal.statuses[0]
    within = f"within {timeout:g} s" if timeout else "at once"
    all_or_none = f". It was one of {together} to be acquired together, so none of them is held" if together > 1 else ""
    what = refusal.target if refusal.target == status.path else f"a slot of {refusal.target}"
    step = _advice_to_itself(refusal) or next_step(refusal.statuses)
    return AcquireTimeout(
        f"could not get {what} {within}: {situation(refusal)}. {step}{all_or_none}",
        path=refusal.target,
        protocol=status.protocol,
        holder=status.holder,
    )


def no_answer(request: Request, server: str, timeout: float | None, seconds: float, *, acquires: bool) -> HoldfastError:
    """The error for a lock file whose server has not answered in time, but has been silent for `seconds`.

    `acquires`: the caller wants an AcquireTimeout when its time is up.
    """
    what = f"could not get {request.target}" if acquires else f"the state of {request.target} cannot be known"
    within = "" if timeout is None else f" within {timeout:g} s" if timeout else " at once" if acquires else ""
    text = (
        f"{what}{within}: {is_silent(server, seconds)}. Check that server and the network to it. Whatever was begun "
        "here is undone when the server answers"
    )
    kind = AcquireTimeout if acquires else EngineUnavailable
    return kind(text, path=request.target, protocol=request.protocol_name)


def away(request: Request, server: str, timeout: float, error: OSError) -> AcquireTimeout:
    """The error for a lock file whose server was away when the time was up."""
    text = (
        f"could not get {request.target} within {timeout:g} s: {is_away(server, error)}. Check that server and the "
        "network to it. If it runs and the error persists, mount it again"
    )
    return AcquireTimeout(text, path=request.target, protocol=request.protocol_name)


def unasked(request: Request, why: str) -> Status:
    """The status of a lock whose server `is_away`, or `is_silent`."""
    evidence = Evidence("server", why)
    return Status(request.target, request.protocol_name, False, False, Liveness.UNKNOWN, evidence, reason=why)


def is_silent(server: str, seconds: float) -> str:
    return f"{server or 'the server of its filesystem'} has not answered for {seconds:.1f} s"


def is_away(server: str, error: OSError) -> str:
    return f"{server} cannot be reached ({str(error.strerror).partition(';')[0]})"


def stale(refusal: Refusal) -> LockStale:
    """The error for a stale lock whose removal its protocol leaves to the caller."""
    status = refusal.statuses[0]
    how = "pass a callable as stale= that says so, or " if attempt.way_to_break is None else ""
    return LockStale(
        f"{status.path} is stale: {sentence(status)}. The {status.protocol} protocol does not remove such a lock by "
        f"itself. Make sure that its holder is gone; then {how}break the lock ({_way_to_break(status)})",
        path=status.path,
        protocol=status.protocol,
        holder=status.holder,
    )


def waiting(refusal: Refusal, place: str = "") -> str:
    """The line that announces a wait of more than a second. `place`: the place in the queue, if known."""
    itself = _advice_to_itself(refusal)
    behind = (f"; {place}" if place else "") + (f". {itself}" if itself else "")
    return f"waiting for {refusal.target}: {situation(refusal)}{behind}"


def place_in(waiters: Sequence[Waiter], pid: int) -> str:
    """The place of a process in the queue; empty if it cannot be seen, or if several waiters have that pid."""
    queued = [one.position for one in waiters if one.position is not None]
    places = [one.position for one in waiters if one.pid == pid and one.position is not None]
    return "" if len(places) != 1 else f"number {places[0]} of {len(queued)} in the queue"


def situation(refusal: Refusal) -> str:
    """The reason for a wait: who holds the lock, or the first few slots."""
    statuses = refusal.statuses
    return sentence(statuses[0]) if refusal.target == statuses[0].path else all_taken(statuses)


def all_taken(statuses: Sequence[Status]) -> str:
    """The reason for a wait for any slot of a semaphore: who holds the first few."""
    shown = [f"slot {slot}: {sentence(status, brief=True)}" for slot, status in enumerate(statuses[:_SHOWN_SLOTS])]
    more = len(statuses) - len(shown)
    taken = "its one slot is taken" if len(statuses) == 1 else f"all {len(statuses)} slots are taken"
    if not all(_is_taken(status) for status in statuses):
        taken = "no slot was free for this caller"
    return f"{taken} ({'; '.join(shown)}" + (f"; and {more} more)" if more else ")")


def _advice_to_itself(refusal: Refusal) -> str | None:
    """Advice for a process that is waiting for itself; None if others are in the way."""
    holds: dict[HoldState, bool] = {}
    for ref in refusal.own:
        holds[ref.held] = bool(ref.dropped) and holds.get(ref.held, True)
    dropped = sum(holds.values())
    if len(refusal.statuses) > 1:
        if not dropped:
            return None
        return (
            f"This very process holds {dropped} of the slots by handles that were dropped without release(), so they "
            "stay held until it ends. Keep the handles and release them, or use `with`"
        )
    holder = refusal.statuses[0].holder
    if not holds or holder is None or holder.pid not in {held.env.identity().pid for held in holds}:
        return None
    if dropped:
        return (
            "This very process holds it, by a handle that was dropped without release(), so it stays held until the "
            "process ends. Keep the handle and release it, or use `with`"
        )
    return "This very process holds it, by another handle: wait until that is released, or release it first"


def next_step(statuses: Sequence[Status]) -> str:
    """The next step. For a semaphore, it is about a slot whose holder may be gone."""
    if len(statuses) == 1:
        return advice(statuses[0])
    for slot, status in enumerate(statuses):
        if status.liveness is not Liveness.ALIVE:
            return f"Slot {slot}, {status.path}: {advice(status)}"
    return "Wait until one of these processes releases its slot or ends"


def sentence(status: Status, *, brief: bool = False) -> str:
    """The holder, since when, why, and how that is known; if `brief`, the last only for a holder that may be gone."""
    holder = status.holder
    if status.evidence.source == "counter":
        who = "" if holder is None else f": {_process(holder)}"
        return f"{printable(status.evidence.text)}{who}"
    if status.evidence.source == "race" or (status.evidence.source == "server" and not _is_taken(status)):
        return printable(status.evidence.text, _SHOWN_RACE)
    if is_persistent(status.protocol) and (len(status.holders) != 1 or holder is None or holder.pid is None):
        return _by_the_kernel(status, brief=brief)
    if status.record is not None and (holder is None or holder.pid is None) and is_kept_fresh(status.protocol):
        when = "" if status.record_age is None else f", and was refreshed {duration(status.record_age)} ago"
        return f"the lock does not name its holder{when}; {printable(status.reason)}"
    if not _is_taken(status):
        return "nobody holds it at this moment: it is changing hands"
    if holder is None or holder.pid is None:
        return f"its record cannot be used ({printable(status.evidence.text)}), so it counts as held"
    heirs = _heirs(status)
    words = ["held by a reader," if holder.shared else "held by", _left_to(status) if heirs else _process(holder)]
    if heirs and (holder.since is not None or holder.tag):
        words[-1] += ","
    # In a container, it has another pid.
    unseen = status.liveness is Liveness.ALIVE and not holder.command and not heirs
    if holder.host and (unseen or status.evidence.source in ("none", "server")):
        words.append(f"on {printable(holder.host)}")
    if holder.since is not None:
        words.append(f"since {since_when(holder.since, status.age)}")
    if holder.tag:
        words.append(f"for {printable(holder.tag, _SHOWN_TAG)!r}")
    if brief and status.liveness is Liveness.ALIVE:
        return " ".join(words)
    known = f"{status.liveness.value}: {printable(status.evidence.text)}"
    return f"{' '.join(words)}; {known}" + (
        "" if status.liveness is Liveness.ALIVE else f"; {printable(status.reason)}"
    )


def _is_taken(status: Status) -> bool:
    """Whether there is a lock. False if a waiter that is not the first has looked between two holders."""
    return status.locked or status.stale or status.holder is not None


def _heirs(status: Status) -> tuple[Holder, ...]:
    """The processes to which an ended process has left the lock; one without a pid if none is visible."""
    recorded = status.record is not None and status.evidence.source == "guard" and not is_persistent(status.protocol)
    return status.holders if recorded else ()


def _left_to(status: Status) -> str:
    """The heirs in words."""
    seen = [_process(holder) for holder in _heirs(status) if holder.pid is not None]
    if not seen:
        return f"a process that inherited it from process {first_holder(status)}, which has ended"
    more = [f"{len(seen) - _SHOWN_HEIRS} more"] if len(seen) > _SHOWN_HEIRS else []
    return f"{_listed(seen[:_SHOWN_HEIRS] + more)}, to which process {first_holder(status)} left it when it ended"


def first_holder(status: Status) -> int | None:
    """The process that acquired a lock and has ended, where others hold it now."""
    return status.record.pid if _heirs(status) and status.record is not None else None


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else words[0]


def described(status: Status | SemaphoreStatus) -> str:
    """A whole status as one sentence, as `print` shows it."""
    number = len(status.waiters)
    wait = f"; {number} wait{'s' if number == 1 else ''} for it" if number else ""
    if isinstance(status, Status):
        return f"{_described(status)}{wait}"
    taken = [f"slot {slot}: {sentence(one, brief=True)}" for slot, one in enumerate(status) if one.locked]
    held = f" ({'; '.join(taken)})" if taken else ""
    return f"{status.free} of {len(status)} slots {'is' if status.free == 1 else 'are'} free{held}{wait}"


def _described(status: Status) -> str:
    if not status.locked and not status.stale:
        shared = f", and {sentence(status, brief=True)}" if status.holder is not None else ""
        return f"{status.path} is free{shared}"
    why = sentence(status)
    if status.stale:
        return f"{status.path} can be taken over: {why}"
    return f"{status.path} is {why}" if why.startswith("held ") else f"{status.path}: {why}"


def _by_the_kernel(status: Status, *, brief: bool) -> str:
    """The sentence for a lock that names no holder, if several hold it or none is visible."""
    seen = [holder for holder in status.holders if holder.pid is not None]
    if not seen and status.liveness is Liveness.ALIVE:
        who = "held by a process that cannot be seen from here, or that has released it since"
    elif not seen:
        return status.reason
    else:
        number = f"{len(seen)} or more" if len(seen) < len(status.holders) else f"{len(seen)}"
        kind = "readers" if seen[0].shared else "processes, which inherited it"
        who = f"held by {number} {kind}; the first is {_process(seen[0])}"
    return who if brief else f"{who}; {status.liveness.value}: {printable(status.evidence.text)}"


def _process(holder: Holder) -> str:
    command = f" ({printable(brief_command(holder.command), _SHOWN_COMMAND)})" if holder.command else ""
    return f"process {holder.pid}{command}"


OUT_OF_REACH = "its filesystem is read-only, so nobody can take it over"

OUT_OF_HAND = "it could be taken over, but "
"""The beginning of the reason for a lock that only this contender cannot take over."""
NO_LOCKS_HERE = "this process has no kernel locks, by which alone it could know that the holder's is gone"


def is_out_of_reach(status: Status) -> bool:
    """Whether a contender would get the lock if the lock file could be written."""
    return status.locked and status.reason.endswith(OUT_OF_REACH)


def advice(status: Status) -> str:
    """The next step for a caller that does not get the lock."""
    way = _way_to_break(status)
    if is_out_of_reach(status):
        return "Make its filesystem writable; then the next contender takes the lock over"
    others = f"Any user who may write to the file can take it over, or break the lock ({way})"
    if status.reason.startswith(f"{OUT_OF_HAND}this user"):
        return others
    if status.reason == f"{OUT_OF_HAND}{NO_LOCKS_HERE}":
        return f"Any process with kernel locks takes it over; if its holder is certainly gone, break the lock ({way})"
    if status.evidence.source == "counter":
        return "Find out which process has that file open (fuser, lsof), and why it makes no progress"
    if status.evidence.source == "race" or not _is_taken(status):
        return "Try again"
    if is_persistent(status.protocol):
        pids = [str(one.pid) for one in status.holders or (status.holder,) if one is not None and one.pid is not None]
        if not pids:
            return "Wait until it is released, or find out who has the file open (fuser, lsof), in containers as well"
        if len(pids) > 1:
            more = [f"{len(pids) - _SHOWN_PIDS} more"] if len(pids) > _SHOWN_PIDS else []
            return f"Wait until processes {_listed(pids[:_SHOWN_PIDS] + more)} release it, or end them"
        return f"Wait until process {pids[0]} releases it, or end that process"
    if status.record is None and status.evidence.source == "guard":
        same = "If others lock this file as flock(1) does, do the same (protocol='flock', -p flock)"
        return f"Wait until it is released. {same}"
    if status.record is None and status.holder is not None and status.holder.pid is not None:
        return f"Wait until process {status.holder.pid} releases it or ends"
    if status.record is None:
        return f"Look at the file: if it is not a lock, choose another path; if nobody uses it, break the lock ({way})"
    if status.liveness is Liveness.UNKNOWN and is_kept_fresh(status.protocol):
        return f"Wait until it is released, or no longer refreshed; if nobody uses it, break the lock ({way})"
    if heirs := _heirs(status):
        pids = [str(one.pid) for one in heirs if one.pid is not None]
        if not pids:
            first = first_holder(status)
            return f"Wait until the process that inherited the lock from process {first} releases it or ends"
        ends = f"es {_listed(pids)} release it or end" if len(pids) > 1 else f" {pids[0]} releases it or ends"
        return f"Wait until process{ends}"
    pid, command = (status.holder.pid, status.holder.command) if status.holder else (None, None)
    if status.liveness is Liveness.ALIVE and pid is None:
        return f"Wait until it is released; if nobody uses it, break the lock ({way})"
    if status.liveness is Liveness.ALIVE and status.evidence.source == "guard" and not command:
        # The process is not visible: it may have ended, and left the kernel lock to a child.
        return f"Wait until process {pid}, or a process that inherited the lock from it, releases it or ends"
    if status.liveness is Liveness.ALIVE:
        return f"Wait until process {pid} releases it or ends"
    if status.liveness is Liveness.DEAD and status.evidence.proven:  # so this contender does not want to
        return others
    lease = status.record.lease
    if lease is not None:
        return f"Wait until it is released, or its record has not changed for its lease of {lease:g} s"
    if status.liveness is Liveness.DEAD:
        return (
            f"Its protocol decides when it can be taken over; if its holder is certainly gone, break the lock ({way})"
        )
    return f"Check where it was written; if its holder is gone, break the lock ({way})"


def unbreakable(status: Status) -> str:
    """Why the file of a kernel lock that is held is not removed."""
    why = "Such a lock is the kernel's, and ends with its holder; without the file, others would get in beside it"
    return f"{sentence(status)}. {why}. {advice(status)}"


def brief_command(command: str) -> str:
    """A command line as people think of it: without the interpreter and its directory."""
    words = command.split()
    if not words:
        return ""
    if len(words) > 1 and words[0].rpartition("/")[2].startswith("python") and not words[1].startswith("-"):
        del words[0]
    words[0] = words[0].rpartition("/")[2]
    return " ".join(words)


def since_when(since: float, age: float | None) -> str:
    """The moment of an acquisition, and how long ago it was; not if it is in the future, by the clock here."""
    return moment(since) + (f" ({duration(age)} ago)" if age else "")


def moment(epoch: float) -> str:
    """The time in local time, to the second."""
    try:
        local = time.localtime(epoch)
        return f"{local.tm_year:04}{time.strftime('-%m-%d %H:%M:%S', local)}"  # %Y may leave zeros out
    except (OverflowError, ValueError, OSError):
        return f"second {epoch:.0f} of the epoch"


def duration(seconds: float) -> str:
    """A duration, roughly, in the largest unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def span(seconds: float) -> str:
    """Like `duration`, but short ones to the millisecond: for durations that were asked for."""
    return duration(seconds) if seconds >= 120 else f"{round(seconds, 3):g} s"


def printable(text: str, limit: int = 300) -> str:
    """The text as one line without terminal commands: unprintable characters are escaped, long text is cut."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def quoted(*words: str) -> str:
    """Words of a command, quoted for a shell: unprintable ones as the bytes that they have for the system."""
    from shlex import quote

    return " ".join(quote(word) if word.isprintable() else f"$'{''.join(map(_escaped, word))}'" for word in words)


def _escaped(character: str) -> str:
    if character.isprintable() and character not in "'\\":
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))
