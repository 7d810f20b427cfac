"""What may be typed after `holdfast watch`, `holdfast top` and `holdfast timeline`."""

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
_TOP_NOTE = """\
A row is a lock that is held, stale or waited for, with its holder, since when, and
who waits for how long. A directory is looked at one level deep; LOCK need not be
there yet. A pattern also means the names that come later. Rows change as things
happen; no lock is taken and nobody is woken.

keys: q quit; s sort by the next key; r reverse; arrows and page keys move; ? help

Without a terminal on stdout, or with --once, it prints how things are, and ends.

exit status: 0 done; 2 usage; 3 something could not be watched or written"""
_NOTES = {"watch": _WATCH_NOTE, "top": _TOP_NOTE, "timeline": _TIMELINE_NOTE}
_USAGE = {
    "watch": "[options] [DIR|GLOB|LOCK ...]",
    "top": "[options] [DIR|GLOB|LOCK ...]",
    "timeline": "[options] EVENTS",
}
SORTS = ("wait", "held", "waiters", "path", "pid", "state")
_WHAT = {
    "top": "Show who holds which lock, and who waits, as it changes.",
    "watch": "Tell what happens to lock files, as it happens.",
    "timeline": "Draw recorded events: who held which lock, and who waited, when.",
}


def parser(name: str) -> Parser:
    """One command's parser."""
    made = Parser(f"holdfast {name}", _USAGE[name], _WHAT[name], _NOTES[name])
    add = made.add_argument
    if name == "watch":
        add("places", nargs="*", metavar="DIR",
            help="directory, pattern, lock file or one URL (default: this directory)")  # fmt: skip
    elif name == "top":
        add("places", nargs="*", metavar="DIR", help="directory, pattern or lock file (default: this directory)")
    if name == "top":
        add("--sort", choices=SORTS, default="wait", metavar="KEY",
            help="order: wait (longest first), held (longest first), waiters (most first), path, pid, state "
            "(default: wait)")  # fmt: skip
        add("-r", "--reverse", action="store_true", help="the other way round")
        add("--once", action="store_true", help="print how things are, and end")
        add("-j", "--json", action="store_true", help="the same as JSON, as ls --json: one object on a line for each")
        add("--record", metavar="FILE", help="append what happens to FILE, as watch --record")
    elif name == "watch":
        add("--seconds", type=seconds, metavar="N", help="end after so many seconds (default: a signal ends it)")
        add("--record", metavar="FILE", help="append the events to FILE, too")
    else:
        add("events", metavar="EVENTS", help="a file of events")
        add("-o", "--output", metavar="PAGE", help="where the page goes (default: EVENTS.html); - is stdout")
    add("-q", "--quiet", action="store_true", help="no messages but errors")
    return made


def check(made: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """What excludes each other."""
    if options.command == "top" and options.record is not None and (options.once or options.json):
        made.error("--record belongs to the live view; holdfast watch --record needs no terminal")
