"""Finding lock files without being told their paths (scan.py, detect.py, proc_locks.py)."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import abilities
from abilities import LINUX
from holdfast._admin.clean import leftovers
from holdfast._admin.detect import BEADS_NAME
from holdfast._admin.found import Found, Unreadable
from holdfast._admin.scan import Survey
from holdfast._platform import proc_locks, procfs
from holdfast._platform.values import Presence, Process
from holdfast.engines.file.acquire import look
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.inspect import UNFINISHED
from holdfast.model import Holder
from process.support import Peer
from unit.elsewhere import NOBODY, elsewhere, needs_root
from unit.stepping import Contend, Stepped
from unit.test_waiters import queued

Environments = Callable[..., Stepped]

NOW = int(time.time())
STRAYS = {
    "notes.txt": b"pid and timestamp\n",
    "Cargo.lock": b'# This file is generated\nversion = 3\n[[package]]\nname = "pid"\n',
    "composer.lock": b'{"_readme": ["locks"], "content-hash": "x", "packages": []}',
    "Pipfile.lock": b'{"_meta": {"hash": {"sha256": "1"}, "pid": 5}, "default": {}}',
    "yarn.lock": b"# yarn lockfile v1\n\n",
    "package.json": b'{"pid": 5, "createdAt": "2026-01-01T00:00:00.000Z"}',
    "service.log": b"level=info pid=5\npid=5\ntimestamp=17\n",
    "app.ini": b"[app]\npid=5\ntimestamp=17\n",
    "half.ini": b"pid=five\ntimestamp=17\n",
    "record.json": json.dumps(
        {"holder": "x", "pid": 1, "hostname": "h", "started_at": "2026-01-01T00:00:00Z", "version": ""}
    ).encode(),
    "empty": b"",
    "empty.txt": b"",
    "binary.lock": bytes(range(256)) * 20,
    "large.lock": b"pid=5\ntimestamp=17\n" + b"#" * (1 << 20),
    "l.5.0123456789abcdef.tmp": b"pid=5\ntimestamp=17\n",
    "l.lock.reclaim": b"pid=5\ntimestamp=17\n",
    ".holdfast-00000000-5-x.tmp": b"pid=5\ntimestamp=17\n",
}


def found_in(env: Stepped, directory: Path, *, recursive: bool = False) -> dict[str, Found]:
    survey = Survey(env)
    every = list(survey.tree(str(directory)) if recursive else survey.directory(str(directory)))
    assert not [one for one in every if isinstance(one, Unreadable)]
    found = {os.path.relpath(one.status.path, directory): one for one in every if isinstance(one, Found)}
    assert len(found) == len(every), "a file comes twice"
    return found


def conditions(env: Stepped, directory: Path) -> dict[str, tuple[str, str]]:
    return {name: (one.status.protocol, one.condition) for name, one in found_in(env, directory).items()}


@pytest.mark.parametrize("name", STRAYS)
def test_a_stray_file_is_not_called_a_lock(shm: Path, environments: Environments, name: str) -> None:
    """E2: the name is a lock's but not the content, or the content resembles a record under another name."""
    (shm / name).write_bytes(STRAYS[name])
    assert found_in(environments(), shm) == {}
    (shm / name).unlink()


def test_a_lock_of_any_protocol_is_found(
    disk: Path, contend: Contend, environments: Environments, dead_pid: int
) -> None:
    """E2: held or not, under the name of its protocol."""
    (disk / "db").mkdir()
    for protocol, name in (("sema", "a"), ("semats", "b"), ("sidecar", "c"), ("beads", "db"), ("flock", "f")):
        contend(disk / name, protocol=protocol, tag="why").get()
    contend(disk / "crashed").get()
    crashed = contend(disk / "crashed.too")
    crashed.get()
    crashed.crash()
    (disk / "old").write_text(f"pid={dead_pid}\ntimestamp={NOW - 5000}\n")
    (disk / "young").write_text(f"pid={dead_pid}\ntimestamp={NOW}\n")
    (disk / "free").write_bytes(b"protocol=flock\npid=1\ntimestamp=1\n")
    (disk / "there.lock").write_text(json.dumps({"pid": 5, "host": "another", "createdAt": "2999-01-01T00:00:00.000Z"}))
    (disk / "late.lock").write_text('{"createdAt": "2020-01-01T00:00:00.000Z"}')
    (disk / "torn.lock").write_text('{"pid": 5, "createdAt": "20')
    (disk / "bad.lock").write_text("pid=5\ntimestamp=x\n")
    (disk / "empty.lock").touch()
    (disk / ".exclusive-lock").write_text("{}")
    env = environments()
    assert conditions(env, disk) == {
        "a": ("sema", "held"),
        "b": ("semats", "held"),
        "c.lock": ("sidecar", "held"),
        "f": ("flock", "held"),
        "crashed": ("sema", "held"),
        "crashed.too": ("sema", "dead"),
        "old": ("sema", "stale"),
        "young": ("sema", "held"),
        "free": ("flock", "free"),
        "there.lock": ("sidecar", "elsewhere"),
        "late.lock": ("sidecar", "stale"),
        "torn.lock": ("sidecar", "malformed"),
        "bad.lock": ("sema", "malformed"),
        "empty.lock": ("", "malformed"),
        ".exclusive-lock": ("beads", "malformed"),
    }
    below = found_in(env, disk, recursive=True)["db/.exclusive-lock"]
    assert (below.status.protocol, below.condition, below.uid) == ("beads", "held", os.getuid())
    assert {"a", "f"} <= {name for name, one in found_in(env, disk).items() if one.status.locked}
    held = found_in(env, disk)["f"].status
    assert (held.holder and held.holder.pid, held.holder and held.holder.tag) == (os.getpid(), "why")


def test_a_file_of_data_that_the_kernel_locks_is_found(
    disk: Path, contend: Contend, environments: Environments
) -> None:
    """E2: also if it is empty, under any name; once unlocked, it is a file of data again."""
    for name, data in (("script.sh", b"#!/bin/sh\n"), ("nothing", b""), ("large", b"x" * (1 << 21))):
        (disk / name).write_bytes(data)
        held = contend(disk / name, protocol="flock").get()
        assert conditions(environments(), disk) == {name: ("flock", "held")}
        held.release()
        assert conditions(environments(), disk) == {}
        (disk / name).unlink()


def test_objects_that_cannot_be_lock_files_are_not_opened(disk: Path, environments: Environments) -> None:
    """E1: a FIFO, a link, a socket or a directory under a lock's name; empty or overlarge files; `..` and loops."""
    os.mkfifo(disk / "fifo.lock")
    (disk / "directory.lock").mkdir()
    (disk / "empty.lock").touch()
    (disk / "large").write_bytes(b"pid=1\ntimestamp=1\n" * 70_000)
    (disk / "link.lock").symlink_to("target")
    (disk / "directory.lock" / "loop").symlink_to("..")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(disk / "socket.lock"))
        env = environments()
        assert [*found_in(env, disk, recursive=True)] == ["empty.lock"]
    assert "open_existing" not in env.steps


def test_an_old_empty_lock_file_is_called_empty(disk: Path, contend: Contend, environments: Environments) -> None:
    """E7: an old *.lock without a kernel lock; not a young one, one that holdfast created, or other names."""
    env = environments()
    env.stop_clocks()
    for name in ("old.lock", "late.lock", "young.lock", "ours.lock", "held.lock", "unseen.lock", "empty", BEADS_NAME):
        (disk / name).touch()
        if name != "young.lock":
            os.utime(disk / name, (NOW - 60, NOW + 86400 if name == "late.lock" else NOW - 60))
    (disk / "ours.lock").chmod(0o644 | UNFINISHED)
    contend(disk / "held.lock", protocol="flock").get()
    hidden = os.stat(disk / "unseen.lock").st_ino
    env.instead["guarded"] = lambda fd: os.fstat(fd).st_ino == hidden or env.real.guarded(fd)
    found = found_in(env, disk)
    assert {name: (one.status.protocol, one.condition) for name, one in found.items()} == {
        "old.lock": ("", "empty"),
        "late.lock": ("", "empty"),
        "young.lock": ("", "malformed"),
        "ours.lock": ("sema", "dead"),
        "held.lock": ("flock", "held"),
        "unseen.lock": ("flock", "held"),
        BEADS_NAME: ("beads", "malformed"),
    }
    assert "for all other protocols" in found["old.lock"].status.reason
    assert conditions(environments(kind="generic"), disk)["old.lock"] == ("", "malformed"), "who could know"


def test_a_kernels_lock_that_the_tables_do_not_show_is_called_held(
    disk: Path, contend: Contend, environments: Environments
) -> None:
    """E1: its holder is in another PID namespace. The probe tells that there is one, but not which."""
    (disk / "l").write_bytes(b"protocol=flock\npid=1\ntimestamp=1\n")
    env = environments()
    env.instead["guarded"] = lambda _fd: True
    one = found_in(env, disk)["l"]
    assert (one.condition, one.status.locked, one.status.holder) == ("held", True, Holder())
    assert one.status.evidence.proven


@pytest.mark.parametrize("lasts", [True, False])
def test_a_kernels_lock_that_is_taken_during_the_look_is_its_holders(
    disk: Path, environments: Environments, *, lasts: bool
) -> None:
    """E3: the tables were read before, and show no holder. If it is dropped again at once, it has none."""
    (disk / "l").write_bytes(b"protocol=flock\npid=1\ntimestamp=1\n")
    env = environments()
    with open(disk / "l") as file:
        env.once(env.before, "guarded", lambda: fcntl.flock(file, fcntl.LOCK_EX))
        if not lasts:
            env.once(env.after, "guarded", lambda: fcntl.flock(file, fcntl.LOCK_UN))
        one = found_in(env, disk)["l"]
    holder = one.status.holder
    assert (one.condition, holder and holder.pid) == (("held", os.getpid()) if lasts else ("free", None))


def test_a_directory_that_is_locked_after_the_tables_were_read_is_its_holders(
    shm: Path, contend: Contend, environments: Environments
) -> None:
    """E3: as a file is. In memory, no number of a file that the tables show becomes another's."""
    (shm / "t").touch()
    survey = Survey(environments())
    assert survey.owners(f"{shm}/t") == []
    contend(shm / "t", protocol="proper-lockfile").get()
    one = survey.file(f"{shm}/t.lock", alone=True)
    assert one is not None
    assert one.status.holder is not None
    assert one.status.holder.pid == os.getpid()


@pytest.mark.parametrize("way", ["survey", "status"])
def test_a_dead_holder_is_not_mixed_up_with_the_one_that_takes_over_during_the_look(
    disk: Path, contend: Contend, environments: Environments, way: str
) -> None:
    """L13: the guard is the new holder's, and the record that was read the old one's."""
    peer = Peer("Lock(path, tag='old').acquire(); say('held'); hear()", [disk / "l"], env=LINUX)
    peer.expect("held")
    peer.destroy()
    contender, env = contend(disk / "l", tag="new"), environments()
    env.once(env.before, "guarded", contender.get)
    status = found_in(env, disk)["l"].status if way == "survey" else look(env, contender.request)
    assert status.holder is not None
    assert (status.holder.pid, status.holder.tag, status.holders) == (os.getpid(), "new", ())


@pytest.mark.parametrize("way", ["survey", "status"])
def test_a_look_at_an_heir_whose_record_cannot_be_read_again_shows_the_first_reading(
    disk: Path, contend: Contend, environments: Environments, way: str
) -> None:
    """L13: for example, because its server has removed the file meanwhile."""
    peer = Peer("Lock(path, tag='old').acquire(); say('held'); hear()", [disk / "l"], env=LINUX)
    peer.expect("held")
    peer.destroy()
    contender, env = contend(disk / "l"), environments()

    def refuse(*_: object) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    env.after["read"] = lambda *_: env.instead.update(read=refuse)
    with open(disk / "l", "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        status = found_in(env, disk)["l"].status if way == "survey" else look(env, contender.request)
    assert "read" in env.instead
    assert status.holder is not None
    assert (status.holder.pid, status.holder.tag) == (os.getpid(), "old")


def test_an_empty_file_of_flock_is_not_free_for_other_protocols(
    disk: Path, contend: Contend, environments: Environments
) -> None:
    """E7: contenders of other protocols are refused, and cleaning finds nothing to remove."""
    (disk / "l.lock").touch()
    os.utime(disk / "l.lock", (NOW - 9999, NOW - 9999))
    env = environments()
    assert conditions(env, disk) == {"l.lock": ("", "empty")}
    assert not isinstance(contend(disk / "l.lock").run(), FileHold)
    for approved in (False, True):
        assert list(leftovers(env, Survey(env), str(disk), approved=approved)) == []
    held = contend(disk / "l.lock", protocol="flock").get()
    assert conditions(environments(), disk) == {"l.lock": ("flock", "held")}
    held.release()


@pytest.mark.parametrize("protocol", ["sema", "flock"])
def test_a_look_wakes_no_waiter(disk: Path, contend: Contend, environments: Environments, protocol: str) -> None:
    """E1: by closing the file, or in any other way."""
    (disk / "l").write_bytes(b"data\n" if protocol == "flock" else b"")
    if protocol == "sema":
        (disk / "l").unlink()
    contend(disk / "l", protocol=protocol).get()
    waiter = contend(disk / "l", protocol=protocol, timeout=None)
    assert waiter.step() is not None
    watch = waiter.env.real.watch(str(disk / "l"), readers=protocol == "flock")
    try:
        env = environments()
        one = found_in(env, disk)["l"]
        assert (one.condition, one.status.protocol) == ("held", protocol)
        assert watch.take() == 0
        assert ("open_existing" in env.steps) == (protocol == "sema")
        assert not {"guard", "write", "unlink", "remove_directory", "chmod", "truncate"} & set(env.steps)
    finally:
        watch.close()


def test_the_process_table_is_asked_once_for_many_files(
    disk: Path, environments: Environments, live_pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3, W7: fifty files of one process cost one look at that process and one at the kernel's tables."""
    for number in range(50):
        (disk / f"l{number}").write_text(f"pid={live_pid}\ntimestamp={NOW + 10}\n")
    read: list[str] = []
    real = procfs.read
    monkeypatch.setattr(procfs, "read", lambda path: (read.append(path), real(path))[1])
    env = environments()
    assert len(found_in(env, disk)) == 50
    asked: list[str] = [step for step in env.steps if step == "inspect"]
    assert len(asked) == 1
    assert read.count("/proc/locks") == 2
    assert env.steps.count("list_directory") == 1


def test_a_lock_on_a_subvolume_is_found_and_told_apart(
    disk: Path, contend: Contend, environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W8: where the tables show another device number, the inode number is a hint, and the file itself is checked."""
    (disk / "data").write_bytes(b"data")
    abilities.need_own_device(disk / "data")
    (disk / "other").write_bytes(b"data")
    contend(disk / "data", protocol="flock").get()
    one = environments().real.proc_locks()
    identity = ((disk / "data").stat().st_dev + 1, (disk / "data").stat().st_ino)
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(proc_locks, "lock_owners", lambda file, _inspect: asked.append(file) or [])
    assert not one.is_locked(identity)
    assert asked == [identity]
    assert not one.is_locked((identity[0], (disk / "other").stat().st_ino))
    assert asked == [identity]
    assert one.is_locked((identity[0] - 1, identity[1]))


def test_waiters_for_one_of_many_are_seen(disk: Path, contend: Contend, environments: Environments) -> None:
    for name in "ab":
        contend(disk / name).get()
    waiting = [queued(contend(disk / "a", timeout=None, fair=True, tag=tag)) for tag in "xy"]
    env = environments()
    seen = found_in(env, disk)
    assert [(w.position, w.tag) for w in seen["a"].status.waiters] == [(1, "x"), (2, "y")]
    assert seen["b"].status.waiters == ()
    assert [*seen] == ["a", "b"], "a ticket is taken for a lock"
    assert len(waiting) == 2


def test_waiters_for_a_slot_are_seen(disk: Path, contend: Contend, environments: Environments) -> None:
    holders = [contend(disk / "s", slots=2) for _ in range(2)]
    for holder in holders:
        holder.get()
    waiter = queued(contend(disk / "s", slots=2, timeout=None, fair=True, tag="me"))
    seen = found_in(environments(), disk)
    assert {name: (one.slot, [w.tag for w in one.status.waiters]) for name, one in seen.items()} == {
        "s.0.lock": (0, ["me"]),
        "s.1.lock": (1, ["me"]),
    }
    assert waiter.step() is not None


def test_a_file_that_vanishes_meanwhile_is_no_error(disk: Path, environments: Environments) -> None:
    (disk / "a").write_text(f"pid=1\ntimestamp={NOW}\n")
    (disk / "b").write_text(f"pid=1\ntimestamp={NOW}\n")
    env = environments()
    env.once(env.before, "open_existing", (disk / "a").unlink)
    assert [*found_in(env, disk)] == ["b"]


def test_a_lock_released_meanwhile_is_not_called_dead(disk: Path, contend: Contend, environments: Environments) -> None:
    """L12."""
    hold = contend(disk / "l").get()
    env = environments()
    env.once(env.before, "guarded", hold.release)
    assert not found_in(env, disk)
    assert "guarded" in env.steps


@pytest.mark.parametrize("name", ["l", "l.lock"], ids=["held", "left to the caller"])
def test_a_lock_released_by_a_process_that_ended_meanwhile_is_not_listed(
    disk: Path, environments: Environments, name: str
) -> None:
    """L12: neither as held by a dead process nor as stale."""
    sidecar = name != "l"
    path = disk / name
    path.write_text('{"pid": 7, "createdAt": "2026-01-01T00:00:00.000Z"}' if sidecar else f"pid=7\ntimestamp={NOW}\n")
    env = environments()

    def release(_pid: int) -> Process:
        path.unlink(missing_ok=True)
        return Process(Presence.GONE)

    env.instead["inspect"] = release
    assert not found_in(env, disk)
    assert "inspect" in env.steps


@needs_root
def test_a_lock_that_may_not_be_read_is_listed(disk: Path, contend: Contend) -> None:
    """E2: by its name, or by the kernel's tables; other unreadable files are ignored."""
    for name in ("theirs.lock", "diary", "locked"):
        (disk / name).write_text("secret")
        (disk / name).chmod(0o600)
    abilities.need_own_device(disk / "locked")
    contend(disk / "locked", protocol="flock").get()

    def look() -> list[tuple[str, str, str]]:
        from holdfast._platform.linux import LinuxEnvironment

        every = Survey(LinuxEnvironment()).directory(str(disk))
        return [
            (os.path.basename(o.status.path), o.status.protocol, o.condition) for o in every if isinstance(o, Found)
        ]

    assert elsewhere(look, user=NOBODY) == [("locked", "", "held"), ("theirs.lock", "", "malformed")]


def test_without_tables_locks_with_a_record_are_found(disk: Path, contend: Contend, environments: Environments) -> None:
    contend(disk / "a", environments(kind="generic")).get()
    (disk / "free").write_bytes(b"protocol=flock\npid=1\ntimestamp=1\n")
    env = environments(kind="generic")
    assert env.proc_locks().locked_numbers(0) == ()
    assert conditions(env, disk) == {"a": ("sema", "held"), "free": ("flock", "free")}


def test_an_unreadable_directory_does_not_hide_the_others(disk: Path, environments: Environments) -> None:
    for name in ("a", "b", "c"):
        (disk / name).mkdir()
        (disk / name / "l").write_text(f"pid=1\ntimestamp={NOW}\n")
    env = environments()

    def refuse(path: str, _kept: object) -> None:
        if path.endswith("/b"):
            raise PermissionError(13, "Permission denied", path)

    env.before["scan"] = refuse
    every = list(Survey(env).tree(str(disk)))
    assert [one.path if isinstance(one, Unreadable) else one.status.path for one in every] == [
        f"{disk}/a/l", f"{disk}/b", f"{disk}/c/l",
    ]  # fmt: skip


def test_a_lock_held_by_a_child_that_inherited_it_names_the_child(disk: Path, environments: Environments) -> None:
    """W3: the process that acquired it has ended."""
    (disk / "l").write_bytes(b"data")
    done = subprocess.run(
        ["sh", "-c", 'exec 9<>"$1"; flock 9; sleep 1000 >/dev/null 2>&1 & echo $!', "sh", str(disk / "l")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    pid = int(done.stdout)
    try:
        holder = found_in(environments(), disk)["l"].status.holder
        assert (holder and holder.pid) == pid
    finally:
        os.kill(pid, 9)
