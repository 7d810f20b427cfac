"""The event loop that waits for the step that runs now, unless the thread itself does.

Apart from the other values, as only waiters need it: `_contextvars` is a shared library in many a Python.
"""

from __future__ import annotations

from _contextvars import ContextVar

waiting_loop: ContextVar[int] = ContextVar("waiting_loop", default=0)
"""The id of the event loop, or 0 for the thread."""
