"""The meaning of a mount for locks (storage.py), and its effect: guards that others do not see are refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast._platform import procfs
from holdfast._platform.portable import GenericEnvironment
from holdfast._platform.procfs import parse_mounts
from holdfast._platform.storage import shared, storage_at, storage_of
from holdfast._platform.values import ALWAYS_LOCAL, Storage
from holdfast.errors import UnsupportedFilesystem
from unit.stepping import Contend, Stepped

Environments = Callable[..., Stepped]

NFS = "rw,vers={},rsize=1048576,namlen=255,hard,proto=tcp,timeo=600,sec=sys,clientaddr=10.9.0.2"


def read(right: str, *, release: str = "6.18.0") -> Storage:
    """The `Storage` for a mountinfo line with this part after the dash."""
    table = parse_mounts(f"41 27 0:41 / /srv/locks rw,relatime shared:1 - {right}\n")
    return storage_at(table[0], table, release)


@pytest.mark.parametrize(
    ("right", "guards"),
    [
        (f"nfs4 10.9.0.1:/ {NFS.format('4.2')},local_lock=none,addr=10.9.0.1", True),
        (f"nfs4 [fe80::1]:/a {NFS.format('4.0')},addr=fe80::1", True),
        (f"nfs 10.9.0.1:/srv {NFS.format('3')},local_lock=none,addr=10.9.0.1", True),
        (f"nfs 10.9.0.1:/srv {NFS.format('3')},local_lock=posix,addr=10.9.0.1", True),
        (f"nfs 10.9.0.1:/srv {NFS.format('3')},nolock,local_lock=all,addr=10.9.0.1", False),
        (f"nfs 10.9.0.1:/srv {NFS.format('3')},local_lock=flock,addr=10.9.0.1", False),
        (f"nfs 10.9.0.1:/srv {NFS.format('3')},addr=10.9.0.1", None),
        ("nfs host:/srv rw,nolock", False),
        ("cifs //host/share rw,vers=3.1.1,cache=strict,username=u,uid=0,noforceuid,mapposix,actimeo=1", True),
        ("smb3 //host/share rw,vers=3.1.1,cache=none,nobrl,actimeo=1", False),
        ("smbfs //me@host/share rw", None),
        ("lustre 10.0.0.1@tcp:/fs rw,flock,lazystatfs", True),
        ("lustre 10.0.0.1@tcp:/fs rw,localflock,lazystatfs", False),
        ("lustre 10.0.0.1@tcp:/fs rw,lazystatfs", False),
        ("gpfs fs1 rw,mtime,relatime", None),
        ("beegfs beegfs_nodev rw,cfgFile=/etc/beegfs/beegfs-client.conf", None),
        ("ceph 10.0.0.1:6789:/ rw,name=admin,secret=<hidden>,acl", True),
        ("fuse.ceph-fuse ceph-fuse rw,user_id=0,group_id=0,allow_other", True),
        ("fuse.glusterfs host:/vol rw,user_id=0,group_id=0,default_permissions,allow_other", True),
        ("fuse.juicefs JuiceFS:vol rw,user_id=0,group_id=0,default_permissions,allow_other", True),
        ("fuse.mfs mfsmaster:9421 rw,user_id=0,group_id=0,allow_other", None),
        ("afs #grand.central.org:root.cell. rw", True),
        ("afs #grand.central.org:root.cell. rw,flock=local", False),
        ("fuse.sshfs me@host:/dir rw,user_id=0,group_id=0", False),
        ("fuse.s3fs s3fs rw,user_id=0,group_id=0", False),
        ("fuse.rclone remote:dir rw,user_id=0,group_id=0", False),
        ("virtiofs share rw", None),
        ("9p share rw,access=client,trans=virtio", None),
        ("9p share rw,access=user,trans=virtio,version=9p2000.u", False),
        ("9p share rw,access=user,trans=tcp,noextend", False),
        ("9p C:\\134 rw,dirsync,aname=drvfs;path=C:\\;uid=0,cache=5,access=client,trans=fd", None),
        ("ocfs2 /dev/sdb rw,_netdev,heartbeat=local,coherency=full", True),
        ("ocfs2 /dev/sdb rw,_netdev,heartbeat=local,localflocks", False),
        ("gfs2 /dev/vg/lv rw", True),
        ("gfs2 /dev/vg/lv rw,localflocks", False),
        ("vboxsf share rw,nodev,iocharset=utf8,uid=0,gid=0", False),
        ("fuse.vmhgfs-fuse vmhgfs-fuse rw,user_id=0,group_id=0,allow_other", None),
        ("drvfs C:\\134 rw,case=off", None),
        ("prl_fs share rw", None),
        ("fuse.grpcfuse grpcfuse rw,user_id=0,group_id=0", None),
        ("fakeowner /run/host_mark/Users rw", None),
        ("fuse.new me@host:dir rw", None),
        ("fuse davfs2:/x rw", None),
        ("newfs host:/dir rw", None),
    ],
)
def test_the_type_and_options_of_a_shared_mount_tell_who_sees_a_kernel_lock(right: str, guards: bool | None) -> None:
    """ST1, ST2, ST3: unknown where neither the type nor the options say."""
    found = read(right)
    assert (found.guards, found.shared, found.events) == (guards, True, False), found
    assert found.text.startswith("shared with other machines; ")
    assert guards is True or found.remedy


@pytest.mark.parametrize(
    ("right", "lasting"),
    [
        (f"nfs4 h:/ {NFS.format('4.2')},local_lock=none", False),
        (f"nfs h:/srv {NFS.format('3')},local_lock=none", True),
        (f"nfs h:/srv {NFS.format('3')},nolock,local_lock=all", False),
        ("cifs //h/s rw,cache=strict", True),
        ("9p s rw,access=client,trans=tcp", True),
        ("fuse.glusterfs h:/vol rw,user_id=0,group_id=0", True),
        ("ceph 10.0.0.1:6789:/ rw,name=admin", False),
        ("ext4 /dev/vda rw", False),
    ],
)
def test_servers_that_keep_the_kernel_locks_of_a_dead_machine_are_known(right: str, lasting: bool) -> None:
    """ST1: from observations (docs/howto/shared-storage.md)."""
    found = read(right)
    assert found.lasting is lasting
    assert ("a machine that has died" in found.text) is lasting


def test_on_linux_a_share_of_smb_has_no_lock_files() -> None:
    assert not read("cifs //h/s rw,cache=strict").lock_files
    assert storage_of("cifs", {}).lock_files, "Windows makes them in another way"


@pytest.mark.parametrize(
    ("right", "events"),
    [
        ("ext4 /dev/vda rw,discard", True),
        ("tmpfs host:/x rw", True),
        ("btrfs /dev/sda2 rw,space_cache=v2,subvolid=256,subvol=/home", True),
        ("overlay overlay rw,lowerdir=/a:/b,upperdir=/u,workdir=/w", True),
        ("fuse.bindfs /a rw,user_id=0,group_id=0", False),
        ("fuseblk /dev/sdb1 rw,user_id=0,group_id=0,blksize=4096", False),
        ("gfs2 /dev/vg/lv rw,lockproto=lock_nolock,localflocks", False),
        ("autofs auto.home rw,fd=6,pgrp=1,timeout=300", False),
        ("zfs tank/data rw,xattr,posixacl", True),
    ],
)
def test_a_mount_of_one_machine_is_local(right: str, events: bool) -> None:
    found = read(right)
    assert (found.shared, found.guards, found.exclusive, found.fresh) == (False, True, True, True)
    assert found.events is events


@pytest.mark.parametrize(
    ("right", "fresh"),
    [
        (f"nfs4 h:/ {NFS.format('4.2')},local_lock=none", True),
        (f"nfs4 h:/ {NFS.format('4.2')},nocto,local_lock=none", False),
        (f"nfs4 h:/ {NFS.format('4.2')},noac,local_lock=none", True),
        ("cifs //h/s rw,cache=strict", True),
        ("cifs //h/s rw,cache=none,nolease", True),
        ("cifs //h/s rw,cache=loose", False),
        ("cifs //h/s rw,cache=singleclient,nobrl", False),
        ("9p s rw,access=client,trans=virtio", True),
        ("9p s rw,access=client,cache=mmap,trans=virtio", True),
        ("9p s rw,access=client,cache=loose,trans=virtio", False),
        ("9p s rw,access=client,cache=f,trans=virtio", False),
        ("9p s rw,access=client,cache=5,trans=virtio", True),
    ],
)
def test_a_mount_that_may_show_old_content_is_known(right: str, fresh: bool) -> None:
    found = read(right)
    assert found.fresh is fresh
    assert ("as it was before" in found.text) is not fresh
    assert fresh or found.remedy


@pytest.mark.parametrize(
    ("right", "exclusive", "links"),
    [
        (f"nfs h:/ {NFS.format('2')},local_lock=none", False, True),
        (f"nfs h:/ {NFS.format('3')},local_lock=none", True, True),
        ("fuse.s3fs s3fs rw", False, False),
        ("vboxsf share rw", True, False),
    ],
)
def test_a_mount_that_two_machines_cannot_create_on_safely_is_known(right: str, exclusive: bool, links: bool) -> None:
    found = read(right)
    assert (found.exclusive, found.links) == (exclusive, links)
    assert ("create the same lock file" in found.text) is not exclusive
    assert exclusive or found.remedy


def test_an_old_kernel_may_not_send_locks_to_an_smb_server() -> None:
    assert read("cifs //h/s rw,cache=strict", release="4.18.0-553.el8").guards is None
    assert read("cifs //h/s rw,cache=strict", release="5.5.0").guards is True
    assert read("cifs //h/s rw,cache=strict", release="odd").guards is True


def test_an_overlay_over_a_shared_filesystem_keeps_its_locks_to_itself() -> None:
    table = parse_mounts(
        "30 1 0:30 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w\n"
        "31 30 0:31 / /mnt/a\\040b rw - ceph 10.0.0.1:6789:/ rw\n"
        "32 30 0:32 / /merged rw - overlay overlay rw,lowerdir=/x,upperdir=/mnt/a\\040b/u,workdir=/mnt/a\\040b/w\n"
        "33 30 0:33 / /mnt/f rw - fuse.bindfs /f rw\n"
        "34 30 0:34 / /over rw - overlay overlay rw,lowerdir=/x,upperdir=/mnt/f/u,workdir=/mnt/f/w\n"
    )
    merged = storage_at(table[2], table)
    assert (merged.kind, merged.shared, merged.guards) == ("overlay", True, False)
    assert "ceph" in merged.text
    assert not storage_at(table[0], table).shared, "its upper directory is not to be seen from here"
    assert not storage_at(table[4], table).events
    assert storage_at(None, []).text == "of a type that cannot be known"


def test_a_type_that_the_system_calls_not_local_is_shared() -> None:
    assert (shared("newfs").shared, shared("newfs").guards) == (True, None)
    assert storage_of("macfuse", {}).events is False


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], None]:
    """Let the mount table show this filesystem for a directory."""

    def show(directory: Path, right: str) -> None:
        device = os.stat(directory).st_dev
        line = f"41 27 {os.major(device)}:{os.minor(device)} / / rw - {right}\n"
        (tmp_path / "mountinfo").write_text(line)
        monkeypatch.setattr(procfs, "MOUNTS", str(tmp_path / "mountinfo"))

    return show


@pytest.mark.parametrize("more", [{}, {"shared": True}, {"slots": 2}], ids=["exclusive", "shared", "semaphore"])
def test_a_kernel_lock_that_other_machines_do_not_see_is_refused(
    disk: Path, contend: Contend, mounted: Callable[[Path, str], None], more: dict[str, Any]
) -> None:
    """F4: the error says what to do, and the file made for the lock is gone."""
    mounted(disk, f"nfs 10.9.0.1:/srv {NFS.format('3')},nolock,local_lock=all")
    for _ in range(2):
        with pytest.raises(UnsupportedFilesystem, match=r"nfs is shared .* \(local_lock=all\)\. To do: m") as caught:
            contend(disk / "l", protocol="flock", **more).get()
        assert caught.value.protocol == "flock"
        assert [*disk.iterdir()] == []
    contend(disk / "l").get()  # other protocols still work


@pytest.mark.parametrize("protocol", ["sema", "semats", "sidecar"])
def test_lock_files_are_refused_where_they_could_not_be_opened(
    disk: Path, contend: Contend, environments: Environments, protocol: str
) -> None:
    """P9: no file is made, and the error names what works there."""
    env = environments("unnamed")
    env.instead["storage"] = lambda *_: read("cifs //h/s rw,cache=strict")
    with pytest.raises(UnsupportedFilesystem, match="protocol='flock'") as caught:
        contend(disk / "l", env, protocol=protocol).get()
    assert caught.value.protocol == protocol
    assert [*disk.iterdir()] == []
    assert contend(disk / "l", env, protocol="flock").get()


def test_a_held_kernel_lock_that_others_do_not_see_is_refused_before_the_wait(
    disk: Path, contend: Contend, mounted: Callable[[Path, str], None]
) -> None:
    contend(disk / "l", protocol="flock").get()
    mounted(disk, "lustre 10.0.0.1@tcp:/fs rw,localflock")
    with pytest.raises(UnsupportedFilesystem, match="-o flock"):
        contend(disk / "l", protocol="flock", timeout=None).step()
    assert [path.name for path in disk.iterdir()] == ["l"], "it is the holder's"


@pytest.mark.parametrize("right", ["virtiofs share rw", "nfs4 h:/ rw,vers=4.2,local_lock=none", "fuse.bindfs x rw"])
def test_a_kernel_lock_is_allowed_where_others_see_it_or_may_see_it(
    disk: Path, contend: Contend, mounted: Callable[[Path, str], None], right: str
) -> None:
    mounted(disk, right)
    contend(disk / "l", protocol="flock").get()


@pytest.mark.parametrize("kind", sorted(ALWAYS_LOCAL))
@pytest.mark.parametrize("source", ["none", "host:/x", "//host/x"])
def test_a_type_that_is_always_local_needs_no_mount_table(
    kind: str,
    source: str,
    disk: Path,
    environments: Environments,
    mounted: Callable[[Path, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = read(f"{kind} {source} rw")
    assert expected == Storage(kind)
    mounted(disk, f"{kind} {source} rw")
    monkeypatch.setattr("holdfast._platform.storage.storage_at", lambda *_: pytest.fail("the table was asked"))
    assert environments().real.storage(str(disk / "l")) == expected


def test_the_mount_table_is_read_once_for_many_acquisitions(
    disk: Path, environments: Environments, contend: Contend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check costs a free lock no further call: the descriptor's own device identifies the mount."""
    reads: list[str] = []
    read_file = procfs.read
    monkeypatch.setattr(procfs, "read", lambda path: reads.append(path) or read_file(path))
    env = environments()
    monkeypatch.setattr("holdfast._platform.linux.time.monotonic", lambda: 100.0)
    path = str(disk / "l")
    device = os.stat(disk).st_dev
    first = env.storage(path, device)
    monkeypatch.setattr(os, "stat", lambda *_args, **_more: pytest.fail("a look at the directory"))
    assert all(env.storage(path, device) is first for _ in range(3))
    monkeypatch.undo()
    assert reads == [procfs.MOUNTS]


def test_portable_python_knows_nothing_of_mounts() -> None:
    found = GenericEnvironment().storage("/x/l")
    assert (found.kind, found.shared, found.events) == ("", False, False)
