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


def _borg() -> Kind:
    from .borg import Borg

    return Borg()


def _cargo() -> Kind:
    from .cargo import Cargo

    return Cargo()


def _dotlock() -> Kind:
    from .dotlock import DotLock

    return DotLock()


def _dpkg() -> Kind:
    from .dpkg import Dpkg

    return Dpkg()


def _emacs() -> Kind:
    from .emacs import Emacs

    return Emacs()


def _git() -> Kind:
    from .git import Git

    return Git()


def _libreoffice() -> Kind:
    from .libreoffice import LibreOffice

    return LibreOffice()


def _mozilla() -> Kind:
    from .mozilla import Mozilla

    return Mozilla()


def _npm() -> Kind:
    from .npm import Npm

    return Npm()


def _pnpm() -> Kind:
    from .pnpm import Pnpm

    return Pnpm()


def _restic() -> Kind:
    from .restic import Restic

    return Restic()


def _run_lock() -> Kind:
    from .run_lock import RunLock

    return RunLock()


def _shadow() -> Kind:
    from .shadow import Shadow

    return Shadow()


def _terraform() -> Kind:
    from .terraform import Terraform

    return Terraform()


def _uv() -> Kind:
    from .uv import Uv

    return Uv()


def _vim() -> Kind:
    from .vim import Vim

    return Vim()


_KINDS: dict[str, Callable[[], Kind]] = {
    "borg": _borg,
    "cargo": _cargo,
    "dotlock": _dotlock,
    "dpkg": _dpkg,
    "emacs": _emacs,
    "git": _git,
    "libreoffice": _libreoffice,
    "mozilla": _mozilla,
    "npm": _npm,
    "pnpm": _pnpm,
    "restic": _restic,
    "run-lock": _run_lock,
    "shadow": _shadow,
    "terraform": _terraform,
    "uv": _uv,
    "vim": _vim,
}
"""Loaded on demand."""
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
"""The kinds of files of these very names; several, if only the rest of the rule tells."""
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
"""And of those that begin and end so."""
_HASH = 64
"""The length of the names of restic's locks."""
_SERIAL = "LCK.."
_RUN_LOCK = ("/run/lock", "/var/lock")
_made: dict[str, Kind] = {}


def names() -> list[str]:
    """The names of all kinds."""
    return sorted(_KINDS)


def may_be(name: str, where: str) -> bool:
    """Whether a file of this name may be of one of the kinds, in this directory. Asked about every file."""
    if not name.startswith(".") and not name.endswith((".lock", ".held")):
        return name in _NAMED or len(name) == _HASH or name.startswith(_SERIAL) or _is_run_lock(where)
    return name in _NAMED or bool(_shaped(name)) or _is_run_lock(where)


def _shaped(name: str) -> list[str]:
    return [kind for kind, begin, end in _SHAPED if name.endswith(end) and name.startswith(begin)]


def _is_run_lock(where: str) -> bool:
    return where.startswith(_RUN_LOCK) and f"{where}/".startswith(tuple(f"{one}/" for one in _RUN_LOCK))


def _of(view: View) -> list[Kind]:
    name = view.name
    found = [*_NAMED.get(name, ()), *_shaped(name)]
    if len(name) == _HASH:
        found.append("restic")
    if _is_run_lock(view.where) or name.startswith(_SERIAL):
        found.append("run-lock")
    for kind in found:
        if kind not in _made:
            _made[kind] = _KINDS[kind]()
    return [_made[kind] for kind in found]


def find(view: View) -> Sighting | None:
    """The lock of another program that this file is; None for what is none. OSError as the system gives it."""
    return next((seen for kind in _of(view) if (seen := kind.look(view)) is not None), None)


def reserved(view: View) -> str | None:
    """The kind whose program would take a file of this name for its own lock, though nothing is there yet."""
    return next((kind.name for kind in _of(view) if kind.reserves(view)), None)
