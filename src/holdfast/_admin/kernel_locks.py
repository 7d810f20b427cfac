"""All files in the kernel's tables of locks: holders, kinds of locks, waiters. For display.

KA1  A file with a lease on it is not opened: that would break the lease, and wait for its holder. On a filesystem that
     may block, no file is opened or queried at all, and its path is taken as its holder has opened it.
KA2  A path counts only if it leads to the file here: in another mount namespace it may lead elsewhere, and a removed
     file has none. Where it does not, or is unknown, the file is named by its device and number.
KA3  A file is reported once, with all its holders and waiters, as one reading of the tables shows them. If it is known
     as a lock of a protocol or of another program, that says more, and is reported instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .._core.messages import brief_command
from .._platform.interface import Surroundings
from .._platform.proc_files import ProcFiles
from .._platform.values import LOCK_KINDS, FileLock
from ..liveness import Liveness
from ..model import Evidence, Holder, Status, Waiter
from .found import HELD, Found
from .scan import Survey


def kernel_locks(env: Surroundings, survey: Survey, files: ProcFiles) -> Iterator[Found]:
    """All files that the kernel shows as locked, in no order."""
    grouped: dict[tuple[int, int], list[FileLock]] = {}
    for lock in files.locks():
        grouped.setdefault(lock.file, []).append(lock)
    for file, locks in grouped.items():
        path = _path_of(env, locks)
        known = None
        if path is not None and not env.may_block(path) and all(lock.kind != "lease" for lock in locks):
            try:
                known = survey.file(path)
            except (OSError, ValueError):
                known = None
        if known is not None and known.status.locked and says_more(known):
            yield known
        else:
            yield _described(env, survey, file, locks, path)


def says_more(known: Found) -> bool:
    """Whether this says more than the tables: it does not of a file that is empty, or of which nothing can be told."""
    return known.advice is not None or known.status.record is not None or known.condition == HELD


def _path_of(env: Surroundings, locks: Iterable[FileLock]) -> str | None:
    """The path of the file here, if it is known (KA2)."""
    for lock in locks:
        if lock.path is None or lock.deleted:
            continue
        if env.may_block(lock.path):
            return lock.path
        try:
            found = env.stat(lock.path)
        except (OSError, ValueError):
            continue
        # On btrfs, and on overlays, the tables name another device than `stat` does (proc_locks.py, W2).
        if found.st_ino == lock.file[1]:
            return lock.path
    return None


def _described(
    env: Surroundings, survey: Survey, file: tuple[int, int], locks: list[FileLock], path: str | None
) -> Found:
    having = [lock for lock in locks if not lock.waiting]
    holders: dict[Holder, None] = {}
    for lock in having:
        command = None if lock.pid is None else env.command(lock.pid)
        holders[Holder(lock.pid, None, None, _particulars(lock), command, not lock.exclusive)] = None
    waiters = {lock.pid: None for lock in locks if lock.waiting and lock.pid is not None}
    kinds = sorted({lock.kind for lock in having or locks}, key=LOCK_KINDS.index)
    first = next((one for one in holders if one.pid is not None), next(iter(holders), None))
    text = f"the kernel shows it: {' and '.join(kinds)}"
    status = Status(
        path or _number_of(file, locks), kinds[0], bool(having), False,
        Liveness.ALIVE if having else Liveness.UNKNOWN,
        Evidence("guard", text, proven=bool(having)),
        first, None, "it is free when its holder unlocks it, closes the file or ends", None,
        tuple(Waiter(None, pid, None, None, env.command(pid)) for pid in waiters),
        tuple(holders),
    )  # fmt: skip
    return Found(status, HELD, file, survey.user(first.pid if first is not None else None), None, _advice(first))


def _particulars(lock: FileLock) -> str | None:
    """Unusual properties of a lock, in words."""
    start, end = lock.span
    words = ["shared"] if not lock.exclusive and lock.kind != "lease" else []
    if (start, end) != (0, None):
        words.append(f"from byte {start}" if end is None else f"bytes {start}-{end}")
    if lock.kind == "lease":
        words.append("a lease for writing" if lock.exclusive else "a lease for reading")
    return ", ".join(words) or None


def _number_of(file: tuple[int, int], locks: list[FileLock]) -> str:
    """The name of a file without a path (KA2)."""
    device, inode = file
    major, minor = (device >> 8) & 0xFFF | (device >> 32) & ~0xFFF, device & 0xFF | (device >> 12) & ~0xFF
    name = f"device {major}:{minor}, inode {inode}"
    lock = next((lock for lock in locks if lock.path is not None), None)
    if lock is None:
        return name
    return f"{name} ({lock.path}, removed)" if lock.deleted else f"{name} ({lock.path} elsewhere)"


def _advice(holder: Holder | None) -> str:
    if holder is None or holder.pid is None:
        return "Find out who has the file open (fuser, lsof), as root, and in containers as well"
    command = brief_command(holder.command or "")
    return f"Wait until process {holder.pid}{f' ({command})' if command else ''} releases it or ends"
