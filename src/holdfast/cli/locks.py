"""LOCK as it was typed (a file, a semaphore, or a lock on a server), and the object for it."""

from __future__ import annotations

import os
import time

from .._platform import environment
from ..engines import scheme_of
from ..errors import InvalidPath
from ..lock import Lock, Resource, Semaphore, announce, file_request, give_up_of
from .options import Namespace
from .outcome import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeVar

    from .._core.attempt import Refusal
    from ..model import Holder, Waiter

    R = TypeVar("R", Lock, Semaphore)
    T = TypeVar("T")

_OF_LOCK = (
    *("protocol", "tag", "stale", "stale_after", "mode", "durable", "fencing", "lease", "shared", "parents"),
    *("payload", "holder", "version", "realpath", "range"),
)


_LOOK_EVERY, _PAUSES = 2.0, 200
"""Seconds between a waiter's looks for its place in the queue; and the pause in multiples of the processor time of a
look, if that is longer, as a thousand waiters may look at a queue of a thousand."""
_ASK_EVERY = 0.5
"""Seconds between looks at a queue on a server, for each waiter in it, so that many waiters do not keep it busy."""


def is_url(text: str | None) -> bool:
    """Whether a word means a lock on a server. A file of such a name is `./NAME`."""
    return text is not None and bool(scheme_of(text))


def is_pattern(place: str) -> bool:
    """Whether a place may stand for several, as in a shell."""
    return not is_url(place) and any(sign in place for sign in "*?[")


def refuse_empty(path: str | None) -> None:
    """Raise InvalidPath for an empty path, as a variable that is not set makes it."""
    if path == "":  # made absolute, it would be the working directory
        raise InvalidPath("the path is empty", path=path)


def nowhere(lock: Resource, slot: str = "") -> str:
    """Why nobody could create a lock file for this free lock or semaphore now; empty if no reason is known. `slot`: the
    path of a semaphore's first free slot."""
    if is_url(lock.path):
        return ""
    request = file_request(lock)
    above = request.directory
    if os.path.lexists(slot or request.path):
        return ""
    while not os.path.lexists(above) and (further := os.path.dirname(above)) != above:  # above a drive is nothing
        above = further
    if os.path.lexists(above) and not os.path.isdir(above):
        return f"{above} is not a directory, so no lock file can be in it; choose another path"
    if request.protocol.is_directory:
        from ..engines.file.directory import require_target

        try:
            require_target(environment(), request)
        except InvalidPath as error:
            return str(error)
    if above == request.directory:
        is_read_only = environment().is_read_only(above)
        return "its filesystem is read-only, so no lock file can be made there" if is_read_only else ""
    makers = "run makes" if isinstance(lock, Semaphore) else "run, try and acquire make"
    return f"its directory does not exist; {makers} it with --parents"


def rooted(place: str) -> str:
    """The path from the root on. Its `..` stay, as the kernel resolves them through links. The working directory is not
    asked for without need, as it may have been removed."""
    return place if place[:1] == os.sep == "/" else os.path.join(os.getcwd(), place)


def unfolded(place: str) -> str:
    """The absolute path of a place to look at: a `..` stays, as the kernel resolves it through links."""
    return rooted(place) if ".." in place.split("/") else absolute(place)


def absolute(place: str) -> str:
    """The path of a file or directory as the engine writes it: with slashes on every system."""
    return os.path.abspath(place).replace(os.sep, "/")


def each_of(options: Namespace) -> list[Namespace]:
    """The options of a command for each of its LOCKs."""
    if len(options.locks) == 1:
        return [options]
    found = []
    for lock in options.locks:
        one = type(options)()
        vars(one).update(vars(options), lock=lock, locks=[lock])
        found.append(one)
    return found


def lock_options(options: Namespace) -> dict[str, Any]:
    """The options of `Lock` among those of a command."""
    found = {name: value for name in _OF_LOCK if (value := getattr(options, name, None)) is not None}
    if is_url(options.lock):  # an engine refuses options that it lacks, and a switch that is off is none
        return {name: value for name, value in found.items() if value is not False}
    return found


def lock_of(options: Namespace, *, looks: bool = False, **more: Any) -> Lock:
    """The lock that the options describe; its wait is announced after a second. `looks`: nothing is to be acquired."""
    lock = announced(Lock(options.lock, **lock_options(options), **more), options)
    if not looks and not is_url(options.lock):
        path = file_request(lock).path
        answered(lock, getattr(options, "timeout", 0.0), lambda: leave_to_its_program(path, options.protocol))
    return lock


def answered(lock: Resource, timeout: float | None, call: Callable[[], T]) -> T:
    """The result of the call. It waits for a silent file server no longer than for the lock."""
    apart = give_up_of(lock, timeout, acquires=True)
    return call() if apart is None else apart.call(call)


def leave_to_its_program(path: str, protocol: str | None) -> None:
    """Raise ProtocolMismatch if the lock file would be another program's (foreign.py)."""
    if os.path.lexists(path) or "/.git/" in path:
        from .._admin import kinds

        if kinds.may_be(os.path.basename(path), os.path.dirname(path)):
            from .foreign import refuse

            refuse(path, protocol)


def semaphore_of(options: Namespace, **more: Any) -> Semaphore:
    """The semaphore that the options describe (`--slots`); its wait is announced after a second."""
    return announced(Semaphore(options.lock, options.slots, **lock_options(options), **more), options)


def locks_of(options: Namespace, **more: Any) -> list[Lock | Semaphore]:
    """A lock for each LOCK; with `--slots`, a semaphore."""
    make = lock_of if options.slots is None else semaphore_of
    return [make(one, **more) for one in each_of(options)]


def announced(lock: R, options: Namespace) -> R:
    """The lock, whose wait is announced after a second, unless with `--quiet`."""
    announce(lock, None if options.quiet else _WaitingNotice(lock, options))
    return lock


def _holders(refusal: Refusal) -> list[Holder | None]:
    """All visible holders; of a semaphore, one for each slot."""
    if len(refusal.statuses) > 1:
        return [status.holder for status in refusal.statuses]
    return [refusal.status.holder, *refusal.status.holders]


class _WaitingNotice:
    """Reports a wait, and again when the place in the queue has changed, or the file server is away."""

    def __init__(self, lock: Lock | Semaphore, options: Namespace) -> None:
        self._lock = lock
        self._options = options
        self._told: str | None = None
        self._looked = False
        self._is_away = False
        """Whether the last report was that the file server is away, or does not answer."""

    def __call__(self, refusal: Refusal) -> float | None:
        """Report what has changed; the seconds until the next look, or None if the place cannot be seen."""
        from .._core.messages import place_in, waiting

        if refusal.status.evidence.source == "server" and not is_url(self._lock.path):
            if not self._is_away:
                self._is_away, self._told = True, None
                say(waiting(refusal))
            return None
        self._is_away = False
        began = time.process_time()
        waiters = self._waiters(refusal)
        spent = time.process_time() - began if self._looked else 0.0  # the first look loads what all looks need
        self._looked = True
        place = place_in(waiters, environment().identity().pid)
        if place != self._told:
            first, self._told = self._told is None, place
            say(waiting(refusal, place))
            if first:
                from .owner import tell_if_ours

                tell_if_ours(self._options, *_holders(refusal))
        if not place and (refusal.status.locked or refusal.status.evidence.source != "server"):
            return None  # else there is no server yet, and a place may still come
        return max(_LOOK_EVERY, spent * _PAUSES, _ASK_EVERY * len(waiters) if is_url(self._lock.path) else 0.0)

    def _waiters(self, refusal: Refusal) -> Sequence[Waiter]:
        """The waiters. For a lock on a server, the engine has just looked for them; for a file, this does."""
        if is_url(self._lock.path):
            return refusal.status.waiters
        try:
            return self._lock.status().waiters
        except OSError:
            return ()  # the file server is away by now, or does not answer
