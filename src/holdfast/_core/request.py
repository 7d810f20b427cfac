"""What a caller asks for, checked once, before anything is touched."""

from __future__ import annotations

import math
import os

from ..events import check_callback
from ..model import marker_text
from ..protocols import get
from ..protocols.base import clean_tag
from .locate import check_path, locate, queue_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from typing import Any, Literal, TypedDict

    from ..errors import LockLost
    from ..events import Event
    from ..model import Status
    from ..protocols import Protocol
    from .environment import Environment, Signal
    from .refusal import Refusal

    Stale = Literal["safe", "protocol", "never"] | Callable[[Status], bool]
else:

    class TypedDict:
        """Stands in for `typing.TypedDict`, whose import costs 6 ms; only the annotations are needed here."""

        def __init_subclass__(cls, *, total: bool) -> None: ...


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
    fencing: bool
    heartbeat: float | None
    owner: Hashable | None
    fair: bool
    shared: bool
    parents: bool | None
    on_lost: Callable[[LockLost], object] | None
    on_event: Callable[[Event], object] | None
    payload: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None
    holder: str | None
    version: str | None


_OF_PROTOCOLS = ("payload", "holder", "version")
"""Options that only some protocols have (`Protocol.options`)."""


class Request:
    """One lock as it is asked for: where, by which protocol, with which options."""

    __slots__ = (
        "beat_every",
        "check_every",
        "directory",
        "durable",
        "fair",
        "fencing",
        "given",
        "kept_for",
        "look_every",
        "method",
        "mode",
        "more",
        "name",
        "notice",
        "on_behalf_of",
        "on_event",
        "on_lost",
        "owner",
        "parents",
        "path",
        "prepare",
        "protocol",
        "queue",
        "released_by_path",
        "retained",
        "shared",
        "slot",
        "stale",
        "stale_after",
        "tag",
        "target",
        "timeout",
        "tries",
        "unmarked",
        "watched",
    )

    def __init__(self, path: str | os.PathLike[str], options: Options, *, lock_file: str | None = None) -> None:
        self.protocol: Protocol = get(options.get("protocol", "sema"))
        self.more = _options_of(self.protocol, options)
        if path == lock_file:  # a file that was found: its own path is no link
            self.given = located = check_path(path, self.protocol.name)
        else:
            self.given, located = locate(path, self.protocol)
        self.path = located if lock_file is None else check_path(lock_file, self.protocol.name)
        self.directory, self.name = os.path.split(self.path)
        self._set_common(options)
        self.stale = _stale(options.get("stale", "safe"))
        self.mode = _mode(options.get("mode"), self.protocol.mode)
        self.durable = bool(options.get("durable", False))
        parents = options.get("parents")
        self.parents = self.protocol.makes_parents if parents is None else bool(parents)
        self.fair = bool(options.get("fair", True))
        self.shared = bool(options.get("shared", False))
        if self.shared and not self.protocol.shareable:
            raise ValueError(
                f"the {self.protocol.name} protocol has no shared locks: its lock file names one holder. Use "
                "protocol='flock' (-p flock) for a lock that readers share"
            )
        self.fencing = bool(options.get("fencing", False))
        if self.shared and self.fencing:
            raise ValueError("a shared hold has no fencing token: those who hold it together have no order")
        if self.protocol.persistent:
            _require_meaning(self.protocol.name, options)
        self.queue = queue_of(self.directory, self.name)
        # What the caller named, and the number of the slot if that is a semaphore.
        self.target = self.path
        self.slot: int | None = None
        # Whether somebody waits to be told of a loss: then it is to be noticed at once.
        self.watched = self.on_lost is not None or self.on_event is not None
        own = self.protocol.stale_after
        chosen = check_seconds("stale_after", options.get("stale_after"), zero=False)
        self.stale_after = own if chosen is None else chosen
        # Others judge a hold by *their* limit, so the lower of the two sets the pace; infinity is never.
        every = check_seconds("heartbeat", options.get("heartbeat"), zero=True)
        pace = min(self.stale_after, own) / 3 if every is None else every or math.inf
        self.beat_every = max(pace, _FASTEST_BEAT)
        # How this directory publishes; moves on when a way turns out not to work here.
        self.method = "unnamed"
        # The longest pause, in seconds, between looks of the first who waits, where no events arrive.
        self.look_every = math.inf
        # Called before each attempt to create or take over: composes the payload, now or by the time that the signal is
        # set (acquire.py, A9).
        self.prepare: Callable[[], Signal | None] | None = None
        # Written without a marker: nobody vouches for it, so others judge it as the protocol says.
        self.unmarked = False

    def _set_common(self, options: Options) -> None:
        """What means the same wherever locks are stored."""
        self.tag = check_tag(options.get("tag"))
        self.timeout = check_timeout(options.get("timeout"))
        self.owner = options.get("owner")
        hash(self.owner)  # says now, not at the first contention, that an owner is not hashable
        self.on_lost = options.get("on_lost")
        if self.on_lost is not None and not callable(self.on_lost):
            raise TypeError("on_lost is a callable that takes the LockLost error")
        self.on_event = options.get("on_event")
        if self.on_event is not None:
            check_callback("on_event", self.on_event)
        # Called once, with what was seen so far, when a wait has lasted a second.
        self.notice: Callable[[Refusal], None] | None = None
        # How many tries there are after the first, and the pause before each, in seconds, by its number from 0.
        self.tries: tuple[int, Callable[[int], float]] | None = None
        # Seconds between looks whether the hold is lost, where somebody waits to be told and no event tells.
        self.check_every = 1.0
        # Whether the lock file stays when the process ends while it holds.
        self.released_by_path = False
        """Whether a face releases it without its handle, which may then be dropped (hold.py, H8)."""
        self.retained = False
        # A living process that the lock is bound to instead of this one: `holdfast acquire` in a shell.
        self.on_behalf_of: int | None = None
        # The same, but a keeper process has the guard, and with it the proof of life.
        self.kept_for: int | None = None

    def compose(self, env: Environment, device: int, *, guarded: bool) -> bytes:
        """The record of a new hold, stamped now: a stamp from before the wait would be old already."""
        identity = env.identity(self.on_behalf_of or self.kept_for)
        guarded = guarded and self.on_behalf_of is None
        now = env.time()
        marker = None if self.unmarked else marker_text(guarded, device, identity, now)
        return self.protocol.compose(identity, now, self.tag, marker, self.more)


def slots_of(base: str | os.PathLike[str], slots: int, options: Options) -> tuple[Request, ...]:
    """A request for each slot of a semaphore, `<base>.<i>.lock`. They have one queue, which no lock has."""
    if isinstance(slots, bool) or not isinstance(slots, int):
        raise TypeError(f"slots is how many may hold the semaphore at once, a whole number, not {slots!r}")
    if not 1 <= slots <= _MOST_SLOTS:
        raise ValueError(f"slots is from 1 to {_MOST_SLOTS}, not {slots!r}")
    if options.get("shared"):
        raise ValueError("a semaphore has no shared holds; let more in with more slots, or use a Lock that is shared")
    protocol = get(options.get("protocol", "sema"))
    if protocol.suffix.startswith("/"):
        raise ValueError(f"the {protocol.name} protocol has one lock for each directory, so it has no semaphores")
    target = check_path(base, protocol.name)
    requests = tuple([Request(target, options, lock_file=f"{target}.{slot}.lock") for slot in range(slots)])
    queue = queue_of(*os.path.split(f"{target}.#.lock"))
    for slot, request in enumerate(requests):
        request.target, request.slot, request.queue = target, slot, queue
    return requests


def _options_of(protocol: Protocol, options: Options) -> Mapping[str, Any]:
    """Those options that only this protocol has; TypeError or ValueError for what it has not."""
    for name in _OF_PROTOCOLS:
        if options.get(name) is not None and name not in protocol.options:
            raise ValueError(f"{name} is no option of the {protocol.name} protocol")
    more = {name: value for name, value in options.items() if name in protocol.options and value is not None}
    if more:
        protocol.check_options(more)
    return more


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


def check_seconds(name: str, value: float | None, *, zero: bool) -> float | None:
    """A number of seconds, or None; TypeError or ValueError, by that name, for anything else."""
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


def check_tag(tag: str | None) -> str | None:
    """The tag as it is written, or None; TypeError for what is none."""
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
