"""`ls`: every lock file below some directories, one line each."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from .._admin.found import CONDITIONS, DEAD, ELSEWHERE, EMPTY, FREE, HELD, LEFTOVER, MALFORMED, STALE, Found, Unreadable
from .._admin.kernel_locks import kernel_locks, says_more
from .._admin.scan import Survey
from .._core.messages import is_out_of_reach, printable
from .._drivers.apart import at_place, read_at
from .._drivers.sync import drive
from .._platform import environment
from ..engines import engine_of
from ..errors import EngineUnavailable, HoldfastError
from ..model import Holder
from .console import OF_STATE, WIDEST_PADDED, Cell, Column, age_of, as_json, lines, of_survey, user_name, work_of
from .locks import absolute, is_pattern, is_url, unfolded
from .options import Namespace
from .outcome import DONE, FAILED, masked, problem_at, say, screen, show
from .outcome import HELD as HELD_CODE

_ORDERS: dict[str, Callable[[Found], tuple[object, ...]]] = {
    "path": lambda one: (one.status.path,),
    "age": lambda one: (one.status.age is None, -(one.status.age or 0.0), one.status.path),
    "pid": lambda one: (_pid(one) is None, _pid(one) or 0, one.status.path),
    "state": lambda one: (CONDITIONS.index(one.condition), one.status.path),
}
_COLUMNS = (
    Column("STATE"),
    Column("PROTOCOL", drop=2),
    Column("PID", right=True),
    Column("USER", cut="end", least=4, drop=3),
    Column("AGE", right=True),
    Column("WAITS", right=True, drop=1),
    Column("PATH", cut="start", least=16),
    Column("HOST", cut="end", least=6, drop=4, optional=True),
    Column("COMMAND", cut="end", least=10, drop=5, optional=True),
    Column("TAG", cut="end", least=8, drop=6, optional=True),
)
_MOMENT = 1.0
"""Seconds after which the finds so far are shown, though there may be more."""
_MANY = 20_000
"""Most finds that are kept before they are shown."""


def ls_(options: Namespace) -> int:
    """List the lock files that are found; report on stderr what could not be examined."""
    places = options.places or ["."]
    wanted = _Wanted(options)
    listing = _Listing(options)
    complete = True
    for one in _everything(places, listing, options):
        if isinstance(one, Found):
            if wanted.has(one):
                listing.add(one)
        elif isinstance(one, Unreadable):
            complete = False
            say(problem_at(one.path, one.error))
        elif not options.quiet:
            say(one)
    listing.end()
    if complete and not listing.shown and not options.json and not options.quiet:
        say(f"no {_described(options)} in {', '.join(printable(masked(place), 100) for place in places[:3])}")
    if wanted.ageless and not options.quiet:
        what = "1 lock is" if wanted.ageless == 1 else f"{wanted.ageless} locks are"
        say(f"{what} not listed, because the time of acquisition is not known (holdfast ls --held lists all)")
    if listing.shown and options.held_longer_than is not None:
        return HELD_CODE
    return DONE if complete else FAILED


class _Listing:
    """The finds: shown as they come if they come in the order that was asked for, else at the end. Those of a moment
    are shown together, aligned to their contents; later ones below, as wide or wider. So no more is kept than a
    moment's finds, and a list that takes no longer is a table like any other."""

    def __init__(self, options: Namespace) -> None:
        self._order = _ORDERS[options.sort]
        self._as_json: bool = options.json
        self.in_order = False
        self.shown = 0
        self._pending: list[Found] = []
        self._due = time.monotonic() + _MOMENT
        self._titles: list[str] = []
        self._floors = {number: len(column.title) for number, column in enumerate(_COLUMNS)}

    def add(self, one: Found) -> None:
        self._pending.append(one)
        self.look_at_clock()

    def look_at_clock(self, _where: str = "") -> None:
        if self.in_order and self._pending and (time.monotonic() >= self._due or len(self._pending) >= _MANY):
            self._show(last=False)

    def end(self) -> None:
        self._pending.sort(key=self._order)
        if self._pending:
            self._show(last=True)

    def _show(self, *, last: bool) -> None:
        found, self._pending = self._pending, []
        show("\n".join(map(as_object, found) if self._as_json else self._table(found, whole=last and not self.shown)))
        self.shown += len(found)
        self._due = time.monotonic() + _MOMENT

    def _table(self, found: list[Found], *, whole: bool) -> list[str]:
        """The finds as lines. `whole`: there are no others, so that empty columns can be left out."""
        rows = [_row(one) for one in found]
        if whole:
            return lines(_COLUMNS, rows, screen(sys.stdout))
        title, *rest = lines(_COLUMNS, rows, screen(sys.stdout), self._floors)
        self._floors = {number: min(width, WIDEST_PADDED) for number, width in self._floors.items()}
        again = title.split() != self._titles  # on a terminal, a cell that is too wide may cost a column
        self._titles = title.split()
        return [title, *rest] if again else rest


def as_object(one: Found) -> str:
    """A find as one line of JSON: the fields of `status --json`, and those of a survey."""
    return as_json(one.status, condition=one.condition, **of_survey(one))


def _everything(places: Sequence[str], listing: _Listing, options: Namespace) -> Iterator[Found | Unreadable | str]:
    """Each lock file once, even if several places contain it; and a message for a named file that is none."""
    survey = Survey(environment())
    named = [
        (path, bool(expanded)) for place in places for expanded in [_expanded(place)] for path in expanded or [place]
    ]
    several = len(named) > 1 or options.all
    # A survey finds the files of one place in the order of their paths.
    listing.in_order = options.sort == "path" and not several
    seen: set[str] = set()
    unknown: dict[str, Found] = {}
    for path, expanded in named:
        for one in _of_place_in_time(survey, path, listing, recursive=options.recursive):
            if isinstance(one, Found) and several:
                if one.status.path in seen:
                    continue
                seen.add(one.status.path)
                if options.all and not says_more(one):
                    unknown[one.status.path] = one  # the kernel may know of record locks on it
                    continue
            elif isinstance(one, str) and expanded:
                continue  # a pattern may match any files
            yield one
    if options.all:
        env = environment()
        files = env.proc_files()
        if not files.known:
            raise ValueError("--all needs the kernel's tables of locks, which cannot be read here: only Linux has them")
        for one in kernel_locks(env, survey, files):
            if unknown.pop(one.status.path, None) is not None or one.status.path not in seen:
                yield one
        yield from unknown.values()


def _of_place(
    survey: Survey, place: str, entering: Callable[[str], object] | None, *, recursive: bool
) -> Iterator[Found | Unreadable | str]:
    if is_url(place):
        yield from _on_server(place)
        return
    path = unfolded(place)
    try:
        os.lstat(path)
        if os.path.isdir(path):
            yield from survey.tree(path, entering) if recursive else survey.directory(path)
            return
        one = survey.file(path)
    except (OSError, ValueError) as error:
        yield Unreadable(path, error if isinstance(error, OSError) else OSError(0, str(error)))
        return
    yield one if one is not None else f"{path} is not a lock file of a known protocol"


def _on_server(url: str) -> Iterator[Found | Unreadable]:
    """The locks on a server whose names begin with that of the URL."""
    try:
        statuses = drive(engine_of(url).survey(environment(), url))
    except HoldfastError as error:
        yield Unreadable(masked(url), error if isinstance(error, OSError) else OSError(0, str(error)))
    else:
        for status in statuses:
            yield Found(status, "held" if status.locked else "free", (0, 0))


def _of_place_in_time(
    survey: Survey, place: str, listing: _Listing, *, recursive: bool
) -> Iterator[Found | Unreadable | str]:
    """Like `_of_place`, but a file server that does not answer counts as unreadable."""
    apart = None if is_url(place) else at_place(environment(), absolute(place))
    if apart is None:
        yield from _of_place(survey, place, listing.look_at_clock, recursive=recursive)
        return
    try:
        yield from apart.each(_of_place(survey, place, None, recursive=recursive), meanwhile=listing.look_at_clock)
    except EngineUnavailable as error:
        yield Unreadable(place, error)


def _expanded(place: str) -> list[str]:
    """A pattern as a shell would expand it, with `**`. Nothing if the place itself is to be examined: a file of that
    very name exists, or a file server does not answer."""
    if not is_pattern(place):
        return []
    from glob import glob

    def expand() -> list[str]:
        return [] if os.path.lexists(place) else sorted(glob(place, recursive=True))

    try:
        return read_at(place, expand)
    except EngineUnavailable:
        return []


class _Wanted:
    """The filter. `--held` and `--stale` add up; an age is a condition for all."""

    def __init__(self, options: Namespace) -> None:
        self._only_held = options.held or options.held_longer_than is not None
        conditions = {HELD, ELSEWHERE, MALFORMED, EMPTY} if self._only_held else set()
        if options.stale:
            conditions |= {DEAD, STALE, LEFTOVER}
        self._conditions = conditions or {*CONDITIONS}
        ages = [age for age in (options.older_than, options.held_longer_than) if age is not None]
        self._age: float | None = max(ages, default=None)
        self.ageless = 0
        """Number of held locks that were left out because their age is unknown."""

    def has(self, one: Found) -> bool:
        condition = HELD if is_out_of_reach(one.status) else one.condition
        # Another program's leftover may keep that program out.
        in_the_way = self._only_held and one.condition == LEFTOVER and one.status.locked
        if condition not in self._conditions and not in_the_way:
            return False
        if self._age is None:
            return True
        if one.status.age is None:
            self.ageless += one.status.locked
            return False
        return one.status.age > self._age


def _described(options: Namespace) -> str:
    kinds = [name for name in ("held", "stale") if getattr(options, name)]
    older = options.older_than is not None or options.held_longer_than is not None
    what = " or ".join(kinds) + " lock files" if kinds else "lock files"
    return f"{what} that old" if older else what


def _row(one: Found) -> list[Cell]:
    status, holder = one.status, one.status.holder or Holder()
    pid = _pid(one)
    others = sum(other.pid is not None for other in status.holders) - 1
    return [
        (one.condition, OF_STATE[one.condition]),
        status.protocol or "?",
        "-" if pid is None else f"{pid}+{others}" if others > 0 else str(pid),
        user_name(one.uid) or "-",
        age_of(status.age),
        str(len(status.waiters) or "-"),
        short_path(status.path),
        host_of(holder) or "",
        work_of(holder.command, holder.pid),
        holder.tag or "",
    ]


def host_of(holder: Holder) -> str | None:
    """The holder's host if it is not ours; else None."""
    here = environment().identity().host
    return holder.host if holder.host is not None and holder.host.casefold() != here.casefold() else None


def _pid(one: Found) -> int | None:
    return one.status.holder.pid if one.status.holder is not None and one.condition != FREE else None


def short_path(path: str) -> str:
    """The path as seen from the working directory, if it is below it."""
    try:
        inside = os.getcwd().rstrip("/") + "/"
    except OSError:
        return path
    return path.removeprefix(inside)
