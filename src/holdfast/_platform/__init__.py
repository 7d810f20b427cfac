"""The operating system, and the only place that knows which one it is."""

from __future__ import annotations

import os
import sys

from .fork import forking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .portable import GenericEnvironment

_current: GenericEnvironment | None = None


def environment() -> GenericEnvironment:
    """This process's environment, made at first use.

    `HOLDFAST_OS=generic` forces the portable one, `HOLDFAST_OS=posix` that of macOS and the BSDs; `HOLDFAST_WITHOUT`
    names abilities to do without, for tests and for finding out whether one of them is at fault: `unnamed, proc, link,
    flock, events`. ValueError for another value: a process that ignored it would not agree with the others.
    """
    if _current is None:
        with forking:
            if _current is None:
                _make()
    assert _current is not None
    return _current


def _make() -> None:
    global _current
    without = _known("HOLDFAST_WITHOUT", ("unnamed", "proc", "link", "flock", "events"))
    forced = "".join(_known("HOLDFAST_OS", ("generic", "posix")))
    if forced == "generic":
        from .portable import GenericEnvironment

        _current = GenericEnvironment(without)
    elif sys.platform == "linux" and forced != "posix":
        from .linux import LinuxEnvironment

        _current = LinuxEnvironment(without)
    elif sys.platform == "win32":
        from .windows import WindowsEnvironment

        _current = WindowsEnvironment(without)
    else:
        from .posix import PosixEnvironment

        _current = PosixEnvironment(without)


def _known(variable: str, values: tuple[str, ...]) -> frozenset[str]:
    """What a variable of the environment names."""
    given = frozenset(filter(None, os.environ.get(variable, "").split(",")))
    if not given.issubset(values):
        raise ValueError(f"{variable}={os.environ[variable]}: expected one of {', '.join(values)}")
    return given
