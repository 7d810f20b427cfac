"""Locks that are directories: made, refreshed, taken over, listed and cleaned (directory.py, proper-lockfile)."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AcquireTimeout,
    InvalidPath,
    Liveness,
    Lock,
    LockLost,
    MalformedRecord,
    ProtocolMismatch,
    Semaphore,
    UnsupportedFilesystem,
)
from holdfast._admin.clean import CHANGED, REMOVED, leftovers, remove
from holdfast._admin.found import DEAD, HELD, STALE, Found
from holdfast._admin.scan import Survey
from holdfast._core.attempt import Refusal
from holdfast._drivers.sync import drive
from holdfast.engines.file.acquire import look, wait_until_free
from holdfast.engines.file.directory import DirectoryHold
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.remove import break_lock
from holdfast.engines.file.takeover import SETTLE
from holdfast.protocols import get, proper_lockfile
from unit.elsewhere import NOBODY, elsewhere, needs_root
from unit.stepping import Contend, Contender, Stepped, failing

Environments = Callable[..., Stepped]
Directory = Callable[..., Contender]
NAME = "proper-lockfile"


@pytest.fixture
def target(disk: Path) -> Path:
    (disk / "t").touch()
    return disk / "t"


@pytest.fixture
def lock(target: Path) -> Path:
    return target.with_name("t.lock")


@pytest.fixture
def contender(target: Path, contend: Contend) -> Directory:
    return lambda **options: contend(target, protocol=NAME, **options)


def age(lock: Path, seconds: float = 11.0) -> None:
    os.utime(lock, (time.time() - seconds,) * 2)


def left(lock: Path, seconds: float = 11.0) -> Path:
    """The lock of another implementation, last refreshed that many seconds ago."""
    lock.mkdir()
    age(lock, seconds)
    return lock


def held_by(one: Contender) -> DirectoryHold:
    held = one.get()
    assert isinstance(held, DirectoryHold)
    return held


def test_one_of_two_contenders_makes_the_directory(contender: Directory, lock: Path) -> None:
    """DL1: mkdir decides."""
    first, second = contender(), contender()
    inside: list[FileHold] = []
    first.env.once(first.env.before, "open_new_directory", lambda: inside.append(second.get()))
    assert not isinstance(first.run(), FileHold)
    assert inside[0].verify()
    inside[0].release()
    assert not lock.exists()


def test_a_lock_is_ours_while_the_path_names_our_directory_with_our_time(contender: Directory, lock: Path) -> None:
    """DL1: with another directory or another time, it is lost."""
    for spoil in (lambda: os.utime(lock), lambda: (lock.rmdir(), lock.mkdir()), lock.rmdir):
        held = held_by(contender())
        assert held.verify()
        spoil()
        assert not held.verify()
        with pytest.raises(LockLost):
            held.release()
        if lock.exists():
            lock.rmdir()


def test_an_interruption_after_the_directory_is_made_leaves_nothing(contender: Directory, lock: Path) -> None:
    """DL1, J1: after any step."""
    count = 1
    while True:
        one = contender()
        operations = one.env.real.operations
        operation = operations.begin(one.env)

        def interrupt(number: int, _name: str, last: int = count) -> None:
            if number == last:
                raise KeyboardInterrupt

        one.env.past_step = interrupt
        try:
            held = one.get()
        except KeyboardInterrupt:
            one.env.past_step = None
            operations.abort(operation)
            assert not lock.exists(), f"after {one.env.steps[-1]}"
            count += 1
            continue
        one.env.past_step = None
        held.release()
        operations.end(operation)
        break
    assert count > 6


@pytest.mark.parametrize(
    ("number", "says"),
    [(errno.EMFILE, "ulimit"), (errno.EACCES, "Permission denied"), (errno.EIO, "output error")],
    ids=["no descriptors", "umask", "broken"],
)
def test_a_directory_that_could_not_be_opened_is_removed(
    number: int, says: str, contender: Directory, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DL1: it was made all the same. With some umasks, its owner may not open it."""
    one, real, made = contender(), os.open, list[bool]()

    def fail(path: str, *more: Any) -> int:
        if path == str(lock):
            made.append(lock.is_dir())
            raise OSError(number, os.strerror(number), path)
        return real(path, *more)

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(OSError, match=says):
        one.run()
    assert made == [True]
    assert not lock.exists()


def test_a_directory_removed_before_it_is_open_is_made_again(
    contender: Directory, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DL4: removed by a process that had judged a stale lock there. A directory made there since belongs to its
    maker."""
    one, real, seen = contender(timeout=5), os.open, list[os.stat_result]()

    def exchange(path: str, *more: Any) -> int:
        if path != str(lock) or seen:
            return real(path, *more)
        lock.rmdir()
        try:
            return real(path, *more)
        finally:
            lock.mkdir()
            seen.append(lock.stat())

    monkeypatch.setattr(os, "open", exchange)
    assert one.step() is not None, "it waits for the next one"
    assert lock.stat().st_ino == seen[0].st_ino
    lock.rmdir()
    held_by(one).release()


def test_the_error_of_the_opening_is_raised_even_if_the_removal_fails(
    contender: Directory, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = contender()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(errno.EIO, times=1))
        patch.setattr(os, "rmdir", failing(errno.EACCES, times=1))
        with pytest.raises(OSError, match="output error"):
            one.run()
    lock.rmdir()


def test_a_directory_is_left_to_its_owner_where_none_may_be_made(
    contender: Directory, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DL1: a directory that was not made here is not removed."""
    one, real = contender(), os.mkdir

    def fail(path: str, mode: int) -> None:
        real(path, mode)  # somebody else
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "mkdir", fail)
    with pytest.raises(PermissionError):
        one.run()
    assert lock.exists()


@pytest.mark.needs("flock")
@pytest.mark.parametrize("mode", [0o755, 0o1777], ids=oct)
def test_a_directory_of_data_in_place_of_ours_is_left_as_it_is(
    mode: int, contender: Directory, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DL1, DL5: exchanged between mkdir and the opening; a neighbour keeps its guard, so it could not be marked."""
    data, ours = lock.with_name("data"), lock.with_name("ours")
    data.mkdir()
    (data / "file").write_text("data")
    data.chmod(mode)
    age(data, 100.0)
    before = data.stat()
    kept = os.open(data, os.O_RDONLY)
    fcntl.flock(kept, fcntl.LOCK_EX)
    make = os.mkdir

    def exchange(path: str, mode: int) -> None:
        make(path, mode)
        lock.rename(ours)
        data.rename(lock)

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", exchange)
        assert not isinstance(contender(fair=False).run(), FileHold)
    found = lock.stat()
    assert (found.st_ino, found.st_mode, found.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert (lock / "file").read_text() == "data"
    os.close(kept)
    lock.rename(data)
    ours.rmdir()
    held_by(contender()).release()


def test_the_guard_comes_before_the_mark(contender: Directory) -> None:
    """DL2."""
    one = contender()
    held = held_by(one)
    assert one.env.steps.index("guard") < one.env.steps.index("set_modified") < one.env.steps.index("chmod")
    held.release()


@pytest.mark.needs("flock")
def test_a_dead_holder_with_a_mark_is_replaced_at_once(contender: Directory, lock: Path) -> None:
    """L9: its kernel lock is gone, on this boot and device."""
    one = contender()
    one.get()
    one.crash()
    two = contender()
    status = look(two.env, two.request)
    assert (status.liveness, status.evidence.proven, status.stale) == (Liveness.DEAD, True, True)
    held = held_by(two)
    assert held.recovered_from is not None
    assert len(two.waits) == 0, "nobody can have judged it stale, so nothing has to settle"
    held.release()
    assert not lock.exists()


@pytest.mark.parametrize("lost", ["bit", "digits", "boot"])
def test_without_the_whole_mark_the_time_decides(contender: Directory, lock: Path, lost: str) -> None:
    """L9, DL2: a bit or a time set by another program, or a mark of another boot."""
    one = contender()
    one.get()
    one.crash()
    found = lock.stat()
    if lost == "bit":
        lock.chmod(stat.S_IMODE(found.st_mode) & ~stat.S_ISVTX)
    elif lost == "digits":
        os.utime(lock, ns=(found.st_mtime_ns, found.st_mtime_ns // 1_000_000 * 1_000_000))
    else:
        other = proper_lockfile.stamp(time.time(), "another boot", found.st_dev, coarse=False)
        os.utime(lock, ns=(other, other))
    two = contender()
    assert not isinstance(two.run(), FileHold)
    assert look(two.env, two.request).liveness is Liveness.UNKNOWN
    age(lock)
    contender().get().release()


@pytest.mark.needs("flock")
def test_a_holder_with_its_guard_is_never_robbed_by_ours(contender: Directory, lock: Path) -> None:
    """V1, L9: however old the time of its directory."""
    one = contender()
    held = held_by(one)
    age(lock, 1000)
    for policy in ("safe", "protocol", lambda _status: True):
        assert not isinstance(contender(stale=policy).run(), FileHold)
    assert not held.verify(), "by its protocol it is lost"


def test_an_old_lock_of_others_is_taken_over_by_its_rule(contender: Directory, lock: Path) -> None:
    """V9: nothing else is known of its holder, whom the rule requires to refresh it."""
    left(lock, 9)
    assert not isinstance(contender().run(), FileHold)
    assert not isinstance(contender(stale="never", stale_after=2).run(), FileHold)
    held = held_by(contender(stale_after=8))
    assert held.recovered_from is not None
    assert held.recovered_from.created == pytest.approx(time.time() - 9, abs=2)
    held.release()


def test_a_takeover_is_in_place_and_only_of_the_judged_lock(contender: Directory, lock: Path) -> None:
    """DL3: the path is never free; a holder that has refreshed its lock meanwhile keeps it."""
    left(lock)
    inode = lock.stat().st_ino
    one = contender()
    held = held_by(one)
    assert held.identity[1] == inode
    assert "remove_directory" not in one.env.steps
    held.release()

    left(lock)
    two = contender()
    two.env.once(two.env.before, "guard", lambda: os.utime(lock))
    assert not isinstance(two.run(), FileHold)
    assert lock.is_dir()


def test_a_time_set_within_the_same_millisecond_differs_from_the_last_one(contender: Directory, lock: Path) -> None:
    """DL3: so of two that share the guard with readers, the second finds another time than the one it judged."""
    one = contender()
    one.env.instead["time"] = lambda: 1_000_000.0
    held = held_by(one)
    before = held.stamp
    held.beat()
    assert held.stamp == before + 1_000_000 == lock.stat().st_mtime_ns
    held.release()


@pytest.mark.needs("flock")
def test_a_reader_that_shares_the_guard_keeps_nobody_out(contender: Directory, lock: Path) -> None:
    """T9, DL3: after a few tries the lock is taken over without the guard; such a hold is judged by its time."""
    left(lock)
    reader = os.open(lock, os.O_RDONLY)
    try:
        fcntl.flock(reader, fcntl.LOCK_SH)
        held = held_by(contender(timeout=5))
        assert not held.guarded
        assert not lock.stat().st_mode & stat.S_ISVTX
        held.release()
    finally:
        os.close(reader)


def test_one_of_two_takeovers_succeeds(contender: Directory, lock: Path) -> None:
    """DL3: the second has judged the same lock, and is refused the guard."""
    left(lock)
    first, second = contender(), contender()
    seen: list[object] = []
    first.env.once(first.env.before, "set_modified", lambda: seen.append(second.run()))
    assert first.get().verify()
    assert not isinstance(seen[0], FileHold)


def test_without_kernel_locks_the_claim_decides(contender: Directory, lock: Path, environments: Environments) -> None:
    """DL3: both see that no guard is held, as there are none."""
    left(lock)
    first, second = contender(), contender()
    for one in (first, second):
        one.env.instead["guard"] = lambda _fd, **_how: None
        one.env.instead["guarded"] = lambda _fd: None
    seen: list[object] = []
    first.env.once(first.env.before, "set_modified", lambda: seen.append(second.run()))
    held = held_by(first)
    assert held.verify()
    assert not held.guarded
    assert not isinstance(seen[0], FileHold)
    assert not lock.stat().st_mode & stat.S_ISVTX
    assert sorted(os.listdir(lock.parent)) == ["t", "t.lock"], "the claim is gone"


def test_a_takeover_settles_and_looks_again(contender: Directory, lock: Path) -> None:
    """DL4: a process that had judged earlier removes the directory."""
    left(lock)
    one = contender()
    wait = one.step()
    assert wait is not None
    assert wait.deadline - one.env.monotonic() == pytest.approx(SETTLE, abs=SETTLE)
    lock.rmdir()
    lock.mkdir()
    assert not isinstance(one.run(), FileHold)
    assert lock.is_dir(), "theirs stays"


def test_a_contender_that_saw_a_stale_lock_settles_after_making_its_own(contender: Directory, lock: Path) -> None:
    """DL4: the stale lock vanished, so another process was about to remove it."""
    left(lock)
    one = contender(timeout=5)
    one.env.once(one.env.before, "list_directory", lock.rmdir)
    held = held_by(one)
    assert len([wait for wait in one.waits if not wait.fds]) >= 1
    held.release()


def test_a_directory_that_is_not_empty_is_left_alone(
    contender: Directory, lock: Path, environments: Environments
) -> None:
    """DL5: by contenders, and by `ls` and `clean`. A mere look calls it held, too, and so does a wait."""
    left(lock)
    (lock / "data").touch()
    age(lock)
    one = contender()
    assert not isinstance(one.run(), FileHold)
    assert isinstance(one.result, Refusal)
    assert "not empty" in str(one.result.statuses[0].reason)
    status = look(one.env, one.request)
    assert (status.locked, status.stale) == (True, False)
    assert "not empty" in status.reason
    with pytest.raises(StopIteration) as done:
        next(wait_until_free(one.env, (one.request,), 0.0, ()))
    assert isinstance(done.value.value, Refusal)
    env = environments()
    assert not list(Survey(env).directory(str(lock.parent)))
    assert not list(leftovers(env, Survey(env), str(lock.parent), approved=True))
    assert (lock / "data").exists()


@needs_root
def test_a_stale_directory_of_another_user_is_removed_and_made_again(contender: Directory, lock: Path) -> None:
    """DL6: only its owner may set its time."""
    left(lock)
    lock.parent.chmod(0o777)
    one = contender()

    def forbidden(*_: object) -> None:
        raise PermissionError(errno.EPERM, "not the owner")

    calls: list[int] = []

    def first_only(fd: int, nanoseconds: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            forbidden()
        os.utime(fd, ns=(nanoseconds, nanoseconds))

    one.env.instead["set_modified"] = first_only
    held = held_by(one)
    assert held.recovered_from is not None
    assert "open_new_directory" in one.env.steps
    held.release()


@needs_root
def test_a_directory_that_may_neither_be_refreshed_nor_removed_counts_as_held(disk: Path, target: Path) -> None:
    """DL6: in a sticky directory only its owner may do either."""
    lock = left(disk / "t.lock")
    disk.chmod(0o1777)

    def refused() -> str:
        with pytest.raises(AcquireTimeout) as caught:
            Lock(target, protocol=NAME).acquire(timeout=0)
        return str(caught.value)

    assert "belongs to user 0" in elsewhere(refused, user=NOBODY)
    assert lock.is_dir()


def test_a_waiter_does_not_keep_the_directory_open(contender: Directory, lock: Path) -> None:
    """DL7: its removal would make no event then."""
    lock.mkdir()
    one = contender(timeout=5)
    for _ in range(20):
        wait = one.step()
        assert wait is not None
        if wait.fds:
            break
    assert not [fd for fd in one.env.open_descriptors() if stat.S_ISDIR(os.fstat(fd).st_mode)]
    lock.rmdir()
    one.get().release()


def test_an_interrupted_refresh_does_not_lose_the_lock(contender: Directory, lock: Path) -> None:
    """DL8: the new time is set, but not noted yet."""
    one = contender()
    held = held_by(one)

    def interrupt() -> None:
        raise KeyboardInterrupt

    one.env.once(one.env.after, "set_modified", interrupt)
    with pytest.raises(KeyboardInterrupt):
        held.beat()
    assert held.verify()
    held.beat()
    assert held.setting == 0
    assert held.verify()
    os.utime(lock)
    assert not held.verify()


def test_the_time_is_rounded_up_where_only_whole_seconds_are_kept(contender: Directory, lock: Path) -> None:
    """As proper-lockfile does: rounded down, it would seem too old."""
    one = contender()

    def coarse(fd: int, nanoseconds: int) -> None:
        os.utime(fd, ns=(nanoseconds // 10**9 * 10**9,) * 2)

    one.env.instead["set_modified"] = coarse
    before = time.time()
    held = held_by(one)
    assert held.coarse
    assert lock.stat().st_mtime_ns % 10**9 == 0
    assert lock.stat().st_mtime >= before
    held.beat()
    assert held.verify()
    held.release()


def test_the_two_kinds_of_lock_are_told_apart(contender: Directory, lock: Path, target: Path) -> None:
    with Lock(lock), pytest.raises(ProtocolMismatch, match="sema"):
        contender().run()
    lock.write_text("data")
    with pytest.raises(InvalidPath, match="is a directory"):
        contender().run()
    lock.unlink()
    lock.symlink_to(lock.parent)
    with pytest.raises(InvalidPath, match="symbolic link"):
        contender().run()
    lock.unlink()
    lock.mkdir()
    with pytest.raises(InvalidPath, match="proper-lockfile"):
        Lock(lock).try_acquire()


def test_the_target_has_to_exist_unless_links_are_not_followed(disk: Path) -> None:
    with pytest.raises(InvalidPath, match="realpath"):
        Lock(disk / "nothing", protocol=NAME).try_acquire()
    with Lock(disk / "nothing", protocol=NAME, realpath=False):
        assert (disk / "nothing.lock").is_dir()
    with pytest.raises(ValueError, match="realpath"):
        Lock(disk / "nothing", realpath=False)
    with pytest.raises(TypeError, match="realpath"):
        Lock(disk / "nothing", protocol=NAME, realpath="no")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"stale_after": 1.9}, "at least 2"),
        ({"heartbeat": 0.5}, "from 1 second"),
        ({"heartbeat": 0}, "from 1 second"),
        ({"heartbeat": 6}, "half"),
        ({"stale_after": 4, "heartbeat": 2.5}, "half"),
        ({"lease": 5}, "stale_after"),
        ({"fencing": True}, "tokens"),
        ({"durable": True}, "power cut"),
        ({"shared": True}, "flock"),
        ({"payload": {}}, "payload"),
    ],
)
def test_options_that_the_protocol_cannot_have_are_refused(options: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Lock("/tmp/x", protocol=NAME, **options)  # type: ignore[arg-type]


def test_the_protocol_has_no_semaphores() -> None:
    with pytest.raises(ValueError, match="no semaphores"):
        Semaphore("/tmp/x", 2, protocol=NAME)


def test_beats_come_at_half_of_the_shorter_stale_age(contender: Directory) -> None:
    assert contender().request.beat_every == 5
    assert contender(stale_after=60).request.beat_every == 5
    assert contender(stale_after=4).request.beat_every == 2
    assert contender(heartbeat=1).request.beat_every == 1


def test_the_protocol_is_refused_where_directories_cannot_be_held(contender: Directory) -> None:
    one = contender()
    one.env.locks_directories = False
    with pytest.raises(UnsupportedFilesystem, match="another protocol"):
        one.run()


def test_a_directory_is_listed_with_its_condition(contender: Directory, lock: Path, environments: Environments) -> None:
    """E9: in a listing of its directory and of the tree."""
    env = environments()
    (lock.parent / "full.lock").mkdir()
    left(lock.parent / "full.lock" / "inner.lock", 20)
    left(lock.parent / "fresh.lock", 1)
    one = contender()
    one.get()
    found = {x.status.path: x for x in Survey(env).tree(str(lock.parent)) if isinstance(x, Found)}
    where = str(lock.parent)
    assert {path.removeprefix(where): x.condition for path, x in found.items()} == {
        "/t.lock": HELD,
        "/fresh.lock": HELD,
        "/full.lock/inner.lock": STALE,
    }
    assert {x.status.protocol for x in found.values()} == {NAME}
    one.crash()
    again = {x.status.path: x.condition for x in Survey(env).directory(where) if isinstance(x, Found)}
    assert again[str(lock)] in (DEAD, HELD)


@pytest.mark.needs("flock")
def test_only_directories_proven_dead_or_approved_are_cleaned(
    contender: Directory, lock: Path, environments: Environments
) -> None:
    """M15: an empty directory may be of some use, whatever its name."""
    env, where = environments(), str(lock.parent)
    one = contender()
    one.get()
    one.crash()
    other = left(lock.parent / "other.lock")
    found = list(leftovers(env, Survey(env), where, approved=False))
    assert [(bool(x.way), x.path) for x in found] == [(True, str(other)), (False, str(lock))]  # type: ignore[union-attr]
    assert [drive(remove(env, x, approved=False)).result for x in found if not x.way] == [REMOVED]
    assert not lock.exists()
    found = list(leftovers(env, Survey(env), where, approved=True))
    (stale,) = [x for x in found if not x.way]
    assert drive(remove(env, stale, approved=False)).result == CHANGED
    assert drive(remove(env, stale, approved=True)).result == REMOVED
    assert not other.exists()


def test_a_directory_can_be_broken(contender: Directory, lock: Path) -> None:
    one, two = contender(), contender()
    held = held_by(one)
    assert drive(break_lock(two.env, two.request)) is not None
    assert not lock.exists()
    assert not held.verify()


# -- failures of creation and takeover ---------------------------------------------------------------------------------


@pytest.mark.needs("flock")
def test_a_probe_of_the_guard_is_waited_out(contender: Directory, lock: Path) -> None:
    """DL2: a probe that has the guard for an instant does not cost the mark."""
    one = contender()
    probes: list[int] = []

    def probe() -> None:
        probes.append(os.open(lock, os.O_RDONLY))
        fcntl.flock(probes[0], fcntl.LOCK_EX)

    one.env.once(one.env.before, "guard", probe)
    assert one.step() is not None
    os.close(probes[0])
    held = held_by(one)
    assert held.guarded
    assert lock.stat().st_mode & stat.S_ISVTX
    held.release()


def test_a_directory_removed_in_the_making_is_made_again(contender: Directory, lock: Path) -> None:
    """DL4: removed by a process that had judged a stale lock there."""
    one = contender(timeout=5)
    one.env.once(one.env.after, "set_modified", lock.rmdir)
    held = held_by(one)
    assert one.env.steps.count("open_new_directory") == 2
    assert held.verify()
    held.release()


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("step", ["guard", "set_modified", "chmod"])
def test_a_failure_in_the_making_leaves_nothing(contender: Directory, lock: Path, step: str, removed: bool) -> None:
    """DL1: only a mark that cannot be set is done without (DL2); a directory that others have removed is not
    removed."""
    one = contender()
    fail = failing(errno.EIO, times=1)

    def spoil(*_: object, **__: object) -> None:
        if removed:
            lock.rmdir()
            lock.mkdir()
        fail()

    one.env.before[step] = spoil
    if step == "chmod" and not removed:
        held = held_by(one)
        assert held.verify()
        held.release()
    elif step == "chmod":
        assert not isinstance(one.run(), FileHold)
    else:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            one.run()
    assert lock.exists() is removed
    assert not one.env.open_descriptors()


def test_a_directory_that_cannot_be_looked_at_is_not_removed(contender: Directory, lock: Path) -> None:
    """DL1: the first failure is the one that is raised."""
    one = contender()
    one.env.before["guard"] = failing(errno.EIO, times=1)
    one.env.before["fstat"] = failing(errno.ESTALE)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        one.run()
    assert lock.exists()
    assert not one.env.open_descriptors()
    lock.rmdir()


def test_a_lock_has_no_guard_where_guards_need_write_access(contender: Directory, lock: Path) -> None:
    """DL2, as on NFS: such a lock is judged by its time."""
    one = contender()
    one.env.instead["guard"] = failing(errno.EBADF)
    held = held_by(one)
    assert not held.guarded
    assert not lock.stat().st_mode & stat.S_ISVTX
    held.release()


def test_missing_parents_are_made_on_request(contender: Directory, disk: Path, contend: Contend) -> None:
    one = contend(disk / "no" / "where" / "t", protocol=NAME, realpath=False, parents=True)
    held = held_by(one)
    assert (disk / "no" / "where" / "t.lock").is_dir()
    held.release()
    (disk / "no" / "where").rmdir()
    (disk / "no").rmdir()


def test_an_error_of_the_creation_names_the_path(contender: Directory, lock: Path) -> None:
    one = contender()
    one.env.before["open_new_directory"] = failing(errno.EROFS, times=1)
    with pytest.raises(OSError, match=r"t\.lock"):
        one.run()
    assert not lock.exists()


@pytest.mark.parametrize("gone", [errno.ENOENT, errno.ENOTDIR])
def test_a_stale_directory_that_vanishes_before_its_takeover_is_made_anew(
    contender: Directory, lock: Path, gone: int
) -> None:
    left(lock)
    one = contender(timeout=5)

    def vanish(*_: object) -> None:
        lock.rmdir()
        raise OSError(gone, os.strerror(gone))

    one.env.once(one.env.before, "list_directory", vanish)
    held = held_by(one)
    assert one.env.steps[-1] != "list_directory"
    assert held.recovered_from is None
    held.release()


def test_a_stale_directory_that_may_not_be_listed_counts_as_held(contender: Directory, lock: Path) -> None:
    """DL5: it may contain data."""
    left(lock)
    one = contender()
    one.env.instead["list_directory"] = failing(errno.EACCES)
    refusal = one.run()
    assert isinstance(refusal, Refusal)
    assert "may not open the directory" in refusal.status.reason
    assert lock.is_dir()
    lock.rmdir()


def test_a_failed_takeover_leaves_the_lock_as_it_was(contender: Directory, lock: Path) -> None:
    left(lock)
    before = lock.stat().st_mtime_ns
    one = contender()
    one.env.before["set_modified"] = failing(errno.EIO, times=1)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        one.run()
    assert lock.stat().st_mtime_ns == before
    assert not one.env.open_descriptors()
    held_by(contender()).release()


def test_a_takeover_that_is_given_up_while_it_settles_leaves_nothing(contender: Directory, lock: Path) -> None:
    """DL4."""
    left(lock)
    one = contender()
    assert one.step() is not None
    assert time.time() - lock.stat().st_mtime < 5
    one.steps.close()
    assert not lock.exists()
    assert not one.env.open_descriptors()


@pytest.mark.parametrize("released", [False, True])
def test_a_heartbeat_after_the_release_sets_no_time(contender: Directory, lock: Path, released: bool) -> None:
    one = contender()
    held = held_by(one)
    if released:
        held.release()
    count = one.env.steps.count("set_modified")
    held.send_beat()
    assert one.env.steps.count("set_modified") == count + (not released)
    held.release()
    assert not lock.exists()


def test_a_hold_has_a_record_although_the_directory_has_none(target: Path) -> None:
    with Lock(target, protocol=NAME, tag="build") as hold:
        assert (hold.record.pid, hold.record.protocol, hold.record.tag) == (os.getpid(), NAME, "build")


def test_the_protocol_has_no_content() -> None:
    codec = get(NAME)
    assert codec.encode(codec.decode(b"")) == b""
    assert codec.refreshed(b"", time.time()) is None
    with pytest.raises(MalformedRecord, match="has no content"):
        codec.decode(b"x")
    with pytest.raises(ValueError, match="nothing can be written"):
        codec.encode(codec.decode(b"").replaced(pid=1))


def test_ownership_is_not_guessed_where_the_path_cannot_be_looked_at(contender: Directory, lock: Path) -> None:
    """DL1: the error is raised."""
    one = contender()
    held = held_by(one)
    one.env.before["stat"] = failing(errno.EIO, times=1)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        held._is_ours()
    assert held._is_ours()
    held.release()
    one.env.before["stat"] = failing(errno.EIO, times=1)
    assert not held._is_ours()


def test_a_directory_that_is_released_during_a_look_is_not_called_dead(
    lock: Path, contender: Directory, environments: Environments
) -> None:
    """L12: the directory that was opened has neither guard nor name any more."""
    held = contender().get()
    env = environments()
    env.once(env.before, "guarded", held.release)
    assert Survey(env).file(str(lock), alone=True) is None
    assert "guarded" in env.steps
