"""Following lock files from a command: what `watch` and `top` share."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys

from .._operator.follow import Follower
from .._operator.happening import Happening
from .._os import environment, folder_watch, kernel_glimpse
from . import die_of
from .recording import line_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_LONGEST_WAIT = 3600.0
_MOMENT = 0.002
"""Seconds for which events are gathered, so that a storm of them costs one look at each file."""
_MAGIC = frozenset("*?[")


def as_line(one: Happening) -> str:
    """One line of JSON: every field of the event."""
    values = {name: getattr(one, name) for name in one._fields if name != "first_look"}
    if one.first_look:
        values["first_look"] = True
    return line_of(values)


def follow(places: Iterable[str]) -> Follower:
    """A follower of these directories, locks and patterns; OSError for one whose directory is not there.

    A pattern of directories is expanded now; one of names in them is also for those that come later.
    """
    env = environment()
    follower = Follower(env, folder_watch(), kernel_glimpse)
    for place in places:
        if not _MAGIC.isdisjoint(place) and not os.path.lexists(place):
            for directory, pattern in _expanded(place):
                follower.add(directory, pattern, pattern=pattern is not None)
            continue
        path = os.path.abspath(place)
        if os.path.isdir(path):
            follower.add(path)
        else:
            directory, name = os.path.split(path)
            follower.add(directory, name)
    return follower


def _expanded(place: str) -> list[tuple[str, str | None]]:
    """What a pattern means: directories, each with a pattern of the names in it, or None for all of them."""
    from glob import escape, glob

    where, name = os.path.split(os.path.abspath(place))
    parents = [where] if _MAGIC.isdisjoint(where) else sorted(glob(f"{where}/", recursive=True))
    found: list[tuple[str, str | None]] = []
    for parent in map(os.path.normpath, parents):
        if name != "**":
            found.append((parent, name))
        below = sorted(glob(f"{escape(parent)}/{name}/", recursive=True))
        found += [(os.path.normpath(directory), None) for directory in below]
    if not found:
        raise FileNotFoundError(errno.ENOENT, "no directory fits this pattern", place)
    return found


def happenings(
    follower: Follower,
    until: float | None,
    *,
    also: Iterable[int] = (),
    pause: Callable[[], float] = lambda: _LONGEST_WAIT,
) -> Iterator[list[Happening] | None]:
    """What happens, as it happens; None where only the time of `pause` (in seconds) has passed, or one of `also` is
    ready. Ends at `until` (monotonic).

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
    if out is not None and out not in also:
        poll.register(out, 0)
    # A terminal that is closed, or a pipe that nobody reads; when it is, it can no longer be told.
    end = getattr(signal, "SIGHUP" if out is not None and os.isatty(out) else "SIGPIPE", signal.SIGTERM)
    yield follower.first_look()
    while True:
        now = env.monotonic()
        if until is not None and now >= until:
            return
        wait = min(follower.due - now, pause(), _LONGEST_WAIT if until is None else until - now)
        ready = dict(poll.poll(max(0.0, wait) * 1000 + 0.5))
        if out is not None and ready.get(out, 0) & (select.POLLERR | select.POLLHUP):
            die_of(end)
        found: list[Happening] | None = None
        if watch is not None and watch.fd in ready:
            select.select([], [], [], _MOMENT)
            found = follower.heed(watch.take())
        if env.monotonic() >= follower.due:
            found = (found or []) + follower.tick()
        yield found


def _output() -> int | None:
    try:
        return sys.stdout.fileno() if sys.stdout is not None else None
    except (OSError, ValueError):
        return None
