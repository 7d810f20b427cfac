"""What may be typed after `holdfast ls` and `holdfast doctor`."""

from __future__ import annotations

from .arguments import Parser

_LS_NOTE = """\
A directory is looked through one level deep, or with -r to the bottom; hidden
directories too, but no symbolic links are followed. What counts as a lock file:
a record of one of the protocols; a record that is damaged, under a name that lock
files have, or may not be read, or is empty; and any file that is locked by the
kernel at this moment. Files of text or data are none, whatever they are called.
With -r, so that a whole disk can be looked through: of files that are not locked by
the kernel, those are passed over that are called like text, data or programs
(.txt, .json, .py, .so, .gz and others), and those without a lock's name that are
larger than 64 KiB or may not be written by their owner. The kernel's own
filesystems are not entered. What takes long is shown as it is found, if it is one
directory in the order of paths.

states: held, dead (proven: the next contender takes it over at once), stale (by
its protocol's rule), elsewhere (held, as far as can be known, on another host or
in another container), malformed (counts as held), empty (an empty *.lock file: by
-p flock nobody holds it, by all other protocols it counts as held), free (a flock
file that nobody holds)

exit status: 0 done, also if nothing was found; 2 usage; 3 something could not be
read"""
_DOCTOR_NOTE = """\
Each probe uses files of its own in DIR, and leaves none.

exit status: 0 all promises hold; 1 some are weaker, or something is amiss;
2 usage; 3 DIR cannot be used for locks"""
_NOTES = {"ls": _LS_NOTE, "doctor": _DOCTOR_NOTE}
_USAGE = {"ls": "[options] [DIR|GLOB|LOCK ...]", "doctor": "[options] [DIR]"}
_WHAT = {
    "ls": "List lock files: who holds them, for how long, and who waits.",
    "doctor": "Say what the filesystem of DIR can do for locks, what that means, and what is amiss.",
}
SORTS = ("age", "path", "pid", "state")


def parser(name: str) -> Parser:
    """One command's parser."""
    made = Parser(f"holdfast {name}", _USAGE[name], _WHAT[name], _NOTES[name])
    add = made.add_argument
    if name == "ls":
        add("places", nargs="*", metavar="DIR", help="directory, pattern, lock file or URL (default: this directory)")
        add("-r", "--recursive", action="store_true", help="look into directories of directories")
        add("--held", action="store_true", help="only those that a contender would not get")
        add("--stale", action="store_true", help="only those that a contender would take over")
        add("--sort", choices=SORTS, default="path", metavar="KEY",
            help="order: age (oldest first), path, pid, state (default: path)")  # fmt: skip
    else:
        add(
            "place",
            nargs="?",
            default=".",
            metavar="DIR",
            help="a directory for lock files, or a URL (default: this directory)",
        )
    form = "one object for each, on a line of its own" if name == "ls" else "one object"
    add("-j", "--json", action="store_true", help=f"print JSON on stdout: {form}")
    add("-q", "--quiet", action="store_true", help="no messages but errors")
    return made
