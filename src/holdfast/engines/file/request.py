"""The request for a lock file: its path, protocol and options. Checked before any I/O."""

from __future__ import annotations

import os

from ..._core.attempt import ask
from ..._core.options import FASTEST_BEAT, Request, check_seconds, check_slots
from ..._platform.fork import forking
from ...events import is_async
from ...model import INFINITY, marker_text
from ...protocols import Protocol, get
from .paths import check_path, locate, queue_of, queue_of_slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..._core.options import Options, Stale
    from ..._core.wait import Signal
    from ..._platform.interface import Environment


_SHORTEST_LEASE = 1.0
_LEASE = 30.0
"""Seconds: the lease of a hold on a filesystem that machines share, unless the caller says otherwise."""
SHORTEST_STALE, SHORTEST_UPDATE = 2.0, 1.0
"""Seconds, for proper-lockfile: it raises lower values, and we refuse them."""
_OF_PROTOCOLS = ("payload", "holder", "range", "realpath", "version")
"""Options that only some protocols have (`Protocol.options`)."""


class FileRequest(Request):
    """A request for one lock file."""

    __slots__ = (
        "directory",
        "durable",
        "fair",
        "lease",
        "look_every",
        "method",
        "mode",
        "more",
        "name",
        "parents",
        "prepare",
        "protocol",
        "queue",
        "records",
        "stale",
        "stale_after",
        "unmarked",
    )

    def __init__(self, path: str | os.PathLike[str], options: Options, *, lock_file: str | None = None) -> None:
        with forking:  # it may have to be loaded
            self.protocol: Protocol = get(options.get("protocol", "sema"))
        self.more = _options_of(self.protocol, options)
        if path == lock_file:  # a file that was found: its path is not a link
            given = located = check_path(path, self.protocol.name)
        else:
            given, located = locate(path, self.protocol, links=self.more.get("realpath") is not False)
        located = located if lock_file is None else check_path(lock_file, self.protocol.name)
        super().__init__(self.protocol.name, given, located, options)
        self.directory, self.name = os.path.split(self.path)
        self.stale = _stale(options.get("stale", "safe"))
        self.mode = _mode(options.get("mode"), self.protocol.mode)
        self.durable = bool(options.get("durable", False))
        parents = options.get("parents")
        self.parents = self.protocol.makes_parents if parents is None else bool(parents)
        self.fair = bool(options.get("fair", True))
        if self.shared and not self.protocol.shareable:
            raise ValueError(
                f"the {self.protocol.name} protocol has no shared locks: its lock file names one holder. Use "
                "protocol='flock' (-p flock) for a lock that readers share"
            )
        if self.shared and self.fencing:
            raise ValueError("a shared hold has no fencing token: readers that hold a lock together have no order")
        if self.protocol.persistent:
            _require_meaning(self.protocol.name, options)
        if self.protocol.is_directory:
            _require_possible(self.protocol, options)
        # The bytes that a record lock locks: the first one and their number. Each range has its own queue.
        self.records: tuple[int, int] | None = self.more.get("range", (0, 0)) if self.protocol.locks_records else None
        self.queue = queue_of(self.directory, self.name, _span(self.records))
        lease = _lease(options.get("lease"))
        self.lease = 0.0 if self.protocol.persistent or self.protocol.is_directory else lease
        own = self.protocol.stale_after
        chosen = check_seconds("stale_after", options.get("stale_after"), zero=False)
        if chosen is not None and not self.protocol.has_age:
            raise ValueError(
                f"stale_after has no meaning with protocol {self.protocol.name!r}: its lock is stale when its process "
                "is dead, at any age. Leave the option out"
            )
        self.stale_after = own if chosen is None else chosen
        # Others judge a hold by *their* limit, so the lower of the two sets the pace; infinity means never.
        every = check_seconds("heartbeat", options.get("heartbeat"), zero=True)
        share = 2 if self.protocol.all_beat else 3
        pace = min(self.stale_after, own) / share if every is None else every or INFINITY
        self.beat_every = max(pace, FASTEST_BEAT)
        # How to publish in this directory; moves on when a method turns out not to work here.
        self.method = "unnamed"
        # Seconds of the longest pause between two looks of the first waiter, where no events arrive.
        self.look_every = INFINITY
        # Called before each attempt to create or take over: composes the payload, at once or by the time that the
        # signal is set (acquire.py, A6).
        self.prepare: Callable[[], Signal | None] | None = None
        # Whether to write no marker: no process vouches for the lock, so others judge it by the protocol's rule.
        self.unmarked = False

    def meets(self, other: FileRequest) -> bool:
        """Whether two locks on one file are of one kind and have a byte in common."""
        if self.records is None or other.records is None:
            return self.records is other.records
        (first, length), (start, many) = self.records, other.records
        return (not length or start < first + length) and (not many or first < start + many)

    def includes(self, other: FileRequest) -> bool:
        """Whether a holder of this lock has everything that the other lock, which it meets, would give."""
        if self.shared and not other.shared:
            return False
        if self.records is None or other.records is None:
            return True
        (first, length), (start, many) = self.records, other.records
        return first <= start and (not length or (bool(many) and start + many <= first + length))

    def lease_on(self, env: Environment, device: int) -> float:
        """The lease of a hold there, in seconds; 0 for none, also if no process could send heartbeats."""
        if self.unmarked or self.on_behalf_of is not None:
            return 0.0
        if self.lease is None:
            return _LEASE if env.knows_mounts and env.storage(self.path, device).shared else 0.0
        return self.lease

    def compose(self, env: Environment, device: int, *, guarded: bool, lease: float | None = None) -> bytes:
        """The record of a new hold, stamped now: a stamp from before the wait would be old already.

        `lease`: the lease of the hold in seconds, if known.
        """
        identity, now = env.identity(self.on_behalf_of or self.kept_for), env.time()
        if lease is None:
            lease = self.lease_on(env, device)
        beat = int(env.token()[:8], 16) if lease else 0  # not the same as in an earlier hold
        marker = None
        if not self.unmarked:
            marker = marker_text(guarded and self.on_behalf_of is None, device, identity, now, lease or None, beat)
        return ask(self.protocol.compose, identity, now, self.tag, marker, self.more)


def slots_of(base: str | os.PathLike[str], slots: int, options: Options) -> tuple[FileRequest, ...]:
    """The requests for the slots of a semaphore, `<base>.<i>.lock`. They share one queue, which no lock uses;
    each range has its own."""
    check_slots(slots)
    if options.get("shared"):
        raise ValueError("a semaphore has no shared holds; let more in with more slots, or use a Lock that is shared")
    protocol = get(options.get("protocol", "sema"))
    if protocol.is_directory:
        raise ValueError(
            f"the {protocol.name} protocol has no semaphores: a slot is a file of its own, and this one locks a file "
            "that exists. Use protocol='sema' or 'flock'"
        )
    if protocol.suffix.startswith("/"):
        raise ValueError(f"the {protocol.name} protocol has one lock for each directory, so it has no semaphores")
    target = check_path(base, protocol.name)
    requests = tuple([FileRequest(target, options, lock_file=f"{target}.{slot}.lock") for slot in range(slots)])
    span = "" if requests[0].records == (0, 0) else _span(requests[0].records)
    queue = queue_of_slots(*os.path.split(target), span)
    for slot, request in enumerate(requests):
        request.target, request.slot, request.queue = target, slot, queue
    return requests


def _span(records: tuple[int, int] | None) -> str:
    """The part of a queue's name that stands for the bytes of a record lock."""
    return "" if records is None else f"@{records[0]}+{records[1]}"


def _options_of(protocol: Protocol, options: Options) -> Mapping[str, Any]:
    """The options that only this protocol has; TypeError or ValueError for options that it lacks."""
    for name in _OF_PROTOCOLS:
        if options.get(name) is not None and name not in protocol.options:
            raise ValueError(f"{name} is not an option of the {protocol.name} protocol")
    more = {name: value for name, value in options.items() if name in protocol.options and value is not None}
    if more:
        protocol.check_options(more)
    return more


def _require_meaning(protocol: str, options: Options) -> None:
    """Raise ValueError for options that would silently have no effect on a pure kernel lock."""
    given = {
        "stale": callable(options.get("stale")),
        "stale_after": options.get("stale_after") is not None,
        "heartbeat": bool(options.get("heartbeat")),
        "durable": bool(options.get("durable")),
        "lease": bool(options.get("lease")),
    }
    for name, wanted in given.items():
        if wanted:
            raise ValueError(
                f"{name} has no meaning with protocol {protocol!r}: the kernel frees the lock when its holder ends, at "
                "once and never before, so it is never stale and survives nothing. Leave the option out"
            )


def _require_possible(protocol: Protocol, options: Options) -> None:
    """Raise ValueError for options that a lock without a record cannot have, or that its protocol does not allow."""
    why = {
        "lease": "every holder has one already: stale_after",
        "fencing": "others who hold it give no tokens, and a directory says nothing of an earlier one",
        "durable": "a lock that survives a power cut is stale in seconds all the same",
    }
    for name, reason in why.items():
        if options.get(name):
            raise ValueError(f"{name} has no meaning with protocol {protocol.name!r}: {reason}. Leave the option out")
    after = check_seconds("stale_after", options.get("stale_after"), zero=False)
    after = protocol.stale_after if after is None else after
    every = check_seconds("heartbeat", options.get("heartbeat"), zero=True)
    if after < SHORTEST_STALE:
        raise ValueError(
            f"stale_after must be at least {SHORTEST_STALE:g} seconds with {protocol.name!r}, not {after:g}"
        )
    if every is not None and not SHORTEST_UPDATE <= every <= min(after, protocol.stale_after) / 2:
        raise ValueError(
            f"heartbeat must be from {SHORTEST_UPDATE:g} second to half of the age from which others may take it over, "
            f"{min(after, protocol.stale_after) / 2:g} seconds, with {protocol.name!r}, not {every:g}"
        )


def _lease(lease: float | None) -> float | None:
    lease = check_seconds("lease", lease, zero=True)
    if lease is not None and not (lease == 0 or _SHORTEST_LEASE <= lease < INFINITY):
        raise ValueError(
            f"lease must be 0 (none) or a finite number of seconds, at least {_SHORTEST_LEASE:g}, not {lease!r}"
        )
    return lease


def _stale(stale: Stale) -> Stale:
    if callable(stale):
        if is_async(stale):
            raise TypeError("stale is an `async def`, whose answer would never be awaited; pass a plain function")
    elif stale not in ("safe", "protocol", "never"):
        raise ValueError(f"stale must be 'safe', 'protocol', 'never' or a callable, not {stale!r}")
    return stale


def _mode(mode: int | None, default: int) -> int:
    if mode is None:
        return default
    if isinstance(mode, bool) or not isinstance(mode, int) or not 0 <= mode <= 0o777:
        raise ValueError(f"mode must be permission bits from 0 to 0o777, not {mode!r}")
    if mode & 0o600 != 0o600:
        raise ValueError(f"mode {mode:#o} would keep the holder itself from reading and writing its lock file")
    return mode
