"""Fixtures for the tests with real processes: whatever a test starts, mounts or makes is gone when it ends."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
def path(tmp_path: Path) -> str:
    """The path of a lock that nobody holds yet."""
    return str(tmp_path / "the.lock")


@pytest.fixture
def mount() -> Iterator[Callable[..., None]]:
    """Run `mount` with these words; the last is the mount point, which is unmounted in the end."""
    points: list[str] = []

    def run(*words: object) -> None:
        done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"mount {' '.join(map(str, words))} is not permitted here: {done.stderr.strip()}")
        points.append(str(words[-1]))

    yield run
    for point in reversed(points):
        subprocess.run(["umount", "-l", point], check=True)
