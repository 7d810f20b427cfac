"""Differences between filesystems, in short. `make filesystems` runs whole suites on each."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ahead import Ran
from process.filesystem import KINDS, UNABLE, Unable, command
from process.foreign.play import Player
from process.support import eventually

SHORT = Path(__file__).with_name("on_filesystem.py")
SECONDS = 1.0
POLLED = ("fuse",)


@pytest.fixture(autouse=True)
def _able() -> None:
    if any(os.environ.get(name) for name in ("HOLDFAST_OS", "HOLDFAST_WITHOUT")):
        pytest.skip("says how it is with all that Linux can; HOLDFAST_OS or HOLDFAST_WITHOUT take something away")
    if os.environ.get("HOLDFAST_TEST_PLACE"):
        pytest.skip("runs on a certain filesystem already (HOLDFAST_TEST_PLACE)")


def _on_filesystem(kind: str) -> subprocess.CompletedProcess[str]:
    try:
        words = command(kind, [sys.executable, str(SHORT), str(SECONDS), str(int(kind not in POLLED))])
    except Unable as why:
        pytest.skip(f"no {kind} here: {why}")
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


@pytest.mark.ahead(body=_on_filesystem)
@pytest.mark.parametrize("kind", KINDS)
def test_every_filesystem_excludes_and_shows_deaths_and_releases(kind: str, ran: Ran) -> None:
    done = ran()
    print(done.stdout)
    if done.returncode == UNABLE:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


def test_a_filesystem_ends_with_the_test_that_was_killed(play: Callable[..., Player]) -> None:
    """The loop device and the FUSE server end with it, in whatever way it ends."""
    try:
        words = command("ext4", ["sh", "-c", 'df --output=source "$HOLDFAST_TEST_PLACE" | tail -n 1; exec sleep 1000'])
    except Unable as why:
        pytest.skip(f"no ext4 here: {why}")
    started = play(words)
    try:
        device = started.hear()
    except AssertionError as error:
        if "no ext4 here" in str(error):
            pytest.skip(str(error))
        raise
    assert backing_file(device)
    os.kill(started.pid, signal.SIGKILL)
    eventually(lambda: not backing_file(device), what="the end of the loop device")


def backing_file(device: str) -> str:
    """The file behind a loop device of these tests; empty if the device is free, or belongs to others by now."""
    try:
        found = Path(f"/sys/block/{Path(device).name}/loop/backing_file").read_text().strip()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):  # ENODEV: the device is being released
            raise
        return ""
    return found if found.endswith("/base/image") else ""
