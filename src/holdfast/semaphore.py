"""`Semaphore`: a lock file for each slot, and whoever wants one waits for any of them."""

from __future__ import annotations

from ._drive.sync import perform
from .engines import engine_of
from .lock import Acquirable, Resource, chosen, make_again
from .model import SemaphoreStatus

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Hashable, Mapping
    from typing import Any, Literal

    from ._core.environment import Wait
    from .errors import LockLost
    from .events import Event
    from .model import Status


class Slots(Resource):
    """What all semaphores are, whoever waits for them."""

    def __init__(
        self,
        base: str | os.PathLike[str],
        slots: int,
        *,
        protocol: Literal["sema", "semats", "sidecar", "beads", "flock"] | str = "sema",
        tag: str | None = None,
        timeout: float | None = None,
        stale: Literal["safe", "protocol", "never"] | Callable[[Status], bool] = "safe",
        stale_after: float | None = None,
        mode: int | None = None,
        durable: bool = False,
        fencing: bool = False,
        heartbeat: float | None = None,
        owner: Hashable | None = None,
        fair: bool = True,
        shared: bool = False,
        parents: bool | None = None,
        on_lost: Callable[[LockLost], object] | None = None,
        on_event: Callable[[Event], object] | None = None,
        payload: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
        holder: str | None = None,
        version: str | None = None,
    ) -> None:
        options = chosen(locals())
        super().__init__(engine_of(base).slots(base, slots, options), options)

    __init__.__qualname__ = "Semaphore.__init__"  # as a TypeError names it

    @property
    def base(self) -> str:
        """The absolute path that the lock files are named after: `<base>.0.lock`, `<base>.1.lock` and so on."""
        return self.path

    @property
    def slots(self) -> int:
        """How many may hold it at once."""
        return len(self._requests)

    def _look(self) -> Generator[Wait, None, tuple[Status, ...]]:
        return self._engine.look(self._env, self._requests)

    def __reduce__(self) -> tuple[Any, ...]:
        return make_again, (type(self), (self._request.given, self.slots), self._options)

    def __repr__(self) -> str:
        return f"<holdfast.{type(self).__name__} {self.path!r} slots={self.slots} protocol={self.protocol}>"


class Semaphore(Slots, Acquirable):
    """Up to `slots` holders at once, among all processes that use the same base, number of slots and protocol.

    Each slot is a lock file, `<base>.0.lock` to `<base>.<slots - 1>.lock`, and works like a `Lock`: the death of a
    holder frees its slot at once, waiters sleep until one is released, and queue in the order of their arrival. An
    acquisition gets the lowest free slot. `Hold.slot` is its number, which no other holder has. Construction does no
    I/O. One object can be used by any number of threads; it can be pickled.

    `Lock` explains the options; `shared` is refused. With `owner`, holds of one owner in this process share one slot,
    which is released with the last of them.

    Processes should agree on `slots`. If they do not, each uses the slots that it knows: together they let in as many
    as the largest number says, and a slot that only some know may stay free for a second while others queue.

    Raises ValueError or TypeError if `slots` is not a whole number from 1 to 1000, and what `Lock` raises.
    Not promised: that two threads with one `owner` that ask at the same instant get one slot, not two.
    """

    def status(self) -> SemaphoreStatus:
        """Look at all slots and change nothing. The answer may be outdated when it is returned.

        A tuple of one `Status` for each slot, which also knows how many are `free`, whether all are taken (`locked`),
        the `holders`, and the `waiters` in their order.
        """
        return SemaphoreStatus(perform(self._env, self._look()))
