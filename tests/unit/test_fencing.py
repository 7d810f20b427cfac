"""Fencing tokens on files: each is higher than all before it, whatever happens to the holder, the counter or the
disk."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AsyncLock, Lock, Semaphore
from holdfast._admin.clean import leftovers
from holdfast._admin.scan import Survey
from holdfast._core.attempt import Refusal
from holdfast._platform import environment
from holdfast.engines.file import fencing
from holdfast.engines.file.fencing import is_counter
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.request import FileRequest
from holdfast.engines.file.takeover import NO_LOCKS, make_claim
from unit.elsewhere import NOBODY, elsewhere, needs_root
from unit.stepping import Clock, Contend, Crash, Stepped, by_turns, sema_record

PROTOCOLS = ("sema", "semats", "sidecar", "beads", "flock")


def require_kernel_locks(protocol: str) -> None:
    if protocol == "flock" and ("HOLDFAST_OS" in os.environ or "flock" in os.environ.get("HOLDFAST_WITHOUT", "")):
        pytest.skip("kernel locks are switched off (HOLDFAST_OS, HOLDFAST_WITHOUT), and there are no others here")


def counter_of(lock: Lock) -> Path:
    return Path(lock._request.path + ".token")


def written(low: int, high: int) -> bytes:
    return b"%020d\n%020d\n" % (low, high)


def take(lock: Lock) -> int:
    with lock as hold:
        assert hold.token is not None
        return hold.token


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_token_is_above_the_one_before(disk: Path, protocol: str) -> None:
    require_kernel_locks(protocol)
    lock = Lock(disk / "l" if protocol != "beads" else disk, protocol=protocol, fencing=True)
    tokens = [take(lock) for _ in range(5)]
    assert tokens == list(range(tokens[0], tokens[0] + 5))
    assert is_counter(counter_of(lock).read_bytes())


def test_a_hold_without_the_option_has_neither_token_nor_counter(disk: Path) -> None:
    with Lock(disk / "l") as hold:
        assert hold.token is None
        assert os.listdir(disk) == ["l"]


def test_shared_holds_get_no_tokens(disk: Path) -> None:
    with pytest.raises(ValueError, match="no fencing token"):
        Lock(disk / "l", protocol="flock", shared=True, fencing=True)


def test_each_slot_has_its_own_counter(disk: Path) -> None:
    """The holder of another slot is no successor: a token for all slots would fence off the other holders."""
    semaphore = Semaphore(disk / "s", 2, fencing=True)
    with semaphore as first, semaphore as second:
        assert {first.slot, second.slot} == {0, 1}
        assert (disk / "s.0.lock.token").read_bytes() != b""
        assert (disk / "s.1.lock.token").read_bytes() != b""
    with semaphore as again:
        assert again.token == (first.token or 0) + 1


def test_shares_of_one_hold_have_one_token(disk: Path) -> None:
    lock = Lock(disk / "l", owner="me", fencing=True)
    with lock as outer, lock as inner:
        assert outer.token == inner.token is not None


@pytest.mark.parametrize("protocol", ["sema", "flock"])
def test_a_hold_without_a_token_gets_one_when_a_fenced_handle_joins(disk: Path, protocol: str) -> None:
    require_kernel_locks(protocol)
    fenced = Lock(disk / "l", protocol=protocol, owner="me", fencing=True)
    before = take(fenced)
    with Lock(disk / "l", protocol=protocol, owner="me") as outer:
        assert outer.token is None
        with fenced as inner, fenced as again:
            assert inner.token == again.token == outer.token == before + 1
    assert take(fenced) == before + 2


@pytest.mark.needs("flock")
def test_handles_that_count_for_one_hold_at_once_share_one_token(disk: Path, contend: Contend) -> None:
    """TK11: with two, the resource would refuse the handle with the lower token."""
    held = contend(disk / "l", owner="me")
    env, hold = held.env, held.get()
    one, other = (contend(disk / "l", env, owner="me", fencing=True) for _ in range(2))
    env.once(env.after, "unguard", other.run)  # the first has counted, but not announced its number
    assert one.get() is other.result is hold
    low, high = sorted(map(int, (disk / "l.token").read_text().split()))
    assert (hold.token, high) == (high, low + 1)
    assert len(hold.refs) == 3


@pytest.mark.needs("flock")
@pytest.mark.parametrize("protocol", ["sema", "flock"])
def test_a_waiter_promptly_joins_its_owners_hold_once_the_token_is_counted(
    disk: Path, contend: Contend, clocked: Callable[..., Stepped], protocol: str
) -> None:
    """The lock file does not change at that moment, so no event would wake it."""
    options: Any = {"protocol": protocol, "owner": "me", "fencing": True, "timeout": 60}
    first = contend(disk / "l", clocked(), **options)
    first.get().release()
    counter = os.open(disk / "l.token", os.O_RDONLY)
    fcntl.flock(counter, fcntl.LOCK_EX)
    first = contend(disk / "l", first.env, **options)
    assert first.step() is not None
    second = contend(disk / "l", first.env, **options)
    for _ in range(10):
        wait = second.step()
        assert wait is not None
        assert not wait.fds, "it looks again and again"
        assert wait.deadline - first.env.monotonic() < 0.1
    os.close(counter)
    assert first.get() is second.get()


@pytest.mark.needs("flock")
def test_a_hold_that_is_lost_while_a_handle_counts_for_it_is_not_joined(disk: Path, contend: Contend) -> None:
    heard: list[holdfast.LockLost] = []
    robbed = contend(disk / "l", owner="me", on_lost=heard.append)
    env, hold = robbed.env, robbed.get()
    joining = contend(disk / "l", env, owner="me", fencing=True, timeout=60)
    env.once(env.after, "unguard", (disk / "l").unlink)
    another = joining.get()
    assert another is not hold
    assert another.token is not None
    assert (hold.token, hold.lost, len(heard), len(hold.refs)) == (None, True, 1, 1)


def test_a_handle_whose_token_cannot_be_counted_does_not_join(disk: Path) -> None:
    fenced = Lock(disk / "l", owner="me", fencing=True, timeout=0)
    with Lock(disk / "l", owner="me") as outer:
        counter_of(fenced).mkdir()
        with pytest.raises(holdfast.InvalidPath, match="not a regular file"):
            fenced.acquire()
        assert outer._held.refs == [outer._ref]
        assert not outer.lost
    assert not (disk / "l").exists()


def test_a_task_gets_a_token(disk: Path) -> None:
    async def main() -> None:
        lock = AsyncLock(disk / "l", fencing=True)
        assert lock._engine.may_block(lock._env, lock._request)  # it syncs
        async with lock as first:
            pass
        async with lock as second:
            assert first.token is not None
            assert second.token == first.token + 1

    asyncio.run(main())


def test_a_takeover_goes_on_with_a_higher_token(disk: Path, dead_pid: int) -> None:
    lock = Lock(disk / "l", fencing=True)
    before = take(lock)
    (disk / "l").write_bytes(sema_record(dead_pid, 1000))
    with lock as hold:
        assert hold.recovered_from is not None
        assert hold.token == before + 1


# -- states of the counter ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, b"", b"\0" * 42, b"\0" * 7])
def test_a_vanished_counter_begins_above_all_tokens_given(disk: Path, content: bytes | None) -> None:
    """TK4."""
    lock = Lock(disk / "l", fencing=True)
    before = take(lock)
    counter_of(lock).unlink()
    if content is not None:
        counter_of(lock).write_bytes(content)
    now = time.time()
    token = take(lock)
    assert token > before
    assert now <= token / 1e6 <= time.time()


@pytest.mark.parametrize("content", [b"7", b"7\n", b"999999999999999999\n"])
def test_counting_continues_from_a_number_written_by_hand(disk: Path, content: bytes) -> None:
    lock = Lock(disk / "l", fencing=True)
    counter_of(lock).write_bytes(content)
    assert take(lock) == int(content) + 1
    assert take(lock) == int(content) + 2


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        b"-1\n",
        b"1.5\n",
        b"0\n",
        b" 7\n",
        b"7\r\n",
        "٣\n".encode(),
        b"1\n2\n3\n",
        written(41, 42)[:-1],
        written(41, 42)[:30],
        written(41, 42)[:21],
        written(41, 42)[:20],
        written(41, 42) + b"\n",
        b"x" * 10_000,
        b"\0" * 43,
        b"\0" * 100 + b"data",
        b"9" * 19,
        b"pid=1\ntimestamp=1\n",
        b"0" * 20 + b"\n" + b"9" * 20 + b"\n",
    ],
)
@pytest.mark.parametrize("protocol", ["sema", "flock"])
def test_a_counter_that_cannot_be_read_is_not_guessed(disk: Path, content: bytes, protocol: str) -> None:
    """TK5."""
    require_kernel_locks(protocol)
    lock = Lock(disk / "l", fencing=True, protocol=protocol)
    counter_of(lock).write_bytes(content)
    with pytest.raises(holdfast.MalformedRecord, match=r"not a counter of fencing tokens.*l is not held"):
        lock.acquire()
    assert counter_of(lock).read_bytes() == content
    assert not Lock(disk / "l", protocol=protocol).status().locked
    counter_of(lock).write_bytes(b"5000\n")  # as the message says
    assert take(lock) == 5001


def test_a_counter_does_not_pass_the_highest_number(disk: Path) -> None:
    """TK5."""
    lock = Lock(disk / "l", fencing=True)
    counter_of(lock).write_bytes(written(2**63 - 2, 5))
    assert take(lock) == 2**63 - 1
    with pytest.raises(holdfast.MalformedRecord):
        lock.acquire()


@pytest.mark.parametrize("kind", ["directory", "fifo", "link", "dangling", "device"])
def test_an_object_in_place_of_the_counter_is_refused(disk: Path, kind: str) -> None:
    """TK5."""
    lock = Lock(disk / "l", fencing=True)
    path, other = counter_of(lock), disk / "other"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/null")
    else:
        if kind == "link":
            other.write_bytes(written(1, 2))
        path.symlink_to(other)
    with pytest.raises(holdfast.InvalidPath, match="not held"):
        lock.acquire()
    assert other.exists() == (kind == "link")
    assert kind != "link" or other.read_bytes() == written(1, 2)
    assert not lock.status().locked


def test_without_the_right_to_write_the_counter_there_is_no_hold(disk: Path, contend: Contend) -> None:
    """TK5."""
    contender = contend(disk / "l", fencing=True)
    (disk / "l.token").write_bytes(written(1, 2))

    def refuse(path: str, *, write: bool) -> int:
        if path.endswith(".token"):
            raise PermissionError(13, "Permission denied", path)
        return int(contender.env.real.open_existing(path, write=write))

    contender.env.instead["open_existing"] = refuse
    with pytest.raises(PermissionError, match=r"permission to read and write its counter.*l\.token"):
        contender.run()
    assert not (disk / "l").exists()


# -- crashes and races -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o027, 0o777], ids=oct)
def test_a_new_counter_can_be_opened_again_by_its_owner_whatever_the_umask(disk: Path, umask: int) -> None:
    lock = Lock(disk / "l", fencing=True, mode=0o660)
    before = os.umask(umask)
    try:
        take(lock)
    finally:
        os.umask(before)
    assert stat.S_IMODE(counter_of(lock).stat().st_mode) == 0o600 | 0o660 & ~umask


def test_a_token_is_on_the_disk_before_it_is_seen(disk: Path, contend: Contend) -> None:
    """TK2: the first two times, the directory is synchronised as well."""
    for expected in (["sync", "sync_directory"], ["sync", "sync_directory"], ["sync"], ["sync"]):
        contender = contend(disk / "l", fencing=True)
        held = contender.get()
        steps = contender.env.steps
        last_write = len(steps) - 1 - steps[::-1].index("write")
        assert [step for step in steps[last_write:] if step.startswith("sync")] == expected
        held.release()


@pytest.mark.parametrize("last", [written(41, 42), written(42, 41), written(999, 998), written(0, 1000), b"7\n"])
def test_a_torn_write_leads_to_a_higher_token(disk: Path, contend: Contend, last: bytes) -> None:
    """TK3: whichever bytes of the write reached the disk."""
    path = disk / "l.token"
    path.write_bytes(last)
    highest = max(map(int, last.split()))
    assert contend(disk / "l", fencing=True).get().token == highest + 1
    new = path.read_bytes()
    changed = [at for at in range(min(len(last), len(new))) if last[at] != new[at]]
    if len(last) != len(new):
        return
    assert len(changed) <= 20
    (disk / "l").unlink()
    for mask in range(2 ** len(changed)) if len(changed) <= 6 else range(64):
        torn = bytearray(last)
        for number, at in enumerate(changed):
            if mask >> number & 1:
                torn[at] = new[at]
        path.write_bytes(torn)
        held = contend(disk / "l", fencing=True).get()
        assert held.token is not None
        assert held.token > highest
        held.release()


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("without", [(), ("flock",), ("unnamed", "link")])
def test_a_crash_at_any_step_leaves_the_next_token_higher(
    disk: Path, contend: Contend, environments: Callable[..., Stepped], first: bool, without: tuple[str, ...]
) -> None:
    """TK1, TK3: killed before any step of an acquisition; the next token is above all that were given."""
    path, given = disk / "l", 0
    if not first:
        (disk / "l.token").write_bytes(written(8, 9))
        given = 9
    for number in range(200):
        env = environments(*without)

        def die(at: int, _name: str, env: Stepped = env, number: int = number) -> None:
            if at == number:
                env.crash()
                raise Crash

        env.at_step = die
        victim = contend(path, env, fencing=True)
        try:
            held = victim.get()
        except Crash:
            pass
        else:
            assert held.token is not None
            assert held.token > given
            env.at_step = None
            held.release()
            break
        if without == ("flock",):
            path.unlink(missing_ok=True)  # the record of this process, which lives
        for left in disk.glob(".holdfast-*.tmp"):
            left.unlink()  # named after this process, too
        after = contend(path, environments(*without), fencing=True)
        held = after.get()
        assert held.token is not None
        assert held.token > given
        given = held.token
        held.release()
        if first:
            (disk / "l.token").unlink()
    else:
        pytest.fail("it has more steps than that")
    assert number > 8


def test_a_robbed_contender_and_its_successor_count_one_after_the_other(disk: Path, contend: Contend) -> None:
    """TK1, TK6: its lock is broken as it reads the counter; the successor waits, and the robbed contender gets
    nothing."""
    robbed, successor = contend(disk / "l", fencing=True), contend(disk / "l", fencing=True)
    got: list[object] = []

    def rob() -> None:
        (disk / "l").unlink()
        wait = successor.step()
        assert wait is not None, "it has counted, though somebody else is at it"
        got.append(wait)

    def read(fd: int, size: int) -> bytes:
        data = bytes(robbed.env.real.read(fd, size))
        if is_counter(data):
            robbed.env.instead.pop("read")
            rob()
        return data

    (disk / "l.token").write_bytes(written(3, 4))
    robbed.env.instead["read"] = read
    assert robbed.step() is None or got
    assert not isinstance(robbed.result, FileHold)
    held = successor.get()
    assert held.token == 6  # 5 was counted by the other, and never given
    held.release()


def test_a_counter_without_a_name_is_not_counted_with(disk: Path, contend: Contend) -> None:
    """TK1: it is removed between the opening and the guard."""
    contender = contend(disk / "l", fencing=True, timeout=60)
    (disk / "l.token").write_bytes(written(3, 4))

    def vanish(fd: int, **_options: object) -> None:
        if os.path.samestat(os.fstat(fd), os.stat(disk / "l.token")):
            contender.env.before.pop("guard")
            (disk / "l.token").unlink()
            (disk / "l.token").write_bytes(written(30, 40))

    contender.env.before["guard"] = vanish
    assert contender.get().token == 41


@pytest.mark.needs("flock")
@pytest.mark.parametrize("kind", [fcntl.LOCK_SH, fcntl.LOCK_EX])
@pytest.mark.parametrize("timeout", [None, 0, 1])
@pytest.mark.parametrize("without", [(), ("unnamed",)])
def test_a_reader_of_the_counter_does_not_keep_others_from_counting(
    disk: Path,
    contend: Contend,
    environments: Callable[..., Stepped],
    kind: int,
    timeout: float | None,
    without: tuple[str, ...],
) -> None:
    """TK7: after a moment the counter is replaced, with its mode and above all tokens given."""
    path = disk / "l.token"
    path.write_bytes(written(3, 4))
    path.chmod(0o640)
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, kind)
    try:
        started = time.monotonic()
        held = contend(disk / "l", environments(*without), fencing=True, timeout=timeout).get()
        assert time.monotonic() - started < 5, "TK8 would have it wait for ten"
        assert held.token == 5
        assert os.fstat(fd).st_nlink == 0
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        held.release()
        assert contend(disk / "l", fencing=True).get().token == 6
        assert sorted(os.listdir(disk)) == ["l", "l.token"]
    finally:
        os.close(fd)


@pytest.mark.needs("flock")
def test_a_single_try_that_stands_still_beside_a_reader_of_the_counter_gets_its_number(
    disk: Path, contend: Contend, clock: Clock, clocked: Callable[..., Stepped]
) -> None:
    """TK8: it tries to replace the counter before it gives up."""
    path = disk / "l.token"
    path.write_bytes(written(3, 4))
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    contender = contend(disk / "l", clocked(), fencing=True)

    def stand_still() -> None:
        clock.now += 5.0

    contender.env.after["guard"] = lambda _fd, **_: contender.env.once(contender.env.after, "close", stand_still)
    assert contender.get().token == 5
    os.close(fd)


@pytest.mark.needs("flock")
def test_an_interruption_after_a_counter_was_made_anew_leaves_nothing(
    disk: Path, environments: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """J2, TK7: before its descriptor is registered, and also where the clean-up is interrupted."""
    path = disk / "l.token"
    path.write_bytes(written(3, 4))
    env = environments("unnamed")
    make = env.open_new

    def interrupted(name: str, mode: int) -> int:
        fd = make(name, mode)
        if ".token" not in name and not name.endswith("/l"):
            raise KeyboardInterrupt
        return fd

    operation = env.operations.begin(env)
    request = FileRequest(disk / "l", {"fencing": True})
    monkeypatch.setattr(env, "open_new", interrupted)
    old = os.open(path, os.O_RDWR)
    with pytest.raises(KeyboardInterrupt):
        fencing._replace_claimed(env, request, str(path), old)
    os.close(old)
    env.operations.abort(operation)
    assert os.listdir(disk) == ["l.token"]
    assert not env.open_descriptors()


@pytest.mark.needs("flock")
def test_a_stopped_robbed_contender_neither_lowers_the_counter_nor_blocks_it(disk: Path, contend: Contend) -> None:
    """TK1, TK7: stopped with the guard before it writes; later it writes to a file without a name."""
    (disk / "l.token").write_bytes(written(3, 4))
    robbed = contend(disk / "l", fencing=True)
    tokens: list[int | None] = []

    def others(fd: int, data: bytes, offset: int) -> None:
        if is_counter(os.pread(fd, 100, 0)):
            del robbed.env.before["write"]
            for _ in range(3):
                (disk / "l").unlink()
                held = contend(disk / "l", fencing=True, timeout=5).get()
                tokens.append(held.token)

    robbed.env.before["write"] = others
    assert not isinstance(robbed.run(), FileHold)
    (disk / "l").unlink()
    last = contend(disk / "l", fencing=True).get().token
    assert tokens == [5, 6, 7]
    assert last in (8, 9), "the robbed one may have counted once more before it noticed"


@pytest.mark.needs("flock")
def test_a_number_counted_while_the_counter_was_made_anew_is_given_once(disk: Path, contend: Contend) -> None:
    """TK7: the old file is read again after its name is gone, for numbers written until then."""
    path = disk / "l.token"
    path.write_bytes(written(3, 4))
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    contender = contend(disk / "l", fencing=True)

    def count_on(gone: str) -> None:
        if gone == str(path):
            os.pwrite(fd, written(8, 9), 0)

    contender.env.before["unlink"] = count_on
    try:
        assert contender.get().token == 10
    finally:
        os.close(fd)


@pytest.mark.needs("flock")
@pytest.mark.parametrize("how", ["a new one was made", "another one is at it"])
def test_one_of_two_makes_the_counter_anew(
    how: str, disk: Path, contend: Contend, environments: Callable[..., Stepped]
) -> None:
    """TK7: the name must be free, and the claim lets one of them pass."""
    path = disk / "l.token"
    path.write_bytes(written(3, 4))
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    first, second = contend(disk / "l", fencing=True, timeout=5), environments()

    def meanwhile(gone: str) -> None:
        if gone == str(path):
            del first.env.after["unlink"]
            if how.startswith("a new"):
                path.write_bytes(written(50, 60))
            else:
                assert make_claim(second, str(path), (0, zlib.crc32(b"l")), NO_LOCKS) is None  # type: ignore[arg-type]

    first.env.after["unlink"] = meanwhile
    try:
        assert first.get().token == (61 if how.startswith("a new") else 5)
    finally:
        os.close(fd)
    assert not list(disk.glob("*.claim"))


@needs_root
@pytest.mark.needs("flock", "linux")
@pytest.mark.parametrize("timeout", [0, 0.3])
def test_a_counter_that_may_not_be_made_anew_is_refused_in_time(disk: Path, timeout: float) -> None:
    """TK8: another user's counter in a sticky directory; the refusal names the process in the way."""
    path = disk / "l.token"
    path.write_bytes(written(3, 4))
    path.chmod(0o666)
    disk.chmod(0o1777)
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)

    def try_it() -> tuple[str, float, bool]:
        lock, started = Lock(disk / "l", fencing=True), time.monotonic()
        try:
            lock.acquire(timeout=timeout)
        except holdfast.AcquireTimeout as error:
            return str(error), time.monotonic() - started, lock.try_acquire() is None
        return "acquired", 0.0, False

    try:
        said, waited, refused = elsewhere(try_it, user=NOBODY)
    finally:
        os.close(fd)
    assert "the counter of its fencing tokens" in said
    assert "locked by another holder: process" in said
    assert "fuser" in said
    assert waited < timeout + 5, "a caller without a timeout waits for ten"
    assert refused
    assert not (disk / "l").exists()


def test_a_cancelled_acquisition_releases_the_lock(
    disk: Path, contend: Contend, environments: Callable[..., Stepped]
) -> None:
    """TK5: closed while it waits for the counter."""
    (disk / "l.token").write_bytes(written(3, 4))
    env = environments()
    fd = env.open_existing(str(disk / "l.token"), write=True)
    try:
        env.guard(fd)
        contender = contend(disk / "l", fencing=True)
        contender.env.stop_clocks()
        assert contender.step() is not None
        assert (disk / "l").exists()
        contender.steps.close()
        assert not (disk / "l").exists()
    finally:
        env.close(fd)


# -- for people at work ------------------------------------------------------------------------------------------------


def test_a_counter_is_neither_a_lock_nor_a_leftover(disk: Path) -> None:
    """E2: even while another process has its guard."""
    env = environment()
    take(Lock(disk / "l.lock", fencing=True))
    fd = env.open_existing(str(disk / "l.lock.token"), write=True)
    try:
        for _ in range(2):
            assert not list(Survey(env).directory(str(disk)))
            assert not list(leftovers(env, Survey(env), str(disk), approved=True))
            env.guard(fd)
    finally:
        env.close(fd)


def test_a_counter_with_another_name_is_read_and_replaced(disk: Path, contend: Contend) -> None:
    """TK9: it may be a foreign file that was linked here; it is read, and a new file gets the name."""
    elsewhere = disk / "elsewhere"
    elsewhere.write_bytes(written(3, 4))
    os.link(elsewhere, disk / "l.token")
    held = contend(disk / "l", fencing=True, timeout=5).get()
    assert held.token == 5
    assert elsewhere.read_bytes() == written(3, 4)
    assert (disk / "l.token").stat().st_nlink == 1
    held.release()


@pytest.mark.needs("link", "flock")
@pytest.mark.parametrize("how", ["while it is guarded", "by turns"])
def test_a_counter_that_is_given_another_name_meanwhile_is_not_written_to(
    how: str, disk: Path, contend: Contend
) -> None:
    """TK9."""
    contender, counter, elsewhere = contend(disk / "l", fencing=True, timeout=5), disk / "l.token", disk / "elsewhere"
    counter.write_bytes(written(3, 4))

    def link(fd: int, **_options: object) -> None:
        if os.path.samestat(os.fstat(fd), counter.stat()) and not elsewhere.exists():
            os.link(counter, elsewhere)

    if how == "by turns":
        os.link(counter, elsewhere)
        by_turns(contender.env, counter, elsewhere)
    else:
        contender.env.before["guard"] = link
    held = contender.get()
    assert held.token == 5
    assert elsewhere.read_bytes() == written(3, 4)
    held.release()


@needs_root
@pytest.mark.needs("flock", "linux")
@pytest.mark.parametrize("gives", [True, False])
def test_root_makes_anothers_counter_anew_for_its_owner(
    gives: bool, disk: Path, contend: Contend, environments: Callable[..., Stepped]
) -> None:
    """TK7: no other user may write to it, and its owner is to go on counting. Not where the owner has no id here (a
    user namespace)."""

    def refuse(*_arguments: object, **_more: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    env = environments()
    if not gives:
        env.instead["give"] = refuse
    path = disk / "l.token"
    path.write_bytes(written(3, 4))
    path.chmod(0o644)
    os.chown(path, NOBODY, NOBODY)
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    try:
        contender = contend(disk / "l", env, fencing=True, timeout=5 if gives else 0.1)
        if not gives:
            assert isinstance(contender.run(), Refusal)
            return
        held = contender.get()
        assert held.token == 5
        assert os.fstat(fd).st_nlink == 0
        found = path.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (NOBODY, NOBODY, 0o644)
        held.release()
    finally:
        os.close(fd)
