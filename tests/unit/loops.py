"""Event loops to run a test on, and tasks that are stopped at a chosen step."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import pytest

from conftest import open_descriptors
from holdfast import _platform


def asyncio_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop()


def uvloop_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _warm_up() -> None:
    """Have the first loop of libuv open its pipe for signals, which the process keeps."""
    if "uvloop" in LOOPS:
        uvloop_loop().close()


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio_loop}
if find_spec("uvloop") is not None:  # there is none for PyPy, free-threaded Python and Windows
    LOOPS["uvloop"] = uvloop_loop
if sys.platform == "win32":
    LOOPS["proactor"] = asyncio.ProactorEventLoop
_warm_up()
Run = Callable[[Coroutine[Any, Any, Any]], Any]


def run_on(kind: str) -> Run:
    """Run a coroutine on a new loop of that kind, which must end with no task left."""

    def run(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
            result = runner.run(main)
            left = asyncio.all_tasks(runner.get_loop())
            assert not left, "tasks are left"
            assert not readers(runner.get_loop()), "readers are left"
            return result

    return run


def readers(loop: asyncio.AbstractEventLoop) -> set[int]:
    """The descriptors that a loop waits for, without its own; uvloop does not tell."""
    selector = getattr(loop, "_selector", None)
    if not hasattr(selector, "get_map") or selector.get_map() is None:
        return set()
    own = loop._ssock.fileno()  # type: ignore[attr-defined]
    return {fd for fd in selector.get_map() if fd != own}


def traces(loop: asyncio.AbstractEventLoop | None = None) -> dict[str, Any]:
    """Everything that a wait leaves while it lasts: descriptors, kernel watches, readers, threads."""
    hub = getattr(_platform._current, "_hub", None)
    watches: list[str] = []
    if hub is not None:
        with open(f"/proc/self/fdinfo/{hub.fd}", encoding="ascii") as file:
            watches = [line for line in file if line.startswith("inotify")]
    return {
        "descriptors": set(open_descriptors()),
        "watches": len(watches),
        "leaders": dict(hub.leaders) if hub is not None else {},
        "readers": readers(loop) if loop is not None else set(),
        "steps": [thread for thread in steps() if thread.join(10) or thread.is_alive()],  # one may be ending
        "holds": set(_platform.environment().holds),
        "lines": dict(getattr(_platform.environment(), "lines", {})),
    }


def steps() -> list[threading.Thread]:
    """The threads that run a step just now."""
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-step"]


async def until(condition: Callable[[], object]) -> None:
    """Return when the condition is true; a test that waits forever is ended by its limit."""
    while not condition():
        await asyncio.sleep(0.001)


async def asleep(*tasks: asyncio.Task[Any]) -> None:
    """Return when all tasks wait, and not for a thread."""
    quiet = 0
    while quiet < 3:
        await asyncio.sleep(0)
        waiting = all(task._fut_waiter is not None for task in tasks)  # type: ignore[attr-defined]
        quiet = quiet + 1 if waiting and not steps() else 0


@pytest.fixture
def events_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep waits from ending only because they have lasted long: a lost event hangs, and the test with it."""
    import holdfast.engines.file.acquire  # noqa: F401  # else it is loaded by the first wait, with its limits

    for name, module in list(sys.modules.items()):
        if name.startswith(("holdfast._core.", "holdfast.engines.")):
            for limit in ("RECHECK", "_RECHECK_EACH", "_NOTICE_AFTER"):
                if hasattr(module, limit):
                    monkeypatch.setattr(module, limit, 1e6)


def touch(path: str | os.PathLike[str]) -> None:
    """Make an event on a lock file that means nothing."""
    if sys.platform == "win32":  # Wine tells of what is written, and not of a time that is set
        with suppress(OSError), open(path, "r+b") as file:
            first = file.read(1)
            file.seek(0)
            file.write(first)
    elif os.path.exists(path):
        os.utime(path)


async def observed(steps: Coroutine[Any, Any, Any], at: Callable[[int, asyncio.Future[Any]], object]) -> Any:
    """Await `steps`; each time that it suspends, `at` is told first: a number from 1 on, and what it waits for."""
    return await _observed(steps, at)


@types.coroutine
def _observed(
    steps: Coroutine[Any, Any, Any], at: Callable[[int, asyncio.Future[Any]], object]
) -> Generator[Any, Any, Any]:
    number = 0
    resume, value = steps.send, None
    while True:
        try:
            future = resume(value)  # type: ignore[arg-type]
        except StopIteration as done:
            return done.value
        number += 1
        at(number, future)
        try:
            value, resume = (yield future), steps.send
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:
            value, resume = error, steps.throw  # type: ignore[assignment]
