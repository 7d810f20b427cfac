"""Locks on etcd: `etcd://host:2379,host2:2379/name` and, with TLS, `etcds://…`. docs/etcd.md says what they promise.

url.py      what a URL says                   lock.py     acquiring, waiting, holding
queue.py    the keys, their order, the lease  look.py     who holds and who waits, for people
client.py   the cluster, whichever server answers
http.py     one connection                    wire.py     what etcd's answers mean
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..._core.attempt import Refusal
from ..._core.hold import HoldRef
from ..._core.options import Options, Request, check_slots
from ..._core.wait import Steps
from ..._platform.interface import Environment
from ...errors import EngineUnavailable, HoldfastError, InvalidPath
from ...model import Record, Status
from ..remote import RemoteEngine
from .client import cluster_of
from .lock import AcquireAttempt
from .look import ANSWER, follow, keys_of, look_at_slot, record_of, statuses_of, survey
from .queue import Queue, compare_of
from .url import EtcdRequest, LockUrl, parse
from .wire import Refused


class Etcd(RemoteEngine):
    """The engine on etcd. It keeps nothing: connections belong to the process (client.py)."""

    name = "etcd"
    contender = AcquireAttempt

    def request(self, resource: str | os.PathLike[str], options: Options) -> Request:
        return EtcdRequest(self, str(resource), options)

    def slots(self, resource: str | os.PathLike[str], slots: int, options: Options) -> tuple[Request, ...]:
        check_slots(slots)
        return tuple([EtcdRequest(self, str(resource), options, slot) for slot in range(slots)])

    def acquire(
        self, env: Environment, requests: Sequence[EtcdRequest], timeout: float | None, context: tuple[object, ...]
    ) -> Steps[HoldRef | Refusal]:
        _require_whole(requests[0])
        with _told(requests[0].lock_url):
            return (yield from super().acquire(env, requests, timeout, context))

    def wait_until_free(
        self, env: Environment, requests: Sequence[EtcdRequest], timeout: float | None, context: tuple[object, ...]
    ) -> Steps[Refusal | None]:
        _require_whole(requests[0])
        with _told(requests[0].lock_url):
            return (yield from super().wait_until_free(env, requests, timeout, context))

    def look(self, env: Environment, requests: Sequence[EtcdRequest]) -> Steps[tuple[Status, ...]]:
        first = requests[0]
        with _told(first.lock_url):
            if first.lock_url.slot is not None:
                status, _ = yield from look_at_slot(env, first.lock_url)
                return (status,)
            queue = Queue(first.lock_url, None if first.slot is None else len(requests))
            cluster = cluster_of(env, first.lock_url.access)
            seen, slots, _ = yield from keys_of(cluster, queue, env.monotonic() + ANSWER)
        return statuses_of(env, queue, first.target, seen, slots)

    def break_if(
        self, env: Environment, request: EtcdRequest, agreed: Callable[[Record], bool]
    ) -> Steps[Record | None]:
        """Delete the holder's key, if it is still the one that was seen. The holder watches it (ET8).

        If the URL names one slot, delete the slot's key, too: its holder may be dead, and its lease long.
        """
        lock_url = request.lock_url
        cluster, until = cluster_of(env, lock_url.access), env.monotonic() + ANSWER
        with _told(lock_url):
            if lock_url.slot is None:
                seen, slots, _ = yield from keys_of(cluster, Queue(lock_url, None), until)
                record = record_of(seen[0]) if seen else None
            else:
                status, slots = yield from look_at_slot(env, lock_url)
                record = status.record
            if record is None or not agreed(record):
                return None
            found = {record.fields["key"]: record.fields["create_revision"]}
            found |= {one.key: one.created for one in slots if one.key == f"{lock_url.slots}{lock_url.slot}"}
            compare = [compare_of(key, created) for key, created in found.items()]
            deleted = yield from cluster.delete(compare, list(found), env.monotonic() + ANSWER)
            return record if deleted else None

    def survey(self, env: Environment, resource: str) -> Steps[tuple[Status, ...]]:
        """All locks and taken slots whose names begin with the one in the URL, which may be empty. One read."""
        lock_url = parse(resource, many=True)
        with _told(lock_url):
            return (yield from survey(env, lock_url))[0]

    def follow(self, env: Environment, resource: str, tell: Callable[[tuple[Status, ...]], object]) -> Steps[None]:
        """Call `tell` with what `survey` finds, at once and after every change, by a watch. Never ends.

        Of changes that come together only the last state is reported. EngineUnavailable if no server can be reached at
        the beginning; later, it waits for one.
        """
        lock_url = parse(resource, many=True)
        with _told(lock_url):
            yield from follow(env, lock_url, tell)


def guard(record: Record) -> dict[str, Any]:
    """The condition of a transaction of your own: that this hold is still the one that etcd knows.

    `record` is `Hold.record`. Put it into `compare` of a request to `/v3/kv/txn`; `success` is done only if the key of
    the hold is still there, with its `create_revision`. So the server itself fences the transaction: no pause, no
    partition and no wrong clock lets a holder write after it has lost the lock.

    ValueError for a record that is not from a hold on etcd.
    """
    key, created = record.fields.get("key"), record.fields.get("create_revision")
    if record.protocol != "etcd" or not isinstance(key, str) or not isinstance(created, int):
        raise ValueError(f"a guard is for Hold.record of a lock on etcd, not for {record!r}")
    return compare_of(key, created)


def _require_whole(request: EtcdRequest) -> None:
    if request.lock_url.slot is not None:
        raise InvalidPath(
            f"{request.target} is one slot of a semaphore, which can be looked at and broken; to get one, acquire "
            f"Semaphore({request.lock_url.shown!r}, N), or run --slots N",
            path=request.target,
            protocol="etcd",
        )


@contextmanager
def _told(lock_url: LockUrl) -> Iterator[None]:
    """Turn a server's refusal into an error that says what to do."""
    try:
        yield
    except Refused as error:
        raise _refusal(lock_url, error) from None
    except EngineUnavailable as error:
        if error.path is None:
            error.path = lock_url.shown
        raise


def _refusal(lock_url: LockUrl, error: Refused) -> HoldfastError:
    text, user = error.message, lock_url.access.user
    if "permission denied" in text:
        begin = f"{lock_url.prefix}{lock_url.name}"
        what = f"{text}. Grant its role: etcdctl role grant-permission ROLE readwrite --prefix=true {begin!r}"
    elif "user name is empty" in text:
        what = f"{text}: it requires a user. Write etcd://USER@HOST/NAME, with the password in HOLDFAST_ETCD_PASSWORD"
    elif "authentication" in text:
        what = f"{text}. Check the user, and the password: in the URL, its password_file=, or HOLDFAST_ETCD_PASSWORD"
    elif "space exceeded" in text:
        what = f"{text}. Compact and defragment it, then etcdctl alarm disarm"
    else:
        what = text
    who = f" the user {user!r}" if user else ""
    return EngineUnavailable(
        f"etcd at {lock_url.access.names()} refuses{who}: {what}", path=lock_url.shown, protocol="etcd"
    )


ENGINE = Etcd()
