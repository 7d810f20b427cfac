"""`Lock` and `AsyncLock` (and the rest of both faces) as one: a test that is written once runs with both drivers.

A test says `face.Lock`, `face.Semaphore` and `face.acquire_all`, and uses what it gets as a thread does: `with`, and
methods that wait for their results. With `Tasks` all of that happens in one task of a loop in another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

import holdfast
from holdfast import aio


class Background:
    """A call that runs in a thread of its own, or in a task."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        return self._future.done()

    def result(self, within: float = 60.0) -> Any:
        return self._future.result(within)


class Threads:
    """The synchronous face."""

    Lock = holdfast.Lock
    Semaphore = holdfast.Semaphore
    Hold = holdfast.Hold
    prefix = ""
    """The prefix of the classes' names."""
    acquire_all = staticmethod(holdfast.acquire_all)

    def seen(self, value: Any) -> Any:
        """The object that a test uses in place of one of this face."""
        return value

    def begin(self, method: Any, *arguments: Any, **options: Any) -> Background:
        """Begin a call beside the test."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(method(*arguments, **options))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return Background(future)

    def close(self) -> None:
        pass


class Tasks:
    """The asyncio face: one task, on a loop in a thread; a forked child has a new one."""

    Hold = holdfast.AsyncHold
    prefix = "Async"

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop) -> None:
        self._new_loop = new_loop
        self._start()

    def _start(self) -> None:
        self._process, self.loop = os.getpid(), self._new_loop()
        self._asked: asyncio.Queue[tuple[Coroutine[Any, Any, Any], Future[Any]] | None] = asyncio.Queue()
        self._thread = threading.Thread(target=self.loop.run_until_complete, args=(self._work(),), daemon=True)
        self._thread.start()

    async def _work(self) -> None:
        while (asked := await self._asked.get()) is not None:
            steps, future = asked
            try:
                future.set_result(await steps)
            except BaseException as error:
                future.set_exception(error)
            del asked, steps, future  # they would keep handles that the test has dropped

    def run(self, steps: Coroutine[Any, Any, Any]) -> Any:
        """Await the steps in the task."""
        if self._process != os.getpid():
            self._start()
        future: Future[Any] = Future()
        self.loop.call_soon_threadsafe(self._asked.put_nowait, (steps, future))
        try:
            return self.seen(future.result(30))
        finally:
            del future

    def seen(self, value: Any) -> Any:
        ours = (aio.AsyncHolds, holdfast.AsyncHold, holdfast.AsyncLock, holdfast.AsyncSemaphore)
        return _Waited(self, value) if isinstance(value, ours) else value

    def Lock(self, *arguments: Any, **options: Any) -> Any:
        return self.seen(holdfast.AsyncLock(*arguments, **options))

    def Semaphore(self, *arguments: Any, **options: Any) -> Any:
        return self.seen(holdfast.AsyncSemaphore(*arguments, **options))

    def acquire_all(self, resources: Any, **options: Any) -> Any:
        if isinstance(resources, Sequence):
            resources = [_own(resource) for resource in resources]
        together = aio.acquire_all(_own(resources), **options)

        async def steps() -> Any:
            return await together

        return self.run(steps())

    def begin(self, method: Any, *arguments: Any, **options: Any) -> Background:
        async def steps() -> Any:
            return self.seen(await method.steps(*arguments, **options))

        return Background(asyncio.run_coroutine_threadsafe(steps(), self.loop))

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._asked.put_nowait, None)
        self._thread.join()
        self.loop.close()


@contextlib.asynccontextmanager
async def _block(thing: Any) -> AsyncIterator[Any]:
    """An asynchronous context manager, entered and left by one frame, as a block is."""
    async with thing as inner:
        yield inner


class _Waited:
    """An object of asyncio whose methods wait for their results, and whose `async with` block is a `with` block."""

    def __init__(self, face: Tasks, thing: Any) -> None:
        vars(self).update(_face=face, _thing=thing, _blocks=[])

    __class__ = property(lambda self: type(self._thing))  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        return _Method(self._face, value) if asyncio.iscoroutinefunction(value) else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._thing, name, value)

    def __enter__(self) -> Any:
        block = _block(self._thing)
        inner = self._face.run(block.__aenter__())
        self._blocks.append(block)
        return inner

    def __exit__(self, *error: Any) -> Any:
        return self._face.run(self._blocks.pop().__aexit__(*error))

    def __repr__(self) -> str:
        return repr(self._thing)

    def __bool__(self) -> bool:
        return bool(self._thing)

    def __len__(self) -> int:
        return len(self._thing)

    def __getitem__(self, at: Any) -> Any:
        return self._face.seen(self._thing[at])

    def __reduce_ex__(self, version: Any) -> Any:
        return self._thing.__reduce_ex__(version)


def _own(thing: Any) -> Any:
    return vars(thing)["_thing"] if type(thing) is _Waited else thing


class _Method:
    def __init__(self, face: Tasks, steps: Any) -> None:
        self._face = face
        self.steps = steps

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._face.run(self.steps(*arguments, **options))
