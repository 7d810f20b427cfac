"""Locks on servers, which are named by a URL: what the commands for lock files do for them, and how it looks.

The commands of one lock (`run`, `wait`, `status` …) take them as `Lock` does. Nothing here shows a password: what is
printed is the engine's own spelling of the URL, or `masked`.

A semaphore, as `status` and `wait` show it: its slots, who has them, and who waits for any of them.

How many slots there are is known to those who use them, not written anywhere. Without `--slots` it is judged by the
lock files that are there: as many as the highest number among them says.
"""

from __future__ import annotations

import argparse
import os
import sys

from .._admin import detect, scan
from .._admin.scan import Found, Survey, Unreadable
from .._core.messages import advice, sentence
from .._drivers.sync import drive
from .._platform import environment
from ..engines import engine_of
from ..engines.registry import scheme_of
from ..errors import EngineUnavailable, HoldfastError
from ..lock import Lock, Semaphore, file_request
from ..model import SemaphoreStatus, Status
from ..protocols import is_persistent
from .console import (
    dumped,
    lock_options,
    name_of_record,
    object_of,
    rows_of_content,
    rows_of_waiters,
    state,
    text_of,
    url_id_of,
)
from .outcome import DONE, HELD, USAGE, masked, say, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


_WORD = "break"


def is_url(text: str | None) -> bool:
    """Whether a word means a lock on a server. A file of such a name is `./NAME`."""
    return text is not None and bool(scheme_of(text))


def status_(options: argparse.Namespace) -> int:
    """As `status` of a lock file; what only files have is null or empty."""
    from .console import as_json, lock_options, rows_of, rows_of_content, text_of

    status = Lock(options.lock, **lock_options(options)).status()
    condition = scan.HELD if status.locked else scan.FREE
    its_id = url_id_of(status)
    if options.json:
        more: dict[str, Any] = {"condition": condition, "content_protocol": None, "uid": None, "user": None}
        more.update(slot=None, id=its_id, kernel_lock=[], stale_for=[], heartbeat=None)
        more["next"] = advice(status) if status.locked else None
        show(as_json("held" if status.locked else "free", status, **more))
    elif not options.quiet:
        rows = rows_of(status)
        token = None if status.record is None else status.record.fields.get("token")
        rows[2:2] = [(name, str(value)) for name, value in (("id", its_id), ("token", token)) if value is not None]
        if options.verbose and status.data:
            rows += rows_of_content("content", status.data)
        show(text_of(rows))
    return HELD if status.locked else DONE


def found(place: str) -> Iterator[Found | Unreadable]:
    """The locks whose names begin so, as `ls` lists them."""
    try:
        statuses = drive(engine_of(place).survey(environment(), place))
    except EngineUnavailable as error:
        yield Unreadable(masked(place), error)
    except HoldfastError as error:
        yield Unreadable(masked(place), OSError(0, str(error)))
    else:
        for status in statuses:
            yield Found(status, scan.HELD if status.locked else scan.FREE, (0, 0))


def break_(options: argparse.Namespace) -> int:
    """End the hold that is meant, by its id or by the word of whoever sits at the terminal."""
    from .console import as_json, rows_of, text_of

    lock = Lock(options.lock, **({} if options.protocol is None else {"protocol": options.protocol}))
    status = lock.status()
    its_id = url_id_of(status)

    def refused(why: str, code: int = HELD) -> int:
        if options.json:
            show(as_json("refused", status, id=its_id, why=why))
        else:
            say(f"{status.path} was not broken: {why}")
        return code

    def ended(result: str) -> int:
        if options.json:
            show(as_json(result, status, id=its_id))
        elif not options.quiet:
            say(f"{status.path}: {result}")
        return DONE

    if not status.locked or its_id is None:
        return ended("not held") if not status.locked else refused(f"{sentence(status)}. Look again in a moment")
    wanted = None if options.id is None else options.id.strip().lower()
    if wanted is not None and wanted != its_id:
        return refused(f"it is not the one with the id {wanted}, but {its_id}. Look at its status, and decide anew")
    if wanted is None and (options.json or not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty())):
        return refused(
            f"{sentence(status)}. Where nobody can be asked, --id says which acquisition is meant; this one "
            f"is {its_id}",
            USAGE,
        )
    if status.evidence.proven and not options.force:
        return refused(f"{sentence(status)}. Its holder lives: end that process, or, if you are sure, use --force")
    if wanted is None:
        print(text_of([*rows_of(status), ("id", its_id)]), file=sys.stderr)
        print(f"Type {_WORD!r} to end this hold: ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip() != _WORD:
            return refused("that was not confirmed")
    steps = lock._engine.break_if(
        lock._env, file_request(lock), lambda record: name_of_record(status.path, record) == its_id
    )
    if drive(steps) is not None:
        return ended("broken")
    if lock.status().locked:
        return refused("it has changed hands since it was looked at. Look at its status, and decide anew")
    return ended("not held")


def release_(options: argparse.Namespace) -> int:
    """As `release` of a lock file: with --force, whoever holds it; else what a keeper holds for this owner."""
    from .console import tell_refused, tell_released
    from .keeper import end_url_keeper as end_keeper

    lock = Lock(options.lock)
    before = lock.status()
    result = "not held"
    if options.force:
        result = "released" if lock.break_lock() is not None else result
    elif before.locked:
        why = end_keeper(lock._env, before, options.owner)
        if why:
            why = f"{lock.path} was not released: {why}. Use --force to end that hold all the same"
            return tell_refused(options, before, why)
        result = "released"
    return tell_released(options, lock, before, result)


def recognised(survey: Survey, given: str, protocol: str | None) -> tuple[int, str] | None:
    """How many slots of that base are seen, and of which protocol; None where there is none, or a file of that name."""
    base = os.path.join(os.getcwd(), given)
    where, name = os.path.split(base)
    if not name or any(map(os.path.lexists, (base, f"{base}.lock"))):
        return None
    found = [one for one in _beside(survey, where, name) if protocol in (None, one[1].status.protocol or protocol)]
    if not found:
        return None
    spoken = next((one.status.protocol for _, one in found if one.status.protocol), "sema")
    return max(number for number, _ in found) + 1, protocol or spoken


def _beside(survey: Survey, where: str, base: str) -> list[tuple[int, Found]]:
    found = []
    try:
        names = environment().list_directory(where or "/")
    except OSError:
        return []
    for name in names:
        slot = detect.slot_of(name)
        if slot is None or slot[0] != base or str(slot[1]) != name[len(base) + 1 : -len(".lock")]:
            continue
        try:
            one = survey.file(os.path.join(where, name))
        except OSError:
            continue
        if one is not None:
            found.append((slot[1], one))
    return found


def slots_status(options: argparse.Namespace, *, counted: bool = True) -> int:
    """Show its slots; the exit status says whether a contender would get one. `counted`: the caller knows how many."""
    semaphore = Semaphore(options.lock, options.slots, **lock_options(options))
    status = semaphore.status()
    if options.json:
        show(as_json("held" if status.locked else "free", semaphore, status, counted=counted))
    elif not options.quiet:
        rows = _rows(semaphore, status, counted=counted)
        if options.verbose:
            taken = [(number, one.data) for number, one in enumerate(status) if one.data]
            rows += [row for number, data in taken for row in rows_of_content(f"content {number}", data)]
        show(text_of(rows))
    return HELD if status.locked else DONE


def as_json(result: str, semaphore: Semaphore, status: SemaphoreStatus, *, counted: bool = True) -> str:
    """One line of JSON. Its fields are documented in docs/cli.md."""
    slots = [object_of("held" if one.locked else "free", one) for one in status]
    waiters: list[dict[str, Any]] = slots[0]["waiters"]
    for one in slots:
        del one["waiters"]
    return dumped(
        {
            "result": result,
            "path": semaphore.path,
            "protocol": semaphore.protocol,
            "state": "held" if status.locked else "free",
            "free": status.free,
            "counted": counted,
            "slots": slots,
            "waiters": waiters,
        }
    )


def why_held(semaphore: Semaphore, status: SemaphoreStatus) -> str:
    """Why one would have to wait, and what to do next."""
    taken = "; ".join(f"slot {number}: {sentence(one, brief=True)}" for number, one in enumerate(status[:3]))
    return f"{semaphore.path} has no free slot ({taken}{'; …' if len(status) > 3 else ''}). {advice(status[0])}"


def _rows(semaphore: Semaphore, status: SemaphoreStatus, *, counted: bool) -> list[tuple[str, str]]:
    many = f"{len(status)} slot{'s' if len(status) > 1 else ''}"
    rows = [
        ("lock", f"{semaphore.path} ({semaphore.protocol}), a semaphore"),
        ("state", f"held: none of {many} is free" if status.locked else f"free: {status.free} of {many}"),
    ]
    if not counted:
        kept = is_persistent(semaphore.protocol) or is_url(semaphore.path)
        unseen = "" if kept else ", as a slot that nobody holds has no file"
        rows.append(("note", f"judged by the slots that are seen; there may be more{unseen}: --slots N"))
    rows += [(f"slot {number}", _line(one)) for number, one in enumerate(status)]
    return rows + rows_of_waiters(status.waiters)


def _line(status: Status) -> str:
    if status.locked:
        return sentence(status)
    return f"{state(status)}: {status.reason}" if status.stale else state(status)
