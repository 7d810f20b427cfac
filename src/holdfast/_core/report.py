"""What people are told: who holds, since when, why, and what to do next. Safe to print on a terminal."""

from __future__ import annotations

import time

from ..errors import AcquireTimeout
from ..model import Holder, Liveness, Status
from ..protocols import is_persistent
from .contest import Refusal

_SHOWN_TAG = 200
_SHOWN_COMMAND = 120
_BREAK = "Lock.break_lock(), holdfast release --force"


def refused(refusal: Refusal, timeout: float | None) -> AcquireTimeout:
    """The error for a lock that could not be had in time."""
    status = refusal.status
    within = f"within {timeout:g} s" if timeout else "at once"
    return AcquireTimeout(
        f"could not get {status.path} {within}: {sentence(status)}. {advice(status)}",
        path=status.path,
        protocol=status.protocol,
        holder=status.holder,
    )


def waiting(status: Status) -> str:
    """The one line that a wait of more than a second is announced with."""
    return f"waiting for {status.path}: {sentence(status)}"


def sentence(status: Status) -> str:
    """Who holds it, since when, why, and how that is known."""
    holder = status.holder
    if is_persistent(status.protocol) and (len(status.holders) != 1 or holder is None or holder.pid is None):
        return _by_the_kernel(status)
    if holder is None or holder.pid is None:
        return f"it is held by somebody whose record cannot be used ({printable(status.evidence.text)})"
    words = ["held by a reader," if holder.shared else "held by", _process(holder)]
    if holder.host and status.evidence.source == "none":
        words.append(f"on {printable(holder.host)}")
    if holder.since is not None:
        words.append(f"since {moment(holder.since)}" + (f" ({duration(status.age)} ago)" if status.age else ""))
    if holder.tag:
        words.append(f"for {printable(holder.tag, _SHOWN_TAG)!r}")
    known = f"{status.liveness.value}: {printable(status.evidence.text)}"
    return f"{' '.join(words)}; {known}" + (
        "" if status.liveness is Liveness.ALIVE else f"; {printable(status.reason)}"
    )


def _by_the_kernel(status: Status) -> str:
    """The same for a lock that names nobody, where several hold it, or nobody is seen."""
    seen = [holder for holder in status.holders if holder.pid is not None]
    if not seen and status.liveness is Liveness.ALIVE:
        who = "held by a process that cannot be seen from here, or that has let go of it since"
    elif not seen:
        return status.reason
    else:
        number = f"{len(seen)} or more" if len(seen) < len(status.holders) else f"{len(seen)}"
        kind = "readers" if seen[0].shared else "processes, which inherited it"
        who = f"held by {number} {kind}; the first is {_process(seen[0])}"
    return f"{who}; {status.liveness.value}: {printable(status.evidence.text)}"


def _process(holder: Holder) -> str:
    command = f" ({printable(_brief(holder.command), _SHOWN_COMMAND)})" if holder.command else ""
    return f"process {holder.pid}{command}"


def advice(status: Status) -> str:
    """The next step."""
    if is_persistent(status.protocol):
        if status.holder is None or status.holder.pid is None:
            return "Wait until it is released, or look for who has the file open (fuser, lsof), in containers as well"
        return f"Wait until process {status.holder.pid} releases it, or end that process"
    if status.record is None:
        return f"Look at the file; if nobody uses it, break the lock ({_BREAK})"
    pid = status.holder.pid if status.holder else None
    if status.liveness is Liveness.ALIVE:
        return f"Wait until process {pid} releases it or ends"
    if status.liveness is Liveness.DEAD and status.evidence.proven:  # so this contender may not, or does not want to
        return f"Whoever may write to the file can take it over, or break the lock ({_BREAK})"
    if status.liveness is Liveness.DEAD:
        return f"It can be taken over once its protocol calls it stale; if you are sure, break the lock ({_BREAK})"
    return f"Ask where it was written; if its holder is gone, break the lock ({_BREAK})"


def _brief(command: str) -> str:
    """A command line as people think of it: without the interpreter and its directory."""
    words = command.split()
    if len(words) > 1 and words[0].rpartition("/")[2].startswith("python") and not words[1].startswith("-"):
        del words[0]
    words[0] = words[0].rpartition("/")[2]
    return " ".join(words)


def moment(epoch: float) -> str:
    """Local time, to the second."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch))
    except (OverflowError, ValueError, OSError):
        return f"second {epoch:.0f} of the epoch"


def duration(seconds: float) -> str:
    """Roughly, in the largest unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def printable(text: str, limit: int = 300) -> str:
    """One line that no terminal takes for a command: what is not printable is escaped, what is long is cut."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
