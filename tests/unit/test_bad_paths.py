"""Bad paths and bad directories: a clear answer at once (60 s, for a busy machine), naming the path and the remedy."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AcquireTimeout, InvalidPath, Lock
from unit.elsewhere import MS_RDONLY, MS_REMOUNT, NOBODY, elsewhere, mount, needs_root
from unit.stepping import sema_record

Within = Callable[[float], AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def _at_once(_limits: None, within: Within) -> Iterator[None]:
    with within(60.0):
        yield


def every_way(lock: Lock) -> list[Callable[[], object]]:
    return [lock.acquire, lambda: lock.acquire(timeout=0.01), lock.try_acquire, lock.status, lambda: lock.wait(0.01)]


# -- paths -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "a\0b", "/", ".", "..", "a/", "a/.", "a/..", "/tmp/../", "\ud800"], ids=repr)
def test_a_path_that_names_no_file_is_refused(path: str) -> None:
    with pytest.raises(InvalidPath) as caught:
        Lock(path)
    assert isinstance(caught.value, ValueError)
    assert caught.value.path == path
    assert caught.value.protocol == "sema"
    assert "name" in str(caught.value)


@pytest.mark.parametrize("path", [None, 5, 1.5, object(), ["l"]], ids=lambda path: type(path).__name__)
def test_a_path_of_a_wrong_type_is_refused(path: Any) -> None:
    with pytest.raises(TypeError):
        Lock(path)


@pytest.mark.parametrize(
    "name", [" ", "-l", "l..lock", "\u00fc\u4e2d\U0001f512", "a\nb", "x" * 255, "\udcff", "*"], ids=ascii
)
def test_a_strange_name_is_accepted(name: str, place: Path) -> None:
    for path in (os.path.join(place, name), os.fsencode(os.path.join(place, name))):
        with Lock(path).acquire(timeout=0) as hold:  # type: ignore[arg-type]
            assert os.listdir(place) == [name]
            assert not hold.lost
        assert os.listdir(place) == []


def test_a_relative_path_does_not_move_with_the_working_directory(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(disk)
    lock = Lock("l")
    monkeypatch.chdir("/")
    with lock:
        assert (disk / "l").exists()
    assert lock.path == str(disk / "l")


def test_two_dots_are_resolved_by_the_filesystem(disk: Path) -> None:
    (disk / "real" / "inner").mkdir(parents=True)
    (disk / "link").symlink_to(disk / "real" / "inner")
    with Lock(disk / "link" / ".." / "l"):
        assert (disk / "real" / "l").exists()


def test_a_missing_parent_is_explained(disk: Path) -> None:
    lock = Lock(disk / "no" / "where" / "l")
    for way in every_way(lock)[:3]:
        with pytest.raises(InvalidPath, match="parents=True") as caught:
            way()
        assert str(disk / "no" / "where") in str(caught.value)
        assert caught.value.path == lock.path
    assert not lock.status().locked
    assert lock.wait(0)
    assert os.listdir(disk) == []


def test_a_missing_parent_is_made_when_asked_for(disk: Path) -> None:
    with Lock(disk / "no" / "where" / "l", parents=True) as hold:
        hold.ensure_held()
        assert (disk / "no" / "where" / "l").exists()
    assert (disk / "no" / "where").is_dir()


@pytest.mark.parametrize("parents", [False, True])
def test_a_parent_that_is_a_file_is_explained(parents: bool, disk: Path) -> None:
    (disk / "file").write_bytes(b"x")
    for path in (disk / "file" / "l", disk / "file" / "deeper" / "l"):
        with pytest.raises(InvalidPath, match=r"not a directory.*another path") as caught:
            Lock(path, parents=parents).acquire()
        assert str(path.parent) in str(caught.value)
    assert (disk / "file").read_bytes() == b"x"


def test_a_parent_that_is_a_dangling_link_is_explained(disk: Path) -> None:
    (disk / "dir").symlink_to("nowhere")
    for parents in (False, True):
        with pytest.raises((InvalidPath, FileExistsError), match="dir"):
            Lock(disk / "dir" / "l", parents=parents).acquire()
    assert not (disk / "nowhere").exists()


OBSTACLES: dict[str, tuple[Callable[[Path], object], str]] = {
    "directory": (lambda path: path.mkdir(), "a directory"),
    "FIFO": (os.mkfifo, "a FIFO"),
    "symbolic link": (lambda path: path.symlink_to("target"), "a symbolic link"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "a symbolic link"),
    "loop": (lambda path: path.symlink_to(path.name), "a symbolic link"),
}


@pytest.mark.parametrize("kind", OBSTACLES)
def test_an_obstacle_is_refused_and_left_as_it_is(kind: str, place: Path) -> None:
    make, words = OBSTACLES[kind]
    path = place / "l"
    (place / "target").write_bytes(sema_record(1, 1))
    make(path)
    before = os.lstat(path)
    lock = Lock(path, stale="protocol")
    for way in [*every_way(lock), lock.break_lock]:
        with pytest.raises(InvalidPath, match=words) as caught:
            way()
        assert str(path) in str(caught.value)
        assert "choose another path" in str(caught.value)
    after = os.lstat(path)
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert (place / "target").read_bytes() == sema_record(1, 1)


def test_a_socket_is_refused(shm: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(shm / "l"))
        with pytest.raises(InvalidPath, match="a socket"):
            Lock(shm / "l").acquire()


def test_a_device_is_refused() -> None:
    for path in ("/dev/null", "/dev/zero", "/dev/tty"):
        with pytest.raises(InvalidPath, match=r"a character device, not a lock file; choose another path$"):
            Lock(path).acquire(timeout=0)


def test_a_name_that_is_too_long_is_explained(place: Path) -> None:
    for path in (place / ("x" * 256), place / "/".join(["x" * 200] * 30)):
        with pytest.raises(InvalidPath, match=r"too long.*shorter") as caught:
            Lock(path).acquire()
        assert str(path) in str(caught.value)


def test_a_loop_of_links_on_the_way_is_explained(disk: Path) -> None:
    (disk / "dir").symlink_to("dir")
    with pytest.raises(InvalidPath, match=r"circle.*another path"):
        Lock(disk / "dir" / "l").acquire()


# -- places ------------------------------------------------------------------------------------------------------------


@needs_root
def test_a_directory_that_may_not_be_written_is_named(disk: Path) -> None:
    with pytest.raises(PermissionError) as caught:
        elsewhere(Lock(disk / "l").acquire, user=NOBODY)
    assert str(disk) in str(caught.value)


@needs_root
def test_a_directory_that_may_not_be_searched_is_named(disk: Path) -> None:
    (disk / "secret").mkdir(mode=0o700)
    (disk / "secret" / "l").write_bytes(sema_record(1, 1))
    lock = Lock(disk / "secret" / "l")
    for way in every_way(lock):
        with pytest.raises(PermissionError) as caught:
            elsewhere(way, user=NOBODY)
        assert str(disk / "secret") in str(caught.value)


@needs_root
def test_another_users_secret_record_counts_as_held(disk: Path) -> None:
    """The refusal says that the lock file may not be read."""
    disk.chmod(0o1777)
    (disk / "l").write_bytes(sema_record(1, 1))
    (disk / "l").chmod(0o600)
    lock = Lock(disk / "l", stale="protocol")
    with pytest.raises(holdfast.AcquireTimeout, match="may not be read") as caught:
        elsewhere(lambda: lock.acquire(timeout=0.01), user=NOBODY)
    assert caught.value.path == str(disk / "l")
    assert elsewhere(lambda: lock.status().locked, user=NOBODY) is True


def tmpfs(place: Path, options: str, *then: tuple[Callable[..., object], object]) -> Callable[[], None]:
    def make() -> None:
        mount("tmpfs", str(place), "tmpfs", 0, options)
        for action, argument in then:
            action(argument)

    return make


@needs_root
def test_a_read_only_filesystem_is_named_and_can_be_looked_at(disk: Path) -> None:
    def read_only() -> None:
        mount("tmpfs", str(disk), "tmpfs")
        (disk / "held").write_bytes(sema_record(2**22 + 5, 1))
        mount("tmpfs", str(disk), "tmpfs", MS_REMOUNT | MS_RDONLY)

    with pytest.raises(OSError, match="Read-only file system") as caught:
        elsewhere(Lock(disk / "l").acquire, mounts=read_only)
    assert caught.value.errno == errno.EROFS
    assert str(disk) in str(caught.value)
    status = elsewhere(Lock(disk / "held").status, mounts=read_only)
    assert status.record.pid == 2**22 + 5


@needs_root
@pytest.mark.parametrize("protocol", ["sema", "proper-lockfile"])
def test_a_dead_lock_on_a_read_only_filesystem_raises_the_systems_error(disk: Path, protocol: str) -> None:
    """V10: for `wait` and `try_acquire` as well, as no process would ever release it."""
    more = {} if protocol == "sema" else {"realpath": False}

    def look() -> tuple[object, ...]:
        lock = Lock(disk / "dead", protocol=protocol, **more)
        failures = []
        for call in (lock.wait, lock.try_acquire, lock.acquire):
            with pytest.raises(OSError, match=r"[Rr]ead-only") as caught:
                call()
            failures.append((caught.value.errno, caught.value.filename))
        return lock.status(), failures

    def read_only() -> None:
        mount("tmpfs", str(disk), "tmpfs")
        if protocol == "sema":
            (disk / "dead").write_bytes(sema_record(2**22 + 5, 1))
        else:
            (disk / "dead.lock").mkdir()
            os.utime(disk / "dead.lock", (1, 1))
        mount("tmpfs", str(disk), "tmpfs", MS_REMOUNT | MS_RDONLY)

    status, failures = elsewhere(look, mounts=read_only)
    name = "dead" if protocol == "sema" else "dead.lock"
    assert failures == [(errno.EROFS, str(disk / name))] * 3
    assert (status.locked, status.stale) == (True, False)
    assert status.reason.endswith("but its filesystem is read-only, so nobody can take it over")


@needs_root
@pytest.mark.parametrize("without", [(), ("unnamed",), ("unnamed", "link")], ids=["unnamed", "named", "exclusive"])
def test_a_full_disk_leaves_no_half_record(
    without: tuple[str, ...], disk: Path, environments: Callable[..., Any]
) -> None:
    def full() -> None:
        mount("tmpfs", str(disk), "tmpfs", 0, "size=8k,nr_inodes=10")
        (disk / "ballast").write_bytes(b"x" * 8192)

    env = environments(*without)

    def attempt() -> tuple[list[str], int, str, bool]:
        lock = Lock(disk / "l")
        lock._env = env
        with pytest.raises(OSError, match="No space left") as caught:
            lock.acquire()
        left = sorted(os.listdir(disk))
        (disk / "ballast").unlink()
        with lock.acquire(timeout=0) as hold:
            held = not hold.lost
        return left, caught.value.errno or 0, str(caught.value), held

    left, number, said, held = elsewhere(attempt, mounts=full)
    assert left == ["ballast"]
    assert number == errno.ENOSPC
    assert str(disk / "l") in said
    assert held


@needs_root
@pytest.mark.parametrize("inodes", [2, 3])
def test_the_lack_of_inodes_is_explained(inodes: int, disk: Path) -> None:
    """For the lock file, or for its counter."""

    def full() -> None:
        mount("tmpfs", str(disk), "tmpfs", 0, f"nr_inodes={inodes}")
        (disk / "ballast").touch()

    with pytest.raises(OSError, match="No space left") as caught:
        elsewhere(Lock(disk / "l", fencing=inodes == 3).acquire, mounts=full)
    assert f"the filesystem of {disk} has neither space nor files left" in str(caught.value)


def test_a_full_descriptor_table_is_an_error_that_leaks_nothing(disk: Path) -> None:
    from holdfast._platform import environment

    environment()
    lock = Lock(disk / "l")

    def exhausted() -> tuple[list[int], list[str], bool]:
        with Lock(disk / "warm"):
            pass
        spare = fill()
        numbers = []
        for way in (lock.acquire, lock.try_acquire):
            with pytest.raises(OSError, match="Too many open files") as caught:
                way()
            numbers.append(caught.value.errno or 0)
        os.close(spare.pop())
        left = os.listdir(disk)
        for fd in spare:
            os.close(fd)
        with lock.acquire(timeout=0) as hold:
            return numbers, left, not hold.lost

    assert elsewhere(exhausted, files=64) == ([errno.EMFILE] * 2, [], True)


@pytest.mark.needs("unnamed", "flock", "linux")
@pytest.mark.parametrize(
    "options",
    [
        {"durable": True},
        {"fencing": True},
        {"lease": 5},
        {"protocol": "sidecar"},
        {"protocol": "proper-lockfile", "realpath": False},
    ],
    ids=lambda options: next(iter(options.values())) if "protocol" in options else next(iter(options)),
)
def test_the_limit_of_descriptors_is_named_whichever_step_meets_it(options: dict[str, Any], disk: Path) -> None:
    from holdfast._platform import environment

    environment()
    lock = Lock(disk / "l", timeout=0.01, **options)

    def die() -> None:
        if os.fork() == 0:
            lock.acquire()
            os._exit(0)
        os.wait()

    def exhausted() -> set[str]:
        said = set()
        for state in ("free", "held", "of a dead process"):
            for left in (64, 0, 1, 2, 3, 4):  # first with all, to load what it needs
                if state == "of a dead process":
                    die()
                with lock if state == "held" else nullcontext():
                    spare = fill()
                    while spare and left:
                        os.close(spare.pop())
                        left -= 1
                    try:
                        lock.acquire().release()
                    except AcquireTimeout:
                        pass
                    except OSError as error:
                        said.add(str(error))
                    finally:
                        for fd in spare:
                            os.close(fd)
        return said

    said = elsewhere(exhausted, files=64, limit=60)
    assert said
    assert not [text for text in said if "has reached its limit of 64" not in text]


def fill() -> list[int]:
    """Take all descriptors that are left."""
    spare = []
    while True:
        try:
            spare.append(os.dup(0))
        except OSError:
            return spare
