"""`holdfast sema`: the command `sema` of File-Based Semaphore 0.1.0, for scripts that call it (docs/sema.md).

Texts, streams and exit statuses are those of that command; the work on lock files is the engine's. The first part is
shared with `holdfast semats`: how words are said, and how a lock outlives the command.

Examples:
  sema acquire /tmp/deploy.lock --timeout 60 --tag nightly
  sema status /tmp/deploy.lock --json

Exit status: 0 done or free; 1 held, or the time was up; 2 usage; 3 an error of the system or of the path.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Callable
from enum import Enum

from .._core.messages import printable
from .._drivers.apart import seen_at
from .._drivers.sync import drive
from .._platform import environment
from ..engines.file.inspect import MAX_PID, Assessment, Observation, assess, forget, observe
from ..engines.file.remove import remove_if
from ..errors import AcquireTimeout, HoldfastError, InvalidPath, ProtocolMismatch
from ..liveness import Liveness
from ..lock import Lock, announce, file_request, leave_to
from ..model import Record
from .outcome import DONE, FAILED, HELD, USAGE, show


class Kind(Enum):
    """The kinds of things at a path."""

    NOTHING = "nothing"
    FILE = "a regular file"
    OTHER = "something that can be no lock file"


def speak_utf8() -> None:
    """Print everything in UTF-8, as those commands do, whatever the locale."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]


def kind_of(path: str) -> Kind:
    """The kind of the thing at a path; NOTHING, too, if none can be there. OSError if that cannot be known."""
    try:
        found = os.lstat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return Kind.NOTHING
        raise
    return Kind.FILE if stat.S_ISREG(found.st_mode) else Kind.OTHER


def look_at(lock: Lock) -> tuple[Observation, Assessment] | None:
    """The lock file's content, and what is known of its holder; None if there is no file. Nothing is kept open."""
    seen = observe(environment(), file_request(lock))
    if seen is None:
        return None
    try:
        return seen, assess(environment(), seen)
    finally:
        forget(environment(), seen)


def acquire_and_leave(lock: Lock, timeout: float | None, tell: Callable[[Record], object]) -> None:
    """Acquire the lock, `tell` of it, and leave the lock file to the caller: a plain record, guarded by no process. If
    `tell` fails, the caller does not know that there is something to release; then the lock is given back."""
    request = file_request(lock)
    request.unmarked = True  # else contenders would take the end of this command for the end of the hold
    try:
        hold = lock.acquire(timeout)
        tell(hold.record)
        leave_to(hold, os.getpid())
    except BaseException:
        for held in list(environment().holds.values()):
            if held.request is request:
                held.give_back()
        raise


def remove(lock: Lock, agreed: Callable[[Observation, Assessment], bool]) -> bool:
    """Remove the lock file if what was seen is `agreed` to; whether it is gone because of that."""
    unusable: list[bool] = []

    def noted(seen: Observation, assessed: Assessment) -> bool:
        answer = agreed(seen, assessed)
        unusable[:] = [answer and seen.record is None]  # it is removed without a record to show for it
        return answer

    return drive(remove_if(environment(), file_request(lock), noted)) is not None or unusable == [True]


def clear(text: str) -> str:
    """The whole text, escaped so that no terminal takes it for a command."""
    return printable(text, len(text))


def complain(text: str) -> None:
    """Print on stderr. Failing to write is no error."""
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def json_of(value: dict[str, object], *, indent: int | None = None) -> str:
    """JSON as those commands write it: printable characters as they are, and all others escaped."""
    import json

    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=(",", ":" if indent is None else ": "))
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def system_error(error: Exception) -> OSError | None:
    """The system's error, even if the engine has put it into words of its own; None if there is none."""
    cause = error.__cause__ if isinstance(error, InvalidPath) else error
    return cause if isinstance(cause, OSError) and cause.errno else None


VERSION = "file-semaphore 0.1.0"
"""The version of the command that this stands in for; scripts compare it."""
HELP = """\
Usage: sema <COMMAND> <LOCK_PATH> [OPTIONS]

Commands:
  try       acquire the lock if it is free
  acquire   acquire the lock, waiting for it
  release   remove the lock, no matter who acquired it
  status    show whether the lock is held, and by whom
  wait      wait until the lock is released, without acquiring it

Options:
  --timeout S    wait at most S seconds (acquire, wait); without it, forever
  --stale S      take over a lock that is older (try, acquire); 0 = never; default: 3600
  --tag STR      say what the lock is held for (try, acquire)
  --json         print JSON (try, status)
  -q, --quiet    print no messages
  -h, --help     print this
  -V, --version  print the version

Examples:
  sema acquire /tmp/deploy.lock --timeout 60 --tag nightly
  sema status /tmp/deploy.lock --json

Exit status: 0 done or free; 1 held or timed out; 2 usage; 3 system error.
This is holdfast, which takes the arguments of the sema command."""
_U64 = 2**64 - 1
_LOOK_EVERY = 0.1
"""Seconds between looks at something that is no lock file, as in the original."""


class _UsageError(Exception):
    """The arguments make no sense."""


class _Options:
    """The arguments, parsed."""

    def __init__(self, words: list[str]) -> None:
        self.timeout: float | None = None
        self.stale = 3600
        self.tag: str | None = None
        self.json = self.quiet = False
        if not words:
            raise _UsageError("a command is missing")
        if words[0] not in _COMMANDS:
            raise _UsageError(f"unknown command: {words[0]}")
        if len(words) < 2:
            raise _UsageError("the path of the lock is missing")
        self.path = words[1]
        rest = iter(words[2:])
        for word in rest:
            if word == "--json":
                self.json = True
            elif word in ("-q", "--quiet"):
                self.quiet = True
            elif word in ("--timeout", "--stale", "--tag"):
                value = next(rest, None)
                if value is None:
                    raise _UsageError(f"a value is missing after {word}")
                setattr(self, word[2:], value if word == "--tag" else _number(word, value))
            else:
                raise _UsageError(f"unexpected argument: {word}")

    def lock(self) -> Lock:
        """The lock, stale by age alone, as the letter of its protocol says."""
        stale = "protocol" if self.stale else "never"
        after = self.stale or None
        # No process is left running, so none beats; and that is what this command's locks are known for.
        lock = Lock(self.path, tag=self.tag, stale=stale, stale_after=after, durable=True, heartbeat=0)  # type: ignore[arg-type]
        announce(lock, None)
        return lock


def _number(name: str, text: str) -> int:
    """The number, as Rust reads a u64."""
    digits = text.removeprefix("+")
    if digits.isascii() and digits.isdecimal():
        significant = digits.lstrip("0") or "0"
        if len(significant) <= 20 and int(significant) <= _U64:
            return int(significant)
    raise _UsageError(f"{name} takes a whole number of seconds, not {text!r}")


def sema(words: list[str]) -> int:
    """Run one command of `sema`; its exit status."""
    speak_utf8()
    for word in words:
        if word in ("-h", "--help"):
            complain(HELP)
            return DONE
        if word in ("-V", "--version"):
            show(VERSION)
            return DONE
    try:
        options = _Options(words)
        return _COMMANDS[words[0]](options)
    except _UsageError as error:
        complain(f"Error: {clear(str(error))}\n\n{HELP}")
        return USAGE
    except (OSError, HoldfastError) as error:
        complain(f"Error: {clear(_reason(error))}")
        return FAILED


def _reason(error: Exception) -> str:
    said = system_error(error)
    if said is not None:
        return f"IO error: {said.strerror} (os error {said.errno})"
    kind = "Invalid path: " if isinstance(error, InvalidPath) else "IO error: " if isinstance(error, OSError) else ""
    return f"{kind}{error}"


def _try(options: _Options) -> int:
    try:
        _acquire_for_script(options, 0)
        return DONE
    except AcquireTimeout as error:
        holder, why = error.holder, ""
    except (InvalidPath, ProtocolMismatch) as error:
        if isinstance(error, InvalidPath) and kind_of(options.path) is not Kind.OTHER:
            raise
        holder, why = None, str(error)
    pid, since = (holder.pid, holder.since) if holder is not None else (None, None)
    if options.json:
        show(json_of({"locked": True, "pid": pid or 0, "since": int(since or 0)}))
    elif not options.quiet:
        more = f"\n  Holder PID: {pid}" if pid is not None else f"\n  {clear(why)}" if why else ""
        complain(f"Lock already held{more}")
    return HELD


def _acquire(options: _Options) -> int:
    try:
        _acquire_for_script(options, options.timeout)
        return DONE
    except AcquireTimeout:
        if not options.quiet:
            complain("Timeout waiting for lock")
        return HELD


def _acquire_for_script(options: _Options, timeout: float | None) -> None:
    if not options.path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if options.path.endswith("/"):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    acquire_and_leave(options.lock(), timeout, lambda _record: _report(options, "Lock acquired"))


def _release(options: _Options) -> int:
    """Remove the lock, even another holder's: that is what `release` means there. A living holder finds it lost."""

    def removed() -> None:
        _require_path(options.path)
        kind = kind_of(options.path)
        if kind is Kind.FILE:
            remove(options.lock(), lambda _seen, _assessed: True)
        elif kind is Kind.OTHER:
            os.unlink(options.path)  # a directory says that it is one

    seen_at(options.path, removed)
    _report(options, "Lock released")
    return DONE


def _status(options: _Options) -> int:
    code, text = seen_at(options.path, lambda: _seen(options))
    show(text)
    return code


def _seen(options: _Options) -> tuple[int, str]:
    """The exit status of `status`, and what it shows."""
    _require_path(options.path)
    path, kind = clear(options.path), kind_of(options.path)
    record, assessed = None, None
    if kind is Kind.FILE:
        seen = look_at(options.lock())
        if seen is None:
            kind = Kind.NOTHING
        else:
            record, assessed = seen[0].record, seen[1]
    if kind is Kind.NOTHING:
        return DONE, '{"locked":false}' if options.json else f"Lock status: FREE\n  Path: {path}"
    fields = record.fields if record is not None else {}
    pid, timestamp, tag = (fields.get(name) for name in ("pid", "timestamp", "tag"))
    if options.json:
        return HELD, json_of({"locked": True, "pid": pid, "timestamp": timestamp, "tag": tag})
    lines = ["Lock status: LOCKED", f"  Path: {path}"]
    if record is not None and assessed is not None:
        lines += [f"  PID: {pid}", f"  Timestamp: {timestamp}", *([] if tag is None else [f"  Tag: {clear(tag)}"])]
        lines.append(f"  Process running: {'yes' if _runs(record, assessed) else 'no'}")
    return HELD, "\n".join(lines)


def _wait(options: _Options) -> int:
    seen_at(options.path, lambda: _require_path(options.path), options.timeout)
    options.stale = 0  # until it is released, however old it is
    ends = None if options.timeout is None else time.monotonic() + options.timeout
    while True:
        left = None if ends is None else max(0.0, ends - time.monotonic())
        kind = seen_at(options.path, lambda: _waited_for(options.path), left)
        if kind is Kind.NOTHING or (kind is Kind.FILE and _waited(options, left)):
            break
        if left == 0:
            if not options.quiet:
                complain("Timeout waiting for lock to be released")
            return HELD
        if kind is Kind.OTHER:
            time.sleep(_LOOK_EVERY if left is None else min(left, _LOOK_EVERY))
    _report(options, "Lock is free")
    return DONE


def _waited(options: _Options, left: float | None) -> bool:
    """Whether the lock file disappeared in time. False, too, if something else has taken its place."""
    try:
        return options.lock().wait(left)
    except InvalidPath:
        if kind_of(options.path) is not Kind.OTHER:
            raise
        return False


def _waited_for(path: str) -> Kind:
    """The kind of the thing at the path; NOTHING, too, if what is there is no lock file and leads nowhere."""
    kind = kind_of(path)
    try:
        if kind is Kind.OTHER:
            os.stat(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return Kind.NOTHING
    return kind


def _report(options: _Options, what: str) -> None:
    if not options.quiet:
        show(f"{what}: {clear(options.path)}")


def _require_path(path: str) -> None:
    """Raise InvalidPath if the path is empty or its directory does not exist."""
    if not path:
        raise InvalidPath("path cannot be empty", path=path)
    directory = os.path.dirname(path.rstrip("/"))
    try:
        os.stat(directory or ".")
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidPath(f"parent directory does not exist: {directory}", path=path) from None


def _runs(record: Record, assessed: Assessment) -> bool:
    """Whether the process in the record runs, as far as its pid means anything."""
    if assessed.liveness is not Liveness.UNKNOWN:
        return assessed.liveness is Liveness.ALIVE
    pid = record.pid or 0
    return 0 < pid <= MAX_PID and not environment().inspect(pid).has_ended


_COMMANDS = {"try": _try, "acquire": _acquire, "release": _release, "status": _status, "wait": _wait}
