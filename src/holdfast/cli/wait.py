"""`wait`: wait until locks are free, without acquiring any of them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .._admin.found import Found
from .._core.messages import advice, sentence
from .._drivers.sync import drive
from .._platform import environment
from ..lock import Lock
from . import slots
from .console import as_json
from .locks import absolute, announced, answered, each_of, is_url, lock_of, nowhere, semaphore_of
from .options import Namespace
from .outcome import DONE, say, show


def wait_(options: Namespace) -> int:
    """Wait until a contender would get the lock; with several, until one look finds all of them free."""
    ones = each_of(options)
    locks = [_waited_for(one) for one in ones]
    free = [locks[0].wait(options.timeout)] if len(locks) == 1 else _wait_for_all(locks, options.timeout)
    return max(map(_tell, locks, ones, free))


def _wait_for_all(locks: Sequence[_Lock | _Slots | _OfAnother], timeout: float | None) -> list[bool]:
    now = environment().monotonic
    ends = None if timeout is None else now() + timeout
    while True:
        for lock in locks:
            lock.wait(None if ends is None else max(0.0, ends - now()))
        free = [lock.wait(0) for lock in locks]
        if all(free) or (ends is not None and now() >= ends):
            return free


def _waited_for(options: Namespace) -> _Lock | _Slots | _OfAnother:
    if options.slots is not None:
        return _Slots(options)
    path = absolute(options.lock)
    may_be_anothers = options.protocol is None and not is_url(options.lock)
    if may_be_anothers and (environment().may_block(path) or os.path.lexists(options.lock)):
        from .foreign import look_at

        lock = announced(Lock(path), options)
        if answered(lock, options.timeout, lambda: look_at(path)) is not None:
            return _OfAnother(path, quiet=options.quiet)
    return _Lock(options)


def _tell(lock: _Lock | _Slots | _OfAnother, options: Namespace, free: bool) -> int:
    """Say how a wait has ended; the exit status."""
    if options.json:
        show(lock.as_json("free" if free else "held"))
    elif not free and not options.quiet:
        say(lock.why_held())
    elif free and not options.quiet and (why := lock.why_refused()):
        say(f"{lock.path} {lock.when_free}, but {why}")
    if free and options.verbose:
        say(f"{lock.path} {lock.when_free}")
    return DONE if free else int(options.held_code)


class _Lock:
    when_free = "is free"

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self._lock = lock_of(options, looks=True)
        self.path, self.wait = self._lock.path, self._lock.wait

    def as_json(self, result: str) -> str:
        return as_json(self._lock.status(), result)

    def why_held(self) -> str:
        """Why the wait was in vain, by a look after it."""
        status = self._lock.status()
        if not status.locked:
            return f"{self.path} was held until the time was up; it has become free since"
        why = sentence(status)
        still = f"is still {why}" if why.startswith("held ") else f"is not free: {why}"
        return f"{self.path} {still}. {advice(status)}"

    def why_refused(self) -> str:
        """Why nobody could get the lock nevertheless, or which lock may be meant; else empty."""
        return answered(self._lock, 0.0, lambda: nowhere(self._lock) or slots.elsewhere(self._options))


class _Slots:
    when_free = "has a free slot"

    def __init__(self, options: Namespace) -> None:
        self._semaphore = semaphore_of(options)
        self.path, self.wait = self._semaphore.path, self._semaphore.wait

    def as_json(self, result: str) -> str:
        return slots.as_json(self._semaphore, self._semaphore.status(), result)

    def why_held(self) -> str:
        return slots.why_held(self._semaphore, self._semaphore.status())

    def why_refused(self) -> str:
        return slots.why_refused(self._semaphore, self._semaphore.status())


class _OfAnother:
    """A lock of another program (foreign.py); its wait is announced after a second."""

    when_free = "is free"

    def __init__(self, path: str, *, quiet: bool) -> None:
        self.path = path
        self._quiet = quiet
        self._left: Found | None = None

    def wait(self, timeout: float | None) -> bool:
        from .._admin.kinds.waiting import until_free
        from .foreign import look_again

        env = environment()
        watch = env.folder_watch()
        notice = None if self._quiet else self._notice
        try:
            self._left = drive(until_free(env, watch, self.path, lambda: look_again(self.path), timeout, notice))
        finally:
            if watch is not None:
                watch.close()
        return self._left is None

    def _notice(self, seen: Found) -> None:
        from .foreign import told

        say(f"waiting for {self.path} ({seen.status.protocol}'s): {told(seen)}")

    def as_json(self, result: str) -> str:
        return as_json(Lock(self.path).status() if self._left is None else self._left.status, result)

    def why_held(self) -> str:
        from .foreign import told

        left = self._left
        assert left is not None
        return f"{self.path} ({left.status.protocol}'s) is not free: {told(left)}"

    def why_refused(self) -> str:
        return ""
