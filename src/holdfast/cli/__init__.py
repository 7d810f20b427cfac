"""The command line. Each command's module is imported only when that command runs.

Exit status: 0 done; 1 held, or not free in time (`run`: 75; `-E` chooses another); 2 usage; 3 an error of the system or
of the lock path; 4 the lock was lost. `run` otherwise ends as its command ends.
"""

from __future__ import annotations

import gc
import os
import sys

from .._platform import environment
from ..errors import HoldfastError
from .outcome import Ended, die_of, end_quickly, end_with_reader, failed, hide, open_null, say, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from ..model import Status
    from .options import Namespace

_MODULES = {"break": "breaking", "protocols": "which", "try": "acquire"}
"""Modules whose name is not that of their command; the function is always named after the command, as `ls_`."""

_COLLECT_AFTER = 50_000
"""New objects after which Python looks for reference cycles. A command makes few of those: with Python's usual 700, a
list of many locks takes 5 % longer, and a start 2 %."""

_NOT_ON_SERVERS = {
    "clean": "there is nothing to clean on a server, which forgets clients that are gone. For a living holder, use "
    "break",
    "reap": "there is nothing to reap on a server, which frees the locks of clients that are gone",
    "top": "top shows lock files only; for locks on a server, use holdfast ls or holdfast watch",
    "timeline": "events are read from a file; holdfast watch --record FILE records those of locks on a server",
}
"""What commands for files alone say of a URL."""
_PATHS = ("place", "peer", "directory", "events", "output", "record", "log")
"""Options and operands that name a file or a directory; a LOCK is checked by `Lock` itself."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Run one command and exit with its status."""
    from ..events import report_to

    if argv is None and hasattr(gc, "set_threshold"):  # the process is this command's; PyPy has no such number
        gc.set_threshold(_COLLECT_AFTER)
    arguments = sys.argv[1:] if argv is None else argv
    report_to(say)
    before = sys.unraisablehook
    sys.unraisablehook = lambda dropped: _send_again_or(before, dropped)
    _occupy_standard_descriptors()
    try:
        sys.exit(_dispatch(arguments))
    except KeyboardInterrupt:
        die_of(signal.SIGINT)
    except Ended as ended:
        die_of(ended.number)
    finally:
        sys.unraisablehook = before
        from .._core.attempt import say_how_to_break

        report_to(None)
        say_how_to_break(None)  # the caller may go on, and use the library


def _end(number: int, _frame: object) -> NoReturn:
    raise Ended(number)


def _send_again_or(usual: Callable[[sys.UnraisableHookArgs], object], dropped: sys.UnraisableHookArgs) -> None:
    """Have a signal come once more, in a moment, if Python has swallowed the exception that it raised: this happens in
    the callback of a weak reference, and each import has one. Whatever else was swallowed is left to the usual hook."""
    error = dropped.exc_value
    number = error.number if isinstance(error, Ended) else signal.SIGINT if isinstance(error, KeyboardInterrupt) else 0
    if number and hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, lambda _number, _frame: os.kill(os.getpid(), number))
        signal.setitimer(signal.ITIMER_REAL, 0.001)
    else:
        usual(dropped)


def _occupy_standard_descriptors() -> None:
    """Occupy the numbers of closed standard streams, so that no lock file gets one and is written to. These descriptors
    do not cross exec: a command finds closed what was closed."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            open_null()  # the lowest free number: this one
    if sys.stderr is None:
        sys.stderr = open(open_null(), "w")  # noqa: SIM115 - print() and argparse would turn to stdout instead


def _dispatch(arguments: list[str]) -> int:
    from .._core.attempt import say_how_to_break

    if arguments[:1] == ["help"]:
        about = [word for word in arguments[1:] if word != "--"]
        arguments = [*about, "--help"] if about != ["help"] else ["--help"]
    options = None
    try:
        env = environment()
    except ValueError as error:  # of a variable
        return failed(error)
    try:
        env.asks_first = True
        if arguments[:1] in (["sema"], ["semats"]):
            say_how_to_break(lambda status: _command_to_break(None, status))
            # An acquisition that cannot be reported is an error, and given back.
            _heed_signals(quiet_end=not {"try", "acquire", "try-acquire"}.intersection(arguments))
            return _function(arguments[0], arguments[0])(arguments[1:])
        options = parse(arguments)
        say_how_to_break(lambda status: _command_to_break(options, status))
        _require_calls(options.command, getattr(options, "step", ""))
        if any("://" in word for word in arguments):
            hide(arguments)
        if options.command == "run":
            if env.has_jobs:
                from .job import run
            else:
                from .run import run

            end_quickly(run(options))
        _heed_signals(quiet_end=True)
        if sys.stdout is not None:
            sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        return perform(options)
    except Exception as error:
        return failed(error, options)
    finally:
        env.asks_first = False


def perform(options: Namespace) -> int:
    """Run the command by the function named after it."""
    from .locks import is_url, refuse_empty

    command, places = options.command, getattr(options, "places", ())
    named = (*_PATHS, "lock") if command == "beads" else _PATHS
    for place in (*places, *(getattr(options, one, None) for one in named)):
        refuse_empty(place)
    subjects = *places, getattr(options, "directory", None), getattr(options, "events", None)
    if command in _NOT_ON_SERVERS and any(map(is_url, subjects)):
        raise ValueError(_NOT_ON_SERVERS[command])
    return _function(_MODULES.get(command, command), f"{command}_")(options)


def _function(module: str, name: str) -> Callable[..., int]:
    # Not by `importlib`, which would have to be loaded first.
    found: Callable[..., int] = getattr(__import__(f"{__package__}.{module}", fromlist=[name]), name)
    return found


def parse(arguments: list[str]) -> Namespace:
    """The options of one command; exits with status 2 and a usage line for anything else."""
    from .options import read

    options = read(arguments)
    if options is None:
        from .parser import parse as parse_anything

        options = parse_anything(arguments)
    return options


def _require_calls(command: str, step: str) -> None:
    """Raise HoldfastError if this system cannot run that command. CPython on Linux can run all of them."""
    if command == "run" or (command == "beads" and step == "daemon"):
        missing = "sigwait" if not hasattr(signal, "sigwait") else "" if hasattr(os, "posix_spawnp") else "posix_spawnp"
        if missing and not (command == "run" and environment().has_jobs):
            raise HoldfastError(
                f"{command} needs a call that this system does not have ({missing}). Hold the lock in the program "
                "itself, or between `holdfast try` and `holdfast release`"
            )


def _command_to_break(options: Namespace | None, status: Status) -> str:
    """The `break` command for the lock of that status, quoted for a shell; it says itself what else it needs."""
    from .._core.messages import quoted
    from .locks import is_url

    protocol: str = getattr(options, "protocol", None) or ""
    path = status.path
    words, is_file = ["holdfast", "break"], not is_url(path)
    given = _given_for(options, path) if protocol and is_file and not getattr(options, "slots", None) else None
    if given is not None:
        words += ["-p", protocol]  # with which `break` derives the lock file from the given path
        path = given
    elif status.record is None and status.protocol in ("sema", "semats") and is_file:  # whose lock file is LOCK itself
        words += ["-p", status.protocol]  # the content does not name it
    return quoted(*words, f"./{path}" if path.startswith("-") else path)


def _given_for(options: Namespace | None, path: str) -> str | None:
    """The LOCK as it was typed, of which that is the lock file; None if none of several is."""
    from ..lock import Lock
    from .locks import each_of, lock_options

    if len(getattr(options, "locks", ())) < 2:
        return getattr(options, "lock", None)
    assert options is not None
    return next((one.lock for one in each_of(options) if Lock(one.lock, **lock_options(one)).path == path), None)


def _heed_signals(*, quiet_end: bool) -> None:
    """Have the signals that end a process raise `Ended`, so that a wait leaves nothing; ignored ones stay ignored."""
    if quiet_end:
        end_with_reader()
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
