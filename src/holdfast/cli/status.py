"""`status`: show all that can be known of a lock."""

from __future__ import annotations

import os
import time

from .._admin.found import EMPTY, FREE, HELD, MALFORMED, STALE, Found
from .._admin.kinds.base import View
from .._admin.scan import LEFT_EMPTY, Survey, heartbeat, id_of, own_view, staleness, staleness_text
from .._core.messages import advice, duration, first_holder, is_out_of_reach, printable, since_when
from .._drivers.apart import seen_at
from .._platform import environment
from .._platform.values import LockOwner
from ..engines.file.inspect import mismatch, other_protocol
from ..errors import InvalidPath, ProtocolMismatch
from ..liveness import Liveness
from ..lock import Lock, file_request
from ..model import Status
from ..protocols import is_persistent
from . import slots
from .console import as_json, holder_text, of_survey, rows_of, rows_of_content, rows_of_waiters, text_of, url_id_of
from .locks import each_of, is_url, leave_to_its_program, lock_options, nowhere, rooted
from .options import Namespace
from .outcome import DONE, FAILED, failed, show
from .outcome import HELD as HELD_CODE

_USUAL = "sema"
_LOOKS = 5
_ALIKE = frozenset({"sema", "semats"})
"""Protocols whose records are the same."""


def status_(options: Namespace) -> int:
    """Show what is known of the lock; changes nothing. The wait for a silent file server is bounded."""
    if len(options.locks) > 1:
        return _status_of_each(options)
    if is_url(options.lock) and options.slots is None:
        code, text = _status_on_server(options)
    else:
        code, text = seen_at(options.lock, lambda: _status(options))
    if text is not None:
        show(text)
    return code


def _status_of_each(options: Namespace) -> int:
    """Show each lock as if it were the only one, with an empty line in between; the highest exit status of all."""
    worst = DONE
    for number, one in enumerate(each_of(options)):
        if number and not options.json and not options.quiet:
            show("")
        try:
            worst = max(worst, status_(one))
        except Exception as error:
            worst = max(worst, failed(error, one))
    return worst


def _status(options: Namespace) -> tuple[int, str | None]:
    """The exit status, and what to show; None: nothing."""
    if options.slots is not None:
        return slots.status_of(options)
    survey = Survey(environment())
    seen = slots.recognised(survey, options.lock, options.protocol)
    if seen is not None:
        options.slots, options.protocol = seen
        return slots.status_of(options, counted=False)
    another = _found(survey, options.lock) if options.protocol is None else None
    if another is not None and another.advice is not None:
        return _status_of_another(options, another)
    given = options.protocol
    named, protocol = _named(survey, options.lock, given)
    if given is None and protocol == _USUAL and os.path.isdir(named):
        why = f"{named} is a directory, and no beads lock is in it; holdfast ls lists the lock files there"
        raise InvalidPath(why, path=named)
    lock = Lock(named, **{**lock_options(options), "protocol": protocol})
    survey, found, status = _looked_at(survey, lock)
    other = other_protocol(file_request(lock), status.data, status.record) if status.locked else None
    keepers = survey.owners(status.path) if status.locked else []
    text = None
    if options.json:
        text = as_json(status, **_more(status, found, keepers))
    elif not options.quiet:
        rows = _rows(status, found, keepers)
        note = _note(status, found, given) if other is None else str(mismatch(file_request(lock), other))
        note = note or ("" if status.locked else nowhere(lock) or _whose(status.path, given))
        if note:
            rows.insert(1, ("note", note))
        if options.verbose and (status.locked or status.data):
            rows += rows_of_content("content", status.data)
        text = text_of(rows)
    if other is not None or is_out_of_reach(status):
        return FAILED, text  # as for a contender: waiting does not help, either
    return HELD_CODE if status.locked else DONE, text


def _status_on_server(options: Namespace) -> tuple[int, str | None]:
    """A lock on a server, as `status` shows a file. Fields that only files have are null or empty."""
    status, text = Lock(options.lock, **lock_options(options)).status(), None
    its_id = url_id_of(status)
    if options.json:
        unknown = dict.fromkeys(("content_protocol", "uid", "user", "kind", "slot", "heartbeat"))
        found, then = "held" if status.locked else "free", advice(status) if status.locked else None
        text = as_json(status, condition=found, **unknown, id=its_id, kernel_lock=[], stale_for=[], next=then)
    elif not options.quiet:
        rows = rows_of(status)
        token = None if status.record is None else status.record.fields.get("token")
        rows[2:2] = [(name, str(value)) for name, value in (("id", its_id), ("token", token)) if value is not None]
        if options.verbose and status.data:
            rows += rows_of_content("content", status.data)
        text = text_of(rows)
    return HELD_CODE if status.locked else DONE, text


def _status_of_another(options: Namespace, found: Found) -> tuple[int, str | None]:
    """Another program's lock, as `status` shows ours."""
    status, text = found.status, None
    if options.json:
        more = {**_more(status, found, []), "content_protocol": None, "id": None, "next": found.advice}
        text = as_json(status, **more)
    elif not options.quiet:
        rows = _rows_of_another(found)
        if options.verbose:
            env = environment()
            view = View(env, env.proc_files, status.path, env.stat(status.path))
            link = view.link()
            rows += [("content", f"-> {link}")] if link else rows_of_content("content", view.data())
        text = text_of(rows)
    return HELD_CODE if status.locked else DONE, text


def _rows_of_another(found: Found) -> list[tuple[str, str]]:
    status = found.status
    rows = [("lock", f"{status.path} ({status.protocol}'s)"), ("state", found.condition)]
    named = [one for one in status.holders if one.pid is not None or one.host is not None or one.tag is not None]
    rows += [("" if number else "holder", holder_text(one)) for number, one in enumerate(named)]
    user = of_survey(found)["user"]
    if user is not None:
        rows.append(("user", user))
    if status.holder is not None and status.holder.since is not None:
        rows.append(("since", since_when(status.holder.since, status.age)))
    if status.holder is not None and status.holder.tag is not None:
        rows.append(("tag", status.holder.tag))
    rows.append(("liveness", f"{status.liveness.value}: {status.evidence.text}"))
    rows.append(("verdict", status.reason))
    if found.advice:
        rows.append(("next", found.advice))
    return rows + rows_of_waiters(status.waiters)


def _looked_at(survey: Survey, lock: Lock) -> tuple[Survey, Found | None, Status]:
    """The survey, what it finds at the lock's path, and the lock's status. These are two looks, so they are repeated,
    with a new survey, if the lock has changed hands in between."""
    for number in range(_LOOKS):
        if number:
            survey = Survey(environment())
        found = _found(survey, file_request(lock).path)
        status = _unopened(survey, lock, found) or lock.status()
        if found is None or found.status.protocol not in ("", status.protocol):
            break
        if _seen(found.status) == _seen(status):
            break
    return survey, found, status


def _seen(status: Status) -> tuple[object, ...]:
    """The pid of the holder and its liveness: equal in both looks, whatever options they judge by."""
    return None if status.holder is None else status.holder.pid, status.liveness


def _unopened(survey: Survey, lock: Lock, found: Found | None) -> Status | None:
    """The status of a kernel lock as the survey has found it; None for any other lock. The engine would open the file
    as contenders do, and closing it wakes its waiters, or those for an empty file by another protocol."""
    request = file_request(lock)
    if found is None or not is_persistent(lock.protocol) or request.shared or not environment().guards:
        return None
    if found.condition == EMPTY and lock.protocol == "flock":
        return survey.of_the_kernel(request.path).status
    return found.status if found.status.protocol == lock.protocol else None


def _named(survey: Survey, given: str, protocol: str | None) -> tuple[str, str]:
    """The path to ask for, and the protocol, which the lock file tells if it is not given: for looking only."""
    if protocol is not None:
        return given, protocol
    one = _found(survey, given)
    if one is not None and one.status.protocol:
        protocol = one.status.protocol
        if protocol in slots.BESIDE and given.endswith(".lock"):
            return given[: -len(".lock")], protocol
        if protocol == "beads":
            return os.path.dirname(given) or ".", protocol
        return given, protocol
    for beside, protocols in ((f"{given}.lock", slots.BESIDE), (os.path.join(given, ".exclusive-lock"), ("beads",))):
        one = _found(survey, beside) if given else None
        if one is not None and one.status.protocol in protocols:
            return given, one.status.protocol
    return given, "ofd" if given and survey.owners(rooted(given), records=True) else _USUAL


def _found(survey: Survey, path: str) -> Found | None:
    try:
        return survey.file(rooted(path)) if path else None
    except (OSError, ValueError):
        return None


def _note(status: Status, found: Found | None, given: str | None) -> str:
    """A note if something is odd about the protocol; else empty."""
    content = found.status.protocol if found is not None else ""
    if given is None and is_persistent(status.protocol):
        return ""  # the kernel has told
    if given is None and found is not None and found.condition == EMPTY:
        return LEFT_EMPTY
    if given is None:
        unknown = status.locked and not content
        return f"nothing in it names its protocol; judged as {status.protocol} (-p)" if unknown else ""
    if not content or content == given or {content, given} <= _ALIKE or "flock" in (content, given):
        return ""
    return f"its content is a record of the {content} protocol (look at it with -p {content})"


def _whose(path: str, protocol: str | None) -> str:
    """Why this path is not for locks of ours, if another program makes its own there; else empty."""
    try:
        leave_to_its_program(path, protocol)
    except ProtocolMismatch as error:
        return str(error)
    return ""


def condition_of(status: Status, found: Found | None) -> str:
    """The condition as `ls` calls it; judged by the status if that comes from other options or another protocol."""
    kernel = is_persistent(status.protocol)
    is_alike = found is not None and (not kernel or found.status.protocol == status.protocol)
    if found is not None and is_alike and found.status.locked == status.locked:
        return found.condition
    if not status.locked:
        return STALE if status.stale else FREE
    return MALFORMED if status.record is None and not kernel else HELD


def _more(status: Status, found: Found | None, keepers: list[LockOwner]) -> dict[str, object]:
    """Fields that the JSON has besides those of the status."""
    return {
        "condition": condition_of(status, found),
        "content_protocol": (found.status.protocol or None) if found is not None else None,
        **(of_survey(found) if found is not None else {"uid": None, "user": None, "slot": None, "kind": None}),
        "id": id_of(environment(), status),
        "kernel_lock": [{"pid": owner.pid, "shared": not owner.exclusive} for owner in keepers],
        "stale_for": [
            {"implementation": one.implementation, "at": one.at, "condition": one.condition or None}
            for one in staleness(status)
        ],
        "heartbeat": heartbeat(status),
        "next": advice(status) if status.locked else None,
    }


def _rows(status: Status, found: Found | None, keepers: list[LockOwner]) -> list[tuple[str, str]]:
    rows = []
    for name, text in rows_of(status):
        if name == "state":
            condition = condition_of(status, found)
            text = text if condition in (text, FREE) else f"{text} ({condition})"
        elif name == "liveness":
            user = of_survey(found)["user"] if found is not None else None
            if user is not None:
                rows.append(("user", user))
            text += _kept_by(status, keepers)
        rows.append((name, text))
        if name == "state" and (its_id := id_of(environment(), status)) is not None:
            rows.append(("id", its_id))
        if name == "verdict":
            rows += [("stale" if number == 0 else "", line) for number, line in enumerate(_expected(status))]
    return rows


def _kept_by(status: Status, keepers: list[LockOwner]) -> str:
    """Words for the processes that have the guard; empty if they cannot be seen, or are named elsewhere."""
    env = environment()
    named = []
    for owner in keepers:
        if owner.pid is not None:
            command = env.command(owner.pid)
            named.append(f"process {owner.pid}" + (f" ({printable(command, 120)})" if command else ""))
    known = status.holder is not None and [owner.pid for owner in keepers] == [status.holder.pid]
    is_said = first_holder(status) is not None or is_persistent(status.protocol)
    if not named or is_said or status.evidence.source != "guard":
        return ""
    return f" by it (process {keepers[0].pid})" if known else f" by {', '.join(named[:3])}"


def _expected(status: Status) -> list[str]:
    if is_persistent(status.protocol):
        return ["never: the kernel frees it when its holder ends"]
    if status.record is None:
        return [own_view(status)]
    now = time.time()
    lines = [text for one in staleness(status) if (text := staleness_text(one, now))]
    every = heartbeat(status)
    if every is not None and status.locked and status.liveness is not Liveness.DEAD:
        lines.append(f"its holder refreshes the timestamp every {duration(every)}, unless it was told not to")
    return [*lines, own_view(status)]
