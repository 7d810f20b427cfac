"""What the engines that talk to a server have in common: the request, the wait, and the hold.

EH1  A hold is ours by what is known here, without asking the server: the engine sets `lapses`, the moment on our own
     clock until which the server has promised it. So `lost` and `ensure_held` never wait.
EH2  A release tells the server and waits for its answer; whatever interrupts it, the connection or the lease is given
     up afterwards (`_close`), so the server frees the lock all the same. Only its beginning is decided under the mutex.
EH3  A loss is told once, by whoever finds it; a release after it leaves the lock to whoever has it by then.
"""

from __future__ import annotations

import math
from abc import abstractmethod

from .._core.hold import Held
from .._core.limits import Limits
from .._core.refusal import Refusal
from .._core.request import Options, Request, check_seconds
from .._core.story import Story
from .._drive.sync import drive
from ..errors import MalformedRecord
from ..events import listeners
from ..protocols import Protocol
from .kin import enrol, forget, own_shares

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from typing import Any

    from .._core.environment import Environment, Wait
    from .._core.hold import Share
    from ..model import Holder, Identity, Liveness, Record, Status
    from .base import Engine

_COMMON = frozenset({"tag", "timeout", "owner", "fair", "fencing", "on_lost", "on_event"})


class Unfiled(Protocol):
    """Stands where a lock file's protocol would: what a server stores is no lock file."""

    mode = 0
    stale_after = math.inf

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]  # one class for all engines

    def decode(self, data: bytes) -> Record:  # noqa: ARG002
        raise MalformedRecord(f"{self.name} stores no lock files", protocol=self.name)

    def encode(self, record: Record) -> bytes:  # noqa: ARG002
        raise ValueError(f"{self.name} stores no lock files")

    def compose(self, who: Identity, now: float, tag: str | None, marker: str | None, more: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        raise ValueError(f"{self.name} stores no lock files")

    def is_stale(self, record: Record, liveness: Liveness, now: float, stale_after: float) -> bool:  # noqa: ARG002
        return False

    def stale_at(self, record: Record, stale_after: float) -> float | None:  # noqa: ARG002
        return None

    def refreshed(self, data: bytes, now: float) -> tuple[int, bytes] | None:  # noqa: ARG002
        return None


class RemoteRequest(Request):
    """One lock as it is asked for from a server. `path` and `target` are its URL as people may see it: no password.

    `allowed` are the options that this engine has besides those of all engines; any other is a mistake.
    """

    __slots__ = ("engine", "lease")

    def __init__(self, engine: Engine, given: str, shown: str, options: Options, allowed: frozenset[str]) -> None:
        _check_options(engine.name, options, _COMMON | allowed)
        self.engine = engine
        self.given = given
        self.path = self.target = self.name = shown
        self.directory = self.queue = ""
        self.protocol = Unfiled(engine.name)
        self.more = {}
        self._set_common(options)
        self.fair, self.shared, self.durable = True, False, False
        self.fencing = True  # a server gives a token with every hold
        self.slot = None
        self.watched = True
        every = check_seconds("heartbeat", options.get("heartbeat"), zero=True)
        self.beat_every = math.inf if every == 0 else every or 0.0
        """0: as the engine likes; infinity: never."""
        self.lease = check_seconds("stale_after", options.get("stale_after"), zero=False)
        """Seconds after which the server frees the lock of a holder that says nothing; None: as the engine likes."""

    @property
    def key(self) -> tuple[object, ...]:
        """What this process knows the lock by, however many slots it has."""
        return (self.protocol.name, self.target)


class Attempt(Limits):
    """One contender's wait, as far as it is the same for all servers: how long, and what is told of it."""

    request: RemoteRequest

    def __init__(
        self, env: Environment, requests: Sequence[Request], timeout: float | None, context: tuple[object, ...]
    ) -> None:
        assert isinstance(requests[0], RemoteRequest)
        super().__init__(env, requests[0], timeout)
        self.context = context
        self.story = Story(env, self.request, context)

    def waiting(self, look: Callable[[], tuple[Status, ...]], who: Callable[[], Holder | None]) -> None:
        """To be called before each wait: tells that it begins, and announces one that has lasted a second."""
        self.require_same_process()
        self.story.waiting(who)
        self.announce(lambda: self.refusal(look))

    def refusal(self, look: Callable[[], tuple[Status, ...]]) -> Refusal:
        waited = self.env.monotonic() - self.started
        return Refusal(self.request.target, waited, look, self.story, own_shares(self))


class RemoteHeld(Held):
    """A hold that a server has granted. An engine keeps it from the beginning, and says how it ends."""

    __slots__ = ("_key", "_record", "lapses", "why_lost")

    waits = True
    request: RemoteRequest

    def __init__(
        self, env: Environment, request: RemoteRequest, name: tuple[object, ...], record: Record, token: int | None
    ) -> None:
        self._key = name
        self._record = record
        self.lapses = math.inf  # EH1
        self.why_lost = ""
        super().__init__(env, request, -1, (0, 0), b"", guarded=False)
        self.token = token

    # -- what an engine does -------------------------------------------------------------------------------------------

    @abstractmethod
    def _give_up(self) -> Generator[Wait, None, bool]:
        """Tell the server, and wait for its answer; whether it was still ours. Bounded in time."""

    @abstractmethod
    def _close(self) -> None:
        """End whatever keeps it, so that the server frees it by itself. Never waits, never raises, idempotent."""

    # -- what all do ---------------------------------------------------------------------------------------------------

    def release(self, share: Share | None = None) -> None:
        drive(self.releasing(share))

    def releasing(self, share: Share | None = None) -> Generator[Wait, None, None]:
        """Give up the lock, or this share of it (EH2). LockLost if it was no longer ours."""
        if self.inert:
            return
        with self.mutex:
            if self.released or (share is not None and share not in self.shares):
                return
            if share is not None and self.shares != [share]:
                self.shares.remove(share)
                return
            self.released = True
        try:
            mine = False
            try:
                if not self.lost and self._is_ours():
                    mine = yield from self._give_up()
            finally:
                self._forget()
                self._close()
            if not mine:
                self._raise_lost()
        finally:
            if self.story is not None or listeners:
                self._story().released(self)

    def lose(self, why: str) -> None:
        """The engine has found that it is not ours any more (EH3). In the agent's thread: see `Agent.call`."""
        if not self.why_lost:
            self.why_lost = why
        self.check()

    def beat(self) -> None:
        """The engine does it by itself."""

    def abandon(self) -> None:
        """No other process can have a lock that a server has granted to this one: so it is given back."""
        self.give_back()

    def record(self) -> Record:
        return self._record

    def _how_lost(self) -> str:
        why = self.why_lost or "its time has run out without a word from the server"
        return f"was lost while it was held here: {why}. Another process may be inside."

    def _is_ours(self) -> bool:
        return not self.why_lost and self.env.monotonic() < self.lapses

    def _enrol(self) -> None:
        self.env.holds[self._key] = self
        enrol(self)

    def _forget(self) -> None:
        forget(self)
        if self.env.holds.get(self._key) is self:
            del self.env.holds[self._key]

    def _withdraw(self) -> None:
        self._forget()
        self._close()


def _check_options(engine: str, options: Options, allowed: frozenset[str]) -> None:
    neutral: dict[str, Any] = {"protocol": engine, "stale": "safe", "fair": True, "shared": False, "durable": False}
    for name, value in options.items():
        if name not in allowed and value is not None and value != neutral.get(name):
            raise ValueError(
                f"{name} has no meaning for a lock on {engine}; it has: {', '.join(sorted(allowed))}. Leave it out"
            )
    if options.get("fair") is False:
        raise ValueError(f"{engine} lets those who wait in by the order of their arrival, always; leave fair out")
