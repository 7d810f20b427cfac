"""Directories for the temporary files of a run: one below each place for such files, with the run's name.

HOLDFAST_TEST_RUN is the name. Two runs share no directory, so what is left in one (leftovers.py) is that run's own.
Without a run, as for a tool that is started by hand, the places themselves.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

RUN = "HOLDFAST_TEST_RUN"

PLACE = os.environ.get("HOLDFAST_TEST_PLACE", "")
"""The place of all directories of the tests, to try a filesystem: process/filesystem.py sets it."""

_POSIX = os.name == "posix"


class _WithSlashes(type(Path())):  # type: ignore[misc]
    """A path as holdfast writes it, with slashes on Windows too."""

    def __str__(self) -> str:
        return super().__str__().replace(os.sep, "/")


_Path: type[Path] = Path if _POSIX else _WithSlashes


def below(parent: str) -> str:
    """This run's directory below a place for temporary files. Anyone may write to it, as to that place."""
    name = os.environ.get(RUN)
    if not name:
        return parent
    path = os.path.join(parent, f"holdfast-{name}")
    try:
        os.mkdir(path)
        os.chmod(path, 0o1777)
    except FileExistsError:
        pass
    return path


def disk() -> str:
    """A directory on disk (/tmp may be in memory, /var/tmp is not meant to be)."""
    if PLACE:
        return below(PLACE)
    return below("/var/tmp") if _POSIX and os.access("/var/tmp", os.W_OK) else tempfile.gettempdir()


def memory() -> str | None:
    """A directory in memory; None if there is none to write to."""
    if PLACE:
        return below(PLACE)
    if not _POSIX:
        return tempfile.gettempdir()
    return below("/dev/shm") if os.access("/dev/shm", os.W_OK) else None


@contextmanager
def directory(parent: str) -> Iterator[Path]:
    """An empty directory, until the end of the block."""
    place = _Path(tempfile.mkdtemp(prefix="holdfast-test-", dir=parent))
    place.chmod(0o755)  # some tests look at it as another user
    try:
        yield place
    finally:
        shutil.rmtree(place)


@contextmanager
def directory_in_memory() -> Iterator[Path]:
    """Like `directory`, in memory; the test is skipped if there is no memory to write to."""
    parent = memory()
    if parent is None:
        pytest.skip("/dev/shm is not there or not writable")
    with directory(parent) as place:
        yield place
