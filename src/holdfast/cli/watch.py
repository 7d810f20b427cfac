"""`watch`: what happens to lock files, one JSON line for each event, as it happens."""

from __future__ import annotations

import argparse
import time

from . import DONE, say, show
from .following import as_line, follow, happenings
from .recording import Record
from .urls import is_url


def watch_(options: argparse.Namespace) -> int:
    """Tell until a signal, the end of the time, or the end of whoever reads."""
    if any(map(is_url, options.places)):
        from .url_watch import watch_ as watch_url

        return watch_url(options)
    until = None if options.seconds is None else time.monotonic() + options.seconds
    record = Record(options.record) if options.record is not None else None
    follower = follow(options.places or ["."])
    if follower.places.polled and not options.quiet:
        say("no events are to be had from all of these places, so they are looked at four times a second")
    for found in happenings(follower, until):
        if found:
            lines = [as_line(one) for one in found]
            if record is not None:
                for line in lines:
                    record.add(line)
            show("\n".join(lines))
    if follower.missed and not options.quiet:
        say(f"{follower.missed} acquisitions were over before they could be looked at")
    return DONE
