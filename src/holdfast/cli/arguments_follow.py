"""What may be typed after `holdfast watch` and `holdfast timeline`."""

from __future__ import annotations

import argparse

from .arguments import Parser
from .typed import seconds

_WATCH_NOTE = """\
A directory is watched one level deep. LOCK need not be there yet; LOCK.lock and the
slots of a semaphore LOCK are meant as well. Each event is one line of JSON on stdout
(docs/timeline.md): first what is so now, marked "first_look"; then waiting, acquired,
released, reclaimed, stale, lost, gave-up. It works for holders in any language, takes
no lock and wakes nobody. What is acquired and released within a few milliseconds may
be missed; the number is told at the end.

exit status: 0 the time is up; 2 usage; 3 something could not be watched or written"""
_TIMELINE_NOTE = """\
EVENTS comes from --record of watch or run; - is stdin. The page needs no network.
Lines that are no events are counted and named.

exit status: 0 done; 2 usage; 3 EVENTS has no event, or a file could not be read or
written"""
_NOTES = {"watch": _WATCH_NOTE, "timeline": _TIMELINE_NOTE}
_USAGE = {"watch": "[options] [DIR|LOCK ...]", "timeline": "[options] EVENTS"}
_WHAT = {
    "watch": "Tell what happens to lock files, as it happens.",
    "timeline": "Draw recorded events: who held which lock, and who waited, when.",
}


def parser(name: str) -> argparse.ArgumentParser:
    """One command's parser."""
    made = Parser(f"holdfast {name}", _USAGE[name], _WHAT[name], _NOTES[name])
    add = made.add_argument
    if name == "watch":
        add("places", nargs="*", metavar="DIR", help="directory, lock file or one URL (default: this directory)")
        add("--seconds", type=seconds, metavar="N", help="end after so many seconds (default: a signal ends it)")
        add("--record", metavar="FILE", help="append the events to FILE, too")
    else:
        add("events", metavar="EVENTS", help="a file of events")
        add("-o", "--output", metavar="PAGE", help="where the page goes (default: EVENTS.html); - is stdout")
    add("-q", "--quiet", action="store_true", help="no messages but errors")
    return made
