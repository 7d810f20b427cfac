"""What an engine is: where locks are stored, as generators that yield what to wait for.

The same drivers run them as run the engine on files, so one algorithm serves threads and asyncio. None of them blocks;
an engine that talks to a server has its sockets in non-blocking mode.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence

from .._core.hold import Share
from .._core.messages import Refusal
from .._core.options import Options, Request
from .._core.wait import Wait
from .._platform.interface import Environment
from ..errors import HoldfastError
from ..model import Record, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar


_LOOK_EVERY = 0.25
"""Seconds between looks where an engine tells of no events."""


class Engine(ABC):
    """No lock depends on the state of an instance: all locks share one. It is given only requests that it has made."""

    name: ClassVar[str]
    is_remote: ClassVar[bool] = True
    """Whether locks are elsewhere: then no step blocks, and nothing here is a file."""

    @abstractmethod
    def request(self, resource: str | os.PathLike[str], options: Options) -> Request:
        """What a caller of `Lock` asks for, checked; nothing is touched."""

    @abstractmethod
    def slots(self, resource: str | os.PathLike[str], slots: int, options: Options) -> tuple[Request, ...]:
        """The same for each slot of a semaphore; ValueError, which says why, where there are none."""

    @abstractmethod
    def acquire(
        self, env: Environment, requests: Sequence[Any], timeout: float | None, context: tuple[object, ...]
    ) -> Generator[Wait, None, Share | Refusal]:
        """A share in the first of these locks that can be had, or the reason why there is none.

        `context` names the caller that a wait would block. When it is closed, nothing is held and nobody waits.
        """

    @abstractmethod
    def wait_until_free(
        self, env: Environment, requests: Sequence[Any], timeout: float | None, context: tuple[object, ...]
    ) -> Generator[Wait, None, Refusal | None]:
        """None as soon as a contender would get one of them; nothing is acquired or changed."""

    @abstractmethod
    def look(self, env: Environment, requests: Sequence[Any]) -> Generator[Wait, None, tuple[Status, ...]]:
        """One look at each of them, and at those who wait: for any of them, so the first tells of them all."""

    @abstractmethod
    def break_lock(self, env: Environment, request: Any) -> Generator[Wait, None, Record | None]:
        """End the hold, whoever has it; what is known of it, or None if there was none."""

    def break_if(
        self, env: Environment, request: Any, agreed: Callable[[Record], bool]
    ) -> Generator[Wait, None, Record | None]:
        """End the hold that is there, if `agreed` says so of its record; else None, and nothing has changed.

        An engine that can end the very hold that was agreed to does it better than this, which may end the next one.
        """
        (status,) = yield from self.look(env, (request,))
        if status.record is None or not agreed(status.record):
            return None
        return (yield from self.break_lock(env, request))

    # What the command line shows. Optional: an engine without them cannot be listed or followed.

    def survey(self, env: Environment, resource: str) -> Generator[Wait, None, tuple[Status, ...]]:  # noqa: ARG002
        """All locks whose names begin as the resource says, sorted by path: those that somebody holds or waits for.

        `Status.path` is the URL of the lock as people may see it, and as they may type it again. HoldfastError where an
        engine cannot tell.
        """
        yield from ()
        raise HoldfastError(f"the locks on {self.name} cannot be listed", protocol=self.name)

    def follow(
        self, env: Environment, resource: str, tell: Callable[[tuple[Status, ...]], object]
    ) -> Generator[Wait, None, None]:
        """Call `tell` with what `survey` finds, at once and then whenever something of it may have changed. No end.

        An engine that hears of changes does it better than this, which looks again and again.
        """
        while True:
            tell((yield from self.survey(env, resource)))
            yield Wait((), env.monotonic() + _LOOK_EVERY)

    def may_block(self, env: Environment, request: Any) -> bool:  # noqa: ARG002
        """Whether a step takes long enough to be kept from an event loop."""
        return False
