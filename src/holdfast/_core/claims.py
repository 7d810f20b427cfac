"""Claims: the second of the two gates before another's record is replaced or removed; the first is the guard.

    guard ──exclusive──────────────▶ claim ──▶ look again ──▶ replace or remove ──▶ end of the claim ──▶ guard dropped
      ├──shared (readers are there)──▶ ┘ ▲
      └──no kernel locks ────────────────┘

A claim is an empty file beside the lock file. Its name says which inode it is about and which process has made it.

C1  The name is made once: there is a token in it. Whoever has made a claim lists the directory; if another one counts,
    it takes its own away and has none. Of two, the one that lists last finds the other's. So there are never two.
C2  A claim counts until its claimant is proven gone. One of another boot, or of another machine, counts for a minute:
    taking over takes milliseconds, and nothing can be known of it.
C3  Who has the guard exclusively need not heed a claim that was made under the guard of the same inode (`g`): its
    claimant would have it still. So that of a killed one goes, whichever container it was in.
C4  In a sticky directory, a claim of somebody who may neither write to the lock file nor remove it is a forgery, and
    does not count. Elsewhere whoever can make a claim can remove the lock file as well.
C5  Only names are looked at. Nothing is opened, read or followed; what is no regular file is no claim.
C6  A claim is taken away by its claimant, or by whoever finds that it does not count by C2 or C3. Nobody uses its name
    again, so it is never another's that is removed.
"""

from __future__ import annotations

import stat
import zlib

from .environment import Environment, Presence
from .files import unlink_quietly

_PREFIX, _SUFFIX = ".holdfast-", ".claim"
_UNKNOWABLE_LASTS = 60.0
"""Seconds (C2)."""
NO_LOCKS, SHARED, EXCLUSIVE = 0, 1, 2
"""How far the guard could be had."""


def take_guard(env: Environment, fd: int) -> int | None:
    """The first gate: the guard exclusively, or shared where only readers have it; None while somebody else has it.

    The two exclude each other. Of those who have it shared, the claim lets one pass.
    """
    guard = env.guard(fd)
    if guard is None:
        return NO_LOCKS
    if guard:
        return EXCLUSIVE
    return SHARED if env.guard(fd, shared=True) else None


class Claim:
    """The exclusive right to replace or remove what is at a path, until `end`."""

    __slots__ = ("_env", "_path")

    def __init__(self, env: Environment, path: str) -> None:
        self._env = env
        self._path = path

    def end(self) -> None:
        """Take it away: twice, if need be, as it counts for as long as this process lives."""
        try:
            self._env.unlink(self._path)
        except FileNotFoundError:
            pass
        except OSError:
            self._env.unlink(self._path)
        except BaseException:  # an interruption
            self.drop()
            raise

    def drop(self) -> None:
        """The same, after something else has failed, which is the news."""
        unlink_quietly(self._env, self._path)


def make_claim(env: Environment, path: str, inode: tuple[int, int], guard: int) -> Claim | None:
    """The second gate: the claim on the inode that `path` names; None while somebody else has it (C1).

    OSError where no claim can be made: none may be created in the directory, or it may not be listed.
    """
    directory = path.rpartition("/")[0]
    name = _name(env, inode, guard)
    mine = Claim(env, f"{directory}/{name}")
    env.operations.about_to_make(mine._path)
    try:
        env.close(env.open_new(mine._path, 0o600))
        alone = not _others(env, path, inode, env.list_directory(directory or "/"), guard, own=name)
    except BaseException:
        unlink_quietly(env, mine._path)  # interrupted, perhaps after it was made
        raise
    if alone:
        return mine
    mine.end()
    return None


def is_claimed(env: Environment, path: str, inode: tuple[int, int], guard: int) -> bool:
    """Whether somebody else has a claim on the inode. Where the directory may not be listed, nobody is seen."""
    try:
        names = env.list_directory(path.rpartition("/")[0] or "/")
    except OSError:
        return False
    return _others(env, path, inode, names, guard)


def is_claim(name: str) -> bool:
    """Whether a name in a directory is that of a claim."""
    return _parsed(name) is not None


def why_over(env: Environment, path: str) -> str | None:
    """Why a claim does not count any more (C2), as far as can be told without its lock's guard; None where it does."""
    about = _parsed(path.rpartition("/")[2])
    found = env.stat(path)
    if about is None or not stat.S_ISREG(found.st_mode) or found.st_size or not about.is_over(env, found.st_mtime):
        return None
    return f"process {about.pid}, which made it, has ended"


class _About:
    """What the name of a claim says."""

    __slots__ = ("boot", "inode", "pid", "space", "started", "under_guard")

    def __init__(self, inode: tuple[int, int], under_guard: bool, boot: str, space: str, pid: int, started: str):
        self.inode = inode
        self.under_guard = under_guard
        self.boot = boot
        self.space = space
        self.pid = pid
        self.started = started

    def is_over(self, env: Environment, made: float) -> bool:
        """C2."""
        who = env.identity()
        if "-" in (who.boot, who.pid_namespace):
            return False
        if self.boot != _short(who.boot):
            return abs(env.time() - made) >= _UNKNOWABLE_LASTS
        if self.space != _short(who.pid_namespace):
            return False
        found = env.inspect(self.pid)
        if found.presence in (Presence.GONE, Presence.ZOMBIE):
            return True
        return "-" not in (self.started, found.started) and self.started != found.started


def _name(env: Environment, inode: tuple[int, int], guard: int) -> str:
    who = env.identity()
    words = (
        f"{inode[1]:x}",
        f"{inode[0]:x}",
        "n" if guard == NO_LOCKS else "g",
        _short(who.boot),
        _short(who.pid_namespace),
        str(who.pid),
        who.started.replace(".", ""),
        env.token(),
    )
    return f"{_PREFIX}{'.'.join(words)}{_SUFFIX}"


def _parsed(name: str) -> _About | None:
    if not (name.startswith(_PREFIX) and name.endswith(_SUFFIX)):
        return None
    words = name[len(_PREFIX) : -len(_SUFFIX)].split(".")
    if len(words) != 8 or words[2] not in ("g", "n") or not (words[5].isascii() and words[5].isdecimal()):
        return None
    number, device, kind, boot, space, pid, started, token = words
    numbers = (number, device, boot, space, token)
    if len(pid) > 10 or len(token) != 16 or any(not w or len(w) > 16 or w.strip("0123456789abcdef") for w in numbers):
        return None
    return _About((int(device, 16), int(number, 16)), kind == "g", boot, space, int(pid), started)


def _short(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _others(
    env: Environment, path: str, inode: tuple[int, int], names: list[str], guard: int, *, own: str = ""
) -> bool:
    """Whether another claim counts. Those that do not, by C2 or C3, are taken away."""
    directory, about = path.rpartition("/")[0], f"{_PREFIX}{inode[1]:x}."
    counts = False
    for name in names:
        if not name.startswith(about) or name == own:
            continue
        found = _parsed(name)
        if found is not None and _counts(env, path, f"{directory}/{name}", found, inode, guard):
            counts = True
    return counts


def _counts(env: Environment, path: str, claim: str, about: _About, inode: tuple[int, int], guard: int) -> bool:
    try:
        found = env.stat(claim)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(found.st_mode) or found.st_size:
        return False  # C5
    outlived = guard == EXCLUSIVE and about.under_guard and about.inode == inode  # C3
    if outlived or about.is_over(env, found.st_mtime):
        unlink_quietly(env, claim)  # C6
        return False
    return not _is_forged(env, path, found.st_uid)


def _is_forged(env: Environment, path: str, user: int) -> bool:
    """C4."""
    where = env.stat(f"{path.rpartition('/')[0]}/.")
    if not where.st_mode & stat.S_ISVTX or user in (0, where.st_uid):
        return False
    try:
        lock = env.stat(path)
    except FileNotFoundError:
        return False
    return user != lock.st_uid and not lock.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
