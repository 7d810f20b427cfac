"""The request of a caller of `holdfast.sidecar`: the options, the limits of the wait, and the judgement of stale locks.

The caller's functions are called at once for threads, and awaited on the event loop for tasks:

SC1  For threads, an answer that would have to be awaited is a TypeError, and its coroutine is closed: as a condition it
     would count as true. The payload is requested before the first attempt, so nothing has been changed by then.
SC2  For tasks, the functions run on the event loop of the acquisition, also where its steps run in threads. Their
     result is awaited in a task of its own, while the engine waits between two steps (acquire.py, A6).
SC3  An answer counts once, and only for the snapshot that it was asked about: the same bytes and time in the same file.
SC4  Functions that still run when the acquisition ends are cancelled, and have ended when it returns. After that, none
     is called.
"""

from __future__ import annotations

import inspect
import math
import os
import random
import stat
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, cast

from .._core.attempt import Refusal
from .._core.messages import refused, sentence
from .._core.options import Options, as_number, check_timeout
from .._core.wait import Signal
from .._platform import environment
from ..engines.file.request import FileRequest
from ..errors import AcquireTimeout, HoldfastError, InvalidPath, LockStale, renamed
from ..model import Holder, Status, Value
from ..protocols import get

if TYPE_CHECKING:
    import asyncio

    Question = tuple[str, Callable[..., Any], tuple[object, ...]]

    """A question: the option, its function, and the arguments."""

    Questions = Generator[Question, Any, Any]

    """A generator that yields one question after the other, is sent each answer, and returns the conclusion."""

    Payload = Mapping[str, Any] | Callable[[], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]

    StaleRecovery = Literal["fail-closed", "remove-if-unchanged"]


class Called:
    """The caller's functions for threads: each answers at once (SC1)."""

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
        return self._payload

    def tell(self, function: Callable[[Any], object], news: object) -> None:
        """Call the function in the thread that has found the news."""
        function(news)

    def _run(self, questions: Questions) -> Any:
        name, result = _ask(questions)
        if name is not None:
            _close(result)
            raise self._refused(name)
        return result

    def _refused(self, name: str) -> TypeError:
        return TypeError(
            f"{name} is asynchronous: {self._function} cannot await its answer. Use {self._instead}, which is "
            "awaited and takes coroutine functions, or pass a plain function"
        )


class Awaited:
    """The caller's functions for tasks: coroutine functions, or functions that may return an awaitable (SC2)."""

    def __init__(self) -> None:
        import asyncio  # a caller that awaits this has imported it

        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_ended = False
        """Whether the acquisition has ended: a step that its server has kept may still ask."""
        self._judgement: _Answer | None = None
        self._composed: _Answer | None = None

    def check(self, name: str, function: Any) -> Any:
        """The function, or None; TypeError for anything that cannot be called."""
        _check_callable(name, function)
        return function

    def judge(self, about: object, questions: Questions) -> object:
        """The conclusion from the questions; or a Signal: ask again about the same once it is set (SC3)."""
        answer, self._judgement = self._judgement, None
        if answer is None or answer.about != about:
            if answer is not None and answer.task is not None:
                answer.task.get_loop().call_soon_threadsafe(answer.task.cancel)  # that answer is no longer needed
            answer = self._begun(about, questions)
        if not answer.known.is_set:
            self._judgement = answer
            return answer.known
        return answer.result()

    def prepare(self, questions: Questions) -> Signal | None:
        self._composed = self._begun(None, questions)
        return self._composed.known

    def payload(self) -> Any:
        """The payload that `prepare` has composed."""
        if self._composed is None or not self._composed.known.is_set:
            raise RuntimeError("the process was forked while its payload was awaited; acquire again in the child")
        return self._composed.result()

    def tell(self, function: Callable[[Any], object], news: object) -> None:
        """Call the function on the loop; if that is closed, in this thread."""
        try:
            self._loop.call_soon_threadsafe(function, news)
        except RuntimeError:
            function(news)

    def cancel(self) -> None:
        self._has_ended = True
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Cancel functions that still run, and wait for them (SC4)."""
        import asyncio

        self.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begun(self, about: object, questions: Questions) -> _Answer:
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
        """Ask the questions, in a task if an answer has to be awaited."""
        if self._has_ended:
            return  # SC4
        try:
            name, result = _ask(questions)
        except BaseException as error:
            answer.fail(error)
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise  # the loop ends with these
            return
        if name is None:
            answer.give(result)
            return
        answer.task = self._loop.create_task(_finish(questions, result, answer))
        self._tasks.add(answer.task)
        answer.task.add_done_callback(self._tasks.discard)
        if inspect.iscoroutine(result):
            close = result.close
            answer.task.add_done_callback(lambda _: close())  # cancelled before its first step, it never began


class _Answer:
    """An answer that is known, or will be."""

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
        name, result = _ask(questions, await waited_for)
        while name is not None:
            name, result = _ask(questions, await result)
    except BaseException as error:
        answer.fail(error)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise  # the loop ends with these
    else:
        answer.give(result)


def _ask(questions: Questions, answer: object = None) -> tuple[str | None, Any]:
    """Go on asking until an answer has to be awaited: the name of that option, and the awaitable.

    Without one: None, and the conclusion from the answers.
    """
    while True:
        try:
            name, function, arguments = questions.send(answer)
        except StopIteration as done:
            return None, done.value
        answer = function(*arguments)
        if inspect.isawaitable(answer):
            return name, answer


def _close(awaitable: object) -> None:
    """Close a coroutine that will not be awaited."""
    if inspect.iscoroutine(awaitable):
        awaitable.close()


def _check_callable(name: str, function: object) -> None:
    if function is not None and not callable(function):
        raise TypeError(f"{name} must be a function, not {function!r}")


def is_asynchronous(function: Any) -> bool:
    """Whether the function's result certainly has to be awaited."""
    called = type(function).__call__ if callable(function) else None  # of an object that is no function
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


PROTOCOL = "sidecar"
_RECOVERIES = ("fail-closed", "remove-if-unchanged")
_MOST_RETRIES = 2**53 - 1
_LONGEST_INTERVAL = 2147483.647
"""Seconds: the longest interval of a Node timer, as fs-safe uses."""


class FileLockOptions(TypedDict, total=False):
    """Every option of the face, spelled here and nowhere else. `holdfast.sidecar` documents them."""

    payload: Required[Payload]
    manager_key: str | None
    lock_path: str | os.PathLike[str] | None
    stale: float
    timeout: float | None
    retry: Retry | Mapping[str, Any] | None
    stale_recovery: StaleRecovery
    allow_reentrant: bool
    reentrant_owner: str | None
    parse_payload: Callable[[str], object] | None
    lock_root: str | os.PathLike[str] | None
    on_compromised: Callable[[CompromisedInfo], object] | None
    compromise_check_interval: float | None
    retain_on_exit: bool
    should_reclaim: Callable[[ReclaimParams], object] | None  # what it returns may be awaitable: see `payload`
    should_remove_stale_lock: Callable[[StaleSnapshot], object] | None
    metadata: Mapping[str, Any] | None


class Retry(Value):
    """The limit on tries: `retries` more after the first, with a pause before each. `None`: no limit.

    Pause number i, counted from 0, is `min_timeout * factor**i` seconds, at least `min_timeout` and at most
    `max_timeout`; with `randomize`, each is first multiplied by a random factor of 1 to 2. A try is a look at the lock.
    Nothing polls: a lock that becomes free within a pause is acquired at once, and the time of the callbacks is no part
    of the pauses.
    """

    retries: int | None = None
    factor: float = 1.0
    min_timeout: float = 0.05
    max_timeout: float = 1.0
    randomize: bool = False

    def pause(self, number: int, *, chance: Callable[[], float] = random.random) -> float:
        """Seconds before retry `number`, counted from 0. `chance` is a function that returns a number from 0 to 1."""
        try:
            base = self.min_timeout * float(self.factor) ** number if self.min_timeout else 0.0
        except OverflowError:
            base = self.max_timeout
        base = min(max(base, self.min_timeout), self.max_timeout)
        return min(base * (1 + chance()), self.max_timeout) if self.randomize else base

    def tries(self) -> tuple[int, Callable[[int], float]] | None:
        """The tries for the engine. Raises ValueError and TypeError for values that make no sense.

        Those are negative, NaN or infinite values, and a `min_timeout` above `max_timeout`.
        """
        retries = self.retries
        if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int)):
            raise TypeError(f"retries must be a whole number, or None for no limit, not {retries!r}")
        if retries is not None and not 0 <= retries <= _MOST_RETRIES:
            raise ValueError(f"retries must be from 0 (try once) to 2**53 - 1, or None for no limit, not {retries!r}")
        for name in ("factor", "min_timeout", "max_timeout"):
            _check_number(name, getattr(self, name), infinite=False)
        if self.min_timeout > self.max_timeout:
            raise ValueError(f"min_timeout ({self.min_timeout:g}) is above max_timeout ({self.max_timeout:g})")
        return None if retries is None else (retries, self.pause)


class ReclaimParams(Value):
    """The subject of `should_reclaim`. `stale` is the option, `now` is in seconds since the epoch.

    `payload` is the JSON object, or None if the content is none; with `parse_payload`, it is the result of that.
    `held_by_this_process`: whether this process holds the target under the same key, by another lock file
    (`lock_path`). A lock file that this process holds itself is never the subject.
    """

    lock_path: str
    normalized_target_path: str
    payload: Any
    stale: float
    now: float
    held_by_this_process: bool = False


class StaleSnapshot(Value):
    """The content that was judged; the lock is removed only if it is still the same. `raw` is the whole text."""

    lock_path: str
    normalized_target_path: str
    raw: str
    payload: Any


class CompromisedInfo(Value):
    """The lock that `on_compromised` reports."""

    lock_path: str
    normalized_target_path: str


class _Owner:
    """The owner of a hold. One may enter again that has the same key, and either the same `reentrant_owner` or
    `allow_reentrant`."""

    def __init__(self, key: str, owner: str | None, *, anyone: bool = False) -> None:
        self._key = key
        self._owner = owner
        self._anyone = anyone

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Owner) or other._key != self._key:
            return False
        return self._anyone or other._anyone or (self._owner is not None and self._owner == other._owner)

    def __hash__(self) -> int:
        return hash(self._key)


class _FileLockError(HoldfastError):
    """The attributes of fs-safe's errors besides `code`."""

    normalized_target_path: str | None

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        protocol: str | None = None,
        holder: Holder | None = None,
        normalized_target_path: str | None = None,
    ) -> None:
        super().__init__(message, path=path, protocol=protocol, holder=holder)
        self.normalized_target_path = normalized_target_path

    @property
    def lock_path(self) -> str | None:
        """The absolute path of the lock file: `path`."""
        return self.path


class FileLockTimeout(_FileLockError, AcquireTimeout):
    """The lock was held all the time; `holder` names the holder."""

    code = "file_lock_timeout"


class FileLockStale(_FileLockError, LockStale):
    """The lock is stale, and its removal was not requested or not approved."""

    code = "file_lock_stale"


class Wanted:
    """A requested acquisition, checked before anything is touched, and the judge of locks that are in its way."""

    def __init__(
        self,
        target: str | os.PathLike[str],
        options: FileLockOptions,
        functions: Called | Awaited,
        key: str | None,
        holds: Callable[[str, str], bool],
    ) -> None:
        _check_names(options, key)
        self.stale = _check_number("stale", options.get("stale", 30.0), infinite=True)
        self.timeout = check_timeout(options.get("timeout"))
        self._tries = _retry(options.get("retry")).tries()
        self._holds = holds
        self.metadata = dict(options.get("metadata") or {})
        self._recovery = options.get("stale_recovery", "fail-closed")
        if self._recovery not in _RECOVERIES:
            raise ValueError(f"stale_recovery must be {' or '.join(map(repr, _RECOVERIES))}, not {self._recovery!r}")
        self.functions = functions
        self._should_reclaim = functions.check("should_reclaim", options.get("should_reclaim"))
        self._should_remove = functions.check("should_remove_stale_lock", options.get("should_remove_stale_lock"))
        self._parse = _plain("parse_payload", options.get("parse_payload"))
        payload = options["payload"]
        self._payload: Any = functions.check("payload", payload) if callable(payload) else None
        self.engine: Options = {
            "protocol": PROTOCOL,
            "stale": cast("Callable[[Status], bool]", self.is_stale),
            # Others judge this hold by the same age, as a rule; so that is what it is kept fresh for.
            "stale_after": self.stale or None,
            "payload": functions.payload if callable(payload) else payload,  # the protocol says what it may be
        }
        interval = _check_interval(options.get("compromise_check_interval"))
        on_compromised = _plain("on_compromised", options.get("on_compromised"))
        if on_compromised is not None and interval:
            self.engine["on_lost"] = lambda _lost: functions.tell(
                on_compromised, CompromisedInfo(self.lock_path, self.normalized_target_path)
            )
        lock_path = options.get("lock_path")
        lock_file = None if lock_path is None else os.fsdecode(lock_path)
        self.request = FileRequest(_absolute(target), self.engine, lock_file=lock_file)
        self.lock_path, self.normalized_target_path = self.request.path, self.request.given
        lock_root = options.get("lock_root")
        self._root = None if lock_root is None else _Root(lock_root, self.lock_path)
        self._set_up(options, key, interval)

    def _set_up(self, options: FileLockOptions, key: str | None, interval: float) -> None:
        """Set up the parts of the request that the engine's options do not have."""
        request = self.request
        if self._payload is not None or self._root is not None:
            request.prepare = self._prepare
        request.tries, request.check_every = self._tries, interval or 1.0
        # A record that outlives its holder on purpose must not prove that holder's death (docs/sidecar.md).
        request.retained = request.unmarked = bool(options.get("retain_on_exit", False))
        self.key = key or options.get("manager_key") or f"holdfast.sidecar:{self.normalized_target_path}"
        owner, anyone = options.get("reentrant_owner"), bool(options.get("allow_reentrant", False))
        if owner is not None and not isinstance(owner, str):
            raise TypeError(f"reentrant_owner must be a str, not {owner!r}")
        if owner is not None and anyone:
            raise ValueError(
                "allow_reentrant admits every caller with the key, reentrant_owner one owner: pass only one of them"
            )
        self.owner = _Owner(self.key, owner)
        if owner is not None or anyone:
            request.owner = _Owner(self.key, owner, anyone=anyone)

    def check_root(self) -> None:
        """Raise InvalidPath if the lock file is not below `lock_root`, or if that is another directory by now."""
        if self._root is not None:
            self._root.check()

    def _prepare(self) -> Signal | None:
        """Have the payload composed for the next attempt (SC1)."""
        self.check_root()
        return None if self._payload is None else self.functions.prepare(self._composed())

    def _composed(self) -> Generator[Question, Any, Any]:
        return (yield "payload", self._payload, ())

    def is_stale(self, status: Status) -> bool | Signal:
        """The answer to the engine's question whether this lock may be taken over. FileLockStale if it is stale, but
        may not.

        It is not asked while the guard is held. So the lock that is judged here is foreign, or a dead holder's.
        """
        if any(held.path == status.path for held in list(environment().holds.values())):
            return False  # our own, where there are no guards
        about = (status.data, status.modified, self._identity())
        return cast("bool | Signal", self.functions.judge(about, self._judgement(status)))

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = environment().stat(self.lock_path)
        except OSError:
            return None
        return (found.st_dev, found.st_ino)

    def _judgement(self, status: Status) -> Generator[Question, Any, bool]:
        now, record, raw = environment().time(), status.record, status.data.decode("utf-8", "replace")
        payload = None if record is None else record.fields.get("payload")
        young = status.modified is None or now - status.modified <= self.stale
        if self._parse is not None and (raw or not young):
            payload = _settled("parse_payload", self._parse(raw))
        if payload is None and young:
            return False  # it may be one that is being created: empty for a moment
        if self._should_reclaim is not None:
            held = self._holds(self.key, self.normalized_target_path)
            params = ReclaimParams(self.lock_path, self.normalized_target_path, payload, self.stale, now, held)
            stale, why = (yield "should_reclaim", self._should_reclaim, (params,)), "should_reclaim calls it stale"
        else:
            stale = self._is_old(status, payload, now)
            why = f"it is older than {self.stale:g} s"
        if not stale:
            return False
        if self._recovery == "fail-closed":
            raise self._closed(status, why, "Stale locks are not removed here (stale_recovery='fail-closed')")
        if self._should_remove is None:
            raise self._closed(status, why, "There is no should_remove_stale_lock that approves of its removal")
        snapshot = StaleSnapshot(self.lock_path, self.normalized_target_path, raw, payload)
        if not (yield "should_remove_stale_lock", self._should_remove, (snapshot,)):
            raise self._closed(status, why, "should_remove_stale_lock does not approve of its removal")
        return True

    def _is_old(self, status: Status, payload: object, now: float) -> bool:
        """Whether it is old: by `createdAt`, else by the file."""
        record = status.record
        if self._parse is None:
            return record is not None and get(PROTOCOL).is_stale(record, status.liveness, now, self.stale)
        from ..protocols.dates import iso8601  # rarely needed

        text = payload.get("createdAt") if isinstance(payload, dict) else None
        created = iso8601(text) if isinstance(text, str) else None
        created = status.modified if created is None else created
        return created is not None and now - created > self.stale

    def _closed(self, status: Status, why: str, what: str) -> FileLockStale:
        return FileLockStale(
            f"{self.lock_path} is stale, as {why}: {sentence(status).removesuffix('; ')}. {what}. Make sure that its "
            "holder is gone, and remove the file; or pass stale_recovery='remove-if-unchanged' and a "
            "should_remove_stale_lock that makes sure of it",
            path=self.lock_path,
            protocol=PROTOCOL,
            holder=status.holder,
            normalized_target_path=self.normalized_target_path,
        )

    def refused(self, refusal: Refusal, _timeout: float | None = None) -> AcquireTimeout:
        """The error for a lock that could not be acquired in time."""
        waited = self.timeout if self._tries is None else refusal.waited if self._tries[0] else 0
        return self.timed_out(refused(refusal, waited))

    def timed_out(self, error: AcquireTimeout) -> AcquireTimeout:
        """The error in the words of fs-safe; it may also say that a file server does not answer. That of a callback,
        about another lock, stays as it is."""
        if error.path != self.lock_path:
            return error
        timeout = renamed(error, FileLockTimeout)
        timeout.normalized_target_path = self.normalized_target_path
        return timeout


class _Root:
    """The directory that a lock file may not leave, wherever links lead."""

    def __init__(self, root: str | os.PathLike[str], lock_path: str) -> None:
        self._path = os.path.realpath(os.fsdecode(root))
        self._lock_path = lock_path
        self._identity = self._found()
        self.check()

    def check(self) -> None:
        """Raise InvalidPath unless it is unchanged, and has the lock file below it."""
        if self._found() != self._identity:
            raise self._refused("has been replaced")
        directory = os.path.realpath(os.path.dirname(self._lock_path))
        if os.path.commonpath((directory, self._path)) != self._path:
            raise self._refused(f"does not contain {self._lock_path}")

    def _found(self) -> tuple[int, int]:
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise self._refused(f"cannot be used: {error.strerror}") from error
        if not stat.S_ISDIR(found.st_mode):
            raise self._refused("is not a directory")
        return (found.st_dev, found.st_ino)

    def _refused(self, why: str) -> InvalidPath:
        return InvalidPath(f"lock_root {self._path} {why}", path=self._lock_path, protocol=PROTOCOL)


def _absolute(target: str | os.PathLike[str]) -> str:
    """The target as fs-safe spells it: `..` is removed with the part before it, and so is a slash at the end. An empty
    one is refused."""
    text = os.fsdecode(target)
    return os.path.abspath(text) if text else text


def _check_names(options: FileLockOptions, key: str | None) -> None:
    unknown = options.keys() - FileLockOptions.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"unknown option {min(unknown)!r}; there are: {', '.join(sorted(FileLockOptions.__annotations__))}"
        )
    if options.get("payload") is None:
        raise TypeError("payload is missing: the JSON object that the lock file holds, or a function that returns it")
    given = options.get("manager_key")
    if given is not None:
        check_key(given)
    if key is not None and given not in (None, key):
        raise TypeError(f"manager_key is {key!r} for all that this manager acquires; leave it out")


def check_key(key: str) -> str:
    if not isinstance(key, str) or not key:
        raise TypeError(f"a manager's key must be a non-empty str, not {key!r}")
    return key


def _check_number(name: str, value: float, *, infinite: bool) -> float:
    number = as_number(name, value, "a number")
    if not number >= 0 or (number == math.inf and not infinite):  # nor is NaN
        raise ValueError(f"{name} must be a number, 0 or more, not {value!r}")
    return number


def _check_interval(interval: float | None) -> float:
    """Seconds between looks; 0: never."""
    if interval is None:
        return 1.0
    seconds = _check_number("compromise_check_interval", interval, infinite=False)
    if seconds and not 0.001 <= seconds <= _LONGEST_INTERVAL:
        raise ValueError(f"compromise_check_interval must be 0 (never), or from 0.001 to {_LONGEST_INTERVAL} s")
    return seconds


def _plain(name: str, function: Any) -> Any:
    """A function that answers at once, or None; TypeError for anything else."""
    _check_callable(name, function)
    if is_asynchronous(function):
        raise _asynchronous(name)
    return function


def _settled(name: str, result: Any) -> Any:
    if inspect.isawaitable(result):
        _close(result)
        raise _asynchronous(name)
    return result


def _asynchronous(name: str) -> TypeError:
    return TypeError(f"{name} must be a plain function, as in fs-safe: what it returns is not awaited")


def _retry(retry: Retry | Mapping[str, Any] | None) -> Retry:
    if retry is None or isinstance(retry, Retry):
        return retry or Retry()
    try:
        return Retry(**retry)
    except TypeError:
        names = ", ".join(Retry.__annotations__)
        raise TypeError(f"retry must be a Retry or a mapping with some of {names}, not {retry!r}") from None
