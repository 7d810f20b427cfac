"""Looks at locks on etcd: holders and waiters, as values for people. Nothing is changed.

EO1  A look is one read of all keys of a lock, so it is true of one moment. It reports the server's word that a lease
     lives, not that its holder does; a dead holder keeps the lock until its lease ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..._core.options import MOST_SLOTS, as_number
from ..._core.wait import Steps, Wait, pause
from ..._platform.interface import Environment
from ..._platform.values import RECHECK
from ...errors import EngineUnavailable
from ...liveness import Liveness
from ...model import Evidence, Holder, Record, Status, Waiter
from .client import Cluster, cluster_of
from .http import Unreachable
from .queue import Queue, Seen, kvs_of
from .url import LockUrl, lease_of
from .wire import Refused, Watch, encoded, end_of, number

NAME = "etcd"
ANSWER = 5.0
"""Seconds that a look may take."""
_AGAIN = 1.0


def record_of(seen: Seen, token: int | None = None) -> Record:
    """The record of a key's owner. If the key is not holdfast's, only the key itself is known."""
    value = seen.value
    fields: dict[str, Any] = {**value, "key": seen.key, "create_revision": seen.created}
    fields["token"] = seen.created if token is None else token
    if seen.lease:
        fields["lease"] = f"{seen.lease:x}"
    pid = value.get("pid")
    pid = pid if isinstance(pid, int) and not isinstance(pid, bool) else None
    since, tag, host = _number(value.get("since")), _text(value.get("tag")), _text(value.get("host"))
    return Record(NAME, fields, pid, since, tag, host, legible=bool(value))


def statuses_of(env: Environment, queue: Queue, shown: str, seen: list[Seen], slots: list[Seen]) -> tuple[Status, ...]:
    """One status for each slot, or for the lock, from the keys in their order (EO1)."""
    now = env.time()
    tokens = {one.lease: one.created for one in slots}
    placed = _placed(queue, seen, slots)
    inside = {one.key for one in placed.values()}
    outside = [one for one in seen if one.key not in inside]
    numbered = enumerate(map(record_of, outside), 1)
    waiters = tuple([Waiter(position, one.pid or 0, one.created, one.tag) for position, one in numbered])
    found = []
    for slot in range(queue.room):
        path = shown if queue.slots is None else f"{shown}#{slot}"
        one_inside = placed.get(slot)
        token = None if one_inside is None else tokens.get(one_inside.lease)
        found.append(_status(path, one_inside, token, now).replaced(waiters=waiters))
    return tuple(found)


def _placed(queue: Queue, seen: list[Seen], slots: list[Seen]) -> dict[int, Seen]:
    """The contender that has each slot; for a slot that no contender has, the slot's own key (ET5)."""
    by_lease = {one.lease: one for one in seen}
    placed: dict[int, Seen] = {}
    for one in slots:
        slot = queue.slot_of(one)
        if slot is not None and slot < queue.room and queue.slots is not None:
            placed[slot] = by_lease.get(one.lease, one)
    inside = {one.key for one in placed.values()}
    free = [slot for slot in range(queue.room) if slot not in placed]
    homeless = [one for one in seen[: queue.room] if one.key not in inside]
    # Inside, but without a slot yet, or with one that we know nothing of. The one slot of a lock has no key.
    placed.update(zip(free, homeless, strict=False))
    return placed


def _status(path: str, holder: Seen | None, token: int | None, now: float) -> Status:
    if holder is None:
        nothing = Evidence("server", "etcd has no key of a holder", proven=True)
        return Status(path, NAME, False, False, Liveness.UNKNOWN, nothing, reason="nobody holds it")
    record = record_of(holder, token)
    ttl = record.fields.get("ttl")
    atmost = f"; if its holder has died, for {ttl} s at the most" if isinstance(ttl, int) else ""
    liveness, says, frees = Liveness.ALIVE, f"etcd keeps its lease{atmost}", "etcd frees it when its lease ends"
    if not holder.lease:  # another program's: holdfast puts no such key
        says = f"the key {holder.key!r} has no lease: it stays until it is deleted, etcdctl del {holder.key!r}"
        liveness, frees = Liveness.UNKNOWN, "etcd frees it when its key is deleted"
    who = Holder(record.pid, record.host, record.created, record.tag)
    age = None if record.created is None else max(0.0, now - record.created)
    evidence = Evidence("server", says)
    return Status(path, NAME, True, False, liveness, evidence, who, record, frees, age, data=holder.data)


def keys_of(cluster: Cluster, queue: Queue, until: float) -> Steps[tuple[list[Seen], list[Seen], int]]:
    """All keys of a lock, the keys of its slots, and the revision of that look."""
    wanted = {"request_range": queue.range()}, {"request_range": queue.slot_range()}
    answer = yield from cluster.transact(until, *wanted)
    first, second = answer["responses"]
    return queue.own(kvs_of(first)), [Seen(kv) for kv in kvs_of(second)], number(answer["header"]["revision"])


def first_of(cluster: Cluster, queue: Queue, until: float, waiters: int = 0) -> Steps[tuple[list[Seen], list[Seen]]]:
    """The keys of the holders, of at most `waiters` waiters, and of the slots, however many wait (ET6)."""
    first = {"request_range": queue.range(limit=str(queue.room + waiters))}
    answer = yield from cluster.transact(until, first, {"request_range": queue.slot_range()})
    found, slots = map(kvs_of, answer["responses"])
    seen = queue.own(found)
    if len(seen) < len(found):  # some of them are of deeper names (EU2)
        seen, _, _ = yield from keys_of(cluster, queue, until)
    return seen, [Seen(kv) for kv in slots]


def look_at_slot(env: Environment, lock_url: LockUrl) -> Steps[tuple[Status, list[Seen]]]:
    """The status of the one slot that the URL names, and the keys of all slots."""
    queue = Queue(lock_url, 1)
    seen, slots, _ = yield from keys_of(cluster_of(env, lock_url.access), queue, env.monotonic() + ANSWER)
    statuses = _statuses_of_slots(env, lock_url, seen, slots)
    assert lock_url.slot is not None
    if lock_url.slot < len(statuses):
        return statuses[lock_url.slot], slots
    return _status(f"{lock_url.shown}#{lock_url.slot}", None, None, env.time()), slots


def _statuses_of_slots(env: Environment, lock_url: LockUrl, seen: list[Seen], slots: list[Seen]) -> tuple[Status, ...]:
    """The statuses of a semaphore whose number of slots only its contenders know."""
    numbers = [one.value.get("slots") for one in seen]
    room = max([one for one in numbers if isinstance(one, int) and 0 < one <= MOST_SLOTS] or [len(slots) or 1])
    return statuses_of(env, Queue(lock_url, room), lock_url.shown, seen, slots)


def survey(env: Environment, lock_url: LockUrl) -> Steps[tuple[tuple[Status, ...], int]]:
    """The statuses of all locks whose names begin with the URL's, or of the one slot that it names, sorted by path, and
    the revision of that look."""
    begin = f"{lock_url.prefix}{lock_url.name}"
    body = {"key": encoded(begin or "\0"), "range_end": end_of(begin), "sort_target": "CREATE", "sort_order": "ASCEND"}
    answer = yield from cluster_of(env, lock_url.access).call("/v3/kv/range", body, env.monotonic() + ANSWER)
    locks: dict[str, list[Seen]] = {}
    semaphores: dict[str, tuple[list[Seen], list[Seen]]] = {}
    for seen in map(Seen, kvs_of(answer)):
        head, _, last = seen.key[len(lock_url.prefix) :].rpartition("/")
        if last.startswith("#"):
            semaphores.setdefault(head, ([], []))[1].append(seen)
        elif head.endswith("/#"):
            semaphores.setdefault(head[:-2], ([], []))[0].append(seen)
        elif head and lease_of("", last) is not None:
            locks.setdefault(head, []).append(seen)
    found: list[Status] = []
    for name, keys in locks.items():
        found += statuses_of(env, Queue(lock_url.replaced(name=name), None), lock_url.shown_as(name), keys, [])
    for name, (keys, slots) in semaphores.items():
        url = lock_url.replaced(name=name, shown=lock_url.shown_as(name))
        found += [status for status in _statuses_of_slots(env, url, keys, slots) if status.locked]
    if lock_url.slot is not None:
        found = [status for status in found if status.path == f"{lock_url.shown}#{lock_url.slot}"]
    return tuple(sorted(found, key=lambda status: status.path)), number(answer["header"]["revision"])


def follow(env: Environment, lock_url: LockUrl, tell: Callable[[tuple[Status, ...]], object]) -> Steps[None]:
    """Call `tell` with the current statuses, and again after every change, by a watch on all those keys. Waits for a
    server that is gone for a while."""
    cluster, begin = cluster_of(env, lock_url.access), f"{lock_url.prefix}{lock_url.name}"
    where = {"key": encoded(begin or "\0"), "range_end": end_of(begin)}
    statuses, revision = yield from survey(env, lock_url)
    tell(statuses)
    while True:
        watch: Watch | None = None
        try:
            watch = yield from cluster.watch([where], revision, env.monotonic() + ANSWER, puts=True)
            recheck, canceled = math.inf, False
            while not canceled:
                results = watch.take()
                canceled = any(result.get("canceled") for result in results)
                stuck = env.monotonic() >= recheck  # a stream that is stuck says nothing
                if canceled or stuck or any(result.get("events") for result in results):
                    statuses, revision = yield from survey(env, lock_url)
                    tell(statuses)
                if not canceled:
                    recheck = env.monotonic() + RECHECK
                    yield Wait((watch.fd,), recheck)
        except (Unreachable, EngineUnavailable):
            pass
        except Refused as error:
            if not cluster.forget_token(error):
                raise
        finally:
            if watch is not None:
                watch.close()
        yield from pause(env, env.monotonic() + _AGAIN)


def _number(value: Any) -> float | None:
    try:
        return as_number("since", value, "a number")
    except TypeError:
        return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
