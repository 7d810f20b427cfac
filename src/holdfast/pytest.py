"""The plugin for pytest: what is expensive to make is made once in a test session, by whichever process is first.

Installing holdfast installs the plugin. It has one fixture, `once_per_session`; a session that does not use it pays for
the import of holdfast, and for nothing else.

OP1  The result is written in full and then renamed, while the lock is held. So a worker that dies at any point leaves
     no result or all of it; without one, the next worker takes the lock over and makes it again.
OP2  A worker looks for the result only while it holds the lock, so no two workers ever make it at the same time.
OP3  What has raised an exception is not tried again by the other workers: they are told of it.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


class OncePerSession:
    """What the fixture `once_per_session` gives a test: call it with a name and a function."""

    def __init__(self, directory: Path | None, worker: str) -> None:
        self._directory = directory
        self._worker = worker
        self._known: dict[str, Any] = {}

    def __call__(self, name: str, make: Callable[[], T], *, timeout: float | None = None) -> T:
        """The result of `make`, which is called once in the whole session for each `name`, by the first worker.

        The workers of pytest-xdist get copies of one result, so it must be something that can be pickled: a path, a
        URL, a port. Without xdist it is the very object. `timeout`: how long to wait for the worker that makes it, in
        seconds; `None`: without limit.

        Raises what `make` raises; RuntimeError in the other workers then, with the reason; AcquireTimeout; TypeError if
        the result cannot be pickled. Not promised: anything to workers on other machines, nor that what was made is
        undone at the end, since no worker knows that it is the last one.
        """
        if name not in self._known:
            shared = self._directory
            self._known[name] = make() if shared is None else self._shared(shared, name, make, timeout)
        found: T = self._known[name]
        return found

    def _shared(self, directory: Path, name: str, make: Callable[[], T], timeout: float | None) -> T:
        from .lock import Lock

        place = directory / f"holdfast-once-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        with Lock(f"{place}.lock", tag=f"once_per_session: {name}", timeout=timeout):  # OP2
            if place.exists():
                made, result, worker = pickle.loads(place.read_bytes())
                if made:
                    found: T = result
                    return found
                raise RuntimeError(f"{name!r} could not be made by the worker {worker}: {result}")
            try:
                value = make()
            except Exception as error:  # OP3
                _write(place, (False, f"{type(error).__name__}: {error}", self._worker))
                raise
            try:
                _write(place, (True, value, self._worker))
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                raise TypeError(f"other workers cannot get {name!r}: it cannot be pickled ({error})") from error
            return value


def _write(place: Path, found: tuple[bool, object, str]) -> None:
    """OP1."""
    unfinished = place.with_suffix(".unfinished")
    unfinished.write_bytes(pickle.dumps(found))
    os.replace(unfinished, place)


@pytest.fixture(scope="session")
def once_per_session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OncePerSession:
    """Call a function once in the whole session, also under pytest-xdist: `once_per_session("database", make_it)`."""
    worker = getattr(request.config, "workerinput", {}).get("workerid")
    shared = tmp_path_factory.getbasetemp().parent if worker else None  # of this session, and of all its workers
    return OncePerSession(shared, worker or "")
