"""File-Based Semaphore in Python (sema.py): each state of the lock path that was measured there."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AcquireTimeout, Lock, LockLost, MalformedRecord, NotHeld, ProtocolMismatch, WouldDeadlock, sema
from holdfast._platform import environment
from holdfast.sema import (
    AlreadyLocked,
    InvalidPath,
    LockInfo,
    NotLocked,
    ParseError,
    Semaphore,
    SemaphoreConfig,
    SemaphoreGuard,
    Timeout,
    is_process_running,
)
from unit.ctrl_c import interrupted
from unit.elsewhere import NOBODY, elsewhere, needs_root, results
from unit.stepping import Contender, sema_record

ROOT = Path(__file__).parents[2]
HOUR = 3600.0
NOW = int(time.time())
FRESH, OLD, FUTURE = NOW - 60, NOW - 7200, NOW + 86400


@pytest.fixture
def path(disk: Path) -> Path:
    return disk / "l"


def semaphore(path: object, **config: Any) -> Semaphore:
    return Semaphore(str(path), SemaphoreConfig(**config))


# -- states ------------------------------------------------------------------------------------------------------------

# Content (with "live" or "dead" for such a pid, "now" for a time at which it lives), configuration, and whether
# try_acquire succeeds.
HELD: dict[str, tuple[bytes, dict[str, Any], bool]] = {
    "fresh, live": (b"pid=live\ntimestamp=%d\n" % FRESH, {}, False),
    "fresh, dead": (b"pid=dead\ntimestamp=%d\n" % FRESH, {}, False),
    "fresh, pid 0": (b"pid=0\ntimestamp=%d\n" % FRESH, {}, False),
    "from the future": (b"pid=dead\ntimestamp=%d\n" % FUTURE, {}, False),
    "old, live": (b"pid=live\ntimestamp=%d\n" % OLD, {}, True),
    "old, dead": (b"pid=dead\ntimestamp=%d\n" % OLD, {}, True),
    "old, pid 0": (b"pid=0\ntimestamp=%d\n" % OLD, {}, True),
    "old enough for this limit": (b"pid=dead\ntimestamp=%d\n" % FRESH, {"stale_timeout": 30}, True),
    "old, never stale (0)": (b"pid=dead\ntimestamp=%d\n" % OLD, {"stale_timeout": 0}, False),
    "old, never stale (None)": (b"pid=dead\ntimestamp=%d\n" % OLD, {"stale_timeout": None}, False),
    "old, live, safe": (b"pid=live\ntimestamp=now\n", {"stale_timeout": 1e-6, "stale": "safe"}, False),
    "old, dead, safe": (b"pid=dead\ntimestamp=%d\n" % OLD, {"stale": "safe"}, True),
    "fresh, dead, safe": (b"pid=dead\ntimestamp=%d\n" % FRESH, {"stale": "safe"}, False),
    "from Windows, with a tag": (b"pid=dead\r\ntimestamp=%d\r\ntag=x y\r\n" % FRESH, {}, False),
}
MALFORMED = {
    "empty": b"",
    "garbage": b"hello\n",
    "no pid": b"timestamp=1\n",
    "no timestamp": b"pid=1\n",
    "negative pid": b"pid=-1\ntimestamp=1\n",
    "not UTF-8": b"pid=1\ntimestamp=1\ntag=\xff\n",
    "another protocol's": b"\x00" * 100,
}


def content(template: bytes, live: int, dead: int) -> bytes:
    template = template.replace(b"pid=live", b"pid=%d" % live).replace(b"pid=dead", b"pid=%d" % dead)
    return template.replace(b"=now", b"=%d" % time.time())


@pytest.mark.parametrize("state", HELD)
def test_a_held_lock_is_respected_and_a_stale_one_replaced(
    state: str, path: Path, live_pid: int, dead_pid: int
) -> None:
    template, config, stolen = HELD[state]
    record = content(template, live_pid, dead_pid)
    path.write_bytes(record)
    lock = semaphore(path, **config)
    info = LockInfo.parse(record)
    assert lock.is_locked(), "stale or not"
    assert lock.lock_info() == info
    if stolen:
        with lock.try_acquire() as guard:
            mine = lock.lock_info()
            assert mine is not None
            assert mine.pid == os.getpid()
            assert guard.hold.recovered_from is not None
            assert guard.hold.recovered_from.pid == info.pid
        assert not path.exists()
        return
    with pytest.raises(AlreadyLocked) as caught:
        lock.try_acquire()
    assert (caught.value.holder_pid, caught.value.locked_since) == (info.pid, info.timestamp)
    for wait in (lambda: lock.acquire_timeout(0.01), lambda: lock.acquire_timeout(0)):
        with pytest.raises(Timeout) as late:
            wait()
        assert late.value.holder is not None
        assert late.value.holder.pid == info.pid
    assert path.read_bytes() == record
    lock.force_release()
    assert not path.exists()


@pytest.mark.parametrize("state", MALFORMED)
def test_a_lock_whose_record_cannot_be_read_is_held(state: str, path: Path) -> None:
    path.write_bytes(MALFORMED[state])
    os.utime(path, (OLD, OLD))
    lock = semaphore(path)
    assert lock.is_locked()
    with pytest.raises(ParseError, match=re.escape(str(path))) as caught:
        lock.lock_info()
    assert isinstance(caught.value, MalformedRecord)
    with pytest.raises(AlreadyLocked) as refused:
        lock.try_acquire()
    assert (refused.value.holder_pid, refused.value.locked_since) == (None, None)
    with pytest.raises(Timeout):
        lock.acquire_timeout(0.01)
    lock.force_release()
    assert not path.exists()


def test_a_lock_of_another_protocol_is_held(path: Path) -> None:
    path.write_text('{"pid": 1, "createdAt": "2026-01-31T12:00:00.000Z"}\n')
    lock = semaphore(path)
    assert lock.is_locked()
    for way in (lock.try_acquire, lock.acquire):
        with pytest.raises(ProtocolMismatch, match="sidecar"):
            way()
    with pytest.raises(ParseError):
        lock.lock_info()


def test_a_free_lock_can_be_acquired_and_released(path: Path) -> None:
    lock = semaphore(path)
    assert not lock.is_locked()
    assert lock.lock_info() is None
    lock.force_release()  # nothing there is no error, as with `sema release`
    for take in (lock.try_acquire, lock.acquire, lambda: lock.acquire_timeout(0), lambda: lock.acquire_timeout(None)):
        with take() as guard:
            assert isinstance(guard, SemaphoreGuard)
            assert lock.is_locked()
        assert not path.exists()


OBSTACLES: dict[str, Callable[[Path], object]] = {
    "a directory": lambda path: path.mkdir(),
    "a FIFO": os.mkfifo,
    "a link to a live lock": lambda path: path.symlink_to("live"),
    "a link to a stale lock": lambda path: path.symlink_to("stale"),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a loop": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("kind", OBSTACLES)
def test_a_path_that_is_no_lock_file_is_refused_and_left_as_it_is(kind: str, path: Path) -> None:
    (path.parent / "live").write_bytes(sema_record(1, FRESH))
    (path.parent / "stale").write_bytes(sema_record(1, OLD))
    OBSTACLES[kind](path)
    before = {name: os.lstat(path.parent / name).st_mtime_ns for name in os.listdir(path.parent)}
    lock = semaphore(path)
    ways: list[Callable[[], object]] = [
        lock.try_acquire,
        lock.acquire,
        lambda: lock.acquire_timeout(0.01),
        lock.is_locked,
        lock.lock_info,
        lock.force_release,
    ]
    for way in ways:
        with pytest.raises(InvalidPath, match=r"a directory|a FIFO|a symbolic link") as caught:
            way()
        assert str(path) in str(caught.value)
    assert {name: os.lstat(path.parent / name).st_mtime_ns for name in os.listdir(path.parent)} == before


@pytest.mark.parametrize("name", ["", "no/l", "file/l", "l/", "a\0b", "."])
def test_a_path_that_cannot_be_locked_is_refused(name: str, disk: Path) -> None:
    (disk / "file").touch()
    with pytest.raises(InvalidPath) as caught:
        Semaphore(f"{disk}/{name}" if name else "")
    assert isinstance(caught.value, ValueError)
    assert "parents=True" not in str(caught.value), "that is no option here"


@pytest.mark.parametrize("name", ["   ", "-l.lock", "l..lock", "sub/../l", "\u00fc\u4e2d\U0001f512", "x" * 250])
def test_a_strange_name_is_accepted(name: str, disk: Path) -> None:
    (disk / "sub").mkdir()
    lock = Semaphore(f"{disk}/{name}")
    assert lock.path == f"{disk}/{name}"
    with lock.try_acquire():
        assert lock.is_locked()
    assert os.listdir(disk) == ["sub"]


def test_a_name_that_is_too_long_is_refused(disk: Path) -> None:
    lock = Semaphore(disk / ("x" * 300))
    for way in (lock.try_acquire, lock.is_locked, lock.lock_info, lock.force_release):
        with pytest.raises(InvalidPath, match="too long"):
            way()


def test_a_relative_path_does_not_move_with_the_working_directory(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(disk)
    lock = Semaphore.with_defaults("l")
    monkeypatch.chdir("/")
    with lock.acquire_with_info(LockInfo.with_tag("x")):  # made anew, with a tag
        assert os.listdir(disk) == ["l"]


# -- another user's ----------------------------------------------------------------------------------------------------


@needs_root
def test_another_users_secret_lock_is_held_and_can_be_forced(disk: Path) -> None:
    disk.chmod(0o777)
    (disk / "l").write_bytes(sema_record(1, OLD))
    (disk / "l").chmod(0o600)
    lock = Semaphore(disk / "l")
    ways = (lock.try_acquire, lambda: lock.acquire_timeout(0.01), lock.is_locked, lock.lock_info, lock.force_release)
    found = elsewhere(lambda: results(*ways), user=NOBODY)
    assert found == ["AlreadyLocked", "Timeout", "True", "ParseError", "None"]
    assert not (disk / "l").exists(), "whoever may write to the directory may force it"


@needs_root
@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        (None, ["PermissionError", "PermissionError", "False", "None", "None"]),
        (
            FRESH,
            ["AlreadyLocked", "Timeout", "True", f"LockInfo(pid=1, timestamp={FRESH}, tag=None)", "PermissionError"],
        ),
        (OLD, ["AlreadyLocked", "Timeout", "True", f"LockInfo(pid=1, timestamp={OLD}, tag=None)", "PermissionError"]),
    ],
    ids=["free", "fresh", "stale"],
)
def test_a_directory_that_may_not_be_written_is_an_error(record: int | None, wanted: list[str], disk: Path) -> None:
    if record is not None:
        (disk / "l").write_bytes(sema_record(1, record))
    lock = Semaphore(disk / "l")
    ways = (lock.try_acquire, lambda: lock.acquire_timeout(0.01), lock.is_locked, lock.lock_info, lock.force_release)
    assert elsewhere(lambda: results(*ways), user=NOBODY) == wanted


@needs_root
def test_a_directory_that_may_not_be_searched_is_an_error(disk: Path) -> None:
    (disk / "secret").mkdir(mode=0o700)
    lock = Semaphore(disk / "secret" / "l")
    found = elsewhere(
        lambda: results(lambda: Semaphore(disk / "secret" / "l"), lock.try_acquire, lock.is_locked, lock.force_release),
        user=NOBODY,
    )
    assert found == ["PermissionError"] * 4


# -- guards ------------------------------------------------------------------------------------------------------------


def test_a_guard_keeps_the_lock_until_it_is_released(path: Path) -> None:
    lock = semaphore(path)
    guard = lock.try_acquire()
    with guard:
        guard.ensure_held()
        assert path.exists()
    assert not path.exists()
    guard.release()  # the second time
    with pytest.raises(NotLocked) as caught:
        guard.ensure_held()
    assert isinstance(caught.value, NotHeld)
    with pytest.raises(ZeroDivisionError), lock.acquire():
        raise ZeroDivisionError
    assert not path.exists()
    with pytest.raises(NotLocked):
        SemaphoreGuard().release()


def test_no_body_runs_with_a_guard_that_holds_nothing(path: Path) -> None:
    lock, ran = semaphore(path), []

    def enter(guard: SemaphoreGuard) -> None:
        with guard:
            ran.append(guard)

    released = lock.try_acquire()
    released.release()
    for guard in (released, SemaphoreGuard()):
        with pytest.raises(NotLocked):
            enter(guard)
    with lock.try_acquire() as held:
        assert elsewhere(lambda: results(lambda: enter(held))) == ["NotLocked"]
    assert not ran


def test_a_dropped_guard_releases_the_lock(path: Path) -> None:
    lock = semaphore(path)
    guard: SemaphoreGuard | None = lock.acquire()
    assert path.exists()
    guard = None
    gc.collect()
    assert not path.exists()
    lock.try_acquire()  # the guard is dropped at once
    gc.collect()
    assert guard is None
    assert not path.exists()


def test_a_guard_cannot_be_copied(path: Path) -> None:
    with semaphore(path).acquire() as guard:
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="belongs to this process"):
                copied(guard)
        gc.collect()
        guard.ensure_held()


def test_a_guard_leaves_the_lock_of_the_next_holder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: said.append(unraisable.exc_type))
    lock = semaphore(path)
    for lose in (lock.force_release, path.unlink):
        guard: SemaphoreGuard | None = lock.acquire()
        assert guard is not None
        lose()
        path.write_bytes(sema_record(1, FRESH))
        assert guard.hold.lost
        with pytest.raises(LockLost):
            guard.ensure_held()
        with pytest.raises(LockLost):
            guard.release()
        assert path.read_bytes() == sema_record(1, FRESH)
        path.unlink()
        guard = lock.acquire()
        lose()
        path.write_bytes(sema_record(1, FRESH))
        guard = None
        gc.collect()
        assert guard is None
        assert path.read_bytes() == sema_record(1, FRESH)
        path.unlink()
    assert said == [LockLost] * 2


def test_a_forked_child_cannot_release_its_parents_lock(path: Path) -> None:
    lock = semaphore(path)
    guard = lock.acquire()
    assert elsewhere(lambda: results(guard.release, guard.ensure_held, lock.try_acquire)) == [
        "None",
        "NotLocked",
        "AlreadyLocked",
    ]
    guard.ensure_held()
    guard.release()


def test_a_guard_can_be_released_by_another_thread(path: Path) -> None:
    lock = semaphore(path)
    guard = lock.acquire()
    thread = threading.Thread(target=guard.release)
    thread.start()
    thread.join()
    assert not path.exists()


# -- acquiring ---------------------------------------------------------------------------------------------------------


def test_the_record_tells_the_process_the_time_and_the_tag(path: Path) -> None:
    lock = semaphore(path)
    stamped_before = LockInfo(7, 1, "deploy\nv1\x00")
    for acquire in (lock.try_acquire_with_info, lock.acquire_with_info):
        before = int(time.time())
        with acquire(stamped_before):
            info = lock.lock_info()
            assert info is not None
            assert (info.pid, info.tag) == (os.getpid(), "deploy v1")
            assert before <= info.timestamp <= time.time(), "of the acquisition, not of the wait before it"
            assert path.read_bytes().startswith(b"pid=%d\ntimestamp=%d\n" % (info.pid, info.timestamp))
            assert path.stat().st_mode & 0o777 == 0o644 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_record_is_synced_to_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The specification, "Acquiring a Lock", 2b."""
    synced: list[int] = []
    real = environment().sync
    monkeypatch.setattr(environment(), "sync", lambda fd: (synced.append(fd), real(fd)))
    for acquire in (semaphore(path).acquire, lambda: semaphore(path).acquire_with_info(LockInfo.with_tag("x"))):
        with acquire():
            assert synced.pop()


def test_a_wait_ends_as_configured(path: Path) -> None:
    with semaphore(path).acquire():
        for wait in (
            semaphore(path, acquire_timeout=0.02).acquire,
            lambda: semaphore(path, acquire_timeout=0).acquire_with_info(LockInfo.new()),
            lambda: semaphore(path).acquire_timeout(0.02),
        ):
            with pytest.raises(Timeout, match=f"process {os.getpid()}") as caught:
                wait()
            assert isinstance(caught.value, AcquireTimeout)
            assert isinstance(caught.value, TimeoutError)
        with pytest.raises(WouldDeadlock, match="holdfast's own classes with the same owner="):
            semaphore(path).acquire()


def test_a_release_wakes_a_waiter(path: Path) -> None:
    lock = semaphore(path)
    guard = lock.acquire()
    release = threading.Timer(0.05, guard.release)
    release.start()
    with lock.acquire_timeout(5):
        pass
    release.join()


def test_a_living_holder_is_not_robbed_for_its_age(path: Path) -> None:
    """Its kernel lock is held, so the record does not matter."""
    hold = Lock(path, heartbeat=0).acquire()
    written = path.read_bytes()
    with open(path, "r+b") as file:
        file.write(written.replace(b"timestamp=%d" % (hold.record.created or 0), b"timestamp=%d" % OLD))
    if b"holdfast=2 g " in written:
        with pytest.raises(AlreadyLocked):
            semaphore(path).try_acquire()
        with open(path, "r+b") as file:
            file.write(written)
        hold.release()
    else:  # the rule alone counts; a heartbeat prevents this
        with semaphore(path).try_acquire_with_info(LockInfo.with_tag("next")), pytest.raises(LockLost):
            hold.release()


def test_with_safe_a_killed_holders_lock_is_taken_over_at_once(path: Path) -> None:
    code = "import os, sys, holdfast.sema as s; g = s.Semaphore(sys.argv[1]).acquire(); print(os.getpid()); os._exit(0)"
    subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); {code}", path])
    assert path.exists()
    with pytest.raises(AlreadyLocked):
        semaphore(path).try_acquire()  # by the rule: not before it is old
    with semaphore(path, stale="safe", stale_timeout=0).try_acquire() as guard:
        assert guard.hold.recovered_from is not None


def test_the_heartbeat_follows_the_stale_timeout(path: Path) -> None:
    for stale_timeout, every in ((3600, 1200), (30, 10), (None, 1200), (0, 1200)):
        assert semaphore(path, stale_timeout=stale_timeout)._lock._request.beat_every == every


def test_other_locks_of_holdfast_and_the_face_exclude_each_other(path: Path) -> None:
    with semaphore(path).acquire():
        assert Lock(path, protocol="sema").try_acquire() is None
    with Lock(path), pytest.raises(AlreadyLocked):
        semaphore(path).try_acquire()


def test_a_ctrl_c_leaves_no_lock(path: Path) -> None:
    """Wherever it comes in the face, the guard already has the hold and is dropped; the engine does the rest."""
    lock, steps = semaphore(path), 0

    def act() -> None:
        with lock.try_acquire_with_info(LockInfo(1, 1, "x")):
            pass

    for _ in interrupted(sema, act):
        steps += 1
        assert not path.exists()
    assert steps > 10


# -- configuration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"stale_timeout": -1}, ValueError),
        ({"stale_timeout": float("nan")}, ValueError),
        ({"stale_timeout": "1h"}, TypeError),
        ({"acquire_timeout": -1}, ValueError),
        ({"acquire_timeout": True}, TypeError),
        ({"retry_interval": -0.1}, ValueError),
        ({"retry_interval": None}, TypeError),
        ({"stale": "never"}, ValueError),
    ],
    ids=str,
)
def test_a_configuration_that_makes_no_sense_is_refused(
    config: dict[str, Any], error: type[Exception], path: Path
) -> None:
    (name,) = config
    with pytest.raises(error, match="timeout" if name == "acquire_timeout" else name):
        semaphore(path, **config)


def test_without_events_a_waiter_looks_at_least_as_often_as_asked(path: Path, environments: Callable[..., Any]) -> None:
    """`retry_interval` is an upper bound where no events report a change."""
    assert semaphore(path, retry_interval=0.002)._lock._request.look_every == 0.002
    path.write_bytes(sema_record(1, FRESH))
    pauses = {}
    for interval in (0.002, 0.1):
        waiter = Contender(environments("events"), str(path), timeout=None)
        waiter.request.look_every = interval
        pauses[interval] = []
        for _ in range(20):
            wait = waiter.step()
            assert wait is not None
            pauses[interval].append(wait.deadline - time.monotonic())
    assert max(pauses[0.002]) <= 0.002 + 1e-9  # deadlines are sums of fractions
    assert 0.002 < max(pauses[0.1]) <= 0.1


def test_a_lock_an_error_and_a_record_survive_a_pickle(path: Path) -> None:
    lock = semaphore(path, stale_timeout=7, acquire_timeout=0.01, retry_interval=0.5)
    again = pickle.loads(pickle.dumps(lock))
    assert (again.path, again.config) == (lock.path, lock.config)
    with lock.acquire():
        with pytest.raises(AlreadyLocked) as caught:
            again.try_acquire()
        error = pickle.loads(pickle.dumps(caught.value))
        assert (error.holder_pid, str(error)) == (os.getpid(), str(caught.value))
        assert isinstance(error.locked_since, int)
        info = lock.lock_info()
        assert pickle.loads(pickle.dumps(info)) == info


# -- records and processes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("pid=12345\ntimestamp=1703520000\ntag=deploy-v1.2.3\n", LockInfo(12345, 1703520000, "deploy-v1.2.3")),
        ("timestamp=1\r\npid=2\r\n", LockInfo(2, 1)),
        ("pid = 5\ntimestamp= 6\ntag= x=y \nmore=z\n\n", LockInfo(5, 6, "x=y")),
        (b"\xef\xbb\xbfpid=1\ntimestamp=2\ntag=\n", LockInfo(1, 2, "")),
        ("pid=12abc\ntimestamp=1\n", None),
        ("pid=-1\ntimestamp=1\n", None),
        ("pid=1\ntimestamp=2025-12-28T00:00:00\n", None),
        ("pid=1\n", None),
        ("", None),
        ("pid=1\ntimestamp=1\ntag=\ud800\n", None),
    ],
    ids=ascii,
)
def test_a_record_is_read_as_the_specification_says(text: str | bytes, wanted: LockInfo | None) -> None:
    if wanted is None:
        with pytest.raises(ParseError):
            LockInfo.parse(text)
    else:
        assert LockInfo.parse(text) == wanted


def test_a_tag_cannot_add_a_line_to_the_record() -> None:
    info = LockInfo(5, 6, "x\npid=1\r\x1b[31m ")
    assert info.serialize() == "pid=5\ntimestamp=6\ntag=x pid=1  [31m\n"
    assert LockInfo.parse(info.serialize()).pid == 5
    assert LockInfo(5, 6).serialize() == "pid=5\ntimestamp=6\n"
    for wrong in (LockInfo(-1, 6), LockInfo(5, 2**64), LockInfo(5, 1.5)):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="cannot carry"):
            wrong.serialize()
    assert LockInfo.new().pid == LockInfo.with_tag("x").pid == os.getpid()
    assert LockInfo.with_tag("x").tag == "x"


@pytest.mark.parametrize(
    ("timestamp", "timeout", "stale"),
    [(6400, HOUR, False), (6399, HOUR, True), (0, None, False), (0, 0, False), (10**6, HOUR, False), (9998, 1, True)],
)
def test_an_age_is_judged_in_whole_seconds(
    timestamp: int, timeout: float | None, stale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment(), "time", lambda: 10000.9)
    assert LockInfo(1, timestamp).is_stale(timeout) is stale


def test_only_a_process_that_runs_counts_as_running(live_pid: int, dead_pid: int) -> None:
    assert is_process_running(os.getpid())
    assert is_process_running(live_pid)
    assert Semaphore.is_process_running(live_pid)
    for number in (dead_pid, 0, -1, -os.getpid(), 2**31, 2**64):
        assert not is_process_running(number)
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert not is_process_running(zombie.pid)
    zombie.wait()


@needs_root
def test_another_users_process_counts_as_running() -> None:
    assert elsewhere(lambda: is_process_running(os.getppid()), user=NOBODY)


def test_the_face_is_not_loaded_with_holdfast() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); import holdfast; print('holdfast.sema' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert "sema" not in holdfast.__all__
