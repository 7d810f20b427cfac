"""Events of directories, turned into events of locks (monitor.py, inotify.py)."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from abilities import LINUX
from holdfast._admin import monitor as module
from holdfast._admin.monitor import CONFIRM_AFTER, Follower, LockEvent
from holdfast._platform.inotify import FolderWatch
from holdfast.engines.file.queue import RECORD
from holdfast.errors import LockLost
from process.support import Peer, eventually, inotify_instance
from unit.elsewhere import elsewhere, needs_root
from unit.stepping import Contend, Stepped, sema_record

Follow = Callable[..., "Follower"]


@pytest.fixture
def follow(environments: Callable[..., Stepped]) -> Iterator[Follow]:
    """A follower of a directory, or of a lock in it, after its first look."""
    watches: list[FolderWatch] = []

    def make(directory: Path, name: str | None = None, *, events: bool = True) -> Follower:
        if events:
            os.close(inotify_instance())
            watches.append(FolderWatch())
        env = environments()
        watch = watches[-1] if events else None
        follower = Follower(env, watch)  # type: ignore[arg-type]
        follower.add(str(directory), name)
        return follower

    yield make
    for watch in watches:
        watch.close()


def news(follower: Follower) -> list[LockEvent]:
    assert follower.watch is not None
    return follower.handle(follower.watch.take())


def kinds(found: list[LockEvent]) -> list[str]:
    return [one.kind for one in found]


def later(follower: Follower, kind: str) -> LockEvent:
    """The first event of a kind, by events and by the clock."""
    found: list[LockEvent] = []

    def look() -> bool:
        if follower.watch is not None:
            found.extend(news(follower))
        found.extend(follower.tick())
        return kind in kinds(found)

    eventually(look, what=f"{kind}, but only {kinds(found)}")
    return next(one for one in found if one.kind == kind)


def test_locks_present_at_the_start_are_reported(disk: Path, contend: Contend, follow: Follow) -> None:
    holder = contend(disk / "l", tag="why")
    held = holder.get()
    (one,) = follow(disk).first_look()
    assert (one.kind, one.path, one.pid, one.tag, one.first_look) == ("held", str(disk / "l"), os.getpid(), "why", True)
    held.release()


def test_acquisitions_and_releases_are_reported(disk: Path, contend: Contend, follow: Follow) -> None:
    """Z12: in the order of the events, each with what is known about the holder."""
    follower = follow(disk)
    assert follower.first_look() == []
    held = contend(disk / "l", tag="why").get()
    (acquired,) = news(follower)
    assert (acquired.kind, acquired.protocol, acquired.tag, acquired.pid) == ("acquired", "sema", "why", os.getpid())
    held.release()
    (released,) = news(follower)
    assert (released.kind, released.tag) == ("released", "why")
    assert released.held is not None
    assert released.held >= 0


def test_a_hold_that_was_over_before_the_look_is_counted(disk: Path, contend: Contend, follow: Follow) -> None:
    """Z12: an acquisition and a release at once leave no trace of their holder."""
    follower = follow(disk)
    follower.first_look()
    contend(disk / "l").get().release()
    assert news(follower) == []
    assert follower.missed == 1


def test_a_hand_over_between_two_looks_is_reported_as_two_holds(disk: Path, contend: Contend, follow: Follow) -> None:
    """Z12: a file that vanished ended its hold, whatever is there now."""
    follower = follow(disk)
    first = contend(disk / "l", tag="one").get()
    follower.first_look()
    first.release()
    second = contend(disk / "l", tag="two").get()
    assert [(one.kind, one.tag) for one in news(follower)] == [("released", "one"), ("acquired", "two")]
    second.release()


def test_a_hand_over_whose_events_are_yet_to_come_is_no_takeover(disk: Path, contend: Contend, follow: Follow) -> None:
    """Z18: the next file has the inode number of the last one, and a later birth time."""
    follower = follow(disk)
    peer = Peer(
        "held = Lock(path).acquire(); say('held'); hear(); held.release(); say('done')", [disk / "l"], env=LINUX
    )
    peer.expect("held")
    follower.first_look()
    written, later_one = os.stat(disk / "l").st_mtime_ns, disk / "x"
    eventually(lambda: later_one.write_text("x") and later_one.stat().st_mtime_ns > written)  # births are per tick
    peer.say()
    peer.expect("done")
    second = contend(disk / "l").get()
    (seen,) = follower.held.values()
    found = os.stat(disk / "l")
    seen.found = seen.found.replaced(identity=(found.st_dev, found.st_ino))
    follower._unsettled[str(disk / "l")] = 0.0
    assert [(one.kind, one.pid) for one in follower.tick()] == [("released", peer.pid), ("acquired", os.getpid())]
    assert news(follower) == []
    second.release()
    peer.destroy()


def test_a_stray_file_is_not_reported(disk: Path, follow: Follow) -> None:
    follower = follow(disk)
    follower.first_look()
    (disk / "notes.txt").write_text("pid=here\n")
    (disk / "empty.lock").touch()
    assert news(follower) == []


def test_only_the_locks_asked_for_are_reported(disk: Path, contend: Contend, follow: Follow) -> None:
    follower = follow(disk, "l")
    follower.first_look()
    held = [contend(disk / name).get() for name in ("l", "other", "l.3.lock", "l.lock")]
    assert [Path(one.path).name for one in news(follower)] == ["l", "l.3.lock", "l.lock"]
    for one in held:
        one.release()


def test_following_takes_no_guard_and_writes_nothing(disk: Path, contend: Contend, follow: Follow) -> None:
    """Z11: a file without content is never probed; guards of other files are probed shared, and never taken."""
    follower = follow(disk)
    follower.first_look()
    steps: list[str] = follower._env.steps  # type: ignore[attr-defined]
    fd = os.open(disk / "l", os.O_RDWR | os.O_CREAT, 0o1644)  # created, and not yet written (publish.py, P6)
    news(follower)
    assert "guarded" not in steps
    os.close(fd)
    os.unlink(disk / "l")
    held = contend(disk / "l").get()
    news(follower)
    held.release()
    assert "guarded" in steps
    assert not {"guard", "claim", "unguard", "write", "unlink"}.intersection(steps)


def test_following_does_not_open_a_kernel_lock(disk: Path, contend: Contend, follow: Follow) -> None:
    """Z11: a waiter for a kernel lock gets an event from each reader that closes its file."""
    fd = os.open(disk / "l", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    follower = follow(disk)
    follower.first_look()
    steps: list[str] = follower._env.steps  # type: ignore[attr-defined]
    steps.clear()
    waiter = contend(disk / "l", protocol="flock", timeout=None)
    wait = waiter.step()
    assert wait is not None
    os.utime(fd)
    news(follower)
    follower.tick()
    fcntl.flock(fd, fcntl.LOCK_UN)
    assert later(follower, "released").protocol == "flock"
    assert "open_existing" not in steps
    os.close(fd)


def test_the_tag_of_a_kernel_lock_comes_from_an_earlier_look_or_a_ticket(
    disk: Path, contend: Contend, follow: Follow
) -> None:
    """Z11: not every look opens the file."""
    first = contend(disk / "l", protocol="flock", tag="one").get()
    follower = follow(disk)
    assert [one.tag for one in follower.first_look()] == ["one"]
    waiter = contend(disk / "l", protocol="flock", tag="two", timeout=None, fair=True)
    assert waiter.step() is not None
    assert later(follower, "waiting").tag == "two"
    follower._dues["kernel"] = 0.0
    follower.tick()
    first.release()
    released = later(follower, "released")
    assert (released.tag, released.host) == ("one", first.record().host)
    second = waiter.get()
    acquired = later(follower, "acquired")
    assert (acquired.tag, acquired.waited is not None) == ("two", True)
    second.release()
    assert later(follower, "released").tag == "two"


def test_a_kernel_lock_is_seen_by_the_clock(disk: Path, follow: Follow) -> None:
    """Z13: acquiring one makes no event, so the follower polls."""
    (disk / "l").touch()
    follower = follow(disk)
    follower.first_look()
    fd = os.open(disk / "l", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    follower._dues["sweep"] = 0.0
    assert later(follower, "acquired").pid == os.getpid()
    os.close(fd)
    assert later(follower, "released").path == str(disk / "l")


def test_readers_that_come_and_go_end_nobody_elses_hold(disk: Path, follow: Follow) -> None:
    """Z19: each is reported by itself."""
    (disk / "l").write_text("data")
    code = "import fcntl; file = open(path); fcntl.flock(file, fcntl.LOCK_SH); say('held'); hear()"
    first = Peer(code, [disk / "l"], env=LINUX)
    first.expect("held")
    follower = follow(disk)
    assert [(one.kind, one.pid) for one in follower.first_look()] == [("held", first.pid)]
    second = Peer(code, [disk / "l"], env=LINUX)
    second.expect("held")
    assert later(follower, "acquired").pid == second.pid
    follower.held[str(disk / "l")].shares[first.pid] += 3600  # as if the clock had been set back
    first.destroy()
    released = later(follower, "released")
    assert (released.pid, released.held) == (first.pid, 0)
    second.destroy()
    assert later(follower, "released").pid == second.pid
    assert not follower.held


def test_a_reader_that_cannot_be_seen_is_reported_beside_one_that_can(disk: Path, follow: Follow) -> None:
    """Z19: the first one with a pid is shown as the holder, wherever it is in the list."""
    (disk / "l").write_text("data")
    with open(disk / "l") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        follower = follow(disk)
        follower.first_look()
        (held,) = follower.held.values()
        (seen,) = held.found.status.holders
        status = held.found.status.replaced(holders=(seen.replaced(pid=None), seen))
        follower._saw(str(disk / "l"), held.found.replaced(status=status))
        follower._saw(str(disk / "l"), None)
    told = [(one.kind, one.pid) for one in follower._out]
    assert told == [("acquired", None), ("released", None), ("released", os.getpid())]


@pytest.mark.parametrize("ended", [True, False])
def test_a_kernel_lock_inherited_by_an_unseen_process_is_still_the_same(
    disk: Path, follow: Follow, *, ended: bool
) -> None:
    """Z19: left by a holder that has died. While the holder lives, a lock of an unseen process is another one."""
    (disk / "l").write_text("data")
    peer = Peer("import fcntl; file = open(path); fcntl.flock(file, 2); say('held'); hear()", [disk / "l"], env=LINUX)
    peer.expect("held")
    follower = follow(disk)
    follower.first_look()
    (held,) = follower.held.values()
    if ended:
        peer.destroy()
    unseen = held.found.status.holders[0].replaced(pid=None)
    status = held.found.status.replaced(holder=unseen, holders=(unseen,))
    follower._saw(str(disk / "l"), held.found.replaced(status=status))
    assert kinds(follower._out) == ([] if ended else ["released", "acquired"])
    peer.destroy()


def test_without_events_locks_are_seen_by_the_clock(disk: Path, contend: Contend, follow: Follow) -> None:
    """Z13: the follower polls everything."""
    follower = follow(disk, events=False)
    follower.first_look()
    assert follower.scope.polled
    held = contend(disk / "l").get()
    assert later(follower, "acquired").path == str(disk / "l")
    held.release()
    assert later(follower, "released").path == str(disk / "l")


def test_without_events_locks_that_are_no_files_are_seen_by_the_clock(disk: Path, follow: Follow) -> None:
    """Z13: a lock of proper-lockfile is a directory, and one of Emacs a link."""
    follower = follow(disk, events=False)
    follower.first_look()
    (disk / "data.lock").mkdir()
    (disk / ".#notes").symlink_to("somebody@elsewhere.5:1700000000")
    found = follower.handle([("", "", "unknown")])
    assert {(one.kind, one.path) for one in found} == {
        ("acquired", f"{disk}/{name}") for name in ("data.lock", ".#notes")
    }


@needs_root
@pytest.mark.parametrize("events", [True, False])
def test_locks_in_the_root_directory_are_followed(disk: Path, follow: Follow, *, events: bool) -> None:
    """They have the paths by which `ls` and their holders name them."""

    def look() -> list[tuple[str, str]]:
        (disk / "early").write_bytes(sema_record(1, 1))
        follow(disk, events=events).first_look()
        import_module("holdfast._platform.storage")  # all that is needed is loaded now
        os.chroot(disk)
        follower = follow(Path("/"), events=events)
        found = follower.first_look()
        Path("/late").write_bytes(sema_record(1, 1))
        found += news(follower) if events else follower.handle([("", "", "unknown")])
        os.unlink("/early")
        os.unlink("/late")
        found += news(follower) if events else follower.handle([("", "", "unknown")])
        return [(one.kind, one.path) for one in found if one.kind != "stale"]

    wanted = [("held", "/early"), ("acquired", "/late"), ("released", "/early"), ("released", "/late")]
    assert elsewhere(look) == wanted


def test_after_lost_events_everything_is_looked_at(disk: Path, contend: Contend, follow: Follow) -> None:
    """Z13: after an overflow of the queue."""
    follower = follow(disk)
    follower.first_look()
    held = contend(disk / "l").get()
    assert follower.watch is not None
    follower.watch.take()
    assert kinds(follower.handle([("", "", "unknown")])) == ["acquired"]
    held.release()


def test_a_removed_lock_is_reported_as_lost(disk: Path, contend: Contend, follow: Follow) -> None:
    """Z14: its guard is still held, so its holder does not know."""
    follower = follow(disk)
    held = contend(disk / "l").get()
    follower.first_look()
    os.unlink(disk / "l")
    assert later(follower, "lost").path == str(disk / "l")
    with pytest.raises(LockLost):
        held.release()


def test_a_look_that_is_refused_ends_no_hold(disk: Path, contend: Contend, follow: Follow) -> None:
    """An event says that the name is gone, but whether it is back cannot be seen."""
    follower = follow(disk)
    held = contend(disk / "l").get()
    follower.first_look()
    refused = PermissionError(errno.EACCES, "refused")

    def refuse(*_: object, **__: object) -> object:
        raise refused

    follower._env.instead["stat"] = refuse  # type: ignore[attr-defined]
    assert follower.handle([(str(disk), "l", "gone")]) == []
    assert [*follower.held] == [str(disk / "l")]
    del follower._env.instead["stat"]  # type: ignore[attr-defined]
    held.release()
    later(follower, "released")
    assert not follower.held


def test_a_robbed_holder_is_reported_before_its_robber(disk: Path, contend: Contend, follow: Follow) -> None:
    """Z14: with the time at which its file vanished."""
    follower = follow(disk)
    held = contend(disk / "l", tag="one").get()
    follower.first_look()
    os.unlink(disk / "l")
    second = contend(disk / "l", tag="two").get()
    (acquired,) = news(follower)
    lost = later(follower, "lost")
    assert (acquired.tag, lost.tag) == ("two", "one")
    assert lost.time <= acquired.time
    with pytest.raises(LockLost):
        held.release()
    second.release()


def test_a_holder_robbed_by_one_that_writes_its_own_file_is_reported_as_lost(
    disk: Path, contend: Contend, follow: Follow
) -> None:
    """Z14: the new file makes a close event under the same name, but the holder's has not been closed."""
    follower = follow(disk)
    held = contend(disk / "l", tag="one").get()
    follower.first_look()
    os.unlink(disk / "l")
    (disk / "l").write_bytes(sema_record(os.getppid(), follower._env.time(), "two"))
    found = news(follower)
    assert [(one.kind, one.tag) for one in found] == [("acquired", "two")]
    assert later(follower, "lost").tag == "one"
    with pytest.raises(LockLost):
        held.release()


def test_a_lock_that_was_left_to_a_child_is_lost_all_the_same(disk: Path, follow: Follow) -> None:
    """Z14: the child has the guard that its parent took."""
    code = """
        import subprocess
        held = Lock(path).acquire()
        here = os.stat(path)
        links = [int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
        [fd] = [fd for fd in links if os.path.samestat(os.fstat(fd), here)]
        subprocess.Popen(["sleep", "1000"], pass_fds=[fd])
        say("held")
        hear()
    """
    peer = Peer(code, [disk / "l"], env=LINUX)
    peer.expect("held")
    follower = follow(disk)
    follower.first_look()
    peer.kill()
    peer.wait()
    os.unlink(disk / "l")
    assert later(follower, "lost").pid == peer.pid
    peer.destroy()


def test_a_release_seen_in_the_middle_is_reported_as_a_release(disk: Path, contend: Contend, follow: Follow) -> None:
    """Z14: a release removes the file before it drops the guard, so a missing guard without the file proves nothing."""
    follower = follow(disk)
    held = contend(disk / "l").get()
    follower.first_look()
    os.utime(disk / "l")
    env = follower._env
    env.once(env.before, "guarded", held.release)  # type: ignore[attr-defined]
    told = follower.handle([(str(disk), "l", "written")])
    assert kinds([*told, *news(follower)]) == ["released"]


def test_a_wait_that_ended_well_is_not_reported_as_given_up(disk: Path, contend: Contend, follow: Follow) -> None:
    """Z12: a ticket written twice was used, even if it vanishes before it is read again."""
    follower = follow(disk)
    held = contend(disk / "l").get()
    follower.first_look()
    peer = Peer("Lock(path).acquire().release(); say('done')", [disk / "l"], env=LINUX)
    assert later(follower, "waiting").pid == peer.pid
    held.release()
    peer.expect("done")
    peer.wait()
    found = news(follower)
    deadline = follower._env.monotonic() + 2 * CONFIRM_AFTER
    while follower._env.monotonic() < deadline:
        found += follower.tick()
    assert "gave-up" not in kinds(found)
    assert not follower.waiters.waits
    peer.destroy()


def test_a_killed_holder_is_reported_as_reclaimed_by_its_heir(disk: Path, contend: Contend, follow: Follow) -> None:
    """Z15: the close event of a dying holder comes before its guard is dropped."""
    follower = follow(disk)
    follower.first_look()
    peer = Peer("Lock(path).acquire(); say('held'); hear()", [disk / "l"], env=LINUX)
    peer.expect("held")
    assert kinds(news(follower)) == ["acquired"]
    peer.kill()
    peer.wait()
    assert later(follower, "stale").pid == peer.pid
    heir = contend(disk / "l").get()
    found = news(follower)
    assert kinds(found) == ["reclaimed", "acquired"]
    assert {one.recovered_from for one in found} == {peer.pid}
    heir.release()
    peer.destroy()


def test_an_heir_that_comes_during_the_look_has_replaced_the_dead_holder(
    disk: Path, contend: Contend, follow: Follow
) -> None:
    """L13: it has the guard before its record is read."""
    follower = follow(disk)
    follower.first_look()
    peer = Peer("Lock(path).acquire(); say('held'); hear()", [disk / "l"], env=LINUX)
    peer.expect("held")
    assert kinds(news(follower)) == ["acquired"]
    peer.kill()
    peer.wait()
    env, heir = follower._env, contend(disk / "l")
    env.once(env.before, "guarded", heir.get)  # type: ignore[attr-defined]
    found = [*follower.handle([(str(disk), "l", "closed")]), *news(follower)]
    assert kinds(found) == ["reclaimed", "acquired"]
    assert {one.recovered_from for one in found} == {peer.pid}
    peer.destroy()


def test_the_end_and_the_heir_of_a_lock_that_is_a_directory_are_seen_by_the_clock(
    disk: Path, contend: Contend, follow: Follow
) -> None:
    """Z13: neither makes an event, and the directory does not name its holder."""
    (disk / "t").touch()
    holder = contend(disk / "t", protocol="proper-lockfile")
    holder.get()
    follower = follow(disk)
    assert kinds(follower.first_look()) == ["held"]
    holder.crash()
    assert later(follower, "stale").pid == os.getpid()
    heir = contend(disk / "t", protocol="proper-lockfile").get()
    reclaimed = later(follower, "reclaimed")
    assert (reclaimed.pid, reclaimed.recovered_from) == (os.getpid(), os.getpid())
    heir.release()
    later(follower, "released")


def test_a_lock_on_the_file_of_a_dead_holder_is_no_takeover(disk: Path, contend: Contend, follow: Follow) -> None:
    """It may belong to a contender that gives up or dies before it writes its record; the record names the holder."""
    peer = Peer("Lock(path).acquire(); say('held'); hear()", [disk / "l"], env=LINUX)
    peer.expect("held")
    follower = follow(disk)
    follower.first_look()
    peer.kill()
    peer.wait()
    later(follower, "stale")
    with open(disk / "l", "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        follower._unsettled[str(disk / "l")] = 0.0
        assert follower.tick() == []
    heir = contend(disk / "l").get()
    found = news(follower)
    assert kinds(found) == ["reclaimed", "acquired"]
    assert {one.recovered_from for one in found} == {peer.pid}
    heir.release()
    peer.destroy()


@pytest.mark.parametrize("protocol", ["proper-lockfile", "sidecar"])
def test_a_refresh_is_no_acquisition(disk: Path, follow: Follow, protocol: str) -> None:
    """For a foreign holder, which is known by the time of its lock alone."""
    path = disk / "l.lock"
    path.mkdir() if protocol == "proper-lockfile" else path.write_text('{"pid": 1}')
    follower = follow(disk)
    assert kinds(follower.first_look()) == ["held"]
    os.utime(path, (follower._env.time() - 1,) * 2)
    assert follower.handle([(str(disk), "l.lock", "written")]) == []


def test_a_waiter_is_seen_and_its_wait_measured(disk: Path, contend: Contend, follow: Follow) -> None:
    follower = follow(disk)
    held = contend(disk / "l").get()
    follower.first_look()
    peer = Peer("with Lock(path, tag='patient').acquire(): say('held'); hear()", [disk / "l"], env=LINUX)
    eventually(lambda: any(name.endswith(RECORD) for _, _, names in os.walk(disk) for name in names))
    waiting = later(follower, "waiting")
    assert (waiting.pid, waiting.tag, waiting.path, waiting.protocol) == (peer.pid, "patient", str(disk / "l"), "sema")
    held.release()
    acquired = later(follower, "acquired")
    assert acquired.pid == peer.pid
    assert acquired.waited is not None
    assert acquired.waited > 0
    peer.expect("held")
    peer.say("on")
    peer.wait()
    assert later(follower, "released").pid == peer.pid
    assert not follower.waiters.waits
    peer.destroy()


def test_a_waiter_that_leaves_or_dies_is_reported_to_have_given_up(
    disk: Path, contend: Contend, follow: Follow
) -> None:
    follower = follow(disk)
    held = contend(disk / "l").get()
    follower.first_look()
    peer = Peer("Lock(path).acquire()", [disk / "l"], env=LINUX)
    assert later(follower, "waiting").pid == peer.pid
    peer.kill()
    peer.wait()
    gave_up = later(follower, "gave-up")
    assert (gave_up.pid, gave_up.path) == (peer.pid, str(disk / "l"))
    held.release()
    peer.destroy()


def test_without_events_a_waiter_that_leaves_others_in_the_queue_has_given_up(
    disk: Path, contend: Contend, follow: Follow
) -> None:
    """Z13: the queue stays, so only its listing shows it."""
    follower = follow(disk, events=False)
    held = contend(disk / "l").get()
    follower.first_look()
    staying, leaving = (
        Peer("Lock(path).acquire(cancel=sys.stdin.fileno())", [disk / "l"], env=LINUX) for _ in range(2)
    )
    found: list[LockEvent] = []
    eventually(lambda: found.extend(follower.tick()) or kinds(found) == ["waiting"] * 2, what="two waiters")
    leaving.say("enough")
    gave_up = later(follower, "gave-up")
    assert (gave_up.pid, gave_up.path) == (leaving.pid, str(disk / "l"))
    assert [wait.waiter.pid for wait in follower.waiters.waiting()] == [staying.pid]
    staying.say("enough")
    for peer in (staying, leaving):
        peer.wait()
        peer.destroy()
    held.release()


def test_the_next_look_is_due_after_a_pause(disk: Path, contend: Contend, follow: Follow) -> None:
    follower = follow(disk)
    held = contend(disk / "l").get()
    follower.first_look()
    for _ in range(3):
        follower.tick()
        assert follower.due > follower._env.monotonic() + 0.01
    assert follower.due - follower._env.monotonic() > module.KERNEL_EVERY
    held.release()
