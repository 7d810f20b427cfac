"""The process that the lock of `try` and `acquire` is bound to: the caller, if that is a shell, unless one is named.

W1  A lock that ends as soon as its command has said that it is held is refused, not reported as a success. So a caller
    is accepted only if it is seen to be a shell: a program that runs one command (timeout, xargs, sudo, make, a
    `subprocess.run` whose `sh -c` has become the command) looks like any other, and no list of them can be complete.
    env, nice, nohup and setsid become the command, whose parent then is the shell; so does `sh -c` with its last
    command, in most shells. In others, that shell ends with us (W2).
W2  The shell of `sh -c 'holdfast try LOCK'` has nothing else to do. That is refused if the one command of its text is
    seen to be ours; a text with any operator, substitution or variable in our words may be more than that.
W3  If the caller's program cannot be determined (another system, another user's `/proc`), nothing is refused. A message
    names the owner, as a lock acquired by a script that ends, or in a subshell, cannot be told from one that is kept.
"""

from __future__ import annotations

import os
import sys

from .._platform import environment
from ..engines import scheme_of
from ..errors import HoldfastError
from ..model import Holder
from .detached import readable
from .options import Namespace
from .outcome import failed, masked, say

KEEPER = "holdfast-keeper"
"""The name of a keeper (keeper.py) in lists of processes; the process for which it keeps its lock stands behind it."""
_TITLE = rf"{KEEPER}\s+for process ([0-9]+)\b"
_SHELLS = {
    "ash", "bash", "brush", "bsd-csh", "cmd", "csh", "dash", "elvish", "fish", "hush", "ksh", "lksh", "loksh",
    "mksh", "mrsh", "murex", "nu", "oils-for-unix", "oksh", "osh", "pdksh", "posh", "powershell",
    "powershell_ise", "pwsh", "rbash", "rksh", "rzsh", "sash", "sh", "static-sh", "tcsh", "xonsh", "yash", "ysh",
    "zsh",
}  # fmt: skip
_MULTICALL = ("busybox", "toybox")
_OPERATORS = frozenset(";&|\n<>(){}`$")
_SHOWN = 60


def owner_of(options: Namespace, *, binds: bool) -> int:
    """Pid of the owner, a shell unless it is named; ValueError if there is none. Without `binds`, no lock is left to
    it, and only its pid counts."""
    if options.owner_pid:
        return int(options.owner_pid)
    pid = environment().caller()
    if pid <= 0:
        raise ValueError(
            "the calling process cannot be seen from here (it is in another PID namespace); pass --owner-pid"
        )
    why = _why_not(pid) if binds else None
    if why is not None:
        raise ValueError(
            f"{options.lock} was not acquired: it would be bound to process {_shown(pid)}, {why}. Name the process "
            "that it is for (--owner-pid $$ in a script), or use: holdfast run LOCK -- CMD"
        )
    return pid


def tell_bound(options: Namespace, owner: int) -> None:
    """Report the process that the lock is bound to, unless the caller knows it, or reads it elsewhere."""
    if not (options.quiet or options.json or options.verbose or options.owner_pid):
        say(f"bound to process {_shown(owner)}: free when that ends")


def _shown(pid: int) -> str:
    program = environment().program(pid)
    if program is None:
        return str(pid)
    name, words = program
    if len(words) > 1 and _is_shell(_base(words[0])) and not words[1].startswith("-"):
        words = [_base(words[1]), *words[2:]]  # people know it by its script
    from .._core.messages import brief_command, printable

    command = brief_command(" ".join(words)) or name
    if "://" in command:
        command = masked(command)  # before it is cut: half of a URL is not recognised as one
    return f"{pid} ({printable(command, _SHOWN)})"


def _why_not(pid: int) -> str | None:
    """Why that caller would not keep the lock; None if it would, or if that cannot be known (W3)."""
    program = environment().program(pid)
    if program is None:
        return None
    name, words = program
    first, second = (_base(word) for word in [*words, "", ""][:2])
    if name in _MULTICALL:
        name = second if first in _MULTICALL else first
    elif not _is_shell(name) and (_is_shell(first) or second == "xonsh"):
        return None  # a shell run by an emulator, or by the interpreter of the language that it is written in
    if not _is_shell(name):
        return "which is not a shell and may end as soon as this command has"
    if _is_all_of(words):
        return "a shell that ends with this command"
    return None


def tell_if_ours(options: Namespace, *holders: Holder | None) -> None:
    """Say so if a holder of the lock has called this command, which would wait for itself: a shell that has acquired
    it, or a process that waits for the end of this one. For a semaphore, only if that is true of all its slots."""
    from .._platform.tree import ancestors

    ours = ancestors(environment().caller())
    here = [_held_by(one.pid, ours) for one in holders if one is not None and one.pid and _is_of_here(options, one)]
    found = [pid for pid in here if pid in ours]
    slots = getattr(options, "slots", None)
    if not found or (slots is not None and len(found) < slots):
        return
    pid = found[0]
    if slots is None and pid == ours[0] and is_shell(pid):
        _tell_to_release(options, pid)
    elif pid not in options.told_of:
        options.told_of.append(pid)
        say(
            f"process {pid}, which holds it, is an ancestor of this process. If it waits for this one to end, as "
            "`holdfast run` does, it cannot release the lock before that. End this command, or call it without the lock"
        )


def _held_by(pid: int, ours: list[int]) -> int:
    """The owner of a lock that `pid` holds: without a record, the keeper is all that is known of its owner."""
    return pid if pid in ours else kept_for(pid) or pid


def kept_for(pid: int) -> int | None:
    """Pid of the process for which this keeper keeps its lock; None if it is no keeper, or cannot be seen."""
    import re

    titled = re.match(_TITLE, environment().command(pid) or "")
    return None if titled is None else int(titled[1])


def _is_of_here(options: Namespace, holder: Holder) -> bool:
    """Whether the holder's pid is a number of this machine and PID namespace, where its command can be seen."""
    if holder.command is not None:
        return True
    return bool(scheme_of(options.lock)) and holder.host == environment().identity().host


def _tell_to_release(options: Namespace, pid: int) -> None:
    from .._core.messages import quoted

    lock: str = options.lock
    protocol = ["-p", options.protocol] if options.protocol else []
    if getattr(options, "realpath", None) is False:
        protocol += ["--realpath", "no"]  # without, the same word names another lock
    command = quoted("holdfast", "release", *protocol, f"./{lock}" if lock.startswith("-") else lock)
    say(f"process {pid} is the shell that has called this. To release its lock: {command}")


def is_shell(pid: int) -> bool:
    """Whether that process is seen to be a shell."""
    program = environment().program(pid)
    return program is not None and _is_shell(_base(program[0]))


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _is_shell(name: str) -> bool:
    """Whether this is the name of a shell: also `-bash` at a login, `zsh-5.9`, `ksh93`, `bash-static`, `pwsh.exe`."""
    name = name.lower().lstrip("-.").removesuffix(".exe").removesuffix("-wrapped").removesuffix("-static")
    return name.rstrip("0123456789.-") in _SHELLS


def _is_all_of(words: list[str]) -> bool:
    """Whether this very command is all that a shell with these words does (W2)."""
    text = None
    for number, word in enumerate(words[1:], 1):
        if not word.startswith("-") or word == "-":
            return False
        if not word.startswith("--") and "c" in word:
            text = next((one for one in words[number + 1 :] if not one.startswith("-")), None)
            break
    if text is None or _OPERATORS.intersection(text):
        return False
    import shlex

    try:
        said = shlex.split(text)
    except ValueError:
        return False
    ours = sys.argv[1:]
    before = said[: -len(ours)] if ours else said
    return said == [*before, *ours] and bool(before) and _base(before[-1]) == "holdfast"


class Owner:
    """A living process that a lock is bound to (S3)."""

    def __init__(self, pid: int) -> None:
        self._env = env = environment()
        self.pid = pid
        opened = env.watch_process(pid, inherited=True)
        self.fd = -1
        if opened is not None:
            self.fd = os.dup(opened)  # a forked child closes all that the environment has opened
            env.close(opened)
        self._started = env.identity(pid).started

    def has_ended(self) -> bool:
        if self.fd >= 0:
            return bool(readable([self.fd], 0))
        found = self._env.inspect(self.pid)
        return found.has_ended or found.started != self._started

    def command(self) -> str:
        """The name of the owner's program, for people."""
        words = (self._env.command(self.pid) or "").split()
        return words[0].rpartition("/")[2].lstrip("-") if words else ""

    def tell_ended(self, path: str, options: Namespace) -> int:
        """Say that the owner did not live to get the lock; the exit status."""
        return failed(HoldfastError(f"process {self.pid} has ended, so {path} was not acquired for it"), options)
