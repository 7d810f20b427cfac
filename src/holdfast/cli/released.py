"""What `release` has come to, for lock files and for locks on servers: how it is told, and the exit status."""

from __future__ import annotations

import argparse

from ..lock import Lock
from ..model import Status
from . import DONE, HELD, say, show
from .output import as_json


def tell_released(options: argparse.Namespace, lock: Lock, before: Status, result: str) -> int:
    """It is free, or has been before."""
    if options.json:
        show(as_json(result, before))
    if options.verbose:
        say(f"{lock.path}: {result}")
    return DONE


def tell_refused(options: argparse.Namespace, before: Status, why: str) -> int:
    """It stays as it is."""
    if options.json:
        show(as_json("refused", before))
    else:
        say(why)
    return HELD
