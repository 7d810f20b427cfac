"""Failures in the engine while it handles another failure, and interruptions between two steps that belong together:
parts of many modules that no ordinary schedule reaches."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import InvalidPath, Lock, LockLost, NotHeld, acquire_all, aio
from holdfast import lock as handles
from holdfast._core.attempt import AttemptEvents, Refusal
from holdfast._core.hold import give_back
from holdfast._core.messages import sentence
from holdfast._core.wait import Wait
from holdfast._drivers.background import Keeper as keeper_of
from holdfast._drivers.sync import drive, wait_for
from holdfast._platform import environment
from holdfast._platform.operations import sweep
from holdfast._platform.values import temporary_name
from holdfast.engines.file import flock, takeover
from holdfast.engines.file.flock import WatchedFlock
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.interop import why_left
from holdfast.engines.file.paths import queue_of
from holdfast.engines.file.queue import Queue, read_tickets
from holdfast.engines.file.remove import remove_if
from holdfast.engines.file.request import FileRequest
from holdfast.engines.file.watched import WatchedFile
from holdfast.events import Event
from holdfast.liveness import Liveness
from holdfast.lock import leave_to
from holdfast.model import Evidence, Identity, Status, marker_text
from holdfast.protocols import get
from unit.stepping import Contend, Stepped, device_in, forged_ticket, sema_record

Environments = Callable[..., Stepped]


@pytest.fixture
def path(disk: Path) -> Path:
    return disk / "l"


def fails(word: str) -> Callable[..., Any]:
    def failing(*_args: object, **_options: object) -> Any:
        raise OSError(getattr(errno, word), os.strerror(getattr(errno, word)))

    return failing


def writes(*counts: int, real: Callable[..., int], then: int | str = 0) -> Callable[..., int]:
    """Write so many bytes at each call; then fail, or write nothing more."""
    left = [*counts]

    def write(fd: int, data: bytes, offset: int) -> int:
        if left:
            return real(fd, data[: left.pop(0)], offset)
        if isinstance(then, str):
            raise OSError(getattr(errno, then), os.strerror(getattr(errno, then)))
        return then

    return write


# -- disks that are full -----------------------------------------------------------------------------------------------


def test_a_write_of_nothing_is_an_error(path: Path, contend: Contend) -> None:
    """A server may report that no byte was written, without an error."""
    contender = contend(path)
    contender.env.instead["write"] = writes(3, real=contender.env.real.write)
    with pytest.raises(OSError, match="could not be written whole") as full:
        contender.run()
    assert full.value.errno == errno.ENOSPC
    assert not path.exists()


@pytest.mark.needs("unnamed", "flock")
@pytest.mark.parametrize("word", ["ENOSPC", "EDQUOT"])
def test_a_full_disk_hides_neither_a_living_holder_nor_a_dead_one(word: str, path: Path, contend: Contend) -> None:
    """A refusal names the holder; the lock of a dead one is taken over in its place, which takes no room."""
    holder, contender, heir, other = (contend(path) for _ in range(4))
    holder.get()
    for one in (contender, heir, other):
        one.env.instead["open_unnamed"] = fails(word)
    refused = contender.run()
    assert isinstance(refused, Refusal)
    assert refused.status.liveness is Liveness.ALIVE
    holder.crash()
    heir.get().release()
    with pytest.raises(OSError, match=os.strerror(getattr(errno, word))):
        other.run()


@pytest.mark.parametrize("restored", [True, False])
@pytest.mark.parametrize("then", [0, "ENOSPC"])
def test_half_a_counter_is_put_back_or_the_lock_is_free(
    then: int | str, restored: bool, path: Path, contend: Contend
) -> None:
    """TK5: the earlier content is restored; where that cannot be written either, the lock is free."""
    counter = path.with_name("l.token")
    counter.write_bytes(b"5000\n")
    contender = contend(path, fencing=True)
    real = contender.env.real.write
    half = writes(7, real=real, then=then)

    def write(fd: int, data: bytes, offset: int) -> int:
        of_counter = os.fstat(fd).st_ino == counter.stat().st_ino
        written = half if of_counter and not (restored and data == b"5000\n") else real
        return int(written(fd, data, offset))

    contender.env.instead["write"] = write
    with pytest.raises(OSError, match=r"No space left|could not be written whole"):
        contender.run()
    assert (counter.read_bytes() == b"5000\n") == restored
    assert not path.exists()


def test_a_directory_that_cannot_be_looked_at_is_an_error(path: Path, contend: Contend) -> None:
    """ENOENT for the file, and another error for its directory: the latter is raised."""
    contender = contend(path, parents=True)
    contender.env.instead["open_unnamed"] = fails("ENOENT")
    contender.env.instead["stat"] = fails("EACCES")
    with pytest.raises(PermissionError):
        contender.run()
    assert "make_directories" not in contender.env.steps


def test_a_look_at_the_directory_of_several_locks_is_reported_in_our_words(disk: Path) -> None:
    (disk / "file").touch()
    with pytest.raises(InvalidPath, match="is not a directory"):
        acquire_all([Lock(disk / "file" / "l"), Lock(disk / "l")])


# -- processes that cannot be told apart -------------------------------------------------------------------------------


def test_a_process_that_cannot_name_its_boot_removes_no_leftovers(
    disk: Path, environments: Environments, dead_pid: int
) -> None:
    env = environments()
    who = env.identity()
    nameless = Identity(who.pid, "-", who.pid_namespace, who.started, who.host)
    env.instead["identity"] = lambda *_pid: nameless
    left = disk / temporary_name(nameless.replaced(pid=dead_pid), "0" * 16)
    left.touch()
    sweep(env, str(disk))  # type: ignore[arg-type]
    assert left.exists()
    left.unlink()


def test_a_second_rival_is_judged_by_the_same_clock(disk: Path, contend: Contend, dead_pid: int) -> None:
    """Y2: neither is in the way; the age of each is by the clock that stamped our lock file."""
    for token in ("0123456789abcdef", "fedcba9876543210"):
        rival = disk / f"l.{dead_pid}.{token}.tmp"
        rival.write_text("x")
        os.utime(rival, (time.time() - 5, time.time() - 5))
    contender = contend(disk / "l", protocol="semats")
    assert contender.get().verify()
    assert contender.waits == []


def test_an_announcement_left_by_a_crash_is_judged_by_its_age_without_kernel_locks(
    disk: Path, environments: Environments
) -> None:
    """Y3, Y4."""
    left = disk / "l.reclaim"
    left.mkdir()
    left.chmod(0o1755)
    env = environments()
    assert "kernel lock is gone" in (why_left(env, str(left)) or "")  # type: ignore[arg-type]
    env.instead["guarded"] = lambda _fd: None
    assert why_left(env, str(left)) is None  # type: ignore[arg-type]
    os.utime(left, (time.time() - 61, time.time() - 61))
    assert "older than 60 s" in (why_left(env, str(left)) or "")  # type: ignore[arg-type]


def test_a_lock_is_broken_after_another_has_ended_its_removal(disk: Path, environments: Environments) -> None:
    """Y3, R3: the process that announced its removal first goes first; ours comes back."""
    lock, announced = disk / "target.lock", disk / "target.lock.reclaim"
    lock.write_text('{"pid": 1}')
    announced.mkdir()
    env = environments()
    steps = remove_if(env, FileRequest(str(disk / "target"), {"protocol": "sidecar"}), lambda _seen, _assessed: True)  # type: ignore[arg-type]
    assert isinstance(next(steps), Wait)
    assert (lock.exists(), announced.exists()) == (True, True)
    announced.rmdir()
    with pytest.raises(StopIteration) as done:
        next(steps)
    assert done.value.value.pid == 1
    assert not lock.exists()


def test_a_damaged_record_of_a_waiter_hides_nothing_but_the_tag(disk: Path, environments: Environments) -> None:
    """The record is of a later version, damaged, or not of the ticket's owner; the waiter is shown all the same."""
    env = environments()
    place = Path(queue_of(str(disk), "l"))
    place.mkdir()
    who = env.identity()
    good = get("sema").compose(who, 1.0, "t", marker_text(True, device_in(disk), who), {})
    readers = []
    for number, content in enumerate((b"no record", sema_record("x", time.time()), b"", good, None)):
        ticket = forged_ticket(place, arrival=number)
        readers.append(os.open(ticket, os.O_RDWR | os.O_NONBLOCK))
        if content is not None:
            Path(f"{ticket}.tag").write_bytes(content)
    assert [waiter.tag for _, waiter in read_tickets(env, str(place))] == [None, None, None, "t", None]  # type: ignore[arg-type]
    if os.geteuid() == 0:
        for record in place.glob("*.tag"):
            os.chown(record, 12345, -1)
        assert not any(waiter.tag for _, waiter in read_tickets(env, str(place)))  # type: ignore[arg-type]
    for fd in readers:
        os.close(fd)
    shutil.rmtree(place)


def test_a_queue_closed_twice_leaves_other_files_alone(disk: Path, environments: Environments) -> None:
    env = environments()
    queue = Queue(env, str(disk))  # type: ignore[arg-type]
    queue.close()
    fd = env.open_directory(str(disk))
    queue.close()
    os.fstat(fd)
    env.close(fd)


# -- between two steps -------------------------------------------------------------------------------------------------


def test_an_interruption_of_a_win_gives_the_lock_back(
    path: Path, contend: Contend, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, waiter = contend(path), contend(path, timeout=None)
    held = holder.get()
    assert waiter.step() is not None

    def interrupted(_held: FileHold, _context: object) -> None:
        raise KeyboardInterrupt

    held.release()
    with monkeypatch.context() as changed:
        changed.setattr(FileHold, "ref", interrupted)
        with pytest.raises(KeyboardInterrupt):
            waiter.run()
    assert not path.exists()
    contend(path).get().release()


def test_an_interruption_of_a_tagged_hold_removes_its_tag(
    path: Path, contend: Contend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5."""
    contender = contend(path, protocol="flock", tag="why")

    def interrupted(*_given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        changed.setattr(flock, "FlockHold", interrupted)
        with pytest.raises(KeyboardInterrupt):
            contender.run()
    assert "write" in contender.env.steps
    assert path.read_bytes() == b""
    contend(path, protocol="flock").get().release()


def test_giving_a_hold_back_again_does_nothing(path: Path, contend: Contend) -> None:
    contender = contend(path)
    held = contender.get()
    (ref,) = held.refs
    give_back(ref)
    other = contend(path).get()
    give_back(ref)
    assert held.released
    assert other.verify()


def test_a_release_during_a_failing_look_counts_as_released(path: Path, contend: Contend) -> None:
    """H2: the error is about a descriptor that a signal handler's release has closed."""
    contender = contend(path)
    held = contender.get()

    def released(_path: str) -> None:
        del contender.env.instead["stat"]
        held.release()
        raise OSError(errno.EBADF, "Bad file descriptor")

    contender.env.instead["stat"] = released
    assert held.verify() is False
    with pytest.raises(NotHeld, match="has been released"):
        held.ensure()


def test_a_lock_is_not_left_to_a_process_that_has_ended(path: Path, dead_pid: int) -> None:
    assert leave_to(Lock(path).acquire(), dead_pid) is False
    assert not path.exists()


def test_an_interruption_of_an_entry_releases_the_lock(path: Path) -> None:
    class Interrupted(dict[Any, Any]):
        def __setitem__(self, *_args: object) -> None:
            raise KeyboardInterrupt

    class InterruptedLater(list[Any]):
        def append(self, hold: Any) -> None:
            super().append(hold)
            raise KeyboardInterrupt

    lock = Lock(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock._env.operations, "entered", Interrupted())
        with pytest.raises(KeyboardInterrupt), lock:
            pass
    assert not path.exists()
    lock._entered = InterruptedLater()
    with pytest.raises(KeyboardInterrupt):
        lock.__enter__()
    assert not path.exists()
    assert not lock._entered


def test_a_block_that_another_thread_leaves_is_unlocked(path: Path) -> None:
    """A generator may be closed by another thread than the one that began it."""
    lock = Lock(path)

    def inside() -> Iterator[None]:
        with lock:
            yield

    generator = inside()
    next(generator)
    thread = threading.Thread(target=generator.close)  # type: ignore[attr-defined]
    thread.start()
    thread.join(10)
    assert not path.exists()
    with lock:
        pass


# -- what is told ------------------------------------------------------------------------------------------------------


def test_a_look_that_fails_does_not_keep_a_wait_from_being_reported(path: Path, environments: Environments) -> None:
    heard: list[Event] = []
    attempt_events = AttemptEvents(environments(), FileRequest(str(path), {"on_event": heard.append}), (object(),))  # type: ignore[arg-type]

    def failing() -> None:
        raise PermissionError(1, "refused")

    attempt_events.waiting(failing)
    attempt_events.waiting(failing)
    attempt_events.gave_up(failing)
    attempt_events.gave_up()
    attempt_events.joined()
    assert [(event.kind, event.holder) for event in heard] == [("waiting", None), ("gave-up", None)]


def test_an_end_is_reported_once_and_not_by_a_child(path: Path, contend: Contend) -> None:
    """AE4, and both sides of a race to report it."""
    heard: list[Event] = []
    contender = contend(path, on_event=heard.append)
    held = contender.get()
    attempt_events = AttemptEvents.of(held)
    held.lost = True
    contender.env.real.generation += 1
    attempt_events.lost(held)
    attempt_events.released(held)
    assert heard == []
    contender.env.real.generation -= 1
    held.lost = False
    attempt_events.released(held)
    attempt_events.released(held)
    attempt_events._end_without("gave-up")
    assert [event.kind for event in heard] == ["released"]
    held.release()


def test_the_holder_of_a_kernel_lock_is_not_sought_for_an_event(path: Path, contend: Contend) -> None:
    """The search takes milliseconds, and most listeners do not need it."""
    heard: list[Event] = []
    holder = contend(path, protocol="flock")
    held = holder.get()
    waiter = contend(path, protocol="flock", timeout=None, on_event=heard.append)
    assert waiter.step() is not None
    assert [(event.kind, event.holder) for event in heard] == [("waiting", None)]
    assert "lock_owners" not in waiter.env.steps
    held.release()
    waiter.get().release()


def test_a_contender_that_may_be_waited_for_is_not_called_a_holder() -> None:
    evidence = Evidence("none", "nobody was asked")
    status = Status("/l", "flock", True, False, Liveness.UNKNOWN, evidence, reason="somebody comes first")
    assert sentence(status) == "somebody comes first"


# -- calls on a missing lock -------------------------------------------------------------------------------------------


def test_a_path_with_nothing_is_not_watched_joined_or_taken_over(path: Path, environments: Environments) -> None:
    env: Any = environments()
    me = (object(),)
    sight = WatchedFile(env, FileRequest(str(path), {}))
    assert not sight.look()
    assert (sight.prepare(), sight.join(me), sight.is_held_by(me)) == (False, None, False)
    kernel = WatchedFlock(env, FileRequest(str(path), {"protocol": "flock"}))
    assert not kernel.look()
    assert not kernel.is_held_by(me)
    path.write_bytes(sema_record(os.getpid(), time.time()))
    assert sight.look()
    with pytest.raises(StopIteration) as done:
        next(sight.attempt())
    assert done.value.value is None
    assert path.exists(), "it is neither free nor to be taken over"
    sight.rest()
    kernel.rest()


def test_a_timeout_longer_than_any_clock_is_for_ever(path: Path) -> None:
    assert Lock(path, timeout=10**400)._request.timeout is None
    with pytest.raises(ValueError, match="more than 0"):
        Lock(path, stale_after=-(10**400))
    with pytest.raises(ValueError, match="not -inf"):
        Lock(path, timeout=-(10**400))


# -- several at once, in tasks -----------------------------------------------------------------------------------------


def test_an_acquisition_of_several_cancelled_before_it_begins_holds_nothing(path: Path) -> None:
    async def main() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            aio.acquire_all([aio.AsyncLock(path)]).close()
            gc.collect()
        task = asyncio.ensure_future(asyncio.create_task(aio.acquire_all([aio.AsyncLock(path)])))  # type: ignore[arg-type]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not path.exists()

    asyncio.run(main())


def test_the_loss_of_one_of_several_is_reported(disk: Path) -> None:
    async def main() -> None:
        locks = [aio.AsyncLock(disk / name) for name in "ab"]

        async def lose() -> None:
            async with aio.acquire_all(locks):
                (disk / "a").unlink()

        with pytest.raises(LockLost, match="/a was removed"):
            await lose()
        holds = await aio.acquire_all(locks)
        (disk / "a").unlink()
        closing = GeneratorExit()
        await holds.__aexit__(GeneratorExit, closing, None)
        assert "/a was removed" in closing.__notes__[0]
        assert os.listdir(disk) == []

    asyncio.run(main())


def test_a_closed_acquire_all_releases_the_locks_that_it_had(disk: Path) -> None:
    """It waits for the second lock; a coroutine that is being closed cannot wait for a thread."""

    async def main() -> None:
        with Lock(disk / "b"):
            steps = aio.acquire_all([aio.AsyncLock(disk / "a"), aio.AsyncLock(disk / "b")])
            steps.send(None)
            assert (disk / "a").exists()
            steps.close()
            assert not (disk / "a").exists()
            assert (disk / "b").exists()

    asyncio.run(main())


# -- queues ------------------------------------------------------------------------------------------------------------


def refuse(*_args: object, **_options: object) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_far_from_its_turn_a_waiter_that_polls_does_not_list_the_queue_each_time(
    path: Path, disk: Path, contend: Contend, environments: Environments
) -> None:
    """Behind a ticket that it cannot open, it looks the less often, the more waiters are ahead."""
    place = Path(queue_of(str(disk), "l"))
    place.mkdir()
    contend(path).get()
    pauses = []
    for number in range(20):
        forged_ticket(place, arrival=number)
        if number not in (0, 19):
            continue
        env = environments()
        env.instead["open_fifo"] = refuse
        env.instead["monotonic"] = lambda: 1000.0
        waiter = contend(path, env, timeout=None, fair=True)
        wait = waiter.step()
        assert wait is not None
        assert wait.fds == ()
        pauses.append(wait.deadline - 1000.0)
        waiter.steps.close()
    assert 0 < pauses[0] < pauses[1] / 10
    shutil.rmtree(place)


def test_a_child_leaves_its_parents_place_alone(path: Path, contend: Contend) -> None:
    holder = contend(path)
    held = holder.get()
    waiter = contend(path, timeout=None, fair=True)
    assert waiter.step() is not None
    (line,) = waiter.env.local_queues.values()
    (place,) = line.entries
    waiter.env.real.generation += 1
    place.leave()
    assert line.entries == [place]
    waiter.env.real.generation -= 1
    held.release()


def test_a_place_left_while_it_is_woken_wakes_the_next_one(path: Path, contend: Contend) -> None:
    """A signal handler may leave it between the two steps, and its loop may be closed."""
    holder = contend(path)
    held = holder.get()
    waiters = [contend(path, holder.env, timeout=None, fair=True) for _ in range(2)]
    for waiter in waiters:
        assert waiter.step() is not None
    (line,) = holder.env.local_queues.values()
    first, second = line.entries

    def left() -> None:
        line.entries.remove(first)
        raise RuntimeError("Event loop is closed")

    first.signal.subscribe(left)
    second.signal.is_set = False
    line.wake_first()
    assert line.entries == [second]
    assert second.signal.is_set
    first.signal.unsubscribe()
    held.release()


# -- takeovers ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def dead(path: Path, contend: Contend) -> Path:
    """The lock of a crashed holder: its death is proven."""
    holder = contend(path, tag="the dead one")
    holder.get()
    holder.crash()
    return path


def unwritable(env: Stepped) -> Callable[..., int]:
    def open_existing(name: str, *, write: bool, dir_fd: int | None = None) -> int:
        if write:
            raise PermissionError(errno.EACCES, "Permission denied", name)
        fd: int = env.real.open_existing(name, write=False, dir_fd=dir_fd)
        return fd

    return open_existing


def test_an_unfinished_file_of_another_user_is_removed(path: Path, contend: Contend) -> None:
    """P6, T6: only a user who may write to it can finish it; whoever may remove it makes a new one."""
    path.touch()
    path.chmod(0o1644)
    inode = path.stat().st_ino
    other = os.open(path, os.O_RDONLY)  # keeps the number of the inode
    contender = contend(path)
    contender.env.instead["open_existing"] = unwritable(contender.env)
    assert contender.get().verify()
    assert path.stat().st_ino != inode
    os.close(other)


def test_an_unfinished_file_that_goes_is_no_error(path: Path, contend: Contend) -> None:
    """P6: its creator has finished and released, or another contender has."""
    path.touch()
    path.chmod(0o1644)
    contender = contend(path)
    contender.env.before["open_existing"] = lambda _path, write: path.unlink() if write else None
    assert contender.get().verify()


def test_an_unfinished_file_of_another_user_does_not_end_a_wait(path: Path, contend: Contend) -> None:
    """P6, T6: a user who may neither write to it nor remove it (a sticky directory) waits, and is told why."""
    path.touch()
    path.chmod(0o1644)
    contender = contend(path)
    contender.env.instead["open_existing"] = unwritable(contender.env)
    contender.env.instead["unlink"] = lambda name: (
        fails("EPERM")() if name == str(path) else contender.env.real.unlink(name)
    )
    refused = contender.run()
    assert not isinstance(refused, FileHold)
    assert path.read_bytes() == b""
    assert "may neither write to the lock file nor remove it" in refused.status.reason


@pytest.mark.needs("events")
def test_a_waiter_that_gets_permission_takes_over_at_its_next_look(dead: Path, contend: Contend) -> None:
    contender = contend(dead, timeout=600)
    contender.env.instead["open_existing"] = unwritable(contender.env)
    contender.env.instead["open_new"] = fails("EACCES")
    while (wait := contender.step()) is not None and wait.deadline < time.monotonic() + 1:
        wait_for(wait)  # until only a change would tell
    contender.env.instead.clear()
    dead.chmod(0o666)
    for _ in range(20):
        contender.step()
        if contender.done:
            break
    assert contender.inside


def test_a_dead_lock_that_may_not_be_written_is_removed_only_under_its_guard(dead: Path, contend: Contend) -> None:
    """T6, T1: another contender has it in that instant; an error other than a lack of permission is raised."""
    contender = contend(dead)
    contender.env.instead["open_existing"] = unwritable(contender.env)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(takeover, "make_claim", lambda *_args, **_options: None)
        assert not isinstance(contender.run(), FileHold)
    assert dead.exists()
    other = contend(dead)
    other.env.instead["open_existing"] = unwritable(other.env)
    other.env.instead["unlink"] = fails("EIO")
    with pytest.raises(OSError, match="Input/output error"):
        other.run()
    assert dead.exists()
    assert contend(dead).get().recovered_from is not None


@pytest.mark.needs("flock")
@pytest.mark.parametrize("step", ["sync", "sync_directory", "list_directory", "the counter"])
def test_a_takeover_that_fails_late_leaves_the_dead_holders_record_to_the_next_one(
    step: str, dead: Path, contend: Contend
) -> None:
    """T21."""
    contender, before = contend(dead, durable=True, fencing=step == "the counter"), dead.read_bytes()
    real = contender.env.real.open_new

    def open_new(path: str, mode: int) -> int:
        if path.endswith(".token"):
            fails("ENOSPC")()
        return real(path, mode)  # type: ignore[no-any-return]

    contender.env.instead["open_new"] = open_new
    if step != "the counter":
        contender.env.instead[step] = fails("ENOSPC")
    with pytest.raises(OSError, match="No space left"):
        contender.run()
    assert dead.read_bytes().rstrip() == before.rstrip()
    heir = contend(dead).get()
    assert heir.recovered_from is not None


def test_the_first_of_three_failures_of_a_takeover_is_raised(
    dead: Path, contend: Contend, past_the_gates: Callable[..., None]
) -> None:
    """T3: the disk becomes full in the middle of the record, the old one cannot be put back, and the file cannot be
    removed."""
    contender = contend(dead, tag="a much longer tag than that of the dead one")
    most = len(dead.read_bytes()) - 3  # what differs between the two is the tag

    def break_the_disk() -> None:
        contender.env.instead["write"] = writes(most, real=contender.env.real.write, then="ENOSPC")
        contender.env.instead["unlink"] = fails("EIO")

    past_the_gates(contender.env, break_the_disk)
    with pytest.raises(OSError, match="No space left"):
        contender.run()
    assert b"tag=a mu" in dead.read_bytes()
    assert contender.env.steps.count("unlink") >= 1
    dead.unlink()


def test_an_interrupted_delivery_does_not_keep_later_events_from_being_reported(path: Path, contend: Contend) -> None:
    """AE2: Ctrl-C between two steps of the delivery, before any callback."""
    heard: list[Event] = []
    held = contend(path, on_event=heard.append).get()
    attempt_events = AttemptEvents.of(held)
    mutex, entries = attempt_events._mutex, [0]

    class Interrupted:
        def __enter__(self) -> None:
            entries[0] += 1
            if entries[0] == 3:
                raise KeyboardInterrupt
            mutex.acquire()

        def __exit__(self, *_error: object) -> None:
            mutex.release()

    attempt_events._mutex = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        attempt_events.lost(held)
    assert heard == []
    attempt_events.released(held)
    assert [event.kind for event in heard] == ["lost", "released"]
    held.release()


def test_two_threads_that_hold_for_the_first_time_share_one_keeper(
    path: Path, contend: Contend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two would release all holds at exit, and beat only for some."""
    other, prepared = keeper_of(environment()), []

    class Overtaken:
        def __enter__(self) -> None:
            handles._keeper = other

        def __exit__(self, *_error: object) -> None: ...

    monkeypatch.setattr(other, "prepare", lambda: prepared.append(other))
    monkeypatch.setattr(handles, "_keeper", None)
    monkeypatch.setattr(handles, "forking", Overtaken())
    held = contend(path, heartbeat=0).get()
    handles.keep(held.env, held.refs[0])  # type: ignore[arg-type]
    assert handles._keeper is other
    assert prepared == [other]
    held.release()


def test_a_lock_on_files_can_be_released_with_a_wait(path: Path, contend: Contend) -> None:
    """So a caller need not know which kind of hold it releases."""
    held = contend(path).get()
    drive(held.releasing())
    assert not path.exists()


def test_a_protocol_without_options_accepts_none() -> None:
    get("sema").check_options({})
    get("sidecar").check_options({"payload": None})
