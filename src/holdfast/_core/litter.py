"""What dead processes have left beside lock files. Only looked at: `holdfast clean` removes it.

J9  Nothing is opened but our own tickets and what announces a removal; both only read, and probed as a reader.
"""

from __future__ import annotations

import re
import stat

from . import recognition, tickets
from .diagnosis import GOOD, NOTE, WEAKER, Finding
from .environment import Environment
from .files import let_go
from .observe import UNFINISHED
from .publish import temporary_name
from .rivals import has_ended

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_OLD = 60.0
"""Seconds after which nobody is believed to be at a removal any more (rivals.py)."""
_SHOWN = 3
_PID = re.compile(r"\.([0-9]{1,10})\.[0-9a-f]{16}\.tmp\Z")


def of_leftovers(env: Environment, directory: str) -> Iterator[Finding]:
    """One finding for each kind."""
    names = sorted(env.list_directory(directory))
    kinds = (
        ("our temporary files", _temporary(env, names), NOTE, "the next process to publish by names removes them"),
        ("temporary files of semats", _rivals(env, names), NOTE, "they do no harm; semats clean, or holdfast clean"),
        ("announced removals", _announced(env, directory, names), WEAKER,
         "fs-safe waits for them for ever, also if the lock is free; holdfast clean, or remove them"),
        ("tickets", _tickets(env, directory, names), NOTE, "the next one who waits for that lock removes them"),
    )  # fmt: skip
    found = False
    for name, left, level, means in kinds:
        if left:
            found = True
            shown = ", ".join(left[:_SHOWN]) + (f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else "")
            yield Finding("leftovers", level, f"{name} of dead processes: {shown}", means)
    if not found:
        yield Finding("leftovers", GOOD, "nothing was left here by dead processes")


def _temporary(env: Environment, names: list[str]) -> list[str]:
    who = env.identity()
    if "-" in (who.boot, who.pid_namespace):
        return []
    prefix = temporary_name(who, "").partition(f"-{who.pid}-")[0] + "-"
    left = []
    for name in names:
        pid = name.removeprefix(prefix).partition("-")[0]
        if name.startswith(prefix) and name.endswith(".tmp") and _is_dead(env, pid):
            left.append(name)
    return left


def _rivals(env: Environment, names: list[str]) -> list[str]:
    return [name for name in names if (found := _PID.search(name)) and _is_dead(env, found[1])]


def _is_dead(env: Environment, digits: str) -> bool:
    return digits.isascii() and digits.isdecimal() and 0 < int(digits) < 2**31 and has_ended(env, int(digits))


def _announced(env: Environment, directory: str, names: list[str]) -> list[str]:
    left = []
    for name in names:
        path = f"{directory}/{name}"
        if not name.endswith(".lock.reclaim"):
            continue
        try:
            found = env.stat(path)
            if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
                continue
            old = env.time() - found.st_mtime >= _OLD
            if old or (found.st_mode & UNFINISHED and _is_free(env, path)):
                left.append(name)
        except OSError:
            continue
    return left


def _tickets(env: Environment, directory: str, names: list[str]) -> list[str]:
    left = []
    for queue in names:
        if recognition.is_queue(queue):
            try:
                listed = env.list_directory(f"{directory}/{queue}")
            except OSError:
                continue
            found = [f"{queue}/{name}" for name in listed if tickets.is_ticket(name)]
            left += [path for path in found if _is_free(env, f"{directory}/{path}")]
    return left


def _is_free(env: Environment, path: str) -> bool:
    """Whether nobody has the guard of what is at the path."""
    try:
        fd = env.open_existing(path, write=False)
    except OSError:
        return False
    try:
        return env.guarded(fd) is False
    except OSError:
        return False
    finally:
        let_go(env, fd)
