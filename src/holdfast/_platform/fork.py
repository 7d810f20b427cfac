"""What keeps a fork by another thread from coming between two steps."""

from __future__ import annotations

import _thread
import os

# Held where no child may be forked: between the opening of a descriptor and its entry among those that a child closes,
# and during an import, for whose end a child would wait for ever. One for all environments, and from the start, as the
# first of them may be made while another thread forks. Re-entrant, because a signal handler may fork at any point.
forking = _thread.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=forking.acquire, after_in_parent=forking.release, after_in_child=forking.release)
