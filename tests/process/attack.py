"""An attacker beside contenders of every kind: another user swaps all it can in two directories that root locks in.

`shared` lets everybody write, so the attacker decides about the locks there; but nothing outside may change, nobody may
hang, and nobody may fail except by a documented error. `sticky` keeps everybody from the files of others; the attacker
puts things beside the locks, though not in place of a free one, which would be its own then. There, a holder must hold
its lock alone, and must not lose it. Contenders are killed; `clean --yes`, `doctor` and `reap` run all the while.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import Lock, Semaphore
from holdfast.errors import AcquireTimeout, HoldfastError, LockLost
from unit.elsewhere import NOBODY

KINDS: dict[str, Callable[[Path], Any]] = {
    "sema": lambda where: Lock(where / "a.lock"),
    "unfair": lambda where: Lock(where / "a.lock", fair=False),
    "semats": lambda where: Lock(where / "m.lock", protocol="semats"),
    "sidecar": lambda where: Lock(where / "s", protocol="sidecar"),
    "beads": lambda where: Lock(_beads_of(where), protocol="beads", holder="x"),
    "flock": lambda where: Lock(where / "f.lock", protocol="flock", tag="x"),
    "fencing": lambda where: Lock(where / "t.lock", fencing=True),
    "semaphore": lambda where: Semaphore(where / "n", slots=2),
}
_AT = {
    "sema": "a.lock",
    "unfair": "a.lock",
    "semats": "m.lock",
    "sidecar": "s.lock",
    "beads": ".exclusive-lock",
    "flock": "f.lock",
    "fencing": "t.lock",
    "semaphore": "n.0.lock",
}
"""The lock file of each."""
LOCK_FILES = (*dict.fromkeys(_AT.values()), "n.1.lock")
_RENAME_EXCHANGE = 2
_HUNG = 60.0
_CELLS = 4
"""Cells of each process: passed, refused, failed, and the moment of its last action."""
_libc = ctypes.CDLL(None, use_errno=True)


class Ledger:
    """The actions of each process, in memory that all of them share; and the errors, in a file."""

    def __init__(self, wrong: Path, processes: int) -> None:
        # One store for each number: struct.pack_into writes zeros first, and a process may be stopped or killed there.
        self._cells = memoryview(mmap.mmap(-1, 8 * _CELLS * processes)).cast("d")
        self._wrong = wrong

    def add(self, number: int, *, passed: int = 0, refused: int = 0, failed: int = 0) -> None:
        first = number * _CELLS
        for at, more in enumerate((passed, refused, failed), first):
            self._cells[at] += more
        self._cells[first + _CELLS - 1] = time.monotonic()

    def of(self, number: int) -> tuple[float, float, float, float]:
        return tuple(self._cells[number * _CELLS : (number + 1) * _CELLS])  # type: ignore[return-value]

    def wrong(self, text: str) -> None:
        with open(self._wrong, "a", encoding="utf-8") as file:
            file.write(text + "\n")


class Attack:
    """The places, the processes, and their results."""

    def __init__(self, root: Path, outside: Path, seed: int) -> None:
        self.root, self.outside, self.seed = root, outside, seed
        self.shared, self.sticky, self.den, self.private = (root / n for n in ("shared", "sticky", "den", "private"))
        for where, mode in ((self.shared, 0o777), (self.sticky, 0o1777), (self.den, 0o777), (self.private, 0o700)):
            where.mkdir()
            where.chmod(mode)
        self.everywhere = (self.shared, _beads_of(self.shared), self.sticky, _beads_of(self.sticky))
        for where in self.everywhere[1::2]:
            where.mkdir()
            where.chmod(0o1777 if where.name.startswith("sticky") else 0o777)
        # Files that exist before the attacker comes are root's: the counter, and a file that stays.
        for name in ("f.lock", "t.lock.token"):
            (self.sticky / name).touch()
        os.chown(self.den, NOBODY, NOBODY)
        jobs: list[Callable[[int], None]] = [self._attacker, self._attacker]
        self.contenders = range(len(jobs), len(jobs) + 2 * len(KINDS))
        jobs += [
            lambda n, k=kind, w=where: self._contend(n, k, w) for where in (self.shared, self.sticky) for kind in KINDS
        ]
        jobs += [lambda n, c=words: self._command(n, c) for words in self._commands()]
        self._jobs = jobs
        self.ledger = Ledger(self.private / "wrong", len(jobs))
        self._pids: dict[int, int] = {}
        self.killed = 0

    def _commands(self) -> list[list[str]]:
        shared = str(self.shared)
        return [
            ["clean", "-r", "--yes", *map(str, self.everywhere)],
            ["doctor", shared],
            ["reap", shared],
            ["ls", "-r", shared],
        ]

    def run(self, seconds: float) -> list[str]:
        """Run for that many seconds; the errors."""
        dice = random.Random(self.seed)
        end = time.monotonic() + seconds
        try:
            for number in range(len(self._jobs)):
                self._start(number)
            while (now := time.monotonic()) < end:
                time.sleep(0.05)
                self._kill(dice.choice(self.contenders))
                for number in range(len(self._jobs)):
                    if now - self.ledger.of(number)[3] > _HUNG:
                        return [f"{self._name(number)} has done nothing for {_HUNG:g} s", *self._told()]
        finally:
            for pid in self._pids.values():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return self._told()

    def _told(self) -> list[str]:
        wrong = self.private / "wrong"
        return wrong.read_text().splitlines() if wrong.exists() else []

    def figures(self) -> dict[str, tuple[int, int, int]]:
        """Passed, refused and failed actions of each process."""
        every = {self._name(n): self.ledger.of(n)[:3] for n in range(len(self._jobs))}
        return {name: (int(a), int(b), int(c)) for name, (a, b, c) in every.items()}

    def _name(self, number: int) -> str:
        if number in self.contenders:
            at = number - self.contenders[0]
            return f"{[*KINDS][at % len(KINDS)]} in {'shared' if at < len(KINDS) else 'sticky'}"
        after = number - self.contenders[-1] - 1
        return f"attacker {number}" if after < 0 else self._commands()[after][0]

    def _start(self, number: int) -> None:
        self.ledger.add(number)
        pid = os.fork()
        if pid:
            self._pids[number] = pid
            return
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._jobs[number](number)
        except BaseException:
            with contextlib.suppress(OSError):
                self.ledger.wrong(f"{self._name(number)} failed: {traceback.format_exc()}")
        finally:
            os._exit(1)

    def _kill(self, number: int) -> None:
        os.kill(self._pids[number], signal.SIGKILL)
        os.waitpid(self._pids[number], 0)
        self.killed += 1
        self._start(number)

    # -- contenders ----------------------------------------------------------------------------------------------------

    def _contend(self, number: int, kind: str, where: Path) -> None:
        dice = random.Random(self.seed * 1000 + number + self.killed * 100_000)
        while True:
            try:
                hold = KINDS[kind](where).acquire(timeout=dice.choice((0, 0.006, 0.03)))
            except AcquireTimeout:
                self.ledger.add(number, refused=1)
                continue
            except (HoldfastError, OSError) as error:
                self._failed(number, kind, where, error)
                continue
            alone = os.open(self.private / f"{_AT[kind]}-{where.name}-{hold.slot}", os.O_CREAT | os.O_RDWR)
            try:
                if where == self.sticky:
                    # The kernel drops such locks of a killed process before those of flock, which a hold has.
                    fcntl.lockf(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
                time.sleep(dice.choice((0, 0, 0.001)))
            except BlockingIOError:
                self.ledger.wrong(f"two at once: {kind} in {where.name}")
            finally:
                os.close(alone)
            try:
                hold.release()
                self.ledger.add(number, passed=1)
            except (LockLost, OSError) as error:
                self._failed(number, kind, where, error)

    def _failed(self, number: int, kind: str, where: Path, error: Exception) -> None:
        self.ledger.add(number, failed=1)
        if where == self.sticky and isinstance(error, LockLost):
            self.ledger.wrong(f"lost: {kind} in {where.name}: {error}")
        time.sleep(0.001)

    def _command(self, number: int, words: list[str]) -> None:
        from holdfast import cli

        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(1, 2)
        sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115 - for as long as the process lives
        while True:
            if words[0] == "reap":
                self._reap(number, words)
                continue
            with contextlib.suppress(SystemExit):
                cli.main(words)
            self.ledger.add(number, passed=1)

    def _reap(self, number: int, words: list[str]) -> None:
        pid = os.fork()
        if not pid:
            from holdfast import cli

            libc_die_with_parent()
            try:
                signal.alarm(2)
                cli.main(words)
            except BaseException:
                self.ledger.wrong(f"reap failed: {traceback.format_exc()}")
            os._exit(1)
        status = os.waitpid(pid, 0)[1]
        if os.waitstatus_to_exitcode(status) != -signal.SIGALRM:
            self.ledger.wrong(f"reap ended with {status:#x}")
        self.ledger.add(number, passed=1)

    # -- the attacker --------------------------------------------------------------------------------------------------

    def _attacker(self, number: int) -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.umask(0)
        dice = random.Random(self.seed * 1000 + number)
        kept: list[int] = []
        while True:
            where = dice.choice((self.shared, self.shared, *self.everywhere))
            try:
                path = self._victim(dice, where)
                dice.choice((self._swap, self._swap, self._put, self._take_away, self._peek))(dice, path, kept)
                self.ledger.add(number, passed=1)
            except OSError:
                self.ledger.add(number, refused=1)
            except ValueError:
                pass  # a name that another has removed in between
            if dice.random() < 0.01:
                time.sleep(0.005)  # so that contenders get anywhere

    def _victim(self, dice: random.Random, where: Path) -> str:
        """A path to attack: one that exists, or one that may."""
        with contextlib.suppress(OSError):
            names = os.listdir(where)
            if names and dice.random() < 0.6:
                name = dice.choice(names)
                if name.endswith(".queue") and dice.random() < 0.5:
                    inside = os.listdir(where / name)
                    name = f"{name}/{dice.choice(inside)}" if inside else name
                return str(where / name)
        name = _AT["beads"] if where in self.everywhere[1::2] else dice.choice(LOCK_FILES)
        own = (f".holdfast-{name}.queue", f"{name}.token", f"{name}.reclaim", f"{name}.{2**22 + 7}.{0:016x}.tmp")
        return str(where / dice.choice((name, *own) if where.name.startswith("shared") else own))

    def _bait(self, dice: random.Random) -> str:
        path = str(self.den / f"bait-{os.getpid()}-{dice.randrange(2**32)}")
        target = dice.choice(("text", "dead", "nothing", "directory", "directory/.holdfast-l.queue", "empty"))
        makers: tuple[Callable[[], object], ...] = (
            lambda: os.symlink(self.outside / target, path),
            lambda: os.symlink(self.outside / target, path),
            lambda: os.mkfifo(path, 0o666),
            lambda: os.mkdir(path, 0o777),
            lambda: os.link(self.outside / target, path),
            lambda: Path(path).write_bytes(f"pid={2**22 + 7}\ntimestamp=1000\ntag=forged\n".encode()),
            lambda: Path(path).write_bytes(b""),
            lambda: (Path(path).touch(), os.truncate(path, 10 * 2**30)),
            lambda: (Path(path).touch(), os.chmod(path, 0o1666)),
        )
        dice.choice(makers)()
        return path

    def _swap(self, dice: random.Random, path: str, _kept: list[int]) -> None:
        """Exchange the file for something else, and perhaps back at once."""
        bait = self._bait(dice)
        try:
            for _ in range(dice.choice((1, 2, 2, 3))):
                exchange(bait, path)
        finally:
            discard(bait)

    def _put(self, dice: random.Random, path: str, _kept: list[int]) -> None:
        """Put something where nothing is."""
        if path.startswith(str(self.sticky)) and os.path.basename(path) in LOCK_FILES:
            return
        if path.endswith(".queue") and dice.random() < 0.5:
            path = f"{path}/{dice.randrange(10**6):020d}-x-{os.getpid()}-{dice.randrange(2**64):016x}"
        bait = self._bait(dice)
        try:
            os.link(bait, path, follow_symlinks=False)  # nothing that is there is replaced
        finally:
            discard(bait)

    def _take_away(self, _dice: random.Random, path: str, _kept: list[int]) -> None:
        discard(path)

    def _peek(self, dice: random.Random, path: str, kept: list[int]) -> None:
        """Open the file and lock it, shared, for a while: that takes no more than the right to read."""
        while len(kept) > 3:
            os.close(kept.pop(dice.randrange(len(kept))))
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        kept.append(fd)
        if dice.random() < 0.1:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _beads_of(where: Path) -> Path:
    """A directory of beads beside the other one: whoever may write to its parent would decide which directory it is."""
    return where.with_name(f"{where.name}-b")


def exchange(one: str, other: str) -> None:
    """Exchange two paths by renameat2(RENAME_EXCHANGE)."""
    if _libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), other)


def discard(path: str) -> None:
    """Remove a file, if that is permitted."""
    try:
        os.unlink(path)
    except (IsADirectoryError, PermissionError):
        with contextlib.suppress(OSError):
            for name in os.listdir(path):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(path, name))
        os.rmdir(path)


def libc_die_with_parent() -> None:
    """Have the kernel kill this process with its parent (PR_SET_PDEATHSIG)."""
    _libc.prctl(1, signal.SIGKILL)
