"""What keeps a fork by another thread from coming between two steps, and what is done before a fork."""

from __future__ import annotations

import _thread
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Held where no child may be forked: `opening` between the opening of a descriptor and its entry among those that a
# child closes, `forking` during an import, for whose end a child would wait for ever. One of each for all environments,
# and from the start, as the first of them may be made while another thread forks. Re-entrant, because a signal handler
# may fork at any point. Who takes both takes `opening` last. Signal handlers and finalizers let others have it in the
# midst of it (operations.py, J7).
forking = _thread.RLock()
opening = _thread.RLock()
in_flight: dict[object, _thread.LockType] = {}
"""Calls that `opening` does not cover, as they may last for ever: each has a mutex that is free when it has ended. A
fork waits for them for a moment."""
_MOMENT = 0.1
to_load: list[Callable[[], object]] = []
"""What loads the modules that a child needs if it has to wait, which are not loaded before. Loaded by the parent, they
are in memory once; each child that loaded them itself would have two megabytes of its own."""


def _before() -> None:
    while to_load:
        to_load.pop()()
    forking.acquire()
    opening.acquire()
    until = time.monotonic() + _MOMENT
    for ended in list(in_flight.values()):
        if ended.acquire(timeout=max(0.0, until - time.monotonic())):
            ended.release()


def _after() -> None:
    opening.release()
    forking.release()


def _in_child() -> None:
    in_flight.clear()
    _after()


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
