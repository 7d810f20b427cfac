"""A hold in PostgreSQL: a session that has the advisory lock, and the heartbeat that shows that it still does.

    server: hears nothing from our machine for `stale_after` ─▶ ends the session, which frees the lock
    here:   the last heartbeat that was answered was sent `lapses` ago, two thirds of that ─▶ lost

PG11  We give up before the server does: a hold lapses two thirds of `stale_after` after the *sending* of the last
      heartbeat that was answered; the server, which has heard that one later, waits for the whole of it. What breaks
      the connection shows at once.
PG13  A hold that is lost closes its connection, whoever found that out, so a release after it cannot reach the server,
      and frees nothing; and the server keeps the lock for nobody who does not believe in it.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from functools import partial

from ..._core.attempt import Story
from ..._core.wait import Wait
from ..._drivers.agent import agent
from ..._drivers.background import call_aside
from ..._platform.interface import Environment
from ...model import Record
from ..remote import RemoteHeld, RemoteRequest
from .connect import STALE_AFTER, LockUrl
from .connection import Broken, Connection, Refused
from .pool import leave

_RELEASE_WITHIN = 5.0
_RELEASE_AT_ONCE = 0.2
"""Seconds, where the server has not answered a release shortly before: a process that ends may have many to make."""
_SHORTLY = 30.0
_silent: dict[str, float] = {}
"""Until when a server counts as one that does not answer."""
_SHORTEST = 3.0
_BEAT = "select pg_backend_pid()"
_UNLOCK = "select pg_advisory_unlock($1)"


class PostgresqlRequest(RemoteRequest):
    """One lock, and how often its hold is proven."""

    __slots__ = ("lock_url",)

    lock_url: LockUrl

    @property
    def key(self) -> tuple[object, ...]:
        """What this process knows its hold by."""
        return ("postgresql", self.lock_url.conninfo, self.lock_url.schema, self.lock_url.name)

    @property
    def keeps(self) -> float:
        """`stale_after`, or what stands for it."""
        beats = 0.0 if self.beat_every == math.inf else self.beat_every
        return self.lease or max(STALE_AFTER, 6 * beats)

    @property
    def every(self) -> float:
        """Seconds between heartbeats."""
        return self.beat_every or self.keeps / 6

    def check(self) -> None:
        """ValueError for numbers that do not go together."""
        if self.lease is not None and (self.lease < _SHORTEST or self.lease > 86400):
            raise ValueError(
                f"stale_after is from {_SHORTEST:g} to 86400 seconds for a lock on postgresql, not {self.lease:g}"
            )
        if self.lease is not None and self.every != math.inf and self.every > self.lease / 3:
            raise ValueError(
                f"heartbeat is at most a third of stale_after ({self.lease / 3:g} s), not {self.every:g} s: a hold "
                "lapses after two thirds without an answer"
            )


class PostgresqlHeld(RemoteHeld):
    """See the head of this module."""

    __slots__ = ("_every", "_job", "_patience", "connection")

    def __init__(
        self,
        env: Environment,
        request: PostgresqlRequest,
        connection: Connection,
        record: Record,
        token: int,
        sent: float,
        story: Story,
    ) -> None:
        self.connection = connection
        self._every = request.every
        self._patience = math.inf if self._every == math.inf else request.keeps * 2 / 3
        super().__init__(env, request, request.key, record, token)
        self.story = story
        self.lapses = sent + self._patience
        connection.keeper = self
        try:
            due = sent + self._every
            first = connection.wait(min(due, self.lapses))
            self._job = agent(env).start(self._keeping(sent, due), f"while keeping {self.path}", first=first)
        except BaseException:  # no thread is to be had
            connection.take()
            self._forget()
            raise

    def _keeping(self, sent: float, due: float) -> Generator[Wait, None, None]:
        """In the agent's thread, from the first wait on: beat, and watch for the end of the connection."""
        connection = self.connection
        while True:
            try:
                with connection.mutex:
                    if connection.keeper is not self:  # PG3
                        return
                    now = self.env.monotonic()
                    if not connection.busy:
                        connection.hear()
                        if now >= due:
                            connection.send(_BEAT)
                            sent, due = now, math.inf
                    else:
                        answer = connection.collect()
                        if answer is not None:
                            self._require_same(int(answer[0][0] or 0))
                            self.lapses, due = sent + self._patience, sent + self._every  # PG11
                    if now >= self.lapses or self.lost:
                        raise Broken(
                            f"no heartbeat was answered for {self._patience:g} s; {connection.label}, the way there, "
                            "or this process has stood still"
                        )
            except (Broken, Refused) as error:
                with connection.mutex:
                    if connection.keeper is not self:
                        return
                    connection.keeper = None
                    connection.close()  # PG13
                call_aside(partial(self.lose, str(error)), f"in on_lost for {self.path}")
                return
            yield connection.wait(min(due, self.lapses))

    def _require_same(self, backend: int) -> None:
        if backend != self.connection.backend:
            raise Broken(f"a pooler has moved the connection from session {self.connection.backend} to {backend}")

    def _give_up(self) -> Generator[Wait, None, bool]:
        connection, now = self.connection, self.env.monotonic()
        until = now + (_RELEASE_AT_ONCE if _silent.get(connection.label, 0.0) > now else _RELEASE_WITHIN)
        self._take()
        try:
            if connection.busy:
                yield from connection.answer(until)  # a heartbeat was under way
            rows = yield from connection.ask_often(_UNLOCK, (self.request_key,), until)
        except (Broken, Refused) as error:
            if self.env.monotonic() >= until:
                _silent[connection.label] = until + _SHORTLY
            self.why_lost = self.why_lost or f"when it was released: {error}"
            return False
        _silent.pop(connection.label, None)
        if rows[0][0] != "t":
            self.why_lost = "the server says that this session did not have it"
            return False
        connection.spotless = True
        return True

    @property
    def request_key(self) -> int:
        request = self.request
        assert isinstance(request, PostgresqlRequest)
        return request.lock_url.key

    def _take(self) -> None:
        """PG3. The agent is not to wake up for the answers to come, either."""
        self.connection.take()
        self._job.stop()

    def _close(self) -> None:
        self._take()
        leave(self.connection)
