"""What may be typed: every command's options, each spelled once."""

from __future__ import annotations

import argparse
import math

from .. import protocols
from . import HELD, HELD_RUN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_COMMANDS = {
    "run": "hold LOCK while CMD runs; end as CMD ends",
    "try": "acquire LOCK for the calling shell if it is free",
    "acquire": "acquire LOCK for the calling shell, waiting for it",
    "release": "release LOCK, acquired by try or acquire",
    "wait": "wait until LOCK is free, without acquiring it",
    "status": "show who holds LOCK, since when, why, and how that is known",
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
_NOTES = {
    "run": _RUN_NOTE,
    "try": _SHELL_NOTE,
    "acquire": _SHELL_NOTE,
    "release": "exit status: 0 released, or nobody held it; 1 held by another; 2 usage; 3 system error",
    "wait": "exit status: 0 free; 1 still held when the time was up (-E); 2 usage; 3 system error",
    "status": "exit status: 0 a contender would get it; 1 held; 2 usage; 3 system error",
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of one command; exits with status 2 and a usage line for anything else."""
    name, *words = arguments or [""]
    if name not in _COMMANDS:
        overview = _overview()
        overview.parse_args([*arguments])  # exits: help, version, or an error
        overview.error(f"the command comes first, not {name!r}")
    parser = _parser(name)
    command: list[str] = []
    if name == "run" and "--" in words:
        at = words.index("--")
        words, command = words[:at], words[at + 1 :]
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
    return options


def _overview() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdfast",
        usage="holdfast [-h] [--version] COMMAND ...",
        description="Locks that every language agrees on: held by the kernel, waited for without polling.",
        epilog="commands:\n"
        + "\n".join(f"  {name:<9} {summary}" for name, summary in _COMMANDS.items())
        + "\n\n`holdfast COMMAND --help` has the options of each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    parser.add_argument("command", metavar="COMMAND", choices=_COMMANDS, help=argparse.SUPPRESS)
    return parser


def _parser(name: str) -> argparse.ArgumentParser:
    """One command's parser. Only that one is made: building all of them took longer than acquiring a lock."""
    summary = _COMMANDS[name]
    parser = argparse.ArgumentParser(
        prog=f"holdfast {name}",
        usage="holdfast run [options] LOCK -- CMD [ARG ...]" if name == "run" else f"holdfast {name} [options] LOCK",
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=_NOTES[name],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_options(name, parser)
    return parser


def _add_options(name: str, command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("lock", metavar="LOCK", help="path of the lock file")
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
    add("-p", "--protocol", choices=protocols.names(), default="sema",
        help="protocol of the lock file: sema (default), or flock, the kernel's lock on a file that stays")  # fmt: skip
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
