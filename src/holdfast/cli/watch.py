"""`watch`: print the events of locks as they happen, a line of JSON for each.

`follow` and `lock_events` follow lock files, for `top` as well. A server tells the present state, and no events: there,
events are the differences between one look and the next (`Changes`).
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from .._admin.monitor import Follower, LockEvent, of_holder
from .._core.wait import Steps
from .._drivers.apart import seen_at
from .._drivers.sync import drive
from .._platform import environment
from ..engines import engine_of
from ..model import Status, Waiter
from .console import Recording, line_of, url_id_of
from .locks import absolute, is_pattern, is_url
from .options import Namespace
from .outcome import DONE, die_of, say, show

_LONGEST_WAIT = 3600.0
_MOMENT = 0.002
"""Seconds for which events are gathered, so that a storm of them costs one look at each file."""
_ENDED: int = getattr(select, "POLLERR", 0) | getattr(select, "POLLHUP", 0)


def as_line(one: LockEvent) -> str:
    """An event as one line of JSON, with all its fields."""
    values = {name: getattr(one, name) for name in one._fields if name != "first_look"}
    if one.first_look:
        values["first_look"] = True
    return line_of(values)


def follow(places: Iterable[str]) -> Follower:
    """A follower of these directories, locks and patterns; OSError for one whose directory is not there. A pattern of
    directories is expanded now; one of the names in them also matches names that come later."""
    env = environment()
    follower = Follower(env, env.folder_watch())
    for place in places:
        is_there = seen_at(place, partial(os.path.lexists, place))  # its server has to answer
        if is_pattern(place) and not is_there:
            for directory, pattern in _expanded(place):
                follower.add(directory, pattern, pattern=pattern is not None)
            continue
        path = absolute(place)
        if os.path.isdir(path):
            follower.add(path)
        else:
            directory, name = os.path.split(path)
            follower.add(directory, name)
    return follower


def _expanded(place: str) -> list[tuple[str, str | None]]:
    """The directories of a pattern, each with a pattern of the names in it, or None for all of them."""
    from glob import escape, glob

    where, name = os.path.split(absolute(place))
    parents = sorted(glob(f"{where}/", recursive=True)) if is_pattern(where) else [where]
    found: list[tuple[str, str | None]] = []
    for parent in map(absolute, parents):
        if name != "**":
            found.append((parent, name))
        below = sorted(glob(f"{escape(parent)}/{name}/", recursive=True))
        found += [(absolute(directory), None) for directory in below]
    if not found:
        raise FileNotFoundError(errno.ENOENT, "no directory fits this pattern", place)
    return found


def lock_events(
    follower: Follower,
    until: float | None,
    *,
    also: Iterable[int] = (),
    pause: Callable[[], float] = lambda: _LONGEST_WAIT,
) -> Iterator[list[LockEvent] | None]:
    """Events as they happen; None if only the time of `pause` (in seconds) has passed, or one of the descriptors `also`
    is ready. Ends at `until` (monotonic); the process ends when the reader of stdout is gone."""
    env = environment()
    watch = follower.watch
    out = _output()
    watched = [*also, *(() if watch is None else (watch.fd,))]
    poll = _poll(watched, None if out in watched else out)
    # Ends this process when the terminal is closed, or the pipe has no reader: no read or write would tell of that.
    end = getattr(signal, "SIGHUP" if out is not None and os.isatty(out) else "SIGPIPE", signal.SIGTERM)
    yield follower.first_look()
    while True:
        now = env.monotonic()
        if until is not None and now >= until:
            return
        wait = min(follower.due - now, pause(), _LONGEST_WAIT if until is None else until - now)
        ready = dict(poll(max(0.0, wait)))
        if out is not None and ready.get(out, 0) & _ENDED:
            die_of(end)
        found: list[LockEvent] | None = None
        if watch is not None and watch.fd in ready:
            select.select([], [], [], _MOMENT)
            found = follower.handle(watch.take())
        if env.monotonic() >= follower.due:
            found = (found or []) + follower.tick()
        yield found


def _poll(fds: Iterable[int], out: int | None) -> Callable[[float], list[tuple[int, int]]]:
    """A function that waits that many seconds, or until one of these can be read or `out` ends, and tells which."""
    if not hasattr(select, "poll"):
        from .._platform.handles import wait_for_handles

        handles = tuple(fds)

        def sleep(seconds: float) -> list[tuple[int, int]]:
            if not wait_for_handles(handles, seconds):
                time.sleep(seconds)
            return []

        return sleep
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    if out is not None:
        poll.register(out, 0)
    return lambda seconds: poll.poll(seconds * 1000 + 0.5)


def _output() -> int | None:
    try:
        return sys.stdout.fileno() if sys.stdout is not None else None
    except (OSError, ValueError):
        return None


def _watch_server(options: Namespace) -> int:
    """Print the events of locks on a server until a signal, or the end of the time."""
    if len(options.places) > 1:
        raise ValueError("watch one URL at a time, and nothing beside it: start another watch for the others")
    (url,) = options.places
    tell, changes = _teller(options), Changes()
    steps = engine_of(url).follow(environment(), url, lambda seen: tell(changes.since(seen, time.time())))
    drive(steps if options.seconds is None else _bounded(steps, time.monotonic() + options.seconds))
    return DONE


def _teller(options: Namespace) -> Callable[[list[LockEvent]], None]:
    """A function that prints events, and records them if that was asked for."""
    record = Recording(options.record, options.places) if options.record is not None else None

    def tell(found: list[LockEvent]) -> None:
        lines = [as_line(one) for one in found]
        if record is not None:
            for line in lines:
                record.add(line)
        if lines:
            show("\n".join(lines))

    return tell


def _bounded(steps: Steps[None], until: float) -> Steps[None]:
    """These steps, up to the moment `until` (monotonic)."""
    try:
        for wait in steps:
            yield wait.replaced(deadline=min(wait.deadline, until))
            if time.monotonic() >= until:
                return
    finally:
        steps.close()


class Changes:
    """Derives events from looks. A hold or a wait that begins and ends between two looks is not seen."""

    def __init__(self) -> None:
        self._seen: dict[str, Status] = {}
        self._since: dict[str, float] = {}
        self._first = True

    def since(self, statuses: tuple[Status, ...], now: float) -> list[LockEvent]:
        """The events since the last call."""
        seen = {status.path: status for status in statuses}
        told: list[LockEvent] = []
        for path in sorted({*self._seen, *seen}):
            told += self._of_lock(self._seen.get(path), seen.get(path), now)
        self._seen, self._first = seen, False
        return told

    def _of_lock(self, old: Status | None, new: Status | None, now: float) -> list[LockEvent]:
        told: list[LockEvent] = []
        before, after = old and url_id_of(old), new and url_id_of(new)
        if old and new and _says_more(old, new):
            before = after
        were = {_who(one): one for one in (old.waiters if old else ())}
        are = {_who(one): one for one in (new.waiters if new else ())}
        if old and before and before != after:
            told.append(of_holder("released", now, old, held=max(0.0, now - self._since.pop(old.path, now))))
        if new and after and before != after:
            holder = new.holder
            waited = [one.since for who, one in were.items() if holder and who[0] == holder.pid and who not in are]
            since = holder.since if holder is not None and holder.since is not None else now
            self._since[new.path] = since
            kind, moment = ("held", since) if self._first else ("acquired", now)
            known = waited[0] if waited else None
            wait = None if known is None else max(0.0, now - known)
            told.append(of_holder(kind, moment, new, waited=wait, first_look=self._first))
        got = new.holder.pid if new and new.holder and before != after else None
        for who, one in were.items():
            if who not in are and one.pid != got and old is not None:
                told.append(_of_waiter("gave-up", old, one, now))
        for who, one in are.items():
            if who not in were and new is not None:
                at = one.since if self._first and one.since is not None else now
                told.append(_of_waiter("waiting", new, one, at).replaced(first_look=self._first))
        return told


def _says_more(old: Status, new: Status) -> bool:
    """Whether it is the same session that holds it, which had not said who it is before (PostgreSQL, PO1)."""
    if old.record is None or new.record is None or not (old.locked and new.locked):
        return False
    before, after = old.record.fields, new.record.fields
    return "session" in before and "token" not in before and before["session"] == after.get("session")


def _who(waiter: Waiter) -> tuple[object, ...]:
    return waiter.pid, waiter.since, waiter.tag


def _of_waiter(kind: str, status: Status, who: Waiter, at: float) -> LockEvent:
    waited = max(0.0, at - who.since) if kind == "gave-up" and who.since is not None else None
    return LockEvent(kind, at, status.path, status.protocol, who.pid, None, who.tag, who.command, waited)


def watch_(options: Namespace) -> int:
    """Print events until a signal, the end of the time, or the end of the reader."""
    if any(map(is_url, options.places)):
        return _watch_server(options)
    until = None if options.seconds is None else time.monotonic() + options.seconds
    tell = _teller(options)
    follower = follow(options.places or ["."])
    if follower.scope.polled and not options.quiet:
        say("not all of these places report events, so all are polled four times a second")
    for found in lock_events(follower, until):
        tell(found or [])
    if follower.missed and not options.quiet:
        many = follower.missed
        say(f"{many} acquisition{'s' if many > 1 else ''} ended before {'they' if many > 1 else 'it'} could be seen")
    return DONE
