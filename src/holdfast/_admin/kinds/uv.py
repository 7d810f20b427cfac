"""uv: `.lock` in its cache, in a virtual environment and wherever it installs, with a kernel lock (`flock`) while a
command works. The file stays.
"""

from __future__ import annotations

from ..found import Found
from .base import View

_BESIDE = (("CACHEDIR.TAG",), ("pyvenv.cfg",), (".gitignore", ".temp"))
_PROGRAMS = ("uv", "uvx")


def look(view: View) -> Found | None:
    if not view.is_file:
        return None
    verdict = view.of_kernel()
    if not _is_its_place(view) and {one.pid for one in verdict.holders}.isdisjoint(view.files.running(_PROGRAMS)):
        return None
    advice = f"Wait until {view.who(verdict)} has ended, or use a cache of your own (UV_CACHE_DIR)"
    reason = "other commands of uv wait for it, and give up after UV_LOCK_TIMEOUT seconds"
    return view.described(verdict, reason, advice, aged=False)


def _is_its_place(view: View) -> bool:
    """Whether the files beside it are those of a cache, a virtual environment, or a store of tools. Elsewhere it is
    known only while uv works."""
    return any(view.is_there(*(f"{view.where}/{name}" for name in names)) for names in _BESIDE)
