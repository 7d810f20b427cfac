"""Which acquisition it is: a short name for what was seen at a path, to say later "this one, and no other".

I1  The name stays as long as an acquisition lasts. What a heartbeat rewrites is left out: the timestamp in the record
    of a holdfast process, and the times of the file. Others refresh nothing that is in their record.
I2  Another acquisition has another name. Another process, or the same one at another pid, writes another record. One
    process that acquires again may write the same record, and get the same inode number for it; but its file was born
    at another time. A takeover in place keeps the inode, and changes the record. Where a filesystem keeps no times of
    birth, two acquisitions of one process with one tag may have the same name.
I3  The name is of the record that was seen and of the file that the path names now. Where these two are not of one
    acquisition, it is nobody's name.
"""

from __future__ import annotations

from .._core.environment import Environment
from ..errors import MalformedRecord
from ..protocols import get, is_persistent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from ..model import Status

    class Registry(Environment, Protocol):
        """An environment that can tell a file from those that had its place and its number before."""

        def born(self, path: str) -> str | None: ...


_BYTES = 6
"""As twelve hexadecimal digits: short enough to be typed, too long to be met by chance."""


def id_of(env: Registry, status: Status) -> str | None:
    """The name of the acquisition that `status` is about; None where there is none, or it is the kernel's alone."""
    if not (status.locked or status.stale) or is_persistent(status.protocol):
        return None
    return name_of(env, status.path, status.protocol, status.data)


def name_of(env: Registry, path: str, protocol: str, data: bytes) -> str | None:
    """The name of the acquisition with the record `data` in the file at the path; None where nothing is there."""
    file = env.born(path)
    if file is None:
        return None
    from hashlib import blake2b

    return blake2b(file.encode() + b"\0" + _lasting(env, protocol, data), digest_size=_BYTES).hexdigest()


def _lasting(env: Environment, protocol: str, data: bytes) -> bytes:
    """The record without what a heartbeat rewrites (I1)."""
    if not protocol or not data:
        return data
    speaks = get(protocol)
    try:
        if not speaks.decode(data).marked:
            return data
    except MalformedRecord:
        return data
    fresh = speaks.refreshed(data, env.time())
    if fresh is None:
        return data
    offset, digits = fresh
    return data[:offset] + data[offset + len(digits) :]
