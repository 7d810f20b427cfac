"""The command line. Each command's module is imported only when that command runs.

Exit status: 0 done; 1 held, or not free in time (`run`: 75; `-E` chooses another); 2 usage; 3 an error of the system or
of the lock path; 4 the lock was lost. `run` otherwise ends as its command ends.
"""

from __future__ import annotations

import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import NoReturn

    from ..model import Status

DONE, HELD, USAGE, FAILED, LOST = 0, 1, 2, 3, 4
STDOUT = "standard output"
_MODULES = {
    "ls": "ls",
    "status": "status",
    "doctor": "doctor",
    "watch": "watch",
    "top": "top",
    "timeline": "timeline",
    "clean": "clean",
    "break": "breaking",
    "reap": "reap",
    "completion": "completion",
    "postgresql": "postgresql",
}
"""The module of each command, where that is not `basic`; its function is called after the command, as `ls_`."""
HELD_RUN = 75
"""EX_TEMPFAIL: it differs from the 1 of a command that failed."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Run one command and exit with its status."""
    arguments = sys.argv[1:] if argv is None else argv
    _occupy_standard_descriptors()
    try:
        sys.exit(_dispatch(arguments))
    except KeyboardInterrupt:
        die_of(signal.SIGINT)
    except _Ended as ended:
        die_of(ended.number)
    finally:
        from .._core.report import say_how_to_break

        say_how_to_break(None)  # what has called this may go on, and use the library


class _Ended(BaseException):
    """A signal that ends the process; raised, so that a wait leaves nothing behind, no ticket above all."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _end(number: int, _frame: object) -> NoReturn:
    raise _Ended(number)


def _occupy_standard_descriptors() -> None:
    """Where stdin, stdout or stderr is closed, take its number, so that no lock file gets it and is written to.

    What is opened here does not cross exec: a command that is run finds closed what was closed.
    """
    import os

    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - print() and argparse would turn to stdout instead


def _dispatch(arguments: list[str]) -> int:
    from .._core.report import say_how_to_break

    if arguments[:1] in (["sema"], ["semats"]):
        say_how_to_break(lambda status: _command_to_break(None, status))
        return _drop_in(*arguments)
    from .arguments import parse

    options = parse(arguments)
    say_how_to_break(lambda status: _command_to_break(options, status))
    lacking = _lacking(options.command, getattr(options, "step", ""))
    if lacking:
        say(lacking)
        return FAILED
    try:
        if any("://" in word for word in arguments):
            from .urls import hide

            hide(arguments)
        if options.command == "run":
            from .run import run

            end_quickly(run(options))
        _heed_signals(quiet_end=True)
        if sys.stdout is not None:
            sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        if options.command == "beads":
            from .beads import beads

            return beads(options)
        from importlib import import_module

        module = import_module(f".{_MODULES.get(options.command, 'basic')}", __package__)
        command = getattr(module, options.command + "_")
        status: int = command(options)
        return status
    except Exception as error:
        return _failed(error)


def _lacking(command: str, step: str) -> str:
    """Why this system cannot run that command; empty where it can. Linux can run all of them (docs/platforms.md)."""
    if command == "run" or (command == "beads" and step == "daemon"):
        if not hasattr(signal, "sigtimedwait"):
            return (
                f"{command} needs a call that this system does not have (sigtimedwait). Hold the lock in the program "
                "itself, or between `holdfast try` and `holdfast release`"
            )
    elif command in ("watch", "top", "reap"):
        import select

        if not hasattr(select, "poll"):
            return f"{command} needs a call that this system does not have (poll). Use `holdfast ls` and `clean`"
    return ""


def _drop_in(name: str, *words: str) -> int:
    """A command with argument rules of its own, for scripts that were written for the original."""
    # Of an acquisition that cannot be told, nobody would hear: then it is an error, and given back.
    _heed_signals(quiet_end=not {"try", "acquire", "try-acquire"}.intersection(words))
    try:
        if name == "sema":
            from .sema import sema

            return sema([*words])
        from .semats import semats

        return semats([*words])
    except Exception as error:
        return _failed(error)


def _command_to_break(options: argparse.Namespace | None, status: Status) -> str:
    """The command for the lock of that status, ready for a shell; it says itself what else it needs."""
    import shlex

    from ..engines.registry import scheme_of

    given: str = getattr(options, "lock", None) or ""
    protocol = getattr(options, "protocol", None)
    words, path = ["holdfast", "break"], status.path
    is_file = not scheme_of(path)
    if protocol and is_file and not getattr(options, "slots", None):
        words += ["-p", protocol]  # which makes the path of the lock file from what was given
        path = given or path
    elif status.record is None and status.protocol and is_file:
        words += ["-p", status.protocol]  # the content does not say so
    return shlex.join([*words, f"./{path}" if path.startswith("-") else path])


def _heed_signals(*, quiet_end: bool) -> None:
    """Unless they are ignored, let the signals that end a process end a wait, which then leaves nothing behind."""
    if quiet_end and hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `holdfast status … | head` ends quietly
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _failed(error: Exception) -> int:
    from ..errors import HoldfastError, LockLost

    if isinstance(error, HoldfastError):
        text = str(error)
    elif isinstance(error, OSError):
        text = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    elif isinstance(error, (ValueError, TypeError)):
        say(str(error))
        return USAGE
    else:
        import traceback

        traceback.print_exception(error)  # a defect; Python's own status for it, 1, would say "held"
        return FAILED
    say(text)
    return LOST if isinstance(error, LockLost) else FAILED


def say(text: str) -> None:
    """A message for people, on stderr: one line, which a terminal gets folded between words. That nobody can read it is
    no reason to fail."""
    from .._core.report import printable
    from .table import screen

    if "://" in text:
        from .urls import masked

        text = masked(text)
    text = f"holdfast: {printable(text, 4000)}"
    width = screen(sys.stderr).width
    if width is not None and len(text) > width:
        from textwrap import wrap

        text = "\n".join(wrap(text, width, break_on_hyphens=False, break_long_words=False, subsequent_indent=" " * 10))
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def show(text: str) -> None:
    """A result, on stdout. That it cannot be written is an error: a script would go on without it."""
    try:
        print(text, flush=True)
    except OSError as error:
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter fails once more, at exit
        raise OSError(error.errno, error.strerror, STDOUT) from error


def end_quickly(status: int) -> NoReturn:
    """As `sys.exit`, but memory is not taken apart: after a fork that would touch, and so copy, each page of it."""
    import atexit
    import os
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            pass  # nothing of the command's is in there
    os._exit(status)


def die_of(number: int) -> NoReturn:
    """End as a process that this signal has killed, so that a calling shell sees exactly that."""
    import os

    at_work = getattr(sys.modules.get("holdfast._drive.agent"), "_agent", None)
    if at_work is not None:
        at_work.settle()  # what is yet to be told to a server; there will be no ordinary exit
    if number != getattr(signal, "SIGKILL", 0):  # whose action cannot be set
        signal.signal(number, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    sys.exit(128 + number)  # a signal that does not kill by default
