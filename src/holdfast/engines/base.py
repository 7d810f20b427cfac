"""The interface of an engine, which stores locks. Its methods are generators that yield what to wait for.

The same drivers run all engines, so one algorithm serves threads and asyncio. No step blocks; an engine that talks to a
server has its sockets in non-blocking mode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from .._core.wait import Steps, pause
from ..errors import EngineUnavailable, HoldfastError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from typing import Any, ClassVar

    from .._core.attempt import Refusal
    from .._core.hold import HoldRef
    from .._core.options import Options, Request
    from .._platform.interface import Environment
    from ..model import Record, Status


_LOOK_EVERY = 0.25
"""Seconds between looks if an engine reports no changes."""


class Engine(ABC):
    """An engine. One instance serves all locks, and keeps no state of any. All requests passed to it are its own."""

    name: ClassVar[str]
    is_remote: ClassVar[bool] = True
    """Whether locks are on a server: then no step blocks, and there are no files."""

    @abstractmethod
    def request(self, resource: str | os.PathLike[str], options: Options) -> Request:
        """The checked request of a caller of `Lock`. Does no I/O."""

    @abstractmethod
    def slots(self, resource: str | os.PathLike[str], slots: int, options: Options) -> tuple[Request, ...]:
        """The requests for the slots of a semaphore; ValueError, which says why, if the engine has no semaphores."""

    @abstractmethod
    def acquire(
        self, env: Environment, requests: Sequence[Any], timeout: float | None, context: tuple[object, ...]
    ) -> Steps[HoldRef | Refusal]:
        """A share in the first of these locks that becomes available, or the refusal.

        `context` names the caller that a wait would block. A closed generator leaves nothing held or waiting.
        """

    @abstractmethod
    def wait_until_free(
        self, env: Environment, requests: Sequence[Any], timeout: float | None, context: tuple[object, ...]
    ) -> Steps[Refusal | None]:
        """None once a contender would get one of them, or the refusal. Acquires and changes nothing."""

    @abstractmethod
    def look(self, env: Environment, requests: Sequence[Any]) -> Steps[tuple[Status, ...]]:
        """One look at each of them, and at the waiters: they wait for any of them, so one look shows all waiters."""

    @abstractmethod
    def break_lock(self, env: Environment, request: Any) -> Steps[Record | None]:
        """End the hold of any process; returns its record, or None if there was none."""

    def break_if(self, env: Environment, request: Any, agreed: Callable[[Record], bool]) -> Steps[Record | None]:
        """End the current hold, if `agreed` accepts its record; else return None and change nothing.

        This may end the next hold instead. An engine that can end exactly the accepted one should override it.
        """
        (status,) = yield from self.look(env, (request,))
        if status.record is None or not agreed(status.record):
            return None
        return (yield from self.break_lock(env, request))

    # For the command line. Optional: without them an engine's locks cannot be listed or followed.

    def survey(self, env: Environment, resource: str) -> Steps[tuple[Status, ...]]:  # noqa: ARG002
        """All locks with holders or waiters whose names begin with the resource's, sorted by path.

        `Status.path` is the URL of the lock without secrets, which can be typed again. HoldfastError if the engine
        cannot list its locks.
        """
        yield from ()
        raise HoldfastError(f"the locks on {self.name} cannot be listed", protocol=self.name)

    def follow(self, env: Environment, resource: str, tell: Callable[[tuple[Status, ...]], object]) -> Steps[None]:
        """Call `tell` with what `survey` finds, at once and then whenever that may have changed. Never ends.

        EngineUnavailable if no server can be reached at the beginning; later, it waits for one. This polls. An engine
        that receives changes should override it.
        """
        tell((yield from self.survey(env, resource)))
        while True:
            yield from pause(env, env.monotonic() + _LOOK_EVERY)
            try:
                statuses = yield from self.survey(env, resource)
            except EngineUnavailable:
                continue
            tell(statuses)

    def may_block(self, env: Environment, request: Any) -> bool:  # noqa: ARG002
        """Whether a step takes too long for an event loop."""
        return False

    def may_hang(self, env: Environment, request: Any) -> bool:  # noqa: ARG002
        """Whether a step may last forever, if a server that the kernel asks does not answer. Then it `may_block`."""
        return False
