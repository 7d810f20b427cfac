"""Every command and its options, each spelled once; and a quick parser for some commands.

If nothing is out of the ordinary, `read` parses the words of `run`, `try`, `acquire`, `release`, `wait` and `status`
itself, by the table of options: `argparse`, with what it loads, takes as long as all the rest of `holdfast run`.
Anything else (help, an error, an unusual spelling, another command) is left to `argparse` (parser.py), by the same
table. A test checks that both read the same words alike.
"""

from __future__ import annotations

import os

from ..errors import EngineUnavailable, HoldfastError
from .outcome import HELD, HELD_RUN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace as Namespace
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any
else:

    class Namespace:
        """The parsed options, like argparse's."""


# -- values as they are typed ------------------------------------------------------------------------------------------


class Wrong(ValueError):
    """A typed value that is not valid; the text says why."""


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str) -> float:
    """Seconds: a number of them, or numbers with units: 90, 1.5, 500ms, 30s, 5m, 1h30m, 2d. `inf` is forever."""
    try:
        value = float(text)
    except ValueError:
        value = _with_units(text)
    if not value >= 0:  # nor is NaN
        raise Wrong(f"{text[:40]!r} is not a duration of 0 or more")
    return value


def _with_units(text: str) -> float:
    rest, total = text, 0.0
    while True:
        behind = rest.lstrip("0123456789.")
        number, unit = rest[: len(rest) - len(behind)], behind[: len(behind) - len(behind.lstrip("dhimns"))]
        if unit not in _UNITS or number.count(".") > 1 or not number.strip("."):
            raise Wrong(f"{text[:40]!r} is not a duration; write seconds, or units, as in 500ms, 30s, 5m, 1h30m, 2d")
        total += float(number) * _UNITS[unit]
        rest = behind[len(unit) :]
        if not rest:
            return total


def period(text: str) -> float:
    """A duration that can be waited for again and again: neither 0 nor infinite."""
    value = duration(text)
    if not 0 < value < float("inf"):
        raise Wrong(f"{text[:40]!r} is no time at all" if not value else f"{text[:40]!r} never ends")
    return value


def span(text: str) -> tuple[int, int]:
    """Start and length of a range of bytes."""
    start, colon, length = text.partition(":")
    if not colon or not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in (start, length)):
        raise Wrong(f"{text[:40]!r} is not START:LENGTH in bytes, such as 0:512")
    return int(start), int(length)


def yes_or_no(text: str) -> bool:
    """The value of a switch that has a default."""
    if text not in ("yes", "no"):
        raise Wrong(f"{text[:40]!r} is neither yes nor no")
    return text == "yes"


def payload(text: str) -> dict[str, Any]:
    import json

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        value = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Wrong(f"it is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise Wrong("it is not a JSON object: write {...}")
    return value


def _whole(least: int, most: int, what: str) -> Callable[[str], int]:
    """A conversion to a number from `least` to `most`, without a sign, and with no more digits than `most`."""

    def convert(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and least <= int(text) <= most):
            raise Wrong(f"{text!r} is not {what}")
        return int(text)

    return convert


code = _whole(0, 255, "an exit status from 0 to 255")
slots = _whole(1, 1000, "a number from 1 to 1000")
pid = _whole(1, 2**31 - 1, "a process id")


def mode(text: str) -> int:
    try:
        value = int(text, 8)
    except ValueError:
        raise Wrong(f"{text!r} is not an octal mode, such as 644") from None
    if not 0 <= value <= 0o777:
        raise Wrong(f"{text[:40]!r} is not permission bits from 0 to 777")
    return value


# -- the commands ------------------------------------------------------------------------------------------------------

COMMANDS = {
    "run": "hold LOCK while CMD runs; end as CMD ends",
    "try": "acquire LOCK for the calling shell if it is free",
    "acquire": "acquire LOCK for the calling shell, waiting for it",
    "release": "release LOCK, acquired by try or acquire",
    "wait": "wait until LOCK is free, without acquiring it",
    "status": "show who holds LOCK, since when, why, and how that is known",
}
_OTHERS = {
    "ls": "list lock files: who holds them, for how long, and who waits",
    "watch": "print what happens to lock files, as it happens",
    "top": "show who holds and who waits, live",
    "timeline": "draw recorded events as a page: who held, who waited, when",
    "doctor": "say what the filesystem of a directory can do for locks, and what is wrong",
    "clean": "remove what dead processes left: locks, temporary files, tickets",
    "break": "remove one lock, if it is still the one that was seen",
    "reap": "watch a directory, and remove the lock of each holder that dies",
    "protocols": "say which protocol a lock needs, given what else uses it",
    "postgresql": "init: prepare a PostgreSQL database for locks",
    "completion": "print a script that makes a shell complete this command line",
}
_DROP_INS = {
    "beads": "check, daemon: the daemon's side of the lock of beads up to 0.49",
    "sema": "the command line of the sema tool",
    "semats": "the command line of the semats tool",
}
SUMMARIES = {**COMMANDS, **_OTHERS, **_DROP_INS}
BEADS = {
    "check": "say whether a daemon may work on DIR now; remove a dead holder's lock",
    "daemon": "run CMD at intervals, except while a tool holds the database DIR",
}
PROTOCOLS = {
    "sema": "LOCK is the lock file (the default)",
    "semats": "LOCK is the lock file, as with sema, or a symbolic link to it",
    "sidecar": "LOCK is a file to protect; its lock file LOCK.lock holds a JSON payload",
    "beads": "LOCK is the directory of a database; excludes the daemon of beads up to 0.49",
    "flock": "LOCK is a file that stays; the kernel's lock on it is the lock, as with flock(1)",
    "ofd": "LOCK is a file that stays; a record lock on it is the lock, as with lockf, dpkg and Java",
    "proper-lockfile": "LOCK is a file to protect; its lock is the directory LOCK.lock, kept fresh (npm)",
}

# -- the options -------------------------------------------------------------------------------------------------------


def _option(spelled: str, text: str, **more: Any) -> tuple[str, str, dict[str, Any]]:
    """A row of the table: `-n --name`, a switch; `-n --name=VALUE`; `name=SHOWN`, an operand. `more`: for argparse."""
    return spelled, text, more


SHELLS = ("bash", "zsh", "fish")
SORTS = ("wait", "held", "waiters", "path", "pid", "state")
_LOCK = "the lock file, or what the protocol derives it from (holdfast protocols); or a URL"
_HELD = "exit status if it is held or the time is up (default: {})"
_GROUPED = "order: wait (longest first), held (longest first), waiters (most first), path, pid, state (default: wait)"
_LONG = "only those that have been held for longer; the exit status is 1 if there are any (for monitoring)"
_LIMIT = "end CMD, and all that it has started, after holding LOCK for this long; the exit status is that of -E"
_LEASE = "replace a holder that has been silent for this long; 0: never (default: 30 on NFS, SMB and the like; else 0)"
_KILL = "time from TERM to KILL, for all of CMD, if the lock is lost or --limit is over; inf: never (default: 10)"
SEMAPHORE = "the N slots of the semaphore LOCK, as in run --slots"
WRITTEN = "how the lock file is written and judged; holdfast protocols has the names (default: {})"
JSON, EACH = "print JSON on stdout: one object", "print JSON on stdout: one object for each, on a line of its own"
_BETWEEN = "time from the start of a cycle to the start of the next: 500ms, 30s, 1m, 2h (default: 1m)"
_OPTIONS = {
    "lock": _option("lock=LOCK", _LOCK),
    "locks": _option("locks=LOCK", _LOCK, nargs="+"),
    "dir": _option("lock=DIR", "the directory of the database, where the lock file .exclusive-lock is"),
    "places": _option("places=DIR", "", nargs="*"),
    "place": _option("place=DIR", "a directory for lock files, or a URL (default: this directory)",
        nargs="?", default="."),
    "peer": _option("--peer=DIR2", "also test DIR against the same directory mounted at DIR2"),
    "listen": _option("--listen", "wait for another machine that uses --with, and test DIR together with it"),
    "with": _option("--with=HOST", "test DIR together with HOST, which uses --listen", dest="host"),
    "peer-timeout": _option("-w --timeout=DURATION", "wait for the other machine at most this long (default: 60)",
        type=duration, default=60.0),
    "directory": _option("directory=DIR", "the directory of the lock files"),
    "events": _option("events=EVENTS", "a file of events"),
    "action": _option("action=ACTION", "init: create the schema and the table, if need be", choices=("init",)),
    "url": _option("url=URL", "the database: postgresql://user@host:port/database"),
    "shell": _option("shell=SHELL", "bash, zsh or fish", choices=SHELLS),
    "nonblock": _option("-n --nonblock", "do not wait: one try"),
    "timeout": _option("-w --timeout=DURATION", "wait at most this long: 5, 30s, 5m, 1h30m (default: forever)",
        type=duration),
    "code": _option("-E --conflict-exit-code=N", _HELD.format(HELD), type=code, default=HELD, dest="held_code"),
    "run-code": _option("-E --conflict-exit-code=N", _HELD.format(HELD_RUN),
        type=code, default=HELD_RUN, dest="held_code"),
    "tag": _option("-t --tag=TEXT", "say what the lock is held for"),
    "fencing": _option("--fencing", "give each holder a fencing token: a number higher than all before it",
        default=None),
    "durable": _option("--durable", "fsync the lock file: it survives a power cut"),
    "lease": _option("--lease=DURATION", _LEASE, type=duration),
    "line": _option("-c --command=LINE", "instead of CMD, run this line in /bin/sh (on Windows, in cmd)", dest="line"),
    "parents": _option("--parents", "create missing directories"),
    "mode": _option("--mode=OCTAL",
        "permission bits of a new lock file, before the umask (default: the protocol's; sema: 644)", type=mode),
    "kill-after": _option("--kill-after=DURATION", _KILL, type=duration, default=10.0),
    "limit": _option("--limit=DURATION", _LIMIT, type=duration),
    "on-conflict": _option("--on-conflict=LINE", "a shell command to run if it is held or the time is up"),
    "until": _option("--until",
        "what has to end before LOCK is free. command: CMD; jobs: also what it left running in this session, but not "
        "daemons; all: everything that it started (default: jobs)", choices=("command", "jobs", "all"), default="jobs"),
    "record": _option("--record=FILE", "append what happens to the lock to FILE, for holdfast timeline"),
    "slots": _option("--slots=N", SEMAPHORE, type=slots),
    "shared": _option("--shared", "share it with others that use --shared (-p flock and ofd only)"),
    "stale": _option("--stale",
        "when to take over another's lock. safe: its holder is proven dead, or the protocol calls it stale and its "
        "process has ended, as far as can be seen here; protocol: the protocol calls it stale; never: not at all "
        "(default: safe)", choices=("safe", "protocol", "never"), default="safe"),
    "stale-after": _option("--stale-after=DURATION",
        "age at which the protocol calls a lock stale (default: the protocol's own; sema: 1h)", type=duration),
    "owner": _option("--owner-pid=PID", "the process that the lock is bound to (default: the calling shell)",
        type=pid),
    "no-keeper": _option("--no-keeper", "leave only the file: no process guards it or keeps it fresh"),
    "force": _option("-f --force", "remove it even if its holder lives; the holder is not stopped"),
    "protocol": _option("-p --protocol=NAME", WRITTEN.format("sema")),
    "payload": _option("--payload=JSON",
        "(-p sidecar) the content of the lock file (default: pid, host, createdAt, tag)", type=payload),
    "range": _option("--range=START:LENGTH", "(-p ofd) the bytes to lock; a length of 0: to the end (default: all)",
        type=span),
    "realpath": _option("--realpath=YES",
        "(-p proper-lockfile) yes: LOCK has to exist, and links are followed; or no (default: yes)", type=yes_or_no),
    "holder": _option("--holder=NAME", "(-p beads) the name of the tool that holds the lock (default: holdfast)"),
    "version": _option("--holder-version=TEXT", "(-p beads) the version of that tool", dest="version"),
    "recursive": _option("-r --recursive", "search subdirectories at any depth"),
    "held": _option("--held", "only those that a contender would not get"),
    "only-stale": _option("--stale", "only those that a contender would take over"),
    "all": _option("-a --all", "add every file that the kernel has locked, wherever it is and by whatever program"),
    "older": _option("--older-than=DURATION", "only those known to be older", type=duration),
    "held-longer": _option("--held-longer-than=DURATION", _LONG, type=duration),
    "sort": _option("--sort=KEY", "order: age (oldest first), path, pid, state (default: path)",
        choices=("age", "path", "pid", "state"), default="path"),
    "top-sort": _option("--sort=KEY", _GROUPED, choices=SORTS, default="wait"),
    "reverse": _option("-r --reverse", "reverse the order"),
    "once": _option("--once", "print the present state, and end"),
    "seconds": _option("--seconds=DURATION", "end after this time (default: run until a signal)", type=duration),
    "output": _option("-o --output=PAGE", "the file for the page (default: EVENTS.html); - is stdout"),
    "yes": _option("-y --yes", "remove it; without this option, only show it"),
    "approve": _option("--approve-stale", "also remove what is stale if nothing is known of its holder"),
    "id": _option("--id=ID", "the acquisition to remove (default: ask on the terminal)"),
    "schema": _option("--schema=NAME", "the schema to create (default: that of the URL, else holdfast)"),
    "grant": _option("--grant=ROLE", "let ROLE use locks there; may be given again", action="append", default=[]),
    "print": _option("--print", "print the SQL instead of running it; needs no server"),
    "interval": _option("--interval=DURATION", _BETWEEN, type=period, default=60.0),
    "log": _option("--log=FILE", "append log lines to FILE (default: stderr)"),
    "json": _option("-j --json", "print one JSON object on stdout"),
    "quiet": _option("-q --quiet", "no messages but errors"),
    "verbose": _option("-v --verbose", "also say what was done"),
}  # fmt: skip

_NEW = "tag fencing durable lease parents mode"
_ACQUIRING = f"{_NEW} stale stale-after owner no-keeper protocol payload holder version realpath json quiet verbose"
_TABLE = {
    "run": f"locks line nonblock timeout run-code on-conflict limit kill-after until {_NEW} record slots shared stale "
    "stale-after protocol payload holder version realpath range quiet verbose",
    "try": f"lock code {_ACQUIRING}",
    "acquire": f"lock nonblock timeout code {_ACQUIRING}",
    "release": "lock owner protocol realpath json quiet verbose",
    "wait": "locks nonblock timeout code slots shared stale stale-after protocol realpath range json quiet verbose",
    "status": "locks slots shared stale stale-after protocol realpath range json quiet verbose",
    "ls": "places recursive all held only-stale older held-longer sort json quiet",
    "watch": "places seconds record quiet",
    "top": "places top-sort reverse once json record quiet",
    "timeline": "events output quiet",
    "doctor": "place peer listen with peer-timeout json quiet",
    "clean": "places yes recursive approve json quiet",
    "break": "lock id yes force protocol json quiet",
    "reap": "directory quiet",
    "protocols": "json",
    "postgresql": "action url schema grant print quiet",
    "completion": "shell",
    "beads check": "dir json quiet",
    "beads daemon": "dir interval log verbose",
}
"""The options of each command, in the order of its help."""
_OF_PROTOCOLS = ("payload", "holder", "version", "realpath", "range")
"""Options of `Lock` that only some protocols have."""

# -- reading -----------------------------------------------------------------------------------------------------------


def read(arguments: Sequence[str]) -> Namespace | None:
    """The options of a command; None if argparse has to parse the words."""
    name, *words = arguments or [""]
    if name not in COMMANDS:
        return None
    words, command = split_run(words) if name == "run" else (words, [])
    options = _read(name, words)
    if options is None or completed(name, options, [], command):
        return None
    if name == "run" and options.line is not None and behind_line(words):
        return None
    options.command = name
    return options


def _read(name: str, words: list[str]) -> Namespace | None:
    """The values of options and operands, with the defaults of those not given; None for anything unusual."""
    options, operand, several = Namespace(), "", False
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for flags, more in map(option_of, options_of(name)):
        dest = more.get("dest") or flags[-1].lstrip("-").replace("-", "_")
        setattr(options, dest, more.get("default", False if "action" in more else None))
        if flags[0].startswith("-"):
            found.update(dict.fromkeys(flags, (dest, more)))
        else:
            operand, several = dest, "nargs" in more
    operands: list[str] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            operands.append(word)
            continue
        flag, equals, text = word.partition("=") if word.startswith("--") else (word, "", "")
        dest, more = found.get(flag, ("", {}))
        if not dest or (equals and "action" in more):
            return None
        if "action" in more:
            setattr(options, dest, True)
            continue
        text = text if equals else next(rest, "-")
        if text.startswith("-") and not equals:
            return None
        try:
            value = more.get("type", str)(text)
        except ValueError:
            return None
        if value not in more.get("choices", (value,)):
            return None
        setattr(options, dest, value)
    if not operands or (len(operands) > 1 and not several):
        return None
    setattr(options, operand, operands if several else operands[0])
    return options


def split_run(words: list[str]) -> tuple[list[str], list[str]]:
    """Our words, and those of the command: behind `--`, or from the word behind the only LOCK on."""
    if "--" in words:
        return split(words)
    for number, (at, has_line) in enumerate(_operands_of_run(words)):
        if number and not has_line:
            return words[:at], words[at:]
    return words, []


def behind_line(words: list[str]) -> str:
    """The first word behind `-c LINE` that would count as one more LOCK, as in `-c echo hello`; empty without one."""
    operands = [*_operands_of_run(words)]
    return next((words[at] for at, has_line in operands[1:] if has_line and not operands[0][1]), "")


def _operands_of_run(words: list[str]) -> Iterator[tuple[int, bool]]:
    """Positions of the operands among the words of `run`, each with whether `-c` comes before it."""
    valued = {flag for flags, more in map(option_of, options_of("run")) if "action" not in more for flag in flags}
    has_line = value_follows = False
    for at, word in enumerate(words):
        if value_follows:
            value_follows = False
        elif word.startswith("--"):
            has_line = has_line or word.partition("=")[0] == "--command"
            value_follows = word in valued
        elif word.startswith("-") and word != "-":
            letters = [f"-{letter}" for letter in word[1:]]
            first = next((number for number, letter in enumerate(letters) if letter in valued), len(letters))
            has_line = has_line or "-c" in letters[first : first + 1]
            value_follows = first == len(letters) - 1
        else:
            yield at, has_line


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """Our words, and those of the command behind `--`."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def completed(name: str, options: Namespace, rest: list[str], command: list[str]) -> str:
    """Add options that follow from the others; an error message, or empty. `rest`: neither options nor operands."""
    if rest:
        hint = ""
        if name == "release" and {"-f", "--force"}.intersection(rest):
            hint = f". To remove another's lock: holdfast break --force {options.lock}"
        return f"unrecognized arguments: {' '.join(rest)}{hint}"
    locks: list[str] | None = getattr(options, "locks", None)
    if locks is not None:
        options.lock = locks[0]
    # Ancestors that owner.py has named, for all LOCKs; no set, as a guardian on Windows gets JSON (job.py).
    options.told_of = []
    if name == "run" and (wrong := _wrong_command(options, command)):
        return wrong
    if name == "try":
        options.timeout = 0.0
    if getattr(options, "nonblock", False):
        if options.timeout is not None:
            return "-n/--nonblock and -w/--timeout exclude each other"
        options.timeout = 0.0
    return _wrong_for_protocol(options)


def _wrong_command(options: Namespace, command: list[str]) -> str:
    """An error message about CMD, or empty; CMD becomes `options.cmd`."""
    if options.line is not None and command:
        return "-c and CMD exclude each other"
    if options.line is not None:
        on_windows = os.sep == "\\"
        command = [os.environ["COMSPEC"], "/d", "/s", "/c"] if on_windows else ["/bin/sh", "-c", options.line]
    if not command or not command[0]:
        return "no command; write: holdfast run [options] LOCK -- CMD [ARG ...]"
    options.cmd = command
    second = options.locks[1] if len(options.locks) > 1 else ""
    if second and _is_program(second):
        return (
            f"is {second} a LOCK, or the command? Put -- before the command: "
            f"holdfast run [options] {options.lock} -- {' '.join([*options.locks[1:], '--', *command])}"
        )
    return ""


def _is_program(name: str) -> bool:
    """Whether a shell would start something by that name, and no file of that name here is meant."""
    from .._drivers.apart import seen_at

    try:
        return seen_at(name, lambda: _can_be_started(name))
    except EngineUnavailable:
        return False  # then it is taken for a LOCK


def _can_be_started(name: str) -> bool:
    if os.sep not in name and os.path.lexists(name):
        return False
    endings = [""]
    if os.sep == "\\":
        endings = os.environ.get("PATHEXT", ".EXE").upper().split(";")
        if os.path.splitext(name)[1].upper() in endings:
            endings = [""]
    return any(is_executable(place + ending) for place in places_of(name) for ending in endings)


def places_of(name: str) -> list[str]:
    """Paths where execvp(3) looks for a command of that name."""
    return [name] if os.sep in name else [os.path.join(place, name) for place in os.get_exec_path()]


def is_executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _wrong_for_protocol(options: Namespace) -> str:
    """Why an option makes no sense with the protocol, or empty: it would silently do nothing."""
    from .. import protocols

    name = options.protocol or "sema"
    try:
        protocol = protocols.get(name)
    except (ValueError, HoldfastError) as error:
        return str(error)
    for option in _OF_PROTOCOLS:
        if getattr(options, option, None) is not None and option not in protocol.options:
            those = [other for other in PROTOCOLS if option in protocols.get(other).options]
            flag = option_of(option)[0][-1]
            return f"{flag} is an option of -p {' and -p '.join(those)}; -p {name} does not have it"
    if name == "beads" and getattr(options, "slots", None) is not None:
        return "--slots makes no sense with -p beads: its daemon looks at one lock file only"
    if not protocol.has_age and getattr(options, "stale_after", None) is not None:
        return f"--stale-after makes no sense with -p {name}: a lock is stale when its process is dead, at any age"
    return ""


def option_of(name: str) -> tuple[list[str], dict[str, Any]]:
    """An option's flags, and its keywords for argparse."""
    spelled, text, more = _OPTIONS[name]
    flags, _, metavar = spelled.partition("=")
    if metavar:
        more = {"metavar": metavar, **more}
    elif "choices" not in more:
        more = {"action": "store_true", **more}
    return flags.split(), {"help": text, **more}


def options_of(command: str) -> list[str]:
    """The names of the options of a command, in the order of its help."""
    return _TABLE[command].split()
