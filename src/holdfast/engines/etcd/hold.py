"""A hold on etcd: what keeps it, how it is lost, how it ends.

    the lease is kept ──▶ why is it lost? its time ran out, the server ended it, or our key was deleted
    release ──▶ delete the key, with its revision ──▶ the lease is revoked by the agent

EH1 to EH3 of remote.py hold; here is how.

ET9  It counts as ours until the lease's moment (EL1), by our own clock; a process that was stopped finds itself lost at
     its first look, whatever the agent had no time to do.
ET10  Our own key is watched from the revision at which it was ours, so no deletion falls between. The watch begins when
      the hold has lasted a moment, and begins anew, from the same revision on, when its stream ends.
ET11  A release that cannot reach a server returns all the same, within `_PATIENCE`: the agent goes on telling it, and
      the lease ends by itself. It has not been lost, so no error is raised; nobody else is let in too early.
"""

from __future__ import annotations

from collections.abc import Generator

from ..._core.wait import Wait
from ..._drivers.agent import Job, agent
from ..._drivers.background import call_aside
from ..._platform.interface import RECHECK, Environment
from ...errors import EngineUnavailable
from ...model import Record
from ..remote import RemoteHeld, RemoteRequest
from .client import Cluster
from .http import Unreachable
from .look import record_of
from .queue import Entrant, Seen
from .wire import Json, Refused, Watch, decoded, encoded, number

_PATIENCE = 2.0
_MOMENT = 0.05
"""Seconds that a hold lasts before it is watched: most are shorter, and a watch is a connection of its own."""
_AGAIN = 0.2


class EtcdHeld(RemoteHeld):
    """One key that is first in its queue."""

    __slots__ = ("_job", "_waited", "cluster", "entrant")

    def __init__(
        self, env: Environment, request: RemoteRequest, cluster: Cluster, entrant: Entrant, *, waited: bool
    ) -> None:
        self.cluster = cluster
        self.entrant = entrant
        self._job: Job | None = None
        self._waited = waited
        super().__init__(env, request, ("etcd", id(self)), self._facts(), entrant.token)
        self.lapses = entrant.lease.lapses
        entrant.lease.on_kept, entrant.lease.on_over = self._kept, self._over
        first = Wait((), env.monotonic() + _MOMENT)
        self._job = agent(env).start(self._watching(), f"while watching {self.path}", first=first)

    def _facts(self) -> Record:
        kv: Json = {"create_revision": self.entrant.created, "lease": self.entrant.lease.id}
        seen = Seen(kv)
        seen.key = self.entrant.key
        seen.value = {**self.entrant.facts}
        return record_of(seen, self.entrant.token)

    def _is_ours(self) -> bool:
        return super()._is_ours() and not self.entrant.lease.is_over()

    def _kept(self, lapses: float) -> None:
        self.lapses = lapses  # ET9

    # -- how it ends ---------------------------------------------------------------------------------------------------

    def _give_up(self) -> Generator[Wait, None, bool]:
        until = min(self.lapses, self.env.monotonic() + _PATIENCE)
        try:
            return (yield from self.entrant.leave(until))
        except EngineUnavailable:
            return True  # ET11
        except Refused as error:
            import logging

            logging.getLogger("holdfast").warning("%s: etcd refuses the release: %s", self.path, error.message)
            return True

    def _close(self) -> None:
        if self._job is not None and not self.inert:
            self._job.stop()
        self.entrant.lease.end()

    def _over(self, why: str) -> None:
        if self.released:
            return  # it is our own release that the watch has seen, or one that says itself that nothing was left
        call_aside(lambda: self.lose(why), f"in on_lost for {self.path}")

    # -- what watches it -----------------------------------------------------------------------------------------------

    def _watching(self) -> Generator[Wait, None, None]:
        if self._waited:
            yield from self._tell_since()
        while not self.lost and not self.entrant.lease.is_over():
            watch: Watch | None = None
            pause = _AGAIN
            try:
                watch = yield from self.cluster.watch([self._own()], self.entrant.lease.lapses)
                if (yield from self._watch(watch)):
                    return
            except (Unreachable, EngineUnavailable):
                pass
            except Refused as error:
                if not self.cluster.forget_token(error):
                    pause = RECHECK  # a right was taken away; the lease is kept all the same
            finally:
                if watch is not None:
                    watch.close()
            again = self.env.monotonic() + pause
            while self.env.monotonic() < again:
                yield Wait((), again)

    def _own(self) -> Json:
        start = str(self.entrant.revision + 1)  # ET10
        return {"key": encoded(self.entrant.key), "filters": ["NOPUT"], "start_revision": start}

    def _watch(self, watch: Watch) -> Generator[Wait, None, bool]:
        """Whether the key is gone; False when the stream is to begin anew."""
        recheck = self.env.monotonic() + RECHECK
        while True:
            for result in watch.take():
                if any(decoded(event["kv"]["key"]) == self.entrant.key for event in result.get("events", ())):
                    self._over("its key on etcd was deleted: somebody broke the lock, or its lease was revoked")
                    return True
                if result.get("canceled") or number(result.get("compact_revision")):
                    return (yield from self._is_gone())
            if self.env.monotonic() >= recheck:  # a stream that is stuck says nothing
                if (yield from self._is_gone()):
                    return True
                recheck = self.env.monotonic() + RECHECK
            yield Wait((watch.fd,), recheck)

    def _is_gone(self) -> Generator[Wait, None, bool]:
        """Ask, where no event can tell (a compaction); from its revision on the next watch begins."""
        if (yield from self.entrant.look(self.entrant.lease.lapses)) is None:
            self._over("its key on etcd was deleted: somebody broke the lock, or its lease was revoked")
            return True
        return False

    def _tell_since(self) -> Generator[Wait, None, None]:
        """Write into the key since when it is held; it says since when we have waited."""
        facts = {**self.entrant.facts, "since": self.env.time() - (self.env.monotonic() - self.acquired)}
        try:
            yield from self.entrant.update({**facts, "state": "held"}, self.entrant.lease.lapses)
            self._record = self._facts()
        except (EngineUnavailable, Refused):
            pass  # it is for people
