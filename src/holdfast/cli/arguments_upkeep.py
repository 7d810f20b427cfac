"""What may be typed after `holdfast clean`, `holdfast break` and `holdfast reap`."""

from __future__ import annotations

from .arguments import Parser

_CLEAN_NOTE = """\
Shows what is left of the dead, and why; with --yes, removes it:

  locks            proven dead; or stale by their protocol's rule, with no living
                   holder that can be seen. sidecar says of itself that its rule
                   decides nothing: there, only what is proven dead
  temporary files  of holdfast and semats processes that have ended
  queues           tickets of those who waited and have ended, empty directories
  announcements    (.reclaim) of a removal that somebody died over

Each is looked at again when it goes, and goes only if it is still what it was.
Untouched stay: what is alive, what cannot be read, what no protocol recognises,
and flock files, which are not the locks themselves. --approve-stale says that
locks may go, too, which are stale by their protocol's rule, while nothing is
known of their holders (on other hosts, for example).

exit status: 0 nothing was found, or all of it is gone; 1 something would be
removed (without --yes), or could not be; 2 usage; 3 something could not be looked
at"""
_BREAK_NOTE = """\
LOCK is the lock file, as `holdfast ls` shows it; with -p, what that protocol makes
of it. ID is from `holdfast status LOCK` or `holdfast ls --json`, and names this one
acquisition: if the lock has changed hands since, nothing is removed. Without --id,
a terminal is asked.

A lock whose holder lives and keeps its kernel lock is removed with --force only.
That does not stop the holder: it goes on, and the next one gets in beside it.

exit status: 0 removed, or nothing was there; 1 refused, or not confirmed;
2 usage, or nobody could be asked; 3 system error"""
_REAP_NOTE = """\
Removes the lock of a holdfast process the moment that process dies, for others who
would wait for their timeout. What is not proven dead is left alone. Each removal is
a line on stderr. Runs until it gets a signal; several may run at once. Under
systemd: Type=notify (examples/holdfast-reap.service).

exit status: 2 usage; 3 DIR cannot be looked at. TERM and INT end it as they end
any process"""
_WHAT = {
    "clean": "Remove what the dead have left: locks, temporary files, tickets. Without --yes, only show it.",
    "break": "Remove one lock, whoever holds it, if it is still the one that was seen.",
    "reap": "Stay, and remove the lock of each holder in DIR that dies, the moment it dies.",
}
_NOTES = {"clean": _CLEAN_NOTE, "break": _BREAK_NOTE, "reap": _REAP_NOTE}
_USAGE = {"clean": "[options] [DIR ...]", "break": "[options] LOCK", "reap": "[options] DIR"}


def parser(name: str) -> Parser:
    """One command's parser."""
    made = Parser(f"holdfast {name}", _USAGE[name], _WHAT[name], _NOTES[name])
    add = made.add_argument
    if name == "clean":
        add("places", nargs="*", metavar="DIR", help="a directory, or a lock file (default: this directory)")
        add("-y", "--yes", action="store_true", help="remove it; without, it is only shown")
        add("-r", "--recursive", action="store_true", help="look into directories of directories")
        add(
            "--approve-stale",
            action="store_true",
            help="let go, too, what is stale while nothing is known of its holder",
        )
    elif name == "break":
        add("lock", metavar="LOCK", help="the lock file, or a URL")
        add("--id", metavar="ID", help="the acquisition that is meant")
        add("-f", "--force", action="store_true", help="even if its holder lives; that one is not stopped")
        add("-p", "--protocol", metavar="NAME", help="how the lock file is written (default: by what is in it)")
    else:
        add("directory", metavar="DIR", help="the directory of the lock files")
    if name != "reap":
        form = "one object for each, on a line of its own" if name == "clean" else "one object"
        add("-j", "--json", action="store_true", help=f"print JSON on stdout: {form}")
    add("-q", "--quiet", action="store_true", help="no messages but errors")
    return made
