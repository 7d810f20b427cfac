"""Fixtures for tests that play processes by hand, inside one process."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import instances
from faces import Tasks, Threads
from holdfast._platform import environment
from holdfast.engines.file import remove, takeover
from unit.loops import LOOPS
from unit.stepping import KINDS, Clock, Contend, Contender, Stepped, played


@pytest.fixture(autouse=True)
def _limits(leaves_nothing: None, within: Callable[[float], AbstractContextManager[None]]) -> Iterator[None]:
    with within(150.0):
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_directory_logs() -> Iterator[None]:
    """Keep directory logs out: how soon there is one depends on the time that listing takes, and the steps are to be
    the same each time."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            patch.setattr("holdfast._platform.linux._WORTH_A_LOG", math.inf)
        yield


@pytest.fixture
def environments() -> Iterator[Callable[..., Stepped]]:
    """Make environments, each as good as a process of its own; at the end, nothing may be open in any of them."""
    made: list[Stepped] = []

    def make(*without: str, kind: str = "", pid: int | None = None) -> Stepped:
        if kind not in KINDS:
            pytest.skip(f"needs the environment of another system: {kind}")
        real: Any = played(kind, without)
        if pid is not None:
            real._identity = real._identify(pid)
        made.append(Stepped(real))
        return made[-1]

    with instances.reused():
        yield make
    for env in made:
        env.end()
    for env in made:
        left = env.open_descriptors()
        env.dispose()
        assert not left, f"{len(left)} descriptors left open in an environment"


@pytest.fixture
def contend(environments: Callable[..., Stepped]) -> Callable[..., Contender]:
    """A contender with an environment of its own (or the one given), for a path and the options of a lock."""

    def make(path: object, env: Stepped | None = None, **options: object) -> Contender:
        return Contender(env or environments(), str(path), **options)

    return make


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def clocked(environments: Callable[..., Stepped], clock: Clock) -> Callable[..., Stepped]:
    """Make another process, which lives by the test's clock."""

    def make(*without: str, **options: Any) -> Stepped:
        env = environments(*without, **options)
        env.instead["monotonic"] = clock.read
        return env

    return make


@pytest.fixture
def queued(arrive: Contend) -> Contend:
    """A contender of the module's `arrive` that waits: it has a ticket, if it is the first of its process."""

    def make(env: Stepped | None = None, **options: object) -> Contender:
        contender = arrive(env, **options)
        assert contender.step() is not None
        return contender

    return make


@pytest.fixture
def past_the_gates(monkeypatch: pytest.MonkeyPatch) -> Callable[[Stepped, Callable[[], object]], None]:
    """Have something happen once, as soon as an environment has passed both gates of a takeover or a removal."""
    waiting: dict[int, Callable[[], object]] = {}
    for module, name in ((takeover, "_is_as_judged"), (remove, "_is_unchanged")):
        real = getattr(module, name)

        def look(env: Stepped, *args: object, real: Callable[..., bool] = real) -> bool:
            waiting.pop(id(env), lambda: None)()
            return real(env, *args)

        monkeypatch.setattr(module, name, look)
    return lambda env, action: waiting.update({id(env): action})


@pytest.fixture
def dead_pid() -> int:
    """The pid of a process that has just ended and been reaped."""
    ended = subprocess.Popen(["true"] if sys.platform != "win32" else ["cmd", "/c", "exit"])
    ended.wait()
    return ended.pid


@pytest.fixture
def process() -> Iterator[Callable[..., int]]:
    """Start a process that lives as long as the test; its pid."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> int:
        started.append(subprocess.Popen(words))
        pid = started[-1].pid
        while sys.platform != "win32" and not Path(f"/proc/{pid}/cmdline").read_bytes():
            time.sleep(0)  # exec has begun, but not ended
        return pid

    yield start
    for other in started:
        other.kill()
        other.wait()


@pytest.fixture
def live_pid(process: Callable[..., int]) -> int:
    """The pid of another process, which lives as long as the test."""
    return process(
        *(("sleep", "1000") if sys.platform != "win32" else (sys.executable, "-c", "import time; time.sleep(1000)"))
    )


@pytest.fixture(params=["sync", *LOOPS, "in threads"])
def face(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Run the test with both faces (faces.py): with each kind of loop, and with steps that run in threads."""
    if request.param == "in threads":
        monkeypatch.setattr(type(environment()), "may_block", lambda _self, _path: True)
    made = Threads() if request.param == "sync" else Tasks(LOOPS.get(request.param, LOOPS["asyncio"]))
    yield made
    made.close()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[threading.Event]:
    """Set by the first line that holdfast logs: a wait that is to be logged ends with it, and not by a clock."""
    event, tells = threading.Event(), logging.Filter()
    tells.filter = lambda _record: event.set() is None  # type: ignore[assignment, method-assign]
    with caplog.at_level(logging.INFO, "holdfast"), caplog.filtering(tells):
        yield event
