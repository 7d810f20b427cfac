"""How results look: text for people, one JSON object for programs. Nothing is decided here."""

from __future__ import annotations

import argparse
import math
import sys

from .._core.report import advice, brief_command, duration, moment, printable
from .._operator.ids import id_of
from .._os import environment
from ..engines.registry import scheme_of
from ..model import Holder, Record, Status, Value, Waiter
from .table import screen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

    from .._operator.findings import Found

_NAMES = 10
"""Columns for the names of rows."""
_NARROWEST = 20
_OF_LOCK = (
    *("protocol", "tag", "stale", "stale_after", "mode", "durable", "fencing", "shared", "parents"),
    *("payload", "holder", "version"),
)


def lock_options(options: argparse.Namespace) -> dict[str, Any]:
    """The options of `Lock` among those of a command."""
    found = {name: value for name in _OF_LOCK if (value := getattr(options, name, None)) is not None}
    if scheme_of(
        options.lock
    ):  # an engine refuses what it does not have, and a switch that is off is nothing to refuse
        return {name: value for name, value in found.items() if value is not False}
    return found


def user_name(uid: int | None) -> str | None:
    """The name of a user, or the number of one without."""
    if uid is None:
        return None
    if uid not in _users:
        try:
            import pwd

            _users[uid] = pwd.getpwuid(uid).pw_name
        except (ImportError, KeyError, OverflowError):
            _users[uid] = str(uid)
    return _users[uid]


_users: dict[int, str] = {}


def state(status: Status) -> str:
    """One word."""
    return "held" if status.locked else "stale" if status.stale else "free"


def as_json(result: str, status: Status, **more: Any) -> str:
    """One line of JSON. Its fields are documented in docs/cli.md."""
    return dumped(object_of(result, status, **more))


def object_of(result: str, status: Status, **more: Any) -> dict[str, Any]:
    """The same, to be put into something larger."""
    record, holder = status.record, status.holder
    return {
        "result": result,
        "path": status.path,
        "protocol": status.protocol or None,
        "state": state(status),
        "liveness": status.liveness.value,
        "evidence": {
            "source": status.evidence.source,
            "text": status.evidence.text,
            "proven": status.evidence.proven,
        },
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


def dumped(result: Any) -> str:
    """One line of JSON, whatever a lock file had in it: a number too large to be one is null, as in JavaScript."""
    import json

    try:
        return json.dumps(result, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(result))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_MOST_LINES = 50
_HOLDER = ("pid", "host", "since", "tag", "command")


def _fields(value: Value, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _holder(holder: Holder) -> str:
    process = f"process {holder.pid}" + (f" ({brief_command(holder.command)})" if holder.command else "")
    return process + (f" on {holder.host}" if holder.host else "") + (", shared" if holder.shared else "")


def _waiter(waiter: Waiter) -> str:
    words = [f"{waiter.position}." if waiter.position else "-", f"process {waiter.pid}"]
    words += [f"({brief_command(waiter.command)})"] if waiter.command else []
    words += [f"since {moment(waiter.since)}"] if waiter.since is not None else []
    words += [f"for {waiter.tag!r}"] if waiter.tag else []
    return " ".join(words)


def _particulars(record: Record) -> list[tuple[str, str]]:
    """What only the records of one protocol say."""
    if record.protocol == "beads":
        return [("tool", record.fields["holder"]), ("version", record.fields["version"])]
    if record.protocol != "sidecar" or not record.legible:
        return []
    members = {name: value for name, value in record.fields["payload"].items() if not name.startswith("holdfast")}
    return [("payload", dumped(members))]


def rows_of(status: Status) -> list[tuple[str, str]]:
    """What there is to say, each thing with its name."""
    rows = [("lock", f"{status.path} ({status.protocol})"), ("state", state(status))]
    holder = status.holder
    if holder is not None:
        named = [one for one in status.holders or (holder,) if one.pid is not None]
        rows += [("" if number else "holder", _holder(one)) for number, one in enumerate(named)]
        if holder.since is not None:
            rows.append(("since", f"{moment(holder.since)} ({duration(status.age or 0)} ago)"))
        elif status.record_age is not None:
            rows.append(("refreshed", f"{duration(status.record_age)} ago; since when it is held is not known"))
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
    """What is in a lock file, or stored for a lock on a server, line by line."""
    lines = (data or b"").decode("utf-8", "backslashreplace").splitlines() or ["(nothing)"]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = ["…"]
    return [(name if number == 0 else "", line) for number, line in enumerate(lines)]


def rows_of_waiters(waiters: tuple[Waiter, ...]) -> list[tuple[str, str]]:
    """Those who wait, one below the other."""
    return [("waiting" if number == 0 else "", _waiter(waiter)) for number, waiter in enumerate(waiters)]


def text_of(rows: list[tuple[str, str]], stream: TextIO | None = None) -> str:
    """A few lines, safe to print, for this stream or stdout: on a terminal, long ones are folded beside their names."""
    from textwrap import wrap

    width = screen(stream or sys.stdout).width
    found = []
    for name, text in rows:
        whole = printable(text)
        # A path stays in one piece, for whoever copies it.
        as_it_is = width is None or name == "lock"
        room = _NARROWEST if width is None else max(_NARROWEST, width - _NAMES)
        folded = [whole] if as_it_is else wrap(whole, room, break_on_hyphens=False, break_long_words=False)
        found += [f"{name if number == 0 else '':<{_NAMES - 1}} {line}" for number, line in enumerate(folded or [""])]
    return "\n".join(line.rstrip() for line in found)


def of_survey(one: Found) -> dict[str, Any]:
    """What the JSON of a lock has besides its status."""
    from .urls import id_of as url_id

    return {
        "uid": one.uid,
        "user": user_name(one.uid),
        "slot": one.slot,
        "id": url_id(one.status) if scheme_of(one.status.path) else id_of(environment(), one.status),
    }
