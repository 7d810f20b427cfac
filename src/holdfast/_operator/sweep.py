"""What is different in a directory since the last time, found by listing it: where no event tells (follow.py, Z13)."""

from __future__ import annotations

import stat

from . import recognition
from .crowd import lock_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from .onlooker import Onlooker
    from .places import Places


def sweep(
    env: Onlooker,
    directory: str,
    places: Places,
    seen: dict[str, tuple[object, ...]],
    held: Collection[str],
) -> tuple[list[str], list[str]]:
    """The files to look at, and the queues. `seen` is brought up to date.

    To be looked at: what is new, written or gone; what is `held`; and what the kernel has locked since.
    """
    try:
        listed = env.list_directory(directory)
        places.missing.pop(directory, None)
    except OSError as error:
        listed = []
        places.missing[directory] = error
    dirty = {path: None for path in held if path.rpartition("/")[0] == directory}
    there, queues = set(), []
    for name in listed:
        path = f"{directory}/{name}"
        if recognition.is_queue(name):
            if places.wanted(directory, lock_of(path).rpartition("/")[2]):
                queues.append(path)
            continue
        if recognition.is_beside(name) or not places.wanted(directory, name):
            continue
        try:
            found = env.stat(path)
        except OSError:
            continue
        if not stat.S_ISREG(found.st_mode):
            continue
        identity = (found.st_dev, found.st_ino)
        sign = (identity, found.st_mtime, found.st_size, found.st_mode)
        there.add(path)
        if seen.get(path) != sign or (path not in held and env.is_locked(identity)):
            seen[path] = sign
            dirty[path] = None
    for path in [path for path in seen if path.rpartition("/")[0] == directory and path not in there]:
        del seen[path]
        dirty[path] = None
    return [*dirty], queues
