"""The protocol `flock` among processes: with flock(1) and other libraries, with readers, and with kills."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import portalocker
import pytest

from holdfast import AcquireTimeout, AsyncLock, Lock, LockLost
from holdfast._platform import environment
from process.support import Peer, descriptors, eventually, polling
from process.wanted import Wanted

SHARING = Path(__file__).with_name("sharing.py")
PROMPTLY = 5.0
"""Seconds in which a lock that was released by an event, or within its re-check of 0.1 s, is to be had on a machine
that does much else; who is told of nothing looks again after ten."""


@pytest.fixture(autouse=True)
def _kernel_locks(tmp_path: Path) -> None:
    env = environment()
    fd = env.open_new(str(tmp_path / "probe"), 0o600)
    try:
        if env.guard(fd) is None:
            pytest.skip("kernel locks are switched off (HOLDFAST_OS, HOLDFAST_WITHOUT), and there are no others here")
    finally:
        env.close(fd)
        os.unlink(tmp_path / "probe")


@pytest.fixture
def lock(path: str) -> Lock:
    return Lock(path, protocol="flock")


@pytest.fixture
def sh(path: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a shell script, with the lock as $1; it communicates in lines."""
    started = []

    def start(script: str) -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen(
                ["sh", "-c", script, "sh", path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
        )
        return started[-1]

    yield start
    for shell in started:
        try:
            os.killpg(shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        shell.wait()
        shell.stdin.close()
        shell.stdout.close()


def hear(shell: subprocess.Popen[bytes]) -> str:
    return shell.stdout.readline().decode().strip()


def tell(shell: subprocess.Popen[bytes]) -> None:
    shell.stdin.write(b"\n")


def try_flock(path: str, *options: str) -> bool:
    """Whether flock(1) gets the lock at once."""
    return subprocess.run(["flock", "-n", *options, path, "true"]).returncode == 0


WAIT = """
say("waiting")
begun = time.monotonic()
with Lock(path, protocol="flock", shared=sys.argv[2] == "shared"):
    say(time.monotonic())
"""

HOLD = """
hold = Lock(path, protocol="flock", shared=sys.argv[2] == "shared", tag="a holder").acquire(timeout=5)
say("holding")
hear()
hold.release()
say("released")
hear()
"""


# -- other programs ----------------------------------------------------------------------------------------------------


def test_flock_1_respects_holdfast(path: str, lock: Lock) -> None:
    """To flock(1), an exclusive or shared hold means the same as a lock of its own."""
    with lock:
        assert not try_flock(path)
        assert not try_flock(path, "-s")
    with Lock(path, protocol="flock", shared=True):
        assert not try_flock(path, "-x")
        assert try_flock(path, "-s")
    assert try_flock(path)


@pytest.mark.needs("linux")
@pytest.mark.parametrize("option", ["-x", "-s"])
def test_holdfast_respects_flock_1(option: str, path: str, lock: Lock, sh: Callable[..., object]) -> None:
    shell = sh(f'flock {option} "$1" sh -c "echo in; read x"')
    assert hear(shell) == "in"
    assert lock.try_acquire() is None
    shared = Lock(path, protocol="flock", shared=True).try_acquire()
    assert (shared is not None) is (option == "-s")
    if shared is not None:
        shared.release()
    with pytest.raises(AcquireTimeout, match=r"held by .*process \d+ \(flock -") as caught:
        lock.acquire(timeout=0)
    assert caught.value.holder is not None
    status = lock.status()
    assert status.holder is not None
    assert status.holder.pid == caught.value.holder.pid
    assert "flock" in (status.holder.command or "")
    assert status.holder.shared is (option == "-s")


@pytest.mark.parametrize("option", ["-x", "-s"])
def test_a_waiter_wakes_when_flock_1_is_done(
    option: str, path: str, sh: Callable[..., object], spawn: Callable[..., Peer]
) -> None:
    shell = sh(f'flock {option} "$1" sh -c "echo in; read x"')
    assert hear(shell) == "in"
    waiter = spawn(WAIT, path, "alone")
    waiter.expect("waiting")
    eventually(lambda: polling(waiter.pid))
    tell(shell)
    shell.wait()
    ended = time.monotonic()
    assert float(waiter.hear()) - ended < PROMPTLY


@pytest.mark.needs("linux")
def test_flock_1_wakes_when_holdfast_is_done(path: str, lock: Lock) -> None:
    for timeout in ([], ["-w", "20"]):
        hold = lock.acquire(timeout=5)
        waiter = subprocess.Popen(["flock", *timeout, path, "true"])
        eventually(lambda pid=waiter.pid: [w.pid for w in lock.status().waiters] == [pid])
        hold.release()
        assert waiter.wait(PROMPTLY) == 0


def test_a_shell_that_unlocks_without_closing_is_noticed(
    path: str, sh: Callable[..., object], spawn: Callable[..., Peer]
) -> None:
    """`flock -u 9` makes no event."""
    shell = sh('exec 9>>"$1"; flock 9; echo in; read x; flock -u 9; echo out; read x')
    assert hear(shell) == "in"
    waiter = spawn(WAIT, path, "alone")
    waiter.expect("waiting")
    eventually(lambda: polling(waiter.pid))
    tell(shell)
    assert hear(shell) == "out"
    unlocked = time.monotonic()
    assert float(waiter.hear()) - unlocked < PROMPTLY


LIBRARIES: dict[str, Callable[[str], Any]] = {
    "filelock": lambda path: filelock.FileLock(path, timeout=0),
    "portalocker": lambda path: portalocker.Lock(path, timeout=0, fail_when_locked=True),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_another_library_and_holdfast_exclude_each_other(library: str, path: str, lock: Lock) -> None:
    theirs = LIBRARIES[library](path)
    for mine in (lock, Lock(path, protocol="flock", shared=True)):
        with mine, pytest.raises((filelock.Timeout, portalocker.LockException)):
            theirs.acquire()
        theirs.acquire()
        try:
            assert mine.try_acquire() is None
            assert mine.status().locked
        finally:
            theirs.release()
    with lock:
        pass


def test_exclusion_holds_beside_a_foreign_user_that_removes_the_file(path: str, lock: Lock) -> None:
    """Some programs remove it when they are done; never are two of those that find the path inside."""
    stop = threading.Event()

    def foreigner() -> None:
        while not stop.is_set():
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                os.unlink(path)
            os.close(fd)

    thread = threading.Thread(target=foreigner)
    thread.start()
    try:
        for _ in range(500):
            with lock as hold:
                hold.ensure_held()
                assert not try_open_and_lock(path)
    finally:
        stop.set()
        thread.join()


def try_open_and_lock(path: str) -> bool:
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


# -- readers and writers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kill", [False, True], ids=["in peace", "with kills"])
def test_readers_and_writers_exclude_each_other_and_lose_no_increment(kill: bool, shm: Path) -> None:
    """Four writers and eight readers, a shell with flock(1) and filelock: judged by files that have nothing to do with
    the lock (sharing.py)."""
    (shm / "locks").mkdir()
    (shm / "state").mkdir()
    wanted = Wanted.share(4 / 30)
    if not kill:
        wanted = wanted._replace(kills=0)
    done = subprocess.run(
        [sys.executable, str(SHARING), str(shm / "locks" / "l"), str(shm / "state"), wanted.word()],
        stdout=subprocess.PIPE,
        text=True,
        timeout=wanted.limit,
        check=True,
    )
    told = json.loads(done.stdout)
    journal = [line.split() for line in (shm / "state" / "journal").read_text().splitlines() if line]
    assert told["failed"] == 0
    assert [words for words in journal if words[0] == "x"] == []
    made = [int(words[2]) for words in journal if words[0] == "n"]
    assert made == sorted(set(made)), "an increment was lost"
    first, second = (int(word) for word in (shm / "state" / "counter").read_text().split())
    if not kill:
        assert made == list(range(1, first + 1))
        assert first == second
    kinds = {words[2] for words in journal if words[0] == "+"}
    assert kinds == {"r", "w", "s", "f"}, "somebody never got in"
    inside: set[str] = set()
    most = 0
    for words in journal:
        if words[0] == "+" and words[2] == "r":
            inside.add(words[1])
        elif words[0] == "-":
            inside.discard(words[1])
        elif words[0] == "n":
            inside.clear()  # the killed ones
        most = max(most, len(inside))
    assert most > 2, "readers waited for each other"
    assert told["killed"] >= wanted.kills if kill else told["killed"] == 0
    assert len(made) >= wanted.increments
    with Lock(shm / "locks" / "l", protocol="flock", timeout=10):  # it has a ticket besides those of the killed
        assert (shm / "locks" / "l").read_bytes() == b""
    assert os.listdir(shm / "locks") == ["l"]


STREAM = """
lock = Lock(path, protocol="flock", shared=True)
say("reading")
end = time.monotonic() + 30
while time.monotonic() < end:
    with lock:
        time.sleep(0.02)
"""


@pytest.mark.needs("linux")
def test_a_stream_of_overlapping_readers_lets_a_writer_in(spawn: Callable[..., Peer], path: str, lock: Lock) -> None:
    """At every moment a reader is inside; but readers that come after the writer queue behind it."""
    readers = [spawn(STREAM, path) for _ in range(4)]
    for reader in readers:
        reader.expect("reading")
    eventually(lambda: len(lock.status().holders) > 1)
    for _ in range(5):
        with lock.acquire(timeout=15) as hold:
            hold.ensure_held()


def test_a_reader_does_not_overtake_a_waiting_writer(spawn: Callable[..., Peer], path: str, lock: Lock) -> None:
    """Not even with a single try; once the writer has been inside, it may enter."""
    shared = Lock(path, protocol="flock", shared=True)
    hold = shared.acquire(timeout=5)
    writer = spawn(HOLD, path, "alone")
    eventually(lambda: [waiter.position for waiter in lock.status().waiters] == [1])
    results: list[object] = []
    other = threading.Thread(target=lambda: results.append(shared.try_acquire()))
    other.start()
    other.join()
    assert results == [None]
    with pytest.raises(AcquireTimeout):
        threaded(shared, 0.05)
    hold.release()
    writer.expect("holding")
    writer.say("")
    writer.expect("released")
    with shared:
        pass


def threaded(lock: Lock, timeout: float) -> None:
    """Acquire in another thread; its exception is raised here."""
    raised: list[BaseException] = []

    def acquire() -> None:
        try:
            lock.acquire(timeout=timeout).release()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=acquire)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


# -- what happens to a holder ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["alone", "shared"])
def test_the_lock_of_a_killed_holder_is_acquired_promptly(how: str, path: str, spawn: Callable[..., Peer]) -> None:
    holder = spawn(HOLD, path, how)
    holder.expect("holding")
    waiter = spawn(WAIT, path, "alone")
    waiter.expect("waiting")
    eventually(lambda: polling(waiter.pid))
    killed = time.monotonic()
    holder.kill()
    holder.wait()
    assert float(waiter.hear()) - killed < PROMPTLY
    waiter.finish()
    assert Path(path).read_bytes() == b""


def test_a_holder_is_told_that_its_file_was_replaced(path: str) -> None:
    told: list[LockLost] = []
    hold = Lock(path, protocol="flock", on_lost=told.append).acquire(timeout=5)
    Path(path + ".new").touch()
    os.rename(path + ".new", path)
    eventually(lambda: told, what="the news of the loss")
    assert hold.lost
    with pytest.raises(LockLost):
        hold.release()
    assert os.path.exists(path)
    assert len(told) == 1


def test_a_forked_child_neither_keeps_nor_frees_the_lock(path: str, spawn: Callable[..., Peer]) -> None:
    peer = spawn(
        """
        hold = Lock(path, protocol="flock", shared=True).acquire(timeout=5)
        child = os.fork()
        if child == 0:
            hold.release()
            say("child", Lock(path, protocol="flock").try_acquire() is None)
            signal.pause()
        hear()
        hold.release()
        say("parent", Lock(path, protocol="flock").try_acquire() is not None)
        hear()
        """,
        path,
    )
    peer.expect("child True")
    peer.say("")
    peer.expect("parent True")


def test_a_thousand_cycles_leave_neither_descriptor_nor_file(path: str, lock: Lock) -> None:
    shared = Lock(path, protocol="flock", shared=True, tag="x")
    with lock:
        before = descriptors()
        assert shared.try_acquire() is None
    for number in range(1000):
        with shared if number % 2 else lock:
            assert lock.try_acquire() is None
    after = descriptors()
    assert len(after) < len(before), (before, after)
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


def test_the_shared_holds_of_one_process_are_independent(path: str) -> None:
    """Several holds of one file in one process, acquired and released in any order."""
    shared, alone = Lock(path, protocol="flock", shared=True), Lock(path, protocol="flock")
    readers, problems = 0, []
    mutex = threading.Lock()

    def read() -> None:
        nonlocal readers
        for _ in range(50):
            with shared.acquire(timeout=20):
                with mutex:
                    readers += 1
                time.sleep(random.random() * 0.001)
                with mutex:
                    readers -= 1

    def write() -> None:
        for _ in range(50):
            with alone.acquire(timeout=20):
                if readers:
                    problems.append(readers)

    threads = [threading.Thread(target=work) for work in [read] * 6 + [write] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert not environment().holds
    hold = alone.try_acquire()
    assert hold is not None
    hold.release()


def test_tasks_that_share_do_not_wait_for_each_other_nor_starve_a_writer(path: str) -> None:
    """On one event loop, by the same rules as threads and processes."""
    read, write = AsyncLock(path, protocol="flock", shared=True), AsyncLock(path, protocol="flock")
    inside: list[str] = []

    async def enter(lock: AsyncLock, name: str, leave: asyncio.Event | None = None) -> None:
        async with lock:
            inside.append(name)
            if leave is not None:
                await leave.wait()

    async def play() -> None:
        leave = asyncio.Event()
        tasks = [asyncio.create_task(enter(read, name, leave)) for name in ("first", "second")]
        while len(inside) < 2:
            await asyncio.sleep(0)
        tasks.append(asyncio.create_task(enter(write, "writer")))
        while not any(waiter.position for waiter in Lock(path, protocol="flock").status().waiters):
            await asyncio.sleep(0.001)
        tasks += [asyncio.create_task(enter(read, "late"))]
        await asyncio.sleep(0)
        leave.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 20)

    asyncio.run(play())
    assert inside[2:] == ["writer", "late"]
