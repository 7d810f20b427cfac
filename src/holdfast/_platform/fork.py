"""What keeps a fork by another thread from coming between two steps, and what is done before a fork."""

from __future__ import annotations

import _thread
import os
import time
from itertools import compress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Held where no child may be forked: `opening` between the opening of a descriptor and its entry among those that a
# child closes, `forking` during an import, for whose end a child would wait for ever. One of each for all environments,
# and from the start, as the first of them may be made while another thread forks. Re-entrant, because a signal handler
# may fork at any point. Signal handlers and finalizers let others have `opening` in the midst of it (operations.py,
# J7), but not where they fork or import. So who has `forking` does not wait for `opening`: that keeps a fork away by
# itself.
forking = _thread.RLock()
opening = _thread.RLock()
in_flight: dict[object, _thread.LockType] = {}
"""Calls that `opening` does not cover, as they may last for ever: each has a mutex that is free when it has ended. A
fork waits for them for a moment."""
_MOMENT = 0.1
to_load: list[Callable[[], object]] = []
"""What loads the modules that a child needs if it has to wait, which are not loaded before. Loaded by the parent, they
are in memory once; each child that loaded them itself would have two megabytes of its own."""


_forks: dict[int, list[list[_thread.RLock]]] = {}
"""By thread: what each fork that is under way has taken. A signal handler may fork in the midst of a fork."""


def _before() -> None:
    taken: list[_thread.RLock] = []
    _forks.setdefault(_thread.get_ident(), []).append(taken)
    while to_load:
        to_load.pop()()
    first, second = forking, opening
    while True:
        _take(first, taken)
        _take(second, taken, wait=False)
        if len(taken) == 2:
            break
        _give_back(taken)  # the thread that has the other one may be waiting for this one
        first, second = second, first
    until = time.monotonic() + _MOMENT
    for ended in list(in_flight.values()):
        if ended.acquire(timeout=max(0.0, until - time.monotonic())):
            ended.release()


def _take(mutex: _thread.RLock, taken: list[_thread.RLock], *, wait: bool = True) -> None:
    for _ in map(taken.append, compress((mutex,), map(mutex.acquire, (wait,)))):
        pass  # one call of C: a signal comes before it, or after it


def _give_back(taken: list[_thread.RLock]) -> None:
    while taken:
        for _ in map(type(forking).release, map(taken.pop, (-1,))):
            pass


def _after() -> None:
    """Python goes on with a fork whatever has interrupted what is before it."""
    mine = _forks.get(_thread.get_ident())
    if mine:
        _give_back(mine.pop())
        if not mine:
            _forks.pop(_thread.get_ident(), None)


def _in_child() -> None:
    in_flight.clear()
    _after()
    for thread in _forks.copy():
        if thread != _thread.get_ident():
            _forks.pop(thread)


class MayHang:
    """Around a call that may last for ever, in place of `opening`: one that answers in time is not come between."""

    __slots__ = ("_ended",)

    def __enter__(self) -> None:
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        with forking:
            in_flight[self] = self._ended

    def __exit__(self, *_error: object) -> None:
        in_flight.pop(self, None)
        self._ended.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
