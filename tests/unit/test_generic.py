"""The portable environment: claims in place of guards, pids in place of proofs (portable.py)."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast._drivers.sync import drive
from holdfast._platform import portable as portable_system
from holdfast._platform.portable import GenericEnvironment
from holdfast._platform.values import Presence, Process
from holdfast.engines.file.acquire import look
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.remove import break_lock
from holdfast.liveness import Liveness
from holdfast.model import Identity, marker_text
from unit.stepping import Contend, Contender, Crash, Stepped, device_in, failing, sema_record

Environments = Callable[..., Stepped]
Gates = Callable[[Stepped, Callable[[], object]], None]


@pytest.fixture
def portable(contend: Contend, environments: Environments) -> Contend:
    def make(path: object, *without: str, pid: int | None = None, **options: object) -> Contender:
        return contend(path, environments(*without, kind="generic", pid=pid), **options)

    return make


@pytest.fixture
def dead(disk: Path, portable: Contend, dead_pid: int) -> Path:
    """The lock of an ended process: it is known by its process alone, which proves the death."""
    who = portable(disk / "x").env.identity()
    gone = Identity(dead_pid, who.boot, who.pid_namespace, "-", who.host)
    text = marker_text(False, device_in(disk), gone)
    (disk / "l").write_bytes(sema_record(dead_pid, time.time(), marker=text))
    return disk / "l"


def claims(place: Path) -> list[str]:
    return sorted(name for name in os.listdir(place) if name.endswith(".claim"))


@pytest.mark.parametrize("without", [(), ("link",)])
def test_one_of_two_contenders_claims_a_record(
    without: tuple[str, ...], dead: Path, portable: Contend, past_the_gates: Gates
) -> None:
    """T11: each record has one winner; the loser sees a living claimant and goes back to waiting."""
    first, second = portable(dead, *without), portable(dead, *without)
    losers = []
    past_the_gates(first.env, lambda: losers.append(second.run()))
    assert first.get().recovered_from is not None
    assert not isinstance(losers[0], FileHold)
    assert claims(dead.parent) == []


def test_one_of_two_contenders_claims_a_record_by_two_names(
    dead: Path, portable: Contend, past_the_gates: Gates
) -> None:
    """T11: a claim is about the file, whatever the path of its directory."""
    alias = dead.parent / "alias"
    alias.symlink_to(dead.parent)
    first, second = portable(dead), portable(alias / "l")
    losers = []
    past_the_gates(first.env, lambda: losers.append(second.run()))
    first.get()
    assert not isinstance(losers[0], FileHold)


def test_a_claim_on_one_lock_does_not_block_another(dead: Path, portable: Contend, past_the_gates: Gates) -> None:
    """T11: two files of one directory have the same record, and both are claimed."""
    twin = dead.with_name("twin")
    twin.write_bytes(dead.read_bytes())
    first, second = portable(dead), portable(twin)
    past_the_gates(first.env, second.get)
    first.get()
    assert second.inside


def test_a_living_claimant_is_waited_for_and_a_dead_one_succeeded(
    dead: Path, portable: Contend, dead_pid: int, live_pid: int, past_the_gates: Gates
) -> None:
    """T12: one contender succeeds a dead claimant."""
    crashed = portable(dead, pid=dead_pid)
    past_the_gates(crashed.env, crashed.crash)
    with pytest.raises(Crash):
        crashed.run()
    assert len(claims(dead.parent)) == 1
    first, second = portable(dead), portable(dead)
    losers = []
    past_the_gates(first.env, lambda: losers.append(second.run()))
    held = first.get()
    assert not isinstance(losers[0], FileHold)
    assert claims(dead.parent) == []
    held.release()

    stalled = portable(dead, pid=live_pid)
    dead.write_bytes(sema_record(2**22 + 5, 1000))
    past_the_gates(stalled.env, stalled.crash)
    with pytest.raises(Crash):
        stalled.run()
    assert not isinstance(portable(dead).run(), FileHold)
    for name in claims(dead.parent):
        (dead.parent / name).unlink()


def test_a_late_claimant_leaves_the_new_record(dead: Path, portable: Contend) -> None:
    """T2: it reads the record again, and finds that it has changed."""
    late, faster = portable(dead), portable(dead)
    opened: list[bool] = []

    def overtaken(_path: str, *, write: bool) -> None:
        if write and not opened:
            opened.append(write)
            faster.get()

    late.env.before["open_existing"] = overtaken
    assert not isinstance(late.run(), FileHold)
    assert faster.inside
    assert isinstance(faster.result, FileHold)
    assert faster.result.verify()
    assert claims(dead.parent) == []


def test_a_failed_replacement_leaves_no_claim(
    dead: Path, portable: Contend, dead_pid: int, past_the_gates: Gates
) -> None:
    """T16: our claim goes, as that of the dead claimant before us has."""
    crashed = portable(dead, pid=dead_pid)
    past_the_gates(crashed.env, crashed.crash)
    with pytest.raises(Crash):
        crashed.run()
    contender = portable(dead)

    def fail(_fd: int, _data: bytes, _offset: int) -> int:
        raise OSError(28, "No space left on device")

    past_the_gates(contender.env, lambda: contender.env.instead.update(write=fail))
    with pytest.raises(OSError, match="No space left"):
        contender.run()
    assert claims(dead.parent) == []
    contender.env.instead.clear()
    assert portable(dead).get().recovered_from is not None
    assert claims(dead.parent) == []


@pytest.mark.parametrize("without", [(), ("link",)], ids=["link", "exclusive"])
def test_portable_locks_exclude_each_other(without: tuple[str, ...], disk: Path, portable: Contend) -> None:
    first, second = portable(disk / "l", *without), portable(disk / "l", *without, timeout=0.05)
    held = first.get()
    assert not held.guarded
    assert not isinstance(second.run(), FileHold)
    status = look(second.env, second.request)
    assert (status.liveness, status.evidence.source) == (Liveness.ALIVE, "process")
    held.release()
    assert os.listdir(disk) == []
    assert second.env.open_descriptors() == set()


def test_a_portable_holder_and_one_with_a_guard_exclude_each_other(
    disk: Path, portable: Contend, contend: Contend
) -> None:
    held = portable(disk / "l").get()
    assert not isinstance(contend(disk / "l").run(), FileHold)
    held.release()
    guarded = contend(disk / "l").get()
    assert not isinstance(portable(disk / "l").run(), FileHold)
    guarded.release()


def test_a_portable_wait_polls(disk: Path, portable: Contend) -> None:
    holder, waiter = portable(disk / "l"), portable(disk / "l", timeout=None)
    held = holder.get()
    for _ in range(15):
        wait = waiter.step()
        assert wait is not None
        assert wait.fds == ()
        assert wait.deadline <= waiter.env.monotonic() + 0.025
    held.release()
    assert waiter.step() is None
    assert waiter.inside


@pytest.mark.parametrize("pid", [1, 2**31 - 1])
def test_process_1_is_running_and_an_unused_pid_is_not(pid: int, environments: Environments) -> None:
    for kind in ("linux", "generic"):
        presence = environments(kind=kind).inspect(pid).presence
        assert (presence == "running") is (pid == 1)


@pytest.mark.parametrize("pid", [2**31, 10**20])
def test_a_number_that_no_process_can_have_is_no_error(pid: int, environments: Environments) -> None:
    """Others choose it: it may be in a name or in a record, or a client of a server may have sent it."""
    assert environments(kind="linux").inspect(pid) == Process(Presence.RUNNING)
    for kind in ("linux", "posix", "generic"):
        env = environments(kind=kind)
        assert not env.inspect(pid).stopped
        assert env.watch_process(pid) is None
        assert env.command(pid) is None


def test_without_psutil_dead_and_living_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, environments: Environments, dead_pid: int, live_pid: int
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "psutil", None)
    env = environments(kind="generic")
    assert env.inspect(dead_pid).presence == "gone"
    assert env.inspect(live_pid).presence == "running"
    assert env.command(live_pid) is None
    assert env.identity().pid == os.getpid()


def test_machines_with_one_network_address_are_told_apart(
    environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Virtual machines and containers on several hosts have the same address, and share a directory on a server."""
    monkeypatch.setattr("uuid.getnode", lambda: 0x02FC00000001)
    one = environments(kind="generic").identity()
    monkeypatch.setattr("holdfast._platform.portable._host", lambda: "other")
    other = environments(kind="generic").identity()
    assert one.boot.startswith("machine:")
    assert one.boot != other.boot


def test_a_ctrl_c_while_a_temporary_name_is_made_leaves_nothing(disk: Path, portable: Contend) -> None:
    contender = portable(disk / "l")
    env = contender.env

    def interrupted(path: str, mode: int) -> int:
        env.real.close(env.real.open_new(path, mode))
        raise KeyboardInterrupt

    env.instead["open_new"] = interrupted
    with pytest.raises(KeyboardInterrupt):
        contender.run()
    assert os.listdir(disk) == []


# -- systems that lack something ---------------------------------------------------------------------------------------


def test_a_made_up_machine_number_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network card the number differs in each process, so it must not identify records."""
    import uuid

    monkeypatch.setattr(uuid, "getnode", lambda: 1 << 40 | 4711)
    assert GenericEnvironment().identity().boot == "-"
    monkeypatch.setattr(uuid, "getnode", lambda: 4711)
    assert GenericEnvironment().identity().boot.startswith(f"machine:{4711:x}.")


@pytest.mark.skipif(not os.path.exists("/proc/self/ns/pid"), reason="needs the namespaces of Linux")
def test_a_kernel_without_time_namespaces_has_pid_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    def without_time(path: str) -> os.stat_result:
        if path == "/proc/self/ns/time":
            raise FileNotFoundError(2, "No such file or directory", path)
        return real(path)

    monkeypatch.setattr(portable_system.os, "stat", without_time)
    assert GenericEnvironment().identity().pid_namespace == str(real("/proc/self/ns/pid").st_ino)


def test_a_process_that_may_not_be_looked_at_counts_as_running(
    monkeypatch: pytest.MonkeyPatch, environments: Environments
) -> None:
    import psutil

    env = environments(kind="generic")
    monkeypatch.setattr(psutil, "Process", failing(psutil.AccessDenied(4711)))
    assert env.inspect(4711) == Process(Presence.RUNNING)


def test_a_probe_by_kill_claims_no_more_than_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable_system.os, "kill", failing(PermissionError(1, "Operation not permitted")))
    assert portable_system.presence_by_signal(4711) is Presence.RUNNING
    monkeypatch.setattr(portable_system.os, "kill", failing(OverflowError("signed integer is greater than maximum")))
    assert portable_system.presence_by_signal(1 << 80) is Presence.RUNNING
    monkeypatch.setattr(portable_system.os, "kill", failing(AssertionError("on Windows, this is Ctrl-C")))
    monkeypatch.setattr(portable_system.os, "name", "nt")
    assert portable_system.presence_by_signal(4711) is Presence.UNKNOWN


def test_operations_that_are_not_portable_are_refused(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = GenericEnvironment()
    assert env.watch_set() is None
    with pytest.raises(OSError, match="not portable") as refused:
        env.link_unnamed(0, str(disk / "l"))
    assert refused.value.errno == errno.EOPNOTSUPP
    path = disk / "l"
    path.write_text("")
    mode = path.stat().st_mode
    monkeypatch.delattr(os, "fchmod")
    fd = env.open_existing(str(path), write=True)
    env.chmod(fd, 0o700)  # Windows before Python 3.13
    env.close(fd)
    assert path.stat().st_mode == mode


def test_an_interruption_of_the_end_of_a_claim_leaves_none(dead: Path, portable: Contend) -> None:
    """T16: it would count as long as this process lives."""
    contender = portable(dead)
    interrupted: list[str] = []

    def unlink_but_once(path: str, *, dir_fd: int | None = None) -> None:
        if path.endswith(".claim") and not interrupted:
            interrupted.append(path)
            raise KeyboardInterrupt
        contender.env.real.unlink(path, dir_fd=dir_fd)

    contender.env.instead["unlink"] = unlink_but_once
    with pytest.raises(KeyboardInterrupt):
        contender.run()
    assert interrupted
    assert claims(dead.parent) == []


def test_an_interruption_of_the_end_of_a_removal_leaves_no_announcement(disk: Path, portable: Contend) -> None:
    """Y3: without a guard, it would count for a minute."""
    portable(disk / "l", protocol="sidecar").get()
    breaker = portable(disk / "l", protocol="sidecar")
    breaker.env.before["remove_directory"] = failing(KeyboardInterrupt(), times=1)
    with pytest.raises(KeyboardInterrupt):
        drive(break_lock(breaker.env, breaker.request))  # type: ignore[arg-type]
    assert os.listdir(disk) == []


def test_an_unknown_filesystem_is_not_called_read_only(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = GenericEnvironment()
    assert not env.is_read_only(str(disk))
    assert not env.is_read_only(str(disk / "missing"))
    monkeypatch.delattr(os, "statvfs", raising=False)
    assert not env.is_read_only(str(disk))
