"""The protocol `ofd` among processes: with lockf, fasteners, Java, flock(1), dpkg and shadow."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import AcquireTimeout, Lock, LockLost
from holdfast._platform import environment
from process.foreign.play import HERE, Player, storm
from process.support import Peer, eventually, polling
from unit.elsewhere import NOBODY, elsewhere, mount, needs_root

Play = Callable[..., Player]
PROMPTLY = 5.0
KINDS = ("lockf", "open", "fasteners")

pytestmark = [
    pytest.mark.needs("flock"),
    pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="no record locks by open file description here"),
]


def lock(path: str, **more: object) -> Lock:
    return Lock(path, protocol="ofd", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_other_users_of_record_locks_and_holdfast_exclude_each_other(kind: str, play: Play, path: str) -> None:
    """F10."""
    theirs, ours = play("lockf", path, kind), play("ours", path, "ofd")
    assert theirs.ask("take") == "acquired"
    assert ours.ask("take") == "held"
    assert theirs.ask("release") == "released"
    assert ours.ask("take") == "acquired"
    assert theirs.ask("take") == "held"
    assert ours.ask("release") == "released"
    assert theirs.ask("take") == "acquired"
    assert os.path.exists(path), "it stays"


@pytest.mark.parametrize("kind", ["lockf", "open"])
def test_readers_of_both_kinds_share_the_lock_and_exclude_writers(kind: str, play: Play, path: str) -> None:
    theirs = play("lockf", path, kind)
    with lock(path, shared=True):
        assert theirs.ask("share") == "acquired"
        assert lock(path).try_acquire() is None
    assert lock(path).try_acquire() is None
    with lock(path, shared=True):
        assert theirs.ask("release") == "released"
        assert theirs.ask("take") == "held"


@pytest.mark.needs("linux")
@pytest.mark.parametrize("kind", ["lockf", "open"])
def test_ranges_that_do_not_meet_are_held_side_by_side(kind: str, play: Play, path: str) -> None:
    """F10."""
    theirs = play("lockf", path, kind, 100, 50)
    assert theirs.ask("take") == "acquired"
    with lock(path, range=(0, 100)), lock(path, range=(150, 0)):
        for touching in ((99, 2), (149, 1), (0, 0), (120, 5), (100, 0)):
            assert lock(path, range=touching).try_acquire() is None
    status = lock(path, range=(120, 1)).status()
    assert status.locked
    assert status.holder is not None
    assert status.holder.pid == theirs.pid
    assert not lock(path, range=(0, 100)).status().locked


@pytest.mark.parametrize("how", ["release", "close", "kill"])
@pytest.mark.parametrize("kind", ["lockf", "open"])
def test_a_waiter_wakes_at_a_foreign_release(how: str, kind: str, play: Play, path: str) -> None:
    """F8, F10: an unlock without a close makes no event."""
    theirs, ours = play("lockf", path, kind), play("ours", path, "ofd")
    assert theirs.ask("take") == "acquired"
    ours.say("acquire")
    eventually(lambda: polling(ours.pid), what="the wait")
    if how == "kill":
        theirs.kill(signal.SIGKILL)
        theirs.wait()
    else:
        theirs.say(how)
    ours.expect("acquired", PROMPTLY)


@pytest.mark.needs("linux")
def test_a_foreign_waiter_is_seen_and_wakes_at_our_release(play: Play, path: str) -> None:
    theirs = play("lockf", path)
    hold = lock(path).acquire()
    theirs.say("block")
    eventually(lambda: [waiter.pid for waiter in lock(path).status().waiters] == [theirs.pid], what="their wait")
    assert theirs.silent()
    hold.release()
    theirs.expect("acquired", PROMPTLY)


@pytest.mark.needs("linux")
@pytest.mark.parametrize("kind", KINDS)
def test_the_holder_is_found(kind: str, play: Play, path: str) -> None:
    """W9: by its pid, or by the processes that have the descriptor."""
    theirs = play("lockf", path, kind)
    assert theirs.ask("take") == "acquired"
    with pytest.raises(AcquireTimeout) as caught:
        lock(path).acquire(timeout=0)
    assert caught.value.holder is not None
    assert caught.value.holder.pid == theirs.pid
    assert "lockf.py" in str(caught.value)


HANDING = """
lock = Lock(path, protocol="ofd")
hold = lock.acquire()
child = subprocess.Popen(["sleep", "60"], pass_fds=[file_hold(hold).fd], stdout=subprocess.DEVNULL)
say(child.pid)
sys.stdin.readline()
os._exit(0)
"""


@pytest.mark.needs("linux")
def test_a_child_that_inherited_the_lock_is_named(path: str, spawn: Callable[..., Peer]) -> None:
    """W9: the lock belongs to the open file, whichever process has it."""
    holder = spawn("import subprocess, sys\nfrom holdfast.lock import file_hold\npath = sys.argv[1]\n" + HANDING, path)
    child = int(holder.hear())
    try:
        holder.say("end")
        holder.wait()
        status = lock(path).status()
        assert status.locked
        assert status.holder is not None
        assert status.holder.pid == child
    finally:
        os.kill(child, signal.SIGKILL)
    eventually(lambda: not lock(path).status().locked, what="the end")


def test_a_look_never_takes_the_lock(play: Play, path: str) -> None:
    """F7, F10: a contender that tries at that very moment is not refused."""
    theirs = play("lockf", path)
    end = threading.Event()

    def look() -> None:
        while not end.is_set():
            lock(path).status()
            lock(path).wait(0)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(300):
            assert theirs.ask("take") == "acquired"
            assert theirs.ask("release") == "released"
    finally:
        end.set()
        looking.join()


def test_a_storm_with_other_users_of_record_locks_admits_one_holder_at_a_time(
    play: Play, path: str, tmp_path: Path
) -> None:
    players = {
        "lockf": (play("lockf", path), 0.001),
        "by open file": (play("lockf", path, "open"), 0.001),
        "fasteners": (play("lockf", path, "fasteners"), 0.001),
        "ours": (play("ours", path, "ofd"), 0.001),
        "our other": (play("ours", path, "ofd"), 0.001),
    }
    storm(tmp_path / "state", players, 2.0)


def test_flock_and_record_locks_are_independent(path: str) -> None:
    """The kernel keeps them apart, and so does the queue."""
    with Lock(path, protocol="flock"), lock(path):
        assert Lock(path, protocol="flock").status().locked
        assert lock(path).status().locked
    with lock(path):
        assert not Lock(path, protocol="flock").status().locked


def test_a_hold_outlives_the_closing_of_other_descriptors_of_the_file(path: str, play: Play) -> None:
    """Unlike the locks of `F_SETLK`, which a process loses with any descriptor of the file."""
    theirs = play("lockf", path)
    with lock(path):
        os.close(os.open(path, os.O_RDWR))
        lock(path).status()
        assert theirs.ask("take") == "held"


def test_a_forked_child_neither_keeps_nor_frees_the_lock(path: str, play: Play) -> None:
    theirs = play("lockf", path)
    hold = lock(path).acquire()
    child = os.fork()
    if not child:
        hold.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert theirs.ask("take") == "held"
    hold.release()
    assert theirs.ask("take") == "acquired"


def test_a_holder_whose_file_is_replaced_is_told_of_its_loss(path: str) -> None:
    losses: list[LockLost] = []
    hold = lock(path, on_lost=losses.append).acquire()
    Path(path).with_name("t").touch()
    Path(path).with_name("t").replace(path)
    eventually(lambda: losses, what="the news")
    with pytest.raises(LockLost):
        hold.release()


@needs_root
def test_a_user_who_may_only_read_gets_only_a_shared_lock(disk: Path) -> None:
    """F10: the kernel wants a descriptor that can write (EBADF)."""
    path = str(disk / "l")
    Path(path).touch(0o644)
    disk.chmod(0o755)

    def read() -> str:
        with lock(path, shared=True):
            pass
        assert not lock(path).status().locked
        try:
            lock(path).acquire()
        except PermissionError as error:
            return str(error)
        return ""

    assert "an exclusive record lock needs permission to write to the file" in elsewhere(read, user=NOBODY)


def test_java_and_holdfast_exclude_each_other(play: Play, path: str) -> None:
    java = shutil.which("java")
    if java is None:
        pytest.skip("no Java is installed, whose FileLock this is about")
    theirs = play([java, HERE / "Locker.java"], path)
    assert theirs.ask("take") == "acquired"
    ours = play("ours", path, "ofd")
    assert ours.ask("take") == "held"
    ours.say("acquire")
    eventually(lambda: polling(ours.pid), what="the wait")
    assert theirs.ask("release") == "released"
    ours.expect("acquired", PROMPTLY)
    assert theirs.ask("take") == "held"
    theirs.say("acquire")
    assert ours.ask("release") == "released"
    theirs.expect("acquired")
    assert theirs.ask("release") == "released"
    assert theirs.ask("share") == "acquired"
    lock(path, shared=True).acquire(timeout=0).release()


def test_flock_1_by_fcntl_and_holdfast_exclude_each_other(path: str) -> None:
    """util-linux has `--fcntl` from 2.41 on."""
    told = subprocess.run(["flock", "--help"], capture_output=True, text=True).stdout
    if "--fcntl" not in told:
        pytest.skip("this flock(1) has no --fcntl (util-linux 2.41)")
    with lock(path):
        assert subprocess.run(["flock", "--fcntl", "-n", path, "true"]).returncode == 1
    done = subprocess.run(["flock", "--fcntl", path, sys.executable, "-m", "holdfast", "run", "-n", "-p", "ofd", path,
                           "--", "true"])  # fmt: skip
    assert done.returncode == 75


@needs_root
def test_dpkg_and_holdfast_exclude_each_other(tmp_path: Path) -> None:
    dpkg = shutil.which("dpkg")
    if dpkg is None:
        pytest.skip("dpkg is not installed")
    for name in ("updates", "info", "triggers"):
        (tmp_path / name).mkdir()
    (tmp_path / "status").touch()
    (tmp_path / "available").touch()
    command = [dpkg, f"--admindir={tmp_path}", "--configure", "-a"]
    assert subprocess.run(command, capture_output=True).returncode == 0
    its = tmp_path / "lock"
    before = its.stat()
    with lock(str(its)):
        refused = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    assert refused.returncode == 2
    assert "lock was locked by another process" in refused.stderr
    after = its.stat()
    assert (after.st_ino, after.st_mode, after.st_size) == (before.st_ino, before.st_mode, 0)
    assert subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.needs("linux")
@needs_root
def test_shadow_and_holdfast_exclude_each_other() -> None:
    """`lckpwdf`, which passwd(1) and useradd(8) call, with an /etc of its own."""

    def own_etc() -> None:
        mount("tmpfs", "/etc", "tmpfs")

    def both() -> tuple[bool, bool, int]:
        libc = ctypes.CDLL(None)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, b"%d" % libc.lckpwdf())
            signal.pause()
        os.read(reading, 1)
        theirs = lock("/etc/.pwd.lock").status()
        refused = lock("/etc/.pwd.lock").try_acquire() is None
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        hold = lock("/etc/.pwd.lock").acquire(timeout=PROMPTLY)
        waiting = os.fork()
        if not waiting:
            os.write(writing, b"x" if libc.lckpwdf() == 0 else b"-")
            os._exit(0)
        eventually(lambda: [one.pid for one in hold_waiters()] == [waiting], what="its wait")
        hold.release()
        entered = os.read(reading, 1) == b"x"
        os.waitpid(waiting, 0)
        return refused, entered, (theirs.holder.pid if theirs.holder and theirs.holder.pid else 0) - child

    def hold_waiters() -> tuple[object, ...]:
        return lock("/etc/.pwd.lock").status().waiters

    assert elsewhere(both, mounts=own_etc, limit=20) == (True, True, 0)


def test_a_system_without_record_locks_refuses_them(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """F10."""
    monkeypatch.setattr(type(environment()), "guard_records", lambda *_: False)
    with pytest.raises(Exception, match="no record locks here"):
        lock(path).try_acquire()
    assert not os.path.exists(path)
