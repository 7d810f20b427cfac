"""A lock in PostgreSQL: an advisory lock of a session, then a row that has the token and says who holds it.

    connect ──▶ try, and token ──▶ hold
                │ held
                ▼
              look ──▶ the time is up: refusal
                │
                ▼
              queue (the server's) ──▶ token ──▶ hold
                │ the connection ends
                ▼
              connect again, until the caller's time is up

PG1  The token comes from the row of the name. It is raised after the lock is acquired, and is on disk before the hold
     is given out (synchronous_commit). So tokens rise over holders, crashes and restarts; sequences and transaction ids
     do not (they went back after kill -9 of the server). A try does both in one statement: its snapshot is older than
     the lock, but ON CONFLICT raises the newest version of a row, whatever the snapshot shows (isolation is `read
     committed`, PC5). A wait does not: the table would be locked for others' DDL meanwhile.
PG2  The high bits of a token are the timeline of the server's log, which a promotion raises: so a token is above every
     token of the old primary, whichever of them the new one has missed (asynchronous replication). It stays below
     2**53. A row of an older version jumps up once; an older version counts on from there.
PG3  One session for each hold and each wait. Advisory locks re-enter within a session, so two holders in one process
     that shared a session would both get in.
PG4  A waiter that gives up leaves the server's queue: by the server's own lock_timeout at the caller's deadline, or
     because the connection is closed. That limit belongs to the statement, not the session: later statements have none
     (PC5).
PG5  Patience is the caller's: a waiter goes on through an outage until its timeout, and forever without one. At the
     first contact it waits only for a server that itself says that it has no session for us now: a caller that cannot
     reach any server may have mistyped the URL, and is told at once. With several servers, a standby that answers shows
     that the URL is right, and that a failover may be under way. A failover has an end, so the caller is told after two
     minutes: the primary's host may be the one that was mistyped.
PG8  A waiter asks now and then, by a second session, whether the server still knows of it. Its own answer may come
     meanwhile, and nobody else reads it: the wait for both sessions ends with it, and the queue collects before each of
     its waits, because bytes that were read from a descriptor no longer make it readable. A session that does not wait
     may have been granted the lock, with the answer on its way: the answer gets time to arrive before we conclude that
     the server has forgotten us.
PG9  A waiter leaves its place only if its own session ends, or if a second session was reached and does not find it in
     the queue. A second session that cannot be had says nothing about the first: a pool is used up, or the server is
     full or slow. The waiter asks again at the next turn.
PG10 A wait that ends in an error may have been granted the lock all the same: its limit, or a cancel request, comes
     just behind the grant, and an error takes back no lock of a session. Whatever lock it has is given back before the
     session's next statement: otherwise the session would get the lock a second time, and give it back only once.
PG11 Of the URL's addresses, a server that takes connections and then does not answer is asked last. A primary whose
     standby has been promoted is one: it cannot commit a token, as no standby confirms it (synchronous replication),
     and a caller that goes on asking the first writable host never gets to the new primary.
PG12 A waiter asks the server at which it waits whether that knows of it, and another of the URL's hosts only if that
     one has no session to give. A host with a newer timeline is the new primary, and it is time to leave; one with an
     older timeline is an old primary that goes on by itself, which says nothing.

A hold is that session, and the heartbeat that shows that it still has the lock.

    server: hears nothing from our machine for `stale_after` ─▶ ends the session, which frees the lock
    here:   the last heartbeat that was answered was sent `lapses` ago, two thirds of that ─▶ lost

PG6  We give up before the server does: a hold lapses two thirds of `stale_after` after the *sending* of the last
     heartbeat that was answered; the server, which has received that later, waits for the whole of it. A broken
     connection shows at once. The time for which the machine slept counts, where the system tells it: the server has
     gone on waiting.
PG7  A hold that is found lost closes its connection. So a later release cannot reach the server, and frees nothing; and
     the server does not keep the lock for a holder that has given it up.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from ..._core.attempt import AttemptEvents, Refusal
from ..._core.hold import HoldRef
from ..._core.options import Options
from ..._core.wait import Steps, Wait, pause
from ..._drivers.agent import Job, agent
from ..._drivers.background import call_aside
from ..._platform.interface import Environment
from ...errors import EngineUnavailable, HoldfastError, InvalidPath
from ...model import Record, Status
from ..base import Engine
from ..remote import Contender, RemoteHold, RemoteRequest, moment
from .connect import (
    NAME,
    STALE_AFTER,
    connect,
    is_failing_over,
    is_passing,
    leave,
    obtain,
    only,
    parse,
    refusal,
    unreachable,
)
from .connection import Broken, Connection, Refused, Row, Silent
from .look import away, comment, free, look_at

T = TypeVar("T")

_REACH_WITHIN = 10.0
"""Seconds for a connection or an answer, where the caller has more time."""
_REACH_AT_LEAST = 3.0
"""Seconds for a connection or an answer if the caller has less: `timeout` is for the wait, and 0 is no reason not to
connect."""
_RETRY_AFTER = 0.1
_RETRY_EVERY = 1.0
"""Seconds between attempts to connect: the first pause, and the longest."""
_GRACE = 1.0
"""Seconds after the caller's deadline in which we wait for the server's word that the time is up."""
_FAIL_OVER_WITHIN = 120.0
"""Seconds of a failover, for a caller at its first contact: after them, hosts without a primary are an error."""
_ASK_EVERY = 60.0
"""Seconds after which a waiter makes sure that the server still knows of it."""
_MOST_SPINS = 20
"""Number of times that a held lock may be found free at once, before that is no coincidence."""
_COUNTED = 40
"""The bits of a token that count holds; the bits above are the timeline's (PG2)."""
_LAST_TIMELINE = 2 ** (53 - _COUNTED) - 1
_TIMED_OUT = "55P03"

_QUEUE = "select set_config('lock_timeout', $2, true), pg_advisory_lock($1)"
_TRY_SHARED = "select pg_try_advisory_xact_lock_shared($1)"
_QUEUE_SHARED = "select set_config('lock_timeout', $2, true), pg_advisory_xact_lock_shared($1)"
_RAISE = """
insert into {table} as l (key, name, token, backend, pid, host, tag, since)
{facts}
on conflict (key) do update
   set token = greatest(l.token + 1, excluded.token), backend = excluded.backend, pid = excluded.pid,
       host = excluded.host, tag = excluded.tag, since = excluded.since
 where l.name = excluded.name
returning token, extract(epoch from since), backend"""
_FACTS = "$1::bigint, $2::text, $6::bigint, pg_backend_pid(), $3::integer, $4::text, $5::text, clock_timestamp()"
_TOKEN = _RAISE.replace("{facts}", f"values ({_FACTS})")
_TRY = f"""
with got as materialized (select pg_try_advisory_lock($1) as it),
raised as ({_RAISE.replace("{facts}", f"select {_FACTS} from got where it")})
select got.it, raised.* from got left join raised on true"""
_WAITING = "select 1 from pg_locks where pid = $1 and locktype = 'advisory' and not granted"


class AcquireAttempt(Contender):
    """One caller, from its first step until it has the lock or has given up."""

    request: PostgresqlRequest

    def __init__(
        self,
        env: Environment,
        requests: Sequence[PostgresqlRequest],
        timeout: float | None,
        context: tuple[object, ...],
    ) -> None:
        super().__init__(env, requests, timeout, context)
        self.lock_url = self.request.lock_url
        self._seen: Status | None = None
        """The status by the last look."""
        self._connection: Connection | None = None
        self._fresh = False
        """Whether it needs a new connection, as one from the pool will not do."""
        self._mute = ""
        """The address of the server that was silent last (PG11)."""
        self._reached = False
        """Whether a server was ever reached (PG5)."""
        self._failures = 0
        """The number of failures to reach the server, and of lost connections, since it last did what it was asked."""
        self._spins = 0
        self._tag = None if self.request.tag is None else self.request.tag.replace("\0", " ")

    # -- what it comes to ----------------------------------------------------------------------------------------------

    def acquire(self) -> Steps[HoldRef | Refusal]:
        result = yield from self._through_failures(shared=False)
        assert not isinstance(result, bool)
        return result or self.refuse()

    def wait_until_free(self) -> Steps[Refusal | None]:
        result = yield from self._through_failures(shared=True)
        return None if result else self.refusal()

    def last(self) -> tuple[Status, ...]:
        return (self._seen or free(self.lock_url.shown),)

    def look_for_people(self) -> Steps[None]:
        try:
            yield from self._look((yield from self._connected(patient=False)))
        except (Broken, Refused, EngineUnavailable):
            pass
        finally:
            self.close()  # a waiter in line needs no session

    def close(self) -> None:
        """Give up the connection (PG4). Never waits. May be interrupted, and is then called again (J3)."""
        connection = self._connection
        if connection is None:
            return
        connection.take()  # PS1: a hold that was interrupted in the making may have given it to the agent
        if connection.is_spare:
            self._connection = None  # before it is kept: it is another's then, perhaps
            leave(connection)
        else:
            connection.abandon()
            self._connection = None

    # -- the steps -----------------------------------------------------------------------------------------------------

    def _through_failures(self, *, shared: bool) -> Steps[HoldRef | bool | None]:
        """Contend, again and again while the server goes away and comes back."""
        while True:
            try:
                return (yield from self._contend(shared=shared))
            except Broken as broken:
                used = self._connection is not None and self._connection.used
                if isinstance(broken, Silent) and self._connection is not None:
                    self._mute, self._fresh = self._connection.address, True  # PG11
                self.close()
                if used:
                    self._fresh = True  # PC7
                    continue
                if self.is_over():
                    raise unreachable(self.lock_url, str(broken)) from None
                yield from self._rest()
            except Refused as refused:
                raise refusal(self.lock_url, refused) from None

    def _contend(self, *, shared: bool) -> Steps[HoldRef | bool | None]:
        """A share; True if `shared` and the lock is free; None when the time is up."""
        while True:
            connection = yield from self._connected()
            connection.spotless = shared
            if shared:
                row = only((yield from connection.ask_again(_TRY_SHARED, (self.lock_url.key,), self._limit())))
            else:
                asked, facts = moment(self.env), self._facts(connection)
                rows = yield from connection.ask_again(self._sql(_TRY), facts, self._limit(), undo=_UNLOCK_ALL)
                row = only(rows)
            if row[0] == "t":
                return shared or self._won(connection, row[1:], asked)
            connection.spotless = True
            self._failures = 0
            status = yield from self._look(connection)
            if not status.locked and self._spins < _MOST_SPINS:
                self._spins += 1
                continue  # released between the two, or another client was testing whether it was free
            if self.is_over():
                return None
            if (yield from self._queue(connection, shared=shared)):
                if shared:
                    return True
                asked = moment(self.env)
                rows = yield from connection.ask_again(self._sql(_TOKEN), self._facts(connection), self._limit())
                return self._won(connection, only(rows or [(None, None, None)]), asked)

    def _look(self, connection: Connection) -> Steps[Status]:
        self._seen = yield from look_at(connection, self.lock_url, self._limit())
        return self._seen

    def _queue(self, connection: Connection, *, shared: bool) -> Steps[bool]:
        """Wait in the server's queue. True once the lock is ours; False: start again, or give up."""
        env = self.env
        left = self.deadline - env.monotonic()
        limit = "0" if left == math.inf else str(max(1, math.ceil(min(left, 2e6) * 1000)))
        connection.spotless = False
        who = env.identity()
        said = comment(who.pid, who.host, self.request.tag)
        connection.send(said + (_QUEUE_SHARED if shared else _QUEUE), (self.lock_url.key, limit))
        ask_at, doubted = env.monotonic() + _ASK_EVERY, False
        while True:
            granted = self._answered(connection)
            if granted is False:
                yield from connection.ask_again(_UNLOCK_ALL, (), self._limit())  # PG10
                connection.spotless = True
            if granted is not None:
                return granted
            now = env.monotonic()
            if now >= self.deadline + _GRACE:
                raise Silent(f"{connection.label} does not answer")
            if now >= ask_at:
                if doubted:
                    raise Silent(f"{connection.label} no longer knows this session")
                doubted = not (yield from self._is_known(connection))
                ask_at = env.monotonic() + (_REACH_WITHIN if doubted else _ASK_EVERY)
                continue  # PG8
            if self.announces:
                yield from self._look_aside(connection)
            self.waiting()
            until = self.deadline + _GRACE if self.is_over() else self.bounded(ask_at)
            yield connection.wait(until)
            self.require_same_process()

    def _answered(self, connection: Connection) -> bool | None:
        """The outcome of the queue: True if the lock is ours, False if the time is up, None without an answer."""
        try:
            return None if connection.collect() is None else True
        except Refused as refused:
            if not (refused.code == _TIMED_OUT or refused.is_cancelled):
                raise
        return False

    def _look_aside(self, connection: Connection) -> Steps[None]:
        """Look up the waiters by another session."""
        limit = self.env.monotonic() + _GRACE
        seen = yield from self._aside(limit, lambda other: look_at(other, self.lock_url, limit), connection.address)
        self._seen = seen or self._seen

    def _is_known(self, connection: Connection) -> Steps[bool]:
        """False if the server says that we do not wait, unless an answer has come that `collect` will read (PG8)."""
        limit = min(self.env.monotonic() + _REACH_WITHIN, self.deadline + _GRACE)
        asking = self._aside(limit, partial(self._ask_for_us, connection, limit), connection.address)
        try:
            while True:
                wait = next(asking)
                if wait.signal is None:
                    wait = Wait((*wait.fds, connection.fd), wait.deadline, None, wait.writes)
                yield wait
                if connection.is_answered():
                    return True
        except StopIteration as end:
            return end.value is None or bool(end.value)  # PG9
        finally:
            asking.close()

    def _ask_for_us(self, ours: Connection, limit: float, other: Connection) -> Steps[bool]:
        """Whether the server of another session, perhaps not that of ours, shows ours as a waiter (PG12)."""
        if other.timeline != ours.timeline:
            return other.timeline < ours.timeline
        return bool((yield from other.ask(_WAITING, (ours.backend,), limit)))

    def _aside(self, limit: float, steps: Callable[[Connection], Steps[T]], first: str) -> Steps[T | None]:
        """The result of these steps by a session of their own, as ours is waiting: at the address `first` or, if that
        has no session to give, another one (PG12). None without an answer."""
        try:
            other = yield from connect(self.env, self.lock_url, limit, first=first)
            try:
                return (yield from steps(other))
            finally:
                other.close()
        except (Broken, Refused, EngineUnavailable):
            return None

    def _sql(self, statement: str) -> str:
        return statement.format(table=self.lock_url.table)

    def _facts(self, connection: Connection) -> tuple[object, ...]:
        """The values for the row of the name (PG1, PG2)."""
        who, lock_url = self.env.identity(), self.lock_url
        lowest = (min(connection.timeline, _LAST_TIMELINE) << _COUNTED) + 1
        return lock_url.key, lock_url.name, who.pid, who.host, self._tag, lowest

    def _won(self, connection: Connection, row: Row, asked: tuple[float, float]) -> HoldRef:
        """A share in the new hold: the lock is ours, and the token is raised."""
        who, lock_url = self.env.identity(), self.lock_url
        if row[0] is None:
            raise HoldfastError(
                f"the name of {lock_url.shown} has the same 64-bit key as another name in that table, so the two would "
                "exclude each other. Choose another name",
                path=lock_url.shown,
                protocol=NAME,
            )
        _silent.pop(connection.label, None)
        token, since, backend = int(row[0]), float(row[1] or 0), int(row[2] or 0)
        if backend != connection.backend:  # PC4: a pooler that tells the true pid, so it did not show before
            raise unreachable(self.lock_url, f"a pooler has moved the session from {connection.backend} to {backend}")
        self.require_same_process()
        fields = {"name": lock_url.name, "session": connection.backend, "token": token}
        record = Record(NAME, fields, who.pid, since, self._tag, who.host)
        held = PostgresqlHold(self.env, self.request, connection, record, token, asked, self.attempt_events)
        try:
            ref = held.ref(self.context)
            self._connection = None  # not before: an interruption closes it
            return ref
        except BaseException:
            held.give_back()
            raise

    # -- with the server -----------------------------------------------------------------------------------------------

    def _connected(self, *, patient: bool = True) -> Steps[Connection]:
        """A session; PG5 says how long to try."""
        if self._connection is not None:
            return self._connection
        while True:
            self.require_same_process()
            try:
                limit, keeps = self._limit(), self.request.keeps
                self._connection = yield from obtain(
                    self.env, self.lock_url, limit, keeps, fresh=self._fresh, last=self._mute
                )
                self._reached = True
                return self._connection
            except EngineUnavailable as error:
                if not patient or self.is_over() or not (self._reached or self._may_pass(error)):
                    raise
                self._seen = away(self.lock_url.shown, error.message.removeprefix(f"{self.lock_url.base} "))
                self.announce(self.refusal)
            yield from self._rest()

    def _may_pass(self, error: EngineUnavailable) -> bool:
        """Whether a caller at its first contact waits for this to end (PG5)."""
        is_early = self.env.monotonic() < self.started + _FAIL_OVER_WITHIN
        return is_passing(error) or (is_early and is_failing_over(error))

    def _rest(self) -> Steps[None]:
        """Pause before the next attempt: longer each time, and not in step with others that have lost the server."""
        longest = min(_RETRY_EVERY, _RETRY_AFTER * 2 ** min(self._failures, 10))
        self._failures += 1
        until = self.env.monotonic() + longest * random.uniform(0.5, 1.0)
        yield from pause(self.env, min(until, self.deadline))

    def _limit(self) -> float:
        """The time limit for an answer of the server."""
        now = self.env.monotonic()
        return min(now + _REACH_WITHIN, max(self.deadline, self.started + _REACH_AT_LEAST, now + 1.0))


_RELEASE_WITHIN = 5.0
_RELEASE_AT_ONCE = 0.2
"""Seconds for a release if the server was silent to one shortly before: a process that ends may have many to make."""
_SHORTLY = 30.0
_silent: dict[str, float] = {}
"""The time until which each server counts as silent: for a while after a release that got all its time, unless it
answers before."""
_SHORTEST, _LONGEST = 3, 86400
"""Seconds: the limits of `stale_after`."""
_BEAT = "select pg_backend_pid()"
_UNLOCK = "select pg_advisory_unlock($1)"
_UNLOCK_ALL = "select pg_advisory_unlock_all()"


class PostgresqlRequest(RemoteRequest):
    """A request for one lock, and its heartbeats. ValueError for numbers that do not go together."""

    __slots__ = ("lock_url",)

    def __init__(self, engine: Engine, resource: object, options: Options) -> None:
        if not isinstance(resource, str):
            raise InvalidPath(f"a lock on {NAME} is named by a URL, a str", protocol=NAME)
        self.lock_url = parse(resource)
        super().__init__(engine, resource, self.lock_url.shown, options, frozenset({"heartbeat", "stale_after"}))
        if self.lease is not None and not _SHORTEST <= self.lease <= _LONGEST:
            raise ValueError(
                f"stale_after must be from {_SHORTEST:g} to {_LONGEST:g} seconds for a lock on {NAME}, not "
                f"{self.lease:g}"
            )
        if self.lease is not None and self.every != math.inf and self.every > self.lease / 3:
            raise ValueError(
                f"heartbeat must be at most a third of stale_after ({self.lease / 3:g} s), not {self.every:g} s: a "
                "hold lapses after two thirds without an answer"
            )

    @property
    def full_name(self) -> str:
        return self.lock_url.name  # PC2

    @property
    def server(self) -> tuple[str, ...]:
        return self.lock_url.server

    @property
    def keeps(self) -> float:
        """`stale_after`, or its default, in seconds."""
        beats = 0.0 if self.beat_every == math.inf else self.beat_every
        return self.lease or max(STALE_AFTER, 6 * beats)

    @property
    def every(self) -> float:
        """Seconds between heartbeats."""
        return self.beat_every or self.keeps / 6


class PostgresqlHold(RemoteHold):
    """A hold of a lock in PostgreSQL: see the head of this module."""

    __slots__ = ("_every", "_job", "_left", "_patience", "connection")

    request: PostgresqlRequest

    def __init__(
        self,
        env: Environment,
        request: PostgresqlRequest,
        connection: Connection,
        record: Record,
        token: int,
        asked: tuple[float, float],
        attempt_events: AttemptEvents,
    ) -> None:
        self.connection = connection
        self._left = False
        """Whether the session has been given back to the pool."""
        self._every = request.every
        self._patience = math.inf if self._every == math.inf else request.keeps * 2 / 3
        self._job: Job | None = None  # from the next line on, it may be interrupted and given back
        super().__init__(env, request, request.key, record, token)
        self.attempt_events = attempt_events
        self.term.extend(asked, self._patience)
        connection.keeper = self
        try:
            due = asked[0] + self._every
            first = connection.wait(min(due, self.term.lapses))
            self._job = agent(env).start(self._keeping(asked, due), f"while keeping {self.path}", first=first)
        except BaseException:  # no thread can be started
            connection.take()
            self._forget()
            raise

    def _keeping(self, asked: tuple[float, float], due: float) -> Steps[None]:
        """Send heartbeats, and watch for the end of the connection; in the agent's thread, from the first wait on."""
        connection = self.connection
        while True:
            try:
                with connection.mutex:
                    if connection.keeper is not self:  # PS1
                        return
                    if not connection.busy:
                        connection.hear()
                        if self.env.monotonic() >= due:
                            asked, due = moment(self.env), math.inf
                            connection.send(_BEAT)
                    else:
                        due = self._heard(connection, asked, due)
                    if not self._is_ours() or self.lost:
                        raise Broken(
                            f"no heartbeat was answered for {self._patience:g} s; {connection.label}, the network, "
                            "or this process has stalled"
                        )
            except (Broken, Refused) as error:
                with connection.mutex:
                    if connection.keeper is not self:
                        return
                    connection.keeper = None
                    connection.close()  # PG7
                call_aside(partial(self.lose, str(error)), f"in on_lost for {self.path}")
                return
            yield connection.wait(min(due, self.term.lapses))

    def _heard(self, connection: Connection, asked: tuple[float, float], due: float) -> float:
        """The time of the next heartbeat, after a look for the answer to the one that was sent at `asked`."""
        try:
            answer = connection.collect()
        except Refused as refused:
            if not refused.is_cancelled:
                raise
            return self.env.monotonic()  # PS6
        if answer is None:
            return due
        backend = int(answer[0][0] or 0)
        if backend != connection.backend:
            raise Broken(f"a pooler has moved the connection from session {connection.backend} to {backend}")
        _silent.pop(connection.label, None)
        self.term.extend(asked, self._patience)  # PG6
        return asked[0] + self._every

    def _give_up(self) -> Steps[bool]:
        connection, now = self.connection, self.env.monotonic()
        was_silent = _silent.get(connection.label, 0.0) > now
        until = now + (_RELEASE_AT_ONCE if was_silent else _RELEASE_WITHIN)
        self._take()
        try:
            was_ours = yield from self._unlock(connection, until)
        except (Broken, Refused) as error:
            if not was_silent and self.env.monotonic() >= until:  # a short one proves nothing
                _silent[connection.label] = until + _SHORTLY
            self.why_lost = self.why_lost or f"when it was released: {error}"
            return False
        _silent.pop(connection.label, None)
        if not was_ours:
            self.why_lost = "the server says that this session did not hold it"
            return False
        connection.spotless = True
        return True

    def _unlock(self, connection: Connection, until: float) -> Steps[bool]:
        """Unlock. Whether the session had the lock."""
        cancelled = 0
        while True:
            is_beat = connection.busy
            try:
                if is_beat:
                    yield from connection.answer(until)
                    continue
                rows = yield from connection.ask_often(_UNLOCK, (self.request.lock_url.key,), until)
                return rows[0][0] == "t" or cancelled > 0  # PS6: the one that was cancelled has given it up
            except Refused as refused:
                if not refused.is_cancelled or cancelled == _MOST_SPINS:
                    raise
                cancelled += not is_beat

    def _take(self) -> None:
        """Take the connection back (PS1). The agent must not wake up for the answers to come, either."""
        self.connection.take()
        if self._job is not None:
            self._job.stop()

    def _close(self) -> None:
        if self._left:
            return  # another hold's by now, perhaps
        self._take()
        self._left = self.connection.spotless  # before it is kept: without the lock, it does no harm if it is not
        leave(self.connection)
