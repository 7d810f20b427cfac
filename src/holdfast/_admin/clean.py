"""Leftovers among lock files and beside them: finding and removing them.

M7  A finding decides nothing. Each leftover is looked at again before it is removed, and stays if it is no longer what
    it was: a lock by a judgement of its own, a temporary file or a ticket by the very test that found it.
M8  A lock that is proven dead while no rule holds: no foreign process can have judged it stale. It is removed under its
    claim (remove.py, R1, R2), and announced where the protocol can say so. Nothing has to settle.
M9  A lock that a rule calls stale: a foreign process may have judged it so as well, and be about to remove what the
    path names. If the path were free for that moment, a newcomer could publish a lock there, and that process would
    remove it. So a stale lock is not simply removed, but taken over, held until that has settled, and released
    (takeover.py, T1 to T7). A contender that looks meanwhile finds a fresh lock that is held; one that acts on an older
    look removes ours, where nobody is inside. A removal that settled *after* the path is free would protect nobody.
    Locks are treated the same where there are no guards: nothing is proven there but by the process. A file that was
    created and never written is finished, and released, as its first contender would do (publish.py, P6).
M10  A lock may be removed if it is proven dead; or if its protocol's rule calls it stale *and* the evidence says dead
     (policy.py, V3). If the caller approves, also if the rule calls it stale and nothing is known of the holder. Never
     a lock whose holder is known to live, never a lock of the kernel alone, never one that cannot be read.
M11  Temporary files are named after a process. A process that has ended never comes back to its file, whatever gets its
     number: ours have a token in their name, and are of this boot and PID namespace; those of semats are left alone
     until no living process of another container could still need them, as it needs them for a millisecond (interop.py,
     Y2).
M12  A claim whose claimant is proven gone no longer counts (takeover.py, T12), and may be removed at any time.
M13  Other users may exchange a directory for a link to another one between the look and the removal. So a directory is
     opened when it is entered, never through a link, and each step in it goes by that descriptor.
M14  Possible data of a user is never removed, approved or not: a file that has more in it than a record (policy.py,
     V6), one without a marker under a name of text or data, and a JSON object with neither a marker nor a `createdAt`.
M15  A lock that is a directory says nothing of its holder, and an empty directory may be a user's: it is removed only
     if a holdfast holder's mark says that it is dead, or if the caller approves. It is taken over and released (M9).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from .._core.messages import is_out_of_reach
from .._core.wait import Steps, Wait
from .._platform.interface import Environment, Surroundings
from .._platform.values import temporary_name
from ..engines.file import directory, lease, queue
from ..engines.file.hold import FileHold
from ..engines.file.inspect import Assessment, Observation, assess, forget, observe
from ..engines.file.interop import announce_removal, end_removal, why_left
from ..engines.file.policy import Verdict, judge
from ..engines.file.remove import remove_if
from ..engines.file.request import FileRequest
from ..engines.file.takeover import TRIES, complete, is_claim, take_over, why_over
from ..errors import HoldfastError, LockLost, MalformedRecord
from ..liveness import Liveness
from ..model import Record, Status, Value
from ..protocols import Protocol, get
from ..protocols.base import MAX_RECORD_BYTES
from . import detect
from .found import Found, Unreadable
from .scan import Survey, joined, subdirectories

T = TypeVar("T")

Judge = Callable[[Environment, FileRequest, Observation, Assessment], Verdict]

LOCK, TEMPORARY, TICKET, QUEUE, ANNOUNCEMENT = "lock", "temporary file", "ticket", "queue", "announcement"
_HAS_ENDED = "the process that waited has ended"
_IS_OLD = "it was made on another machine, or through another mount, more than a day ago"
_YOUNG = 1.0
"""Seconds for which a temporary file of semats is let be (interop.py, Y2)."""


class Leftover(Value):
    """A lock file, or something beside one, that may be removed, and why. `protocol` is empty for holdfast's own. With
    a `way`, it is a lock that stays: `why` it does, and what removes it."""

    kind: str
    path: str
    protocol: str
    why: str
    way: str = ""


def directories(env: Surroundings, top: str, *, recursive: bool) -> Iterator[str]:
    """The directory, and those below it, as a tree is walked (scan.py, E4)."""
    tables = env.proc_locks()
    pending = [top]
    while pending:
        where = pending.pop()
        yield where
        if not recursive:
            return
        try:
            pending.extend(reversed(subdirectories(env, tables, where)))
        except OSError:
            continue  # the look for locks in there will tell


def leftovers(env: Surroundings, survey: Survey, where: str, *, approved: bool) -> Iterator[Leftover | Unreadable]:
    """Leftovers in one directory. Changes nothing (scan.py, E1)."""
    for one in survey.directory(where):
        found = one if isinstance(one, Unreadable) else of_lock(env, one, approved=approved)
        if found is not None:
            yield found
    yield from beside(env, where)


def beside(env: Environment, where: str) -> Iterator[Leftover | Unreadable]:
    """Leftovers beside the lock files of one directory. Changes nothing."""
    try:
        names = sorted(env.list_directory(where))
    except OSError:
        return  # the survey has told
    for name in filter(detect.is_beside, names):
        path = joined(where, name)
        try:
            yield from _beside(env, where, name, path)
        except (FileNotFoundError, PermissionError):
            continue  # not recognised, as it may not be looked at
        except OSError as error:
            yield Unreadable(path, error)


def of_lock(env: Environment, found: Found, *, approved: bool) -> Leftover | None:
    """A lock file as leftover, which may stay, by how it was found (M10); None if it is none."""
    status = found.status
    if found.advice is not None or (not status.protocol and not status.stale):
        return None  # another program's: it has rules of its own (kinds/)
    protocol = get(status.protocol or "sema")
    if protocol.persistent or _may_be_data(status):
        return None
    if is_out_of_reach(status):
        return Leftover(LOCK, status.path, protocol.name, status.reason, "it can go once its filesystem is writable")
    if status.stale and not (protocol.all_beat and not status.evidence.proven):  # M15
        return Leftover(LOCK, status.path, protocol.name, f"{status.reason}: {status.evidence.text}")
    if not may_be_approved(env, protocol, status.record, status.liveness):
        if status.stale or status.liveness is not Liveness.DEAD or status.record is None:
            return None
        why = f"{status.evidence.text}, but the {protocol.name} rule does not call it stale yet"
        return Leftover(LOCK, status.path, protocol.name, why, "holdfast break removes it")
    rule = f"the {protocol.name} rule calls it stale"
    if approved:
        return Leftover(LOCK, status.path, protocol.name, f"{rule}, and that was approved: {status.evidence.text}")
    why = f"{rule}, but nothing proves that its holder is dead"
    return Leftover(LOCK, status.path, protocol.name, why, "--approve-stale removes it")


def _may_be_data(status: Status) -> bool:
    """Whether it may be a user's data: two words in it make it a lock, and its name says that it is none (M14)."""
    record = status.record
    if record is None or record.marker is not None:
        return False
    if record.protocol == "sidecar":
        return record.fields["payload"].get("createdAt") is None
    return record.mixed or detect.is_called_otherwise(os.path.basename(status.path))


def may_be_approved(env: Environment, protocol: Protocol, record: Record | None, liveness: Liveness) -> bool:
    """Whether the rule calls it stale, and nothing says that its holder lives (M10)."""
    if record is None or record.mixed or (record.marked and record.marker is None) or liveness is Liveness.ALIVE:
        return False
    return protocol.is_stale(record, liveness, env.time(), protocol.stale_after)


def _beside(env: Environment, where: str, name: str, path: str) -> Iterator[Leftover]:
    if detect.is_queue(name):
        yield from _of_queue(env, path)
        return
    if name.endswith(detect.RECLAIM):
        kind, protocol, why = ANNOUNCEMENT, "sidecar", why_left(env, path)
    elif detect.is_rival(name):
        kind, protocol, why = TEMPORARY, "semats", why_no_rival(env, where, name)
    else:
        kind, protocol, why = TEMPORARY, "", why_orphan(env, where, name)
    if why is not None:
        yield Leftover(kind, path, protocol, why)


def _of_queue(env: Environment, directory: str) -> Iterator[Leftover]:
    try:
        opened = queue.Queue(env, directory)
    except NotADirectoryError:
        return  # a file, or a link
    with opened:
        names = opened.names()
        if not names:
            yield Leftover(QUEUE, directory, "", "nobody waits: it is empty")
        for name in filter(opened.is_abandoned, names):
            why = _HAS_ENDED if opened.counts(name.removesuffix(queue.NEW).removesuffix(queue.RECORD)) else _IS_OLD
            yield Leftover(TICKET, f"{directory}/{name}", "", why)


def why_orphan(env: Environment, where: str, name: str) -> str | None:
    """The reason why a temporary file or a claim of ours is an orphan; None if it is not (M11, M12)."""
    if is_claim(name):
        return why_over(env, joined(where, name))
    if lease.is_claim(name):
        return lease.why_old(env, joined(where, name))
    who = env.identity()
    prefix = temporary_name(who, "").removesuffix(f"{who.pid}-.tmp")
    if not who.has_pid_space or not (name.startswith(prefix) and name.endswith(".tmp")):
        return None
    return _why_ended(env, name[len(prefix) :].partition("-")[0], joined(where, name))


def why_no_rival(env: Environment, where: str, name: str) -> str | None:
    """Why a temporary file of semats is an orphan, by its name, age and content; None if it is not (M11)."""
    path = joined(where, name)
    pid = get("semats").rival(name, name.rsplit(".", 3)[0])
    if pid is None or abs(env.time() - env.stat(path).st_mtime) < _YOUNG:
        return None
    why = _why_ended(env, str(pid), path)
    if why is None:
        return None
    data = detect.head_of(env, path, MAX_RECORD_BYTES + 1)
    try:
        return None if data and get("semats").decode(data).pid != pid else why
    except MalformedRecord:
        return None


def _why_ended(env: Environment, pid: str, path: str) -> str | None:
    if not stat.S_ISREG(env.stat(path).st_mode):
        return None
    if not (pid.isascii() and pid.isdecimal()) or len(pid) > 10 or not env.inspect(int(pid)).has_ended:
        return None
    return f"process {pid}, which made it, has ended"


REMOVED, CHANGED, BLOCKED = "removed", "changed", "blocked"
_TAG = "holdfast clean"
_FORBIDDEN = "this user may not remove it"
_GONE = "it is already gone"


class Removal(Value):
    """The fate of a leftover: REMOVED; CHANGED: it is no longer a leftover; or BLOCKED, and by what."""

    result: str
    why: str = ""


def safe_or_approved(*, approved: bool) -> Judge:
    """The judgement of M10."""

    def verdict(env: Environment, request: FileRequest, seen: Observation, assessed: Assessment) -> Verdict:
        found = judge(env, request, seen, assessed)
        if found.reclaim and request.protocol.all_beat and not approved and not assessed.evidence.proven:
            return Verdict(False, False, "nothing proves that its holder is dead")  # M15
        if found.reclaim or not approved or seen.blocked is not None:
            return found
        if not may_be_approved(env, request.protocol, seen.record, assessed.liveness):
            return found
        reason = f"the {request.protocol.name} rule calls it stale, and that was approved"
        return Verdict(True, False, reason, lapsed=seen.lease is not None)

    return verdict


def proven(env: Environment, request: FileRequest, seen: Observation, assessed: Assessment) -> Verdict:
    """The judgement by which only locks that are proven dead are removed."""
    if assessed.is_dead and assessed.evidence.proven:
        return judge(env, request, seen, assessed)
    return Verdict(False, False, "its holder is not proven dead")


def remove(env: Environment, leftover: Leftover, *, approved: bool) -> Steps[Removal]:
    """Remove a leftover, if it is still what it was (M7). OSError and HoldfastError if that fails."""
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
        elif (why_no_rival if detect.is_rival(name) else why_orphan)(env, where or "/", name) is None:
            return Removal(CHANGED)
        else:
            env.unlink(path)
    except FileNotFoundError:
        return Removal(CHANGED, _GONE)
    except OSError as error:
        if leftover.kind == QUEUE and error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            return Removal(CHANGED)
        raise
    return Removal(REMOVED)


def _remove_ticket(env: Environment, where: str, name: str) -> Removal:
    try:
        opened = queue.Queue(env, where)
    except NotADirectoryError:
        return Removal(CHANGED)  # a file, or a link to a directory
    with opened:
        if not opened.is_abandoned(name):
            return Removal(CHANGED, "" if opened.stat(name) else _GONE)  # with the lock that it was for, say
        removed = opened.unlink(name)
    queue.remove_queue(env, where)
    return Removal(REMOVED) if removed else Removal(BLOCKED, _FORBIDDEN)


def _remove_announcement(env: Environment, path: str) -> Removal:
    if why_left(env, path) is None:
        return Removal(CHANGED)
    request = request_of(path.removesuffix(detect.RECLAIM), "sidecar")
    announced = announce_removal(env, request)  # it becomes ours, unless another one was faster
    if announced is None:
        return Removal(CHANGED)
    end_removal(env, request, announced)
    return Removal(BLOCKED, _FORBIDDEN) if env.exists(path) else Removal(REMOVED)


def request_of(path: str, protocol: str) -> FileRequest:
    """A request for the lock file at this very path."""
    return FileRequest(path, {"protocol": protocol, "tag": _TAG}, lock_file=path)


def remove_lock(env: Environment, request: FileRequest, judged: Judge) -> Steps[Removal]:
    """Remove the lock if it is still judged so (M8, M9)."""
    seen = observe(env, request)
    if seen is None:
        return Removal(CHANGED)
    try:
        verdict = judged(env, request, seen, assess(env, seen))
        if not verdict.reclaim:
            return Removal(CHANGED, verdict.reason)
        held: FileHold | None
        seen.refused = TRIES  # there is no other try: readers that share the guard are not waited for (T9)
        if seen.is_directory:
            held = yield from directory.take_over(env, request, seen, verdict)
        elif seen.unfinished:
            held = yield from complete(env, request, seen)
        elif not verdict.by_proof or seen.fd < 0:
            held = yield from take_over(env, request, seen, verdict)
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


def _remove_proven(env: Environment, request: FileRequest, judged: Judge) -> Steps[Removal]:
    def still(seen: Observation, assessed: Assessment) -> bool:
        verdict = judged(env, request, seen, assessed)
        return verdict.reclaim and verdict.by_proof and not seen.unfinished

    return Removal(CHANGED if (yield from remove_if(env, request, still)) is None else REMOVED)


def side_by_side(jobs: Sequence[Steps[T]]) -> Steps[list[T | OSError | HoldfastError]]:
    """Run several at once, so that all of them settle in the time of one; returns the result of each, or its error."""
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


_BY_PATH = (
    *("open_unnamed", "open_directory", "open_new", "open_existing", "unlink", "stat", "sync_directory", "exists"),
    *("make_directory", "make_directories", "remove_directory", "list_directory", "scan"),
    *("watch", "may_block", "storage", "poll_limit", "events_reach"),
)
_PATHS = {
    **dict.fromkeys(_BY_PATH, (0,)),
    **dict.fromkeys(("link", "replace"), (0, 1)),
    **dict.fromkeys(("link_unnamed", "claim"), (1,)),
}
"""Places of the arguments of a step that are paths."""


class PinnedEnvironment:
    """An environment in which the path of a directory that was entered always leads to that very directory (M13). Each
    is opened, from the top down and never through a link; from then on each step on it, or in it, goes by that
    descriptor. Where the system has no such ways (`Surroundings.way_to`), this is the environment itself."""

    def __init__(self, env: Surroundings) -> None:
        self._env = env
        self._fds: dict[str, int] = {}
        self._ways: dict[str, str] = {}

    def enter(self, top: str, where: str) -> None:
        """Open `where`, which is `top` or below it. OSError if that fails, or there is a link by now."""
        if where in self._fds:
            return
        env = self._env
        fd = env.open_directory(f"{top}/.")  # the caller may have named a link
        try:
            for name in filter(None, where.removeprefix(top).split("/")):
                way = env.way_to(fd)
                if way is None:
                    break
                above, fd = fd, env.open_directory(f"{way}/{name}")
                env.close(above)
            way = env.way_to(fd)
            if way is not None:
                self._fds[where], self._ways[where] = fd, way
                fd = -1
        finally:
            if fd >= 0:
                env.close(fd)

    def leave(self, *kept: str) -> None:
        """Close all directories but these."""
        for where in [where for where in self._fds if where not in kept]:
            del self._ways[where]
            self._env.close(self._fds.pop(where))

    def _by_descriptor(self, path: str, *, removed: bool = False) -> str:
        if path in self._ways and not removed:  # the system removes a directory by its name only
            return f"{self._ways[path]}/."
        where, _, name = path.rpartition("/")
        way = self._ways.get(where or "/")
        return path if way is None else f"{way}/{name}"

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._env, name)
        places = _PATHS.get(name)
        if places is None:
            return value

        def step(*given: Any, **options: Any) -> Any:
            if not self._ways or options.get("dir_fd") is not None:
                return value(*given, **options)
            led = list(given)
            for place in places:
                if isinstance(given[place], str):
                    led[place] = self._by_descriptor(given[place], removed=name == "remove_directory")
            try:
                return value(*led, **options)
            except OSError as error:
                told = dict(zip(led, given, strict=True))
                error.filename = told.get(error.filename, error.filename)
                if error.filename2 is not None:
                    error.filename2 = told.get(error.filename2, error.filename2)
                raise

        return step
