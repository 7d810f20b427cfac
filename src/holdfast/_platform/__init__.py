"""The operating system, and the only place that knows which one it is."""

from __future__ import annotations

import os
import sys

from .fork import forking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

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
    forced = os.environ.get("HOLDFAST_OS", "")
    _require_known("HOLDFAST_OS", [forced], ("generic", "posix"))
    without = frozenset(os.environ.get("HOLDFAST_WITHOUT", "").split(",")) - {""}
    _require_known("HOLDFAST_WITHOUT", without, ("unnamed", "proc", "link", "flock", "events"))
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


def _require_known(variable: str, given: Iterable[str], values: tuple[str, ...]) -> None:
    """Raise ValueError if a variable of the environment names something else."""
    if not {"", *values}.issuperset(given):
        raise ValueError(f"{variable}={os.environ[variable]}: expected one of {', '.join(values)}")
