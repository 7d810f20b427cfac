"""An engine in the memory of this process: the requirements of `holdfast.engines`, and no more.

A "server" grants each lock to the first of those who ask for it, and may take it back (`Server.revoke`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import count
from typing import Any

from holdfast._core.attempt import Refusal
from holdfast._core.hold import HoldRef
from holdfast._core.options import Options
from holdfast._core.wait import Signal, Wait
from holdfast._drivers.agent import Job, agent
from holdfast._drivers.background import call_aside
from holdfast._platform.interface import Environment
from holdfast.engines import Engine
from holdfast.engines.file.request import FileRequest
from holdfast.engines.remote import Contender, RemoteHold, RemoteRequest
from holdfast.liveness import Liveness
from holdfast.model import Evidence, Holder, Record, Status

NOTHING = Evidence("none", "nobody has asked for it")


class Server:
    def __init__(self) -> None:
        self.queues: dict[str, list[Asking]] = {}
        self.signals: dict[Asking, Signal] = {}
        self.tokens = count(1)
        self.beats = 0
        self.closed = 0
        self.stuck = False
        """Whether the server leaves a release unanswered."""

    def free(self, name: str, attempt: Asking) -> bool:
        queue = self.queues.get(name, [])
        if attempt not in queue:
            return False
        queue.remove(attempt)
        for one in queue[:1]:
            self.signals[one].set()
        return True

    def revoke(self, name: str) -> None:
        attempt = self.queues[name][0]
        self.free(name, attempt)
        self.signals[attempt].set()

    def status(self, name: str) -> Status:
        queue = self.queues.get(name, [])
        if not queue:
            return Status(name, "toy", False, False, Liveness.UNKNOWN, NOTHING)
        alive = Evidence("server", "the server says so", proven=True)
        holder = Holder(queue[0].env.identity().pid, tag=queue[0].request.tag)
        record = Record("toy", {"session": id(queue[0])}, holder.pid)
        return Status(name, "toy", True, False, Liveness.ALIVE, alive, holder, record)


class ToyHeld(RemoteHold):
    __slots__ = ("attempt", "job", "server")

    def __init__(self, server: Server, attempt: Asking) -> None:
        who = attempt.env.identity()
        record = Record("toy", {}, who.pid, attempt.env.time(), attempt.request.tag, who.host)
        self.attempt = attempt
        self.server = server
        super().__init__(attempt.env, attempt.request, ("toy", id(self)), record, next(server.tokens))
        self.job: Job = agent(attempt.env).start(self._keeping(), f"while keeping {self.path}")

    def _keeping(self) -> Generator[Wait, None, None]:
        signal = self.server.signals[self.attempt]
        signal.is_set = False
        while True:
            self.server.beats += 1
            yield Wait((), self.env.monotonic() + 0.05, signal)
            if self.attempt not in self.server.queues.get(self.path, []):
                call_aside(lambda: self.lose("the server has revoked it"), "in on_lost")
                return

    def _give_up(self) -> Generator[Wait, None, bool]:
        while self.server.stuck:
            yield Wait((), self.env.monotonic() + 0.01)
        return self.server.free(self.path, self.attempt)

    def _close(self) -> None:
        self.server.closed += 1
        self.job.stop()
        self.server.free(self.path, self.attempt)


class Asking(Contender):
    def __init__(self, server: Server, env: Environment, requests: Any, timeout: Any, context: Any) -> None:
        super().__init__(env, requests, timeout, context)
        self.server, self.name = server, self.request.path

    def acquire(self) -> Generator[Wait, None, HoldRef | Refusal]:
        signal = self.server.signals[self] = Signal()
        queue = self.server.queues.setdefault(self.name, [])
        queue.append(self)
        held = None
        try:
            while queue[0] is not self:
                if self.is_over():
                    return self.refusal()
                self.waiting()
                yield Wait((), self.bounded(self.env.monotonic() + 10), signal)
            held = ToyHeld(self.server, self)
            held.attempt_events = self.attempt_events
            return held.ref(self.context)
        finally:
            if held is None:
                self.close()

    def wait_until_free(self) -> Generator[Wait, None, Refusal | None]:
        while self.server.status(self.name).locked:
            if self.is_over():
                return self.refusal()
            yield Wait((), self.bounded(self.env.monotonic() + 0.01))
        return None

    def close(self) -> None:
        self.server.free(self.name, self)

    def look_for_people(self) -> Generator[Wait, None, None]:
        yield from ()

    def last(self) -> tuple[Status, ...]:
        return (self.server.status(self.name),)


class Toy(Engine):
    name = "toy"

    def __init__(self) -> None:
        self.server = Server()

    def request(self, resource: Any, options: Options) -> FileRequest:
        return RemoteRequest(self, resource, resource.replace("secret", "***"), options, frozenset({"heartbeat"}))

    def slots(self, resource: Any, slots: int, options: Options) -> tuple[FileRequest, ...]:
        raise ValueError("toy has no semaphores")

    def acquire(
        self, env: Environment, requests: Sequence[FileRequest], timeout: float | None, context: tuple[object, ...]
    ) -> Generator[Wait, None, HoldRef | Refusal]:
        return Asking(self.server, env, requests, timeout, context).acquire()

    def wait_until_free(
        self, env: Environment, requests: Sequence[FileRequest], timeout: float | None, context: tuple[object, ...]
    ) -> Generator[Wait, None, Refusal | None]:
        return Asking(self.server, env, requests, timeout, context).wait_until_free()

    def look(self, env: Environment, requests: Sequence[FileRequest]) -> Generator[Wait, None, tuple[Status, ...]]:
        yield Wait((), env.monotonic())
        return tuple([self.server.status(request.path) for request in requests])

    def break_lock(self, env: Environment, request: FileRequest) -> Generator[Wait, None, Record | None]:
        yield Wait((), env.monotonic())
        record = self.server.status(request.path).record
        if record is not None:
            self.server.revoke(request.path)
        return record
