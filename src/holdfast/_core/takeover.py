"""Taking over a lock whose holder is dead or stale, in place: the path is never absent, so nobody barges in between.

T1  Two gates, in this order: the guard of the inode, and the claim (claims.py). Who is refused goes back to waiting. A
    contender without kernel locks has the second only, and so one with them heeds it as well. The record of a holder
    that keeps a guard is taken over under that guard only: who has it exclusively has passed both (T8). The descriptor
    that is open already is asked first: opening the file for writing wakes all who watch it, ourselves first. For the
    same reason whoever was refused the claim looks for it before the next try.
T2  Under the claim, the path must still name that inode and the record must still be, byte for byte, the one that was
    judged. Otherwise somebody was faster, or the holder lives and has refreshed it.
T3  The new record covers the old in one write, padded; a reader never sees the end of the old one after the new one.
T4  The path is checked again after the write: a foreign process may have removed it since T2.
T5  Where the protocol's rule holds, whether we needed it or had a proof, a foreign process may have judged by it and
    be about to act. So the new hold settles: it waits, and looks again whether the lock is still its own, before anyone
    is let in. A foreign process that is stopped for longer than that, between its own check and its removal, is not
    covered; `check()` notices.
T6  Where the file may not be written but the directory may, the file is removed under the claim, and the lock is
    published anew. Between the two, others may be faster; then this contender waits like anyone.
T7  Where the protocol has a way to say "I am removing a stale lock", it is said from before T2 to after T4, so that a
    foreign process which is about to remove the same lock, and has its own last look, keeps away (rivals.py, Y3).
T8  Under an exclusive guard a guarded holder's record is replaced without a claim, so that whoever is killed there
    leaves nothing but the lock file. All who might replace it need that guard. Only one who breaks what it took for a
    living holder's lock has no guard (remove.py, R2): it makes a claim, reads the record again, and removes. So we
    write, look for claims, and wait until there is none: either it has found our record and gone away, or it has
    removed the file, and we find that.
T9  Shared locks of others, who need nothing but the right to read, refuse us the exclusive guard for as long as they
    like. After some tries the guard is taken together with them: that says as well that no contender has it
    exclusively, and of those who have it shared the claim lets one pass. As nobody could have a guard on that inode
    afterwards, it is not taken over in place, but removed, as in T6. Whoever gets its guard later finds by T2 that the
    path does not name it any more.
T10 Once the record is overwritten, nothing that is needed may be lacking: without a descriptor to list the directory by
    (rivals.py, Y1) the lock would be given back, and what the dead holder wrote be gone. So the one that the lock file
    was seen by is closed before that.
"""

from __future__ import annotations

from .claims import EXCLUSIVE, NO_LOCKS, SHARED, is_claimed, make_claim, take_guard
from .environment import Environment, Wait
from .files import UNWRITABLE, is_there, let_go, withdraw, write_all
from .hold import Held
from .observe import Observation, explained, read_record
from .policy import Verdict
from .publish import finish, publish
from .request import Request
from .rivals import announce_removal, end_removal, quieten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from .claims import Claim

SETTLE = 0.020
"""Seconds. Foreign implementations act within 1 ms of their check in all but 0.08 % of cases."""
_TRIES = 4
"""How often the guard is asked for exclusively before it is taken together with readers (T9). Probes are shared, too,
and take microseconds."""
_PAUSE, _PATIENCE = 0.0005, 0.1
"""Seconds between looks for claims, and after which the lock is given back, to be tried again (T8)."""


def take_over(
    env: Environment, request: Request, seen: Observation, verdict: Verdict, *, insist: bool = False
) -> Generator[Wait, None, Held | None]:
    """The hold, or None when another contender or the holder itself was faster.

    `insist`: give others who have the guard shared no time to let go of it (T9).
    """
    in_place = _may_be_guarded(env, seen)
    if not in_place:
        seen.refused += 1
        if not insist and seen.refused < _TRIES:
            return None  # T1
    if seen.claimed and is_claimed(env, request.path, seen.identity, NO_LOCKS):
        return None  # T1
    announced = announce_removal(env, request)
    if announced is None:
        return None  # T7
    held, removed = None, False
    try:
        fd = _open(env, request) if in_place else None
        if fd is None:
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
        alone = held if removed or not seen.is_guarded else (yield from _outlast_claims(env, held))
        calm = alone if verdict.by_proof or alone is None else (yield from _settle(env, alone))
        if request.protocol.has_rivals and seen.fd >= 0:
            env.close(seen.fd)  # T10
            seen.fd = -1
        return (yield from quieten(env, request, calm))
    except BaseException:
        held.give_back()
        raise


def _may_be_guarded(env: Environment, seen: Observation) -> bool:
    """Whether the guard could be had exclusively now, or there is none; it is left as it was (T1)."""
    if not env.guards or seen.fd < 0:
        return True
    guard = env.guard(seen.fd)
    if guard:
        env.unguard(seen.fd)
    return guard is not False


def _open(env: Environment, request: Request) -> int | None:
    """A descriptor to write by; None where this user may not."""
    try:
        return env.open_existing(request.path, write=True)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise explained(error, request, env) from error
        return None


def _seize(env: Environment, request: Request, seen: Observation, fd: int) -> Held | None:
    """Overwrite the record through `fd`, which is closed again unless the hold now owns it."""
    data = b""
    held = claim = None
    try:
        found = env.fstat(fd)
        guard = take_guard(env, fd) if (found.st_dev, found.st_ino) == seen.identity else None
        if guard is not None and _may_replace(seen, guard):
            if not seen.is_guarded:  # T8
                claim = _claim(env, request, seen, guard)
            if (claim or seen.is_guarded) and _is_as_judged(env, request, seen, fd):
                new = request.compose(env, found.st_dev, guarded=guard == EXCLUSIVE)
                data = new.ljust(len(seen.data), request.protocol.padding)
                env.publishing(fd, request, data)
                _write_or_restore(env, request, fd, data, seen)
                if is_there(env, request.path, seen.identity):  # T4
                    held = Held(env, request, fd, seen.identity, data, guard == EXCLUSIVE)
            if claim is not None:
                claim.end()
    except BaseException:
        if claim is not None:
            claim.drop()
        if data:
            withdraw(env, request, fd, data)
        else:
            let_go(env, fd)
        raise
    if held is None:
        let_go(env, fd)
    return held


def _may_replace(seen: Observation, guard: int) -> bool:
    """Whether the first gate is passed, for a takeover in place (T1, T9)."""
    return guard == EXCLUSIVE or (guard == NO_LOCKS and not seen.is_guarded)


def _claim(env: Environment, request: Request, seen: Observation, guard: int) -> Claim | None:
    """The second gate; where no claim can be made in the directory, `seen.blocked` says so."""
    try:
        claim = make_claim(env, request.path, seen.identity, guard)
        seen.claimed = claim is None
        return claim
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise explained(error, request, env) from error
        # A lock file here could not be removed by this user at the release, either.
        seen.blocked = f"this user may make no claim to it in {request.directory}"
        return None


def _outlast_claims(env: Environment, held: Held) -> Generator[Wait, None, Held | None]:
    """T8."""
    until = env.monotonic() + _PATIENCE
    while is_claimed(env, held.path, held.identity, EXCLUSIVE):
        if env.monotonic() >= until:
            held.give_back()
            return None
        yield Wait((), env.monotonic() + _PAUSE)
    if held.verify():
        return held
    held.abandon()
    return None


def _is_as_judged(env: Environment, request: Request, seen: Observation, fd: int) -> bool:
    """T2."""
    if request.protocol.ages_by_mtime and env.fstat(fd).st_mtime != seen.modified:
        return False  # the holder has refreshed it
    return is_there(env, request.path, seen.identity) and read_record(env, fd) == seen.data


def _write_or_restore(env: Environment, request: Request, fd: int, data: bytes, seen: Observation) -> None:
    try:
        write_all(env, fd, data)  # T3
    except OSError:
        # The disk is full or failing. Half a record would count as held for ever, or as ours; the old one can be judged
        # again. Where that cannot be written either, nothing at all is the truth.
        try:
            write_all(env, fd, seen.data.ljust(len(read_record(env, fd)), request.protocol.padding))
        except OSError:
            _remove_damaged(env, request, fd, seen)
        raise


def _remove_damaged(env: Environment, request: Request, fd: int, seen: Observation) -> None:
    try:
        if read_record(env, fd) != seen.data and is_there(env, request.path, seen.identity):
            env.unlink(request.path)
    except OSError:
        pass  # the first failure is the one to report


def _remove(env: Environment, request: Request, seen: Observation) -> bool:
    """T6, T9."""
    fd = seen.fd if seen.fd >= 0 else env.open_existing(request.path, write=False)
    guard = None
    try:
        guard = take_guard(env, fd)
        if guard is None or (guard == NO_LOCKS and seen.is_guarded):
            return False  # T1
        try:
            claim = make_claim(env, request.path, seen.identity, guard)
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
        owner = env.fstat(fd).st_uid
        may_not = "may not remove the lock file, on which others have a shared lock"
        if guard != SHARED:
            may_not = "may neither write to the lock file nor remove it"
        seen.blocked = f"this user {may_not}: it belongs to user {owner}"
        return False
    finally:
        if fd != seen.fd:
            env.close(fd)
    return True


def _settle(env: Environment, held: Held) -> Generator[Wait, None, Held | None]:
    """T5."""
    yield Wait((), env.monotonic() + SETTLE)
    if held.verify():
        return held
    held.abandon()
    return None


def complete(
    env: Environment, request: Request, seen: Observation, *, insist: bool = False
) -> Generator[Wait, None, Held | None]:
    """Make an unfinished file ours, whose creator died before it wrote its record (publish.py, X2)."""
    if not _may_be_guarded(env, seen):  # T9
        seen.refused += 1
        if (not insist and seen.refused < _TRIES) or not _remove(env, request, seen):
            return None
        return (yield from publish(env, request))
    try:
        fd = env.open_existing(request.path, write=True)
    except OSError:
        return None
    return (yield from finish(env, request, fd, created=False))
