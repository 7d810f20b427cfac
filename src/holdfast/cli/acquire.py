"""`try` and `acquire`: acquire one lock for a shell, which `release` frees."""

from __future__ import annotations

from .._drivers.sync import drive
from .._platform import environment
from ..errors import AcquireTimeout
from ..lock import Hold, Lock, file_hold, file_request, leave_to, release_all
from ..model import INFINITY
from .keeper import Keeper, acquire_on_server, block, is_possible, tell_acquired, tell_held, unblock
from .locks import is_url, lock_of
from .options import Namespace
from .outcome import DONE, end_quickly, signal
from .owner import Owner, owner_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ..engines.file.request import FileRequest

_PIPE = {signal.SIGPIPE} if hasattr(signal, "SIGPIPE") else set()
"""The signal that would end this process, instead of an error, if nobody can hear of the lock any more."""


def acquire_(options: Namespace) -> int:
    """Acquire the lock for its owner, whose life is the life of the lock; a keeper process holds it."""
    pid = owner_of(options, binds=True)
    lock = lock_of(options)
    if is_url(options.lock):
        return acquire_on_server(lock, options, pid)
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
    name = request.protocol.name
    if request.protocol.persistent:
        why = f"the kernel's lock ({name}) is held by a process that has the file open, so it cannot be left to a shell"
    elif request.protocol.all_beat and not has_keeper:
        why = f"a {name} lock that nobody keeps fresh is taken over in seconds, so it cannot be left to a shell"
        why += " without a keeper"
    else:
        return
    raise ValueError(f"{why}; run the command inside it: holdfast run -p {name} LOCK -- CMD")


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
