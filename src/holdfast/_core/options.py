"""The options of a caller that are the same for all engines; checked before any I/O."""

from __future__ import annotations

from ..events import Event, check_callback
from ..model import INFINITY, Holder, Status
from ..protocols.base import clean_tag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from typing import Any, Literal, TypedDict, TypeVar

    from ..errors import HoldfastError, LockLost

    E = TypeVar("E", bound=HoldfastError)
    Stale = Literal["safe", "protocol", "never"] | Callable[[Status], bool]
else:

    class TypedDict:
        """Stands in for `typing.TypedDict`, whose import costs 6 ms; only the annotations are needed here."""

        def __init_subclass__(cls, *, total: bool) -> None: ...


MOST_SLOTS = 1000
"""The maximum number of slots: a waiter looks at every slot, and has a descriptor open for each that is a file."""
FASTEST_BEAT = 0.05
"""Seconds between heartbeats, at least: a faster one would only check more often whether the lock is lost."""


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
    lease: float | None
    owner: Hashable | None
    fair: bool
    shared: bool
    parents: bool | None
    on_lost: Callable[[LockLost], object] | None
    on_event: Callable[[Event], object] | None
    payload: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None
    holder: str | None
    realpath: bool | None
    range: tuple[int, int] | None
    version: str | None


class Request:
    """A request for one lock: the part that is the same for all engines."""

    __slots__ = (
        "beat_every",
        "check_every",
        "fencing",
        "given",
        "kept_for",
        "kept_later",
        "notice",
        "on_behalf_of",
        "on_event",
        "on_lost",
        "owner",
        "path",
        "protocol_name",
        "released_by_path",
        "retained",
        "shared",
        "slot",
        "tag",
        "target",
        "timeout",
        "tries",
        "watched",
    )

    def __init__(self, protocol_name: str, given: str, path: str, options: Options) -> None:
        self.protocol_name = protocol_name
        self.given = given
        self.path = path
        # The resource as the caller named it, and the number of a semaphore's slot.
        self.target = path
        self.slot: int | None = None
        self.tag = check_tag(options.get("tag"))
        self.timeout = check_timeout(options.get("timeout"))
        self.owner = options.get("owner")
        hash(self.owner)  # an unhashable owner fails now, not at the first contention
        self.on_lost = options.get("on_lost")
        if self.on_lost is not None:
            check_callback("on_lost", self.on_lost, "the LockLost error")
        self.on_event = options.get("on_event")
        if self.on_event is not None:
            check_callback("on_event", self.on_event)
        # Called once, with a `Refusal` that says what was seen so far, when a wait has lasted a second.
        self.notice: Callable[[Any], float | None] | None = None
        # The number of tries after the first, and a function from the number of a retry, from 0, to the pause before
        # it, in seconds.
        self.tries: tuple[int, Callable[[int], float]] | None = None
        # Seconds between checks whether the hold is lost, if a callback must hear of it and there are no events.
        self.check_every = 1.0
        # Whether a face releases it without its handle, which may then be dropped (hold.py, H3).
        self.released_by_path = False
        # Whether the lock file stays when the process ends while it holds.
        self.retained = False
        # A living process to which the lock is bound instead of this one: `holdfast acquire` in a shell.
        self.on_behalf_of: int | None = None
        # A living process as above, but a keeper process has the guard, and with it the proof of life.
        self.kept_for: int | None = None
        # Whether heartbeats and watching for a loss wait until the holder asks for them (lock.keep_from_now).
        self.kept_later = False
        # Whether a callback must hear of a loss at once.
        self.watched = self.on_lost is not None or self.on_event is not None
        self.shared = bool(options.get("shared", False))
        self.fencing = bool(options.get("fencing", False))
        self.beat_every = INFINITY

    @property
    def place(self) -> tuple[str, str, tuple[str, ...], int]:
        """The place in the order in which locks that are no files are acquired together (several.py, D1)."""
        return (self.protocol_name, self.target, (), -1 if self.slot is None else self.slot)

    def error(self, kind: type[E], message: str, holder: Holder | None = None) -> E:
        """An error about this lock."""
        return kind(message, path=self.path, protocol=self.protocol_name, holder=holder)


def check_timeout(timeout: float | None) -> float | None:
    """The timeout in seconds: None waits forever, 0 tries once. Negative numbers and NaN are errors."""
    if timeout is None:
        return None
    timeout = as_number("timeout", timeout, "a number of seconds or None")
    if not timeout >= 0:  # nor is NaN
        raise ValueError(f"timeout must be 0 (try once), a number of seconds, or None (forever), not {timeout!r}")
    return None if timeout == INFINITY else timeout


def check_seconds(name: str, value: float | None, *, zero: bool) -> float | None:
    """The number of seconds, or None; TypeError or ValueError, which use the name, for anything else."""
    if value is None:
        return None
    value = as_number(name, value, "a number of seconds")
    if not value >= 0 or (value == 0 and not zero):  # nor is NaN
        raise ValueError(f"{name} must be {'at least' if zero else 'more than'} 0 seconds, not {value!r}")
    return value


def as_number(name: str, value: float, what: str) -> float:
    """The number as a float: infinity for an int beyond the largest float. TypeError, which says what it must be."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be {what}, not {value!r}")
    try:
        return float(value)
    except OverflowError:
        return INFINITY if value > 0 else -INFINITY


def check_slots(slots: int) -> None:
    """Raise TypeError or ValueError for anything that is no number of slots of a semaphore."""
    if isinstance(slots, bool) or not isinstance(slots, int):
        raise TypeError(f"slots, how many may hold the semaphore at once, must be a whole number, not {slots!r}")
    if not 1 <= slots <= MOST_SLOTS:
        raise ValueError(f"slots must be from 1 to {MOST_SLOTS}, not {slots!r}")


def check_tag(tag: str | None) -> str | None:
    """The tag as it is written, or None; TypeError for anything but a str."""
    if tag is None:
        return None
    if not isinstance(tag, str):
        raise TypeError(f"tag must be a str, not {tag!r}")
    return clean_tag(tag)
