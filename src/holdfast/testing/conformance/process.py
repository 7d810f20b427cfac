"""What an adapter is asked, and how it answers: a process that is spoken to line by line and never outlives the kit."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

_LONGEST_LINE = 1 << 16
_LONGEST_OUTPUT = 1 << 24
_SHOWN = 2000
"""Bytes of what an adapter has said that a report shows."""


class Unusable(Exception):
    """The command cannot be run at all."""


@dataclass(frozen=True)
class Answer:
    """The first line of an adapter. `line` is None where it said none; `status` is None while it runs."""

    line: str | None
    status: int | None
    said: str = ""
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
        """The process that carries it out. It leads a session of its own."""

    @abstractmethod
    def line(self, within: float) -> str | None:
        """The next line, without its end; None when none came in time, or the output ended."""

    @abstractmethod
    def let_go(self) -> None:
        """It is to release and to end."""

    @abstractmethod
    def ended(self, within: float) -> int | None:
        """Its exit status, or None if it still runs after so many seconds."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL to its process and to all that this has started in its session."""

    @abstractmethod
    def complaint(self) -> str:
        """The end of what it wrote to stderr."""

    def answer(self, within: float, *, ends: bool = False) -> Answer:
        """The first line; with its exit status if it ends, which is awaited unless it said `held` (or if `ends`)."""
        deadline = time.monotonic() + within
        line = self.line(within)
        status = None
        if line != "held" or ends:
            self.let_go()  # what was not expected may still be held
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
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaint,
                start_new_session=True,
                bufsize=0,
                umask=0o022,
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
        """Whether its output has ended, and every line of it has been taken."""
        return self._eof and not self._buffer

    @property
    def in_mid_sentence(self) -> bool:
        """Whether it has said something, as far as that has been read, that no `line` has returned."""
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
        """Give it `data` and no more, and take all that it says.

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
        """SIGKILL to it and to all that it has started in its session, without waiting for its end."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def say(self, text: str) -> None:
        """Write a line to its standard input. One that has ended does not hear it, and its status says so."""
        try:
            os.write(self._stdin.fileno(), text.encode(errors="surrogateescape") + b"\n")
        except (BrokenPipeError, ValueError):
            pass

    @property
    def complained(self) -> int:
        """How many bytes it has written to stderr."""
        return os.fstat(self._complaint.fileno()).st_size

    def complaint(self, since: int = 0) -> str:
        """The end of what it wrote to stderr, after its first `since` bytes."""
        begin = max(since, self.complained - _SHOWN)
        return os.pread(self._complaint.fileno(), _SHOWN, begin).decode("utf-8", "backslashreplace")

    def end(self) -> None:
        """Nothing of it is left after this."""
        self.let_go()
        self.kill()
        self._stdout.close()
        self._complaint.close()
