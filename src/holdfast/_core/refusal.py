"""Why a lock could not be had."""

from __future__ import annotations

from ..errors import WouldDeadlock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..events import Event
    from ..model import Status
    from .hold import Share
    from .request import Request
    from .story import Story


class Refusal:
    """The lock was held all the time; what was seen last says by whom: one status for each lock file.

    Most are thrown away, and who holds a lock may take long to find out; so `look` is called when that is asked for.
    `own` are the shares that this very process has in what it waited for.
    """

    def __init__(
        self,
        target: str,
        waited: float,
        look: Callable[[], tuple[Status, ...]],
        story: Story,
        own: Sequence[Share] = (),
    ) -> None:
        self.target = target
        self.waited = waited
        self.own = own
        self._look = look
        self._story = story
        self._statuses: tuple[Status, ...] | None = None

    @property
    def statuses(self) -> tuple[Status, ...]:
        if self._statuses is None:
            self._statuses = self._look()
        return self._statuses

    @property
    def status(self) -> Status:
        return self.statuses[0]

    def event(self) -> Event:
        """That somebody waits, and for whom, as of now."""
        return self._story.describe("waiting", None, self.status.holder)


def deadlock(request: Request, slots: int, own: Sequence[Share]) -> WouldDeadlock:
    """The caller itself holds it, or each of so many slots, and would wait for ever; `own` are its shares."""
    target = request.target
    held = f"{target} is" if request.slot is None else f"all {slots} slots of {target} are"
    if own and all(share.dropped for share in own):
        why = "by a handle that was dropped without release(), and would wait for itself for ever. Keep the handle and "
        why += "release it, or use `with`."
    else:
        why = "which would wait for itself for ever. Release first, pass a timeout, or pass the same owner= to both"
        why += " for a re-entrant lock."
    return WouldDeadlock(
        f"{held} held by this very thread or task, {why}",
        path=target,
        protocol=request.protocol.name,
    )
