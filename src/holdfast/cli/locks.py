"""The locks that were described by what was typed. What else LOCK may mean, and what commands do with it: target.py."""

from __future__ import annotations

import os

from ..engines import scheme_of
from ..lock import Lock, Semaphore, announce
from .outcome import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any, TypeVar

    from .._core.attempt import Refusal
    from ..lock import Resource

    R = TypeVar("R", bound=Resource)

_OF_LOCK = (
    *("protocol", "tag", "stale", "stale_after", "mode", "durable", "fencing", "lease", "shared", "parents"),
    *("payload", "holder", "version", "realpath", "range"),
)


def is_url(text: str | None) -> bool:
    """Whether a word means a lock on a server. A file of such a name is `./NAME`."""
    return text is not None and bool(scheme_of(text))


def is_lock_file(options: argparse.Namespace) -> bool:
    """Whether a command is about one lock file, or a directory, and about nothing else."""
    if getattr(options, "slots", None) is not None:
        return False
    words = [getattr(options, name, None) for name in ("lock", "place", "directory")]
    return not any(map(is_url, [*words, *getattr(options, "places", ())]))


def absolute(place: str) -> str:
    """The path of a file or directory as the engine writes it: with slashes on every system."""
    return os.path.abspath(place).replace(os.sep, "/")


def lock_options(options: argparse.Namespace) -> dict[str, Any]:
    """The options of `Lock` among those of a command."""
    found = {name: value for name in _OF_LOCK if (value := getattr(options, name, None)) is not None}
    if is_url(options.lock):  # an engine refuses what it does not have, and a switch that is off is nothing to refuse
        return {name: value for name, value in found.items() if value is not False}
    return found


def lock_of(options: argparse.Namespace, **more: Any) -> Lock:
    """The lock that the options describe; its wait is announced after a second."""
    return _announced(Lock(options.lock, **lock_options(options), **more), options)


def semaphore_of(options: argparse.Namespace, **more: Any) -> Semaphore:
    """The same with `--slots`."""
    return _announced(Semaphore(options.lock, options.slots, **lock_options(options), **more), options)


def _announced(lock: R, options: argparse.Namespace) -> R:
    announce(lock, None if options.quiet else _tell_waiting)
    return lock


def _tell_waiting(refusal: Refusal) -> None:
    from .._core.messages import waiting

    say(waiting(refusal))
