"""The environment of macOS and the BSDs, on Linux: with a stand-in for their kqueue (kqueues.py) and made-up answers.
That it works on Linux does not mean that it works there: docs/platforms.md."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kqueues
from holdfast import AsyncLock, Lock, _platform
from holdfast._platform import bsd, kqueue, portable, posix
from holdfast._platform.posix import PosixEnvironment
from holdfast._platform.values import CHANGED, CLOSED, Presence
from holdfast.engines.file.queue import Queue, name_of


def is_readable(fds: tuple[int, ...]) -> bool:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Iterator[PosixEnvironment]:
    kqueues.install(monkeypatch.setattr)
    made = PosixEnvironment()
    yield made
    assert len(made._descriptors) == 0, "descriptors are left open"


@pytest.fixture
def current(env: PosixEnvironment, monkeypatch: pytest.MonkeyPatch) -> PosixEnvironment:
    """`env` as the environment of this process."""
    monkeypatch.setattr(_platform, "_current", env)
    return env


def replaced(path: Path) -> None:
    path.with_suffix(".new").write_bytes(b"other")
    path.with_suffix(".new").rename(path)


CHANGES: dict[str, tuple[Callable[[Path], object], int]] = {
    "removed": (Path.unlink, CHANGED),
    "replaced": (replaced, CHANGED),
    "renamed": (lambda path: path.rename(path.with_suffix(".gone")), CHANGED),
    "written": (lambda path: os.truncate(path, 1), CHANGED),
    "changed in mode": (lambda path: path.chmod(0o640), CHANGED),
    "closed": (lambda path: os.close(os.open(path, os.O_RDWR)), CLOSED),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_lock_file_is_reported(change: str, env: PosixEnvironment, disk: Path) -> None:
    path = disk / "l"
    path.write_bytes(b"content")
    watch = env.watch(str(path))
    assert watch is not None
    assert not is_readable(watch.fds())
    assert not watch.woken(over=False)
    make, told = CHANGES[change]
    make(path)
    assert is_readable(watch.fds())
    assert watch.woken(over=False)
    assert watch.take() & told
    assert not is_readable(watch.fds()), "what has been taken would wake the next wait at once"
    assert watch.take() == 0
    watch.close()
    watch.close()
    assert watch.fds() == ()


def test_the_end_of_a_reader_is_reported_only_on_request(env: PosixEnvironment, disk: Path) -> None:
    path = disk / "l"
    path.touch()
    watches = [env.watch(str(path), readers=readers) for readers in (False, True)]
    os.close(os.open(path, os.O_RDONLY))
    changes = []
    for watch in watches:
        assert watch is not None
        changes.append(watch.take())
        watch.close()
    assert changes == [0, CLOSED]


def test_a_set_tells_which_of_its_files_has_changed(env: PosixEnvironment, disk: Path) -> None:
    watches = env.watch_set()
    assert watches is not None
    keys = []
    for name in "abcd":
        (disk / name).touch()
        keys.append(watches.add(str(disk / name)))
    (disk / "b").unlink()
    (disk / "c").unlink()
    assert is_readable(watches.fds())
    assert watches.woken()
    assert watches.changed() == {keys[1], keys[2]}
    assert watches.changed() == set()
    watches.discard(keys[0])
    watches.discard(keys[0])
    watches.discard_all_but({keys[3]})
    for name in "ad":
        (disk / name).unlink()
    assert watches.changed() == {keys[3]}
    with pytest.raises(FileNotFoundError):
        watches.add(str(disk / "a"))
    watches.close()


def test_a_missing_file_or_a_link_is_not_watched(env: PosixEnvironment, disk: Path) -> None:
    with pytest.raises(FileNotFoundError):
        env.watch(str(disk / "l"))
    (disk / "link").symlink_to("/etc/passwd")
    assert env.watch(str(disk / "link")) is None


def test_the_end_of_a_process_is_reported(env: PosixEnvironment) -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        watched = env.watch_process(child.pid)
        assert watched is not None
        assert not is_readable((watched,))
        child.kill()
        select.select([watched], [], [])
        assert is_readable((watched,)), "it stays readable"
        env.close(watched)
    finally:
        child.kill()
        child.wait()
    assert env.watch_process(child.pid) is None
    assert env.watch_process(os.getpid(), inherited=True) is None, "a forked child has no kqueue of its parent"


def test_without_kqueue_nothing_is_watched(disk: Path) -> None:
    (disk / "l").touch()
    for env in (PosixEnvironment(), PosixEnvironment(frozenset({"events"}))):
        assert (env.watch(str(disk / "l")), env.watch_set(), env.watch_process(os.getpid())) == (None, None, None)
        assert not env.events_reach(str(disk / "l"))
        assert env.folder_watch() is None


@pytest.mark.parametrize(("system", "told"), [("darwin", True), ("freebsd14", True), ("openbsd7", False)])
def test_the_drop_of_a_guard_is_reported_by_some_systems(
    system: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KQ4."""
    monkeypatch.setattr(sys, "platform", system)
    assert all(kqueue.unlocked()) == told


def test_a_file_is_not_watched_where_the_drop_of_a_guard_is_not_reported(
    env: PosixEnvironment, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KQ4."""
    assert env.events_reach(str(disk / "l"))
    monkeypatch.setattr(kqueue, "UNLOCKED", {})
    assert not env.events_reach(str(disk / "l"))


def test_a_forked_child_has_no_events_of_its_parent_and_can_have_its_own(current: PosixEnvironment, disk: Path) -> None:
    """KQ3."""
    path = disk / "l"
    path.touch()
    watch, watches = current.watch(str(path)), current.watch_set()
    assert watch is not None
    assert watches is not None
    watches.add(str(path))
    child = os.fork()
    if child == 0:
        try:
            assert (watch.fds(), watch.take(), watches.fds(), watches.changed()) == ((), 0, (), set())
            other = os.open(os.devnull, os.O_RDONLY)
            watch.close()
            watches.close()
            os.fstat(other)  # its number may be that of a closed descriptor
            mine = current.watch(str(path))
            assert mine is not None
            path.chmod(0o640)
            assert mine.take() == CHANGED
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert watch.take() == CHANGED, "the child has closed the watch of its parent"
    watch.close()
    watches.close()


def test_an_interrupted_watch_leaves_no_descriptor(
    env: PosixEnvironment, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KQ1."""
    (disk / "l").touch()

    class Refusing(kqueues.kqueue):
        def control(self, *_arguments: Any) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setattr(kqueues.Api, "kqueue", Refusing)
    for act in (lambda: env.watch(str(disk / "l")), lambda: env.watch_process(os.getpid())):
        with pytest.raises(KeyboardInterrupt):
            act()
    assert len(env._descriptors) == 0


HOLDERS = """
import kqueues, sys
kqueues.install()
import holdfast

for _ in range(int(sys.argv[2])):
    with holdfast.Lock(sys.argv[1] + "/l", fair=sys.argv[3] == "fair"):
        with open(sys.argv[1] + "/n", "r+") as file:
            number = int(file.read())
            file.seek(0)
            file.write(str(number + 1))
"""


@pytest.mark.parametrize("order", ["fair", "unfair"])
def test_no_release_is_missed(order: str, disk: Path) -> None:
    """KQ2: a waiter that missed one would look again after ten seconds, and the test would exceed its time."""
    (disk / "n").write_text("0")
    variables = {**os.environ, "HOLDFAST_OS": "posix", "PYTHONPATH": str(Path(kqueues.__file__).parent)}
    command = [sys.executable, "-c", HOLDERS, str(disk), "60", order]
    children = [subprocess.Popen(command, env=variables) for _ in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert (disk / "n").read_text() == "180"
    assert sorted(os.listdir(disk)) == ["n"]


HOLDER = """
import sys, time, holdfast
with holdfast.Lock(sys.argv[1], protocol=sys.argv[2]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("protocol", ["sema", "flock"])
def test_a_killed_holder_is_replaced_by_an_event(
    protocol: str, current: PosixEnvironment, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[object] = []
    monkeypatch.setattr(current, "poll_limit", lambda path: polls.append(path) or 0.025)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, disk / "l", protocol], env={**os.environ, "HOLDFAST_OS": "posix"}, stdout=-1
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert Lock(disk / "l", protocol=protocol).try_acquire() is None
        killer = subprocess.Popen(["sh", "-c", f"sleep 0.1; kill -9 {holder.pid}"])
        try:
            with Lock(disk / "l", protocol=protocol, heartbeat=0):
                assert holder.wait() == -9
        finally:
            killer.wait()
        assert len(polls) < 3, "it polls, and not only while the holder is dying"

        async def task() -> None:
            async with AsyncLock(disk / "l", protocol=protocol, heartbeat=0):
                pass

        asyncio.run(task())
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


# -- FIFOs -------------------------------------------------------------------------------------------------------------


def a_ticket(queue: Queue, env: PosixEnvironment, at: float) -> Any:
    return queue.make(name_of(at, os.getpid(), queue.where, env.token(), shared=False), None, 0)


def test_the_first_ticket_tests_whether_the_end_of_a_reader_is_reported(env: PosixEnvironment, disk: Path) -> None:
    """PX1."""
    assert env.tells_ends is None
    (disk / "q").mkdir()
    with Queue(env, str(disk / "q")) as queue:
        ticket = a_ticket(queue, env, 1.0)
        assert env.tells_ends is True
        follower = queue.follow(ticket.name)
        assert follower is not None
        assert not env.hung_up(follower)
        env.close(ticket.fd)
        assert env.hung_up(follower)
        env.close(follower)


@pytest.mark.parametrize("deaf", ["poll", "kqueue"])
def test_a_ticket_whose_end_is_not_reported_is_polled(
    deaf: str, env: PosixEnvironment, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PX1: with -1 for its descriptor (queue.py), until opening it shows that its owner is gone."""
    if deaf == "poll":
        monkeypatch.setattr(env, "hung_up", lambda _fd: False)
    else:
        monkeypatch.setattr(kqueue, "hung_up", lambda _fd: False)
    with Queue(env, str(disk)) as queue:
        ticket = a_ticket(queue, env, 1.0)
        assert env.tells_ends is False
        assert queue.follow(ticket.name) == -1
        assert queue.living(ticket.name) is not None
        assert not queue.is_abandoned(ticket.name)
        env.close(ticket.fd)
        assert queue.is_abandoned(ticket.name)
        assert queue.follow(ticket.name) is None
        assert os.listdir(disk) == []


# -- what they say of themselves ---------------------------------------------------------------------------------------


def kinfo(seconds: int, microseconds: int, state: int, pid: int) -> bytes:
    """The beginning of a `struct kinfo_proc` of macOS on a 64-bit processor."""
    return struct.pack("=qi4xQQiB3xi", seconds, microseconds, 0, 0, 0, state, pid) + bytes(604)


def test_a_process_of_macos_is_read_from_the_kernels_answer() -> None:
    found = bsd.parsed(kinfo(1_700_000_000, 250_000, 2, 4711), 4711)
    assert found is not None
    assert (found.presence, found.started, found.since) == (Presence.RUNNING, "u1700000000.250000", 1_700_000_000.25)
    zombie = bsd.parsed(kinfo(1_700_000_000, 0, 5, 4711), 4711)
    assert zombie is not None
    assert zombie.presence is Presence.ZOMBIE
    stopped = bsd.parsed(kinfo(1_700_000_000, 0, 4, 4711), 4711)
    assert stopped is not None
    assert (stopped.presence, stopped.stopped, found.stopped) == (Presence.RUNNING, True, False)
    assert len(kinfo(1, 1, 1, 1)) == bsd._PROCESS_SIZE


@pytest.mark.parametrize(
    "answer",
    [None, b"x", kinfo(1_700_000_000, 0, 2, 4712), kinfo(0, 0, 2, 4711), kinfo(1, 1_000_000, 2, 4711)],
    ids=["no answer", "too short", "another pid", "no start", "no time"],
)
def test_an_answer_that_is_not_as_expected_says_nothing(answer: bytes | None) -> None:
    assert bsd.parsed(answer, 4711) is None


def test_an_empty_answer_is_believed_only_with_a_second_proof() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    gone = bsd.parsed(b"", child.pid)
    assert gone is not None
    assert gone.presence is Presence.GONE
    assert bsd.parsed(b"", os.getpid()) is None


def test_the_identity_on_macos_is_of_this_boot_and_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(call: str, _size: int, *_name: object) -> bytes:
        uuid = b"7A4B9D1E-0000-4000-8000-000000000001\0"
        return uuid if call == "sysctlbyname" else kinfo(1_700_000_000, 1, 2, os.getpid())

    monkeypatch.setattr(bsd, "SYSTEM", "darwin")
    monkeypatch.setattr(bsd, "_sysctl", answered)
    who = PosixEnvironment().identity()
    assert (who.boot, who.started) == ("7A4B9D1E-0000-4000-8000-000000000001", "u1700000000.000001")


def test_nothing_is_known_where_the_kernel_has_no_such_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bsd, "SYSTEM", "darwin")
    assert (bsd.boot_session(), bsd.process(os.getpid())) == ("", None)


def test_ps_tells_of_a_process_what_signals_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """PX2: its start time, for display; not to tell it from a later process."""
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    env, before = PosixEnvironment(), time.time()
    child = subprocess.Popen(["sleep", "60"])
    try:
        found = env.inspect(child.pid)
        assert (found.presence, found.started) == (Presence.RUNNING, "-")
        assert found.since is not None
        assert abs(found.since - before) < 10
        assert not found.stopped
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert PosixEnvironment().inspect(child.pid).stopped
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert PosixEnvironment().inspect(child.pid).presence is Presence.ZOMBIE
    finally:
        child.kill()
        child.wait()
    assert env.inspect(child.pid).presence is Presence.GONE, "what is remembered was taken for what is"
    assert bsd.by_ps(child.pid) is None


MOUNTS = """\
/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
devfs on /dev (devfs, local, nobrowse)
/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled, nobrowse, protect)
//me@server/share on /Volumes/my share (smbfs, nodev, nosuid, mounted by me)
server:/export on /Volumes/nfs (nfs, nodev, nosuid, automounted)
torn on
/dev/wd0a on /home type ffs (local, nodev)
"""


@pytest.mark.parametrize(
    ("path", "kind", "reach"),
    [
        ("/private/tmp/l", "apfs", True),
        ("/Volumes/my share/l", "smbfs", False),
        ("/Volumes/nfs/deep/l", "nfs", False),
        ("/home/l", "ffs", True),
        ("/Volumes/nfs2/l", "apfs", True),
    ],
)
def test_changes_on_a_filesystem_of_another_machine_make_no_events(
    path: str, kind: str, reach: bool, env: PosixEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bsd, "_output", lambda *_command: MOUNTS)
    monkeypatch.setattr(os.path, "realpath", lambda directory: directory)
    assert (env.storage(path).kind, env.events_reach(path)) == (kind, reach)
    assert env.storage(path).shared == (not reach)
    monkeypatch.setattr(bsd, "_output", lambda *_command: "")
    assert env.storage(path).kind == kind, "it is asked once a minute"
    assert not PosixEnvironment().events_reach(path), "nothing is known of the mount"


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_durable_lock_is_written_through_to_the_disk(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def asks(_fd: int, request: int) -> int:
        asked.append(request)
        if len(asked) > 2:
            raise OSError(45, "Operation not supported")
        return 0

    monkeypatch.setattr(posix, "_FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", asks)
    env = PosixEnvironment()
    monkeypatch.setattr(_platform, "_current", env)
    Lock(disk / "l", durable=True, heartbeat=0).acquire().release()
    assert asked[:2] == [51, 51], "the file, and its directory"
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    env.sync(7)
    assert synced == [7]


def test_an_unread_nudge_is_seen_from_the_writing_end(env: PosixEnvironment, disk: Path) -> None:
    os.mkfifo(disk / "t")
    reader = os.open(disk / "t", os.O_RDONLY | os.O_NONBLOCK)
    writer, no_fifo = os.open(disk / "t", os.O_WRONLY | os.O_NONBLOCK), os.open(os.devnull, os.O_WRONLY)
    found = [env.is_unread(writer)]
    env.nudge(writer)
    found.append(env.is_unread(writer))
    env.drain(reader)
    found.append(env.is_unread(writer))
    assert found == [False, True, False]
    assert env.is_unread(no_fifo), "it cannot be told, so nobody is left more time"
    for fd in (reader, writer, no_fifo):
        os.close(fd)


def test_linux_and_posix_share_their_common_code() -> None:
    from holdfast._platform.linux import LinuxEnvironment

    for name in ("unguard", "open_existing", "make_fifo", "open_fifo", "hung_up", "nudge", "is_unread", "drain"):
        assert name not in vars(LinuxEnvironment)
        assert name in vars(PosixEnvironment)
    assert issubclass(PosixEnvironment, portable.GenericEnvironment)


def test_answers_of_ps_are_remembered_briefly_and_for_few_processes(
    env: PosixEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    asked: list[int] = []
    real = bsd.by_ps
    monkeypatch.setattr(bsd, "by_ps", lambda pid: asked.append(pid) or real(pid))
    parent = os.getppid()
    assert env.inspect(parent) == env.inspect(parent)
    assert asked == [parent]
    monkeypatch.setattr(posix, "_MOST_SEEN", 1)
    env.inspect(1)
    env.inspect(parent)
    assert asked == [parent, 1, parent]


def test_mounts_are_remembered_for_few_directories(
    env: PosixEnvironment, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount of an unknown kind that is not called local counts as shared if the table calls others local."""
    asked: list[int] = []
    table = bsd.parse_mounts(f"/dev/a on / (apfs, local)\nx on {disk} (weird, nodev)\n")
    monkeypatch.setattr(bsd, "mounts", lambda: asked.append(1) or table)
    monkeypatch.setattr(posix, "_MOST_SEEN", 1)
    assert env.storage(f"{disk}/l").shared
    assert not env.storage("/l").shared
    assert env.storage("/l") == env.storage("/l")
    assert len(asked) == 2


def test_of_two_mounts_on_one_point_the_later_one_counts(
    env: PosixEnvironment, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = bsd.parse_mounts(f"/dev/a on {disk} (apfs, local)\nserver:/x on {disk} (nfs)\n/dev/b on / (apfs, local)\n")
    monkeypatch.setattr(bsd, "mounts", lambda: table)
    assert env.storage(f"{disk}/l").shared
