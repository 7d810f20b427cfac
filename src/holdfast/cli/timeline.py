"""`timeline`: draw recorded events as one self-contained page.

The first half makes holds and waits of events: who held each lock, and who waited, from when to when. An event that
begins a hold or a wait that has begun already, or ends one that has ended, counts once: a file may have the events of a
process both from `watch` and from the process itself. A process that waits for a semaphore waits for its base, and then
has one of its slots, which is another path: that ends the wait.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from .._drivers.apart import read_at
from ..errors import set_error_path
from ..model import Value
from ..protocols import is_persistent
from .options import Namespace
from .outcome import DONE, FAILED, STDIN, say, show_bytes

KINDS = frozenset({"held", "waiting", "joined", "gave-up", "reclaimed", "acquired", "stale", "lost", "released"})
_SLOT = re.compile(r"(.+)\.[0-9]{1,3}\.lock|(.+://.+)#[0-9]{1,3}", re.DOTALL)
"""The path of a slot, as a file or on a server, and its base."""
_LONGEST_TEXT = 400
_MOST_NAMED = 20
_LATEST = 253_402_300_800.0
"""The year 10000. A later time is not valid."""


class Spell(Value):
    """A hold or a wait of one process. `end` says how it ended: released, lost, reclaimed, acquired, gave-up; open: not
    while events were recorded; unseen: before the next holder had the lock."""

    lock: int
    holding: bool
    start: float
    stop: float
    end: str
    pid: int | None
    host: str | None
    tag: str | None
    command: str | None
    recovered_from: int | None = None


class History(Value):
    """All that the events tell. `locks`: path and protocol of each. `marks`: when a lock was called stale. `bad`: the
    number of lines that are no events; `named`: which, and why, for the first of them."""

    locks: list[tuple[str, str]]
    spells: list[Spell]
    marks: list[tuple[int, float]]
    events: int
    bad: int
    named: list[str]


def read(lines: Iterable[bytes]) -> History:
    """The history that these lines of JSON tell, in any order."""
    events: list[dict[str, Any]] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
            problem = _problem(event)
        except (ValueError, RecursionError):
            problem = "it is not JSON" if line.endswith(b"\n") else "it is not JSON: the last line is cut off"
        if problem is None:
            events.append(event)
        else:
            problems.append(f"line {number}: {problem}")
    events.sort(key=lambda event: float(event["time"]))
    teller = _Teller()
    for event in events:
        teller.hear(event)
    return History(*teller.told(), len(events), len(problems), problems[:_MOST_NAMED])


def _problem(event: Any) -> str | None:
    if not isinstance(event, dict):
        return "it is not a JSON object"
    kind, time, path = event.get("kind"), event.get("time"), event.get("path")
    if not isinstance(kind, str) or kind not in KINDS:
        return f"its kind, {str(kind)[:40]!r}, is unknown"
    if not 0 <= _number(time) < _LATEST:
        return "it has no time"
    return None if isinstance(path, str) else "it has no path"


def _number(value: object) -> float:
    """A usable number, or -1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -(2**63) < value < 2**63:
        return -1.0
    return float(value)


class _Teller:
    """Turns events, which come in the order of their times, into spells."""

    def __init__(self) -> None:
        self._locks: dict[str, int] = {}
        self._protocols: dict[str, str] = {}
        self._holding: dict[tuple[str, Any], tuple[float, dict[str, Any]]] = {}
        self._waiting: dict[tuple[str, Any], tuple[float, dict[str, Any]]] = {}
        self._spells: list[Spell] = []
        self._marks: list[tuple[int, float]] = []
        self._stale: dict[str, float] = {}
        self._latest = 0.0

    def hear(self, event: dict[str, Any]) -> None:
        path, slot = event["path"], _integer(event.get("slot"))
        path = path if slot is None else f"{path}.{slot}.lock"
        lock = self._locks.setdefault(path, len(self._locks))
        self._protocols[path] = _text(event.get("protocol")) or self._protocols.get(path, "")
        time, kind = float(event["time"]), event["kind"]
        self._latest = max(self._latest, time)
        who = (path, (_integer(event.get("pid")), _text(event.get("host"))))
        if kind == "waiting":
            self._waiting.setdefault(who, (time - _seconds(event.get("waited")), event))
        elif kind in ("gave-up", "joined"):
            self._end_wait(who, time, "gave-up" if kind == "gave-up" else "acquired", event)
        elif kind in ("acquired", "held"):
            self._begin(who, time, event)
        elif kind == "stale":
            self._stale[path] = time
            self._marks.append((lock, time))
        elif kind in ("released", "lost"):
            self._end_hold(who, time, kind, event)

    def _begin(self, who: tuple[str, Any], time: float, event: dict[str, Any]) -> None:
        if who in self._holding:
            return
        before = _integer(event.get("recovered_from"))
        shared = is_persistent(self._protocols[who[0]])  # then others may go on holding it
        for other in [other for other in self._holding if other[0] == who[0] and not shared]:
            dead = other[1][0] == before or self._stale.get(who[0], -1.0) >= self._holding[other][0]
            self._end_hold(other, time, "reclaimed" if dead else "unseen", {})
        self._end_wait(who, time, "acquired", event)
        self._holding[who] = (time, event)

    def _end_wait(self, who: tuple[str, Any], time: float, end: str, event: dict[str, Any]) -> None:
        waited = _seconds(event.get("waited"))
        if who not in self._waiting and event.get("waited") != 0:
            who = self._for_any_slot(who)
        start, told = self._waiting.pop(who, (time - waited, event))
        if told is not event or waited > 0:
            told = {**told, "recovered_from": None}
            self._spells.append(_spell(self._locks[who[0]], start, time, end, told, holding=False))

    def _for_any_slot(self, who: tuple[str, Any]) -> tuple[str, Any]:
        """The same process as a waiter for the semaphore of this slot, if it is one; else `who`."""
        found = _SLOT.fullmatch(who[0])
        base = (found[1] or found[2], who[1]) if found else who
        return base if base in self._waiting else who

    def _end_hold(self, who: tuple[str, Any], time: float, end: str, event: dict[str, Any]) -> None:
        held = _seconds(event.get("held"))
        lock = self._locks[who[0]]
        if who not in self._holding and (not held or self._is_told(lock, time, event)):
            return
        start, told = self._holding.pop(who, (time - held, event))
        self._spells.append(_spell(lock, start, time, end, told, holding=True))

    def _is_told(self, lock: int, time: float, event: dict[str, Any]) -> bool:
        """Whether the same end has been told already, by another observer."""
        for one in reversed(self._spells[-50:]):
            if one.holding and one.lock == lock and one.pid == _integer(event.get("pid")) and time - one.stop < 1.0:
                return True
        return False

    def told(self) -> tuple[list[tuple[str, str]], list[Spell], list[tuple[int, float]]]:
        for open_ones, holding in ((self._holding, True), (self._waiting, False)):
            for (path, _), (start, event) in open_ones.items():
                stop = max(self._latest, start)
                self._spells.append(_spell(self._locks[path], start, stop, "open", event, holding=holding))
        self._spells.sort(key=lambda one: one.start)
        return [*self._protocols.items()], self._spells, self._marks


def _spell(lock: int, start: float, stop: float, end: str, event: dict[str, Any], *, holding: bool) -> Spell:
    return Spell(
        lock, holding, max(0.0, start), max(0.0, start, stop), end,
        _integer(event.get("pid")), _text(event.get("host")), _text(event.get("tag")), _text(event.get("command")),
        _integer(event.get("recovered_from")),
    )  # fmt: skip


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """Percentiles by the nearest rank; None if there are no values."""
    if not values:
        return None
    ordered = sorted(values)
    found = {f"p{part}": ordered[math.ceil(part / 100 * len(ordered)) - 1] for part in (50, 90, 99)}
    return {**found, "max": ordered[-1]}


def _seconds(value: object) -> float:
    seconds = _number(value)
    return seconds if 0 < seconds < _LATEST else 0.0


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else None


def _text(value: object) -> str | None:
    return value[:_LONGEST_TEXT] if isinstance(value, str) and value else None


_LONGEST = 25
_PLACE = "/*EVENTS*/null"


def timeline_(options: Namespace) -> int:
    """Read the events, write the page."""
    history = _recorded(options.events)
    if history.bad:
        named = history.named[:3]
        more = f", and {history.bad - len(named)} more" if history.bad > len(named) else ""
        lines = "1 line is not an event" if history.bad == 1 else f"{history.bad} lines are not events"
        say(f"{lines}: {'; '.join(named)}{more}")
    if not history.events:
        say(f"{options.events} has no events; `holdfast watch --record FILE` records some")
        return FAILED
    beside = "-" if options.events == "-" else os.path.splitext(options.events)[0] + ".html"
    where = options.output or beside
    data = page(history, options.events).encode("utf-8", "backslashreplace")
    if where == "-":
        show_bytes(data)
    else:
        read_at(where, lambda: _write(where, data, options))
        if not options.quiet:
            events = "1 event" if history.events == 1 else f"{history.events} events"
            locks = "1 lock" if len(history.locks) == 1 else f"{len(history.locks)} locks"
            say(f"{where} shows {events} of {locks}")
    return DONE


def _write(where: str, data: bytes, options: Namespace) -> None:
    """Write the page, though not over its events."""
    if options.events != "-" and os.path.isfile(where) and os.path.samefile(where, options.events):
        raise ValueError(f"the page would be written over {options.events}; name another file for it (-o)")
    try:
        with open(where, "wb", opener=None if options.output else _open_beside) as file:
            file.write(data)
    except OSError as error:
        set_error_path(error, where)
        raise


def _recorded(events: str) -> History:
    """The history in that file, or on stdin for `-`."""
    if events != "-":
        return read_at(events, lambda: _read_file(events))
    if sys.stdin is None:
        raise OSError(errno.EBADF, "it is closed", STDIN)
    return read(sys.stdin.buffer)


def _read_file(path: str) -> History:
    with open(path, "rb") as file:
        return read(file)


def _open_beside(path: str, flags: int) -> int:
    """Open a path that the caller did not name. Others may write to its directory: never follow a link there."""
    careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    fd = os.open(path, flags & ~os.O_TRUNC | careful, 0o666)
    try:
        there = os.lstat(path)  # the number of names, while this is one of them
        if not stat.S_ISREG(there.st_mode) or not os.path.samestat(there, os.fstat(fd)) or there.st_nlink > 1:
            raise OSError(errno.EEXIST, "the file there is not such a page; name another one with -o", path)
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
    """The data of the page: times in milliseconds from the first; people by number."""
    spells = history.spells
    times = [one.start for one in spells] + [time for _, time in history.marks]
    zero = min(times, default=0.0)
    people: dict[tuple[object, ...], int] = {}
    rows = []
    for one in spells:
        who = people.setdefault((one.pid, one.host, one.tag, one.command), len(people))
        row = [one.lock, int(one.holding), _ms(one.start - zero), _ms(one.stop - one.start), who, one.end]
        rows.append(row if one.recovered_from is None else [*row, one.recovered_from])
    each: list[list[Spell]] = [[] for _ in history.locks]
    for one in spells:
        each[one.lock].append(one)
    waits = sorted(
        (number for number, one in enumerate(spells) if not one.holding),
        key=lambda number: spells[number].start - spells[number].stop,
    )
    return {
        "source": source, "zero": _ms(zero), "events": history.events, "bad": history.bad, "named": history.named,
        "locks": [[path, protocol, _figures(each[number])] for number, (path, protocol) in enumerate(history.locks)],
        "all": _figures(spells), "people": list(people), "spells": rows,
        "marks": [[lock, _ms(time - zero)] for lock, time in history.marks],
        "longest": waits[:_LONGEST],
    }  # fmt: skip


def _figures(spells: Iterable[Spell]) -> list[Any]:
    """Number and durations of the holds and of the waits that have ended."""
    ended = [one for one in spells if one.end != "open"]
    found: list[Any] = []
    for holding in (True, False):
        took = [one.stop - one.start for one in ended if one.holding is holding]
        figures = percentiles(took)
        found.append([len(took), figures and [round(value, 6) for value in figures.values()]])
    return found


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
