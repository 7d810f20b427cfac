"""The two gates before another's record is replaced or removed: the guard and the claim (takeover.py)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from holdfast._core.attempt import Refusal
from holdfast._core.messages import advice
from holdfast._core.messages import refused as refused_by
from holdfast._drivers.sync import drive
from holdfast._platform.values import Presence, Process
from holdfast.engines.file import takeover
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.inspect import UNFINISHED
from holdfast.engines.file.remove import break_lock
from holdfast.engines.file.request import FileRequest
from holdfast.engines.file.takeover import NO_LOCKS, SHARED, is_claim, make_claim
from holdfast.errors import InvalidPath
from holdfast.model import Identity, marker_text
from unit.elsewhere import NOBODY, elsewhere, needs_root
from unit.stepping import Contend, Crash, Stepped, device_in, failing, sema_record

Environments = Callable[..., Stepped]
Gates = Callable[[Stepped, Callable[[], object]], None]
pytestmark = pytest.mark.needs("flock")


@pytest.fixture
def unguarded(disk: Path, contend: Contend, dead_pid: int) -> Path:
    """The lock of an ended process that had no guard: it is known by its process alone."""
    who = contend(disk / "x").env.identity()
    gone = Identity(dead_pid, who.boot, who.pid_namespace, "-", who.host)
    (disk / "l").write_bytes(sema_record(dead_pid, time.time(), marker=marker_text(False, device_in(disk), gone)))
    return disk / "l"


@pytest.fixture
def guarded(disk: Path, contend: Contend) -> Path:
    """The lock of a crashed holder: its guard proves its death."""
    holder = contend(disk / "l", tag="the dead one")
    holder.get()
    holder.crash()
    return disk / "l"


def claims(place: Path) -> list[str]:
    return sorted(name for name in os.listdir(place) if is_claim(name))


def clear(place: Path) -> None:
    for name in claims(place):
        path = place / name
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def reading(path: Path, kind: int = fcntl.LOCK_SH) -> int:
    """A descriptor with a kernel lock, of a user who may only read."""
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, kind | fcntl.LOCK_NB)
    return fd


@contextlib.contextmanager
def leased(path: Path, kind: int) -> Iterator[Callable[[], None]]:
    """A lease on the file, as its owner may take; yields a function that ends it."""
    fd = os.open(path, os.O_RDWR if kind == fcntl.F_WRLCK else os.O_RDONLY)

    def end() -> None:
        with contextlib.suppress(BlockingIOError):  # the lease has ended already
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # asks for the lease back; SIGIO would end this process
    try:
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, kind)
        except OSError as error:
            pytest.skip(f"no leases here: {error}")
        yield end
    finally:
        end()
        os.close(fd)


# -- a contender without kernel locks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("first_has_locks", [True, False])
def test_one_of_two_contenders_with_and_without_kernel_locks_takes_over(
    first_has_locks: bool, unguarded: Path, contend: Contend, environments: Environments, past_the_gates: Gates
) -> None:
    """T1: both have judged the same dead record; the second comes as the first is about to write."""
    envs = [environments(), environments("flock")]
    first, second = (contend(unguarded, env) for env in (envs if first_has_locks else reversed(envs)))
    losers: list[object] = []
    past_the_gates(first.env, lambda: losers.append(second.run()))
    assert first.get().recovered_from is not None
    assert not isinstance(losers[0], FileHold)
    assert claims(unguarded.parent) == []


@pytest.mark.parametrize("first_has_locks", [True, False])
def test_a_contender_slow_to_ask_does_not_write_over_a_new_hold(
    first_has_locks: bool, unguarded: Path, contend: Contend, environments: Environments
) -> None:
    """T2: the other one is through both gates by the time the slow one gets there."""
    envs = [environments(), environments("flock")]
    slow, faster = (contend(unguarded, env) for env in (envs if first_has_locks else reversed(envs)))
    opened: list[bool] = []

    def overtaken(_path: str, *, write: bool) -> None:
        if write and not opened:
            opened.append(write)
            faster.get()

    slow.env.before["open_existing"] = overtaken
    assert not isinstance(slow.run(), FileHold)
    assert isinstance(faster.result, FileHold)
    assert faster.result.verify()


def test_a_contender_without_kernel_locks_leaves_a_guarded_holder_alone(
    guarded: Path, contend: Contend, environments: Environments
) -> None:
    """T1: a contender that cannot take the guard cannot know that it is free, and says so."""

    def refuse_to_write(_path: str, *, write: bool) -> None:
        if write:
            raise PermissionError(errno.EACCES, "Permission denied")

    for env in (environments("flock"), environments(kind="generic")):
        for may_write in (True, False):
            if not may_write:
                env.before["open_existing"] = refuse_to_write
            refused = contend(guarded, env, stale=lambda _status: True).run()
            assert isinstance(refused, Refusal)
            assert "this process has no kernel locks" in refused.status.reason
            assert "Any process with kernel locks takes it over" in advice(refused.status)
            assert claims(guarded.parent) == []


# -- claims ------------------------------------------------------------------------------------------------------------


def test_two_contenders_never_have_a_claim_at_once(unguarded: Path, environments: Environments) -> None:
    """T11: of two, the one that lists last finds the other's; a third gets one once both are gone."""
    first, second = environments(), environments()
    found = os.stat(unguarded)
    inode = (found.st_dev, found.st_ino)
    got = make_claim(first, str(unguarded), inode, NO_LOCKS)  # type: ignore[arg-type]
    assert got is not None
    for guard in (NO_LOCKS, SHARED):
        assert make_claim(second, str(unguarded), inode, guard) is None  # type: ignore[arg-type]
    assert len(claims(unguarded.parent)) == 1
    got.end()
    last = make_claim(second, str(unguarded), inode, NO_LOCKS)  # type: ignore[arg-type]
    assert last is not None
    last.end()
    assert claims(unguarded.parent) == []


def test_a_claim_made_meanwhile_counts_as_well(unguarded: Path, environments: Environments) -> None:
    """T11: two claims are made at the same time; the contender that lists last finds the other one."""
    first, second = environments(), environments()
    found = os.stat(unguarded)
    inode, late = (found.st_dev, found.st_ino), []

    def between() -> None:
        late.append(make_claim(second, str(unguarded), inode, NO_LOCKS))  # type: ignore[arg-type]

    first.once(first.before, "list_directory", between)
    got = make_claim(first, str(unguarded), inode, NO_LOCKS)  # type: ignore[arg-type]
    assert late == [None]
    assert got is not None
    got.end()


@pytest.mark.parametrize("without", [(), ("flock",)])
def test_a_killed_claimants_claim_lets_others_in(
    without: tuple[str, ...],
    unguarded: Path,
    contend: Contend,
    environments: Environments,
    past_the_gates: Gates,
    dead_pid: int,
) -> None:
    """T12: its claimant is proven dead; the contender that takes over removes it."""
    crashed = contend(unguarded, environments(*without, pid=dead_pid))
    past_the_gates(crashed.env, crashed.crash)
    with pytest.raises(Crash):
        crashed.run()
    assert len(claims(unguarded.parent)) == 1
    assert contend(unguarded, environments(*without)).get().recovered_from is not None
    assert claims(unguarded.parent) == []


@pytest.mark.parametrize("lives", [False, True])
def test_a_killed_claimants_claim_is_removed_although_its_lock_file_is_gone(
    lives: bool,
    unguarded: Path,
    contend: Contend,
    environments: Environments,
    past_the_gates: Gates,
    dead_pid: int,
    live_pid: int,
) -> None:
    """T12: the next takeover there removes it; the claim of a living process stays."""
    crashed = contend(unguarded, environments("flock", pid=live_pid if lives else dead_pid))
    past_the_gates(crashed.env, crashed.crash)
    with pytest.raises(Crash):
        crashed.run()
    (claim,) = claims(unguarded.parent)
    copy = unguarded.with_name("copy")
    copy.write_bytes(unguarded.read_bytes())
    copy.replace(unguarded)
    assert contend(unguarded).get().recovered_from is not None
    assert claims(unguarded.parent) == [claim] * lives
    clear(unguarded.parent)


def test_a_stopped_claimant_keeps_its_claim(
    unguarded: Path, contend: Contend, environments: Environments, past_the_gates: Gates, live_pid: int
) -> None:
    """T12: it is alive without a guard, and may go on at any moment."""
    stopped = contend(unguarded, environments("flock", pid=live_pid))
    past_the_gates(stopped.env, stopped.crash)
    with pytest.raises(Crash):
        stopped.run()
    for env in (environments(), environments("flock")):
        assert not isinstance(contend(unguarded, env).run(), FileHold)
    clear(unguarded.parent)


def test_a_claimant_whose_guard_is_gone_has_ended(
    unguarded: Path, contend: Contend, environments: Environments, past_the_gates: Gates, live_pid: int
) -> None:
    """T13: its claim says that it had kernel locks, so the guard tells, wherever its process was."""
    env = environments(pid=live_pid)
    crashed = contend(unguarded, env)
    past_the_gates(env, crashed.crash)
    with pytest.raises(Crash):
        crashed.run()
    assert len(claims(unguarded.parent)) == 1
    assert contend(unguarded).get().recovered_from is not None
    assert claims(unguarded.parent) == []


@pytest.mark.parametrize("age", [5, 100])
def test_a_claim_of_an_earlier_boot_counts_for_a_minute(
    age: int, unguarded: Path, contend: Contend, environments: Environments, past_the_gates: Gates
) -> None:
    """T12: and so does one of another machine."""
    env = environments("flock")
    who = env.identity()
    env.instead["identity"] = lambda *_: Identity(who.pid, "other", who.pid_namespace, who.started, who.host)
    earlier = contend(unguarded, env)
    earlier.request.stale = lambda _status: True
    past_the_gates(env, earlier.crash)
    with pytest.raises(Crash):
        earlier.run()
    (claim,) = claims(unguarded.parent)
    os.utime(unguarded.parent / claim, (time.time() - age,) * 2)
    result = contend(unguarded, environments("flock")).run()
    assert isinstance(result, FileHold) is (age > 60)
    clear(unguarded.parent)


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
@pytest.mark.parametrize("variant", ["flock", ""])
def test_a_claim_of_another_machine_counts_whatever_the_own_clock_says(
    variant: str, ahead: float, unguarded: Path, contend: Contend, environments: Environments, past_the_gates: Gates
) -> None:
    """T12: a file server dates it."""
    there, here = environments("flock"), environments(variant)
    who = there.identity()
    there.instead["identity"] = lambda *_: Identity(who.pid, "other", who.pid_namespace, who.started, who.host)
    here.instead["time"] = lambda *_: time.time() + ahead
    other = contend(unguarded, there)
    other.request.stale = lambda _status: True
    met = []
    past_the_gates(there, lambda: met.append((contend(unguarded, here).run(), claims(unguarded.parent))))
    assert isinstance(other.run(), FileHold)
    ((refused, [_claim]),) = met
    assert isinstance(refused, Refusal)


@pytest.mark.parametrize("what", ["link", "fifo", "directory", "data"])
def test_an_object_that_only_looks_like_a_claim_is_left_alone(
    what: str, unguarded: Path, contend: Contend, environments: Environments, live_pid: int
) -> None:
    """T15: its name is that of a living process's claim."""
    env = environments(pid=live_pid)
    found = os.stat(unguarded)
    claim = make_claim(env, str(unguarded), (found.st_dev, found.st_ino), NO_LOCKS)  # type: ignore[arg-type]
    assert claim is not None
    (name,) = claims(unguarded.parent)
    path, elsewhere_ = unguarded.parent / name, unguarded.parent / "elsewhere"
    path.unlink()
    elsewhere_.write_bytes(b"precious")
    makers: dict[str, Callable[[], object]] = {
        "link": lambda: path.symlink_to(elsewhere_),
        "fifo": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "data": lambda: path.write_bytes(b"precious"),
    }
    makers[what]()
    assert contend(unguarded).get().recovered_from is not None
    assert os.path.lexists(path)
    assert elsewhere_.read_bytes() == b"precious"
    clear(unguarded.parent)


def forged(unguarded: Path, environments: Environments, live_pid: int) -> Path:
    """The path of a claim that would be that of a living process."""
    found = os.stat(unguarded)
    name = takeover._name(environments(pid=live_pid), (found.st_dev, found.st_ino), NO_LOCKS)  # type: ignore[arg-type]
    return unguarded.with_name(name)


@needs_root
@pytest.mark.parametrize("mode", [0o644, 0o664])
@pytest.mark.parametrize("sticky", [True, False])
def test_a_forged_claim_does_not_keep_a_dead_lock_in_a_sticky_directory(
    sticky: bool, mode: int, unguarded: Path, contend: Contend, environments: Environments, live_pid: int
) -> None:
    """T14: its user may make files in a sticky directory, but may not touch this lock. Elsewhere that user could remove
    the lock, so the claim counts."""
    unguarded.parent.chmod(0o1777 if sticky else 0o777)
    unguarded.chmod(mode)
    claim = forged(unguarded, environments, live_pid)
    assert elsewhere(lambda: os.close(os.open(claim, os.O_CREAT | os.O_EXCL, 0o600)) or True, user=NOBODY)
    assert len(claims(unguarded.parent)) == 1
    for env in (environments(), environments("flock")):
        result = contend(unguarded, env).run()
        assert isinstance(result, FileHold) is sticky
        if isinstance(result, FileHold):
            break
    clear(unguarded.parent)


@needs_root
def test_a_file_that_was_linked_from_elsewhere_is_no_claim(
    unguarded: Path, contend: Contend, environments: Environments, live_pid: int
) -> None:
    """T14: others can link an empty file of root's here if they may write to it (fs.protected_hardlinks)."""
    unguarded.parent.chmod(0o1777)
    empty = unguarded.with_name("empty")
    empty.touch()
    empty.chmod(0o666)
    os.link(empty, forged(unguarded, environments, live_pid))
    assert isinstance(contend(unguarded).run(), FileHold)
    clear(unguarded.parent)


def test_claims_to_other_files_cost_no_more_than_fifty_looks(
    unguarded: Path, contend: Contend, environments: Environments, live_pid: int
) -> None:
    """T16: leftovers of others are removed, but a user may make any number of invalid claims."""
    found = os.stat(unguarded)
    for number in range(200):
        env = environments(pid=live_pid)
        name = takeover._name(env, (found.st_dev, found.st_ino + 1 + number), NO_LOCKS)  # type: ignore[arg-type]
        unguarded.with_name(name).touch()
    contender = contend(unguarded)
    assert isinstance(contender.run(), FileHold)
    assert contender.env.steps.count("inspect") < 150
    assert len(claims(unguarded.parent)) == 200
    clear(unguarded.parent)


@needs_root
def test_a_user_whose_claim_would_not_count_makes_none(unguarded: Path, environments: Environments) -> None:
    """T14: each member of a group that may write to the lock file gives its claim that group; no other user can."""
    unguarded.parent.chmod(0o1777)
    unguarded.chmod(0o664)
    os.chown(unguarded, 0, 4711)
    found = os.stat(unguarded)

    def claim(groups: list[int]) -> object:
        os.setgroups(groups)
        os.setuid(NOBODY)
        env: Any = environments()
        try:
            made = make_claim(env, str(unguarded), (found.st_dev, found.st_ino), NO_LOCKS)
        except PermissionError:
            return None
        assert made is not None
        (name,) = claims(unguarded.parent)
        group = os.stat(unguarded.with_name(name)).st_gid
        made.end()
        return group

    assert elsewhere(lambda: claim([4711])) == 4711
    assert elsewhere(lambda: claim([])) is None
    assert claims(unguarded.parent) == []
    clear(unguarded.parent)


@needs_root
def test_a_contender_that_may_not_make_a_claim_does_not_take_over(unguarded: Path, environments: Environments) -> None:
    """T1: a user who may write to the file but not to its directory leaves a lock that others might claim alone."""
    unguarded.parent.chmod(0o755)
    unguarded.chmod(0o666)

    def try_it() -> str:
        import holdfast

        lock = holdfast.Lock(unguarded)
        lock._env = environments().real
        try:
            lock.acquire(timeout=0)
        except holdfast.AcquireTimeout as error:
            return str(error)
        return "acquired"

    assert "may not create a claim to it" in elsewhere(try_it, user=NOBODY)


@needs_root
def test_the_guard_alone_is_enough_to_take_over_from_a_guarded_holder(
    guarded: Path, environments: Environments
) -> None:
    """T8."""
    guarded.parent.chmod(0o755)
    guarded.chmod(0o666)

    def try_it() -> bool:
        import holdfast

        lock = holdfast.Lock(guarded)
        lock._env = environments().real
        hold = lock.acquire(timeout=0)
        try:
            return hold.recovered_from is not None
        finally:
            hold._ref.held.abandon()

    assert elsewhere(try_it, user=NOBODY)


# -- readers beside a takeover -----------------------------------------------------------------------------------------


def test_a_reader_does_not_keep_a_dead_lock(guarded: Path, contend: Contend) -> None:
    """T9: `flock -s` on a file that the reader may only read; the takeover succeeds at once, fully guarded."""
    fd = reading(guarded)
    try:
        before = os.stat(guarded).st_ino
        contender = contend(guarded)
        held = contender.get()
        assert held.guarded
        assert held.recovered_from is not None
        assert held.recovered_from.tag == "the dead one"
        assert os.fstat(fd).st_nlink == 0
        assert os.stat(guarded).st_ino != before
        assert not isinstance(contend(guarded).run(), FileHold)
    finally:
        os.close(fd)


@pytest.mark.parametrize("how", ["breaking", "cleaning", "reaping", "by rule"])
def test_a_reader_does_not_keep_a_dead_lock_from_being_removed(
    how: str, guarded: Path, environments: Environments
) -> None:
    """R2, T9."""
    from holdfast._admin.clean import REMOVED, proven, remove_lock, safe_or_approved

    if how == "by rule":
        guarded.write_bytes(sema_record(2**22 + 5, 1000))
    fd, env = reading(guarded), environments()
    request = FileRequest(str(guarded), {})
    try:
        if how == "breaking":
            assert drive(break_lock(env, request)) is not None  # type: ignore[arg-type]
        else:
            judge = proven if how == "reaping" else safe_or_approved(approved=False)
            assert drive(remove_lock(env, request, judge)).result == REMOVED  # type: ignore[arg-type]
        assert not guarded.exists()
    finally:
        os.close(fd)


@pytest.mark.parametrize("left", [True, False])
def test_a_reader_of_an_announcement_does_not_keep_a_dead_lock(left: bool, disk: Path, contend: Contend) -> None:
    """Y6: `.reclaim`, left by a crash or just made."""
    crashed = contend(disk / "l", protocol="sidecar")
    crashed.get()
    crashed.crash()
    announcement, contender = disk / "l.lock.reclaim", contend(disk / "l", protocol="sidecar")
    fds: list[int] = []

    def read(_path: str = "", _mode: int = 0) -> None:
        if announcement.exists():
            fds.append(reading(announcement))

    if left:
        announcement.mkdir(0o1755)
        announcement.chmod(0o1755)
        read()
    else:
        contender.env.after["open_new_directory"] = read
    try:
        assert contender.get().recovered_from is not None
        assert fds
        assert not announcement.exists()
    finally:
        for fd in fds:
            os.close(fd)


def test_one_of_two_takes_over_a_lock_that_others_read(guarded: Path, contend: Contend, past_the_gates: Gates) -> None:
    """T9: both share the guard with a reader; the claim lets one of them pass."""
    fd = reading(guarded)
    try:
        first, second = contend(guarded), contend(guarded)
        losers: list[object] = []
        past_the_gates(first.env, lambda: losers.append(second.run()))
        assert first.get().verify()
        assert not isinstance(losers[0], FileHold)
        assert claims(guarded.parent) == []
    finally:
        os.close(fd)


def test_a_contender_whose_guard_comes_too_late_does_not_enter(guarded: Path, contend: Contend) -> None:
    """T9, T2: it has judged the old inode, and gets its guard after the other contender has removed that."""
    fd = reading(guarded)
    first, second = contend(guarded), contend(guarded, timeout=0.1)
    opened: list[bool] = []

    def overtaken(_path: str, *, write: bool) -> None:
        if write and not opened:
            opened.append(write)
            blocked = reading(guarded)
            first.get()
            os.close(blocked)

    os.close(fd)
    second.env.before["open_existing"] = overtaken
    assert not isinstance(second.run(), FileHold)
    assert isinstance(first.result, FileHold)
    assert first.result.verify()


def test_a_brief_probe_does_not_make_a_takeover_remove_the_file(guarded: Path, contend: Contend) -> None:
    """T9: a shared lock that is gone at the next try does not belong to a lasting reader."""
    contender, before, probing = contend(guarded), os.stat(guarded).st_ino, [reading(guarded)]

    def gone(_wait: object = None) -> None:
        if probing:
            os.close(probing.pop())

    steps = contender.steps
    waits = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            held = done.value.held
            break
        waits += 1
        gone()
    assert waits
    assert held.identity[1] == before
    held.release()


def test_an_exclusive_lock_of_another_is_respected(guarded: Path, contend: Contend) -> None:
    """V1, L11: that process has the file open for writing, so its lock may be a guard that the dead holder's child has
    inherited."""
    fd = os.open(guarded, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        assert not isinstance(contend(guarded).run(), FileHold)
        assert not isinstance(contend(guarded, timeout=0.05, stale=lambda _status: True).run(), FileHold)
    finally:
        os.close(fd)
    assert contend(guarded).get().recovered_from is not None


@pytest.mark.needs("linux")
def test_a_guard_that_a_child_has_inherited_is_respected_beside_readers(disk: Path, contend: Contend) -> None:
    """L11: some process keeps the file open for writing."""
    holder = contend(disk / "l")
    inherited = os.dup(holder.get().fd)
    holder.crash()
    readers = [os.open(disk / "l", os.O_RDONLY) for _ in range(3)]
    try:
        assert not isinstance(contend(disk / "l", timeout=0.05).run(), FileHold)
    finally:
        os.close(inherited)
        for fd in readers:
            os.close(fd)
    assert contend(disk / "l").get().recovered_from is not None


@pytest.fixture
def kept(guarded: Path) -> Iterator[Path]:
    """The lock of a dead holder, locked exclusively by a user who may only read it."""
    fd = reading(guarded, fcntl.LOCK_EX)
    need_leases(guarded)
    yield guarded
    os.close(fd)


def need_leases(path: Path) -> None:
    with leased(path, fcntl.F_RDLCK):
        pass


@pytest.mark.needs("linux")
@pytest.mark.parametrize("timeout", [0, 5])
def test_a_readers_exclusive_lock_does_not_keep_a_dead_lock(timeout: float, kept: Path, contend: Contend) -> None:
    """L11, T19: `flock -x` on a file that the reader may only read; the takeover succeeds at once, fully guarded."""
    before = os.stat(kept).st_ino
    with open(kept, "rb") as other:
        held = contend(kept, timeout=timeout).get()
        assert held.guarded
        assert held.recovered_from is not None
        assert held.recovered_from.tag == "the dead one"
        assert os.fstat(other.fileno()).st_nlink == 0
    assert os.stat(kept).st_ino != before
    assert claims(kept.parent) == []
    assert not isinstance(contend(kept).run(), FileHold)


@pytest.mark.needs("linux")
@pytest.mark.parametrize("how", ["breaking", "cleaning", "reaping"])
def test_a_readers_exclusive_lock_does_not_keep_a_dead_lock_from_being_removed(
    how: str, kept: Path, environments: Environments
) -> None:
    """R2, T19."""
    from holdfast._admin.clean import REMOVED, proven, remove_lock, safe_or_approved

    env, request = environments(), FileRequest(str(kept), {})
    if how == "breaking":
        assert drive(break_lock(env, request)) is not None  # type: ignore[arg-type]
    else:
        judge = proven if how == "reaping" else safe_or_approved(approved=False)
        assert drive(remove_lock(env, request, judge)).result == REMOVED  # type: ignore[arg-type]
    assert not kept.exists()


@pytest.mark.needs("linux")
@pytest.mark.parametrize("why", ["nobody may ask", "another device", "another boot", "no marker"])
def test_an_exclusive_lock_of_unknown_origin_counts_as_held(why: str, kept: Path, contend: Contend) -> None:
    """L11."""
    contender = contend(kept)
    record = kept.read_bytes()
    who, device = contender.env.identity(), b" %d " % device_in(kept.parent)
    assert record.count(device) == 1
    if why == "nobody may ask":
        contender.env.instead["is_written"] = lambda _fd: None
    elif why == "another device":
        kept.write_bytes(record.replace(device, b" 1 "))
    elif why == "another boot":
        kept.write_bytes(record.replace(who.boot.encode(), b"other"))
    else:
        kept.write_bytes(sema_record(2**22 + 5, 1000))
    assert not isinstance(contender.run(), FileHold)


@needs_root
@pytest.mark.needs("linux")
def test_a_user_who_may_not_ask_leaves_a_lock_that_a_reader_keeps(kept: Path, environments: Environments) -> None:
    """L11: neither its owner nor root, in a world-writable directory."""
    kept.parent.chmod(0o777)
    kept.chmod(0o666)

    def try_it() -> str:
        import holdfast

        lock = holdfast.Lock(kept)
        lock._env = environments().real
        try:
            lock.acquire(timeout=0.05)
        except holdfast.AcquireTimeout as error:
            return str(error)
        return "acquired"

    assert "the kernel lock on its file is held" in elsewhere(try_it, user=NOBODY)


@pytest.mark.needs("linux")
def test_one_of_two_takes_over_a_lock_that_a_reader_keeps(kept: Path, contend: Contend, past_the_gates: Gates) -> None:
    """T19: neither has the guard; the claim lets one of them pass."""
    first, second = contend(kept), contend(kept)
    losers: list[object] = []
    past_the_gates(first.env, lambda: losers.append(second.run()))
    assert first.get().verify()
    assert not isinstance(losers[0], FileHold)
    assert claims(kept.parent) == []


@pytest.mark.needs("linux")
@pytest.mark.parametrize("step", ["is_written", "open_new", "list_directory", "stat", "read"])
def test_one_of_two_enters_when_a_reader_lets_go(step: str, guarded: Path, contend: Contend) -> None:
    """T19, T8: the reader goes before any step of the contender that is about to remove the file; the other one gets
    the guard and takes over in place, without a claim."""
    need_leases(guarded)
    fd = reading(guarded, fcntl.LOCK_EX)
    remover, other = contend(guarded, timeout=0.1), contend(guarded, timeout=0.1)

    def let_go(*_args: object, **_options: object) -> None:
        nonlocal fd
        if remover.env.steps.count("is_written") > 4 and fd >= 0:  # it has passed the gate at which it was refused
            os.close(fd)
            fd = -1
            other.step()

    remover.env.before[step] = let_go
    remover.run()
    if not other.done:
        other.run()
    if fd >= 0:
        os.close(fd)
    assert [remover.inside, other.inside].count(True) == 1
    assert claims(guarded.parent) == []


@pytest.mark.needs("linux")
def test_a_readers_exclusive_lock_does_not_keep_an_unfinished_file(disk: Path, contend: Contend) -> None:
    """L11, T19: publish.py, P6."""
    path = disk / "l"
    path.touch()
    path.chmod(0o644 | UNFINISHED)
    need_leases(path)
    fd = reading(path, fcntl.LOCK_EX)
    try:
        assert contend(path).get().verify()
    finally:
        os.close(fd)


@pytest.mark.needs("linux")
def test_a_lease_broken_while_asking_for_writers_ends_no_process(disk: Path, environments: Environments) -> None:
    """LX2: another process opens the file for writing during the lease, and is refused for that moment."""
    path, env = disk / "l", environments()
    path.touch()
    need_leases(path)
    fd = env.open_existing(str(path), write=False)
    real, refused = fcntl.fcntl, list[int]()

    def step(number: int, command: int, *words: Any) -> Any:
        if command == fcntl.F_SETLEASE and words == (fcntl.F_UNLCK,):
            try:
                os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
            except BlockingIOError:
                refused.append(number)
        return real(number, command, *words)

    with mock.patch.object(fcntl, "fcntl", step):
        assert env.is_written(fd) is False
    assert refused
    with open(path, "r+b"):
        assert env.is_written(fd) is True
    env.close(fd)


# -- leases of the file's owner ----------------------------------------------------------------------------------------


@pytest.mark.needs("linux")
@pytest.mark.parametrize("protocol", ["sema", "sidecar", "flock", "ofd"])
def test_a_lease_is_waited_for_and_named_in_a_refusal(protocol: str, disk: Path, contend: Contend) -> None:
    """L10: no process may open the file meanwhile, and no event reports the end of the lease."""
    path = Path(contend(disk / "l", protocol=protocol).request.path)
    path.write_bytes(sema_record(2**22 + 5, 1000) if protocol == "sema" else b"")
    with leased(path, fcntl.F_WRLCK) as end:
        for timeout in (0, 0.05):
            refused = contend(disk / "l", protocol=protocol, timeout=timeout).run()
            assert isinstance(refused, Refusal)
            assert refused.status.locked
            assert "has a lease on the lock file" in str(refused_by(refused, timeout))
        waiter = contend(disk / "l", protocol=protocol, timeout=10)
        waits = [waiter.step() for _ in range(20)]
        assert all(wait is not None and wait.deadline - time.monotonic() < 0.1 for wait in waits)
        end()
        if protocol == "sidecar":  # an empty file must not be taken over
            path.unlink()
        assert waiter.get().verify()


@pytest.mark.needs("linux")
@pytest.mark.parametrize("protocol", ["sema", "flock"])
def test_a_lease_against_writers_keeps_nobody_out(protocol: str, guarded: Path, contend: Contend) -> None:
    """L10: a dead holder's file is removed, as if it were not writable; for `flock`, reading is enough."""
    if protocol == "flock":
        guarded.write_bytes(b"")
    with leased(guarded, fcntl.F_RDLCK):
        held = contend(guarded, protocol=protocol).get()
        assert held.verify()
        held.release()


@pytest.mark.needs("linux")
def test_a_lease_on_the_counter_is_waited_for(disk: Path, contend: Contend) -> None:
    """L10, TK8."""
    (disk / "l.token").write_bytes(b"%020d\n%020d\n" % (3, 4))
    with leased(disk / "l.token", fcntl.F_RDLCK) as end:
        assert isinstance(contend(disk / "l", fencing=True, timeout=0).run(), Refusal)
        waiter = contend(disk / "l", fencing=True, timeout=10)
        assert waiter.step() is not None
        end()
        assert waiter.get().token == 5


def test_a_reader_does_not_keep_an_unfinished_file(disk: Path, contend: Contend) -> None:
    """T9: an unfinished file (publish.py, P6)."""
    path = disk / "l"
    path.touch()
    path.chmod(0o644 | UNFINISHED)
    fd = reading(path)
    try:
        assert contend(path).get().verify()
    finally:
        os.close(fd)


# -- breaking ----------------------------------------------------------------------------------------------------------


def test_a_takeover_does_not_enter_a_lock_broken_under_its_guard(
    guarded: Path, contend: Contend, past_the_gates: Gates
) -> None:
    """R2: the guard belongs to a takeover that has not written yet, and not to a holder."""
    remover, contender = contend(guarded), contend(guarded)
    broken: list[object] = []
    past_the_gates(contender.env, lambda: broken.append(drive(break_lock(remover.env, remover.request))))  # type: ignore[arg-type]
    held = contender.get()
    assert broken != [None]
    assert held.verify()
    assert held.recovered_from is None, "published anew"


def test_a_takeover_does_not_enter_a_lock_about_to_be_removed(guarded: Path, contend: Contend) -> None:
    """T8: it writes its record after the breaker has read the old one, and before the breaker removes the file."""
    remover, contender = contend(guarded), contend(guarded, timeout=1)
    holder = reading(guarded, fcntl.LOCK_EX)  # a living holder, as the breaker sees it, which then dies
    inside: list[bool] = []

    def take_over(path: str) -> None:
        if path == str(guarded):
            os.close(holder)
            assert contender.step() is not None, "it waits for the claim to go"
            inside.append(contender.inside)
            assert b"the dead one" not in guarded.read_bytes()

    remover.env.before["unlink"] = take_over
    assert drive(break_lock(remover.env, remover.request)) is not None  # type: ignore[arg-type]
    assert inside == [False]
    assert contender.get().recovered_from is None, "published anew"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO], ids=errno.errorcode.get)
def test_a_takeover_that_cannot_look_for_claims_gives_the_lock_back(
    guarded: Path, contend: Contend, number: int
) -> None:
    """T8: the breaker is about to remove the file just written."""
    remover, contender = contend(guarded), contend(guarded, timeout=1)
    holder = reading(guarded, fcntl.LOCK_EX)
    failed: list[int | None] = []

    def fail_next(*_: object) -> None:
        if b"the dead one" not in guarded.read_bytes():
            contender.env.before["list_directory"] = failing(number, 1)

    def take_over(path: str) -> None:
        if path == str(guarded):
            os.close(holder)
            contender.env.after["write"] = fail_next
            with pytest.raises(OSError) as raised:  # noqa: PT011 - the number is what is asserted
                contender.get()
            failed.append(raised.value.errno)

    remover.env.before["unlink"] = take_over
    removed = drive(break_lock(remover.env, remover.request))  # type: ignore[arg-type]
    assert removed is not None
    assert removed.tag == "the dead one", "it was put back (T21)"
    assert failed == [number]
    assert not guarded.exists()
    assert not contender.env.open_descriptors()


@pytest.mark.parametrize("parents", [False, True])
def test_a_takeover_whose_directory_is_removed_begins_anew(disk: Path, contend: Contend, parents: bool) -> None:
    """T8: all claims are gone with the directory, and so is the lock that was taken over."""
    lock = disk / "sub" / "l"
    lock.parent.mkdir()
    holder = contend(lock, tag="the dead one")
    holder.get()
    holder.crash()
    contender = contend(lock, timeout=1, parents=parents)
    env = contender.env

    def remove_next(*_: object) -> None:
        if lock.exists() and b"the dead one" not in lock.read_bytes():
            env.once(env.before, "list_directory", lambda: shutil.rmtree(lock.parent))

    env.after["write"] = remove_next
    if parents:
        assert contender.get().recovered_from is None, "published anew"
    else:
        with pytest.raises(InvalidPath, match="does not exist"):
            contender.get()
    assert env.open_descriptors() == {held.fd for held in env.holds.values()}


def test_a_stopped_breaker_does_not_hold_up_a_takeover(guarded: Path, contend: Contend, live_pid: int) -> None:
    """T8: after a moment the lock is given back, and acquired anew."""
    breaker, contender = contend(guarded), contend(guarded, timeout=30)
    breaker.env.real._identity = breaker.env.real._identify(live_pid)
    holder = reading(guarded, fcntl.LOCK_EX)

    def stop(path: str) -> None:
        if path == str(guarded):
            breaker.crash()
            raise Crash

    breaker.env.before["unlink"] = stop
    with pytest.raises(Crash):
        drive(break_lock(breaker.env, breaker.request))  # type: ignore[arg-type]
    os.close(holder)
    started = time.monotonic()
    assert contender.get().verify()
    assert time.monotonic() - started < 10
    clear(guarded.parent)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".x",
        "1.2.g.3.4.5.6",
        "1.2.x.3.4.5.6.{}",
        "1.2.g.3.4.x.6.{}",
        "1.2.g.3.4.99999999999.6.{}",
        "z.2.g.3.4.5.6.{}",
    ],
)
def test_a_name_that_no_claimant_writes_is_no_claim(name: str) -> None:
    assert takeover._parsed(name) is None
    words = f"{takeover._PREFIX}{name.format('0' * 16)}{takeover._SUFFIX}"
    assert takeover._parsed(words) is None


@pytest.mark.parametrize("elsewhere", ["no pid space", "another pid space"])
def test_the_claim_of_a_process_that_cannot_be_asked_counts(elsewhere: str, unguarded: Path, contend: Contend) -> None:
    """T12: dead or not."""
    one = contend(unguarded)
    claim = make_claim(one.env, str(unguarded), (1, 2), NO_LOCKS)
    assert claim is not None
    who = one.env.identity()
    space = "" if elsewhere == "no pid space" else "pid:[1]"
    one.env.instead["identity"] = lambda: who.replaced(pid_namespace=space)
    one.env.instead["inspect"] = lambda _pid: Process(Presence.GONE)
    (name,) = (name for name in os.listdir(unguarded.parent) if is_claim(name))
    assert takeover.why_over(one.env, str(unguarded.parent / name)) is None
    del one.env.instead["identity"]
    assert takeover.why_over(one.env, str(unguarded.parent / name)) is not None
    claim.end()
