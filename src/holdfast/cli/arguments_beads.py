"""What may be typed after `holdfast beads`."""

from __future__ import annotations

import argparse

from .arguments import Parser, overview_of, split
from .typed import duration

_BEADS = {
    "check": "say whether a daemon may work on DIR now; remove a dead holder's lock",
    "daemon": "run CMD at intervals, except while a tool holds the database DIR",
}
_CHECK_NOTE = """\
Prints what a daemon would log, if anything:
  Skipping database (locked by HOLDER)
  Removed stale lock (HOLDER), proceeding with sync
  Skipping database (lock check failed: REASON)

exit status: 0 proceed; 1 skip; 2 usage; 3 system error"""
_DAEMON_NOTE = """\
The lock is looked at once for each cycle, at its start; a cycle that has begun is
finished. A cycle begins when the one before has ended and DURATION since its
beginning is over. A CMD that fails is logged with its status.

TERM, INT, HUP and QUIT end the daemon: at once, or after CMD, to which they are
passed on, has ended.

exit status: 0 ended by TERM; 2 usage; 3 system error; otherwise it dies of the
signal that ended it"""


STEPS = tuple(_BEADS)


def parser(step: str) -> Parser:
    """The parser of one of `STEPS`."""
    runs = step == "daemon"
    made = Parser(
        f"holdfast beads {step}",
        "[options] DIR -- CMD [ARG ...]" if runs else "[options] DIR",
        f"{_BEADS[step][0].upper()}{_BEADS[step][1:]}.",
        _DAEMON_NOTE if runs else _CHECK_NOTE,
    )
    add = made.add_argument
    add("lock", metavar="DIR", help="directory of the database, which the lock file .exclusive-lock is in")
    if runs:
        add("--interval", type=duration, default=60.0, metavar="DURATION",
            help="from the start of a cycle to that of the next: 500ms, 30s, 1m, 2h (default: 1m)")  # fmt: skip
        add("--log", metavar="FILE", help="append log lines to FILE (default: stderr)")
        add("-v", "--verbose", action="store_true", help="log the start and the end of cycles, too")
    else:
        add("-j", "--json", action="store_true", help="print one JSON object on stdout")
        add("-q", "--quiet", action="store_true", help="print nothing; the exit status says it")
    return made


def parse(words: list[str]) -> argparse.Namespace:
    step, *words = words or [""]
    if step not in _BEADS:
        overview = overview_of("holdfast beads", "The daemon's side of the exclusive lock of beads up to 0.49.", _BEADS)
        overview.parse_args([step, *words] if step else [])  # exits: help, or an error
        overview.error(f"the command comes first, not {step!r}")
    made = parser(step)
    words, command = split(words) if step == "daemon" else (words, [])
    options = made.parse_args(words)
    if step == "daemon" and (not command or not command[0]):
        made.error("no command; write: holdfast beads daemon [options] DIR -- CMD [ARG ...]")
    options.command, options.step, options.cmd = "beads", step, command
    return options
