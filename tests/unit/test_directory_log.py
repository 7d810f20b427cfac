"""The log of new names in a directory, for processes that publish there often (interop.py, Y7; inotify.py, N8, N9)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast._core.wait import Wait
from holdfast._platform import environment, inotify, linux
from holdfast.engines.file.hold import FileHold
from unit.stepping import Contend, Contender, Stepped
from unit.test_rivals import temporary

pytestmark = pytest.mark.needs("unnamed", "events")


@pytest.fixture(autouse=True)
def _at_once(_no_directory_logs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux, "_WORTH_A_LOG", 0.0)


@pytest.fixture
def logging(disk: Path, contend: Contend, environments: Callable[..., Stepped]) -> Callable[..., Contender]:
    """A contender for `l` in a process with a log of the directory; its steps are counted from now on."""
    env = environments()
    for _ in range(2):
        contend(disk / "l", env).get().release()
    assert env.real.directory_log(str(disk)).is_complete

    def make(name: str = "l", **options: Any) -> Contender:
        env.steps.clear()
        return contend(disk / name, env, **options)

    return make


def lists(contender: Contender) -> int:
    """The number of listings of the directory."""
    return contender.env.steps.count("list_directory")


def test_a_free_lock_is_acquired_without_listing_the_directory(logging: Callable[..., Contender]) -> None:
    for name in ("l", "l", "another"):
        contender = logging(name)
        contender.get().release()
        assert not lists(contender)


@pytest.mark.parametrize("name", ["l", "another"])
def test_a_rival_that_came_before_our_file_is_waited_for(
    disk: Path, logging: Callable[..., Contender], name: str
) -> None:
    """Y7, Y1: it has looked and found no lock, and is about to rename."""
    contender = logging(name, timeout=0.2)
    made: list[Path] = []
    contender.env.once(contender.env.before, "link_unnamed", lambda: made.append(temporary(disk / name, os.getpid())))
    assert isinstance(contender.step(), Wait)
    assert not contender.inside
    made[0].rename(disk / name)
    assert not isinstance(contender.run(), FileHold)


def test_a_rival_that_has_renamed_before_we_look_is_noticed(disk: Path, logging: Callable[..., Contender]) -> None:
    """Y7: its temporary file is gone by then."""
    contender = logging(timeout=0.05)
    made: list[Path] = []
    contender.env.once(contender.env.before, "link_unnamed", lambda: made.append(temporary(disk / "l", os.getpid())))
    contender.env.once(contender.env.after, "link_unnamed", lambda: made[0].rename(disk / "l"))
    assert not isinstance(contender.run(), FileHold)
    assert lists(contender)


def test_a_rival_that_was_there_when_the_log_began_is_in_the_listing(
    disk: Path, contend: Contend, environments: Callable[..., Stepped]
) -> None:
    env = environments()
    contend(disk / "other", env).get().release()
    rival = temporary(disk / "l", os.getpid())
    contend(disk / "other", env).get().release()  # begins the log
    contender = contend(disk / "l", env, timeout=5)
    assert isinstance(contender.step(), Wait)
    rival.unlink()
    contender.get().release()


def test_a_new_directory_of_the_same_name_is_listed(disk: Path, logging: Callable[..., Contender], shm: Path) -> None:
    """N8: our file is not in the log of the earlier directory."""
    disk.rename(disk.with_name(f"{disk.name}-moved"))
    disk.mkdir()
    try:
        temporary(disk / "l", os.getpid())
        contender = logging(timeout=0)
        assert not isinstance(contender.run(), FileHold)
        assert lists(contender)
    finally:
        for path in disk.iterdir():
            path.unlink()
        disk.rmdir()
        disk.with_name(f"{disk.name}-moved").rename(disk)


def test_a_queue_that_has_overflowed_makes_the_log_uncertain(
    logging: Callable[..., Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """N8."""
    read = os.read
    overflow = inotify._EVENT.pack(-1, inotify.IN_Q_OVERFLOW, 0, 0)
    contender = logging()
    logs = contender.env.real._directory_logs
    monkeypatch.setattr(os, "read", lambda fd, size: read(fd, size) + overflow * (fd == logs.fd))
    contender.get().release()
    assert lists(contender)
    monkeypatch.undo()
    contender = logging()
    contender.get().release()  # the listing has begun it anew
    assert not lists(contender)


def test_events_read_but_not_noted_make_the_log_uncertain(
    disk: Path, logging: Callable[..., Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """N9: Ctrl-C came in between."""

    def interrupted(*_given: object) -> None:
        raise KeyboardInterrupt

    contender = logging()
    with monkeypatch.context() as patched:
        patched.setattr(inotify.DirectoryLogs, "_note", interrupted)
        temporary(disk / "l", os.getpid())
        with pytest.raises(KeyboardInterrupt):
            contender.run()
    contender = logging(timeout=0)
    assert not isinstance(contender.run(), FileHold)
    assert lists(contender)


def test_a_publication_not_asked_about_is_not_taken_for_a_later_one(
    disk: Path, logging: Callable[..., Contender]
) -> None:
    """N9: interrupted after the link; the next publication is in another directory of the same name."""
    log = logging().env.real.directory_log(str(disk))
    log.expect()
    (disk / "l").touch()
    (disk / "l").unlink()
    log.expect()
    assert not log.saw("l")


def test_many_events_are_read_to_the_last(disk: Path, logging: Callable[..., Contender]) -> None:
    for number in range(500):
        (disk / f"a file with a long name, {number}").touch()
    contender = logging()
    contender.get().release()
    assert not lists(contender)


def test_more_temporary_files_than_are_noted_are_listed(disk: Path, logging: Callable[..., Contender]) -> None:
    for number in range(inotify._MOST_NAMES + 1):
        path = disk / f"{number}.tmp"
        path.touch()
        path.unlink()
    contender = logging()
    contender.get().release()
    assert lists(contender)
    assert not contender.env.real.directory_log(str(disk)).names


def test_locks_of_ever_new_names_take_no_more_memory(disk: Path, logging: Callable[..., Contender]) -> None:
    """As in a process with a lock for each job."""
    for number in range(inotify._MOST_TOKENS + 1):
        contender = logging(f"job-{number}")
        contender.get().release()
    log = contender.env.real.directory_log(str(disk))
    assert log.is_complete
    assert len(log._tokens) < inotify._MOST_TOKENS


def test_a_forked_child_makes_a_log_of_its_own(disk: Path) -> None:
    env = environment()
    env.listed(str(disk), 1.0)
    assert env.directory_log(str(disk)) is not None
    child = os.fork()
    if child == 0:
        os._exit(env.directory_log(str(disk)) is not None)
    assert os.waitpid(child, 0)[1] == 0
    env._logs.clear()
    env.close(env._directory_logs.fd)
    env._directory_logs = None


def test_a_directory_is_listed_each_time_without_an_inotify_instance(
    disk: Path, contend: Contend, environments: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_given: object) -> None:
        raise OSError

    monkeypatch.setattr(inotify, "DirectoryLogs", none)
    env = environments()
    for number in range(3):
        contend(disk / "l", env).get().release()
        assert env.steps.count("list_directory") == number + 1
