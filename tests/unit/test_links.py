"""Following links (paths.py), and making directories: another user's link must not redirect either."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import InvalidPath, Lock
from holdfast._platform.portable import GenericEnvironment
from holdfast.beads import should_skip_database
from holdfast.engines.file.paths import followed
from unit.elsewhere import NOBODY, elsewhere, needs_root

OTHER = NOBODY - 1


@pytest.mark.parametrize(
    "path",
    [
        *("there", "there/", "./there/../there", "link", "link/x", "dangling", "circle", "circle/x", "no/../there"),
        *("deep/up", "deep/up/there", "absolute/x", "file/x", "link/../there", "x" * 300, "link//x/."),
    ],
)
def test_links_are_followed_as_realpath_follows_them(path: str, disk: Path) -> None:
    """LK1: whether or not the target exists."""
    (disk / "there").mkdir()
    (disk / "deep").mkdir()
    (disk / "file").touch()
    for name, target in (
        *(("link", "there"), ("dangling", "no/where"), ("circle", "circle"), ("deep/up", "..")),
        ("absolute", str(disk / "there")),
    ):
        (disk / name).symlink_to(target)
    given = f"{disk}/{path}"
    if path.startswith("circle"):
        with pytest.raises(InvalidPath, match="circle"):
            Lock(given, protocol="semats").acquire(timeout=0)
    else:
        assert followed(given, "semats", last=True) == os.path.realpath(given)


def _linked(disk: Path, owner: int, mode: int, directory_owner: int = 0) -> Path:
    where = disk / "shared"
    where.mkdir()
    (disk / "private").mkdir()
    (where / "link").symlink_to(disk / "private" / "new")
    (where / "way").symlink_to(disk / "private")
    for name in ("link", "way"):
        os.lchown(where / name, owner, owner)
    os.chown(where, directory_owner, directory_owner)
    where.chmod(mode)
    return where


@needs_root
@pytest.mark.parametrize("mode", [0o755, 0o775, 0o777, 0o1777], ids=oct)
def test_another_users_link_in_place_of_a_lock_file_is_refused(mode: int, disk: Path) -> None:
    """LK1: in semats, which follows links, and in the daemon's check of beads, which removes their targets."""
    where = _linked(disk, OTHER, mode)
    with pytest.raises(InvalidPath, match=f"symbolic link of user {OTHER}"):
        Lock(where / "link", protocol="semats")
    (where / ".exclusive-lock").symlink_to(disk / "private" / "new")
    os.lchown(where / ".exclusive-lock", OTHER, OTHER)
    skip, _, error = should_skip_database(where)
    assert skip
    assert error is not None
    assert f"symbolic link of user {OTHER}" in error
    assert os.listdir(disk / "private") == []


@needs_root
def test_a_link_of_the_user_or_of_root_is_followed(disk: Path) -> None:
    """LK1."""
    where = _linked(disk, 0, 0o1777)
    mine = disk / "mine"
    mine.symlink_to(disk / "private" / "new")
    os.lchown(mine, OTHER, OTHER)
    for link in (where / "link", mine):
        found = elsewhere(lambda link=link: Lock(link, protocol="semats").path, user=OTHER)
        assert found == str(disk / "private" / "new")


@needs_root
@pytest.mark.parametrize(
    ("mode", "directory_owner", "is_followed"),
    [(0o755, 0, True), (0o1777, 0, False), (0o777, 0, False), (0o775, 0, False), (0o777, OTHER, True)],
)
@pytest.mark.parametrize("protocol", ["semats", "sidecar"])
def test_another_users_link_is_refused_on_a_way_where_all_may_write(
    mode: int, directory_owner: int, protocol: str, *, is_followed: bool, disk: Path
) -> None:
    """LK1: as the kernel does in sticky directories, where it reads the links; in every directory that others may write
    to."""
    where = _linked(disk, OTHER, mode, directory_owner)
    if is_followed:
        assert Lock(where / "way" / "x", protocol=protocol).path.startswith(f"{disk}/private/x")
    else:
        with pytest.raises(InvalidPath, match=f"symbolic link of user {OTHER}"):
            Lock(where / "way" / "x", protocol=protocol)


@needs_root
def test_a_link_exchanged_while_it_is_read_is_not_believed(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LK2: it was root's when looked at, and another user's when read."""
    link = disk / "link"
    link.symlink_to("ours")
    real = os.fstat

    def exchange(fd: int) -> os.stat_result:
        found = real(fd)
        if stat.S_ISLNK(found.st_mode) and os.readlink(link) == "ours":
            link.unlink()
            link.symlink_to("theirs")
            os.lchown(link, OTHER, OTHER)
        return found

    monkeypatch.setattr(os, "fstat", exchange)
    assert followed(str(link), "semats", last=True) == str(disk / "ours")
    monkeypatch.undo()
    with pytest.raises(InvalidPath):
        followed(str(link), "semats", last=True)


def test_directories_are_not_made_through_a_link_that_came_in_between(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory is made only inside the one just made, or not at all."""
    (disk / "outside").mkdir()
    real: Callable[..., None] = os.mkdir

    def exchange(path: str, *args: object, **options: object) -> None:
        real(path, *args, **options)
        if path == "new":
            os.rename(disk / "new", disk / "moved")
            (disk / "new").symlink_to("outside")

    monkeypatch.setattr(os, "mkdir", exchange)
    monkeypatch.setattr(os, "supports_dir_fd", {*os.supports_dir_fd, exchange})
    with pytest.raises(NotADirectoryError) as caught:
        GenericEnvironment().make_directories(str(disk / "new" / "deep" / "deeper"))
    assert caught.value.filename == str(disk / "new" / "deep" / "deeper")
    assert os.listdir(disk / "outside") == []


def test_only_missing_directories_are_made(disk: Path) -> None:
    (disk / "real").mkdir()
    (disk / "link").symlink_to("real")
    for path in ("link/a/b", "link/a/b", "link/a", "link/./c/"):
        GenericEnvironment().make_directories(str(disk / path))
    assert sorted(str(path.relative_to(disk)) for path in (disk / "real").rglob("*")) == [
        "real/a",
        "real/a/b",
        "real/c",
    ]
    for obstacle in ("file", "dangling"):
        (disk / "file").touch()
        (disk / "dangling").unlink(missing_ok=True)
        (disk / "dangling").symlink_to("no/where")
        with pytest.raises(NotADirectoryError):
            GenericEnvironment().make_directories(str(disk / obstacle / "x"))
