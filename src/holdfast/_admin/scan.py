"""Search for lock files, and description of many at the price of one.

E1  Nothing is changed and no waiter is woken. Only regular files are opened, neither too large nor empty (but E7); no
    link is followed. A guard is only probed, shared. Closing a read-only descriptor makes no event, except for the
    waiters of a kernel lock (flock.py, F8): a file that they watch is described without opening it.
E2  A file is a lock file if a protocol reads its content and its writer would have begun so, under the name that the
    protocol has; if it is locked by the kernel at this moment; or if its name says so and its content is empty, damaged
    or unreadable. A file of text or data is none, whatever its name.
E3  The process table and the kernel's tables are read once (`CachedEnvironment`, `ProcLocks`). So the answers about ten
    thousand files are of about one moment, like a look at one of them; nothing is decided by them.
E4  In a tree no link is followed, and no filesystem that the kernel makes up is entered (`/proc`, `/sys` …): looking at
    those may take for ever, or make something happen. Whatever is gone by the time it is reached is skipped.
E5  A tree is walked in the order of its paths as texts, so that results can be shown before the walk has ended. A
    directory comes where its name with a `/` behind it belongs. Only the names in the directories on the way down are
    kept meanwhile, and of the files only those that are worth a look.
E6  In a tree, a file whose name is usual for text, data or programs is not looked at, unless the kernel's table shows
    its number: asking for each file would read the whole disk. Other files without a lock's name are not opened if they
    are large, or are not their owner's to write.
E7  An empty file *.lock is far more often left by flock(1) or filelock than a record that was never written. So it is
    called empty, if a probe finds no lock on it, and it is too old for a creator to be about to write its record. It
    counts as held, as it does for any process that acquires it by a protocol other than `flock`.
E8  Where a name may be that of another program's lock (kinds/), and the file has no record of a protocol, that kind is
    asked. In a tree, links and directories of such names count as well.
E9  A directory *.lock is a lock of proper-lockfile if there is nothing in it; any other is entered, in a tree.

An acquisition has a short id, so that a user can say later "this one, and no other":

I1  The id stays as long as an acquisition lasts. Whatever a heartbeat rewrites is left out: the timestamp in the record
    of a holdfast process, and the times of the file. Other programs refresh nothing in their records.
I2  Another acquisition has another id. Another process, or the same one at another pid, writes another record. One
    process that acquires again may write the same record, and get the same inode number for it; but its file was born
    at another time. A takeover in place keeps the inode, and changes the record. Where a filesystem keeps no times of
    birth, two acquisitions of one process with one tag may have the same id. A directory has no record, so its id stays
    after a takeover in place: only the guard tells the new holder's lock from the dead one's.
I3  The id is of the record that was seen and of the file that the path names now. Where these two are not of one
    acquisition, it is the id of neither.
"""

from __future__ import annotations

import functools
import math
import stat
from collections.abc import Callable, Container, Iterator

from .._core.messages import duration, is_out_of_reach, moment, printable
from .._platform.interface import Entry, Environment, Stat, Surroundings
from .._platform.values import LockOwner
from ..engines.file.directory import named
from ..engines.file.fencing import is_counter
from ..engines.file.inspect import GUARDED, NO_RECORD, TRIES, Observation, assess, is_rewritten, read_record, reread
from ..engines.file.paths import queue_of, queue_of_slots
from ..engines.file.policy import Verdict, describe, holder_of, judge, was_released, with_heirs, within_reach
from ..engines.file.queue import read_tickets
from ..engines.file.request import FileRequest
from ..engines.file.steps import UNFINISHED
from ..errors import MalformedRecord
from ..liveness import Liveness
from ..model import Evidence, Holder, Record, Status, Value, Waiter
from ..protocols import get, is_kept_fresh, is_persistent
from . import detect, kinds
from .found import DEAD, ELSEWHERE, EMPTY, FREE, HELD, MALFORMED, STALE, Found, Unreadable
from .kinds.base import View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .._platform.proc_locks import ProcLocks
    from ..engines.file.inspect import Assessment

Step = tuple[str, str, frozenset[str]]
"""A directory, a name in it, and the queues that are in it."""

DIRECTORIES = "proper-lockfile"
"""The protocol whose locks are directories."""
UNREAD = "its holder is alive; its lock file is not read, as that would wake the waiters"
LEFT_EMPTY = "it is empty, as flock(1) leaves its files: free for -p flock and -p ofd, held for all other protocols"


class CachedEnvironment:
    """An environment that asks about each process once."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self.inspect = functools.cache(env.inspect)
        self.command = functools.cache(env.command)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._env, name)
        self.__dict__[name] = value
        return value


_GLANCE, _MUCH = 256, 65_536
"""Bytes that are read of a file to see how it begins, and most bytes of one that has no lock's name (E6)."""


def walk(
    env: Surroundings, tables: ProcLocks, top: str, entering: Callable[[str], object] | None = None
) -> Iterator[Step | Unreadable]:
    """Files below `top` that may be lock files, and paths that could not be looked at; `entering`: `Survey.tree`."""
    open_: list[tuple[str, frozenset[str], Iterator[str]]] = []

    def enter(where: str) -> Unreadable | None:
        try:
            found = env.stat(where)
            if open_ and (not stat.S_ISDIR(found.st_mode) or tables.is_artificial(found.st_dev)):
                return None  # E4
            if entering is not None:
                entering(where)
            open_.append((where, *_listed(env, where, tables.locked_numbers(found.st_dev))))
        except OSError as error:
            if not open_ or not isinstance(error, FileNotFoundError):
                return Unreadable(where, error)
        return None

    unseen = enter(top)
    if unseen is not None:
        yield unseen
    while open_:
        where, queues, names = open_[-1]
        name = next(names, None)
        if name is None:
            open_.pop()
            continue
        if not name.endswith("/"):
            yield where, name, queues
            continue
        if (unseen := enter(joined(where, name[:-1]))) is not None:
            yield unseen
        if detect.is_named_so(name[:-1]) or kinds.may_be(name[:-1], where):
            yield where, name[:-1], queues  # E8, E9


def is_worth_it(env: Environment, tables: ProcLocks, name: str, path: str, found: Stat) -> bool:
    """Whether a file that was met on the way is worth more than a glance at how it begins (E6)."""
    if (
        detect.is_named_so(name)
        or kinds.may_be(name, path.rpartition("/")[0])
        or found.st_mode & UNFINISHED
        or tables.is_locked((found.st_dev, found.st_ino))
    ):
        return True
    is_small = stat.S_ISREG(found.st_mode) and 0 < found.st_size <= _MUCH
    if not is_small or not found.st_mode & stat.S_IWUSR:
        return False
    try:
        return detect.may_begin(name, detect.head_of(env, path, _GLANCE))
    except PermissionError:
        return False


def joined(where: str, name: str) -> str:
    """The path of a name in a directory."""
    return where + name if where.endswith("/") else f"{where}/{name}"


def queues_of(where: str, name: str) -> list[str]:
    """The queue of this lock; if it is a slot's, also the one for any slot."""
    slot = detect.slot_of(name)
    return [queue_of(where, name), *([queue_of_slots(where, slot[0])] if slot else [])]


def subdirectories(env: Surroundings, tables: ProcLocks, where: str) -> list[str]:
    """Paths of the directories in a directory that are to be entered (E4), in the order of their names."""
    found = []
    for name in sorted(env.scan(where, _directory)):
        path = joined(where, name)
        try:
            seen = env.stat(path)
        except OSError:
            continue
        if stat.S_ISDIR(seen.st_mode) and not tables.is_artificial(seen.st_dev):
            found.append(path)
    return found


def _directory(entry: Entry) -> str | None:
    return entry.name if entry.is_dir(follow_symlinks=False) and not detect.is_beside(entry.name) else None


def _listed(env: Surroundings, where: str, locked: Container[int] | None) -> tuple[frozenset[str], Iterator[str]]:
    """Names of the queues in a directory; and in order the names to be looked at, `/` behind those of directories."""
    queues = []
    is_otherwise, is_beside, is_of_kind = detect.is_called_otherwise, detect.is_beside, kinds.is_named_so
    is_run_lock = kinds.is_run_lock(where)

    def kept(entry: Entry) -> str | None:
        name = entry.name
        if entry.is_dir(follow_symlinks=False):
            if not is_beside(name):
                return name + "/"
            if detect.is_queue(name):
                queues.append(name)
            return None
        is_usual = is_otherwise(name)
        if is_run_lock or ((not is_usual or name.startswith(kinds.BEGINNINGS)) and is_of_kind(name)):
            return name
        if is_usual and locked is not None and (not locked or entry.inode() not in locked):
            return None  # E6
        return name if entry.is_file(follow_symlinks=False) and not is_beside(name) else None

    names = sorted(env.scan(where, kept))
    return frozenset(queues), iter(names)


_YOUNG = 1.0
"""Seconds for which an empty file may be one whose creator is about to write its record. It needs microseconds."""


class Survey:
    """A look at many files at about one moment. Make a new one for the next look."""

    def __init__(self, env: Surroundings) -> None:
        self._surroundings = env
        self._cached: Any = CachedEnvironment(env)
        self._env: Environment = self._cached
        self._tables = env.proc_locks()
        self._requests: dict[str, FileRequest] = {}
        self._here = env.identity()
        self._proc_files = functools.cache(env.proc_files)

    # -- directories ---------------------------------------------------------------------------------------------------

    def directory(self, directory: str) -> Iterator[Found | Unreadable]:
        """The lock files in a directory, in the order of their names."""
        try:
            listed = sorted(self._env.list_directory(directory))
        except OSError as error:
            yield Unreadable(directory, error)
            return
        queues = frozenset([name for name in listed if detect.is_queue(name)])
        for name in listed:
            if not detect.is_beside(name) and (one := self._one(directory, name, queues)) is not None:
                yield one

    def tree(self, top: str, entering: Callable[[str], object] | None = None) -> Iterator[Found | Unreadable]:
        """The lock files in a directory and further down, in the order of their paths (E5). `entering` is called with
        each directory before it is listed."""
        for step in walk(self._surroundings, self._tables, top, entering):
            one = step if isinstance(step, Unreadable) else self._one(*step, in_tree=True)
            if one is not None:
                yield one

    def _one(
        self, where: str, name: str, queues: frozenset[str], *, in_tree: bool = False
    ) -> Found | Unreadable | None:
        path = joined(where, name)
        try:
            found = self._env.stat(path)
            if in_tree and not is_worth_it(self._env, self._tables, name, path, found):
                return None
            return self._look(where, name, path, found, queues)
        except FileNotFoundError:
            return None  # gone by now: its holder has released it
        except OSError as error:
            return Unreadable(path, error)

    def file(self, path: str, *, alone: bool = False) -> Found | None:
        """The lock file at this absolute path (`alone`: without its queue); None if it is none. OSError as the system
        raises it."""
        where, _, name = path.rpartition("/")
        existing = () if alone else filter(self._env.exists, queues_of(where, name))
        queues = frozenset([queue.rpartition("/")[2] for queue in existing])
        return self._look(where, name, path, self._env.stat(path), queues)

    def owners(self, path: str, *, records: bool = False) -> list[LockOwner]:
        """Holders of the kernel lock (`records`: of record locks) on the file at this path, as far as can be seen."""
        try:
            file = _identity(self._env.stat(path))
        except OSError:
            return []
        owners = self._env.lock_owners(file, (0, 0)) if records else self._tables.owners(file)
        return [owner for owner in owners if not owner.waiting]

    def user(self, pid: int | None) -> int | None:
        """The user of a process, by number; None if unknown."""
        return None if pid is None else self._tables.user(pid)

    def of_the_kernel(self, path: str) -> Found:
        """The file at this path as a lock of `flock`, whatever its content, unopened. OSError as of `file`."""
        return self._by_the_kernel(path, Observation(self._env.stat(path)), None)

    # -- one file ------------------------------------------------------------------------------------------------------

    def _look(self, where: str, name: str, path: str, found: Stat, queues: frozenset[str]) -> Found | None:
        """The lock that is at this path, of a protocol or of another program (E8, E9)."""
        one: Found | None = None
        if stat.S_ISREG(found.st_mode):
            one = self._of_protocols(where, name, path, found, queues)
        elif stat.S_ISDIR(found.st_mode) and name.endswith(".lock"):
            one = self._directory(where, name, path, found)
            one = one and self._with_waiters(where, name, one, queues)
        no_record = one is None or one.status.record is None or not stat.S_ISREG(found.st_mode)
        if no_record and kinds.may_be(name, where):
            return self._of_kinds(path, found) or one
        return one

    def _of_kinds(self, path: str, found: Stat) -> Found | None:
        """The lock of another program, if it is one."""
        try:
            seen = kinds.find(View(self._cached, self._proc_files, path, found))
        except (FileNotFoundError, NotADirectoryError):
            return None  # gone by now
        if seen is None:
            return None
        holder = seen.status.holder
        uid = self.user(holder.pid) if holder is not None and seen.condition == HELD else None
        return seen if uid is None else seen.replaced(uid=uid)

    def _of_protocols(self, where: str, name: str, path: str, found: Stat, queues: frozenset[str]) -> Found | None:
        locked = self._tables.is_locked(_identity(found))
        unfinished = not found.st_size and found.st_mode & UNFINISHED
        one: Found | None = None
        if unfinished or detect.may_be_record(found.st_size):
            try:
                one = self._open(where, name, path, found, locked=locked)
            except PermissionError:
                one = self._unreadable(name, path, found, locked=locked)
        elif locked:
            one = self._by_the_kernel(path, Observation(found), None)
        elif not found.st_size:
            one = self._left_by_flock(name, path, found) or self._damaged(name, path, Observation(found))
        if one is None or one.condition in (FREE, EMPTY):
            return one
        return self._with_waiters(where, name, one, queues)

    def _open(self, where: str, name: str, path: str, found: Stat, *, locked: bool) -> Found | None:
        env = self._env
        if locked and self._tables.heeds_readers(_identity(found)):
            one = self._by_the_kernel(path, Observation(found), None)  # E1
            return one.replaced(status=one.status.replaced(reason=UNREAD)) if one.status.locked else one
        fd = env.open_existing(path, write=False)
        try:
            opened = env.fstat(fd)
            if not stat.S_ISREG(opened.st_mode):
                return None
            seen = Observation(opened, fd)
            seen.data = read_record(env, fd)
            if is_counter(seen.data):
                return None  # of fencing tokens; it is locked while a process counts
            if not locked and not detect.may_begin(name, seen.data) and not seen.unfinished:
                return None
            record = detect.record_in(name, opened.st_mode, seen.data)
            if record is not None and record.protocol == "flock":
                return self._by_the_kernel(path, seen, record)
            if record is not None or seen.unfinished:
                return self._of_record(record, where, name, path, seen)
            if locked and detect.damaged(name, seen.data) is None:
                return self._by_the_kernel(path, seen, None)
            return self._damaged(name, path, seen)
        finally:
            env.close(fd)

    def _of_record(self, record: Record | None, where: str, name: str, path: str, seen: Observation) -> Found | None:
        request = self._request("sema" if record is None else record.protocol, where, name, path)
        if record is None:
            seen.problem = NO_RECORD
        elif record.created is None and request.protocol.ages_by_mtime:
            record = record.replaced(created=seen.modified)
        seen.record, seen.path = record, path
        return self._judged(request, seen)

    def _judged(self, request: FileRequest, seen: Observation) -> Found | None:
        tries = TRIES
        while True:
            assessed = assess(self._env, seen)
            verdict = judge(self._env, request, seen, assessed)
            if was_released(self._env, request, seen, assessed, verdict):
                return None
            status = within_reach(self._env, describe(self._env, request, seen, assessed, verdict))
            shown = with_heirs(self._env, status, lambda: self._tables.owners(seen.identity))
            tries -= 1
            if shown is status or not tries or not is_rewritten(self._env, request, seen):  # L13
                return self._found(shown, self._condition(seen.record, assessed, verdict), seen)

    def _directory(self, where: str, name: str, path: str, found: Stat) -> Found | None:
        """The lock of proper-lockfile that a directory is, if it is one (E9)."""
        env, seen = self._env, Observation(found)
        try:
            seen.fd = env.open_directory(path)
        except PermissionError:
            return None
        try:
            if env.list_directory(seen.fd):
                return None
            request = self._request(DIRECTORIES, where, name, path)
            seen.path = path
            reread(env, request, seen)
            one = self._judged(request, seen)
            owners = self._owners(seen)[0] if one is not None and one.status.liveness is Liveness.ALIVE else []
        finally:
            env.close(seen.fd)
        return one and self._found(named(env, one.status, owners), one.condition, seen)

    def _condition(self, record: Record | None, assessed: Assessment, verdict: Verdict) -> str:
        if verdict.reclaim:
            return DEAD if verdict.by_proof or assessed.evidence.proven else STALE
        if verdict.left_to_caller:
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
        return record.marker.identity.pid_space != here.pid_space

    def _found(self, status: Status, condition: str, seen: Observation) -> Found:
        pid = status.holder.pid if status.holder is not None and condition == HELD else None
        uid = self.user(pid)
        return Found(status, condition, seen.identity, seen.uid if uid is None else uid)

    # -- files that say little -----------------------------------------------------------------------------------------

    def _by_the_kernel(self, path: str, seen: Observation, record: Record | None) -> Found:
        """A lock of the kernel alone: its holders and waiters, by the tables."""
        owners, guarded = self._owners(seen)
        holding = [owner for owner in owners if not owner.waiting]
        if guarded and not holding:
            holding = [LockOwner(None, exclusive=True)]  # of another PID namespace: the tables do not show it
        holders = tuple(holder_of(self._env, owner, record) for owner in holding)
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

    def _owners(self, seen: Observation) -> tuple[list[LockOwner], bool]:
        """Holders and waiters of the kernel lock, by the tables; and whether it is held though these show nobody."""
        owners = self._tables.owners(seen.identity)
        if seen.fd < 0 or any(not owner.waiting for owner in owners) or not self._env.guarded(seen.fd):
            return owners, False
        owners = self._env.lock_owners(seen.identity)  # it may have been taken since
        return owners, all(owner.waiting for owner in owners) and bool(self._env.guarded(seen.fd))

    def _left_by_flock(self, name: str, path: str, found: Stat) -> Found | None:
        """An empty file *.lock: held, if the kernel has it locked, else empty. None: another file, or young (E7)."""
        env = self._env
        if detect.damaged(name, b"") != "" or abs(env.time() - found.st_mtime) < _YOUNG or not env.guards:
            return None
        try:
            fd = env.open_existing(path, write=False)
        except PermissionError:
            return None
        try:
            opened = env.fstat(fd)
            if opened.st_size or not stat.S_ISREG(opened.st_mode):
                return None
            one = self._by_the_kernel(path, Observation(opened, fd), None)
        finally:
            env.close(fd)
        if one.condition != FREE:
            return one
        empty = self._unusable("", path, Observation(found), NO_RECORD)
        return empty.replaced(condition=EMPTY, status=empty.status.replaced(reason=LEFT_EMPTY))

    def _damaged(self, name: str, path: str, seen: Observation) -> Found | None:
        """A lock file whose content is empty or damaged, if it is that (E2)."""
        protocol = detect.damaged(name, seen.data)
        if protocol is None:
            return None
        return self._unusable(protocol, path, seen, detect.problem(protocol, seen.data))

    def _unreadable(self, name: str, path: str, found: Stat, *, locked: bool) -> Found | None:
        if not locked and not detect.is_named_so(name):
            return None
        seen = Observation(found)
        problem = "the lock file may not be read by this user"
        one = self._unusable("beads" if name == detect.BEADS_NAME else "", path, seen, problem)
        if not locked:
            return one
        owner = next((owner for owner in self._tables.owners(seen.identity) if not owner.waiting), None)
        first = Holder() if owner is None else holder_of(self._env, owner, None)
        status = one.status.replaced(liveness=Liveness.ALIVE, evidence=GUARDED, holder=first, reason=problem)
        return self._found(status, HELD, seen)

    def _unusable(self, protocol: str, path: str, seen: Observation, problem: str) -> Found:
        status = Status(
            path, protocol, True, False, Liveness.UNKNOWN, Evidence("none", problem), Holder(), None,
            "what cannot be read counts as held", None, (), (), seen.modified, seen.data,
        )  # fmt: skip
        return self._found(status, MALFORMED, seen)

    # -- waiters -------------------------------------------------------------------------------------------------------

    def _with_waiters(self, where: str, name: str, one: Found, queues: frozenset[str]) -> Found:
        waiting: list[Waiter] = []
        slot = None
        for number, queue in enumerate(queues_of(where, name) if queues else ()):
            if queue.rpartition("/")[2] in queues:
                waiting += [waiter for _, waiter in read_tickets(self._env, queue)]
                slot = detect.slot_of(name) if number else None
        arrived = [waiter.replaced(position=place) for place, waiter in enumerate(waiting, 1)]
        status = one.status
        known = {waiter.pid for waiter in arrived}
        arrived += [waiter for waiter in status.waiters if waiter.pid not in known]
        watching = self._tables.watchers(one.identity) if one.condition == HELD else ()
        if watching:
            # A holder may watch its own lock file, and so may the keeper of a shell's.
            known.update(owner.pid for owner in self._tables.owners(one.identity) if owner.pid and not owner.waiting)
            known.update(who.pid for who in (*arrived, *status.holders, status.holder) if who and who.pid)
            arrived += [self._waiter(pid) for pid in watching if pid not in known]
        if not arrived and slot is None:
            return one
        return one.replaced(status=status.replaced(waiters=tuple(arrived)), slot=slot[1] if slot else None)

    def _waiter(self, pid: int) -> Waiter:
        return Waiter(None, pid, None, None, self._env.command(pid))

    # -- requests ------------------------------------------------------------------------------------------------------

    def _request(self, protocol: str, where: str, name: str, path: str) -> FileRequest:
        """The request of a protocol, pointed at one file after the other: checking ten thousand would take a second."""
        request = self._requests.get(protocol)
        if request is None:
            request = self._requests[protocol] = FileRequest(path, {"protocol": protocol}, lock_file=path)
        request.path = request.target = path
        request.directory, request.name = where, name
        return request


def _identity(found: Stat) -> tuple[int, int]:
    return (found.st_dev, found.st_ino)


def id_of(env: Surroundings, status: Status) -> str | None:
    """The id of the acquisition that `status` is about; None if there is none, or it is the kernel's alone."""
    if not (status.locked or status.stale) or is_persistent(status.protocol):
        return None
    return name_of(env, status.path, status.protocol, status.data)


def name_of(env: Surroundings, path: str, protocol: str, data: bytes) -> str | None:
    """The id of the acquisition with the record `data` in the file at the path; None if nothing is there."""
    file = env.btime(path)
    if file is None:
        return None
    from hashlib import blake2b

    # Twelve digits are short enough to be typed, and too long to be met by chance.
    return blake2b(file.encode() + b"\0" + _lasting(env, protocol, data), digest_size=6).hexdigest()


def _lasting(env: Environment, protocol: str, data: bytes) -> bytes:
    """The record without what a heartbeat rewrites (I1)."""
    if not protocol or not data:
        return data
    speaks = get(protocol)
    try:
        if not speaks.decode(data).marked:
            return data
    except MalformedRecord:
        return data
    lasting = bytearray(data)
    for offset, fresh in speaks.beaten(data, env.time()):
        lasting[offset : offset + len(fresh)] = b"\0" * len(fresh)
    return bytes(lasting)


_READERS = {"sema": ("sema", "semats"), "semats": ("sema", "semats"), "sidecar": ("fs-safe",), "beads": ("beads",)}
_READERS[DIRECTORIES] = (DIRECTORIES,)
"""Implementations that read the records of a protocol, besides holdfast."""
_RULE_OF = {"fs-safe": "sidecar"}
_CONDITIONS_OF_OTHERS = {
    "sema": "",
    "semats": "if its process has ended by then",
    "fs-safe": "and removes it only if its caller has opted into that and agrees",
    "beads": "as soon as its process has ended, on the same host",
    DIRECTORIES: "",
}
"""The condition under which each calls a lock stale; for fs-safe, which only fails then, the one under which it removes
a lock."""


class Staleness(Value):
    """When `implementation` calls a lock stale (`at`: epoch seconds; None: at no age), and under which condition."""

    implementation: str
    at: float | None
    condition: str


def staleness(status: Status) -> tuple[Staleness, ...]:
    """Staleness by every other implementation, if nothing refreshes the record until then."""
    record = status.record
    if record is None:
        return ()
    found = []
    for name in _READERS.get(status.protocol, ()):
        protocol = get(_RULE_OF.get(name, name))
        found.append(Staleness(name, protocol.stale_at(record, protocol.stale_after), _CONDITIONS_OF_OTHERS[name]))
    return tuple(found)


def staleness_text(one: Staleness, now: float) -> str:
    """`sema would call it stale at 14:02:11, in 41 min`."""
    condition = f", {one.condition}" if one.condition else ""
    if one.at is None:
        return f"{one.implementation} calls it stale {one.condition}" if condition else ""
    if one.at <= now:
        return f"{one.implementation} calls it stale since {moment(one.at)}{condition.replace('by then', 'by now')}"
    return f"{one.implementation} would call it stale at {moment(one.at)}, in {duration(one.at - now)}{condition}"


def own_view(status: Status) -> str:
    """Holdfast's own way with the lock, in words, as long as no option says otherwise."""
    record = status.record
    if record is None:
        return "holdfast never takes over a lock that it cannot read"
    if status.liveness is Liveness.ALIVE and status.evidence.source == "guard":
        return "holdfast never robs a holder that has the kernel lock, whatever its age"
    if status.stale:
        return f"holdfast takes it over at once: {printable(status.reason)}"
    if is_out_of_reach(status):
        return "holdfast takes it over as soon as its filesystem is writable"
    if record.lease is not None:
        return f"holdfast takes it over once its record has not changed for its lease of {record.lease:g} s"
    if status.liveness is Liveness.ALIVE:
        return "holdfast takes it over once its holder has ended, and it is old enough for its protocol"
    if is_kept_fresh(status.protocol):
        return "holdfast takes it over then, unless it is refreshed before"
    if get(status.protocol).fails_closed:
        return "holdfast does not take it over by itself: that is left to its users"
    if status.liveness is Liveness.DEAD:
        return "holdfast takes it over as soon as it is old enough for its protocol"
    return "holdfast never takes over a lock whose holder may be alive"


def heartbeat(status: Status) -> float | None:
    """Seconds between refreshes of the record, if its holder is one of holdfast and has changed nothing; else None."""
    record = status.record
    if record is None or record.marker is None or not record.marker.guarded:
        return None
    every = min(get(status.protocol).stale_after, record.lease or math.inf) / 3
    return every if math.isfinite(every) else None
