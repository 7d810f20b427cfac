"""`ls`: every lock file below some directories, one line each."""

from __future__ import annotations

import argparse
import os
import sys

from .._core.report import printable
from .._operator.findings import CONDITIONS, DEAD, ELSEWHERE, FREE, HELD, MALFORMED, STALE, Found, Unseen
from .._operator.survey import Survey
from .._os import environment
from . import DONE, FAILED, say, show
from .output import as_json, of_survey, user_name
from .table import OF_STATE, Column, age_of, lines, screen
from .urls import found as found_at
from .urls import is_url, masked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from .table import Cell

_MAGIC = frozenset("*?[")
_ORDERS: dict[str, Callable[[Found], Any]] = {
    "path": lambda one: one.status.path,
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
    Column("HOST", cut="end", least=6, drop=4),
    Column("COMMAND", cut="end", least=10, drop=5),
    Column("TAG", cut="end", least=8, drop=6),
)
_ALWAYS = 7
"""So many columns are shown even if nothing is in them."""


def ls_(options: argparse.Namespace) -> int:
    """List what is found; what could not be looked at is told on stderr."""
    places = options.places or ["."]
    wanted = _wanted(options)
    found: list[Found] = []
    complete = True
    for one in _everything(places, recursive=options.recursive):
        if isinstance(one, Found):
            if one.condition in wanted:
                found.append(one)
        else:
            complete = complete and not isinstance(one, Unseen)
            text = f"{one.path}: {one.error.strerror or one.error}" if isinstance(one, Unseen) else one
            if isinstance(one, Unseen) or not options.quiet:
                say(text)
    found.sort(key=_ORDERS[options.sort])
    if options.json:
        if found:
            show("\n".join(map(as_object, found)))
    elif found:
        show("\n".join(_table(found)))
    elif not options.quiet:
        say(f"no {_described(options)} in {', '.join(printable(masked(place), 100) for place in places[:3])}")
    return DONE if complete else FAILED


def as_object(one: Found) -> str:
    """One line of JSON: as `status --json`, and what a survey knows."""
    status = one.status
    return as_json("held" if status.locked else "free", status, condition=one.condition, **of_survey(one))


def _everything(places: Iterable[str], *, recursive: bool) -> Iterator[Found | Unseen | str]:
    """Each lock file once, whatever places it is in; and a message for a named file that is none."""
    survey = Survey(environment())
    seen: set[str] = set()
    for place in places:
        expanded = _expanded(place)
        for path in expanded or [place]:
            for one in _of_place(survey, path, recursive=recursive):
                if isinstance(one, Found):
                    if one.status.path in seen:
                        continue
                    seen.add(one.status.path)
                elif isinstance(one, str) and expanded:
                    continue  # a pattern names whatever fits
                yield one


def _of_place(survey: Survey, place: str, *, recursive: bool) -> Iterator[Found | Unseen | str]:
    if is_url(place):
        yield from found_at(place)
        return
    path = os.path.join(os.getcwd(), place) if ".." in place.split("/") else os.path.abspath(place)
    try:
        os.lstat(path)
        if os.path.isdir(path):
            yield from survey.directory(path, recursive=recursive)
            return
        one = survey.file(path)
    except (OSError, ValueError) as error:
        yield Unseen(path, error if isinstance(error, OSError) else OSError(0, str(error)))
        return
    yield one if one is not None else f"{path} is no lock file of a known protocol"


def _expanded(place: str) -> list[str]:
    """A pattern as a shell would expand it, with `**`; what is there is taken by its name, whatever is in that."""
    if is_url(place) or _MAGIC.isdisjoint(place) or os.path.lexists(place):
        return []
    from glob import glob

    return sorted(glob(place, recursive=True))


def _wanted(options: argparse.Namespace) -> set[str]:
    """The conditions that are asked for; both options together are their sum."""
    wanted = {HELD, ELSEWHERE, MALFORMED} if options.held else set()
    if options.stale:
        wanted |= {DEAD, STALE}
    return wanted or {*CONDITIONS}


def _described(options: argparse.Namespace) -> str:
    kinds = [name for name in ("held", "stale") if getattr(options, name)]
    return " or ".join(kinds) + " lock files" if kinds else "lock files"


def _table(found: list[Found]) -> list[str]:
    here = environment().identity().host
    rows = [_row(one, here) for one in found]
    unused = {
        number for number in range(_ALWAYS, len(_COLUMNS)) if all(not row[number] or row[number] == "-" for row in rows)
    }
    columns = [column for number, column in enumerate(_COLUMNS) if number not in unused]
    kept = [[cell for number, cell in enumerate(row) if number not in unused] for row in rows]
    return lines(columns, kept, screen(sys.stdout))


def _row(one: Found, here: str) -> list[Cell]:
    status, holder = one.status, one.status.holder
    pid = _pid(one)
    host = holder.host if holder is not None else None
    elsewhere = host is not None and host.casefold() != here.casefold()
    others = sum(other.pid is not None for other in status.holders) - 1
    return [
        (one.condition, OF_STATE[one.condition]),
        status.protocol or "?",
        "-" if pid is None else f"{pid}+{others}" if others > 0 else str(pid),
        user_name(one.uid) or "-",
        age_of(status.age),
        str(len(status.waiters) or "-"),
        _short(status.path),
        host if elsewhere and host else "",
        (holder.command if holder is not None else None) or "",
        (holder.tag if holder is not None else None) or "",
    ]


def _pid(one: Found) -> int | None:
    return one.status.holder.pid if one.status.holder is not None and one.condition != FREE else None


def _short(path: str) -> str:
    """As seen from the working directory, where that is shorter."""
    try:
        inside = os.getcwd().rstrip("/") + "/"
    except OSError:
        return path
    return path.removeprefix(inside)
