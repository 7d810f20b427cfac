"""inotify instances that outlive the processes that tests play: closing one that had a watch blocks for 10 ms.

A played process that ends leaves its instance to one that begins later. Without its watches and its events it is as
good as new: the kernel does not number a watch as an earlier one within any time that matters.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MOST = 16
"""Most instances that are kept: a user has 128, for all that runs."""
FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_kept: list[int] = []
if sys.platform != "win32":
    _libc = ctypes.CDLL(None)
    os.register_at_fork(after_in_child=_kept.clear)  # they are the parent's


def take() -> int | None:
    """An instance that was left, or None."""
    return _kept.pop() if _kept else None


def leave(instance: int) -> None:
    """Leave an instance to a later process, as its process ends."""
    if len(_kept) >= MOST:
        os.close(instance)
        return
    for line in Path(f"/proc/self/fdinfo/{instance}").read_text().splitlines():
        if line.startswith("inotify wd:"):
            _libc.inotify_rm_watch(instance, int(line[len("inotify wd:") :].split()[0], 16))
    with contextlib.suppress(BlockingIOError):
        while os.read(instance, 65536):
            pass
    _kept.append(instance)


def kept() -> set[int]:
    return {*_kept}


@contextlib.contextmanager
def reused() -> Iterator[None]:
    """Give environments inside the block an instance that was left, if they need one."""
    if sys.platform == "win32":
        yield
        return
    from holdfast._platform import inotify

    real: Any = inotify._libc

    def inotify_init1(flags: int) -> int:
        found = take() if flags == FLAGS else None
        return real.inotify_init1(flags) if found is None else found

    calls = {name: getattr(real, name) for name in ("inotify_add_watch", "inotify_rm_watch")}
    inotify._libc = SimpleNamespace(inotify_init1=inotify_init1, **calls)
    try:
        yield
    finally:
        inotify._libc = real
