"""Locks that other programs make by rules of their own (_admin/kinds): no command takes or removes them."""

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
    """The lock of another program at this absolute path now; None for anything else, or what cannot be examined."""
    try:
        return look_again(path)
    except (OSError, ValueError):
        return None


def look_again(path: str) -> Found | None:
    """Like `look_at`, but raises the OSError of the system."""
    env = environment()
    found = env.stat(path)
    view = View(env, env.proc_files, path, found)
    if record_in(view.name, found.st_mode, view.data()) is not None:
        return None  # it belongs to that protocol, whatever its name (scan.py, E8)
    return kinds.find(view)


def told(seen: Found) -> str:
    """The lock in words: who has it, since when, how that is known, and what to do next."""
    return f"{sentence(seen)}. {seen.advice}"


def refuse(path: str, protocol: str | None) -> None:
    """Raise ProtocolMismatch if another program's lock is at this absolute path, or a file there would pass for one. A
    kernel lock may be taken on a file that another program locks by the kernel: it is the same lock."""
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
            f"{path} is where {whose} makes a lock of its own: a file of yours there would keep {whose} out, and "
            "nothing would remove it. Choose another name for your lock"
        )
    raise ProtocolMismatch(why, path=path, protocol=protocol or "sema", holder=holder)
