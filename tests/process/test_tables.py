"""Holders and waiters as they are shown, when they are other processes (proc_locks.py)."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import abilities
from holdfast._admin.found import Found
from holdfast._admin.scan import Survey
from holdfast._platform import procfs
from holdfast._platform.linux import LinuxEnvironment
from holdfast._platform.proc_files import ProcFiles
from holdfast._platform.values import LockOwner
from process.support import Peer, descriptors, eventually

LINUX = abilities.LINUX
"""For those that are looked at: they shall wait and hold with all that Linux has."""

HOLD = """
import fcntl
fd = os.open(path, os.O_RDWR | os.O_CREAT)
fcntl.flock(fd, fcntl.LOCK_EX if sys.argv[2] == "exclusive" else fcntl.LOCK_SH)
say("held", os.getpid())
hear()
"""
KEEP = "hold = Lock(path).acquire(timeout=20); say('holding'); hear(); hold.release(); say('released'); hear()"
WAIT = "hold = Lock(path, timeout=60).acquire(); say('holding'); hear()"

# The process that takes the lock ends; its child keeps the descriptor.
BEQUEATH = """
import fcntl
fd = os.open(path, os.O_RDWR | os.O_CREAT)
fcntl.flock(fd, fcntl.LOCK_EX)
taker = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == taker:
    time.sleep(0.001)
say(os.getpid())
hear()
"""

LOOK = """
import json
from holdfast._platform.linux import LinuxEnvironment
import holdfast._platform.proc_locks, holdfast._platform.inotify
if len(sys.argv) > 2:
    become(int(sys.argv[2]))
while True:
    word = hear()
    if not word:
        break
    if word == "open":
        fd = os.open(path, os.O_RDONLY)
        say("opened")
        continue
    if word == "lock":
        import fcntl
        fd = os.open(path, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        say("locked", os.getpid())
        continue
    env, stat = LinuxEnvironment(), os.stat(path)
    identity = (stat.st_dev, stat.st_ino)
    if word == "owners":
        say(json.dumps([[o.pid, o.exclusive, o.waiting] for o in env.lock_owners(identity)]))
    else:
        say(json.dumps(env.watchers(identity)))
"""

CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
STRANGER = 61001

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
container = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare(1), for a container"
)


def identity(path: object) -> tuple[int, int]:
    stat = os.stat(str(path))
    return stat.st_dev, stat.st_ino


def owners(path: object) -> set[tuple[int | None, bool, bool]]:
    """(pid, exclusive, waiting) of each."""
    return {(o.pid, o.exclusive, o.waiting) for o in LinuxEnvironment().lock_owners(identity(path))}


def watches(pid: int) -> bool:
    """Whether the process watches any file."""
    return "anon_inode:inotify" in descriptors(pid).values()


def watchers(path: object) -> list[int]:
    return LinuxEnvironment().watchers(identity(path))


def ask(looker: Peer, what: str) -> Any:
    looker.say(what)
    answer = json.loads(looker.hear())
    return {tuple(each) for each in answer} if what == "owners" else answer


@pytest.fixture
def file(place: Path) -> Path:
    """A file, on disk or in memory, which everybody may open."""
    path = place / "l"
    path.touch()
    path.chmod(0o666)
    return path


Spawn = Callable[..., Peer]


# -- kernel locks ------------------------------------------------------------------------------------------------------


def test_holders_and_blocked_waiters_are_shown(file: Path, spawn: Spawn) -> None:
    assert owners(file) == set()
    holder = spawn(HOLD, file, "exclusive")
    holder.hear()
    assert owners(file) == {(holder.pid, True, False)}
    exclusive, shared = spawn(HOLD, file, "exclusive"), spawn(HOLD, file, "shared")
    wanted = {(holder.pid, True, False), (exclusive.pid, True, True), (shared.pid, False, True)}
    eventually(lambda: owners(file) == wanted, what="the two waiters")
    holder.kill()
    exclusive.kill()
    exclusive.wait()
    shared.hear()
    assert owners(file) == {(shared.pid, False, False)}


def test_several_holders_are_each_shown(file: Path, spawn: Spawn) -> None:
    holders = [spawn(HOLD, file, "shared") for _ in range(3)]
    for holder in holders:
        holder.hear()
    waiter = spawn(HOLD, file, "exclusive")
    wanted = {(holder.pid, False, False) for holder in holders} | {(waiter.pid, True, True)}
    eventually(lambda: owners(file) == wanted, what="three holders and a waiter")


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock(1) is not installed")
def test_the_command_flock_is_shown(file: Path, spawn: Spawn) -> None:
    # flock(1) takes the lock, and its command inherits the descriptor: flock itself is shown.
    holder = subprocess.Popen(["flock", file, "sleep", "100"], start_new_session=True)
    waiter: subprocess.Popen[bytes] | None = None
    try:
        eventually(lambda: owners(file) == {(holder.pid, True, False)}, what="flock(1)")
        table = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        children = eventually(lambda: table.read_text().split(), what="its child, which it starts afterwards")
        waiter = subprocess.Popen(["flock", "-s", file, "true"])
        wanted = {(holder.pid, True, False), (waiter.pid, False, True)}
        eventually(lambda: owners(file) == wanted, what="the waiting flock(1)")
        holder.kill()
        holder.wait()
        wanted = {(int(children[0]), True, False), (waiter.pid, False, True)}
        eventually(lambda: owners(file) == wanted, what="the child, which has inherited the lock")
        os.kill(int(children[0]), 9)
        waiter.wait()
        assert owners(file) == set()
    finally:
        try:
            os.killpg(holder.pid, 9)  # the child, too
        except ProcessLookupError:
            pass
        for each in filter(None, (holder, waiter)):
            each.kill()
            each.wait()


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock(1) is not installed")
def test_a_shell_that_locked_by_flock_is_shown_as_the_holder(file: Path) -> None:
    shell = subprocess.Popen(["sh", "-c", f"exec 9>>'{file}'; flock 9; echo held; read line"], stdin=-1, stdout=-1)
    try:
        assert shell.stdout is not None
        shell.stdout.readline()
        assert owners(file) == {(shell.pid, True, False)}
    finally:
        shell.communicate(b"\n")


def test_a_lock_whose_taker_has_ended_is_attributed_to_the_process_that_inherited_it(file: Path, spawn: Spawn) -> None:
    taker = spawn(BEQUEATH, file)
    heir = int(taker.hear())
    taker.wait()
    waiter = spawn(HOLD, file, "exclusive")
    eventually(lambda: (heir, True, False) in owners(file), what="the heir")
    if os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC:  # otherwise the kernel does not show such waiters
        eventually(lambda: owners(file) == {(heir, True, False), (waiter.pid, True, True)}, what="and the waiter")


def test_a_lock_that_was_passed_on_is_attributed_to_its_new_holder(file: Path, spawn: Spawn) -> None:
    # The taker lives, but has closed its copy: to name it would be wrong.
    taker = spawn(
        """
        import fcntl, subprocess
        fd = os.open(path, os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
        child = subprocess.Popen(["sleep", "100"], pass_fds=(fd,))
        say(child.pid)
        hear()
        os.close(fd)
        say("closed")
        hear()
        """,
        file,
    )
    child = int(taker.hear())
    assert owners(file) == {(taker.pid, True, False)}
    taker.say("close")
    taker.expect("closed")
    assert owners(file) == {(child, True, False)}
    for few in (True, False):  # `ls` and `top`, which ask about many files, name the same process
        assert LinuxEnvironment().proc_locks(few=few).owners(identity(file)) == [LockOwner(child, exclusive=True)]


@root
def test_a_process_whose_first_thread_has_ended_is_shown(file: Path) -> None:
    """The kernel shows its descriptors by another thread only. (Another user may not look at any of them.)"""
    child = os.fork()
    if child == 0:
        fcntl.flock(os.open(file, os.O_RDWR), fcntl.LOCK_EX)
        threading.Thread(target=time.sleep, args=(60,)).start()
        ctypes.CDLL(None).pthread_exit(None)  # this thread alone
    try:
        eventually(lambda: procfs.stat_fields(child)[0] == "Z")
        assert owners(file) == {(child, True, False)}
        assert LinuxEnvironment().proc_locks().owners(identity(file)) == [LockOwner(child, exclusive=True)]
        assert ProcFiles(tables=True).openers(file.name, file.stat().st_ino) == [child]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_guard_of_a_lock_is_shown(place: Path, spawn: Spawn) -> None:
    path = place / "l"
    holder = spawn(KEEP, path, env=LINUX)
    holder.expect("holding")
    assert owners(path) == {(holder.pid, True, False)}
    holder.say("release")
    holder.expect("released")
    path.touch()
    assert owners(path) == set()


# -- watches -----------------------------------------------------------------------------------------------------------


def test_a_waiter_is_shown_while_it_waits(place: Path, spawn: Spawn) -> None:
    path = place / "l"
    holder = spawn(KEEP, path, env=LINUX)
    holder.expect("holding")
    assert watchers(path) == []
    waiter = spawn(WAIT, path, env=LINUX)
    eventually(lambda: watchers(path) == [waiter.pid], what="the waiter")
    eventually(lambda: owners(path) == {(holder.pid, True, False)}, what="the holder alone, as no guard is probed")
    other = place / "other"
    other.touch()
    assert watchers(other) == []
    waiter.kill()
    waiter.wait()
    assert watchers(path) == []


WATCH = """
import ctypes
libc = ctypes.CDLL(None)
fd = -1
while fd < 0:
    fd = libc.inotify_init1(0)
libc.inotify_add_watch(fd, os.fsencode(path), ctypes.c_uint32(int(sys.argv[2], 16)))
say("watching")
hear()
"""


def test_only_a_watch_for_the_same_events_is_taken_for_a_waiter(file: Path, spawn: Spawn) -> None:
    kinds = {"ours": "2000c0c", "without DONT_FOLLOW": "c0c", "with CLOSE_NOWRITE": "2000c1c"}
    others = {"tail -f": "c06", "all": "fff", "less": "404", "once": "80000c0c", "linked": "4000c0c"}
    pids = {}
    for name, mask in {**kinds, **others}.items():
        peer = spawn(WATCH, file, mask)
        peer.expect("watching")
        pids[name] = peer.pid
    with file.open():  # on btrfs, only an open file can be found
        assert watchers(file) == sorted(pids[name] for name in kinds)


@pytest.mark.skipif(shutil.which("tail") is None, reason="tail(1) is not installed")
def test_tail_is_not_taken_for_a_waiter(file: Path) -> None:
    abilities.need_own_device(file)  # nor does tail watch if it knows that the filesystem is an overlay
    tail = subprocess.Popen(["tail", "-f", file], stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: watches(tail.pid), what="the watch of tail")
        assert watchers(file) == []
    finally:
        tail.kill()
        tail.wait()


# -- filesystems -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["new", "copied up"])
def test_holders_and_watchers_are_found_on_an_overlay_of_two_filesystems(
    overlay: Path, name: str, spawn: Spawn
) -> None:
    path = overlay / name
    holder = spawn(HOLD, path, "exclusive")
    holder.hear()
    waiter = spawn(HOLD, path, "shared")
    wanted = {(holder.pid, True, False), (waiter.pid, False, True)}
    eventually(lambda: owners(path) == wanted, what="a holder and a waiter")
    watcher = spawn(WATCH, path, "2000c0c")
    watcher.expect("watching")
    assert watchers(path) == [watcher.pid]


def test_on_btrfs_holders_of_two_subvolumes_are_told_apart(btrfs: Path, spawn: Spawn) -> None:
    one, other = btrfs / "one" / "l", btrfs / "other" / "l"
    one.touch()
    other.touch()
    assert one.stat().st_ino == other.stat().st_ino
    holder, waiter = spawn(HOLD, one, "exclusive"), None
    holder.hear()
    assert owners(other) == set()
    assert owners(one) == {(holder.pid, True, False)}
    waiter = spawn(HOLD, one, "exclusive")
    wanted = {(holder.pid, True, False), (waiter.pid, True, True)}
    eventually(lambda: owners(one) == wanted, what="a waiter")
    away = spawn(BEQUEATH, other)  # so that the process that inherited it has to be looked for
    heir = int(away.hear())
    away.wait()
    assert owners(one) == wanted
    assert owners(other) == {(heir, True, False)}
    watcher = spawn(WATCH, one, "2000c0c")
    watcher.expect("watching")
    assert watchers(one) == [watcher.pid]


def test_a_lock_on_btrfs_is_listed_with_its_protocol_and_waiter(btrfs: Path, spawn: Spawn) -> None:
    """W8: a waiter there seems to watch for readers; the file that its holder has open shows that none does."""
    path = btrfs / "one" / "l"
    holder = spawn(KEEP, path, env=LINUX)
    holder.expect("holding")
    waiter = spawn(WAIT, path, env=LINUX)
    eventually(lambda: LinuxEnvironment().proc_locks().watchers(identity(path)) == [waiter.pid], what="the waiter")
    assert not LinuxEnvironment().proc_locks().heeds_readers(identity(path))
    (one,) = Survey(LinuxEnvironment()).directory(str(path.parent))
    assert isinstance(one, Found)
    assert (one.status.protocol, one.status.holder.pid) == ("sema", holder.pid)
    assert [each.pid for each in one.status.waiters] == [waiter.pid]


def test_files_of_a_source_tree_on_btrfs_are_not_looked_up(btrfs: Path, spawn: Spawn) -> None:
    """W8: there too, directory listings have the inode numbers of the tables."""
    path = btrfs / "one" / "l.py"
    assert LinuxEnvironment().proc_locks().locked_numbers(path.parent.stat().st_dev) is not None
    (path.parent / "other.py").write_text("pid=1\ntimestamp=1\n")
    holder = spawn(HOLD, path, "exclusive")
    holder.hear()
    found = [one for one in Survey(LinuxEnvironment()).tree(str(path.parent)) if isinstance(one, Found)]
    assert [(one.status.path, one.status.protocol) for one in found] == [(str(path), "flock")]


@root
def test_on_an_overlay_another_user_finds_only_the_holder_of_an_open_file(overlay: Path, spawn: Spawn) -> None:
    path = overlay / "new"
    holder = spawn(HOLD, path, "exclusive")
    holder.hear()
    waiter = spawn(HOLD, path, "exclusive")
    wanted = {(holder.pid, True, False), (waiter.pid, True, True)}
    eventually(lambda: owners(path) == wanted, what="both")
    looker = spawn(LOOK, path, STRANGER)
    # No process that may be inspected shows by which device the tables name the file.
    assert ask(looker, "owners") == set()
    looker.say("open")
    looker.expect("opened")
    eventually(lambda: ask(looker, "owners") == wanted, what="both")  # a frozen process does not wait in it


# -- other users, other containers -------------------------------------------------------------------------------------


@root
def test_another_user_sees_every_holder_and_only_permitted_watchers(file: Path, spawn: Spawn) -> None:
    abilities.need_own_device(file)
    looker = spawn(LOOK, file, STRANGER)
    holder = spawn(HOLD, file, "exclusive")
    holder.hear()
    waiter = spawn(HOLD, file, "exclusive")
    wanted = {(holder.pid, True, False), (waiter.pid, True, True)}
    eventually(lambda: ask(looker, "owners") == wanted, what="both, which may not be looked at")
    watcher = spawn(WATCH, file, "2000c0c")
    watcher.expect("watching")
    assert watchers(file) == [watcher.pid]
    assert ask(looker, "watchers") == []  # as far as permitted
    # A process that has changed its user is hidden from that user too, unless it says otherwise: PR_SET_DUMPABLE.
    mine = spawn(f"become({STRANGER})\nimport ctypes; ctypes.CDLL(None).prctl(4, 1)\n" + WATCH, file, "2000c0c")
    mine.expect("watching")
    assert ask(looker, "watchers") == [mine.pid]


@root
def test_another_user_is_not_told_the_pid_of_a_process_that_has_ended(file: Path, spawn: Spawn) -> None:
    abilities.need_own_device(file)
    looker = spawn(LOOK, file, STRANGER)
    taker = spawn(BEQUEATH, file)
    heir = int(taker.hear())
    # A zombie until it is reaped: it does not live any longer then, either.
    eventually(lambda: ask(looker, "owners") == {(None, True, False)}, what="somebody who cannot be named")
    taker.wait()
    assert ask(looker, "owners") == {(None, True, False)}
    assert owners(file) == {(heir, True, False)}


@root
def test_processes_that_proc_hides_are_not_taken_for_ended(file: Path, spawn: Spawn) -> None:
    abilities.need_own_device(file)
    holder = spawn(HOLD, file, "exclusive")
    holder.hear()
    hiding = ("unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh")
    looker = spawn(LOOK, file, STRANGER, prefix=hiding)
    assert ask(looker, "owners") == {(holder.pid, True, False)}
    assert ask(looker, "watchers") == []


@container
def test_a_container_does_not_see_pids_of_the_host(file: Path, spawn: Spawn) -> None:
    outside = spawn(HOLD, file, "shared")
    outside.hear()
    inside = spawn(LOOK, file, prefix=CONTAINER)
    assert ask(inside, "owners") == set()
    holder = spawn("sys.argv[2:] = ['shared']\n" + HOLD, file, prefix=CONTAINER)
    assert holder.hear() == "held 1"
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
    assert owners(file) == {(outside.pid, False, False), (int(children[0]), False, False)}
    assert ask(inside, "owners") == set()


@container
def test_a_waiter_outside_the_container_is_shown_without_a_pid(file: Path, spawn: Spawn) -> None:
    inside = spawn(LOOK, file, prefix=CONTAINER)
    inside.say("lock")
    inside.expect("locked 1")
    spawn(HOLD, file, "shared")
    wanted = {(1, True, False), (None, False, True)}
    eventually(lambda: ask(inside, "owners") == wanted, what="somebody who waits")


@container
def test_a_container_sees_its_own_holders(file: Path, spawn: Spawn) -> None:
    look = LOOK.replace("become(", "(lambda number: None)(")
    inside = spawn(
        f"""
        if os.fork():
            while True:
                os.wait()
        exec({BEQUEATH.replace("say(os.getpid())", "say('ready', os.getpid())").replace("hear()", "")!r})
        exec({look!r})
        """,
        file,
        prefix=CONTAINER,
    )
    word, heir = inside.hear().split()
    assert word == "ready"
    # Its taker has ended, so the container's /proc/locks has nothing: the descriptor shows the lock.
    assert ask(inside, "owners") == {(int(heir), True, False)}


@container
def test_the_proc_of_another_namespace_is_not_believed(file: Path, spawn: Spawn) -> None:
    holder = spawn(HOLD, file, "exclusive")
    holder.hear()
    watcher = spawn(WATCH, file, "2000c0c")
    watcher.expect("watching")
    looker = spawn(LOOK, file, prefix=("unshare", "--pid", "--fork", "--kill-child"))  # it still sees the outer /proc
    assert ask(looker, "owners") == set()
    assert ask(looker, "watchers") == []


@container
def test_without_proc_nothing_is_found(file: Path, spawn: Spawn) -> None:
    bare = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")
    looker = spawn(LOOK, file, prefix=bare)
    assert ask(looker, "owners") == set()
    assert ask(looker, "watchers") == []


# -- in the middle -----------------------------------------------------------------------------------------------------


def test_processes_that_come_and_go_do_not_hide_a_holder(file: Path, spawn: Spawn) -> None:
    # Takes and releases locks, and starts and ends processes that inherit them, as fast as it can.
    storm = spawn(
        """
        import fcntl, subprocess
        threading.Thread(target=lambda: (hear(), os._exit(0)), daemon=True).start()
        say("going")
        others = [os.open(path + str(n), os.O_RDWR | os.O_CREAT) for n in range(100)]
        while True:
            for fd in others:
                fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fork() == 0:
                os._exit(0)
            for fd in others:
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.wait()
        """,
        file,
    )
    storm.expect("going")
    holder = spawn(HOLD, file, "exclusive")
    holder.hear()
    env = LinuxEnvironment()
    for _ in range(40):
        assert env.lock_owners(identity(file)) == [LockOwner(holder.pid, True)]
        assert env.watchers(identity(file)) == []
    storm.say("end")
    storm.finish()
