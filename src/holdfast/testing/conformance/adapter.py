"""The implementation under test, as a command: its abilities, and its processes.

A process is spoken to line by line, and never outlives the kit. A process that can `serve` (docs/conformance.md)
carries out operations one after the other. Questions are lines, `OPERATION PATH`, and so are answers. An empty line
stands for the end of stdin, and `exit STATUS` for the end of the process. An empty line after that means nothing: the
kit may have let go of an operation that had just ended.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from subprocess import PIPE

_LONGEST_LINE = 1 << 16
_LONGEST_OUTPUT = 1 << 24
_MOST_LINES = 1000
"""Most lines that are read in search of the end of an operation: an adapter may talk without end."""
_SHOWN = 2000
"""Most bytes of an adapter's output that a report shows."""


class Unusable(Exception):
    """The command cannot be run at all."""


@dataclass(frozen=True)
class Answer:
    """The first line of an adapter. `line` is None if it said none; `status` is None while it runs."""

    line: str | None
    status: int | None
    complaint: str = ""
    hung: bool = False

    def __str__(self) -> str:
        if self.hung:
            text = (
                "it did not answer in time" if self.line is None else f"it said {self.line!r}, but did not end in time"
            )
        else:
            text = "it said nothing" if self.line is None else f"it said {self.line!r}"
            if self.status is not None:
                text += f" and {how_it_ended(self.status)}"
        return f"{text}; on stderr: {self.complaint.strip()}" if self.complaint.strip() else text


def how_it_ended(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exited with {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


class Running(ABC):
    """An operation that the adapter has been asked for, from the question to its exit status."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """The process that carries out the operation. It leads a session of its own."""

    @abstractmethod
    def line(self, within: float) -> str | None:
        """The next line, without its end; None if none came in time, or the output ended."""

    @abstractmethod
    def let_go(self) -> None:
        """Tell it to release and to end."""

    @abstractmethod
    def ended(self, within: float) -> int | None:
        """Its exit status, or None if it still runs after that many seconds."""

    @abstractmethod
    def kill(self) -> None:
        """Send SIGKILL to its process and to all that this has started in its session."""

    @abstractmethod
    def complaint(self) -> str:
        """The end of what it wrote to stderr."""

    def answer(self, within: float, *, ends: bool = False) -> Answer:
        """The first line, and the exit status, which is awaited unless it said `held` (or if `ends`)."""
        deadline = time.monotonic() + within
        line = self.line(within)
        status = None
        if line != "held" or ends:
            self.let_go()  # after an unexpected line, the lock may still be held
            status = self.ended(deadline - time.monotonic())
        hung = status is None and (line != "held" or ends)
        return Answer(line, status, complaint=self.complaint(), hung=hung)


class Process(Running):
    """One run of the adapter. It leads a session of its own, so that all that it starts can be ended with it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._complaint = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `end`; a pipe could fill up
        self._buffer = b""
        self._eof = False
        try:
            self.process = subprocess.Popen(
                command, stdin=PIPE, stdout=PIPE, stderr=self._complaint, start_new_session=True, bufsize=0, umask=0o022
            )
        except (OSError, ValueError) as error:
            self._complaint.close()
            raise Unusable(f"{command[0]}: {error}") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def at_end(self) -> bool:
        """Whether its output has ended, and all lines have been taken."""
        return self._eof and not self._buffer

    @property
    def in_mid_sentence(self) -> bool:
        """Whether output has been read that no `line` has returned."""
        return bool(self._buffer)

    def line(self, within: float) -> str | None:
        deadline = time.monotonic() + within
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer and not self._eof and len(self._buffer) < _LONGEST_LINE:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                data = os.read(self._stdout.fileno(), 65536)
                self._buffer += data
                self._eof = not data
        if not self._buffer:
            return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line[:_SHOWN].decode("utf-8", "backslashreplace")

    def let_go(self) -> None:
        """End its standard input."""
        try:
            self._stdin.close()
        except OSError:
            pass

    def ended(self, within: float) -> int | None:
        try:
            return self.process.wait(max(0.0, within))
        except subprocess.TimeoutExpired:
            return None

    def feed(self, data: bytes, within: float) -> tuple[bytes, int | None]:
        """Give it `data` as its whole input; its output and its exit status.

        A status of None means that it did not end in time, or within 16 MiB.
        """
        deadline = time.monotonic() + within
        os.set_blocking(self._stdin.fileno(), False)
        said: list[bytes] = []
        size = 0
        rest = memoryview(data)
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(self._stdin, selectors.EVENT_WRITE)
            if not data:
                selector.unregister(self._stdin)
                self.let_go()
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    return b"".join(said), None
                for key, _ in ready:
                    if key.fileobj is self._stdout:
                        said.append(os.read(self._stdout.fileno(), 65536))
                        size += len(said[-1])
                        if size > _LONGEST_OUTPUT:
                            return b"".join(said), None
                        if not said[-1]:
                            selector.unregister(self._stdout)
                        continue
                    try:
                        rest = rest[os.write(self._stdin.fileno(), rest[:65536]) :]
                    except BrokenPipeError:
                        rest = rest[:0]  # it needs no more
                    if not rest:
                        selector.unregister(self._stdin)
                        self.let_go()
        return b"".join(said), self.ended(deadline - time.monotonic())

    def kill(self) -> None:
        self.send_kill()
        self.process.kill()
        self.process.wait()

    def send_kill(self) -> None:
        """Send SIGKILL to it and to all that it has started in its session, without waiting for its end."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def say(self, text: str) -> None:
        """Write a line to its standard input. A process that has ended does not hear it, and its status says so."""
        try:
            os.write(self._stdin.fileno(), text.encode(errors="surrogateescape") + b"\n")
        except (BrokenPipeError, ValueError):
            pass

    @property
    def complained(self) -> int:
        """Number of bytes that it has written to stderr."""
        return os.fstat(self._complaint.fileno()).st_size

    def complaint(self, since: int = 0) -> str:
        """The end of what it wrote to stderr, after its first `since` bytes."""
        begin = max(since, self.complained - _SHOWN)
        return os.pread(self._complaint.fileno(), _SHOWN, begin).decode("utf-8", "backslashreplace")

    def end(self) -> None:
        """End the process, and leave nothing of it."""
        self.let_go()
        self.kill()
        self._stdout.close()
        self._complaint.close()


class Served(Running):
    """One operation of a process that serves."""

    def __init__(self, server: Process, operation: str, path: str) -> None:
        self.server = server
        self._said: list[str] = []
        """Lines that came during a wait for the end."""
        self._status: int | None = None
        self._complained = server.complained
        server.say(f"{operation} {path}")

    @property
    def pid(self) -> int:
        return self.server.pid

    def line(self, within: float) -> str | None:
        if not self._said:
            self._listen(within)
        return self._said.pop(0) if self._said else None

    def let_go(self) -> None:
        if self._status is None:
            self.server.say("")

    def ended(self, within: float) -> int | None:
        deadline = time.monotonic() + within
        while self._status is None and len(self._said) < _MOST_LINES and self._listen(deadline - time.monotonic()):
            pass
        return self._status

    def kill(self) -> None:
        self.server.kill()
        self._status = self.server.ended(0)

    def complaint(self) -> str:
        return self.server.complaint(self._complained)

    def done(self) -> bool:
        """Whether it has ended as it should, so that its process can be asked for something else."""
        return self.ended(0) is not None and self.server.ended(0) is None and not self.server.in_mid_sentence

    def _listen(self, within: float) -> bool:
        """Take a line or the end of the operation; whether it was a line."""
        if self._status is not None:
            return False
        deadline = time.monotonic() + within
        said = self.server.line(max(0.0, within))
        if said is None:
            if self.server.at_end:
                self._status = self.server.ended(deadline - time.monotonic())
            return False
        end = re.fullmatch(r"exit ([0-9]{1,3})", said)
        if end:
            self._status = int(end[1])
        else:
            self._said.append(said)
        return True


DEFAULT = frozenset({"decode", "hold", "try"})
KNOWN = DEFAULT | {"decode-lines", "recover", "release", "serve", "skip", "other-pid", "reclaim"}
STOPPED = "the kit was stopped"


@dataclass
class Adapter:
    """The command, its abilities, and how long it may take."""

    command: Sequence[str]
    limit: float = 10.0
    """Seconds that an adapter has for whatever it is asked to do."""
    abilities: frozenset[str] = DEFAULT
    startup: float = 0.0
    """Seconds that it takes to name its abilities: about as long as it takes to start."""
    stopped: bool = False
    _processes: set[Process] = field(default_factory=set)
    _idle: list[Process] = field(default_factory=list)
    """Processes that serve, and have nothing to do at the moment."""

    @property
    def prompt(self) -> float:
        """Seconds that it has to refuse a path that can never be a lock file."""
        return 2.0 + 2 * self.startup

    @property
    def silence(self) -> float:
        """Seconds after which a process that says nothing is believed to wait."""
        return 0.25 + 2 * self.startup

    def start(self, operation: str, *arguments: str, prefix: Sequence[str] = ()) -> Process:
        """A process of its own for the operation, which `end` ends."""
        if self.stopped:
            raise Unusable(STOPPED)
        process = Process([*prefix, *self.command, operation, *arguments])
        self._processes.add(process)
        if self._is_stopped():
            process.send_kill()  # it was started while `stop` killed the others
        return process

    def ask(self, operation: str, path: str, prefix: Sequence[str] = ()) -> Running:
        """The operation on a path: by a process that serves, if the adapter can do that, else by one of its own."""
        if "serve" not in self.abilities or prefix or "\n" in path:
            return self.start(operation, path, prefix=prefix)
        return Served(self._server(), operation, path)

    def _server(self) -> Process:
        """A process that serves and has nothing to do."""
        while (server := self._next_idle()) is not None:
            if server.ended(0) is None:
                return server
            self.end(server)  # it did not live until the next question
        return self.start("serve")

    def _next_idle(self) -> Process | None:
        try:
            return self._idle.pop()
        except IndexError:  # no check before: other threads take from it at the same time
            return None

    def _is_stopped(self) -> bool:
        return self.stopped

    def end(self, running: Running) -> None:
        """End the operation, and its process unless that serves and can be reused."""
        if self.reuse(running):
            return
        process = running.server if isinstance(running, Served) else running
        assert isinstance(process, Process)
        process.end()
        self._processes.discard(process)

    def reuse(self, running: Running) -> bool:
        """Make its process available for another operation; whether that is possible."""
        if not (isinstance(running, Served) and running.done()):
            return False
        self._idle.append(running.server)
        return True

    def close(self) -> None:
        """End the idle processes that serve."""
        while (server := self._next_idle()) is not None:
            self.end(server)

    def stop(self) -> None:
        """Begin no more runs, and kill the others, so that a caller that waits for one goes on at once.

        A signal handler may call this, so it takes no lock and waits for nothing.
        """
        self.stopped = True
        for process in list(self._processes):
            process.send_kill()

    def learn(self) -> None:
        """Ask for its abilities. An adapter that does not know the question has those that every adapter has."""
        began = time.monotonic()
        process = self.start("abilities")
        try:
            said, status = process.feed(b"", self.limit)
        finally:
            self.end(process)
        self.startup = min(time.monotonic() - began, self.limit)
        words = frozenset(said.decode("utf-8", "replace").split())
        if status == 0 and words and words <= KNOWN:
            self.abilities = words
