"""When others would call a lock stale: each implementation of its protocol by its own rule. For people."""

from __future__ import annotations

import math

from .._core.report import duration, moment, printable
from ..model import Liveness, Status, Value
from ..protocols import get

_READERS = {"sema": ("sema", "semats"), "semats": ("sema", "semats"), "sidecar": ("fs-safe",), "beads": ("beads",)}
"""Who reads the records of a protocol, besides holdfast."""
_RULE_OF = {"fs-safe": "sidecar"}
CONDITIONS = {
    "sema": "",
    "semats": "if its process has ended by then",
    "fs-safe": "and removes it only if its caller has opted into that and agrees",
    "beads": "as soon as its process has ended, on the same host",
}
"""Under which each calls a lock stale; of fs-safe, which only fails then, under which it removes one."""


class Outlook(Value):
    """`implementation` would call it stale `at` that moment (epoch seconds; None: no age does it), and under that
    `condition` only, if it is not empty."""

    implementation: str
    at: float | None
    condition: str


def outlook(status: Status) -> tuple[Outlook, ...]:
    """What is to be expected of every other implementation, if nothing refreshes the record until then."""
    record = status.record
    if record is None:
        return ()
    found = []
    for name in _READERS.get(status.protocol, ()):
        protocol = get(_RULE_OF.get(name, name))
        found.append(Outlook(name, protocol.stale_at(record, protocol.stale_after), CONDITIONS[name]))
    return tuple(found)


def in_words(one: Outlook, now: float) -> str:
    """`sema would call it stale at 14:02:11, in 41 min`."""
    condition = f", {one.condition}" if one.condition else ""
    if one.at is None:
        return f"{one.implementation} calls it stale {one.condition}" if condition else ""
    if one.at <= now:
        return f"{one.implementation} calls it stale since {moment(one.at)}{condition.replace('by then', 'by now')}"
    return f"{one.implementation} would call it stale at {moment(one.at)}, in {duration(one.at - now)}{condition}"


def own_view(status: Status) -> str:
    """The same of holdfast, as long as it is asked for nothing else."""
    record = status.record
    if record is None:
        return "holdfast takes over nothing that it cannot read"
    if status.liveness is Liveness.ALIVE and status.evidence.source == "guard":
        return "holdfast never robs a holder that has the kernel lock, whatever its age"
    if status.stale:
        return f"holdfast takes it over at once: {printable(status.reason)}"
    if status.liveness is Liveness.ALIVE:
        return "holdfast takes it over once its holder has ended, and it is old enough for its protocol"
    if status.liveness is Liveness.DEAD:
        return "holdfast takes it over as soon as it is old enough for its protocol"
    return "holdfast never takes over what it cannot know to be dead"


def heartbeat(status: Status) -> float | None:
    """Seconds between refreshes of the record, if its holder is one of holdfast and has changed nothing; else None."""
    record = status.record
    if record is None or record.marker is None or not record.marker.guarded:
        return None
    every = get(status.protocol).stale_after / 3
    return every if math.isfinite(every) else None
