"""Decisions on whether a lock may be taken over, with each possible answer (policy.py)."""

from __future__ import annotations

import fcntl
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Lock
from holdfast._core.attempt import Refusal
from holdfast._platform.values import LockOwner, Presence, Process
from holdfast.engines.file.acquire import look, wait_until_free
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.request import FileRequest
from holdfast.errors import LockStale
from holdfast.liveness import Liveness
from holdfast.model import Holder, Identity, Status, marker_text
from unit.stepping import Contend, Stepped, device_in, sema_record

OLD, FRESH = 1000, 9e9
POLICIES: list[Any] = ["safe", "protocol", "never", lambda _status: True]
policies = pytest.mark.parametrize("stale", POLICIES, ids=["safe", "protocol", "never", "callable"])


@policies
def test_a_holder_with_its_guard_is_not_robbed(stale: object, disk: Path, contend: Contend) -> None:
    """V1: under any policy, however old the record."""
    holder = contend(disk / "l")
    holder.env.instead["time"] = lambda: float(OLD)
    held = holder.get()
    before = held.data
    contender = contend(disk / "l", stale=stale)
    assert not isinstance(contender.run(), FileHold)
    assert (disk / "l").read_bytes() == before
    assert held.verify()
    status = look(contender.env, contender.request)
    assert (status.locked, status.stale) == (True, False)


@policies
@pytest.mark.parametrize("content", [b"", b"pid=1\n", b"\0" * 5000, b"x" * (2 << 20)], ids=len)
def test_a_record_that_cannot_be_read_is_not_reclaimed(
    stale: object, content: bytes, disk: Path, contend: Contend
) -> None:
    """V2: under any policy, at any age."""
    path = disk / "l"
    path.write_bytes(content)
    os.utime(path, (0, 0))
    contender = contend(path, stale=stale)
    assert not isinstance(contender.run(), FileHold)
    assert path.read_bytes() == content
    assert "held" in look(contender.env, contender.request).reason


DATA = {
    "section": b"pid=%d\ntimestamp=1000\n[section]\nkey=value\n",
    "section first": b"[daemon]\npid=%d\ntimestamp=1000\n",
    "comment": b"# written by setup\npid=%d\ntimestamp=1000\n",
    "assignment in a comment": b"pid=%d\ntimestamp=1000\n# port=80\n",
    "prose": b"pid=%d\ntimestamp=1000\nwe settled on x = 3 after all\n",
    "a table": b"pid=%d\ntimestamp=1000\n" + b"".join(b"key%d=1\n" % n for n in range(9)),
    "quoted": b'pid=%d\ntimestamp=1000\n"a"=1\n',
    "a marker that is none": b"pid=%d\ntimestamp=1000\nholdfast=yes\nsome text\n",
}
"""Files of somebody's in which there are lines like those of a record."""


@policies
@pytest.mark.parametrize("protocol", ["sema", "semats"])
@pytest.mark.parametrize("content", DATA.values(), ids=DATA)
def test_a_file_of_data_is_not_reclaimed(
    stale: object, protocol: str, content: bytes, disk: Path, contend: Contend, dead_pid: int
) -> None:
    """V6: under any policy, although its two lines are old and name an ended process."""
    path = disk / "cfg.ini"
    path.write_bytes(content % dead_pid)
    os.utime(path, (0, 0))
    before = path.stat()
    contender = contend(path, protocol=protocol, stale=stale)
    assert not isinstance(contender.run(), FileHold)
    assert path.read_bytes() == content % dead_pid
    assert (path.stat().st_mtime, path.stat().st_ino, path.stat().st_mode) == (
        before.st_mtime,
        before.st_ino,
        before.st_mode,
    )
    status = look(contender.env, contender.request)
    assert status.record is not None
    assert status.record.pid == dead_pid
    assert "held" in status.reason or "may be data" in status.reason


@pytest.mark.parametrize(
    "more",
    [b"", b"\n\n", b"host=build7\nversion=2\n", b"tag=a=b [c] # d\n", b"tag=x\n\0\0\0\n", b"a.b-c_d=\n"],
)
def test_fields_of_a_later_writer_do_not_keep_a_dead_lock(
    more: bytes, disk: Path, contend: Contend, dead_pid: int
) -> None:
    """V6: the specification says that unknown keys are ignored."""
    (disk / "l").write_bytes(b"pid=%d\ntimestamp=1000\n" % dead_pid + more)
    assert isinstance(contend(disk / "l").run(), FileHold)


def test_the_rest_of_an_older_tag_does_not_keep_a_dead_lock(disk: Path, contend: Contend) -> None:
    """V6: a takeover killed between two pages of its write leaves it; the marker says whose file it is."""
    holder = contend(disk / "l")
    holder.get()
    holder.crash()
    with (disk / "l").open("ab") as file:
        file.write(b"the end of a long tag\n")
    assert isinstance(contend(disk / "l").run(), FileHold)


@policies
def test_an_unreadable_file_is_not_reclaimed(stale: object, disk: Path, contend: Contend) -> None:
    """V2: the other user's business."""
    (disk / "l").write_bytes(sema_record(1, OLD))
    contender = contend(disk / "l", stale=stale)

    def refuse(path: str, *, write: bool) -> int:
        raise PermissionError(13, "Permission denied", path)

    contender.env.instead["open_existing"] = refuse
    assert not isinstance(contender.run(), FileHold)
    assert (disk / "l").read_bytes() == sema_record(1, OLD)


def judge(env: Stepped, path: Path, content: bytes, found: Presence, **options: Any) -> Status:
    path.write_bytes(content)
    env.instead["inspect"] = lambda _pid: Process(found)
    return look(env, FileRequest(str(path), options))  # type: ignore[arg-type]


def test_a_guess_is_not_taken_for_a_proof(disk: Path, environments: Callable[..., Stepped]) -> None:
    """V3: a proof of death counts at once, weaker evidence only if the rule holds too; alive or unknown, never."""
    env = environments()
    who = env.identity()
    proof = marker_text(True, device_in(disk), who)
    by_process = marker_text(False, device_in(disk), who)
    elsewhere = marker_text(False, device_in(disk), Identity(who.pid, "b", "1", "t1", "elsewhere"))
    cases = [
        (proof, Presence.RUNNING, FRESH, True),
        (proof, Presence.RUNNING, OLD, True),
        (by_process, Presence.GONE, FRESH, True),
        (by_process, Presence.RUNNING, OLD, False),
        (None, Presence.GONE, FRESH, False),
        (None, Presence.GONE, OLD, True),
        (None, Presence.ZOMBIE, OLD, True),
        (None, Presence.RUNNING, OLD, False),
        (None, Presence.UNKNOWN, OLD, False),
        (elsewhere, Presence.GONE, OLD, False),
        ("torn", Presence.GONE, OLD, False),
    ]
    for marker, found, stamp, taken in cases:
        status = judge(env, disk / "l", sema_record(who.pid, stamp, marker=marker), found)
        assert (status.stale, status.locked) == (taken, not taken), (marker, found, stamp)
        assert status.reason


def test_the_letter_of_a_protocol_is_kept(disk: Path, environments: Callable[..., Stepped]) -> None:
    """V4: `protocol` goes by age alone, and `never` never reclaims."""
    env, now = environments(), int(time.time())
    proof = marker_text(True, device_in(disk), env.identity())
    for marker in (None, proof):
        for found in (Presence.RUNNING, Presence.ZOMBIE, Presence.GONE, Presence.UNKNOWN):
            for age, stale in ((3500, False), (3700, True)):
                record = sema_record(os.getpid(), now - age, marker=marker)
                assert judge(env, disk / "l", record, found, stale="protocol").stale is stale
                assert not judge(env, disk / "l", record, found, stale="never").stale
    record = sema_record(os.getpid(), now - 100)
    assert judge(env, disk / "l", record, Presence.RUNNING, stale="protocol", stale_after=50).stale
    assert not judge(env, disk / "l", record, Presence.RUNNING, stale="protocol", stale_after=float("inf")).stale


def test_a_callers_judgement_counts(disk: Path, environments: Callable[..., Stepped]) -> None:
    """V4: a callable gets the evidence, and its answer decides."""
    env = environments()
    shown: list[Status] = []

    def decide(status: Status) -> bool:
        shown.append(status)
        return answer

    for answer in (True, False):
        status = judge(env, disk / "l", sema_record(7, OLD, "why"), Presence.RUNNING, stale=decide)
        assert status.stale is answer
        assert shown[-1].liveness is Liveness.DEAD or shown[-1].liveness is Liveness.ALIVE
        assert (shown[-1].record.pid, shown[-1].holder.tag) == (7, "why")  # type: ignore[union-attr]


def test_an_answer_that_is_to_be_awaited_takes_over_nothing(disk: Path, contend: Contend, live_pid: int) -> None:
    """V4: it would count as a yes."""
    record = sema_record(live_pid, FRESH)
    (disk / "l").write_bytes(record)

    async def decide(_status: Status) -> bool:
        return False

    answers: list[Any] = []
    with pytest.raises(TypeError, match="stale is an `async def`"):
        contend(disk / "l", stale=decide)
    with pytest.raises(TypeError, match="awaited"):
        contend(disk / "l", stale=lambda status: answers.append(decide(status)) or answers[-1]).run()
    answers.pop().close()
    assert (disk / "l").read_bytes() == record


def test_a_caller_is_asked_again_at_least_once_a_second(disk: Path, contend: Contend, live_pid: int) -> None:
    """V4: changes in what a callable looks at make no event."""
    (disk / "l").write_bytes(sema_record(live_pid, FRESH))
    asked: list[Status] = []
    contender = contend(disk / "l", timeout=None, stale=lambda status: bool(asked.append(status)))
    wait = contender.step()
    assert wait is not None
    assert wait.deadline <= contender.env.monotonic() + 1.0
    contender.step()
    assert len(asked) >= 2


def test_a_failing_judge_leaves_nothing_open(disk: Path, contend: Contend) -> None:
    (disk / "l").write_bytes(sema_record(1, OLD))
    contender = contend(disk / "l", stale=lambda _status: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        contender.run()
    assert not contender.env.open_descriptors()


@pytest.mark.needs("flock")
def test_no_holder_is_looked_for_where_the_kernel_lock_is_free(disk: Path, contend: Contend) -> None:
    """Looking into all processes takes seconds on a machine with many open files."""
    (disk / "l").write_bytes(b"")
    contender = contend(disk / "l")
    env = contender.env
    env.instead["lock_owners"] = lambda *_: [LockOwner(os.getpid(), exclusive=True)]
    assert look(env, contender.request).holder == Holder()
    refusal = contender.run()
    assert isinstance(refusal, Refusal)
    assert refusal.status.holder == Holder()
    assert "lock_owners" not in env.steps
    with open(disk / "l", "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        status = look(env, contender.request)
    assert status.holder is not None
    assert status.holder.pid == os.getpid()


def test_an_error_of_a_judge_says_nothing_about_the_lock_file(disk: Path) -> None:
    """CE1: it is not as if the lock file were gone."""

    def judge(_status: Status) -> bool:
        raise FileNotFoundError(2, "No such file or directory", "/proc/4711/cmdline")

    (disk / "l").write_bytes(sema_record(1, OLD))
    lock = Lock(disk / "l", stale=judge, timeout=0)
    calls: list[Callable[[], object]] = [lock.status, lock.wait, lock.acquire, lock.try_acquire]
    for call in calls:
        with pytest.raises(FileNotFoundError, match="4711"):
            call()


def test_an_error_of_a_payload_says_nothing_about_the_lock_file(disk: Path) -> None:
    """CE1: it is not as if the path were taken."""

    def payload() -> dict[str, object]:
        raise FileExistsError(17, "File exists", "/srv/report")

    with pytest.raises(FileExistsError, match="report"):
        Lock(disk / "l", protocol="sidecar", payload=payload, timeout=0).acquire()
    assert not list(disk.iterdir())


def test_a_timestamp_in_the_future_has_age_zero_and_is_not_stale(
    disk: Path, environments: Callable[..., Stepped]
) -> None:
    for stamp in (2**64 - 1, time.time() + 1e6):
        status = judge(environments(), disk / "l", sema_record(7, stamp), Presence.GONE, stale="protocol")
        assert not status.stale
        assert status.age == 0


@pytest.mark.parametrize("pid", [None, "live", "gone"])
@policies
def test_a_protocol_that_fails_closed_says_stale_at_once(
    stale: object, pid: str | None, disk: Path, contend: Contend
) -> None:
    """V5: the lock is reported as stale, and only a callable that approves may take it over."""
    path = disk / "target.lock"
    payload = "{}" if pid is None else '{"pid": 7}'
    path.write_text(payload)
    os.utime(path, (time.time() - 31, time.time() - 31))
    contender = contend(disk / "target", protocol="sidecar", stale=stale, timeout=None)
    contender.env.instead["inspect"] = lambda _pid: Process(Presence.RUNNING if pid == "live" else Presence.GONE)
    if callable(stale):
        assert contender.get().verify()
    elif stale == "never" or (stale == "safe" and pid == "live"):
        assert contender.step() is not None
        contender.steps.close()
    else:
        with pytest.raises(LockStale, match="stale="):
            contender.run()
        waiting = wait_until_free(contender.env, (contender.request,), None, ())
        with pytest.raises(LockStale):
            next(waiting)
    if not callable(stale):
        assert path.read_text() == payload


@pytest.mark.parametrize("waits", [False, True])
def test_a_lock_that_is_released_during_the_look_is_not_called_stale(
    disk: Path, contend: Contend, *, waits: bool
) -> None:
    """V5, L12: its holder lived as long as its file existed, and was waited for; then both were gone."""
    path = disk / "target.lock"
    path.write_text('{"pid": 7}')
    os.utime(path, (time.time() - 31, time.time() - 31))
    contender = contend(disk / "target", protocol="sidecar", timeout=None)

    def release(_pid: int) -> Process:
        path.unlink(missing_ok=True)
        return Process(Presence.GONE)

    contender.env.instead["inspect"] = release
    if waits:
        assert [*wait_until_free(contender.env, (contender.request,), None, ())] == []
    else:
        assert contender.get().verify()


def test_a_young_lock_is_called_stale_when_its_age_is_reached(disk: Path, contend: Contend) -> None:
    """V5: the wait ends at that age, which makes no event."""
    path = disk / "target.lock"
    path.write_text("{}")
    contender = contend(disk / "target", protocol="sidecar", timeout=None)
    wait = contender.step()
    assert wait is not None
    assert wait.deadline <= contender.env.monotonic() + 30
    now = time.time() + 31
    contender.env.instead["time"] = lambda: now
    with pytest.raises(LockStale) as caught:
        contender.run()
    assert caught.value.path == str(path)
    assert pickle.loads(pickle.dumps(caught.value)).protocol == "sidecar"
