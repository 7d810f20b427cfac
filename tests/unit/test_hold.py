"""Holding, losing, releasing: only ours, only here, only once (lock.py)."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Lock
from holdfast._core.hold import HoldState
from holdfast.engines.file.acquire import look
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.request import FileRequest
from holdfast.errors import LockLost, NotHeld
from holdfast.liveness import Liveness
from holdfast.lock import file_hold
from unit.elsewhere import elsewhere
from unit.stepping import Contend, Crash, Stepped, sema_record

FOREIGN = sema_record(1, 9_000_000_000)


@pytest.fixture
def held(place: Path, contend: Contend) -> FileHold:
    return contend(place / "l").get()


def steps_of(held: FileHold) -> list[str]:
    assert isinstance(held.env, Stepped)
    return held.env.steps


def test_a_child_cannot_act_on_its_parents_hold(held: FileHold) -> None:
    """H1: in the child, every step does nothing or raises."""
    before = Path(held.path).read_bytes()

    def in_the_child() -> list[object]:
        held.release()
        held.beat()
        held.abandon()
        said: list[object] = [held.inert, held.verify(), held.check(), held.lost]
        with pytest.raises(NotHeld, match="child"):
            held.ensure()
        return said

    assert elsewhere(in_the_child) == [True, False, False, False]
    assert Path(held.path).read_bytes() == before
    assert held.verify()


def test_a_child_leaves_its_parents_guard_locked(held: FileHold, contend: Contend) -> None:
    """H1: it only closes its copies of the descriptors."""
    elsewhere(held.release)
    status = look(contend("/x").env, held.request)
    assert (status.liveness, status.evidence.source) == (Liveness.ALIVE, "guard")


def _kept_alive(path: str) -> list[HoldState]:
    return [one for one in gc.get_objects() if isinstance(one, HoldState) and one.path == path]


@pytest.mark.parametrize("protocol", ["sema", pytest.param("flock", marks=pytest.mark.needs("flock"))])
def test_nothing_of_a_released_hold_is_left_for_the_garbage_collector(place: Path, protocol: str) -> None:
    """H2."""
    lock = Lock(place / "l", protocol=protocol)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        hold = lock.acquire()
        assert len(_kept_alive(lock.path)) == 1
        hold.release()
        del hold
        assert _kept_alive(lock.path) == []
    finally:
        if was_enabled:
            gc.enable()


def test_a_second_release_does_nothing(held: FileHold, contend: Contend) -> None:
    """H2: even if the path is a lock file again, and the descriptor's number is in use again."""
    held.release()
    after = contend(held.path)
    second = after.get()
    held.release()
    held.abandon()
    assert second.verify()
    assert second.fd in after.env.open_descriptors()


def test_a_beat_does_not_write_into_a_file_that_got_the_descriptor_number(
    held: FileHold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H2: the release came between the check and the write of a heartbeat."""
    check = FileHold.check

    def check_and_lose_the_race(self: FileHold) -> bool:
        ours = check(self)
        self.release()
        self.fd = os.open(tmp_path / "innocent", os.O_RDWR | os.O_CREAT)
        return ours

    monkeypatch.setattr(FileHold, "check", check_and_lose_the_race)
    held.beat()
    os.close(held.fd)
    assert (tmp_path / "innocent").read_bytes() == b""


def test_the_guard_is_dropped_after_the_file_is_gone(held: FileHold, contend: Contend) -> None:
    """FH1: unlink, unlock, close; in between, no contender can take the lock for a dead holder's."""
    env = held.env
    assert isinstance(env, Stepped)
    other = contend("/x").env
    seen = []
    env.at_step = lambda _n, _name: seen.append(look(other, held.request).liveness)
    start = len(env.steps)
    held.release()
    first = env.steps.index("unlink", start)
    assert env.steps[first : first + 3] == ["unlink", "unguard", "close"]
    assert Liveness.DEAD not in seen
    assert not env.open_descriptors()


def test_a_copy_of_the_descriptor_does_not_keep_the_lock(held: FileHold, contend: Contend) -> None:
    """FH1: a child between vfork and exec still has one; unlocking drops the guard for all copies."""
    copy = os.dup(held.fd)
    try:
        held.release()
        other = os.open(f"/proc/self/fd/{copy}", os.O_RDONLY)
        try:
            assert contend("/x").env.real.guard(other) is True
        finally:
            os.close(other)
    finally:
        os.close(copy)


LOSSES: dict[str, Callable[[Path], object]] = {
    "removed": lambda path: path.unlink(),
    "replaced": lambda path: (path.unlink(), path.write_bytes(FOREIGN)),
    "replaced by a copy": lambda path: (copy := path.read_bytes(), path.unlink(), path.write_bytes(copy)),
    "renamed over": lambda path: (path.with_name("t").write_bytes(FOREIGN), path.with_name("t").replace(path)),
    "overwritten": lambda path: path.write_bytes(FOREIGN),
    "overwritten and longer": lambda path: path.write_bytes(path.read_bytes() + b"tag=x\n"),
    "truncated": lambda path: path.write_bytes(b""),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
    "a link to itself": lambda path: (path.rename(path.with_name("t")), path.symlink_to("t")),
    "its directory is gone": lambda path: (path.unlink(), path.parent.rmdir()),
}


@pytest.mark.parametrize("how", LOSSES)
def test_a_lost_lock_is_noticed_and_its_thief_left_alone(how: str, place: Path, contend: Contend) -> None:
    """FH2: the path has another inode, or our file another record."""
    (place / "d").mkdir()
    path = place / "d" / "l"
    told: list[LockLost] = []
    held = contend(path, on_lost=told.append).get()
    LOSSES[how](path)
    before = path.read_bytes() if path.is_file() else os.path.lexists(path)
    assert not held.verify()
    assert not held.check()
    held.check()
    assert held.lost
    assert len(told) == 1, "told once"
    assert told[0].path == str(path)
    with pytest.raises(LockLost, match="check what the lock protects"):
        held.ensure()
    with pytest.raises(LockLost, match=str(path)):
        held.release()
    held.release()
    assert (path.read_bytes() if path.is_file() else os.path.lexists(path)) == before
    assert len(told) == 1


@pytest.mark.parametrize("protocol", ["sema", "sidecar"])
def test_a_heartbeat_cut_short_at_any_byte_loses_nothing(protocol: str, place: Path, contend: Contend) -> None:
    """FH6: even if the next one is cut short at another byte, and every digit of the time changes."""
    for first in range(24):
        contender = contend(place / "l", protocol=protocol)
        env, times = contender.env, iter([1_999_999_999.0, 2_000_000_000.0, 1_888_888_888.0, 2_111_111_111.0])
        held = contender.get()
        path = Path(held.path)
        for end in (first, 23 - first):

            def cut_short(fd: int, text: bytes, at: int, end: int = end) -> None:
                os.pwrite(fd, text[:end], at)
                raise OSError(errno.ENOSPC, "No space left on device")

            env.instead.update(write=cut_short, time=times.__next__)
            with pytest.raises(OSError, match="No space"):
                held.beat()
            assert held.verify()
            assert held.data == path.read_bytes()
            held.record()
        del env.instead["write"]
        held.beat()
        assert held.data == held.pending == path.read_bytes()
        held.release()
        assert not path.exists()


def test_a_lock_lost_at_the_last_moment_counts_as_lost(held: FileHold) -> None:
    """FH2: removed by another process between the check and our own removal."""
    env = held.env
    assert isinstance(env, Stepped)
    env.once(env.before, "unlink", lambda: os.unlink(held.path))
    with pytest.raises(LockLost):
        held.release()
    assert held.lost
    assert not env.open_descriptors()


@pytest.mark.parametrize("step", ["stat", "read", "unlink"])
def test_a_failing_release_drops_the_guard(step: str, held: FileHold, contend: Contend) -> None:
    """FH3: whatever fails, so that the remaining file is proven dead."""
    env = held.env
    assert isinstance(env, Stepped)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    env.instead[step] = fail
    with pytest.raises(OSError, match="Input/output"):
        held.release()
    assert held.released
    assert not env.open_descriptors()
    assert not env.holds
    assert contend(held.path).get().recovered_from is not None


def test_a_crash_within_a_release_does_not_block_the_lock(place: Path, contend: Contend) -> None:
    """FH3: killed at any step, it leaves a free lock, or a proven dead one."""
    for number in range(3):
        contender = contend(place / "l")
        held = contender.get()
        start = len(contender.env.steps)

        def die(at: int, _name: str, env: Stepped = contender.env, last: int = start + number) -> None:
            if at == last:
                env.crash()
                raise Crash

        contender.env.at_step = die
        with pytest.raises(Crash):
            held.release()
        after = contend(place / "l").get()
        after.release()


def test_a_heartbeat_is_written_and_keeps_the_lock(held: FileHold) -> None:
    env = held.env
    assert isinstance(env, Stepped)
    before = Path(held.path).read_bytes()
    env.instead["time"] = lambda: 2_000_000_000.7
    held.beat()
    after = Path(held.path).read_bytes()
    assert b"timestamp=2000000000\n" in after
    assert len(after) == len(before)
    assert held.verify()
    assert held.record().created == 2_000_000_000
    held.release()
    assert not os.path.exists(held.path)


def test_a_heartbeat_leaves_another_processs_record(held: FileHold) -> None:
    Path(held.path).write_bytes(FOREIGN)
    held.beat()
    assert Path(held.path).read_bytes() == FOREIGN
    assert held.lost


def test_an_on_lost_that_fails_hides_neither_the_loss_nor_stops_the_release(disk: Path, contend: Contend) -> None:
    def fail(_error: LockLost) -> None:
        raise ZeroDivisionError

    contender = contend(disk / "l", on_lost=fail)
    held = contender.get()
    (disk / "l").unlink()
    with pytest.raises(LockLost) as lost:
        held.release()
    assert isinstance(lost.value.__cause__, ZeroDivisionError)
    assert held.released
    assert not contender.env.open_descriptors()


def test_an_on_lost_that_fails_does_not_hide_the_loss_from_a_caller_who_asks(disk: Path, contend: Contend) -> None:
    def fail(_error: LockLost) -> None:
        raise ZeroDivisionError

    held = contend(disk / "l", on_lost=fail).get()
    (disk / "l").unlink()
    with pytest.raises(LockLost) as lost:
        held.ensure()
    assert isinstance(lost.value.__cause__, ZeroDivisionError)
    with pytest.raises(LockLost):
        held.release()


def test_an_on_lost_that_fails_is_logged_where_nobody_asked_for_an_error(
    disk: Path, contend: Contend, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_error: LockLost) -> None:
        raise ZeroDivisionError("the caller's mistake")

    for ask in (lambda held: held.check(), lambda held: held.join(held.request, (object(),))):
        held = contend(disk / "l", on_lost=fail).get()
        (disk / "l").unlink()
        caplog.clear()
        assert not ask(held)
        assert held.lost
        assert "the caller's mistake" in caplog.text
        with pytest.raises(LockLost):
            held.release()


def test_the_failure_of_each_on_lost_is_reported(
    disk: Path, contend: Contend, caplog: pytest.LogCaptureFixture
) -> None:
    def raising(error: BaseException) -> Callable[[LockLost], None]:
        def fail(_error: LockLost) -> None:
            raise error

        return fail

    for second in (ZeroDivisionError("second"), KeyboardInterrupt()):
        held = contend(disk / "l", owner="me", on_lost=raising(ValueError("first"))).get()
        other = FileRequest(disk / "l", {"owner": "me", "on_lost": raising(second)})
        assert held.join(other, (object(),))
        (disk / "l").unlink()
        caplog.clear()
        if isinstance(second, KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                held.check()
        else:
            assert not held.check()
            assert "second" in caplog.text
        assert "first" in caplog.text
        for ref in held.refs.copy():
            held.drop(ref)


@pytest.mark.parametrize("full", [False, True], ids=["written in two parts", "no room for the second part"])
@pytest.mark.parametrize("options", [{}, {"lease": 60}], ids=["plain", "lease"])
def test_a_partly_written_heartbeat_keeps_the_lock(
    options: dict[str, float], full: bool, disk: Path, contend: Contend
) -> None:
    """FH6: each digit of the time may change, so the file then has neither the old record nor the new one."""
    contender = contend(disk / "l", **options)
    held, env, parts = contender.get(), contender.env, []

    def write(fd: int, data: bytes, offset: int) -> int:
        parts.append(data)
        if full and len(parts) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(fd, data[: len(data) // 2] if len(parts) == 1 else data, offset)

    env.instead["time"] = lambda: env.real.time() + 2_000_000_000
    env.instead["write"] = write
    if full:
        with pytest.raises(OSError, match="No space left"):
            held.beat()
    else:
        held.beat()
    assert len(parts) == 2
    assert held.verify()
    del env.instead["write"]
    held.beat()
    assert held.verify()
    assert held.data == (disk / "l").read_bytes()
    held.release()


@pytest.mark.needs("flock")
@pytest.mark.parametrize("protocol", ["sema", "flock"])
def test_a_release_leaves_a_later_hold_that_has_reused_its_descriptors_number(disk: Path, protocol: str) -> None:
    """FH5: the caller has closed it, and acquired the lock again."""
    lost = Lock(disk / "l", protocol=protocol).acquire()
    os.close(file_hold(lost).fd)
    with Lock(disk / "l", protocol=protocol).acquire(timeout=5) as after:
        with pytest.raises(LockLost):
            lost.release()
        after.ensure_held()
        with open(disk / "l") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_a_beat_leaves_the_time_of_a_file_that_has_reused_its_descriptors_number(disk: Path, contend: Contend) -> None:
    """FH5, of a lock that is a directory."""
    (disk / "d").touch()
    held = contend(disk / "d", protocol="proper-lockfile").get()
    number = int(held.fd)
    other = os.open(disk / "m", os.O_RDWR | os.O_CREAT)
    os.dup2(other, number)
    os.close(other)
    try:
        before = os.fstat(number).st_mtime_ns
        held.beat()
        assert os.fstat(number).st_mtime_ns == before
        with pytest.raises(LockLost):
            held.release()
        os.fstat(number)
    finally:
        os.close(number)


@pytest.mark.parametrize("protocol", ["sema", pytest.param("flock", marks=pytest.mark.needs("flock"))])
@pytest.mark.parametrize("reuse", ["file", "pipe", "none"])
@pytest.mark.parametrize("end", ["release", "give_back", "abandon"])
def test_a_release_leaves_a_file_that_has_reused_its_descriptors_number(
    end: str, reuse: str, protocol: str, disk: Path, contend: Contend
) -> None:
    """FH5: the caller has closed it, as a process that becomes a daemon does, and opened something else."""
    contender = contend(disk / "l", protocol=protocol)
    held = contender.get()
    number = held.fd
    os.close(number)
    ends: tuple[int, ...] = ()
    if reuse != "none":
        ends = (os.open(disk / "m", os.O_RDWR | os.O_CREAT),) if reuse == "file" else os.pipe()
        opened = ends[0]
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        if reuse == "file":
            fcntl.flock(number, fcntl.LOCK_EX)
    try:
        if end == "release":
            assert not held.check()
            with pytest.raises(LockLost):
                held.release()
        else:
            getattr(held, end)()
        assert held.released
        assert number not in contender.env.open_descriptors(), "a child would close it"
        if reuse != "none":
            os.fstat(number)
        if reuse == "file":
            with open(disk / "m") as other, pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    finally:
        if reuse != "none":
            os.close(number)
            for fd in ends[1:]:
                os.close(fd)
    after = contend(disk / "l", protocol=protocol).get()
    assert after.verify(), "the kernel has freed it"
