"""What may go: of the lock files in a directory, and of what lies beside them. Finding changes nothing.

M10  A lock may go if it is proven dead; or if its protocol's rule calls it stale *and* the evidence says dead
     (policy.py, V3). Only where the caller approves of it, also if the rule holds and nothing is known of the holder;
     never one that is known to live, never a lock of the kernel alone, never what cannot be read.
M11  Temporary files are named after a process. One that has ended never comes back to its file, whatever gets its
     number: those of ours have a token in their name, and are of this boot and PID namespace; those of semats are let
     be until no living one of another container could still need them, as they need a millisecond (rivals.py, Y2).
M12  A claim whose claimant is proven gone counts for nobody (claims.py, C2), and may go at any time.
M14  What may be somebody's data never goes, approved or not: a file that has more in it than a record (policy.py, V6),
     one without a marker under a name that text and data have, and a JSON object with neither a marker nor a
     `createdAt`.
"""

from __future__ import annotations

import os
import stat

from .._core import tickets
from .._core.claims import is_claim, why_over
from .._core.environment import Environment
from .._core.observe import read_record
from .._core.publish import temporary_name
from .._core.rivals import has_ended, why_left
from ..errors import MalformedRecord
from ..model import Liveness, Value
from ..protocols import get
from . import recognition
from .findings import Found, Unseen
from .walk import joined, subdirectories

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..model import Record, Status
    from ..protocols import Protocol
    from .findings import Surroundings
    from .survey import Survey

LOCK, TEMPORARY, TICKET, QUEUE, ANNOUNCEMENT = "lock", "temporary file", "ticket", "queue", "announcement"
RECLAIM = ".reclaim"
_YOUNG = 1.0
"""Seconds for which a temporary file of semats, or a ticket without content, is let be (rivals.py, Y2)."""


class Leftover(Value):
    """What may go, and why. `protocol` is empty for what is holdfast's own."""

    kind: str
    path: str
    protocol: str
    why: str


class Kept(Value):
    """A lock that its protocol's rule calls stale, and that goes only if the caller approves; and why it stays."""

    path: str
    protocol: str
    why: str


def directories(env: Surroundings, top: str, *, recursive: bool) -> Iterator[str]:
    """The directory, and those in it; no links are followed, and none of the kernel's inventions are entered."""
    census = env.census()
    pending = [top]
    while pending:
        where = pending.pop()
        yield where
        if not recursive:
            return
        try:
            pending.extend(reversed(subdirectories(env, census, where)))
        except OSError:
            continue  # whoever looks for locks in there hears of it


def leftovers(env: Surroundings, survey: Survey, where: str, *, approved: bool) -> Iterator[Leftover | Kept | Unseen]:
    """What may go in one directory. Changes nothing (survey.py, E1)."""
    for one in survey.directory(where):
        found = one if isinstance(one, Unseen) else of_lock(env, one, approved=approved)
        if found is not None:
            yield found
    yield from beside(env, where)


def beside(env: Environment, where: str) -> Iterator[Leftover | Unseen]:
    """What may go of what lies beside the lock files of one directory. Changes nothing."""
    try:
        names = sorted(env.list_directory(where))
    except OSError:
        return  # the survey has told
    for name in names:
        if not recognition.is_beside(name):
            continue
        path = joined(where, name)
        try:
            yield from _beside(env, where, name, path)
        except FileNotFoundError:
            continue
        except PermissionError:
            continue  # what may not be looked at is not recognised
        except OSError as error:
            yield Unseen(path, error)


def of_lock(env: Environment, found: Found, *, approved: bool) -> Leftover | Kept | None:
    """Whether a lock file may go, as it was found (M10)."""
    status = found.status
    if not status.protocol and not status.stale:
        return None
    protocol = get(status.protocol or "sema")
    if protocol.persistent:
        return None
    if _may_be_data(status):
        return None
    if status.stale:
        return Leftover(LOCK, status.path, protocol.name, f"{status.reason}: {status.evidence.text}")
    if not may_be_approved(env, protocol, status.record, status.liveness):
        return None
    rule = f"the {protocol.name} rule calls it stale"
    if approved:
        return Leftover(LOCK, status.path, protocol.name, f"{rule}, and that was approved: {status.evidence.text}")
    return Kept(status.path, protocol.name, f"{rule}, but nothing proves that its holder is dead")


def _may_be_data(status: Status) -> bool:
    """Whether nothing but two words in it says that it is a lock, and its name says that it is not (M14)."""
    record = status.record
    if record is None or record.marker is not None:
        return False
    name = os.path.basename(status.path)
    if record.protocol == "sidecar":
        return record.fields["payload"].get("createdAt") is None
    return record.mixed or recognition.is_called_otherwise(name)


def may_be_approved(env: Environment, protocol: Protocol, record: Record | None, liveness: Liveness) -> bool:
    """Whether the rule calls it stale, and nothing says that its holder lives (M10)."""
    if record is None or record.mixed or (record.marked and record.marker is None) or liveness is Liveness.ALIVE:
        return False
    return protocol.is_stale(record, liveness, env.time(), protocol.stale_after)


def _beside(env: Environment, where: str, name: str, path: str) -> Iterator[Leftover]:
    if recognition.is_queue(name):
        yield from _of_queue(env, path)
    elif name.endswith(RECLAIM):
        why = why_left(env, path)
        if why is not None:
            yield Leftover(ANNOUNCEMENT, path, "sidecar", why)
    elif recognition.is_rival(name):
        why = why_no_rival(env, where, name)
        if why is not None:
            yield Leftover(TEMPORARY, path, "semats", why)
    else:
        why = why_orphan(env, where, name)
        if why is not None:
            yield Leftover(TEMPORARY, path, "", why)


def _of_queue(env: Environment, queue: str) -> Iterator[Leftover]:
    try:
        opened = tickets.Queue(env, queue)
    except NotADirectoryError:
        return  # a file, or a link
    with opened:
        names = opened.names()
        if not names and opened.is_empty():
            yield Leftover(QUEUE, queue, "", "nobody waits: it is empty")
        for name in names:
            if _is_abandoned(env, opened, name):
                yield Leftover(TICKET, f"{queue}/{name}", "", "who waited has ended: its kernel lock is gone")


def _is_abandoned(env: Environment, queue: tickets.Queue, name: str) -> bool:
    try:
        fd = queue.open(name)
    except OSError:
        return False
    try:
        found = env.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return False
        if not found.st_size and abs(env.time() - found.st_mtime) < _YOUNG:
            return False  # it may be being made (tickets.py, Q2)
        return env.guarded(fd) is False
    except OSError:
        return False
    finally:
        env.close(fd)


def why_orphan(env: Environment, where: str, name: str) -> str | None:
    """Why a temporary file or a claim of ours is nobody's (M11, M12)."""
    if is_claim(name):
        return why_over(env, joined(where, name))
    who = env.identity()
    prefix = temporary_name(who, "").removesuffix(f"{who.pid}-.tmp")
    if "-" in (who.boot, who.pid_namespace) or not (name.startswith(prefix) and name.endswith(".tmp")):
        return None
    return _why_ended(env, name[len(prefix) :].partition("-")[0], joined(where, name))


def why_no_rival(env: Environment, where: str, name: str) -> str | None:
    """Why a temporary file of semats is nobody's (M11): by its name, its age and its content."""
    path = joined(where, name)
    base = name.rsplit(".", 3)[0]
    pid = get("semats").rival(name, base)
    if pid is None or abs(env.time() - env.stat(path).st_mtime) < _YOUNG:
        return None
    why = _why_ended(env, str(pid), path)
    if why is None:
        return None
    fd = env.open_existing(path, write=False)
    try:
        data = read_record(env, fd)
        if data and get("semats").decode(data).pid != pid:
            return None
    except MalformedRecord:
        return None
    finally:
        env.close(fd)
    return why


def _why_ended(env: Environment, pid: str, path: str) -> str | None:
    if not stat.S_ISREG(env.stat(path).st_mode):
        return None
    if not (pid.isascii() and pid.isdecimal()) or len(pid) > 10 or not has_ended(env, int(pid)):
        return None
    return f"process {pid}, which made it, has ended"
