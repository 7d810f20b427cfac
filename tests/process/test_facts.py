"""The facts about the kernel on which the engine relies. If a test fails here, this kernel differs: look at the core.

Most of these use nothing of holdfast; each is a fact by itself."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import os
import re
import select
import shutil
import signal
import stat
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Liveness, Lock
from holdfast._platform.linux import LinuxEnvironment
from process.support import Peer, eventually, inotify_instance, state

ATTRIB, CLOSE_WRITE, CLOSE_NOWRITE, MOVE_SELF, DELETE_SELF = 0x4, 0x8, 0x10, 0x800, 0x400
IGNORED = 0x8000
NAMES = {
    ATTRIB: "ATTRIB",
    CLOSE_WRITE: "CLOSE_WRITE",
    CLOSE_NOWRITE: "CLOSE_NOWRITE",
    MOVE_SELF: "MOVE_SELF",
    DELETE_SELF: "DELETE_SELF",
    IGNORED: "IGNORED",
}
TRY_EXCLUSIVE = fcntl.LOCK_EX | fcntl.LOCK_NB
TRY_SHARED = fcntl.LOCK_SH | fcntl.LOCK_NB

libc = ctypes.CDLL(None, use_errno=True)


def free(fd: int, how: int = TRY_EXCLUSIVE) -> bool:
    """Whether flock can be acquired on this descriptor; releases it again."""
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def unnamed(directory: Path) -> int:
    return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o644)


def link(fd: int, path: Path) -> None:
    os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)


@pytest.fixture
def opened() -> Iterator[Callable[..., int]]:
    """Open a file, which is closed after the test at the latest."""
    fds: list[tuple[int, int]] = []

    def open_(path: object, flags: int = os.O_RDWR, mode: int = 0o644) -> int:
        fd = os.open(path, flags | os.O_CLOEXEC, mode)
        fds.append((fd, os.fstat(fd).st_ino))
        return fd

    yield open_
    for fd, inode in fds:
        try:
            if os.fstat(fd).st_ino == inode:
                os.close(fd)
        except OSError:
            pass


class Events:
    """What inotify says about one file."""

    def __init__(self, path: Path) -> None:
        self.fd = inotify_instance(os.O_CLOEXEC | os.O_NONBLOCK)
        mask = ATTRIB | CLOSE_WRITE | CLOSE_NOWRITE | MOVE_SELF | DELETE_SELF
        assert libc.inotify_add_watch(self.fd, os.fsencode(path), mask) >= 0

    def now(self) -> list[str]:
        """The events since the last call."""
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return []
        found, offset = [], 0
        while offset < len(data):
            _, mask, _, length = struct.unpack_from("iIII", data, offset)
            found.append(NAMES[mask])
            offset += 16 + length
        return found

    def next(self, within: float = 5) -> list[str]:
        assert select.select([self.fd], [], [], within)[0], "no event came"
        return self.now()


@pytest.fixture
def events() -> Iterator[Callable[[Path], Events]]:
    made: list[Events] = []

    def watch(path: Path) -> Events:
        made.append(Events(path))
        return made[-1]

    yield watch
    for each in made:
        os.close(each.fd)


# -- publishing --------------------------------------------------------------------------------------------------------


def test_linking_an_unnamed_file_replaces_nothing(place: Path) -> None:
    path = place / "l"
    first, second = unnamed(place), unnamed(place)
    try:
        os.write(first, b"first")
        link(first, path)
        with pytest.raises(FileExistsError):
            link(second, path)
        assert path.read_bytes() == b"first"
        assert os.fstat(first).st_ino == path.stat().st_ino
    finally:
        os.close(first)
        os.close(second)


def test_an_unnamed_file_that_is_never_linked_leaves_nothing(place: Path) -> None:
    os.close(unnamed(place))
    assert os.listdir(place) == []


def test_an_unnamed_file_opened_exclusively_cannot_be_linked(place: Path) -> None:
    # The reason why the engine does not pass O_EXCL there.
    fd = os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with pytest.raises(FileNotFoundError):
            link(fd, place / "l")
    finally:
        os.close(fd)


def test_a_guard_taken_before_the_link_is_kept_by_it(place: Path, opened: Callable[..., int]) -> None:
    path = place / "l"
    fd = unnamed(place)
    try:
        fcntl.flock(fd, TRY_EXCLUSIVE)
        link(fd, path)
        assert not free(opened(path, os.O_RDONLY))
    finally:
        os.close(fd)
    assert free(opened(path, os.O_RDONLY))


def test_link_by_an_empty_path_needs_no_proc(place: Path) -> None:
    fd = unnamed(place)
    try:
        assert libc.linkat(fd, b"", -100, os.fsencode(place / "l"), 0x1000) == 0
        assert libc.linkat(fd, b"", -100, os.fsencode(place / "l"), 0x1000) == -1
        assert ctypes.get_errno() == errno.EEXIST
    finally:
        os.close(fd)


# -- the guard ---------------------------------------------------------------------------------------------------------


def test_a_descriptor_for_reading_gets_an_exclusive_guard(place: Path, opened: Callable[..., int]) -> None:
    path = place / "l"
    path.touch()
    reader, writer = opened(path, os.O_RDONLY), opened(path)
    fcntl.flock(reader, TRY_EXCLUSIVE)
    assert not free(writer)
    assert not free(writer, TRY_SHARED)


def test_two_probers_do_not_exclude_each_other(place: Path, opened: Callable[..., int]) -> None:
    path = place / "l"
    path.touch()
    one, other = opened(path, os.O_RDONLY), opened(path, os.O_RDONLY)
    fcntl.flock(one, TRY_SHARED)
    assert free(other, TRY_SHARED)
    assert not free(other, TRY_EXCLUSIVE)  # which is why probes are shared


def test_unlocking_in_a_child_drops_its_parents_guard_and_closing_does_not(
    place: Path, opened: Callable[..., int]
) -> None:
    path = place / "l"
    path.touch()
    held, probe = opened(path), opened(path)
    fcntl.flock(held, TRY_EXCLUSIVE)

    def in_child(action: Callable[[], None]) -> None:
        pid = os.fork()
        if pid == 0:
            action()
            os._exit(0)
        os.waitpid(pid, 0)

    in_child(lambda: os.close(held))
    assert not free(probe)
    in_child(lambda: None)
    assert not free(probe)
    in_child(lambda: fcntl.flock(held, fcntl.LOCK_UN))
    assert free(probe)  # the reason why a child must never unlock


def test_a_childs_copy_keeps_the_guard_unless_it_was_unlocked(place: Path, opened: Callable[..., int]) -> None:
    # It does, until it is closed; an explicit unlock by the parent frees the lock at once.
    path = place / "l"
    path.touch()
    probe = opened(path)
    for unlock in (False, True):
        held = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(held, TRY_EXCLUSIVE)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        os.close(read)
        if unlock:
            fcntl.flock(held, fcntl.LOCK_UN)
        os.close(held)
        assert free(probe) is unlock
        os.close(write)
        os.waitpid(pid, 0)
        assert free(probe)


# -- events ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["unlink", "rename over"])
def test_a_removed_lock_file_that_is_still_open_makes_an_event(
    place: Path, how: str, events: Callable[[Path], Events]
) -> None:
    path = place / "l"
    fd = unnamed(place)
    try:
        link(fd, path)
        seen = events(path)
        if how == "unlink":
            path.unlink()
        else:
            (place / "new").touch()
            (place / "new").rename(path)
        assert seen.now() == ["ATTRIB", "DELETE_SELF", "IGNORED"]
    finally:
        os.close(fd)


def test_a_removed_file_created_by_name_makes_an_event_at_once(place: Path, events: Callable[[Path], Events]) -> None:
    path = place / "l"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    seen = events(path)
    path.unlink()
    assert seen.now() == ["ATTRIB"]
    os.close(fd)
    eventually(lambda: seen.now() == ["CLOSE_WRITE", "DELETE_SELF", "IGNORED"], within=1)


def test_an_exchanged_lock_file_makes_an_event(place: Path, events: Callable[[Path], Events]) -> None:
    path, other = place / "l", place / "other"
    path.touch()
    other.touch()
    seen = events(path)
    if libc.renameat2(-100, os.fsencode(path), -100, os.fsencode(other), 2) != 0:
        pytest.skip(f"no RENAME_EXCHANGE here: {os.strerror(ctypes.get_errno())}")
    assert seen.now() == ["MOVE_SELF"]
    other.unlink()
    assert seen.now() == ["ATTRIB", "DELETE_SELF", "IGNORED"]


def test_writing_and_unlocking_make_no_events(
    place: Path, opened: Callable[..., int], events: Callable[[Path], Events]
) -> None:
    # They make none of the events for which waiters watch: otherwise each heartbeat would wake all waiters.
    path = place / "l"
    path.touch()
    fd = opened(path)
    seen = events(path)
    os.pwrite(fd, b"1234567890", 0)
    fcntl.flock(fd, TRY_EXCLUSIVE)
    fcntl.flock(fd, fcntl.LOCK_UN)
    assert seen.now() == []
    os.utime(path)
    assert seen.now() == ["ATTRIB"]


@pytest.mark.parametrize(("flags", "event"), [("O_RDWR", "CLOSE_WRITE"), ("O_RDONLY", "CLOSE_NOWRITE")])
def test_a_killed_holder_makes_an_event(
    spawn: Callable[..., Peer], place: Path, flags: str, event: str, events: Callable[[Path], Events]
) -> None:
    path = place / "l"
    path.touch()
    holder = spawn(f"fd = os.open(path, os.{flags}); import fcntl; fcntl.flock(fd, 2); say('held'); hear()", path)
    holder.expect("held")
    seen = events(path)
    holder.kill()
    assert seen.next() == [event]
    probe = os.open(path, os.O_RDONLY)
    try:
        # The event may come a moment before the guard goes: hence the engine looks again a few times.
        eventually(lambda: free(probe), within=0.2, what="the end of the guard")
    finally:
        os.close(probe)


def test_a_second_watch_on_one_inode_is_the_same_watch(place: Path) -> None:
    path = place / "l"
    path.touch()
    os.link(path, place / "also")
    fd = inotify_instance(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        first = libc.inotify_add_watch(fd, os.fsencode(path), ATTRIB)
        assert libc.inotify_add_watch(fd, os.fsencode(place / "also"), CLOSE_WRITE) == first
        os.utime(path)
        with pytest.raises(BlockingIOError):  # and the second mask has replaced the first
            os.read(fd, 4096)
        assert libc.inotify_rm_watch(fd, first) == 0
        assert struct.unpack_from("iIII", os.read(fd, 4096))[1] == IGNORED
    finally:
        os.close(fd)


# -- FIFOs -------------------------------------------------------------------------------------------------------------

OWNER, BEHIND = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW
NO_SUCH_READER = pytest.raises(OSError, match=re.escape(os.strerror(errno.ENXIO)))


def fifo(path: Path, mode: int = 0o600) -> Path:
    os.mkfifo(path, mode)
    return path


def polled(fd: int, within: float = 0) -> int:
    """The result of a `poll` that asks only for input."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return dict(poll.poll(within * 1000)).get(fd, 0)


def test_a_fifo_without_a_reader_cannot_be_opened_for_writing(place: Path, opened: Callable[..., int]) -> None:
    path = fifo(place / "t")
    with NO_SUCH_READER:
        opened(path, BEHIND)
    owner = opened(path, OWNER)
    opened(path, BEHIND)
    os.close(owner)
    with NO_SUCH_READER:  # a remaining writer is not a reader
        opened(path, BEHIND)


def test_a_writing_end_reports_at_once_and_from_then_on_that_its_reader_has_closed(
    place: Path, opened: Callable[..., int]
) -> None:
    path = fifo(place / "t")
    owner = opened(path, OWNER)
    behind = opened(path, BEHIND)
    assert polled(behind) == 0
    path.unlink()
    assert polled(behind) == 0
    os.close(owner)
    assert polled(behind) == polled(behind) == select.POLLERR
    assert select.select([behind], [], [], 0)[0] == [behind]
    with pytest.raises(BrokenPipeError):
        os.write(behind, b"!")


def test_a_writing_end_reports_that_its_reader_is_killed_but_not_that_it_is_stopped(
    spawn: Callable[..., Peer], place: Path, opened: Callable[..., int]
) -> None:
    path = fifo(place / "t")
    owner = spawn("fd = os.open(path, os.O_RDWR | os.O_NONBLOCK); say('waiting'); hear()", path)
    owner.expect("waiting")
    behind = opened(path, BEHIND)
    os.kill(owner.pid, signal.SIGSTOP)
    eventually(lambda: state(owner.pid) == "T", what="the stop")
    assert polled(behind) == 0
    os.kill(owner.pid, signal.SIGKILL)
    assert polled(behind, within=5) == select.POLLERR
    with NO_SUCH_READER:
        opened(path, BEHIND)


def test_a_writing_end_reports_that_its_reader_starts_another_program(
    spawn: Callable[..., Peer], place: Path, opened: Callable[..., int]
) -> None:
    path = fifo(place / "t")
    owner = spawn(
        """
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        say("waiting")
        hear()
        os.execv("/bin/sleep", ["sleep", "60"])
        """,
        path,
    )
    owner.expect("waiting")
    behind = opened(path, BEHIND)
    owner.say("go on")
    assert polled(behind, within=5) == select.POLLERR


def test_a_childs_copy_of_a_reading_end_delays_the_end_until_it_is_closed(
    place: Path, opened: Callable[..., int]
) -> None:
    path = fifo(place / "t")
    owner = opened(path, OWNER)
    behind = opened(path, BEHIND)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    os.close(owner)
    assert polled(behind) == 0
    os.close(write)
    os.waitpid(pid, 0)
    assert polled(behind) == select.POLLERR


def test_a_reading_end_that_may_write_reports_bytes_but_not_writers(place: Path, opened: Callable[..., int]) -> None:
    # With O_RDONLY it would hang up when the last writer leaves, and say so until the next one comes.
    path = fifo(place / "t")
    owner, reader = opened(path, OWNER), opened(path, os.O_RDONLY | os.O_NONBLOCK)
    behind = opened(path, BEHIND)
    os.close(owner)
    os.close(behind)
    assert polled(reader) == select.POLLHUP
    owner = opened(path, OWNER)
    behind = opened(path, BEHIND)
    assert polled(owner) == 0
    os.write(behind, b"!")
    assert polled(owner) == select.POLLIN
    os.close(behind)
    assert polled(owner) == select.POLLIN
    assert os.read(owner, 4096) == b"!"
    assert polled(owner) == 0


def test_a_full_pipe_refuses_and_never_blocks(place: Path, opened: Callable[..., int]) -> None:
    path = fifo(place / "t")
    opened(path, OWNER)
    behind = opened(path, BEHIND)
    os.write(behind, bytes(fcntl.fcntl(behind, fcntl.F_GETPIPE_SZ)))
    with pytest.raises(BlockingIOError):
        os.write(behind, b"!")


def test_a_renamed_fifo_is_the_same_pipe(place: Path, opened: Callable[..., int]) -> None:
    made, path = fifo(place / "t.new"), place / "t"
    owner = opened(made, OWNER)
    before = opened(made, BEHIND)
    made.rename(path)
    after = opened(path, BEHIND)
    assert polled(before) == polled(after) == 0
    os.close(owner)
    assert polled(before) == polled(after) == select.POLLERR


def test_a_name_that_is_made_again_is_another_pipe(place: Path, opened: Callable[..., int]) -> None:
    path = fifo(place / "t")
    opened(path, OWNER)
    path.unlink()
    fifo(path)
    with NO_SUCH_READER:
        opened(path, BEHIND)


def test_the_mode_of_a_fifo_is_changed_by_its_descriptor(place: Path, opened: Callable[..., int]) -> None:
    path = fifo(place / "t")
    owner = opened(path, OWNER)
    behind = opened(path, BEHIND)
    for mode in (0o622, 0o722):
        os.fchmod(owner, mode)
        assert path.stat().st_mode == os.fstat(behind).st_mode == stat.S_IFIFO | mode
    assert polled(behind) == 0


def test_a_link_is_not_followed_to_a_fifo(place: Path, opened: Callable[..., int]) -> None:
    opened(fifo(place / "t"), OWNER)
    (place / "link").symlink_to("t")
    with pytest.raises(OSError, match=re.escape(os.strerror(errno.ELOOP))):
        opened(place / "link", BEHIND)


def test_the_ends_of_a_fifo_make_the_events_of_a_file(
    place: Path, opened: Callable[..., int], events: Callable[[Path], Events]
) -> None:
    path = fifo(place / "t")
    owner = opened(path, OWNER)
    seen = events(path)
    behind = opened(path, BEHIND)
    assert seen.now() == []
    os.write(behind, b"!")
    assert seen.now() == []
    os.fchmod(owner, 0o700)
    assert seen.now() == ["ATTRIB"]
    os.close(behind)
    assert seen.now() == ["CLOSE_WRITE"]
    path.rename(place / "other")
    assert seen.now() == ["MOVE_SELF"]
    os.close(owner)
    assert seen.now() == ["CLOSE_WRITE"]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_event_loop_is_woken_when_a_reader_goes_and_not_before(
    place: Path, opened: Callable[..., int], loop: str
) -> None:
    new = asyncio.new_event_loop if loop == "asyncio" else pytest.importorskip("uvloop").new_event_loop
    path = fifo(place / "t")
    owner = opened(path, OWNER)
    behind = opened(path, BEHIND)

    async def hear() -> list[str]:
        heard: list[str] = []
        gone = asyncio.Event()

        def hears() -> None:
            heard.append("gone")
            asyncio.get_running_loop().remove_reader(behind)
            gone.set()

        asyncio.get_running_loop().add_reader(behind, hears)
        for _ in range(10):
            await asyncio.sleep(0)
        heard.append("closes")
        os.close(owner)
        await gone.wait()
        return heard

    running = new()
    try:
        assert running.run_until_complete(asyncio.wait_for(hear(), 5)) == ["closes", "gone"]
    finally:
        running.close()


# -- processes ---------------------------------------------------------------------------------------------------------


def test_the_descriptor_of_a_process_becomes_readable_at_its_end() -> None:
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    fd = os.pidfd_open(pid)
    try:
        assert select.select([fd], [], [], 0)[0] == []
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: state(pid) == "T", what="the stop")
        assert select.select([fd], [], [], 0)[0] == []
        os.kill(pid, signal.SIGKILL)
        assert select.select([fd], [], [], 5)[0] == [fd]
        assert state(pid) == "Z"
        os.kill(pid, 0)  # a zombie answers this; hence the other way
        zombie = os.pidfd_open(pid)
        assert select.select([zombie], [], [], 0)[0] == [zombie]
        os.close(zombie)
    finally:
        os.waitpid(pid, 0)
        os.close(fd)
    with pytest.raises(ProcessLookupError):
        os.pidfd_open(pid)


def test_the_number_of_a_thread_is_not_a_process(spawn: Callable[..., Peer]) -> None:
    other = spawn(
        """
        thread = threading.Thread(target=hear)
        thread.start()
        say(thread.native_id)
        """
    )
    number = int(other.hear())
    os.kill(number, 0)
    with pytest.raises(FileNotFoundError):
        os.pidfd_open(number)
    assert LinuxEnvironment().inspect(number).presence == "gone"
    other.say("end")
    other.finish()


def test_a_process_looks_no_younger_than_a_record_that_it_wrote(spawn: Callable[..., Peer]) -> None:
    # Start times against the wall clock: never more than the second of slack after a record that the process wrote.
    env = LinuxEnvironment()
    for _ in range(5):
        other = spawn("say(int(time.time())); hear()")
        written = int(other.hear())
        since = env.inspect(other.pid).since
        assert since is not None
        assert since - written <= 1.0
        assert abs(since - time.time()) < 10


# -- mounts ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def overlaid(tmp_path: Path, mount: Callable[..., None]) -> tuple[Path, Path]:
    """An overlay, and its upper directory."""
    need_root("mount")
    lower, upper, work, merged = (tmp_path / name for name in ("lower", "upper", "work", "merged"))
    for directory in (lower, upper, work, merged):
        directory.mkdir()
    mount("-t", "overlay", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", merged)
    return merged, upper


def need_root(what: str) -> None:
    if os.geteuid() != 0:
        pytest.skip(f"needs root, to {what}")


@pytest.mark.needs("flock")
def test_a_bind_mount_has_the_same_device_and_guard(
    tmp_path: Path, mount: Callable[..., None], opened: Callable[..., int], events: Callable[[Path], Events]
) -> None:
    need_root("mount")
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    mount("--bind", one, other)
    (one / "l").touch()
    assert (one / "l").stat().st_dev == (other / "l").stat().st_dev
    fcntl.flock(opened(one / "l"), TRY_EXCLUSIVE)
    assert not free(opened(other / "l"))
    seen = events(other / "l")
    os.utime(one / "l")
    assert seen.now() == ["ATTRIB"]
    # So holdfast excludes through the mount.
    with Lock(one / "x"):
        assert Lock(other / "x").try_acquire() is None
        assert Lock(other / "x").status().evidence.proven


def test_a_fifo_is_one_pipe_through_a_bind_mount(
    tmp_path: Path, mount: Callable[..., None], opened: Callable[..., int]
) -> None:
    need_root("mount")
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    mount("--bind", one, other)
    owner = opened(fifo(one / "t"), OWNER)
    behind = opened(other / "t", BEHIND)
    assert polled(behind) == 0
    os.close(owner)
    assert polled(behind) == select.POLLERR


def test_a_fifo_is_two_pipes_on_an_overlay_and_in_its_upper_directory(
    overlaid: tuple[Path, Path], opened: Callable[..., int]
) -> None:
    # The reason why a ticket names the device on which it was made: a missing reader here proves nothing there.
    merged, upper = overlaid
    (merged / "queue").mkdir()
    opened(fifo(merged / "queue" / "t"), OWNER)
    opened(merged / "queue" / "t", BEHIND)
    with NO_SUCH_READER:
        opened(upper / "queue" / "t", BEHIND)
    assert (merged / "queue").stat().st_dev != (upper / "queue").stat().st_dev


def test_an_overlay_shares_neither_device_nor_guard_with_its_upper_directory(
    overlaid: tuple[Path, Path], opened: Callable[..., int]
) -> None:
    merged, upper = overlaid
    with Lock(merged / "x"):
        # A held guard looks free from there: only the device shows that this proves nothing.
        assert free(opened(upper / "x", os.O_RDONLY))
        assert (upper / "x").stat().st_dev != (merged / "x").stat().st_dev
        status = Lock(upper / "x").status()
        assert status.locked
        assert status.liveness is Liveness.ALIVE
        assert status.evidence.source == "process"
        assert Lock(upper / "x").try_acquire() is None
        assert Lock(merged / "x").try_acquire() is None
    assert os.listdir(merged) == []


def test_a_dead_holders_lock_on_an_overlay_is_recovered(
    spawn: Callable[..., Peer], overlaid: tuple[Path, Path]
) -> None:
    merged, _upper = overlaid
    holder = spawn("Lock(path).acquire(); say('holding'); hear()", merged / "x")
    holder.expect("holding")
    holder.kill()
    with Lock(merged / "x").acquire(timeout=2) as hold:
        assert hold.recovered_from is not None
        assert hold.recovered_from.pid == holder.pid


# -- FUSE --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def fused(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A directory, and the same directory through bindfs."""
    need_root("mount")
    program = shutil.which("bindfs")
    if program is None:
        pytest.skip("bindfs is not installed")
    if not os.path.exists("/dev/fuse"):
        pytest.skip("there is no /dev/fuse")
    below, above = tmp_path / "below", tmp_path / "above"
    below.mkdir()
    above.mkdir()
    done = subprocess.run([program, str(below), str(above)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"bindfs cannot mount here: {done.stderr.strip()}")
    yield below, above
    subprocess.run(["umount", "-l", str(above)], check=True)


HOLD = "hold = Lock(path).acquire(timeout=5); say('holding'); hear(); hold.release(); say('released'); hear()"


def test_a_fifo_on_fuse_is_one_pipe_there_and_another_below(
    fused: tuple[Path, Path], opened: Callable[..., int]
) -> None:
    below, above = fused
    owner = opened(fifo(above / "t"), OWNER)
    behind = opened(above / "t", BEHIND)
    with NO_SUCH_READER:
        opened(below / "t", BEHIND)
    os.close(owner)
    assert polled(behind) == select.POLLERR


def test_fuse_has_no_unnamed_files_and_a_device_of_its_own(fused: tuple[Path, Path]) -> None:
    below, above = fused
    with pytest.raises(OSError, match="not supported"):
        unnamed(above)
    (below / "l").touch()
    assert (below / "l").stat().st_dev != (above / "l").stat().st_dev


@pytest.mark.needs("flock")
def test_a_lock_on_fuse_excludes(spawn: Callable[..., Peer], fused: tuple[Path, Path]) -> None:
    below, above = fused
    holder = spawn(HOLD, above / "l")
    holder.expect("holding")
    status = Lock(above / "l").status()
    assert status.evidence.source == "guard"
    assert status.liveness is Liveness.ALIVE
    assert Lock(above / "l").try_acquire() is None
    # From below, the guard looks free, on another device: not a proof of death.
    from_below = Lock(below / "l").status()
    assert from_below.locked
    assert from_below.liveness is Liveness.ALIVE
    waiter = spawn("Lock(path).acquire(timeout=10).release(); say('served')", above / "l")
    eventually(lambda: state(waiter.pid) == "S", what="the wait")
    holder.say("go on")
    holder.expect("released")
    waiter.expect("served", within=8)  # sooner than it would look anyway
    assert os.listdir(above) == []


def test_a_dead_holder_on_fuse_is_recovered(spawn: Callable[..., Peer], fused: tuple[Path, Path]) -> None:
    _, above = fused
    holder = spawn(HOLD, above / "l")
    holder.expect("holding")
    holder.kill()
    holder.wait()
    with Lock(above / "l").acquire(timeout=2) as hold:
        assert hold.recovered_from is not None
        assert hold.recovered_from.pid == holder.pid
    assert os.listdir(above) == []
