"""Answers of Linux, and their interpretation (linux.py)."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import _platform
from holdfast._core.attempt import Refusal
from holdfast._platform import linux, posix, procfs
from holdfast._platform.descriptors import Descriptor
from holdfast._platform.linux import LinuxEnvironment
from holdfast._platform.portable import GenericEnvironment
from holdfast._platform.posix import PosixEnvironment
from holdfast._platform.values import Presence
from process.support import eventually
from unit.elsewhere import elsewhere, mount, needs_root
from unit.stepping import Contend, Contender, Stepped, failing

Environments = Callable[..., Stepped]


@pytest.mark.parametrize(
    ("kind", "reach", "limit"),
    [
        ("ext4", True, 0.025),
        ("tmpfs", True, 0.025),
        ("overlay", True, 0.025),
        ("fuseblk", False, 0.025),
        ("fuse.bindfs", False, 0.025),
        ("fuse.sshfs", False, 0.05),
        ("nfs4", False, 0.05),
        ("cifs", False, 0.05),
        ("9p", False, 0.05),
        ("", True, 0.025),
    ],
)
def test_events_are_expected_only_where_they_come(
    kind: str, reach: bool, limit: float, environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = procfs.Mount(f"1 2 0:1 / / rw - {kind} x rw") if kind else None
    monkeypatch.setattr(procfs, "mount_of", lambda _device, _table: found)
    monkeypatch.setattr(procfs, "mount_at", lambda _directory, _table: found)
    env = environments()
    assert env.events_reach("/l") is reach
    assert env.poll_limit("/l") == limit


def test_a_mount_is_told_apart_from_others(shm: Path, disk: Path) -> None:
    env = linux.LinuxEnvironment()
    assert env.storage(str(shm / "l")).kind == "tmpfs"
    assert env.storage("/proc/l").kind == "proc"
    assert env.storage(str(disk / "no" / "l")).kind == ""


def test_a_new_mount_is_noticed_after_a_second(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Device numbers are reused, so an answer is forgotten after a second."""
    env, now = linux.LinuxEnvironment(), [100.0]
    monkeypatch.setattr(linux.time, "monotonic", lambda: now[0])
    assert env.storage(str(shm / "l")).kind == "tmpfs"
    another = procfs.Mount("1 2 0:1 / / rw - fuse.x x rw")
    monkeypatch.setattr(procfs, "mount_of", lambda _device, _table: another)
    assert env.storage(str(shm / "l")).kind == "tmpfs"
    now[0] += 1.1
    assert env.storage(str(shm / "l")).kind == "fuse.x"


@needs_root
def test_a_mount_with_blanks_in_its_name_is_recognised(disk: Path) -> None:
    (disk / "a b - c").mkdir()
    inner = str(disk / "a b - c")
    found = elsewhere(lambda: linux.LinuxEnvironment().storage(inner + "/l"), mounts=lambda: mount("x", inner, "ramfs"))
    assert found.kind == "ramfs"


def test_a_process_is_inspected_correctly(
    environments: Environments, dead_pid: int, tmp_path: Path, process: Callable[..., int]
) -> None:
    env = environments()
    mine = env.inspect(os.getpid())
    assert mine.presence is Presence.RUNNING
    assert mine.started == env.identity().started
    assert env.inspect(dead_pid).presence is Presence.GONE
    nasty = tmp_path / "a ) R 1 (b"  # a name that looks like the fields after it
    nasty.symlink_to("/bin/sleep")
    other = process(str(nasty), "100")
    seen = env.inspect(other)
    assert seen.presence is Presence.RUNNING
    assert seen.started.startswith("t")
    assert int(seen.started[1:]) >= int(mine.started[1:])
    assert seen.since is not None
    assert abs(seen.since - env.time()) < 5
    assert env.command(other) == f"{nasty} 100"
    assert not seen.stopped
    os.kill(other, signal.SIGSTOP)
    eventually(lambda: env.inspect(other).stopped)
    os.kill(other, signal.SIGCONT)
    eventually(lambda: not env.inspect(other).stopped)
    assert env.command(dead_pid) is None


def test_the_proc_of_another_namespace_proves_no_death(
    environments: Environments, live_pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L3: after `unshare --pid`, /proc may still show the pids, and so the start times, of another namespace."""
    env = environments()
    known = env.inspect(live_pid)
    assert known.started != "-"
    monkeypatch.setattr(linux.os, "readlink", lambda _path: str(os.getpid() + 1))
    unknown = env.inspect(live_pid)
    assert (unknown.presence, unknown.started, unknown.since) == (Presence.RUNNING, "-", None)
    assert env.command(live_pid) is None


def test_with_a_full_descriptor_table_the_living_are_running(environments: Environments, live_pid: int) -> None:
    env = environments()

    def exhausted() -> list[str]:
        try:
            while True:
                os.dup(0)
        except OSError:
            return [env.inspect(pid).presence for pid in (os.getppid(), live_pid)]

    assert elsewhere(exhausted, files=64) == ["running", "running"]


def test_without_an_inotify_instance_the_wait_polls(disk: Path, contend: Callable[..., Contender]) -> None:
    """A user's 129th fails with EMFILE: the wait polls instead, and the next one tries again."""
    from holdfast._platform import inotify

    holder, waiter = contend(disk / "l"), contend(disk / "l", timeout=None)
    held = holder.get()
    real, inotify.Hub = inotify.Hub, none_left  # type: ignore[misc, assignment]
    try:
        wait = waiter.step()
    finally:
        inotify.Hub = real  # type: ignore[misc]
    assert wait is not None
    assert wait.fds == ()
    assert wait.deadline <= waiter.env.monotonic() + 0.025
    held.release()
    assert waiter.step() is None


def none_left(*_of: object) -> None:
    raise OSError(24, "Too many open files")


def test_no_descriptor_crosses_exec(disk: Path, environments: Environments) -> None:
    env = environments()
    fds = [env.open_unnamed(str(disk), 0o600), env.open_new(str(disk / "n"), 0o600)]
    fds.append(env.open_existing(str(disk / "n"), write=False))
    fds.append(env.watch_process(os.getpid()))
    watch = env.watch(str(disk / "n"))
    other = env.watch(str(disk / "n"))
    fds.extend((*watch.fds(), *other.fds()))
    assert len(set(fds)) == 6
    assert [fd for fd in fds if os.get_inheritable(fd)] == []
    for each in (watch, other):
        each.close()
    for fd in fds[:4]:
        env.close(fd)


@pytest.mark.parametrize(
    ("variables", "kind", "without"),
    [
        ({}, LinuxEnvironment, frozenset()),
        ({"HOLDFAST_OS": "generic"}, GenericEnvironment, frozenset()),
        ({"HOLDFAST_OS": "posix"}, PosixEnvironment, frozenset()),
        ({"HOLDFAST_WITHOUT": "flock,events"}, LinuxEnvironment, frozenset({"flock", "events"})),
        ({"HOLDFAST_WITHOUT": ""}, LinuxEnvironment, frozenset()),
    ],
)
def test_the_environment_of_the_system_is_chosen(
    variables: dict[str, str], kind: type, without: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOLDFAST_OS", "HOLDFAST_WITHOUT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(_platform, "_current", None)
    chosen = _platform.environment()
    assert type(chosen) is kind
    assert chosen.without == without
    assert _platform.environment() is chosen


@pytest.mark.parametrize(
    ("variable", "value"), [("HOLDFAST_OS", "flok"), ("HOLDFAST_WITHOUT", "flok"), ("HOLDFAST_OS", "generic,posix")]
)
def test_a_misspelt_variable_is_an_error(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(_platform, "_current", None)
    with pytest.raises(ValueError, match=f"{variable}={value}: expected one of .*o"):
        _platform.environment()


@pytest.mark.parametrize("system", ["darwin", "freebsd14"])
def test_macos_and_the_bsds_get_the_posix_environment(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_OS", raising=False)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(_platform, "_current", None)
    assert type(_platform.environment()) is PosixEnvironment


def test_a_process_of_another_user_is_running_where_signals_are_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor is left, or the kernel is older than 5.3, and kill(2) says only that it is not permitted."""

    def refused(*_args: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(linux.os, "pidfd_open", refused)
    monkeypatch.setattr(linux.os, "kill", refused)
    assert LinuxEnvironment()._presence(4711) is Presence.RUNNING


def test_on_smb_a_lock_of_another_process_is_refused_in_its_own_words(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LX1: it is held there, and its content cannot be read. On other filesystems EACCES is an error."""

    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    env = LinuxEnvironment()
    fd = env.open_new(f"{disk}/l", 0o600)
    env.write(fd, b"content", 0)
    device = os.fstat(fd).st_dev
    monkeypatch.setattr(procfs, "MOUNTS", str(tmp_path / "mountinfo"))
    calls = (lambda: env.guard(fd), lambda: env.guarded(fd), lambda: env.read(fd, 10))
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", denied)
        patch.setattr(os, "pread", denied)
        for kind, words in (("ext4", None), ("cifs", [False, True, b""]), ("smb3", [False, True, b""])):
            line = f"41 27 {os.major(device)}:{os.minor(device)} / / rw - {kind} //h/s rw\n"
            (tmp_path / "mountinfo").write_text(line)
            for number, call in enumerate(calls):
                if words is not None:
                    assert call() == words[number]
                    continue
                with pytest.raises(PermissionError):
                    call()
    env.close(fd)


def test_a_process_is_opened_without_the_function_of_python() -> None:
    """As under PyPy."""
    fd = linux._open_pidfd(os.getpid())
    try:
        signal.pidfd_send_signal(fd, 0)
        assert f"Pid:\t{os.getpid()}\n" in Path(f"/proc/self/fdinfo/{fd}").read_text()
    finally:
        os.close(fd)
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        linux._open_pidfd(-1)


def test_writers_are_unknown_without_kernel_locks(tmp_path: Path) -> None:
    """LX2."""
    with open(tmp_path / "l", "w") as file:
        assert LinuxEnvironment(without=frozenset({"flock"})).is_written(file.fileno()) is None


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS], ids=errno.errorcode.get)
def test_a_filter_of_system_calls_that_refuses_kernel_locks_leaves_the_process_as_proof_of_life(
    number: int, disk: Path, contend: Contend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a sandbox by seccomp, whose filter chooses the error."""
    monkeypatch.setattr(posix.fcntl, "flock", failing(number))
    holder, other = contend(disk / "l"), contend(disk / "l")
    held = holder.get()
    assert b"\nholdfast=2 n " in held.data
    refused = other.run()
    assert isinstance(refused, Refusal)
    assert refused.status.evidence.source == "process"
    held.release()
    assert not (disk / "l").exists()


@pytest.mark.parametrize(("number", "known"), [(errno.ENOSYS, False), (errno.EIO, True)])
def test_a_probe_of_a_record_lock_is_undecided_only_where_there_are_none(
    number: int, known: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    env = LinuxEnvironment()
    with open(tmp_path / "l", "w") as file:
        fd = Descriptor(file.fileno())
        fd.records = (0, 0)
        assert env.would_guard(fd, shared=False) is True
        monkeypatch.setattr(posix.fcntl, "fcntl", failing(number))
        if known:
            with pytest.raises(OSError, match=os.strerror(number)):
                env.would_guard(fd, shared=False)
        else:
            assert env.would_guard(fd, shared=False) is None
