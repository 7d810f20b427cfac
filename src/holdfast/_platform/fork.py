"""Mutexes that keep a fork by another thread from coming between two steps, and the work before a fork."""

from __future__ import annotations

import _thread
import os
import sys
import time
from itertools import compress, count, repeat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Held where no child may be forked: `opening` between the opening of a descriptor and its entry among those that a
# child closes, `forking` during an import, for whose end a child would wait for ever. One of each for all environments,
# made at import, as the first environment may be made while another thread forks. Re-entrant, because a signal handler
# may fork at any point. Signal handlers and finalizers let others have `opening` meanwhile (operations.py, J7), but not
# where they fork or import. So a thread that has `forking` does not wait for `opening`: `forking` alone keeps forks
# away.
forking = _thread.RLock()
opening = _thread.RLock()
in_flight: dict[object, _thread.LockType] = {}
"""Calls that `opening` does not cover, as they may last for ever. Each has a mutex, which is free once the call has
ended. A fork waits a moment for them."""
_MOMENT = 0.1
_TIMES = 3
to_load: list[Callable[[], object]] = []
"""Functions that load the modules that a child needs if it has to wait. They are called before a fork: loaded by the
parent, the modules are in memory once; loaded by each child, they take two megabytes in each."""


under_way: dict[int, list[list[_thread.RLock]]] = {}
"""The mutexes that each fork under way has taken, by thread. A signal handler may fork in the midst of a fork."""
_forking = (0, -1)
"""The process that forks, and its generation."""


class Forkable:
    """What an environment has of the process, and of the forks that led to it."""

    generation = 0


# One call of C, as a signal may come before any bytecode of the child, and its handler may release.
begin_generation = map(setattr, repeat(Forkable), repeat("generation"), count(1)).__next__


def notice_fork() -> None:
    """Begin the generation of a child in which a signal handler runs before it has begun: functions of modules that
    were imported earlier come first. To be called while forks are under way."""
    pid, generation = _forking
    if generation == Forkable.generation and pid != os.getpid():
        begin_generation()


def _before() -> None:
    global _forking
    _forking = os.getpid(), Forkable.generation
    taken: list[_thread.RLock] = []
    under_way.setdefault(_thread.get_ident(), []).append(taken)
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


def _release() -> None:
    """Release the mutexes. Python goes on with a fork even if `_before` was interrupted."""
    mine = under_way.get(_thread.get_ident())
    if mine:
        _give_back(mine[-1])


def _after() -> None:
    _release()
    mine = under_way.get(_thread.get_ident())
    if mine:
        mine.pop()
        if not mine:
            under_way.pop(_thread.get_ident(), None)


def _in_child() -> None:
    in_flight.clear()
    _after()
    for thread in under_way.copy():
        if thread != _thread.get_ident():
            under_way.pop(thread)


class MayHang:
    """A context for a call that may last for ever, in place of `opening`: a fork waits for it, but only for a
    moment."""

    __slots__ = ("_ended",)

    def __enter__(self) -> None:
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        with forking:
            in_flight[self] = self._ended

    def __exit__(self, *_error: object) -> None:
        in_flight.pop(self, None)
        self._ended.release()


def in_child(step: Callable[[], object]) -> None:
    """Have a step done in each forked child. Python ignores what a signal handler raises in such a call, and does not
    repeat it. So there are three calls, and the step must be one that may be broken off, and begun anew."""
    done = 0

    def step_once() -> None:
        nonlocal done
        if done != Forkable.generation:
            step()
            done = Forkable.generation

    if hasattr(os, "register_at_fork"):
        for _ in range(_TIMES):
            os.register_at_fork(after_in_child=step_once)


def register() -> None:
    if hasattr(os, "register_at_fork"):
        for _ in range(_TIMES):  # see `in_child`
            os.register_at_fork(after_in_parent=_release, after_in_child=_release)
        os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)


_registered_after_logging = "logging" in sys.modules
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=begin_generation)
register()


def before_asyncio() -> None:
    """Prepare for the import of asyncio, which needs the lock of `logging`. A fork takes that as well, and `forking`:
    in the opposite order, unless we register after `logging`, as what was registered last is called first."""
    global _registered_after_logging
    if not _registered_after_logging:
        import logging  # noqa: F401  # a fork within its last 0.2 ms, by another thread, would still wait for ever

        register()
        _registered_after_logging = True
