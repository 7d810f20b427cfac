"""Taking over a lock whose holder is dead or stale, in place: the path is never absent, so nobody barges in between.

T1  One contender has the claim on the inode (its guard); the others are refused and go back to waiting. A record whose
    holder keeps a guard is taken over under that guard only, never under a claim of another kind. The descriptor that
    is open already is asked first: opening the file for writing wakes all who watch it, ourselves first.
T2  Under the claim, the path must still name that inode and the record must still be, byte for byte, the one that was
    judged. Otherwise somebody was faster, or the holder lives and has refreshed it.
T3  The new record covers the old in one write, padded; a reader never sees the end of the old one after the new one.
T4  The path is checked again after the write: a foreign process may have removed it since T2.
T5  Where the protocol's rule holds, whether we needed it or had a proof, a foreign process may have judged by it and
    be about to act. So the new hold settles: it waits, and looks again whether the lock is still its own, before anyone
    is let in. A foreign process that is stopped for longer than that, between its own check and its removal, is not
    covered; `check()` notices.
T6  Where the file may not be written but the directory may, the file is removed under the guard, and the lock is
    published anew. Between the two, others may be faster; then this contender waits like anyone.
T7  Where the protocol has a way to say "I am removing a stale lock", it is said from before T2 to after T4, so that a
    foreign process which is about to remove the same lock, and has its own last look, keeps away (rivals.py, Y3).
"""

from __future__ import annotations

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

SETTLE = 0.020
"""Seconds. Foreign implementations act within 1 ms of their check in all but 0.08 % of cases."""


def take_over(
    env: Environment, request: Request, seen: Observation, verdict: Verdict
) -> Generator[Wait, None, Held | None]:
    """The hold, or None when another contender or the holder itself was faster."""
    if env.guards and seen.fd >= 0:
        if env.guard(seen.fd) is False:
            return None  # T1
        env.unguard(seen.fd)
    announced = announce_removal(env, request)
    if announced is None:
        return None  # T7
    held, removed = None, False
    try:
        try:
            fd = env.open_existing(request.path, write=True)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise explained(error, request, env) from error
            removed = _remove(env, request, seen)
        else:
            held = _seize(env, request, seen, fd)
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
        calm = held if verdict.by_proof else (yield from _settle(env, held))
        return (yield from quieten(env, request, calm))
    except BaseException:
        held.give_back()
        raise


def _seize(env: Environment, request: Request, seen: Observation, fd: int) -> Held | None:
    """Overwrite the record through `fd`, which is closed again unless the hold now owns it."""
    data = b""
    held = None
    try:
        found = env.fstat(fd)
        if (found.st_dev, found.st_ino) == seen.identity and env.claim(
            fd, request.path, seen.data, guarded=seen.is_guarded
        ):
            replaced = False
            try:
                if _is_as_judged(env, request, seen, fd):
                    guarded = env.guard(fd) is True  # taken by the claim already, or not to be had here
                    new = request.compose(env, found.st_dev, guarded=guarded)
                    data = new.ljust(len(seen.data), request.protocol.padding)
                    env.publishing(fd, request, data)
                    _write_or_restore(env, request, fd, data, seen)
                    replaced = True
                    if is_there(env, request.path, seen.identity):  # T4
                        held = Held(env, request, fd, seen.identity, data, guarded)
            finally:
                env.end_claim(fd, replaced=replaced)
    except BaseException:
        if data:
            withdraw(env, request, fd, data)
        else:
            let_go(env, fd)
        raise
    if held is None:
        let_go(env, fd)
    return held


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
    """T6."""
    fd = seen.fd if seen.fd >= 0 else env.open_existing(request.path, write=False)
    try:
        if not env.claim(fd, request.path, seen.data, guarded=seen.is_guarded):
            return False
        removed = False
        try:
            if not _is_as_judged(env, request, seen, fd):
                return False
            env.unlink(request.path)
            removed = True
        finally:
            env.end_claim(fd, replaced=removed)
            env.unguard(fd)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        owner = env.fstat(fd).st_uid
        seen.blocked = f"this user may neither write to the lock file nor remove it: it belongs to user {owner}"
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


def complete(env: Environment, request: Request) -> Generator[Wait, None, Held | None]:
    """Make an unfinished file ours, whose creator died before it wrote its record (publish.py, X2)."""
    try:
        fd = env.open_existing(request.path, write=True)
    except OSError:
        return None
    return (yield from finish(env, request, fd, created=False))
