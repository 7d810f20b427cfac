"""The rows of `top`: what is known of each lock at some moment, their order, and the words for it."""

from __future__ import annotations

import re

from .._core.locate import queue_of
from .._core.report import brief_command
from .._operator.crowd import lock_of
from .._operator.findings import CONDITIONS, HELD
from .._os import environment
from ..model import Holder, Value
from .ls import short_path
from .output import user_name
from .table import OF_STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from .._operator.findings import Census
    from .._operator.follow import Follower
    from .._operator.happening import Held, Waits
    from .table import Cell

WAITED_FOR = "waited for"
"""The state of a lock that somebody waits for and nobody holds; of a semaphore, those who wait for any of its slots."""
_STATES = (*CONDITIONS, WAITED_FOR)
_NEVER = float("inf")
_PIDS_SHOWN = 8
_RUN = re.compile(r"(?:python[0-9.]* -m )?holdfast run .*? -- (.+)", re.DOTALL)


class Row(Value):
    """One lock. `since`: the moment since when it is held, or at least that long ago if not `exact`.

    `waits`: since when, and who, those that have waited longest first; `all_seen`: whether their beginning was.
    """

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
    """The rows of what is followed; those in which nothing has changed are made once."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._made: dict[str, tuple[object, tuple[Waits, ...], Row]] = {}
        self._began: float | None = None

    def now(self) -> list[Row]:
        """As it is known; nothing is looked at."""
        if self._began is None:
            self._began = environment().time()
        waiting: dict[str, list[Waits]] = {}
        for wait in self._follower.crowd.waiting():
            waiting.setdefault(wait.path, []).append(wait)
        users = _Users()
        before, self._made = self._made, {}
        for path, held in self._follower.held.items():
            where, _, name = path.rpartition("/")
            known_as = path if path in waiting else lock_of(queue_of(where, name))  # the name of a queue may be cut
            waits = tuple(waiting.pop(known_as, ()))
            known = before.get(path)
            if known is None or known[0] is not held.found or known[1] != waits:
                known = (held.found, waits, self._row(held, waits, users))
            self._made[path] = known
        for path, found in waiting.items():
            row = Row(path, WAITED_FOR, found[0].protocol, **self._of_waits(found))
            self._made[path] = (None, (), row)
        return [row for _, _, row in self._made.values()]

    def _row(self, held: Held, waits: Sequence[Waits], users: _Users) -> Row:
        status, holder = held.found.status, held.holder
        uid = users.of(holder.pid) if held.found.condition == HELD and holder.pid is not None else None
        return Row(
            status.path,
            held.found.condition,
            status.protocol,
            holder.pid,
            max(0, sum(one.pid is not None for one in status.holders) - 1),
            user_name(held.found.uid if uid is None else uid),
            _elsewhere(holder),
            _command(holder.command),
            holder.tag or "",
            held.since,
            not (holder.since is None and held.since <= (self._began or 0.0)),
            **self._of_waits(waits),
        )

    def _of_waits(self, waits: Iterable[Waits]) -> dict[str, Any]:
        """The kernel does not tell since when somebody waits."""
        ordered = sorted((wait.since, wait.waiter.pid) for wait in waits)
        unseen = any(wait.protocol == "flock" and wait.since <= (self._began or 0.0) for wait in waits)
        return {"waits": tuple(ordered), "all_seen": not unseen}


class _Users:
    """Of processes; the tables are opened only when somebody is asked for."""

    def __init__(self) -> None:
        self._census: Census | None = None

    def of(self, pid: int) -> int | None:
        if self._census is None:
            self._census = environment().census()
        return self._census.user(pid)


def _elsewhere(holder: Holder) -> str | None:
    here = environment().identity().host
    return holder.host if holder.host is not None and holder.host.casefold() != here.casefold() else None


def _command(text: str | None) -> str:
    """As people think of it; of `holdfast run`, the command that it runs."""
    brief = brief_command(text or "")
    run = _RUN.match(brief)
    return run[1] if run else brief


# -- order -------------------------------------------------------------------------------------------------------------

ORDERS: dict[str, tuple[str, Callable[[Row], Any]]] = {
    "wait": ("longest wait", lambda row: (row.waits[0][0] if row.waits else _NEVER, _since(row), row.path)),
    "held": ("longest hold", lambda row: (_since(row), row.path)),
    "waiters": ("most waiters", lambda row: (-len(row.waits), _since(row), row.path)),
    "path": ("path", lambda row: row.path),
    "pid": ("pid", lambda row: (row.pid is None, row.pid or 0, row.path)),
    "state": ("state", lambda row: (_STATES.index(row.state), row.path)),
}
"""By name: what they are called, and the key."""


def _since(row: Row) -> float:
    return _NEVER if row.since is None else row.since


def ordered(rows: Iterable[Row], order: str, *, backwards: bool = False) -> list[Row]:
    return sorted(rows, key=ORDERS[order][1], reverse=backwards)


# -- one row -----------------------------------------------------------------------------------------------------------


def clock_of(seconds: float) -> str:
    """At most six characters that move as time does: `8s`, `2m05s`, `1h02m`, `3d04h`, `1234d`."""
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
    """The texts of one row at that moment, in the order of the columns."""
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
