"""What commands do with a LOCK that is a semaphore or a lock on a server. Which of them it is, is asked in locks.py.

The commands' modules are about lock files. What a command does otherwise for a semaphore or for a lock on a server is a
method of `Slots` or `Server` that has the command's name; `target_of` finds out whether there is one.

Nothing here shows a password: what is printed is the engine's own spelling of a URL, or `masked`.

The number of slots of a semaphore is known to its users, and not written anywhere. Without `--slots` it is judged by
the lock files that are there: as many as the highest number among them says.
"""

from __future__ import annotations

import os

from .._core.messages import advice, sentence
from .._drivers.sync import drive
from .._platform import environment
from ..engines import engine_of
from ..errors import EngineUnavailable, HoldfastError
from ..lock import Lock, Semaphore
from ..protocols import is_persistent
from .console import (
    as_json,
    dumped,
    object_of,
    rows_of,
    rows_of_content,
    rows_of_waiters,
    state,
    tell_refused,
    tell_released,
    text_of,
    url_id_of,
    user_name,
)
from .locks import is_url, lock_of, lock_options, semaphore_of
from .outcome import DONE, HELD, USAGE, masked, say, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any, TypeVar

    from .._admin.found import Found, Unreadable
    from .._admin.scan import Survey
    from ..lock import Resource
    from ..model import SemaphoreStatus, Status

    R = TypeVar("R", bound=Resource)

_ALONE = "watch one URL at a time, and nothing beside it: start another watch for the others"


def target_of(options: argparse.Namespace) -> Slots | Server:
    """What a command is about that is not about a lock file or a directory (locks.is_lock_file)."""
    return Server(options) if getattr(options, "slots", None) is None else Slots(options)


def of_survey(one: Found) -> dict[str, Any]:
    """What the JSON of a lock has besides its status."""
    from .._admin.scan import id_of

    status = one.status
    its_id = url_id_of(status) if is_url(status.path) else id_of(environment(), status)
    foreign = one.advice is not None
    its_id = None if foreign else its_id
    kind = status.protocol if foreign else None
    return {"uid": one.uid, "user": user_name(one.uid), "slot": one.slot, "id": its_id, "kind": kind}


class Server:
    """A lock on a server, which is named by a URL."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options

    def status_(self) -> int:
        """What only files have is null or empty."""
        options = self._options
        status = Lock(options.lock, **lock_options(options)).status()
        result, its_id = "held" if status.locked else "free", url_id_of(status)
        if options.json:
            more: dict[str, Any] = {"condition": result, "content_protocol": None, "uid": None, "user": None}
            more.update(kind=None, slot=None, id=its_id, kernel_lock=[], stale_for=[], heartbeat=None)
            more["next"] = advice(status) if status.locked else None
            show(as_json(result, status, **more))
        elif not options.quiet:
            rows = rows_of(status)
            token = None if status.record is None else status.record.fields.get("token")
            rows[2:2] = [(name, str(value)) for name, value in (("id", its_id), ("token", token)) if value is not None]
            if options.verbose and status.data:
                rows += rows_of_content("content", status.data)
            show(text_of(rows))
        return HELD if status.locked else DONE

    def try_(self) -> int:
        self._options.timeout = 0.0
        return self.acquire_()

    def acquire_(self) -> int:
        """A keeper process acquires it, and has the connection."""
        from .keeper import acquire_on_server
        from .owner import owner_of

        pid = owner_of(self._options, binds=True)
        return USAGE if pid is None else acquire_on_server(lock_of(self._options), self._options, pid)

    def release_(self) -> int:
        """End what a keeper holds for this owner."""
        from .keepers import end_keeper_on_server
        from .owner import owner_of

        options = self._options
        owner = owner_of(options, binds=False)
        if owner is None:
            return USAGE
        lock = Lock(options.lock)
        before = lock.status()
        result = "not held"
        if before.locked:
            why = end_keeper_on_server(before, owner)
            if why:
                why = f"{lock.path} was not released: {why}. holdfast break ends another's hold"
                return tell_refused(options, before, why)
            result = "released"
        return tell_released(options, lock, before, result)

    def break_(self) -> int:
        from .breaking import break_on_server

        return break_on_server(self._options)

    def watch_(self) -> int:
        from .watch import watch_server

        if len(self._options.places) > 1:
            raise ValueError(_ALONE)
        return watch_server(self._options)

    def doctor_(self) -> int:
        from .doctor import of_server

        return of_server(self._options)

    def clean_(self) -> int:
        raise ValueError(
            "there is nothing to clean on a server, which forgets clients that are gone. For a living holder, use break"
        )

    def reap_(self) -> int:
        raise ValueError("there is nothing to reap on a server, which frees the locks of clients that are gone")

    def top_(self) -> int:
        raise ValueError("top shows lock files only; for locks on a server there are holdfast ls and holdfast watch")

    def timeline_(self) -> int:
        raise ValueError("events are read from a file; holdfast watch --record FILE records those of locks on a server")


def found_at(url: str) -> Iterator[Found | Unreadable]:
    """The locks on a server whose names begin so, as `ls` lists them."""
    from .._admin.found import Found, Unreadable

    try:
        statuses = drive(engine_of(url).survey(environment(), url))
    except EngineUnavailable as error:
        yield Unreadable(masked(url), error)
    except HoldfastError as error:
        yield Unreadable(masked(url), OSError(0, str(error)))
    else:
        for status in statuses:
            yield Found(status, "held" if status.locked else "free", (0, 0))


class Slots:
    """A semaphore. `counted`: the caller knows how many slots it has."""

    def __init__(self, options: argparse.Namespace, *, counted: bool = True) -> None:
        self._options = options
        self._counted = counted

    def status_(self) -> int:
        """Show its slots; the exit status says whether a contender would get one."""
        options = self._options
        semaphore = Semaphore(options.lock, options.slots, **lock_options(options))
        status = semaphore.status()
        if options.json:
            show(self._as_json("held" if status.locked else "free", semaphore, status))
        elif not options.quiet:
            rows = self._rows(semaphore, status)
            if options.verbose:
                taken = [(number, one.data) for number, one in enumerate(status) if one.data]
                rows += [row for number, data in taken for row in rows_of_content(f"content {number}", data)]
            show(text_of(rows))
        return HELD if status.locked else DONE

    def wait_(self) -> int:
        """Wait until a contender would get one."""
        semaphore = semaphore_of(self._options)
        return self.tell_waited(semaphore, free=semaphore.wait(self._options.timeout))

    def tell_waited(self, semaphore: Semaphore, *, free: bool) -> int:
        """Say how a wait has ended; the exit status."""
        options = self._options
        if options.json:
            show(self._as_json("free" if free else "held", semaphore, semaphore.status()))
        elif not free and not options.quiet:
            say(_why_held(semaphore, semaphore.status()))
        if free and options.verbose:
            say(f"{semaphore.path} has a free slot")
        return DONE if free else int(options.held_code)

    def _as_json(self, result: str, semaphore: Semaphore, status: SemaphoreStatus) -> str:
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
                "counted": self._counted,
                "slots": slots,
                "waiters": waiters,
            }
        )

    def _rows(self, semaphore: Semaphore, status: SemaphoreStatus) -> list[tuple[str, str]]:
        many = f"{len(status)} slot{'s' if len(status) > 1 else ''}"
        rows = [
            ("lock", f"{semaphore.path} ({semaphore.protocol}), a semaphore"),
            ("state", f"held: none of {many} is free" if status.locked else f"free: {status.free} of {many}"),
        ]
        if not self._counted:
            kept = is_persistent(semaphore.protocol) or is_url(semaphore.path)
            unseen = "" if kept else ", as a slot that nobody holds has no file"
            rows.append(("note", f"judged by the slots that are seen; there may be more{unseen}: --slots N"))
        rows += [(f"slot {number}", _line(one)) for number, one in enumerate(status)]
        return rows + rows_of_waiters(status.waiters)


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


def _why_held(semaphore: Semaphore, status: SemaphoreStatus) -> str:
    """Why one would have to wait, and what to do next."""
    taken = "; ".join(f"slot {number}: {sentence(one, brief=True)}" for number, one in enumerate(status[:3]))
    return f"{semaphore.path} has no free slot ({taken}{'; …' if len(status) > 3 else ''}). {advice(status[0])}"


def _line(status: Status) -> str:
    if status.locked:
        return sentence(status)
    return f"{state(status)}: {status.reason}" if status.stale else state(status)
