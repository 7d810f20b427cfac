"""`top`: show who holds and who waits, live.

Times move by the clock alone, once a second; locks are examined again when an event tells of them (monitor.py). A `Row`
has what is known of a lock at some moment. A `View` fills a screen with some of the rows, between the totals and the
keys, and knows no terminal.

The whole terminal is used, and restored as it was, whatever ends that (fullscreen.py).
"""

from __future__ import annotations

import functools
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from textwrap import wrap
from typing import Any

from .._admin.found import CONDITIONS, DEAD, EMPTY, FREE, HELD, STALE, Found
from .._admin.monitor import Follower, LockEvent, SeenHold, SeenWait
from .._admin.scan import Survey
from .._core.messages import printable
from .._platform import environment
from .._platform.proc_locks import ProcLocks
from ..engines.file.paths import queue_of, waited_for
from ..model import Holder, Value
from . import fullscreen
from .console import OF_STATE, Cell, Column, Recording, fit, lines, user_name, work_of
from .fullscreen import GONE, RESIZED, Display, Signals
from .locks import absolute
from .ls import as_object, host_of, short_path
from .options import Namespace
from .outcome import DONE, FAILED, USAGE, Screen, die_of, problem_at, say, screen, show
from .watch import as_line, follow, lock_events

WAITED_FOR = "waited for"
"""The state of a free lock that has waiters; of a semaphore, the waiters for any of its slots."""
_STATES = (*CONDITIONS, WAITED_FOR)
_NEVER = float("inf")
_PIDS_SHOWN = 8


class Row(Value):
    """One lock. `since`: when it was acquired, or the latest that it can have been if not `exact`. `waits`: the start
    and the pid of each, the longest wait first; `all_seen`: whether all their starts were seen."""

    path: str
    state: str
    protocol: str = ""
    pid: int | None = None
    others: int = 0
    user: str | None = None
    host: str | None = None
    command: str = ""
    tag: str = ""
    since: float | None = None
    exact: bool = True
    waits: tuple[tuple[float, int | None], ...] = ()
    all_seen: bool = True


class Rows:
    """The rows of the locks that are followed; unchanged rows are made only once."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._made: dict[str, tuple[object, tuple[SeenWait, ...], Row]] = {}
        self._began: float | None = None

    def now(self) -> list[Row]:
        """The rows as known now; no lock is examined."""
        if self._began is None:
            self._began = environment().time()
        waiting: dict[str, list[SeenWait]] = {}
        for wait in self._follower.waiters.waiting():
            waiting.setdefault(wait.path, []).append(wait)
        tables = functools.cache(environment().proc_locks)  # opened only when a process is asked for
        before, self._made = self._made, {}
        for path, held in self._follower.held.items():
            where, _, name = path.rpartition("/")
            known_as = path if path in waiting else waited_for(queue_of(where, name))  # the name of a queue may be cut
            waits = tuple(waiting.pop(known_as, ()))
            known = before.get(path)
            if known is None or known[0] is not held.found or known[1] != waits:
                known = (held.found, waits, self._row(held, waits, tables))
            self._made[path] = known
        for path, found in waiting.items():
            seen, all_seen = self._of_waits(found)
            row = Row(path, WAITED_FOR, found[0].protocol, waits=seen, all_seen=all_seen)
            self._made[path] = (None, (), row)
        return [row for _, _, row in self._made.values()]

    def _row(self, held: SeenHold, waits: Sequence[SeenWait], tables: Callable[[], ProcLocks]) -> Row:
        status, holder = held.found.status, held.holder
        uid = tables().user(holder.pid) if held.found.condition == HELD and holder.pid is not None else None
        others = max(0, sum(one.pid is not None for one in status.holders) - 1)
        exact = not (holder.since is None and held.since <= (self._began or 0.0))
        return Row(
            status.path, held.found.condition, status.protocol, holder.pid, others,
            user_name(held.found.uid if uid is None else uid), host_of(holder), work_of(holder.command, holder.pid),
            holder.tag or "", held.since, exact, *self._of_waits(waits),
        )  # fmt: skip

    def _of_waits(self, waits: Iterable[SeenWait]) -> tuple[tuple[tuple[float, int | None], ...], bool]:
        """`waits` and `all_seen` of a row. The kernel does not tell when a wait has begun."""
        ordered = sorted((wait.since, wait.waiter.pid) for wait in waits)
        unseen = any(wait.protocol == "flock" and wait.since <= (self._began or 0.0) for wait in waits)
        return tuple(ordered), not unseen


# -- order -------------------------------------------------------------------------------------------------------------

ORDERS: dict[str, tuple[str, Callable[[Row], tuple[object, ...]]]] = {
    "wait": ("longest wait", lambda row: (row.waits[0][0] if row.waits else _NEVER, _since(row), row.path)),
    "held": ("longest hold", lambda row: (_since(row), row.path)),
    "waiters": ("most waiters", lambda row: (-len(row.waits), _since(row), row.path)),
    "path": ("path", lambda row: (row.path,)),
    "pid": ("pid", lambda row: (row.pid is None, row.pid or 0, row.path)),
    "state": ("state", lambda row: (_STATES.index(row.state), row.path)),
}
"""Orders by name: what each is called, and its key."""


def _since(row: Row) -> float:
    return _NEVER if row.since is None else row.since


def ordered(rows: Iterable[Row], order: str, *, backwards: bool = False) -> list[Row]:
    return sorted(rows, key=ORDERS[order][1], reverse=backwards)


# -- one row -----------------------------------------------------------------------------------------------------------


def clock_of(seconds: float) -> str:
    """A running time in at most six characters: `8s`, `2m05s`, `1h02m`, `3d04h`, `1234d`."""
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    if whole < 100 * 86400:
        return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
    return f"{whole // 86400}d" if whole < 10**5 * 86400 else "ages"


def cells_of(row: Row, now: float) -> list[Cell]:
    """The cells of one row at that moment, in the order of the columns."""
    longest = row.waits[0][0] if row.waits else None
    pids = [str(pid) for _, pid in row.waits[:_PIDS_SHOWN] if pid is not None]
    more = len(row.waits) - len(pids)
    if pids and more:
        pids.append(f"+{more}")
    pid = "-" if row.pid is None else str(row.pid)
    return [
        (row.state, OF_STATE.get(row.state, "")),
        f"{pid}+{row.others}" if row.others else pid,
        row.user or "-",
        "-" if row.since is None else ("" if row.exact else ">") + clock_of(now - row.since),
        str(len(row.waits) or "-"),
        "-" if longest is None else (("" if row.all_seen else ">") + clock_of(now - longest), "yellow"),
        short_path(row.path),
        row.protocol or "?",
        row.host or "",
        row.command,
        row.tag,
        " ".join(pids),
    ]


_COLUMNS = (
    Column("STATE", drop=2),
    Column("PID", right=True, drop=3),
    Column("USER", cut="end", least=4, drop=9),
    Column("  HELD", right=True),
    Column("WAITS", right=True, drop=4),
    Column("LONGEST", right=True, drop=1),
    Column("PATH", cut="start", least=16),
    Column("PROTOCOL", drop=8),
    Column("HOST", cut="end", least=6, drop=7, optional=True),
    Column("COMMAND", cut="end", least=10, drop=5, optional=True),
    Column("TAG", cut="end", least=8, drop=6, optional=True),
    Column("WAITERS", cut="end", least=7, drop=10, optional=True),
)
_PATH = 6
"""The index of the path among the columns."""
_BESIDE_PATH = 8
"""The width that the narrowest table has besides the path, for HELD."""
_FAR = 10**9
_FIT_EVERY = 10.0
"""Seconds for which columns only grow, so that they do not jump whenever a row comes or goes."""


class Scene(Value):
    """The content of a screen. `places` are followed; of these, `gone` do not exist."""

    rows: Sequence[Row]
    places: Sequence[str] = ()
    gone: Sequence[str] = ()
    polled: bool = False
    rate: float = 0.0
    missed: int = 0


def counts(rows: Sequence[Row]) -> str:
    """The totals in words: held, waiting, stale."""
    stale = sum(row.state in (STALE, DEAD) for row in rows)
    held = sum(row.state not in (STALE, DEAD, WAITED_FOR) for row in rows)
    return f"{held} held, {sum(len(row.waits) for row in rows)} waiting, {stale} stale"


def rate_of(rate: float) -> str:
    number = f"{rate:.0f}" if rate >= 9.95 or not rate else f"{rate:.1f}"
    return f"{number} events/s"


def header(scene: Scene, order: str, *, backwards: bool) -> list[str]:
    """The two lines at the top; on a small screen only the first is shown."""
    words = [counts(scene.rows), rate_of(scene.rate)]
    if scene.missed:
        words.append(f"{scene.missed} hold{'s' if scene.missed > 1 else ''} too short to be seen")
    words.append(f"by {ORDERS[order][0]}" + (", backwards" if backwards else ""))
    if scene.gone:
        named = ", ".join(printable(place, 200) for place in scene.gone)
        return ["; ".join(words), f"missing, checked again every 10 s: {named}"]
    where = "in " + ", ".join(printable(place, 200) for place in scene.places)
    return ["; ".join(words), f"no events here, so polled 4 times a second: {where}" if scene.polled else where]


def table(rows: Sequence[Row], now: float, on: Screen, floors: dict[int, int] | None = None) -> list[str]:
    """A line of titles and one for each row; `floors` as for `lines`."""
    width = on.width
    cells = [cells_of(row, now) for row in rows]
    columns = list(_COLUMNS)
    if width is not None:
        longest = max((len(row.path) for row in rows), default=0)
        # A path says most, so it gives way last.
        least = max(1, min(max(16, min(longest, width // 3)), width - _BESIDE_PATH))
        columns[_PATH] = columns[_PATH].replaced(least=least)
    return lines(columns, cells, on, floors)


HELP = """\
q       quit                    Ctrl-L  draw the screen again
s       sort by the next key:   {orders}
r       reverse the order
arrows, j, k, page up, page down, home, end: move

Each row is a lock that is held, stale or waited for.
HELD     for how long; > at least, where its start was not seen
WAITS    how many processes wait for it
LONGEST  for how long the first of them has waited
STATE    held; dead: the next contender gets it; stale by its protocol's
         rule; elsewhere: on another host, before a reboot or in another
         container, counts as held; malformed: cannot be read, counts as held

top changes nothing.""".format(orders=", ".join(ORDERS))


class View:
    """The user's choices: the order, the part that is shown, the help. Makes the lines of a screen."""

    def __init__(self, order: str, *, backwards: bool = False) -> None:
        self.order = order
        self.backwards = backwards
        self.helping = False
        self._first = 0
        self._body = 1
        self._floors: dict[int, int] = {}
        self._fitted = 0.0

    def press(self, key: str) -> None:
        """Act on a key; one without a meaning is passed over. Any key leaves the help."""
        moves = {"page up": -self._body, "b": -self._body, "page down": self._body, " ": self._body}
        moves |= {"up": -1, "k": -1, "down": 1, "j": 1, "home": -_FAR, "g": -_FAR, "end": _FAR, "G": _FAR}
        if self.helping:
            self.helping = False
        elif key in ("?", "h"):
            self.helping = True
        elif key == "s":
            names = [*ORDERS]
            self.order = names[(names.index(self.order) + 1) % len(names)]
            self._first = 0
        elif key == "r":
            self.backwards = not self.backwards
            self._first = 0
        elif key in moves:
            self._first += moves[key]

    def resized(self) -> None:
        """Forget the widths of columns, which fitted the old size."""
        self._floors.clear()

    def frame(self, scene: Scene, now: float, size: tuple[int, int], *, colours: bool) -> list[str]:
        """As many lines as the screen has, none wider than it is."""
        width, height = size
        if not 0 <= now - self._fitted < _FIT_EVERY:
            self._floors.clear()
            self._fitted = now
        on = Screen(width, colours)
        above = header(scene, self.order, backwards=self.backwards)[: 2 if height >= 8 else 1]
        head = [
            on.paint(fit(line, width), "bold" if at == 0 else "red" if scene.gone else "")
            for at, line in enumerate(above)
        ]
        foot = height >= 6
        room = height - len(head) - foot
        self._body = max(1, room - 1)
        self._first = max(0, min(self._first, len(scene.rows) - self._body))
        if self.helping:
            body = [part for line in HELP.splitlines() for part in wrap(line, width, subsequent_indent=" " * 9) or [""]]
        elif scene.rows:
            body = table(scene.rows[self._first : self._first + self._body], now, on, self._floors)
        else:
            body = ["", fit("nobody holds or waits for a lock here", width)]
        body = [*body[: max(0, room)], *[""] * (room - len(body))]
        return [*head, *body, *([on.paint(self._foot(scene, width), "dim")] if foot else [])][:height]

    def _foot(self, scene: Scene, width: int) -> str:
        keys = "q quit  s sort  r reverse  ? help"
        total = len(scene.rows)
        if self.helping:
            keys = "any key goes back"
        elif total > self._body:
            keys = f"{self._first + 1}-{min(total, self._first + self._body)} of {total}  {keys}"
        return fit(keys, width)


_RATE_OVER = 5.0
"""Seconds over which events are counted."""
_EVERY = 1.0
_SOONEST = 0.04
"""Least seconds between two pictures, however many events there are; more if a picture takes long."""
_SHARE = 4
"""The pause after a picture, in multiples of the time that it took."""


def top_(options: Namespace) -> int:
    """Show the live view until the user quits; without a terminal, the present state."""
    places = options.places or ["."]
    live = not (options.once or options.json)
    if live and not _has_terminal():
        if options.record is not None:
            say("there is no terminal to show anything on; to record what happens, use holdfast watch --record")
            return USAGE
        if sys.stdout is not None and sys.stdout.isatty() and not options.quiet:
            say(f"{_terminals().UNABLE}, so this is the present state; see holdfast watch")
        live = False
    if options.json:
        return _as_json(places, options)
    record = Recording(options.record, places) if options.record is not None else None
    follower = follow(places)
    if live:
        return Board(follower, places, options.sort, backwards=options.reverse).run(record)
    follower.first_look()
    rows = ordered(Rows(follower).now(), options.sort, backwards=options.reverse)
    if rows:
        show("\n".join([counts(rows), *table(rows, environment().time(), screen(sys.stdout))]))
    elif not options.quiet:
        show(counts(rows))
    return DONE


def _has_terminal() -> bool:
    try:
        return sys.stdout.isatty() and _terminals().is_able(sys.stdout.fileno())
    except (AttributeError, OSError, ValueError):
        return False


def _terminals() -> Any:
    """The module that knows the terminals of this system."""
    if fullscreen.IS_THERE:
        return fullscreen
    from . import windows_screen

    return windows_screen


def _as_json(places: Sequence[str], options: Namespace) -> int:
    """Print the lines of `ls --json`, in the order of the rows."""
    followed = follow(places).scope
    survey = Survey(environment())
    found: dict[str, Found] = {}
    rows: list[Row] = []
    status = DONE
    for directory in followed.directories:
        for one in survey.directory(directory or "/"):
            if not isinstance(one, Found):
                say(problem_at(one.path, one.error))
                status = FAILED
            elif one.condition not in (FREE, EMPTY) and followed.wanted(*one.status.path.rpartition("/")[::2]):
                found[one.status.path] = one
                rows.append(_row_of(one))
    for row in ordered(rows, options.sort, backwards=options.reverse):
        show(as_object(found[row.path]))
    return status


def _row_of(one: Found) -> Row:
    """A row with as much as the order needs."""
    status, now = one.status, environment().time()
    holder = status.holder or Holder()
    waits = sorted((now if waiter.since is None else waiter.since, waiter.pid) for waiter in status.waiters)
    return Row(status.path, one.condition, status.protocol, holder.pid, since=holder.since, waits=tuple(waits))


class Board:
    """The live view: the locks that are followed, the part that is shown, and when to draw again."""

    def __init__(self, follower: Follower, places: Sequence[str], order: str, *, backwards: bool) -> None:
        self._follower = follower
        self._places = [*map(absolute, places)]
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

    def run(self, record: Recording | None) -> int:
        signals: Signals
        full: Display
        signals, full = _terminals().opened()
        also = [*signals.wakers, full.keyboard]
        stream = lock_events(self._follower, None, also=also, pause=lambda: self._due(full) - self._clock.monotonic())
        try:
            self._hear(next(stream), record)  # before the terminal is taken: the first look may take long, or fail
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

    def _hear(self, found: list[LockEvent] | None, record: Recording | None) -> None:
        if found is None:
            return
        self._changed = True
        self._wanted = min(self._wanted, self._clock.monotonic())
        if record is not None:
            for one in found:
                record.add(as_line(one))
        news = sum(not one.first_look for one in found)
        if news:
            self._events.append((self._clock.monotonic(), news))

    def _obey(self, signals: Signals, full: Display) -> int | None:
        """Act on signals and keys; the signal to end by, 0 for an ordinary end, None to go on."""
        came = signals.take()
        for number in came:
            if signals.is_ending(number):
                return number
            if number == signal.SIGTSTP:
                full.leave()
                came += signals.stop()
            if number in (signal.SIGTSTP, signal.SIGCONT):
                full.enter()  # a shell may have changed the modes meanwhile
            self._resized(full)
        keys = full.keys()
        if keys is None:
            return GONE
        for key in keys:
            self._wanted = 0.0
            if key == RESIZED:
                self._resized(full)
                continue
            if key in ("q", "Q") and not self._view.helping:
                return 0
            if key == "redraw":
                full.anew()
            self._view.press(key)
            self._changed = self._changed or key in ("s", "r")
        return None

    def _resized(self, full: Display) -> None:
        full.anew()  # a terminal that grows and shrinks may have lost some of it
        self._view.resized()
        self._wanted = 0.0

    def _due(self, full: Display) -> float:
        if full.retry is not None:
            return self._clock.monotonic() + full.retry
        return max(self._wanted, self._earliest)

    def _draw(self, full: Display) -> None:
        began = self._clock.monotonic()
        if self._changed:
            self._ordered = ordered(self._rows.now(), self._view.order, backwards=self._view.backwards)
            self._changed = False
        scope, rate = self._follower.scope, self._rate(began)
        missing, polled = [*scope.missing], bool(scope.polled)
        scene = Scene(self._ordered, self._places, missing, polled, rate, self._follower.missed)
        full.draw(self._view.frame(scene, self._clock.time(), full.size(), colours=full.colours))
        moves = self._ordered or self._events
        now = self._clock.monotonic()
        self._wanted = began + _EVERY if moves else float("inf")
        self._earliest = now + max(_SOONEST, _SHARE * (now - began))

    def _rate(self, now: float) -> float:
        while self._events and self._events[0][0] <= now - _RATE_OVER:
            self._events.popleft()
        return sum(number for _, number in self._events) / _RATE_OVER
