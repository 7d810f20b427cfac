"""The caller's functions in `holdfast.sidecar`: called at once for threads, awaited on the event loop for tasks.

SC1  For threads, an answer that would have to be awaited is a TypeError, and its coroutine is closed: as a condition it
     would count as true. The payload is asked for before the first attempt, so nothing has been changed by then.
SC2  For tasks, the functions run on the event loop of the acquisition, also where its steps run in threads. What they
     return is awaited in a task of its own, while the engine waits between two steps (acquire.py, A9).
SC3  An answer counts once, and only for the snapshot that it was asked about: the same bytes and time in the same file.
SC4  Functions that still run when the acquisition ends are cancelled, and have ended when it returns.
"""

from __future__ import annotations

import inspect

from ._core.environment import Signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator
    from typing import Any

    Question = tuple[str, Callable[..., Any], tuple[object, ...]]
    """The option, its function, and the arguments."""
    Questions = Generator[Question, Any, Any]
    """Asks one question after the other, is sent each answer, and returns what follows from them."""


class Called:
    """For threads: every function answers at once (SC1)."""

    def __init__(self, function: str, instead: str) -> None:
        self._function = function
        self._instead = instead
        self._payload: Any = None

    def check(self, name: str, function: Any) -> Any:
        """The function, or None; TypeError for anything that cannot be called, or not at once."""
        _check_callable(name, function)
        if is_asynchronous(function):
            raise self._refused(name)
        return function

    def judge(self, about: object, questions: Questions) -> object:  # noqa: ARG002
        return self._run(questions)

    def prepare(self, questions: Questions) -> Signal | None:
        self._payload = self._run(questions)
        return None

    def payload(self) -> Any:
        """What `prepare` has found."""
        return self._payload

    def tell(self, function: Callable[[Any], object], news: object) -> None:
        """Call it in the thread that has found the news."""
        function(news)

    def _run(self, questions: Questions) -> Any:
        answer = None
        while True:
            question, result = _next(questions, answer)
            if question is None:
                return result
            name, function, arguments = question
            answer = function(*arguments)
            if inspect.isawaitable(answer):
                if inspect.iscoroutine(answer):
                    answer.close()
                raise self._refused(name)

    def _refused(self, name: str) -> TypeError:
        return TypeError(
            f"{name} is asynchronous: {self._function} cannot await its answer. Use {self._instead}, which is "
            "awaited and takes coroutine functions, or pass a plain function"
        )


class Awaited:
    """For tasks: a function may be a coroutine function, or return anything that can be awaited (SC2)."""

    def __init__(self) -> None:
        import asyncio  # whoever awaits this has imported it

        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._judgement: _Answer | None = None
        self._composed: _Answer | None = None

    def check(self, name: str, function: Any) -> Any:
        """The function, or None; TypeError for anything that cannot be called."""
        _check_callable(name, function)
        return function

    def judge(self, about: object, questions: Questions) -> object:
        """What follows from the questions; or a Signal: ask again about the same once it is set (SC3)."""
        answer, self._judgement = self._judgement, None
        if answer is None or answer.about != about:
            if answer is not None and answer.task is not None:
                answer.task.get_loop().call_soon_threadsafe(answer.task.cancel)  # nobody needs that answer any more
            answer = self._ask(about, questions)
        if not answer.known.is_set:
            self._judgement = answer
            return answer.known
        return answer.result()

    def prepare(self, questions: Questions) -> Signal | None:
        self._composed = self._ask(None, questions)
        return self._composed.known

    def payload(self) -> Any:
        """What `prepare` has found."""
        if self._composed is None or not self._composed.known.is_set:
            raise RuntimeError("the process was forked while its payload was awaited; acquire again in the child")
        return self._composed.result()

    def tell(self, function: Callable[[Any], object], news: object) -> None:
        """Call it on the loop; in this thread, where the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(function, news)
        except RuntimeError:
            function(news)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """SC4."""
        import asyncio

        self.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _ask(self, about: object, questions: Questions) -> _Answer:
        import asyncio

        answer = _Answer(about)
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._begin(questions, answer)
        else:  # a step that runs in a thread
            self._loop.call_soon_threadsafe(self._begin, questions, answer)
        return answer

    def _begin(self, questions: Questions, answer: _Answer) -> None:
        """Ask until something has to be awaited: plain functions alone need no task."""
        result: Any = None
        try:
            while True:
                question, result = _next(questions, result)
                if question is None:
                    answer.give(result)
                    return
                result = question[1](*question[2])
                if inspect.isawaitable(result):
                    break
        except Exception as error:
            answer.fail(error)
            return
        answer.task = self._loop.create_task(_finish(questions, result, answer))
        self._tasks.add(answer.task)
        answer.task.add_done_callback(self._tasks.discard)
        if inspect.iscoroutine(result):
            close = result.close
            answer.task.add_done_callback(lambda _: close())  # cancelled before its first step, it was never begun


class _Answer:
    """What is or will be known."""

    __slots__ = ("_error", "_result", "about", "known", "task")

    def __init__(self, about: object) -> None:
        self.about = about
        self.known = Signal()
        self.task: asyncio.Task[None] | None = None
        self._result: Any = None
        self._error: BaseException | None = None

    def give(self, result: object) -> None:
        self._result = result
        self.known.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self.known.set()

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


async def _finish(questions: Questions, waited_for: Any, answer: _Answer) -> None:
    try:
        result = await waited_for
        while True:
            question, result = _next(questions, result)
            if question is None:
                break
            result = question[1](*question[2])
            if inspect.isawaitable(result):
                result = await result
    except BaseException as error:
        answer.fail(error)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise  # the loop ends with these
    else:
        answer.give(result)


def _next(questions: Questions, answer: object) -> tuple[Question | None, Any]:
    """The next question; or None, and what follows from the answers."""
    try:
        return questions.send(answer), None
    except StopIteration as done:
        return None, done.value


def _check_callable(name: str, function: object) -> None:
    if function is not None and not callable(function):
        raise TypeError(f"{name} is a function, not {function!r}")


def is_asynchronous(function: Any) -> bool:
    """Whether what it returns certainly has to be awaited."""
    called = type(function).__call__ if callable(function) else None  # of an object that is no function
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
