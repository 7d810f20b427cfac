"""Descendants of this process, and signals for exactly those; and its ancestors.

Without `/proc`, no process is seen.
"""

from __future__ import annotations

import os

from ..model import Value
from . import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator
else:
    import _signal as signal  # without its enumerations, whose import takes longer than acquiring a lock

_PR_SET_CHILD_SUBREAPER = 36
_CLD_EXITED = 1
SIGINFO = (8, 12, 20)
"""Offsets of `si_code`, `si_pid` and `si_status` in a `siginfo_t` of macOS."""


class Member(Value):
    """A process; `started`, in ticks since the boot, tells it from a later one of the same number."""

    pid: int
    parent: int
    started: int


def adopt_orphans() -> bool:
    """Become the parent of each descendant that loses its own, so that all of them stay descendants; False if that
    fails."""
    try:
        from .libc import LIBC

        return bool(LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def ended_child() -> tuple[int, int]:
    """A child that has ended, and that nobody has waited for: its pid, and its exit status or minus the signal; 0, 0 if
    there is none. It stays to be waited for. ChildProcessError: there are no children."""
    if not hasattr(os, "waitid"):
        return _ended_child()
    found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return 0, 0
    return found.si_pid, found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _ended_child() -> tuple[int, int]:
    """`ended_child` on macOS, where Python has no `waitid` before 3.13."""
    import ctypes
    import struct

    from .libc import LIBC, last_error

    information = ctypes.create_string_buffer(128)
    if LIBC.waitid(0, 0, information, os.WEXITED | os.WNOHANG | os.WNOWAIT) != 0:
        raise last_error()
    code, pid, status = (struct.unpack_from("=i", information, at)[0] for at in SIGINFO)
    return (pid, status if code == _CLD_EXITED else -status) if pid > 0 else (0, 0)


def children() -> frozenset[Member]:
    """The children of this process."""
    found = _children_of(os.getpid()) if procfs.is_ours() else []
    return frozenset(one for one in _all() if one.parent == os.getpid()) if found is None else frozenset(found)


def descendants(spared: frozenset[Member] = frozenset(), root: int = 0) -> list[Member]:
    """The living descendants of this process, or of `root`, parents first; without the `spared` ones and their
    descendants.

    The kernel's lists of children may lack some while others end, so only a look at all processes can say that there
    are none.
    """
    return _below(spared, _children_of, root) or _below(spared, _by_parent().get, root)


def of_session(session: int, root: int = 0) -> list[Member]:
    """The descendants of this process, or of `root`, that are in that session."""
    for _ in range(2):  # one that lost its parent in the midst of the first look may have been passed over
        found = [one for one in _below(frozenset(), _by_parent().get, root) if _session(one.pid) == session]
        if found:
            break
    return found


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _below(spared: frozenset[Member], children_of: Callable[[int], list[Member] | None], root: int) -> list[Member]:
    top = children_of(root or os.getpid()) if procfs.is_ours() else None
    found = [one for one in top or [] if one not in spared]
    for one in found:  # which grows
        found += children_of(one.pid) or []
    return found


def _by_parent() -> dict[int, list[Member]]:
    below: dict[int, list[Member]] = {}
    for one in _all():
        below.setdefault(one.parent, []).append(one)
    return below


def _children_of(pid: int) -> list[Member] | None:
    """The children of a process, by the kernel's lists; None where it has none."""
    pids: list[bytes] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                pids += file.read().split()
    except OSError:
        return None
    return [one for pid in map(int, pids) if (one := _read(pid)) is not None]


def is_running(member: Member) -> bool:
    """Whether this very process has not ended; its parent may have."""
    found = _read(member.pid)
    return found is not None and found.started == member.started


def is_stopped(pid: int) -> bool:
    """Whether that process was stopped and not continued; False where that cannot be seen."""
    return bool(pid) and procfs.is_ours() and procfs.stat_fields(pid)[:1] == ["T"]


def send(member: Member, number: int) -> bool:
    """Send it a signal, if it is still that process; returns whether it was. PermissionError as the system raises it.

    An older kernel has no pidfds, and a filter of system calls may refuse them (EPERM in old containers); then another
    process could get the number between the look and the signal.
    """
    try:
        fd = os.pidfd_open(member.pid)
    except (AttributeError, OSError):
        fd = -1
    try:
        if not is_running(member):
            return False  # the number is another's by now
        if fd < 0 or not _sent_by(fd, number):
            os.kill(member.pid, number)
    except ProcessLookupError:
        return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True


def _sent_by(fd: int, number: int) -> bool:
    try:
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        return False
    return True


def look_at(pid: int) -> Member | None:
    """The process with this pid; None if it has ended, or there is no `/proc`."""
    return _read(pid) if procfs.is_ours() else None


def ancestors(pid: int) -> list[int]:
    """A process, its parent, and so on, up to the first one whose parent is in another PID namespace."""
    found = [pid] if pid > 0 else []
    while found and (one := look_at(found[-1])) is not None and one.parent > 0 and one.parent not in found:
        found.append(one.parent)
    return found


program = procfs.comm


def _all() -> Iterator[Member]:
    for pid in procfs.pids() if procfs.is_ours() else ():
        if (one := _read(pid)) is not None:
            yield one


def _read(pid: int) -> Member | None:
    """The process with this pid; None if it has ended, waited for or not."""
    try:
        state, parent, *fields = procfs.stat_fields(pid)
        return None if state in "ZX" else Member(pid, int(parent), int(fields[17]))
    except (ValueError, IndexError):
        return None
