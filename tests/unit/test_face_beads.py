"""The face `holdfast.beads`: the record, the tool's side, and the daemon's, state by state."""

from __future__ import annotations

import inspect
import logging
import os
import pickle
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import beads
from holdfast.beads import ExclusiveLock, SyncGate, is_process_alive, release, should_skip_database
from holdfast.engines.file import remove
from holdfast.protocols import get
from unit.elsewhere import NOBODY, elsewhere, needs_root

HOST = platform.node()
STARTED = "2025-10-25T12:00:00Z"
CANONICAL = """{
  "holder": "vc-executor",
  "pid": 12345,
  "hostname": "dev-machine",
  "started_at": "2025-10-25T12:00:00Z",
  "version": "1.0.0"
}"""


needs_guard = pytest.mark.skipif(
    os.environ.get("HOLDFAST_OS") == "generic" or "flock" in os.environ.get("HOLDFAST_WITHOUT", ""),
    reason="needs kernel locks on files",
)


def text(pid: int, holder: str = "tool", hostname: str = HOST) -> str:
    return ExclusiveLock(holder, pid, hostname, STARTED, "1").to_json()


def write(place: Path, content: str | bytes) -> Path:
    path = place / ".exclusive-lock"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture
def zombie() -> int:
    """The pid of a process that has ended and was not waited for."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    yield child
    os.waitpid(child, 0)


# -- the record --------------------------------------------------------------------------------------------------------


def test_a_record_is_the_bytes_that_the_original_writes() -> None:
    lock = ExclusiveLock("vc-executor", 12345, "dev-machine", STARTED, "1.0.0")
    assert lock.to_json() == CANONICAL
    assert ExclusiveLock.from_json(CANONICAL) == ExclusiveLock.from_json(CANONICAL.encode()) == lock


def test_html_characters_are_escaped_as_go_escapes_them() -> None:
    lock = ExclusiveLock("<a>&ü", 1, "h", STARTED)
    assert '"holder": "\\u003ca\\u003e\\u0026ü"' in lock.to_json()
    assert '"version": ""' in lock.to_json()
    assert ExclusiveLock.from_json(lock.to_json()) == lock


def test_nanoseconds_are_kept() -> None:
    started = "2026-11-21T00:01:28.262371334+02:00"
    lock = ExclusiveLock.from_json(CANONICAL.replace(STARTED, started))
    assert lock.started_at == started
    assert started in lock.to_json()


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({"holder": ""}, "holder is required"),
        ({"pid": 0}, "pid must be positive (got 0)"),
        ({"pid": -7}, "pid must be positive (got -7)"),
        ({"hostname": ""}, "hostname is required"),
        ({"started_at": ""}, "started_at is required"),
        ({"started_at": "0001-01-01T00:00:00Z"}, "started_at is required"),
    ],
)
def test_a_missing_field_is_reported_in_the_words_of_the_original(changed: dict[str, object], wanted: str) -> None:
    lock = ExclusiveLock.from_json(CANONICAL).replaced(**changed)
    with pytest.raises(ValueError, match=f"^{re.escape(wanted)}$"):
        lock.validate()
    with pytest.raises(ValueError, match=re.escape(wanted)):
        lock.to_json()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("", "malformed lock file: unexpected end of JSON input"),
        (CANONICAL[:60], "malformed lock file: unexpected end of JSON input"),
        ("{}", "invalid lock file: holder is required"),
        (CANONICAL.replace("12345", "0"), "invalid lock file: pid must be positive (got 0)"),
        (CANONICAL.replace("dev-machine", ""), "invalid lock file: hostname is required"),
        (CANONICAL.replace("started_at", "started"), "invalid lock file: started_at is required"),
    ],
)
def test_a_bad_record_is_reported_in_the_words_of_the_original(given: str, wanted: str) -> None:
    with pytest.raises(holdfast.MalformedRecord) as caught:
        ExclusiveLock.from_json(given)
    assert str(caught.value) == wanted


def test_a_new_record_is_of_this_process() -> None:
    lock = ExclusiveLock.new("me", "2.0")
    lock.validate()
    assert (lock.holder, lock.pid, lock.hostname, lock.version) == ("me", os.getpid(), HOST, "2.0")
    assert b"\n" not in lock.to_json().encode()[-1:]
    for wrong in ("", 5, None):
        with pytest.raises((ValueError, TypeError)):
            ExclusiveLock.new(wrong)  # type: ignore[arg-type]


# -- the daemon's side, by the table of the original's behaviour -------------------------------------------------------


def nothing(_place: Path) -> None: ...


def no_directory(place: Path) -> None:
    place.rmdir()


def dangling(place: Path) -> None:
    (place / ".exclusive-lock").symlink_to("nowhere")


def restored(place: Path) -> None:
    place.mkdir(exist_ok=True)


@pytest.mark.parametrize("make", [nothing, no_directory, dangling], ids=lambda make: make.__name__)
def test_a_free_database_is_not_skipped(shm: Path, make: Callable[[Path], None]) -> None:
    make(shm)
    try:
        assert should_skip_database(shm) == (False, None, None)
    finally:
        restored(shm)


def test_a_database_in_a_working_directory_that_is_gone_is_not_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Go, where nothing is there."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert should_skip_database(".beads") == (False, None, None)


def test_a_living_holder_is_respected(disk: Path, live_pid: int) -> None:
    path = write(disk, text(live_pid))
    assert should_skip_database(disk) == (True, "tool", None)
    assert path.exists()


def test_a_dead_holder_is_removed(disk: Path, dead_pid: int) -> None:
    """G1: by the letter; the original intends to remove such a lock, and never does."""
    for hostname in (HOST, HOST.upper(), HOST.lower()):
        path = write(disk, text(dead_pid, hostname=hostname))
        assert should_skip_database(disk) == (False, "tool", None)
        assert not path.exists()
        assert should_skip_database(disk) == (False, None, None)


def test_a_holder_on_another_host_is_not_judged_by_processes_here(disk: Path, dead_pid: int) -> None:
    """G1: also for the full name of this host."""
    for hostname in ("elsewhere", f"{HOST}.example.org"):
        path = write(disk, text(dead_pid, hostname=hostname))
        assert should_skip_database(disk) == (True, "tool", None)
        assert path.exists()


def test_a_zombie_is_not_taken_for_gone(disk: Path, zombie: int) -> None:
    """G1: by the letter, only ESRCH counts, which a zombie does not give."""
    path = write(disk, text(zombie))
    assert should_skip_database(disk) == (True, "tool", None)
    assert path.exists()


@pytest.mark.parametrize("pid", [2**31, 2**32 + 1, 2**63 - 1])
def test_an_impossible_pid_is_not_taken_for_a_dead_process(disk: Path, pid: int) -> None:
    write(disk, text(pid))
    assert should_skip_database(disk) == (True, "tool", None)


@needs_root
def test_another_users_process_is_alive(disk: Path) -> None:
    """G1: EPERM means that the process exists."""
    disk.chmod(0o777)
    write(disk, text(os.getpid()))
    assert elsewhere(lambda: should_skip_database(disk), user=NOBODY) == (True, "tool", None)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"", "malformed lock file: unexpected end of JSON input"),
        (b"{", "malformed lock file: unexpected end of JSON input"),
        (b"pid=1\ntimestamp=1\n", "malformed lock file: "),
        (b"\x00" * 100, "malformed lock file: "),
        (b"[" * 100_000, "malformed lock file: "),
        (b'"' + b"x" * (1 << 21), "malformed lock file: "),
        (b"{}", "invalid lock file: holder is required"),
        (text(1).replace('"pid": 1', '"pid": 0').encode(), "invalid lock file: pid must be positive (got 0)"),
        (text(1).replace(HOST, "").encode(), "invalid lock file: hostname is required"),
        (text(1).replace("started_at", "began").encode(), "invalid lock file: started_at is required"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:20]),
)
def test_a_record_that_cannot_be_understood_keeps_the_daemon_out(
    disk: Path, content: bytes, wanted: str, within: Callable[[float], AbstractContextManager[None]]
) -> None:
    """G2: whatever the content, the check fails safe and leaves the file."""
    path = write(disk, content)
    with within(60.0):
        skip, holder, error = should_skip_database(disk)
    assert (skip, holder) == (True, None)
    assert error is not None
    assert error.startswith(wanted)
    assert wanted.endswith(": ") or error == wanted
    assert path.read_bytes() == content


@pytest.mark.parametrize("kind", ["fifo", "directory", "loop", "socket", "device", "a file for a directory"])
def test_a_path_that_is_no_lock_file_keeps_the_daemon_out(
    disk: Path, kind: str, within: Callable[[float], AbstractContextManager[None]]
) -> None:
    """G2."""
    path = disk / ".exclusive-lock"
    reason = f"open {path}: not a regular file"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
        reason = f"read {path}: is a directory"
    elif kind == "loop":
        path.symlink_to(path.name)
        reason = f"open {path}: too many levels of symbolic links"
    elif kind == "device":
        path.symlink_to("/dev/null")
        reason = "open /dev/null: not a regular file"
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    else:
        path.write_text("")
        reason = f"open {path / '.exclusive-lock'}: not a directory"
    with within(60.0):
        answer = should_skip_database(path if kind.startswith("a file") else disk)
    assert answer == (True, None, f"failed to read lock file: {reason}")
    assert os.path.lexists(path)


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 300, "\ud800"])
def test_an_invalid_path_keeps_the_daemon_out(path: str) -> None:
    """G2."""
    skip, holder, error = should_skip_database(path)
    assert (skip, holder) == (True, None)
    assert error is not None
    assert error.startswith("failed to read lock file: ")


@needs_root
@pytest.mark.parametrize("closed", ["the file", "the directory"])
def test_an_unreadable_lock_file_keeps_the_daemon_out(disk: Path, dead_pid: int, closed: str) -> None:
    """G2."""
    path = write(disk, text(dead_pid))
    (path if closed == "the file" else disk).chmod(0)
    reason = f"failed to read lock file: open {path}: permission denied"
    assert elsewhere(lambda: should_skip_database(disk), user=NOBODY) == (True, None, reason)
    disk.chmod(0o755)
    assert path.exists()


@needs_root
def test_a_dead_holders_lock_that_cannot_be_removed_keeps_the_daemon_out(disk: Path, dead_pid: int) -> None:
    path = write(disk, text(dead_pid))
    reason = f"failed to remove stale lock: remove {path}: permission denied"
    assert elsewhere(lambda: should_skip_database(disk), user=NOBODY) == (True, "tool", reason)
    assert path.exists()


def test_a_lock_behind_a_symbolic_link_is_seen(disk: Path, live_pid: int, dead_pid: int) -> None:
    """The original writes and reads through the link, so its target is the lock, and the link stays."""
    target, link = disk / "target", disk / ".exclusive-lock"
    link.symlink_to("target")
    target.write_text(text(live_pid))
    assert should_skip_database(disk) == (True, "tool", None)
    target.write_text(text(dead_pid))
    assert should_skip_database(disk) == (False, "tool", None)
    assert (target.exists(), link.is_symlink()) == (False, True)


def test_a_check_without_a_descriptor_keeps_the_daemon_out(disk: Path, live_pid: int) -> None:
    """G2."""
    write(disk, text(live_pid))

    def check() -> tuple[bool, str | None, str | None]:
        taken = []
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            answer = should_skip_database(disk)
        for fd in taken:
            os.close(fd)
        return answer

    skip, holder, error = elsewhere(check, files=64)
    assert (skip, holder) == (True, None)
    assert error is not None
    assert error.startswith(f"failed to read lock file: open {disk / '.exclusive-lock'}: too many open files")


# -- holders that keep the kernel lock ---------------------------------------------------------------------------------


@needs_guard
def test_a_kernel_lock_counts_more_than_a_number_that_says_dead(disk: Path, dead_pid: int) -> None:
    """G1: a held kernel lock is respected, such as that of a command whose wrapper was killed."""
    hold = beads.acquire(disk, "me")
    path = Path(hold.path)
    path.write_text(path.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {dead_pid}'))
    assert should_skip_database(disk) == (True, "me", None)
    with pytest.raises(holdfast.LockLost):
        hold.release()
    assert path.exists()


@needs_guard
def test_a_killed_holder_is_removed_though_its_number_is_reused(disk: Path, live_pid: int) -> None:
    """G1: its kernel lock is gone, which proves it."""
    code = "import sys, os; from holdfast import beads; beads.acquire(sys.argv[1], 'me'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, disk], check=False)
    path = disk / ".exclusive-lock"
    pid = ExclusiveLock.from_json(path.read_text()).pid
    path.write_text(path.read_text().replace(f'"pid": {pid}', f'"pid": {live_pid}'))
    assert should_skip_database(disk) == (False, "me", None)
    assert not path.exists()


def test_a_number_of_another_container_is_not_looked_up_here(disk: Path, dead_pid: int) -> None:
    """G1: the host name is the same, but the PID namespace is not, so the pid means nothing here."""
    hold = beads.acquire(disk, "me")
    path = Path(hold.path)
    data = path.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {dead_pid}')
    here = hold.record.marker
    assert here is not None
    there = here.replaced(device=here.device + 1, identity=here.identity.replaced(pid_namespace="1.2"))
    hold.release()
    path.write_text(data.replace(here.encode(), there.encode()))
    assert should_skip_database(disk) == (True, "me", None)


def test_a_lock_taken_over_meanwhile_stays_with_its_new_holder(
    disk: Path, dead_pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: a tool takes the dead holder's lock over between the judgement and the removal."""
    write(disk, text(dead_pid))
    taken: list[holdfast.Hold] = []
    judged = remove.assess

    def overtaken(env: object, seen: object) -> object:
        assessed = judged(env, seen)  # type: ignore[arg-type]
        if not taken:
            taken.append(beads.acquire(disk, "new", timeout=0))
        return assessed

    monkeypatch.setattr(remove, "assess", overtaken)
    assert should_skip_database(disk) == (True, "new", None)
    taken[0].release()
    assert should_skip_database(disk) == (False, None, None)


def test_a_lock_that_others_remove_first_is_not_said_to_be_removed_here(
    disk: Path, dead_pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(disk, text(dead_pid))
    judged = remove.assess

    def overtaken(env: object, seen: object) -> object:
        path.unlink(missing_ok=True)
        return judged(env, seen)  # type: ignore[arg-type]

    monkeypatch.setattr(remove, "assess", overtaken)
    assert should_skip_database(disk) == (False, None, None)


def test_a_check_does_not_disturb_a_holder(disk: Path) -> None:
    with beads.acquire(disk, "me", "1.0") as hold:
        for _ in range(3):
            assert should_skip_database(disk) == (True, "me", None)
        hold.ensure_held()
    assert [*disk.iterdir()] == []


# -- processes ---------------------------------------------------------------------------------------------------------


def test_only_a_process_proven_dead_is_called_dead(live_pid: int, dead_pid: int, zombie: int) -> None:
    assert is_process_alive(os.getpid(), HOST)
    assert is_process_alive(live_pid, HOST)
    assert is_process_alive(zombie, HOST)
    assert is_process_alive(dead_pid, "elsewhere")
    assert not is_process_alive(dead_pid, HOST)
    assert not is_process_alive(dead_pid, HOST.swapcase())
    for number in (0, -1, -dead_pid, 2**31, 2**32 + dead_pid, 2**70):
        assert is_process_alive(number, HOST)


# -- the tool's side ---------------------------------------------------------------------------------------------------


def test_the_record_of_a_hold_names_the_holder(disk: Path) -> None:
    with beads.acquire(disk, "ci-runner", "1.0") as hold:
        lock = ExclusiveLock.from_json(Path(hold.path).read_text())
        assert (lock.holder, lock.pid, lock.hostname, lock.version) == ("ci-runner", os.getpid(), HOST, "1.0")
        assert hold.path == str(disk / ".exclusive-lock")
    assert not os.path.exists(hold.path)


def test_one_tool_holds_a_database_at_a_time(disk: Path) -> None:
    with (
        beads.acquire(disk, "one"),
        pytest.raises(holdfast.AcquireTimeout) as caught,
    ):
        beads.acquire(disk, "two", timeout=0)
    assert caught.value.holder is not None
    assert caught.value.holder.pid == os.getpid()
    with beads.acquire(disk, "two", timeout=0):
        pass


def test_a_dead_tools_lock_is_taken_over(disk: Path, dead_pid: int) -> None:
    write(disk, text(dead_pid))
    with beads.acquire(disk, "me", timeout=0) as hold:
        assert hold.recovered_from is not None
        assert hold.recovered_from.pid == dead_pid


@pytest.mark.parametrize("stale", ["safe", "protocol"])
def test_a_clock_that_was_set_does_not_make_a_living_tool_dead(stale: Any, disk: Path, live_pid: int) -> None:
    """inspect.py, L3: its process seems to have started after its record was written."""
    path = write(disk, text(live_pid))
    before = path.read_bytes()
    lock = holdfast.Lock(disk, protocol="beads", stale=stale)
    assert lock.try_acquire() is None
    assert lock.status().liveness is not holdfast.Liveness.DEAD
    assert path.read_bytes() == before
    assert should_skip_database(disk) == (True, "tool", None)


def test_a_release_removes_only_what_this_process_holds(disk: Path, live_pid: int) -> None:
    def refused(reason: str) -> None:
        with pytest.raises(holdfast.NotHeld) as caught:
            release(disk)
        assert reason in str(caught.value)
        assert (caught.value.path, caught.value.protocol) == (str(disk / ".exclusive-lock"), "beads")

    refused("nobody holds it")
    for content, reason in (
        (text(live_pid), f"acquired for process {live_pid}"),
        (text(os.getpid(), hostname="else\x1bwhere"), "acquired on host else\\x1bwhere"),
        ("{}", "cannot be known. force=True"),
        ("", "cannot be known"),
    ):
        path = write(disk, content)
        refused(reason)
        assert path.read_text() == content
        release(disk, force=True)
        assert not path.exists()
    with pytest.raises(holdfast.NotHeld):
        release(disk, force=True)


def test_a_release_of_ones_own_lock_is_accepted(disk: Path) -> None:
    hold = beads.acquire(disk, "me")
    release(disk)
    assert not os.path.exists(hold.path)
    hold.release()  # it is released already
    path = write(disk, ExclusiveLock.new("me").to_json())
    release(disk)
    assert not path.exists()


def test_a_release_leaves_a_record_that_another_tool_wrote_over_ours(disk: Path) -> None:
    """The original's writer overwrites a lock that is held."""
    beads.acquire(disk, "me")
    path = write(disk, text(1, hostname="elsewhere"))
    with pytest.raises(holdfast.LockLost):
        release(disk)
    assert path.exists()
    with pytest.raises(holdfast.NotHeld):
        release(disk)


def test_a_release_leaves_a_file_that_another_tool_put_in_place_of_ours(disk: Path) -> None:
    hold = beads.acquire(disk, "me")
    os.unlink(hold.path)
    path = write(disk, text(1, hostname="elsewhere"))
    with pytest.raises(holdfast.NotHeld):
        release(disk)
    with pytest.raises(holdfast.LockLost):
        hold.release()
    assert path.exists()


def test_a_forked_child_cannot_release_its_parents_lock(disk: Path) -> None:
    def child() -> str:
        try:
            release(disk)
        except holdfast.NotHeld as error:
            return str(error)
        return "released"

    with beads.acquire(disk, "me") as hold:
        assert "force=True" in elsewhere(child)
        hold.ensure_held()


@pytest.mark.parametrize("wrong", [{"payload": {}}, {"shared": True}, {"no_such": 1}])
def test_an_option_that_means_nothing_is_refused(disk: Path, wrong: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        beads.acquire(disk, "me", **wrong)
    with pytest.raises(ValueError, match="empty"):
        beads.acquire(disk, "")
    assert [*disk.iterdir()] == []


# -- the gate ----------------------------------------------------------------------------------------------------------


def test_a_log_line_is_the_one_of_the_specification(disk: Path, live_pid: int, dead_pid: int) -> None:
    lines: list[str] = []
    gate = SyncGate(disk, log=lines.append)
    assert gate.open()
    assert lines == []
    write(disk, text(live_pid, "vc-executor"))
    assert not gate.open()
    assert gate.last == (True, "vc-executor", None)
    write(disk, text(dead_pid, "vc-executor"))
    assert gate.open()
    write(disk, "")
    assert not gate.open()
    assert lines == [
        "Skipping database (locked by vc-executor)",
        "Removed stale lock (vc-executor), proceeding with sync",
        "Skipping database (lock check failed: malformed lock file: unexpected end of JSON input)",
    ]
    assert Path(gate.path) == disk / ".exclusive-lock"
    assert str(disk) in repr(gate)


@pytest.mark.parametrize(
    "holder",
    [
        "\x1b[2J\x1b]0;owned\x07 \x9b31m",
        "a)\nRemoved stale lock (b), proceeding with sync",
        "a\rb\x0bc\x0cd\x85e\u2028f\u2029g\x00h",
        "\"'\\`$(true) %s {}",
        "\u202egpj.exe\u2066",
        "  ",
        "x" * 100_000,
    ],
)
@pytest.mark.parametrize("alive", [True, False])
def test_a_hostile_holder_cannot_break_the_line(
    disk: Path, live_pid: int, dead_pid: int, holder: str, alive: bool
) -> None:
    lines: list[str] = []
    write(disk, text(live_pid if alive else dead_pid, holder))
    gate = SyncGate(disk, log=lines.append)
    assert gate.open() is not alive
    assert gate.last[1] == holder
    assert len(lines) == len(lines[0].splitlines()) == 1
    assert lines[0].isprintable()
    assert len(lines[0]) < 1200
    before, after = (
        ("Skipping database (locked by ", ")") if alive else ("Removed stale lock (", "), proceeding with sync")
    )
    assert lines[0].startswith(before)
    assert lines[0].endswith(after)


def test_a_daemon_that_changes_its_directory_looks_in_the_same_place(
    disk: Path, live_pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (disk / "db").mkdir()
    write(disk / "db", text(live_pid))
    monkeypatch.chdir(disk)
    gate = SyncGate("db", log=lambda _line: None)
    monkeypatch.chdir("/")
    assert not gate.open()
    assert Path(gate.path) == disk / "db" / ".exclusive-lock"
    assert not SyncGate("", log=lambda _line: None).open()


def test_a_hostile_path_cannot_break_the_line(disk: Path) -> None:
    place = disk / "a\nb\x1b[2J"
    (place / ".exclusive-lock").mkdir(parents=True)
    lines: list[str] = []
    assert not SyncGate(place, log=lines.append).open()
    assert lines[0].isprintable()


def test_a_lock_that_appears_during_a_cycle_skips_the_next_one(disk: Path) -> None:
    """G3: the cycle is finished and the next one is skipped; the one after the release runs."""
    lines: list[str] = []
    gate = SyncGate(disk, log=lines.append)
    ran: list[int] = []
    hold = None
    for cycle in range(3):
        with gate as proceed:
            if proceed and cycle == 0:
                hold = beads.acquire(disk, "me", timeout=0)
            if proceed:
                ran.append(cycle)
        if cycle == 1 and hold is not None:
            hold.release()
    assert ran == [0, 2]
    assert lines == ["Skipping database (locked by me)"]


def test_an_error_in_a_cycle_is_raised_and_the_gate_stays_open(disk: Path) -> None:
    gate = SyncGate(disk)

    def cycle() -> None:
        with gate:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cycle()
    assert gate.open()


def test_without_a_log_the_lines_go_to_the_logger(disk: Path, live_pid: int, caplog: pytest.LogCaptureFixture) -> None:
    write(disk, text(live_pid))
    with caplog.at_level(logging.INFO, logger="holdfast"):
        assert not SyncGate(str(disk)).open()
    assert [(one.name, one.getMessage()) for one in caplog.records] == [
        ("holdfast", "Skipping database (locked by tool)")
    ]


# -- the face itself ---------------------------------------------------------------------------------------------------


def test_every_name_of_the_face_is_documented() -> None:
    for name in beads.__all__:
        assert inspect.getdoc(getattr(beads, name)), name
    assert beads.__all__ == sorted(beads.__all__)


NAMED = """
README.md docs/beads.md docs/cli.md docs/protocols/beads.md docs/protocols/index.md docs/beads.md
docs/migrating/index.md docs/howto/polyglot.md src/holdfast/beads.py src/holdfast/lock.py
src/holdfast/protocols/beads.py src/holdfast/cli/options.py src/holdfast/cli/options.py
"""


@pytest.mark.parametrize("name", NAMED.split())
def test_the_documentation_says_that_beads_heeds_the_lock_up_to_0_49(name: str) -> None:
    """Version 0.50 removed it."""
    text = (Path(__file__).parents[2] / name).read_text(encoding="utf-8")
    assert "up to 0.49" in " ".join(text.split())


def test_a_record_can_be_pickled() -> None:
    lock = ExclusiveLock.from_json(CANONICAL)
    assert pickle.loads(pickle.dumps(lock)) == lock
    assert get("beads").decode(lock.to_json().encode()).fields["holder"] == lock.holder
