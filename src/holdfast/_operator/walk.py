"""Walking through a tree of directories of which hardly any file is a lock file.

E4  No link is followed, and nothing of the kernel's inventions is entered (`/proc`, `/sys` …): looking at those may
    take for ever, or make something happen. What is gone by the time that it is reached is passed over.
E5  In the order of their paths as texts, so that what was found can be shown before the walk has ended. A directory
    comes where its name with a `/` behind it belongs. What is kept meanwhile are the names in the directories on the
    way down, and of the files only those that are worth a look.
E6  Going through a whole tree, a name alone decides that a file is not looked at, if it is one that text, data or
    programs have, unless the kernel's table shows its number: asking for each file would read the whole disk. Of the
    others, those without a lock's name are not opened if they are large, or are not their owner's to write.
"""

from __future__ import annotations

import stat

from .._core.observe import UNFINISHED
from . import recognition
from .findings import Unseen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from .._core.environment import Environment, Stat
    from .findings import Census, Entry, Surroundings

    Step = tuple[str, str, frozenset[str]]
    """A directory, a name in it, and the queues that are in it."""


_GLANCE = 256
"""Bytes that tell how a file begins."""


def walk(
    env: Surroundings, census: Census, top: str, entering: Callable[[str], object] | None = None
) -> Iterator[Step | Unseen]:
    """The files below `top` that may be lock files, and what could not be looked at.

    `entering` is called with each directory before it is listed.
    """
    open_: list[tuple[str, frozenset[str], Iterator[str]]] = []

    def enter(where: str) -> Unseen | None:
        try:
            found = env.stat(where)
            if open_ and (not stat.S_ISDIR(found.st_mode) or census.is_artificial(found.st_dev)):
                return None  # E4
            if entering is not None:
                entering(where)
            open_.append((where, *_listed(env, where, census.locked_numbers(found.st_dev))))
        except OSError as error:
            if not open_ or not isinstance(error, FileNotFoundError):
                return Unseen(where, error)
        return None

    unseen = enter(top)
    if unseen is not None:
        yield unseen
    while open_:
        where, queues, names = open_[-1]
        name = next(names, None)
        if name is None:
            open_.pop()
        elif not name.endswith("/"):
            yield where, name, queues
        elif (unseen := enter(joined(where, name[:-1]))) is not None:
            yield unseen


def is_worth_it(env: Environment, census: Census, name: str, path: str, found: Stat) -> bool:
    """Whether a file that was met on the way is worth more than a glance at how it begins (E6)."""
    if recognition.is_named_so(name) or found.st_mode & UNFINISHED or census.is_locked((found.st_dev, found.st_ino)):
        return True
    if not recognition.is_likely(found):
        return False
    try:
        fd = env.open_existing(path, write=False)
    except PermissionError:
        return False
    try:
        return recognition.may_begin(name, env.read(fd, _GLANCE))
    finally:
        env.close(fd)


def joined(where: str, name: str) -> str:
    """The path of what is in a directory."""
    return where + name if where.endswith("/") else f"{where}/{name}"


def subdirectories(env: Surroundings, census: Census, where: str) -> list[str]:
    """The paths of the directories in it that are to be entered (E4), in the order of their names."""
    found = []
    for name in sorted(env.scan(where, _directory)):
        path = joined(where, name)
        try:
            seen = env.stat(path)
        except OSError:
            continue
        if stat.S_ISDIR(seen.st_mode) and not census.is_artificial(seen.st_dev):
            found.append(path)
    return found


def _directory(entry: Entry) -> str | None:
    return entry.name if entry.is_dir(follow_symlinks=False) and not recognition.is_beside(entry.name) else None


def _listed(env: Surroundings, where: str, locked: Container[int] | None) -> tuple[frozenset[str], Iterator[str]]:
    """The names of the queues in a directory; and in their order those of what is to be looked at, `/` behind those of
    directories."""
    queues = []
    is_otherwise, is_beside = recognition.is_called_otherwise, recognition.is_beside

    def kept(entry: Entry) -> str | None:
        name = entry.name
        if entry.is_dir(follow_symlinks=False):
            if not is_beside(name):
                return name + "/"
            if recognition.is_queue(name):
                queues.append(name)
            return None
        if is_otherwise(name) and locked is not None and (not locked or entry.inode() not in locked):
            return None  # E6
        return name if entry.is_file(follow_symlinks=False) and not is_beside(name) else None

    names = sorted(env.scan(where, kept))
    return frozenset(queues), iter(names)
