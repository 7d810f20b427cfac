"""Paths of Windows: drives, shares, names of devices. Written with slashes, like all paths in the engine."""

from __future__ import annotations

import os

_AS_IS, _SHARE, _VOLUME, _DEVICE = "//?/", "//?/UNC/", "//?/Volume{", "//./"
_RESERVED = frozenset(
    {"CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"}
    | {f"{port}{n}" for port in ("COM", "LPT") for n in "123456789¹²³"}
)
_NOT_IN_NAMES = frozenset('<>:"|?*') | {chr(n) for n in range(32)}


def is_share(path: str) -> bool:
    """Whether an absolute path begins with a server and a share."""
    return path.startswith("//") and not path.startswith(_AS_IS)


def absolute(path: str) -> str:
    """The path with its drive, `.`, `..` and trailing blanks resolved as Windows does. ValueError says why it cannot be
    the path of a file.

    The prefix for paths that are taken as they are (`\\\\?\\`) is dropped, so that a file has one path.
    """
    text = path.replace("\\", "/")
    if text.startswith(_SHARE):
        text = "//" + text[len(_SHARE) :]
    elif text.startswith(_AS_IS) and text[len(_AS_IS) + 1 : len(_AS_IS) + 2] == ":":
        text = text[len(_AS_IS) :]
    found = os.path.abspath(text).replace("\\", "/")
    if text != path.replace("\\", "/") and found.rstrip("/") != text.rstrip("/"):
        raise ValueError("has a name that only works behind \\\\?\\")
    if found.startswith(_DEVICE) or (found.startswith(_AS_IS) and not found.startswith(_VOLUME)):
        raise ValueError("is a device")
    for name in os.path.splitdrive(found)[1].split("/"):
        if name.partition(".")[0].rstrip().upper() in _RESERVED:
            raise ValueError(f"has the component {name!r}, which is the name of a device")
        wrong = sorted(_NOT_IN_NAMES.intersection(name))
        if wrong:
            raise ValueError(f"contains {wrong[0]!r}, which no file's name may")
    return found
