"""Output of results: tables and lines for people, one JSON object for programs. Nothing is decided here.

These functions take any content of a lock file: text for a terminal is escaped here. A table is aligned and as wide as
the terminal; in a pipe nothing is cut.

Recorded events are a file with one JSON object on each line, which several processes may share.
"""

from __future__ import annotations

import functools
import os
import sys

from .._core.messages import advice, brief_command, duration, first_holder, moment, printable, since_when
from .._platform import environment
from ..errors import InvalidPath, set_error_path
from ..events import Event, listen
from ..model import Holder, Record, Status, Value, Waiter
from .locks import is_url, refuse_empty
from .options import split
from .outcome import Screen, problem_at, say, screen, wrapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, TextIO

    from .._admin.found import Found

Cell = str | tuple[str, str]
"""Text, or text with the name of its style."""

OF_STATE = {
    "held": "green", "dead": "red", "stale": "yellow", "elsewhere": "blue", "malformed": "magenta", "empty": "magenta",
    "leftover": "yellow", "free": "dim",
}  # fmt: skip
"""The style of each state that a lock file can be in (scan.py)."""
_GAP = 2
WIDEST_PADDED = 255
"""Widest padding in a pipe. A longer cell is printed whole, but does not push the columns of all other rows apart."""
_LONGEST = 20_000


class Column(Value):
    """A column of a table. `cut`: where a long text is cut off, `end` or `start`; None: it is never cut. `least`:
    characters that are kept. `drop`: if even that is too wide, columns with a higher number are left out first; those
    with 0 stay. `optional`: left out if it is empty."""

    title: str
    right: bool = False
    cut: str | None = None
    least: int = 8
    drop: int = 0
    optional: bool = False


def lines(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], on: Screen, floors: dict[int, int] | None = None
) -> list[str]:
    """The rows, escaped and aligned, below titles. `floors`: the least width of columns; raised to the widest cell."""
    cells = [[_measured(cell) for cell in row] for row in rows]
    floors = {} if floors is None else floors
    widths = {}
    for number, column in enumerate(columns):
        widest = max([floors.get(number, 0), *(row[number][1] for row in cells)])
        if widest or not column.optional:
            floors[number] = widest
            widths[number] = max(len(column.title), widest)
            if on.width is None or column.cut:
                widths[number] = min(widths[number], on.width or WIDEST_PADDED)
    if on.width is not None:
        _fit_into(on.width, columns, widths)
    titles = [(column.title, len(column.title), "") for column in columns]
    return [on.paint(_line(columns, widths, titles, on), "bold"), *(_line(columns, widths, row, on) for row in cells)]


def _measured(cell: Cell) -> tuple[str, int, str]:
    """A cell's text, escaped, with its width and its style."""
    text, style = (cell, "") if isinstance(cell, str) else cell
    text = printable(text, _LONGEST)
    return text, width_of(text), style


_NEVER_LESS = 4


def _fit_into(width: int, columns: Sequence[Column], widths: dict[int, int]) -> None:
    """Make the table as narrow: first cuttable columns shrink to their `least`, then whole columns go, then one shrinks
    more."""
    while (over := sum(widths.values()) + _GAP * (len(widths) - 1) - width) > 0:
        loose = [n for n in widths if columns[n].cut and widths[n] > columns[n].least]
        last = max(widths, key=lambda n: (columns[n].drop, n))
        if loose:
            widths[max(loose, key=widths.__getitem__)] -= 1
        elif columns[last].drop:
            del widths[last]
        else:
            at = max((n for n in widths if columns[n].cut), key=widths.__getitem__, default=None)
            if at is not None:
                widths[at] = max(_NEVER_LESS, widths[at] - over)
            break


def _line(columns: Sequence[Column], widths: dict[int, int], cells: Sequence[tuple[str, int, str]], on: Screen) -> str:
    parts = []
    last = next(reversed(widths), None)
    for number, width in widths.items():
        column, (text, size, style) = columns[number], cells[number]
        if on.width is not None and size > width and column.cut:
            text = fit(text, width, column.cut)
            size = width_of(text)
        padding, styled = " " * (width - size), on.paint(text, style)
        parts.append(padding + styled if column.right else styled if number == last else styled + padding)
    return (" " * _GAP).join(parts).rstrip()


def fit(text: str, width: int, cut: str = "end") -> str:
    """As much of a printable text as fits into `width` columns of a terminal; `…` stands for the rest."""
    if width_of(text) <= width:
        return text
    room, kept = max(0, width - 1), 0
    characters = text if cut == "end" else reversed(text)
    for count, character in enumerate(characters):
        kept += width_of(character)
        if kept > room:
            return text[:count] + "…" if cut == "end" else "…" + (text[-count:] if count else "")
    return text


def work_of(command: str | None, pid: int | None = None) -> str:
    """A command line as people think of it; for `holdfast run`, the command that it runs. `pid`: its process, which is
    asked for the words if a `--` in the line may belong to a tag, say."""
    brief = brief_command(command or "")
    before, _, behind = brief.partition("holdfast run ")
    if before and not (before.startswith("python") and before.endswith(" -m ")):
        return brief
    words = _words_of(command or "", pid) if behind.count(" -- ") > 1 else []
    if "run" in words and "--" in words:
        return " ".join(" ".join(split(words[words.index("run") :])[1]).split()) or brief
    return behind.partition(" -- ")[2] or brief


def _words_of(command: str, pid: int | None) -> list[str]:
    """The words of that command line; empty if the process does not tell them, or has another command line by now."""
    program = None if pid is None else environment().program(pid)
    words = [] if program is None else program[1]
    return words if " ".join(words).strip().startswith(command) else []


def age_of(seconds: float | None) -> str:
    """A short age for a column: `8s`, `12m`, `5h`, `3d`, or `-`."""
    return "-" if seconds is None else duration(seconds).replace("min", "m").replace(" ", "")


def width_of(text: str) -> int:
    """The width of a printable text, in columns of a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    # Many vowel signs stand above or below their letter, though they have no combining class.
    return sum(0 if category(c) in ("Mn", "Me") else 2 if east_asian_width(c) in "WF" else 1 for c in text)


_NAMES = 10
"""Columns for the names of rows."""
_NARROWEST = 20


@functools.cache
def user_name(uid: int | None) -> str | None:
    """The name of a user, or the number if there is no name; None where users have no numbers."""
    if uid is None or not hasattr(os, "getuid"):
        return None
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError, OverflowError):
        return str(uid)


def state(status: Status) -> str:
    """The state in one word."""
    return "held" if status.locked else "stale" if status.stale else "free"


def as_json(status: Status, result: str | None = None, /, **more: Any) -> str:
    """The status as one line of JSON. Its fields are documented in docs/cli.md. `result`: of a command that does more
    than look."""
    return dumped(object_of(status, result, **more))


def object_of(status: Status, result: str | None = None, /, **more: Any) -> dict[str, Any]:
    """The object of `as_json`, to be nested in a larger one."""
    record, holder = status.record, status.holder
    return {
        "result": result or ("held" if status.locked else "free"),
        "path": status.path,
        "protocol": status.protocol or None,
        "state": state(status),
        "liveness": status.liveness.value,
        "evidence": {"source": status.evidence.source, "text": status.evidence.text, "proven": status.evidence.proven},
        "reason": status.reason,
        "age": None if status.age is None else round(status.age, 3),
        "record_age": None if status.record_age is None else round(status.record_age, 3),
        "modified": status.modified,
        "holder": None if holder is None else _fields(holder, _HOLDER),
        "holders": [_fields(one, (*_HOLDER, "shared")) for one in status.holders],
        "waiters": [_fields(waiter, ("position", "pid", "since", "tag", "command")) for waiter in status.waiters],
        "record": None if record is None else dict(record.fields),
        **more,
    }


def of_survey(one: Found) -> dict[str, Any]:
    """Fields that the JSON of a lock has besides its status if a survey has found it."""
    from .._admin.scan import id_of

    status, foreign = one.status, one.advice is not None
    its_id = None if foreign else url_id_of(status) if is_url(status.path) else id_of(environment(), status)
    kind = status.protocol if foreign else None
    return {"uid": one.uid, "user": user_name(one.uid), "slot": one.slot, "id": its_id, "kind": kind}


def dumped(result: Any) -> str:
    """One line of JSON, whatever a lock file contains: a number that is not finite is null, as in JavaScript."""
    import json

    try:
        return json.dumps(result, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(result), parse_constant=lambda _name: None))


_MOST_LINES = 50
_HOLDER = ("pid", "host", "since", "tag", "command")


def _fields(value: Holder | Waiter, names: tuple[str, ...]) -> dict[str, Any]:
    return {**{name: getattr(value, name) for name in names}, "stopped": _is_stopped(value)}


def _is_stopped(one: Holder | Waiter) -> bool:
    """Whether its process is stopped, if it is one of this machine: it does nothing until it is continued."""
    env = environment()
    if one.pid is None or one.command is None or not env.inspect(one.pid).stopped:
        return False
    return env.command(one.pid) == one.command  # else the number is another machine's


def _if_stopped(one: Holder | Waiter) -> str:
    return f", stopped (kill -CONT {one.pid} continues it)" if _is_stopped(one) else ""


def holder_text(holder: Holder) -> str:
    """The holder in words: process, command and host."""
    process = "somebody" if holder.pid is None else f"process {holder.pid}"
    process += f" ({brief_command(holder.command)})" if holder.command else ""
    process += f" on {holder.host}" if holder.host else ""
    return process + (", shared" if holder.shared else "") + _if_stopped(holder)


def _waiter(waiter: Waiter) -> str:
    words = [f"{waiter.position}." if waiter.position else "-", f"process {waiter.pid}"]
    words += [f"({brief_command(waiter.command)})"] if waiter.command else []
    words += [f"since {moment(waiter.since)}"] if waiter.since is not None else []
    words += [f"for {waiter.tag!r}"] if waiter.tag else []
    return " ".join(words) + _if_stopped(waiter)


def _particulars(record: Record) -> list[tuple[str, str]]:
    """Rows for the fields that only the records of one protocol have."""
    if record.protocol == "beads":
        return [("tool", record.fields["holder"]), ("version", record.fields["version"])]
    if record.protocol != "sidecar" or not record.legible:
        return []
    members = {name: value for name, value in record.fields["payload"].items() if not name.startswith("holdfast")}
    return [("payload", dumped(members))]


def rows_of(status: Status) -> list[tuple[str, str]]:
    """Everything to say about a status, as names and texts."""
    rows = [("lock", f"{status.path} ({status.protocol})"), ("state", state(status))]
    holder = status.holder
    if holder is not None:
        named = [one for one in status.holders or (holder,) if one.pid is not None]
        rows += [("" if number else "holder", holder_text(one)) for number, one in enumerate(named)]
        if (first := first_holder(status)) is not None:
            rows.append(("left by", f"process {first}, which has ended"))
        if holder.since is not None:
            rows.append(("since", since_when(holder.since, status.age)))
        elif status.record_age is not None:
            rows.append(("refreshed", f"{duration(status.record_age)} ago; when it was acquired is not known"))
        own = _particulars(status.record) if status.record is not None else []
        rows += [(name, text) for name, text in own if text]
        if holder.tag is not None and ("tool", holder.tag) not in own and status.protocol != "sidecar":
            rows.append(("tag", holder.tag))
        rows.append(("liveness", f"{status.liveness.value}: {status.evidence.text}"))
        rows.append(("verdict", status.reason))
        if status.locked or status.stale:
            rows.append(("next", advice(status) if status.locked else "Acquire it: that takes it over"))
    return rows + rows_of_waiters(status.waiters)


def rows_of_content(name: str, data: bytes | None) -> list[tuple[str, str]]:
    """The content of a lock file, or of a lock on a server, line by line."""
    lines = (data or b"").decode("utf-8", "backslashreplace").splitlines() or ["(nothing)"]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = ["…"]
    return [(name if number == 0 else "", line) for number, line in enumerate(lines)]


def rows_of_waiters(waiters: tuple[Waiter, ...]) -> list[tuple[str, str]]:
    """One row for each waiter."""
    return [("waiting" if number == 0 else "", _waiter(waiter)) for number, waiter in enumerate(waiters)]


def text_of(rows: list[tuple[str, str]], stream: TextIO | None = None) -> str:
    """The rows as lines, safe to print on this stream or stdout; a terminal gets long texts folded beside the names."""
    width = screen(stream or sys.stdout).width
    found = []
    for name, text in rows:
        whole = printable(text)
        room = sys.maxsize if width is None else max(_NARROWEST, width - _NAMES)
        if len(whole) <= room:
            folded = [whole]
        elif name == "lock":
            folded = [part for part in whole.rpartition(" ") if part.strip()]  # a path in one piece, to be copied
        else:
            folded = wrapped(whole, room)
        found += [f"{name if number == 0 else '':<{_NAMES - 1}} {line}" for number, line in enumerate(folded or [""])]
    return "\n".join(line.rstrip() for line in found)


class Recording:
    """A file of events. One write in append mode adds each line, so lines of several processes never mix."""

    def __init__(self, path: str, locks: Iterable[str] = ()) -> None:
        from .._drivers.apart import seen_at
        from .._platform.handles import open_to_append

        refuse_empty(path)
        self._path = path
        self._place = os.path.abspath(path)  # now: the working directory may be removed later
        if self._place in map(os.path.abspath, locks):
            raise InvalidPath(f"{path} is the lock file; the events need a file of their own", path=path)
        self._seen_at = seen_at
        try:
            self._fd = seen_at(path, lambda: open_to_append(path))
        except OSError as error:
            set_error_path(error, path)
            raise

    def add(self, line: str) -> None:
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        try:
            if self._seen_at(self._place, lambda: os.write(self._fd, data)) != len(data):
                raise OSError(0, "an event could be recorded only in part")
        except OSError as error:
            set_error_path(error, self._path)
            raise


def record_events(path: str, command: list[str], host: str, locks: Iterable[str]) -> None:
    """Record the events of this process's locks from now on, with the command that it runs. An event that cannot be
    recorded changes nothing for the command; the first is reported."""
    record = Recording(path, locks)
    words = " ".join(command)
    missed: list[Event] = []

    def add(event: Event) -> None:
        try:
            record.add(as_line(event, words, host))
        except OSError as error:
            if not missed:
                missed.append(event)
                say(f"{problem_at(path, error)}; events are missing from it")

    listen(add)


def as_line(event: Event, command: str, host: str) -> str:
    """An event as a line of JSON with the fields of `watch`. A semaphore's slot is named by its lock file."""
    path = event.path if event.slot is None else f"{event.path}.{event.slot}.lock"
    before = event.recovered_from
    values = {
        "kind": event.kind, "time": event.time, "path": path, "protocol": event.protocol, "pid": event.pid,
        "host": host, "tag": event.tag, "command": command, "waited": event.waited, "held": event.held,
        "recovered_from": before.pid if before is not None else None,
    }  # fmt: skip
    return line_of(values)


def line_of(values: dict[str, Any]) -> str:
    """One line of JSON, with times to the microsecond."""
    for name in ("time", "waited", "held"):
        values[name] = None if values[name] is None else round(values[name], 6)
    return dumped(values)


_LASTING = ("token", "create_revision", "session", "lease")
"""Fields of a record that identify one acquisition, on engines that have them."""


def url_id_of(status: Status) -> str | None:
    """A short name for the acquisition that was seen; None if the lock is free."""
    if status.record is None or not status.locked:
        return None
    return name_of_record(status.path, status.record)


def name_of_record(path: str, record: Record) -> str:
    from hashlib import blake2b

    lasting = [record.fields.get(name) for name in _LASTING]
    about = (path, record.pid, record.host, record.created, *lasting)
    return blake2b(repr(about).encode(), digest_size=6).hexdigest()
