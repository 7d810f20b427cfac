"""Borg 1: in a repository or a cache, `lock.exclusive`, a directory with a file HOST@ID.PID-THREAD in it, and
`lock.roster`, a list of readers.

Borg removes a lock that names an ended process of this host, unless BORG_HOSTNAME_IS_UNIQUE=no.
"""

from __future__ import annotations

import json

from ..._core.messages import quoted
from ...liveness import Liveness
from ..found import ELSEWHERE, LEFTOVER, Found
from .base import View


def look(view: View) -> Found | None:
    exclusive = view.name == "lock.exclusive"
    if not (view.is_directory if exclusive else view.is_file):
        return None
    named = [_named(name) for name in view.names()] if exclusive else _listed(view.data())
    if named is None or None in named or (not named and not exclusive):
        return None
    if not named:
        verdict = view.of_nobody("nobody is named in it")
    else:
        judged = [view.of_process(pid, host.partition("@")[0]) for host, pid in filter(None, named)]
        worst = max(judged, key=lambda one: (one.condition != LEFTOVER, one.liveness is Liveness.ALIVE))
        verdict = worst.replaced(holders=tuple(one.holders[0] for one in judged if one.holders))
    repository = quoted(view.where)
    if verdict.condition == LEFTOVER:
        reason = "borg removes it itself, where the name of this host is unique"
        advice = f"Run borg again; if it refuses: borg break-lock {repository}, when no other machine uses it"
        return view.described(verdict, reason, advice)
    who = "that command" if verdict.condition != ELSEWHERE else f"the command on {verdict.holders[0].host}"
    reason = "others wait for --lock-wait seconds (1), and give up" if exclusive else "commands that write wait for it"
    return view.described(
        verdict, reason, f"Wait until {who} has ended: borg --lock-wait 600 …; never break it while that runs"
    )


def _named(name: str) -> tuple[str, int] | None:
    """Host and pid in the name of the file; None if it has none."""
    host, dot, numbers = name.rpartition(".")
    pid, dash, thread = numbers.partition("-")
    right = dot and dash and host and pid.isascii() and pid.isdecimal() and thread.isalnum() and len(pid) <= 10
    return (host, int(pid)) if right else None


def _listed(data: bytes) -> list[tuple[str, int] | None] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    lists = [found[name] for name in ("shared", "exclusive") if isinstance(found.get(name), list)]
    every = [one for entries in lists for one in entries]
    return [_entry(one) for one in every[:50]]


def _entry(one: object) -> tuple[str, int] | None:
    if not isinstance(one, list) or len(one) < 2 or not isinstance(one[0], str) or type(one[1]) is not int:
        return None
    return (one[0], one[1])
