"""`try`, `acquire`, `release`, `wait`, `status`: one lock, from a shell."""

from __future__ import annotations

import argparse
import os

from .._core.liveness import Assessment
from .._core.observe import Observation
from .._core.remove import remove_if, why_not_of
from .._core.report import advice, sentence, waiting
from ..errors import AcquireTimeout, HoldfastError
from ..lock import Lock
from ..model import Status
from ..protocols import is_persistent
from . import DONE, FAILED, HELD, USAGE, say, show
from .output import as_json, as_text, lock_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from ..lock import Resource

    R = TypeVar("R", bound=Resource)


def try_(options: argparse.Namespace) -> int:
    """Acquire for the owner, once."""
    options.timeout = 0.0
    return acquire_(options)


def acquire_(options: argparse.Namespace) -> int:
    """Acquire for the owner: the record names it, and its life is the life of the lock."""
    owner = _owner(options)
    if owner is None:
        return USAGE
    lock = make_lock(options)
    lock._bind(owner)
    try:
        left = lock.acquire(options.timeout)._leave_to(owner)
    except AcquireTimeout as error:
        status = lock.status()
        if options.json:
            show(as_json("held", status))
        elif not options.quiet:
            say(str(error))
        return int(options.held_code)
    except KeyboardInterrupt:
        lock._release_all()
        raise
    if not left:
        say(f"process {owner} has ended, so {lock.path} was not acquired for it")
        return FAILED
    if options.json:
        try:
            show(as_json("acquired", lock.status(), owner_pid=owner))
        except OSError:
            remove_if(
                lock._env,
                lock._request,
                lambda seen, assessed: not why_not_of(seen, assessed, lock._env.identity(owner)),
            )
            raise
    if options.verbose:
        say(f"acquired {lock.path} for process {owner}")
    return DONE


def release_(options: argparse.Namespace) -> int:
    """Remove the lock file if the owner holds it."""
    owner = _owner(options)
    if owner is None:
        return USAGE
    lock = make_lock(options)
    before = lock.status()
    if is_persistent(lock.protocol):
        return _release_kernel_lock(lock, before, options)
    refused: str | None = None

    def agreed(seen: Observation, assessed: Assessment) -> bool:
        nonlocal refused
        refused = None if options.force else why_not_of(seen, assessed, lock._env.identity(owner))
        return refused is None

    removed = remove_if(lock._env, lock._request, agreed)
    if refused:
        if options.json:
            show(as_json("refused", before))
        else:
            say(f"{lock.path} was not released: {refused}. Use --force to remove it all the same")
        return HELD
    result = "released" if removed is not None or before.locked else "not held"
    if options.json:
        show(as_json(result, before))
    if options.verbose:
        say(f"{lock.path}: {result}")
    return DONE


def _release_kernel_lock(lock: Lock, before: Status, options: argparse.Namespace) -> int:
    """A shell can hold none, so there is none to release; --force or not, the file stays."""
    try:
        lock.break_lock()
    except HoldfastError as error:
        if options.json:
            show(as_json("refused", before))
        else:
            say(str(error))
        return HELD
    if options.json:
        show(as_json("not held", before))
    if options.verbose:
        say(f"{lock.path}: not held")
    return DONE


def wait_(options: argparse.Namespace) -> int:
    """Wait until a contender would get the lock."""
    lock = make_lock(options)
    free = lock.wait(options.timeout)
    status = lock.status() if options.json or not free else None
    if status is not None and options.json:
        show(as_json("free" if free else "held", status))
    elif status is not None and not options.quiet:
        say(f"{lock.path} is still {sentence(status)}. {advice(status)}")
    if free and options.verbose:
        say(f"{lock.path} is free")
    return DONE if free else int(options.held_code)


def status_(options: argparse.Namespace) -> int:
    """Show what is known; changes nothing."""
    status = make_lock(options).status()
    if options.json:
        show(as_json("held" if status.locked else "free", status))
    elif not options.quiet:
        show(as_text(status))
    return HELD if status.locked else DONE


def make_lock(options: argparse.Namespace) -> Lock:
    """The lock that the options describe; its wait is announced after a second."""
    return announced(Lock(options.lock, **lock_options(options)), options)


def announced(lock: R, options: argparse.Namespace) -> R:
    """The same, whose wait is announced after a second."""
    lock._announce(None if options.quiet else lambda refusal: say(waiting(refusal)))
    return lock


def _owner(options: argparse.Namespace) -> int | None:
    owner: int = options.owner_pid or os.getppid()
    if owner <= 0:
        say("the calling process cannot be seen from here (it is in another PID namespace); pass --owner-pid")
        return None
    return owner
