"""Places where a step may block (procfs.py, and its use in linux.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast._platform import procfs, storage
from holdfast._platform.procfs import Mount, mount_at, mounts
from unit.stepping import Stepped

TABLE = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw
40 27 0:40 / /home rw,relatime shared:1 master:2 - autofs auto.home rw
41 27 0:41 / /srv/lo\\040ck\\134s rw - nfs4 server:/a rw
42 27 0:42 / /mnt/a rw - fuse.sshfs host:/ rw
43 27 0:43 / /mnt/a rw - tmpfs tmpfs rw
44 43 0:44 / /mnt/a/b rw - fuse.bindfs x rw
torn
"""


@pytest.fixture
def _table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_text(TABLE)
    monkeypatch.setattr(procfs, "MOUNTS", str(tmp_path / "mountinfo"))


@pytest.mark.usefixtures("_table")
@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/", "ext4"),
        ("/dev", "devtmpfs"),
        ("/dev/shm/x", "devtmpfs"),
        ("/device", "ext4"),
        ("/srv/lo ck\\s/x", "nfs4"),
        ("/srv/lo ck\\sx", "ext4"),
        ("/mnt/a", "tmpfs"),
        ("/mnt/a/c", "tmpfs"),
        ("//mnt//a/./b/", "fuse.bindfs"),
        ("/mnt/a/b/..", "tmpfs"),
        ("/home/me", "autofs"),
    ],
)
def test_a_directory_is_found_on_its_mount(directory: str, kind: str) -> None:
    mount = mount_at(directory, mounts())
    assert mount is not None
    assert mount.kind == kind


def test_the_real_table_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [mount_at("/sys", mounts()), mount_at("/proc/self", mounts())]
    assert [mount and mount.kind for mount in found] == ["sysfs", "proc"]
    monkeypatch.setattr(procfs, "MOUNTS", "/no/such/table")
    assert mount_at("/proc", mounts()) is None


@pytest.mark.usefixtures("_table")
@pytest.mark.parametrize("path", ["/mnt/a/b/l", "/srv/lo ck\\s/deep/l", "/home/me/l"])
def test_a_silent_server_does_not_stop_the_event_loop(
    path: str, environments: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = environments().real
    assert storage.storage_at(None, []).events, "imported: that looks at directories, but not at the lock's"

    def hangs(*_args: object) -> None:
        raise AssertionError("a look at a directory of a server may last for ever")

    with monkeypatch.context() as patched:  # so that a failure is reported with the real `stat`
        patched.setattr(os, "stat", hangs)
        blocks = env.may_block(path)
        patched.setattr(procfs, "MOUNTS", "/no/such/table")
        again = env.may_block(path)
    assert blocks
    assert again, "asked a second time"


@pytest.mark.parametrize(("kind", "expected"), [("tmpfs", False), ("nfs4", True), ("fuse", True)])
def test_a_symbolic_link_does_not_hide_where_a_step_may_block(
    kind: str,
    expected: bool,
    shm: Path,
    environments: Callable[..., Stepped],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = environments().real
    (shm / "mountinfo").write_text(f"1 1 0:1 / / rw - tmpfs x rw\n2 1 0:2 / {shm}/there rw - {kind} x rw\n")
    (shm / "link").symlink_to("there/below")
    monkeypatch.setattr(procfs, "MOUNTS", str(shm / "mountinfo"))
    assert env.may_block(str(shm / "link" / "l")) is expected
    assert not env.may_block(str(shm / "l"))


@pytest.mark.parametrize("kind", ["nfs4", "overlay", "vfat"])
def test_a_mount_on_the_way_that_is_local_hides_no_server_behind_it(
    kind: str, shm: Path, environments: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local mount is looked up once; the next mount on the way still counts."""
    env = environments().real
    near, far = f"2 1 0:2 / {shm} rw - {kind} /dev/x rw\n", f"3 2 0:3 / {shm}/a/far rw - nfs x:/ rw\n"
    (shm / "mountinfo").write_text("1 1 0:1 / / rw - ext4 x rw\n" + near + far)
    monkeypatch.setattr(procfs, "MOUNTS", str(shm / "mountinfo"))
    assert env.may_block(str(shm / "l")) is (kind == "nfs4")
    assert env.may_block(str(shm / "a" / "far" / "l"))
    point = shm if kind == "nfs4" else shm / "a" / "far"
    assert env.server_at(str(shm / "a" / "far" / "l")).startswith(f"the server of {point} (")


def test_the_answer_for_a_directory_is_remembered_for_a_while(
    shm: Path, environments: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = environments().real
    (shm / "mountinfo").write_text("1 1 0:1 / / rw - tmpfs x rw\n2 1 0:2 / /there rw - nfs4 x:/ rw\n")
    monkeypatch.setattr(procfs, "MOUNTS", str(shm / "mountinfo"))
    asked: list[str] = []
    real, now = procfs.mount_on_the_way, [1000.0]
    monkeypatch.setattr(procfs, "mount_on_the_way", lambda path, *more: asked.append(path) or real(path, *more))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for _ in range(3):
        assert not env.may_block(str(shm / "one"))
        assert not env.may_block(str(shm / "two"))
    assert asked == [str(shm)]
    now[0] += 1.1
    assert not env.may_block(str(shm / "one"))
    assert asked == [str(shm)] * 2
    for n in range(1000):
        assert not env.may_block(str(shm / str(n) / "l"))
    assert len(env._blocking) <= 256


def test_a_server_that_is_mounted_where_all_was_local_is_noticed_within_seconds(
    shm: Path, environments: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = environments().real
    local = "1 1 0:1 / / rw - tmpfs x rw\n"
    (shm / "mountinfo").write_text(local)
    monkeypatch.setattr(procfs, "MOUNTS", str(shm / "mountinfo"))
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for _ in range(3):
        assert not env.may_block(str(shm / "l"))
        now[0] += 1.1
    (shm / "mountinfo").write_text(f"{local}2 1 0:2 / {shm} rw - nfs4 x:/ rw\n")
    now[0] += 1.1
    assert env.may_block(str(shm / "l"))
    (shm / "mountinfo").write_text(local)
    now[0] += 2.2
    assert not env.may_block(str(shm / "l"))


def test_the_filesystem_of_a_subvolume_is_known_and_remembered(
    shm: Path, environments: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mount table does not list its device, so the path without symbolic links decides."""
    env = environments().real
    (shm / "below").mkdir()
    (shm / "link").symlink_to(shm / "below")
    asked: list[str] = []
    found = Mount("1 2 0:1 / / rw - btrfs /dev/sda rw,subvol=/home")
    monkeypatch.setattr(procfs, "mount_of", lambda _device, _table: None)
    monkeypatch.setattr(procfs, "mount_at", lambda directory, _table: asked.append(directory) or found)
    assert env.storage(str(shm / "link" / "l")).kind == "btrfs"
    assert asked == [str(shm / "below")]
    assert not env.may_block(str(shm / "l"))
    asked.clear()
    assert not env.may_block(str(shm / "l"))
    assert env.events_reach(str(shm / "l"))
    assert asked == []


def test_portable_python_does_not_guess_where_a_step_may_block(environments: Callable[..., Stepped]) -> None:
    assert not environments(kind="generic").real.may_block("/l")
