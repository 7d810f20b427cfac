"""Takeover of a lock whose holder is dead or stale, in place: the path is never absent, so no newcomer barges in.

    guard ──exclusive──────────────▶ claim ──▶ look again ──▶ replace or remove ──▶ end of the claim ──▶ guard dropped
      ├──shared (readers are there)──▶ ┘ ▲
      └──no kernel locks ────────────────┘

T1  Two gates, in this order: the guard of the inode, and the claim. A contender that is refused goes back to waiting.
    A contender without kernel locks has only the second gate, so one with them respects it as well. The record of a
    holder that keeps a guard is taken over only under that guard: an exclusive guard passes both gates (T8). The
    descriptor that is already open is tried first: opening the file for writing wakes all its watchers, ourselves
    first. For the same reason a contender that was refused the claim looks for it before the next try.
T2  Under the claim, the path must still name that inode, and the record must still be, byte for byte, the judged one.
    Otherwise another contender was faster, or the holder lives and has refreshed it.
T3  The new record overwrites the old one in one padded write; a reader never sees the end of the old after the new.
T4  The path is checked again after the write: a foreign process may have removed it since T2.
T5  If the protocol's rule holds, whether we needed it or had a proof, a foreign process may have judged by it and be
    about to act. So the new hold settles: it waits, and checks again that the lock is still its own, before it is
    delivered. A foreign process that stops for longer than that, between its own check and its removal, is not covered;
    `check()` notices.
T6  Where the directory is writable but the file is not, the file is removed under the claim, and the lock is published
    again. Between the two, others may be faster; then this contender waits like any other.
T7  If the protocol can announce the removal of a stale lock, the announcement stands from before T2 to after T4, so
    that a foreign process about to remove the same lock sees it in its own last look and backs off (interop.py, Y3).
    A user who may make no announcement leaves the lock to others.
T8  Under an exclusive guard a guarded holder's record is replaced without a claim, so that a kill there leaves only the
    lock file. Every process that might replace it needs that guard. Only a process that breaks a lock which looks alive
    has no guard (remove.py, R2): it makes a claim, reads the record again, and removes. So we write, look for claims,
    and wait until there are none: either that process has found our record and backed off, or it has removed the file,
    and we notice. Where a look fails, we do not enter. Only a user who may not list the directory enters without one;
    a removal after that is noticed by `check()`.
T9  Shared locks of others, which need only read permission, can refuse us the exclusive guard forever. After some tries
    we share the guard with them: that still shows that no contender has it exclusively, and of the contenders that
    share it the claim lets one pass. As that inode could not be guarded afterwards, it is not taken over in place, but
    removed, as in T6. A contender that gets its guard later finds by T2 that the path no longer names it.
T10 Once the record is overwritten, no resource may be missing: without a descriptor to list the directory (T8; and
    interop.py, Y1) the lock would be given back, and the dead holder's record be lost. So the descriptor through which
    the lock file was read is closed before that.

T17 A holder with a lease that is not proven dead may still write to its file. So it is not replaced in place, and the
    second gate is another kind of claim (lease.py, LE4 to LE6). The guard of the old file, where there is one, is kept
    until that is done, perhaps shared with others. Where the guard says nothing about the holder (inspect.py, L1), the
    claim alone decides.

T18 Others may have linked a file of another directory here (fs.protected_hardlinks=0), which is not ours to write to.
    One look at the path tells its inode and the number of its names, both at the same moment. If it is our inode and
    has one name, then at that moment it has no name elsewhere, and a later one is another name of a lock file. So we
    look when the file is open, right before the write. (The descriptor's count would be of another moment than the
    name.) A file with more names is treated as one that this user may not write to, as in T6: only its name here is
    removed. The same happens if the publisher died between its two names (publish.py, named), and on filesystems that
    count too many names; a count of none is taken for one.
T19 An exclusive lock of a reader refuses us the guard in either form. If it is certainly no guard (inspect.py, L11),
    the holder's is gone for good, and the lock file is removed as in T9, under the claim alone. That is what breaking a
    lock does (remove.py, R2), and as safe: a contender that has got the guard meanwhile, as the reader has let go,
    either has a claim or looks for ours before it enters (T8); and under our claim the path and the record are looked
    at again (T2).

T20 Claims of the other kind (T17) say nothing of their claimants. So a process that has a claim to a hold with a lease
    disarms them; those that come later find that claim, and back off (lease.py, LE13).
T21 A takeover may still fail when the record is overwritten: at a disk that is full, a counter of tokens that cannot be
    read, an interruption. Then the dead holder's record is put back, under the guard, so that the next contender learns
    of the crash. Not if it had no guard, or is judged by the time of the last write; nor if this contender tries again,
    and remembers.

A claim is an empty file beside the lock file. Its name says which inode it is about and which process made it.

T11 The token in the name makes it unique. A process that has made a claim lists the directory; if another claim counts,
    it removes its own and has none. Of two, the process that lists last finds the other's: there are never two.
T12 A claim counts until its claimant is proven gone. A claim from another boot or machine counts for a minute: a
    takeover takes milliseconds, and nothing can be known about the claimant. The minute is measured by the clock that
    dates such files, which may be a server's: by the time of our own claim, or of the record that we have just written.
    A process that has neither only looks, and removes none. (`clean` removes them after a day.)
T13 Under an exclusive guard, a claim made under the guard of the same inode (`g`) does not count: its claimant would
    still have the guard. So a killed process's claim is removed, whichever container it was in.
T14 In a sticky directory, a claim of a user who may neither write to the lock file nor remove it is a forgery, and does
    not count. Elsewhere a user who can make a claim can remove the lock file as well. Where the lock file's group may
    write to it, a claimant gives the claim that group, which only its members can, before it lists the directory: so of
    two, the last to list still finds the other's (T11). A process whose claim would not count has none. Nor does a file
    count that was linked here from elsewhere: a user who may link it (fs.protected_hardlinks) may write to it, and only
    its maker can write to a claim.
T15 Only names are examined. Nothing is opened, read or followed; a claim is a regular file.
T16 A claim is removed by its claimant, or by a process that finds that it does not count by T12 or T13. Its name is
    never reused, so no other claim is removed by mistake.
"""

from __future__ import annotations

import errno
import stat
import zlib

from ..._core.messages import NO_LOCKS_HERE
from ..._core.wait import Steps, Wait
from ..._platform.fork import forking
from ..._platform.operations import let_go, partial, sweep_when_due, unlink_quietly
from ...model import Value
from .hold import FileHold
from .inspect import Observation, forget, guard_counts, is_readers_lock, read_record
from .interop import Announcement, announce_removal, end_removal, quieten
from .publish import finish, guard_late, publish
from .steps import REMOVED, UNWRITABLE, is_there, names_there, with_hint, withdraw, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._platform.interface import Environment, Stat
    from .policy import Verdict
    from .request import FileRequest


_PREFIX, _SUFFIX = ".holdfast-", ".claim"
_MOST_OTHERS = 50
"""Maximum number of claims to other lock files that one look at the directory examines, to remove leftovers."""
_UNKNOWABLE_LASTS, _OLD = 60.0, 86_400.0
"""Seconds for which a claim counts whose claimant cannot be known, and after which `clean` removes it (T12)."""
NO_LOCKS, SHARED, EXCLUSIVE = 0, 1, 2
"""The ways to hold the guard."""


def take_guard(env: Environment, fd: int) -> int | None:
    """The first gate: the guard exclusively, or shared if only readers have it; None if it is refused.

    The two ways exclude each other. Of the contenders that share it, the claim lets one pass.
    """
    guard = _guard(env, fd)
    if guard is None:
        return NO_LOCKS
    if guard:
        return EXCLUSIVE
    return SHARED if _guard(env, fd, shared=True) else None


def is_past_guard(env: Environment, seen: Observation, guard: int | None) -> bool:
    """Whether a process that is about to remove the file has passed the first gate (T1, T19)."""
    if guard is None:
        return is_readers_lock(env, seen)
    return guard != NO_LOCKS or not seen.is_guarded


def _guard(env: Environment, fd: int, *, shared: bool = False) -> bool | None:
    """Take the guard like `env.guard`; it is refused for a file that another machine has removed (inspect.py, L8).

    On NFS, a descriptor that cannot write never gets it exclusively.
    """
    try:
        return env.guard(fd, shared=shared)
    except OSError as error:
        if error.errno not in REMOVED and (error.errno != errno.EBADF or not env.is_open(fd)):
            raise
        return False


class Claim:
    """The exclusive right to replace or remove the file at a path, until `end`."""

    __slots__ = ("_env", "_path")

    def __init__(self, env: Environment, path: str) -> None:
        self._env = env
        self._path = path

    def end(self) -> None:
        """Remove the claim; try twice, if need be, as it counts while this process lives."""
        try:
            self._env.unlink(self._path)
        except FileNotFoundError:
            pass
        except OSError:
            self._env.unlink(self._path)
        except BaseException:  # an interruption
            self.drop()
            raise

    def drop(self) -> None:
        """Remove the claim after another failure, which is the one to report."""
        unlink_quietly(self._env, self._path)


def make_claim(env: Environment, path: str, inode: tuple[int, int], guard: int) -> Claim | None:
    """The second gate: the claim on the inode that `path` names; None while another process has it (T11).

    OSError if this user may not create files in the directory, or not list it.
    """
    directory = path.rpartition("/")[0]
    name = _name(env, inode, guard)
    mine = Claim(env, f"{directory}/{name}")
    env.operations.about_to_make(mine._path)
    try:
        fd = env.open_new(mine._path, 0o600)
        try:
            made = _require_that_it_counts(env, path, fd)
        finally:
            env.close(fd)
        names = env.list_directory(directory or "/")
        alone = not _has_other(env, path, inode, [other for other in names if other != name], guard, lambda: made)
    except BaseException:
        unlink_quietly(env, mine._path)  # interrupted, perhaps after it was made
        raise
    if alone:
        return mine
    mine.end()
    return None


def claim_seen(env: Environment, request: FileRequest, seen: Observation, guard: int) -> Claim | None:
    """The claim on the lock file that was seen, which nobody can replace then; None if another process was faster."""
    claim = make_claim(env, request.path, seen.identity, guard)
    if claim is None:
        return None
    try:
        if disarm_replacers(env, request, seen):
            return claim
    except BaseException:
        claim.drop()
        raise
    claim.end()
    return None


def disarm_replacers(env: Environment, request: FileRequest, seen: Observation) -> bool:
    """Disarm those who might replace a holder with a lease (T20). Whether its record is still the one that was seen."""
    if seen.lease is None:
        return True
    with forking:
        from .lease import disarm
    return disarm(env, request, seen)


def _require_that_it_counts(env: Environment, path: str, fd: int) -> float:
    """Raise PermissionError unless others will respect our claim (T14). The time at which it was made."""
    found = env.fstat(fd)
    if _is_forged(env, path, found):
        try:
            env.give(fd, group=env.stat(path).st_gid)
        except OSError:
            pass  # we are not of that group, or it has no number in this container; or the lock file is gone
        if _is_forged(env, path, env.fstat(fd)):
            raise PermissionError(errno.EPERM, "Operation not permitted", path)
    return found.st_mtime


def is_claimed(
    env: Environment, path: str, inode: tuple[int, int], guard: int, now: Callable[[], float] | None = None
) -> bool:
    """Whether another process has a claim on the inode; False if the directory is gone, or may not be listed.

    `now`: the time by the clock that dates claims; without it, none is removed (T12).
    """
    try:
        names = env.list_directory(path.rpartition("/")[0] or "/")
    except OSError as error:
        if error.errno not in (*UNWRITABLE, *REMOVED, errno.ENOTDIR):
            raise
        return False
    return _has_other(env, path, inode, names, guard, now)


def claims_on(env: Environment, path: str, inode: tuple[int, int], names: list[str]) -> list[str]:
    """Of these names in its directory, the claims on the inode, also those of processes that have ended."""
    directory, found = path.rpartition("/")[0], []
    for name in names:
        about = _parsed(name)
        if about is not None and about.inode[1] == inode[1] and _look_at(env, path, f"{directory}/{name}"):
            found.append(name)
    return sorted(found)


def is_claim(name: str) -> bool:
    """Whether this is the name of a claim."""
    return _parsed(name) is not None


def why_over(env: Environment, path: str) -> str | None:
    """The reason why a claim no longer counts (T12), as far as is known without its lock's guard; else None."""
    about = _parsed(path.rpartition("/")[2])
    found = env.stat(path)
    if about is None or not stat.S_ISREG(found.st_mode) or found.st_size:
        return None
    if not about.is_over(env, lambda: env.time() - found.st_mtime, lasts=_OLD):
        return None
    if about.boot != _digest(env.identity().boot):
        return "it was made before a reboot, or on another machine, more than a day ago"
    return f"process {about.pid}, which made it, has ended"


class _About(Value):
    """The parts of a claim's name."""

    inode: tuple[int, int]
    under_guard: bool
    boot: str
    space: str
    pid: int
    started: str

    def is_over(self, env: Environment, age: Callable[[], float], lasts: float = _UNKNOWABLE_LASTS) -> bool:
        """Whether the claim no longer counts (T12). `lasts`: seconds, if it is from another boot."""
        who = env.identity()
        if not who.has_pid_space:
            return False
        if self.boot != _digest(who.boot):
            return abs(age()) >= lasts  # a clock may be set back
        if self.space != _digest(who.pid_namespace):
            return False
        found = env.inspect(self.pid)
        if found.has_ended:
            return True
        return "-" not in (self.started, found.started) and self.started != found.started


def _name(env: Environment, inode: tuple[int, int], guard: int) -> str:
    who = env.identity()
    words = (
        f"{inode[1]:x}",
        f"{inode[0]:x}",
        "n" if guard == NO_LOCKS else "g",
        _digest(who.boot),
        _digest(who.pid_namespace),
        str(who.pid),
        who.started.replace(".", ""),
        env.token(),
    )
    return f"{_PREFIX}{'.'.join(words)}{_SUFFIX}"


def _parsed(name: str) -> _About | None:
    if not (name.startswith(_PREFIX) and name.endswith(_SUFFIX)):
        return None
    words = name[len(_PREFIX) : -len(_SUFFIX)].split(".")
    if len(words) != 8 or words[2] not in ("g", "n") or not (words[5].isascii() and words[5].isdecimal()):
        return None
    number, device, kind, boot, space, pid, started, token = words
    numbers = (number, device, boot, space, token)
    if len(pid) > 10 or len(token) != 16 or any(not w or len(w) > 16 or w.strip("0123456789abcdef") for w in numbers):
        return None
    return _About((int(device, 16), int(number, 16)), kind == "g", boot, space, int(pid), started)


def _digest(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _has_other(
    env: Environment,
    path: str,
    inode: tuple[int, int],
    names: list[str],
    guard: int,
    now: Callable[[], float] | None,
) -> bool:
    """Whether another claim counts. Removes those that do not by T12 or T13, and leftovers of files that are gone."""
    directory, counts, others = path.rpartition("/")[0], False, 0
    for name in names:
        found = _parsed(name)
        if found is None:
            continue
        if found.inode[1] != inode[1]:
            others += 1
            if others > _MOST_OTHERS:
                continue  # each costs a look at a process, and others may make as many as they like
        if _counts(env, path, f"{directory}/{name}", found, inode, guard, now):
            counts = True
    return counts


def _counts(
    env: Environment,
    path: str,
    claim: str,
    about: _About,
    inode: tuple[int, int],
    guard: int,
    now: Callable[[], float] | None,
) -> bool:
    is_of_this = about.inode[1] == inode[1]
    found = _look_at(env, path if is_of_this else None, claim)
    if found is None:
        return False
    outlived = guard == EXCLUSIVE and about.under_guard and about.inode == inode  # T13
    if outlived or about.is_over(env, lambda: (now or env.time)() - found.st_mtime):
        if now is not None:
            unlink_quietly(env, claim)  # T16; of another file, too: its inode number may never come again
        return False
    return is_of_this


def _look_at(env: Environment, path: str | None, claim: str) -> Stat | None:
    """The claim, of the lock file at `path`, if that is given; None if it is gone, or is no claim (T14, T15)."""
    try:
        found = env.stat(claim)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode) or found.st_size:
        return None
    return None if path is not None and _is_forged(env, path, found) else found


def _is_forged(env: Environment, path: str, claim: Stat) -> bool:
    """Whether the claim is a forgery (T14)."""
    where = env.stat(f"{path.rpartition('/')[0]}/.")
    if not where.st_mode & stat.S_ISVTX:
        return False
    try:
        lock = env.stat(path)
    except FileNotFoundError:
        return False
    if claim.st_nlink > 1 and claim.st_mode & 0o077:
        return True
    if claim.st_uid in (0, where.st_uid, lock.st_uid) or lock.st_mode & stat.S_IWOTH:
        return False
    return not lock.st_mode & stat.S_IWGRP or claim.st_gid != lock.st_gid


SETTLE = 0.020
"""Seconds. Foreign implementations act within 1 ms of their check in all but 0.08 % of cases."""
TRIES = 4
"""Tries for the exclusive guard before it is shared (T9). Probes share it, too, but take microseconds."""
_PAUSE, _PATIENCE = 0.0005, 0.1
"""Seconds between looks for claims, and seconds after which the lock is given back and tried again (T8)."""


def take_over(env: Environment, request: FileRequest, seen: Observation, verdict: Verdict) -> Steps[FileHold | None]:
    """The hold, or None if another contender or the holder itself was faster."""
    in_place = _is_guard_free(env, seen)
    if not in_place:
        seen.refused += 1
        if seen.refused < TRIES:
            return None  # T1
    if seen.claimed and is_claimed(env, request.path, seen.identity, NO_LOCKS):
        return None  # T1
    sweep_when_due(env, request.directory)  # what was killed in a release may have left a name (windows.py, WI4)
    announced = _announce(env, request, seen)
    if announced is None:
        return None  # T7
    held, removed = None, False
    try:
        in_place = in_place and not verdict.lapsed and names_there(env, request.path, seen.identity) <= 1  # T18
        fd = _open(env, request) if in_place else None
        if verdict.lapsed:
            held = yield from _replace(env, request, seen)
        elif fd is None:
            removed = _remove(env, request, seen)
        else:
            held = _seize(env, request, seen, fd)
    except FileNotFoundError:
        return None
    finally:
        try:
            end_removal(env, request, announced)
        except BaseException:  # an interruption
            if held is not None:
                held.give_back()
            raise
    if removed:
        held = yield from publish(env, request)
    if held is None:
        return None
    held.recovered_from = seen.record
    try:
        if request.protocol.has_rivals or seen.is_guarded:
            forget(env, seen)  # T10
        alone = held if removed or not seen.is_guarded else (yield from _wait_for_claims(env, held))
        calm = alone if verdict.by_proof or alone is None else (yield from settle(env, alone))
        return (yield from quieten(env, request, calm))
    except BaseException:
        held.give_back()
        raise
    finally:
        seen.replaced = held.retried


def _announce(env: Environment, request: FileRequest, seen: Observation) -> Announcement | None:
    """The announcement (T7); None while another process has one, or if none can be made: `seen` says so."""
    try:
        return announce_removal(env, request)
    except PermissionError:
        seen.blocked = f"this user may not announce that in {request.directory}"
    except FileExistsError as error:
        seen.blocked = error.strerror  # interop.py, Y10
    return None


def _replace(env: Environment, request: FileRequest, seen: Observation) -> Steps[FileHold | None]:
    """Replace the file of a holder with a lease (T17)."""
    with forking:
        from .lease import replace
    old = _open(env, request)
    fd = seen.fd if old is None else old
    try:
        if fd >= 0 and take_guard(env, fd) is None and guard_counts(env, seen):
            return None  # T1
        placed = replace(env, request, seen, partial(claims_on, env, request.path, seen.identity))
        return None if placed is None else (yield from guard_late(env, request, *placed))
    finally:
        if old is not None:
            let_go(env, old)
        elif fd >= 0:
            env.unguard(fd)


def _is_guard_free(env: Environment, seen: Observation) -> bool:
    """Whether the exclusive guard is available now, or there are no guards; leaves it as it was (T1)."""
    if not env.guards or seen.fd < 0:
        return True
    guard = _guard(env, seen.fd)
    if guard is False and env.storage(seen.path, seen.identity[0]).shared:
        guard = _guard(env, seen.fd, shared=True)
    if guard:
        env.unguard(seen.fd)
    return guard is not False or not guard_counts(env, seen)


def _open(env: Environment, request: FileRequest) -> int | None:
    """A descriptor for writing; None if this user may not."""
    try:
        return env.open_existing(request.path, write=True)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno not in (*UNWRITABLE, errno.EAGAIN):  # a lease (inspect.py, L10)
            raise with_hint(error, request, env) from error
        return None


def _seize(env: Environment, request: FileRequest, seen: Observation, fd: int) -> FileHold | None:
    """Overwrite the record through `fd`, which is then the hold's, or else closed."""
    data = before = b""
    held = claim = None
    try:
        found = env.fstat(fd)
        guard = take_guard(env, fd) if (found.st_dev, found.st_ino) == seen.identity else None
        if guard == EXCLUSIVE or (guard == NO_LOCKS and not seen.is_guarded):  # T1, T9
            if not seen.is_guarded:  # T8
                claim = _claim(env, request, seen, guard)
            judged = (claim or seen.is_guarded) and _is_as_judged(env, request, seen, fd)
            if judged and names_there(env, request.path, seen.identity) == 1:  # T18
                new = request.compose(env, found.st_dev, guarded=guard == EXCLUSIVE)
                data = new.ljust(len(seen.data), request.protocol.padding)
                before = seen.data if seen.is_guarded and not request.protocol.ages_by_mtime else b""  # T21
                env.undo_by(fd, partial(withdraw, env, request, data, before=before))
                _write_or_restore(env, request, fd, data, seen)
                if request.durable:  # the one that died may not have asked for it
                    env.sync(fd)
                    env.sync_directory(request.directory)
                if is_there(env, request.path, seen.identity):  # T4
                    held = FileHold(env, request, fd, seen.identity, data, guard == EXCLUSIVE)
                    held.before = before
            if claim is not None:
                claim.end()
        elif guard == NO_LOCKS:
            seen.blocked = NO_LOCKS_HERE  # T1
    except BaseException:
        if claim is not None:
            claim.drop()
        if data:
            withdraw(env, request, data, fd, before=before)
        else:
            let_go(env, fd)
        raise
    if held is None:
        let_go(env, fd)
    return held


def _claim(env: Environment, request: FileRequest, seen: Observation, guard: int) -> Claim | None:
    """The second gate; `seen.blocked` says why, if no claim can be made in the directory."""
    try:
        claim = claim_seen(env, request, seen, guard)
        seen.claimed = claim is None
        return claim
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise with_hint(error, request, env) from error
        # This user could not remove a lock file here at the release either.
        seen.blocked = f"this user may not create a claim to it in {request.directory}"
        return None


def _wait_for_claims(env: Environment, held: FileHold) -> Steps[FileHold | None]:
    """Wait until there are no claims (T8)."""
    until = env.monotonic() + _PATIENCE
    while is_claimed(env, held.path, held.identity, EXCLUSIVE, lambda: env.fstat(held.fd).st_mtime):
        if env.monotonic() >= until:
            held.retried = True
            held.give_back()
            return None
        yield Wait((), env.monotonic() + _PAUSE)
    if held.verify():
        return held
    held.abandon()
    return None


def _is_as_judged(env: Environment, request: FileRequest, seen: Observation, fd: int) -> bool:
    """Whether the file and its record are as they were judged (T2)."""
    if request.protocol.ages_by_mtime and env.fstat(fd).st_mtime != seen.modified:
        return False  # the holder has refreshed it
    return is_there(env, request.path, seen.identity) and read_record(env, fd) == seen.data


def _write_or_restore(env: Environment, request: FileRequest, fd: int, data: bytes, seen: Observation) -> None:
    try:
        write_all(env, fd, data)  # T3
    except OSError:
        # The disk is full or failing. Half a record would count as held forever, or as ours; the old one can be judged
        # again. If that cannot be written either, the file has to go.
        try:
            write_all(env, fd, seen.data.ljust(len(read_record(env, fd)), request.protocol.padding))
        except OSError:
            _remove_damaged(env, request, fd, seen)
        raise


def _remove_damaged(env: Environment, request: FileRequest, fd: int, seen: Observation) -> None:
    try:
        if read_record(env, fd) != seen.data and is_there(env, request.path, seen.identity):
            env.unlink(request.path)
    except OSError:
        pass  # the first failure is the one to report


def _remove(env: Environment, request: FileRequest, seen: Observation) -> bool:
    """Remove the lock file (T6, T9). Whether it was removed."""
    fd = seen.fd if seen.fd >= 0 else env.open_existing(request.path, write=False)
    guard = None
    try:
        guard = take_guard(env, fd)
        if not is_past_guard(env, seen, guard):
            if guard == NO_LOCKS:
                seen.blocked = NO_LOCKS_HERE  # T1
            return False
        try:
            claim = claim_seen(env, request, seen, guard or NO_LOCKS)
            if claim is None:
                return False
            try:
                if not _is_as_judged(env, request, seen, fd):
                    return False
                env.unlink(request.path)
            finally:
                claim.end()
        finally:
            env.unguard(fd)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        if error.errno == errno.EROFS:  # nobody can take it over, and no holder is to be waited for
            why = f"{error.strerror}; nobody can take the lock over before its filesystem is writable"
            raise OSError(error.errno, why, request.path) from error
        found = env.fstat(fd)
        may_not = "may not remove the lock file, on which others have a lock"
        if guard not in (SHARED, None):
            may_not = "may neither write to the lock file nor remove it"
            if found.st_nlink > 1:
                may_not = "may not remove the lock file, which has another name elsewhere and so is not written to"
        seen.blocked = f"this user {may_not}: it belongs to user {found.st_uid}"
        return False
    finally:
        if fd != seen.fd:
            env.close(fd)
    return True


def settle(env: Environment, held: FileHold) -> Steps[FileHold | None]:
    """Wait, and check that the lock is still ours (T5). The caller gives the hold back if this is interrupted."""
    yield Wait((), env.monotonic() + SETTLE)
    if held.verify():
        return held
    held.abandon()
    return None


def complete(env: Environment, request: FileRequest, seen: Observation) -> Steps[FileHold | None]:
    """Acquire an unfinished file, whose creator died before it wrote its record (publish.py, P6)."""
    free = _is_guard_free(env, seen)
    try:
        in_place = free and names_there(env, request.path, seen.identity) <= 1  # T9, T18
        fd = _open(env, request) if in_place else None
    except FileNotFoundError:
        return None
    if fd is not None:
        return (yield from finish(env, request, fd, created=False))
    seen.refused += not free
    if (not free and seen.refused < TRIES) or not _remove(env, request, seen):  # T6
        return None
    return (yield from publish(env, request))
