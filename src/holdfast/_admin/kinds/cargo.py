"""Cargo: files that stay in its home and in a target directory, with a kernel lock (`flock`) while a command works."""

from __future__ import annotations

from ..found import Found
from .base import View


def look(view: View) -> Found | None:
    if not view.is_file:
        return None
    verdict = view.of_kernel()
    what = "the build directory" if view.name.startswith(".cargo") else "the package cache"
    reason = f"other commands block, waiting for file lock on {what}"
    advice = f"Wait until {view.who(verdict)} has ended"
    if what == "the build directory":
        advice += ", or build into another directory (CARGO_TARGET_DIR)"
    return view.described(verdict, reason, f"{advice}; an IDE may have started it", aged=False)
