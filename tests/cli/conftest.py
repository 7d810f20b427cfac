"""Fixtures for the tests of the command line: whatever a test starts is gone when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.support import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A `World`, which starts processes; their working directory is `tmp_path`."""
    one = World(tmp_path)
    yield one
    one.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a lock that nobody holds yet."""
    return tmp_path / "the.lock"


@pytest.fixture
def held(world: World, path: Path) -> int:
    """The pid of a `holdfast run` that holds `path`."""
    holder = world.hold(path)
    holder.hear("held")
    return holder.pid
