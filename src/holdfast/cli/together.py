"""`status` and `wait` for several LOCKs. How `run` acquires several: several.py."""

from __future__ import annotations

import argparse

from .._platform import environment
from ..lock import Lock, Semaphore
from . import perform
from .foreign_views import Awaited, awaited
from .locks import each_of, lock_of, semaphore_of
from .outcome import DONE, failed, show
from .shell import tell_waited
from .target import Slots


def status_(options: argparse.Namespace) -> int:
    """Each as if it were the only one, with an empty line in between; the exit status is the highest of all."""
    worst = DONE
    for number, one in enumerate(each_of(options)):
        if number and not options.json and not options.quiet:
            show("")
        try:
            worst = max(worst, perform(one))
        except Exception as error:
            worst = max(worst, failed(error))
    return worst


def wait_(options: argparse.Namespace) -> int:
    """Wait until one look finds all of them free."""
    ones = each_of(options)
    locks = [_waited_for(one) for one in ones]
    ends = None if options.timeout is None else environment().monotonic() + options.timeout
    while True:
        for lock in locks:
            lock.wait(None if ends is None else max(0.0, ends - environment().monotonic()))
        free = [lock.wait(0) for lock in locks]
        if all(free) or (ends is not None and environment().monotonic() >= ends):
            break
    return max(_tell_waited(*row) for row in zip(locks, ones, free, strict=True))


def _waited_for(options: argparse.Namespace) -> Lock | Semaphore | Awaited:
    if options.slots is not None:
        return semaphore_of(options)
    return awaited(options) or lock_of(options, looks=True)


def _tell_waited(lock: Lock | Semaphore | Awaited, options: argparse.Namespace, free: bool) -> int:
    if isinstance(lock, Awaited):
        return lock.tell_waited()
    if isinstance(lock, Semaphore):
        return Slots(options).tell_waited(lock, free=free)
    return tell_waited(lock, options, free=free)
