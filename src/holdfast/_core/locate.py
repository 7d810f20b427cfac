"""Where the lock file is: from what the caller named, by the rules of the protocol."""

from __future__ import annotations

import os
import zlib

from ..errors import InvalidPath
from .links import followed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..protocols import Protocol

_LONGEST_NAME = 255 - len(".holdfast-.queue")


def locate(path: str | os.PathLike[str], protocol: Protocol) -> tuple[str, str]:
    """What was named, as an absolute path, and the lock file of it.

    Symbolic links are followed now, where the protocol follows them: what they are changed to later does not count.
    """
    in_directory = protocol.suffix.startswith("/")
    named = check_path(path, protocol.name, directory=in_directory)
    if protocol.refuses_parent_components and ".." in named.split("/"):
        raise InvalidPath(
            f"{named!r} has a component '..', which the {protocol.name} protocol refuses; name the directory itself",
            path=named,
            protocol=protocol.name,
        )
    if protocol.resolves == "path":
        named = followed(named, protocol.name, last=True)
    elif protocol.resolves == "directory":
        # As text first, and links after that: in this order the others do it, and would name another file otherwise.
        directory, name = os.path.split(os.path.normpath(named))
        named = os.path.join(followed(directory, protocol.name), name)
    return named, (named.rstrip("/") if in_directory else named) + protocol.suffix


def check_path(path: str | os.PathLike[str], protocol: str, *, directory: bool = False) -> str:
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
    if os.path.basename(text) in ("", ".", "..") and not directory:
        raise InvalidPath(f"{text!r} names a directory; a lock path names a file", path=text, protocol=protocol)
    return text if os.path.isabs(text) else os.path.join(os.getcwd(), text)


def queue_of(directory: str, name: str) -> str:
    """The hidden directory of those who wait for a lock, named after it as far as a file name's length allows."""
    short = os.fsencode(name)
    if len(short) > _LONGEST_NAME:
        short = short[: _LONGEST_NAME - 9] + b"~%08x" % zlib.crc32(short)
    return f"{directory}/.holdfast-{os.fsdecode(short)}.queue"
