"""The formats of the kernel's tables in `/proc`: one test for each that proc_locks.py reads.

These use nothing of holdfast. If a test fails, this kernel differs: see the head of proc_locks.py."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import abilities
from process.support import Peer, eventually, inotify_instance

libc = ctypes.CDLL(None, use_errno=True)

HOLD = """
import fcntl
fd = os.open(path, os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_EX if sys.argv[2] == "exclusive" else fcntl.LOCK_SH)
say("held")
hear()
"""

# The process that takes the lock ends; its child keeps the descriptor.
BEQUEATH = """
import fcntl
fd = os.open(path, os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_EX)
if os.fork():
    os._exit(0)
while os.getppid() == int(sys.argv[2]):
    time.sleep(0.001)
say(os.getpid())
hear()
"""


@pytest.fixture
def opened() -> Iterator[Callable[..., int]]:
    fds: list[int] = []

    def open_(path: object, flags: int = os.O_RDWR) -> int:
        fds.append(os.open(path, flags | os.O_CLOEXEC))
        return fds[-1]

    yield open_
    for fd in fds:
        os.close(fd)


@pytest.fixture
def instance() -> Iterator[int]:
    fd = inotify_instance()
    yield fd
    os.close(fd)


@pytest.fixture
def file(place: Path) -> Path:
    path = place / "l"
    path.touch()
    abilities.need_own_device(path)
    return path


def table(path: Path, count: int = 1, device: int | None = None) -> list[str]:
    """The lines of /proc/locks about a file, without their numbers, once there are this many.

    While other locks come and go, a line may be missing for a moment or come twice."""
    stat = path.stat()
    device = stat.st_dev if device is None else device
    wanted = f" {os.major(device):02x}:{os.minor(device):02x}:{stat.st_ino} "

    def look() -> list[str]:
        lines = Path("/proc/locks").read_text().splitlines(keepends=True)
        return list(dict.fromkeys(line.partition(":")[2] for line in lines if wanted in line))

    return eventually(lambda: [found] if len(found := look()) == count else None, what=f"{count} lines")[0]


def information(fd: int, pid: int | str = "self") -> str:
    return Path(f"/proc/{pid}/fdinfo/{fd}").read_text()


def line(text: str, start: str) -> str:
    return next((each for each in text.splitlines(keepends=True) if each.startswith(start)), "")


def first_namespace() -> bool:
    return os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC


def test_holders_and_waiters_look_as_expected(file: Path, spawn: Callable[..., Peer]) -> None:
    holder = spawn(HOLD, file, "exclusive")
    holder.expect("held")
    stat = file.stat()
    name = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    assert re.fullmatch(rf" FLOCK  ADVISORY  WRITE {holder.pid} {name} 0 EOF\n", *table(file))
    waiter = spawn(HOLD, file, "exclusive")
    assert re.fullmatch(rf" -> FLOCK  ADVISORY  WRITE {waiter.pid} {name} 0 EOF\n", table(file, 2)[1])
    other = spawn(HOLD, file, "shared")
    # A waiter behind a waiter is indented; the kernel decides which one it is put below.
    assert re.fullmatch(rf" +-> FLOCK  ADVISORY  READ {other.pid} {name} 0 EOF\n", table(file, 3)[2])


def test_shared_holders_are_listed_one_by_one_as_shared(file: Path, spawn: Callable[..., Peer]) -> None:
    holders = [spawn(HOLD, file, "shared") for _ in range(2)]
    for holder in holders:
        holder.expect("held")
    seen = [re.match(r" FLOCK  ADVISORY  READ (\d+) ", each) for each in table(file, 2)]
    assert sorted(int(each[1]) for each in seen if each) == sorted(holder.pid for holder in holders)


def test_other_kinds_of_kernel_locks_have_their_own_names(file: Path, opened: Callable[..., int]) -> None:
    process, description, lease = opened(file), opened(file), opened(file)
    fcntl.lockf(process, fcntl.LOCK_EX, 1, 0)
    F_OFD_SETLK = 37
    fcntl.fcntl(description, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 5, 1, 0))
    kinds = {re.split(" +", each)[1] for each in table(file, 2)}
    assert kinds == {"POSIX", "OFDLCK"}
    os.close(os.dup(process))  # which drops the first
    for fd in (process, description):
        fcntl.fcntl(fd, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
    alone = file.parent / "leased"
    alone.touch()
    lease = opened(alone)
    fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    assert [re.split(" +", each)[1] for each in table(alone)] == ["LEASE"]


def test_the_descriptor_of_a_holder_shows_the_lock_and_that_of_a_waiter_does_not(
    file: Path, opened: Callable[..., int], spawn: Callable[..., Peer]
) -> None:
    fd = opened(file)
    assert line(information(fd), "lock:") == ""
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert line(information(fd), "lock:") == "lock:\t1:" + table(file)[0]
    assert line(information(fd), "ino:") == f"ino:\t{file.stat().st_ino}\n"
    mount = line(information(fd), "mnt_id:").removeprefix("mnt_id:\t").strip()
    device = file.stat().st_dev
    assert re.search(
        rf"^{mount} \d+ {os.major(device)}:{os.minor(device)} /.* - \w+ ",
        Path("/proc/self/mountinfo").read_text(),
        re.MULTILINE,
    )
    waiter = spawn(HOLD, file, "exclusive")
    table(file, 2)
    theirs = [name for name in os.listdir(f"/proc/{waiter.pid}/fd") if is_same(waiter.pid, name, file)]
    assert theirs
    assert not any("lock:" in information(int(name), waiter.pid) for name in theirs)


def is_same(pid: int, fd: str, path: Path) -> bool:
    found, wanted = os.stat(f"/proc/{pid}/fd/{fd}"), path.stat()
    return (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)


def test_a_lock_is_remembered_after_the_process_that_took_it(file: Path, spawn: Callable[..., Peer]) -> None:
    taker = spawn("sys.argv[2:] = [str(os.getpid())]\n" + BEQUEATH, file)
    heir = int(taker.hear())
    taker.wait()
    if first_namespace():
        assert re.split(" +", table(file)[0])[4] == str(taker.pid)
    else:
        table(file, 0)
    told = [information(int(fd), heir) for fd in os.listdir(f"/proc/{heir}/fd") if is_same(heir, fd, file)]
    number = taker.pid if first_namespace() else 0
    assert [f" WRITE {number} " in line(each, "lock:") for each in told] == [True]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare(1)")
def test_a_container_sees_no_locks_of_the_host_or_of_ended_processes(file: Path, spawn: Callable[..., Peer]) -> None:
    # Neither its own, if the process that took them has ended, nor those of the host, nor the waiters for either.
    outside = spawn(HOLD, file, "exclusive")
    outside.expect("held")
    inner = file.parent / "inner"
    inner.touch()
    container = spawn(
        f"""
        import fcntl, subprocess
        def holder(path):
            fd = os.open(path, os.O_RDWR)
            pid = os.fork()
            if pid == 0:
                fcntl.flock(fd, fcntl.LOCK_EX)
                os._exit(0)
            os.waitpid(pid, 0)
            return fd
        waiter = subprocess.Popen(["flock", {str(file)!r}, "true"])
        fd = holder({str(inner)!r})
        say("ready")
        hear()
        say(open("/proc/locks").read().count("FLOCK"))
        say([l for l in open(f"/proc/self/fdinfo/{{fd}}") if l.startswith("lock:")][0].split()[5])
        hear()
        """,
        prefix=("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"),
    )
    container.expect("ready")
    table(file, 2)
    container.say("look")
    container.expect("0")
    container.expect("0")


def test_a_watch_is_shown_as_expected(file: Path, instance: int) -> None:
    watch, flags = libc.inotify_add_watch, {"EXCL_UNLINK": 0x4000000, "ONESHOT": 0x80000000}
    stat = file.stat()
    device = os.major(stat.st_dev) << 20 | os.minor(stat.st_dev)

    def shown() -> int:
        text = line(information(instance), "inotify ")
        found = re.match(rf"inotify wd:1 ino:{stat.st_ino:x} sdev:{device:x} mask:([0-9a-f]+) ignored_mask:0 ", text)
        assert found, text
        return int(found[1], 16)

    assert os.readlink(f"/proc/self/fd/{instance}") == "anon_inode:inotify"
    assert watch(instance, os.fsencode(file), ctypes.c_uint32(0xC0C | 0x2000000)) == 1  # DONT_FOLLOW: not shown
    assert shown() == 0xC0C
    assert watch(instance, os.fsencode(file), ctypes.c_uint32(0x10 | 0x20000000)) == 1  # MASK_ADD: not shown
    assert shown() == 0xC1C
    for flag in flags.values():  # from Linux 5.19 on
        assert watch(instance, os.fsencode(file), ctypes.c_uint32(0xC0C | flag)) == 1
        assert shown() in (0xC0C, 0xC0C | flag)
    assert watch(instance, os.fsencode(file), ctypes.c_uint32(0xFFF)) == 1
    assert shown() == 0xFFF


# -- devices -----------------------------------------------------------------------------------------------------------


def superblock(fd: int) -> int:
    """The device in mountinfo of the mount where the descriptor's file is."""
    mount = line(information(fd), "mnt_id:").removeprefix("mnt_id:\t").strip()
    found = re.search(rf"^{mount} \d+ (\d+):(\d+) ", Path("/proc/self/mountinfo").read_text(), re.MULTILINE)
    assert found
    return os.makedev(int(found[1]), int(found[2]))


def shown_device(fd: int, instance: int) -> tuple[int, int]:
    """The device and inode number by which the tables name an open file, which is locked and watched for that."""
    fcntl.flock(fd, fcntl.LOCK_EX)
    lock = re.search(r"^lock:\t.* ([0-9a-f]+):([0-9a-f]+):(\d+) 0 EOF$", information(fd), re.MULTILINE)
    assert libc.inotify_add_watch(instance, os.fsencode(f"/proc/self/fd/{fd}"), 0xC0C) >= 0
    watch = re.search(r"^inotify .* ino:([0-9a-f]+) sdev:([0-9a-f]+) ", information(instance), re.MULTILINE)
    assert lock
    assert watch
    device = os.makedev(int(lock[1], 16), int(lock[2], 16))
    number = int(watch[2], 16)
    assert os.makedev(number >> 20, number & 0xFFFFF) == device
    assert int(watch[1], 16) == int(lock[3])
    return device, int(lock[3])


def test_a_file_has_the_same_device_in_the_tables(file: Path, opened: Callable[..., int], instance: int) -> None:
    fd = opened(file)
    assert shown_device(fd, instance) == (file.stat().st_dev, file.stat().st_ino)
    assert superblock(fd) == file.stat().st_dev


@pytest.mark.parametrize("name", ["new", "copied up"])
def test_an_overlay_of_two_filesystems_has_two_devices(
    overlay: Path, name: str, opened: Callable[..., int], instance: int
) -> None:
    path = overlay / name
    path.open("ab").close()
    fd = opened(path)
    device, number = shown_device(fd, instance)
    assert device == superblock(fd) != path.stat().st_dev
    assert number == path.stat().st_ino


def test_subvolumes_of_btrfs_share_a_device_and_numbers_in_the_tables(
    btrfs: Path, opened: Callable[..., int], instance: int
) -> None:
    one, other = btrfs / "one" / "l", btrfs / "other" / "l"
    for path in (one, other):
        path.touch()
        fd = opened(path)
        device, number = shown_device(fd, instance)
        assert device == superblock(fd) != path.stat().st_dev
        assert number == path.stat().st_ino
    # So the tables cannot distinguish the two: both are held, and their lines are equal.
    assert one.stat().st_ino == other.stat().st_ino
    assert one.stat().st_dev != other.stat().st_dev
    table(one, 1, superblock(fd))
