"""A lock on etcd: its acquisition, by the algorithm in queue.py's picture, the wait until it is free, and its hold.

ET1  Whatever wakes us, we look again (EQ2); an event only says that a look is worth it. A watch that is compacted, ends
     or is stuck leads to a look as well.
ET2  A waiter watches the key before its own, deletions only, from the revision after the look: nothing falls between,
     and a release wakes one. Of a semaphore all keys are watched, and a waiter far behind does no more than count.
ET3  A contender that leaves without a hold, for whatever reason, revokes its lease (EL3). That is part of undoing its
     operation: otherwise an interruption would leave a key that is kept alive, and holds the lock for nobody.
     `timeout=0` puts no key if it sees that the lock is held.
ET4  If our key is gone, or our lease may be, we begin anew, behind the other waiters, even if we were stopped before we
     had put the key. A hold is given out only within the lease.
ET5  Our turn may come without a slot: where callers disagree about how many there are, or another program has put a
     key in the place of one. Such a slot is watched and waited for, within the caller's timeout, like a key before us.
ET6  A waiter's requests to a server, and the answers, do not grow with the number of waiters: a key or two; for the
     place in the queue that people are told, `_MOST_TOLD` waiters, and in a longer queue no place is told. Of many
     callers in one process a few at a time queue up, so that keep-alives are not behind all of them.

A hold obeys EH1 to EH3 of remote.py in this way:

    the lease is kept ──▶ why is it lost? its time ran out, the server ended it, or our key was deleted
    release ──▶ delete the key, with its revision ──▶ the lease is revoked by the agent

ET7  It counts as ours until the end of the lease (EL1), by our own clock; a process that was stopped finds its lock
     lost at its first look, whatever the agent had no time to do.
ET8  Our own key is watched from the revision at which it was ours, so no deletion falls between. The watch begins when
     the hold has lasted a moment, and begins anew, from the same revision on, when its stream ends. The key of our slot
     is watched as well: without it the next holder would get the same slot.
ET9  A release that cannot reach a server returns all the same, within `_RELEASE_WITHIN`: the agent goes on telling it,
     and the lease ends by itself. The lock has not been lost, so no error is raised; nobody else is let in too early.
ET10 Where its key was deleted, the lease is ended too: the slot of a semaphore is free then, whenever the handle goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..._core.attempt import Refusal
from ..._core.hold import HoldRef
from ..._core.wait import Steps, Wait, pause
from ..._drivers.agent import Job, agent
from ..._drivers.background import call_aside
from ..._platform.interface import Environment
from ..._platform.values import RECHECK
from ...errors import EngineUnavailable
from ...events import WARNING, note
from ...model import Record, Status
from ..remote import Contender, RemoteHold, RemoteRequest
from .client import Cluster, Place, cluster_of
from .http import Unreachable
from .look import first_of, keys_of, record_of, statuses_of
from .queue import Entrant, Queue, Seen
from .url import EtcdRequest
from .wire import Json, Refused, Watch, encoded

_PATIENCE = 5.0
"""Seconds in which a server must answer a caller that is not in the queue yet."""
_GRACE = 1.0
"""Seconds beyond its timeout that a caller waits for an answer."""
_REACH_AT_LEAST = 3.0
"""Seconds that a server gets until a caller is in the queue: `timeout` is for the wait, and a login takes time."""
_AGAIN = 0.1
_MOST_TOLD = 20


class _Watched(NamedTuple):
    """The keys that a waiter watches. It looks again once fewer of them are left than there is room for."""

    name: str
    """A name that tells this watch from others of the same waiter."""
    where: Json
    revision: int
    """The revision at which the keys were seen."""
    keys: set[str]


class AcquireAttempt(Contender):
    """One caller's attempt, from its first question to its hold."""

    def __init__(
        self, env: Environment, requests: Sequence[EtcdRequest], timeout: float | None, context: tuple[object, ...]
    ) -> None:
        super().__init__(env, requests, timeout, context)
        self.requests = requests
        self.timeout = timeout
        first = requests[0]
        self.queue = Queue(first.lock_url, None if first.slot is None else len(requests))
        self.cluster: Cluster = cluster_of(env, first.lock_url.access)
        self._statuses: tuple[Status, ...] | None = None
        self._entrant: Entrant | None = None
        """The contender's key and lease, as long as they are ours to give up."""
        self._watch: Watch | None = None
        self._watched: str | None = None
        self._place = Place(env, self.cluster.turnstile, self.queue.base)
        """Our place in the line of this process's callers that queue up."""

    # -- acquiring -----------------------------------------------------------------------------------------------------

    def acquire(self) -> Steps[HoldRef | Refusal]:
        if self.timeout == 0:
            seen, slots = yield from first_of(self.cluster, self.queue, self._until())
            self._note(seen, slots)
            if not self._is_free(seen, slots):
                return self.refuse()
        while True:
            result = yield from self._contend()
            if result is not None:
                return result

    def _contend(self) -> Steps[HoldRef | Refusal | None]:
        """One stay in the queue; None if our key is gone (ET4)."""
        entrant = Entrant(self.env, self.cluster, self.queue, self.requests[0].lease_seconds, self._facts())
        self._entrant = entrant
        try:
            first = yield from self._enter(entrant)
            if first is None:
                return None
            waited = entrant.key not in [seen.key for seen in first]
            if waited:
                self._note(first)
                result = yield from self._wait_for(entrant, self._turn)
                if not isinstance(result, bool):
                    return result
            if self.queue.slots is not None:
                result = yield from self._wait_for(entrant, self._slot)
                if not isinstance(result, bool):
                    return result
            if entrant.lease.is_over():
                return None
            self.require_same_process()
            held = EtcdHold(self.env, self.requests[entrant.slot or 0], self.cluster, entrant, waited=waited)
            self._entrant = None  # it is the hold's
            return self._ref(held)
        finally:
            self.close()

    def close(self) -> None:
        """Revoke the lease, and end the watch (ET3). May be interrupted, and is then called again (J3)."""
        self._place.close()
        self._end_watch()
        if self._entrant is not None:
            self._entrant.lease.end()
            self._entrant = None

    def _enter(self, entrant: Entrant) -> Steps[list[Seen] | None]:
        """Queue up, a few callers of this process at a time (ET6). The current holders' keys; None if the lease ended
        before the key was put (ET4)."""
        while not (yield from self._place.admitted(min(self.deadline, self.env.monotonic() + RECHECK))):
            self.require_same_process()  # nobody wakes a child
            if self.is_over():
                break
        yield from entrant.lease.grant(self._until())
        entrant.facts["ttl"] = entrant.lease.seconds
        try:
            first = yield from entrant.enter(min(self._until(), entrant.lease.lapses))
        except (EngineUnavailable, Refused) as error:
            if self.is_over() or not entrant.lease.ends_by(error):
                raise
            return None
        entrant.lease.keep()
        return first

    def _ref(self, held: EtcdHold) -> HoldRef:
        try:
            held.attempt_events = self.attempt_events
            return held.ref(self.context)
        except BaseException:
            held.give_back()
            raise

    def _wait_for(
        self, entrant: Entrant, look: Callable[[Entrant, float], Steps[_Watched | bool]]
    ) -> Steps[bool | Refusal | None]:
        """Wait until `look` finds what it looks for: True. None: our key is gone."""
        while not entrant.lease.is_over():
            try:
                seen = yield from look(entrant, min(self._until(math.inf), entrant.lease.lapses))
                if isinstance(seen, bool):
                    return seen or None
                if self.is_over():
                    return (yield from self.look_and_refuse())
                if self.announces:
                    yield from self.look_for_people(_MOST_TOLD)
                self.waiting()
                yield from self._watch_those(entrant, seen)
            except (Unreachable, EngineUnavailable):
                self._end_watch()
                if self.is_over():
                    return self.refuse()
                yield from self._rest()
            except Refused as error:
                yield from self._forget_token(error)
        return None

    def _turn(self, entrant: Entrant, until: float) -> Steps[_Watched | bool]:
        """True if it is our turn; otherwise the keys to wait for. False: our key is gone."""
        before = yield from entrant.look(until)
        if before is None:
            return False
        if len(before) < self.queue.room:
            return True
        if self.queue.slots is None:
            key = min(before)
            return _Watched(key, {"key": encoded(key)}, entrant.revision, before)
        return _Watched("", self.queue.keys(), entrant.revision, before)

    def _slot(self, entrant: Entrant, until: float) -> Steps[_Watched | bool]:
        """True if we have a slot; if all are taken, the keys to wait for (ET5). False: our key is gone."""
        if (yield from entrant.take_slot(until)):
            return True
        if (yield from entrant.look(until)) is None:
            return False
        return _Watched("#", self.queue.slot_range(), entrant.slots_seen, entrant.slots_in_the_way())

    def _watch_those(self, entrant: Entrant, watched: _Watched) -> Steps[None]:
        """Return when another look is worth it (ET1, ET2)."""
        lease = entrant.lease
        if self._watch is None or self._watched != watched.name:
            self._end_watch()
            # Without a name, our own key is among them.
            ranges = [{"key": encoded(entrant.key)}, watched.where] if watched.name else [watched.where]
            until = min(self._until(math.inf), lease.lapses)
            self._watch = yield from self.cluster.watch(ranges, watched.revision, until)
            self._watched = watched.name
            self._place.close()  # the next of this process may queue up
        recheck = self.env.monotonic() + RECHECK
        while True:
            gone, canceled = self._watch.deleted()
            watched.keys.difference_update(gone)
            if canceled:
                self._end_watch()
                yield from self._rest()
            if canceled or entrant.key in gone or len(watched.keys) < self.queue.room:
                return
            if self.is_over() or self.announces or lease.is_over():
                return
            if self.env.monotonic() >= recheck:  # ET1, for the price of two keys, if we wait for one
                until = min(self._until(), lease.lapses)
                if self.queue.slots is not None or not (yield from entrant.is_waiting(watched.name, until)):
                    return
                recheck = self.env.monotonic() + RECHECK
            yield Wait((self._watch.fd,), self.bounded(min(recheck, lease.lapses)))

    # -- waiting until it is free --------------------------------------------------------------------------------------

    def wait_until_free(self) -> Steps[Refusal | None]:
        failing_since: float | None = None
        while True:
            try:
                seen, slots, revision = yield from keys_of(self.cluster, self.queue, self._until_next())
                failing_since = None
                self._note(seen, slots)
                if self._is_free(seen, slots):
                    return None
                if self.is_over():
                    return self.refusal()
                self.waiting()
                yield from self._watch_holders({one.key for one in seen}, self.queue.taken(slots), revision)
            except (Unreachable, EngineUnavailable):
                self._end_watch()
                failing_since = failing_since or self.env.monotonic()
                if self._statuses is not None and self.is_over():
                    return self.refusal()
                if self._statuses is None or self.env.monotonic() - failing_since > _PATIENCE:
                    raise
                yield from self._rest()
            except Refused as error:
                yield from self._forget_token(error)

    def _watch_holders(self, keys: set[str], taken: set[str], revision: int) -> Steps[None]:
        ranges = [self.queue.keys()] if self.queue.slots is None else [self.queue.keys(), self.queue.slot_range()]
        self._watch = yield from self.cluster.watch(ranges, revision, self._until_next())
        recheck = self.env.monotonic() + RECHECK
        try:
            while True:
                gone, canceled = self._watch.deleted()
                keys -= gone
                taken -= gone
                if canceled:
                    yield from self._rest()
                if canceled or max(len(keys), len(taken)) < self.queue.room or self.env.monotonic() >= recheck:
                    return
                if self.is_over() or self.announces:
                    return
                yield Wait((self._watch.fd,), self.bounded(recheck))
        finally:
            self._end_watch()

    # -- what both need ------------------------------------------------------------------------------------------------

    def _is_free(self, seen: list[Seen], slots: Sequence[Seen]) -> bool:
        return max(len(seen), len(self.queue.taken(slots))) < self.queue.room

    def look_for_people(self, waiters: int = 0) -> Steps[None]:
        """Look up the holders, and the waiters if there are no more than `waiters`."""
        try:
            most = waiters + 1 if waiters else 0
            seen, slots = yield from first_of(self.cluster, self.queue, self.env.monotonic() + _GRACE, most)
            if len(seen) > self.queue.room + waiters:
                seen = seen[: self.queue.room]
            if not self._is_free(seen, slots):
                self._note(seen, slots)
        except (EngineUnavailable, Refused):
            pass

    def _note(self, seen: list[Seen], slots: Sequence[Seen] = ()) -> None:
        self._statuses = statuses_of(self.env, self.queue, self.request.target, seen, list(slots))

    def last(self) -> tuple[Status, ...]:
        return self._statuses or statuses_of(self.env, self.queue, self.request.target, [], [])

    def _until(self, patience: float = _PATIENCE) -> float:
        now = self.env.monotonic()
        at_least = -math.inf if patience == math.inf else self.started + _REACH_AT_LEAST
        return min(now + patience, max(self.deadline + _GRACE, now + _GRACE, at_least))

    def _until_next(self) -> float:
        """The time limit of a caller without a place in the queue: once a server has answered, that of the wait."""
        return self._until() if self._statuses is None else min(self._until(math.inf), self._until())

    def _forget_token(self, refused: Refused) -> Steps[None]:
        """Go on after a pause if only the authentication token has expired; otherwise raise the error."""
        self._end_watch()
        if not self.cluster.forget_token(refused):
            raise refused
        yield from self._rest()

    def _rest(self) -> Steps[None]:
        return pause(self.env, self.env.monotonic() + _AGAIN)

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch = self._watched = None

    def _facts(self) -> Json:
        who, request = self.env.identity(), self.requests[0]
        facts: Json = {"pid": who.pid, "host": who.host, "since": self.env.time(), "state": "entered"}
        if request.tag is not None:
            facts["tag"] = request.tag
        if self.queue.slots is not None:
            facts["slots"] = self.queue.slots
        return facts


_RELEASE_WITHIN = 2.0
_MOMENT = 0.05
"""Seconds that a hold lasts before it is watched: most holds are shorter, and a watch is a connection of its own."""
_WATCH_AGAIN = 0.2
_DELETED = "its key on etcd was deleted: the lock was broken, or its lease revoked"


class EtcdHold(RemoteHold):
    """A hold: a key that is first in its queue."""

    __slots__ = ("_job", "_waited", "cluster", "entrant")

    def __init__(
        self, env: Environment, request: RemoteRequest, cluster: Cluster, entrant: Entrant, *, waited: bool
    ) -> None:
        self.cluster = cluster
        self.entrant = entrant
        self._job: Job | None = None
        self._waited = waited
        super().__init__(env, request, ("etcd", id(self)), self._facts(), entrant.token)
        self.term = entrant.lease  # ET7
        entrant.lease.on_over = self._over
        first = Wait((), env.monotonic() + _MOMENT)
        self._job = agent(env).start(self._watching(), f"while watching {self.path}", first=first)

    def _facts(self) -> Record:
        seen = Seen({"create_revision": self.entrant.created, "lease": self.entrant.lease.id})
        seen.key = self.entrant.key
        seen.value = {**self.entrant.facts}
        return record_of(seen, self.entrant.token)

    # -- how it ends ---------------------------------------------------------------------------------------------------

    def _give_up(self) -> Steps[bool]:
        until = min(self.entrant.lease.lapses, self.env.monotonic() + _RELEASE_WITHIN)
        try:
            was_ours = yield from self.entrant.leave(until)
            if not was_ours:
                self.why_lost = self.why_lost or _DELETED  # the watch has not told yet
            return was_ours
        except EngineUnavailable:
            return True  # ET9
        except Refused as error:
            note(WARNING, f"{self.path}: etcd refuses the release: {error.message}")
            return True

    def _close(self) -> None:
        if self._job is not None and not self.inert:
            self._job.stop()
        self.entrant.lease.end()

    def _how_lost(self) -> str:
        self.why_lost = self.why_lost or self.entrant.lease.why_over  # found by a look, before the agent has told
        return super()._how_lost()

    def _over(self, why: str) -> None:
        if self.released:
            return  # it is our own release that the watch has seen, or one that says itself that nothing was left
        call_aside(lambda: self.lose(why), f"in on_lost for {self.path}")

    # -- what watches it -----------------------------------------------------------------------------------------------

    def _watching(self) -> Steps[None]:
        if self._waited:
            yield from self._tell_since()
        while not self.lost and not self.entrant.lease.is_over():
            watch: Watch | None = None
            again = _WATCH_AGAIN
            try:
                own = [{"key": encoded(key)} for key in self.entrant.keys]
                watch = yield from self.cluster.watch(own, self._ours_since(), self.entrant.lease.lapses)
                if (yield from self._watch(watch)):
                    self._over(_DELETED)
                    if not self.released:
                        self.entrant.lease.end()  # ET10
                    return
            except (Unreachable, EngineUnavailable):
                pass
            except Refused as error:
                if not self.cluster.forget_token(error):
                    again = RECHECK  # a right was taken away; the lease is kept all the same
            finally:
                if watch is not None:
                    watch.close()
            yield from pause(self.env, self.env.monotonic() + again)

    def _ours_since(self) -> int:
        """The revision at which our keys were ours (ET8); not that of the end of the slot's last holder."""
        return max(self.entrant.revision, self.entrant.token)

    def _watch(self, watch: Watch) -> Steps[bool]:
        """Whether the key is gone; False if the stream has to begin anew."""
        recheck = self.env.monotonic() + RECHECK
        while True:
            gone, canceled = watch.deleted()
            if not gone.isdisjoint(self.entrant.keys):
                return True
            if canceled or self.env.monotonic() >= recheck:  # a compaction or a stream that is stuck: no event can tell
                if not (yield from self.entrant.is_whole(self.entrant.lease.lapses)):
                    return True
                if canceled:
                    return False  # from the revision of that look on the next watch begins
                recheck = self.env.monotonic() + RECHECK
            yield Wait((watch.fd,), recheck)

    def _tell_since(self) -> Steps[None]:
        """Write into the key the time since which it is held; it has the time since which we have waited."""
        facts = {**self.entrant.facts, "since": self.env.time() - (self.env.monotonic() - self.acquired)}
        try:
            until = min(self.entrant.lease.lapses, self.env.monotonic() + _RELEASE_WITHIN)  # the watch is yet to begin
            yield from self.entrant.update({**facts, "state": "held"}, until)
            self._record = self._facts()
        except (EngineUnavailable, Refused):
            pass  # it is for people
