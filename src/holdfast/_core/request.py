"""What a caller asks for, checked once, before anything is touched."""

from __future__ import annotations

import math
import os
import zlib

from ..errors import InvalidPath
from ..model import marker_text
from ..protocols import get
from ..protocols.base import clean_tag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Literal, TypedDict

    from ..errors import LockLost
    from ..model import Status
    from ..protocols import Protocol
    from .contest import Refusal
    from .environment import Environment

    Stale = Literal["safe", "protocol", "never"] | Callable[[Status], bool]
else:

    class TypedDict:
        """Stands in for `typing.TypedDict`, whose import costs 6 ms; only the annotations are needed here."""

        def __init_subclass__(cls, *, total: bool) -> None: ...


_LONGEST_NAME = 255 - len(".holdfast-.queue")
_MOST_SLOTS = 1000
"""Whoever waits for a semaphore looks at every slot, and has a descriptor open for each."""
_FASTEST_BEAT = 0.05
"""Seconds. Timestamps are in whole ones, so that a faster beat would only look more often whether the lock is lost."""


class Options(TypedDict, total=False):
    """Every option of a lock, spelled here and nowhere else. `Lock` documents them."""

    protocol: str
    tag: str | None
    timeout: float | None
    stale: Stale
    stale_after: float | None
    mode: int | None
    durable: bool
    heartbeat: float | None
    owner: Hashable | None
    fair: bool
    shared: bool
    parents: bool
    on_lost: Callable[[LockLost], object] | None


class Request:
    """One lock as it is asked for: where, by which protocol, with which options."""

    __slots__ = (
        "beat_every",
        "directory",
        "durable",
        "fair",
        "method",
        "mode",
        "name",
        "notice",
        "on_behalf_of",
        "on_lost",
        "owner",
        "parents",
        "path",
        "protocol",
        "queue",
        "shared",
        "slot",
        "stale",
        "stale_after",
        "tag",
        "target",
        "timeout",
    )

    def __init__(self, path: str | os.PathLike[str], options: Options) -> None:
        unknown = options.keys() - Options.__annotations__.keys()
        if unknown:
            raise TypeError(
                f"unknown option {min(unknown)!r}; a lock has: {', '.join(sorted(Options.__annotations__))}"
            )
        self.protocol: Protocol = get(options.get("protocol", "sema"))
        self.path = check_path(path, self.protocol.name)
        self.directory, self.name = os.path.split(self.path)
        self.tag = _tag(options.get("tag"))
        self.timeout = check_timeout(options.get("timeout"))
        self.stale = _stale(options.get("stale", "safe"))
        self.mode = _mode(options.get("mode"), self.protocol.mode)
        self.durable = bool(options.get("durable", False))
        self.parents = bool(options.get("parents", False))
        self.owner = options.get("owner")
        self.fair = bool(options.get("fair", True))
        self.shared = bool(options.get("shared", False))
        if self.shared and not self.protocol.shareable:
            raise ValueError(
                f"the {self.protocol.name} protocol has no shared locks: its lock file names one holder. Use "
                "protocol='flock' (-p flock) for a lock that readers share"
            )
        if self.protocol.persistent:
            _require_meaning(self.protocol.name, options)
        self.queue = queue_of(self.directory, self.name)
        # What the caller named, and the number of the slot if that is a semaphore.
        self.target = self.path
        self.slot: int | None = None
        self.on_lost = options.get("on_lost")
        if self.on_lost is not None and not callable(self.on_lost):
            raise TypeError("on_lost is a callable that takes the LockLost error")
        hash(self.owner)  # says now, not at the first contention, that an owner is not hashable
        own = self.protocol.stale_after
        chosen = _seconds("stale_after", options.get("stale_after"), zero=False)
        self.stale_after = own if chosen is None else chosen
        # Others judge a hold by *their* limit, so the lower of the two sets the pace; infinity is never.
        every = _seconds("heartbeat", options.get("heartbeat"), zero=True)
        pace = min(self.stale_after, own) / 3 if every is None else every or math.inf
        self.beat_every = max(pace, _FASTEST_BEAT)
        # How this directory publishes; moves on when a way turns out not to work here.
        self.method = "unnamed"
        # Called once, with what was seen so far, when a wait has lasted a second.
        self.notice: Callable[[Refusal], None] | None = None
        # A living process that the lock is bound to instead of this one: `holdfast acquire` in a shell.
        self.on_behalf_of: int | None = None

    def compose(self, env: Environment, device: int, *, guarded: bool) -> bytes:
        """The record of a new hold, stamped now: a stamp from before the wait would be old already."""
        identity = env.identity(self.on_behalf_of)
        guarded = guarded and self.on_behalf_of is None
        return self.protocol.compose(identity.pid, env.time(), self.tag, marker_text(guarded, device, identity))


def slots_of(base: str | os.PathLike[str], slots: int, options: Options) -> tuple[Request, ...]:
    """A request for each slot of a semaphore, `<base>.<i>.lock`. They have one queue, which no lock has."""
    if isinstance(slots, bool) or not isinstance(slots, int):
        raise TypeError(f"slots is how many may hold the semaphore at once, a whole number, not {slots!r}")
    if not 1 <= slots <= _MOST_SLOTS:
        raise ValueError(f"slots is from 1 to {_MOST_SLOTS}, not {slots!r}")
    if options.get("shared"):
        raise ValueError("a semaphore has no shared holds; let more in with more slots, or use a Lock that is shared")
    target = check_path(base, get(options.get("protocol", "sema")).name)
    requests = tuple([Request(f"{target}.{slot}.lock", options) for slot in range(slots)])
    queue = queue_of(*os.path.split(f"{target}.#.lock"))
    for slot, request in enumerate(requests):
        request.target, request.slot, request.queue = target, slot, queue
    return requests


def _require_meaning(protocol: str, options: Options) -> None:
    """ValueError for what would silently have no effect on a lock that the kernel alone keeps and frees."""
    given = {
        "stale": callable(options.get("stale")),
        "stale_after": options.get("stale_after") is not None,
        "heartbeat": bool(options.get("heartbeat")),
        "durable": bool(options.get("durable")),
    }
    for name, wanted in given.items():
        if wanted:
            raise ValueError(
                f"{name} has no meaning with protocol {protocol!r}: the kernel frees the lock when its holder ends, at "
                "once and never before, so it is never stale and survives nothing. Leave the option out"
            )


def check_path(path: str | os.PathLike[str], protocol: str) -> str:
    """The absolute path; `..` stays, because it means what the kernel says and not what the text says."""
    text = os.fsdecode(path)
    if not text:
        raise InvalidPath("the lock path is empty; name a file", path=text, protocol=protocol)
    if "\0" in text:
        raise InvalidPath(f"{text!r} contains a NUL byte; name a file without", path=text, protocol=protocol)
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise InvalidPath(f"{text!r} is no file name here; use another", path=text, protocol=protocol) from None
    if os.path.basename(text) in ("", ".", ".."):
        raise InvalidPath(f"{text!r} names a directory; a lock path names a file", path=text, protocol=protocol)
    return text if os.path.isabs(text) else os.path.join(os.getcwd(), text)


def queue_of(directory: str, name: str) -> str:
    """The hidden directory of those who wait for a lock, named after it as far as a file name's length allows."""
    short = os.fsencode(name)
    if len(short) > _LONGEST_NAME:
        short = short[: _LONGEST_NAME - 9] + b"~%08x" % zlib.crc32(short)
    return f"{directory}/.holdfast-{os.fsdecode(short)}.queue"


def check_timeout(timeout: float | None) -> float | None:
    """None waits for ever, 0 tries once; negative and NaN are mistakes, not requests."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout is a number of seconds or None, not {timeout!r}")
    timeout = _float(timeout)
    if math.isnan(timeout) or timeout < 0:
        raise ValueError(f"timeout is 0 (try once), a number of seconds, or None (for ever), not {timeout!r}")
    return None if timeout == math.inf else timeout


def _seconds(name: str, value: float | None, *, zero: bool) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number of seconds, not {value!r}")
    value = _float(value)
    if math.isnan(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name} is a number of seconds {'not below' if zero else 'above'} 0, not {value!r}")
    return value


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an int that is longer than any time
        return math.inf if value > 0 else -math.inf


def _stale(stale: Stale) -> Stale:
    if not callable(stale) and stale not in ("safe", "protocol", "never"):
        raise ValueError(f"stale is 'safe', 'protocol', 'never' or a callable, not {stale!r}")
    return stale


def _tag(tag: str | None) -> str | None:
    if tag is None:
        return None
    if not isinstance(tag, str):
        raise TypeError(f"tag is a str, not {tag!r}")
    return clean_tag(tag)


def _mode(mode: int | None, default: int) -> int:
    if mode is None:
        return default
    if isinstance(mode, bool) or not isinstance(mode, int) or not 0 <= mode <= 0o777:
        raise ValueError(f"mode is permission bits from 0 to 0o777, not {mode!r}")
    if mode & 0o600 != 0o600:
        raise ValueError(f"mode {mode:#o} would keep the holder itself from reading and writing its lock file")
    return mode
