"""How a file is told from earlier files of its number, and how a process appears to others (linux.py)."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast._platform import libc, linux
from holdfast._platform.linux import LinuxEnvironment, btime
from holdfast._platform.posix import PosixEnvironment
from unit.elsewhere import elsewhere


def test_a_system_without_births_names_a_file_by_its_number(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without statx(2) in the C library, or on a filesystem without birth times, only the number is left."""

    class Old:
        pass

    class Forgetful:
        @staticmethod
        def statx(_at: int, path: bytes, _flags: int, _mask: int, found: ctypes.Array[ctypes.c_char]) -> int:
            struct.pack_into("=I", found, 0, linux._STATX_INO)
            struct.pack_into("=Q", found, linux._INODE_AT, os.lstat(path).st_ino)
            return 0

    path = str(disk / "l")
    Path(path).touch()
    for library in (Old, Forgetful):
        monkeypatch.setattr(libc, "LIBC", library)
        assert btime(path) == str(os.stat(path).st_ino)
    monkeypatch.setattr(libc, "LIBC", Old)
    assert btime(path + "x") is None


@pytest.mark.parametrize("field", ["st_birthtime", "st_birthtime_ns"], ids=["macOS", "Windows"])
def test_a_file_with_the_number_of_an_earlier_one_has_another_birth(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, births = PosixEnvironment(), iter((1795.25, 1795.5))
    monkeypatch.setattr(os, "lstat", lambda _path: SimpleNamespace(st_ino=7, **{field: next(births)}))
    assert (env.btime("l"), env.btime("l")) == ("7 1795.25", "7 1795.5")


def test_a_title_that_is_too_long_is_not_set() -> None:
    def shown() -> tuple[bytes, bytes]:
        before = Path("/proc/self/cmdline").read_bytes()
        LinuxEnvironment().setproctitle("n" * (len(before) + 1), "about")
        return before, Path("/proc/self/cmdline").read_bytes()

    before, after = elsewhere(shown)
    assert after == before


def test_a_process_that_may_not_be_renamed_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_args: object, **_options: object) -> None:
        raise PermissionError(1, "refused")

    before = Path("/proc/self/cmdline").read_bytes(), Path("/proc/self/comm").read_bytes()
    monkeypatch.setattr(linux, "open", refused, raising=False)
    LinuxEnvironment().setproctitle("holdfast", "for nobody")
    assert (Path("/proc/self/cmdline").read_bytes(), Path("/proc/self/comm").read_bytes()) == before
