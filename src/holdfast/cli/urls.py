"""Locks on servers, which are named by a URL: what the commands for lock files do for them, and how it looks.

The commands of one lock (`run`, `wait`, `status` …) take them as `Lock` does. Nothing here shows a password: what is
printed is the engine's own spelling of the URL, or `masked`.
"""

from __future__ import annotations

import argparse
import re
import sys

from .._core.report import advice, sentence
from .._drive.sync import drive
from .._operator.findings import FREE, HELD, Found, Unseen
from .._os import environment
from ..engines import engine_of
from ..engines.registry import scheme_of
from ..errors import EngineUnavailable, HoldfastError
from ..lock import Lock
from ..model import Status
from . import DONE, USAGE, say, show
from . import HELD as HELD_CODE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..model import Record

_PASSWORD = re.compile(r"(://[^/?#\s:@]*):[^/?#\s]*@")
_SECRETS = re.compile(r"(?<=[?&])(?:[a-z_]*password|[a-z_]*secret|[a-z_]*key)=[^&#\s]*&?")
_EMPTY = re.compile(r"[?&](?=#|$)")
_LASTING = ("token", "create_revision", "session", "lease")
"""Fields of a record that name one acquisition, in the engines that have them."""
_WORD = "break"


def is_url(text: str | None) -> bool:
    """Whether a word means a lock on a server. A file of such a name is `./NAME`."""
    return text is not None and bool(scheme_of(text))


def masked(url: str) -> str:
    """The URL without what is secret, also of one that no engine understands."""
    return _EMPTY.sub("", _SECRETS.sub("", _PASSWORD.sub(r"\1@", url)))


def hide(words: list[str]) -> None:
    """Have lists of processes show this one without a password, from now on and where that can be done."""
    shown = [masked(word) if "://" in word else word for word in words]
    if shown != words:
        environment().entitle("holdfast", " ".join(shown))


def id_of(status: Status) -> str | None:
    """A short name for the acquisition that was seen; None where nobody holds it."""
    if status.record is None or not status.locked:
        return None
    return _name_of(status.path, status.record)


def _name_of(path: str, record: Record) -> str:
    from hashlib import blake2b

    lasting = [record.fields.get(name) for name in _LASTING]
    about = (path, record.pid, record.host, record.created, *lasting)
    return blake2b(repr(about).encode(), digest_size=6).hexdigest()


def status_(options: argparse.Namespace) -> int:
    """As `status` of a lock file; what only files have is null or empty."""
    from .output import as_json, lock_options, rows_of, rows_of_content, text_of

    status = Lock(options.lock, **lock_options(options)).status()
    condition = HELD if status.locked else FREE
    its_id = id_of(status)
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
    return HELD_CODE if status.locked else DONE


def found(place: str) -> Iterator[Found | Unseen]:
    """The locks whose names begin so, as `ls` lists them."""
    try:
        statuses = drive(engine_of(place).survey(environment(), place))
    except EngineUnavailable as error:
        yield Unseen(masked(place), error)
    except HoldfastError as error:
        yield Unseen(masked(place), OSError(0, str(error)))
    else:
        for status in statuses:
            yield Found(status, HELD if status.locked else FREE, (0, 0))


def break_(options: argparse.Namespace) -> int:
    """End the hold that is meant, by its id or by the word of whoever sits at the terminal."""
    from .output import as_json, rows_of, text_of

    lock = Lock(options.lock, **({} if options.protocol is None else {"protocol": options.protocol}))
    status = lock.status()
    its_id = id_of(status)

    def refused(why: str, code: int = HELD_CODE) -> int:
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
    steps = lock._engine.break_if(lock._env, lock._request, lambda record: _name_of(status.path, record) == its_id)
    if drive(steps) is not None:
        return ended("broken")
    if lock.status().locked:
        return refused("it has changed hands since it was looked at. Look at its status, and decide anew")
    return ended("not held")


def release_(options: argparse.Namespace) -> int:
    """As `release` of a lock file: with --force, whoever holds it; else what a keeper holds for this owner."""
    from .released import tell_refused, tell_released
    from .url_keeper import end_keeper

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
