"""Scenarios and the bench that each works with: its own directory and processes, and the questions that it asks.

A scenario has a name, one sentence why, and a function that fails by saying what was expected and what happened. Its
directory and processes are gone afterwards.

The record vectors are scenarios too: bytes of lock files, and their meaning. `records.json` is for implementers of any
language. Each vector has an `id`, a `protocol`, its input (`input_hex`, or `input_parts` as `[hex, times]` for large
ones) and the wanted result: `want.record`, the decoded fields, or `want.error`.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal, Self

from .adapter import Adapter, Answer, Running, how_it_ended
from .dialects import Claim, Dialect, moment

Basis = Literal["letter", "care"]
"""The letter of the specification, or experience: without that care, locks are lost, stolen or waited for in vain."""


class Failed(Exception):
    """The implementation has not done what it should."""

    def __init__(self, expected: str, happened: str, found: bytes | None = None) -> None:
        super().__init__(f"expected {expected}; {happened}")
        self.expected = expected
        self.happened = happened
        self.found = found
        """The content of the lock file; None if there was none, or it does not matter."""


class Skipped(Exception):
    """This machine cannot set the scene."""


@dataclass(frozen=True)
class Scenario:
    name: str
    why: str
    protocols: frozenset[str]
    needs: frozenset[str]
    """Abilities without which the scenario is skipped."""
    basis: Basis
    run: Callable[[Bench], None]
    waits: bool = False
    """Whether it takes seconds in which nothing happens: such scenarios begin first, and the others run meanwhile."""


SCENARIOS: list[Scenario] = []


def scenario(
    *protocols: str, needs: str = "try", basis: Basis = "letter", waits: bool = False
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Make a scenario of a function, with its name, and with its docstring as the sentence why."""

    def add(function: Callable[[Bench], None]) -> Callable[[Bench], None]:
        why = " ".join((function.__doc__ or "").split())
        name = function.__name__.replace("_", "-")
        SCENARIOS.append(Scenario(name, why, frozenset(protocols), frozenset(needs.split()), basis, function, waits))
        return function

    return add


MALFORMED = "malformed"
_SHOWN = 4096


def load(protocol: str) -> list[dict[str, Any]]:
    """The vectors of a protocol."""
    text = resources.files("holdfast.testing").joinpath("records.json").read_text(encoding="utf-8")
    return [vector for vector in json.loads(text) if vector["protocol"] == protocol]


def input_of(vector: dict[str, Any]) -> bytes:
    """The bytes of a vector's lock file."""
    if "input_hex" in vector:
        return bytes.fromhex(vector["input_hex"])
    return b"".join(bytes.fromhex(part) * times for part, times in vector["input_parts"])


def name_of(vector: dict[str, Any]) -> str:
    """The name of a vector's scenario."""
    return f"record:{vector['id']}"


def record_scenario(vector: dict[str, Any]) -> Scenario:
    """The scenario that checks whether the implementation reads a vector as wanted."""
    want = vector["want"]

    def run(bench: Bench) -> None:
        data = input_of(vector)
        said = bench.reading.of(vector["id"], data)
        if "error" in want:
            if said is not None:
                raise Failed("the record to be malformed", f"it was read as {_short(said)}", data[:_SHOWN])
        elif said is None or not _same(said, want["record"]):
            happened = "it was called malformed" if said is None else f"it was read as {_short(said)}"
            raise Failed(_short(want["record"]), happened, data[:_SHOWN])

    name, protocol = name_of(vector), vector["protocol"]
    why = "An implementation that reads a record differently waits for a lock that is free, or steals one that is held."
    return Scenario(name, why, frozenset({protocol}), frozenset({"decode"}), "letter", run)


class Reading:
    """Records as the adapter reads them: one process for each, or, if it can do that, one for all of them."""

    def __init__(self, adapter: Adapter, vectors: list[dict[str, Any]]) -> None:
        self._adapter = adapter
        self._vectors = vectors
        self._said: dict[str, str] | None = None
        self._ended = ""
        self._lock = threading.Lock()

    def of(self, name: str, data: bytes) -> dict[str, Any] | None:
        """The fields that the adapter reads in `data`; None for malformed. Failed if it gives no answer."""
        if "decode-lines" in self._adapter.abilities:
            return self._from_batch(name, data)
        running = self._adapter.start("decode")
        try:
            said, status = running.feed(data, self._adapter.limit)
            complaint = running.complaint().strip()
        finally:
            self._adapter.end(running)
        if status == 1 and not said.strip():
            return None
        if status != 0:
            happened = _ending(status)
            expected = "the fields and exit status 0, or exit status 1 and nothing on stdout"
            raise Failed(expected, f"{happened}; {complaint}".rstrip("; "), data[:_SHOWN])
        return _parsed(said.decode("utf-8", "replace"), data)

    def _from_batch(self, name: str, data: bytes) -> dict[str, Any] | None:
        with self._lock:
            if self._said is None:
                self._said = self._ask()
        if name not in self._said:
            raise Failed("a line for each record", f"the lines end before this one; {self._ended}", data[:_SHOWN])
        said = self._said[name]
        return None if said == MALFORMED else _parsed(said, data)

    def _ask(self) -> dict[str, str]:
        running = self._adapter.start("decode-lines")
        try:
            asked = b"".join(input_of(vector).hex().encode() + b"\n" for vector in self._vectors)
            said, status = running.feed(asked, self._adapter.limit)
            happened = _ending(status)
            self._ended = f"{happened}; {running.complaint().strip()}".rstrip("; ")
        finally:
            self._adapter.end(running)
        lines = said.decode("utf-8", "replace").split("\n")[:-1]
        return {vector["id"]: line for vector, line in zip(self._vectors, lines, strict=False)}


def _ending(status: int | None) -> str:
    return "it did not come to an end" if status is None else f"it {how_it_ended(status)}"


def _parsed(text: str, data: bytes) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise Failed("one JSON object with the fields", f"it said {text[:200]!r}", data[:_SHOWN])
    return said


def _same(said: dict[str, Any], want: dict[str, Any]) -> bool:
    """Whether the answer has all wanted fields. A moment may be written in any way that names it."""
    for key, value in want.items():
        if key not in said:
            return False
        if key == "started_at":
            try:
                if not isinstance(said[key], str) or moment(said[key]) != moment(value):
                    return False
            except ValueError:
                return False
        elif not _equal(said[key], value):
            return False
    return True


def _equal(said: object, want: object) -> bool:
    """Whether both are equal as JSON: `true` is not 1, although Python says so."""
    if isinstance(said, dict) and isinstance(want, dict):
        return said.keys() == want.keys() and all(_equal(said[key], want[key]) for key in want)
    if isinstance(said, list) and isinstance(want, list):
        return len(said) == len(want) and all(map(_equal, said, want))
    return isinstance(said, bool) == isinstance(want, bool) and said == want


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 300 else f"{text[:300]}…"


HELD, REFUSED, STALE = "held", "refused", "stale"


class Bench:
    """The directory and processes of a scenario. The adapter is given `path`, whose lock file is `lock`."""

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
        """The path that a user names to lock something of that name: for beads a directory, and for proper-lockfile a
        file, which this creates."""
        path = os.path.join(self.directory, name)
        if self.dialect.is_directory:
            with open(path, "xb"):
                pass
        if self.dialect.name == "beads":
            os.mkdir(path)
        return path

    def record(self, *, age: float = 0.0, pid: int | None = None, host: str | None = None) -> bytes:
        """A record in the reference's bytes; of this process, unless another one is named."""
        return self.dialect.write(self.claim(age=age, pid=pid, host=host))

    @staticmethod
    def claim(*, age: float = 0.0, pid: int | None = None, host: str | None = None) -> Claim:
        return Claim(os.getpid() if pid is None else pid, time.time() - age, host)

    def put(self, data: bytes, *, mode: int | None = None, age: float = 0.0, at: str | None = None) -> int:
        """Put a complete lock file of another process in place of whatever is there; its inode. `age`: its mtime's."""
        at = at or self.lock
        aside = self.prepare(data, self.dialect.mode if mode is None else mode)
        if age:
            os.utime(aside, (time.time() - age,) * 2)
        os.rename(aside, at)
        return os.lstat(at).st_ino

    def prepare(self, data: bytes, mode: int) -> str:
        """A new file, or a new directory, in the other directory."""
        if self.dialect.is_directory:
            directory = tempfile.mkdtemp(dir=self.side)
            os.chmod(directory, mode)
            return directory
        fd, aside = tempfile.mkstemp(dir=self.side)
        with open(fd, "wb") as file:
            file.write(data)
            os.fchmod(fd, mode)
        return aside

    def found(self, at: str | None = None) -> bytes | None:
        """The content of the lock file, or None if there is none; a FIFO is none, and a directory has no content."""
        if self.dialect.is_directory:
            return b"" if os.path.isdir(at or self.lock) else None
        try:
            with open(at or self.lock, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
                return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
        except OSError:
            return None

    def remove(self) -> None:
        """Remove the lock, as a holder does that knows no better."""
        (os.rmdir if self.dialect.is_directory else os.unlink)(self.lock)

    def dead_pid(self) -> int:
        """The pid of a process that ended a moment ago."""
        process = subprocess.Popen(["true"])
        process.wait()
        return process.pid

    def old_pid(self, age: float) -> int:
        """The pid of a process that is older than `age` seconds; Skipped if there is none."""
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

    def require(self, done: object, expected: str, happened: str) -> None:
        """Fail unless it is so."""
        if not done:
            raise Failed(expected, happened, self.found())

    def expect_end(self, running: Running) -> None:
        """Have the holder let go, and require that it ends."""
        running.let_go()
        status = running.ended(self.adapter.limit)
        self.require(status is not None, "the holder to end when its input does", "it did not end in time")

    def expect_held(self, running: Running, expected: str = "the lock to be acquired") -> None:
        answer = running.answer(self.adapter.limit)
        if answer.line != HELD or answer.status is not None:
            raise Failed(f"{expected}: a line `held`", str(answer), self.found())

    def expect_refused(self, expected: str, operation: str = "try", word: str = REFUSED) -> None:
        """Require that another process's lock at the path is not acquired, and that its file stays as it is."""
        before = self.found(), self.identity()
        answer = self.start(operation).answer(self.adapter.limit)
        if answer.line != word or answer.status != 1:
            raise Failed(f"{expected}: a line `{word}` and exit status 1", str(answer), self.found())
        if (self.found(), self.identity()) != before:
            raise Failed(f"{expected}, and its lock file to be left alone", "the lock file has changed", self.found())

    def expect_error(self, expected: str, path: str | None = None) -> Answer:
        """Require an exit status other than 0, soon, as no lock can be there."""
        answer = self.start("try", path).answer(self.adapter.prompt)
        if answer.line == HELD or answer.hung or answer.status is None or answer.status <= 0:
            raise Failed(f"{expected}: an exit status above 0 within 2 s", str(answer), self.found())
        return answer

    def expect_released(self, running: Running) -> None:
        """End its input, and require exit status 0 and no lock file."""
        running.let_go()
        status = running.ended(self.adapter.limit)
        if status != 0:
            happened = "it did not end in time" if status is None else f"it {how_it_ended(status)}"
            complaint = running.complaint().strip()
            raise Failed(
                "the lock to be released: exit status 0", f"{happened}; {complaint}".rstrip("; "), self.found()
            )
        there = os.path.lexists(self.lock)
        self.require(not there, "the lock to be released: no lock file any more", "it is still there")

    def expect_own_hold(self, running: Running) -> None:
        """Require that the holder's record is its own, and that it releases."""
        self.expect_own_record(running)
        self.expect_released(running)

    def expect_released_to(self, holder: Running, waiter: Running) -> None:
        """Have the holder let go, and require that it ends and the waiter gets in."""
        holder.let_go()
        self.expect_held(waiter, "the waiter to get in after the release")
        if holder.ended(self.adapter.limit) != 0:
            raise Failed("the release to succeed", "it did not: " + holder.complaint().strip(), self.found())

    def expect_silent(self, running: Running, expected: str) -> None:
        """Require that it waits."""
        line = running.line(self.adapter.silence)
        if line is not None or running.ended(0) is not None:
            raise Failed(expected, str(Answer(line, running.ended(0), complaint=running.complaint())), self.found())

    def expect_own_record(self, running: Running) -> Claim:
        """Require a lock file with a whole record that names the adapter's process, or an empty directory."""
        data = self.found()
        if data is None:
            raise Failed(f"a lock file at {os.path.basename(self.lock)}", "there is none")
        if self.dialect.is_directory:
            return self._expect_own_directory(running)
        try:
            claim = self.dialect.read(data)
        except ValueError as error:
            raise Failed(f"a whole record of the {self.dialect.name} protocol", f"it is none: {error}", data) from None
        if running.ended(0) is not None:
            raise Failed("the lock to be held until the input ends", str(running.answer(0, ends=True)), data)
        if "other-pid" not in self.adapter.abilities and not _belongs(claim.pid, running.pid):
            raise Failed("the pid of the process that holds the lock", f"it names {claim.pid}", data)
        return claim

    def _expect_own_directory(self, running: Running) -> Claim:
        """The claim of an empty directory: its time is that of the acquisition, or of a refresh."""
        if os.listdir(self.lock):
            raise Failed("an empty directory", f"there is {', '.join(os.listdir(self.lock))} in it")
        if running.ended(0) is not None:
            raise Failed("the lock to be held until the input ends", str(running.answer(0, ends=True)))
        return Claim(None, os.stat(self.lock).st_mtime)

    def identity(self) -> tuple[int, int] | None:
        try:
            found = os.lstat(self.lock)
        except OSError:
            return None
        return found.st_dev, found.st_ino


def _belongs(pid: int | None, leader: int) -> bool:
    """Whether that process is the adapter, or is in its session."""
    if pid is None or pid <= 0:
        return False
    try:
        return os.getsid(pid) == leader
    except OSError:
        return False
