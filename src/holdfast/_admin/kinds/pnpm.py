"""pnpm: files with a kernel lock (`flock`) in the user's directories `pnpm-…-locks-UID`, in `$XDG_RUNTIME_DIR` or /tmp;
and directories `*.lock` that hold a file `owner`, which begins with a pid.

A command that works with a store shares the lock of that store, and `pnpm store prune` waits for all of them. The files
stay. A directory whose process has ended is replaced at once. (`pnpm-lock.yaml` locks nothing.)
"""

from __future__ import annotations

from ..found import LEFTOVER, Found
from .base import View


def look(view: View) -> Found | None:
    if view.is_directory:
        return _by_owner(view)
    if not view.is_file or not _is_its_place(view.where.rpartition("/")[2], view.found.st_uid):
        return None
    verdict = view.of_kernel()
    reason = (
        "others may work with the store as well, but pnpm store prune waits"
        if verdict.holders and verdict.holders[0].shared
        else "other commands of pnpm wait for it"
    )
    return view.described(verdict, reason, f"Wait until {view.who(verdict)} has ended", aged=False)


def _by_owner(view: View) -> Found | None:
    numbers = view.data(f"{view.path}/owner", 100).split(b"-")
    if len(numbers) != 3 or not all(number.isdigit() for number in numbers) or len(numbers[0]) > 10:
        return None
    verdict = view.of_process(int(numbers[0]))
    if verdict.condition == LEFTOVER:
        reason = "the next command of pnpm replaces it"
        return view.described(verdict, reason, "Nothing needs to be done")
    reason = "other commands of pnpm wait for it, and go on without it in the end"
    return view.described(verdict, reason, f"Wait until {view.who(verdict)} has ended")


def _is_its_place(directory: str, uid: int) -> bool:
    return directory.startswith("pnpm-") and directory.endswith(f"-locks-{uid}")
