"""`holdfast semats`: the command `semats` of File-Based Semaphore (TS) 0.1.0, for scripts that call it.

docs/semats.md describes it, and how it differs from the original.

Exit status: 0 done; 1 everything else. `status` and `clean` say what they found, and end with 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from .._drivers.apart import seen_at
from .._platform import environment
from ..engines.file.inspect import Assessment, Observation
from ..engines.file.interop import sweep_rivals
from ..engines.file.policy import judge
from ..engines.file.remove import why_not_of
from ..engines.file.steps import UNWRITABLE
from ..errors import AcquireTimeout, HoldfastError, InvalidPath, ProtocolMismatch
from ..lock import Lock, announce, file_request
from ..model import Record
from .outcome import DONE, HELD, STDOUT, show
from .sema import Kind, acquire_and_leave, clear, complain, json_of, kind_of, look_at, remove, speak_utf8, system_error

_FAILED = HELD
HELP = """\
Usage: semats <command> <path> [options]

Commands:
  acquire      acquire the lock, waiting for it
  try-acquire  acquire the lock if it is free
  release      release the lock; with --force, no matter who acquired it
  status       show whether the lock is held, and by whom
  clean        remove the lock if it is stale, and what crashed attempts on it left

Options:
  -t, --tag <text>   say what the lock is held for (acquire, try-acquire)
      --timeout <ms> wait at most this many milliseconds (acquire); without it, forever
  -f, --force        release a lock that another process acquired
  -j, --json         print JSON
  -v, --verbose      say what is being done
  -h, --help         print this

Examples:
  semats acquire /tmp/build.lock --timeout 60000 --tag "npm build"
  semats release /tmp/build.lock

Exit status: 0 done; 1 not done. status and clean: 0, whatever they find; 1 if they fail.
This is holdfast, which takes the arguments of the semats command."""
_ABSENT = object()
"""A value that the command shows as `undefined`, and leaves out of its JSON."""


class _Refused(Exception):
    """A failure that is reported as an object with these fields."""

    def __init__(self, kind: str, message: str, **more: object) -> None:
        super().__init__(message)
        self.fields: dict[str, object] = {"status": "failed", "type": kind, "message": message, **more}


class _Options:
    """The arguments, parsed, in any order; unknown options are passed over, as in the original."""

    def __init__(self, words: list[str]) -> None:
        self.tag: str | None = None
        self.timeout: str | None = None
        self.force = self.json = self.verbose = self.help = False
        plain: list[str] = []
        rest = iter(words)
        for word in rest:
            if word in ("-t", "--tag"):
                self.tag = next(rest, None)
            elif word == "--timeout":
                self.timeout = next(rest, "")
            elif word in _FLAGS:
                setattr(self, _FLAGS[word], True)
            elif not word.startswith("-"):
                plain.append(word)
        self.command, self.path = (*plain, "", "")[:2]

    def milliseconds(self) -> int | None:
        """The timeout; None to wait forever. ValueError for no whole number: that does not ask for an endless wait."""
        text = self.timeout
        if text is None:
            return None
        digits = text.strip().removeprefix("-").removeprefix("+")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 20):
            raise ValueError(f"--timeout takes a whole number of milliseconds, not {text!r}")
        return -int(digits) if text.strip().startswith("-") else int(digits)

    def lock(self) -> Lock:
        """The lock, stale when it is old and its process has ended, as the letter of its protocol says."""
        # The original drops slashes at the end before it follows links.
        path = self.path.rstrip("/") or "/"
        lock = Lock(path, protocol="semats", tag=self.tag, stale="protocol", heartbeat=0)
        announce(lock, None)
        return lock


_FLAGS = {flag: name for name in ("force", "json", "verbose", "help") for flag in (f"-{name[0]}", f"--{name}")}


def semats(words: list[str]) -> int:
    """Run one command of `semats`; its exit status."""
    options = _Options(words)
    speak_utf8()
    try:
        if options.help:
            show(HELP)
            return DONE
        if options.command not in _COMMANDS:
            if options.command:
                complain(f"Unknown command: {clear(options.command)}")
            show(HELP)
            return _FAILED
        try:
            return _run(options)
        except _Refused as refused:
            # A failure of `try-acquire`, which need not succeed, is a result; elsewhere it is a complaint.
            (show if options.command == "try-acquire" else complain)(_told(options, refused.fields))
    except (ValueError, OSError, HoldfastError) as error:
        complain(f"Error: {clear(str(error))}")
    return _FAILED


def _run(options: _Options) -> int:
    """Run the command; its exit status. ValueError if the path or another argument makes no sense."""
    path = options.path
    if not path:
        raise ValueError("Lock path is required")
    if not path.strip():
        raise ValueError("Path cannot be empty")
    if ".." in path:
        raise ValueError("Path contains dangerous pattern: parent directory traversal (..) not allowed")
    lock = options.lock()
    directory = os.path.dirname(lock.path)
    if not seen_at(lock.path, lambda: os.path.exists(directory)):
        raise ValueError(f"Parent directory does not exist: {directory}")
    failure, call, command = _COMMANDS[options.command]
    try:
        looks = command is not _acquire
        result = seen_at(lock.path, lambda: command(options, lock)) if looks else command(options, lock)
    except (OSError, HoldfastError) as error:
        if isinstance(error, OSError) and error.filename == STDOUT:
            raise  # it cannot be reported on that stdout
        raise _io_error(error, failure, call, lock.path) from error
    if result is not None:
        show(_told(options, result))
    return DONE


def _acquire(options: _Options, lock: Lock) -> None:
    """Run `acquire` or `try-acquire`."""
    waits = options.command == "acquire"
    limit = options.milliseconds() if waits else 0
    timeout = None if limit is None else max(0, limit) / 1000
    if options.verbose:
        complain(f"[INFO] Trying to acquire lock: {clear(options.path)}")
    pid: object = _ABSENT
    since: object = _ABSENT
    try:
        acquire_and_leave(lock, timeout, lambda record: show(_told(options, {"status": "acquired", **_info(record)})))
        return
    except AcquireTimeout as error:
        if waits:
            raise _Refused("TIMEOUT", f"Timeout waiting for lock after {limit}ms") from error
        holder = error.holder
        if holder is not None and holder.pid is not None:
            pid, since = holder.pid, int(holder.since or 0)
    except (InvalidPath, ProtocolMismatch) as error:
        if waits or (isinstance(error, InvalidPath) and kind_of(lock.path) is not Kind.OTHER):
            raise
    raise _Refused("ALREADY_LOCKED", "Lock already held", holderPid=pid, lockedSince=since)


def _release(options: _Options, lock: Lock) -> dict[str, object]:
    """Remove the lock if this very process acquired it (a program that has become this command), or by force."""
    refused: _Refused | None = None

    def agreed(seen: Observation, assessed: Assessment) -> bool:
        nonlocal refused
        refused = None if options.force else _why_not(seen, assessed)
        return refused is None

    kind = kind_of(lock.path)
    if kind is Kind.OTHER:
        if not options.force and not os.path.isdir(lock.path):
            raise _unknown_holder()
        os.unlink(lock.path)  # a directory says that it is one
    elif kind is Kind.NOTHING or (not remove(lock, agreed) and refused is None):
        raise _Refused("NOT_LOCKED", "Lock not held")
    if refused is not None:
        raise refused
    return {"status": "released"}


def _why_not(seen: Observation, assessed: Assessment) -> _Refused | None:
    if seen.record is None:
        return _unknown_holder()
    if _is_ours(seen, assessed):
        return None
    pid = seen.record.pid
    return _Refused("PERMISSION_DENIED", f"Lock held by different process (PID {pid})", holderPid=pid)


def _unknown_holder() -> _Refused:
    return _Refused("PERMISSION_DENIED", "Lock held by unknown process (its record cannot be read)", holderPid=_ABSENT)


def _is_ours(seen: Observation, assessed: Assessment) -> bool:
    """Whether the record has our pid, and that was not another process's when the record was written."""
    return why_not_of(seen, assessed, environment().identity()) is None and not assessed.is_dead


def _status(options: _Options, lock: Lock) -> dict[str, object]:  # noqa: ARG001
    kind = kind_of(lock.path)
    found = look_at(lock) if kind is Kind.FILE else None
    locked, info, stale, mine = kind is Kind.OTHER or found is not None, None, False, False
    if found is not None and found[0].record is not None:
        seen, assessed = found
        record = found[0].record
        info = _info(record)
        age = int(environment().time()) - int(record.created or 0)
        stale, mine = age > file_request(lock).stale_after, _is_ours(seen, assessed)
    return {"locked": locked, "info": info, "isStale": stale, "isOwnedByCurrentProcess": mine}


def _clean(options: _Options, lock: Lock) -> dict[str, object]:  # noqa: ARG001
    """Remove the lock if it is stale, and the temporary files of attempts at it whose process has ended."""
    env, request = environment(), file_request(lock)

    def is_stale(seen: Observation, assessed: Assessment) -> bool:
        return seen.record is not None and judge(env, request, seen, assessed).reclaim

    steps = [lambda: sweep_rivals(env, request) > 0]
    if kind_of(lock.path) is Kind.FILE:
        steps.append(lambda: remove(lock, is_stale))
    return {"cleaned": sum(map(_permitted, steps)) > 0}


def _permitted(step: Callable[[], bool]) -> bool:
    """The result of the step; False, too, if this user may not do it."""
    try:
        return step()
    except OSError as error:
        if error.errno in UNWRITABLE:
            return False
        raise


def _info(record: Record) -> dict[str, object]:
    fields = record.fields
    tag = fields.get("tag")
    return {"pid": fields["pid"], "timestamp": fields["timestamp"], "tag": _ABSENT if tag is None else tag}


def _io_error(error: Exception, failure: str, call: str, path: str) -> _Refused:
    import errno

    said = system_error(error)
    if said is None or said.errno is None:
        return _Refused("IO_ERROR", f"{failure}: Error: {error}")
    code = errno.errorcode.get(said.errno, "UNKNOWN")
    message = f"{failure}: Error: {code}: {(said.strerror or '').lower()}, {call} '{path}'"
    return _Refused("IO_ERROR", message, cause={"errno": -said.errno, "code": code, "syscall": call, "path": path})


def _told(options: _Options, fields: dict[str, object]) -> str:
    """The fields as lines for people, or as JSON."""
    if options.json:
        return json_of(_present(fields), indent=2)
    return "\n".join(f"{name}: {_word(value)}" for name, value in fields.items())


def _word(value: object) -> str:
    if value is _ABSENT:
        return "undefined"
    if isinstance(value, dict):
        return json_of(_present(value))
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return clear(str(value))


def _present(fields: dict[str, object]) -> dict[str, object]:
    return {
        name: _present(value) if isinstance(value, dict) else value
        for name, value in fields.items()
        if value is not _ABSENT
    }


_COMMANDS: dict[str, tuple[str, str, Callable[[_Options, Lock], dict[str, object] | None]]] = {
    "acquire": ("Failed to write lock file", "open", _acquire),
    "try-acquire": ("Failed to write lock file", "open", _acquire),
    "release": ("Failed to release lock", "unlink", _release),
    "status": ("Failed to read lock file", "open", _status),
    "clean": ("Failed to clean lock", "unlink", _clean),
}
"""For each command: its message when the system refuses, the system call that it names then, and its function."""
