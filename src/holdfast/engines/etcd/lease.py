"""A lease, and what keeps it: the one thing by which etcd knows that a contender lives.

EL1  The lease is good until the moment at which the keep-alive that was answered last was *sent*, plus the seconds that
     the server granted, less a margin for clocks that run at different speeds. Never from when the answer came. The
     time for which the machine slept counts, where the system tells it: the monotonic clock stands still then.
EL2  A keep-alive of a dead lease is answered as well, without seconds: then it is over, whatever time was left.
EL3  One lease for each contender, by a number of our own choice. So whoever gives up, wherever it stands, revokes it:
     a put that comes later is refused by the server, and the key goes with the lease.
EL4  That is left to the agent, which begins at once and goes on until the lease would have ended by itself.
"""

from __future__ import annotations

import math
import os
import time

from ..._core.environment import Wait
from ..._drive.agent import agent
from ...errors import EngineUnavailable
from .wire import Refused, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ..._core.environment import Environment
    from ..._drive.agent import Job
    from .client import Cluster

_MARGIN = 0.1
"""Of the lease: for clocks at different speeds, and for the step that follows a look at the clock."""
_BEATS = 3
"""Keep-alives within one lease."""
_NOT_FOUND = 5


class Lease:
    """Not there until `grant` has returned; not kept until `keep`."""

    def __init__(self, env: Environment, cluster: Cluster, wanted: int) -> None:
        self.env = env
        self.id = int.from_bytes(os.urandom(8), "big") >> 1 or 1
        self.seconds = wanted
        """What the server has granted."""
        self.lapses = -math.inf
        self.why_over = ""
        self.on_kept: Callable[[float], object] | None = None
        """Called with `lapses` whenever that is later than it was."""
        self.on_over: Callable[[str], object] | None = None
        """Called once, in the agent's thread, when it is over and nobody has ended it."""
        self._cluster = cluster
        self._generation = env.generation
        self._job: Job | None = None
        self._asked = self._ended = False
        self._slept = 0.0

    def is_over(self) -> bool:
        """Whether the server may have dropped it by now (EL1)."""
        return bool(self.why_over) or self.env.monotonic() + _slept() - self._slept >= self.lapses

    def grant(self, until: float) -> Generator[Wait, None, None]:
        """Ask for it. Raises as `Cluster.call`."""
        sent, slept = self.env.monotonic(), _slept()
        self._asked = True
        body = {"ID": str(self.id), "TTL": str(self.seconds)}
        try:
            answer = yield from self._cluster.call("/v3/lease/grant", body, until)
        except Refused as error:
            if "lease already exists" not in error.message:
                raise
            yield from self.beat(until)  # the answer to an earlier request was lost
            return
        self._extend(sent, slept, number(answer.get("TTL")))

    def keep(self) -> None:
        """Have it kept from now on, until it is over or `end`."""
        due = self._due()
        first = Wait((), min(due, self.lapses))
        self._job = agent(self.env).start(self._keeping(due), "while keeping a lease on etcd", first=first)

    def beat(self, until: float) -> Generator[Wait, None, None]:
        """One keep-alive. It may find that the lease is over (EL2)."""
        sent, slept = self.env.monotonic(), _slept()
        answer = yield from self._cluster.call("/v3/lease/keepalive", {"ID": str(self.id)}, until, rounds=math.inf)
        self._extend(sent, slept, number(answer.get("TTL")))

    def end(self) -> None:
        """Give it up, and the key with it (EL4). Never waits; idempotent; nothing in a forked child."""
        if self._ended or self._generation != self.env.generation:
            return
        self._ended = True
        self.on_kept = self.on_over = None
        if self._job is not None:
            self._job.stop()
        if self._asked:
            agent(self.env).start(self._revoking(), "while revoking a lease on etcd", last=True)

    def _extend(self, sent: float, slept: float, seconds: int) -> None:
        if seconds <= 0:
            self.why_over = "etcd has ended its lease"  # EL2
            return
        self.seconds = seconds
        self.lapses, self._slept = sent + seconds * (1 - _MARGIN), slept  # EL1
        if self.on_kept is not None:
            self.on_kept(self.lapses)

    def _due(self) -> float:
        """When to beat next."""
        return self.env.monotonic() + self.seconds / _BEATS

    def _keeping(self, due: float) -> Generator[Wait, None, None]:
        while not self.is_over():
            while self.env.monotonic() < min(due, self.lapses):
                yield Wait((), min(due, self.lapses))
            try:
                yield from self.beat(self.lapses)
            except EngineUnavailable as error:
                self.why_over = self.why_over or f"etcd has not answered for {self.seconds} s: {error.message}"
            except Refused as error:
                if error.code == _NOT_FOUND:
                    self.why_over = "etcd has ended its lease"
                elif self.is_over():
                    self.why_over = f"etcd refuses to keep its lease: {error.message}"
                else:
                    yield Wait((), min(self.lapses, self.env.monotonic() + 0.1))
            due = self._due()
        if self.on_over is not None:
            self.on_over(self.why_over or f"etcd has not answered for {self.seconds} s")

    def _revoking(self) -> Generator[Wait, None, None]:
        until = self.env.monotonic() + self.seconds
        try:
            yield from self._cluster.call("/v3/lease/revoke", {"ID": str(self.id)}, until, rounds=math.inf)
        except (Refused, EngineUnavailable):
            pass  # it is gone already, or goes by itself


def _slept() -> float:
    """For how many seconds the machine has slept since it started, as far as the system tells; differences count."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return 0.0 if clock is None else time.clock_gettime(clock) - time.clock_gettime(time.CLOCK_MONOTONIC)
