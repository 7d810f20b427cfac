"""Interpretation of the kernel's tables of locks and of watches (proc_locks.py, procfs.py)."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import abilities
from holdfast._platform import inotify, masks, proc_locks, procfs
from holdfast._platform.descriptors import Descriptors
from holdfast._platform.linux import LinuxEnvironment
from holdfast._platform.operations import Operations
from holdfast._platform.portable import GenericEnvironment
from holdfast._platform.proc_locks import (
    LockEntry,
    OpenFiles,
    ProcLocks,
    WatchEntry,
    entries,
    parse_locks,
    parse_watches,
)
from holdfast._platform.procfs import parse_mounts
from holdfast._platform.values import LockOwner, Presence, Process
from process.support import inotify_instance
from unit.elsewhere import NOBODY, elsewhere, mount, needs_root

LOCKS = """\
1: POSIX  ADVISORY  WRITE 3568 fd:00:2531452 0 EOF
2: FLOCK  ADVISORY  WRITE 3517 fd:00:2531448 0 EOF
2: -> FLOCK  ADVISORY  WRITE 3518 fd:00:2531448 0 EOF
2:  -> FLOCK  ADVISORY  READ 3519 fd:00:2531448 0 EOF
3: OFDLCK ADVISORY  READ  -1 08:01:7864448 128 128
4: LEASE  ACTIVE    WRITE 20492 00:1b:1288835 0 EOF
5: FLOCK  ADVISORY  READ 0 00:27:9223372036855784854 0 EOF
6: ACCESS ADVISORY  READ 3548 08:01:7867240 1 1
7: FLOCK  MSNFS     READ 12 103:10301:5 0 EOF
8: DELEG  ACTIVE    READ 5 00:1b:1288835 0 EOF
9: FLOCK  ADVISORY  WRITE -7 00:1b:77 0 EOF
10: FLOCK  ADVISORY  WRITE 5 <none>:0 0 EOF
11: FLOCK  ADVISORY  UNLCK 5 00:1b:77 0 EOF
"""

FDINFO = """\
pos:\t0
flags:\t02100002
mnt_id:\t27
ino:\t2146411
lock:\t1: FLOCK  ADVISORY  WRITE 4150 fe:00:2146411 0 EOF
"""

WATCHES = """\
pos:\t0
flags:\t00
mnt_id:\t17
ino:\t1038
inotify wd:2 ino:80000000000f6596 sdev:27 mask:84000c0c ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:6bc
inotify wd:1 ino:20c06b sdev:fe00003 mask:8000800c ignored_mask:0\x20
fanotify ino:4 sdev:5 mflags:0 mask:3b ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:6bc
"""

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard
44 27 0:39 /a\\040-\\040b /c\\040-\\040d rw - overlay overlay rw,lowerdir=/x - y
45 27 0:40 / /m rw - fuse.sshfs host:/ rw
"""


# -- the text ----------------------------------------------------------------------------------------------------------


def test_entries_of_flock_are_read_and_others_left_out() -> None:
    disk = (os.makedev(0xFD, 0), 2531448)
    assert entries(LOCKS) == [
        LockEntry(3517, True, False, disk),
        LockEntry(3518, True, True, disk),
        LockEntry(3519, False, True, disk),
        LockEntry(0, False, False, (os.makedev(0, 0x27), 9223372036855784854)),
        LockEntry(12, False, False, (os.makedev(0x103, 0x10301), 5)),
        LockEntry(0, True, False, (os.makedev(0, 0x1B), 77)),
    ]
    assert entries(FDINFO) == [LockEntry(4150, True, False, (os.makedev(0xFE, 0), 2146411))]


def test_watches_are_read() -> None:
    assert parse_watches(WATCHES) == [
        WatchEntry(0x84000C0C, (os.makedev(0, 0x27), 0x80000000000F6596)),
        WatchEntry(0x8000800C, (os.makedev(0xFE, 3), 0x20C06B)),
    ]
    assert parse_watches(FDINFO) == []
    assert parse_locks(WATCHES) == []


def test_mounts_are_read() -> None:
    assert [(mount.number, mount.device, mount.kind) for mount in parse_mounts(MOUNTS)] == [
        ("22", os.makedev(0, 21), "proc"),
        ("27", os.makedev(254, 0), "ext4"),
        ("44", os.makedev(0, 39), "overlay"),
        ("45", os.makedev(0, 40), "fuse.sshfs"),
    ]


# Almost correct lines, in any order, cut anywhere, with numbers of any size.
pieces = st.one_of(
    st.text(),
    st.sampled_from(
        [*LOCKS.splitlines(True), *WATCHES.splitlines(True), *FDINFO.splitlines(True), *MOUNTS.splitlines()]
    ),
    st.sampled_from(
        ["FLOCK  ADVISORY  WRITE ", "1: ", "lock:\t", "inotify wd:", " ino:", " sdev:", " mask:", " - ", ":"]
    ),
    st.integers().map(str),
    st.integers(min_value=0).map(lambda n: f"{n:x}"),
)


@given(st.lists(pieces).map("".join))
@example("1: FLOCK  ADVISORY  WRITE 9999999999 fff:fffff:99999999999999999999 0 EOF\n")
@example("1: FLOCK  ADVISORY  WRITE " + "9" * 5000 + " 0:0:0 ")
@example("1: FLOCK  ADVISORY  WRITE 1 ffffffff:ffffffff:1 0 EOF\n")
@example("1: FLOCK  ADVISORY  WRITE \u0661 00:01:\u0662 0 EOF\n")
@example("inotify wd:1 ino:ffffffffffffffff sdev:ffffffff mask:ffffffff \n")
@example("1 1 9999:9999999 / / - x \n")
def test_garbage_in_a_table_is_no_error(text: str) -> None:
    for entry in parse_locks(text):
        assert entry.pid >= 0
    for watch in parse_watches(text):
        assert watch.mask >= 0
    parse_mounts(text)


@given(st.lists(st.text(st.characters(blacklist_characters="\n\r"))), st.integers(0, 13))
def test_garbage_does_not_hide_the_lines_around_it(lines: list[str], at: int) -> None:
    # `splitlines` would also split at other characters than the kernel's newline; the lines that are right stay whole.
    known = LOCKS.splitlines(keepends=True)
    garbage = [f"#{line}\n" for line in lines]
    assert parse_locks("".join([*known[:at], *garbage, *known[at:]])) == parse_locks(LOCKS)


# -- the tables --------------------------------------------------------------------------------------------------------


@pytest.fixture
def locked(place: Path) -> Iterator[tuple[Path, int]]:
    """A file that this process has locked, shared."""
    path = place / "l"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_SH)
    yield path, fd
    os.close(fd)


def identity(path: Path | str) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_dev, stat.st_ino


ME = LockOwner(os.getpid(), exclusive=False)


def child(action: Callable[[], object]) -> int:
    """Fork a child that runs this, and then waits to be killed."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
            signal.pause()
        finally:
            os._exit(1)
    return pid


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.fixture
def watched(place: Path) -> Iterator[Path]:
    """A file that this process watches as a waiting lock does."""
    path = place / "w"
    path.touch()
    os.close(inotify_instance())
    hub = inotify.Hub(Descriptors(Operations(threading.RLock())), threading.RLock())
    hub.add(str(path))
    yield path
    os.close(hub.fd)


def test_a_file_on_a_dead_server_does_not_hang_the_look(
    locked: tuple[Path, int], watched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W1: no file is queried whose device is the one in the tables, nor any outside the few filesystems that need
    it."""
    wanted, watch = identity(locked[0]), identity(watched)

    def hang(path: object, **_options: object) -> os.stat_result:
        raise AssertionError(f"{path} was asked")

    env = LinuxEnvironment()
    abilities.need_own_device(watched)
    with monkeypatch.context() as patched:  # so that a failure is reported with the real `stat`
        patched.setattr(procfs.os, "stat", hang)
        assert env.lock_owners(wanted) == [ME]
        assert env.watchers(watch) == [os.getpid()]
        # A device that no mount has: every process is looked at, but only files on btrfs and the like are queried.
        patched.setattr(proc_locks, "_SUBVOLUMES", {"none of those here"})
        assert env.lock_owners((1, wanted[1])) == []
        assert env.watchers((1, wanted[1])) == []


def test_a_process_that_ends_in_the_middle_or_is_closed_to_us_is_no_error(
    locked: tuple[Path, int], watched: Path, dead_pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W1: it is left out, at whichever point of the look that shows."""
    abilities.need_own_device(watched)
    env, wanted = LinuxEnvironment(), identity(locked[0])
    monkeypatch.setattr(procfs, "pids", lambda: iter([dead_pid, 0, os.getpid(), 2**31 - 1]))
    assert env.lock_owners(wanted) == [ME]
    assert env.watchers(identity(watched)) == [os.getpid()]
    real = procfs.read
    for missing in ("/proc/locks", "mountinfo", "fdinfo", "/proc"):
        monkeypatch.setattr(procfs, "read", lambda path, missing=missing: "" if missing in path else real(path))
        expected = [] if missing == "/proc" else [ME]
        found = env.lock_owners(wanted)
        # The table alone could not tell that this process has the lock.
        assert found == (expected if missing != "fdinfo" else [LockOwner(None, exclusive=False)])
    monkeypatch.setattr(procfs, "read", real)
    with monkeypatch.context() as patched:
        patched.setattr(procfs.os, "listdir", gone)
        found, watchers = env.lock_owners(wanted), env.watchers(identity(watched))
    assert watchers == []
    assert found == [ME]  # it lives, and the table names it


def gone(*_arguments: object) -> list[str]:
    raise PermissionError(13, "Permission denied")


@needs_root
def test_a_full_descriptor_table_is_no_error(locked: tuple[Path, int], watched: Path) -> None:
    env, wanted, watch = LinuxEnvironment(), identity(locked[0]), identity(watched)
    env.lock_owners(wanted)
    env.watchers(watch)

    def exhausted() -> list[Any]:
        try:
            while True:
                os.dup(0)
        except OSError:
            return [env.lock_owners(wanted), env.watchers(watch)]

    assert elsewhere(exhausted, files=64) == [[], []]


@needs_root
def test_a_holder_is_found_where_the_device_is_another() -> None:
    """W2: on an overlay of two filesystems, `st_dev` is not the device in the tables."""

    def mounts() -> None:
        mount("t", "/mnt", "tmpfs")
        for name in ("one", "two"):
            os.mkdir(f"/mnt/{name}")
            mount("t", f"/mnt/{name}", "tmpfs")
        for name in ("one/lower", "two/upper", "two/work", "merged"):
            os.mkdir(f"/mnt/{name}")
        layers = "xino=off,lowerdir=/mnt/one/lower,upperdir=/mnt/two/upper,workdir=/mnt/two/work"
        mount("o", "/mnt/merged", "overlay", 0, layers)

    def look() -> Any:
        path = "/mnt/merged/l"
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
        hub = inotify.Hub(Descriptors(Operations(threading.RLock())), threading.RLock())
        hub.add(path)
        listed = {mount.device for mount in procfs.mounts()}
        env, wanted = LinuxEnvironment(), identity(path)
        return (
            wanted[0] in listed,
            [(o.pid == os.getpid(), o.exclusive, o.waiting) for o in env.lock_owners(wanted)],
            [pid == os.getpid() for pid in env.watchers(wanted)],
        )

    assert elsewhere(look, mounts=mounts) == (False, [(True, True, False)], [True])


def test_an_entry_of_another_file_of_that_number_is_not_taken_for_ours(
    locked: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """W2: where devices differ, a process seen with such a lock on another file does not count."""
    abilities.need_own_device(locked[0])
    device, inode = identity(locked[0])
    # As if the superblock of two subvolumes were the same.
    monkeypatch.setattr(proc_locks, "_superblock", lambda _identity: device)
    assert LinuxEnvironment().lock_owners((device + 1, inode)) == []
    assert LinuxEnvironment().lock_owners((device, inode)) == [ME]


def test_a_number_that_is_another_process_by_now_is_not_named(
    locked: tuple[Path, int], live_pid: int, dead_pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W3: the table names the process that acquired the lock; a later process with its pid is not named."""
    abilities.need_own_device(locked[0])
    path, fd = locked
    wanted = identity(path)
    real = procfs.read
    shown = next(line for line in real("/proc/locks").splitlines(keepends=True) if f":{wanted[1]} " in line)
    for pid in (live_pid, dead_pid):
        changed = shown.replace(f" {os.getpid()} ", f" {pid} ")
        texts = {"/proc/locks": changed, f"/proc/{os.getpid()}/fdinfo/{fd}": f"lock:\t{changed}"}
        monkeypatch.setattr(procfs, "read", lambda path, texts=texts: texts.get(path) or real(path))
        assert LinuxEnvironment().lock_owners(wanted) == [ME]


@needs_root
@pytest.mark.parametrize("dropped", [True, False])
def test_a_lock_that_is_dropped_with_its_holders_end_after_the_table_was_read_is_nobodys(
    place: Path, *, dropped: bool
) -> None:
    """W3, W7: if the holder had not ended, the lock would still be held, though by no visible process."""
    (place / "l").touch()
    abilities.need_own_device(place / "l")
    with open(place / "l") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        tables = ProcLocks(lambda _pid: Process(Presence.GONE), procfs.mounts(), tables=True, few=True)
        tables._keepers = {}
        if dropped:
            fcntl.flock(file, fcntl.LOCK_UN)
        assert tables.owners(identity(place / "l")) == ([] if dropped else [LockOwner(None, exclusive=True)])


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("WRITE 5", "WRITE 6", [(6, True)]),
        ("READ 5", "WRITE 5", [(5, True)]),
        ("WRITE 5", "READ 5", [(5, False)]),
        ("READ 5", "READ 6", [(5, False), (6, False)]),
    ],
)
def test_a_lock_that_changes_hands_while_the_table_is_read_has_one_owner(
    before: str, after: str, shown: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch, *, few: bool
) -> None:
    """W10: only readers share it."""
    texts = [f"1: FLOCK  ADVISORY  {one} 08:01:77 0 EOF\n" for one in (before, after)]
    real = procfs.read
    monkeypatch.setattr(procfs, "read", lambda path: texts.pop(0) if path == "/proc/locks" else real(path))
    monkeypatch.setattr(proc_locks.OpenFiles, "descriptors", lambda _process: None)
    tables = ProcLocks(lambda _pid: Process(Presence.RUNNING), procfs.mounts(), tables=True, few=few)
    assert tables.owners((os.makedev(8, 1), 77)) == [LockOwner(pid, exclusive=exclusive) for pid, exclusive in shown]


def test_only_the_number_of_a_living_process_closed_to_us_is_named(place: Path, live_pid: int, dead_pid: int) -> None:
    """W3: a living process that may not be looked at is named; one that has ended is not."""
    path = place / "l"
    path.touch()
    wanted = identity(path)
    name = f"{os.major(wanted[0]):02x}:{os.minor(wanted[0]):02x}:{wanted[1]}"

    def look(pid: int) -> list[LockOwner]:
        text = f"1: FLOCK  ADVISORY  WRITE {pid} {name} 0 EOF\n"
        real = procfs.read
        procfs.read = lambda path: text if path == "/proc/locks" else real(path)
        return LinuxEnvironment().lock_owners(wanted)

    env = LinuxEnvironment()
    env.lock_owners(wanted)  # imports modules, which the other user may not be able to
    assert elsewhere(lambda: look(live_pid), user=NOBODY) == [LockOwner(live_pid, exclusive=True)]
    assert elsewhere(lambda: look(dead_pid), user=NOBODY) == [LockOwner(None, exclusive=True)]
    assert elsewhere(lambda: look(live_pid)) == [LockOwner(None, exclusive=True)]  # root sees that it lacks the lock


def test_a_lock_released_at_this_moment_has_no_owner(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W3: an entry without a process is looked up again before it is reported."""
    path = place / "l"
    path.touch()
    wanted = identity(path)
    real, left = proc_locks._table, [[LockEntry(1, True, False, wanted)]]
    monkeypatch.setattr(proc_locks, "_table", lambda file, _records: left.pop() if left else real(file))
    assert LinuxEnvironment().lock_owners(wanted) == []
    assert not left


def test_a_holder_that_the_table_leaves_out_is_found(locked: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """W4, W5: by its descriptors, whether it was left out because of a container or by bad luck."""
    path, fd = locked
    real = procfs.read
    monkeypatch.setattr(procfs, "read", lambda name: "" if name == "/proc/locks" else real(name))
    assert LinuxEnvironment().lock_owners(identity(path)) == [ME]
    heir = child(lambda: None)
    try:
        found = LinuxEnvironment().lock_owners(identity(path))
        assert found == [ME]  # the child has the descriptor too, but this process took the lock
    finally:
        end(heir)
    # In a container, an owner outside of it is shown as pid 0.
    unknown = procfs.read(f"/proc/self/fdinfo/{fd}").replace(f" {os.getpid()} ", " 0 ")
    mine = f"/proc/{os.getpid()}/fdinfo/{fd}"
    monkeypatch.setattr(
        procfs, "read", lambda name: unknown if name == mine else "" if name == "/proc/locks" else real(name)
    )
    assert LinuxEnvironment().lock_owners(identity(path)) == [ME]


def test_a_missing_or_doubled_entry_is_read_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W5: the table is read until two readings agree on this file, but not for ever."""
    path = place / "l"
    path.touch()
    wanted = identity(path)
    name = f"{os.major(wanted[0]):02x}:{os.minor(wanted[0]):02x}:{wanted[1]}"
    lines = [
        f"1: FLOCK  ADVISORY  READ {os.getpid()} {name} 0 EOF\n",
        f"1: -> FLOCK  ADVISORY  WRITE 5 {name} 0 EOF\n",
    ]
    whole = [LockEntry(os.getpid(), False, False, wanted), LockEntry(5, True, True, wanted)]

    def table(*texts: str) -> list[LockEntry]:
        left = list(texts)
        monkeypatch.setattr(procfs, "read", lambda _name: left.pop(0))
        return proc_locks._table(wanted)

    both = "".join(lines)
    assert table(both, both) == whole
    assert table("", both, both) == whole
    assert table(lines[0], both, both) == whole
    assert table(both * 2, both) == whole
    assert table("", "", "", "") == []
    assert table("", "", "", both) == whole
    assert table(both, "", "", "") == []
    assert table(both, lines[0], both, "") == whole
    assert table(lines[0], lines[1], lines[0], lines[1]) == whole[1:]


def test_only_a_watch_for_the_same_thing_counts(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W6: the flags that are shown on some kernels only, and those that never are, do not matter, or do they."""
    path = place / "w"
    path.touch()
    env, wanted = LinuxEnvironment(), identity(path)
    libc = ctypes.CDLL(None, use_errno=True)
    fd = inotify_instance()
    dont_follow = 0x2000000
    readable = os.open(path, os.O_RDONLY)  # on btrfs, only one that is open can be found
    try:
        for mask, counts in {
            masks.MASKS[0]: True,
            masks.MASKS[0] & ~dont_follow: True,
            masks.MASKS[0] | masks.IN_CLOSE_NOWRITE: True,
            masks.MASKS[0] | 0x2: False,
            masks.MASKS[0] & ~masks.IN_MOVE_SELF: False,
            0xFFF: False,
        }.items():
            libc.inotify_add_watch(fd, os.fsencode(path), ctypes.c_uint32(mask))
            assert env.watchers(wanted) == ([os.getpid()] if counts else []), hex(mask)
        # As a kernel before 4.4 shows it, with internal bits.
        libc.inotify_add_watch(fd, os.fsencode(path), ctypes.c_uint32(0xC0C))
        real = procfs.read
        monkeypatch.setattr(procfs, "read", lambda name: real(name).replace(" mask:c0c ", " mask:800ac0c "))
        assert env.watchers(wanted) == [os.getpid()]
    finally:
        os.close(readable)
        os.close(fd)


# -- the environments --------------------------------------------------------------------------------------------------


def test_a_portable_environment_knows_no_holders(locked: tuple[Path, int]) -> None:
    env = GenericEnvironment()
    assert env.lock_owners(identity(locked[0])) == []
    assert env.watchers(identity(locked[0])) == []


def test_the_tables_of_another_namespace_are_not_believed(
    locked: tuple[Path, int], watched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = LinuxEnvironment()
    monkeypatch.setattr(procfs, "is_ours", lambda: False)
    assert env.lock_owners(identity(locked[0])) == []
    assert env.watchers(identity(watched)) == []


def test_a_watch_that_is_gone_is_no_longer_shown(place: Path) -> None:
    path = place / "w"
    path.touch()
    env, wanted = LinuxEnvironment(), identity(path)
    with path.open():  # on btrfs, only one that is open can be found
        watch = env.watch(str(path))
        assert watch is not None
        try:
            assert env.watchers(wanted) == [os.getpid()]
            watch.close()
            assert env.watchers(wanted) == []
        finally:
            for fd in list(env._descriptors):
                env.close(fd)


def test_a_descriptor_closed_meanwhile_does_not_stop_a_look_at_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """W1, where each file is checked: it is left out."""
    process = OpenFiles(os.getpid())
    monkeypatch.setattr(process, "mount", lambda _information: (1, "btrfs"))
    assert process.leads_to("0", "", (0, 0)) is False
    assert process.leads_to("999999", "", (0, 0)) is False
    found = os.stat("/proc/self/fd/0")
    assert process.leads_to("0", "", (found.st_dev, found.st_ino))
