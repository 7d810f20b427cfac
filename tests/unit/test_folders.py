"""Events of whole directories (inotify.py), and the environment's services for code that looks at many files."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import abilities
from holdfast import _platform
from holdfast._platform import environment, inotify
from holdfast._platform.inotify import FolderWatch
from holdfast._platform.linux import LinuxEnvironment
from holdfast._platform.portable import GenericEnvironment
from process.support import inotify_instance

IN_CREATE, IN_DELETE, IN_UNMOUNT, IN_Q_OVERFLOW = 0x100, 0x200, 0x2000, 0x4000


@pytest.fixture
def watch() -> Iterator[FolderWatch]:
    os.close(inotify_instance())
    made = FolderWatch()
    yield made
    made.close()


def say(monkeypatch: pytest.MonkeyPatch, *events: tuple[int, int, bytes]) -> None:
    """Let the kernel report these events, (watch, mask, name), and no more."""
    said = [b"".join(struct.pack("iIII", wd, mask, 0, len(name)) + name for wd, mask, name in events)]

    def read(_fd: int, _size: int) -> bytes:
        if not said:
            raise BlockingIOError
        return said.pop()

    monkeypatch.setattr(inotify.os, "read", read)


def test_dropped_events_are_told_as_unknown(watch: FolderWatch, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watch.add(str(disk))
    say(monkeypatch, (1, IN_CREATE, b"l.lock\0\0"), (-1, IN_Q_OVERFLOW, b""), (1, IN_DELETE, b"l.lock\0\0"))
    assert watch.take() == [(str(disk), "l.lock", "made"), ("", "", "unknown"), (str(disk), "l.lock", "gone")]


def test_an_event_of_a_directory_given_up_is_not_reported(
    watch: FolderWatch, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watch.add(str(disk))
    say(monkeypatch, (7, IN_CREATE, b"x\0"), (1, IN_CREATE, b""), (1, IN_UNMOUNT, b""))
    assert watch.take() == [(str(disk), "", "gone")], "and one without a name says nothing of any file"


def test_each_name_of_a_directory_is_told(watch: FolderWatch, disk: Path) -> None:
    """A link leads to it, and later to another one."""
    for name in ("real", "other"):
        (disk / name).mkdir()
    link = disk / "link"
    link.symlink_to("real")
    names = [f"{disk}/real", f"{disk}/link"]
    assert all(map(watch.add, names))
    (disk / "real" / "one").mkdir()
    assert watch.take() == [(name, "one", "made") for name in names]
    watch.discard(names[0])
    (disk / "real" / "two").mkdir()
    assert watch.take() == [(names[1], "two", "made")]
    link.unlink()
    link.symlink_to("other")
    assert watch.add(names[1])
    (disk / "real" / "three").mkdir()
    (disk / "other" / "four").mkdir()
    assert watch.take() == [(names[1], "four", "made")]


def test_a_watch_closed_twice_leaves_other_files_alone() -> None:
    os.close(inotify_instance())
    watch = FolderWatch()
    number = watch.fd
    watch.close()
    other = os.open("/dev/null", os.O_RDONLY)
    try:
        watch.close()
        assert watch.fd == -1
        os.fstat(other)
        assert other == number, "else this test shows nothing"
    finally:
        os.close(other)


def test_without_an_instance_there_is_no_folder_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoneLeft:
        @staticmethod
        def inotify_init1(_flags: int) -> int:
            return -1

    monkeypatch.setattr(_platform, "_current", LinuxEnvironment())
    monkeypatch.setattr(inotify, "_libc", NoneLeft)
    with pytest.raises(OSError, match="inotify_init1"):
        FolderWatch()
    assert environment().folder_watch() is None
    for other in (LinuxEnvironment(frozenset({"events"})), GenericEnvironment()):
        monkeypatch.setattr(_platform, "_current", other)
        assert environment().folder_watch() is None


def test_kernel_locks_are_seen_on_linux_and_not_in_portable_python(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    abilities.need_own_device(disk)
    (disk / "l").touch()
    found = os.stat(disk / "l")
    identity = (found.st_dev, found.st_ino)
    with open(disk / "l") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        seen = LinuxEnvironment().proc_locks(few=True)
        assert seen.is_locked(identity)
        portable = GenericEnvironment().proc_locks(few=True)
        assert not portable.is_locked(identity)
        assert not portable.heeds_readers(identity)
        assert (portable.owners(identity), portable.watchers(identity), portable.user(1)) == ([], [], None)
