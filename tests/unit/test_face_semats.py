"""File-Based Semaphore (TS) in Python (semats.py): each state of the lock path that was measured there."""

from __future__ import annotations

import os
import pickle
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import AcquireTimeout, Lock, LockLost, NotHeld, ProtocolMismatch, WouldDeadlock, semats
from holdfast._platform import environment
from holdfast.model import marker_text
from holdfast.semats import (
    AlreadyLocked,
    InvalidPath,
    LockInfo,
    NotLocked,
    ParseError,
    PermissionDenied,
    Semaphore,
    SemaphoreStatus,
    Timeout,
    create_lock_info,
    is_lock_stale,
    is_process_running,
    parse_lock_info,
    serialize_lock_info,
)
from process.support import eventually
from unit.ctrl_c import interrupted
from unit.elsewhere import NOBODY, elsewhere, needs_root, results
from unit.stepping import sema_record

ROOT = Path(__file__).parents[2]
NOW = int(time.time())
FRESH, OLD, FUTURE = NOW - 60, NOW - 7200, NOW + 86400
HEX = "0123456789abcdef"
FREE = SemaphoreStatus(False, None, False, False)


@pytest.fixture
def path(disk: Path) -> Path:
    return disk / "l"


# -- states ------------------------------------------------------------------------------------------------------------

# Content ("dead" stands for such a pid, "parent" for one that lived before NOW), options, whether it is old, and
# whether it may be taken over.
HELD: dict[str, tuple[str, int, dict[str, Any], bool, bool]] = {
    "fresh, live": ("1", FRESH, {}, False, False),
    "fresh, dead": ("dead", FRESH, {}, False, False),
    "fresh, pid 0": ("0", FRESH, {}, False, False),
    "from the future": ("dead", FUTURE, {}, False, False),
    "old, dead": ("dead", OLD, {}, True, True),
    "old, live": ("parent", NOW, {"stale_timeout": 1}, True, False),
    "old, pid 0": ("0", OLD, {}, True, False),
    "old, no pid of a process": (str(2**31), OLD, {}, True, False),
    "old for this limit, dead": ("dead", FRESH, {"stale_timeout": 30}, True, True),
    "old, dead, never stale (0)": ("dead", OLD, {"stale_timeout": 0}, False, False),
    "old, dead, never stale (None)": ("dead", OLD, {"stale_timeout": None}, False, False),
    "old, dead, safe": ("dead", OLD, {"stale": "safe"}, True, True),
    "fresh, dead, safe": ("dead", FRESH, {"stale": "safe"}, False, False),
}
MALFORMED = {
    "empty": b"",
    "garbage": b"hello\n",
    "no pid": b"timestamp=1\n",
    "negative pid": b"pid=-1\ntimestamp=1\n",
    "ISO timestamp": b"pid=1\ntimestamp=2025-12-28T00:00:00\n",
    "not UTF-8": b"pid=1\ntimestamp=1\ntag=\xff\n",
}


@pytest.mark.parametrize("state", HELD)
def test_a_held_lock_is_respected_and_a_stale_one_replaced(state: str, path: Path, dead_pid: int) -> None:
    who, timestamp, options, old, may_go = HELD[state]
    pid = {"dead": dead_pid, "parent": os.getppid()}.get(who) or int(who)
    eventually(lambda: not old or time.time() >= timestamp + 2, what="its age, in whole seconds")
    record = sema_record(pid, timestamp, "why")
    lock = Semaphore(path, **options)
    info = LockInfo(pid, timestamp, "why")
    path.write_bytes(record)
    assert lock.status() == SemaphoreStatus(True, info, old, False)
    assert lock.get_lock_info() == info
    assert lock.is_locked()
    with pytest.raises(PermissionDenied, match=str(pid)) as denied:
        lock.release()
    assert denied.value.holder_pid == pid
    assert path.read_bytes() == record
    assert lock.clean_stale() is may_go
    assert path.exists() is not may_go
    path.write_bytes(record)
    if may_go:
        assert lock.try_acquire().pid == os.getpid()
        lock.release()
    else:
        with pytest.raises(AlreadyLocked) as caught:
            lock.try_acquire()
        assert (caught.value.holder_pid, caught.value.locked_since) == (pid, timestamp)
        for timeout in (0, 0.01):
            with pytest.raises(Timeout):
                lock.acquire(timeout)
        assert path.read_bytes() == record
        lock.release(force=True)
    assert lock.status() == FREE


@pytest.mark.parametrize("state", MALFORMED)
def test_a_lock_whose_record_cannot_be_read_is_held(state: str, path: Path) -> None:
    path.write_bytes(MALFORMED[state])
    os.utime(path, (OLD, OLD))
    lock = Semaphore(path)
    assert lock.status() == SemaphoreStatus(True, None, False, False)
    assert lock.is_locked()
    with pytest.raises(ParseError, match=re.escape(str(path))):
        lock.get_lock_info()
    with pytest.raises(AlreadyLocked) as caught:
        lock.try_acquire()
    assert (caught.value.holder_pid, caught.value.locked_since) == (None, None)
    with pytest.raises(PermissionDenied, match="force") as denied:
        lock.release()
    assert denied.value.holder_pid is None
    assert lock.clean_stale() is False
    assert path.read_bytes() == MALFORMED[state]
    lock.force_release()
    assert not path.exists()


def test_a_lock_of_another_protocol_is_held(path: Path) -> None:
    path.write_text('{"pid": 1, "createdAt": "2026-01-31T12:00:00.000Z"}\n')
    lock = Semaphore(path)
    assert lock.is_locked()
    for way in (lock.try_acquire, lock.acquire):
        with pytest.raises(ProtocolMismatch, match="sidecar"):
            way()
    with pytest.raises(ParseError):
        lock.get_lock_info()


def test_a_free_lock_can_be_acquired_and_released(path: Path) -> None:
    lock = Semaphore(path)
    assert lock.status() == FREE
    assert lock.get_lock_info() is None
    assert not lock.is_locked()
    assert lock.clean_stale() is False
    for release in (lock.release, lock.force_release):
        with pytest.raises(NotLocked, match=str(path)) as caught:
            release()
        assert isinstance(caught.value, NotHeld)
    info = lock.try_acquire("npm build")
    assert (info.pid, info.tag) == (os.getpid(), "npm build")
    assert abs(info.timestamp - time.time()) < 5
    assert lock.status() == SemaphoreStatus(True, info, False, True)
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == ["l"]
    lock.release()
    assert lock.status() == FREE


@pytest.mark.parametrize("kind", ["a directory", "a FIFO", "a link to a directory", "a loop"])
def test_a_path_that_is_no_lock_file_is_refused_and_left_as_it_is(kind: str, path: Path) -> None:
    {
        "a directory": path.mkdir,
        "a FIFO": lambda: os.mkfifo(path),
        "a link to a directory": lambda: ((path.parent / "d").mkdir(), path.symlink_to("d")),
        "a loop": lambda: path.symlink_to(path.name),
    }[kind]()
    before = {name: os.lstat(path.parent / name).st_mtime_ns for name in os.listdir(path.parent)}
    lock = Semaphore(path)
    ways: list[Callable[[], object]] = [
        lock.try_acquire,
        lock.acquire,
        lambda: lock.acquire(0.01),
        lock.is_locked,
        lock.status,
        lock.get_lock_info,
        lock.release,
        lock.force_release,
        lock.clean_stale,
    ]
    for way in ways:
        with pytest.raises(InvalidPath, match=r"a directory|a FIFO|a symbolic link"):
            way()
    assert {name: os.lstat(path.parent / name).st_mtime_ns for name in os.listdir(path.parent)} == before


def test_a_link_is_followed_and_stays(disk: Path) -> None:
    (disk / "link").symlink_to("target")
    lock = Semaphore(disk / "link")
    assert lock.path == str(disk / "target")
    lock.try_acquire()
    assert sorted(os.listdir(disk)) == ["link", "target"]
    with pytest.raises(AlreadyLocked):
        Semaphore(disk / "target").try_acquire()
    lock.release()
    (disk / "target").write_bytes(sema_record(1, OLD))
    Semaphore(disk / "link").force_release()
    assert (os.listdir(disk), (disk / "link").is_symlink()) == (["link"], True)


@pytest.mark.parametrize("name", ["", "no/l", "file/l", "link", "a\0b", "sub/../l", "..", "../l"])
def test_a_path_that_cannot_be_locked_is_refused(name: str, disk: Path) -> None:
    (disk / "file").touch()
    (disk / "sub").mkdir()
    (disk / "link").symlink_to("no/where")
    with pytest.raises(InvalidPath) as caught:
        Semaphore(f"{disk}/{name}" if name else "")
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", ["   ", "-l.lock", "l..lock", "a..", "\u00fc\u4e2d\U0001f512", "x" * 250])
def test_a_strange_name_is_accepted(name: str, disk: Path) -> None:
    lock = Semaphore(disk / name)
    with lock:
        assert os.listdir(disk) == [name]
    assert os.listdir(disk) == []


# -- another user's ----------------------------------------------------------------------------------------------------


@needs_root
def test_another_users_secret_lock_is_held_and_can_be_forced(path: Path) -> None:
    path.parent.chmod(0o777)
    path.write_bytes(sema_record(1, OLD))
    path.chmod(0o600)
    lock = Semaphore(path)
    ways = (lock.try_acquire, lock.release, lock.get_lock_info, lock.status, lock.clean_stale, lock.force_release)
    held = repr(SemaphoreStatus(True, None, False, False))
    assert elsewhere(lambda: results(*ways), user=NOBODY) == [
        "AlreadyLocked",
        "PermissionDenied",
        "ParseError",
        held,
        "False",
        "None",
    ]
    assert not path.exists(), "whoever may write to the directory may force it"


@needs_root
def test_another_users_process_is_alive(path: Path) -> None:
    """kill(2) fails with EPERM, which the original takes for dead, and steals the lock."""
    path.parent.chmod(0o777)
    path.write_bytes(sema_record(os.getpid(), int(time.time())))  # this process may be younger than NOW (beside.py)
    path.chmod(0o666)
    lock = Semaphore(path, stale_timeout=0.001)

    def act() -> list[str]:
        environment().time = lambda: NOW + 3600.0  # type: ignore[method-assign]
        return results(lock.try_acquire, lock.clean_stale, lambda: lock.status().is_stale)

    assert elsewhere(act, user=NOBODY) == ["AlreadyLocked", "False", "True"]
    assert elsewhere(lambda: is_process_running(os.getppid()), user=NOBODY)


@needs_root
@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        (None, ["PermissionError", "NotLocked", "NotLocked", "False", "False"]),
        (FRESH, ["AlreadyLocked", "PermissionDenied", "PermissionError", "True", "False"]),
        (OLD, ["AlreadyLocked", "PermissionDenied", "PermissionError", "True", "PermissionError"]),
    ],
    ids=["free", "fresh", "stale"],
)
def test_a_directory_that_may_not_be_written_is_told_apart_from_a_held_lock(
    record: int | None, wanted: list[str], path: Path, dead_pid: int
) -> None:
    if record is not None:
        path.write_bytes(sema_record(dead_pid, record))
    lock = Semaphore(path)
    ways = (lock.try_acquire, lock.release, lock.force_release, lock.is_locked, lock.clean_stale)
    assert elsewhere(lambda: results(*ways), user=NOBODY) == wanted


# -- releasing ---------------------------------------------------------------------------------------------------------


def test_a_lock_of_this_process_can_be_released_by_another_object(path: Path) -> None:
    first, second = Semaphore(path), Semaphore(path)
    for release in (second.release, second.force_release):
        first.try_acquire()
        thread = threading.Thread(target=release)
        thread.start()
        thread.join()
        assert not path.exists()
        with pytest.raises(NotLocked):
            first.release()
    with Lock(path, protocol="semats"):
        second.release()
        assert not path.exists()


def test_a_record_with_our_number_from_elsewhere_is_not_released(path: Path) -> None:
    """A record of this process, whoever wrote it, is ours; one with its pid from another boot or container is not."""
    lock, me = Semaphore(path), environment().identity()
    path.write_bytes(sema_record(os.getpid(), NOW))
    assert lock.status().is_owned_by_current_process
    lock.release()
    assert not path.exists()
    for other in (me.replaced(boot="another"), me.replaced(pid_namespace="another"), me.replaced(started="t1")):
        record = sema_record(os.getpid(), NOW, marker=marker_text(False, 1, other))
        path.write_bytes(record)
        assert not lock.status().is_owned_by_current_process
        with pytest.raises(PermissionDenied, match="an earlier one or one in another container"):
            lock.release()
        assert path.read_bytes() == record


def test_our_release_leaves_the_next_holders_lock(path: Path) -> None:
    lock = Semaphore(path)
    theirs = sema_record(1, FRESH)
    lock.try_acquire()
    path.unlink()
    path.write_bytes(theirs)
    assert lock.status() == SemaphoreStatus(True, LockInfo(1, FRESH), False, False)
    with pytest.raises(LockLost):
        lock.release()
    assert path.read_bytes() == theirs
    with pytest.raises(PermissionDenied):
        lock.release()
    path.unlink()
    lock.try_acquire()
    path.unlink()
    path.write_bytes(theirs)
    lock.force_release()
    assert not path.exists()


def test_a_lost_hold_is_forgotten_when_the_next_one_begins(path: Path) -> None:
    lock = Semaphore(path)
    lock.try_acquire("first")
    path.unlink()
    assert lock.try_acquire("second").tag == "second"
    lock.release()
    assert not path.exists()
    assert not environment().holds, "nothing is left of the first"


def test_a_forked_child_cannot_release_its_parents_lock(path: Path) -> None:
    lock = Semaphore(path)
    lock.try_acquire()
    ways = (lock.release, lambda: lock.status().is_owned_by_current_process, lock.try_acquire)
    assert elsewhere(lambda: results(*ways)) == ["PermissionDenied", "False", "AlreadyLocked"]
    assert lock.status().is_owned_by_current_process
    lock.release()


# -- cleaning ----------------------------------------------------------------------------------------------------------


def test_cleaning_removes_only_temporary_files_of_this_lock_and_dead_processes(
    path: Path, live_pid: int, dead_pid: int
) -> None:
    """The original deletes every `<base>.*.tmp`, also those of living processes and other locks."""
    kept = [
        f"l.{live_pid}.{HEX}.tmp",
        f"l.{os.getpid()}.{HEX}.tmp",
        "l.lock.notes.tmp",
        f"l.old.{dead_pid}.{HEX}.tmp",
        f"ll.{dead_pid}.{HEX}.tmp",
        f"l.{dead_pid}.{HEX[:8]}.tmp",
        f"l.{dead_pid}.{HEX[1:].upper()}0.tmp",
        f"l.0.{HEX}.tmp",
        f"l.-1.{HEX}.tmp",
        f"l.{dead_pid}.{HEX}.tmp.bak",
    ]
    for name in (*kept, f"l.{dead_pid}.{HEX}.tmp"):
        (path.parent / name).touch()
        os.utime(path.parent / name, (time.time() - 2, time.time() - 2))
    (path.parent / f"l.{dead_pid}.{HEX[::-1]}.tmp").mkdir()
    lock = Semaphore(path)
    assert lock.clean_stale() is True
    assert sorted(os.listdir(path.parent)) == sorted([*kept, f"l.{dead_pid}.{HEX[::-1]}.tmp"])
    assert lock.clean_stale() is False


def test_cleaning_leaves_a_young_temporary_file(path: Path, dead_pid: int) -> None:
    """Its process may be in another container, where that number is another process; its attempt would fail."""
    rival = path.parent / f"l.{dead_pid}.{HEX}.tmp"
    rival.touch()
    os.utime(rival, (time.time() + 1000, time.time() + 1000))  # the clock was set back
    lock = Semaphore(path)
    assert lock.clean_stale() is True
    rival.touch()
    assert lock.clean_stale() is False
    assert rival.exists()
    rival.unlink()


def test_cleaning_leaves_the_lock_of_a_living_holder(path: Path) -> None:
    hold = Lock(path, protocol="semats", heartbeat=0).acquire()
    written = path.read_bytes()
    old = written.replace(b"timestamp=%d" % (hold.record.created or 0), b"timestamp=%d" % OLD)
    with open(path, "r+b") as file:
        file.write(old)
    lock = Semaphore(path)
    assert lock.status().is_stale
    assert lock.clean_stale() is False
    with pytest.raises(AlreadyLocked):
        lock.try_acquire()
    with open(path, "r+b") as file:
        file.write(written)
    hold.release()


# -- acquiring ---------------------------------------------------------------------------------------------------------


def test_a_wait_ends_as_configured(path: Path) -> None:
    lock = Semaphore(path)
    lock.acquire(timeout=None, tag="why")
    ways: list[Callable[[], object]] = [
        lambda: Semaphore(path, acquire_timeout=0.02).acquire(tag="x"),
        lambda: Semaphore(path, acquire_timeout=0.02).__enter__(),
        lambda: lock.acquire(0.02),
        lambda: Semaphore(path, acquire_timeout=0).acquire(),
    ]
    for wait in ways:
        with pytest.raises(Timeout, match="why") as caught:
            wait()
        assert isinstance(caught.value, AcquireTimeout)
        assert isinstance(caught.value, TimeoutError)
    with pytest.raises(WouldDeadlock):
        lock.acquire()
    lock.release()


def test_every_name_of_the_library_works(path: Path) -> None:
    before = int(time.time())
    info = create_lock_info("npm\nbuild")
    assert (info.pid, info.tag) == (os.getpid(), "npm\nbuild")
    assert before <= info.timestamp <= time.time()
    assert create_lock_info().tag is None
    lock = Semaphore.with_defaults(path)
    assert type(lock) is Semaphore
    assert lock.get_path() == lock.path == str(path)
    held = lock.try_acquire_with_info(LockInfo(1, 1, "npm\nbuild"))
    assert held == lock.get_lock_info()
    assert (held.pid, held.tag) == (os.getpid(), "npm build")
    assert held.timestamp >= before
    with pytest.raises(AlreadyLocked):
        Semaphore(path).try_acquire_with_info(info)
    for seconds in (0, 0.01):
        with pytest.raises(Timeout):
            Semaphore(path).acquire_timeout(seconds)
    lock.release()
    assert lock.acquire_timeout(None, "x").tag == "x"
    lock.release()
    assert not path.exists()


def test_a_release_wakes_a_waiter(path: Path) -> None:
    first = Semaphore(path)
    first.acquire()
    release = threading.Timer(0.05, first.release)
    release.start()
    second = Semaphore(path)
    second.acquire(timeout=5)
    release.join()
    second.release()


def test_a_with_block_releases_its_own_lock_only(path: Path) -> None:
    lock = Semaphore(path, tag="block")
    with lock as entered:
        assert entered is lock
        info = lock.get_lock_info()
        assert info is not None
        assert info.tag == "block"
    assert not path.exists()
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    assert not path.exists()
    with lock:
        lock.release()
        assert not path.exists()
        path.write_bytes(sema_record(1, FRESH))
    assert path.read_bytes() == sema_record(1, FRESH)
    path.unlink()
    with pytest.raises(LockLost), lock:
        path.unlink()


def test_one_object_keeps_the_holds_of_its_threads_apart(path: Path) -> None:
    lock, inside, most = Semaphore(path, acquire_timeout=20), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(10):
            with lock:
                inside += 1
                most = max(most, inside)
                time.sleep(0.0005)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, path.exists()) == (1, False)


@pytest.mark.parametrize(
    ("tag", "longest", "written"),
    [
        ("x\npid=1\x1b[31m\x00", 10_000, "x pid=1 [31m"),
        ("\u2028 caf\u00e9 \U0001f512", 10_000, "\u2028 caf\u00e9 \U0001f512"),
        ("abc def", 4, "abc"),
        ("a" * 20_000, 10_000, "a" * 10_000),
        ("abc", 0, ""),
        ("", 10_000, ""),
    ],
    ids=ascii,
)
def test_a_tag_is_trimmed_and_kept(tag: str, longest: int, written: str, path: Path) -> None:
    info = Semaphore(path, max_tag_length=longest).try_acquire(tag)
    assert info.tag == written.strip()
    assert Semaphore(path).get_lock_info() == info
    Semaphore(path).release()
    with Semaphore(path, max_tag_length=longest, tag=tag) as lock:
        assert lock.get_lock_info() == info.replaced(timestamp=(lock.get_lock_info() or info).timestamp)


def test_a_ctrl_c_leaves_no_lock(path: Path) -> None:
    lock, steps = Semaphore(path), 0
    for _ in interrupted(semats, lambda: lock.try_acquire("x")):
        steps += 1
        if path.exists():
            lock.release()
        assert not path.exists()
        assert not environment().holds
    assert steps > 5


# -- configuration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"stale_timeout": -1}, ValueError),
        ({"stale_timeout": "1h"}, TypeError),
        ({"acquire_timeout": -1}, ValueError),
        ({"retry_interval": float("nan")}, ValueError),
        ({"retry_interval": None}, TypeError),
        ({"max_tag_length": -1}, ValueError),
        ({"max_tag_length": 10_001}, ValueError),
        ({"max_tag_length": 1.5}, TypeError),
        ({"tag": 5}, TypeError),
        ({"stale": "never"}, ValueError),
    ],
    ids=str,
)
def test_a_configuration_that_makes_no_sense_is_refused(
    options: dict[str, Any], error: type[Exception], path: Path
) -> None:
    (name,) = options
    with pytest.raises(error, match="timeout" if name == "acquire_timeout" else name):
        Semaphore(path, **options)


def test_the_bound_on_looks_is_kept(path: Path) -> None:
    """test_face_sema.py has its effect."""
    lock = Semaphore(path, retry_interval=0.002)
    assert lock._lock._request.look_every == lock._tagged(path, "x")._request.look_every == 0.002


def test_a_pickled_lock_is_the_same_and_not_held(path: Path) -> None:
    lock = Semaphore(path, 7, 0.5, 0.01, 3, tag="abcdef", stale="safe")
    lock.try_acquire()
    again = pickle.loads(pickle.dumps(lock))
    assert (again.path, again._given, again._more) == (lock.path, lock._given, lock._more)
    assert again._hold is None
    with pytest.raises(AlreadyLocked) as caught:
        again.try_acquire()
    assert pickle.loads(pickle.dumps(caught.value)).holder_pid == os.getpid()
    status = again.status()
    assert pickle.loads(pickle.dumps(status)) == status
    assert status.info is not None
    assert status.info.tag == "abc"
    lock.release()
    path.write_bytes(sema_record(1, FRESH))
    with pytest.raises(PermissionDenied) as denied:
        lock.release()
    assert pickle.loads(pickle.dumps(denied.value)).holder_pid == 1


# -- records and processes ---------------------------------------------------------------------------------------------


def test_a_record_is_read_and_written_as_the_specification_says() -> None:
    """The specification's example, and records that only a lax parser accepts."""
    info = LockInfo(12345, 1735420800, "npm build")
    text = "pid=12345\ntimestamp=1735420800\ntag=npm build\n"
    assert parse_lock_info(text) == parse_lock_info(text.replace("\n", "\r\n")) == info
    assert serialize_lock_info(info) == text
    assert parse_lock_info("  timestamp = 2 \n pid = 1 \n junk \n") == LockInfo(1, 2)
    for number in ("12abc", "0x10", "1e3", "12.0", "1_000", "-1", "", "1\x002"):
        with pytest.raises(ParseError):
            parse_lock_info(f"pid={number}\ntimestamp=1\n")


@pytest.mark.parametrize(
    ("timestamp", "timeout", "stale"), [(6400, 3600.0, False), (6399, 3600.0, True), (0, None, False), (0, 0, False)]
)
def test_an_age_is_judged_in_whole_seconds(
    timestamp: int, timeout: float | None, stale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment(), "time", lambda: 10000.9)
    assert is_lock_stale(LockInfo(os.getpid(), timestamp), timeout) is stale, "whether its process lives or not"


def test_only_a_process_that_runs_counts_as_running(live_pid: int, dead_pid: int) -> None:
    assert is_process_running(live_pid)
    assert not any(is_process_running(pid) for pid in (dead_pid, 0, -1, 2**31))
