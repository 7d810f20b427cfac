"""`clean`: list or remove the leftovers of dead processes in some directories."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from .._admin.clean import (
    BLOCKED,
    CHANGED,
    REMOVED,
    Leftover,
    PinnedEnvironment,
    Removal,
    directories,
    leftovers,
    of_lock,
    remove,
    side_by_side,
)
from .._admin.found import Unreadable
from .._admin.scan import Survey, joined
from .._core.messages import printable
from .._drivers.apart import Apart, at_place
from .._drivers.sync import drive
from .._platform import environment
from ..errors import EngineUnavailable, HoldfastError
from .console import dumped
from .locks import absolute
from .options import Namespace
from .outcome import DONE, FAILED, HELD, folded, problem_at, say, show

_TOGETHER = 100
"""Most removals that settle at the same time: each has a descriptor open."""
_WOULD, _KEPT, _FAILED = "would remove", "kept", "failed"


def clean_(options: Namespace) -> int:
    """List what may be removed, or remove it (`--yes`)."""
    report = _Report(options)
    env = PinnedEnvironment(environment())
    try:
        for place in options.places or ["."]:
            try:
                _clean(env, place, options, report)
            except EngineUnavailable as error:
                say(str(error))
                report.unseen += 1
                env = PinnedEnvironment(environment())  # the thread that waits still uses the old one
    finally:
        env.leave()
    report.end()
    if report.unseen:
        return FAILED
    return HELD if report.counts.get(_WOULD) or report.counts.get(_FAILED) else DONE


def _clean(env: Any, place: str, options: Namespace, report: _Report) -> None:
    """Handle each find before the search goes on (`batch=0`): directories are kept open for it."""
    pending: list[Leftover] = []
    found = _of_place(env, place, options, pending)
    apart = at_place(environment(), absolute(place))
    for one in found if apart is None else apart.each(found, batch=0):
        if isinstance(one, Unreadable):
            say(problem_at(one.path, one.error))
            report.unseen += 1
        elif one.way:
            report.tell(_KEPT, one, f"{one.why} ({one.way})")
        elif not options.yes:
            report.tell(_WOULD, one, one.why)
        else:
            pending.append(one)
            if len(pending) == _TOGETHER:
                _remove(env, pending, options, report, apart)
                pending.clear()
    _remove(env, pending, options, report, apart)


def _of_place(env: Any, place: str, options: Namespace, pending: list[Leftover]) -> Iterator[Leftover | Unreadable]:
    """Finds in one place. A directory stays open while it is searched, or something in it is `pending` (M13)."""
    approved = options.approve_stale
    path = absolute(place)
    survey = Survey(env)
    try:
        os.lstat(path)
        is_directory = os.path.isdir(path)
        found = None if is_directory else survey.file(path)
    except (OSError, ValueError) as error:
        yield Unreadable(path, error if isinstance(error, OSError) else OSError(0, str(error)))
        return
    if is_directory:
        needed: set[str] = set()
        for where in directories(env, path, recursive=options.recursive):
            needed = needed if pending else set()
            env.leave(*needed)
            try:
                env.enter(path, where)
            except OSError as error:
                yield Unreadable(where, error)
                continue
            yield from leftovers(env, survey, where, approved=approved)
            if pending and pending[-1].path.startswith(joined(where, "")):
                needed.add(where)
        return
    if found is None:
        say(f"{path} is not a lock file of a known protocol, so it is left alone")
        return
    if found.advice is not None:
        say(f"{path} is a lock of {found.status.protocol}, so it is left alone. {found.advice}")
    one = of_lock(env, found, approved=approved)
    if one is not None:
        yield one


def _remove(env: Any, pending: list[Leftover], options: Namespace, report: _Report, apart: Apart | None) -> None:
    jobs = [remove(env, one, approved=options.approve_stale) for one in pending]
    removals = (
        drive(side_by_side(jobs)) if apart is None else apart.call(lambda: drive(side_by_side(jobs)), meanwhile=bool)
    )
    for one, removal in zip(pending, removals, strict=True):
        if isinstance(removal, Removal) and removal.result == REMOVED:
            report.tell(REMOVED, one, one.why)
        elif isinstance(removal, Removal) and removal.result != BLOCKED:
            report.tell(CHANGED, one, removal.why or "it belongs to another holder by now")
        else:
            report.tell(_FAILED, one, _problem(removal))


def _problem(failure: Removal | OSError | HoldfastError) -> str:
    if isinstance(failure, Removal):
        return failure.why
    return (failure.strerror if isinstance(failure, OSError) else None) or str(failure)


class _Report:
    """Reports what becomes of each find, and counts."""

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self.counts: dict[str, int] = {}
        self.unseen = 0

    def tell(self, result: str, one: Leftover, why: str) -> None:
        """Print one line about a find."""
        self.counts[result] = self.counts.get(result, 0) + 1
        if self._options.json:
            protocol = one.protocol or None
            show(dumped({"result": result, "kind": one.kind, "path": one.path, "protocol": protocol, "why": why}))
        elif result == _FAILED:
            say(f"{one.path} could not be removed: {why}")
        elif not self._options.quiet:
            done = "left alone" if result == CHANGED else result
            what = f"{one.protocol} {one.kind}" if one.protocol else one.kind
            show(folded(f"{done} {what} {printable(one.path, 4096)}: {printable(why)}", sys.stdout))

    def end(self) -> None:
        """Print the totals."""
        if self._options.quiet or self._options.json:
            return
        would, removed = self.counts.get(_WOULD, 0), self.counts.get(REMOVED, 0)
        if would:
            say(f"{would} would be removed; --yes removes what has not changed by then")
        elif self._options.yes:
            say(f"{removed} removed")
        elif not self.unseen:
            say("nothing to remove")
