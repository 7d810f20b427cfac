"""`holdfast.beads`: the exclusive lock of a beads database, by the names of its own library.

A tool that holds `<dir>/.exclusive-lock` keeps the daemon of beads up to 0.49 away from the database; version 0.50
removed this lock. Both sides are here: `acquire` and `release` for the tool, `should_skip_database` and `SyncGate` for
the daemon. Source: Exclusive Lock Protocol.

Beyond the specification: the lock file is created, never overwritten, so that two tools also exclude each other; a
holder that died is replaced at once; and a lock is removed only while it is still the one that was judged.

G1  The daemon removes a lock only if its holder is certainly dead: proven by the kernel lock that it kept, or by the
    letter (same host, no such process) with nothing that speaks for its life. A kernel lock that is held is respected.
G2  A lock file that cannot be read or understood is skipped, never removed, and never waited for.
G3  One check for each cycle, at its start: a lock that appears later counts from the next cycle on.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from types import TracebackType

from ._core.messages import printable
from ._platform import environment
from ._platform.interface import Environment
from ._platform.values import Presence
from .engines.file.inspect import MAX_PID, Assessment, Observation
from .engines.file.paths import followed
from .engines.file.remove import remove_if, why_not_of
from .engines.file.request import FileRequest
from .errors import EngineUnavailable, HoldfastError, InvalidPath, MalformedRecord, NotHeld
from .lock import Hold, Lock, file_request, perform_at, release_own
from .model import Record, Value
from .protocols import get

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from ._core.wait import Steps


__all__ = ["ExclusiveLock", "SyncGate", "acquire", "is_process_alive", "release", "should_skip_database"]

_READING, _REMOVING = "failed to read lock file", "failed to remove stale lock"
_INVALID = "no beads record: "
_LONGEST = 1000
"""Maximum number of characters of a name or a reason in a log line."""


class ExclusiveLock(Value):
    """The content of a lock file. `started_at` is the RFC 3339 text: a `datetime` would lose its nanoseconds."""

    holder: str
    pid: int
    hostname: str
    started_at: str
    version: str = ""

    @classmethod
    def new(cls, holder: str, version: str = "") -> Self:
        """The record that this process would write now. ValueError or TypeError for a holder that is no name."""
        env, protocol, more = environment(), get("beads"), {"holder": holder, "version": version}
        protocol.check_options(more)
        return cls._of(protocol.decode(protocol.compose(env.identity(), env.time(), None, None, more)))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read it as Go does: keys in any case, the last of equal ones counts, null counts as missing, other keys are
        ignored.

        MalformedRecord, a ValueError, begins with `malformed lock file: ` if it is no such JSON, and with
        `invalid lock file: ` if something is missing.
        """
        return cls._of(get("beads").decode(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")))

    @classmethod
    def _of(cls, record: Record) -> Self:
        return cls(*(record.fields[name] for name in cls._fields))

    def to_json(self) -> str:
        """The JSON that the original writes, byte for byte: indented by two, no final newline. Raises as `validate`."""
        fields = {name: getattr(self, name) for name in self._fields}
        return get("beads").encode(Record("beads", fields)).decode()

    def validate(self) -> None:
        """Raise ValueError if something is missing, in the words of the original."""
        try:
            self.to_json()
        except ValueError as error:
            raise ValueError(str(error).removeprefix(_INVALID)) from None


def acquire(beads_dir: str | os.PathLike[str], holder: str, version: str = "", **options: Any) -> Hold:
    """Hold the database for the tool `holder` until the handle is released or the process ends.

    Waits while another tool holds it, without limit or up to `timeout` seconds; `options` and errors are those of
    `holdfast.Lock` and its `acquire`. A dead holder is replaced.
    Not promised: that the daemon is idle. It finishes a cycle that it has begun, and keeps away from the next one on.
    """
    lock = Lock(beads_dir, protocol="beads", holder=holder, version=version, **options)
    file_request(lock).released_by_path = True  # by `release`
    return lock.acquire()


def release(beads_dir: str | os.PathLike[str], *, force: bool = False) -> None:
    """Remove the lock file if this process holds it; with `force`, any holder's.

    Raises NotHeld if there is no lock, or if it is another holder's or the holder is not known (`force` removes that);
    LockLost if another process has written over this one's lock; OSError if it cannot be removed.
    """
    lock = Lock(beads_dir, protocol="beads")
    if release_own(lock):
        return
    env, status, request = environment(), lock.status(), file_request(lock)
    refused: list[str | None] = []

    def agreed(seen: Observation, assessed: Assessment) -> bool:
        refused[:] = [None if force else _why_not_ours(env, seen, assessed)]
        return refused == [None]

    perform_at(request, remove_if(env, request, agreed))
    if refused == [None]:
        return
    reason = f"{refused[0]}. force=True removes it all the same" if refused else "nobody holds it"
    raise request.error(NotHeld, f"{request.path} was not released: {reason}", status.holder)


def _why_not_ours(env: Environment, seen: Observation, assessed: Assessment) -> str | None:
    me, record = env.identity(), seen.record
    if record is not None and record.marker is None and (record.host or "").casefold() != me.host.casefold():
        return f"it was acquired on host {printable(record.host or '')}"
    return why_not_of(seen, assessed, me)


def is_process_alive(pid: int, hostname: str) -> bool:
    """False only if there is certainly no such process on this host; a zombie still counts as one.

    True for another host (names are compared without regard to case), for a process that may not be signalled, and for
    a number that no process can have.
    """
    env = environment()
    if hostname.casefold() != env.identity().host.casefold() or not 0 < pid <= MAX_PID:
        return True
    return env.inspect(pid).presence is not Presence.GONE


def should_skip_database(beads_dir: str | os.PathLike[str]) -> tuple[bool, str | None, str | None]:
    """`(skip, holder, error)`: whether a daemon must leave the database alone in the cycle that begins now.

    - `(False, None, None)`: it is free; there is no lock file, or no such directory.
    - `(True, holder, None)`: `holder` holds it, or may: a holder on another host, or of another user, counts as alive.
    - `(False, holder, None)`: `holder` was dead, and its lock file has been removed.
    - `(True, None, error)`: the lock file cannot be read or understood, so it is left alone.
    - `(True, holder, error)`: `holder` is dead, but its lock file could not be removed.

    Answers at once (within 2 s if a dead holder's lock changes hands again and again, and after 5 s if a file server
    does not answer). Raises only TypeError, for something that is no path. A lock may be taken the moment after.
    """
    try:
        request = FileRequest(beads_dir, {"protocol": "beads"})
        return perform_at(request, _check(environment(), request))
    except FileNotFoundError:
        return False, None, None  # the working directory is gone, and with it all that a relative path may mean
    except (InvalidPath, EngineUnavailable) as error:
        return True, None, f"{_READING}: {error}"


def _check(env: Environment, request: FileRequest) -> Steps[tuple[bool, str | None, str | None]]:
    found = _Check(env, request)
    try:
        if found.is_there():
            removed = yield from remove_if(env, found.request, found)
            return found.answer(removed is not None)
    except OSError as error:
        return found.failed(error)
    except HoldfastError as error:
        return True, found.holder, f"{_REMOVING if found.stale else _READING}: {error}"
    return False, None, None


class _Check:
    """The findings of one check. Called with each look at the lock file, it says whether that may be removed (G1)."""

    def __init__(self, env: Environment, request: FileRequest) -> None:
        self._env = env
        self.request = request
        """The request for the lock file, or for its target if it is a symbolic link."""
        self.holder: str | None = None
        self.error: str | None = None
        self.stale = False

    def is_there(self) -> bool:
        """Whether there is a file to look at, by a link or not: the original writes and reads through one.

        OSError if that cannot be known, or if it is not a regular file (G2). InvalidPath for a link of another user
        (paths.py, LK1): a dead tool's lock is removed where the link leads.
        """
        if os.path.islink(self.request.path):
            target = followed(self.request.path, "beads", last=True)
            self.request = FileRequest(self.request.given, {"protocol": "beads"}, lock_file=target)
        try:
            mode = os.stat(self.request.path).st_mode
        except FileNotFoundError:
            return False
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return True

    def __call__(self, seen: Observation, assessed: Assessment) -> bool:
        self.holder = self.error = None
        self.stale = False
        if seen.record is None:
            self.error = self._why_unusable(seen)
            return False
        self.holder = str(seen.record.fields["holder"])
        self.stale = self._is_stale(seen.record, assessed)
        return self.stale

    def _is_stale(self, record: Record, assessed: Assessment) -> bool:
        if not assessed.is_dead:
            return False  # also where the guard is held, or the number is one of another container
        return assessed.evidence.proven or not is_process_alive(record.pid or 0, record.host or "")

    def _why_unusable(self, seen: Observation) -> str:
        try:
            if not seen.data:
                self._env.close(self._env.open_existing(self.request.path, write=False))
            self.request.protocol.decode(seen.data)
        except OSError as error:
            return f"{_READING}: {_as_go('open', self.request.path, error)}"
        except MalformedRecord as error:
            return str(error)
        return f"{_READING}: it changes too often"

    def answer(self, removed: bool) -> tuple[bool, str | None, str | None]:
        """The answer after a look."""
        if self.stale:
            return False, self.holder if removed else None, None  # not removed, but gone
        return self.holder is not None or self.error is not None, self.holder, self.error

    def failed(self, error: OSError) -> tuple[bool, str | None, str | None]:
        """The answer after an error of the system."""
        if self.stale:
            return True, self.holder, f"{_REMOVING}: {_as_go('remove', self.request.path, error)}"
        step = "read" if isinstance(error, IsADirectoryError) else "open"
        return True, None, f"{_READING}: {_as_go(step, self.request.path, error)}"


def _as_go(step: str, path: str, error: OSError) -> str:
    """The error as Go words it: `open /path: permission denied`."""
    text = error.strerror or str(error)
    return f"{step} {path}: {text[:1].lower()}{text[1:]}"


class SyncGate:
    """The daemon's side: says at the start of each cycle whether it may run, and logs the protocol's lines.

    `if gate.open(): sync()`, or `with gate as proceed:` around the cycle, which is the same. There is no check during a
    cycle: one that has begun is finished, even if the lock is acquired meanwhile (G3). Nothing is kept between cycles.

    `log` is called with one line of text: `Skipping database (locked by X)`, `Removed stale lock (X), proceeding with
    sync` or `Skipping database (lock check failed: …)`. Unprintable characters in a name are escaped, so that it
    stays one line. Without `log`, the lines go to the logger `holdfast`, at level INFO.
    """

    def __init__(self, beads_dir: str | os.PathLike[str], log: Callable[[str], object] | None = None) -> None:
        given = os.fsdecode(beads_dir)
        here = "" if not given or os.path.isabs(given) else os.getcwd()  # a daemon may change its directory later
        self._dir = os.path.join(here, given)
        self._log = _to_logger if log is None else log
        self.last: tuple[bool, str | None, str | None] = (False, None, None)
        """The answer of `should_skip_database` at the last check."""

    @property
    def path(self) -> str:
        """The path where the lock file is looked for."""
        return os.path.join(self._dir, get("beads").suffix.lstrip("/"))

    def open(self) -> bool:
        """Check now; True: run the cycle, False: skip it. Raises only what `log` raises."""
        self.last = skip, holder, error = should_skip_database(self._dir)
        if error is not None:
            self._log(f"Skipping database (lock check failed: {printable(error, _LONGEST)})")
        elif skip:
            self._log(f"Skipping database (locked by {printable(holder or '', _LONGEST)})")
        elif holder is not None:
            self._log(f"Removed stale lock ({printable(holder, _LONGEST)}), proceeding with sync")
        return not skip

    def __enter__(self) -> bool:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing: the cycle is over, or was skipped."""

    def __repr__(self) -> str:
        return f"<holdfast.beads.SyncGate {self._dir!r}>"


def _to_logger(line: str) -> None:
    import logging

    logging.getLogger("holdfast").info("%s", line)
