"""Fixtures for every kind of test: places for lock files, time limits, and a look at what a test left behind."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

import abilities

PLACE = os.environ.get("HOLDFAST_TEST_PLACE", "")
"""Where all directories of the tests are, to try a filesystem: process/filesystem.py sets it."""


def pytest_configure(config: pytest.Config) -> None:
    if PLACE and not hasattr(config, "workerinput") and config.option.basetemp is None:
        config.option.basetemp = Path(tempfile.mkdtemp(prefix="holdfast-pytest-", dir=PLACE), "basetemp")
    config.addinivalue_line("markers", "needs(*abilities): skipped, and why, where one is missing (abilities.py)")
    _heed_signals()
    if not hasattr(config, "workerinput"):
        _keep_bytecode(config)


def _keep_bytecode(config: pytest.Config) -> None:
    """Where Python is told to write no bytecode, each of a thousand processes would compile all of holdfast anew.

    A directory of this run has it instead; workers and all that the tests start inherit it.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        cache = tempfile.mkdtemp(prefix="holdfast-bytecode-")
        os.chmod(cache, 0o755)  # some tests are another user
        os.environ["PYTHONPYCACHEPREFIX"] = cache
        config.add_cleanup(lambda: shutil.rmtree(cache, ignore_errors=True))


NOT_THERE = {
    "test_a_mount_is_mistaken_for_another": "needs directories on two filesystems",
    "test_a_new_mount_is_mistaken_for_the_old_one_for_ever": "needs directories on two filesystems",
    "test_a_lock_held_by_one_who_inherited_it_names_the_dead": "a PID namespace leaves the dead out of the table",
    "test_flock_itself_is_not_shown": "a PID namespace leaves the dead out of the table",
    "test_a_lock_is_forgotten_with_the_process_that_took_it": "a PID namespace leaves the dead out of the table",
}
"""Tests that mean nothing where process/filesystem.py runs them, and why."""


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    abilities.skip_the_unable(items)
    for item in items if PLACE else ():
        if item.originalname in NOT_THERE:
            item.add_marker(pytest.mark.skip(reason=f"HOLDFAST_TEST_PLACE: {NOT_THERE[item.originalname]}"))


def pytest_collection_finish() -> None:
    """What thousands of tests are made of stays: each `gc.collect()` of a test would look at all of it."""
    gc.collect()
    gc.freeze()


def _heed_signals() -> None:
    """Heed what a background job or nohup ignores: it would be ignored in every process of the tests, too."""
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGTSTP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)


def _place(parent: str) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir=parent))
    place.chmod(0o755)  # some tests look at it as another user
    yield place
    shutil.rmtree(place)


@pytest.fixture
def disk() -> Iterator[Path]:
    """A directory on disk (/tmp may be in memory, /var/tmp is not meant to be)."""
    yield from _place(PLACE or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else tempfile.gettempdir()))


@pytest.fixture
def shm() -> Iterator[Path]:
    """A directory in memory."""
    if not PLACE and not os.access("/dev/shm", os.W_OK):
        pytest.skip("/dev/shm is not there or not writable")
    yield from _place(PLACE or "/dev/shm")


@pytest.fixture(params=["disk"] if PLACE else ["disk", "shm"])
def place(request: pytest.FixtureRequest) -> Path:
    """Both kinds of directory, one after the other."""
    chosen: Path = request.getfixturevalue(request.param)
    return chosen


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    def too_late(_number: int, _frame: object) -> None:
        raise AssertionError(f"no answer within {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, too_late)
    outer = signal.setitimer(signal.ITIMER_REAL, seconds)[0]
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, outer)
        signal.signal(signal.SIGALRM, handler)


@pytest.fixture
def within() -> Callable[[float], AbstractContextManager[None]]:
    """`with within(1.0):` fails the test, instead of hanging it, when the body needs longer. Main thread only."""
    return _within


def open_descriptors() -> dict[int, str]:
    """What this process has open, without what the library keeps for its whole life: one inotify, one doorbell."""
    from holdfast import _os, hold

    kept: set[int] = set()
    hub = getattr(_os._current, "_hub", None)
    if hub is not None:
        kept.add(hub.fd)
    if hold._keeper is not None and hold._keeper._doorbell is not None:
        kept.update(hold._keeper._doorbell)
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            pass  # the descriptor of the listing itself
    return {fd: target for fd, target in found.items() if fd not in kept}


def litter(place: Path) -> list[str]:
    """Temporary and claim files under a directory."""
    return sorted(str(path) for path in place.rglob(".holdfast-*"))


@pytest.fixture
def leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test must end with the descriptors that it began with, and without temporary files in its directories."""
    before = open_descriptors()
    # Set up here, so that they are still there when this looks, after everything else has been torn down.
    places = [request.getfixturevalue(name) for name in ("disk", "shm", "tmp_path") if name in request.fixturenames]
    yield
    after = open_descriptors()
    if after != before:
        gc.collect()  # a file object in a reference cycle, say in a traceback, is no leak
        after = open_descriptors()
    assert after == before, "descriptors differ from before the test"
    assert [path for place in places for path in litter(place)] == []
