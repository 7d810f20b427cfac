"""Fixtures for the tests with real processes: whatever a test starts, mounts or creates is gone when it ends."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from process.foreign import node
from process.foreign.play import HERE, Player, playing
from process.support import Peer


@pytest.fixture
def spawn() -> Iterator[Callable[..., Peer]]:
    """Start a `Peer`."""
    peers: list[Peer] = []

    def start(code: str, *arguments: object, **options: object) -> Peer:
        peer = Peer(code, arguments, **options)
        peers.append(peer)
        return peer

    yield start
    for peer in peers:
        peer.destroy()


@pytest.fixture
def play() -> Iterator[Callable[..., Player]]:
    """Start a script of `foreign`, by its name, or another command, given as a list."""
    with playing() as start:
        yield start


@pytest.fixture(params=node.VERSIONS)
def fs_safe(request: pytest.FixtureRequest, play: Callable[..., Player]) -> Callable[..., Player]:
    """Start a process of fs-safe for a target, in one version after the other."""
    return _starter(request.param, play)


@pytest.fixture
def fs_safe_new(play: Callable[..., Player]) -> Callable[..., Player]:
    """Start a process of fs-safe for a target, in the latest version only."""
    return _starter(node.VERSIONS[-1], play)


def _starter(version: str, play: Callable[..., Player]) -> Callable[..., Player]:
    try:
        command = [node.node(), HERE / "fs_safe.mjs", node.fs_safe(version)]
    except node.Missing as missing:
        pytest.skip(str(missing))
    return lambda target, *arguments: play(command, target, *arguments)


@pytest.fixture
def proper_lockfile(play: Callable[..., Player]) -> Callable[..., Player]:
    """Start a process of proper-lockfile for a target."""
    try:
        command = [node.node(), HERE / "proper_lockfile.mjs", node.proper_lockfile()]
    except node.Missing as missing:
        pytest.skip(str(missing))
    return lambda target, *arguments: play(command, target, *arguments)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The path of a lock that nobody holds yet."""
    return str(tmp_path / "the.lock")


@pytest.fixture
def mount() -> Iterator[Callable[..., None]]:
    """Run `mount` with these words; the last is the mount point, which is unmounted at the end."""
    points: list[str] = []

    def run(*words: object) -> None:
        done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"mount {' '.join(map(str, words))} is not permitted here: {done.stderr.strip()}")
        points.append(str(words[-1]))

    yield run
    for point in reversed(points):
        subprocess.run(["umount", "-l", point], check=True)


@pytest.fixture
def overlay(disk: Path, mount: Callable[..., None]) -> Path:
    """An overlay of two filesystems, whose files have other devices than itself; `copied up` is in the lower one."""
    needs_mounts()
    lower, upper, work, merged = (disk / name for name in ("lower", "upper", "work", "merged"))
    for directory in (lower, upper, work, merged):
        directory.mkdir()
    mount("-t", "tmpfs", "tmpfs", lower)
    (lower / "copied up").touch()
    mount("-t", "overlay", "overlay", "-o", f"xino=off,lowerdir={lower},upperdir={upper},workdir={work}", merged)
    return merged


@pytest.fixture
def btrfs(disk: Path, mount: Callable[..., None]) -> Path:
    """A btrfs with the subvolumes `one` and `other`."""
    needs_mounts()
    if shutil.which("mkfs.btrfs") is None or shutil.which("btrfs") is None:
        pytest.skip("btrfs-progs is not installed")
    image, point = disk / "image", disk / "btrfs"
    with image.open("wb") as file:
        file.truncate(128 << 20)
    subprocess.run(["mkfs.btrfs", "-q", image], check=True, capture_output=True)
    point.mkdir()
    mount("-o", "loop", image, point)
    for name in ("one", "other"):
        subprocess.run(["btrfs", "-q", "subvolume", "create", point / name], check=True)
    return point


def needs_mounts() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
