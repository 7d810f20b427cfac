"""What has happened in a run, in words."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .world import World

_LONGEST = 60
_NAMED = {"write", "shared", "readers"}


def described(name: str, args: tuple[Any, ...], named: dict[str, Any], result: object) -> str:
    """One step: `name(arguments) -> result`, or the error that it gave."""
    words = [_short(arg) for arg in args]
    words += [f"{key}={value}" for key, value in named.items() if key in _NAMED and value]
    if isinstance(result, OSError):
        said = f"!! {errno.errorcode.get(result.errno or 0, result)}"
    elif result is None:
        said = ""
    elif name in ("stat", "fstat"):
        stat: Any = result
        said = f"-> inode {stat.st_ino}, {stat.st_size} bytes"
    elif name == "inspect":
        seen: Any = result
        said = f"-> {seen.presence.value}"
    elif name == "watch":
        watch: Any = result
        said = f"-> watch on inode {watch.inode.number}"
    else:
        said = f"-> {_short(result)}"
    return f"{name}({', '.join(words)}) {said}".rstrip()


def story(world: World) -> str:
    """The whole run, a step a line: time in milliseconds, who, what."""
    assert world.trace is not None
    width = max((len(who) for _, who, _ in world.trace), default=0)
    return "\n".join(f"{(now - 1000) * 1000:10.3f} ms  {who:{width}}  {text}" for now, who, text in world.trace)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]}…{text[-1]}"
