"""What a caller of `holdfast.sidecar` asks for: the options, how long they let it wait, and what counts as stale."""

from __future__ import annotations

import math
import os
import random
from typing import TYPE_CHECKING, TypedDict, cast

from ._core.report import refused, sentence
from ._core.request import Options, Request, check_timeout
from ._os import environment
from .errors import AcquireTimeout, HoldfastError, LockStale, renamed
from .model import Status, Value
from .protocols import get

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping
    from typing import Any, Literal, Required

    from ._core.environment import Signal
    from ._core.refusal import Refusal
    from .model import Holder
    from .sidecar_callbacks import Awaited, Called, Question

    Payload = Mapping[str, Any] | Callable[[], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
    StaleRecovery = Literal["fail-closed", "remove-if-unchanged"]

PROTOCOL = "sidecar"
_RECOVERIES = ("fail-closed", "remove-if-unchanged")
_MOST_RETRIES = 2**53 - 1


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
    should_reclaim: Callable[[ReclaimParams], object] | None  # what it returns may be awaitable: see `payload`
    should_remove_stale_lock: Callable[[StaleSnapshot], object] | None
    metadata: Mapping[str, Any] | None


class Retry(Value):
    """For how long to wait, in fs-safe's terms: `retries` more tries after the first, with a pause before each.

    Pause number i, counted from 0, is `min_timeout * factor**i` seconds, at least `min_timeout` and at most
    `max_timeout`; with `randomize`, all are longer by one chance of 1 to 2 first. The sum is what counts: nobody polls,
    so a lock that becomes free within that time is had at once. `retries=0` tries once. `None` waits for ever.
    """

    retries: int | None = None
    factor: float = 1.0
    min_timeout: float = 0.05
    max_timeout: float = 1.0
    randomize: bool = False

    def budget(self, timeout: float | None = None, *, chance: Callable[[], float] = random.random) -> float | None:
        """Seconds until all tries have failed, and no more than `timeout`; None is for ever.

        `chance` is a function that returns a number from 0 to 1. Raises ValueError and TypeError for what makes no
        sense: what is negative, NaN or infinite, and a `min_timeout` above `max_timeout`.
        """
        limit = check_timeout(timeout)
        self._check()
        if self.retries is None:
            return limit
        pause = self.min_timeout * (1 + chance() if self.randomize else 1)
        pause, left, total = min(pause, self.max_timeout), self.retries, 0.0
        while left and self.factor > 1 and 0 < pause < self.max_timeout:
            total += pause
            pause = min(pause * self.factor, self.max_timeout)
            left -= 1
        total += left * pause
        return total if limit is None else min(total, limit)

    def _check(self) -> None:
        retries = self.retries
        if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int)):
            raise TypeError(f"retries is a whole number, or None for no limit, not {retries!r}")
        if retries is not None and not 0 <= retries <= _MOST_RETRIES:
            raise ValueError(f"retries is from 0 (try once) to 2**53 - 1, or None for no limit, not {retries!r}")
        for name in ("factor", "min_timeout", "max_timeout"):
            _check_number(name, getattr(self, name), infinite=False)
        if self.min_timeout > self.max_timeout:
            raise ValueError(f"min_timeout ({self.min_timeout:g}) is above max_timeout ({self.max_timeout:g})")


class ReclaimParams(Value):
    """What `should_reclaim` is asked about. `stale` is the option, `now` is in seconds since the epoch.

    `payload` is None where the content is no JSON object. `held_by_this_process` is False always: what this process
    holds is never called stale, so nobody is asked.
    """

    lock_path: str
    normalized_target_path: str
    payload: dict[str, Any] | None
    stale: float
    now: float
    held_by_this_process: bool = False


class StaleSnapshot(Value):
    """The very content that was judged; the lock is removed only if it is still the same. `raw` is the whole text."""

    lock_path: str
    normalized_target_path: str
    raw: str
    payload: dict[str, Any] | None


class _FileLockError(HoldfastError):
    """What both errors of fs-safe carry besides `code`."""

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
        return self.path

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"normalized_target_path": self.normalized_target_path})


class FileLockTimeout(_FileLockError, AcquireTimeout):
    """The lock was held all the time; `holder` says by whom."""

    code = "file_lock_timeout"


class FileLockStale(_FileLockError, LockStale):
    """The lock is stale, and its removal was not asked for or not approved."""

    code = "file_lock_stale"


class Wanted:
    """One acquisition as it is asked for, checked before anything is touched; and the judge of what is in its way."""

    def __init__(
        self,
        target: str | os.PathLike[str],
        options: FileLockOptions,
        functions: Called | Awaited,
        key: str | None = None,
    ) -> None:
        _check_names(options, key)
        self.stale = _check_number("stale", options.get("stale", 30.0), infinite=True)
        self.timeout = _retry(options.get("retry")).budget(options.get("timeout"))
        self.metadata = dict(options.get("metadata") or {})
        self._recovery = options.get("stale_recovery", "fail-closed")
        if self._recovery not in _RECOVERIES:
            raise ValueError(f"stale_recovery is {' or '.join(map(repr, _RECOVERIES))}, not {self._recovery!r}")
        self.functions = functions
        self._should_reclaim = functions.check("should_reclaim", options.get("should_reclaim"))
        self._should_remove = functions.check("should_remove_stale_lock", options.get("should_remove_stale_lock"))
        payload = options["payload"]
        self._payload: Any = functions.check("payload", payload) if callable(payload) else None
        self.engine: Options = {
            "protocol": PROTOCOL,
            "stale": cast("Callable[[Status], bool]", self.is_stale),
            # Others judge this hold by the same age, as a rule; so that is what it is kept fresh for.
            "stale_after": self.stale or None,
            "payload": functions.payload if callable(payload) else payload,  # the protocol says what it may be
        }
        lock_path = options.get("lock_path")
        lock_file = None if lock_path is None else os.fsdecode(lock_path)
        self.request = Request(_absolute(target), self.engine, lock_file=lock_file)
        if self._payload is not None:
            self.request.prepare = self._prepare
        self.lock_path, self.normalized_target_path = self.request.path, self.request.given
        self.key = key or options.get("manager_key") or f"holdfast.sidecar:{self.normalized_target_path}"
        self.owner = ("holdfast.sidecar", self.key)
        if options.get("allow_reentrant", False):
            self.request.owner = self.owner

    def _prepare(self) -> Signal | None:
        """Have the payload composed for the next attempt (sidecar_callbacks.py, SC1)."""
        return self.functions.prepare(self._composed())

    def _composed(self) -> Generator[Question, Any, Any]:
        return (yield "payload", self._payload, ())

    def is_stale(self, status: Status) -> bool | Signal:
        """The engine's question: whether this lock may be taken over. FileLockStale if it is stale, but may not.

        It is not asked while the guard is held. So what is judged here is a foreign lock, or a dead holder's.
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
        env, record = environment(), status.record
        payload = None if record is None else record.fields.get("payload")
        now = env.time()
        if payload is None and (status.modified is None or now - status.modified <= self.stale):
            return False  # it may be one that is being created: empty for a moment
        if self._should_reclaim is not None:
            params = ReclaimParams(self.lock_path, self.normalized_target_path, payload, self.stale, now)
            stale, why = (yield "should_reclaim", self._should_reclaim, (params,)), "should_reclaim calls it stale"
        else:
            stale = record is not None and get(PROTOCOL).is_stale(record, status.liveness, now, self.stale)
            why = f"it is older than {self.stale:g} s"
        if not stale:
            return False
        if self._recovery == "fail-closed":
            raise self._closed(status, why, "Stale locks are not removed here (stale_recovery='fail-closed')")
        if self._should_remove is None:
            raise self._closed(status, why, "There is no should_remove_stale_lock that approves of its removal")
        raw = status.data.decode("utf-8", "replace")
        snapshot = StaleSnapshot(self.lock_path, self.normalized_target_path, raw, payload)
        if not (yield "should_remove_stale_lock", self._should_remove, (snapshot,)):
            raise self._closed(status, why, "should_remove_stale_lock does not approve of its removal")
        return True

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

    def refused(self, refusal: Refusal) -> FileLockTimeout:
        """The error for a lock that could not be had in time."""
        error = renamed(refused(refusal, self.timeout), FileLockTimeout)
        error.normalized_target_path = self.normalized_target_path
        return error


def _absolute(target: str | os.PathLike[str]) -> str:
    """As fs-safe spells it: `..` goes with what is before it, and a slash at the end goes. An empty one is refused."""
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
        raise TypeError(f"a manager's key is a str that is not empty, not {key!r}")
    return key


def _check_number(name: str, value: float, *, infinite: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number, not {value!r}")
    try:
        number = float(value)
    except OverflowError:  # an int that is longer than any float
        number = math.inf if value > 0 else -math.inf
    if math.isnan(number) or number < 0 or (number == math.inf and not infinite):
        raise ValueError(f"{name} is a number not below 0, not {value!r}")
    return number


def _retry(retry: Retry | Mapping[str, Any] | None) -> Retry:
    if retry is None or isinstance(retry, Retry):
        return retry or Retry()
    try:
        return Retry(**retry)
    except TypeError:
        names = ", ".join(Retry.__annotations__)
        raise TypeError(f"retry is a Retry or a mapping with some of {names}, not {retry!r}") from None
