"""The queue of one lock on etcd: its contenders' keys, in the order of their `create_revision`, each with a lease.

    grant a lease ──▶ put the key ──▶ first ──▶ hold
                          │ others are before it
                          ▼
                     watch the one before ──▶ it is gone ──▶ look again ──▶ hold
                                                             └──▶ our own key is gone: begin anew

EQ1  The contender with the lowest `create_revision` holds; with a semaphore, as many as there are slots. That order is
     the server's, it never changes, and no key that comes later has a lower one: so it is the fencing token as well.
EQ2  One transaction asks both whether it is our turn and whether our own key is still there, with our revision.
EQ3  Every transaction may be sent twice (EC1): a put that finds the key there gets the key as the answer.
EQ4  A key is deleted only with the intended `create_revision`. A successor's key has another name and another revision.
     A key that is not found by a second request, because an answer was lost, was most likely deleted by the first one:
     it counts as ours until then.
EQ5  A slot is a key of its own, which only one can create, and which goes with the holder's lease. Of `n` permitted
     holders at most `n - 1` others have one, so one is free: a newcomer takes the lowest. Its revision is the token: of
     two contenders that may both enter, the first to come may be the last to take its slot.

The lease is the one thing by which etcd knows that a contender lives:

EL1  The lease is good from the moment when the last answered keep-alive was *sent*, for the seconds that the server
     granted, less a margin for clocks that run at different speeds. It never counts from the answer. The time for which
     the machine slept counts, where the system tells it: the monotonic clock stands still then.
EL2  A keep-alive of a dead lease is answered as well, without seconds: then it is over, whatever time was left.
EL3  One lease for each contender, by a number of our own choice. So a contender that gives up, wherever it stands,
     revokes it: a put that comes later is refused by the server, and the key goes with the lease.
EL4  The agent does that: it begins at once and goes on until the lease would have ended by itself.
"""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Callable, Iterable
from typing import Any

from ..._core.wait import Steps, Wait, pause
from ..._drivers.agent import Job, agent
from ..._platform.interface import Environment
from ...errors import EngineUnavailable
from ...protocols import jsontext
from ..remote import Term, moment
from .client import Cluster
from .url import SLOT, LockUrl, lease_of
from .wire import Json, Refused, decoded, encoded, end_of, number

_MARGIN = 0.1
"""Share of the lease that is left for clocks at different speeds, and for the step after a look at the clock."""
_BEATS = 3
"""Number of keep-alives within one lease."""
_NOT_FOUND = 5


class Lease(Term):
    """A lease. It exists once `grant` has returned, and is kept alive from `keep` on."""

    def __init__(self, env: Environment, cluster: Cluster, wanted: int) -> None:
        super().__init__(env, -math.inf)
        self.id = int.from_bytes(os.urandom(8), "big") >> 1 or 1
        self.seconds = wanted
        """The seconds that the server has granted."""
        self.why_over = ""
        self.on_over: Callable[[str], object] | None = None
        """Called once, in the agent's thread, when the lease is over without having been ended by us."""
        self._cluster = cluster
        self._generation = env.generation
        self._job: Job | None = None
        self._asked = self._ended = self._given_up = False

    def is_over(self) -> bool:
        """Whether the server may have dropped it by now (EL1)."""
        return bool(self.why_over) or super().is_over()

    def ends_by(self, error: Refused | EngineUnavailable) -> bool:
        """Whether it is over, after this error: the server may have said so."""
        if isinstance(error, Refused) and error.code == _NOT_FOUND:
            self.why_over = "etcd has ended its lease"
        return self.is_over()

    def grant(self, until: float) -> Steps[None]:
        """Request the lease. Raises as `Cluster.call`."""
        asked = moment(self.env)
        self._asked = True
        body = {"ID": str(self.id), "TTL": str(self.seconds)}
        try:
            answer = yield from self._cluster.call("/v3/lease/grant", body, until)
        except Refused as error:
            if "lease already exists" not in error.message:
                raise
            yield from self.beat(until)  # the answer to an earlier request was lost
            return
        self._granted(asked, number(answer.get("TTL")))

    def keep(self) -> None:
        """Keep the lease alive from now on, until it is over or `end` is called."""
        due = self._due()
        first = Wait((), min(due, self.lapses))
        self._job = agent(self.env).start(self._keeping(due), "while keeping a lease on etcd", first=first)

    def beat(self, until: float) -> Steps[None]:
        """Send one keep-alive. It may find that the lease is over (EL2)."""
        asked = moment(self.env)
        answer = yield from self._cluster.call("/v3/lease/keepalive", {"ID": str(self.id)}, until, rounds=math.inf)
        self._granted(asked, number(answer.get("TTL")))

    def end(self) -> None:
        """Give up the lease, and the key with it (EL4). Never waits; idempotent; does nothing in a forked child."""
        if self._ended or self._generation != self.env.generation:
            return
        self.on_over = None
        self._given_up = True  # first: the keeping ends by itself, should we be interrupted and not called again
        if self._job is not None:
            self._job.stop()
        if self._asked:
            agent(self.env).start(self._revoking(), "while revoking a lease on etcd", last=True)
        self._ended = True  # last: an interrupted end is begun anew; to revoke twice does no harm (J3)

    def _granted(self, asked: tuple[float, float], seconds: int) -> None:
        if seconds <= 0:
            self.why_over = "etcd has ended its lease"  # EL2
            return
        self.seconds = seconds
        self.extend(asked, seconds * (1 - _MARGIN))  # EL1

    def _due(self) -> float:
        """The time of the next keep-alive."""
        return self.env.monotonic() + self.seconds / _BEATS

    def _keeping(self, due: float) -> Steps[None]:
        while not self.is_over():
            yield from pause(self.env, min(due, self.lapses))
            if self._given_up:
                return
            try:
                yield from self.beat(self.lapses)
            except EngineUnavailable as error:
                self.why_over = self.why_over or f"etcd has not answered for {self.seconds} s: {error.message}"
            except Refused as error:
                if self.ends_by(error):
                    self.why_over = self.why_over or f"etcd refuses to keep its lease: {error.message}"
                else:
                    yield Wait((), min(self.lapses, self.env.monotonic() + 0.1))
            due = self._due()
        if self.on_over is not None:
            self.on_over(self.why_over or f"etcd has not answered for {self.seconds} s")

    def _revoking(self) -> Steps[None]:
        until = self.env.monotonic() + self.seconds
        try:
            yield from self._cluster.call("/v3/lease/revoke", {"ID": str(self.id)}, until, rounds=math.inf)
        except (Refused, EngineUnavailable):
            pass  # it is gone already, or goes by itself


_PAGE = 100
"""Number of keys to read at once if the ones before ours belong to other locks."""


class Seen:
    """One key, as a server returned it."""

    __slots__ = ("created", "data", "key", "lease", "value")

    def __init__(self, kv: Json) -> None:
        self.key = decoded(kv.get("key", ""))
        self.created = number(kv.get("create_revision"))
        self.lease = number(kv.get("lease"))
        self.data: bytes = base64.b64decode(kv.get("value", ""))
        try:
            value = jsontext.parse(self.data.decode()) if self.data else {}
        except ValueError:
            value = {}
        self.value: dict[str, Any] = value if isinstance(value, dict) else {}


class Queue:
    """The keys of one lock or semaphore: their names and ranges. Asks no server."""

    def __init__(self, lock_url: LockUrl, slots: int | None) -> None:
        self.lock_url = lock_url
        self.slots = slots
        self.room = 1 if slots is None else slots
        """The number of holders that it has room for."""
        self.base = lock_url.base if slots is None else f"{lock_url.slots}/"

    def range(self, **more: object) -> Json:
        """The range of all contenders' keys, in their order, and perhaps some of deeper names (EU2)."""
        return {**self.keys(), "sort_target": "CREATE", "sort_order": "ASCEND", **more}

    def keys(self) -> Json:
        """The same range in any order."""
        return {"key": encoded(self.base), "range_end": end_of(self.base)}

    def slot_range(self) -> Json:
        return {"key": encoded(f"{self.lock_url.slots}0"), "range_end": encoded(f"{self.lock_url.slots}:")}

    def slot_key(self, slot: int) -> str:
        return f"{self.lock_url.slots}{slot}"

    def own(self, kvs: list[Json]) -> list[Seen]:
        """The keys that belong to this lock (EU2)."""
        return [seen for seen in map(Seen, kvs) if lease_of(self.base, seen.key) is not None]

    def slot_of(self, seen: Seen) -> int | None:
        text = seen.key[len(self.lock_url.slots) :]
        return int(text) if SLOT.match(text) else None

    def taken(self, slots: Iterable[Seen]) -> set[str]:
        """The keys of the taken slots, among those that we could have."""
        ours = {self.slot_key(slot) for slot in range(self.room)} if self.slots is not None else set()
        return ours & {seen.key for seen in slots}


class Entrant:
    """One contender: a lease, and a key in the queue."""

    def __init__(self, env: Environment, cluster: Cluster, queue: Queue, seconds: int, facts: Json) -> None:
        self.env = env
        self.queue = queue
        self.lease = Lease(env, cluster, seconds)
        self.key = f"{queue.base}{self.lease.id:x}"
        self.facts = facts
        self.created = 0
        """The `create_revision` of our key: our place in the queue."""
        self.slot: int | None = None
        self.token = 0
        """The `create_revision` of the key that makes us a holder: our own, or that of the slot (EQ1, EQ5)."""
        self.revision = 0
        """The revision of the last look."""
        self.slots_seen = 0
        """The revision of the last look at the slots."""
        self._cluster = cluster
        self._taken: set[int] = set()

    def enter(self, until: float) -> Steps[list[Seen]]:
        """Queue up (EQ3). The keys of the current holders, as far as they are first."""
        put = {"request_put": self._put()}
        ranges: list[Json] = [{"request_range": self.queue.range(limit=str(self.queue.room))}]
        if self.queue.slots is not None:
            ranges.append({"request_range": self.queue.slot_range()})
        there = {"request_range": {"key": encoded(self.key)}}
        compare = [compare_of(self.key, 0)]
        answer = yield from self._cluster.transact(
            until, put, *ranges, compare=compare, failure=[there, *ranges], rounds=math.inf
        )
        self.revision = number(answer["header"]["revision"])
        first, *rest = answer["responses"]
        self.created = self.revision
        if not answer.get("succeeded"):
            self.created = Seen(kvs_of(first)[0]).created
        self.token = self.created
        if len(rest) > 1:
            self._note_slots(kvs_of(rest[1]), self.revision)
        return self.queue.own(kvs_of(rest[0]))

    def look(self, until: float) -> Steps[set[str] | None]:
        """The keys before ours: of a lock only the last one; None if ours is gone (EQ2)."""
        if self.queue.slots is not None:
            before = self.queue.range(max_create_revision=str(self.created - 1), keys_only=True)
            found = yield from self._range_if_ours(before, until)
            return None if found is None else {seen.key for seen in self.queue.own(found)}
        limit, created = 1, self.created
        while True:
            more = {"max_create_revision": str(created - 1), "sort_order": "DESCEND", "limit": str(limit)}
            found = yield from self._range_if_ours(self.queue.range(keys_only=True, **more), until)
            if found is None:
                return None
            own = self.queue.own(found)
            if own or len(found) < limit:
                return {own[0].key} if own else set()
            # All are of deeper names (EU2). None of ours can ever be before them, so they need not be read again.
            limit, created = _PAGE, Seen(found[-1]).created

    def is_waiting(self, key: str, until: float) -> Steps[bool]:
        """Whether that key and ours are still there: all that a waiter needs to know, for the price of two keys."""
        found = yield from self._range_if_ours({"key": encoded(key), "keys_only": True}, until)
        return bool(found)

    def take_slot(self, until: float) -> Steps[bool]:
        """Take the lowest free slot (EQ5). False if our key is gone, or all slots are taken (ET5)."""
        if all(slot in self._taken for slot in range(self.queue.room)):
            answer = yield from self._cluster.call("/v3/kv/range", self.queue.slot_range(), until, rounds=math.inf)
            self._note_slots(kvs_of(answer), number(answer["header"]["revision"]))
        for slot in range(self.queue.room):
            if slot in self._taken:
                continue
            key = self.queue.slot_key(slot)
            mine = {"key": encoded(key), "value": encoded(f"{self.lease.id:x}"), "lease": str(self.lease.id)}
            put, look = {"request_put": mine}, {"request_range": self.queue.slot_range()}
            compare = [self.compare(), compare_of(key, 0)]
            answer = yield from self._cluster.transact(until, put, compare=compare, failure=[look], rounds=math.inf)
            if answer.get("succeeded"):
                self.slot, self.token = slot, number(answer["header"]["revision"])
                return True
            self._note_slots(kvs_of(answer["responses"][0]), number(answer["header"]["revision"]))
            if self.slot is not None:  # EQ3
                return True
            if slot not in self._taken:
                return False  # so it was our own key that was missing
        return False

    def slots_in_the_way(self) -> set[str]:
        """The keys of the taken slots, as of the last look."""
        return {self.queue.slot_key(slot) for slot in self._taken if slot < self.queue.room}

    def update(self, facts: Json, until: float) -> Steps[None]:
        """Write other facts, if the key is still ours."""
        self.facts = facts
        yield from self._cluster.transact(until, {"request_put": self._put()}, compare=[self.compare()])

    def leave(self, until: float) -> Steps[bool]:
        """Delete all keys of the holder (EQ4), and wait until that is done. Whether all were still there."""
        return (yield from self._cluster.delete(self._compare_all(), self.keys, until, rounds=math.inf))

    def is_whole(self, until: float) -> Steps[bool]:
        """Whether all keys of the holder are still there."""
        answer = yield from self._cluster.transact(until, compare=self._compare_all(), rounds=math.inf)
        self.revision = number(answer["header"]["revision"])
        return bool(answer.get("succeeded"))

    @property
    def keys(self) -> list[str]:
        """All keys of a holder: its own, and that of its slot."""
        return [self.key] if self.slot is None else [self.key, self.queue.slot_key(self.slot)]

    def compare(self) -> Json:
        """The condition that the key is still ours."""
        return compare_of(self.key, self.created)

    def _compare_all(self) -> list[Json]:
        """The conditions that all keys of a holder are still ours."""
        lease = {"target": "LEASE", "result": "EQUAL", "lease": str(self.lease.id)}
        return [self.compare(), *({"key": encoded(slot), **lease} for slot in self.keys[1:])]

    def _range_if_ours(self, request: Json, until: float) -> Steps[list[Json] | None]:
        compare = [self.compare()]
        answer = yield from self._cluster.transact(until, {"request_range": request}, compare=compare, rounds=math.inf)
        self.revision = number(answer["header"]["revision"])
        return kvs_of(answer["responses"][0]) if answer.get("succeeded") else None

    def _put(self) -> Json:
        value = json.dumps(self.facts, ensure_ascii=False, separators=(",", ":"))
        return {"key": encoded(self.key), "value": encoded(value), "lease": str(self.lease.id)}

    def _note_slots(self, kvs: list[Json], revision: int) -> None:
        self._taken, self.slots_seen = set(), revision
        for seen in map(Seen, kvs):
            slot = self.queue.slot_of(seen)
            if slot is not None and seen.lease == self.lease.id:
                self.slot, self.token = slot, seen.created
            elif slot is not None:
                self._taken.add(slot)


def compare_of(key: str, created: int) -> Json:
    """The condition of a transaction that the key has that revision; 0: that there is none."""
    return {"key": encoded(key), "target": "CREATE", "result": "EQUAL", "create_revision": str(created)}


def kvs_of(response: Json) -> list[Json]:
    """The keys in the answer to a range request, alone or in a transaction."""
    kvs: list[Json] = response.get("response_range", response).get("kvs", [])
    return kvs
