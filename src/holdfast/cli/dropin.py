"""What `holdfast sema` and `holdfast semats` share: how their words are said, and how a lock outlives the command.

Their texts, streams and exit statuses are those of the commands whose names they have (docs/dropin.md). What they do to
a lock file is the engine's.
"""

from __future__ import annotations

import os
import stat
import sys
from enum import Enum

from .._core.liveness import assess
from .._core.observe import forget, observe
from .._core.remove import remove_if
from .._core.report import printable
from .._drive.sync import drive
from ..errors import InvalidPath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .._core.liveness import Assessment
    from .._core.observe import Observation
    from ..lock import Lock
    from ..model import Record


class Kind(Enum):
    """What is at a path."""

    NOTHING = "nothing"
    FILE = "a regular file"
    OTHER = "something that can be no lock file"


def speak_utf8() -> None:
    """Say everything in UTF-8, as those commands do, whatever the locale."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]


def kind_of(path: str) -> Kind:
    """What is there; nothing, too, where nothing can be. OSError where that cannot be known."""
    import errno

    try:
        found = os.lstat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return Kind.NOTHING
        raise
    return Kind.FILE if stat.S_ISREG(found.st_mode) else Kind.OTHER


def look_at(lock: Lock) -> tuple[Observation, Assessment] | None:
    """What is in the lock file, and what is known of its holder; None if there is no file. Nothing is kept open."""
    seen = observe(lock._env, lock._request)
    if seen is None:
        return None
    try:
        return seen, assess(lock._env, seen)
    finally:
        forget(lock._env, seen)


def acquire_and_leave(lock: Lock, timeout: float | None, tell: Callable[[Record], object]) -> None:
    """Acquire it, `tell` of it, and leave the lock file to whoever called: a plain record that nobody vouches for.

    Without a marker: with one, contenders would take the end of this command for the end of the hold. If it cannot be
    told, nobody knows that there is something to release; then it is given back.
    """
    request = lock._request
    request.unmarked = True
    try:
        hold = lock.acquire(timeout)
        tell(hold.record)
        hold._leave_to(os.getpid())
    except BaseException:
        for held in list(lock._env.holds.values()):
            if held.request is request:
                held.give_back()
        raise


def remove(lock: Lock, agreed: Callable[[Observation, Assessment], bool]) -> bool:
    """Remove the lock file if `agreed` to what was seen; whether it is gone on that word."""
    unusable: list[bool] = []

    def noted(seen: Observation, assessed: Assessment) -> bool:
        answer = agreed(seen, assessed)
        unusable[:] = [answer and seen.record is None]  # it is removed without a record to show for it
        return answer

    return drive(remove_if(lock._env, lock._request, noted)) is not None or unusable == [True]


def clear(text: str) -> str:
    """The whole text, in a form that no terminal takes for a command."""
    return printable(text, len(text))


def complain(text: str) -> None:
    """Write to stderr. That nobody can read it is no reason to fail."""
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def json_of(value: dict[str, Any], *, indent: int | None = None) -> str:
    """JSON with whatever is printable as it is, as those commands write it, and all else escaped."""
    import json

    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=(",", ":" if indent is None else ": "))
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def system_error(error: Exception) -> OSError | None:
    """What the system said, also where the engine has put it into words of its own; None if it has said nothing."""
    cause = error.__cause__ if isinstance(error, InvalidPath) else error
    return cause if isinstance(cause, OSError) and cause.errno else None
