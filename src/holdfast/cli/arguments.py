"""What may be typed: every command's options, each spelled once."""

from __future__ import annotations

import argparse

from .. import protocols
from ..errors import HoldfastError
from . import HELD, HELD_RUN
from .typed import code, mode, payload, pid, seconds, slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType
    from typing import Any, NoReturn

_COMMANDS = {
    "run": "hold LOCK while CMD runs; end as CMD ends",
    "try": "acquire LOCK for the calling shell if it is free",
    "acquire": "acquire LOCK for the calling shell, waiting for it",
    "release": "release LOCK, acquired by try or acquire",
    "wait": "wait until LOCK is free, without acquiring it",
    "status": "show who holds LOCK, since when, why, and how that is known",
}
_GROUPED = {
    "ls": ("views", "list lock files: who holds them, for how long, and who waits"),
    "watch": ("follow", "tell what happens to lock files, as it happens"),
    "top": ("follow", "show who holds and who waits, live"),
    "timeline": ("follow", "draw recorded events as a page: who held, who waited, when"),
    "doctor": ("views", "say what the filesystem of a directory can do for locks, and what is amiss"),
    "clean": ("upkeep", "remove what the dead have left: locks, temporary files, tickets"),
    "break": ("upkeep", "remove one lock, if it is still the one that was seen"),
    "reap": ("upkeep", "stay, and remove the locks of holders that die, at once"),
    "postgresql": ("engines", "init: prepare a PostgreSQL database for locks"),
    "completion": ("completion", "print what makes a shell complete the words of this command line"),
}
"""Commands whose options are in a module of their own group, `arguments_GROUP.py`; and what each does.

Such a module has `parser(name)`, and may have `check(parser, options)` for what no single option can know.
"""
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
_STATUS_NOTE = """\
If there is no LOCK, but there are lock files LOCK.0.lock and so on, they are shown
as the slots of a semaphore.

exit status: 0 a contender would get it; 1 held; 2 usage; 3 system error, or it is a
lock of another protocol, which nobody can acquire by this one"""
_DROP_INS = {
    "beads": "check, daemon: the daemon's side of the lock of beads up to 0.49",
    "sema": "the command line of the sema tool",
    "semats": "the command line of the semats tool",
}
SUMMARIES = {**_COMMANDS, **{name: summary for name, (_, summary) in _GROUPED.items()}, **_DROP_INS}
_OF_PROTOCOLS = {"payload": "--payload", "holder": "--holder", "version": "--holder-version"}
"""Options of `Lock` that only some protocols have, as they are typed."""
_NOTES = {
    "run": _RUN_NOTE,
    "try": _SHELL_NOTE,
    "acquire": _SHELL_NOTE,
    "release": "exit status: 0 released, or nobody held it; 1 held by another; 2 usage; 3 system error",
    "wait": "exit status: 0 free; 1 still held when the time was up (-E); 2 usage; 3 system error",
    "status": _STATUS_NOTE,
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of one command; exits with status 2 and a usage line for anything else."""
    name, *words = arguments or [""]
    if name == "beads":
        from .arguments_beads import parse as parse_beads

        return parse_beads(words)
    if name in _GROUPED:
        return _parse_grouped(name, words)
    if name not in _COMMANDS:
        overview = overview_of()
        overview.parse_args([*arguments])  # exits: help, version, or an error
        overview.error(f"the command comes first, not {name!r}")
    parser = _parser(name)
    words, command = split(words) if name == "run" else (words, [])
    options, rest = parser.parse_known_args(words)
    options.command = name
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


def parser_of(name: str) -> Parser:
    """The parser of any command that has one; `beads` and the drop-ins have their own ways."""
    if name in _COMMANDS:
        return _parser(name)
    parser: Parser = _group(name).parser(name)
    return parser


def _group(name: str) -> ModuleType:
    from importlib import import_module

    return import_module(f".arguments_{_GROUPED[name][0]}", __package__)


def _parse_grouped(name: str, words: list[str]) -> argparse.Namespace:
    group = _group(name)
    parser: argparse.ArgumentParser = group.parser(name)
    options = parser.parse_args(words)
    options.command = name
    if hasattr(group, "check"):
        group.check(parser, options)
    return options


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """What is ours, and the command behind `--`."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


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


def _parser(name: str) -> Parser:
    """One command's parser. Only that one is made: building all of them took longer than acquiring a lock."""
    parser = Parser(
        f"holdfast {name}",
        "[options] LOCK -- CMD [ARG ...]" if name == "run" else "[options] LOCK",
        f"{_COMMANDS[name][0].upper()}{_COMMANDS[name][1:]}.",
        f"PROTOCOLS\n\n{_NOTES[name]}",
    )
    _add_options(name, parser)
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
            from .urls import masked

            message = masked(message)
        super().error(message)

    def format_help(self) -> str:
        formatter = self._get_formatter()
        listed = formatter._fill_text(_listed(), formatter._width, "")
        return super().format_help().replace("PROTOCOLS", listed)

    def notes(self) -> str:
        """What stands below the options, as it is written."""
        return (self.epilog or "").replace("PROTOCOLS", _listed()).rstrip()


def _listed() -> str:
    lines = [f"  {name:<9}  {_PROTOCOLS.get(name, '')}".rstrip() for name in protocols.names()]
    return "\n".join(["protocols (-p):", *lines])


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Notes are as they are written, where they fit into the terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002
        from .folding import folded

        return folded(text, width)


def _add_options(name: str, command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("lock", metavar="LOCK", help="path of the lock file, or what the protocol makes of it (see below); or a URL")
    if name in ("run", "acquire", "wait"):
        add("-n", "--nonblock", action="store_true", help="do not wait: one try")
        add("-w", "--timeout", type=seconds, metavar="SECONDS", help="wait at most this long (default: for ever)")
    if name in ("run", "try", "acquire", "wait"):
        usual = HELD_DEFAULT[name]
        add("-E", "--conflict-exit-code", type=code, default=usual, metavar="N", dest="held_code",
            help=f"exit status when it is held or the time is up (default: {usual})")  # fmt: skip
    if name in ("run", "try", "acquire"):
        add("-t", "--tag", metavar="TEXT", help="say what the lock is held for")
        add("--fencing", action="store_true", default=None,
            help="count the holders: each gets a token, a number higher than all before it")  # fmt: skip
        add("--durable", action="store_true", help="fsync the lock file: it survives a power cut")
        add("--parents", action="store_true", help="create missing directories")
        add("--mode", type=mode, metavar="OCTAL", help="permission bits of a new lock file, before the umask")
    if name == "run":
        add("--kill-after", type=seconds, default=10.0, metavar="SECONDS",
            help="when the lock is lost, time from TERM to KILL for all of CMD (default: 10; inf: never)")  # fmt: skip
        add("--until", choices=("command", "jobs", "all"), default="jobs",
            help="what has to end before LOCK is free: CMD; CMD and what it leaves in this session, so no daemons; or "
            "all that it has started (default: jobs)")  # fmt: skip
        add("--record", metavar="FILE", help="append what happens to the lock to FILE, for holdfast timeline")
        add("--slots", type=slots, metavar="N", help="let up to N run at once; LOCK is the base of their lock files")
    if name in ("wait", "status"):
        what = "one of the N slots of the semaphore LOCK" if name == "wait" else "the N slots of the semaphore LOCK"
        add("--slots", type=slots, metavar="N", help=f"{what}, as run --slots has them")
    if name in ("run", "wait", "status"):
        add("--shared", action="store_true", help="together with others that want it shared (-p flock only)")
    if name != "release":
        add("--stale", choices=("safe", "protocol", "never"), default="safe",
            help="when to take over another's lock: once its holder is proven dead, or the protocol's rule calls it "
            "stale and its holder is not known to live; by that rule alone; or never (default: safe)")  # fmt: skip
        add("--stale-after", type=seconds, metavar="SECONDS", help="age at which the protocol calls a lock stale")
    if name in ("try", "acquire", "release"):
        add(
            "--owner-pid",
            type=pid,
            metavar="PID",
            help="the process the lock is bound to, whatever it is (default: the calling shell)",
        )
    if name in ("try", "acquire"):
        add("--no-keeper", action="store_true", help="leave the plain file: no process guards it or keeps it fresh")
    if name == "release":
        add("-f", "--force", action="store_true", help="remove it whoever holds it; the holder is not stopped")
    chosen = "what the lock file says, else sema" if name == "status" else "sema"
    add("-p", "--protocol", metavar="NAME",
        help=f"how the lock file is written and judged: one of those below (default: {chosen})")  # fmt: skip
    if name in ("run", "try", "acquire"):
        add("--payload", type=payload, metavar="JSON", help="(-p sidecar) the object that the lock file holds")
        add("--holder", metavar="NAME", help="(-p beads) the name of the tool that holds the lock")
        add("--holder-version", dest="version", metavar="TEXT", help="(-p beads) and its version")
    if name != "run":
        add("-j", "--json", action="store_true", help="print one JSON object on stdout")
    add("-q", "--quiet", action="store_true", help="no messages but errors")
    more = "show what the lock file contains, too" if name == "status" else "say what was done, too"
    add("-v", "--verbose", action="store_true", help=more)


HELD_DEFAULT = {"run": HELD_RUN, "try": HELD, "acquire": HELD, "wait": HELD}


class _Version(argparse.Action):
    def __call__(self, *_args: Any, **_kwargs: Any) -> None:
        from .. import __version__

        print(f"holdfast {__version__}")
        raise SystemExit(0)
