"""The waits of an engine's steps: signals, waits, and the deadline of one waiter.

LM1  If the caller counts tries, each try is a complete look. A pause begins when the look before it has failed, and
     does not include that look. A waiter that is woken within a pause looks as well, but that does not count as a try.
"""

from __future__ import annotations

from ..model import INFINITY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import TypeVar

    from .._platform.interface import Environment
    from .options import Request

    T = TypeVar("T")

    Steps = Generator["Wait", None, T]
    """The steps of an engine: a generator that yields what to wait for, and returns the result."""
else:
    Steps = None  # for annotations alone


class Signal:
    """Wakes one waiter of this process, from any thread. A signal that is already set ends the wait at once.

    The waiting driver subscribes a function that may be called from any thread, more than once, and that raises
    RuntimeError if there is no waiter any more (the event loop was closed). No lock is needed: `set` writes `is_set`
    and then reads the subscriber, `subscribe` does the opposite, so one of the two sees the other.
    """

    __slots__ = ("_wake", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._wake: Callable[[], object] | None = None

    def set(self) -> bool:
        """Wake the waiter. False if the waiter is known to be gone."""
        self.is_set = True
        wake = self._wake
        try:
            if wake is not None:
                wake()
        except RuntimeError:
            return False
        return True

    def subscribe(self, wake: Callable[[], object]) -> None:
        """Call `wake` when the signal is set, or at once if it is set already."""
        self._wake = wake
        if self.is_set:
            wake()

    def unsubscribe(self) -> None:
        """End the subscription: the wait is over."""
        self._wake = None


class Wait:
    """A wait that an engine's generator yields: resume it when one of `fds` is readable, one of `writes` is writable,
    or `signal` is set; at `deadline` at the latest, on the monotonic clock.

    Waking early is harmless. A wait has descriptors or a `signal`, never both.
    """

    __slots__ = ("deadline", "fds", "signal", "writes")

    def __init__(
        self, fds: tuple[int, ...], deadline: float, signal: Signal | None = None, writes: tuple[int, ...] = ()
    ) -> None:
        self.fds = fds
        self.deadline = deadline
        self.signal = signal
        self.writes = writes

    def replaced(self, *, deadline: float) -> Wait:
        """The same wait with another deadline."""
        return Wait(self.fds, deadline, self.signal, self.writes)


def pause(env: Environment, until: float) -> Steps[None]:
    """Wait until then, even if woken before."""
    while env.monotonic() < until:
        yield Wait((), until)


_NOTICE_AFTER = 1.0


class Deadline:
    """Deadline, tries and long-wait notice of one waiter. `generation`: the generation of the process at the start of
    the acquisition, if that was earlier. `unannounced`: there is no notice."""

    def __init__(
        self,
        env: Environment,
        request: Request,
        timeout: float | None,
        generation: int | None = None,
        *,
        unannounced: bool = False,
    ) -> None:
        self.env = env
        self.request = request
        self.started = env.monotonic()
        self.deadline = INFINITY if timeout is None else self.started + timeout
        self._retries = 0 if request.tries is None else request.tries[0]
        self._pause = None if request.tries is None else request.tries[1]
        self._made = 0
        self._next_try = -INFINITY
        """The end of the pause before the next try, if tries are counted."""
        self._notice_at = INFINITY if request.notice is None or unannounced else self.started + _NOTICE_AFTER
        self._generation = env.generation if generation is None else generation

    @property
    def is_endless(self) -> bool:
        """Whether the wait may last forever."""
        return self.deadline == INFINITY and self._pause is None

    def is_over(self) -> bool:
        if self._pause is not None and self._made == self._retries and self.env.monotonic() >= self._next_try:
            return True
        return self.deadline < INFINITY and self.env.monotonic() >= self.deadline

    def is_due(self) -> bool:
        """Whether the next try is due, or there will be none."""
        return self.is_over() or (self._pause is not None and self.env.monotonic() >= self._next_try)

    def has_failed(self) -> bool:
        """Whether the complete look that has just failed was the last one (LM1)."""
        if self.is_over():
            return True
        if self._pause is not None and self.env.monotonic() >= self._next_try:
            self._next_try = self.env.monotonic() + self._pause(self._made)
            self._made += 1
        return False

    @property
    def announces(self) -> bool:
        """Whether to announce the wait now, for the first time or again; take a fresh look first."""
        return self._notice_at < INFINITY and self.env.monotonic() >= self._notice_at

    def announce(self, refusal: Callable[[], object]) -> None:
        """Call the notice, if it is due. It returns the seconds until it wants to be called again, or None."""
        notice = self.request.notice
        if notice is not None and self.announces:
            self._notice_at = INFINITY
            again = notice(refusal())
            if again is not None:
                self._notice_at = self.env.monotonic() + again

    def bounded(self, until: float) -> float:
        """The earliest of `until`, the caller's deadline, the next try, and the time to announce the wait."""
        due = INFINITY if self._pause is None or self._next_try == -INFINITY else self._next_try
        return min(until, self.deadline, due, self._notice_at)

    def require_same_process(self) -> None:
        """Raise RuntimeError after a fork by a signal handler: our descriptors are closed, or other files' now."""
        if self._generation != self.env.generation:
            raise RuntimeError(
                f"the process was forked while it waited for {self.request.target}; acquire again in the child"
            )

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the one that waits."""
        return self._generation != self.env.generation
