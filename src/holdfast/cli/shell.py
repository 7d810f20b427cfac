"""`try`, `acquire`, `release`: one lock, from a shell."""

from __future__ import annotations

import os

from .._drivers.sync import drive
from .._platform import environment
from ..errors import AcquireTimeout, HoldfastError
from ..lock import Hold, Lock, file_hold, file_request, leave_to, release_all
from ..model import INFINITY, Record, Status
from ..protocols import is_persistent
from .keeper import Keeper, block, is_possible, tell_acquired, tell_held, unblock
from .locks import answered, lock_of
from .options import Namespace
from .outcome import DONE, end_quickly, say, signal
from .owner import Owner, owner_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ..engines.file.inspect import Assessment, Observation
    from ..engines.file.request import FileRequest

_PIPE = {signal.SIGPIPE} if hasattr(signal, "SIGPIPE") else set()
"""The signal that would end this process, instead of an error, if nobody can hear of the lock any more."""


def acquire_(options: Namespace) -> int:
    """Acquire the lock for its owner, whose life is the life of the lock; a keeper process holds it."""
    pid = owner_of(options, binds=True)
    lock = lock_of(options)
    request = file_request(lock)
    has_keeper = not options.no_keeper and is_possible()
    _require_for_shell(request, has_keeper=has_keeper)
    if options.lease and not has_keeper:
        raise ValueError("--lease makes no sense without a keeper: no process would renew the lease")
    if has_keeper:
        request.kept_for = pid
    else:
        request.on_behalf_of = pid  # its identity is the proof of life then
    pace, request.beat_every = request.beat_every, INFINITY
    owner = Owner(pid)
    if owner.has_ended():
        return owner.tell_ended(lock.path, options)
    try:
        hold = lock.acquire(options.timeout)
        if owner.has_ended():  # while this waited
            hold.release()
            return owner.tell_ended(lock.path, options)
        if has_keeper and file_hold(hold).guarded:
            _leave_to_keeper(lock, Keeper(hold, owner, pace), options, owner)
        return _leave_alone(lock, hold, options, owner)
    except AcquireTimeout as error:
        return tell_held(lock, options, error)
    except BaseException:
        release_all()
        raise


try_ = acquire_  # with a timeout of 0


def _require_for_shell(request: FileRequest, *, has_keeper: bool) -> None:
    """Raise ValueError for a protocol whose locks cannot be left to a shell."""
    name, without = request.protocol.name, ""
    if request.protocol.persistent:
        why = f"the kernel's lock ({name}) is held by a process that has the file open"
    elif request.protocol.all_beat and not has_keeper:
        why, without = f"a {name} lock that nobody keeps fresh is taken over in seconds", " without a keeper"
    else:
        return
    what = f"{why}, so it cannot be left to a shell{without}"
    raise ValueError(f"{what}; run the command inside it: holdfast run -p {name} LOCK -- CMD")


def _leave_to_keeper(lock: Lock, keeper: Keeper, options: Namespace, owner: Owner) -> NoReturn:
    """Report the lock, then leave it to the keeper: a caller that does not hear of it does not get it."""
    try:
        tell_acquired(lock, options, owner.pid, keeper.pid, keeper.token)
    except BaseException:
        keeper.give_up()
        raise
    end_quickly(DONE if keeper.go() else owner.tell_ended(lock.path, options))


def _leave_alone(lock: Lock, hold: Hold, options: Namespace, owner: Owner) -> int:
    """Leave only the lock file, which names the owner: a caller that does not hear of it does not get it."""
    before = block()
    try:
        if not leave_to(hold, owner.pid):
            return owner.tell_ended(lock.path, options)
        unblock(before | _PIPE)
        tell_acquired(lock, options, owner.pid, None, hold.token)
    except BaseException:
        from ..engines.file.remove import remove_if, why_not_of

        env, whose = environment(), environment().identity(owner.pid)
        drive(remove_if(env, file_request(lock), lambda seen, assessed: not why_not_of(seen, assessed, whose)))
        raise
    finally:
        unblock(before)
    return DONE


def release_(options: Namespace) -> int:
    """Remove the lock file if the owner holds it; its keeper ends."""
    from .._core.messages import first_holder, sentence
    from ..engines.file.remove import remove_if
    from .console import tell_refused, tell_released
    from .keepers import end_keeper, why_not_for

    owner = owner_of(options, binds=False)
    lock = lock_of(options)
    before = lock.status()
    if is_persistent(lock.protocol):
        return _release_kernel_lock(lock, before, options)
    refused: str | None = None
    unkept = False
    if not options.owner_pid and before.holder is not None and before.holder.pid == os.getpid():
        owner = os.getpid()  # the shell itself: it has become its last command, as bash does at the end of -c
    identity = environment().identity(owner)

    def agreed(seen: Observation, assessed: Assessment) -> bool:
        nonlocal refused, unkept
        refused = why_not_for(seen, assessed, identity)
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
        return tell_refused(options, before, why)
    if unkept and not options.quiet:
        say(f"{lock.path}: its keeper had ended before, so anybody could have taken it over since; nobody has")
    result = "released" if removed is not None or before.locked else "not held"
    if result == "not held" and not options.quiet:
        from .slots import elsewhere

        if other := answered(lock, 0.0, lambda: elsewhere(options)):
            say(f"{lock.path} is not held, but {other}")
    return tell_released(options, lock, before, result)


def _release_kernel_lock(lock: Lock, before: Status, options: Namespace) -> int:
    """Report that there is nothing to release, as a shell can hold no kernel lock; the file stays."""
    from .console import tell_refused, tell_released

    try:
        lock.break_lock()
    except HoldfastError as error:
        return tell_refused(options, before, str(error))
    return tell_released(options, lock, before, "not held")
