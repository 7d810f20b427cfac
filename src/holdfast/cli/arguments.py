"""What may be typed: every command's options, each spelled once."""

from __future__ import annotations

import argparse
import math

from .. import protocols
from ..errors import HoldfastError
from . import HELD, HELD_RUN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_COMMANDS = {
    "run": "hold LOCK while CMD runs; end as CMD ends",
    "try": "acquire LOCK for the calling shell if it is free",
    "acquire": "acquire LOCK for the calling shell, waiting for it",
    "release": "release LOCK, acquired by try or acquire",
    "wait": "wait until LOCK is free, without acquiring it",
    "status": "show who holds LOCK, since when, why, and how that is known",
}
_BEADS = {
    "check": "say whether a daemon may work on DIR now; remove a dead holder's lock",
    "daemon": "run CMD at intervals, except while a tool holds the database DIR",
}
_PROTOCOLS = {
    "sema": "LOCK is the lock file (the default)",
    "semats": "the same records; where LOCK is a symbolic link, the lock is where it leads",
    "sidecar": "LOCK is a file to protect; its lock file LOCK.lock holds a JSON payload",
    "beads": "LOCK is the directory of a database; keeps its daemon away (--holder)",
    "flock": "LOCK is a file that stays; the kernel's lock on it is the lock, as flock(1)",
}
_RUN_NOTE = """\
TERM, INT, HUP, QUIT, USR1 and USR2 are passed on to CMD. CMD sees HOLDFAST_LOCK,
the path, and HOLDFAST_RECOVERED, the pid of the dead holder that was replaced, if
there was one. CMD inherits the kernel lock: if this process is killed, the lock
stays held until CMD has ended. If the lock is lost, CMD gets TERM and the exit
status is 4.

With --slots N, up to N may run at once: LOCK names a semaphore, whose lock files
are LOCK.0.lock, LOCK.1.lock and so on. HOLDFAST_LOCK is the one of CMD's slot, and
HOLDFAST_SLOT its number, from 0.

exit status: that of CMD; 75 held or timed out (-E); 2 usage; 3 system error;
4 lock lost; 126, 127 CMD cannot be run"""
_SHELL_NOTE = """\
The lock is bound to the calling shell, or to --owner-pid: when that process ends,
however it ends, the lock counts as free. In sh -c 'holdfast try LOCK' that may be
the caller of sh, as some shells become the last command; --owner-pid says it plainly.
No heartbeat runs: other implementations may reclaim the lock at the age that their
protocol states (sema: 3600 s).

exit status: 0 acquired; 1 held or timed out (-E); 2 usage; 3 system error"""
_DROP_INS = {
    "beads": "check, daemon: the daemon's side of the beads protocol",
    "sema": "the command line of the sema tool",
    "semats": "the command line of the semats tool",
}
_ALL = {**_COMMANDS, **_DROP_INS}
_OF_PROTOCOLS = {"payload": "--payload", "holder": "--holder", "version": "--holder-version"}
"""Options of `Lock` that only some protocols have, as they are typed."""
_NOTES = {
    "run": _RUN_NOTE,
    "try": _SHELL_NOTE,
    "acquire": _SHELL_NOTE,
    "release": "exit status: 0 released, or nobody held it; 1 held by another; 2 usage; 3 system error",
    "wait": "exit status: 0 free; 1 still held when the time was up (-E); 2 usage; 3 system error",
    "status": "exit status: 0 a contender would get it; 1 held; 2 usage; 3 system error",
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


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of one command; exits with status 2 and a usage line for anything else."""
    name, *words = arguments or [""]
    if name == "beads":
        return _parse_beads(words)
    if name not in _COMMANDS:
        overview = _overview()
        overview.parse_args([*arguments])  # exits: help, version, or an error
        overview.error(f"the command comes first, not {name!r}")
    parser = _parser(name)
    words, command = _split(words) if name == "run" else (words, [])
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


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """What is ours, and the command behind `--`."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def _parse_beads(words: list[str]) -> argparse.Namespace:
    step, *words = words or [""]
    if step not in _BEADS:
        overview = _overview("holdfast beads", "The daemon's side of the beads protocol.", _BEADS)
        overview.parse_args([step, *words] if step else [])  # exits: help, or an error
        overview.error(f"the command comes first, not {step!r}")
    runs = step == "daemon"
    parser = _Parser(
        f"holdfast beads {step}",
        "[options] DIR -- CMD [ARG ...]" if runs else "[options] DIR",
        f"{_BEADS[step][0].upper()}{_BEADS[step][1:]}.",
        _DAEMON_NOTE if runs else _CHECK_NOTE,
    )
    add = parser.add_argument
    add("lock", metavar="DIR", help="directory of the database, which the lock file .exclusive-lock is in")
    if runs:
        add("--interval", type=_duration, default=60.0, metavar="DURATION",
            help="from the start of a cycle to that of the next: 500ms, 30s, 1m, 2h (default: 1m)")  # fmt: skip
        add("--log", metavar="FILE", help="append log lines to FILE (default: stderr)")
        add("-v", "--verbose", action="store_true", help="log the start and the end of cycles, too")
    else:
        add("-j", "--json", action="store_true", help="print one JSON object on stdout")
        add("-q", "--quiet", action="store_true", help="print nothing; the exit status says it")
    words, command = _split(words) if runs else (words, [])
    options = parser.parse_args(words)
    if runs and (not command or not command[0]):
        parser.error("no command; write: holdfast beads daemon [options] DIR -- CMD [ARG ...]")
    options.command, options.step, options.cmd = "beads", step, command
    return options


def _require_of_protocol(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """A usage error for an option that the protocol does not have: it would silently do nothing."""
    name = options.protocol
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


def _overview(
    prog: str = "holdfast",
    description: str = "Locks that every language agrees on: held by the kernel, waited for without polling.",
    commands: Mapping[str, str] = _ALL,
) -> argparse.ArgumentParser:
    whole = commands is _ALL
    listed = "commands:\n" + "\n".join(f"  {name:<9} {summary}" for name, summary in commands.items())
    parser = _Parser(
        prog,
        "[-h] [--version] COMMAND ..." if whole else "[-h] COMMAND ...",
        description,
        listed + ("\n\nPROTOCOLS" if whole else "") + f"\n\n`{prog} COMMAND --help` has the options of each.",
    )
    if whole:
        parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    parser.add_argument("command", metavar="COMMAND", choices=commands, help=argparse.SUPPRESS)
    return parser


def _parser(name: str) -> argparse.ArgumentParser:
    """One command's parser. Only that one is made: building all of them took longer than acquiring a lock."""
    parser = _Parser(
        f"holdfast {name}",
        "[options] LOCK -- CMD [ARG ...]" if name == "run" else "[options] LOCK",
        f"{_COMMANDS[name][0].upper()}{_COMMANDS[name][1:]}.",
        f"PROTOCOLS\n\n{_NOTES[name]}",
    )
    _add_options(name, parser)
    return parser


class _Parser(argparse.ArgumentParser):
    """`PROTOCOLS` in the notes stands for one line about each, which takes a search through what is installed."""

    def __init__(self, prog: str, usage: str, description: str, notes: str) -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} {usage}",
            description=description,
            epilog=notes,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def format_help(self) -> str:
        lines = [f"  {name:<9} {_PROTOCOLS.get(name, '')}".rstrip() for name in protocols.names()]
        return super().format_help().replace("PROTOCOLS", "\n".join(["protocols (-p):", *lines]))


def _add_options(name: str, command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("lock", metavar="LOCK", help="path of the lock file, or what the protocol makes of it (see below)")
    if name in ("run", "acquire", "wait"):
        add("-n", "--nonblock", action="store_true", help="do not wait: one try")
        add("-w", "--timeout", type=_seconds, metavar="SECONDS", help="wait at most this long (default: for ever)")
    if name in ("run", "try", "acquire", "wait"):
        code = HELD_DEFAULT[name]
        add("-E", "--conflict-exit-code", type=_code, default=code, metavar="N", dest="held_code",
            help=f"exit status when it is held or the time is up (default: {code})")  # fmt: skip
    if name in ("run", "try", "acquire"):
        add("-t", "--tag", metavar="TEXT", help="say what the lock is held for")
        add("--durable", action="store_true", help="fsync the lock file: it survives a power cut")
        add("--parents", action="store_true", help="create missing directories")
        add("--mode", type=_mode, metavar="OCTAL", help="permission bits of a new lock file, before the umask")
    if name == "run":
        add("--slots", type=_slots, metavar="N", help="let up to N run at once; LOCK is the base of their lock files")
    if name in ("run", "wait", "status"):
        add("--shared", action="store_true", help="together with others that want it shared (-p flock only)")
    if name != "release":
        add("--stale", choices=("safe", "protocol", "never"), default="safe",
            help="when to take over another's lock: when its holder is known to be dead, by the protocol's letter, "
            "or never (default: safe)")  # fmt: skip
        add("--stale-after", type=_seconds, metavar="SECONDS", help="age at which the protocol calls a lock stale")
    if name in ("try", "acquire", "release"):
        add("--owner-pid", type=_pid, metavar="PID", help="the process the lock is bound to (default: the caller)")
    if name == "release":
        add("-f", "--force", action="store_true", help="remove it whoever holds it; the holder is not stopped")
    add("-p", "--protocol", default="sema", metavar="NAME",
        help="how the lock file is written and judged: one of those below (default: sema)")  # fmt: skip
    if name in ("run", "try", "acquire"):
        add("--payload", type=_payload, metavar="JSON", help="(-p sidecar) the object that the lock file holds")
        add("--holder", metavar="NAME", help="(-p beads) the name of the tool that holds the lock")
        add("--holder-version", dest="version", metavar="TEXT", help="(-p beads) and its version")
    if name != "run":
        add("-j", "--json", action="store_true", help="print one JSON object on stdout")
    add("-q", "--quiet", action="store_true", help="no messages but errors")
    add("-v", "--verbose", action="store_true", help="say what was done, too")


HELD_DEFAULT = {"run": HELD_RUN, "try": HELD, "acquire": HELD, "wait": HELD}


class _Version(argparse.Action):
    def __call__(self, *_args: Any, **_kwargs: Any) -> None:
        from .. import __version__

        print(f"holdfast {__version__}")
        raise SystemExit(0)


def _seconds(text: str) -> float:
    value = _number(text)
    if math.isnan(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 up")
    return value


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _duration(text: str) -> float:
    import re

    if not re.fullmatch(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|s|m|h))+", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a duration; write it as 500ms, 30s, 1m, 2h or 1h30m")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9.]+)(ms|s|m|h)", text))
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no time at all")
    return seconds


def _payload(text: str) -> dict[str, Any]:
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


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None


def _code(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 3 or int(text) > 255:
        raise argparse.ArgumentTypeError(f"{text!r} is not an exit status from 0 to 255")
    return int(text)


def _slots(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 4 or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 1000")
    return int(text)


def _pid(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 10 or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a process id")
    return int(text)


def _mode(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an octal mode, such as 644") from None
