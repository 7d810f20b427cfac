"""What dead processes have left beside lock files, in the words of `doctor`; remains.py decides what that is."""

from __future__ import annotations

from .._core.environment import Environment
from .diagnosis import GOOD, NOTE, WEAKER, Finding
from .remains import ANNOUNCEMENT, TEMPORARY, TICKET, Leftover, beside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN = 3
_KINDS = {
    (TEMPORARY, ""): ("our temporary files", NOTE, "they do no harm; the next takeover, or holdfast clean"),
    (TEMPORARY, "semats"): ("temporary files of semats", NOTE, "they do no harm; semats clean, or holdfast clean"),
    (ANNOUNCEMENT, "sidecar"): (
        "announced removals",
        WEAKER,
        "fs-safe waits for them for ever, also if the lock is free; holdfast clean, or remove them",
    ),
    (TICKET, ""): ("tickets", NOTE, "the next one who waits for that lock removes them"),
}
"""By the kind of leftover and its protocol: what it is called, how much it matters, what becomes of it."""


def of_leftovers(env: Environment, directory: str) -> Iterator[Finding]:
    """One finding for each kind."""
    left: dict[tuple[str, str], list[str]] = {}
    for one in beside(env, directory):
        if isinstance(one, Leftover):
            left.setdefault((one.kind, one.protocol), []).append(one.path.removeprefix(directory).lstrip("/"))
    found = False
    for kind, (name, level, means) in _KINDS.items():
        paths = left.get(kind, [])
        if paths:
            found = True
            shown = ", ".join(paths[:_SHOWN]) + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")
            yield Finding("leftovers", level, f"{name} of dead processes: {shown}", means)
    if not found:
        yield Finding("leftovers", GOOD, "nothing was left here by dead processes")
