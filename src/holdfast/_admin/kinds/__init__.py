"""Locks that other programs make by rules of their own: seen and waited for, never taken, broken or cleaned away.

A kind is one small module here, with a line in one of the tables below. They say how its files are named, and are asked
of every file that is met. Its `look(view)` returns the lock at a path, or None if that is not one of its locks. If its
program would take anything at such a path for its own lock, `reserves(view)` says so.
"""

from __future__ import annotations

import errno
from types import ModuleType

from ..found import LEFTOVER, Found
from .base import View

_NAMED: dict[str, tuple[str, ...]] = {
    "lock": ("mozilla", "dpkg"),
    "lock-frontend": ("dpkg",),
    "Lock": ("dpkg",),
    ".parentlock": ("mozilla",),
    "lock.exclusive": ("borg",),
    "lock.roster": ("borg",),
    ".cargo-lock": ("cargo",),
    ".cargo-build-lock": ("cargo",),
    ".package-cache": ("cargo",),
    ".package-cache-mutate": ("cargo",),
    ".pwd.lock": ("shadow",),
    **{f"{name}.lock": ("shadow",) for name in ("passwd", "group", "shadow", "gshadow", "subuid", "subgid")},
    ".lock": ("uv",),
    "concurrency.lock": ("npm",),
}
"""Kinds by the whole name of a file; several, where only the rest of the rule tells."""
_SHAPED: tuple[tuple[str, str, str], ...] = (
    ("emacs", ".#", ""),
    ("libreoffice", ".~lock.", "#"),
    ("terraform", ".", ".lock.info"),
    *((("vim", ".", f".sw{letter}")) for letter in "ponmlkj"),
    ("git", "", ".lock"),
    ("npm", "", ".lock"),
    ("pnpm", "", ".lock"),
    ("pnpm", "", ".held"),
    ("dotlock", "", ".lock"),
)
"""Kinds by the beginning and the end of a name."""
_HASH = 64
"""The length of the names of restic's locks."""
_TRIES = 5
_SERIAL = "LCK.."
BEGINNINGS = (".", _SERIAL)
"""How all names of kinds begin that may end as text, data or programs do: `.#main.py`, of Emacs."""
_RUN_LOCK = ("/run/lock", "/var/lock")


def may_be(name: str, where: str) -> bool:
    """Whether a file of this name may be of one of the kinds, in this directory."""
    return is_named_so(name) or is_run_lock(where)


def is_named_so(name: str) -> bool:
    """Whether a file of this name may be of one of the kinds, in any directory. Asked about every file."""
    if not name.startswith(BEGINNINGS) and not name.endswith((".lock", ".held")):
        return name in _NAMED or len(name) == _HASH
    return name in _NAMED or name.startswith(_SERIAL) or bool(_shaped(name))


def _shaped(name: str) -> list[str]:
    return [kind for kind, begin, end in _SHAPED if name.endswith(end) and name.startswith(begin)]


def is_run_lock(where: str) -> bool:
    """Whether each file in this directory may be of one of the kinds."""
    return where.startswith(_RUN_LOCK) and f"{where}/".startswith(tuple(f"{one}/" for one in _RUN_LOCK))


def _of(view: View) -> list[str]:
    name = view.name
    found = [*_NAMED.get(name, ()), *_shaped(name)]
    if len(name) == _HASH:
        found.append("restic")
    if is_run_lock(view.where) or name.startswith(_SERIAL):
        found.append("run-lock")
    return found


def _module(kind: str) -> ModuleType:
    """The module of a kind, loaded on demand."""
    from importlib import import_module

    return import_module(f".{kind.replace('-', '_')}", __package__)


def find(view: View) -> Found | None:
    """The lock of another program at the path of the view; None if there is none. OSError as the system raises it."""
    for _ in range(_TRIES):
        seen = _look(view)
        later = view if seen is None or seen.condition != LEFTOVER else view.again()
        if view.is_same(later):
            return seen
        view = later  # KI3
    raise BlockingIOError(errno.EAGAIN, "it changes all the time", view.path)


def _look(view: View) -> Found | None:
    for kind in _of(view):
        view.kind = kind
        seen: Found | None = _module(kind).look(view)
        if seen is not None:
            return seen
    return None


def reserved(view: View) -> str | None:
    """The kind whose program would take a file of this name for its own lock, though there is none yet; else None."""
    for kind in _of(view):
        module = _module(kind)
        if hasattr(module, "reserves") and module.reserves(view):
            return kind
    return None
