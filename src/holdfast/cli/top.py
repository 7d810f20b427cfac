"""`top`: who holds and who waits, as it changes.

Times move by the clock alone, once a second; locks are looked at again when an event tells of them (follow.py).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import deque

from .._operator.findings import EMPTY, FREE, Found
from .._operator.survey import Survey
from .._os import environment
from . import DONE, FAILED, USAGE, die_of, say, show
from .following import as_line, follow, happenings
from .fullscreen import FullScreen, Signals, is_able, is_ending
from .ls import as_object
from .recording import Record
from .table import screen
from .top_rows import Row, Rows, ordered
from .top_view import Scene, View, counts, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._operator.follow import Follower
    from .._operator.happening import Happening

_RATE_OVER = 5.0
"""Seconds of which the events are counted."""
_EVERY = 1.0
_SOONEST = 0.04
"""Seconds between two pictures, however many events there are; more where a picture takes long."""
_SHARE = 4
"""At most one part in so many of the time goes into pictures."""


def top_(options: argparse.Namespace) -> int:
    """Show it until somebody quits; without a terminal, as it is now."""
    places = options.places or ["."]
    live = not (options.once or options.json)
    if live and not _has_terminal():
        if options.record is not None:
            say("there is no terminal to show anything on; to record what happens, use holdfast watch --record")
            return USAGE
        if sys.stdout.isatty() and not options.quiet:
            say("this terminal cannot be drawn on (TERM), so this is how things are now; see holdfast watch")
        live = False
    if options.json:
        return _as_json(places, options)
    record = Record(options.record) if options.record is not None else None
    follower = follow(places)
    if live:
        return Board(follower, places, options.sort, backwards=options.reverse).run(record)
    follower.first_look()
    rows = ordered(Rows(follower).now(), options.sort, backwards=options.reverse)
    on = screen(sys.stdout)
    if rows:
        show("\n".join([counts(rows), *table(rows, environment().time(), on)]))
    elif not options.quiet:
        show(counts(rows))
    return DONE


def _has_terminal() -> bool:
    try:
        return is_able(sys.stdout.fileno())
    except (AttributeError, OSError, ValueError):
        return False


def _as_json(places: Sequence[str], options: argparse.Namespace) -> int:
    """As `ls --json`, in the order of the rows."""
    followed = follow(places).places
    survey = Survey(environment())
    found: dict[str, Found] = {}
    rows: list[Row] = []
    status = DONE
    for directory in followed.directories:
        for one in survey.directory(directory):
            if not isinstance(one, Found):
                say(f"{one.path}: {one.error.strerror or one.error}")
                status = FAILED
            elif one.condition not in (FREE, EMPTY) and followed.wanted(*one.status.path.rpartition("/")[::2]):
                found[one.status.path] = one
                rows.append(_row_of(one))
    for row in ordered(rows, options.sort, backwards=options.reverse):
        show(as_object(found[row.path]))
    return status


def _row_of(one: Found) -> Row:
    """As much of it as the order needs."""
    status, now = one.status, environment().time()
    since = status.holder.since if status.holder is not None else None
    waits = sorted((now if waiter.since is None else waiter.since, waiter.pid) for waiter in status.waiters)
    pid = status.holder.pid if status.holder is not None else None
    return Row(status.path, one.condition, status.protocol, pid, since=since, waits=tuple(waits))


class Board:
    """The live view: what is followed, what of it is shown, and when it has to be drawn again."""

    def __init__(self, follower: Follower, places: Sequence[str], order: str, *, backwards: bool) -> None:
        self._follower = follower
        self._places = [*map(os.path.abspath, places)]
        self._view = View(order, backwards=backwards)
        self._rows = Rows(follower)
        self._ordered: list[Row] = []
        self._changed = True
        """Whether the rows have to be made anew."""
        self._wanted = 0.0
        """When to draw next (monotonic)."""
        self._earliest = 0.0
        self._events: deque[tuple[float, int]] = deque()
        self._clock = environment()

    def run(self, record: Record | None) -> int:
        signals = Signals()
        full = FullScreen(sys.stdout.fileno(), sys.stdout.encoding)
        also = [signals.fd, full.keyboard]
        stream = happenings(self._follower, None, also=also, pause=lambda: self._pause(full))
        try:
            self._hear(next(stream), record)  # before the terminal is taken: it may be long, or fail
            signals.open()
            full.enter()
            self._draw(full)
            for found in stream:
                self._hear(found, record)
                ending = self._obey(signals, full)
                if ending is not None:
                    break
                if self._clock.monotonic() >= self._due(full):
                    self._draw(full)
        finally:
            signals.hushed = True
            full.close()
            signals.close()
        if ending:
            die_of(ending)
        return DONE

    def _hear(self, found: list[Happening] | None, record: Record | None) -> None:
        if found is None:
            return
        self._changed = True
        self._wanted = min(self._wanted, self._clock.monotonic())
        for one in found if record is not None else ():
            assert record is not None
            record.add(as_line(one))
        news = sum(not one.first_look for one in found)
        if news:
            self._events.append((self._clock.monotonic(), news))

    def _obey(self, signals: Signals, full: FullScreen) -> int | None:
        """Signals and keys. The signal to end by, 0 for an ordinary end, None to go on."""
        import signal

        came = signals.take()
        for number in came:
            if is_ending(number):
                return number
            if number == signal.SIGTSTP:
                full.leave()
                came += signals.stop()
            if number in (signal.SIGTSTP, signal.SIGCONT):
                full.enter()  # a shell may have changed the modes meanwhile
            full.anew()  # a terminal that grows and shrinks may have lost some of it
            self._view.resized()
            self._wanted = 0.0
        keys = full.keys()
        if keys is None:
            return signal.SIGHUP
        for key in keys:
            if key in ("q", "Q") and not self._view.helping:
                return 0
            if key == "redraw":
                full.anew()
            self._view.press(key)
            self._changed = self._changed or key in ("s", "r")
            self._wanted = 0.0
        return None

    # -- when ----------------------------------------------------------------------------------------------------------

    def _due(self, full: FullScreen) -> float:
        if full.retry is not None:
            return self._clock.monotonic() + full.retry
        return max(self._wanted, self._earliest)

    def _pause(self, full: FullScreen) -> float:
        return max(0.0, self._due(full) - self._clock.monotonic())

    # -- what ----------------------------------------------------------------------------------------------------------

    def _draw(self, full: FullScreen) -> None:
        began = self._clock.monotonic()
        if self._changed:
            self._ordered = ordered(self._rows.now(), self._view.order, backwards=self._view.backwards)
            self._changed = False
        scene = Scene(
            self._ordered,
            self._view.order,
            self._view.backwards,
            self._places,
            [*self._follower.places.missing],
            bool(self._follower.places.polled),
            self._rate(began),
            self._follower.missed,
        )
        full.draw(self._view.frame(scene, self._clock.time(), full.size(), colours=screen(sys.stdout).colours))
        moves = self._ordered or self._events
        now = self._clock.monotonic()
        self._wanted = began + _EVERY if moves else float("inf")
        self._earliest = now + max(_SOONEST, _SHARE * (now - began))

    def _rate(self, now: float) -> float:
        while self._events and self._events[0][0] <= now - _RATE_OVER:
            self._events.popleft()
        return sum(number for _, number in self._events) / _RATE_OVER
