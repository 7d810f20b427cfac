"""Where locks are stored: in files, unless the resource is a URL whose scheme names another engine."""

from .base import Engine as Engine
from .registry import engine_of as engine_of
from .registry import names as names
