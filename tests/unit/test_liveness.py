"""Dead or alive: the ladder of evidence, one test for each rung (inspect.py)."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast._platform.values import Presence, Process
from holdfast.engines.file.acquire import look
from holdfast.liveness import Liveness
from holdfast.model import Identity, Status, marker_text
from unit.stepping import Contend, Stepped, device_in, sema_record

ALIVE, DEAD, UNKNOWN = Liveness.ALIVE, Liveness.DEAD, Liveness.UNKNOWN
Judge = Callable[..., tuple[Liveness, str, bool]]


@pytest.fixture
def verdict(disk: Path, contend: Contend) -> Judge:
    """The verdict on a lock file with this content and on this process table."""

    def judge(content: bytes, env: Stepped | None = None, **table: Process) -> tuple[Liveness, str, bool]:
        (disk / "l").write_bytes(content)
        contender = contend(disk / "l", env)
        if "process" in table:
            contender.env.instead["inspect"] = lambda _pid: table["process"]
        status: Status = look(contender.env, contender.request)
        return status.liveness, status.evidence.source, status.evidence.proven

    return judge


def marker(guarded: bool, device: int, who: Identity, **changes: str) -> str:
    parts = {"boot": who.boot, "pid_namespace": who.pid_namespace, "started": who.started, "host": who.host, **changes}
    return marker_text(guarded, device, Identity(who.pid, **parts))


def test_a_holder_that_releases_during_a_look_is_not_called_dead(disk: Path, contend: Contend) -> None:
    """L12: the file that was opened has neither guard nor name any more."""
    holder, other = contend(disk / "l"), contend(disk / "l")
    hold = holder.get()
    other.env.once(other.env.before, "guarded", hold.release)
    status = look(other.env, other.request)
    assert (status.locked, status.stale, status.liveness, status.record) == (False, False, UNKNOWN, None)
    assert "guarded" in other.env.steps


def test_a_holder_known_by_its_process_that_releases_during_a_look_is_not_called_dead(
    disk: Path, contend: Contend
) -> None:
    """L12: its file was there while it lived, and is gone by the time its process is checked."""
    path = disk / "l"
    path.write_bytes(sema_record(7, time.time()))
    contender = contend(path)

    def release(_pid: int) -> Process:
        path.unlink(missing_ok=True)
        return Process(Presence.GONE)

    contender.env.instead["inspect"] = release
    status = look(contender.env, contender.request)
    assert (status.locked, status.liveness, status.record) == (False, UNKNOWN, None)


@pytest.mark.parametrize(
    "content",
    [b"", b"garbage", sema_record(0, 0), sema_record(1, 1, marker="torn"), sema_record(1, 1, marker="1 g b 0 n s h")],
    ids=["empty", "garbage", "pid 0", "torn marker", "another boot"],
)
def test_a_holder_with_its_guard_is_alive(content: bytes, verdict: Judge, disk: Path, contend: Contend) -> None:
    """L1: whatever the record says, even if it is empty."""
    holder = contend(disk / "l")
    holder.get()
    assert verdict(content) == (ALIVE, "guard", True)
    (disk / "l").write_bytes(holder.result.data)  # type: ignore[union-attr]


def test_a_guard_that_is_gone_proves_a_death(disk: Path, contend: Contend) -> None:
    """L2: the holder crashed, on this boot and device; its pid does not matter."""
    holder, other = contend(disk / "l"), contend(disk / "l")
    holder.get()
    holder.crash()
    status = look(other.env, other.request)
    assert (status.liveness, status.evidence.source, status.evidence.proven) == (DEAD, "guard", True)
    assert status.record is not None
    assert status.record.pid == os.getpid(), "a living pid, and yet"


def test_only_a_guard_that_was_there_is_missed(verdict: Judge, disk: Path, contend: Contend) -> None:
    """L2: only if the marker says that the holder took it, on this boot and device."""
    env = contend(disk / "x").env
    who, device = env.identity(), device_in(disk)
    pid = os.getpid()
    assert verdict(sema_record(pid, time.time(), marker=marker(True, device, who)))[0] is DEAD
    for text in (
        marker(True, device + 1, who),  # through another mount, a held guard looks free
        marker(False, device, who),
        None,
    ):
        assert verdict(sema_record(pid, time.time(), marker=text)) == (ALIVE, "process", False)
    rebooted = marker(True, device, who, boot="another-boot")
    assert verdict(sema_record(pid, time.time(), marker=rebooted)) == (DEAD, "boot", False)
    unknown = marker(True, device, who, boot="-", host="h")
    assert verdict(sema_record(pid, time.time(), marker=unknown))[0] is UNKNOWN


def test_an_unknown_boot_is_not_this_one(verdict: Judge, disk: Path, environments: Callable[..., Stepped]) -> None:
    """L2: two unknown values are not equal."""
    env = environments()
    mine = env.identity()
    blind = Identity(mine.pid, "-", "-", mine.started, mine.host)
    env.real._identity = blind
    text = marker(True, device_in(disk), blind)
    assert verdict(sema_record(os.getpid(), time.time(), marker=text), env) == (UNKNOWN, "none", False)


@pytest.fixture
def zombie() -> Iterator[int]:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    yield ended.pid
    ended.wait()


def test_a_foreign_holder_is_judged_by_its_process(verdict: Judge, dead_pid: int, live_pid: int, zombie: int) -> None:
    """L3: a record without a marker has only a pid."""
    now = time.time()
    assert verdict(sema_record(live_pid, now)) == (ALIVE, "process", False)
    assert verdict(sema_record(1, now)) == (ALIVE, "process", False)
    assert verdict(sema_record(dead_pid, now)) == (DEAD, "process", False)
    assert verdict(sema_record(zombie, now)) == (DEAD, "process", False)
    assert verdict(sema_record(live_pid, now - 100)) == (DEAD, "process", False), "started after the record was made"
    assert verdict(sema_record(live_pid, now + 100)) == (ALIVE, "process", False)


def test_a_thread_is_not_taken_for_a_process(verdict: Judge) -> None:
    """L3: kill() accepts the number of a thread, but no process has it."""
    import threading

    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert thread.native_id
        assert verdict(sema_record(thread.native_id, time.time())) == (DEAD, "process", False)
    finally:
        stop.set()
        thread.join()


def test_a_fresh_holder_does_not_look_recycled(verdict: Judge) -> None:
    """L3: timestamps are whole seconds, so a process may start up to a second after its record."""
    running = Presence.RUNNING
    for late, expected in ((-5.0, ALIVE), (0.0, ALIVE), (1.0, ALIVE), (1.1, DEAD)):
        found = Process(running, "t1", 1000.0 + late)
        assert verdict(sema_record(7, 1000), process=found)[0] is expected, late


def test_a_process_table_proves_what_it_says_and_no_more(verdict: Judge, disk: Path, contend: Contend) -> None:
    """L3: with a marker of this boot and PID namespace; proven only for a holder that is known by its process alone."""
    who, device = contend(disk / "x").env.identity(), device_in(disk)
    by_process = sema_record(who.pid, 1, marker=marker(False, device, who))
    by_guard = sema_record(who.pid, 1, marker=marker(True, device + 1, who))
    cases = {
        Process(Presence.GONE): DEAD,
        Process(Presence.ZOMBIE): DEAD,
        Process(Presence.RUNNING, who.started, 1e9): ALIVE,
        Process(Presence.RUNNING, "t1", 1e9): DEAD,
        Process(Presence.RUNNING, "-", 1e9): ALIVE,  # hidden by hidepid: no reason to doubt
        Process(Presence.UNKNOWN): UNKNOWN,
    }
    for found, expected in cases.items():
        assert verdict(by_process, process=found) == (
            expected,
            "none" if expected is UNKNOWN else "process",
            expected is DEAD,
        ), found
        assert verdict(by_guard, process=found)[::2] == (expected, False), found
    unstarted = sema_record(who.pid, 1, marker=marker(False, device, who, started="-"))
    assert verdict(unstarted, process=Process(Presence.RUNNING, "t5", 1e9))[0] is ALIVE


@pytest.mark.parametrize("pid", [0, 2**31, 2**32 - 1])
def test_only_a_pid_reaches_the_kernel(pid: int, verdict: Judge, contend: Contend, disk: Path) -> None:
    """L3: kill(0) and kill(-1) address many processes."""
    env = contend(disk / "x").env
    env.before["inspect"] = lambda number: pytest.fail(f"asked about {number}")
    assert verdict(sema_record(pid, 1), env) == (UNKNOWN, "none", False)


def test_a_reboot_hints_at_a_death_and_does_not_prove_it(verdict: Judge, disk: Path, contend: Contend) -> None:
    """L4: by rule only, as host names repeat; and never between numbers of machines, which outlive a boot."""
    who, device = contend(disk / "x").env.identity(), device_in(disk)

    def written(**changes: str) -> bytes:
        return sema_record(who.pid, 1, marker=marker(True, device, who, **changes))

    assert verdict(written(boot="another-boot")) == (DEAD, "boot", False)
    assert verdict(written(boot="another-boot", pid_namespace="1")) == (DEAD, "boot", False)
    assert verdict(written(boot="machine:abc")) == (UNKNOWN, "none", False)
    assert verdict(written(boot="-")) == (UNKNOWN, "none", False)
    assert verdict(written(boot="another-boot", host="elsewhere")) == (UNKNOWN, "none", False)


def test_an_unknown_holder_is_not_called_dead(verdict: Judge, disk: Path, contend: Contend, dead_pid: int) -> None:
    """L5: another host, another PID namespace, nothing readable, a marker that is torn or newer."""
    who, device = contend(disk / "x").env.identity(), device_in(disk)
    gone = Process(Presence.GONE)
    for content in (
        b"",
        b"garbage",
        b"\xff\xfe",
        sema_record(dead_pid, 1, marker=marker(False, device, who, boot="b", host="elsewhere")),
        sema_record(dead_pid, 1, marker=marker(False, device, who, pid_namespace="1")),
        sema_record(dead_pid, 1, marker=marker(False, device, who, pid_namespace="-")),
        sema_record(dead_pid, 1, marker="2 g something else"),
        sema_record(dead_pid, 1, marker=""),
    ):
        assert verdict(content, process=gone) == (UNKNOWN, "none", False), content


def test_a_prober_is_not_taken_for_a_holder(disk: Path, contend: Contend) -> None:
    """Two processes that look at a dead lock at once must not take each other for its holder: the probe is shared."""
    holder, one, other = (contend(disk / "l") for _ in range(3))
    holder.get()
    holder.crash()
    statuses = []
    probing = one.env.real.guarded

    def probe(fd: int) -> bool | None:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_SH)  # a probe that is under way when the other one comes
        statuses.append(look(other.env, other.request))
        fcntl.flock(fd, fcntl.LOCK_UN)
        answer: bool | None = probing(fd)
        return answer

    one.env.instead["guarded"] = probe
    statuses.append(look(one.env, one.request))
    assert [status.liveness for status in statuses] == [DEAD, DEAD]
