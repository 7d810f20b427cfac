"""What keeps a fork by another thread from coming between two steps, and what is done before a fork."""

from __future__ import annotations

import _thread
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Held where no child may be forked: between the opening of a descriptor and its entry among those that a child closes,
# and during an import, for whose end a child would wait for ever. One for all environments, and from the start, as the
# first of them may be made while another thread forks. Re-entrant, because a signal handler may fork at any point.
forking = _thread.RLock()
to_load: list[Callable[[], object]] = []
"""What loads the modules that a child needs if it has to wait, which are not loaded before. Loaded by the parent, they
are in memory once; each child that loaded them itself would have two megabytes of its own."""


def _before() -> None:
    while to_load:
        to_load.pop()()
    forking.acquire()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=forking.release, after_in_child=forking.release)
