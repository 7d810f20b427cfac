"""Leases on files (lease.py): a holder not heard of for that long is replaced, and knows of its loss before."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from abilities import has
from engines.arms import side_by_side
from holdfast import AcquireTimeout, InvalidPath, Lock, LockLost, Semaphore, lock
from holdfast._admin.clean import Leftover, beside, remove
from holdfast._core.attempt import Refusal
from holdfast._drivers.sync import drive
from holdfast._platform import environment
from holdfast._platform.values import Storage
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.inspect import read_fresh
from holdfast.engines.file.lease import is_claim
from holdfast.engines.file.remove import break_lock
from holdfast.errors import MalformedRecord
from holdfast.model import Identity, Marker, marker_text, next_beat
from holdfast.protocols import get
from process.support import eventually
from unit.stepping import Contend, Crash, Stepped, device_in, failing

FAR = Identity(4711, "another-boot", "7.7", "t5", "elsewhere")
"""A process of another machine."""
SHORT = 1.0
"""Seconds: the shortest lease there is."""
PROTOCOLS = ["sema", "semats", "sidecar", "beads"]


class Clocks:
    """The clocks of a stepped process, set by the test."""

    def __init__(self, env: Stepped) -> None:
        self.shift = 0.0
        for name in ("monotonic", "uptime", "time"):
            env.instead[name] = self._turned(getattr(env.real, name))

    def _turned(self, real: Callable[[], float]) -> Callable[[], float]:
        return lambda: real() + self.shift


@pytest.fixture
def shared(environments: Callable[..., Stepped]) -> Callable[[], Stepped]:
    """A maker of processes that take the directory for one shared between machines."""

    def make() -> Stepped:
        env = environments()
        env.instead["storage"] = lambda *_: Storage("nfs4", shared=True, events=False)
        return env

    return make


@pytest.fixture(autouse=True)
def beats_have_ended(leaves_nothing: None) -> Iterator[None]:
    """A beat that is under way when its hold is released ends by itself."""
    yield
    eventually(lambda: lock._keeper is None or not lock._keeper._beating, what="the end of the beats")


def far_record(path: Path, lease: float = SHORT, beat: int = 1, kind: str = "sema") -> None:
    """Write the record of a holder on another machine."""
    marker = marker_text(True, device_in(path.parent), FAR, time.time(), lease, beat)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(fd, get(kind).compose(FAR, time.time(), None, marker, {}), 0)
    os.close(fd)


def marker_of(path: Path, kind: str = "sema") -> Marker:
    marker = get(kind).decode(path.read_bytes()).marker
    assert marker is not None
    return marker


# -- the record --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_a_record_says_the_lease_and_a_beat_changes_it(kind: str, tmp_path: Path) -> None:
    with Lock(tmp_path if kind == "beads" else tmp_path / "l", protocol=kind, lease=2 * SHORT) as hold:
        first = marker_of(Path(hold.path), kind)
        assert (first.lease, first.guarded) == (2 * SHORT, has("flock"))
        beats = eventually(lambda: marker_of(Path(hold.path), kind).beat - first.beat, what="a beat")
        assert beats > 0
        assert marker_of(Path(hold.path), kind) == first, "after a beat it is still the same hold"
        assert not hold.lost


@pytest.mark.parametrize(
    "text",
    [
        "3 g boot 1 ns t 1.000 10.000 0000001 host",
        "3 g boot 1 ns t 1.000 10.000 0000000G host",
        "3 g boot 1 ns t 1.000 0.000 00000001 host",
        "3 g boot 1 ns t 1.000 ten 00000001 host",
        "4 g boot 1 ns t 1.000 10.000 00000001 host",
    ],
)
def test_a_torn_lease_is_no_marker(text: str) -> None:
    assert Marker.decode(text, 1) is None


def test_a_marker_with_a_lease_is_read_as_it_was_written() -> None:
    marker = Marker(False, 3, FAR, 17.25, 10.0, 0xDEADBEEF)
    read = Marker.decode(marker.encode(), FAR.pid)
    assert read is not None
    assert (read, read.beat) == (marker, 0xDEADBEEF)


@pytest.mark.parametrize(
    "rest", [b"", b"g", b"g b 1 n t1 far", b"g b 1 n t 1.000 2.000 0000000g h", b"g b 1 n t 1.000 2.000 1"]
)
def test_a_field_that_only_looks_like_a_lease_has_no_beat(rest: bytes) -> None:
    assert next_beat(b"pid=1\nholdfast=3 " + rest, b"holdfast=") is None


@pytest.mark.parametrize("lease", [None, 10.0])
@pytest.mark.parametrize("kind", ["sema", "sidecar", "sidecar without a marker"])
def test_a_beat_leaves_a_marker_in_the_callers_text_alone(kind: str, lease: float | None) -> None:
    """A tag, or a payload, may tell of an earlier holder."""
    earlier = marker_text(True, 1, FAR, 1.0, 10.0, 7)
    marker = None if kind.endswith("without a marker") else marker_text(True, 1, FAR, 2.0, lease, 7)
    protocol = get(kind.partition(" ")[0])
    more = {} if kind == "sema" else {"payload": {"replaced": {"holdfast": earlier}}}
    before = protocol.compose(FAR, 3.0, f"after holdfast={earlier}", marker, more)
    after = bytearray(before)
    for at, text in protocol.beaten(before, 4.0):
        after[at : at + len(text)] = text
    assert bytes(after).count(earlier.encode()) == 1
    if marker is not None:
        read = protocol.decode(bytes(after)).marker
        assert read is not None
        assert read.beat == (8 if lease else 0)


def test_the_beat_after_the_last_is_the_first() -> None:
    data = b"holdfast=" + marker_text(True, 1, FAR, 1.0, 10.0, 0xFFFFFFFF).encode()
    changed = next_beat(data, b"holdfast=")
    assert changed is not None
    at, text = changed
    assert (data[at : at + 8], text) == (b"ffffffff", b"00000000")


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lease", [0.5, -1, float("inf"), float("nan"), "10", True])
def test_a_lease_that_makes_no_sense_is_refused(lease: Any, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match="lease"):
        Lock(tmp_path / "l", lease=lease)


def test_an_infinite_lease_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="finite"):
        Lock(tmp_path / "l", lease=float("inf"))


def test_a_kernel_lock_has_no_lease(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lease"):
        Lock(tmp_path / "l", protocol="flock", lease=10)


def test_a_local_lock_has_no_lease_by_default(tmp_path: Path) -> None:
    with Lock(tmp_path / "l") as hold:
        assert marker_of(Path(hold.path)).lease is None
        assert hold.token is None


def test_a_shared_directory_gives_a_lease_by_default(
    disk: Path, contend: Contend, shared: Callable[[], Stepped]
) -> None:
    held = contend(disk / "l", shared()).get()
    assert marker_of(disk / "l").lease == 30
    assert held.token is not None


def test_a_lock_in_a_shared_directory_can_do_without_a_lease(
    disk: Path, contend: Contend, shared: Callable[[], Stepped]
) -> None:
    contend(disk / "l", shared(), lease=0).get()
    assert marker_of(disk / "l").lease is None


# -- the observer ------------------------------------------------------------------------------------------------------


def test_a_record_that_does_not_change_is_replaced_after_its_lease(tmp_path: Path) -> None:
    """LE2: all protocols are waited for side by side, as each waits for a lease to end."""
    replaced = {kind: lambda kind=kind: _is_replaced(kind, tmp_path / kind) for kind in PROTOCOLS}
    for tell in side_by_side(**replaced).values():
        tell()


def _is_replaced(kind: str, directory: Path) -> None:
    directory.mkdir()
    made = Lock(directory if kind == "beads" else directory / "l", protocol=kind, lease=SHORT)
    far_record(Path(made.path), kind=kind)
    before = os.stat(made.path).st_ino
    began = time.monotonic()
    with made.acquire(timeout=30) as hold:
        assert time.monotonic() - began >= SHORT
        assert hold.recovered_from is not None
        assert hold.recovered_from.host == FAR.host
        assert os.stat(made.path).st_ino != before, "what the old holder still writes goes to another file"
    left = {name for name in os.listdir(directory) if not name.endswith(".token")}
    assert not left


def test_a_record_that_changes_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "l"
    far_record(path, lease=2 * SHORT)
    over = threading.Event()

    def beat() -> None:
        number = 1
        while not over.wait(SHORT / 10):
            number += 1
            far_record(path, lease=2 * SHORT, beat=number)

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        with pytest.raises(AcquireTimeout, match="lease"):
            Lock(path, lease=2 * SHORT).acquire(timeout=3 * SHORT)
    finally:
        over.set()
        beating.join()


def test_a_record_that_is_removed_while_it_is_read_is_looked_at_again(disk: Path, contend: Contend) -> None:
    """L8: NFS reports ESTALE for a file that another machine has removed."""
    far_record(disk / "l", lease=60)
    contender = contend(disk / "l")

    def gone(*_: Any) -> None:
        del contender.env.before["read"]
        (disk / "l").unlink()
        raise OSError(errno.ESTALE, "Stale file handle")

    contender.env.before["read"] = gone
    assert contender.get().recovered_from is None


def test_a_name_that_is_stale_at_every_look_is_an_error(disk: Path, contend: Contend) -> None:
    """L8: the lock is neither free nor held."""
    far_record(disk / "l", lease=60)
    contender = contend(disk / "l")

    def stale(*_: Any) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    contender.env.before["read"] = stale
    with pytest.raises(OSError, match="Stale file handle"):
        contender.run()


@pytest.mark.parametrize(
    ("step", "word"),
    [
        ("guarded", errno.ESTALE),  # NFS 3
        ("read", errno.ESTALE),
        ("guarded", errno.ENOENT),  # 9p
        ("read", errno.ENOENT),
        ("guarded", errno.EBADF),  # NFS 4, whose server has started again
    ],
)
def test_an_error_about_a_removed_open_file_makes_a_contender_look_again(
    step: str, word: int, disk: Path, contend: Contend
) -> None:
    """L8: whichever call on the descriptor fails first."""
    far_record(disk / "l", lease=60)
    contender = contend(disk / "l")

    def removed() -> None:
        (disk / "l").unlink()
        raise OSError(word, os.strerror(word))

    contender.env.once(contender.env.before, step, removed)
    assert contender.get().recovered_from is None
    assert step not in contender.env.before, "it was asked"


def test_a_publisher_whose_file_another_machine_removes_tries_again(
    disk: Path, contend: Contend, environments: Callable[..., Stepped]
) -> None:
    """L8: after its restart, a server got an old removal request again, and repeated it."""
    contender = contend(disk / "l", environments("unnamed"), lease=60)

    def removed() -> None:
        (disk / "l").unlink()
        raise OSError(errno.ESTALE, "Stale file handle")

    contender.env.once(contender.env.before, "guard", removed)
    held = contender.get()
    assert held.guarded
    assert held.identity[1] == os.stat(disk / "l").st_ino


def test_nothing_is_kept_open_between_looks_where_an_open_file_keeps_its_name(
    disk: Path, contend: Contend, environments: Callable[..., Stepped]
) -> None:
    """WF4: as on 9p, where two waiters of one machine would keep each other from making the lock file."""
    env = environments()
    env.instead["storage"] = lambda *_: Storage("9p", shared=True, events=False, pins=True)
    far_record(disk / "l", lease=60)
    waiter = contend(disk / "l", env, timeout=None)
    for _ in range(3):
        waiter.step()
        found = os.stat(disk / "l")
        assert not any(os.path.samestat(os.fstat(fd), found) for fd in env.real._descriptors)
    (disk / "l").unlink()
    for _ in range(5):
        if waiter.step() is None:
            break
    assert waiter.inside


def test_a_beat_leaves_a_file_alone_that_does_not_have_our_last_record(disk: Path, contend: Contend) -> None:
    """LE11: on 9p, the inode number of a name that was given to another file may still be ours."""
    held = contend(disk / "l", lease=60).get()
    other = (disk / "l").read_bytes().replace(b"pid=", b"pid=9")
    (disk / "l").write_bytes(other)
    held.beat()
    assert (disk / "l").read_bytes() == other
    assert not held.verify()


def test_on_a_shared_directory_a_record_is_synchronised_before_it_has_its_name(
    disk: Path, contend: Contend, environments: Callable[..., Stepped]
) -> None:
    """P8: otherwise a machine that dies may leave an empty file, which counts as held."""
    env = environments("unnamed")
    env.instead["storage"] = lambda *_: Storage("nfs4", shared=True, events=False)
    contend(disk / "l", env).get()
    steps = [step for step in env.steps if step in ("write", "sync", "link")]
    assert steps[:3] == ["write", "sync", "link"]


def test_time_without_a_look_does_not_count(disk: Path, contend: Contend) -> None:
    """LE3: the server may have been away, and a beat sent before may still arrive."""
    far_record(disk / "l", lease=60)
    waiter = contend(disk / "l", lease=60, timeout=None)
    clocks = Clocks(waiter.env)
    waiter.step()
    for _ in range(3):
        clocks.shift += 59
        waiter.step()
    assert not waiter.inside
    for _ in range(13):
        clocks.shift += 5
        waiter.step()
        if waiter.done:
            break
    assert waiter.inside


def test_a_guard_that_is_held_is_respected_longer_than_the_lease(disk: Path, contend: Contend) -> None:
    """V8."""
    far_record(disk / "l", lease=60)
    fd = os.open(disk / "l", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    waiter = contend(disk / "l", lease=60, timeout=None)
    clocks = Clocks(waiter.env)
    for _ in range(30):
        clocks.shift += 5
        waiter.step()
    assert not waiter.done
    os.close(fd)
    while waiter.step() is not None:
        clocks.shift += 0.01
    assert waiter.inside


@pytest.mark.parametrize("boot", ["another-boot", "this"])
def test_a_guard_that_a_dead_machine_has_left_on_its_server_keeps_nobody_out(
    boot: str, disk: Path, contend: Contend, environments: Callable[..., Stepped]
) -> None:
    """L1, T17: where the server does not notice the death, the lease decides; a guard of this machine still counts."""
    env = environments()
    env.instead["storage"] = lambda *_: Storage("nfs", shared=True, events=False, lasting=True)
    who = FAR if boot == "another-boot" else env.real.identity().replaced(pid=FAR.pid, pid_namespace="7.7")
    marker = marker_text(True, device_in(disk), who, time.time(), 60, 1)
    (disk / "l").write_bytes(get("sema").compose(who, time.time(), None, marker, {}))
    fd = os.open(disk / "l", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    waiter = contend(disk / "l", env, lease=60, timeout=None)
    clocks = Clocks(env)
    for _ in range(30):
        clocks.shift += 5
        waiter.step()
        if waiter.done:
            break
    assert waiter.inside is (boot == "another-boot")
    os.close(fd)


def test_on_a_shared_directory_a_free_guard_proves_nothing(
    disk: Path, contend: Contend, shared: Callable[[], Stepped]
) -> None:
    """A server that loses contact with a machine drops its kernel locks, while the holder lives and has its lease."""
    holder = contend(disk / "l", shared(), lease=60)
    held = holder.get()
    holder.env.real.unguard(held.fd)
    other = contend(disk / "l", shared(), lease=60)
    assert not isinstance(other.run(), FileHold)
    assert held.verify()


def test_a_local_holder_that_died_is_replaced_at_once(disk: Path, contend: Contend) -> None:
    holder = contend(disk / "l", lease=60)
    holder.get()
    holder.crash()
    assert contend(disk / "l", lease=60).get().recovered_from is not None


# -- the holder --------------------------------------------------------------------------------------------------------


def test_a_holder_whose_time_is_over_has_lost_the_lock_and_leaves_it(disk: Path, contend: Contend) -> None:
    holder = contend(disk / "l", lease=60)
    clocks = Clocks(holder.env)
    held = holder.get()
    clocks.shift += 53
    assert held.verify()
    held.beat()
    clocks.shift += 53
    assert held.verify(), "a beat has been confirmed meanwhile"
    clocks.shift += 2
    assert not held.verify()
    held.beat()
    with pytest.raises(LockLost, match="nine tenths of its lease"):
        held.release()
    assert (disk / "l").exists(), "it may be another's by now"


@pytest.mark.parametrize("error", [None, errno.EACCES, errno.EMFILE])
def test_a_release_leaves_the_next_holder_its_lock(disk: Path, contend: Contend, error: int | None) -> None:
    """LE8: the lock was broken, and no beat has found that yet."""
    holder = contend(disk / "l", lease=60)
    held = holder.get()
    (disk / "l").unlink()
    successor = contend(disk / "l", lease=60).get()
    if error is not None:  # as for a holder that has become another user
        holder.env.instead["open_existing"] = failing(error)
    with pytest.raises(LockLost, match="was removed, replaced"):
        held.release()
    assert (disk / "l").exists()
    assert successor.verify()
    successor.release()
    assert not (disk / "l").exists()


@pytest.mark.parametrize("step", ["release", "beat"])
def test_a_holder_leaves_a_file_that_has_reused_its_descriptors_number(disk: Path, contend: Contend, step: str) -> None:
    """FH5: the caller has closed it, and opened something else."""

    def unwritable(_path: str, *, write: bool) -> None:
        if write:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    holder = contend(disk / "l", lease=60)
    held = holder.get()
    number = int(held.fd)
    (disk / "m").touch()
    other = os.open(disk / "m", os.O_RDWR)
    os.dup2(other, number)
    os.close(other)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        if step == "beat":
            holder.env.before["open_existing"] = unwritable  # so it would write by its descriptor
            held.beat()
            assert not held.check()
        with pytest.raises(LockLost, match="closed while it was held here"):
            held.release()
        assert os.fstat(number).st_size == 0
        with open(disk / "m") as probe, pytest.raises(BlockingIOError):
            fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
    finally:
        os.close(number)


def test_a_lock_that_goes_in_the_midst_of_its_release_was_removed(disk: Path, contend: Contend) -> None:
    holder = contend(disk / "l", lease=60)
    held = holder.get()
    holder.env.once(holder.env.before, "unlink", (disk / "l").unlink)
    with pytest.raises(LockLost, match="was removed, replaced"):
        held.release()


@pytest.mark.parametrize("error", [errno.EACCES, errno.EMFILE])
def test_a_holder_that_cannot_read_its_lock_can_release_it(disk: Path, contend: Contend, error: int) -> None:
    holder = contend(disk / "l", lease=60)
    held = holder.get()
    holder.env.instead["open_existing"] = failing(error)
    held.release()
    assert not (disk / "l").exists()


@pytest.mark.parametrize(
    "make", [os.mkdir, os.mkfifo, lambda path: os.symlink("old", path)], ids=["dir", "fifo", "link"]
)
@pytest.mark.parametrize("beats", [False, True])
def test_a_lock_that_something_else_has_replaced_is_lost(
    disk: Path, contend: Contend, make: Callable[[Path], None], beats: bool
) -> None:
    """LE7, LE8."""
    held = contend(disk / "l", lease=60).get()
    (disk / "l").rename(disk / "old")
    make(disk / "l")
    if beats:
        held.beat()
        assert not held.verify()
    with pytest.raises(LockLost, match="was removed, replaced"):
        held.release()
    assert os.path.lexists(disk / "l")
    assert (disk / "old").exists()


@pytest.mark.parametrize("step", ["release", "beat"])
def test_a_holder_that_may_no_longer_open_its_lock_leaves_a_record_that_is_not_its_own(
    disk: Path, contend: Contend, step: str
) -> None:
    """FH2: another program has written over it."""
    holder = contend(disk / "l", lease=60)
    held = holder.get()
    holder.env.instead["open_existing"] = failing(errno.EACCES)
    theirs = held.data.replace(b"pid=", b"pid=1")
    (disk / "l").write_bytes(theirs)
    if step == "beat":
        held.beat()
        assert not held.check()
    with pytest.raises(LockLost, match="written over"):
        held.release()
    assert (disk / "l").read_bytes() == theirs


def test_a_shared_lease_is_renewed_for_processes_of_an_earlier_fork(disk: Path, contend: Contend) -> None:
    """LE12: by a beat after the fork."""
    holder = contend(disk / "l", lease=60)
    lease = holder.get().lease
    assert lease is not None
    before, now = lease.until, lease.until
    lease.share()
    assert lease.until == before
    child = os.fork()
    if child == 0:
        lease.confirmed(now)
        os._exit(0)
    os.waitpid(child, 0)
    assert lease.until > before


def test_a_beat_that_is_confirmed_too_late_does_not_count(disk: Path, contend: Contend) -> None:
    """LE1."""
    holder = contend(disk / "l", lease=60)
    clocks = Clocks(holder.env)
    held = holder.get()

    def slow(_fd: int) -> None:
        clocks.shift += 55

    holder.env.before["sync"] = slow
    held.beat()
    assert not held.verify()


def test_a_beat_finds_that_the_path_names_another_file(disk: Path, contend: Contend) -> None:
    """LE7."""
    held = contend(disk / "l", lease=60).get()
    (disk / "other").write_bytes(b"")
    os.replace(disk / "other", disk / "l")
    held.beat()
    assert not held.verify()
    with pytest.raises(LockLost):
        held.release()
    assert (disk / "l").exists()


def test_an_acquisition_whose_first_beat_is_late_has_no_lock(
    disk: Path, contend: Contend, shared: Callable[[], Stepped]
) -> None:
    """LE7, LE8: it is refused, and its published record is left to the lease."""
    holder = contend(disk / "l", shared(), lease=60)
    clocks = Clocks(holder.env)

    def slow() -> None:
        clocks.shift += 60

    holder.env.once(holder.env.before, "sync", slow)
    assert not isinstance(holder.run(), FileHold)
    assert (disk / "l").exists()


def test_a_loss_is_reported_in_time_although_the_server_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K8, LE9: the beat hangs; after the report, nothing keeps others out."""
    answers, told = threading.Event(), threading.Event()
    made = Lock(tmp_path / "l", lease=SHORT, on_lost=lambda _: told.set())
    hold = made.acquire()
    real = made._env.sync

    def sync(fd: int) -> None:
        answers.wait()
        real(fd)

    monkeypatch.setattr(made._env, "sync", sync)
    began = time.monotonic()
    try:
        assert told.wait(30)
        assert time.monotonic() - began < 10 * SHORT
        assert hold.lost
        fd = os.open(hold.path, os.O_RDWR)
        eventually(lambda: _is_free(fd), what="the guard")
        os.close(fd)
    finally:
        answers.set()
    with pytest.raises(LockLost):
        hold.release()


def test_a_lost_connection_is_not_logged_after_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """LE9: there is no guard to drop, and a beat that fails after the loss is no news."""
    resets, told, asked = threading.Event(), threading.Event(), threading.Event()
    made = Lock(tmp_path / "l", lease=SHORT, on_lost=lambda _: told.set())
    hold = made.acquire()

    def reset(_fd: int) -> None:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    def sync(fd: int) -> None:
        resets.wait(60)
        reset(fd)

    def unguard(fd: int) -> None:
        asked.set()
        reset(fd)

    with monkeypatch.context() as patch:
        patch.setattr(made._env, "sync", sync)
        patch.setattr(made._env, "unguard", unguard)
        assert told.wait(30)
        assert asked.wait(30)
        resets.set()
        assert lock._keeper is not None
        eventually(lambda: not lock._keeper._beating, what="the end of the beat")  # type: ignore[union-attr]
    with pytest.raises(LockLost):
        hold.release()
    assert not [record for record in caplog.records if record.exc_info], caplog.text


@pytest.mark.parametrize("step", ["open_existing", "write"])
def test_a_hanging_beat_does_not_delay_the_report_of_the_loss(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LE11, K8: the write hangs, and then so does dropping the guard; calls meanwhile are answered."""
    answers, told = threading.Event(), threading.Event()
    made = Lock(tmp_path / "l", lease=SHORT, on_lost=lambda _: told.set())
    hold = made.acquire()
    env = made._env

    def hanging(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            answers.wait(60)
            return real(*arguments, **options)

        return call

    for name in (step, "unguard"):
        monkeypatch.setattr(env, name, hanging(getattr(env, name)))
    try:
        assert told.wait(30)
        began = time.monotonic()
        assert hold.lost
        with pytest.raises(LockLost):
            hold.ensure_held()
        assert time.monotonic() - began < 5
    finally:
        answers.set()
    with pytest.raises(LockLost):
        hold.release()


def test_a_beat_is_written_by_a_holder_that_may_not_open_its_file_any_more(disk: Path, contend: Contend) -> None:
    """LE11: it has changed its user since, but its open descriptor is enough."""
    holder = contend(disk / "l", lease=60)
    held = holder.get()
    real = holder.env.real.open_existing

    def refused(path: str, *, write: bool) -> int:
        if write:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, write=write)  # type: ignore[no-any-return]

    holder.env.instead["open_existing"] = refused
    before, until = marker_of(disk / "l").beat, held.lease.until  # type: ignore[union-attr]
    held.beat()
    assert marker_of(disk / "l").beat != before
    assert held.lease.until > until  # type: ignore[union-attr]


def _is_free(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_a_beat_that_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = Lock(tmp_path / "l", lease=3 * SHORT)
    with made as hold:
        real, calls = made._env.sync, []

        def sync(fd: int) -> None:
            calls.append(fd)
            if len(calls) == 1:
                raise OSError(errno.EIO, "Input/output error")
            real(fd)

        monkeypatch.setattr(made._env, "sync", sync)
        eventually(lambda: len(calls) > 1, what="the second try")
        assert not hold.lost
    assert "in the heartbeat of" in caplog.text


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_tokens_of_leases_increase_and_leave_one_file(tmp_path: Path) -> None:
    with Lock(tmp_path / "l", fencing=True) as hold:
        tokens = [hold.token or 0]
    for _ in range(4):
        with Lock(tmp_path / "l", lease=60) as hold:
            tokens.append(hold.token or 0)
    assert tokens == sorted(set(tokens))
    names = [name for name in os.listdir(tmp_path) if name != "l.token"]
    assert names == [f"l.{tokens[-1]:020d}.token"]


def test_tokens_increase_where_some_holds_have_a_lease_and_some_have_none(tmp_path: Path) -> None:
    with_lease, without = Lock(tmp_path / "l", lease=60), Lock(tmp_path / "l", fencing=True)
    tokens = []
    for one in (with_lease, without, with_lease, without, without, with_lease):
        with one as hold:
            tokens.append(hold.token or 0)
    assert tokens == sorted(set(tokens))


def test_counting_continues_from_a_counter_that_is_higher_than_the_names(tmp_path: Path) -> None:
    """TK10: both kinds of holds have counted at once, as a late one did not know that it was late."""
    with Lock(tmp_path / "l", lease=60) as hold:
        token = hold.token or 0
    (tmp_path / "l.token").write_bytes(b"%020d\n%020d\n" % (token + 5, token + 4))
    with Lock(tmp_path / "l", lease=60) as hold:
        assert hold.token == token + 6


@pytest.mark.parametrize("name", [f"l.{2**63 - 1:020d}.token", "l.99999999999999999999.token"])
def test_a_counter_by_name_does_not_pass_the_highest_number(tmp_path: Path, name: str) -> None:
    """TK5."""
    (tmp_path / name).touch()
    with pytest.raises(MalformedRecord, match="no next fencing token"):
        Lock(tmp_path / "l", lease=60).acquire()
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("kind", ["directory", "fifo", "link"])
def test_a_path_that_is_no_counter_is_named_in_the_error(tmp_path: Path, kind: str) -> None:
    """TK5."""
    path = tmp_path / "l.token"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    with pytest.raises(InvalidPath, match=re.escape(f"{path}")):
        Lock(tmp_path / "l", lease=60).acquire()
    assert os.listdir(tmp_path) == ["l.token"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_counter_without_content_counts_all_the_same(
    disk: Path, contend: Contend, environments: Callable[..., Stepped], number: int
) -> None:
    """TK10: the disk is full, and the name has the number."""
    env = environments()

    def write(fd: int, data: bytes, offset: int) -> int:
        if data.startswith(b"0"):
            raise OSError(number, os.strerror(number))
        return env.real.write(fd, data, offset)

    env.instead["write"] = write
    tokens = []
    for _ in range(3):
        held = contend(disk / "l", env, lease=60).get()
        tokens.append(held.token or 0)
        held.release()
    assert tokens == [tokens[0], tokens[0] + 1, tokens[0] + 2]
    assert os.listdir(disk) == [f"l.{tokens[-1]:020d}.token"]


def test_a_number_that_exists_is_not_given_out_again(disk: Path, contend: Contend) -> None:
    """TK10: a process with an expired lease has made it, without the lock."""
    first = contend(disk / "l", lease=60).get()
    token = first.token or 0
    first.release()
    (disk / f"l.{token + 1:020d}.token").write_bytes(b"")
    second = contend(disk / "l", lease=60).get()
    assert (second.token or 0) > token + 1


def test_a_semaphore_has_leases_too(tmp_path: Path) -> None:
    with Semaphore(tmp_path / "s", 2, lease=60) as one, Semaphore(tmp_path / "s", 2, lease=60) as other:
        assert {one.slot, other.slot} == {0, 1}
        assert None not in (one.token, other.token)


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidPath, match="does not exist"):
        Lock(tmp_path / "missing" / "l", lease=SHORT).acquire()


# -- leftovers ---------------------------------------------------------------------------------------------------------


def test_an_old_claim_is_cleaned_and_a_young_one_is_not(tmp_path: Path) -> None:
    """LE10."""
    env = environment()
    names = [".holdfast-0123456789abcdef.0.lapsed", ".holdfast-0123456789abcdef.1.lapsed", ".holdfast-0123.0.lapsed"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    os.utime(tmp_path / names[0], (1, 1))
    os.utime(tmp_path / names[2], (1, 1))
    found = [one.path for one in beside(env, str(tmp_path)) if isinstance(one, Leftover)]
    assert found == [str(tmp_path / names[0])]
    for name in names:
        (tmp_path / name).unlink()


@pytest.mark.parametrize(("number", "refused"), [(errno.EACCES, True), (errno.EIO, False)])
def test_a_lapsed_record_that_cannot_be_replaced_stays(
    number: int, refused: bool, disk: Path, contend: Contend, shared: Callable[[], Stepped]
) -> None:
    """LE6: without permission, the refusal says so; nothing is left of the attempt."""
    far_record(disk / "l")
    before = (disk / "l").read_bytes()
    env = shared()
    one = contend(disk / "l", env, lease=SHORT, timeout=SHORT + 5)
    env.instead["replace"] = failing(number)
    if refused:
        refusal = one.run()
        assert isinstance(refusal, Refusal)
        assert "may not replace it" in refusal.status.reason
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            one.run()
    assert (disk / "l").read_bytes() == before
    assert os.listdir(disk) == ["l"]
    (disk / "l").unlink()


def test_one_of_two_observers_replaces_a_lapsed_record(disk: Path, contend: Contend) -> None:
    """LE4, LE5: at each step from the first one's claim to its rename, the second finds the old record and may not
    replace it."""
    far_record(disk / "l", lease=60)
    first, second = (contend(disk / "l", lease=60, timeout=None) for _ in range(2))
    for one in (first, second):  # on machines that do not see each other's kernel locks
        one.env.instead.update(guard=lambda *_, **_more: True, guarded=lambda *_, **_more: False)
    clocks, found = [Clocks(one.env) for one in (first, second)], list[str]()
    before = (disk / "l").read_bytes()

    def observe(_: int, name: str) -> None:
        if is_claimed(disk) and (disk / "l").read_bytes() == before:
            clocks[1].shift += 8
            assert second.step() is not None
            found.append(name)

    first.env.at_step = observe
    first.step()
    while not first.done:
        for one, clock in zip((first, second), clocks, strict=True):
            clock.shift += 5
            one.step()
    assert first.inside
    assert "replace" in found
    second.steps.close()
    assert isinstance(first.result, FileHold)
    first.result.release()


@pytest.mark.parametrize("ends", ["rename", "dies"])
def test_a_lapsed_holder_that_is_broken_meanwhile_is_not_replaced(
    disk: Path, contend: Contend, environments: Callable[..., Stepped], ends: str
) -> None:
    """LE13: its replacer is stopped, or dies, right before its rename; the lock is broken, and acquired anew."""
    far_record(disk / "l", lease=60)
    replacer, newcomer, breaker = contend(disk / "l", lease=60, timeout=None), contend(disk / "l"), environments()
    clocks, entered = Clocks(replacer.env), list[FileHold]()

    def meanwhile() -> None:
        if ends == "dies":
            replacer.crash()
        assert drive(break_lock(breaker, replacer.request)) is not None
        entered.append(newcomer.get())
        if ends == "dies":
            raise Crash

    replacer.env.once(replacer.env.before, "replace", meanwhile)
    with contextlib.suppress(Crash):
        for _ in range(40):
            clocks.shift += 5
            replacer.step()
    assert entered[0].verify()
    assert not replacer.inside
    entered[0].release()
    left = [disk / name for name in os.listdir(disk)]
    assert [is_claim(path.name) for path in left] == [True] * (ends == "dies")
    for path in left:
        path.unlink()


@pytest.mark.parametrize("late", [False, True])
def test_of_a_replacer_and_a_takeover_in_place_one_enters(
    disk: Path, contend: Contend, shared: Callable[[], Stepped], dead_pid: int, late: bool
) -> None:
    """T20, LE13: on the holder's own machine its death is proven; another machine waits for the end of its lease.
    `late`: the takeover has its claim before that, or begins right before the other's rename."""
    here, there = shared(), shared()
    for env in (here, there):  # kernel locks do not work there
        env.instead.update(guard=lambda *_, **_more: None, guarded=lambda *_, **_more: None)
    there.instead["identity"] = lambda *_: FAR.replaced(boot="a-third-boot", pid=os.getpid())
    gone = here.real.identity().replaced(pid=dead_pid)
    marker = marker_text(False, device_in(disk), gone, time.time(), 60, 1)
    (disk / "l").write_bytes(get("sema").compose(gone, time.time(), None, marker, {}))
    replacer = contend(disk / "l", there, lease=60, timeout=None)
    other = contend(disk / "l", here, lease=60)
    clocks = Clocks(there)

    def replace() -> None:
        replacer.step()
        for _ in range(13):
            clocks.shift += 5
            replacer.step()

    def claimed(*_: object) -> None:
        if any(name.endswith(".claim") for name in os.listdir(disk)):
            del here.before["write"]
            replace()

    if late:
        here.before["write"] = claimed
        other.run()
    else:
        there.once(there.before, "replace", other.run)
        replace()
    assert ("replace" in there.steps) is not late
    assert "link" in there.steps
    assert [replacer.inside, other.inside] == [False, True]
    assert isinstance(other.result, FileHold)
    assert other.result.verify()
    other.result.release()


def test_a_number_that_is_free_again_makes_no_second_claim(disk: Path, contend: Contend) -> None:
    """LE14: the first claimant is stopped for a lease, and interrupted when the second one is about to rename."""
    far_record(disk / "l", lease=60)
    contenders = [contend(disk / "l", lease=60, timeout=None) for _ in range(3)]
    for one in contenders:  # on machines that do not see each other's kernel locks
        one.env.instead.update(guard=lambda *_, **_more: True, guarded=lambda *_, **_more: False)
    (first, second, third), clocks = contenders, [Clocks(one.env) for one in contenders]
    claimed: list[list[str]] = []

    def step(number: int) -> None:
        clocks[number].shift += 5
        contenders[number].step()

    def interrupted() -> None:
        claimed.append(sorted(filter(is_claim, os.listdir(disk))))
        (disk / claimed[0][0]).unlink()
        made = third.env.steps.count("link")
        for _ in range(3):
            step(2)
        assert third.env.steps.count("link") > made
        assert "replace" not in third.env.steps

    def stopped() -> None:
        while not second.done:
            step(1)
            if not claimed:
                step(2)
        raise KeyboardInterrupt

    first.env.once(first.env.before, "replace", stopped)
    second.env.once(second.env.before, "replace", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        while not first.done:
            for number in range(3):
                step(number)
    assert second.inside
    assert [len(names) for names in claimed] == [2]
    assert isinstance(second.result, FileHold)
    second.result.release()
    assert not any(filter(is_claim, os.listdir(disk)))


def test_a_replacer_that_may_not_write_to_the_file_has_its_guard_all_the_same(disk: Path, contend: Contend) -> None:
    """T17: otherwise another contender takes it over in place right before the rename."""
    holder = contend(disk / "l", lease=60)
    holder.get()
    holder.crash()
    replacer, other = contend(disk / "l", lease=60, stale=lambda _: True), contend(disk / "l", lease=60)
    real = replacer.env.real.open_existing

    def refused(path: str, *, write: bool) -> int:
        if write and (disk / "l").stat().st_ino == found:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, write=write)  # type: ignore[no-any-return]

    found = (disk / "l").stat().st_ino
    replacer.env.instead["open_existing"] = refused
    replacer.env.once(replacer.env.before, "replace", other.run)
    replacer.run()
    assert [replacer.inside, other.inside].count(True) == 1


def test_an_approved_removal_leaves_a_hold_that_is_being_replaced(
    disk: Path, contend: Contend, environments: Callable[..., Stepped]
) -> None:
    """LE5: otherwise the rename would take the lock from a contender that came after the removal. On two machines, each
    gets the guard (`local_lock`)."""
    far_record(disk / "l", lease=60)
    replacer, newcomer, cleaner = contend(disk / "l", lease=60, timeout=None), contend(disk / "l"), environments()
    cleaner.instead["time"] = lambda *_: time.time() + 7200
    cleaner.instead["guard"] = lambda *_, **__: True
    cleaner.instead["guarded"] = lambda *_: False
    leftover, clocks = Leftover("lock", f"{disk}/l", "sema", "stale"), Clocks(replacer.env)
    results = []

    def clean() -> None:
        results.append(drive(remove(cleaner, leftover, approved=True)).result)  # type: ignore[arg-type]
        newcomer.run()

    replacer.env.once(replacer.env.before, "replace", clean)
    while not replacer.done:
        clocks.shift += 5
        replacer.step()
    assert results == ["changed"]
    assert (replacer.inside, newcomer.inside) == (True, False)


def is_claimed(directory: Path) -> bool:
    return any(is_claim(name) for name in os.listdir(directory))


@pytest.mark.parametrize("again", [0, 1, 2, 3])
@pytest.mark.parametrize("late", [False, True])
def test_an_interrupted_replacement_leaves_no_claim(late: bool, again: int, disk: Path, contend: Contend) -> None:
    """LE6: it would count for a lease, and keep the lock from others as long. `again`: a second interruption that many
    steps later."""
    for number in range(100):
        far_record(disk / "l", lease=60)
        waiter = contend(disk / "l", lease=60, timeout=None)
        clocks, begun = Clocks(waiter.env), list[str]()

        def interrupt(_: int, name: str, begun: list[str] = begun, last: int = number) -> None:
            if begun or name == "link":
                begun.append(name)
                if len(begun) in (last + 1, last + 1 + again):
                    raise KeyboardInterrupt

        setattr(waiter.env, "past_step" if late else "at_step", interrupt)
        operations = waiter.env.real.operations
        operation = operations.begin(waiter.env)
        try:
            while not waiter.done:
                clocks.shift += 5
                waiter.step()
            operations.end(operation)
            break
        except KeyboardInterrupt:
            try:
                operations.abort(operation)
            except KeyboardInterrupt:
                operations.abort(operation)  # as the next operation would
        assert not waiter.env.open_descriptors(), begun
        assert {name for name in os.listdir(disk) if not name.endswith(".token")} <= {"l"}, begun
        for name in os.listdir(disk):
            (disk / name).unlink()
    else:
        pytest.fail("it has more steps than that")
    assert number > 5


@pytest.mark.parametrize(("number", "gone"), [(errno.ESTALE, True), (errno.EIO, False)])
def test_a_record_that_vanishes_while_it_is_read_counts_as_gone(
    number: int, gone: bool, disk: Path, contend: Contend
) -> None:
    """LE3."""
    (disk / "l").write_text("x")
    env = contend(disk / "l").env
    env.instead["read"] = failing(number)
    if gone:
        assert read_fresh(env, str(disk / "l")) is None
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            read_fresh(env, str(disk / "l"))
    assert not env.open_descriptors()
    assert read_fresh(env, str(disk / "l" / "x")) is None
    (disk / "l").unlink()


def test_a_hold_that_was_released_confirms_nothing(disk: Path, contend: Contend, shared: Callable[[], Stepped]) -> None:
    """LE7."""
    held = contend(disk / "l", shared()).get()
    lease = held.lease
    assert lease is not None
    held.release()
    before = held.env.steps.count("open_existing")
    held._confirm(lease)
    assert held.env.steps.count("open_existing") == before
