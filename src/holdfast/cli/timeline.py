"""`timeline`: recorded events as one page, which needs nothing else."""

from __future__ import annotations

import argparse
import errno
import json
import os
import stat
import sys

from . import DONE, FAILED, STDOUT, say
from .history import History, percentiles, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LONGEST = 25
_PLACE = "/*EVENTS*/null"


def timeline_(options: argparse.Namespace) -> int:
    """Read the events, write the page."""
    if options.events == "-":
        history = read(sys.stdin.buffer)
    else:
        with open(options.events, "rb") as file:
            history = read(file)
    if history.bad:
        named = history.named[:3]
        more = f", and {history.bad - len(named)} more" if history.bad > len(named) else ""
        lines = "1 line is no event" if history.bad == 1 else f"{history.bad} lines are no events"
        say(f"{lines}: {'; '.join(named)}{more}")
    if not history.events:
        say(f"{options.events} has no events; `holdfast watch --record FILE` records some")
        return FAILED
    beside = "-" if options.events == "-" else os.path.splitext(options.events)[0] + ".html"
    where = options.output or beside
    data = page(history, options.events).encode("utf-8", "backslashreplace")
    if where == "-":
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, STDOUT) from error
    else:
        with open(where, "wb", opener=None if options.output else _open_beside) as file:
            file.write(data)
        if not options.quiet:
            say(f"{history.events} events of {len(history.locks)} locks are drawn in {where}")
    return DONE


def _open_beside(path: str, flags: int) -> int:
    """Nobody has named this path, and others may write to its directory: what they put there is not written to."""
    careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    fd = os.open(path, flags & ~os.O_TRUNC | careful, 0o666)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise OSError(
                errno.EEXIST, "something else than a page of its own is there; name another one with -o", path
            )
        os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def page(history: History, source: str) -> str:
    """The whole page."""
    with open(os.path.join(os.path.dirname(__file__), "page.html"), encoding="utf-8") as file:
        template = file.read()
    # Nothing in the data can end the script that it is in: `<` does not occur in it.
    text = json.dumps(content(history, source), allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return template.replace(_PLACE, text)


def content(history: History, source: str) -> dict[str, Any]:
    """What the page shows: times in milliseconds from the first; who, by number."""
    spells = history.spells
    times = [one.start for one in spells] + [time for _, time in history.marks]
    zero = min(times, default=0.0)
    people: dict[tuple[object, ...], int] = {}
    rows = []
    for one in spells:
        who = people.setdefault((one.pid, one.host, one.tag, one.command), len(people))
        rows.append(
            [one.lock, int(one.holding), _ms(one.start - zero), _ms(one.stop - one.start), who, one.end]
            + ([one.recovered_from] if one.recovered_from is not None else [])
        )
    everything: dict[bool, list[float]] = {True: [], False: []}
    each: list[dict[bool, list[float]]] = [{True: [], False: []} for _ in history.locks]
    for one in spells:
        if one.end != "open":
            everything[one.holding].append(one.stop - one.start)
            each[one.lock][one.holding].append(one.stop - one.start)
    waits = sorted(
        (number for number, one in enumerate(spells) if not one.holding),
        key=lambda number: spells[number].start - spells[number].stop,
    )
    return {
        "source": source,
        "zero": round(zero * 1000, 3),
        "events": history.events,
        "bad": history.bad,
        "named": history.named,
        "locks": [[path, protocol, _figures(each[number])] for number, (path, protocol) in enumerate(history.locks)],
        "all": _figures(everything),
        "people": list(people),
        "spells": rows,
        "marks": [[lock, _ms(time - zero)] for lock, time in history.marks],
        "longest": waits[:_LONGEST],
    }


def _figures(took: dict[bool, list[float]]) -> list[Any]:
    """Of holds and of waits: how many there are, and how long they took."""
    found: list[Any] = []
    for holding in (True, False):
        figures = percentiles(took[holding])
        values = None if figures is None else [round(value, 6) for value in figures.values()]
        found.append([len(took[holding]), values])
    return found


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
