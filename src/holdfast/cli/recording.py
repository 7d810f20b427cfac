"""Recorded events: a file with one JSON object on each line, which several processes may share."""

from __future__ import annotations

import os

from .output import dumped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..events import Event


class Record:
    """Each line is appended by one write to a file in append mode, so those of several processes never mix."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def add(self, line: str) -> None:
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        if os.write(self._fd, data) != len(data):
            raise OSError(0, "an event could be recorded only in part", self._path)


def recorded(path: str, command: list[str], host: str) -> Callable[[], None]:
    """Record what happens to the locks of this process, which runs this command, until the result is called."""
    from ..events import listen

    record = Record(path)
    words = " ".join(command)
    return listen(lambda event: record.add(as_line(event, words, host)))


def as_line(event: Event, command: str, host: str) -> str:
    """The fields of `watch`. A slot of a semaphore is told by its lock file."""
    path = event.path if event.slot is None else f"{event.path}.{event.slot}.lock"
    before = event.recovered_from
    return line_of(
        {
            "kind": event.kind,
            "time": event.time,
            "path": path,
            "protocol": event.protocol,
            "pid": event.pid,
            "host": host,
            "tag": event.tag,
            "command": command,
            "waited": event.waited,
            "held": event.held,
            "recovered_from": before.pid if before is not None else None,
        }
    )


def line_of(values: dict[str, Any]) -> str:
    """One line of JSON, with times to the microsecond."""
    for name in ("time", "waited", "held"):
        values[name] = None if values[name] is None else round(values[name], 6)
    return dumped(values)
