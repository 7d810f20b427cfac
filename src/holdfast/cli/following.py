"""Following lock files from a command: what `watch` and `top` share."""

from __future__ import annotations

import os
import select
import signal
import sys

from .._operator.follow import Follower
from .._operator.happening import Happening
from .._os import environment, folder_watch, glimpse
from . import die_of
from .recording import line_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LONGEST_WAIT = 3600.0
_MOMENT = 0.002
"""Seconds for which events are gathered, so that a storm of them costs one look at each file."""


def as_line(one: Happening) -> str:
    """One line of JSON: every field of the event."""
    values = {name: getattr(one, name) for name in one._fields if name != "first_look"}
    if one.first_look:
        values["first_look"] = True
    return line_of(values)


def follow(places: Iterable[str]) -> Follower:
    """A follower of these directories and locks; OSError for one whose directory is not there."""
    env = environment()
    follower = Follower(env, folder_watch(), glimpse)
    for place in places:
        path = os.path.abspath(place)
        if os.path.isdir(path):
            follower.add(path)
        else:
            directory, name = os.path.split(path)
            follower.add(directory, name)
    return follower


def happenings(
    follower: Follower, until: float | None, *, also: Iterable[int] = (), most: float = _LONGEST_WAIT
) -> Iterator[list[Happening]]:
    """What happens, as it happens; after `most` seconds an empty list, if nothing does. Ends at `until` (monotonic).

    `also`: descriptors whose readiness ends a wait, too. When nobody reads stdout any more, the process ends.
    """
    env = environment()
    poll = select.poll()
    watch = follower.watch
    for fd in also:
        poll.register(fd, select.POLLIN)
    if watch is not None:
        poll.register(watch.fd, select.POLLIN)
    out = _output()
    if out is not None:
        poll.register(out, 0)
    yield follower.first_look()
    while True:
        now = env.monotonic()
        if until is not None and now >= until:
            return
        wait = min(follower.due - now, most, _LONGEST_WAIT if until is None else until - now)
        ready = dict(poll.poll(max(0.0, wait) * 1000 + 0.5))
        if out is not None and ready.get(out, 0) & (select.POLLERR | select.POLLHUP):
            die_of(getattr(signal, "SIGPIPE", signal.SIGTERM))
        found: list[Happening] = []
        if watch is not None and watch.fd in ready:
            select.select([], [], [], _MOMENT)
            found += follower.heed(watch.take())
        if env.monotonic() >= follower.due:
            found += follower.tick()
        yield found


def _output() -> int | None:
    try:
        return sys.stdout.fileno() if sys.stdout is not None else None
    except (OSError, ValueError):
        return None
