"""The protocols: how lock files of existing systems are written, read and judged."""

from .base import Protocol
from .registry import get, is_persistent, names, recognise

__all__ = ["Protocol", "get", "is_persistent", "names", "recognise"]
