"""The implementation under test, as a command: processes that are spoken to line by line and never outlive the kit."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

DEFAULT = frozenset({"decode", "hold", "try"})
KNOWN = DEFAULT | {"decode-lines", "recover", "release", "skip", "other-pid"}
_LONGEST_LINE = 1 << 16
_SHOWN = 2000
"""Bytes of what an adapter has said that a report shows."""


STOPPED = "the kit was stopped"


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


class Running:
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

    def line(self, within: float) -> str | None:
        """The next line, without its end; None when none came in time, or the output ended."""
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

    def let_go(self) -> None:
        """End its standard input: it is to release and exit."""
        try:
            self._stdin.close()
        except OSError:
            pass

    def ended(self, within: float) -> int | None:
        """Its exit status, or None if it still runs after so many seconds."""
        try:
            return self.process.wait(max(0.0, within))
        except subprocess.TimeoutExpired:
            return None

    def feed(self, data: bytes, within: float) -> tuple[bytes, int | None]:
        """Give it `data` and no more, and take all that it says; a status of None if it did not end in time."""
        deadline = time.monotonic() + within
        os.set_blocking(self._stdin.fileno(), False)
        said: list[bytes] = []
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
        """SIGKILL to it and to all that it has started in its session."""
        self.send_kill()
        self.process.kill()
        self.process.wait()

    def send_kill(self) -> None:
        """The same without waiting for its end."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def complaint(self) -> str:
        """The end of what it wrote to stderr."""
        size = os.fstat(self._complaint.fileno()).st_size
        return os.pread(self._complaint.fileno(), _SHOWN, max(0, size - _SHOWN)).decode("utf-8", "backslashreplace")

    def end(self) -> None:
        """Nothing of it is left after this."""
        self.let_go()
        self.kill()
        self._stdout.close()
        self._complaint.close()


@dataclass
class Adapter:
    """The command, what it can do, and how long it may take."""

    command: Sequence[str]
    limit: float = 10.0
    """Seconds within which an adapter does whatever it is asked to."""
    abilities: frozenset[str] = DEFAULT
    startup: float = 0.0
    """Seconds that it takes to say what it can do: so long, about, it takes to start."""
    _running: set[Running] = field(default_factory=set)
    stopped: bool = False

    @property
    def prompt(self) -> float:
        """Seconds within which it refuses what can never be a lock file."""
        return 2.0 + 2 * self.startup

    @property
    def silence(self) -> float:
        """Seconds after which a process that says nothing is believed to wait."""
        return 0.25 + 2 * self.startup

    def start(self, operation: str, *arguments: str, prefix: Sequence[str] = ()) -> Running:
        if self.stopped:
            raise Unusable(STOPPED)
        running = Running([*prefix, *self.command, operation, *arguments])
        self._running.add(running)
        if self._is_stopped():
            running.send_kill()  # it was started while `stop` killed the others
        return running

    def _is_stopped(self) -> bool:
        return self.stopped

    def end(self, running: Running) -> None:
        """Nothing of it is left after this."""
        running.end()
        self._running.discard(running)

    def stop(self) -> None:
        """No run is begun any more, and those that go on are killed: whoever waits for one goes on at once.

        A signal handler may call it, so it takes no lock and waits for nothing.
        """
        self.stopped = True
        for running in list(self._running):
            running.send_kill()

    def learn(self) -> None:
        """Ask for its abilities. One that does not know the question can do what each adapter can."""
        began = time.monotonic()
        running = self.start("abilities")
        try:
            said, status = running.feed(b"", self.limit)
        finally:
            self.end(running)
        self.startup = min(time.monotonic() - began, self.limit)
        words = frozenset(said.decode("utf-8", "replace").split())
        if status == 0 and words and words <= KNOWN:
            self.abilities = words
