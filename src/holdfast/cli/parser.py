"""Help, errors and the parsing of any command, by `argparse` and the table of options (options.py).

Only the parser of the command that runs is created: creating all of them took longer than acquiring a lock. Help is as
wide as the terminal: paragraphs and lists are folded if they do not fit, and else left as written.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from textwrap import wrap

from .. import __version__, protocols
from ..errors import did_you_mean
from .options import (
    BEADS,
    COMMANDS,
    EACH,
    JSON,
    PROTOCOLS,
    SEMAPHORE,
    SUMMARIES,
    WRITTEN,
    Wrong,
    behind_line,
    completed,
    option_of,
    options_of,
    split,
    split_run,
)
from .outcome import end_with_reader, masked, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

# -- help as wide as the terminal ------------------------------------------------------------------------------------

STATUS = "exit status: "
"""Beginning of the last part of the notes."""
_ITEM = r"( +\S+(?: \S+)? {2,})(\S.*)"
"""An item of a list: a name, and the text about it."""
_wrap = functools.partial(wrap, break_on_hyphens=False, break_long_words=False)


def folded(text: str, width: int) -> str:
    """The text, folded. Blank lines stay; so do indented lines that are no items, such as commands to be copied."""
    return "\n\n".join(_folded(block.split("\n"), width) for block in text.split("\n\n"))


def _folded(lines: list[str], width: int) -> str:
    if all(len(line) <= width for line in lines):
        return "\n".join(lines)
    parts: list[tuple[str, str]] = []
    """Paragraphs and items of lists: the lead and the text of each; without a text, a line that stays as it is."""
    for line in lines:
        text = line.lstrip()
        indent = line[: len(line) - len(text)]
        lead, before = parts[-1] if parts else ("", "")
        if before and len(indent) == len(lead):
            parts[-1] = (lead, f"{before} {text}")
        elif item := re.fullmatch(_ITEM, line):
            parts.append((item[1], item[2]))
        else:
            parts.append((line, "") if indent else ("", text))
    found = []
    for lead, text in parts:
        room = max(width, len(lead) + 10)
        found += _wrap(text, room, initial_indent=lead, subsequent_indent=" " * len(lead)) or [lead]
    return "\n".join(found)


# -- what the help says ------------------------------------------------------------------------------------------------

_SHELL_NOTE = """\
The lock is bound to the calling shell, or to --owner-pid: a small process, the
keeper, guards it and keeps it fresh as long as that process lives, and releases it
when that process ends in any way. A line on stderr says which process that is (not
with -q, -j or --owner-pid). A caller that is not a shell (timeout, xargs, sudo, ssh,
make, a program) is refused with status 2, because the lock would end with it at
once. So is a shell that does nothing else, as in sh -c 'holdfast try LOCK'. Give
--owner-pid $$ to this command and to release, or use holdfast run.

If only the keeper is killed, the lock is free although its owner lives. With
--no-keeper, and where there are no kernel locks, there is only the file. It counts
as free when the owner has ended. Other implementations may reclaim it from a living
owner, at the age that their protocol states (sema: 3600 s).

exit status: 0 acquired; 1 held or timed out (-E; run has 75, because 1 may be
CMD's); 2 usage; 3 system error, or LOCK belongs to another protocol or program, or is
a stale sidecar lock"""


class _Help:
    """Help of one command: its usage; the notes; examples, without `holdfast` in front; the first line, if that is not
    the summary; options whose help differs from that in the table."""

    def __init__(self, usage: str, note: str, examples: str, what: str = "", **helps: str) -> None:
        self.usage, self.note, self.examples, self.what, self.helps = usage, note, examples, what, helps


_LISTED = "[options] [DIR|GLOB|LOCK ...]"
_HELP = {
    "run": _Help("[options] LOCK ... -- CMD [ARG ...]", """\
CMD gets the signals TERM, INT, HUP, QUIT, USR1 and USR2 that this process gets. In its
environment, HOLDFAST_LOCK is the path, HOLDFAST_RECOVERED the pid of a dead holder
that was replaced, and HOLDFAST_TOKEN the fencing token (with --fencing, or on a
server). If this process is killed, the lock stays held until CMD and everything it has
started have ended. If the lock is lost, they get TERM, then KILL after --kill-after
seconds, and the exit status is 4.

This process ends as soon as CMD has ended. Background jobs of CMD keep the lock,
but daemons, which have a session of their own, do not: see --until.

With --slots N, up to N may run at once: LOCK names a semaphore, whose lock files
are LOCK.0.lock, LOCK.1.lock and so on. HOLDFAST_LOCK is the file of CMD's slot, and
HOLDFAST_SLOT its number, from 0.

With --, everything before it belongs to holdfast. Without it, CMD begins after the
first LOCK. Several LOCKs are acquired all or none, always in the same order, so that
no two processes wait for each other; HOLDFAST_LOCK then has a line for each.

exit status: that of CMD; 75 held or timed out (-E): not 1 as elsewhere, since CMD
may end with 1; 2 usage; 3 system error, or LOCK belongs to another protocol or
program, or is a stale sidecar lock; 4 lock lost; 126, 127 CMD cannot be run""", """\
run deploy.lock ./deploy.sh
run -w 5m -t nightly /run/lock/backup.lock -- tar -cf home.tar /home
run -n /run/lock/sync.lock -c 'git pull && make'
run stock.lock orders.lock -- ./reconcile""",
        slots="let up to N run at once; LOCK is the base of their lock files"),
    "try": _Help("[options] LOCK", _SHELL_NOTE, """\
try -t nightly /run/lock/backup.lock || exit 1
try -q --owner-pid $$ backup.lock"""),
    "acquire": _Help("[options] LOCK", _SHELL_NOTE, """\
acquire -w 30s /run/lock/backup.lock || exit 1
acquire -t "release 1.4" -w 1h30m deploy.lock"""),
    "release": _Help("[options] LOCK", """\
A lock that another process holds is left alone; holdfast break removes it.

exit status: 0 released, or nobody held it; 1 held by another (run has 75, because 1
may be CMD's); 2 usage; 3 system error, or another program's lock""", """\
release /run/lock/backup.lock
release --owner-pid $$ backup.lock"""),
    "wait": _Help("[options] LOCK ...", """\
LOCK may be another program's, such as .git/index.lock. With several LOCKs, it ends
when a single check finds all of them free.

exit status: 0 free; 1 still held at the timeout (-E; run has 75, because 1 may
be CMD's); 2 usage; 3 system error, or LOCK belongs to another protocol, or is a stale
sidecar lock""", """\
wait -w 10m /run/lock/deploy.lock && ./announce
wait build.lock test.lock
wait -n --slots 3 /run/lock/gpu""",
        slots=f"one of {SEMAPHORE}"),
    "status": _Help("[options] LOCK ...", """\
If LOCK does not exist, but LOCK.0.lock and so on do, they are shown as the slots of
a semaphore. LOCK may be another program's, such as .git/index.lock.

exit status: 0 a contender would get the lock, or all of them; 1 held (run has 75,
because 1 may be CMD's); 2 usage; 3 system error, or what run refuses with 3: a lock of
another protocol, or a dead holder's lock on a read-only filesystem""", """\
status /run/lock/deploy.lock
status -q deploy.lock || echo "it is held"
status -j a.lock b.lock""",
        protocol=WRITTEN.format("what the lock file says, else sema"),
        verbose="also show what the lock file contains"),
    "ls": _Help(_LISTED, """\
A directory is searched one level deep, or with -r to the bottom, hidden directories
included. Symbolic links are not followed. These count as lock files: a record of one
of the protocols; an empty, damaged or unreadable file that is named like a lock
file; any file that is locked by flock at this moment; and the locks of other programs,
such as .git/index.lock. Text and data do not count, whatever their names.
To be quick on a whole disk, -r skips some files that the kernel has not locked:
those named like text, data or programs (.txt, .json, .py, .so, .gz and others), and,
if they are not named like a lock, those larger than 64 KiB or not writable by their
owner. It does not enter the kernel's own filesystems. Locks of one directory that is
listed by path are shown as they are found.

states: held, dead (proven: the next contender takes it over at once), stale (by its
protocol's rule), elsewhere (counts as held: acquired on another host, before a reboot
or in another container), malformed (counts as held), empty (an empty *.lock file: free
for -p flock and ofd, held for all other protocols), leftover (of another program that
seems to have ended), free (a file that stays, and that nobody holds)

--all adds every file on the machine that any program has locked in the kernel: by
flock, by POSIX record locks of a process or of an open file description (ofd), by
leases. The column TAG says if a lock is shared, or covers only part of the file. Only
root sees the paths of other users' files. A file whose path is not known, or means
another file here, is named by its device and inode.

exit status: 0 done, also if nothing or held locks were found; 1 --held-longer-than
found some; 2 usage; 3 something could not be read""", """\
ls /run/lock
ls -r --held --sort age /srv
ls --all --sort pid
ls -q --held-longer-than 1h /run/lock || echo "something hangs" >&2""",
        places="directory, pattern, lock file or URL (default: this directory)", json=EACH),
    "watch": _Help(_LISTED, """\
A directory is watched one level deep. LOCK need not exist yet; LOCK.lock and the
slots of a semaphore LOCK are watched as well. Each event is one line of JSON on
stdout (docs/observability.md). The first ones describe the present state, and are
marked "first_look"; then come waiting, acquired, released, reclaimed, stale, lost and
gave-up. It works for holders in any language, takes no lock and wakes no process. A
hold of a few milliseconds may be missed; their number is printed at the end.

exit status: 0 the time is up; 2 usage; 3 something could not be watched or written""", """\
watch /run/lock
watch --seconds 1h --record events.jsonl /run/lock/deploy.lock""",
        places="directory, pattern, lock file or one URL (default: this directory)",
        record="also append the events to FILE"),
    "top": _Help(_LISTED, """\
Each row is a lock that is held, stale or waited for: its holder, how long it has been
held, its waiters, and how long they have waited. A directory is searched one level
deep; LOCK need not exist yet. A pattern also finds files that appear later. top takes
no lock and wakes no process.

keys: q quit; s sort by the next key; r reverse; arrows and page keys move; ? help

Without a terminal on stdout, or with --once, it prints the present state and ends.
--record needs the terminal; watch --record does not.

exit status: 0 done; 2 usage; 3 something could not be watched or written""", """\
top /run/lock
top --sort waiters '/srv/build/*.lock'""",
        "Show who holds which lock, and who waits, as it changes.",
        places="directory, pattern or lock file (default: this directory)",
        json="print JSON on stdout, as ls --json: one object for each, on a line of its own",
        record="append what happens to FILE, as watch --record"),
    "timeline": _Help("[options] EVENTS", """\
EVENTS comes from --record of watch or run; - is stdin. The page needs no network.
Lines that are not events are counted and reported.

exit status: 0 done; 2 usage; 3 EVENTS has no event, or a file could not be read or
written""", """\
timeline events.jsonl
timeline -o - events.jsonl > page.html""",
        "Draw recorded events: who held which lock, and who waited, when."),
    "doctor": _Help("[options] [DIR]", """\
Each probe uses files of its own in DIR, and leaves none.

With a second mount of the same directory, or a second machine that shares it, doctor
tests whether each side sees what the other one creates, links, locks and writes:

  holdfast doctor /mnt/one --peer /mnt/two
  holdfast doctor /mnt/share --listen      # on alpha
  holdfast doctor /mnt/share --with alpha  # on beta

The two machines communicate through files in DIR, not over a network. Both print the
result.

exit status: 0 all promises hold; 1 some are weaker, or something is wrong;
2 usage; 3 DIR cannot be used for locks, or no other machine answered""", """\
doctor /run/lock
doctor -j /mnt/share""",
        "Say what the filesystem of DIR can do for locks, what that means, and what is wrong.", json=JSON),
    "clean": _Help("[options] [DIR ...]", """\
Shows what dead processes left, and how that is known; with --yes, removes it:

  locks            proven dead; or stale by their protocol's rule, with no living
                   holder that can be seen. By its own specification, the rule of
                   sidecar proves nothing: of its locks, only those proven dead
  temporary files  of holdfast and semats processes that have ended
  queues           tickets of waiters that have ended, empty directories
  announcements    (.reclaim) of a removal whose process died

Each is examined again before it is removed, and stays if it has changed. clean leaves
alone locks of living holders, unreadable files, files of no known protocol, and flock
files, which are not the locks themselves. --approve-stale also removes locks that are
stale by their protocol's rule if nothing is known of their holders (on other hosts,
for example).

exit status: 0 nothing was found, or all of it is gone; 1 something would be
removed (without --yes), or could not be; 2 usage; 3 something could not be examined""", """\
clean /run/lock
clean --yes -r /srv""",
        "Remove what dead processes left: locks, temporary files, tickets. Without --yes, only show it.",
        places="a directory, or a lock file (default: this directory)", json=EACH),
    "break": _Help("[options] LOCK", """\
LOCK is the lock file, as `holdfast ls` shows it; with -p, what that protocol derives
it from. ID is from `holdfast status LOCK` or `holdfast ls --json`, and names this one
acquisition: if the lock has changed hands since, nothing is removed. Without --id, it
asks on the terminal; with -j, or without a terminal, it refuses. --yes does not ask,
and removes whatever lock is there.

A lock whose holder lives and keeps its kernel lock is removed only with --force. That
does not stop the holder: it carries on, and another process can acquire the lock
beside it.

exit status: 0 removed, or nothing was there; 1 refused, or not confirmed;
2 usage, or it could not ask; 3 system error, or another program's lock""", """\
break /run/lock/deploy.lock
break --id "$(holdfast status -j a.lock | jq -r .id)" a.lock
break --force --yes a.lock""",
        "Remove one lock, if it is still the one that was seen; with --force, a living holder's as well.",
        lock="the lock file, or a URL",
        yes="do not ask: remove whatever acquisition is there",
        protocol="how the lock file is written (default: what its content says)", json=JSON),
    "reap": _Help("[options] DIR", """\
Removes the lock of a holdfast process the moment that process dies. That helps other
programs, which would wait until the lock is stale. It leaves alone what is not proven
dead, and prints a line on stderr for each removal. It runs until it gets a signal;
several may run at once. Under systemd: Type=notify (examples/holdfast-reap.service).

exit status: 2 usage; 3 DIR cannot be read. TERM and INT end it as they end any
process""", """\
reap /run/lock
reap -q /srv/build""",
        "Watch DIR, and remove the lock of each holder the moment it dies."),
    "postgresql": _Help("[options] ACTION URL", """\
init creates the schema and the table that locks need in the database of URL, if they
do not exist yet. It changes nothing else, and may be run again. --grant gives a role
the rights to use locks, even if schema and table exist. --print prints the SQL, for a
migration or for an administrator with psql. URL is the URL of any lock in the
database, with or without the lock's name: postgresql://user@host/database. The schema
is the one in the URL (?schema=NAME), or holdfast. If it is not holdfast, the URL of
every lock needs it. Passwords belong in ~/.pgpass (PGPASSFILE) or PGPASSWORD: process
lists show command lines.

exit status: 0 done; 2 usage; 3 the server cannot be reached, or refuses""", """\
postgresql init postgresql://admin@db/app --grant app
postgresql init --print postgresql://db/app > locks.sql""",
        "Prepare a PostgreSQL database for locks."),
    "protocols": _Help("[options]", """\
A protocol is an agreement between the programs that share a lock: where the lock
file is, what it contains, and when it may be taken over. Its users choose it; it is
never guessed. docs/which-protocol.md has more.

exit status: 0 printed; 2 usage; 3 the output could not be written""", """\
protocols
protocols -j | jq -r .protocol""",
        json=EACH),
    "completion": _Help("[-h] SHELL", """\
For one session:
  bash: eval "$(holdfast completion bash)"
  zsh:  eval "$(holdfast completion zsh)"          (after compinit)
  fish: holdfast completion fish | source

For good:
  bash: holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast
  zsh:  holdfast completion zsh > DIR/_holdfast    (DIR is in $fpath)
  fish: holdfast completion fish > ~/.config/fish/completions/holdfast.fish

exit status: 0 printed; 2 usage; 3 the output could not be written""", """\
completion bash > ~/.local/share/bash-completion/completions/holdfast
completion fish | source""",
        "Print a script that makes SHELL complete commands, options, protocols and lock files."),
    "beads check": _Help("[options] DIR", """\
Prints what a daemon would log, if anything:
  Skipping database (locked by HOLDER)
  Removed stale lock (HOLDER), proceeding with sync
  Skipping database (lock check failed: REASON)

exit status: 0 proceed; 1 skip; 2 usage; 3 system error""", """\
beads check .beads && ./sync
beads check -j .beads""",
        quiet="print nothing, and answer by the exit status"),
    "beads daemon": _Help("[options] DIR -- CMD [ARG ...]", """\
The lock is checked once for each cycle, at its start; a cycle that has begun is
finished. A cycle begins when the one before has ended, and at least DURATION after
that one began. A CMD that fails is logged with its status.

TERM, INT, HUP and QUIT end the daemon. If CMD runs, it gets the signal, and the daemon
ends after it.

exit status: 0 ended by TERM; 2 usage; 3 system error; 126 or 127 CMD cannot be
executed or was not found at the start; otherwise it dies of the signal that ended it""", """\
beads daemon --interval 30s .beads -- ./sync
beads daemon --log sync.log .beads -- ./sync --once""",
        verbose="also log the start and the end of cycles"),
}  # fmt: skip


# -- parsing -----------------------------------------------------------------------------------------------------------


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of one command; exits with status 2 and a usage line for anything else."""
    name, *words = arguments or [""]
    if name == "beads":
        return _parse_beads(words)
    if name not in SUMMARIES or name not in _HELP:
        _answer_without_command(overview_of(), [*arguments])
    parser = parser_of(name)
    parser.words = words
    if name in COMMANDS:
        words, behind = split_run(words) if name == "run" else split(words)
        operands, command = ([], behind) if name == "run" else (behind, [])
        options, rest = _read(parser, words, operands)
        if name == "run" and (stray := behind_line(words)):
            parser.error(f"-c takes one word, so {stray} would be one more LOCK; put the line in quotes")
        wrong = completed(name, options, rest, command)
        if wrong:
            parser.error(wrong)
    else:
        options = parser.parse_args(words)
        if name == "top" and options.record is not None and (options.once or options.json):
            parser.error("--record belongs to the live view; holdfast watch --record needs no terminal")
        if name == "doctor" and sum(map(bool, (options.peer, options.listen, options.host))) > 1:
            parser.error("--peer, --listen and --with exclude each other")
    options.command = name
    return options


def _answer_without_command(overview: Parser, words: list[str]) -> NoReturn:
    """Exit with help, the version, or an error."""
    first = words[0] if words else ""
    overview.refuse_unknown(first)
    overview.parse_args(words)
    overview.error(f"the command comes first, not {first!r}")


_MARK = "\0"
"""Prefix of an operand that may look like an option; no word of a command line contains it."""


def _read(parser: Parser, words: list[str], operands: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options and operands among the words, with the operands behind `--`; and the words that are none of these."""
    # This method forgets the `--` between its two passes. So those operands are marked, and come first, where none is
    # taken for the value of an option.
    options, rest = parser.parse_known_intermixed_args([*(_MARK + one for one in operands), *words])
    for name, value in vars(options).items():
        if isinstance(value, list):
            value.sort(key=lambda one: one.startswith(_MARK))
            value[:] = [one.removeprefix(_MARK) for one in value]
        elif isinstance(value, str):
            setattr(options, name, value.removeprefix(_MARK))
    return options, [one.removeprefix(_MARK) for one in rest]


def _parse_beads(words: list[str]) -> argparse.Namespace:
    step, *words = words or [""]
    if step not in BEADS:
        what = "The daemon's side of the exclusive lock of beads up to 0.49."
        _answer_without_command(overview_of("holdfast beads", what, BEADS), [step, *words] if step else [])
    made = parser_of(f"beads {step}")
    words, command = split(words) if step == "daemon" else (words, [])
    options = made.parse_args(words)
    if step == "daemon" and (not command or not command[0]):
        made.error("no command; write: holdfast beads daemon [options] DIR -- CMD [ARG ...]")
    options.command, options.step, options.cmd = "beads", step, command
    return options


def parser_of(name: str) -> Parser:
    """The parser of a command: `beads check` is one command here, and the drop-ins have no parser."""
    one = _HELP[name]
    summary = SUMMARIES.get(name) or BEADS[name.removeprefix("beads ")]
    what = one.what or f"{summary[0].upper()}{summary[1:]}."
    parser = Parser(f"holdfast {name}", one.usage, what, one.note, one.examples)
    for option in options_of(name):
        flags, more = option_of(option)
        more = {**more, "help": one.helps.get(option, more["help"])}
        if "type" in more:
            more["type"] = _telling(more["type"])
        parser.add_argument(*flags, **more)
    return parser


def _telling(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """The conversion for argparse, which shows the texts of its own kind of error only."""

    @functools.wraps(convert)
    def converted(text: str) -> Any:
        try:
            return convert(text)
        except Wrong as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return converted


def overview_of(
    prog: str = "holdfast",
    description: str = "Locks that every language agrees on: held by the kernel, waited for without polling.",
    commands: Mapping[str, str] = SUMMARIES,
) -> Parser:
    whole = commands is SUMMARIES
    listed = "commands:\n" + "\n".join(f"  {name:<10}  {summary}" for name, summary in commands.items())
    parser = Parser(
        prog,
        "[-h] [-V] COMMAND ..." if whole else "[-h] COMMAND ...",
        description,
        listed + ("\n\nPROTOCOLS" if whole else "") + f"\n\n`{prog} COMMAND --help` has the options of each.",
    )
    if whole:
        version, text = f"holdfast {__version__}", "print the version and exit"
        parser.add_argument("-V", "--version", action=_Show, nargs=0, const=version, help=text)
    parser.add_argument("command", metavar="COMMAND", choices=commands, help=argparse.SUPPRESS)
    return parser


_OTHER_WORDS = {
    "lock": "run (a command) or acquire (this shell)", "exec": "run", "unlock": "release", "list": "ls",
    "show": "status", "kill": "break", "version": "--version",
}  # fmt: skip
"""Commands, by the names that other tools have for them."""
_OTHER_OPTIONS = {
    **dict.fromkeys(("--nb", "--nowait", "--no-wait"), "--nonblock"),
    **dict.fromkeys(("-o", "--close"), "--until command"),
    "--wait": "--timeout",
    "-s": "--shared",
    **dict.fromkeys(("-x", "-e", "--exclusive"), "a lock is exclusive, unless it is shared: leave this out"),
    **dict.fromkeys(("-F", "--no-fork"), "run stays while CMD runs, to pass signals on: leave this out"),
    **dict.fromkeys(
        ("-u", "--unlock"), "run releases by itself when CMD has ended, and a shell calls holdfast release"
    ),
    "--blocking": "to wait is the default: leave this out",
}
"""Options of flock(1) and others: those that mean the same here, or advice about one that has no counterpart."""
_WAYS_OF_TRY = {
    **dict.fromkeys(("-w", "--timeout", "--wait"), "try does not wait; acquire does, with -w DURATION"),
    **dict.fromkeys(("-n", "--nonblock", "--nb", "--nowait", "--no-wait"), "try never waits: leave this out"),
}
"""Advice for `try` about options of commands that may wait."""


class Parser(argparse.ArgumentParser):
    """The parser of one command. `PROTOCOLS` in the notes stands for one line about each, which takes a search through
    installed packages."""

    def __init__(self, prog: str, usage: str, description: str, notes: str, examples: str = "") -> None:
        self.examples = [f"holdfast {line}" for line in examples.splitlines()]
        """Example commands as they are typed."""
        self.words: list[str] = []
        """The words that were typed behind the command's name."""
        self._notes = notes
        shown = "\n".join(["examples:", *(f"  {line}" for line in self.examples)])
        before, status, behind = notes.partition(STATUS)
        super().__init__(
            prog=prog, usage=f"{prog} {usage}", description=description, formatter_class=_Formatter, add_help=False,
            epilog=f"{before}{shown}\n\n{status}{behind}" if self.examples else notes, allow_abbrev=False,
        )  # fmt: skip
        nowhere = argparse.SUPPRESS
        text = "show this help message and exit"
        self.add_argument("-h", "--help", action=_Show, nargs=0, dest=nowhere, default=nowhere, help=text)

    def error(self, message: str) -> NoReturn:
        if "://" in message:
            message = masked(message)
        hint = self._hint(message)
        if hint:
            message = message.partition(" (choose from ")[0]  # one of them is meant
        super().error(message + hint)

    def refuse_unknown(self, word: str) -> None:
        """Report an unknown option. Without a command, argparse would only say that the command is missing."""
        given = word.partition("=")[0] if word.startswith("--") else word[:2]
        known = {"-", "--", *(flag for action in self._actions for flag in action.option_strings)}
        if word.startswith("-") and given not in known:
            self.error(f"unrecognized arguments: {word}")

    def _hint(self, message: str) -> str:
        """A hint at the word that may have been meant instead of an unknown one; else empty."""
        what, _, words = message.partition(": ")
        hint = ""
        if what == "unrecognized arguments":
            hint = self._hint_at_option(words)
        elif what == "the following arguments are required":
            hint = self._hint_at_lock() if words.startswith("LOCK") else ""
            hint = f" `{self.prog} --help` lists them" if words.startswith("COMMAND") else hint
        elif words.startswith("invalid choice: "):
            before, _, choices = words.partition(" (choose from ")
            given = before.partition(": ")[2].strip("'")
            known = choices.rstrip(")").replace("'", "").split(", ")
            meant = _OTHER_WORDS.get(given, given)
            could = [*known, *(flag for action in self._actions for flag in action.option_strings)]
            hint = f" Did you mean {meant}?" if meant.partition(" ")[0] in could else did_you_mean(given, known)
        return f".{hint}" if hint else ""

    def _hint_at_option(self, unknown: str) -> str:
        """A hint at the first option for which there is one: another tool's, another command's, or a mistyped one."""
        words, _, said = unknown.partition(". ")
        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        for word in [] if said else words.split():
            is_long = word.startswith("--")
            given = word.partition("=")[0] if is_long else word[:2] if word[:1] == "-" < word else ""
            hint = (self._hint_at_other_way(given, flags) or _belongs_to(given)) if given else ""
            hint = hint or (did_you_mean(given, flags) if is_long else "")
            if hint:
                return hint
        return ""

    def _hint_at_other_way(self, given: str, flags: Collection[str]) -> str:
        """A hint for users of flock(1), or for those who take `try` for a command that may wait."""
        if self.prog == "holdfast try" and given in _WAYS_OF_TRY:
            return f" {_WAYS_OF_TRY[given]}"
        meant = _OTHER_OPTIONS.get(given, "")
        flag = meant.partition(" ")[0]
        if flag in flags:
            return f" Did you mean {meant}?"
        if not meant or "--protocol" not in flags:
            return ""  # of no other tool, or for a command that takes no lock
        return _belongs_to(flag) if flag.startswith("-") else f" In holdfast, {meant}"

    def _hint_at_lock(self) -> str:
        """Where LOCK may have gone: its name looks like an option, or is taken for the value of one."""
        found = next((word for word in self.words if word[:1] == "-" < word and os.path.lexists(word)), "")
        if found:
            return f" If the file {found} is meant: ./{found}"
        valued = {flag for action in self._actions if action.nargs is None for flag in action.option_strings}
        words = split(self.words)[0]
        pairs = [pair for pair in pairwise(words) if pair[0] in valued]
        return f" {pairs[-1][1]} is the value of {pairs[-1][0]}" if pairs else ""

    def format_help(self) -> str:
        self.epilog = _with_protocols(self.epilog or "")
        return super().format_help()

    def actions(self) -> list[argparse.Action]:
        """Options and operands, in the order of the help."""
        return self._actions

    def notes(self) -> str:
        """The text below the options, as it is written, without the examples."""
        return _with_protocols(self._notes).rstrip()


def _belongs_to(flag: str) -> str:
    """A hint at the commands that have an option of this name; else empty."""
    named = [name for name in SUMMARIES if name in _HELP]
    owners = [name for name in named if any(flag in option_of(one)[0] for one in options_of(name))]
    return f" {flag} is an option of {', '.join(owners)}" if owners else ""


def _with_protocols(text: str) -> str:
    if "PROTOCOLS" not in text:
        return text  # and no installed package is looked at
    lines = [f"  {name:<15}  {PROTOCOLS.get(name, '')}".rstrip() for name in protocols.names()]
    return text.replace("PROTOCOLS", "\n".join(["protocols (-p):", *lines]))


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Leaves notes as they are written if they fit into the terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002
        return folded(text, width)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_on_hyphens=False)


def _columns() -> int:
    """Like `shutil.get_terminal_size`: argparse asks for each option, and that module takes milliseconds to load."""
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


class _Show(argparse.Action):
    """Prints `const`, or help. The actions of argparse itself do not report output that cannot be written."""

    def __call__(self, parser: argparse.ArgumentParser, *_args: Any, **_kwargs: Any) -> None:
        end_with_reader()
        show(self.const or parser.format_help().removesuffix("\n"))
        raise SystemExit(0)
