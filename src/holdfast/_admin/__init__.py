"""What the commands for people at work are made of: find, follow, judge, clean. Nothing that acquires imports it."""

from __future__ import annotations
