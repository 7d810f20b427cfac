"""Which protocols there are, and which one a stray record belongs to."""

from __future__ import annotations

from ..errors import MalformedRecord
from .base import Protocol
from .flock import Flock
from .sema import Sema

_PROTOCOLS: dict[str, Protocol] = {"flock": Flock(), "sema": Sema()}
"""In the order in which a stray record is recognised: what is read liberally comes last."""


def get(name: str) -> Protocol:
    """The protocol of that name; ValueError names those that exist."""
    try:
        return _PROTOCOLS[name]
    except (KeyError, TypeError):
        raise ValueError(f"unknown protocol {name!r}; holdfast speaks: {', '.join(names())}") from None


def names() -> list[str]:
    """Names of all protocols, sorted."""
    return sorted(_PROTOCOLS)


def is_persistent(name: str) -> bool:
    """Whether locks of the protocol of that name are the kernel's alone; False for a name that is none."""
    protocol = _PROTOCOLS.get(name)
    return protocol is not None and protocol.persistent


def recognise(data: bytes) -> str | None:
    """Whose record `data` looks like, for the message about a mismatch; None when nobody's."""
    for name, protocol in _PROTOCOLS.items():
        try:
            protocol.decode(data)
        except MalformedRecord:
            continue
        return name
    text = data.strip()
    if text.startswith(b"{") and text.endswith(b"}"):
        # The two published JSON protocols; beads is the one whose record names its holder.
        return "beads" if b'"holder"' in text and b'"started_at"' in text else "sidecar"
    return None
