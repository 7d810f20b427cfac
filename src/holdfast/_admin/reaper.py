"""Reaping: staying with a directory, and removing the lock of each holdfast holder the moment the holder dies.

RP1  Only locks that are proven dead are removed, by a judgement of their own and with the care of a removal (clean.py,
     M7, M8, M9), whatever event led there. So a second reaper, a contender that takes the lock over, or a wrong event
     does no harm.
RP2  The kernel tells of the close before it drops the guard. So a file that is still guarded after an event is looked
     at again, a few times, soon.
RP3  A watch is armed before the look, for the directory before the list, for a lock file before its record: a change in
     between makes an event that is still there. A lock that appears makes none (it is linked); its holder's end makes
     one in the directory.
RP4  Events may be lost or not come at all: everything is looked at once in a while. A directory that is gone, or
     another one by now, is found again in a moment.
RP5  A waiter of holdfast takes a dead holder's lock over by itself, and then learns whose it was. So where there is a
     queue, its waiters get a moment first.
RP6  A file that may not be looked at, or not be removed, is reported once, and does not stop the rest.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import NoReturn

from .._core.wait import Steps, Wait
from .._platform.interface import Environment, Stat, WatchSet
from .._platform.values import RECHECK
from ..engines.file.inspect import assess, forget, observe
from ..engines.file.request import FileRequest
from ..engines.file.steps import UNFINISHED
from ..errors import HoldfastError
from . import detect
from .clean import BLOCKED, REMOVED, proven, remove_lock, request_of

_SOON, _SOON_LAST = 0.001, 0.1
"""Seconds between looks after an event (RP2)."""
_GRACE = 0.1
"""Seconds that waiters of holdfast get first (RP5)."""
_AGAIN = 0.25
"""Seconds between looks for a directory that is not there."""
_LIST_PAUSE = 0.02
"""Seconds between two lists of the directory, however many events there are."""
_POLL = 1.0
"""Seconds between looks where no events come."""
_MOST_COMPLAINTS = 1000
_HEAD = 4096
_MARK = b"holdfast"


class Reaper:
    """Reaps in one directory. Calls `tell(path, why)` for each removal, `complain(path, problem)` for each failure."""

    def __init__(
        self,
        env: Environment,
        directory: str,
        tell: Callable[[str, str], object],
        complain: Callable[[str, str], object],
    ) -> None:
        self._env = env
        self._directory = directory
        self._tell = tell
        self._complain = complain
        self._identity: tuple[int, int] | None = None
        self._watches: WatchSet | None = None
        self._own_key: int | None = None
        self._keys: dict[str, int | None] = {}
        """Lock files of holdfast processes, and the keys of their watches; None: not watched."""
        self._inodes: dict[str, tuple[int, int]] = {}
        """Device and inode number of each file that is watched."""
        self._paths: dict[int, set[str]] = {}
        self._others: dict[str, tuple[int, int, float]] = {}
        """Other files there, as they were when they were looked at."""
        self._due: dict[str, tuple[float, float]] = {}
        """Times to look at a lock file again, and pauses after which to look once more."""
        self._spared: dict[str, tuple[int, int]] = {}
        self._complaints: set[tuple[str, str]] = set()
        self._list_at = self._all_at = self._listed = 0.0

    def run(self, ready: Callable[[], object]) -> Steps[NoReturn]:
        """Reap for ever; `ready` is called once everything has been looked at for the first time. OSError if the
        directory cannot be listed to begin with."""
        self._env.list_directory(self._directory)
        started = False
        try:
            while True:
                yield from self._turn()
                if not started:
                    started = True
                    ready()
                yield self._plan()
                if self._watches is not None:
                    self._watches.woken()
        finally:
            self._let_go()

    def _turn(self) -> Steps[None]:
        """Do what is due."""
        env = self._env
        now = env.monotonic()
        if not self._follow():
            return
        for key in self._watches.changed() if self._watches is not None else ():
            if key == self._own_key:
                self._watch_directory()  # it may have been made anew, with the same number
                self._list_soon(now)
            for path in self._paths.get(key, ()):
                self._due[path] = (now, _SOON)
        if now >= self._all_at:
            self._all_at = now + (RECHECK if self._own_key is not None else _POLL)
            self._list_at = now
            for path in self._keys:
                self._due.setdefault(path, (now, 0.0))
        if now >= self._list_at:
            self._listed, self._list_at = now, self._all_at
            self._list(now)
        for path in [path for path, (at, _) in self._due.items() if at <= now]:
            try:
                yield from self._look(path, self._due.pop(path)[1])
            except (OSError, HoldfastError) as error:
                self._problem(path, error)

    def _list_soon(self, now: float) -> None:
        self._list_at = min(self._list_at, max(now, self._listed + _LIST_PAUSE))

    def _plan(self) -> Wait:
        now = self._env.monotonic()
        if self._identity is None:
            return Wait((), now + _AGAIN)
        until = min([self._list_at, self._all_at, *(at for at, _ in self._due.values())])
        fds = self._watches.fds() if self._watches is not None else ()
        if not fds:
            until = min(until, now + _POLL)
        return Wait(fds, until)

    # -- what is there -------------------------------------------------------------------------------------------------

    def _follow(self) -> bool:
        """Watch the directory that the path names now; False when there is none (RP4)."""
        try:
            found = self._env.stat(self._directory)
            there = (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None
        except OSError:
            there = None
        if there == self._identity:
            return there is not None
        self._let_go()
        self._identity = there
        if there is None:
            return False
        self._all_at = self._list_at = 0.0
        if self._env.events_reach(f"{self._directory}/."):
            self._watches = self._env.watch_set()
        self._watch_directory()
        return True

    def _watch_directory(self) -> None:
        before, self._own_key = self._own_key, self._arm(self._directory)
        if before not in (None, self._own_key) and self._watches is not None:
            self._watches.discard(before)

    def _let_go(self) -> None:
        watches, self._watches, self._own_key = self._watches, None, None
        if watches is not None:
            watches.close()
        for known in (self._keys, self._inodes, self._paths, self._others, self._due, self._spared):
            known.clear()

    def _arm(self, path: str) -> int | None:
        try:
            return self._watches.add(path) if self._watches is not None else None
        except OSError:
            return None  # gone, or no watch is left: then RP4

    def _list(self, now: float) -> None:
        """Find new lock files, and forget those that are gone."""
        try:
            names = self._env.list_directory(self._directory)
        except OSError as error:
            self._problem(self._directory, error)
            return
        there = set()
        for name in names:
            path = f"{self._directory.rstrip('/')}/{name}"
            there.add(path)
            known = path in self._keys
            if detect.is_beside(name) or (known and self._keys[path] is not None):
                continue
            if known or self._is_ours(path):
                self._keys.setdefault(path, None)
                self._due[path] = (now, _SOON)
        for path in [path for path in self._keys if path not in there]:
            self._forget(path)
        for path in [path for path in self._others if path not in there]:
            del self._others[path]

    def _is_ours(self, path: str) -> bool:
        """Whether a holdfast process may have written the file. An unchanged file is not opened again."""
        env = self._env
        try:
            found = env.stat(path)
            seen = (found.st_ino, found.st_size, found.st_mtime)
            if self._others.get(path) == seen:
                return False
            if self._may_be_record(found) and _MARK in detect.head_of(env, path, _HEAD):
                return True
        except FileNotFoundError:
            return False
        except OSError as error:
            self._problem(path, error)
            return False
        self._others[path] = seen
        return False

    @staticmethod
    def _may_be_record(found: Stat) -> bool:
        unfinished = bool(found.st_mode & UNFINISHED) and not found.st_size
        return stat.S_ISREG(found.st_mode) and detect.may_be_record(found.st_size) and not unfinished

    def _watch(self, path: str) -> None:
        """Watch the file that the path names now (RP3). It may be another one, though it has the same number."""
        found, key = self._env.stat(path), self._arm(path)
        if key is None or key != self._keys.get(path):
            self._unwatch(path)
        self._keys[path], self._inodes[path] = key, (found.st_dev, found.st_ino)
        if key is not None:
            self._paths.setdefault(key, set()).add(path)

    def _unwatch(self, path: str) -> None:
        key = self._keys.pop(path, None)
        self._inodes.pop(path, None)
        sharing = self._paths.get(key) if key is not None else None
        if key is not None and sharing is not None:
            sharing.discard(path)
            if not sharing:
                del self._paths[key]
                if self._watches is not None:
                    self._watches.discard(key)

    def _forget(self, path: str) -> None:
        self._unwatch(path)
        self._due.pop(path, None)
        self._spared.pop(path, None)

    # -- one lock file -------------------------------------------------------------------------------------------------

    def _look(self, path: str, pause: float) -> Steps[None]:
        env = self._env
        try:
            self._watch(path)
            request = self._request(path)
        except FileNotFoundError:
            request = None
        seen = observe(env, request) if request is not None else None
        if request is None or seen is None:
            self._list_soon(env.monotonic())
            self._forget(path)  # if there is another one by now, the list finds it
            return
        if seen.identity != self._inodes.get(path):
            self._due[path] = (env.monotonic(), _SOON)  # not the one that is watched
        try:
            assessed = assess(env, seen)
        finally:
            forget(env, seen)
        now = env.monotonic()
        if not (assessed.is_dead and assessed.evidence.proven):
            self._spared.pop(path, None)
            if pause and pause <= _SOON_LAST and assessed.evidence.source == "guard":
                self._due[path] = (now + pause, pause * 2)  # RP2
            return
        if env.exists(request.queue) and self._spared.get(path) != seen.identity:
            self._spared[path] = seen.identity
            self._due[path] = (now + _GRACE, 0.0)  # RP5
            return
        removal = yield from remove_lock(env, request, proven)
        if removal.result == REMOVED:
            who = "a process" if seen.record is None else f"process {seen.record.pid}"
            self._tell(path, f"it was held by {who}; {assessed.evidence.text}")
            self._forget(path)
        elif removal.result == BLOCKED:
            self._problem(path, PermissionError(1, removal.why))

    def _request(self, path: str) -> FileRequest | None:
        """A request by the protocol of the record; None if it is no record of a holdfast process, or of `flock`."""
        found = self._env.stat(path)
        if not self._may_be_record(found):
            return None
        data = detect.head_of(self._env, path, found.st_size + 1)
        record = detect.record_in(path.rpartition("/")[2], found.st_mode, data)
        if record is None or record.marker is None or record.protocol == "flock":
            return None
        return request_of(path, record.protocol)

    def _problem(self, path: str, error: Exception) -> None:
        """Report a problem, once (RP6)."""
        text = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if (path, text) not in self._complaints:
            if len(self._complaints) >= _MOST_COMPLAINTS:
                self._complaints.clear()
            self._complaints.add((path, text))
            self._complain(path, text)
