"""One scenario's directory and processes, and the questions that scenarios ask. Nothing of it is left afterwards."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Self

from .adapter import Adapter
from .dialects import Claim, Dialect
from .process import Answer, Running, how_it_ended
from .scenario import Failed, Skipped
from .vectors import Reading

HELD, REFUSED, STALE = "held", "refused", "stale"


class Bench:
    """What a scenario works with. `path` is what the adapter is given, `lock` is the lock file of it."""

    def __init__(self, adapter: Adapter, dialect: Dialect, reading: Reading) -> None:
        self.adapter, self.dialect, self.reading = adapter, dialect, reading
        self.root = os.path.realpath(tempfile.mkdtemp(prefix="conformance-"))
        self.directory = self.make("here")
        self.side = self.make("aside")
        """Another directory of the same filesystem, where lock files are prepared."""
        self.path = self.place("lock")
        self.lock = dialect.lock_file(self.path)
        self._running: list[Running] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for running in self._running:
            self.adapter.end(running)
        shutil.rmtree(self.root, ignore_errors=True)

    # -- the scene -----------------------------------------------------------------------------------------------------

    def make(self, name: str) -> str:
        """A new directory of that name."""
        directory = os.path.join(self.root, name)
        os.mkdir(directory)
        return directory

    def place(self, name: str) -> str:
        """What a user names to lock something called so: for beads a directory, which is there."""
        path = os.path.join(self.directory, name)
        if self.dialect.name == "beads":
            os.mkdir(path)
        return path

    def record(self, *, age: float = 0.0, pid: int | None = None, host: str | None = None) -> bytes:
        """A record in the reference's bytes; of this process, unless another is named."""
        return self.dialect.write(self.claim(age=age, pid=pid, host=host))

    @staticmethod
    def claim(*, age: float = 0.0, pid: int | None = None, host: str | None = None) -> Claim:
        return Claim(os.getpid() if pid is None else pid, time.time() - age, host)

    def put(self, data: bytes, *, mode: int | None = None, age: float = 0.0, at: str | None = None) -> int:
        """A whole lock file of somebody else, replacing what is there; `age` is its mtime's. Its inode."""
        at = at or self.lock
        aside = self.prepare(data, self.dialect.mode if mode is None else mode)
        if age:
            os.utime(aside, (time.time() - age,) * 2)
        os.rename(aside, at)
        return os.lstat(at).st_ino

    def prepare(self, data: bytes, mode: int) -> str:
        """A new file in the other directory."""
        fd, aside = tempfile.mkstemp(dir=self.side)
        with open(fd, "wb") as file:
            file.write(data)
            os.fchmod(fd, mode)
        return aside

    def found(self, at: str | None = None) -> bytes | None:
        """What is in the lock file, or None for no such file; a FIFO is none."""
        try:
            with open(at or self.lock, "rb", opener=_without_waiting) as file:
                return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
        except OSError:
            return None

    def dead_pid(self) -> int:
        """A number that was a process's a moment ago."""
        process = subprocess.Popen(["true"])
        process.wait()
        return process.pid

    def old_pid(self, age: float) -> int:
        """A process that has been there for longer than `age` seconds; Skipped where there is none."""
        for pid in (1, os.getppid()):
            done = subprocess.run(["ps", "-o", "etimes=", "-p", str(pid)], capture_output=True, text=True, check=False)
            if done.stdout.strip().isdecimal() and int(done.stdout) > age:
                return pid
        raise Skipped(f"no process here is known to be older than {age:g} s")

    # -- the implementation --------------------------------------------------------------------------------------------

    def start(self, operation: str, path: str | None = None, prefix: Sequence[str] = ()) -> Running:
        """Ask the adapter for an operation; it is ended with the scenario."""
        self._running = [running for running in self._running if not self.adapter.reuse(running)]
        running = self.adapter.ask(operation, self.path if path is None else path, prefix)
        self._running.append(running)
        return running

    def get(self, operation: str = "try", path: str | None = None) -> Running:
        """An adapter that holds the lock; Failed if it does not get it."""
        running = self.start(operation, path)
        self.expect_held(running)
        return running

    def expect_held(self, running: Running, expected: str = "the lock to be acquired") -> None:
        answer = running.answer(self.adapter.limit)
        if answer.line != HELD or answer.status is not None:
            raise Failed(f"{expected}: a line `held`", str(answer), self.found())

    def expect_refused(
        self, expected: str, operation: str = "try", word: str = REFUSED, prefix: Sequence[str] = ()
    ) -> None:
        """The lock at the path is somebody's: it is not acquired, and its file stays as it is."""
        before = self.found(), self.identity()
        answer = self.start(operation, prefix=prefix).answer(self.adapter.limit)
        if answer.line != word or answer.status != 1:
            raise Failed(f"{expected}: a line `{word}` and exit status 1", str(answer), self.found())
        if (self.found(), self.identity()) != before:
            raise Failed(f"{expected}, and its lock file to be left alone", "the lock file has changed", self.found())

    def expect_error(self, expected: str, path: str | None = None) -> Answer:
        """No lock can be there: any exit status but 0, soon."""
        answer = self.start("try", path).answer(self.adapter.prompt)
        if answer.line == HELD or answer.hung or answer.status is None or answer.status <= 0:
            raise Failed(f"{expected}: an exit status above 0 within 2 s", str(answer), self.found())
        return answer

    def expect_released(self, running: Running, expected: str = "the lock to be released") -> None:
        """After the end of its input: exit status 0, and no lock file."""
        running.let_go()
        status = running.ended(self.adapter.limit)
        if status != 0:
            happened = "it did not end in time" if status is None else f"it {how_it_ended(status)}"
            complaint = running.complaint().strip()
            raise Failed(f"{expected}: exit status 0", f"{happened}; {complaint}".rstrip("; "), self.found())
        if os.path.lexists(self.lock):
            raise Failed(f"{expected}: no lock file any more", "it is still there", self.found())

    def expect_released_to(self, holder: Running, waiter: Running) -> None:
        """The holder lets go and ends, and the waiter gets in."""
        holder.let_go()
        self.expect_held(waiter, "the waiter to get in after the release")
        if holder.ended(self.adapter.limit) != 0:
            raise Failed("the release to succeed", "it did not: " + holder.complaint().strip(), self.found())

    def expect_silent(self, running: Running, expected: str) -> None:
        """It waits."""
        line = running.line(self.adapter.silence)
        if line is not None or running.ended(0) is not None:
            raise Failed(expected, str(Answer(line, running.ended(0), complaint=running.complaint())), self.found())

    def expect_own_record(self, running: Running) -> Claim:
        """The lock file is a whole record that names the adapter's process."""
        data = self.found()
        if data is None:
            raise Failed(f"a lock file at {os.path.basename(self.lock)}", "there is none")
        try:
            claim = self.dialect.read(data)
        except ValueError as error:
            raise Failed(f"a whole record of the {self.dialect.name} protocol", f"it is none: {error}", data) from None
        if running.ended(0) is not None:
            raise Failed("the lock to be held until the input ends", str(running.answer(0, ends=True)), data)
        if "other-pid" not in self.adapter.abilities and not _belongs(claim.pid, running.pid):
            raise Failed("the pid of the process that holds the lock", f"it names {claim.pid}", data)
        return claim

    def identity(self) -> tuple[int, int] | None:
        try:
            found = os.lstat(self.lock)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def eventually(self, condition: Callable[[], bool]) -> bool:
        """Whether the condition comes true in time."""
        deadline = time.monotonic() + self.adapter.limit
        while not condition():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.002)
        return True


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _belongs(pid: int | None, leader: int) -> bool:
    """Whether that process is the adapter, or was started by it."""
    if pid is None or pid <= 0:
        return False
    try:
        return os.getsid(pid) == leader
    except OSError:
        return False
