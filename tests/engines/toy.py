"""An engine in the memory of this process: what `holdfast.engines` asks of one, and no more.

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
from holdfast.engines.remote import Attempt, RemoteHold, RemoteRequest
from holdfast.liveness import Liveness
from holdfast.model import Evidence, Holder, Record, Status

NOTHING = Evidence("none", "nobody has asked for it")


class Server:
    def __init__(self) -> None:
        self.queues: dict[str, list[Attempt]] = {}
        self.signals: dict[Attempt, Signal] = {}
        self.tokens = count(1)
        self.beats = 0
        self.closed = 0
        self.stuck = False
        """Whether it does not answer a release."""

    def free(self, name: str, attempt: Attempt) -> bool:
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


class ToyHeld(RemoteHold):
    __slots__ = ("attempt", "job", "server")

    def __init__(self, server: Server, attempt: Attempt) -> None:
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
        attempt, server, name = Attempt(env, requests, timeout, context), self.server, requests[0].path
        signal = server.signals[attempt] = Signal()
        queue = server.queues.setdefault(name, [])
        queue.append(attempt)
        held = None
        try:
            while queue[0] is not attempt:
                if attempt.is_over():
                    return attempt.refusal(lambda: (self.status(name),))
                attempt.waiting(lambda: (self.status(name),), lambda: self.status(name).holder)
                yield Wait((), attempt.bounded(env.monotonic() + 10), signal)
            held = ToyHeld(server, attempt)
            held.attempt_events = attempt.attempt_events
            return held.ref(context)
        finally:
            if held is None:
                server.free(name, attempt)

    def wait_until_free(
        self, env: Environment, requests: Sequence[FileRequest], timeout: float | None, context: tuple[object, ...]
    ) -> Generator[Wait, None, Refusal | None]:
        attempt = Attempt(env, requests, timeout, context)
        while self.status(requests[0].path).locked:
            if attempt.is_over():
                return attempt.refusal(lambda: (self.status(requests[0].path),))
            yield Wait((), attempt.bounded(env.monotonic() + 0.01))
        return None

    def status(self, name: str) -> Status:
        queue = self.server.queues.get(name, [])
        if not queue:
            return Status(name, "toy", False, False, Liveness.UNKNOWN, NOTHING)
        alive = Evidence("server", "the server says so", proven=True)
        holder = Holder(queue[0].env.identity().pid, tag=queue[0].request.tag)
        record = Record("toy", {"session": id(queue[0])}, holder.pid)
        return Status(name, "toy", True, False, Liveness.ALIVE, alive, holder, record)

    def look(self, env: Environment, requests: Sequence[FileRequest]) -> Generator[Wait, None, tuple[Status, ...]]:
        yield Wait((), env.monotonic())
        return tuple([self.status(request.path) for request in requests])

    def break_lock(self, env: Environment, request: FileRequest) -> Generator[Wait, None, Record | None]:
        yield Wait((), env.monotonic())
        record = self.status(request.path).record
        if record is not None:
            self.server.revoke(request.path)
        return record
