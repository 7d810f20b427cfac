"""The protocols: how to write, read and judge the lock files of existing systems."""

from .base import Protocol
from .registry import get, is_persistent, names, recognise

__all__ = ["Protocol", "get", "is_persistent", "names", "recognise"]
