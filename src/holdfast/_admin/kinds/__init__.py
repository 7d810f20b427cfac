"""Locks that other programs make by rules of their own: seen and waited for, never taken, broken or cleaned away.

A kind is one small file here, with one line in each of two tables below: where it is, and how its files are called,
which is asked of every file that is met.
"""

from __future__ import annotations

from .base import ELSEWHERE as ELSEWHERE
from .base import FREE as FREE
from .base import HELD as HELD
from .base import LEFTOVER as LEFTOVER
from .base import Kind, Sighting, View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def _git() -> Kind:
    from .git import Git

    return Git()


_KINDS: dict[str, Callable[[], Kind]] = {
    "git": _git,
}
"""Loaded on demand."""
_NAMED: dict[str, tuple[str, ...]] = {}
"""The kinds of files of these very names; several, if only the rest of the rule tells."""
_SHAPED: tuple[tuple[str, str, str], ...] = (("git", "", ".lock"),)
"""And of those that begin and end so."""
_made: dict[str, Kind] = {}


def names() -> list[str]:
    """The names of all kinds."""
    return sorted(_KINDS)


def may_be(name: str) -> bool:
    """Whether a file of this name may be of one of the kinds. Asked about every file."""
    return name in _NAMED or any(name.endswith(end) and name.startswith(begin) for _, begin, end in _SHAPED)


def _of_name(name: str) -> list[Kind]:
    found = [*_NAMED.get(name, ())]
    found += [kind for kind, begin, end in _SHAPED if name.endswith(end) and name.startswith(begin)]
    for kind in found:
        if kind not in _made:
            _made[kind] = _KINDS[kind]()
    return [_made[kind] for kind in found]


def find(view: View) -> Sighting | None:
    """The lock of another program that this file is; None for what is none. OSError as the system gives it."""
    return next((seen for kind in _of_name(view.name) if (seen := kind.look(view)) is not None), None)


def reserved(view: View) -> str | None:
    """The kind whose program would take a file of this name for its own lock, though nothing is there yet."""
    return next((kind.name for kind in _of_name(view.name) if kind.reserves(view)), None)
