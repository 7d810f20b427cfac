"""`watch` for locks on a server: what has changed from one look at all of them to the next, as events."""

from __future__ import annotations

import argparse
import time

from .._core.environment import Wait
from .._drive.sync import drive
from .._operator.happening import Happening
from .._os import environment
from ..engines import engine_of
from ..model import Status, Waiter
from . import DONE, show
from .following import as_line
from .recording import Record
from .urls import id_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator


def watch_(options: argparse.Namespace) -> int:
    """Tell until a signal, or the end of the time."""
    if len(options.places) > 1:
        raise ValueError("watch one URL at a time, and nothing beside it: start another watch for the others")
    (url,) = options.places
    record = Record(options.record) if options.record is not None else None
    changes = Changes()

    def tell(statuses: tuple[Status, ...]) -> None:
        lines = [as_line(one) for one in changes.since(statuses, time.time())]
        if record is not None:
            for line in lines:
                record.add(line)
        if lines:
            show("\n".join(lines))

    steps = engine_of(url).follow(environment(), url, tell)
    drive(steps if options.seconds is None else _bounded(steps, time.monotonic() + options.seconds))
    return DONE


def _bounded(steps: Generator[Wait, None, None], until: float) -> Generator[Wait, None, None]:
    """The same, up to a moment."""
    try:
        for wait in steps:
            if time.monotonic() >= until:
                return
            yield wait.replaced(deadline=min(wait.deadline, until))
            if time.monotonic() >= until:
                return
    finally:
        steps.close()


class Changes:
    """Makes events of what is seen. What begins and ends between two looks is not seen."""

    def __init__(self) -> None:
        self._seen: dict[str, Status] = {}
        self._since: dict[str, float] = {}
        self._first = True

    def since(self, statuses: tuple[Status, ...], now: float) -> list[Happening]:
        """What has happened since the last call."""
        seen = {status.path: status for status in statuses}
        told: list[Happening] = []
        for path in sorted({*self._seen, *seen}):
            told += self._of_lock(self._seen.get(path), seen.get(path), now)
        self._seen, self._first = seen, False
        return told

    def _of_lock(self, old: Status | None, new: Status | None, now: float) -> list[Happening]:
        told: list[Happening] = []
        before, after = old and id_of(old), new and id_of(new)
        were = {_who(one): one for one in (old.waiters if old else ())}
        are = {_who(one): one for one in (new.waiters if new else ())}
        if old and before and before != after:
            told.append(_of_holder("released", old, now, held=now - self._since.pop(old.path, now)))
        if new and after and before != after:
            holder = new.holder
            waited = [one.since for who, one in were.items() if holder and who[0] == holder.pid and who not in are]
            since = holder.since if holder is not None and holder.since is not None else now
            self._since[new.path] = since
            kind, moment = ("held", since) if self._first else ("acquired", now)
            known = waited[0] if waited else None
            told.append(_of_holder(kind, new, moment, waited=None if known is None else max(0.0, now - known)))
            if self._first:
                told[-1] = told[-1].replaced(first_look=True)
        got = new.holder.pid if new and new.holder and before != after else None
        for who, one in were.items():
            if who not in are and one.pid != got and old is not None:
                told.append(_of_waiter("gave-up", old, one, now))
        for who, one in are.items():
            if who not in were and new is not None:
                at = one.since if self._first and one.since is not None else now
                told.append(_of_waiter("waiting", new, one, at).replaced(first_look=self._first))
        return told


def _who(waiter: Waiter) -> tuple[object, ...]:
    return waiter.pid, waiter.since, waiter.tag


def _of_holder(
    kind: str, status: Status, at: float, *, waited: float | None = None, held: float | None = None
) -> Happening:
    holder = status.holder
    who = (None, None, None, None) if holder is None else (holder.pid, holder.host, holder.tag, holder.command)
    return Happening(kind, at, status.path, status.protocol, *who, waited, held)


def _of_waiter(kind: str, status: Status, who: Waiter, at: float) -> Happening:
    waited = max(0.0, at - who.since) if kind == "gave-up" and who.since is not None else None
    return Happening(kind, at, status.path, status.protocol, who.pid, None, who.tag, who.command, waited)
