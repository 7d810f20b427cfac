"""`release`: free a lock that `try` or `acquire` has left to its owner; its keeper is ended (keeper.py)."""

from __future__ import annotations

import os
import time

from .._core.messages import first_holder, sentence
from .._drivers.sync import drive
from .._platform import environment
from .._platform.tree import Member, is_running, look_at, send
from ..engines.file.inspect import Assessment, Observation, forget, glance, observe
from ..engines.file.remove import remove_if, why_not_of
from ..errors import HoldfastError
from ..liveness import Liveness
from ..lock import Lock, file_request
from ..model import Evidence, Identity, Record, Status
from ..protocols import is_persistent
from .console import as_json
from .locks import answered, is_url, lock_of
from .options import Namespace
from .outcome import DONE, HELD, say, show, signal
from .owner import KEEPER, is_shell, kept_for, owner_of
from .slots import elsewhere

_PATIENCE = 5.0
"""Seconds to wait for a keeper that was told to end."""
_LOOK_EVERY = 0.002
_UNPROVEN = Assessment(Liveness.UNKNOWN, Evidence("none", "the guard is the keeper's"))


def release_(options: Namespace) -> int:
    """Remove the lock file if the owner holds it; its keeper ends."""
    owner = owner_of(options, binds=False)
    if is_url(options.lock):
        return _release_on_server(options, owner)
    lock = lock_of(options)
    before = lock.status()
    if is_persistent(lock.protocol):  # a shell can hold no kernel lock, and the file stays
        try:
            lock.break_lock()
        except HoldfastError as error:
            return _tell_refused(options, before, str(error))
        return _tell_released(options, lock, before, "not held")
    refused: str | None = None
    unkept = False
    if not options.owner_pid and before.holder is not None and before.holder.pid == os.getpid():
        owner = os.getpid()  # the shell itself: it has become its last command, as bash does at the end of -c
    identity = environment().identity(owner)

    def agreed(seen: Observation, assessed: Assessment) -> bool:
        nonlocal refused, unkept
        refused = _why_not(seen, assessed, identity)
        unkept = assessed.is_dead and assessed.evidence.source == "guard"
        return refused is None

    def take_away() -> Record | None:
        if end_keeper(lock, identity):
            return None
        return drive(remove_if(environment(), file_request(lock), agreed))

    removed = answered(lock, 0.0, take_away)
    if refused:
        if first_holder(before) is not None:
            refused = sentence(before)  # the process in the record has ended
        why = f"{lock.path} was not released: {refused}. holdfast break removes another's lock"
        return _tell_refused(options, before, why)
    if unkept and not options.quiet:
        say(f"{lock.path}: its keeper had ended before, so anybody could have taken it over since; nobody has")
    result = "released" if removed is not None or before.locked else "not held"
    if result == "not held" and not options.quiet and (other := answered(lock, 0.0, lambda: elsewhere(options))):
        say(f"{lock.path} is not held, but {other}")
    return _tell_released(options, lock, before, result)


def _tell_released(options: Namespace, lock: Lock, before: Status, result: str) -> int:
    """Report that the lock is free, now or even before; the exit status."""
    if options.json:
        show(as_json(before, result))
    if options.verbose:
        say(f"{lock.path}: {result}")
    return DONE


def _tell_refused(options: Namespace, before: Status, why: str) -> int:
    """Report why the lock stays as it is; the exit status."""
    if options.json:
        show(as_json(before, "refused", why=why))
    else:
        say(why)
    return HELD


# -- a keeper of a lock file -------------------------------------------------------------------------------------------


def _keeper_of(identity: tuple[int, int]) -> int | None:
    """Pid of the keeper that has the guard of this file; None if there is none, or it cannot be seen from here."""
    env = environment()
    for one in env.lock_owners(identity):
        has_it = one.exclusive and not one.waiting
        if one.pid is not None and has_it and (env.command(one.pid) or "").split()[:1] == [KEEPER]:
            return one.pid
    return None


def _why_not(seen: Observation, assessed: Assessment, owner: Identity) -> str | None:
    """Like `why_not_of`, but a lock that a keeper guards is its owner's. If the holders of kernel locks cannot be seen,
    a guarded lock of a shell counts as kept by a keeper, as a shell guards no file itself; so does, as far as can be
    known, that of a process of which not even its program is seen. The keeper ends when it finds that the file is
    gone."""
    if seen.is_directory:
        return _why_not_titled(seen, owner)
    if assessed.evidence.source == "guard" and not assessed.is_dead and _may_be_kept(seen, owner):
        assessed = _UNPROVEN
    return why_not_of(seen, assessed, owner)


def _may_be_kept(seen: Observation, owner: Identity) -> bool:
    env = environment()
    if env.lock_owners(seen.identity):
        return _keeper_of(seen.identity) is not None
    return is_shell(owner.pid) or env.program(owner.pid) is None


def _why_not_titled(seen: Observation, owner: Identity) -> str | None:
    """Like `_why_not`, for a lock without a record: the keeper's title names the owner."""
    keeper = _keeper_of(seen.identity)
    if keeper is None:
        return "it does not name its owner, and no shell's keeper can be seen to hold it"
    kept = kept_for(keeper)
    if kept != owner.pid:
        whose = f"process {kept}" if kept else "another process"
        return f"it was acquired for {whose}, not for process {owner.pid}"
    return None


def end_keeper(lock: Lock, owner: Identity) -> bool:
    """End the keeper of the lock, if it keeps it for this `owner`, and wait until it has released. False if there is no
    such keeper, or it still has the lock."""
    env = environment()
    seen = observe(env, file_request(lock))
    if seen is None:
        return False
    try:  # while the file is kept open, no later one gets its inode number
        keeper = _keeper_of(seen.identity) if _why_not(seen, _UNPROVEN, owner) is None else None
        process = None if keeper is None else look_at(keeper)
        if process is None:
            return False
        try:
            if _keeper_of(seen.identity) != keeper or not _end_process(process):  # keeper.py, S6
                return False
        except OSError:
            return False  # it is another user's
        left = glance(env, file_request(lock))
        return left is None or not _is_same(left, seen)
    finally:
        forget(env, seen)


def _end_process(one: Member) -> bool:
    """Tell a process to end; whether it does in time."""
    until = time.monotonic() + _PATIENCE
    for number in (signal.SIGTERM, signal.SIGCONT):  # the latter in case it was stopped
        send(one, number)
    while is_running(one):
        if time.monotonic() >= until:
            return False
        time.sleep(_LOOK_EVERY)
    return True


def _is_same(one: Observation, other: Observation) -> bool:
    """Whether both are the same acquisition, whatever heartbeats have changed."""
    if one.identity != other.identity or one.record is None or other.record is None:
        return False
    return (one.record.pid, one.record.marker) == (other.record.pid, other.record.marker)


# -- a keeper of a lock on a server ------------------------------------------------------------------------------------


def _release_on_server(options: Namespace, owner: int) -> int:
    lock = Lock(options.lock)
    before = lock.status()
    if not before.locked:
        return _tell_released(options, lock, before, "not held")
    if why := _end_keeper_on_server(before, owner):
        return _tell_refused(
            options, before, f"{lock.path} was not released: {why}. holdfast break ends another's hold"
        )
    return _tell_released(options, lock, before, "released")


def _end_keeper_on_server(status: Status, owner: int) -> str:
    """End the keeper that holds this lock for `owner`, and wait for that; empty, or why that was not done."""
    env, holder = environment(), status.holder
    if holder is None or holder.pid is None or (holder.host or "").casefold() != env.identity().host.casefold():
        return f"it is held by process {holder and holder.pid} on {holder and holder.host}"
    process = look_at(holder.pid)
    if process is None:
        return f"it is held by process {holder.pid}, which cannot be seen from here"
    try:
        kept = kept_for(holder.pid)  # keeper.py, S6
        if kept != owner:
            whose = f", which keeps it for process {kept}" if kept else ""
            return f"it is held by process {holder.pid}{whose}, not for process {owner}"
        return "" if _end_process(process) else f"its keeper, process {holder.pid}, does not end"
    except OSError as error:
        return f"its keeper, process {holder.pid}, cannot be ended ({error.strerror})"
