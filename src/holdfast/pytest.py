"""The plugin for pytest: expensive results are made once in a test session, by whichever process is first.

Installing holdfast installs the plugin. It has one fixture, `once_per_session`; a session that does not use it pays
only for the import of holdfast.

OP1  The result is written in full and then renamed, while the lock is held. So a worker that dies at any point leaves
     no result or all of it; without one, the next worker takes the lock over and makes it again.
OP2  A worker looks for the result only while it holds the lock, so no two workers ever make it at the same time.
OP3  A function that has raised an exception, or called `pytest.fail`, is not tried again by the other workers: they are
     told of it. Nor is one that has called `pytest.skip`: they skip as well. A result that cannot be pickled counts as
     a failure, too, and the worker that has made it tears it down. Without workers, what it raised is raised again.
OP4  A worker that has the result keeps a shared kernel lock until its own session is over. One that gets that lock
     exclusively then is the last: nobody alive has the result, and nobody gets it meanwhile (OP2). The death of a
     worker drops its lock.
OP5  The result is removed before its teardown begins. A worker that comes later makes it again, also if the teardown
     was broken off.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pytest

from .lock import Hold, Lock

T = TypeVar("T")

_FAILURES = (Exception, pytest.fail.Exception, pytest.skip.Exception)
_MADE, _SKIPPED, _FAILED = "made", "skipped", "failed"


class OncePerSession:
    """The value of the fixture `once_per_session`: call it with a name and a function."""

    def __init__(self, directory: Path | None, worker: str) -> None:
        self._directory = directory
        self._worker = worker
        self._known: dict[str, Any] = {}
        self._failed: dict[str, tuple[BaseException, TracebackType | None]] = {}
        self._at_end = ExitStack()

    def __call__(
        self,
        name: str,
        make: Callable[[], T],
        *,
        teardown: Callable[[T], object] | None = None,
        timeout: float | None = None,
    ) -> T:
        """The result of `make`, which is called once in the whole session for each `name`, by the first worker.

        The workers of pytest-xdist get copies of one result, so it must be something that can be pickled: a path, a
        URL, a port. Without xdist it is the very object. `timeout`: how long to wait for the worker that makes it, in
        seconds; `None`: without limit.

        `teardown` is called with the result at the end of the session, by the last of the workers that have it: when
        all others have ended, or were killed. Results are torn down in the reverse order of their making. Each worker
        has to give it. None: what was made stays.

        Raises what `make` raises; RuntimeError in the other workers then, with the reason, or the same `pytest.skip`;
        AcquireTimeout; TypeError if the result cannot be pickled. Not promised: anything to workers on other machines;
        a teardown if the last worker is killed; nor that a worker which first asks after the teardown gets the same
        result: it is made again then, and torn down as well. Nor does a result keep others that `make` asked for: each
        worker has to ask for those itself.
        """
        if name not in self._known:
            shared = self._directory
            if shared is None:
                self._known[name] = value = self._made(name, make)
                if teardown is not None:
                    self._at_end.callback(teardown, value)
            else:
                self._known[name] = self._shared(shared, name, make, teardown, timeout)
        found: T = self._known[name]
        return found

    def _made(self, name: str, make: Callable[[], T]) -> T:
        """The result, without other workers."""
        if name in self._failed:
            error, place = self._failed[name]
            raise error.with_traceback(place)
        try:
            return make()
        except _FAILURES as error:  # OP3
            self._failed[name] = error, error.__traceback__
            raise

    def close(self) -> None:
        """End this worker's session: tear down every result that no other worker has, whatever fails."""
        self._known.clear()
        self._failed.clear()
        self._at_end.close()

    def _shared(
        self, directory: Path, name: str, make: Callable[[], T], teardown: Callable[[T], object] | None,
        timeout: float | None,
    ) -> T:  # fmt: skip
        place = directory / f"holdfast-once-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        mutex = Lock(f"{place}.lock", tag=f"once_per_session: {name}", timeout=timeout)
        with mutex:  # OP2
            value = self._found_or_made(place, name, make, teardown)
            in_use = Lock(f"{place}.in-use", protocol="flock", shared=True).acquire()  # OP4
        self._at_end.callback(_end, place, name, in_use, value, teardown)
        return value

    def _found_or_made(
        self, place: Path, name: str, make: Callable[[], T], teardown: Callable[[T], object] | None
    ) -> T:
        if place.exists():
            outcome, result, worker = pickle.loads(place.read_bytes())
            if outcome == _MADE:
                found: T = result
                return found
            if outcome == _SKIPPED:
                pytest.skip(result)
            raise RuntimeError(f"{name!r} could not be made by the worker {worker}: {result}")
        try:
            value = make()
        except pytest.skip.Exception as error:  # OP3
            self._write(place, _SKIPPED, str(error))
            raise
        except (Exception, pytest.fail.Exception) as error:
            self._write(place, _FAILED, f"{type(error).__name__}: {error}")
            raise
        try:
            self._write(place, _MADE, value)
        except Exception as error:
            if teardown is not None:
                self._at_end.callback(teardown, value)
            if isinstance(error, OSError):
                raise
            why = f"other workers cannot get {name!r}: it cannot be pickled ({error})"
            self._write(place, _FAILED, why)
            raise TypeError(why) from error
        return value

    def _write(self, place: Path, outcome: str, result: object) -> None:
        """Write the result in full, then rename it (OP1)."""
        unfinished = place.with_suffix(".unfinished")
        unfinished.write_bytes(pickle.dumps((outcome, result, self._worker)))
        os.replace(unfinished, place)


def _end(place: Path, name: str, in_use: Hold, value: T, teardown: Callable[[T], object] | None) -> None:
    """End this worker's use of the result; the last one tears it down."""
    with Lock(f"{place}.lock", tag=f"teardown of once_per_session: {name}"):
        in_use.release()
        last = Lock(f"{place}.in-use", protocol="flock").try_acquire() if teardown is not None else None
        if last is not None and teardown is not None:  # OP4
            with last:
                place.unlink(missing_ok=True)  # OP5
                teardown(value)


@pytest.fixture(scope="session")
def once_per_session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OncePerSession]:
    """Call a function once in the whole session, also under pytest-xdist: `once_per_session("database", make_it)`."""
    worker = getattr(request.config, "workerinput", {}).get("workerid")
    shared = tmp_path_factory.getbasetemp().parent if worker else None  # of this session and all its workers
    once = OncePerSession(shared, worker or "")
    yield once
    once.close()
