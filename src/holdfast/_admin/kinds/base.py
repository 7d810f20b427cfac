"""The common part of all kinds of other programs' locks: looking at a lock, and describing it.

KI1  Nothing is changed: a kind reads, and has no other means (`View`). Only regular files are opened, a link is read
     and not followed, and no more is read of a file or directory than `View` says, whatever lies there.
KI2  The content of a lock is what somebody has written. A pid in it is believed only where it was written on this host,
     and only if that process was there before the lock was; else nothing is known of the holder. A lock that names no
     host is believed where no other machine shares the filesystem.
KI3  Seeing no holder is no proof of death: a lock is called a leftover only where every process of its user could be
     looked at, no other machine shares the filesystem, and the file is older than that look, and still there after it
     (a holder that lets go may have ended before the processes were looked at). Else it counts as held.
KI4  Only the kernel's own lock is proof. All else is evidence, and is said with the answer.
"""

from __future__ import annotations

import functools
import stat
from collections.abc import Callable, Iterable

from ..._core import messages
from ..._platform.interface import Entry, Stat, Surroundings
from ..._platform.proc_files import ProcFiles
from ..._platform.values import Presence
from ...liveness import Liveness
from ...model import Evidence, Holder, Status, Value, Waiter
from ..found import ELSEWHERE, FREE, HELD, LEFTOVER, Found

_MOST_TEXT = 16_384
"""The most bytes that are read of a file."""
_MOST_NAMES = 100
_SLACK = 2.0
"""Seconds by which a process may seem to be younger than its lock: start times are in ticks."""


class Verdict(Value):
    """The judgement of a lock. `holders` have it; the first is named."""

    condition: str
    liveness: Liveness
    evidence: Evidence
    holders: tuple[Holder, ...] = ()
    waiters: tuple[Waiter, ...] = ()


class View:
    """A look at one file, which is all that a kind may do with it (KI1). OSError as the system raises it. `found`: the
    stat of the path, or of its directory if nothing is there. `kind`: the kind that looks."""

    kind = ""

    def __init__(self, env: Surroundings, files: Callable[[], ProcFiles], path: str, found: Stat) -> None:
        self.env = env
        self._files = files
        self.path = path
        self.where, _, self.name = path.rpartition("/")
        self.found = found
        self.is_file = stat.S_ISREG(found.st_mode)
        self.is_link = stat.S_ISLNK(found.st_mode)
        self.is_directory = stat.S_ISDIR(found.st_mode)

    @functools.cached_property
    def files(self) -> ProcFiles:
        return self._files()

    @property
    def identity(self) -> tuple[int, int]:
        return (self.found.st_dev, self.found.st_ino)

    # -- reading -------------------------------------------------------------------------------------------------------

    def data(self, path: str | None = None, most: int = _MOST_TEXT) -> bytes:
        """The beginning of the file, or of a regular file beside it; empty for others, and if it may not be read."""
        found = self.found if path is None else self.stat(path)
        if found is None or not stat.S_ISREG(found.st_mode):
            return b""
        try:
            fd = self.env.open_existing(self.path if path is None else path, write=False)
        except OSError:
            return b""
        try:
            return self.env.read(fd, most) if stat.S_ISREG(self.env.fstat(fd).st_mode) else b""
        finally:
            self.env.close(fd)

    def link(self) -> str:
        """The target of the link; empty if it is none."""
        return self.env.read_link(self.path) if self.is_link else ""

    def stat(self, path: str) -> Stat | None:
        try:
            return self.env.stat(path)
        except OSError:
            return None

    def is_there(self, *paths: str) -> bool:
        """Whether all of these exist."""
        return all(self.stat(path) is not None for path in paths)

    def names(self) -> list[str]:
        """Names in the directory at the path, in order; at most `_MOST_NAMES`."""
        kept: list[str] = []

        def keep(entry: Entry) -> None:
            if len(kept) < _MOST_NAMES:
                kept.append(entry.name)

        self.env.scan(self.path, keep)
        return sorted(kept)

    # -- who -----------------------------------------------------------------------------------------------------------

    def is_here(self, host: str) -> bool:
        """Whether a host name, qualified or not, is that of this machine."""
        mine, theirs = self.env.identity().host.casefold(), host.casefold()
        short = "." not in mine or "." not in theirs
        return mine == theirs or (short and mine.partition(".")[0] == theirs.partition(".")[0])

    def holder(self, pid: int | None, host: str | None = None, tag: str | None = None) -> Holder:
        command = self.env.command(pid) if pid and host is None else None
        return Holder(pid, host, None, tag, command)

    def openers(self, *, writing: bool = True) -> list[int]:
        """The processes that have the file open; `writing`: for writing."""
        return self.files.openers(self.name, self.found.st_ino, writing=writing)

    def of_openers(self, pids: Iterable[int], text: str = "has it open for writing") -> Verdict:
        holders = tuple(map(self.holder, pids))
        named = ", ".join(f"process {one.pid}" for one in holders[:3])
        return Verdict(HELD, Liveness.ALIVE, Evidence("process", f"{named} {text}"), holders)

    def of_process(self, pid: int, host: str | None = None, tag: str | None = None) -> Verdict:
        """The verdict by the pid that a lock names (KI2)."""
        if host is not None and not self.is_here(host):
            text = f"it was made on {host}, whose processes cannot be seen from here"
            return Verdict(ELSEWHERE, Liveness.UNKNOWN, Evidence("none", text), (self.holder(pid or None, host, tag),))
        process = self.env.inspect(pid) if 0 < pid < 2**31 else None
        who = (self.holder(pid, None, tag),)
        if process is None or process.presence is Presence.UNKNOWN:
            return Verdict(HELD, Liveness.UNKNOWN, Evidence("none", f"process {pid} cannot be inspected"), who)
        if process.has_ended:
            text = f"it names process {pid}, and there is no such process here"
            return self.of_nobody(text, (Holder(pid, host, None, tag),))
        if process.since is not None and process.since > self.found.st_mtime + _SLACK:
            text = f"it names process {pid}, but the process that has this pid now started later"
            return self.of_nobody(text, (Holder(pid, host, None, tag),))
        if host is None and self.env.storage(self.path).shared:
            text = f"it names process {pid}, but not its machine, and other machines may share this filesystem"
            return Verdict(HELD, Liveness.UNKNOWN, Evidence("none", text), (Holder(pid, None, None, tag),))
        return Verdict(HELD, Liveness.ALIVE, Evidence("process", f"process {pid}, which it names, exists"), who)

    def of_nobody(self, text: str, holders: tuple[Holder, ...] = ()) -> Verdict:
        """The verdict if no process is seen that could have the lock (KI3)."""
        files = self.files
        if not files.sees(self.found.st_uid):
            text += "; not all processes of its user could be inspected, so that proves little (try as root)"
        elif self.env.storage(self.path).shared:
            text += "; but other machines may share this filesystem, and their processes cannot be seen"
        elif self.found.st_mtime > files.read_at:
            text += "; but it has just been made"
        else:
            return Verdict(LEFTOVER, Liveness.DEAD, Evidence("process", text), holders)
        return Verdict(HELD, Liveness.UNKNOWN, Evidence("none", text), holders)

    def of_kernel(self) -> Verdict:
        """The verdict by the kernel's locks on the file."""
        locks = self.files.kernel_locks(self.name, self.identity)
        having = {lock.pid: lock for lock in locks if not lock.waiting and lock.kind != "lease"}
        waiting = [lock.pid for lock in locks if lock.waiting and lock.pid is not None]
        waiters = tuple(Waiter(None, pid, None, None, self.env.command(pid)) for pid in waiting)
        if not having:
            evidence = Evidence("guard", "nobody has a kernel lock on it")
            return Verdict(FREE, Liveness.UNKNOWN, evidence, (), waiters)
        holders = tuple(self.holder(pid).replaced(shared=not lock.exclusive) for pid, lock in having.items())
        kinds = " and ".join(sorted({lock.kind for lock in having.values()}))
        evidence = Evidence("guard", f"the kernel lock on it ({kinds}) is held", proven=True)
        return Verdict(HELD, Liveness.ALIVE, evidence, holders, waiters)

    def by_age(self, condition: str, text: str) -> Verdict:
        """The verdict by a rule that goes by age alone, which proves nothing."""
        return Verdict(condition, Liveness.UNKNOWN, Evidence("none", text))

    def again(self) -> View:
        """A view of the same path, as it is now. FileNotFoundError if nothing is there."""
        return self.beside(self.path, self.env.stat(self.path))

    def is_same(self, later: View) -> bool:
        """Whether a later view is of the same file, unchanged: one that is made anew may get the same number."""
        return self.identity == later.identity and self.found.st_mtime_ns == later.found.st_mtime_ns

    def beside(self, path: str, found: Stat) -> View:
        """A view of another file."""
        return View(self.env, lambda: self.files, path, found)

    # -- what is said --------------------------------------------------------------------------------------------------

    def who(self, verdict: Verdict) -> str:
        """The holder in words, for an advice."""
        holder = verdict.holders[0] if verdict.holders else None
        if holder is None or holder.pid is None:
            return "the process that has it locked, which cannot be seen from here,"
        command = messages.printable(messages.brief_command(holder.command or ""), 60)
        return f"process {holder.pid}" + (f" ({command})" if command else "")

    def described(
        self, verdict: Verdict, reason: str, advice: str, *, refuses: bool = False, aged: bool = True
    ) -> Found:
        """The lock, with its verdict. `reason` and `advice` are of a lock that is not free. `refuses`: it keeps its
        program out, even as a leftover. `aged`: it was made when the file was written; else that time is unknown."""
        free = verdict.condition == FREE
        if free:
            reason, advice = "nobody has locked it; the file stays", ""
        made = self.found.st_mtime if aged and not free else None
        age = None if made is None else max(0.0, self.env.time() - made)
        holders = tuple(one.replaced(since=made) for one in verdict.holders)
        first = holders[0] if holders else None if free else Holder(since=made)
        locked = refuses or verdict.condition in (HELD, ELSEWHERE)
        status = Status(
            self.path, self.kind, locked, False, verdict.liveness, verdict.evidence, first, None, reason, age,
            verdict.waiters, holders, self.found.st_mtime,
        )  # fmt: skip
        return Found(status, verdict.condition, self.identity, self.found.st_uid, advice=advice)


def pid_in(data: bytes) -> int | None:
    """The number that a file consists of; None if there is anything else in it."""
    text = data.strip(b" \t\r\n\0")
    return int(text) if text.isdigit() and len(text) <= 10 else None


def sentence(seen: Found) -> str:
    """The holder of a lock, since when, and how that is known, in a sentence."""
    status = seen.status
    if status.holder is not None and status.holder.pid is not None and seen.condition != LEFTOVER:
        return messages.sentence(status)
    since = f" since {messages.moment(status.holder.since)}" if status.holder and status.holder.since else ""
    return f"{seen.condition}{since}: {messages.printable(status.evidence.text)}"
