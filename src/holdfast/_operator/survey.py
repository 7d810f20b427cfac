"""Finding lock files without being told of them, and describing many at the price of one.

E1  Nothing is changed and nobody is woken. What is no regular file is not opened, nor what is too large, or empty (but
    E7); no link is followed. A guard is only probed, shared; closing a descriptor that could only read makes no event,
    but for those who wait for a kernel lock (kernel_sight.py, F8): a file that somebody watches so is described without
    it.
E2  A file is a lock file if a protocol reads its content and its writer would have begun so, under the name that the
    protocol has; if it is locked by the kernel at this moment; or if its name says so and its content is nothing, or
    damaged, or may not be read. A file of text or data is none, whatever it is called.
E3  The process table and the kernel's tables are read once (`Once`, `Census`). So what is said of ten thousand files
    is of about one moment, as a look at one of them is; nothing is decided by it.
E7  An empty file *.lock is far more often what flock(1) and filelock leave than a record that was never written. So it
    is called empty, if a probe finds nobody's lock on it, and it is too old for a creator to be about to write its
    record. It counts as held, as it does to everybody who acquires it by any protocol but `flock`.
"""

from __future__ import annotations

import stat

from .._core.environment import Environment, LockOwner
from .._core.fencing import is_counter
from .._core.liveness import Assessment, assess
from .._core.locate import queue_of
from .._core.observe import NO_RECORD, UNFINISHED, read_record
from .._core.policy import Verdict, describe, judge
from .._core.request import Request
from .._core.waiters import read_tickets
from ..model import Evidence, Holder, Liveness, Record, Status, Waiter
from . import recognition
from .findings import (
    DEAD,
    ELSEWHERE,
    EMPTY,
    FREE,
    HELD,
    LEFT_EMPTY,
    MALFORMED,
    STALE,
    UNREAD,
    Found,
    Once,
    Seen,
    Unseen,
)
from .walk import is_worth_it, joined, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .._core.environment import Stat
    from .findings import Surroundings


_YOUNG = 1.0
"""Seconds for which an empty file may be one whose creator is about to write its record. It needs microseconds."""


class Survey:
    """Looks at many files at about one moment. To be made anew for the next look."""

    def __init__(self, env: Surroundings) -> None:
        self._surroundings = env
        self._env: Environment = Once(env)
        self._census = env.census()
        self._requests: dict[str, Request] = {}
        self._here = env.identity()

    # -- directories ---------------------------------------------------------------------------------------------------

    def directory(self, directory: str) -> Iterator[Found | Unseen]:
        """The lock files in it, in the order of their names."""
        try:
            listed = sorted(self._env.list_directory(directory))
        except OSError as error:
            yield Unseen(directory, error)
            return
        queues = frozenset([name for name in listed if recognition.is_queue(name)])
        for name in listed:
            if not recognition.is_beside(name) and (one := self._one(directory, name, queues)) is not None:
                yield one

    def tree(self, top: str, entering: Callable[[str], object] | None = None) -> Iterator[Found | Unseen]:
        """The lock files in this directory and in those further down, in the order of their paths (walk.py).

        `entering` is called with each directory before it is listed.
        """
        for step in walk(self._surroundings, self._census, top, entering):
            one = step if isinstance(step, Unseen) else self._one(*step, hasty=True)
            if one is not None:
                yield one

    def _one(self, where: str, name: str, queues: frozenset[str], *, hasty: bool = False) -> Found | Unseen | None:
        path = joined(where, name)
        try:
            found = self._env.stat(path)
            if hasty and not is_worth_it(self._env, self._census, name, path, found):
                return None
            return self._look(where, name, path, found, queues)
        except FileNotFoundError:
            return None  # gone by now: its holder has released it
        except OSError as error:
            return Unseen(path, error)

    def file(self, path: str) -> Found | None:
        """The lock file at this absolute path; None for what is none. OSError as the system gives it."""
        where, _, name = path.rpartition("/")
        queues = frozenset([q.rpartition("/")[2] for q in self._queues_of(where, name) if self._env.exists(q)])
        return self._look(where, name, path, self._env.stat(path), queues)

    def owners(self, path: str) -> list[LockOwner]:
        """Who has the kernel lock on the file at this path, as far as can be seen."""
        try:
            found = self._env.stat(path)
        except OSError:
            return []
        return [owner for owner in self._census.owners(_identity(found)) if not owner.waiting]

    def of_the_kernel(self, path: str) -> Found:
        """The file at this path as one of `flock`, whatever is in it; it is not opened. OSError as the system says."""
        return self._by_the_kernel(path, Seen(self._env.stat(path)), None)

    def alone(self, path: str) -> Found | None:
        """The same, without those who queue for it."""
        where, _, name = path.rpartition("/")
        return self._look(where, name, path, self._env.stat(path), frozenset())

    # -- one file ------------------------------------------------------------------------------------------------------

    def _look(self, where: str, name: str, path: str, found: Stat, queues: frozenset[str]) -> Found | None:
        if not stat.S_ISREG(found.st_mode):
            return None
        locked = self._census.is_locked(_identity(found))
        unfinished = not found.st_size and found.st_mode & UNFINISHED
        one: Found | None = None
        if unfinished or recognition.may_be_record(found.st_size):
            try:
                one = self._open(where, name, path, found, locked=locked)
            except PermissionError:
                one = self._unreadable(name, path, found, locked=locked)
        elif locked:
            one = self._by_the_kernel(path, Seen(found), None)
        elif not found.st_size:
            one = self._left_by_flock(name, path, found) or self._damaged(name, path, Seen(found))
        if one is None or one.condition in (FREE, EMPTY):
            return one
        return self._with_waiters(where, name, one, queues)

    def _open(self, where: str, name: str, path: str, found: Stat, *, locked: bool) -> Found | None:
        env = self._env
        if locked and self._census.heeds_readers(_identity(found)):
            one = self._by_the_kernel(path, Seen(found), None)  # E1
            return one.replaced(status=one.status.replaced(reason=UNREAD)) if one.status.locked else one
        fd = env.open_existing(path, write=False)
        try:
            opened = env.fstat(fd)
            if not stat.S_ISREG(opened.st_mode):
                return None
            seen = Seen(opened, fd)
            seen.data = read_record(env, fd)
            if is_counter(seen.data):
                return None  # of fencing tokens; it is locked while somebody counts
            if not locked and not recognition.may_begin(name, seen.data) and not seen.unfinished:
                return None
            record = recognition.recognise(name, opened.st_mode, seen.data)
            if record is not None and record.protocol == "flock":
                return self._by_the_kernel(path, seen, record)
            if record is not None or seen.unfinished:
                return self._judged(record, where, name, path, seen)
            if locked and recognition.damaged(name, seen.data) is None:
                return self._by_the_kernel(path, seen, None)
            return self._damaged(name, path, seen)
        finally:
            env.close(fd)

    def _judged(self, record: Record | None, where: str, name: str, path: str, seen: Seen) -> Found:
        request = self._request("sema" if record is None else record.protocol, where, name, path)
        if record is None:
            seen.problem = NO_RECORD
        elif record.created is None and request.protocol.ages_by_mtime:
            record = record.replaced(created=seen.modified)
        seen.record = record
        assessed = assess(self._env, seen)
        verdict = judge(self._env, request, seen, assessed)
        status = describe(self._env, request, seen, assessed, verdict)
        return self._found(status, self._condition(record, assessed, verdict), seen)

    def _condition(self, record: Record | None, assessed: Assessment, verdict: Verdict) -> str:
        if verdict.reclaim:
            return DEAD if verdict.by_proof or assessed.evidence.proven else STALE
        if verdict.closed:
            return STALE
        if assessed.evidence.source == "guard" and assessed.liveness is Liveness.ALIVE:
            return HELD
        if record is None or record.mixed or (record.marked and record.marker is None):
            return MALFORMED
        return ELSEWHERE if self._is_elsewhere(record) else HELD

    def _is_elsewhere(self, record: Record) -> bool:
        here = self._here
        if record.marker is None:
            return record.host is not None and record.host.casefold() != here.host.casefold()
        there = record.marker.identity
        return (there.boot, there.pid_namespace) != (here.boot, here.pid_namespace)

    def _found(self, status: Status, condition: str, seen: Seen) -> Found:
        pid = status.holder.pid if status.holder is not None and condition == HELD else None
        uid = self._census.user(pid) if pid is not None else None
        return Found(status, condition, seen.identity, seen.uid if uid is None else uid)

    # -- files that say little -----------------------------------------------------------------------------------------

    def _by_the_kernel(self, path: str, seen: Seen, record: Record | None) -> Found:
        """A lock of the kernel alone: who holds it, and who waits, by the tables."""
        owners = self._census.owners(seen.identity)
        holding = [owner for owner in owners if not owner.waiting]
        if not holding and seen.fd >= 0 and self._env.guarded(seen.fd):
            holding = [LockOwner(None, exclusive=True)]  # of another PID namespace: the tables do not show it
        holders = tuple(self._holder(owner, record) for owner in holding)
        first = next((holder for holder in holders if holder.pid is not None), holders[0] if holders else None)
        believed = first is not None and record is not None and first.pid == record.pid
        text = "the kernel lock on its file is held" if holders else "nobody has the kernel lock on its file"
        status = Status(
            path, "flock", bool(holders), False,
            Liveness.ALIVE if holders else Liveness.UNKNOWN,
            Evidence("guard", text, proven=bool(holders)),
            first,
            record if believed else None,
            "its holder is alive" if holders else "nobody holds it",
            max(0.0, self._env.time() - first.since) if first is not None and first.since is not None else None,
            tuple(self._waiter(owner.pid) for owner in owners if owner.waiting and owner.pid is not None),
            holders,
            seen.modified,
            seen.data,
        )  # fmt: skip
        return self._found(status, HELD if holders else FREE, seen)

    def _left_by_flock(self, name: str, path: str, found: Stat) -> Found | None:
        """E7."""
        env = self._env
        if recognition.damaged(name, b"") != "" or abs(env.time() - found.st_mtime) < _YOUNG or not env.guards:
            return None
        try:
            fd = env.open_existing(path, write=False)
        except PermissionError:
            return None
        try:
            opened = env.fstat(fd)
            if opened.st_size or not stat.S_ISREG(opened.st_mode):
                return None
            one = self._by_the_kernel(path, Seen(opened, fd), None)
        finally:
            env.close(fd)
        if one.condition != FREE:
            return one
        empty = self._unusable("", path, Seen(found), NO_RECORD)
        return empty.replaced(condition=EMPTY, status=empty.status.replaced(reason=LEFT_EMPTY))

    def _holder(self, owner: LockOwner, record: Record | None) -> Holder:
        command = None if owner.pid is None else self._env.command(owner.pid)
        if record is None or record.pid != owner.pid:
            return Holder(owner.pid, command=command, shared=not owner.exclusive)
        return Holder(owner.pid, record.host, record.since, record.tag, command, not owner.exclusive)

    def _damaged(self, name: str, path: str, seen: Seen) -> Found | None:
        """E2."""
        protocol = recognition.damaged(name, seen.data)
        if protocol is None:
            return None
        return self._unusable(protocol, path, seen, recognition.problem(protocol, seen.data))

    def _unreadable(self, name: str, path: str, found: Stat, *, locked: bool) -> Found | None:
        if not locked and not recognition.is_named_so(name):
            return None
        seen = Seen(found)
        problem = "the lock file may not be read by this user"
        one = self._unusable("beads" if name == recognition.BEADS_NAME else "", path, seen, problem)
        if not locked:
            return one
        holders = [self._holder(owner, None) for owner in self._census.owners(seen.identity) if not owner.waiting]
        evidence = Evidence("guard", "the kernel lock on its file is held", proven=True)
        first = holders[0] if holders else Holder()
        status = one.status.replaced(liveness=Liveness.ALIVE, evidence=evidence, holder=first, reason=problem)
        return self._found(status, HELD, seen)

    def _unusable(self, protocol: str, path: str, seen: Seen, problem: str) -> Found:
        evidence = Evidence("none", problem)
        status = Status(
            path, protocol, True, False, Liveness.UNKNOWN, evidence, Holder(), None,
            "what cannot be read counts as held", None, (), (), seen.modified, seen.data,
        )  # fmt: skip
        return self._found(status, MALFORMED, seen)

    # -- who waits -----------------------------------------------------------------------------------------------------

    def _with_waiters(self, where: str, name: str, one: Found, queues: frozenset[str]) -> Found:
        waiting: list[Waiter] = []
        slot = None
        for number, queue in enumerate(self._queues_of(where, name) if queues else ()):
            if queue.rpartition("/")[2] in queues:
                waiting += self._queue(queue)
                slot = recognition.slot_of(name) if number else None
        arrived = [waiter.replaced(position=place) for place, waiter in enumerate(waiting, 1)]
        status = one.status
        known = {waiter.pid for waiter in arrived}
        arrived += [waiter for waiter in status.waiters if waiter.pid not in known]
        watching = self._census.watchers(one.identity) if one.condition == HELD else ()
        if watching:
            # A holder may watch its own lock file, and so may the keeper of a shell's.
            known.update(owner.pid for owner in self._census.owners(one.identity) if owner.pid and not owner.waiting)
            known.update(who.pid for who in (*arrived, *status.holders, status.holder) if who and who.pid)
            arrived += [self._waiter(pid) for pid in watching if pid not in known]
        if not arrived and slot is None:
            return one
        return one.replaced(status=status.replaced(waiters=tuple(arrived)), slot=slot[1] if slot else None)

    def _queues_of(self, where: str, name: str) -> list[str]:
        """Where those queue who wait for this lock; and if it is a slot's, those who wait for any slot."""
        slot = recognition.slot_of(name)
        return [queue_of(where, name), *([queue_of(where, f"{slot[0]}.#.lock")] if slot else [])]

    def _queue(self, queue: str) -> list[Waiter]:
        return [waiter for _, waiter in read_tickets(self._env, queue)]

    def _waiter(self, pid: int) -> Waiter:
        return Waiter(None, pid, None, None, self._env.command(pid))

    # -- requests ------------------------------------------------------------------------------------------------------

    def _request(self, protocol: str, where: str, name: str, path: str) -> Request:
        """One for each protocol, pointed at one file after the other: checking ten thousand would take a second."""
        request = self._requests.get(protocol)
        if request is None:
            request = self._requests[protocol] = Request(path, {"protocol": protocol}, lock_file=path)
        request.path = request.target = path
        request.directory, request.name = where, name
        return request


def _identity(found: Stat) -> tuple[int, int]:
    return (found.st_dev, found.st_ino)
