"""Output of commands about a LOCK that is a semaphore; and whether a LOCK without a file may mean one.

The number of slots of a semaphore is known to its users, and not written anywhere. Without `--slots` it is judged by
the highest number among the existing lock files. Then it is not `counted`.
"""

from __future__ import annotations

import os

from .._core.messages import all_taken, is_out_of_reach, next_step, sentence
from .._platform import environment
from ..lock import Semaphore
from ..protocols import is_persistent
from .console import dumped, object_of, rows_of_content, rows_of_waiters, state, text_of
from .locks import absolute, answered, is_url, lock_options, nowhere, rooted
from .options import Namespace
from .outcome import DONE, FAILED, HELD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .._admin.found import Found
    from .._admin.scan import Survey
    from ..model import SemaphoreStatus, Status


BESIDE = ("sidecar", "proper-lockfile")
"""Protocols whose locks are beside the files that they protect."""


def status_of(options: Namespace, *, counted: bool = True) -> tuple[int, str | None]:
    """The exit status, which says whether a contender would get a slot, and what to show of all; None: nothing."""
    semaphore = Semaphore(options.lock, options.slots, **lock_options(options))
    status, text = semaphore.status(), None
    if options.json:
        text = as_json(semaphore, status, counted=counted)
    elif not options.quiet:
        rows = _rows(semaphore, status, counted=counted)
        if options.verbose:
            taken = [(number, one.data) for number, one in enumerate(status) if one.data]
            rows += [row for number, data in taken for row in rows_of_content(f"content {number}", data)]
        text = text_of(rows)
    if status.locked and any(map(is_out_of_reach, status)):
        return FAILED, text
    return HELD if status.locked else DONE, text


def as_json(semaphore: Semaphore, status: SemaphoreStatus, result: str | None = None, *, counted: bool = True) -> str:
    """The status as one line of JSON, like `console.as_json`."""
    slots, state_now = [*map(object_of, status)], "held" if status.locked else "free"
    waiters: list[dict[str, Any]] = slots[0]["waiters"]
    for one in slots:
        del one["waiters"]
    found = {
        "result": result or state_now, "path": semaphore.path, "protocol": semaphore.protocol,
        "state": state_now, "free": status.free, "counted": counted,
        "slots": slots, "waiters": waiters,
    }  # fmt: skip
    return dumped(found)


def _rows(semaphore: Semaphore, status: SemaphoreStatus, *, counted: bool) -> list[tuple[str, str]]:
    many = f"{len(status)} slot{'s' if len(status) > 1 else ''}"
    rows = [
        ("lock", f"{semaphore.path} ({semaphore.protocol}), a semaphore"),
        ("state", f"held: none of {many} is free" if status.locked else f"free: {status.free} of {many}"),
    ]
    if not counted:
        kept = is_persistent(semaphore.protocol) or is_url(semaphore.path)
        unseen = "" if kept else ", as a slot that nobody holds has no file"
        rows.append(("note", f"judged by the slots that were found; there may be more{unseen}: --slots N"))
    if note := why_refused(semaphore, status):
        rows.append(("note", note))
    rows += [(f"slot {number}", _line(one)) for number, one in enumerate(status)]
    return rows + rows_of_waiters(status.waiters)


def _line(status: Status) -> str:
    if status.locked:
        return sentence(status)
    return f"{state(status)}: {status.reason}" if status.stale else state(status)


def why_refused(semaphore: Semaphore, status: SemaphoreStatus) -> str:
    """Why nobody could get the free slot nevertheless; else empty."""
    slot = next((one.path for one in status if not one.locked), "")
    return slot and answered(semaphore, 0.0, lambda: nowhere(semaphore, slot))


def why_held(semaphore: Semaphore, status: SemaphoreStatus) -> str:
    """Why a contender would have to wait, and what to do next, by a look after a wait in vain."""
    if not status.locked:
        return f"{semaphore.path} had no free slot until the time was up; one has become free since"
    return f"{semaphore.path} has no free slot: {all_taken(status)}. {next_step(status)}"


def recognised(survey: Survey, given: str, protocol: str | None) -> tuple[int, str] | None:
    """The number of slots seen of that base, and their protocol; None if there is none, or a file of that name."""
    base = rooted(given)
    where, name = os.path.split(base)
    if not name or any(map(os.path.lexists, (base, f"{base}.lock"))):
        return None
    found = [one for one in _beside(survey, where, name) if protocol in (None, one[1].status.protocol or protocol)]
    if not found:
        return None
    spoken = protocol or next((one.status.protocol for _, one in found if one.status.protocol), "")
    if not spoken:  # as for a lock file (status.py): an empty one may have record locks, which are not looked for first
        spoken = "ofd" if any(survey.owners(one.status.path, records=True) for _, one in found) else "sema"
    return max(number for number, _ in found) + 1, spoken


def elsewhere(options: Namespace) -> str:
    """The lock that `status` shows for this LOCK, if no protocol is given and no file has that name; else empty."""
    path, env = absolute(options.lock), environment()
    if options.protocol is not None or is_url(options.lock) or os.path.lexists(path):
        return ""
    where, name = os.path.split(path)
    try:
        if not any(one.startswith(f"{name}.") and one.endswith(".lock") for one in env.list_directory(where)):
            return ""
        from .._admin.scan import Survey

        survey = Survey(env)
        if (seen := recognised(survey, path, None)) is not None:
            return f"{path}.{seen[0] - 1}.lock is a slot of a semaphore (--slots N)"
        one = survey.file(f"{path}.lock")
    except OSError:
        return ""
    its = "" if one is None else one.status.protocol
    return f"{path}.lock is a {its} lock (-p {its})" if its in BESIDE else ""


def _beside(survey: Survey, where: str, base: str) -> list[tuple[int, Found]]:
    from .._admin.detect import slot_of

    found = []
    try:
        names = environment().list_directory(where or "/")
    except OSError:
        return []
    for name in names:
        slot = slot_of(name)
        if slot is None or slot[0] != base or str(slot[1]) != name[len(base) + 1 : -len(".lock")]:
            continue
        try:
            one = survey.file(os.path.join(where, name))
        except OSError:
            continue
        if one is not None:
            found.append((slot[1], one))
    return found
