"""The handles of the asyncio face: of one hold, of several together, and of an acquisition that is to be awaited."""

from __future__ import annotations

import asyncio

from ._drive.asyncio import drive_to_the_end, in_thread
from .errors import LockLost
from .hold import BaseHold
from .together import BaseHolds, note, raise_first

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from types import TracebackType
    from typing import Any

    from ._core.hold import Share


class AsyncHold(BaseHold):
    """One acquisition of a lock by a task; the handle owns it. Usable with `async with`, which releases.

    `lost` and `ensure_held` look at the lock file at once, in the calling thread.
    """

    __slots__ = ("_may_block",)

    def __init__(self, share: Share, may_block: bool) -> None:
        super().__init__(share)
        self._may_block = may_block

    async def release(self) -> None:
        """Give the lock up; from any task. The second time, and in a forked child, it does nothing.

        A cancellation cannot stop it half-way: it is raised when the lock has been given up.

        Raises LockLost if the lock had been removed or replaced; then whatever is at the path is left alone.
        """
        if self._held.waits:
            try:
                await drive_to_the_end(self._held.env, self._held.releasing(self._share))
            finally:
                if not self._is_released():
                    self._release()  # Ctrl-C came before it had begun
        elif self._may_block:
            try:
                await in_thread(self._release)
            finally:
                if not self._is_released():
                    self._release()  # Ctrl-C came before the thread had begun
        else:
            self._release()

    async def __aenter__(self) -> AsyncHold:
        self._leave_to_others()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, GeneratorExit):
                self._release()  # whoever is being closed cannot wait for a thread
            else:
                await self.release()
        except LockLost as lost:
            if error is None:
                raise
            error.add_note(str(lost))  # the body's own error is the news; this goes with it


class AsyncHolds(tuple[AsyncHold, ...], BaseHolds):
    """Several locks that were acquired together: a tuple of one `AsyncHold` for each, in the order of the list."""

    async def release(self) -> None:
        """Give all of them up, the last one acquired first. The second time, it does nothing.

        A cancellation cannot stop it half-way: it is raised when all have been given up. LockLost as in `Holds`.
        """
        failed: list[Exception] = []
        await release_each([*self._acquired], failed)
        raise_first(failed)

    async def __aenter__(self) -> AsyncHolds:
        for hold in self:
            hold._leave_to_others()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, GeneratorExit):
                failed: list[Exception] = []
                release_now([*self._acquired], failed)
                raise_first(failed)
            else:
                await self.release()
        except LockLost as lost:
            if error is None:
                raise
            note(error, [lost])


class Together:
    """An acquisition of several locks that has yet to be awaited, or entered by `async with`."""

    def __init__(self, steps: Coroutine[Any, Any, AsyncHolds]) -> None:
        self._steps = steps  # a coroutine from the start: one that is forgotten is complained about
        self._holds: AsyncHolds | None = None

    def __await__(self) -> Generator[Any, Any, AsyncHolds]:
        return self._steps.__await__()

    # With these it is a coroutine itself, and can be made a task.

    def send(self, value: Any) -> Any:
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        return self._steps.throw(*error)

    def close(self) -> None:
        self._steps.close()

    async def __aenter__(self) -> AsyncHolds:
        self._holds = await self._steps
        return await self._holds.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._holds is not None
        await self._holds.__aexit__(kind, error, traceback)


async def release_each(left: list[AsyncHold], failed: list[Exception]) -> None:
    """All of them, the last one first, whatever comes in between."""
    cancelled: asyncio.CancelledError | None = None
    try:
        while left:
            try:
                await left[-1].release()
            except asyncio.CancelledError as error:
                cancelled = error  # it has been given up all the same
            except Exception as error:
                failed.append(error)
            left.pop()
    finally:
        release_now(left, failed)
    if cancelled is not None:
        note(cancelled, failed)
        raise cancelled


def release_now(left: list[AsyncHold], failed: list[Exception]) -> None:
    """The same for whoever cannot wait for a thread any more."""
    while left:
        try:
            left[-1]._release()
        except Exception as error:
            failed.append(error)
        left.pop()
