"""The terms that the faces `sema` and `semats` have in common: errors, the record as a value, what their options mean.

Their lock files have one grammar; what is different is the rule when a lock is stale, and where the file is.
"""

from __future__ import annotations

import math

from ._core.liveness import MAX_PID
from ._core.observe import glance
from ._core.request import check_seconds
from ._core.rivals import has_ended
from ._os import environment
from .errors import AcquireTimeout, MalformedRecord, NotHeld, renamed
from .lock import Lock
from .model import Liveness, Record, Value
from .protocols import get
from .protocols.base import clean_tag

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from typing import Literal, Self

    from ._core.request import Options

    Stale = Literal["protocol", "safe"]


class AlreadyLocked(AcquireTimeout):
    """Somebody holds the lock, and the call does not wait."""

    @property
    def holder_pid(self) -> int | None:
        """Whose pid the lock file names; None if its record cannot be read."""
        return None if self.holder is None else self.holder.pid

    @property
    def locked_since(self) -> int | None:
        """When the lock was acquired, in whole seconds since the epoch; None where that is not known: the record cannot
        be read, or tells only when it was refreshed."""
        since = None if self.holder is None else self.holder.since
        return None if since is None else int(since)


class Timeout(AcquireTimeout):
    """The lock was still held when the time was up; `holder` says by whom."""


class NotLocked(NotHeld):
    """There is no lock to release, or the guard has been released."""


class ParseError(MalformedRecord):
    """The text is no record, or the lock file has none that can be read. Such a lock is held, never stale."""


class LockInfo(Value):
    """What a lock file says about its holder.

    `timestamp` is in whole seconds since the epoch: when the lock was acquired, or refreshed since, as a long hold of
    ours is, because others judge by age. `tag` is None where there is none.
    """

    pid: int
    timestamp: int
    tag: str | None = None

    @classmethod
    def new(cls) -> Self:
        """This process, now, without a tag."""
        env = environment()
        return cls(env.identity().pid, int(env.time()))

    @classmethod
    def with_tag(cls, tag: str) -> Self:
        """This process, now, with a tag."""
        return cls.new().replaced(tag=tag)

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """Read the content of a lock file. ParseError, a ValueError, says what is wrong with it.

        Liberal: keys in any order, CRLF, blanks around `=`, unknown keys. Strict: whole numbers, none of them missing.
        """
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
        try:
            return cls.of(get("sema").decode(data))
        except MalformedRecord as error:
            raise renamed(error, ParseError) from None

    @classmethod
    def of(cls, record: Record) -> Self:
        """The same facts in these words."""
        fields = record.fields
        return cls(fields["pid"], fields["timestamp"], fields["tag"])

    def serialize(self) -> str:
        """The content of a lock file that says this. ValueError for numbers that no record can have.

        The tag becomes one line: control characters turn into blanks, its ends are trimmed, and it is cut at 10 000
        characters.
        """
        tag = None if self.tag is None else clean_tag(self.tag)
        fields = {"pid": self.pid, "timestamp": self.timestamp, "tag": tag}
        return get("sema").encode(Record("sema", fields)).decode()

    def is_stale(self, timeout: float | None) -> bool:
        """Whether it is older than `timeout` seconds, in whole ones; None or 0: never. The process is not asked."""
        limit = check_seconds("timeout", timeout, zero=True)
        record = Record("sema", {}, pid=self.pid, created=float(self.timestamp))
        return bool(limit) and get("sema").is_stale(record, Liveness.UNKNOWN, environment().time(), limit or math.inf)


def is_process_running(pid: int) -> bool:
    """Whether there is such a process here, also one of another user. False for a zombie, and for numbers below 1."""
    return 0 < pid <= MAX_PID and not has_ended(environment(), pid)


def options_of(protocol: str, stale_timeout: float | None, acquire_timeout: float | None, stale: Stale) -> Options:
    """The same wishes in the words of `Lock`."""
    limit = check_seconds("stale_timeout", stale_timeout, zero=True)
    if stale not in ("protocol", "safe"):
        raise ValueError(f"stale is 'protocol' or 'safe', not {stale!r}")
    return {"protocol": protocol, "stale": stale, "stale_after": limit or math.inf, "timeout": acquire_timeout}


def make_lock(path: str | os.PathLike[str], options: Options, tag: str | None, retry_interval: float) -> Lock:
    """A lock with that tag. TypeError or ValueError for an interval that makes no sense."""
    every = check_seconds("retry_interval", retry_interval, zero=True)
    if every is None:
        raise TypeError("retry_interval is a number of seconds, not None")
    given: Options = {**options, "tag": tag}
    lock = Lock(path, **given)
    lock._request.look_every = every
    return lock


def info_at(lock: Lock) -> LockInfo | None:
    """Who holds it; None when nobody does."""
    seen = glance(lock._env, lock._request)
    if seen is None:
        return None
    if seen.record is None:
        raise ParseError(f"{lock.path} is locked, but {seen.problem}", path=lock.path, protocol=lock.protocol)
    return LockInfo.of(seen.record)
