"""The protocols by name: how to write, read and judge existing systems' lock files. Also recognises stray records.

Installed packages add others through the entry point group `holdfast.protocols`: the name of an entry point is the
protocol's `name`, its object an instance or a subclass of `Protocol`. They never replace holdfast's own protocols.
"""

from __future__ import annotations

from ..errors import HoldfastError, MalformedRecord, did_you_mean
from . import sema  # noqa: F401 - most locks need it; the other protocols are imported on demand
from .base import Protocol as Protocol

GROUP = "holdfast.protocols"
_BUILT_IN = {
    "beads": ("beads", "Beads"),
    "flock": ("flock", "Flock"),
    "ofd": ("flock", "Ofd"),
    "proper-lockfile": ("proper_lockfile", "ProperLockfile"),
    "sema": ("sema", "Sema"),
    "semats": ("sema", "Semats"),
    "sidecar": ("sidecar", "Sidecar"),
}
"""Module and class by name."""
_RECOGNISED = ("flock", "sema", "beads", "sidecar")
"""The order of recognition: the most liberal protocol comes last. The records of semats are those of sema."""
_made: dict[str, Protocol] = {}
_no_protocols: set[str] = set()
"""Names that `_known` did not find, such as an engine's: each search would cost an event loop milliseconds."""


def get(name: str) -> Protocol:
    """The protocol of that name, the same object each time: its `decode` reads a record, its `encode` writes one.

    ValueError, which lists all names, if there is none. HoldfastError if an installed package offers a broken one; the
    cause is chained.
    """
    try:
        return _made[name]
    except (KeyError, TypeError):
        pass
    found = (_built_in(name) or _offered(name)) if isinstance(name, str) else None
    if found is not None:
        return _made.setdefault(name, found)
    hint = did_you_mean(name, names()) if isinstance(name, str) else ""
    raise ValueError(f"unknown protocol {name!r}; holdfast speaks: {', '.join(names())}.{hint}")


def names() -> list[str]:
    """Names of all protocols, holdfast's own and those of installed packages, sorted.

    Loads nothing, but searches the installed packages, which takes some milliseconds.
    """
    from .. import plugins

    return sorted(_BUILT_IN.keys() | plugins.names(GROUP))


def _built_in(name: str) -> Protocol | None:
    if name not in _BUILT_IN:
        return None
    module, kind = _BUILT_IN[name]
    # Not by `importlib`, which would have to be loaded first.
    made: Protocol = getattr(__import__(f"{__name__}.{module}", fromlist=[kind]), kind)()
    return made


def _offered(name: str) -> Protocol | None:
    """The protocol that an installed package has by that name; None if there is none."""

    def wrong(found: Protocol) -> str:
        return "" if found.name == name else f"calls itself {found.name!r}; the two names must be one"

    from .. import plugins

    return plugins.find(GROUP, Protocol, name, ", or choose another protocol", wrong)  # type: ignore[type-abstract]


def is_persistent(name: object) -> bool:
    """Whether locks of the protocol of that name are pure kernel locks; False for an unknown name."""
    found = _known(name)
    return found is not None and found.persistent


def is_kept_fresh(name: object) -> bool:
    """Whether every holder of the protocol of that name keeps its lock fresh; False for an unknown name."""
    found = _known(name)
    return found is not None and found.all_beat


def _known(name: object) -> Protocol | None:
    if not isinstance(name, str) or (name in _no_protocols and name not in _made):
        return None
    try:
        return get(name)
    except (ValueError, HoldfastError):
        _no_protocols.add(name)
        return None


def recognise(data: bytes) -> str | None:
    """The protocol whose record `data` looks like, for the message about a mismatch; None if there is none.

    `sema` stands for `semats` as well. Protocols of installed packages are not tried.
    """
    is_object = data.lstrip(b" \t\r\n").startswith(b"{")
    for name in _RECOGNISED:
        if name in ("beads", "sidecar") and not is_object:
            break
        try:
            if get(name).decode(data).legible:
                return name
        except MalformedRecord:
            if name == "beads" and b'"holder"' in data and b'"started_at"' in data:
                return name  # a damaged one is not a sidecar, whose payload may be any object
            continue
    return None
