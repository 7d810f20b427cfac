"""The output and the end of a command: messages, results, the exit status."""

from __future__ import annotations

import errno
import os
import sys

from .._platform import environment
from ..engines.file.steps import disconnected
from ..errors import HoldfastError, LockLost
from ..events import is_refusal
from ..model import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as signal
    from typing import Any, NoReturn, TextIO
else:
    import _signal as signal  # without its enumerations, whose import takes longer than acquiring a lock

DONE, HELD, USAGE, FAILED, LOST = 0, 1, 2, 3, 4
HELD_RUN = 75
"""EX_TEMPFAIL, which differs from the 1 of a command that failed."""
CONTROL_C = -0x3FFFFEC6
"""STATUS_CONTROL_C_EXIT, which Windows gives to a process that Ctrl-C has ended. It has no signals to die of."""
STDIN, STDOUT = "standard input", "standard output"
_PASSWORD = r"(://[^/?#\s:@]*):[^/?#\s]*@"
_SECRETS = r"(?<=[?&])(?:[a-z_]*password|[a-z_]*secret|[a-z_]*key)=[^&#\s]*&?"
_EMPTY = r"[?&](?=#|$)"
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35"}
_TO_COPY = r"\(holdfast break .*?\)(?=\.|$)|(?<=: )holdfast release .*"
_USUAL_WIDTH = 80


class Ended(BaseException):
    """A signal (its number) that ends the process, raised so that a wait leaves nothing behind, above all no ticket."""

    def __init__(self, number: int) -> None:
        self.number = number


def say(text: str) -> None:
    """Print a message for people on stderr: one line, folded on a terminal. Failing to write is no error."""
    if "://" in text:
        text = masked(text)
    from .._core.messages import printable

    try:
        print(folded(f"holdfast: {printable(text, 4000)}", sys.stderr), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def folded(line: str, stream: TextIO) -> str:
    """A printable line, for this stream: on a terminal folded between words, so that a path stays in one piece."""
    width = screen(stream).width
    if width is None or len(line) <= width:
        return line
    return "\n".join(wrapped(line, width, " " * 10))


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """A printable text as lines, all but the first indented. A command to be copied stays in one piece, as paths do."""
    import re
    from textwrap import wrap

    # A shell would take two lines for two commands.
    whole = re.sub(_TO_COPY, lambda command: command[0].replace(" ", "\0"), text)
    lines = wrap(whole, width, break_on_hyphens=False, break_long_words=False, subsequent_indent=indent)
    return [line.replace("\0", " ") for line in lines]


def show(text: str) -> None:
    """Print a result on stdout. Failing to write is an error: a script would go on without the result."""
    try:
        print(text, flush=True)
    except OSError as error:
        raise _unwritten(error) from error


def show_bytes(data: bytes) -> None:
    """Like `show`, for the bytes of a whole file, whatever the encoding of stdout."""
    if sys.stdout is None:
        return  # as print() does
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        raise _unwritten(error) from error


def open_null() -> int:
    """A descriptor that leads nowhere, even in a chroot without `/dev/null`."""
    try:
        return os.open(os.devnull, os.O_RDWR)
    except OSError:
        if not hasattr(os, "memfd_create"):
            raise
        return os.memfd_create("null")


def _unwritten(error: OSError) -> OSError:
    os.dup2(open_null(), sys.stdout.fileno())  # or the interpreter fails once more, at exit
    return OSError(error.errno, error.strerror, STDOUT)


def end_with_reader() -> None:
    """Have this process end quietly when the reader of its stdout has gone: `holdfast status … | head`."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def failed(error: Exception, options: Any = None) -> int:
    """Report a failure, with `--json` also as an object on stdout; the exit status."""
    status, text = FAILED, str(error)
    if isinstance(error, HoldfastError):
        status = LOST if isinstance(error, LockLost) else FAILED
    elif isinstance(error, FileNotFoundError) and not error.filename and _is_nowhere():
        text = "the working directory no longer exists; change to another one, or begin paths with a /"
    elif isinstance(error, OSError):
        said = error.strerror or str(error)
        text = problem_at(error.filename, error) if error.filename and error.strerror else said
        if error.errno in (errno.EMFILE, errno.ENFILE) and said == os.strerror(error.errno):  # no engine has said more
            text = f"{text}; {_limit_reached()}"
        text = "; ".join((text, *getattr(error, "__notes__", ())))
    elif isinstance(error, (ValueError, TypeError)):
        status = USAGE
    elif is_refusal(error):
        text = f"the system refused a thread or memory; {_limit_reached()}"
    else:
        import traceback

        traceback.print_exception(error)  # a defect; Python's own status for it, 1, would say "held"
        text = ""
    if text:
        say(text)
    if getattr(options, "json", False):
        _show_failure(options, status, text or repr(error))
    return status


def _show_failure(options: Any, status: int, why: str) -> None:
    """Show the failure as one line of JSON."""
    import json

    is_about_one = hasattr(options, "lock") and len(getattr(options, "locks", ())) <= 1
    lock = masked(options.lock) if is_about_one else None
    try:
        show(json.dumps({"result": "failed", "lock": lock, "status": status, "why": masked(why)}))
    except OSError:
        pass  # the status and the message tell of it


def _limit_reached() -> str:
    return f"a limit is reached ({environment().limits})"


def _is_nowhere() -> bool:
    """Whether the working directory has been removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def problem_at(path: str, error: OSError) -> str:
    """The system's error about a path, and what to do if its server is lost."""
    lost = disconnected(environment(), f"{path}/.", error)
    said = str(error.strerror or error)
    return f"{path}: {said}; {lost}" if lost and lost not in said else f"{path}: {said}"


def not_started(command: list[str], error: OSError, usage: str = "-c: holdfast run LOCK -c '...'") -> int:
    """Say why a command could not be started; the exit status that shells have. `usage`: how to give a shell's line."""
    if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):  # whatever the program is
        say(f"{command[0]} was not started: {error.strerror}; {_limit_reached()}")
        return FAILED
    said, is_missing = f"{command[0]}: {error.strerror}", isinstance(error, FileNotFoundError)
    if is_missing and "/" in command[0] and os.path.exists(command[0]):
        said += "; the file is there, but not the interpreter that it names"
    is_line = len(command) == 1 and len(command[0].split()) > 1 and is_missing
    say(f"{said}; a line for a shell takes {usage}" if is_line else said)
    return 127 if is_missing else 126


def end_quickly(status: int) -> NoReturn:
    """Like `sys.exit`, but without taking memory apart: after a fork that would touch, and so copy, each page of it."""
    import atexit

    threading: Any = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            pass  # nothing of the command's is in there
    os._exit(status)


def die_of(number: int) -> NoReturn:
    """End like a process that this signal has killed, so that a calling shell sees exactly that."""
    agent = sys.modules.get("holdfast._drivers.agent")
    if agent is not None:
        agent.settle()
    if not hasattr(signal, "SIGKILL"):
        sys.exit(CONTROL_C)
    if number != getattr(signal, "SIGKILL", 0):  # whose action cannot be set
        signal.signal(number, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    sys.exit(128 + number)  # a signal that does not kill by default


def masked(url: str) -> str:
    """The URL without its secrets, even if no engine understands it."""
    import re

    return re.sub(_EMPTY, "", re.sub(_SECRETS, "", re.sub(_PASSWORD, r"\1@", url)))


def hide(words: list[str]) -> None:
    """Have lists of processes show this one without passwords from now on, if the system allows that."""
    shown = [masked(word) if "://" in word else word for word in words]
    if shown != words:
        environment().setproctitle("holdfast", " ".join(shown))


class Screen(Value):
    """The destination of output. `width` is None for a pipe or a file, where nothing is cut."""

    width: int | None = None
    colours: bool = False

    def paint(self, text: str, style: str) -> str:
        """The text in that style, where there are colours. It must be printable already."""
        code = _STYLES.get(style)
        return f"\x1b[{code}m{text}\x1b[0m" if self.colours and code and text else text


def screen(stream: TextIO | None) -> Screen:
    """The destination of this stream. No colours with NO_COLOR, nor on a terminal that is `dumb`."""
    try:
        if stream is None or not stream.isatty():
            return Screen()
        width = os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH
    except (OSError, ValueError):
        return Screen()
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in ("", "dumb")
    return Screen(width, not plain)
