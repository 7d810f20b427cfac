"""Directories pinned when they are entered, for `clean -r --yes` (clean.py, M13)."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import cli
from holdfast._admin.clean import Leftover, PinnedEnvironment
from holdfast._platform import environment
from holdfast._platform.linux import LinuxEnvironment
from holdfast.cli import clean
from unit.fault_operations import NOBODY
from unit.stepping import sema_record

pytestmark = pytest.mark.needs("proc")


def _stale(path: Path) -> Path:
    path.write_bytes(sema_record(NOBODY, time.time() - 4000, "stale"))
    return path


@pytest.mark.parametrize("when", ["entered", "removed"])
def test_clean_leaves_the_contents_of_an_exchanged_directory(
    when: str, disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """M13: a subdirectory is exchanged between its listing and its entry, or between the look and the removal."""
    shared, outside = disk / "shared", disk / "outside"
    for where in (shared / "below", outside):
        where.mkdir(parents=True)
    ours, theirs = _stale(shared / "below" / "l.lock"), _stale(outside / "l.lock")
    done: list[str] = []

    def exchange(*_given: object) -> None:
        if not done:
            done.append(when)
            os.rename(shared / "below", shared / "moved")
            (shared / "below").symlink_to(outside)

    if when == "entered":
        entering: Any = PinnedEnvironment.enter

        def enter(self: PinnedEnvironment, top: str, where: str) -> None:
            if where.endswith("below"):
                exchange()
            entering(self, top, where)

        monkeypatch.setattr(PinnedEnvironment, "enter", enter)
    else:
        removing = clean._remove

        def remove(env: Any, pending: list[Leftover], *rest: Any) -> None:
            exchange()
            removing(env, pending, *rest)

        monkeypatch.setattr(clean, "_remove", remove)
    with pytest.raises(SystemExit):
        cli.main(["clean", "-r", "--yes", str(shared)])
    capsys.readouterr()
    assert done
    assert theirs.exists()
    assert (shared / "moved" / ours.name).exists() == (when == "entered")


def test_directories_are_closed_again(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """M13: at most one is open at any time, and none at the end."""
    most: list[int] = []
    env = environment()
    for number in range(5):
        _stale(disk / f"{number}.lock")
        (disk / f"d{number}" / "deeper").mkdir(parents=True)
    entering = PinnedEnvironment.enter

    def enter(self: PinnedEnvironment, top: str, where: str) -> None:
        entering(self, top, where)
        most.append(len(env._descriptors))

    before = len(env._descriptors)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PinnedEnvironment, "enter", enter)
        with pytest.raises(SystemExit):
            cli.main(["clean", "-r", str(disk)])
    capsys.readouterr()
    assert len(most) == 11
    assert max(most) == before + 1
    assert len(env._descriptors) == before


def test_an_error_names_the_whole_path(disk: Path) -> None:
    real = LinuxEnvironment()
    env: Any = PinnedEnvironment(real)
    env.enter(str(disk), str(disk))
    with pytest.raises(FileNotFoundError) as caught:
        env.unlink(f"{disk}/l")
    assert caught.value.filename == f"{disk}/l"
    with pytest.raises(FileNotFoundError) as caught:
        env.link(f"{disk}/l", f"{disk}/m")
    assert (caught.value.filename, caught.value.filename2) == (f"{disk}/l", f"{disk}/m")
    assert stat.S_ISDIR(env.stat(f"{disk}/.").st_mode)
    assert env.list_directory(str(disk)) == []
    env.leave()
    assert not real._descriptors


def test_without_proc_nothing_is_cleaned(disk: Path) -> None:
    """A directory cannot be pinned then: it is whatever its path leads to."""
    env: Any = PinnedEnvironment(LinuxEnvironment(frozenset({"proc"})))
    (disk / "below").mkdir()
    for where in (disk, disk / "below"):
        env.enter(str(disk), str(where))
        assert env.exists(str(where))
    env.leave()
