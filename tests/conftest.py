"""Fixtures for every kind of test: places for lock files, time limits, and checks of what a test left behind."""

from __future__ import annotations

import _thread
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import abilities
import absent  # before what imports such modules
import ahead
import beside
import instances
import leftovers
import long
import places
import rewriting
import shuffled
import warm
from process.foreign import node

# The same examples in each run, but for `make flaky`; and a machine that stands still for a moment fails none of them.
settings.register_profile(
    "holdfast",
    deadline=None,
    derandomize=not os.environ.get(shuffled.SEED),
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("holdfast")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*abilities): skipped, and why, where one is missing (abilities.py)")
    config.addinivalue_line("markers", "unmeasured(why): under `make coverage`, what it starts does not measure itself")
    config.addinivalue_line("markers", "ahead(body): may begin while the test before it runs (ahead.py)")
    config.pluginmanager.register(ahead)
    config.pluginmanager.register(long)
    if sys.platform == "win32":
        config.pluginmanager.register(absent)
    if os.environ.get(shuffled.SEED):
        config.pluginmanager.register(shuffled)
    _heed_signals()
    whole = config.args == ["tests"] and getattr(config.option, "numprocesses", 0) != 0
    if not hasattr(config, "workerinput"):
        _keep_bytecode(leftovers.begin(config))
        if whole and not config.option.collectonly:
            fetching.append(node.fetch_all())
    elif whole:
        rewriting.share(config)
        if sys.platform == "linux":
            config.pluginmanager.register(beside.Beside(config))


fetching: list[threading.Thread] = []
"""Downloads at the beginning of a run of all tests: ten seconds, in a new virtual environment."""


def pytest_sessionfinish() -> None:
    warm.end()  # before leftovers.py looks, if the tests run in this process
    for thread in fetching:
        thread.join()
    if (coverage := sys.modules.get("coverage")) and (measurement := coverage.Coverage.current()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the process that only hands out the tests has run nothing of src/
            measurement.save()  # now: a worker that takes long to end is killed


def _keep_bytecode(cache: Path) -> None:
    """Keep byte code in a directory of the run if Python is told to write none: each of a thousand processes would
    compile all of holdfast anew.

    Workers and all processes that the tests start inherit that.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ["PYTHONPYCACHEPREFIX"] = str(cache)


NOT_THERE = {
    "test_a_mount_is_told_apart_from_others": "needs directories on two filesystems",
    "test_a_new_mount_is_noticed_after_a_second": "needs directories on two filesystems",
    "test_a_lock_held_by_a_child_that_inherited_it_names_the_child": "a PID namespace leaves the dead out of the table",
    "test_a_lock_that_was_left_to_a_child_is_lost_all_the_same": "a PID namespace leaves the dead out of the table",
    "test_the_command_flock_is_shown": "a PID namespace leaves the dead out of the table",
    "test_a_lock_is_remembered_after_the_process_that_took_it": "a PID namespace leaves the dead out of the table",
}
"""Tests that mean nothing on the filesystems of process/filesystem.py, and why."""


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    abilities.skip_the_unable(items)
    for item in items if places.PLACE else ():
        if item.originalname in NOT_THERE:
            item.add_marker(pytest.mark.skip(reason=f"HOLDFAST_TEST_PLACE: {NOT_THERE[item.originalname]}"))


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """Freeze the objects that thousands of tests have made: each `gc.collect()` of a test would look at all of them."""
    gc.collect()
    getattr(gc, "freeze", gc.collect)()


@pytest.fixture(autouse=True)
def _as_before(request: pytest.FixtureRequest) -> Iterator[None]:
    """Restore signals: the command line, run in this process, lets SIGPIPE end it, which would end the process of later
    tests. And have an `unmeasured` test start processes as they are without `make coverage`.

    One fixture does both, as each costs every test a moment.
    """
    before = {number: signal.getsignal(number) for number in _HANDLED}
    measurement = None
    if request.node.get_closest_marker("unmeasured") is not None:
        measurement = os.environ.pop(warm.MEASUREMENT, None)
    yield
    if measurement is not None:
        os.environ[warm.MEASUREMENT] = measurement
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


_HANDLED = [getattr(signal, name) for name in ("SIGPIPE", "SIGHUP", "SIGTERM", "SIGINT") if hasattr(signal, name)]


def _heed_signals() -> None:
    """Heed signals that a background job or nohup ignores: they would be ignored in every process of the tests, too."""
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGTSTP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)


@pytest.fixture
def disk() -> Iterator[Path]:
    """A directory on disk."""
    with places.directory(places.disk()) as made:
        yield made


@pytest.fixture
def shm() -> Iterator[Path]:
    """A directory in memory."""
    with places.directory_in_memory() as made:
        yield made


@pytest.fixture(params=["disk"] if places.PLACE or sys.platform == "win32" else ["disk", "shm"])
def place(request: pytest.FixtureRequest) -> Path:
    """A directory on disk, then one in memory."""
    chosen: Path = request.getfixturevalue(request.param)
    return chosen


_SLOWER = 5
"""Factor for time limits under Wine."""


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    def too_late(_number: int, _frame: object) -> None:
        raise AssertionError(f"no answer within {seconds:g} s")

    if sys.platform == "win32":
        handler = signal.signal(signal.SIGBREAK, too_late)
        timer = threading.Timer(_SLOWER * seconds, _thread.interrupt_main, [signal.SIGBREAK])
        timer.start()
        faulthandler.dump_traceback_later(2 * _SLOWER * seconds, exit=True)  # of what cannot be interrupted, say a join
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            timer.cancel()
            timer.join()
            signal.signal(signal.SIGBREAK, handler)
        return
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


_MANY = 1024
"""More descriptors than any test has."""


def _described(fd: int) -> str:
    about = os.fstat(fd)
    return f"file {about.st_ino} of device {about.st_dev}"


def open_descriptors() -> dict[int, str]:
    """The open descriptors of this process, without those kept for its whole life: the library's doorbell and two
    inotify instances (one once listing a directory took long), the server of warm processes, and those kept by
    `instances`."""
    from holdfast import _platform, lock

    kept = warm.descriptors() | instances.kept()
    for name in ("_hub", "_directory_logs"):
        instance = getattr(_platform._current, name, None)
        if instance is not None:
            kept.add(instance.fd)
    if lock._keeper is not None and lock._keeper._doorbell is not None:
        kept.update(lock._keeper._doorbell)
    if sys.platform == "win32":
        return {fd: "" for fd in range(3, _MOST) if fd not in kept and _is_open(fd)}
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else range(_MANY):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}") if sys.platform == "linux" else _described(fd)
        except OSError:
            pass  # it is closed, or the listing's own
    return {fd: target for fd, target in found.items() if fd not in kept}


_MOST = 256


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.fixture(autouse=True)
def nothing_is_held() -> Iterator[None]:
    """Require that a test leaves no hold, and no place in a queue, to later tests in this process."""
    before = _held()
    yield
    deadline = time.monotonic() + 20.0
    while not (_held().keys() <= before.keys()) and time.monotonic() < deadline:
        gc.collect()  # the waits of a dropped loop go with it
        time.sleep(0.002)  # and a thread that releases may not be done yet
    left = {key: one for key, one in _held().items() if key not in before}
    for one in left.values():
        getattr(one, "give_back", lambda: None)()  # those of a failed test: later ones are not to fail as well
    assert not left, "still held, or waited for, in this process"


def _held() -> dict[object, object]:
    from holdfast import _platform

    env = _platform._current
    return {} if env is None else {**env.holds, **env.local_queues}


def litter(place: Path) -> list[str]:
    """Temporary and claim files under a directory."""
    return sorted(str(path) for path in place.rglob(".holdfast-*"))


@pytest.fixture
def leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Require that the test ends without new descriptors, and without temporary files in its directories. It may end
    with fewer descriptors: those of an earlier test may be collected only now."""
    before = open_descriptors()
    # Set up here, so that they are still there when this looks, after everything else has been torn down.
    places = [request.getfixturevalue(name) for name in ("disk", "shm", "tmp_path") if name in request.fixturenames]
    yield
    more = open_descriptors().items() - before.items()
    if more:
        gc.collect()  # a file object in a reference cycle, say in a traceback, is no leak
        more = open_descriptors().items() - before.items()
    assert not more, "descriptors are left open"
    assert [path for place in places for path in litter(place)] == []
