"""What may be typed: every command, its options, and what its help says. Each option is spelled once.

A parser is made of one row of a table, for the one command that runs: making all of them took longer than acquiring a
lock. Help is as wide as the terminal: paragraphs and lists are folded where they do not fit, and else left as written.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from textwrap import wrap

from .. import protocols
from ..errors import HoldfastError
from .outcome import HELD, HELD_RUN, masked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn

# -- values as they are typed ------------------------------------------------------------------------------------------


def seconds(text: str) -> float:
    value = number(text)
    if math.isnan(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 up")
    return value


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(text: str) -> float:
    if not re.fullmatch(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|s|m|h))+", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a duration; write it as 500ms, 30s, 1m, 2h or 1h30m")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9.]+)(ms|s|m|h)", text))
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no time at all")
    return seconds


def payload(text: str) -> dict[str, Any]:
    import json

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    try:
        value = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"it is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("it is not a JSON object: write {...}")
    return value


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None


def code(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 3 or int(text) > 255:
        raise argparse.ArgumentTypeError(f"{text!r} is not an exit status from 0 to 255")
    return int(text)


def slots(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 4 or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 1000")
    return int(text)


def pid(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 10 or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a process id")
    return int(text)


def mode(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an octal mode, such as 644") from None


# -- help as wide as the terminal ------------------------------------------------------------------------------------

_ITEM = r"( +\S+(?: \S+)? {2,})(\S.*)"
"""A name, and what is said of it."""


class _Part:
    """A paragraph, an item of a list, or (`whole`) a line that has to stay one."""

    def __init__(self, lead: str, text: str, *, whole: bool = False) -> None:
        self.lead = lead
        self.text = text
        self.whole = whole

    def folded(self, width: int) -> list[str]:
        if self.whole:
            return [self.lead + self.text]
        room = max(10, width - len(self.lead))
        lines = wrap(self.text, room, break_on_hyphens=False, break_long_words=False) or [""]
        return [(self.lead if number == 0 else " " * len(self.lead)) + line for number, line in enumerate(lines)]


def folded(text: str, width: int) -> str:
    """Blank lines stay; so do indented lines that are no items, such as commands to be copied."""
    blocks = []
    for block in text.split("\n\n"):
        lines = block.split("\n")
        if all(len(line) <= width for line in lines):
            blocks.append(block)
        else:
            blocks.append("\n".join(line for part in _parts(lines) for line in part.folded(width)))
    return "\n\n".join(blocks)


def _parts(lines: list[str]) -> list[_Part]:
    parts: list[_Part] = []
    for line in lines:
        text = line.lstrip()
        indent = len(line) - len(text)
        item = re.fullmatch(_ITEM, line)
        last = parts[-1] if parts else None
        if last is not None and not last.whole and indent == len(last.lead):
            last.text += f" {text}"
        elif item:
            parts.append(_Part(item[1], item[2]))
        else:
            parts.append(_Part(line[:indent], text, whole=bool(indent)))
    return parts


# -- what the help says ------------------------------------------------------------------------------------------------

_COMMANDS = {
    "run": "hold LOCK while CMD runs; end as CMD ends",
    "try": "acquire LOCK for the calling shell if it is free",
    "acquire": "acquire LOCK for the calling shell, waiting for it",
    "release": "release LOCK, acquired by try or acquire",
    "wait": "wait until LOCK is free, without acquiring it",
    "status": "show who holds LOCK, since when, why, and how that is known",
}
_OTHERS = {
    "ls": "list lock files: who holds them, for how long, and who waits",
    "watch": "tell what happens to lock files, as it happens",
    "top": "show who holds and who waits, live",
    "timeline": "draw recorded events as a page: who held, who waited, when",
    "doctor": "say what the filesystem of a directory can do for locks, and what is amiss",
    "clean": "remove what the dead have left: locks, temporary files, tickets",
    "break": "remove one lock, if it is still the one that was seen",
    "reap": "stay, and remove the locks of holders that die, at once",
    "postgresql": "init: prepare a PostgreSQL database for locks",
    "completion": "print what makes a shell complete the words of this command line",
}
_DROP_INS = {
    "beads": "check, daemon: the daemon's side of the lock of beads up to 0.49",
    "sema": "the command line of the sema tool",
    "semats": "the command line of the semats tool",
}
SUMMARIES = {**_COMMANDS, **_OTHERS, **_DROP_INS}
BEADS = {
    "check": "say whether a daemon may work on DIR now; remove a dead holder's lock",
    "daemon": "run CMD at intervals, except while a tool holds the database DIR",
}
_PROTOCOLS = {
    "sema": "LOCK is the lock file (the default)",
    "semats": "the same records; where LOCK is a symbolic link, the lock is where it leads",
    "sidecar": "LOCK is a file to protect; its lock file LOCK.lock holds a JSON payload",
    "beads": "LOCK is the directory of a database; keeps the daemon of beads up to 0.49 away (--holder)",
    "flock": "LOCK is a file that stays; the kernel's lock on it is the lock, as flock(1)",
}
_RUN_NOTE = """\
TERM, INT, HUP, QUIT, USR1 and USR2 are passed on to CMD. CMD sees HOLDFAST_LOCK,
the path, and HOLDFAST_RECOVERED, the pid of the dead holder that was replaced, if
there was one. If this process is killed, the lock stays held until CMD and all that
it has started has ended. If the lock is lost, they get TERM, what has not ended
--kill-after seconds later gets KILL, and the exit status is 4. HOLDFAST_TOKEN is
the fencing token, with --fencing or on a server.

This process ends as soon as CMD has ended. What CMD has left in the background
keeps the lock, unless it has made a session of its own, as daemons do: --until.

With --slots N, up to N may run at once: LOCK names a semaphore, whose lock files
are LOCK.0.lock, LOCK.1.lock and so on. HOLDFAST_LOCK is the one of CMD's slot, and
HOLDFAST_SLOT its number, from 0.

exit status: that of CMD; 75 held or timed out (-E); 2 usage; 3 system error;
4 lock lost; 126, 127 CMD cannot be run"""
_SHELL_NOTE = """\
The lock is bound to the calling shell, or to --owner-pid: a small process, its
keeper, guards it and keeps it fresh for as long as that process lives, and
releases it when that process ends, however it ends. Which process that is, a line
on stderr says (not with -q, -j or --owner-pid). A caller that is no shell (timeout,
xargs, sudo, ssh, make, a program), or a shell that has nothing else to do, as in
sh -c 'holdfast try LOCK', is refused with status 2, since the lock would end with
it at once: give --owner-pid $$ to this command and to release, or use holdfast run.

If the keeper alone is killed, the lock is free, although its owner lives. With
--no-keeper, and where there are no kernel locks, only the file is left: it counts
as free when the owner has ended, and other implementations may reclaim it, although
the owner lives, at the age that their protocol states (sema: 3600 s).

exit status: 0 acquired; 1 held or timed out (-E); 2 usage; 3 system error"""
_RELEASE_NOTE = "exit status: 0 released, or nobody held it; 1 held by another; 2 usage; 3 system error"
_WAIT_NOTE = "exit status: 0 free; 1 still held when the time was up (-E); 2 usage; 3 system error"
_STATUS_NOTE = """\
If there is no LOCK, but there are lock files LOCK.0.lock and so on, they are shown
as the slots of a semaphore.

exit status: 0 a contender would get it; 1 held; 2 usage; 3 system error, or it is a
lock of another protocol, which nobody can acquire by this one"""
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
_WATCH_NOTE = """\
A directory is watched one level deep. LOCK need not be there yet; LOCK.lock and the
slots of a semaphore LOCK are meant as well. Each event is one line of JSON on stdout
(docs/timeline.md): first what is so now, marked "first_look"; then waiting, acquired,
released, reclaimed, stale, lost, gave-up. It works for holders in any language, takes
no lock and wakes nobody. What is acquired and released within a few milliseconds may
be missed; the number is told at the end.

exit status: 0 the time is up; 2 usage; 3 something could not be watched or written"""
_TOP_NOTE = """\
A row is a lock that is held, stale or waited for, with its holder, since when, and
who waits for how long. A directory is looked at one level deep; LOCK need not be
there yet. A pattern also means the names that come later. Rows change as things
happen; no lock is taken and nobody is woken.

keys: q quit; s sort by the next key; r reverse; arrows and page keys move; ? help

Without a terminal on stdout, or with --once, it prints how things are, and ends.

exit status: 0 done; 2 usage; 3 something could not be watched or written"""
_TIMELINE_NOTE = """\
EVENTS comes from --record of watch or run; - is stdin. The page needs no network.
Lines that are no events are counted and named.

exit status: 0 done; 2 usage; 3 EVENTS has no event, or a file could not be read or
written"""
_DOCTOR_NOTE = """\
Each probe uses files of its own in DIR, and leaves none.

exit status: 0 all promises hold; 1 some are weaker, or something is amiss;
2 usage; 3 DIR cannot be used for locks"""
_CLEAN_NOTE = """\
Shows what is left of the dead, and why; with --yes, removes it:

  locks            proven dead; or stale by their protocol's rule, with no living
                   holder that can be seen. sidecar says of itself that its rule
                   decides nothing: there, only what is proven dead
  temporary files  of holdfast and semats processes that have ended
  queues           tickets of waiters that have ended, empty directories
  announcements    (.reclaim) of a removal whose process died

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
_POSTGRESQL_NOTE = """\
init makes, in the database of URL, the schema and the table that locks need there,
if they are not there yet; it changes nothing else, and may be run again. Roles that
use locks need rights there, which --grant gives them, also where all is there. --print
is for a migration, or for an administrator who runs it: psql takes it. URL is that
of any lock there, or without a lock's name: postgresql://user@host/database. The
schema is the one in the URL (?schema=NAME), or holdfast; with another one, all locks
need that in their URL. Passwords belong into ~/.pgpass (PGPASSFILE) or PGPASSWORD:
lists of processes show what is typed.

exit status: 0 all is there; 2 usage; 3 the server cannot be reached, or refuses"""
_COMPLETION_NOTE = """\
For one session:
  bash: eval "$(holdfast completion bash)"
  zsh:  eval "$(holdfast completion zsh)"          (after compinit)
  fish: holdfast completion fish | source

For good:
  bash: holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast
  zsh:  holdfast completion zsh > DIR/_holdfast    (DIR is in $fpath)
  fish: holdfast completion fish > ~/.config/fish/completions/holdfast.fish

exit status: 0 printed; 2 usage; 3 it could not be written"""
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

# -- the options -------------------------------------------------------------------------------------------------------


def _option(spelled: str, text: str, **more: Any) -> tuple[list[str], dict[str, Any]]:
    """As argparse takes it: `-n --name`, a switch; `-n --name=VALUE`; `name=SHOWN`, an operand."""
    flags, _, metavar = spelled.partition("=")
    if metavar:
        more["metavar"] = metavar
    elif "choices" not in more:
        more["action"] = "store_true"
    return flags.split(), {"help": text, **more}


SHELLS = ("bash", "zsh", "fish")
SORTS = ("wait", "held", "waiters", "path", "pid", "state")
_HELD = "exit status when it is held or the time is up (default: {})"
_TAKEN = (
    "when to take over another's lock: once its holder is proven dead, or the protocol's rule calls it stale and its "
    "holder is not known to live; by that rule alone; or never (default: safe)"
)
_UNTIL = (
    "what has to end before LOCK is free: CMD; CMD and what it leaves in this session, so no daemons; or all that it "
    "has started (default: jobs)"
)
_GROUPED = "order: wait (longest first), held (longest first), waiters (most first), path, pid, state (default: wait)"
_KILL = "when the lock is lost, time from TERM to KILL for all of CMD (default: 10; inf: never)"
_SEMAPHORE = "the N slots of the semaphore LOCK, as run --slots has them"
_WRITTEN = "how the lock file is written and judged: one of those below (default: {})"
_JSON, _EACH = "print JSON on stdout: one object", "print JSON on stdout: one object for each, on a line of its own"
_BETWEEN = "from the start of a cycle to that of the next: 500ms, 30s, 1m, 2h (default: 1m)"
_OPTIONS = {
    "lock": _option("lock=LOCK", "path of the lock file, or what the protocol makes of it (see below); or a URL"),
    "dir": _option("lock=DIR", "directory of the database, which the lock file .exclusive-lock is in"),
    "places": _option("places=DIR", "", nargs="*"),
    "place": _option("place=DIR", "a directory for lock files, or a URL (default: this directory)",
        nargs="?", default="."),
    "directory": _option("directory=DIR", "the directory of the lock files"),
    "events": _option("events=EVENTS", "a file of events"),
    "action": _option("action=ACTION", "init: make the schema and the table, if need be", choices=("init",)),
    "url": _option("url=URL", "the database: postgresql://user@host:port/database"),
    "shell": _option("shell=SHELL", "bash, zsh or fish", choices=SHELLS),
    "nonblock": _option("-n --nonblock", "do not wait: one try"),
    "timeout": _option("-w --timeout=SECONDS", "wait at most this long (default: for ever)", type=seconds),
    "code": _option("-E --conflict-exit-code=N", _HELD.format(HELD), type=code, default=HELD, dest="held_code"),
    "run-code": _option("-E --conflict-exit-code=N", _HELD.format(HELD_RUN),
        type=code, default=HELD_RUN, dest="held_code"),
    "tag": _option("-t --tag=TEXT", "say what the lock is held for"),
    "fencing": _option("--fencing", "count the holders: each gets a token, a number higher than all before it",
        default=None),
    "durable": _option("--durable", "fsync the lock file: it survives a power cut"),
    "parents": _option("--parents", "create missing directories"),
    "mode": _option("--mode=OCTAL", "permission bits of a new lock file, before the umask", type=mode),
    "kill-after": _option("--kill-after=SECONDS", _KILL, type=seconds, default=10.0),
    "until": _option("--until", _UNTIL, choices=("command", "jobs", "all"), default="jobs"),
    "record": _option("--record=FILE", "append what happens to the lock to FILE, for holdfast timeline"),
    "slots": _option("--slots=N", _SEMAPHORE, type=slots),
    "shared": _option("--shared", "together with others that want it shared (-p flock only)"),
    "stale": _option("--stale", _TAKEN, choices=("safe", "protocol", "never"), default="safe"),
    "stale-after": _option("--stale-after=SECONDS", "age at which the protocol calls a lock stale", type=seconds),
    "owner": _option("--owner-pid=PID", "the process the lock is bound to, whatever it is (default: the calling shell)",
        type=pid),
    "no-keeper": _option("--no-keeper", "leave the plain file: no process guards it or keeps it fresh"),
    "force": _option("-f --force", "remove it even if its holder lives; the holder is not stopped"),
    "protocol": _option("-p --protocol=NAME", _WRITTEN.format("sema")),
    "payload": _option("--payload=JSON", "(-p sidecar) the object that the lock file holds", type=payload),
    "holder": _option("--holder=NAME", "(-p beads) the name of the tool that holds the lock"),
    "version": _option("--holder-version=TEXT", "(-p beads) and its version", dest="version"),
    "recursive": _option("-r --recursive", "look into directories of directories"),
    "held": _option("--held", "only those that a contender would not get"),
    "only-stale": _option("--stale", "only those that a contender would take over"),
    "sort": _option("--sort=KEY", "order: age (oldest first), path, pid, state (default: path)",
        choices=("age", "path", "pid", "state"), default="path"),
    "top-sort": _option("--sort=KEY", _GROUPED, choices=SORTS, default="wait"),
    "reverse": _option("-r --reverse", "the other way round"),
    "once": _option("--once", "print how things are, and end"),
    "seconds": _option("--seconds=N", "end after so many seconds (default: a signal ends it)", type=seconds),
    "output": _option("-o --output=PAGE", "where the page goes (default: EVENTS.html); - is stdout"),
    "yes": _option("-y --yes", "remove it; without, it is only shown"),
    "approve": _option("--approve-stale", "let go, too, what is stale while nothing is known of its holder"),
    "id": _option("--id=ID", "the acquisition that is meant"),
    "schema": _option("--schema=NAME", "the schema to make (default: that of the URL, else holdfast)"),
    "grant": _option("--grant=ROLE", "let ROLE use locks there; may be given again", action="append", default=[]),
    "print": _option("--print", "print the SQL for all that, and ask no server"),
    "interval": _option("--interval=DURATION", _BETWEEN, type=duration, default=60.0),
    "log": _option("--log=FILE", "append log lines to FILE (default: stderr)"),
    "json": _option("-j --json", "print one JSON object on stdout"),
    "quiet": _option("-q --quiet", "no messages but errors"),
    "verbose": _option("-v --verbose", "say what was done, too"),
}  # fmt: skip


class _Command:
    """What a parser is made of: its usage; its options in their order, each perhaps with another help; the notes."""

    def __init__(self, usage: str, options: str, note: str, what: str = "", **helps: str) -> None:
        self.usage = usage
        self.options = options.split()
        self.note = note
        self.what = what
        """The first line of the help, where that is not the summary."""
        self.helps = helps


_NEW = "tag fencing durable parents mode"
_ACQUIRING = f"{_NEW} stale stale-after owner no-keeper protocol payload holder version json quiet verbose"
_LISTED = "[options] [DIR|GLOB|LOCK ...]"
_TABLE = {
    "run": _Command(
        "[options] LOCK -- CMD [ARG ...]",
        f"lock nonblock timeout run-code {_NEW} kill-after until record slots shared stale stale-after protocol "
        "payload holder version quiet verbose",
        _RUN_NOTE,
        slots="let up to N run at once; LOCK is the base of their lock files",
    ),
    "try": _Command("[options] LOCK", f"lock code {_ACQUIRING}", _SHELL_NOTE),
    "acquire": _Command("[options] LOCK", f"lock nonblock timeout code {_ACQUIRING}", _SHELL_NOTE),
    "release": _Command("[options] LOCK", "lock owner force protocol json quiet verbose", _RELEASE_NOTE),
    "wait": _Command(
        "[options] LOCK",
        "lock nonblock timeout code slots shared stale stale-after protocol json quiet verbose",
        _WAIT_NOTE,
        slots=f"one of {_SEMAPHORE}",
    ),
    "status": _Command(
        "[options] LOCK",
        "lock slots shared stale stale-after protocol json quiet verbose",
        _STATUS_NOTE,
        protocol=_WRITTEN.format("what the lock file says, else sema"),
        verbose="show what the lock file contains, too",
    ),
    "ls": _Command(
        _LISTED,
        "places recursive held only-stale sort json quiet",
        _LS_NOTE,
        "List lock files: who holds them, for how long, and who waits.",
        places="directory, pattern, lock file or URL (default: this directory)",
        json=_EACH,
    ),
    "watch": _Command(
        _LISTED,
        "places seconds record quiet",
        _WATCH_NOTE,
        places="directory, pattern, lock file or one URL (default: this directory)",
        record="append the events to FILE, too",
    ),
    "top": _Command(
        _LISTED,
        "places top-sort reverse once json record quiet",
        _TOP_NOTE,
        "Show who holds which lock, and who waits, as it changes.",
        places="directory, pattern or lock file (default: this directory)",
        json="the same as JSON, as ls --json: one object on a line for each",
        record="append what happens to FILE, as watch --record",
    ),
    "timeline": _Command(
        "[options] EVENTS",
        "events output quiet",
        _TIMELINE_NOTE,
        "Draw recorded events: who held which lock, and who waited, when.",
    ),
    "doctor": _Command(
        "[options] [DIR]",
        "place json quiet",
        _DOCTOR_NOTE,
        "Say what the filesystem of DIR can do for locks, what that means, and what is amiss.",
        json=_JSON,
    ),
    "clean": _Command(
        "[options] [DIR ...]",
        "places yes recursive approve json quiet",
        _CLEAN_NOTE,
        "Remove what the dead have left: locks, temporary files, tickets. Without --yes, only show it.",
        places="a directory, or a lock file (default: this directory)",
        json=_EACH,
    ),
    "break": _Command(
        "[options] LOCK",
        "lock id force protocol json quiet",
        _BREAK_NOTE,
        "Remove one lock, if it is still the one that was seen; with --force, a living holder's as well.",
        lock="the lock file, or a URL",
        force="even if its holder lives; that one is not stopped",
        protocol="how the lock file is written (default: by what is in it)",
        json=_JSON,
    ),
    "reap": _Command(
        "[options] DIR",
        "directory quiet",
        _REAP_NOTE,
        "Stay, and remove the lock of each holder in DIR that dies, the moment it dies.",
    ),
    "postgresql": _Command(
        "[options] ACTION URL",
        "action url schema grant print quiet",
        _POSTGRESQL_NOTE,
        "Prepare a PostgreSQL database for locks.",
    ),
    "completion": _Command(
        "[-h] SHELL",
        "shell",
        _COMPLETION_NOTE,
        "Print what makes SHELL complete commands, options, protocols and lock files.",
    ),
    "beads check": _Command(
        "[options] DIR", "dir json quiet", _CHECK_NOTE, quiet="print nothing; the exit status says it"
    ),
    "beads daemon": _Command(
        "[options] DIR -- CMD [ARG ...]",
        "dir interval log verbose",
        _DAEMON_NOTE,
        verbose="log the start and the end of cycles, too",
    ),
}
_OF_PROTOCOLS = {"payload": "--payload", "holder": "--holder", "version": "--holder-version"}
"""Options of `Lock` that only some protocols have, as they are typed."""


# -- parsing -----------------------------------------------------------------------------------------------------------


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of one command; exits with status 2 and a usage line for anything else."""
    name, *words = arguments or [""]
    if name == "beads":
        return _parse_beads(words)
    if name not in _TABLE or " " in name:
        overview = overview_of()
        overview.parse_args([*arguments])  # exits: help, version, or an error
        overview.error(f"the command comes first, not {name!r}")
    parser = parser_of(name)
    if name in _COMMANDS:
        options = _parse_lock(parser, name, words)
    else:
        options = parser.parse_args(words)
        if name == "top" and options.record is not None and (options.once or options.json):
            parser.error("--record belongs to the live view; holdfast watch --record needs no terminal")
    options.command = name
    return options


def _parse_lock(parser: Parser, name: str, words: list[str]) -> argparse.Namespace:
    words, command = _split(words) if name == "run" else (words, [])
    options, rest = parser.parse_known_args(words)
    if name == "run":
        if rest:
            parser.error(f"put -- before the command: holdfast run [options] {options.lock} -- {' '.join(rest)}")
        if not command or not command[0]:
            parser.error("no command; write: holdfast run [options] LOCK -- CMD [ARG ...]")
        options.cmd = command
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if getattr(options, "nonblock", False):
        if options.timeout is not None:
            parser.error("-n/--nonblock and -w/--timeout exclude each other")
        options.timeout = 0.0
    _require_of_protocol(parser, options)
    return options


def _parse_beads(words: list[str]) -> argparse.Namespace:
    step, *words = words or [""]
    if step not in BEADS:
        overview = overview_of("holdfast beads", "The daemon's side of the exclusive lock of beads up to 0.49.", BEADS)
        overview.parse_args([step, *words] if step else [])  # exits: help, or an error
        overview.error(f"the command comes first, not {step!r}")
    made = parser_of(f"beads {step}")
    words, command = _split(words) if step == "daemon" else (words, [])
    options = made.parse_args(words)
    if step == "daemon" and (not command or not command[0]):
        made.error("no command; write: holdfast beads daemon [options] DIR -- CMD [ARG ...]")
    options.command, options.step, options.cmd = "beads", step, command
    return options


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """What is ours, and the command behind `--`."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def parser_of(name: str) -> Parser:
    """The parser of any command that has one: `beads check` is one, while the drop-ins have their own ways."""
    one = _TABLE[name]
    summary = SUMMARIES.get(name) or BEADS[name.removeprefix("beads ")]
    what = one.what or f"{summary[0].upper()}{summary[1:]}."
    note = f"PROTOCOLS\n\n{one.note}" if name in _COMMANDS else one.note
    parser = Parser(f"holdfast {name}", one.usage, what, note)
    for option in one.options:
        flags, more = _OPTIONS[option]
        parser.add_argument(*flags, **{**more, "help": one.helps.get(option, more["help"])})
    return parser


def _require_of_protocol(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """A usage error for an option that the protocol does not have: it would silently do nothing."""
    name = options.protocol or "sema"
    try:
        protocol = protocols.get(name)
    except (ValueError, HoldfastError) as error:
        parser.error(str(error))
    for option, flag in _OF_PROTOCOLS.items():
        if getattr(options, option, None) is not None and option not in protocol.options:
            those = [other for other in _PROTOCOLS if option in protocols.get(other).options]
            parser.error(f"{flag} is an option of -p {' and -p '.join(those)}; -p {name} has no such thing")
    if name == "beads" and getattr(options, "slots", None) is not None:
        parser.error("--slots makes no sense with -p beads: its daemon looks at one lock file only")
    if name == "beads" and getattr(options, "stale_after", None) is not None:
        parser.error("--stale-after makes no sense with -p beads: a lock is stale when its process is dead, at any age")


def overview_of(
    prog: str = "holdfast",
    description: str = "Locks that every language agrees on: held by the kernel, waited for without polling.",
    commands: Mapping[str, str] = SUMMARIES,
) -> argparse.ArgumentParser:
    whole = commands is SUMMARIES
    listed = "commands:\n" + "\n".join(f"  {name:<10}  {summary}" for name, summary in commands.items())
    parser = Parser(
        prog,
        "[-h] [--version] COMMAND ..." if whole else "[-h] COMMAND ...",
        description,
        listed + ("\n\nPROTOCOLS" if whole else "") + f"\n\n`{prog} COMMAND --help` has the options of each.",
    )
    if whole:
        parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    parser.add_argument("command", metavar="COMMAND", choices=commands, help=argparse.SUPPRESS)
    return parser


class Parser(argparse.ArgumentParser):
    """`PROTOCOLS` in the notes stands for one line about each, which takes a search through what is installed."""

    def __init__(self, prog: str, usage: str, description: str, notes: str) -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} {usage}",
            description=description,
            epilog=notes,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        if "://" in message:
            message = masked(message)
        super().error(message)

    def format_help(self) -> str:
        formatter: _Formatter = self._get_formatter()  # type: ignore[assignment]
        return super().format_help().replace("PROTOCOLS", formatter.folded(_listed()))

    def actions(self) -> list[argparse.Action]:
        """What may be typed, in the order of the help."""
        return self._actions

    def notes(self) -> str:
        """What stands below the options, as it is written."""
        return (self.epilog or "").replace("PROTOCOLS", _listed()).rstrip()


def _listed() -> str:
    lines = [f"  {name:<9}  {_PROTOCOLS.get(name, '')}".rstrip() for name in protocols.names()]
    return "\n".join(["protocols (-p):", *lines])


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Notes are as they are written, where they fit into the terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)

    def folded(self, text: str) -> str:
        return folded(text, self._width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002
        return folded(text, width)


def _columns() -> int:
    """As `shutil.get_terminal_size`: argparse asks for each option, and that module takes milliseconds to load."""
    try:
        given = int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        given = 0
    if given > 0:
        return given
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        return 80


class _Version(argparse.Action):
    def __call__(self, *_args: Any, **_kwargs: Any) -> None:
        from .. import __version__

        print(f"holdfast {__version__}")
        raise SystemExit(0)
