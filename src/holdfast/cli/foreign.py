"""A LOCK that another program makes by rules of its own (_admin/kinds): refused to all that would take or remove it."""

from __future__ import annotations

import os

from .._admin import kinds
from .._admin.detect import record_in
from .._admin.found import Found
from .._admin.kinds.base import View, sentence
from .._platform import environment
from ..errors import ProtocolMismatch
from ..protocols import is_persistent


def look_at(path: str) -> Found | None:
    """The lock of another program at this absolute path, as it is now; None for anything else, and for what cannot be
    looked at."""
    try:
        return look_again(path)
    except (OSError, ValueError):
        return None


def look_again(path: str) -> Found | None:
    """The same; OSError as the system says.

    A file with a record of a protocol is of that protocol, whatever its name (scan.py, E8).
    """
    env = environment()
    found = env.stat(path)
    view = View(env, env.proc_files, path, found)
    if record_in(view.name, found.st_mode, view.data()) is not None:
        return None
    return kinds.find(view)


def told(seen: Found) -> str:
    """Who has it, since when, how that is known, and what to do next."""
    return f"{sentence(seen)}. {seen.advice}"


def refuse(path: str, protocol: str | None) -> None:
    """ProtocolMismatch where another program's lock is at this absolute path, or would be believed to be.

    A kernel lock may be taken on what another program locks by the kernel: it is the same lock.
    """
    env, holder, seen = environment(), None, look_at(path)
    if seen is not None:
        if is_persistent(protocol) and seen.status.evidence.source == "guard":
            return
        holder, kind = seen.status.holder, seen.status.protocol
        why = f"{path} is a lock of {kind}, which holdfast never takes, breaks or removes: {told(seen)}"
    elif os.path.lexists(path):
        return
    else:
        try:
            whose = kinds.reserved(View(env, env.proc_files, path, env.stat(path.rpartition("/")[0] or "/")))
        except (OSError, ValueError):
            return
        if whose is None:
            return
        why = (
            f"{path} is where {whose} makes a lock of its own: {whose} would be kept out by a file there, which "
            "nobody would know how to remove. Choose another name for yours"
        )
    raise ProtocolMismatch(why, path=path, protocol=protocol or "sema", holder=holder)
