"""Parts of the operator's commands: find, follow, judge, clean. No code that acquires imports them."""

from __future__ import annotations
