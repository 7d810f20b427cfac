"""`Lock` and `AsyncLock` as one: a test that is written once runs with both drivers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

import holdfast


class Background:
    """A call that goes on in a thread of its own, or in a task."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        return self._future.done()

    def result(self, within: float = 20.0) -> Any:
        return self._future.result(within)


class Threads:
    """The synchronous face."""

    def lock(self, url: str, **options: Any) -> Any:
        return holdfast.Lock(url, **options)

    def begin(self, method: Any, *arguments: Any, **options: Any) -> Background:
        """Call it beside the test."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(method(*arguments, **options))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return Background(future)

    def twice(self, url: str, **options: Any) -> None:
        """Acquire it twice in one thread or task."""
        with holdfast.Lock(url, **options) as first, holdfast.Lock(url, **options) as second:
            assert first.token == second.token

    def close(self) -> None:
        pass


class Tasks:
    """The asyncio face, on a loop in a thread; its methods wait for their results."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, steps: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(steps, self.loop).result(30)

    def lock(self, url: str, **options: Any) -> _Waited:
        return _Waited(self, holdfast.AsyncLock(url, **options))

    def begin(self, method: Any, *arguments: Any, **options: Any) -> Background:
        return Background(
            asyncio.run_coroutine_threadsafe(self._wrapped(method.steps(*arguments, **options)), self.loop)
        )

    async def _wrapped(self, steps: Coroutine[Any, Any, Any]) -> Any:
        return self.wrapped(await steps)

    def wrapped(self, value: Any) -> Any:
        return _Waited(self, value) if isinstance(value, holdfast.AsyncHold) else value

    def twice(self, url: str, **options: Any) -> None:
        async def run() -> None:
            async with (
                holdfast.AsyncLock(url, **options) as first,
                holdfast.AsyncLock(url, **options) as second,
            ):
                assert first.token == second.token

        self.run(run())

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class _Waited:
    """A lock or a hold of asyncio whose methods wait for their results."""

    def __init__(self, face: Tasks, thing: Any) -> None:
        self._face = face
        self._thing = thing

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        return _Method(self._face, value) if asyncio.iscoroutinefunction(value) else value


class _Method:
    def __init__(self, face: Tasks, steps: Any) -> None:
        self._face = face
        self.steps = steps

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._face.wrapped(self._face.run(self.steps(*arguments, **options)))
