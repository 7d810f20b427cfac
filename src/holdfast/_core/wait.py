"""What the steps of an engine wait for, and for how long: signals, waits, and the deadline of one waiter.

LM1  Where the caller counts tries, each is a complete look. A pause begins when the look before it has failed; the time
     of the look itself is no part of it. A waiter that is woken within a pause looks as well, and that is no try.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .._platform.interface import Environment
from ..model import Value
from .options import Request


class Signal:
    """Wakes one waiter of this process, from any thread. Set before the wait began, it ends the wait at once.

    The driver that waits subscribes a function that may be called from any thread, more than once, and that raises
    RuntimeError where nobody can be woken any more (an event loop that was closed). No lock is needed: who sets writes
    `is_set` and then reads the subscriber, who subscribes does the opposite, so that one of the two sees the other.
    """

    __slots__ = ("_wake", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._wake: Callable[[], object] | None = None

    def set(self) -> bool:
        """Wake the waiter. False when it is known that nobody will hear of it."""
        self.is_set = True
        wake = self._wake
        try:
            if wake is not None:
                wake()
        except RuntimeError:
            return False
        return True

    def subscribe(self, wake: Callable[[], object]) -> None:
        """Call `wake` when the signal is set, or now if it is."""
        self._wake = wake
        if self.is_set:
            wake()

    def unsubscribe(self) -> None:
        """The wait is over."""
        self._wake = None


class Wait(Value):
    """What a generator of the engine yields: wake me when one of `fds` is readable, one of `writes` is writable, or
    `signal` is set, at `deadline` at the latest.

    `deadline` is on the monotonic clock. Waking early is harmless. A wait has descriptors or a `signal`, never both.
    """

    fds: tuple[int, ...]
    deadline: float
    signal: Signal | None = None
    writes: tuple[int, ...] = ()


_NOTICE_AFTER = 1.0


class Deadline:
    """Those of one contender, from its first step. `generation`: the process's when it began, if that was earlier."""

    def __init__(
        self, env: Environment, request: Request, timeout: float | None, generation: int | None = None
    ) -> None:
        self.env = env
        self.request = request
        self.started = env.monotonic()
        self.deadline = math.inf if timeout is None else self.started + timeout
        self._retries = 0 if request.tries is None else request.tries[0]
        self._pause = None if request.tries is None else request.tries[1]
        self._made = 0
        self._next_try = -math.inf
        """When the pause before the next try is over, if tries are counted."""
        self._noticed = request.notice is None
        self._generation = env.generation if generation is None else generation

    @property
    def is_endless(self) -> bool:
        """Whether the wait may last for ever."""
        return self.deadline == math.inf and self._pause is None

    def is_over(self) -> bool:
        if self._pause is not None and self._made == self._retries and self.env.monotonic() >= self._next_try:
            return True
        return self.deadline < math.inf and self.env.monotonic() >= self.deadline

    def is_due(self) -> bool:
        """Whether the next try is, or none will be."""
        return self.is_over() or (self._pause is not None and self.env.monotonic() >= self._next_try)

    def has_failed(self) -> bool:
        """To be called after a complete look that was in vain: whether it was the last one (LM1)."""
        if self.is_over():
            return True
        if self._pause is not None and self.env.monotonic() >= self._next_try:
            self._next_try = self.env.monotonic() + self._pause(self._made)
            self._made += 1
        return False

    @property
    def announces(self) -> bool:
        """Whether the wait has lasted long enough to be announced, and has not been: worth a fresh look first."""
        return not self._noticed and self.env.monotonic() >= self.started + _NOTICE_AFTER

    def announce(self, refusal: Callable[[], object]) -> None:
        """Tell whoever wants to know of it, if it is time to."""
        notice = self.request.notice
        if notice is not None and self.announces:
            self._noticed = True
            notice(refusal())

    def bounded(self, until: float) -> float:
        """The earliest of: that moment, the caller's deadline, the moment when a wait is to be announced."""
        due = math.inf if self._pause is None or self._next_try == -math.inf else self._next_try
        return min(until, self.deadline, due, math.inf if self._noticed else self.started + _NOTICE_AFTER)

    def require_same_process(self) -> None:
        """After a fork in the midst of it, by a signal handler, the descriptors are closed or other files' by now."""
        if self.is_inherited:
            raise RuntimeError(
                f"the process was forked while it waited for {self.request.target}; acquire again in the child"
            )

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the one that waits."""
        return self._generation != self.env.generation
