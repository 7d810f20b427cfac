"""The operating system, and the only place that knows which one it is."""

from __future__ import annotations

import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._operator.findings import Census
    from .folders import FolderWatch
    from .generic import GenericEnvironment

_current: GenericEnvironment | None = None
# Held where no child may be forked: between the opening of a descriptor and its entry among those that a child closes,
# and during an import, for whose end a child would wait for ever. One for all environments, and from the start, as the
# first of them may be made while another thread forks. Re-entrant, because a signal handler may fork at any point.
forking = _thread.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=forking.acquire, after_in_parent=forking.release, after_in_child=forking.release)


def environment() -> GenericEnvironment:
    """This process's environment, made at first use.

    `HOLDFAST_OS=generic` forces the portable one; `HOLDFAST_WITHOUT` names abilities to do without, for tests and for
    finding out whether one of them is at fault: `unnamed, proc, link, flock, events`.
    """
    if _current is None:
        with forking:
            if _current is None:
                _make()
    assert _current is not None
    return _current


def _make() -> None:
    global _current
    without = frozenset(filter(None, os.environ.get("HOLDFAST_WITHOUT", "").split(",")))
    forced = os.environ.get("HOLDFAST_OS", "")
    if sys.platform == "linux" and forced != "generic":
        from .linux import LinuxEnvironment

        _current = LinuxEnvironment(without)
    else:
        from .generic import GenericEnvironment

        _current = GenericEnvironment(without)


def folder_watch() -> FolderWatch | None:
    """Events of whole directories, on an instance of its own; None where there are none, or no instance is left."""
    env = environment()
    if not env.guards or "events" in env.without:  # the portable one has neither
        return None
    from .folders import FolderWatch

    try:
        return FolderWatch()
    except OSError:
        return None


def kernel_glimpse() -> Census:
    """What the kernel's tables say of a few files, at the price of reading one table."""
    env = environment()
    if not env.guards:
        census: Census = env.census()
        return census
    from .glimpse import Glimpse

    return Glimpse(env)  # type: ignore[arg-type]  # only that of Linux has guards
