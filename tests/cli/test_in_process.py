"""Parts of the command line with an output, a terminal or a service manager in an unusual state."""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import os
import pty
import socket
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Hold, Lock, Semaphore
from holdfast._admin.found import Found
from holdfast._admin.scan import Survey
from holdfast.cli import console, outcome, parse, perform, sema, slots, top
from holdfast.cli import status as command
from holdfast.cli.console import dumped, fit
from holdfast.cli.fullscreen import FullScreen
from holdfast.cli.ls import short_path
from holdfast.cli.reap import notify
from holdfast.cli.run import end
from holdfast.errors import EngineUnavailable, LockLost
from process.support import Peer
from unit.stepping import sema_record


def test_a_number_without_a_json_form_becomes_null() -> None:
    """A lock file may have one, and JavaScript writes null for it."""
    beyond = {"pid": float("inf"), "ages": [float("nan"), 1.5, (2, float("-inf"))], "tag": "t"}
    assert json.loads(dumped(beyond)) == {"pid": None, "ages": [None, 1.5, [2, None]], "tag": "t"}


@pytest.mark.parametrize("say", [outcome.say, sema.complain])
def test_a_closed_stderr_does_not_end_a_command(say: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, open("/dev/full", "w")):  # noqa: SIM115
        with monkeypatch.context() as changed:
            changed.setattr(sys, "stderr", stream)
            say("nobody reads this")
    with pytest.raises(OSError, match="No space left"):
        stream.close()


def test_an_internal_error_has_its_own_status_and_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    """Status 1 would mean "held"; a maintainer needs the traceback."""
    assert outcome.failed(KeyError("a defect")) == outcome.FAILED
    assert "KeyError: 'a defect'" in capfd.readouterr().err


def test_the_service_manager_is_notified(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sd_notify(3): at a path, or at an abstract address; an unreachable manager is not an error."""
    name = f"holdfast-test-{os.getpid()}"
    for address, bound in ((str(disk / "s"), str(disk / "s")), (f"@{name}", f"\0{name}")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(bound)
            monkeypatch.setenv("NOTIFY_SOCKET", address)
            notify("READY=1")
            assert manager.recv(100, socket.MSG_DONTWAIT) == b"READY=1"
    for address in (str(disk / "nobody"), "relative", ""):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify("READY=1")


def test_a_working_directory_that_is_gone_does_not_end_a_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> str:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "getcwd", lambda: "/a/b")
    assert short_path("/a/b/l.lock") == "l.lock"
    monkeypatch.setattr(os, "getcwd", gone)
    assert short_path("/a/b/l.lock") == "/a/b/l.lock"


def test_a_recording_that_is_cut_off_is_an_error(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = console.Recording(str(disk / "r"))
    record.add("whole")
    written = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: written(fd, data[:3]))
    with pytest.raises(OSError, match="only in part"):
        record.add("cut off")
    os.close(record._fd)
    assert (disk / "r").read_bytes() == b"whole\ncut"


def test_a_closed_terminal_window_causes_no_error() -> None:
    """The terminal's state cannot be restored then, and nobody is there to see it."""
    ours, theirs = pty.openpty()
    screen = FullScreen(theirs)
    screen.enter()
    os.close(ours)
    assert screen.keys() is None
    screen.leave()
    screen.leave()
    screen.close()
    screen.close()
    os.close(theirs)
    assert screen.size() == (80, 24)


def test_a_terminal_whose_restoration_was_interrupted_is_restored_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a second Ctrl-C, while Ctrl-Z restores the terminal."""
    ours, theirs = pty.openpty()
    screen, before = FullScreen(theirs), termios.tcgetattr(theirs)
    screen.enter()
    with monkeypatch.context() as changed:
        changed.setattr(termios, "tcsetattr", interrupted)
        with pytest.raises(KeyboardInterrupt):
            screen.leave()
    screen.close()
    assert termios.tcgetattr(theirs) == before
    assert os.read(ours, 4096).endswith(b"\x1b[?1049l")
    os.close(ours)
    os.close(theirs)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_stream_without_a_file_is_not_taken_for_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (None, io.StringIO()):
        monkeypatch.setattr(sys, "stdout", stream)
        assert not top._has_terminal()


@pytest.mark.parametrize(("text", "cut"), [("wörter", "end"), ("ab", "start")])
def test_a_text_that_fits_is_not_cut(text: str, cut: str) -> None:
    assert fit(text, len(text), cut) == text
    assert len(fit(text, 1, cut)) == 1


@pytest.mark.parametrize(
    ("error", "told", "first", "then"),
    [
        (OSError(30, "Read-only file system"), "could not be removed (Read-only file system)", 3, 7),
        (EngineUnavailable("no answer", path="etcd://h/l"), "no answer. The server frees /l by itself", 3, 7),
        (LockLost("/l was removed", path="/l"), "/l was removed", 4, 4),
    ],
)
def test_a_failed_release_changes_only_a_status_of_0(
    error: Exception, told: str, first: int, then: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """A loss takes precedence over both."""

    def release() -> None:
        raise error

    options = argparse.Namespace(verbose=False, quiet=False, held_code=75)
    for status, wanted in ((0, first), (7, then)):
        hold: Any = SimpleNamespace(path="/l", release=release)
        child: Any = SimpleNamespace(told=False, over=False, leaves=lambda _holds, quiet: quiet, dismiss=bool)
        assert end([hold], child, status, options) == wanted
        assert told in capfd.readouterr().err


def test_a_slot_freed_after_a_failed_wait_is_not_reported_as_taken(tmp_path: Path) -> None:
    semaphore = Semaphore(tmp_path / "s", 2)
    with semaphore.acquire(), semaphore.acquire():
        said = slots.why_held(semaphore, semaphore.status())
        assert "has no free slot: all 2 slots are taken (slot 0: held by" in said
        assert said.endswith("Wait until one of these processes releases its slot or ends")  # not only that of slot 0
    assert slots.why_held(semaphore, semaphore.status()).endswith("one has become free since")


def test_a_status_never_mixes_the_holders_of_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The writer may not have finished at the first look, or another process may have the lock at the second."""
    path, real = tmp_path / "l.lock", command._found
    path.write_text(f"pid={os.getpid()}\ntime")

    def found(survey: Survey, given: str) -> Found | None:
        one = real(survey, given)
        path.write_bytes(sema_record(os.getpid(), time.time()))
        return one

    monkeypatch.setattr(command, "_found", found)
    assert perform(parse(["status", "-j", "-p", "sema", str(path)])) == outcome.HELD
    shown = json.loads(capsys.readouterr().out)
    assert (shown["condition"], shown["content_protocol"], shown["holder"]["pid"]) == ("held", "sema", os.getpid())


@pytest.mark.needs("linux")
def test_a_status_that_would_share_the_lock_looks_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a shared request the lock is free, for others held. Each further look would wake the waiters."""
    path, real = tmp_path / "l", command._found
    looks: list[str] = []
    monkeypatch.setattr(command, "_found", lambda survey, given: looks.append(given) or real(survey, given))
    path.write_text("data")
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert perform(parse(["status", "-j", "--shared", "-p", "flock", str(path)])) == outcome.DONE
    assert looks == [str(path)]


@pytest.mark.needs("linux")
def test_a_status_has_the_guard_of_the_holder_that_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tables that were read for the first look are those of the previous holder."""
    path, real = tmp_path / "l", command._found
    peer = Peer("held = Lock(path).acquire(); say('held'); hear(); held.release(); say('done')", [path])
    peer.expect("held")
    holds: list[Hold] = []

    def found(survey: Survey, given: str) -> Found | None:
        one = real(survey, given)
        if not holds:
            peer.say()
            peer.expect("done")
            holds.append(Lock(path).acquire())
        return one

    monkeypatch.setattr(command, "_found", found)
    assert perform(parse(["status", "-j", "-p", "sema", str(path)])) == outcome.HELD
    shown = json.loads(capsys.readouterr().out)
    assert shown["holder"]["pid"] == os.getpid()
    assert [one["pid"] for one in shown["kernel_lock"]] == [os.getpid()]
    holds[0].release()
    peer.destroy()
