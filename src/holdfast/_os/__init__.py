"""The operating system, and the only place that knows which one it is."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .generic import GenericEnvironment

_current: GenericEnvironment | None = None


def environment() -> GenericEnvironment:
    """This process's environment, made at first use.

    `HOLDFAST_OS=generic` forces the portable one; `HOLDFAST_WITHOUT` names abilities to do without, for tests and for
    finding out whether one of them is at fault: `unnamed, proc, link, flock, events`.
    """
    global _current
    if _current is None:
        without = frozenset(filter(None, os.environ.get("HOLDFAST_WITHOUT", "").split(",")))
        forced = os.environ.get("HOLDFAST_OS", "")
        if sys.platform == "linux" and forced != "generic":
            from .linux import LinuxEnvironment

            _current = LinuxEnvironment(without)
        else:
            from .generic import GenericEnvironment

            _current = GenericEnvironment(without)
    return _current
