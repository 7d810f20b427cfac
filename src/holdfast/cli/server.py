"""Commands about a lock on a server, which is named by a URL, where they differ from those about a lock file.

Each function has its command's name. No password is shown: URLs are printed in the engine's own spelling, or `masked`.
"""

from __future__ import annotations

from .._core.messages import advice
from ..lock import Lock
from .console import as_json, rows_of, rows_of_content, tell_refused, tell_released, text_of, url_id_of
from .locks import lock_of, lock_options
from .options import Namespace
from .outcome import DONE, HELD, show


def status_(options: Namespace) -> int:
    """Show the status of the lock. Fields that only files have are null or empty."""
    status = Lock(options.lock, **lock_options(options)).status()
    result, its_id = "held" if status.locked else "free", url_id_of(status)
    if options.json:
        more: dict[str, object] = {"condition": result, "content_protocol": None, "uid": None, "user": None}
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


def acquire_(options: Namespace) -> int:
    """Have a keeper process acquire the lock, as it has the connection."""
    from .keeper import acquire_on_server
    from .owner import owner_of

    pid = owner_of(options, binds=True)
    return acquire_on_server(lock_of(options), options, pid)


try_ = acquire_  # with a timeout of 0


def release_(options: Namespace) -> int:
    """End the keeper that holds the lock for this owner."""
    from .keepers import end_keeper_on_server
    from .owner import owner_of

    owner = owner_of(options, binds=False)
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


_NOT_HERE = {
    "clean": "there is nothing to clean on a server, which forgets clients that are gone. For a living holder, use "
    "break",
    "reap": "there is nothing to reap on a server, which frees the locks of clients that are gone",
    "top": "top shows lock files only; for locks on a server, use holdfast ls or holdfast watch",
    "timeline": "events are read from a file; holdfast watch --record FILE records those of locks on a server",
}


def _refuse(options: Namespace) -> int:
    raise ValueError(_NOT_HERE[options.command])


clean_ = reap_ = top_ = timeline_ = _refuse
