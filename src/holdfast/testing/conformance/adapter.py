"""The implementation under test, as a command: what it can do, and the processes of it that there are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from .process import Process, Running, Unusable
from .served import Served

DEFAULT = frozenset({"decode", "hold", "try"})
KNOWN = DEFAULT | {"decode-lines", "recover", "release", "serve", "skip", "other-pid", "reclaim"}
STOPPED = "the kit was stopped"


@dataclass
class Adapter:
    """The command, what it can do, and how long it may take."""

    command: Sequence[str]
    limit: float = 10.0
    """Seconds within which an adapter does whatever it is asked to."""
    abilities: frozenset[str] = DEFAULT
    startup: float = 0.0
    """Seconds that it takes to say what it can do: so long, about, it takes to start."""
    stopped: bool = False
    _processes: set[Process] = field(default_factory=set)
    _idle: list[Process] = field(default_factory=list)
    """Those that serve, and have nothing to do at the moment."""

    @property
    def prompt(self) -> float:
        """Seconds within which it refuses what can never be a lock file."""
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
        """The operation on a path: of a process that serves, if the adapter can, and else of one of its own."""
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
        except IndexError:  # not looked at before: others take from it at the same time
            return None

    def _is_stopped(self) -> bool:
        return self.stopped

    def end(self, running: Running) -> None:
        """Nothing of it is left after this, but a process that serves and is done with it."""
        if self.reuse(running):
            return
        process = running.server if isinstance(running, Served) else running
        assert isinstance(process, Process)
        process.end()
        self._processes.discard(process)

    def reuse(self, running: Running) -> bool:
        """Whether its process can be asked for something else from now on."""
        if not (isinstance(running, Served) and running.done()):
            return False
        self._idle.append(running.server)
        return True

    def close(self) -> None:
        """End those that serve."""
        while (server := self._next_idle()) is not None:
            self.end(server)

    def stop(self) -> None:
        """No run is begun any more, and those that go on are killed: whoever waits for one goes on at once.

        A signal handler may call it, so it takes no lock and waits for nothing.
        """
        self.stopped = True
        for process in list(self._processes):
            process.send_kill()

    def learn(self) -> None:
        """Ask for its abilities. One that does not know the question can do what each adapter can."""
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
