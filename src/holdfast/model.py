"""Values that describe a lock: Record, Marker, Evidence, Holder, Status."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Self, dataclass_transform

    from .liveness import Liveness
else:

    def dataclass_transform(**_options):
        return lambda decorated: decorated


INFINITY = float("inf")
"""Stands in for `math.inf`: where `math` is a shared library, loading it takes half as long as acquiring a lock."""


@dataclass_transform(frozen_default=True)
class Value:
    """A frozen dataclass in all but name: importing `dataclasses` costs 10 ms, more than all of holdfast.

    Type checkers see the fields of a subclass as parameters. Equal by type and fields; hashable if the fields are.
    """

    __slots__ = ("__dict__",)
    _fields: tuple[str, ...] = ()

    _required: frozenset[str] = frozenset()

    def __init_subclass__(cls) -> None:
        cls._fields = tuple(name for name in cls.__annotations__ if not name.startswith("_"))
        cls._required = frozenset(name for name in cls._fields if not hasattr(cls, name))

    def __init__(self, *values: Any, **named: Any) -> None:
        fields = self._fields
        if len(values) > len(fields):
            raise TypeError(f"{type(self).__name__} takes {len(fields)} values, not {len(values)}")
        given = dict(zip(fields, values, strict=False))
        for name in named:
            if name in given or name not in fields:
                raise TypeError(f"{type(self).__name__} has no such field, or was given it twice: {name!r}")
        given.update(named)
        if len(given) < len(fields) and not self._required <= given.keys():
            missing = next(name for name in fields if name in self._required and name not in given)
            raise TypeError(f"{type(self).__name__} needs {missing!r}")
        self.__dict__.update(given)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name!r} cannot be set")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._values() == self._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        pairs = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({pairs})"

    def replaced(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return type(self)(**{**{name: getattr(self, name) for name in self._fields}, **changes})

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._fields)


class Identity(Value):
    """The identity of one process, which is never reused.

    A pid alone repeats: after a reboot (`boot`), in another container (`pid_namespace`), or when the numbers wrap
    around (`started`). An unknown part is `-` and equals nothing, not even another `-`.
    """

    pid: int
    boot: str
    pid_namespace: str
    started: str
    host: str

    @property
    def pid_space(self) -> tuple[str, str]:
        """The boot and PID namespace in which the pid is a number."""
        return (self.boot, self.pid_namespace)

    @property
    def has_pid_space(self) -> bool:
        """Whether its boot and PID namespace are known."""
        return "-" not in self.pid_space

    def shares_pids_with(self, other: Identity) -> bool:
        """Whether a pid certainly means the same process to both."""
        return self.has_pid_space and self.pid_space == other.pid_space


_WITH_TIME, _WITH_LEASE = "2", "3"
_LEASED = f"{_WITH_LEASE} ".encode()
_MARKER_PARTS = {"1": 7, _WITH_TIME: 8, _WITH_LEASE: 10}
"""The readable versions of the marker, with their numbers of words."""
_BEAT_AT = 8
"""The index of the beat among the words of a marker with a lease."""
_BEATS = 1 << 32
_SECONDS_DIGITS = 12


class Marker(Value):
    """The one field that holdfast adds to a record, so that a reader can tell "guard gone" from "never guarded".

    `guarded` is False if the holder keeps no kernel lock; then its identity is the proof of life. `device` is the
    `st_dev` that the holder saw: through another mount, a held guard may look free. `acquired` is in seconds since the
    epoch, and heartbeats do not change it; None in a marker of version 1, which has no such part. `lease` is in
    seconds; None if the holder has none. `beat` changes with each heartbeat of a holder with a lease.
    """

    guarded: bool
    device: int
    identity: Identity
    acquired: float | None = None
    lease: float | None = None
    beat: int = 0

    def _values(self) -> tuple[Any, ...]:
        return super()._values()[:-1]  # after another beat it is still the same hold

    def encode(self) -> str:
        return marker_text(self.guarded, self.device, self.identity, self.acquired, self.lease, self.beat)

    @classmethod
    def decode(cls, text: str, pid: int) -> Marker | None:
        """The marker, or None if it is torn or of an unknown version."""
        count = _MARKER_PARTS.get(text.partition(" ")[0])
        if count is None:
            return None
        parts = text.split(" ", count - 1)
        if len(parts) != count or parts[1] not in ("g", "n") or not parts[3].isdecimal():
            return None
        _, kind, boot, device, namespace, started, *more, host = parts
        acquired = _seconds(more[0]) if more else None
        lease = _seconds(more[1]) if len(more) > 1 else None
        if None in (acquired, lease)[: len(more)] or (lease is not None and not (lease and _is_beat(more[2]))):
            return None
        who = Identity(pid, boot, namespace, started, host)
        return cls(kind == "g", int(device[:20]), who, acquired, lease, 0 if lease is None else int(more[2], 16))


def marker_text(
    guarded: bool, device: int, who: Identity, acquired: float | None = None, lease: float | None = None, beat: int = 0
) -> str:
    """A marker as it is written: version 3 with a lease, else 2, or 1 without a time of acquisition.

    `g` or `n` is one byte, so that it can be flipped in place; a beat always has the same number of digits.
    """
    kind = "g" if guarded else "n"
    if acquired is not None and lease is None:  # in one step: this one is in every cycle
        since = acquired if acquired > 0 else 0.0
        return f"{_WITH_TIME} {kind} {who.boot} {device} {who.pid_namespace} {who.started} {since:.3f} {who.host}"
    process = f"{kind} {who.boot} {device} {who.pid_namespace} {who.started}"
    if acquired is None:
        return f"1 {process} {who.host}"
    return f"{_WITH_LEASE} {process} {max(0.0, acquired):.3f} {lease:.3f} {beat % _BEATS:08x} {who.host}"


def next_beat(data: bytes, key: bytes) -> tuple[int, bytes] | None:
    """The position of the beat in a record with a lease, and the next beat; None in a record without."""
    at = data.find(key) + len(key)
    if at < len(key) or not data.startswith(_LEASED, at):
        return None  # the text of a tag or payload may look like a marker, but comes after it
    for _ in range(_BEAT_AT):
        at = data.find(b" ", at) + 1
        if not at:
            return None
    digits = data[at : at + 8]
    return (at, b"%08x" % ((int(digits, 16) + 1) % _BEATS)) if _is_beat(digits.decode("latin-1")) else None


def _is_beat(text: str) -> bool:
    return len(text) == 8 and not text.strip("0123456789abcdef")


def _seconds(text: str) -> float | None:
    """A time as version 2 writes it, in seconds with three decimals; None for anything else."""
    whole, _, rest = text.partition(".")
    digits = whole + rest
    plain = digits.isascii() and digits.isdecimal() and len(rest) == 3 and 0 < len(whole) <= _SECONDS_DIGITS
    return float(text) if plain else None


class Record(Value):
    """The content of a lock file, decoded.

    `fields` are the values in the protocol's own vocabulary; the attributes are the same facts in holdfast's.
    `created` is the protocol's timestamp, in seconds since the epoch. `refreshed`: a heartbeat may have changed it;
    `since` is when the lock was acquired. `marked`: there is a marker, even if it cannot be read. `legible` is False if
    the content says nothing, but is a lock by the protocol all the same. `mixed`: the file has more than a record in
    it, so it may be data: it is held, whatever else is known.
    """

    protocol: str
    fields: Mapping[str, Any]
    pid: int | None = None
    created: float | None = None
    tag: str | None = None
    host: str | None = None
    marker: Marker | None = None
    marked: bool = False
    legible: bool = True
    mixed: bool = False
    refreshed: bool = False

    @property
    def since(self) -> float | None:
        """When the lock was acquired, in seconds since the epoch; None if only a heartbeat's time is known."""
        if self.marker is not None and self.marker.acquired is not None:
            return self.marker.acquired
        return None if self.refreshed else self.created

    @property
    def lease(self) -> float | None:
        """The lease of the holder, in seconds: after that long without a change of the record, contenders replace it.
        None if there is no lease."""
        return None if self.marker is None else self.marker.lease


class Evidence(Value):
    """The reason to believe that a holder is alive or dead.

    `source` is `guard` (the kernel lock), `process` (the process table), `boot`, `server` (a lock on a server, or why
    that, or the server of the filesystem, cannot be asked), `counter` (the lock is free, but its counter of fencing
    tokens is locked), `race` (there is no lock file, but another process is about to make one, or has just removed it),
    `unfinished` (its creator has not written it), `heartbeat` (of another program, which touched it just now), or
    `none`. `proven` is True only if no schedule of events can make the answer wrong.
    """

    source: str
    text: str
    proven: bool = False


class Holder(Value):
    """The holder of a lock: everything that the record and this machine show.

    `since`: when it was acquired, in seconds since the epoch; heartbeats do not change it. None if unknown.
    `shared`: together with other holders that asked for it shared.
    """

    pid: int | None = None
    host: str | None = None
    since: float | None = None
    tag: str | None = None
    command: str | None = None
    shared: bool = False


class Waiter(Value):
    """A waiter for a lock. `since` is in seconds since the epoch.

    `position` counts from 1 among the queued waiters. It is None for a waiter that only watches the lock file: it takes
    no part in the queue (`fair=False`), or has no right to. The threads and tasks of another process show as one
    waiter, the first of them. Those of another machine, or of another mount of the directory, do not show.
    """

    position: int | None
    pid: int
    since: float | None = None
    tag: str | None = None
    command: str | None = None


_describe: Callable[[Any], str] = repr


def provide_sentences(describe: Callable[[Any], str]) -> None:
    """Set the function that words a `Status` or a `SemaphoreStatus`. Nothing here needs words for people."""
    global _describe
    _describe = describe


class Status(Value):
    """One look at a lock. It may be outdated by now.

    `locked`: a contender would be refused. `stale`: the lock file exists, but a contender may take the lock over. Both
    False: it is free, or only held by readers that would share it with the contender. `record` is None if there is none
    or it is malformed. `waiters` are in their order, as far as they are visible; only `Lock.status()` looks for them.
    `holders`: if several may hold it, all that are visible; `holder` is the first. If the process that acquired it has
    ended, `record` names that one, and `holders` are the processes to which it has left the kernel lock, such as the
    guardian of a killed `run`; where none is visible, one without a pid, and `holder` is that of the record. `age`:
    seconds since the acquisition; `record_age`: seconds since the record's timestamp, which a heartbeat refreshes, and
    by which protocols call a lock stale; both None if unknown. `modified`: when the lock file was last written, in
    seconds since the epoch; `data`: its content, as bytes.
    """

    path: str
    protocol: str
    locked: bool
    stale: bool
    liveness: Liveness
    evidence: Evidence
    holder: Holder | None = None
    record: Record | None = None
    reason: str = ""
    age: float | None = None
    waiters: tuple[Waiter, ...] = ()
    holders: tuple[Holder, ...] = ()
    modified: float | None = None
    data: bytes = b""
    record_age: float | None = None

    def __str__(self) -> str:
        """A sentence for people: whether it is held, by whom, since when, why, how that is known, and how many wait."""
        return _describe(self)


class SemaphoreStatus(tuple[Status, ...]):
    """One look at a semaphore: the `Status` of each slot, by number. It may be outdated by now."""

    @property
    def free(self) -> int:
        """The number of slots that a contender could get."""
        return sum(not status.locked for status in self)

    @property
    def locked(self) -> bool:
        """Whether a contender would be refused, because all slots are taken."""
        return not self.free

    @property
    def holders(self) -> tuple[Holder, ...]:
        """The holders of the slots, by slot number."""
        return tuple([status.holder for status in self if status.locked and status.holder is not None])

    @property
    def waiters(self) -> tuple[Waiter, ...]:
        """The waiters for any slot, in their order, as far as they are visible. Each `Status` has the same ones."""
        return self[0].waiters if self else ()

    def __str__(self) -> str:
        """A sentence for people: how many slots are free, who holds the others, and how many wait."""
        return _describe(self)
